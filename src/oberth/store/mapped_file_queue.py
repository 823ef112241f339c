"""A byte stream cut into segments of one size, in one directory or several.

Invariant: segments are sorted by start offset and each but the first begins where the one before
ends; a gap between names is an error at load. `flushed_where` and `committed_where` are stream
offsets. RocketMQ: MappedFileQueue, MultiPathMappedFileQueue.
"""

from __future__ import annotations

import bisect
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from oberth.errors import StoreCorruptError
from oberth.formats.paths import segment_start
from oberth.store.files import MADV_NORMAL, FileSystem
from oberth.store.mapped_file import MappedFile, TransientStorePool

_LOG: Final = logging.getLogger(__name__)

Allocate = Callable[[str, int, str, int], MappedFile | None]

_FIRST_BYTES: Final = 4096
"""A segment with data has some here: records and units begin at its start."""


class MappedFileQueue:
    """The segments of one stream. Appends come from one thread at a time."""

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[str],
        file_size: int,
        *,
        read_only_directories: Sequence[str] = (),
        writable: bool = True,
        allocate: Allocate | None = None,
        transient_pool: TransientStorePool | None = None,
        is_full: Callable[[str], bool] = lambda _directory: False,
    ) -> None:
        self.files = files
        self.directories = tuple(directories)
        self.read_only_directories = tuple(read_only_directories)
        self.file_size = file_size
        self.segments: list[MappedFile] = []
        self.flushed_where = 0
        self.committed_where = 0
        self.store_timestamp = 0
        self.advice: int | None = None
        """A hint for every segment, ``mmap.MADV_…``; see `advise`."""
        self.syncs_often = False
        """Whether every append is synced before the next; see `prepare_for_syncs`."""
        self._writable = writable
        self._allocate = allocate
        self._transient_pool = transient_pool
        self._is_full = is_full

    # Opening and closing

    def load(self, unsynced_from: int | None = None) -> None:
        """Maps the segments that are there; each counts as full until recovery says otherwise.

        Args:
            unsynced_from: the offset from which on a loss of power may have come before a segment's
                first sync; None if there was none. Such a segment has 0 bytes, and one behind it
                may have its data, since a disk writes files in any order: it becomes a hole of a
                segment's size, which recovery takes for damage, and what follows is kept.

        Raises:
            StoreCorruptError: a foreign file, a wrong size, or a gap between two segments.
        """
        found: list[tuple[int, str]] = []
        for directory in dict.fromkeys((*self.directories, *self.read_only_directories)):
            for name in self.files.list(directory):
                path = f"{directory}/{name}"
                if self.files.is_dir(path):
                    continue
                start = segment_start(name)
                if start is None:
                    # RocketMQ would refuse to start on a name that is no number. A stray file is
                    # no reason to lose a store's service; `oberth store verify` reports it.
                    continue
                found.append((start, directory))
        found.sort()
        if self._writable:
            self._drop_never_synced(found)
        for start, directory in found:
            path = f"{directory}/{start:020d}"
            size = self.files.size(path)
            writable = self._writable and directory not in self.read_only_directories
            lost = writable and not size and unsynced_from is not None and start >= unsynced_from
            if lost:
                _LOG.error(
                    "%s has 0 bytes and a later segment has data: its messages were lost before "
                    "they were synced, what follows is kept",
                    path,
                )
            elif size != self.file_size:
                raise StoreCorruptError(
                    f"{path}: found {size} bytes, configured are {self.file_size} for every segment"
                )
            if self.segments and start != self.segments[-1].end_offset:
                raise StoreCorruptError(
                    f"{path}: starts at {start}, but the segment before ends at "
                    f"{self.segments[-1].end_offset}"
                )
            segment = MappedFile(
                self.files, directory, start, self.file_size, create=lost, writable=writable
            )
            segment.set_positions(self.file_size)
            if self.advice is not None:
                segment.advise(self.advice)
            self.segments.append(segment)

    def _drop_never_synced(self, found: list[tuple[int, str]]) -> None:
        """Removes the last segments if a loss of power came before their first sync.

        Such a segment has a name and no bytes. The one prepared after it may have its size, since
        a disk writes files in any order; it holds nothing yet. One that has data, or that has its
        size and is before the first empty one, ends what is removed.
        """
        paths = [f"{directory}/{start:020d}" for start, directory in found]
        empty = len(paths)
        for number in range(len(paths) - 1, -1, -1):
            if not self.files.size(paths[number]):
                empty = number
            elif self._begins_with_data(paths[number]):
                break
        # From the last on: what a kill leaves is a queue without a gap.
        for path in reversed(paths[empty:]):
            self.files.remove(path)
        del found[empty:]

    def _begins_with_data(self, path: str) -> bool:
        with closing(self.files.open(path, writable=False)) as file:
            return any(file.read(_FIRST_BYTES, 0))

    def advise(self, advice: int) -> None:
        """Hints to the kernel, for every segment that is there and that comes."""
        self.advice = advice
        for segment in list(self.segments):
            segment.advise(advice)
        if self.syncs_often:
            self.prepare_for_syncs()

    def prepare_for_syncs(self) -> None:
        """Makes syncs of single appends fast, in the last segment and in all to come.

        See MappedFile.prepare_for_syncs.
        """
        self.syncs_often = True
        last = self.last()
        if last is not None and not last.is_full:
            last.prepare_for_syncs()

    def close(self) -> None:
        """Unmaps everything; files stay."""
        for segment in self.segments:
            segment.close()
        self.segments = []

    def destroy(self) -> None:
        """Deletes every file."""
        for segment in self.segments:
            segment.destroy(1000)
        self.segments = []
        self.flushed_where = 0
        self.committed_where = 0

    # Offsets

    @property
    def min_offset(self) -> int:
        """Where the first available segment starts; 0 if there is none."""
        for segment in self.segments:
            if segment.is_available:
                return segment.start_offset
        return 0

    @property
    def max_offset(self) -> int:
        """Up to where readers may look."""
        segments = self.segments
        return segments[-1].start_offset + segments[-1].read_position if segments else 0

    @property
    def appended_offset(self) -> int:
        """Where the next byte goes: behind what only a write buffer holds, which none may read."""
        segments = self.segments
        return segments[-1].start_offset + segments[-1].wrote_position if segments else 0

    # Finding

    def last(self) -> MappedFile | None:
        """The newest segment."""
        segments = self.segments
        return segments[-1] if segments else None

    def find(self, offset: int, *, first_if_missing: bool = False) -> MappedFile | None:
        """The segment that holds an offset."""
        segments = self.segments
        if not segments:
            return None
        first = segments[0]
        index = offset // self.file_size - first.start_offset // self.file_size
        if 0 <= index < len(segments):
            segment = segments[index]
            if segment.start_offset <= offset < segment.end_offset:
                return segment
        for segment in segments:
            if segment.start_offset <= offset < segment.end_offset:
                return segment
        return first if first_if_missing else None

    def by_time(self, timestamp_ms: int) -> MappedFile | None:
        """The first segment changed at or after a time, else the last (RocketMQ 4.x's rule)."""
        for segment in self.segments:
            if segment.modified_time_ms() >= timestamp_ms:
                return segment
        return self.last()

    # Growing

    def last_or_create(self, start_offset: int = 0) -> MappedFile | None:
        """The segment to append to, created when there is none or the last one is full.

        Raises:
            OSError, StoreFullError: the file cannot be created.
        """
        last = self.last()
        if last is None:
            return self._create(start_offset - start_offset % self.file_size)
        if last.is_full:
            return self._create(last.end_offset)
        return last

    def _create(self, start_offset: int) -> MappedFile | None:
        directory = self.directory_for(start_offset)
        segment: MappedFile | None
        if self._allocate is not None:
            after = start_offset + self.file_size
            segment = self._allocate(directory, start_offset, self.directory_for(after), after)
        else:
            self.files.make_dirs(directory)
            segment = MappedFile(
                self.files,
                directory,
                start_offset,
                self.file_size,
                create=True,
                transient_pool=self._transient_pool,
            )
        if segment is not None:
            before, usual = self.last(), self.advice if self.advice is not None else MADV_NORMAL
            if self.syncs_often:
                segment.prepare_for_syncs()
                if before is not None and usual is not None:
                    before.advise(usual)  # it is full
            elif self.advice is not None:
                segment.advise(self.advice)
            self.segments.append(segment)
        return segment

    def directory_for(self, start_offset: int) -> str:
        """Which of several directories gets the segment that starts here."""
        candidates = [d for d in self.directories if d not in self.read_only_directories]
        if len(candidates) == 1:
            return candidates[0]
        roomy = [d for d in candidates if not self._is_full(d)] or candidates
        return sorted(roomy)[start_offset // self.file_size % len(roomy)]

    # Commit and flush

    def commit(self, least_pages: int) -> bool:
        """Commits the segment at committed_where; True when nothing was left to do."""
        segment = self.find(self.committed_where, first_if_missing=self.committed_where == 0)
        if segment is None:
            return True
        where = segment.start_offset + segment.commit(least_pages)
        done = where == self.committed_where
        self.committed_where = where
        return done

    def flush(self, least_pages: int) -> bool:
        """Syncs the segment at flushed_where; True when nothing was left to do."""
        segment = self.find(self.flushed_where, first_if_missing=self.flushed_where == 0)
        if segment is None:
            return True
        timestamp = segment.store_timestamp
        where = segment.start_offset + segment.flush(least_pages)
        done = where == self.flushed_where
        self.flushed_where = where
        if least_pages == 0 and timestamp > self.store_timestamp:
            self.store_timestamp = timestamp
        return done

    def flush_to(self, offset: int) -> None:
        """Syncs until flushed_where is at least ``offset`` or nothing more can be read."""
        while self.flushed_where < offset and not self.flush(0):
            pass

    # Shrinking

    def set_where(self, offset: int) -> None:
        """Sets flushed_where and committed_where."""
        self.flushed_where = offset
        self.committed_where = offset

    def truncate_dirty_files(self, offset: int) -> None:
        """Ends the stream at an offset. Bytes behind it stay in the file until overwritten."""
        keep: list[MappedFile] = []
        for segment in self.segments:
            if segment.end_offset > offset:
                if segment.start_offset > offset:
                    # A second time: who holds it loses it. A file that stayed would be taken for
                    # the next segment.
                    if not segment.destroy(0):
                        segment.destroy(0)
                    continue
                segment.set_positions(offset - segment.start_offset)
            keep.append(segment)
        self.segments = keep

    def remove_first(self, interval_forcibly_ms: int) -> bool:
        """Destroys the oldest segment; False if somebody still holds it."""
        first = self.segments[0]
        if not first.destroy(interval_forcibly_ms):
            return False
        self.segments = self.segments[1:]
        self.files.sync_directory(os.path.dirname(first.path))
        return True

    def delete_expired_by_time(
        self,
        expired_ms: int,
        delete_interval_ms: int,
        interval_forcibly_ms: int,
        *,
        clean_immediately: bool,
        batch_max: int,
        now_ms: int,
        keep_from: int | None = None,
        limit: int | None = None,
    ) -> int:
        """Deletes segments from the oldest, never the last; returns how many.

        Stops at the first that is young enough to stay, that reaches beyond ``keep_from``, or that
        somebody holds. With ``clean_immediately`` only the last of these counts, and that nothing
        goes beyond ``limit``.
        """
        deleted = 0
        while len(self.segments) > 1 and deleted < batch_max:
            first = self.segments[0]
            if limit is not None and first.end_offset > limit:
                break
            if not clean_immediately and (
                now_ms < first.modified_time_ms() + expired_ms
                or (keep_from is not None and first.end_offset > keep_from)
            ):
                break
            if not self.remove_first(interval_forcibly_ms):
                break
            deleted += 1
            if delete_interval_ms and deleted < batch_max and len(self.segments) > 1:
                time.sleep(delete_interval_ms / 1000)
        return deleted

    def retry_delete_first(self, interval_forcibly_ms: int) -> bool:
        """Tries again to delete a first segment whose destruction was held up."""
        if self.segments and not self.segments[0].is_available:
            return self.remove_first(interval_forcibly_ms)
        return False

    def segments_between(self, start: int, end: int) -> list[MappedFile]:
        """The segments that overlap [start, end)."""
        starts = [segment.start_offset for segment in self.segments]
        first = max(bisect.bisect_right(starts, start) - 1, 0)
        return [s for s in self.segments[first:] if s.start_offset < end and s.end_offset > start]
