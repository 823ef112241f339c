"""Whether some process has a store open, asked without taking the lock.

The lock is a POSIX record lock on byte 0 of the file ``lock``, for Java and Oberth alike. The
system tells who would be in the way; asking locks nothing. A lock of this very process is not seen,
and where the question cannot be asked (Windows) the answer is no.
"""

from __future__ import annotations

import os
import struct
import sys

from oberth.formats.marker_files import LOCK_LENGTH, LOCK_START
from oberth.formats.paths import LOCK
from oberth.store.store_lock import is_held_here

if sys.platform == "linux":
    import fcntl

    # struct flock: type, whence, start, length, process.
    _FLOCK = struct.Struct("@hhqqi4x")

    def is_locked(root: str) -> bool:
        """Whether another process holds the lock of the store at ``root``."""
        if is_held_here(root):
            return False
        try:
            fd = os.open(os.path.join(root, LOCK), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_START, LOCK_LENGTH, 0)
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, question)
            (kind, *_) = _FLOCK.unpack(answer)
            return bool(kind != fcntl.F_UNLCK)
        except (OSError, struct.error):
            return False
        finally:
            os.close(fd)

else:

    def is_locked(root: str) -> bool:
        """Whether another process holds the lock; not known on this system."""
        del root
        return False
