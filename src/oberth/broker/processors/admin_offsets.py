"""Progress and offsets: 208, 317, 303, 308, 314, 222, 223, 43, 45.

RocketMQ: AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from oberth.broker import remarks
from oberth.broker.clients import ClientInfo
from oberth.broker.stats import GROUP_GET_NUMS
from oberth.broker.tasks import result_in_turns
from oberth.broker.topic_configs import could_have_queue
from oberth.errors import IllegalNameError, RemotingError
from oberth.formats import names
from oberth.formats.config_json import config_in_slices
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.long_answers import LongAnswers
from oberth.remoting.bodies.base import BodyError, MessageQueue, render_in_slices
from oberth.remoting.bodies.offsets import (
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    offsets_told,
    status_body,
)
from oberth.remoting.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from oberth.remoting.code import LanguageCode, MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import (
    FRAME_SIZE_MAX,
    RemotingCommand,
    create_request,
    create_response,
)
from oberth.remoting.headers.group import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerGroup, ConsumerTable
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.schedule_service import ScheduleService
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

CLIENT_CALL_TIMEOUT_S: Final = 5.0
"""Seconds that a client gets to answer GET_CONSUMER_STATUS_FROM_CLIENT."""


OFFSETS_A_TURN: Final = 2000
STATS_A_TURN: Final = 100
"""Queues whose figures one turn of the loop gathers."""


class OffsetAdminProcessor:
    """Shows how far groups are, and moves them."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        schedule: ScheduleService,
        stats: BrokerStats,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        on_offset_reset: Callable[[str, str, int], None],
        answer_behind_log: Callable[
            [Channel, RemotingCommand, RemotingCommand], RemotingCommand | None
        ],
    ) -> None:
        self._config = config
        self._own = own
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._schedule = schedule
        self._stats = stats
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._on_offset_reset = on_offset_reset
        self._answer_behind_log = answer_behind_log
        self._answers = LongAnswers()

    # How far

    def consume_stats(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """208: how far a group is in each queue of its topics."""
        del channel
        self._dispatch_now()
        header = request.header(GetConsumeStatsRequestHeader)
        wanted = list(dict.fromkeys(each for each in (header.topic_list or "").split(";") if each))
        if not wanted and header.topic:
            wanted = [header.topic]
        stats = yield from self._consume_stats(header.consumer_group, wanted)
        raw = yield from render_in_slices(stats)
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def _consume_stats(self, group: str, wanted: list[str]) -> Generator[None, None, ConsumeStats]:
        stats = ConsumeStats()
        topics = wanted or (yield from self._offsets.topics_of_group_in_slices(group))
        online = self._consumers.get(group)
        for number, topic in enumerate(topics):
            if number % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                yield
            topic_config = self._topics.get(topic)
            if topic_config is None:
                continue
            is_subscribed = bool(wanted) or online is None or topic in online.subscriptions
            if not is_subscribed and not (online is not None and _pops(online, group, topic)):
                # It was subscribed to in an earlier life of the group.
                continue
            for queue_id in range(topic_config.read_queue_nums):
                queue = MessageQueue(
                    broker_name=self._config.broker_name, queue_id=queue_id, topic=topic
                )
                found = self._offset_wrapper(group, topic, queue_id)
                if is_subscribed or found.broker_offset > found.consumer_offset:
                    stats.offset_table[queue] = found
                if len(stats.offset_table) % STATS_A_TURN == 0:
                    yield
            stats.consume_tps += self._stats.tps(GROUP_GET_NUMS, f"{topic}@{group}")
        return stats

    def _offset_wrapper(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._store
        high = max(store.max_offset_in_queue(topic, queue_id), 0)
        committed = self._offsets.query(group, topic, queue_id)
        if topic not in self._static_topics.table:
            # Of a static topic, -1 says that the group's offset is in an older stretch.
            committed = max(committed, 0)
        pulled = max(self._offsets.query_pull(group, topic, queue_id), committed)
        last_ms = 0
        if committed > 0:
            last_ms = max(store.message_store_timestamp(topic, queue_id, committed - 1), 0)
        return OffsetWrapper(
            broker_offset=high,
            consumer_offset=committed,
            last_timestamp=last_ms,
            pull_offset=pulled,
        )

    def broker_consume_stats(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """317: how far every group is."""
        del channel
        self._dispatch_now()
        wants_order = request.header(GetConsumeStatsInBrokerHeader).is_order
        topics_of: dict[str, list[str]] = {}
        for number, (topic, group, _) in enumerate(self._offsets):
            if group in self._groups:
                topics_of.setdefault(group, []).append(topic)
            if number % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                yield
        # Each group becomes bytes at once: to let go of the objects of all at the end takes long.
        body = ConsumeStatsList(broker_addr=str(self._own.address))
        raw = bytearray()
        done = passed = 0
        for number, each_group in enumerate(self._groups, 1):
            if number % OFFSETS_A_TURN == 0:
                yield
            group = str(each_group.group_name)
            entries = bytearray()
            for topic in topics_of.pop(group, ()):
                found = self._topics.get(topic)
                if found is None or found.order is not wants_order:
                    passed += 1
                    if passed % OFFSETS_A_TURN == 0:
                        yield
                    continue
                stats = yield from self._consume_stats(group, [topic])
                for number, each in enumerate(stats.offset_table.values()):
                    if number % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                        yield
                    body.total_diff += each.broker_offset - max(each.consumer_offset, 0)
                    body.total_inflight_diff += each.pull_offset - each.consumer_offset
                entries += b"," if entries else b""
                entries += yield from render_in_slices(stats)
                if len(raw) + len(entries) > FRAME_SIZE_MAX:
                    remark = f"the answer is longer than a frame may be, {FRAME_SIZE_MAX} bytes"
                    return create_response(request, ResponseCode.SYSTEM_ERROR, remark)
                done += len(stats.offset_table) + 1
                if done >= STATS_A_TURN:
                    done = 0
                    yield
            if entries:
                raw += b"," if raw else b""
                raw += b"{" + msgspec.json.encode(group) + b":[" + entries + b"]}"
        return create_response(request, ResponseCode.SUCCESS, body=body.around(raw))

    def consume_time_span(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """303: between which times a topic's queues lie, and where a group is in them."""
        del channel
        self._dispatch_now()
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        topic_config = self._topics.get(header.topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
            )
        spans = []
        for queue_id in range(topic_config.write_queue_nums):
            if queue_id % STATS_A_TURN == STATS_A_TURN - 1:
                yield
            spans.append(self._time_span(header.topic, header.group, queue_id))
        raw = yield from render_in_slices(QueryConsumeTimeSpanBody(consume_time_span_set=spans))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def _time_span(self, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        high = store.max_offset_in_queue(topic, queue_id)
        first_ms = store.earliest_message_time(topic, queue_id)
        last_ms = store.message_store_timestamp(topic, queue_id, high - 1) if high > 0 else -1
        committed = self._offsets.query(group, topic, queue_id)
        consumed_ms = (
            store.message_store_timestamp(topic, queue_id, committed - 1)
            if committed > 0
            else first_ms
        )
        delay_ms = 0
        if 0 <= committed < high:
            next_ms = store.message_store_timestamp(topic, queue_id, committed)
            delay_ms = max(self._now_ms() - next_ms, 0) if next_ms >= 0 else 0
        return QueueTimeSpan(
            consume_time_stamp=consumed_ms,
            consume_time_stamp_str=_time_text(consumed_ms),
            delay_time=delay_ms,
            max_time_stamp=last_ms,
            max_time_stamp_str=_time_text(last_ms),
            message_queue=MessageQueue(
                broker_name=self._config.broker_name, queue_id=queue_id, topic=topic
            ),
            min_time_stamp=first_ms,
            min_time_stamp_str=_time_text(first_ms),
        )

    def correction_offset(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """308: other groups' lowest offsets by queue, where they are below the compared group's."""
        del channel
        header = request.header(QueryCorrectionOffsetHeader)
        offsets = self._offsets
        mine = offsets.queues(header.compare_group, header.topic)
        filtered = {each for each in (header.filter_groups or "").split(",") if each}
        lowest: dict[int, int] = {}
        done = 0
        for group in (yield from offsets.groups_of_topic_in_slices(header.topic)):
            if group in filtered or group == header.compare_group:
                continue
            for queue_id, offset in offsets.queues(group, header.topic).items():
                lowest[queue_id] = min(lowest.get(queue_id, offset), offset)
                done += 1
                if done % OFFSETS_A_TURN == 0:
                    yield
        corrections = {}
        for queue_id, offset in lowest.items():
            done += 1
            if done % OFFSETS_A_TURN == 0:
                yield
            if queue_id in mine and offset < mine[queue_id]:
                corrections[queue_id] = offset
        raw = yield from config_in_slices({"correctionOffsets": corrections})
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def all_offsets(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        """43: every group's offsets, for slaves."""
        raw = yield from config_in_slices(self._offsets.to_body())
        response = create_response(request, ResponseCode.SUCCESS, body=raw)
        return self._answer_behind_log(channel, request, response)

    def all_delay_offsets(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        """45: the delay levels' offsets, for slaves."""
        raw = yield from config_in_slices(self._schedule.to_body())
        response = create_response(request, ResponseCode.SUCCESS, body=raw)
        return self._answer_behind_log(channel, request, response)

    # Moving

    def clone(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """314: give one group the offsets of another."""
        del channel
        header = request.header(CloneGroupOffsetRequestHeader)
        try:
            names.check_kept_group(header.dest_group)
        except IllegalNameError as error:
            return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        topics = [header.topic] if header.topic else []
        if not topics:
            topics = yield from self._offsets.topics_of_group_in_slices(header.src_group)
        is_full = False
        for done, topic in enumerate(topics):
            if done % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                yield
            if topic not in self._topics:
                _LOG.warning(
                    "offsets are not copied for topic %.130r, which this broker does not know",
                    topic,
                )
                continue
            if topic.startswith(names.RETRY_PREFIX):
                continue
            if not header.offline:
                online = self._consumers.get(header.src_group)
                if online is not None and topic not in online.subscriptions:
                    continue
            now_ms = self._now_ms()
            for number, (queue_id, offset) in enumerate(
                self._offsets.queues(header.src_group, topic).items()
            ):
                if number % OFFSETS_A_TURN == 0:
                    yield
                if self._offsets.has_reset(header.dest_group, topic, queue_id):
                    continue
                if not self._offsets.commit(header.dest_group, topic, queue_id, offset, now_ms):
                    is_full = True
        if is_full:
            return create_response(request, ResponseCode.SYSTEM_ERROR, remarks.OFFSETS_FULL)
        return create_response(request, ResponseCode.SUCCESS)

    def reset(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """222: take a group to a time or an offset."""
        del channel
        self._dispatch_now()
        header = request.header(ResetOffsetRequestHeader)
        topic_config = self._topics.get(header.topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist"
            )
        if self._groups.get(header.group) is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.group} does not exist",
            )
        if self._config.use_server_side_reset_offset:
            return (yield from self._reset_here(request, header, topic_config))
        return (yield from self._reset_at_clients(request, header, topic_config))

    def _reset_here(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, topic_config: TopicConfig
    ) -> Generator[None, None, RemotingCommand]:
        """The next pull of each queue is told its new offset; needs no client to be online."""
        store = self._store
        group, topic = header.group, header.topic
        if header.queue_id >= 0 and not could_have_queue(
            store, self._topics, topic, header.queue_id
        ):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, remarks.no_queue(topic, header.queue_id)
            )
        offsets: dict[int, int] = {}
        if header.queue_id >= 0 and header.offset is not None and header.offset != -1:
            low = max(store.min_offset_in_queue(topic, header.queue_id), 0)
            high = max(store.max_offset_in_queue(topic, header.queue_id), 0)
            if not low <= header.offset <= high + 1:
                return create_response(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                )
            offsets[header.queue_id] = header.offset
        else:
            queues = (
                [header.queue_id]
                if header.queue_id >= 0
                else list(range(topic_config.read_queue_nums))
            )
            for queue_id in queues:
                if queue_id % STATS_A_TURN == STATS_A_TURN - 1:
                    yield
                offsets[queue_id] = self._offset_at(topic, queue_id, header.timestamp)
        now_ms = self._now_ms()
        is_full = False
        for number, (queue_id, offset) in enumerate(offsets.items()):
            if number % STATS_A_TURN == STATS_A_TURN - 1:
                yield
            if self._offsets.assign_reset(group, topic, queue_id, offset, now_ms):
                self._on_offset_reset(group, topic, queue_id)
            else:
                is_full = True
        if is_full:
            return create_response(request, ResponseCode.SYSTEM_ERROR, remarks.OFFSETS_FULL)
        return (yield from self._reset_response(request, topic, offsets))

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        store = self._store
        if timestamp_ms < 0:
            return max(store.max_offset_in_queue(topic, queue_id), 0)
        return max(store.offset_in_queue_by_time(topic, queue_id, timestamp_ms), 0)

    def _reset_at_clients(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, topic_config: TopicConfig
    ) -> Generator[None, None, RemotingCommand]:
        """Every client of the group is told its new offsets, as brokers up to 4.9 do it."""
        group, topic = header.group, header.topic
        offsets: dict[int, int] = {}
        for queue_id in range(topic_config.write_queue_nums):
            if queue_id % STATS_A_TURN == STATS_A_TURN - 1:
                yield
            committed = self._offsets.query(group, topic, queue_id)
            if committed == -1:
                return create_response(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"THe consumer group <{group}> not exist",
                )
            wanted = self._offset_at(topic, queue_id, header.timestamp)
            offsets[queue_id] = wanted if header.is_force or wanted < committed else committed
        online = self._consumers.get(group)
        if online is None or not online.clients:
            return create_response(
                request,
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} "
                f"Topic: {topic} Timestamp: {header.timestamp}",
            )
        for client in online.clients.values():
            if client.version < MQVersion.V3_0_7_SNAPSHOT:
                return create_response(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version}",
                )
        body = yield from self._reset_body(topic, offsets)
        body_for_c = bytearray()
        for client in list(online.clients.values()):
            is_c = client.language == LanguageCode.CPP.name
            if is_c and not body_for_c:
                body_for_c = yield from self._reset_body_for_c(topic, offsets)
            call = create_request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body_for_c if is_c else body
            )
            try:
                client.channel.invoke_oneway(call)  # type: ignore[attr-defined]
            except RemotingError as error:
                _LOG.error(
                    "the reset of group %s could not be sent to its member %s: %s",
                    group,
                    client.client_id,
                    error,
                )
        return (yield from self._reset_response(request, topic, offsets))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._config.broker_name, queue_id=queue_id, topic=topic)

    def _reset_body_for_c(
        self, topic: str, offsets: dict[int, int]
    ) -> Generator[None, None, bytearray]:
        queues: list[MessageQueueForC] = []
        for queue_id, offset in offsets.items():
            if len(queues) % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                yield
            queues.append(
                MessageQueueForC(
                    broker_name=self._config.broker_name,
                    offset=offset,
                    queue_id=queue_id,
                    topic=topic,
                )
            )
        return (yield from render_in_slices(ResetOffsetBodyForC(offset_table=queues)))

    def _reset_body(self, topic: str, offsets: dict[int, int]) -> Generator[None, None, bytearray]:
        table: dict[MessageQueue, int] = {}
        for queue_id, offset in offsets.items():
            if len(table) % OFFSETS_A_TURN == OFFSETS_A_TURN - 1:
                yield
            table[self._queue(topic, queue_id)] = offset
        return (yield from render_in_slices(ResetOffsetBody(offset_table=table)))

    def _reset_response(
        self, request: RemotingCommand, topic: str, offsets: dict[int, int]
    ) -> Generator[None, None, RemotingCommand]:
        raw = yield from self._reset_body(topic, offsets)
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    # What clients think

    async def consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """223: where the clients of a group believe they are."""
        del channel
        header = request.header(GetConsumerStatusRequestHeader)
        online = self._consumers.get(header.group)
        if online is None or not online.clients:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "No Any Consumer online in the consumer group: "
                f"[{header.group}]",
            )  # fmt: skip
        wanted = [
            client
            for client in online.clients.values()
            if not header.client_addr or header.client_addr == client.client_id
        ]
        answers = await asyncio.gather(
            *(self._status_of(client, header) for client in wanted), return_exceptions=True
        )
        table: dict[str, bytes] = {}
        for client, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, BaseException):
                _LOG.warning(
                    "client %s could not be asked for its status: %s", client.client_id, answer
                )
            else:
                table[client.client_id] = answer
        raw = await result_in_turns(status_body(table))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    async def _status_of(self, client: ClientInfo, header: GetConsumerStatusRequestHeader) -> bytes:
        """A client's offsets as they stand in the answer of 223."""
        if client.version < MQVersion.V3_0_7_SNAPSHOT:
            raise BodyError(f"the client does not support this feature. version={client.version}")
        channel: Channel = client.channel  # type: ignore[assignment]
        response = await channel.invoke(
            create_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header),
            CLIENT_CALL_TIMEOUT_S,
        )
        if response.code != ResponseCode.SUCCESS or not response.body:
            raise BodyError(f"code {response.code}: {response.remark}")
        return await self._answers.read(offsets_told, response.body_bytes())


def _pops(online: ConsumerGroup, group: str, topic: str) -> bool:
    """Whether members pop what failed of a topic that they subscribe to from this one.

    RocketMQ leaves it out while there are members, though messages wait there for them.
    """
    return any(
        topic.startswith(prefix) and topic.removeprefix(prefix) in online.subscriptions
        for prefix in (names.pop_retry_topic("", group), names.pop_retry_topic("", group, v2=True))
    )


def _time_text(timestamp_ms: int) -> str:
    """As Java's ``UtilAll.timeMillisToHumanString2``-like text, in local time."""
    try:
        moment = datetime.fromtimestamp(max(timestamp_ms, 0) / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d#%H:%M:%S:") + f"{max(timestamp_ms, 0) % 1000:03d}"
