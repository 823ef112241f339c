"""The CommitLog as columns, read by all cores, in the order of the log.

Segments are cut into pieces of a few MiB. Threads scan the pieces ahead (the kernels do not hold
the GIL) and the caller gets their columns one after another, with the damage between them. A piece
begins at the first record after its cut; that this is a real record's start is known once the
piece before ends exactly there, else it is read again from where that one ended. Everything that
is out of the ordinary (damage, the log's end) is settled by the caller's thread alone, by the rules
of `log_walk`: the same log gives the same records whatever the number of threads.

Without compiled kernels the same pieces go through plain Python, on one thread.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from oberth.formats.message import BLANK, MessageExt, decode_record
from oberth.formats.property_crc import CRC_PROPERTY, record_crc_ok
from oberth.formats.torn_record import SECTOR_SIZE, lacks_a_sector
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import find_record, scan
from oberth.store.offline.log_walk import (
    BODY_FAILS,
    NOT_WHOLE,
    Damage,
    LogEnd,
    damage_between,
    item_at,
    missing_between,
    next_valid,
)
from oberth.store.offline.segments import SegmentMap, SegmentStream

PIECE_SIZE: Final = 4 << 20
COLUMN_ROWS: Final = 16_384
# Pieces that are scanned ahead of the caller, for each thread.
_AHEAD: Final = 3
Report = Callable[[int], None]


class Rows(NamedTuple):
    """Records that lie one after the other in one segment.

    ``columns`` are the caller's until it asks for the next item. Rows whose ``crc_ok`` is 0 are
    records with a wrong body checksum, or with properties that are not whole.
    """

    segment: SegmentMap
    columns: Columns
    all_ok: bool


class BlankMet(NamedTuple):
    """The blank that ends a segment: where it is and what its size field says."""

    segment: SegmentMap
    position: int
    remaining: int


CRC_COLUMNS: Final = ("properties_at", "properties_size")
"""What `rows_failing_crc` looks at beside the columns that are always there."""


def rows_failing_crc(part: Rows) -> list[int]:
    """Rows whose records fail their whole-record CRC although their bodies are right.

    Brokers write that CRC into all records or none, so a look at two tells whether there is any.
    """
    columns, view = part.columns, part.segment.view
    for row in (0, columns.count - 1):
        start = columns.properties_at[row]
        if CRC_PROPERTY.encode() in bytes(view[start : start + columns.properties_size[row]]):
            break
    else:
        return []
    base = part.segment.segment.start
    found = []
    for row in range(columns.count):
        at = columns.commit_log_offset[row] - base
        record = view[at : at + columns.record_size[row]]
        if columns.crc_ok[row] and record_crc_ok(record) is False:
            found.append(row)
    return found


LogPart = Rows | BlankMet | Damage | LogEnd


@dataclass(slots=True)
class _Scanned:
    """A piece's clean records from its start up to the first oddity."""

    start: int
    position: int
    end: ScanEnd
    chunks: list[Columns]
    topics: TopicTable
    topic_count: int


class _Worker(threading.local):
    """What each thread keeps: a table of topics that agrees with the caller's so far."""

    topics: TopicTable | None = None
    generation: int = -1


@dataclass(slots=True)
class _Shared:
    """The caller's table, and which tables of workers have gone astray."""

    topics: TopicTable
    generation: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards names while they grow


class ColumnReader:
    """Reads a log once, from its first byte or a given record to its end or a given place.

    ``topics`` numbers the topics of the columns; it may be shared with other kernels' tables.
    Lifecycle: make it, iterate it once. One thread iterates.
    """

    def __init__(
        self,
        log: SegmentStream,
        names: Iterable[str],
        *,
        topics: TopicTable | None = None,
        check_crc: bool = True,
        delays_ms: tuple[int, ...] = (0,),
        threads: int | None = None,
        progress: Report | None = None,
        stop: int | None = None,
        start: int | None = None,
        newest_store_time: int = 0,
        last_store_time: int | None = None,
    ) -> None:
        """Prepares to read.

        Args:
            log: the CommitLog.
            names: columns that are wanted.
            topics: numbers the topics.
            check_crc: compute the bodies' checksums.
            delays_ms: for the due times of the schedule topic.
            threads: how many scan; None for one per core.
            progress: called with the bytes that are behind.
            stop: CommitLog offset; reading ends before the first record that starts there or
                behind, without an end of the log.
            start: CommitLog offset of the record that reading begins with; None for the log's
                first byte.
            newest_store_time: that two records before ``start`` have reached, ms; decides what can
                follow damage.
            last_store_time: of the record before ``start``, ms; None where nobody knows it.
        """
        wanted = {*names, "store_timestamp", "record_size", "commit_log_offset"}
        if check_crc:
            wanted |= {"crc_ok", "properties_size"}
        self.names = tuple(sorted(wanted))
        self.log = log
        self.topics = TopicTable() if topics is None else topics
        self.check_crc = check_crc
        self.delays_ms = delays_ms
        self.threads = max(1, len(os.sched_getaffinity(0)) if threads is None else threads)
        self.progress = progress
        self.stop = stop
        self.start = start
        # CommitLog offset after what was read.
        self.position = log.start if start is None else start
        # The smallest newest store time that a decision about damage was made with, None where
        # there was none: a part of a log read with no more than that before it is read the same.
        self.decided_with: int | None = None
        self._crc = CrcMode.MARK if check_crc else CrcMode.NONE
        self._free: list[Columns] = []
        self._worker = _Worker()
        self._shared = _Shared(self.topics)
        self._ones = (1).to_bytes(4, "little") * COLUMN_ROWS
        self._newest = newest_store_time
        self._last_time = last_store_time
        # The offset of a record that was read a second time: it is not read a third time.
        self._looked_again = -1
        # How many names of a worker's table have the same numbers here.
        self._agreed: dict[int, int] = {}

    @property
    def newest_store_time(self) -> int | None:
        """Store time that two records so far have reached, ms: what can follow is not older."""
        return self._newest or None

    @property
    def last_store_time(self) -> int | None:
        """Store time of the last record so far, ms."""
        return self._last_time

    def __iter__(self) -> Iterator[LogPart]:
        with ThreadPoolExecutor(self.threads, "oberth-scan") as pool:
            try:
                yield from self._read(pool)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, pool: ThreadPoolExecutor) -> Iterator[LogPart]:
        log = self.log
        behind = 0
        index = log.index_of(self.position) if self.start is not None else 0
        if index is None:
            return
        position = self.position - log.segments[index].start if log.segments else 0
        while index < len(log.segments):
            opened = log.map(index)
            outcome = yield from self._segment(pool, index, position)
            behind += len(opened)
            if self.progress is not None:
                self.progress(behind)
            if outcome is None:
                if self.position < opened.segment.end:
                    return  # it stopped inside the segment
                index, position = index + 1, 0
                missing = missing_between(log, index)
                if missing is not None and self._next_valid(index, 0, self._newest) is not None:
                    yield missing
                if index < len(log.segments):
                    self.position = log.segments[index].start
                    if self.stop is not None and self.position >= self.stop:
                        return
                continue
            bad, reason = outcome
            if reason == NOT_WHOLE:
                yield self._end(index, bad, reason)
                return
            after = self._next_valid(index, bad, self._newest, is_bad=True)
            if after is None:
                yield self._end(index, bad, reason)
                return
            if self._is_finished_since(opened, bad):
                self._looked_again = opened.segment.start + bad
                position = bad
                continue
            yield from damage_between(log, index, bad, after, reason)
            index, position = after
            self.position = log.segments[index].start + position
        yield LogEnd(log.end, "the last segment is full", None)

    def _next_valid(
        self, index: int, position: int, newest: int, *, is_bad: bool = False
    ) -> tuple[int, int] | None:
        """`log_walk.next_valid`, noting what it was asked with."""
        if self.decided_with is None or newest < self.decided_with:
            self.decided_with = newest
        return next_valid(self.log, index, position, newest, is_bad=is_bad)

    def _end(self, index: int, position: int, reason: str) -> LogEnd:
        garbage = None
        for behind in range(index, len(self.log.segments)):
            opened = self.log.map(behind)
            last = opened.last_nonzero(position if behind == index else 0, len(opened))
            if last is not None:
                garbage = opened.segment.start + last + 1
        return LogEnd(
            self.log.segments[index].start + position,
            reason if garbage is not None else "zeros",
            garbage,
        )

    def _segment(
        self, pool: ThreadPoolExecutor, index: int, start: int
    ) -> Generator[LogPart, None, tuple[int, str] | None]:
        """One segment from a record's start on.

        Returns:
            None at its regular end, else where it stopped and why.
        """
        opened = self.log.map(index)
        limit = len(opened)
        stop = limit
        if self.stop is not None:
            stop = min(limit, max(start, self.stop - opened.segment.start))
        cuts = self._cuts(opened, start, stop)
        waiting: deque[Future[_Scanned | None]] = deque()
        submitted = 0
        position = start
        for number, (cut, next_cut) in enumerate(cuts):
            while submitted < len(cuts) and submitted < number + _AHEAD * self.threads:
                first, last = cuts[submitted]
                waiting.append(pool.submit(self._scan_piece, opened, first, last, submitted == 0))
                submitted += 1
            scanned = waiting.popleft().result()
            if position >= next_cut:
                self._give_back(scanned)
                continue
            if scanned is None or scanned.start != position:
                self._give_back(scanned)
                scanned = self._scan(opened, position, next_cut)
            while True:
                cut_off = yield from self._rows(index, opened, scanned)
                if cut_off is not None:
                    return cut_off
                position = scanned.position
                self.position = opened.segment.start + position
                if scanned.end is ScanEnd.STOP:
                    break
                if scanned.end is ScanEnd.BLANK:
                    remaining, _ = BLANK.unpack_from(opened.view, position)
                    yield BlankMet(opened, position, remaining)
                    self.position = opened.segment.end
                    return None
                # A writer may have finished this record since it was looked at.
                scanned = self._scan(opened, position, next_cut)
                if not scanned.chunks and scanned.end is not ScanEnd.BLANK:
                    return position, _reason(opened, position)
            if self.progress is not None:
                self.progress(opened.segment.start - self.log.start + position)
            del cut
        if stop == limit:
            self.position = opened.segment.end
        return None if stop == limit or self.stop is not None else (position, "zeros")

    def _cuts(self, opened: SegmentMap, start: int, stop: int) -> list[tuple[int, int]]:
        """Where the pieces begin and end; the holes after the last data are one piece."""
        last = opened.last_data(start, stop)
        cuts = [start]
        cut = (start // PIECE_SIZE + 1) * PIECE_SIZE
        while cut < last:
            cuts.append(cut)
            cut += PIECE_SIZE
        return list(pairwise([*cuts, stop]))

    def _rows(
        self, index: int, opened: SegmentMap, scanned: _Scanned
    ) -> Generator[LogPart, None, tuple[int, str] | None]:
        for number, columns in enumerate(scanned.chunks):
            count = columns.count
            all_ok = not self.check_crc or bytes(columns.crc_ok[:count]) == self._ones[: 4 * count]
            if self.check_crc and self._lacks_its_end(index, opened, columns):
                columns.crc_ok[count - 1] = 0
                all_ok = False
            if self.check_crc and self.log.in_use and self._lack_sectors(opened, columns):
                all_ok = False
            cut_off = self._cut_off(index, opened, columns, all_ok=all_ok)
            self._note_times(columns, columns.count)
            self._renumber(columns, scanned)
            if columns.count:
                yield Rows(opened, columns, all_ok)
            self._recycle(columns)
            if cut_off is not None:
                for rest in scanned.chunks[number + 1 :]:
                    self._recycle(rest)
                return cut_off
        return None

    def _cut_off(
        self, index: int, opened: SegmentMap, columns: Columns, *, all_ok: bool
    ) -> tuple[int, str] | None:
        """Takes off rows that do not count, or not yet; says where they began and why."""
        if not all_ok:
            finished = self._finished_row(opened, columns)
            if finished is not None:
                return finished
            if not columns.crc_ok[columns.count - 1]:
                return self._trailing(index, opened, columns)
        return self._unfinished(index, opened, columns) if self.log.in_use else None

    @staticmethod
    def _lack_sectors(opened: SegmentMap, columns: Columns) -> bool:
        """Whether rows lack a sector of their properties; they count as failing their checksum."""
        found = False
        for row, size in enumerate(columns.properties_size[: columns.count]):
            if size >= SECTOR_SIZE:
                start = columns.commit_log_offset[row] - opened.segment.start
                end = start + columns.record_size[row]
                if lacks_a_sector(opened.view, start, end, size):
                    columns.crc_ok[row] = 0
                    found = True
        return found

    def _lacks_its_end(self, index: int, opened: SegmentMap, columns: Columns) -> bool:
        """Whether the damage that follows the last row begins in its properties.

        A page that was lost takes the end of the record before it along. No checksum covers that,
        but no broker writes properties that end in a zero.
        """
        if not columns.count:
            return False
        start = columns.commit_log_offset[columns.count - 1] - opened.segment.start
        end = start + columns.record_size[columns.count - 1]
        if opened.view[end - 1] or not decode_record(opened.view, start).ends_in_zeros:
            return False
        is_damage = isinstance(item_at(opened, end)[0], str)
        return is_damage and self._next_valid(index, end, 0, is_bad=True) is not None

    def _trailing(self, index: int, opened: SegmentMap, columns: Columns) -> tuple[int, str] | None:
        """Takes off rows with a wrong checksum at the log's end; they are no part of it."""
        base = opened.segment.start
        row = columns.count - 1
        end = columns.commit_log_offset[row] - base + columns.record_size[row]
        while row > 0 and not columns.crc_ok[row - 1]:
            row -= 1
        self._note_times(columns, row)
        if self._next_valid(index, end, self._newest) is not None:
            return None
        columns.count = row
        return columns.commit_log_offset[row] - base, BODY_FAILS

    def _is_finished_since(self, opened: SegmentMap, position: int) -> bool:
        """Whether a writer has finished what was no whole record when it was looked at."""
        return (
            self.log.in_use
            and opened.segment.start + position != self._looked_again
            and isinstance(item_at(opened, position)[0], MessageExt)
        )

    def _finished_row(self, opened: SegmentMap, columns: Columns) -> tuple[int, str] | None:
        """Takes off rows from the first one on whose body failed while it was being written."""
        if not self.log.in_use:
            return None
        for row in range(columns.count):
            if not columns.crc_ok[row]:
                start = columns.commit_log_offset[row] - opened.segment.start
                if self._is_finished_since(opened, start):
                    columns.count = row
                    return start, BODY_FAILS
        return None

    def _unfinished(
        self, index: int, opened: SegmentMap, columns: Columns
    ) -> tuple[int, str] | None:
        """Takes off the newest record of the log while its writer may be in the middle of it."""
        row = columns.count - 1
        start = columns.commit_log_offset[row] - opened.segment.start
        end = start + columns.record_size[row]
        if opened.view[end - 1] or not decode_record(opened.view, start).ends_in_zeros:
            return None
        self._note_times(columns, row)
        if not isinstance(item_at(opened, end)[0], str) or (
            self._next_valid(index, end, self._newest) is not None
        ):
            return None
        columns.count = row
        return start, NOT_WHOLE

    def _note_times(self, columns: Columns, count: int) -> None:
        """Takes in the store times at the end of some rows, of two records that agree."""
        if not count:
            return
        last = columns.store_timestamp[count - 1]
        before = columns.store_timestamp[count - 2] if count > 1 else self._last_time
        if before is None and self.start in (None, self.log.start):
            before = last  # no record lies before it
        if before is not None:
            self._newest = max(self._newest, min(before, last))
        self._last_time = last

    def _scan_piece(
        self, opened: SegmentMap, start: int, stop: int, is_record: bool
    ) -> _Scanned | None:
        """In a thread: the clean records of a piece, None if none begins in it."""
        if not is_record:
            data = opened.next_data(start)
            if data is None or data >= stop:
                return None
            found = find_record(
                opened.view, base=opened.segment.start, start=max(start, data), stop=stop
            )
            if found is None:
                return None
            start = found
        return self._scan(opened, start, stop)

    def _scan(self, opened: SegmentMap, start: int, stop: int) -> _Scanned:
        worker = self._worker
        with self._shared.lock:
            if worker.topics is None or worker.generation != self._shared.generation:
                worker.topics = TopicTable(self.topics.names)
                worker.generation = self._shared.generation
        topics = worker.topics
        chunks: list[Columns] = []
        position = start
        while True:
            columns = self._take()
            result = scan(
                opened.view,
                columns,
                topics,
                base=opened.segment.start,
                start=position,
                stop=stop,
                crc=self._crc,
                delays_ms=self.delays_ms,
            )
            position = result.position
            if columns.count:
                chunks.append(columns)
            else:
                self._recycle(columns)
            if result.end is not ScanEnd.FULL:
                return _Scanned(start, position, result.end, chunks, topics, len(topics.names))

    def _renumber(self, columns: Columns, scanned: _Scanned) -> None:
        """Gives the rows' topics the numbers of the caller's table."""
        if "topic_id" not in columns:
            return
        names = scanned.topics.names
        known = self._agreed.get(id(scanned.topics), 0)
        if known >= scanned.topic_count:
            return
        with self._shared.lock:
            numbers = [self.topics.intern(name) for name in names[: scanned.topic_count]]
            if numbers == list(range(len(numbers))):
                self._agreed[id(scanned.topics)] = scanned.topic_count
                return
            self._shared.generation += 1
        ids = columns.topic_id
        for row in range(columns.count):
            ids[row] = numbers[ids[row]]

    def _take(self) -> Columns:
        try:
            return self._free.pop()
        except IndexError:
            return Columns(COLUMN_ROWS, self.names)

    def _recycle(self, columns: Columns) -> None:
        columns.clear()
        self._free.append(columns)

    def _give_back(self, scanned: _Scanned | None) -> None:
        for columns in scanned.chunks if scanned is not None else ():
            self._recycle(columns)


def _reason(opened: SegmentMap, position: int) -> str:
    item, _ = item_at(opened, position)
    return item if isinstance(item, str) else BODY_FAILS
