"""Broker: the life of one broker: load, listen, register, and close in reverse.

Lifecycle: ``async with Broker(config, store_config) as broker``. Starting loads ``config/`` and
the store, listens, and registers; a broker that is returned serves. Stopping is the reverse:
unregister, stop accepting, answer held pulls, finish what is at work, write the tables, close the
store.

What the broker knows is in its `Parts`, what works on it in its `Services`, what serves requests in
its `Processors`. Everything but blocking calls runs on one event loop, without locks. A burst of
sends from one read is one append; the dispatch that makes them readable follows in the same turn of
the loop, wakes held pulls, and their answers leave together. What blocks (index queries, syncs of
files, cleaning) runs in named threads. RocketMQ: BrokerController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oberth.broker import request_table
from oberth.broker.broker_config import FAST_PORT_DISTANCE, BrokerConfig
from oberth.broker.http_endpoint import HttpEndpoint
from oberth.broker.metrics import Metrics, MoreMetrics
from oberth.broker.parts import Parts
from oberth.broker.plain_pulls import PlainRequests
from oberth.broker.schedule_service import TICK_MS
from oberth.broker.services import Services
from oberth.broker.serving import Processors
from oberth.broker.transaction_check import check_all
from oberth.errors import OptionError, StoreError
from oberth.formats import names
from oberth.formats.message_store_config import BrokerRole, MessageStoreConfig
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.busy_poll import make_busy_poll
from oberth.remoting.aio.loop import REQUESTS_NEED, import_soon
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.aio.service import Service
from oberth.store.files import FileSystem
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.broker.role import Role

_LOG: Final = logging.getLogger(__name__)
_DONE: Final = object()
_FAILED: Final = "a periodic task failed, it runs again at its next turn"

SECOND_MS: Final = 1000
DAY_MS: Final = 86_400_000
EXPIRY_SCAN_MS: Final = 10_000
"""How often clients and locks are looked over for silence."""

BURSTS_NEED: Final = ("oberth.store.bulk_dispatch",)
"""What the first burst of messages would import."""

STOP_GRACE_S: Final = 5.0
HA_PORT_DEFAULT: Final = 10_912


class Broker(Service):
    """One broker.

    Args:
        config: what it is.
        store_config: where and how it stores.
        clock_ms: the wall clock.
        files: where the store keeps its files; None: the operating system's.
        role: what a controller has made of the broker; None without one.
        background: False for a store without threads: the caller flushes (`store.flush`) and
            makes checkpoints when it wants.

    Attributes:
        parts: configuration, tables, store and clock.
        services: what works on them.
        processors: what serves requests.
        more_metrics: what further shows figures in ``/metrics``.
        extend: called with the table of processors before the servers start; for what is built on
            top of the broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
        files: FileSystem | None = None,
        role: Role | None = None,
        background: bool = True,
    ) -> None:
        self._background = background
        self.parts = Parts(config, store_config, clock_ms=clock_ms, files=files, role=role)
        self.services = Services(self.parts)
        self.processors = Processors(self.parts, self.services)
        self.more_metrics: list[MoreMetrics] = [self.services.comparison.metrics]
        self.extend: list[Callable[[ProcessorTable], None]] = []
        self.server: RemotingServer | None = None
        self.fast_server: RemotingServer | None = None
        self.http: HttpEndpoint | None = None
        self._is_loaded = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._day = 0
        self._next_second_ms = 0
        self._sampling: Iterator[None] | None = None
        self._next_scan_ms = 0
        self._next_check_ms = 0
        self._tell()

    def _tell(self) -> None:
        """Who hears of what; the order is that in which they hear of it."""
        parts, services, processors = self.parts, self.services, self.processors
        services.keepers.append(processors.assignment)
        parts.schedule.readable = self._readable_of_level
        services.lite.start(processors.lite_pops.run_again)
        services.dispatching.arrival_listeners.append(processors.pops.on_arrival)
        services.changes.listeners += [
            processors.send.config_changed,
            processors.pull.plain.config_changed,
            self._config_changed,
        ]
        parts.topic_listeners.append(processors.send.topics_changed)
        parts.reset_listeners += [
            services.dispatching.on_offset_reset,
            services.pop.on_reset,
            services.lite.on_reset,
            processors.pops.on_reset,
        ]
        parts.ticks += [
            services.access.on_time,
            services.expressions.on_time,
            services.brake.on_time,
        ]
        if services.timers is not None:
            parts.ticks.append(services.timers.on_time)
        parts.ticks += [
            services.pop.on_time,
            processors.pops.on_time,
            services.lite.on_time,
            services.cleaner.on_time,
            services.strays.on_time,
            services.unused_groups.on_time,
            services.ha.on_time,
            services.acting.on_time,
        ]

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return self.parts.own.address

    # Lifecycle

    async def start(self) -> None:
        """Load, listen, register.

        Raises:
            ConfigFormatError: a file of ``config/`` and its back-up cannot be read.
            StoreError: the store cannot be opened; see MessageStore.load.
            OSError: a port is taken, or a directory cannot be written.
        """
        parts, services = self.parts, self.services
        services.dispatching.start(
            asyncio.get_running_loop(), self.processors.pull.pull_again, services.pop.has_waiting
        )
        # Recovery may take its time, and a name server may share this loop.
        try:
            await asyncio.to_thread(self._load)
            request_table.register(services.processors, self.processors, parts.config)
            for extend in self.extend:
                extend(services.processors)
            services.ha.before_readers()
            await self._listen()
            self._start_clock()
            await self._start_replication()
            await services.registration.start()
            services.acting.start()
            if parts.config.http_port >= 0:
                metrics = Metrics(
                    parts,
                    services.runtime_info,
                    lambda: services.processors.stages,
                    self.more_metrics,
                )
                self.http = HttpEndpoint(metrics, self.not_ready)
                await self.http.start(parts.config.http_address, parts.config.http_port)
            import_soon(*BURSTS_NEED, *REQUESTS_NEED)
        except BaseException:
            await self.aclose()
            raise

    def _load(self) -> None:
        parts, services = self.parts, self.services
        services.table_files.load()
        parts.store.load()
        services.table_files.match_store()
        for keeper in services.keepers:
            keeper.load()
        parts.topics.add_system_topics(max(parts.schedule.level_max, 1))
        services.table_files.know_lost_topics()
        parts.groups.add_system_groups()
        self._is_loaded = True
        services.table_files.write_first()
        parts.topic_listeners += [
            services.table_files.topics_changed,
            self._refresh_topics,
            services.registration.topics_changed,
        ]
        parts.group_listeners.append(services.table_files.groups_changed)
        services.dispatching.listen()
        parts.store.start(reput_thread=False, background=self._background)
        parts.schedule.start()

    async def _listen(self) -> None:
        config, access = self.parts.config, self.services.access
        options = replace(
            ServerOptions.of(config),
            grace_s=STOP_GRACE_S,
            busy_poll_s=config.busy_poll_us / 1_000_000,
        )
        table, clients = self.services.processors, self.processors.clients
        # A gate, or what extends the table, must see each request: then the general way serves all
        is_open = not (access.is_enabled or self.extend)
        sends = self.processors.send.plain
        plain = PlainRequests(sends, self.processors.pull.plain) if is_open else None
        self.server = RemotingServer(
            access.guard(table),
            options,
            on_close=clients.connection_closed,
            data_taker=plain,
            defer=None if plain is None else plain.defer,
        )
        await self.server.start()
        port = self.server.address.port
        self.parts.own.listens_on(port)
        fast_port = config.fast_listen_port
        if fast_port < 0:
            fast_port = port - FAST_PORT_DISTANCE if config.listen_port else 0
        elif fast_port == 0:
            return
        self.fast_server = RemotingServer(
            access.guard(table.without(request_table.FAST_PORT_EXCLUDED)),
            replace(options, port=fast_port),
            on_close=clients.connection_closed,
            owns_processors=False,
            data_taker=sends if is_open else None,  # it serves no pulls
        )
        await self.fast_server.start()

    async def _start_replication(self) -> None:
        """The HA port is the configured one, or the one behind the broker's own."""
        parts, ha = self.parts, self.services.ha
        refusal = self._ha_refusal()
        if refusal is not None:
            if parts.store_config.broker_role is BrokerRole.SYNC_MASTER:
                raise OptionError(refusal)
            _LOG.warning("the broker starts without replication: %s", refusal)
            return
        configured = parts.store_config.ha_listen_port
        if configured == HA_PORT_DEFAULT:
            configured = self.address.port + 1 if parts.config.listen_port else 0
        try:
            await ha.start(configured)
        except OSError as error:
            if parts.store_config.broker_role is BrokerRole.SYNC_MASTER:
                raise
            _LOG.warning(
                "the broker starts without replication, it cannot listen on the HA port %d: %s",
                configured,
                error,
            )
        parts.own.ha_listens_on(ha.port)
        if parts.store.waits_for_replicas:
            self.services.dispatching.waits_for_disk = True
            ha.busy_poll = self.server.busy_poll if self.server is not None else None
        if ha.is_slave:
            # Its own: what its readers ask is no reason to sleep.
            ha.busy_poll = make_busy_poll(
                asyncio.get_running_loop(), parts.config.busy_poll_us / 1_000_000
            )
            self.services.tasks.start(self.services.comparison.run())

    def _ha_refusal(self) -> str | None:
        """Why nobody may connect to the HA port, or None.

        Who connects gets the whole log, and the port knows no accounts.
        """
        config = self.parts.config
        if (
            self.services.ha.is_slave
            or not self.services.access.is_enabled
            or config.ha_allowed_addresses
            or config.ha_tls_cert_path
            or config.listen_without_access_control
        ):
            return None
        return (
            "access control is on, and the HA port would send the whole log to any peer: "
            "name the slaves in haAllowedAddresses, set haTlsCertPath and haTlsTrustCertPath, or "
            "set listenWithoutAccessControl=true"
        )

    def not_ready(self) -> str | None:
        """Why the broker takes no messages, or None."""
        if self.server is None:
            return "not listening"
        if not self.parts.store.flags.is_writeable:
            return "the store takes no messages: its disk is full or failing"
        return None

    async def aclose(self) -> None:
        """Stop serving, write everything down, close the store."""
        services = self.services
        if self.http is not None:
            await self.http.aclose()
            self.http = None
        await services.acting.aclose()
        await services.registration.aclose()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        services.dispatching.close()
        for server in (self.fast_server, self.server):
            if server is not None:
                services.dispatching.answer_held()
                self.processors.answer_held()
                await server.aclose()
        self.fast_server = self.server = None
        await services.peers.aclose()
        await services.client.aclose()
        await services.ha.aclose()
        await services.tasks.aclose()
        if self._is_loaded:
            services.pop.stop()
        await asyncio.to_thread(self._close_store)

    def _close_store(self) -> None:
        parts, services = self.parts, self.services
        if self._is_loaded:
            services.transactions.flush()
            parts.store.dispatch_nowait()
            for step in (
                *services.table_files.last_writes(),
                *(keeper.close for keeper in reversed(services.keepers)),
            ):
                try:
                    step()
                except (OSError, StoreError) as error:
                    # One file that a full disk does not take must not keep the store from closing.
                    _LOG.error(
                        "the last state could not be written when the broker stopped: %s", error
                    )
        parts.store.shutdown()

    # Changes

    def _refresh_topics(self, topics: list[str]) -> None:
        log = self.parts.store.commit_log
        for topic in log.topics.keys() & set(topics):
            if topic in self.parts.topics:
                log.refresh_topic(topic)

    def _config_changed(self, changes: Mapping[str, str]) -> None:
        if "brokerPermission" in changes:
            self.services.tasks.start(self.services.registration.register_all())

    # Clock

    def _start_clock(self) -> None:
        now_ms = self.parts.now_ms()
        self._next_second_ms = now_ms
        self._next_scan_ms = now_ms + EXPIRY_SCAN_MS
        self._next_check_ms = now_ms + self.parts.config.transaction_check_interval_ms
        self._day = now_ms // DAY_MS
        self.services.table_files.start_clock(now_ms)
        self._tick()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_handle = loop.call_later(TICK_MS / 1000, self._tick)
        try:
            self.on_time(self.parts.now_ms())
        except Exception:  # noqa: BLE001 - one service's failure must not stop the broker's clock
            _LOG.exception(_FAILED)

    def on_time(self, now_ms: int) -> None:
        """Do what is due; called about every TICK_MS, on the loop."""
        parts, services = self.parts, self.services
        services.dispatching.on_time(now_ms)
        if services.ha.delivers:
            _try(self._deliver, now_ms)
            services.table_files.delay_progress.on_time()
            if not services.ha.is_slave:
                _try(services.transactions.on_time, now_ms)
        if parts.store.dispatch_behind_bytes:
            services.dispatching.soon()
        for tick in parts.ticks:
            _try(tick, now_ms)
        if now_ms >= self._next_second_ms:
            self._next_second_ms = now_ms + SECOND_MS
            self._on_second(now_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + EXPIRY_SCAN_MS
            self.processors.clients.scan_expired(now_ms)
        services.table_files.on_time(now_ms)
        may_check = services.ha.delivers and not services.ha.is_slave
        if now_ms >= self._next_check_ms and may_check:
            self._next_check_ms = now_ms + parts.config.transaction_check_interval_ms
            services.tasks.start(check_all(services.transactions, services.dispatching.soon))

    def _deliver(self, now_ms: int) -> None:
        """Messages of delay levels that are due."""
        if self.parts.schedule.deliver(now_ms):
            self.services.dispatching.soon()

    def _go_on_delivering(self) -> None:
        """Messages of a delay level that were not in memory are."""
        if self.services.ha.delivers and self._tick_handle is not None:
            self._deliver(self.parts.now_ms())

    def _readable_of_level(self, level: int, offset: int, count: int) -> int:
        return self.services.old_messages.readable(
            ("delay level", level),
            (names.SCHEDULE_TOPIC, level - 1, offset, count),
            self._go_on_delivering,
        )

    def _go_on_sampling(self) -> None:
        """Take samples of some counters; of very many in several turns of the loop."""
        if self._sampling is not None and next(self._sampling, _DONE) is not _DONE:
            asyncio.get_running_loop().call_soon(self._go_on_sampling)
        else:
            self._sampling = None

    def _on_second(self, now_ms: int) -> None:
        parts, services = self.parts, self.services
        services.table_files.on_second()
        if self._sampling is None:
            self._sampling = parts.stats.sampling(now_ms)
            self._go_on_sampling()
        services.runtime_info.on_second(now_ms)
        day = now_ms // DAY_MS
        if day != self._day:
            self._day = day
            parts.stats.on_midnight()


def _try(task: Callable[[int], object], now_ms: int) -> None:
    """Runs a periodic task, whose failure keeps none of the others from its turn."""
    try:
        task(now_ms)
    except Exception:  # noqa: BLE001 - it may be any service's
        _LOG.exception(_FAILED)
