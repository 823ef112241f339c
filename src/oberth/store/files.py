"""The only place where the store touches the file system.

`FileSystem` is what the engine needs of one; `OsFileSystem` is the real one. A test's file system
may lose what was not synced, tear it, or be full: therefore every write goes through a `Mapping` or
a `RandomFile`, and whatever must survive a power cut is synced explicitly, new names by
`sync_directory` too.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

from oberth.errors import StoreFullError, StoreReadOnlyError

# Blocks are reserved this far ahead of the data. A write through a mapping to a block that the disk
# cannot give would end the process (SIGBUS); asked for beforehand it is an error like any other.
_READ_AHEAD_STEP: Final = 1 << 20  # the kernel takes no more of one call than a disk's read-ahead
ALLOCATE_CHUNK_SIZE: Final = 8 << 20
# Hints that some systems do not have.
MADV_NORMAL: Final[int | None] = getattr(mmap, "MADV_NORMAL", None)
MADV_RANDOM: Final[int | None] = getattr(mmap, "MADV_RANDOM", None)
_PAGE_SIZE: Final = mmap.PAGESIZE
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# Bytes by which mincore tells that a page is in memory: their lowest bit counts.
_RESIDENT: Final = bytes(range(1, 256, 2))
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


def _find_mincore() -> Callable[..., int] | None:
    """The system's ``mincore``; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    found = getattr(ctypes.CDLL(None), "mincore", None)
    if found is not None:
        found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return found


_mincore: Final = _find_mincore()


def _find_fallocate() -> Callable[..., int] | None:
    """Linux's ``fallocate``, which makes holes; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    found = getattr(ctypes.CDLL(None), "fallocate64", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate: Final = _find_fallocate()
# FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_PUNCH_HOLE: Final = 3


class DiskUsage(NamedTuple):
    """Bytes of the file system that a directory lies on, as ``df`` counts them.

    Blocks that are kept for others (root's reserve, a quota of the machine) belong to neither: a
    disk is no fuller for them. RocketMQ: ``UtilAll.getDiskPartitionSpaceUsedPercent``.
    """

    total: int
    used: int

    @property
    def ratio(self) -> float:
        """Used part, 0 to 1."""
        return self.used / self.total if self.total else 0.0


class Mapping(Protocol):
    """A file mapped into memory. ``view`` is all of it; writable unless opened for reading."""

    path: str
    size: int
    view: memoryview

    def allocate(self, position: int, end: int) -> None:
        """Makes sure that the disk has room for [position, end). Raises StoreFullError."""

    def sync(self) -> None:
        """Returns when everything written so far is on the disk. Does not hold the GIL."""

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Writes to the file and not through the mapping, which shows it at once all the same.

        For long data: no page has to be fetched before it is written, and a sync need not take each
        page's right to be written from every processor. Does not hold the GIL.

        Raises:
            OSError: the disk failed; part of the data may be there.
            StoreFullError: the disk has no room, where none was made by `allocate`.
        """

    def next_data(self, position: int) -> int | None:
        """The first position from here on that may hold data; None if all is a hole."""

    def data_end(self, position: int) -> int:
        """The first position from here on that may lie in a hole; ``size`` where there is none.

        On a file system in memory (tmpfs) reading a hole through the mapping takes a page, and ends
        the process (SIGBUS) where there is none left. `read` takes nothing.
        """

    def read(self, position: int, size: int) -> bytes:
        """Bytes read from the file and not through the mapping: holes are zeros, and stay holes."""

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Where ``needle`` occurs within [start, end), or -1."""

    def advise(self, advice: int, start: int = 0) -> None:
        """Hints to the kernel (``mmap.MADV_…``) for all from the page of a position on.

        Does nothing where there are no hints.
        """

    def read_ahead(self, position: int, end: int) -> None:
        """Brings bytes into the page cache, zeros where nothing was written yet.

        Does not hold the GIL, and does nothing where the system has no such call.
        """

    def is_resident(self, position: int, end: int) -> bool:
        """Whether [position, end) is read without the disk; True where the system does not tell."""

    def close(self) -> None:
        """Ends our use. Slices that are still held keep the memory until they go."""


class RandomFile(Protocol):
    """A file read and written at positions."""

    path: str

    def read(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes from a position; fewer at the file's end."""

    def is_resident(self, size: int, position: int) -> bool:
        """Whether `read` waits for no disk; True where the system does not tell."""

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Writes all of it. Raises StoreFullError if the disk is full."""

    def next_data(self, position: int) -> int | None:
        """See Mapping.next_data."""

    def punch(self, position: int, end: int) -> None:
        """Makes a hole of zeros in [position, end), or nothing where a file cannot have one.

        Durable or not, it reads the same.
        """

    def size(self) -> int:
        """The file's length."""

    def truncate(self, size: int) -> None:
        """Sets the file's length; new bytes are zero and need no blocks."""

    def sync(self) -> None:
        """Returns when everything written so far is on the disk."""

    def close(self) -> None:
        """Closes it."""


class FileSystem(Protocol):
    """What the engine needs of a file system. Paths are absolute or relative to the process."""

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        """Maps ``size`` bytes of a file, which is extended to that size when it is created."""

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> RandomFile:
        """Opens a file for reads and writes at positions.

        ``mode``: the permissions that it has from now on, whether it was there or not.
        """

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""

    def is_dir(self, path: str) -> bool:
        """Whether there is such a directory."""

    def size(self, path: str) -> int:
        """Length of a file."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if there is no such directory."""

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """Creates a directory and its parents; not durable: the caller syncs the names later."""

    def remove(self, path: str) -> None:
        """Removes a file; no error if it is gone."""

    def remove_dir(self, path: str) -> None:
        """Removes an empty directory; no error if it is gone or not empty."""

    def rename(self, source: str, target: str, *, durable: bool = True) -> None:
        """Renames a file over another one, atomically; not durable: the caller syncs the name."""

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name, which another one may have had; the caller syncs the names.

        Where files cannot have two names it loses the first.
        """

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None if there is none."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces a file by these bytes, durably and in one step."""

    def sync_directory(self, path: str) -> None:
        """Makes names created in or removed from a directory durable."""

    def sync_all(self, path: str) -> bool:
        """Makes all files and names of the file system below a path durable, in one go.

        For thousands of files at once. False where that cannot be had; nothing is promised then.

        Raises:
            OSError: something of the file system could not be written, whatever file it is of.
        """

    def modified_time(self, path: str) -> float:
        """Seconds since the epoch."""

    def set_modified_time(self, path: str, seconds: float) -> None:
        """Says when a file was last changed, seconds since the epoch."""

    def disk_usage(self, path: str) -> DiskUsage:
        """Of the file system below a directory (or its nearest existing parent)."""


class _OsMapping:
    __slots__ = ("_fd", "_mmap", "path", "size", "view")

    def __init__(self, path: str, size: int, create: bool, writable: bool) -> None:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o644)
        try:
            if writable and os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._mmap = mmap.mmap(fd, size, access=access)
        except OSError as error:
            os.close(fd)
            raise named(error, path) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self.path = path
        self.size = size
        self.view = memoryview(self._mmap)

    def allocate(self, position: int, end: int) -> None:
        fallocate = getattr(os, "posix_fallocate", None)
        if fallocate is None:
            # Elsewhere zeros are written where the file has never been: slower, same promise.
            _write_zeros(self._fd, position, end, self.path)
            return
        try:
            fallocate(self._fd, position, end - position)
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFullError(
                    f"{self.path}: no room for bytes {position} to {end}: {error.strerror}"
                ) from error
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise named(error, self.path) from error

    def sync(self) -> None:
        # Not mmap.flush(): CPython keeps the GIL through msync, so every other thread would stand
        # still for the whole flush. fdatasync writes the same pages and lets them run.
        try:
            if hasattr(os, "fdatasync"):
                os.fdatasync(self._fd)
            else:
                self._mmap.flush()
                os.fsync(self._fd)
        except OSError as error:
            raise named(error, self.path) from error

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if hasattr(os, "pwrite"):
            _pwrite_all(self._fd, memoryview(data), position, self.path)
        else:
            self.view[position : position + len(data)] = data

    def next_data(self, position: int) -> int | None:
        return _next_data(self._fd, position, self.size)

    def data_end(self, position: int) -> int:
        seek_hole = getattr(os, "SEEK_HOLE", None)
        if seek_hole is None:
            return self.size
        try:
            return min(os.lseek(self._fd, position, seek_hole), self.size)
        except OSError:
            return self.size

    def read(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        try:
            while size > 0 and (part := os.pread(self._fd, size, position)):
                parts.append(part)
                position += len(part)
                size -= len(part)
        except OSError as error:
            raise named(error, self.path) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def find(self, needle: bytes, start: int, end: int) -> int:
        return self._mmap.find(needle, start, end)

    def advise(self, advice: int, start: int = 0) -> None:
        if hasattr(self._mmap, "madvise"):
            with suppress(OSError, ValueError):
                self._mmap.madvise(advice, start - start % _PAGE_SIZE)

    def read_ahead(self, position: int, end: int) -> None:
        advise = getattr(os, "posix_fadvise", None)
        if advise is None:
            return
        with suppress(OSError):
            for start in range(position, end, _READ_AHEAD_STEP):
                size = min(_READ_AHEAD_STEP, end - start)
                advise(self._fd, start, size, os.POSIX_FADV_WILLNEED)

    def is_resident(self, position: int, end: int) -> bool:
        if _mincore is None or end <= position:
            return True
        start = position - position % _PAGE_SIZE
        pages = ctypes.create_string_buffer(-(-(end - start) // _PAGE_SIZE))
        try:
            first = ctypes.c_char.from_buffer(self._mmap, start)
        except (TypeError, ValueError):
            return True  # opened for reading only, or closed meanwhile
        failed = _mincore(ctypes.byref(first), end - start, pages)
        del first  # a mapping cannot be closed beside it
        return bool(failed) or not pages.raw.translate(None, _RESIDENT)

    def close(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.view = memoryview(b"")
        # A slice on its way to a socket still points here: the mapping then goes with the slice.
        with suppress(BufferError):
            self._mmap.close()


def sync_nearest_directories(files: FileSystem, directories: Iterable[str]) -> None:
    """Syncs directories; of one that was deleted the nearest above that stands: its name was there.

    Another thread may delete one at any moment.
    """
    left = set(directories)
    while left:
        standing = {_nearest(files, each) for each in left}
        left = set()
        for directory in standing:
            try:
                files.sync_directory(directory)
            except FileNotFoundError:
                left.add(directory)


def _nearest(files: FileSystem, directory: str) -> str:
    while not files.is_dir(directory) and (above := os.path.dirname(directory)) != directory:
        directory = above
    return directory


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a user's share of it, is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, StoreFullError)


def named(error: OSError, path: str) -> OSError:
    """The same error with the file that it is about: calls on a descriptor do not know it."""
    return error if error.filename is not None else OSError(error.errno, error.strerror, path)


@contextmanager
def _making(path: str) -> Iterator[None]:
    """Has a new name for which the disk has no room be a StoreFullError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"{path}: no room for a new name: {error.strerror}") from error
        raise


def _says_what_failed(release: str) -> bool:
    """Whether ``syncfs`` of that Linux fails when something could not be written."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 8)


def _next_data(fd: int, position: int, size: int) -> int | None:
    unknown = position if position < size else None
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return unknown
    try:
        found: int = os.lseek(fd, position, seek_data)
    except OSError as error:
        return None if error.errno == errno.ENXIO else unknown
    return found if found < size else None


def _write_zeros(fd: int, position: int, end: int, path: str) -> None:
    size = os.fstat(fd).st_size
    zeros = bytes(1 << 16)
    while position < end and position < size:
        count = min(len(zeros), end - position)
        if not any(os.pread(fd, count, position)):
            _pwrite_all(fd, memoryview(zeros)[:count], position, path)
        position += count


def _pwrite_all(fd: int, data: memoryview, position: int, path: str) -> None:
    while len(data):
        try:
            count = os.pwrite(fd, data, position)
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFullError(
                    f"{path}: no room for {len(data)} bytes at {position}: {error.strerror}"
                ) from error
            raise named(error, path) from error
        data = data[count:]
        position += count


class _OsRandomFile:
    __slots__ = ("_fd", "_writable", "path")

    def __init__(self, path: str, create: bool, writable: bool, mode: int | None = None) -> None:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(path, flags, 0o644 if mode is None else mode)
        if mode is not None and hasattr(os, "fchmod"):
            try:
                os.fchmod(self._fd, mode)
            except BaseException:
                os.close(self._fd)
                raise
        self._writable = writable
        self.path = path

    def read(self, size: int, position: int) -> bytes:
        try:
            return os.pread(self._fd, size, position)
        except OSError as error:
            raise named(error, self.path) from error

    def is_resident(self, size: int, position: int) -> bool:
        if _NOWAIT is None:
            return True
        try:
            return os.preadv(self._fd, [bytearray(size)], position, _NOWAIT) == size
        except OSError as error:
            # Some file systems cannot tell.
            return error.errno != errno.EAGAIN

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if not self._writable:
            raise StoreReadOnlyError(f"{self.path}: opened for reading, asked to write")
        count = len(data)
        try:
            if os.pwrite(self._fd, data, position) == count:
                return
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFullError(
                    f"{self.path}: no room for {count} bytes at {position}: {error.strerror}"
                ) from error
            raise named(error, self.path) from error
        _pwrite_all(self._fd, memoryview(data), position, self.path)

    def next_data(self, position: int) -> int | None:
        return _next_data(self._fd, position, self.size())

    def punch(self, position: int, end: int) -> None:
        if _fallocate is not None:
            _fallocate(self._fd, _PUNCH_HOLE, position, end - position)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise named(error, self.path) from error

    def sync(self) -> None:
        try:
            if hasattr(os, "fdatasync"):
                os.fdatasync(self._fd)
            else:
                os.fsync(self._fd)
        except OSError as error:
            raise named(error, self.path) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileSystem:
    """The operating system's files."""

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        """See FileSystem."""
        with _making(path):
            return _OsMapping(path, size, create, writable)

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> RandomFile:
        """See FileSystem."""
        with _making(path):
            return _OsRandomFile(path, create, writable, mode)

    def exists(self, path: str) -> bool:
        """See FileSystem."""
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        """See FileSystem."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """See FileSystem."""
        return os.path.getsize(path)

    def list(self, path: str) -> list[str]:
        """See FileSystem."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """See FileSystem."""
        if not durable:
            with _making(path):
                os.makedirs(path, exist_ok=True)
            return
        missing: list[str] = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        if missing:
            with _making(path):
                os.makedirs(path, exist_ok=True)
            for made in missing:
                self.sync_directory(os.path.dirname(made))

    def remove(self, path: str) -> None:
        """See FileSystem."""
        with suppress(FileNotFoundError):
            os.remove(path)

    def remove_dir(self, path: str) -> None:
        """See FileSystem."""
        with suppress(OSError):
            os.rmdir(path)

    def rename(self, source: str, target: str, *, durable: bool = True) -> None:
        """See FileSystem."""
        os.replace(source, target)
        if durable:
            self.sync_directory(os.path.dirname(target))

    def link(self, source: str, target: str) -> None:
        """See FileSystem."""
        fresh = target + ".link"
        self.remove(fresh)
        try:
            os.link(source, fresh)
        except OSError:
            os.replace(source, target)
            return
        os.replace(fresh, target)
        self.remove(fresh)  # it is still there if both were names of this file already

    def read_file(self, path: str) -> bytes | None:
        """See FileSystem."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write_file(self, path: str, data: bytes) -> None:
        """See FileSystem."""
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.remove(temporary)
            if error.errno in _FULL:
                raise StoreFullError(f"{path}: no room for {len(data)} bytes") from error
            raise named(error, path) from error
        self.rename(temporary, path)

    def sync_directory(self, path: str) -> None:
        """See FileSystem."""
        if os.name == "nt":
            return
        fd = os.open(path or ".", os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise named(error, path) from error
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> bool:
        """See FileSystem.

        Before 5.8 Linux says nothing of what it could not write: then the caller asks each file.
        Once they are written that takes half as long (2,000 files of ext4, 5 s instead of 9 s),
        since each still has the disk empty its cache.
        """
        if not sys.platform.startswith("linux"):
            return False
        # ctypes takes 10 ms to import, and few stores have so many files.
        import ctypes  # noqa: PLC0415 - 10 ms, and few stores have so many files

        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            return False
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            if syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
        return _says_what_failed(platform.release())

    def modified_time(self, path: str) -> float:
        """See FileSystem."""
        return os.stat(path).st_mtime

    def set_modified_time(self, path: str, seconds: float) -> None:
        """See FileSystem."""
        os.utime(path, (seconds, seconds))

    def disk_usage(self, path: str) -> DiskUsage:
        """See FileSystem."""
        at = os.path.abspath(path)
        while not os.path.exists(at):
            at = os.path.dirname(at)
        stat = os.statvfs(at)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return DiskUsage(used + stat.f_bavail * stat.f_frsize, used)


def allocate_ahead(mapping: Mapping, allocated: int, needed: int) -> int:
    """Reserves blocks up to ``needed`` and, if there is room, a chunk beyond; returns the new mark.

    Raises:
        StoreFullError: not even ``needed`` fits.
    """
    ahead = min(mapping.size, needed + ALLOCATE_CHUNK_SIZE)
    try:
        mapping.allocate(allocated, ahead)
    except StoreFullError:
        exact = min(mapping.size, -(-needed // _PAGE_SIZE) * _PAGE_SIZE)
        mapping.allocate(allocated, exact)
        return exact
    return ahead


Clock = Callable[[], int]
