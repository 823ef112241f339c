"""GrpcChannel: one HTTP/2 connection with gRPC calls. Plain text and TLS share the port.

The frames are read and written by `frames.ServerConnection`; this module gives the data of each
stream to its `Call` and runs the call's handler: in this turn of the loop, where the whole call has
come in one read and it can be served so, else in a task. All that one read causes to be sent, and
all that is sent in one turn of the loop, leaves in one write.

Lifecycle: made by `GrpcServer`, opened by the loop, ended by either side. When the connection is
lost every call of it is cancelled.

The memory and time that a peer can take are bounded:

    headers of a call              HEADER_LIST_MAX bytes after decompression
    a message                      MESSAGE_MAX bytes, after decompression INFLATED_MAX
    unfinished messages, answers   `PeerBudget`, all connections of a server together, with what
                                   waits in their sockets' buffers; beyond it, of the address that
                                   holds most the connection that does is closed
    calls at a time                STREAMS_MAX on a connection; each counts CALL_SIZE in the budget
    frames that carry nothing      CONTROL_MAX in a second; beyond it the connection is closed.
                                   A ping behind an answer is none: the client for Go measures so
    settings                       as many such frames as they have calls to change, by eights
    beginning a connection         HANDSHAKE_S, TLS among it
    a peer that is silent          while it has calls it is pinged, and closed if it does not answer
    answers that it does not read  WRITE_HIGH bytes in the socket's buffer; nothing more is read
                                   from it, and if it takes nothing for UNREAD_S it is closed
    a turn of the loop             SLICE_S of calls' work, over all connections (`Turns`), SLICE_S
                                   of reading on a connection, and of writing SLICE_S or
                                   FLUSHED_A_TURN bytes; what is left follows in the next one
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from time import perf_counter
from typing import Final, Protocol, cast

from oberth.errors import RemoteProtocolError
from oberth.proxy.call import Begin, Call, CallError, GrpcStatus, Handler
from oberth.proxy.frames import (
    ConnectionFault,
    DataReceived,
    ErrorCode,
    Event,
    Kind,
    Pinged,
    RequestReceived,
    ServerConnection,
    SettingsReceived,
    StreamEnded,
    StreamReset,
    Terminated,
    WindowOpened,
    frame,
    goaway,
)
from oberth.proxy.header_blocks import literal
from oberth.proxy.turns import Turns
from oberth.remoting.aio.address import Address, peer_address
from oberth.remoting.aio.peer_budget import PeerBudget
from oberth.remoting.aio.tls import ServerTls
from oberth.remoting.first_bytes import PROXY_OPTION, TrustedProxies, detect, parse_proxy_header
from oberth.remoting.first_bytes import Protocol as FirstProtocol

_LOG: Final = logging.getLogger(__name__)

HEADER_LIST_MAX: Final = 16 * 1024
STREAMS_MAX: Final = 1024
CONTROL_MAX: Final = 2000
"""Frames a second that carry nothing: pings, settings, resets, priorities, empty data."""

HANDSHAKE_S: Final = 10.0
"""From the first byte, or none, to the end of the client's preface."""

SETTINGS_SHARE: Final = 8
"""Calls whose windows a frame of settings changes for the cost of a frame that carries nothing."""

SLICE_S: Final = 0.005
LATE_S: Final = 0.02
"""How long a call that needs no task waits for its message, when that came in a later read."""

WINDOW: Final = 1024 * 1024
"""Bytes that a peer may send on one stream before we take them."""

JOINED_MAX: Final = 64 * 1024
"""Bytes of a call's answers that leave in as few frames as they fit."""

WRITTEN_AT_ONCE: Final = 256 * 1024
"""Bytes of answers that are joined for one write; then it shows whether the peer takes them."""

FLUSHED_A_TURN: Final = 1024 * 1024
"""Bytes of answers after which the others wait for the next turn of the loop."""

CONNECTION_WINDOW: Final = 8 * 1024 * 1024
WRITE_HIGH: Final = 4 * 1024 * 1024
_OK: Final = literal((":status", "200"), ("content-type", "application/grpc"))
_PLAIN_CONTENT: Final = "application/grpc"
_GRPC_CONTENT: Final = re.compile(r"application/grpc(?:[+;]|$)")
_NO_GRPC: Final = literal((":status", "415"), ("content-length", "0"))


class ServerHooks(Protocol):
    """The parts of its server that a channel uses."""

    unpacking: asyncio.Lock
    turns: Turns

    def handler_of(self, path: str) -> Handler | None:
        """What serves ``/package.Service/Method``; None: nothing does."""

    def begin_of(self, path: str) -> Begin | None:
        """What serves it without a task, if anything does."""

    def read_done(self, channel: GrpcChannel, count: int, came: float) -> None:
        """A read that began at ``came`` (``perf_counter``) had so many calls; all have begun."""

    def on_open(self, channel: GrpcChannel, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""

    def on_close(self, channel: GrpcChannel) -> None:
        """The connection is gone."""

    def on_drop(self) -> None:
        """A call is gone from its connection, its answer sent or not wanted any more."""

    def on_call_end(self, path: str, status: GrpcStatus, seconds: float) -> None:
        """A call ended."""


class GrpcChannel(asyncio.Protocol):
    """One connection.

    Attributes:
        remote: address of the peer; behind a trusted proxy that says so, of the client.
        local: our end, the address that the peer dialled.
        calls: by stream.
        held: bytes of calls, of unfinished messages and of answers not yet written.
        made_at: loop time at which the connection was accepted.
        last_active: loop time of the last bytes of either side.
        last_heard: loop time of the peer's last bytes.
        pinged_at: loop time of a ping to a peer that is silent; None: it has said something since.
        peer_reads: whether the peer takes what is sent; nothing is read from one that does not.
        is_begun: whether the client's preface has come.
        unpacking, turns: see `CallChannel`.
    """

    def __init__(
        self,
        hooks: ServerHooks,
        *,
        budget: PeerBudget[GrpcChannel],
        tls_context: ssl.SSLContext | None = None,
        tls_only: bool = False,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.hooks = hooks
        self.unpacking = hooks.unpacking
        self.turns = hooks.turns
        self.loop = asyncio.get_running_loop()
        self.remote = Address("", 0)
        self.local = Address("", 0)
        self.calls: dict[int, Call] = {}
        self.made_at = self.last_active = self.last_heard = self.loop.time()
        self.pinged_at: float | None = None
        self.is_begun = False
        self.is_tls = False
        self.held = 0
        self._unsent = 0  # bytes that the transport had behind the last write
        self._budget = budget
        self._tls_context = tls_context
        self._tls_only = tls_only
        self._proxies = proxies or TrustedProxies()
        self._proxied = False
        self._first_bytes: bytes | None = b""
        self._tls: ServerTls | None = None
        self._transport: asyncio.Transport | None = None
        self._connection = ServerConnection(
            streams_max=STREAMS_MAX,
            window=WINDOW,
            connection_window=CONNECTION_WINDOW,
            header_list_max=HEADER_LIST_MAX,
        )
        self._is_reading = False
        self._is_resting = False
        self._unstarted: dict[int, Call] = {}  # calls whose message has not come
        self._late: asyncio.TimerHandle | None = None  # gives them tasks
        self._begun_count = 0  # calls that came in this read
        self._has_submitted = False  # some of which the broker has, or of those before
        self._holds_output = False  # what is sent leaves behind the read
        self.peer_reads = True
        self._is_paused = False
        self._ready: dict[int, Call] = {}  # calls with something to send
        self._blocked: dict[int, Call] = {}  # those that wait for their stream's window
        self._flush_scheduled = False
        self._flushed = 0  # bytes, by one `_flush`
        self._headers_sent: set[int] = set()
        self._has_answered = False  # since the last ping
        self._control_at = 0.0
        self._control_count = 0
        self._draining = False
        self._peer_leaves = False
        self._closed = False
        self._is_gone = False

    def __repr__(self) -> str:
        return f"<GrpcChannel {self.local} - {self.remote}>"

    # Asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_HIGH // 4)
        self.remote = peer_address(transport.get_extra_info("peername"))
        self.local = peer_address(transport.get_extra_info("sockname"))
        self.hooks.on_open(self, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._closed:
            return
        self.last_active = self.last_heard = self.loop.time()
        self.pinged_at = None
        try:
            if self._first_bytes is not None:
                data = self._read_first_bytes(data)
            if self._tls is not None:
                plain, ended = self._tls.receive(data)
                self._write_tls()
                data = plain
                if ended:
                    self.close()
                    return
                if self._tls.has_more:
                    self.loop.call_soon(self._decrypt_on)
                self._update_reading()
        except (RemoteProtocolError, ssl.SSLError) as error:
            _LOG.warning("%s was disconnected: %s", self, error)
            self.abort()
            return
        if data and self._first_bytes is None:
            self._connection.receive(data)
            if not self._is_reading:
                self._read_on()

    def _decrypt_on(self) -> None:
        """Read more of the TLS records that came: a read may hold eleven thousand."""
        self.data_received(b"")

    def _read_on(self) -> None:
        """Read what came, as far as one turn of the loop goes."""
        self._is_reading = False
        if self._closed:
            return
        came = perf_counter()
        until = self.loop.time() + SLICE_S
        self._begun_count = 0
        self._holds_output = True
        try:
            for event in self._connection.events():
                self._on_event(event)
                if self._has_ended():
                    break
                if self.loop.time() > until:
                    self._is_reading = True
                    self.loop.call_soon(self._read_on)
                    break
            if self._unstarted:
                self._start_unstarted()
            self._tell_begun(came)
            self._holds_output = False
            if self._ready:
                self._flush()
            self._write_out()
        except ConnectionFault as error:
            _LOG.info("%s was disconnected: %s: %s", self, error.code.name, error)
            self._connection.send_goaway(error.code)
            self._write_out()
            self.close()
        except Exception:  # noqa: BLE001 - a mistake of ours harms this connection alone
            _LOG.exception("%s was disconnected after an error of this server", self)
            self.abort()
        finally:
            self._tell_begun(came)
            self._holds_output = False
        self._update_reading()

    def _tell_begun(self, came: float) -> None:
        """Have the calls served that this read has begun, whatever came behind them."""
        count, self._begun_count = self._begun_count, 0
        if count or self._has_submitted:
            self._has_submitted = False
            self.hooks.read_done(self, count or 1, came)

    def _has_ended(self) -> bool:
        return self._closed

    def _update_reading(self) -> None:
        """Read from a peer that reads, and whose last bytes are read."""
        if self._transport is None or self._transport.is_closing():
            return
        is_late = self._is_reading or (self._tls is not None and self._tls.has_more)
        wanted = self.peer_reads and not is_late and not self._is_resting
        if wanted == self._is_paused:
            self._is_paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def rest(self, seconds: float) -> None:
        """Read no more for a while; a rest that has begun is not made longer."""
        if not self._is_resting and not self._closed:
            self._is_resting = True
            self._update_reading()
            self.loop.call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._update_reading()

    def eof_received(self) -> bool:
        """Called by the loop."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._closed = self._is_gone = True
        self._budget.note(self, 0)
        if self._late is not None:
            self._late.cancel()
            self._late = None
        for call in list(self.calls.values()):
            self._drop(call)
        self._ready.clear()
        self.hooks.on_close(self)

    def pause_writing(self) -> None:
        """Called by the transport: the peer does not read."""
        self.peer_reads = False
        self._update_reading()

    def resume_writing(self) -> None:
        """Called by the transport: the peer reads again."""
        self.peer_reads = True
        self._count_unsent()
        self._update_reading()
        self._flush()

    # Reading

    def _read_first_bytes(self, data: bytes) -> bytes:
        assert self._first_bytes is not None
        data = self._first_bytes + data
        if b"PRI * HTTP/2.0".startswith(data[:14]) and len(data) < 14:
            self._first_bytes = data  # begins as "PROXY " does
            return b""
        protocol = detect(data)
        if protocol is FirstProtocol.PROXY and not self._proxied:
            if self.remote.host not in self._proxies:
                raise RemoteProtocolError(
                    f"a PROXY header from {self.remote.host}, allowed from the addresses in "
                    f"{PROXY_OPTION} only"
                )
            header = parse_proxy_header(data)
            if header is None:
                self._first_bytes = data
                return b""
            self._proxied = True
            if header.source is not None:
                self.remote = Address(*header.source)
            self._first_bytes = b""
            return self._read_first_bytes(data[header.size :])
        if protocol is FirstProtocol.UNDECIDED:
            self._first_bytes = data
            return b""
        self._first_bytes = None
        if protocol is FirstProtocol.TLS:
            context = self._tls_context
            if context is None:
                raise RemoteProtocolError(
                    "the peer begins TLS, this server has no certificate and takes plain text"
                )
            self._tls = ServerTls(context)
            self.is_tls = True
        elif self._tls_only:
            raise RemoteProtocolError("the peer sends plain text, but this server takes TLS only")
        self._write_out()
        return data

    def _on_event(self, event: Event) -> None:
        kind = type(event)
        if kind is RequestReceived:
            self._on_request(event)  # type: ignore[arg-type]
        elif kind is DataReceived:
            self._on_data(event)  # type: ignore[arg-type]
        elif kind is WindowOpened:
            self._on_window(event.stream_id)  # type: ignore[union-attr]
        elif kind is StreamReset:
            self._count_control()
            call = self.calls.get(event.stream_id)  # type: ignore[union-attr]
            if call is not None:
                self._drop(call)
        elif kind is StreamEnded:
            self._count_control()
            call = self.calls.get(event.stream_id)  # type: ignore[union-attr]
            if call is not None:
                call.end_input()
        elif kind is Terminated:
            self._count_control()
            self._peer_leaves = True
        elif kind is SettingsReceived:
            self.is_begun = True
            self._count_control(1 + len(self.calls) // SETTINGS_SHARE)
            self._ready.update(self._blocked)
            self._blocked.clear()
            self._on_window(0)
        elif kind is Pinged and self._has_answered:
            self._has_answered = False
        else:
            self._count_control()

    def _count_control(self, count: int = 1) -> None:
        now = self.loop.time()
        if now - self._control_at >= 1.0:
            self._control_at = now
            self._control_count = 0
        self._control_count += count
        if self._control_count > CONTROL_MAX:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"more than {CONTROL_MAX} frames in a second that carry nothing",
            )

    def _on_request(self, event: RequestReceived) -> None:
        metadata = {name: value for name, value, _ in event.headers}
        stream_id = event.stream_id
        content = metadata.get("content-type", "")
        if metadata[":method"] != "POST" or (
            content != _PLAIN_CONTENT and _GRPC_CONTENT.match(content) is None
        ):
            self._connection.send_headers(stream_id, _NO_GRPC, end=True)
            return
        call = Call(self, stream_id, metadata[":path"], metadata, event.size)
        self.calls[stream_id] = call
        self.count_held(call)
        if self._closed:
            return  # it was one too many
        if self._draining:
            call.end(GrpcStatus.UNAVAILABLE, "the server is going away")
        elif self.hooks.handler_of(call.path) is None:
            call.end(GrpcStatus.UNIMPLEMENTED, f"unknown method {call.path[:200]}")
        elif event.is_ended:
            call.end_input()
            self._start(call)
        else:
            self._unstarted[stream_id] = call
        self._begun_count += 1

    def _start(self, call: Call) -> None:
        """Serve a call in a task of its own."""
        handler = self.hooks.handler_of(call.path)
        assert handler is not None, "its path was looked up when it came"
        call.task = self.loop.create_task(self._run(call, handler))

    def _start_unstarted(self) -> None:
        """Have calls whose message did not come whole with them wait for it.

        A message that follows soon finds a call without a task; the others get one, for their
        deadline.
        """
        for call in list(self._unstarted.values()):
            if self.hooks.begin_of(call.path) is None:
                del self._unstarted[call.stream_id]
                self._start(call)
        if self._unstarted and self._late is None:
            self._late = self.loop.call_later(LATE_S, self._start_late)

    def _start_late(self) -> None:
        self._late = None
        unstarted, self._unstarted = self._unstarted, {}
        for call in unstarted.values():
            self._start(call)

    def _begin(self, call: Call, data: bytes) -> bool:
        """Serve a call that has come whole; whether that could be done without a task."""
        begin = self.hooks.begin_of(call.path)
        message = None if begin is None else call.take_only(data)
        if begin is None or message is None:
            return False
        try:
            if begin(call, message):
                self._has_submitted = True
                if call.is_open:
                    self.count_held(call)
                return True
        except CallError as error:
            call.end(error.status, error.message)
            return True
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller hears of it
            _LOG.exception("a call of %s to %s failed", self, call.path)
            call.end(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
            return True
        call.untake(message)
        return False

    def _on_data(self, event: DataReceived) -> None:
        if not event.data and not event.is_ended:
            self._count_control()
        call = self.calls.get(event.stream_id)
        if call is None:
            return
        unstarted = self._unstarted.pop(event.stream_id, None) if event.is_ended else None
        if unstarted is not None and call.is_open and self._begin(call, event.data):
            return
        if call.is_open:
            try:
                call.feed(event.data)
            except CallError as error:
                call.end(error.status, error.message)
            self.count_held(call)
        if event.is_ended:
            call.end_input()
        if unstarted is not None and call.is_open:
            self._start(call)

    def count_held(self, call: Call) -> None:
        """The bytes that a call holds of the server's budget have changed."""
        change = call.held - call.counted
        if not change or call.stream_id not in self.calls:
            return
        call.counted += change
        self.held += change
        self._note_held()

    def _note_held(self) -> None:
        """What the connection holds has changed: closes it, or another, if that is too much."""
        if not self._is_gone:
            self._budget.note(self, self.held + self._unsent)

    def call_ended(self, call: Call, status: GrpcStatus) -> None:
        """See `CallChannel`."""
        self.hooks.on_call_end(call.path, status, self.loop.time() - call.began)

    async def _run(self, call: Call, handler: Handler) -> None:
        try:
            await self.turns.take()
            remaining = call.remaining_s()
            if remaining is None:
                await handler(call)
            else:
                async with asyncio.timeout(max(remaining, 0.0)):
                    await handler(call)
            call.end()
        except CallError as error:
            call.end(error.status, error.message)
        except TimeoutError:
            call.end(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller hears of it
            _LOG.exception("a call of %s to %s failed", self, call.path)
            call.end(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
        finally:
            # What it waited for may have been cancelled, and not the call.
            call.end(GrpcStatus.UNAVAILABLE, "the call was given up")
            # A task that was cancelled keeps this frame, and so the call: no ring of the two.
            call.task = None

    def _drop(self, call: Call) -> None:
        if call.is_open:
            self.call_ended(call, GrpcStatus.CANCELLED)
        call.close()
        self._unstarted.pop(call.stream_id, None)
        if self.calls.pop(call.stream_id, None) is not None:
            self.held -= call.counted
            call.counted = 0
            self._note_held()
            self.hooks.on_drop()
        self._ready.pop(call.stream_id, None)
        self._blocked.pop(call.stream_id, None)
        self._headers_sent.discard(call.stream_id)

    # Writing

    def flush_soon(self, call: Call) -> None:
        """A call has something to send."""
        if self._closed or call.stream_id in self._blocked:
            return
        self._ready[call.stream_id] = call
        if not self._holds_output:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._closed or not self.peer_reads:
            return
        until = self.loop.time() + SLICE_S
        self._flushed = 0
        for call in list(self._ready.values()):
            if call.out and self._connection.is_closed_to_data:
                continue
            self._send_call(call, until)
            if not self._may_go_on(until):
                if self._ready:
                    self._schedule_flush()
                break
        self._write_out()

    def _may_go_on(self, until: float) -> bool:
        """Whether more is sent in this turn; writes what has collected, if that is much."""
        collected = self._connection.pending
        if collected >= WRITTEN_AT_ONCE:
            self._flushed += collected
            self._write_out()
        return (
            self.peer_reads
            and not self._closed
            and self._flushed < FLUSHED_A_TURN
            and self.loop.time() <= until
        )

    def _send_call(self, call: Call, until: float) -> None:
        """Send the bytes of a call, as many as its windows and the time allow."""
        connection = self._connection
        stream_id = call.stream_id
        self._has_answered = True
        trailers = call.trailers
        if call.out and stream_id not in self._headers_sent:
            if (
                trailers is not None
                and len(call.out) == 1
                and len(call.out[0]) <= WRITTEN_AT_ONCE
                and connection.send_whole(stream_id, _OK, call.out[0], trailers)
            ):
                self._drop(call)
                return
            connection.send_headers(stream_id, _OK)
            self._headers_sent.add(stream_id)
        if len(call.out) > 1 and call.out_bytes <= JOINED_MAX:
            # Messages need no frames of their own, and a frame costs both sides.
            joined = b"".join(call.out)
            call.out.clear()
            call.out.append(joined)
        while call.out:
            piece = call.out[0]
            room = min(connection.room(stream_id), WRITTEN_AT_ONCE)
            if room <= 0:
                if not connection.is_closed_to_data:
                    self._blocked[stream_id] = self._ready.pop(stream_id)
                return
            if len(piece) <= room:
                connection.send_data(stream_id, piece)
                call.out.popleft()
                call.out_bytes -= len(piece)
            else:
                # A view: a peer may open its window by a byte at a time.
                piece = memoryview(piece)
                connection.send_data(stream_id, piece[:room])
                call.out[0] = piece[room:]
                call.out_bytes -= room
            self.count_held(call)
            if call.out and not self._may_go_on(until):
                if not self._closed:
                    # Behind those that have waited as long.
                    self._ready[stream_id] = self._ready.pop(stream_id)
                return
        self._ready.pop(stream_id, None)
        if trailers is None:
            return
        block = trailers if stream_id in self._headers_sent else _OK + trailers
        connection.send_headers(stream_id, block, end=True)
        self._drop(call)

    def _on_window(self, stream_id: int) -> None:
        """A stream's window has changed, or that of the connection (0)."""
        call = self._blocked.pop(stream_id, None)
        if call is not None:
            self._ready[stream_id] = call
        if self._ready:
            self._schedule_flush()

    def _write_out(self) -> None:
        data = self._connection.take_output()
        if data:
            self._write(data)
        if self._peer_leaves and not self.calls:
            self.close()

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_active = self.loop.time()
        if self._tls is not None:
            self._tls.send(data)
            self._write_tls()
        else:
            self._transport.write(data)
            self._count_unsent()

    def _write_tls(self) -> None:
        assert self._tls is not None
        assert self._transport is not None
        outgoing = self._tls.take_outgoing()
        if outgoing:
            self._transport.write(outgoing)
            self._count_unsent()

    def _count_unsent(self) -> None:
        """The bytes that wait in the transport count, too."""
        unsent = self.unsent_bytes
        if unsent != self._unsent:
            self._unsent = unsent
            self._note_held()

    def ping(self) -> None:
        """Ask whether the peer is there."""
        self._write(frame(Kind.PING, 0, 0, bytes(8)))
        self.pinged_at = self.loop.time()

    # Closing

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def measure(self) -> int:
        """Bytes that count in the budget now: of its calls, and those that nobody has taken."""
        self._unsent = self.unsent_bytes
        return self.held + self._unsent

    def drain(self) -> None:
        """Take no more calls; those that run may end."""
        if self._draining or self._closed:
            return
        self._draining = True
        if self._first_bytes is None:
            self._write_out()
            self._write(goaway(self._connection.last_stream_id))

    def close(self) -> None:
        """Send the bytes that wait, then close."""
        if self._closed:
            return
        self._closed = True
        if self._transport is not None:
            if self._tls is not None:
                self._tls.close()
                self._write_tls()
            self._transport.close()

    def abort(self) -> None:
        """Close, drop the bytes that wait to be sent, and end its calls at once."""
        if self._is_gone:
            return
        self._closed = self._is_gone = True
        self._budget.note(self, 0)
        if self._transport is not None:
            self._transport.abort()
        for call in list(self.calls.values()):
            self._drop(call)
