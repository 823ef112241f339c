"""Queues come out when their time has come, each once, and take no more room than one entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oberth.broker.pop.unlocks import SPARE, Queue, Unlocks

Q: Queue = ("T", "G", 0)


def test_a_queue_comes_out_once_when_its_time_has_come() -> None:
    unlocks = Unlocks()
    unlocks.note(Q, 10)
    assert not unlocks.has_due(9)
    assert unlocks.due(9, 5) == []
    assert unlocks.has_due(10)
    assert unlocks.due(10, 5) == [Q]
    assert (unlocks.due(10, 5), len(unlocks)) == ([], 0)


def test_the_earlier_time_counts() -> None:
    unlocks = Unlocks()
    for at_ms in (20, 10, 30):
        unlocks.note(Q, at_ms)
    assert len(unlocks) == 1
    assert unlocks.due(10, 5) == [Q]
    unlocks.note(Q, 30)
    assert unlocks.due(29, 5) == []  # 20 counts no more
    assert unlocks.due(30, 5) == [Q]
    assert unlocks.due(99, 5) == []


def test_what_is_forgotten_does_not_come_out() -> None:
    unlocks = Unlocks()
    unlocks.note(Q, 10)
    unlocks.forget(Q)
    unlocks.forget(Q)
    assert (unlocks.due(10, 5), len(unlocks)) == ([], 0)
    for _ in range(2):
        unlocks.note(Q, 10)
        unlocks.forget(Q)
    unlocks.note(Q, 10)
    assert unlocks.due(10, 5) == [Q]
    assert unlocks.due(10, 5) == []


def test_so_many_come_out_the_earliest_first() -> None:
    unlocks = Unlocks()
    queues = [("T", "G", number) for number in range(9)]
    for queue in reversed(queues):
        unlocks.note(queue, queue[2])
    unlocks.forget(queues[1])
    assert unlocks.due(7, 4) == [queues[0], queues[2], queues[3]]  # one was looked at in vain
    assert unlocks.due(7, 4) == queues[4:8]
    assert not unlocks.has_due(7)


def test_what_counts_no_more_is_kept_until_there_is_much() -> None:
    unlocks = Unlocks()
    for at_ms in range(10 * SPARE, 0, -1):
        unlocks.note(Q, at_ms)
        assert len(unlocks._heap) <= SPARE + 3
    for _ in range(10 * SPARE):  # the same time again and again
        unlocks.forget(Q)
        unlocks.note(Q, 1)
        assert len(unlocks._heap) <= SPARE + 3
    for at_ms in range(1, 10 * SPARE):
        size = len(unlocks._heap)
        unlocks.note(Q, at_ms)
        assert len(unlocks._heap) == size
    assert unlocks.due(10 * SPARE, 2 * SPARE) == [Q]


@given(
    st.lists(st.tuples(st.sampled_from("nfd"), st.integers(0, 3), st.integers(0, 20)), max_size=60)
)
def test_any_course_is_that_of_a_plain_table(course: list[tuple[str, int, int]]) -> None:
    unlocks = Unlocks()
    times: dict[Queue, int] = {}
    for what, number, at_ms in course:
        queue = ("T", "G", number)
        if what == "n":
            unlocks.note(queue, at_ms)
            times[queue] = min(times.get(queue, at_ms), at_ms)
        elif what == "f":
            unlocks.forget(queue)
            times.pop(queue, None)
        else:
            due = sorted((each_ms, each) for each, each_ms in times.items() if each_ms <= at_ms)
            assert unlocks.due(at_ms, 100) == [each for _, each in due]
            for _, each in due:
                del times[each]
        assert len(unlocks) == len(times)
