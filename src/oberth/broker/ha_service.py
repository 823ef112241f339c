"""Replication of a broker: a master's slaves on the HA port, a slave's master.

A master listens (on ``haListenPort``, or the port behind its own) and sends each slave the log from
where it is. A slave asks the name servers who its master is (or reads ``haMasterAddress``), appends
what comes, and fetches topics, groups and offsets every ten seconds.

What "acknowledged" means for a SYNC_MASTER: ``inSyncReplicas`` copies, the master's included, have
the message, or the answer says FLUSH_SLAVE_TIMEOUT. Like RocketMQ 5, one copy (the default) waits
for nobody. RocketMQ: DefaultHAService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oberth.broker.ha_connection import TURN_BYTES, HAConnection, MasterLink, Replica
from oberth.errors import OberthError, RemoteProtocolError, StoreError
from oberth.formats.message import stated_size
from oberth.formats.message_store_config import BrokerRole, FlushDiskType
from oberth.formats.options import Line
from oberth.remoting.aio.address import parse_address, peer_address
from oberth.remoting.aio.service import stop_accepting
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import create_response
from oberth.remoting.first_bytes import AddressSet
from oberth.store.messages import PutMessageStatus
from oberth.store.replication import (
    REPORT,
    LogPiece,
    LogReceiver,
    LogSender,
    LogStream,
    ReplicaTable,
    ReportReceiver,
)
from oberth.store.residency import WARM_BYTES

if TYPE_CHECKING:
    import ssl

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.ha_tls import TlsWriter
    from oberth.broker.slave_tables import SlaveTables
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.busy_poll import BusyPoll
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.client import RemotingClient
    from oberth.remoting.command import RemotingCommand
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
RECONNECT_S: Final = 1.0
METADATA_PERIOD_S: Final = 10.0
TIMER_PERIOD_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 3.0
IDLE_POLL_S: Final = 0.02
"""How long a master's connection sleeps at most while its slave has everything."""
UNSURE_MAX_S: Final = 10.0
"""How long a slave that has just started refuses readers, if it cannot learn from the master that
is said to be there whether its log is that master's."""
TOLD_WITHIN_S: Final = 2.0
"""How long replicas may take to have what a table counts; they wait for it for three seconds."""
UNTOLD_BYTES_MAX: Final = 16 << 20
"""Of responses that are kept for that time, or one if it is longer; more are refused at once."""
_LATE: Final = "the slave does not have the log yet up to what this counts"
UNSENT_REPORTS_MAX: Final = 4096
"""Bytes of reports that wait for a master to read them; a later report says what these say."""
HA_ALLOWED_OPTION: Final = "haAllowedAddresses"
"""The key under which a broker names who may read its log."""

CONNECTIONS_MAX: Final = 64
"""Connections on the HA port. One more takes the place of the oldest that has not reported."""

Finish = Callable[[PutMessageStatus], None]


class _Untold(NamedTuple):
    """A response for a slave that has the log up to ``end``, and until when (loop time)."""

    end: int
    until_s: float
    channel: Channel
    request: RemotingCommand
    response: RemotingCommand


class HAService:
    """The replication of one broker. Everything runs on the broker's loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        topics: TopicConfigs,
        tables: SlaveTables,
        client: RemotingClient,
        now_ms: Callable[[], int],
        dispatch_soon: Callable[[], None],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._now_ms = now_ms
        self._dispatch_soon = dispatch_soon
        self._client = client
        self._topics = topics
        self.tables = tables
        """What a slave takes from its master beside the log."""
        self._allowed = AddressSet(config.ha_allowed_addresses, HA_ALLOWED_OPTION)
        self.replicas = ReplicaTable(store_config.ha_max_gap_not_in_sync)
        self.is_slave = config.broker_id > 0 or store_config.broker_role is BrokerRole.SLAVE
        self._is_sync = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.port = 0
        self.master_address: str | None = None
        """Where the master serves requests, as the name servers say; for slaves."""
        self.master_flush_offset = 0
        """What the master has on disk, as it said; for slaves."""
        self.acts = False
        """Whether this slave stands in for its master, see `ActingMaster`."""
        self.is_isolated = False
        """Whether this member is not online yet."""
        self.may_be_cut = False
        """Whether what other replicas lack is cut off this log when another becomes the master."""
        self.parted_at: int | None = None
        """The first offset at which this slave's log is another than its master's, see `part`."""
        self._sure_at = 0.0
        """Time of the loop from which a slave serves readers whether or not its log has joined on
        its master's. Before, it may end with messages that no other replica ever had."""
        self.look_at_log: Callable[[], Awaitable[bool]] | None = None
        """Compares the end of a slave's log with its master's before it follows, and mends it."""
        self.on_parted: Callable[[], None] = lambda: None
        """Called when `parted_at` has become an offset, or None again."""
        self._other_size = 0  # of a master's segments, as was said last
        self._unfit_master: str | None = None  # whose log showed that its segments are larger
        self._link = MasterLink()
        self._followed: HAConnection | None = None
        self._served: dict[Replica, None] = {}  # in the order of their coming
        self._untold: list[_Untold] = []
        self._untold_bytes = 0  # of responses that are kept
        self.master_ha_address = store_config.ha_master_address
        """Where the master's HA port is, "" while nobody has said so; for slaves."""
        self._server: asyncio.Server | None = None
        self.tls: ssl.SSLContext | None = None
        """What both ends of the HA port speak, None for plain text."""
        self._is_closing = False
        self.busy_poll: BusyPoll | None = None
        """Keeps the loop awake: for a master's sender, while it waits; for a slave's master."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def follows_master(self) -> bool:
        """Whether this is a slave whose master is there."""
        return self.is_slave and self._link.is_active

    @property
    def delivers(self) -> bool:
        """Whether this broker delivers what is due: a master, or who stands in for one."""
        return self.acts if self.is_slave else not self.is_isolated

    @property
    def refuses_readers(self) -> str | None:
        """Why this slave serves no reader now; None: it does."""
        if self.parted_at is not None:
            return f"this slave's log is another than its master's from offset {self.parted_at} on"
        if self._sure_at and self._knows_master and not self.acts:
            if self._now_s() < self._sure_at:
                return "this slave does not know yet whether its log is its master's"
            self._sure_at = 0.0
        return None

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def _knows_master(self) -> bool:
        return bool(self.master_ha_address)

    def is_followed_from(self, address: str) -> bool:
        """Whether a slave at an address, whatever its port, has said how far it is."""
        host, reported = peer_address(parse_address(address)).host, self.replicas.acked
        return any(each in reported and each.address.host == host for each in self._served)

    # Life

    def before_readers(self) -> None:
        """The store is loaded, and the broker is about to serve."""
        if self.is_slave and self._may_have_been_alone():
            self._sure_at = self._now_s() + UNSURE_MAX_S

    async def start(self, port: int) -> None:
        """Listen as a master, or follow a master.

        Args:
            port: to listen on; 0 for any.
        """
        if self._config.ha_tls_cert_path:
            from oberth.broker.ha_tls import master_context, slave_context  # noqa: PLC0415 - OpenSSL: 30 ms of a start

            self.tls = (slave_context if self.is_slave else master_context)(self._config)
        if self.is_slave:
            self._start(self._follow(), "oberth-ha-follow")
            self._start(self._synchronize(), "oberth-ha-metadata")
            if self.tables.timers is not None:
                self._start(self._follow_timer(), "oberth-ha-timer")
            return
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HAConnection(self._accepted), self._config.listen_host, port
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
            await stop_accepting(self._server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _start(self, work: Any, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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

    def answer_behind_log(
        self, channel: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> RemotingCommand | None:
        """A response that says what was delivered, or handed out: now, or None and it follows.

        What was delivered is in the log. A replica that is told and lacks that part of the log
        passes by those messages if it becomes the master. So a slave that follows is told when it
        has the log so far, and refused if that takes long; a slave of ours asks only once it does.
        """
        untold = _Untold(
            self._store.appended_offset,
            asyncio.get_running_loop().time() + TOLD_WITHIN_S,
            channel,
            request,
            response,
        )
        if not self._lags(untold):
            return response
        if not self._keep(response):
            return create_response(request, ResponseCode.SYSTEM_ERROR, _LATE)
        self._untold.append(untold)
        return None

    def _keep(self, response: RemotingCommand) -> bool:
        """Whether there is room to keep a response; `_kept` gives it back."""
        size = len(response.body)
        if self._untold_bytes and self._untold_bytes + size > UNTOLD_BYTES_MAX:
            return False
        self._untold_bytes += size
        return True

    def _kept(self, response: RemotingCommand) -> None:
        self._untold_bytes -= len(response.body)

    def _lags(self, untold: _Untold) -> bool:
        """Whether a slave at an address is not as far as what it asked for, or has not said so."""
        host, acked = untold.channel.remote.host, self.replicas.acked
        return any(
            acked.get(each, -1) < untold.end and each.address.host == host
            for each in self._served
            if self._may_take_over(each)
        )

    def _may_take_over(self, replica: Replica) -> bool:
        """Whether a peer on the HA port may become the master some day."""
        del replica
        return True

    def _tell(self, now_s: float) -> None:
        untold, self._untold = self._untold, []
        for each in untold:
            is_late = self._lags(each)
            if is_late and now_s < each.until_s:
                self._untold.append(each)
                continue
            self._kept(each.response)
            late = create_response(each.request, ResponseCode.SYSTEM_ERROR, _LATE)
            each.channel.reply(each.request, late if is_late else each.response)

    def to_body(self) -> dict[str, Any]:
        """What GET_BROKER_HA_STATUS shows. RocketMQ: HARuntimeInfo."""
        store = self._store
        end = store.max_phy_offset
        link = self._link
        acked = self.replicas.acked
        slaves = [
            {
                "addr": str(each.address),
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
                "masterAddr": self.master_ha_address,
                "transferredByteInSecond": link.bytes_per_s,
                "maxOffset": end if self.is_slave else 0,
                "lastReadTimestamp": link.last_read_ms,
                "lastWriteTimestamp": link.last_write_ms,
                "masterFlushOffset": self.master_flush_offset,
                "activated": link.is_active,
            },
        }

    def on_append(self) -> None:
        """The log has grown: slaves that had everything are sent the rest in this turn."""
        for each in self._served:
            if each.is_idle:
                self._push(each)

    def _push(self, replica: Replica) -> None:
        try:
            if not replica.push(asyncio.get_running_loop().time()):
                replica.wake.set()
        except RemoteProtocolError as error:
            replica.connection.end(error)

    def on_time(self, now_ms: int) -> None:
        del now_ms
        now_s = asyncio.get_running_loop().time()
        for done, status in self.replicas.expire(now_s):
            done(status)
        for each in self._served:
            each.rate(now_s)
        if self._untold:
            self._tell(now_s)

    # The master's side

    def _accepted(self, connection: HAConnection) -> None:
        if self._is_closing:  # it was accepted just before
            connection.transport.abort()
            return
        task = self._start(self._serve(connection), "oberth-ha-slave")
        # Not close(): a peer that does not read would keep what is written until it does.
        task.add_done_callback(lambda _: connection.transport.abort())

    async def _serve(self, connection: HAConnection) -> None:
        peer = peer_address(connection.transport.get_extra_info("peername"))
        if self._allowed and peer.host not in self._allowed:
            _LOG.warning(
                "replica %s was disconnected: its address is not in %s", peer, HA_ALLOWED_OPTION
            )
            return
        if not self._make_room():
            _LOG.warning(
                "replica %s was disconnected: %d replicas are connected already",
                peer,
                CONNECTIONS_MAX,
            )
            return
        loop = asyncio.get_running_loop()
        tls = self._tls_writer(connection)
        replica = Replica(peer, self._make_sender(), loop.time(), connection, tls or connection)
        self._served[replica] = None
        sending: list[asyncio.Task[None]] = []
        receive_data = self._make_receiver(replica)

        def take(data: bytes | memoryview) -> None:
            offset = receive_data(data if tls is None else tls.receive(data))
            if offset is None:
                return
            replica.sender.on_report(offset)
            if not sending:
                sending.append(loop.create_task(self._send(replica), name="oberth-ha-send"))
            self._reported(replica, offset)

        try:
            connection.attach(take)
            silence_max_s = self._store_config.ha_housekeeping_interval_ms / 1000
            while (left_s := connection.last_read_s + silence_max_s - loop.time()) > 0:
                if await connection.wait_ended(left_s):
                    return
            _LOG.warning("replica %s was disconnected: it has not reported for too long", peer)
        except RemoteProtocolError as error:
            _LOG.error("the connection of replica %s has ended: %s", peer, error)
        except OSError as error:
            _LOG.info("the connection of replica %s has ended: %s", peer, error)
        finally:
            self.replicas.on_close(replica)
            self._served.pop(replica, None)
            for task in sending:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _reported(self, replica: Replica, offset: int) -> None:
        """A slave has the log so far: who waited for that is answered in this turn."""
        satisfied = self.replicas.on_report(replica, offset)
        for done, status in satisfied:
            done(status)
        if satisfied and self.busy_poll is not None:
            self.busy_poll.answered()
        if self._untold:
            self._tell(asyncio.get_running_loop().time())
        if replica.sender.has_news:
            self.on_append()

    def _make_sender(self) -> LogSender:
        """What one slave is sent."""
        config = self._store_config
        return LogSender(
            self._store.commit_log,
            config.ha_transfer_batch_size,
            from_last_file=config.sync_from_last_file,
        )

    def _make_receiver(self, replica: Replica) -> Callable[[bytes | memoryview], int | None]:
        """What takes reports out of the bytes of one slave."""
        del replica
        return ReportReceiver().receive_data

    def _tls_writer(self, connection: HAConnection) -> TlsWriter | None:
        """What stands between a slave's socket and its reports, if it must speak TLS."""
        if self.tls is None:
            return None
        from oberth.broker.ha_tls import TlsWriter  # noqa: PLC0415 - OpenSSL: 30 ms of a start

        return TlsWriter(connection, self.tls)

    def _make_room(self) -> bool:
        """Whether one more connection may stay; closes one that has said nothing yet if need be."""
        if len(self._served) < CONNECTIONS_MAX:
            return True
        for each in self._served:
            if each.sender.next_offset < 0:
                _LOG.warning(
                    "replica %s was disconnected in favour of another one: it had not reported yet",
                    each.address,
                )
                del self._served[each]
                each.connection.transport.abort()
                return True
        return False

    async def _send(self, replica: Replica) -> None:
        """Sends one slave what it lacks, and heartbeats; what is appended, who appends sends."""
        sender, connection, wake = replica.sender, replica.connection, replica.wake
        loop = asyncio.get_running_loop()
        interval_s = self._store_config.ha_send_heartbeat_interval_ms / 1000
        while True:
            wake.clear()
            await self._bring_in(replica)
            replica.is_idle = True
            self._push(replica)
            if wake.is_set():
                replica.is_idle = False
                await connection.drain()
                await asyncio.sleep(0)
                continue
            if sender.next_offset >= 0 and loop.time() - replica.wrote_at_s >= interval_s:
                replica.beat(loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_POLL_S):
                    await wake.wait()

    async def _bring_in(self, replica: Replica) -> None:
        """Has a thread read what a slave that is far behind is sent next, if it is not in memory.

        Else this broker's loop waits for the disk with everybody who sends.
        """
        log, start = self._store.commit_log, replica.sender.next_offset
        if not log.min_offset <= start < log.max_offset - WARM_BYTES:
            return
        size = log.queue.file_size
        end = min(start + TURN_BYTES, start - start % size + size)
        if not log.is_resident(start, end):
            replica.is_idle = False
            await asyncio.to_thread(log.bring_in, start, end)

    # The slave's side

    @property
    def lacks_master(self) -> bool:
        """Whether a slave waits for a name server to say where its master is."""
        return self.is_slave and not (self.master_ha_address and self.master_address)

    def master_found(self, master_address: str | None, ha_address: str | None) -> None:
        """A name server has answered a slave's registration."""
        if master_address:
            self.master_address = master_address
        if ha_address and not self._store_config.ha_master_address:
            self.master_ha_address = ha_address

    def part(self, offset: int | None) -> None:
        """This slave's log is another than its master's from an offset on; None: it is no more.

        Which of the two histories counts is for people to say. Until then the slave confirms
        nothing, since it has not the bytes; it takes nothing, serves no reader, and stands in for
        nobody.
        """
        had, self.parted_at = self.parted_at, offset
        if (had is None) is (offset is None):
            return
        if offset is not None:
            _LOG.error(
                "this log is another than the master's from offset %d on: no more is taken from "
                "the master and nobody may read here; 'oberth store rejoin' cuts it there", offset,
            )  # fmt: skip
            if self._followed is not None:
                self._followed.transport.abort()
        self.on_parted()

    def _refuse_broken(self) -> None:
        """Raises StoreError after a failed sync: what was written since may be gone any time."""
        if self._store.flush_service.is_broken:
            raise StoreError(
                "this log could not be synced: nothing is taken or confirmed before the store is "
                "opened again"
            )

    def _may_have_been_alone(self) -> bool:
        """Whether a slave's log may end with messages that were read and no other replica has."""
        return self._store.max_phy_offset > 0

    def _connected(self) -> None:
        """The master is there. The end of this log was compared with its before."""
        self._joined()

    def _joined(self) -> None:
        """The slave's log is one that its master's goes on from, as far as anybody can say."""
        self._sure_at = 0.0

    async def _may_follow(self) -> bool:
        """Whether the end of this log is the master's, as far as anybody can say.

        Raises:
            StoreError: see `_refuse_broken`.
        """
        self._refuse_broken()
        joins_on = True
        if self.parted_at is None and self.look_at_log is not None:
            joins_on = await self.look_at_log()
        return joins_on and self.parted_at is None and self._store.damaged_from is None

    async def _follow(self) -> None:
        while True:
            address = self.master_ha_address
            if address:
                try:
                    if await self._may_follow():
                        await self._follow_once(address)
                except (OSError, TimeoutError, OberthError) as error:
                    _LOG.warning(
                        "replication from the master at %s is interrupted: %s",
                        address,
                        str(error) or type(error).__name__,
                    )
            await asyncio.sleep(RECONNECT_S)

    async def _connect(self, address: str) -> HAConnection:
        """A connection to a master's HA port."""
        host, port = parse_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                HAConnection, host, port, ssl=self.tls
            )
        return connection

    def _greeting(self) -> bytes:
        """What a slave says first."""
        return self._report()

    def _report(self) -> bytes:
        """How far a slave's log reaches, for its master."""
        return REPORT.pack(self._end_to_report())

    def _end_to_report(self) -> int:
        """The end of a slave's log; with SYNC_FLUSH of what is on its disk."""
        store = self._store
        return store.flushed_offset if self._is_sync else store.max_phy_offset

    @property
    def _may_report(self) -> bool:
        """Whether the master may hear how far this log reaches: it believes that it is the same."""
        return True

    def _make_link(self) -> LogStream:
        """What takes pieces of the log out of a master's bytes."""
        return LogReceiver(self._store_config.mapped_file_size_commit_log)

    async def _segments_fit(self, address: str) -> bool:
        """Whether the master's log has segments of the size of this one's; says so once if not.

        A master that does not say counts as one whose segments fit, until its log shows that they
        do not.
        """
        if address == self._unfit_master:
            return False
        own = self._store_config.mapped_file_size_commit_log
        size = own
        if self.master_address is not None:
            size = await self.tables.segment_size(self.master_address) or own
        if size not in (own, self._other_size):
            _LOG.error(
                "nothing is taken from the master at %s: its log has segments of %d bytes, this "
                "one of %d, and both must have the same. Start this slave with "
                "mappedFileSizeCommitLog=%d on an empty store", address, size, own, size,
            )  # fmt: skip
        self._other_size = size
        return size == own

    def _does_not_join(self, piece: LogPiece) -> RemoteProtocolError:
        """Why a piece of the master's log cannot be appended."""
        at, own = piece.commit_log_offset, self._store_config.mapped_file_size_commit_log
        text = f"{piece.size} bytes at {at} do not join on"
        if at % own + piece.size > own:
            # They would not the next time either: nobody can change the size of a log.
            self._unfit_master = self.master_ha_address
            text += (
                f": they reach over the end of a segment of {own} bytes, the master's segments are "
                "larger. Nothing more is taken from it; start this slave with its "
                "mappedFileSizeCommitLog on an empty store"
            )
        return RemoteProtocolError(text)

    async def _follow_once(self, address: str) -> None:
        if not await self._segments_fit(address):
            return
        config = self._store_config
        connection = await self._connect(address)
        self._connected()
        loop = asyncio.get_running_loop()
        link, now_ms = self._link, self._now_ms
        received_before = link.received_bytes
        receiver = self._make_link()
        interval_s = config.ha_send_heartbeat_interval_ms / 1000
        silence_max_s = config.ha_housekeeping_interval_ms / 1000
        link.is_active = True
        self._followed = connection
        appended = asyncio.Event()
        syncing: asyncio.Task[None] | None = None
        try:
            if self._is_sync:
                # A master sends from the first report on: it must be the log's end.
                store = self._store
                await asyncio.to_thread(store.flush)
                if store.flushed_offset < store.max_phy_offset:
                    raise StoreError("the log cannot be synced, so nothing can be confirmed")
                syncing = asyncio.create_task(self._report_synced(connection, appended))
            connection.write(self._greeting())
            link.last_write_ms = now_ms()

            def take(data: bytes | memoryview) -> memoryview:
                unread = self._take_log(connection, receiver, data)
                appended.set()
                return unread

            connection.attach(take)
            while loop.time() - connection.last_read_s < silence_max_s:
                if await connection.wait_ended(interval_s):
                    if link.received_bytes == received_before:
                        _LOG.warning(
                            "replication from %s: closed before anything came; this log ends at "
                            "%d. The master's log says why; 'oberth store rejoin' cuts a log that "
                            "the master does not go on from", address, self._store.max_phy_offset,
                        )  # fmt: skip
                    return
                if loop.time() - connection.last_read_s >= interval_s and self._may_report:
                    connection.write(self._report())
                    link.last_write_ms = now_ms()
        finally:
            link.is_active = link.is_answered = False
            self._followed = None
            if syncing is not None:
                syncing.cancel()
                await asyncio.gather(syncing, return_exceptions=True)
            connection.transport.close()

    def _take_log(
        self,
        connection: HAConnection,
        receiver: LogStream,
        data: bytes | memoryview,
    ) -> memoryview:
        """Appends what came of the master's log, and reports it in the same turn.

        Returns:
            What is to be taken in the next turn.
        """
        came = perf_counter()
        self._refuse_broken()
        store, link = self._store, self._link
        pieces = 0
        for piece in receiver.receive_data(data):
            end = store.max_phy_offset
            if end not in (0, piece.commit_log_offset):
                raise RemoteProtocolError(
                    f"the master sends from {piece.commit_log_offset} on, this log ends at {end}"
                )
            if not piece.size:
                continue
            if not store.append_replica(piece.commit_log_offset, *piece.parts):
                raise self._does_not_join(piece)
            # One message by itself is perhaps one that its sender waits for.
            is_one = len(piece.parts) == 1 and stated_size(piece.parts[0]) == piece.size
            pieces += 1 if is_one else 2
        unread = receiver.unread
        link.received(len(data) - len(unread), self._now_ms(), connection.last_read_s)
        is_read = connection.transport.get_write_buffer_size() < UNSENT_REPORTS_MAX
        if is_read and self._may_report:
            connection.write(self._report())
            link.last_write_ms = link.last_read_ms
        self._dispatch_soon()
        if pieces and self.busy_poll is not None:
            self.busy_poll.served(connection, pieces, came)
        return unread

    async def _report_synced(self, connection: HAConnection, appended: asyncio.Event) -> None:
        """With SYNC_FLUSH: syncs what was appended, and tells the master how far it came."""
        store = self._store
        while True:
            await appended.wait()
            appended.clear()
            before = store.flushed_offset
            await asyncio.to_thread(store.flush)
            if store.flushed_offset > before:
                if self._may_report:
                    connection.write(self._report())
                self._dispatch_soon()

    async def _synchronize(self) -> None:
        """Topics, groups and offsets of the master, again and again."""
        while True:
            if self.master_address is not None and not self.acts:
                try:
                    await self.tables.take_all(
                        self.master_address, with_offsets=self._link.is_answered
                    )
                except (OberthError, OSError) as error:  # a full disk, too
                    _LOG.warning(
                        "topics, groups and offsets could not be fetched from the master at %s: %s",
                        self.master_address,
                        error,
                    )
            await asyncio.sleep(METADATA_PERIOD_S if self.master_address else RECONNECT_S)

    async def _follow_timer(self) -> None:
        """How far the master's timer has come, again and again. RocketMQ: the same every 3 s."""
        while True:
            address = self.master_address
            if address is not None and not self.acts and self._link.is_answered:
                try:
                    await self.tables.follow_timer(address)
                except (OberthError, OSError) as error:
                    _LOG.warning(
                        "the timer's check point could not be fetched from the master at %s: %s",
                        address,
                        error,
                    )
            await asyncio.sleep(TIMER_PERIOD_S if address else RECONNECT_S)
