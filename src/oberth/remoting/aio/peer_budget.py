"""What the connections of a server hold together, and which one is closed when it is too much."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from oberth.remoting.aio.address import Address

_LOG: Final = logging.getLogger(__name__)

NEXT_MAX: Final = 1000
"""Connections that one measure of all finds to be closed next."""


class Peer(Hashable, Protocol):
    """A connection, as a budget knows it."""

    remote: Address

    def abort(self) -> None:
        """Closes it at once; what was to be sent is lost."""


P = TypeVar("P", bound=Peer)


class _Next(NamedTuple, Generic[P]):
    """Who is to be closed, and what was found when all were measured."""

    channel: P
    size: int
    host_size: int
    host_count: int


class PeerBudget(Generic[P]):
    """Bytes that all connections of a server may make it hold together.

    Without it, peers that begin long frames and never end them, or ask and do not read, would be
    limited only by the number of connections. When it is used up, the peer that holds most is
    closed, not the one that came last: of the address with the most bytes, the connection with the
    most.

    To measure all of them takes long where there are very many. So it finds out who is to be closed
    until an eighth of the limit is free, and they are closed one by one, as more is held than is
    allowed: all are measured again only when an eighth has come, or all of those are closed or
    hold less than half of what they did.

    Args:
        limit: bytes.
        measure: what a connection holds now. What it last told may be out of date: nobody says
            when the system has taken bytes that were to be sent.
        what: what the bytes are, for the log.
    """

    __slots__ = ("_held", "_low", "_measure", "_next", "_what", "limit", "used")

    def __init__(self, limit: int, measure: Callable[[P], int], what: str) -> None:
        self.limit = limit
        self.used = 0
        self._low = limit - limit // 8
        self._next: deque[_Next[P]] = deque()
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
        elif self._next and self.used <= self._low:
            self._next.clear()  # or it would keep connections that are gone

    def _reduce(self) -> None:
        while self.used > self.limit:
            if not self._next:
                self._measure_all()
                continue
            each = self._next.popleft()
            channel = each.channel
            known = self._held.pop(channel, 0)
            size = self._measure(channel) if known else 0
            self.used -= known
            if size * 2 < each.size:  # it has sent or taken most of it, or is gone
                if size:
                    self._held[channel] = size
                    self.used += size
                continue
            _LOG.warning(
                "%s: closed: %s of all connections are %d bytes, allowed %d; it has most of its "
                "address: %d, which has most of all: %d on %d connections",
                channel,
                self._what,
                self.used + known,
                self.limit,
                size,
                each.host_size,
                each.host_count,
            )
            channel.abort()

    def _measure_all(self) -> None:
        """Look at what each connection holds, and who is to be closed until an eighth is free."""
        held = self._held
        by_host: dict[str, dict[P, int]] = {}
        for channel in list(held):
            size = held[channel] = self._measure(channel)
            if size:
                by_host.setdefault(channel.remote.host, {})[channel] = size
            else:
                del held[channel]
        self.used = used = sum(held.values())
        hosts = [(-sum(sizes.values()), host) for host, sizes in by_host.items()]
        heapify(hosts)
        smallest_first: dict[str, list[P]] = {}
        self._next.clear()
        while used > self._low and len(self._next) < NEXT_MAX:
            host_size, host = hosts[0]
            sizes = by_host[host]
            if host not in smallest_first:
                smallest_first[host] = sorted(sizes, key=sizes.__getitem__)
            channels = smallest_first[host]
            channel = channels.pop()
            size = sizes[channel]
            self._next.append(_Next(channel, size, -host_size, len(channels) + 1))
            used -= size
            if channels:
                heapreplace(hosts, (host_size + size, host))
            else:
                heappop(hosts)
