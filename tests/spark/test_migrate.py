"""Kafka's records as messages and back, places of offsets; and whole migrations with a real node.

The last test runs Kafka, a broker and Spark with the jars of its Kafka source, in a process of its
own since a JVM takes jars only when it starts; migrations are killed at every step, both ways.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from tests.rigs.clusters import OberthCluster
from tests.rigs.pairs import until

from oberth.cli.main import oberth
from oberth.client.blocking import Admin, Producer
from oberth.client.messages import Message
from oberth.errors import PeerUnavailableError
from oberth.formats import properties as p
from oberth.remoting.bodies.base import MessageQueue
from oberth.spark.connection import Connection
from oberth.spark.pipelines import migrate as m
from oberth.spark.pipelines.exact_send import PUBLISHED_AS
from oberth.spark.pipelines.kafka_records import message_of, record_of
from oberth.spark.pipelines.migrate import place_of_offset, runs_of
from oberth.spark.pipelines.views import read_rows
from oberth.testing.blocking import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BYTES = st.one_of(st.binary(max_size=6), st.sampled_from([b"key", b"two words", "é".encode()]))
NAME = st.one_of(
    st.sampled_from(
        ["a", "TAGS", "KEYS", "DELAY", "a;2", "a;base64", "KAFKA_HEADER;x", "UNIQ_KEY"]
    ),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8),
)


@example(b"k", b"v", [("a", b"\xff"), ("b", b"x"), ("a", b"last")])
@given(
    st.one_of(st.none(), BYTES), st.one_of(st.none(), BYTES),
    st.one_of(st.none(), st.lists(st.tuples(NAME, BYTES), max_size=5)),
)  # fmt: skip
def test_a_record_comes_back_as_it_was(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]] | None
) -> None:
    record = {"key": key, "value": value, "headers": headers, "timestamp": 5}
    message = message_of(record, "T", "kafka/T/0/1")
    assert message.body
    for name, text in message.properties.items():
        assert name
        assert text
        assert not set(name + text) & {"\x01", "\x02"}
    row = {
        "value": message.body, "properties": message.properties, "timestamp": 7,
        "key": (message.properties.get(p.KEYS) or "").encode() or None,
    }  # fmt: skip
    back = record_of(row, "rocketmq/T/0/0")
    assert (back["key"], back["value"]) == (key, value)
    ours = ("ROCKETMQ_TIMESTAMP", PUBLISHED_AS)
    found = [(each["key"], each["value"]) for each in back["headers"] if each["key"] not in ours]
    # Of one name in their order: of several values readers take the last.
    assert sorted(found, key=itemgetter(0)) == sorted(headers or [], key=itemgetter(0))


def test_a_message_keeps_what_rocketmq_alone_has() -> None:
    row = {
        "value": b"v", "key": b"k1 k2", "timestamp": 9,
        "properties": {"KEYS": "k1 k2", "TAGS": "red", "UNIQ_KEY": "u", "x": "é", "CLUSTER": "c"},
    }  # fmt: skip
    record = record_of(row, "n")
    headers = {each["key"]: each["value"] for each in record["headers"]}
    assert record["key"] == b"k1 k2"
    assert headers == {
        "TAGS": b"red", "UNIQ_KEY": b"u", "x": "é".encode(), "ROCKETMQ_TIMESTAMP": b"9",
        PUBLISHED_AS: b"n",
    }  # fmt: skip


def test_what_was_published_by_a_table_keeps_its_tags_too() -> None:
    properties = {"TAGS": "red", "UNIQ_KEY": "u", PUBLISHED_AS: "0123456789abcdef/7"}
    row = {"value": b"v", "key": None, "timestamp": 9, "properties": properties}
    headers = {each["key"]: each["value"] for each in record_of(row, "n")["headers"]}
    assert headers["TAGS"] == b"red"
    assert headers[PUBLISHED_AS] == b"n"


FORGED = [
    ("KAFKA_VALUE", "null"), ("KAFKA_VALUE", "empty"), ("KAFKA_VALUE", "x"),
    ("KAFKA_KEY", "order-1"), ("KAFKA_KEY", "b3JkZXI"), ("KAFKA_KEY", "é"),
    ("KAFKA_HEADERS", "x"), ("KAFKA_HEADERS", "5"), ("KAFKA_HEADERS", "[5]"),
    ("KAFKA_HEADERS", '["ab"]'), ("KAFKA_HEADERS", '[["a"]]'), ("KAFKA_HEADERS", '[["a", 5]]'),
    ("KAFKA_HEADERS", '[["a", "order-1"]]'), ("KAFKA_HEADERS", '[[5, "eA=="]]'),
    ("KAFKA_HEADERS", '[["\\ud800", "eA=="]]'), ("KAFKA_HEADERS", "[" * 100_000),
    ("KAFKA_HEADERS", "9" * 5_000), ("KAFKA_HEADERS", '{"a": "eA=="}'),
]  # fmt: skip


@pytest.mark.parametrize("published_as", ["", "0123456789abcdef/7", "kafka/T/0/1", "kafka/"])
def test_what_a_producer_said_of_kafka_becomes_headers(published_as: str) -> None:
    """Neither key nor body depend on it, and it never ends a migration."""
    for name, text in FORGED:
        properties = {name: text, **({PUBLISHED_AS: published_as} if published_as else {})}
        row = {"value": b"body", "key": b"k", "timestamp": 9, "properties": properties}
        record = record_of(row, "n")
        assert (record["key"], record["value"]) == (b"k", b"body"), (name, text)
        headers = [(each["key"], each["value"]) for each in record["headers"]]
        assert headers == [
            (PUBLISHED_AS, b"n"), (name, text.encode()), ("ROCKETMQ_TIMESTAMP", b"9")
        ]  # fmt: skip


def test_what_is_well_formed_counts_in_messages_from_kafka_alone() -> None:
    said = {"KAFKA_KEY": "Kys=", "KAFKA_HEADERS": '[["a", "eA=="]]', "KAFKA_TIMESTAMP": "5"}
    row = {"value": b"v", "key": b"k", "timestamp": 9, "properties": said}
    record = record_of(row, "n")
    assert record["key"] == b"k"
    assert {each["key"]: each["value"] for each in record["headers"]} == {
        PUBLISHED_AS: b"n", "ROCKETMQ_TIMESTAMP": b"9",
        **{name: text.encode() for name, text in said.items()},
    }  # fmt: skip
    record = record_of({**row, "properties": {**said, PUBLISHED_AS: "kafka/T/0/1"}}, "n")
    assert record["key"] == b"++"
    assert {each["key"]: each["value"] for each in record["headers"]} == {
        PUBLISHED_AS: b"n", "ROCKETMQ_TIMESTAMP": b"9", "a": b"x"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("rocketmq/T/0/5", (0, 5)), ("rocketmq/T/12/0", (12, 0)), (None, None), ("", None),
        ("rocketmq/T/a/b", None), ("rocketmq/T/", None), ("rocketmq/T/1", None),
        ("rocketmq/T/1/2/3", None), ("rocketmq/T/-1/2", None), ("rocketmq/T/1/٢", None),
        ("rocketmq/T/1/" + "9" * 5_000, None), ("rocketmq/T/01/2", None), ("kafka/T/1/2", None),
        ("rocketmq/T/0123456789abcdef/1/2", None),
    ],
)  # fmt: skip
def test_names_of_others_are_none_of_ours(name: str | None, place: tuple[int, int] | None) -> None:
    assert m._place_named("rocketmq/T/", name) == place


def test_a_migrations_names_are_its_own() -> None:
    there, here = m.Side(True, "h:1", "T"), m.Side(False, "h:2", "T")
    assert m.name_prefix(there, "0f") == "kafka/T/0f/"
    assert m.name_prefix(here, "0f") == "rocketmq/T/0f/"
    assert m.name_prefix(here, "") == "rocketmq/T/"
    names = ["rocketmq/T/0f/1/2", "rocketmq/T/1f/1/2", "rocketmq/T/1/2"]
    assert [m._place_named("rocketmq/T/0f/", name) for name in names] == [(1, 2), None, None]


@pytest.mark.spark
def test_records_of_others_have_no_name(spark: SparkSession) -> None:
    """Under ANSI a place that an array does not have is an error, as in the sessions made here."""
    rows = [
        (1, [("a", b"x")]), (2, []), (3, None), (4, [(PUBLISHED_AS, None)]),
        (5, [("a", b"x"), (PUBLISHED_AS, b"n"), (PUBLISHED_AS, b"m")]),
    ]  # fmt: skip
    frame = spark.createDataFrame(
        rows, "offset long, headers array<struct<key: string, value: binary>>"
    )
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    named = frame.selectExpr("offset", f"{m._NAME} as name").orderBy("offset").collect()
    assert [row["name"] for row in named] == [None, None, None, None, "n"]


def test_offsets_are_mapped_by_position() -> None:
    # Kafka's 13 and 14 were no messages, and 10 is the first that was moved.
    runs = runs_of([(10, 0), (11, 1), (12, 2), (15, 3), (16, 4), (30, 9)])
    assert runs == [(10, 0, 3), (15, 3, 2), (30, 9, 1)]
    found = [place_of_offset(runs, offset) for offset in (0, 10, 12, 13, 15, 16, 17, 30, 31, 99)]
    assert found == [0, 0, 2, 3, 3, 4, 9, 9, 10, 10]
    assert place_of_offset([], 5) is None


@pytest.mark.parametrize(
    "url", ["kafka://h:1", "http://h:1/T", "kafka:///T", "rocketmq://h:1/T/U", "T"]
)
def test_urls_that_name_nothing(url: str) -> None:
    command = ["spark", "migrate", "--from", url, "--to", "kafka://h:1/T", "--ledger", "l"]
    done = CliRunner().invoke(oberth, command)
    assert done.exit_code == 2
    assert "allowed are kafka://HOST:PORT/TOPIC" in done.output


class Node:
    """What `migrate.Kafka` does, in memory: partitions with gaps, and writes that fail half-way."""

    def __init__(self, session: SparkSession, rng: random.Random) -> None:
        self.session = session
        self.rng = rng
        self.topics: dict[str, list[dict[int, dict[str, Any]]]] = {}
        self.ends: dict[str, list[int]] = {}
        self.groups: dict[tuple[str, str], dict[int, int]] = {}
        self.failures = 0
        self.delivery_timeout_s = 120.0

    def partitions(self, topic: str, *, make: int = 0) -> int:
        self.topics.setdefault(topic, [{} for _ in range(make)])
        self.ends.setdefault(topic, [0] * make)
        return len(self.topics[topic])

    def bounds(self, topic: str, count: int) -> dict[int, tuple[int, int]]:
        return {n: (0, self.ends[topic][n]) for n in range(count)}

    def add(self, topic: str, partition: int, record: dict[str, Any]) -> None:
        if self.rng.random() < 0.2:  # a transaction's marker, or what compaction took
            self.ends[topic][partition] += 1
        self.topics[topic][partition][self.ends[topic][partition]] = record
        self.ends[topic][partition] += 1

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        rows = [
            (r["key"], r["value"], r["headers"], n, at, datetime.fromtimestamp(5, UTC))
            for n, (low, high) in ranges.items()
            for at, r in self.topics[topic][n].items() if low <= at < high
        ]  # fmt: skip
        schema = (
            "key binary, value binary, headers array<struct<key: string, value: binary>>, "
            "partition int, offset long, timestamp timestamp"
        )
        return self.session.createDataFrame(rows, schema).repartition(
            len(self.topics[topic]), "partition"
        ).sortWithinPartitions("partition", "offset")  # fmt: skip

    def write(self, frame: DataFrame, topic: str) -> None:
        rows = frame.collect()
        fails = self.rng.random() < 0.4
        for row in rows[: self.rng.randrange(len(rows) + 1)] if fails else rows:
            headers = [(h["key"], h["value"]) for h in row["headers"]]
            made = {"key": row["key"], "value": row["value"], "headers": headers}
            self.add(topic, row["partition"], made)
        if fails:
            self.failures += 1
            raise PySparkException("the node was stopped")

    def group_offsets(self, group: str, topic: str, count: int) -> dict[int, int]:
        return dict(self.groups.get((group, topic), {}))

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.groups[group, topic] = dict(offsets)


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long migrations wait for what may still arrive, in s; here they do not."""
    waited: list[float] = []
    monkeypatch.setattr(m._Migration, "_let_pass", lambda _, seconds: waited.append(seconds))
    return waited


def move(
    spark: SparkSession, rng: random.Random, source: m.Side, target: m.Side, ledger: Path,
    namesrv: str,
) -> m.MigrateReport:  # fmt: skip
    """Migrates, killed at some steps and taken up again."""
    live = {"rocketmq.namesrv.addr": namesrv}

    def step(_: str) -> None:
        if rng.random() < 0.15:
            raise Killed

    while True:
        with suppress(Killed):
            return m.migrate(
                spark, source, target, str(ledger), connection=Connection(namesrv),
                live_options=live, groups=["g"], step=step,
            )  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("seed", [41, 42])
def test_all_queues_of_all_brokers_are_moved_once_both_ways(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A broker that comes between two runs, and whose name is the first, moves no partition."""
    rng = random.Random(seed)
    node = Node(spark, rng)
    monkeypatch.setattr(m, "Kafka", lambda *_: node)
    monkeypatch.setattr(m, "BATCH_ROWS", 17)
    monkeypatch.setattr(m, "SENT_AT_ONCE", 5)
    expected: dict[tuple[str, int], list[bytes]] = {}
    with EmbeddedBroker({"brokerName": "broker-b"}) as mq:
        addr = mq.namesrv_addr

        def send(names: list[str]) -> None:
            with Producer("p", namesrv_addr=addr) as producer:
                for _ in range(40):
                    name, queue = rng.choice(names), rng.randrange(2)
                    own = expected.setdefault((name, queue), [])
                    body = b"%d" % rng.getrandbits(48)
                    place = MessageQueue(broker_name=name, queue_id=queue, topic="here")
                    producer.send(Message("here", body), mq=place)
                    own.append(body)

        with Admin(namesrv_addr=addr) as admin:
            admin.create_topic("here", queue_nums=2, cluster="DefaultCluster")
        source, there = m.Side(False, addr, "here"), m.Side(True, "kafka", "there")
        node.partitions("there", make=4)
        send(["broker-b"])
        move(spark, rng, source, there, tmp_path / "out", addr)
        conf = {"brokerName": "broker-a"}
        with OberthCluster(tmp_path / "a", conf, namesrv_addr=addr) as other:
            with Admin(namesrv_addr=addr) as admin:
                admin.create_topic("here", queue_nums=2, broker_addr=other.broker_addr)
                until(lambda: len(admin.topic_queues("here")) == 4, "broker-a has the topic")
            send(["broker-a", "broker-b"])
            report = move(spark, rng, source, there, tmp_path / "out", addr)
            assert report.total == 80
            order = [("broker-b", 0), ("broker-b", 1), ("broker-a", 0), ("broker-a", 1)]
            for partition, place in enumerate(order):
                kept: dict[bytes, bytes] = {}  # what came twice by a failed write has one name
                for record in node.topics["there"][partition].values():
                    kept.setdefault(dict(record["headers"])[PUBLISHED_AS], record["value"])
                assert list(kept.values()) == expected.get(place, []), place
            # And back, into a topic of the broker that the first run chose.
            back, again = m.Side(True, "kafka", "there"), m.Side(False, addr, "again")
            report = move(spark, rng, back, again, tmp_path / "back", addr)
            assert report.total == sum(len(each) for each in node.topics["there"])
            rows: dict[int, list[bytes]] = {}
            options = {"rocketmq.namesrv.addr": addr, "subscribe": "again"}
            for batch in read_rows(options, "partition,offset,value"):
                for row in batch.sort_by("offset").to_pylist():
                    rows.setdefault(row["partition"], []).append(row["value"])
            for partition, records in enumerate(node.topics["there"]):
                found = [record["value"] for record in records.values()]
                assert rows.get(partition, []) == found, partition


@pytest.mark.spark
@pytest.mark.parametrize("to_kafka", [True, False])
def test_migrations_of_topics_of_one_name_do_not_meet(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_kafka: bool
) -> None:
    """Another one sends all its messages when one has noted where it begins, and not sent yet."""
    node = Node(spark, random.Random(43))
    monkeypatch.setattr(m, "Kafka", lambda *_: node)
    node.partitions("orders", make=2)
    with EmbeddedBroker() as mq:
        addr = mq.namesrv_addr
        live = {"rocketmq.namesrv.addr": addr}
        source, target = m.Side(False, addr, "orders"), m.Side(True, "kafka", "orders")
        with Admin(namesrv_addr=addr) as admin:
            admin.create_topic("orders", queue_nums=2, cluster="DefaultCluster")

        def send(number: int) -> None:
            with Producer("p", namesrv_addr=addr) as producer:
                place = MessageQueue(broker_name="broker-a", queue_id=number % 2, topic="orders")
                producer.send(Message("orders", b"%d" % number), mq=place)

        for number in range(10):
            if to_kafka:
                send(number)
            else:
                record: dict[str, Any] = {"key": None, "value": b"%d" % number, "headers": []}
                node.add("orders", number % 2, record)
        if not to_kafka:
            source, target = target, m.Side(False, addr, "moved")

        def move_into(ledger: str, step: Callable[[str], None] | None = None) -> m.MigrateReport:
            return m.migrate(
                spark, source, target, str(tmp_path / ledger), connection=Connection(addr),
                live_options=live, step=step,
            )  # fmt: skip

        def step(name: str) -> None:
            if name == "send" and not (tmp_path / "another").exists():
                move_into("another")
                raise Killed  # a batch that is taken up again looks for what has arrived

        with suppress(Killed):
            move_into("one", step)
        assert move_into("one").total == 10

        def arrived() -> Counter[tuple[str, bytes]]:
            if to_kafka:
                return Counter(
                    (dict(each["headers"])[PUBLISHED_AS].decode(), each["value"])
                    for own in node.topics["orders"] for each in own.values()
                )  # fmt: skip
            found = read_rows({**live, "subscribe": "moved"}, "value,properties")
            rows = [row for batch in found for row in batch.to_pylist()]
            return Counter((dict(r["properties"])[PUBLISHED_AS], r["value"]) for r in rows)

        found = arrived()
        assert set(found.values()) == {1}
        assert Counter(value for _, value in found) == Counter({b"%d" % n: 2 for n in range(10)})
        if not to_kafka:
            return
        # One that was begun when names had no such part goes on without it.
        noted = json.loads((tmp_path / "one" / "_oberth" / "migrate.json").read_text())
        del noted["run"]
        (tmp_path / "one" / "_oberth" / "migrate.json").write_text(json.dumps(noted))
        send(10)
        assert move_into("one").total == 11
        assert ("rocketmq/orders/0/5", b"10") in arrived()


@pytest.mark.spark
@pytest.mark.parametrize("killed", [True, False])
def test_what_kafkas_producers_send_late_is_there_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """After a kill and after a task that failed: they had everything, and nothing had arrived."""
    node = Node(spark, random.Random(44))
    late, waited = list[Any](), list[float]()
    real = node.write

    def write(frame: DataFrame, topic: str) -> None:
        late.extend(frame.collect())
        monkeypatch.setattr(node, "write", real)
        raise Killed if killed else PySparkException("a task failed")

    def let_pass(_: m._Migration, seconds: float) -> None:
        waited.append(seconds)
        while late:
            row = late.pop(0)
            headers = [(each["key"], each["value"]) for each in row["headers"]]
            made = {"key": row["key"], "value": row["value"], "headers": headers}
            node.add("there", row["partition"], made)

    monkeypatch.setattr(m, "Kafka", lambda *_: node)
    monkeypatch.setattr(m._Migration, "_let_pass", let_pass)
    monkeypatch.setattr(node, "write", write)
    with EmbeddedBroker() as mq:
        addr = mq.namesrv_addr
        with Admin(namesrv_addr=addr) as admin:
            admin.create_topic("here", queue_nums=2, cluster="DefaultCluster")
        with Producer("p", namesrv_addr=addr) as producer:
            for number in range(10):
                place = MessageQueue(broker_name="broker-a", queue_id=number % 2, topic="here")
                producer.send(Message("here", b"%d" % number), mq=place)

        def run() -> m.MigrateReport:
            return m.migrate(
                spark, m.Side(False, addr, "here"), m.Side(True, "kafka", "there"), str(tmp_path),
                connection=Connection(addr), live_options={"rocketmq.namesrv.addr": addr},
            )  # fmt: skip

        if killed:
            with pytest.raises(Killed):
                run()
            assert not waited
        report = run()
    assert (report.moved, report.already) == ((0, 10) if killed else (10, 0))
    values = Counter(each["value"] for own in node.topics["there"] for each in own.values())
    assert values == Counter(b"%d" % number for number in range(10))
    [seconds] = waited
    assert 100 < seconds <= 120


@pytest.mark.spark
def test_a_batch_from_kafka_that_is_taken_up_again_waits_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    """In the driver: tasks, of which there may be more than cores, look at once."""
    node = Node(spark, random.Random(45))
    monkeypatch.setattr(m, "Kafka", lambda *_: node)
    node.partitions("orders", make=3)
    for number in range(9):
        record: dict[str, Any] = {"key": None, "value": b"%d" % number, "headers": []}
        node.add("orders", number % 3, record)
    timeout_s = 300

    def step(name: str) -> None:
        if name == "finish":
            raise Killed

    with EmbeddedBroker() as mq:
        addr = mq.namesrv_addr

        def run(step: Callable[[str], None] | None = None) -> m.MigrateReport:
            return m.migrate(
                spark, m.Side(True, "kafka", "orders"), m.Side(False, addr, "moved"),
                str(tmp_path), connection=Connection(addr, timeout_ms=timeout_s * 1000), step=step,
            )  # fmt: skip

        with pytest.raises(Killed):
            run(step)
        began = time.monotonic()
        report = run()
        assert time.monotonic() - began < timeout_s
        assert (report.moved, report.already) == (0, 9)
        assert len(mq.messages("moved")) == 9
    [seconds] = waits
    assert 0 < seconds <= timeout_s


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_task_that_is_tried_again_waits_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    made, sent = list[bool](), list[bool]()

    class Sender:
        def __init__(self, *_: Any, others_ended: bool, **__: Any) -> None:
            made.append(others_ended)

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, *_: Any, resumed: bool) -> dict[Any, Any]:
            sent.append(resumed)
            return {}

    context = SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    monkeypatch.setattr(m, "ExactSender", Sender)
    for resumed in (False, True):
        assert not list(m._SendJob(Connection("h:1"), "kafka/T/", [], [], resumed)([]))
    assert made == [attempt == 0] * 2
    assert sent == [attempt == 1, True]


ROUND_TRIP = """
import json, sys
from oberth.client.blocking import Admin
from oberth.errors import DataLossError, OptionError
from oberth.spark.connection import Connection
from oberth.spark.pipelines import migrate as m
from oberth.spark.runtime import build_session
from oberth.testing.blocking import EmbeddedBroker

servers, jars, work = sys.argv[1:]
m.BATCH_ROWS, m.SENT_AT_ONCE = 40, 16
spark = build_session("local[2]", quick=True, config={"spark.jars": jars})
quick = {"kafka.request.timeout.ms": "5000", "kafka.delivery.timeout.ms": "6000"}
kafka = m.Kafka(spark, servers, quick)


class Killed(BaseException):
    pass


def produce(first, last):
    rows = spark.range(first, last).selectExpr(
        "case when id % 5 = 0 then null when id % 7 = 0 then X'FF00' "
        "else cast(concat('k', id) as binary) end as key",
        "case when id % 11 = 0 then null else cast(concat('v', id) as binary) end as value",
        "array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary)), "
        "named_struct('key', 'raw', 'value', X'0102'), "
        "named_struct('key', 'TAGS', 'value', X'41')) as headers",
        "cast(id % 3 as int) as partition",
    )
    kafka.write(rows, "orders")


def records(topic):
    bounds = kafka.bounds(topic, 3)
    found = {}
    for row in kafka.read(topic, bounds).collect():
        headers = [(h["key"], bytes(h["value"])) for h in row["headers"] or ()]
        own = sorted(h for h in headers if h[0] not in ("ROCKETMQ_TIMESTAMP", "PUBLISHED_AS"))
        body = None if row["value"] is None else bytes(row["value"])
        key = None if row["key"] is None else bytes(row["key"])
        found.setdefault(row["partition"], []).append((row["offset"], key, body, own))
    return {n: [each[1:] for each in sorted(own)] for n, own in found.items()}


def run(source, target, ledger, **more):
    kills = [*m.STEPS, "send", "finish", None]
    arguments = {"connection": Connection(mq.namesrv_addr), "live_options": live, "groups": ["g"],
                 "kafka_options": quick}
    for victim in kills:
        def step(name):
            if name == victim:
                raise Killed
        try:
            report = m.migrate(spark, source, target, work + "/" + ledger, step=step, **arguments)
        except Killed:
            continue
    return report


with EmbeddedBroker() as mq:
    live = {"rocketmq.namesrv.addr": mq.namesrv_addr}
    kafka.partitions("orders", make=3)
    produce(0, 300)
    kafka.set_group_offsets("g", "orders", {0: 0, 1: 60, 2: 100})
    orders = m.Side(True, servers, "orders")
    here = m.Side(False, mq.namesrv_addr, "moved")
    there = run(orders, here, "there")
    produce(300, 330)
    more = run(orders, here, "there")
    with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        queues = sorted(admin.topic_queues("moved"), key=lambda q: q.queue_id)
        offsets = [admin.consumer_offset("g", queue) for queue in queues]
        ends = [admin.max_offset(queue) for queue in queues]
        admin.update_consume_offset("g", queues[1], 33)
    back = run(here, m.Side(True, servers, "back"), "back")
    print(json.dumps({
        "total": [there.total, more.total, back.total], "offsets": offsets, "ends": ends,
        "group": kafka.group_offsets("g", "back", 3), "groups": more.groups,
        "same": records("back") == records("orders"),
        "counts": {n: len(own) for n, own in records("back").items()},
    }))
spark.stop()
"""


@pytest.mark.interop
def test_there_and_back_with_a_real_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("OBERTH_INTEROP") != "full":
        pytest.skip("OBERTH_INTEROP=full runs this")
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.spark.kafka import connector_jars, kafka_node

    try:
        jars = ",".join(map(str, connector_jars()))
        with kafka_node(tmp_path / "kafka") as node:
            done = subprocess.run(
                [sys.executable, "-c", ROUND_TRIP, node.servers, jars, str(tmp_path)],
                capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path,
            )  # fmt: skip
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["total"] == [300, 330, 330]
    assert told["ends"] == [110, 110, 110]
    assert told["offsets"] == [0, 60, 100]
    assert told["groups"] == {"g": {"0": [0, 0], "1": [60, 60], "2": [100, 100]}}
    assert told["same"] is True
    assert told["counts"] == {"0": 110, "1": 110, "2": 110}
    assert told["group"]["1"] == 33
