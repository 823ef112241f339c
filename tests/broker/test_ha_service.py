"""A slave gets its master's log and tables, and a SYNC_MASTER waits for it.

Two real brokers and a name server on loopback, asked through the raw remoting client.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.small_brokers import SEGMENT, make, options_of, until

from oberth.broker import ha_service
from oberth.broker.broker import Broker
from oberth.broker.ha_connection import HAConnection, Replica
from oberth.broker.ha_service import CONNECTIONS_MAX
from oberth.broker.recall_handle import RecallHandle
from oberth.cli.main import oberth
from oberth.errors import OptionError, RemoteProtocolError, StoreFullError
from oberth.formats import names
from oberth.formats.message_id import offset_message_id
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.remoting.aio.busy_poll import BusyPoll
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.tls import make_certificate
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.store.commit_log import CommitLog
from oberth.store.files import DiskUsage, Mapping, OsFileSystem
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.replication import (
    FRAME,
    FRAME_SIZE_MAX,
    FRAMES_MAX,
    REPORT,
    LogReceiver,
    LogSender,
    ReplicaTable,
    ReportReceiver,
)


def put(broker: Broker, count: int, size: int = 300) -> None:
    broker.parts.store.append_messages(
        [
            MessageExtBrokerInner.of("t", bytes([n % 250]) * size, keys=f"k{n}", queue_id=n % 2)
            for n in range(count)
        ]
    )
    broker.services.dispatching.soon()


async def test_a_slave_follows_and_its_log_is_equal(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put(master, 700)
        master.parts.topics.create_internal("fresh", 3)
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(
                lambda: slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset
            )
            put(master, 300)
            await until(
                lambda: slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset
            )
            await until(lambda: slave.parts.store.dispatch_behind_bytes == 0)
            assert slave.parts.store.max_offset_in_queue("t", 1) == 500
            status = master.services.ha.to_body()
            assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
            (shown,) = status["haConnectionInfo"]
            assert shown["inSync"]
            assert shown["transferFromWhere"] == master.parts.store.max_phy_offset
            link = slave.services.ha.to_body()["haClientRuntimeInfo"]
            assert (link["activated"], link["maxOffset"]) == (
                True,
                slave.parts.store.max_phy_offset,
            )
            assert link["masterAddr"] == master.parts.own.ha_address
            found = slave.parts.store.query_message("t", "k7", 9, 0, 2**62)
            assert found.commit_log_offsets == (
                master.parts.store.query_message("t", "k7", 9, 0, 2**62).commit_log_offsets
            )
            await until(lambda: slave.parts.topics.get("fresh") is not None)
            refused = slave.parts.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
            assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            end = slave.parts.store.max_phy_offset
    for name in sorted(path.name for path in (tmp_path / "a" / "commitlog").iterdir()):
        limit = min(SEGMENT, end - int(name))
        original = (tmp_path / "a" / "commitlog" / name).read_bytes()[:limit]
        assert (tmp_path / "b" / "commitlog" / name).read_bytes()[:limit] == original


def equal(master: Broker, slave: Broker) -> bool:
    return slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset


async def test_a_slave_goes_on_after_a_restart(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put(master, 100)
        for _ in range(2):
            async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
                await until(partial(equal, master, slave))
            put(master, 50)


async def test_a_slave_goes_on_after_addresses_that_are_none(
    tmp_path: Path,
    name_server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A name server says what somebody has registered; it ended the task that follows."""
    monkeypatch.setattr(ha_service, "RECONNECT_S", 0.01)
    async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
        for address in ("nowhere", "127.0.0.1:x", "a..b:10912"):
            slave.services.ha.master_found(None, address)
            await until(partial(told, f"the master at {address} is", caplog))
        async with make(tmp_path / "a", name_server) as master:
            put(master, 10)
            slave.services.ha.master_found(
                str(master.address), f"127.0.0.1:{master.services.ha.port}"
            )
            await until(partial(equal, master, slave))


async def test_an_append_wakes_what_sends_it_to_slaves(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_service, "IDLE_POLL_S", 1e6)
    slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
    async with make(tmp_path / "a", name_server) as master, slave:
        await until(lambda: len(master.services.ha.replicas))
        for _ in range(3):
            put(master, 5)
            await until(partial(equal, master, slave))


async def test_an_append_is_sent_before_the_loop_turns(tmp_path: Path, name_server: str) -> None:
    slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
    async with make(tmp_path / "a", name_server) as master, slave:
        await until(lambda: len(master.services.ha.replicas))
        put(master, 5)
        await until(partial(equal, master, slave))
        # Whoever sends what a slave lacked is done when the slave has it, or in the next turn.
        await asyncio.sleep(0)
        put(master, 5)
        (shown,) = master.services.ha.to_body()["haConnectionInfo"]
        assert shown["transferFromWhere"] == master.parts.store.max_phy_offset
        assert not equal(master, slave)


class Polls:
    """Stands where a BusyPoll stands."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.answers = 0

    def served(self, channel: object, count: int, came: float) -> None:
        del channel, came
        self.counts.append(count)

    def answered(self) -> None:
        self.answers += 1


async def test_both_ends_stay_awake_for_a_lone_sender(tmp_path: Path, name_server: str) -> None:
    options = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "100000"}
    slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
    async with make(tmp_path / "a", name_server, **options) as master, slave:
        await until(lambda: len(master.services.ha.replicas))
        of_master, of_slave = Polls(), Polls()
        master.services.ha.busy_poll = cast(BusyPoll, of_master)
        slave.services.ha.busy_poll = cast(BusyPoll, of_slave)
        assert await acknowledged(master) is PutMessageStatus.PUT_OK
        assert of_slave.counts == [1]
        assert of_master.answers == 1
        put(master, 3)
        await until(partial(equal, master, slave))
        assert of_slave.counts[1] > 1, "several in one piece: nobody waits for one of them alone"
        assert of_master.answers == 1, "nobody was answered"


class SmallDisk(OsFileSystem):
    """A disk with room for five segments of a log, and none for a sixth."""

    ROOM = 5

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        folder = Path(path).parent
        if create and folder.name == "commitlog" and not Path(path).exists():
            usage = self.disk_usage(str(folder))
            if usage.used >= usage.total:
                raise StoreFullError(f"{path}: no room for {size} bytes")
        return super().map(path, size, create=create, writable=writable)

    def disk_usage(self, path: str) -> DiskUsage:
        log = Path(path) if Path(path).name == "commitlog" else Path(path).parent / "commitlog"
        used = sum(1 for each in log.glob("0*")) if log.is_dir() else 0
        return DiskUsage(self.ROOM * SEGMENT, used * SEGMENT)


async def test_a_slave_with_a_smaller_disk_stops_and_goes_on_when_it_may_delete(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"cleanResourceInterval": "20", "cleanFileForciblyEnable": "false"}
    async with make(tmp_path / "a", name_server) as master:
        put(master, 2000)
        end = master.parts.store.max_phy_offset
        assert end > (SmallDisk.ROOM + 3) * SEGMENT
        options = options_of(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE", **small)
        slave = Broker(*options, files=SmallDisk())
        async with slave:
            await until(lambda: re.search("replication from .*: .*no room", caplog.text))
            kept = slave.parts.store
            assert (kept.commit_log.min_offset, kept.max_phy_offset) == (
                0, SmallDisk.ROOM * SEGMENT,
            )  # fmt: skip
            command = ["cluster", "config", "set", str(slave.address), "-n", name_server]
            done = await asyncio.to_thread(
                CliRunner().invoke, oberth, [*command, "cleanFileForciblyEnable=true"]
            )
            assert done.exit_code == 0, done.output
            await until(partial(equal, master, slave))
            assert 0 < kept.commit_log.min_offset < end
            await until(lambda: kept.dispatch_behind_bytes == 0)
            assert kept.max_offset_in_queue("t", 1) == 1000


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_slave_that_could_not_sync_takes_nothing_before_it_is_opened_again(
    tmp_path: Path, name_server: str, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"brokerId": "1", "brokerRole": "SLAVE", "flushDiskType": flush}
    async with make(tmp_path / "a", name_server, brokerRole="SYNC_MASTER") as master:
        put(master, 10)
        async with make(tmp_path / "b", name_server, **entries) as slave:
            await until(lambda: equal(master, slave))
            end = slave.parts.store.max_phy_offset
            slave.parts.store.flush_service.is_broken = True  # as a sync leaves it that fails
            put(master, 10)
            for _ in range(2):  # it is not tried again behind its back
                caplog.clear()
                await until(lambda: "nothing is taken or confirmed" in caplog.text)
                await until(lambda: not master.services.ha.replicas.acked)
            assert slave.parts.store.max_phy_offset == end
        async with make(tmp_path / "b", name_server, **entries) as slave:
            await until(lambda: equal(master, slave))


async def test_a_sync_master_waits_for_its_slave(tmp_path: Path, name_server: str) -> None:
    options = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "200"}
    async with make(tmp_path / "a", name_server, **options) as master:
        assert await acknowledged(master) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(
                lambda: slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset
            )
            await until(lambda: len(master.services.ha.replicas) == 1)
            master.parts.store_config.slave_timeout_ms = 10_000
            assert await acknowledged(master) is PutMessageStatus.PUT_OK
            assert slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset


async def test_too_few_replicas_refuse_a_put_before_the_log(
    tmp_path: Path, name_server: str
) -> None:
    options = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "minInSyncReplicas": "2",
        "flushDiskType": "SYNC_FLUSH",
    }
    waits = MessageExtBrokerInner("t", b"x")
    waits_not = MessageExtBrokerInner("t", b"y", wait_store_ok=False)
    refused = PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    async with make(tmp_path / "a", name_server, **options) as master:
        store = master.parts.store
        before = store.max_phy_offset
        assert store.put_message(waits).status is refused
        assert [each.status for each in store.append_messages([waits, waits])] == [refused] * 2
        assert store.max_phy_offset == before
        results = store.append_messages([waits, waits_not, waits])
        assert [each.status for each in results] == [refused, PutMessageStatus.PUT_OK, refused]
        assert store.max_phy_offset == results[1].end_offset
        answer = await send(master)
        assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
        assert store.max_phy_offset == results[1].end_offset
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE"):
            await until(lambda: not master.services.ha.refuses_puts())
            master.parts.store_config.slave_timeout_ms = 10_000
            assert (await send(master)).code == 0


async def test_what_a_consumer_sends_back_waits_for_replicas(
    tmp_path: Path, name_server: str
) -> None:
    """Once it is stored, too few of them are no error: clients would send another copy."""
    options = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "slaveTimeout": "200",
        "flushDiskType": "SYNC_FLUSH",
    }
    back = {"offset": "0", "group": "G", "delayLevel": "1"}
    async with make(tmp_path / "a", name_server, **options) as master:
        store = master.parts.store
        put(master, 1)
        await until(lambda: store.find_shown_message(0) is not None)
        assert (await call(master, 36, back)).code == 0
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            await until(lambda: equal(master, slave))
            await until(lambda: len(master.services.ha.replicas) == 1)
            master.parts.store_config.slave_timeout_ms = 10_000
            assert (await call(master, 36, back)).code == 0
            assert slave.parts.store.max_phy_offset == store.max_phy_offset
        await until(lambda: not master.services.ha.replicas.acked)
        master.parts.store_config.slave_timeout_ms = 200
        store.flush_service.is_broken = True  # as a sync leaves it that fails
        answer = await call(master, 36, back)
        assert (answer.code, answer.remark) == (1, "FLUSH_SLAVE_TIMEOUT")
    options["minInSyncReplicas"] = "2"
    async with make(tmp_path / "a", name_server, **options) as master:
        end = master.parts.store.max_phy_offset
        answer = await call(master, 36, back)
        assert (answer.code, answer.remark) == (1, "IN_SYNC_REPLICAS_NOT_ENOUGH")
        assert master.parts.store.max_phy_offset == end


async def test_a_recall_and_a_check_anew_are_answered_as_a_send_is(
    tmp_path: Path, name_server: str
) -> None:
    """Each appends a message of its own, and promises what that message does.

    The other processors that append beside sends promise less, or look at the status already: a
    reply (324) goes to who asked, and its copy is no more than that; what is acknowledged, or put
    off, of POP comes twice if it is lost (200051, 200053, 200151); what is sent back (36) and the
    end of a transaction (37) have tests of their own; timers, delays, checks and revivals append
    for nobody who waits, and try again.
    """
    options = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "slaveTimeout": "200",
        "flushDiskType": "SYNC_FLUSH",
        "timerWheelEnable": "true",
        "recallMessageEnable": "true",
    }

    async def answers(master: Broker) -> set[tuple[int, str | None]]:
        """Code and remark of a send, a recall, and a request to ask about a half again."""
        parts = master.parts
        deliver_ms = parts.now_ms() + 60_000
        handle = RecallHandle("t", parts.config.broker_name, deliver_ms, "K").encode()
        again = [
            await send(master),
            await call(master, 370, {"topic": "t", "recallHandle": handle}),
            await call(master, 323, {"msgId": half_id}),
        ]
        return {(each.code, each.remark) for each in again}

    async with make(tmp_path / "a", name_server, **options) as master:
        store = master.parts.store
        master.parts.topics.create_internal("t", 1)
        half = MessageExtBrokerInner(names.TRANS_HALF_TOPIC, b"x", wait_store_ok=False)
        (result,) = store.append_messages([half])
        half_id = offset_message_id(half.store_host, result.commit_log_offset)
        await until(lambda: store.find_message(result.commit_log_offset) is not None)
        assert await answers(master) == {(ResponseCode.FLUSH_SLAVE_TIMEOUT, None)}
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            await until(lambda: equal(master, slave))
            await until(lambda: len(master.services.ha.replicas) == 1)
            master.parts.store_config.slave_timeout_ms = 10_000
            assert await answers(master) == {(ResponseCode.SUCCESS, None)}
            store.flush_service.is_broken = True  # as a sync leaves it that fails
            assert await answers(master) == {(ResponseCode.FLUSH_DISK_TIMEOUT, None)}


async def send(master: Broker) -> RemotingCommand:
    fields = {"a": "PG", "b": "TBW102-made", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    fields |= {"g": "1700000000000", "h": "0", "j": "0", "k": "false", "m": "false"}
    return await call(master, 310, fields, b"x")


async def call(
    master: Broker, code: int, fields: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    client = RemotingClient()
    try:
        request = RemotingCommand(code=code, ext_fields=fields, body=body)
        return await client.invoke(str(master.address), request, 100.0)
    finally:
        await client.aclose()


async def test_auto_in_sync_replicas_waits_for_those_that_came_later(
    tmp_path: Path, name_server: str
) -> None:
    options = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "enableAutoInSyncReplicas": "true",
        "slaveTimeout": "50",
    }
    async with make(tmp_path / "a", name_server, **options) as master:
        assert await acknowledged(master) is PutMessageStatus.PUT_OK
        assert master.services.ha.needed_acks() == 0
        _, writer = await dial(master)
        writer.write(REPORT.pack(0))  # a slave that takes nothing of what it is sent
        await until(lambda: len(master.services.ha.replicas) == 1)
        assert master.services.ha.needed_acks() == 1
        assert await acknowledged(master) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        assert master.parts.store.waits_for_replicas
        writer.close()


@pytest.mark.parametrize("line", ["5.x", "4.9"])
async def test_a_sender_is_told_what_became_of_the_copies(
    tmp_path: Path, name_server: str, line: str
) -> None:
    options = {"inSyncReplicas": "2"} if line == "5.x" else {"rocketmqLine": line}
    options |= {"brokerRole": "SYNC_MASTER", "slaveTimeout": "50"}
    async with make(tmp_path / "a", name_server, **options) as master:
        nobody = ResponseCode.SLAVE_NOT_AVAILABLE if line == "4.9" else None
        late = ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert (await send(master)).code == (nobody or late)
        _, writer = await dial(master)
        writer.write(REPORT.pack(0))  # a slave that takes nothing of what it is sent
        await until(lambda: len(master.services.ha.replicas) == 1)
        assert (await send(master)).code == late
        writer.close()
        await until(lambda: not len(master.services.ha.replicas))
        master.parts.store_config.slave_timeout_ms = 100_000
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(lambda: len(master.services.ha.replicas) == 1)
            assert (await send(master)).code == ResponseCode.SUCCESS
            assert equal(master, slave)


async def acknowledged(master: Broker) -> PutMessageStatus:
    result = master.parts.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
    told: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    master.services.dispatching.when_durable(result.end_offset, told.set_result)
    return await told


async def dial(master: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", master.services.ha.port)


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (1 << 62, "it cannot have more"),
        (-1, "allowed is 0 or more"),
        (None, "does not become shorter"),  # half of what it reported before
    ],
)
async def test_a_later_report_that_cannot_be_true_closes_the_connection(
    tmp_path: Path,
    name_server: str,
    caplog: pytest.LogCaptureFixture,
    later: int | None,
    why: str,
) -> None:
    options = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "50"}
    async with make(tmp_path / "a", name_server, **options) as master:
        put(master, 100)
        end = master.parts.store.max_phy_offset
        reader, writer = await dial(master)
        writer.write(REPORT.pack(0))
        received = LogReceiver()
        had = 0
        while had < end:
            had += sum(each.size for each in received.receive_data(await reader.read(65536)))
        writer.write(REPORT.pack(end))
        await until(lambda: end in master.services.ha.replicas.acked.values())
        writer.write(REPORT.pack(end // 2 if later is None else later))
        await until(lambda: not len(master.services.ha.replicas))
        assert why in caplog.text
        assert await acknowledged(master) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        writer.close()


@pytest.mark.parametrize("sent", [b"\xff" * 40, REPORT.pack(0), REPORT.pack(1 << 62), b""])
async def test_a_closed_connection_leaves_nothing_to_the_collector(
    tmp_path: Path,
    name_server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
) -> None:
    """250 connections of garbage left 210 MB until the next collection of everything."""
    caplog.set_level(logging.CRITICAL, "oberth")  # pytest keeps records, and they the errors
    gone: asyncio.Queue[object] = asyncio.Queue()
    kept: list[weakref.ref[HAConnection]] = []
    made = HAConnection.connection_made

    def note(connection: HAConnection, transport: asyncio.BaseTransport) -> None:
        kept.append(weakref.ref(connection, gone.put_nowait))
        made(connection, transport)

    def has_come(count: int) -> bool:
        return len(kept) == count

    async with make(tmp_path / "a", name_server) as master:
        monkeypatch.setattr(HAConnection, "connection_made", note)
        gc.disable()
        try:
            for number in range(1, 4):
                reader, writer = await dial(master)
                writer.write(sent)
                await until(partial(has_come, number))
                if sent:
                    with contextlib.suppress(OSError):
                        await reader.read(1)  # it is answered, or closed
                writer.transport.abort()
                del reader, writer
            async with asyncio.timeout(20):
                for _ in range(3):
                    await gone.get()
        finally:
            gc.enable()
    assert len(kept) == 3


async def test_what_was_not_sent_is_not_acknowledged(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report up to the log's end, by a peer to which nothing of it was sent."""
    monkeypatch.setattr(LogSender, "next_frame", lambda _: None)
    options = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3", "slaveTimeout": "50"}
    async with make(tmp_path / "a", name_server, **options) as master:
        put(master, 1)
        first, second = await dial(master), await dial(master)
        for _, writer in (first, second):
            writer.write(REPORT.pack(master.parts.store.max_phy_offset))
        await until(lambda: len(master.services.ha.replicas) == 2)
        result = master.parts.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
        first[1].write(REPORT.pack(result.end_offset))
        await until(lambda: len(master.services.ha.replicas) == 1)
        assert not master.services.ha.replicas.has(result.end_offset, 1)
        for _, writer in (first, second):
            writer.close()


async def test_a_slave_whose_rest_was_deleted_is_told_so(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads slowly, and the master's retention overtakes it."""
    async with make(tmp_path / "a", name_server) as master:
        put(master, 600)
        log = master.parts.store.commit_log
        assert len(log.queue.segments) > 2
        reader, writer = await dial(master)
        with pytest.MonkeyPatch.context() as stalled:
            stalled.setattr(Replica, "push", lambda *_: True)
            writer.write(REPORT.pack(0))
            await until(lambda: len(master.services.ha.replicas) == 1)
            assert log.queue.remove_first(0)
        master.services.ha.on_append()
        async with asyncio.timeout(100):
            assert await reader.read() == b""
        assert f"it needs 0, this log begins at {log.min_offset}" in caplog.text
        writer.close()


async def test_what_a_slave_far_behind_is_sent_comes_from_the_disk_beside_the_loop(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_service, "WARM_BYTES", SEGMENT)
    brought: list[tuple[int, int]] = []

    def bring_in(_: CommitLog, start: int, end: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        brought.append((start, end))

    monkeypatch.setattr(CommitLog, "is_resident", lambda *_: False)
    monkeypatch.setattr(CommitLog, "bring_in", bring_in)
    async with make(tmp_path / "a", name_server) as master:
        put(master, 600)
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            await until(partial(equal, master, slave))
    assert brought
    assert all(start // SEGMENT == (end - 1) // SEGMENT for start, end in brought)


async def test_silent_connections_do_not_keep_a_slave_out(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put(master, 10)
        silent = [await dial(master) for _ in range(CONNECTIONS_MAX + 3)]
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(partial(equal, master, slave))
            assert len(master.services.ha.to_body()["haConnectionInfo"]) <= CONNECTIONS_MAX
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("size", [0, 4])
async def test_a_slave_takes_only_what_joins_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Data and heartbeats alike."""

    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (end,) = REPORT.unpack(await reader.readexactly(REPORT.size))
        writer.write(FRAME.pack(end + 8, size) + b"x" * size)
        await reader.read()
        writer.close()

    async with make(tmp_path / "b", "127.0.0.1:1") as before:
        put(before, 10)
        end = before.parts.store.max_phy_offset
    async with await asyncio.start_server(master, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with make(
            tmp_path / "b",
            "127.0.0.1:1",
            brokerId="1",
            brokerRole="SLAVE",
            haMasterAddress=f"127.0.0.1:{port}",
        ) as slave:
            await until(lambda: f"from {end + 8} on, this log ends at {end}" in caplog.text)
            assert slave.parts.store.max_phy_offset == end


def test_reports_and_pieces_come_in_any_chunks() -> None:
    reports = ReportReceiver()
    stream = REPORT.pack(5) + REPORT.pack(9)
    found = [reports.receive_data(stream[n : n + 1]) for n in range(len(stream))]
    assert [offset for offset in found if offset is not None] == [5, 9]
    pieces = LogReceiver()
    stream = FRAME.pack(0, 3) + b"abc" + FRAME.pack(3, 0) + FRAME.pack(3, 1) + b"d"
    got = [piece for n in range(len(stream)) for piece in pieces.receive_data(stream[n : n + 1])]
    whole = [(piece.commit_log_offset, b"".join(piece.parts), piece.size) for piece in got]
    assert whole == [(0, b"abc", 3), (3, b"", 0), (3, b"d", 1)]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 200), max_size=30),
    segment_size=st.sampled_from([0, 16, 64, 1 << 30]),
)
def test_frames_that_follow_each_other_in_a_segment_become_one_piece(
    sizes: list[int], cuts: list[int], segment_size: int
) -> None:
    stream = b""
    log = b""
    for size in sizes:  # a frame never crosses a segment
        if segment_size:
            size = min(size, segment_size - len(log) % segment_size)
        body = bytes(n % 251 for n in range(len(log), len(log) + size))
        stream += FRAME.pack(len(log), size) + body
        log += body
    receiver = LogReceiver(segment_size)
    taken = b""
    for cut in [*cuts, len(stream)]:
        data, stream = stream[:cut], stream[cut:]
        came = receiver.receive_data(data)
        assert not receiver.unread
        whole = [each for each in came if each.size]
        for piece in whole:
            assert piece.commit_log_offset == len(taken)
            if segment_size:
                last = piece.commit_log_offset + piece.size - 1
                assert piece.commit_log_offset // segment_size == last // segment_size
            taken += b"".join(piece.parts)
            assert len(taken) == piece.commit_log_offset + piece.size
        if segment_size == 1 << 30:
            assert len(whole) <= 1
    assert taken == log


@given(cuts=st.lists(st.integers(1, 70_000), max_size=10), size=st.integers(0, 2))
def test_many_frames_without_bytes_are_taken_in_turns(cuts: list[int], size: int) -> None:
    """As of an Apache master with haFlowControlEnable, which sends them in a loop."""
    count = 3 * FRAMES_MAX + 7
    stream = b"".join(FRAME.pack(n * size, size) + bytes(size) for n in range(count))
    receiver = LogReceiver()
    found: list[int] = []
    for cut in [*cuts, len(stream)]:
        data, stream = memoryview(stream[:cut]), stream[cut:]
        while data:
            came = receiver.receive_data(data)
            assert len(came) == FRAMES_MAX or not receiver.unread
            found += [piece.commit_log_offset for piece in came]
            data = receiver.unread
    assert found == [n * size for n in range(count)]


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.pack(0, -1),
        FRAME.pack(0, FRAME_SIZE_MAX + 1),
        FRAME.pack(-1, 0),
        FRAME.pack((1 << 63) - 1, 1),
    ],
)
def test_hostile_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="allowed are 0 to"):
        LogReceiver().receive_data(frame)
    with pytest.raises(RemoteProtocolError, match="allowed is 0 or more"):
        ReportReceiver().receive_data(REPORT.pack(-7))
    with pytest.raises(RemoteProtocolError, match="it reports 0, before that 9"):
        ReportReceiver().receive_data(REPORT.pack(9) + REPORT.pack(0))


def test_waiters_are_answered_by_number_of_replicas_and_time() -> None:
    table = ReplicaTable(gap_max=100)
    told: list[tuple[str, PutMessageStatus]] = []

    def wait(name: str, end: int, replicas: int, deadline: float) -> None:
        table.wait(end, replicas, deadline, lambda status: told.append((name, status)))

    def run(answers: list[Any]) -> None:
        for done, status in answers:
            done(status)

    wait("one", 10, 1, 5.0)
    wait("two", 10, 2, 5.0)
    wait("late", 50, 1, 1.0)
    run(table.on_report("a", 10))
    assert told == [("one", PutMessageStatus.PUT_OK)]
    run(table.expire(2.0))
    assert told[1:] == [("late", PutMessageStatus.FLUSH_SLAVE_TIMEOUT)]
    run(table.on_report("b", 12))
    assert told[2:] == [("two", PutMessageStatus.PUT_OK)]
    assert table.in_sync_count(111) == 2
    table.on_close("a")
    assert table.in_sync_count(20) == 2
    assert table.on_report("c", 0) == []
    assert table.on_report("b", 11) == []
    assert table.acked == {"b": 12, "c": 0}


async def test_only_named_addresses_may_read_the_log(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server, haAllowedAddresses="10.0.0.0/8") as master:
        put(master, 10)
        reader, writer = await asyncio.open_connection("127.0.0.1", master.services.ha.port)
        writer.write(REPORT.pack(0))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    async with make(tmp_path / "a", name_server, haAllowedAddresses="127.0.0.0/8") as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.services.ha.port)
        writer.write(REPORT.pack(0))
        assert len(await reader.readexactly(FRAME.size)) == FRAME.size
        writer.close()
    with pytest.raises(OptionError, match=r"haAllowedAddresses: 'slave\.example'"):
        make(tmp_path / "b", name_server, haAllowedAddresses="slave.example")


async def test_with_access_control_nobody_reads_the_log_unnamed(
    tmp_path: Path, name_server: str
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n- accessKey: operator\n  secretKey: '12345678'\n  admin: true\n"
    )
    acl = {"aclEnable": "true", "aclFile": str(accounts)}
    async with make(tmp_path / "a", name_server, **acl) as master:
        assert master.services.ha.port == 0
    for key, value in (
        ("haAllowedAddresses", "127.0.0.1"),
        ("listenWithoutAccessControl", "true"),
        ("haTlsCertPath", certificate(tmp_path / "a.pem")),
    ):
        more = {key: value} | ({"haTlsTrustCertPath": value} if "Tls" in key else {})
        async with make(tmp_path / "a", name_server, **acl, **more) as master:
            assert master.services.ha.port > 0
    wanting = make(tmp_path / "b", name_server, **acl, brokerRole="SYNC_MASTER")
    with pytest.raises(OptionError, match="name the slaves in haAllowedAddresses"):
        async with wanting:
            raise AssertionError("it serves")


def certificate(path: Path) -> str:
    pem = make_certificate(2)
    assert pem is not None
    path.write_bytes(pem)
    return str(path)


def certificate_only(path: str) -> str:
    """The certificates of a file without its key."""
    kept = Path(path).with_suffix(".crt")
    kept.write_text("-----BEGIN CERT" + Path(path).read_text().partition("-----BEGIN CERT")[2])
    return str(kept)


def key_only(path: str) -> str:
    kept = Path(path).with_suffix(".key")
    kept.write_text(Path(path).read_text().partition("-----BEGIN CERT")[0])
    return str(kept)


def told(what: str, caplog: pytest.LogCaptureFixture) -> bool:
    return re.search(what, caplog.text) is not None


async def test_tls_between_brokers_checks_both_ends(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs, strange = (certificate(tmp_path / f"{name}.pem") for name in "abc")
    own = {"haTlsCertPath": certificate_only(ours), "haTlsKeyPath": key_only(ours)}
    options = {**own, "haTlsTrustCertPath": theirs, "brokerRole": "SYNC_MASTER"}
    slave = partial(make, name_server=name_server, brokerId="1", brokerRole="SLAVE")
    trusted = {"haTlsCertPath": theirs, "haTlsTrustCertPath": certificate_only(ours)}
    async with make(
        tmp_path / "m", name_server, **options, inSyncReplicas="2", slaveTimeout="10000"
    ) as master:
        put(master, 500)
        ha = master.services.ha
        for number, (entries, said) in enumerate(
            (
                ({}, "the peer speaks plain text"),
                ({**trusted, "haTlsCertPath": strange}, "replica .*: TLS"),
                ({**trusted, "haTlsTrustCertPath": strange}, "replication from .*verify failed"),
            )
        ):
            caplog.clear()
            async with slave(tmp_path / str(number), **entries) as refused:
                await until(partial(told, said, caplog))
                assert refused.parts.store.max_phy_offset == 0
                assert not len(ha.replicas)
        async with slave(tmp_path / "s", **trusted) as taken:
            await until(partial(equal, master, taken))
            assert await acknowledged(master) is PutMessageStatus.PUT_OK
            assert equal(master, taken)


async def test_a_slave_with_tls_takes_nothing_from_a_plain_master(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = certificate(tmp_path / "a.pem")
    keys = {"haTlsCertPath": mine, "haTlsTrustCertPath": mine}
    async with make(tmp_path / "m", name_server) as master:
        put(master, 10)
        slave = make(tmp_path / "s", name_server, brokerId="1", brokerRole="SLAVE", **keys)
        async with slave:
            await until(
                lambda: "replica 127.0.0.1" in caplog.text and "replication from" in caplog.text
            )
            assert slave.parts.store.max_phy_offset == 0


def test_tls_needs_both_certificates(tmp_path: Path) -> None:
    for key in ("haTlsCertPath", "haTlsTrustCertPath"):
        with pytest.raises(OptionError, match="haTlsCertPath and haTlsTrustCertPath go together"):
            make(tmp_path, "127.0.0.1:1", **{key: "a.pem"})


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE"])
async def test_a_certificate_of_the_ha_port_that_is_not_there(tmp_path: Path, role: str) -> None:
    keys = {"haTlsCertPath": str(tmp_path / "no.pem"), "haTlsTrustCertPath": str(tmp_path / "no")}
    broker = make(tmp_path, "127.0.0.1:1", brokerRole=role, brokerId="1", **keys)
    with pytest.raises(OptionError, match=r"no\.pem"):
        await broker.start()
    await broker.aclose()


async def ask(broker: Broker, code: int) -> RemotingCommand:
    async with RemotingClient() as client:
        return await client.invoke(str(broker.address), RemotingCommand(code=code), 10.0)


async def test_a_slave_hears_what_was_delivered_when_it_has_the_log_so_far(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made the master, it would pass by messages whose deliveries it lacks."""
    async with make(tmp_path / "a", name_server, timerWheelEnable="true") as master:
        ha = master.services.ha
        codes = (
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_TIMER_CHECK_POINT,
        )
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            put(master, 1)
            await until(lambda: ha.replicas.acked and equal(master, slave))
            with monkeypatch.context() as cut:
                cut.setattr(ha, "on_append", lambda: None)
                cut.setattr(ha, "_push", lambda _: None)
                put(master, 1)
                asked = [asyncio.create_task(call(master, code, {})) for code in codes]
                await until(lambda: len(ha._untold) == len(codes))
                cut.setattr(ha_service, "UNTOLD_BYTES_MAX", 1)
                assert (await call(master, codes[0], {})).code == 1  # and not after two seconds
            assert not any(each.done() for each in asked)
            ha.on_append()
            assert [each.code for each in await asyncio.gather(*asked)] == [0, 0, 0]
            assert equal(master, slave)
            monkeypatch.setattr(ha, "on_append", lambda: None)
            monkeypatch.setattr(ha, "_push", lambda _: None)
            monkeypatch.setattr(ha_service, "TOLD_WITHIN_S", 0.1)
            put(master, 1)
            assert [(await call(master, code, {})).code for code in codes] == [1, 1, 1]
        await until(lambda: not ha.replicas.acked)
        assert [(await call(master, code, {})).code for code in codes] == [0, 0, 0]
        assert ha._untold_bytes == 0


async def test_a_slave_is_told_of_timers_and_request_modes(
    tmp_path: Path, name_server: str
) -> None:
    """60 and 61, which Apache's slaves ask for, and 402, which ours takes over too."""
    async with make(tmp_path / "a", name_server, timerWheelEnable="true") as master:
        answer = await ask(master, RequestCode.GET_TIMER_CHECK_POINT)
        assert answer.code == 0
        assert decode_timer_checkpoint(answer.body_bytes()).last_read_time > 0
        answer = await ask(master, RequestCode.GET_TIMER_METRICS)
        assert json.loads(answer.body_bytes())["timingCount"] == {}
        master.parts.topics.create_internal("t", 2)
        assert master.parts.groups.find("g") is not None
        modes = master.processors.assignment
        await modes.set_mode(
            cast(Any, None),
            RemotingCommand(
                code=RequestCode.SET_MESSAGE_REQUEST_MODE,
                body=b'{"topic":"t","consumerGroup":"g","mode":"POP","popShareQueueNum":3}',
            ),
        )
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(lambda: slave.processors.assignment.mode_of("t", "g") == ("POP", 3))
        assert "POP" in (tmp_path / "b" / "config" / "messageRequestMode.json").read_text()
    async with make(tmp_path / "a", name_server) as master:
        for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
            assert (await ask(master, code)).code == 1
