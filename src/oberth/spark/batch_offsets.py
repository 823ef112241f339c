"""Which queue offsets the units of a BatchConsumeQueue name, over a range of them.

A unit says itself which offsets it is of. So what lacks a unit shows between the others, wherever
their files are, and what a wrong file brings is known by offsets that are not of the range.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BatchOffsets:
    """What the units of one range have named, and what was given of it."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._begins = self._ends = np.empty(0, np.int64)  # of stretches that are named, in order
        self._given = [np.empty(0, np.int64)]
        self._highest = -1  # of all that were given

    def named(self, units: Any) -> Any:
        """Notes what some units name; which of them are of the range: a mask."""
        bases, counts = units["base"].astype(np.int64), units["count"].astype(np.int64)
        inside = (bases >= 0) & (bases < self._end)
        inside &= (counts > 0) & (bases > self._start - counts)
        begins = np.concatenate([self._begins, bases[inside]])
        if len(begins):
            ends = np.concatenate([self._ends, bases[inside] + counts[inside]])
            order = np.argsort(begins, kind="stable")
            begins, ends = begins[order], np.maximum.accumulate(ends[order])
            new = np.flatnonzero(begins[1:] > ends[:-1]) + 1
            self._begins = begins[np.append(0, new)]
            self._ends = ends[np.append(new, len(ends)) - 1]
        return inside

    def first_given(self, bases: Any) -> Any:
        """Notes the first offsets of records; which of them were not given before: a mask."""
        new = np.ones(len(bases), bool)
        if int(bases[0]) <= self._highest or not (bases[1:] > bases[:-1]).all():
            # A file that is another one's copy names its records again.
            new[:] = False
            new[np.unique(bases, return_index=True)[1]] = True
            new &= ~np.isin(bases, np.concatenate(self._given))
        self._given.append(bases[new])
        self._highest = max(self._highest, int(bases.max()))
        return new

    def gaps(self) -> list[tuple[int, int]]:
        """What of the range no unit has named, as ranges [first, end)."""
        begins = [*self._begins.tolist(), self._end]
        ends = [self._start, *self._ends.tolist()]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]
