"""DelayProgress: how far each delay level has been delivered, written down with every delivery.

delayOffset.json, as RocketMQ has it, is written every ten seconds and synced. A broker that is
killed would deliver everything of these ten seconds again, and a retry that comes again multiplies.
So each delivery also overwrites the small file ``oberth.delays`` of the store, without a sync:

    0    4  magic
    4    4  crc32 of all that follows
    8    8  log_end       where the next record of the CommitLog went when this was written
   16    4  level_count
   20  8*n  offsets       of levels 1 to level_count: the next unit to deliver; -1: unknown

What is always true: an offset in the file passes a message only if its delivery lies before
log_end. A killed process loses nothing that it wrote, so then the file is as new as the log. After
a loss of power, and with the transient pool after a kill, the log may end before log_end, or the
file be torn: then it is not believed, and what delayOffset.json says is used. Where the log has
lost something in its middle, the store removes the file as it opens. An orderly stop removes it as
well. RocketMQ does not know the file and needs nothing of it.
"""

from __future__ import annotations

import logging
import struct
import zlib
from typing import TYPE_CHECKING, Final

from oberth.errors import StoreFullError
from oberth.formats.paths import DELAY_PROGRESS

if TYPE_CHECKING:
    from oberth.broker.schedule_service import ScheduleService
    from oberth.store.files import RandomFile
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

MAGIC: Final = 0x4F44_4C31
UNKNOWN: Final = -1
LEVELS_MAX: Final = 1024
"""Levels that a file may have; a file with more was not written by us."""

_HEAD: Final = struct.Struct(
    ">"
    "I"  # magic
    "I"  # crc32
)
_BODY: Final = struct.Struct(
    ">"
    "q"  # log_end
    "I"  # level_count
)


def encode(log_end: int, offsets: dict[int, int]) -> bytes:
    """The file's bytes. Offsets are by level, the first is level 1."""
    count = max(offsets, default=0)
    levels = [offsets.get(level, UNKNOWN) for level in range(1, count + 1)]
    body = _BODY.pack(log_end, count) + struct.pack(f">{count}q", *levels)
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def decode(data: bytes) -> tuple[int, dict[int, int]] | None:
    """log_end and offsets by level; None for what is no such file, or a torn one.

    The file may be longer than what was written last.
    """
    if len(data) < _HEAD.size + _BODY.size:
        return None
    magic, crc = _HEAD.unpack_from(data)
    log_end, count = _BODY.unpack_from(data, _HEAD.size)
    end = _HEAD.size + _BODY.size + 8 * count
    if magic != MAGIC or count > LEVELS_MAX or len(data) < end:
        return None
    if zlib.crc32(data[_HEAD.size : end]) != crc:
        return None
    levels = struct.unpack_from(f">{count}q", data, _HEAD.size + _BODY.size)
    return log_end, {level: n for level, n in enumerate(levels, 1) if n != UNKNOWN}


class DelayProgress:
    """The file of a broker's delay levels."""

    def __init__(self, store: MessageStore, schedule: ScheduleService) -> None:
        self._store = store
        self._schedule = schedule
        self._file: RandomFile | None = None
        self._written: dict[int, int] = {}
        self._is_failing = False

    @property
    def path(self) -> str:
        """Where the file lies."""
        return f"{self._store.root}/{DELAY_PROGRESS}"

    def load(self) -> None:
        """Take the levels forward to where the file says; the store is loaded."""
        store = self._store
        data = store.files.read_file(self.path)
        if data is None:
            return
        found = decode(data)
        if found is None or found[0] > store.max_phy_offset:
            _LOG.warning(
                "%s is not used, since it is torn or names places that the log does not have yet",
                self.path,
            )
            # Once the log has grown it would not be seen to be ahead any more.
            self.remove()
            return
        offsets = self._schedule.offsets
        for level, offset in found[1].items():
            offsets[level] = max(offset, offsets.get(level, 0))

    def on_time(self) -> None:
        """Write down what was delivered since the last call."""
        offsets = self._schedule.offsets
        if offsets == self._written:
            return
        try:
            if self._file is None:
                self._file = self._store.files.open(self.path, create=True)
            self._file.write(encode(self._store.appended_offset, offsets), 0)
        except (OSError, StoreFullError) as error:
            if not self._is_failing:
                _LOG.error(
                    "%s could not be written, a crash would deliver more messages again: %s",
                    self.path,
                    error,
                )
            self._is_failing = True
            return
        self._is_failing = False
        self._written = dict(offsets)

    def remove(self) -> None:
        """Delete the file: delayOffset.json says it all, or the file cannot be believed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._written = {}
        files = self._store.files
        if files.exists(self.path):
            files.remove(self.path)
            files.sync_directory(str(self._store.root))
