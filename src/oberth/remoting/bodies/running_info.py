"""What clients tell about themselves: answers of 307 and 309."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from oberth.remoting.bodies.base import Body, QueueMap
from oberth.remoting.bodies.clients import SubscriptionData


class ProcessQueueInfo(Body):
    """A queue inside a push consumer; times in ms. ``droped`` is spelt so on the wire."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mi_b: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class PopProcessQueueInfo(Body):
    """A queue inside a POP consumer."""

    droped: bool = False
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


class ConsumeStatus(Body):
    """A topic's rates; times in ms."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")


RUNNING_INFO_SIZE_MAX: Final = 4 << 20
"""Bytes of an answer of 307; the stacks of a thousand threads have 2 MiB."""
RUNNING_INFO_FACTOR: Final = 4
"""So many times as much as a request may it hold: a queue has sixteen values."""


class ConsumerRunningInfo(Body):
    """Answer of 307."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {
        "mqPopTable": PopProcessQueueInfo,
        "mqTable": ProcessQueueInfo,
    }

    jstack: str | None = None
    mq_pop_table: QueueMap[PopProcessQueueInfo] = msgspec.field(default_factory=dict)
    mq_table: QueueMap[ProcessQueueInfo] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def decode_answer(
        cls,
        data: bytes,
        size_max: int = RUNNING_INFO_SIZE_MAX,
        factor: int = RUNNING_INFO_FACTOR,
    ) -> Self:
        """See `Body.decode_answer`."""
        return super().decode_answer(data, size_max, factor)


class CMResult(enum.StrEnum):
    """How a message went that was consumed on demand; in the order of Java's ordinals."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(Body):
    """Answer of 309."""

    auto_commit: bool = True
    consume_result: CMResult = CMResult.CR_SUCCESS
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0
