"""A store's files as readers of Spark see them: CommitLog segments, queues, and nothing opened for writing.

What is true whatever a writer does meanwhile:

    - a queue's units below the end of ``QueueFiles.bounds()`` are complete, and so are their records;
    - the CommitLog below ``StoreFiles.log_end()`` is complete;
    - neither comes back smaller for a later call, unless the store was truncated by a recovery;
    - files disappear from the front only (cleaning); what they held is gone, never changed.

RocketMQ makes files at full size in advance, so a file's size says nothing about how much of it is
written. CommitLog files are told from their names (20 digits); a topic becomes part of a path only
when a listing has shown a directory of that name.
"""  # noqa: E501 - the first line

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import NotFoundError
from oberth.formats import batch_consume_queue as batch
from oberth.formats import consume_queue as simple
from oberth.formats import message, paths
from oberth.formats.config_json import parse_config
from oberth.formats.names import is_stored_topic
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import find_record, scan
from oberth.spark.log_tail import LogTail, TailMessage, find_tail
from oberth.spark.record_starts import RecordStarts
from oberth.spark.segments import (
    RECORD_SIZE_MAX,
    QueueName,
    Segment,
    list_segments,
    segment_at,
)
from oberth.spark.storage import Storage

if TYPE_CHECKING:
    import numpy

    Units = numpy.ndarray[Any, numpy.dtype[Any]]

# Blocks in which the end of a file is looked for, and how far before it a record is.
_TAIL_BLOCK: Final = 64 << 10
_TAIL_BLOCK_MAX: Final = 4 << 20
_TAIL_REACH: Final = 512 << 10
# A record can end in zeros: the length of empty properties, say.
_ZEROS_AT_END: Final = 64 << 10
# How far behind the supposed end of a queue further units are looked for.
_UNITS_AT_ONCE: Final = 65_536
_OFFSET_MAX: Final = 2**63 - 1
PAGE_UNITS: Final = 1024
"""Units that are read at once where one is looked for."""
_UNITS_AFTER_DAMAGE: Final = 256
_INT64: Final = struct.Struct(">q")
TIME_SLACK_MS: Final = 1000
"""Where the clock of a store went back by less than this, time ranges stay exact."""
_TIME_PROBES: Final = 64
_PROBE_SIZE: Final = 8 << 10

SIMPLE_DTYPE: Final = [("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")]
BATCH_DTYPE: Final = [
    ("offset", ">i8"),
    ("size", ">i4"),
    ("tags", ">i8"),
    ("time", ">i8"),
    ("base", ">i8"),
    ("count", ">i2"),
    ("compacted", ">i4"),
    ("reserved", ">i4"),
]


@dataclass(slots=True)
class StoreFiles:
    """The files of one store. Pickles; listings are taken anew where they matter.

    Attributes:
        storage: reads the files and counts the bytes.
        root: the store's directory (storePathRootDir).
        broker: what rows of this store say in the column broker.
        reads_tail: whether queues go on with what the log has after them, see `tail`.
    """

    storage: Storage
    root: str
    broker: str
    reads_tail: bool = False
    _segments: list[Segment] | None = field(default=None, repr=False)
    _topics: dict[str, str] | None = field(default=None, repr=False)
    _tail: LogTail | None = field(default=None, repr=False)
    _last_tail: tuple[int, LogTail] | None = field(default=None, repr=False)

    def bare(self) -> StoreFiles:
        """The same store without what was listed, to be sent elsewhere."""
        return StoreFiles(self.storage, self.root, self.broker)

    def refresh(self) -> None:
        """Forgets what was listed."""
        self._segments = None
        self._topics = None
        self._tail = None

    def tail(self, *, although_open: bool = False) -> LogTail | None:
        """What the log has behind the queues, of a store that was not closed and is not open.

        A running broker gives every record its unit in a moment; that is waited for.

        Args:
            although_open: look also where another process has the store open.
        """
        if not self.reads_tail:
            return None
        if self._tail is None or although_open:
            from oberth.store.offline.lock_state import is_locked

            plain = self.bare()
            is_closed = all(e.name != paths.ABORT for e in plain.storage.entries(plain.root))
            if is_closed or not plain.has_queues() or (is_locked(self.root) and not although_open):
                self._tail = LogTail()
            else:
                end = plain.log_end()
                # Nobody writes to it: what was found stays.
                if self._last_tail is None or self._last_tail[0] != end or although_open:
                    self._last_tail = end, find_tail(plain)
                self._tail = self._last_tail[1]
        return self._tail

    def segments(self) -> list[Segment]:
        """The CommitLog's segments, of all its directories.

        A store can keep its CommitLog elsewhere (storePathCommitLog); without ``commitlog`` every
        directory in the root that holds segments counts.

        Raises:
            StoreCorruptError: files overlap.
        """
        segments = self._segments
        if segments is None:
            directories = [f"{self.root}/{paths.COMMIT_LOG}"]
            if not self.storage.entries(directories[0]):
                known = {paths.CONSUME_QUEUE, paths.INDEX, paths.CONFIG, paths.TIMER_LOG}
                directories = [
                    f"{self.root}/{entry.name}"
                    for entry in self.storage.entries(self.root)
                    if entry.is_directory and entry.name not in known
                ]
            segments = self._segments = list_segments(self.storage, *directories)
        return segments

    def log_start(self) -> int:
        """The first offset of the CommitLog that is still there; 0 for none."""
        segments = self.segments()
        return segments[0].start if segments else 0

    def segment_of(self, offset: int) -> Segment | None:
        """The CommitLog segment that holds an offset; listings are renewed once if none does."""
        found = segment_at(self.segments(), offset)
        if found is None:
            self._segments = None
            found = segment_at(self.segments(), offset)
        return found

    def read_log(self, offset: int, size: int) -> bytes:
        """Bytes of the CommitLog, at most to the end of the segment that holds the offset.

        Raises:
            NotFoundError: no file holds the offset.
        """
        segment = self.segment_of(offset)
        if segment is None:
            raise NotFoundError(f"{self.root}: no CommitLog file holds offset {offset}")
        position = offset - segment.start
        return self.storage.read(segment.path, position, min(size, segment.size - position))

    def log_end(self) -> int:
        """The offset after the last whole record, which is stable: later calls give no less.

        The first bytes that are no valid record naming its own position end the log only if no
        such record follows in what can follow. In a log that is being written the newest record
        counts only when its last byte is there.
        """
        in_use = any(entry.name == paths.ABORT for entry in self.storage.entries(self.root))
        for segment in reversed(self.segments()):
            end = self._data_end_of(segment, in_use=in_use)
            if end is not None:
                return segment.start + end
        return self.log_start()

    def ends_at(self, offset: int) -> bool:
        """Whether nothing lies behind an offset that was the log's end: a look at four bytes."""
        segment = segment_at(self.segments(), offset)
        if segment is not None:
            path, position = segment.path, offset - segment.start
        elif self.segments():
            path, position = f"{self.segments()[-1].path.rpartition('/')[0]}/{offset:020d}", 0
        else:
            return False
        try:
            return not any(self.storage.read(path, position, 4))
        except NotFoundError:
            return segment is None  # else it was deleted: all has to be looked at

    def written_end(self, segment: Segment) -> int:
        """The offset after the last byte of a segment that is not zero."""
        return segment.start + self._last_written(segment)

    def _data_end_of(self, segment: Segment, *, in_use: bool) -> int | None:
        """The position after the last whole record of a segment, None if there is no record."""
        written = self._last_written(segment)
        starts = RecordStarts(self)
        reach = _TAIL_REACH
        while written > 0:
            place = segment.start + max(0, written - reach)
            begin: int | None = starts.first(segment, place).offset
            if place == segment.start and not starts.may_follow(segment, place):
                begin = starts.after_damage(segment, place, segment.start + written)
            if begin is not None and begin - segment.start < written:
                low = begin - segment.start
                high = min(segment.size, written + _ZEROS_AT_END)
                data = self.storage.read(segment.path, low, high - low)
                if find_record(data, base=begin, stop=1) == 0:
                    return low + _end_of_records(
                        data, segment, begin, segment.start + written, starts, in_use=in_use
                    )
            if place == segment.start:
                return None
            reach *= 4
        return None

    def _last_written(self, segment: Segment) -> int:
        """The position after the last byte that is not zero."""
        position = min(self.storage.data_end(segment.path, segment.size), segment.size)
        size = _TAIL_BLOCK
        while position > 0:
            low = max(0, position - size)
            size = min(size * 4, _TAIL_BLOCK_MAX)
            block = self.storage.read(segment.path, low, position - low)
            used = len(block.rstrip(b"\0"))
            if used:
                return low + used
            position = low
        return 0

    def is_record(self, offset: int, size: int) -> bool:
        """Whether a whole record of that size that names its own position lies at an offset."""
        if not message.FIXED_SIZE_V1 <= size <= RECORD_SIZE_MAX:
            return False
        try:
            data = self.read_log(offset, size)
        except NotFoundError:
            return False
        return len(data) == size and find_record(data, base=offset, stop=1) == 0

    def spread_times(self, start: int, end: int, count: int) -> list[tuple[int, int]]:
        """Offsets and store times of up to ``count`` records spread over a range of the log.

        Of records that their queues show: what only looks like one may say any time.
        """
        found: list[tuple[int, int]] = []
        starts = RecordStarts(self)
        for number in range(count if self.has_queues() else 0):
            at = start + (end - start) * number // count
            segment = self.segment_of(at)
            if segment is None:
                continue
            data = self.read_log(at, _PROBE_SIZE)
            place = starts.first_shown(data, at)
            if place is not None:
                found.append((at + place, message.store_timestamp_at(data, place)))
        return found

    def topics(self) -> dict[str, str]:
        """Topics that have queues, and under which directory; BatchConsumeQueues too."""
        tail = self.tail()
        listed = self._listed()
        if tail is None or not tail.messages:
            return listed
        return {**{name.topic: paths.CONSUME_QUEUE for name in tail.messages}, **listed}

    def _listed(self) -> dict[str, str]:
        """`topics`, of which there are files."""
        if self._topics is None:
            found: dict[str, str] = {}
            for kind in (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE):
                for entry in self.storage.entries(f"{self.root}/{kind}"):
                    if entry.is_directory and is_stored_topic(entry.name):
                        found.setdefault(entry.name, kind)
            self._topics = found
        return self._topics

    def has_queues(self) -> bool:
        """Whether the store has any ConsumeQueue."""
        return bool(self._listed())

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that have files or messages; none for an unknown topic."""
        kind = self.topics().get(topic)
        if kind is None:
            return []
        found = {
            int(entry.name)
            for entry in self.storage.entries(f"{self.root}/{kind}/{topic}")
            if entry.is_directory and entry.name.isascii() and entry.name.isdigit()
        }
        tail = self.tail()
        found.update(name.queue for name in (tail.messages if tail else ()) if name.topic == topic)
        return sorted(found)

    def queue(self, topic: str, queue: int) -> QueueFiles:
        """A queue's files as they are now.

        Raises:
            NotFoundError: the store has no such topic.
        """
        kind = self.topics().get(topic)
        if kind is None:
            raise NotFoundError(f"{self.root} has no queues of topic {topic!r}")
        name = QueueName(topic, queue)
        tail = self.tail()
        return QueueFiles(
            self,
            name,
            kind == paths.BATCH_CONSUME_QUEUE,
            list_segments(self.storage, f"{self.root}/{kind}/{topic}/{queue}"),
            tail.messages.get(name, ()) if tail is not None else (),
        )

    def config(self, name: str) -> Any:
        """A file of the directory config as Java wrote it, or None.

        Raises:
            ConfigFormatError: it cannot be read.
        """
        entries = self.storage.entries(f"{self.root}/{paths.CONFIG}")
        for entry in entries:
            if entry.name == name and entry.size > 0:
                path = f"{self.root}/{paths.CONFIG}/{name}"
                return parse_config(self.storage.read(path, 0, entry.size), name=path)
        return None

    def group_offsets(self, group: str) -> dict[QueueName, int]:
        """Where a consumer group stands, by queue; config/consumerOffset.json."""
        parsed = self.config("consumerOffset.json")
        table = parsed.get("offsetTable") if isinstance(parsed, dict) else None
        found: dict[QueueName, int] = {}
        for key, queues in (table or {}).items():
            topic, at, name = str(key).rpartition("@")
            if not at or name != group or not isinstance(queues, dict):
                continue
            for queue, offset in queues.items():
                if str(queue).isdigit() and isinstance(offset, int):
                    found[QueueName(topic, int(queue))] = offset
        return found

    def store_timestamp(self, offset: int) -> int:
        """The store time of the record at an offset, ms.

        Raises:
            NotFoundError: the file is gone, or it ends before.
        """
        head = self.read_log(offset, 88)
        if len(head) < 88:
            raise NotFoundError(f"{self.root}: CommitLog offset {offset} is cut off")
        return message.store_timestamp_at(head, 0)


def _end_of_records(
    data: bytes, segment: Segment, base: int, written: int, starts: RecordStarts, *, in_use: bool
) -> int:
    """Where the last whole record (or blank) of data ends; damage between records is passed.

    Args:
        data: bytes of the segment, from a record's first on.
        segment: the segment.
        base: CommitLog offset of the first byte.
        written: after the last byte of the segment that is not zero.
        starts: finds what follows damage.
        in_use: whether the last record may be one that is just being written.
    """
    columns = Columns(8192, ("record_size",))
    topics = TopicTable()
    position = last = 0
    while True:
        columns.clear()
        ended = scan(data, columns, topics, base=base, start=position, crc=CrcMode.STOP)
        position = ended.position
        if ended.added:
            last = position - columns.record_size[columns.count - 1]
        if ended.end is ScanEnd.FULL:
            continue
        if ended.end is ScanEnd.BLANK:
            return position
        if ended.end is not ScanEnd.STOP and position < len(data):
            following = starts.after_damage(segment, base + position, written)
            if following is not None and following - base < len(data):
                position = following - base
                continue
        if in_use and message.decode_record(data, last).ends_in_zeros:
            return last
        return position


class UnitPages:
    """A queue's units for one question that looks at several, each part of a file read once.

    What a writer adds meanwhile may or may not be seen, so nobody keeps one for the next question.
    """

    def __init__(self, queue: QueueFiles) -> None:
        self._queue = queue
        self._pages: dict[int, Units] = {}
        size = queue.unit_size
        self._first = -(-queue.segments[0].start // size) if queue.segments else 0
        self._last = queue.segments[-1].end // size if queue.segments else 0

    def _page(self, number: int) -> Units:
        found = self._pages.get(number)
        if found is None:
            low = max(number * PAGE_UNITS, self._first)
            high = max(min((number + 1) * PAGE_UNITS, self._last), low)
            found = self._queue.read_units(low, high)
            if len(found) < high - low:  # a file is gone: what is left lies elsewhere
                found = self._one_by_one(low, high)
            self._pages[number] = found
        return found

    def _one_by_one(self, low: int, high: int) -> Units:
        import numpy

        queue = self._queue
        found = numpy.zeros(high - low, queue._dtype())
        for number in range(low, high):
            some = queue.read_units(number, number + 1)
            if len(some):
                found[number - low] = some[0]
        return found

    def unit(self, number: int) -> tuple[int, ...]:
        """One unit's fields; all zero where there is none."""
        if not self._first <= number < self._last:
            return (0,) * 8
        place = number // PAGE_UNITS
        unit = self._page(place)[number - max(place * PAGE_UNITS, self._first)]
        fields: tuple[int, ...] = tuple(unit.tolist())
        return fields

    def units(self, first: int, last: int) -> Units:
        """Units number first to last (exclusive), all of which a file has to hold."""
        import numpy

        parts = []
        at = first
        while at < last:
            place = at // PAGE_UNITS
            begin = max(place * PAGE_UNITS, self._first)
            upto = min(last, (place + 1) * PAGE_UNITS)
            parts.append(self._page(place)[at - begin : upto - begin])
            at = upto
        return numpy.concatenate(parts) if parts else numpy.empty(0, self._queue._dtype())


@dataclass(slots=True)
class QueueFiles:
    """One queue's files: its units by queue offset. Sees whole units only.

    Attributes:
        store: whose queue it is.
        name: topic and number.
        is_batch: whether it is a BatchConsumeQueue.
        segments: its files; offsets of segments are bytes of the queue's stream.
        tail: records of the log that have no unit yet.
    """

    store: StoreFiles
    name: QueueName
    is_batch: bool
    segments: list[Segment]
    tail: Sequence[TailMessage] = ()
    _bytes: tuple[int, int, int] = field(default=(0, 0, 0), repr=False)

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return batch.UNIT_SIZE if self.is_batch else simple.UNIT_SIZE

    def _dtype(self) -> Any:
        import numpy

        return numpy.dtype(BATCH_DTYPE if self.is_batch else SIMPLE_DTYPE)

    def read_units(self, first: int, last: int) -> Units:
        """Units number first to last (exclusive) as they are on disk, valid or not.

        A number is a queue offset for a ConsumeQueue and just a place for a BatchConsumeQueue.
        Numbers that no file holds (any more) are left out, at the front and at the end.
        """
        import numpy

        dtype = self._dtype()
        parts = []
        for segment in self.segments:
            low = max(first * self.unit_size, segment.start)
            high = min(last * self.unit_size, segment.end)
            if low >= high:
                continue
            try:
                raw = self.store.storage.read(segment.path, low - segment.start, high - low)
            except NotFoundError:
                continue  # cleaned meanwhile
            whole = len(raw) // self.unit_size
            parts.append(numpy.frombuffer(raw, dtype, whole))
        if not parts:
            return numpy.empty(0, dtype)
        return parts[0] if len(parts) == 1 else numpy.concatenate(parts)

    def _unit(self, number: int) -> tuple[int, ...]:
        """One unit's fields; all zero where there is none."""
        at = number * self.unit_size
        segment = segment_at(self.segments, at)
        layout = batch.UNIT if self.is_batch else simple.UNIT
        if segment is None:
            return (0,) * 8
        try:
            raw = self.store.storage.read(segment.path, at - segment.start, self.unit_size)
        except NotFoundError:
            return (0,) * 8
        return layout.unpack(raw) if len(raw) == self.unit_size else (0,) * 8

    def _is_written(self, unit: tuple[int, ...]) -> bool:
        if self.is_batch:
            return unit[0] >= 0 and unit[1] > 0 and unit[4] >= 0 and unit[5] > 0
        return unit[0] >= 0 and unit[1] > 0

    def shows(self, offset: int, at: int, size: int) -> bool | None:
        """Whether a queue offset's unit names a record; None where no unit tells.

        Args:
            offset: the queue offset that the record has, or the first of its messages.
            at: the record's CommitLog offset.
            size: its bytes.
        """
        number = self.numbers_of(offset, offset + 1)[0] if self.is_batch else offset
        if number < 0:
            return None
        unit = self._unit(number)
        if unit[0] >= 0 and unit[1] > 0:
            return None if unit[1] == simple.PRE_BLANK_SIZE else unit[:2] == (at, size)
        last = self.unit_numbers()[1]
        # Offsets of a queue grow with the log: what its units do not reach yet lies after them.
        return False if number >= last > 0 and self._unit(last - 1)[0] >= at else None

    def unit_numbers(self, pages: UnitPages | None = None) -> tuple[int, int]:
        """The numbers of the first place in a file and after the last unit that is written."""
        pages = pages or UnitPages(self)
        for segment in reversed(self.segments):
            first = -(-segment.start // self.unit_size)
            last = segment.end // self.unit_size
            if first >= last or not self._is_written(pages.unit(first)):
                continue
            end = self._end_of_written(segment, first + 1, last, pages)
            return -(-self.segments[0].start // self.unit_size), end
        return 0, 0

    def _end_of_written(self, segment: Segment, low: int, high: int, pages: UnitPages) -> int:
        """The number after the last written unit of a segment; everything below low is written."""
        last = high
        try:
            data_end = self.store.storage.data_end(segment.path, segment.size)
        except NotFoundError:
            data_end = segment.size
        while True:
            near = min(high, low + PAGE_UNITS - low % PAGE_UNITS)
            if near < high and near * self.unit_size - segment.start >= data_end:
                high = near  # most queues end in the page in which they begin
            while low < high:
                middle = (low + high) // 2
                if self._is_written(pages.unit(middle)):
                    low = middle + 1
                else:
                    high = middle
            # A damaged unit looks like the end; that it is none shows in the units after it.
            behind = pages.units(low, min(low + _UNITS_AFTER_DAMAGE, last))
            written = self._are_written(behind).nonzero()[0]
            if len(written) == 0:
                return low
            low, high = low + int(written[-1]) + 1, last

    def _are_written(self, units: Units) -> Any:
        found = (units["offset"] >= 0) & (units["size"] > 0)
        if self.is_batch:
            found &= (units["base"] >= 0) & (units["count"] > 0)
        return found

    def _first_with(self, low: int, high: int, wanted: Any, pages: UnitPages | None = None) -> int:
        """The first number in [low, high) whose unit satisfies a monotonic condition, or high."""
        pages = pages or UnitPages(self)
        if low < high and wanted(pages.unit(low)):
            return low
        while low < high:
            middle = (low + high) // 2
            if wanted(pages.unit(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def live_numbers(self, pages: UnitPages | None = None) -> tuple[int, int]:
        """The numbers of the first unit whose record is still there and after the last unit."""
        pages = pages or UnitPages(self)
        first, last = self.unit_numbers(pages)
        log_start = self.store.log_start()

        def is_live(unit: tuple[int, ...]) -> bool:
            return unit[0] >= log_start and unit[1] != simple.PRE_BLANK_SIZE

        return self._first_with(first, last, is_live, pages), last

    def whole_numbers(self, pages: UnitPages | None = None) -> tuple[int, int]:
        """Like `live_numbers`, but without units at the end whose records are torn.

        A crash can leave a unit whose record never got to the disk as a whole. A record that is
        damaged in the middle of the log is no such thing: it is reported when it is read.
        """
        pages = pages or UnitPages(self)
        first, last = self.live_numbers(pages)
        if first >= last:
            return first, last
        newest = pages.unit(last - 1)
        if self.store.is_record(newest[0], newest[1]):
            return first, last
        log_end = self.store.log_end()
        return first, self._first_with(first, last, lambda unit: unit[0] + unit[1] > log_end)

    def last_place(self) -> int:
        """Where the record of the last unit is, -1 without units."""
        last = self.whole_numbers()[1]
        return self._unit(last - 1)[0] if last else -1

    def bounds(self) -> tuple[int, int]:
        """The queue offsets of the first message still there, and after the last whole one."""
        first, end = self.unit_bounds()
        if not self.tail:
            return first, end
        return (first if end else self.tail[0].first), self.tail[-1].end

    def unit_bounds(self) -> tuple[int, int]:
        """`bounds` as the units say."""
        pages = UnitPages(self)
        first, last = self.whole_numbers(pages)
        if not self.is_batch:
            return first, last
        if last == 0:
            return 0, 0
        newest = pages.unit(last - 1)
        end = newest[4] + newest[5]
        return (pages.unit(first)[4] if first < last else end), end

    def tail_within(self, start: int, end: int) -> list[TailMessage]:
        """The records of the tail that have any of the queue offsets [start, end)."""
        return [each for each in self.tail if each.first < end and each.end > start]

    def numbers_of(self, start: int, end: int) -> tuple[int, int]:
        """The numbers of the units that hold the queue offsets [start, end)."""
        if not self.is_batch:
            return start, end
        pages = UnitPages(self)
        first, last = self.unit_numbers(pages)
        low = self._first_with(first, last, lambda unit: unit[4] + unit[5] > start, pages)
        high = self._first_with(low, last, lambda unit: unit[4] >= end, pages)
        return low, high

    def record_bytes(self, start: int, end: int) -> int:
        """About how many bytes of records the queue offsets [start, end) have: from samples."""
        if self._bytes[:2] != (start, end):
            self._bytes = (start, end, self._count_bytes(start, end))
        return self._bytes[2]

    def _count_bytes(self, start: int, end: int) -> int:
        behind = sum(each.size for each in self.tail_within(start, end))
        if behind:
            end = min(end, self.tail[0].first)
        first, last = self.numbers_of(start, end)
        count = last - first
        if count <= 0:
            return behind
        if count <= PAGE_UNITS:
            sizes = self.read_units(first, last)["size"].tolist()
            count = min(count, len(sizes))
        else:
            sizes = [self._unit(number)[1] for number in range(first, last, count // 8)]
        usable = [size for size in sizes if 0 < size < simple.PRE_BLANK_SIZE]
        return behind + (count * sum(usable) // len(usable) if usable else 0)

    def count_within(self, first: int, count: int, room: int) -> int:
        """How many messages from an offset on have at most ``room`` bytes of records."""
        import numpy

        low, high = self.numbers_of(first, min(first + count, self._tail_start()))
        offset, used = first, 0
        number = low
        while number < high:
            units = self.read_units(number, min(high, number + _UNITS_AT_ONCE))
            if len(units) == 0:
                break
            total = used + numpy.cumsum(units["size"].astype(numpy.int64))
            fit = int(numpy.searchsorted(total, room, side="right"))
            if self.is_batch:
                ends = units["base"].astype(numpy.int64) + units["count"]
                offset = int(ends[fit - 1]) if fit else offset
            else:
                offset += fit
            if fit < len(units):
                break
            used = int(total[-1])
            number += len(units)
        else:
            for each in self.tail_within(offset, first + count):
                used += each.size
                if used > room:
                    break
                offset = each.end
        return min(max(offset - first, 0), count)

    def time_of(self, number: int) -> int | None:
        """The store time of the record of a unit, or None where it cannot be read."""
        unit = self._unit(number)
        if unit[1] <= 0 or unit[1] == simple.PRE_BLANK_SIZE:
            return None
        try:
            return self.store.store_timestamp(unit[0])
        except NotFoundError:
            return None

    def first_at_or_after(self, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time, or None.

        Store times are taken to be in order, as RocketMQ's own search does.
        """
        first, last = self.live_numbers()
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            time = self.time_of(middle)
            if time is not None and time >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        if low == last:
            return next((each.first for each in self.tail if each.timestamp >= timestamp_ms), None)
        return self._unit(low)[4] if self.is_batch else low

    def narrow_by_time(
        self, start: int, end: int, from_ms: int | None, to_ms: int | None
    ) -> tuple[int, int]:
        """The part of the queue offsets [start, end) that can hold store times from … to.

        Sound also where the clock went back: if any of some probes is out of order, nothing is
        narrowed, and within TIME_SLACK_MS no probe is needed.
        """
        if self.tail_within(start, end):
            # The few messages of the tail are all read.
            middle = self._tail_start()
            low = self.narrow_by_time(start, middle, from_ms, None)[0] if start < middle else start
            return low, end
        first, last = self.numbers_of(start, end)
        if last <= first or not self._times_in_order(first, last):
            return start, end
        if from_ms is not None:
            first = self._search_time(first, last, from_ms - TIME_SLACK_MS)
        if to_ms is not None:
            last = self._search_time(first, last, to_ms + TIME_SLACK_MS + 1)
        if not self.is_batch:
            return first, last
        if first >= last:
            return start, start
        newest = self._unit(last - 1)
        return max(start, self._unit(first)[4]), min(end, newest[4] + newest[5])

    def _tail_start(self) -> int:
        return self.tail[0].first if self.tail else _OFFSET_MAX

    def _search_time(self, low: int, high: int, timestamp_ms: int) -> int:
        while low < high:
            middle = (low + high) // 2
            time = self.time_of(middle)
            if time is not None and time >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def _times_in_order(self, first: int, last: int) -> bool:
        step = max((last - first) // _TIME_PROBES, 1)
        before = -(2**63)
        for number in range(first, last, step):
            time = self.time_of(number)
            if time is None or time < before:
                return False
            before = time
        return True


def iterate_queues(store: StoreFiles) -> Iterator[QueueName]:
    """Every queue of a store that has files."""
    for topic in sorted(store.topics()):
        for queue in store.queue_ids(topic):
            yield QueueName(topic, queue)
