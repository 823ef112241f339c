"""The source in a real session: rows of golden stores, SQL, push-down on and off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


@pytest.fixture(params=["true", "false"])
def pushdown_allowed(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Spark's own switch for push-down to Python sources, both ways."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param == "true"
    assert before is not None
    spark.conf.set(name, before)


def test_a_frame_that_was_filtered_is_whole_when_it_is_used_again(
    spark: SparkSession, growing_store: Any, pushdown_allowed: bool
) -> None:
    for number in range(40):
        growing_store.append("A", number % 4, b"%d" % number)
    frame = spark.read.format("rocketmq").load(str(growing_store.root))
    some = frame.where("partition = 1")
    some.explain()
    assert frame.count() == 40
    assert some.count() == 10
    assert frame.count() == 40
    assert frame.join(some, "offset").count() == 40
    assert some.union(frame.where("partition = 2")).count() == 20
    frame.createOrReplaceTempView("used_again")
    by_key = "select count(*) from used_again where partition = 3"
    assert spark.sql(f"select ({by_key}), count(*) from used_again").collect() == [(10, 40)]


def test_a_frame_for_one_query_reads_less(
    spark: SparkSession, growing_store: Any, pushdown_allowed: bool
) -> None:
    for number in range(400):
        growing_store.append("A", number % 4, b"x" * 500)
    reader = spark.read.format("rocketmq").option("targetPartitionBytes", "10k")

    def parts(reader: Any) -> int:
        frame = reader.load(str(growing_store.root))
        found = frame.where("partition = 1")
        assert found.count() == 100
        count: int = found.rdd.getNumPartitions()
        assert frame.rdd.getNumPartitions() > 15
        return count

    assert (parts(reader) < 10) is pushdown_allowed
    assert (parts(reader.option("pushdown", "false")) < 10) is False


def test_filters_of_one_plan_are_no_other_plans(
    spark: SparkSession, growing_store: Any, pushdown_allowed: bool
) -> None:
    for number in range(40):
        growing_store.append("A", number % 4, b"%d" % number)
    frame = spark.read.format("rocketmq").load(str(growing_store.root))
    two, three = frame.where("partition = 2"), frame.where("partition = 3")
    two.explain()  # planned, and run later
    assert (three.count(), frame.count(), two.count()) == (10, 40, 10)
    assert two.union(three).union(two).union(frame).count() == 70
    assert two.union(three).where("offset < 3").count() == 6
    assert frame.join(two, "offset").count() == 40
    assert two.alias("a").join(three.alias("b"), "offset").where("a.offset > 7").count() == 2
    assert frame.exceptAll(two).count() == 30
    cached = two.cache()
    try:
        assert (cached.count(), frame.count(), three.count(), cached.count()) == (10, 40, 10, 10)
        assert cached.union(frame.where("partition = 2 and offset = 1")).count() == 11
    finally:
        cached.unpersist()
    frame.createOrReplaceTempView("plans")
    statement = """
        with some as (select * from plans where partition = 1)
        select (select count(*) from plans where partition = 2 and offset < 4),
               (select count(*) from some a join some b using (offset) where b.offset < 5),
               (select count(*) from plans
                where offset in (select offset from some where offset > 8)),
               count(*) from plans"""
    assert [tuple(row) for row in spark.sql(statement).collect()] == [(4, 5, 4, 40)]
    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(
            lambda n: frame.where(f"partition = {n % 4} and offset < {n}").count(), range(8)
        )
    assert list(counts) == list(range(8))
    growing_store.append("A", 2, b"later")
    assert frame.where("partition = 2").count() == 10 + pushdown_allowed  # each plan looks anew


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
            reader = spark.read.format("rocketmq").option("columns", "*")
            fresh = reader.option("pushdown", "true").load(str(store.root))
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
