"""A master and its slave, of either kind, as processes under a name server of ours."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.rigs.clusters import ApacheCluster, Node, OberthCluster, free_port, remoting_call

from oberth.errors import PeerUnavailableError
from oberth.formats.message import MessageExt, decode_record

SETTLE_S = 180.0
"""How long anything may take until it is so."""
PULL, GET_RUNTIME = 11, 28


class Pair(NamedTuple):
    """A master and its slave."""

    master: Node
    slave: Node
    namesrv: str
    slave_kind: str


@contextmanager
def pair_of(
    kinds: Sequence[str],
    directory: Path,
    conf: Mapping[str, str],
    *,
    role: str = "ASYNC_MASTER",
    namesrv_options: Sequence[str] = (),
) -> Iterator[Pair]:
    """Starts them; the test is skipped where Apache's broker is not to be had.

    Args:
        kinds: of the master and of the slave: ``oberth`` or ``apache-VERSION``.
        directory: for all that they write.
        conf: settings of both.
        role: of the master.
        namesrv_options: ``key=value`` settings of the name server.
    """
    address = f"127.0.0.1:{free_port()}"
    name_server = Node(
        "namesrv",
        address,
        directory / "namesrv",
        [
            *(sys.executable, "-m", "oberth", "namesrv", "--port", address.rpartition(":")[2]),
            *(part for option in namesrv_options for part in ("--set", option)),
        ],
    )
    name_server.start()
    nodes: list[Node] = []
    try:
        roles = ({"brokerRole": role}, {"brokerRole": "SLAVE", "brokerId": "1"})
        for kind, own, name in zip(kinds, roles, ("master", "slave"), strict=True):
            settings = {**conf, **own}
            try:
                cluster = (
                    OberthCluster(directory / name, settings, namesrv_addr=address)
                    if kind == "oberth"
                    else ApacheCluster(
                        kind.removeprefix("apache-"), directory / name, settings,
                        namesrv_addr=address,
                    )
                )  # fmt: skip
            except PeerUnavailableError as why:
                pytest.skip(str(why))
            (node,) = cluster.brokers
            nodes.append(node)
            node.start()
        yield Pair(nodes[0], nodes[1], address, kinds[1])
    finally:
        for node in reversed(nodes):
            node.stop()
        name_server.kill()


def until(done: Callable[[], bool], what: str) -> None:
    """Asks again until something is so."""
    deadline = time.monotonic() + SETTLE_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def log_end(node: Node) -> int:
    """The end of a broker's CommitLog; -1: it has just started, and says so without a body."""
    _, body = remoting_call(node.address, GET_RUNTIME)
    return int(json.loads(body)["table"]["commitLogMaxOffset"]) if body else -1


def read_from(node: Node, group: str, topic: str, queue_id: int) -> list[MessageExt]:
    """What a broker gives a reader of a queue, from offset 0 on."""
    found: list[MessageExt] = []
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    while True:
        answer, body = remoting_call(node.address, PULL, fields | {"queueOffset": str(len(found))})
        if answer["code"] != 0 or not body:
            return found
        at = 0
        while at < len(body):
            found.append(decode_record(body, at))
            at += found[-1].record_size
