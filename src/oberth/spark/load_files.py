"""The files of a store that a load writes: segments, queues, Index, checkpoint and topics.

They lie in a new tree that shares all other files with the old one by hard links, so a file is
copied before a byte of it changes. What was written is synced in the end, files before directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from oberth.formats import checkpoint as cp
from oberth.formats import consume_queue, index_file, message, paths
from oberth.formats.names import is_system_topic
from oberth.formats.topic_config import TopicConfig, TopicConfigs
from oberth.kernels.index import IndexEntries, index_header, put_entries, start_file
from oberth.spark.index_lookup import IndexFiles
from oberth.spark.load_plan import ExistingStore, LoadPlan
from oberth.spark.segments import QueueName
from oberth.spark.store_files import StoreFiles
from oberth.spark.write_options import WriteOptions
from oberth.store.offline.index_files import file_name
from oberth.wall_clock import now_ms

_COPY_CHUNK: Final = 8 << 20
_SYNC_BYTES: Final = 64 << 20
_DIRECTORIES_SYNCED_ALONE: Final = 64
"""With more new directories than this the whole file system is synced, once: a sync of a directory
takes milliseconds on a disk."""


class ChangedFiles:
    """Files and directories of the new tree that have to reach the disk."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def add(self, path: str) -> None:
        self.files.append(path)

    def write(self, path: str, data: bytes) -> None:
        """Writes a small file anew: the old one may share its bytes with the old tree."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(data)
        self.add(path)

    def sync(self) -> None:
        """Brings files and directories to the disk; many directories by one call for all."""
        directories: set[str] = set()
        for path in dict.fromkeys(self.files):
            if os.path.isdir(path):
                directories.add(path)
            else:
                sync_path(path)
            directories.add(os.path.dirname(path))
        directories |= {os.path.dirname(directory) for directory in directories}
        if len(directories) > _DIRECTORIES_SYNCED_ALONE and _sync_file_system(min(directories)):
            return
        for directory in sorted(directories):
            sync_path(directory)


def _sync_file_system(path: str) -> bool:
    """Brings everything in the file system of a path to the disk; False where that cannot be."""
    if not sys.platform.startswith("linux"):
        return False
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        return False
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if function(descriptor) != 0:
            number = ctypes.get_errno()
            if number == errno.ENOSYS:
                return False
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)
    return True


def sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_tree(
    old: str,
    new: str,
    changed: ChangedFiles,
    existing: ExistingStore,
    kept: tuple[Sequence[str], int] | None = None,
) -> int:
    """The new tree with every file of the old one, by hard links; gives how many queues it has.

    Left out are segments that hold nothing yet.

    Args:
        old: the directory of the old tree.
        new: that of the new one.
        changed: gets the directories in which something was linked.
        existing: what the old tree is known to have.
        kept: the new tree has the queues of an earlier load: files that it lacks, and how many
            queues, see `oberth.spark.spare_tree`.
    """
    empty = {
        os.path.realpath(segment.path)
        for segment in existing.files.segments()
        if segment not in existing.segments
    }
    own = {os.path.basename(path) for path in empty}
    queues = f"{old}/{paths.CONSUME_QUEUE}"
    count = 0
    for directory, below, names in os.walk(old):
        if kept is not None and directory == old and paths.CONSUME_QUEUE in below:
            below.remove(paths.CONSUME_QUEUE)
        target = new + directory[len(old) :]
        os.makedirs(target, exist_ok=True)
        changed.add(target)
        count += os.path.dirname(os.path.dirname(directory)) == queues
        for name in names:
            source = f"{directory}/{name}"
            if name in own and os.path.realpath(source) in empty:
                continue
            if os.path.isfile(source):
                os.link(source, f"{target}/{name}", follow_symlinks=False)
    if kept is None:
        return count
    for name in kept[0]:
        _link_anew(f"{old}/{name}", f"{new}/{name}", changed)
    return kept[1]


def _link_anew(source: str, target: str, changed: ChangedFiles) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    os.link(source, target, follow_symlinks=False)
    changed.add(os.path.dirname(target))


def _new_file(path: str, size: int, changed: ChangedFiles) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.truncate(size)
    changed.add(path)


def _own_copy(path: str, used: Sequence[tuple[int, int]], changed: ChangedFiles) -> None:
    """Replaces a linked file by a copy: the given ranges, zeros elsewhere."""
    fresh = f"{path}.copy"
    with open(path, "rb", buffering=0) as source, open(fresh, "wb", buffering=0) as target:
        os.truncate(fresh, os.fstat(source.fileno()).st_size)
        for start, end in used:
            at = start
            while at < end:
                chunk = os.pread(source.fileno(), min(_COPY_CHUNK, end - at), at)
                if not chunk:
                    break
                os.pwrite(target.fileno(), chunk, at)
                at += len(chunk)
    shutil.copymode(path, fresh)
    os.replace(fresh, path)
    changed.add(path)


class LogFiles:
    """The CommitLog's segments that grow or are new."""

    def __init__(
        self,
        old: str | None,
        new: str,
        existing: ExistingStore,
        plan: LoadPlan,
        changed: ChangedFiles,
    ) -> None:
        self._size = existing.segment_size
        self._descriptors: dict[int, int] = {}
        self._unsynced = 0
        self._counting = threading.Lock()  # guards _unsynced
        # Waits for the disk while others still write; what is left for the end is little then.
        self._syncing = ThreadPoolExecutor(1, "load-sync")
        directory = f"{new}/{paths.COMMIT_LOG}"
        if old is not None and existing.segments:
            newest = existing.segments[-1].path
            directory = new + os.path.dirname(os.path.realpath(newest))[len(old) :]
        start = plan.log_start // self._size * self._size
        while start < plan.log_end:
            path = f"{directory}/{paths.segment_name(start)}"
            if os.path.exists(path):
                _own_copy(path, [(0, plan.log_start - start)], changed)
            else:
                _new_file(path, self._size, changed)
            self._descriptors[start] = os.open(path, os.O_WRONLY)
            start += self._size
        for offset, remaining in plan.blanks:
            self.write(offset, message.encode_blank(remaining))

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes that lie within one segment; ranges of several threads never overlap."""
        start = offset // self._size * self._size
        descriptor = self._descriptors[start]
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset - start + done)
        with self._counting:
            self._unsynced += len(view)
            due = self._unsynced >= _SYNC_BYTES
            if due:
                self._unsynced = 0
        if due:
            self._syncing.submit(os.fdatasync, descriptor)

    def close(self) -> None:
        """Waits for syncs that were begun, and closes the files."""
        self._syncing.shutdown(wait=True)
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class QueueFileWriter:
    """The ConsumeQueues that grow or are new; all their files are made at once.

    Attributes:
        changed: paths of their files below the store's root.
        new: how many queues had no file.
    """

    def __init__(
        self,
        old: str | None,
        new: str,
        existing: ExistingStore,
        plan: LoadPlan,
        changed: ChangedFiles,
    ) -> None:
        self._root = f"{new}/{paths.CONSUME_QUEUE}"
        self._size = existing.queue_file_size
        self.changed: list[str] = []
        self.new = 0
        changed.add(self._root)  # for the names of new topics
        for queue, end in plan.ends.items():
            first = existing.end_of(QueueName(*queue))
            if first == end:
                continue
            self.new += not os.path.isdir(self._directory(queue))
            start = first * consume_queue.UNIT_SIZE // self._size * self._size
            while start < end * consume_queue.UNIT_SIZE:
                path = f"{self._directory(queue)}/{paths.segment_name(start)}"
                if os.path.exists(path):
                    used = first * consume_queue.UNIT_SIZE - start
                    _own_copy(path, [(0, used)], changed)
                else:
                    _new_file(path, self._size, changed)
                    _fill_front(path, first - start // consume_queue.UNIT_SIZE)
                self.changed.append(os.path.relpath(path, new))
                start += self._size

    def _directory(self, queue: tuple[str, int]) -> str:
        return f"{self._root}/{queue[0]}/{queue[1]}"

    def write(self, queue: tuple[str, int], first: int, units: bytes) -> None:
        """Writes units from an ordinal on; ranges of several threads never overlap."""
        at, done = first * consume_queue.UNIT_SIZE, 0
        while done < len(units):
            start = at // self._size * self._size
            count = min(len(units) - done, start + self._size - at)
            path = f"{self._directory(queue)}/{paths.segment_name(start)}"
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, units[done : done + count], at - start)
            finally:
                os.close(descriptor)
            done += count
            at += count


def _fill_front(path: str, units: int) -> None:
    """Has a queue that goes on without files begin in the middle of one, as brokers do it."""
    if units > 0:
        with open(path, "r+b") as file:
            file.write(consume_queue.PRE_BLANK * units)


class IndexWriter:
    """The Index: goes on in its newest file, begins a new one when that is full.

    Files are named by the store time of their first entry, see `file_name`.
    """

    def __init__(
        self,
        new: str,
        store: StoreFiles | None,
        options: WriteOptions,
        changed: ChangedFiles,
    ) -> None:
        self._directory = f"{new}/{paths.INDEX}"
        self._changed = changed
        self._slots = options.index_slots or index_file.DEFAULT_SLOTS
        self._entries_max = options.index_entries or index_file.DEFAULT_ENTRIES
        self._map: mmap.mmap | None = None
        self._previous: index_file.IndexHeader | None = None
        self._newest_name = ""
        self.full_timestamp = 0
        if store is not None:
            self._go_on(IndexFiles(store))

    def _go_on(self, files: IndexFiles) -> None:
        newest = files.newest()
        if newest is None:
            return
        path, size, header, slots = newest
        name = os.path.basename(path)
        self._newest_name = name
        self._previous = header
        if slots is None:  # nothing of it can be trusted; a new file begins
            return
        self._slots = slots
        self._entries_max = (size - index_file.HEADER_SIZE - slots * 4) // index_file.ENTRY_SIZE
        own = f"{self._directory}/{name}"
        used = [
            (0, index_file.HEADER_SIZE + slots * index_file.SLOT_SIZE),
            (
                index_file.entry_position(0, slots),
                index_file.entry_position(header.next_entry, slots),
            ),
        ]
        _own_copy(own, used, self._changed)
        self._open(own, size)

    def _open(self, path: str, size: int) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def put(self, entries: IndexEntries) -> None:
        """Adds entries, in the order of the log."""
        at = 0
        while at < entries.count:
            if self._map is None:
                self._begin(entries.entry(at)[2])
            assert self._map is not None
            view = memoryview(self._map)
            try:
                at = put_entries(view, self._slots, self._entries_max, entries, at)
            finally:
                view.release()
            if at < entries.count:
                self._end_file(full=True)

    def _begin(self, store_timestamp: int) -> None:
        name = file_name(store_timestamp, self._newest_name)
        self._newest_name = name
        path = f"{self._directory}/{name}"
        size = index_file.file_size(self._slots, self._entries_max)
        _new_file(path, size, self._changed)
        self._open(path, size)
        assert self._map is not None
        view = memoryview(self._map)
        try:
            start_file(view, self._previous)
        finally:
            view.release()

    def _end_file(self, *, full: bool) -> None:
        if self._map is not None:
            self._previous = index_header(self._map)
            if full:
                self.full_timestamp = self._previous.end_timestamp
            self._map.flush()
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Ends the newest file."""
        self._end_file(full=False)


def write_checkpoint(
    root: str,
    store_timestamp: int | None,
    log_end: int,
    index_timestamp: int,
    changed: ChangedFiles,
) -> None:
    path = f"{root}/{paths.CHECKPOINT}"
    values = cp.Checkpoint()
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        raw = file.read(cp.FILE_SIZE)
        if len(raw) >= cp.USED_SIZE:
            values = cp.decode_checkpoint(raw)
    if store_timestamp is not None:
        # Rows may keep older times than records before them. A value below the truth only makes a
        # recovery begin earlier; one above it would make it begin too late.
        values.physic_msg_timestamp = values.logics_msg_timestamp = store_timestamp
        indexed = max(values.index_msg_timestamp, index_timestamp)
        values.index_msg_timestamp = min(indexed, store_timestamp)
    values.logics_physical_offset = log_end
    changed.write(path, values.encode().ljust(cp.FILE_SIZE, b"\0"))


def write_topics(root: str, plan: LoadPlan, changed: ChangedFiles) -> None:
    """config/topics.json with every topic that got messages, so that a broker serves them."""
    queues: dict[str, int] = {}
    for topic, queue in plan.ends:
        if not is_system_topic(topic):
            queues[topic] = max(queues.get(topic, 0), queue + 1)
    path = f"{root}/{paths.CONFIG}/topics.json"
    configs = TopicConfigs()
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        configs = TopicConfigs.decode(file.read(), name=path)
    grown = False
    for topic, count in sorted(queues.items()):
        config = configs.topic_config_table.get(topic)
        if config is None:
            config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            configs.topic_config_table[topic] = config
        elif config.read_queue_nums >= count:
            continue
        else:
            config.read_queue_nums = config.write_queue_nums = count
        grown = True
    if grown:
        configs.data_version = configs.data_version.next(now_ms())
        changed.write(path, configs.encode())
