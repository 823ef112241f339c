"""Kafka's records as messages and back, places of offsets; and whole migrations with a real node.

The last test runs Kafka, a broker and Spark with the jars of its Kafka source, in a process of its
own since a JVM takes jars only when it starts; migrations are killed at every step, both ways.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from oberth.cli.main import oberth
from oberth.errors import PeerUnavailableError
from oberth.formats import properties as p
from oberth.spark.pipelines.exact_send import PUBLISHED_AS
from oberth.spark.pipelines.kafka_records import message_of, record_of
from oberth.spark.pipelines.migrate import place_of_offset, runs_of

BYTES = st.one_of(st.binary(max_size=6), st.sampled_from([b"key", b"two words", "é".encode()]))
NAME = st.one_of(
    st.sampled_from(
        ["a", "TAGS", "KEYS", "DELAY", "a;2", "a;base64", "KAFKA_HEADER;x", "UNIQ_KEY"]
    ),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8),
)


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
    assert sorted(found) == sorted(headers or [])


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
kafka = m.Kafka(spark, servers, {})


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
    arguments = {"connection": Connection(mq.namesrv_addr), "live_options": live, "groups": ["g"]}
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
