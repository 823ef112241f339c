"""Drained: who waits until a peer takes what is sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Drained:
    """Those who wait for one peer. All methods belong to the loop's thread."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: asyncio.Future[None] | None = None

    def _next(self) -> asyncio.Future[None]:
        if self._told is None:
            self._told = asyncio.get_running_loop().create_future()
        return self._told

    async def wait(self) -> None:
        """Wait for the next `tell`."""
        await asyncio.shield(self._next())

    def call(self, call: Callable[[], None]) -> None:
        """Have ``call`` called at the next `tell`, in a turn of the loop of its own."""
        self._next().add_done_callback(lambda _: call())

    def tell(self) -> None:
        """The peer takes more, or is gone."""
        told, self._told = self._told, None
        if told is not None:
            told.set_result(None)
