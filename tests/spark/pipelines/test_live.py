"""Pipelines on live topics: exports hold each message once, dead letters are redriven once.

Exports run in this process, the commands in the session; the broker is the test's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from click.testing import CliRunner
from tests.rigs.dispatchers import dispatcher
from tests.rigs.pairs import until

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.cli.main import oberth
from oberth.client import Message, dead_letters
from oberth.client.admin import Admin as AsyncAdmin
from oberth.client.blocking import Admin, Producer
from oberth.client.blocking_face import LOOP
from oberth.errors import DataLossError, MQClientError, OptionError
from oberth.spark.live_plan import LiveStores
from oberth.spark.live_sink import sent_before
from oberth.spark.pipelines.export.exporter import STEPS, export
from oberth.spark.pipelines.export.ledger import Ledger
from oberth.spark.pipelines.export.places import LocalPlace
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.write_options import parse_live_write_options
from oberth.testing.blocking import EmbeddedBroker
from oberth.testing.embedded_broker import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KilledError(Exception):
    """Stands for a kill."""


@pytest.fixture
def mq() -> Iterator[Any]:
    with EmbeddedBroker() as broker:
        with Admin(namesrv_addr=broker.namesrv_addr) as admin:
            for topic in ("orders", "%DLQ%billing"):
                admin.create_topic(topic, queue_nums=3, cluster="DefaultCluster")
        yield broker


def _send(mq: Any, topic: str, bodies: list[bytes], **more: Any) -> None:
    with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **more))


def _rows(into: Path) -> list[dict[str, Any]]:
    query = f"select * from read_parquet('{into}/[!_]*/**/*.parquet', union_by_name=true)"
    found = duckdb.sql(query)
    assert found is not None
    rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("stop_at", STEPS)
def test_an_export_that_is_killed_at_a_step_goes_on(mq: Any, tmp_path: Path, stop_at: str) -> None:
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr, "minPartitions": "3"}
    settings = ExportSettings(body="json")
    bodies = [json.dumps({"id": n}).encode() for n in range(120)]
    _send(mq, "orders", [*bodies[:50], b"no json"], tags="new")

    def step(name: str) -> None:
        if name == stop_at:
            raise KilledError

    with pytest.raises(KilledError):
        export(InProcess(), "", str(tmp_path), settings, options=options, step=step)
    _send(mq, "orders", bodies[50:80])
    report = export(InProcess(), "", str(tmp_path), settings, options=options)
    if stop_at != "intend":
        assert report.batches == 2
    _send(mq, "later", bodies[80:])
    report = export(InProcess(), "", str(tmp_path), settings, options=options)
    assert (report.rows, report.log_end) == (40, 121)
    assert export(InProcess(), "", str(tmp_path), settings, options=options).batches == 0
    rows = _rows(tmp_path)
    assert Counter(row["value"] for row in rows) == Counter([*bodies, b"no json"])
    assert sorted(row["body"]["id"] for row in rows if row["body"]) == list(range(120))
    assert [row["value"] for row in rows if row["reason"]] == [b"no json"]
    places = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
    assert set(places.values()) == {1}


@pytest.mark.parametrize("count", [2, 9])
def test_an_export_tells_a_topic_that_was_made_again(mq: Any, tmp_path: Path, count: int) -> None:
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr}
    settings = ExportSettings(topics=("again",))
    with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        admin.create_topic("again", queue_nums=1, cluster="DefaultCluster")
        _send(mq, "again", [b"old %d" % n for n in range(5)])
        assert export(InProcess(), "", str(tmp_path), settings, options=options).rows == 5
        admin.delete_topic("again", cluster="DefaultCluster")
        admin.create_topic("again", queue_nums=1, cluster="DefaultCluster")
    new = [b"new %d" % n for n in range(count)]
    _send(mq, "again", new)
    with pytest.raises(DataLossError, match="read to 5, then its topic was made again"):
        export(InProcess(), "", str(tmp_path), settings, options=options)
    report = export(InProcess(), "", str(tmp_path), settings, options=options, skip_damage=True)
    assert (report.rows, len(report.skipped)) == (count, 1)
    _send(mq, "again", [b"last"])
    assert export(InProcess(), "", str(tmp_path), settings, options=options).rows == 1
    wanted = [*(b"old %d" % n for n in range(5)), *new, b"last"]
    assert Counter(row["value"] for row in _rows(tmp_path)) == Counter(wanted)


async def _start(settings: Any) -> Broker:
    broker = Broker(settings[0], settings[1])
    await broker.start()
    return broker


def test_clusters_that_come_and_go(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later cluster is no other source, and one whose only broker starts again is waited for."""
    into, other = tmp_path / "lake", tmp_path / "b"
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr}
    settings = ExportSettings(topics=("orders",))
    _send(mq, "orders", [b"1"])
    assert export(InProcess(), "", str(into), settings, options=options).rows == 1
    second = read_configs(
        {
            **DEFAULT_SETTINGS, "brokerName": "broker-b", "brokerClusterName": "Another",
            "namesrvAddr": mq.namesrv_addr, "storePathRootDir": str(other),
        }
    )  # fmt: skip
    broker = LOOP.call(lambda: _start(second))
    try:
        _send(mq, "orders", [b"2"])
        assert export(InProcess(), "", str(into), settings, options=options).rows == 1
    finally:
        LOOP.call(broker.aclose)
    looks: list[int] = []
    asked = AsyncAdmin.cluster_info

    async def away(self: Any) -> Any:
        found = await asked(self)
        looks.append(1)
        if len(looks) < 3:  # with the later one, and without
            found.cluster_addr_table = {"Another": []} if len(looks) == 2 else {}
        return found

    with monkeypatch.context() as patched:
        patched.setattr(AsyncAdmin, "cluster_info", away)
        assert export(InProcess(), "", str(into), settings, options=options).batches == 0
    assert len(looks) >= 3
    ledger = Ledger(LocalPlace(str(into)))
    ledger.begin(settings, {"broker": "clusters Third, Fourth", "path": ""})
    soon = {**options, "rocketmq.read.timeout": "300ms"}
    with pytest.raises(OptionError, match="holds the export of broker 'clusters Third, Fourth'"):
        export(InProcess(), "", str(into), settings, options=soon)


def test_a_batch_that_names_a_broker_that_is_away(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noted before a kill, it waits for the broker; what has gone for good may be skipped."""
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr, "rocketmq.read.timeout": "300ms"}
    settings = ExportSettings(topics=("orders",))
    ledger = Ledger(LocalPlace(str(tmp_path)))
    _send(mq, "orders", [b"1", b"2"])

    def killed(step: str) -> None:
        if step == "write":
            raise KilledError

    with pytest.raises(KilledError):
        export(InProcess(), "", str(tmp_path), settings, options=options, step=killed)
    batch, _ = ledger.last_batch()
    assert batch is not None
    assert batch.offsets is not None

    looks: list[int] = []
    asked = LiveStores._routes

    async def away(self: Any) -> Any:
        looks.append(1)
        return await asked(self) if len(looks) > 2 else {}

    with monkeypatch.context() as patched:
        patched.setattr(LiveStores, "_routes", away)
        more = {**options, "rocketmq.read.timeout": "60s"}
        assert export(InProcess(), "", str(tmp_path), settings, options=more).rows == 2
    assert len(looks) > 2

    _send(mq, "orders", [b"3"])
    with pytest.raises(KilledError):
        export(InProcess(), "", str(tmp_path), settings, options=options, step=killed)
    batch, _ = ledger.last_batch()
    assert batch is not None
    assert batch.offsets is not None
    batch.offsets["start"]["orders"]["gone"] = {"0": 5}
    batch.offsets["end"]["orders"]["gone"] = {"0": 9}
    ledger.intend(replace(batch, end=batch.end + 4))
    with pytest.raises(MQClientError, match="batch 1 has messages of gone"):
        export(InProcess(), "", str(tmp_path), settings, options=options)
    with pytest.raises(MQClientError, match=r"name the brokers that are left in rocketmq.brokers"):
        export(InProcess(), "", str(tmp_path), settings, options=options, skip_damage=True)
    left = {**options, "rocketmq.brokers": "broker-a"}
    report = export(InProcess(), "", str(tmp_path), settings, options=left, skip_damage=True)
    assert (report.rows, len(report.skipped)) == (1, 1)
    assert "offsets 5 to 9 of batch 1 are at no broker now" in report.skipped[0]
    assert Counter(row["value"] for row in _rows(tmp_path)) == Counter([b"1", b"2", b"3"])
    assert export(InProcess(), "", str(tmp_path), settings, options=options).batches == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("filter.tag", "red"), ("filter.sql", "a = 1"), ("endingOffsets", '{"A": {"0": 1}}'),
        ("endingTimestamp", "1"), ("endingOffsetsByTimestamp", '{"A": {"0": 1}}'),
        ("columns", "value"), ("body", "json"), ("lake", "/lake"), ("badBodies", "skip"),
        ("brokerName", "a"), ("batchBytes", "1m"),
    ],
)  # fmt: skip
def test_options_that_would_choose_rows_are_refused(tmp_path: Path, name: str, value: str) -> None:
    """Before any name server is asked."""
    options = {"rocketmq.namesrv.addr": "127.0.0.1:1", name: value}
    said = f"{name} does not go with an export of live topics"
    into = tmp_path / "tables"
    with pytest.raises(OptionError, match=said):
        export(InProcess(), "", str(into), ExportSettings(), options=options)
    words = ["--into", str(into), "--namesrv", "127.0.0.1:1", "--option", f"{name}={value}"]
    done = CliRunner().invoke(oberth, ["spark", "export", *words])
    assert isinstance(done.exception, OptionError)
    assert said in str(done.exception)
    assert not into.exists()


def test_options_that_a_live_export_heeds(mq: Any, tmp_path: Path) -> None:
    options = {
        "nameServer": mq.namesrv_addr, "subscribePattern": "ord.*", "minPartitions": "2",
        "startingTimestamp": "4102444800000", "startingOffsetsByTimestampStrategy": "latest",
        "rocketmq.pull.requests": "2", "failOnDataLoss": "false", "storage.region": "here",
    }  # fmt: skip
    _send(mq, "orders", [b"before"])
    _send(mq, "%DLQ%billing", [b"other"])
    assert export(InProcess(), "", str(tmp_path), ExportSettings(), options=options).batches == 0
    options["startingTimestamp"] = "1"
    assert export(InProcess(), "", str(tmp_path), ExportSettings(), options=options).rows == 1
    settings = ExportSettings(topics=("orders", "others"))
    for topics in ("other", "orders", "orders,others,other"):
        with pytest.raises(OptionError, match="subscribe does not go with --topic"):
            export(
                InProcess(), "", str(tmp_path / "no"), settings,
                options={"nameServer": mq.namesrv_addr, "topic": topics},
            )  # fmt: skip
    _send(mq, "others", [b"another"])
    report = export(
        InProcess(), "", str(tmp_path / "same"), settings,
        options={"nameServer": mq.namesrv_addr, "topic": "others, orders"},
    )  # fmt: skip
    assert report.tables == Counter({"orders": 1, "others": 1})


def test_what_a_live_export_is_not(mq: Any, tmp_path: Path) -> None:
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr}
    with pytest.raises(OptionError, match="an exact export reads a store's log"):
        export(InProcess(), "", str(tmp_path), ExportSettings(exact=True), options=options)
    _send(mq, "orders", [b"x"])
    export(InProcess(), "", str(tmp_path), ExportSettings(topics=("orders",)), options=options)
    with pytest.raises(OptionError, match="holds the export of broker"):
        export(InProcess(), str(mq.store_dir), str(tmp_path), ExportSettings(topics=("orders",)))


def _run(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(oberth, ["spark", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.spark
def test_commands_on_live_topics(spark: SparkSession, mq: Any) -> None:
    with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for number in range(6):
            message = Message(
                "%DLQ%billing", b"%d" % number, tags=f"t{number % 2}", keys=f"k{number}"
            )
            message.properties["DLQ_ORIGIN_TOPIC"] = "orders"
            producer.send(message)
    addresses = ["--namesrv", mq.namesrv_addr]
    letters = _run("dlq", *addresses)
    assert [row["originTopic"] for row in letters] == ["orders"] * 6
    chosen = ["redrive", *addresses, "--where", "tags = 't1'"]
    receipts = _run(*chosen)
    assert {each["status"] for each in receipts} == {"redriven"}
    assert sorted(mq.bodies("orders")) == [b"1", b"3", b"5"]
    messages = {each.msg_id: each for each in mq.messages("orders")}
    assert {m.properties["REDRIVEN_FROM"] for m in messages.values()} == {
        each["deadLetterId"] for each in receipts
    }
    assert {(m.queue_id, m.queue_offset) for m in messages.values()} == {
        (each["queueId"], each["queueOffset"]) for each in receipts
    }
    assert {each["status"] for each in _run(*chosen)} == {"already"}
    assert len(mq.bodies("orders")) == 3
    rows = _run("sql", *addresses, "select count(*) n, max(key) k from orders where tags = 't1'")
    assert rows == [{"n": 3, "k": "k5"}]


def test_letters_that_were_sent_and_are_not_shown_yet_are_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With dispatch=spark and no query, neither by ``dlq redrive`` nor by ``spark redrive``."""
    monkeypatch.setattr(dead_letters, "SHOWN_WITHIN_S", 0.2)
    match = "shows messages up to 0, its log has them up to"
    with EmbeddedBroker({"dispatch": "spark"}) as mq, ExitStack() as later:
        root = str(mq.store_dir)
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            for topic in ("orders", "%DLQ%billing"):
                admin.create_topic(topic, queue_nums=1, cluster="DefaultCluster")
            with dispatcher(root), Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
                for number in range(3):
                    letter = Message("%DLQ%billing", b"%d" % number)
                    letter.properties["DLQ_ORIGIN_TOPIC"] = "orders"
                    producer.send(letter)
                until(lambda: len(mq.dead_letters("billing")) == 3, "the letters are shown")
        places = [("orders", letter.msg_id) for letter in mq.dead_letters("billing")]
        ids = {letter.offset_msg_id for letter in mq.dead_letters("billing")}
        command = ["dlq", "redrive", "billing", "-n", mq.namesrv_addr, "--json"]
        done = CliRunner().invoke(oberth, command)
        assert (done.exit_code, done.stdout.count("redriven")) == (0, 3), done.output
        for more in ([], ["--dry-run"]):
            done = CliRunner().invoke(oberth, [*command, *more])
            assert isinstance(done.exception, MQClientError), done.output
            assert match in str(done.exception)
        options = {"rocketmq.namesrv.addr": mq.namesrv_addr, "rocketmq.delivery.timeout": "200ms"}
        impatient = parse_live_write_options(options)
        with pytest.raises(MQClientError, match=match):
            sent_before(impatient, places, "REDRIVEN_FROM")
        ask, asked = dead_letters.Shown._ends, []

        async def ends(self: Any, *given: Any, **more: Any) -> Any:
            asked.append(await ask(self, *given, **more))
            if len(asked) == 2:  # the log's end, and once what is shown
                later.enter_context(dispatcher(root))
            return asked[-1]

        monkeypatch.setattr(dead_letters.Shown, "_ends", ends)
        patient = parse_live_write_options({"rocketmq.namesrv.addr": mq.namesrv_addr})
        assert sent_before(patient, places, "REDRIVEN_FROM") == ids
        assert len(asked) > 2
        done = CliRunner().invoke(oberth, command)
        assert (done.exit_code, done.stdout.count("already")) == (0, 3), done.output
        assert sorted(mq.bodies("orders")) == [b"0", b"1", b"2"]


def test_a_store_or_brokers_not_both(tmp_path: Path) -> None:
    for arguments in (
        ["sql", "select 1"],
        ["sql", "--store", str(tmp_path), "--namesrv", "a:1", "select 1"],
        ["dlq", str(tmp_path), "--namesrv", "a:1"],
        ["redrive", "--namesrv", "a:1", "--into", str(tmp_path)],
        ["export", "--into", str(tmp_path)],
    ):
        done = CliRunner().invoke(oberth, ["spark", *arguments])
        assert done.exit_code == 2, arguments
        assert "Usage" in done.output
