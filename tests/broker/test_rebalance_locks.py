"""A queue has one owner at a time, and an owner that stays silent loses it; virtual clock."""

from __future__ import annotations

from oberth.broker.clients import SCANNED_AT_ONCE
from oberth.broker.rebalance_locks import RebalanceLocks

Q0 = ("T", "broker-a", 0)
Q1 = ("T", "broker-a", 1)


def test_the_second_client_gets_what_is_left() -> None:
    locks = RebalanceLocks(60_000)
    assert locks.lock("G", "one", [Q0], 0) == [Q0]
    assert locks.lock("G", "two", [Q0, Q1], 1) == [Q1]
    assert locks.lock("H", "two", [Q0], 1) == [Q0]  # another group
    assert locks.owner("G", Q0, 1) == "one"


def test_a_refresh_extends_and_silence_ends() -> None:
    locks = RebalanceLocks(60_000)
    locks.lock("G", "one", [Q0], 0)
    assert locks.lock("G", "one", [Q0], 50_000) == [Q0]
    assert locks.lock("G", "two", [Q0], 100_000) == []
    assert locks.has_live_lock("G", 110_000)
    assert not locks.has_live_lock("G", 110_001)
    assert locks.lock("G", "two", [Q0], 110_001) == [Q0]


def test_only_the_owner_unlocks() -> None:
    locks = RebalanceLocks(60_000)
    locks.lock("G", "one", [Q0], 0)
    locks.unlock("G", "two", [Q0])
    assert locks.owner("G", Q0, 1) == "one"
    locks.unlock("G", "one", [Q0, Q1])
    assert locks.owner("G", Q0, 1) is None
    assert not locks.has_live_lock("G", 1)
    locks.unlock("unknown", "one", [Q0])


def test_expired_locks_are_forgotten() -> None:
    locks = RebalanceLocks(10)
    locks.lock("G", "one", [Q0], 0)
    locks.scan_expired(5)
    assert locks.owner("G", Q0, 5) == "one"
    locks.scan_expired(11)
    assert locks.lock("G", "two", [Q0], 11) == [Q0]


def test_who_called_last_says_whether_a_group_has_a_lock() -> None:
    locks = RebalanceLocks(60_000)
    locks.lock("G", "one", [Q0, Q1], 0)
    locks.lock("G", "one", [Q0], 50_000)  # the other one is as old as it was
    assert locks.has_live_lock("G", 110_000)
    locks.unlock("G", "one", [Q0])
    assert locks.owner("G", Q1, 60_000) == "one"
    assert locks.has_live_lock("G", 60_000)
    assert not locks.has_live_lock("G", 60_001)
    locks.lock("G", "two", [Q1], 70_000)  # its owner was silent
    assert locks.has_live_lock("G", 130_000)
    locks.lock("G", "one", [Q0, Q1], 71_000)
    locks.unlock("G", "one", [Q0])
    assert (locks.owner("G", Q1, 130_000), locks.owner("G", Q1, 130_001)) == ("two", None)


class Now(int):
    """A time, ms, that counts how often it is asked how long something is ago."""

    looks: int

    def __new__(cls, now_ms: int) -> Now:
        made = super().__new__(cls, now_ms)
        made.looks = 0
        return made

    def __sub__(self, since_ms: int, /) -> int:
        self.looks += 1
        return int(self) - since_ms


def test_a_group_of_very_many_locks_costs_no_more_than_one() -> None:
    """Whoever sends to a retry topic asks for them; those that ended are forgotten in pieces."""
    locks = RebalanceLocks(60_000)
    count = 10 * SCANNED_AT_ONCE
    queues = [("T", "broker-a", number) for number in range(count)]
    assert locks.lock("G", "one", queues[: count // 2], 0) == queues[: count // 2]
    assert locks.lock("G", "one", queues[count // 2 :], 50_000) == queues[count // 2 :]
    for now, is_locked in ((Now(60_001), True), (Now(110_001), False)):
        assert locks.has_live_lock("G", now) is is_locked
        assert now.looks == 1
    for left in (8, 7, 6, 5):
        now = Now(60_001)
        locks.scan_expired(now)
        assert now.looks <= SCANNED_AT_ONCE + 1
        assert locks._count == (left + 1) * SCANNED_AT_ONCE
        assert locks.is_scanning
    locks.scan_expired(60_001)
    assert (locks._count, locks.is_scanning) == (count // 2, False)
    assert locks.owner("G", queues[-1], 60_001) == "one"
    now = Now(60_001)
    locks.scan_expired(now)  # of locks that live the oldest one alone is looked at
    assert now.looks == 1
    while locks._count:
        locks.scan_expired(110_001)
    assert (locks._groups, locks.is_scanning) == ({}, False)
