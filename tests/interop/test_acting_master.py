"""Apache's and our brokers of one name: each acts for the other's master, and lets it come back.

The master is killed with SIGKILL; the slave takes its place in the routes, without the right to
write, and serves its readers. The master comes back behind its slave, and takes messages again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.rigs.clusters import (
    SUITE_CONF,
    ApacheCluster,
    Node,
    OberthCluster,
    free_port,
    remoting_call,
)

from oberth.client.blocking import Producer
from oberth.client.messages import Message
from oberth.errors import PeerUnavailableError
from oberth.formats.message import decode_record

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

TOPIC = "Acting"
SETTLE_S = 120.0
COUNT = 20
GET_ROUTE, PULL, GET_RUNTIME, READ, READ_WRITE = 105, 11, 28, 4, 6
CONF = {
    **SUITE_CONF,
    "mappedFileSizeCommitLog": str(1 << 20),
    "enableSlaveActingMaster": "true",
    "totalReplicas": "2",
    # Apache's master looks for its slave among HA connections by the address of the slave's port.
    "brokerIP2": "127.0.0.1",
    "slaveReadEnable": "true",
}


class Pair(NamedTuple):
    """A master and its slave under a name server of ours."""

    master: Node
    slave: Node
    namesrv: str


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    address = f"127.0.0.1:{free_port()}"
    options = ("supportActingMaster=true", "notifyMinBrokerIdChanged=true")
    name_server = Node(
        "namesrv",
        address,
        tmp_path / "namesrv",
        [
            *(sys.executable, "-m", "oberth", "namesrv", "--port", address.rpartition(":")[2]),
            *(part for option in options for part in ("--set", option)),
        ],
    )
    name_server.start()
    nodes: list[Node] = []
    try:
        roles = ({"brokerRole": "ASYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": "1"})
        for kind, role in zip(request.param, roles, strict=True):
            directory = tmp_path / role["brokerRole"]
            conf = {**CONF, **role}
            try:
                cluster = (
                    OberthCluster(directory, conf, namesrv_addr=address)
                    if kind == "oberth"
                    else ApacheCluster("5.5.0", directory, conf, namesrv_addr=address)
                )
            except PeerUnavailableError as why:
                pytest.skip(str(why))
            (node,) = cluster.brokers
            nodes.append(node)
            node.start()
        yield Pair(nodes[0], nodes[1], address)
    finally:
        for node in reversed(nodes):
            node.stop()
        name_server.kill()


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def log_end(node: Node) -> int:
    _, body = remoting_call(node.address, GET_RUNTIME)
    return int(json.loads(body)["table"]["commitLogMaxOffset"]) if body else -1


def master_and_right(pair: Pair) -> tuple[str, int]:
    """Whom routes show as the master, and what may be done there."""
    fields = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
    answer, body = remoting_call(pair.namesrv, GET_ROUTE, fields)
    if answer["code"]:
        return "", 0
    route: dict[str, Any] = json.loads(body)
    (broker,), (queue,) = route["brokerDatas"], route["queueDatas"]
    return broker["brokerAddrs"].get("0", ""), queue["perm"]


def send(pair: Pair, first: int) -> None:
    with Producer("acting", namesrv_addr=pair.namesrv, send_msg_timeout_ms=30_000) as producer:
        for number in range(first, first + COUNT):
            sent = producer.send(Message(TOPIC, f"message {number}".encode()))
            assert sent.status.name == "SEND_OK", sent


def bodies_at(node: Node) -> set[bytes]:
    """What a reader gets of all queues."""
    found = set()
    for queue_id in range(8):
        offset = 0
        while True:
            fields = {
                "consumerGroup": "ActingGroup", "topic": TOPIC, "queueId": str(queue_id),
                "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
                "expressionType": "TAG",
            }  # fmt: skip
            answer, body = remoting_call(node.address, PULL, fields)
            if answer["code"] or not body:
                break
            at = 0
            while at < len(body):
                message = decode_record(body, at)
                found.add(bytes(message.body))
                at += message.record_size
            extended: Any = answer["extFields"]
            offset = int(extended["nextBeginOffset"])
    return found


@pytest.mark.parametrize(
    "pair", [("apache", "oberth"), ("oberth", "apache")], indirect=True, ids="-".join
)
def test_a_slave_of_the_other_kind_acts_until_the_master_is_back(pair: Pair) -> None:
    send(pair, 0)
    sent = {f"message {number}".encode() for number in range(COUNT)}
    until(lambda: log_end(pair.slave) == log_end(pair.master) > 0, "the slave has all")
    until(lambda: master_and_right(pair) == (pair.master.address, READ_WRITE), "the master is it")
    # The slave learns topics with its next look at the master's tables.
    until(lambda: bodies_at(pair.slave) == sent, "the slave knows the topic")

    pair.master.kill()
    until(lambda: master_and_right(pair) == (pair.slave.address, READ), "the slave acts")
    assert bodies_at(pair.slave) == sent

    pair.master.start()
    until(lambda: master_and_right(pair) == (pair.master.address, READ_WRITE), "it is back")
    send(pair, COUNT)
    until(lambda: log_end(pair.slave) == log_end(pair.master), "the slave follows again")
