"""Compares index files with the entries that the CommitLog asks for.

The fast way: the entries of the log are put into a scratch file as RocketMQ would have put them,
and once it holds as many as the real file the two are compared byte by byte. Only where they differ
is the file walked entry by entry, to say which entries, slots or header fields are wrong.

What the log cannot tell is not judged: entries of records that have expired, and entries of the
same record twice, which RocketMQ makes after a crash.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oberth.errors import StoreError
from oberth.formats import index_file as fmt
from oberth.formats import paths
from oberth.formats.index_file import IndexEntry, IndexHeader
from oberth.formats.message import STORE_TIMESTAMP_END_MAX
from oberth.kernels.columns import TopicTable
from oberth.kernels.index import IndexEntries, put_entries, relink, start_file
from oberth.store.offline.findings import Finding, FindingKind, Severity
from oberth.store.offline.index_view import IndexView, real_count, seed
from oberth.store.offline.indexed_tags import IndexedTags, tags_known
from oberth.store.offline.log_columns import Rows
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.segments import same_bytes

FINDINGS_PER_FILE: Final = 200
_LOOK_BACK: Final = 64
LATEST_OFFSET: Final = 2**63 - 1


class _Wanted(NamedTuple):
    """An entry that the log asks for."""

    key_hash: int
    offset: int
    timestamp: int


@dataclass(slots=True)
class _Current:
    """The file that is being compared."""

    view: IndexView
    count: int
    seeded: int
    first: int  # offset of the record that its first entry that is none of these is of
    damaged: int  # how many entries before that one name no record
    scratch: mmap.mmap | None = None
    wanted: list[_Wanted] = field(default_factory=list)
    slow: bool = False
    held: list[_Wanted] = field(default_factory=list)


class IndexCheck:
    """Takes the log's rows in order and compares; `finish` says what is left over."""

    def __init__(self, reader: StoreReader, found: Callable[[Finding], None]) -> None:
        self.reader = reader
        self.found = found
        self.enabled = reader.layout.config.message_index_enable
        self.files = list(reader.index_files())
        self._tags = IndexedTags(self.files, reader.log.end, tags_known(reader))
        self.shape = reader.layout.index_shape
        self.compared = 0
        self.in_damage: Callable[[int], bool] = lambda offset: False
        self._entries = IndexEntries()
        self._number = 0
        self._current: _Current | None = None
        self._next_first = -1, 0  # where a file's entries begin, by its number
        self._previous: IndexHeader | None = None
        self._missing = 0
        self._first_missing: int | None = None
        self._last_missing = 0
        self._wanted_any = False

    def begin_at(self, number: int) -> None:
        """Begins with a file in the middle; the entries that come are those from its first on.

        Only where all files before it were as the log asks, each to its last entry.
        """
        self._number = number
        self._wanted_any = True
        if number:
            self._previous = self.files[number - 1].header

    def is_behind(self, number: int) -> bool:
        """Whether all files before one were compared to their last entries, and no key was missing.

        Then `begin_at` that file, with the entries that follow, is going on here.
        """
        return (
            self._current is None
            and self._number == number
            and not self._missing
            and self._previous == self.files[number - 1].header
        )

    def rows(self, part: Rows, topics: TopicTable) -> None:
        """Compares the entries of some records."""
        if not self.enabled:
            return
        entries = self._entries
        entries.clear()
        self._tags.put(part, topics, entries)
        self.add(entries)

    def add(self, entries: IndexEntries) -> None:
        """Compares some entries that the log asks for, in its order.

        How many come at once makes no difference: tasks have other parts of the log than one
        reader.
        """
        self._wanted_any |= entries.count > 0
        at = 0
        while at < entries.count:
            current = self._current
            if current is None:
                at = self._open(entries, at)
                if self._current is None:
                    return
                continue
            if current.slow:
                at = self._collect(current, entries, at)
                continue
            if current.scratch is None:
                at = self._approach(current, entries, at)
                continue
            room = current.count - (self._written(current) - 1)
            stop = min(entries.count, at + room)
            with memoryview(current.scratch) as scratch:
                put_entries(scratch, self.shape.slots, self.shape.entries, entries, at, stop)
            at = stop
            if self._written(current) - 1 >= current.count:
                self._compare(current)

    def _written(self, current: _Current) -> int:
        assert current.scratch is not None
        return IndexHeader(*fmt.HEADER.unpack_from(current.scratch)).next_entry

    def _open(self, entries: IndexEntries, at: int) -> int:
        """Begins with the next file that has entries at or after the wanted one.

        Returns:
            The wanted entry that is the next; with no file left all are missing.
        """
        while self._number < len(self.files):
            view = self.files[self._number]
            self._number += 1
            count = real_count(view)
            wanted = entries.entry(at)[1]
            seeded = 0
            while seeded < count and self._is_older(view, seeded + 1, wanted):
                seeded += 1
            for number in range(1, seeded + 1):
                self._extra(view, number)
            if seeded == count:
                # All of it is of expired records.
                self._previous = view.header
                continue
            self._current = _Current(view, count, seeded, *self._first_in(view, seeded + 1, count))
            return at
        for number in range(at, entries.count):
            self._lacks(entries.entry(number)[1])
        return entries.count

    def _approach(self, current: _Current, entries: IndexEntries, at: int) -> int:
        """Passes over what lies before a file's first entry, and is missing, and begins there.

        Entries at the front that name no record could be those of the wanted just before. The
        record of the first may have others in a file before that is gone.
        """
        begin = _position_of(entries, current.first, at)
        for number in range(at, begin):
            current.held.append(_Wanted(*entries.entry(number)))
            if len(current.held) > current.damaged:
                self._lacks(current.held.pop(0).offset)
        front = current.view.entry(current.seeded + 1)
        for number in range(begin, entries.count):
            wanted = _Wanted(*entries.entry(number))
            if _same(front, wanted):
                for each in current.held:
                    self._lacks(each.offset)
                current.held.clear()
            elif not current.damaged and wanted.offset == current.first:
                current.held.append(wanted)
                continue
            self._begin(current)
            return number
        return entries.count

    def _begin(self, current: _Current) -> None:
        """Starts a scratch file with what a file has before the entries that come."""
        current.scratch = mmap.mmap(-1, self.shape.file_size)
        with memoryview(current.scratch) as room:
            if current.seeded:
                seed(room, current.view, current.seeded, self.shape.slots)
            else:
                start_file(room, self._previous)
        self._add_again(current.held)

    def _add_again(self, wanted: list[_Wanted]) -> None:
        entries = IndexEntries(len(wanted))
        for key_hash, offset, timestamp in wanted:
            stored = timestamp if timestamp >= 0 else self._stored(offset)
            entries.append(key_hash, offset, stored)
        self.add(entries)

    def _first_in(self, view: IndexView, number: int, count: int) -> tuple[int, int]:
        """Where a file's entries begin, and how many damaged ones lie before: offsets only grow.

        Offsets at which no record lies are damaged too, if any of the first lies at one.
        """
        offsets = [
            view.entry(each).commit_log_offset for each in range(number, min(number + 4, count + 1))
        ]
        possible = [offset for offset in offsets if offset >= 0]
        first = min(filter(self._is_record, possible), default=min(possible, default=0))
        return first, offsets.index(first) if first in offsets else 0

    def _is_record(self, offset: int) -> bool:
        try:
            self.reader.record_at(offset)
        except StoreError:
            return False
        return True

    def _is_older(self, view: IndexView, number: int, wanted: int) -> bool:
        """Whether an entry at a file's front is of a record before the wanted one."""
        entry = view.entry(number)
        if not 0 <= entry.commit_log_offset < wanted:
            return False
        if entry.commit_log_offset < self.reader.min_offset:
            return True
        # Indexed twice after a crash, at the end of the file before. Else it is a damaged entry.
        before = self.files[self._number - 2] if self._number > 1 else None
        if before is None:
            return False
        count = real_count(before)
        return any(
            before.entry(each)[:2] == entry[:2]
            for each in range(max(1, count - _LOOK_BACK), count + 1)
        )

    def _compare(self, current: _Current) -> None:
        scratch, view = current.scratch, current.view
        assert scratch is not None
        end = fmt.entry_position(current.count + 1, self.shape.slots)
        with memoryview(scratch) as wanted:
            same = same_bytes(wanted[:end], view.map.view[:end])
            if not same:
                for number in range(current.seeded + 1, self._written(current)):
                    entry = _entry(wanted, number, self.shape.slots)
                    current.wanted.append(_Wanted(entry.key_hash, entry.commit_log_offset, -1))
        scratch.close()
        current.scratch = None
        if same:
            self.compared += current.count
            self._rest(view, current.count)
            self._previous = view.header
            self._current = None
        else:
            current.slow = True

    def _collect(self, current: _Current, entries: IndexEntries, at: int) -> int:
        """Goes on collecting wanted entries of a file that differs, up to its last record."""
        last = self._last_offset()
        end = bisect.bisect_right(
            range(entries.count), last, at, key=lambda number: entries.entry(number)[1]
        )
        current.wanted += (_Wanted(*entries.entry(number)) for number in range(at, end))
        if end < entries.count:
            self._settle(current)
        return end

    def _settle(self, current: _Current) -> None:
        """Says where a file differs; wanted entries that are not its own go on to the next.

        Where records of this one are lost, others were taken to fill it. The record that the next
        file begins with may have entries in both.
        """
        wanted, last = current.wanted, self._last_offset()
        own = bisect.bisect_left(wanted, last, key=_offset_of)
        end = bisect.bisect_right(wanted, last, own, key=_offset_of)
        cut = max(own, min(end, current.count - current.seeded))
        if self._number < len(self.files):
            first = self.files[self._number].entry(1)
            cut = next((at for at in range(own, end) if _same(first, wanted[at])), cut)
        rest = wanted[cut:]
        del wanted[cut:]
        self._walk(current)
        self._add_again(rest)

    def _last_offset(self) -> int:
        """The last record that a file can speak of: the one that the next file begins with."""
        if self._number == len(self.files):
            return LATEST_OFFSET
        if self._next_first[0] != self._number:
            following = self.files[self._number]
            first, _ = self._first_in(following, 1, real_count(following))
            self._next_first = self._number, first
        return self._next_first[1]

    def _walk(self, current: _Current) -> None:
        """Says where a file differs from what is wanted."""
        view, slots = current.view, self.shape.slots
        self._current = None
        budget = _Budget(self.found)
        wanted = current.wanted
        here, there = current.seeded + 1, 0
        good = bytearray(view.map.view[: fmt.entry_position(current.count + 1, slots)])
        good += bytes(self.shape.file_size - len(good))
        while here <= current.count:
            entry = view.entry(here)
            want = wanted[there] if there < len(wanted) else None
            if want is not None and _same(entry, want):
                self._time(budget, view, here, entry, want)
                here, there = here + 1, there + 1
                continue
            if self.in_damage(entry.commit_log_offset):
                here += 1
                continue
            following = view.entry(here + 1) if here < current.count else None
            if want is None:
                self._extra(view, here, budget)
                here += 1
            elif (here == current.count and there == len(wanted) - 1) or (
                following is not None
                and there + 1 < len(wanted)
                and _same(following, wanted[there + 1])
            ):
                self._wrong(budget, view, here, entry, want)
                fmt.ENTRY.pack_into(
                    good, fmt.entry_position(here, slots), want.key_hash, want.offset,
                    entry.time_diff, entry.previous,
                )  # fmt: skip
                here, there = here + 1, there + 1
            elif following is not None and _same(following, want):
                self._extra(view, here, budget)
                here += 1
            elif want.offset < entry.commit_log_offset:
                self._lacks(want.offset)
                there += 1
            elif want.offset > entry.commit_log_offset:
                self._extra(view, here, budget)
                here += 1
            else:
                self._wrong(budget, view, here, entry, want)
                fmt.ENTRY.pack_into(
                    good, fmt.entry_position(here, slots), want.key_hash, want.offset,
                    entry.time_diff, entry.previous,
                )  # fmt: skip
                here, there = here + 1, there + 1
        for want in wanted[there:]:
            self._lacks(want.offset)
        self._chains(budget, view, good, current.count)
        self._header(budget, view, current)
        self._rest(view, current.count)
        self.compared += current.count
        # The next file begins with these; what is wrong in this header is reported already.
        header = view.header
        if wanted:
            last = wanted[min(there, len(wanted)) - 1].offset
            header = header._replace(end_offset=last, end_timestamp=self._stored(last))
        self._previous = header

    def _chains(self, budget: _Budget, view: IndexView, good: bytearray, count: int) -> None:
        slots = self.shape.slots
        header = view.header
        fmt.HEADER.pack_into(good, 0, *header[:5], count + 1)
        relink(good, slots, self.shape.entries)
        first, end = fmt.slot_position(0), fmt.slot_position(slots)
        actual = view.map.view
        if actual[first:end] != memoryview(good)[first:end]:
            for slot in range(slots):
                (should,) = fmt.SLOT.unpack_from(good, fmt.slot_position(slot))
                if view.slot(slot) != should:
                    budget(
                        FindingKind.INDEX_SLOT, self._file(view), fmt.slot_position(slot),
                        f"slot {slot}: entry {view.slot(slot)}", f"entry {should}",
                    )  # fmt: skip
        for number in range(1, count + 1):
            should_be = _entry(good, number, slots)
            entry = view.entry(number)
            if entry.previous != should_be.previous:
                budget(
                    FindingKind.INDEX_ENTRY,
                    self._file(view),
                    fmt.entry_position(number, slots) + 16,
                    f"entry {number}: previous {entry.previous}",
                    f"{should_be.previous}",
                    offset=entry.commit_log_offset,
                )

    def _rest(self, view: IndexView, count: int) -> None:
        """Place 0 is never used, and after the last entry nothing is written."""
        slots = self.shape.slots
        used = fmt.entry_position(count + 1, slots)
        unused = fmt.entry_position(0, slots)
        for start, end, what in (
            (unused, unused + fmt.ENTRY_SIZE, "zeros: the place of entry 0 is never used"),
            (used, self.shape.file_size, "zeros behind the last entry"),
        ):
            at = view.map.first_nonzero(start, end)
            if at is None:
                continue
            severity = Severity.DAMAGE
            if used <= at < min(used + fmt.ENTRY_SIZE, self.shape.file_size):
                entry = view.entry(count + 1)
                if entry.key_hash > 0 and entry.commit_log_offset > 0:
                    # A whole entry right after the last: left over from before a truncation.
                    severity = Severity.NOTE
            self.found(
                Finding(
                    FindingKind.INDEX_TAIL, self._file(view), at,
                    f"byte 0x{view.map.view[at]:02x}", what, severity,
                )
            )  # fmt: skip

    def _header(self, budget: _Budget, view: IndexView, current: _Current) -> None:
        header = view.header
        slots_used = sum(1 for slot in range(self.shape.slots) if view.slot(slot))
        expected: dict[str, tuple[int, int, int]] = {
            "indexCount": (36, header.index_count, current.count + 1),
        }
        if header.hash_slot_count != slots_used:
            expected["hashSlotCount"] = (32, header.hash_slot_count, slots_used)
        if current.seeded == 0 and current.wanted and not self.in_damage(header.begin_offset):
            expected["beginPhyOffset"] = (16, header.begin_offset, current.wanted[0].offset)
            expected["beginTimestamp"] = (
                0, header.begin_timestamp, self._stored(current.wanted[0].offset),
            )  # fmt: skip
        if current.wanted:
            last = view.entry(current.count).commit_log_offset
            if not 0 <= last < self.reader.log.end and last != header.end_offset:
                last = current.wanted[-1].offset
            expected["endPhyOffset"] = (24, header.end_offset, last)
            expected["endTimestamp"] = (8, header.end_timestamp, self._stored(last))
        for name, (position, found, should) in expected.items():
            if found != should and should >= 0:
                # The header is written last: a process that ended may not have come so far.
                behind = (
                    self.reader.layout.abort
                    and view is self.files[-1]
                    and not name.startswith("begin")
                    and 0 <= found <= should
                )
                budget(
                    FindingKind.INDEX_HEADER, self._file(view), position,
                    f"{name} {found}", str(should),
                    severity=Severity.NOTE if behind else Severity.DAMAGE,
                )  # fmt: skip

    def _stored(self, offset: int) -> int:
        return self.reader.store_timestamp(offset, STORE_TIMESTAMP_END_MAX)

    def _time(
        self, budget: _Budget, view: IndexView, number: int, entry: IndexEntry, want: _Wanted
    ) -> None:
        stored = want.timestamp if want.timestamp >= 0 else self._stored(want.offset)
        header = view.header
        begin = header.begin_timestamp
        if number == 1:
            begin = self._previous.end_timestamp if self._previous is not None else 0
        should = fmt.time_diff_seconds(stored, begin)
        if entry.time_diff == should:
            return
        if number == 1 and self._previous is None and self.reader.min_offset > 0:
            return  # it is counted from the end of a file that has expired
        # A header whose begin is damaged is reported as such, not for each of its entries.
        real_begin = self._stored(view.entry(1).commit_log_offset)
        if number > 1 and real_begin >= 0 and real_begin != begin:
            should = fmt.time_diff_seconds(stored, real_begin)
            if entry.time_diff == should:
                return
        budget(
            FindingKind.INDEX_ENTRY,
            self._file(view),
            fmt.entry_position(number, self.shape.slots) + 12,
            f"entry {number}: time {entry.time_diff} s",
            f"{should} s after the file's first",
            offset=want.offset,
        )

    def _wrong(
        self, budget: _Budget, view: IndexView, number: int, entry: IndexEntry, want: _Wanted
    ) -> None:
        budget(
            FindingKind.INDEX_ENTRY,
            self._file(view),
            fmt.entry_position(number, self.shape.slots),
            f"entry {number}: hash {entry.key_hash}, offset {entry.commit_log_offset}",
            f"hash {want.key_hash}, offset {want.offset}",
            offset=want.offset,
        )

    def _extra(self, view: IndexView, number: int, budget: _Budget | None = None) -> None:
        """An entry that the log does not ask for."""
        entry = view.entry(number)
        offset = entry.commit_log_offset
        if offset < self.reader.min_offset or self.in_damage(offset):
            return
        severity = Severity.DAMAGE
        expected = "no entry: the CommitLog has no such record or key"
        if offset >= self.reader.max_offset:
            severity = Severity.NOTE
            expected = "no entry behind the log's end; a reader finds no record there"
        elif number > 1 and _is_repeated(view, number):
            severity = Severity.NOTE
            expected = "one entry a key; RocketMQ indexes a record twice after a crash"
        (budget or _Budget(self.found))(
            FindingKind.INDEX_ENTRY if severity is Severity.DAMAGE else FindingKind.INDEX_TAIL,
            self._file(view),
            fmt.entry_position(number, self.shape.slots),
            f"entry {number}: hash {entry.key_hash}, offset {offset}",
            expected,
            severity=severity,
            offset=offset,
        )

    def _lacks(self, offset: int) -> None:
        self._missing += 1
        if self._first_missing is None:
            self._first_missing = offset
        self._last_missing = offset

    def _file(self, view: IndexView) -> str:
        return self.reader.layout.relative(view.path)

    def finish(self) -> None:
        """Compares the last file and reports what was wanted and is nowhere."""
        if not self.enabled:
            return
        if not self.files:
            if self._wanted_any and self.reader.layout.index_readable:
                self.found(
                    Finding(
                        FindingKind.INDEX_MISSING, paths.INDEX, 0, "no index file",
                        "the keys of the CommitLog's records; `oberth store rebuild` makes them",
                    )
                )  # fmt: skip
            return
        while (current := self._current) is not None:
            if current.scratch is None and not current.slow:
                # The log ended before the first of its entries.
                if not current.held:
                    self._current = None
                    for number in range(current.seeded + 1, current.count + 1):
                        self._extra(current.view, number)
                    continue
                self._begin(current)
                continue
            if not current.slow:
                # The log ended before the file did.
                self._compare_short(current)
            self._settle(current)
        while self._number < len(self.files):
            view = self.files[self._number]
            self._number += 1
            for number in range(1, real_count(view) + 1):
                self._extra(view, number)
        if self._missing:
            behind = (
                self.reader.layout.abort
                and self._first_missing is not None
                and (
                    self._first_missing
                    >= max((view.header.end_offset for view in self.files), default=0)
                )
            )
            self.found(
                Finding(
                    FindingKind.INDEX_ENTRY_MISSING,
                    paths.INDEX,
                    0,
                    f"no entry for {self._missing} keys of records from CommitLog offset "
                    f"{self._first_missing} to {self._last_missing}",
                    "an entry for each; `oberth store rebuild` makes them",
                    Severity.NOTE if behind else Severity.DAMAGE,
                    commit_log_offset=self._first_missing,
                )
            )

    def _compare_short(self, current: _Current) -> None:
        scratch = current.scratch
        assert scratch is not None
        with memoryview(scratch) as wanted:
            for number in range(current.seeded + 1, self._written(current)):
                entry = _entry(wanted, number, self.shape.slots)
                current.wanted.append(_Wanted(entry.key_hash, entry.commit_log_offset, -1))
        scratch.close()
        current.scratch = None
        current.slow = True


class _Budget:
    """Passes findings on, up to a number for each file."""

    def __init__(self, found: Callable[[Finding], None]) -> None:
        self._found = found
        self._left = FINDINGS_PER_FILE

    def __call__(
        self,
        kind: FindingKind,
        file: str,
        position: int,
        found: str,
        expected: str,
        *,
        severity: Severity = Severity.DAMAGE,
        offset: int | None = None,
    ) -> None:
        if self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            kind, position = FindingKind.LIMIT, 0
            found, expected, offset = "more findings in this file", "none", None
        self._found(
            Finding(kind, file, position, found, expected, severity, commit_log_offset=offset)
        )


def _same(entry: IndexEntry, want: _Wanted) -> bool:
    return entry.key_hash == want.key_hash and entry.commit_log_offset == want.offset


def _offset_of(wanted: _Wanted) -> int:
    return wanted.offset


def _position_of(entries: IndexEntries, offset: int, at: int) -> int:
    """The first wanted entry from a number on that is of a record at an offset or after it."""
    return bisect.bisect_left(
        range(entries.count), offset, at, key=lambda number: entries.entry(number)[1]
    )


def _is_repeated(view: IndexView, number: int) -> bool:
    entry = view.entry(number)
    for before in range(number - 1, max(number - 64, 0), -1):
        other = view.entry(before)
        if other.commit_log_offset < entry.commit_log_offset:
            return False
        if other.key_hash == entry.key_hash and other.commit_log_offset == entry.commit_log_offset:
            return True
    return False


def _entry(file: bytearray | memoryview, number: int, slots: int) -> IndexEntry:
    return IndexEntry(*fmt.ENTRY.unpack_from(file, fmt.entry_position(number, slots)))
