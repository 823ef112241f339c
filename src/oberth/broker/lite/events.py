"""LiteEvents: queues with something to take, each given to one client of a group.

A client pops "whatever there is" in all lite topics that it takes, so the broker keeps a list for
it. A queue is in a list at most once, a list has a limit, and a client that does not come for its
list loses it to the others of its group. What is always true: a queue is given out when a message
arrives, when what blocked it is acknowledged or visible again, and when a client begins to take it;
a list that was full makes a full turn over the client's queues necessary, which is noted down.

A state machine: the time goes in. RocketMQ: LiteEventDispatcher.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

INACTIVE_MS: Final = 10_000
"""A client that leaves its list alone for so long does not get on."""

POLL_MS: Final = 35_000
"""Longer than a poll may take: a client that has not polled since is gone."""

AVOID_MS: Final = 10_000
"""For so long others are preferred to a client that did not come."""

LOW_WATER: Final = 0.2
QUEUES_MAX: Final = 100_000
"""In one client's list, whatever the configuration says."""


class ClientEvents:
    """One client's list."""

    __slots__ = ("access_ms", "group", "queues")

    def __init__(self, group: str, now_ms: int) -> None:
        self.group = group
        # The first is taken out again and again: a plain dict would look over all that are gone.
        self.queues: OrderedDict[str, None] = OrderedDict()
        self.access_ms = now_ms

    def is_stuck(self, now_ms: int) -> bool:
        """Whether the client should have come by now."""
        idle_ms = now_ms - self.access_ms
        return idle_ms > POLL_MS or (bool(self.queues) and idle_ms > INACTIVE_MS)

    def is_low(self, limit: int) -> bool:
        """Whether the list is empty enough for a full turn."""
        return len(self.queues) < limit * LOW_WATER


class LiteEvents:
    """The lists of all clients."""

    def __init__(self) -> None:
        self._clients: dict[str, ClientEvents] = {}
        self._avoided: dict[str, int] = {}  # client → until when
        self._turns: dict[str, tuple[int, str]] = {}  # client or group → when, group

    def __len__(self) -> int:
        """Clients with a list."""
        return len(self._clients)

    def get(self, client_id: str) -> ClientEvents | None:
        """A client's list, if it has one."""
        return self._clients.get(client_id)

    def of_client(self, client_id: str, group: str, now_ms: int) -> ClientEvents:
        """A client's list, made if need be."""
        found = self._clients.get(client_id)
        if found is None:
            found = self._clients[client_id] = ClientEvents(group, now_ms)
        return found

    def offer(self, client_id: str, group: str, queue: str, limit: int, now_ms: int) -> bool:
        """Put a queue into a client's list; False if that is full."""
        events = self.of_client(client_id, group, now_ms)
        if queue in events.queues:
            return True
        if len(events.queues) >= min(limit, QUEUES_MAX):
            return False
        events.queues[queue] = None
        return True

    def take(self, client_id: str, now_ms: int) -> str | None:
        """The next queue of a client's list, which is then no more in it."""
        events = self._clients.get(client_id)
        if events is None:
            return None
        events.access_ms = now_ms
        return events.queues.popitem(last=False)[0] if events.queues else None

    def access(self, client_id: str, now_ms: int) -> None:
        """A client has come, whether or not it has a list."""
        events = self._clients.get(client_id)
        if events is not None:
            events.access_ms = now_ms

    def remove(self, client_id: str) -> ClientEvents | None:
        """A client is gone; its list."""
        return self._clients.pop(client_id, None)

    def take_stuck(self, now_ms: int) -> list[tuple[str, ClientEvents]]:
        """Lists for which nobody came; others are preferred to their clients for a while."""
        stuck = [(name, each) for name, each in self._clients.items() if each.is_stuck(now_ms)]
        for name, _ in stuck:
            del self._clients[name]
            self._avoided[name] = now_ms + AVOID_MS
        return stuck

    def is_avoided(self, client_id: str, now_ms: int) -> bool:
        """Whether others are preferred to a client."""
        until_ms = self._avoided.get(client_id)
        if until_ms is None:
            return False
        if until_ms <= now_ms:
            del self._avoided[client_id]
            return False
        return True

    def schedule_turn(self, key: str, group: str, at_ms: int) -> None:
        """Note a full turn for a client, or for a wildcard group under its own name in ``$``."""
        self._turns.setdefault(key, (at_ms, group))

    def due_turns(self, now_ms: int) -> list[tuple[str, str]]:
        """Full turns whose time has come: client, group."""
        due = [(key, group) for key, (at_ms, group) in self._turns.items() if at_ms <= now_ms]
        for key, _ in due:
            del self._turns[key]
        for client_id in [name for name, until in self._avoided.items() if until <= now_ms]:
            del self._avoided[client_id]
        return due
