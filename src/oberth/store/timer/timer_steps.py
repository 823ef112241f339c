"""What a timer store does in one step: values that its calls take and give."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from oberth.formats.timer_checkpoint import TimerCheckpoint
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offers import Key
from oberth.store.timer.timer_wheel import SlotChange


class TimerStep(NamedTuple):
    """What a call of `on_time` did.

    Attributes:
        appended: messages put into the store; they want to be dispatched.
        more: whether there is more to do at this time.
    """

    appended: int
    more: bool


class TimerFlush(NamedTuple):
    """Work for `flush`: the state to be reached on the disk, as it was when it was taken."""

    checkpoint: TimerCheckpoint
    changes: list[SlotChange]
    metrics: bytes | None
    delete_before: int


class Due:
    """A slot that is being delivered.

    Attributes:
        time: its slot number.
        positions: of its units but deletions, in the order in which they came.
        done: how many of them are delivered.
        deletes: keys of messages that were recalled.
        last_pos: of the slot, when it was opened.
    """

    __slots__ = ("deletes", "done", "last_pos", "positions", "time")

    def __init__(
        self, time: int, last_pos: int, positions: array[int], deletes: set[bytes]
    ) -> None:
        self.time = time
        self.last_pos = last_pos
        self.positions = positions
        self.deletes = deletes
        self.done = 0


class Delivery(NamedTuple):
    """A message that is due, and whether it only rolls on."""

    message: MessageExtBrokerInner
    real_topic: str
    end: int
    key: Key
