"""Proves which brokers are left alone for how long; the table is RocketMQ's."""

from __future__ import annotations

import pytest

from oberth.client.fault_latency import LatencyFaultTolerance
from oberth.client.route import TopicPublishInfo
from oberth.remoting.bodies.base import MessageQueue


@pytest.mark.parametrize(
    ("latency_ms", "away_ms"),
    [(0, 0), (49, 0), (50, 0), (100, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000),
     (5000, 10000), (15000, 30000), (60000, 30000)],
)  # fmt: skip
def test_pause_by_latency(latency_ms: int, away_ms: int) -> None:
    assert LatencyFaultTolerance().not_available_for(latency_ms) == away_ms


def test_a_slow_broker_comes_back_in_time() -> None:
    faults = LatencyFaultTolerance()
    faults.update("a", 600, 1000, failed=False)
    assert not faults.is_available("a", 2999)
    assert faults.is_available("a", 3000)
    assert faults.is_available("unknown", 0)


def test_a_fast_answer_does_not_end_a_pause() -> None:
    faults = LatencyFaultTolerance()
    faults.update("a", 10, 0, failed=True, reachable=False)
    faults.update("a", 1, 100, failed=False)
    assert not faults.is_available("a", 9_999)
    assert faults.is_available("a", 10_000)
    assert faults.is_reachable("a")
    faults.remove("a")
    assert faults.is_available("a", 0)


def test_round_robin_avoids_the_broker_that_failed() -> None:
    queues = [
        MessageQueue(topic="T", broker_name=name, queue_id=n) for name in "ab" for n in range(2)
    ]
    info = TopicPublishInfo("T", queues)
    assert [info.select() for _ in range(5)] == [*queues, queues[0]]
    assert {info.select("a").broker_name for _ in range(5)} == {"b"}
    alone = TopicPublishInfo("T", queues[:2])
    assert alone.select("a").broker_name == "a"
    assert info.select_where(lambda queue: queue.queue_id == 1, "a") == queues[3]
    assert info.select_where(lambda queue: False, None) is None
