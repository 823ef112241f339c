"""topics.json: the topics of a broker.

RocketMQ: TopicConfig, TopicConfigSerializeWrapper. The same objects go over the wire.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from oberth.formats.bean import BOOL, INT, STR, Bean, bean_of, json_field, map_of
from oberth.formats.data_version import DataVersion
from oberth.formats.options import Line

DEFAULT_QUEUES: Final = 16


class Permission(enum.IntFlag):
    """What may be done with a topic's queues. RocketMQ: PermName."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_READ: Final = int(Permission.READ)  # a flag as such takes twenty times as long to look for
_WRITE: Final = int(Permission.WRITE)


class TopicFilterType(enum.StrEnum):
    """How the TAGS property is meant; no effect on what is stored."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


QUEUE_TYPE_ATTRIBUTE: Final = "queue.type"
CLEANUP_POLICY_ATTRIBUTE: Final = "cleanup.policy"
MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
SIMPLE_CQ: Final = "SimpleCQ"
BATCH_CQ: Final = "BatchCQ"
CLEANUP_DELETE: Final = "DELETE"
CLEANUP_COMPACTION: Final = "COMPACTION"
PRIORITY_MESSAGES: Final = "PRIORITY"


@dataclass(slots=True, kw_only=True)
class TopicConfig(Bean):
    """One topic of one broker.

    Attributes:
        topic_name: its name.
        read_queue_nums: queues that consumers see.
        write_queue_nums: queues that producers see.
        perm: bits of Permission.
        topic_filter_type: a TopicFilterType.
        topic_sys_flag: 1 unit, 2 unit subscription.
        order: whether the name server must know an order configuration.
        attributes: 5.x: queue.type, cleanup.policy, message.type and others, as text.
    """

    topic_name: str | None = json_field("topicName", STR, None)
    read_queue_nums: int = json_field("readQueueNums", INT, DEFAULT_QUEUES)
    write_queue_nums: int = json_field("writeQueueNums", INT, DEFAULT_QUEUES)
    perm: int = json_field("perm", INT, READ_WRITE)
    topic_filter_type: str = json_field("topicFilterType", STR, TopicFilterType.SINGLE_TAG.value)
    topic_sys_flag: int = json_field("topicSysFlag", INT, 0)
    order: bool = json_field("order", BOOL, False)
    attributes: dict[str, str] = json_field("attributes", map_of(STR), dict, line=Line.V5)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read."""
        return self.perm & _READ != 0

    @property
    def is_writable(self) -> bool:
        """Whether producers may write."""
        return self.perm & _WRITE != 0

    @property
    def is_inherited(self) -> bool:
        """Whether topics may be created after this one's example."""
        return bool(self.perm & Permission.INHERIT)

    @property
    def is_batch_queue(self) -> bool:
        """Whether the topic's queues are BatchConsumeQueues."""
        return self.attributes.get(QUEUE_TYPE_ATTRIBUTE) == BATCH_CQ

    @property
    def is_compacted(self) -> bool:
        """Whether only the newest record of each key is kept."""
        return self.attributes.get(CLEANUP_POLICY_ATTRIBUTE) == CLEANUP_COMPACTION

    @property
    def is_prioritised(self) -> bool:
        """Whether a queue's number is the priority of its messages."""
        return self.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == PRIORITY_MESSAGES


@dataclass(slots=True, kw_only=True)
class TopicConfigs(Bean):
    """The file topics.json."""

    data_version: DataVersion = json_field("dataVersion", bean_of(DataVersion), DataVersion)
    topic_config_table: dict[str, TopicConfig] = json_field(
        "topicConfigTable", map_of(bean_of(TopicConfig)), dict
    )
