"""Makes a slave's store one that its master takes on: cuts the log where the two have parted.

What is cut off is moved beside the store, to ``DIR.parted``, and never deleted: it may be the only
copy of an acknowledged message. Queues, index and timer are derived from the log and are made anew
by the next start; what compaction logs have of it is copied anew.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from oberth.errors import StoreError
from oberth.formats import paths
from oberth.formats.epochs import FILE_NAME as EPOCHS
from oberth.formats.epochs import Epoch, EpochTable, encode_epochs
from oberth.formats.log_checksums import FILE_NAME as CHECKSUMS
from oberth.store.compaction_store import QueueUnits, forget_copies
from oberth.store.file_kinds import refuse_linked
from oberth.store.files import OsFileSystem
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.log_walk import DamagedRecord, walk
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import locked, sync_directory, sync_tree
from oberth.store.recovery_state import FILE_NAME as STATE

PARTED_SUFFIX: Final = ".parted"
COPY_BYTES: Final = 1 << 20
_DERIVED: Final = (
    paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT, paths.BATCH_CONSUME_QUEUE, paths.INDEX,
    paths.TIMER_LOG, paths.TIMER_WHEEL, paths.CHECKPOINT, STATE, CHECKSUMS,
    f"{paths.CONFIG}/timercheck",
)  # fmt: skip


class Cut(NamedTuple):
    """What was cut off.

    Attributes:
        at: CommitLog offset at which the log ends now; where it was emptied its former begin.
        end: where it ended.
        kept_in: the directory that has what was cut off.
    """

    at: int
    end: int
    kept_in: str


def record_start(reader: StoreReader, offset: int) -> int:
    """Where the record starts that holds an offset; the offset itself where none does."""
    index = reader.log.index_of(offset)
    if index is None:
        return offset
    for item in walk(reader.log, reader.log.segments[index].start):
        message = item.message if isinstance(item, DamagedRecord) else item
        start = getattr(message, "commit_log_offset", getattr(message, "start", offset))
        if start >= offset:
            break
        size = getattr(message, "record_size", getattr(message, "size", 0))
        if start + size > offset:
            return int(start)
    return offset


def free_name(root: str, at: int) -> str:
    """A directory beside the store, not there yet, for what a running broker cuts off."""
    number = 1
    found = first = f"{root}{PARTED_SUFFIX}-{at}"
    while os.path.exists(found):
        number += 1
        found = f"{first}-{number}"
    return found


def keep_end(paths_from: Sequence[tuple[str, int]], at: int, kept_in: str) -> None:
    """Copies the end of a log that is open, before it is cut off. Blocks.

    Args:
        paths_from: path and start of each segment that has something behind ``at``.
        at: what lies before it is not copied.
        kept_in: a directory that is not there yet.

    Raises:
        OSError: a file cannot be read or written.
    """
    _make_kept(kept_in)
    for path, start in paths_from:
        _copy_from(max(at - start, 0), path, os.path.join(kept_in, os.path.basename(path)))
    sync_tree(kept_in)


def _make_kept(kept_in: str) -> None:
    os.makedirs(kept_in)
    sync_directory(os.path.dirname(kept_in))


def _units_at(reader: StoreReader, place: int, topic: str, queue_id: int) -> QueueUnits | None:
    if QueueKey(topic, queue_id) not in reader.layout.queues:
        return None
    queue = reader.queue(topic, queue_id)
    end = queue.end_offset()
    low = queue.min_offset(0, end)
    return QueueUnits(low, queue.min_offset(place, end)) if low < end else None


def cut_log(
    root: str,
    at: int,
    kept_in: str | None = None,
    end: int | None = None,
    *,
    has_parted: bool = True,
    common_end: int | None = None,
) -> Cut:
    """Cuts a store's log at an offset, and keeps what is cut off. Blocks.

    Args:
        root: the store's directory.
        at: the new end.
        kept_in: a directory for what is cut off; None: ``DIR.parted``. Segments have their names
            and sizes there; the one that is cut has a hole before ``at``.
        end: where the log ends, if that is known; looking for it reads the last segment, ten
            seconds for 1 GiB.
        has_parted: False if the master has only deleted what it had in common with this store. Then
            what was compacted stays: no log has it any more.
        common_end: up to where the log was the master's, if that is not ``at``: before it begins
            now, perhaps. What was compacted of the log from there on is in no log.

    Raises:
        StoreLockedError: a broker has the store open.
        StoreCorruptError: files of a compaction log do not belong together.
        StoreError: the directory for what is cut off is there already, or one of the queues or the
            index is a symbolic link.
        OSError: a file cannot be changed.
    """
    root = os.path.abspath(root)  # beside "." there is nothing
    if kept_in is None:
        kept_in = root + PARTED_SUFFIX
    with locked(root):
        with StoreReader(root) as reader:
            segments = reader.layout.commit_log
            end = reader.max_offset if end is None else end
            if os.path.exists(kept_in):
                raise StoreError(f"{kept_in}: holds what was cut off before; move it away first")
            refuse_linked(root, _DERIVED)
            if has_parted and segments:
                begin = segments[0].start
                start = min(begin, at if common_end is None else common_end)
                units_at = partial(_units_at, reader, start)
                forget_copies(OsFileSystem(), root, start, begin, units_at)
        _make_kept(kept_in)
        for segment in reversed(segments):
            if segment.end <= at:
                break
            target = os.path.join(kept_in, os.path.basename(segment.path))
            if segment.start >= at:
                shutil.move(segment.path, target)
                continue
            _copy_from(at - segment.start, segment.path, target)
            sync_tree(kept_in)
            with open(segment.path, "r+b") as file:
                file.truncate(at - segment.start)
                file.truncate(segment.size)
                os.fsync(file.fileno())
        sync_tree(kept_in)
        for directory in {os.path.dirname(each.path) for each in segments}:
            sync_directory(directory)
        for name in _DERIVED:
            path = os.path.join(root, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.remove(path)
        sync_directory(root)
    return Cut(at, end, kept_in)


def _copy_from(position: int, source: str, target: str) -> None:
    """Copies a file from a position on; before it, and where there are zeros, the copy has holes.

    A segment has 1 GiB, and what is cut off is often one message: a replica is away meanwhile.
    """
    with open(source, "rb") as file, open(target, "wb") as copy:
        size = os.fstat(file.fileno()).st_size
        copy.truncate(size)
        while position < size:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
                end = os.lseek(file.fileno(), position, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # no data behind this
                end = size  # this file system does not tell
            while position < end:
                data = os.pread(file.fileno(), min(COPY_BYTES, end - position), position)
                if data.count(0) < len(data):
                    os.pwrite(copy.fileno(), data, position)
                position += len(data)


def write_epochs(root: str, epochs: Sequence[tuple[int, int]], end: int) -> None:
    """Gives a store the epochs of a master whose log has the same bytes. Blocks.

    Its own may be lost, damaged or those of another history; without a common epoch the store of a
    broker under a controller is not taken on.

    Args:
        root: the store's directory.
        epochs: numbers, and the offsets where they began, oldest first.
        end: of the store's log; what begins there or behind it is the master's alone.

    Raises:
        StoreLockedError: a broker has the store open.
        ConfigFormatError: the epochs do not grow.
        OSError: the file cannot be written.
    """
    table = EpochTable()
    for number, start in epochs:
        if start < end:
            table.append(Epoch(number, start))
    with locked(root):
        OsFileSystem().write_file(os.path.join(root, EPOCHS), encode_epochs(table))
