"""Topics as SQL views: names without a JVM; rows, expanded bodies and the command with one."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from oberth.cli.main import oberth
from oberth.errors import OptionError
from oberth.spark.pipelines import views
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.views import ALL_MESSAGES, is_query, safe_names
from oberth.spark.pushdown import CONF as PUSHDOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = st.sets(st.text("aAbB-_%|1", min_size=1, max_size=6), max_size=30)


@given(NAMES)
def test_names_are_safe_and_different(topics: set[str]) -> None:
    names = safe_names(topics)
    assert names.keys() == topics
    assert all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names.values())
    lowered = [name.lower() for name in names.values()]
    assert len(set(lowered)) == len(lowered)
    assert ALL_MESSAGES not in lowered
    assert safe_names(sorted(topics, reverse=True)) == names


def test_names_that_sql_takes_are_kept() -> None:
    assert safe_names(["a-b", "a_b", "%RETRY%g", "1x", "all_messages"]) == {
        "a_b": "a_b",
        "a-b": "a_b_2",
        "%RETRY%g": "_RETRY_g",
        "1x": "t_1x",
        "all_messages": "all_messages_2",
    }


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select 1", True),
        (" ((SELECT 1) union values (2))", True),
        ("-- set\n/* show\ntables */ with a as (select 1) table a", True),
        ("from a select 1", True),
        ("set a=1", False),
        ("-- select\nset a=1", False),
        ("/* select */ describe a", False),
        ("selected", False),
        ("explain select 1", False),
        ("show tables", False),
        ("/* select 1", False),
        ("", False),
    ],
)
def test_queries_are_known_by_their_first_word(statement: str, expected: bool) -> None:
    assert is_query(statement) is expected


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(oberth, ["spark", "sql", *arguments], input=stdin)


@pytest.mark.spark
def test_topics_in_sql(spark: SparkSession, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine("basic-5.5.0")
    delivered = [m for m in store.facts["messages"] if m["sysFlag"] & 0xC in (0, 8)]
    orders = [m for m in delivered if m["topic"] == "orders-eu"]
    place = ["--store", str(store.root)]
    done = run(*place, "--json", "select count(*) n, max(offset) o from orders_eu")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "n": len(orders),
        "o": max(m["queueOffset"] for m in orders),
    }
    done = run(
        *place, "--csv",
        stdin="select topic, count(*) from all_messages group by 1 order by 1;\n\\d\n",
    )  # fmt: skip
    lines = list(csv.reader(io.StringIO(done.stdout)))
    assert ["orders-eu", str(len(orders))] in lines
    assert "orders_eu" in done.stdout
    failed = run(*place, "select nothing from orders_eu")
    assert failed.exit_code == 2
    assert "nothing" in failed.stderr


@pytest.mark.spark
@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_statement_reads_what_it_asks_for_and_the_next_all(
    spark: SparkSession, growing_store: Any, monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    before = spark.conf.get(PUSHDOWN)
    assert before is not None
    spark.conf.set(PUSHDOWN, allowed)
    try:
        _reads_what_it_asks_for(spark, growing_store, monkeypatch)
        assert spark.conf.get(PUSHDOWN) == allowed
    finally:
        spark.conf.set(PUSHDOWN, before)


def _reads_what_it_asks_for(
    spark: SparkSession, growing_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        growing_store.append("A", number % 4, b"x" * 500, keys=f"k{number}")
        growing_store.append("B", 0, b"x")
    monkeypatch.setattr(views, "READ_HERE_MAX", 0)
    small = {"targetPartitionBytes": "40k"}
    asked = views.TopicViews(spark, [str(growing_store.root)], small)
    whole = asked.query("select * from A")
    assert whole.count() == 400
    some = asked.query("select * from A where partition = 1")
    assert some.rdd.getNumPartitions() < whole.rdd.getNumPartitions() / 2
    assert (some.count(), whole.count()) == (100, 400)
    twice = """
        with x as (select * from A where partition = 2)
        select (select count(*) from x), (select count(*) from x where offset < 10)"""
    assert asked.query(twice).collect() == [(100, 10)]
    both = "select count(*) from A join B using (offset) where A.partition = 3 and B.partition = 0"
    assert asked.query(both).collect() == [(100,)]
    asked.query("create or replace temporary view own as select * from A where partition = 1")
    assert asked.query("select count(*) from A where partition = 2").collect() == [(100,)]
    assert asked.query("select count(*) from own where offset < 7").collect() == [(7,)]
    assert asked.query("select count(*) from own").collect() == [(100,)]
    assert asked.query("select count(*) from A").collect() == [(400,)]


@pytest.mark.spark
def test_bodies_as_columns(spark: SparkSession, growing_store: Any) -> None:
    for number in range(20):
        body = {"id": number, "offset": "x", "legs": [{"km": number / 2}]}
        growing_store.append("flights", number % 2, json.dumps(body).encode())
    growing_store.append("flights", 0, b"no json")
    done = run(
        "--store", str(growing_store.root), "--expand", "flights", "--json",
        "select id, body_offset, legs[0].km as km, partition from flights "
        "where id >= 18 or id is null order by id",
    )  # fmt: skip
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": None, "body_offset": None, "km": None, "partition": 0},
        {"id": 18, "body_offset": "x", "km": 9.0, "partition": 0},
        {"id": 19, "body_offset": "x", "km": 9.5, "partition": 1},
    ]


@pytest.mark.spark
def test_a_topic_that_a_lake_leaves_out_hides_no_other(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    for topic in ("orders", "parcels", "%RETRY%g"):
        growing_store.append(topic, 0, b"x")
    root, lake, some = str(growing_store.root), str(tmp_path / "lake"), str(tmp_path / "some")
    export(InProcess(), root, lake, ExportSettings())
    export(InProcess(), root, some, ExportSettings(topics=("orders",)))
    asked = views.TopicViews(spark, [root], {"lake": lake})
    shown = {row.tableName for row in asked.query("show tables").collect()}
    assert shown >= {"orders", "parcels", ALL_MESSAGES}
    assert asked.query("select count(*) from orders").collect() == [(1,)]
    with pytest.raises(OptionError, match="'%RETRY%g' is not in the lake"):
        asked.query("select * from _RETRY_g")
    done = run("--store", root, "--lake", lake, "--csv", stdin="\\d\n")
    assert "orders" in done.stdout
    assert "RETRY" not in done.stdout
    asked = views.TopicViews(spark, [root], {"lake": some})
    assert asked.make_for("SHOW VIEWS") == ["orders"]
    with pytest.raises(OptionError, match="has the topics orders only"):
        asked.query("select * from all_messages")


@pytest.mark.spark
def test_of_all_topics_those_with_json_are_expanded(
    spark: SparkSession,
    growing_store: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    growing_store.append("flights", 0, b'{"id": 7}')
    growing_store.append("plain", 0, b"no json")
    asked = views.TopicViews(spark, [str(growing_store.root)], expand=frozenset("*"))
    assert set(asked.make_for("show tables")) == {"flights", "plain", ALL_MESSAGES}
    assert asked.query("select id from flights").collect() == [(7,)]
    assert asked.query("select value from plain").collect() == [(bytearray(b"no json"),)]
    assert "topic plain keeps its bodies as they are: no schema can be inferred" in caplog.text
    # Those of large topics are made anew for each statement, and their bodies looked at once.
    monkeypatch.setattr(views, "READ_HERE_MAX", -1)
    asked = views.TopicViews(spark, [str(growing_store.root)], expand=frozenset("*"))
    caplog.clear()
    asked.make_for("select value from plain")
    before = spark.conf.get(PUSHDOWN, "false") or "false"
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert asked.query("select count(*) from plain").collect() == [(1,)]
    finally:
        spark.conf.set(PUSHDOWN, before)
    assert caplog.text.count("topic plain keeps its bodies as they are") == 1
    named = views.TopicViews(spark, [str(growing_store.root)], expand=frozenset({"plain"}))
    with pytest.raises(OptionError, match="no schema can be inferred"):
        named.query("select * from plain")
