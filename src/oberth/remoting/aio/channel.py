"""Channel: one connection, requests in both directions. RocketMQ: Netty's ``Channel``.

Lifecycle: made by a server or client, opened by the loop, closed by either side or by silence;
after ``on_close`` nothing is called any more. All methods belong to the loop's thread, except those
whose name ends in ``_threadsafe``.

One read of the socket brings a burst of commands. They are handed on together, and what is sent
while the burst is worked on goes out in one write; so does what is sent in one turn of the loop.
Longer than 64 KiB it may go in several.

Back pressure: while the peer does not read our answers, or has too many requests in work, the
channel stops reading.

Not promised: that a sent command arrives. Only a response proves it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from oberth.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RemotingSendRequestError,
    RemotingTimeoutError,
)
from oberth.remoting.aio.address import Address, peer_address
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.aio.channel_owner import ChannelOwner
from oberth.remoting.aio.descriptors import unread_bytes
from oberth.remoting.aio.drained import Drained
from oberth.remoting.aio.long_reader import LongReader
from oberth.remoting.aio.peer_budget import PeerBudget
from oberth.remoting.aio.tls import LateContext, ServerTls, TlsMode
from oberth.remoting.code import ANNOUNCED_LANGUAGE, ANNOUNCED_VERSION, ResponseCode
from oberth.remoting.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Buffer,
    RemotingCommand,
    create_response,
)
from oberth.remoting.connection import FRAMES_A_TURN, RemotingConnection
from oberth.remoting.first_bytes import PROXY_OPTION, detect, parse_proxy_header
from oberth.remoting.first_bytes import Protocol as FirstProtocol
from oberth.remoting.open_requests import OpenRequest, OpenRequests
from oberth.remoting.rendered import FixedResponse

_LOG: Final = logging.getLogger(__name__)

_PLAIN: Final = FixedResponse()
_PLAIN_WITH_FIELDS: Final = FixedResponse({})

JOIN_SIZE_MAX: Final = 128 * 1024
"""Bytes up to which the pieces of a write are joined; above, they are handed over as they are."""

WRITTEN_FIRST: Final = 64 * 1024
"""Bytes of answers from which on they are written before it is asked if the peer takes more."""

REST_OPEN_MIN: Final = 256
"""Open requests from which on a channel may rest between two reads; see ``read_rest_s``."""

REST_BURST_MAX: Final = 16
"""Commands of one read from which on it does not: the peer's answers come in bursts anyway."""

HELD_UP_S: Final = 0.25
"""A time-out that is looked at so much too late: the loop was held up, and with it the answers."""

UNREAD_S_MAX: Final = 10.0
"""How long a request may outlast its time while what had come by then is being read."""

TIMER_GRAIN_S: Final = 0.01
"""Time-outs of requests are looked at no more often than this."""


ResponseCallback = Callable[[RemotingCommand | None, Exception | None], None]
TakeStored = Callable[[int, int, int, str], bool]
"""Takes the answer to a send by its opaque number: the message's offset in its queue, that in the
log, and its UNIQ_KEY; False: a frame has to be sent."""


class Channel(asyncio.Protocol):
    """One connection.

    Attributes:
        remote: address of the peer; behind a proxy that says so, of the client.
        local: our end, the address that the peer dialled.
        context: for the owner: whatever belongs to this peer.
        last_active: loop time of the last byte read or written.
        last_received: loop time of the last byte read.
        in_work: requests handed to stages and not finished (kept by the dispatcher).
        in_work_bytes: bytes that they take, see `waiting_size`.
        is_tls: whether the connection is encrypted.
        take_stored: for what stands where a channel stands and reads no frames; else None.
    """

    take_stored: TakeStored | None = None

    def __init__(
        self,
        owner: ChannelOwner[Channel],
        options: ChannelOptions,
        *,
        server_side: bool,
        tls_context: ssl.SSLContext | LateContext | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        budget: PeerBudget[Channel] | None = None,
        unsent_budget: PeerBudget[Channel] | None = None,
        take_data: Callable[[Channel, bytes], None] | None = None,
        long_memory: Callable[[int], bytearray] | None = None,
    ) -> None:
        self._owner = owner
        self._take_data = take_data
        self._long_memory = long_memory
        self._budget = budget
        self._unsent_budget = unsent_budget
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._connection = RemotingConnection(
            frame_size_max=options.frame_size_max,
            header_size_max=options.header_size_max,
            frames_a_turn=FRAMES_A_TURN,
        )
        self._transport: asyncio.Transport | None = None
        self._first_bytes: bytes | None = b"" if server_side else None
        self._proxied = False
        self._tls_context = tls_context
        self._tls_mode = tls_mode
        self._tls: ServerTls | None = None
        self._awaits_context = False
        self._out: list[Buffer] = []
        self._out_known = (0, 0)  # how many pieces of `_out` were counted, and their bytes
        self._corked = False
        self._flush_scheduled = False
        self._unflushed_since = 0.0
        self._unread: int | None = None
        self._unread_until = 0.0
        self._write_paused = False
        self._has_unsent = False
        self._has_rest = False  # whether a turn is due that encrypts more of what waits
        self._read_paused = False
        self._resting = False
        self._held = 0  # how many have put off what was read
        self._goes_on = False  # whether a turn is due for frames that are not decoded yet
        self._rest_s = options.read_rest_s
        self._drained = Drained()
        self._closed = self._loop.create_future()
        self._closing = False
        self._open_requests: OpenRequests[ResponseCallback] = OpenRequests(options.open_request_max)
        self._timer: asyncio.TimerHandle | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self.remote = Address("", 0)
        self.local = Address("", 0)
        self.context: Any = None
        self.last_active = 0.0
        self.last_received = 0.0
        self.in_work = 0
        self.in_work_bytes = 0
        self.is_tls = False

    def __repr__(self) -> str:
        return f"<Channel {self.local} - {self.remote}{' closed' if self.is_closed else ''}>"

    # Asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # Not isinstance: uvloop's transports are none of asyncio's classes.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(
            self._options.write_high_bytes, self._options.write_low_bytes
        )
        self.remote = peer_address(transport.get_extra_info("peername"))
        self.local = peer_address(transport.get_extra_info("sockname"))
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        self.last_active = self.last_received = self._loop.time()
        self._owner.on_open(self)

    @property
    def transport(self) -> asyncio.Transport:
        """The connection; there is none before `connection_made`."""
        assert self._transport is not None
        return self._transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._closing:
            return
        self.last_active = self.last_received = self._loop.time()
        if self._unread is not None:
            self._unread -= len(data)
        try:
            if self._first_bytes is not None:
                data = self._read_first_bytes(data)
            ended = False
            if self._tls is not None and (data or self._tls.has_more):
                data, ended = self._tls.receive(data)
                self._write_tls()
                if self._tls.has_more:
                    self.hold_reading()
                    self._loop.call_soon(self._go_on_decrypting)
            if data:
                if self._take_data is not None:
                    self._take_data(self, data)
                else:
                    self._read_frames(data)
            if ended:
                self.close()
        except (RemoteProtocolError, ssl.SSLError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Closes: where the next frame starts is not known any more."""
        _LOG.warning("%s was disconnected: %s", self, error)
        # The connection keeps its failure; a traceback would keep what was read, and this channel.
        kept: BaseException | None = error
        while kept is not None:
            kept.__traceback__ = None
            kept = kept.__context__
        self.abort()

    def whole(self, data: bytes) -> bytes | bytearray | None:
        """What came and was kept until now, and ``data``; None if it makes no whole frame yet.

        For an owner that takes the data itself: it gives back to `read_left` what it leaves.
        """
        whole = self._connection.whole(data)
        if whole is None and self._budget is not None and not self._closing:
            self._budget.note(self, self.received_bytes)
        return whole

    def read_left(self, data: Buffer) -> None:
        """Hand on the commands in bytes that an owner took and did not serve."""
        try:
            self._read_frames(data)
        except RemoteProtocolError as error:
            self._fail(error)

    def read_later(self, data: Buffer) -> None:
        """Keep bytes that an owner took and did not serve, for a further turn of the loop."""
        self._connection.keep(data)
        self._update_reading()

    def _go_on_decrypting(self) -> None:
        """Read more of the TLS records that came: a read may hold eleven thousand."""
        self.data_received(b"")
        self.resume_reading()

    def _go_on_reading(self) -> None:
        """Decode more of what came: a read may hold tens of thousands of frames."""
        self._goes_on = False
        if self._closing or not self._connection.has_more or self._must_wait():
            return  # whoever ends that calls `_update_reading`
        self.read_left(b"")  # an owner that takes data has left it
        self._update_reading()

    def _read_frames(self, data: Buffer) -> None:
        commands = self._connection.receive_data(data)
        if commands:
            self._corked = True
            try:
                requests = [command for command in commands if not command.is_response]
                if len(requests) != len(commands):
                    for command in commands:
                        if command.is_response:
                            self._on_response(command)
                if requests:
                    self._owner.on_requests(self, requests)
            finally:
                self._corked = False
                self._flush()
            if (
                self._rest_s
                and len(commands) < REST_BURST_MAX
                and len(self._open_requests) >= REST_OPEN_MIN
            ):
                self.rest(self._rest_s)
        if self._connection.failure is not None:
            raise self._connection.failure
        if self._connection.has_more:
            self._update_reading()
        if self._budget is not None and not self._closing:
            self._budget.note(self, self.received_bytes)
        if self._long_memory is not None and self._connection.pending_size:
            self._read_long()  # not while there is more: then the next frame's size is not known

    @property
    def received_bytes(self) -> int:
        """Bytes that the peer has sent and that are kept for it: a frame's beginning, requests."""
        return self._connection.pending_size + self.in_work_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet; after `close` they are waited for, too."""
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return size + sum(map(len, self._out)) if self._has_rest else size

    # Long frames

    def _read_long(self) -> None:
        """The rest of a long frame comes straight into its place, without a copy of each read."""
        if (
            self._long_memory is not None
            and self._tls is None
            and not self._closing
            and not self.transport.is_closing()
            and self._connection.begin_long(self._long_memory)
        ):
            self._change_reader(LongReader(self))

    def _change_reader(self, reader: asyncio.BaseProtocol) -> None:
        # The loop looks at its protocol when it begins to read.
        transport = self.transport
        if not self._read_paused:
            transport.pause_reading()
        transport.set_protocol(reader)
        if not self._read_paused:
            transport.resume_reading()

    def long_room(self) -> memoryview:
        """Where the next bytes of a long frame go."""
        return self._connection.room()

    def long_received(self, count: int) -> None:
        """So many bytes came there."""
        if self._closing:
            return
        self.last_active = self.last_received = self._loop.time()
        if self._unread is not None:
            self._unread -= count
        if self._connection.received(count):
            if not self.transport.is_closing():
                self._change_reader(self)
            assert self._take_data is not None
            self._take_data(self, b"")
        elif self._budget is not None:
            self._budget.note(self, self.received_bytes)

    def eof_received(self) -> bool:
        """Called by the loop: the peer sends no more, so nobody waits for our answers."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._closing = True
        self._out.clear()
        if self._budget is not None:
            self._budget.note(self, 0)
        if self._unsent_budget is not None:
            self._unsent_budget.note(self, 0)
        for timer in (self._timer, self._handshake_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._handshake_timer = None
        self._tls = None
        if not self._closed.done():
            self._closed.set_result(None)
        self._drained.tell()
        for request in self._open_requests.take_all():
            self._call_back(
                request,
                None,
                RemotingSendRequestError(
                    f"connection to {self.remote} closed before the response to code {request.code}"
                ),
            )
        self._owner.on_close(self, exc)

    def pause_writing(self) -> None:
        """Called by the transport: the peer does not read."""
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Called by the transport: the peer reads again."""
        self._write_paused = False
        if not self._has_rest:
            self._drained.tell()  # what waits for that comes before what is read now
        self._update_reading()

    # Reading

    def _read_first_bytes(self, data: bytes) -> bytes:
        """What follows a PROXY header; empty while it is not decided what the peer speaks."""
        assert self._first_bytes is not None
        data = self._first_bytes + data
        protocol = detect(data)
        if protocol is FirstProtocol.PROXY and not self._proxied:
            if self.remote.host not in self._options.proxies:
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
            data = data[header.size :]
            protocol = detect(data)
        if protocol is FirstProtocol.UNDECIDED:
            self._first_bytes = data
            return b""
        self._first_bytes = None
        if protocol is FirstProtocol.TLS:
            context = self._tls_context if self._tls_mode is not TlsMode.DISABLED else None
            if isinstance(context, LateContext):
                self._first_bytes = data
                if not self._awaits_context:
                    self._awaits_context = True
                    self.hold_reading()
                    context.on_made(self._on_context)
                return b""
            if context is None:
                raise RemoteProtocolError(
                    "the peer begins TLS, this server has no certificate and takes plain text"
                )
            self._tls = ServerTls(context)
            self.is_tls = True
            self._handshake_timer = self._loop.call_later(
                self._options.handshake_timeout_s, self._end_handshake
            )
        elif self._tls_mode is TlsMode.ENFORCING:
            raise RemoteProtocolError("the peer sends plain text, but this server takes TLS only")
        return data

    def _on_context(self, context: ssl.SSLContext | None, error: BaseException | None) -> None:
        """The context for a handshake that has begun is there, or why it is not."""
        self._awaits_context = False
        if self._closing:
            return
        if error is not None:
            self._fail(RemoteProtocolError(f"a TLS handshake, and no certificate here: {error}"))
            return
        self._tls_context = context
        self.data_received(b"")
        self.resume_reading()

    def _end_handshake(self) -> None:
        if self._tls is not None and not self._tls.is_shaken and not self._closing:
            seconds = self._options.handshake_timeout_s
            _LOG.warning(
                "%s was disconnected: its TLS handshake did not end within %.0f s", self, seconds
            )
            self.abort()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        must_wait, has_more = self._must_wait(), self._connection.has_more
        if has_more and not must_wait and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on_reading)
        stop = must_wait or has_more
        if stop and not self._read_paused:
            self._read_paused = True
            transport.pause_reading()
        elif self._read_paused and not stop:
            self._read_paused = False
            transport.resume_reading()

    def _must_wait(self) -> bool:
        """Whether what has come is enough for now."""
        options = self._options
        return bool(
            self._write_paused
            or self._has_rest
            or self._resting
            or self._held
            or self.in_work > options.in_work_max
            or self.in_work_bytes > options.in_work_bytes_max
        )

    def rest(self, seconds: float) -> None:
        """Read no more for a while; a rest that has begun is not made longer."""
        if not self._resting and not self._closing:
            self._resting = True
            self._update_reading()
            self._loop.call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        self._update_reading()

    def hold_reading(self) -> None:
        """Read no more until each has said `resume_reading`: what was read is not served yet."""
        self._held += 1
        self._update_reading()

    def resume_reading(self) -> None:
        """All that one of them put off is served."""
        self._held -= 1
        self._update_reading()

    def work_started(self, size: int) -> None:
        """A request of so many bytes was queued; stops reading when there is too much."""
        self.in_work += 1
        self.in_work_bytes += size
        if self._budget is not None and not self._closing:
            self._budget.note(self, self.received_bytes)
        options = self._options
        if self.in_work > options.in_work_max or self.in_work_bytes > options.in_work_bytes_max:
            self._update_reading()

    def work_finished(self, size: int) -> None:
        """A queued request is done, whether or not it was answered."""
        self.in_work -= 1
        self.in_work_bytes -= size
        if self._budget is not None and not self._closing:
            self._budget.note(self, self.received_bytes)
        options = self._options
        if (
            self._read_paused
            and self.in_work * 2 <= options.in_work_max
            and self.in_work_bytes * 2 <= options.in_work_bytes_max
        ):
            self._update_reading()

    # Writing

    def send(self, command: RemotingCommand) -> None:
        """Write ``command`` with what else is sent in this turn of the loop.

        Raises:
            LocalProtocolError: it cannot be encoded.
        """
        if self._closing:
            return
        self._out += self._connection.send(command)
        if not self._corked and not self._flush_scheduled:
            self._flush_soon()

    def send_frame(self, frame: Buffer) -> None:
        """Write a frame that is already encoded (see ``remoting.rendered``)."""
        if self._closing:
            return
        self._out.append(frame)
        if not self._corked and not self._flush_scheduled:
            self._flush_soon()

    def send_frames(self, frames: Sequence[Buffer]) -> None:
        """Write several encoded frames, or the pieces of some, in order."""
        if self._closing:
            return
        self._out += frames
        if not self._corked and not self._flush_scheduled:
            self._flush_soon()

    def write_frames(self, frames: bytes) -> None:
        """Write encoded frames now, after what waits to be sent."""
        if self._closing:
            return
        if self._out or self._tls is not None:
            self._out.append(frames)
            self._flush()
            return
        transport = self._transport
        assert transport is not None
        transport.write(frames)  # not `last_active`: it answers what has just been read
        if self._has_unsent or transport.get_write_buffer_size():
            self._note_unsent()

    def _note_unsent(self) -> None:
        """Counts what waits for the peer."""
        if self._unsent_budget is not None:
            unsent = self.unsent_bytes
            self._has_unsent = unsent > 0
            self._unsent_budget.note(self, unsent)

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send ``response`` with the number of ``request``; a one-way request gets none."""
        if request.is_oneway:
            return
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        if (
            not response.code
            and not response.ext_fields
            and response.remark is None
            and response.body == b""
            and response.flag == RESPONSE_FLAG
            and response.serialize_type == 0
            and response.language == ANNOUNCED_LANGUAGE
            and response.version == ANNOUNCED_VERSION
        ):
            # As acknowledgements and commits of offsets are answered.
            plain = _PLAIN if response.ext_fields is None else _PLAIN_WITH_FIELDS
            self.send_frame(plain.render(response.opaque))
            return
        try:
            self.send(response)
        except LocalProtocolError as error:
            _LOG.warning(
                "%s: the answer to its request of code %d cannot be sent and was replaced: %s",
                self,
                request.code,
                error,
            )
            self.send(create_response(request, ResponseCode.SYSTEM_ERROR, str(error)))

    def cork(self) -> None:
        """Keep what is sent from here on for one write at `uncork`."""
        self._corked = True

    def uncork(self) -> None:
        """Write what was sent since `cork`."""
        self._corked = False
        self._flush()

    def _flush_soon(self) -> None:
        self._flush_scheduled = True
        self._unflushed_since = self._loop.time()
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        was_scheduled, self._flush_scheduled = self._flush_scheduled, False
        out = self._out
        if not out or self._closing or self._has_rest:
            return
        self._out, self._out_known = [], (0, 0)
        transport = self._transport
        assert transport is not None
        now = self.last_active = self._loop.time()
        if was_scheduled and now - self._unflushed_since > HELD_UP_S:
            # The loop was held up: what was asked meanwhile leaves only now.
            self._open_requests.start_anew(self._unflushed_since, now)
        if self._tls is not None:
            self._encrypt(out)
        elif len(out) == 1:
            transport.write(out[0])
        elif sum(map(len, out)) <= JOIN_SIZE_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        self._note_unsent()

    def _encrypt(self, out: list[Buffer]) -> None:
        """Write some of what waits, and the rest in further turns: 16 MiB take some 40 ms."""
        assert self._tls is not None
        self._out = self._tls.send_some(out)
        self._write_tls()
        if self._out:
            self._loop.call_soon(self._encrypt_rest)
            if not self._has_rest:
                self._has_rest = True
                self._update_reading()

    def _encrypt_rest(self) -> None:
        if self._tls is None or self.transport.is_closing():
            return
        self._encrypt(self._out)
        self._note_unsent()
        if self._out or self.transport.is_closing():
            return
        self._has_rest = False
        if self._closing:
            self._close_transport()
            return
        if not self._write_paused:
            self._drained.tell()
        self._update_reading()

    def _write_tls(self) -> None:
        assert self._tls is not None
        assert self._transport is not None
        outgoing = self._tls.take_outgoing()
        if outgoing:
            self._transport.write(outgoing)

    async def drain(self) -> None:
        """Wait while the peer does not read what we write."""
        if self._write_paused and not self._closing:
            await self._drained.wait()

    def takes_more(self) -> bool:
        """Whether the peer takes answers: what it cannot be sent piles up here.

        Of much that waits it is written first. True when the connection is closed.
        """
        if self._out and not self._has_rest:
            count, size = self._out_known
            size += sum(map(len, self._out[count:]))
            self._out_known = len(self._out), size
            if size >= WRITTEN_FIRST:
                self._flush()
        return self._closing or not (self._write_paused or self._has_rest)

    def when_writable(self, call: Callable[[], None]) -> None:
        """Have it called, in a turn of its own, when the peer takes answers again or is gone."""
        self._drained.call(call)

    # Our requests

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send ``request`` and wait for its response, whatever its code.

        Raises:
            RemotingTimeoutError: no response in ``timeout_s`` seconds.
            RemotingSendRequestError: the connection is closed, or closes before the response.
            RemotingTooMuchRequestError: too many of our requests are open on this connection.
            LocalProtocolError: the request cannot be encoded.
        """
        return await self.invoke_nowait(request, timeout_s)

    def invoke_nowait(
        self, request: RemotingCommand, timeout_s: float
    ) -> asyncio.Future[RemotingCommand]:
        """Send ``request``; the future gives its response or the errors of ``invoke``."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()

        def finish(response: RemotingCommand | None, error: Exception | None) -> None:
            if future.done():
                return
            if response is not None:
                future.set_result(response)
            else:
                assert error is not None
                future.set_exception(error)

        self.invoke_callback(request, timeout_s, finish)
        return future

    def invoke_callback(
        self, request: RemotingCommand, timeout_s: float, callback: ResponseCallback
    ) -> None:
        """Send ``request``; ``callback(response, error)`` is called once, one of the two is None.

        Raises:
            RemotingSendRequestError: the connection is closed.
            RemotingTooMuchRequestError: too many of our requests are open on this connection.
            LocalProtocolError: the request cannot be encoded.
        """
        self._assert_open(request)
        open_requests = self._open_requests
        if len(open_requests) >= open_requests.count_max:
            open_requests.check_room(str(self.remote))
        request.opaque = opaque = open_requests.next_opaque()
        self.send(request)
        self._expect(request.code, opaque, timeout_s, callback)

    def give_opaque(self) -> int:
        """The number of the next request, for ``invoke_frame``."""
        return self._open_requests.next_opaque()

    def invoke_frame(
        self, code: int, opaque: int, frame: Buffer, timeout_s: float, callback: ResponseCallback
    ) -> None:
        """``invoke_callback`` for a request that is encoded already, with a number from here.

        Raises:
            RemotingSendRequestError, RemotingTooMuchRequestError: see ``invoke_callback``.
        """
        if self._closing or self._transport is None:
            raise RemotingSendRequestError(
                f"connection to {self.remote} is closed, code {code} not sent"
            )
        open_requests = self._open_requests
        if len(open_requests) >= open_requests.count_max:
            open_requests.check_room(str(self.remote))
        self.send_frame(frame)
        self._expect(code, opaque, timeout_s, callback)

    def _expect(self, code: int, opaque: int, timeout_s: float, callback: ResponseCallback) -> None:
        now = self._loop.time()
        deadline = now + timeout_s
        self._open_requests.open(opaque, code, now, deadline, callback)
        timer = self._timer
        if timer is None or deadline < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(deadline, self._expire_requests)

    def invoke_oneway(self, request: RemotingCommand) -> None:
        """Send ``request`` and want no response.

        Raises:
            RemotingSendRequestError: the connection is closed.
            LocalProtocolError: the request cannot be encoded.
        """
        self._assert_open(request)
        request.opaque = self._open_requests.next_opaque()
        request.flag |= ONEWAY_FLAG
        self.send(request)

    def _assert_open(self, request: RemotingCommand) -> None:
        if self._closing or self._transport is None:
            raise RemotingSendRequestError(
                f"connection to {self.remote} is closed, code {request.code} not sent"
            )

    def _on_response(self, response: RemotingCommand) -> None:
        request = self._open_requests.answered(response.opaque)
        if request is None:
            _LOG.debug("%s: response to %d, which nobody waits for", self, response.opaque)
        else:
            self._call_back(request, response, None)

    def _call_back(
        self,
        request: OpenRequest[ResponseCallback],
        response: RemotingCommand | None,
        error: Exception | None,
    ) -> None:
        try:
            request.token(response, error)
        except Exception:  # noqa: BLE001 - one caller's bug must not cost the others their responses
            _LOG.exception(
                "%s: what was to follow the answer to code %d failed", self, request.code
            )

    def _expire_requests(self) -> None:
        now = self._loop.time()
        timer, self._timer = self._timer, None
        if timer is not None and now - timer.when() > HELD_UP_S:
            self._open_requests.extend(now)
        if self._has_unread(now):
            self._timer = self._loop.call_at(now + TIMER_GRAIN_S, self._expire_requests)
            return
        for request in self._open_requests.expire(now):
            waited_ms = round((now - request.started) * 1000)
            held = "; meanwhile something in this process held the event loop up"
            error = RemotingTimeoutError(
                f"no response from {self.remote} to code {request.code} within {waited_ms} ms"
                f"{held if request.was_held else ''}"
            )
            self._call_back(request, None, error)
        soonest = self._open_requests.next_deadline()
        if soonest is not None and self._timer is None:
            self._timer = self._loop.call_at(
                max(soonest, now + TIMER_GRAIN_S), self._expire_requests
            )

    # Closing

    def _has_unread(self, now: float) -> bool:
        """Whether answers may lie in the socket that came before the time was over."""
        if self._unread is None:
            self._unread = unread_bytes(self._transport)
            self._unread_until = now + UNREAD_S_MAX
        if self._unread > 0 and now < self._unread_until:
            return True
        self._unread = None
        return False

    @property
    def is_closed(self) -> bool:
        """True when nothing can be sent any more."""
        return self._closing

    @property
    def hears(self) -> bool:
        """Whether requests to the peer reach it."""
        return not self._closing

    def awaits(self, opaque: int) -> bool:
        """Whether the peer still waits for the answer to a request; remoting has no word for no."""
        del opaque
        return not self._closing

    def unanswered(self, opaque: int) -> None:
        """Nothing to do: peers bound the time of their requests themselves."""

    @property
    def open_request_count(self) -> int:
        """Our requests that wait for a response."""
        return len(self._open_requests)

    def close(self) -> None:
        """Send what is waiting, then close; returns at once."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        if self._transport is not None and not self._has_rest:
            self._close_transport()

    def _close_transport(self) -> None:
        if self._tls is not None:
            self._tls.close()
            self._write_tls()
        self.transport.close()

    def abort(self) -> None:
        """Close and throw away what is waiting."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._closed)
