"""What is remembered of half messages: those that ended, those that are copies, those that wait.

Machines without a store; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, NamedTuple

from oberth.formats import names
from oberth.formats.java_numbers import java_long

ROOTS_MAX: Final = 100_000
"""Ended transactions that are remembered against a second end."""

AGES_AT_ONCE: Final = 5_000
"""Offsets of halves, parked or not, whose age is looked at in one step: a millisecond."""

_NO_CLIENT: Final = "?" * (names.GROUP_LENGTH_MAX_4_9 + 1)
"""Stands for all groups whose names are too long: the table of producers takes none of them."""


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


class _Group(NamedTuple):
    """The parked halves of a producer group."""

    name: str
    offsets: OrderedDict[int, None]


class ParkedHalves:
    """Half messages whose producer group has no client, by group and in the order of their offsets.

    Offsets are added in rising order. What one half costs depends neither on the others nor on how
    many groups there are: who sends a half makes its group up. A name is kept once for all halves
    of its group, and one that is too long to have a client is not kept.
    """

    __slots__ = ("_age_next", "_groups", "_halves", "_returned")

    def __init__(self) -> None:
        # Tables that lose their first entries are ordered ones, for the same reason as above.
        self._halves: OrderedDict[int, tuple[_Group, int]] = OrderedDict()  # group; birth, ms
        self._groups: dict[str, _Group] = {}
        self._returned: OrderedDict[str, None] = OrderedDict()
        self._age_next = 0  # the next offset whose age is looked at

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, offset: int, group: str, born_ms: int) -> None:
        """Park a half."""
        name = _kept_name(group)
        own = self._groups.get(name)
        if own is None:
            own = self._groups[name] = _Group(name, OrderedDict())
        own.offsets[offset] = None
        self._halves[offset] = own, born_ms

    def remove(self, offset: int) -> None:
        """Forget a half if it is parked."""
        half = self._halves.pop(offset, None)
        if half is None:
            return
        group, _ = half
        del group.offsets[offset]
        if not group.offsets:
            del self._groups[group.name]
            self._returned.pop(group.name, None)

    def front(self) -> int | None:
        """The first parked offset."""
        return next(iter(self._halves), None)

    def has_group(self, group: str) -> bool:
        """Whether halves of a group are parked."""
        return _kept_name(group) in self._groups

    def of_group(self, group: str, count_max: int) -> list[int]:
        """The first offsets of a group."""
        own = self._groups.get(_kept_name(group))
        return [] if own is None else list(islice(own.offsets, count_max))

    def first(self, count_max: int) -> list[int]:
        """The first offsets of all groups."""
        return list(islice(self._halves, count_max))

    def born_before(self, born_ms: int, count_max: int) -> tuple[list[int], bool]:
        """Offsets of halves that are older than that, and whether there are more to look at.

        A call looks at the next `AGES_AT_ONCE`; after the last one they begin anew.
        """
        front = self.front()
        if front is None:
            return [], False
        end = next(reversed(self._halves)) + 1
        at = max(self._age_next, front)
        if at >= end:
            at = front  # those that were yet to be looked at are gone
        stop = min(at + AGES_AT_ONCE, end)
        found: list[int] = []
        while at < stop and len(found) < count_max:
            half = self._halves.get(at)
            if half is not None and half[1] < born_ms:
                found.append(at)
            at += 1
        self._age_next = at if at < end else 0
        return found, at < end

    def has_below(self, offset: int) -> bool:
        """Whether a half is parked that has left the log."""
        front = self.front()
        return front is not None and front < offset

    def remove_below(self, offset: int, count_max: int) -> None:
        """Forget halves that have left the log, so many of them."""
        for gone in self.first(count_max):
            if gone >= offset:
                break
            self.remove(gone)

    def remove_from(self, offset: int) -> None:
        """Forget those at the end: they are looked at again."""
        while self._halves and (last := next(reversed(self._halves))) >= offset:
            self.remove(last)

    def clear(self) -> None:
        """Forget all."""
        self._halves.clear()
        self._groups.clear()
        self._returned.clear()
        self._age_next = 0

    # Groups that are back

    def came_back(self, group: str) -> None:
        """A producer group has a client again."""
        if group in self._groups:
            self._returned[group] = None

    def left_again(self, group: str) -> None:
        """A group that came back has no client any more."""
        self._returned.pop(group, None)

    def returned(self, count_max: int) -> list[str]:
        """Groups that came back and have parked halves, the first ones."""
        return list(islice(self._returned, count_max))


def _kept_name(group: str) -> str:
    return group if len(group) <= names.GROUP_LENGTH_MAX_4_9 else _NO_CLIENT
