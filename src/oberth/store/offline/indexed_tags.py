"""Which records' tags an Index has entries of.

RocketMQ puts tags into the Index from 5.5.0 on. A store that brokers of both lines have written has
them in stretches, so the answer is one for each record: it is read from the index files. Where a
stretch of the log has them all or none, it is enough that the entries name the records that they
should; else each record's entries are looked up.

What the files do not tell is as it is with the record before: entries that are damaged, and records
that have no entry at all. What lies after the last entry a broker of the line that the store is of
now would index.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from oberth.errors import StoreError
from oberth.formats.index_file import ENTRY, ENTRY_SIZE, IndexEntry, entry_position, key_hash
from oberth.formats.options import Line
from oberth.kernels.columns import TopicTable
from oberth.kernels.index import IndexEntries, index_keys
from oberth.store.offline.index_view import IndexView, index_key, real_count
from oberth.store.offline.log_columns import Rows
from oberth.store.offline.reader import StoreReader

_ENTRIES_LOOKED_AT: Final = 1000
# One of them may be damaged and name another place.
_NEWEST_ENTRIES: Final = 8
_NEIGHBOURS: Final = 2
# Of so many records with tags most say whether tags are indexed: entries of one may be damaged.
_RECORDS_ASKED: Final = 3


def indexes_tags(reader: StoreReader, *, at_end: bool = False) -> bool:
    """Whether tags are indexed at the Index's beginning, or at its end; else by the store's line.

    Looks at the records with tags among the oldest entries of a file, or the newest.
    """
    views = reader.index_files()
    found: list[bool] = []
    for view in reversed(views) if at_end else views:
        count = real_count(view)
        stop = min(count, _ENTRIES_LOOKED_AT)
        numbers = range(count - stop + 1, count + 1) if at_end else range(1, stop + 1)
        hashes: dict[int, set[int]] = {}
        for number in numbers:
            entry = view.entry(number)
            hashes.setdefault(entry.commit_log_offset, set()).add(entry.key_hash)
        # The record at an edge may have entries in the next file, or beyond those looked at.
        offsets = list(hashes)[1:][::-1] if at_end else list(hashes)[:-1]
        for offset in offsets:
            try:
                message = reader.record_at(offset)
            except StoreError:
                continue
            if message.tags:
                wanted = key_hash(message.topic, index_key(message.tags, "T"))
                found.append(wanted in hashes[offset])
            if len(found) == _RECORDS_ASKED:
                return found.count(True) * 2 > len(found)
    return found[0] if found else reader.line is not Line.V4_9


class _Record(NamedTuple):
    """A record's entries as the log asks for them; ``tag`` is None where it has no tags."""

    offset: int
    timestamp: int
    keys: list[int]
    tag: int | None


class TagsKnown(NamedTuple):
    """What `IndexedTags` is told beside the files, see there."""

    before: bool
    behind: bool


def tags_known(reader: StoreReader) -> TagsKnown:
    """What an Index and its store's line say."""
    before = indexes_tags(reader)
    return TagsKnown(before, before or reader.line is not Line.V4_9)


class IndexedTags:
    """Makes the entries of records as an Index has them. The log's parts come in order."""

    def __init__(self, files: Sequence[IndexView], log_end: int, known: TagsKnown) -> None:
        """Takes an Index.

        Args:
            files: its files, oldest first.
            log_end: CommitLog offset after the last record.
            known: whether tags are indexed where the files do not tell: before they do for the
                first time, and after the last entry.
        """
        self._files = list(files)
        self._counts = [real_count(file) for file in self._files]
        self._starts = [0, *accumulate(self._counts)]
        self._tags, self._behind = known
        count = self._starts[-1]
        self._last = self._last_before(log_end, count)
        if self._last < 0:
            # The log has lost its end, and what is left in it has entries further in front.
            self._last = self._last_before(log_end, self._number_at(log_end))

    def _last_before(self, log_end: int, number: int) -> int:
        """The last record in the log that entries below a number are of; -1: they are of none."""
        newest = self._entries(max(number - _NEWEST_ENTRIES, 0), number)
        return max((offset for _, offset in newest if offset < log_end), default=-1)

    def put(self, part: Rows, topics: TopicTable, entries: IndexEntries) -> None:
        """Appends the entries of some records; those of tags where the Index has them."""
        columns, view = part.columns, part.segment.view
        if not columns.count:
            return
        first = columns.commit_log_offset[0]
        if first > self._last:
            index_keys(columns, topics, view, entries, index_tags=self._behind)
            return
        start = entries.count
        low = self._number_at(first)
        high = self._number_at(columns.commit_log_offset[columns.count - 1] + 1)
        for tags in (self._tags, not self._tags):
            index_keys(columns, topics, view, entries, index_tags=tags)
            if entries.count - start == high - low and self._same_records(entries, start, low):
                self._tags = tags
                return
            entries.count = start
        self._put_each(part, topics, entries, low, high)

    def _same_records(self, entries: IndexEntries, start: int, low: int) -> bool:
        """Whether the entries from ``low`` on are of the same records as those from ``start`` on.

        Entries of records that are lost could make up for others in number.
        """
        count = entries.count - start
        wanted = memoryview(entries.offsets)[8 * start : 8 * entries.count]
        for file, first, number in self._stretches(low, low + count):
            at = entry_position(first, file.shape.slots)
            entry_bytes = file.map.view[at : at + number * ENTRY_SIZE]
            for place in range(8):
                own = place if sys.byteorder == "big" else 7 - place
                if entry_bytes[4 + place :: ENTRY_SIZE] != wanted[own : 8 * number : 8]:
                    return False
            wanted = wanted[8 * number :]
        return True

    def _number_at(self, commit_log_offset: int) -> int:
        """How many entries are of records before an offset; a few damaged ones do not matter."""
        start, stop = 0, self._starts[-1]
        while start < stop:
            middle = at = (start + stop) // 2
            passed = min(stop, middle + _ENTRIES_LOOKED_AT)
            while at < passed and not any(self._entry(at)[:2]):
                at += 1  # zeros
            if at < stop and self._offset_at(at) < commit_log_offset:
                start = at + 1
            else:
                stop = middle
        return start

    def _offset_at(self, number: int) -> int:
        """The offset of an entry, or one that two on either side agree on: offsets only grow."""
        reach = min(_NEIGHBOURS, number, self._starts[-1] - 1 - number)
        near = (self._entry(each) for each in range(number - reach, number + reach + 1))
        return sorted(entry.commit_log_offset for entry in near)[reach]

    def _entry(self, number: int) -> IndexEntry:
        file = bisect_right(self._starts, number) - 1
        return self._files[file].entry(number - self._starts[file] + 1)

    def _entries(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Hash and CommitLog offset of the entries [low, high)."""
        for file, first, number in self._stretches(low, high):
            at = entry_position(first, file.shape.slots)
            for fields in ENTRY.iter_unpack(file.map.view[at : at + number * ENTRY_SIZE]):
                yield fields[0], fields[1]

    def _stretches(self, low: int, high: int) -> Iterator[tuple[IndexView, int, int]]:
        """Where the entries [low, high) lie: file, number of the first there, and how many."""
        for file, start, count in zip(self._files, self._starts, self._counts, strict=False):
            first, end = max(low - start, 0), min(high - start, count)
            if first < end:
                yield file, first + 1, end - first

    def _put_each(
        self, part: Rows, topics: TopicTable, entries: IndexEntries, low: int, high: int
    ) -> None:
        records = _records(part, topics)
        offsets = {record.offset for record in records}
        present: dict[int, list[int]] = {}
        torn: set[int] = set()  # records behind whose entries a damaged one lies
        known = -1
        found = list(self._entries(low, high))
        for at, (value, offset) in enumerate(found):
            following = found[at + 1][1] if at + 1 < len(found) else offset
            # A damaged entry may name a record by chance, but out of turn.
            is_in_turn = known <= offset and not known <= following < offset
            if is_in_turn and offset in offsets:
                present.setdefault(offset, []).append(value)
                known = offset
            else:
                torn.add(known)
        follows = _has_next(records, present)
        indexed = -1  # the record before that has entries
        is_gap = False
        for number, record in enumerate(records):
            here = present.get(record.offset, [])
            if record.keys:
                is_gap = not here
            if here:
                indexed = record.offset
            if record.tag is not None:
                if record.tag in here:
                    self._tags = True
                elif record.offset > self._last:
                    self._tags = self._behind
                elif follows[number] and not (
                    is_gap or indexed in torn or any(h not in record.keys for h in here)
                ):
                    self._tags = False
            for value in record.keys:
                entries.append(value, record.offset, record.timestamp)
            if record.tag is not None and self._tags:
                entries.append(record.tag, record.offset, record.timestamp)


def _has_next(records: Sequence[_Record], present: Mapping[int, Sequence[int]]) -> list[bool]:
    """Whether the next record with keys behind each has its first entry.

    If not, the record's own last ones may be lost, too: with the file that they were in.
    """
    found = []
    has_next = False
    for record in reversed(records):
        found.append(has_next)
        if record.keys:
            has_next = record.keys[0] in present.get(record.offset, ())
    return found[::-1]


def _records(part: Rows, topics: TopicTable) -> list[_Record]:
    """The entries of each record that has any, tags told apart."""
    streams = []
    for tags in (False, True):
        stream = IndexEntries()
        index_keys(part.columns, topics, part.segment.view, stream, index_tags=tags)
        rows = map(stream.entry, range(stream.count))
        streams.append([(offset, list(group)) for offset, group in groupby(rows, lambda e: e[1])])
    bare = dict(streams[0])
    records = []
    for offset, group in streams[1]:
        keys = [value for value, _, _ in bare.get(offset, [])]
        tag = group[-1][0] if len(group) > len(keys) else None
        records.append(_Record(offset, group[0][2], keys, tag))
    return records
