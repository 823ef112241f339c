"""What a sync could not write is not believed of a later one: not by check points, nor by starts.

The `FaultDisk` does as Linux: a sync that fails says so once, and calls the pages written. Later
ones succeed without them, until they are written to again. What a loss of power then leaves is what
the disk really got.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.store.test_compaction import Kept, T

from oberth.errors import StoreError
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.store import compaction_store, message_store
from oberth.store.compaction_store import CompactionStore
from oberth.store.disk_reserve import FILE_NAME as RESERVE
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.recovery_state import load_state
from oberth.store.unsynced_log import FILE_NAME as UNSYNCED
from oberth.testing.fault_disk import FaultDisk

pytestmark = pytest.mark.crash


class Rig:
    """A store on such a disk, and the messages that were put into it."""

    def __init__(self, root: Path, disk: FaultDisk | None = None, **options: Any) -> None:
        self.root = root
        self.disk = disk or FaultDisk()
        self.options = options
        self.bodies: list[bytes] = []

    def open(self) -> MessageStore:
        config = MessageStoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=16 << 10,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=16,
            max_index_num=64,
            disk_max_used_space_ratio=95,
            **self.options,
        )
        self.store = MessageStore(config, files=self.disk)
        self.store.load()
        return self.store

    def start(self) -> MessageStore:
        self.open().start(background=False)
        return self.store

    def put(self, count: int) -> None:
        for _ in range(count):
            n = len(self.bodies)
            self.bodies.append(b"%d " % n + bytes(200))
            message = MessageExtBrokerInner.of("t", self.bodies[-1], keys=f"k{n}")
            self.store.append_messages([message])
        self.store.dispatch_nowait()

    def fail(self, where: str) -> None:
        self.disk.fails, self.disk.fails_at = True, where

    def cut_power(self, image: Path) -> None:
        """Goes on with what the disk has got."""
        image.mkdir()
        self.disk.crash_image(str(image), str(self.root), random.Random(1), 0.0)
        self.root, self.disk = image, FaultDisk()

    def check(self) -> None:
        """All messages are read by their numbers, and found by their keys."""
        store = self.store
        assert store.max_offset_in_queue("t", 0) == len(self.bodies)
        for n, body in enumerate(self.bodies):
            (at,) = store.get_message("g", "t", 0, n, 1).commit_log_offsets
            message = store.look_message_by_offset(at)
            assert message is not None
            assert message.body == body
            assert store.query_message("t", f"k{n}", 9, 0, 1 << 62).commit_log_offsets == [at]


def run_queue_flush(store: MessageStore, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Some turns of the thread that writes queues behind."""
    left = [rounds]

    def wait(_seconds: float) -> bool:
        left[0] -= 1
        return left[0] < 0

    with monkeypatch.context() as patched:
        patched.setattr(store._stopping, "wait", wait)
        store._run_queue_flush()


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_no_check_point_vouches_for_what_a_sync_before_it_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(20)
    rig.store.checkpoint_now()
    safe = rig.store.max_phy_offset
    rig.put(20)
    rig.fail(part)
    with pytest.raises(OSError, match="injected"):
        rig.store.checkpoint_now()
    assert rig.store.has_failed_syncs
    assert "no check point is written until the store is opened anew" in caplog.text
    rig.disk.fails = False
    rig.put(20)
    with pytest.raises(StoreError, match="a sync has failed"):
        rig.store.checkpoint_now()
    assert rig.store.flags.is_writeable, "what the log has is safe"
    rig.store.shutdown()
    state = load_state(rig.disk, str(rig.root))
    assert state is not None
    assert (state.safe_offset, state.clean) == (safe, False)
    rig.cut_power(tmp_path / "image")
    rig.start()
    rig.check()
    rig.store.shutdown()


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_the_log_stays_from_the_last_check_point_on(tmp_path: Path, part: str) -> None:
    """Else no start would trust the check point: it would read all of the log."""
    rig = Rig(tmp_path / "store", file_reserved_time_hours=0)
    rig.start()
    rig.put(200)
    rig.store.checkpoint_now()
    safe = rig.store.max_phy_offset
    assert safe > 2 * rig.store.config.mapped_file_size_commit_log
    rig.put(200)
    rig.fail(part)
    with pytest.raises(OSError, match="injected"):
        rig.store.checkpoint_now()
    rig.disk.fails = False
    for _ in range(3):
        rig.put(100)
        rig.store.delete_expired_files_manually()
        rig.store.cleaning.run()
    assert 0 < rig.store.min_phy_offset <= safe
    rig.store.kill()
    rig.open()
    assert rig.store.report is not None
    assert (rig.store.report.vouched, rig.store.report.dispatch_from) == (True, safe)
    rig.store.shutdown()


def test_a_start_writes_anew_what_a_sync_of_queues_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", message_index_enable=False)
    rig.start()
    rig.put(20)
    rig.store.checkpoint_now()
    rig.put(20)
    rig.fail("consumequeue")
    with pytest.raises(OSError, match="injected"):
        rig.store.checkpoint_now()
    rig.disk.fails = False
    rig.store.kill()
    rig.start()
    rig.store.checkpoint_now()
    rig.cut_power(tmp_path / "image")
    rig.start()
    assert rig.store.max_offset_in_queue("t", 0) == 40
    assert len(rig.store.get_message("g", "t", 0, 0, 40).commit_log_offsets) > 30
    rig.store.shutdown()


def test_the_background_tries_no_check_point_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "CHECKPOINT_INTERVAL_S", 0.0)
    monkeypatch.setattr(message_store, "CHECKPOINT_BYTES", 1)
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(20)
    rig.fail("consumequeue")
    with pytest.raises(OSError, match="injected"):
        rig.store.checkpoint_now()
    rig.disk.fails = False
    tried: list[bool] = []
    rounds: list[float] = []
    monkeypatch.setattr(rig.store, "checkpoint_now", lambda **_: tried.append(True))

    def wait(seconds: float) -> bool:
        rounds.append(seconds)
        return len(rounds) > 5

    monkeypatch.setattr(rig.store._stopping, "wait", wait)
    rig.store._run_queue_flush()
    assert len(rounds) > 5
    assert not tried
    assert rig.store.flags.is_writeable
    monkeypatch.undo()
    rig.store.shutdown()


def test_a_check_point_that_fails_in_the_background_costs_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "CHECKPOINT_INTERVAL_S", 0.0)
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(20)
    rig.fail("consumequeue")
    run_queue_flush(rig.store, monkeypatch, 1)
    assert rig.store.has_failed_syncs
    assert rig.store.flags.is_writeable
    rig.store.kill()


class Thin(FaultDisk):
    """A disk that tells only a sync that it has no room: a thin volume, a server's."""

    is_thin = False

    def health(self, what: str) -> None:
        if self.is_thin and "consumequeue" in what:
            raise OSError(errno.ENOSPC, f"{what} (fault injected)")
        FaultDisk.health(self, what)


def test_a_sync_that_finds_no_room_has_the_reserve_given_back(tmp_path: Path) -> None:
    disk = Thin()
    rig = Rig(tmp_path / "store", disk)
    rig.start()
    rig.put(20)
    rig.store.checkpoint_now()
    safe = rig.store.max_phy_offset
    rig.put(20)
    disk.is_thin = True
    assert (rig.root / RESERVE).exists()
    with pytest.raises((OSError, StoreError)):
        rig.store.checkpoint_now()
    assert not (rig.root / RESERVE).exists()
    assert rig.store.has_failed_syncs
    assert rig.store._deletable_offset() == safe
    rig.store.kill()


def test_a_store_opens_where_a_sync_finds_no_room(tmp_path: Path) -> None:
    disk = Thin()
    rig = Rig(tmp_path / "store", disk)
    rig.start()
    rig.put(20)
    rig.store.checkpoint_now()
    safe = rig.store.max_phy_offset
    rig.put(20)
    rig.store.kill()
    disk.is_thin = True
    rig.start()
    rig.check()
    assert rig.store.has_failed_syncs
    # There is no oberth.state that the log has to stay for: what was safe may make room.
    assert rig.store._deletable_offset() >= safe
    rig.store.kill()
    disk.is_thin = False
    rig.start()
    rig.check()
    rig.store.shutdown()


def test_a_full_index_file_that_could_not_be_synced_is_not_said_to_be_safe(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(30)
    rig.fail("index")
    rig.put(50)  # more than a file holds
    index = rig.store.index
    assert index is not None
    index._join_flushers()
    assert index.syncs.has_failed
    rig.disk.fails = False
    rig.put(80)
    index._join_flushers()
    assert len(index.index_files) > 2
    assert index.index_files[0].name not in index.safe_counts()
    assert rig.store.checkpoint.values.index_msg_timestamp == 0
    rig.store.flush()
    rig.cut_power(tmp_path / "image")
    rig.start()
    rig.check()
    rig.store.shutdown()


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("stop", ["in order", "killed"])
def test_a_start_writes_anew_what_a_sync_of_the_log_lost(
    tmp_path: Path, flush: FlushDiskType, stop: str
) -> None:
    rig = Rig(tmp_path / "store", flush_disk_type=flush)
    rig.start()
    rig.put(20)
    rig.store.flush()
    rig.store.dispatch_nowait()
    rig.store.checkpoint_now()
    rig.put(100)
    rig.fail("commitlog")
    with pytest.raises(StoreError):
        rig.store.flush()
    assert (rig.root / UNSYNCED).read_text() == str(rig.store.flushed_offset)
    rig.disk.fails = False
    if stop == "killed":
        rig.store.queues.write_behind()
        rig.store.kill()
    else:
        rig.store.shutdown()
    rig.start()
    assert not (rig.root / UNSYNCED).exists()
    rig.check()
    rig.store.checkpoint_now()
    rig.store.kill()
    rig.cut_power(tmp_path / "image")
    rig.start()
    rig.check()
    rig.store.shutdown()


def test_a_start_that_could_not_sync_the_log_is_not_believed_the_next_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(20)
    rig.store.checkpoint_now()
    rig.put(100)
    rig.store.kill()
    rig.fail("commitlog")
    with pytest.raises(OSError, match="injected"):
        rig.open()
    rig.disk.fails = False
    rig.start()
    rig.check()
    rig.store.checkpoint_now()
    rig.store.kill()
    rig.cut_power(tmp_path / "image")
    rig.start()
    rig.check()
    rig.store.shutdown()


def test_what_is_written_anew_looks_no_younger(tmp_path: Path) -> None:
    """Cleaning goes by when a segment was changed."""
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(200)
    rig.store.shutdown()
    paths = sorted((rig.root / "commitlog").iterdir())
    assert len(paths) > 3
    for n, path in enumerate(paths):
        os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))
    (rig.root / UNSYNCED).write_bytes(b"20000")
    writes = len(rig.disk.log)
    rig.start()
    assert sum("write" in each and "/commitlog/" in each for each in rig.disk.log[writes:]) > 1
    rig.check()
    assert [path.stat().st_mtime for path in paths[:-1]] == [
        1_700_000_000 + n for n in range(len(paths) - 1)
    ]
    rig.store.shutdown()


def test_the_next_start_writes_anew_from_the_segment_on_whose_sync_failed(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(300)
    rig.store.kill()
    paths = sorted((rig.root / "commitlog").iterdir())
    assert len(paths) > 4
    (rig.root / UNSYNCED).write_bytes(b"100")
    for number in (2, 3):
        rig.fail(paths[number].name)
        with pytest.raises(OSError, match="injected"):
            rig.open()
        assert (rig.root / UNSYNCED).read_text() == str(int(paths[number].name))
    rig.disk.fails = False
    rig.start()
    assert not (rig.root / UNSYNCED).exists()
    rig.check()
    rig.store.shutdown()


@pytest.mark.parametrize("note", [b"", b"x", b"0", b"999999999"])
def test_a_note_that_says_little_costs_no_start(tmp_path: Path, note: bytes) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(100)
    rig.store.shutdown()
    before = {path: path.read_bytes() for path in (rig.root / "commitlog").iterdir()}
    (rig.root / UNSYNCED).write_bytes(note)
    rig.start()
    rig.check()
    assert not (rig.root / UNSYNCED).exists()
    rig.store.shutdown()
    assert before == {path: path.read_bytes() for path in before}


def test_a_note_that_cannot_be_made_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path / "store")
    rig.start()
    rig.put(1)
    (rig.root / UNSYNCED).mkdir()
    rig.fail("commitlog")
    with pytest.raises(StoreError):
        rig.store.flush()
    assert "restart the machine" in caplog.text
    rig.store.shutdown()


def fill_segment(kept: Kept, disk: FaultDisk) -> CompactionStore:
    """Compacted logs of which a sync has failed, and messages for more than their segment."""
    compaction = kept.store.compaction
    assert compaction is not None
    kept.put("k", b"first")
    compaction.follow()
    disk.fails, disk.fails_at = True, "compaction"
    with pytest.raises(OSError, match="injected"):
        kept.store.checkpoint_now()
    disk.fails = False
    for n in range(130):
        kept.put(f"k{n}", b"%d" % n)
    return compaction


def offsets(store: MessageStore, queue_id: int = 0) -> list[int]:
    """What a reader finds of the compaction topic before it has to wait."""
    found: list[int] = []
    while True:
        result = store.get_message("G", T, queue_id, found[-1] + 1 if found else 0, 32)
        if not result.message_count:
            return found
        found += result.queue_offsets


def test_messages_are_taken_and_read_after_a_failed_sync_of_a_compacted_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    fill_segment(kept, disk)
    assert len(offsets(kept.store)) < 131, "it stops at the segment's end"
    for _ in range(5):
        offsets(kept.store)
        run_queue_flush(kept.store, monkeypatch, 2)
        assert kept.store.flags.is_writeable
    kept.put("k", b"last")
    assert offsets(kept.store) == list(range(132))
    with pytest.raises(StoreError, match="a sync has failed"):
        kept.store.checkpoint_now()
    kept.store.kill()


def test_a_segment_whose_sync_failed_is_on_the_disk_before_the_next_begins(tmp_path: Path) -> None:
    """The next start reads it no more; so what a loss of power takes of it would be missed."""
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    fill_segment(kept, disk).follow()
    sealed = kept.segments()[:-1]
    assert sealed
    kept.store.kill()
    image = tmp_path / "image"
    image.mkdir()
    disk.crash_image(str(image), str(kept.root), random.Random(1), 0.0)
    for folder, names in zip(
        ("compactionLog", "compactionCq"), zip(*sealed, strict=True), strict=True
    ):
        for name in names:
            path = Path("compaction") / folder / T / "0" / name
            assert (image / path).read_bytes() == (kept.root / path).read_bytes()


@pytest.mark.parametrize("stop", ["in order", "killed", "a start fails"])
def test_a_start_writes_anew_what_a_sync_of_a_compacted_log_lost(tmp_path: Path, stop: str) -> None:
    """A check point vouches for it then, and the log may lose its messages."""
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    note = kept.root / "compaction" / UNSYNCED
    kept.put("k", b"first")
    kept.store.checkpoint_now()
    for n in range(20):
        kept.put(f"k{n}", b"%d" % n)
    kept.read()
    disk.fails, disk.fails_at = True, "compaction"
    if stop == "a start fails":
        kept.store.kill()
        with pytest.raises(OSError, match="injected"):
            kept.open()
    else:
        with pytest.raises(OSError, match="injected"):
            kept.store.checkpoint_now()
        assert note.exists()
        (kept.store.shutdown if stop == "in order" else kept.store.kill)()
    assert note.exists()
    disk.fails = False
    kept.open()
    assert not note.exists()
    kept.store.checkpoint_now()
    kept.store.kill()
    image = tmp_path / "image"
    image.mkdir()
    disk.crash_image(str(image), str(kept.root), random.Random(1), 0.0)
    for folder in ("compactionLog", "compactionCq"):
        (name,) = {path.name for path in (kept.root / "compaction" / folder / T / "0").iterdir()}
        path = Path("compaction") / folder / T / "0" / name
        assert (image / path).read_bytes() == (kept.root / path).read_bytes()


def test_a_compacted_log_that_cannot_go_on_keeps_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its readers wait at the end of its segment; of others all is read, and messages are taken."""
    monkeypatch.setattr(compaction_store, "_STUCK_RETRY_S", 3600.0)
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    compaction = fill_segment(kept, disk)
    for n in range(130):
        message = MessageExtBrokerInner.of(T, b"%d" % n, keys=f"k{n}", queue_id=1)
        kept.store.append_messages([message])
    kept.store.dispatch_nowait()
    disk.fails, disk.fails_at = True, f"{T}/0/"
    for queue_id in (0, 1):
        assert len(offsets(kept.store, queue_id)) < 130
    for _ in range(3):
        run_queue_flush(kept.store, monkeypatch, 3)
        assert kept.store.flags.is_writeable
        assert len(offsets(kept.store, 0)) < 130
    assert len(offsets(kept.store, 1)) == 130
    assert caplog.text.count("could not be copied") == 1, "a try writes much, and readers ask often"
    compaction.run()
    assert caplog.text.count("could not be copied") == 2
    disk.fails = False
    compaction._retry_s = 0.0
    run_queue_flush(kept.store, monkeypatch, 1)
    assert offsets(kept.store, 0) == list(range(131))
    kept.store.kill()


@pytest.mark.parametrize("where", ["at the check point", "at a segment's end"])
def test_what_is_compacted_is_not_said_to_be_safe_after_a_failed_sync(
    tmp_path: Path, where: str
) -> None:
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    compaction = kept.store.compaction
    assert compaction is not None
    kept.put("k", b"first")
    kept.store.checkpoint_now()
    state = load_state(disk, str(kept.root))
    for n in range(130):
        kept.put(f"k{n}", b"%d" % n)
    disk.fails, disk.fails_at = True, "compaction"
    with pytest.raises(OSError, match="injected"):
        (kept.store.checkpoint_now if where == "at the check point" else compaction.follow)()
    disk.fails = False
    with pytest.raises((OSError, StoreError), match=r"sync has failed|earlier sync failed"):
        kept.store.checkpoint_now()
    assert kept.store.has_failed_syncs
    assert load_state(disk, str(kept.root)) == state
    kept.store.kill()
