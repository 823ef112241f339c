"""When appended messages are dispatched: together while nobody waits for them, else at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.conftest import MakeLive

from oberth.broker.broker_controller import DISPATCH_S
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
        broker.store.append_messages([MessageExtBrokerInner.of("T", bytes(200))])
        broker.dispatch_soon()
        asked = loop.asked[-1]
        broker.dispatch_now()
        return asked

    with monkeypatch.context() as patch:
        patch.setattr(broker, "_loop", loop)
        assert [append(1), append(DISPATCH_S / 9), append(1)] == [0.0, DISPATCH_S, 0.0]
        waiting: Any = broker.hold if who_waits == "hold" else getattr(broker.pop, who_waits)
        patch.setattr(type(waiting), "__len__", lambda each: int(each is waiting))
        assert append(DISPATCH_S / 9) == 0.0
    assert broker.store.max_offset_in_queue("T", 0) == 4
