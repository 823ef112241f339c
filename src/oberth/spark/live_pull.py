"""Pulls a range of a queue from a live broker, several requests at a time, answers in order.

A range is cut into chunks of about CHUNK_BYTES; each is pulled from its beginning to its end, and
several chunks are on their way at once, because a broker gives few messages in one answer (Apache's
32 of those in memory, 8 of others). How many messages a chunk has is learnt from the first ones.

What the broker's master says is gone is part of the answer, as a `Pulled` with a reason; what it
does not answer is asked again, of a slave too, until the option ``rocketmq.read.timeout`` is over.
What a slave lacks is not gone: the master is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from oberth.client.instance import ClientInstance
from oberth.client.pulling import (
    SUBSCRIPTION_FLAG,
    PullStatus,
    PullTemplate,
    RawPull,
    pull_raw,
)
from oberth.client.subscriptions import MessageSelector, build_subscription_data
from oberth.errors import MQBrokerError, MQClientError, RemotingError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import ALL_TAGS
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.code import ResponseCode
from oberth.spark.connection import DEFAULT_READ_TIMEOUT_MS, Patience, may_come_back

_LOG: Final = logging.getLogger(__name__)

CHUNK_BYTES: Final = 512 << 10
"""Bytes of records that one chunk is meant to have, and how often that a chunk ends early."""
CHUNK_MESSAGES_MAX: Final = 4_096
PROBE_MESSAGES: Final = 32
_OVERFULL: Final = 4
_PAUSE_S: Final = 0.1
"""The pauses between two attempts."""
_PAUSE_MAX_S: Final = 1.0
_SHORT_PATIENCE_MS: Final = 3_000
"""How long an end that the master once told may be out of its sight, while it starts again."""

_REMOVING: Final = "MESSAGE_WAS_REMOVING"
_RESET: Final = "OFFSET_RESET"
_RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY, ResponseCode.TOPIC_NOT_EXIST,
    }
)  # fmt: skip
_FILTER_REFUSED: Final = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED}
)


@dataclass(slots=True)
class Pulled:
    """What one pull gave.

    Attributes:
        first, next: the offsets that it covers, the second excluded.
        records: as stored; may begin before ``first`` and end behind ``next``.
        delta: what is added to the queue offsets in the records.
        lost: why nothing is there, or "".
        filtered: whether the broker left messages out.
    """

    first: int
    next: int
    records: bytes = b""
    delta: int = 0
    lost: str = ""
    filtered: bool = False


@dataclass(slots=True)
class QueuePuller:
    """Pulls from one queue.

    Attributes:
        instance: the client.
        queue: where from.
        group: on behalf of which consumer group.
        filter: what the broker is asked to leave out; None: nothing.
        batch: messages that one request asks for.
        requests: chunks on their way at once.
        sequential: whether offsets may be cut anywhere: not where one record has several.
        timeout_s: of one request.
        patience_ms: how long the broker may fail to answer.
    """

    instance: ClientInstance
    queue: MessageQueue
    group: str
    filter: MessageSelector | None
    batch: int
    requests: int
    sequential: bool
    timeout_s: float
    patience_ms: int = DEFAULT_READ_TIMEOUT_MS
    _broker_id: int = MASTER_ID
    _slave_lacked: bool = False  # then a master that sends its readers to a slave is not followed

    async def pull(self, start: int, end: int) -> AsyncIterator[Pulled]:
        """The messages of [start, end), in order and without gaps: what is gone is told.

        Raises:
            RemotingError, MQClientError: the broker did not answer for ``patience_ms``.
            MQBrokerError: it refuses.
        """
        at = cut = start
        step, lanes = PROBE_MESSAGES, 1  # until something is known of the messages' size
        ahead: deque[tuple[int, asyncio.Task[list[Pulled]]]] = deque()
        try:
            while at < end:
                while cut < end and len(ahead) < lanes:
                    last = end if self.sequential else min(cut + step, end)
                    ahead.append((last, asyncio.create_task(self._chunk(cut, last))))
                    cut = last
                last, task = ahead.popleft()
                try:
                    found = await task
                except asyncio.CancelledError:
                    task.cancel()
                    raise
                for pulled in found:
                    yield pulled
                at = found[-1].next
                if at < last:  # it had more bytes than expected
                    ahead.appendleft((last, asyncio.create_task(self._chunk(at, last))))
                step, lanes = _chunk_messages(found), self.requests
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    async def _chunk(self, start: int, end: int) -> list[Pulled]:
        """What lies in [start, end), or a beginning of it when that is a lot."""
        found: list[Pulled] = []
        at, size = start, 0
        while at < end:
            pulled = await self._next(at, end)
            found.append(pulled)
            at = pulled.next
            size += len(pulled.records)
            if size >= CHUNK_BYTES * _OVERFULL or (self.sequential and size >= CHUNK_BYTES):
                break
        return found

    async def _next(self, at: int, end: int) -> Pulled:
        """The next messages from an offset on that is not read yet."""
        pauses = Patience(self.patience_ms, _PAUSE_S, _PAUSE_MAX_S)
        short: Patience | None = None  # since the master says that they are gone
        while True:
            selector = self.filter
            lost: Pulled | None = None  # what is told if the master stays with it
            try:
                answer = await self._ask(at, min(self.batch, end - at), selector)
            except (RemotingError, MQClientError) as error:
                if not may_come_back(error):
                    raise
                problem: Exception = error
                await self._other_broker()
            except MQBrokerError as error:
                if selector is not None and error.response_code in _FILTER_REFUSED:
                    _LOG.info("%s: %s; everything is read", self.queue, error)
                    self.filter = None
                    continue
                if error.response_code not in _RETRIED:
                    raise
                problem = error
                if error.broker_addr != self.instance.master_address(self.queue.broker_name):
                    await self._back_to_master()
                elif error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                    lost = Pulled(at, end, lost="the topic is gone")
            else:
                pulled = _understood(answer, at, end, filtered=selector is not None)
                if pulled is not None and (answer.from_master or not pulled.lost):
                    return pulled
                if answer.from_master:
                    upto = min(answer.next_begin_offset, end)
                    lost = Pulled(
                        at,
                        upto if upto > at else end,
                        lost=f"the queue ends at {answer.max_offset} now",
                    )
                problem = _OnlySlaveError(
                    f"{self.queue}: a slave, which has offsets {answer.min_offset} to "
                    f"{answer.max_offset}, gave nothing from {at} on, and the master did not answer"
                )
                self._slave_lacked |= not answer.from_master
                await self._back_to_master()
            short = (short or self._short_patience()) if lost is not None else None
            if not await (short or pauses).wait():
                if lost is not None:
                    return lost
                raise problem

    def _short_patience(self) -> Patience:
        return Patience(min(_SHORT_PATIENCE_MS, self.patience_ms), _PAUSE_S, _PAUSE_MAX_S)

    async def _ask(self, offset: int, count: int, selector: MessageSelector | None) -> RawPull:
        template = PullTemplate(
            self.group,
            self.queue,
            build_subscription_data(self.queue.topic, selector or ALL_TAGS, 0),
            max_msg_nums=count,
            with_subscription=True,
            suspend_timeout_ms=0,
        )
        answer = await pull_raw(
            self.instance,
            template,
            offset,
            sys_flag=SUBSCRIPTION_FLAG,
            broker_id=self._broker_id,
            timeout_s=self.timeout_s,
        )
        if not (self._slave_lacked and answer.from_master):
            self._broker_id = answer.suggested_broker_id
        return answer

    async def _other_broker(self) -> None:
        """After no answer: the next replica of the broker, by the route as it is now."""
        if not await self._look_at_route():
            return
        known = sorted(self.instance.brokers.get(self.queue.broker_name, ()))
        later = [number for number in known if number > self._broker_id]
        self._broker_id = (later or known or [MASTER_ID])[0]

    async def _back_to_master(self) -> None:
        """After a slave's word for what is gone: it may not have it yet, or never have had it."""
        self._broker_id = MASTER_ID
        if self.instance.master_address(self.queue.broker_name) is None:
            await self._look_at_route()

    async def _look_at_route(self) -> bool:
        """Whether a name server answered."""
        try:
            await self.instance.update_route(self.queue.topic)
        except RemotingError:
            return False
        return True


class _OnlySlaveError(RemotingError):
    """A slave lacks what is asked for, which its master may have, and nobody else answers."""


def _understood(answer: RawPull, at: int, end: int, *, filtered: bool) -> Pulled | None:
    """What an answer means; None where it has to be asked again."""
    following = answer.next_begin_offset
    upto = min(following, end)
    if answer.status is PullStatus.FOUND and answer.records:
        if following <= at:
            return None
        return Pulled(at, upto, answer.records, answer.offset_delta, filtered=filtered)
    if answer.remark == _RESET:
        return None
    if at < answer.min_offset:
        start = min(answer.min_offset, end)
        return Pulled(at, start, lost=f"the queue begins at {answer.min_offset}")
    if answer.status is PullStatus.NO_MATCHED_MSG and following > at:
        if answer.remark == _REMOVING or not filtered:
            return Pulled(at, upto, lost="the file was deleted")
        return Pulled(at, upto, filtered=True)
    return None


def _chunk_messages(found: list[Pulled]) -> int:
    """How many messages have about CHUNK_BYTES, if they are like these."""
    size = sum(len(pulled.records) for pulled in found)
    count = sum(pulled.next - pulled.first for pulled in found)
    return min(max(CHUNK_BYTES * count // max(size, 1), 1), CHUNK_MESSAGES_MAX)
