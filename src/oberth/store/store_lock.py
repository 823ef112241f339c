"""Locks of processes; the store's is byte 0 of its file ``lock``, exclusively.

A POSIX record lock, as Java takes it, so that Oberth and RocketMQ keep each other out. Such locks
belong to the process, and go when it closes any descriptor of the file: a second opener within
this process is refused by a table of our own.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from oberth.errors import StoreLockedError
from oberth.formats.paths import LOCK

_held: set[str] = set()
_held_lock = threading.Lock()  # guards _held


def is_held_here(root: str) -> bool:
    """Whether this process holds the lock of a store: then nobody may open the file and close it.

    The system takes all of a process's locks of a file away when one of its descriptors is closed.
    """
    with _held_lock:
        return os.path.realpath(f"{root}/{LOCK}") in _held


class ProcessLock:
    """A lock of a file, held from `acquire` to `release`, or until the process dies.

    Nothing is written to the file, and no link is followed to it: it may lie in a directory in
    which anybody can make one.
    """

    _content = b""
    _flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)

    def __init__(self, path: str, doing: str, advice: str = "") -> None:
        """Prepares.

        Args:
            path: the file; made when it is not there.
            doing: what its holder does, for errors: "has the store open".
            advice: what to do where another process has it.
        """
        self.path = path
        self._doing = doing
        self._advice = f"; {advice}" if advice else ""
        self._key = os.path.realpath(path)
        self._fd = -1

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            StoreLockedError: another process, or another lock object of this one, has it.
        """
        with _held_lock:
            if self._key in _held:
                raise StoreLockedError(f"{self.path}: this process {self._doing} already")
            fd = os.open(self.path, self._flags, 0o644)
            try:
                _lock_byte(fd)
            except OSError as error:
                os.close(fd)
                raise StoreLockedError(
                    f"{self.path}: another process {self._doing} ({error.strerror}){self._advice}"
                ) from error
            if self._content:
                # The word is for people; a full disk may have no block for it.
                with suppress(OSError):
                    os.lseek(fd, 0, os.SEEK_SET)
                    os.write(fd, self._content)
            self._fd = fd
            _held.add(self._key)

    def release(self) -> None:
        """Gives the lock back."""
        with _held_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                _held.discard(self._key)


class StoreLock(ProcessLock):
    """The lock of a store."""

    _content = b"lock"
    _flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)

    def __init__(self, root: str) -> None:
        super().__init__(
            f"{root}/{LOCK}", "has the store open", "stop it, or open the store for reading"
        )


if sys.platform == "win32":
    import msvcrt

    def _lock_byte(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock_byte(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
