"""What store and dispatcher tell each other: layouts, locks, files that are absent or torn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import StoreLockedError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.dispatch_handover import (
    LOCK,
    PROGRESS,
    FileLock,
    Progress,
    ProgressFile,
)
from oberth.store.dispatch_state import STATE, DispatchState
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner

HALF_JUNK = (
    b'{"position": 1, "lastRecord": null}',
    b'{"position": 1, "queueEnd": "x"}',
    b'{"position": 1, "indexCounts": [7]}',
    b'{"position": 1, "settings": 7}',
)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64, INT64)
def test_progress_comes_as_it_was_told(
    tmp_path_factory: pytest.TempPathFactory, epoch: int, position: int, timestamp: int
) -> None:
    root = str(tmp_path_factory.mktemp("store"))
    writer, reader = ProgressFile(root), ProgressFile(root)
    assert reader.read() is None
    told = Progress(epoch, position, timestamp)
    writer.write(told)
    assert reader.read() == told
    raw = (Path(root) / PROGRESS).read_bytes()
    assert [int.from_bytes(raw[at : at + 8], "big", signed=True) for at in (0, 8, 16)] == [*told]
    writer.close()
    reader.close()


def test_a_torn_progress_is_none(tmp_path: Path) -> None:
    file = ProgressFile(str(tmp_path))
    file.write(Progress(1, 2, 3))
    path = tmp_path / PROGRESS
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert file.read() is None
        path.write_bytes(whole[:at])
        assert file.read() is None
    file.close()


def test_a_state_comes_back_and_junk_is_none(tmp_path: Path) -> None:
    assert DispatchState.load(str(tmp_path)) is None
    (tmp_path / "oberth").mkdir()
    state = DispatchState(7, 3, 99, 6, 2, {"20260101000000000": 5}, {"dispatch": "spark"}, True)
    state.save(str(tmp_path))
    assert DispatchState.load(str(tmp_path)) == state
    for junk in (b"", b"{", b"[]", b'{"position": "x"}', b"\xff", *HALF_JUNK):
        (tmp_path / STATE).write_bytes(junk)
        assert DispatchState.load(str(tmp_path)) is None
    (tmp_path / STATE).write_bytes(b'{"position": 7}')
    assert DispatchState.load(str(tmp_path)) == DispatchState(7)


def test_one_has_the_lock(tmp_path: Path) -> None:
    one, other = FileLock(str(tmp_path), LOCK), FileLock(str(tmp_path), LOCK)
    assert one.acquire_nowait()
    taken = [other.is_taken]
    with pytest.raises(StoreLockedError, match=r"dispatch\.lock: held for more than 0\.02 s"):
        other.acquire(0.02)
    one.release()
    taken.append(other.is_taken)
    assert taken == [True, False]
    other.acquire(0.02)
    other.close()
    assert one.acquire_nowait()
    one.close()
    assert os.path.exists(tmp_path / LOCK)


def test_what_a_killed_dispatcher_left_of_the_index_is_made_anew(tmp_path: Path) -> None:
    """Its entries may be there without the slots that lead to them, however the store stopped."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    with MessageStore(config) as store:
        for n in range(50):
            store.put_message(MessageExtBrokerInner.of("t", b"x", keys=f"k{n}", queue_id=0))
    (path,) = (tmp_path / "index").iterdir()
    with path.open("r+b") as file:
        file.seek(40)
        file.write(bytes(4 * 100))
    (tmp_path / STATE).parent.mkdir()
    DispatchState(0, is_whole=False).save(str(tmp_path))
    with MessageStore(config) as store:
        for n in range(50):
            assert len(store.query_message("t", f"k{n}", 9, 0, 2**62).commit_log_offsets) == 1
    left = DispatchState.load(str(tmp_path))
    assert left is not None
    assert left.is_whole
