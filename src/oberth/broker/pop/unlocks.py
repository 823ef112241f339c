"""Unlocks: when queues that are blocked are to be looked at again.

A state machine: queues and times go in, queues whose time has come go out. What is always true: a
queue is noted once, whatever becomes of what it waits for, and never for a later time than it was
told last. So one may come out early: who gets it looks whether it is blocked, and notes it again.
"""

from __future__ import annotations

import heapq
from typing import Final, TypeAlias

Queue: TypeAlias = tuple[str, str, int]
"""A topic, the group that consumes it in order, and a queue id."""

SPARE: Final = 1024
"""Times that count no more, kept until there are many."""


class Unlocks:
    """Blocked queues, each with a time."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[Queue, int] = {}
        self._heap: list[tuple[int, Queue]] = []

    def __len__(self) -> int:
        return len(self._times)

    def note(self, queue: Queue, at_ms: int) -> None:
        """Look at a queue at a time, or at the one that was noted if that is earlier."""
        noted_ms = self._times.get(queue)
        if noted_ms is not None and noted_ms <= at_ms:
            return
        self._times[queue] = at_ms
        if len(self._heap) > 2 * len(self._times) + SPARE:
            self._heap = [(each_ms, each) for each, each_ms in self._times.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (at_ms, queue))

    def forget(self, queue: Queue) -> None:
        """A queue waits for nothing any more."""
        self._times.pop(queue, None)

    def has_due(self, now_ms: int) -> bool:
        """Whether `due` has anything to do."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def due(self, now_ms: int, count_max: int) -> list[Queue]:
        """Queues whose time has come, the earliest first, each out of the table; so many at most.

        Less may come out than there is while `has_due` is true.
        """
        found = []
        for _ in range(count_max):
            if not self.has_due(now_ms):
                break
            at_ms, queue = heapq.heappop(self._heap)
            if self._times.get(queue) == at_ms:
                del self._times[queue]
                found.append(queue)
        return found
