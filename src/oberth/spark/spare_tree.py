"""The queues of the tree that a load has replaced, kept for the next load: no link for each queue.

A load makes a new tree beside the store and exchanges the two (`oberth.spark.load`). What it gets
back is the tree that the store was before. Of that its ConsumeQueues are kept beside the store,
without the files that the load changed:

    .NAME.oberth-spare/consumequeue/…    hard links to files that the store still has
    .NAME.oberth-spare/spare.json        {"state": […], "changed": [path, …], "queues": number}

The next load takes this directory, links what is missing, and has its new tree: it costs what the
two loads touch, however many queues there are.

A spare is only good for the very store that it was made beside, untouched since: nobody has locked
it, its root and its directory of queues have not changed. Brokers and all that writes to a closed
store take the lock, and whoever takes it writes to its file. Else the spare is deleted, as anybody
may delete it at any time. It belongs to who holds the store's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from typing import Any, Final

from oberth.formats import paths

SPARE_FROM: Final = 64
"""Fewer queues are linked faster than a spare is worth."""
_SHARE: Final = 4
"""A load that touches more than one of so many queues leaves no spare: it is none of many."""
_MANIFEST: Final = "spare.json"
_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class SpareTree:
    """The spare beside one store. Made before the store is locked, used while it is."""

    def __init__(self, root: str) -> None:
        """Notes who locked the store last.

        Args:
            root: the store's directory, without symbolic links.
        """
        parent, name = os.path.split(root)
        self._root = root
        self._path = f"{parent}/.{name}.oberth-spare"
        self._locked = _state(f"{root}/{paths.LOCK}", changes=False)

    def take(self, fresh: str) -> tuple[list[str], int] | None:
        """Moves the spare's queues into a new tree; None, and no spare any more, if it is no good.

        Args:
            fresh: the new tree's directory.

        Returns:
            Paths of files below the tree's root that it lacks or has too old, and how many queues
            it has.
        """
        known: Any = None
        with contextlib.suppress(OSError, ValueError):
            with open(f"{self._path}/{_MANIFEST}", "rb") as file:
                known = json.loads(file.read())
            os.unlink(f"{self._path}/{_MANIFEST}")  # it serves once
        good = isinstance(known, dict) and known.get("state") == self._store_state()
        if good:
            os.makedirs(fresh)
            try:
                os.rename(f"{self._path}/{paths.CONSUME_QUEUE}", f"{fresh}/{paths.CONSUME_QUEUE}")
            except OSError:
                good = False
        self.drop()
        return (known["changed"], known["queues"]) if good else None

    def drop(self) -> None:
        """Deletes the spare, if there is one."""
        if os.path.isdir(self._path):
            shutil.rmtree(self._path, ignore_errors=True)

    def keep(self, old: str, changed: Sequence[str], queues: int) -> None:
        """Makes the spare of the tree that the store was, if that pays.

        Called when the trees have been exchanged, before the lock is given back. Whatever fails,
        the next load links every file.

        Args:
            old: the tree; what is not kept of it is the caller's to delete.
            changed: paths below its root of the files of queues that the store has otherwise now.
            queues: how many the store has.
        """
        if queues < SPARE_FROM or len(changed) * _SHARE > queues:
            return
        if not os.path.isdir(f"{old}/{paths.CONSUME_QUEUE}"):
            return  # two renames have stood for the exchange
        with contextlib.suppress(OSError):
            for each in changed:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{old}/{each}")
            os.mkdir(self._path)
            os.rename(f"{old}/{paths.CONSUME_QUEUE}", f"{self._path}/{paths.CONSUME_QUEUE}")
            self._locked = _state(f"{self._root}/{paths.LOCK}", changes=False)
            manifest = {"state": self._store_state(), "changed": list(changed), "queues": queues}
            with open(f"{self._path}/{_MANIFEST}", "w") as file:
                json.dump(manifest, file)

    def _store_state(self) -> list[Any]:
        """What is another after anybody has changed the store: as JSON gives it back."""
        try:
            with open(_BOOT) as file:
                boot = file.read().strip()
        except OSError:
            boot = ""
        queues = f"{self._root}/{paths.CONSUME_QUEUE}"
        # After a loss of power directories may be what they were before.
        return [boot, self._locked, _state(self._root), _state(queues)]


def _state(path: str, *, changes: bool = True) -> list[int]:
    """Which file that is, and when it was written last; with ``changes`` also its inode's time."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    times = [found.st_mtime_ns, found.st_ctime_ns] if changes else [found.st_mtime_ns]
    return [found.st_dev, found.st_ino, *times]
