"""Every JSON file of a store or name server that has no module of its own, and the table of all.

    file                            bean
    config/topics.json              TopicConfigs
    config/subscriptionGroup.json   SubscriptionGroups
    config/consumerOffset.json      ConsumerOffsets
    config/lmqConsumerOffset.json   LmqConsumerOffsets
    config/delayOffset.json         DelayOffsets
    config/consumerFilter.json      ConsumerFilters
    config/topicQueueMapping.json   TopicQueueMappings
    config/messageRequestMode.json  MessageRequestModes
    config/consumerOrderInfo.json   ConsumerOrderInfos
    config/timermetrics             TimerMetrics
    config/transactionMetrics       TransactionMetrics
    compaction/position-checkpoint  CompactionPositions
    kvConfig.json                   KvConfigs, of a name server

Values are typed and unknown fields are kept. A .bak beside a file holds what it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from oberth.formats.bean import BOOL, INT, STR, Bean, bean_of, json_field, list_of, map_of
from oberth.formats.data_version import DataVersion
from oberth.formats.names import LMQ_PREFIX
from oberth.formats.options import Line
from oberth.formats.subscription_group import SubscriptionGroups
from oberth.formats.topic_config import TopicConfigs

GROUP_SEPARATOR: Final = "@"
_LIGHT_SEPARATOR: Final = GROUP_SEPARATOR + LMQ_PREFIX

_OFFSETS: Final = map_of(map_of(INT, key=INT))


def offset_key(topic: str, group: str) -> str:
    """The key of an offset table: topic@group."""
    return f"{topic}{GROUP_SEPARATOR}{group}"


def split_offset_key(key: str) -> tuple[str, str] | None:
    """Topic and group of an offset table's key; None unless it has both.

    Names of light queues and of light groups may hold an ``@``, those of other groups may not.
    """
    topic, found, group = key.rpartition(_LIGHT_SEPARATOR)
    if found:
        group = LMQ_PREFIX + group
    else:
        topic, _, group = key.rpartition(GROUP_SEPARATOR)
    return (topic, group) if topic and group else None


@dataclass(slots=True, kw_only=True)
class ConsumerOffsets(Bean):
    """consumerOffset.json: the next offset of every group in every queue.

    Attributes:
        data_version: 5.x.
        group_topic_map: 5.x: written because Java's bean has such a getter; means nothing.
        offset_table: topic@group → queue id → next offset to consume.
        pull_offset_table: 5.x: the same, for offsets that were pulled and not committed.
    """

    data_version: DataVersion = json_field(
        "dataVersion", bean_of(DataVersion), DataVersion, line=Line.V5
    )
    group_topic_map: dict[str, list[str]] = json_field(
        "groupTopicMap", map_of(list_of(STR)), dict, line=Line.V5, compare=False
    )
    offset_table: dict[str, dict[int, int]] = json_field("offsetTable", _OFFSETS, dict)
    pull_offset_table: dict[str, dict[int, int]] = json_field(
        "pullOffsetTable", _OFFSETS, dict, line=Line.V5
    )


@dataclass(slots=True, kw_only=True)
class LmqConsumerOffsets(ConsumerOffsets):
    """lmqConsumerOffset.json: stands in for consumerOffset.json when LMQ is on.

    Attributes:
        lmq_offset_table: topic@group → next offset in the light queue.
    """

    lmq_offset_table: dict[str, int] = json_field("lmqOffsetTable", map_of(INT), dict)


@dataclass(slots=True, kw_only=True)
class DelayOffsets(Bean):
    """delayOffset.json: how far each delay level has been delivered.

    Attributes:
        data_version: 5.x.
        offset_table: delay level (from 1) → next offset in SCHEDULE_TOPIC_XXXX, queue level - 1.
    """

    data_version: DataVersion | None = json_field(
        "dataVersion", bean_of(DataVersion), None, line=Line.V5
    )
    offset_table: dict[int, int] = json_field("offsetTable", map_of(INT, key=INT), dict)


@dataclass(slots=True, kw_only=True)
class BloomFilterData(Bean):
    """A consumer's positions in bitmaps, and the bitmaps' bits."""

    bit_num: int = json_field("bitNum", INT, 0)
    bit_pos: tuple[int, ...] | None = json_field("bitPos", list_of(INT, tuple), None)


@dataclass(slots=True, kw_only=True)
class ConsumerFilterData(Bean):
    """A group's expression for a topic. A filter is dead when dead_time >= born_time, both ms."""

    bloom_filter_data: BloomFilterData | None = json_field(
        "bloomFilterData", bean_of(BloomFilterData), None
    )
    born_time: int = json_field("bornTime", INT, 0)
    client_version: int = json_field("clientVersion", INT, 0)
    consumer_group: str | None = json_field("consumerGroup", STR, None)
    dead_time: int = json_field("deadTime", INT, 0)
    expression: str | None = json_field("expression", STR, None)
    expression_type: str | None = json_field("expressionType", STR, None)
    topic: str | None = json_field("topic", STR, None)

    @property
    def is_dead(self) -> bool:
        """Whether nobody subscribes with it any more."""
        return self.dead_time >= self.born_time

    @classmethod
    def _derived_names(cls) -> tuple[str, ...]:
        return ("dead",)

    def _derived(self) -> dict[str, Any]:
        return {"dead": self.is_dead}


@dataclass(slots=True, kw_only=True)
class TopicFilters(Bean):
    """The filters of one topic, by group."""

    group_filter_data: dict[str, ConsumerFilterData] = json_field(
        "groupFilterData", map_of(bean_of(ConsumerFilterData)), dict
    )
    topic: str | None = json_field("topic", STR, None)


@dataclass(slots=True, kw_only=True)
class ConsumerFilters(Bean):
    """consumerFilter.json: SQL92 expressions, by topic."""

    filter_data_by_topic: dict[str, TopicFilters] = json_field(
        "filterDataByTopic", map_of(bean_of(TopicFilters)), dict
    )


@dataclass(slots=True, kw_only=True)
class LogicQueueMappingItem(Bean):
    """A stretch of a logical queue on one broker; offsets and times are -1 while it is open."""

    bname: str | None = json_field("bname", STR, None)
    end_offset: int = json_field("endOffset", INT, -1)
    gen: int = json_field("gen", INT, 0)
    logic_offset: int = json_field("logicOffset", INT, 0)
    queue_id: int = json_field("queueId", INT, 0)
    start_offset: int = json_field("startOffset", INT, 0)
    time_of_end: int = json_field("timeOfEnd", INT, -1)
    time_of_start: int = json_field("timeOfStart", INT, -1)


@dataclass(slots=True, kw_only=True)
class TopicQueueMappingDetail(Bean):
    """A static topic's queues on one broker.

    Attributes:
        curr_id_map: logical queue → physical queue of this broker.
        hosted_queues: logical queue → its stretches, oldest first.
    """

    bname: str | None = json_field("bname", STR, None)
    curr_id_map: dict[int, int] = json_field("currIdMap", map_of(INT, key=INT), dict)
    dirty: bool = json_field("dirty", BOOL, False)
    epoch: int = json_field("epoch", INT, 0)
    hosted_queues: dict[int, list[LogicQueueMappingItem]] = json_field(
        "hostedQueues", map_of(list_of(bean_of(LogicQueueMappingItem)), key=INT), dict
    )
    scope: str = json_field("scope", STR, "__global__")
    topic: str | None = json_field("topic", STR, None)
    total_queues: int = json_field("totalQueues", INT, 0)


@dataclass(slots=True, kw_only=True)
class TopicQueueMappings(Bean):
    """topicQueueMapping.json: static topics, 5.x."""

    data_version: DataVersion = json_field("dataVersion", bean_of(DataVersion), DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = json_field(
        "topicQueueMappingInfoMap", map_of(bean_of(TopicQueueMappingDetail)), dict
    )


@dataclass(slots=True, kw_only=True)
class MessageRequestMode(Bean):
    """Whether a group pulls a topic or pops it.

    Attributes:
        mode: PULL or POP.
        pop_share_queue_num: queues that one client shares with others; 0 all, -1 unset.
    """

    consumer_group: str | None = json_field("consumerGroup", STR, None)
    mode: str = json_field("mode", STR, "PULL")
    pop_share_queue_num: int = json_field("popShareQueueNum", INT, 0)
    topic: str | None = json_field("topic", STR, None)


@dataclass(slots=True, kw_only=True)
class MessageRequestModes(Bean):
    """messageRequestMode.json: by topic and group, 5.x."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = json_field(
        "messageRequestModeMap", map_of(map_of(bean_of(MessageRequestMode))), dict
    )


@dataclass(slots=True, kw_only=True)
class OrderInfo(Bean):
    """What ordered POP consumption of one queue is waiting for.

    Attributes:
        attempt_id: of the client's try.
        commit_offset_bit: bits of the offsets that are acknowledged.
        invisible_time: ms, or None.
        last_consume_timestamp: ms.
        offset_list: the first offset, then distances to it.
        offset_consumed_count: offset → deliveries.
        offset_next_visible_time: offset → ms.
        pop_time: ms.
    """

    attempt_id: str | None = json_field("a", STR, None)
    commit_offset_bit: int = json_field("cm", INT, 0)
    invisible_time: int | None = json_field("i", INT, None)
    last_consume_timestamp: int = json_field("l", INT, 0)
    offset_list: tuple[int, ...] | None = json_field("o", list_of(INT, tuple), None)
    offset_consumed_count: dict[int, int] | None = json_field("oc", map_of(INT, key=INT), None)
    offset_next_visible_time: dict[int, int] | None = json_field("ot", map_of(INT, key=INT), None)
    pop_time: int = json_field("popTime", INT, 0)


@dataclass(slots=True, kw_only=True)
class ConsumerOrderInfos(Bean):
    """consumerOrderInfo.json: topic@group → queue id → OrderInfo, 5.x."""

    order_info_count: int | None = json_field("orderInfoCount", INT, 0)
    ordered_consumption_level: str | None = json_field("orderedConsumptionLevel", STR, "QUEUE")
    table: dict[str, dict[int, OrderInfo]] = json_field(
        "table", map_of(map_of(bean_of(OrderInfo), key=INT)), dict
    )


@dataclass(slots=True, kw_only=True)
class Metric(Bean):
    """A count and when it last changed, ms."""

    count: int = json_field("count", INT, 0)
    time_stamp: int = json_field("timeStamp", INT, 0)


@dataclass(slots=True, kw_only=True)
class TimerMetrics(Bean):
    """timermetrics: timed messages under way, by topic, 5.x; on one line."""

    PRETTY: ClassVar[bool] = False

    data_version: DataVersion = json_field("dataVersion", bean_of(DataVersion), DataVersion)
    timing_count: dict[str, Metric] = json_field("timingCount", map_of(bean_of(Metric)), dict)


@dataclass(slots=True, kw_only=True)
class TransactionMetrics(Bean):
    """transactionMetrics: half messages, by topic, since 5.1; on one line."""

    PRETTY: ClassVar[bool] = False

    data_version: DataVersion = json_field("dataVersion", bean_of(DataVersion), DataVersion)
    transaction_count: dict[str, Metric] = json_field(
        "transactionCount", map_of(bean_of(Metric)), dict
    )


@dataclass(slots=True, kw_only=True)
class CompactionPositions(Bean):
    """position-checkpoint: topic_queueId → last queue offset that was compacted, since 5.1."""

    queue_offset_map: dict[str, int] = json_field("queueOffsetMap", map_of(INT), dict)

    @classmethod
    def _derived_names(cls) -> tuple[str, ...]:
        return ("empty",)

    def _derived(self) -> dict[str, Any]:
        return {"empty": not self.queue_offset_map}


@dataclass(slots=True, kw_only=True)
class KvConfigs(Bean):
    """kvConfig.json: what a name server keeps, by namespace and key."""

    config_table: dict[str, dict[str, str]] = json_field("configTable", map_of(map_of(STR)), dict)


CONFIG_FILES: Final[dict[str, type[Bean]]] = {
    "topics.json": TopicConfigs,
    "subscriptionGroup.json": SubscriptionGroups,
    "consumerOffset.json": ConsumerOffsets,
    "lmqConsumerOffset.json": LmqConsumerOffsets,
    "delayOffset.json": DelayOffsets,
    "consumerFilter.json": ConsumerFilters,
    "topicQueueMapping.json": TopicQueueMappings,
    "messageRequestMode.json": MessageRequestModes,
    "consumerOrderInfo.json": ConsumerOrderInfos,
    "timermetrics": TimerMetrics,
    "transactionMetrics": TransactionMetrics,
    "position-checkpoint": CompactionPositions,
    "kvConfig.json": KvConfigs,
}
"""The bean in each file, by the file's name; a .bak holds the same."""
