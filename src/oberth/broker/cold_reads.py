"""ColdReads: how much each group reads of what is no longer in memory, and who must wait for it.

A group that reads old messages makes the disk seek and drives young ones out of the page cache.
With ``coldDataFlowControlEnable`` each group may read so many bytes of cold data in `PERIOD_MS`:
its own threshold if an administrator has set one, else ``cgColdReadThreshold``; and all together
``globalColdReadThreshold``. A group that has read more waits for the next period.

A state machine: reads and the time go in. What counts as cold is the store's business. Thresholds
are kept in memory only, as in RocketMQ: ColdDataCgCtrService.
"""

from __future__ import annotations

from typing import Any, Final

PERIOD_MS: Final = 5_000
"""What is read is counted anew after this time."""

FORGET_MS: Final = 60_000
"""A group that read nothing cold for so long is no longer shown."""

GROUPS_MAX: Final = 10_000
"""Groups with a threshold of their own."""


class ColdReadsOfGroup:
    """What one group has read in this period, and when it read last."""

    __slots__ = ("last_read_at_ms", "read_bytes", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.read_bytes = 0
        self.since_ms = now_ms
        self.last_read_at_ms = now_ms


class ColdReads:
    """The accounts of all groups of one broker."""

    __slots__ = ("_groups", "_period_ends_at_ms", "read_bytes", "thresholds")

    def __init__(self) -> None:
        self.thresholds: dict[str, int] = {}
        """Bytes per period that an administrator has set, by group."""
        self.read_bytes = 0
        self._groups: dict[str, ColdReadsOfGroup] = {}
        self._period_ends_at_ms = 0

    def set_threshold(self, group: str, threshold: int) -> bool:
        """Give a group a threshold of its own; False if too many groups have one."""
        if group not in self.thresholds and len(self.thresholds) >= GROUPS_MAX:
            return False
        self.thresholds[group] = threshold
        return True

    def remove_threshold(self, group: str) -> None:
        """Take a group's own threshold away, if it has one."""
        self.thresholds.pop(group, None)

    def add(self, group: str, count: int, now_ms: int) -> None:
        """A group has read ``count`` bytes of cold data."""
        self._turn(now_ms)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ColdReadsOfGroup(now_ms)
        found.read_bytes += count
        found.last_read_at_ms = now_ms
        self.read_bytes += count

    def waits_until_ms(
        self, group: str, group_threshold: int, all_threshold: int, now_ms: int
    ) -> int | None:
        """When a group may go on reading cold data; None: now.

        Args:
            group: who wants to read.
            group_threshold: bytes per period of a group without a threshold of its own.
            all_threshold: bytes per period of all groups together.
            now_ms: the time.
        """
        self._turn(now_ms)
        found = self._groups.get(group)
        if found is None:
            return None
        over = found.read_bytes >= self.thresholds.get(group, group_threshold)
        return self._period_ends_at_ms if over or self.read_bytes >= all_threshold else None

    def _turn(self, now_ms: int) -> None:
        if now_ms < self._period_ends_at_ms:
            return
        self._period_ends_at_ms = now_ms + PERIOD_MS
        self.read_bytes = 0
        gone = now_ms - FORGET_MS
        self._groups = {
            group: each for group, each in self._groups.items() if each.last_read_at_ms > gone
        }
        for each in self._groups.values():
            each.read_bytes = 0

    def to_body(self, group_threshold: int, all_threshold: int, now_ms: int) -> dict[str, Any]:
        """What GET_COLD_DATA_FLOW_CTR_INFO shows."""
        self._turn(now_ms)
        return {
            "runtimeTable": {
                group: {
                    "coldAcc": each.read_bytes,
                    "createTimeMills": each.since_ms,
                    "lastColdReadTimeMills": each.last_read_at_ms,
                }
                for group, each in self._groups.items()
            },
            "configTable": dict(self.thresholds),
            "cgColdReadThreshold": group_threshold,
            "globalColdReadThreshold": all_threshold,
            "globalAcc": self.read_bytes,
        }
