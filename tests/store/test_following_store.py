"""A store that another process dispatches, while queues and index change hands; no dispatcher runs.

`tests/spark/pipelines/test_tail_dispatch.py` has both at work.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.rigs.noted_lock import NotedLock

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.following_store import FollowingStore
from oberth.store.message_store import MessageStore


def test_a_check_point_that_waits_for_the_handover_leaves_queues_and_index_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FollowingStore(
        MessageStoreConfig(
            store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 20, max_index_num=40
        )
    )
    store.load()
    store.start(background=False)
    followed = store.reput
    noted = NotedLock(store._checkpoint_lock, "second")
    monkeypatch.setattr(store, "_checkpoint_lock", noted)
    written: list[bool] = []
    monkeypatch.setattr(MessageStore, "_checkpoint", lambda _store, *, clean: written.append(clean))
    second = threading.Thread(target=store.checkpoint_now, name="second")
    with noted:
        store.reput = store._own_dispatch
        second.start()
        assert noted.asked.wait(60)
        store.reput = followed
    second.join(60)
    assert not written
    monkeypatch.undo()
    store.shutdown()
