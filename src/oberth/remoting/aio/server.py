"""RemotingServer: listens, opens channels, hands their requests to processors, closes them.

RocketMQ: ``NettyRemotingServer``. Plain text and TLS share a port; a PROXY header gives the address
behind it. Closing is opening in reverse: stop accepting, turn requests away, let the stages finish,
send what is waiting, close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Final, Self

from oberth.remoting.aio.address import Address, peer_address
from oberth.remoting.aio.busy_poll import BusyPoll, make_busy_poll
from oberth.remoting.aio.channel import Channel, ChannelOptions, ReadBudget
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.tls import ContextSource, TlsMode
from oberth.remoting.command import RemotingCommand

_LOG: Final = logging.getLogger("oberth.remoting")

BACKLOG: Final = 1024
"""Connections that wait to be accepted. RocketMQ: ``serverSocketBacklog``."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens.

    Attributes:
        host: address to listen on; loopback unless told otherwise.
        port: 0 takes a free one.
        channel: limits of each connection.
        channel_max: connections at a time; more are closed at once.
        unfinished_bytes_max: bytes of frames that have begun and not ended, over all connections;
            the connection that goes beyond is closed.
        tls_context: certificate and key (see ``tls.server_context``); None: TLS is not offered.
        tls_mode: with a context: whether plain text is still accepted.
        grace_s: seconds that requests at work get when the server closes.
        busy_poll_s: seconds for which the loop stays awake behind an answer to a peer that asks
            again at once (see ``busy_poll``); 0: never.
    """

    host: str = "127.0.0.1"
    port: int = 0
    channel: ChannelOptions = field(default_factory=ChannelOptions)
    channel_max: int = 65535
    unfinished_bytes_max: int = 512 * 1024 * 1024
    tls_context: ContextSource | None = None
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    grace_s: float = 5.0
    busy_poll_s: float = 0.0


class RemotingServer:
    """A listening port and its connections.

    ``async with RemotingServer(processors) as server: server.address``

    Args:
        processors: who serves what; shared servers (the fast port) may share stages.
        options: how to listen.
        on_open: called with each new channel.
        on_close: called with each channel that is gone.
        owns_processors: whether closing the server ends the stages too.
    """

    def __init__(
        self,
        processors: ProcessorTable,
        options: ServerOptions | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        owns_processors: bool = True,
    ) -> None:
        self.processors = processors
        self.options = options or ServerOptions()
        self.channels: set[Channel] = set()
        self._budget = ReadBudget(self.options.unfinished_bytes_max)
        self._opened = on_open
        self._closed = on_close
        self._owns_processors = owns_processors
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._busy_poll: BusyPoll | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def address(self) -> Address:
        """Where the server listens."""
        assert self._server is not None, "the server is not started"
        return peer_address(self._server.sockets[0].getsockname())

    async def start(self) -> None:
        """Listen; OSError if the port is taken."""
        options = self.options
        loop = asyncio.get_running_loop()
        self._busy_poll = make_busy_poll(loop, options.busy_poll_s)
        self._server = await loop.create_server(
            self._make_channel, options.host, options.port, backlog=BACKLOG
        )
        idle_s = options.channel.idle_timeout_s
        if idle_s > 0:
            self._idle_timer = loop.call_later(idle_s / 4, self._close_idle)

    def _make_channel(self) -> Channel:
        options = self.options
        return Channel(
            self,
            options.channel,
            server_side=True,
            tls_context=options.tls_context,
            tls_mode=options.tls_mode if options.tls_context is not None else TlsMode.DISABLED,
            budget=self._budget,
        )

    def on_open(self, channel: Channel) -> None:
        """Called by a channel."""
        if len(self.channels) >= self.options.channel_max:
            _LOG.warning(
                "%s: closed, %d connections, allowed %d",
                channel,
                len(self.channels),
                self.options.channel_max,
            )
            channel.abort()
            return
        self.channels.add(channel)
        if self._opened is not None:
            self._opened(channel)

    def on_requests(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Called by a channel."""
        busy_poll = self._busy_poll
        if busy_poll is None:
            self.processors.dispatch(channel, requests)
            return
        came = perf_counter()
        self.processors.dispatch(channel, requests)
        busy_poll.served(channel, len(requests), came)

    def on_close(self, channel: Channel, error: Exception | None) -> None:
        """Called by a channel."""
        if channel not in self.channels:
            return
        self.channels.discard(channel)
        if error is not None:
            _LOG.debug("%s: %s", channel, error)
        if self._closed is not None:
            self._closed(channel)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self.options.channel.idle_timeout_s
        oldest = loop.time() - idle_s
        for channel in [channel for channel in self.channels if channel.last_active < oldest]:
            _LOG.info("%s: closed after %.0f s without traffic", channel, idle_s)
            channel.close()
        self._idle_timer = loop.call_later(idle_s / 4, self._close_idle)

    async def aclose(self) -> None:
        """Stop accepting, finish what is at work, send what is waiting, close all channels."""
        server = self._server
        if server is None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        server.close()
        self.processors.going_away = True
        if self._owns_processors:
            await self.processors.aclose(self.options.grace_s)
        channels = list(self.channels)
        for channel in channels:
            channel.close()
        if channels:
            _, left = await asyncio.wait(
                [asyncio.ensure_future(channel.wait_closed()) for channel in channels],
                timeout=self.options.grace_s,
            )
            for channel in list(self.channels):
                channel.abort()
            if left:
                await asyncio.wait(left)
        await server.wait_closed()
        self._server = None
