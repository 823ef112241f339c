"""Timer wheel slots: one second each, of two turns of seven days, in the file ``timerwheel``.

    offset  size  field      type   note
         0     8  time       int64  what the slot stands for, in units of the precision
         8     8  first_pos  int64  timer log position of the slot's first unit, -1 none
        16     8  last_pos   int64  timer log position of its newest unit, -1 none
        24     4  num        int32  messages; a delete unit subtracts, a delivery does not
        28     4  magic      int32  0

Big-endian. The slot of a time t in ms is number (t / precision) mod SLOTS. A slot whose time is
not t / precision belongs to another turn and counts as empty. The file is read whole at load and
written back at flush; without it the slots are rebuilt from the timer log, except num and magic.

RocketMQ: TimerWheel, Slot.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.errors import FormatError

SLOT_SIZE: Final = 32
SLOTS_A_TURN: Final = 7 * 24 * 3600
SLOTS: Final = SLOTS_A_TURN * 2
FILE_SIZE: Final = SLOTS * SLOT_SIZE
PRECISION_MS: Final = 1000

SLOT: Final = struct.Struct(
    ">"
    "q"  # time
    "q"  # first_pos
    "q"  # last_pos
    "i"  # num
    "i"  # magic
)
assert SLOT.size == SLOT_SIZE
assert FILE_SIZE == 38_707_200


class TimerSlot(NamedTuple):
    """One slot, see the module's table."""

    time: int
    first_pos: int
    last_pos: int
    num: int
    magic: int


EMPTY_SLOT: Final = TimerSlot(-1, -1, -1, 0, 0)


def slot_index(time_ms: int, precision_ms: int = PRECISION_MS) -> int:
    """The number of the slot for a time."""
    return time_ms // precision_ms % SLOTS


def slot_position(time_ms: int, precision_ms: int = PRECISION_MS) -> int:
    """The byte in the file where the slot for a time begins."""
    return slot_index(time_ms, precision_ms) * SLOT_SIZE


def decode_slot(data: bytes | memoryview, position: int = 0) -> TimerSlot:
    """The slot at a byte of the file, of whatever turn.

    Raises:
        FormatError: fewer than 32 bytes are left.
    """
    if len(data) - position < SLOT_SIZE:
        raise FormatError(
            f"timer slot at {position}: {len(data) - position} bytes left, {SLOT_SIZE} needed"
        )
    return TimerSlot(*SLOT.unpack_from(data, position))


def encode_slot(slot: TimerSlot) -> bytes:
    """The slot's 32 bytes.

    Raises:
        FormatError: a field does not fit its type.
    """
    try:
        return SLOT.pack(*slot)
    except struct.error as error:
        raise FormatError(f"{slot}: {error}") from None
