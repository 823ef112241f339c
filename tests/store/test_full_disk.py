"""A disk that fills up: puts are refused with a status, reads go on, and room makes it writeable.

On a small tmpfs and ext4 where they can be mounted, filled to the last block, and on a `FaultDisk`
that is full between two events.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.noted_lock import NotedLock

from oberth.client import ConsumeFromWhere, Message, MessageQueue, Producer, PullConsumer
from oberth.errors import MQBrokerError, StoreFullError
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.disk_reserve import FILE_NAME
from oberth.store.dispatch_handover import LOCK, FileLock
from oberth.store.dispatch_state import DispatchState
from oberth.store.files import OsFileSystem
from oberth.store.following_store import FollowingStore
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    GetMessageStatus,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from oberth.store.running_flags import RunningFlag
from oberth.testing.embedded_broker import EmbeddedBroker
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


def mount(kind: str, where: Path, size: int) -> None:
    """Mounts an empty file system of so many bytes, or skips the test."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("file systems are mounted by root only")
    where.mkdir()
    if kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]]
    else:
        image = where.parent / "image"
        with image.open("wb") as file:
            file.truncate(size)
        commands = [
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(image)],
            ["mount", "-o", "loop", str(image), str(where)],
        ]
    for command in commands:
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]} on this machine")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no {kind} can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    mount("tmpfs", where, DISK_SIZE)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    mount(request.param, where, 16 << 20)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path) -> None:
    """Takes the last block."""
    with open(disk / "ballast", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())  # ext4 gives blocks out late, and then some are left
            while file.write(bytes(4096)):
                pass


def fill_store(disk: Path, *, reserve: bool = True) -> tuple[MessageStore, list[int]]:
    """A store that has taken messages until the disk had no block left, and their offsets."""
    store = MessageStore(config(disk / "store"))
    store.load()
    store.start(background=False)
    stored: list[int] = []
    for number in itertools.count():
        if not reserve and number % 190 == 0:
            store.checkpoint_now()
        results = put(store, 8)
        stored += [result.commit_log_offset for result in results if result.ok]
        if not all(result.ok for result in results):
            break
        store.dispatch_nowait()
    if not reserve:
        (disk / "store" / FILE_NAME).unlink(missing_ok=True)
    fill(disk)
    return store, stored


def kill(store: MessageStore) -> None:
    """Ends a store without a shutdown. A process that dies also lets go of deleted files."""
    store.kill()
    store.commit_log.queue.close()


def readable(store: MessageStore, stored: list[int]) -> list[int]:
    """Checks that what can be read is the end of what was stored, and that it is intact."""
    found: list[int] = []
    offset = store.min_offset_in_queue("t", 0)
    while True:
        result = store.get_message("g", "t", 0, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            break
        found += result.commit_log_offsets
        offset = result.next_begin_offset
    assert found == stored[len(stored) - len(found) :]
    for commit_log_offset in found:
        assert store.look_message_by_offset(commit_log_offset) is not None
    return found


def makes_room_and_goes_on(store: MessageStore, stored: list[int]) -> None:
    before = store.min_phy_offset
    segments = len(store.commit_log.queue.segments)
    deleted = store.cleaning.run()
    assert deleted > 0 or before > 0, "cleaning freed nothing"
    assert len(store.commit_log.queue.segments) == segments - deleted
    drain(store)
    store.cleaning.run()
    assert not store.flags.bits, store.flags.describe()
    again = put(store, 8)
    assert all(result.ok for result in again), again
    assert [r.queue_offset for r in again] == list(range(len(stored), len(stored) + 8))
    stored += [result.commit_log_offset for result in again]
    drain(store)
    assert readable(store, stored)
    assert os.path.exists(f"{store.root}/{FILE_NAME}"), "the reserve was not taken again"


@pytest.mark.parametrize("reserve", [True, False])
def test_a_full_disk_frees_itself(disk: Path, reserve: bool) -> None:
    store, stored = fill_store(disk, reserve=reserve)
    assert os.statvfs(disk).f_bavail == 0
    makes_room_and_goes_on(store, stored)
    store.shutdown()
    with MessageStore(config(disk / "store")) as reopened:
        assert readable(reopened, stored)[-8:] == stored[-8:]


@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_start_on_a_full_disk_comes_up(disk: Path, end: str, reserve: bool) -> None:
    store, stored = fill_store(disk, reserve=reserve)
    if end == "kill":
        kill(store)
    else:
        store.shutdown()
    fill(disk)
    reopened = MessageStore(config(disk / "store"))
    reopened.load()
    reopened.start(background=False)
    assert readable(reopened, stored[: reopened.max_offset_in_queue("t", 0)])
    assert reopened.query_message("t", "k1", 1, 0, 2**62).records
    makes_room_and_goes_on(reopened, stored)
    reopened.shutdown()


@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_store_that_another_process_dispatches_starts_on_a_full_disk(
    disk: Path, end: str, reserve: bool
) -> None:
    """It leaves queues and index to the dispatcher, or keeps them if no block says so."""
    with FollowingStore(config(disk / "store")):
        pass  # makes the files that such a store has
    store, stored = fill_store(disk, reserve=reserve)
    if end == "kill":
        kill(store)
    else:
        store.shutdown()
    if not reserve:
        (disk / "store" / FILE_NAME).unlink(missing_ok=True)
    reserve = (disk / "store" / FILE_NAME).exists()  # to stop may have taken it
    fill(disk)
    again = FollowingStore(config(disk / "store"))
    again.load()
    again.start(background=False)
    assert readable(again, stored[: again.max_offset_in_queue("t", 0)])
    again.cleaning.run()
    assert again.min_phy_offset > 0, "cleaning freed nothing"
    again.cleaning.run()
    assert not again.flags.bits & RunningFlag.DISK_FULL
    state = DispatchState.load(again.root)
    assert state is not None
    lock = FileLock(again.root, LOCK)
    is_left = lock.acquire_nowait()
    lock.close()
    if is_left:
        assert state.position == again.dispatched_offset
    else:
        assert not reserve
        makes_room_and_goes_on(again, stored)
    again.shutdown()
    with MessageStore(config(disk / "store")) as third:
        assert readable(third, stored)[-8:] == stored[-8:]


@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("kind", [MessageStore, FollowingStore])
def test_what_is_not_compacted_yet_stays_and_the_rest_goes(
    disk: Path, kind: type[MessageStore], reserve: bool
) -> None:
    """More than the reserve has room for: it is copied step by step, as segments before it go."""
    settings = config(disk / "store")
    settings.compaction_mapped_file_size = 64 << 10
    settings.compaction_cq_mapped_file_size = 46 * 100
    with FollowingStore(settings):
        pass  # makes the files that such a store has

    def attributes(topic: str) -> dict[str, str]:
        return {"cleanup.policy": "COMPACTION"} if topic == "kept" else {}

    def opened(made: MessageStore) -> MessageStore:
        made.load()
        made.start(background=False)
        return made

    settings.enable_compaction = False
    store = opened(MessageStore(settings))
    for topic in ("t", "kept"):
        for number in range(0, 2000, 100):
            messages = [
                MessageExtBrokerInner.of(topic, bytes(2000), keys=f"k{n}")
                for n in range(number, number + 100)
            ]
            assert all(result.ok for result in store.put_messages(messages))
            drain(store)
    store.shutdown()
    if not reserve:
        (disk / "store" / FILE_NAME).unlink(missing_ok=True)
    fill(disk)
    settings.enable_compaction = True
    store = opened(kind(settings, topic_attributes=attributes))
    for _ in range(50):
        store.cleaning.run()
        with contextlib.suppress(StoreFullError):
            store.checkpoint_now()
            break
    assert store.min_phy_offset > 3 << 20
    store.checkpoint_now()
    found: list[str] = []
    offset = 0
    while (result := store.get_message("g", "kept", 0, offset, 32)).message_count:
        found += [decode_record(each).properties["KEYS"] for each in result.records]
        offset = result.next_begin_offset
    assert found == [f"k{n}" for n in range(2000)]
    store.shutdown()


def test_a_full_disk_that_may_not_be_cleaned_is_read(disk: Path) -> None:
    def open_store() -> MessageStore:
        settings = config(disk / "store")
        settings.clean_file_forcibly_enable = False
        store = MessageStore(settings)
        store.load()
        store.start(background=False)
        return store

    (disk / "ballast").write_bytes(bytes(6 << 20))
    store, stored = fill_store(disk, reserve=False)
    kill(store)
    for name in ("consumequeue", "index"):
        shutil.rmtree(disk / "store" / name)
    fill(disk)
    reopened = open_store()
    assert reopened.cleaning.run() == 0
    known = readable(reopened, stored[: reopened.max_offset_in_queue("t", 0)])
    assert put(reopened, 1)[0].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    for offset in stored:
        assert reopened.look_message_by_offset(offset) is not None
    (disk / "ballast").unlink()
    reopened.cleaning.run()
    drain(reopened)
    reopened.cleaning.run()
    assert len(readable(reopened, stored)) == len(stored) >= len(known)
    again = put(reopened, 1)[0]
    assert (again.ok, again.queue_offset) == (True, len(stored))
    reopened.shutdown()


def test_a_kill_on_a_full_disk_is_seen_as_one(disk: Path) -> None:
    store, stored = fill_store(disk, reserve=False)
    store.shutdown()
    for name in ("abort", "oberth.state"):
        (disk / "store" / name).unlink(missing_ok=True)
    fill(disk)
    again = MessageStore(config(disk / "store"))
    again.load()
    again.start(background=False)
    assert (disk / "store" / "abort").exists()
    kill(again)
    third = MessageStore(config(disk / "store"))
    assert third.load().abnormal
    third.start(background=False)
    makes_room_and_goes_on(third, stored)
    third.shutdown()


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "query"])
def test_offline_tools_read_a_store_on_a_full_disk(disk: Path, command: str) -> None:
    """In processes of their own: a file system in memory ends who touches a hole of a mapping."""
    store, _ = fill_store(disk, reserve=False)
    kill(store)
    fill(disk)
    arguments = {"query": ["--topic", "t", "--key", "k1"]}.get(command, [])
    done = subprocess.run(
        [sys.executable, "-m", "oberth", "store", command, str(disk / "store"), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    assert done.stdout or command == "verify"  # its findings go to stderr


BROKER = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskSpaceWarningLevelRatio": "90",
}


QUEUE = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)


async def read_all(mq: EmbeddedBroker, count: int = 0) -> list[int]:
    """The queue offsets that a new group gets: those that are there now, and up to ``count``."""
    found: list[int] = []
    async with PullConsumer(
        f"g{os.urandom(4).hex()}", namesrv_addr=mq.namesrv_addr, auto_commit=False,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        queue = QUEUE
        await consumer.assign([queue])
        end = max(count, await consumer.max_offset(queue))
        await consumer.seek_to_begin(queue)
        while not found or found[-1] < end - 1:
            found += [message.queue_offset for message in await consumer.poll()]
    return found


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_broker_starts_serves_and_stops_on_a_full_disk(disk: Path, end: str) -> None:
    """It may not clean, so nothing gets better by itself; with room it goes on."""
    settings = {**BROKER, "cleanFileForciblyEnable": "false"}
    async with EmbeddedBroker(settings, store=disk / "store") as mq:
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("t", b"makes the topic"))
        first = len(mq.messages("t", 0))
    (disk / "ballast").write_bytes(bytes(6 << 20))
    store, stored = fill_store(disk, reserve=False)
    if end == "kill":
        kill(store)
    else:
        store.shutdown()
    fill(disk)
    for _ in range(2):
        async with EmbeddedBroker(settings, store=disk / "store") as mq:
            # The newest may wait in the log until their queue has room.
            assert (found := await read_all(mq)) == list(range(len(found)))
            async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
                # It is refused, or there was room in the segment's last block.
                with contextlib.suppress(MQBrokerError):
                    result = await producer.send(Message("t", bytes(2000)), mq=QUEUE)
                    stored.append(result.queue_offset)
        fill(disk)
    (disk / "ballast").unlink()
    async with EmbeddedBroker(settings, store=disk / "store") as mq:
        count = first + len(stored)
        assert await read_all(mq, count) == list(range(count))
        store = mq.broker.parts.store
        await mq.wait_until(lambda: not store.flags.bits)
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("t", b"room"), mq=QUEUE)
        assert await read_all(mq, count + 1) == list(range(count + 1))


def test_errors_of_a_full_disk_name_the_file(disk: Path) -> None:
    files = OsFileSystem()
    fill(disk)
    path = str(disk / "a file")
    with pytest.raises(StoreFullError, match="a file"):
        files.write_file(path, bytes(1 << 20))
    with pytest.raises(StoreFullError, match="a file"):
        files.map(path, 1 << 20, create=True).allocate(0, 1 << 20)
    with pytest.raises(StoreFullError, match="a file"):
        files.open(path).write(bytes(1 << 20), 0)


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


def test_two_check_points_on_a_full_disk_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes while the first has stopped dispatch, for the reserve."""
    disk = FaultDisk()
    store = MessageStore(config(tmp_path), files=disk)
    store.load()
    store.start(background=False)
    put(store)
    drain(store)
    noted = NotedLock(store._checkpoint_lock, "second")
    monkeypatch.setattr(store, "_checkpoint_lock", noted)
    second = threading.Thread(target=store.checkpoint_now, name="second", daemon=True)

    def give_back() -> bool:
        second.start()
        assert noted.asked.wait(60)
        disk.fill(None)
        return True

    monkeypatch.setattr(store._reserve, "give_back", give_back)
    disk.fill(0)
    first = threading.Thread(target=store.checkpoint_now, daemon=True)
    first.start()
    for each in (first, second):
        each.join(60)
        assert not each.is_alive()
    assert store._state_offset == store.max_phy_offset
    store.shutdown()
