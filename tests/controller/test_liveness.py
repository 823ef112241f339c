"""Who is alive, by a clock that the test moves."""

from __future__ import annotations

from oberth.controller.liveness import TIMEOUT_MS, TIMEOUT_MS_MAX, Liveness
from oberth.controller.replica_sets import LiveInfo

INFO = LiveInfo(1, 100, 5)


def test_a_heartbeat_holds_for_the_time_it_names() -> None:
    live = Liveness()
    key = ("c", "b", 1)
    assert not live.is_alive(*key)
    assert live.heard(key, "one", 500, INFO)
    live.now_ms = 499
    assert live.is_alive(*key)
    assert live.info(*key) == INFO
    assert not live.heard(key, "one", None, INFO)
    live.now_ms += TIMEOUT_MS - 1
    assert live.expire() == []
    live.now_ms += 1
    assert not live.is_alive(*key)
    assert live.info(*key) is None
    assert live.expire() == [key]
    assert live.expire() == []
    live.heard(key, "one", 2**62, INFO)
    live.now_ms += TIMEOUT_MS_MAX
    assert live.expire() == [key]


def test_a_closed_connection_ends_the_life_of_those_who_spoke_over_it() -> None:
    live = Liveness()
    live.heard(("c", "b", 1), "old", 500, INFO)
    live.heard(("c", "b", 2), "old", 500, INFO)
    live.heard(("c", "b", 1), "new", 500, INFO)
    assert live.connection_closed("old") == [("c", "b", 2)]
    assert live.is_alive("c", "b", 1)


def test_an_older_epoch_on_the_same_connection_is_overtaken() -> None:
    live = Liveness()
    key = ("c", "b", 1)
    live.heard(key, "one", 500, INFO)
    live.heard(key, "one", 500, LiveInfo(0, 7, 5))
    assert live.info(*key) == LiveInfo(1, 7, 5)
    live.heard(key, "two", 500, LiveInfo(0, 7, 5))
    assert live.info(*key) == LiveInfo(0, 7, 5)
