"""Index files from a stream of entries, each written by a task of its own.

Where one file ends in the stream and the next begins follows from counting, so they are planned at
once and written at the same time. A task writes beside the Index and renames in the end, so it may
run twice.
"""

from __future__ import annotations

import mmap
import os
import shutil
import uuid
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from oberth.formats.index_file import IndexHeader, entry_position
from oberth.kernels.index import index_header, put_entries, start_file
from oberth.spark.pipelines.log_ranges import EntryPart, EntryStream
from oberth.store.offline.index_files import file_name
from oberth.store.offline.layout import IndexShape


class IndexFileWork(NamedTuple):
    """One index file: its place, the header of the file before, its entries.

    Attributes:
        path: where it goes.
        previous: of the file before it.
        pieces: its entries.
        goes_on: another file whose entries come before these, "" for none. It does not change.
    """

    path: str
    previous: IndexHeader | None
    pieces: tuple[tuple[EntryPart, int, int], ...]
    goes_on: str = ""


class IndexPlan(NamedTuple):
    """Which entries go to which file.

    Attributes:
        works: a file each.
        full_timestamp: store time of the last entry in front of the last file, ms; 0 where there
            is no such file.
    """

    works: list[IndexFileWork]
    full_timestamp: int


class NewestIndexFile(NamedTuple):
    """The index file that is gone on with.

    Attributes:
        path: of the file, which stays as it is; what goes on with it has its name.
        header: its header.
        writable: whether it can take entries; else the next file begins where it ends.
    """

    path: str
    header: IndexHeader
    writable: bool = True


def plan_index_files(
    stream: EntryStream,
    shape: IndexShape,
    directory: str,
    *,
    start: int = 0,
    newest: NewestIndexFile | None = None,
) -> IndexPlan:
    """Divides entries into files; place 0 is never used, so a file takes one less than its size.

    Args:
        stream: the entries.
        shape: of new files, and of the newest one if that is gone on with.
        directory: of the files.
        start: entries before it are in the files that exist.
        newest: the file before; None where there is none.
    """
    name, previous = "", None
    works: list[IndexFileWork] = []
    full_timestamp = 0
    if newest is not None:
        name, previous = os.path.basename(newest.path), newest.header
        # A kernel passes over entries of records that the file before is newer than.
        start = bisect_left(
            range(stream.count), previous.end_offset, start, key=lambda n: stream.entry(n)[1]
        )
        room = shape.entries - previous.next_entry if newest.writable else 0
        stop = min(start + max(room, 0), stream.count)
        if stop > start:
            pieces = tuple(stream.pieces(start, stop))
            path = os.path.join(directory, name)
            works.append(IndexFileWork(path, None, pieces, goes_on=newest.path))
            previous = _end_of(stream, stop)
        if newest.writable and stop < stream.count:
            full_timestamp = previous.end_timestamp
        start = stop
    while start < stream.count:
        stop = min(start + shape.entries - 1, stream.count)
        name = file_name(stream.entry(start)[2], name)
        pieces = tuple(stream.pieces(start, stop))
        works.append(IndexFileWork(os.path.join(directory, name), previous, pieces))
        previous = _end_of(stream, stop)
        if stop < stream.count:
            full_timestamp = previous.end_timestamp
        start = stop
    return IndexPlan(works, full_timestamp)


def _end_of(stream: EntryStream, stop: int) -> IndexHeader:
    _, offset, stored = stream.entry(stop - 1)
    return IndexHeader(0, stored, 0, offset, 0, 0)


@dataclass(frozen=True, slots=True)
class IndexJob:
    """What all tasks that write index files have in common.

    Attributes:
        shape: of the files.
        unfinished: a directory in the same file system, which is not the Index.
    """

    shape: IndexShape
    unfinished: str


def write_index_file(job: IndexJob, work: IndexFileWork) -> None:
    """In a task: writes one index file, down to the disk.

    Raises:
        OSError: something cannot be read or written.
    """
    shape = job.shape
    unfinished = os.path.join(job.unfinished, f"{os.path.basename(work.path)}.{uuid.uuid4().hex}")
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, shape.file_size)
        with mmap.mmap(fd, shape.file_size) as mapped:
            with memoryview(mapped) as room:
                if work.goes_on:
                    _copy_used(work.goes_on, room, shape)
                    shutil.copymode(work.goes_on, unfinished)
                else:
                    start_file(room, work.previous)
                for part, first, stop in work.pieces:
                    entries = part.read(first, stop)
                    taken = put_entries(room, shape.slots, shape.entries, entries)
                    assert taken == stop - first
            mapped.flush()
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(unfinished, work.path)


def _copy_used(path: str, room: memoryview, shape: IndexShape) -> None:
    """A file's header, slots and entries; what lies behind them is not its."""
    with (
        open(path, "rb", buffering=0) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as old,
        memoryview(old) as view,
    ):
        end = entry_position(index_header(view).next_entry, shape.slots)
        room[:end] = view[:end]
