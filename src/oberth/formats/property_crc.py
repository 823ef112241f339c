r"""The whole-record CRC: the last 20 bytes of a record, as one more property.

    offset  size  field      type   note
         0     8  name       bytes  "__CRC32#"
         8     1  separator  bytes  0x01
         9    10  digits     bytes  decimal, least significant digit first, padded with "0"
        19     1  end        bytes  0x02

The number is the CRC-32 of the record without these 20 bytes, masked with 2^31-1, taken when queue
offset, CommitLog offset and store time have their final values. The 20 bytes count in
properties_length. A single message's properties get an 0x02 before them where it is missing; those
of a batch item do not, so there the name can be glued to the last value. A reader that does not
know the CRC sees one more property.

RocketMQ: MessageExtEncoder, MessageDecoder.createCrc32 (enabledAppendPropCRC, since 5.2.0).
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from oberth.formats.message import CRC_MASK

CRC_PROPERTY: Final = "__CRC32#"
TAIL_SIZE: Final = 20
_DIGITS: Final = 10
_HEAD: Final = CRC_PROPERTY.encode() + b"\x01"
_END: Final = b"\x02"
assert len(_HEAD) + _DIGITS + len(_END) == TAIL_SIZE


def encode_crc_tail(record_without_tail: bytes | bytearray | memoryview) -> bytes:
    """The 20 bytes that follow a record's other bytes."""
    crc = crc32(record_without_tail) & CRC_MASK
    return _HEAD + f"{crc:0{_DIGITS}d}"[::-1].encode() + _END


def decode_crc_tail(record: bytes | bytearray | memoryview) -> int | None:
    """The CRC that a record ends in, or None if it does not end in one."""
    tail = bytes(record[-TAIL_SIZE:])
    digits = tail[len(_HEAD) : -1]
    if (
        len(tail) != TAIL_SIZE
        or not tail.startswith(_HEAD)
        or not tail.endswith(_END)
        or not digits.isdigit()
    ):
        return None
    return int(digits[::-1])


def record_crc_ok(record: bytes | bytearray | memoryview) -> bool | None:
    """Whether a record passes its whole-record CRC; None if it has none."""
    stored = decode_crc_tail(record)
    if stored is None:
        return None
    return crc32(memoryview(record)[:-TAIL_SIZE]) & CRC_MASK == stored
