"""What a store may do at the moment. RocketMQ: RunningFlags.

bit  value  meaning
0        1  not readable
1        2  not writeable
2        4  writing a ConsumeQueue failed
3        8  writing an index file failed
4       16  disk full
5       32  fenced
6       64  disk of the ConsumeQueues full
"""

from __future__ import annotations

import enum
import threading
from typing import Final


class RunningFlag(enum.IntFlag):
    """One bit each, see the module's table."""

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    WRITE_INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64


_UNWRITEABLE: Final = 2 | 4 | 8 | 16 | 32 | 64


class RunningFlags:
    """The bits, settable from any thread."""

    __slots__ = ("_lock", "bits")

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards read-modify-write of bits
        self.bits = 0

    @property
    def is_readable(self) -> bool:
        """Whether gets are answered."""
        return not self.bits & 1

    @property
    def is_writeable(self) -> bool:
        """Whether puts are taken."""
        return not self.bits & _UNWRITEABLE

    def set(self, flag: RunningFlag) -> bool:
        """Sets a bit; True if it was clear."""
        with self._lock:
            was = self.bits & flag
            self.bits |= flag
        return not was

    def clear(self, flag: RunningFlag) -> bool:
        """Clears a bit; True if it was set."""
        with self._lock:
            was = self.bits & flag
            self.bits &= ~flag
        return bool(was)

    def describe(self) -> str:
        """The names of the bits that are set."""
        return "|".join(flag.name or "" for flag in RunningFlag if self.bits & flag) or "none"
