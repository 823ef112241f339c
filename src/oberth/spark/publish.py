"""One step from the old store to the new one, and the ledger of what was committed.

oberth/ledger.json    {"loads": {id: ms}, "overwrites": {id: ms}, "queries": {queryId: number}}

``queries`` have the number of the last batch of each stream.
``overwrites`` are loads that began the store anew: they stay known when others do that after them,
as one that is tried again late must not take away what came since.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from typing import Any, Final

from oberth.errors import StoreCorruptError, StoreError, StoreLockedError
from oberth.wall_clock import now_ms

LEDGER: Final = "oberth/ledger.json"
LEDGER_LOADS_MAX: Final = 10_000
"""Loads of either kind that the ledger remembers; the oldest are forgotten."""
_RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100


def read_ledger(root: str) -> dict[str, Any]:
    try:
        with open(f"{root}/{LEDGER}", "rb") as file:
            parsed = json.loads(file.read())
    except FileNotFoundError:
        parsed = empty_ledger()
    except ValueError as error:
        raise StoreCorruptError(f"{root}/{LEDGER} is not JSON: {error}") from None
    ledger: dict[str, Any] = empty_ledger() | parsed
    return ledger


def empty_ledger() -> dict[str, Any]:
    """That of a store in which nothing was committed."""
    return {"loads": {}, "overwrites": {}, "queries": {}}


def begin_anew(ledger: dict[str, Any]) -> dict[str, Any]:
    """What a ledger becomes when a load overwrites its store: nothing stays of what it names."""
    return empty_ledger() | {"overwrites": ledger["overwrites"]}


def is_known(ledger: dict[str, Any], batch: tuple[str, int] | None, load_id: str) -> bool:
    if batch is not None:
        return bool(ledger["queries"].get(batch[0], -1) >= batch[1])
    return bool(load_id) and (load_id in ledger["loads"] or load_id in ledger["overwrites"])


def note(
    ledger: dict[str, Any], batch: tuple[str, int] | None, load_id: str, *, overwrites: bool
) -> None:
    if batch is not None:
        ledger["queries"][batch[0]] = batch[1]
    elif load_id:
        loads = ledger["overwrites" if overwrites else "loads"]
        loads[load_id] = now_ms()
        for old in sorted(loads, key=loads.__getitem__)[:-LEDGER_LOADS_MAX]:
            del loads[old]


def aside_of(root: str) -> str:
    parent, name = os.path.split(root)
    return f"{parent}/.{name}.oberth-aside"


def publish(fresh: str, root: str, *, replaces: bool) -> None:
    """Puts the new tree in the store's place.

    Args:
        fresh: the new tree.
        root: the store.
        replaces: whether the new tree was made with a lock on the store that is there.

    Raises:
        StoreLockedError: a store is there that the new tree knows nothing of; it stays.
    """
    os.makedirs(os.path.dirname(root), exist_ok=True)
    _sync_directory(fresh)
    if not replaces:
        try:
            # The system takes an empty directory's place, and refuses one with anything in it.
            os.rename(fresh, root)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            raise StoreLockedError(
                f"{root} was not there when this began, and another writer or a broker has made "
                "it since; it was left as it is"
            ) from None
    elif not _exchange(fresh, root):
        # Two steps: a kill in between leaves the old store aside, where the next commit finds it.
        aside = aside_of(root)
        os.rename(root, aside)
        os.rename(fresh, root)
        shutil.rmtree(aside, ignore_errors=True)
    _sync_directory(os.path.dirname(root))


def _exchange(first: str, second: str) -> bool:
    """Whether two directories changed places; False where the system does not know how to."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is None:
        return False
    done = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    if number == errno.EBUSY:
        raise StoreError(
            f"{second} is a mount point and cannot be exchanged; put the store in a directory in it"
        )
    raise OSError(number, os.strerror(number), second)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
