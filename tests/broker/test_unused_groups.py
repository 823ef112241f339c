"""Groups that clients named and never used are forgotten; all others stay, as with RocketMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oberth.broker import subscription_groups
from oberth.broker.unused_groups import PERIOD_MS, UNUSED_MS
from oberth.formats.subscription_group import SubscriptionGroupConfig

MakeLive = Callable[..., Awaitable[Any]]


async def look(live: Any, after_ms: int = PERIOD_MS) -> None:
    live.clock.ahead_ms += after_ms
    unused = live.broker.services.unused_groups
    unused.on_time(live.clock())
    async with asyncio.timeout(100):
        while unused.is_at_work:  # noqa: ASYNC110 - its task ends
            await asyncio.sleep(0)


async def named(live: Any, *groups: str) -> None:
    for group in groups:
        await live.peer.heartbeat(group, {"T": "*"})


async def leave(live: Any, *groups: str) -> None:
    for group in groups:
        answer = await live.peer.call(35, {"clientID": "c", "consumerGroup": group})
        assert answer.code == 0
        assert live.broker.parts.consumers.get(group) is None


async def test_what_nobody_used_goes(make_live: MakeLive) -> None:
    live = await make_live(autoCreateSubscriptionGroup="true")
    parts = live.broker.parts
    await live.peer.send("T")
    await named(live, "unused", "used", "retried", "made", "forbidden", "online", "changed")
    parts.groups.update(SubscriptionGroupConfig(group_name="made"))
    parts.groups.update(SubscriptionGroupConfig(group_name="changed", retry_max_times=3))
    parts.groups.set_readable("forbidden", "T", False)
    parts.groups.set_readable("forbidden", "T", True)
    parts.groups.update(SubscriptionGroupConfig(group_name="made2"))
    parts.offsets.commit("used", "T", 0, 1, live.clock())
    assert (await live.peer.send("%RETRY%retried")).code == 0
    await look(live)
    await leave(live, "unused", "used", "retried", "made", "forbidden", "changed")
    await look(live, UNUSED_MS - 2 * PERIOD_MS)
    assert "unused" in parts.groups  # not yet
    await look(live, 2 * PERIOD_MS)
    assert "unused" not in parts.groups
    assert "%RETRY%unused" not in parts.topics
    for group in ("used", "retried", "changed", "online", "made2", "forbidden"):
        assert group in parts.groups, group
    assert "%RETRY%used" in parts.topics
    # Who names it again has it again, and it is in the file meanwhile or not.
    assert b'"unused"' not in parts.groups.encode()
    await named(live, "unused")
    assert "unused" in parts.groups
    assert "%RETRY%unused" in parts.topics


async def test_what_a_file_brought(make_live: MakeLive) -> None:
    live = await make_live(autoCreateSubscriptionGroup="true")
    parts = live.broker.parts
    await named(live, "unused", "used")
    parts.offsets.commit("used", "T", 0, 1, live.clock())
    parts.groups.update(SubscriptionGroupConfig(group_name="made"))
    await leave(live, "unused", "used")
    await live.restart()
    parts = live.broker.parts
    assert {"unused", "used", "made"} <= {group.group_name for group in parts.groups}
    await look(live)  # from now on
    await look(live, UNUSED_MS)
    known = {group.group_name for group in parts.groups}
    assert {"used", "made"} <= known
    assert "unused" not in known


async def test_without_automatic_creation_nothing_goes(make_live: MakeLive) -> None:
    live = await make_live(autoCreateSubscriptionGroup="true")
    await named(live, "unused")
    await leave(live, "unused")
    live.broker.parts.config.auto_create_subscription_group = False
    await look(live)
    await look(live, UNUSED_MS)
    assert "unused" in live.broker.parts.groups


async def test_the_unused_are_limited(make_live: MakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_groups, "UNUSED_MAX", 3)
    live = await make_live(autoCreateSubscriptionGroup="true")
    parts = live.broker.parts
    await named(live, *(f"g{number}" for number in range(5)))
    assert [f"g{number}" in parts.groups for number in range(5)] == [True] * 3 + [False] * 2
    assert [f"%RETRY%g{number}" in parts.topics for number in range(5)] == [True] * 3 + [False] * 2
    parts.offsets.commit("g0", "T", 0, 1, live.clock())
    await look(live)  # one of them is used
    await named(live, "g3", "g4")
    assert [f"g{number}" in parts.groups for number in range(5)] == [True] * 4 + [False]
