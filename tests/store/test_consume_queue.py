"""A queue behaves like a list under any puts, flushes, cuts and reopenings; torn and odd files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oberth.errors import StoreFullError
from oberth.formats.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE
from oberth.store.consume_queue import ConsumeQueue, QueueExtent
from oberth.store.files import OsFileSystem
from oberth.store.tail_stream import FilePool

FILE_SIZE = 10 * UNIT_SIZE
SIZE = 100


def open_queue(root: Path, files: Any = None, file_size: int = FILE_SIZE) -> ConsumeQueue:
    pool = FilePool(files or OsFileSystem(), open_files_max=3)
    return ConsumeQueue(pool, f"{root}/t/0", "t", 0, file_size)


def put(queue: ConsumeQueue, number: int, place: int | None = None) -> bool:
    """The message with this number, whose record lies at ``place`` in a log of equal records."""
    return queue.put((number if place is None else place) * SIZE, SIZE, number, number)


def numbers(queue: ConsumeQueue) -> list[int]:
    data = queue.units(queue.min_offset, 1 << 20)
    tags = [unit[2] for unit in UNIT.iter_unpack(data) if unit[1] == SIZE]
    # What stands in for a lost message is a copy of the unit that follows.
    return [tag for tag, following in zip(tags, [*tags[1:], None], strict=True) if tag != following]


class QueueModel(RuleBasedStateMachine):
    """A dictionary of queue offset to CommitLog offset beside the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.queue = open_queue(self.root)
        self.units: dict[int, int] = {}
        self.end = 0  # next number
        self.log_end = 0
        self.log_min = 0
        self.stale = False

    def teardown(self) -> None:
        self.queue.stream.pool.close()
        shutil.rmtree(self.root)

    @initialize(first=st.integers(0, 25), log=st.integers(0, 5))
    def begin(self, first: int, log: int) -> None:
        self.log_end = log * SIZE
        self.end = first

    def grow_log(self, count: int) -> None:
        # As the store does it: what a truncation left must not be there when the log gets there.
        if self.stale:
            self.queue.erase_stale()
            self.stale = False
        self.log_end += count * SIZE

    @rule(count=st.integers(1, 25))
    def put_some(self, count: int) -> None:
        for _ in range(count):
            assert self.queue.put(self.log_end, SIZE, self.end, self.end)
            self.units[self.end] = self.log_end
            self.end += 1
            self.grow_log(1)

    @rule(count=st.integers(1, 25))
    def put_run(self, count: int) -> None:
        units = b"".join(
            UNIT.pack(self.log_end + n * SIZE, SIZE, self.end + n) for n in range(count)
        )
        assert self.queue.put_many(units, self.end) == count
        for _ in range(count):
            self.units[self.end] = self.log_end
            self.end += 1
            self.grow_log(1)

    @rule(count=st.integers(1, 20))
    def records_of_other_queues(self, count: int) -> None:
        self.grow_log(count)

    @precondition(lambda self: self.units)
    @rule(count=st.integers(1, 8))
    def lose_records(self, count: int) -> None:
        self.end += count
        self.grow_log(count)
        self.put_some(1)

    @rule(back=st.integers(0, 30))
    def put_again(self, back: int) -> None:
        known = sorted(self.units)[-back - 1 :]
        for number in known:
            assert not self.queue.put(self.units[number], SIZE, number, number)
        run = [n for n in known if n + len(known) - 1 - known.index(n) == known[-1]]
        data = b"".join(UNIT.pack(self.units[n], SIZE, n) for n in run)
        if run:
            assert self.queue.put_many(data, run[0]) == 0

    @rule()
    def write_behind(self) -> None:
        self.queue.stream.pool.write_behind()

    @rule()
    def flush(self) -> None:
        self.queue.stream.pool.write_behind()
        self.queue.stream.pool.sync()

    @rule(with_extent=st.booleans())
    def reopen(self, with_extent: bool) -> None:
        self.flush()
        extent = self.queue.extent
        self.queue.stream.pool.close()
        self.queue = open_queue(self.root)
        assert self.queue.load() is None
        self.queue.recover(extent if with_extent else None)
        self.stale = self.queue.truncate(self.log_end) or self.stale
        self.queue.correct_min_offset(self.log_min)
        if not self.units:
            self.end = self.queue.max_offset

    @precondition(lambda self: self.units)
    @rule(keep=st.integers(0, 40))
    def truncate(self, keep: int) -> None:
        known = sorted(self.units)
        limit = self.units[known[keep]] if keep < len(known) else self.log_end
        self.stale = self.queue.truncate(limit) or self.stale
        self.units = {n: at for n, at in self.units.items() if at < limit}
        self.log_end = limit
        self.log_min = min(self.log_min, limit)
        if self.units:
            # Filler stays where a queue goes on behind it.
            self.end = self.queue.max_offset
            assert self.end >= max(self.units) + 1
        else:
            self.end = self.queue.max_offset

    @precondition(lambda self: len(self.units) > 3)
    @rule(part=st.integers(1, 3))
    def expire(self, part: int) -> None:
        known = sorted(self.units)
        self.log_min = self.units[known[len(known) * part // 4]]
        self.queue.delete_expired(self.log_min)
        self.queue.correct_min_offset(self.log_min)
        self.units = {n: at for n, at in self.units.items() if at >= self.log_min}

    @invariant()
    def same_as_model(self) -> None:
        queue = self.queue
        if not self.units:
            return
        assert queue.max_offset == self.end
        assert queue.max_physic_offset == self.units[max(self.units)] + SIZE
        assert queue.last_offset() == queue.max_physic_offset
        found: dict[int, int] = {}
        data = queue.units(min(self.units), 1 << 20)
        for number, (at, size, _) in enumerate(UNIT.iter_unpack(data), min(self.units)):
            if size == SIZE:
                if found.get(number - 1) == at:
                    del found[number - 1]  # it stood in for a message that was lost
                found[number] = at
        assert found == self.units
        earliest, latest = queue.earliest_unit(), queue.latest_unit()
        assert earliest is not None
        assert latest is not None
        assert earliest.commit_log_offset <= self.units[min(self.units)]
        assert latest.commit_log_offset == self.units[max(self.units)]
        middle = sorted(self.units)[len(self.units) // 2]
        unit = queue.unit(middle)
        assert unit is not None
        assert unit.commit_log_offset == self.units[middle]


QueueModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestQueueModel = QueueModel.TestCase


def test_the_front_is_filled_as_by_rocketmq(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert put(queue, 23)
    assert (queue.min_offset, queue.max_offset) == (23, 24)
    queue.stream.write_out()
    (file,) = (tmp_path / "t" / "0").iterdir()
    assert file.name == f"{400:020d}"
    data = file.read_bytes()
    assert len(data) == FILE_SIZE
    assert data[:80] == PRE_BLANK * 3 + UNIT.pack(2300, SIZE, 23)
    assert not any(data[80:])


def test_filler_counts_neither_as_minimum_nor_as_end(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    put(queue, 23)
    queue.correct_min_offset(0)
    assert queue.min_offset == 23
    queue.stream.write_out()
    again = open_queue(tmp_path)
    again.load()
    again.recover()
    assert (again.min_offset, again.max_offset) == (20, 24)
    assert again.max_physic_offset == 2400
    again.correct_min_offset(0)
    assert again.min_offset == 23


def test_a_gap_is_filled_so_that_number_is_place(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    put(queue, 0)
    assert put(queue, 35)
    assert queue.max_offset == 36
    assert queue.units(1, 34) == queue.units(35, 1) * 34, "whoever reads there gets the next one"
    assert numbers(queue) == [0, 35]
    assert not put(queue, 20), "a record before the last one was there already"


@pytest.mark.parametrize("damaged", [1 << 20, 1 << 40, (1 << 62), -5])
def test_one_damaged_number_costs_one_message(damaged: int, tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(10):
        put(queue, n)
    assert not queue.put(10 * SIZE, SIZE, 10, damaged)
    for n in range(11, 20):
        assert put(queue, n)
    assert numbers(queue) == [n for n in range(20) if n != 10]


@pytest.mark.parametrize("damaged", [3, 5])
def test_a_number_that_was_lowered_replaces_nobody(damaged: int, tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(10):
        put(queue, n)
    assert not queue.put(10 * SIZE, SIZE, 10, damaged)
    for n in range(11, 20):
        assert put(queue, n)
    assert numbers(queue) == [n for n in range(20) if n != 10]


def test_a_number_that_was_raised_a_little_makes_room_for_the_right_ones(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(10):
        put(queue, n, place=n * 50)
    assert queue.put(500 * SIZE, SIZE, 999, 14)  # it was 10
    for n in range(11, 20):
        put(queue, n, place=n * 50)
    found = [u[2] for u in UNIT.iter_unpack(queue.units(0, 100)) if u[1] == SIZE]
    # Its copy stands where it belongs, and the others have taken back their places.
    assert found == [*range(10), 999, *range(11, 20)]
    assert queue.unit(14) == (14 * 50 * SIZE, SIZE, 14)


def test_a_first_number_that_was_raised_leaves_the_front_to_the_right_ones(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert put(queue, 23, place=19)
    for n in range(20, 23):
        assert put(queue, n, place=n)
        assert queue.min_offset == 20
    assert numbers(queue) == [20, 21, 22, 23]


@pytest.mark.parametrize("start", [0, 4])
def test_numbers_that_begin_anew_begin_the_queue_anew(start: int, tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(30):
        put(queue, n)
    for n in range(start, 12):
        put(queue, n, place=100 + n)
    assert (queue.min_offset, queue.max_offset) == (start, 12)
    assert numbers(queue) == list(range(start, 12))
    queue.stream.write_out()
    assert len(list((tmp_path / "t" / "0").iterdir())) == 2


def test_reads_stop_where_they_are_told_to(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(35):
        put(queue, n)
    for written in (False, True):
        if written:
            queue.stream.write_out()
            queue.stream.drop_window()
        assert len(queue.units(5, 100)) == 30 * UNIT_SIZE
        assert len(queue.units(5, 100, within_segment=True)) == 5 * UNIT_SIZE
        assert len(queue.units(10, 3, within_segment=True)) == 3 * UNIT_SIZE
        assert queue.units(35, 1) == b""
        assert queue.units(-1, 5) == b""
    assert queue.roll_next_file(5) == 10
    assert queue.roll_next_file(10) == 20


@pytest.mark.parametrize("cut", range(0, 3 * FILE_SIZE, 7))
def test_torn_files(cut: int, tmp_path: Path) -> None:
    # Everything behind any byte is zero, as after a power cut: the rest comes again.
    queue = open_queue(tmp_path)
    for n in range(30):
        put(queue, n)
    queue.stream.write_out()
    for start in range(0, 3 * FILE_SIZE, FILE_SIZE):
        path = tmp_path / "t" / "0" / f"{start:020d}"
        data = path.read_bytes()[: max(0, cut - start)]
        path.write_bytes(data + bytes(FILE_SIZE - len(data)))
    again = open_queue(tmp_path)
    again.load()
    again.recover()
    kept = again.max_offset
    assert kept <= cut // UNIT_SIZE + 1
    # The unit that was torn may pass for one; dispatch goes on before it, as recovery tells it to.
    again.truncate(max(0, cut // UNIT_SIZE) * SIZE)
    for n in range(30):
        put(again, n)
    assert numbers(again) == list(range(30))


def test_a_hole_in_the_middle_is_cut_off_with_what_is_dispatched_again(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(30):
        put(queue, n)
    queue.stream.write_out()
    path = tmp_path / "t" / "0" / f"{FILE_SIZE:020d}"
    path.write_bytes(bytes(FILE_SIZE))
    again = open_queue(tmp_path)
    again.load()
    again.recover()
    again.truncate(9 * SIZE)
    assert again.max_offset == 9
    for n in range(9, 30):
        assert put(again, n)
    again.stream.write_out()
    assert numbers(again) == list(range(30))


def test_an_extent_that_does_not_fit_the_files_is_not_believed(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(25):
        put(queue, n)
    queue.stream.write_out()
    for extent in (
        QueueExtent(0, 9, 900),  # files were added
        QueueExtent(0, 31, 3100),  # files are missing
        QueueExtent(-5, 25, 2500),
        QueueExtent(30, 25, 2500),
    ):
        again = open_queue(tmp_path)
        again.load()
        again.recover(extent)
        assert again.extent == QueueExtent(0, 25, 2500)


def test_an_empty_file_keeps_no_unit_of_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "0"
    folder.mkdir(parents=True)
    (folder / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    queue = open_queue(tmp_path)
    queue.load()
    queue.recover()
    queue.truncate(1000)
    assert queue.max_offset == 10
    assert queue.last_offset() == -1
    assert put(queue, 10)
    assert numbers(queue) == [10]


def test_a_file_without_units_does_not_tell_where_the_queue_is(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "0"
    folder.mkdir(parents=True)
    (folder / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    queue = open_queue(tmp_path)
    queue.load()
    queue.recover()
    assert put(queue, 57)
    assert numbers(queue) == [57]
    queue.stream.write_out()
    assert [path.name for path in folder.iterdir()] == [f"{5 * FILE_SIZE:020d}"]


def test_truncation_of_everything_lets_records_come_again(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(15):
        put(queue, n)
    queue.stream.write_out()
    queue.truncate(0)
    assert list((tmp_path / "t" / "0").iterdir()) == []
    assert queue.extent == QueueExtent(0, 0, -1)
    assert put(queue, 0)


def test_a_truncation_before_the_first_message_takes_the_minimum_back(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(15):
        put(queue, n)
    queue.correct_min_offset(8 * SIZE)
    assert queue.min_offset == 8
    queue.truncate(5 * SIZE)
    assert (queue.min_offset, queue.max_offset) == (5, 5)
    assert not queue.truncate(5 * SIZE), "nothing was left to be cut off"


def test_a_truncation_forgets_the_number_that_was_not_believed(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for n in range(10):
        assert put(queue, n)
    assert not put(queue, 4, place=10)
    queue.truncate(10 * SIZE)  # that record is gone, so nothing follows it
    assert not put(queue, 5, place=10)
    assert numbers(queue) == list(range(10))
    assert put(queue, 6, place=11), "two that follow each other are numbers that begin anew"
    assert numbers(queue) == [5, 6]


class FailingFiles(OsFileSystem):
    """Every write fails while ``full`` is set."""

    full = False

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> Any:
        file = super().open(path, create=create, writable=writable)
        outer = self

        class File:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, data: Any, position: int) -> None:
                if outer.full:
                    raise StoreFullError("full")
                file.write(data, position)

        return File()


def test_a_full_disk_leaves_units_in_memory_and_refuses_when_there_are_many(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    queue = open_queue(tmp_path, files, file_size=400 * UNIT_SIZE)
    put(queue, 0)
    files.full = True
    with pytest.raises(StoreFullError):
        queue.stream.pool.write_behind()
    taken = 1
    try:
        while taken < 10_000:
            put(queue, taken)
            taken += 1
    except StoreFullError:
        pass
    assert taken < 4000
    assert queue.max_offset == taken
    assert numbers(queue) == list(range(taken))
    files.full = False
    assert put(queue, taken)
    queue.stream.write_out()
    again = open_queue(tmp_path, file_size=400 * UNIT_SIZE)
    again.load()
    again.recover()
    assert numbers(again) == list(range(taken + 1))


def test_a_full_disk_while_a_front_is_filled_changes_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    queue = open_queue(tmp_path, files)
    files.full = True
    with pytest.raises(StoreFullError):
        put(queue, 57)
    assert queue.max_offset in (0, 50)
    files.full = False
    assert put(queue, 57)
    assert numbers(queue) == [57]
    assert (queue.min_offset, queue.max_offset) == (57, 58)


@given(data=st.binary(max_size=3 * FILE_SIZE))
@settings(max_examples=80)
def test_any_bytes_in_the_files_are_read_without_harm(data: bytes) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        folder = root / "t" / "0"
        folder.mkdir(parents=True)
        data += bytes(-len(data) % FILE_SIZE)
        for start in range(0, len(data), FILE_SIZE):
            (folder / f"{start:020d}").write_bytes(data[start : start + FILE_SIZE])
        queue = open_queue(root)
        queue.load()
        queue.recover()
        queue.correct_min_offset(1 << 30)
        queue.truncate(1 << 40)
        queue.offset_by_time(5, lambda offset, size: offset + size, 0)
        queue.offset_by_time(5, lambda offset, size: -1, 0, upper=True)
        queue.offset_by_time(5, lambda offset, size: offset, 0, by_file_time=True)
        queue.delete_expired(1 << 50)
        assert 0 <= queue.min_offset <= max(queue.max_offset, queue.min_offset)
        queue.stream.pool.close()
    finally:
        shutil.rmtree(root)
