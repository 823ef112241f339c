"""Connection: one of a browser's, which cannot be held open for nothing.

uvicorn waits for ever for a request that does not end and for who does not read an answer, and
refuses everybody once so many wait. Here such a connection is closed after its time; and where
there is no room, the one that has kept its request waiting longest goes for a new one.

h11 reads a head, or all chunks of a body that have come, in one turn of the loop, at some 10 us for
each line and chunk: a read of 256 KiB would hold it for half a second. Browsers send few lines, and
no form in chunks. Requests behind one that is being answered wait in the socket; uvicorn read on
for each answer that looks out for the browser's end.
"""

from __future__ import annotations

import asyncio
import re
from operator import attrgetter
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 256
REQUEST_S: Final = 60.0
"""Seconds that a request may take to arrive, with its form."""

UNREAD_S: Final = 30.0
"""Seconds in which who is answered reads something."""

HEAD_SIZE_MAX: Final = 64 * 1024
HEAD_LINES_MAX: Final = 100
_HEAD_END: Final = re.compile(rb"\n\r?\n")


class _Requests(h11.Connection):
    """Refuses heads of very many lines before they are read, and bodies in chunks."""

    _is_refused = False
    is_paused = False
    """Whether more than the request that is being answered has come."""

    def receive_data(self, data: bytes) -> None:
        """Bytes have come."""
        super().receive_data(data)
        if self.their_state is h11.IDLE and b"\n" in data:
            self._look_at_head()

    def start_next_cycle(self) -> None:
        """The next request may have come already."""
        super().start_next_cycle()
        self.is_paused = False
        self._look_at_head()

    def _look_at_head(self) -> None:
        come, _ = self.trailing_data
        found = _HEAD_END.search(come)
        size = len(come) if found is None else found.end()
        self._is_refused = size > HEAD_SIZE_MAX or come.count(b"\n", 0, size) > HEAD_LINES_MAX

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What has come.

        Raises:
            h11.RemoteProtocolError: it is refused.
        """
        if self._is_refused:
            raise h11.RemoteProtocolError(
                f"a head of more than {HEAD_SIZE_MAX} bytes or {HEAD_LINES_MAX} lines"
            )
        event = super().next_event()
        self.is_paused = event is h11.PAUSED
        if isinstance(event, h11.Request) and any(
            name == b"transfer-encoding" for name, _ in event.headers
        ):
            self._is_refused = True
            raise h11.RemoteProtocolError("a body in chunks")
        return event


class _Flow(FlowControl):
    """uvicorn's, which reads no further while requests wait."""

    def __init__(self, transport: asyncio.Transport, requests: _Requests) -> None:
        super().__init__(transport)
        self._requests = requests

    def resume_reading(self) -> None:
        """Read on, if nothing waits."""
        if not self._requests.is_paused:
            super().resume_reading()


class Connection(H11Protocol):
    """One connection of a browser.

    Attributes:
        waiting_since_s: loop time since which the next request is waited for.
    """

    waiting_since_s = 0.0
    _unread = 0
    _look: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = self._requests = _Requests(h11.SERVER, HEAD_SIZE_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, if there is none."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._requests)
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

    def send_400_response(self, msg: str) -> None:
        """Refuse what has come; where something is being answered, all ends."""
        cycle: Any = self.cycle
        is_free = cycle is None or cycle.response_complete
        if is_free and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
            return
        # Its task must not write behind what h11 takes for the end: that would be a traceback.
        cycle.disconnected = True
        cycle.message_event.set()
        self.transport.abort()

    def on_response_complete(self) -> None:
        """The next request is waited for."""
        self.waiting_since_s = self.loop.time()
        super().on_response_complete()
        self.flow.resume_reading()

    def _look_again(self) -> None:
        unread = self.transport.get_write_buffer_size()
        is_stuck = unread and unread == self._unread
        waits_s = self.loop.time() - self.waiting_since_s
        if is_stuck or (not self.is_answering and not unread and waits_s >= REQUEST_S):
            self.transport.abort()
            return
        self._unread = unread
        self._look = self.loop.call_later(UNREAD_S, self._look_again)
