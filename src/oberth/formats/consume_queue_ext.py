"""ConsumeQueueExt units: what does not fit into a queue's 20 bytes, one unit per message.

    offset  size  field            type   note
         0     2  unit_size        int16  20 + bit_map_size; below 1: no unit, or the file's end
         2     8  tags_code        int64  Java hash of the tags; the queue's unit holds the address
        10     8  store_timestamp  int64  ms
        18     2  bit_map_size     int16  bytes, 0 is allowed
        20     n  bit_map          bytes  which consumers' expressions match, see bloom.py

Big-endian. A file ends in -1 as int16 where the next unit and its own 4 bytes of end no longer fit.
The *address* that a ConsumeQueue unit holds in place of its tags code is the unit's byte offset in
the ext files plus -2^63; no hash code is as low.

Derived data: written together with the queue's unit and rebuilt with it, so no checksum.
RocketMQ: ConsumeQueueExt.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.errors import FormatError
from oberth.formats.consume_queue import EXT_ADDRESS_MAX

UNIT_SIZE_MIN: Final = 20
UNIT_SIZE_MAX: Final = 32_767
BIT_MAP_SIZE_MAX: Final = UNIT_SIZE_MAX - UNIT_SIZE_MIN
END_BLANK_SIZE: Final = 4
"""Bytes that an append leaves free for the end, of which two are written."""

_UNIT: Final = struct.Struct(
    ">"
    "h"  # unit_size
    "q"  # tags_code
    "q"  # store_timestamp
    "h"  # bit_map_size
)
assert _UNIT.size == UNIT_SIZE_MIN

END_BLANK: Final = struct.pack(">h", -1)

_ADDRESS_BASE: Final = -(1 << 63)
EXT_OFFSET_MAX: Final = EXT_ADDRESS_MAX - _ADDRESS_BASE
"""The largest byte offset that has an address, 9223372034707292159."""


class ConsumeQueueExtUnit(NamedTuple):
    """One unit, see the module's table."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes

    @property
    def size(self) -> int:
        """Bytes of the unit."""
        return UNIT_SIZE_MIN + len(self.bit_map)


def encode_ext_unit(unit: ConsumeQueueExtUnit) -> bytes:
    """The unit's bytes.

    Raises:
        FormatError: its bitmap is longer than BIT_MAP_SIZE_MAX.
    """
    length = len(unit.bit_map)
    if length > BIT_MAP_SIZE_MAX:
        raise FormatError(f"ext unit: a bitmap of {length} bytes, at most {BIT_MAP_SIZE_MAX}")
    fixed = _UNIT.pack(UNIT_SIZE_MIN + length, unit.tags_code, unit.store_timestamp, length)
    return fixed + unit.bit_map


def decode_ext_unit(data: bytes | memoryview, position: int = 0) -> ConsumeQueueExtUnit | None:
    """The unit at a position; None at the end of a file and where nothing was written.

    Raises:
        FormatError: a unit begins here, but its lengths contradict each other or the data's.
    """
    room = len(data) - position
    if room < 2 or int.from_bytes(data[position : position + 2], "big", signed=True) < 1:
        return None
    if room < UNIT_SIZE_MIN:
        raise FormatError(f"ext unit at {position}: {room} bytes left, {UNIT_SIZE_MIN} needed")
    size, tags_code, store_timestamp, length = _UNIT.unpack_from(data, position)
    if length < 0 or size != UNIT_SIZE_MIN + length or size > room:
        raise FormatError(
            f"ext unit at {position}: size {size} with a bitmap of {length}, {room} bytes left"
        )
    start = position + UNIT_SIZE_MIN
    return ConsumeQueueExtUnit(tags_code, store_timestamp, bytes(data[start : start + length]))


def ext_address(ext_offset: int) -> int:
    """What a ConsumeQueue unit's tags_code holds for the ext unit at this byte offset.

    Raises:
        FormatError: the offset is outside 0…EXT_OFFSET_MAX.
    """
    if not 0 <= ext_offset <= EXT_OFFSET_MAX:
        raise FormatError(f"ext offset {ext_offset} is outside 0…{EXT_OFFSET_MAX}")
    return ext_offset + _ADDRESS_BASE


def ext_offset(address: int) -> int:
    """The byte offset of the ext unit that an address stands for.

    Raises:
        FormatError: the number is a tags code, not an address.
    """
    if address > EXT_ADDRESS_MAX:
        raise FormatError(f"{address} is no ext address, those are at most {EXT_ADDRESS_MAX}")
    return address - _ADDRESS_BASE


def fits(file_size: int, position: int, unit_size: int) -> bool:
    """Whether a unit of this size goes into the file at this position, before its end."""
    return unit_size <= file_size - position - END_BLANK_SIZE
