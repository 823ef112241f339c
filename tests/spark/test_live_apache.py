"""Live topics of Apache's brokers as tables and as targets: what is sent is what their files say.

Two brokers of each release; no JVM but theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from tests.rigs.clusters import ApacheCluster

from oberth.client.blocking import Admin
from oberth.errors import OptionError, PeerUnavailableError
from oberth.spark.live_sink import send_rows
from oberth.spark.write_options import parse_live_write_options

pytestmark = pytest.mark.interop

COUNT = 1_200


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    if "OBERTH_INTEROP" not in os.environ and "interop" not in request.config.option.markexpr:
        pytest.skip("pytest -m interop runs this")
    conf = {"enablePropertyFilter": "true", "mappedFileSizeCommitLog": "16777216"}
    try:
        running = ApacheCluster(
            request.param, tmp_path_factory.mktemp("apache"), conf, brokers=2, heap="384m"
        )
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with running as started:
        with Admin(namesrv_addr=started.namesrv_addr) as admin:
            admin.create_topic("T", queue_nums=3, cluster="DefaultCluster")
        columns = {
            "value": [f"message {n} ".encode() * (1 + n % 50) for n in range(COUNT)],
            "shardingKey": [f"c{n % 40}" for n in range(COUNT)],
            "tags": [f"t{n % 4}" for n in range(COUNT)],
            "key": [f"k{n}" for n in range(COUNT)],
            "properties": pa.array(
                [[("n", str(n))] for n in range(COUNT)], pa.map_(pa.string(), pa.string())
            ),
        }
        options = parse_live_write_options(
            {"rocketmq.namesrv.addr": started.namesrv_addr, "topic": "T"}
        )
        sent = send_rows(iter([pa.RecordBatch.from_pydict(columns)]), options, "part")
        assert sent.messages == COUNT
        with Admin(namesrv_addr=started.namesrv_addr) as admin:
            deadline = time.monotonic() + 60
            queues = admin.topic_queues("T")
            # A message is acknowledged before it is dispatched to its queue.
            while sum(admin.max_offset(queue) for queue in queues) < COUNT:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield started


def _files(cluster: ApacheCluster) -> dict[str, str]:
    paths = ",".join(str(Path(node.directory) / "store") for node in cluster.brokers)
    return {"root": paths, "brokerName": "broker-a,broker-b", "subscribe": "T"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter__tag": "t1||t2"},
        {"filter__sql": "n >= 300 AND n < 500"},
        {"minPartitions": "11"},
        {"assign": '{"T": {"broker-b": [0, 2]}}'},
    ],
)
def test_live_rows_are_those_of_the_files(
    cluster: ApacheCluster, read_live: Callable[..., Any], read_store: Callable[..., Any],
    options: dict[str, str],
) -> None:  # fmt: skip
    given = dict(options)
    if "assign" not in given:
        given["subscribe"] = "T"
    live = read_live(cluster.namesrv_addr, **given)
    files = _files(cluster)
    if "assign" in given:
        del files["subscribe"]
    found = read_store(files.pop("root"), **{**files, **options})
    assert live.rows == found.rows
    assert live.rows
    if not options:
        assert len(live.rows) == COUNT


def test_order_by_sharding_key(cluster: ApacheCluster, read_live: Callable[..., Any]) -> None:
    by_key: dict[str, list[int]] = {}
    for row in read_live(cluster.namesrv_addr, subscribe="T").rows:
        by_key.setdefault(row["shardingKey"], []).append(int(dict(row["properties"])["n"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert len(by_key) == 40


def test_times_and_groups(cluster: ApacheCluster, read_live: Callable[..., Any]) -> None:
    columns = "broker,partition,offset,timestamp"
    given = {"subscribe": "T", "columns": columns, "startingOffsetsByTimestampStrategy": "latest"}
    rows = read_live(cluster.namesrv_addr, **given).rows
    times = sorted(int(row["timestamp"].timestamp() * 1000) for row in rows)
    for moment in (times[0] - 5, times[len(times) // 2], times[-1], times[-1] + 1000):
        some = read_live(cluster.namesrv_addr, startingTimestamp=str(moment), **given).rows
        assert some == [r for r in rows if int(r["timestamp"].timestamp() * 1000) >= moment]
    with Admin(namesrv_addr=cluster.namesrv_addr) as admin:
        admin.create_group("readers")
        queue = admin.topic_queues("T")[0]
        end = admin.max_offset(queue)
        admin.update_consume_offset("readers", queue, end - 2)
    group = {"startingOffsets": "group", "rocketmq__consumer__group": "readers", **given}
    assert len(read_live(cluster.namesrv_addr, startingGroupFallback="latest", **group).rows) == 2
    with pytest.raises(OptionError, match="has no offset there"):
        read_live(cluster.namesrv_addr, startingGroupFallback="error", **group)
