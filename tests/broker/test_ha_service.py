"""A slave gets its master's log and tables, and a SYNC_MASTER waits for it.

Two real brokers and a name server on loopback, asked through the raw remoting client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker_config import read_configs
from oberth.broker.broker_controller import Broker
from oberth.errors import RemoteProtocolError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.replication import (
    FRAME,
    FRAME_SIZE_MAX,
    REPORT,
    LogReceiver,
    ReplicaTable,
    ReportReceiver,
)

SEGMENT = 64 * 1024


def make(root: Path, name_server: str, **entries: str) -> Broker:
    values = {
        "storePathRootDir": str(root),
        "namesrvAddr": name_server,
        "brokerName": "broker-a",
        "listenPort": "0",
        "mappedFileSizeCommitLog": str(SEGMENT),
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "1000",
        "timerWheelEnable": "false",
        "haSendHeartbeatInterval": "100",
        **entries,
    }
    config, store_config, _ = read_configs(values)
    return Broker(config, store_config)


@pytest.fixture
async def name_server() -> AsyncIterator[str]:
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        yield f"127.0.0.1:{server.address.port}"


async def until(condition: Callable[[], Any]) -> None:
    """Waits for what another task brings about; looked at once a turn of the loop."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - the store has no event for its growth
            await asyncio.sleep(0.01)


def put(broker: Broker, count: int, size: int = 300) -> None:
    broker.store.append_messages(
        [
            MessageExtBrokerInner.of("t", bytes([n % 250]) * size, keys=f"k{n}", queue_id=n % 2)
            for n in range(count)
        ]
    )
    broker.dispatch_soon()


async def test_a_slave_follows_and_its_log_is_equal(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put(master, 700)
        master.topics.create_internal("fresh", 3)
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(lambda: slave.store.max_phy_offset == master.store.max_phy_offset)
            put(master, 300)
            await until(lambda: slave.store.max_phy_offset == master.store.max_phy_offset)
            await until(lambda: slave.store.dispatch_behind_bytes == 0)
            assert slave.store.max_offset_in_queue("t", 1) == 500
            status = master.ha.to_body()
            assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
            (shown,) = status["haConnectionInfo"]
            assert shown["inSync"]
            assert shown["transferFromWhere"] == master.store.max_phy_offset
            link = slave.ha.to_body()["haClientRuntimeInfo"]
            assert (link["activated"], link["maxOffset"]) == (True, slave.store.max_phy_offset)
            assert link["masterAddr"] == master.ha_address
            found = slave.store.query_message("t", "k7", 9, 0, 2**62)
            assert found.commit_log_offsets == (
                master.store.query_message("t", "k7", 9, 0, 2**62).commit_log_offsets
            )
            await until(lambda: slave.topics.get("fresh") is not None)
            refused = slave.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
            assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            end = slave.store.max_phy_offset
    for name in sorted(path.name for path in (tmp_path / "a" / "commitlog").iterdir()):
        limit = min(SEGMENT, end - int(name))
        original = (tmp_path / "a" / "commitlog" / name).read_bytes()[:limit]
        assert (tmp_path / "b" / "commitlog" / name).read_bytes()[:limit] == original


def equal(master: Broker, slave: Broker) -> bool:
    return slave.store.max_phy_offset == master.store.max_phy_offset


async def test_a_slave_goes_on_after_a_restart(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put(master, 100)
        for _ in range(2):
            async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
                await until(partial(equal, master, slave))
            put(master, 50)


async def test_a_sync_master_waits_for_its_slave(tmp_path: Path, name_server: str) -> None:
    options = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "200"}
    async with make(tmp_path / "a", name_server, **options) as master:

        async def acknowledged() -> PutMessageStatus:
            result = master.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
            told: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
            master.when_durable(result.end_offset, told.set_result)
            return await told

        assert await acknowledged() is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(lambda: slave.store.max_phy_offset == master.store.max_phy_offset)
            await until(lambda: len(master.ha.replicas) == 1)
            master.store_config.slave_timeout_ms = 10_000
            assert await acknowledged() is PutMessageStatus.PUT_OK
            assert slave.store.max_phy_offset == master.store.max_phy_offset


def test_reports_and_pieces_come_in_any_chunks() -> None:
    reports = ReportReceiver()
    stream = REPORT.pack(5) + REPORT.pack(9)
    found = [reports.receive_data(stream[n : n + 1]) for n in range(len(stream))]
    assert [offset for offset in found if offset is not None] == [5, 9]
    pieces = LogReceiver()
    stream = FRAME.pack(0, 3) + b"abc" + FRAME.pack(3, 0) + FRAME.pack(3, 1) + b"d"
    got = [piece for n in range(len(stream)) for piece in pieces.receive_data(stream[n : n + 1])]
    assert [tuple(piece) for piece in got] == [(0, b"abc"), (3, b""), (3, b"d")]


@pytest.mark.parametrize(
    "frame", [FRAME.pack(0, -1), FRAME.pack(0, FRAME_SIZE_MAX + 1), FRAME.pack(-1, 0)]
)
def test_hostile_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="allowed are 0 to"):
        LogReceiver().receive_data(frame)
    with pytest.raises(RemoteProtocolError, match="allowed is 0 or more"):
        ReportReceiver().receive_data(REPORT.pack(-7))


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
