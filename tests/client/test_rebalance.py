"""Proves that every allocation strategy gives each queue to just one member, as Java's do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.client import rebalance
from oberth.client.rebalance import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateStrategy,
)
from oberth.remoting.bodies.base import MessageQueue


def queues(count: int, broker: str = "broker-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker, queue_id=n) for n in range(count)]


# N queues, C members: the numbers of each member's queues. Worked out by hand from the rule.
AVERAGE = [
    (4, 1, [[0, 1, 2, 3]]),
    (4, 2, [[0, 1], [2, 3]]),
    (5, 2, [[0, 1, 2], [3, 4]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    (2, 4, [[0], [1], [], []]),
    (1, 3, [[0], [], []]),
    (3, 3, [[0], [1], [2]]),
]


@pytest.mark.parametrize(("count", "members", "shares"), AVERAGE)
def test_average(count: int, members: int, shares: list[list[int]]) -> None:
    ids = [f"c{n}" for n in range(members)]
    strategy = AllocateMessageQueueAveragely()
    for member, share in zip(ids, shares, strict=True):
        taken = strategy.allocate("g", member, queues(count), ids)
        assert [queue.queue_id for queue in taken] == share


def test_by_circle() -> None:
    ids = ["a", "b", "c"]
    taken = [
        [q.queue_id for q in rebalance.allocate_by_circle(each, queues(7), ids)] for each in ids
    ]
    assert taken == [[0, 3, 6], [1, 4], [2, 5]]


STRATEGIES: list[AllocateStrategy] = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
    AllocateMessageQueueByMachineRoom(frozenset({"r1"})),
    AllocateMachineRoomNearby(lambda q: q.broker_name.split("@")[0], lambda c: c.split("-")[0]),
]


MEMBERS = [f"r{n % 3}-{n}" for n in range(12)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
@given(
    count=st.integers(1, 40),
    members=st.lists(
        st.sampled_from([f"r{n % 3}-{n}" for n in range(12)]), min_size=1, unique=True
    ),
)
def test_each_queue_has_one_owner(
    strategy: AllocateStrategy, count: int, members: list[str]
) -> None:
    ids = sorted(members)
    all_queues = sorted(queues(count, "r1@broker-a") + queues(2, "r1@broker-b"))
    owners = Counter(
        queue for member in ids for queue in strategy.allocate("g", member, all_queues, ids)
    )
    assert set(owners) == set(all_queues)
    assert set(owners.values()) == {1}
    assert strategy.allocate("g", "not-a-member", all_queues, ids) == []


def test_machine_room_shares_the_rest_among_the_first() -> None:
    all_queues = queues(5, "r1@a") + queues(3, "r2@b") + queues(2, "plain")
    ids = ["a", "b"]
    rooms = frozenset({"r1"})
    taken = [rebalance.allocate_machine_room(each, all_queues, ids, rooms) for each in ids]
    assert [[q.queue_id for q in each] for each in taken] == [[0, 1, 4], [2, 3]]
    assert {q.broker_name for each in taken for q in each} == {"r1@a"}


def test_nearby_keeps_queues_in_their_room_and_shares_orphans() -> None:
    strategy = AllocateMachineRoomNearby(
        lambda queue: queue.broker_name.split("@")[0], lambda client: client.split("-")[0]
    )
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    all_queues = sorted(queues(2, "r1@a") + queues(2, "r2@b") + queues(2, "r3@c"))
    ids = ["r1-x", "r2-y"]
    names = [[q.broker_name for q in strategy.allocate("g", each, all_queues, ids)] for each in ids]
    assert names == [["r1@a", "r1@a", "r3@c"], ["r2@b", "r2@b", "r3@c"]]


def test_config_gives_its_list_whoever_asks() -> None:
    mine = tuple(queues(2))
    strategy = AllocateMessageQueueByConfig(mine)
    assert strategy.allocate("g", "c", queues(5), ["c", "d"]) == list(mine)
    assert strategy.allocate("g", "c", queues(5, topic="other"), ["c"]) == []


def test_ring_hash_is_unsigned_and_big_endian() -> None:
    # MD5("a") starts 0cc175b9, MD5("c") 4a8a08f0, MD5("b") 92eb5ffe.
    assert rebalance.ring_hash("a") == 0x0CC175B9
    assert rebalance.ring_hash("b") == 0x92EB5FFE
    assert rebalance.queue_text(queues(1)[0]) == (
        "MessageQueue [topic=T, brokerName=broker-a, queueId=0]"
    )


def test_consistent_hash_moves_little_when_a_member_leaves() -> None:
    all_queues = queues(64)
    ids = [f"c{n}" for n in range(8)]
    before = {
        queue: member
        for member in ids
        for queue in rebalance.allocate_consistent_hash(member, all_queues, ids)
    }
    left = ids[1:]
    after = {
        queue: member
        for member in left
        for queue in rebalance.allocate_consistent_hash(member, all_queues, left)
    }
    moved = [queue for queue in all_queues if before[queue] != after[queue]]
    assert all(before[queue] == "c0" for queue in moved)
