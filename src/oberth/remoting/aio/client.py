"""RemotingClient: a connection to each address, requests and their responses.

RocketMQ: ``NettyRemotingClient``. A connection is opened by the first request to an address and
shared by all that follow; requests that the peer starts are served by the client's processors. A
peer that answers GO_AWAY is asked once more on a new connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oberth.errors import OberthError, RemotingConnectError, RemotingTimeoutError
from oberth.remoting.aio.address import parse_address
from oberth.remoting.aio.channel import Channel, ResponseCallback
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.service import Service
from oberth.remoting.aio.tls import TlsMode, load_client_context
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""How often a client without ``idle_timeout_s`` looks for connections that it has left."""

_PLAIN_REASONS: Final = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")
"""What OpenSSL says of a peer that answered a handshake with something else, or not at all."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects.

    Attributes:
        channel: limits of each connection.
        connect_timeout_s: seconds for a connection to stand, TLS included.
        timeout_s: seconds that a request waits for its response unless the caller says otherwise.
        tls_context: connect with TLS; None: plain text.
    """

    channel: ChannelOptions = field(default_factory=ChannelOptions)
    connect_timeout_s: float = 3.0
    timeout_s: float = 3.0
    tls_context: ssl.SSLContext | None = None


def own_requests(tls_mode: str, trust_cert_path: str) -> ClientOptions:
    """How a server reaches other servers: with TLS if it takes nothing else, or trusts somebody.

    Raises:
        OptionError: see `load_client_context`.
    """
    if tls_mode != TlsMode.ENFORCING.value and not trust_cert_path:
        return ClientOptions()
    return ClientOptions(tls_context=load_client_context(trust_cert_path))


def _why(error: OSError) -> str:
    """Why a connection could not be opened; who takes plain text only closes it without a word."""
    if isinstance(error, ssl.SSLError):
        is_plain = error.reason in _PLAIN_REASONS
    else:
        is_plain = isinstance(error, ConnectionResetError) and not error.errno
    if is_plain:
        return "it did not answer the TLS handshake; does it take plain text only?"
    return str(error) or type(error).__name__


class RemotingClient(Service):
    """Connections by address (``host:port``).

    ``async with RemotingClient() as client: await client.invoke("127.0.0.1:10911", request)``

    Args:
        processors: serves requests that peers start; None: there are none to serve.
        options: how to connect.
        on_close: called with the address and channel of each connection that is gone.
    """

    def __init__(
        self,
        processors: ProcessorTable | None = None,
        options: ClientOptions | None = None,
        *,
        on_close: Callable[[str, Channel], None] | None = None,
    ) -> None:
        self.processors = processors or ProcessorTable()
        self.options = options or ClientOptions()
        self._closed = on_close
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._posting: dict[str, asyncio.Task[None]] = {}
        self._addresses: dict[Channel, str] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # Connections

    def channel_nowait(self, addr: str) -> Channel | None:
        """The open connection to ``addr``, if there is one."""
        channel = self._channels.get(addr)
        return channel if channel is not None and not channel.is_closed else None

    async def channel(self, addr: str) -> Channel:
        """The connection to ``addr``, opened if need be.

        Raises:
            RemotingConnectError: it cannot be opened, or not within ``connect_timeout_s``.
            OptionError: ``addr`` is not ``host:port``.
        """
        channel = self._channels.get(addr)
        if channel is not None and not channel.is_closed:
            return channel
        if self._is_closed:
            raise RemotingConnectError(f"not connected to {addr}: the client is closed")
        connecting = self._connecting.get(addr)
        if connecting is None:
            connecting = asyncio.get_running_loop().create_task(self._connect(addr))
            self._connecting[addr] = connecting
            connecting.add_done_callback(lambda task: self._on_connected(addr, task))
        # Shielded: the others that wait for the same connection are not cancelled with this one.
        return await asyncio.shield(connecting)

    def _on_connected(self, addr: str, task: asyncio.Task[Channel]) -> None:
        self._connecting.pop(addr, None)
        if not task.cancelled():
            task.exception()  # those who waited have seen it; now it counts as retrieved

    async def _connect(self, addr: str) -> Channel:
        host, port = parse_address(addr)
        loop = asyncio.get_running_loop()
        options = self.options
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                _, channel = await loop.create_connection(
                    lambda: Channel(self, options.channel, server_side=False),
                    host,
                    port,
                    ssl=options.tls_context,
                )
        except TimeoutError:
            raise RemotingConnectError(
                f"no connection to {addr} within {options.connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            raise RemotingConnectError(f"no connection to {addr}: {_why(error)}") from error
        if self._is_closed or channel.is_closed:
            channel.abort()
            raise RemotingConnectError(f"connection to {addr} closed at once")
        self._channels[addr] = channel
        self._addresses[channel] = addr
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(self._look_s, self._close_idle)
        return channel

    @property
    def _look_s(self) -> float:
        """How often all connections are looked at."""
        return self.options.channel.idle_timeout_s / 4 or LOOK_S

    def disconnect(self, addr: str) -> None:
        """Close the connection to ``addr``, if there is one."""
        channel = self._channels.get(addr)
        if channel is not None:
            channel.close()

    def on_open(self, channel: Channel) -> None:
        """Called by a channel."""

    def on_requests(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Called by a channel."""
        self.processors.dispatch(channel, requests)

    def on_close(self, channel: Channel, error: Exception | None) -> None:
        """Called by a channel."""
        addr = self._addresses.pop(channel, None)
        if addr is None:
            return
        if error is not None:
            _LOG.info("the connection to %s was lost: %s", addr, error)
        if self._channels.get(addr) is channel:
            del self._channels[addr]
        if self._closed is not None:
            self._closed(addr, channel)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self.options.channel.idle_timeout_s
        oldest = loop.time() - idle_s
        for channel, addr in list(self._addresses.items()):
            is_left = self._channels.get(addr) is not channel
            is_idle = idle_s > 0 and channel.last_active < oldest
            if is_idle or (is_left and not channel.open_request_count):
                channel.close()
        self._idle_timer = loop.call_later(self._look_s, self._close_idle)

    # Requests

    async def invoke(
        self, addr: str, request: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Ask ``addr`` and wait for the response, whatever its code.

        Raises:
            RemotingConnectError, RemotingTimeoutError, RemotingSendRequestError,
            RemotingTooMuchRequestError: see ``Channel.invoke``; the time-out covers connecting.
        """
        if timeout_s is None:
            timeout_s = self.options.timeout_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        channel = self._channels.get(addr)
        if channel is None or channel.is_closed:
            channel = await self._channel_before(addr, deadline, timeout_s)
        response = await channel.invoke_nowait(request, deadline - loop.time())
        if response.code == ResponseCode.GO_AWAY:
            self.leave(addr, channel)
            channel = await self._channel_before(addr, deadline, timeout_s)
            response = await channel.invoke_nowait(request, deadline - loop.time())
        return response

    async def _channel_before(self, addr: str, deadline: float, timeout_s: float) -> Channel:
        try:
            async with asyncio.timeout_at(deadline):
                return await self.channel(addr)
        except TimeoutError as error:
            if isinstance(error, RemotingTimeoutError):
                raise
            raise RemotingTimeoutError(
                f"no connection to {addr} within the request's {timeout_s:g} s"
            ) from None

    def leave(self, addr: str, channel: Channel) -> None:
        """Use ``channel`` no more; what is open on it may still be answered.

        It is closed when nothing is open on it any more: now, or a quarter of ``idle_timeout_s``
        after that at the latest; 30 s where that is 0.
        """
        if self._channels.get(addr) is channel:
            del self._channels[addr]
        if channel.open_request_count == 0:
            channel.close()

    async def invoke_callback(
        self,
        addr: str,
        request: RemotingCommand,
        callback: ResponseCallback,
        timeout_s: float | None = None,
    ) -> None:
        """Connect if need be and send; ``callback(response, error)`` is called once, later.

        Raises:
            RemotingConnectError, RemotingSendRequestError, RemotingTooMuchRequestError: nothing was
                sent and the callback is not called.
        """
        if timeout_s is None:
            timeout_s = self.options.timeout_s
        channel = self.channel_nowait(addr) or await self.channel(addr)
        channel.invoke_callback(request, timeout_s, callback)

    async def invoke_oneway(self, addr: str, request: RemotingCommand) -> None:
        """Send ``request`` and want no response; waits while the peer does not read."""
        channel = self.channel_nowait(addr) or await self.channel(addr)
        await channel.drain()
        channel.invoke_oneway(request)

    def post(self, addr: str, request: RemotingCommand) -> None:
        """Send ``request``, want no response, and wait for nothing.

        For what is said again and again to several peers: one that cannot be reached holds up none
        of the others. The request is dropped if there is no connection, or while an earlier one to
        the same address waits for it.
        """
        if addr in self._posting or self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._post(addr, request))
        self._posting[addr] = task
        task.add_done_callback(lambda _: self._posting.pop(addr, None))

    async def _post(self, addr: str, request: RemotingCommand) -> None:
        try:
            await self.invoke_oneway(addr, request)
        except (OberthError, OSError) as error:
            _LOG.debug("%s: %d not sent: %s", addr, request.code, error)

    async def aclose(self) -> None:
        """Close all connections; open requests fail."""
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for posting in list(self._posting.values()):
            posting.cancel()
        await asyncio.gather(*self._posting.values(), return_exceptions=True)
        for task in list(self._connecting.values()):
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        channels = list(self._addresses)
        for channel in channels:
            channel.close()
        if channels:
            await asyncio.wait(
                [asyncio.ensure_future(channel.wait_closed()) for channel in channels], timeout=3.0
            )
        for channel in list(self._addresses):
            channel.abort()
        await self.processors.aclose()
