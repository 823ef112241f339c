"""What a store and the process that dispatches it tell each other: two locks and two files.

With ``dispatch=spark`` a broker only appends; a query (`oberth spark dispatch --follow`) keeps queues
and index. Only one of them writes those at a time:

    oberth/dispatch.lock       held by the process that writes queues and index
    oberth/recovery.lock       held by a broker that starts or stops; the dispatcher then steps aside
    oberth/dispatch.json       up to where queues and index are on the disk, and what they hold:
                               see `oberth.store.dispatch_state`
    oberth/dispatch.progress   up to where queues and index show messages, big-endian:

        offset  size  field            type   note
             0     8  epoch            int64  drawn by each dispatcher when it opens the store
             8     8  position         int64  CommitLog offset
            16     8  store_timestamp  int64  of the newest record, ms
            24     8  check            int64  the three before, exclusive-or

The progress is not synced: a machine that fails takes it along with what it speaks of. Locks are
``flock``'s, so a killed process leaves none behind.
"""  # noqa: E501 - the example

from __future__ import annotations

import fcntl
import os
import struct
import time
from typing import Final, NamedTuple

from oberth.errors import StoreLockedError

DIRECTORY: Final = "oberth"
LOCK: Final = "oberth/dispatch.lock"
WANTED: Final = "oberth/recovery.lock"
PROGRESS: Final = "oberth/dispatch.progress"
_LOOK_S: Final = 0.005

_PROGRESS: Final = struct.Struct(
    ">"
    "q"  # epoch
    "q"  # position
    "q"  # store_timestamp
    "q"  # check
)
assert _PROGRESS.size == 32


class FileLock:
    """A lock of a file: ``acquire`` to ``release``, or until the process ends."""

    def __init__(self, root: str, name: str) -> None:
        os.makedirs(os.path.join(root, DIRECTORY), exist_ok=True)
        self.path = os.path.join(root, name)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def acquire_nowait(self) -> bool:
        """Takes the lock unless somebody has it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def acquire(self, timeout_s: float) -> None:
        """Waits for the lock.

        Raises:
            StoreLockedError: somebody has it for longer than that.
        """
        deadline = time.monotonic() + timeout_s
        while not self.acquire_nowait():
            if time.monotonic() >= deadline:
                raise StoreLockedError(f"{self.path}: held for more than {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def release(self) -> None:
        """Gives the lock back."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def is_taken(self) -> bool:
        """Whether somebody else has it."""
        if self.acquire_nowait():
            self.release()
            return False
        return True

    def close(self) -> None:
        """Gives the lock back for good."""
        os.close(self._fd)


class Progress(NamedTuple):
    """Up to where queues and index show messages; see the module's table."""

    epoch: int
    position: int
    store_timestamp: int


class ProgressFile:
    """The file of the progress; written by one process, read by another."""

    def __init__(self, root: str) -> None:
        os.makedirs(os.path.join(root, DIRECTORY), exist_ok=True)
        path = os.path.join(root, PROGRESS)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, progress: Progress) -> None:
        """Tells how far dispatch has come."""
        check = progress.epoch ^ progress.position ^ progress.store_timestamp
        os.pwrite(self._fd, _PROGRESS.pack(*progress, check), 0)

    def read(self) -> Progress | None:
        """How far it has come; None where nobody has said so, or is just saying it."""
        raw = os.pread(self._fd, _PROGRESS.size, 0)
        if len(raw) < _PROGRESS.size:
            return None
        epoch, position, timestamp, check = _PROGRESS.unpack(raw)
        return (
            Progress(epoch, position, timestamp) if check == epoch ^ position ^ timestamp else None
        )

    def close(self) -> None:
        """Ends it; the file stays."""
        os.close(self._fd)
