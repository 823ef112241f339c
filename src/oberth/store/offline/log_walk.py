"""Walking the CommitLog record by record, across damage and up to its end.

What ends the log: bytes that are no valid record naming its own position end it only if no such
record follows in what can follow. If one does, the bytes between are damage in the middle; they are
passed over and reported. RocketMQ stops at the first such byte and loses what follows.

What can follow: a record that was stored no earlier than the newest two before the damage. RocketMQ
cuts a log off without erasing, so past its end whole records of a former life may remain that
name their own positions. They are older than what was written since.

A record with a wrong checksum, but right lengths and position, is handed out as a
`DamagedRecord`: its neighbours are where its size says. So is one whose properties lack a sector,
which no checksum tells, in a log that nobody has recovered since its writer died.

The writer of the log copies a record from its front to its end, and no checksum covers the end. In
a log that is being written, the newest record counts only when its last byte is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oberth.errors import RecordError
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    MessageExt,
    decode_record,
    store_timestamp_at,
)
from oberth.formats.torn_record import SECTOR_SIZE, lacks_a_sector, step_over
from oberth.kernels.scan import find_record
from oberth.store.offline.segments import SegmentMap, SegmentStream

BODY_FAILS: Final = "its body fails the checksum"
NOT_IN_A_FILE: Final = "no file has these bytes"
NOT_WHOLE: Final = "a record that ends in zeros, in a log that is being written"


LACKS_A_SECTOR: Final = "a sector of its properties is zeros"


class DamagedRecord(NamedTuple):
    """A record whose body fails its checksum, or whose properties are not whole."""

    message: MessageExt
    reason: str = BODY_FAILS


class Damage(NamedTuple):
    """CommitLog bytes [start, end) that hold no valid record although some follow."""

    start: int
    end: int
    reason: str

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.end - self.start


class LogEnd(NamedTuple):
    """Where the log ends, and what lies there: why it is no record, and the last bytes' position.

    ``garbage_end`` is the offset after the last byte past the end that is not zero, None if all
    are zero.
    """

    offset: int
    reason: str
    garbage_end: int | None


LogItem = MessageExt | DamagedRecord | Damage


def body_ok(message: MessageExt) -> bool:
    """Whether a record's body passes its checksum; one without a body has none."""
    return not message.body or message.crc_ok


def walk(log: SegmentStream, start: int | None = None) -> Iterator[LogItem]:
    """Records and damage from an offset on (None: from the log's beginning), up to its end.

    An offset that is no record's start leads to the first record after it.
    """
    if not log.segments:
        return
    offset = log.start if start is None else max(start, log.start)
    index = log.index_of(offset)
    if index is None:
        return
    position = offset - log.segments[index].start
    if start is not None and position:
        opened = log.map(index)
        found = find_valid(opened, position)
        if found is None:
            index, position = index + 1, 0
        else:
            position = found
    newest = before = 0
    pending: DamagedRecord | None = None
    while index < len(log.segments):
        opened = log.map(index)
        item, position_after = _item_of(log, opened, position)
        if log.in_use and isinstance(item, MessageExt) and item.ends_in_zeros:
            if _is_newest(log, index, position_after, newest):
                return
            # Something follows, so by now it is whole.
            item, position_after = _item_of(log, opened, position)
        if isinstance(item, MessageExt):
            if pending is not None:
                yield _looked_at_again(log, pending)
                pending = None
            # One damaged store time must not make all that follows look old: two must agree.
            newest = max(newest, min(before or item.store_timestamp, item.store_timestamp))
            before = item.store_timestamp
            yield item
            position = position_after
        elif isinstance(item, DamagedRecord):
            if pending is not None:
                if next_valid(log, index, position, newest) is None:
                    return
                yield _looked_at_again(log, pending)
            pending = item
            position = position_after
        elif item is None:
            index, position = index + 1, 0
            missing = missing_between(log, index)
            if missing is not None and next_valid(log, index, 0, newest) is not None:
                if pending is not None:
                    yield _looked_at_again(log, pending)
                    pending = None
                yield missing
        else:
            after = next_valid(log, index, position, newest, is_bad=True)
            # A writer may have finished this record since it was looked at.
            if not isinstance(item_at(opened, position)[0], str):
                continue
            if after is None:
                return
            if pending is not None:
                yield _looked_at_again(log, pending)
                pending = None
            yield from damage_between(log, index, position, after, item)
            index, position = after


def _looked_at_again(log: SegmentStream, damaged: DamagedRecord) -> MessageExt | DamagedRecord:
    """The record, should a writer have finished it since it was looked at."""
    offset = damaged.message.commit_log_offset
    index = log.index_of(offset) if log.in_use else None
    if index is None:
        return damaged
    item, _ = _item_of(log, log.map(index), offset - log.segments[index].start)
    return item if isinstance(item, MessageExt) else damaged


def _item_of(
    log: SegmentStream, opened: SegmentMap, position: int
) -> tuple[MessageExt | DamagedRecord | str | None, int]:
    """The same as `item_at`, with a look at what a writer that died may have left undone."""
    item, behind = item_at(opened, position)
    if log.in_use and isinstance(item, MessageExt) and lacks_properties(opened, item):
        return DamagedRecord(item, LACKS_A_SECTOR), behind
    return item, behind


def lacks_properties(opened: SegmentMap, message: MessageExt) -> bool:
    """Whether a record of a segment lacks a sector of its properties."""
    size = len(message.properties_raw)
    start = message.commit_log_offset - opened.segment.start
    end = start + message.record_size
    return size >= SECTOR_SIZE and lacks_a_sector(opened.view, start, end, size)


def _is_newest(log: SegmentStream, index: int, position: int, newest_ms: int) -> bool:
    """Whether neither a record nor a blank follows behind (segment, position)."""
    following, _ = item_at(log.map(index), position)
    return isinstance(following, str) and next_valid(log, index, position, newest_ms) is None


def damage_between(
    log: SegmentStream, index: int, position: int, after: tuple[int, int], reason: str
) -> Iterator[Damage]:
    """The damage from a place up to the next record, cut at the segments' borders."""
    opened = log.map(index)
    base = opened.segment.start
    next_index, next_position = after
    if next_index == index:
        yield Damage(base + position, base + next_position, reason)
        return
    if position < len(opened):
        yield Damage(base + position, base + len(opened), reason)
    for number in range(index + 1, next_index + 1):
        missing = missing_between(log, number)
        if missing is not None:
            yield missing
        segment = log.segments[number]
        if number < next_index:
            yield Damage(segment.start, segment.end, "no record in this segment")
        elif next_position:
            yield Damage(
                segment.start, segment.start + next_position, "no record at the segment's start"
            )


def missing_between(log: SegmentStream, index: int) -> Damage | None:
    """What no file holds between the segment before ``index`` and that segment."""
    if not 0 < index < len(log.segments):
        return None
    end, start = log.segments[index - 1].end, log.segments[index].start
    return Damage(end, start, NOT_IN_A_FILE) if start > end else None


def missing_at_end(log: SegmentStream, end: LogEnd) -> Damage | None:
    """Segments that are missing before empty ones: whatever was in them is gone.

    A reader that finds no record behind a gap says nothing of it, and the log's end is behind.
    """
    index = log.index_of(end.offset)
    missing = None if index is None else missing_between(log, index)
    return missing if missing is not None and missing.end == end.offset else None


def find_end(log: SegmentStream) -> LogEnd:
    """Where the log ends. Reads the last segment that has records, and what lies after it."""
    for index in range(len(log.segments) - 1, -1, -1):
        opened = log.map(index)
        if find_valid(opened, 0) is None:
            continue
        end = log.segments[index].start
        for item in walk(log, log.segments[index].start):
            end = _end_of(item)
        return _describe_end(log, end)
    return _describe_end(log, log.start)


def _end_of(item: LogItem) -> int:
    if isinstance(item, Damage):
        return item.end
    message = item.message if isinstance(item, DamagedRecord) else item
    return message.commit_log_offset + message.record_size


def _describe_end(log: SegmentStream, end: int) -> LogEnd:
    index = log.index_of(end)
    if index is None:
        return LogEnd(end, "the last segment is full", None)
    opened = log.map(index)
    position = end - opened.segment.start
    item, _ = item_at(opened, position)
    if item is None:
        # A blank: the log goes on at the next segment's start, if that exists already.
        if index + 1 < len(log.segments):
            return _describe_end(log, log.segments[index + 1].start)
        return LogEnd(end, "a blank, and no segment behind it", None)
    garbage = None
    for behind in range(index, len(log.segments)):
        opened = log.map(behind)
        last = opened.last_nonzero(position if behind == index else 0, len(opened))
        if last is not None:
            garbage = opened.segment.start + last + 1
    reason = item if isinstance(item, str) else BODY_FAILS
    if isinstance(item, MessageExt):
        reason = NOT_WHOLE
    return LogEnd(end, reason if garbage is not None else "zeros", garbage)


def find_valid(opened: SegmentMap, position: int, not_before_ms: int = 0) -> int | None:
    """The first valid record of a segment at or after a position, naming its own offset."""
    base = opened.segment.start
    for start, stop in opened.data_extents(position, len(opened)):
        at: int | None = start
        while at is not None and at < stop:
            at = find_record(opened.view, base=base, start=at, stop=stop)
            if at is None:
                break
            if store_timestamp_at(opened.view, at) >= not_before_ms:
                return at
            at += 1
    return None


def next_valid(
    log: SegmentStream, index: int, position: int, newest_ms: int, *, is_bad: bool = False
) -> tuple[int, int] | None:
    """The first record that can follow at or after (segment, position), where one has to begin.

    What a torn record's head claims is its body, see `step_over`.

    Args:
        log: the CommitLog.
        index: the segment.
        position: behind a record, or a segment's start.
        newest_ms: what can follow was stored no earlier.
        is_bad: there is none at the position itself.
    """
    for behind in range(index, len(log.segments)):
        opened = log.map(behind)
        start = min(position, len(opened)) if behind == index else 0
        found = _next_in(log, opened, start, newest_ms, is_bad and behind == index)
        if found is not None:
            return behind, found
    return None


def _next_in(
    log: SegmentStream, opened: SegmentMap, position: int, newest_ms: int, is_bad: bool
) -> int | None:
    base = opened.segment.start

    def read(start: int, size: int) -> memoryview:
        return opened.view[start : start + size]

    def is_record(start: int) -> bool:
        found = find_record(opened.view, base=base, start=start, stop=start + 1)
        return found == start and store_timestamp_at(opened.view, start) >= newest_ms

    limit = len(opened)
    if not is_bad and position < limit and is_record(position):
        return position
    room = max(log.file_size, limit)
    start, found = step_over(read, is_record, position, limit, room, base, log.size_at)
    if found:
        return start
    return find_valid(opened, min(max(start, position + 1), limit), newest_ms)


def item_at(
    opened: SegmentMap, position: int
) -> tuple[MessageExt | DamagedRecord | str | None, int]:
    """What is at a position: a record and the position after it, None for a blank, or why not."""
    limit = len(opened)
    if limit - position < BLANK_SIZE_MIN:
        return f"{limit - position} bytes left in the segment", position
    size, magic = BLANK.unpack_from(opened.view, position)
    if magic == BLANK_MAGIC:
        return None, limit
    if magic == 0 and size == 0:
        return "zeros", position
    try:
        message = decode_record(opened.view, position, at=opened.segment.start + position)
    except RecordError as error:
        # The position that it names is the segment's, and the report names it anyway.
        return str(error).partition(": ")[2], position
    # The size may have been written since it was looked at: only the record's own counts.
    behind = position + message.record_size
    if not body_ok(message):
        return DamagedRecord(message), behind
    return message, behind
