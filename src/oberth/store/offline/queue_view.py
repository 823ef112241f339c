"""One queue's units as they lie in its files: ConsumeQueue, ConsumeQueueExt, BatchConsumeQueue.

A queue begins at its first unit that names a record which the CommitLog still has, and ends behind
its last unit that names one inside the log. What lies after that are zeros, or units of a log that
was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oberth.errors import FormatError
from oberth.formats import batch_consume_queue as batch
from oberth.formats import consume_queue as cq
from oberth.formats.consume_queue_ext import ConsumeQueueExtUnit, decode_ext_unit, ext_offset
from oberth.store.offline.layout import QueueFiles, QueueKey
from oberth.store.offline.segments import SegmentStream

_LOOK_BACK: Final = 16


class QueueView:
    """Reads a ConsumeQueue. Queue offsets are ordinals; see `consume_queue` for the units."""

    unit_size = cq.UNIT_SIZE

    def __init__(self, files: QueueFiles, file_size: int, ext: SegmentStream | None = None) -> None:
        self.key: QueueKey = files.key
        self.directory = files.directory
        self.stream = SegmentStream(files.segments, file_size)
        self.ext = ext

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit that has a place in the files."""
        return self.stream.start // self.unit_size

    def unit(self, queue_offset: int) -> cq.ConsumeQueueUnit | None:
        """The unit of a queue offset as it lies there, or None where no file has it."""
        raw = self.stream.read(queue_offset * cq.UNIT_SIZE, cq.UNIT_SIZE)
        return None if raw is None else cq.ConsumeQueueUnit(*cq.UNIT.unpack(raw))

    def ext_unit(self, unit: cq.ConsumeQueueUnit) -> ConsumeQueueExtUnit | None:
        """The ext unit whose address a unit holds; None if it holds none, or a wrong one."""
        if self.ext is None or not cq.is_ext_address(unit.tags_code):
            return None
        offset = ext_offset(unit.tags_code)
        index = self.ext.index_of(offset)
        if index is None:
            return None
        try:
            return decode_ext_unit(
                self.ext.map(index).view, offset - self.ext.segments[index].start
            )
        except FormatError:
            return None

    def end_offset(self, log_end: int | None = None) -> int:
        """Queue offset after the last unit that names a record below ``log_end``."""
        for index in range(len(self.stream.segments) - 1, -1, -1):
            opened = self.stream.map(index)
            last = opened.last_nonzero(0, len(opened))
            if last is None:
                continue
            base = self.stream.segments[index].start // self.unit_size
            for number in range(last // self.unit_size, -1, -1):
                unit = self.unit(base + number)
                if unit is None or not (unit.is_message or unit.is_pre_blank):
                    continue
                end = unit.commit_log_offset + unit.record_size
                if unit.is_pre_blank or log_end is None or end <= log_end:
                    return base + number + 1
        return self.first_offset

    def min_offset(self, log_start: int = 0, end: int | None = None) -> int:
        """The first queue offset whose unit names a record at or after ``log_start``."""
        low = self.first_offset
        high = self.end_offset() if end is None else end
        while low < high:
            middle = (low + high) // 2
            if self._is_before(middle, log_start):
                low = middle + 1
            else:
                high = middle
        # A damaged unit can have led astray; what lies just before shows it.
        back = low
        while back > self.first_offset and low - back < _LOOK_BACK:
            back -= 1
            if not self._is_before(back, log_start):
                low = back
        return low

    def _is_before(self, queue_offset: int, log_start: int) -> bool:
        unit = self.unit(queue_offset)
        return unit is None or unit.is_pre_blank or 0 <= unit.commit_log_offset < log_start

    def units(self, start: int, stop: int) -> Iterator[tuple[int, cq.ConsumeQueueUnit]]:
        """Queue offsets with their units in [start, stop), as they lie there."""
        for offset, piece in self.pieces(start, stop):
            for number, fields in enumerate(cq.UNIT.iter_unpack(piece)):
                yield offset + number, cq.ConsumeQueueUnit(*fields)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """The same as bytes, file by file: each with the queue offset of its first unit."""
        size = cq.UNIT_SIZE
        offset = max(start, self.first_offset)
        while offset < stop:
            index = self.stream.index_of(offset * size)
            if index is None:
                return
            opened = self.stream.map(index)
            at = offset * size - opened.segment.start
            count = min(stop - offset, (len(opened) - at) // size)
            if count <= 0:
                return
            yield offset, opened.view[at : at + count * size]
            offset += count

    def close(self) -> None:
        """Unmaps the files."""
        self.stream.close()
        if self.ext is not None:
            self.ext.close()


class BatchQueueView:
    """Reads a BatchConsumeQueue. Units are numbered from 0; their queue offsets are inside."""

    def __init__(self, files: QueueFiles, file_size: int) -> None:
        self.key: QueueKey = files.key
        self.directory = files.directory
        self.stream = SegmentStream(files.segments, file_size)

    def units(self, log_end: int | None = None) -> Iterator[batch.BatchConsumeQueueUnit]:
        """The valid units in order, up to the first that is not valid."""
        for index in range(len(self.stream.segments)):
            opened = self.stream.map(index)
            view = opened.view
            for at in range(0, len(view) - batch.UNIT_SIZE + 1, batch.UNIT_SIZE):
                unit = batch.decode_batch_unit(view, at)
                if not unit.is_valid:
                    return
                if log_end is not None and unit.commit_log_offset >= log_end:
                    return
                yield unit

    def close(self) -> None:
        """Unmaps the files."""
        self.stream.close()
