"""DataVersion: which of two copies of a configuration is the newer one.

    counter       grows with every change
    state_version the store's state machine version (controller epoch); 5.x only
    timestamp     ms, time of that change

RocketMQ: DataVersion. Equal are versions whose fields are all equal; 5.x orders by state_version,
then counter, then timestamp.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from oberth.formats.bean import INT, Bean, json_field
from oberth.formats.options import Line


@functools.total_ordering
@dataclass(slots=True, kw_only=True, eq=False)
class DataVersion(Bean):
    """A version; replaced, never changed, by those who share it."""

    counter: int = json_field("counter", INT, 0)
    state_version: int = json_field("stateVersion", INT, 0, line=Line.V5)
    timestamp: int = json_field("timestamp", INT, 0)

    @property
    def order(self) -> tuple[int, int, int]:
        """What versions are compared by."""
        return self.state_version, self.counter, self.timestamp

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        return DataVersion(
            counter=self.counter + 1,
            state_version=self.state_version if state_version is None else state_version,
            timestamp=now_ms,
        )

    def __eq__(self, other: object) -> bool:
        return self.order == other.order if isinstance(other, DataVersion) else NotImplemented

    def __lt__(self, other: DataVersion) -> bool:
        return self.order < other.order

    def __hash__(self) -> int:
        return hash(self.order)
