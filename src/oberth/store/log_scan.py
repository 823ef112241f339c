"""Finds out where a CommitLog ends and what in it is damaged.

The rule: bytes that are no valid record naming its own place end the log only if no such record
follows. If one does, the bytes between are damage in the middle: reported, stepped over by readers
and dispatch, and nothing after them is lost. (RocketMQ ends the log at the first such place, and
truncates what follows.)

A record that follows counts only if it was stored no earlier than the last one before the damage.
RocketMQ truncates without erasing, so past its end there may be records of an earlier life which
name their own places too; they are older than what was written since.

Holes are not read through the mapping: see `Mapping.data_end`. A record may have one in the middle,
where a store was copied by a tool that leaves zeros out.

No checksum covers topic and properties. After a loss of power a record may lack sectors of them,
and the one before the first byte that is missing their end. Then it was never acknowledged: it
counts as damage.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.formats.message import (
    BLANK_SIZE_MIN,
    MAGIC_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    Blank,
    DispatchRequest,
    Invalid,
    decode_record,
    read_dispatch_request,
    stated_size,
)
from oberth.formats.torn_record import SECTOR_SIZE, SizeAt, lacks_a_sector, step_over
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import scan
from oberth.store.mapped_file import MappedFile
from oberth.store.mapped_file_queue import MappedFileQueue

# The first three bytes of both record magics; the fourth is looked at by the validation.
_MAGIC_START: Final = struct.pack(">i", MAGIC_V1)[:3]
assert struct.pack(">i", MAGIC_V2)[:3] == _MAGIC_START
_CHUNK_SIZE: Final = 1 << 20
NOT_WHOLE: Final = "a record whose properties end in zeros"
# Records a scan takes at a time.
_ROWS: Final = 16384


class Damage(NamedTuple):
    """Bytes [start, end) of the CommitLog that hold no valid record, and why."""

    start: int
    end: int
    reason: str


class LogEnd(NamedTuple):
    """What a scan found.

    ``last_record`` is where the last valid record starts, -1 if there is none; ``stale_end`` is up
    to where there are bytes behind the end which are not zero (0: none).
    """

    end_offset: int
    last_record: int
    last_store_timestamp: int
    record_count: int
    damages: tuple[Damage, ...]
    stale_end: int


def find_record(
    segment: MappedFile, position: int, *, check_crc: bool, not_before_ms: int = 0
) -> int | None:
    """The first valid record at or after a position of a segment, as a position; None if none."""
    size = segment.file_size
    at = position + MAGIC_POSITION
    while True:
        data = segment.next_data(at)
        if data is None:
            return None
        # Not to the segment's end in one go: most of it may be a hole, and a search through the
        # mapping would bring every page of that into memory.
        at = max(at, data)
        end = max(segment.data_end(at), at + 1)
        stop = min(at + _CHUNK_SIZE, end)
        found = segment.find(_MAGIC_START, at, stop)
        if found < 0:
            if stop == size:
                return None
            # No byte of it is zero, so it does not reach into a hole.
            at = stop if stop == end else stop - len(_MAGIC_START) + 1
            continue
        start = found - MAGIC_POSITION
        request = read_request(segment, start, check_crc=check_crc)
        if isinstance(request, DispatchRequest) and request.store_timestamp >= not_before_ms:
            return start
        at = found + 1


def read_request(
    segment: MappedFile, position: int, *, check_crc: bool = False
) -> DispatchRequest | Blank | Invalid:
    """What lies at a position of a segment that may have holes; see `read_dispatch_request`."""
    size, base = segment.file_size, segment.start_offset
    head = segment.read(position, min(BLANK_SIZE_MIN, size - position))
    wanted = stated_size(head)
    end = position + max(min(wanted, size - position), len(head))
    if end <= segment.data_end(position):
        return read_dispatch_request(segment.buffer, position, size, base, check_crc=check_crc)
    # Less than the size says only where the file ends; then what is said of it stays the same.
    copy = segment.read(position, end - position)
    if wanted > len(copy):
        copy = head
    return read_dispatch_request(copy, 0, len(copy), base + position, check_crc=check_crc)


def find_log_end(
    queue: MappedFileQueue,
    start_offset: int,
    *,
    check_crc: bool,
    not_before_ms: int = 0,
    check_ends: bool = False,
    unsynced_after_ms: int | None = None,
    size_at: SizeAt | None = None,
) -> LogEnd:
    """Walks the log from a record's start to where it ends.

    Args:
        queue: the CommitLog's segments, each readable to its full size.
        start_offset: where a record starts; a segment's start in doubt.
        check_crc: whether bodies must pass their checksums.
        not_before_ms: store time of the record before ``start_offset``.
        check_ends: whether records must have their properties whole, which no checksum covers.
            Only for logs whose records never end in a zero.
        unsynced_after_ms: store time; of records after it a loss of power may have taken sectors.
            None: of none.
        size_at: what the queues say, for a record whose head is lost.
    """
    last_record = -1
    timestamp = not_before_ms
    count = 0
    damages: list[Damage] = []
    segments = [s for s in queue.segments if s.end_offset > start_offset]
    if check_ends:
        unsynced_after_ms = -1
    number = 0
    position = start_offset - segments[0].start_offset if segments else 0
    while number < len(segments):
        segment = segments[number]
        walked = _walk(segment, position, check_crc, check_ends, unsynced_after_ms)
        if walked.records:
            count += walked.records
            last_record = segment.start_offset + walked.last_position
            timestamp = walked.last_store_timestamp
        bad = segment.start_offset + walked.end_position
        if walked.reason is None:
            # A blank: the log goes on in the next segment, or ends before the blank.
            if number + 1 == len(segments):
                return LogEnd(bad, last_record, timestamp, count, tuple(damages), 0)
            number += 1
            position = 0
            continue
        following = _find_following(
            segments, number, walked.end_position, check_crc, timestamp, size_at
        )
        if following is None:
            stale_end = _last_data(segment, walked.end_position)
            return LogEnd(bad, last_record, timestamp, count, tuple(damages), stale_end)
        number, position = following
        resumed = segments[number].start_offset + position
        if resumed > bad:
            damages.append(Damage(bad, resumed, walked.reason))
    return LogEnd(start_offset, last_record, timestamp, count, tuple(damages), 0)  # no segment


class _Walk(NamedTuple):
    end_position: int
    last_position: int
    last_store_timestamp: int
    records: int
    reason: str | None  # None: ended by a blank


def _walk(
    segment: MappedFile,
    position: int,
    check_crc: bool,
    check_ends: bool,
    unsynced_after_ms: int | None,
) -> _Walk:
    columns = Columns(
        _ROWS, ("store_timestamp", "record_size", "commit_log_offset", "properties_size")
    )
    topics = TopicTable()
    crc = CrcMode.STOP if check_crc else CrcMode.NONE
    last = before = -1
    timestamp = before_timestamp = 0
    records = 0
    while True:
        columns.clear()
        start, end = position, min(max(segment.data_end(position), position), segment.file_size)
        result = scan(
            segment.buffer[:end], columns, topics, base=segment.start_offset, start=start, crc=crc
        )
        if not result.added and end < segment.file_size:
            # What is cut off by a hole, or lies in one.
            base = segment.start_offset + position
            head = segment.read(position, BLANK_SIZE_MIN)
            result = scan(head, columns, topics, base=base, crc=crc)
            size = stated_size(head)
            if result.end is ScanEnd.TRUNCATED and size <= segment.file_size - position:
                copy = segment.read(position, size)
                result = scan(copy, columns, topics, base=base, crc=crc)
            result = result._replace(position=position + result.position)
            if result.added:
                result = result._replace(end=ScanEnd.FULL)  # the next round goes on after it
        elif result.added and end < segment.file_size and result.end is not ScanEnd.BLANK:
            result = result._replace(end=ScanEnd.FULL)
        position = result.position
        whole = columns.count
        if unsynced_after_ms is not None:
            whole = _whole_rows(segment, columns, unsynced_after_ms)
        if whole < columns.count:
            position = columns.commit_log_offset[whole] - segment.start_offset
        if whole:
            records += whole
            row = whole - 1
            # Of the last record, not the highest so far: no checksum covers store times, and one
            # flipped bit must not make everything after it look stale.
            start = position - columns.record_size[row]
            before, before_timestamp = last, timestamp
            if row:
                before = start - columns.record_size[row - 1]
                before_timestamp = columns.store_timestamp[row - 1]
            last, timestamp = start, columns.store_timestamp[row]
        if whole < columns.count:
            return _Walk(position, last, timestamp, records, NOT_WHOLE)
        if result.end is ScanEnd.BLANK:
            return _Walk(position, last, timestamp, records, None)
        if result.end is not ScanEnd.FULL:
            # Of the record before bytes that are none, the end may be lost as well.
            if check_ends and last >= 0 and decode_record(segment.buffer, last).ends_in_zeros:
                return _Walk(last, before, before_timestamp, records - 1, NOT_WHOLE)
            return _Walk(position, last, timestamp, records, result.end.name.lower())


def _whole_rows(segment: MappedFile, columns: Columns, unsynced_after_ms: int) -> int:
    """How many of the first rows have every sector of their properties, or were synced."""
    for row, size in enumerate(columns.properties_size[: columns.count]):
        if size >= SECTOR_SIZE and columns.store_timestamp[row] > unsynced_after_ms:
            start = columns.commit_log_offset[row] - segment.start_offset
            end = start + columns.record_size[row]
            if lacks_a_sector(segment.buffer, start, end, size):
                return row
    return columns.count


def _find_following(
    segments: list[MappedFile],
    number: int,
    position: int,
    check_crc: bool,
    not_before_ms: int,
    size_at: SizeAt | None,
) -> tuple[int, int] | None:
    for at in range(number, len(segments)):
        found = find_behind(
            segments[at],
            position if at == number else -1,
            check_crc=check_crc,
            not_before_ms=not_before_ms,
            size_at=size_at,
        )
        if found is not None:
            return at, found
    return None


def find_behind(
    segment: MappedFile,
    bad: int,
    *,
    check_crc: bool,
    not_before_ms: int = 0,
    limit: int | None = None,
    size_at: SizeAt | None = None,
) -> int | None:
    """The first valid record after a place where one has to begin and none is whole.

    What a torn record's head claims is its body, see `step_over`.

    Args:
        segment: where.
        bad: the place; -1: the one before this segment.
        check_crc: whether bodies must pass their checksums.
        not_before_ms: store time of the last record before the place.
        limit: position that it has to begin before; None for the segment's end.
        size_at: what the queues say.
    """

    def is_record(position: int) -> bool:
        if segment.read(position + MAGIC_POSITION, len(_MAGIC_START)) != _MAGIC_START:
            return False
        request = read_request(segment, position, check_crc=check_crc)
        return isinstance(request, DispatchRequest) and request.store_timestamp >= not_before_ms

    size = segment.file_size
    if bad < 0 and is_record(0):
        return 0
    stop = size if limit is None else limit
    start, found = step_over(
        segment.read, is_record, max(bad, 0), stop, size, segment.start_offset, size_at
    )
    if found:
        return start
    if start >= stop:
        return None
    following = find_record(
        segment, max(start, bad + 1), check_crc=check_crc, not_before_ms=not_before_ms
    )
    return following if following is None or following < stop else None


def _last_data(segment: MappedFile, position: int) -> int:
    """Up to where bytes behind a position are not zero, as a stream offset; 0 if all are."""
    last = 0
    at: int | None = position
    zeros = bytes(_CHUNK_SIZE)
    while at is not None and at < segment.file_size:
        at = segment.next_data(at)
        if at is None:
            break
        end = max(segment.data_end(at), at + 1)
        chunk = segment.buffer[at : min(at + _CHUNK_SIZE, end)]
        if chunk != zeros[: len(chunk)]:
            last = segment.start_offset + at + len(bytes(chunk).rstrip(b"\0"))
        at += len(chunk)
    return last
