"""Finds records by key through a store's Index files.

What an Index file covers is the CommitLog between its header's two offsets. What no file covers
(files deleted after a crash, the tail that is not dispatched yet) has to be read by the caller, so
that an answer is complete whether the Index is or not. A file that contradicts itself counts as
not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oberth.errors import NotFoundError
from oberth.formats import index_file as index
from oberth.formats import paths
from oberth.spark.store_files import StoreFiles

#: A chain longer than this is not followed: reading the log is cheaper.
CHAIN_MAX = 1_000_000
_SLOT_SEARCH_MAX = 64 << 20


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
        return (
            first.commit_log_offset == header.begin_offset
            and first.previous == 0
            and last.commit_log_offset == header.end_offset
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
