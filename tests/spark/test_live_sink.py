"""Rows sent to live topics: everything a row can say arrives, in order, and a failure is one.

Without a JVM through the writer's objects, then in a session. The broker is the test's own.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from oberth.client.blocking import Admin
from oberth.errors import MQBrokerError, MQClientError, OptionError, RecordError, RemotingError
from oberth.spark import live_sink
from oberth.spark.live_sink import publish_receipts, send_rows
from oberth.spark.write_options import parse_live_write_options
from oberth.testing.blocking import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mq() -> Iterator[Any]:
    with EmbeddedBroker() as broker:
        with Admin(namesrv_addr=broker.namesrv_addr) as admin:
            admin.create_topic("T", queue_nums=4, cluster="DefaultCluster")
        yield broker


def _send(mq: Any, columns: dict[str, Any], **options: str) -> live_sink.Sent:
    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = parse_live_write_options({"rocketmq.namesrv.addr": mq.namesrv_addr, **given})
    return send_rows(iter([pa.RecordBatch.from_pydict(columns)]), parsed, "part")


def test_all_that_a_row_can_say_arrives(mq: Any, read_live: Callable[..., Any]) -> None:
    maps = pa.array([[("a", "1")], None, [("b", "ü"), ("TAGS", "loses")]],
                    pa.map_(pa.string(), pa.string()))  # fmt: skip
    columns = {
        "topic": ["T", "T", "T"], "value": [b"one", b"two", b"three"], "key": ["k1 k2", None, "k3"],
        "tags": ["x", None, "y"], "properties": maps, "partition": pa.array([3, 3, 0], pa.int32()),
        "uniqueKey": [None, "U2", None], "flag": pa.array([0, 7, -1], pa.int32()),
        "offset": [5, 5, 5], "timestamp": [1, 2, 3],
    }  # fmt: skip
    assert _send(mq, columns).messages == 3
    rows = read_live(mq.namesrv_addr, subscribe="T").rows
    assert [(r["partition"], r["offset"], r["value"]) for r in rows] == [
        (0, 0, b"three"), (3, 0, b"one"), (3, 1, b"two")
    ]  # fmt: skip
    three, one, two = rows
    assert (one["key"], one["tags"], dict(one["properties"])["a"]) == (b"k1 k2", "x", "1")
    assert (two["key"], two["uniqueKey"], two["flag"]) == (None, "U2", 7)
    assert (dict(three["properties"])["b"], three["tags"], three["flag"]) == ("ü", "y", -1)


def test_a_sharding_keys_rows_stay_in_order(mq: Any, read_live: Callable[..., Any]) -> None:
    keys = [f"customer-{number % 7}" for number in range(3000)]
    values = [b"%d" % number for number in range(3000)]
    columns = {"value": values, "shardingKey": keys}
    sent = _send(mq, columns, topic="T", rocketmq__send__batch__bytes="4k")
    assert sent.messages == 3000
    rows = read_live(mq.namesrv_addr, subscribe="T").rows
    by_key: dict[str, list[int]] = {}
    queues: dict[str, set[int]] = {}
    for row in rows:
        by_key.setdefault(row["shardingKey"], []).append(int(row["value"]))
        queues.setdefault(row["shardingKey"], set()).add(row["partition"])
    assert {key: sorted(found) for key, found in by_key.items()} == by_key
    assert sum(map(len, by_key.values())) == 3000
    assert all(len(found) == 1 for found in queues.values())


def test_rows_without_a_place_are_spread(mq: Any, read_live: Callable[..., Any]) -> None:
    _send(mq, {"value": [b"%d" % n for n in range(400)]}, topic="T")
    rows = read_live(mq.namesrv_addr, subscribe="T", columns="partition,value").rows
    assert {row["partition"] for row in rows} == {0, 1, 2, 3}
    assert sorted(int(row["value"]) for row in rows) == list(range(400))


def test_delays_and_compression(mq: Any, read_live: Callable[..., Any]) -> None:
    later = datetime.datetime.fromtimestamp(mq.clock() / 1000 + 30, datetime.UTC)
    columns = {
        "value": [b"level", b"time", b"now", b"z" * 20_000],
        "delayLevel": pa.array([2, None, None, 0], pa.int32()),
        "deliverTime": pa.array([None, later, None, None], pa.timestamp("us", "UTC")),
    }
    _send(mq, columns, topic="T", compression="lz4")
    first = read_live(mq.namesrv_addr, subscribe="T").rows
    assert sorted(row["value"][:5] for row in first) == [b"now", b"zzzzz"]
    assert max(row["size"] for row in first) < 1000
    mq.advance(seconds=60)
    mq.wait_until(lambda: len(mq.messages("T")) == 4)
    rows = read_live(mq.namesrv_addr, subscribe="T", columns="value").rows
    assert {row["value"][:5] for row in rows} == {b"level", b"time", b"now", b"zzzzz"}


def test_every_message_has_a_receipt(
    mq: Any, read_live: Callable[..., Any], tmp_path: Path
) -> None:
    columns = {"value": [b"%d" % n for n in range(300)], "key": [f"k{n}" for n in range(300)]}
    sent = _send(mq, columns, topic="T", receipts=str(tmp_path))
    assert not list(tmp_path.glob("*.parquet"))
    publish_receipts([sent])
    receipts = pq.read_table(next(iter(tmp_path.glob("part-*.parquet")))).to_pylist()
    rows = read_live(mq.namesrv_addr, subscribe="T").rows
    assert sorted((r["partition"], r["offset"], r["key"]) for r in receipts) == sorted(
        (r["partition"], r["offset"], r["key"].decode()) for r in rows
    )
    assert {r["offsetMsgId"] for r in receipts} == {r["offsetMsgId"] for r in rows}
    assert {r["uniqueKey"] for r in receipts} == {r["uniqueKey"] for r in rows}


def test_what_fails_for_good_fails_the_task(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sink, "PAUSE_S", 0.01)
    mq.faults.refuse(times=2)
    assert _send(mq, {"value": [b"x"]}, topic="T").messages == 1
    mq.faults.drop_after_store(times=1)
    assert _send(mq, {"value": [b"y"]}, topic="T", rocketmq__timeout="300ms").messages == 1
    bodies = mq.bodies("T")
    assert bodies.count(b"x") == 1
    assert bodies.count(b"y") >= 1
    mq.faults.refuse(times=1000)
    with pytest.raises(MQBrokerError):
        _send(
            mq, {"value": [b"z"]}, topic="T", receipts=str(tmp_path),
            rocketmq__delivery__timeout="300ms",
        )  # fmt: skip
    assert not list(tmp_path.iterdir())
    mq.faults.clear()


def test_a_send_outlasts_a_restart(mq: Any, failed_attempts: threading.Semaphore) -> None:
    # The broker's address is gone from the name server meanwhile, and with it the topic's route.
    mq.kill()
    with ThreadPoolExecutor(1) as pool:
        columns = {"value": [b"a", b"b"], "partition": [2, 2]}
        sent = pool.submit(_send, mq, columns, topic="T", rocketmq__timeout="500ms")
        for _ in range(8):  # as many attempts as once ended it, and more
            assert failed_attempts.acquire(timeout=60)
        mq.recover()
        assert sent.result(60).messages == 2
    assert mq.bodies("T") == [b"a", b"b"]
    mq.kill()
    for topic in ("T", "unheard-of"):
        with pytest.raises((RemotingError, MQClientError)):
            _send(mq, columns, topic=topic, rocketmq__delivery__timeout="200ms")
    mq.recover()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"value": [b""]}, {}, "row 0: the body is empty"),
        ({"value": [b"x" * 20]}, {"maxMessageSize": "10"}, "body of 20 bytes, allowed are 10"),
        ({"value": [b"x"], "tags": ["a\x01b"]}, {}, "contains a separator"),
        ({"value": [b"x"], "partition": [9]}, {}, "has no queue 9 on broker 'broker-a'"),
        ({"value": [b"x"], "partition": [0], "broker": ["b"]}, {}, "no queue 0 on broker 'b'"),
        ({"storedBody": [b"x"]}, {}, "a broker makes its records itself"),
        ({"key": ["x"]}, {}, "needs the column value"),
        ({"value": [b"x"]}, {"loadId": "1"}, "loadId goes with a store"),
        ({"value": [b"x"]}, {"compression": "snappy"}, "allowed: none, zlib"),
    ],
)
def test_rows_and_options_that_are_wrong(
    mq: Any, columns: dict[str, Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises((RecordError, OptionError), match=message):
        _send(mq, columns, topic="T", **options)


def test_a_store_is_no_broker() -> None:
    from oberth.spark.write_options import parse_write_options

    with pytest.raises(OptionError, match="receipts goes with live brokers"):
        parse_write_options({"path": "/x", "receipts": "/y"})


def test_topics_are_not_overwritten() -> None:
    from oberth.spark.schemas import parse_columns, struct_type
    from oberth.spark.sink import RocketMQLiveWriter

    options = parse_live_write_options({"rocketmq.namesrv.addr": "a:9876", "topic": "T"})
    with pytest.raises(OptionError, match="only appended to"):
        RocketMQLiveWriter(options, struct_type(parse_columns("value")), overwrite=True)


@pytest.mark.spark
def test_a_topic_is_copied_by_a_stream(spark: SparkSession, mq: Any, tmp_path: Path) -> None:
    where = {"rocketmq.namesrv.addr": mq.namesrv_addr}
    frame = spark.range(500).selectExpr(
        "'T' as topic", "cast(id as string) as value", "concat('t', id % 3) as tags",
        "concat('c', id % 5) as shardingKey",
    )  # fmt: skip
    frame.write.format("rocketmq").options(**where).mode("append").save()
    assert len(mq.bodies("T")) == 500
    source = (
        spark.readStream.format("rocketmq").options(**where).option("subscribe", "T")
        .option("startingOffsets", "earliest").option("filter.tag", "t1").load()
    )  # fmt: skip
    query = (
        source.selectExpr("value", "tags").writeStream.format("rocketmq").options(**where)
        .option("topic", "Copy").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("receipts", str(tmp_path / "receipts")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(120)
    assert sorted(map(int, mq.bodies("Copy"))) == list(range(1, 500, 3))
    assert spark.read.parquet(str(tmp_path / "receipts")).count() == len(range(1, 500, 3))
