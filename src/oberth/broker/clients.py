"""ClientInfo: one client of a group, as consumers and producers register it.

A channel stands for a connection; the tables only compare and hash it. What is always true: a
client that the tables know has sent a heartbeat on its channel, and the channel was open then.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

GROUPS_PER_CHANNEL_MAX: Final = 10_000
"""Groups of one connection, producers' and consumers' each; a proxy has all of its clients' in one.
More are not registered."""

LEFT_AT_ONCE: Final = 2_000
"""Groups that a closed connection leaves at a time."""

SCANNED_AT_ONCE: Final = 2_000
"""Groups and clients whose last heartbeat is looked at at a time."""

CLIENT_ID_LENGTH_MAX: Final = 1024
"""Characters of a client's id: answers repeat it for each of its groups."""

LANGUAGE_LENGTH_MAX: Final = 32
"""Characters of the language that a client says it is written in; of a longer one it is OTHER."""

CLIENT_COUNT_MAX: Final = 100_000
"""Clients of one group. More are not registered; a group of that size has lost its way."""


class ClientInfo:
    """One client on one channel. RocketMQ: ClientChannelInfo.

    Attributes:
        channel: the connection.
        client_id: what the client calls itself; the same on all its connections.
        language: name of a LanguageCode.
        version: ordinal of the client's release.
        last_update_ms: when its last heartbeat came.
        access_key: whose signature its first heartbeat bore; "" without one.
    """

    __slots__ = ("access_key", "channel", "client_id", "language", "last_update_ms", "version")

    def __init__(
        self,
        channel: Hashable,
        client_id: str,
        language: str,
        version: int,
        now_ms: int,
        access_key: str = "",
    ) -> None:
        self.channel = channel
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_update_ms = now_ms
        self.access_key = access_key

    def __repr__(self) -> str:
        return f"ClientInfo({self.client_id!r}, {self.language}, version {self.version})"
