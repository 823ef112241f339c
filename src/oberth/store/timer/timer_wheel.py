"""TimerWheel: which timer log units are due when, in memory and in the file ``timerwheel``.

In memory are the slots that are not delivered yet, by time; a heap of the times gives the earliest.
The file has room for two weeks of slots, delivered ones stay in it until their place is needed
again. What is always true: a slot that changed is in `take_changes` until it was given away, and
`write` returns when the changes are on the disk; so the file is never newer than the log, as long
as the log is synced first. Without the file the slots are rebuilt from the timer log.

RocketMQ: TimerWheel, which maps and writes the whole file; the bytes are the same.
"""

from __future__ import annotations

import heapq
import os
from typing import Final, NamedTuple

from oberth.errors import StoreCorruptError
from oberth.formats.timer_log import NO_PREVIOUS
from oberth.formats.timer_wheel import FILE_SIZE, SLOT, SLOT_SIZE, SLOTS
from oberth.store.files import FileSystem

_PAGE_SIZE: Final = 64 << 10
assert _PAGE_SIZE % SLOT_SIZE == 0


class Slot:
    """A slot that is not delivered yet; see ``formats.timer_wheel`` for the fields."""

    __slots__ = ("first_pos", "last_pos", "magic", "num", "time")

    def __init__(self, time: int, first_pos: int, last_pos: int, num: int, magic: int = 0) -> None:
        self.time = time
        self.first_pos = first_pos
        self.last_pos = last_pos
        self.num = num
        self.magic = magic

    def __repr__(self) -> str:
        return f"Slot({self.time}, {self.first_pos} to {self.last_pos}, {self.num})"


class SlotChange(NamedTuple):
    """A slot as it was when the changes were taken."""

    position: int
    data: bytes
    time: int


class TimerWheel:
    """The wheel. All but `write` is called from one thread.

    Args:
        files: where the file lies.
        path: of the file.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._slots: dict[int, Slot] = {}
        self._times: list[int] = []  # heap of the keys of _slots
        self._changed: dict[int, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def load(self, from_time: int) -> bool:
        """Takes in the slots of the file from a time on; False if there is no file.

        Raises:
            StoreCorruptError: a file of another size; RocketMQ refuses to start on it too.
        """
        self.clear()
        if not self._files.exists(self._path):
            return False
        size = self._files.size(self._path)
        if size != FILE_SIZE:
            raise StoreCorruptError(f"{self._path}: found {size} bytes, allowed are {FILE_SIZE}")
        mapping = self._files.map(self._path, FILE_SIZE, writable=False)
        try:
            position: int | None = 0
            # Most of the file is a hole.
            while position is not None and (position := mapping.next_data(position)) is not None:
                position -= position % _PAGE_SIZE
                page = bytes(mapping.view[position : position + _PAGE_SIZE])
                if any(page):
                    for time, first, last, num, magic in SLOT.iter_unpack(page):
                        if time > 0 and time >= from_time and last > NO_PREVIOUS:
                            self._slots[time] = Slot(time, first, last, num, magic)
                position += _PAGE_SIZE
                if position >= FILE_SIZE:
                    position = None
        finally:
            mapping.close()
        self._times = sorted(self._slots)
        return True

    def clear(self) -> None:
        """Forgets everything; the file stays."""
        self._slots.clear()
        self._times.clear()
        self._changed.clear()

    def put(self, time: int, position: int, *, is_delete: bool = False) -> None:
        """Notes a unit of the timer log, unless the slot has it already. ``time``: slot number."""
        slot = self._slots.get(time)
        if slot is None:
            slot = self._slots[time] = Slot(time, position, position, 0)
            heapq.heappush(self._times, time)
        elif slot.last_pos >= position:
            return
        slot.last_pos = position
        slot.num += -1 if is_delete else 1
        self._changed[time] = slot

    def get(self, time: int) -> Slot | None:
        """The slot of a time, if anything is in it."""
        return self._slots.get(time)

    def earliest(self) -> Slot | None:
        """The slot that is due first."""
        return self._slots[self._times[0]] if self._times else None

    def remove_earliest(self) -> None:
        """The earliest slot is delivered. In the file it stays, as it does with RocketMQ."""
        del self._slots[heapq.heappop(self._times)]

    def lowest_position(self) -> int | None:
        """The lowest timer log position that is still needed; None if nothing is in the wheel."""
        return min((slot.first_pos for slot in self._slots.values()), default=None)

    def highest_position(self) -> int:
        """The highest timer log position that a slot names; -1 if nothing is in the wheel."""
        return max((slot.last_pos for slot in self._slots.values()), default=NO_PREVIOUS)

    def message_count(self) -> int:
        """Messages in the wheel, deletions subtracted."""
        return sum(slot.num for slot in self._slots.values())

    # The file

    def take_changes(self) -> list[SlotChange]:
        """What changed since the last call, as bytes for `write`."""
        changes = [
            SlotChange(
                time % SLOTS * SLOT_SIZE,
                SLOT.pack(time, slot.first_pos, slot.last_pos, slot.num, slot.magic),
                time,
            )
            for time, slot in self._changed.items()
        ]
        self._changed.clear()
        return changes

    def give_back(self, changes: list[SlotChange]) -> None:
        """These could not be written."""
        for change in changes:
            slot = self._slots.get(change.time) or Slot(*SLOT.unpack(change.data))
            self._changed.setdefault(change.time, slot)

    def write(self, changes: list[SlotChange]) -> None:
        """Brings changes into the file and to the disk. From any thread, one at a time.

        Raises:
            StoreFullError: the disk has no room.
        """
        created = not self._files.exists(self._path)
        if not changes and not created:
            return
        file = self._files.open(self._path, create=True)
        try:
            if created or file.size() != FILE_SIZE:
                file.truncate(FILE_SIZE)
            for change in changes:
                file.write(change.data, change.position)
            file.sync()
        finally:
            file.close()
        if created:
            self._files.sync_directory(os.path.dirname(self._path))
