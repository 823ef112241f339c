"""What the connections of a server hold together, and which one is closed when it is too much."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from oberth.remoting.aio.address import Address

_LOG: Final = logging.getLogger(__name__)


class Peer(Hashable, Protocol):
    """A connection, as a budget knows it."""

    remote: Address

    def abort(self) -> None:
        """Closes it at once; what was to be sent is lost."""


P = TypeVar("P", bound=Peer)


class PeerBudget(Generic[P]):
    """Bytes that all connections of a server may make it hold together.

    Without it, peers that begin long frames and never end them, or ask and do not read, would be
    limited only by the number of connections. When it is used up, the peer that holds most is
    closed, not the one that came last: of the address with the most bytes, the connection with the
    most.

    Args:
        limit: bytes.
        measure: what a connection holds now. What it last told may be out of date: nobody says
            when the system has taken bytes that were to be sent.
        what: what the bytes are, for the log.
    """

    __slots__ = ("_held", "_measure", "_what", "limit", "used")

    def __init__(self, limit: int, measure: Callable[[P], int], what: str) -> None:
        self.limit = limit
        self.used = 0
        self._held: dict[P, int] = {}
        self._measure = measure
        self._what = what

    def note(self, channel: P, size: int) -> None:
        """A connection holds so much now; closes others, or itself, if that is too much."""
        before = self._held.get(channel, 0)
        if size == before:
            return
        if size:
            self._held[channel] = size
        else:
            del self._held[channel]
        self.used += size - before
        if self.used > self.limit:
            self._reduce()

    def _reduce(self) -> None:
        held = self._held
        by_host: dict[str, dict[P, int]] = {}
        for channel in list(held):
            size = held[channel] = self._measure(channel)
            if size:
                by_host.setdefault(channel.remote.host, {})[channel] = size
            else:
                del held[channel]
        self.used = sum(held.values())
        while self.used > self.limit:
            # Of many connections that hold the same, one pass closes as many as it must.
            host = max(by_host, key=lambda each: sum(by_host[each].values()))
            channels = by_host[host]
            channel = max(channels, key=channels.__getitem__)
            _LOG.warning(
                "%s: closed: %s of all connections are %d bytes, allowed %d; it has most of its "
                "address: %d, which has most of all: %d on %d connections",
                channel,
                self._what,
                self.used,
                self.limit,
                channels[channel],
                sum(channels.values()),
                len(channels),
            )
            self.used -= held.pop(channel)
            del channels[channel]
            if not channels:
                del by_host[host]
            channel.abort()
