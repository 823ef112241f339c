"""Consumer groups: who of a group is connected and what it subscribes to.

RocketMQ: ConsumerManager.

A state machine: heartbeats, closed channels and the time go in; whether the others of the group
must hear of it comes out. A group without clients is gone, its offsets are not (they are kept by
``consumer_offsets``).

The last heartbeat wins for the whole group: topics that it does not name are dropped, unless it
says that it carries no subscriptions (``without_sub``). Clients of one group must subscribe alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from oberth.broker.clients import CLIENT_COUNT_MAX, ClientInfo
from oberth.broker.subscriptions import Subscription

BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"

CONSUME_TYPES: Final = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")
LITE_SELECTIVE: Final = "LITE_SELECTIVE"
MESSAGE_MODELS: Final = (BROADCASTING, CLUSTERING, LITE_SELECTIVE)
CONSUME_FROM_WHERES: Final = (
    CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""Names in the order of Java's enums: C++ clients send the ordinal."""


def enum_name(value: object, names: tuple[str, ...], default: str) -> str:
    """The name that a heartbeat means, given as a name or as Java's ordinal."""
    if isinstance(value, str) and value in names:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    return default


class GroupData(NamedTuple):
    """What a heartbeat says about a group beside its subscriptions."""

    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET


class ConsumerGroup:
    """One group with at least one client.

    Attributes:
        name: of the group.
        data: as the last heartbeat had it.
        clients: by channel.
        subscriptions: by topic.
        last_update_ms: the last heartbeat of any client.
    """

    __slots__ = ("clients", "data", "last_update_ms", "name", "subscriptions")

    def __init__(self, name: str, data: GroupData, now_ms: int) -> None:
        self.name = name
        self.data = data
        self.clients: dict[Hashable, ClientInfo] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.last_update_ms = now_ms

    @property
    def is_broadcasting(self) -> bool:
        """Whether every client gets every message."""
        return self.data.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Every client once."""
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))

    def find_client(self, client_id: str) -> ClientInfo | None:
        """The client of that name with the newest heartbeat."""
        found: ClientInfo | None = None
        for client in self.clients.values():
            if client.client_id == client_id and (
                found is None or client.last_update_ms >= found.last_update_ms
            ):
                found = client
        return found

    def update_client(self, client: ClientInfo) -> bool:
        """Note a client; True if its channel is new."""
        known = self.clients.get(client.channel)
        if known is not None and known.client_id == client.client_id:
            known.last_update_ms = client.last_update_ms
            return False
        if known is None and len(self.clients) >= CLIENT_COUNT_MAX:
            return False
        self.clients[client.channel] = client
        return True

    def update_subscriptions(
        self, subscriptions: Iterable[Subscription], now_ms: int, *, keep_others: bool = False
    ) -> bool:
        """Take over what a heartbeat subscribes to; True if topics came or went.

        A known topic is replaced only by a higher version, and that alone is no change.
        """
        changed = False
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            old = self.subscriptions.get(subscription.topic)
            if old is None:
                subscription.last_update_ms = now_ms
                self.subscriptions[subscription.topic] = subscription
                changed = True
            else:
                if subscription.sub_version > old.sub_version:
                    self.subscriptions[subscription.topic] = old = subscription
                old.last_update_ms = now_ms
        if not keep_others:
            for topic in [topic for topic in self.subscriptions if topic not in named]:
                del self.subscriptions[topic]
                changed = True
        return changed


class ExpiredClient(NamedTuple):
    """A client whose heartbeats stopped."""

    group: str
    client: ClientInfo


class ConsumerTable:
    """All consumer groups that are online."""

    __slots__ = ("_compensated", "_groups")

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._compensated: dict[str, dict[str, Subscription]] = {}

    def get(self, group: str) -> ConsumerGroup | None:
        """The group, if anybody of it is online."""
        return self._groups.get(group)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def find_subscription(self, group: str, topic: str) -> Subscription | None:
        """What a group wants of a topic."""
        found = self._groups.get(group)
        subscription = None if found is None else found.subscriptions.get(topic)
        return subscription or self._compensated.get(group, {}).get(topic)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def register(
        self,
        group: str,
        client: ClientInfo,
        data: GroupData,
        subscriptions: Iterable[Subscription],
        now_ms: int,
        *,
        without_sub: bool = False,
    ) -> bool:
        """Note one group of a heartbeat; True if its members or topics changed."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, data, now_ms)
        found.data = data
        found.last_update_ms = now_ms
        added = found.update_client(client)
        if without_sub:
            return added
        return found.update_subscriptions(subscriptions, now_ms) or added

    def compensate_subscription(self, group: str, subscription: Subscription, now_ms: int) -> None:
        """Note what a request itself declared, for those who ask what the group wants.

        It makes nobody a member. RocketMQ: compensateSubscribeData.
        """
        subscription.last_update_ms = now_ms
        self._compensated.setdefault(group, {})[subscription.topic] = subscription

    def unregister(self, group: str, channel: Hashable) -> bool:
        """Take a client out; True if it was there."""
        found = self._groups.get(group)
        if found is None or found.clients.pop(channel, None) is None:
            return False
        if not found.clients:
            del self._groups[group]
        return True

    def connection_closed(self, channel: Hashable) -> list[str]:
        """Take a channel out of all groups; the groups it was in."""
        return [group for group in list(self._groups) if self.unregister(group, channel)]

    def remove_group(self, group: str) -> ConsumerGroup | None:
        """Forget a group: it was deleted."""
        self._compensated.pop(group, None)
        return self._groups.pop(group, None)

    def scan_expired(
        self, now_ms: int, client_timeout_ms: int, subscription_timeout_ms: int
    ) -> list[ExpiredClient]:
        """Drop clients and subscriptions that nobody named for too long; the clients."""
        expired: list[ExpiredClient] = []
        for group in list(self._groups.values()):
            for client in list(group.clients.values()):
                if now_ms - client.last_update_ms > client_timeout_ms:
                    expired.append(ExpiredClient(group.name, client))
                    self.unregister(group.name, client.channel)
            for topic, subscription in list(group.subscriptions.items()):
                if now_ms - subscription.last_update_ms > subscription_timeout_ms:
                    del group.subscriptions[topic]
        for name, subscriptions in list(self._compensated.items()):
            for topic, subscription in list(subscriptions.items()):
                if now_ms - subscription.last_update_ms > subscription_timeout_ms:
                    del subscriptions[topic]
            if not subscriptions:
                del self._compensated[name]
        return expired

    def connection_body(self, group: ConsumerGroup, address: Any) -> dict[str, Any]:
        """The group as 203 shows it; ``address`` gives the text of a channel's peer."""
        return {
            "connectionSet": [
                {
                    "clientAddr": address(client.channel),
                    "clientId": client.client_id,
                    "language": client.language,
                    "version": client.version,
                }
                for client in group.clients.values()
            ],
            "consumeFromWhere": group.data.consume_from_where,
            "consumeType": group.data.consume_type,
            "messageModel": group.data.message_model,
            "subscriptionTable": {
                topic: subscription.to_body() for topic, subscription in group.subscriptions.items()
            },
        }
