"""A disk that really loses power: an ext4 file system in a file, shut down without its journal.

What was written and not synced is gone then, as far as the kernel had not written it back by
itself, and every later request of who still runs fails with EIO. Linux, as root: ``mount -o loop``
and EXT4_IOC_SHUTDOWN (fs/ext4/ioctl.c; the same number as XFS_IOC_GOINGDOWN).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Final, Self

from oberth.errors import PeerUnavailableError

_SHUTDOWN: Final = 0x8004587D
_WITHOUT_JOURNAL: Final = 2
SIZE_MIB: Final = 512


class LoopDisk:
    """Mounted while it is entered.

    Args:
        directory: of the file that holds it, and of the place where it is mounted.
    """

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "disk"

    def __enter__(self) -> Self:
        """Make and mount it.

        Raises:
            PeerUnavailableError: not on this machine, and why.
        """
        self.path.mkdir(parents=True)
        try:
            with self._image.open("wb") as image:
                image.truncate(SIZE_MIB << 20)
            _run("mkfs.ext4", "-q", str(self._image))
            self._mount()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise PeerUnavailableError(f"no file system in a file here: {said.strip()}") from error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("umount", str(self.path))
        self._image.unlink(missing_ok=True)

    def cut(self) -> None:
        """Take its power; who has files open gets EIO from now on.

        No sync may be at work meanwhile: ext4 can answer it with success although the blocks never
        became part of the file (seen with a process that only writes and calls fdatasync, in one
        cut of sixty). A machine without power answers nobody.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Give it power again. Nobody may have a file of it open.

        Raises:
            subprocess.CalledProcessError: somebody has, or it cannot be read.
        """
        _run("umount", str(self.path))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
