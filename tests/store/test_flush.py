"""FlushService: who is told what and when, against a disk whose syncs the test releases.

Group commit is shown by counting syncs; timeouts and failed syncs by their statuses.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.store import group_commit
from oberth.store.commit_log import CommitLog
from oberth.store.files import FileSystem, Mapping, OsFileSystem
from oberth.store.flush import FlushService
from oberth.store.mapped_file import TransientStorePool
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.running_flags import RunningFlag, RunningFlags
from oberth.testing.fault_disk import FaultDisk

SEGMENT = 64 * 1024


class GatedFiles(OsFileSystem):
    """Syncs wait for the gate; they can be made to fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.syncs = 0
        self.error: OSError | None = None

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        mapping = super().map(path, size, create=create, writable=writable)
        return _GatedMapping(self, mapping)


class _GatedMapping:
    def __init__(self, files: GatedFiles, mapping: Mapping) -> None:
        self._files = files
        self._mapping = mapping
        self.path, self.size, self.view = mapping.path, mapping.size, mapping.view
        self.allocate = mapping.allocate
        self.write = mapping.write
        self.next_data = mapping.next_data
        self.data_end = mapping.data_end
        self.read = mapping.read
        self.find = mapping.find
        self.advise = mapping.advise
        self.read_ahead = mapping.read_ahead
        self.is_resident = mapping.is_resident

    def sync(self) -> None:
        self._files.syncs += 1
        self._files.entered.set()
        self._files.gate.wait(10)
        if self._files.error is not None:
            raise self._files.error

    def close(self) -> None:
        self.view = memoryview(b"")
        self._mapping.close()


class Rig:
    """A log, its flush service and the disk below."""

    def __init__(
        self, root: Path, config: MessageStoreConfig, files: FileSystem | None = None
    ) -> None:
        config.mapped_file_size_commit_log = SEGMENT
        self.files = GatedFiles()
        pool = None
        if config.transient_store_pool_enable:
            pool = TransientStorePool(2, SEGMENT)
        used = files or self.files
        queue = MappedFileQueue(used, [str(root)], SEGMENT, transient_pool=pool)
        self.flags = RunningFlags()
        self.log = CommitLog(
            used, config, queue, self.flags, lambda: 1_700_000_000_000, lambda _: {}
        )
        self.flushed_times: list[int] = []
        self.service = FlushService(
            config, queue, self.flags, self.log.append_each, self.flushed_times.append
        )

    def put(self, body: bytes = b"x") -> int:
        return self.log.append([MessageExtBrokerInner("t", body)])[0].end_offset


@pytest.fixture
def sync_rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, MessageStoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    yield rig
    rig.files.gate.set()
    rig.service.shutdown()
    rig.log.queue.close()


def test_one_caller_leads_its_own_sync(sync_rig: Rig) -> None:
    end = sync_rig.put()
    assert sync_rig.service.wait_durable(end) is PutMessageStatus.PUT_OK
    assert sync_rig.log.queue.flushed_where == end
    assert sync_rig.files.syncs == 1
    assert sync_rig.service.wait_durable(end) is PutMessageStatus.PUT_OK
    assert sync_rig.files.syncs == 1
    assert sync_rig.flushed_times == [1_700_000_000_000]


def test_many_callers_share_syncs(sync_rig: Rig) -> None:
    files, service = sync_rig.files, sync_rig.service
    files.gate.clear()
    leader = threading.Thread(target=service.wait_durable, args=(sync_rig.put(),))
    leader.start()
    files.entered.wait(10)
    statuses: list[PutMessageStatus] = []
    queued = threading.Barrier(21)

    def wait(end: int) -> None:
        queued.wait(10)
        statuses.append(service.wait_durable(end))

    threads = [threading.Thread(target=wait, args=(sync_rig.put(),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    queued.wait(10)
    files.gate.set()
    for thread in [leader, *threads]:
        thread.join(10)
    assert statuses == [PutMessageStatus.PUT_OK] * 20
    # The leader's own, then at most a few for the twenty (a late one may need another).
    assert files.syncs <= 5


def test_a_callback_comes_from_the_group_commit_thread(sync_rig: Rig) -> None:
    sync_rig.service.start()
    end = sync_rig.put()
    told: list[PutMessageStatus] = []
    done = threading.Event()

    def on_done(status: PutMessageStatus) -> None:
        told.append(status)
        done.set()

    sync_rig.service.when_durable(end, on_done)
    assert done.wait(10)
    assert told == [PutMessageStatus.PUT_OK]
    sync_rig.service.when_durable(end, on_done)
    assert told == [PutMessageStatus.PUT_OK] * 2


def test_a_wait_that_takes_too_long_is_a_timeout_and_the_message_stays(tmp_path: Path) -> None:
    config = MessageStoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=50)
    rig = Rig(tmp_path, config)
    rig.files.gate.clear()
    leader = threading.Thread(target=rig.service.wait_durable, args=(rig.put(),))
    leader.start()
    rig.files.entered.wait(10)
    end = rig.put(b"late")
    assert rig.service.wait_durable(end) is PutMessageStatus.FLUSH_DISK_TIMEOUT
    rig.files.gate.set()
    leader.join(10)
    assert rig.service.flush_now() == end
    rig.log.queue.close()


def test_a_failed_sync_stops_the_store_and_acknowledges_nothing(sync_rig: Rig) -> None:
    end = sync_rig.put()
    sync_rig.files.error = OSError(5, "Input/output error")
    assert sync_rig.service.wait_durable(end) is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert sync_rig.flags.bits & RunningFlag.NOT_WRITEABLE
    assert sync_rig.log.queue.flushed_where == 0


def test_after_a_failed_sync_a_later_one_vouches_for_nothing(sync_rig: Rig) -> None:
    """The kernel may have dropped the pages, and would say yes the next time."""
    end = sync_rig.put()
    sync_rig.files.error = OSError(5, "Input/output error")
    told: list[PutMessageStatus] = []
    done = threading.Event()
    sync_rig.service.start()

    def on_done(status: PutMessageStatus) -> None:
        told.append(status)
        done.set()

    sync_rig.service.when_durable(end, on_done)
    assert done.wait(10)
    assert told == [PutMessageStatus.FLUSH_DISK_TIMEOUT]
    sync_rig.files.error = None
    syncs = sync_rig.files.syncs
    assert syncs == 1
    assert sync_rig.service.wait_durable(end) is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert sync_rig.service.flush_now() == 0
    assert sync_rig.files.syncs == syncs


def test_after_a_failed_sync_nobody_waits_for_the_end_of_their_time(sync_rig: Rig) -> None:
    end = sync_rig.put()
    sync_rig.files.error = OSError(5, "Input/output error")
    told: list[PutMessageStatus] = []
    for turn in (1, 2):
        sync_rig.service.when_durable(end, told.append)
        sync_rig.service.flush_now()
        assert told == [PutMessageStatus.FLUSH_DISK_TIMEOUT] * turn


def test_flush_covers_every_segment_that_a_burst_touched(sync_rig: Rig) -> None:
    results = sync_rig.log.append([MessageExtBrokerInner("t", bytes(20_000)) for _ in range(10)])
    assert len(sync_rig.log.queue.segments) > 3
    end = results[-1].end_offset
    assert sync_rig.service.wait_durable(end) is PutMessageStatus.PUT_OK
    assert sync_rig.files.syncs == len(sync_rig.log.queue.segments)


def test_async_flush_needs_pages_or_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MessageStoreConfig())
    queue = rig.log.queue
    rig.put(bytes(3 * 4096))
    assert queue.flush(4) is True
    assert queue.flushed_where == 0
    end = rig.put(bytes(4096))
    assert queue.flush(4) is False
    assert queue.flushed_where == end
    rig.put()
    assert queue.flush(4) is True
    assert queue.flush(0) is False
    rig.log.queue.close()


def test_the_transient_pool_hides_what_is_not_committed(tmp_path: Path) -> None:
    config = MessageStoreConfig(transient_store_pool_enable=True, transient_store_pool_size=2)
    rig = Rig(tmp_path, config)
    end = rig.put(b"hidden")
    assert rig.log.max_offset == 0
    assert rig.log.select_record(0) is None
    assert bytes(rig.log.queue.segments[0].buffer[:8]) == bytes(8)
    assert rig.service.flush_now() == end
    assert rig.log.max_offset == end
    record = rig.log.select_record(0)
    assert record is not None
    assert b"hidden" in bytes(record)
    record.release()
    # Full segments give their buffer back, so more segments than buffers work.
    for _ in range(6):
        end = rig.put(bytes(40_000))
        rig.service.flush_now()
    assert rig.log.max_offset == end
    rig.log.queue.close()


def test_a_sync_that_is_waited_for_commits_what_the_pool_holds(tmp_path: Path) -> None:
    config = MessageStoreConfig(
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
    )
    rig = Rig(tmp_path, config)
    end = rig.put(b"hidden")
    assert rig.service.wait_durable(end) is PutMessageStatus.PUT_OK
    assert (rig.log.max_offset, rig.log.queue.flushed_where) == (end, end)
    rig.log.queue.close()


def test_a_full_disk_leaves_messages_in_the_pool_until_it_has_room(tmp_path: Path) -> None:
    config = MessageStoreConfig(transient_store_pool_enable=True, transient_store_pool_size=2)
    disk = FaultDisk()
    rig = Rig(tmp_path, config, disk)
    end = rig.put(b"hidden")
    disk.fill(disk.events)
    assert rig.service.flush_now() == 0
    assert rig.flags.bits & RunningFlag.DISK_FULL
    disk.fill(None)
    assert rig.service.flush_now() == end
    rig.log.queue.close()


class Callers:
    """Threads that wait for a put each, behind a leader whose sync the gate holds."""

    def __init__(self, rig: Rig, count: int) -> None:
        rig.files.gate.clear()
        self.statuses: list[PutMessageStatus] = []
        self.threads = [threading.Thread(target=self._wait, args=(rig.service, rig.put()))]
        self.threads[0].start()
        assert rig.files.entered.wait(10)
        for _ in range(count - 1):
            thread = threading.Thread(target=self._wait, args=(rig.service, rig.put()))
            self.threads.append(thread)
            thread.start()
        wait_until(lambda: len(rig.service.group._waiters) == count - 1)

    def _wait(self, service: FlushService, end_offset: int) -> None:
        self.statuses.append(service.wait_durable(end_offset))

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_each_woken_caller_wakes_the_next_and_the_last_one_the_next_leader(
    sync_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sync_rig.service
    monkeypatch.setattr(group_commit, "_WAKE_S_MIN", 60.0)
    answered_left: list[int] = []
    wake_next = service.group._wake_next

    def spy(*, is_link: bool = True) -> None:
        answered_left.append(len(service.group._answered))
        wake_next(is_link=is_link)

    monkeypatch.setattr(service.group, "_wake_next", spy)
    callers = Callers(sync_rig, 10)
    sync_rig.files.gate.set()
    callers.join()
    assert callers.statuses == [PutMessageStatus.PUT_OK] * 10
    # The first sync covers its leader alone; the second one's leader begins to wake the others.
    assert answered_left == [0, *range(8, -1, -1)]
    assert sync_rig.files.syncs == 2
    assert not service.group._leading


def test_callers_are_woken_together_when_their_turn_takes_too_long(
    sync_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = sync_rig.service
    monkeypatch.setattr(group_commit, "_WAKE_S_MIN", -60.0)
    callers = Callers(sync_rig, 10)
    sync_rig.files.gate.set()
    callers.join()
    assert callers.statuses == [PutMessageStatus.PUT_OK] * 10
    assert not service.group._leading
    assert service.wait_durable(sync_rig.put()) is PutMessageStatus.PUT_OK


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals a thread")
@pytest.mark.parametrize("duty", ["waits", "leads"])
def test_a_wait_that_is_interrupted_holds_nobody_up(
    sync_rig: Rig, duty: str, request: pytest.FixtureRequest
) -> None:
    """Ctrl-C in the main thread, while it waits for the sync of another one or syncs itself."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread handles signals")
    interrupted = threading.Event()

    def interrupted_once(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    # It may be ignored here, as in what a script starts in the background.
    before = signal.signal(signal.SIGINT, interrupted_once)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    service, files = sync_rig.service, sync_rig.files
    callers = Callers(sync_rig, 3) if duty == "waits" else None
    files.gate.clear()

    def interrupt() -> None:
        if duty == "waits":
            wait_until(lambda: len(service.group._waiters) == 3)
        else:
            files.entered.wait(10)
        # One that comes just before the thread falls asleep does not wake it.
        while not interrupted.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    end = sync_rig.put()
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        service.wait_durable(end)
    interrupter.join(10)
    files.gate.set()
    if callers is not None:
        callers.join()
        assert callers.statuses == [PutMessageStatus.PUT_OK] * 3
    assert not service.group._leading
    assert service.wait_durable(sync_rig.put()) is PutMessageStatus.PUT_OK
