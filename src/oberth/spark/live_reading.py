"""Reads ranges of queues from live brokers into Arrow batches: what a task of a live query does.

An answer to a pull holds records as they were stored, so everything behind the network is what
`oberth.spark.reading` does with files: the same kernels, checks and filters. Tags and SQL are asked
of the broker as well, which may only leave out what would be left out here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oberth.client.blocking_face import LOOP
from oberth.client.instance import ClientInstance
from oberth.client.subscriptions import TAG_SEPARATOR, MessageSelector
from oberth.formats.names import SCHEDULE_TOPIC
from oberth.kernels.arguments import ScanEnd
from oberth.kernels.columns import TopicTable
from oberth.kernels.scan import scan
from oberth.remoting.bodies.base import MessageQueue
from oberth.spark.batches import Records
from oberth.spark.connection import Connection
from oberth.spark.live_plan import LiveTopics
from oberth.spark.live_pull import Pulled, QueuePuller
from oberth.spark.plan import Piece, QueueRange
from oberth.spark.reading import BATCH_ROWS_MAX, PieceReader, ReadSettings

TAGS_MAX: Final = 64
"""Tags that a broker is asked for at most; with more of them everything is read."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How a task pulls.

    Attributes:
        connection: how to reach the brokers.
        group: on behalf of which consumer group.
        batch: messages that one request asks for.
        requests: requests on their way at once.
    """

    connection: Connection
    group: str
    batch: int
    requests: int


class LivePieceReader(PieceReader):
    """Reads ranges of queues from live brokers; the client lives as long as one ``read``."""

    def __init__(
        self,
        brokers: Mapping[int, LiveTopics],
        settings: ReadSettings,
        schema: pa.Schema,
        pulls: PullSettings,
    ) -> None:
        super().__init__({}, settings, schema)
        self._brokers = brokers
        self._pulls = pulls
        self._instance: ClientInstance | None = None

    def read(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of the pieces, in their order.

        Raises:
            DataLossError: with failOnDataLoss, something is damaged or gone.
            RemotingError: a broker does not answer.
            MQBrokerError: a broker refuses.
        """
        if not pieces:
            return
        config = self._pulls.connection.client_config()
        instance = LOOP.call(lambda: ClientInstance.acquire(config))
        self._instance = instance
        try:
            yield from super().read(pieces)
        finally:
            self._instance = None
            LOOP.call(instance.release)

    def _queue(self, piece: QueueRange, later: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        broker = self._brokers[piece.store]
        is_batch = piece.topic in broker.batch
        assert self._instance is not None
        puller = QueuePuller(
            self._instance,
            MessageQueue(topic=piece.topic, broker_name=broker.broker, queue_id=piece.queue),
            self._pulls.group,
            None if is_batch else self._selector(piece.topic),
            self._pulls.batch,
            self._pulls.requests,
            is_batch,
            self._pulls.connection.timeout_ms / 1000,
            self._pulls.connection.read_timeout_ms,
        )
        blocks = _Blocks(puller.pull(piece.start, piece.end), self._settings.batch_bytes)
        try:
            while block := LOOP.call(blocks.next):
                yield from self._block(broker, piece, block, is_batch)
        finally:
            LOOP.call(blocks.close)

    def _selector(self, topic: str) -> MessageSelector | None:
        """What the broker is asked to leave out: nothing that would be taken here."""
        settings = self._settings
        tags = settings.tags or tuple(sorted(settings.predicate.tags or ()))
        if tags and topic != SCHEDULE_TOPIC:  # whose codes are due times
            plain = [tag for tag in tags if tag and tag == tag.strip() and tag.isprintable()]
            if len(plain) == len(tags) <= TAGS_MAX and not any(
                TAG_SEPARATOR in tag or "*" in tag for tag in tags
            ):
                return MessageSelector.by_tag(f" {TAG_SEPARATOR} ".join(tags))
        if settings.sql:
            return MessageSelector.by_sql(settings.sql)
        return None

    def _block(
        self, broker: LiveTopics, piece: QueueRange, block: list[Pulled], is_batch: bool
    ) -> Iterator[pa.RecordBatch]:
        """The rows of pulls that follow each other."""
        run: list[Pulled] = []
        for pulled in block:
            if pulled.lost:
                yield from self._run(broker, piece, run, is_batch)
                run = []
                self._lost_offsets(broker, piece, pulled.first, pulled.next, pulled.lost)
                continue
            if run and (pulled.delta, pulled.filtered) != (run[0].delta, run[0].filtered):
                yield from self._run(broker, piece, run, is_batch)
                run = []
            run.append(pulled)
        yield from self._run(broker, piece, run, is_batch)

    def _run(
        self, broker: LiveTopics, piece: QueueRange, run: list[Pulled], is_batch: bool
    ) -> Iterator[pa.RecordBatch]:
        """The rows of pulls of one kind."""
        if not run:
            return
        expected, last = run[0].first, run[-1].next
        seen = expected - 1  # the offset of the last row
        complete = not (run[0].filtered or is_batch or piece.topic in broker.compacted)
        data = memoryview(b"".join([pulled.records for pulled in run]))
        at = 0
        while at < len(data):
            self._columns.clear()
            topics = TopicTable()
            ended = scan(data, self._columns, topics, start=at, crc=self._crc, own_position=False)
            at = ended.position
            count = self._columns.count
            if count:
                columns = {name: self._columns.array(name).copy() for name in self._names}
                columns["commit_log_offset"] = columns["stored_offset"]
                records = Records(data, columns, count, topics.names, broker.broker)
                records = self._of_range(records, piece, seen, last, run[0].delta, is_batch)
                offsets = _offsets(records)
                if complete:
                    expected = self._tell_gaps(broker, piece, offsets, expected)
                if len(offsets):
                    seen = int(offsets[-1])
                self.report.records += records.count
                if records.count:
                    limits = {(piece.topic, piece.queue): (piece.start, piece.end)}
                    yield from self._filtered_rows(broker, records, limits if is_batch else None)
            if ended.end not in (ScanEnd.STOP, ScanEnd.FULL):
                self._lost_offsets(
                    broker, piece, expected, last, f"an answer is no record ({ended.end.name})"
                )
                return
        if complete and expected < last:
            self._lost_offsets(broker, piece, expected, last, "the broker leaves them out")

    def _of_range(
        self,
        records: Records,
        piece: QueueRange,
        seen: int,
        last: int,
        delta: int,
        is_batch: bool,
    ) -> Records:
        """The records after an offset and before another, under the names they are read by.

        What a broker leaves out makes its answers reach into the next one's range; those records
        come a second time.
        """
        columns = records.columns
        if delta or (columns["queue_id"] != piece.queue).any():
            # A queue that was moved here from elsewhere (5.x, static topics).
            records.topic, records.queue = piece.topic, piece.queue
            records.offsets = columns["queue_offset"] + delta
        if is_batch:
            return records
        offsets = _offsets(records)
        befores = np.concatenate(([seen], np.maximum.accumulate(offsets)[:-1]))
        keep = (offsets > np.maximum(befores, seen)) & (offsets < last)
        return records if keep.all() else records.take(np.flatnonzero(keep))

    def _tell_gaps(self, broker: LiveTopics, piece: QueueRange, offsets: Any, expected: int) -> int:
        """Reports offsets that are missing between others; gives the next one expected."""
        if len(offsets) == 0:
            return expected
        befores = np.concatenate(([expected - 1], offsets[:-1]))
        for number in np.flatnonzero(offsets != befores + 1).tolist():
            first, following = int(befores[number]) + 1, int(offsets[number])
            self._lost_offsets(broker, piece, first, following, "the broker leaves them out")
        return int(offsets[-1]) + 1


def _offsets(records: Records) -> Any:
    return records.columns["queue_offset"] if records.offsets is None else records.offsets


class _Blocks:
    """Joins pulls to blocks of about as many bytes as a batch has; lives on the client's loop."""

    def __init__(self, pulls: AsyncIterator[Pulled], size: int) -> None:
        self._pulls = pulls
        self._size = size

    async def next(self) -> list[Pulled]:
        """The next pulls; none when there are no more."""
        block: list[Pulled] = []
        size = count = 0
        async for pulled in self._pulls:
            block.append(pulled)
            size += len(pulled.records)
            count += pulled.next - pulled.first
            if size >= self._size or (count >= BATCH_ROWS_MAX and size):
                break
        return block

    async def close(self) -> None:
        """Ends what is on its way."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._pulls.aclose()  # type: ignore[attr-defined]
