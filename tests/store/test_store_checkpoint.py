"""The checkpoint reads what both Java lines wrote and writes what both read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.store.files import OsFileSystem
from oberth.store.store_checkpoint import StoreCheckpoint

Golden = Callable[[str], Any]


def open_checkpoint(path: Path, *, writable: bool = True) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(OsFileSystem(), str(path), writable=writable)
    checkpoint.load()
    return checkpoint


def test_golden(golden_name: str, golden_store: Golden) -> None:
    store = golden_store(golden_name)
    path = store.root / "checkpoint"
    before = path.read_bytes()
    checkpoint = open_checkpoint(path)
    facts = store.facts["checkpoint"]
    values = checkpoint.values
    assert values.physic_msg_timestamp == facts["physicMsgTimestamp"]
    assert values.logics_msg_timestamp == facts["logicsMsgTimestamp"]
    assert values.index_msg_timestamp == facts["indexMsgTimestamp"]
    assert values.min_timestamp == facts["minTimestamp"]
    if "logicsPhysicalOffset" in facts:
        assert values.logics_physical_offset == facts["logicsPhysicalOffset"]
    assert not checkpoint.flush(), "nothing has changed"
    assert path.read_bytes() == before
    values.physic_msg_timestamp += 1
    assert checkpoint.flush()
    after = path.read_bytes()
    assert len(after) == 4096
    assert after[8:] == before[8:]
    assert open_checkpoint(path).values == values


@pytest.mark.parametrize("content", [None, b"", b"\0\0\0\0\0\0\0\7"])
def test_missing_and_short_files_read_as_zeros(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_bytes(content)
    checkpoint = open_checkpoint(path)
    assert checkpoint.values.physic_msg_timestamp == (7 if content else 0)
    assert checkpoint.values.confirm_offset == 0
    checkpoint.values.logics_msg_timestamp = 5
    assert checkpoint.flush()
    assert path.stat().st_size == 4096
    assert open_checkpoint(path).values.logics_msg_timestamp == 5


def test_read_only_writes_nothing(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tmp_path / "checkpoint", writable=False)
    checkpoint.values.physic_msg_timestamp = 1
    assert not checkpoint.flush()
    assert list(tmp_path.iterdir()) == []
