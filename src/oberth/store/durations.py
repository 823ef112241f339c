"""Durations: how long something took lately, and at most.

The code that is timed appends a float each time; the figures are worked out when asked for.
RocketMQ: StoreStatsService.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final

RECENT_MAX: Final = 2048
"""Durations that percentiles are taken from."""


class Durations:
    """Seconds that each of the newest took, and the longest since the start."""

    __slots__ = ("longest_s", "recent_s")

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.recent_s: deque[float] = deque(maxlen=RECENT_MAX)

    def add(self, took_s: float) -> None:
        """One more."""
        self.recent_s.append(took_s)
        if took_s > self.longest_s:
            self.longest_s = took_s

    def add_many(self, took_s: float, count: int) -> None:
        """So many more, which took that long each."""
        self.recent_s.extend(repeat(took_s, min(count, RECENT_MAX)))
        self.longest_s = max(self.longest_s, took_s)

    @property
    def longest_ms(self) -> int:
        """The longest since the start, whole ms."""
        return int(self.longest_s * 1000)

    def percentile_ms(self, fraction: float) -> float:
        """What so many of the newest did not exceed, ms; 0 if there were none."""
        ordered = sorted(self.recent_s)
        if not ordered:
            return 0.0
        return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)] * 1000

    def counts(self, limits_ms: Sequence[float]) -> list[int]:
        """How many of the newest lie below each limit and not below the one before; then the rest.

        Args:
            limits_ms: ascending.
        """
        found = [0] * (len(limits_ms) + 1)
        for took_s in self.recent_s:
            found[bisect_right(limits_ms, took_s * 1000)] += 1
        return found
