"""What servers, clients and brokers have in common: ``async with`` starts them and closes them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from oberth.remoting.aio.address import Address, peer_address


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


class Listener(Service):
    """A service with a listening port of its own."""

    _server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        """Where the server listens."""
        assert self._server is not None, "the server is not started"
        return peer_address(self._server.sockets[0].getsockname())
