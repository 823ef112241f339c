"""Broker: owns the store, the tables, the servers and the clock of one broker.

Lifecycle: ``async with Broker(config, store_config) as broker``. Starting loads ``config/`` and
the store, listens, and registers; a broker that is returned serves. Stopping is the reverse:
unregister, stop accepting, answer held pulls, finish what is at work, write the tables, close the
store.

Everything but blocking calls runs on one event loop, without locks. A burst of sends from one read
is one append; the dispatch that makes them readable follows in the same turn of the loop, wakes
held pulls, and their answers leave together. What blocks (index queries, syncs of files, cleaning)
runs in named threads. RocketMQ: BrokerController.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from oberth.broker.acl.access_control import AccessControl
from oberth.broker.acl.plain_acl_admin import PlainAclAdminProcessor
from oberth.broker.acl.processor import AuthAdminProcessor
from oberth.broker.acl.users import user_of_json
from oberth.broker.broker_config import (
    FAST_PORT_DISTANCE,
    BrokerConfig,
)
from oberth.broker.cold_reads import ColdReads
from oberth.broker.config_file import ConfigFile, refuse_rocksdb
from oberth.broker.consumer_filters import ConsumerFilters
from oberth.broker.consumer_offsets import ConsumerOffsets
from oberth.broker.consumers import ConsumerTable
from oberth.broker.delay_progress import DelayProgress
from oberth.broker.expressions import Expressions
from oberth.broker.ha_service import HAService
from oberth.broker.http_endpoint import HttpEndpoint
from oberth.broker.kernel_loader import KernelLoader
from oberth.broker.lmq_consumer_offsets import LmqConsumerOffsets
from oberth.broker.peer_brokers import PeerBrokers
from oberth.broker.pop.pop_service import PopService
from oberth.broker.processors.ack import AckMessageProcessor
from oberth.broker.processors.admin_broker import BrokerAdminProcessor
from oberth.broker.processors.admin_groups import GroupAdminProcessor
from oberth.broker.processors.admin_lite import LiteAdminProcessor
from oberth.broker.processors.admin_offsets import OffsetAdminProcessor
from oberth.broker.processors.admin_replicas import ReplicaAdminProcessor
from oberth.broker.processors.admin_store import StoreAdminProcessor
from oberth.broker.processors.admin_topics import TopicAdminProcessor
from oberth.broker.processors.assignment import AssignmentProcessor
from oberth.broker.processors.client import ClientManageProcessor
from oberth.broker.processors.consumer import ConsumerManageProcessor
from oberth.broker.processors.end_transaction import EndTransactionProcessor
from oberth.broker.processors.pop import PopMessageProcessor
from oberth.broker.processors.pop_lite import PopLiteMessageProcessor
from oberth.broker.processors.pull import PullMessageProcessor
from oberth.broker.processors.query import QueryMessageProcessor
from oberth.broker.processors.recall import RecallMessageProcessor
from oberth.broker.processors.relay import RelayProcessor
from oberth.broker.processors.reply import ReplyMessageProcessor
from oberth.broker.processors.retention import RetentionProcessor
from oberth.broker.processors.send import SendMessageProcessor
from oberth.broker.processors.static_topic import StaticTopicProcessor
from oberth.broker.producers import ProducerTable
from oberth.broker.pull_request_hold import HeldPull, PullRequestHold
from oberth.broker.rebalance_locks import RebalanceLocks
from oberth.broker.registration import Registration
from oberth.broker.runtime_info import StoreRates, StoreTotals
from oberth.broker.schedule_service import TICK_MS, ScheduleService
from oberth.broker.static_topic_cleaner import StaticTopicCleaner
from oberth.broker.static_topic_strays import StaticTopicStrays
from oberth.broker.static_topics import StaticTopics
from oberth.broker.stats import TOPIC_PUT_SIZE, BrokerStats
from oberth.broker.subscription_groups import SubscriptionGroups
from oberth.broker.timers import TimerService
from oberth.broker.topic_configs import TopicConfigs
from oberth.broker.transactions import Transactions
from oberth.broker.unique_ids import UniqueIds
from oberth.errors import OberthError, OptionError, RemotingError
from oberth.formats import names
from oberth.formats.data_version import DataVersion
from oberth.formats.message import MessageExt, encode_host
from oberth.formats.message_store_config import (
    BrokerRole,
    Dispatch,
    FlushDiskType,
    MessageStoreConfig,
)
from oberth.formats.options import update_option
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel, ChannelOptions
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable, Stage
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.headers.transaction import CheckTransactionStateRequestHeader
from oberth.store.files import FileSystem
from oberth.store.following_store import FollowingStore
from oberth.store.message_store import MessageStore
from oberth.store.messages import PutMessageStatus

_LOG: Final = logging.getLogger("oberth.broker")

SECOND_MS: Final = 1000
EXPIRY_SCAN_MS: Final = 10_000
"""How often clients and locks are looked over for silence."""

DISPATCH_S: Final = 0.005
"""How long messages may wait to be dispatched with others, while nobody waits for them. Within it a
single sender brings enough for the compiled kernels."""

FOLLOW_S: Final = 0.003
FOLLOW_MAX_S: Final = 0.05
"""With ``dispatch=spark``: between two looks at the dispatcher, and when it long did nothing."""

BULK_DISPATCH_BYTES: Final = 6 * 1024
"""Appended bytes from which the compiled kernels dispatch: 130 us for any number of messages, where
one by one takes 11 us each (128-byte bodies, two cores shared with the clients)."""

OFFSETS_AT_A_TIME: Final = 250
CONFIGS_AT_A_TIME: Final = 20
"""Entries of a table that are made text in one turn of the loop: a millisecond."""

TRANSACTION_STEP_PAUSE_S: Final = 0.005
"""Between two steps of a transaction check, so that sends go on."""

STOP_GRACE_S: Final = 5.0
HA_PORT_DEFAULT: Final = 10_912
PROC_MEMORY: Final = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")

FAST_PORT_EXCLUDED: Final = (
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.POP_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
)
"""Codes that the fast port does not serve."""


def wall_clock_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Part(Protocol):
    """A service of a broker that keeps files beside the store."""

    def load(self) -> None:
        """Read them; the store is loaded and not started yet. In a thread, may block."""

    def close(self) -> None:
        """Write them; the store is still open, nobody is served any more. In a thread, may block.

        Only called after `load`.
        """


class TopicsWrittenOnce:
    """However many topics change within, their file is written once, at the end.

    ``with broker.topics_written_once:`` for bursts, before any of them is answered: a file of ten
    thousand topics takes 5 ms. Not to be nested.
    """

    __slots__ = ("_broker", "is_held")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.is_held = False

    def __enter__(self) -> None:
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False
        self._broker.write_topics_if_held()


class TopicsWrittenSoon:
    """What becomes of topics within is written within a second, and answered before.

    ``with broker.topics_written_soon:`` for topics that whoever needs them makes again: a kill may
    forget them.
    """

    __slots__ = ("is_held",)

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class Broker:
    """One broker.

    Args:
        config: what it is.
        store_config: where and how it stores.
        clock_ms: the wall clock.
        files: where the store keeps its files; None: the operating system's.
        background: False for a store without threads: the caller flushes (`store.flush`) and
            makes checkpoints when it wants.

    Attributes:
        expressions: the engine for filters other than by tag, or None for none.
        extend: called with the table of processors before the servers start; for what is built on
            top of the broker.
        closing: called when the broker stops, before the store closes.
        parts: services with files of their own, in the order in which they are loaded.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: FileSystem | None = None,
        background: bool = True,
    ) -> None:
        self.config = config
        self.store_config = store_config
        self.now_ms = clock_ms
        self._background = background
        self.started_at_ms = clock_ms()
        self.expressions: Expressions | None = None
        self.extend: list[Callable[[ProcessorTable], None]] = []
        self.closing: list[Callable[[], None]] = []
        self.parts: list[Part] = []
        self.ticks: list[Callable[[int], None]] = []
        """Called with the time about every TICK_MS."""
        self.arrival_listeners: list[Callable[[str, int, int, int | None, bytes], None]] = []
        """Called with topic, queue id, new end of the queue, tags code, properties of arrivals;
        a tags code None stands for several messages of any kind."""
        self.runtime_info_sources: list[Callable[[], dict[str, str]]] = []
        """Give further keys of GET_BROKER_RUNTIME_INFO."""
        self.reset_listeners: list[Callable[[str, str, int], None]] = []
        """Called with group, topic and queue id when offsets are reset."""

        root = Path(os.path.expanduser(store_config.store_path_root_dir)).absolute()
        self.config_dir = root / "config"
        self._topics_file = ConfigFile(self.config_dir / "topics.json")
        self._groups_file = ConfigFile(self.config_dir / "subscriptionGroup.json")
        has_light_queues = store_config.enable_lmq
        self._offsets_file = ConfigFile(
            self.config_dir
            / ("lmqConsumerOffset.json" if has_light_queues else "consumerOffset.json")
        )
        self._delay_file = ConfigFile(self.config_dir / "delayOffset.json")
        self._files_written: set[ConfigFile] = set()
        self._loading = True
        self.topics_written_once = TopicsWrittenOnce(self)
        self.topics_written_soon = TopicsWrittenSoon()
        self._topics_unwritten = False

        self.stats = BrokerStats(config.broker_cluster_name, self.started_at_ms)
        self.rates = StoreRates()
        self.put_failures = 0
        self.topics = TopicConfigs(config, self._topics_changed, clock_ms)
        self.static_topics = StaticTopics(self.config_dir, config.broker_name, clock_ms)
        self.peers = PeerBrokers(self)
        self.groups = SubscriptionGroups(config, self._groups_changed, clock_ms)
        offsets_kind = LmqConsumerOffsets if has_light_queues else ConsumerOffsets
        self.offsets = offsets_kind(config.consumer_offset_update_version_step)
        if has_light_queues:
            self.topics.light_topic = TopicConfig(
                topic_name=names.LMQ_PREFIX, read_queue_nums=1, write_queue_nums=1
            )
            self.groups.has_light_groups = True
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self.locks = RebalanceLocks(config.rebalance_lock_max_live_time_ms)
        self.hold = PullRequestHold()
        self.cold_reads = ColdReads()
        self._follows = store_config.dispatch is Dispatch.SPARK
        if self._follows and config.enable_calc_filter_bit_map:
            raise OptionError("dispatch=spark does not go with enableCalcFilterBitMap=true")
        self.store = (FollowingStore if self._follows else MessageStore)(
            store_config,
            files=files,
            clock_ms=clock_ms,
            topic_attributes=self.topics.attributes,
        )
        self.schedule = ScheduleService(
            self.store, lambda: self.store_host, config.delay_offset_update_version_step
        )
        self._delay_progress = DelayProgress(self.store, self.schedule)
        self.transactions = Transactions(
            self.store,
            self.offsets,
            config,
            lambda: self.store_host,
            clock_ms,
            self._check_transaction,
            self.producers.has_clients,
            lambda topic: self.topics.create_internal(topic, 1),
        )
        self.config_version = DataVersion()
        self.sends_refused_until_ms = config.start_accept_send_request_timestamp
        self.waits_for_disk = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.in_memory_bytes = (
            _physical_memory() * store_config.access_message_in_memory_max_ratio // 100
        )

        self.ip = config.broker_ip1 or _reachable_ip(config.listen_host)
        self.address = Address(self.ip, config.listen_port)
        self.ha_address = f"{config.broker_ip2 or self.ip}:{store_config.ha_listen_port}"
        self.store_host = encode_host(_resolve(self.ip), config.listen_port)
        self.unique_ids = UniqueIds(self.store_host[:-4])

        self.access = AccessControl(config, self.config_dir, self._real_topic)
        self.parts.append(self.access)
        self.ticks.append(self.access.on_time)
        self.http: HttpEndpoint | None = None
        self.ha = HAService(self)
        self.expressions = ConsumerFilters(self)
        self.timers: TimerService | None = None
        if store_config.timer_wheel_enable:
            self.timers = TimerService(self)
        self.pop = PopService(self)
        self.assignment = AssignmentProcessor(self)
        self.pops = PopMessageProcessor(self, self.pop)
        self.lite_pops = PopLiteMessageProcessor(self)
        self.send = SendMessageProcessor(self)
        self.pull = PullMessageProcessor(self)
        self.clients = ClientManageProcessor(self)
        self.processors = ProcessorTable()
        self._stages: dict[str, Stage] = {}
        self.server: RemotingServer | None = None
        self.fast_server: RemotingServer | None = None
        self.client: RemotingClient | None = None
        self.registration: Registration | None = None

        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._woken: list[HeldPull] = []
        self.dispatch_pending = False
        self._dispatched_at = 0.0
        self._dispatch_waits = False
        # With dispatch=spark: the next look at the dispatcher's progress, and how soon it comes.
        self._follow_handle: asyncio.TimerHandle | None = None
        self._follow_s = FOLLOW_S
        self._durable: deque[tuple[Callable[[PutMessageStatus], None], PutMessageStatus]] = deque()
        self._durable_scheduled = False
        self._next_second_ms = 0
        self._next_scan_ms = 0
        self._next_offsets_ms = 0
        self._next_delay_ms = 0
        self._next_check_ms = 0
        self._cleaner = StaticTopicCleaner(self)
        self.ticks.append(self._cleaner.on_time)
        self.static_strays = StaticTopicStrays(self)
        self.ticks.append(self.static_strays.on_time)
        self._persisting = False
        self._day = 0
        self._kernels: KernelLoader | None = None

    # ---------------------------------------------------------------------------------- lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Load, listen, register.

        Raises:
            ConfigFormatError: a file of ``config/`` and its back-up cannot be read.
            StoreError: the store cannot be opened; see MessageStore.load.
            OSError: a port is taken, or a directory cannot be written.
        """
        self._loop = asyncio.get_running_loop()
        # Recovery may take its time, and a name server may share this loop.
        await asyncio.to_thread(self._load)
        try:
            self._register_processors()
            await self._listen()
            now_ms = self.now_ms()
            self._next_second_ms = now_ms
            self._next_scan_ms = now_ms + EXPIRY_SCAN_MS
            self._next_offsets_ms = now_ms + self.config.flush_consumer_offset_interval_ms
            self._next_delay_ms = now_ms + self.store_config.flush_delay_offset_interval_ms
            self._next_check_ms = now_ms + self.config.transaction_check_interval_ms
            self._day = now_ms // 86_400_000
            self._kernels = KernelLoader(self.store.dispatched_offset)
            self._tick()
            self.client = self._inner_client()
            await self._start_replication()
            self.registration = Registration(self, self.client)
            await self.registration.start()
            if self.config.http_port >= 0:
                self.http = HttpEndpoint(self)
                await self.http.start(self.config.http_address, self.config.http_port)
        except BaseException:
            await self.aclose()
            raise

    def _load(self) -> None:
        refuse_rocksdb(self.config_dir)
        self._topics_file.load(self.topics.read)
        self.static_topics.load()
        self._groups_file.load(self.groups.read)
        if not self._offsets_file.load(self.offsets.read) and self.store_config.enable_lmq:
            # Light queues were switched on after groups had come some way.
            ConfigFile(self.config_dir / "consumerOffset.json").load(self.offsets.read)
        self._delay_file.load(self.schedule.read)
        self.store.load()
        self._delay_progress.load()
        self._clamp_offsets()
        for part in self.parts:
            part.load()
        self.topics.add_system_topics(max(self.schedule.level_max, 1))
        self.groups.add_system_groups()
        self._loading = False
        self._write_topics()
        self._write_groups()
        self.store.set_arrival_listener(self._on_arrival)
        self.store.dispatcher.bulk_arrival_listener = self._on_arrivals
        self.store.reput.bulk_bytes = BULK_DISPATCH_BYTES
        self.store.start(reput_thread=False, background=self._background)
        self.schedule.start()

    async def _start_replication(self) -> None:
        """The HA port is the configured one, or the one behind the broker's own."""
        configured = self.store_config.ha_listen_port
        if configured == HA_PORT_DEFAULT:
            configured = self.address.port + 1 if self.config.listen_port else 0
        try:
            await self.ha.start(configured)
        except OSError as error:
            if self.store_config.broker_role is BrokerRole.SYNC_MASTER:
                raise
            _LOG.warning("no replication, the HA port %d is taken: %s", configured, error)
        self.ha_address = f"{self.config.broker_ip2 or self.ip}:{self.ha.port}"
        if self.store.waits_for_replicas:
            self.waits_for_disk = True

    def topics_from_master(self, document: Any) -> None:
        """A slave takes over its master's topics and mappings.

        Raises:
            ConfigFormatError: the master answered something else.
        """
        self.topics.read(document)
        self.static_topics.replace_all(document)

    def metadata_replaced(self) -> None:
        """A slave has taken over its master's tables: they go to disk and to the name servers."""
        self.send_forget_topics()
        self._write_topics()
        self._write_groups()
        self._persist_soon()
        if self.registration is not None:
            self.registration.topics_changed([c.topic_name or "" for c in self.topics])

    def _clamp_offsets(self) -> None:
        """Take offsets back that lie behind the end of their queue.

        After a loss of power the log may end before what groups had already consumed. New messages
        would fill the queue up to such an offset, and the group would never see them.
        """
        for topic, group, queues in self.offsets:
            if topic.startswith(names.LMQ_PREFIX):
                continue
            for queue_id, offset in queues.items():
                end = self.store.max_offset_in_queue(topic, queue_id)
                if offset > end:
                    _LOG.warning(
                        "%s@%s queue %d: offset %d taken back to the queue's end, %d",
                        topic, group, queue_id, offset, end,
                    )  # fmt: skip
                    self.offsets.commit(group, topic, queue_id, end, self.now_ms())

    async def _listen(self) -> None:
        config = self.config
        tls_context, tls_mode = self._tls()
        options = ServerOptions(
            host=config.listen_host,
            port=config.listen_port,
            channel=ChannelOptions(idle_timeout_s=config.server_channel_max_idle_time_s),
            tls_context=tls_context,
            tls_mode=tls_mode,
            grace_s=STOP_GRACE_S,
            busy_poll_s=config.busy_poll_us / 1_000_000,
        )
        self.server = RemotingServer(
            self.access.guard(self.processors),
            options,
            on_close=self.clients.connection_closed,
        )
        await self.server.start()
        port = self.server.address.port
        self.address = Address(self.ip, port)
        self.store_host = encode_host(_resolve(self.ip), port)
        fast_port = config.fast_listen_port
        if fast_port < 0:
            fast_port = port - FAST_PORT_DISTANCE if config.listen_port else 0
        elif fast_port == 0:
            return
        self.fast_server = RemotingServer(
            self.access.guard(self.processors.without(FAST_PORT_EXCLUDED)),
            replace(options, port=fast_port),
            on_close=self.clients.connection_closed,
            owns_processors=False,
        )
        await self.fast_server.start()

    def _inner_client(self) -> RemotingClient:
        """For what the broker asks of others."""
        credentials = self.config.inner_client_authentication_credentials
        if not credentials:
            return RemotingClient(self.processors)
        from oberth.broker.acl.inner_client import SigningClient

        access_key, secret_key = user_of_json(
            credentials, "innerClientAuthenticationCredentials", "accessKey", "secretKey"
        )
        return SigningClient(self.processors, access_key, secret_key)

    def _real_topic(self, commit_log_offset: int) -> str | None:
        """The topic of a record, what its sender called it; None where no record starts."""
        from oberth.formats import properties as p

        message = self.store.look_message_by_offset(commit_log_offset)
        if message is None:
            return None
        if names.is_system_topic(message.topic):
            return message.properties.get(p.REAL_TOPIC, message.topic)
        return message.topic

    def _tls(self) -> tuple[Any, Any]:
        from oberth.remoting.aio.tls import TlsMode, server_context  # OpenSSL: 30 ms of a start

        mode = TlsMode(self.config.tls_mode)
        return server_context(mode, self.config.tls_cert_path, self.config.tls_key_path), mode

    async def aclose(self) -> None:
        """Stop serving, write everything down, close the store."""
        if self.http is not None:
            await self.http.aclose()
            self.http = None
        if self.registration is not None:
            await self.registration.aclose()
            self.registration = None
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        if self._follow_handle is not None:
            self._follow_handle.cancel()
            self._follow_handle = None
        for server in (self.fast_server, self.server):
            if server is not None:
                self._answer_held()
                await server.aclose()
        self.fast_server = self.server = None
        await self.peers.aclose()
        if self.client is not None:
            await self.client.aclose()
            self.client = None
        if self._kernels is not None:
            self._kernels.close()
        await self.ha.aclose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._loading:
            self.pop.stop()
        for close in reversed(self.closing):
            close()
        await asyncio.to_thread(self._close_store)

    def _answer_held(self) -> None:
        """Held pulls are answered with what is there: nothing, so that clients ask elsewhere."""
        for held in self.hold.clear():
            self.pull.pull_again(held)
        self.pops.answer_all()
        self.lite_pops.answer_all()

    def _close_store(self) -> None:
        if not self._loading:
            self.transactions.flush()
            self.store.dispatch_nowait()
            self._write_offsets(*self._encoded_offsets())
            self._write_topics()
            self._write_groups()
            self._delay_file.write_document(self.schedule.to_body(), sync=True)
            self._delay_progress.remove()
            self._sync_files()
            for part in reversed(self.parts):
                part.close()
        self.store.shutdown()

    # --------------------------------------------------------------------------------- processors

    def _stage(self, name: str, **options: Any) -> Stage:
        made = self._stages[name] = Stage(name, **options)
        return made

    def stage(self, name: str) -> Stage | None:
        """A stage by its name, if requests of that kind wait in one."""
        return self._stages.get(name)

    def _register_processors(self) -> None:
        """Which code is served by what. RocketMQ: BrokerController.registerProcessor."""
        config = self.config
        table = self.processors
        wait_ms = config.wait_time_ms_in_admin_queue if config.broker_fast_failure_enable else None
        query_stage = self._stage("query", threads=2, queue_max=20_000, wait_ms_max=wait_ms)
        admin_stage = self._stage("admin", threads=1, wait_ms_max=wait_ms)
        relay_stage = self._stage("relay", tasks=64)

        send, pull, clients = self.send, self.pull, self.clients
        table.burst(
            (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE),
            send.send,
            reject=self._reject_sends,
        )
        table.sync([Code.CONSUMER_SEND_MSG_BACK], send.send_back)
        table.sync([Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE], pull.pull)
        pops = self.pops
        table.sync([Code.POP_MESSAGE], pops.pop)
        table.sync([Code.PEEK_MESSAGE], pops.peek)
        table.sync([Code.NOTIFICATION], pops.notification)
        table.sync([Code.POLLING_INFO], pops.polling_info)
        lite_pops = self.lite_pops
        table.sync([Code.POP_LITE_MESSAGE], lite_pops.pop)
        table.sync([Code.LITE_SUBSCRIPTION_CTL], lite_pops.subscribe)
        acks = AckMessageProcessor(self, self.pop, pops, lite_pops)
        table.burst([Code.ACK_MESSAGE], acks.ack)
        table.sync([Code.BATCH_ACK_MESSAGE], acks.batch_ack)
        table.sync([Code.CHANGE_MESSAGE_INVISIBLETIME], acks.change_invisible_time)
        table.async_([Code.QUERY_ASSIGNMENT], self.assignment.query, stage=relay_stage)
        table.sync([Code.SET_MESSAGE_REQUEST_MODE], self.assignment.set_mode)
        table.sync([Code.GET_ALL_MESSAGE_REQUEST_MODE], self.assignment.all_modes)
        table.sync([Code.HEART_BEAT], clients.heartbeat)
        table.sync([Code.UNREGISTER_CLIENT], clients.unregister)
        table.sync([Code.CHECK_CLIENT_CONFIG], clients.check_client_config)

        consumer = ConsumerManageProcessor(self)
        static = StaticTopicProcessor(self, consumer)
        table.async_([Code.UPDATE_AND_CREATE_STATIC_TOPIC], static.update, stage=relay_stage)
        table.sync([Code.GET_CONSUMER_LIST_BY_GROUP], consumer.list_consumers)
        for code, handler, answer in (
            (Code.QUERY_CONSUMER_OFFSET, consumer.query_offset, static.query_offset),
            (Code.UPDATE_CONSUMER_OFFSET, consumer.update_offset, static.update_offset),
            (Code.GET_MAX_OFFSET, consumer.max_offset, static.max_offset),
            (Code.GET_MIN_OFFSET, consumer.min_offset, static.min_offset),
            (
                Code.GET_EARLIEST_MSG_STORETIME,
                consumer.earliest_store_time,
                static.earliest_store_time,
            ),
            (Code.SEARCH_OFFSET_BY_TIMESTAMP, consumer.search_offset, static.search_offset),
        ):
            table.sync([code], static.front(handler, answer))
        table.sync([Code.LOCK_BATCH_MQ], consumer.lock)
        table.sync([Code.UNLOCK_BATCH_MQ], consumer.unlock)

        query = QueryMessageProcessor(self)
        table.sync([Code.QUERY_MESSAGE], query.query, stage=query_stage)
        table.sync([Code.VIEW_MESSAGE_BY_ID], query.view, stage=query_stage)

        ends = EndTransactionProcessor(self)
        table.burst([Code.END_TRANSACTION], ends.end)
        table.sync([Code.RESUME_CHECK_HALF_MESSAGE], ends.resume_check)

        reply = ReplyMessageProcessor(self)
        table.async_(
            [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2], reply.reply, stage=relay_stage
        )

        table.sync([Code.RECALL_MESSAGE], RecallMessageProcessor(self).recall)

        relay = RelayProcessor(self)
        table.async_([Code.GET_CONSUMER_RUNNING_INFO], relay.running_info, stage=relay_stage)
        table.async_([Code.CONSUME_MESSAGE_DIRECTLY], relay.consume_directly, stage=relay_stage)

        topics = TopicAdminProcessor(self)
        table.burst([Code.UPDATE_AND_CREATE_TOPIC], topics.create)
        table.sync([Code.UPDATE_AND_CREATE_TOPIC_LIST], topics.create_list)
        table.sync([Code.DELETE_TOPIC_IN_BROKER], topics.delete)
        table.sync([Code.GET_ALL_TOPIC_CONFIG], topics.all_configs)
        table.sync([Code.GET_TOPIC_CONFIG], topics.config)
        table.sync([Code.GET_TOPIC_STATS_INFO], topics.stats)
        table.sync([Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER], topics.system_topics)
        table.sync([Code.QUERY_TOPIC_CONSUME_BY_WHO], topics.consumed_by)
        table.sync([Code.CLEAN_UNUSED_TOPIC], topics.clean_unused, stage=admin_stage)

        groups = GroupAdminProcessor(self)
        table.sync([Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP], groups.update)
        table.sync([Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST], groups.update_list)
        table.sync([Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG], groups.all_configs)
        table.sync([Code.GET_SUBSCRIPTIONGROUP_CONFIG], groups.config)
        table.sync([Code.UPDATE_AND_GET_GROUP_FORBIDDEN], groups.forbidden)
        table.sync([Code.DELETE_SUBSCRIPTIONGROUP], groups.delete)
        table.sync([Code.GET_CONSUMER_CONNECTION_LIST], groups.consumers)
        table.sync([Code.GET_PRODUCER_CONNECTION_LIST], groups.producers)
        table.sync([Code.GET_ALL_PRODUCER_INFO], groups.all_producers)
        table.sync([Code.QUERY_TOPICS_BY_CONSUMER], groups.topics_of_group)
        table.sync([Code.QUERY_SUBSCRIPTION_BY_CONSUMER], groups.subscription)

        offsets = OffsetAdminProcessor(self)
        table.sync([Code.GET_CONSUME_STATS], offsets.consume_stats)
        table.sync([Code.GET_BROKER_CONSUME_STATS], offsets.broker_consume_stats)
        table.sync([Code.QUERY_CONSUME_TIME_SPAN], offsets.consume_time_span)
        table.sync([Code.QUERY_CORRECTION_OFFSET], offsets.correction_offset)
        table.sync([Code.GET_ALL_CONSUMER_OFFSET], offsets.all_offsets)
        table.sync([Code.GET_ALL_DELAY_OFFSET], offsets.all_delay_offsets)
        table.sync([Code.CLONE_GROUP_OFFSET], offsets.clone)
        table.sync([Code.INVOKE_BROKER_TO_RESET_OFFSET], offsets.reset)
        table.async_(
            [Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS],
            offsets.consumer_status,
            stage=relay_stage,
        )

        broker = BrokerAdminProcessor(self)
        table.sync([Code.UPDATE_BROKER_CONFIG], broker.update_config)
        table.sync([Code.GET_BROKER_CONFIG], broker.get_config)
        table.sync([Code.GET_BROKER_RUNTIME_INFO], broker.runtime)
        table.sync([Code.VIEW_BROKER_STATS_DATA], broker.stats_data)
        table.sync([Code.QUERY_CONSUME_QUEUE], broker.consume_queue)
        table.sync(
            [Code.CLEAN_EXPIRED_CONSUMEQUEUE], broker.clean_expired_queues, stage=admin_stage
        )
        table.sync([Code.DELETE_EXPIRED_COMMITLOG], broker.delete_expired_log, stage=admin_stage)
        ReplicaAdminProcessor(self).register(table)
        StoreAdminProcessor(self).register(table)
        LiteAdminProcessor(self, lite_pops.lite).register(table, relay_stage)
        PlainAclAdminProcessor(self).register(table)
        RetentionProcessor(self).register(table, relay_stage)
        AuthAdminProcessor(self.access).register(table)
        for extend in self.extend:
            extend(table)

    def _reject_sends(self) -> str | None:
        if self.store.is_os_page_cache_busy():
            return f"page cache busy for {self.store.commit_log.lock_time_ms():.0f} ms"
        return None

    # ----------------------------------------------------------------- arrivals and durable writes

    def store_host_for(self, channel: Channel) -> bytes:
        """The broker's address as a client knows it: what it dialled, unless brokerIP1 is set."""
        if self.config.broker_ip1 or not channel.local.host:
            return self.store_host
        return encode_host(channel.local.host, self.address.port)

    def dispatch_soon(self) -> None:
        """Make what was appended readable: in this turn of the loop, after the answers.

        While nobody waits for messages and they come in quick succession, it may take DISPATCH_S
        longer: a dispatch of many costs a quarter of that of a few, and one behind each answer
        takes the processor from the sender that was just answered. Who asks meanwhile calls
        `dispatch_now` first.
        """
        if self.dispatch_pending:
            return
        self.dispatch_pending = True
        loop = self._loop
        assert loop is not None
        if (
            loop.time() - self._dispatched_at > DISPATCH_S
            or len(self.hold)
            or len(self.pop.polling)
            or len(self.pop.notifying)
        ):
            loop.call_soon(self._dispatch)
        else:
            loop.call_later(DISPATCH_S, self._dispatch)

    def dispatch_now(self) -> None:
        """Make what was appended readable before anything else is read."""
        if self.dispatch_pending:
            self._dispatch()

    def _dispatch(self) -> None:
        if not self.dispatch_pending:
            return
        self.dispatch_pending = False
        store = self.store
        assert self._loop is not None
        self._dispatched_at = self._loop.time()
        try:
            forward = store.dispatch_nowait()
        except (OberthError, OSError) as error:
            _LOG.error("dispatch failed, tried again: %s", error)
            forward = 0
        if self._follows:
            self._follow_soon(forward)
        if self._woken:
            woken, self._woken = self._woken, []
            for held in woken:
                self.pull.pull_again(held)
        if self.waits_for_disk and not self._dispatch_waits and store.dispatch_behind_bytes:
            # Not waited for by anybody, and not readable before the disk has it.
            self._dispatch_waits = True
            self.when_durable(store.max_phy_offset, self._dispatch_durable)

    def _follow_soon(self, forward: int) -> None:
        """Looks at the dispatcher's progress again while messages wait for it."""
        assert self._loop is not None
        self._follow_s = FOLLOW_S if forward else min(self._follow_s * 1.1, FOLLOW_MAX_S)
        if (
            self._follow_handle is None
            and self._tick_handle is not None
            and self.store.dispatch_behind_bytes
        ):
            self._follow_handle = self._loop.call_later(self._follow_s, self._follow)

    def _follow(self) -> None:
        self._follow_handle = None
        self.dispatch_pending = True
        self._dispatch()

    def _dispatch_durable(self, status: PutMessageStatus) -> None:
        del status
        self._dispatch_waits = False

    def _on_arrival(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        tags_code: int,
        store_timestamp: int,
        bit_map: bytes | None,
        properties_raw: bytes,
    ) -> None:
        del store_timestamp, bit_map
        if len(self.hold):
            self._woken += self.hold.on_message_arriving(
                topic, queue_id, max_offset, tags_code, properties_raw
            )
        for listener in self.arrival_listeners:
            listener(topic, queue_id, max_offset, tags_code, properties_raw)

    def _on_arrivals(self, topic: str, queue_id: int, max_offset: int) -> None:
        """Many messages were dispatched at once; nobody looked at their tags."""
        if len(self.hold):
            self._woken += self.hold.on_message_arriving(topic, queue_id, max_offset, None)
        for listener in self.arrival_listeners:
            listener(topic, queue_id, max_offset, None, b"")

    def when_durable(self, end_offset: int, finish: Callable[[PutMessageStatus], None]) -> None:
        """Call ``finish`` on the loop when the log is safe up to an offset.

        On the disk with SYNC_FLUSH, and on enough replicas with SYNC_MASTER.
        """
        if self.store.waits_for_replicas:
            self.ha.on_append()
            replicated = finish

            def finish(status: PutMessageStatus) -> None:
                self.ha.when_replicated(end_offset, status, replicated)

            if not self.store.flush_service.is_sync:
                finish(PutMessageStatus.PUT_OK)
                return
        durable = self._durable
        loop = self._loop
        assert loop is not None

        def done(status: PutMessageStatus) -> None:
            # In the flush thread, or here and now.
            durable.append((finish, status))
            if not self._durable_scheduled:
                self._durable_scheduled = True
                loop.call_soon_threadsafe(self._finish_durable)

        self.store.when_durable(end_offset, done)

    def _finish_durable(self) -> None:
        self._durable_scheduled = False
        durable = self._durable
        while durable:
            finish, status = durable.popleft()
            finish(status)
        self.dispatch_soon()

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """A queue's offset was reset: who waits there is told."""
        for held in self.hold.wake_queue(topic, queue_id):
            self.pull.pull_again(held)
        for listener in self.reset_listeners:
            listener(group, topic, queue_id)

    # -------------------------------------------------------------------------------------- clock

    def _tick(self) -> None:
        loop = self._loop
        assert loop is not None
        self._tick_handle = loop.call_later(TICK_MS / 1000, self._tick)
        now_ms = self.now_ms()
        try:
            self._on_time(now_ms)
        except Exception:  # noqa: BLE001 - one service's failure must not stop the broker's clock
            _LOG.exception("a periodic task failed")

    def _on_time(self, now_ms: int) -> None:
        for held in self.hold.on_time(now_ms):
            self.pull.pull_again(held)
        if not self.ha.is_slave:
            if self.schedule.deliver(now_ms):
                self.dispatch_soon()
            self._delay_progress.on_time()
            self.transactions.on_time(now_ms)
        if self.store.dispatch_behind_bytes:
            self.dispatch_soon()
        for tick in self.ticks:
            tick(now_ms)
        if now_ms >= self._next_second_ms:
            self._next_second_ms = now_ms + SECOND_MS
            self._on_second(now_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + EXPIRY_SCAN_MS
            self.clients.scan_expired(now_ms)
        if now_ms >= self._next_offsets_ms:
            self._next_offsets_ms = now_ms + self.config.flush_consumer_offset_interval_ms
            self._persist_soon()
        if now_ms >= self._next_check_ms and not self.ha.is_slave:
            self._next_check_ms = now_ms + self.config.transaction_check_interval_ms
            self.start_task(self._check_transactions())

    def _on_second(self, now_ms: int) -> None:
        if self.offsets.is_urgent or self.groups.is_dirty or self.topics.is_dirty:
            self._persist_soon()
        self.stats.on_time(now_ms)
        puts, transferred = self.stats.broker_put.value, self.stats.broker_get.value
        reader = self.store.reader
        self.rates.sample(
            StoreTotals(now_ms, puts, reader.found_count, reader.missed_count, transferred)
        )
        if self._kernels is not None and not self._kernels.on_second(self.store.dispatched_offset):
            self._kernels = None
        day = now_ms // 86_400_000
        if day != self._day:
            self._day = day
            self.stats.on_midnight()

    def start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something run that ends by itself; it is cancelled when the broker stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -------------------------------------------------------------------------------------- files

    def _topics_changed(self, topics: list[str]) -> None:
        self.send_forget_topics()
        if self._loading:
            return
        if self.topics_written_once.is_held:
            self._topics_unwritten = True
        elif not self.topics_written_soon.is_held:
            self._write_topics()
        for topic in topics:
            if topic in self.topics:
                self.store.commit_log.refresh_topic(topic)
        if self.registration is not None:
            self.registration.topics_changed(topics)

    def answer_when_announced(
        self, channel: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> RemotingCommand | None:
        """The response, or None and it is sent as soon as the name servers know what changed.

        Whoever has made a topic may send to it at once, and asks a name server where it is.
        """
        registration = self.registration
        if registration is None or not registration.is_announcing:
            return response

        async def answer() -> None:
            await registration.announced()
            channel.reply(request, response)

        self.start_task(answer())
        return None

    def mapping_changed(self, topic: str) -> None:
        """The mapping of a static topic is another one: everybody who goes by it is told."""
        self.topics.announce(topic)
        self._cleaner.soon()
        for held in self.hold.wake_topic(topic):
            self.pull.pull_again(held)

    def send_forget_topics(self) -> None:
        """Drop what the send path has worked out about topics."""
        send = getattr(self, "send", None)
        if send is not None:
            send.forget_topics()

    def _groups_changed(self, groups: list[str]) -> None:
        del groups
        if not self._loading:
            self._write_groups()

    def write_topics_if_held(self) -> None:
        """Write the topics' file if a change waited for the end of a burst."""
        if self._topics_unwritten:
            self._topics_unwritten = False
            self._write_topics()

    def _write_topics(self) -> None:
        self._topics_file.write(self.topics.encode())
        self._files_written.add(self._topics_file)

    def _write_groups(self) -> None:
        self._groups_file.write(self.groups.encode())
        self._files_written.add(self._groups_file)

    def _write_offsets(self, data: bytes, turn: int) -> None:
        # Offsets must not be newer than the messages they count: see _clamp_offsets.
        self.store.flush()
        self._offsets_file.write(data, sync=True, turn=turn)

    def _sync_files(self) -> None:
        """Bring files to the disk that were written without waiting for it."""
        files, self._files_written = self._files_written, set()
        for file in files:
            file.sync()

    def _persist_soon(self) -> None:
        """Write tables that changed, in a thread."""
        if self._persisting or not (
            self.offsets.is_dirty
            or self.groups.is_dirty
            or self.topics.is_dirty
            or self.schedule.is_dirty
            or self._files_written
        ):
            return
        self._persisting = True
        self.start_task(self._persist())

    async def _persist(self) -> None:
        try:
            await self._write_changed()
        except OSError as error:
            _LOG.error("config could not be written: %s", error)
            self.offsets.is_dirty = True
            self.groups.is_dirty = True
            self.topics.is_dirty = True
            self.schedule.is_dirty = True
        finally:
            self._persisting = False

    async def _write_changed(self) -> None:
        # Entries are made text a few at a time: requests go first.
        for prepare, count in (
            (self.offsets.prepare, OFFSETS_AT_A_TIME),
            (self.groups.prepare, CONFIGS_AT_A_TIME),
            (self.topics.prepare, CONFIGS_AT_A_TIME),
        ):
            while prepare(count):  # noqa: ASYNC110 - a turn for requests, nothing to wait for
                await asyncio.sleep(0)
        writes: list[Callable[[], None]] = []
        if self.offsets.is_dirty:
            writes.append(partial(self._write_offsets, *self._encoded_offsets()))
        if self.groups.is_dirty:
            groups, turn = self.groups.encode(), self._groups_file.turn()
            writes.append(partial(self._groups_file.write, groups, sync=True, turn=turn))
        if self.topics.is_dirty:
            topics, turn = self.topics.encode(), self._topics_file.turn()
            writes.append(partial(self._topics_file.write, topics, sync=True, turn=turn))
        if self.schedule.is_dirty:
            self.schedule.is_dirty = False
            writes.append(partial(self._write_delays, self.schedule.to_body()))

        def write() -> None:
            for each in writes:
                each()
            self._sync_files()

        await asyncio.to_thread(write)

    def _encoded_offsets(self) -> tuple[bytes, int]:
        return self.offsets.encode(), self._offsets_file.turn()

    def _write_delays(self, delays: dict[str, Any]) -> None:
        # What was delivered must be on the disk before the file passes it.
        self.store.flush()
        self._delay_file.write_document(delays, sync=True)

    # ------------------------------------------------------------------------------ transactions

    async def _check_transactions(self) -> None:
        more = True
        while more:
            asked, more = self.transactions.check()
            if asked or more:
                self.dispatch_soon()
            await asyncio.sleep(TRANSACTION_STEP_PAUSE_S)

    def _check_transaction(self, half: MessageExt, group: str) -> None:
        """39: ask a producer of the group what became of a transaction."""
        client = self.producers.next_client(group)
        if client is None:
            _LOG.warning("transaction %s: no producer of %s is online", half.uniq_key, group)
            return
        from oberth.formats import properties as p

        properties = half.properties
        unique_key = half.uniq_key
        header = CheckTransactionStateRequestHeader(
            topic=names.TRANS_HALF_TOPIC,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=f"{half.store_host.hex().upper()}{half.commit_log_offset:016X}",
        )
        queue_text = properties.get(p.REAL_QUEUE_ID, "0")
        body = encode_as_of(
            half,
            topic=properties.get(p.REAL_TOPIC, half.topic),
            queue_id=int(queue_text) if queue_text.isdigit() else 0,
        )
        call = create_request(Code.CHECK_TRANSACTION_STATE, header, body)
        assert call.ext_fields is not None
        call.ext_fields["bname"] = self.config.broker_name
        try:
            client.channel.invoke_oneway(call)  # type: ignore[attr-defined]
        except RemotingError as error:
            _LOG.warning("transaction %s: %s not asked: %s", unique_key, client.client_id, error)

    # ------------------------------------------------------------------------------ administration

    def registered_topics(self) -> Iterable[TopicConfig]:
        """What the name servers are told: every topic, its perm cut down to the broker's own."""
        if self.config.readable and self.config.writable:
            return self.topics
        return [self._cut_down(each) for each in self.topics]

    def registered_topic(self, topic: str) -> TopicConfig | None:
        """What the name servers are told of one topic."""
        found = self.topics.get(topic)
        if found is None or (self.config.readable and self.config.writable):
            return found
        return self._cut_down(found)

    def _cut_down(self, topic_config: TopicConfig) -> TopicConfig:
        return replace(topic_config, perm=topic_config.perm & self.config.broker_permission)

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Forget topics: configuration, queues, offsets, statistics; held pulls are answered."""
        gone = set(topics)
        lite = self.lite_pops.lite
        for parent in [topic for topic in gone if lite.is_parent(topic)]:
            lite.delete_lite_topics(parent, lite.queues(parent))
        for topic in gone:
            self.static_topics.delete(topic)
            self.topics.delete(topic)
            self.offsets.delete_topic(topic)
            self.groups.forget_topic(topic)
            self.stats.topic_deleted(topic)
        self.store.delete_topics(gone)
        for topic in gone:
            for held in self.hold.wake_topic(topic):
                self.pull.pull_again(held)

    def delete_group(self, group: str, *, clean_offset: bool) -> None:
        """Forget a group, and with ``clean_offset`` how far it has come."""
        # Of lite topics nobody else knows that this group was ever there.
        clean_offset = clean_offset or self.lite_pops.lite.parent_of(group) is not None
        self.groups.delete(group)
        if clean_offset:
            self.offsets.delete_group(group)
        self.consumers.remove_group(group)
        self.stats.group_deleted(group)

    def update_config(self, entries: Mapping[str, str]) -> None:
        """Change options while the broker runs, all or none, and write them to the broker's file.

        Raises:
            OptionError: an unknown option, or a value that is not allowed; nothing was changed.
        """
        for config in (self.config, self.store_config):
            trial = type(config)(
                **{each.name: getattr(config, each.name) for each in fields(config)}
            )
            for key, text in entries.items():
                update_option(trial, key, text)
        unknown = [
            key
            for key, text in entries.items()
            # Some keys are options of both; each gets its own.
            if not sum(update_option(each, key, text) for each in (self.config, self.store_config))
        ]
        if unknown:
            raise OptionError(f"{', '.join(unknown)}: no such option")
        self.config_version = self.config_version.next(self.now_ms())
        self.sends_refused_until_ms = self.config.start_accept_send_request_timestamp
        self.send_forget_topics()
        self._write_config(entries)
        if "brokerPermission" in entries and self.registration is not None:
            self.start_task(self.registration.register_all())

    def _write_config(self, entries: Mapping[str, str]) -> None:
        path = self.config.broker_config_path
        if not path:
            return
        from oberth.formats.java_properties import format_properties, parse_properties

        file = ConfigFile(Path(path))
        current = parse_properties(file.path.read_bytes(), name=path)
        file.write(format_properties({**current, **entries}).encode(), sync=True)

    def put_bytes_total(self) -> int:
        """Bytes of all records that producers sent."""
        return self.stats.total(TOPIC_PUT_SIZE)

    def more_runtime_info(self) -> dict[str, str]:
        """Further keys of 28, from what is built on top."""
        info: dict[str, str] = {}
        for add in self.runtime_info_sources:
            info.update(add())
        return info


def encode_as_of(message: MessageExt, *, topic: str, queue_id: int) -> bytes:
    """A record with another topic and queue, as clients are shown half messages."""
    from oberth.formats.message import FIXED, HOST_BITS, MAGIC_V1, MAGIC_V2, TOPIC_LENGTH_V1_MAX

    raw_topic = topic.encode()
    magic = MAGIC_V1 if len(raw_topic) <= TOPIC_LENGTH_V1_MAX else MAGIC_V2
    size = (
        FIXED[message.sys_flag & HOST_BITS].size
        + len(message.body)
        + (1 if magic == MAGIC_V1 else 2)
        + len(raw_topic)
        + 2
        + len(message.properties_raw)
    )
    return replace(message, topic=topic, queue_id=queue_id, magic=magic, record_size=size).encode()


def _physical_memory() -> int:
    """Bytes of the machine's memory; 24 GiB, as Java assumes, where that cannot be known."""
    try:
        pages, size = (os.sysconf(name) for name in PROC_MEMORY)
    except (OSError, ValueError, AttributeError):
        return 24 << 30
    return pages * size


def _reachable_ip(listen_host: str) -> str:
    """An address under which the broker can be reached, if it is not told one."""
    try:
        address = ip_address(listen_host)
    except ValueError:
        return listen_host
    if not address.is_unspecified:
        return listen_host
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    probe_to = "192.0.2.1" if address.version == 4 else "2001:db8::1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: this only asks which of our addresses would be used.
            probe.connect((probe_to, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1" if address.version == 4 else "::1"


def _resolve(host: str) -> str:
    """A host as a number, for records.

    Raises:
        OptionError: it has no address.
    """
    try:
        ip_address(host)
    except ValueError:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            raise OptionError(f"brokerIP1: {host!r}: {error}") from None
    return host
