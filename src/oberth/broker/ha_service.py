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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OberthError, RemoteProtocolError, RemotingError
from oberth.formats.config_json import parse_config
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.options import Line
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.store.messages import PutMessageStatus
from oberth.store.replication import (
    REPORT,
    LogReceiver,
    LogSender,
    ReplicaTable,
    ReportReceiver,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker

_LOG: Final = logging.getLogger("oberth.broker")

CONNECT_TIMEOUT_S: Final = 3.0
RECONNECT_S: Final = 1.0
METADATA_PERIOD_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 3.0
IDLE_POLL_S: Final = 0.02
"""How long a master's connection sleeps at most while its slave has everything."""
READ_SIZE: Final = 256 * 1024

Finish = Callable[[PutMessageStatus], None]


class Replica:
    """One slave's connection, and how fast it is served."""

    __slots__ = ("_rated_at_s", "_rated_bytes", "address", "bytes_per_s", "sender", "sent_bytes")

    def __init__(self, address: str, sender: LogSender, now_s: float) -> None:
        self.address = address
        self.sender = sender
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.store_config
        self.replicas = ReplicaTable(config.ha_max_gap_not_in_sync)
        self.is_slave = broker.config.broker_id > 0 or config.broker_role is BrokerRole.SLAVE
        self.port = 0
        self.master_address: str | None = None
        """Where the master serves requests, as the name servers say; for slaves."""
        self.master_flush_offset = 0
        """What the master has on disk, as it said; for slaves."""
        self._link = MasterLink()
        self._served: set[Replica] = set()
        self._master_ha_address = config.ha_master_address
        self._server: asyncio.Server | None = None
        self._grown = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    async def start(self, port: int) -> None:
        """Listen as a master, or follow a master.

        Args:
            port: to listen on; 0 for any.
        """
        if self.is_slave:
            self._start(self._follow(), "oberth-ha-follow")
            self._start(self._synchronize(), "oberth-ha-metadata")
            return
        self._server = await asyncio.start_server(
            self._serve, self._broker.config.listen_host, port, limit=READ_SIZE
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._broker.store.waits_for_replicas = self.needed_acks() > 0
        self._broker.ticks.append(self._on_time)

    async def aclose(self) -> None:
        """End every connection."""
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
        config = self._broker.store_config
        if config.broker_role is not BrokerRole.SYNC_MASTER:
            return 0
        if config.line is Line.V4_9:
            return 1
        needed = config.in_sync_replicas
        if config.enable_auto_in_sync_replicas:
            present = self.replicas.in_sync_count(self._broker.store.max_phy_offset)
            needed = max(min(needed, present), config.min_in_sync_replicas)
        return max(needed - 1, 0)

    def refuses_puts(self) -> bool:
        """Whether too few replicas are in sync for a put to be taken at all."""
        config = self._broker.store_config
        if config.broker_role is not BrokerRole.SYNC_MASTER or config.min_in_sync_replicas <= 1:
            return False
        present = self.replicas.in_sync_count(self._broker.store.max_phy_offset)
        return present < config.min_in_sync_replicas

    def when_replicated(self, end_offset: int, flushed: PutMessageStatus, finish: Finish) -> None:
        """Calls ``finish`` once enough slaves have the log up to an offset, or time is up.

        The replicas' status wins over that of the flush, as in RocketMQ.
        """
        needed = self.needed_acks()
        if needed == 0 or self.replicas.has(end_offset, needed):
            finish(flushed)
            return
        config = self._broker.store_config
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
        store = self._broker.store
        end = store.max_phy_offset
        link = self._link
        acked = self.replicas.acked
        slaves = [
            {
                "addr": each.address,
                "slaveAckOffset": acked.get(each, 0),
                "diff": end - acked.get(each, 0),
                "inSync": end - acked.get(each, 0)
                < self._broker.store_config.ha_max_gap_not_in_sync,
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
        """The log has grown: whoever has sent everything goes on."""
        if len(self.replicas) or self._tasks:
            self._grown.set()

    def _on_time(self, now_ms: int) -> None:
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
        peer = writer.get_extra_info("peername")
        config = self._broker.store_config
        sender = LogSender(
            self._broker.store.commit_log,
            config.ha_transfer_batch_size,
            from_last_file=config.sync_from_last_file,
        )
        loop = asyncio.get_running_loop()
        replica = Replica(f"{peer[0]}:{peer[1]}", sender, loop.time())
        self._served.add(replica)
        sending = loop.create_task(self._send(replica, writer))
        try:
            reports = ReportReceiver()
            while True:
                async with asyncio.timeout(config.ha_housekeeping_interval_ms / 1000):
                    data = await reader.read(READ_SIZE)
                if not data:
                    return
                offset = reports.receive_data(data)
                if offset is None:
                    continue
                sender.begin(offset)
                for done, status in self.replicas.on_report(replica, offset):
                    done(status)
                self._grown.set()
        except TimeoutError:
            _LOG.warning("replica %s: no report for too long, closed", peer)
        except RemoteProtocolError as error:
            _LOG.error("replica %s: %s", peer, error)
        except OSError as error:
            _LOG.info("replica %s: %s", peer, error)
        finally:
            self.replicas.on_close(replica)
            self._served.discard(replica)
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            writer.close()

    async def _send(self, replica: Replica, writer: asyncio.StreamWriter) -> None:
        sender = replica.sender
        loop = asyncio.get_running_loop()
        interval_s = self._broker.store_config.ha_send_heartbeat_interval_ms / 1000
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
            if sender.next_offset >= 0 and loop.time() - wrote_at >= interval_s:
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
        if ha_address and not self._broker.store_config.ha_master_address:
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

    async def _follow_once(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        config = self._broker.store_config
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=READ_SIZE)
        store = self._broker.store
        receiver = LogReceiver()
        interval_s = config.ha_send_heartbeat_interval_ms / 1000
        silent_s = 0.0
        link = self._link
        now_ms = self._broker.now_ms
        link.is_active = True
        try:
            writer.write(REPORT.pack(store.max_phy_offset))
            link.last_write_ms = now_ms()
            while silent_s < config.ha_housekeeping_interval_ms / 1000:
                try:
                    async with asyncio.timeout(interval_s):
                        data = await reader.read(READ_SIZE)
                except TimeoutError:
                    silent_s += interval_s
                    writer.write(REPORT.pack(store.max_phy_offset))
                    link.last_write_ms = now_ms()
                    continue
                if not data:
                    return
                silent_s = 0.0
                link.received(len(data), now_ms(), asyncio.get_running_loop().time())
                for piece in receiver.receive_data(data):
                    end = store.max_phy_offset
                    if end not in (0, piece.commit_log_offset) and piece.data:
                        raise RemoteProtocolError(
                            f"the master sends from {piece.commit_log_offset}, "
                            f"this log ends at {end}"
                        )
                    if piece.data and not store.append_replica(piece.commit_log_offset, piece.data):
                        raise RemoteProtocolError(
                            f"{len(piece.data)} bytes at {piece.commit_log_offset} do not join on"
                        )
                writer.write(REPORT.pack(store.max_phy_offset))
                link.last_write_ms = link.last_read_ms
                self._broker.dispatch_soon()
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

        Raises:
            RemotingError: the master cannot be asked.
            ConfigFormatError: it answered something else.
        """
        broker = self._broker
        address = self.master_address
        client = broker.client
        if address is None or client is None:
            return
        for code, read in (
            (RequestCode.GET_ALL_TOPIC_CONFIG, broker.topics_from_master),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, broker.groups.read),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, broker.offsets.read),
            (RequestCode.GET_ALL_DELAY_OFFSET, broker.schedule.read),
        ):
            response = await client.invoke(address, create_request(code), REQUEST_TIMEOUT_S)
            if response.code == ResponseCode.SUCCESS and response.body:
                read(parse_config(response.body_bytes(), name=f"{address} {code.name}"))
        broker.metadata_replaced()
