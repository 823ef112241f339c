"""Which queue offset belongs to a time: RocketMQ's rules.

`offset_at_boundary` is that of 5.1.1 and later (LOWER, UPPER), `nearest_offset` that of 4.x, which
chooses the file by its modification time and then takes the nearest message. Both halve over one
file's units; units of records that the CommitLog has lost are skipped. Neither clamps its result
into the queue. RocketMQ: ConsumeQueue.getOffsetInQueueByTime, binarySearchInQueueByTime.

`batch_offset_at_boundary` is the rule of batch queues, where the answer is a whole batch. RocketMQ:
BatchConsumeQueue.getOffsetInQueueByTime, binarySearchRight, with searchBcqByCacheEnable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from oberth.formats.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE

if TYPE_CHECKING:
    from oberth.formats.batch_consume_queue import BatchConsumeQueueUnit
    from oberth.store.tail_stream import TailStream

StoreTime: TypeAlias = Callable[[int, int], int]
"""(CommitLog offset, record size) -> the record's store time in ms, -1 if it is not in the log."""


class Units(Protocol):
    """What is asked of a ConsumeQueue."""

    @property
    def stream(self) -> TailStream:
        """The files."""

    @property
    def units_per_file(self) -> int:
        """How many fit."""

    @property
    def min_offset(self) -> int:
        """The first queue offset."""

    @property
    def max_offset(self) -> int:
        """The one after the last."""


class _File:
    """The units of one file, as queue offsets [first, last] of those that can be compared."""

    def __init__(
        self, queue: Units, start: int, store_time: StoreTime, log_min_offset: int
    ) -> None:
        self.queue = queue
        self.store_time = store_time
        self.log_min_offset = log_min_offset
        self.start = start // UNIT_SIZE
        self.first = max(self.start, queue.min_offset)
        self.last = min(self.start + queue.units_per_file, queue.max_offset) - 1

    def unit(self, number: int) -> tuple[int, int, int] | None:
        """A unit; None where it is filler or gone."""
        data = self.queue.stream.read(number * UNIT_SIZE, UNIT_SIZE)
        if len(data) < UNIT_SIZE or data == PRE_BLANK:
            return None
        return UNIT.unpack(data)

    def time(self, number: int) -> int:
        """Store time of the message at a queue offset; -1 where it cannot be had."""
        unit = self.unit(number)
        return -1 if unit is None else self.store_time(unit[0], unit[1])

    def is_expired(self, number: int) -> bool:
        """Whether the CommitLog no longer has the record, or there never was one."""
        unit = self.unit(number)
        return unit is None or unit[0] < self.log_min_offset


def _files(queue: Units, store_time: StoreTime, log_min_offset: int) -> list[_File]:
    found = [
        _File(queue, start, store_time, log_min_offset) for start in queue.stream.segment_starts()
    ]
    return [file for file in found if file.first <= file.last]


def offset_at_boundary(
    queue: Units,
    timestamp_ms: int,
    store_time: StoreTime,
    log_min_offset: int,
    *,
    upper: bool,
) -> int:
    """5.x: the first message at or after the time (LOWER), or the last at or before it (UPPER)."""
    files = _files(queue, store_time, log_min_offset)
    if not files:
        return 0
    if upper:
        chosen = next((f for f in reversed(files) if f.time(f.first) <= timestamp_ms), None)
        if chosen is None:
            return 0
    else:
        chosen = next((f for f in files if f.time(f.last) >= timestamp_ms), files[-1])
    return _search_boundary(chosen, timestamp_ms, upper=upper)


def _search_boundary(file: _File, timestamp_ms: int, *, upper: bool) -> int:
    low, high = file.first, file.last
    last_time = file.time(high)
    if last_time < timestamp_ms:
        return high if upper else high + 1
    if file.time(low) > timestamp_ms:
        return 0 if upper else low
    left = right = -1
    target = -1
    while low <= high:
        middle = (low + high) // 2
        if file.is_expired(middle):
            low = middle + 1
            left = middle
            continue
        time = file.time(middle)
        if time < 0:
            return 0
        if time == timestamp_ms:
            target = middle
            break
        if time > timestamp_ms:
            high = middle - 1
            right = middle
        else:
            low = middle + 1
            left = middle
    if target < 0:
        return max(left if upper else right, 0)
    step = 1 if upper else -1
    stop = file.last if upper else file.first
    # Of equal times the first, or the last. Halving again instead of walking: a burst may hold a
    # million of them.
    reach = 1
    while target != stop:
        nxt = target + step * min(reach, abs(stop - target))
        if file.time(nxt) == timestamp_ms:
            target = nxt
            reach *= 2
        elif reach == 1:
            break
        else:
            reach = max(1, reach // 4)
    return target


def nearest_offset(
    queue: Units, timestamp_ms: int, store_time: StoreTime, log_min_offset: int
) -> int:
    """4.x: the message nearest to the time in the first file changed at or after it."""
    files = _files(queue, store_time, log_min_offset)
    if not files:
        return 0
    modified = queue.stream.pool.files.modified_time
    chosen = files[-1]
    for file in files:
        try:
            changed_ms = int(modified(queue.stream.path(file.start * UNIT_SIZE)) * 1000)
        except FileNotFoundError:
            changed_ms = timestamp_ms  # it is only in memory yet, or was just deleted
        if changed_ms >= timestamp_ms:
            chosen = file
            break
    return _search_nearest(chosen, timestamp_ms)


def _search_nearest(file: _File, timestamp_ms: int) -> int:
    low, high = file.first, file.last
    left, left_time = -1, -1
    right, right_time = -1, -1
    while low <= high:
        middle = (low + high) // 2
        if file.is_expired(middle):
            low = middle + 1
            left = middle
            continue
        time = file.time(middle)
        if time < 0:
            return 0
        if time == timestamp_ms:
            return middle
        if time > timestamp_ms:
            high = middle - 1
            right, right_time = middle, time
        else:
            low = middle + 1
            left, left_time = middle, time
    if left_time < 0:
        found = right
    elif right_time < 0:
        found = left
    else:
        nearer_left = abs(timestamp_ms - left_time) <= abs(right_time - timestamp_ms)
        found = left if nearer_left else right
    if found < 0:
        # Nothing at all: RocketMQ computes (file start - 1) / 20, truncated towards zero.
        return max(file.start - 1, 0)
    return found


def batch_offset_at_boundary(
    files: Sequence[range],
    unit_at: Callable[[int], BatchConsumeQueueUnit | None],
    timestamp_ms: int,
    *,
    upper: bool,
) -> int:
    """The first queue offset of a batch, before it is clamped; -1 where nothing is found.

    The file is the last whose first batch is not after the time, else the first. Beyond its last
    batch that one is the answer, though for LOWER the next file's first would be. Within the file
    LOWER is the first batch at or after the time; UPPER is a search that finds nothing, or the
    later one, between the times of two batches.

    Args:
        files: the places of each file's units, in order.
        unit_at: the unit at a place; None if there is none.
        timestamp_ms: the time looked for.
        upper: the boundary.
    """

    def time(place: int) -> int:
        unit = unit_at(place)
        return -1 if unit is None else unit.store_timestamp

    files = [file for file in files if file]
    if not files:
        return -1
    chosen = next((file for file in reversed(files) if time(file[0]) <= timestamp_ms), files[0])
    low, high = chosen[0], chosen[-1]
    found = high if timestamp_ms >= time(high) else -1
    while found < 0 and low <= high:
        middle = (low + high) // 2
        stored = time(middle)
        if middle in (low, high):
            if stored >= timestamp_ms:
                found = middle
            elif middle == high:
                break
            else:
                low = middle + 1
        elif upper:
            low, high = (middle, high) if stored <= timestamp_ms else (low, middle - 1)
        else:
            low, high = (middle + 1, high) if stored < timestamp_ms else (low, middle)
    unit = unit_at(found) if found >= 0 else None
    return -1 if unit is None else unit.message_base_offset
