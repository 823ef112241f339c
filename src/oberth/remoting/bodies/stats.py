"""Bodies about progress and statistics: 202, 208, 303, 308, 315, 317, 321, 345."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec
from msgspec.structs import replace

from oberth.formats.json_values import LENIENT_SIZE_MAX
from oberth.remoting.bodies.base import (
    Body,
    BodyError,
    MessageQueue,
    QueueMap,
    parse,
    render_fields,
)
from oberth.remoting.bodies.clients import SubscriptionData


class TopicOffset(Body):
    """Both ends of a queue; the time is that of the last message, 0 when there is none."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStatsTable(Body):
    """Answer of 202."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {"offsetTable": TopicOffset}

    offset_table: QueueMap[TopicOffset] = msgspec.field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(Body):
    """How far a group is in a queue; ``last_timestamp`` is of the last message that it consumed."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(Body):
    """Answer of 208."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {"offsetTable": OffsetWrapper}

    consume_tps: float = 0.0
    offset_table: QueueMap[OffsetWrapper] = msgspec.field(default_factory=dict)


class ConsumeStatsList(Body):
    """Answer of 317: a list of {group: [ConsumeStats, ...]}."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = msgspec.field(default_factory=list)
    total_diff: int = 0
    total_inflight_diff: int = 0

    @classmethod
    def decode(cls, data: bytes, lenient_size_max: int = LENIENT_SIZE_MAX) -> Self:
        """See ``Body.decode``."""
        return cls.from_tree(parse(data, cls.__name__, lenient_size_max))

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        """See ``Body.from_tree``."""
        if not isinstance(tree, dict):
            raise BodyError(f"{cls.__name__}: a JSON {type(tree).__name__}, allowed an object")
        entries = tree.get("consumeStatsList") or []
        body = super().from_tree({**tree, "consumeStatsList": None})
        try:
            body.consume_stats_list = [
                {group: [ConsumeStats.from_tree(stats) for stats in found]}
                for entry in entries
                for group, found in entry.items()
            ]
        except (AttributeError, TypeError) as error:
            raise BodyError(f"{cls.__name__}.consumeStatsList: {error}") from None
        return body

    def encode(self) -> bytes:
        """See ``Body.encode``."""
        return render_fields(self)

    def around(self, entries: bytearray) -> list[bytes | bytearray]:
        """The body in pieces, for entries of the list that are JSON already, joined by commas."""
        front, mark, end = replace(self, consume_stats_list=[]).encode().partition(_EMPTY_LIST)
        return [front + mark[:-1], entries, mark[-1:] + end]


_EMPTY_LIST: Final = b'"consumeStatsList":[]'


class BrokerStatsItem(Body):
    """Sums of one span; ``avgpt`` is the average of one call, in ms."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body):
    """Answer of 315."""

    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)


class QueueTimeSpan(Body):
    """Store times of a queue's first and last message, and of the one a group is at; in ms."""

    consume_time_stamp: int = 0
    consume_time_stamp_str: str | None = None
    delay_time: int = 0
    max_time_stamp: int = 0
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue = msgspec.field(default_factory=MessageQueue)
    min_time_stamp: int = 0
    min_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body):
    """Answer of 303."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)


class ConsumeQueueData(Body):
    """One unit of a ConsumeQueue, and whether the group's filter lets it through."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0


class QueryConsumeQueueResponseBody(Body):
    """Answer of 321."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueData] = msgspec.field(default_factory=list)
    subscription_data: SubscriptionData | None = None
