"""StoreLock: who is kept out, how long, and what the file says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oberth.errors import StoreLockedError
from oberth.store.offline.lock_state import is_locked
from oberth.store.store_lock import ProcessLock, StoreLock

TAKE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
"""


def another_process_takes(path: str) -> bool:
    taken = subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, check=False)
    return taken.returncode == 0


def test_it_is_held_until_it_is_given_back(tmp_path: Path) -> None:
    lock, second = StoreLock(str(tmp_path)), StoreLock(str(tmp_path))
    lock.acquire()
    with pytest.raises(StoreLockedError, match="this process has the store open"):
        second.acquire()
    second.release()  # it has nothing to give back
    assert not another_process_takes(lock.path)
    lock.release()
    lock.release()
    assert another_process_takes(lock.path)
    second.acquire()
    assert not another_process_takes(lock.path)
    second.release()
    # Not before: a process that closes any descriptor of a file loses its locks of it.
    assert Path(lock.path).read_bytes() == b"lock"


def test_another_name_of_the_same_store_is_kept_out(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    lock, other = StoreLock(str(tmp_path / "store")), StoreLock(str(tmp_path / "link"))
    lock.acquire()
    with pytest.raises(StoreLockedError):
        other.acquire()
    lock.release()


def test_who_asks_whether_a_store_is_open_does_not_open_its_lock(tmp_path: Path) -> None:
    lock = StoreLock(str(tmp_path))
    lock.acquire()
    assert not is_locked(str(tmp_path))  # by another process
    assert not another_process_takes(lock.path)
    lock.release()


def test_a_lock_that_is_no_stores_follows_no_link_and_writes_nothing(tmp_path: Path) -> None:
    """It may lie where anybody can put a link with its name."""
    precious, link = tmp_path / "precious", tmp_path / "lock"
    precious.write_bytes(b"kept")
    link.symlink_to(precious)
    with pytest.raises(OSError, match="lock"):
        ProcessLock(str(link), "exports").acquire()
    link.unlink()
    link.write_bytes(b"kept")
    lock = ProcessLock(str(link), "exports")
    lock.acquire()
    assert not another_process_takes(str(link))
    lock.release()
    assert precious.read_bytes() == link.read_bytes() == b"kept"
