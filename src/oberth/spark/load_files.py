"""The files of a store that a load writes: segments, queues, checkpoint and topics.

They lie in a new tree that shares all other files with the old one by hard links, so a file is
copied before a byte of it changes. What was written is synced in the end, files before directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from oberth.formats import checkpoint as cp
from oberth.formats import consume_queue, message, paths
from oberth.formats.names import is_system_topic
from oberth.formats.topic_config import TopicConfig, TopicConfigs
from oberth.spark.load_plan import ExistingStore, LoadPlan
from oberth.spark.segments import QueueName
from oberth.store.file_kinds import refuse_linked
from oberth.wall_clock import now_ms

_COPY_CHUNK: Final = 8 << 20
_COPY_RANGE: Final = 64 << 20
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

    Raises:
        StoreError: a directory is a symbolic link: the new tree would be without its files.
    """
    empty = {
        segment.path for segment in existing.files.segments() if segment not in existing.segments
    }
    queues = f"{old}/{paths.CONSUME_QUEUE}"
    count = 0
    for directory, below, names in os.walk(old):
        refuse_linked(directory, below)
        if kept is not None and directory == old and paths.CONSUME_QUEUE in below:
            below.remove(paths.CONSUME_QUEUE)
        target = new + directory[len(old) :]
        os.makedirs(target, exist_ok=True)
        changed.add(target)
        count += os.path.dirname(os.path.dirname(directory)) == queues
        for name in names:
            source = f"{directory}/{name}"
            if source in empty:
                continue
            if os.path.isfile(source):
                os.link(source, f"{target}/{name}", follow_symlinks=False)
            else:
                refuse_linked(directory, [name])
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


def new_file(path: str, size: int, changed: ChangedFiles) -> None:
    """Makes a file of zeros."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.truncate(size)
    changed.add(path)


def own_copy(path: str, used: Sequence[tuple[int, int]], changed: ChangedFiles) -> None:
    """Replaces a linked file by a copy: the given ranges, zeros elsewhere."""
    fresh = f"{path}.copy"
    with open(path, "rb", buffering=0) as source, open(fresh, "wb", buffering=0) as target:
        os.truncate(fresh, os.fstat(source.fileno()).st_size)
        for start, end in used:
            _copy(source.fileno(), target.fileno(), start, end)
    shutil.copymode(path, fresh)
    os.replace(fresh, path)
    changed.add(path)


def _copy(source: int, target: int, start: int, end: int) -> None:
    at = start
    while at < end:
        chunk = os.pread(source, min(_COPY_CHUNK, end - at), at)
        if not chunk:
            break
        done = 0
        while done < len(chunk):
            done += os.pwrite(target, chunk[done:], at + done)
        at += len(chunk)


class CopiedRange(NamedTuple):
    """Bytes that a file of the new tree has from one of the old: a unit of work."""

    source: str
    target: str
    start: int
    end: int

    def copy(self) -> None:
        """Copies them; twice is as good as once."""
        with open(self.source, "rb", buffering=0) as source, open(self.target, "r+b") as target:
            _copy(source.fileno(), target.fileno(), self.start, self.end)
            target.flush()


def make_log_files(
    old: str | None, new: str, existing: ExistingStore, plan: LoadPlan, changed: ChangedFiles
) -> tuple[str, list[CopiedRange]]:
    """Makes the CommitLog's segments that grow or are new, with their blanks.

    Returns:
        Their directory, and what is still to be copied into the one that grows.
    """
    size = existing.segment_size
    directory = f"{new}/{paths.COMMIT_LOG}"
    if old is not None and existing.segments:
        directory = new + os.path.dirname(existing.segments[-1].path)[len(old) :]
    copies = []
    for start in range(plan.log_start // size * size, plan.log_end, size):
        path = f"{directory}/{paths.segment_name(start)}"
        if os.path.exists(path):
            source = old + path[len(new) :] if old is not None else path
            own_copy(path, [], changed)
            copies += [
                CopiedRange(source, path, at, min(at + _COPY_RANGE, plan.log_start - start))
                for at in range(0, plan.log_start - start, _COPY_RANGE)
            ]
        else:
            new_file(path, size, changed)
    for offset, remaining in plan.blanks:
        path = f"{directory}/{paths.segment_name(offset // size * size)}"
        with open(path, "r+b") as file:
            file.seek(offset % size)
            file.write(message.encode_blank(remaining))
    return directory, copies


def make_queue_files(
    new: str, existing: ExistingStore, plan: LoadPlan, changed: ChangedFiles
) -> tuple[list[str], int]:
    """Makes the files of the ConsumeQueues that grow or are new.

    Not for tasks: one that runs twice would take away what others have written meanwhile.

    Returns:
        Their paths below the tree's root, and how many queues had none.
    """
    size = existing.queue_file_size
    root = f"{new}/{paths.CONSUME_QUEUE}"
    made, without = [], 0
    changed.add(root)  # for the names of new topics
    for queue, end in plan.ends.items():
        first = existing.end_of(QueueName(*queue))
        if first == end:
            continue
        directory = f"{root}/{queue[0]}/{queue[1]}"
        without += not os.path.isdir(directory)
        start = first * consume_queue.UNIT_SIZE // size * size
        while start < end * consume_queue.UNIT_SIZE:
            path = f"{directory}/{paths.segment_name(start)}"
            if os.path.exists(path):
                own_copy(path, [(0, first * consume_queue.UNIT_SIZE - start)], changed)
            else:
                new_file(path, size, changed)
                _fill_front(path, first - start // consume_queue.UNIT_SIZE)
            made.append(os.path.relpath(path, new))
            start += size
    return made, without


def _fill_front(path: str, units: int) -> None:
    """Has a queue that goes on without files begin in the middle of one, as brokers do it."""
    if units > 0:
        with open(path, "r+b") as file:
            file.write(consume_queue.PRE_BLANK * units)


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
