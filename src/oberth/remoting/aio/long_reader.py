"""Reads the rest of a long frame straight into the memory that it is to lie in."""

from __future__ import annotations

import asyncio
from typing import Protocol


class LongTaker(Protocol):
    """A channel, as the reader of a long frame knows it."""

    def long_room(self) -> memoryview:
        """Where the next bytes of the frame go."""

    def long_received(self, count: int) -> None:
        """So many bytes have come there."""

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`."""

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""


class LongReader(asyncio.BufferedProtocol):
    """Reads the rest of one long frame for a channel."""

    __slots__ = ("_channel",)

    def __init__(self, channel: LongTaker) -> None:
        self._channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop."""
        del sizehint
        return self._channel.long_room()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop."""
        self._channel.long_received(nbytes)

    def eof_received(self) -> bool:
        """Called by the loop."""
        return self._channel.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._channel.connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the transport."""
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        """Called by the transport."""
        self._channel.resume_writing()
