"""Files that together make one stream of bytes: CommitLog segments, queue files.

A segment is named by the offset of its first byte. Maps are read-only and shared, so what another
process writes shows up by itself; new segments show up after the directory is listed again.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_BLOCK_SIZE: Final = 512  # of st_blocks, whatever the file system's is
# Other files are open as well, and their holes take room from the same file system.
_ROOM_FACTOR: Final = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """One file on disk.

    Attributes:
        path: where it is.
        start: offset of its first byte, from its name.
        size: bytes it had when the directory was listed.
        read_only: whether it lies in a directory that takes no new segments.
    """

    path: str
    start: int
    size: int
    read_only: bool = False

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.start + self.size


def _holes_take_room(file: int, size: int) -> bool:
    """Whether holes of a file could not be read through a mapping.

    A file system in memory (tmpfs) gives a hole a page when it is read there; where none is left
    the process ends (SIGBUS). Reading with `os.pread` takes nothing.
    """
    if not hasattr(os, "fstatvfs"):
        return False
    status = os.fstat(file)
    holes = size - status.st_blocks * _BLOCK_SIZE
    space = os.fstatvfs(file)
    if holes <= 0 or space.f_bavail * space.f_frsize > _ROOM_FACTOR * holes:
        return False
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == device:
                    return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    except (OSError, ValueError, IndexError):
        pass
    return False


class SegmentMap:
    """A segment mapped for reading. Closing it is safe while slices of it are still held.

    On a file system in memory with hardly any room a file with holes is copied instead, see
    `_holes_take_room`; what is written afterwards does not show up in a copy.
    """

    __slots__ = ("_file", "_map", "segment", "view")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._file = os.open(segment.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            # The file may have become shorter since it was listed; beyond its end lies SIGBUS.
            size = min(os.fstat(self._file).st_size, segment.size)
            if not size:
                self._map = None
            elif _holes_take_room(self._file, size):
                self._map = mmap.mmap(-1, size)
            else:
                self._map = mmap.mmap(self._file, size, access=mmap.ACCESS_READ)
            self.view = memoryview(self._map if self._map is not None else b"")
            if not self.view.readonly:
                self._copy()
                self.view = self.view.toreadonly()
        except BaseException:
            os.close(self._file)
            raise

    def _copy(self) -> None:
        for start, stop in self.data_extents(0, len(self.view)):
            at = start
            while at < stop and (count := os.preadv(self._file, [self.view[at:stop]], at)):
                at += count

    def __len__(self) -> int:
        return len(self.view)

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Where ``needle`` begins within [start, end), or -1."""
        return -1 if self._map is None else self._map.find(needle, start, end)

    def next_data(self, position: int) -> int | None:
        """The first position from here on that may hold data, None if all is a hole."""
        if position >= len(self.view):
            return None
        if not hasattr(os, "SEEK_DATA"):
            return position
        try:
            return os.lseek(self._file, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return position

    def next_hole(self, position: int) -> int:
        """The first position from here on from which there is a hole, or the file's end."""
        if not hasattr(os, "SEEK_HOLE"):
            return len(self.view)
        try:
            return min(os.lseek(self._file, position, os.SEEK_HOLE), len(self.view))
        except OSError:
            return len(self.view)

    def data_extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) that may hold data, in order."""
        position: int | None = start
        while position is not None and position < end:
            position = self.next_data(position)
            if position is None or position >= end:
                return
            stop = min(self.next_hole(position), end)
            yield position, stop
            position = stop

    def last_data(self, start: int, end: int) -> int:
        """The end of the last part of [start, end) that may hold data; ``start`` if all is hole."""
        last = start
        for _, stop in self.data_extents(start, end):
            last = stop
        return last

    def first_nonzero(self, start: int, end: int) -> int | None:
        """The first byte in [start, end) that is not zero; holes are not touched."""
        for begin, stop in self.data_extents(start, end):
            for at in range(begin, stop, _ZERO_CHUNK):
                piece = bytes(self.view[at : min(at + _ZERO_CHUNK, stop)])
                if piece.count(0) != len(piece):
                    return at + len(piece) - len(piece.lstrip(b"\0"))
        return None

    def last_nonzero(self, start: int, end: int) -> int | None:
        """The last byte in [start, end) that is not zero; holes are not touched."""
        for begin, stop in reversed(list(self.data_extents(start, end))):
            for at in range(stop, begin, -_ZERO_CHUNK):
                low = max(at - _ZERO_CHUNK, begin)
                piece = bytes(self.view[low:at]).rstrip(b"\0")
                if piece:
                    return low + len(piece) - 1
        return None

    def close(self) -> None:
        """Unmaps, now or when the last slice is gone."""
        # A slice that somebody still holds keeps the map alive; it is unmapped with it.
        with suppress(BufferError):
            self.view.release()
            if self._map is not None:
                self._map.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_ZERO_CHUNK: Final = 1 << 20


def same_bytes(one: memoryview, other: memoryview) -> bool:
    """Whether two views hold the same; memoryview's own comparison goes item by item."""
    if len(one) != len(other):
        return False
    return all(
        bytes(one[at : at + _ZERO_CHUNK]) == bytes(other[at : at + _ZERO_CHUNK])
        for at in range(0, len(one), _ZERO_CHUNK)
    )


class SegmentStream:
    """Segments in order, mapped when they are first touched.

    Not for several threads at once, except that maps handed out may be read from any.

    Attributes:
        segments: the files, as last listed.
        file_size: bytes that a segment has, as configured.
        in_use: whether somebody may be writing, or has died while doing so.
        size_at: of a CommitLog: what its queues say of the record at an offset.
    """

    def __init__(
        self, segments: Sequence[Segment], file_size: int, *, in_use: bool = False
    ) -> None:
        self.segments = tuple(segments)
        self.file_size = file_size
        self.in_use = in_use
        self.size_at: Callable[[int], int | None] | None = None
        self._starts = [segment.start for segment in self.segments]
        self._maps: dict[str, SegmentMap] = {}

    @property
    def start(self) -> int:
        """Offset of the first byte, 0 without segments."""
        return self.segments[0].start if self.segments else 0

    @property
    def end(self) -> int:
        """Offset after the last segment, 0 without segments."""
        return self.segments[-1].end if self.segments else 0

    def update(self, segments: Sequence[Segment]) -> None:
        """Takes a new listing; maps of segments that stayed the same are kept."""
        kept = {segment.path: segment for segment in segments}
        for path, opened in list(self._maps.items()):
            if kept.get(path) != opened.segment:
                del self._maps[path]
                opened.close()
        self.segments = tuple(segments)
        self._starts = [segment.start for segment in self.segments]

    def index_of(self, offset: int) -> int | None:
        """Which segment holds an offset."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.segments[index].end:
            return None
        return index

    def map(self, index: int) -> SegmentMap:
        """The map of one segment.

        Raises:
            OSError: it cannot be opened or mapped.
        """
        segment = self.segments[index]
        opened = self._maps.get(segment.path)
        if opened is None:
            opened = self._maps[segment.path] = SegmentMap(segment)
        return opened

    def read(self, offset: int, size: int) -> memoryview | None:
        """Bytes that lie within one segment, or None where they do not."""
        index = self.index_of(offset)
        if index is None:
            return None
        at = offset - self.segments[index].start
        view = self.map(index).view
        return view[at : at + size] if at + size <= len(view) else None

    def close(self) -> None:
        """Unmaps everything."""
        for opened in self._maps.values():
            opened.close()
        self._maps.clear()
