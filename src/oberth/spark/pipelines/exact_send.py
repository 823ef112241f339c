"""Numbered messages into queues of live topics, each exactly once, whatever is killed between.

Brokers store a send at least once: an answer may be lost, and who was killed does not know what it
had sent. So each message carries a name of its own in the property PUBLISHED_AS, and before
anything is sent the ends of the queues are noted. Whenever it is not known what has arrived, the
queues are read from there on, and what is found is not sent again. A batch of messages is stored
whole or not at all, so what is missing is missing as a whole.

One process at a time may send messages of one set of names: callers hold a lock. A broker may carry
out a request late: one that was given up, one whose connection broke, one of a process that was
killed. So a queue is looked at only when the time-out of such a request has passed once more, for a
killed process from the next one's beginning on; a broker that carries it out later than that would
have it twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from oberth.client.admin import Admin
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTooMuchRequestError,
)
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode
from oberth.spark.connection import Connection, Patience, may_come_back, wait_for_brokers

PUBLISHED_AS: Final = "PUBLISHED_AS"
"""The property that names a message among those that are sent here."""
PULL_COUNT: Final = 512
BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES: Final = 512
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 1.0
_RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY, ResponseCode.TOPIC_NOT_EXIST,
    }
)  # fmt: skip


class Arrived(NamedTuple):
    """Messages that a queue has.

    Attributes:
        offsets: the queue offset of each by its name.
        already: how many of them were there before this call sent any.
    """

    offsets: dict[str, int]
    already: int


class ExactSender:
    """Sends to queues of live topics. ``async with ExactSender(connection) as sender``.

    Args:
        connection: how to reach the brokers.
        group: the producer group.
        max_message_size: of a body.
        others_ended: whether nothing of what others had sent can still arrive when it begins; else
            it waits for that before it looks.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        max_message_size: int = 4 << 20,
        *,
        others_ended: bool = False,
    ) -> None:
        self._connection = connection
        self._others_ended = others_ended
        config = connection.client_config()
        self.admin = Admin(config=config, timeout_ms=connection.timeout_ms)
        self._producer = Producer(
            group,
            config=config,
            send_msg_timeout_ms=connection.timeout_ms,
            compress_msg_body_over_bytes=1 << 31,
            max_message_size=max_message_size,
        )
        self._timeout_s = connection.timeout_ms / 1000
        self._begun = 0.0

    async def __aenter__(self) -> Self:
        self._begun = time.monotonic()
        await self._producer.start()
        try:
            await self.admin.start()
        except BaseException:
            await self._producer.shutdown()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.admin.shutdown()
        await self._producer.shutdown()

    def _patience(self) -> Patience:
        return Patience(self._connection.delivery_timeout_ms, _PAUSE_S, _PAUSE_MAX_S)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, sorted; none for one that there is not, which stays so.

        Raises:
            MQClientError: a broker that the connection names is away for longer than messages are
                sent again.
        """
        await wait_for_brokers(self.admin, self._connection, self._patience())
        try:
            return sorted(await self.admin.topic_queues(topic))
        except MQBrokerError as error:
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []

    async def ends(self, queues: Sequence[MessageQueue]) -> list[int]:
        """The next offset of each queue; a broker that is away is waited for.

        Of messages that the log has: with ``dispatch=spark`` they are shown later, or much later.
        """
        return list(await asyncio.gather(*(self._end(queue) for queue in queues)))

    async def _end(self, queue: MessageQueue) -> int:
        patience = self._patience()
        while True:
            try:
                return await self.admin.max_offset(queue, is_shown=False)
            except (RemotingError, MQClientError, MQBrokerError) as error:
                if not _is_away(error) or not await patience.wait():
                    raise

    async def send(
        self,
        base: Mapping[MessageQueue, int],
        messages: Mapping[MessageQueue, Sequence[Message]],
        *,
        resumed: bool,
    ) -> dict[MessageQueue, Arrived]:
        """Sends messages, those of one queue in order; returns when every queue has all of its own.

        Args:
            base: the end of each queue before any of them was sent.
            messages: by queue, each with a PUBLISHED_AS of its own.
            resumed: whether some of them may have been sent by another call.

        Raises:
            MQBrokerError, RemotingError, MQClientError: what did not get better within the
                delivery time-out; some may have been sent.
        """
        queues = [queue for queue, own in messages.items() if own]
        found = await asyncio.gather(
            *(self._send_queue(q, base[q], list(messages[q]), resumed) for q in queues)
        )
        return dict(zip(queues, found, strict=True))

    async def _send_queue(
        self, queue: MessageQueue, base: int, messages: list[Message], resumed: bool
    ) -> Arrived:
        wanted = {message.properties[PUBLISHED_AS] for message in messages}
        offsets: dict[str, int] = {}
        if resumed:
            if not self._others_ended:
                late_until = self._begun + self._timeout_s
                await self._let_pass(max(0.0, late_until - time.monotonic()))
            offsets.update(await self._look(queue, base, wanted))
        already = len(offsets)
        patience = self._patience()
        while True:
            missing = [each for each in messages if each.properties[PUBLISHED_AS] not in offsets]
            try:
                for chunk in _chunks(missing):
                    result = await self._producer.send(
                        chunk if len(chunk) > 1 else chunk[0], mq=queue
                    )
                    # Whatever its status says of replicas and disks: the log has it.
                    for number, message in enumerate(chunk):
                        offsets[message.properties[PUBLISHED_AS]] = result.queue_offset + number
                return Arrived(offsets, already)
            except (RemotingError, MQClientError, MQBrokerError) as error:
                if not _is_away(error) or not await patience.wait():
                    raise
                if _may_be_late(error):
                    await self._let_pass(self._timeout_s)
                offsets.update(await self._look(queue, base, wanted))

    async def _let_pass(self, seconds: float) -> None:
        """Waits while a broker may still carry out what was sent before."""
        await asyncio.sleep(seconds)

    async def _look(self, queue: MessageQueue, base: int, wanted: set[str]) -> dict[str, int]:
        """The offsets of named messages that a queue has behind an offset."""
        found: dict[str, int] = {}
        at = base
        end = await self._end(queue)
        patience = self._patience()
        while at < end:
            try:
                pulled = await self.admin.pull(queue, at, max_num=PULL_COUNT)
            except (RemotingError, MQClientError, MQBrokerError) as error:
                if not _is_away(error) or not await patience.wait():
                    raise
                continue
            for message in pulled.messages:
                name = message.properties.get(PUBLISHED_AS)
                if name in wanted:
                    found[name] = message.queue_offset
            at = max(pulled.next_begin_offset, at + len(pulled.messages), at)
            if not pulled.messages and pulled.next_begin_offset <= at:
                # Nothing more is shown yet; what it takes is asked for again.
                if not await patience.wait():
                    if pulled.max_offset >= end:
                        break
                    raise MQClientError(
                        f"{queue}: shows messages up to {pulled.max_offset}, its log has them up "
                        f"to {end}: whether what is to be sent is among those is not known"
                    )
                end = await self._end(queue)
        return found


def _is_away(error: Exception) -> bool:
    """Whether an error may get better by itself."""
    if isinstance(error, MQBrokerError):
        return error.response_code in _RETRIED
    return may_come_back(error)


def _may_be_late(error: Exception) -> bool:
    """Whether a broker may carry out a request that failed so: it may have been written."""
    unsent = RemotingConnectError | RemotingTooMuchRequestError
    return isinstance(error, RemotingError) and not isinstance(error, unsent)


def _chunks(messages: Sequence[Message]) -> list[list[Message]]:
    """What travels together."""
    chunks: list[list[Message]] = []
    room = 0
    for message in messages:
        size = len(message.body) + sum(len(n) + len(v) + 2 for n, v in message.properties.items())
        if not chunks or size > room or len(chunks[-1]) >= BATCH_MESSAGES:
            chunks.append([])
            room = BATCH_BYTES
        chunks[-1].append(message)
        room -= size
    return chunks
