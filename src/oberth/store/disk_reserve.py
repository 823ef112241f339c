"""Blocks kept for the day when the disk is full: the file ``oberth.reserve``.

What frees a full disk may itself have to write first: a checkpoint before segments are deleted,
and the marks of a start. The file's blocks are allocated and hold nothing. A checkpoint that finds
the disk full gives them back and tries again; cleaning takes them anew when there is room. Without
the file (on a disk that was full before it could be made) all works that needs no block.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from oberth.errors import StoreFullError
from oberth.store.files import FileSystem, is_full

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "oberth.reserve"
SIZE_MAX: Final = 4 << 20
# Of the whole disk, so that a small one is not half reserved.
_PART_OF_DISK: Final = 64
_SIZE_MIN: Final = 64 << 10


class DiskReserve:
    """The reserve of one store. Any thread."""

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root
        self.path = f"{root}/{FILE_NAME}"
        self._lock = threading.Lock()  # one change at a time

    def take(self) -> bool:
        """Makes the file where it is not there; False where the disk has no room for it."""
        with self._lock:
            if self._files.exists(self.path):
                return True
            part = self._files.disk_usage(self._root).total // _PART_OF_DISK
            size = min(SIZE_MAX, max(part, _SIZE_MIN))
            try:
                mapping = self._files.map(self.path, size, create=True)
                try:
                    mapping.allocate(0, size)
                finally:
                    mapping.close()
            except (OSError, StoreFullError) as error:
                self._files.remove(self.path)
                if not is_full(error):
                    raise
                return False
            return True

    def give_back(self) -> bool:
        """Deletes the file; False if there was none."""
        with self._lock:
            if not self._files.exists(self.path):
                return False
            self._files.remove(self.path)
            _LOG.warning("%s was deleted to make room, the disk is full", self.path)
            return True
