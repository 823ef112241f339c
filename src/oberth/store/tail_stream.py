"""A byte stream in files of one size with its newest bytes in memory: what queues are made of.

    first_start          written          end
         |--- files --------|               |
                     |--- tail (memory) ----|
                 tail_start

Always true: first_start <= tail_start <= written <= end; the files hold everything before
`written`, the tail everything from `tail_start` on. A reader sees up to `end` whether it is written
or not. Appends go to memory; `write_out` moves them into the files (another process sees them
then), `FilePool.sync` makes them durable.

A store has tens of thousands of such streams. None of them maps a file or keeps one open: all share
a `FilePool`, which keeps the files used last. RocketMQ maps every file instead (MappedFileQueue);
the files are the same.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from oberth.errors import StoreCorruptError
from oberth.formats.paths import segment_name, segment_start
from oberth.store.files import FileSystem, RandomFile, sync_nearest_directories

_LOG: Final = logging.getLogger(__name__)

# Files that a pool keeps open; a process may usually have 1024.
OPEN_FILES_MAX: Final = 512
# An append beyond so many bytes in memory writes them out first.
TAIL_SIZE_MAX: Final = 64 << 10
# What a stream keeps in memory of what is written, for consumers that are close behind.
WINDOW_SIZE: Final = 8 << 10
# So many streams keep a window: 16 MiB in all.
WINDOWS_MAX: Final = 2048
# An append writes out a few streams when more than so many have unwritten bytes, and all of
# them when they have more than so many bytes together. With ten thousand queues a lower number of
# streams would mean a write to a file for every message.
DIRTY_STREAMS_MAX: Final = 65_536
DIRTY_BYTES_MAX: Final = 64 << 20
# How many a few are: making their files takes some milliseconds, making all would take seconds.
_STEP_STREAMS: Final = 16
# While there is room for more streams, the thread that writes behind rests so long after each file
# that it made: making one takes the processor, and several times the GIL, from senders.
NEW_FILE_REST_S: Final = 0.0005
_ROOM_STREAMS: Final = DIRTY_STREAMS_MAX * 3 // 4
_ROOM_BYTES: Final = DIRTY_BYTES_MAX // 2
# More files than this are synced with their whole file system: one commit of its journal instead of
# one for each file (40 000 files: 94 s).
SYNC_FILES_MAX: Final = 64
_FILL_SIZE: Final = 1 << 20
# File systems have holes of such blocks.
_BLOCK_SIZE: Final = 4096
# What is looked at behind an end in one go.
_LOOK_SIZE: Final = 256 << 10
_ZEROS: Final = bytes(_LOOK_SIZE)

assert WINDOW_SIZE < TAIL_SIZE_MAX


class _OpenFile:
    """An open file that closes when the pool and the last reader have let go of it.

    A thread in one of its methods holds it; the file itself must not be handed out, because its
    number would be given to another file as soon as it is closed.
    """

    __slots__ = ("_file",)

    def __init__(self, file: RandomFile) -> None:
        self._file = file

    def __del__(self) -> None:
        self._file.close()

    def read(self, size: int, position: int) -> bytes:
        return self._file.read(size, position)

    def is_resident(self, size: int, position: int) -> bool:
        return self._file.is_resident(size, position)

    def next_data(self, position: int) -> int | None:
        return self._file.next_data(position)

    def write(self, data: bytes | memoryview, position: int) -> None:
        self._file.write(data, position)

    def punch(self, position: int, end: int) -> None:
        self._file.punch(position, end)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()


class FilePool:
    """The open files, unwritten and unsynced streams of a store's queues. Thread-safe.

    ``watch`` is put around each sync, also where there is nothing to sync; not
    around what opens a file.
    """

    def __init__(
        self,
        files: FileSystem,
        *,
        writable: bool = True,
        open_files_max: int = OPEN_FILES_MAX,
        watch: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.files = files
        self.writable = writable
        self.open_files_max = open_files_max
        self._watch = watch
        # Guards the position `written` of every stream: one of them is written out at a time.
        self.write_lock = threading.RLock()
        # A thread that says what is durable must wait for what another one is just syncing.
        self._sync_lock = threading.Lock()
        self._lock = threading.Lock()  # guards the collections below
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._dirty: dict[TailStream, None] = {}
        self._windows: OrderedDict[TailStream, None] = OrderedDict()
        self._unsynced: set[str] = set()
        self._new_names: set[str] = set()
        # Only a measure of memory: what two threads add at once may be counted once.
        self.bytes_since_write_behind = 0

    # Files

    def get(self, path: str, *, create: bool = False) -> _OpenFile:
        """An open file, for one call or as long as the result is held.

        Raises:
            FileNotFoundError: there is none and it is not to be created.
        """
        with self._lock:
            opened = self._open.get(path)
            if opened is not None:
                self._open.move_to_end(path)
                return opened
        opened = _OpenFile(self.files.open(path, create=create, writable=self.writable))
        with self._lock:
            opened = self._open.setdefault(path, opened)
            while len(self._open) > self.open_files_max:
                self._open.popitem(last=False)
        return opened

    def forget(self, path: str) -> None:
        """Drops a file that is about to be removed."""
        with self._lock:
            self._open.pop(path, None)
            self._unsynced.discard(path)

    @property
    def open_files(self) -> int:
        """How many files the pool keeps open."""
        return len(self._open)

    # Streams

    def mark_dirty(self, stream: TailStream) -> None:
        """Remembers a stream that has bytes to be written."""
        self._dirty[stream] = None

    def forget_stream(self, stream: TailStream) -> None:
        """Drops a stream that is destroyed."""
        with self._lock:
            self._dirty.pop(stream, None)
            self._windows.pop(stream, None)

    def mark_written(self, path: str) -> None:
        """Remembers a file that has bytes to be synced."""
        with self._lock:
            self._unsynced.add(path)

    def mark_created(self, directory: str) -> None:
        """Remembers a directory that has names to be synced."""
        with self._lock:
            self._new_names.add(directory)

    def keep_window(self, stream: TailStream) -> None:
        """Lets a stream keep its window, and the one that was written longest ago drop its own."""
        with self._lock:
            self._windows[stream] = None
            self._windows.move_to_end(stream)
            oldest = None
            if len(self._windows) > WINDOWS_MAX:
                oldest, _ = self._windows.popitem(last=False)
        if oldest is not None:
            oldest.drop_window()

    @property
    def dirty_streams(self) -> int:
        """How many streams have bytes that are only in memory."""
        return len(self._dirty)

    def dirty(self) -> list[TailStream]:
        """The streams that have bytes that are only in memory."""
        with self._lock:
            return list(self._dirty)

    def write_behind(self, rest: Callable[[float], object] | None = None) -> int:
        """Writes out every dirty stream; returns the bytes written. Costs nothing for the others.

        When it returns, all bytes are in the files that had been appended when it was called,
        by any thread, even while others append.

        Args:
            rest: waits so many seconds; called after each file that had to be made, unless memory
                for unwritten streams runs short. None: nobody has to be spared.

        Raises:
            StoreFullError: the disk has no room. What was not written stays in memory and dirty.
        """
        self.bytes_since_write_behind = 0
        with self.write_lock:
            # Nobody is about to write what is missing here: that is done under the same lock.
            streams = self.dirty()
        written = 0
        for stream in streams:
            with self.write_lock:
                if stream not in self._dirty:
                    continue  # written or destroyed meanwhile
                files_end = stream.files_end
                self._dirty.pop(stream, None)
                written += stream.write_out()
                made_file = stream.files_end != files_end
            if rest is not None and made_file and self._has_room:
                rest(NEW_FILE_REST_S)
        return written

    def write_some(self) -> None:
        """Writes out a few dirty streams. Raises StoreFullError, as `write_behind` does."""
        with self.write_lock:
            for _ in range(min(_STEP_STREAMS, len(self._dirty))):
                stream, _none = self._dirty.popitem()
                stream.write_out()

    @property
    def _has_room(self) -> bool:
        """Whether there may be many more unwritten streams and bytes before appends wait."""
        return len(self._dirty) < _ROOM_STREAMS and self.bytes_since_write_behind < _ROOM_BYTES

    def sync(self) -> int:
        """Makes everything that was written, and every new name, durable; returns files synced.

        Raises:
            OSError: a sync failed. What was not synced is tried again by the next call, whose
                success says nothing of it, see `oberth.store.sync_guard`.
        """
        with self._sync_lock:
            return self._sync_written()

    def _sync_written(self) -> int:
        with self._lock:
            paths, self._unsynced = self._unsynced, set()
            directories, self._new_names = self._new_names, set()
        count = len(paths)
        try:
            if count > SYNC_FILES_MAX and self._sync_all(os.path.dirname(next(iter(paths)))):
                paths, directories = set(), set()
            while paths:
                path = paths.pop()
                try:
                    self._sync_file(path)
                except BaseException:
                    paths.add(path)
                    raise
            with self._watch():
                sync_nearest_directories(self.files, directories)
            directories = set()
        finally:
            if paths or directories:
                with self._lock:
                    self._unsynced |= paths
                    self._new_names |= directories
        return count

    def _sync_all(self, path: str) -> bool:
        try:
            return self.files.sync_all(path)
        except OSError as error:
            # It may be about anything on the same disk: the files themselves know.
            _LOG.warning(
                "files are synced one by one, since %s and others were not: %s", path, error
            )
            return False

    def _sync_file(self, path: str) -> None:
        try:
            opened = self.get(path)
        except FileNotFoundError:
            return  # deleted meanwhile
        with self._watch():
            opened.sync()

    def close(self) -> None:
        """Closes every file that nobody is just using. Unwritten bytes are not written."""
        with self._lock:
            self._open.clear()
            self._dirty.clear()
            self._windows.clear()


class TailStream:
    """One stream. Appends and changes come from one thread at a time; reads from any.

    `lock` guards the positions and the tail; callers of a method named ``…_locked`` hold it.
    """

    __slots__ = (
        "__weakref__",
        "_dirty",
        "_tail",
        "_tail_start",
        "directory",
        "end",
        "file_size",
        "files_end",
        "first_start",
        "lock",
        "pool",
        "written",
    )

    def __init__(self, pool: FilePool, directory: str, file_size: int) -> None:
        self.pool = pool
        self.directory = directory
        self.file_size = file_size
        self.first_start = 0
        self.files_end = 0  # where the last file ends; first_start if there is none
        self.end = 0
        self.written = 0
        self.lock = threading.Lock()
        self._tail = bytearray()
        self._tail_start = 0
        self._dirty = False

    def __repr__(self) -> str:
        return f"TailStream({self.directory}, {self.first_start} to {self.end})"

    # Opening

    def load(self) -> str | None:
        """Takes in the files that are there; everything in them counts as readable.

        Files of length 0 are as good as absent. Returns what is wrong with the row of files (a gap
        in it: only the front part is taken in, the rest is deleted where we may write), or None.

        Raises:
            StoreCorruptError: a file of another size than configured.
        """
        files = self.pool.files
        starts: list[int] = []
        trouble: str | None = None
        for name in files.list(self.directory):
            start = segment_start(name)
            if start is None:
                continue
            path = f"{self.directory}/{name}"
            size = files.size(path)
            if size == 0:
                if self.pool.writable:
                    files.remove(path)
                continue
            if size != self.file_size or start % self.file_size:
                raise StoreCorruptError(
                    f"{path}: found {size} bytes, configured are {self.file_size} for every file"
                )
            if starts and start != starts[-1] + self.file_size:
                trouble = trouble or f"{path}: the file before ends at {starts[-1] + size}"
            if trouble is None:
                starts.append(start)
            elif self.pool.writable:
                files.remove(path)
        if starts:
            self.first_start = starts[0]
            self.files_end = starts[-1] + self.file_size
        else:
            self.first_start = self.files_end = 0
        self.set_end(self.files_end)
        return trouble

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a file nor a byte."""
        return self.files_end == self.first_start and self.end == self.first_start

    def segment_starts(self) -> range:
        """Where the files start, those included that are not written yet."""
        stop = max(self.files_end, self.end)
        return range(self.first_start, stop, self.file_size)

    def path(self, start: int) -> str:
        """The file that starts at a position of the stream."""
        return f"{self.directory}/{segment_name(start)}"

    # Reading

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from a position; fewer at the end, none before the first file."""
        with self.lock:
            tail_start = self._tail_start
            if position < self.first_start:
                return b""
            if position >= tail_start:
                start = position - tail_start
                return bytes(self._tail[start : start + size])
            end = min(position + size, self.end)
            rest = bytes(self._tail[: end - tail_start]) if end > tail_start else b""
        data = self._read_files(position, min(end, tail_start))
        if not rest:
            return data
        return data + rest if position + len(data) == tail_start else data

    def is_resident(self, position: int, size: int) -> bool:
        """Whether `read` waits for no disk, as far as the system tells; looks into one file."""
        with self.lock:
            if not self.first_start <= position < self._tail_start:
                return True
            size = min(size, self._tail_start - position)
        within = position % self.file_size
        try:
            opened = self.pool.get(self.path(position - within))
        except FileNotFoundError:
            return True
        return opened.is_resident(min(size, self.file_size - within), within)

    def _read_files(self, position: int, stop: int) -> bytes:
        parts: list[bytes] = []
        while position < stop:
            start = position - position % self.file_size
            count = min(stop, start + self.file_size) - position
            try:
                part = self.pool.get(self.path(start)).read(count, position - start)
            except FileNotFoundError:
                break  # deleted since we looked
            parts.append(part)
            if len(part) < count:
                break
            position += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Writing

    def make_room(self) -> None:
        """To be called before an append: writes out a tail that has grown large.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        if self.end - self.written >= TAIL_SIZE_MAX:
            self.write_out()
        pool = self.pool
        if pool.bytes_since_write_behind >= DIRTY_BYTES_MAX:
            pool.write_behind()
        elif pool.dirty_streams >= DIRTY_STREAMS_MAX:
            pool.write_some()

    def append_locked(self, data: bytes | memoryview) -> None:
        """Appends to the tail. After `make_room` it cannot fail."""
        self._tail += data
        self.end += len(data)
        self.pool.bytes_since_write_behind += len(data)
        if not self._dirty:
            self._dirty = True
            self.pool.mark_dirty(self)

    def start_at(self, position: int, filler: bytes) -> None:
        """Begins an empty stream in the middle of a file whose front is filled.

        Raises:
            StoreFullError: the disk has no room; nothing has changed but the file's front.
        """
        assert self.is_empty
        assert self.file_size % len(filler) == 0
        start = position - position % self.file_size
        with self.pool.write_lock:
            self.first_start = self.files_end = start
            self.set_end(start)
            try:
                self._write_filler(start, position, filler)
            except BaseException:
                self.set_end(start)
                raise
            self.set_end(position)

    def go_on_at(self, position: int) -> None:
        """Says where an empty stream has its next byte; a file comes with it."""
        assert self.is_empty
        with self.lock:
            self.first_start = self.files_end = position
        self.set_end(position)

    def fill(self, position: int, filler: bytes) -> None:
        """Appends filler up to a position. Raises StoreFullError; it may have filled a part."""
        with self.pool.write_lock:
            self.write_out()
            self._write_filler(self.end, position, filler)
            self.set_end(position)

    def _write_filler(self, start: int, stop: int, filler: bytes) -> None:
        block = filler * min(_FILL_SIZE // len(filler), (stop - start) // len(filler))
        while start < stop:
            count = min(len(block), stop - start)
            self._write(memoryview(block)[:count], start)
            start += count

    def write_out(self) -> int:
        """Moves what is only in memory into the files; returns how many bytes.

        Raises:
            StoreFullError: the disk has no room; the bytes stay in memory.
        """
        with self.pool.write_lock:
            with self.lock:
                self._dirty = False
                start = self.written
                data = self._tail[start - self._tail_start :]
            if not data:
                return 0
            try:
                self._write(memoryview(data), start)
            except BaseException:
                with self.lock:
                    self._dirty = True
                    self.pool.mark_dirty(self)
                raise
            with self.lock:
                self.written = start + len(data)
                spare = min(len(self._tail) - WINDOW_SIZE, self.written - self._tail_start)
                if spare > 0:
                    del self._tail[:spare]
                    self._tail_start += spare
        self.pool.keep_window(self)
        return len(data)

    def _write(self, data: memoryview, position: int) -> None:
        at = 0
        while at < len(data):
            start = position - position % self.file_size
            count = min(len(data) - at, start + self.file_size - position)
            path = self.path(start)
            if start >= self.files_end:
                file = self._create(path)
                self.files_end = start + self.file_size
            else:
                file = self.pool.get(path)
            file.write(data[at : at + count], position - start)
            self.pool.mark_written(path)
            at += count
            position += count

    def _create(self, path: str) -> _OpenFile:
        files = self.pool.files
        with_new_names = [self.directory]
        while not files.is_dir(with_new_names[-1]):
            with_new_names.append(os.path.dirname(with_new_names[-1]))
        files.make_dirs(self.directory, durable=False)
        opened = self.pool.get(path, create=True)
        opened.truncate(self.file_size)
        for directory in with_new_names:
            self.pool.mark_created(directory)
        return opened

    def overwrite(self, position: int, data: bytes) -> None:
        """Replaces bytes that are there, in memory and in the file. Raises StoreFullError."""
        with self.pool.write_lock:
            if position < self.written:
                self._write(memoryview(data)[: self.written - position], position)
            with self.lock:
                data = data[max(self._tail_start - position, 0) :]
                at = max(position - self._tail_start, 0)
                self._tail[at : at + len(data)] = data

    def drop_window(self) -> None:
        """Frees the memory of what is written."""
        with self.lock:
            spare = self.written - self._tail_start
            if spare > 0:
                del self._tail[:spare]
                self._tail_start = self.written

    # Shrinking

    def set_end(self, end: int) -> None:
        """Says where the stream ends. What is in memory only is lost; files stay as they are."""
        with self.lock:
            self._tail = bytearray()
            self._tail_start = self.written = self.end = end

    def truncate(self, end: int) -> None:
        """Ends the stream at a position. Files that start after it are deleted.

        Bytes behind the end stay in its file until they are overwritten.
        """
        with self.pool.write_lock:
            self.write_out()
            self.remove_files(
                start
                for start in self.segment_starts()
                if start >= end and start > self.first_start
            )
            self.set_end(end)

    def erase_behind_end(self) -> int:
        """Zeroes what an earlier life left behind the end in its file; returns how many bytes.

        Also behind zeros: a loss of power takes any pages. Holes stay, the disk may have no block.
        Where there are none, as in a copy, the zeros that were read become one: starts after other
        kills need not read them.
        """
        with self.pool.write_lock:
            self.write_out()
            if self.end >= self.files_end:
                return 0
            at = self.end % self.file_size
            path = self.path(self.end - at)
            file = self.pool.get(path)
            erased = 0
            while (found := file.next_data(at)) is not None:
                at = max(at, found)
                data = file.read(_LOOK_SIZE - at % _BLOCK_SIZE, at)
                if not data:
                    break
                if data != _ZEROS[: len(data)]:
                    self.pool.mark_written(path)
                    erased += _erase_blocks(file, data, at)
                elif len(data) == _LOOK_SIZE:
                    file.punch(at, at + len(data))
                at += len(data)
            return erased

    def remove_files(self, starts: Iterable[int]) -> None:
        """Deletes files at the stream's end."""
        for start in list(starts):
            path = self.path(start)
            self.pool.forget(path)
            self.pool.files.remove(path)
            self.files_end = min(self.files_end, start)
            self.pool.mark_created(self.directory)

    def remove_first(self) -> None:
        """Deletes the oldest file, which must not be the last one."""
        start = self.first_start
        assert start + self.file_size < max(self.files_end, self.end)
        with self.pool.write_lock:
            if self.written < start + self.file_size:
                self.write_out()
            with self.lock:
                self.first_start = start + self.file_size
        path = self.path(start)
        self.pool.forget(path)
        self.pool.files.remove(path)
        self.pool.mark_created(self.directory)

    def reset(self) -> None:
        """Deletes every file and starts again at 0."""
        with self.pool.write_lock:
            self.pool.forget_stream(self)
            self._dirty = False
            for start in self.segment_starts():
                path = self.path(start)
                self.pool.forget(path)
                self.pool.files.remove(path)
            self.first_start = self.files_end = 0
            self.set_end(0)

    def destroy(self) -> None:
        """Deletes every file and the directory."""
        self.reset()
        self.pool.files.remove_dir(self.directory)
        self.pool.mark_created(os.path.dirname(self.directory))


def _erase_blocks(file: _OpenFile, data: bytes, position: int) -> int:
    """Zeroes the blocks that hold anything of what was read at a position; returns their bytes."""
    erased = at = 0
    while at < len(data):
        count = min(_BLOCK_SIZE - (position + at) % _BLOCK_SIZE, len(data) - at)
        if data[at : at + count] != _ZEROS[:count]:
            file.write(_ZEROS[:count], position + at)
            erased += count
        at += count
    return erased
