"""How much one queue holds: counted from its units, timed from its first and last record.

Counting reads every unit, some 0.1 us each, and no record but two. A unit counts as a message if it
names a record; what stands in for a message that the CommitLog has lost (RocketMQ's pre-blank, or a
copy of the unit that follows) counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.batch_consume_queue import UNIT_SIZE as BATCH_UNIT_SIZE
from oberth.formats.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.offset_by_time import StoreTime

_UNITS_AT_ONCE: Final = 16384


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """What a queue holds between its first and its last message.

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        is_batch: whether it is a BatchConsumeQueue, whose records hold several messages.
        min_offset: queue offset of the first message; as `MessageStore.min_offset_in_queue`.
        max_offset: queue offset after the last message.
        message_count: messages that can be read.
        missing_count: queue offsets without a message, because the log has lost it.
        record_count: CommitLog records of these messages; fewer than messages in a batch queue.
        record_bytes: size of these records.
        min_commit_log_offset: where the first one starts; -1 without messages.
        max_commit_log_offset: where the last one ends; -1 without messages.
        first_store_timestamp: when the first one was stored, ms; -1 without messages.
        last_store_timestamp: when the last one was stored, ms; -1 without messages.
        file_count: files of the queue.
        file_bytes: their size together; the last one is never full of units.
    """

    topic: str
    queue_id: int
    is_batch: bool
    min_offset: int
    max_offset: int
    message_count: int
    missing_count: int
    record_count: int
    record_bytes: int
    min_commit_log_offset: int
    max_commit_log_offset: int
    first_store_timestamp: int
    last_store_timestamp: int
    file_count: int
    file_bytes: int


@dataclass(slots=True)
class UnitCount:
    """Running sums over the units of a queue, in their order."""

    messages: int = 0
    missing: int = 0
    records: int = 0
    record_bytes: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None

    def add_units(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Counts units of a ConsumeQueue: pieces of whole units that follow each other."""
        before_offset, before_size = -1, 0
        messages = missing = total = 0
        for piece in pieces:
            for offset, size, _ in UNIT.iter_unpack(piece):
                if size <= 0 or (size == PRE_BLANK_SIZE and offset == 0):
                    missing += 1
                    continue
                if offset == before_offset:
                    missing += 1  # the unit before stood in for this message
                    continue
                if self.first is None:
                    self.first = (offset, size)
                before_offset, before_size = offset, size
                messages += 1
                total += size
        if messages:
            self.last = (before_offset, before_size)
        self.messages += messages
        self.records += messages
        self.missing += missing
        self.record_bytes += total

    def add_batch_units(self, pieces: Iterable[bytes | memoryview]) -> None:
        """The same for units of a BatchConsumeQueue."""
        for piece in pieces:
            for offset, size, _, _, _, batch_size, *_ in BATCH_UNIT.iter_unpack(piece):
                if self.first is None:
                    self.first = (offset, size)
                self.last = (offset, size)
                self.messages += batch_size
                self.records += 1
                self.record_bytes += size


def queue_statistics(
    queue: ConsumeQueue | BatchConsumeQueue, store_time: StoreTime
) -> QueueStatistics:
    """Counts a queue of an open store; ``store_time`` looks up when a record was stored."""
    count = UnitCount()
    low, high = queue.min_offset, queue.max_offset
    if isinstance(queue, BatchConsumeQueue):
        count.add_batch_units(_batch_pieces(queue, low, high))
        missing = max(high - max(low, 0) - count.messages, 0)
    else:
        count.add_units(_pieces(queue, low, high))
        missing = count.missing
    starts = queue.stream.segment_starts()
    return QueueStatistics(
        queue.topic,
        queue.queue_id,
        isinstance(queue, BatchConsumeQueue),
        low,
        high,
        count.messages,
        missing,
        count.records,
        count.record_bytes,
        -1 if count.first is None else count.first[0],
        -1 if count.last is None else sum(count.last),
        -1 if count.first is None else store_time(*count.first),
        -1 if count.last is None else store_time(*count.last),
        len(starts),
        len(starts) * queue.stream.file_size,
    )


def _pieces(queue: ConsumeQueue, low: int, high: int) -> Iterable[bytes]:
    while low < high:
        piece = queue.units(low, min(high - low, _UNITS_AT_ONCE))
        if not piece:
            return
        yield piece
        low += len(piece) // UNIT_SIZE


def _batch_pieces(queue: BatchConsumeQueue, low: int, high: int) -> Iterable[bytes]:
    while 0 <= low < high:
        piece = queue.units(low, _UNITS_AT_ONCE)
        if not piece:
            return
        yield piece
        last = BATCH_UNIT.unpack_from(piece, len(piece) - BATCH_UNIT_SIZE)
        low = last[4] + last[5]
