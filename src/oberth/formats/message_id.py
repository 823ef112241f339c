"""The two kinds of message id, both upper-case hex.

offsetMsgId (the broker's, where a message lies), 16 or 28 bytes:

    offset  size  field              type   note
         0  4/16  address            bytes  of the broker
      4/16     4  port               int32
      8/20     8  commit_log_offset  int64

UNIQ_KEY (the client's), 16 or 28 bytes:

    offset  size  field       type   note
         0  4/16  address     bytes  of the client
      4/16     2  process_id  int16  low 16 bits
      6/18     4  class_hash  int32  any number that tells two programs apart
     10/22     4  month_ms    int32  ms since the month began, local time
     14/26     2  counter     int16  counts ids, wraps

RocketMQ: MessageDecoder.createMessageId, MessageClientIDSetter.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.errors import FormatError
from oberth.formats.message import decode_host

OFFSET_ID_LENGTHS: Final = (32, 56)

_OFFSET: Final = struct.Struct(">q")
_UNIQUE_TAIL: Final = struct.Struct(
    ">"
    "H"  # process_id
    "I"  # class_hash
    "I"  # month_ms
    "H"  # counter
)


class OffsetMessageId(NamedTuple):
    """Where a message lies: the broker's stored host (8 or 20 bytes) and the CommitLog offset."""

    store_host: bytes
    commit_log_offset: int

    @property
    def broker_address(self) -> str:
        """``address:port`` of the broker."""
        return decode_host(self.store_host)


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """The id of the message at an offset. RocketMQ: createMessageId."""
    return (store_host + _OFFSET.pack(commit_log_offset)).hex().upper()


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Takes an offsetMsgId apart.

    Raises:
        FormatError: not 32 or 56 hex digits.
    """
    if len(text) not in OFFSET_ID_LENGTHS:
        raise FormatError(
            f"message id {text[:80]!r}: {len(text)} characters, allowed are 32 and 56"
        )
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise FormatError(f"message id {text!r}: not a hexadecimal number") from None
    if len(raw) * 2 != len(text):
        raise FormatError(f"message id {text!r}: not a hexadecimal number")
    return OffsetMessageId(raw[:-8], _OFFSET.unpack_from(raw, len(raw) - 8)[0])


def unique_id_prefix(address: bytes, process_id: int, class_hash: int) -> str:
    """What is equal in all ids of one process: the packed address, process and class hash."""
    return (
        (address + struct.pack(">HI", process_id & 0xFFFF, class_hash & 0xFFFFFFFF)).hex().upper()
    )


def unique_id(prefix: str, month_ms: int, counter: int) -> str:
    """A UNIQ_KEY from its prefix, the ms since the month began and a counter."""
    return f"{prefix}{month_ms & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"
