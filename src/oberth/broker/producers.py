"""Producer groups and their connected members. RocketMQ: ProducerManager.

A state machine: heartbeats, closed channels and the time go in. A group without clients is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Final

from oberth.broker.clients import (
    CLIENT_COUNT_MAX,
    GROUPS_PER_CHANNEL_MAX,
    LEFT_AT_ONCE,
    SCANNED_AT_ONCE,
    ClientInfo,
)
from oberth.formats import names

ASKED_AT_ONCE: Final = 100
"""Clients that are looked at for one that may be asked; the others are the next time."""


class ProducerTable:
    """Producer groups and their clients.

    Attributes:
        group_listeners: called with the name of a group that has a client again, or its first one.
    """

    __slots__ = ("_channels", "_groups", "_ids", "_next", "_to_scan", "group_listeners")

    def __init__(self) -> None:
        self._groups: dict[str, dict[Hashable, ClientInfo]] = {}
        self._channels: dict[Hashable, dict[str, None]] = {}  # the groups that each is in
        # By client id and channel: who registered last, and in how many groups.
        self._ids: dict[str, dict[Hashable, tuple[ClientInfo, int]]] = {}
        self._next: dict[str, int] = {}
        self._to_scan: list[str] = []
        self.group_listeners: list[Callable[[str], None]] = []

    def register(self, group: str, client: ClientInfo) -> bool:
        """Note a heartbeat; True if the client is new in the group.

        A producer's group is any text, so its length and the number of groups on a channel are
        limited; beyond that nothing is noted.
        """
        channel = client.channel
        clients = self._groups.get(group, {})
        known = clients.get(channel)
        if known is not None and known.client_id == client.client_id:
            known.last_update_ms = client.last_update_ms
            return False
        own = self._channels.get(channel, {})
        if known is None and (
            len(clients) >= CLIENT_COUNT_MAX
            or len(own) >= GROUPS_PER_CHANNEL_MAX
            or len(group) > names.GROUP_LENGTH_MAX_4_9
        ):
            return False
        if known is not None:
            self._leave_id(known)
        channels = self._ids.setdefault(client.client_id, {})
        channels[channel] = client, channels.get(channel, (client, 0))[1] + 1
        clients[channel] = client
        own[group] = None
        self._channels[channel] = own
        if group not in self._groups:
            self._groups[group] = clients
            for listener in self.group_listeners:
                listener(group)
        return known is None

    def unregister(self, group: str, channel: Hashable) -> bool:
        """Take a client out; True if it was there."""
        clients = self._groups.get(group)
        client = None if clients is None else clients.pop(channel, None)
        if client is None:
            return False
        self._leave_id(client)
        if not clients:
            del self._groups[group]
            self._next.pop(group, None)
        own = self._channels[channel]
        del own[group]
        if not own:
            del self._channels[channel]
        return True

    def _leave_id(self, client: ClientInfo) -> None:
        channels = self._ids[client.client_id]
        newest, count = channels[client.channel]
        if count > 1:
            channels[client.channel] = newest, count - 1
            return
        del channels[client.channel]
        if not channels:
            del self._ids[client.client_id]

    def connection_closed(self, channel: Hashable) -> list[str]:
        """Take a channel out of its groups, at most `LEFT_AT_ONCE`; which. Ends with none."""
        groups = list(islice(self._channels.get(channel, ()), LEFT_AT_ONCE))
        for group in groups:
            self.unregister(group, channel)
        return groups

    def scan_expired(self, now_ms: int, timeout_ms: int) -> list[ClientInfo]:
        """Drop clients without a heartbeat for longer than the timeout, and give them back.

        Looks at some groups, and has to be called again while it `is_scanning`.
        """
        if not self._to_scan:
            self._to_scan = list(self._groups)
        expired = []
        room = SCANNED_AT_ONCE
        while self._to_scan and room > 0:
            group = self._to_scan.pop()
            clients = list(self._groups.get(group, {}).values())
            room -= 1 + len(clients)
            for client in clients:
                if now_ms - client.last_update_ms > timeout_ms:
                    self.unregister(group, client.channel)
                    expired.append(client)
        return expired

    @property
    def is_scanning(self) -> bool:
        """Whether groups are left of those that `scan_expired` began to look at."""
        return bool(self._to_scan)

    def groups(self) -> list[str]:
        """Names of all groups."""
        return list(self._groups)

    def clients(self, group: str) -> list[ClientInfo]:
        """The clients of a group, the oldest first; none if there is no such group."""
        return list(self._groups.get(group, {}).values())

    def __iter__(self) -> Iterator[tuple[str, list[ClientInfo]]]:
        for group in list(self._groups):
            clients = self._groups.get(group)
            if clients is not None:
                yield group, list(clients.values())

    @property
    def connection_count(self) -> int:
        """Clients of all groups; one of several groups is counted for each."""
        return sum(map(len, self._groups.values()))

    def client_on(self, group: str, channel: Hashable) -> ClientInfo | None:
        """The client of a group on a channel."""
        return self._groups.get(group, {}).get(channel)

    def has_clients(self, group: str) -> bool:
        """Whether a client of the group is connected."""
        return group in self._groups

    def next_client(
        self, group: str, may: Callable[[ClientInfo], bool] | None = None
    ) -> ClientInfo | None:
        """One client of the group, each in its turn: the one to ask about a transaction.

        ``may`` says of a client whether it may be asked; so many as `ASKED_AT_ONCE` are looked at.
        """
        clients = self._groups.get(group)
        if not clients:
            return None
        turn = self._next.get(group, 0)
        each = list(clients.values())
        for at in range(turn, turn + min(len(each), ASKED_AT_ONCE)):
            self._next[group] = at + 1
            client = each[at % len(each)]
            if may is None or may(client):
                return client
        return None

    def find(self, client_id: str) -> ClientInfo | None:
        """The client of that name, on the connection with the newest heartbeat.

        Every answer to a request asks this: it looks at the connections of that name alone. The
        name is the user's who came with it first, as long as one of its connections stands.
        """
        clients = [client for client, _ in self._ids.get(client_id, {}).values()]
        return max(
            (client for client in clients if client.access_key == clients[0].access_key),
            key=lambda each: each.last_update_ms,
            default=None,
        )
