"""RouteTable: which brokers there are, which topics they serve, and who was heard of when.

A pure state machine: events come as calls with the time; answers and things to do are returned.
What is always true: a broker name has at least one address, each under one id, and each address is
of a live broker; a topic has at least one queue entry, each of a broker name that is there.

    cluster ─ broker names          live ─ (broker name, address): time, data version, connection
    broker name ─ {id: address}     topic ─ {broker name: QueueData}

RocketMQ: ``RouteInfoManager``. The table is memory only: brokers register again every 30 seconds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from oberth.errors import RemoteProtocolError
from oberth.formats.data_version import DataVersion
from oberth.formats.names import SYNC_BROKER_MEMBER_GROUP_PREFIX, is_stored_topic
from oberth.namesrv.registrations import MinBrokerIdChange, RegisterResult, Registration
from oberth.remoting.bodies.base import encode_without_none, result_at_once
from oberth.remoting.bodies.registration import (
    TOPICS_PER_SLICE,
    RegisterBrokerBody,
    RegisteredTopic,
)
from oberth.remoting.bodies.route import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)

_LOG: Final = logging.getLogger(__name__)

BROKER_COUNT_MAX: Final = 5_000
"""Brokers, slaves too."""

MEMBERS_MAX: Final = 64
"""Brokers of one name. Each that comes or goes is compared with all others."""

QUEUES_COUNT_MAX: Final = 2_000_000
"""Topics of each broker, all brokers together; one takes some 200 bytes."""

MAPPINGS_COUNT_MAX: Final = 20_000
"""Mappings of static topics, of each broker."""
MAPPING_SIZE_MAX: Final = 32 << 10
"""Bytes of one mapping as JSON."""
MAPPINGS_OF_TOPIC_SIZE_MAX: Final = 1 << 20
"""Bytes of the mappings of one topic: a route shows them all."""
MAPPINGS_SIZE_MAX: Final = 64 << 20
"""Bytes of all mappings."""
MAPPINGS_PER_SLICE: Final = 50
"""Mappings that are taken over between two turns of the loop."""
MAPPED_PER_SLICE: Final = 64 << 10
"""Bytes of them, and one mapping more: some 5 ms where nulls are taken out of them."""

LITTLE_ROUTE_BROKERS: Final = 64
"""Broker names of a route that is answered at once."""
LITTLE_ROUTE_ADDRESSES: Final = 256
"""Addresses of it."""
LITTLE_ROUTE_MAPPINGS: Final = 8 << 10
"""Bytes of its mappings."""
BROKERS_SHOWN_AT_ONCE: Final = 500
"""Broker names of other routes between two turns of the loop."""

NAME_LENGTH_MAX: Final = 255
"""Characters of what a broker calls itself, its cluster, its zone and its addresses."""

TOPICS_COUNTED_A_TURN: Final = 20_000
"""Topics of a registration that one turn of the loop looks for among those that are known."""

SWEPT_AT_ONCE: Final = 2_000
TOPICS_SHOWN_AT_ONCE: Final = 5_000

TOPIC_COUNT_MAX: Final = 200_000
"""Topics of all brokers together."""

PERM_WRITE: Final = 2
PERM_READ_WRITE: Final = 6

UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2


class BrokerKey(NamedTuple):
    """What a live broker is found by."""

    broker_name: str
    broker_addr: str


@dataclass(slots=True)
class LiveBroker:
    """A broker that registered and was heard of since.

    Attributes:
        registration: the newest one.
        last_update_ms: when it was heard of.
        data_version: of the topics that it registered.
    """

    registration: Registration
    last_update_ms: int
    data_version: DataVersion


@dataclass(slots=True)
class _BrokerGroup:
    """A broker name: its addresses by id."""

    cluster: str
    broker_name: str
    zone_name: str | None
    enable_acting_master: bool
    addresses: dict[int, str] = field(default_factory=dict)
    topics: dict[str, None] = field(default_factory=dict)
    """Those that it has queues of."""
    mapped: dict[str, None] = field(default_factory=dict)
    """Static topics that it has said the mappings of."""

    def broker_data(self) -> BrokerData:
        return BrokerData(
            broker_addrs=dict(self.addresses),
            broker_name=self.broker_name,
            cluster=self.cluster,
            enable_acting_master=self.enable_acting_master,
            zone_name=self.zone_name,
        )


@dataclass(slots=True)
class RouteOptions:
    """What of the table's behaviour can be chosen; names as in namesrv.conf.

    Attributes:
        delete_topic_with_broker_registration: a registration without static topics removes the
            broker's other topics.
        support_acting_master: routes show the smallest slave as master where there is none.
        notify_min_broker_id_changed: announce it (905).
    """

    delete_topic_with_broker_registration: bool = False
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False


class RouteTable:
    """Brokers and topics. Times are milliseconds of any clock that does not go back."""

    def __init__(self, options: RouteOptions | None = None) -> None:
        self.options = options or RouteOptions()
        self._clusters: dict[str, dict[str, None]] = {}
        self._brokers: dict[str, _BrokerGroup] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, bytes]] = {}  # as JSON: objects take 20 times as much
        self._mappings_size = 0
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._registered_on: dict[Hashable, dict[BrokerKey, None]] = {}  # by connection
        # Broker names, and topics that they have no more, for `sweep`: no route shows them.
        self._leftovers: deque[tuple[str, dict[str, None]]] = deque()
        # Brokers that have lost their master, and those of their topics that are to become read
        # only; they are listed when it is the broker's turn.
        self._masterless: deque[tuple[_BrokerGroup, list[str] | None]] = deque()

    # Coming and going

    def register(
        self, registration: Registration, body: RegisterBrokerBody, now_ms: int
    ) -> RegisterResult:
        """A broker registered: all its topics, or those that changed.

        Topics are taken from the master, or from the smallest slave of brokers that know about
        acting masters. Topics that the body does not name stay.

        Raises:
            RemoteProtocolError: there are too many brokers or topics.
        """
        return result_at_once(self.register_in_slices(registration, body, now_ms))

    def register_in_slices(
        self, registration: Registration, body: RegisterBrokerBody, now_ms: int
    ) -> Generator[None, None, RegisterResult]:
        """`register`, some milliseconds at a time: yields where an event loop may turn.

        Until it is done the broker counts with the data version it had before. If it is gone
        meanwhile, or registers anew, the rest of the topics is not taken.
        """
        name, broker_id, addr = (
            registration.broker_name,
            registration.broker_id,
            registration.broker_addr,
        )
        yield from self._count_topics(body)  # before anything is looked at that may change
        group = self._brokers.get(name)
        known = group.addresses if group is not None else {}
        if broker_id not in known and len(body.topics) == 1:
            # A partial table from somebody we do not know: its other topics would be missing.
            return RegisterResult(accepted=False)
        old_addr = known.get(broker_id)
        if old_addr is not None and old_addr != addr:
            rival = self._live[BrokerKey(name, old_addr)]
            if rival.data_version.state_version > body.data_version.state_version:
                # Two brokers claim one id; the one with the higher epoch keeps it.
                return RegisterResult(accepted=True)
        self._check_limits(registration, body)
        if group is None:
            group = _BrokerGroup(
                registration.cluster,
                name,
                registration.zone_name,
                bool(registration.enable_acting_master),
            )
            self._brokers[name] = group
        old_min_id = min(group.addresses, default=None)
        if group.cluster != registration.cluster:
            self._leave_cluster(group)
        group.cluster = registration.cluster
        group.zone_name = registration.zone_name
        group.enable_acting_master = bool(registration.enable_acting_master)
        self._clusters.setdefault(registration.cluster, {})[name] = None
        for other_id in [other for other, at in group.addresses.items() if at == addr]:
            if other_id != broker_id:
                del group.addresses[other_id]  # the broker changed its role
        is_new = broker_id not in group.addresses
        group.addresses[broker_id] = addr
        if old_addr is not None and old_addr != addr:
            self._drop_live(BrokerKey(name, old_addr))
        changed = is_new or self.is_changed(name, addr, body.data_version)
        key = BrokerKey(name, addr)
        before = self._live.get(key)
        if before is not None:
            self._leave_connection(key, before)
        live = self._live[key] = LiveBroker(
            registration, now_ms, DataVersion() if before is None else before.data_version
        )
        self._registered_on.setdefault(registration.connection, {})[key] = None
        yield from self._take_topics(registration, group, body, live, changed=changed)
        if self._live.get(key) is not live:
            return RegisterResult(accepted=True)
        live.data_version = body.data_version
        master_addr = ha_server_addr = None
        if broker_id != MASTER_ID:
            master_addr = group.addresses.get(MASTER_ID)
            if master_addr is not None:
                master = self._live[BrokerKey(name, master_addr)]
                ha_server_addr = master.registration.ha_server_addr
        changes = self._min_id_changes(group, old_min_id, None)
        return RegisterResult(True, master_addr, ha_server_addr, changes)

    def _take_topics(
        self,
        registration: Registration,
        group: _BrokerGroup,
        body: RegisterBrokerBody,
        live: LiveBroker,
        *,
        changed: bool,
    ) -> Generator[None, None, None]:
        name, broker_id = registration.broker_name, registration.broker_id
        is_prime_slave = (
            registration.enable_acting_master is not None
            and broker_id != MASTER_ID
            and broker_id == min(group.addresses)
        )
        if not body.topics or not (broker_id == MASTER_ID or is_prime_slave):
            return
        # Static topics change one by one, and no table of theirs is the whole one.
        if changed and self.options.delete_topic_with_broker_registration and not body.mappings:
            self._leave_other_topics(group, body)
        read_only = is_prime_slave and group.enable_acting_master
        topics = self._topics
        key = BrokerKey(name, registration.broker_addr)
        for number, (topic, config) in enumerate(body.topics.items()):
            if number and number % TOPICS_PER_SLICE == 0:
                yield
                if self._live.get(key) is not live:
                    return
                self._check_counts()
            queues = topics.get(topic)
            group.topics[topic] = None
            if queues is None:
                topics[topic] = {name: _queue_data(name, config, read_only)}
            elif changed or name not in queues:
                queues[name] = _queue_data(name, config, read_only)
        if not changed:
            return
        taken = 0
        for number, (topic, mapping) in enumerate(body.mappings.items()):
            if (number and number % MAPPINGS_PER_SLICE == 0) or taken > MAPPED_PER_SLICE:
                taken = 0
                yield
                if self._live.get(key) is not live:
                    return
            taken += self._take_mapping(group, topic, mapping)

    def _leave_other_topics(self, group: _BrokerGroup, body: RegisterBrokerBody) -> None:
        """A broker has no topics any more but those of ``body``: `sweep` forgets the others."""
        before = group.topics
        group.topics = {topic: None for topic in body.topics if topic in before}
        if len(group.topics) == len(before):
            return
        others = [topic for topic in group.mapped if topic in before and topic not in body.topics]
        for topic in others:
            del group.mapped[topic]
        self._leftovers.append((group.broker_name, before))
        self._sweep_little()

    def _take_mapping(self, group: _BrokerGroup, topic: str, mapping: Any) -> int:
        """Keep a mapping, if it is within the limits; how many bytes it has as JSON."""
        if not is_stored_topic(topic):
            _LOG.warning("mapping of %s not taken: %r names no topic", group.broker_name, topic)
            return 0
        self._drop_mapping(topic, group.broker_name)
        text = msgspec.json.encode(mapping)
        size = len(text)
        others = sum(map(len, self._mappings.get(topic, {}).values()))
        for what, found, allowed in (
            ("it has %d bytes, allowed %d", size, MAPPING_SIZE_MAX),
            ("%d bytes of that topic, allowed %d", others + size, MAPPINGS_OF_TOPIC_SIZE_MAX),
            ("%d bytes of mappings, allowed %d", self._mappings_size + size, MAPPINGS_SIZE_MAX),
        ):
            if found > allowed:
                _LOG.warning(
                    f"mapping of topic %s on %s not taken: {what}",
                    topic,
                    group.broker_name,
                    found,
                    allowed,
                )
                return size
        if b":null" in text:
            text = encode_without_none(mapping)
        self._mappings_size += len(text)
        group.mapped[topic] = None
        self._mappings.setdefault(topic, {})[group.broker_name] = text
        return size

    def _drop_mapping(self, topic: str, broker_name: str) -> None:
        group = self._brokers.get(broker_name)
        if group is not None:
            group.mapped.pop(topic, None)
        mappings = self._mappings.get(topic)
        if mappings is None:
            return
        self._mappings_size -= len(mappings.pop(broker_name, b""))
        if not mappings:
            del self._mappings[topic]

    def unregister(self, broker_name: str, broker_addr: str) -> tuple[MinBrokerIdChange, ...]:
        """A broker said goodbye (104). Announcements to make are returned."""
        changes = self._unregister(broker_name, broker_addr)
        self._sweep_little()
        return changes

    def _unregister(self, broker_name: str, broker_addr: str) -> tuple[MinBrokerIdChange, ...]:
        if not self._drop_live(BrokerKey(broker_name, broker_addr)):
            return ()
        group = self._brokers[broker_name]
        old_min_id = min(group.addresses, default=None)
        had_master = MASTER_ID in group.addresses
        for broker_id in [at for at, addr in group.addresses.items() if addr == broker_addr]:
            del group.addresses[broker_id]
        if not group.addresses:
            self._remove_broker_name(broker_name)
            return ()
        if group.enable_acting_master and had_master and MASTER_ID not in group.addresses:
            self._masterless.append((group, None))
        return self._min_id_changes(group, old_min_id, broker_addr)

    def _drop_live(self, key: BrokerKey) -> bool:
        live = self._live.pop(key, None)
        if live is None:
            return False
        self._leave_connection(key, live)
        return True

    def _leave_connection(self, key: BrokerKey, live: LiveBroker) -> None:
        connection = live.registration.connection
        keys = self._registered_on[connection]
        del keys[key]
        if not keys:
            del self._registered_on[connection]

    def _remove_broker_name(self, broker_name: str) -> None:
        group = self._brokers.pop(broker_name)
        self._leave_cluster(group)
        for topics in (group.topics, group.mapped):
            if topics:
                self._leftovers.append((broker_name, topics))

    def _sweep_little(self) -> None:
        """Forget at once what is left of all brokers that are gone, if that is little."""
        left = 0
        for _, topics in self._leftovers:
            left += 1 + len(topics)
            if left > SWEPT_AT_ONCE:
                return
        for group, _ in self._masterless:
            left += 1 + len(group.topics)
            if left > SWEPT_AT_ONCE:
                return
        self.sweep()

    def sweep(self) -> bool:
        """Forget up to SWEPT_AT_ONCE queues of brokers that are gone; False when none is left.

        A broker of that name that has come meanwhile keeps what it registered itself. Queues of
        brokers without a master become read only, as many at a time.
        """
        leftovers = self._leftovers
        count = self._close_masterless(SWEPT_AT_ONCE)
        while leftovers and count > 0:
            broker_name, topics = leftovers[0]
            group = self._brokers.get(broker_name)
            while topics and count > 0:
                count -= 1
                topic, _ = topics.popitem()
                if group is None or topic not in group.topics:
                    self._drop_queues(topic, broker_name)
                if group is None or topic not in group.mapped:
                    self._drop_mapping(topic, broker_name)
            if not topics:
                count -= 1
                leftovers.popleft()
        return bool(leftovers or self._masterless)

    def _close_masterless(self, count: int) -> int:
        """Take up to ``count`` queues out of writing; how many could be more."""
        while self._masterless and count > 0:
            group, topics = self._masterless[0]
            if topics is None:
                topics = list(group.topics)
                self._masterless[0] = group, topics
            if MASTER_ID in group.addresses or self._brokers.get(group.broker_name) is not group:
                topics.clear()  # a master is back and has said itself what may be written
            while topics and count > 0:
                count -= 1
                queue_data = self._topics.get(topics.pop(), {}).get(group.broker_name)
                if queue_data is not None:
                    queue_data.perm &= ~PERM_WRITE
            if not topics:
                count -= 1
                self._masterless.popleft()
        return count

    def _leave_cluster(self, group: _BrokerGroup) -> None:
        names = self._clusters.get(group.cluster)
        if names is not None:
            names.pop(group.broker_name, None)
            if not names:
                del self._clusters[group.cluster]

    def _count_topics(self, body: RegisterBrokerBody) -> Generator[None, None, None]:
        """Raise RemoteProtocolError if there would be too many topics; in slices."""
        if len(self._topics) + len(body.topics) <= TOPIC_COUNT_MAX:
            return
        new = 0
        for number, topic in enumerate(body.topics, 1):
            new += topic not in self._topics
            if number % TOPICS_COUNTED_A_TURN == 0:
                yield
        self._check_counts(new)

    def _check_counts(self, new_topics: int = 0) -> None:
        """Several registrations are taken in turns: each looks again at what all have brought."""
        topics = len(self._topics) + new_topics
        if topics > TOPIC_COUNT_MAX:
            raise RemoteProtocolError(f"{topics} topics, allowed {TOPIC_COUNT_MAX}")
        self._check_queues(self._queues_count())

    def _queues_count(self) -> int:
        return sum([len(group.topics) for group in self._brokers.values()])

    def _check_queues(self, queues: int) -> None:
        if queues > QUEUES_COUNT_MAX:
            raise RemoteProtocolError(
                f"{queues} topics of all brokers together, allowed {QUEUES_COUNT_MAX}"
            )

    def _check_limits(self, registration: Registration, body: RegisterBrokerBody) -> None:
        key = BrokerKey(registration.broker_name, registration.broker_addr)
        if key not in self._live and len(self._live) >= BROKER_COUNT_MAX:
            raise RemoteProtocolError(
                f"{len(self._live)} brokers are registered, allowed {BROKER_COUNT_MAX}"
            )
        group = self._brokers.get(registration.broker_name)
        members = {} if group is None else group.addresses
        if registration.broker_id not in members and len(members) >= MEMBERS_MAX:
            raise RemoteProtocolError(
                f"{len(members)} brokers are named {registration.broker_name}, "
                f"allowed {MEMBERS_MAX}"
            )
        for text in (
            registration.broker_name, registration.cluster, registration.broker_addr,
            registration.ha_server_addr, registration.zone_name or "",
        ):  # fmt: skip
            if len(text) > NAME_LENGTH_MAX:
                raise RemoteProtocolError(
                    f"{text[:80]!r}… has {len(text)} characters, allowed {NAME_LENGTH_MAX}"
                )
        queues = len(body.topics) + sum(
            len(group.topics)
            for name, group in self._brokers.items()
            if name != registration.broker_name
        )
        self._check_queues(queues)
        mappings = len(body.mappings) + sum(
            len(group.mapped)
            for name, group in self._brokers.items()
            if body.mappings and name != registration.broker_name
        )
        if mappings > MAPPINGS_COUNT_MAX:
            raise RemoteProtocolError(f"{mappings} mappings, allowed {MAPPINGS_COUNT_MAX}")

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        group = self._brokers.get(broker_name)
        if group is not None:
            group.topics.pop(topic, None)
        queues = self._topics.get(topic)
        if queues is not None:
            queues.pop(broker_name, None)
            if not queues:
                del self._topics[topic]

    def _min_id_changes(
        self, group: _BrokerGroup, old_min_id: int | None, offline_addr: str | None
    ) -> tuple[MinBrokerIdChange, ...]:
        if not self.options.notify_min_broker_id_changed or not group.addresses:
            return ()
        min_id = min(group.addresses)
        if min_id == old_min_id:
            return ()
        min_addr = group.addresses[min_id]
        live = self._live.get(BrokerKey(group.broker_name, min_addr))
        ha_addr = live.registration.ha_server_addr if live is not None else ""
        # A broker that came with the smallest id knows it; when one went, all must learn it.
        targets = tuple(
            addr
            for broker_id, addr in group.addresses.items()
            if offline_addr is not None or len(group.addresses) == 1 or broker_id != min_id
        )
        return (
            MinBrokerIdChange(group.broker_name, min_id, min_addr, offline_addr, ha_addr, targets),
        )

    def connection_closed(self, connection: Hashable) -> tuple[MinBrokerIdChange, ...]:
        """The connection is gone, and with it every broker that registered on it."""
        keys = self._registered_on.get(connection)
        return self._unregister_all([self._live[key].registration for key in keys]) if keys else ()

    def expire(self, now_ms: int) -> tuple[list[Registration], tuple[MinBrokerIdChange, ...]]:
        """Take silent brokers for gone: them, and announcements to make.

        The caller closes their connections.
        """
        silent = [
            live.registration
            for live in self._live.values()
            if now_ms - live.last_update_ms > live.registration.timeout_ms
        ]
        return silent, self._unregister_all(silent)

    def _unregister_all(
        self, registrations: Iterable[Registration]
    ) -> tuple[MinBrokerIdChange, ...]:
        changes = tuple(
            change
            for gone in list(registrations)
            for change in self._unregister(gone.broker_name, gone.broker_addr)
        )
        self._sweep_little()
        return changes

    def heard_of(self, broker_name: str, broker_addr: str, now_ms: int) -> bool:
        """A broker gave a sign of life (904, 322); False if it is not registered."""
        live = self._live.get(BrokerKey(broker_name, broker_addr))
        if live is None:
            return False
        live.last_update_ms = now_ms
        return True

    def data_version(self, broker_name: str, broker_addr: str) -> DataVersion | None:
        """The version of the topics that a broker registered last."""
        live = self._live.get(BrokerKey(broker_name, broker_addr))
        return live.data_version if live is not None else None

    def is_changed(self, broker_name: str, broker_addr: str, data_version: DataVersion) -> bool:
        """Whether a broker's topics are not those that it registered last."""
        return self.data_version(broker_name, broker_addr) != data_version

    # Topics

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or on one cluster's brokers (216)."""
        if not cluster:
            for broker_name in list(self._topics.get(topic, ())):
                self._drop_queues(topic, broker_name)
            for broker_name in list(self._mappings.get(topic, ())):
                self._drop_mapping(topic, broker_name)
            return
        for broker_name in list(self._clusters.get(cluster, ())):
            self._drop_queues(topic, broker_name)
            self._drop_mapping(topic, broker_name)

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """Queue entries from elsewhere (217); those that name unknown brokers are dropped.

        Raises:
            RemoteProtocolError: there are too many topics, in all or of all brokers, or it is no
                name of one.
        """
        if topic not in self._topics:
            if len(self._topics) >= TOPIC_COUNT_MAX:
                raise RemoteProtocolError(f"{len(self._topics)} topics, allowed {TOPIC_COUNT_MAX}")
            if not is_stored_topic(topic):
                raise RemoteProtocolError(f"{topic[:127]!r} is no name of a topic")
        taken: dict[str, QueueData] = {}
        new = 0
        for queue_data in queue_datas:
            group = self._brokers.get(queue_data.broker_name or "")
            if group is not None:
                name = queue_data.broker_name = group.broker_name  # one text for all its topics
                new += topic not in group.topics and name not in taken
                taken[name] = queue_data
        if new:
            self._check_queues(self._queues_count() + new)
        for name, queue_data in taken.items():
            self._brokers[name].topics[topic] = None
            self._topics.setdefault(topic, {})[name] = queue_data

    def change_write_perm(self, broker_name: str, *, writable: bool) -> Generator[None, None, int]:
        """Take a broker's topics out of writing, or back (205, 327); how many there are.

        Yields about each millisecond.

        The next registration with a new data version puts back what the broker says.
        """
        group = self._brokers.get(broker_name)
        if group is None:
            return 0
        for number, topic in enumerate(list(group.topics)):
            if number % TOPICS_SHOWN_AT_ONCE == TOPICS_SHOWN_AT_ONCE - 1:
                yield
            queue_data = self._topics.get(topic, {}).get(broker_name)
            if queue_data is not None:
                queue_data.perm = PERM_READ_WRITE if writable else queue_data.perm & ~PERM_WRITE
        return len(group.topics)

    # Answers

    def is_little(self, topic: str) -> bool:
        """Whether the route of a topic is made and written in some milliseconds, as most are."""
        queues = self._topics.get(topic)
        if queues is None:
            return True
        if len(queues) > LITTLE_ROUTE_BROKERS:
            return False
        mappings = self._mappings.get(topic)
        if mappings and sum(map(len, mappings.values())) > LITTLE_ROUTE_MAPPINGS:
            return False
        if len(queues) * MEMBERS_MAX <= LITTLE_ROUTE_ADDRESSES:
            return True
        groups = [self._brokers.get(broker_name) for broker_name in queues]
        addresses = sum([len(group.addresses) for group in groups if group is not None])
        return addresses <= LITTLE_ROUTE_ADDRESSES

    def route(self, topic: str, zone_name: str | None = None) -> TopicRouteData | None:
        """Where a topic is (105), or None.

        Args:
            topic: its name.
            zone_name: only brokers of this zone, and those without a master. There may be none:
                that is a route without brokers, as of Apache's name server, and not None.
        """
        queues = self._topics.get(topic)
        if queues is None:
            return None
        route = TopicRouteData()
        if not self._show(route, topic, zone_name, queues.items()):
            return None
        texts = self._mapping_texts(topic)
        if texts:
            route.topic_queue_mapping_by_broker = {
                name: msgspec.json.decode(text) for name, text in texts.items()
            }
        return route

    def route_in_slices(
        self, topic: str, zone_name: str | None = None
    ) -> Generator[None, None, TopicRouteData | None]:
        """`route` of a topic on any number of brokers, its mappings as texts."""
        route = TopicRouteData()
        queues = list(self._topics.get(topic, {}).items())
        is_there = False
        for start in range(0, len(queues), BROKERS_SHOWN_AT_ONCE):
            some = queues[start : start + BROKERS_SHOWN_AT_ONCE]
            is_there |= self._show(route, topic, zone_name, some)
            yield
        if not is_there:
            return None
        route.topic_queue_mapping_by_broker = self._mapping_texts(topic)
        return route

    def _show(
        self,
        route: TopicRouteData,
        topic: str,
        zone_name: str | None,
        queues: Iterable[tuple[str, QueueData]],
    ) -> bool:
        """Add a topic's queues on some brokers to its route; whether they have it, in any zone."""
        # Members of a group learn its ids from the route of such a topic: they want the true ones.
        acts = self.options.support_acting_master and not topic.startswith(
            SYNC_BROKER_MEMBER_GROUP_PREFIX
        )
        is_there = False
        for broker_name, queue_data in queues:
            group = self._brokers.get(broker_name)
            if group is None or topic not in group.topics:
                continue  # it is gone, and has not said the topic since it is back
            is_there = True
            broker_data = group.broker_data()
            if acts:
                _act_as_master(broker_data, queue_data)
            if zone_name is not None and not _in_zone(broker_data, zone_name):
                continue
            route.broker_datas.append(broker_data)
            route.queue_datas.append(queue_data)
        return is_there

    def _mapping_texts(self, topic: str) -> dict[str, msgspec.Raw] | None:
        mappings = self._mappings.get(topic)
        if not mappings:
            return None
        brokers = self._brokers
        texts = {
            name: msgspec.Raw(text)
            for name, text in mappings.items()
            if name in brokers and topic in brokers[name].mapped
        }
        return texts or None

    def cluster_info(self) -> ClusterInfo:
        """Everything that is registered (106)."""
        return ClusterInfo(
            broker_addr_table={name: group.broker_data() for name, group in self._brokers.items()},
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The addresses of a broker name (901); none if it is unknown."""
        group = self._brokers.get(broker_name)
        return BrokerMemberGroup(
            broker_addrs=dict(group.addresses) if group is not None else {},
            broker_name=broker_name,
            cluster=cluster,
        )

    def all_topics(self) -> TopicList:
        """All topics (206)."""
        return TopicList(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> Generator[None, None, TopicList]:
        """Topics with queues on a cluster's brokers (224); yields about each millisecond."""
        brokers = self._clusters.get(cluster, {}).keys()
        found: list[str] = []
        done = 0
        for topic in list(self._topics):
            queues = self._topics.get(topic, {}).keys()
            # The shorter is looked through; ten names of it take the time of a topic.
            done += 10 + min(len(brokers), len(queues))
            if done > TOPICS_SHOWN_AT_ONCE * 10:
                done = 0
                yield
            if not brokers.isdisjoint(queues):
                found.append(topic)
        return TopicList(topic_list=found)

    def system_topics(self) -> TopicList:
        """The topics named after clusters and brokers, and some broker's address (304)."""
        names = dict.fromkeys(
            name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)
        )
        address = next((group.broker_data().address() for group in self._brokers.values()), None)
        return TopicList(broker_addr=address, topic_list=list(names))

    def unit_topics(
        self, *, with_flags: int, without_flags: int = 0
    ) -> Generator[None, None, TopicList]:
        """Topics with all of some flags and none of others (311, 312, 313); yields as above."""
        found: list[str] = []
        for number, topic in enumerate(list(self._topics)):
            if number % TOPICS_SHOWN_AT_ONCE == TOPICS_SHOWN_AT_ONCE - 1:
                yield
            queues = self._topics.get(topic)
            flags = next(iter(queues.values())).topic_sys_flag if queues else 0
            if flags & with_flags == with_flags and not flags & without_flags:
                found.append(topic)
        return TopicList(topic_list=found)

    @property
    def broker_count(self) -> int:
        """Brokers that are registered, slaves too."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Topics that some broker registered."""
        return len(self._topics)

    def check(self) -> None:
        """Assert what is always true (for tests and OBERTH_VERIFY)."""
        for cluster, names in self._clusters.items():
            assert names, cluster
            assert all(self._brokers[name].cluster == cluster for name in names), cluster
        for name, group in self._brokers.items():
            assert group.addresses, name
            assert name in self._clusters[group.cluster], name
            assert len(set(group.addresses.values())) == len(group.addresses), name
        gone = {(topic, name) for name, topics in self._leftovers for topic in topics}
        for topic, queues in self._topics.items():
            assert queues, topic
            for name in queues:
                owner = self._brokers.get(name)
                has_it = owner is not None and topic in owner.topics
                assert has_it or (topic, name) in gone, topic
        for name, group in self._brokers.items():
            assert all(name in self._topics[topic] for topic in group.topics), name
        for key, live in self._live.items():
            registration = live.registration
            assert key == (registration.broker_name, registration.broker_addr)
            assert key in self._registered_on[registration.connection], key
        assert sum(map(len, self._registered_on.values())) == len(self._live)
        assert all(self._registered_on.values())
        assert set(self._live) == {
            BrokerKey(name, addr)
            for name, group in self._brokers.items()
            for addr in group.addresses.values()
        }


def _queue_data(broker_name: str, config: RegisteredTopic, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=config.perm & ~PERM_WRITE if read_only else config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )


def _in_zone(broker_data: BrokerData, zone_name: str) -> bool:
    if MASTER_ID not in broker_data.broker_addrs:
        return True
    return (broker_data.zone_name or "").lower() == zone_name.lower()


def _act_as_master(broker_data: BrokerData, queue_data: QueueData) -> None:
    addresses = broker_data.broker_addrs
    if (
        broker_data.enable_acting_master
        and MASTER_ID not in addresses
        and not queue_data.perm & PERM_WRITE
    ):
        min_id = min(addresses)
        broker_data.broker_addrs = {MASTER_ID: addresses[min_id]} | {
            broker_id: addr for broker_id, addr in addresses.items() if broker_id != min_id
        }
