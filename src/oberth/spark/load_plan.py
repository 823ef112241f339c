"""Staged records, and the place in a store that each of them gets.

A staged file is a log of its own: records back to back, each naming its position in that file, all
queue offsets 0. Beside it lies a table of its blocks: sizes, and how many records go to each queue.
Places follow from these alone, as sums; a record is only looked at where a segment ends inside a
block. The plan goes through the tables one after the other and writes what follows to files, one
for each `Stretch`, so it needs memory for the queues and not for the blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from oberth.errors import NotFoundError, RecordError, StoreCorruptError, StoreError
from oberth.formats import consume_queue, message, paths
from oberth.formats import sys_flag as flags
from oberth.kernels.arguments import ScanEnd
from oberth.kernels.columns import DISPATCH_COLUMNS, Columns, TopicTable
from oberth.kernels.memory import uninitialised
from oberth.kernels.scan import scan
from oberth.spark.queue_files import QueueFiles
from oberth.spark.record_starts import RecordStarts
from oberth.spark.segments import QueueName, Segment
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles, iterate_queues
from oberth.spark.write_options import DEFAULT_SEGMENT_SIZE, WriteOptions

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of Linux's fallocate
_BLOCK_BYTES: Final = 4 << 20
"""Blocks are joined up to this size: a commit does one at a time."""
_STRETCH_BYTES: Final = (8 << 20, 64 << 20)
"""The least and the most that is placed as one unit of work."""
_STRETCHES_PER_CORE: Final = 4

_NEWEST_REACH: Final = 512 << 10
"""How far before its end a log's newest message is looked for."""


class StagedBlock(NamedTuple):
    """A stretch of a staged file: where it is, its records, and how many go to each queue."""

    start: int
    size: int
    rows: int
    counts: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task staged.

    Attributes:
        path: its file; every record names its own position in it.
        size: of the file, bytes.
        last_store_timestamp: of the last record, ms.
    """

    path: str
    size: int
    last_store_timestamp: int

    def blocks(self) -> Iterator[StagedBlock]:
        """The file's contents in order, read from its table one by one.

        Raises:
            OSError: the table cannot be read.
        """
        with open(self.path + _TABLE, "rb") as table:
            for line in table:
                start, size, rows, counts = _BLOCK_DECODER.decode(line)
                yield StagedBlock(start, size, rows, _by_queue(counts))


_TABLE: Final = ".blocks"
"""Beside a staged file: a line of JSON for each block, which is a `_Block`."""
_Counts = list[tuple[str, int, int]]
"""Topic, queue and a number."""
_Block = tuple[int, int, int, _Counts]
_BLOCK_DECODER: Final = msgspec.json.Decoder(_Block)
_STRETCH_DECODER: Final = msgspec.json.Decoder(tuple[str, list[tuple[int, int, int, int]], _Counts])


def _by_queue(counts: _Counts) -> dict[tuple[str, int], int]:
    return {(topic, queue): count for topic, queue, count in counts}


def _listed(counts: Mapping[tuple[str, int], int]) -> _Counts:
    return [(topic, queue, count) for (topic, queue), count in counts.items()]


class LoadItem(NamedTuple):
    """A block, or a part of one, and its place."""

    start: int
    size: int
    rows: int
    offset: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks of one staged file that follow each other: one unit of work.

    Attributes:
        path: the staged file.
        items: its blocks and their places.
        first: the ordinal that the first record of each queue gets.
    """

    path: str
    items: tuple[LoadItem, ...]
    first: dict[tuple[str, int], int]

    def write(self, path: str) -> None:
        """Writes it to a file, for the task that places it."""
        with open(path, "wb") as file:
            file.write(msgspec.json.encode((self.path, self.items, _listed(self.first))))

    @classmethod
    def read(cls, path: str) -> Stretch:
        """Reads it there."""
        with open(path, "rb") as file:
            staged, items, first = _STRETCH_DECODER.decode(file.read())
        return cls(staged, tuple(LoadItem(*each) for each in items), _by_queue(first))


@dataclass(slots=True)
class LoadPlan:
    """Where everything goes.

    Attributes:
        stretches: files that hold one `Stretch` each, in the order of the log.
        blanks: CommitLog offset, and bytes to the segment's end.
        log_start, log_end: the range of the log that is written.
        ends: of every queue that grows.
        rows: how many there are.
    """

    stretches: list[str] = field(default_factory=list)
    blanks: list[tuple[int, int]] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: int = 0


class StageWriter:
    """Writes one task's records to a staged file."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by `finish` or `discard`
        self._table = open(path + _TABLE, "wb")  # noqa: SIM115 - closed with the other
        self.size = 0
        self._block: StagedBlock | None = None
        self._last = 0

    def add(
        self,
        data: memoryview,
        rows: int,
        counts: Mapping[tuple[str, int], int],
        last_store_timestamp: int,
    ) -> None:
        """Adds records that name their positions from ``size`` on."""
        done = 0
        while done < len(data):
            done += self._file.write(data[done:])
        last = self._block
        if last is not None and last.size + len(data) <= _BLOCK_BYTES:
            total = dict(last.counts)
            for queue, count in counts.items():
                total[queue] = total.get(queue, 0) + count
            self._block = StagedBlock(last.start, last.size + len(data), last.rows + rows, total)
        else:
            self._note_block()
            self._block = StagedBlock(self.size, len(data), rows, dict(counts))
        self.size += len(data)
        self._last = last_store_timestamp

    def _note_block(self) -> None:
        if self._block is not None:
            *numbers, counts = self._block
            self._table.write(msgspec.json.encode((*numbers, _listed(counts))) + b"\n")

    def finish(self) -> StagedPart:
        """Closes the file; what was staged."""
        self._note_block()
        self._table.close()
        self._file.close()
        return StagedPart(self.path, self.size, self._last)

    def discard(self) -> None:
        """Closes and deletes the file."""
        self._file.close()
        self._table.close()
        for path in (self.path, self.path + _TABLE):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def work_directory(root: str, job: str) -> str:
    """Where a job stages and builds: beside the store, so on the same file system."""
    parent, name = os.path.split(os.path.realpath(root))
    return f"{parent}/.{name}.oberth-load-{job}"


class ExistingStore:
    """What a store already has; everything is as in an empty one where it has nothing.

    Only what is asked for is looked at: a load of few queues opens few, however many there are.
    """

    def __init__(self, root: str, options: WriteOptions) -> None:
        self.files = StoreFiles(LocalStorage(), root, "")
        used = self._used_segments()
        self.segments = used
        self.log_end = self.files.log_end() if used else 0
        self.log_start = self.files.log_start() if used else 0
        sizes = {segment.size for segment in self.files.segments()}
        if len(sizes) > 1:
            raise StoreCorruptError(f"{root}: CommitLog files of different sizes {sorted(sizes)}")
        found = sizes.pop() if sizes else None
        if found is not None and options.segment_size not in (None, found):
            raise StoreError(
                f"{root}: mappedFileSizeCommitLog is {options.segment_size}, its files have {found}"
            )
        self.segment_size = found or options.segment_size or DEFAULT_SEGMENT_SIZE
        self._ends: dict[QueueName, int] = {}
        self._emptied = self._ends_without_files(root)
        self.queue_file_size = consume_queue.round_file_size(
            options.queue_file_size or consume_queue.UNITS_PER_FILE * consume_queue.UNIT_SIZE
        )
        kinds = self.files.topics()
        self.batch_topics = {
            topic for topic, kind in kinds.items() if kind == paths.BATCH_CONSUME_QUEUE
        }
        newest = self._newest_queued()
        if newest is None:
            dispatched = self._look_at_all_queues()
        else:
            queue, dispatched = newest
            if not queue.is_batch and queue.segments:
                self.queue_file_size = queue.segments[0].size
            elif kinds:
                self._look_at_all_queues()
        self._check_dispatched(root, dispatched)
        self._check_blank()
        self._check_whole(root)

    def end_of(self, name: QueueName) -> int:
        """The queue offset that the next message of a queue gets."""
        found = self._ends.get(name)
        if found is None:
            segments: list[Segment] = []
            with contextlib.suppress(NotFoundError):
                queue = self.files.queue(*name)
                segments, found = queue.segments, queue.bounds()[1]
            if not segments:  # it goes on where it ended when it lost its files
                found = self._emptied.get(name.topic, {}).get(name.queue, 0)
            self._ends[name] = found or 0
        return self._ends[name]

    def _ends_without_files(self, root: str) -> dict[str, dict[int, int]]:
        from oberth.store.queue_ends import FILE_NAME, decode_ends  # what few stores need

        with contextlib.suppress(FileNotFoundError), open(f"{root}/{FILE_NAME}", "rb") as file:
            return decode_ends(file.read(), root)
        return {}

    def _newest_queued(self) -> tuple[QueueFiles, int] | None:
        """The queue of the log's newest message, and where that ends, if a unit names it.

        Units are written in the order of the log, so every message before has its unit, too.
        """
        segment = self.files.segment_of(self.log_end - 1) if self.log_end else None
        if segment is None:
            return None
        starts = RecordStarts(self.files)
        begin = starts.first(segment, max(segment.start, self.log_end - _NEWEST_REACH)).offset
        data = self.files.read_log(begin, max(self.log_end - begin, 0))
        columns, topics = Columns(_NEWEST_REACH // message.FIXED_SIZE_V1), TopicTable()
        scan(data, columns, topics, base=begin)
        rows = np.flatnonzero(queued(columns))
        if not len(rows):
            return None
        row = int(rows[-1])
        topic, number = queue_of(int(queue_codes(columns)[row]), topics)
        at, size = int(columns.commit_log_offset[row]), int(columns.record_size[row])
        try:
            queue = self.files.queue(topic, number)
        except NotFoundError:
            return None
        if not queue.shows(int(columns.queue_offset[row]), at, size):
            return None
        return queue, at + size

    def _look_at_all_queues(self) -> int:
        """Looks at every queue; gives the end of the newest record that any of them names."""
        dispatched = self.log_start
        for name in iterate_queues(self.files):
            queue = self.files.queue(*name)
            if not queue.is_batch and queue.segments:
                self.queue_file_size = queue.segments[0].size
            last = queue.unit_numbers()[1]
            if last:
                unit = queue.read_units(last - 1, last)
                if len(unit) and unit["size"][0] != consume_queue.PRE_BLANK_SIZE:
                    dispatched = max(dispatched, int(unit["offset"][0]) + int(unit["size"][0]))
        return dispatched

    def _used_segments(self) -> list[Segment]:
        """Segments with records; RocketMQ makes the next two in advance."""
        end = self.files.log_end()
        return [s for s in self.files.segments() if s.start < end]

    def _check_dispatched(self, root: str, dispatched: int) -> None:
        """Raises when the log has messages that no queue knows: ordinals would be given twice."""
        at = dispatched
        while at < self.log_end:
            segment = self.files.segment_of(at)
            if segment is None:
                raise StoreCorruptError(f"{root}: no CommitLog file holds offset {at}")
            data = self.files.read_log(at, min(segment.end, self.log_end) - at)
            columns = Columns(8192, ("sys_flag", "commit_log_offset", "topic_id"))
            ended = scan(data, columns, TopicTable(), base=at)
            kinds = columns.array("sys_flag") & flags.TRANSACTION_MASK
            waiting = np.flatnonzero(
                (kinds == flags.TRANSACTION_NOT) | (kinds == flags.TRANSACTION_COMMIT)
            )
            if len(waiting):
                raise StoreError(
                    f"{root}: the record at CommitLog {columns.commit_log_offset[int(waiting[0])]} "
                    "is in no ConsumeQueue; run `oberth store recover` first"
                )
            if ended.end is ScanEnd.FULL:
                at += ended.position
            elif ended.end in (ScanEnd.STOP, ScanEnd.BLANK):
                at = segment.end if ended.end is ScanEnd.BLANK else at + ended.position
            else:
                raise StoreError(
                    f"{root}: CommitLog {at + ended.position} is no record ({ended.end.name}); "
                    "run `oberth store recover` first"
                )

    def _check_blank(self) -> None:
        """Moves the end behind a blank that the last segment ends in."""
        if self.log_end % self.segment_size == 0:
            return
        head = self.files.read_log(self.log_end, message.BLANK_SIZE_MIN)
        if len(head) == message.BLANK_SIZE_MIN and message.BLANK.unpack(head)[1] == (
            message.BLANK_MAGIC
        ):
            self.log_end = -(-self.log_end // self.segment_size) * self.segment_size

    def _check_whole(self, root: str) -> None:
        """Raises when the log goes on in a directory that is not in the store."""
        if self.log_end % self.segment_size == 0 and self._look_at_all_queues() > self.log_end:
            raise StoreError(
                f"{root}: its queues name records behind CommitLog {self.log_end}, where the files "
                "of its log end; with directories elsewhere (storePathCommitLog) move all of "
                f"them to {root}/{paths.COMMIT_LOG} first"
            )


def plan_load(
    parts: Sequence[StagedPart], existing: ExistingStore, into: str, parallelism: int = 1
) -> LoadPlan:
    """The place of every record.

    Args:
        parts: what was staged, in the order that the records get.
        existing: where it is added.
        into: a directory that gets the files of the stretches.
        parallelism: how many units of work are done at the same time.

    Raises:
        RecordError: a record is larger than a segment.
        StoreError: a topic has batch queues.
        OSError: a table cannot be read, or a stretch not be written.
    """
    os.makedirs(into, exist_ok=True)
    least, most = _STRETCH_BYTES
    share = sum(part.size for part in parts) // (parallelism * _STRETCHES_PER_CORE)
    planning = _Planning(existing, into, min(max(share, least), most))
    for part in parts:
        if part.size:
            planning.add(part)
    planning.plan.log_end = planning.at
    return planning.plan


class _Planning:
    """One plan while it is made."""

    def __init__(self, existing: ExistingStore, into: str, stretch_bytes: int) -> None:
        self.plan = LoadPlan(log_start=existing.log_end)
        self.at = existing.log_end
        self._existing = existing
        self._into = into
        self._stretch_bytes = stretch_bytes
        self._items: list[LoadItem] = []
        self._first: dict[tuple[str, int], int] = {}

    def add(self, part: StagedPart) -> None:
        """Gives a part's records their places; its stretches are about equally long."""
        wanted = -(-part.size // -(-part.size // self._stretch_bytes))
        done = 0
        for block in part.blocks():
            rest: StagedBlock | None = block
            while rest is not None:
                size, rest = self._place(part.path, rest)
                done += size
                if done >= wanted:
                    self._end_stretch(part.path)
                    done = 0
        self._end_stretch(part.path)

    def _end_stretch(self, staged: str) -> None:
        if not self._items:
            return
        path = f"{self._into}/{len(self.plan.stretches):08d}"
        Stretch(staged, tuple(self._items), self._first).write(path)
        self.plan.stretches.append(path)
        self._items, self._first = [], {}

    def _place(self, path: str, block: StagedBlock) -> tuple[int, StagedBlock | None]:
        """The place of what fits of a block; how many bytes that is, and the rest."""
        size = self._existing.segment_size
        taken, rest = _cut(path, block, size - self.at % size - message.BLANK_SIZE_MIN)
        if taken is None:
            if self.at % size == 0:
                raise RecordError(f"a record of {path} does not fit a segment of {size} bytes")
            self.plan.blanks.append((self.at, size - self.at % size))
            self.at += size - self.at % size
            return 0, rest
        self._count(taken.counts)
        self._items.append(LoadItem(taken.start, taken.size, taken.rows, self.at))
        self.plan.rows += taken.rows
        self.at += taken.size
        return taken.size, rest

    def _count(self, counts: Mapping[tuple[str, int], int]) -> None:
        ends = self.plan.ends
        for queue, count in counts.items():
            end = ends.get(queue)
            if end is None:
                if queue[0] in self._existing.batch_topics:
                    raise StoreError(
                        f"topic {queue[0]} has batch queues (queue.type=BatchCQ); "
                        "a bulk load writes ordinary ones"
                    )
                end = self._existing.end_of(QueueName(*queue))
            self._first.setdefault(queue, end)
            ends[queue] = end + count


def _cut(path: str, block: StagedBlock, room: int) -> tuple[StagedBlock | None, StagedBlock | None]:
    """The part of a block that fits, and the rest; None for the first when nothing fits."""
    if block.size <= room:
        return block, None
    _, columns, topics = StagedReader().scan(path, block.start, block.size, block.rows)
    ends = np.cumsum(columns.array("record_size").astype(np.int64))
    fits = int(np.searchsorted(ends, room, side="right"))
    if fits == 0:
        return None, block
    size = int(ends[fits - 1])
    return (
        StagedBlock(block.start, size, fits, _counts(columns, topics, 0, fits)),
        StagedBlock(
            block.start + size,
            block.size - size,
            block.rows - fits,
            _counts(columns, topics, fits, block.rows),
        ),
    )


class StagedReader:
    """Reads stretches of staged files, one at a time, into memory that the next one uses again.

    One thread at a time.
    """

    def __init__(self, delays: Sequence[int] = (0,)) -> None:
        """Prepares.

        Args:
            delays: milliseconds by delay level, for the units of the schedule topic.
        """
        self._delays = delays
        self._memory = bytearray()
        self._columns = Columns(0)
        self._topics = TopicTable()

    def scan(
        self, path: str, start: int, size: int, rows: int, base: int | None = None
    ) -> tuple[memoryview, Columns, TopicTable]:
        """A stretch and its records, which have to be exactly so many; until the next call.

        Raises:
            StoreCorruptError: the file does not hold what was staged.
        """
        if len(self._memory) < size:
            self._memory = uninitialised(size)
        if self._columns.capacity <= rows:
            self._columns = Columns(rows + 1, (*DISPATCH_COLUMNS, "stored_offset"))
        data, columns = memoryview(self._memory)[:size], self._columns
        got = _read_at(path, start, data)
        columns.clear()
        ended = scan(
            data[:got], columns, self._topics, base=start if base is None else base,
            own_position=False, delays_ms=self._delays,
        )  # fmt: skip
        whole = ended.end is ScanEnd.STOP and columns.count == rows and got == size
        if not whole or (rows and columns.stored_offset[0] != start):
            raise StoreCorruptError(
                f"{path}: {columns.count} records at {start} to {start + ended.position}, "
                f"staged were {rows} in {size} bytes"
            )
        return data, columns, self._topics


def _read_at(path: str, start: int, into: memoryview) -> int:
    """Fills memory from a place of a file; how much of it, less only at the file's end."""
    got = 0
    with open(path, "rb", buffering=0) as file:
        while got < len(into):
            more = os.preadv(file.fileno(), [into[got:]], start + got)
            if more == 0:
                break
            got += more
    return got


def give_back(path: str, start: int, size: int) -> None:
    """Frees a stretch of a staged file that is in its place now.

    Its memory serves what is written next, and a load needs room on the disk for its records once,
    not twice. Where a file system cannot do it, nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, size)
    finally:
        os.close(descriptor)


@cache
def _fallocate() -> Any:
    function = ctypes.CDLL(None).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


def queued(columns: Columns) -> Any:
    """Records that ConsumeQueues know."""
    kinds = columns.array("sys_flag") & flags.TRANSACTION_MASK
    return (kinds == flags.TRANSACTION_NOT) | (kinds == flags.TRANSACTION_COMMIT)


def queue_codes(columns: Columns) -> Any:
    return (columns.array("topic_id").astype(np.int64) << 32) | columns.array("queue_id")


def queue_of(code: int, topics: TopicTable) -> tuple[str, int]:
    return topics.names[code >> 32].decode(), code & 0xFFFFFFFF


def _counts(
    columns: Columns, topics: TopicTable, first: int, last: int
) -> dict[tuple[str, int], int]:
    codes = queue_codes(columns)[first:last][queued(columns)[first:last]]
    found, counts = np.unique(codes, return_counts=True)
    return {
        queue_of(code, topics): count
        for code, count in zip(found.tolist(), counts.tolist(), strict=True)
    }
