"""A disk that fills up: puts are refused with a status, reads go on, and room makes it writeable.

On a small tmpfs where one can be mounted, and on a `FaultDisk` that is full between two events.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    GetMessageStatus,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from oberth.store.running_flags import RunningFlag
from oberth.testing.fault_disk import FaultDisk

DISK_SIZE = 6 << 20


def config(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=4000,
        # Only the disk itself says no here, not the ratios.
        disk_space_warning_level_ratio=90,
    )


def put(store: MessageStore, count: int = 32) -> list[PutMessageResult]:
    return store.put_messages(
        [MessageExtBrokerInner.of("t", bytes(2000), keys=f"k{n}") for n in range(count)]
    )


def drain(store: MessageStore) -> None:
    while store.dispatch_behind_bytes:
        assert store.dispatch_nowait() > 0


def everything(store: MessageStore) -> list[int]:
    found: list[int] = []
    offset = 0
    while True:
        result = store.get_message("g", "t", 0, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += result.commit_log_offsets
        offset = result.next_begin_offset


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("a tmpfs is mounted by root only")
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_small_disk_fills_up_and_is_emptied(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    store = MessageStore(config(small_disk / "store"))
    store.load()
    store.start(background=False)
    stored: list[int] = []
    for _ in range(DISK_SIZE // 2000):
        results = put(store, 8)
        stored += [r.commit_log_offset for r in results if r.ok]
        refused = [r for r in results if not r.ok]
        store.dispatch_nowait()
        if refused:
            break
    else:
        pytest.fail("the disk never filled up")
    assert {r.status for r in refused} <= {
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
    }
    assert set(everything(store)) <= set(stored)
    for offset in stored:
        assert store.look_message_by_offset(offset) is not None
    ballast.unlink()
    drain(store)
    again = put(store, 8)
    assert all(result.ok for result in again), again
    stored += [result.commit_log_offset for result in again]
    drain(store)
    assert everything(store) == stored
    store.shutdown()
    with MessageStore(config(small_disk / "store")) as reopened:
        assert everything(reopened) == stored


def test_dispatch_waits_for_room_and_goes_on(tmp_path: Path) -> None:
    disk = FaultDisk()
    store = MessageStore(config(tmp_path), files=disk)
    store.load()
    store.start(background=False)
    assert all(result.ok for result in put(store))
    disk.fill(0)
    store.dispatch_nowait()
    assert store.flags.bits & RunningFlag.LOGIC_DISK_FULL
    refused = put(store, 1)[0]
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    disk.fill(None)
    drain(store)
    assert not store.flags.bits
    assert all(result.ok for result in put(store))
    drain(store)
    assert len(everything(store)) == 64
    store.shutdown()


def test_a_new_segment_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    disk = FaultDisk()
    store = MessageStore(config(tmp_path), files=disk)
    store.load()
    store.start(background=False)
    disk.fill(0)
    refused = put(store)
    assert {r.status for r in refused} == {PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
    disk.fill(None)
    results = put(store)
    assert [r.queue_offset for r in results] == list(range(32))
    store.shutdown()
