"""StateLog: the file in which a controller keeps its replica sets.

One line for each change, the newest last: the whole value of one broker name, so that a line can
be read without those before it.

    CRC32 of the rest, 8 hex digits · space · JSON {"name": …, "set": {…} or null} · newline

A line is on the disk before anybody hears of it. What a kill left behind the last newline was never
answered and is cut off. When most lines are old the file is written anew, beside itself, and takes
the name when it is whole. Layout and name are ours; RocketMQ keeps these in a Raft log.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from oberth.controller.replica_sets import Replica, ReplicaSet
from oberth.errors import StoreCorruptError
from oberth.store.files import OsFileSystem
from oberth.store.store_lock import StoreLock

FILE_NAME: Final = "controller.log"
OLD_LINES_MAX: Final = 1000
"""Lines that say nothing any more; with more the file is written anew."""


class _Line(msgspec.Struct):
    name: str
    set: _Set | None


class _Set(msgspec.Struct, rename="camel"):
    cluster: str
    replicas: dict[int, tuple[str, str]]
    next_id: int
    master: int | None
    master_epoch: int
    in_sync: list[int]
    in_sync_epoch: int


_decode: Final = msgspec.json.Decoder(_Line).decode


class StateLog:
    """The file, open from `load` to `close`. One thread at a time.

    Args:
        directory: it is made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        # Two writers would overwrite each other's lines.
        self._lock = StoreLock(str(directory))
        self._fd = -1
        self._size = 0
        self._lines = 0
        self._broken: str | None = None
        self._is_named = True  # on the disk, too

    def load(self) -> dict[str, ReplicaSet]:
        """The sets that the file says.

        Raises:
            StoreLockedError: another controller has the directory.
            StoreCorruptError: a line before the last one is damaged.
            OSError: the file cannot be read or written.
        """
        OsFileSystem().make_dirs(str(self.path.parent))
        self._lock.acquire()
        try:
            return self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> dict[str, ReplicaSet]:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._new)
        is_new = not self.path.exists()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            OsFileSystem().sync_directory(str(self.path.parent))
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        sets: dict[str, ReplicaSet] = {}
        lines = data[:whole].splitlines()
        for number, line in enumerate(lines, 1):
            name, value = self._read(line, number)
            if value is None:
                sets.pop(name, None)
            else:
                sets[name] = value
        if whole < len(data):
            os.ftruncate(self._fd, whole)
            os.fsync(self._fd)
        self._size, self._lines = whole, len(lines)
        return sets

    def _read(self, line: bytes, number: int) -> tuple[str, ReplicaSet | None]:
        text = line[9:]
        try:
            if int(line[:8], 16) != zlib.crc32(text):
                raise ValueError("its checksum is another")
            found = _decode(text)
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreCorruptError(
                f"{self.path}: line {number} is damaged: {error}; a copy of the file is needed, or "
                "its removal: then every broker has to be registered anew"
            ) from None
        return found.name, None if found.set is None else _from_line(found.set)

    def append(self, name: str, value: ReplicaSet | None) -> None:
        """Keep a change; it is on the disk at return.

        Raises:
            OSError: it could not be written; the file is as before.
        """
        if self._broken is not None:
            raise OSError(f"{self.path}: {self._broken}; a restart reads the lines that are there")
        if not self._is_named:
            self._sync_name()
        line = _line(name, value)
        try:
            _write_all(self._fd, line, self._size)
            os.fsync(self._fd)
        except OSError as error:
            # After a failed sync it is unknown which bytes the disk has.
            self._broken = f"an earlier write failed ({error.strerror})"
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)
                self._broken = None
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._size += len(line)
        self._lines += 1

    def maybe_shorten(self, sets: dict[str, ReplicaSet]) -> None:
        """Write the file anew when most of it is old.

        Raises:
            OSError: it could not be written, and the old one stays; or the disk does not have the
                new one's name yet, and nothing is appended before it has.
        """
        if self._lines - len(sets) <= OLD_LINES_MAX:
            return
        data = b"".join(_line(name, value) for name, value in sets.items())
        fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data, 0)
            os.fsync(fd)
            os.replace(self._new, self.path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.remove(self._new)
            raise
        # From here on the old file has no name, and what is written to it would be lost.
        os.close(self._fd)
        self._fd, self._size, self._lines = fd, len(data), len(sets)
        self._is_named = False
        self._sync_name()

    def _sync_name(self) -> None:
        """Brings the name of the file to the disk; a power cut may give it back to the old one."""
        OsFileSystem().sync_directory(str(self.path.parent))
        self._is_named = True

    @property
    def _new(self) -> Path:
        return self.path.with_name(FILE_NAME + ".tmp")

    def close(self) -> None:
        """Close the file, for another controller to open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()


def _line(name: str, value: ReplicaSet | None) -> bytes:
    text = msgspec.json.encode(_Line(name, None if value is None else _to_line(value)))
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _to_line(value: ReplicaSet) -> _Set:
    return _Set(
        cluster=value.cluster,
        replicas={n: (each.address, each.check_code) for n, each in value.replicas.items()},
        next_id=value.next_id,
        master=value.master,
        master_epoch=value.master_epoch,
        in_sync=sorted(value.in_sync),
        in_sync_epoch=value.in_sync_epoch,
    )


def _from_line(line: _Set) -> ReplicaSet:
    return ReplicaSet(
        cluster=line.cluster,
        replicas={number: Replica(*each) for number, each in line.replicas.items()},
        next_id=line.next_id,
        master=line.master,
        master_epoch=line.master_epoch,
        in_sync=frozenset(line.in_sync),
        in_sync_epoch=line.in_sync_epoch,
    )


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, position)
        position += count
        view = view[count:]
