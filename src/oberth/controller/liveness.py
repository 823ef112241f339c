"""Liveness: which replicas have been heard of in time.

A machine with the clock as an argument. A heartbeat holds for the time that it names; a connection
that closes ends it at once. Only replicas that are registered are kept, so the table is bounded by
theirs. RocketMQ: ``DefaultBrokerHeartbeatManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oberth.controller.replica_sets import LiveInfo

TIMEOUT_MS: Final = 10_000
"""How long a heartbeat holds that names no time."""

TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000

LOWEST_PRIORITY: Final = 2**31 - 1
"""Of a replica that names none; smaller ones are elected first."""

ReplicaKey = tuple[str, str, int]
"""Cluster, broker name, id."""


@dataclass(frozen=True, slots=True)
class _Heard:
    connection: object
    until_ms: int
    info: LiveInfo


class Liveness:
    """The last heartbeat of each replica."""

    def __init__(self) -> None:
        self._heard: dict[ReplicaKey, _Heard] = {}
        self.now_ms = 0

    def heard(
        self, key: ReplicaKey, connection: object, timeout_ms: int | None, info: LiveInfo
    ) -> bool:
        """Take a heartbeat that came at `now_ms`; gives whether the replica was dead before."""
        known = self._heard.get(key)
        if known is not None and info.epoch < known.info.epoch and known.connection is connection:
            info = info._replace(epoch=known.info.epoch)  # overtaken on its way
        timeout_ms = TIMEOUT_MS if not timeout_ms or timeout_ms < 0 else timeout_ms
        until_ms = self.now_ms + min(timeout_ms, TIMEOUT_MS_MAX)
        self._heard[key] = _Heard(connection, until_ms, info)
        return known is None or known.until_ms <= self.now_ms

    def is_alive(self, cluster: str, name: str, number: int) -> bool:
        """Whether the last heartbeat of a replica still holds."""
        known = self._heard.get((cluster, name, number))
        return known is not None and known.until_ms > self.now_ms

    def info(self, cluster: str, name: str, number: int) -> LiveInfo | None:
        """The state that a live replica reported last."""
        known = self._heard.get((cluster, name, number))
        return None if known is None or known.until_ms <= self.now_ms else known.info

    def connection_closed(self, connection: object) -> list[ReplicaKey]:
        """The replicas that spoke over a connection; they are dead now."""
        gone = [key for key, known in self._heard.items() if known.connection is connection]
        for key in gone:
            del self._heard[key]
        return gone

    def expire(self) -> list[ReplicaKey]:
        """The replicas whose heartbeat has run out since the last call."""
        gone = [key for key, known in self._heard.items() if known.until_ms <= self.now_ms]
        for key in gone:
            del self._heard[key]
        return gone
