"""PullMessageProcessor: 11 and 361. RocketMQ: PullMessageProcessor.

What is found is written as slices of the log behind a rendered head. What is not found is held
until a message arrives or the time is over (``pull_request_hold``); a held pull is run again from
the start, but may not be held again. Every answer of code 0, 19, 20 and 21 has the four header
fields that clients unbox without a look.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from oberth.broker import remarks
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.held_requests import HOLD_MS_MAX, kept_request
from oberth.broker.plain_pulls import Allowed, Ask, PlainPullService
from oberth.broker.pull_request_hold import HeldPull, PropertiesFilter
from oberth.broker.static_topics import NOT_LEADER, LogicalQueue, to_logical_pull
from oberth.broker.stats import BROKER_GET_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE
from oberth.broker.subscriptions import TAG, Subscription, SubscriptionError, build_subscription
from oberth.errors import RemoteProtocolError, RemotingError
from oberth.formats import names
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import LogicQueueMappingItem
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.stage import error_response
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from oberth.remoting.refusal import Refusal
from oberth.remoting.rendered import render_pull_head
from oberth.store.messages import GetMessageResult, GetMessageStatus, MessageFilter, TagsFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.cold_reads import ColdReads
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.expressions import Expressions
    from oberth.broker.old_messages import OldMessages
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.pull_request_hold import PullRequestHold
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.stats import BrokerStats, StatsItem
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4

FORBIDDEN_BY_BROKER: Final = 1
FORBIDDEN_BY_GROUP: Final = 2
FORBIDDEN_BY_TOPIC: Final = 3
FORBIDDEN_BY_BROADCASTING: Final = 4
FORBIDDEN_BY_SUBSCRIPTION: Final = 5
"""``forbiddenType`` of an answer with code 16. RocketMQ: ForbiddenType."""

PULL_MSG_NUMS_MAX: Final = 65_536
"""Messages that one pull may ask for; Java clients ask for 32, tools for up to 10 000."""

_CODES: Final = {
    GetMessageStatus.FOUND: int(ResponseCode.SUCCESS),
    GetMessageStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.OFFSET_FOUND_NULL: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_ONE: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.OFFSET_TOO_SMALL: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.OFFSET_RESET: int(ResponseCode.PULL_OFFSET_MOVED),
}
_NAMES: Final = {status: status.name for status in GetMessageStatus}
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
QUEUE_OFFSET_MAX: Final = 2**63 - 1
_PULL_CODES: Final = frozenset((0, *_CODES.values()))
_NEVER_REACHED: Final = 2**62
"""The offset of a held pull that only time, or a change of the mapping, wakes."""


TAGS_KEPT_MAX: Final = 16
"""Tags up to which the filter of a subscription is kept: peers choose them, and so the memory."""


@lru_cache(maxsize=4096)
def _kept_tags_filter(codes: frozenset[int]) -> TagsFilter:
    return TagsFilter(codes)


def _tags_filter(codes: frozenset[int]) -> TagsFilter:
    return _kept_tags_filter(codes) if len(codes) <= TAGS_KEPT_MAX else TagsFilter(codes)


class _Right:
    """What a group may read of a topic and wants of it.

    Attributes:
        counts: messages and bytes that the group got of the topic, once it got some.
    """

    __slots__ = ("counts", "group_config", "message_filter", "properties_filter", "topic_config")

    def __init__(
        self,
        group_config: SubscriptionGroupConfig,
        topic_config: TopicConfig,
        message_filter: MessageFilter | None,
        properties_filter: PropertiesFilter | None,
    ) -> None:
        self.group_config = group_config
        self.topic_config = topic_config
        self.message_filter = message_filter
        self.properties_filter = properties_filter
        self.counts: tuple[StatsItem, StatsItem] | None = None


_Allowed: TypeAlias = "dict[tuple[int | str | None, ...], _Right]"
"""By all that a pull's right depends on."""


def _forbidden(kind: int) -> dict[str, str]:
    return {"forbiddenType": str(kind)}


class PullMessageProcessor:
    """Hands out messages."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        hold: PullRequestHold,
        cold_reads: ColdReads,
        expressions: Expressions | None,
        old_messages: OldMessages,
        peers: PeerBrokers,
        stats: BrokerStats,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        start_task: StartTask,
        follows_master: Callable[[], bool] = lambda: False,
        refuses_readers: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._config = config
        self._follows_master = follows_master
        self._refuses_readers = refuses_readers
        self._store_config = store_config
        self._own = own
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._hold = hold
        self._cold_reads = cold_reads
        self._expressions = expressions
        self._old_messages = old_messages
        self._peers = peers
        self._stats = stats
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._start_task = start_task
        self._broker_gets = stats.item(BROKER_GET_NUMS, config.broker_cluster_name)
        self.plain = PlainPullService(
            store_config=store_config,
            store=store,
            offsets=offsets,
            gets=self._broker_gets,
            now_ms=now_ms,
            dispatch_now=dispatch_now,
            read_ahead=old_messages.read_ahead,
            allows=self._plainly_allowed,
            refuses=lambda: bool(static_topics) or refuses_readers() is not None,
        )

    def pull(
        self, channels: Sequence[Channel], requests: Sequence[RemotingCommand], until: float
    ) -> list[RemotingCommand | None]:
        """Answer now, or hold, as many as there is time for and their peers take answers to.

        What a group may read of a topic, and which messages it wants, is looked up once for all.
        """
        self._dispatch_now()
        time = asyncio.get_running_loop().time
        answers: list[RemotingCommand | None] = []
        allowed: _Allowed = {}
        for channel, request in zip(channels, requests, strict=True):
            if answers and (time() >= until or not channel.takes_more()):
                break
            try:
                answer = self._pull(channel, request, may_hold=True, allowed=allowed)
            except Exception as error:  # noqa: BLE001 - the others are served
                answer = error_response(request, error)
            answers.append(answer)
        return answers

    def _pull_brought_in(
        self, channel: Channel, request: RemotingCommand, *, may_hold: bool
    ) -> RemotingCommand | None:
        self._dispatch_now()
        return self._pull(channel, request, may_hold=may_hold, is_brought_in=True)

    def pull_again(self, held: HeldPull) -> None:
        """Answer a pull that was held."""
        channel: Channel = held.channel  # type: ignore[assignment]
        request: RemotingCommand = held.request
        if channel.is_closed:
            return
        try:
            self._dispatch_now()
            response = self._pull(channel, request, may_hold=False)
        except Exception as error:  # noqa: BLE001 - those woken with it must be answered, too
            response = error_response(request, error)
        if response is not None:
            channel.reply(request, response)

    def _pull(
        self,
        channel: Channel,
        request: RemotingCommand,
        *,
        may_hold: bool,
        is_brought_in: bool = False,
        allowed: _Allowed | None = None,
    ) -> RemotingCommand | None:
        header = request.header(PullMessageRequestHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset, commit_offset = header.queue_offset, header.commit_offset
        wants = header.sys_flag & FLAG_SUBSCRIPTION
        key = (
            *(request.code, group, topic, wants),
            *(header.subscription, header.expression_type, header.sub_version),
        )
        right = None if allowed is None else allowed.get(key)
        queue = item = None
        if self._static_topics:
            queue = self._static_topics.queue(topic, queue_id, request.ext_fields)
        try:
            if right is None:
                group_config, topic_config = self._check(request.code, header)
            else:
                group_config, topic_config = right.group_config, right.topic_config
            if queue is not None:
                item = self._stretch(queue, offset)
                if not queue.is_here(item):
                    self._start_task(
                        self._pull_elsewhere(channel, request, queue, item, may_hold=may_hold)
                    )
                    return None
                queue_id, offset = item.queue_id, qm.to_physical(item, offset)
                commit_offset = self._commit_offset_here(queue, item, commit_offset)
            self._check_queue(channel, topic_config, queue_id, topic)
            if right is None:
                right = _Right(group_config, topic_config, *self._filter(header, group_config))
                if allowed is not None and right.properties_filter is None:
                    allowed[key] = right  # filters of expressions count what they judge
        except Refusal as refusal:
            # Java gives an empty map here, and clients read forbiddenType from it.
            return refusal.answer(request, ext_fields={})
        wanted = min(max(header.max_msg_nums, 1), PULL_MSG_NUMS_MAX)
        if not is_brought_in:
            absent = self._old_messages.absent([(topic, queue_id, offset, wanted)])
            if absent:
                again = partial(self._pull_brought_in, channel, request, may_hold=may_hold)
                self._old_messages.answer_after(channel, request, absent, again)
                return None
        result = self._read(header, queue_id, offset, wanted, right.message_filter)
        code, suggested = self._outcome(result, offset, group_config)
        sys_flag = header.sys_flag
        shown_offsets = (result.next_begin_offset, result.min_offset, result.max_offset)
        offset_delta = None
        if queue is not None and item is not None:
            code, *logical, offset_delta = to_logical_pull(
                queue.items, item, code, offset, *shown_offsets
            )
            shown_offsets = (logical[0], logical[1], logical[2])
        if may_hold:
            if sys_flag & FLAG_COMMIT_OFFSET and commit_offset >= 0:
                self._offsets.commit(group, topic, queue_id, commit_offset, self._now_ms())
            if (
                code == _NOT_FOUND
                and sys_flag & FLAG_SUSPEND
                and self._is_held(channel, request, header, queue_id, offset, right)
            ):
                return None
        if (
            result.suggest_pulling_from_slave
            and self._store_config.cold_data_flow_control_enable
            and self._waits_for_cold_reads(
                channel, request, header, queue_id, result, may_hold=may_hold
            )
        ):
            return None
        reached = result.next_begin_offset
        self._offsets.commit_pull(group, topic, queue_id, reached)
        self.plain.note_progress(group, topic, reached - offset, result.max_offset - reached)
        if request.is_oneway:
            return None
        if code == 0:
            count = result.message_count
            nums, sizes = self._counts_of(right, group, topic)
            nums.add(count)
            sizes.add(result.buffer_total_size)
            self._broker_gets.add(count)
        head = render_pull_head(
            request.opaque,
            code,
            *shown_offsets,
            result.buffer_total_size if code == 0 else 0,
            suggest_which_broker_id=suggested,
            group_sys_flag=group_config.group_sys_flag,
            topic_sys_flag=topic_config.topic_sys_flag,
            remark=_NAMES[result.status],
            offset_delta=offset_delta,
        )
        # The slices keep their segment alive until the socket has them.
        channel.send_frames((head, *result.records) if code == 0 else (head,))
        return None

    def _is_held(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        queue_id: int,
        offset: int,
        right: _Right,
    ) -> bool:
        """Keep a pull that found nothing until something comes; False: too many wait."""
        timeout_ms = (
            header.suspend_timeout_millis
            if self._config.long_polling_enable
            else self._config.short_polling_time_ms
        )
        kept, size = kept_request(request, PullMessageRequestHeader)
        held = HeldPull(
            channel,
            kept,
            offset,
            self._now_ms() + min(max(timeout_ms, 0), HOLD_MS_MAX),
            right.message_filter,
            right.properties_filter,
            size,
        )
        return self._hold.hold(header.topic, queue_id, held)

    def _counts_of(self, right: _Right, group: str, topic: str) -> tuple[StatsItem, StatsItem]:
        counts = right.counts
        if counts is None:
            key = f"{topic}@{group}"
            counts = right.counts = (
                self._stats.item(GROUP_GET_NUMS, key),
                self._stats.item(GROUP_GET_SIZE, key),
            )
        return counts

    def _plainly_allowed(self, ask: Ask) -> Allowed | None:
        """What pulls that ask this may read, if they are answered without a filter."""
        header = ask.header
        try:
            group_config, topic_config = self._check(ask.code, header)
            right = _Right(group_config, topic_config, *self._filter(header, group_config))
        except Refusal:
            return None
        if right.message_filter is not None or right.properties_filter is not None:
            return None
        code, suggested = self._outcome(GetMessageResult(GetMessageStatus.FOUND), 0, group_config)
        if code:
            return None
        return Allowed(
            topic_config.read_queue_nums,
            suggested,
            group_config.group_sys_flag,
            topic_config.topic_sys_flag,
            partial(self._counts_of, right, header.consumer_group, header.topic),
        )

    def _read(
        self,
        header: PullMessageRequestHeader,
        queue_id: int,
        offset: int,
        wanted: int,
        message_filter: MessageFilter | None,
    ) -> GetMessageResult:
        """What the store has at an offset; OFFSET_RESET with where a reset sends the group."""
        group, topic, store = header.consumer_group, header.topic, self._store
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            return GetMessageResult(
                GetMessageStatus.OFFSET_RESET,
                reset,
                store.min_offset_in_queue(topic, queue_id),
                store.max_offset_in_queue(topic, queue_id),
            )
        size_max = header.max_msg_bytes
        if size_max is None or size_max <= 0:
            return store.get_message(group, topic, queue_id, offset, wanted, message_filter)
        return store.get_message(
            group, topic, queue_id, offset, wanted, message_filter, max_total_size=size_max
        )

    def _outcome(
        self, result: GetMessageResult, offset: int, group_config: SubscriptionGroupConfig
    ) -> tuple[int, int]:
        """The answer's code, and the broker id that the reader is told to pull from next."""
        code = _CODES.get(result.status)
        if code is None:
            # NO_MATCHED_LOGIC_QUEUE and NO_MESSAGE_IN_QUEUE.
            moved = offset != 0
            code = int(ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND)
        suggested = 0
        if self._config.slave_read_enable:
            suggested = (
                group_config.which_broker_when_consume_slowly
                if result.suggest_pulling_from_slave
                else group_config.broker_id
            )
        if self._store_config.broker_role is BrokerRole.SLAVE:
            if code == _MOVED and not self._store_config.offset_check_in_slave:
                # Its own begin and end say nothing: the broker that the group reads from decides.
                code, suggested = _RETRY, group_config.broker_id
            if self._follows_master() and not result.suggest_pulling_from_slave:
                # The reader is not behind any more: its master has the newest messages.
                suggested = MASTER_ID
                if code:
                    code = _RETRY
        return code, suggested

    def _waits_for_cold_reads(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        queue_id: int,
        result: GetMessageResult,
        *,
        may_hold: bool,
    ) -> bool:
        """Whether the pull is held because its group has read enough of old messages."""
        group, now_ms = header.consumer_group, self._now_ms()
        until_ms = self._cold_reads.waits_until_ms(
            group,
            self._config.cg_cold_read_threshold,
            self._config.global_cold_read_threshold,
            now_ms,
        )
        if until_ms is not None and may_hold and header.sys_flag & FLAG_SUSPEND:
            # No arrival ends this wait.
            kept, size = kept_request(request, PullMessageRequestHeader)
            held = HeldPull(channel, kept, QUEUE_OFFSET_MAX, until_ms, size=size)
            if self._hold.hold(header.topic, queue_id, held):
                return True
        self._cold_reads.add(group, result.buffer_total_size, now_ms)
        return False

    # Static topics

    def _stretch(self, queue: LogicalQueue, offset: int) -> LogicQueueMappingItem:
        """The stretch of a logical queue that an offset is in."""
        if not queue.is_led:
            raise Refusal(NOT_LEADER, queue.not_leader)
        item = qm.find_item(queue.items, offset)
        if item is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"{queue.topic}-{queue.queue_id}: no stretch of the queue has its place yet",
            )
        return item

    def _commit_offset_here(
        self, queue: LogicalQueue, item: LogicQueueMappingItem, commit_offset: int
    ) -> int:
        """What of a pull's commit offset belongs into the queue that is read; -1 for nothing.

        One that lies in another stretch comes again with the consumer's own commit.
        """
        if qm.find_item(queue.items, commit_offset) is not item:
            return -1
        return qm.to_physical(item, commit_offset)

    async def _pull_elsewhere(
        self,
        channel: Channel,
        request: RemotingCommand,
        queue: LogicalQueue,
        item: LogicQueueMappingItem,
        *,
        may_hold: bool,
    ) -> None:
        """Answer with what the broker of an older stretch has."""
        header = request.header(PullMessageRequestHeader)
        offset = qm.to_physical(item, header.queue_offset)
        # That broker must neither hold the request nor take the commit offset for its own.
        sys_flag = header.sys_flag & ~(FLAG_SUSPEND | FLAG_COMMIT_OFFSET)
        try:
            response = await self._peers.ask(
                str(item.bname),
                RequestCode.PULL_MESSAGE,
                {
                    **request.fields,
                    "queueId": str(item.queue_id),
                    "queueOffset": str(offset),
                    "sysFlag": str(sys_flag),
                },
            )
            if response.code not in _PULL_CODES:
                raise RemotingError(f"{item.bname}: code {response.code}: {response.remark}")
            found = response.header(PullMessageResponseHeader)
        except (RemotingError, RemoteProtocolError) as error:
            refusal = create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
            channel.reply(request, refusal)
            return
        answer = to_logical_pull(
            queue.items,
            item,
            response.code,
            offset,
            found.next_begin_offset,
            found.min_offset,
            found.max_offset,
        )
        if answer.code == _NOT_FOUND and may_hold and header.sys_flag & FLAG_SUSPEND:
            # It is at the end of the older stretch, and what follows is about to be decided.
            wait_ms = min(header.suspend_timeout_millis, self._config.short_polling_time_ms)
            kept, size = kept_request(request, PullMessageRequestHeader)
            held = HeldPull(
                channel, kept, _NEVER_REACHED, self._now_ms() + max(wait_ms, 0), size=size
            )
            if self._hold.hold(queue.topic, queue.items[-1].queue_id, held):
                return
        shown = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=answer.next_begin_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            offset_delta=answer.offset_delta,
            topic_sys_flag=found.topic_sys_flag,
            group_sys_flag=found.group_sys_flag,
        )
        body = response.body_bytes() if answer.code == 0 else b""
        channel.reply(
            request,
            create_response(request, answer.code, response.remark, header=shown, body=body),
        )

    def _check(
        self, code: int, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """The checks before the filter, in the reference's order."""
        config = self._config
        why = self._refuses_readers()
        if why is not None:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, why)
        if not config.readable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._own.ip}] pulling message is forbidden",
                _forbidden(FORBIDDEN_BY_BROKER),
            )
        if code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._own.ip}] for lite pull consumer is forbidden",
                _forbidden(FORBIDDEN_BY_BROKER),
            )
        group_config = self._groups.find(header.consumer_group)
        if group_config is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remarks.group_not_exist(header.consumer_group),
            )
        if not group_config.consume_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
                _forbidden(FORBIDDEN_BY_GROUP),
            )
        topic_config = self._topics.get(header.topic)
        if topic_config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(header.topic))
        if not topic_config.is_readable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
                _forbidden(FORBIDDEN_BY_TOPIC),
            )
        return group_config, topic_config

    def _check_queue(
        self, channel: Channel, topic_config: TopicConfig, queue_id: int, topic: str
    ) -> None:
        if not 0 <= queue_id < topic_config.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}] "
                f"consumer:[/{channel.remote}]",
            )

    def _filter(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> tuple[MessageFilter | None, PropertiesFilter | None]:
        """What the consumer wants: a filter for the store, and one for what arrives."""
        group, topic = header.consumer_group, header.topic
        if header.sys_flag & FLAG_SUBSCRIPTION:
            try:
                subscription = build_subscription(
                    topic, header.subscription, header.expression_type, header.sub_version
                )
            except SubscriptionError as error:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
            self._consumers.compensate_subscription(group, subscription, self._now_ms())
        else:
            subscription = self._subscription_of_group(header, group_config)
        if (
            self._config.filter_support_retry
            and topic.startswith(names.RETRY_PREFIX)
            and subscription.is_tag
            and self._expressions is not None
        ):
            retries_of = topic.removeprefix(names.RETRY_PREFIX)
            return self._expressions.retry_filters(subscription, retries_of)
        if subscription.is_tag:
            if not subscription.codes:
                return None, None
            return _tags_filter(subscription.codes), None
        if not self._config.enable_property_filter or self._expressions is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type}",
            )
        try:
            return self._expressions.filters(
                group,
                subscription,
                from_request=header.sys_flag & FLAG_SUBSCRIPTION != 0,
            )
        except SubscriptionError as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        except FilterUnknownError as error:
            raise Refusal(error.code, str(error)) from None

    def _subscription_of_group(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> Subscription:
        """The subscription that the group's heartbeats brought."""
        group, topic = header.consumer_group, header.topic
        found = self._consumers.get(group)
        if found is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist{remarks.FAQ}",
            )
        if found.is_broadcasting and not group_config.consume_broadcast_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] can not consume by broadcast way",
                _forbidden(FORBIDDEN_BY_BROADCASTING),
            )
        if not self._groups.is_readable(group, topic):
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] is forbidden for topic[{topic}]",
                _forbidden(FORBIDDEN_BY_SUBSCRIPTION),
            )
        subscription = found.subscriptions.get(topic)
        if subscription is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist{remarks.FAQ}",
            )
        if subscription.sub_version < header.sub_version:
            return _before_its_heartbeat(subscription, header)
        return subscription


def _before_its_heartbeat(known: Subscription, header: PullMessageRequestHeader) -> Subscription:
    """What to hand out for a pull whose subscription is newer than what heartbeats have brought.

    Java clients raise the version with each rebalance, mostly without changing the expression, and
    the heartbeat that says so may come 30 s later. An expression that the pull names counts. Where
    it names none, a group that filters by tags gets messages of all tags: consumers compare tags
    themselves, since the broker compares hashes, and nothing is passed over that the newer
    expression may want. An SQL92 expression that is not known to be the same is waited for.
    """
    kind = header.expression_type or TAG
    text = header.subscription or ""
    if kind == known.expression_type and text == known.sub_string:
        return known
    if kind != TAG or not known.is_tag:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    try:
        return build_subscription(header.topic, text, TAG, header.sub_version)
    except SubscriptionError as error:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {error}",
        ) from None


assert {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"} <= set(
    PullMessageResponseHeader.__struct_encode_fields__
)
