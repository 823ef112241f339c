"""One index file: a hash table on disk from key hashes to CommitLog offsets.

Written through a mapping. Blocks are reserved before they are written: the slots when the file is
made, entries a chunk ahead; so a full disk is an exception and never a signal. Entries go into the
file at once, the header when `publish` is called: between two calls readers in other processes see
fewer entries, and after a crash `repair` finds the others.

Entries are in the order of the CommitLog: their offsets never decrease.

RocketMQ: IndexFile. It writes the header with every entry, and deletes the file after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oberth.errors import StoreCorruptError
from oberth.formats.index_file import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    TIME_DIFF_MAX,
    IndexEntry,
    IndexHeader,
    entry_position,
    file_size,
)
from oberth.store.files import MADV_RANDOM, FileSystem, Mapping, allocate_ahead

if TYPE_CHECKING:
    from oberth.kernels.index import IndexEntries

_pack_entry = ENTRY.pack_into
_unpack_slot = SLOT.unpack_from
_pack_slot = SLOT.pack_into


class IndexFile:
    """One file. One thread puts; any may query; it is deleted only while nobody puts."""

    __slots__ = (
        "_allocated",
        "_entries_start",
        "_mapping",
        "_published",
        "begin_offset",
        "begin_timestamp",
        "end_offset",
        "end_timestamp",
        "entries_max",
        "files",
        "hash_slot_count",
        "index_count",
        "name",
        "path",
        "slots",
        "view",
        "writable",
    )

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    hash_slot_count: int
    index_count: int

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        name: str,
        slots: int,
        entries_max: int,
        *,
        create: bool = False,
        writable: bool = True,
        begin_offset: int = 0,
        begin_timestamp: int = 0,
    ) -> None:
        """Opens a file, or makes one that begins where the one before it ended.

        Raises:
            StoreFullError: the disk has no room for the slots of a new file; it is not made.
            StoreCorruptError: an existing file of another size.
        """
        self.files = files
        self.name = name
        self.path = f"{directory}/{name}"
        self.slots = slots
        self.entries_max = entries_max
        self.writable = writable
        size = file_size(slots, entries_max)
        if not create and files.size(self.path) != size:
            raise StoreCorruptError(
                f"{self.path}: found {files.size(self.path)} bytes, {size} are what "
                f"{slots} slots and {entries_max} entries take; if the settings of sizes are "
                "right, `oberth store rebuild` makes queues and index anew"
            )
        self._mapping: Mapping = files.map(self.path, size, create=create, writable=writable)
        self.view = self._mapping.view
        self._entries_start = entry_position(0, slots)
        self._allocated = 0
        if create:
            try:
                self._reserve(self._entries_start)
            except BaseException:
                self._mapping.close()
                files.remove(self.path)
                raise
            # Keys fall anywhere: the kernel would make a stretch of pages around each first one.
            if MADV_RANDOM is not None:
                self._mapping.advise(MADV_RANDOM)
            HEADER.pack_into(
                self.view, 0, begin_timestamp, begin_timestamp, begin_offset, begin_offset, 0, 0
            )
        self.refresh()

    def __repr__(self) -> str:
        return (
            f"IndexFile({self.path}, {self.entry_count} entries, "
            f"{self.begin_offset} to {self.end_offset})"
        )

    def refresh(self) -> None:
        """Takes the header from the file."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.hash_slot_count,
            count,
        ) = HEADER.unpack_from(self.view, 0)
        self.index_count = self._published = max(count, 1)

    @property
    def header(self) -> IndexHeader:
        """The header as it stands in memory."""
        return IndexHeader(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.hash_slot_count,
            self.index_count,
        )

    @property
    def entry_count(self) -> int:
        """How many entries it holds."""
        return self.index_count - 1

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more. RocketMQ: isWriteFull."""
        return self.index_count >= self.entries_max

    # Writing

    def _reserve(self, end: int) -> None:
        if self._allocated < self._entries_start:
            # All slots: a key may fall into any of them. A file of RocketMQ's has holes here.
            self._mapping.allocate(0, self._entries_start)
            self._allocated = self._entries_start
        if end > self._allocated:
            start = max(self._allocated, self._entries_start + self.index_count * ENTRY_SIZE)
            self._allocated = allocate_ahead(self._mapping, start, end)

    def put(
        self, hashes: Sequence[int], commit_log_offset: int, store_timestamp: int, first: int = 0
    ) -> int:
        """Adds an entry for each key hash from ``first`` on, while there is room.

        Returns the number of the first hash that did not fit, len(hashes) if all did.
        RocketMQ: putKey.

        Raises:
            StoreFullError: the disk has no room; entries before are there, see index_count.
        """
        view = self.view
        count = self.index_count
        slots = self.slots
        entries_start = self._entries_start
        room = self.entries_max
        for number in range(first, len(hashes)):
            if count >= room:
                return number
            at = entries_start + count * ENTRY_SIZE
            if at + ENTRY_SIZE > self._allocated:
                self._reserve(at + ENTRY_SIZE)
            key_hash = hashes[number]
            slot_at = HEADER_SIZE + key_hash % slots * SLOT_SIZE
            previous = _unpack_slot(view, slot_at)[0]
            if previous <= 0 or previous > count:
                previous = 0
                self.hash_slot_count += 1
            begin = self.begin_timestamp
            # Against the begin that a rolled file inherited, for its first entry: as RocketMQ.
            time_diff = (store_timestamp - begin) // 1000 if 0 < begin < store_timestamp else 0
            if time_diff > TIME_DIFF_MAX:
                time_diff = TIME_DIFF_MAX
            _pack_entry(view, at, key_hash, commit_log_offset, time_diff, previous)
            _pack_slot(view, slot_at, count)
            if count == 1:
                self.begin_offset = commit_log_offset
                self.begin_timestamp = store_timestamp
            count += 1
            self.index_count = count
            self.end_offset = commit_log_offset
            self.end_timestamp = store_timestamp
        return len(hashes)

    def put_stream(self, entries: IndexEntries, start: int) -> int:
        """Adds entries of a stream from ``start`` on through the kernel, while there is room.

        Returns the number of the first entry that did not fit, ``entries.count`` if all did.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        from oberth.kernels.index import put_entries  # noqa: PLC0415 - for large backlogs

        count = min(self.index_count + entries.count - start, self.entries_max)
        self._reserve(self._entries_start + count * ENTRY_SIZE)
        self.publish()
        done = put_entries(self.view, self.slots, self.entries_max, entries, start)
        self.refresh()
        return done

    def confirm_end(self, commit_log_offset: int, store_timestamp: int) -> None:
        """Tells the exact store time of the newest entry, which after `cut` is only near."""
        if self.end_offset == commit_log_offset and self.end_timestamp != store_timestamp:
            self.end_timestamp = store_timestamp
            self._published = -1

    def publish(self) -> None:
        """Writes the header, if there are entries that it does not tell of."""
        if self._published != self.index_count:
            self._write_header()

    def _write_header(self) -> None:
        HEADER.pack_into(self.view, 0, *self.header)
        self._published = self.index_count

    def flush(self) -> int:
        """Publishes and syncs; returns the index_count that is on the disk."""
        self.publish()
        count = self.index_count
        self._mapping.sync()
        return count

    # Reading

    def entry(self, number: int) -> IndexEntry:
        """Entry ``number``, from 1 to entry_count."""
        return IndexEntry(*ENTRY.unpack_from(self.view, self._entries_start + number * ENTRY_SIZE))

    def is_time_matched(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a time interval has something in common with the file's."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (
            (begin_ms < first and end_ms > last)
            or first <= begin_ms <= last
            or (first <= end_ms <= last)
        )

    def select(self, key_hash: int, max_num: int, begin_ms: int, end_ms: int) -> list[int]:
        """CommitLog offsets of the entries with a key hash, newest first.

        RocketMQ: selectPhyOffset. Times are whole seconds behind the file's begin, so an entry may
        seem up to 999 ms older than it is.
        """
        found: list[int] = []
        count = self.index_count
        if count <= 1:
            return found
        slot_at = HEADER_SIZE + key_hash % self.slots * SLOT_SIZE
        if self._allocated < self._entries_start:
            # A file of RocketMQ's has holes between its slots; see Mapping.data_end.
            data = self._mapping.next_data(slot_at)
            if data is None or data >= slot_at + SLOT_SIZE:
                return found
        (number,) = _unpack_slot(self.view, slot_at)
        unpack, start = ENTRY.unpack_from, self._entries_start
        while count <= number < self.entries_max:
            # Just being put, or by another process that has not published it yet.
            previous = unpack(self.view, start + number * ENTRY_SIZE)[3]
            number = previous if previous < number else 0
        while 0 < number < count and len(found) < max_num:
            entry_hash, offset, time_diff, previous = unpack(self.view, start + number * ENTRY_SIZE)
            if time_diff < 0:
                break
            time = self.begin_timestamp + time_diff * 1000
            if entry_hash == key_hash and begin_ms <= time <= end_ms:
                found.append(offset)
            # A chain only leads to older entries; one that does not is damaged.
            if previous >= number or time < begin_ms:
                break
            number = previous
        return found

    def count_at_end(self, commit_log_offset: int) -> int:
        """How many of the newest entries belong to the record at an offset."""
        number = self.entry_count
        while number > 0 and self.entry(number).commit_log_offset == commit_log_offset:
            number -= 1
        return self.entry_count - number

    # Checking and repairing

    def trouble(self) -> str | None:
        """Why the header cannot be right, or None. Reads the header and two entries."""
        header = self.header
        if not 0 <= header.hash_slot_count <= header.index_count:
            return f"{header.hash_slot_count} slots in use by {header.index_count - 1} entries"
        if header.index_count > self.entries_max:
            return f"index count {header.index_count}, at most {self.entries_max}"
        if header.begin_offset > header.end_offset:
            return f"begins at offset {header.begin_offset}, ends at {header.end_offset}"
        if header.index_count > 1:
            first = self.entry(1).commit_log_offset
            last = self.entry(header.index_count - 1).commit_log_offset
            if (first, last) != (header.begin_offset, header.end_offset):
                return (
                    f"entries from offset {first} to {last}, the header says "
                    f"{header.begin_offset} to {header.end_offset}"
                )
        return None

    def first_at_or_behind(self, commit_log_offset: int) -> int:
        """The number of the first entry of a record that starts there or after."""
        start, stop = 1, self.index_count
        while start < stop:
            middle = (start + stop) // 2
            if self.entry(middle).commit_log_offset >= commit_log_offset:
                stop = middle
            else:
                start = middle + 1
        return start

    def cut(self, index_count: int) -> None:
        """Keeps the entries below a number and makes slots, chains and header anew from them.

        The end timestamp is then that of the last entry's second, until `confirm_end` tells it.
        """
        from oberth.kernels.index import relink  # noqa: PLC0415 - for large backlogs

        self._reserve(self._entries_start + index_count * ENTRY_SIZE)
        self.index_count = index_count
        if index_count > 1:
            last = self.entry(index_count - 1)
            self.begin_offset = self.entry(1).commit_log_offset
            self.end_offset = last.commit_log_offset
            self.end_timestamp = self._end_timestamp(last)
        else:  # as one that has had none: what comes next may lie before what it had
            self.begin_offset = self.end_offset = 0
            self.begin_timestamp = self.end_timestamp = 0
        self._write_header()
        self.hash_slot_count = relink(self.view, self.slots, self.entries_max)
        self._write_header()

    def _end_timestamp(self, last: IndexEntry) -> int:
        """The store time of an entry; the header's if they agree on the second."""
        second = self.begin_timestamp + last.time_diff * 1000
        return min(self.end_timestamp, second + 999) if self.end_timestamp >= second else second

    # Closing

    def close(self) -> None:
        """Unmaps the file."""
        if self.writable and len(self.view):
            self.publish()
        self.unmap()

    def unmap(self) -> None:
        """Unmaps the file as it is: nothing is published."""
        self.view = memoryview(b"")
        self._mapping.close()

    def destroy(self) -> None:
        """Unmaps and deletes the file."""
        self.unmap()
        self.files.remove(self.path)
        self.files.sync_directory(os.path.dirname(self.path))
