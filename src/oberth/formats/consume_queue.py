"""ConsumeQueue units: one queue's index into the CommitLog.

A queue is an array of fixed-size units, so the unit of queue offset N starts at byte N * UNIT_SIZE
of the queue's byte stream; a file is named by the byte offset it starts at. Big-endian:

    offset  size  field              type   note
         0     8  commit_log_offset  int64  where the record starts
         8     4  record_size        int32  whole record (RocketMQ's drawing says "Body Size")
        12     8  tags_code          int64  Java hash of the tags, 0 for none; a due time; or an ext address

Valid is a unit with commit_log_offset >= 0 and record_size > 0. Where a queue's first file does
not begin at its first message the front is filled with pre-blank units (0, 2**31-1, 0), which are
no messages. A tags_code below -2**31 is the address of a ConsumeQueueExt unit.

Derived data: lost or torn units are rebuilt from the CommitLog, so there is no checksum.
RocketMQ: ConsumeQueue.
"""  # noqa: E501 - the table's notes

from __future__ import annotations

import struct
from typing import Final, NamedTuple

UNIT_SIZE: Final = 20
UNITS_PER_FILE: Final = 300_000
PRE_BLANK_SIZE: Final = 0x7FFFFFFF

UNIT: Final = struct.Struct(
    ">"
    "q"  # commit_log_offset
    "i"  # record_size
    "q"  # tags_code
)
assert UNIT.size == UNIT_SIZE

PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)

# Hash codes are sign-extended 32-bit numbers; what is below them is a ConsumeQueueExt address.
EXT_ADDRESS_MAX: Final = -(2**31) - 1


class ConsumeQueueUnit(NamedTuple):
    """One unit, see the module's table."""

    commit_log_offset: int
    record_size: int
    tags_code: int

    @property
    def is_pre_blank(self) -> bool:
        """Whether this only fills the front of a queue's first file."""
        return self.commit_log_offset == 0 and self.record_size == PRE_BLANK_SIZE

    @property
    def is_message(self) -> bool:
        """Whether the unit names a record."""
        return self.commit_log_offset >= 0 and 0 < self.record_size < PRE_BLANK_SIZE


def is_ext_address(tags_code: int) -> bool:
    """Whether a tags code is the address of a ConsumeQueueExt unit."""
    return tags_code <= EXT_ADDRESS_MAX


def round_file_size(file_size: int) -> int:
    """A configured file size rounded up to whole units, as RocketMQ does."""
    return -(-file_size // UNIT_SIZE) * UNIT_SIZE
