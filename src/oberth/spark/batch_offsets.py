"""Which queue offsets the units of a BatchConsumeQueue name, over a range of them.

A unit says itself which offsets it is of. So what lacks a unit shows between the others, wherever
their files are, and what a wrong file brings is known by offsets that are not of the range. Between
two units that follow each other nothing is missing: brokers before 5.5 count a single message in
such a queue and write no unit for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BatchOffsets:
    """What the units of one range have named, and what was given of it."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._named = [np.empty((3, 0), np.int64)]  # by unit: its number, first offset, and end
        self._given = [np.empty(0, np.int64)]
        self._highest = -1  # of all that were given

    def named(self, units: Any, first: int) -> Any:
        """Notes what some units name; which of them are of the range: a mask.

        Args:
            units: some that follow each other.
            first: the number of the first.
        """
        bases, counts = units["base"].astype(np.int64), units["count"].astype(np.int64)
        inside = (bases >= 0) & (bases < self._end)
        inside &= (counts > 0) & (bases > self._start - counts)
        named = first + np.flatnonzero(inside), bases[inside], bases[inside] + counts[inside]
        self._named.append(np.stack(named))
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
        numbers, begins, ends = np.concatenate(self._named, axis=1)
        in_order = np.ones(len(begins), bool)  # neither a copy nor where a copy is of
        in_order[1:] &= begins[1:] > np.maximum.accumulate(begins)[:-1]
        in_order[:-1] &= begins[:-1] < np.minimum.accumulate(begins[::-1])[::-1][1:]
        follows = in_order[1:] & in_order[:-1] & (numbers[1:] == numbers[:-1] + 1)
        ends[:-1][follows] = np.maximum(ends[:-1], begins[1:])[follows]
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        before = np.append(self._start, ends)
        behind = np.append(begins, self._end)
        return [(int(before[n]), int(behind[n])) for n in np.flatnonzero(before < behind)]
