"""The file ``checkpoint``: up to which store times log, queues and index are on the disk.

The flush of each of the three sets its value here afterwards; `flush` then makes the file
durable. So what the file says was true before it was said: log, then queue, then checkpoint. Both
Java lines read it; 4.9 knows the first three values. RocketMQ: StoreCheckpoint.
"""

from __future__ import annotations

import os
import threading

from oberth.formats.checkpoint import FILE_SIZE, USED_SIZE, Checkpoint, decode_checkpoint
from oberth.store.files import FileSystem


class StoreCheckpoint:
    """The values and their file. ``values`` is set by the flushing threads, one field each."""

    def __init__(self, files: FileSystem, path: str, *, writable: bool = True) -> None:
        self.files = files
        self.path = path
        self.values = Checkpoint()
        self._writable = writable
        self._flushed = b""
        self._lock = threading.Lock()  # one flush at a time

    def load(self) -> None:
        """Takes the values of the file; those of a missing, short or empty one are 0.

        RocketMQ maps the file at its full size, so a short one reads as zeros there too.
        """
        data = self.files.read_file(self.path) or b""
        self.values = decode_checkpoint(data[:USED_SIZE].ljust(USED_SIZE, b"\0"))
        self._flushed = data[:USED_SIZE] if len(data) == FILE_SIZE else b""

    def flush(self) -> bool:
        """Writes the values durably; False if the file has them already.

        The used bytes lie within one sector, so they are replaced in place, as RocketMQ does: a
        process of its that maps the file goes on seeing it.

        Raises:
            StoreFullError: the disk has no room for a new file.
        """
        if not self._writable:
            return False
        with self._lock:
            data = self.values.encode()
            if data == self._flushed:
                return False
            created = not self.files.exists(self.path)
            file = self.files.open(self.path, create=True)
            try:
                if file.size() != FILE_SIZE:
                    file.truncate(FILE_SIZE)
                file.write(data, 0)
                file.sync()
            finally:
                file.close()
            if created:
                self.files.sync_directory(os.path.dirname(self.path))
            self._flushed = data
            return True


assert USED_SIZE <= 512
