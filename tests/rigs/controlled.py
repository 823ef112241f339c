"""A name server, a controller and brokers of one name, ours and Apache's, as processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster, Node, free_port

from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import create_request

VERSION: Final = "5.5.0"
NAME: Final = "broker-a"
CONF: Final = {
    "brokerName": NAME,
    "brokerRole": "SYNC_MASTER",
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "inSyncReplicas": "2",
    "enableSlaveActingMaster": "false",
    "autoCreateTopicEnable": "true",
}
"""Of each broker: a message is acknowledged when every replica in sync has it, two at least."""


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


def oberth_node(directory: Path, command: str, *options: str) -> Node:
    """A name server or controller of ours, not started."""
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    line = [sys.executable, "-m", "oberth", command, "--port", port, *options]
    return Node(command, address, directory / command, line)


def apache_controller(directory: Path) -> Node:
    """Apache's controller, alone in its group, not started."""
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


def broker_node(
    kind: str, directory: Path, conf: Mapping[str, str], name_server: Node, heap: str = "256m"
) -> Node:
    """A broker of broker-a, ``oberth`` or ``apache``, not started."""
    if kind == "apache":
        made = ApacheCluster(VERSION, directory, conf, namesrv_addr=name_server.address, heap=heap)
        return made.brokers[0]
    address = f"127.0.0.1:{free_port(also=(-2, 1))}"
    return _oberth_broker(address, directory, directory / "store", conf, name_server)


def successor(old: Node, conf: Mapping[str, str], name_server: Node) -> Node:
    """A broker of ours on the store and the port of one that has been stopped, not started."""
    directory = old.directory / "successor"
    return _oberth_broker(old.address, directory, old.store, conf, name_server)


def _oberth_broker(
    address: str, directory: Path, store: Path, conf: Mapping[str, str], name_server: Node
) -> Node:
    line = [sys.executable, "-m", "oberth", "broker", "--port", address.rpartition(":")[2]]
    for key, value in {**conf, "storePathRootDir": str(store)}.items():
        line += ["--set", f"{key}={value}"]
    line += ["-n", name_server.address]
    return Node(NAME, address, directory, line)
