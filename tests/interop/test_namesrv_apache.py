"""Apache's broker at our name server: it registers, official mqadmin reads routes, all of it goes.

The broker and the tool are real, of either line; our name server runs in this process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster

from oberth.errors import PeerUnavailableError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig

pytestmark = pytest.mark.interop

TOOL_TIMEOUT_S = 60
TOPIC = "NamesrvInterop"


class Tool:
    """The official mqadmin of one release, told to use our name server."""

    def __init__(self, version: str, namesrv_addr: str, home: Path) -> None:
        self.command = peers.java_command(
            peers.jars(version),
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            options=(
                f"-Duser.home={home}",
                f"-Drocketmq.namesrv.addr={namesrv_addr}",
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
            ),
        )
        conf = home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "logback_tools.xml").write_text("<configuration/>")
        self.environment = {**os.environ, "ROCKETMQ_HOME": str(home)}

    async def run(self, *args: str) -> str:
        """What a command prints."""

        def call() -> str:
            done = subprocess.run(
                [*self.command, *args],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=TOOL_TIMEOUT_S,
                check=False,
            )
            return done.stdout + done.stderr

        return await asyncio.to_thread(call)


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    """Ours, on a free port."""
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        yield server


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
async def test_apache_broker_registers_and_mqadmin_reads(
    version: str, name_server: NameServer, tmp_path: Path
) -> None:
    addr = str(name_server.address)
    conf = {"compressedRegister": "true"} if version.startswith("4") else {}
    try:
        cluster = ApacheCluster(version, tmp_path, conf, namesrv_addr=addr)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    tool = Tool(version, addr, tmp_path / "tool")
    try:
        await asyncio.to_thread(cluster.start)
        routes = name_server.routes
        assert {"TBW102", "SELF_TEST_TOPIC", "broker-a", "DefaultCluster"} <= set(
            routes.all_topics().topic_list
        )

        clusters = await tool.run("clusterList", "-n", addr)
        assert "DefaultCluster" in clusters
        assert cluster.broker_addr in clusters

        created = await tool.run(
            "updateTopic", "-n", addr, "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4"
        )
        assert "create topic" in created
        # The broker registers its new topic at once, in the background.
        async with asyncio.timeout(10):
            while routes.route(TOPIC) is None:  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.05)
        shown = await tool.run("topicRoute", "-n", addr, "-t", TOPIC)
        assert cluster.broker_addr in shown
        assert '"readQueueNums":4' in shown.replace(" ", "")
        assert TOPIC in await tool.run("topicList", "-n", addr)
        status = await tool.run("topicStatus", "-n", addr, "-t", TOPIC)
        assert "broker-a" in status

        assert "wipe write perm of broker[broker-a]" in await tool.run(
            "wipeWritePerm", "-n", addr, "-b", "broker-a"
        )
        route = routes.route(TOPIC)
        assert route is not None
        assert route.queue_datas[0].perm == 4
        await tool.run("addWritePerm", "-n", addr, "-b", "broker-a")
        route = routes.route(TOPIC)
        assert route is not None
        assert route.queue_datas[0].perm == 6

        await tool.run("updateKvConfig", "-n", addr, "-s", "NS", "-k", "k", "-v", "v")
        assert name_server.kv.get("NS", "k") == "v"
        await tool.run("deleteKvConfig", "-n", addr, "-s", "NS", "-k", "k")
        assert name_server.kv.get("NS", "k") is None
        assert "listenPort" in await tool.run("getNamesrvConfig", "-n", addr)

        deleted = await tool.run("deleteTopic", "-n", addr, "-c", "DefaultCluster", "-t", TOPIC)
        assert "success" in deleted
        assert routes.route(TOPIC) is None

        await asyncio.to_thread(cluster.stop)
        assert routes.broker_count == 0
        assert routes.all_topics().topic_list == []
    finally:
        await asyncio.to_thread(cluster.kill)
