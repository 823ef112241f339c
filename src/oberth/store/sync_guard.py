"""After a sync that failed, one that succeeds vouches for nothing that was written before.

A system that could not write pages says so once. It may call them written from then on, and Linux
does: the next sync returns without an error and without them, and they are there until a loss of
power. Queues and index are made again from the log by the next start, which writes all of that
anew; of compacted logs it writes anew what it finds. Until then nobody may say that they are on the
disk.

The CommitLog has a guard of its own, see `oberth.store.flush`; what a start writes anew without
making it says `oberth.store.unsynced_log`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from oberth.errors import StoreError

_LOG: Final = logging.getLogger(__name__)
# No sync says so: a directory could not be opened, or what was to be synced was deleted or closed
# meanwhile. Other numbers tell nothing apart: where files are opened, nobody watches.
_NOT_TRIED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.EBADF)


class SyncGuard:
    """Of files that one says together to be on the disk. Any thread.

    ``on_failed`` is called when a sync fails for the first time.
    """

    __slots__ = ("_on_failed", "_what", "has_failed")

    def __init__(self, what: str, on_failed: Callable[[], None] = lambda: None) -> None:
        self._what = what
        self._on_failed = on_failed
        self.has_failed = False
        """Whether a sync has failed: all later ones are refused."""

    def check(self) -> None:
        """Refuses what only a sync could vouch for.

        Raises:
            StoreError: one has failed.
        """
        if self.has_failed:
            raise StoreError(
                f"{self._what}: a sync has failed, so what is on the disk is known again only when "
                "the store has been opened anew"
            )

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Around syncs that are to be believed, and nothing else.

        Raises:
            StoreError: one has failed before.
            OSError: one of these failed.
        """
        self.check()
        with self.note():
            yield

    @contextmanager
    def note(self) -> Iterator[None]:
        """Around syncs that are tried in any case.

        Raises:
            OSError: one of these failed.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_TRIED and not self.has_failed:
                self.has_failed = True
                self._on_failed()
                _LOG.critical(
                    "%s could not be synced, no check point is written until the store is opened "
                    "anew: %s", self._what, error,
                )  # fmt: skip
            raise
