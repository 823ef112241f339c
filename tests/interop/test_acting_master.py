"""Apache's and our brokers of one name: each acts for the other's master, and lets it come back.

The master is killed with SIGKILL; the slave takes its place in the routes, without the right to
write, and serves its readers. The master comes back behind its slave, and takes messages again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clusters import SUITE_CONF, Node, remoting_call
from tests.rigs.pairs import Pair, log_end, pair_of, read_from, until

from oberth.client.blocking import Producer
from oberth.client.messages import Message

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

TOPIC = "Acting"
COUNT = 20
GET_ROUTE, READ, READ_WRITE = 105, 4, 6
CONF = {
    **SUITE_CONF,
    "mappedFileSizeCommitLog": str(1 << 20),
    "enableSlaveActingMaster": "true",
    "totalReplicas": "2",
    # Apache's master looks for its slave among HA connections by the address of the slave's port.
    "brokerIP2": "127.0.0.1",
    "slaveReadEnable": "true",
}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    options = ("supportActingMaster=true", "notifyMinBrokerIdChanged=true")
    with pair_of(request.param, tmp_path, CONF, namesrv_options=options) as made:
        yield made


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
    return {
        bytes(message.body)
        for queue_id in range(8)
        for message in read_from(node, "ActingGroup", TOPIC, queue_id)
    }


@pytest.mark.parametrize(
    "pair", [("apache-5.5.0", "oberth"), ("oberth", "apache-5.5.0")], indirect=True, ids="-".join
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
