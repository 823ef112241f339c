"""Where a record ends that is not whole: after a crash, beside a writer, after damage.

A body may hold anything, records that name their own place too: a producer can foresee where its
message will lie. The head is the broker's. So what lies between a head and the end that it claims
is that record's body, whatever it looks like, and no record begins there.

Only for places where a record has to begin, which is where the one before it ends, or a segment:
anywhere else a head may be a producer's as well, and hide what follows.

Damage takes more than bodies, so size, lengths and checksum bear witness for each other:

    what is right                                         the record ends
    magic, own offset; size and body's length agree       where its size says
    the same, and body, topic and properties are whole    where its lengths say
    magic, own offset; the lengths lead nowhere           where its size says
    magic or own offset; size and all lengths agree       where its size says
    size and magic, then zeros: the rest was not written  where its size says
    nothing, but a queue's unit names the place           where the unit says
    anything else                                         unknown
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BODY_CRC,
    BODY_LENGTH,
    BODY_LENGTH_BEFORE_BODY,
    COMMIT_LOG_OFFSET_POSITION,
    FIXED,
    FIXED_SIZE_V1,
    HOST_BITS,
    SYS_FLAG_POSITION,
    TOPIC_LENGTH_SIZE,
    TOPIC_LENGTH_V2_MAX,
    Buffer,
    body_crc,
    stated_size,
)
from oberth.formats.names import is_stored_topic
from oberth.formats.property_crc import record_crc_ok

Read = Callable[[int, int], Buffer]
"""Gives so many bytes from a position on, or fewer where they end."""
SizeAt = Callable[[int], int | None]
"""The size that a queue's unit names for the record at a CommitLog offset, or None."""
# Bytes of topic and properties at most, without their lengths.
_REST_MAX: Final = TOPIC_LENGTH_V2_MAX + 65_535
# So many zeros after the last byte of a head say that the rest of it was not written.
_ZEROS: Final = 64
_HEAD: Final = max(fields.size for fields in FIXED.values()) + _ZEROS
_SIZE_AND_MAGIC: Final = BLANK.size
SECTOR_SIZE: Final = 512
"""What a disk writes whole."""
LIKE_A_LOST_SECTOR: Final = bytes(SECTOR_SIZE)
"""A record whose properties hold so many zeros is written with its whole-record CRC."""


def lacks_a_sector(segment: Buffer, start: int, end: int, size: int, *, base: int = 0) -> bool:
    """Whether a sector of a record's properties never reached the disk.

    No checksum covers them but the whole-record CRC; where that is right the zeros were sent.

    Args:
        segment: the file's bytes, or some of them.
        start: where in them the record starts.
        end: where it ends, and its properties.
        size: how long these are.
        base: position in the file of the first of the bytes.
    """
    first = -(-(base + end - size) // SECTOR_SIZE) * SECTOR_SIZE - base
    sectors = range(first, end - SECTOR_SIZE + 1, SECTOR_SIZE)
    lacks = any(not any(segment[at : at + SECTOR_SIZE]) for at in sectors)
    return lacks and not record_crc_ok(segment[start:end])


def step_over(
    read: Read,
    is_record: Callable[[int], bool],
    position: int,
    limit: int,
    room: int,
    base: int,
    size_at: SizeAt | None = None,
) -> tuple[int, bool]:
    """Goes from torn record to torn record, as far as their heads tell where they end.

    Args:
        read: gives the segment's bytes.
        is_record: whether a record that counts starts at a position.
        position: where a record has to begin, and none is whole.
        limit: where the segment's bytes end.
        room: where the segment ends; more than the limit if its file is cut off.
        base: CommitLog offset of the segment.
        size_at: what the queues say.

    Returns:
        A position, and whether a record starts there. If not, it is the limit, or nobody knows what
        lies from there on.
    """
    while position < limit:
        ends = _claimed(read, position, base + position, room)
        for end in ends.possible if ends is not None else ():
            if end < limit and is_record(end):
                return end, True
        likely = ends.likely if ends is not None else None
        if likely is None and size_at is not None:
            size = size_at(base + position) or 0
            likely = position + size if FIXED_SIZE_V1 <= size <= room - position else None
        if likely is None:
            break
        position = min(likely, limit)
        if position < limit and is_record(position):
            return position, True
    return position, False


class _Ends(NamedTuple):
    """Where a record may end, the better first, and where it does if nothing tells."""

    possible: tuple[int, ...]
    likely: int | None


def _claimed(read: Read, position: int, at: int, room: int) -> _Ends | None:
    head = bytes(read(position, _HEAD))
    if len(head) < _SIZE_AND_MAGIC:
        return None
    size, magic = BLANK.unpack_from(head)
    if magic == BLANK_MAGIC and size == room - position:
        return _Ends((), room)
    own = head[COMMIT_LOG_OFFSET_POSITION:][:8] == at.to_bytes(8, "big")
    fits = FIXED_SIZE_V1 <= size <= room - position
    if magic not in TOPIC_LENGTH_SIZE or not own:
        written = len(head.rstrip(b"\0"))
        if magic in TOPIC_LENGTH_SIZE and fits and written < COMMIT_LOG_OFFSET_POSITION + 8:
            return _Ends((position + size,), position + size)
        if (magic in TOPIC_LENGTH_SIZE or own) and fits and _adds_up(read, position, head, size):
            return _Ends((position + size,), position + size)
        return None
    by_size = position + size if fits else None
    tail = _tail(read, position, head, TOPIC_LENGTH_SIZE[magic], room)
    if tail is None or tail.end == by_size:
        likely = by_size
    else:
        rest = size - (tail.end - position - tail.rest)
        likely = by_size if fits and not tail.crc_ok and 0 <= rest <= _REST_MAX else tail.end
    ends = (by_size, tail.end if tail is not None else None)
    return _Ends(tuple(end for end in dict.fromkeys(ends) if end is not None), likely)


class _Tail(NamedTuple):
    """What lies behind a body, as the body's length says: topic and properties that are whole."""

    end: int
    rest: int
    crc_ok: bool


def _tail(read: Read, position: int, head: bytes, width: int, room: int) -> _Tail | None:
    if len(head) < FIXED_SIZE_V1:
        return None
    fields = FIXED[head[SYS_FLAG_POSITION + 3] & HOST_BITS]
    if len(head) < fields.size:
        return None
    values = fields.unpack_from(head)
    stored_crc, body_size = values[BODY_CRC], values[BODY_LENGTH]
    body_at = position + fields.size
    topic_at = body_at + body_size
    if body_size < 0 or topic_at >= room:
        return None
    parts = _parts(read, topic_at, width)
    if parts is None:
        return None
    topic, properties, end = parts
    if end > room or b"\0" in properties or not is_stored_topic(str(topic, "latin-1")):
        return None
    crc_ok = not body_size or body_crc(read(body_at, body_size)) == stored_crc
    return _Tail(end, end - topic_at, crc_ok)


def _parts(read: Read, topic_at: int, width: int) -> tuple[bytes, bytes, int] | None:
    """Topic, properties and the end of a record whose topic's length stands at a position."""
    raw = bytes(read(topic_at, width))
    length_at = topic_at + width + int.from_bytes(raw, "big")
    length = bytes(read(length_at, 2))
    if len(raw) < width or len(length) < 2:
        return None
    properties = bytes(read(length_at + 2, int.from_bytes(length, "big")))
    if len(properties) < int.from_bytes(length, "big"):
        return None
    topic = bytes(read(topic_at + width, length_at - topic_at - width))
    return topic, properties, length_at + 2 + len(properties)


def _adds_up(read: Read, position: int, head: bytes, size: int) -> bool:
    """Whether all lengths agree with the size, whatever magic and hosts the record really has."""
    return any(
        end == position + size
        for fixed in {fields.size for fields in FIXED.values()}
        for end in _ends_by_lengths(read, position, head, fixed, size)
    )


def _ends_by_lengths(
    read: Read, position: int, head: bytes, fixed: int, size: int
) -> Iterator[int]:
    if len(head) < fixed:
        return
    body_size = stated_size(head, fixed - BODY_LENGTH_BEFORE_BODY)
    if 0 <= body_size <= size - fixed:
        for width in TOPIC_LENGTH_SIZE.values():
            parts = _parts(read, position + fixed + body_size, width)
            if parts is not None and is_stored_topic(str(parts[0], "latin-1")):
                yield parts[2]
