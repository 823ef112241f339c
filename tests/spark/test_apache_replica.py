"""A slave of Apache's master is a store that Spark reads while the master takes traffic."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.rigs.clusters import ApacheCluster, Node, free_port

from oberth.client.blocking import Producer
from oberth.client.messages import Message
from oberth.errors import PeerUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BEFORE, DURING = 200, 800
BOUND_S = 240.0
"""For what must happen: only a test that hangs takes so long."""


@pytest.fixture(params=["5.5.0", "4.9.7"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApacheCluster]:
    if os.environ.get("OBERTH_INTEROP") != "full":
        pytest.skip("OBERTH_INTEROP=full runs this")
    conf = {"mappedFileSizeCommitLog": str(1 << 20), "autoCreateTopicEnable": "true"}
    conf["diskMaxUsedSpaceRatio"] = "95"
    try:
        running = ApacheCluster(request.param, tmp_path / "apache", conf, heap="384m")
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with running as started:
        yield started


@pytest.fixture
def replica(master: ApacheCluster, tmp_path: Path) -> Iterator[Path]:
    """The store of the slave that docs/replication.md starts."""
    port = free_port(also=(-2,))
    store = tmp_path / "replica"
    command = [
        *(sys.executable, "-m", "oberth", "broker", "-n", master.namesrv_addr),
        *("--store", str(store), "--port", str(port)),
        *("--set", "brokerName=broker-a", "--set", "brokerId=7", "--set", "brokerRole=SLAVE"),
    ]
    node = Node(
        "broker-a", f"127.0.0.1:{port}", tmp_path / "node", command,
        namesrv_addr=master.namesrv_addr,
    )  # fmt: skip
    node.start()
    try:
        yield store
    finally:
        node.stop()


def send(namesrv_addr: str, first: int, count: int) -> None:
    with Producer("replica", namesrv_addr=namesrv_addr, send_msg_timeout_ms=30_000) as producer:
        for number in range(first, first + count):
            body = f"message {number}".encode() * 60
            sent = producer.send(Message("orders", body, keys=f"k{number}"))
            assert sent.status.name == "SEND_OK", sent


def until(done: Callable[[], bool], what: str) -> None:
    """Asks again until something is so."""
    deadline = time.monotonic() + BOUND_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_spark_follows_a_slave_of_apaches_master(
    spark: SparkSession, master: ApacheCluster, replica: Path, tmp_path: Path
) -> None:
    send(master.namesrv_addr, 0, BEFORE)
    until(lambda: (replica / "consumequeue" / "orders").is_dir(), "the slave has the topic")
    query = (
        spark.readStream.format("rocketmq")
        .option("path", str(replica))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS text")
        .writeStream.format("memory")
        .queryName("replica_orders")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    sender = threading.Thread(target=send, args=(master.namesrv_addr, BEFORE, DURING))
    sender.start()
    try:
        total = BEFORE + DURING
        until(lambda: spark.table("replica_orders").count() >= total, "Spark has every message")
        query.processAllAvailable()
        rows = {row.key: row.text for row in spark.table("replica_orders").collect()}
        assert spark.table("replica_orders").count() == total
        assert rows == {f"k{number}": f"message {number}" * 60 for number in range(total)}
    finally:
        sender.join()
        query.stop()
