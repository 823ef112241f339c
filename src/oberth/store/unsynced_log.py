"""From where on the disk may lack what it says it has of the log: the file ``oberth.unsynced``.

After a failed sync the system may take pages for written that it could not write. A start that
follows while the machine still runs reads them from memory, finds whole records, and its own sync
would do nothing (see `oberth.store.sync_guard`). So it first writes them over with what they hold:
then a sync writes them, or fails. The file says from where on, a CommitLog offset in digits.

It is not synced, and need not be: a loss of power takes it, and those pages from memory with it.

Another one in ``compaction/`` says the same of compacted logs, whatever the number in it: each
one's last segment is written anew.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from typing import Final

from oberth.errors import StoreFullError
from oberth.store.files import FileSystem
from oberth.store.mapped_file import MappedFile
from oberth.store.mapped_file_queue import MappedFileQueue

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "oberth.unsynced"


class UnsyncedNote:
    """The file of that name in a directory. Any thread may make it; the rest belongs to a start."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"

    def make(self, offset: int, at_stake: str) -> None:
        """Makes it, or says what a loss of power may take without it."""
        try:
            with closing(self._files.open(self._path, create=True)) as file:
                file.truncate(0)
                file.write(b"%d" % offset, 0)
        except (OSError, StoreFullError) as error:
            _LOG.error(
                "%s could not be written (%s): before the store is opened again, restart the "
                "machine; else a loss of power may take %s",
                self._path, error, at_stake,
            )  # fmt: skip

    def read(self) -> bytes | None:
        """What it holds; None if it is not there."""
        return self._files.read_file(self._path)

    def remove(self) -> None:
        """What it is about is on the disk."""
        self._files.remove(self._path)


class UnsyncedLog:
    """The note of one store. Any thread may make it; `sync` belongs to a start."""

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._note = UnsyncedNote(files, root)

    def note(self, offset: int) -> None:
        """Has the next start write the log anew from an offset on: a sync behind it failed."""
        self._note.make(offset, f"messages behind CommitLog offset {offset}")

    def sync(self, queue: MappedFileQueue, start: int, end: int) -> None:
        """Syncs what a start has found of the log, for which a killed process may not have.

        Args:
            queue: the log.
            start: from where on it was read to find its end.
            end: where it ends.

        Raises:
            OSError: the disk fails. The next start tries it again.
        """
        noted = self._noted(start)
        first = start if noted is None else min(start, noted)
        if noted is not None:
            _LOG.warning(
                "the log is written anew from %d to %d, since a sync of it failed", noted, end
            )
        for segment in queue.segments:
            if segment.end_offset <= first:
                continue
            try:
                if noted is not None and noted < segment.end_offset:
                    self._write_anew(segment, noted, end)
                segment.sync()
            except OSError:
                self.note(max(first, segment.start_offset))  # all before it is on the disk
                raise
        if noted is not None:
            self._note.remove()

    def _write_anew(self, segment: MappedFile, start: int, end: int) -> None:
        """Writes what a segment has of [start, end) over with itself; it looks no younger for it.

        Cleaning goes by when a segment was changed.
        """
        base = segment.start_offset
        start, end = max(start - base, 0), min(end, segment.end_offset) - base
        if segment.buffer.readonly or start >= end:
            return
        changed = self._files.modified_time(segment.path)
        try:
            segment.rewrite(start, end)
        finally:
            with suppress(OSError):
                self._files.set_modified_time(segment.path, changed)
        _LOG.info("%s: %d bytes were written anew", segment.path, end - start)

    def _noted(self, start: int) -> int | None:
        data = self._note.read()
        if data is None:
            return None
        # A kill in the middle of the note leaves it empty. What was synced is read by no start.
        return int(data) if data.isdigit() else start
