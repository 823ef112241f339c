"""What is said to be on the disk is there: every sync of the store is missed when it is left out.

Each test has one part of the store promise something on a `FaultDisk`, and looks at what a loss of
power would leave if nothing but what was synced had reached the disk. `tests/syncs_noticed.txt`
names for every sync the test that fails without it.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.store.test_compaction import Kept, T
from tests.store.timer.test_timer_message_store import Rig

from oberth.errors import StoreError
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.formats.paths import ABORT
from oberth.store import tail_stream
from oberth.store.files import RandomFile
from oberth.store.following_store import FollowingStore
from oberth.store.mapped_file import OS_PAGE_SIZE, MappedFile
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.recovery_state import FILE_NAME as STATE
from oberth.store.store_checkpoint import StoreCheckpoint
from oberth.testing.fault_disk import FaultDisk, PowerCut

pytestmark = pytest.mark.crash

SIZE = 4 * OS_PAGE_SIZE
BOUND_S = 60.0


class Machine:
    """A disk, a directory on it, and what a loss of power would leave of that."""

    def __init__(self, directory: Path) -> None:
        self.disk = FaultDisk()
        self.root = directory / "store"
        self._images = directory / "images"

    def image(self, keep: float = 0.0) -> Path:
        target = self._images / str(len(list(self._images.glob("*"))))
        target.mkdir(parents=True)
        self.disk.crash_image(str(target), str(self.root), random.Random(1), keep)
        return target

    def assert_safe(self, *names: str) -> None:
        """The files below these names are on the disk as they are, and there are some."""
        image = self.image()
        for name in names:
            place = self.root / name
            live = [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
            assert live, name
            for path in live:
                copy = image / path.relative_to(self.root)
                assert copy.exists(), f"{path} is not on the disk"
                assert copy.read_bytes() == path.read_bytes(), f"{path} is not whole on the disk"

    def store(self, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH, **more: Any) -> MessageStore:
        config = MessageStoreConfig(
            store_path_root_dir=str(self.root),
            **{
                "mapped_file_size_commit_log": 8192,
                "mapped_file_size_consume_queue": 320,
                "max_hash_slot_num": 16,
                "max_index_num": 32,
                "flush_disk_type": flush,
                "disk_max_used_space_ratio": 95,
                **more,
            },
        )
        store = MessageStore(config, files=self.disk)
        store.load()
        return store


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def fill(store: MessageStore, count: int, since: int = 0) -> None:
    for n in range(since, since + count):
        message = MessageExtBrokerInner.of(f"t{n % 3}", b"%d " % n + bytes(200), keys=f"k{n}")
        assert store.put_message(message).ok
    store.dispatch_nowait()


# ------------------------------------------------------------------------------------------ the log


def queue_of(machine: Machine) -> MappedFileQueue:
    return MappedFileQueue(machine.disk, [str(machine.root / "log")], SIZE)


def test_a_new_segment_has_its_name_on_the_disk(machine: Machine) -> None:
    queue_of(machine).last_or_create()
    assert (machine.image() / "log" / f"{0:020d}").exists()


def test_a_segment_is_flushed(machine: Machine) -> None:
    machine.root.mkdir()
    segment = MappedFile(machine.disk, str(machine.root), 0, SIZE, create=True)
    segment.append(b"abc")
    assert segment.flush(0) == 3
    machine.assert_safe(f"{0:020d}")
    segment.append(b"def")
    segment.sync()
    machine.assert_safe(f"{0:020d}")


def test_a_queue_is_flushed_over_several_segments(machine: Machine) -> None:
    queue = queue_of(machine)
    for n in range(3):
        segment = queue.last_or_create()
        assert segment is not None
        segment.append(bytes([n + 1]) * SIZE)
    queue.flush_to(2 * SIZE + 5)
    assert queue.flushed_where == 3 * SIZE
    machine.assert_safe("log")


def test_the_oldest_segment_does_not_come_back(machine: Machine) -> None:
    """The next one to go might not, and the log had a gap."""
    queue = queue_of(machine)
    for _ in range(3):
        segment = queue.last_or_create()
        assert segment is not None
        segment.append(b"x" * SIZE)
    queue.flush_to(3 * SIZE)
    assert (machine.image() / "log" / f"{0:020d}").exists()
    assert queue.remove_first(1000)
    assert sorted(p.name for p in (machine.image() / "log").iterdir()) == [
        f"{SIZE:020d}", f"{2 * SIZE:020d}"
    ]  # fmt: skip


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_the_log_is_on_the_disk_when_it_is_said(machine: Machine, flush: FlushDiskType) -> None:
    log = machine.root / "log" / "of-its-own"
    store = machine.store(flush, store_path_commit_log=str(log))
    store.start(background=False)
    fill(store, 60)
    if flush is FlushDiskType.ASYNC_FLUSH:
        assert store.flush() == store.max_phy_offset
    machine.assert_safe("log")
    store.kill()


def test_the_log_is_flushed_in_the_background(machine: Machine) -> None:
    """Every few pages, long before all of it is."""
    flushed = threading.Event()

    class Told(FaultDisk):
        def event(self, what: str) -> None:
            FaultDisk.event(self, what)
            is_checkpoint = threading.current_thread().name == "oberth-queue-flush"
            if what.startswith("synced ") and "/commitlog/" in what and not is_checkpoint:
                flushed.set()

    machine.disk = Told()
    store = machine.store(
        flush_interval_commit_log_ms=5,
        flush_commit_log_thorough_interval_ms=3_600_000,
        mapped_file_size_commit_log=1 << 20,
    )
    store.start()
    try:
        flushed.clear()
        assert store.put_message(MessageExtBrokerInner.of("t0", bytes(6 * OS_PAGE_SIZE))).ok
        assert flushed.wait(BOUND_S)
    finally:
        store.shutdown()


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_a_power_cut_behind_a_kill_takes_nothing_that_was_read_or_flushed_since(
    machine: Machine, flush: FlushDiskType, keep: float
) -> None:
    """What a killed process wrote and never synced is found again; from then on it is safe."""
    store = machine.store(flush)
    store.start(background=False)
    fill(store, 20)
    store.checkpoint_now()
    fill(store, 30, since=20)
    store.queues.write_behind()
    store.kill()
    store = machine.store(flush)
    end = store.max_phy_offset
    machine.assert_safe("commitlog")
    store.start(background=False)
    machine.assert_safe("consumequeue", "index", STATE)
    image = machine.image(keep)
    store.kill()
    machine.disk, machine.root = FaultDisk(), image
    store = machine.store(flush)
    assert store.max_phy_offset == end
    for n in range(50):
        (found,) = store.query_message(f"t{n % 3}", f"k{n}", 9, 0, 1 << 62).commit_log_offsets
        message = store.look_message_by_offset(found)
        assert message is not None
        assert message.body.startswith(b"%d " % n)
        assert store.get_message("g", f"t{n % 3}", 0, n // 3, 1).commit_log_offsets == [found]
    store.kill()


# ----------------------------------------------------------------------------- queues and the index


def test_queues_are_flushed_with_their_directories(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 60)
    store.queues.flush()
    machine.assert_safe("consumequeue")
    fill(store, 9, since=60)
    store.queues.write_behind()
    assert store.queues.sync_written(store.max_phy_offset) == store.max_phy_offset
    machine.assert_safe("consumequeue")
    store.kill()


def test_many_queues_are_flushed_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_stream, "SYNC_FILES_MAX", 1)
    test_queues_are_flushed_with_their_directories(machine)
    assert any(what.startswith("sync-all ") for what in machine.disk.log)


def test_the_index_is_flushed(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 5)
    assert store.index is not None
    assert [path.parent.name for path in machine.image().rglob("index/*")] == ["index"]
    store.index.flush()
    machine.assert_safe("index")
    fill(store, 5, since=5)
    store.index.flush()
    machine.assert_safe("index")
    store.kill()


def test_a_full_index_file_is_flushed_before_it_is_said(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 60)
    assert store.index is not None
    store.index._join_flushers()
    image = machine.image()
    assert store.index.safe_counts()
    for name, count in store.index.safe_counts().items():
        assert int.from_bytes((image / "index" / name).read_bytes()[36:40], "big") == count
    checkpoint = StoreCheckpoint(machine.disk, str(image / "checkpoint"))
    checkpoint.load()
    assert checkpoint.values.index_msg_timestamp > 0
    store.kill()


def test_an_index_file_that_is_built_again_replaces_the_damaged_one_in_one_step(
    machine: Machine,
) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 120)
    store.shutdown()
    path = sorted((machine.root / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[36:40] = b"\0\0\0\1"
    path.write_bytes(content)
    machine.disk.adopt(str(machine.root))
    machine.disk.log.clear()
    machine.store().kill()
    assert path.read_bytes() != content
    machine.assert_safe(f"index/{path.name}")
    steps = [what for what in machine.disk.log if what.endswith(path.name)]
    assert [what for what in steps if what.startswith(("rename ", "remove "))] == [
        f"rename {path}.rebuilt {path}"
    ]


def test_an_index_file_that_is_removed_does_not_come_back(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 60)
    index = store.index
    assert index is not None
    index.flush()
    index._join_flushers()
    first = index.index_files[0]
    first.destroy()
    names = [path.name for path in (machine.image() / "index").iterdir()]
    assert sorted(names) == [file.name for file in index.index_files[1:]]


# ----------------------------------------------------------------------------- checkpoint and state


def test_the_checkpoint_is_on_the_disk(machine: Machine) -> None:
    machine.root.mkdir()
    checkpoint = StoreCheckpoint(machine.disk, str(machine.root / "checkpoint"))
    checkpoint.load()
    for timestamp in (5, 6):
        checkpoint.values.physic_msg_timestamp = timestamp
        assert checkpoint.flush()
        machine.assert_safe("checkpoint")


def test_a_checkpoint_is_true(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 30)
    store.checkpoint_now()
    fill(store, 30, since=30)
    store.checkpoint_now()
    machine.assert_safe("commitlog", "consumequeue", "index", "checkpoint", STATE)
    checkpoint = StoreCheckpoint(machine.disk, str(machine.image() / "checkpoint"))
    checkpoint.load()
    assert checkpoint.values == store.checkpoint.values
    store.kill()


def test_the_first_state_of_a_run_is_true(machine: Machine) -> None:
    """It is written before the first put, and counts what was dispatched at the start."""
    store = machine.store()
    store.start(background=False)
    fill(store, 30)
    store.flush()
    store.kill()
    store = machine.store()
    store.start(background=False)
    machine.assert_safe("commitlog", "consumequeue", "index", STATE, ABORT)
    store.kill()


class RoomForNames(FaultDisk):
    """Full, but a file without a block can be made."""

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> RandomFile:
        full, self.full_at = self.full_at, None
        try:
            return FaultDisk.open(self, path, create=create, writable=writable, mode=mode)
        finally:
            self.full_at = full


def test_the_marks_of_a_run_without_room(machine: Machine) -> None:
    """A full disk has no block for them; that a run began must be seen all the same."""
    machine.disk = RoomForNames()
    store = machine.store()
    store.start(background=False)
    fill(store, 3)
    store.shutdown()
    assert (machine.image() / STATE).exists()
    store = machine.store()
    machine.disk.fill(0)
    store.start(background=False)
    image = machine.image()
    assert not (image / STATE).exists()
    assert (image / ABORT).exists()
    store.kill()


def test_a_store_that_leaves_dispatch_to_another_says_what_that_has(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    fill(store, 30)
    store.shutdown()
    following = FollowingStore(store.config, files=machine.disk)
    following.load()
    following.start(background=False)
    machine.disk.log.clear()
    following.checkpoint.values.index_msg_timestamp += 1
    following.checkpoint_now()
    machine.assert_safe("checkpoint", STATE)
    checkpoint = StoreCheckpoint(machine.disk, str(machine.image() / "checkpoint"))
    checkpoint.load()
    assert checkpoint.values == following.checkpoint.values
    following.kill()


# ------------------------------------------------------------------------------------------- timers


def test_the_timers_files_are_on_the_disk_before_its_checkpoint_says_so(machine: Machine) -> None:
    rig = Rig(machine.root, files=machine.disk, timer_roll_window_slot=20)
    machine.disk.make_dirs(str(machine.root / "config"))
    rig.timer.flush_now(rig.now_ms)
    machine.assert_safe("timerwheel", "config/timercheck")
    for n in range(40):
        rig.put(b"%d" % n, TIMER_DELIVER_MS=rig.now_ms + 5000 + n % 7 * 1000)
    rig.run(1000)
    rig.timer.flush_now(rig.now_ms)
    names = ("timerwheel", "timerlog", "config/timercheck", "commitlog")
    machine.assert_safe(*names)
    for n in range(40):
        rig.put(b"more %d" % n, TIMER_DELIVER_MS=rig.now_ms + 5000 + n % 7 * 1000)
    rig.run(1000)
    rig.timer.flush_now(rig.now_ms)
    machine.assert_safe(*names)
    rig.put(b"last", TIMER_DELIVER_MS=rig.now_ms + 5000)
    rig.run(1000)
    rig.timer.shutdown(rig.now_ms)
    machine.assert_safe(*names)
    rig.store.kill()


def test_a_flush_that_the_disk_did_not_take_is_an_error(machine: Machine) -> None:
    store = machine.store()
    store.start(background=False)
    store.put_message(MessageExtBrokerInner.of("T", b"x"))
    end = store.flush()
    assert end == store.appended_offset > 0
    store.put_message(MessageExtBrokerInner.of("T", b"y"))
    store.dispatch_nowait()
    machine.disk.fails = True
    with pytest.raises(StoreError):
        store.flush()
    machine.disk.fails = False
    with pytest.raises(StoreError):
        store.flush()
    assert store.flushed_offset == end
    store.shutdown()
    again = machine.store()
    again.start(background=False)
    assert again.put_message(MessageExtBrokerInner.of("T", b"z")).ok
    assert again.flush() == again.appended_offset > end
    again.shutdown()


def test_the_first_flush_of_a_timer_makes_its_directory(machine: Machine) -> None:
    rig = Rig(machine.root, files=machine.disk, timer_roll_window_slot=20)
    rig.timer.flush_now(rig.now_ms)
    machine.assert_safe("config/timercheck")
    rig.store.kill()


@pytest.mark.parametrize("others", [True, False])
def test_files_of_a_deleted_topic_stay_away(machine: Machine, *, others: bool) -> None:
    """Their directory is gone, too, so it is the one above that has to be synced."""
    store = machine.store()
    store.start(background=False)
    for topic in ("gone", "kept") if others else ("gone",):
        for n in range(4):
            store.put_message(MessageExtBrokerInner.of(topic, b"x", queue_id=n % 2))
    store.dispatch_nowait()
    store.checkpoint_now()
    store.delete_topics(["gone"])
    image = machine.image()
    assert not (image / "consumequeue" / "gone").exists()
    assert (image / "consumequeue" / "kept").exists() == others
    store.kill()


# --------------------------------------------------------------------------------------- compaction


def test_what_is_copied_is_flushed(machine: Machine) -> None:
    kept = Kept(machine.root, machine.disk)
    for n in range(20):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.store.checkpoint_now()
    machine.assert_safe("compaction")
    for n in range(130):
        kept.put(f"k{n % 4}", b"%d" % n)
    assert kept.store.compaction is not None
    kept.store.compaction.follow()
    sealed = kept.segments()[:-1]
    assert sealed
    image = machine.image()
    for folder in ("compactionLog", "compactionCq"):
        for names in sealed:
            for name in set(names):
                path = Path("compaction") / folder / T / "0" / name
                assert (image / path).read_bytes() == (machine.root / path).read_bytes()
    kept.store.kill()


def test_what_is_kept_of_a_deleted_topic_stays_away(machine: Machine) -> None:
    kept = Kept(machine.root, machine.disk)
    for n in range(20):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.store.checkpoint_now()
    machine.assert_safe("compaction")
    kept.store.delete_topics([T])
    image = machine.image()
    for folder in ("compactionLog", "compactionCq"):
        assert not (image / "compaction" / folder / T).exists()
    kept.store.kill()


def test_copies_of_a_killed_process_are_synced(machine: Machine) -> None:
    kept = Kept(machine.root, machine.disk)
    for n in range(20):
        kept.put(f"k{n % 4}", b"%d" % n)
    assert kept.store.compaction is not None
    kept.store.compaction.follow()
    kept.store.kill()
    kept.open()
    machine.assert_safe("compaction")
    kept.store.kill()


def test_copies_that_let_the_log_go_are_on_the_disk(machine: Machine) -> None:
    """Made by a reader; cleaning asks which there are, and deletes then what they are of."""
    kept = Kept(machine.root, machine.disk)
    for n in range(20):
        kept.put(f"k{n % 4}", b"%d" % n)
    compaction = kept.store.compaction
    assert compaction is not None
    end = kept.store.max_phy_offset
    assert compaction.copied_offset(end) == 0
    kept.read()
    assert compaction.copied_offset(end) == end
    machine.assert_safe("compaction")
    kept.store.kill()


def test_copies_that_are_cut_off_stay_away(machine: Machine) -> None:
    """Others come in their place, and the log may have grown past them until the next start."""
    kept = Kept(machine.root, machine.disk)
    for n in range(130):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.store.checkpoint_now()
    machine.assert_safe("compaction")
    assert len(kept.segments()) > 2
    assert kept.store.compaction is not None
    log = kept.store.compaction.find(T, 0)
    assert log is not None
    log.truncate(20)
    ((first, _),) = kept.segments()
    folder = machine.image() / "compaction" / "compactionLog" / T / "0"
    assert [path.name for path in folder.iterdir()] == [first]
    machine.assert_safe(f"compaction/compactionCq/{T}/0/{first}")
    kept.store.kill()


@pytest.mark.parametrize("empties", [False, True])
def test_a_power_cut_at_any_event_of_a_compaction(tmp_path: Path, empties: bool) -> None:
    """The newest of every key is there; ``empties``: all that is compacted was deleted."""
    began = 0

    def play(machine: Machine) -> Kept:
        nonlocal began
        kept = Kept(machine.root, machine.disk)
        for n in range(60 if empties else 130):
            body = b"" if empties and n >= 4 else b"%d" % n
            kept.put(f"k{n % 4}", body)
        kept.store.checkpoint_now()
        began = machine.disk.events
        kept.compact()
        return kept

    whole = Machine(tmp_path / "whole")
    play(whole).store.kill()
    events = range(began + 1, whole.disk.events + 1)
    assert len(events) > 10
    for at in events:
        machine = Machine(tmp_path / str(at))
        machine.disk.cut_power_at = at
        kept: Kept | None = None
        with pytest.raises(PowerCut):
            play(machine)
        for keep in (0.0, 0.5):
            image = machine.image(keep)
            kept = Kept(image)
            kept.sent = [
                (f"k{n % 4}", b"" if empties and n >= 4 else b"%d" % n)
                for n in range(60 if empties else 130)
            ]
            kept.check()
            kept.store.kill()
