"""A batch queue finds the unit of any message inside a batch, before and after reopening."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.formats.batch_consume_queue import UNIT, UNIT_SIZE, BatchConsumeQueueUnit
from oberth.formats.message import DispatchRequest
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.files import OsFileSystem
from oberth.store.tail_stream import FilePool

FILE_SIZE = 5 * UNIT_SIZE


def open_queue(root: Path) -> BatchConsumeQueue:
    return BatchConsumeQueue(FilePool(OsFileSystem()), f"{root}/t/0", "t", 0, FILE_SIZE)


def fill(queue: BatchConsumeQueue, sizes: list[int]) -> list[BatchConsumeQueueUnit]:
    units = []
    base = 0
    for number, size in enumerate(sizes):
        unit = BatchConsumeQueueUnit(number * 100, 100, 0, 1000 + number * 10, base, size)
        assert queue.put_unit(unit)
        units.append(unit)
        base += size
    return units


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), cut=st.integers(0, 30))
def test_look_up(sizes: list[int], cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        queue = open_queue(Path(folder))
        units = fill(queue, sizes)
        for opening in range(3):
            assert (queue.min_offset, queue.max_offset) == (0, units[-1].next_offset)
            assert queue.max_physic_offset == queue.last_offset() == len(units) * 100
            assert queue.latest_unit() == units[-1]
            assert queue.earliest_unit() == units[0]
            for unit in units:
                for offset in (unit.message_base_offset, unit.next_offset - 1):
                    assert queue.unit(offset) == unit
            assert queue.unit(queue.max_offset) is None
            for unit in units:
                assert not queue.put_unit(unit)
            if opening == 0:
                queue.stream.write_out()
                queue.stream.pool.close()
                queue = open_queue(Path(folder))
                assert queue.load() is None
                queue.recover(None)
            elif opening == 1:
                keep = max(1, min(cut, len(units)))
                assert queue.truncate(keep * 100) == (keep < len(units))
                units = units[:keep]
        for min_number in range(len(units)):
            queue.correct_min_offset(min_number * 100)
            assert queue.min_offset == units[min_number].message_base_offset
        queue.correct_min_offset(1 << 40)
        assert queue.min_offset == queue.max_offset
        queue.stream.pool.close()


def test_reads_stop_at_the_end_of_a_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    units = fill(queue, [2] * 12)
    assert [u[4] for u in UNIT.iter_unpack(queue.units(3, 100))] == list(range(2, 24, 2))
    within = queue.units(3, 100, within_segment=True)
    assert [u[4] for u in UNIT.iter_unpack(within)] == [2, 4, 6, 8]
    assert queue.roll_next_file(3) == units[5].message_base_offset
    assert queue.units(24, 5) == b""


def test_where_it_could_be_read_from_if_the_log_began_later(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert queue.readable_from(0) == -1
    fill(queue, [2, 3, 4])
    assert [queue.readable_from(end) for end in (0, 100, 150, 300)] == [0, 2, 5, 9]
    queue.correct_min_offset(200)
    assert [queue.readable_from(end) for end in (0, 200, 300)] == [5, 5, 9]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_queue_ends_before_a_unit_of_zeros(tmp_path: Path, lost: int) -> None:
    queue = open_queue(tmp_path)
    fill(queue, [2, 3, 4, 5, 6])
    queue.stream.write_out()
    (file,) = (tmp_path / "t" / "0").iterdir()
    with file.open("r+b") as written:
        written.seek(lost * UNIT_SIZE)
        written.write(bytes(UNIT_SIZE))
    again = open_queue(tmp_path)
    again.load()
    assert again.cut_before_zeros() == 5 - lost
    assert again.cut_before_zeros() == 0
    assert again.max_offset == (5 if lost else 0)


def test_an_empty_queue_begins_at_minus_one(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.max_physic_offset) == (-1, 0, -1)
    assert queue.offset_by_time(5, lambda _offset, _size: 0, 0) == -1
    assert queue.earliest_unit() is None
    queue.recover(None)
    assert (queue.min_offset, queue.max_offset) == (-1, 0)


def test_times(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, [3] * 8)

    def at(time: int, *, upper: bool = False) -> int:
        return queue.offset_by_time(time, lambda _offset, _size: 0, 0, upper=upper)

    # Five batches a file. Between the times of two files the answer is the last of the first.
    assert [at(t) for t in (0, 1000, 1001, 1010, 1041, 1070, 1071)] == [0, 0, 3, 3, 12, 21, 21]
    # A search that finds nothing, or the later one, between the times of two batches.
    assert [at(t, upper=True) for t in (999, 1000, 1001, 1010, 1025, 1070, 9999)] == [
        0, 0, 3, 3, -1, 21, 21,
    ]  # fmt: skip


def test_what_was_stored_from_a_time_on_is_exact(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, [3] * 8)
    found = [queue.first_stored_from(t, 0) for t in (0, 1001, 1010, 1041, 1071)]
    assert found == [0, 3, 3, 15, 24]
    assert queue.first_stored_from(0, 300) == 9


def test_expired_files_go_but_never_the_last(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, [2] * 12)
    queue.stream.write_out()
    assert queue.delete_expired(500) == 1
    queue.correct_min_offset(500)
    assert queue.min_offset == 10
    assert queue.delete_expired(1 << 40) == 1
    assert queue.max_offset == 24


@pytest.mark.parametrize(("base", "size", "expected"), [(4, 3, (4, 7)), (-1, -1, (9, 10))])
def test_a_record_that_is_no_batch_is_one_of_one(
    base: int, size: int, expected: tuple[int, int], tmp_path: Path
) -> None:
    queue = open_queue(tmp_path)
    request = DispatchRequest("t", 0, 0, 100, 7, 1000, 9, 0, 0, b"")
    request.message_base_offset, request.batch_size = base, size
    assert queue.put_request(request)
    assert (queue.min_offset, queue.max_offset) == expected


def test_numbers_that_begin_anew_begin_the_queue_anew(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, [2] * 8)
    assert not queue.put_unit(BatchConsumeQueueUnit(5000, 100, 0, 1, 3, 2)), "a damaged number"
    assert queue.put_unit(BatchConsumeQueueUnit(6000, 100, 0, 1, 0, 2))
    assert (queue.min_offset, queue.max_offset) == (0, 2)


def test_a_reader_forgets_what_lay_behind_a_file_that_is_gone(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    units = fill(queue, [2] * 20)
    queue.stream.write_out()
    reader = BatchConsumeQueue(
        FilePool(OsFileSystem(), writable=False), queue.stream.directory, "t", 0, FILE_SIZE
    )
    reader.refresh(100 * len(units))
    assert (reader.min_offset, reader.max_offset) == (0, 40)
    (tmp_path / "t" / "0" / f"{2 * FILE_SIZE:020}").unlink()
    reader.refresh(100 * len(units))
    assert (reader.min_offset, reader.max_offset) == (0, 20)
    assert reader.latest_unit() == units[9]
