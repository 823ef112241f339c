"""One failed sync ends all of a guard's; what only could not be tried ends none."""

from __future__ import annotations

import errno

import pytest

from oberth.errors import StoreError, StoreFullError
from oberth.store.sync_guard import SyncGuard


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.EACCES, None])
def test_after_a_failed_sync_none_is_tried(number: int | None) -> None:
    guard = SyncGuard("/store: queues")
    with guard.watch():
        pass
    with pytest.raises(OSError, match="broken"), guard.watch():
        raise OSError(number, "broken")
    assert guard.has_failed
    with pytest.raises(StoreError, match="/store: queues: a sync has failed"), guard.watch():
        raise AssertionError("not tried")
    with pytest.raises(StoreError, match="a sync has failed"):
        guard.check()


def test_a_sync_that_is_tried_in_any_case_is_noted() -> None:
    guard = SyncGuard("/store: queues")
    with pytest.raises(OSError, match="broken"), guard.note():
        raise OSError(errno.EIO, "broken")
    assert guard.has_failed
    with guard.note():
        pass
    assert guard.has_failed


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.EBADF])
def test_a_file_that_was_not_open_lost_nothing(number: int) -> None:
    guard = SyncGuard("/store: queues")
    with pytest.raises(OSError, match="shut"), guard.watch():
        raise OSError(number, "shut")
    with pytest.raises(StoreFullError), guard.watch():
        raise StoreFullError("no room")
    assert not guard.has_failed
    with guard.watch():
        pass
