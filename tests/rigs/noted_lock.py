"""A lock that tells when a thread has got it, or waits for it: for tests of orders of locks."""

from __future__ import annotations

import threading
from typing import Protocol


class Lock(Protocol):
    """A lock of the threading module."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock; False if it is not to be waited for, and taken."""

    def release(self) -> None:
        """Gives it back."""


class NotedLock:
    """Stands in a lock's place; ``asked`` is set when the thread of a name has come to it."""

    def __init__(self, lock: Lock, thread_name: str) -> None:
        self._lock, self._name = lock, thread_name
        self.asked = threading.Event()

    def __enter__(self) -> None:
        has_it = self._lock.acquire(blocking=False)
        if threading.current_thread().name == self._name:
            self.asked.set()
        if not has_it:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
