"""Filters and options read less and give the same rows: bytes are counted, rows compared.

Every property is held against filtering all rows in Python, as Spark would.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as f

from oberth.errors import OptionError
from oberth.spark.load import StoreLoader
from oberth.spark.load_plan import work_directory
from oberth.spark.options import parse_read_options
from oberth.spark.predicates import EVERYTHING, Interval, predicate_of
from oberth.spark.schemas import parse_columns
from oberth.spark.sink import stage
from oberth.spark.transforms import TagCountsReader
from oberth.spark.write_options import parse_write_options

ROWS = 4000
FIRST_TIME = 1_700_000_000_000
FIELDS = parse_columns("*")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four topics of four queues; one message every 100 ms; a key for every message."""
    root = tmp_path_factory.mktemp("pushdown") / "store"
    rng = random.Random("pushdown")
    numbers = range(ROWS)
    batch = pa.record_batch(
        {
            "topic": [f"T{rng.randrange(4)}" for _ in numbers],
            "value": [b"%d" % n + b"x" * rng.randrange(900) for n in numbers],
            "key": [f"k{n} shared{n % 10}" for n in numbers],
            "tags": [rng.choice([None, "AaAa", "BBBB", "red", "blue"]) for _ in numbers],
            "partition": pa.array([rng.randrange(4) for _ in numbers], pa.int32()),
            "timestamp": pa.array([FIRST_TIME + 100 * n for n in numbers], pa.int64()),
        }
    )
    sizes = {"mappedFileSizeCommitLog": "262144", "mappedFileSizeConsumeQueue": "2000"}
    index = {"maxHashSlotNum": "1000", "maxIndexNum": "4000"}
    given = {"path": str(root), "uniqueKeys": "true", **sizes, **index}
    options = parse_write_options(given)
    work = work_directory(str(root), "job")
    StoreLoader(options).commit([stage(iter([batch]), options, work)], work)
    return root


@pytest.fixture(scope="module")
def everything(store: Path, read_store: Any) -> Any:
    """All rows, and what reading them cost."""
    return read_store(store)


def _time(number: int) -> datetime:
    return datetime.fromtimestamp((FIRST_TIME + 100 * number) / 1000, UTC)


def _holds(filters: list[Any], row: dict[str, Any]) -> bool:
    """Whether a row satisfies filters, as Spark decides."""
    for one in filters:
        found = row[one.attribute[0]]
        if found is None:
            return False
        kind = type(one).__name__
        value = one.value
        ok = (
            (kind == "EqualTo" and found == value)
            or (kind == "In" and found in value)
            or (kind == "GreaterThan" and found > value)
            or (kind == "GreaterThanOrEqual" and found >= value)
            or (kind == "LessThan" and found < value)
            or (kind == "LessThanOrEqual" and found <= value)
        )
        if not ok:
            return False
    return True


def _places(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["physicalOffset"] for row in rows)


def _same(everything: Any, read: Any, filters: list[Any]) -> None:
    expected = [row for row in everything.rows if _holds(filters, row)]
    assert _places([row for row in read.rows if _holds(filters, row)]) == _places(expected)


_SAVING = [
    ("a topic", [f.EqualTo(("topic",), "T1")], 0.6),
    ("a queue", [f.EqualTo(("topic",), "T1"), f.EqualTo(("partition",), 2)], 0.2),
    (
        "a range of offsets",
        [
            f.EqualTo(("topic",), "T1"),
            f.GreaterThan(("offset",), 200),
            f.LessThan(("offset",), 220),
        ],
        0.1,
    ),
    (
        "a range of times",
        [
            f.GreaterThanOrEqual(("timestamp",), _time(1000)),
            f.LessThan(("timestamp",), _time(1100)),
        ],
        0.2,
    ),
    ("a tag", [f.EqualTo(("tags",), "red")], 0.5),
    ("a key", [f.EqualTo(("key",), b"k1234 shared4")], 0.05),
    ("a message id", [], 0.05),
    ("an offset id", [], 0.05),
    ("a place in the log", [f.LessThan(("physicalOffset",), 50_000)], 0.2),
]


@pytest.mark.parametrize(("what", "filters", "share"), _SAVING, ids=[s[0] for s in _SAVING])
@pytest.mark.parametrize("trust", ["", "index,times"])
@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_less_is_read(
    store: Path, read_store: Any, everything: Any, what: str, filters: list[Any], share: float,
    order: str, trust: str,
) -> None:  # fmt: skip
    row = everything.rows[ROWS // 3]
    if what == "a message id":
        filters = [f.EqualTo(("msgId",), row["msgId"])]
        assert row["msgId"] == row["uniqueKey"]
    if what == "an offset id":
        filters = [f.EqualTo(("offsetMsgId",), row["offsetMsgId"])]
    read = read_store(store, filters, readOrder=order, trust=trust)
    _same(everything, read, filters)
    assert read.rows
    # A range of the log shows where it begins only; what is not trusted is read to be sure.
    by_place = ("a place in the log", *(_BY_TRUST if trust else ()))
    if order == "queue" and not trust and what in ("a key", "a message id"):
        share = 0.25  # every entry of the Index, every unit of the queues
    if order == "queue" or what in by_place:
        assert read.bytes_read < share * everything.bytes_read


@pytest.mark.parametrize("trust", ["", "index,times"])
@pytest.mark.parametrize("column", ["msgId", "offsetMsgId"])
def test_an_id_may_end_in_digits_that_are_no_offset(
    store: Path, read_store: Any, everything: Any, column: str, trust: str
) -> None:
    wanted = (everything.rows[7][column], "7F00000158F3454AFC228F851375063A", "F" * 32)
    filters = [f.In((column,), wanted)]
    _same(everything, read_store(store, filters, trust=trust), filters)


_BY_TRUST = ("a range of times", "a key", "a message id", "an offset id")
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from([*(f"T{n}" for n in range(5)), ""]),
    "partition": st.integers(-1, 5),
    "offset": st.integers(-1, 300),
    "timestamp": st.integers(-5, ROWS + 5).map(_time),
    "physicalOffset": st.integers(-1, 3_000_000),
    "key": st.integers(0, ROWS).map(lambda n: f"k{n} shared{n % 10}".encode()),
    "tags": st.sampled_from(["AaAa", "BBBB", "red", "green", ""]),
}
_ORDERED = ("partition", "offset", "timestamp", "physicalOffset")


@st.composite
def _filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(_VALUES)))
    values: st.SearchStrategy[Any] = _VALUES[column]
    kinds: list[Any] = [f.EqualTo, f.In]
    if column in _ORDERED:
        kinds += [f.GreaterThan, f.GreaterThanOrEqual, f.LessThan, f.LessThanOrEqual]
    kind = draw(st.sampled_from(kinds))
    if kind is f.In:
        return f.In((column,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return kind((column,), draw(values))


@settings(max_examples=60)
@given(filters=st.lists(_filters(), max_size=3), order=st.sampled_from(["queue", "commitlog"]))
def test_any_filters_give_the_rows_that_filtering_everything_gives(
    store: Path, read_store: Any, everything: Any, filters: list[Any], order: str
) -> None:
    read = read_store(store, filters, readOrder=order)
    _same(everything, read, filters)
    assert len(_places(read.rows)) == len(set(_places(read.rows)))


@settings(max_examples=60)
@given(filters=st.lists(_filters(), max_size=4), row=st.integers(0, ROWS - 1))
def test_a_predicate_is_weaker_than_its_filters(
    everything: Any, filters: list[Any], row: int
) -> None:
    found = everything.rows[row]
    predicate = predicate_of(filters, FIELDS)
    if _holds(filters, found):
        assert not predicate.is_empty
        assert predicate.topics is None or found["topic"] in predicate.topics
        assert predicate.offsets.clip(found["offset"], found["offset"] + 1)[0] == found["offset"]
        time = round(found["timestamp"].timestamp() * 1000)
        assert predicate.times.clip(time, time + 1) == (time, time + 1)


def test_filters_that_are_not_understood_say_nothing() -> None:
    filters = [
        f.StringStartsWith(("topic",), "T"),
        f.IsNotNull(("key",)),
        f.Not(f.EqualTo(("topic",), "T1")),
        f.EqualTo(("properties", "a"), "b"),
        f.EqualTo(("key",), b"\xff\xfe"),
    ]
    assert predicate_of(filters, FIELDS) == EVERYTHING
    assert Interval(3, 2).is_empty
    assert Interval(2, 5).clip(0, 4) == (2, 4)


def test_a_damaged_or_missing_index_changes_nothing(
    store: Path, read_store: Any, everything: Any, tmp_path: Path
) -> None:
    import shutil

    root = tmp_path / "store"
    shutil.copytree(store, root)
    filters = [f.EqualTo(("key",), b"k1234 shared4")]
    files = sorted((root / "index").iterdir())
    assert len(files) >= 3
    rng = random.Random("index")
    for path in (*files[:2], None):
        if path is None:
            shutil.rmtree(root / "index")
        else:
            raw = bytearray(path.read_bytes())
            for _ in range(50):
                raw[rng.randrange(40)] ^= 1 << rng.randrange(8)
            path.write_bytes(raw)
        _same(everything, read_store(root, filters), filters)


def test_the_tail_that_no_queue_knows_is_found_by_key(growing_store: Any, read_store: Any) -> None:
    for number in range(50):
        growing_store.append("A", 0, b"x", keys=f"k{number}", dispatch=number < 40)
    filters = [f.EqualTo(("key",), b"k45")]
    assert len(read_store(growing_store.root, filters, readOrder="commitlog").rows) == 50
    assert read_store(growing_store.root, filters, readOrder="queue").rows[-1]["key"] == b"k39"


def test_a_clock_that_went_back_loses_nothing(growing_store: Any, read_store: Any) -> None:
    rng = random.Random("clock")
    times = [FIRST_TIME + rng.randrange(10**7) for _ in range(200)]
    for time in times:
        growing_store.append("A", 0, b"x", time=time)
    low, high = sorted(rng.sample(times, 2))
    filters = [
        f.GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(low / 1000, UTC)),
        f.LessThanOrEqual(("timestamp",), datetime.fromtimestamp(high / 1000, UTC)),
    ]
    for order in ("queue", "commitlog"):
        read = read_store(growing_store.root, filters, readOrder=order)
        found = [row for row in read.rows if _holds(filters, row)]
        assert len(found) == sum(low <= time <= high for time in times)


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_the_option_filter_tag_is_exact(
    store: Path, read_store: Any, everything: Any, order: str
) -> None:
    # AaAa and BBBB have one Java hash: the ConsumeQueue cannot tell them apart.
    read = read_store(store, readOrder=order, filter__tag="AaAa||red")
    expected = [row for row in everything.rows if row["tags"] in ("AaAa", "red")]
    assert _places(read.rows) == _places(expected)


def test_counting_by_tag_needs_no_records_and_is_exact(
    store: Path, everything: Any, golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    roots = [store, *(golden_pristine(n).root for n in ("basic-5.5.0", "innerbatch-5.5.0"))]
    roots.append(golden_pristine("cqext-5.5.0").root)
    for root in roots:
        options = parse_read_options({"path": str(root)}, streaming=False)
        reader = TagCountsReader(options)
        found: dict[Any, int] = {}
        for partition in reader.partitions():
            for batch in reader.read(partition):
                for row in batch.to_pylist():
                    key = (row["topic"], row["tags"])
                    found[key] = found.get(key, 0) + row["count"]
        expected: dict[Any, int] = {}
        rows = everything.rows if root is store else read_store(root).rows
        for row in rows:
            key = (row["topic"], row["tags"])
            expected[key] = expected.get(key, 0) + 1
        assert found == expected, root


def test_counting_by_tag_refuses_what_queues_do_not_know(
    growing_store: Any, make_store: Any, tmp_path: Path
) -> None:
    growing_store.append("A", 0, b"x")
    place = {"path": str(growing_store.root)}
    for name, value in (
        ("lake", "/x"), ("includeUndelivered", "true"), ("sinceOffset", "0"), ("asOfOffset", "0"),
        ("asOfTimestamp", "0"),
    ):  # fmt: skip
        options = parse_read_options({**place, name: value}, streaming=False)
        with pytest.raises(OptionError, match=f"counts what queues have.*{name}"):
            TagCountsReader(options)
    shutil.rmtree(growing_store.root / "consumequeue")
    with pytest.raises(OptionError, match="has no ConsumeQueue"):
        TagCountsReader(parse_read_options(place, streaming=False)).partitions()
    # Of queues of another store beside it nothing is in the way.
    other = make_store(tmp_path / "other")
    other.append("A", 0, b"x")
    place = {"path": f"{growing_store.root},{other.root}", "assign": '{"A": {"other": [0]}}'}
    reader = TagCountsReader(parse_read_options(place, streaming=False))
    found = [row for part in reader.partitions() for rows in reader.read(part) for row in rows]
    assert len(found) == 3


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_the_option_filter_sql_selects_by_properties(
    store: Path, read_store: Any, everything: Any, order: str
) -> None:
    read = read_store(store, readOrder=order, filter__sql="TAGS = 'red' AND KEYS IS NOT NULL")
    expected = [row for row in everything.rows if row["tags"] == "red"]
    assert _places(read.rows) == _places(expected)
    with pytest.raises(OptionError, match=r"filter\.sql"):
        read_store(store, filter__sql="TAGS = = 1")


def test_filters_look_into_inner_batches(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    root = golden_pristine("innerbatch-5.5.0").root
    everything = read_store(root).rows
    number = next(dict(row["properties"])["i"] for row in everything if row["innerIndex"] == 2)
    for order in ("queue", "commitlog"):
        read = read_store(root, readOrder=order, filter__sql=f"i = {number}")
        expected = [row for row in everything if dict(row["properties"]).get("i") == number]
        assert [row["value"] for row in read.rows] == [row["value"] for row in expected]
