"""A queue has one owner at a time, and an owner that stays silent loses it; virtual clock."""

from __future__ import annotations

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
