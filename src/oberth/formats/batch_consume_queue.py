"""BatchConsumeQueue units: the queue of a topic whose records hold several messages each.

    offset  size  field                type   note
         0     8  commit_log_offset    int64  where the record starts
         8     4  record_size          int32  whole record
        12     8  tags_code            int64  Java hash of the tags
        20     8  store_timestamp      int64  ms
        28     8  message_base_offset  int64  queue offset of the first message inside
        36     2  batch_size           int16  messages inside
        38     4  compacted_offset     int32  -1 outside of compaction
        42     4  reserved             int32  0

Big-endian. Units are of fixed size but queue offsets advance by batch_size, so the unit of a queue
offset is searched: the one with the greatest message_base_offset that is not above it. A unit is
valid when commit_log_offset >= 0, record_size > 0, message_base_offset >= 0 and batch_size > 0;
the rest of a file is zero, hence not valid. Derived data, without a checksum.

RocketMQ: BatchConsumeQueue (topic attribute queue.type=BatchCQ), since 5.0.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.errors import FormatError

UNIT_SIZE: Final = 46
NOT_COMPACTED: Final = -1

UNIT: Final = struct.Struct(
    ">"
    "q"  # commit_log_offset
    "i"  # record_size
    "q"  # tags_code
    "q"  # store_timestamp
    "q"  # message_base_offset
    "h"  # batch_size
    "i"  # compacted_offset
    "i"  # reserved
)
assert UNIT.size == UNIT_SIZE


class BatchConsumeQueueUnit(NamedTuple):
    """One unit, see the module's table."""

    commit_log_offset: int
    record_size: int
    tags_code: int
    store_timestamp: int
    message_base_offset: int
    batch_size: int
    compacted_offset: int = NOT_COMPACTED
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        """Whether the unit names a record."""
        return (
            self.commit_log_offset >= 0
            and self.record_size > 0
            and self.message_base_offset >= 0
            and self.batch_size > 0
        )

    @property
    def next_offset(self) -> int:
        """The queue offset after the last message inside."""
        return self.message_base_offset + self.batch_size


def encode_batch_unit(unit: BatchConsumeQueueUnit) -> bytes:
    """The unit's 46 bytes.

    Raises:
        FormatError: a field does not fit its type.
    """
    try:
        return UNIT.pack(*unit)
    except struct.error as error:
        raise FormatError(f"{unit}: {error}") from None


def decode_batch_unit(data: bytes | memoryview, position: int = 0) -> BatchConsumeQueueUnit:
    """The unit at a position, valid or not.

    Raises:
        FormatError: fewer than 46 bytes are left.
    """
    if len(data) - position < UNIT_SIZE:
        raise FormatError(
            f"batch unit at {position}: {len(data) - position} bytes left, {UNIT_SIZE} needed"
        )
    return BatchConsumeQueueUnit(*UNIT.unpack_from(data, position))


def round_file_size(file_size: int) -> int:
    """A configured file size rounded up to whole units."""
    return -(-file_size // UNIT_SIZE) * UNIT_SIZE
