"""History: an hour of figures, in memory. No clock, no socket.

A series is a name and pairs of a time (s) and a value, the oldest first. Names in use:

    ("in", broker)     messages a second that a broker stored
    ("out", broker)    messages a second that it handed out
    ("disk", broker)   part of its disk that is used
    ("topic", name)    messages a second
    ("lag", group)     messages that a group has not committed
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

SPAN_S: Final = 3600.0
SERIES_MAX: Final = 20_000
"""Series kept; those that were written longest ago go first."""

SeriesName = tuple[str, str]
Points = list[tuple[float, float]]


class History:
    """Figures of the last hour.

    Args:
        span_s: older points are dropped; seconds.
    """

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._span_s = span_s
        self._series: OrderedDict[SeriesName, tuple[array[float], array[float]]] = OrderedDict()

    def add(self, name: SeriesName, at_s: float, value: float) -> None:
        """Note a value; times of one series do not go back."""
        found = self._series.get(name)
        if found is None:
            found = self._series[name] = (array("d"), array("d"))
            if len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(name)
        times, values = found
        if times and at_s <= times[-1]:
            return
        times.append(at_s)
        values.append(value)
        if at_s - times[0] > 2 * self._span_s:
            start = bisect_left(times, at_s - self._span_s)
            del times[:start], values[:start]

    def points(self, name: SeriesName, since_s: float = 0.0) -> Points:
        """A series from a time on; empty if there is none."""
        found = self._series.get(name)
        if found is None:
            return []
        times, values = found
        start = bisect_left(times, max(since_s, times[-1] - self._span_s if times else 0.0))
        return list(zip(times[start:], values[start:], strict=True))

    def last(self, name: SeriesName) -> float | None:
        """The newest value."""
        found = self._series.get(name)
        return found[1][-1] if found is not None and found[1] else None

    def has(self, name: SeriesName) -> bool:
        """Whether anything was noted."""
        return name in self._series

    def growth(self, name: SeriesName, span_s: float) -> float | None:
        """How much a series grew over a span without ever shrinking; None: it did not."""
        points = self.points(name)
        points = [each for each in points if each[0] >= points[-1][0] - span_s] if points else []
        if len(points) < GROWTH_POINTS_MIN or points[-1][0] - points[0][0] < span_s / 2:
            return None
        values = [value for _, value in points]
        if any(later < earlier for earlier, later in pairwise(values)):
            return None
        grown = values[-1] - values[0]
        return grown if grown > 0 else None

    def total(self, kind: str, keys: Iterable[str]) -> float | None:
        """The sum of the newest values of several series; None if there is none."""
        found = [each for key in keys if (each := self.last((kind, key))) is not None]
        return sum(found) if found else None


GROWTH_POINTS_MIN: Final = 4
"""Fewer looks say nothing about a trend."""
