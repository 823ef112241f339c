"""VirtualClock: the wall clock of a broker under test, which can be set forward.

Time runs as usual between two calls of ``advance``, unless the clock is frozen. It never goes back.
"""

from __future__ import annotations

from collections.abc import Callable

from oberth.wall_clock import now_ms


class VirtualClock:
    """A clock in milliseconds since the epoch; calling it tells the time.

    Args:
        start_ms: what it shows first; None: the real time.
        frozen: whether it stands still between two calls of ``advance``.
    """

    def __init__(self, start_ms: int | None = None, *, frozen: bool = False) -> None:
        real = now_ms()
        self._shown_ms = real if start_ms is None else start_ms
        self._real_ms = real
        self._frozen = frozen
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        if self._frozen:
            return self._shown_ms
        return self._shown_ms + now_ms() - self._real_ms

    def advance(self, ms: float = 0, *, seconds: float = 0, minutes: float = 0) -> int:
        """Set the clock forward, and wake who waits for the time; gives the new time.

        Raises:
            ValueError: backwards.
        """
        by_ms = round(ms + seconds * 1000 + minutes * 60_000)
        if by_ms < 0:
            raise ValueError(f"a clock cannot be set back, found {by_ms} ms")
        self._shown_ms += by_ms
        for listener in list(self._listeners):
            listener()
        return self()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Called after each ``advance``."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """No more."""
        self._listeners.remove(listener)
