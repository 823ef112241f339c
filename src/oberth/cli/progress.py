"""A progress bar on stderr, shown only to people: not in a pipe, not for quick work."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

SHOW_AFTER_S: Final = 0.5
_REDRAW_S: Final = 0.1
_WIDTH: Final = 30


class Progress:
    """Says how far a long piece of work is.

    Lifecycle: ``with Progress("reading", total) as progress``, then ``progress(done)`` as often as
    one likes and from any thread. It draws at most ten times a second, and clears its line at the
    end.
    """

    def __init__(self, what: str, total: int = 0, *, shown: bool | None = None) -> None:
        self.what = what
        self.total = total
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._drawn = False
        self._next = time.monotonic() + SHOW_AFTER_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Says that ``done`` of ``total`` bytes are behind us."""
        if total is not None:
            self.total = total
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + _REDRAW_S
        self._drawn = True
        part = min(1.0, done / self.total) if self.total else 0.0
        filled = int(part * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        sys.stderr.write(f"\r{self.what} [{bar}] {part:4.0%} of {self.total >> 20} MiB\x1b[K")
        sys.stderr.flush()
