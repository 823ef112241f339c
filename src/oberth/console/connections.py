"""Connection: one of a browser's, which cannot be held open for nothing.

uvicorn waits for ever for a request that does not end and for who does not read an answer, and
refuses everybody once so many wait. Here such a connection is closed after its time; and where
there is no room, the one that has kept its request waiting longest goes for a new one.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 256
REQUEST_S: Final = 60.0
"""Seconds that a request may take to arrive, with its form."""

UNREAD_S: Final = 30.0
"""Seconds in which who is answered reads something."""


class Connection(H11Protocol):
    """One connection of a browser.

    Attributes:
        waiting_since_s: loop time since which the next request is waited for.
    """

    waiting_since_s = 0.0
    _unread = 0
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, if there is none."""
        super().connection_made(transport)
        self.waiting_since_s = self.loop.time()
        self._look = self.loop.call_later(UNREAD_S, self._look_again)
        if len(self.connections) > CONNECTIONS_MAX:
            idle = [
                each
                for each in self.connections
                if isinstance(each, Connection) and not each.is_answering
            ]
            longest = min(idle, key=attrgetter("waiting_since_s"))
            self.connections.discard(longest)
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        """Whether a request is here whole and its answer is not yet."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def on_response_complete(self) -> None:
        """The next request is waited for."""
        self.waiting_since_s = self.loop.time()
        super().on_response_complete()

    def _look_again(self) -> None:
        unread = self.transport.get_write_buffer_size()
        is_stuck = unread and unread == self._unread
        waits_s = self.loop.time() - self.waiting_since_s
        if is_stuck or (not self.is_answering and not unread and waits_s >= REQUEST_S):
            self.transport.abort()
            return
        self._unread = unread
        self._look = self.loop.call_later(UNREAD_S, self._look_again)
