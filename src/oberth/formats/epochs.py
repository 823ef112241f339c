"""Epochs of a replicated log: which master wrote which part of it.

A file of three or more lines, ``epochFileCheckpoint`` of the store's root:

    line          note
    count         decimal, entries that follow
    checksum      decimal, CRC-32 of the entries as they stand in the file, newlines included
    epoch-start   one line an entry: the master's epoch, and the CommitLog offset where it began

Epochs and offsets grow from line to line. RocketMQ: EpochFileCache, CheckpointFile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from oberth.errors import ConfigFormatError

FILE_NAME: Final = "epochFileCheckpoint"
EPOCHS_MAX: Final = 1000
"""Entries that a handshake may carry, and so that are kept."""


class Epoch(NamedTuple):
    """One master's reign: its number, and the offset of the first byte that it wrote."""

    number: int
    start: int


class EpochTable:
    """The epochs of one log, oldest first. A machine without files; see `encode_epochs`."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[Epoch] = ()) -> None:
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[Epoch, ...]:
        """All of them, oldest first."""
        return tuple(self._entries)

    @property
    def last(self) -> Epoch | None:
        """The newest."""
        return self._entries[-1] if self._entries else None

    def append(self, epoch: Epoch) -> bool:
        """Notes a new master; False if its epoch is known already.

        Raises:
            ConfigFormatError: an older epoch, or one that starts before the one that it follows; or
                a value below 0, which the file cannot hold.
        """
        if epoch.number < 0 or epoch.start < 0:
            raise ConfigFormatError(
                f"epoch {epoch.number} from {epoch.start} on, allowed are 0 or more"
            )
        last = self.last
        if last is not None:
            if epoch == last:
                return False
            if epoch.number <= last.number or epoch.start < last.start:
                raise ConfigFormatError(
                    f"epoch {epoch.number} from {epoch.start} on cannot follow epoch "
                    f"{last.number} from {last.start} on"
                )
        self._entries.append(epoch)
        del self._entries[:-EPOCHS_MAX]
        return True

    def cut(self, end: int) -> bool:
        """Forgets epochs that begin behind the log's end; whether there were any."""
        count = len(self._entries)
        while self._entries and self._entries[-1].start > end:
            self._entries.pop()
        return len(self._entries) < count

    def cut_from(self, offset: int) -> bool:
        """Forgets epochs that begin at an offset or behind it; whether there were any."""
        return self.cut(offset - 1)

    def at(self, offset: int) -> tuple[Epoch, int | None] | None:
        """The epoch that wrote the byte at an offset, and where it ends; None: it still goes on.

        What lies before the oldest epoch counts as its own. None where there is no epoch at all.
        """
        end: int | None = None
        for epoch in reversed(self._entries):
            if epoch.start <= offset or epoch is self._entries[0]:
                return epoch, end
            end = epoch.start
        return None

    def _ends(self, end: int) -> list[tuple[Epoch, int]]:
        ends = [*(epoch.start for epoch in self._entries[1:]), end]
        return list(zip(self._entries, ends, strict=False))  # without epochs there is an end left

    def common_end(self, end: int, other: EpochTable, other_end: int) -> int | None:
        """Up to where this log and another one were written by the same masters.

        The newest epoch that both have from the same offset on counts: both have what the same
        master wrote up to where the shorter of the two ends it.

        Args:
            end: of this log.
            other: epochs of the other.
            other_end: of the other log.

        Returns:
            The offset; None where they have no epoch in common.
        """
        others = dict(other._ends(other_end))
        for epoch, upto in reversed(self._ends(end)):
            if epoch in others:
                return min(upto, others[epoch])
        return None


def encode_epochs(table: EpochTable) -> bytes:
    """The file's bytes."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in table.entries).encode()
    return b"%d\n%d\n%b" % (len(table.entries), crc32(lines), lines)


def parse_epochs(data: bytes, *, name: str) -> EpochTable:
    """The table of a file's bytes.

    Args:
        data: the file.
        name: what errors call it.

    Raises:
        ConfigFormatError: another number of entries than it says, a checksum that does not fit, or
            entries that do not grow.
    """
    head, _, rest = data.partition(b"\n")
    crc_text, _, lines = rest.partition(b"\n")
    if not head.isdigit() or not crc_text.isdigit():
        raise ConfigFormatError(f"{name}: starts with {data[:40]!r}, allowed are two numbers")
    if crc32(lines) != int(crc_text):
        raise ConfigFormatError(
            f"{name}: line 2 has the checksum {int(crc_text)}, the entries have {crc32(lines)}"
        )
    table = EpochTable()
    texts = lines.decode("ascii", "replace").split("\n")[:-1]
    if len(texts) != int(head):
        raise ConfigFormatError(f"{name}: line 1 says {int(head)} entries, found {len(texts)}")
    for number, text in enumerate(texts, 3):
        epoch, dash, start = text.partition("-")
        if not (dash and epoch.isdigit() and start.isdigit()):
            raise ConfigFormatError(f"{name}: line {number}: {text!r}, allowed is epoch-offset")
        table.append(Epoch(int(epoch), int(start)))
    return table
