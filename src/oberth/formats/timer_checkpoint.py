"""``config/timercheck``: how far the timer has come. 4096 bytes, of which 56 are used.

    offset  size  field                      type   note
         0     8  last_read_time             int64  ms; slots before it were delivered
         8     8  last_timer_log_flush_pos   int64  timer log position that is on disk
        16     8  last_timer_queue_offset    int64  offset in rmq_sys_wheel_timer, queue 0
        24     8  master_timer_queue_offset  int64  the same of a replica's master
        32     8  state_version              int64  version of the data, see config/*.json
        40     8  timestamp                  int64  ms
        48     8  counter                    int64

Big-endian. The same 56 bytes go over the wire, where 32 without the version are accepted too.
RocketMQ: TimerCheckpoint, since 5.0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from oberth.errors import FormatError

FILE_SIZE: Final = 4096
USED_SIZE: Final = 56
WITHOUT_VERSION_SIZE: Final = 32

_CHECKPOINT: Final = struct.Struct(
    ">"
    "q"  # last_read_time
    "q"  # last_timer_log_flush_pos
    "q"  # last_timer_queue_offset
    "q"  # master_timer_queue_offset
    "q"  # state_version
    "q"  # timestamp
    "q"  # counter
)
assert _CHECKPOINT.size == USED_SIZE


@dataclass(slots=True)
class TimerCheckpoint:
    """The values of the file, see the module's table."""

    last_read_time: int = 0
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """The used bytes; on disk they stand at the front of a file of FILE_SIZE.

        Raises:
            FormatError: a value does not fit its type.
        """
        try:
            return _CHECKPOINT.pack(
                self.last_read_time,
                self.last_timer_log_flush_pos,
                self.last_timer_queue_offset,
                self.master_timer_queue_offset,
                self.state_version,
                self.timestamp,
                self.counter,
            )
        except struct.error as error:
            raise FormatError(f"{self}: {error}") from None


def decode_timer_checkpoint(data: bytes | memoryview) -> TimerCheckpoint:
    """Reads the file's front, or a message's 56 or 32 bytes.

    Raises:
        FormatError: fewer than 32 bytes.
    """
    if len(data) < WITHOUT_VERSION_SIZE:
        raise FormatError(
            f"timer checkpoint: {len(data)} bytes, needed are {USED_SIZE} or {WITHOUT_VERSION_SIZE}"
        )
    if len(data) < USED_SIZE:
        return TimerCheckpoint(*struct.unpack_from(">qqqq", data))
    return TimerCheckpoint(*_CHECKPOINT.unpack_from(data))
