"""Reads a CommitLog in ranges, each by a task, and proves that together they are the whole.

A task that begins in the middle of a log knows neither whether the first record that it finds is a
real one, nor how new the newest message before was, nor where the queues stand. It assumes; and
what it assumed is in its result:

    it assumed                                 holds if
    its first record starts at S               the range before ended at S
    no message before is newer than N ms,      the newest before is no newer than N
      when it decided about damage
    each queue goes on at its first unit       the queue's end so far is that ordinal, or it is new

`read_ranges` compares the results in the order of the log. A range whose assumptions do not hold is
read again with what is known by then; usually none is. So the outcome is that of one reader who
reads everything (`store.offline.log_columns` with `kernels.queues`), however the log was divided.

What a task finds lies in its scratch file: units of each queue, back to back by queue, then the
index entries as three arrays (hashes int32, offsets int64, times int64, as the machine orders
bytes). Only what `RangeResult` has goes to the driver.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from oberth.kernels.arguments import QueueAnomaly
from oberth.kernels.columns import DISPATCH_COLUMNS, TopicTable
from oberth.kernels.index import IndexEntries
from oberth.kernels.queues import QueueTable, UnitRun
from oberth.kernels.scan import find_record
from oberth.spark.pipelines.tasks import Done, TaskRunner
from oberth.store.offline.filler import NO_FILLER, first_filler
from oberth.store.offline.index_view import IndexView
from oberth.store.offline.indexed_tags import IndexedTags, TagsKnown, tags_known
from oberth.store.offline.layout import IndexShape, StoreLayout
from oberth.store.offline.log_columns import (
    CRC_COLUMNS,
    PIECE_SIZE,
    BlankMet,
    ColumnReader,
    Rows,
    rows_failing_crc,
)
from oberth.store.offline.log_walk import Damage, LogEnd
from oberth.store.offline.part_units import part_units
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import batch_topics
from oberth.store.offline.segments import Segment

RANGE_SIZE_MIN: Final = 64 << 20
RANGE_SIZE_MAX: Final = 512 << 20
_TASKS_PER_CORE: Final = 4


class BadChecksum(NamedTuple):
    """A record whose body fails its checksum."""

    offset: int
    size: int
    store_timestamp: int


class BadRecordChecksum(NamedTuple):
    """A record that fails its whole-record CRC, though its body is right."""

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int


class FoundDamage(NamedTuple):
    """Bytes that are no record, and the newest store time before them in this range, ms."""

    damage: Damage
    newest: int


class FoundBlank(NamedTuple):
    """The blank that ends a segment."""

    segment_start: int
    position: int
    remaining: int


class FoundAnomaly(NamedTuple):
    """A record with an odd place in its queue."""

    offset: int
    what: QueueAnomaly


class NewQueue(NamedTuple):
    """The first unit of a queue in this range."""

    topic: bytes
    queue_id: int
    is_batch: bool


class FoundFillers(NamedTuple):
    """The first record that a salvage put in the place of a damaged one."""

    offset: int


Event = (
    BadChecksum
    | BadRecordChecksum
    | FoundDamage
    | FoundBlank
    | FoundAnomaly
    | NewQueue
    | FoundFillers
)


class RunPart(NamedTuple):
    """Units of one queue without a hole between them; see `UnitRun`."""

    first: int
    unit_count: int
    skipped: int
    restarts: bool


class QueuePart(NamedTuple):
    """One queue's units in one range.

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        is_batch: whether they are BatchConsumeQueue units.
        runs: in the order of the log.
        path: the scratch file.
        position: where the units of the first run begin in it.
        size: bytes of all units.
        next_ordinal: where the queue ends.
        max_offset: end (batch: start) of its last record.
    """

    topic: bytes
    queue_id: int
    is_batch: bool
    runs: tuple[RunPart, ...]
    path: str
    position: int
    size: int
    next_ordinal: int
    max_offset: int

    @property
    def key(self) -> tuple[bytes, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


class QueueEnd(NamedTuple):
    """Where a queue stands before a range."""

    topic: bytes
    queue_id: int
    next_ordinal: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class ScanJob:
    """What all tasks of one reading have in common.

    Attributes:
        layout: of the store; without its queues and index files.
        delays_ms: milliseconds by delay level.
        batch_topics: topics with batch queues.
        scratch: the directory of the scratch files; "" for none.
        units: build units.
        entries: make index entries.
        index: the files that say which tags get entries.
        tags_known: what is so where they do not tell.
        checks: look for what `verify` and `salvage` want to know beside.
    """

    layout: StoreLayout
    delays_ms: tuple[int, ...]
    batch_topics: frozenset[bytes]
    scratch: str
    units: bool
    entries: bool
    index: tuple[Segment, ...]
    index_shape: IndexShape
    tags_known: TagsKnown
    checks: bool

    @property
    def log_bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size for segment in self.layout.commit_log)


class RangeWork(NamedTuple):
    """One task: the records that start in [start, stop).

    ``known`` says what is known of what lies before; without it the task assumes.
    """

    number: int
    start: int
    stop: int
    known: Before | None = None


class Before(NamedTuple):
    """What lies before a range.

    Attributes:
        position: where its first record starts.
        newest: the store time that two records have reached, ms.
        last_time: of the last record, ms; None where there is none.
        queues: where they end.
    """

    position: int
    newest: int
    last_time: int | None
    queues: tuple[QueueEnd, ...]


@dataclass(slots=True)
class RangeResult:
    """What a task found.

    Attributes:
        work: what it was asked for.
        begin: where it began to read; None if no record begins in its range.
        end: CommitLog offset after what it read.
        newest: the newest store time in it, ms; 0 without records.
        agreed: the store time that two records in it, or before it as far as known, have reached.
        last_time: store time of the last record in it, ms; None without records.
        decided_with: see `ColumnReader.decided_with`.
        log_end: the log's end, if it was met.
        records: how many.
        queues: their units.
        events: what is out of the ordinary, in the order of the log.
        path: the scratch file.
        entries_position: where the index entries begin in it.
        entry_count: how many there are.
    """

    work: RangeWork
    begin: int | None = None
    end: int = 0
    newest: int = 0
    agreed: int = 0
    last_time: int | None = None
    decided_with: int | None = None
    log_end: LogEnd | None = None
    records: int = 0
    queues: list[QueuePart] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    path: str = ""
    entries_position: int = 0
    entry_count: int = 0


def make_job(
    reader: StoreReader,
    former: StoreReader,
    scratch: str,
    *,
    units: bool = True,
    entries: bool = True,
    checks: bool = False,
) -> ScanJob:
    """What the tasks that read a store's log need to know.

    Args:
        reader: the store whose log is read.
        former: the store whose index says whether tags are indexed, and whose files say which
            topics have batch queues.
        scratch: where scratch files go; every task has to reach it.
        units: build units.
        entries: make index entries, if the store has an index.
        checks: look for what `verify` and `salvage` want to know beside.
    """
    indexed = entries and reader.layout.config.message_index_enable
    return ScanJob(
        layout=bare_layout(reader.layout),
        delays_ms=reader.delays_ms,
        batch_topics=batch_topics(reader.layout) | batch_topics(former.layout),
        scratch=scratch,
        units=units,
        entries=indexed,
        index=former.layout.index_files if indexed and former.layout.index_readable else (),
        index_shape=former.layout.index_shape,
        tags_known=tags_known(former) if indexed else TagsKnown(before=False, behind=False),
        checks=checks,
    )


def bare_layout(layout: StoreLayout) -> StoreLayout:
    """A layout without queues and index: quick to send to tasks that only read the log."""
    return replace(
        layout, queues={}, ext_queues={}, batch_queues={}, index_files=(), other_files=(),
        findings=(),
    )  # fmt: skip


def cut_ranges(
    layout: StoreLayout, parallelism: int, range_size: int | None = None
) -> list[RangeWork]:
    """Cuts a log into ranges of about equal size; none reaches over a segment's end.

    A range is a whole number of the pieces in which a single reader would go through the log.
    """
    size = range_size
    if size is None:
        total = sum(segment.size for segment in layout.commit_log)
        wanted = total // max(1, parallelism * _TASKS_PER_CORE)
        size = min(max(wanted, RANGE_SIZE_MIN), RANGE_SIZE_MAX)
        size = -(-size // PIECE_SIZE) * PIECE_SIZE
    ranges: list[RangeWork] = []
    for segment in layout.commit_log:
        for start in range(segment.start, segment.end, size):
            ranges.append(RangeWork(len(ranges), start, min(start + size, segment.end)))
    return ranges


def read_ranges(
    tasks: TaskRunner,
    job: ScanJob,
    *,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[RangeResult]:
    """Reads the whole log.

    Returns:
        The ranges that have something, in order; the last one has ``log_end``.

    Raises:
        OSError: something cannot be read or written.
    """
    works = cut_ranges(job.layout, tasks.parallelism, range_size)
    function = partial(scan_range, job)
    results = tasks.run(function, works, what="read", done=_bytes_done(works, progress))
    return _settle(results, lambda work: tasks.run(function, [work], what="read again")[0])


def _bytes_done(works: Sequence[RangeWork], progress: Callable[[int], None] | None) -> Done | None:
    if progress is None:
        return None
    sizes = [0, *accumulate(work.stop - work.start for work in works)]
    report = progress

    def done(count: int, _total: int) -> None:
        report(sizes[min(count, len(works))])

    return done


def _settle(
    results: Iterable[RangeResult], again: Callable[[RangeWork], RangeResult]
) -> list[RangeResult]:
    """Takes the results in order; reads again what rests on a wrong assumption."""
    settled: list[RangeResult] = []
    ends: dict[tuple[bytes, int], QueueEnd] = {}
    position: int | None = None
    last_time: int | None = None
    newest = 0
    for guess in results:
        result = guess
        if position is None:
            position = result.work.start
        if position >= result.work.stop:
            continue
        if not _holds(result, position, newest, ends):
            known = Before(position, newest, last_time, tuple(ends.values()))
            result = again(result.work._replace(known=known))
        assert result.begin == position
        result = _continue_batches(result, ends)
        for part in result.queues:
            ends[part.key] = QueueEnd(part.topic, part.queue_id, part.next_ordinal, part.max_offset)
        position = result.end
        newest = max(newest, result.agreed)
        last_time = last_time if result.last_time is None else result.last_time
        settled.append(result)
        if result.log_end is not None:
            break
    return settled


def _holds(
    result: RangeResult,
    position: int,
    newest: int,
    ends: dict[tuple[bytes, int], QueueEnd],
) -> bool:
    """Whether a range was read as it would have been by one who knows what lies before."""
    if result.begin != position:
        return False
    if result.decided_with is not None and newest > result.decided_with:
        return False
    for part in result.queues:
        known = ends.get(part.key)
        # A batch queue's units are only counted.
        if known is not None and not part.is_batch and known.next_ordinal != part.runs[0].first:
            return False
    return True


def _continue_batches(result: RangeResult, ends: dict[tuple[bytes, int], QueueEnd]) -> RangeResult:
    """Gives the units of batch queues the numbers that follow those of the ranges before."""
    if result.work.known is not None or not any(part.is_batch for part in result.queues):
        return result
    parts = []
    for part in result.queues:
        known = ends.get(part.key)
        if part.is_batch and known is not None:
            shift = known.next_ordinal
            part = part._replace(
                runs=tuple(run._replace(first=run.first + shift) for run in part.runs),
                next_ordinal=part.next_ordinal + shift,
            )
        parts.append(part)
    return replace(result, queues=parts)


# What a task does.


def scan_range(job: ScanJob, work: RangeWork) -> RangeResult:
    """Reads one range.

    Raises:
        OSError: something cannot be read or written.
    """
    result = RangeResult(work, end=work.stop)
    with StoreReader(job.layout.root, layout=job.layout) as reader:
        reader.use_delays(job.delays_ms)
        begin = work.known.position if work.known is not None else _first_record(reader, work)
        if begin is not None:
            result.begin = begin
            _RangeScan(job, work, reader, result).run()
    return result


def _first_record(reader: StoreReader, work: RangeWork) -> int | None:
    """Where the first record of a range seems to start."""
    index = reader.log.index_of(work.start)
    if index is None:
        return None
    opened = reader.log.map(index)
    base = opened.segment.start
    position = work.start - base
    if position == 0:
        return work.start
    data = opened.next_data(position)
    stop = min(work.stop - base, len(opened))
    if data is None or data >= stop:
        return None
    found = find_record(opened.view, base=base, start=max(position, data), stop=stop)
    return None if found is None else base + found


class _QueueUnits:
    """One queue's units while they are gathered."""

    __slots__ = ("is_batch", "runs", "units")

    def __init__(self, is_batch: bool) -> None:
        self.is_batch = is_batch
        self.runs: list[RunPart] = []
        self.units = bytearray()

    def add(self, run: UnitRun) -> None:
        last = self.runs[-1] if self.runs else None
        if (
            last is not None
            and last.first + last.unit_count == run.first
            and not run.skipped
            and not run.restarts
        ):
            self.runs[-1] = last._replace(unit_count=last.unit_count + run.unit_count)
        else:
            self.runs.append(RunPart(run.first, run.unit_count, run.skipped, run.restarts))
        self.units += run.units


class _RangeScan:
    """One reading of one range."""

    def __init__(
        self, job: ScanJob, work: RangeWork, reader: StoreReader, result: RangeResult
    ) -> None:
        self.job = job
        self.work = work
        self.reader = reader
        self.result = result
        self.topics = TopicTable()
        self.table = QueueTable(self.topics, job.batch_topics)
        self.units: dict[tuple[bytes, int], _QueueUnits] = {}
        self.entries = IndexEntries()
        self.tags: IndexedTags | None = None
        self.first_filler = NO_FILLER
        for end in work.known.queues if work.known is not None else ():
            self.table.set_end(end.topic, end.queue_id, end.next_ordinal, end.max_offset)

    def run(self) -> None:
        result, work = self.result, self.work
        assert result.begin is not None
        names = DISPATCH_COLUMNS if self.job.units or self.job.entries else ()
        extra = (*CRC_COLUMNS, "topic_id", "queue_id", "queue_offset")
        log = ColumnReader(
            self.reader.log,
            (*names, *(extra if self.job.checks else ())),
            topics=self.topics,
            delays_ms=self.job.delays_ms,
            threads=1,
            start=result.begin,
            stop=work.stop,
            newest_store_time=work.known.newest if work.known is not None else 0,
            last_store_time=work.known.last_time if work.known is not None else None,
        )
        views = [IndexView(segment, self.job.index_shape) for segment in self.job.index]
        try:
            if self.job.entries:
                self.tags = IndexedTags(
                    [view for view in views if view.usable],
                    self.reader.log.end,
                    self.job.tags_known,
                )
            self._take(log)
        finally:
            for view in views:
                view.close()
        result.end = log.position if result.log_end is None else result.log_end.offset
        result.decided_with = log.decided_with
        result.agreed = log.newest_store_time or 0
        result.last_time = log.last_store_time
        self._write()

    def _take(self, log: ColumnReader) -> None:
        result = self.result
        for part in log:
            if isinstance(part, Rows):
                self._rows(part)
            elif isinstance(part, Damage):
                result.events.append(FoundDamage(part, result.newest))
            elif isinstance(part, BlankMet):
                result.events.append(
                    FoundBlank(part.segment.segment.start, part.position, part.remaining)
                )
            else:
                result.log_end = part

    def _rows(self, part: Rows) -> None:
        result, job, columns = self.result, self.job, part.columns
        result.records += columns.count
        result.newest = max(result.newest, columns.store_timestamp[columns.count - 1])
        if not part.all_ok:
            for row in range(columns.count):
                if not columns.crc_ok[row]:
                    result.events.append(
                        BadChecksum(
                            columns.commit_log_offset[row],
                            columns.record_size[row],
                            columns.store_timestamp[row],
                        )
                    )
        if job.checks:
            self._record_checksums(part)
            if self.first_filler == NO_FILLER:
                self.first_filler = first_filler(part, self.topics)
                if self.first_filler != NO_FILLER:
                    result.events.append(FoundFillers(self.first_filler))
        if job.entries:
            assert self.tags is not None
            self.tags.put(part, self.topics, self.entries)
        if job.units:
            self._build(part)

    def _record_checksums(self, part: Rows) -> None:
        columns = part.columns
        for row in rows_failing_crc(part):
            self.result.events.append(
                BadRecordChecksum(
                    columns.commit_log_offset[row],
                    columns.record_size[row],
                    self.topics.names[columns.topic_id[row]],
                    columns.queue_id[row],
                    columns.queue_offset[row],
                )
            )

    def _build(self, part: Rows) -> None:
        built = part_units(self.reader, part, self.table)
        for anomaly in built.anomalies:
            self.result.events.append(FoundAnomaly(anomaly.commit_log_offset, anomaly.what))
        for run in built.runs:
            key = (run.topic, run.queue_id)
            units = self.units.get(key)
            if units is None:
                units = self.units[key] = _QueueUnits(run.is_batch)
                self.result.events.append(NewQueue(run.topic, run.queue_id, run.is_batch))
            units.add(run)

    def _write(self) -> None:
        result = self.result
        if not self.units and not self.entries.count:
            return
        again = "-again" if self.work.known is not None else ""
        path = os.path.join(self.job.scratch, f"range-{self.work.number:08d}{again}")
        result.path = path
        states = {
            (self.topics.names[state.topic_id], state.queue_id): state for state in self.table
        }
        # Under another name first: a task that runs twice at the same time must not share a file.
        unfinished = f"{path}.{uuid.uuid4().hex}"
        with open(unfinished, "wb") as file:
            position = 0
            for key, units in self.units.items():
                state = states[key]
                result.queues.append(
                    QueuePart(
                        *key,
                        units.is_batch,
                        tuple(units.runs),
                        path,
                        position,
                        len(units.units),
                        state.next_ordinal,
                        state.max_offset,
                    )
                )
                file.write(units.units)
                position += len(units.units)
            result.entries_position = position
            result.entry_count = count = self.entries.count
            file.write(memoryview(self.entries.hashes)[: 4 * count])
            file.write(memoryview(self.entries.offsets)[: 8 * count])
            file.write(memoryview(self.entries.timestamps)[: 8 * count])
        os.replace(unfinished, path)


# Reading scratch files.


def read_units(part: QueuePart) -> bytes:
    """All units of a part.

    Raises:
        OSError: the scratch file cannot be read.
    """
    return _read(part.path, part.position, part.size)


def _read(path: str, position: int, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = os.pread(file.fileno(), size, position)
    if len(data) != size:
        raise OSError(f"{path}: {len(data)} of {size} bytes at {position}")
    return data


class EntryPart(NamedTuple):
    """A range's index entries in its scratch file."""

    path: str
    position: int
    entry_count: int

    def read(self, start: int, stop: int) -> IndexEntries:
        """Entries [start, stop) of them.

        Raises:
            OSError: the scratch file cannot be read.
        """
        count = stop - start
        entries = IndexEntries()
        entries.count = count
        at = self.position
        entries.hashes = bytearray(_read(self.path, at + 4 * start, 4 * count))
        at += 4 * self.entry_count
        entries.offsets = bytearray(_read(self.path, at + 8 * start, 8 * count))
        at += 8 * self.entry_count
        entries.timestamps = bytearray(_read(self.path, at + 8 * start, 8 * count))
        return entries


class HasEntries(Protocol):
    """What tells where its index entries are: path and position of a file, and how many."""

    @property
    def path(self) -> str: ...

    @property
    def entries_position(self) -> int: ...

    @property
    def entry_count(self) -> int: ...


class EntryStream:
    """The index entries of all ranges, one after the other."""

    def __init__(self, results: Iterable[HasEntries]) -> None:
        self.parts = [
            EntryPart(each.path, each.entries_position, each.entry_count)
            for each in results
            if each.entry_count
        ]
        self._starts = [0, *accumulate(part.entry_count for part in self.parts)]

    @property
    def count(self) -> int:
        """How many entries there are."""
        return self._starts[-1]

    def pieces(self, start: int, stop: int) -> list[tuple[EntryPart, int, int]]:
        """Where entries [start, stop) lie: part, first and last place in it."""
        found = []
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            base = self._starts[number]
            end = min(stop, self._starts[number + 1])
            found.append((self.parts[number], start - base, end - base))
            start, number = end, number + 1
        return found

    def entry(self, number: int) -> tuple[int, int, int]:
        """Hash, CommitLog offset and store time of one entry."""
        [(part, start, stop)] = self.pieces(number, number + 1)
        return part.read(start, stop).entry(0)
