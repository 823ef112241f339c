"""Names of topics and groups: what is allowed, and what RocketMQ itself uses.

    name          characters                  length, UTF-8 bytes
    topic         letters digits % | - _      1 … 127
    retry, DLQ    the same                    1 … 255
    group         the same                    1 … 120 (4.9's client: 255)
    stored topic  the same, + $ @ # = ~ too   1 … 255

A *stored* topic is one that a record of some broker names: RocketMQ makes names that it would not
let a user make (``+`` in a POP retry topic, ``$`` in a light topic). Nothing that passes any of
these checks holds a path separator, a dot or a control character, so it can be a directory's name.

RocketMQ: TopicValidator, MixAll, KeyBuilder.
"""

from __future__ import annotations

import re
from typing import Final

from oberth.errors import IllegalNameError

TOPIC_LENGTH_MAX: Final = 127
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255
STORED_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120
GROUP_LENGTH_MAX_4_9: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
LMQ_QUEUE_ID: Final = 0
LITE_SEPARATOR: Final = "$"
LITE_PREFIX: Final = LMQ_PREFIX + LITE_SEPARATOR
"""Light queues that hold lite topics begin so: %LMQ%$parent$lite."""

AUTO_CREATE_TOPIC_KEY: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_BROKER_MEMBER_GROUP_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"

TRANS_GROUP: Final = "CID_RMQ_SYS_TRANS"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
SCHEDULE_CONSUMER_GROUP: Final = "SCHEDULE_CONSUMER"
FILTERSRV_CONSUMER_GROUP: Final = "FILTERSRV_CONSUMER"
MONITOR_CONSUMER_GROUP: Final = "__MONITOR_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SELF_TEST_PRODUCER_GROUP: Final = "SELF_TEST_P_GROUP"
SELF_TEST_CONSUMER_GROUP: Final = "SELF_TEST_C_GROUP"
ONS_HTTP_PROXY_GROUP: Final = "CID_ONS-HTTP-PROXY"
ONSAPI_PERMISSION_GROUP: Final = "CID_ONSAPI_PERMISSION"
ONSAPI_OWNER_GROUP: Final = "CID_ONSAPI_OWNER"
ONSAPI_PULL_GROUP: Final = "CID_ONSAPI_PULL"

NO_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
    }
)
"""Topics that nobody but the broker may send to."""

SYSTEM_TOPICS: Final = NO_SEND_TOPICS | {AUTO_CREATE_TOPIC_KEY, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that cannot be created or deleted from outside; see `is_system_topic` for the prefix."""

PREDEFINED_GROUPS: Final = frozenset(
    {
        DEFAULT_CONSUMER_GROUP,
        DEFAULT_PRODUCER_GROUP,
        TOOLS_CONSUMER_GROUP,
        SCHEDULE_CONSUMER_GROUP,
        FILTERSRV_CONSUMER_GROUP,
        MONITOR_CONSUMER_GROUP,
        CLIENT_INNER_PRODUCER_GROUP,
        SELF_TEST_PRODUCER_GROUP,
        SELF_TEST_CONSUMER_GROUP,
        ONS_HTTP_PROXY_GROUP,
        ONSAPI_PERMISSION_GROUP,
        ONSAPI_OWNER_GROUP,
        ONSAPI_PULL_GROUP,
        TRANS_GROUP,
    }
)

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_STORED_NAME: Final = re.compile(r"[%|a-zA-Z0-9_+$@#=~-]+")


def check_topic(topic: str) -> str:
    """The topic itself, if a user may name one so.

    Raises:
        IllegalNameError: blank, too long, or with a character that is not allowed.
    """
    longer = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _check(
        "topic", topic, _NAME, RETRY_OR_DLQ_TOPIC_LENGTH_MAX if longer else TOPIC_LENGTH_MAX
    )


def check_group(group: str, *, length_max: int = GROUP_LENGTH_MAX) -> str:
    """The group itself, if a producer or consumer may name one so.

    Raises:
        IllegalNameError: blank, too long, or with a character that is not allowed.
    """
    return _check("group", group, _NAME, length_max)


def check_kept_group(group: str) -> str:
    """The group itself, if offsets of it may be kept: of 4.9's length, or a light group's name.

    Raises:
        IllegalNameError: blank, too long, or with a character that is not allowed.
    """
    if is_lmq(group):
        return _check("group", group, _STORED_NAME, STORED_TOPIC_LENGTH_MAX)
    return check_group(group, length_max=GROUP_LENGTH_MAX_4_9)


def check_stored_topic(topic: str) -> str:
    """The topic itself, if a directory may be named after it.

    Raises:
        IllegalNameError: blank, too long, or with a character that no broker of RocketMQ stores.
    """
    return _check("stored topic", topic, _STORED_NAME, STORED_TOPIC_LENGTH_MAX)


def is_stored_topic(topic: str) -> bool:
    """Whether `check_stored_topic` lets the topic pass."""
    # The pattern is ASCII, so characters are bytes.
    return len(topic) <= STORED_TOPIC_LENGTH_MAX and _STORED_NAME.fullmatch(topic) is not None


def _check(what: str, name: object, allowed: re.Pattern[str], length_max: int) -> str:
    if not isinstance(name, str):
        raise IllegalNameError(f"{what} is {type(name).__name__}; it must be text")
    if not name or name.isspace():
        raise IllegalNameError(f"{what} {name!r} is blank")
    if len(name) > length_max:
        raise IllegalNameError(
            f"{what} {name[:40]!r}… has {len(name)} characters, at most {length_max} are allowed"
        )
    if (match := allowed.match(name)) is None or match.end() != len(name):
        at = 0 if match is None else match.end()
        raise IllegalNameError(
            f"{what} {name!r} has {name[at]!r} at {at}; allowed are {allowed.pattern[1:-2]} only"
        )
    return name


def is_system_topic(topic: str) -> bool:
    """Whether the topic is the broker's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether the group is the broker's own. RocketMQ: MixAll.isSysConsumerGroup."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_lmq(topic: str) -> bool:
    """Whether the name is that of a light message queue."""
    return topic.startswith(LMQ_PREFIX)


def lite_queue(parent: str, lite_topic: str) -> str:
    """The light queue that holds a lite topic. RocketMQ: LiteUtil.toLmqName."""
    return f"{LITE_PREFIX}{parent}{LITE_SEPARATOR}{lite_topic}"


def split_lite_queue(queue: str) -> tuple[str, str] | None:
    """Parent and lite topic of a light queue; None if it holds no lite topic."""
    if not queue.startswith(LITE_PREFIX):
        return None
    parts = queue[len(LITE_PREFIX) :].split(LITE_SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def allows_lmq(topic: str) -> bool:
    """Whether messages of the topic may be dispatched to light message queues too."""
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX))


def retry_topic(group: str) -> str:
    """Where a group's messages wait for their next attempt."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where a group's messages end after the last attempt."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where a cluster's answers to requests go."""
    return cluster + REPLY_TOPIC_SUFFIX


def revive_topic(cluster: str) -> str:
    """Where a cluster's POP check points and acks go."""
    return REVIVE_TOPIC_PREFIX + cluster


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Where POP's messages of a topic wait for a group's next attempt."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"
