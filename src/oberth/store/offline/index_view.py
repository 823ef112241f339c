"""Index files as they lie on disk: which records have a key.

Queries follow RocketMQ's to the letter (limits, order, the times that are only known to the
second); what they return are candidates by hash, and who reads the records compares the keys.
RocketMQ: IndexService.queryOffset, IndexFile.selectPhyOffset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from oberth.formats.index_file import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT,
    IndexEntry,
    IndexHeader,
    entry_position,
    key_hash,
    slot_position,
)
from oberth.kernels.index import relink
from oberth.store.offline.layout import IndexShape
from oberth.store.offline.segments import Segment, SegmentMap

MESSAGES_PER_QUERY_MAX: Final = 64
LATEST_MS: Final = 2**63 - 1


class IndexView:
    """One index file, mapped for reading."""

    def __init__(self, segment: Segment, shape: IndexShape) -> None:
        self.path = segment.path
        self.shape = shape
        self.map = SegmentMap(segment)

    @property
    def usable(self) -> bool:
        """Whether the file is long enough for its shape."""
        return len(self.map) >= self.shape.file_size

    @property
    def header(self) -> IndexHeader:
        """The header as it is now."""
        if len(self.map) < HEADER_SIZE:
            return IndexHeader(0, 0, 0, 0, 0, 0)
        return IndexHeader(*HEADER.unpack_from(self.map.view, 0))

    def entry(self, number: int) -> IndexEntry:
        """Entry ``number``, from 1."""
        return IndexEntry(
            *ENTRY.unpack_from(self.map.view, entry_position(number, self.shape.slots))
        )

    def slot(self, number: int) -> int:
        """The newest entry of a slot as it lies there."""
        value: int = SLOT.unpack_from(self.map.view, slot_position(number))[0]
        return value

    def entries(self) -> Iterator[IndexEntry]:
        """All entries in the order they were written."""
        written = min(self.header.next_entry, self.shape.entries) - 1
        start = entry_position(1, self.shape.slots)
        for fields in ENTRY.iter_unpack(self.map.view[start : start + written * ENTRY_SIZE]):
            yield IndexEntry(*fields)

    def matches_time(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a time range and the file's have something in common, as RocketMQ tests it."""
        header = self.header
        first, last = header.begin_timestamp, header.end_timestamp
        return (
            (begin_ms < first and end_ms > last)
            or first <= begin_ms <= last
            or first <= end_ms <= last
        )

    def chain(self, hash_value: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Offsets of the entries with a hash, newest first."""
        header = self.header
        count = header.next_entry
        number = self.slot(hash_value % self.shape.slots)
        if number <= 0 or number > count or count <= 1:
            return
        while number < self.shape.entries:
            entry = self.entry(number)
            if entry.time_diff < 0:
                return
            stored = header.begin_timestamp + entry.time_diff * 1000
            if entry.key_hash == hash_value and begin_ms <= stored <= end_ms:
                yield entry.commit_log_offset
            # A chain only leads to older entries; a damaged one could lead round in a circle.
            if not 0 < entry.previous < number or stored < begin_ms:
                return
            number = entry.previous

    def close(self) -> None:
        """Unmaps the file."""
        self.map.close()


def index_key(key: str, index_type: str | None = None) -> str:
    """What stands behind ``topic#`` for a key: tags have their type before them (5.x)."""
    return f"T#{key}" if index_type == "T" else key


def candidates(
    files: Sequence[IndexView],
    topic: str,
    key: str,
    begin_ms: int = 0,
    end_ms: int = LATEST_MS,
    index_type: str | None = None,
) -> Iterator[int]:
    """CommitLog offsets of records that may have a key, newest first: by hash only."""
    wanted = key_hash(topic, index_key(key, index_type))
    for file in reversed(files):
        if file.matches_time(begin_ms, end_ms):
            yield from file.chain(wanted, begin_ms, end_ms)
        if file.header.begin_timestamp < begin_ms:
            return


def query_offsets(
    files: Sequence[IndexView],
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int = 0,
    end_ms: int = LATEST_MS,
    index_type: str | None = None,
) -> list[int]:
    """What RocketMQ answers: at most 64 candidates, newest first."""
    limit = min(max_num, MESSAGES_PER_QUERY_MAX)
    return list(islice(candidates(files, topic, key, begin_ms, end_ms, index_type), limit))


def real_count(view: IndexView) -> int:
    """How many entries a file holds, judged by its bytes rather than by its header alone."""
    header = view.header
    slots, most = view.shape.slots, view.shape.entries - 1
    count = min(max(header.next_entry - 1, 0), most)
    start = entry_position(1, slots)
    end = entry_position(most + 1, slots)
    said = entry_position(count + 1, slots)
    if count and _ends_at(view, header, count):
        return count
    if said < end and not any(view.map.view[said : said + ENTRY_SIZE]):
        # Usual: nothing after what the header says. If there is nothing there either, it lies.
        if count == 0 or any(view.map.view[said - ENTRY_SIZE : said]):
            return count
        end = said
    last = view.map.last_nonzero(start, end)
    if last is None:
        return 0
    found = (last - start) // ENTRY_SIZE + 1
    return found


def _ends_at(view: IndexView, header: IndexHeader, count: int) -> bool:
    """Whether a file agrees with its header on which entry is the last.

    What lies after it then is left over: entries of a log that was cut off.
    """
    last = view.entry(count)
    return (
        last.key_hash >= 0
        and last.commit_log_offset == header.end_offset
        and view.slot(last.key_hash % view.shape.slots) == count
    )


def seed(room: memoryview, view: IndexView, count: int, slots: int) -> None:
    """Begins an index file with the first entries of another, which are taken as they are."""
    start, end = entry_position(1, slots), entry_position(count + 1, slots)
    room[start:end] = view.map.view[start:end]
    header = view.header
    last = view.entry(count)
    HEADER.pack_into(
        room, 0, header.begin_timestamp, header.begin_timestamp + last.time_diff * 1000,
        header.begin_offset, last.commit_log_offset, 0, count + 1,
    )  # fmt: skip
    used = relink(room, slots, view.shape.entries)
    HEADER.pack_into(
        room, 0, header.begin_timestamp, header.begin_timestamp + last.time_diff * 1000,
        header.begin_offset, last.commit_log_offset, used, count + 1,
    )  # fmt: skip
