"""Writes Index files from a stream of entries, as RocketMQ would have.

A file's name is a time; RocketMQ takes the moment it makes the file, which is not known any more.
Here it is the store time of the file's first entry, in local time as there; where that is not later
than the name of the file before (two within a millisecond, a store time that is damaged, an hour
that a clock is set back), it is that name and one more. Everything else in the files is RocketMQ's.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Final

from oberth.formats.index_file import HEADER, IndexHeader
from oberth.kernels.index import IndexEntries, put_entries, start_file
from oberth.store.offline.index_view import IndexView, real_count, seed
from oberth.store.offline.layout import IndexShape

_YEAR_MAX: Final = 9999


class IndexTreeWriter:
    """All index files in one directory, one after the other."""

    def __init__(self, directory: str, shape: IndexShape) -> None:
        self.directory = directory
        self.shape = shape
        self.paths: list[str] = []
        self.entries = 0
        self._last_name = ""
        self._file: int = -1
        self._map: mmap.mmap | None = None
        self._previous: IndexHeader | None = None

    @property
    def room(self) -> int:
        """How many entries the file that is being filled still takes, 0 where there is none."""
        if self._map is None:
            return 0
        return self.shape.entries - IndexHeader(*HEADER.unpack_from(self._map)).next_entry

    @property
    def last_header(self) -> IndexHeader | None:
        """The header of the last file that was closed."""
        return self._previous

    def add(self, entries: IndexEntries) -> None:
        """Puts all entries of a stream; full files are closed and the next are begun."""
        start = 0
        while start < entries.count:
            if self._map is None:
                self._open(entries.entry(start)[2])
            assert self._map is not None
            taken = put_entries(
                memoryview(self._map), self.shape.slots, self.shape.entries, entries, start
            )
            self.entries += taken - start
            start = taken
            if start < entries.count:
                self._close()

    def keep_expired(self, views: Sequence[IndexView], log_start: int) -> None:
        """Begins with the entries of records that the log has no more, as they are in old files."""
        for view in views:
            count = real_count(view)
            expired = 0
            while (
                expired < count
                and 0 <= view.entry(expired + 1).commit_log_offset < log_start
                and view.entry(expired + 1).key_hash >= 0
            ):
                expired += 1
            if not expired:
                return
            self._create(os.path.basename(view.path))
            assert self._map is not None
            with memoryview(self._map) as room:
                seed(room, view, expired, self.shape.slots)
                if expired == count:
                    room[: HEADER.size] = view.map.view[: HEADER.size]
            self.entries += expired
            if expired < count:
                return
            if view.header.next_entry >= self.shape.entries:
                self._close()

    def _open(self, first_timestamp_ms: int) -> None:
        self._create(file_name(first_timestamp_ms, self._last_name))
        assert self._map is not None
        with memoryview(self._map) as room:
            start_file(room, self._previous)

    def _create(self, name: str) -> None:
        os.makedirs(self.directory, exist_ok=True)
        self._last_name = name
        path = os.path.join(self.directory, name)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(self._file, self.shape.file_size)
        self._map = mmap.mmap(self._file, self.shape.file_size)
        self.paths.append(path)

    def _close(self) -> None:
        if self._map is None:
            return
        self._previous = IndexHeader(*HEADER.unpack_from(self._map))
        self._map.close()
        self._map = None
        os.close(self._file)

    def finish(self) -> None:
        """Closes the last file."""
        self._close()


def file_name(timestamp_ms: int, last_name: str) -> str:
    """The name for a file that begins at this store time, yyyyMMddHHmmssSSS in local time.

    Names are the order of the files, so it is later than the name of the file before, "" for none.
    """
    seconds, milliseconds = divmod(max(timestamp_ms, 0), 1000)
    try:
        moment = time.localtime(seconds)
    except (OverflowError, OSError, ValueError):
        moment = time.localtime(0)
    if moment.tm_year > _YEAR_MAX:
        moment = time.localtime(0)
    name = f"{time.strftime('%Y%m%d%H%M%S', moment)}{milliseconds:03d}"
    if name > last_name or len(name) != len(last_name):  # a name of another length is no time
        return name
    return f"{int(last_name) + 1:017d}"
