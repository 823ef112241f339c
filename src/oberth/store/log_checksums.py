"""LogChecksums: a running CRC-32 of every segment of the CommitLog, kept in ``oberth.checksums``.

Two logs are compared by these numbers instead of by their bytes, and a segment whose bytes no
longer give its number has changed on its disk. The thread that writes queues behind sums up what
was appended (`extend`), so no put waits for it; what a slave takes of its master's log is summed up
as it comes (`append`). A checkpoint writes the file, after the log was synced. See
`oberth.formats.log_checksums`.

What it does not promise: a row of a log that another program has shortened and written again speaks
of the bytes that were there before. A reader that finds a difference must compare the bytes
(`ranges`) before it believes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from oberth.errors import StoreFullError
from oberth.formats.log_checksums import (
    FILE_NAME,
    LogChecksum,
    decode_log_checksums,
    encode_log_checksums,
)
from oberth.kernels.hashing import crc32
from oberth.store.commit_log import CommitLog
from oberth.store.files import FileSystem, is_full

_LOG: Final = logging.getLogger(__name__)

TURN_BYTES: Final = 32 << 20
"""What one turn of `extend` sums up: with ten turns a second an old log is not read faster."""

RANGE_BYTES_MAX: Final = 64 << 20
RANGE_COUNT_MAX: Final = 4096
"""What `ranges` looks at in one call: some 20 ms."""

_READ_BYTES: Final = 1 << 18
_SAVE_BYTES: Final = 64 << 20
"""So much of the live segment may have to be summed up again after a kill."""


class LogChecksums:
    """The checksums of one log. Any thread may ask.

    Args:
        files: where the file is kept.
        root: the store's directory.
        log: which log.
        end_offset: gives up to where it is to be summed up.
    """

    def __init__(
        self, files: FileSystem, root: str, log: CommitLog, end_offset: Callable[[], int]
    ) -> None:
        self._files = files
        self._end_offset = end_offset
        self._path = f"{root}/{FILE_NAME}"
        self._log = log
        self._lock = threading.Lock()  # guards the rows
        self._full: dict[int, LogChecksum] = {}  # by start, in the order of the log
        self._live = LogChecksum(0, 0, 0)
        self._saved: list[LogChecksum] = []
        self._last_live = self._live  # as it was when the file was last looked at

    def load(self) -> None:
        """Reads the file; the log is open and recovered."""
        size = self._log.queue.file_size
        rows = decode_log_checksums(self._files.read_file(self._path) or b"", size)
        low, high = self._log.min_offset, self._end_offset()
        with self._lock:
            self._full.clear()
            self._saved = list(rows)
            at = low - low % size
            live = LogChecksum(at, at, 0)
            for row in rows:
                # Only what joins on: after a gap, or beyond the log's end, nothing is known.
                if row.start < low or row.start != at or not row.start < row.end <= high:
                    continue
                if row.end - row.start == size:
                    self._full[row.start] = row
                    at = row.end
                    live = LogChecksum(at, at, 0)
                else:
                    live = row
                    break
            self._live = live

    @property
    def position(self) -> int:
        """CommitLog offset up to which the log is summed up."""
        return self._live.end

    def rows(self) -> list[LogChecksum]:
        """Full segments that are still there, then the live one as far as it is summed up."""
        low = self._log.min_offset
        with self._lock:
            found = [row for row in self._full.values() if row.start >= low]
            return [*found, self._live] if self._live.end > self._live.start else found

    def extend(self, budget: int = TURN_BYTES) -> int:
        """Sums up what was appended, at most so many bytes; returns how many. Reads the disk."""
        with self._lock:
            return self._extend(budget)

    def _extend(self, budget: int) -> int:
        log, size = self._log, self._log.queue.file_size
        low = log.min_offset
        if self._live.end < low:  # was deleted before it was summed up
            self._live = LogChecksum(low, low, 0)
        for start in [start for start in self._full if start < low]:
            del self._full[start]
        done = 0
        # To the end as it is then, so that the next append joins on.
        while (left := min(budget - done, self._end_offset() - self._live.end)) > 0:
            end = self._live.end
            data = self._read(end, min(left, size - end % size, _READ_BYTES))
            if data is None:
                break
            done += len(data)
            self._add(data)
        return done

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Sums up bytes of one segment that were appended just now, while they are at hand.

        Does nothing where what lies before them is not summed up yet, or is being so: `extend` has
        them later. To read a log again took three times as long as to sum it up.
        """
        if self._live.end == offset and self._lock.acquire(blocking=False):
            try:
                if self._live.end == offset:
                    self._add(data)
            finally:
                self._lock.release()

    def _add(self, data: bytes | memoryview) -> None:
        start, end, crc = self._live
        end += len(data)
        row = LogChecksum(start, end, crc32(data, crc))
        size = self._log.queue.file_size
        if end % size == 0:
            if end - start == size:  # else it did not begin at its beginning
                self._full[start] = row
            row = LogChecksum(end, end, 0)
        self._live = row

    def _read(self, offset: int, size: int) -> bytes | None:
        """Bytes of one segment, or None if they were deleted. Holes stay holes."""
        segment = self._log.queue.find(offset)
        if segment is None or not segment.hold():
            return None
        try:
            data = segment.read(offset - segment.start_offset, size)
        finally:
            segment.release()
        return data if len(data) == size else None

    def ranges(self, start: int, end: int, step: int) -> list[int]:
        """CRC-32 of each ``step`` bytes from ``start`` on, the last one shorter. Reads the disk.

        Raises:
            ValueError: not within the log, or more than RANGE_BYTES_MAX or RANGE_COUNT_MAX.
        """
        log, size = self._log, self._log.queue.file_size
        low, high = log.min_offset, log.max_offset
        if not low <= start <= end <= high:
            raise ValueError(f"from {start} to {end}, this log goes from {low} to {high}")
        if step <= 0 or end - start > min(RANGE_BYTES_MAX, step * RANGE_COUNT_MAX):
            raise ValueError(
                f"{end - start} bytes by {step}, allowed are {RANGE_BYTES_MAX} bytes "
                f"in {RANGE_COUNT_MAX} ranges"
            )
        found = []
        data, data_start = b"", start
        for at in range(start, end, step):
            crc, stop = 0, min(at + step, end)
            while at < stop:
                if at >= data_start + len(data):
                    count = min(size - at % size, end - at, _READ_BYTES)
                    read = self._read(at, count)
                    if read is None:
                        raise ValueError(f"offset {at} was deleted just now")
                    data, data_start = read, at
                piece = data[at - data_start : stop - data_start]
                crc = crc32(piece, crc)
                at += len(piece)
            found.append(crc)
        return found

    def save(self, flushed: int, *, all_of_it: bool = False) -> None:
        """Writes the file if that is worth it.

        Args:
            flushed: CommitLog offset up to which the log is on the disk.
            all_of_it: whether the store stops, so that little is worth it too.

        Raises:
            OSError: the disk fails. That it is full is no reason: the rows can be made again.
        """
        rows = self.rows()
        if rows and rows[-1].end > flushed and rows[-1].start == self._last_live.start:
            # It grew since the sync: as it was before will do.
            rows.append(self._last_live)
        self._last_live = self._live
        rows = [row for row in rows if row.start < row.end <= flushed]
        saved = self._saved
        if rows == saved:
            return
        worth = not saved or not rows or rows[-1].start != saved[-1].start
        if not (all_of_it or worth or rows[-1].end - saved[-1].end >= _SAVE_BYTES):
            return
        try:
            self._files.write_file(
                self._path, encode_log_checksums(self._log.queue.file_size, rows)
            )
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            _LOG.error("%s could not be written: %s", self._path, error)
            return
        self._saved = rows

    def to_json(self) -> dict[str, Any]:
        """What is summed up: ends of the log, then a row for each segment."""
        log = self._log
        return {
            "algorithm": "crc32",
            "segmentSize": log.queue.file_size,
            "minOffset": log.min_offset,
            "maxOffset": self._end_offset(),
            "segments": [
                {"start": row.start, "end": row.end, "crc": row.crc} for row in self.rows()
            ],
        }
