"""ChannelOwner: who makes channels, and hears of what happens on them."""

from __future__ import annotations

from typing import Protocol, TypeVar

from oberth.remoting.command import RemotingCommand

_C_contra = TypeVar("_C_contra", contravariant=True)


class ChannelOwner(Protocol[_C_contra]):
    """The server or client that made a channel and is told of its events."""

    def on_open(self, channel: _C_contra) -> None:
        """The connection stands; nothing has been read."""

    def on_requests(self, channel: _C_contra, requests: list[RemotingCommand]) -> None:
        """Requests of one read, in order."""

    def on_close(self, channel: _C_contra, error: Exception | None) -> None:
        """The connection is gone."""
