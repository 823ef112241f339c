"""What the official Java client is told of copies that are missing, late or there.

Our masters, as 5.x (waits for inSyncReplicas) and as 4.9 (waits for one slave), in this process.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rigs import peers

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.errors import PeerUnavailableError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.store.replication import REPORT

pytestmark = pytest.mark.interop

TOPIC, NEW, OLD = "Statuses", "broker-new", "broker-old"
BOUND_S = 240.0
"""For what must happen: only a test that hangs takes so long."""

LATE_MS, PATIENT_MS = "100", "60000"
REFUSED = {"code": 1, "remark": "in-sync replicas not enough"}


def broker(root: Path, name_server: str, name: str, **entries: str) -> Broker:
    config, store_config, _ = read_configs(
        {
            "storePathRootDir": str(root),
            "namesrvAddr": name_server,
            "brokerName": name,
            "listenPort": "0",
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "1000",
            "waitTimeMillsInSendQueue": "60000",
            **entries,
        }
    )
    return Broker(config, store_config)


class Client:
    """The Java program."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send(self, name: str) -> dict[str, Any]:
        """What a send to a broker ends with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n".encode())
        while True:
            line = await self._process.stdout.readline()
            assert line, "the client has ended"
            if line.startswith(b"{"):
                found: dict[str, Any] = json.loads(line)
                return found


@asynccontextmanager
async def java_client(name_server: str, directory: Path) -> AsyncIterator[Client]:
    sources = (Path(__file__).parent / "java" / "exchange").glob("*.java")
    try:
        lib = peers.jars("5.5.0")
        classes = await asyncio.to_thread(peers.compile_java, "exchange", lib, list(sources))
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    command = peers.java_command(
        lib, "Statuses", name_server, TOPIC, classes=classes,
        options=("-Xmx128m", f"-Duser.home={directory}", "-Drocketmq.client.logLevel=ERROR"),
    )  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        yield Client(process)
    finally:
        process.kill()
        await process.communicate()


async def until(condition: Callable[[], Any]) -> None:
    """Waits for what another task brings about."""
    while not condition():  # noqa: ASYNC110 - the name server has no event for its tables
        await asyncio.sleep(0.02)


def set_options(master: Broker, **entries: str) -> None:
    master.services.changes.update(entries)


async def test_the_java_client_is_told(tmp_path: Path) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": LATE_MS}
    async with asyncio.timeout(BOUND_S), NameServer(NamesrvConfig(listen_port=0)) as names:
        address = f"127.0.0.1:{names.address.port}"
        new = broker(tmp_path / "new", address, NEW, **sync, inSyncReplicas="2")
        old = broker(tmp_path / "old", address, OLD, **sync, rocketmqLine="4.9")
        async with new, old:
            for each in (new, old):
                each.parts.topics.create_internal(TOPIC, 1)
                await each.services.registration.register_all()
            async with java_client(address, tmp_path) as client:
                await check_new(client, new, tmp_path, address)
                await check_old(client, old, tmp_path, address)


async def check_new(client: Client, master: Broker, root: Path, address: str) -> None:
    assert await client.send(NEW) == {"status": "FLUSH_SLAVE_TIMEOUT"}
    end = master.parts.store.max_phy_offset
    set_options(master, minInSyncReplicas="2")
    assert await client.send(NEW) == REFUSED
    assert master.parts.store.max_phy_offset == end
    set_options(master, minInSyncReplicas="1", enableAutoInSyncReplicas="true")
    assert await client.send(NEW) == {"status": "SEND_OK"}
    set_options(master, minInSyncReplicas="2", enableAutoInSyncReplicas="false")
    set_options(master, slaveTimeout=PATIENT_MS)
    slave = broker(root / "new-slave", address, NEW, brokerId="1", brokerRole="SLAVE")
    async with slave:
        await until(lambda: not master.services.ha.refuses_puts())
        assert await client.send(NEW) == {"status": "SEND_OK"}
        assert slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset


async def check_old(client: Client, master: Broker, root: Path, address: str) -> None:
    assert await client.send(OLD) == {"status": "SLAVE_NOT_AVAILABLE"}
    _, silent = await asyncio.open_connection("127.0.0.1", master.services.ha.port)
    silent.write(REPORT.pack(0))  # a slave that takes nothing of what it is sent
    await until(lambda: len(master.services.ha.replicas))
    assert await client.send(OLD) == {"status": "FLUSH_SLAVE_TIMEOUT"}
    silent.close()
    await until(lambda: not len(master.services.ha.replicas))
    set_options(master, slaveTimeout=PATIENT_MS)
    slave = broker(root / "old-slave", address, OLD, brokerId="1", brokerRole="SLAVE")
    async with slave:
        await until(lambda: len(master.services.ha.replicas))
        assert await client.send(OLD) == {"status": "SEND_OK"}
        assert slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset
