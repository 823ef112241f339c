"""Finds records by key through a store's Index files.

`IndexFiles.sort` trusts nothing: it reads every entry and says of each record that a queue names
whether the Index has it under one of the keys, under others only, or not at all. What it does not
have (the Index was off for a while, files were deleted, the tail is not dispatched yet) the caller
has to read.

`IndexFiles.find` follows the chains of a few slots, which costs next to nothing, and takes a file
to have everything between its header's two offsets, which the format does not promise: where the
Index was off for a while, files have gaps that no header shows.

A file that contradicts itself counts as not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from oberth.errors import NotFoundError
from oberth.formats import index_file as index
from oberth.formats import paths
from oberth.spark.store_files import StoreFiles

CHAIN_MAX: Final = 1_000_000
"""A chain longer than this is not followed: reading the log is cheaper."""
_SLOT_SEARCH_MAX: Final = 64 << 20
_ENTRIES_AT_ONCE: Final = 1 << 20
_ENTRY_DTYPE: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("time", ">i4"), ("previous", ">i4")]
)
assert _ENTRY_DTYPE.itemsize == index.ENTRY_SIZE


class IndexAnswer(NamedTuple):
    """Where records of some keys can be.

    Attributes:
        positions: CommitLog offsets of candidates, ascending; hashes collide, so keys have to be
            compared.
        uncovered: ranges of the CommitLog that the Index says nothing about.
    """

    positions: tuple[int, ...]
    uncovered: tuple[tuple[int, int], ...]


class IndexFiles:
    """The Index of one store, as it is when this is made."""

    def __init__(self, store: StoreFiles) -> None:
        self._store = store
        directory = f"{store.root}/{paths.INDEX}"
        self._files = [
            (f"{directory}/{entry.name}", entry.size)
            for entry in store.storage.entries(directory)
            if paths.is_index_name(entry.name) and entry.size > index.HEADER_SIZE
        ]

    def newest(self) -> tuple[str, int, index.IndexHeader, int | None] | None:
        """The newest file: path, size, header and slots (None if it contradicts itself)."""
        if not self._files:
            return None
        path, size = self._files[-1]
        raw = self._store.storage.read(path, 0, index.HEADER_SIZE)
        header = index.IndexHeader(*index.HEADER.unpack(raw))
        if header.next_entry <= 1:
            return path, size, header, None
        return path, size, header, self._slots(path, size, header)

    def find(self, keys: Iterable[tuple[str, str]], log_start: int, log_end: int) -> IndexAnswer:
        """Records of any of the keys, each a topic and a key (or unique key).

        Args:
            keys: what to look for.
            log_start: where the CommitLog begins.
            log_end: where it ends; what lies between and is in no Index file is uncovered.
        """
        hashes = {index.key_hash(topic, key) for topic, key in keys}
        found: set[int] = set()
        covered: list[tuple[int, int]] = []
        for path, size in self._files:
            try:
                answer = self._find_in(path, size, hashes)
            except NotFoundError:
                continue
            if answer is not None:
                begin, end, candidates = answer
                covered.append((begin, end))
                found |= candidates
        uncovered = []
        at = log_start
        for begin, end in sorted(covered):
            if begin > at:
                uncovered.append((at, min(begin, log_end)))
            # The record at the end is indexed; where it ends is not said.
            at = max(at, end + 1)
        if at < log_end:
            uncovered.append((at, log_end))
        positions = sorted(p for p in found if log_start <= p < log_end)
        return IndexAnswer(tuple(positions), tuple(u for u in uncovered if u[0] < u[1]))

    def sort(self, keys: Iterable[tuple[str, str]], positions: Any) -> tuple[Any, Any]:
        """What the Index knows of records: masks of those it has, and of those with a key.

        Args:
            keys: what to look for, each a topic and a key (or unique key).
            positions: CommitLog offsets of records, ascending.
        """
        hashes = np.array(sorted({index.key_hash(*key) for key in keys}), np.int32)
        known = np.zeros(len(positions), bool)
        wanted = np.zeros(len(positions), bool)
        for path, size in self._files:
            try:
                self._sort_by(path, size, hashes, positions, known, wanted)
            except NotFoundError:
                continue  # deleted meanwhile, with the log it is about
        return known, wanted

    def _sort_by(
        self, path: str, size: int, hashes: Any, positions: Any, known: Any, wanted: Any
    ) -> None:
        raw = self._store.storage.read(path, 0, index.HEADER_SIZE)
        if len(raw) < index.HEADER_SIZE or not len(positions):
            return
        header = index.IndexHeader(*index.HEADER.unpack(raw))
        count = header.next_entry - 1
        if count < 1 or not 0 <= header.begin_offset <= header.end_offset:
            return
        if header.end_offset < positions[0] or header.begin_offset > positions[-1]:
            return
        slots = self._slots(path, size, header)
        if slots is None:
            return
        entries = np.zeros(count + 2, np.dtype([("hash", "i4"), ("offset", "i8")]))
        sound = np.ones(count + 2, bool)
        for first in range(1, count + 1, _ENTRIES_AT_ONCE):
            asked = min(_ENTRIES_AT_ONCE, count + 1 - first)
            part = self._store.storage.read(
                path, index.entry_position(first, slots), asked * index.ENTRY_SIZE
            )
            read = np.frombuffer(part, _ENTRY_DTYPE, len(part) // index.ENTRY_SIZE)
            last = first + len(read)
            sound[last : first + asked] = False
            entries["hash"][first:last] = read["hash"]
            entries["offset"][first:last] = read["offset"]
            previous = read["previous"].astype(np.int64)
            before = (previous >= 0) & (previous < np.arange(first, last))
            chained = entries["hash"][np.where(before, previous, 0)] % slots
            same = (previous == 0) | (chained == read["hash"] % slots)
            sound[first:last] = before & same & (read["hash"] >= 0)
            # Either of two that are chained wrongly may be the damaged one.
            sound[previous[before & ~same]] = False
        offsets = entries["offset"]
        inside = (offsets >= header.begin_offset) & (offsets <= header.end_offset)
        sound &= inside
        sound[2 : count + 1] &= offsets[2 : count + 1] >= offsets[1:count]
        sound[[0, count + 1]] = True
        # A damaged entry may be any key of its neighbours' records. A record's keys are entered one
        # by one: those of the first may begin in the file before, those of the last may go on in
        # the next, and either may be gone.
        doubted = {int(offsets[1]), int(offsets[count])}
        for number in np.flatnonzero(~sound).tolist():
            doubted |= {int(offsets[at]) for at in (number - 1, number, number + 1)}
        named = np.unique(offsets[1 : count + 1])
        named = named[~np.isin(named, np.array(sorted(doubted), np.int64))]
        known |= np.isin(positions, named)
        found = offsets[1 : count + 1][np.isin(entries["hash"][1 : count + 1], hashes)]
        wanted |= np.isin(positions, found)

    def _find_in(self, path: str, size: int, hashes: set[int]) -> tuple[int, int, set[int]] | None:
        """Begin and end of what a file covers, and the candidates in it; None if it is damaged."""
        raw = self._store.storage.read(path, 0, index.HEADER_SIZE)
        if len(raw) < index.HEADER_SIZE:
            return None
        header = index.IndexHeader(*index.HEADER.unpack(raw))
        count = header.next_entry
        if count <= 1 or not 0 <= header.begin_offset <= header.end_offset:
            return None
        slots = self._slots(path, size, header)
        if slots is None:
            return None
        found: set[int] = set()
        for key_hash in hashes:
            chain = self._chain(path, key_hash, slots, header)
            if chain is None:
                return None
            found |= chain
        return header.begin_offset, header.end_offset, found

    def _chain(
        self, path: str, key_hash: int, slots: int, header: index.IndexHeader
    ) -> set[int] | None:
        storage = self._store.storage
        raw = storage.read(path, index.slot_position(key_hash % slots), index.SLOT_SIZE)
        number: int = index.SLOT.unpack(raw)[0]
        found: set[int] = set()
        steps = 0
        while number != 0:
            steps += 1
            if not 0 < number < header.next_entry or steps > CHAIN_MAX:
                return None
            entry = self._entry(path, number, slots)
            if (
                entry.key_hash % slots != key_hash % slots
                or not header.begin_offset <= entry.commit_log_offset <= header.end_offset
                or not 0 <= entry.previous < number
            ):
                return None
            if entry.key_hash == key_hash:
                found.add(entry.commit_log_offset)
            number = entry.previous
        return found

    def _entry(self, path: str, number: int, slots: int) -> index.IndexEntry:
        raw = self._store.storage.read(path, index.entry_position(number, slots), index.ENTRY_SIZE)
        if len(raw) < index.ENTRY_SIZE:
            return index.IndexEntry(-1, -1, 0, 0)
        return index.IndexEntry(*index.ENTRY.unpack(raw))

    def _slots(self, path: str, size: int, header: index.IndexHeader) -> int | None:
        """How many slots a file has. It does not say so: its size and first entry do.

        size = 40 + 4 * slots + 20 * entries, and entry 1 names the header's begin_offset.
        """
        room = size - index.HEADER_SIZE
        if room % 4:
            return None
        # Usually there are four times as many entries as slots.
        usual = room // (index.SLOT_SIZE + 4 * index.ENTRY_SIZE)
        for slots in (index.DEFAULT_SLOTS, usual):
            if self._fits(path, size, slots, header):
                return slots
        return self._search_slots(path, size, header)

    def _fits(self, path: str, size: int, slots: int, header: index.IndexHeader) -> bool:
        entries = (size - index.HEADER_SIZE - slots * index.SLOT_SIZE) // index.ENTRY_SIZE
        if slots < 1 or entries < header.next_entry or index.file_size(slots, entries) != size:
            return False
        first = self._entry(path, 1, slots)
        last = self._entry(path, header.next_entry - 1, slots)
        # The newest entry heads its chain. Offsets alone would fit with a few slots less too,
        # where the log begins at 0 and several entries are about the last record.
        head = self._store.storage.read(
            path, index.slot_position(last.key_hash % slots), index.SLOT_SIZE
        )
        return (
            first.commit_log_offset == header.begin_offset
            and first.previous == 0
            and last.commit_log_offset == header.end_offset
            and head == index.SLOT.pack(header.next_entry - 1)
        )

    def _search_slots(self, path: str, size: int, header: index.IndexHeader) -> int | None:
        needle = header.begin_offset.to_bytes(8, "big")
        high = min(size, _SLOT_SEARCH_MAX)
        data = self._store.storage.read(path, 0, high)
        # The offset lies 4 bytes into entry 1, which follows the unused place 0.
        at = data.find(needle, index.HEADER_SIZE + index.ENTRY_SIZE)
        while at >= 0:
            slots, odd = divmod(at - 4 - index.ENTRY_SIZE - index.HEADER_SIZE, index.SLOT_SIZE)
            if odd == 0 and self._fits(path, size, slots, header):
                return slots
            at = data.find(needle, at + 1)
        return None
