"""PopMessageProcessor: 200050, 200052, 200054 and 200055.

RocketMQ: PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor.

Every answer of 200050 has the four header fields that clients unbox without a look, whatever its
code. What is not found is waited for until bornTime + pollTime, by the client's clock.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from oberth.broker import remarks
from oberth.broker.attributes import PRIORITY_FACTOR
from oberth.broker.held_requests import (
    ANSWER_S,
    HOLD_MS_MAX,
    InTurns,
    kept_request,
    wait_until,
)
from oberth.broker.pop.check_point import (
    MESSAGES_PER_POP_MAX,
    ORDER_REVIVE_QUEUE,
    Receipt,
    offset_info,
    retry_flag,
)
from oberth.broker.pop.own_retries import retry_filter
from oberth.broker.pop.polling import ANY_QUEUE, Matches, Waiting
from oberth.broker.pop.pop_service import (
    INIT_FROM_MIN,
    PoppedQueue,
    PopService,
    with_topic_and_receipt,
)
from oberth.broker.stats import BROKER_GET_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE
from oberth.broker.subscriptions import Subscription, SubscriptionError, build_subscription
from oberth.formats import names
from oberth.formats.java_numbers import java_long
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.stage import error_response
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.pop import (
    ATTEMPT_ID_MAX,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from oberth.remoting.refusal import Refusal
from oberth.store.messages import MessageFilter, TagsFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.expressions import Expressions
    from oberth.broker.old_messages import OldMessages, Stretch
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.timers import TimerService
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

TOO_LATE_MS: Final = 500
"""A request that comes so long after its client stopped waiting is not worked on."""

WIDE_FROM: Final = 65
"""Queues from which on a topic is wide. Of others each queue is looked into, and a group that pops
has an offset in each, by which its lag and its progress are known before its first message."""

WALKED_MAX: Final = 1_000
"""Queues of a topic that one request looks into: 3 us each, 8 us for a new group."""

ANSWERED_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of messages from which on pops of one run are put off: their peers may not take more."""

_FOUND: Final = "FOUND"


class _Filter:
    """What a group wants: for the store, and for what arrives while a request waits."""

    __slots__ = ("arrives", "judged_max", "stored")

    def __init__(
        self, stored: MessageFilter | None, arrives: Matches | None, judged_max: int = 0
    ) -> None:
        self.stored = stored
        self.arrives = arrives
        self.judged_max = judged_max


_Allowed: TypeAlias = dict[tuple[str | None, ...], tuple[TopicConfig, _Filter]]
"""By all that a pop's right depends on but its queue."""

_Queues: TypeAlias = list[tuple[str, int]]
"""Queues of a topic and of retry topics, in the order in which they are looked into."""


class PopMessageProcessor:
    """Hands messages out for a time."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        expressions: Expressions | None,
        timers: TimerService | None,
        stats: BrokerStats,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        old_messages: OldMessages,
        service: PopService,
        refuses_readers: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._config = config
        self._own = own
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._expressions = expressions
        self._timers = timers
        self._stats = stats
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._old_messages = old_messages
        self._service = service
        self._refuses_readers = refuses_readers
        self._broker_gets = stats.item(BROKER_GET_NUMS, config.broker_cluster_name)
        self._woken = InTurns(self._run_again)
        self._is_unlocking = False

    # 200050

    def pop(
        self, channels: Sequence[Channel], requests: Sequence[RemotingCommand], until: float
    ) -> list[RemotingCommand | None]:
        """200050: hand messages out, or wait for some; as many pops as there is time and room for.

        What a group may read of a topic, and which messages it wants, is looked up once for all.
        """
        self._dispatch_now()
        time = asyncio.get_running_loop().time
        answers: list[RemotingCommand | None] = []
        size = 0
        allowed: _Allowed = {}
        for channel, request in zip(channels, requests, strict=True):
            if answers and (time() >= until or size >= ANSWERED_SIZE_MAX):
                break
            try:
                answer = self._pop(channel, request, allowed=allowed)
            except Exception as error:  # noqa: BLE001 - the others are served
                answer = error_response(request, error)
            answers.append(answer)
            if answer is not None and isinstance(answer.body, list):
                size += sum(map(len, answer.body))
        return answers

    def _absent(self, group: str, queues: _Queues, count: int) -> list[Stretch]:
        """What of the queues that messages may come from is not in memory; nothing is changed."""
        if not self._store.has_old_records:
            return []
        return self._old_messages.absent(
            (
                each,
                queue_id,
                max(
                    self._peek_offset(each, group, queue_id),
                    self._store.min_offset_in_queue(each, queue_id),
                ),
                count,
            )
            for each, queue_id in queues
        )

    def _pop(
        self,
        channel: Channel,
        request: RemotingCommand,
        *,
        allowed: _Allowed | None = None,
        arrived: int = ANY_QUEUE,
        brought_in: _Queues | None = None,
    ) -> RemotingCommand | None:
        fields = request.ext_fields
        if fields is not None and fields.get("bornTime", "0") == "0":
            fields["bornTime"] = str(self._now_ms())
        header = request.header(PopMessageRequestHeader)
        now_ms = self._now_ms()
        header.invisible_time = self._service.invisible_ms(
            header.invisible_time, now_ms, is_order=header.order is True
        )
        try:
            self._check(header, now_ms)
            topic_config, wanted = self._right(channel, header, {} if allowed is None else allowed)
        except Refusal as refusal:
            return self._empty(request, header, refusal.code, refusal.remark, now_ms)
        if allowed is None:  # else it was done once for all: each pop appends a check point
            self._dispatch_now()
        is_order = header.order is True
        queues = brought_in or self._walk(header, topic_config, arrived, is_order=is_order)
        if brought_in is None and (
            absent := self._absent(header.consumer_group, queues, header.max_msg_nums)
        ):
            again = partial(self._pop, channel, request, brought_in=queues)
            self._old_messages.answer_after(channel, request, absent, again)
            return None
        revive_queue_id = ORDER_REVIVE_QUEUE if is_order else self._service.next_revive_queue()
        is_wide = header.queue_id < 0 and topic_config.read_queue_nums >= WIDE_FROM
        popped, rest = self._pop_queues(
            header, queues, wanted, revive_queue_id, now_ms, is_order=is_order, is_wide=is_wide
        )
        if not popped:
            return self._wait(channel, request, header, wanted, now_ms)
        return self._answer(request, header, popped, rest, revive_queue_id, now_ms)

    def _check(self, header: PopMessageRequestHeader, now_ms: int) -> None:
        """The checks in the reference's order."""
        why = self._refuses_readers()
        if why is not None:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, why)
        if now_ms - header.born_time - header.poll_time > TOO_LATE_MS:
            raise Refusal(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._own.ip}] pop message is timeout too much",
            )
        if not self._config.readable:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the broker[{self._own.ip}] pop message is forbidden"
            )
        if not 1 <= header.max_msg_nums <= MESSAGES_PER_POP_MAX:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._own.ip}] pop message's num is greater than "
                f"{MESSAGES_PER_POP_MAX}",
            )
        if len(header.attempt_id or "") > ATTEMPT_ID_MAX:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._own.ip}] pop message's attemptId is longer than "
                f"{ATTEMPT_ID_MAX}",
            )
        if self._timers is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._own.ip}] pop message is forbidden because timerWheelEnable "
                "is false",
            )

    def _right(
        self, channel: Channel, header: PopMessageRequestHeader, allowed: _Allowed
    ) -> tuple[TopicConfig, _Filter]:
        """What a group may read of a topic and wants of it, if it was not looked up before."""
        key = (header.consumer_group, header.topic, header.exp_type, header.exp)
        right = allowed.get(key)
        if right is not None:
            self._check_queue(channel, right[0], header.queue_id, header.topic)
            return right
        topic_config = self._check_topic_and_group(
            channel, header.topic, header.queue_id, header.consumer_group, "pop"
        )
        wanted = self._filter(header.consumer_group, header.topic, header.exp_type, header.exp)
        if not wanted.judged_max:
            allowed[key] = topic_config, wanted  # filters of expressions count what they judge
        return topic_config, wanted

    def _check_queue(
        self, channel: Channel, topic_config: TopicConfig, queue_id: int, topic: str
    ) -> None:
        if queue_id >= topic_config.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{topic_config.read_queue_nums}] consumer:[/{channel.remote}]",
            )

    def _check_topic_and_group(
        self, channel: Channel, topic: str, queue_id: int, group: str, what: str
    ) -> TopicConfig:
        topic_config = self._topics.get(topic)
        if topic_config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(topic))
        if not topic_config.is_readable:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} message is forbidden"
            )
        self._check_queue(channel, topic_config, queue_id, topic)
        group_config = self._groups.find(group)
        if group_config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remarks.group_not_exist(group))
        if not group_config.consume_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic_config

    def _filter(
        self, group: str, topic: str, expression_type: str | None, expression: str | None
    ) -> _Filter:
        try:
            subscription = build_subscription(
                topic, expression or "*", expression_type, self._now_ms()
            )
        except SubscriptionError as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        # Nobody needs to send a heartbeat with this topic: the pop itself says what is wanted.
        known = self._consumers.find_subscription(group, topic)
        if known is None or known.sub_string != subscription.sub_string:
            self._consumers.compensate_subscription(group, subscription, self._now_ms())
            retry = names.pop_retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)
            self._consumers.compensate_subscription(group, Subscription(retry), self._now_ms())
        if subscription.is_tag:
            if not subscription.codes:
                return _Filter(None, None)
            tags = TagsFilter(subscription.codes)
            codes = subscription.codes
            return _Filter(tags, lambda tags_code, _: tags_code in codes)
        if not self._config.enable_property_filter or self._expressions is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type}",
            )
        try:
            stored, arrives = self._expressions.filters(group, subscription, from_request=True)
        except SubscriptionError as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        return _Filter(stored, lambda _, raw: arrives.matches_properties(raw), arrives.judged_max)

    def _retry_topics(self, topic: str, group: str) -> list[str]:
        """The group's POP retry topics of a topic that exist."""
        config = self._config
        found = []
        if config.enable_retry_topic_v2:
            found.append(names.pop_retry_topic(topic, group, v2=True))
        if not config.enable_retry_topic_v2 or config.retrieve_message_from_pop_retry_topic_v1:
            found.append(names.pop_retry_topic(topic, group))
        return [each for each in found if each in self._topics]

    def _retry_queues(self, topic: str, group: str) -> _Queues:
        """The queues of those topics."""
        return [
            queue
            for retry in self._retry_topics(topic, group)
            if (topic_config := self._topics.get(retry)) is not None
            for queue in self._queues(topic_config, from_first=True)
        ]

    def _queues(
        self, topic_config: TopicConfig, arrived: int = ANY_QUEUE, *, from_first: bool = False
    ) -> _Queues:
        """The queues of a topic; from the first, the highest priority is first.

        Of a wide topic those that hold messages; of very many a part: from the one on where a
        message arrived, or from any one on.
        """
        topic = str(topic_config.topic_name)
        if topic_config.read_queue_nums < WIDE_FROM:
            ids = list(range(topic_config.read_queue_nums))
        else:
            ids = self._store.readable_queue_ids(topic)
            del ids[bisect_left(ids, topic_config.read_queue_nums) :]
        start, is_part = 0, len(ids) > WALKED_MAX
        if is_part and arrived >= 0:
            start = bisect_left(ids, arrived)
        elif is_part or (ids and not from_first):
            start = random.randrange(len(ids))
        turned = [*ids[start:], *ids[:start]][:WALKED_MAX]
        if self._config.priority_order_asc:
            turned.reverse()
        return [(topic, each) for each in turned]

    def _is_by_priority(self, topic_config: TopicConfig, group: str) -> bool:
        if not topic_config.is_prioritised:
            return False
        group_config = self._groups.get(group)
        factor = group_config.attributes.get(PRIORITY_FACTOR, "") if group_config else ""
        return random.randrange(100) < java_long(factor, 100)

    def _walk(
        self,
        header: PopMessageRequestHeader,
        topic_config: TopicConfig,
        arrived: int,
        *,
        is_order: bool,
    ) -> _Queues:
        """The queues that a pop takes messages from."""
        group, topic = header.consumer_group, header.topic
        config = self._config
        by_priority = not is_order and self._is_by_priority(topic_config, group)
        retry_first = random.randrange(100) < (
            config.pop_from_retry_probability_for_priority
            if by_priority
            else config.pop_from_retry_probability
        )
        retries = [] if is_order else self._retry_queues(topic, group)
        queues = [(topic, header.queue_id)]
        if header.queue_id < 0:
            queues = self._queues(topic_config, arrived, from_first=by_priority)
        return [*retries, *queues] if retry_first else [*queues, *retries]

    def _pop_queues(
        self,
        header: PopMessageRequestHeader,
        queues: _Queues,
        wanted: _Filter,
        revive_queue_id: int,
        now_ms: int,
        *,
        is_order: bool,
        is_wide: bool,
    ) -> tuple[list[PoppedQueue], int]:
        """Messages of as many queues as it takes; what, and how many are left.

        A pop of all queues of a wide topic leaves no offset where a group begins at the first
        message: that is where it begins in all that are empty now. That it has been here is one
        offset.
        """
        group, topic = header.consumer_group, header.topic
        is_new = header.init_mode != INIT_FROM_MIN and not self._offsets.is_known(group, topic)
        popped: list[PoppedQueue] = []
        rest = 0
        left = header.max_msg_nums
        for each_topic, queue_id in queues:
            found, behind = self._service.pop_queue(
                each_topic,
                group,
                queue_id,
                left,
                init_mode=header.init_mode if is_new or not is_wide else INIT_FROM_MIN,
                notes_first=not is_wide,
                message_filter=(
                    wanted.stored if each_topic == topic else retry_filter(each_topic, group)
                ),
                pop_time=now_ms,
                invisible_time=header.invisible_time,
                revive_queue_id=revive_queue_id,
                is_order=is_order,
                attempt_id=header.attempt_id,
            )
            rest += behind
            if found is not None:
                popped.append(found)
                left -= len(found.offsets)
        if is_wide and is_new and not self._offsets.is_known(group, topic):
            self._service.pop_offset(topic, group, 0, header.init_mode)
        return popped, rest

    def _answer(
        self,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        popped: list[PoppedQueue],
        rest: int,
        revive_queue_id: int,
        now_ms: int,
    ) -> RemotingCommand:
        group, topic = header.consumer_group, header.topic
        starts: list[str] = []
        offsets: list[str] = []
        orders: list[str] = []
        body: list[memoryview | bytes] = []
        count = size = 0
        for queue in popped:
            flag = retry_flag(queue.topic, group) if queue.topic != topic else "0"
            starts.append(offset_info(flag, queue.queue_id, [queue.start_offset]))
            offsets.append(offset_info(flag, queue.queue_id, queue.offsets))
            count += len(queue.offsets)
            if header.order is True:
                orders += self._service.orders.update(
                    queue.topic,
                    group,
                    queue.queue_id,
                    queue.offsets,
                    attempt_id=header.attempt_id,
                    pop_time=now_ms,
                    invisible_time=header.invisible_time,
                    retry_flag=flag,
                )
            if queue.topic == topic:
                body += queue.records
            else:
                body += self._restored(queue, header, flag, revive_queue_id, now_ms)
        size = sum(len(record) for record in body)
        key = f"{topic}@{group}"
        self._stats.item(GROUP_GET_NUMS, key).add(count)
        self._stats.item(GROUP_GET_SIZE, key).add(size)
        self._broker_gets.add(count)
        if rest:
            self._wake_next(topic, group, header.queue_id)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            _FOUND,
            header=PopMessageResponseHeader(
                pop_time=now_ms,
                invisible_time=header.invisible_time,
                revive_qid=revive_queue_id,
                rest_num=rest,
                start_offset_info=";".join(starts),
                msg_offset_info=";".join(offsets),
                order_count_info=";".join(orders) or None,
            ),
            body=body,
        )

    def _restored(
        self,
        queue: PoppedQueue,
        header: PopMessageRequestHeader,
        flag: str,
        revive_queue_id: int,
        now_ms: int,
    ) -> list[bytes]:
        """Records of a retry topic, under the topic that they came from."""
        store = self._store
        records = []
        for offset in queue.offsets:
            unit = store.consume_queue_unit(queue.topic, queue.queue_id, offset)
            message = None
            if unit is not None:
                message = store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
            if message is None:
                continue
            receipt = Receipt(
                queue.start_offset,
                now_ms,
                header.invisible_time,
                revive_queue_id,
                flag,
                self._config.broker_name,
                queue.queue_id,
                offset,
            )
            records.append(with_topic_and_receipt(message, header.topic, receipt.text))
        return records

    def _empty(
        self,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        code: int,
        remark: str | None,
        now_ms: int,
    ) -> RemotingCommand:
        return create_response(
            request,
            code,
            remark,
            header=PopMessageResponseHeader(
                pop_time=now_ms, invisible_time=header.invisible_time, revive_qid=0, rest_num=0
            ),
        )

    # Waiting

    def _wait(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        wanted: _Filter,
        now_ms: int,
    ) -> RemotingCommand | None:
        deadline_ms = min(header.born_time + header.poll_time, now_ms + HOLD_MS_MAX)
        if header.poll_time <= 0 or deadline_ms <= now_ms:
            return self._empty(
                request, header, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", now_ms
            )
        waiting = _waiting(channel, request, header, wanted, deadline_ms)
        if not self._service.polling.wait(waiting):
            return self._empty(request, header, ResponseCode.POLLING_FULL, None, now_ms)
        return None

    def queue_unlocked(self, topic: str, group: str, queue_id: int) -> None:
        """A queue of ordered consumption may be popped again."""
        if not self._config.enable_notify_after_pop_order_lock_release:
            return
        self._wake_next(topic, group, queue_id)
        self._wake_next(topic, group, ANY_QUEUE, queue_id)

    def _unlock_soon(self, now_ms: int) -> None:
        """Look at queues whose time has come, in turns of the loop from the next one on."""
        if not self._is_unlocking and self._service.orders.has_unlocked(now_ms):
            self._is_unlocking = True
            asyncio.get_running_loop().call_soon(self._unlock_some, now_ms)

    def _unlock_some(self, now_ms: int) -> None:
        # One at a time: what no turn has come to stays noted.
        self._is_unlocking = False
        orders = self._service.orders
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S
        while orders.has_unlocked(now_ms):
            for queue in orders.unlocked(now_ms, 1):
                self.queue_unlocked(*queue)
            if loop.time() >= until:
                self._unlock_soon(now_ms)
                break

    def on_reset(self, group: str, topic: str, queue_id: int) -> None:
        """A group was taken to another offset of a queue: there may be messages now."""
        self._wake_next(topic, group, queue_id)
        self._wake_next(topic, group, ANY_QUEUE, queue_id)
        for polling in (self._service.polling, self._service.notifying):
            waiting = polling.take_for_retry(topic)
            if waiting is not None:
                self._woken.soon([waiting])

    def _wake_next(self, topic: str, group: str, queue_id: int, arrived: int = ANY_QUEUE) -> None:
        for polling in (self._service.polling, self._service.notifying):
            waiting = polling.take(topic, group, max(queue_id, ANY_QUEUE))
            if waiting is not None:
                waiting.arrived = arrived
                self._woken.soon([waiting])

    def connection_closed(self, channel: Channel) -> None:
        """Nothing waits there any more; what was about to be answered there may be others'."""
        for polling in (self._service.polling, self._service.notifying):
            polling.connection_closed(channel)

    def on_arrival(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        tags_code: int | None,
        properties_raw: bytes,
    ) -> None:
        del max_offset
        for polling in (self._service.polling, self._service.notifying):
            if len(polling):
                woken = polling.on_message_arriving(topic, queue_id, tags_code, properties_raw)
                if woken:
                    for waiting in woken:
                        waiting.arrived = queue_id if waiting.key[0] == topic else ANY_QUEUE
                    self._woken.soon(woken)  # after the dispatch that is going on

    def _run_again(self, waiting: Waiting) -> None:
        channel: Channel = waiting.channel  # type: ignore[assignment]
        request: RemotingCommand = waiting.request
        if channel.is_closed:
            # It was woken for a message that is still there.
            self._wake_next(*waiting.key, waiting.arrived)
            return
        try:
            if request.code == RequestCode.NOTIFICATION:
                response = self.notification(channel, request, waiting.arrived)
            else:
                response = self._pop(channel, request, arrived=waiting.arrived)
        except Exception as error:  # noqa: BLE001 - those woken with it must be answered, too
            response = error_response(request, error)
        if response is not None:
            channel.reply(request, response)

    def on_time(self, now_ms: int) -> None:
        self._unlock_soon(now_ms)
        for polling in (self._service.polling, self._service.notifying):
            # Once more: what an arrival woke another for may be there for this one, too, as two
            # notifications of one ordered queue see the same message.
            self._woken.soon(polling.on_time(now_ms))

    def _answer_late(self, waiting: Waiting, now_ms: int) -> None:
        channel: Channel = waiting.channel  # type: ignore[assignment]
        request: RemotingCommand = waiting.request
        if channel.is_closed:
            return
        if request.code == RequestCode.NOTIFICATION:
            response = create_response(
                request, ResponseCode.SUCCESS, header=NotificationResponseHeader(has_msg=False)
            )
        else:
            header = request.header(PopMessageRequestHeader)
            response = self._empty(
                request, header, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", now_ms
            )
        channel.reply(request, response)

    def answer_all(self) -> None:
        """The broker stops: nobody is kept waiting."""
        self._woken.serve_all()
        now_ms = self._now_ms()
        for polling in (self._service.polling, self._service.notifying):
            for waiting in polling.clear():
                self._answer_late(waiting, now_ms)

    # 200052

    def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200052: show messages without handing them out."""
        return self._peek(channel, request)

    def _peek(
        self, channel: Channel, request: RemotingCommand, *, brought_in: _Queues | None = None
    ) -> RemotingCommand | None:
        header = request.header(PeekMessageRequestHeader)
        store = self._store
        now_ms = self._now_ms()
        group, topic = header.consumer_group, header.topic

        def answer(
            code: int, remark: str | None, rest: int = 0, body: list[memoryview] | bytes = b""
        ) -> RemotingCommand:
            return create_response(
                request,
                code,
                remark,
                header=PopMessageResponseHeader(
                    pop_time=now_ms, invisible_time=0, revive_qid=0, rest_num=rest
                ),
                body=body,
            )

        why = self._refuses_readers()
        if why is not None:
            return answer(ResponseCode.SERVICE_NOT_AVAILABLE, why)
        if not self._config.readable:
            return answer(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._own.ip}] peeking message is forbidden",
            )
        try:
            topic_config = self._check_topic_and_group(
                channel, topic, header.queue_id, group, "peeking"
            )
        except Refusal as refusal:
            return answer(refusal.code, refusal.remark)
        self._dispatch_now()
        left = min(max(header.max_msg_nums, 1), MESSAGES_PER_POP_MAX)
        queues = brought_in or self._shown(header, topic_config)
        if brought_in is None and (absent := self._absent(group, queues, left)):
            again = partial(self._peek, channel, request, brought_in=queues)
            self._old_messages.answer_after(channel, request, absent, again)
            return None
        records: list[memoryview] = []
        rest = 0
        for each_topic, queue_id in queues:
            offset = self._peek_offset(each_topic, group, queue_id)
            end = store.max_offset_in_queue(each_topic, queue_id)
            if left > 0 and offset < end:
                own = None if each_topic == topic else retry_filter(each_topic, group)
                result = store.get_message(group, each_topic, queue_id, offset, left, own)
                records += result.records
                left -= result.message_count
                offset = result.next_begin_offset
            rest += max(end - offset, 0)
        if not records:
            return answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return answer(ResponseCode.SUCCESS, _FOUND, rest, records)

    def _shown(self, header: PeekMessageRequestHeader, topic_config: TopicConfig) -> _Queues:
        """The queues that a peek looks into."""
        queues = [(header.topic, header.queue_id)]
        if header.queue_id < 0:
            queues = self._queues(topic_config)
            random.shuffle(queues)
        return [*self._retry_queues(header.topic, header.consumer_group), *queues]

    def _peek_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where the next pop would begin; nothing is set up."""
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            offset = max(self._store.min_offset_in_queue(topic, queue_id), 0)
        return max(offset, self._service.buffer.latest_offset(topic, group, queue_id))

    # 200054, 200055

    def notification(
        self, channel: Channel, request: RemotingCommand, arrived: int = ANY_QUEUE
    ) -> RemotingCommand | None:
        """200054: whether there is anything to pop, now or within the poll time."""
        header = request.header(NotificationRequestHeader)
        now_ms = self._now_ms()
        why = self._refuses_readers()
        if why is not None:
            return create_response(request, ResponseCode.SERVICE_NOT_AVAILABLE, why, ext_fields={})
        if not self._config.readable:
            return create_response(
                request,
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._own.ip}] peeking message is forbidden",
                ext_fields={},
            )
        try:
            topic_config = self._check_topic_and_group(
                channel, header.topic, header.queue_id, header.consumer_group, "peeking"
            )
            wanted = _Filter(None, None)
            if header.exp:
                wanted = self._filter(
                    header.consumer_group, header.topic, header.exp_type, header.exp
                )
        except Refusal as refusal:
            return refusal.answer(request, ext_fields={})
        self._dispatch_now()
        queues = [(header.topic, header.queue_id)]
        if header.queue_id < 0:
            queues = self._queues(topic_config, arrived)
        has_message = self._has_message(header, queues, now_ms)
        deadline_ms = min(header.born_time + header.poll_time, now_ms + HOLD_MS_MAX)
        is_full = False
        if not has_message and header.poll_time > 0 and deadline_ms > now_ms:
            waiting = _waiting(channel, request, header, wanted, deadline_ms)
            if self._service.notifying.wait(waiting):
                return None
            is_full = True
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=NotificationResponseHeader(has_msg=has_message, polling_full=is_full),
        )

    def _has_message(self, header: NotificationRequestHeader, queues: _Queues, now_ms: int) -> bool:
        group, topic = header.consumer_group, header.topic
        is_order = header.order is True
        candidates = queues if is_order else [*queues, *self._retry_queues(topic, group)]
        orders = self._service.orders
        store = self._store
        return any(
            self._peek_offset(each, group, queue_id) < store.max_offset_in_queue(each, queue_id)
            and not (
                is_order and orders.is_blocked(each, group, queue_id, header.attempt_id, now_ms)
            )
            for each, queue_id in candidates
        )

    def polling_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200055: how many requests wait at a queue."""
        header = request.header(PollingInfoRequestHeader)
        try:
            self._check_topic_and_group(
                channel, header.topic, header.queue_id, header.consumer_group, "pop"
            )
        except Refusal as refusal:
            return refusal.answer(request, ext_fields={})
        count = self._service.polling.count(header.topic, header.consumer_group, header.queue_id)
        return create_response(
            request, ResponseCode.SUCCESS, header=PollingInfoResponseHeader(polling_num=count)
        )


def _waiting(
    channel: Channel,
    request: RemotingCommand,
    header: PopMessageRequestHeader | NotificationRequestHeader,
    wanted: _Filter,
    deadline_ms: int,
) -> Waiting:
    kept, size = kept_request(request, type(header))
    wait_until(kept, deadline_ms, header.born_time)
    return Waiting(
        channel,
        kept,
        header.topic,
        header.consumer_group,
        max(header.queue_id, ANY_QUEUE),
        deadline_ms,
        wanted.arrives,
        size,
        wanted.judged_max,
        partial(channel.awaits, kept.opaque),
        partial(channel.unanswered, kept.opaque),
    )
