"""Senders rest while consumers that read fall behind memory, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from oberth.broker import sender_brake
from oberth.broker.sender_brake import LOOK_MS, REST_MAX_S, REST_MIN_S, SenderBrake
from oberth.remoting.aio.channel import Channel


class World:
    """Topics whose messages are 100 bytes each, in one queue, and groups that read them."""

    def __init__(self, limit: int = 10_000) -> None:
        self.max_phy_offset = 0
        self.read = {"G": 0}
        self.queues = [0]
        self.limit = limit
        self.now_ms = 0
        self.looked = 0
        self.brake = SenderBrake(
            store=self,  # type: ignore[arg-type]
            offsets=self,  # type: ignore[arg-type]
            consumers=self,  # type: ignore[arg-type]
            limit_bytes=lambda: self.limit,
        )

    def __iter__(self) -> Any:
        class Group:
            def __init__(self, name: str) -> None:
                self.name = name
                self.subscriptions = {"T": None}

        return iter([Group(name) for name in self.read])

    def queue_ids(self, topic: str) -> list[int]:
        del topic
        return self.queues

    def query(self, group: str, topic: str, queue_id: int) -> int:
        del topic, queue_id
        self.looked += 1
        return self.read[group]

    query_pull = query

    def commit_log_offset_in_queue(self, topic: str, queue_id: int, offset: int) -> int:
        del topic, queue_id
        return offset * 100 if offset * 100 < self.max_phy_offset else 0

    def second(self, sent: int, **read: int) -> float:
        """One more second in which so much was sent and read; the rest of T's senders."""
        self.max_phy_offset += sent * 100
        for group, count in read.items():
            self.read[group] += count
        self.now_ms += LOOK_MS
        self.brake.on_time(self.now_ms)
        return self.brake.rests_s.get("T", 0.0)


def test_rests_grow_with_the_backlog_and_end_with_it() -> None:
    world = World()
    for _ in range(3):
        assert world.second(50, G=50) == 0
    rests = [world.second(500, G=100) for _ in range(14)]
    assert rests == sorted(rests)
    assert REST_MIN_S in rests
    assert rests[-1] == REST_MAX_S
    # While it shrinks they stay, and when memory holds it all they become shorter, then none.
    steady = world.second(0, G=500)
    assert steady == REST_MAX_S
    while world.max_phy_offset - world.read["G"] * 100 > world.limit * 0.9:
        world.second(0, G=500)
    shorter = [world.second(1, G=1) for _ in range(12)]
    assert shorter == sorted(shorter, reverse=True)
    assert shorter[-1] == 0


def test_nobody_waits_for_a_group_that_does_not_read() -> None:
    world = World()
    world.read["G"] = 1
    assert [world.second(1000) for _ in range(5)] == [0] * 5
    world.read["G"] = -1  # it has not begun
    assert [world.second(1000) for _ in range(5)] == [0] * 5


def test_zero_means_never() -> None:
    world = World()
    assert [world.second(1000, G=1) for _ in range(5)][-1] > 0
    world.limit = 0
    assert world.second(1000, G=1) == 0
    assert not world.brake.rests_s


def test_a_look_judges_so_many_queues_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_brake, "QUEUES_PER_LOOK_MAX", 10)
    world = World()
    world.queues = list(range(25))
    world.second(1)
    seconds = 0
    while world.brake.rests_s.get("T", 0.0) == 0:
        before = world.looked
        world.second(1000, G=1)
        assert world.looked - before <= 2 * 11  # two offsets a queue
        seconds += 1
    assert seconds >= 3


async def test_a_broker_slows_senders_as_it_is_set(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    rest = Channel.rest

    def noted(channel: Channel, seconds: float) -> None:
        rested.append(seconds)
        rest(channel, seconds)

    monkeypatch.setattr(Channel, "rest", noted)
    for limit, slows in (("1", True), ("0", False), ("-1", False)):
        live = await make_live(slowSendersBehindBytes=limit, autoCreateTopicEnable="true")
        await live.peer.heartbeat("G", {"T": "*"})
        rested.clear()
        for n in range(6):
            assert (await live.peer.send("T", b"x" * 100)).code == 0
            assert (await live.peer.send("T", b"x" * 100)).code == 0
            offsets = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(n)}
            assert (await live.peer.call(15, offsets)).code == 0
            await live.later(LOOK_MS)
        assert bool(rested) is slows, limit
        assert (await live.peer.send("T", b"after a rest")).code == 0
