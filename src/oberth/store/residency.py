"""Residency: what of queues and of the log is in memory, and threads that bring in what is not.

Whoever must not wait for a disk asks here first. The system tells (`Mapping.is_resident`); asking
costs more than a read, so what it said of a block of units counts for a second.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import sub
from typing import Final, NamedTuple

from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.consume_queue import UNIT, UNIT_SIZE
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore

WARM_BYTES: Final = 64 << 20
"""The newest part of the log, which nobody asks the system about: it was just written."""
BROUGHT_IN_UNITS_MAX: Final = 256
BROUGHT_IN_BYTES_MAX: Final = 512 << 10
"""What of a read is looked at, or brought in, before it: as much as one answer mostly holds."""
BLOCK_UNITS: Final = 256
"""Units of a queue that are looked at together, and known of for a while."""
BLOCK_RANGES_MAX: Final = 4
BLOCK_SPAN_MAX: Final = 4 << 20
"""Of a block that is brought in as a whole. Where its records lie in more places, or span more
bytes, each read has its own brought in: what lies between them is of other queues."""
AHEAD_BLOCKS: Final = 16
"""Blocks that are brought in together before a reader comes to them."""
AHEAD_BYTES_MAX: Final = 32 << 20
"""Of the log that is brought in for them, with what lies between their records."""
_BLOCK_KNOWN_S: Final = 1.0
_BLOCKS_MAX: Final = 4096
_GAP_MAX: Final = 64 << 10


class _Block(NamedTuple):
    """What was found out about BLOCK_UNITS units of a queue.

    Attributes:
        is_resident: whether they, and all that they stand for, were in memory. False, too, for a
            block of many bytes, or one that is not in one file.
        is_old: whether the system had to be asked.
        until_s: how long that counts.
    """

    is_resident: bool
    is_old: bool
    until_s: float


@lru_cache(maxsize=BLOCK_UNITS)
def units_layout(count: int) -> struct.Struct:
    """Of so many units, one behind the other."""
    return struct.Struct(UNIT.format[:1] + UNIT.format[1:] * count)


def _places(
    queue: ConsumeQueue | BatchConsumeQueue, offset: int, count: int
) -> tuple[Sequence[int], Sequence[int]]:
    """CommitLog offsets and sizes of some units, of one file."""
    unit = BATCH_UNIT if isinstance(queue, BatchConsumeQueue) else UNIT
    units = queue.units(offset, count, within_segment=True)
    fields = [each[:2] for each in unit.iter_unpack(units)]
    return [each[0] for each in fields], [each[1] for each in fields]


def _blocks_of(start: int, end: int) -> range:
    """The blocks in which units [start, end) lie."""
    return range(start // BLOCK_UNITS, (end - 1) // BLOCK_UNITS + 1)


def _following(block: int) -> int:
    """Which AHEAD_BLOCKS a reader comes to: its own, until half of them are read."""
    return (block + AHEAD_BLOCKS // 2) // AHEAD_BLOCKS


class Residency:
    """What is in memory. Any thread.

    Args:
        log: where records lie.
        queues: that name them.
    """

    def __init__(self, log: CommitLog, queues: ConsumeQueueStore) -> None:
        self._log = log
        self._queues = queues
        # By topic, queue and number.
        self._blocks: dict[tuple[str, int, int], _Block] = {}
        # AHEAD_BLOCKS of them each: until when nobody has to look at them again.
        self._brought_in: dict[tuple[str, int, int], float] = {}

    def is_resident(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> bool:
        """Whether `get_message` waits for no disk, as far as the system tells. Never waits itself.

        Compacted queues are not looked at, and of batch queues only the records.
        """
        looked_at = min(max(max_msg_nums, 1), BROUGHT_IN_UNITS_MAX)
        return self._resident_count(topic, queue_id, offset, looked_at) is None

    def resident_count(self, topic: str, queue_id: int, offset: int, count: int) -> int:
        """Of ``count`` messages, how many of the first can be read without waiting for a disk.

        Not all that are asked for are looked at, so there may be more.
        """
        looked_at = min(count, BROUGHT_IN_UNITS_MAX)
        found = self._resident_count(topic, queue_id, offset, looked_at)
        if found is not None:
            return found
        # What is looked at is as much as is brought in at a time.
        if not self.has_old:
            return count
        queue = self._queues.find(topic, queue_id)
        return count if queue is not None and self._is_young(queue, offset) else looked_at

    @property
    def has_old(self) -> bool:
        """Whether there are records that nobody has written just now."""
        return self._log.min_offset < self._log.max_offset - WARM_BYTES

    def _is_young(self, queue: ConsumeQueue | BatchConsumeQueue, offset: int) -> bool:
        """Whether a message, and with it what follows, was just written."""
        first = queue.unit(offset)
        return first is not None and first.commit_log_offset >= self._log.max_offset - WARM_BYTES

    def _resident_count(self, topic: str, queue_id: int, offset: int, count: int) -> int | None:
        """How many units have what they stand for in memory; None: as many as were looked at."""
        if not self.has_old:
            return None
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        if isinstance(queue, ConsumeQueue) and self._holds(queue, offset, offset + count):
            return None
        return self._seen_count(queue, offset, count)

    def holds(self, queue: ConsumeQueue, start: int, end: int) -> bool:
        """Whether units [start, end), and all that they stand for, were in memory just now."""
        return not self.has_old or self._holds(queue, start, end)

    def _holds(self, queue: ConsumeQueue, start: int, end: int) -> bool:
        return all(self._is_block_resident(queue, block) for block in _blocks_of(start, end))

    def _is_block_resident(self, queue: ConsumeQueue, block: int) -> bool:
        """Whether a block was in memory just now.

        Asking the system at each read would cost more than the read.
        """
        known = self._blocks.get((queue.topic, queue.queue_id, block))
        if known is None or time.monotonic() >= known.until_s:
            known, _ = self._look_at(queue, block, waits=False)
        return known.is_resident

    def _look_at(self, queue: ConsumeQueue, block: int, *, waits: bool) -> tuple[_Block, int]:
        """Ask the system about a block, or have it brought in; and how much of the log it spans."""
        start = max(block * BLOCK_UNITS, queue.min_offset)
        count = min((block + 1) * BLOCK_UNITS, queue.max_offset) - start
        is_resident, is_old, span = False, True, 0
        if count > 0 and (waits or queue.stream.is_resident(start * UNIT_SIZE, count * UNIT_SIZE)):
            units = queue.units(start, count, within_segment=True)
            if len(units) == count * UNIT_SIZE:
                is_resident, is_old, span = self._look_at_records(units, waits=waits)
        known = _Block(is_resident, is_old, time.monotonic() + _BLOCK_KNOWN_S)
        if len(self._blocks) >= _BLOCKS_MAX:
            self._blocks.clear()
        self._blocks[queue.topic, queue.queue_id, block] = known
        return known, span

    def _look_at_records(self, units: bytes, *, waits: bool) -> tuple[bool, bool, int]:
        """Whether the records of a block are in memory, whether they are old, what they span."""
        log = self._log
        fields = units_layout(len(units) // UNIT_SIZE).unpack(units)
        offsets, sizes = fields[::3], fields[1::3]
        if sum(sizes) > BROUGHT_IN_BYTES_MAX:
            return False, True, 0
        if offsets[0] >= log.max_offset - WARM_BYTES:
            return True, False, 0
        ranges = [each[:2] for each in self._old_ranges(offsets, sizes)]
        span = sum(end - start for start, end in ranges)
        waits = waits and len(ranges) <= BLOCK_RANGES_MAX and span <= BLOCK_SPAN_MAX
        for start, end in ranges:
            if not log.is_resident(start, end):
                if not waits:
                    return False, True, span
                log.bring_in(start, end)
        return True, True, span

    def wants_ahead(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether who reads old messages here comes soon to some that may not be in memory."""
        block = offset // BLOCK_UNITS
        known = self._blocks.get((topic, queue_id, block))
        if known is None or not (known.is_resident and known.is_old):
            return False
        until_s = self._brought_in.get((topic, queue_id, _following(block)))
        return until_s is None or time.monotonic() >= until_s

    def bring_in_ahead(self, topic: str, queue_id: int, offset: int) -> None:
        """Has the system read what `wants_ahead` is about, and waits for it, without the GIL."""
        queue = self._queues.find(topic, queue_id)
        if not isinstance(queue, ConsumeQueue):
            return
        block = offset // BLOCK_UNITS
        following = _following(block)
        start = following * AHEAD_BLOCKS
        span = 0
        for number in range(max(start, block + 1), start + AHEAD_BLOCKS):
            known, size = self._look_at(queue, number, waits=True)
            span += size
            if span >= AHEAD_BYTES_MAX or not (known.is_resident and known.is_old):
                break
        if len(self._brought_in) >= _BLOCKS_MAX:
            self._brought_in.clear()
        self._brought_in[topic, queue_id, following] = time.monotonic() + _BLOCK_KNOWN_S

    def _seen_count(
        self, queue: ConsumeQueue | BatchConsumeQueue, offset: int, count: int
    ) -> int | None:
        """`_resident_count` of a queue, as the system sees it now."""
        if isinstance(queue, ConsumeQueue) and not queue.stream.is_resident(
            offset * UNIT_SIZE, count * UNIT_SIZE
        ):
            return 0
        if self._is_young(queue, offset):
            return None
        found = 0
        for start, end, through in self._old_ranges(*_places(queue, offset, count)):
            if not self._log.is_resident(start, end):
                return found
            found = through
        return None

    def bring_in(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> None:
        """Has the system read what `get_message` will, and waits for it, without the GIL."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return
        count = min(max(max_msg_nums, 1), BROUGHT_IN_UNITS_MAX)
        if isinstance(queue, ConsumeQueue):
            blocks = _blocks_of(offset, offset + count)
            if all(self._look_at(queue, block, waits=True)[0].is_resident for block in blocks):
                return
        for start, end, _ in self._old_ranges(*_places(queue, offset, count)):
            self._log.bring_in(start, end)

    def absent_records(self, records: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of some records, CommitLog offset and size each, that are not in memory."""
        log = self._log
        warm_from = log.max_offset - WARM_BYTES
        return [
            (offset, size)
            for offset, size in records
            if offset < warm_from and not log.is_resident(offset, offset + size)
        ]

    def _old_ranges(
        self, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Where in the log the records of some units lie; near ones in one range.

        Yields:
            Start, end, and how many of the units are dealt with then.
        """
        if not offsets:
            return
        warm_from = self._log.max_offset - WARM_BYTES
        file_size = self._log.queue.file_size
        # Nearly all are like this: they follow each other in one segment, and all are old.
        first, last, end = offsets[0], offsets[-1], offsets[-1] + sizes[-1]
        is_one_range = 0 <= first < end <= warm_from and first // file_size == last // file_size
        if is_one_range and min(sizes) > 0 and sum(sizes) <= BROUGHT_IN_BYTES_MAX:
            gaps = list(map(sub, offsets[1:], offsets))
            if not gaps or (min(gaps) > 0 and max(gaps) <= _GAP_MAX):
                yield first, end, len(offsets)
                return
        start = end = -1
        total = through = 0
        for number, (commit_log_offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            if size <= 0 or not 0 <= commit_log_offset < warm_from:
                continue
            if total and total + size > BROUGHT_IN_BYTES_MAX:
                break
            total += size
            if (
                0 <= start <= commit_log_offset <= end + _GAP_MAX
                and commit_log_offset // file_size == start // file_size
            ):
                end = max(end, commit_log_offset + size)
                through = number + 1
                continue
            if end > 0:
                yield start, end, through
            start, end, through = commit_log_offset, commit_log_offset + size, number + 1
        if end > 0:
            yield start, end, through
