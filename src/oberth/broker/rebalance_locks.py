"""RebalanceLocks: which client of a group may consume a queue in order.

At most one client holds a (group, queue) at a time; a lock ends `max_live_time_ms` after its last
lock call. A state machine: time is an argument. Lost on restart, as in RocketMQ: clients lock again
every 20 s and consume nothing in between. RocketMQ: RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

QueueKey: TypeAlias = tuple[str, str, int]
"""Topic, broker name and queue id."""


class RebalanceLocks:
    """Locks of all groups.

    Args:
        max_live_time_ms: how long a lock lives after its last refresh.
    """

    __slots__ = ("_groups", "max_live_time_ms")

    def __init__(self, max_live_time_ms: int = 60_000) -> None:
        self.max_live_time_ms = max_live_time_ms
        self._groups: dict[str, dict[QueueKey, tuple[str, int]]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Take or refresh locks; those of ``queues`` that the client holds afterwards."""
        held = self._groups.setdefault(group, {})
        mine = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or now_ms - owner[1] > self.max_live_time_ms:
                held[queue] = (client_id, now_ms)
                mine.append(queue)
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
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds a queue now."""
        owner = self._groups.get(group, {}).get(queue)
        if owner is None or now_ms - owner[1] > self.max_live_time_ms:
            return None
        return owner[0]

    def has_live_lock(self, group: str, now_ms: int) -> bool:
        """Whether any queue of the group is locked: it consumes in order."""
        held = self._groups.get(group)
        return held is not None and any(
            now_ms - since <= self.max_live_time_ms for _, since in held.values()
        )

    def scan_expired(self, now_ms: int) -> None:
        """Forget locks that ended, so that the table does not grow with groups long gone."""
        for group, held in list(self._groups.items()):
            for queue, (_, since) in list(held.items()):
                if now_ms - since > self.max_live_time_ms:
                    del held[queue]
            if not held:
                del self._groups[group]
