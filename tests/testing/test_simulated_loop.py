"""What a simulated loop takes from its seed alone: nothing follows the machine or addresses."""

from __future__ import annotations

import asyncio

from oberth.remoting.aio.busy_poll import make_busy_poll
from oberth.testing.simulated_loop import simulated


def test_tasks_in_a_set_have_the_same_order_in_every_run() -> None:
    async def order() -> list[str]:
        tasks = [asyncio.create_task(asyncio.sleep(1), name=str(n)) for n in range(100)]
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    found = []
    for _ in range(2):
        with simulated(1) as loop:
            found.append(loop.run_until_complete(order()))
    assert found[0] == found[1]


def test_nobody_polls_by_the_clock_of_the_machine() -> None:
    with simulated(1) as loop:
        assert make_busy_poll(loop, 0.001) is None
