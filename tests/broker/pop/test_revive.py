"""PopRevive alone: check points and acknowledgements in any order, by the offsets of its queue."""

from __future__ import annotations

import pytest

from oberth.broker.pop import revive as revive_module
from oberth.broker.pop.check_point import ACK_TAG, CK_TAG, PopAck, PopCheckPoint
from oberth.broker.pop.revive import PopRevive

INVISIBLE_MS = 1_000


def check_point(start: int, pop_time: int = 0) -> PopCheckPoint:
    return PopCheckPoint(start, pop_time, INVISIBLE_MS, 0, "T", "G", "b", (0, 1, 2))


def ack(start: int, *offsets: int) -> PopAck:
    return PopAck(offsets, start, 0, 0, "T", "G", "b", is_batch=len(offsets) > 1)


def receive(revive: PopRevive, offset: int, what: PopCheckPoint | PopAck) -> None:
    tag = what.tag if isinstance(what, PopAck) else CK_TAG
    revive.receive(offset, tag, what.encode())


def test_it_goes_on_behind_what_was_committed_but_not_behind_the_queues_end() -> None:
    assert PopRevive(0, -1, 0).read_offset == 0
    assert PopRevive(0, 6, 100).read_offset == 7
    assert PopRevive(0, 6, 5).read_offset == 5


def test_what_is_not_acknowledged_comes_back_once_all_up_to_its_time_is_known() -> None:
    revive = PopRevive(3, -1, 0)
    assert revive.next_due(1 << 40) is None
    receive(revive, 7, check_point(10))
    receive(revive, 8, ack(10, 11))
    assert (revive.read_offset, len(revive), revive.committed) == (9, 1, -1)
    assert revive.next_due(INVISIBLE_MS) is None
    due = revive.next_due(INVISIBLE_MS + 1)
    assert due is not None
    assert due.unacked() == [10, 12]
    revive.done(due)
    assert (len(revive), revive.committed) == (0, 7)


def test_they_are_dealt_with_in_the_order_of_the_queue() -> None:
    revive = PopRevive(3, -1, 0)
    receive(revive, 0, check_point(10, pop_time=500))
    receive(revive, 1, check_point(20))
    assert revive.next_due(INVISIBLE_MS + 1) is None  # it is due, the one before it is not
    due = revive.next_due(INVISIBLE_MS + 501)
    assert due is not None
    assert due.start_offset == 10


def test_acknowledgements_may_come_before_their_check_point() -> None:
    revive = PopRevive(0, -1, 0)
    receive(revive, 0, ack(10, 10, 12))
    receive(revive, 1, ack(10, 11))
    assert len(revive) == 0
    receive(revive, 2, check_point(10))
    due = revive.next_due(1 << 40)
    assert due is not None
    assert due.is_all_acked


def test_a_check_point_that_comes_twice_keeps_its_acknowledgements_at_the_later_place() -> None:
    revive = PopRevive(0, -1, 0)
    receive(revive, 0, check_point(10))
    receive(revive, 1, check_point(20))
    receive(revive, 2, ack(10, 11))
    receive(revive, 3, check_point(10))
    assert len(revive) == 2
    first = revive.next_due(1 << 40)
    assert first is not None
    assert first.start_offset == 20
    revive.done(first)
    again = revive.next_due(1 << 40)
    assert again is not None
    assert again.unacked() == [10, 12]
    revive.done(again)
    assert revive.committed == 3


def test_early_acknowledgements_are_limited_and_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revive_module, "EARLY_ACKS_MAX", 2)
    revive = PopRevive(0, -1, 0)
    for number, start in enumerate((10, 20, 30)):
        receive(revive, number, ack(start, start))
    unacked = []
    for number, start in enumerate((10, 20, 30)):
        receive(revive, 3 + number, check_point(start))
        due = revive.next_due(1 << 40)
        assert due is not None
        unacked.append(len(due.unacked()))
        revive.done(due)
    assert unacked == [3, 2, 2]


def test_what_does_not_parse_is_passed_over() -> None:
    revive = PopRevive(0, -1, 0)
    for tag, body in ((CK_TAG, b"no"), (ACK_TAG, b"[]"), ("else", b"{}"), (None, b"")):
        revive.receive(revive.read_offset, tag, body)
    assert (revive.read_offset, len(revive)) == (4, 0)


def test_early_acknowledgements_are_limited_by_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revive_module, "EARLY_SIZE_MAX", 5_000)
    revive = PopRevive(0, -1, 0)
    sizes = []
    for _ in range(100):
        receive(revive, revive.read_offset, ack(20, 20, 21))
        sizes.append(revive._early_size)
    assert max(sizes) <= 5_000
    assert max(sizes) >= 10 * sizes[0]
    receive(revive, revive.read_offset, ack(10, *range(10, 1_000)))  # too large alone
    assert (revive._early, revive._early_size) == ({}, 0)
    receive(revive, revive.read_offset, ack(10, 11))
    receive(revive, revive.read_offset, check_point(10))
    assert revive._early_size == 0
    due = revive.next_due(1 << 40)
    assert due is not None
    assert due.unacked() == [10, 12]
