"""Brings staged records to their places: what a task of a load does.

A task reads one stretch of a staged file, gives every record its queue offset and its CommitLog
offset, and writes records and ConsumeQueue units to files that are there already, at places that no
other task writes. So it may run twice, at the same time as well. In the end it leaves the stretch's
Index entries beside the plan, which says that all of it is in its place, and only then frees the
staged bytes: who comes later finds the entries and has nothing to do.
"""

from __future__ import annotations

import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from oberth.errors import StoreCorruptError
from oberth.formats import consume_queue, message, paths
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.index import IndexEntries, index_keys
from oberth.spark.load_files import CopiedRange
from oberth.spark.load_plan import (
    LoadItem,
    StagedReader,
    Stretch,
    give_back,
    queue_codes,
    queue_of,
    queued,
)

_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_ENTRY_BYTES: Final = 4 + 8 + 8
_SYNC_BYTES: Final = 32 << 20
_ENTRIES: Final = ".entries"


@dataclass(frozen=True, slots=True)
class PlaceJob:
    """What all tasks of one load have in common.

    Attributes:
        root: the new tree.
        log: the directory of the segments that grow or are new.
        segment_size: of these, bytes.
        queue_file_size: bytes of a ConsumeQueue's file.
        index_enabled: whether there are Index entries.
        index_tags: whether tags have some.
        delays: milliseconds by delay level.
    """

    root: str
    log: str
    segment_size: int
    queue_file_size: int
    index_enabled: bool
    index_tags: bool
    delays: tuple[int, ...]


class Placed(NamedTuple):
    """Where the Index entries of a stretch are; an `EntryStream` is made of these."""

    path: str = ""
    entries_position: int = 0
    entry_count: int = 0


def place(job: PlaceJob, work: str | CopiedRange) -> Placed:
    """In a task: places a stretch, given by the path of its plan; or copies bytes of the old tree.

    Raises:
        StoreCorruptError: the staged file does not hold what was staged.
        OSError: something cannot be read or written.
    """
    if isinstance(work, CopiedRange):
        work.copy()
        return Placed()
    entries = work + _ENTRIES
    stretch = Stretch.read(work)
    if not os.path.exists(entries):
        try:
            _Placing(job, stretch).run(entries)
        except StoreCorruptError:
            if not os.path.exists(entries):  # else another attempt was faster and freed the bytes
                raise
    for item in stretch.items:
        give_back(stretch.path, item.start, item.size)
    return Placed(entries, 0, os.path.getsize(entries) // _ENTRY_BYTES)


class _Placing:
    """One stretch on its way."""

    def __init__(self, job: PlaceJob, stretch: Stretch) -> None:
        self._job = job
        self._stretch = stretch
        self._reader = StagedReader(job.delays)
        self._topics = TopicTable()
        self._next = dict(stretch.first)
        self._codes: list[Any] = []
        self._units: list[Any] = []
        self._entries = IndexEntries()

    def run(self, entries_path: str) -> None:
        """Does it, down to the disk."""
        with ExitStack() as stack:
            log = stack.enter_context(_Segments(self._job))
            for item in self._stretch.items:
                data, columns, topics = self._reader.scan(
                    self._stretch.path, item.start, item.size, item.rows, item.offset
                )
                self._topics = topics  # the reader has one for all items
                self._number(item, data, columns)
                log.write(item.offset, data)
                if self._job.index_enabled:
                    index_keys(
                        columns, topics, data, self._entries, index_tags=self._job.index_tags
                    )
            self._write_units()
            log.sync()
        self._write_entries(entries_path)

    def _number(self, item: LoadItem, data: memoryview, columns: Columns) -> None:
        """Writes their offsets into the records; keeps their units."""
        offsets = columns.array("commit_log_offset")
        queue_offsets = np.zeros(item.rows, np.int64)
        codes = queue_codes(columns)
        rows = np.flatnonzero(queued(columns))
        # By queue, in each in the order of the log.
        rows = rows[np.argsort(codes[rows], kind="stable")]
        found, starts, counts = np.unique(codes[rows], return_index=True, return_counts=True)
        firsts = np.empty(len(found), np.int64)
        for number, (code, count) in enumerate(zip(found.tolist(), counts.tolist(), strict=True)):
            queue = queue_of(code, self._topics)
            firsts[number] = self._next[queue]
            self._next[queue] += count
        queue_offsets[rows] = np.arange(len(rows)) + np.repeat(firsts - starts, counts)
        units = np.empty(len(rows), _UNIT)
        units["offset"] = offsets[rows]
        units["size"] = columns.array("record_size")[rows]
        units["tags"] = columns.array("tags_code")[rows]
        self._codes.append(codes[rows])
        self._units.append(units.view(np.uint8).reshape(-1, _UNIT.itemsize))  # as stored
        raw = np.frombuffer(data, np.uint8)
        places = (offsets - item.offset)[:, None]
        for position, values in (
            (message.QUEUE_OFFSET_POSITION, queue_offsets),
            (message.COMMIT_LOG_OFFSET_POSITION, offsets),
        ):
            raw[places + np.arange(position, position + 8)] = (
                values.astype(">i8").view(np.uint8).reshape(-1, 8)
            )

    def _write_units(self) -> None:
        """Writes the units, each queue's at once."""
        if not self._codes:
            return
        codes, units = np.concatenate(self._codes), np.concatenate(self._units)
        order = np.argsort(codes, kind="stable")
        units = units[order]
        found, starts, counts = np.unique(codes[order], return_index=True, return_counts=True)
        for code, start, count in zip(
            found.tolist(), starts.tolist(), counts.tolist(), strict=True
        ):
            topic, number = queue = queue_of(code, self._topics)
            directory = f"{self._job.root}/{paths.CONSUME_QUEUE}/{topic}/{number}"
            first = self._stretch.first[queue]
            assert first + count == self._next[queue]
            _write_queue(
                directory, self._job.queue_file_size, first, units[start : start + count].tobytes()
            )

    def _write_entries(self, path: str) -> None:
        """As `EntryPart` reads them; under their name when they are complete."""
        entries, count = self._entries, self._entries.count
        unfinished = f"{path}.{uuid.uuid4().hex}"
        with open(unfinished, "wb") as file:
            file.write(memoryview(entries.hashes)[: 4 * count])
            file.write(memoryview(entries.offsets)[: 8 * count])
            file.write(memoryview(entries.timestamps)[: 8 * count])
        os.replace(unfinished, path)


def _write_queue(directory: str, file_size: int, first: int, units: bytes) -> None:
    """Writes units from an ordinal on into files that are there."""
    at, done = first * consume_queue.UNIT_SIZE, 0
    while done < len(units):
        start = at // file_size * file_size
        count = min(len(units) - done, start + file_size - at)
        descriptor = os.open(f"{directory}/{paths.segment_name(start)}", os.O_WRONLY)
        try:
            _write_at(descriptor, memoryview(units)[done : done + count], at - start)
        finally:
            os.close(descriptor)
        done += count
        at += count


def _write_at(descriptor: int, data: memoryview, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], at + done)


class _Segments:
    """The segments that a stretch reaches into; waits for the disk while more is written."""

    def __init__(self, job: PlaceJob) -> None:
        self._job = job
        self._descriptors: dict[int, int] = {}
        self._pool = ThreadPoolExecutor(1, "load-sync")
        self._syncs: list[Future[None]] = []
        self._unsynced = 0

    def __enter__(self) -> _Segments:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def write(self, offset: int, data: memoryview) -> None:
        """Writes bytes that lie within one segment."""
        size = self._job.segment_size
        start = offset // size * size
        descriptor = self._descriptors.get(start)
        if descriptor is None:
            descriptor = os.open(f"{self._job.log}/{paths.segment_name(start)}", os.O_WRONLY)
            self._descriptors[start] = descriptor
        _write_at(descriptor, data, offset - start)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            self._begin_sync()

    def _begin_sync(self) -> None:
        self._syncs += [
            self._pool.submit(os.fdatasync, each) for each in self._descriptors.values()
        ]
        self._unsynced = 0

    def sync(self) -> None:
        """Waits until everything is on the disk.

        Raises:
            OSError: it did not get there.
        """
        self._begin_sync()
        for each in self._syncs:
            each.result()
