"""RemotingServer: listens, opens channels, hands their requests to processors, closes them.

RocketMQ: ``NettyRemotingServer``. Plain text and TLS share a port; a PROXY header gives the address
after it. Closing is opening in reverse: stop accepting, turn requests away, let the stages finish,
send what is waiting, close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Protocol

from oberth.remoting.aio import descriptors
from oberth.remoting.aio.busy_poll import BusyPoll, make_busy_poll
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.aio.peer_budget import PeerBudget
from oberth.remoting.aio.processors import SERVER_HEADER_SIZE_MAX, TURN_S, ProcessorTable
from oberth.remoting.aio.service import Listener, stop_accepting
from oberth.remoting.aio.tls import ContextSource, LateContext, TlsMode, server_context
from oberth.remoting.command import Buffer, RemotingCommand
from oberth.remoting.first_bytes import TrustedProxies

_LOG: Final = logging.getLogger(__name__)

LITTLE_SIZE: Final = 1024
"""Bytes that are decoded in the turn that read them, however late it is."""

BACKLOG: Final = 1024
"""Connections that wait to be accepted. RocketMQ: ``serverSocketBacklog``."""

SWITCHES_MIN: Final = 8
"""Reads in a row, each of another connection than the one before, from which on a turn is served
as a whole. Fewer come of one peer with a second connection."""

ALONE_MAX: Final = 64
"""Turns in a row with one connection each after which reads are served at once again."""


class ListenSettings(Protocol):
    """The settings of a port that all servers have under the same names."""

    listen_host: str
    listen_port: int
    server_channel_max_idle_time_s: int
    proxy_protocol_trusted: str
    tls_mode: str
    tls_cert_path: str
    tls_key_path: str


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens.

    Attributes:
        host: address to listen on; loopback unless told otherwise.
        port: 0 takes a free one.
        channel: limits of each connection.
        channel_max: connections at a time; more are closed at once.
        unfinished_bytes_max: bytes of frames that have begun and not ended, and of requests that
            wait to be worked on, over all connections; beyond it, who holds most is closed.
        unsent_bytes_max: bytes of answers that peers have not taken; likewise.
        tls_context: certificate and key (see ``tls.server_context``); None: TLS is not offered.
        tls_mode: with a context: whether plain text is still accepted.
        grace_s: seconds that requests at work get when the server closes.
        busy_poll_s: seconds for which the loop stays awake after an answer to a peer that asks
            again at once (see ``busy_poll``); 0: never.
    """

    host: str = "127.0.0.1"
    port: int = 0
    channel: ChannelOptions = field(default_factory=ChannelOptions)
    channel_max: int = 65535
    unfinished_bytes_max: int = 512 * 1024 * 1024
    unsent_bytes_max: int = 512 * 1024 * 1024
    tls_context: ContextSource | None = None
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    grace_s: float = 5.0
    busy_poll_s: float = 0.0

    @classmethod
    def of(cls, settings: ListenSettings) -> ServerOptions:
        """What the settings of a name server, controller or broker say of its port.

        Raises:
            OptionError: the certificate cannot be used.
        """
        mode = TlsMode(settings.tls_mode)
        return cls(
            host=settings.listen_host,
            port=settings.listen_port,
            channel=ChannelOptions(
                header_size_max=SERVER_HEADER_SIZE_MAX,
                idle_timeout_s=settings.server_channel_max_idle_time_s,
                proxies=TrustedProxies(settings.proxy_protocol_trusted),
            ),
            tls_context=server_context(mode, settings.tls_cert_path, settings.tls_key_path),
            tls_mode=mode,
        )


class DataTaker(Protocol):
    """Serves some requests from the bytes of their frames on, before anything else sees them."""

    def serve(
        self, came: Mapping[Channel, bytes | bytearray]
    ) -> tuple[int, list[tuple[Channel, Buffer]]]:
        """How many requests were served and answered, and what is left of each channel's bytes."""

    def memory(self, size: int) -> bytearray:
        """What a long frame is received into; best not written before."""


class RemotingServer(Listener):
    """A listening port and its connections.

    ``async with RemotingServer(processors) as server: server.address``

    Args:
        processors: who serves what; shared servers (the fast port) may share stages.
        options: how to listen.
        on_open: called with each new channel.
        on_close: called with each channel that is gone.
        owns_processors: whether closing the server ends the stages too.
        data_taker: sees the bytes of all connections first; only where nothing stands before
            the processors that it must not pass by.
        defer: takes out of what a turn has read from several what waits for the next turn.
    """

    def __init__(
        self,
        processors: ProcessorTable,
        options: ServerOptions | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        owns_processors: bool = True,
        data_taker: DataTaker | None = None,
        defer: Callable[[dict[Channel, bytes | bytearray]], dict[Channel, bytes | bytearray]]
        | None = None,
    ) -> None:
        self._data_taker = data_taker
        self._defer = defer
        self.processors = processors
        self.options = options or ServerOptions()
        self.channels: dict[Channel, None] = {}  # in the order of their coming
        self._budget: PeerBudget[Channel] = PeerBudget(
            self.options.unfinished_bytes_max, lambda each: each.received_bytes, "unfinished frames"
        )
        self._unsent_budget: PeerBudget[Channel] = PeerBudget(
            self.options.unsent_bytes_max, lambda each: each.unsent_bytes, "answers nobody takes"
        )
        source = self.options.tls_context
        self._tls_context = LateContext(source) if callable(source) else source
        self._opened = on_open
        self._closed = on_close
        self._owns_processors = owns_processors
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self.busy_poll: BusyPoll | None = None
        """Keeps the loop awake for a lone sender; from `start` on, where that is wanted."""
        # Reads of this turn of the loop that wait to be served together.
        self._turn: dict[Channel, list[RemotingCommand]] = {}
        self._turn_data: dict[Channel, bytes | bytearray] = {}
        self._is_serving_turn = False
        self._gathers = False
        self._last: Channel | None = None
        self._switches = 0
        self._alone = 0

    async def start(self) -> None:
        """Listen; OSError if the port is taken."""
        options = self.options
        loop = asyncio.get_running_loop()
        self._is_closed = False
        self.busy_poll = make_busy_poll(loop, options.busy_poll_s)
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
            tls_context=self._tls_context,
            tls_mode=options.tls_mode if self._tls_context is not None else TlsMode.DISABLED,
            budget=self._budget,
            unsent_budget=self._unsent_budget,
            take_data=None if self._data_taker is None else self._on_data,
            long_memory=None if self._data_taker is None else self._data_taker.memory,
        )

    def on_open(self, channel: Channel) -> None:
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
        why = descriptors.refusal(channel.transport)
        if why is not None:
            _LOG.warning("%s was disconnected: %s", channel, why)
            channel.abort()
            return
        self.channels[channel] = None
        if self._opened is not None:
            self._opened(channel)

    def on_requests(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Called by a channel.

        A peer that is alone is served at once, so that it waits for nobody. While several take
        turns, what one turn of the loop reads from all of them is one burst.
        """
        if self._gathers:
            turn = self._turn
            if not turn and not self._is_serving_turn:
                asyncio.get_running_loop().call_soon(self._serve_turn)
            if channel in turn:
                turn[channel] += requests
            else:
                turn[channel] = requests
            return
        if self._data_taker is None:
            self._note_read(channel)
        busy_poll = self.busy_poll
        if busy_poll is None:
            self.processors.dispatch(channel, requests)
            return
        came = perf_counter()
        self.processors.dispatch(channel, requests)
        busy_poll.served(channel, len(requests), came)

    def _note_read(self, channel: Channel) -> None:
        """A read is served alone; when reads come from several peers, turns are gathered."""
        if channel is self._last:
            self._switches = 0
        else:
            self._last = channel
            self._switches += 1
            if self._switches >= SWITCHES_MIN:
                self._gathers = True
                self._alone = 0

    def _on_data(self, channel: Channel, data: bytes) -> None:
        """Called by a channel where there is a data taker."""
        turn = self._turn_data
        if channel in turn:
            turn[channel] += data
            return
        whole = channel.whole(data)
        if whole is None:
            return
        if self._gathers:
            if not turn:
                asyncio.get_running_loop().call_soon(self._serve_turn)
            turn[channel] = whole
            return
        self._note_read(channel)
        came = perf_counter()
        count, left = self._take({channel: whole})
        for _, rest in left:
            channel.read_left(rest)
        if count and self.busy_poll is not None:
            self.busy_poll.served(channel, count, came)

    def _take(
        self, came: dict[Channel, bytes | bytearray]
    ) -> tuple[int, Iterable[tuple[Channel, Buffer]]]:
        taker = self._data_taker
        assert taker is not None
        processors = self.processors
        if processors.going_away:
            return 0, came.items()
        waits = processors.put_off_of(came)
        if not waits:
            return taker.serve(came)
        behind = [(channel, came.pop(channel)) for channel in waits]
        count, left = taker.serve(came)
        return count, [*left, *behind]

    def _serve_turn(self) -> None:
        data, self._turn_data = self._turn_data, {}
        peers = len(data)
        if data:
            self._is_serving_turn = True
            loop = asyncio.get_running_loop()
            if self._defer is not None and not self.processors.going_away:
                self._turn_data = self._defer(data)
                if self._turn_data:
                    loop.call_soon(self._serve_turn)
            try:
                _, left = self._take(data)
                until = loop.time() + TURN_S
                for channel, rest in left:
                    if len(rest) <= LITTLE_SIZE or loop.time() < until:
                        channel.read_left(rest)
                    else:
                        channel.read_later(rest)
            finally:
                self._is_serving_turn = False
        turn, self._turn = self._turn, {}
        if len(turn) > 1 or peers > 1:
            self._alone = 0
        else:
            self._alone += 1
            if self._alone >= ALONE_MAX:
                self._gathers = False
                self._switches = 0
        if not turn:
            return
        for channel in turn:
            channel.cork()
        try:
            self.processors.dispatch_turn(turn.items())
        finally:
            for channel in turn:
                channel.uncork()

    def on_close(self, channel: Channel, error: Exception | None) -> None:
        """Called by a channel."""
        if channel not in self.channels:
            return
        del self.channels[channel]
        if channel is self._last:
            self._last = None
        if error is not None:
            _LOG.debug("%s: %s", channel, error)
        if self._closed is not None:
            self._closed(channel)

    def _close_idle(self) -> None:
        idle_s = self.options.channel.idle_timeout_s
        oldest = asyncio.get_running_loop().time() - idle_s

        def look(channel: Channel) -> None:
            if channel.last_active < oldest and not channel.is_closed:
                _LOG.info("%s was disconnected after %.0f s without traffic", channel, idle_s)
                channel.close()

        self._look_at(self.channels, look, idle_s / 4)

    async def aclose(self) -> None:
        """Stop accepting, finish what is at work, send what is waiting, close all channels."""
        server = self._server
        if server is None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await stop_accepting(server)
        self._is_closed = True
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
