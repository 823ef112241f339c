"""GrpcServer: listens, opens channels, finds the handler of a call, drains at the end.

    async with GrpcServer(table, options) as server: server.address

A handler table maps ``/package.Service/Method`` to a coroutine function that gets the `Call`;
another one names what may serve a call without a task.
Closing is opening in reverse: stop accepting, tell peers to go elsewhere (GOAWAY), let calls end
and their answers leave for ``grace_s``, close, and cut off who does not take the last bytes in as
long again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oberth.proxy.call import Begin, GrpcStatus, Handler
from oberth.proxy.http2 import HANDSHAKE_S, GrpcChannel
from oberth.proxy.turns import Turns
from oberth.remoting.aio import descriptors
from oberth.remoting.aio.busy_poll import BusyPoll, make_busy_poll
from oberth.remoting.aio.peer_budget import PeerBudget
from oberth.remoting.aio.service import Listener, stop_accepting
from oberth.remoting.first_bytes import TrustedProxies

_LOG: Final = logging.getLogger(__name__)

BACKLOG: Final = 1024
METHOD: Final = "grpc"


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How a server listens.

    Attributes:
        host: address to listen on; loopback unless told otherwise.
        port: 0 takes a free one.
        channel_max: connections at a time; more are closed at once.
        held_bytes_max: bytes of unfinished messages and of answers that peers have not taken, over
            all connections; beyond it, of the address that holds most the connection that does is
            closed.
        idle_s: seconds without a call and without a byte after which a connection is closed; with
            calls, seconds without a byte of the peer after which it is pinged.
        handshake_s: seconds that a peer has to begin, however slowly it sends, and to answer a
            ping.
        grace_s: seconds that calls get when the server closes, and then their last bytes.
        tls_context: certificate and key; None: TLS is not offered.
        tls_only: whether plain text is refused.
        proxies: peers whose PROXY headers are believed.
        busy_poll_s: seconds for which the loop stays awake after an answer to a peer that asks
            again at once (see ``busy_poll``); 0: never.
    """

    host: str = "127.0.0.1"
    port: int = 0
    channel_max: int = 20_000
    held_bytes_max: int = 256 * 1024 * 1024
    idle_s: float = 120.0
    handshake_s: float = HANDSHAKE_S
    grace_s: float = 5.0
    tls_context: ssl.SSLContext | None = None
    tls_only: bool = False
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    busy_poll_s: float = 0.0


class GrpcServer(Listener):
    """A listening port, its connections and their calls.

    Args:
        handlers: by path.
        options: how it listens.
        begins: by path, of those calls that may be served without a task.
        read_done: hears of each connection that has begun calls, at the end of the read.

    Attributes:
        channels: that are open.
        calls: how many calls ended, by path and status.
        seconds: how long they took, by path.
        unpacking, turns: see `CallChannel`.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        options: GrpcOptions | None = None,
        *,
        begins: Mapping[str, Begin] | None = None,
        read_done: Callable[[object], None] | None = None,
    ) -> None:
        self.options = options or GrpcOptions()
        self.channels: set[GrpcChannel] = set()
        self.calls: Counter[tuple[str, GrpcStatus]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.unpacking = asyncio.Lock()
        self.turns = Turns()
        self._handlers = dict(handlers)
        self._begins = dict(begins or {})
        self._read_done = read_done
        self._busy_poll: BusyPoll | None = None
        self._changed = asyncio.Event()  # a call or a connection is gone
        self._is_closed = False
        self._budget: PeerBudget[GrpcChannel] = PeerBudget(
            self.options.held_bytes_max, GrpcChannel.measure, "messages and answers"
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._is_closed = False
        self._busy_poll = make_busy_poll(loop, self.options.busy_poll_s)
        self._server = await loop.create_server(
            self._make_channel, self.options.host, self.options.port, backlog=BACKLOG
        )
        self._idle_timer = loop.call_later(self._look_s, self._close_idle)

    @property
    def _look_s(self) -> float:
        """How often connections are looked at."""
        return min(self.options.idle_s, self.options.handshake_s) / 4

    def _make_channel(self) -> GrpcChannel:
        return GrpcChannel(
            self,
            budget=self._budget,
            tls_context=self.options.tls_context,
            tls_only=self.options.tls_only,
            proxies=self.options.proxies,
        )

    # Channels' hooks

    def handler_of(self, path: str) -> Handler | None:
        """Called by a channel."""
        return self._handlers.get(path)

    def begin_of(self, path: str) -> Begin | None:
        """Called by a channel."""
        return self._begins.get(path)

    def read_done(self, channel: GrpcChannel, count: int, came: float) -> None:
        """Called by a channel."""
        if self._read_done is not None:
            self._read_done(channel)
        if self._busy_poll is not None:
            self._busy_poll.served(channel, count, came)

    def on_open(self, channel: GrpcChannel, transport: asyncio.BaseTransport) -> None:
        """Called by a channel."""
        if self._is_closed:  # it was accepted just before
            channel.abort()
            return
        if len(self.channels) >= self.options.channel_max:
            _LOG.warning(
                "%s was disconnected: %d connections are open, at most %d are allowed",
                channel,
                len(self.channels),
                self.options.channel_max,
            )
            channel.abort()
            return
        why = descriptors.refusal(transport)
        if why is not None:
            _LOG.warning("%s was disconnected: %s", channel, why)
            channel.abort()
            return
        self.channels.add(channel)

    def on_close(self, channel: GrpcChannel) -> None:
        """Called by a channel."""
        self.channels.discard(channel)
        self._changed.set()

    def on_drop(self) -> None:
        """Called by a channel."""
        self._changed.set()

    def on_call_end(self, path: str, status: GrpcStatus, seconds: float) -> None:
        """Called by a channel. Paths that nobody serves share one name: peers choose them."""
        known = path if path in self._handlers else "unknown"
        self.calls[known, status] += 1
        self.seconds[known] += seconds  # type: ignore[assignment]

    def _close_idle(self) -> None:
        now_s = asyncio.get_running_loop().time()
        oldest = now_s - self.options.idle_s
        begun_by = now_s - self.options.handshake_s

        def look(channel: GrpcChannel) -> None:
            if not channel.is_begun and channel.made_at < begun_by:
                _LOG.info(
                    "%s was disconnected: it sent nothing of HTTP/2 within %.0f s",
                    channel,
                    self.options.handshake_s,
                )
                channel.abort()
            if channel.calls:
                if channel.last_heard < oldest and channel.peer_reads:
                    self._look_for_life(channel)
            elif channel.last_active < oldest and not channel.is_closed:
                _LOG.info(
                    "%s was disconnected after %.0f s without a call", channel, self.options.idle_s
                )
                channel.drain()
                channel.close()

        self._look_at(
            self.channels, look, self._look_s, lambda each: each.is_closed or not each.peer_reads
        )

    def _look_for_life(self, channel: GrpcChannel) -> None:
        """A host that vanished ends no connection, and its streams would stay open for ever."""
        if channel.pinged_at is None:
            channel.ping()
        elif channel.pinged_at + self.options.handshake_s < channel.loop.time():
            _LOG.info("%s was disconnected: it does not answer a ping", channel)
            channel.abort()

    async def stop_accepting(self) -> None:
        """Close the port; connections and calls go on."""
        if self._server is not None:
            await stop_accepting(self._server)

    def drain(self) -> None:
        """Take no more connections and calls, and tell peers so."""
        self._is_closed = True
        for channel in list(self.channels):
            channel.drain()

    async def aclose(self) -> None:
        """Stop accepting, let calls end, close."""
        server = self._server
        if server is None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self.stop_accepting()
        self.drain()
        grace_s = self.options.grace_s
        if not await self._wait_until(
            lambda: not any(channel.calls for channel in self.channels), grace_s
        ):
            _LOG.info("calls that had not ended after %.1f s were given up", grace_s)
        for channel in self.channels:
            for call in channel.calls.values():
                if call.task is not None:
                    call.task.cancel()
        await asyncio.sleep(0)  # they end in this turn,
        await asyncio.sleep(0)  # and what they say of it leaves in the next
        for channel in list(self.channels):
            channel.close()
        if not await self._wait_until(lambda: not self.channels, grace_s):
            for channel in list(self.channels):
                channel.abort()
            await self._wait_until(lambda: not self.channels, None)
        await server.wait_closed()
        self._server = None

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for calls and connections to go; whether those meant did, in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
