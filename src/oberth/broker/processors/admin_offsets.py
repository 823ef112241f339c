"""Progress and offsets: 208, 317, 303, 308, 314, 222, 223, 43, 45.

RocketMQ: AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.clients import ClientInfo
from oberth.broker.stats import GROUP_GET_NUMS
from oberth.errors import RemotingError
from oberth.formats import names
from oberth.formats.config_json import encode_config
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.base import BodyError, MessageQueue
from oberth.remoting.bodies.offsets import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from oberth.remoting.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from oberth.remoting.code import LanguageCode, MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
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
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger("oberth.broker")

CLIENT_CALL_TIMEOUT_S: Final = 5.0
"""Seconds that a client gets to answer GET_CONSUMER_STATUS_FROM_CLIENT."""


class OffsetAdminProcessor:
    """Shows how far groups are, and moves them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -------------------------------------------------------------------------------- how far

    def consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """208: how far a group is in each queue of its topics."""
        del channel
        self._broker.dispatch_now()
        header = request.header(GetConsumeStatsRequestHeader)
        wanted = [each for each in (header.topic_list or "").split(";") if each]
        if not wanted and header.topic:
            wanted = [header.topic]
        stats = self._consume_stats(header.consumer_group, wanted)
        return create_response(request, ResponseCode.SUCCESS, body=stats.encode())

    def _consume_stats(self, group: str, wanted: list[str]) -> ConsumeStats:
        broker = self._broker
        stats = ConsumeStats()
        topics = wanted or broker.offsets.topics_of_group(group)
        online = broker.consumers.get(group)
        for topic in topics:
            topic_config = broker.topics.get(topic)
            if topic_config is None:
                continue
            if not wanted and online is not None and topic not in online.subscriptions:
                # It was subscribed to in an earlier life of the group.
                continue
            for queue_id in range(topic_config.read_queue_nums):
                queue = MessageQueue(
                    broker_name=broker.config.broker_name, queue_id=queue_id, topic=topic
                )
                stats.offset_table[queue] = self._offset_wrapper(group, topic, queue_id)
            stats.consume_tps += broker.stats.tps(GROUP_GET_NUMS, f"{topic}@{group}")
        return stats

    def _offset_wrapper(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        broker = self._broker
        store = broker.store
        high = max(store.max_offset_in_queue(topic, queue_id), 0)
        committed = broker.offsets.query(group, topic, queue_id)
        if topic not in broker.static_topics.table:
            # Of a static topic, -1 says that the group's offset is in an older stretch.
            committed = max(committed, 0)
        pulled = max(broker.offsets.query_pull(group, topic, queue_id), committed)
        last_ms = 0
        if committed > 0:
            last_ms = max(store.message_store_timestamp(topic, queue_id, committed - 1), 0)
        return OffsetWrapper(
            broker_offset=high,
            consumer_offset=committed,
            last_timestamp=last_ms,
            pull_offset=pulled,
        )

    def broker_consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """317: how far every group is."""
        del channel
        self._broker.dispatch_now()
        wants_order = request.header(GetConsumeStatsInBrokerHeader).is_order
        broker = self._broker
        body = ConsumeStatsList(broker_addr=str(broker.address))
        for group_config in broker.groups:
            group = str(group_config.group_name)
            topics = [
                topic
                for topic in broker.offsets.topics_of_group(group)
                if (found := broker.topics.get(topic)) is not None and found.order is wants_order
            ]
            entries = []
            for topic in topics:
                stats = self._consume_stats(group, [topic])
                entries.append(stats)
                for each in stats.offset_table.values():
                    body.total_diff += each.broker_offset - max(each.consumer_offset, 0)
                    body.total_inflight_diff += each.pull_offset - each.consumer_offset
            if entries:
                body.consume_stats_list.append({group: entries})
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def consume_time_span(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """303: between which times a topic's queues lie, and where a group is in them."""
        del channel
        self._broker.dispatch_now()
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        broker = self._broker
        topic_config = broker.topics.get(header.topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
            )
        spans = [
            self._time_span(header.topic, header.group, queue_id)
            for queue_id in range(topic_config.write_queue_nums)
        ]
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def _time_span(self, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
        broker = self._broker
        store = broker.store
        high = store.max_offset_in_queue(topic, queue_id)
        first_ms = store.earliest_message_time(topic, queue_id)
        last_ms = store.message_store_timestamp(topic, queue_id, high - 1) if high > 0 else -1
        committed = broker.offsets.query(group, topic, queue_id)
        consumed_ms = (
            store.message_store_timestamp(topic, queue_id, committed - 1)
            if committed > 0
            else first_ms
        )
        delay_ms = 0
        if 0 <= committed < high:
            next_ms = store.message_store_timestamp(topic, queue_id, committed)
            delay_ms = max(broker.now_ms() - next_ms, 0) if next_ms >= 0 else 0
        return QueueTimeSpan(
            consume_time_stamp=consumed_ms,
            consume_time_stamp_str=_time_text(consumed_ms),
            delay_time=delay_ms,
            max_time_stamp=last_ms,
            max_time_stamp_str=_time_text(last_ms),
            message_queue=MessageQueue(
                broker_name=broker.config.broker_name, queue_id=queue_id, topic=topic
            ),
            min_time_stamp=first_ms,
            min_time_stamp_str=_time_text(first_ms),
        )

    def correction_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """308: other groups' lowest offsets by queue, where they are below the compared group's."""
        del channel
        header = request.header(QueryCorrectionOffsetHeader)
        offsets = self._broker.offsets
        mine = offsets.queues(header.compare_group, header.topic)
        filtered = {each for each in (header.filter_groups or "").split(",") if each}
        lowest: dict[int, int] = {}
        for group in offsets.groups_of_topic(header.topic):
            if group in filtered or group == header.compare_group:
                continue
            for queue_id, offset in offsets.queues(group, header.topic).items():
                lowest[queue_id] = min(lowest.get(queue_id, offset), offset)
        corrections = {
            queue_id: offset
            for queue_id, offset in lowest.items()
            if queue_id in mine and offset < mine[queue_id]
        }
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config({"correctionOffsets": corrections}, pretty=False),
        )

    def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """43: every group's offsets, for slaves."""
        del channel
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config(self._broker.offsets.to_body(), pretty=False),
        )

    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """45: the delay levels' offsets, for slaves."""
        del channel
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config(self._broker.schedule.to_body(), pretty=False),
        )

    # ---------------------------------------------------------------------------------- moving

    def clone(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """314: give one group the offsets of another."""
        del channel
        header = request.header(CloneGroupOffsetRequestHeader)
        broker = self._broker
        topics = (
            [header.topic] if header.topic else broker.offsets.topics_of_group(header.src_group)
        )
        for topic in topics:
            if topic not in broker.topics:
                _LOG.warning("clone offsets: topic %.130r is not known", topic)
                continue
            if topic.startswith(names.RETRY_PREFIX):
                continue
            if not header.offline:
                online = broker.consumers.get(header.src_group)
                if online is not None and topic not in online.subscriptions:
                    continue
            broker.offsets.clone(header.src_group, header.dest_group, topic, broker.now_ms())
        return create_response(request, ResponseCode.SUCCESS)

    def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """222: take a group to a time or an offset."""
        del channel
        self._broker.dispatch_now()
        header = request.header(ResetOffsetRequestHeader)
        broker = self._broker
        topic_config = broker.topics.get(header.topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist"
            )
        if broker.groups.get(header.group) is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.group} does not exist",
            )
        if broker.config.use_server_side_reset_offset:
            return self._reset_here(request, header, topic_config)
        return self._reset_at_clients(request, header, topic_config)

    def _reset_here(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, topic_config: TopicConfig
    ) -> RemotingCommand:
        """The next pull of each queue is told its new offset; needs no client to be online."""
        broker = self._broker
        store = broker.store
        group, topic = header.group, header.topic
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
                offsets[queue_id] = self._offset_at(topic, queue_id, header.timestamp)
        now_ms = broker.now_ms()
        for queue_id, offset in offsets.items():
            broker.offsets.assign_reset(group, topic, queue_id, offset, now_ms)
            broker.on_offset_reset(group, topic, queue_id)
        return self._reset_response(request, topic, offsets)

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        store = self._broker.store
        if timestamp_ms < 0:
            return max(store.max_offset_in_queue(topic, queue_id), 0)
        return max(store.offset_in_queue_by_time(topic, queue_id, timestamp_ms), 0)

    def _reset_at_clients(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, topic_config: TopicConfig
    ) -> RemotingCommand:
        """Every client of the group is told its new offsets, as brokers up to 4.9 do it."""
        broker = self._broker
        group, topic = header.group, header.topic
        offsets: dict[int, int] = {}
        for queue_id in range(topic_config.write_queue_nums):
            committed = broker.offsets.query(group, topic, queue_id)
            if committed == -1:
                return create_response(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"THe consumer group <{group}> not exist",
                )
            wanted = self._offset_at(topic, queue_id, header.timestamp)
            offsets[queue_id] = wanted if header.is_force or wanted < committed else committed
        online = broker.consumers.get(group)
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
        for client in online.clients.values():
            call = create_request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                header,
                self._reset_body_for(client, topic, offsets),
            )
            try:
                client.channel.invoke_oneway(call)  # type: ignore[attr-defined]
            except RemotingError as error:
                _LOG.error("reset of %s not sent to %s: %s", group, client.client_id, error)
        return self._reset_response(request, topic, offsets)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(
            broker_name=self._broker.config.broker_name, queue_id=queue_id, topic=topic
        )

    def _reset_body_for(self, client: ClientInfo, topic: str, offsets: dict[int, int]) -> bytes:
        if client.language == LanguageCode.CPP.name:
            return ResetOffsetBodyForC(
                offset_table=[
                    MessageQueueForC(
                        broker_name=self._broker.config.broker_name,
                        offset=offset,
                        queue_id=queue_id,
                        topic=topic,
                    )
                    for queue_id, offset in offsets.items()
                ]
            ).encode()
        return self._reset_body(topic, offsets)

    def _reset_body(self, topic: str, offsets: dict[int, int]) -> bytes:
        table = {self._queue(topic, queue_id): offset for queue_id, offset in offsets.items()}
        return ResetOffsetBody(offset_table=table).encode()

    def _reset_response(
        self, request: RemotingCommand, topic: str, offsets: dict[int, int]
    ) -> RemotingCommand:
        return create_response(request, ResponseCode.SUCCESS, body=self._reset_body(topic, offsets))

    # ------------------------------------------------------------------------- what clients think

    async def consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """223: where the clients of a group believe they are."""
        del channel
        header = request.header(GetConsumerStatusRequestHeader)
        online = self._broker.consumers.get(header.group)
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
        table: dict[str, Any] = {}
        for client, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, BaseException):
                _LOG.warning("status of %s: %s", client.client_id, answer)
            else:
                table[client.client_id] = answer
        body = GetConsumerStatusBody(consumer_table=table)
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    async def _status_of(
        self, client: ClientInfo, header: GetConsumerStatusRequestHeader
    ) -> dict[MessageQueue, int]:
        if client.version < MQVersion.V3_0_7_SNAPSHOT:
            raise BodyError(f"the client does not support this feature. version={client.version}")
        channel: Channel = client.channel  # type: ignore[assignment]
        response = await channel.invoke(
            create_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header),
            CLIENT_CALL_TIMEOUT_S,
        )
        if response.code != ResponseCode.SUCCESS or not response.body:
            raise BodyError(f"code {response.code}: {response.remark}")
        return GetConsumerStatusBody.decode(response.body_bytes()).message_queue_table


def _time_text(timestamp_ms: int) -> str:
    """As Java's ``UtilAll.timeMillisToHumanString2``-like text, in local time."""
    try:
        moment = datetime.fromtimestamp(max(timestamp_ms, 0) / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d#%H:%M:%S:") + f"{max(timestamp_ms, 0) % 1000:03d}"
