"""Routes: what a name server's answer means for producers and consumers.

Pure functions of TopicRouteData, and the round robin of a producer over the queues that it may
write. RocketMQ: MQClientInstance.topicRouteData2TopicPublishInfo, TopicPublishInfo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from oberth.errors import RemoteProtocolError
from oberth.formats.queue_mapping import (
    LOGICAL_QUEUES_MAX,
    NO_BROKER,
    logical_queue_count,
    logical_queues,
)
from oberth.formats.topic_config import Permission
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import MASTER_ID, BrokerData, TopicRouteData

COUNT_DIGITS_MAX: Final = 10

QUEUES_MAX: Final = 1 << 17
"""Queues of a topic's route in all; a broker makes at most 65 536 for a topic."""

BROKERS_MAX: Final = 5_000
ADDRESSES_MAX: Final = 10_000
"""Of a route: a client connects to each. A name server knows no more brokers."""


def check_route(topic: str, route: TopicRouteData) -> None:
    """Compare a route's numbers with what clients make of them.

    That is an object for each queue, and a connection to each address.

    Raises:
        RemoteProtocolError: more queues than QUEUES_MAX, or a number below 0; or more brokers or
            addresses than are allowed.
    """
    addresses = sum(len(broker.broker_addrs) for broker in route.broker_datas)
    if len(route.broker_datas) > BROKERS_MAX or addresses > ADDRESSES_MAX:
        raise RemoteProtocolError(
            f"route of {topic}: {len(route.broker_datas)} brokers with {addresses} addresses, "
            f"allowed are {BROKERS_MAX} with {ADDRESSES_MAX}"
        )
    for kind in ("read", "write"):
        counts = [getattr(data, f"{kind}_queue_nums") for data in route.queue_datas]
        if min(counts, default=0) < 0 or sum(counts) > QUEUES_MAX:
            raise RemoteProtocolError(
                f"route of {topic}: {sum(counts)} {kind} queues on {len(counts)} brokers, allowed "
                f"are 0 to {QUEUES_MAX} in all"
            )
    logical = logical_queue_count((route.topic_queue_mapping_by_broker or {}).values())
    if logical > LOGICAL_QUEUES_MAX:
        raise RemoteProtocolError(
            f"route of {topic}: {logical} logical queues, allowed are {LOGICAL_QUEUES_MAX}"
        )
    total = sum(count for _, count in ordered_queues(topic, route.order_topic_conf or ""))
    if total > QUEUES_MAX:
        raise RemoteProtocolError(
            f"order configuration of {topic}: {total} queues, allowed are {QUEUES_MAX}"
        )


def ordered_queues(topic: str, text: str) -> Iterator[tuple[str, int]]:
    """Brokers and their queues of an order configuration; what is no such item is left out.

    Raises:
        RemoteProtocolError: a number of queues that no number of ours holds.
    """
    for item in text.split(";"):
        broker, found, count = item.strip().partition(":")
        if found and count.isascii() and count.isdigit():
            if len(count) > COUNT_DIGITS_MAX:
                raise RemoteProtocolError(
                    f"order configuration of {topic}: a number of {len(count)} digits, allowed "
                    f"are {COUNT_DIGITS_MAX}"
                )
            yield broker, int(count)


def publish_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that may be written, of brokers that have a master; sorted by broker name.

    A topic with an order configuration (``broker:queues;broker:queues``) has just those queues, and
    a static topic its logical ones.
    """
    if route.topic_queue_mapping_by_broker:
        return [queue for queue in static_queues(topic, route) if queue.broker_name != NO_BROKER]
    if route.order_topic_conf:
        return [
            MessageQueue(topic=topic, broker_name=broker, queue_id=number)
            for broker, count in ordered_queues(topic, route.order_topic_conf)
            for number in range(count)
        ]
    masters = {
        broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs
    }
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & Permission.WRITE and data.broker_name in masters
        for number in range(data.write_queue_nums)
    ]


def subscribe_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that may be read, sorted as all clients sort them."""
    if route.topic_queue_mapping_by_broker:
        return static_queues(topic, route)
    return sorted(
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
        for data in route.queue_datas
        if data.perm & Permission.READ
        for number in range(data.read_queue_nums)
    )


def static_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The logical queues of a static topic, under the names of the brokers that lead them.

    Java's clients name another broker, the same for all (``__syslo__global__``), and look up the
    leader after it. Here a queue that was moved is another one: it is given up and taken anew. The
    order is Java's, so that members of a group share the queues in the same way.
    """
    mappings = route.topic_queue_mapping_by_broker or {}
    leaders = logical_queues(mappings.values())
    return [
        MessageQueue(topic=topic, broker_name=leaders[key], queue_id=key[1])
        for key in sorted(leaders)
    ]


def with_queues_at_most(route: TopicRouteData, count: int) -> TopicRouteData:
    """The route of a topic that a first send will make from the template topic's."""
    for data in route.queue_datas:
        data.read_queue_nums = data.write_queue_nums = min(count, data.read_queue_nums)
    return route


def is_same_route(one: TopicRouteData | None, other: TopicRouteData) -> bool:
    """Whether two routes say the same, in whatever order."""
    return one is not None and _route_key(one) == _route_key(other)


def _route_key(route: TopicRouteData) -> tuple[object, ...]:
    return (
        route.order_topic_conf,
        route.topic_queue_mapping_by_broker or {},
        sorted(
            (
                data.broker_name,
                data.perm,
                data.read_queue_nums,
                data.write_queue_nums,
                data.topic_sys_flag,
            )
            for data in route.queue_datas
        ),
        sorted(
            (data.broker_name, data.cluster, sorted(data.broker_addrs.items()))
            for data in route.broker_datas
        ),
    )


def any_address(broker: BrokerData) -> str | None:
    """The master's address, else one of the others by chance."""
    master = broker.broker_addrs.get(MASTER_ID)
    if master is not None:
        return master
    return random.choice(list(broker.broker_addrs.values())) if broker.broker_addrs else None


def brokers_by_chance(route: TopicRouteData, without: Collection[str]) -> list[tuple[str, str]]:
    """Names and addresses of all brokers but some, in an order by chance."""
    brokers = [each for each in route.broker_datas if each.broker_name not in without]
    random.shuffle(brokers)
    return [(each.broker_name, addr) for each in brokers if (addr := any_address(each)) is not None]


@dataclass(slots=True)
class TopicPublishInfo:
    """The queues that a producer writes to in turns.

    Attributes:
        queues: never empty.
        order: whether the topic has an order configuration.
        next_index: position of the next turn.
    """

    topic: str
    queues: list[MessageQueue]
    order: bool = False
    next_index: int = 0

    def select(self, last_broker: str | None = None) -> MessageQueue:
        """The next queue; of another broker than the one that just failed, if there is any."""
        queues = self.queues
        count = len(queues)
        index = self.next_index
        self.next_index = index + 1
        if last_broker is not None:
            for step in range(count):
                queue = queues[(index + step) % count]
                if queue.broker_name != last_broker:
                    self.next_index = index + step + 1
                    return queue
        return queues[index % count]

    def has_other_than(self, brokers: Collection[str]) -> bool:
        """Whether there is a queue of another broker than these."""
        return any(queue.broker_name not in brokers for queue in self.queues)

    def select_where(
        self, wanted: Callable[[MessageQueue], bool], last_broker: str | None
    ) -> MessageQueue | None:
        """The next queue that is wanted and not of ``last_broker``, or None."""
        count = len(self.queues)
        for _ in range(count):
            queue = self.queues[self.next_index % count]
            self.next_index += 1
            if queue.broker_name != last_broker and wanted(queue):
                return queue
        return None
