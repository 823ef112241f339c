"""After a kill nothing that was delivered from a delay level is delivered again.

A real store under a virtual clock that is left as a kill leaves it, and the file by itself.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.damage import copy_killed

from oberth.broker.delay_progress import (
    LEVELS_MAX,
    DelayProgress,
    decode,
    encode,
)
from oberth.broker.schedule_service import ScheduleService
from oberth.errors import StoreFullError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.paths import DELAY_PROGRESS
from oberth.store.message_store import MessageStore
from oberth.store.messages import LOCAL_HOST, MessageExtBrokerInner
from oberth.testing.fault_disk import FaultDisk

OFFSETS = st.dictionaries(st.integers(1, 20), st.integers(0, 2**62), max_size=20)


@given(st.integers(0, 2**62), OFFSETS)
def test_what_is_written_is_read(log_end: int, offsets: dict[int, int]) -> None:
    assert decode(encode(log_end, offsets)) == (log_end, offsets)
    # A shorter text was written over a longer one.
    assert decode(encode(log_end, offsets) + b"rest") == (log_end, offsets)


def test_a_level_without_an_offset_is_minus_1_in_the_file() -> None:
    assert encode(100, {2: 5})[8:] == bytes.fromhex(
        "000000000000006400000002ffffffffffffffff0000000000000005"
    )


@given(OFFSETS, st.data())
def test_a_torn_file_is_not_read(offsets: dict[int, int], data: st.DataObject) -> None:
    whole = encode(1 << 40, offsets)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode(whole[:cut]) is None
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(bytes(flipped)) is None


@given(st.binary(max_size=100))
def test_anything_may_be_in_the_file(data: bytes) -> None:
    assert decode(data) is None


def test_too_many_levels_are_not_read() -> None:
    assert decode(encode(0, {LEVELS_MAX: 1})) is not None
    assert decode(encode(0, {LEVELS_MAX + 1: 1})) is None


class World:
    """A store, its delay levels and the time."""

    def __init__(self, root: Path, now: int = 1_700_000_000_000, **options: Any) -> None:
        self.now = now
        self.root = root
        self.options = options
        config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=6000,
            max_hash_slot_num=100,
            max_index_num=400,
            message_delay_level="1s 5s",
            **options,
        )
        self.store = MessageStore(config, clock_ms=lambda: self.now)
        self.store.load()
        self.store.start(reput_thread=False, background=not options)
        self.schedule = ScheduleService(self.store, lambda: LOCAL_HOST)
        self.progress = DelayProgress(self.store, self.schedule)
        self.progress.load()
        self.schedule.start()

    def delay(self, level: int) -> None:
        message = MessageExtBrokerInner.of("T", b"x", properties={"DELAY": str(level)})
        (result,) = self.store.append_messages([message])
        assert result.ok
        self.store.flush()
        self.store.dispatch_nowait()

    def tick(self, ms: int) -> int:
        self.now += ms
        delivered = self.schedule.deliver(self.now)
        self.progress.on_time()
        self.store.dispatch_nowait()
        return delivered

    def killed(self, root: Path) -> World:
        """Another world on what a kill leaves of this one at this moment."""
        copy_killed(self.root, root)
        return World(root, self.now, **self.options)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    worlds = [World(tmp_path / "0")]

    class Worlds:
        first = worlds[0]

        @staticmethod
        def killed(world: World) -> World:
            worlds.append(world.killed(tmp_path / str(len(worlds))))
            return worlds[-1]

    yield Worlds
    for each in worlds:
        each.store.shutdown()


def test_a_kill_repeats_no_delivery(world: Any) -> None:
    first = world.first
    for _ in range(5):
        first.delay(1)
    first.delay(2)
    assert first.tick(1_000) == 5
    second = world.killed(first)
    assert second.schedule.offsets == {1: 5, 2: 0}
    assert second.tick(100) == 0
    assert second.tick(4_000) == 1
    second.delay(1)
    third = world.killed(world.killed(second))
    assert third.tick(0) == 0
    assert third.tick(1_000) == 1


def test_a_log_that_lost_its_end_makes_the_file_worthless(world: Any) -> None:
    first = world.first
    first.delay(1)
    end = first.store.max_phy_offset
    assert first.tick(1_000) == 1
    # As a loss of power may leave it: the delivery is gone, the file says it was made.
    path = Path(first.progress.path)
    data = path.read_bytes()
    assert decode(data) == (first.store.max_phy_offset, {1: 1})
    path.write_bytes(encode(first.store.max_phy_offset + 1, {1: 1}))
    second = world.killed(first)
    assert second.schedule.offsets == {}
    assert second.tick(0) == 1
    assert end < first.store.max_phy_offset
    # The log is longer now than the old file said, so the old file must not come back.
    third = world.killed(second)
    assert third.schedule.offsets == {1: 1}
    assert third.tick(0) == 0


def test_a_kill_that_takes_the_transient_pool_takes_no_delivery(tmp_path: Path) -> None:
    first = World(tmp_path / "0", transient_store_pool_enable=True, transient_store_pool_size=2)
    first.delay(1)
    assert first.tick(1_000) == 1  # only the pool has it
    second = first.killed(tmp_path / "1")
    assert second.schedule.offsets == {}
    assert second.tick(0) == 1
    second.store.flush()
    third = second.killed(tmp_path / "2")
    assert third.schedule.offsets == {1: 1}
    for each in (first, second, third):
        each.store.shutdown()


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_log_that_lost_a_page_makes_the_file_worthless(world: Any, is_mended: bool) -> None:
    first = world.first
    first.delay(1)
    start = first.store.max_phy_offset
    assert first.tick(1_000) == 1
    end = first.store.max_phy_offset
    first.delay(2)
    assert first.tick(0) == 0
    # As a loss of power may leave it: the delivery's page is gone, what came later is there.
    image = first.root.with_name("image")
    copy_killed(first.root, image)
    with (image / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(start)
        log.write(bytes(end - start))
    if is_mended:
        # Somebody opened the store before the broker did, and was killed: no damage is left.
        config = dataclasses.replace(first.store.config, store_path_root_dir=str(image))
        disk = FaultDisk()
        store = MessageStore(config, clock_ms=lambda: first.now, files=disk)
        assert store.load().damages
        at = disk.log.index(f"remove {image}/{DELAY_PROGRESS}")
        assert disk.log[at + 1] == f"sync-directory {image}"  # before anything is mended
        store.start(background=False)
        store.kill()
    second = World(image, first.now)
    assert second.store.report is not None
    assert bool(second.store.report.damages) is not is_mended
    assert second.schedule.offsets == {}
    assert second.tick(0) == 1
    second.store.shutdown()


def test_an_older_file_takes_nothing_back(world: Any) -> None:
    first = world.first
    first.delay(1)
    first.tick(1_000)
    first.schedule.offsets = {1: 1, 2: 0}
    Path(first.progress.path).write_bytes(encode(0, {1: 0}))
    first.progress.load()
    assert first.schedule.offsets == {1: 1, 2: 0}


def test_an_orderly_stop_removes_the_file(world: Any) -> None:
    first = world.first
    first.delay(1)
    first.tick(1_000)
    assert Path(first.root, DELAY_PROGRESS).exists()
    first.progress.remove()
    first.progress.remove()
    assert not Path(first.root, DELAY_PROGRESS).exists()


def test_a_full_disk_stops_no_delivery(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.first

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no room")

    monkeypatch.setattr(first.store.files, "open", full)
    first.delay(1)
    assert first.tick(1_000) == 1
    monkeypatch.undo()
    first.delay(1)
    assert first.tick(1_000) == 1
    assert decode(Path(first.progress.path).read_bytes()) is not None


def test_a_file_that_cannot_be_written_is_named_once_until_it_can(
    world: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.first

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no room")

    for times in (1, 2):
        first.progress.remove()
        with monkeypatch.context() as patched:
            patched.setattr(first.store.files, "open", full)
            for _ in range(2):
                first.delay(1)
                first.tick(1_000)
        assert caplog.text.count("a crash would deliver more messages again") == times
        first.tick(0)


async def test_a_killed_broker_delivers_nothing_again(make_live: Any, tmp_path: Path) -> None:
    live = await make_live(messageDelayLevel="1s 2s")
    for n in range(3):
        await live.peer.send("T", b"%d" % n, 0, {"DELAY": "1"})
    live.broker.services.dispatching.now()
    await live.later(1_500)
    assert [message.body for message in await live.peer.read("T")] == [b"0", b"1", b"2"]
    await live.peer.send("T", b"pending", 0, {"DELAY": "2"})
    live.broker.services.dispatching.now()
    await live.until(lambda: not live.broker.services.table_files.is_writing)
    # What a kill at this moment leaves.
    shutil.copytree(tmp_path / "store-0", tmp_path / "store-1")
    again = await make_live(messageDelayLevel="1s 2s")
    await again.later(live.clock.ahead_ms + 5_000)
    found = [message.body for message in await again.peer.read("T")]
    assert found == [b"0", b"1", b"2", b"pending"]
    await again.stop()
    assert not (tmp_path / "store-1" / DELAY_PROGRESS).exists()
    await again.start()
    await again.later(5_000)
    assert len(await again.peer.read("T")) == 4


async def test_delay_offset_json_is_written_at_its_own_interval(
    make_live: Any, tmp_path: Path
) -> None:
    live = await make_live(messageDelayLevel="1s", flushDelayOffsetInterval="60000")
    tables = live.broker.services.table_files
    path = tmp_path / "store-0" / "config" / "delayOffset.json"
    await live.peer.send("T", b"one", 0, {"DELAY": "1"})
    live.broker.services.dispatching.now()
    await live.later(6_000)  # in this time offsets of groups were written
    await live.until(lambda: not tables.is_writing)
    assert live.broker.parts.schedule.is_dirty
    assert not path.exists()
    await live.later(60_000)
    await live.until(lambda: not tables.is_writing)
    assert "1:1" in path.read_text()
