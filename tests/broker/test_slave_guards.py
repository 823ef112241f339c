"""A slave delivers nothing: delay levels, timed messages and what was popped wait for a master.

Two live brokers; the slave's clock is far ahead, so that everything is due there. Then it becomes
the master, and everything is delivered, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

MakeLive = Callable[..., Awaitable[Any]]
POP = 200050


async def settle(live: Any, ms: int, rounds: int = 20) -> None:
    await live.later(ms)
    for _ in range(rounds):
        await asyncio.sleep(0.005)
        await live.later(100)


def pop_fields(live: Any) -> dict[str, str]:
    return {
        "consumerGroup": "G", "topic": "P", "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": "10000", "pollTime": "0", "bornTime": str(live.clock()), "initMode": "0",
        "expType": "TAG", "exp": "*",
    }  # fmt: skip


async def test_only_a_master_delivers(make_live: MakeLive, name_server: str) -> None:
    both = {
        "namesrvAddr": name_server,
        "haSendHeartbeatInterval": "100",
        "mappedFileSizeCommitLog": str(256 * 1024),
    }
    master = await make_live(**both)
    slave = await make_live(
        **both,
        brokerId="1",
        brokerRole="SLAVE",
    )
    now_ms = master.clock()
    due = {"TIMER_DELIVER_MS": str(now_ms + 600_000)}
    assert (await master.peer.send("T", b"level", properties={"DELAY": "16"})).code == 0
    assert (await master.peer.send("T", b"timed", properties=due)).code == 0
    assert (await master.peer.send("P", b"popped")).code == 0
    assert (await master.peer.call(POP, pop_fields(master))).code == 0
    # The timer takes the message in, and the check point becomes readable.
    await settle(master, 0)
    await slave.until(
        lambda: slave.broker.parts.store.max_phy_offset == master.broker.parts.store.max_phy_offset
    )
    await slave.until(lambda: slave.broker.parts.topics.get("P") is not None)
    end = slave.broker.parts.store.max_phy_offset
    # What it knows of delays is what its master said, by now or a little later.
    delays = dict(master.broker.parts.schedule.to_body())
    await slave.until(lambda: dict(slave.broker.parts.schedule.to_body()) == delays)
    wheel = slave.broker.services.timers.store
    taken_in = len(master.broker.services.timers.store.wheel)
    assert taken_in
    await slave.until(lambda: len(wheel.wheel) == taken_in)

    await settle(slave, 3_600_000)

    assert slave.broker.parts.store.max_phy_offset == end, "it has put nothing"
    assert dict(slave.broker.parts.schedule.to_body()) == delays, "no level has moved on"
    assert len(wheel.wheel) == taken_in, "its wheel turns with its master's time"
    assert await slave.peer.read("T") == []
    assert "%RETRY%G_P" not in slave.broker.parts.topics
    refused = await slave.peer.call(POP, pop_fields(slave))
    assert refused.code != 0, "a pop needs a check point, and that is a put"
    assert slave.broker.parts.store.max_phy_offset == end

    await master.stop()
    slave.settings |= {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
    await slave.restart()

    async def delivered() -> list[bytes]:
        await settle(slave, 1_000)
        found = [*await slave.peer.read("T"), *await slave.peer.read("%RETRY%G_P")]
        return sorted(each.body for each in found)

    async with asyncio.timeout(100):
        while len(await delivered()) < 3:
            pass
    assert await delivered() == [b"level", b"popped", b"timed"]


async def test_a_slave_refuses_sends(make_live: MakeLive) -> None:
    slave = await make_live(brokerId="1", brokerRole="SLAVE")
    for properties in ({}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}):
        assert (await slave.peer.send("T", b"x", properties=properties)).code != 0
    assert slave.broker.parts.store.max_phy_offset == 0
