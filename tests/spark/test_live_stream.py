"""Streams over live topics: offsets and triggers without a JVM, then whole queries with one.

Brokers of the test's own, one of them under access control.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client import ClientConfig, Message, MessageQueue
from oberth.client.blocking import Admin, Producer
from oberth.client.blocking_face import LOOP
from oberth.errors import DataLossError, MQClientError, RemotingError
from oberth.spark import plan as p
from oberth.spark import stream
from oberth.spark.live_plan import LiveStores
from oberth.spark.live_sink import send_rows, sent_before
from oberth.spark.options import parse_read_options
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.pipelines.exact_send import ExactSender
from oberth.spark.pipelines.export.live import LiveTopicsSource
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.stream import RocketMQStreamReader, TriggerPlanner
from oberth.spark.write_options import parse_live_write_options
from oberth.testing.blocking import EmbeddedBroker
from oberth.testing.embedded_broker import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()


class Shop:
    """A broker, and a producer that writes numbered messages to its queues."""

    def __init__(self, mq: Any, producer: Any) -> None:
        self.mq = mq
        self._producer = producer
        self.sent: list[str] = []

    def create(self, topic: str, queues: int) -> None:
        with Admin(namesrv_addr=self.mq.namesrv_addr) as admin:
            admin.create_topic(topic, queue_nums=queues, cluster="DefaultCluster")

    def send(self, topic: str, queue: int, count: int = 1, size: int = 10) -> None:
        where = MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue)
        for _ in range(count):
            text = f"{topic}-{queue}-{len(self.sent)}"
            self._producer.send(Message(topic, text.ljust(size).encode()), mq=where)
            self.sent.append(text)

    def planner(self, **options: str) -> TriggerPlanner:
        return TriggerPlanner(parse_read_options(self.options(**options), streaming=True))

    def options(self, **options: str) -> dict[str, str]:
        given = {"rocketmq.namesrv.addr": self.mq.namesrv_addr, "startingOffsets": "earliest"}
        return given | {name.replace("__", "."): value for name, value in options.items()}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """An empty shop; new topics are seen at once and an idle look is short."""
    monkeypatch.setattr(stream, "LIVE_IDLE_WAIT_S", 0.02)
    monkeypatch.setattr("oberth.spark.live_plan.ROUTE_AGE_S", 0.0)
    with EmbeddedBroker() as mq, Producer("shop", namesrv_addr=mq.namesrv_addr) as producer:
        yield Shop(mq, producer)


def _key(topic: str, queue: int) -> p.QueueKey:
    return p.QueueKey(topic, "broker-a", queue)


def test_triggers_take_what_is_new_and_new_topics(shop: Shop) -> None:
    shop.create("A", 2)
    shop.send("A", 0, 3)
    planner = shop.planner(subscribePattern="A|B")
    start = planner.initial()
    assert start == {_key("A", 0): 0, _key("A", 1): 0}
    first = planner.next_end(start, ALL)
    assert first == {_key("A", 0): 3, _key("A", 1): 0}
    assert planner.next_end(first, ALL) == first
    shop.create("B", 1)
    shop.send("B", 0, 2)
    shop.send("A", 1)
    second = planner.next_end(first, ALL)
    assert second == {_key("A", 0): 3, _key("A", 1): 1, _key("B", 0): 2}
    third = planner.next_end(second, ReadMaxRows(5))
    assert third == second
    planner.freeze()
    shop.send("A", 0)
    assert planner.next_end(second, ALL) == second


def test_limits_of_a_trigger(shop: Shop) -> None:
    shop.create("A", 2)
    shop.send("A", 0, 30)
    shop.send("A", 1, 10, size=1000)
    planner = shop.planner(subscribe="A", maxBytesPerTrigger="3k")
    at = planner.initial()
    assert sum(planner.next_end(at, ReadMaxRows(7)).values()) == 7
    steps = 0
    while (end := planner.next_end(at, ReadMaxBytes(3000))) != at:
        at, steps = end, steps + 1
    assert at == {_key("A", 0): 30, _key("A", 1): 10}
    assert 4 < steps < 30


def test_a_broker_that_is_away_has_lost_nothing(shop: Shop) -> None:
    shop.create("A", 1)
    shop.send("A", 0, 5)
    planner = shop.planner(subscribe="A")
    end = planner.next_end(planner.initial(), ALL)
    shop.mq.kill()
    assert planner.next_end(end, ALL) == end
    shop.mq.recover()
    shop.send("A", 0, 2)
    assert planner.next_end(end, ALL) == {_key("A", 0): 7}


def test_what_is_planned_waits_for_its_broker_and_a_restarted_query_finds_it(
    shop: Shop, failed_attempts: threading.Semaphore
) -> None:
    shop.create("A", 2)
    shop.send("A", 0, 40)
    shop.send("A", 1, 10)
    options = shop.options(subscribe="A", rocketmq__timeout="500ms")
    fields = struct_type(parse_columns("value"))
    reader = RocketMQStreamReader(parse_read_options(options, streaming=True), fields)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    shop.mq.kill()  # its address is gone from the name server
    restarted = RocketMQStreamReader(parse_read_options(options, streaming=True), fields)

    def read(partitions: Any) -> list[str]:
        return sorted(
            row["value"].decode().strip()
            for partition in partitions
            for batch in restarted.read(partition)
            for row in batch.to_pylist()
        )

    with ThreadPoolExecutor(2) as pool:
        rows = pool.submit(lambda: read(planned))
        again = pool.submit(lambda: read(restarted.partitions(start, end)))
        for _ in range(20):
            assert failed_attempts.acquire(timeout=60)
        shop.mq.recover()
        assert rows.result(60) == again.result(60) == sorted(shop.sent)
    shop.mq.kill()
    impatient = shop.options(subscribe="A", rocketmq__read__timeout="200ms")
    once = RocketMQStreamReader(parse_read_options(impatient, streaming=True), fields)
    with pytest.raises((RemotingError, MQClientError)):
        once.partitions(start, end)
    shop.mq.recover()


def test_a_stream_goes_on_with_the_brokers_that_are_there(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _second(shop, tmp_path)
    second = LOOP.call(lambda: _start(settings))
    try:
        shop.create("A", 1)
        shop.send("A", 0, 5)
        planner = shop.planner(subscribe="A", rocketmq__timeout="500ms")
        both = planner.next_end(planner.initial(), ALL)
        there = p.QueueKey("A", "broker-b", 0)
        assert both == {_key("A", 0): 5, there: 0}
        where = MessageQueue(topic="A", broker_name="broker-b", queue_id=0)
        shop._producer.send(Message("A", b"x"), mq=where)
        shop.mq.kill()
        for _ in range(2):
            assert planner.next_end(both, ALL) == {_key("A", 0): 5, there: 1}
        told = [line for line in caplog.messages if "was read from before" in line]
        assert [line.split(",")[0] for line in told] == ["broker broker-a"]
        shop.mq.recover()
        shop.send("A", 0, 2)
        assert planner.next_end(both, ALL) == {_key("A", 0): 7, there: 1}
    finally:
        LOOP.call(second.aclose)


def _second(shop: Shop, tmp_path: Path) -> Any:
    """The settings of a broker beside the shop's."""
    return read_configs(
        {
            **DEFAULT_SETTINGS, "brokerName": "broker-b", "namesrvAddr": shop.mq.namesrv_addr,
            "storePathRootDir": str(tmp_path / "b"),
        }
    )  # fmt: skip


def _with_messages_at_both(shop: Shop, settings: Any) -> Broker:
    """A second broker that runs; the topic A has three messages at the first, and one there."""
    second = LOOP.call(lambda: _start(settings))
    shop.create("A", 1)
    shop.send("A", 0, 3)
    where = MessageQueue(topic="A", broker_name="broker-b", queue_id=0)
    shop._producer.send(Message("A", b"x"), mq=where)
    return second


def test_reads_and_sends_wait_for_the_brokers_that_they_name(
    shop: Shop, tmp_path: Path, failed_attempts: threading.Semaphore
) -> None:
    settings = _second(shop, tmp_path)
    LOOP.call(_with_messages_at_both(shop, settings).aclose)
    there = p.QueueKey("A", "broker-b", 0)

    def look(**more: str) -> dict[p.QueueKey, tuple[int, int]]:
        options = parse_read_options(shop.options(subscribe="A", **more), streaming=False)
        with LiveStores(options) as stores:
            return stores.bounds(p.select_queues(options, stores, must_exist=True))

    named = {"rocketmq__brokers": "broker-a, broker-b"}
    assert look() == {_key("A", 0): (0, 3)}  # no name server remembers the other
    away = r"rocketmq\.brokers names broker-b, the brokers of .* are broker-a$"
    with pytest.raises(MQClientError, match=away):
        look(rocketmq__read__timeout="200ms", **named)
    where_to = shop.options(rocketmq__delivery__timeout="200ms", **named)
    del where_to["startingOffsets"]
    writing = parse_live_write_options(where_to)
    rows = pa.RecordBatch.from_pydict({"topic": ["A"], "value": [b"y"]})
    with pytest.raises(MQClientError, match=away):
        send_rows(iter([rows]), writing, "")

    async def queues() -> list[MessageQueue]:
        async with ExactSender(writing.connection, "exact") as sender:
            return await sender.queues("A")

    with pytest.raises(MQClientError, match=away):
        LOOP.call(queues)
    with pytest.raises(MQClientError, match=away):
        sent_before(writing, [("A", "key")], "REDRIVEN_FROM")
    with ThreadPoolExecutor(1) as pool:
        both = pool.submit(look, **named)
        for _ in range(3):
            assert failed_attempts.acquire(timeout=60)
        second = LOOP.call(lambda: _start(settings))
        try:
            assert both.result(60) == {_key("A", 0): (0, 3), there: (0, 1)}
            assert [queue.broker_name for queue in LOOP.call(queues)] == ["broker-a", "broker-b"]
            assert send_rows(iter([rows]), writing, "").messages == 1
        finally:
            LOOP.call(second.aclose)


def test_an_export_warns_of_a_broker_that_left(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = _with_messages_at_both(shop, _second(shop, tmp_path))
    given = shop.options(subscribe="A", rocketmq__read__timeout="200ms")

    def source() -> LiveTopicsSource:
        return LiveTopicsSource(given, ExportSettings(format="parquet"), skip_damage=False)

    with closing(source()) as earlier:
        first = earlier.next_batch(None, [])
    assert first is not None
    assert first.end == 4
    LOOP.call(second.aclose)
    shop.send("A", 0, 2)
    with closing(source()) as later:
        for _ in range(2):
            batch = later.next_batch(first, [])
            assert batch is not None
            assert batch.end == 6
    told = [line for line in caplog.messages if "broker broker-b" in line]
    assert told == [
        "broker broker-b, which was read from before, is not there: what is new in its queues is "
        "read when it is back"
    ]


async def _start(settings: Any) -> Broker:
    broker = Broker(settings[0], settings[1])
    await broker.start()
    return broker


def test_a_topic_that_was_made_anew_is_shorter(shop: Shop) -> None:
    shop.create("A", 1)
    shop.send("A", 0, 5)
    planner, careless = (
        shop.planner(subscribe="A"),
        shop.planner(subscribe="A", failOnDataLoss="false"),
    )
    with pytest.raises(DataLossError, match="it was read to 9 and ends at 5"):
        planner.next_end({_key("A", 0): 9}, ALL)
    assert careless.next_end({_key("A", 0): 9}, ALL) == {_key("A", 0): 5}


@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_topic_that_was_made_again_is_told_however_long_it_is(shop: Shop, count: int) -> None:
    schema = struct_type(parse_columns("topic,offset,value"))

    def reader(**more: str) -> RocketMQStreamReader:
        given = shop.options(subscribe="A,B", **more)
        return RocketMQStreamReader(parse_read_options(given, streaming=True), schema)

    for topic in ("A", "B"):
        shop.create(topic, 2)
    shop.send("B", 0, 3)
    first = reader()
    begun = first.latestOffset(first.initialOffset(), ALL)
    shop.send("A", 0, 5)
    at = first.latestOffset(begun, ALL)
    shop.send("B", 1, 2)
    at = first.latestOffset(at, ALL)
    before = {"A": {"0": 4}, "B": {"0": 2, "1": 1}}
    found = at[""]["broker-a"]["before"]
    assert {topic: set(queues) for topic, queues in found.items()} == {
        topic: set(queues) for topic, queues in before.items()
    }
    with Admin(namesrv_addr=shop.mq.namesrv_addr) as admin:
        admin.delete_topic("A", cluster="DefaultCluster")
    shop.create("A", 2)
    shop.send("A", 0, count)
    if count == 5:
        assert reader().latestOffset(at, ALL) == at  # told with its next message
        shop.send("A", 0)
        count = 6
    why = "read to 5 and ends at 3" if count < 5 else "read to 5, then its topic was made again"
    for each in (first, reader()):
        with pytest.raises(DataLossError, match=why):
            each.latestOffset(at, ALL)
    goes_on = reader(failOnDataLoss="false")
    again = goes_on.latestOffset(at, ALL)
    rest = {_key("A", 1): 0, _key("B", 0): 3, _key("B", 1): 2}
    assert p.offsets_from_json(again) == {_key("A", 0): 0, **rest}
    end = goes_on.latestOffset(again, ALL)
    assert p.offsets_from_json(end) == {_key("A", 0): count, **rest}
    rows = []
    for partition in goes_on.partitions(again, end):
        assert isinstance(partition, RocketMQPartition)
        rows += [r for batch in goes_on.read(partition) for r in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(count))


def test_what_is_committed_is_the_groups_next_offset(shop: Shop) -> None:
    shop.create("A", 2)
    shop.send("A", 1, 4)
    given = shop.options(
        subscribe="A", commitOffsetsToGroup="true", rocketmq__consumer__group="readers"
    )
    schema = struct_type(parse_columns("partition,offset"))
    reader = RocketMQStreamReader(parse_read_options(given, streaming=True), schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    rows = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RocketMQPartition)
        rows += [r for batch in reader.read(partition) for r in batch.to_pylist()]
    assert rows == [{"partition": 1, "offset": offset} for offset in range(4)]
    assert shop.mq.offsets("readers", "A") == {}
    reader.commit(end)
    assert shop.mq.offsets("readers", "A") == {0: 0, 1: 4}


@pytest.mark.spark
def test_a_stream_reads_each_message_once_across_restarts(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.create("A", 3)
    for queue in range(3):
        shop.send("A", queue, 20)

    def run() -> list[Any]:
        frame = spark.readStream.format("rocketmq").options(
            **shop.options(subscribe="A", maxOffsetsPerTrigger="25", minPartitions="2")
        )
        writer = frame.load().selectExpr("trim(cast(value as string)) text").writeStream
        query = (
            writer.format("parquet").option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(120)
        return list(query.recentProgress)

    progress = run()
    assert sum(each["numInputRows"] for each in progress) == 60
    shop.send("A", 1, 5)
    shop.mq.restart()
    shop.send("A", 2, 5)
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.text for row in rows) == sorted(shop.sent)


@pytest.mark.spark
def test_a_batch_in_sql_under_access_control_shows_no_secret(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    secret = "hush-hush-12345"
    settings = {
        "authenticationEnabled": "true", "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": "root", "password": secret}),
    }  # fmt: skip
    with EmbeddedBroker(settings) as mq:
        config = ClientConfig(namesrv_addr=mq.namesrv_addr, access_key="root", secret_key=secret)
        with Producer("p", config=config) as producer:
            for number in range(30):
                producer.send(Message("T", b"%d" % number, tags=f"t{number % 3}"))
        options = {
            "rocketmq.namesrv.addr": mq.namesrv_addr, "subscribe": "T",
            "rocketmq.acl.accessKey": "root", "rocketmq.acl.secretKey": secret,
        }  # fmt: skip
        frame = spark.read.format("rocketmq").options(**options).load().where("tags = 't1'")
        assert sorted(int(row.value) for row in frame.collect()) == list(range(1, 30, 3))
        frame.explain(True)
        query = (
            spark.readStream.format("rocketmq").options(**options)
            .option("startingOffsets", "earliest").load().writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(120)
        assert query.lastProgress is not None
        query.explain(True)
        texts = [str(query.lastProgress)]
        wrong = dict(options, **{"rocketmq.acl.secretKey": secret + "wrong"})
        with pytest.raises(Exception, match=r"(?i)signature|auth") as refused:
            spark.read.format("rocketmq").options(**wrong).load().collect()
        texts.append(str(refused.value))
    written = "".join(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    out, err = capfd.readouterr()
    assert all(secret not in text for text in (*texts, written, out, err))


def test_what_partitions_say_of_themselves_has_no_secret(
    shop: Shop, read_live: Callable[..., Any]
) -> None:
    shop.create("A", 1)
    shop.send("A", 0)
    given = {"rocketmq__acl__accessKey": "k", "rocketmq__acl__secretKey": "hush"}
    schema = struct_type(parse_columns("offset"))
    parsed = parse_read_options(shop.options(subscribe="A", **given), streaming=True)
    reader = RocketMQStreamReader(parsed, schema)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    assert parts
    assert "hush" not in repr(parts) + repr(parsed) + json.dumps(start)
    assert len(read_live(shop.mq.namesrv_addr, subscribe="A", **given).rows) == 1
