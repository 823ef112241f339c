"""When appended messages are dispatched: at once, or with others where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable

from tests.broker.conftest import MakeLive

from oberth.broker.broker_controller import BULK_DISPATCH_BYTES, DISPATCH_S
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


async def test_few_go_at_once_and_many_wait_for_each_other(make_live: MakeLive) -> None:
    broker = (await make_live()).broker
    real, loop = broker._loop, Loop()
    message = MessageExtBrokerInner.of("T", bytes(200))

    def append(count: int) -> None:
        broker.store.append_messages([message] * count)
        broker.dispatch_soon()
        broker.dispatch_now()

    broker._loop = loop  # type: ignore[assignment]
    try:
        for _ in range(40):  # one sender, who waits for each answer
            append(1)
            loop.now += 0.0002
        assert loop.asked == [0.0] * 40
        for _ in range(20):
            append(BULK_DISPATCH_BYTES // 200)
            loop.now += DISPATCH_S / 2
        assert loop.asked[-1] == DISPATCH_S
        loop.now += 1  # the first after a pause has nobody to wait for
        append(1)
        assert loop.asked[-1] == 0.0
    finally:
        broker._loop = real
    assert broker.store.max_offset_in_queue("T", 0) == 41 + 20 * (BULK_DISPATCH_BYTES // 200)
