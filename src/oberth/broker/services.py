"""Services: what works in one broker with a life of its own, or is shared by processors.

Each is given the parts and services that it takes, in the order in which they stand on each other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from oberth.broker.acl.access_control import AccessControl
from oberth.broker.acl.needs import ANY_NAME
from oberth.broker.acl.users import user_of_json
from oberth.broker.acting_master import ActingMaster
from oberth.broker.config_changes import ConfigChanges
from oberth.broker.consumer_filters import ConsumerFilters
from oberth.broker.controlled_ha import ControlledHAService
from oberth.broker.deletions import Deletions
from oberth.broker.dispatching import Dispatching
from oberth.broker.escape import Escape
from oberth.broker.ha_service import HAService
from oberth.broker.lite.lite_service import LiteService
from oberth.broker.log_comparison import LogComparison
from oberth.broker.old_messages import OldMessages
from oberth.broker.peer_brokers import PeerBrokers
from oberth.broker.pop.check_point import retried_topic
from oberth.broker.pop.pop_service import PopService
from oberth.broker.registration import Registration
from oberth.broker.runtime_info import RuntimeInfo
from oberth.broker.sender_brake import SenderBrake
from oberth.broker.slave_tables import SlaveTables
from oberth.broker.static_topic_cleaner import StaticTopicCleaner
from oberth.broker.static_topic_strays import StaticTopicStrays
from oberth.broker.table_files import TableFiles
from oberth.broker.tasks import Tasks
from oberth.broker.timers import TimerService
from oberth.broker.transaction_check import ProducerCheck
from oberth.broker.transactions import Transactions
from oberth.broker.unused_groups import UnusedGroups
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.message_store_config import FlushDiskType
from oberth.remoting.aio.client import RemotingClient, own_requests
from oberth.remoting.aio.processors import SERVER_BODY_SIZE_MAX, ProcessorTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.parts import FileKeeper, Parts
    from oberth.store.message_store import MessageStore


class Services:
    """The services of one broker.

    Attributes:
        processors: which code is served by what; filled before the servers start.
        client: for what the broker asks of others.
        keepers: services with files of their own, in the order in which they are loaded.

    Raises:
        OptionError: options that do not go together.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.tasks = Tasks()
        self.processors = ProcessorTable(SERVER_BODY_SIZE_MAX)
        self.old_messages = OldMessages(parts.store, self.tasks.start)
        self.client = _inner_client(parts.config, self.processors)
        self._make_tables(parts)
        self.ha = self._make_ha(parts)
        self._make_dispatching(parts)
        self._make_watches(parts)
        self._make_rules(parts)
        self.timers = self._make_timers(parts)
        self._make_pops(parts)
        self._make_cleaners(parts)
        self._stand_in(parts)
        self.keepers: list[FileKeeper] = [self.access, self.expressions]
        if self.timers is not None:
            self.keepers.append(self.timers)
        self.keepers.append(self.pop)
        if isinstance(self.ha, ControlledHAService):
            self.keepers.append(self.ha)
            self.runtime_info.sources.append(self.ha.runtime_info)

    def _make_tables(self, parts: Parts) -> None:
        """What keeps tables: in files, and at a slave like its master's."""
        self.table_files = TableFiles(
            config=parts.config,
            store_config=parts.store_config,
            config_dir=parts.config_dir,
            files=parts.files,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            schedule=parts.schedule,
            now_ms=parts.now_ms,
            start_task=self.tasks.start,
        )
        self.tables = SlaveTables(
            client=self.client,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            schedule=parts.schedule,
            tables_replaced=self._tables_replaced,
        )

    def _make_dispatching(self, parts: Parts) -> None:
        """What makes messages readable and tells others of this broker."""
        self.dispatching = Dispatching(
            parts.store,
            parts.hold,
            self.ha,
            follows=parts.follows,
            waits_for_disk=parts.store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            or isinstance(self.ha, ControlledHAService),
            behind_tables=self.table_files.behind_tables,
        )
        self.registration = Registration(
            config=parts.config,
            own=parts.own,
            topics=parts.topics,
            static_topics=parts.static_topics,
            ha=self.ha,
            client=self.client,
            start_task=self.tasks.start,
            answer=self.table_files.answer_when_on_disk,
        )
        self.peers = PeerBrokers(config=parts.config, client=self.client)

    def _make_watches(self, parts: Parts) -> None:
        """What looks at the settings, at senders and at the master's log."""
        self.changes = ConfigChanges(parts.config, parts.store_config, parts.files, parts.now_ms)
        self.brake = SenderBrake(
            store=parts.store,
            offsets=parts.offsets,
            consumers=parts.consumers,
            limit_bytes=lambda: (
                parts.in_memory_bytes
                if parts.config.slow_senders_behind_bytes < 0
                else parts.config.slow_senders_behind_bytes
            ),
        )
        self.runtime_info = RuntimeInfo(parts, lambda: self.processors.stages)
        self.comparison = LogComparison(
            ha=self.ha,
            store=parts.store,
            client=self.client,
            # Under a controller epochs say where a log is cut.
            on_compared=self.ha.part if parts.role is None else lambda _: None,
        )
        self.runtime_info.sources.append(self.comparison.runtime_info)
        if parts.role is None:
            self.ha.look_at_log = self.comparison.before_following
            self.ha.on_parted = self._parted

    def _make_rules(self, parts: Parts) -> None:
        """Who may do what, and which messages are whose."""
        self.access = AccessControl(
            parts.config, parts.config_dir, partial(_real_topic, parts.store), parts.files
        )
        self.transactions = Transactions(
            parts.store,
            parts.offsets,
            parts.config,
            lambda: parts.own.store_host,
            parts.now_ms,
            ProducerCheck(parts.producers, parts.config.broker_name, self.access.may_publish),
            parts.producers.has_clients,
            lambda topic: parts.topics.create_internal(topic, 1),
        )
        parts.producers.group_listeners.append(self.transactions.group_came_back)
        self.expressions = ConsumerFilters(
            config=parts.config,
            config_dir=parts.config_dir,
            files=parts.files,
            store=parts.store,
            consumers=parts.consumers,
            now_ms=parts.now_ms,
            start_task=self.tasks.start,
        )

    def _make_timers(self, parts: Parts) -> TimerService | None:
        """Without a timer wheel there are none."""
        if not parts.store_config.timer_wheel_enable:
            return None
        timers = TimerService(
            store_config=parts.store_config,
            own=parts.own,
            store=parts.store,
            now_ms=parts.now_ms,
            dispatch_soon=self.dispatching.soon,
            delivers=lambda: self.ha.delivers,
            old_messages=self.old_messages,
        )
        self.runtime_info.sources.append(timers.store.runtime_info)
        self.tables.timers = timers
        return timers

    def _make_pops(self, parts: Parts) -> None:
        """POP, and lite topics."""
        self.pop = PopService(
            config=parts.config,
            store_config=parts.store_config,
            config_dir=parts.config_dir,
            files=parts.files,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            timers=self.timers,
            in_memory_bytes=parts.in_memory_bytes,
            hold_limits=parts.hold_limits,
            now_ms=parts.now_ms,
            dispatch_now=self.dispatching.now,
            dispatch_soon=self.dispatching.soon,
            start_task=self.tasks.start,
            old_messages=self.old_messages,
            delivers=lambda: self.ha.delivers,
        )
        self.lite = LiteService(
            config=parts.config,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            peers=self.peers,
            is_slave=self.ha.is_slave,
            hold_limits=parts.hold_limits,
            now_ms=parts.now_ms,
            arrival_listeners=self.dispatching.arrival_listeners,
            start_task=self.tasks.start,
        )

    def _make_cleaners(self, parts: Parts) -> None:
        """What clears up behind topics and groups."""
        self.cleaner = StaticTopicCleaner(
            store_config=parts.store_config,
            store=parts.store,
            static_topics=parts.static_topics,
            offsets=parts.offsets,
            peers=self.peers,
            is_slave=self.ha.is_slave,
            now_ms=parts.now_ms,
            dispatch_now=self.dispatching.now,
            start_task=self.tasks.start,
        )
        self.strays = StaticTopicStrays(
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            offsets=parts.offsets,
            peers=self.peers,
            is_slave=self.ha.is_slave,
            now_ms=parts.now_ms,
            start_task=self.tasks.start,
        )
        self.unused_groups = UnusedGroups(
            config=parts.config,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            is_slave=self.ha.is_slave,
            now_ms=parts.now_ms,
            start_task=self.tasks.start,
            topics_written_soon=self.table_files.topics_written_soon,
        )
        self.deletions = Deletions(
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            stats=parts.stats,
            pop=self.pop,
            lite=self.lite,
            wake_topic=self.dispatching.wake_topic,
        )

    def _stand_in(self, parts: Parts) -> None:
        """What a slave needs to act for its master; nothing without enableSlaveActingMaster."""
        config = parts.config
        self.escape = Escape(config=config, peers=self.peers, start_task=self.tasks.start)
        self.acting = ActingMaster(
            config=config,
            is_alone=parts.store_config.total_replicas <= 1 or config.skip_pre_online,
            own=parts.own,
            store=parts.store,
            ha=self.ha,
            registration=self.registration,
            tables=self.tables,
            transactions=self.transactions,
            escape=self.escape,
            client=self.client,
        )
        if not self.acting.is_enabled:
            return
        self.runtime_info.sources.append(self.acting.runtime_info)
        if self.ha.is_slave:
            parts.schedule.append = self.pop.append = self.escape.append
            self.pop.keeps_in_memory = lambda: True
            self.pop.may_put_off = False
            if self.timers is not None:
                self.timers.store.append = self.escape.append

    def _parted(self) -> None:
        """A slave's log is another than its master's, or is no more: name servers hear of it."""
        if self.acting.is_enabled:
            self.acting.look_soon()
            return
        registration = self.registration
        registration.is_isolated = self.ha.parted_at is not None
        tell = registration.withdraw if registration.is_isolated else registration.register_all
        self.tasks.start(tell())

    def _make_ha(self, parts: Parts) -> HAService:
        kind: Callable[..., HAService] = HAService
        if parts.role is not None:
            kind = partial(
                ControlledHAService, role=parts.role, files=parts.files, root=parts.store.root
            )
        return kind(
            config=parts.config,
            store_config=parts.store_config,
            store=parts.store,
            topics=parts.topics,
            tables=self.tables,
            client=self.client,
            now_ms=parts.now_ms,
            dispatch_soon=lambda: self.dispatching.soon(),
        )

    def _tables_replaced(self, topics: list[str] | None, are_groups_new: bool) -> None:
        """A slave has taken over its master's tables: they go to disk and to the name servers.

        Args:
            topics: that are new, others or gone; None if none was replaced.
            are_groups_new: whether groups were replaced.
        """
        if topics is not None:
            self._parts.topics_changed(topics)
        if topics is not None or are_groups_new:
            self._parts.groups_changed([])
        self.table_files.write_soon()


def _inner_client(config: BrokerConfig, processors: ProcessorTable) -> RemotingClient:
    credentials = config.inner_client_authentication_credentials
    options = own_requests(config.tls_mode, config.tls_client_trust_cert_path)
    if not credentials:
        return RemotingClient(processors, options)
    from oberth.broker.acl.inner_client import SigningClient  # noqa: PLC0415 - only with access control

    access_key, secret_key = user_of_json(
        credentials, "innerClientAuthenticationCredentials", "accessKey", "secretKey"
    )
    return SigningClient(processors, options, access_key, secret_key)


def _real_topic(store: MessageStore, commit_log_offset: int) -> str | None:
    """The topic of a record, what its sender called it; None where no record starts.

    ANY_NAME where none starts yet: a request that waits, for a thread or its turn, may find one.
    """
    dispatched = store.reput.offset
    message = store.find_message(commit_log_offset)
    if message is None:
        return ANY_NAME if commit_log_offset >= dispatched else None
    if names.is_system_topic(message.topic):
        return message.properties.get(p.REAL_TOPIC, message.topic)
    # What waits for a group after a pop, under a name that could be another group's, is its own.
    origin = message.properties.get(p.ORIGIN_GROUP, "")
    retried = retried_topic(message.topic, origin) if origin else None
    return message.topic if retried is None else names.pop_retry_topic(retried, origin, v2=True)
