"""What servers, clients and brokers have in common: ``async with`` starts them and closes them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from oberth.remoting.aio.address import Address, peer_address

UNREAD_S: Final = 30.0
"""How long who takes nothing may keep a connection open that was closed in order, or that has to
wait for it."""

LOOKED_AT_A_TURN: Final = 500
"""Connections that one turn of the loop looks at, and may close: some 10 ms."""


class Service(ABC):
    """Started by ``start`` or ``async with``, ended by ``aclose`` or the end of the block."""

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

    async def start(self) -> None:  # noqa: B027 - not every service has something to do
        """Get ready."""

    @abstractmethod
    async def aclose(self) -> None:
        """End what was started."""


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a listening port; what was accepted just before gets its protocol first.

    A selector's loop accepts a connection in one turn, makes its transport in the next and tells
    the protocol in the one behind it. Where the server is closed after the first of them, CPython
    3.11 gives the socket up without closing it.
    """
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        with suppress(NotImplementedError):  # a loop without a selector has no such turns
            loop.remove_reader(each.fileno())
    for _ in range(2):
        await asyncio.sleep(0)
    server.close()


class Connected(Protocol):
    """A connection of a listener."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be sent."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""

    def abort(self) -> None:
        """Close at once."""


_C = TypeVar("_C", bound=Connected)


class Listener(Service):
    """A service with a listening port of its own."""

    _server: asyncio.Server | None = None
    _idle_timer: asyncio.Handle | None = None
    _unread: dict[Connected, tuple[int, float]] | None = None
    """Connections that wait for their peers → what their peers have not taken, and since when."""

    @property
    def address(self) -> Address:
        """Where the server listens."""
        assert self._server is not None, "the server is not started"
        return peer_address(self._server.sockets[0].getsockname())

    def _look_at(
        self,
        channels: Collection[_C],
        look: Callable[[_C], None],
        again_s: float,
        waits: Callable[[_C], bool] = lambda each: each.is_closed,
    ) -> None:
        """Look at all connections, LOOKED_AT_A_TURN a turn of the loop, and again later.

        A connection that was closed in order, and waits for ever for a peer that does not read, is
        ended. ``look`` does whatever else there is to do, and closes others.

        Args:
            channels: all connections.
            look: looks at one of them.
            again_s: seconds until all are looked at again.
            waits: whether one sends nothing more until its peer has taken what there is.
        """
        before, self._unread = self._unread or {}, {}
        left = iter(list(channels))

        def look_on() -> None:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            some = list(islice(left, LOOKED_AT_A_TURN))
            for channel in some:
                if channel in channels:  # or it went while others were looked at
                    if waits(channel):
                        self._end_unread(channel, before, now_s)
                    look(channel)
            if some:
                self._idle_timer = loop.call_soon(look_on)
            else:
                self._idle_timer = loop.call_later(again_s, self._close_idle)

        look_on()

    def _end_unread(
        self, channel: Connected, before: dict[Connected, tuple[int, float]], now_s: float
    ) -> None:
        assert self._unread is not None
        size = channel.unsent_bytes
        known, since_s = before.get(channel, (-1, now_s))
        if size != known:
            since_s = now_s
        self._unread[channel] = size, since_s
        if now_s - since_s >= UNREAD_S:
            channel.abort()

    @abstractmethod
    def _close_idle(self) -> None:
        """Look at all connections, and close those that do nothing."""
