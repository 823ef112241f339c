"""Where a lite topic is: hashes are Guava 32's consistentHash, queues come by route."""

from __future__ import annotations

import pytest

from oberth.broker.lite.sharding import broker_of, consistent_hash, writable_queues
from oberth.formats.java_string import java_hash
from oberth.remoting.bodies.route import BrokerData, QueueData, TopicRouteData


@pytest.mark.parametrize(
    ("name", "buckets", "bucket"),
    [
        ("one", 1, 0), ("one", 2, 0), ("two", 2, 1), ("three", 4, 3), ("lite-42", 4, 1),
        ("Zürich", 12, 0), ("a_b", 12, 8), ("", 12, 0), ("x", 12, 10), ("one", 12, 4),
        ("one", 1000, 113), ("two", 1000, 411), ("three", 1000, 683), ("lite-42", 1000, 5),
        ("Zürich", 1000, 308), ("a_b", 1000, 487), ("", 1000, 0), ("x", 1000, 36),
    ],
)  # fmt: skip
def test_a_hash_is_guavas(name: str, buckets: int, bucket: int) -> None:
    assert consistent_hash(java_hash(name), buckets) == bucket


def test_one_bucket_more_moves_few_names() -> None:
    moved = [
        name
        for name in map(str, range(1000))
        if consistent_hash(java_hash(name), 10) != consistent_hash(java_hash(name), 11)
    ]
    assert 0 < len(moved) < 200


def test_queues_are_those_of_masters_that_take_messages() -> None:
    route = TopicRouteData(
        broker_datas=[
            BrokerData(broker_name="b", broker_addrs={0: "1.1.1.1:1"}),
            BrokerData(broker_name="a", broker_addrs={0: "1.1.1.1:2", 1: "1.1.1.1:3"}),
            BrokerData(broker_name="slave", broker_addrs={1: "1.1.1.1:4"}),
        ],
        queue_datas=[
            QueueData(broker_name="b", perm=6, read_queue_nums=2, write_queue_nums=2),
            QueueData(broker_name="slave", perm=6, read_queue_nums=2, write_queue_nums=2),
            QueueData(broker_name="a", perm=6, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="b", perm=4, read_queue_nums=8, write_queue_nums=8),
        ],
    )
    queues = writable_queues(route)
    assert queues == ["a", "b", "b"]
    assert broker_of("two", queues) in ("a", "b")
    assert broker_of("two", []) is None
