"""Replication of a broker: a master's slaves on the HA port, a slave's master.

A master listens (on ``haListenPort``, or the port behind its own) and sends each slave the log from
where it is. A slave asks the name servers who its master is (or reads ``haMasterAddress``), appends
what comes, and fetches topics, groups and offsets every ten seconds.

What "acknowledged" means for a SYNC_MASTER: ``inSyncReplicas`` copies, the master's included, have
the message, or the answer says FLUSH_SLAVE_TIMEOUT. Like RocketMQ 5, one copy (the default) waits
for nobody. RocketMQ: DefaultHAService, SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from oberth.errors import ConfigFormatError, OberthError, RemoteProtocolError, RemotingError
from oberth.formats.config_json import encode_config, parse_config
from oberth.formats.data_version import DataVersion
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.options import Line
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.first_bytes import AddressSet
from oberth.store.messages import PutMessageStatus
from oberth.store.replication import (
    REPORT,
    LogPiece,
    LogReceiver,
    LogSender,
    ReplicaTable,
    ReportReceiver,
)

if TYPE_CHECKING:
    import ssl

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.ha_tls import TlsWriter
    from oberth.broker.schedule_service import ScheduleService
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.formats.timer_checkpoint import TimerCheckpoint
    from oberth.remoting.aio.client import RemotingClient
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
RECONNECT_S: Final = 1.0
METADATA_PERIOD_S: Final = 10.0
TIMER_PERIOD_S: Final = 3.0
PAGE_SIZE: Final = 500
"""Topics or groups that a slave asks for at once."""
PAGES_MAX: Final = 20_000
"""Answers after which a slave gives up: its master's tables change too fast, or it does not end."""
REQUEST_TIMEOUT_S: Final = 3.0
IDLE_POLL_S: Final = 0.02
"""How long a master's connection sleeps at most while its slave has everything."""
READ_SIZE: Final = 256 * 1024
HA_ALLOWED_OPTION: Final = "haAllowedAddresses"
"""The key under which a broker names who may read its log."""

CONNECTIONS_MAX: Final = 64
"""Connections on the HA port. One more takes the place of the oldest that has not reported."""

Finish = Callable[[PutMessageStatus], None]


class Replica:
    """One slave's connection, and how fast it is served."""

    __slots__ = ("_rated_at_s", "_rated_bytes", "address", "bytes_per_s", "sender", "sent_bytes",
                 "writer")  # fmt: skip

    def __init__(
        self,
        address: str,
        sender: LogSender,
        now_s: float,
        writer: asyncio.StreamWriter | TlsWriter,
    ) -> None:
        self.address = address
        self.sender = sender
        self.writer = writer
        self.sent_bytes = 0
        self.bytes_per_s = 0
        self._rated_at_s = now_s
        self._rated_bytes = 0

    def rate(self, now_s: float) -> None:
        """Takes the rate anew if a second has passed."""
        span_s = now_s - self._rated_at_s
        if span_s >= 1:
            self.bytes_per_s = int((self.sent_bytes - self._rated_bytes) / span_s)
            self._rated_at_s, self._rated_bytes = now_s, self.sent_bytes


class MasterLink:
    """What a slave knows of its connection to the master."""

    __slots__ = ("_rated_at_s", "_rated_bytes", "bytes_per_s", "is_active", "last_read_ms",
                 "last_write_ms", "received_bytes")  # fmt: skip

    def __init__(self) -> None:
        self.is_active = False
        self.received_bytes = 0
        self.bytes_per_s = 0
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._rated_at_s = 0.0
        self._rated_bytes = 0

    def received(self, count: int, now_ms: int, now_s: float) -> None:
        """Bytes have come."""
        self.received_bytes += count
        self.last_read_ms = now_ms
        span_s = now_s - self._rated_at_s
        if span_s >= 1:
            self.bytes_per_s = int((self.received_bytes - self._rated_bytes) / span_s)
            self._rated_at_s, self._rated_bytes = now_s, self.received_bytes


class HAService:
    """The replication of one broker. Everything runs on the broker's loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        schedule: ScheduleService,
        now_ms: Callable[[], int],
        dispatch_soon: Callable[[], None],
        client: RemotingClient,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        tables_replaced: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._now_ms = now_ms
        self._dispatch_soon = dispatch_soon
        self._client = client
        self._topics = topics
        self._static_topics = static_topics
        self._tables_replaced = tables_replaced
        self._allowed = AddressSet(config.ha_allowed_addresses, HA_ALLOWED_OPTION)
        self.take_modes: Callable[[Any], None] = lambda _: None
        """Called with a master's answer to GET_ALL_MESSAGE_REQUEST_MODE."""
        self.timers: TimerFollower | None = None
        """Takes what the master says of its timer, if this broker has one."""
        self.replicas = ReplicaTable(store_config.ha_max_gap_not_in_sync)
        self.is_slave = config.broker_id > 0 or store_config.broker_role is BrokerRole.SLAVE
        self.port = 0
        self.master_address: str | None = None
        """Where the master serves requests, as the name servers say; for slaves."""
        self.master_flush_offset = 0
        """What the master has on disk, as it said; for slaves."""
        self._link = MasterLink()
        self._served: dict[Replica, None] = {}  # in the order of their coming
        self._master_ha_address = store_config.ha_master_address
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._is_closing = False
        self._grown = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def follows_master(self) -> bool:
        """Whether this is a slave whose master is there."""
        return self.is_slave and self._link.is_active

    # Life

    async def start(self, port: int) -> None:
        """Listen as a master, or follow a master.

        Args:
            port: to listen on; 0 for any.
        """
        if self._config.ha_tls_cert_path:
            from oberth.broker.ha_tls import master_context, slave_context  # noqa: PLC0415 - OpenSSL: 30 ms of a start

            self._tls = (slave_context if self.is_slave else master_context)(self._config)
        if self.is_slave:
            self._start(self._follow(), "oberth-ha-follow")
            self._start(self._synchronize(), "oberth-ha-metadata")
            if self.timers is not None:
                self._start(self._follow_timer(self.timers), "oberth-ha-timer")
            return
        self._server = await asyncio.start_server(
            self._serve, self._config.listen_host, port, limit=READ_SIZE
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self._store_config.broker_role is BrokerRole.SYNC_MASTER:
            # For how many is asked at each put: slaves come and go, and the options may change.
            self._store.waits_for_replicas = True
            self._store.lacks_replicas = self.refuses_puts

    async def aclose(self) -> None:
        """End every connection."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Acknowledgement

    def needed_acks(self) -> int:
        """How many slaves must have a message before it is acknowledged."""
        config = self._store_config
        if config.broker_role is not BrokerRole.SYNC_MASTER:
            return 0
        if config.line is Line.V4_9:
            return 1
        needed = config.in_sync_replicas
        if config.enable_auto_in_sync_replicas:
            present = self.replicas.in_sync_count(self._store.max_phy_offset)
            needed = max(min(needed, present), config.min_in_sync_replicas)
        return max(needed - 1, 0)

    def refuses_puts(self) -> bool:
        """Whether too few replicas are in sync for a put to be taken at all.

        RocketMQ asks this only with enableSlaveActingMaster or a controller; here every SYNC_MASTER
        does, so that minInSyncReplicas means the same everywhere.
        """
        config = self._store_config
        if config.broker_role is not BrokerRole.SYNC_MASTER or config.min_in_sync_replicas <= 1:
            return False
        present = self.replicas.in_sync_count(self._store.max_phy_offset)
        return present < config.min_in_sync_replicas

    def when_replicated(self, end_offset: int, flushed: PutMessageStatus, finish: Finish) -> None:
        """Calls ``finish`` once enough slaves have the log up to an offset, or time is up.

        The replicas' status wins over that of the flush, as in RocketMQ.
        """
        needed = self.needed_acks()
        if needed == 0 or self.replicas.has(end_offset, needed):
            finish(flushed)
            return
        config = self._store_config
        if config.line is Line.V4_9 and self.replicas.in_sync_count(end_offset) < 2:
            finish(PutMessageStatus.SLAVE_NOT_AVAILABLE)
            return

        def done(status: PutMessageStatus) -> None:
            finish(flushed if status is PutMessageStatus.PUT_OK else status)

        loop = asyncio.get_running_loop()
        deadline = loop.time() + config.slave_timeout_ms / 1000
        self.replicas.wait(end_offset, needed, deadline, done)

    def to_body(self) -> dict[str, Any]:
        """What GET_BROKER_HA_STATUS shows. RocketMQ: HARuntimeInfo."""
        store = self._store
        end = store.max_phy_offset
        link = self._link
        acked = self.replicas.acked
        slaves = [
            {
                "addr": each.address,
                "slaveAckOffset": acked.get(each, 0),
                "diff": end - acked.get(each, 0),
                "inSync": end - acked.get(each, 0) < self._store_config.ha_max_gap_not_in_sync,
                "transferredByteInSecond": each.bytes_per_s,
                "transferFromWhere": max(each.sender.next_offset, 0),
            }
            for each in sorted(self._served, key=lambda each: each.address)
        ]
        return {
            "master": not self.is_slave,
            "masterCommitLogMaxOffset": 0 if self.is_slave else end,
            "inSyncSlaveNums": 0 if self.is_slave else self.replicas.in_sync_count(end) - 1,
            "haConnectionInfo": slaves,
            "haClientRuntimeInfo": {
                "masterAddr": self._master_ha_address,
                "transferredByteInSecond": link.bytes_per_s,
                "maxOffset": end if self.is_slave else 0,
                "lastReadTimestamp": link.last_read_ms,
                "lastWriteTimestamp": link.last_write_ms,
                "masterFlushOffset": self.master_flush_offset,
                "activated": link.is_active,
            },
        }

    def on_append(self) -> None:
        """The log has grown: connections that had sent everything go on."""
        if len(self.replicas) or self._tasks:
            self._grown.set()

    def on_time(self, now_ms: int) -> None:
        del now_ms
        now_s = asyncio.get_running_loop().time()
        for done, status in self.replicas.expire(now_s):
            done(status)
        for each in self._served:
            each.rate(now_s)

    # The master's side

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_closing:  # it was accepted just before
            writer.transport.abort()
            return
        peer = writer.get_extra_info("peername")
        if self._allowed and peer[0] not in self._allowed:
            _LOG.warning(
                "replica %s: closed, allowed are the addresses in %s", peer, HA_ALLOWED_OPTION
            )
            writer.transport.abort()
            return
        if not self._make_room():
            _LOG.warning("replica %s: closed, %d are connected already", peer, CONNECTIONS_MAX)
            writer.close()
            return
        config = self._store_config
        sender = self._make_sender()
        loop = asyncio.get_running_loop()
        tls = self._tls_writer(writer)
        replica = Replica(f"{peer[0]}:{peer[1]}", sender, loop.time(), tls or writer)
        self._served[replica] = None
        sending: asyncio.Task[None] | None = None
        try:
            receive_data = self._make_receiver(replica)
            while True:
                async with asyncio.timeout(config.ha_housekeeping_interval_ms / 1000):
                    data = await reader.read(READ_SIZE)
                if not data:
                    return
                offset = receive_data(data if tls is None else tls.receive(data))
                if offset is None:
                    continue
                sender.on_report(offset)
                if sending is None:
                    sending = loop.create_task(self._send(replica, replica.writer))
                for done, status in self.replicas.on_report(replica, offset):
                    done(status)
                if sender.has_news:
                    self._grown.set()
        except asyncio.CancelledError:
            return  # this broker closes; asyncio's streams would log a task that is cancelled
        except TimeoutError:
            _LOG.warning("replica %s: no report for too long, closed", peer)
        except RemoteProtocolError as error:
            _LOG.error("replica %s: %s", peer, error)
        except OSError as error:
            _LOG.info("replica %s: %s", peer, error)
        finally:
            self.replicas.on_close(replica)
            self._served.pop(replica, None)
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError, OberthError):
                    await sending
            # Not close(): a peer that does not read would keep what is written until it does.
            writer.transport.abort()

    def _make_sender(self) -> LogSender:
        """What one slave is sent."""
        config = self._store_config
        return LogSender(
            self._store.commit_log,
            config.ha_transfer_batch_size,
            from_last_file=config.sync_from_last_file,
        )

    def _make_receiver(self, replica: Replica) -> Callable[[bytes], int | None]:
        """What takes reports out of the bytes of one slave."""
        del replica
        return ReportReceiver().receive_data

    def _tls_writer(self, writer: asyncio.StreamWriter) -> TlsWriter | None:
        """What stands between a slave's socket and its reports, if it must speak TLS."""
        if self._tls is None:
            return None
        from oberth.broker.ha_tls import TlsWriter  # noqa: PLC0415 - OpenSSL: 30 ms of a start

        return TlsWriter(writer, self._tls)

    def _make_room(self) -> bool:
        """Whether one more connection may stay; closes one that has said nothing yet if need be."""
        if len(self._served) < CONNECTIONS_MAX:
            return True
        for each in self._served:
            if each.sender.next_offset < 0:
                _LOG.warning("replica %s: no report yet, closed for another", each.address)
                del self._served[each]
                each.writer.transport.abort()
                return True
        return False

    async def _send(self, replica: Replica, writer: asyncio.StreamWriter | TlsWriter) -> None:
        sender = replica.sender
        loop = asyncio.get_running_loop()
        interval_s = self._store_config.ha_send_heartbeat_interval_ms / 1000
        wrote_at = loop.time()
        while True:
            frame = sender.next_frame()
            if frame is not None:
                header, data = frame
                # A copy: the transport may keep what it could not send, and the segment may go.
                writer.write(header + bytes(data))
                replica.sent_bytes += len(data)
                wrote_at = loop.time()
                await writer.drain()
                continue
            if sender.next_offset >= 0 and (
                loop.time() - wrote_at >= interval_s or sender.has_news
            ):
                writer.write(sender.heartbeat())
                wrote_at = loop.time()
                await writer.drain()
            self._grown.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_POLL_S):
                    await self._grown.wait()

    # The slave's side

    def master_found(self, master_address: str | None, ha_address: str | None) -> None:
        """A name server has answered a slave's registration."""
        if master_address:
            self.master_address = master_address
        if ha_address and not self._store_config.ha_master_address:
            self._master_ha_address = ha_address

    async def _follow(self) -> None:
        while True:
            address = self._master_ha_address
            if address:
                try:
                    await self._follow_once(address)
                except (OSError, TimeoutError, OberthError) as error:
                    _LOG.warning(
                        "replication from %s: %s", address, str(error) or type(error).__name__
                    )
            await asyncio.sleep(RECONNECT_S)

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a master's HA port."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await asyncio.open_connection(host, int(port), limit=READ_SIZE, ssl=self._tls)

    def _greeting(self) -> bytes:
        """What a slave says first."""
        return self._report()

    def _report(self) -> bytes:
        """How far a slave's log reaches, for its master."""
        return REPORT.pack(self._store.max_phy_offset)

    def _make_link(self, writer: asyncio.StreamWriter) -> Callable[[bytes], Iterable[LogPiece]]:
        """What takes pieces of the log out of a master's bytes; it may answer."""
        del writer
        return LogReceiver().receive_data

    async def _follow_once(self, address: str) -> None:
        config = self._store_config
        reader, writer = await self._connect(address)
        store = self._store
        receive_data = self._make_link(writer)
        interval_s = config.ha_send_heartbeat_interval_ms / 1000
        silent_s = 0.0
        link_had_data = False
        link = self._link
        now_ms = self._now_ms
        link.is_active = True
        try:
            writer.write(self._greeting())
            link.last_write_ms = now_ms()
            while silent_s < config.ha_housekeeping_interval_ms / 1000:
                try:
                    async with asyncio.timeout(interval_s):
                        data = await reader.read(READ_SIZE)
                except TimeoutError:
                    silent_s += interval_s
                    writer.write(self._report())
                    link.last_write_ms = now_ms()
                    continue
                if not data:
                    if not link_had_data:
                        _LOG.warning(
                            "replication from %s: closed before anything came; this log ends at "
                            "%d. The master's log says why; 'oberth store rejoin' cuts a log that "
                            "the master does not go on from", address, store.max_phy_offset,
                        )  # fmt: skip
                    return
                link_had_data = True
                silent_s = 0.0
                link.received(len(data), now_ms(), asyncio.get_running_loop().time())
                for piece in receive_data(data):
                    end = store.max_phy_offset
                    if end not in (0, piece.commit_log_offset):
                        raise RemoteProtocolError(
                            f"the master sends from {piece.commit_log_offset}, "
                            f"this log ends at {end}"
                        )
                    if piece.data and not store.append_replica(piece.commit_log_offset, piece.data):
                        raise RemoteProtocolError(
                            f"{len(piece.data)} bytes at {piece.commit_log_offset} do not join on"
                        )
                writer.write(self._report())
                link.last_write_ms = link.last_read_ms
                self._dispatch_soon()
                await writer.drain()
        finally:
            link.is_active = False
            writer.close()

    async def _synchronize(self) -> None:
        """Topics, groups and offsets of the master, again and again."""
        while True:
            if self.master_address is not None:
                try:
                    await self.synchronize_once()
                except (RemotingError, OberthError) as error:
                    _LOG.warning("metadata from %s: %s", self.master_address, error)
            await asyncio.sleep(METADATA_PERIOD_S if self.master_address else RECONNECT_S)

    async def synchronize_once(self) -> None:
        """Fetches the master's tables now.

        Topics and groups are asked for in pages and replaced where their versions differ, so what
        the master has deleted goes here too, offsets of deleted groups and topics with it. Offsets
        are merged: the master's win.

        Raises:
            RemotingError: the master cannot be asked.
            ConfigFormatError: it answered something else.
        """
        address = self.master_address
        if address is None:
            return
        changed = await self._synchronize_topics(address)
        await self._take(address, RequestCode.GET_ALL_CONSUMER_OFFSET, self._offsets.merge)
        await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, self._schedule.read)
        changed |= await self._synchronize_groups(address)
        await self._take(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.take_modes)
        if self.timers is not None:
            await self._take(address, RequestCode.GET_TIMER_METRICS, self.timers.take_metrics)
        self._tables_replaced(changed)

    async def _take(self, address: str, code: RequestCode, read: Callable[[Any], None]) -> None:
        """Has one of the master's tables read, if it gives it."""
        response = await self._client.invoke(address, create_request(code), REQUEST_TIMEOUT_S)
        if response.code == ResponseCode.SUCCESS and response.body:
            read(parse_config(response.body_bytes(), name=f"{address} {code.name}"))

    async def _synchronize_topics(self, address: str) -> bool:
        """Topics and static mappings; whether topics were replaced."""
        document = await self._fetch(address, _TOPIC_PAGES)
        if document is None:
            return False
        changed = _version(document) != self._topics.data_version
        if changed:
            before = {each.topic_name for each in self._topics}
            self._topics.read(document)
            for topic in before - {each.topic_name for each in self._topics}:
                self._offsets.delete_topic(topic or "")
        self._static_topics.replace_all(document)
        return changed

    async def _synchronize_groups(self, address: str) -> bool:
        """Groups; whether they were replaced."""
        document = await self._fetch(address, _GROUP_PAGES)
        if document is None or _version(document) == self._groups.data_version:
            return False
        before = {each.group_name for each in self._groups}
        self._groups.read(document)
        for group in before - {each.group_name for each in self._groups}:
            self._offsets.delete_group(group or "")
        return True

    async def _fetch(self, address: str, pages: _Pages) -> dict[str, Any] | None:
        """One of the master's tables, page by page; None if it does not give it.

        Brokers before 5.4 know no pages and answer with everything. A table that changes between
        two pages is asked for anew.

        Raises:
            RemotingError: the master cannot be asked.
            ConfigFormatError: it answered something else, or goes on for ever.
        """
        whole: dict[str, Any] | None = None
        have = 0
        for _ in range(PAGES_MAX):
            request = create_request(pages.code)
            request.ext_fields = {pages.start: str(have), pages.limit: str(PAGE_SIZE)}
            if whole is not None:
                request.ext_fields["dataVersion"] = encode_config(
                    whole["dataVersion"], pretty=False
                ).decode()
            response = await self._client.invoke(address, request, REQUEST_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS or not response.body:
                return None
            name = f"{address} {pages.code.name}"
            page = parse_config(response.body_bytes(), name=name)
            table = page.get(pages.table) if isinstance(page, dict) else None
            if not isinstance(table, dict):
                raise ConfigFormatError(f"{name}: no {pages.table}")
            total = response.fields.get(pages.total, "")
            if whole is not None and page.get("dataVersion") != whole.get("dataVersion"):
                whole, have = None, 0
                continue
            if whole is None:
                whole = page
            else:
                for key, value in page.items():
                    if isinstance(value, dict) and isinstance(whole.get(key), dict):
                        whole[key].update(value)
            have = len(whole[pages.table])
            if not total.isdigit() or have >= int(total) or not table:
                return whole
        raise ConfigFormatError(f"{address} {pages.code.name}: no end after {PAGES_MAX} pages")

    async def _follow_timer(self, timers: TimerFollower) -> None:
        """How far the master's timer has come, again and again. RocketMQ: the same every 3 s."""
        code = RequestCode.GET_TIMER_CHECK_POINT
        while True:
            address = self.master_address
            if address is not None:
                try:
                    response = await self._client.invoke(
                        address, create_request(code), REQUEST_TIMEOUT_S
                    )
                    if response.code == ResponseCode.SUCCESS and response.body:
                        timers.follow(decode_timer_checkpoint(response.body_bytes()))
                except (RemotingError, OberthError) as error:
                    _LOG.warning("timer checkpoint from %s: %s", address, error)
            await asyncio.sleep(TIMER_PERIOD_S if address else RECONNECT_S)


class TimerFollower(Protocol):
    """A slave's timer."""

    def follow(self, master: TimerCheckpoint) -> None:
        """The master's timer has come so far."""

    def take_metrics(self, document: Any) -> None:
        """What the master counts."""


class _Pages(NamedTuple):
    """How a table is asked for in pages: code, fields of the header, the table's key."""

    code: RequestCode
    start: str
    limit: str
    total: str
    table: str


_TOPIC_PAGES: Final = _Pages(
    RequestCode.GET_ALL_TOPIC_CONFIG, "topicSeq", "maxTopicNum", "totalTopicNum",
    "topicConfigTable",
)  # fmt: skip
_GROUP_PAGES: Final = _Pages(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groupSeq", "maxGroupNum", "totalGroupNum",
    "subscriptionGroupTable",
)  # fmt: skip


def _version(document: Mapping[str, Any]) -> DataVersion:
    """A table's version; one that is none differs from all."""
    version = document.get("dataVersion")
    return DataVersion.from_json(version if isinstance(version, dict) else {}, "dataVersion")
