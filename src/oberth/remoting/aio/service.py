"""What servers, clients and brokers have in common: ``async with`` starts them and closes them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Protocol, Self

from oberth.remoting.aio.address import Address, peer_address

UNREAD_S: Final = 30.0
"""How long who takes nothing may keep a connection open that was closed in order."""


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


class Listener(Service):
    """A service with a listening port of its own."""

    _server: asyncio.Server | None = None
    _unread: dict[Connected, tuple[int, float]] | None = None
    """Connections that are closed → what their peers have not taken, and since when."""

    @property
    def address(self) -> Address:
        """Where the server listens."""
        assert self._server is not None, "the server is not started"
        return peer_address(self._server.sockets[0].getsockname())

    def _abort_unread(self, channels: Iterable[Connected]) -> None:
        """End what was closed in order, and waits for ever for peers that do not read.

        Called every few seconds with all connections.
        """
        before, self._unread = self._unread or {}, {}
        now_s = asyncio.get_running_loop().time()
        for channel in channels:
            if channel.is_closed:
                size = channel.unsent_bytes
                known, since_s = before.get(channel, (-1, now_s))
                self._unread[channel] = size, since_s if size == known else now_s
        for channel, (_, since_s) in self._unread.items():
            if now_s - since_s >= UNREAD_S:
                channel.abort()
