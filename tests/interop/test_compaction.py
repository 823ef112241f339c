"""A compaction topic changes hands: Apache's broker, ours, Apache's again, on the same store.

Each compacts what the one before wrote; the newest message of every key is always read.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from tests.rigs.clusters import Cluster, Node, cluster_for, remoting_call

from oberth.client import Message, Producer
from oberth.errors import PeerUnavailableError
from oberth.formats.message import decode_record

pytestmark = [pytest.mark.interop, pytest.mark.slow]

T = "Kept"
KEYS = 5
ROUND = 300
CONF = {
    "compactionMappedFileSize": str(46 * 40 * 5),
    "compactionCqMappedFileSize": str(46 * 40),
    "compactionScheduleInternal": "2000",
    "cleanResourceInterval": "1000",
}
WAIT_S = 60.0


def pull_all(node: Node) -> dict[int, tuple[str, bytes]]:
    """Queue offset → key and body of everything that a consumer gets."""
    found: dict[int, tuple[str, bytes]] = {}
    offset = 0
    while True:
        fields = {
            "consumerGroup": "G",
            "topic": T,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        header, body = remoting_call(node.address, 11, fields, timeout_s=10)
        if header["code"] not in (0, 20):
            assert header["code"] == 19, header
            return found
        at = 0
        while at < len(body):
            message = decode_record(body, at, check_crc=True)
            found[message.queue_offset] = (message.properties["KEYS"], message.body)
            at += message.record_size
        answer = header["extFields"]
        assert isinstance(answer, dict)
        offset = int(answer["nextBeginOffset"])


async def send(cluster: Cluster, first: int) -> None:
    async with Producer("P", namesrv_addr=cluster.namesrv_addr) as producer:
        for n in range(first, first + ROUND):
            await producer.send(Message(T, b"%d" % n, keys=f"k{n % KEYS}"))


def round_of(cluster: Cluster, first: int) -> None:
    """One broker's turn: what is there is whole, more comes, and some of it is compacted away."""
    (node,) = cluster.brokers
    if first == 0:
        fields = {
            "topic": T,
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": "+cleanup.policy=COMPACTION",
        }
        header, _ = remoting_call(node.address, 17, fields)
        assert header["code"] == 0, header
    else:
        check(pull_all(node), first)
    asyncio.run(send(cluster, first))
    deadline = time.monotonic() + WAIT_S
    while len(found := pull_all(node)) >= ROUND // 2:
        assert time.monotonic() < deadline, f"{len(found)} messages, nothing was compacted away"
        time.sleep(0.5)
    check(found, first + ROUND)
    node.stop()


def check(found: dict[int, tuple[str, bytes]], end: int) -> None:
    for offset, (key, body) in found.items():
        assert (key, body) == (f"k{offset % KEYS}", b"%d" % offset)
    assert set(range(end - KEYS, end)) <= set(found)


def test_there_and_back(tmp_path: Path, broker: str) -> None:
    if broker != "oberth":
        pytest.skip("once is enough")
    store: Path | None = None
    try:
        for turn, kind in enumerate(("apache-5.5.0", "oberth", "apache-5.5.0")):
            cluster = cluster_for(kind, tmp_path / f"{turn}", CONF, brokers=1)
            (node,) = cluster.brokers
            if store is not None:
                shutil.rmtree(node.store, ignore_errors=True)
                shutil.copytree(store, node.store)
            with cluster:
                round_of(cluster, turn * ROUND)
            store = node.store
    except PeerUnavailableError as why:
        pytest.skip(str(why))
