"""ConsumeQueue: one queue of one topic, an index into the CommitLog by queue offset.

The unit of queue offset N lies at byte N * 20, always. The front of a queue that does not begin at
its first file's start is filled with (0, 2**31-1, 0). Where RocketMQ would append at the wrong
place because a record is missing in the log, a copy of the following unit, a *stand-in*, takes the
place: its readers get that message there. Ours skip both kinds.

Units appear in the order of the CommitLog, so their offsets only grow; every search relies on it.

Kinder than RocketMQ's ConsumeQueue, with the same files wherever its files are right:

* a gap in the numbers is filled (there: the next unit is appended at the wrong place);
* truncation validates the first unit of a file (there: an empty file keeps one unit of zeros);
* an emptied queue takes records again (there: those before the truncation point are refused);
* a number that restarts, because its topic was deleted and used again, restarts the queue (there:
  all messages below the old number are dropped); one number that makes no sense costs one message.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from oberth.formats.consume_queue import (
    PRE_BLANK,
    UNIT,
    UNIT_SIZE,
    ConsumeQueueUnit,
    is_ext_address,
)
from oberth.formats.consume_queue_ext import ConsumeQueueExtUnit
from oberth.formats.message import FIXED_SIZE_V1, DispatchRequest
from oberth.store.consume_queue_ext import ConsumeQueueExt
from oberth.store.offset_by_time import StoreTime, nearest_offset, offset_at_boundary
from oberth.store.tail_stream import TAIL_SIZE_MAX, FilePool, TailStream

_LOG: Final = logging.getLogger(__name__)


_SCAN_UNITS: Final = 4096
_BLOCK_UNITS: Final = 200
_RUN_SIZE: Final = TAIL_SIZE_MAX // UNIT_SIZE * UNIT_SIZE
# Filler, and what a power cut leaves of a page that was not written.
_ZEROS: Final = bytes(UNIT_SIZE)
_NO_MESSAGE: Final = (PRE_BLANK, _ZEROS)
_pack = UNIT.pack
_unpack_from = UNIT.unpack_from


def _is_valid(units: bytes, at: int) -> bool:
    offset, size, _ = _unpack_from(units, at)
    return bool(offset >= 0 and size > 0)


def _first_message(units: bytes) -> int | None:
    """Which of some units is the first that is a message."""
    if len(units) > UNIT_SIZE:
        count = len(units) // UNIT_SIZE
        if any(units.startswith(nothing) and units == nothing * count for nothing in _NO_MESSAGE):
            return None
    for at in range(0, len(units) - UNIT_SIZE + 1, UNIT_SIZE):
        if not units.startswith(_NO_MESSAGE, at):
            return at // UNIT_SIZE
    return None


class QueueExtent(NamedTuple):
    """What a clean shutdown notes down of a queue, so that the next start need not read it."""

    min_offset: int
    max_offset: int
    max_physic_offset: int


class ConsumeQueue:
    """One queue. `put` comes from one thread at a time; everything else from any."""

    __slots__ = (
        "_conflict",
        "_max_physic_offset",
        "_min_offset",
        "ext",
        "queue_id",
        "stream",
        "topic",
        "units_per_file",
    )

    unit_size: Final = UNIT_SIZE
    is_batch: Final = False

    def __init__(
        self,
        pool: FilePool,
        directory: str,
        topic: str,
        queue_id: int,
        file_size: int,
        *,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        assert file_size % UNIT_SIZE == 0
        self.topic = topic
        self.queue_id = queue_id
        self.stream = TailStream(pool, directory, file_size)
        self.units_per_file = file_size // UNIT_SIZE
        self.ext = ext
        self._min_offset = 0
        self._max_physic_offset: int | None = -1  # None: not looked up yet
        # The last number that made no sense and its unit; a second one that follows it does.
        self._conflict: tuple[int, bytes] | None = None

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id}, {self.min_offset}…{self.max_offset})"

    # Offsets

    @property
    def min_offset(self) -> int:
        """The first queue offset that can be read. RocketMQ: getMinOffsetInQueue."""
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """The next queue offset to be written. RocketMQ: getMaxOffsetInQueue."""
        return self.stream.end // UNIT_SIZE

    @property
    def max_physic_offset(self) -> int:
        """Where the record of the last unit ends in the CommitLog; -1 without units."""
        found = self._max_physic_offset
        if found is None:
            found = self._max_physic_offset = self.last_offset()
        return found

    @property
    def extent(self) -> QueueExtent:
        """What `recover` can take instead of reading the files."""
        return QueueExtent(self._min_offset, self.max_offset, self.max_physic_offset)

    @property
    def kernel_end(self) -> tuple[int, int]:
        """The next ordinal and the last record's end, as kernels.queues.QueueTable keeps them."""
        return self.max_offset, self.max_physic_offset

    def last_offset(self) -> int:
        """max_physic_offset, read from the units. RocketMQ: getLastOffset (of one file only)."""
        number = self._last_message(self.max_offset)
        if number is None:
            return -1
        offset, size, _ = _unpack_from(self.stream.read(number * UNIT_SIZE, UNIT_SIZE))
        end: int = offset + size
        return end

    def roll_next_file(self, queue_offset: int) -> int:
        """The queue offset at which the file after the one of this offset starts."""
        return queue_offset + self.units_per_file - queue_offset % self.units_per_file

    # Writing

    def put(
        self, commit_log_offset: int, record_size: int, tags_code: int, queue_offset: int
    ) -> bool:
        """Adds a message's unit; False if it was there before.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        end_offset = commit_log_offset + record_size
        done = self._max_physic_offset
        if done is None:
            done = self.max_physic_offset
        if end_offset <= done:
            return False
        stream = self.stream
        if queue_offset * UNIT_SIZE != stream.end or stream.end == stream.first_start:
            return self._put_elsewhere(
                queue_offset, _pack(commit_log_offset, record_size, tags_code), end_offset
            )
        stream.make_room()
        with stream.lock:
            stream.append_locked(_pack(commit_log_offset, record_size, tags_code))
            self._max_physic_offset = end_offset
        self._conflict = None
        return True

    def put_request(self, request: DispatchRequest) -> bool:
        """Adds the unit of a dispatched record, and its ext unit where the queue has them."""
        tags_code = request.tags_code
        end_offset = request.commit_log_offset + request.record_size
        if self.ext is not None and end_offset > self.max_physic_offset:
            address = self.ext.put(
                ConsumeQueueExtUnit(tags_code, request.store_timestamp, request.bit_map or b"")
            )
            if address is not None:
                tags_code = address
        return self.put(
            request.commit_log_offset, request.record_size, tags_code, request.queue_offset
        )

    def put_light(self, request: DispatchRequest, queue_offset: int) -> bool:
        """Adds the unit of a record of another topic that names this queue too."""
        return self.put(
            request.commit_log_offset, request.record_size, request.tags_code, queue_offset
        )

    def put_many(self, units: bytes | bytearray | memoryview, first_queue_offset: int) -> int:
        """Adds units of consecutive queue offsets; those that are there are left out.

        Returns:
            How many were added.

        Raises:
            StoreFullError: the disk has no room; a front part may have been added.
        """
        view = memoryview(units)
        added = 0
        stream = self.stream
        done = self._max_physic_offset
        if (
            done is not None
            and UNIT_SIZE <= len(view) <= _RUN_SIZE
            and first_queue_offset * UNIT_SIZE == stream.end > stream.first_start
        ):
            # As below, for what a burst over many queues brings each of them: a few units.
            offset, size, _ = _unpack_from(view)
            if offset + size > done:
                stream.make_room()
                if len(view) > UNIT_SIZE:
                    offset, size, _ = _unpack_from(view, len(view) - UNIT_SIZE)
                with stream.lock:
                    stream.append_locked(view)
                    self._max_physic_offset = offset + size
                self._conflict = None
                return len(view) // UNIT_SIZE
        while len(view):
            built = self._count_built(view)
            view = view[built * UNIT_SIZE :]
            first_queue_offset += built
            stream = self.stream
            if not len(view):
                break
            if first_queue_offset * UNIT_SIZE == stream.end > stream.first_start:
                return added + self._append_run(view)
            # Into an empty queue, or numbers that contradict each other: one by one until it fits.
            offset, size, tags_code = _unpack_from(view)
            added += self.put(offset, size, tags_code, first_queue_offset)
            view = view[UNIT_SIZE:]
            first_queue_offset += 1
        return added

    def _count_built(self, units: memoryview) -> int:
        """How many units at the front `put` would take for built already."""
        done = self.max_physic_offset
        start, stop = 0, len(units) // UNIT_SIZE
        if sum(_unpack_from(units)[:2]) > done:
            return 0
        while start < stop:
            middle = (start + stop) // 2
            if sum(_unpack_from(units, middle * UNIT_SIZE)[:2]) > done:
                stop = middle
            else:
                start = middle + 1
        return start

    def _append_run(self, units: memoryview) -> int:
        stream = self.stream
        for at in range(0, len(units), _RUN_SIZE):
            part = units[at : at + _RUN_SIZE]
            stream.make_room()
            offset, size, _ = _unpack_from(part, len(part) - UNIT_SIZE)
            with stream.lock:
                stream.append_locked(part)
                self._max_physic_offset = offset + size
        self._conflict = None
        return len(units) // UNIT_SIZE

    def _put_elsewhere(self, queue_offset: int, unit: bytes, end_offset: int) -> bool:
        """Puts a unit whose number is not the next one."""
        stream = self.stream
        position = queue_offset * UNIT_SIZE
        if queue_offset < 0:
            _LOG.warning(
                "%s: a record with queue offset %d was refused, no queue can have it",
                self,
                queue_offset,
            )
            return False
        if stream.end == stream.first_start and position != stream.end:
            self.reset()  # a file without units says nothing about where the queue is
        if stream.is_empty:
            if position % stream.file_size:
                stream.start_at(position, PRE_BLANK)
            else:
                with stream.lock:
                    stream.first_start = stream.files_end = position
                stream.set_end(position)
            self._min_offset = queue_offset
        elif position > stream.end:
            gap = queue_offset - self.max_offset
            log_between = end_offset - self.max_physic_offset
            if gap > log_between // FIXED_SIZE_V1:
                # No log of that length holds so many records: the number itself is damaged.
                return self._put_conflicting(queue_offset, unit, end_offset)
            _LOG.warning(
                "%s: %d messages are missing in the log before %d", self, gap, queue_offset
            )
            # Stand-ins, not pre-blanks: RocketMQ's readers take a pre-blank in the middle for a
            # message at offset 0, and leave out all of the log's first segment after it.
            stream.fill(position, unit)
        elif position < stream.end:
            return self._put_conflicting(queue_offset, unit, end_offset)
        stream.make_room()
        with stream.lock:
            stream.append_locked(unit)
            self._max_physic_offset = end_offset
        self._conflict = None
        return True

    def _put_conflicting(self, queue_offset: int, unit: bytes, end_offset: int) -> bool:
        """Puts a unit of a later record whose place is taken, or is too far ahead.

        Either this record's number is damaged, or an earlier one's was, or the numbers began anew
        because the topic was deleted and created again: then the next one follows this one.

        Or an earlier life, whose log ended otherwise, left units from here on: then the record
        before this one, which is later than theirs, was in its place already.
        """
        stream = self.stream
        position = queue_offset * UNIT_SIZE
        before = self._conflict
        follows = before is not None and before[0] + 1 == queue_offset
        if before is not None and follows and self._read(before[0], 1) == before[1]:
            _LOG.warning("%s: the units from %d on are of older records", self, queue_offset)
            stream.truncate(position)
            self._max_physic_offset = None
            self._min_offset = min(self._min_offset, queue_offset)
            stream.erase_behind_end()
            return self._put_elsewhere(queue_offset, unit, end_offset)
        if stream.first_start <= position < stream.end and self._is_free(queue_offset, unit):
            stream.overwrite(position, unit)
            self._min_offset = min(self._min_offset, queue_offset)
            self._max_physic_offset = max(self.max_physic_offset, end_offset)
            self._conflict = None
            return True
        if queue_offset != 0 and not follows:
            _LOG.warning(
                "%s: the record that ends at %d has queue offset %d; expected is %d",
                self,
                end_offset,
                queue_offset,
                self.max_offset,
            )
            self._conflict = (queue_offset, unit)
            return False
        _LOG.warning("%s: the queue offsets of its records start again at %d", self, queue_offset)
        self.reset()
        if before is not None and before[0] + 1 == queue_offset:
            offset, size, tags_code = _unpack_from(before[1])
            self.put(offset, size, tags_code, before[0])
        offset, size, tags_code = _unpack_from(unit)
        return self.put(offset, size, tags_code, queue_offset)

    def _is_free(self, queue_offset: int, unit: bytes) -> bool:
        """Whether the place holds no message, or a unit out of order and hence misplaced."""
        at = max(queue_offset - 1, self.stream.first_start // UNIT_SIZE)
        data = self.stream.read(at * UNIT_SIZE, (queue_offset + 1 - at) * UNIT_SIZE)
        if len(data) < UNIT_SIZE:
            return False
        here = data[-UNIT_SIZE:]
        if here == PRE_BLANK or here == self._read(queue_offset + 1, 1):
            return True
        if at == queue_offset or data[:UNIT_SIZE] == PRE_BLANK:
            return False
        before: int = _unpack_from(data)[0]
        return bool(_unpack_from(here)[0] < before < _unpack_from(unit)[0])

    # Reading

    def units(self, queue_offset: int, max_count: int, *, within_segment: bool = False) -> bytes:
        """Up to ``max_count`` units from a queue offset, as bytes; none below min_offset.

        Args:
            queue_offset: of the first unit.
            max_count: how many units at most.
            within_segment: stop at the end of the file, as RocketMQ's reads do.
        """
        if queue_offset < self._min_offset:
            return b""
        if within_segment:
            max_count = min(max_count, self.roll_next_file(queue_offset) - queue_offset)
        data = self.stream.read(queue_offset * UNIT_SIZE, max_count * UNIT_SIZE)
        spare = len(data) % UNIT_SIZE
        return data[:-spare] if spare else data

    def unit(self, queue_offset: int) -> ConsumeQueueUnit | None:
        """The unit of a queue offset; None where there is none (it may be filler)."""
        data = self.units(queue_offset, 1)
        return ConsumeQueueUnit(*_unpack_from(data)) if data else None

    def ext_unit(self, tags_code: int) -> ConsumeQueueExtUnit | None:
        """The ext unit that a tags code is the address of, or None."""
        if self.ext is None or not is_ext_address(tags_code):
            return None
        return self.ext.get(tags_code)

    def earliest_unit(self) -> ConsumeQueueUnit | None:
        """The first unit that is a message."""
        return self.next_unit(self._min_offset)

    def next_unit(self, queue_offset: int) -> ConsumeQueueUnit | None:
        """The first unit at or behind a queue offset that is a message."""
        number = self._next_message(max(queue_offset, self._min_offset), self.max_offset)
        return None if number is None else self.unit(number)

    def latest_unit(self) -> ConsumeQueueUnit | None:
        """The last unit that is a message."""
        number = self._last_message(self.max_offset)
        return None if number is None else self.unit(number)

    # Searching. What is no message has no CommitLog offset; it counts as the next message there is.

    def _read(self, number: int, count: int) -> bytes:
        return self.stream.read(number * UNIT_SIZE, count * UNIT_SIZE)

    def _commit_log_offset(self, number: int) -> int:
        offset: int = _unpack_from(self._read(number, 1))[0]
        return offset

    def _next_message(self, number: int, stop: int) -> int | None:
        """The first unit within [number, stop) that is a message."""
        count = 1
        while number < stop:
            data = self._read(number, min(stop - number, count))
            if not data:
                return None
            found = _first_message(data)
            if found is not None:
                return number + found
            number += len(data) // UNIT_SIZE
            count = _SCAN_UNITS
        return None

    def _last_message(self, stop: int) -> int | None:
        """The last unit before ``stop`` that is a message."""
        first = self.stream.first_start // UNIT_SIZE
        count = 1
        while stop > first:
            start = max(first, stop - count)
            data = self._read(start, stop - start)
            if _first_message(data) is not None:
                for at in range(len(data) - UNIT_SIZE, -1, -UNIT_SIZE):
                    if not data.startswith(_NO_MESSAGE, at):
                        return start + at // UNIT_SIZE
            stop = start
            count = _SCAN_UNITS
        return None

    def first_at_or_behind(self, commit_log_offset: int, start: int, stop: int) -> int:
        """The first unit in [start, stop) whose record starts there or after, else ``stop``.

        It may be a filler before that unit.
        """
        while start < stop:
            middle = (start + stop) // 2
            message = self._next_message(middle, stop)
            if message is None:
                stop = middle
                continue
            if self._commit_log_offset(message) >= commit_log_offset:
                stop = middle
            else:
                start = message + 1
        return stop

    # By time

    def offset_by_time(
        self,
        timestamp_ms: int,
        store_time: StoreTime,
        log_min_offset: int,
        *,
        upper: bool = False,
        by_file_time: bool = False,
    ) -> int:
        """The queue offset for a time, as RocketMQ's getOffsetInQueueByTime before it is clamped.

        Args:
            timestamp_ms: the time looked for.
            store_time: looks a record's store time up.
            log_min_offset: where the CommitLog starts; units before it are skipped.
            upper: the last message at or before the time, not the first at or after it.
            by_file_time: 4.x's rule: the file by its modification time, then the nearest message.
        """
        if by_file_time:
            return nearest_offset(self, timestamp_ms, store_time, log_min_offset)
        return offset_at_boundary(self, timestamp_ms, store_time, log_min_offset, upper=upper)

    # Cleaning

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Moves min_offset to the first message that the CommitLog still has.

        As in RocketMQ 5.x only the first file is searched, unless the whole queue is expired: where
        its units are all expired but the file is not deleted yet, min_offset stays.
        """
        stop = self.max_offset
        start = max(self._min_offset, self.stream.first_start // UNIT_SIZE)
        message = self._next_message(start, stop)
        if message is None or self._commit_log_offset(message) < log_min_offset:
            last = self._last_message(stop)
            if last is None or self._commit_log_offset(last) < log_min_offset:
                self._min_offset = stop
                return
            file_end = min(self.roll_next_file(self.stream.first_start // UNIT_SIZE), stop)
            found = self.first_at_or_behind(log_min_offset, start, file_end)
            message = self._next_message(found, stop) if found < file_end else message
        assert message is not None
        self._min_offset = message
        if self.ext is not None:
            tags_code = _unpack_from(self._read(message, 1))[2]
            if is_ext_address(tags_code):
                self.ext.truncate_by_min(tags_code)

    def readable_from(self, log_min_offset: int) -> int:
        """What min_offset would be if the CommitLog began there."""
        start, stop = self._min_offset, self.max_offset
        message = self._next_message(self.first_at_or_behind(log_min_offset, start, stop), stop)
        return stop if message is None else message

    def log_offset_behind(self, queue_offset: int) -> int:
        """Where in the CommitLog everything ends that this queue holds below a queue offset."""
        number = self._last_message(min(queue_offset, self.max_offset))
        if number is None:
            return 0
        offset, size, _ = _unpack_from(self._read(number, 1))
        end: int = offset + size
        return end

    def delete_expired(self, log_min_offset: int) -> int:
        """Deletes files, never the last, whose last record is gone from the CommitLog.

        Returns how many were deleted; `correct_min_offset` is to follow.
        """
        stream = self.stream
        deleted = 0
        while len(stream.segment_starts()) > 1:
            stop = stream.first_start // UNIT_SIZE + self.units_per_file
            number = self._last_message(stop)
            if number is not None and self._commit_log_offset(number) >= log_min_offset:
                break
            stream.remove_first()
            deleted += 1
        self._min_offset = max(self._min_offset, stream.first_start // UNIT_SIZE)
        return deleted

    # Recovery

    def load(self) -> str | None:
        """Finds the files. Returns what is wrong with their row, see TailStream.load.

        Raises:
            StoreCorruptError: a file of another size than configured.
        """
        trouble = self.stream.load()
        if self.ext is not None:
            trouble = self.ext.load() or trouble
        self._min_offset = self.stream.first_start // UNIT_SIZE
        self._max_physic_offset = None
        return trouble

    def recover(self, extent: QueueExtent | None = None) -> None:
        """Finds where the queue ends.

        With the extent that a clean shutdown noted down, and files that fit it, nothing is read.
        Otherwise the end is where valid units end in the last file that has any; it is found by
        halving, because a file is valid from its front on. Files past the end are deleted, as by
        RocketMQ; what lies past the end within its file stays.
        """
        stream = self.stream
        self._conflict = None
        if stream.is_empty:
            self._min_offset, self._max_physic_offset = self.max_offset, -1
            return
        if extent is not None and self._fits(extent):
            stream.set_end(extent.max_offset * UNIT_SIZE)
            self._min_offset = extent.min_offset
            self._max_physic_offset = extent.max_physic_offset
            return
        end = self._find_end()
        if stream.pool.writable:
            stream.remove_files(start for start in stream.segment_starts() if start > end)
        stream.set_end(end)
        self._min_offset = stream.first_start // UNIT_SIZE
        self._max_physic_offset = None
        if self.ext is not None:
            self.ext.recover(self._last_ext_address())

    def _fits(self, extent: QueueExtent) -> bool:
        stream = self.stream
        return (
            stream.first_start <= extent.min_offset * UNIT_SIZE <= extent.max_offset * UNIT_SIZE
            and stream.files_end - stream.file_size
            <= extent.max_offset * UNIT_SIZE
            <= stream.files_end
            and self.ext is None
        )

    def _find_end(self) -> int:
        stream = self.stream
        start = stream.files_end - stream.file_size
        while True:
            end = self._end_of_valid(start // UNIT_SIZE) * UNIT_SIZE
            if end > start or start == stream.first_start:
                return end
            start -= stream.file_size

    def _end_of_valid(self, first: int) -> int:
        """Where the valid units end that begin at ``first``, at the latest at the file's end."""
        start, stop = first, self.roll_next_file(first)
        # Most queues are short: their end is found in the first block, with one read.
        block = self._read(start, min(stop - start, _BLOCK_UNITS))
        if not block:
            return start
        block_end = start + len(block) // UNIT_SIZE
        if _is_valid(block, len(block) - UNIT_SIZE):
            start = block_end
        else:
            stop = block_end - 1
            while start < stop:
                middle = (start + stop) // 2
                if _is_valid(block, (middle - first) * UNIT_SIZE):
                    start = middle + 1
                else:
                    stop = middle
            return start
        while start < stop:
            middle = (start + stop) // 2
            data = self._read(middle, 1)
            if data and _is_valid(data, 0):
                start = middle + 1
            else:
                stop = middle
        return start

    def _last_ext_address(self) -> int | None:
        """The highest ext address in the units."""
        stop = self.max_offset
        first = self.stream.first_start // UNIT_SIZE
        while stop > first:
            start = max(first, stop - _SCAN_UNITS)
            data = self._read(start, stop - start)
            for at in range(len(data) - UNIT_SIZE, -1, -UNIT_SIZE):
                tags_code: int = _unpack_from(data, at)[2]
                if is_ext_address(tags_code):
                    return tags_code
            stop = start
        return None

    def truncate(self, log_end_offset: int) -> bool:
        """Cuts off the units of records at or after an offset.

        Returns whether valid units are left behind the end in its file (`erase_stale` takes them).
        RocketMQ: truncateDirtyLogicFiles.
        """
        stream = self.stream
        self._conflict = None
        first = stream.first_start // UNIT_SIZE
        stop = self.max_offset
        found = self.first_at_or_behind(log_end_offset, first, stop)
        message = self._next_message(found, stop)
        if message is None:
            return False
        last = self._last_message(found)
        if last is not None:
            end = last + 1
        elif self._read(first, message - first) == PRE_BLANK * (message - first) != b"":
            # Only the filled front is left: it keeps the number that the queue goes on with.
            end = message
        else:
            self.reset()
            return False
        stream.truncate(end * UNIT_SIZE)
        self._max_physic_offset = None
        self._min_offset = min(self._min_offset, end)
        return True

    def erase_stale(self) -> int:
        """Zeroes the units that a truncation left behind the end; returns bytes erased.

        RocketMQ leaves them, and takes them for messages at a later start.
        """
        return self.stream.erase_behind_end()

    def refresh(self, log_end_offset: int) -> None:
        """Takes in what another process has added. For a store opened read-only.

        Args:
            log_end_offset: units of records that end after it are not taken in yet.
        """
        stream = self.stream
        if self.stream.load() is not None or stream.is_empty:
            self._min_offset, self._max_physic_offset = 0, -1
            stream.set_end(stream.first_start)
            return
        stream.set_end(self._find_end())
        first = stream.first_start // UNIT_SIZE
        end = self.first_at_or_behind(log_end_offset, first, self.max_offset)
        stream.set_end(end * UNIT_SIZE)
        self._max_physic_offset = None
        self._min_offset = min(max(self._min_offset, first), end)

    def cut_before_zeros(self) -> int:
        """Ends the queue before its first unit of zeros, which is no filler: a page was lost there.

        Reads all of the queue. Dispatch of the log from its beginning then makes the rest again.

        Returns:
            How many units were given up.
        """
        stop, number = self.max_offset, self.stream.first_start // UNIT_SIZE
        while number < stop:
            data = self._read(number, min(stop - number, _SCAN_UNITS))
            if not data:
                break
            at = data.find(_ZEROS)
            while at % UNIT_SIZE and at >= 0:
                at = data.find(_ZEROS, at + 1)
            if at >= 0:
                lost = number + at // UNIT_SIZE
                if lost == self.stream.first_start // UNIT_SIZE:
                    self.reset()
                else:
                    self.stream.truncate(lost * UNIT_SIZE)
                    self._max_physic_offset = None
                    self._min_offset = min(self._min_offset, lost)
                return stop - lost
            number += len(data) // UNIT_SIZE
        return 0

    def reset(self) -> None:
        """Deletes all files; the queue goes on empty."""
        self.stream.reset()
        if self.ext is not None:
            self.ext.reset()
        self._min_offset, self._max_physic_offset, self._conflict = 0, -1, None

    @property
    def is_without_files(self) -> bool:
        """Whether the queue is empty, has no file, and goes on at another number than 0."""
        return self.stream.is_empty and self.max_offset > 0

    def go_on_at(self, queue_offset: int) -> None:
        """Gives a queue that has neither files nor units its next number."""
        self.stream.go_on_at(queue_offset * UNIT_SIZE)
        self._min_offset = queue_offset

    def destroy(self) -> None:
        """Deletes the queue's files and directories."""
        self.stream.destroy()
        if self.ext is not None:
            self.ext.destroy()
        self._min_offset, self._max_physic_offset, self._conflict = 0, -1, None
