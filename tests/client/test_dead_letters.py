"""What `Shown` waits for, on topics whose brokers show messages late or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oberth.client import dead_letters
from oberth.client.dead_letters import Shown
from oberth.errors import MQClientError, RemotingConnectError
from oberth.remoting.bodies.base import MessageQueue


class Broker:
    """Each topic has one queue and one message in its log.

    "Hidden" never shows it, "Late" when it has been asked once, and "Broken" is not answered for.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def max_offset(self, queue: MessageQueue, *, is_shown: bool) -> int:
        if queue.topic == "Broken":
            self.asked.append(queue.topic)
            raise RemotingConnectError("nobody listens")
        if not is_shown:
            return 1
        self.asked.append(queue.topic)
        return 1 if queue.topic == "Late" and self.asked.count("Late") > 1 else 0


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited, in seconds; it takes no time."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def pause(delay_s: float) -> None:
        made.append(delay_s)
        await sleep(0)

    async def queues(self: Shown, topic: str) -> set[MessageQueue]:
        return {MessageQueue(topic=topic, broker_name="b", queue_id=0)}

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(Shown, "_queues", queues)
    return made


async def test_a_hidden_topic_takes_no_others_time(broker: Any, pauses: list[float]) -> None:
    shown = Shown(broker)
    with pytest.raises(MQClientError, match="up to 0, its log has them up to 1"):
        await shown.wait("Hidden")
    assert sum(pauses) >= dead_letters.SHOWN_WITHIN_S
    before = len(pauses)
    await shown.wait("Late")
    assert pauses[before:] == [1.0]
    with pytest.raises(MQClientError):
        await shown.wait("Hidden")
    assert len(pauses) == before + 1


async def test_an_error_of_a_topic_is_remembered(broker: Any, pauses: list[float]) -> None:
    shown = Shown(broker)
    for _ in range(3):
        with pytest.raises(RemotingConnectError, match="nobody listens"):
            await shown.wait("Broken")
    assert broker.asked == ["Broken"]
    await shown.wait("Late")
    assert len(pauses) == 1
