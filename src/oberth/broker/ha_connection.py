"""One socket of the HA port: HAConnection, and what each end knows of it (Replica, MasterLink).

What comes is worked on in the turn of the loop that reads it, and what is said to it leaves in the
same turn. With asyncio's streams a task is woken for it, one turn later; while a sender waits for
its replica that happened on both machines, in both directions.

A log that is caught up with is read into one buffer again and again: what is new memory each time
costs a page fault for each page, and a copy more. It leaves without a copy in this process, but for
what the socket does not take.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from oberth.errors import OberthError

if TYPE_CHECKING:
    from oberth.remoting.aio.address import Address
    from oberth.store.replication import LogSender

BULK_BYTES: Final = 64 << 10
"""Bytes of one read behind which the loop turns before the next: a log that is caught up with comes
as fast as it can be written."""

TURN_BYTES: Final = 1 << 20
"""Bytes of the log that one slave is sent in one turn of the loop."""

WRITE_BYTES: Final = 256 << 10
"""Bytes of the log that are given to the socket at once."""

WRITEV_PARTS_MAX: Final = 1024
"""Pieces that one system call takes (IOV_MAX of Linux)."""

READ_BYTES: Final = 512 << 10
"""Bytes of a log that are read at once."""

REPORT_BYTES: Final = 16 << 10
"""Bytes that are read at once of who sends reports, perhaps encrypted."""

Take = Callable[[bytes | memoryview], memoryview | None]
"""Takes what came; the bytes are valid until it returns. What it gives back is given to it again
when the loop has turned, before anything else."""


class Writer(Protocol):
    """Where a slave's bytes are given."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send pieces, one behind the other; they are not looked at after this call."""


class HAConnection(asyncio.BufferedProtocol):
    """One connection. Belongs to one task: that attaches what takes the bytes, then waits.

    What comes before `attach` is kept, one read at most. What `Take` raises ends the connection and
    reaches the task.

    Args:
        begin: called with a connection that was accepted; None on the end that dials.
    """

    def __init__(self, begin: Callable[[HAConnection], None] | None = None) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._take: Take | None = None
        self._early = b""
        self._buffer = memoryview(bytearray(READ_BYTES if begin is None else REPORT_BYTES))
        self._ended = self._loop.create_future()
        self._error: Exception | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._socket = -1
        self.transport: asyncio.Transport
        self.last_read_s = self._loop.time()
        """Time of the loop when something came, or the connection began."""

    @property
    def is_writable(self) -> bool:
        """Whether the socket has taken all that was written; not once it has ended."""
        return self._drained.is_set() and not self._ended.done()

    # The task's side

    def attach(self, take: Take) -> None:
        """Have what came and what comes taken."""
        if self._ended.done():
            return
        self._take = take
        early, self._early = self._early, b""
        if early:
            self.last_read_s = self._loop.time()
            self._work_on(early, is_paused=True)

    def write(self, data: bytes) -> None:
        """Send bytes; those that the socket does not take are kept."""
        self.transport.write(data)

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send pieces, one behind the other; those that the socket does not take are copied."""
        rest = parts
        if self._socket >= 0 and self.is_writable and not self.transport.is_closing():
            try:
                sent = os.writev(self._socket, parts[:WRITEV_PARTS_MAX])
            except OSError:  # it takes nothing now; or it is gone, and the transport says so
                sent = 0
            rest = _behind(parts, sent)
        if rest:
            self.transport.write(b"".join(rest))

    async def drain(self) -> None:
        """Wait until the socket has taken all, or has ended."""
        await self._drained.wait()

    async def wait_ended(self, seconds: float) -> bool:
        """Whether the connection ends within so many seconds.

        Raises:
            OberthError, OSError: what it ended with; once.
        """
        if not self._ended.done():
            await asyncio.wait([self._ended], timeout=seconds)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # which refers to this call
        return self._ended.done()

    def end(self, error: Exception | None = None) -> None:
        """End it now; what was not sent is lost. The first error counts."""
        if not self._ended.done():
            # A traceback would keep what was read, and this connection until a collection.
            kept: BaseException | None = error
            while kept is not None:
                kept.__traceback__ = None
                kept = kept.__context__
            self._error = error
            self._ended.set_result(None)
            self._take, self._early = None, b""
        self._drained.set()
        self.transport.abort()

    # The loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self.transport = cast("asyncio.Transport", transport)
        # What is written goes to the socket at once, and `is_writable` says whether all of it has.
        self.transport.set_write_buffer_limits(0)
        found = transport.get_extra_info("socket")
        is_plain = transport.get_extra_info("ssl_object") is None
        if found is not None and is_plain and hasattr(os, "writev"):
            self._socket = found.fileno()
        if self._begin is not None:
            self._begin(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.data_received(self._buffer[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        """See asyncio.Protocol: for transports that know no buffers, and for `attach`."""
        if self._ended.done():
            return
        if self._take is None:
            self._early += data
            self.transport.pause_reading()
            return
        self.last_read_s = self._loop.time()
        self._work_on(data, is_paused=False)

    def _work_on(self, data: bytes | memoryview, is_paused: bool) -> None:
        if self._take is None:
            return
        try:
            rest = self._take(data)
        except (OberthError, OSError) as error:
            self.end(error)
            return
        if rest:
            # It lies in the buffer, so nothing is read into that before.
            self.transport.pause_reading()
            self._loop.call_soon(self._work_on, rest, True)
        elif is_paused:
            self._read_on()
        elif len(data) >= BULK_BYTES:
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._drained.set()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self.end(error)


def _behind(parts: Sequence[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What follows the first bytes of pieces."""
    for number, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[number + 1 :]]
        sent -= len(part)
    return []


class Replica:
    """One slave's connection, and how fast it is served."""

    __slots__ = ("_rated_at_s", "_rated_bytes", "address", "bytes_per_s", "connection", "is_idle",
                 "out", "sender", "sent_bytes", "wake", "wrote_at_s")  # fmt: skip

    def __init__(
        self,
        address: Address,
        sender: LogSender,
        now_s: float,
        connection: HAConnection,
        out: Writer,
    ) -> None:
        self.address = address
        self.sender = sender
        self.connection = connection
        self.out = out
        """Sends what the slave is sent, encrypted if need be."""
        self.sent_bytes = 0
        self.bytes_per_s = 0
        self.is_idle = False
        """Whether it had everything, so that who appends sends it the rest."""
        self.wake = asyncio.Event()
        """Set when who appends could not."""
        self.wrote_at_s = now_s
        self._rated_at_s = now_s
        self._rated_bytes = 0

    def push(self, now_s: float) -> bool:
        """Sends what the slave lacks, `TURN_BYTES` at most; whether it has everything then.

        Raises:
            RemoteProtocolError: nobody knows in which epoch that was written.
        """
        sender = self.sender
        end = self.sent_bytes + TURN_BYTES
        while self.sent_bytes < end and self.connection.is_writable:
            parts: list[bytes | memoryview] = []
            size = 0
            while size < WRITE_BYTES and (frame := sender.next_frame()) is not None:
                parts += frame
                size += len(frame[1])
            if parts:
                self.out.write_parts(parts)
                self.sent_bytes += size
                self.wrote_at_s = now_s
            if size < WRITE_BYTES:
                if sender.has_news and sender.next_offset >= 0:
                    self.beat(now_s)
                return True
        return False

    def beat(self, now_s: float) -> None:
        """Sends a frame without data."""
        self.out.write(self.sender.heartbeat())
        self.wrote_at_s = now_s

    def rate(self, now_s: float) -> None:
        """Takes the rate anew if a second has passed."""
        span_s = now_s - self._rated_at_s
        if span_s >= 1:
            self.bytes_per_s = int((self.sent_bytes - self._rated_bytes) / span_s)
            self._rated_at_s, self._rated_bytes = now_s, self.sent_bytes


class MasterLink:
    """What a slave knows of its connection to the master.

    Attributes:
        is_active: it is open.
        is_answered: something came over it, so the master knows how far this slave's log reaches.
    """

    __slots__ = ("_rated_at_s", "_rated_bytes", "bytes_per_s", "is_active", "is_answered",
                 "last_read_ms", "last_write_ms", "received_bytes")  # fmt: skip

    def __init__(self) -> None:
        self.is_active = False
        self.is_answered = False
        self.received_bytes = 0
        self.bytes_per_s = 0
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._rated_at_s = 0.0
        self._rated_bytes = 0

    def received(self, count: int, now_ms: int, now_s: float) -> None:
        """Bytes have come."""
        self.is_answered = True
        self.received_bytes += count
        self.last_read_ms = now_ms
        span_s = now_s - self._rated_at_s
        if span_s >= 1:
            self.bytes_per_s = int((self.received_bytes - self._rated_bytes) / span_s)
            self._rated_at_s, self._rated_bytes = now_s, self.received_bytes
