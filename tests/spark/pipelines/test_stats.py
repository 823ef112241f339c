"""A store in numbers, against a count by hand; and a report that needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.spark.pipelines.stats import TABLES, report_html

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_counts(spark: SparkSession, growing_store: Any, tmp_path: Path) -> None:
    counted: Counter[tuple[str, int, str]] = Counter()
    for number in range(60):
        topic, queue, tag = f"topic{number % 2}", number % 3, f"tag{number % 5}"
        growing_store.append(
            topic, queue, b"x" * number, tags=tag, time=1_700_000_000_000 + number * 120_000
        )
        counted[topic, queue, tag] += 1
    growing_store.skip("topic0", 0, 4)
    growing_store.append("topic0", 0, b"", tags="tag0", time=1_700_007_200_000)
    counted["topic0", 0, "tag0"] += 1
    page = tmp_path / "report.html"
    arguments = ["spark", "stats", str(growing_store.root), "--json", "--html", str(page)]
    # Offsets are missing on purpose: queues are read by what the log holds.
    done = CliRunner().invoke(oberth, arguments)
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)
    assert set(tables) == set(TABLES)
    by_tag: Counter[tuple[str, str]] = Counter()
    for (topic, _, tag), count in counted.items():
        by_tag[topic, tag] += count
    assert {(r["topic"], r["tags"]): r["messages"] for r in tables["tags"]} == dict(by_tag)
    assert sum(row["messages"] for row in tables["hours"]) == 61
    assert len(tables["hours"]) == 3
    assert all(row["delayAvgMs"] == 0 for row in tables["producers"])
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.spark
def test_queues_of_two_brokers_are_counted_apart(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    other = type(growing_store)(tmp_path / "broker-h")
    for store in (growing_store, other):
        for _ in range(4):
            store.append("a", 0, b"x")
    other.skip("a", 0, 3)  # as many as the first one's messages beyond the last offset would hide
    other.append("a", 0, b"x")
    roots = f"{growing_store.root},{other.root}"
    done = CliRunner().invoke(oberth, ["spark", "stats", roots, "--json"])
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)
    assert [(r["broker"], r["partition"], r["messages"]) for r in tables["queues"]] == [
        ("broker-g", 0, 4), ("broker-h", 0, 5)
    ]  # fmt: skip
    names = ("topic", "broker", "partition", "firstOffset", "lastOffset", "messages", "missing")
    assert tables["gaps"] == [dict(zip(names, ("a", "broker-h", 0, 0, 7, 5, 3), strict=True))]


@pytest.mark.spark
def test_live_topics_count_like_their_store(spark: SparkSession, tmp_path: Path) -> None:
    from oberth.client import Message
    from oberth.client.blocking import Producer
    from oberth.testing.blocking import EmbeddedBroker

    def tables(*where: str) -> dict[str, list[dict[str, Any]]]:
        done = CliRunner().invoke(oberth, ["spark", "stats", *where, "--json"])
        assert done.exit_code == 0, done.output
        counted: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
        return counted

    page = tmp_path / "report.html"
    with EmbeddedBroker() as mq:
        with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            for number in range(30):
                topic, tag = f"topic{number % 2}", f"tag{number % 5}"
                producer.send(Message(topic, b"x" * (number + 1), tags=tag, keys=f"k{number}"))
        address = mq.namesrv_addr
        live = tables("--namesrv", address, "--html", str(page))
        one = tables("--namesrv", address, "--option", "subscribe=topic1")
        stored = tables(str(mq.store_dir), "--option", "brokerName=broker-a")
    assert [(row["topic"], row["messages"]) for row in live["topics"]] == [
        ("topic0", 15), ("topic1", 15)
    ]  # fmt: skip
    assert live == stored
    assert [row["topic"] for row in one["topics"]] == ["topic1"]
    assert f"Topics of {address}" in page.read_text()


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            assert name not in ("src", "href", "onload"), value


def test_the_report_loads_nothing_and_escapes_all() -> None:
    row = {
        "topic": "<script>alert(1)</script>", "messages": 3, "bytes": 900, "delayAvgMs": None,
        "producer": "a&b", "hour": "2026-11-21T20:00:00.000Z",
    }  # fmt: skip
    tables: dict[str, Any] = {name: [] for name in TABLES}
    tables.update(topics=[row], hours=[row], producers=[row])
    page = report_html("Store <x>", tables)
    parser = _Parser()
    parser.feed(page)
    assert parser.tags["svg"] == 4
    assert parser.tags["script"] == 0
    assert not re.search(r"https?://", page)
    assert "a&amp;b" in page
    assert report_html("empty", {name: [] for name in TABLES}).count("None.") >= len(TABLES)
