"""MappedFile, MappedFileQueue, TransientStorePool and AllocateService on real files.

Positions, least pages, holding and destroying, look-up by offset and time, several directories,
segments made ahead.
"""

from __future__ import annotations

import os
import queue
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import StoreCorruptError, StoreFullError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store import allocate
from oberth.store.allocate import AllocateService
from oberth.store.files import ALLOCATE_CHUNK_SIZE, MADV_NORMAL, MADV_RANDOM, OsFileSystem
from oberth.store.mapped_file import OS_PAGE_SIZE, MappedFile, TransientStorePool
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.testing.fault_disk import FaultDisk

SIZE = 4 * OS_PAGE_SIZE
FILES = OsFileSystem()


@pytest.fixture
def segment(tmp_path: Path) -> MappedFile:
    return MappedFile(FILES, str(tmp_path), SIZE, SIZE, create=True)


def test_a_new_segment_is_named_by_its_offset_and_has_its_full_size(
    segment: MappedFile, tmp_path: Path
) -> None:
    path = tmp_path / f"{SIZE:020d}"
    assert segment.path == str(path)
    assert path.stat().st_size == SIZE
    assert (segment.start_offset, segment.end_offset, segment.is_full) == (SIZE, 2 * SIZE, False)


def test_reads_see_what_was_appended_and_nothing_behind_it(segment: MappedFile) -> None:
    segment.append(b"hello")
    assert bytes(segment.select(0) or b"") == b"hello"
    assert bytes(segment.select(1, 4) or b"") == b"ello"
    assert segment.select(1, 5) is None
    assert segment.select(5) is None
    assert segment.select(-1, 2) is None


class Copies:
    """Notes in which order a segment's bytes are written."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.written: list[tuple[int, int]] = []

    def __setitem__(self, place: slice, data: bytes) -> None:
        self.written.append((place.start, place.stop))
        self.view[place] = data


@pytest.mark.parametrize("size", [1, 100, 101, OS_PAGE_SIZE - 1])
def test_a_kill_leaves_the_beginning_of_an_append(
    segment: MappedFile, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What lies in one page is there before anything of the next, which may have to be fetched."""
    copies = Copies(segment.buffer)
    monkeypatch.setattr(segment, "buffer", copies)
    segment.append(bytes(OS_PAGE_SIZE - 100))
    copies.written.clear()
    data = os.urandom(size)
    segment.append(data)
    start, end = OS_PAGE_SIZE - 100, OS_PAGE_SIZE - 100 + size
    border = OS_PAGE_SIZE
    assert copies.written == ([(start, end)] if end <= border else [(start, border), (border, end)])
    assert bytes(copies.view[start:end]) == data


def test_long_data_is_written_to_the_file_and_read_through_the_mapping(
    segment: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(segment.buffer)
    monkeypatch.setattr(segment, "buffer", copies)
    short, long = os.urandom(OS_PAGE_SIZE - 1), os.urandom(OS_PAGE_SIZE)
    segment.append(short)
    begun = len(copies.written)
    segment.append(memoryview(long))
    assert begun
    assert len(copies.written) == begun
    assert bytes(copies.view[: len(short + long)]) == short + long


def test_a_flush_behind_one_that_failed_says_nothing(tmp_path: Path) -> None:
    disk = FaultDisk()
    file = MappedFile(disk, str(tmp_path), 0, SIZE, create=True)
    file.append(b"abc")
    disk.fails = True
    with pytest.raises(OSError, match="injected"):
        file.flush(0)
    disk.fails = False
    with pytest.raises(OSError, match="an earlier sync failed"):
        file.flush(0)
    assert file.flushed_position == 0
    file.close()


def test_a_disk_that_fails_in_a_long_append_moves_nothing(tmp_path: Path) -> None:
    disk = FaultDisk()
    segment = MappedFile(disk, str(tmp_path), 0, SIZE, create=True)
    segment.append(b"x" * 100)
    disk.fails = True
    with pytest.raises(OSError, match="fault injected"):
        segment.append(bytes(OS_PAGE_SIZE))
    assert segment.wrote_position == 100
    disk.fails = False
    segment.append(b"y" * OS_PAGE_SIZE)
    assert bytes(segment.select(0) or b"") == b"x" * 100 + b"y" * OS_PAGE_SIZE


def test_where_every_append_is_synced_long_data_needs_no_pages_written_before(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    segment = MappedFile(disk, str(tmp_path), 0, 64 * OS_PAGE_SIZE, create=True)
    segment.buffer[:] = b"\xff" * segment.file_size
    segment.prepare_for_syncs()
    segment.append(b"x" * 2 * OS_PAGE_SIZE)
    assert segment.buffer[2 * OS_PAGE_SIZE] == 0xFF
    disk.fill(disk.events)  # what was allocated is used all the same
    segment.append(b"y" * OS_PAGE_SIZE)
    disk.fill(None)
    segment.append(b"z")
    assert bytes(segment.select(2 * OS_PAGE_SIZE) or b"") == b"y" * OS_PAGE_SIZE + b"z"
    assert segment.buffer[4 * OS_PAGE_SIZE] == 0  # from here on pages are written before again


def test_where_every_append_is_synced_pages_are_written_before_they_are_needed(
    tmp_path: Path,
) -> None:
    pages = 400
    segment = MappedFile(FILES, str(tmp_path), 0, pages * OS_PAGE_SIZE, create=True)
    segment.buffer[:] = b"\xff" * segment.file_size  # what nobody wrote can be told
    segment.append(b"x" * 10)
    assert segment.buffer[OS_PAGE_SIZE] == 0xFF
    segment.set_positions(10)
    segment.prepare_for_syncs()
    segment.append(b"y" * 90)
    assert bytes(segment.buffer[:101]) == b"x" * 10 + b"y" * 90 + b"\xff"
    touched = [page for page in range(pages) if segment.buffer[page * OS_PAGE_SIZE] == 0]
    assert touched == list(range(1, 257))  # 1 MiB
    for _ in range(2 * 300):
        segment.append(b"z" * (OS_PAGE_SIZE // 2))
    assert segment.buffer[(pages - 1) * OS_PAGE_SIZE] == 0  # to the file's end and no further
    assert segment.wrote_position == 100 + 300 * OS_PAGE_SIZE


def test_where_every_append_is_synced_a_full_disk_takes_what_it_has_room_for(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    segment = MappedFile(disk, str(tmp_path), 0, 40 * OS_PAGE_SIZE, create=True)
    segment.prepare_for_syncs()
    disk.fill(0)
    with pytest.raises(StoreFullError):
        segment.append(b"x" * 100)
    assert segment.wrote_position == 0
    disk.fill(None)
    segment.append(b"x" * 100)
    assert bytes(segment.select(0) or b"") == b"x" * 100


def test_where_every_append_is_synced_what_was_reserved_is_used_when_the_disk_is_full(
    tmp_path: Path,
) -> None:
    mib = 1 << 20
    disk = FaultDisk()
    segment = MappedFile(disk, str(tmp_path), 0, 12 * mib, create=True)
    segment.prepare_for_syncs()
    segment.append(b"x")  # 8 MiB are reserved behind it
    disk.fill(0)
    segment.append(b"y" * (7 * mib + mib // 2))
    with pytest.raises(StoreFullError):
        segment.append(b"z" * mib)
    assert segment.wrote_position == 1 + 7 * mib + mib // 2


def test_where_every_append_is_synced_only_a_full_segment_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints: list[tuple[int, int | None, int]] = []
    monkeypatch.setattr(
        MappedFile,
        "advise",
        lambda self, advice, start=0: hints.append((self.start_offset, advice, start)),
    )
    queue = MappedFileQueue(FILES, [str(tmp_path)], SIZE)
    first = queue.last_or_create()
    assert first is not None
    first.append(b"x" * (OS_PAGE_SIZE + 1))
    queue.prepare_for_syncs()
    assert hints == [(0, MADV_RANDOM, OS_PAGE_SIZE + 1)]
    first.fill()
    assert queue.last_or_create() is not first
    assert hints[1:] == [(SIZE, MADV_RANDOM, 0), (0, MADV_NORMAL, 0)]
    assert MADV_RANDOM is not None
    queue.advise(MADV_RANDOM)
    assert hints[3:] == [(0, MADV_RANDOM, 0), (SIZE, MADV_RANDOM, 0), (SIZE, MADV_RANDOM, 0)]


@pytest.mark.parametrize(
    ("wrote", "flushed", "least_pages", "able"),
    [
        (10, 0, 0, True),
        (10, 10, 0, False),
        (3 * OS_PAGE_SIZE, 0, 3, True),
        (3 * OS_PAGE_SIZE - 1, 0, 3, False),
        (OS_PAGE_SIZE, OS_PAGE_SIZE - 1, 1, True),
        (SIZE, SIZE - 1, 4, True),  # full: whatever the pages
        (SIZE, SIZE, 0, False),
    ],
)
def test_least_pages(
    segment: MappedFile, wrote: int, flushed: int, least_pages: int, able: bool
) -> None:
    segment.wrote_position = wrote
    segment.flushed_position = flushed
    assert segment.is_able_to_flush(least_pages) is able
    if able:
        assert segment.flush(least_pages) == wrote
        assert segment.is_able_to_flush(0) is False


def test_a_held_segment_is_deleted_when_it_is_released(segment: MappedFile) -> None:
    segment.append(b"x" * 100)
    piece = segment.select(0, 100)
    assert segment.hold()
    assert segment.destroy(interval_forcibly_ms=1_000_000) is False
    assert not segment.hold()
    assert os.path.exists(segment.path)
    segment.release()
    assert segment.destroy(1_000_000) is True
    assert not os.path.exists(segment.path)
    assert piece is not None
    assert bytes(piece) == b"x" * 100, "a slice on its way to a socket outlives its file"


def test_a_segment_held_for_too_long_is_taken_away(segment: MappedFile) -> None:
    assert segment.hold()
    assert segment.destroy(0) is False
    assert segment.destroy(0) is True


def test_a_closed_segment_is_held_by_nobody(segment: MappedFile) -> None:
    before = segment.is_cleaned_up
    segment.close()
    assert (before, segment.is_cleaned_up, segment.hold()) == (False, True, False)


def test_warming_touches_every_page_and_reserves_the_disk(segment: MappedFile) -> None:
    segment.warm(sync_each_pages=2)
    assert os.stat(segment.path).st_blocks * 512 >= SIZE
    assert not any(segment.buffer)


def test_a_full_disk_is_an_error_of_the_append_and_nothing_else(tmp_path: Path) -> None:
    disk = FaultDisk()
    segment = MappedFile(disk, str(tmp_path), 0, SIZE, create=True)
    segment.append(b"kept")
    disk.fill(0)
    # The chunk that is reserved already can still be written.
    segment.append(b"more")
    fresh = MappedFile(FILES, str(tmp_path), SIZE, SIZE, create=True)
    fresh.close()
    reopened = MappedFile(disk, str(tmp_path), SIZE, SIZE)
    with pytest.raises(StoreFullError, match="no room"):
        reopened.append(b"x")
    assert reopened.wrote_position == 0
    disk.fill(None)
    reopened.append(b"x")


def make_queue(
    *directories: Path, count: int = 0, read_only: tuple[Path, ...] = ()
) -> MappedFileQueue:
    queue = MappedFileQueue(
        FILES,
        [str(d) for d in directories],
        SIZE,
        read_only_directories=[str(d) for d in read_only],
    )
    for _ in range(count):
        segment = queue.last_or_create()
        assert segment is not None
        segment.append(bytes(10))
        segment.fill()
    return queue


def test_a_first_segment_begins_where_a_segment_can(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    segment = queue.last_or_create(2 * SIZE + 7)
    assert segment is not None
    assert segment.start_offset == 2 * SIZE


def test_segments_are_found_by_offset(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, count=3)
    for offset, start in ((0, 0), (SIZE - 1, 0), (SIZE, SIZE), (3 * SIZE - 1, 2 * SIZE)):
        found = queue.find(offset)
        assert found is not None
        assert found.start_offset == start
    assert queue.find(3 * SIZE) is None
    assert queue.find(3 * SIZE, first_if_missing=True) is queue.segments[0]
    assert (queue.min_offset, queue.max_offset) == (0, 3 * SIZE)
    queue.remove_first(0)
    assert queue.find(0) is None
    assert queue.min_offset == SIZE


def test_segments_are_found_by_the_time_of_their_last_change(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, count=3)
    for number, segment in enumerate(queue.segments):
        os.utime(segment.path, (1000 + number, 1000 + number))
    for timestamp_ms, number in ((0, 0), (1_000_000, 0), (1_000_001, 1), (1_002_000, 2), (9e9, 2)):
        assert queue.by_time(int(timestamp_ms)) is queue.segments[number]


def test_a_gap_between_segments_is_named(tmp_path: Path) -> None:
    make_queue(tmp_path, count=3).close()
    (tmp_path / f"{SIZE:020d}").unlink()
    with pytest.raises(StoreCorruptError, match=f"starts at {2 * SIZE}.*ends at {SIZE}"):
        make_queue(tmp_path).load()


def test_an_empty_last_file_is_removed_and_other_sizes_are_refused(tmp_path: Path) -> None:
    make_queue(tmp_path, count=2).close()
    last = tmp_path / f"{2 * SIZE:020d}"
    last.touch()
    queue = make_queue(tmp_path)
    queue.load()
    assert len(queue.segments) == 2
    assert not last.exists()
    queue.close()
    last.write_bytes(b"short")
    with pytest.raises(StoreCorruptError, match=f"found 5 bytes, configured are {SIZE}"):
        make_queue(tmp_path).load()


@pytest.mark.parametrize("first", [0, 1])
def test_segments_that_were_never_synced_go_with_those_prepared_behind_them(
    tmp_path: Path, first: int
) -> None:
    make_queue(tmp_path, count=first).close()
    empty, prepared = (tmp_path / f"{number * SIZE:020d}" for number in (first, first + 1))
    empty.touch()
    prepared.write_bytes(bytes(SIZE))
    queue = make_queue(tmp_path)
    queue.load()
    assert len(queue.segments) == first
    assert not empty.exists()
    assert not prepared.exists()
    queue.close()


def test_an_empty_segment_before_data_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    make_queue(tmp_path, count=1).close()
    empty, full = (tmp_path / f"{number * SIZE:020d}" for number in (1, 2))
    empty.touch()
    full.write_bytes(bytes(8) + b"\1" + bytes(SIZE - 9))
    with pytest.raises(StoreCorruptError, match=f"{empty.name}: found 0 bytes"):
        make_queue(tmp_path).load()
    assert full.exists()


@pytest.mark.parametrize("unsynced_from", [0, SIZE, SIZE + 1])
def test_after_a_loss_of_power_an_empty_segment_before_data_is_a_hole(
    tmp_path: Path, unsynced_from: int, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(tmp_path, count=1).close()
    empty, full, last = (tmp_path / f"{number * SIZE:020d}" for number in (1, 2, 3))
    empty.touch()
    full.write_bytes(b"data" + bytes(SIZE - 4))
    last.touch()
    queue = make_queue(tmp_path)
    if unsynced_from > SIZE:
        with pytest.raises(StoreCorruptError, match=f"{empty.name}: found 0 bytes"):
            queue.load(unsynced_from)
        assert not empty.stat().st_size
        queue.close()
        return
    queue.load(unsynced_from)
    assert [s.start_offset for s in queue.segments] == [0, SIZE, 2 * SIZE]
    assert empty.read_bytes() == bytes(SIZE)
    assert full.read_bytes()[:4] == b"data"
    assert not last.exists()
    assert f"{empty} has 0 bytes" in caplog.text
    queue.close()


def test_several_directories_take_turns_and_read_only_ones_take_nothing(tmp_path: Path) -> None:
    first, second, old = (tmp_path / name for name in ("a", "b", "old"))
    make_queue(old, count=2).close()
    queue = make_queue(first, second, read_only=(old,))
    queue.load()
    assert [s.start_offset for s in queue.segments] == [0, SIZE]
    for _ in range(4):
        segment = queue.last_or_create()
        assert segment is not None
        segment.fill()
    names = [Path(s.path).parent.name for s in queue.segments]
    assert names == ["old", "old", "a", "b", "a", "b"]


def test_truncation_keeps_the_bytes_and_drops_later_segments(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, count=3)
    queue.segments[1].buffer[100:104] = b"stay"
    queue.truncate_dirty_files(SIZE + 50)
    assert [s.start_offset for s in queue.segments] == [0, SIZE]
    assert queue.max_offset == SIZE + 50
    assert bytes(queue.segments[1].buffer[100:104]) == b"stay"
    assert not (tmp_path / f"{2 * SIZE:020d}").exists()


def test_truncation_takes_later_segments_from_whoever_holds_them(tmp_path: Path) -> None:
    """Else the file would be taken for the next segment."""
    queue = make_queue(tmp_path, count=2)
    later = queue.segments[1]
    assert later.hold()
    queue.truncate_dirty_files(50)
    assert not (tmp_path / f"{SIZE:020d}").exists()
    assert not later.hold()


def test_expired_segments_go_from_the_oldest_and_never_the_last(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, count=4)
    for number, segment in enumerate(queue.segments):
        os.utime(segment.path, (1000 + number, 1000 + number))

    def delete(now_ms: int, *, immediately: bool = False, batch_max: int = 10) -> int:
        return queue.delete_expired_by_time(
            500, 0, 0, clean_immediately=immediately, batch_max=batch_max, now_ms=now_ms
        )

    assert delete(1_000_499) == 0
    assert delete(1_001_500) == 2
    assert queue.segments[0].hold()
    assert delete(9_999_999) == 0, "a held segment stops the run"
    queue.segments[0].release()
    assert delete(0, immediately=True, batch_max=1) == 1
    assert delete(0, immediately=True) == 0
    assert len(queue.segments) == 1


def test_the_pool_lends_its_buffers_and_takes_them_back() -> None:
    pool = TransientStorePool(2, 1024)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert pool.borrow() is None
    pool.give_back(first)
    assert pool.borrow() is first
    assert pool.borrow() is None


def test_a_segment_that_goes_gives_its_buffer_back(tmp_path: Path) -> None:
    pool = TransientStorePool(1, SIZE)
    for is_deleted in (False, True):
        segment = MappedFile(FILES, str(tmp_path), 0, SIZE, create=True, transient_pool=pool)
        segment.append(b"x")
        assert pool.borrow() is None
        if is_deleted:
            assert segment.destroy(1000)
        else:
            segment.close()
        buffer = pool.borrow()
        assert buffer is not None
        pool.give_back(buffer)


def test_what_a_full_disk_does_not_take_stays_in_the_write_buffer(tmp_path: Path) -> None:
    disk = FaultDisk()
    pool = TransientStorePool(1, SIZE)
    segment = MappedFile(disk, str(tmp_path), 0, SIZE, create=True, transient_pool=pool)
    segment.append(b"x" * 100)
    disk.fill(disk.events)
    with pytest.raises(StoreFullError):
        segment.commit(0)
    assert (segment.committed_position, segment.select(0)) == (0, None)
    disk.fill(None)
    assert segment.commit(0) == 100
    assert bytes(segment.select(0) or b"") == b"x" * 100
    segment.close()


def test_the_next_segment_is_made_ahead_and_unused_ones_go_at_shutdown(tmp_path: Path) -> None:
    made: list[int] = []
    second_made = threading.Event()

    def create(directory: str, start: int) -> MappedFile:
        made.append(start)
        if start == SIZE:
            second_made.set()
        return MappedFile(FILES, directory, start, SIZE, create=True)

    service = AllocateService(create)
    service.start()
    first = service.next_segment(str(tmp_path), 0, str(tmp_path), SIZE)
    assert first.start_offset == 0
    assert second_made.wait(10)
    second = service.next_segment(str(tmp_path), SIZE, str(tmp_path), 2 * SIZE)
    assert second.start_offset == SIZE
    assert made.count(SIZE) == 1
    service.shutdown()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{0:020d}", f"{SIZE:020d}"]


class SlowFiles(OsFileSystem):
    """Takes its time to make one file for the first time."""

    def __init__(self, slow: str) -> None:
        self.slow = slow
        self.begun, self.may_end = threading.Event(), threading.Event()

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Any:
        if path.endswith(self.slow) and not self.begun.is_set():
            self.begun.set()
            assert self.may_end.wait(100)
        return super().map(path, size, create=create, writable=writable)


def test_a_segment_that_takes_long_is_waited_for_and_never_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made too late is the segment that is used, and the one that stays."""
    monkeypatch.setattr(allocate, "WAIT_TIMEOUT_S", 0.0)
    files = SlowFiles(f"commitlog/{SIZE:020d}")
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=SIZE)
    count = 0

    def put() -> PutMessageStatus:
        nonlocal count
        status = store.put_message(MessageExtBrokerInner("T", bytes(SIZE // 3))).status
        count += status is PutMessageStatus.PUT_OK
        return status

    with MessageStore(config, files=files) as store:
        assert [put(), put()] == [PutMessageStatus.PUT_OK] * 2
        assert files.begun.wait(100)
        assert put() is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        monkeypatch.setattr(allocate, "WAIT_TIMEOUT_S", 100.0)
        assert put() is PutMessageStatus.CREATE_MAPPED_FILE_FAILED  # at once
        files.may_end.set()
        while put() is not PutMessageStatus.PUT_OK:
            pass  # until the file is made
        while store.max_phy_offset < 3 * SIZE:
            assert put() is PutMessageStatus.PUT_OK
        assert Path(tmp_path, files.slow).exists()
    assert Path(tmp_path, files.slow).exists()
    with MessageStore(config) as store:
        assert store.max_offset_in_queue("T", 0) == count


def test_a_store_with_pool_and_warm_up_keeps_what_it_was_given(tmp_path: Path) -> None:
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=SIZE,
        max_hash_slot_num=10,
        max_index_num=100,
        transient_store_pool_enable=True,
        transient_store_pool_size=3,
        warm_mapped_file_enable=True,
    )
    with MessageStore(config) as store:
        for n in range(60):
            assert store.put_message(MessageExtBrokerInner("t", b"%d" % n + bytes(900))).ok
    config.transient_store_pool_enable = False
    with MessageStore(config) as store:
        assert store.max_offset_in_queue("t", 0) == 60


class NotingFiles(OsFileSystem):
    """Notes which bytes of files are read ahead, and in which thread."""

    def __init__(self) -> None:
        self.noted: queue.Queue[tuple[int, int, str]] = queue.Queue()

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Any:
        mapping = super().map(path, size, create=create, writable=writable)
        outer = self

        class Noting:
            def __getattr__(self, name: str) -> Any:
                return getattr(mapping, name)

            def read_ahead(self, position: int, end: int) -> None:
                outer.noted.put((position, end, threading.current_thread().name))
                mapping.read_ahead(position, end)

        return Noting()


def test_pages_that_are_going_to_be_written_are_warmed_beside_the_writer(tmp_path: Path) -> None:
    files = NotingFiles()
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=32 << 20
    )
    body = b"x" * 2048  # long ones are not written through pages

    def put(store: MessageStore, mib: int) -> int:
        for _ in range(mib << 9):
            assert store.put_message(MessageExtBrokerInner("T", body)).ok
        return store.max_phy_offset

    with MessageStore(config, files=files) as store:
        end = put(store, 20)
    noted = [files.noted.get(timeout=100) for _ in range(3)]
    assert {name for *_, name in noted} == {"oberth-allocate"}
    for (_, before, _), (position, after, _) in pairwise(noted):
        assert before <= position < after <= 32 << 20
    assert noted[-1][1] >= end
    # After a restart too, where the segment is one that was there.
    with MessageStore(config, files=files) as store:
        put(store, 10)
    assert files.noted.get(timeout=100)[0] > end


def test_pages_are_warmed_before_they_are_written(tmp_path: Path) -> None:
    """But for the first of a segment, and without a word where the disk has no more room."""
    chunk, half = ALLOCATE_CHUNK_SIZE, ALLOCATE_CHUNK_SIZE // 2
    room = 3 * chunk

    class Small(OsFileSystem):
        """A disk with so much room."""

        def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Any:
            mapping = super().map(path, size, create=create, writable=writable)

            class Noting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(mapping, name)

                def allocate(self, start: int, end: int) -> None:
                    if end > room:
                        raise StoreFullError("no room")
                    mapping.allocate(start, end)

            return Noting()

    segment = MappedFile(Small(), str(tmp_path), 0, 6 * chunk, create=True)
    warmed: list[tuple[int, int, int]] = []
    segment.warm_ahead = lambda each, start, end: warmed.append((each.wrote_position, start, end))
    piece = bytes(2048)
    for _ in range(room // len(piece)):
        segment.append(piece)
    first = chunk + len(piece)
    begun, (written, *second) = warmed
    assert begun == (0, len(piece), first)
    assert second == [first, first + chunk]
    assert first - half - len(piece) < written <= first - half
    with pytest.raises(StoreFullError):
        segment.append(piece)
    assert segment.wrote_position == room
    room = 6 * chunk
    segment.append(piece)
    assert warmed[-1][1:] == (3 * chunk + len(piece), 4 * chunk + len(piece))
    segment.set_positions(chunk)
    segment.append(piece)
    assert warmed[-1][1:] == (chunk + len(piece), 2 * chunk + len(piece))
    # Long ones find theirs warm, too.
    warmed.clear()
    while segment.wrote_position < 6 * chunk:
        segment.append(bytes(min(1 << 20, 6 * chunk - segment.wrote_position)))
    assert [start for _, start, _ in warmed] == [n * chunk + len(piece) for n in range(2, 6)]
    assert all(written <= start - half for written, start, _ in warmed)
    assert warmed[-1][2] == 6 * chunk
    segment.destroy(0)


def test_a_segment_that_is_gone_is_not_warmed(segment: MappedFile, tmp_path: Path) -> None:
    files = NotingFiles()
    other = MappedFile(files, str(tmp_path), 2 * SIZE, SIZE, create=True)
    gone = MappedFile(files, str(tmp_path), 3 * SIZE, SIZE, create=True)
    gone.destroy(0)
    service = AllocateService(lambda directory, start: segment)
    service.start()
    service.warm(gone, 0, SIZE)
    service.warm(other, 0, OS_PAGE_SIZE)
    assert files.noted.get(timeout=100)[:2] == (0, OS_PAGE_SIZE)
    service.shutdown()
    service.warm(other, 0, SIZE)  # nobody is there any more
    assert files.noted.empty()
    other.close()
