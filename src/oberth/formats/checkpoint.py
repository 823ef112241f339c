"""The file ``checkpoint``: how far the store was known to be on disk.

4096 bytes, of which these are used; the rest is zero. Big-endian:

    offset  size  field                    type   note
         0     8  physic_msg_timestamp     int64  store time up to which the CommitLog was flushed, ms
         8     8  logics_msg_timestamp     int64  store time up to which ConsumeQueues were built, ms
        16     8  index_msg_timestamp      int64  store time of the last full index file, ms
        24     8  master_flushed_offset    int64  since 5.0.0
        32     8  confirm_offset           int64  since 5.1.1
        40     8  logics_physical_offset   int64  CommitLog offset up to which ConsumeQueues were flushed, since 5.4

4.9 reads the first three and ignores the others. RocketMQ: StoreCheckpoint.
"""  # noqa: E501 - the table's notes

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from oberth.errors import FormatError

FILE_SIZE: Final = 4096
# Recovery goes this far behind what the file says.
SAFETY_MS: Final = 3000

_CHECKPOINT: Final = struct.Struct(
    ">"
    "q"  # physic_msg_timestamp
    "q"  # logics_msg_timestamp
    "q"  # index_msg_timestamp
    "q"  # master_flushed_offset
    "q"  # confirm_offset
    "q"  # logics_physical_offset
)
USED_SIZE: Final = _CHECKPOINT.size


@dataclass(slots=True)
class Checkpoint:
    """The values of the file, see the module's table."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """From where abnormal recovery starts, ms."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MS)

    def encode(self) -> bytes:
        """The used bytes; the caller writes them at the front of a file of FILE_SIZE."""
        return _CHECKPOINT.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_physical_offset,
        )


def decode_checkpoint(data: bytes | memoryview) -> Checkpoint:
    """Reads the file's front.

    Raises:
        FormatError: fewer bytes than the fields need.
    """
    if len(data) < USED_SIZE:
        raise FormatError(f"checkpoint: found {len(data)} bytes, needed are {USED_SIZE}")
    return Checkpoint(*_CHECKPOINT.unpack_from(data, 0))
