"""PopLiteMessageProcessor: 200070 and 200071; acknowledgements of lite topics for `ack`.

RocketMQ: PopLiteMessageProcessor, LiteSubscriptionCtlProcessor.

A pop names a client, not a queue: it gets messages of any lite topic that the client takes. Of each
message the answer says how often it was handed out before; where it stands in its lite topic, the
client reads from the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.attributes import LITE, MESSAGE_TYPE
from oberth.broker.held_requests import HOLD_MS_MAX, kept_request, wait_until
from oberth.broker.lite.lite_service import (
    IllegalSubscriptionError,
    LiteService,
    QuotaExceededError,
    pieces,
)
from oberth.broker.pop.check_point import MESSAGES_PER_POP_MAX, ORDER_REVIVE_QUEUE, Receipt
from oberth.broker.pop.order_infos import NO_EFFECT, UNKNOWN_OFFSET
from oberth.broker.pop.polling import Waiting
from oberth.broker.stats import BROKER_GET_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE
from oberth.formats import names
from oberth.remoting.aio.stage import error_response
from oberth.remoting.bodies.base import checked_list
from oberth.remoting.bodies.lite import LiteSubscriptionCtlRequestBody, LiteSubscriptionEntry
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.pop import (
    ATTEMPT_ID_MAX,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
)
from oberth.store.messages import GetMessageResult, GetMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.old_messages import OldMessages, Stretch
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.pop.pop_service import PopService
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

LITE_TOPICS_MAX: Final = 2000
"""Lite topics of one entry of a request; more come in several."""
QUEUES_A_TURN: Final = 200
"""Lite topics noted for a client that one turn of the loop looks into for a request."""

TOO_LATE_MS: Final = 500
"""A request that comes so long after its client stopped waiting is not worked on."""

_QUEUE: Final = names.LMQ_QUEUE_ID
_INIT_FROM_MAX: Final = 1

_MOVED: Final = frozenset(
    {
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.MESSAGE_WAS_REMOVING,
        GetMessageStatus.NO_MATCHED_MESSAGE,
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)

_Answer = tuple[int, str | None]


class PopLiteMessageProcessor:
    """Hands messages of lite topics out, and takes them back."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        old_messages: OldMessages,
        pop: PopService,
        stats: BrokerStats,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        lite: LiteService,
        refuses_readers: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._config = config
        self._own = own
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._old_messages = old_messages
        self._pop = pop
        self._stats = stats
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._lite = lite
        self._refuses_readers = refuses_readers
        self._broker_gets = stats.item(BROKER_GET_NUMS, config.broker_cluster_name)

    # 200070

    def pop(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200070: messages of any lite topic that a client takes, or wait for some."""
        return self._pop_events(channel, request, ())

    def _pop_events(
        self, channel: Channel, request: RemotingCommand, brought_in: tuple[str, ...]
    ) -> RemotingCommand | None:
        """Serve 200070; first the queues that were brought in for it."""
        fields = request.ext_fields
        if fields is not None and fields.get("bornTime", "0") == "0":
            fields["bornTime"] = str(self._now_ms())
        header = request.header(PopLiteMessageRequestHeader)
        now_ms = self._now_ms()
        refusal = self._check(header, now_ms)
        if refusal is not None:
            return create_response(
                request,
                *refusal,
                header=PopLiteMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0),
            )
        self._dispatch_now()
        records: list[memoryview] = []
        counts: list[str] = []
        left = header.max_msg_num
        if left > 0:
            noted = islice(self._lite.events_of(header.client_id), QUEUES_A_TURN)
            for queue in chain(brought_in, noted):
                absent = () if queue in brought_in else self._absent(header, queue, left)
                if absent and records:
                    self._lite.dispatch(queue, header.consumer_group)
                    break
                if absent:
                    again = partial(self._pop_events, channel, request, (queue,))
                    note = partial(self._lite.dispatch, queue, header.consumer_group)
                    self._old_messages.answer_after(channel, request, absent, again, note)
                    return None
                found = self._pop_queue(header, queue, left, now_ms, counts)
                if found is not None:
                    records += found.records
                    left -= found.message_count
                if left <= 0:
                    break
        if not records:
            answer = self._wait(channel, request, header, now_ms)
            self._lite.look_again(header.client_id)
            return answer
        key = f"{header.topic}@{header.consumer_group}"
        stats = self._stats
        stats.item(GROUP_GET_NUMS, key).add(len(counts))
        stats.item(GROUP_GET_SIZE, key).add(sum(len(record) for record in records))
        self._broker_gets.add(len(counts))
        return create_response(
            request,
            ResponseCode.SUCCESS,
            "FOUND",
            header=self._header(header, now_ms, ";".join(counts)),
            body=records,
        )

    @staticmethod
    def _header(
        header: PopLiteMessageRequestHeader, now_ms: int, counts: str = ""
    ) -> PopLiteMessageResponseHeader:
        return PopLiteMessageResponseHeader(
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE,
            order_count_info=counts,
        )

    def _check(self, header: PopLiteMessageRequestHeader, now_ms: int) -> _Answer | None:
        """The checks in the reference's order."""
        why = self._refuses_readers()
        if why is not None:
            return int(ResponseCode.SERVICE_NOT_AVAILABLE), why
        if now_ms - header.born_time - header.poll_time > TOO_LATE_MS:
            return (
                int(ResponseCode.POLLING_TIMEOUT),
                f"the broker[{self._own.ip}] pop message is timeout too much",
            )
        if len(header.attempt_id or "") > ATTEMPT_ID_MAX:
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"the broker[{self._own.ip}] pop message's attemptId is longer than "
                f"{ATTEMPT_ID_MAX}",
            )
        if not self._config.readable:
            return (
                int(ResponseCode.NO_PERMISSION),
                f"the broker[{self._own.ip}] pop message is forbidden",
            )
        if header.max_msg_num > MESSAGES_PER_POP_MAX:
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"the broker[{self._own.ip}] pop message's num is greater than "
                f"{MESSAGES_PER_POP_MAX}",
            )
        topic, group = header.topic, header.consumer_group
        topic_config = self._topics.get(topic)
        if topic_config is None:
            return (
                int(ResponseCode.TOPIC_NOT_EXIST),
                f"topic [{topic}] not exist, apply first please! {remarks.FAQ}",
            )
        if not topic_config.is_readable:
            return (
                int(ResponseCode.NO_PERMISSION),
                f"the topic [{topic}] peeking message is forbidden",
            )
        if topic_config.attributes.get(MESSAGE_TYPE) != LITE:
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"the topic [{topic}] message type not match",
            )
        group_config = self._groups.find(group)
        if group_config is None:
            return (
                int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
                f"subscription group [{group}] not exist, {remarks.FAQ}",
            )
        if not group_config.consume_enable:
            return int(ResponseCode.NO_PERMISSION), f"subscription group no permission, {group}"
        if self._lite.parent_of(group) != topic:
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"subscription bind topic not match, {group}",
            )
        known = self._lite.subscriptions.get(header.client_id)
        if known is not None and known.group != group:  # what is noted for it would be lost
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"client {header.client_id} is of another group than {group}",
            )
        return None

    def _pop_queue(
        self,
        header: PopLiteMessageRequestHeader,
        queue: str,
        count_max: int,
        now_ms: int,
        counts: list[str],
    ) -> GetMessageResult | None:
        """Hands messages of one lite topic out; adds to ``counts`` how often each was before."""
        group = header.consumer_group
        lite, store = self._lite, self._store
        orders = lite.orders
        if not names.is_stored_topic(queue) or not queue.startswith(names.LITE_PREFIX):
            return None
        if orders.is_blocked(queue, group, _QUEUE, header.attempt_id, now_ms):
            return None
        offset = self._offset(queue, group)
        result = store.get_message(group, queue, _QUEUE, offset, count_max)
        if result.status in _MOVED and result.next_begin_offset != offset:
            offset = max(result.next_begin_offset, 0)
            self._commit(queue, group, offset)
            result = store.get_message(group, queue, _QUEUE, offset, count_max)
        if result.status is not GetMessageStatus.FOUND:
            return None
        orders.update(
            queue,
            group,
            _QUEUE,
            list(result.queue_offsets),
            attempt_id=header.attempt_id,
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            retry_flag="0",
        )
        info = orders.get(queue, group, _QUEUE)
        before = (info.offset_consumed_count if info is not None else None) or {}
        for each in result.queue_offsets:
            times = before.get(each, 0)
            counts.append(f"0 qo{_QUEUE}%{each} {times}" if times else "0")
        return result

    def _absent(
        self, header: PopLiteMessageRequestHeader, queue: str, count: int
    ) -> Sequence[Stretch]:
        """What a pop of a lite topic would read and is not in memory; nothing is changed."""
        if not self._store.has_old_records:
            return ()
        offset = self._offsets.query(header.consumer_group, queue, _QUEUE)
        if offset < 0:
            offset = self._pop.initial_offset(queue, _QUEUE, _INIT_FROM_MAX)
        return self._old_messages.absent([(queue, _QUEUE, offset, count)])

    def _offset(self, queue: str, group: str) -> int:
        """Where a pop begins. A pending reset is taken, a new group is set up."""
        offsets = self._offsets
        reset = offsets.take_reset(group, queue, _QUEUE)
        if reset is not None:
            self._lite.orders.clear(queue, group, _QUEUE)
            self._commit(queue, group, reset)
            return reset
        offset = offsets.query(group, queue, _QUEUE)
        if offset < 0:
            offset = self._pop.initial_offset(queue, _QUEUE, _INIT_FROM_MAX)
            self._commit(queue, group, offset)
        return offset

    def _commit(self, queue: str, group: str, offset: int) -> bool:
        return self._offsets.commit(group, queue, _QUEUE, offset, self._now_ms())

    # Waiting

    def _wait(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PopLiteMessageRequestHeader,
        now_ms: int,
    ) -> RemotingCommand | None:
        deadline_ms = min(header.born_time + header.poll_time, now_ms + HOLD_MS_MAX)
        code = ResponseCode.POLLING_TIMEOUT
        if header.poll_time > 0 and deadline_ms > now_ms:
            kept, size = kept_request(request, PopLiteMessageRequestHeader)
            wait_until(kept, deadline_ms, header.born_time)
            waiting = Waiting(
                *(channel, kept, header.client_id, "", _QUEUE, deadline_ms),
                size=size,
                is_wanted=partial(channel.awaits, kept.opaque),
                on_dropped=partial(channel.unanswered, kept.opaque),
            )
            if self._lite.waiting.wait(waiting):
                return None
            code = ResponseCode.POLLING_FULL
        return self._nothing(request, header, code, now_ms)

    def _nothing(
        self,
        request: RemotingCommand,
        header: PopLiteMessageRequestHeader,
        code: int,
        now_ms: int,
    ) -> RemotingCommand:
        return create_response(
            request, code, "NO_MESSAGE_IN_QUEUE", header=self._header(header, now_ms)
        )

    def run_again(self, waiting: Waiting) -> None:
        """Serve a request once more that was woken."""
        channel: Channel = waiting.channel  # type: ignore[assignment]
        request: RemotingCommand = waiting.request
        if channel.is_closed:
            return  # what is noted for the client stays noted
        try:
            response = self.pop(channel, request)
        except Exception as error:  # noqa: BLE001 - those woken with it must be answered, too
            response = error_response(request, error)
        if response is not None:
            channel.reply(request, response)

    def answer_all(self) -> None:
        """The broker stops: nobody is kept waiting."""
        self._lite.serve_woken()
        now_ms = self._now_ms()
        for waiting in self._lite.waiting.clear():
            channel: Channel = waiting.channel  # type: ignore[assignment]
            request: RemotingCommand = waiting.request
            header = request.header(PopLiteMessageRequestHeader)
            if not channel.is_closed:
                channel.reply(
                    request,
                    self._nothing(request, header, ResponseCode.POLLING_TIMEOUT, now_ms),
                )

    # 200071

    def subscribe(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """200071: what clients take and give up."""
        data = request.body_bytes()
        if not data:
            return create_response(request, ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        entries = LiteSubscriptionCtlRequestBody.decode(
            checked_list(data, "LiteSubscriptionCtlRequestBody")
        ).subscription_set
        if not entries:
            return create_response(
                request,
                ResponseCode.ILLEGAL_OPERATION,
                "LiteSubscriptionCtlRequestBody is empty.",
            )
        self._dispatch_now()
        try:
            for number, entry in enumerate(entries):
                if number:
                    yield
                yield from self._subscribe(channel, entry)
        except QuotaExceededError as error:
            return create_response(
                request, ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, str(error)
            )
        except IllegalSubscriptionError as error:
            return create_response(request, ResponseCode.ILLEGAL_OPERATION, str(error))
        return create_response(request, ResponseCode.SUCCESS)

    def _subscribe(
        self, channel: Channel, entry: LiteSubscriptionEntry
    ) -> Generator[None, None, None]:
        client_id, group, topic = entry.client_id, entry.group, entry.topic
        if not (client_id.strip() and group.strip() and topic.strip()):
            return
        lite = self._lite
        if len(entry.lite_topic_set) > LITE_TOPICS_MAX:
            raise IllegalSubscriptionError(
                f"{len(entry.lite_topic_set)} lite topics in one entry, at most "
                f"{LITE_TOPICS_MAX} are allowed; send several"
            )
        lite_topics = dict.fromkeys(entry.lite_topic_set)
        queues = [names.lite_queue(topic, each) for each in lite_topics if each]
        if entry.action == "PARTIAL_ADD":
            for number, piece in enumerate(pieces(queues) or [[]]):
                if number:
                    yield
                lite.subscribe(channel, client_id, group, topic, piece, entry.offset_option)
        elif entry.action == "PARTIAL_REMOVE":
            for number, piece in enumerate(pieces(queues) or [[]]):
                if number:
                    yield
                lite.unsubscribe(client_id, group, topic, piece)
        elif entry.action == "COMPLETE_ADD":
            yield from lite.subscribe_to_exactly(channel, client_id, group, topic, queues)
        elif entry.action == "COMPLETE_REMOVE":
            lite.unsubscribe_client(client_id, group, topic)
        else:
            raise IllegalSubscriptionError(f"action {entry.action!r} is not known")

    # Acknowledgements

    def ack(self, header: AckMessageRequestHeader, receipt: Receipt) -> _Answer:
        """200051 with a lite topic."""
        group = header.consumer_group
        if self._lite.parent_of(group) != header.topic:
            return int(ResponseCode.INVALID_PARAMETER), "group type or bind topic not match."
        queue = names.lite_queue(header.topic, header.lite_topic or "")
        if header.offset > self._lite.end(queue):
            return int(ResponseCode.NO_MESSAGE), "ack offset illegal."
        if header.queue_id != _QUEUE or receipt.revive_queue_id != ORDER_REVIVE_QUEUE:
            return int(ResponseCode.INVALID_PARAMETER), "ack queue illegal."
        offsets = self._offsets
        committed = offsets.query(group, queue, _QUEUE)
        if header.offset < committed:
            return int(ResponseCode.SUCCESS), None
        orders = self._lite.orders
        following = orders.commit_and_next(
            queue, group, _QUEUE, header.offset, receipt.pop_time, committed
        )
        if following == UNKNOWN_OFFSET:
            return int(ResponseCode.MESSAGE_ILLEGAL), "ack offset illegal."
        if following != NO_EFFECT:
            is_kept = offsets.has_reset(group, queue, _QUEUE) or self._commit(
                queue, group, following
            )
            if not orders.is_blocked(queue, group, _QUEUE, None, self._now_ms()):
                self._dispatch_now()
                if following < self._lite.end(queue):
                    self._lite.dispatch(queue, group)
            if not is_kept:
                return int(ResponseCode.SYSTEM_ERROR), remarks.OFFSETS_FULL
        return int(ResponseCode.SUCCESS), None

    def change_invisible_time(
        self,
        request: RemotingCommand,
        header: ChangeInvisibleTimeRequestHeader,
        receipt: Receipt,
        answer: ChangeInvisibleTimeResponseHeader,
    ) -> RemotingCommand:
        """200053 with a lite topic."""
        group = header.consumer_group
        queue = names.lite_queue(header.topic, header.lite_topic or "")
        if header.offset > self._lite.end(queue):
            return create_response(request, ResponseCode.NO_MESSAGE, header=answer)
        now_ms = self._now_ms()
        if header.offset >= self._offsets.query(group, queue, _QUEUE):
            visible_ms = now_ms + header.invisible_time
            self._lite.orders.set_next_visible(
                queue, group, _QUEUE, header.offset, receipt.pop_time, visible_ms
            )
            answer.pop_time = receipt.pop_time
            answer.invisible_time = visible_ms - receipt.pop_time
        return create_response(request, ResponseCode.SUCCESS, header=answer)
