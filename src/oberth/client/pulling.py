"""Pulling: one request for messages of a queue, and questions about its offsets.

RocketMQ: PullAPIWrapper, MQAdminImpl.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import Final

from oberth.client.instance import ClientInstance
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.retry import is_route_doubtful
from oberth.errors import MQBrokerError, MQClientError, RemotingError, RemotingTimeoutError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import TAG, SubscriptionData
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

COMMIT_OFFSET_FLAG: Final = 1
SUSPEND_FLAG: Final = 2
SUBSCRIPTION_FLAG: Final = 4
LITE_PULL_FLAG: Final = 16

PULL_TIMEOUT_S: Final = 30.0
BROKER_SUSPEND_MAX_MS: Final = 15_000
LITE_SUSPEND_MAX_MS: Final = 20_000
assert BROKER_SUSPEND_MAX_MS < LITE_SUSPEND_MAX_MS < PULL_TIMEOUT_S * 1000

OFFSET_TIMEOUT_S: Final = 5.0
QUEUE_TIMEOUT_S: Final = 6.0


class PullStatus(enum.Enum):
    """How a pull went."""

    FOUND = ResponseCode.SUCCESS.value
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND.value
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY.value
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED.value


_STATUSES: Final = {status.value: status for status in PullStatus}

_NO_MATCH_AT_MASTER: Final = ("NO_MATCHED_MESSAGE", "MESSAGE_WAS_REMOVING")
"""Why a master has a client pull again at once, as it says in the remark."""


@dataclass(slots=True)
class PullResult:
    """The answer to a pull.

    Attributes:
        next_begin_offset: where the next pull of the queue starts.
        min_offset: first offset of the queue.
        max_offset: its end.
        messages: those that match, in order; may be empty though ``status`` is FOUND.
        suggested_broker_id: the replica to pull from next time.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt] = field(default_factory=list)
    suggested_broker_id: int = MASTER_ID


class PullTemplate:
    """Pulls of one group from one queue: most of their header is always the same."""

    __slots__ = ("_fields", "group", "queue", "subscription")

    def __init__(
        self,
        group: str,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        max_msg_nums: int,
        with_subscription: bool,
        suspend_timeout_ms: int,
    ) -> None:
        self.group = group
        self.queue = queue
        self.subscription = subscription
        self._fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "maxMsgNums": str(max_msg_nums),
            "suspendTimeoutMillis": str(suspend_timeout_ms),
            "subVersion": str(subscription.sub_version),
            "expressionType": subscription.expression_type,
            "bname": queue.broker_name,
        }
        if with_subscription:
            self._fields["subscription"] = subscription.sub_string

    def request(self, offset: int, sys_flag: int, commit_offset: int) -> RemotingCommand:
        """One pull."""
        return RemotingCommand(
            code=RequestCode.PULL_MESSAGE.value,
            ext_fields={
                **self._fields,
                "queueOffset": str(offset),
                "sysFlag": str(sys_flag),
                "commitOffset": str(commit_offset),
            },
        )


@dataclass(slots=True)
class RawPull:
    """The answer to a pull, its records as stored.

    Attributes:
        remark: the store's word for what happened, as ``MESSAGE_WAS_REMOVING``.
        next_begin_offset: where the next pull of the queue starts.
        min_offset: first offset of the queue.
        max_offset: its end.
        offset_delta: what is added to the queue offsets in the records.
        suggested_broker_id: the replica to pull from next time.
        records: one after the other; empty unless ``status`` is FOUND.
        from_master: whether the broker's master answered, by the route as it was when it was asked;
            what a slave says of the queue's begin and end holds for the slave alone.
    """

    status: PullStatus
    remark: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int
    suggested_broker_id: int
    records: bytes
    from_master: bool


async def pull_raw(
    instance: ClientInstance,
    template: PullTemplate,
    offset: int,
    *,
    sys_flag: int,
    commit_offset: int = 0,
    broker_id: int = MASTER_ID,
    timeout_s: float = PULL_TIMEOUT_S,
) -> RawPull:
    """Ask for messages from an offset on, and leave them as they were stored.

    Raises:
        MQBrokerError: any code but found, not found, retry or moved.
        RemotingError: no connection or no answer.
    """
    queue = template.queue
    addr = instance.broker_address(queue.broker_name, broker_id)
    if addr is None:
        addr = await instance.require_address(queue, broker_id)
    asks_master = addr == instance.master_address(queue.broker_name)
    if sys_flag & COMMIT_OFFSET_FLAG and not asks_master:
        sys_flag &= ~COMMIT_OFFSET_FLAG  # slaves keep no offsets
    try:
        response = await instance.invoke(
            addr, template.request(offset, sys_flag, commit_offset), timeout_s
        )
        status = _STATUSES.get(response.code)
        if status is None:
            raise MQBrokerError(response.code, response.remark or "", addr)
    except (MQBrokerError, RemotingError) as error:
        if is_route_doubtful(error):
            instance.doubt_route(queue.topic)
        raise
    if (
        status is PullStatus.NO_MATCHED_MSG
        and response.remark not in _NO_MATCH_AT_MASTER
        and addr == instance.master_address(queue.broker_name)
    ):
        # It has become a slave, has no more messages, and sends its readers to the new master.
        instance.doubt_route(queue.topic)
    header = response.header(PullMessageResponseHeader)
    return RawPull(
        status,
        response.remark or "",
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.offset_delta or 0,
        header.suggest_which_broker_id,
        response.body_bytes() if status is PullStatus.FOUND else b"",
        asks_master,
    )


async def pull(
    instance: ClientInstance,
    template: PullTemplate,
    offset: int,
    *,
    sys_flag: int,
    commit_offset: int = 0,
    broker_id: int = MASTER_ID,
    timeout_s: float = PULL_TIMEOUT_S,
) -> PullResult:
    """Ask for messages from an offset on.

    Raises:
        MQBrokerError: any code but found, not found, retry or moved.
        RemotingError: no connection or no answer.
        RecordError: the answer holds no messages.
    """
    raw = await pull_raw(
        instance, template, offset, sys_flag=sys_flag, commit_offset=commit_offset,
        broker_id=broker_id, timeout_s=timeout_s,
    )  # fmt: skip
    messages: list[MessageExt] = []
    if raw.status is PullStatus.FOUND:
        messages = decode_messages(raw.records, template.queue.broker_name)
        subscription = template.subscription
        if subscription.tags_set and subscription.expression_type == TAG:
            # The broker compares hashes only.
            wanted = frozenset(subscription.tags_set)
            messages = [message for message in messages if message.tags in wanted]
        queue_id = template.queue.queue_id
        if messages and (raw.offset_delta or messages[0].queue_id != queue_id):
            # Of a static topic, or a light queue: records only know where they lie.
            for message in messages:
                message.queue_offset += raw.offset_delta
                message.queue_id = queue_id
    return PullResult(
        raw.status,
        raw.next_begin_offset,
        raw.min_offset,
        raw.max_offset,
        messages,
        raw.suggested_broker_id,
    )


# Offsets


async def max_offset(
    instance: ClientInstance, queue: MessageQueue, *, is_shown: bool = True
) -> int:
    """The end of a queue.

    Args:
        instance: asks.
        queue: which.
        is_shown: of the messages that consumers are shown; else the offset that the next message
            gets, where the broker tells it apart: messages before it may not be shown yet.
    """
    response = await instance.ask(
        await instance.require_address(queue),
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, committed=is_shown),
        timeout_s=QUEUE_TIMEOUT_S,
    )
    return response.header(GetMaxOffsetResponseHeader).offset


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """The first offset of a queue that can still be read."""
    response = await instance.ask(
        await instance.require_address(queue),
        RequestCode.GET_MIN_OFFSET,
        GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
        timeout_s=QUEUE_TIMEOUT_S,
    )
    return response.header(GetMinOffsetResponseHeader).offset


async def search_offset(
    instance: ClientInstance, queue: MessageQueue, timestamp_ms: int, boundary: str = "LOWER"
) -> int:
    """LOWER: the first offset stored at or after a time; UPPER: the last at or before it."""
    response = await instance.ask(
        await instance.require_address(queue),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type=boundary,
        ),
        timeout_s=QUEUE_TIMEOUT_S,
    )
    return response.header(SearchOffsetResponseHeader).offset


async def earliest_msg_store_time(instance: ClientInstance, queue: MessageQueue) -> int:
    """When the first message of a queue was stored, ms."""
    response = await instance.ask(
        await instance.require_address(queue),
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
        timeout_s=QUEUE_TIMEOUT_S,
    )
    return response.header(GetEarliestMsgStoretimeResponseHeader).timestamp


async def query_consumer_offset(
    instance: ClientInstance, group: str, queue: MessageQueue
) -> int | None:
    """What a group has committed; None: nothing."""
    response = await instance.ask(
        await instance.require_address(queue),
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
        ),
        timeout_s=OFFSET_TIMEOUT_S,
        allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
    )
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return response.header(QueryConsumerOffsetResponseHeader).offset


async def update_consumer_offset(
    instance: ClientInstance, group: str, queue: MessageQueue, offset: int
) -> None:
    """Commit an offset.

    A group's first one in a topic of a broker goes alone. Apache's broker makes the group's table
    for each of several that come side by side, and keeps the last one's table: it answered all of
    them, and had lost some. Those that wait for it have no longer than it has.

    Raises:
        RemotingTimeoutError: no answer in time, to this one or to the first.
    """
    if offset < 0:
        raise MQClientError(f"offset {offset} of {queue} is below 0")
    addr = await instance.require_address(queue)
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )

    async def commit() -> None:
        await instance.ask(
            addr, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_s=OFFSET_TIMEOUT_S
        )

    key = group, queue.topic, queue.broker_name
    first = instance.first_commits.setdefault(key, asyncio.Lock())
    if first is not None:
        try:
            async with asyncio.timeout(OFFSET_TIMEOUT_S), first:
                if instance.first_commits[key] is not None:
                    await commit()
                    instance.first_commits[key] = None
                    return
        except RemotingTimeoutError:
            raise
        except TimeoutError:
            raise RemotingTimeoutError(f"{addr} answers no first offset of {group}") from None
    await commit()
