"""What is remembered of half messages: those that ended, those that are copies, those that wait.

Machines without a store; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import merge
from itertools import islice
from typing import Final

from oberth.formats.java_numbers import java_long

ROOTS_MAX: Final = 100_000
"""Ended transactions that are remembered against a second end."""


class OpBatch:
    """Ended half offsets that are not in the op topic yet. A state machine; time is an argument.

    Args:
        size_max: bytes of a body that make it full.
        interval_ms: how long the first offset waits for others.
    """

    __slots__ = ("_offsets", "_since_ms", "_size", "interval_ms", "size_max")

    def __init__(self, size_max: int, interval_ms: int) -> None:
        self.size_max = size_max
        self.interval_ms = interval_ms
        self._offsets: list[int] = []
        self._size = 0
        self._since_ms = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: object) -> bool:
        return offset in self._offsets

    def add(self, offset: int, now_ms: int) -> bytes | None:
        """Note an ended half; the body to write if that filled it."""
        if not self._offsets:
            self._since_ms = now_ms
        self._offsets.append(offset)
        self._size += len(str(offset)) + 1
        return self.take() if self._size >= self.size_max else None

    def on_time(self, now_ms: int) -> bytes | None:
        """The body to write if its time has come."""
        if self._offsets and now_ms - self._since_ms >= self.interval_ms:
            return self.take()
        return None

    def take(self) -> bytes | None:
        """The body to write, whatever it holds; None if it is empty."""
        if not self._offsets:
            return None
        body = "".join(f"{offset}," for offset in self._offsets).encode()
        self._offsets.clear()
        self._size = 0
        return body


def parse_op_body(body: bytes) -> list[int]:
    """Half offsets in the body of an op message, of either line; what is no number is skipped."""
    numbers = (java_long(part.strip(), -1) for part in body.split(b","))
    return [number for number in numbers if number >= 0]


class Lineage:
    """Which half messages are copies of which, and which transactions have ended.

    A half that is checked or immune is put back as a copy with a new offset, while its producer may
    still end the transaction by the old one: an answer that was slow names the copy that it was
    asked about. All copies share a root, the first offset; a root that has ended ends its newest
    copy, and ends only once. Roots are remembered in memory, the newest ROOTS_MAX of them, and as
    many copies that have a successor: what a restart forgets is asked about again.

    The tables of what is remembered are ordered ones: a plain dict goes through what it has lost
    since it grew last, up to 250 000 entries, to find its first one.
    """

    __slots__ = ("_earlier", "_ended", "_latest", "_root")

    def __init__(self) -> None:
        self._root: dict[int, int] = {}
        self._earlier: OrderedDict[int, int] = OrderedDict()
        self._latest: dict[int, int] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()

    def root(self, offset: int) -> int:
        """The first offset of a half message's line."""
        root = self._root.get(offset)
        return self._earlier.get(offset, offset) if root is None else root

    def copied(self, offset: int, copy: int) -> None:
        """A half was put back with a new offset."""
        root = self._set_aside(offset)
        self._root[copy] = root
        self._latest[root] = copy

    def has_ended(self, offset: int) -> bool:
        """Whether the transaction of a half, by any of its offsets, has ended."""
        return self.root(offset) in self._ended

    def ended(self, offset: int) -> set[int]:
        """A transaction ends; the offsets that need an op record: this one and its newest copy."""
        root = self.root(offset)
        self._ended[root] = None
        if len(self._ended) > ROOTS_MAX:
            self._ended.popitem(last=False)
        return {offset, self._latest.get(root, offset)}

    def passed(self, offset: int) -> None:
        """A half will not be looked at again."""
        root = self._set_aside(offset)
        if self._latest.get(root) == offset:
            del self._latest[root]

    def _set_aside(self, offset: int) -> int:
        """The root of a half that nobody is asked about any more; an answer may still come."""
        root = self._root.pop(offset, None)
        if root is None:
            return self._earlier.get(offset, offset)
        self._earlier[offset] = root
        if len(self._earlier) > ROOTS_MAX:
            self._earlier.popitem(last=False)
        return root


class ParkedHalves:
    """Half messages whose producer group has no client, by group and in the order of their offsets.

    Offsets are added in rising order.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def groups(self) -> list[str]:
        """Groups that have parked halves."""
        return list(self._groups)

    def add(self, offset: int, group: str, born_ms: int) -> None:
        """Park a half."""
        self._groups.setdefault(group, {})[offset] = born_ms

    def remove(self, offset: int) -> None:
        """Forget a half if it is parked."""
        for group, halves in self._groups.items():
            if halves.pop(offset, None) is not None:
                if not halves:
                    del self._groups[group]
                return

    def front(self) -> int | None:
        """The first parked offset."""
        return min((next(iter(halves)) for halves in self._groups.values()), default=None)

    def of_group(self, group: str, count_max: int) -> list[int]:
        """The first offsets of a group."""
        return list(islice(self._groups.get(group, ()), count_max))

    def born_before(self, born_ms: int, count_max: int) -> list[int]:
        """Offsets of halves that are older than that, as far as the oldest lie in front."""
        found: list[int] = []
        for halves in self._groups.values():
            for offset, born in halves.items():
                if born >= born_ms or len(found) >= count_max:
                    break
                found.append(offset)
        return found

    def first(self, count_max: int) -> list[int]:
        """The first offsets of all groups."""
        return list(islice(merge(*self._groups.values()), count_max))

    def remove_below(self, offset: int) -> None:
        """Forget halves that have left the log."""
        for group, halves in list(self._groups.items()):
            for parked in [each for each in halves if each < offset]:
                del halves[parked]
            if not halves:
                del self._groups[group]

    def clear(self) -> None:
        """Forget all."""
        self._groups.clear()
