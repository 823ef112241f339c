"""Scans a stretch of log with several threads and gives the pieces in order.

A record is found only through the one before it, so a log seems to be read by one thread. But
records name their own position: each thread finds the first record of its piece by itself
(`find_record`), and where the piece before ends tells whether that was right. If it was not (bytes
of a body that look like a record, say), the piece is scanned again from where it has to begin.

    thread 1   ├── piece 0 ──┤            ├── piece 2 ──┤
    thread 2   ├── piece 1 ──┤            ├── piece 3 ──┤
    caller                    0: units, index   1: …
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from oberth.formats.message import FIXED_SIZE_V1
from oberth.kernels import runtime
from oberth.kernels.arguments import DISPATCH_COLUMNS, CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.index import IndexEntries, index_keys
from oberth.kernels.memory import Buffer, address
from oberth.kernels.scan import ScanResult, find_record, scan

# Large enough that handing it over costs nothing, small enough for the second-level cache.
PIECE_SIZE = 4 << 20


@dataclass(slots=True)
class Piece:
    """The records that begin in one piece of log.

    The columns and entries are reused when the next piece is asked for.

    Attributes:
        start: position of the first record.
        position: of the first record that was not taken.
        end: why it was not; STOP when the piece simply ended.
        columns: the records; ``topic_id`` is of the table that was given.
        entries: their index entries, None unless asked for.
    """

    start: int
    position: int
    end: ScanEnd
    columns: Columns
    entries: IndexEntries | None


@dataclass(slots=True)
class _Work:
    """What one thread needs for one piece at a time."""

    columns: Columns
    topics: TopicTable
    entries: IndexEntries


def scan_pieces(
    data: Buffer,
    topics: TopicTable,
    *,
    base: int = 0,
    start: int = 0,
    stop: int | None = None,
    threads: int = 2,
    names: Sequence[str] = DISPATCH_COLUMNS,
    crc: CrcMode = CrcMode.NONE,
    record_crc: bool = False,
    delays_ms: Sequence[int] = (0,),
    entries: bool = False,
    index_tags: bool = False,
    piece_size: int = PIECE_SIZE,
) -> Generator[Piece, None, None]:
    """The records from ``start`` on, a piece at a time and in order.

    The last piece says why the scan ended. Records must name their own position.

    Args:
        data: a CommitLog segment or a part of one; must not go away before the iterator does.
        topics: numbers the topics of all pieces; grows.
        base: CommitLog offset of the first byte of data.
        start: position of the first record; a record begins there.
        stop: no record that starts here or later is taken; None for the end of data.
        threads: how many scan; with 1 it is done by the caller.
        names: columns.
        crc: what to do with the checksums of bodies.
        record_crc: demand the whole-record CRC property, see `scan`.
        delays_ms: milliseconds by delay level.
        entries: make index entries too.
        index_tags: with an entry for the tags.
        piece_size: bytes of a piece.
    """
    limit = memoryview(data).nbytes if stop is None else stop
    if piece_size < 1 or threads < 1:
        raise ValueError(f"{threads} threads, pieces of {piece_size} bytes: at least 1 is needed")
    runtime.native("scan", limit - start)

    def run(work: _Work, first: int | None, piece_start: int, piece_stop: int) -> ScanResult | None:
        work.columns.clear()
        work.entries.clear()
        if first is None:
            first = find_record(
                data, base=base, start=piece_start, stop=piece_stop, check_crc=False
            )
            if first is None:
                return None
        result = scan(
            data,
            work.columns,
            work.topics,
            base=base,
            start=first,
            stop=piece_stop,
            crc=crc,
            record_crc=record_crc,
            delays_ms=delays_ms,
        )
        if entries:
            index_keys(work.columns, work.topics, data, work.entries, index_tags=index_tags)
        return result

    room = piece_size // FIXED_SIZE_V1 + 2
    free: SimpleQueue[_Work] = SimpleQueue()
    ahead = threads + 1 if threads > 1 else 1
    for _ in range(ahead):
        free.put(_Work(Columns(room, names), TopicTable(), IndexEntries()))
    bounds = deque(
        (at, min(at + piece_size, limit)) for at in range(start, limit, piece_size)
    ) or deque([(start, limit)])
    waiting: deque[tuple[_Work, int, int, Future[ScanResult | None] | None]] = deque()
    pool = ThreadPoolExecutor(threads, "scan") if threads > 1 and len(bounds) > 1 else None
    try:
        position = start
        while bounds or waiting:
            while bounds and not free.empty():
                piece_start, piece_stop = bounds.popleft()
                work = free.get()
                first = start if piece_start == start else None
                future = None
                if pool is not None:
                    future = pool.submit(run, work, first, piece_start, piece_stop)
                waiting.append((work, piece_start, piece_stop, future))
            work, piece_start, piece_stop, future = waiting.popleft()
            if position >= piece_stop and piece_start != piece_stop:
                if future is not None:
                    future.result()
                free.put(work)  # one record goes right through the piece
                continue
            result = future.result() if future is not None else None
            began = work.columns.commit_log_offset[0] - base if work.columns.count else -1
            if result is None or (began != position and position != result.position):
                result = run(work, position, piece_start, piece_stop)
            assert result is not None
            renumber(work.columns, topics.merge(work.topics))
            yield Piece(
                position,
                result.position,
                result.end,
                work.columns,
                work.entries if entries else None,
            )
            if result.end is not ScanEnd.STOP:
                return
            position = result.position
            free.put(work)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def renumber(columns: Columns, numbers: Sequence[int]) -> None:
    """Replaces each topic number in the columns by ``numbers[topic number]``."""
    if "topic_id" not in columns or list(numbers) == list(range(len(numbers))):
        return
    ids = columns.topic_id
    kernel = runtime.native("renumber", columns.count * 4)
    if kernel is not None:
        table = array("q", numbers)
        kernel(array("q", (address(ids), columns.count, address(table))))
        return
    for row in range(columns.count):
        ids[row] = numbers[ids[row]]
