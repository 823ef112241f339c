"""A disk that forgets what was not synced, tears it, fails and fills up.

`FaultDisk` keeps real files in a directory, and beside them what would be left of each after a
power cut: the bytes of its last sync, under the names of the last directory sync; a directory that
it made is there when its parent was synced, and what lies in it goes with it. `crash_image`
writes one of the states that the machine could come back with: of what was not synced, any pages
may have reached the disk and any may not, a page may be torn, and a new name may be there or gone.

What is synced is noted, and the machine's own disk is not waited for.

Every operation that changes something is an event with a number; `cut_power_at` ends the machine
just before one of them: that call and all later ones raise `PowerCut`.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from oberth.errors import StoreFullError
from oberth.store.files import Mapping, OsFileSystem, RandomFile

PAGE_SIZE: Final = 4096
SECTOR_SIZE: Final = 512


class PowerCut(BaseException):
    """The machine is gone. Not an Exception: no handler of the program sees it."""


@dataclass(slots=True)
class _File:
    """What the disk holds of a file: bytes of the last sync; None: never synced.

    ``lost``: pages by position, as they were when a sync failed. Nothing writes them to the disk
    before they are written to again.
    """

    synced: bytes | None = None
    lost: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class FaultDisk(OsFileSystem):
    """See the module. Thread-safe; one crash image is consistent at one moment."""

    cut_power_at: int | None = None
    full_at: int | None = None
    fails: bool = False
    fails_at: str = ""
    events: int = 0
    is_off: bool = False
    log: list[str] = field(default_factory=list)
    # By path now; the same object under a new name after a rename.
    _files: dict[str, _File] = field(default_factory=dict)
    # Names that survive: path -> file, as of the last sync of its directory.
    _names: dict[str, _File] = field(default_factory=dict)
    # Directories that were made here and whose names no sync has brought to the disk yet.
    _fresh_directories: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def event(self, what: str) -> None:
        """Counts an event; the machine may end here."""
        with self._lock:
            if self.is_off:
                raise PowerCut(what)
            self.events += 1
            self.log.append(what)
            if self.cut_power_at is not None and self.events >= self.cut_power_at:
                self.is_off = True
                raise PowerCut(what)

    def fill(self, at: int | None) -> None:
        """Has the disk be full from an event on; None: there is room again."""
        self.full_at = at

    def health(self, what: str) -> None:
        """Raises EIO once the disk `fails`, of files whose path has `fails_at` in it."""
        if self.fails and self.fails_at in what:
            raise OSError(errno.EIO, f"{what} (fault injected)")

    def room(self, what: str) -> None:
        """Raises StoreFullError while the disk is full."""
        if self.full_at is not None and self.events >= self.full_at:
            raise StoreFullError(f"{what}: no room (fault injected at event {self.full_at})")

    def adopt(self, root: str) -> None:
        """Takes what lies in a directory as synced, names too."""
        for directory, _, names in os.walk(root):
            for name in names:
                path = os.path.join(directory, name)
                self._files[path] = self._names[path] = _File(Path(path).read_bytes())
        for path in {*self._files, *self._names}:
            if path.startswith(root + os.sep) and not os.path.exists(path):
                self._files.pop(path, None)
                self._names.pop(path, None)

    def forget(self) -> None:
        """Let go of all that it holds; no image can be made any more."""
        with self._lock:
            self._files.clear()
            self._names.clear()
            self._fresh_directories.clear()

    def _file(self, path: str) -> _File:
        return self._files.setdefault(path, _File())

    def synced(self, path: str) -> None:
        """A sync of the file has returned."""
        with self._lock:
            file = self._file(path)
            content = bytearray(Path(path).read_bytes())
            before = (file.synced or b"").ljust(len(content), b"\0")
            for start, page in list(file.lost.items()):
                end = start + len(page)
                if content[start:end] == page:
                    content[start:end] = before[start:end]
                else:
                    del file.lost[start]
            file.synced = bytes(content)

    def sync(self, path: str) -> None:
        """Syncs a file, or fails: then its pages count as written, and are not on the disk."""
        self.event(f"sync {path}")
        try:
            self.health(path)
        except OSError:
            with self._lock:
                file = self._file(path)
                now = Path(path).read_bytes()
                before = (file.synced or b"").ljust(len(now), b"\0")
                for start in range(0, len(now), PAGE_SIZE):
                    page = now[start : start + PAGE_SIZE]
                    if page != before[start : start + PAGE_SIZE]:
                        file.lost[start] = page
            raise
        self.synced(path)

    def written(self, path: str, position: int, size: int) -> None:
        """Bytes were written with a call; what is written through a mapping is compared instead."""
        with self._lock:
            lost = self._file(path).lost
            for start in [at for at in lost if at < position + size and at + PAGE_SIZE > position]:
                del lost[start]

    # FileSystem

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        """See FileSystem."""
        path = os.path.abspath(path)
        if create or not os.path.exists(path):
            self.event(f"create {path}")
            self.room(path)
        mapping = OsFileSystem.map(self, path, size, create=create, writable=writable)
        with self._lock:
            self._file(path)
        return _FaultMapping(self, mapping)

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> RandomFile:
        """See FileSystem."""
        path = os.path.abspath(path)
        if create and not os.path.exists(path):
            self.event(f"create {path}")
            self.room(path)
        file = OsFileSystem.open(self, path, create=create, writable=writable, mode=mode)
        with self._lock:
            self._file(path)
        return _FaultFile(self, file)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """See FileSystem."""
        missing: list[str] = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        if missing:
            self.event(f"make-dirs {path}")
        with self._lock:
            self._fresh_directories.update(missing)
            OsFileSystem.make_dirs(self, path, durable=durable)

    def remove_dir(self, path: str) -> None:
        """See FileSystem."""
        OsFileSystem.remove_dir(self, path)
        if not os.path.exists(path):
            with self._lock:
                self._fresh_directories.discard(os.path.abspath(path))

    def remove(self, path: str) -> None:
        """See FileSystem."""
        path = os.path.abspath(path)
        self.event(f"remove {path}")
        with self._lock:
            OsFileSystem.remove(self, path)
            self._files.pop(path, None)

    def rename(self, source: str, target: str, *, durable: bool = True) -> None:
        """See FileSystem."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        self.event(f"rename {source} {target}")
        with self._lock:
            os.replace(source, target)
            self._files[target] = self._files.pop(source, _File())
        if durable:
            self.sync_directory(os.path.dirname(target))

    def link(self, source: str, target: str) -> None:
        """See FileSystem."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        self.event(f"link {source} {target}")
        with self._lock:
            OsFileSystem().link(source, target)
            self._files[target] = self._file(source)

    def write_file(self, path: str, data: bytes) -> None:
        """See FileSystem."""
        temporary = os.path.abspath(path) + ".tmp"
        self.event(f"write {temporary}")
        self.room(path)
        Path(temporary).write_bytes(data)
        with self._lock:
            self._files[temporary] = _File()
        self.event(f"sync {temporary}")
        self.synced(temporary)
        self.rename(temporary, path)

    def sync_directory(self, path: str) -> None:
        """See FileSystem."""
        path = os.path.abspath(path)
        self.event(f"sync-directory {path}")
        with self._lock:
            for name in [n for n in self._names if n.startswith(path + os.sep)]:
                # What lay in a directory that is gone went with the directory's own name.
                below = os.path.join(path, name[len(path) + 1 :].partition(os.sep)[0])
                if name not in self._files and (below == name or not os.path.isdir(below)):
                    del self._names[name]
            for name, file in self._files.items():
                if os.path.dirname(name) == path:
                    self._names[name] = file
            self._fresh_directories = {
                name for name in self._fresh_directories if os.path.dirname(name) != path
            }

    def sync_all(self, path: str) -> bool:
        """See FileSystem."""
        self.event(f"sync-all {path}")
        with self._lock:
            for name in self._files:
                if os.path.exists(name):
                    self.synced(name)
            self._names = dict(self._files)
            self._fresh_directories.clear()
        return True

    # After the power cut

    def crash_image(self, target: str, root: str, rng: random.Random, keep: float) -> None:
        """Writes what could be left of ``root`` into ``target``.

        Args:
            target: an empty directory.
            root: the directory that the store was in.
            rng: decides about each page and name that was not synced.
            keep: how likely a page or name that was not synced is there all the same; 0: only what
                was synced, 1: everything, as after a mere kill of the process.
        """
        root = os.path.abspath(root)
        with self._lock:
            paths = sorted({*self._files, *self._names})
            lost = {name for name in sorted(self._fresh_directories) if rng.random() >= keep}
            for path in paths:
                if not path.startswith(root + os.sep):
                    continue
                if not lost.isdisjoint(map(str, Path(path).parents)):
                    continue
                live = self._files.get(path)
                durable = self._names.get(path)
                # Which of two states of the name survived.
                file = live if live is durable or rng.random() < keep else durable
                if file is None:
                    continue
                content = self._content(path, file, live is file, rng, keep)
                if content is None:
                    continue
                copy = Path(target) / os.path.relpath(path, root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)

    def _content(
        self, path: str, file: _File, is_live: bool, rng: random.Random, keep: float
    ) -> bytes | None:
        synced = file.synced
        if not is_live or not os.path.exists(path):
            return synced
        now = Path(path).read_bytes()
        if synced is None:
            # Size and blocks of a file are metadata of their own: it may come back empty.
            if rng.random() >= keep:
                return b"" if rng.random() < 0.5 else bytes(len(now))
            synced = b""
        if now == synced or keep >= 1:
            return now
        before = synced.ljust(len(now), b"\0")
        content = bytearray(before)
        for start in range(0, len(now), PAGE_SIZE):
            end = min(start + PAGE_SIZE, len(now))
            if now[start:end] == before[start:end] or rng.random() >= keep:
                continue
            cut = end
            if rng.random() < 0.25:
                cut = min(end, start + rng.randrange(0, PAGE_SIZE, SECTOR_SIZE))
            content[start:cut] = now[start:cut]
        return bytes(content)


class _FaultMapping:
    """A mapping whose syncs and allocations are events."""

    def __init__(self, disk: FaultDisk, mapping: Mapping) -> None:
        self._disk = disk
        self._mapping = mapping
        self.path = mapping.path
        self.size = mapping.size
        self.view = mapping.view

    def allocate(self, position: int, end: int) -> None:
        self._disk.event(f"allocate {self.path} {end}")
        self._disk.room(self.path)
        self._mapping.allocate(position, end)

    def sync(self) -> None:
        self._disk.sync(self.path)
        self._disk.event(f"synced {self.path}")

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.event(f"write {self.path} {position}")
        self._disk.health(self.path)
        self._mapping.write(data, position)
        self._disk.written(self.path, position, len(data))

    def next_data(self, position: int) -> int | None:
        return self._mapping.next_data(position)

    def data_end(self, position: int) -> int:
        return self._mapping.data_end(position)

    def read(self, position: int, size: int) -> bytes:
        return self._mapping.read(position, size)

    def find(self, needle: bytes, start: int, end: int) -> int:
        return self._mapping.find(needle, start, end)

    def advise(self, advice: int, start: int = 0) -> None:
        self._mapping.advise(advice, start)

    def read_ahead(self, position: int, end: int) -> None:
        self._mapping.read_ahead(position, end)

    def is_resident(self, position: int, end: int) -> bool:
        return self._mapping.is_resident(position, end)

    def close(self) -> None:
        self.view = memoryview(b"")
        self._mapping.close()


class _FaultFile:
    """A file whose writes and syncs are events."""

    def __init__(self, disk: FaultDisk, file: RandomFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.read: Callable[[int, int], bytes] = file.read
        self.is_resident: Callable[[int, int], bool] = file.is_resident
        self.next_data: Callable[[int], int | None] = file.next_data
        self.punch: Callable[[int, int], None] = file.punch
        self.size = file.size
        self.close = file.close

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.event(f"write {self.path} {position}")
        self._disk.room(self.path)
        self._file.write(data, position)
        self._disk.written(self.path, position, len(data))

    def truncate(self, size: int) -> None:
        self._disk.event(f"truncate {self.path} {size}")
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.sync(self.path)
