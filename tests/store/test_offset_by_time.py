"""Searching by time equals a plain look at every message, for any times and expired fronts."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.store.consume_queue import ConsumeQueue
from oberth.store.files import OsFileSystem
from oberth.store.tail_stream import FilePool


def queue_with(folder: str, times: list[int]) -> ConsumeQueue:
    queue = ConsumeQueue(FilePool(OsFileSystem()), f"{folder}/t/0", "t", 0, 100)
    for number in range(len(times)):
        queue.put(number * 10, 10, 0, number)
    return queue


@settings(max_examples=150)
@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 50]), min_size=1, max_size=40),
    expired=st.integers(0, 40),
    time=st.integers(-3, 300),
)
def test_boundaries(steps: list[int], expired: int, time: int) -> None:
    times = [sum(steps[: n + 1]) for n in range(len(steps))]
    expired = min(expired, len(times) - 1)
    with tempfile.TemporaryDirectory() as folder:
        queue = queue_with(folder, times)

        def store_time(offset: int, _size: int) -> int:
            return times[offset // 10] if offset >= expired * 10 else -1

        queue.delete_expired(expired * 10)
        queue.correct_min_offset(expired * 10)
        assert queue.min_offset == expired
        lower = next((n for n in range(expired, len(times)) if times[n] >= time), len(times))
        assert queue.offset_by_time(time, store_time, expired * 10) == lower
        upper = max((n for n in range(expired, len(times)) if times[n] <= time), default=0)
        found = queue.offset_by_time(time, store_time, expired * 10, upper=True)
        # Where nothing is that old RocketMQ says 0, which its callers clamp.
        assert max(found, expired if upper == 0 else 0) == max(upper, expired if upper == 0 else 0)
        near = queue.offset_by_time(time, store_time, expired * 10, by_file_time=True)
        assert expired <= near < len(times)
        queue.stream.pool.close()


def test_an_empty_queue(tmp_path_factory: object) -> None:
    queue = ConsumeQueue(FilePool(OsFileSystem()), "/nowhere/t/0", "t", 0, 100)
    for options in ({}, {"upper": True}, {"by_file_time": True}):
        assert queue.offset_by_time(5, lambda _offset, _size: 0, 0, **options) == 0
