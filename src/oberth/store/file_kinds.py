"""What has to be a file, and what a directory, where a store looks for one of a fixed name.

Something of the other kind is put there by people, or by a file system that lost a name. A start
and a rebuild refuse it before they touch anything; who only reads a store names it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from oberth.errors import StoreError
from oberth.formats import epochs, log_checksums, paths
from oberth.formats.config_files import CONFIG_FILES
from oberth.store import (
    disk_reserve,
    dispatch_state,
    queue_ends,
    recovery_state,
    retention,
    unsynced_log,
)
from oberth.store.compaction_log import COMPACTION
from oberth.store.compaction_store import POSITIONS
from oberth.store.files import FileSystem

DIRECTORIES: Final = (
    paths.CONSUME_QUEUE,
    paths.CONSUME_QUEUE_EXT,
    paths.BATCH_CONSUME_QUEUE,
    paths.INDEX,
    paths.CONFIG,
    paths.TIMER_LOG,
    COMPACTION,
    os.path.dirname(dispatch_state.STATE),
)
FILES: Final = (
    paths.LOCK,
    paths.ABORT,
    paths.CHECKPOINT,
    recovery_state.FILE_NAME,
    queue_ends.FILE_NAME,
    retention.FILE_NAME,
    log_checksums.FILE_NAME,
    disk_reserve.FILE_NAME,
    unsynced_log.FILE_NAME,
    dispatch_state.STATE,
    paths.TIMER_WHEEL,
    f"{COMPACTION}/{POSITIONS}",
    f"{COMPACTION}/{unsynced_log.FILE_NAME}",
    epochs.FILE_NAME,
    *(f"{paths.CONFIG}/{name}{end}" for name in CONFIG_FILES for end in ("", ".bak")),
)


class OddOne(NamedTuple):
    """Something of another kind than a store has under its name."""

    path: str
    found: str
    allowed: str


def odd_ones(files: FileSystem, root: str, logs: Iterable[str] = ()) -> Iterator[OddOne]:
    """What lies in a store and is of the wrong kind.

    Args:
        files: where the store lies.
        root: the store's directory.
        logs: the directories of its CommitLog.
    """
    for path in (*logs, *(f"{root}/{name}" for name in DIRECTORIES)):
        if files.exists(path) and not files.is_dir(path):
            yield OddOne(path, "a file", "a directory")
    for path in (f"{root}/{name}" for name in FILES):
        if files.is_dir(path):
            yield OddOne(path, "a directory", "a file")
        elif files.exists(path) and _leads_in_a_circle(files, path):
            yield OddOne(path, "a link that leads to itself", "a file")


def _leads_in_a_circle(files: FileSystem, path: str) -> bool:
    try:
        files.size(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def refuse_linked(directory: str, names: Iterable[str]) -> None:
    """Checks that none of these directories is a symbolic link, nor leads to nothing.

    Who replaces a directory would take the link for all that it holds. Links to files are no harm:
    a file is read through them, and replaced by a file.

    Args:
        directory: where they lie, on a file system of this machine.
        names: theirs; what is not there counts for none.

    Raises:
        StoreError: for the first one.
    """
    for path in (os.path.join(directory, name) for name in names):
        if os.path.islink(path) and not os.path.isfile(path):
            raise StoreError(
                f"{path}: is a symbolic link to {os.readlink(path)}, and what replaces it would "
                "leave out what lies there; move the directory itself here"
            )


def refuse_odd_ones(files: FileSystem, root: str, logs: Iterable[str] = ()) -> None:
    """Checks that there is none of the wrong kind, see `odd_ones`.

    A log that is no directory would look like one without segments, and its queues like left-overs;
    a queue or an index without a place fails for each message.

    Raises:
        StoreError: for the first one.
    """
    for path, found, allowed in odd_ones(files, root, logs):
        raise StoreError(f"{path}: found {found}, allowed is {allowed}; move it away")
