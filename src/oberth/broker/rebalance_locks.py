"""RebalanceLocks: which client of a group may consume a queue in order.

At most one client holds a (group, queue) at a time; a lock ends `max_live_time_ms` after its last
lock call. A state machine: time is an argument. Lost on restart, as in RocketMQ: clients lock again
every 20 s and consume nothing in between. RocketMQ: RebalanceLockManager.

The locks of a group stand in the order of their last calls, so its newest one tells whether any of
them lives, and those that ended lie in front. After a clock that was set back they do so once the
clock is where it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

from oberth.broker.clients import CLIENT_ID_LENGTH_MAX, SCANNED_AT_ONCE

LOCKS_MAX: Final = 200_000
"""Locks of all groups; a topic of 16 queues in order for 10 000 groups takes 160 000."""
NAME_LENGTH_MAX: Final = 255
"""Characters of a group's, a topic's and a broker's name."""

QueueKey: TypeAlias = tuple[str, str, int]
"""Topic, broker name and queue id."""

_Held: TypeAlias = OrderedDict[QueueKey, tuple[str, int]]
"""By queue the client that holds it, and when it called last, ms; the newest call last."""


class RebalanceLocks:
    """Locks of all groups.

    Args:
        max_live_time_ms: how long a lock lives after its last refresh.
    """

    __slots__ = ("_count", "_groups", "_to_scan", "max_live_time_ms")

    def __init__(self, max_live_time_ms: int = 60_000) -> None:
        self.max_live_time_ms = max_live_time_ms
        self._groups: dict[str, _Held] = {}
        self._count = 0
        self._to_scan: list[str] = []

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Take or refresh locks; those of ``queues`` that the client holds afterwards.

        Nobody gets another lock while there are LOCKS_MAX, nor one on a longer name than any.
        """
        if len(group) > NAME_LENGTH_MAX or len(client_id) > CLIENT_ID_LENGTH_MAX:
            return []
        held = self._groups.setdefault(group, OrderedDict())
        mine = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None:
                topic, broker_name, _ = queue
                if (
                    self._count >= LOCKS_MAX
                    or len(topic) > NAME_LENGTH_MAX
                    or len(broker_name) > NAME_LENGTH_MAX
                ):
                    continue
                self._count += 1
            if owner is None or owner[0] == client_id or self._has_ended(owner[1], now_ms):
                held[queue] = (client_id, now_ms)
                held.move_to_end(queue)
                mine.append(queue)
        if not held:
            del self._groups[group]
        return mine

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Give locks back; those of others stay."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds a queue now."""
        held = self._groups.get(group)
        owner = None if held is None else held.get(queue)
        if owner is None or self._has_ended(owner[1], now_ms):
            return None
        return owner[0]

    def has_live_lock(self, group: str, now_ms: int) -> bool:
        """Whether any queue of the group is locked: it consumes in order.

        Looks at one lock, however many the group has: each message to be retried asks this.
        """
        held = self._groups.get(group)
        if held is None:
            return False
        _, since = held[next(reversed(held))]
        return not self._has_ended(since, now_ms)

    def scan_expired(self, now_ms: int) -> None:
        """Forget locks that ended, so that the table does not grow with groups long gone.

        Looks at some groups and locks, and has to be called again while it `is_scanning`.
        """
        if not self._to_scan:
            self._to_scan = list(self._groups)
        room = SCANNED_AT_ONCE
        while self._to_scan and room > 0:
            group = self._to_scan[-1]
            held = self._groups.get(group)
            while held and self._has_ended(next(iter(held.values()))[1], now_ms):
                if room <= 0:
                    return  # the next call goes on with this group
                room -= 1
                held.popitem(last=False)
                self._count -= 1
            if held is not None and not held:
                del self._groups[group]
            self._to_scan.pop()
            room -= 1

    @property
    def is_scanning(self) -> bool:
        """Whether groups are left of those that `scan_expired` began to look at."""
        return bool(self._to_scan)

    def _has_ended(self, since_ms: int, now_ms: int) -> bool:
        return now_ms - since_ms > self.max_live_time_ms
