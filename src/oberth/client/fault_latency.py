"""Latency fault tolerance: brokers that were slow or failed are left alone for a while.

A state machine without a clock: every call says what time it is, in ms. Off by default, as in
RocketMQ: MQFaultStrategy, LatencyFaultToleranceImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LATENCY_MAX_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
NOT_AVAILABLE_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
"""A send that took LATENCY_MAX_MS[n] keeps its broker away for NOT_AVAILABLE_MS[n]."""

ISOLATION_LATENCY_MS: Final = 10_000
"""What a send counts as that failed."""

assert len(LATENCY_MAX_MS) == len(NOT_AVAILABLE_MS)


@dataclass(slots=True)
class FaultItem:
    """What is known of one broker."""

    latency_ms: float
    available_at_ms: float
    reachable: bool = True


class LatencyFaultTolerance:
    """Which brokers to avoid."""

    __slots__ = ("_items", "latency_max_ms", "not_available_ms")

    def __init__(
        self,
        latency_max_ms: Sequence[int] = LATENCY_MAX_MS,
        not_available_ms: Sequence[int] = NOT_AVAILABLE_MS,
    ) -> None:
        self.latency_max_ms = tuple(latency_max_ms)
        self.not_available_ms = tuple(not_available_ms)
        self._items: dict[str, FaultItem] = {}

    def update(
        self, broker: str, latency_ms: float, now_ms: float, *, failed: bool, reachable: bool = True
    ) -> None:
        """A send to ``broker`` took ``latency_ms``, or failed."""
        away_ms = self.not_available_for(ISOLATION_LATENCY_MS if failed else latency_ms)
        item = self._items.get(broker)
        if item is None:
            self._items[broker] = FaultItem(latency_ms, now_ms + away_ms, reachable)
            return
        item.latency_ms = latency_ms
        # A fast answer does not end a pause that an earlier failure started.
        if now_ms + away_ms > item.available_at_ms:
            item.available_at_ms = now_ms + away_ms
        item.reachable = reachable

    def not_available_for(self, latency_ms: float) -> int:
        """For how long a broker is left alone after a send that took so long."""
        for limit, away_ms in zip(
            reversed(self.latency_max_ms), reversed(self.not_available_ms), strict=True
        ):
            if latency_ms >= limit:
                return away_ms
        return 0

    def is_available(self, broker: str, now_ms: float) -> bool:
        """Whether the broker may be used."""
        item = self._items.get(broker)
        return item is None or now_ms >= item.available_at_ms

    def is_reachable(self, broker: str) -> bool:
        """Whether the last send got a connection."""
        item = self._items.get(broker)
        return item is None or item.reachable

    def remove(self, broker: str) -> None:
        """Forget a broker."""
        self._items.pop(broker, None)
