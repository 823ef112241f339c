"""``abort`` and ``lock``: two files whose being there matters more than what they hold.

    file   content                     meaning
    abort  empty (4.9), or the decimal  the store is open, or was not closed cleanly
           process id (5.x)
    lock   the four bytes "lock"       written by who holds an exclusive lock on byte 0

``abort.bak`` is what 5.x's file helper leaves behind and means nothing. The lock is a POSIX record
lock on range [0, 1), not a flock. RocketMQ: DefaultMessageStore, MixAll.string2File.
"""

from __future__ import annotations

from typing import Final

LOCK_CONTENT: Final = b"lock"
LOCK_START: Final = 0
LOCK_LENGTH: Final = 1

ABORT_SIZE_MAX: Final = 32
"""Bytes of abort that are looked at; a process id has at most 19 digits."""


def encode_abort(process_id: int | None) -> bytes:
    """What abort holds: a process id as 5.x writes it, or nothing as 4.9 does."""
    return b"" if process_id is None else str(process_id).encode("ascii")


def decode_abort(data: bytes) -> int | None:
    """The process id in abort, None for 4.9's empty file and for anything else."""
    text = data[:ABORT_SIZE_MAX].strip()
    return int(text) if text.isdigit() and len(text) < ABORT_SIZE_MAX else None
