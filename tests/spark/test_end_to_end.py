"""The source in a real session: rows of golden stores, SQL, push-down on and off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EMPTY = hashlib.sha256(b"").hexdigest()


def test_the_source_is_found_by_its_name(
    spark: SparkSession, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine("basic-5.5.0")
    frame = spark.read.format("rocketmq").load(str(store.root))
    delivered = [m for m in store.facts["messages"] if m["sysFlag"] & 0xC in (0, 8)]
    rows = frame.select("topic", "partition", "offset", "value", "timestamp").collect()
    assert sorted(
        (r.topic, r.partition, r.offset, hashlib.sha256(r.value).hexdigest()) for r in rows
    ) == sorted(
        (m["topic"], m["queueId"], m["queueOffset"], m.get("bodySha256", EMPTY)) for m in delivered
    )


def test_a_frame_that_was_filtered_is_whole_when_it_is_used_again(
    spark: SparkSession, growing_store: Any
) -> None:
    for number in range(40):
        growing_store.append("A", number % 4, b"%d" % number)
    frame = spark.read.format("rocketmq").load(str(growing_store.root))
    assert frame.where("partition = 1").count() == 10
    assert frame.count() == 40


@pytest.fixture(params=["true", "false"])
def pushdown_allowed(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Spark's own switch for push-down to Python sources, both ways."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param == "true"
    assert before is not None
    spark.conf.set(name, before)


def test_filters_give_the_same_rows_with_and_without_pushdown(
    spark: SparkSession, golden_pristine: Callable[[str], Any], pushdown_allowed: bool
) -> None:
    store = golden_pristine("basic-5.5.0")
    frame = spark.read.format("rocketmq").option("columns", "*").load(str(store.root))
    message = next(
        m for m in store.facts["messages"] if (m["properties"].get("KEYS") or "").strip()
    )
    time = message["storeTimestamp"]
    conditions = {
        f"topic = '{message['topic']}' and partition = {message['queueId']} and offset >= 3": None,
        f"key = cast('{message['properties']['KEYS']}' as binary)": None,
        f"uniqueKey = '{message['properties'].get('UNIQ_KEY')}'": None,
        f"timestamp = timestamp_millis({time})": None,
        f"timestamp < timestamp_millis({time})": None,
        f"offsetMsgId = '{message['msgId']}'": None,
        "tags in ('TagA', 'TagB')": None,
    }
    everything = frame.cache()
    try:
        for condition in conditions:
            expected = sorted(r.physicalOffset for r in everything.where(condition).collect())
            fresh = spark.read.format("rocketmq").option("columns", "*").load(str(store.root))
            found = sorted(r.physicalOffset for r in fresh.where(condition).collect())
            assert found == expected, condition
    finally:
        everything.unpersist()


def test_a_users_schema_is_honoured(
    spark: SparkSession, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine("client-5.5.0")
    frame = (
        spark.read.format("rocketmq")
        .schema("queueOffset long, BODY string, storeTimestamp long, headers map<string,string>")
        .option("subscribe", "ClientTopic")
        .load(str(store.root))
    )
    assert frame.columns == ["queueOffset", "BODY", "storeTimestamp", "headers"]
    row = frame.orderBy("storeTimestamp").first()
    assert row is not None
    first = min(
        (m for m in store.facts["messages"] if m["topic"] == "ClientTopic"),
        key=lambda m: m["storeTimestamp"],
    )
    assert row.storeTimestamp == first["storeTimestamp"]


def test_options_are_refused_with_a_message(
    spark: SparkSession, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine("client-5.5.0")
    reader = spark.read.format("rocketmq").option("startingOfsets", "earliest")
    with pytest.raises(Exception, match="nearest known one is startingOffsets"):
        reader.load(str(store.root)).count()


def test_a_temporary_view_in_sql(
    spark: SparkSession, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine("client-5.5.0")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq "
        f"OPTIONS (path '{store.root}', subscribe 'ClientTopic')"
    )
    [row] = spark.sql(
        "select count(*) as n, count(distinct partition) as q from messages"
    ).collect()
    expected = [m for m in store.facts["messages"] if m["topic"] == "ClientTopic"]
    assert (row.n, row.q) == (len(expected), len({m["queueId"] for m in expected}))


def test_damage_is_an_error_that_says_where(
    spark: SparkSession, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine("flipped-bit-5.5.0")
    frame = spark.read.format("rocketmq").load(str(store.root))
    with pytest.raises(Exception, match=r"CommitLog 46535 .* fails its CRC"):
        frame.count()
    kept = spark.read.format("rocketmq").option("failOnDataLoss", "false").load(str(store.root))
    delivered = [m for m in store.facts["messages"] if m["sysFlag"] & 0xC in (0, 8)]
    assert kept.count() == len(delivered) - 1
