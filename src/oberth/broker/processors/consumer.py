"""ConsumerManageProcessor: 38, 14, 15, 41, 42, and the queue offsets 29 to 32.

RocketMQ: ConsumerManageProcessor, and the parts of AdminBrokerProcessor that clients call.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from oberth.broker import remarks
from oberth.broker.processors.client import READ_AT_ONCE_MAX, read_body
from oberth.broker.topic_configs import could_have_queue
from oberth.formats import names
from oberth.formats.config_json import Shown, config_in_slices, encode_config
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.group import GetConsumerListByGroupRequestHeader
from oberth.remoting.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.rebalance_locks import RebalanceLocks
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

MQ_SET_SIZE_MAX: Final = 10_000
LOCK_BODY_SIZE_MAX: Final = 512 * 1024
"""Bytes of a list of queues; 1 000 have some 80 KiB."""
LOCKS_PER_SLICE: Final = 1000
"""Queues that are locked between two turns of the loop: some 2 ms."""
IDS_A_TURN: Final = 2000
"""Client ids that are written between two turns of the loop: some 2 ms."""

_NOT_FOUND_REMARK: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class ConsumerManageProcessor:
    """What consumers ask beside messages."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        locks: RebalanceLocks,
        in_memory_bytes: int,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._locks = locks
        self._in_memory_bytes = in_memory_bytes
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now

    def list_few_consumers(self, channel: Channel, request: RemotingCommand) -> bool:
        """Answer 38 of a group like most: all its members ask when one comes or goes."""
        try:
            next(self.list_consumers(channel, request))
        except StopIteration as done:
            channel.reply(request, done.value)
            return True
        return False

    def list_consumers(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """38: the client ids of a group."""
        header = request.header(GetConsumerListByGroupRequestHeader)
        group = self._consumers.get(header.consumer_group)
        client_ids = group.client_ids() if group is not None else []
        if not client_ids:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {header.consumer_group}",
                ext_fields={},
            )
        del channel
        raw = bytearray(b'{"consumerIdList":[')
        for start in range(0, len(client_ids), IDS_A_TURN):
            if start:
                raw += b","
                yield
            raw += encode_config(client_ids[start : start + IDS_A_TURN], pretty=False)[1:-1]
        raw += b"]}"
        return create_response(request, ResponseCode.SUCCESS, ext_fields={}, body=raw)

    # Offsets

    def query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """14: where a group goes on in a queue."""
        del channel
        self._dispatch_now()
        header = request.header(QueryConsumerOffsetRequestHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False or not self.starts_at_zero(topic, queue_id):
                remark = (
                    "Not found, do not set to zero, maybe this group boot first"
                    if header.set_zero_if_not_found is False
                    else _NOT_FOUND_REMARK
                )
                return create_response(request, ResponseCode.QUERY_NOT_FOUND, remark, ext_fields={})
            offset = 0
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=QueryConsumerOffsetResponseHeader(offset=offset),
        )

    def starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Whether a new group starts at the beginning whatever it says it wants.

        So it is while nothing of the queue has been deleted and its first message is still among
        the newest 40 per cent of the memory's size, as Apache's store judges "in memory". So it is
        also where there has never been a message: told "not found", as 5.x does it, the client asks
        for the end next, and would skip what arrived between the two questions. 4.9 said 0, too.
        """
        store = self._store
        if store.min_offset_in_queue(topic, queue_id) > 0:
            return False
        unit = store.consume_queue_unit(topic, queue_id, 0)
        if unit is None:
            topic_config = self._topics.get(topic)
            return (
                topic_config is not None
                and 0 <= queue_id < topic_config.read_queue_nums
                and store.max_offset_in_queue(topic, queue_id) == 0
            )
        return store.max_phy_offset - unit.commit_log_offset <= self._in_memory_bytes

    def update_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """15: how far a group has come."""
        del channel
        header = request.header(UpdateConsumerOffsetRequestHeader)
        group, topic = header.consumer_group, header.topic
        if topic not in self._topics:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", ext_fields={}
            )
        if not could_have_queue(self._store, self._topics, topic, header.queue_id):
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                remarks.no_queue(topic, header.queue_id),
                ext_fields={},
            )
        if self._groups.find(group) is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {group} not exist!",
                ext_fields={},
            )
        if self._offsets.has_reset(group, topic, header.queue_id):
            return create_response(
                request,
                ResponseCode.SUCCESS,
                "Offset has been previously reset",
                ext_fields={},
            )
        if not self._offsets.commit(
            group, topic, header.queue_id, header.commit_offset, self._now_ms()
        ):
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                remarks.OFFSETS_FULL,
                ext_fields={},
            )
        return create_response(request, ResponseCode.SUCCESS, ext_fields={})

    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """30: the offset of the next message.

        One that is appended and not dispatched yet counts for who asks for it by name: others,
        those of 4.x among them, do not send the field. RocketMQ: getMaxOffsetInQueue.
        """
        del channel
        self._dispatch_now()
        header = request.header(GetMaxOffsetRequestHeader)
        offset = self._store.max_offset_in_queue(header.topic, header.queue_id)
        if header.committed is False:
            offset = max(offset, self._store.commit_log.queue_offset(header.topic, header.queue_id))
        return create_response(
            request, ResponseCode.SUCCESS, header=GetMaxOffsetResponseHeader(offset=offset)
        )

    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """31: the first offset that can be read."""
        del channel
        self._dispatch_now()
        header = request.header(GetMinOffsetRequestHeader)
        offset = self._store.min_offset_in_queue(header.topic, header.queue_id)
        if offset < 0:
            # As RocketMQ has it: only a batch queue says that it has no first message.
            topic_config = self._topics.get(header.topic)
            offset = -1 if topic_config is not None and topic_config.is_batch_queue else 0
        return create_response(
            request, ResponseCode.SUCCESS, header=GetMinOffsetResponseHeader(offset=offset)
        )

    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """32: when the first readable message was stored."""
        del channel
        self._dispatch_now()
        header = request.header(GetEarliestMsgStoretimeRequestHeader)
        timestamp = self._store.earliest_message_time(header.topic, header.queue_id)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp),
        )

    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29: the offset that belongs to a time."""
        del channel
        self._dispatch_now()
        header = request.header(SearchOffsetRequestHeader)
        boundary = (header.boundary_type or "LOWER").upper()
        topic = header.topic
        if header.lite_topic:
            topic = names.lite_queue(topic, header.lite_topic)
        offset = self._store.offset_in_queue_by_time(
            topic,
            header.queue_id,
            header.timestamp,
            "UPPER" if boundary == "UPPER" else "LOWER",
        )
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=SearchOffsetResponseHeader(offset=max(offset, 0)),
        )

    # Locks

    def lock(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """41: lock queues for consumption in order."""
        del channel
        group, client_id, queues = yield from self._lock_body(request)
        mine = []
        for start in range(0, len(queues), LOCKS_PER_SLICE):
            if start:
                yield
            some = queues[start : start + LOCKS_PER_SLICE]
            mine += self._locks.lock(group, client_id, some, self._now_ms())
        if len(mine) > LOCKS_PER_SLICE:
            yield
        raw = yield from config_in_slices({"lockOKMQSet": Shown(mine, _shown_queue)})
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def unlock(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """42: give locks back."""
        del channel
        group, client_id, queues = yield from self._lock_body(request)
        for start in range(0, len(queues), LOCKS_PER_SLICE):
            if start:
                yield
            self._locks.unlock(group, client_id, queues[start : start + LOCKS_PER_SLICE])
        return create_response(request, ResponseCode.SUCCESS)

    def _lock_body(
        self, request: RemotingCommand
    ) -> Generator[None, None, tuple[str, str, list[tuple[str, str, int]]]]:
        body = read_body(request, "LockBatchRequestBody")
        group, client_id = body.get("consumerGroup"), body.get("clientId")
        if not isinstance(group, str) or not isinstance(client_id, str):
            raise HeaderError("LockBatchRequestBody: consumerGroup or clientId is missing")
        if len(request.body) > READ_AT_ONCE_MAX:
            yield
        queues = yield from read_queues(body.get("mqSet"))
        if len(queues) > LOCKS_PER_SLICE:
            yield
        return group, client_id, queues


def _shown_queue(queue: tuple[str, str, int]) -> dict[str, Any]:
    topic, broker_name, queue_id = queue
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def read_queues(value: object) -> Generator[None, None, list[tuple[str, str, int]]]:
    """(topic, broker name, queue id) of each MessageQueue in a body.

    Raises:
        HeaderError: one of them does not parse.
    """
    queues: list[tuple[str, str, int]] = []
    entries: list[Any] = value if isinstance(value, list) else []
    if len(entries) > MQ_SET_SIZE_MAX:
        raise HeaderError(f"{len(entries)} queues, at most {MQ_SET_SIZE_MAX} are allowed")
    for number, entry in enumerate(entries):
        if number % LOCKS_PER_SLICE == LOCKS_PER_SLICE - 1:
            yield
        if not isinstance(entry, dict):
            raise HeaderError(f"{str(entry)[:100]!r} is no MessageQueue")
        topic, name, queue_id = entry.get("topic"), entry.get("brokerName"), entry.get("queueId")
        if not (isinstance(topic, str) and isinstance(name, str) and isinstance(queue_id, int)):
            raise HeaderError(f"{str(entry)[:100]!r} is no MessageQueue")
        queues.append((topic, name, queue_id))
    return queues
