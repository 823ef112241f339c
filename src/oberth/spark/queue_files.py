"""One queue's files: its written and live units, the size of its messages, and their store times.

A question reads pages of units, not units: a page of a queue is one request where files lie behind
a network. Nothing is kept from one question to the next but counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from oberth.errors import NotFoundError
from oberth.formats import batch_consume_queue as batch
from oberth.formats import consume_queue as simple
from oberth.formats.names import is_lmq
from oberth.spark.log_tail import TailMessage
from oberth.spark.segments import QueueName, Segment, segment_at

if TYPE_CHECKING:
    import numpy

    from oberth.spark.storage import Storage

    Units = numpy.ndarray[Any, numpy.dtype[Any]]
_UNITS_AT_ONCE: Final = 65_536
_OFFSET_MAX: Final = 2**63 - 1
PAGE_UNITS: Final = 1024
"""Units that are read at once where one is looked for."""
_UNITS_AFTER_DAMAGE: Final = 256
"""How far behind the supposed end of a queue further units are looked for."""
TIME_SLACK_MS: Final = 1000
"""Where the clock of a store went back by less than this, time ranges stay exact."""
_TIME_PROBES: Final = 64
_SAMPLE_UNITS: Final = 128
"""Units in each of the two stretches from which the bytes of a long range are told."""

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


class LogOfQueues(Protocol):
    """What a queue asks the store that it belongs to: `oberth.spark.store_files.StoreFiles`."""

    @property
    def storage(self) -> Storage:
        """Reads the files."""

    @property
    def end_guesses(self) -> dict[str, int]:
        """By topic how many units the newest file of the queue looked at last had."""

    @property
    def settled_end(self) -> int:
        """A position of the log up to which everything is known to be written."""

    def log_start(self) -> int:
        """Where the log begins."""

    def log_end(self) -> int:
        """Where the log ends."""

    def is_record(self, offset: int, size: int) -> bool:
        """Whether a record of so many bytes lies at a position of the log."""

    def store_timestamp(self, offset: int) -> int:
        """When the record at a position was stored (ms)."""

    def place_of_time(self, timestamp_ms: int) -> int | None:
        """The position of the log from which on records were stored at a time or later."""


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
            if len(found) < high - low:  # a file is gone, or too short
                found = self._run_by_run(low, high)
            self._pages[number] = found
        return found

    def _run_by_run(self, low: int, high: int) -> Units:
        """Units with zeros for those that no file holds."""
        import numpy

        found = numpy.zeros(high - low, self._queue._dtype())
        at = low
        while at < high:
            begin, some = self._queue.read_run(at, high, high - at)
            at = begin + len(some)
            found[begin - low : at - low] = some
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
        gaps: queue offsets [first, end) before or between those that nothing has.
    """

    store: LogOfQueues
    name: QueueName
    is_batch: bool
    segments: list[Segment]
    tail: Sequence[TailMessage] = ()
    gaps: Sequence[tuple[int, int]] = ()
    _bytes: tuple[int, int, int] = field(default=(0, 0, 0), repr=False)
    # Where the records of that range lie.
    _place: tuple[int, int] | None = field(default=None, repr=False)
    # What all units weigh and where their records lie, by first and last, if seen on one page.
    _page: tuple[int, int, int, tuple[int, int] | None] = field(default=(0, 0, 0, None), repr=False)

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
        Where files lack some of them, this is `read_run`, and shorter.
        """
        return self.read_run(first, last, last - first)[1]

    def read_run(self, first: int, last: int, most: int) -> tuple[int, Units]:
        """The first units in a row that files hold of those number first to last (exclusive).

        Returns:
            The number of the first of them, and so many units up to the next number that no file
            holds, but ``most`` at most. Where no file holds any: ``last``, and none.
        """
        import numpy

        dtype, size = self._dtype(), self.unit_size
        parts: list[Units] = []
        begin, at, end = last, first, last
        for segment in self.segments:
            low, high = max(at, -(-segment.start // size)), min(end, segment.end // size)
            if low >= high:
                continue
            if parts and low > at:
                break
            high = min(high, low + most) if not parts else high
            try:
                raw = self.store.storage.read(
                    segment.path, low * size - segment.start, (high - low) * size
                )
            except NotFoundError:
                raw = b""  # cleaned meanwhile
            whole = len(raw) // size
            if whole == 0:
                continue
            if not parts:
                begin, end = low, min(last, low + most)
            parts.append(numpy.frombuffer(raw, dtype, whole))
            at = low + whole
        if not parts:
            return last, numpy.empty(0, dtype)
        return begin, parts[0] if len(parts) == 1 else numpy.concatenate(parts)

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
            low, high = self._near_guess(segment, first + 1, last, pages)
            end = self._end_of_written(segment, low, high, last, pages)
            self.store.end_guesses[self.name.topic] = end - first
            return -(-self.segments[0].start // self.unit_size), end
        return 0, 0

    def _near_guess(
        self, segment: Segment, low: int, high: int, pages: UnitPages
    ) -> tuple[int, int]:
        """Where the end of the written units can be, after a look where another queue's was.

        Queues of a topic grow alike: one page instead of a search over all of a file's.
        """
        guess = -(-segment.start // self.unit_size) + self.store.end_guesses.get(self.name.topic, 0)
        begin = guess - guess % PAGE_UNITS
        upto = begin + PAGE_UNITS
        if low < begin < high:
            if not self._is_written(pages.unit(begin)):
                return low, begin
            low = begin + 1
        if low < upto < high:
            if self._is_written(pages.unit(upto - 1)):
                return upto, high
            high = upto - 1
        return low, high

    def _end_of_written(
        self, segment: Segment, low: int, high: int, last: int, pages: UnitPages
    ) -> int:
        """The number after the last written unit of a segment.

        Args:
            segment: the file.
            low: everything below is written.
            high: nothing from here on is, but for what follows damage.
            last: the number after the file's last unit.
            pages: its units.
        """
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
        """The first number in [low, high) whose unit satisfies a monotonic condition, or high.

        A number without a written unit has the answer of the next one that has a unit.
        """
        pages = pages or UnitPages(self)
        if low < high and wanted(pages.unit(low)):
            return low
        while low < high:
            middle = (low + high) // 2
            shown = self._shown_at(middle, high, pages)
            if shown == high or wanted(pages.unit(shown)):
                high = middle
            else:
                low = shown + 1
        return low

    def _shown_at(self, number: int, high: int, pages: UnitPages) -> int:
        """The number itself if its unit is written, else the next such one, or high."""
        written = self._is_written(pages.unit(number))
        return number if written else self._next_written(number, high, pages)

    def _next_written(self, low: int, high: int, pages: UnitPages) -> int:
        """The first number in [low, high) whose unit is written, or high."""
        for segment in self.segments:
            at = max(low, -(-segment.start // self.unit_size))
            end = min(high, segment.end // self.unit_size)
            while at < end:
                upto = min(end, at + PAGE_UNITS - at % PAGE_UNITS)
                written = self._are_written(pages.units(at, upto)).nonzero()[0]
                if len(written):
                    return at + int(written[0])
                at = upto
        return high

    def live_numbers(self, pages: UnitPages | None = None) -> tuple[int, int]:
        """The numbers of the first unit whose record is still there and after the last unit."""
        pages = pages or UnitPages(self)
        first, last = self.unit_numbers(pages)
        log_start = self.store.log_start()

        def is_live(unit: tuple[int, ...]) -> bool:
            return unit[0] >= log_start and unit[1] != simple.PRE_BLANK_SIZE

        first = self._first_with(first, last, is_live, pages)
        if first < last and first // PAGE_UNITS == (last - 1) // PAGE_UNITS:
            units = pages.units(first, last)
            weight = _bytes_of(units["size"].tolist(), last - first)
            self._page = first, last, weight, _span(units[0], units[-1], 1)
        return first, last

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
        if newest[0] + newest[1] <= self.store.settled_end:
            return first, last
        if self.store.is_record(newest[0], newest[1]):
            return first, last
        log_end = self.store.log_end()
        return first, self._first_with(first, last, lambda unit: unit[0] + unit[1] > log_end)

    def last_place(self) -> int:
        """Where the record of the last unit is, -1 without units."""
        last = self.whole_numbers()[1]
        return self._unit(last - 1)[0] if last else -1

    def place_of(self, offset: int) -> int | None:
        """Where the record of a queue offset lies in the log; None where no unit tells."""
        number = self.numbers_of(offset, offset + 1)[0]
        unit = self._unit(number)
        if not self._is_written(unit) or unit[1] == simple.PRE_BLANK_SIZE:
            return None
        if self.is_batch and not unit[4] <= offset < unit[4] + unit[5]:
            return None
        return unit[0]

    def about_where(self, start: int, end: int) -> tuple[int, int] | None:
        """About where in the log the records begin and end that [start, end) have units of.

        Told by the units that tell `record_bytes`; None for a queue that is read alone.
        """
        if self.is_batch or is_lmq(self.name.topic):
            return None
        self.record_bytes(start, end)
        return self._place

    def bounds(self) -> tuple[int, int]:
        """The queue offsets of the first message still there, and after the last whole one."""
        first, end = self.unit_bounds()
        if not self.tail:
            return first, end
        if 0 < end == first:
            # No unit has its record: those between it and the tail lay in what is deleted, too.
            first = self.tail[0].first
        return (first if end else self._tail_start()), self.tail[-1].end

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

    def tail_begin(self, start: int, end: int) -> int:
        """From which of the queue offsets [start, end) on no unit is; the end if all have one."""
        return min(max(self._tail_start(), start), end)

    def gaps_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of the queue offsets [start, end) a crash took, as ranges of them."""
        return [(max(a, start), min(b, end)) for a, b in self.gaps if a < end and b > start]

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
            end = min(end, self._tail_start())
        self._place = None
        first, last = self.numbers_of(start, end)
        count = last - first
        if count <= 0:
            return behind
        if self._page[:2] == (first, last):
            self._place = self._page[3]
            return behind + self._page[2]
        if count <= PAGE_UNITS:
            units = self.read_units(first, last)
            if len(units):
                self._place = _span(units[0], units[-1], 1)
            return behind + _bytes_of(units["size"].tolist(), min(count, len(units)))
        # Where they come from must not depend on what was looked at before: a batch that is
        # planned again is cut as it was.
        places = (first + count // 4, first + count * 3 // 4)
        parts = [self.read_units(place, min(place + _SAMPLE_UNITS, last)) for place in places]
        if all(len(each) for each in parts):
            self._place = _span(parts[0][0], parts[1][0], 2)
        sizes = [size for each in parts for size in each["size"].tolist()]
        return behind + _bytes_of(sizes, count)

    def count_within(self, first: int, count: int, room: int) -> int:
        """How many messages from an offset on have at most ``room`` bytes of records."""
        import numpy

        upto = min(first + count, self._tail_start())
        number, high = self.numbers_of(first, upto)
        offset, used = first, 0
        while number < high:
            begin, units = self.read_run(number, high, _UNITS_AT_ONCE)
            total = used + numpy.cumsum(units["size"].astype(numpy.int64))
            fit = int(numpy.searchsorted(total, room, side="right"))
            if not self.is_batch:
                offset = begin + fit  # what no file holds has no bytes
            elif fit:
                offset = int(units["base"][fit - 1]) + int(units["count"][fit - 1])
            if fit < len(units):
                break
            used = int(total[-1]) if fit else used
            number = begin + fit
        else:
            offset = max(offset, upto)
            for each in self.tail_within(offset, first + count):
                used += each.size
                if used > room:
                    break
                offset = each.end
        return min(max(offset - first, 0), count)

    def time_of(self, number: int, pages: UnitPages | None = None) -> int | None:
        """The store time of the record of a unit, or None where it cannot be read."""
        unit = self._unit(number) if pages is None else pages.unit(number)
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
        pages = UnitPages(self)
        first, last = self.live_numbers(pages)
        low = self._first_by_place(timestamp_ms, first, last, pages)
        if low is None:
            low = self._search_time(first, last, timestamp_ms, pages)
        if low == last:
            return next((each.first for each in self.tail if each.timestamp >= timestamp_ms), None)
        return pages.unit(low)[4] if self.is_batch else low

    def _first_by_place(
        self, timestamp_ms: int, first: int, last: int, pages: UnitPages
    ) -> int | None:
        """The first unit at or after a time, by the place of the log that the time has.

        All queues of a store share that place, which is looked for once. Where the log's times are
        not in order a queue's may be; so the records on both sides of the place have to agree.
        """
        place = self.store.place_of_time(timestamp_ms)
        if place is None or first >= last:
            return None
        found = self._first_from_place(place, first, last, pages)
        if found < last:
            time = self.time_of(found, pages)
            if time is None or time < timestamp_ms:
                return None
        if found > first:
            time = self.time_of(found - 1, pages)
            if time is None or time >= timestamp_ms:
                return None
        return found

    def _first_from_place(self, place: int, low: int, high: int, pages: UnitPages) -> int:
        """The first of the units [low, high) whose record lies at or behind a place of the log."""
        if pages.unit(low)[0] >= place:
            return low
        if pages.unit(high - 1)[0] < place:
            return high
        # Messages come about evenly: a guess by proportion, and halves in turn.
        in_proportion = True
        while low < high:
            before, behind = pages.unit(low)[0], pages.unit(high - 1)[0]
            middle = (low + high) // 2
            if in_proportion and before < place <= behind:
                middle = low + (high - 1 - low) * (place - before) // (behind - before)
            in_proportion = not in_proportion
            shown = self._shown_at(middle, high, pages)
            if shown == high or pages.unit(shown)[0] >= place:
                high = middle
            else:
                low = shown + 1
            if low < high and pages.unit(low)[0] >= place:
                return low
        return low

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
        firsts = [first for first, _ in self.gaps[:1]] + [each.first for each in self.tail[:1]]
        return min(firsts, default=_OFFSET_MAX)

    def _search_time(
        self, low: int, high: int, timestamp_ms: int, pages: UnitPages | None = None
    ) -> int:
        pages = pages or UnitPages(self)
        while low < high:
            middle = (low + high) // 2
            shown = self._shown_at(middle, high, pages)
            time = self.time_of(shown, pages) if shown < high else None
            if shown == high or (time is not None and time >= timestamp_ms):
                high = middle
            else:
                low = shown + 1
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


def _span(first: Any, last: Any, part: int) -> tuple[int, int] | None:
    """Where records begin and end, from two units; what they enclose is a ``part``-th of it all."""
    low, high = int(first["offset"]), int(last["offset"])
    if not 0 <= low <= high:
        return None
    beside = (high - low) * (part - 1) // 2
    return max(low - beside, 0), high + beside


def _bytes_of(sizes: Sequence[int], count: int) -> int:
    """About how many bytes so many records have, by the sizes in the units of some of them."""
    usable = [size for size in sizes if 0 < size < simple.PRE_BLANK_SIZE]
    return count * sum(usable) // len(usable) if usable else 0
