"""Which broker of a cluster holds a lite topic: all parties work it out from the parent's route.

A producer (or the proxy for it) sends a lite topic's messages to one queue of the parent topic,
chosen by a hash that moves few names when queues come or go; so the light queue is on that queue's
broker. RocketMQ: LiteShardingImpl, Guava's Hashing.consistentHash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oberth.formats.java_string import java_hash
from oberth.remoting.bodies.route import MASTER_ID, TopicRouteData

_MASK_64: Final = (1 << 64) - 1
_MULTIPLIER: Final = 2862933555777941757
_PERM_WRITE: Final = 2


def consistent_hash(key: int, buckets: int) -> int:
    """The bucket of a 64-bit key; with one bucket more only 1/buckets of the keys move.

    The jump hash of Lamping and Veach, with the generator that Guava uses for it.
    """
    state = key & _MASK_64
    bucket = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK_64
        following = int((bucket + 1) / (((state >> 33) + 1) / 2.0**31))
        if not 0 <= following < buckets:
            return bucket
        bucket = following


def writable_queues(route: TopicRouteData) -> list[str]:
    """The broker of each queue that takes messages, in the order in which clients number them."""
    masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return [
        data.broker_name
        for data in sorted(route.queue_datas, key=lambda each: each.broker_name)
        if data.perm & _PERM_WRITE and data.broker_name in masters
        for _ in range(data.write_queue_nums)
    ]


def broker_of(lite_topic: str, queues: Sequence[str]) -> str | None:
    """The broker that a lite topic's messages are sent to; None without a queue."""
    if not queues:
        return None
    return queues[consistent_hash(java_hash(lite_topic), len(queues))]
