"""BatchConsumeQueue: the queue of a topic whose records hold several messages each.

Units are as wide as each other but queue offsets advance by the messages inside, so a queue offset
is searched for: the unit with the greatest base offset that is not above it. Units appear in the
order of the CommitLog. RocketMQ: BatchConsumeQueue; it ignores a record that is no batch, here it
is a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oberth.formats.batch_consume_queue import NOT_COMPACTED, UNIT, UNIT_SIZE, BatchConsumeQueueUnit
from oberth.formats.message import DispatchRequest
from oberth.store.consume_queue import QueueExtent
from oberth.store.offset_by_time import StoreTime, batch_offset_at_boundary
from oberth.store.tail_stream import FilePool, TailStream

_SCAN_UNITS: Final = 4096


class BatchConsumeQueue:
    """One queue. Puts come from one thread at a time; everything else from any.

    Positions inside are *places*: place N is the unit at byte N * 46 of the stream.
    """

    __slots__ = (
        "_max_offset",
        "_max_physic_offset",
        "_min_offset",
        "queue_id",
        "stream",
        "topic",
        "units_per_file",
    )

    unit_size: Final = UNIT_SIZE
    is_batch: Final = True
    ext: Final = None

    def __init__(
        self, pool: FilePool, directory: str, topic: str, queue_id: int, file_size: int
    ) -> None:
        assert file_size % UNIT_SIZE == 0
        self.topic = topic
        self.queue_id = queue_id
        self.stream = TailStream(pool, directory, file_size)
        self.units_per_file = file_size // UNIT_SIZE
        self._forget()

    def __repr__(self) -> str:
        return (
            f"BatchConsumeQueue({self.topic!r}, {self.queue_id}, "
            f"{self.min_offset}…{self.max_offset})"
        )

    def _forget(self) -> None:
        # None: not looked up in the units yet.
        self._min_offset: int | None = -1
        self._max_offset: int | None = 0
        self._max_physic_offset: int | None = -1

    def _look_up(self) -> None:
        self._min_offset = self._max_offset = self._max_physic_offset = None

    # Offsets

    @property
    def _first(self) -> int:
        return self.stream.first_start // UNIT_SIZE

    @property
    def _stop(self) -> int:
        return self.stream.end // UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """The first queue offset that can be read; -1 in an empty queue, as RocketMQ says."""
        if self._min_offset is None:
            first = self._at(self._first)
            self._min_offset = -1 if first is None else first.message_base_offset
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """The queue offset after the last message."""
        if self._max_offset is None:
            last = self._at(self._stop - 1)
            self._max_offset = 0 if last is None else last.next_offset
        return self._max_offset

    @property
    def max_physic_offset(self) -> int:
        """Where the record of the last unit ends in the CommitLog; -1 without units."""
        if self._max_physic_offset is None:
            self._max_physic_offset = self.last_offset()
        return self._max_physic_offset

    @property
    def extent(self) -> QueueExtent:
        """The queue's bounds."""
        return QueueExtent(self.min_offset, self.max_offset, self.max_physic_offset)

    @property
    def kernel_end(self) -> tuple[int, int]:
        """The next place and the last record's start, as kernels.queues.QueueTable keeps them."""
        last = self._at(self._stop - 1)
        return self._stop, -1 if last is None else last.commit_log_offset

    def last_offset(self) -> int:
        """max_physic_offset, read from the units."""
        last = self._at(self._stop - 1)
        return -1 if last is None else last.commit_log_offset + last.record_size

    def roll_next_file(self, queue_offset: int) -> int:
        """The queue offset at which the file after the one of this offset starts."""
        place = self._place_of(queue_offset)
        if place is None:
            return queue_offset + 1
        unit = self._at(place + self.units_per_file - place % self.units_per_file)
        return self.max_offset if unit is None else unit.message_base_offset

    # Writing

    def put_unit(self, unit: BatchConsumeQueueUnit) -> bool:
        """Adds a unit; False if it was there before, or is not valid.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        end_offset = unit.commit_log_offset + unit.record_size
        if end_offset <= self.max_physic_offset or not unit.is_valid:
            return False
        maximum = self.max_offset
        if unit.message_base_offset < maximum:
            place = self._place_of(unit.message_base_offset)
            if place is not None and self._at(place) == unit:
                # It was there before. The last unit is of an older record: what follows it here was
                # left by an earlier life, of a log that ended otherwise.
                self.stream.truncate((place + 1) * UNIT_SIZE)
                self._max_offset, self._max_physic_offset = unit.next_offset, end_offset
                self.stream.erase_behind_end()
                return False
        if unit.message_base_offset < maximum and unit.message_base_offset != 0:
            return False
        if unit.message_base_offset < maximum:
            self.reset()  # the topic was deleted and its numbers started again
        stream = self.stream
        stream.make_room()
        with stream.lock:
            stream.append_locked(UNIT.pack(*unit))
            self._max_offset = unit.next_offset
            self._max_physic_offset = end_offset
        if self._min_offset is None or self._min_offset < 0:
            self._min_offset = unit.message_base_offset
        return True

    def put_request(self, request: DispatchRequest) -> bool:
        """Adds the unit of a dispatched record."""
        base, size = request.message_base_offset, request.batch_size
        if base < 0 or size < 0:
            base, size = request.queue_offset, 1
        return self.put_unit(
            BatchConsumeQueueUnit(
                request.commit_log_offset,
                request.record_size,
                request.tags_code,
                request.store_timestamp,
                base,
                size,
                NOT_COMPACTED,
            )
        )

    def put_light(self, request: DispatchRequest, queue_offset: int) -> bool:
        """Adds the unit of a record of another topic that names this queue too."""
        return self.put_unit(
            BatchConsumeQueueUnit(
                request.commit_log_offset,
                request.record_size,
                request.tags_code,
                request.store_timestamp,
                queue_offset,
                1,
            )
        )

    # Reading

    def _at(self, place: int) -> BatchConsumeQueueUnit | None:
        data = self.stream.read(place * UNIT_SIZE, UNIT_SIZE) if place >= 0 else b""
        return BatchConsumeQueueUnit(*UNIT.unpack(data)) if len(data) == UNIT_SIZE else None

    def _place(self, is_behind: Callable[[BatchConsumeQueueUnit], bool]) -> int:
        """The first place whose unit is behind what is looked for; units are in order."""
        start, stop = self._first, self._stop
        while start < stop:
            middle = (start + stop) // 2
            unit = self._at(middle)
            if unit is None or is_behind(unit):
                stop = middle
            else:
                start = middle + 1
        return start

    def _place_of(self, queue_offset: int) -> int | None:
        """The place of the unit that holds a queue offset."""
        place = self._place(lambda unit: unit.message_base_offset > queue_offset) - 1
        unit = self._at(place) if place >= self._first else None
        return place if unit is not None and queue_offset < unit.next_offset else None

    def units(self, queue_offset: int, max_count: int, *, within_segment: bool = False) -> bytes:
        """Up to ``max_count`` units of 46 bytes from the one that holds a queue offset."""
        place = self._place_of(queue_offset) if queue_offset >= self.min_offset else None
        if place is None:
            return b""
        if within_segment:
            max_count = min(max_count, self.units_per_file - place % self.units_per_file)
        data = self.stream.read(place * UNIT_SIZE, max_count * UNIT_SIZE)
        return data[: len(data) // UNIT_SIZE * UNIT_SIZE]

    def unit(self, queue_offset: int) -> BatchConsumeQueueUnit | None:
        """The unit that holds a queue offset."""
        data = self.units(queue_offset, 1)
        return BatchConsumeQueueUnit(*UNIT.unpack(data)) if data else None

    def earliest_unit(self) -> BatchConsumeQueueUnit | None:
        """The first unit."""
        return self.unit(self.min_offset)

    def latest_unit(self) -> BatchConsumeQueueUnit | None:
        """The last unit."""
        return self._at(self._stop - 1)

    def offset_by_time(
        self,
        timestamp_ms: int,
        store_time: StoreTime,
        log_min_offset: int,
        *,
        upper: bool = False,
        by_file_time: bool = False,
    ) -> int:
        """The queue offset for a time, before it is clamped; see `batch_offset_at_boundary`."""
        del store_time, log_min_offset, by_file_time
        first, stop, count = self._first, self._stop, self.units_per_file
        starts = (start // UNIT_SIZE for start in self.stream.segment_starts())
        files = [range(max(start, first), min(start + count, stop)) for start in starts]
        return batch_offset_at_boundary(files, self._at, timestamp_ms, upper=upper)

    def first_stored_from(self, timestamp_ms: int, log_min_offset: int) -> int:
        """Where the first batch begins that the log has and that was stored at or after a time.

        The queue's end if there is none.
        """
        start = self._place(lambda unit: unit.commit_log_offset >= log_min_offset)
        unit = self._at(max(start, self._place(lambda unit: unit.store_timestamp >= timestamp_ms)))
        return self.max_offset if unit is None else unit.message_base_offset

    # Cleaning

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Moves min_offset to the first unit whose record the CommitLog still has."""
        unit = self._at(self._place(lambda unit: unit.commit_log_offset >= log_min_offset))
        if unit is not None:
            self._min_offset = unit.message_base_offset
        else:
            self._min_offset = self.max_offset if self._stop > self._first else -1

    def readable_from(self, log_min_offset: int) -> int:
        """What min_offset would be if the CommitLog began there; -1 in an empty queue."""
        unit = self._at(self._place(lambda unit: unit.commit_log_offset >= log_min_offset))
        if unit is not None:
            return max(unit.message_base_offset, self.min_offset)
        return self.max_offset if self._stop > self._first else -1

    def log_offset_behind(self, queue_offset: int) -> int:
        """Where in the CommitLog everything ends that this queue holds below a queue offset.

        A batch that goes beyond the queue offset does not count.
        """
        unit = self._at(self._place(lambda unit: unit.next_offset > queue_offset) - 1)
        return 0 if unit is None else unit.commit_log_offset + unit.record_size

    def delete_expired(self, log_min_offset: int) -> int:
        """Deletes files, never the last, whose last record is gone from the CommitLog."""
        stream = self.stream
        deleted = 0
        while len(stream.segment_starts()) > 1:
            last = self._at(self._first + self.units_per_file - 1)
            if last is not None and last.commit_log_offset >= log_min_offset:
                break
            stream.remove_first()
            deleted += 1
        if deleted:
            self._min_offset = None
        return deleted

    # Recovery

    def load(self) -> str | None:
        """Finds the files, see TailStream.load."""
        trouble = self.stream.load()
        self._look_up()
        return trouble

    def recover(self, extent: QueueExtent | None = None) -> None:
        """Finds where the queue ends: where valid units end in the last file that has any.

        An extent does not help here, because queue offsets do not tell places.
        """
        stream = self.stream
        start = stream.files_end - stream.file_size
        end = stream.first_start
        while start >= stream.first_start:
            end = self._end_of_valid(start // UNIT_SIZE) * UNIT_SIZE
            if end > start:
                break
            start -= stream.file_size
        if stream.pool.writable:
            stream.remove_files(at for at in stream.segment_starts() if at > end)
        stream.set_end(end)
        self._look_up()

    def _end_of_valid(self, start: int) -> int:
        stop = start + self.units_per_file
        while start < stop:
            middle = (start + stop) // 2
            unit = self._at(middle)
            if unit is not None and unit.is_valid:
                start = middle + 1
            else:
                stop = middle
        return start

    def truncate(self, log_end_offset: int) -> bool:
        """Cuts off the units of records at or after an offset; see ConsumeQueue.truncate."""
        # From the first unit on that no record has: a power cut takes any pages.
        end = self._place(
            lambda unit: not unit.is_valid or unit.commit_log_offset >= log_end_offset
        )
        if end == self._stop:
            return False
        if end == self._first:
            self.reset()
            return False
        self.stream.truncate(end * UNIT_SIZE)
        self._look_up()
        return True

    def cut_before_zeros(self) -> int:
        """Ends the queue before its first unit that names no record: a page was lost there.

        Reads all of the queue. Dispatch of the log from its beginning then makes the rest again.

        Returns:
            How many units were given up.
        """
        first, stop = self._first, self._stop
        for place in range(first, stop, _SCAN_UNITS):
            count = min(stop - place, _SCAN_UNITS)
            data = self.stream.read(place * UNIT_SIZE, count * UNIT_SIZE)
            units = map(BatchConsumeQueueUnit._make, UNIT.iter_unpack(data))
            lost = next((n for n, unit in enumerate(units, place) if not unit.is_valid), stop)
            if lost < stop:
                if lost == first:
                    self.reset()
                else:
                    self.stream.truncate(lost * UNIT_SIZE)
                    self._look_up()
                return stop - lost
        return 0

    def erase_stale(self) -> int:
        """Zeroes the units that a truncation left behind the end; returns bytes erased."""
        return self.stream.erase_behind_end()

    def refresh(self, log_end_offset: int) -> None:
        """Takes in what another process has added. For a store opened read-only."""
        if self.load() is not None:
            return
        self.recover()
        end = self._place(lambda unit: unit.commit_log_offset >= log_end_offset)
        self.stream.set_end(end * UNIT_SIZE)
        self._look_up()

    def reset(self) -> None:
        """Deletes all files; the queue goes on empty."""
        self.stream.reset()
        self._forget()

    def destroy(self) -> None:
        """Deletes the queue's files and directory."""
        self.stream.destroy()
        self._forget()
