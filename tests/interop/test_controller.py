"""Brokers under a controller, ours and Apache's of both: kills of the master, of the controller.

Two brokers under one name, a topic of one queue, one sender. What was acknowledged while
both were in sync is read after the master was killed, after the controller was killed and started
again, and after the old master came back and took over in its turn.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster, Node, free_port

from oberth.client.admin import Admin
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.client.pull_consumer import PullConsumer
from oberth.errors import OberthError, PeerUnavailableError
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import create_request

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

VERSION, NAME, TOPIC = "5.5.0", "broker-a", "Controlled"
BOUND_S = 240.0
CONF = {
    "brokerName": NAME,
    "brokerRole": "SYNC_MASTER",
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "inSyncReplicas": "2",
    "enableSlaveActingMaster": "false",
    "mappedFileSizeCommitLog": str(16 << 20),
    "autoCreateTopicEnable": "true",
}


@dataclass
class Group:
    """The processes."""

    name_server: Node
    controller: Node
    brokers: list[Node]

    async def info(self) -> ReplicasInfo | None:
        """What the controller says of the brokers; None while it knows none."""
        async with RemotingClient() as client:
            request = create_request(
                RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=f'["{NAME}"]'.encode()
            )
            answer = await client.invoke(self.controller.address, request, timeout_s=5)
        table = BrokerReplicasInfo.decode(answer.body_bytes()).replicas_info_table
        return table.get(NAME)

    def node(self, address: str | None) -> Node:
        return next(each for each in self.brokers if each.address == address)


def _oberth(directory: Path, command: str, *options: str) -> Node:
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    line = [sys.executable, "-m", "oberth", command, "--port", port, *options]
    return Node(command, address, directory / command, line)


def _apache_controller(directory: Path) -> Node:
    address = f"127.0.0.1:{free_port()}"
    conf = {
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{address}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(directory / "kept"),
    }
    directory.mkdir(parents=True)
    (directory / "controller.conf").write_text("".join(f"{k}={v}\n" for k, v in conf.items()))
    (directory / "conf").mkdir()
    (directory / "conf" / "logback_controller.xml").write_text("<configuration/>")
    command = peers.java_command(
        peers.jars(VERSION),
        "org.apache.rocketmq.controller.ControllerStartup",
        *("-c", str(directory / "controller.conf")),
        options=(f"-Duser.home={directory}", "-Xms128m", "-Xmx256m"),
    )
    environment = {"ROCKETMQ_HOME": str(directory)}
    return Node("controller", address, directory, command, environment=environment)


def _broker(kind: str, directory: Path, conf: dict[str, str], name_server: Node) -> Node:
    if kind == "apache":
        made = ApacheCluster(
            VERSION, directory, conf, namesrv_addr=name_server.address, heap="256m"
        )
        return made.brokers[0]
    port = free_port(also=(-2, 1))
    settings = {**conf, "storePathRootDir": str(directory / "store")}
    line = [sys.executable, "-m", "oberth", "broker", "--port", str(port)]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    line += ["-n", name_server.address]
    return Node(NAME, f"127.0.0.1:{port}", directory, line)


FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
in_full = pytest.mark.skipif(not FULL, reason="further pairs of controller and brokers")


@pytest.fixture(
    params=[
        "oberth:apache,apache",
        pytest.param("oberth:oberth,apache", marks=in_full),
        pytest.param("apache:oberth,oberth", marks=in_full),
        pytest.param("apache:apache,oberth", marks=in_full),
    ]
)
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    leader, _, kinds = request.param.partition(":")
    name_server = _oberth(tmp_path, "namesrv")
    try:
        if leader == "apache":
            controller = _apache_controller(tmp_path / "controller")
        else:
            kept = str(tmp_path / "controller" / "kept")
            controller = _oberth(tmp_path, "controller", "--store", kept)
        conf = {**CONF, "controllerAddr": controller.address}
        brokers = [
            _broker(kind, tmp_path / str(number), conf, name_server)
            for number, kind in enumerate(kinds.split(","), 1)
        ]
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    nodes = [name_server, controller, *brokers]
    try:
        name_server.start()
        controller.start()
        for broker in brokers:
            broker.launch()
        yield Group(name_server, controller, brokers)
    finally:
        for node in reversed(nodes):
            node.kill()


async def until(question: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask until the answer is yes; processes elsewhere cannot be waited for."""
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                try:
                    if await question():
                        return
                except (OberthError, OSError):
                    pass
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"not in {BOUND_S:.0f} s: {what}")


def mqadmin(directory: Path, *arguments: str) -> str:
    """What the official tool prints."""
    home = directory / "tool"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    command = peers.java_command(
        peers.jars(VERSION),
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        options=(f"-Duser.home={home}", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
    )
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    return done.stdout + done.stderr


async def test_nothing_acknowledged_is_lost_when_masters_and_the_controller_die(
    group: Group, tmp_path: Path
) -> None:
    acknowledged: list[bytes] = []

    async def both_in_sync() -> bool:
        info = await group.info()
        return info is not None and len(info.in_sync_replicas) == 2

    async def one_master_but(address: str | None) -> bool:
        info = await group.info()
        return info is not None and info.master_address not in (None, address)

    async def master() -> str | None:
        info = await group.info()
        return None if info is None else info.master_address

    await until(both_in_sync, "both replicas in sync")
    addr = group.name_server.address
    async with Producer("P", namesrv_addr=addr, send_msg_timeout_ms=3000) as producer:

        async def send() -> bool:
            body = b"%06d" % len(acknowledged)
            sent = await producer.send(Message(TOPIC, body))
            if sent.status is SendStatus.SEND_OK:
                acknowledged.append(body)
            return sent.status is SendStatus.SEND_OK

        async def send_some(count: int) -> None:
            for _ in range(count):
                await until(send, "a message is acknowledged")

        async with Admin(namesrv_addr=addr) as admin:

            async def make_topic() -> bool:
                await admin.create_topic(TOPIC, queue_nums=1)
                return True

            await until(make_topic, "the topic is made")
        await send_some(200)

        first = await master()
        group.node(first).kill()
        await until(lambda: one_master_but(first), "another master after the first kill")
        group.node(first).launch()
        await until(both_in_sync, "the old master is in sync again")
        await send_some(200)

        group.controller.kill()
        await send_some(20)
        group.controller.start()
        await until(both_in_sync, "the controller knows what it knew")
        second = await master()
        assert second != first
        await until(lambda: _is_master_alive(group), "replicas are heard of again")
        group.node(second).kill()
        await until(lambda: one_master_but(second), "another master after the second kill")
        assert await master() == first
        group.node(second).launch()
        await until(both_in_sync, "both replicas in sync at the end")
        await send_some(50)

        shown = await asyncio.to_thread(
            mqadmin, tmp_path, "getSyncStateSet", "-a", group.controller.address, "-b", NAME
        )
        assert f"#brokerName\t{NAME}" in shown, shown
        assert f"#MasterAddr\t{first}" in shown, shown
        shown = await asyncio.to_thread(
            mqadmin, tmp_path, "getControllerMetaData", "-a", group.controller.address
        )
        assert f"#ControllerLeaderAddress\t{group.controller.address}" in shown, shown

    read: set[bytes] = set()
    async with PullConsumer("G", {TOPIC: "*"}, namesrv_addr=addr) as consumer:

        async def everything_is_read() -> bool:
            read.update(message.body for message in await consumer.poll())
            return read.issuperset(acknowledged)

        await until(everything_is_read, "everything acknowledged is read")


async def _is_master_alive(group: Group) -> bool:
    info = await group.info()
    return info is not None and all(each.alive for each in info.in_sync_replicas)
