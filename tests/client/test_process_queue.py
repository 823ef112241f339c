"""Proves that a ProcessQueue commits only what is done, against a model."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from oberth.client.messages import MessageExt
from oberth.client.process_queue import ProcessQueue


def message(offset: int, size: int = 100) -> MessageExt:
    fixed = (size, 0, 0, 0, 0, offset, 0, 0, 0, b"", 0, b"", 0, 0, 0)
    return MessageExt(b"", fixed, "T", 0, 0, 0, 0, "b")


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), max_size=20), st.randoms())
def test_commit_offset_against_a_model(pulls: list[tuple[int, int]], rng: random.Random) -> None:
    queue = ProcessQueue(0, 0)
    assert queue.commit_offset == -1
    offset = 0
    open_offsets: set[int] = set()
    taken: list[MessageExt] = []
    for count, gap in pulls:
        batch = [message(offset + n) for n in range(count)]
        offset += count
        open_offsets.update(each.queue_offset for each in batch)
        queue.put(batch, offset + gap)
        offset += gap
        taken += queue.take(rng.randint(0, 15))
        rng.shuffle(taken)
        done, taken = taken[: len(taken) // 2], taken[len(taken) // 2 :]
        queue.remove(done)
        open_offsets.difference_update(each.queue_offset for each in done)
        assert queue.commit_offset == min(open_offsets, default=offset)
        assert queue.count == len(open_offsets)
        assert queue.size == 100 * len(open_offsets)
        assert queue.consuming == len(taken)
        if open_offsets:
            assert queue.span == max(open_offsets) - min(open_offsets) or queue.span >= 0


def test_repeats_of_an_earlier_pull_are_left_out() -> None:
    queue = ProcessQueue(0, 0)
    queue.put([message(0), message(1)], 2)
    queue.put([message(1), message(2)], 3)
    assert [each.queue_offset for each in queue.pending] == [0, 1, 2]
    assert queue.size == 300


def test_put_back_keeps_the_order() -> None:
    queue = ProcessQueue(0, 0)
    queue.put([message(n) for n in range(4)], 4)
    taken = queue.take(2)
    queue.put_back(taken)
    assert queue.consuming == 0
    assert [each.queue_offset for each in queue.take(4)] == [0, 1, 2, 3]


def test_what_is_lent_is_not_done() -> None:
    queue = ProcessQueue(0, 0)
    pulled = [message(n) for n in range(8)]
    queue.put(pulled, 8)
    for part in (pulled[:3], pulled[3:6]):
        queue.remove(queue.take(3))
        queue.lend(part)
    assert (queue.count, queue.consuming, queue.first_undone) == (2, 0, 0)
    queue.settle(pulled[0])
    assert queue.first_undone == 1
    queue.take_back(pulled[3:6])
    queue.take_back(pulled[:3])  # the first of them is done
    assert (queue.count, queue.size, queue.first_undone) == (7, 700, 1)
    assert list(queue.messages) == [each.queue_offset for each in queue.pending]
    taken = queue.take(7)
    assert taken == pulled[1:]
    queue.remove(taken)
    assert queue.first_undone is None


def test_what_is_lent_of_an_end_that_is_lost_says_nothing() -> None:
    queue = ProcessQueue(0, 0)
    old, new = [message(n) for n in range(4)], [message(n) for n in range(2, 4)]
    queue.put(old, 4)
    queue.remove(queue.take(4))
    queue.lend(old)
    queue.end_at(2)
    queue.put(new, 4)
    queue.remove(queue.take(2))
    queue.lend(new)
    for each in old:
        queue.settle(each)
    assert queue.first_undone == 2
    queue.take_back(old)
    assert not queue.pending
    queue.take_back(new)
    assert list(queue.pending) == new


def test_nothing_found_still_makes_progress() -> None:
    queue = ProcessQueue(7, 0)
    assert queue.commit_offset == -1
    queue.skip_to(9)
    assert queue.commit_offset == 9


def test_flow_control_limits() -> None:
    queue = ProcessQueue(0, 0)
    assert not queue.is_full(0, 0, 0)
    queue.put([message(0), message(3000, 50)], 3001)
    assert queue.is_full(1, 10_000, None)
    assert queue.is_full(10, 149, None)
    assert queue.is_full(10, 10_000, 2000)
    assert not queue.is_full(10, 10_000, None)


def test_a_lock_is_lost_when_it_was_not_renewed() -> None:
    queue = ProcessQueue(0, 1000)
    assert not queue.may_consume_orderly(1000)
    queue.locked = True
    queue.last_lock_ms = 1000
    assert queue.may_consume_orderly(31_000)
    assert not queue.may_consume_orderly(31_001)
    assert queue.is_pull_expired(121_001)
    assert queue.info().locked
