"""When appended messages are dispatched: together while nobody waits for them, else at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.conftest import MakeLive

from oberth.broker.dispatching import (
    DISPATCH_S,
    FOLLOW_MAX_S,
    FOLLOW_S,
    SPREAD_DISPATCH_S,
    SPREAD_QUEUES,
    DispatchTimes,
)
from oberth.store.messages import MessageExtBrokerInner


class Loop:
    """Notes down what it is asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[float] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, _call: Callable[[], None]) -> None:
        self.asked.append(0.0)

    def call_later(self, delay_s: float, _call: Callable[[], None]) -> None:
        self.asked.append(delay_s)


@pytest.mark.parametrize("who_waits", ["hold", "polling", "notifying"])
async def test_messages_wait_for_each_other_while_nobody_waits_for_them(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, who_waits: str
) -> None:
    broker = (await make_live()).broker
    loop = Loop()

    def append(after_s: float) -> float:
        loop.now += after_s
        broker.parts.store.append_messages([MessageExtBrokerInner.of("T", bytes(200))])
        broker.services.dispatching.soon()
        asked = loop.asked[-1]
        broker.services.dispatching.now()
        return asked

    with monkeypatch.context() as patch:
        patch.setattr(broker.services.dispatching, "_loop", loop)
        assert [append(1), append(DISPATCH_S / 9), append(1)] == [0.0, DISPATCH_S, 0.0]
        waiting: Any = (
            broker.parts.hold if who_waits == "hold" else getattr(broker.services.pop, who_waits)
        )
        patch.setattr(type(waiting), "__len__", lambda each: int(each is waiting))
        assert append(DISPATCH_S / 9) == 0.0
    assert broker.parts.store.max_offset_in_queue("T", 0) == 4


def test_when_to_dispatch_is_decided_without_a_loop() -> None:
    times = DispatchTimes()
    assert times.due_in_s(100.0, is_waited_for=False) == 0.0
    times.dispatched(100.0)
    assert times.due_in_s(100.0, is_waited_for=False) == DISPATCH_S
    assert times.due_in_s(100.0, is_waited_for=True) == 0.0
    assert times.due_in_s(100.0 + 2 * DISPATCH_S, is_waited_for=False) == 0.0
    # Each queue that something is brought to costs the same for one message as for several.
    times.dispatched(101.0, SPREAD_QUEUES)
    assert times.due_in_s(101.0, is_waited_for=False) == SPREAD_DISPATCH_S
    assert times.due_in_s(101.0 + 2 * DISPATCH_S, is_waited_for=False) == SPREAD_DISPATCH_S
    assert times.due_in_s(101.0, is_waited_for=True) == 0.0
    times.dispatched(102.0, SPREAD_QUEUES - 1)
    assert times.due_in_s(102.0, is_waited_for=False) == DISPATCH_S


async def test_a_burst_over_many_queues_lets_the_next_dispatch_wait(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    dispatching, store = live.broker.services.dispatching, live.broker.parts.store
    loop = Loop()
    with monkeypatch.context() as patch:
        patch.setattr(dispatching, "_loop", loop)
        for queues, wait_s in (
            (1, DISPATCH_S),
            (SPREAD_QUEUES, SPREAD_DISPATCH_S),
            (1, DISPATCH_S),
        ):
            store.append_messages(
                [MessageExtBrokerInner("Spread", b"x" * 200, b"", n % queues) for n in range(128)]
            )
            dispatching.is_pending = True
            dispatching.now()
            dispatching.soon()
            assert loop.asked == [wait_s]
            loop.asked.clear()
            dispatching.is_pending = False


def test_a_dispatcher_that_does_nothing_is_looked_at_less_often() -> None:
    times = DispatchTimes()
    delays = [times.look_again_in_s(0) for _ in range(100)]
    assert delays == sorted(delays)
    assert (delays[0] > FOLLOW_S, delays[-1]) == (True, FOLLOW_MAX_S)
    assert times.look_again_in_s(1) == FOLLOW_S


async def test_who_listens_for_arrivals_hears_of_many_at_once(make_live: MakeLive) -> None:
    """A large backlog is dispatched without a look at single messages; those who pop wait too."""
    dispatching = (await make_live()).broker.services.dispatching
    heard: list[tuple[Any, ...]] = []
    dispatching.arrival_listeners.append(lambda *arrival: heard.append(arrival))
    dispatching._on_arrivals("T", 3, 500)
    assert heard == [("T", 3, 500, None, b"")]
