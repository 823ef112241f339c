"""Consumer groups: their connected members and what these subscribe to.

RocketMQ: ConsumerManager.

A state machine: heartbeats, closed channels and the time go in; whether the others of the group
must hear of it comes out. A group without clients is gone, its offsets are not (they are kept by
``consumer_offsets``).

The last heartbeat wins for the whole group: topics that it does not name are dropped, unless it
says that it carries no subscriptions (``without_sub``). Clients of one group must subscribe alike.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from oberth.broker.clients import (
    CLIENT_COUNT_MAX,
    GROUPS_PER_CHANNEL_MAX,
    LEFT_AT_ONCE,
    SCANNED_AT_ONCE,
    ClientInfo,
)
from oberth.broker.subscriptions import Subscription
from oberth.formats.config_json import Shown

_LOG: Final = logging.getLogger(__name__)

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


SUBSCRIBED_BYTES_MAX: Final = 64 << 20
"""Bytes of the subscriptions of all groups. Beyond it a group may still have its share, the limit
divided by the groups: so all together never have more than twice as much."""
SUBSCRIPTION_SIZE: Final = 600
"""Bytes of a subscription beside its texts; a tag takes TAG_SIZE."""
TAG_SIZE: Final = 100

COMPENSATED_MAX: Final = 10_000
"""Subscriptions that requests declared themselves, and that are shown to tools."""
COMPENSATED_SIZE_MAX: Final = 4096
"""Characters of such an expression."""


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
        revision: grows when a heartbeat says anything else than the ones before it.
        size: bytes of the subscriptions, about.
    """

    __slots__ = (
        "clients", "data", "last_update_ms", "name", "revision", "size", "subscriptions",
    )  # fmt: skip

    def __init__(self, name: str, data: GroupData, now_ms: int) -> None:
        self.name = name
        self.data = data
        self.clients: dict[Hashable, ClientInfo] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.last_update_ms = now_ms
        self.revision = 0
        self.size = 0

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
            if old != subscription:
                self.revision += 1
            if old is None:
                subscription.last_update_ms = now_ms
                self.subscriptions[subscription.topic] = subscription
                self.size += size_of(subscription)
                changed = True
            else:
                if subscription.sub_version > old.sub_version:
                    self.size += size_of(subscription) - size_of(old)
                    self.subscriptions[subscription.topic] = old = subscription
                old.last_update_ms = now_ms
        if not keep_others:
            for topic in [topic for topic in self.subscriptions if topic not in named]:
                self.drop(topic)
                changed = True
        return changed

    def same_heartbeat(self, client: ClientInfo, now_ms: int, *, without_sub: bool) -> None:
        """Note that a client said once more what it said last, and nobody anything else since."""
        self.last_update_ms = client.last_update_ms = now_ms
        if not without_sub:
            for subscription in self.subscriptions.values():
                subscription.last_update_ms = now_ms

    def drop(self, topic: str) -> None:
        """Forget the subscription to a topic."""
        self.revision += 1
        self.size -= size_of(self.subscriptions.pop(topic))


def size_of(subscription: Subscription) -> int:
    """Bytes that a subscription takes, about."""
    texts = len(subscription.topic) + 2 * len(subscription.sub_string)
    return SUBSCRIPTION_SIZE + texts + TAG_SIZE * len(subscription.tags)


class ExpiredClient(NamedTuple):
    """A client whose heartbeats stopped."""

    group: str
    client: ClientInfo


class ConsumerTable:
    """All consumer groups that are online."""

    __slots__ = (
        "_channels", "_compensated", "_compensated_count", "_groups", "_to_scan",
        "subscribed_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._channels: dict[Hashable, dict[str, None]] = {}  # the groups that each is in
        self._compensated: dict[str, dict[str, Subscription]] = {}
        self._compensated_count = 0
        self._to_scan: list[str] = []
        self.subscribed_bytes = 0

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
        """Note one group of a heartbeat; True if its members or topics changed.

        A channel that is in GROUPS_PER_CHANNEL_MAX groups gets into no other. Subscriptions for
        which there is no room are left out, see SUBSCRIBED_BYTES_MAX.
        """
        own = self._channels.setdefault(client.channel, {})
        if group not in own and len(own) >= GROUPS_PER_CHANNEL_MAX:
            return False
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, data, now_ms)
        if found.data != data:
            found.revision += 1
            found.data = data
        found.last_update_ms = now_ms
        added = found.update_client(client)
        if client.channel in found.clients:
            own[group] = None
        elif not own:
            del self._channels[client.channel]
        if without_sub:
            return added
        before = found.size
        changed = found.update_subscriptions(self._with_room(found, subscriptions), now_ms)
        self.subscribed_bytes += found.size - before
        return changed or added

    def _with_room(
        self, group: ConsumerGroup, subscriptions: Iterable[Subscription]
    ) -> list[Subscription]:
        """The first of the subscriptions, as many as a group has room for."""
        wanted = list(subscriptions)
        others = self.subscribed_bytes - group.size
        room = max(SUBSCRIBED_BYTES_MAX - others, SUBSCRIBED_BYTES_MAX // len(self._groups))
        for number, subscription in enumerate(wanted):
            room -= size_of(subscription)
            if room < 0:
                _LOG.warning(
                    "group %s: %d of %d subscriptions left out, those of all groups are %d bytes, "
                    "allowed %d",
                    group.name, len(wanted) - number, len(wanted), self.subscribed_bytes,
                    SUBSCRIBED_BYTES_MAX,
                )  # fmt: skip
                return wanted[:number]
        return wanted

    def has_room(self, group: str, channel: Hashable) -> bool:
        """Whether a channel may be in a group: it is, or it is in fewer than it may be in."""
        own = self._channels.get(channel, {})
        return group in own or len(own) < GROUPS_PER_CHANNEL_MAX

    def compensate_subscription(self, group: str, subscription: Subscription, now_ms: int) -> None:
        """Note what a request itself declared, for those who ask what the group wants.

        It makes nobody a member. COMPENSATED_MAX at most, and no long expression: tools
        that ask see nothing of the others. RocketMQ: compensateSubscribeData.
        """
        is_new = subscription.topic not in self._compensated.get(group, ())
        if len(subscription.sub_string) > COMPENSATED_SIZE_MAX or (
            is_new and self._compensated_count >= COMPENSATED_MAX
        ):
            return
        self._compensated_count += is_new
        subscription.last_update_ms = now_ms
        self._compensated.setdefault(group, {})[subscription.topic] = subscription

    def unregister(self, group: str, channel: Hashable) -> bool:
        """Take a client out; True if it was there."""
        found = self._groups.get(group)
        if found is None or found.clients.pop(channel, None) is None:
            return False
        if not found.clients:
            del self._groups[group]
            self.subscribed_bytes -= found.size
        self._left(group, channel)
        return True

    def _left(self, group: str, channel: Hashable) -> None:
        own = self._channels[channel]
        del own[group]
        if not own:
            del self._channels[channel]

    def connection_closed(self, channel: Hashable) -> list[str]:
        """Take a channel out of its groups, at most `LEFT_AT_ONCE`; which. Ends with none."""
        groups = list(islice(self._channels.get(channel, ()), LEFT_AT_ONCE))
        for group in groups:
            self.unregister(group, channel)
        return groups

    def remove_group(self, group: str) -> ConsumerGroup | None:
        """Forget a group: it was deleted."""
        self._compensated_count -= len(self._compensated.pop(group, ()))
        found = self._groups.pop(group, None)
        if found is not None:
            self.subscribed_bytes -= found.size
            for channel in found.clients:
                self._left(group, channel)
        return found

    def scan_expired(
        self, now_ms: int, client_timeout_ms: int, subscription_timeout_ms: int
    ) -> list[ExpiredClient]:
        """Drop clients and subscriptions that nobody named for too long; the clients.

        Looks at some groups, and has to be called again while it `is_scanning`.
        """
        expired: list[ExpiredClient] = []
        if not self._to_scan:
            self._drop_compensated(now_ms, subscription_timeout_ms)
            self._to_scan = list(self._groups)
        room = SCANNED_AT_ONCE
        while self._to_scan and room > 0:
            group = self._groups.get(self._to_scan.pop())
            if group is None:
                continue
            room -= 1 + len(group.clients) + len(group.subscriptions)
            for client in list(group.clients.values()):
                if now_ms - client.last_update_ms > client_timeout_ms:
                    expired.append(ExpiredClient(group.name, client))
                    self.unregister(group.name, client.channel)
            for topic, subscription in list(group.subscriptions.items()):
                if now_ms - subscription.last_update_ms > subscription_timeout_ms:
                    before = group.size
                    group.drop(topic)
                    if group.name in self._groups:
                        self.subscribed_bytes += group.size - before
        return expired

    @property
    def is_scanning(self) -> bool:
        """Whether groups are left of those that `scan_expired` began to look at."""
        return bool(self._to_scan)

    def _drop_compensated(self, now_ms: int, subscription_timeout_ms: int) -> None:
        for name, subscriptions in list(self._compensated.items()):
            for topic, subscription in list(subscriptions.items()):
                if now_ms - subscription.last_update_ms > subscription_timeout_ms:
                    del subscriptions[topic]
                    self._compensated_count -= 1
            if not subscriptions:
                del self._compensated[name]

    def connection_body(self, group: ConsumerGroup, address: Any) -> dict[str, Any]:
        """The group as 203 shows it; ``address`` gives the text of a channel's peer.

        For ``config_in_slices``.
        """

        def shown(client: ClientInfo) -> dict[str, Any]:
            return {
                "clientAddr": address(client.channel),
                "clientId": client.client_id,
                "language": client.language,
                "version": client.version,
            }

        return {
            "connectionSet": Shown(list(group.clients.values()), shown),
            "consumeFromWhere": group.data.consume_from_where,
            "consumeType": group.data.consume_type,
            "messageModel": group.data.message_model,
            "subscriptionTable": Shown(group.subscriptions, Subscription.to_body),
        }
