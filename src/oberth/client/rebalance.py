"""Allocation strategies: which queues of a topic a member of a group takes.

Pure functions of the sorted queues and the sorted client ids. Every member computes its own share
alone, so all clients of a group, in whatever language, must come to the same result: the rules and
their names are those of RocketMQ's ``AllocateMessageQueueStrategy`` implementations.

The caller sorts both lists: queues by topic, broker name and number, ids as text.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from oberth.remoting.bodies.base import MessageQueue

Queues = Sequence[MessageQueue]


class AllocateStrategy(Protocol):
    """Gives the queues of one member."""

    @property
    def name(self) -> str:
        """As QUERY_ASSIGNMENT and mqadmin know it."""

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The share of ``client_id``; empty for one that is not among ``client_ids``."""


def allocate_average(
    client_id: str, queues: Queues, client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Neighbouring queues, the first N mod C members get one more. RocketMQ: AVG.

    >>> q = [MessageQueue(topic="T", broker_name="b", queue_id=n) for n in range(5)]
    >>> [each.queue_id for each in allocate_average("y", q, ["x", "y"])]
    [3, 4]
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    count, members = len(queues), len(client_ids)
    rest = count % members
    if count <= members:
        share = 1
    elif rest and index < rest:
        share = count // members + 1
    else:
        share = count // members
    start = index * share if rest and index < rest else index * share + rest
    return list(queues[start : start + max(0, min(share, count - start))])


def allocate_by_circle(
    client_id: str, queues: Queues, client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Every C-th queue. RocketMQ: AVG_BY_CIRCLE."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def allocate_machine_room(
    client_id: str, queues: Queues, client_ids: Sequence[str], rooms: frozenset[str]
) -> list[MessageQueue]:
    """Shares of the queues whose broker is called ``room@name`` with one of the rooms."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    in_rooms = [queue for queue in queues if _room_of_broker(queue) in rooms]
    share, rest = divmod(len(in_rooms), len(client_ids))
    taken = in_rooms[index * share : (index + 1) * share]
    if index < rest:
        taken.append(in_rooms[index + share * len(client_ids)])
    return taken


def _room_of_broker(queue: MessageQueue) -> str | None:
    parts = queue.broker_name.split("@")
    return parts[0] if len(parts) == 2 else None


VIRTUAL_NODE_COUNT: Final = 10
"""Places on the ring for each member."""


def ring_hash(text: str) -> int:
    """The first four bytes of the MD5, big-endian and unsigned."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_text(queue: MessageQueue) -> str:
    """A queue as Java prints it, which is what gets hashed."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def allocate_consistent_hash(
    client_id: str,
    queues: Queues,
    client_ids: Sequence[str],
    virtual_node_count: int = VIRTUAL_NODE_COUNT,
    hash_text: Callable[[str], int] = ring_hash,
) -> list[MessageQueue]:
    """Each queue goes to the first member at or after its hash on a ring."""
    if client_id not in client_ids:
        return []
    # A later member takes a place that an earlier one had by the same hash, as Java's map does.
    owners = {
        hash_text(f"{member}-{number}"): member
        for member in client_ids
        for number in range(virtual_node_count)
    }
    ring = sorted(owners)
    taken = []
    for queue in queues:
        at = bisect.bisect_left(ring, hash_text(queue_text(queue)))
        if owners[ring[at % len(ring)]] == client_id:
            taken.append(queue)
    return taken


@dataclass(frozen=True, slots=True)
class AllocateMessageQueueAveragely:
    """``allocate_average``; the default."""

    name: str = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``."""
        return allocate_average(client_id, queues, client_ids)


@dataclass(frozen=True, slots=True)
class AllocateMessageQueueAveragelyByCircle:
    """``allocate_by_circle``."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``."""
        return allocate_by_circle(client_id, queues, client_ids)


@dataclass(frozen=True, slots=True)
class AllocateMessageQueueByConfig:
    """A fixed list, for any set of members."""

    queues: tuple[MessageQueue, ...] = ()
    name: str = "CONFIG"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``; only queues of the topic that is asked about."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self.queues if queue.topic in topics]


@dataclass(frozen=True, slots=True)
class AllocateMessageQueueByMachineRoom:
    """``allocate_machine_room``."""

    consumer_machine_rooms: frozenset[str] = frozenset()
    name: str = "MACHINE_ROOM"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``."""
        return allocate_machine_room(client_id, queues, client_ids, self.consumer_machine_rooms)


@dataclass(frozen=True, slots=True)
class AllocateMessageQueueConsistentHash:
    """``allocate_consistent_hash``."""

    virtual_node_count: int = VIRTUAL_NODE_COUNT
    hash_text: Callable[[str], int] = ring_hash
    name: str = "CONSISTENT_HASH"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``."""
        return allocate_consistent_hash(
            client_id, queues, client_ids, self.virtual_node_count, self.hash_text
        )


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """Queues stay in their room; those of rooms without members are shared by all.

    Attributes:
        inner: how queues are shared within a room.
        broker_room: where a queue is.
        consumer_room: where the client with an id is.
    """

    broker_room: Callable[[MessageQueue], str]
    consumer_room: Callable[[str], str]
    inner: AllocateStrategy = field(default_factory=AllocateMessageQueueAveragely)

    @property
    def name(self) -> str:
        """See ``AllocateStrategy``."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Queues, client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See ``AllocateStrategy``."""
        if client_id not in client_ids:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(self.broker_room(queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in client_ids:
            members_in.setdefault(self.consumer_room(member), []).append(member)
        own_room = self.consumer_room(client_id)
        taken: list[MessageQueue] = []
        own = queues_in.pop(own_room, None)
        if own:
            taken += self.inner.allocate(group, client_id, own, members_in[own_room])
        for room in sorted(queues_in):
            if room not in members_in:
                taken += self.inner.allocate(group, client_id, queues_in[room], client_ids)
        return taken
