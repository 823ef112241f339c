"""Units of several queues in the order in which their records lie in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from oberth.spark.batch_offsets import BatchOffsets


@dataclass(slots=True)
class Units:
    """Units of one queue, or of several.

    Attributes:
        positions: where in the log the record of each is.
        sizes: its bytes.
        offsets: its queue offset.
        owners: which queue each is of, by number; None if all are of one.
        batch: what those of a BatchConsumeQueue name, which is never one of several.
    """

    positions: Any
    sizes: Any
    offsets: Any
    owners: Any = None
    batch: BatchOffsets | None = None

    def chosen(self, places: Any) -> Units:
        """Those in some places: a slice, or an array of them."""
        return replace(
            self,
            positions=self.positions[places],
            sizes=self.sizes[places],
            offsets=self.offsets[places],
            owners=None if self.owners is None else self.owners[places],
        )

    def and_then(self, more: Units) -> Units:
        """These and others, of one queue."""
        if not len(self.positions):
            return more
        return Units(
            np.concatenate([self.positions, more.positions]),
            np.concatenate([self.sizes, more.sizes]),
            np.concatenate([self.offsets, more.offsets]),
        )

    def without(self, numbers: Sequence[int]) -> Units:
        """All but those in some places."""
        return self.chosen(np.delete(np.arange(len(self.positions)), numbers))

    def owner(self, number: int) -> int:
        """The number of a unit's queue."""
        return 0 if self.owners is None else int(self.owners[number])


_EVERYWHERE: Final = 2**63 - 1


class _Queue:
    """What was read of one queue and not given yet."""

    def __init__(self, number: int, units: Iterator[Units]) -> None:
        self._number = number
        self._units = units
        self._held = Units(*(np.empty(0, np.int64),) * 3)
        self._highest = self._held.positions  # of all positions up to each
        self._few = 1
        self._is_read = False

    def fill(self) -> bool:
        """Reads on if few are held; whether any are.

        Queues that grew together end their parts together: with one that holds a handful yet, the
        others could give no more than what lies beside these.
        """
        while not self._is_read and len(self._held.positions) < self._few:
            more = next(self._units, None)
            if more is None:
                self._is_read = True
                break
            self._few = max(self._few, len(more.positions) // 2)
            self._held = self._held.and_then(more)
            self._highest = np.maximum.accumulate(self._held.positions)
        return len(self._held.positions) > 0

    def reach(self) -> int:
        """Up to where in the log all of its units are held."""
        return _EVERYWHERE if self._is_read else int(self._highest[-1])

    def take(self, upto: int) -> tuple[Any, Units]:
        """Where in the log those come that are not behind a position, and they themselves."""
        count = int(np.searchsorted(self._highest, upto, side="right"))
        held = self._held
        taken = held.chosen(slice(count))
        taken.owners = np.full(count, self._number, np.int16)
        places, self._highest = self._highest[:count], self._highest[count:]
        self._held = held.chosen(slice(count, None))
        return places, taken


def merged(queues: Sequence[Iterator[Units]]) -> Iterator[Units]:
    """The units of all queues, each once, by place in the log where each queue's are.

    Units of one queue alone come as they are. A queue whose positions go back (it is damaged, or
    written anew) keeps its units; they come where the highest position before them lies.

    Args:
        queues: parts of each queue's units, in its order.
    """
    if len(queues) == 1:
        yield from queues[0]
        return
    live = [_Queue(number, units) for number, units in enumerate(queues)]
    while live := [each for each in live if each.fill()]:
        # What lies up to there has been read of every queue.
        upto = min(each.reach() for each in live)
        places, taken = zip(*(each.take(upto) for each in live), strict=True)
        order = np.argsort(np.concatenate(places), kind="stable")
        yield Units(
            np.concatenate([each.positions for each in taken])[order],
            np.concatenate([each.sizes for each in taken])[order],
            np.concatenate([each.offsets for each in taken])[order],
            np.concatenate([each.owners for each in taken])[order],
        )


def together(positions: Any, sizes: Any, at: int, limit: int, most: int) -> int:
    """How many of the records that units name are fetched at once: at least one.

    Args:
        positions: where in the log they are.
        sizes: their bytes.
        at: the number of the first.
        limit: bytes of records at most.
        most: records at most.
    """
    total = np.cumsum(sizes[at : min(len(positions), at + most)])
    return max(int(np.searchsorted(total, limit, side="right")), 1)


def are_apart(positions: Any, sizes: Any) -> bool:
    """Whether records come in the order of the log, none into another."""
    return bool((positions[1:] >= positions[:-1] + sizes[:-1]).all())
