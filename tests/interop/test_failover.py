"""Three brokers under one name server: official clients and the official mqadmin while one is away.

A producer and two groups of the Java client run on; a broker is killed with SIGKILL, the others
take over, and when it is back it takes part again. Everything acknowledged arrives in both groups,
in order in the orderly one. Commands for the cluster reach every broker of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs import peers
from tests.rigs.clusters import SUITE_CONF, Node, OberthCluster, free_port, remoting_call
from tests.rigs.traffic import Traffic

from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

TOPIC, GROUP, ORDERLY = "Failover", "FailoverGroup", "FailoverOrderlyGroup"
BROKERS = ("broker-a", "broker-b", "broker-c")
QUEUES = 4
TOOL_TIMEOUT_S = 120
TOPIC_NOT_EXIST = 17
GET_ROUTE, GET_TOPIC_CONFIG, GET_SUBSCRIPTION_GROUP_CONFIG = 105, 351, 352

Tool = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OberthCluster]:
    """Three brokers, and a name server that no kill of a broker takes along."""
    address = f"127.0.0.1:{free_port()}"
    name_server = Node(
        "namesrv",
        address,
        tmp_path / "namesrv",
        [sys.executable, "-m", "oberth", "namesrv", "--port", address.rpartition(":")[2]],
    )
    name_server.start()
    try:
        with OberthCluster(tmp_path, SUITE_CONF, brokers=3, namesrv_addr=address) as made:
            yield made
    finally:
        name_server.stop()


@pytest.fixture
def tool(cluster: OberthCluster, tmp_path: Path) -> Tool:
    """The official mqadmin; gives what it prints."""
    home = tmp_path / "tool"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    try:
        lib = peers.jars("5.5.0")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    command = peers.java_command(
        lib,
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        options=(f"-Duser.home={home}", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
    )

    def run(*args: str) -> str:
        done = subprocess.run(
            [*command, *args, "-n", cluster.namesrv_addr],
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        return done.stdout + done.stderr

    return run


def by_broker(status: dict[str, Any], name: str) -> int:
    return int(status["byBroker"].get(name, 0))


def test_brokers_of_a_cluster_stand_in_for_each_other(
    cluster: OberthCluster, tool: Tool, tmp_path: Path
) -> None:
    made = tool("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4")
    assert made.count("success") == len(BROKERS), made
    for group in (GROUP, ORDERLY):
        made = tool("updateSubGroup", "-c", "DefaultCluster", "-g", group)
        assert made.count("success") == len(BROKERS), made
    for node in cluster.brokers:
        answer, _ = remoting_call(node.address, GET_TOPIC_CONFIG, {"topic": TOPIC})
        assert answer["code"] == 0
        answer, _ = remoting_call(node.address, GET_SUBSCRIPTION_GROUP_CONFIG, {"group": GROUP})
        assert answer["code"] == 0

    with Traffic(cluster.namesrv_addr, tmp_path, TOPIC, GROUP, ORDERLY) as traffic:
        traffic.until(
            lambda now: (
                all(by_broker(now, name) > 3 for name in BROKERS)
                and min(now["concurrent"], now["orderly"]) > 0
            ),
            "all three take messages",
        )
        for node in (cluster.brokers[1], cluster.brokers[0]):
            node.kill()
            others = [name for name in BROKERS if name != node.name]
            before = traffic.ask()
            traffic.until(
                lambda now, before=before, others=others: all(  # type: ignore[misc]
                    by_broker(now, name) > by_broker(before, name) + 20 for name in others
                ),
                f"{others} take over from {node.name}",
            )
            _, route = remoting_call(cluster.namesrv_addr, GET_ROUTE, {"topic": TOPIC})
            assert [each in route.decode() for each in (node.name, *others)] == [False, True, True]
            before = traffic.ask()
            assert by_broker(before, node.name) < before["acknowledged"] / 2
            node.start()
            traffic.until(
                lambda now, before=before, name=node.name: (  # type: ignore[misc]
                    by_broker(now, name) > by_broker(before, name) + 5
                ),
                f"{node.name} takes part again",
            )
        end = traffic.ask("stop")
    assert end["detail"] == "", end
    assert end["acknowledged"] > 100

    listed = tool("clusterList")
    assert all(node.address in listed for node in cluster.brokers)
    status = [line.split() for line in tool("topicStatus", "-t", TOPIC).splitlines()]
    queues = [line for line in status if line and line[0] in BROKERS]
    assert len(queues) == QUEUES * len(BROKERS)
    # A send that got no answer may have been stored all the same.
    assert sum(int(line[3]) for line in queues) >= end["acknowledged"]
    progress = tool("consumerProgress", "-g", GROUP)
    assert all(name in progress for name in BROKERS)
    for name in BROKERS:  # the id says which broker has the message
        shown = tool("queryMsgById", "-i", end["lastId"][name], "-t", TOPIC)
        assert f"Topic: {TOPIC}" in " ".join(shown.split()), shown
    gone = tool("deleteTopic", "-c", "DefaultCluster", "-t", TOPIC)
    assert "success" in gone
    for node in cluster.brokers:
        answer, _ = remoting_call(node.address, GET_TOPIC_CONFIG, {"topic": TOPIC})
        assert answer["code"] != 0
    answer, _ = remoting_call(cluster.namesrv_addr, GET_ROUTE, {"topic": TOPIC})
    assert answer["code"] == TOPIC_NOT_EXIST
