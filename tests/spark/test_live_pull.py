"""Pulling a range: whatever a broker answers, it is covered once, in order, and loss is told.

The broker is a function of the test's; time is not waited for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.client.pulling import PullStatus, RawPull
from oberth.client.subscriptions import MessageSelector
from oberth.errors import MQBrokerError, RemotingConnectError, RemotingError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode
from oberth.spark import live_pull
from oberth.spark.live_pull import Pulled, QueuePuller

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
Answer = Callable[..., RawPull]


class Instance:
    """What a puller asks of the client."""

    brokers: dict[str, dict[int, str]] = {"b": {0: "x", 1: "y"}}

    async def update_route(self, topic: str) -> None:
        return None

    def master_address(self, broker_name: str) -> str | None:
        return self.brokers[broker_name].get(0)


def found(offset: int, count: int, size: int = 100) -> RawPull:
    records = bytes(size) * count
    return RawPull(PullStatus.FOUND, "FOUND", offset + count, 0, 10**9, 0, 0, records, True)


def nothing(status: PullStatus, remark: str, following: int, low: int, high: int) -> RawPull:
    return RawPull(status, remark, following, low, high, 0, 0, b"", True)


def run(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, start: int, end: int, **more: Any
) -> list[Pulled]:
    """Pulls a range of a broker that answers like this, by offset and count.

    With ``replicas`` it is told the broker's id as well, which 0 is the master's of.
    """
    replicas = more.pop("replicas", False)
    instance: Any = more.pop("instance", None) or Instance()

    async def pull_raw(_: Any, template: Any, offset: int, **named: Any) -> RawPull:
        await asyncio.sleep(0)
        count = int(template._fields["maxMsgNums"])
        if not replicas:
            return answer(offset, count)
        known = instance.brokers["b"]
        broker_id = named["broker_id"] if named["broker_id"] in known else min(known)
        return replace(answer(offset, count, broker_id), from_master=broker_id == 0)

    monkeypatch.setattr(live_pull, "pull_raw", pull_raw)
    puller = QueuePuller(instance, QUEUE, "g", more.pop("filter", None), 1024, 4, False, 1.0)

    async def collect() -> list[Pulled]:
        real, asyncio.sleep = asyncio.sleep, _quick(asyncio.sleep)
        try:
            return [pulled async for pulled in puller.pull(start, end)]
        finally:
            asyncio.sleep = real

    return asyncio.run(collect())


def _quick(real: Any) -> Any:
    async def sleep(seconds: float, *rest: Any) -> None:
        await real(0)

    return sleep


def covers(pulled: list[Pulled], start: int, end: int) -> None:
    assert pulled[0].first == start
    assert pulled[-1].next == end
    for one, following in pairwise(pulled):
        assert one.next == following.first


@given(seed=st.integers(0, 10**6), length=st.integers(1, 5000), size=st.integers(90, 70_000))
def test_a_range_is_covered_once(seed: int, length: int, size: int) -> None:
    lot = random.Random(seed)

    def answer(offset: int, count: int) -> RawPull:
        return found(offset, min(count, lot.choice([1, 8, 32, 32, 32]), 262_144 // size + 1), size)

    with pytest.MonkeyPatch.context() as patch:
        pulled = run(patch, answer, 7, 7 + length)
    covers(pulled, 7, 7 + length)
    assert not any(each.lost for each in pulled)


def test_what_the_broker_deleted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(offset: int, count: int) -> RawPull:
        if offset < 40:
            return nothing(PullStatus.OFFSET_ILLEGAL, "OFFSET_TOO_SMALL", 40, 40, 100)
        if offset == 60:
            return nothing(PullStatus.NO_MATCHED_MSG, "MESSAGE_WAS_REMOVING", 70, 40, 100)
        if offset >= 90:
            return nothing(PullStatus.NO_NEW_MSG, "OFFSET_OVERFLOW_ONE", 90, 40, 90)
        return found(offset, min(count, 10, 60 - offset if offset < 60 else 90 - offset))

    pulled = run(monkeypatch, answer, 10, 100)
    covers(pulled, 10, 100)
    lost = [(each.first, each.next, each.lost) for each in pulled if each.lost]
    assert lost[0][0] == 10
    assert (60, 70, "the file was deleted") in lost
    assert (90, 100, "the queue ends at 90 now") in lost
    assert sum(last - first for first, last, _ in lost) == 30 + 10 + 10


def test_filtered_answers_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(offset: int, count: int) -> RawPull:
        if offset % 100 < 50:
            return nothing(PullStatus.NO_MATCHED_MSG, "NO_MATCHED_MESSAGE", offset + 50, 0, 10**6)
        return found(offset, 3)

    pulled = run(monkeypatch, answer, 0, 1000, filter=MessageSelector.by_tag("a"))
    covers(pulled, 0, 1000)
    assert all(each.filtered and not each.lost for each in pulled)


def test_trouble_is_waited_out_and_then_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[Exception] = [
        RemotingConnectError("nobody"),
        MQBrokerError(ResponseCode.SYSTEM_BUSY, "busy", "x"),
        RemotingConnectError("nobody"),
    ]

    def answer(offset: int, count: int) -> RawPull:
        if troubles:
            raise troubles.pop()
        return found(offset, count)

    covers(run(monkeypatch, answer, 0, 50), 0, 50)

    def never(offset: int, count: int) -> RawPull:
        raise RemotingConnectError("nobody")

    with pytest.raises(RemotingConnectError):
        run(monkeypatch, never, 0, 50)

    def refused(offset: int, count: int) -> RawPull:
        raise MQBrokerError(ResponseCode.NO_PERMISSION, "no", "x")

    with pytest.raises(MQBrokerError, match="no"):
        run(monkeypatch, refused, 0, 50)

    def gone(offset: int, count: int) -> RawPull:
        raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, "no topic", "x")

    assert [(p.first, p.next, p.lost) for p in run(monkeypatch, gone, 3, 9)] == [
        (3, 9, "the topic is gone")
    ]


def test_a_refused_filter_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(offset: int, count: int) -> RawPull:
        asked.append(offset)
        if len(asked) == 1:
            raise MQBrokerError(ResponseCode.SYSTEM_ERROR, "no SQL92 here", "x")
        return found(offset, count)

    pulled = run(monkeypatch, answer, 0, 40, filter=MessageSelector.by_sql("a > 1"))
    covers(pulled, 0, 40)
    assert not any(each.filtered for each in pulled)


@pytest.mark.parametrize(
    ("remark", "low", "high"), [("OFFSET_TOO_SMALL", 5000, 9000), ("OFFSET_OVERFLOW_ONE", 0, 100)]
)
@pytest.mark.parametrize("failures", [3, 20])
def test_what_a_slave_lacks_is_asked_of_the_master(
    monkeypatch: pytest.MonkeyPatch, remark: str, low: int, high: int, failures: int
) -> None:
    """A slave begins later than its master, or ends earlier; so long as the master is away."""
    asked: list[int] = []

    def answer(offset: int, count: int, broker_id: int) -> RawPull:
        asked.append(broker_id)
        if broker_id:
            return nothing(PullStatus.NO_MATCHED_MSG, remark, offset, low, high)
        if asked.count(0) <= failures:
            raise RemotingConnectError("nobody")
        return found(offset, min(count, 32))

    pulled = run(monkeypatch, answer, 100, 6000, replicas=True)
    covers(pulled, 100, 6000)
    assert not any(each.lost for each in pulled)
    assert 1 in asked


def test_a_slave_alone_tells_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def slave(offset: int, count: int, broker_id: int) -> RawPull:
        if not broker_id:
            raise RemotingConnectError("nobody")
        if offset >= 200:
            raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, "no topic yet", "y")
        if offset >= 150:
            return nothing(PullStatus.NO_MATCHED_MSG, "MESSAGE_WAS_REMOVING", 160, 0, 200)
        return found(offset, min(count, 150 - offset))

    for start in (100, 150, 200):
        with pytest.raises((RemotingError, MQBrokerError)):
            run(monkeypatch, slave, start, 300, replicas=True)

    instance = Instance()
    instance.brokers = {"b": {1: "y"}}  # the name servers know no master
    with pytest.raises(RemotingError, match="a slave, which has offsets 0 to 200"):
        run(monkeypatch, slave, 150, 160, replicas=True, instance=instance)


def test_a_master_is_found_again_that_no_name_server_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looking(Instance):
        looks = 0

        async def update_route(self, topic: str) -> None:
            self.looks += 1
            self.brokers = {"b": {1: "y"}} if self.looks < 10 else Instance.brokers

    def answer(offset: int, count: int, broker_id: int) -> RawPull:
        if broker_id:
            return nothing(PullStatus.NO_MATCHED_MSG, "OFFSET_TOO_SMALL", offset, 40, 90)
        return found(offset, count)

    instance = Looking()
    instance.brokers = {"b": {1: "y"}}
    pulled = run(monkeypatch, answer, 0, 30, replicas=True, instance=instance)
    covers(pulled, 0, 30)
    assert not any(each.lost for each in pulled)
    assert instance.looks == 10


def test_a_master_sends_readers_to_a_slave_that_lacks_messages_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slaves = 0

    def answer(offset: int, count: int, broker_id: int) -> RawPull:
        nonlocal slaves
        if broker_id:
            slaves += 1
            return nothing(PullStatus.NO_MATCHED_MSG, "OFFSET_TOO_SMALL", offset, 5000, 9000)
        return replace(found(offset, min(count, 8)), suggested_broker_id=1)

    pulled = run(monkeypatch, answer, 0, 4000, replicas=True)
    covers(pulled, 0, 4000)
    assert not any(each.lost for each in pulled)
    assert 1 <= slaves <= 4


def test_a_master_that_starts_again_is_given_time_to_show_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time counts from its first answer, however long it was away."""
    asked = 0

    def answer(offset: int, count: int) -> RawPull:
        nonlocal asked
        asked += 1
        if asked <= 20:
            raise RemotingConnectError("nobody")
        if asked <= 23:
            return nothing(PullStatus.NO_NEW_MSG, "OFFSET_OVERFLOW_ONE", offset, 0, offset)
        return found(offset, count)

    pulled = run(monkeypatch, answer, 0, 30)
    covers(pulled, 0, 30)
    assert not any(each.lost for each in pulled)
