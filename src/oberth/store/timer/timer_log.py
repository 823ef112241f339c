"""TimerLog: units of timed messages, appended; a slot of the wheel names its newest unit.

Segments of one size in ``timerlog/``; see ``formats.timer_log`` for what is in them. The newest
bytes are in memory until `write_out`. What is always true: a unit's ``previous`` is
lower than its own position, and an append never changes what was appended before.

RocketMQ: TimerLog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from oberth.formats.timer_log import (
    BLANK_SIZE,
    MAGIC_MASK,
    NO_PREVIOUS,
    UNIT,
    UNIT_SIZE,
    TimerLogBlank,
    TimerLogUnit,
    decode_timer_unit,
    encode_timer_blank,
    encode_timer_unit,
    fits,
)
from oberth.store.files import FileSystem
from oberth.store.tail_stream import FilePool, TailStream

OPEN_FILES_MAX: Final = 8
BLOCK_SIZE: Final = 64 << 10
"""Bytes that are read at once where units are read one after the other."""


class TimerLog:
    """The log. Appends come from one thread; `write_out` and `sync` may come from another."""

    def __init__(self, files: FileSystem, directory: str, file_size: int) -> None:
        self._pool = FilePool(files, open_files_max=OPEN_FILES_MAX)
        self._stream = TailStream(self._pool, directory, file_size)
        self.file_size = file_size
        self._block = b""
        self._block_start = 0

    @property
    def first_position(self) -> int:
        """Where the oldest segment starts."""
        return self._stream.first_start

    @property
    def end(self) -> int:
        """Where the next unit goes, or the blank before it."""
        return self._stream.end

    def load(self) -> str | None:
        """Finds the segments; everything in them counts until `truncate`. See TailStream.load."""
        return self._stream.load()

    def segment_of(self, position: int) -> int:
        """Where the segment that holds a position starts, or the oldest one."""
        return max(position - position % self.file_size, self.first_position)

    def make_room(self) -> None:
        """To be called before units are appended; once for as many as are taken in at once.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        self._stream.make_room()

    def append(self, unit: TimerLogUnit) -> int:
        """Appends a unit; its position. After `make_room` it cannot fail."""
        stream = self._stream
        position = stream.end
        data = encode_timer_unit(unit)
        at = position % self.file_size
        if not fits(self.file_size, at):
            remaining = self.file_size - at
            data = encode_timer_blank(remaining) + bytes(remaining - BLANK_SIZE) + data
            position += remaining
        with stream.lock:
            stream.append_locked(data)
        return position

    def read(self, position: int) -> TimerLogUnit | None:
        """The unit at a position; None where there is none. Neighbours are read with it."""
        start = position - self._block_start
        if not 0 <= start <= len(self._block) - UNIT_SIZE:
            # Chains run backwards and deliveries forwards: keep both sides of the unit.
            begin = max(position + UNIT_SIZE - BLOCK_SIZE // 2, self.first_position)
            self._block = self._stream.read(begin, BLOCK_SIZE)
            self._block_start = begin
            start = position - begin
            if not 0 <= start <= len(self._block) - UNIT_SIZE:
                return None
        unit = decode_timer_unit(self._block, start)
        return unit if isinstance(unit, TimerLogUnit) else None

    def chain(
        self, last_position: int, first_position: int, is_of_slot: Callable[[int], bool]
    ) -> tuple[list[int], list[int], list[int], bool]:
        """A slot's units from its newest one back to its first.

        Args:
            last_position: of the newest one.
            first_position: of the first one.
            is_of_slot: whether a unit's slot time, ms, is the slot's.

        Returns:
            Positions, magics and CommitLog offsets with sizes (two numbers each), newest first, and
            whether the chain is whole. Half a microsecond a unit: a slot may hold very many.
        """
        positions: list[int] = []
        magics: list[int] = []
        records: list[int] = []
        unpack = UNIT.unpack_from
        read = self._stream.read
        position = last_position
        block = b""
        begin = 0
        while True:
            at = position - begin
            if not 0 <= at <= len(block) - UNIT_SIZE:
                begin = max(position + UNIT_SIZE - BLOCK_SIZE, self.first_position)
                block = read(begin, position + UNIT_SIZE - begin)
                at = position - begin
                if not 0 <= at <= len(block) - UNIT_SIZE:
                    return positions, magics, records, False
            size, previous, magic, enqueued, delay, offset, record_size, _, _ = unpack(block, at)
            if size != UNIT_SIZE or magic & ~MAGIC_MASK or not is_of_slot(enqueued + delay):
                return positions, magics, records, False
            positions.append(position)
            magics.append(magic)
            records.append(offset)
            records.append(record_size)
            if previous == NO_PREVIOUS or position <= first_position or previous >= position:
                return positions, magics, records, True
            position = previous

    def walk(self, start: int) -> Iterator[tuple[int, TimerLogUnit]]:
        """(position, unit) from a unit on to the first thing that is neither unit nor blank."""
        position = start
        block = b""
        block_start = start
        while True:
            at = position - block_start
            if len(block) - at < UNIT_SIZE:
                block = self._stream.read(position, BLOCK_SIZE)
                block_start, at = position, 0
            unit = decode_timer_unit(block, at)
            if isinstance(unit, TimerLogBlank):
                position += self.file_size - position % self.file_size
                block = b""
            elif unit is None:
                return
            else:
                yield position, unit
                position += UNIT_SIZE

    def walk_over(self, start: int, stop: int) -> Iterator[tuple[int, TimerLogUnit | None]]:
        """(position, unit) of all places for a unit from a unit on; None where one is damaged."""
        position = start
        while position < stop:
            at = position % self.file_size
            unit = None
            if fits(self.file_size, at):
                data = self._stream.read(position, UNIT_SIZE)
                found = decode_timer_unit(data, 0) if len(data) == UNIT_SIZE else None
                unit = found if isinstance(found, TimerLogUnit) else None
                if not isinstance(found, TimerLogBlank):
                    yield position, unit
                    position += UNIT_SIZE
                    continue
            position += self.file_size - at

    def truncate(self, end: int) -> None:
        """Ends the log here; what an earlier life left behind the end becomes zeros."""
        self._stream.truncate(end)
        self._stream.erase_behind_end()
        self._block = b""

    def delete_before(self, position: int) -> int:
        """Deletes segments that end at or before a position, never the last; how many."""
        stream = self._stream
        deleted = 0
        while stream.first_start + self.file_size <= position and (
            stream.first_start + self.file_size < stream.end
        ):
            stream.remove_first()
            deleted += 1
        return deleted

    def write_out(self) -> None:
        """Moves what is in memory into the files, so that a killed process does not lose it."""
        self._pool.write_behind()

    def sync(self) -> None:
        """Returns when everything written out so far is on the disk. Blocks."""
        self._pool.sync()

    def close(self) -> None:
        """Closes the files. Unwritten bytes are not written."""
        self._pool.close()
