"""Cleaning by time, by the levels of the disk and by hand; the test says how full the disk is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.files import DiskUsage, OsFileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner, PutMessageStatus
from oberth.store.running_flags import RunningFlag

SEGMENT = 16 * 1024
HOUR_MS = 3_600_000
# A moment whose local hour is taken from the machine's own zone, so that tests agree with it.
NOW_MS = 1_700_000_000_000


class SizedDisk(OsFileSystem):
    """Says how full it is."""

    def __init__(self) -> None:
        self.percent = 10

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(100, self.percent)


def test_blocks_that_are_kept_for_others_fill_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 of 1 000 blocks are used and 300 may be taken: that is 40 %, as ``df`` says."""
    told = SimpleNamespace(f_blocks=1000, f_bfree=800, f_bavail=300, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    usage = OsFileSystem().disk_usage(str(tmp_path))
    assert usage == DiskUsage(500 * 4096, 200 * 4096)
    assert usage.ratio == 0.4
    told.f_bavail = 0
    assert OsFileSystem().disk_usage(str(tmp_path)).ratio == 1.0


class Rig:
    """A store of six segments whose clock and disk the test sets."""

    def __init__(self, root: Path) -> None:
        self.disk = SizedDisk()
        self.now_ms = NOW_MS
        self.config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=20 * 8,
            max_hash_slot_num=10,
            max_index_num=20,
            delete_when="99",
            delete_commit_log_files_interval_ms=0,
            delete_consume_queue_files_interval_ms=0,
        )
        self.store = MessageStore(self.config, files=self.disk, clock_ms=lambda: self.now_ms)
        self.store.load()
        self.store.start(background=False)
        self.put(6 * 8)
        for segment in self.store.commit_log.queue.segments:
            self.age(segment.path, 0)

    def put(self, count: int) -> list[PutMessageStatus]:
        results = self.store.put_messages(
            [MessageExtBrokerInner.of("t", bytes(1900), keys=f"k{n}") for n in range(count)]
        )
        while self.store.dispatch_behind_bytes:
            self.store.dispatch_nowait()
        return [result.status for result in results]

    def age(self, path: str, hours: float) -> None:
        seconds = (self.now_ms - hours * HOUR_MS) / 1000
        os.utime(path, (seconds, seconds))

    @property
    def count(self) -> int:
        return len(self.store.commit_log.queue.segments)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.shutdown()


def local_hour(now_ms: int) -> str:
    from time import localtime, strftime

    return strftime("%H", localtime(now_ms / 1000))


def test_nothing_goes_before_its_time_or_hour(rig: Rig) -> None:
    before = rig.count
    assert before >= 6
    assert rig.store.cleaning.run() == 0
    for segment in rig.store.commit_log.queue.segments[:2]:
        rig.age(segment.path, 100)
    assert rig.store.cleaning.run() == 0, "expired, but neither the hour nor the disk asks"
    rig.config.delete_when = f"03;{local_hour(rig.now_ms)}"
    assert [os.fspath(segment.path) for segment in rig.store.cleaning.leaving()] == [
        segment.path for segment in rig.store.commit_log.queue.segments[:2]
    ]
    assert rig.store.cleaning.run() == 2
    assert rig.count == before - 2


def test_queues_and_index_follow_the_log(rig: Rig) -> None:
    store = rig.store
    for segment in store.commit_log.queue.segments:
        rig.age(segment.path, 100)
    store.delete_expired_files_manually()
    assert store.cleaning.run() > 2
    low = store.min_offset_in_queue("t", 0)
    assert low > 0
    unit = store.consume_queue_unit("t", 0, low)
    assert unit is not None
    assert unit.commit_log_offset >= store.min_phy_offset
    assert store.get_message("g", "t", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
    for offset in store.query_message("t", "k1", 64, 0, 2**62).commit_log_offsets:
        assert offset >= store.min_phy_offset
    assert rig.count >= 1, "the last segment is never deleted"


@pytest.mark.parametrize(
    ("percent", "deletes_young", "is_full"),
    [(60, False, False), (80, False, False), (88, True, False), (95, True, True)],
)
def test_the_levels_of_the_disk(rig: Rig, percent: int, deletes_young: bool, is_full: bool) -> None:
    before = rig.count
    rig.disk.percent = percent
    deleted = rig.store.cleaning.run()
    assert deleted == (min(10, before - 1) if deletes_young else 0)
    assert bool(rig.store.flags.bits & RunningFlag.DISK_FULL) is is_full
    expected = PutMessageStatus.SERVICE_NOT_AVAILABLE if is_full else PutMessageStatus.PUT_OK
    assert rig.put(1) == [expected]
    rig.disk.percent = 50
    rig.store.cleaning.run()
    assert rig.put(1) == [PutMessageStatus.PUT_OK], "room again, writeable again"


def test_the_warning_level_is_90_percent_at_most(rig: Rig) -> None:
    rig.config.disk_space_warning_level_ratio = 95
    for percent, is_full in ((90, False), (91, True)):
        rig.disk.percent = percent
        rig.store.cleaning.run()
        assert bool(rig.store.flags.bits & RunningFlag.DISK_FULL) is is_full


def test_young_segments_stay_up_to_30_percent_whatever_is_set(rig: Rig) -> None:
    rig.config.disk_space_clean_forcibly_ratio = 10
    for percent, deletes in ((30, False), (31, True)):
        rig.disk.percent = percent
        assert bool(rig.store.cleaning.run()) is deletes


def test_why_segments_are_due(rig: Rig) -> None:
    due = rig.store.cleaning.due
    assert due() is None
    assert rig.store.cleaning.leaving() == []
    rig.store.delete_expired_files_manually()
    assert due() == "hand"
    rig.config.delete_when = local_hour(rig.now_ms)
    assert due() == "time"
    rig.disk.percent = 76
    assert due() == "disk"


def test_an_expired_disk_level_deletes_only_what_is_old(rig: Rig) -> None:
    rig.age(rig.store.commit_log.queue.segments[0].path, 100)
    rig.disk.percent = 80
    assert rig.store.cleaning.run() == 1


def test_forced_cleaning_can_be_switched_off(rig: Rig) -> None:
    rig.config.clean_file_forcibly_enable = False
    rig.disk.percent = 88
    assert rig.store.cleaning.run() == 0


def test_a_request_by_hand_is_good_for_twenty_runs(rig: Rig) -> None:
    rig.store.delete_expired_files_manually()
    for _ in range(20):
        rig.store.cleaning.run()
    rig.age(rig.store.commit_log.queue.segments[0].path, 100)
    assert rig.store.cleaning.run() == 0
