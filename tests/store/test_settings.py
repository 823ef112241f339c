"""What a key of the store changes: one short test for each key that no other test would miss.

`tests/test_settings.py` names for every key the test that notices when it has no effect.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.message_store_config import BrokerRole, FlushDiskType, MessageStoreConfig
from oberth.formats.options import Line
from oberth.store.commit_log import CommitLog
from oberth.store.compaction_log import log_file_size, unit_file_size
from oberth.store.files import DiskUsage, OsFileSystem
from oberth.store.flush import FlushService
from oberth.store.mapped_file import MappedFile, TransientStorePool
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    GetMessageStatus,
    MessageExtBrokerInner,
    PutMessageStatus,
    TagsFilter,
)
from oberth.store.put_hooks import convert_delay
from oberth.store.running_flags import RunningFlags

NEVER_MS = 10**9
SEGMENT = 64 * 1024
PAGE = 4096


class Turns(threading.Event):
    """Notes how long it was waited for, and ends the service after so many waits."""

    def __init__(self, service: FlushService, count: int = 1) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._service = service
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == self._count:
            self._service._stopped.set()
        return True


class FlushRig:
    """A log and its flush service, whose rounds run in the test's own thread."""

    def __init__(self, root: Path, **options: Any) -> None:
        config = MessageStoreConfig(mapped_file_size_commit_log=SEGMENT, **options)
        files = OsFileSystem()
        pool = TransientStorePool(2, SEGMENT) if config.transient_store_pool_enable else None
        self.queue = MappedFileQueue(files, [str(root)], SEGMENT, transient_pool=pool)
        self.log = CommitLog(files, config, self.queue, RunningFlags(), lambda: 1, lambda _: {})
        self.service = FlushService(config, self.queue, RunningFlags(), self.log.append_each)
        self.end = 0

    def put(self, size: int) -> None:
        self.end = self.log.append([MessageExtBrokerInner("t", bytes(size))])[0].end_offset

    def flush_round(self) -> list[float | None]:
        service = self.service
        turns = Turns(service)
        service._stopped = service._wake_flush = turns
        service._run_flush()
        return turns.waits

    def commit_round(self) -> list[float | None]:
        service = self.service
        turns = Turns(service)
        service._wake_commit = turns
        service._run_commit()
        return turns.waits


@pytest.fixture
def flush_rig(tmp_path: Path) -> Iterator[Callable[..., FlushRig]]:
    made: list[FlushRig] = []

    def make(**options: Any) -> FlushRig:
        made.append(FlushRig(tmp_path / str(len(made)), **options))
        return made[-1]

    yield make
    for rig in made:
        rig.queue.close()


Rigs = Callable[..., FlushRig]


def test_the_interval_between_flushes(flush_rig: Rigs) -> None:
    assert flush_rig(flush_interval_commit_log_ms=123).flush_round() == [0.123]


@pytest.mark.parametrize(("pages", "is_flushed"), [(2, True), (4, False)])
def test_pages_that_make_a_flush_worth_it(flush_rig: Rigs, pages: int, is_flushed: bool) -> None:
    rig = flush_rig(
        flush_commit_log_least_pages=pages, flush_commit_log_thorough_interval_ms=NEVER_MS
    )
    rig.put(2 * PAGE)
    rig.flush_round()
    assert rig.queue.flushed_where == (rig.end if is_flushed else 0)


def test_a_thorough_flush_takes_every_byte(flush_rig: Rigs) -> None:
    rig = flush_rig(flush_commit_log_least_pages=1000, flush_commit_log_thorough_interval_ms=0)
    rig.put(10)
    rig.flush_round()
    assert rig.queue.flushed_where == rig.end


@pytest.mark.parametrize(
    ("options", "wakes"),
    [
        ({}, False),
        ({"wake_flush_when_put_message": True}, True),
        ({"flush_commit_log_timed": False}, True),
    ],
)
def test_what_wakes_the_flush(flush_rig: Rigs, options: dict[str, Any], wakes: bool) -> None:
    rig = flush_rig(**options)
    rig.service.wake()
    assert rig.service._wake_flush.is_set() == wakes


@pytest.mark.parametrize("wakes", [False, True])
def test_what_wakes_the_commit(flush_rig: Rigs, wakes: bool) -> None:
    rig = flush_rig(transient_store_pool_enable=True, wake_commit_when_put_message=wakes)
    rig.service.wake()
    assert rig.service._wake_commit.is_set() == wakes


def test_the_interval_between_commits(flush_rig: Rigs) -> None:
    rig = flush_rig(transient_store_pool_enable=True, commit_interval_commit_log_ms=77)
    assert rig.commit_round() == [0.077]


@pytest.mark.parametrize(("pages", "is_committed"), [(2, True), (4, False)])
def test_pages_that_make_a_commit_worth_it(flush_rig: Rigs, pages: int, is_committed: bool) -> None:
    rig = flush_rig(
        transient_store_pool_enable=True,
        commit_commit_log_least_pages=pages,
        commit_commit_log_thorough_interval_ms=NEVER_MS,
    )
    rig.put(2 * PAGE)
    rig.commit_round()
    assert rig.queue.committed_where == (rig.end if is_committed else 0)


def test_a_thorough_commit_takes_every_byte(flush_rig: Rigs) -> None:
    rig = flush_rig(
        transient_store_pool_enable=True,
        commit_commit_log_least_pages=1000,
        commit_commit_log_thorough_interval_ms=0,
    )
    rig.put(10)
    rig.commit_round()
    assert rig.queue.committed_where == rig.end


# ------------------------------------------------------------------------------------ a whole store


class Disk(OsFileSystem):
    """Says how full it is."""

    percent = 10

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(100, self.percent)


def make_store(root: Path, disk: Disk | None = None, **options: Any) -> MessageStore:
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": SEGMENT,
        "mapped_file_size_consume_queue": 20 * 8,
        "max_hash_slot_num": 10,
        "max_index_num": 100,
        "delete_when": "99",
        "delete_commit_log_files_interval_ms": 0,
        "delete_consume_queue_files_interval_ms": 0,
        **options,
    }
    config = MessageStoreConfig(store_path_root_dir=str(root), **settings)
    store = MessageStore(config, files=disk or Disk(), clock_ms=lambda: 1_700_000_000_000)
    store.load()
    store.start(background=False, reput_thread=False)
    return store


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., MessageStore]]:
    made: list[MessageStore] = []

    def make(*, root: Path = tmp_path / "store", **options: Any) -> MessageStore:
        made.append(make_store(root, **options))
        return made[-1]

    yield make
    for store in made:
        store.shutdown()


Stores = Callable[..., MessageStore]


def put(store: MessageStore, count: int, size: int = 400) -> None:
    results = store.append_messages(
        [MessageExtBrokerInner.of("t", bytes(size), keys="k", tags="A") for _ in range(count)]
    )
    assert {each.status for each in results} == {PutMessageStatus.PUT_OK}
    dispatch(store)


def dispatch(store: MessageStore) -> None:
    while store.dispatch_nowait():
        pass


def test_pages_between_syncs_of_a_warm_up(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []
    monkeypatch.setattr(MappedFile, "warm", lambda _, count: pages.append(count))
    store = open_store(
        warm_mapped_file_enable=True,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        flush_least_pages_when_warm_mapped_file=7,
    )
    put(store, 1)
    assert set(pages) == {7}


@pytest.mark.parametrize("takes", [True, False])
def test_records_of_version_2_for_long_topics(open_store: Stores, takes: bool) -> None:
    store = open_store(auto_message_version_on_topic_len=takes)
    (result,) = store.append_messages([MessageExtBrokerInner("%RETRY%" + "x" * 140, b"x")])
    expected = PutMessageStatus.PUT_OK if takes else PutMessageStatus.MESSAGE_ILLEGAL
    assert result.status is expected


@pytest.mark.parametrize("checks", [True, False])
def test_recovery_checks_bodies(tmp_path: Path, checks: bool) -> None:
    root, killed = tmp_path / "store", tmp_path / "killed"
    store = make_store(root)
    put(store, 1)
    (result,) = store.append_messages([MessageExtBrokerInner("t", b"the last body")])
    store.flush()
    shutil.copytree(root, killed)
    store.shutdown()
    segment = killed / "commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"the last body", b"the lost body"))
    again = make_store(killed, check_crc_on_recover=checks)
    try:
        assert again.max_phy_offset == (result.commit_log_offset if checks else result.end_offset)
    finally:
        again.shutdown()


@pytest.mark.parametrize("shows", [True, False])
def test_what_is_not_synced_is_shown_only_on_demand(open_store: Stores, shows: bool) -> None:
    store = open_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, read_uncommitted=shows)
    store.append_messages([MessageExtBrokerInner("t", b"x")])
    dispatch(store)
    assert store.max_offset_in_queue("t", 0) == (1 if shows else 0)


def test_one_get_examines_so_many_bytes_of_a_queue(open_store: Stores) -> None:
    store = open_store(max_filter_message_size=40)
    put(store, 6)
    found = store.get_message("g", "t", 0, 0, 1, TagsFilter([1]))
    assert (found.status, found.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_one_get_visits_so_many_segments_of_a_queue(open_store: Stores, count: int) -> None:
    store = open_store(travel_cq_file_num_when_get_message=count)
    put(store, 30)
    found = store.get_message("g", "t", 0, 0, 32, TagsFilter([1]))
    assert found.next_begin_offset == 8 * count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"max_transfer_bytes_on_message_in_memory": 1100}, 2),
        ({"max_transfer_count_on_message_in_memory": 3}, 3),
        ({"access_message_in_memory_max_ratio": 0}, 8),
        (
            {"access_message_in_memory_max_ratio": 0, "max_transfer_bytes_on_message_in_disk": 999},
            1,
        ),
        (
            {"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 3},
            3,
        ),
    ],
)
def test_how_much_one_get_brings(open_store: Stores, options: dict[str, Any], count: int) -> None:
    store = open_store(mapped_file_size_consume_queue=20 * 100, **options)
    put(store, 20)
    assert store.get_message("g", "t", 0, 0, 32).message_count == count


def test_how_many_messages_one_query_brings(open_store: Stores) -> None:
    store = open_store(max_msgs_num_batch=2)
    put(store, 5)
    assert len(store.query_message("t", "k", 64, 0, 2**62).commit_log_offsets) == 2


@pytest.mark.parametrize("corrects", [True, False])
def test_a_slave_corrects_offsets_on_demand(
    open_store: Stores, tmp_path: Path, corrects: bool
) -> None:
    store = make_store(tmp_path / "store")
    put(store, 5)
    store.shutdown()
    slave = open_store(broker_role=BrokerRole.SLAVE, offset_check_in_slave=corrects)
    assert slave.get_message("g", "t", 0, 100, 1).next_begin_offset == (5 if corrects else 100)


def test_how_long_a_file_in_use_is_kept(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(
        destroy_mapped_file_interval_forcibly_ms=321, redelete_hanged_file_interval_ms=0
    )
    put(store, 1)
    given: list[int] = []
    monkeypatch.setattr(store.commit_log.queue, "retry_delete_first", given.append)
    store.cleaning.run()
    assert given == [321]
    store.cleaning.run()
    assert given == [321, 321], "redeleteHangedFileInterval is over"


def segments_of(store: MessageStore) -> int:
    return len(store.commit_log.queue.segments)


def test_how_many_segments_one_run_deletes(open_store: Stores) -> None:
    disk = Disk()
    store = open_store(disk=disk, delete_file_batch_max=1)
    put(store, 500)
    assert segments_of(store) > 3
    disk.percent = 88
    assert store.cleaning.run() == 1


def test_how_full_a_disk_deletes_young_segments(open_store: Stores) -> None:
    disk = Disk()
    store = open_store(disk=disk, disk_space_clean_forcibly_ratio=50, disk_max_used_space_ratio=40)
    put(store, 500)
    disk.percent = 60
    assert store.cleaning.run() > 0


@pytest.mark.parametrize("keeps", [True, False])
def test_whether_there_are_compaction_topics(open_store: Stores, keeps: bool) -> None:
    assert (open_store(enable_compaction=keeps).compaction is not None) == keeps


def test_how_long_a_put_may_hold_the_log(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_store(os_page_cache_busy_timeout_ms=40).commit_log
    monkeypatch.setattr(log, "lock_time_ms", lambda: 50.0)
    assert log.is_os_page_cache_busy()


# ----------------------------------------------------------------------------------- timed messages


def redirected(delay_ms: int, **options: Any) -> MessageExtBrokerInner | PutMessageStatus:
    message = MessageExtBrokerInner("t", b"x", f"TIMER_DELAY_MS\x01{delay_ms}\x02".encode())
    return convert_delay(message, MessageStoreConfig(**options), 18, 1_700_000_000_000)


def test_the_slots_of_timed_messages() -> None:
    found = redirected(1_234, timer_precision_ms=100)
    assert isinstance(found, MessageExtBrokerInner)
    assert b"TIMER_OUT_MS\x011700000001200\x02" in found.properties_raw


def test_how_long_a_message_may_be_delayed() -> None:
    assert redirected(2_000, timer_max_delay_sec=1) is PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
    assert isinstance(redirected(900, timer_max_delay_sec=1), MessageExtBrokerInner)


# ------------------------------------------------------------------------------------------- more


def test_the_buffers_of_the_pool(open_store: Stores) -> None:
    store = open_store(transient_store_pool_enable=True, transient_store_pool_size=3)
    assert store._pool is not None
    assert len(store._pool._free) == 3


@pytest.mark.parametrize("keeps", [True, False])
def test_whether_ext_units_are_kept(open_store: Stores, keeps: bool) -> None:
    store = open_store(enable_consume_queue_ext=keeps)
    put(store, 1)
    (queue,) = store.queues.all_queues()
    assert (queue.ext is not None) == keeps


def test_how_long_a_put_waits_for_its_sync(flush_rig: Rigs) -> None:
    rig = flush_rig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=1)
    rig.put(10)
    told: list[PutMessageStatus] = []
    rig.service.when_durable(rig.end, told.append)
    (waiter,) = rig.service.group._waiters
    assert waiter.deadline - time.monotonic() < 1


def test_the_pause_between_runs_of_the_cleaning(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(clean_resource_interval_ms=77)
    waits: list[float] = []

    class Stopping:
        def wait(self, timeout: float) -> bool:
            waits.append(timeout)
            return True

    with monkeypatch.context() as patch:
        patch.setattr(store, "_stopping", Stopping())
        store._run_clean()
    assert waits == [0.077]


@pytest.mark.parametrize("which", ["queues", "log"])
def test_the_pause_between_deletions(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    disk = Disk()
    store = open_store(
        disk=disk,
        delete_consume_queue_files_interval_ms=77 if which == "queues" else 0,
        delete_commit_log_files_interval_ms=77 if which == "log" else 0,
    )
    put(store, 1000)
    slept: list[float] = []
    monkeypatch.setattr("oberth.store.consume_queue_store.time.sleep", slept.append)
    monkeypatch.setattr("oberth.store.mapped_file_queue.time.sleep", slept.append)
    disk.percent = 88
    store.cleaning.run()
    assert 0.077 in slept


def test_the_line_whose_ways_it_follows(open_store: Stores) -> None:
    assert open_store(line=Line.V4_9).compaction is None


def test_how_full_a_disk_takes_no_messages(open_store: Stores) -> None:
    disk = Disk()
    store = open_store(disk=disk, disk_space_warning_level_ratio=50)
    disk.percent = 60
    store.cleaning.run()
    assert not store.flags.is_writeable


def test_the_pause_between_compactions(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    compaction = open_store(compaction_schedule_interval_ms=0).compaction
    assert compaction is not None
    runs: list[int] = []
    monkeypatch.setattr(compaction, "run", lambda: runs.append(1))
    compaction.run_due()
    assert runs == [1]


def test_the_size_of_compacted_segments() -> None:
    units = unit_file_size(MessageStoreConfig(compaction_cq_mapped_file_size=4096))
    assert units < unit_file_size(MessageStoreConfig())
    small = MessageStoreConfig(compaction_mapped_file_size=1 << 21)
    assert log_file_size(small) < log_file_size(MessageStoreConfig())


def test_how_full_a_disk_starts_the_cleaning(open_store: Stores) -> None:
    disk = Disk()
    store = open_store(disk=disk, disk_max_used_space_ratio=40)
    put(store, 500)
    for segment in store.commit_log.queue.segments:
        os.utime(segment.path, (1, 1))
    assert store.cleaning.run() == 0, "neither the hour nor the disk asks"
    disk.percent = 50
    assert store.cleaning.run() > 0
