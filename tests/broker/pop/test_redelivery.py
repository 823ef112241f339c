"""What POP brings back: check points that anybody may have written, stores that take a part, order.

What stands in the revive topic need not be what a broker wrote, since clients may send there. The
broker's clock is set forward, as in test_pop.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.broker.pop.test_pop import CHANGE, GROUP, TOPIC, Peer, Popped

from oberth.broker.pop import pop_service as module
from oberth.formats import names
from oberth.remoting.aio.client import RemotingClient
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
DELETE_TOPIC = 215
DELAY_MAX_S = 60


@pytest.fixture(params=["plain", "buffer"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    settings = {"popFromRetryProbability": "50", "timerMaxDelaySec": str(DELAY_MAX_S)}
    if request.param == "buffer":
        settings["enablePopBufferMerge"] = "true"
    clock = VirtualClock(frozen=True)
    async with EmbeddedBroker(settings, clock=clock) as mq, RemotingClient() as client:
        yield Peer(mq, client)


plain = pytest.mark.parametrize("peer", ["plain"], indirect=True)


async def send_to(peer: Peer, topic: str, body: bytes, properties: str, queue_id: int = 0) -> int:
    fields = {
        "a": "P", "b": topic, "c": "TBW102", "d": 8, "e": queue_id, "f": 0, "g": 1, "h": 0,
        "i": properties,
    }  # fmt: skip
    return int((await peer.call(310, fields, body)).code)


async def forge(peer: Peer, tag: str = "ck", queue_id: int = 0, **changes: object) -> None:
    """A client sends a check point, due at once, to the revive topic."""
    fields = {
        "so": 0, "pt": 0, "it": 0, "q": 0, "t": TOPIC, "c": GROUP, "bn": "broker-a", "n": 1,
        **changes,
    }  # fmt: skip
    body = json.dumps(fields).encode()
    assert await send_to(peer, REVIVE, body, f"TAGS\x01{tag}\x02", queue_id) == 0


def committed(peer: Peer, queue_id: int = 0) -> int:
    return peer.mq.offsets(module.REVIVE_GROUP, REVIVE).get(queue_id, -1)


async def change(peer: Peer, popped: Popped, invisible_ms: int) -> Any:
    return await peer.call(
        CHANGE,
        {
            "consumerGroup": GROUP, "topic": popped.topic, "queueId": popped.queue_id,
            "extraInfo": popped.receipt, "offset": popped.offset, "invisibleTime": invisible_ms,
        },
    )  # fmt: skip


# What anybody may have written


@plain
async def test_messages_far_apart_are_looked_at_one_by_one(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check point of two messages that spans more than the queue has."""
    asked: list[tuple[int, int]] = []
    old = peer.mq.broker.services.old_messages
    readable = old.readable

    def counted(reader: Any, stretch: Any, then: Any) -> int:
        if reader[0] == "messages of revive queue":
            asked.append(stretch[2:])
            assert len(asked) < 10
            return min(readable(reader, stretch, then), 256)
        return readable(reader, stretch, then)

    monkeypatch.setattr(old, "readable", counted)
    await peer.send(b"x")
    await forge(peer, n=2, d=[0, (1 << 31) - 1])
    await forge(peer, n=2, d=[0, 10**15])  # nobody hands out what is so far apart
    await forge(peer, d=[0], so=(1 << 63) - 1)
    await peer.later(3)
    assert [offset for offset, _ in asked] == [0, (1 << 31) - 1]
    assert peer.mq.bodies(RETRY) == [b"x"]
    assert committed(peer) == 0


@plain
@pytest.mark.parametrize("tag", ["ck", "ack", "bAck"])
async def test_a_body_that_is_nested_without_end_is_passed(peer: Peer, tag: str) -> None:
    for body in (b"[" * 15_000, b'{"d":' * 3_000, b'{"aol":[' + b"1," * 20_000 + b"1]}"):
        assert await send_to(peer, REVIVE, body, f"TAGS\x01{tag}\x02") == 0
    await peer.send(b"x")
    await forge(peer)
    await peer.later(3)
    assert peer.mq.bodies(RETRY) == [b"x"]
    assert committed(peer) == 3


@plain
async def test_a_delayed_message_for_the_timers_own_topic_is_delivered_once(peer: Peer) -> None:
    """It names the timer's topic as its destination, and would come from there for ever."""
    assert await send_to(peer, names.TIMER_TOPIC, b"x", "DELAY\x011\x02") == 0
    await peer.later(2)
    await peer.later(2)
    assert peer.mq.bodies(names.TIMER_TOPIC) == [b"x"]
