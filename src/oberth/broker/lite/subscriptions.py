"""LiteSubscriptions: which client takes which lite topic.

A client belongs to one group and takes queues (``%LMQ%$parent$lite``) below one parent topic; it
says so again and again, and is forgotten when it stops. What is always true: both directions hold
the same pairs, and `len` counts them.

A wildcard group takes every lite topic of its parent. Its clients hold one stand-in, which is no
queue's name: ``parent@group``.

A state machine: what clients say and the time go in. RocketMQ: LiteSubscriptionRegistryImpl.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

KEPT_TAKERS_MIN: Final = 64
"""Takers of a queue from which on they are kept by group, too: to sort them for every message would
cost as much as there are."""


class LiteSubscription:
    """What one client takes."""

    __slots__ = ("group", "queues", "topic", "update_ms")

    def __init__(self, group: str, topic: str, now_ms: int) -> None:
        self.group = group
        self.topic = topic
        self.queues: dict[str, None] = {}
        self.update_ms = now_ms


def wildcard_queue(topic: str, group: str) -> str:
    """The stand-in for all lite topics of a parent."""
    return f"{topic}@{group}"


class LiteSubscriptions:
    """All clients of lite topics."""

    def __init__(self) -> None:
        self._clients: dict[str, LiteSubscription] = {}
        self._takers: dict[str, dict[str, str]] = {}  # queue → client → group
        # What `_by_group` found for queues with many takers, until these change.
        self._kept_by_group: dict[str, dict[str, list[str]]] = {}
        self._wildcard_groups: dict[str, dict[str, None]] = {}  # parent topic → groups
        self._count = 0

    def __len__(self) -> int:
        """Pairs of a client and a queue."""
        return self._count

    @property
    def client_count(self) -> int:
        """Clients that have said something, whether or not they take a queue."""
        return len(self._clients)

    def get(self, client_id: str) -> LiteSubscription | None:
        """What a client takes, if it has said so."""
        return self._clients.get(client_id)

    def clients_of_group(self, group: str) -> list[str]:
        """Clients of a group."""
        return [client for client, each in self._clients.items() if each.group == group]

    def takers(self, queue: str) -> dict[str, str]:
        """The clients that take a queue by name, with their groups; a copy."""
        return dict(self._takers.get(queue, ()))

    def takers_by_group(self, topic: str | None, queue: str) -> dict[str, list[str]]:
        """Clients of each group that take a queue, by name or because they take all.

        The lists are not to be changed.
        """
        found = dict(self._by_group(queue))
        for group in self._wildcard_groups.get(topic or "", ()):
            if group not in found:
                found[group] = self.takers_of_all(topic or "", group)
        return found

    def takers_of_all(self, topic: str, group: str) -> list[str]:
        """Clients of a group that take all lite topics of a parent; not to be changed."""
        return self._by_group(wildcard_queue(topic, group)).get(group, [])

    def _by_group(self, queue: str) -> dict[str, list[str]]:
        kept = self._kept_by_group.get(queue)
        if kept is not None:
            return kept
        takers = self._takers.get(queue, {})
        found: dict[str, list[str]] = {}
        for client, group in takers.items():
            found.setdefault(group, []).append(client)
        if len(takers) >= KEPT_TAKERS_MIN:
            self._kept_by_group[queue] = found
        return found

    def of_client(self, client_id: str, group: str, topic: str, now_ms: int) -> LiteSubscription:
        """What a client takes, noted as said again; the first group that it names stays its own."""
        found = self._clients.get(client_id)
        if found is None:
            found = self._clients[client_id] = LiteSubscription(group, topic, now_ms)
        found.update_ms = now_ms
        return found

    def add(self, client_id: str, queue: str) -> bool:
        """A known client takes a queue; False if it did."""
        subscription = self._clients[client_id]
        if queue in subscription.queues:
            return False
        subscription.queues[queue] = None
        self._takers.setdefault(queue, {})[client_id] = subscription.group
        self._kept_by_group.pop(queue, None)
        self._count += 1
        if queue == wildcard_queue(subscription.topic, subscription.group):
            self._wildcard_groups.setdefault(subscription.topic, {})[subscription.group] = None
        return True

    def discard(self, client_id: str, queue: str) -> bool:
        """A client does not take a queue any more; False if it did not."""
        subscription = self._clients.get(client_id)
        if subscription is None or queue not in subscription.queues:
            return False
        del subscription.queues[queue]
        self._count -= 1
        self._forget_taker(client_id, subscription, queue)
        return True

    def _forget_taker(self, client_id: str, its: LiteSubscription, queue: str) -> None:
        takers = self._takers.get(queue)
        if takers is None:
            return
        takers.pop(client_id, None)
        self._kept_by_group.pop(queue, None)
        if not takers:
            del self._takers[queue]
            groups = self._wildcard_groups.get(its.topic)
            if groups and queue == wildcard_queue(its.topic, its.group):
                groups.pop(its.group, None)
                if not groups:
                    del self._wildcard_groups[its.topic]

    def remove_client(self, client_id: str) -> LiteSubscription | None:
        """Forget a client; what it took, which is then to be released."""
        subscription = self._clients.pop(client_id, None)
        if subscription is not None:
            self._count -= len(subscription.queues)
        return subscription

    def release(self, client_id: str, gone: LiteSubscription) -> Iterator[None]:
        """Let others find queues without a client that was removed, one queue a step.

        The client may be back meanwhile: what it takes again stays.
        """
        for queue in gone.queues:
            now = self._clients.get(client_id)
            if now is None or queue not in now.queues:
                self._forget_taker(client_id, gone, queue)
            yield

    def remove_queues(self, queues: Iterable[str]) -> None:
        """Queues are deleted: nobody takes them."""
        for queue in queues:
            for client_id in self.takers(queue):
                self.discard(client_id, queue)

    def silent_since(self, before_ms: int) -> list[str]:
        """Clients that last said something before a time."""
        return [client for client, each in self._clients.items() if each.update_ms < before_ms]
