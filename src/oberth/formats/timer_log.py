"""Timer log units: which timed message belongs to which slot, chained backwards.

Unit:

    offset  size  field              type   note
         0     4  unit_size          int32  52
         4     8  previous           int64  position of the slot's unit before this one, -1 none
        12     4  magic              int32  bits: 1 default, 2 roll, 4 delete
        16     8  enqueue_time       int64  ms, write time of the wheel
        24     4  delay_ms           int32  slot's time less enqueue_time
        28     8  commit_log_offset  int64  of the timer message
        36     4  record_size        int32  of the timer message
        40     4  topic_hash         int32  Java hash of the real topic, 0 if none
        44     8  reserved           int64  0

Blank, at the end of a segment that has no room for a unit and a blank:

    offset  size  field      type   note
         0     4  remaining  int32  bytes to the segment's end
         4     8  reserved   int64  0
        12     4  magic      int32  0xCBD43194

Big-endian. A blank's ``remaining`` can be 52 like a unit's size, so the magic is looked at first.
Zeros (magic 0, size 0) end the log. RocketMQ: TimerLog.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.errors import FormatError

UNIT_SIZE: Final = 52
BLANK_SIZE: Final = 16
BLANK_MAGIC: Final = -875286124
NO_PREVIOUS: Final = -1

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
MAGIC_MASK: Final = 0xF

UNIT: Final = struct.Struct(
    ">"
    "i"  # unit_size
    "q"  # previous
    "i"  # magic
    "q"  # enqueue_time
    "i"  # delay_ms
    "q"  # commit_log_offset
    "i"  # record_size
    "i"  # topic_hash
    "q"  # reserved
)
assert UNIT.size == UNIT_SIZE

BLANK: Final = struct.Struct(
    ">"
    "i"  # remaining
    "q"  # reserved
    "i"  # magic
)
assert BLANK.size == BLANK_SIZE


class TimerLogUnit(NamedTuple):
    """One unit without its size field, see the module's table."""

    previous: int
    magic: int
    enqueue_time: int
    delay_ms: int
    commit_log_offset: int
    record_size: int
    topic_hash: int
    reserved: int = 0

    @property
    def slot_time(self) -> int:
        """The time in ms whose slot the unit belongs to."""
        return self.enqueue_time + self.delay_ms

    @property
    def is_roll(self) -> bool:
        """Whether the message goes back into the timer topic when its slot is due."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def is_delete(self) -> bool:
        """Whether the message takes another one out of the slot."""
        return bool(self.magic & MAGIC_DELETE)


class TimerLogBlank(NamedTuple):
    """The end of a segment."""

    remaining: int


def encode_timer_unit(unit: TimerLogUnit) -> bytes:
    """The unit's 52 bytes.

    Raises:
        FormatError: a field does not fit its type.
    """
    try:
        return UNIT.pack(UNIT_SIZE, *unit)
    except struct.error as error:
        raise FormatError(f"{unit}: {error}") from None


def encode_timer_blank(remaining: int) -> bytes:
    """The 16 bytes that end a segment with so many bytes left."""
    return BLANK.pack(remaining, 0, BLANK_MAGIC)


def decode_timer_unit(
    data: bytes | memoryview, position: int = 0
) -> TimerLogUnit | TimerLogBlank | None:
    """The unit or blank at a position; None where the log ends.

    The log ends where RocketMQ's recovery stops: at a size other than 52, or a magic with bits
    above the lowest four, unless it is the blank's; also where no whole unit is left.
    """
    room = len(data) - position
    if room < BLANK_SIZE:
        return None
    remaining, _, magic = BLANK.unpack_from(data, position)
    if magic == BLANK_MAGIC:
        return TimerLogBlank(remaining)
    if remaining != UNIT_SIZE or magic & ~MAGIC_MASK or room < UNIT_SIZE:
        return None
    return TimerLogUnit(*UNIT.unpack_from(data, position)[1:])


def fits(file_size: int, position: int) -> bool:
    """Whether a unit goes into the segment at this position and leaves room for the blank."""
    return file_size - position >= UNIT_SIZE + BLANK_SIZE
