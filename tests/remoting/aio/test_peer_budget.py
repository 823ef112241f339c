"""PeerBudget: what connections hold together has a limit, and to keep it takes few looks at all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from oberth.remoting.aio import peer_budget
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.peer_budget import PeerBudget

LIMIT = 64_000


class Held:
    """A connection that holds bytes."""

    def __init__(self, host: str) -> None:
        self.remote = Address(host, 1)
        self.size = 0
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True
        self.size = 0


class Rig:
    """A budget, its connections, and how often it measured one."""

    def __init__(self) -> None:
        self.measured = 0
        self.budget: PeerBudget[Held] = PeerBudget(LIMIT, self._measure, "bytes")

    def _measure(self, each: Held) -> int:
        self.measured += 1
        return each.size

    def hold(self, each: Held, size: int) -> None:
        each.size = size
        self.budget.note(each, size)


def next_of(open_: list[Held]) -> tuple[int, int]:
    """Bytes of the address that has most, and of the connection that has most there: plainly."""
    hosts: Counter[str] = Counter()
    for each in open_:
        hosts[each.remote.host] += each.size
    host = max(hosts, key=hosts.__getitem__)
    return hosts[host], max(each.size for each in open_ if each.remote.host == host)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_held_than_is_allowed(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    largest = rng.choice([2_000, 9_000, LIMIT])
    open_: list[Held] = []
    closed = 0
    for _ in range(3_000):
        kind = rng.randrange(12)
        if kind < 2 or not open_:
            open_.append(Held(f"h{rng.randrange(6)}"))
        each = rng.choice(open_)
        if kind < 9:
            rig.hold(each, each.size + rng.randrange(largest))
        elif kind == 9:
            each.size = rng.randrange(each.size + 1)  # nobody says so
        elif kind == 10:
            rig.hold(each, 0)
        else:
            each.abort()
            rig.budget.note(each, 0)
            open_.remove(each)
        before = len(open_)
        open_ = [each for each in open_ if not each.is_closed]
        closed += before - len(open_)
        held = sum(each.size for each in open_)
        assert held <= rig.budget.used <= LIMIT
        assert rig.budget.used == sum(rig.budget._held.values())
    assert closed


@pytest.mark.parametrize("seed", range(20))
def test_who_has_most_of_the_address_with_most_is_closed(seed: int) -> None:
    """One by one, as a plain search for each of them finds."""
    rng = random.Random(seed)
    rig = Rig()
    open_ = [Held(f"h{rng.randrange(5)}") for _ in range(60)]
    for each in open_:
        rig.hold(each, LIMIT // 60 - 50 + rng.randrange(100) - 30)
    late = Held("late")
    while rig.budget.used <= LIMIT - 10:
        rig.hold(late, late.size + 10)
    assert not any(each.is_closed for each in open_)
    open_.append(late)
    for _ in range(6):
        wanted = next_of([*open_[:-1], late])
        hosts: Counter[str] = Counter()
        for each in open_:
            hosts[each.remote.host] += each.size
        sizes = {each: each.size for each in open_}
        while not (gone := [each for each in open_ if each.is_closed]):
            sizes[late] = late.size + 1
            rig.hold(late, late.size + 1)
        (victim,) = gone
        assert (hosts[victim.remote.host], sizes[victim]) == wanted
        open_.remove(victim)


def test_all_are_measured_once_for_an_eighth_of_the_limit() -> None:
    rig = Rig()
    many = [Held(f"h{number}") for number in range(640)]
    for each in many:
        rig.hold(each, 100)
    rig.measured = 0
    late = Held("late")
    for size in range(1, 8_000):  # each note is past the limit again, or frees a connection's 100
        rig.hold(late, size)
        assert rig.budget.used <= LIMIT
    assert late.is_closed or sum(each.is_closed for each in many) >= 75
    assert rig.measured < 3 * 640 + 200


def test_who_is_found_to_be_next_is_forgotten_when_there_is_room() -> None:
    rig = Rig()
    many = [Held("h") for _ in range(64)]
    for each in many:
        rig.hold(each, 1_000)
    rig.hold(many[0], 1_001)
    assert rig.budget._next
    for each in many:
        rig.hold(each, 0)
    assert not rig.budget._next
    assert not rig.budget._held


def test_who_has_sent_most_of_it_is_passed_over() -> None:
    rig = Rig()
    many = [Held(f"h{number}") for number in range(64)]
    for each in many:
        rig.hold(each, 1_000)
    rig.hold(late := Held("late"), 1)
    assert [each.is_closed for each in many].count(True) == 1
    following = rig.budget._next[0].channel
    following.size = 400  # and nobody says so
    rig.hold(late, 1_002)
    assert not following.is_closed
    assert [each.is_closed for each in many].count(True) == 1
    assert rig.budget.used == 62 * 1_000 + 400 + 1_002


def test_a_measure_finds_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_budget, "NEXT_MAX", 3)
    rig = Rig()
    for number in range(640):
        rig.hold(Held(f"h{number}"), 100)
    rig.hold(Held("late"), 1)
    assert len(rig.budget._next) == 2
