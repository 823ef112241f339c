"""Whatever a store went through, a predicate leaves out no row that satisfies the query.

Stores are drawn: clocks that step back and forth, an Index that was off, deleted or made by
another line, topics that were deleted and begun anew, deleted segments, several brokers, empty and
huge bodies, inner batches. Conditions are drawn too. What Spark would push of a condition is
pushed, the rows are filtered as Spark does, and compared with the same filter over everything.
Most of it needs no JVM; `test_spark_agrees` does the same in SQL.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.rigs.campaigns import examples

pytest.importorskip("pyspark")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as f

from oberth.errors import DataLossError
from oberth.formats import index_file as index
from oberth.spark.options import parse_read_options
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.predicates import predicate_of
from oberth.spark.schemas import Field, parse_columns, struct_type
from oberth.spark.source import RocketMQReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOW = 1_700_000_000_000
ZONES = ("UTC", "Asia/Tokyo", "America/New_York")


# Stores.


@dataclass(frozen=True)
class Sent:
    """One message that a drawn store gets."""

    topic: str
    queue: int
    step_ms: int
    keys: str
    unique: bool
    tags: str
    body: str
    indexed: bool
    begins_anew: bool


def write_index(
    root: Path, rows: Sequence[dict[str, Any]], *, slots: int, capacity: int, tags: bool
) -> list[Path]:
    """Index files as brokers write them; with ``tags`` as 5.5 does."""
    (root / "index").mkdir(exist_ok=True)
    files: dict[Path, bytearray] = {}
    data, count, begin = bytearray(), 0, (0, 0)

    def put(row: dict[str, Any], key: str) -> None:
        nonlocal data, count, begin
        now = int(row["timestamp"].timestamp() * 1000)
        if not count or count == capacity - 1:
            data, count = bytearray(index.file_size(slots, capacity)), 0
            begin = (now, row["physicalOffset"])
            files[root / "index" / f"{20231114221320000 + len(files)}"] = data
        count += 1
        key_hash = index.key_hash(row["topic"], key)
        slot = index.slot_position(key_hash % slots)
        [before] = index.SLOT.unpack_from(data, slot)
        seconds = min(max((now - begin[0]) // 1000, 0), index.TIME_DIFF_MAX)
        entry = index.entry_position(count, slots)
        index.ENTRY.pack_into(data, entry, key_hash, row["physicalOffset"], seconds, before)
        index.SLOT.pack_into(data, slot, count)
        header = (begin[0], now, begin[1], row["physicalOffset"], min(count, slots), count + 1)
        index.HEADER.pack_into(data, 0, *header)

    for row in rows:
        for key in [row["uniqueKey"], *(row["key"] or b"").decode().split(" ")]:
            if key:
                put(row, key)
        if tags and row["tags"]:
            put(row, f"{index.TAG_INDEX_TYPE}#{row['tags']}")
    for path, content in files.items():
        path.write_bytes(content)
    return list(files)


_SENT = st.builds(
    Sent,
    topic=st.sampled_from(["A", "A", "B", "C"]),
    queue=st.integers(0, 1),
    step_ms=st.sampled_from([0, 1, 1, 50, 50, 2_000, 60_000, -3_000, -100_000, 400_000]),
    keys=st.sampled_from(["", "", "k1", "k2", "k3 k1", " k2", "k4  k5", "ÄÖ"]),
    unique=st.booleans(),
    tags=st.sampled_from(["", "AaAa", "BBBB", "red"]),
    body=st.sampled_from(["", "x", "x" * 300, "x" * 2000]),
    indexed=st.booleans(),
    begins_anew=st.sampled_from([False] * 20 + [True]),
)


@st.composite
def _stores(draw: st.DrawFn) -> dict[str, Any]:
    """What a store goes through."""
    huge = draw(st.sampled_from([0] * 30 + [4 << 20]))
    return {
        "sent": draw(st.lists(_SENT, min_size=1, max_size=40)),
        "huge": huge,
        # Whether the Index is on: by turns of so many messages, or as each message says.
        "index_turns": draw(st.sampled_from([0, 1, 3, 10, 1000])),
        "index_slots": draw(st.integers(1, 9)),
        "index_capacity": draw(st.integers(3, 40)),
        "index_tags": draw(st.booleans()),
        "index_deleted": draw(st.sampled_from([0, 0, 1, 2, 99])),
        "segment_size": (8 << 20) if huge else draw(st.sampled_from([4096, 16384, 1 << 20])),
        "segments_deleted": draw(st.sampled_from([0, 0, 0, 1, 2])),
        # The last messages have no unit yet, as a killed broker leaves them.
        "tail": draw(st.sampled_from([0, 0, 0, 1, 7])),
    }


def _build(root: Path, drawn: dict[str, Any], make: Callable[..., Any]) -> None:
    """Writes a drawn store."""
    store = make(root, segment_size=drawn["segment_size"], queue_size=200)
    now = NOW
    dispatched = max(len(drawn["sent"]) - drawn["tail"], 1)
    for number, each in enumerate(drawn["sent"]):
        now += each.step_ms
        if each.begins_anew and number < dispatched:
            for queue in (0, 1):
                store.forget(each.topic, queue)
            shutil.rmtree(root / "consumequeue" / each.topic, ignore_errors=True)
        body = b"y" * drawn["huge"] if drawn["huge"] and number == 3 else each.body.encode()
        unique = {"UNIQ_KEY": f"U{number:04}"} if each.unique else {}
        store.append(
            each.topic, each.queue, body, tags=each.tags, keys=each.keys, time=now,
            properties=unique, dispatch=number < dispatched,
        )  # fmt: skip
    if drawn["tail"]:
        (root / "abort").touch()
    segments = sorted((root / "commitlog").iterdir())
    rows = _read([root], [], {"readOrder": "commitlog"})
    turns = drawn["index_turns"]
    indexed = [
        row
        for number, row in enumerate(rows)
        if (drawn["sent"][number].indexed if not turns else number // turns % 2 == 0)
    ]
    files = write_index(
        root, indexed, slots=drawn["index_slots"], capacity=drawn["index_capacity"],
        tags=drawn["index_tags"],
    )  # fmt: skip
    for path in files[: drawn["index_deleted"]]:
        path.unlink()
    for path in segments[: min(drawn["segments_deleted"], len(segments) - 1)]:
        path.unlink()


def _read(
    roots: Sequence[Path],
    filters: Sequence[Any],
    options: dict[str, str],
    kinds: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows as a query gets them that pushes these filters, before Spark filters them."""
    names = ",".join(f"broker-{number}" for number in range(len(roots)))
    given = {"path": ",".join(map(str, roots)), "brokerName": names, **options}
    reader = RocketMQReader(
        parse_read_options(given, streaming=False), struct_type(_fields(kinds or {}))
    )
    reader.accept_filters(list(filters))
    rows = []
    for partition in reader.partitions():
        assert isinstance(partition, RocketMQPartition)
        for batch in reader.piece_reader(partition).read(partition.pieces):
            rows += batch.to_pylist()
    return rows


def _fields(kinds: dict[str, str]) -> tuple[Field, ...]:
    return tuple(
        Field(one.name, one.column, kinds.get(one.column, one.type)) for one in parse_columns("*")
    )


# Conditions, evaluated as SQL does: None is unknown.


@dataclass(frozen=True)
class Test:
    """A comparison of a column: what Spark can push, where it can."""

    __test__ = False

    column: str
    sign: str
    value: Any
    cast: bool = False

    def __call__(self, row: dict[str, Any]) -> bool | None:
        found = row[self.column]
        if self.sign == "is null":
            return found is None
        if self.cast and found is not None:
            return _compare(str(found), self.sign, str(self.value))
        return None if found is None else _compare(found, self.sign, self.value)

    def pushed(self) -> list[Any]:
        """The filters that Spark makes of it."""
        if self.cast:
            return []
        where = (self.column,)
        if self.sign == "is null":
            return [f.IsNull(where)]
        not_null = f.IsNotNull(where)
        if self.sign == "between":
            low, high = self.value
            return [not_null, f.GreaterThanOrEqual(where, low), f.LessThanOrEqual(where, high)]
        kinds: dict[str, Any] = {
            "=": f.EqualTo, "<": f.LessThan, "<=": f.LessThanOrEqual, ">": f.GreaterThan,
            ">=": f.GreaterThanOrEqual, "in": f.In,
        }  # fmt: skip
        return [not_null, kinds[self.sign](where, self.value)]


def _compare(found: Any, sign: str, value: Any) -> bool:
    if sign == "between":
        return bool(value[0] <= found <= value[1])
    if sign == "in":
        return found in value
    return bool(
        {"=": found == value, "<": found < value, "<=": found <= value, ">": found > value,
         ">=": found >= value}[sign]
    )  # fmt: skip


@dataclass(frozen=True)
class Both:
    """AND, OR, or NOT of the first."""

    word: str
    left: Any
    right: Any

    def __call__(self, row: dict[str, Any]) -> bool | None:
        left, right = self.left(row), self.right(row)
        if self.word == "not":
            return None if left is None else not left
        if self.word == "and":
            return False if False in (left, right) else None if None in (left, right) else True
        return True if True in (left, right) else None if None in (left, right) else False

    def pushed(self) -> list[Any]:
        """Spark pushes the parts of an AND, each by itself, and simple comparisons' negations."""
        if self.word == "and":
            return [*self.left.pushed(), *self.right.pushed()]
        if self.word == "not" and isinstance(self.left, Test):
            found = self.left.pushed()
            return [f.Not(found[-1])] if len(found) in (1, 2) else []
        return []


_KEYS = ["k1", "k2", "k3 k1", " k2", "k4  k5", "ÄÖ", "k3", "", "nobody"]
_SETS: dict[str, list[Any]] = {
    "topic": ["A", "B", "C", "D"],
    "broker": ["broker-0", "broker-1", "broker-9"],
    "key": [key.encode() for key in _KEYS] + [b"\xff"],
    "uniqueKey": [f"U{number:04}" for number in (0, 1, 2, 3, 5, 8, 13, 21, 34, 99)],
    "tags": ["AaAa", "BBBB", "red", ""],
}
_TIMES = st.integers(-200_000, 1_000_000) | st.sampled_from([0, 1, -1, 50, 60_000])


@st.composite
def _tests(draw: st.DrawFn, naive: bool, roots: int) -> Test:
    column = draw(
        st.sampled_from([*_SETS, "timestamp", "timestamp", "key", "offset", "partition", "msgId"])
    )
    sign = draw(st.sampled_from(["=", "=", "=", "in", "<", "<=", ">", ">=", "between", "is null"]))
    values: st.SearchStrategy[Any]
    if column == "timestamp":
        zone = draw(
            st.sampled_from([UTC, timezone(timedelta(hours=9)), timezone(-timedelta(hours=5))])
        )
        values = _TIMES.map(
            lambda ms: (
                datetime.fromtimestamp((NOW + ms) / 1000, UTC).replace(tzinfo=None)
                if naive
                else datetime.fromtimestamp((NOW + ms) / 1000, zone)
            )
        )
    elif column in ("offset", "partition"):
        values = st.integers(-1, 25 if column == "offset" else 2)
    else:
        values = st.sampled_from(_SETS.get(column, _SETS["uniqueKey"]))
        if sign not in ("=", "in", "is null"):
            sign = "="
    if sign == "is null":
        return Test(column, sign, None)
    if sign == "in":
        return Test(column, sign, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    if sign == "between":
        return Test(column, sign, tuple(sorted([draw(values), draw(values)])))
    return Test(column, sign, draw(values), cast=sign == "=" and draw(st.integers(0, 9)) == 0)


def _conditions(naive: bool, roots: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        _tests(naive, roots),
        lambda inner: st.builds(Both, st.sampled_from(["and", "and", "or", "not"]), inner, inner),
        max_leaves=4,
    )


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["broker"], row["physicalOffset"], row["topic"], row["partition"], row["offset"]


@contextmanager
def _zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@pytest.mark.parametrize("order", ["queue", "commitlog"])
@settings(
    max_examples=examples(
        "tests/spark/test_predicates.py::test_a_predicate_only_ever_reads_too_much"
    ),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_a_predicate_only_ever_reads_too_much(
    data: st.DataObject, make_store: Callable[..., Any], order: str
) -> None:
    drawn = data.draw(st.lists(_stores(), min_size=1, max_size=2), "stores")
    naive = data.draw(st.booleans(), "timestamp_ntz")
    kinds = {"timestamp": "timestamp_ntz"} if naive else {}
    # Small stores are read whole, but for pieces that are worth nothing in them.
    gap = data.draw(st.sampled_from([0, 0, 16]), "gap")
    with (
        tempfile.TemporaryDirectory() as scratch,
        _zone(data.draw(st.sampled_from(ZONES), "TZ")),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("oberth.spark.source._RUN_GAP_MAX", gap)
        roots = [Path(scratch) / f"{number}" for number in range(len(drawn))]
        for root, each in zip(roots, drawn, strict=True):
            _build(root, each, make_store)
        everything = _read(roots, [], {"readOrder": order}, kinds)
        for number in range(3):
            condition = data.draw(_conditions(naive, len(roots)), f"condition {number}")
            expected = sorted(_place(row) for row in everything if condition(row) is True)
            read = _read(roots, condition.pushed(), {"readOrder": order}, kinds)
            found = sorted(_place(row) for row in read if condition(row) is True)
            assert found == expected


def test_times_between_the_probes_of_a_search(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    # 9 100 messages, most of them in an hour that the clock was ahead.
    store = make_store(tmp_path / "s")
    for number in range(9_100):
        ahead = 3_600_000 if 50 <= number < 9_050 else 0
        store.append("A", 0, b"x" * 300, time=NOW + number + ahead)
    low = datetime.fromtimestamp((NOW + 3_600_000) / 1000, UTC)
    filters = [f.GreaterThanOrEqual(("timestamp",), low)]
    for order in ("queue", "commitlog"):
        rows = _read([tmp_path / "s"], filters, {"readOrder": order})
        assert sum(row["timestamp"] >= low for row in rows) == 9_000


def test_a_gap_in_the_index_and_a_damaged_entry(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    store = make_store(root)
    for number in range(200):
        store.append(
            "A", 0, b"x", keys=f"k{number} all{number % 2}", properties={"UNIQ_KEY": f"U{number}"}
        )
    rows = _read([root], [], {})
    # Off from 80 to 120: one file from 0 to 199, whose header says nothing of it.
    [path] = write_index(root, rows[:80] + rows[120:], slots=50, capacity=2000, tags=False)

    def places(key: str) -> list[int]:
        found = _read([root], [f.EqualTo(("key",), key.encode())], {})
        return [row["offset"] for row in found if row["key"] == key.encode()]

    assert places("k100 all0") == [100]
    assert places("k10 all0") == [10]
    assert len(_read([root], [f.EqualTo(("key",), b"k10 all0")], {})) < 60
    damaged = bytearray(path.read_bytes())
    at = index.entry_position(10 * 3 + 2, 50)  # of record 10: U10, k10, all0
    for replacement in (bytes(20), b"\x00" * 4 + damaged[at + 4 : at + 20]):
        path.write_bytes(damaged[:at] + replacement + damaged[at + 20 :])
        assert places("k10 all0") == [10]


@pytest.mark.parametrize("gone", [0, 1], ids=["before", "behind"])
def test_a_record_whose_keys_lie_in_two_index_files(
    make_store: Callable[..., Any], tmp_path: Path, gone: int
) -> None:
    root = tmp_path / "s"
    store = make_store(root)
    for number in range(200):
        store.append("A", 0, b"x", keys=f"k{number}", properties={"UNIQ_KEY": f"U{number}"})
    rows = _read([root], [], {})
    # 81 entries a file: UNIQ_KEY of record 40 ends the first, its KEYS begin the second.
    files = write_index(root, rows, slots=20, capacity=82, tags=False)
    files[gone].unlink()
    for column, value in (("uniqueKey", "U40"), ("key", b"k40")):
        read = _read([root], [f.EqualTo((column,), value)], {})
        assert [row["offset"] for row in read if row[column] == value] == [40]
        assert len(read) < 120


@pytest.mark.parametrize("column", ["key", "uniqueKey", "msgId", "offsetMsgId"])
def test_a_damaged_header_is_told_to_a_lookup_too(
    make_store: Callable[..., Any], tmp_path: Path, column: str
) -> None:
    root = tmp_path / "s"
    store = make_store(root)
    for number in range(60):
        store.append("A", 0, b"x", keys=f"k{number}", properties={"UNIQ_KEY": f"U{number}"})
    rows = _read([root], [], {})
    write_index(root, rows, slots=50, capacity=2000, tags=False)
    wanted, other = rows[30][column], rows[31][column]
    log = root / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    raw[rows[30]["physicalOffset"] + 4] ^= 1  # its magic
    log.write_bytes(raw)
    with pytest.raises(DataLossError):
        _read([root], [], {})
    with pytest.raises(DataLossError):
        _read([root], [f.EqualTo((column,), wanted)], {})
    read = _read([root], [f.EqualTo((column,), other)], {})
    assert other in [row[column] for row in read]


def test_times_without_a_zone_are_those_of_the_column() -> None:
    fields = _fields({"timestamp": "timestamp_ntz"})
    noon = datetime(2023, 11, 14, 12, 0)  # noqa: DTZ001 - a timestamp_ntz
    ms = int(noon.replace(tzinfo=UTC).timestamp() * 1000)
    for zone in ZONES:
        with _zone(zone):
            times = predicate_of([f.EqualTo(("timestamp",), noon)], fields).times
            assert times.holds(ms)
            assert not times.holds(ms + 60_000)


def test_inner_batches_are_looked_into(golden_pristine: Callable[[str], Any]) -> None:
    root = golden_pristine("innerbatch-5.5.0").root
    everything = _read([root], [], {})
    for column in ("uniqueKey", "msgId", "tags", "offset"):
        for value in {row[column] for row in everything if row[column] is not None}:
            test = Test(column, "=", value)
            found = [row for row in _read([root], test.pushed(), {}) if test(row)]
            assert sorted(map(_place, found)) == sorted(_place(r) for r in everything if test(r))


_IN_SQL = (
    "topic = 'A' and not (partition = 1 or offset between 2 and 4)",
    "key in (cast('k2' as binary), cast('k3 k1' as binary)) and tags is not null",
    "key = cast('k2' as binary) or uniqueKey = 'U0003'",
    "uniqueKey in ('U0003', 'U0011', 'U0099') and not tags <=> 'red'",
    "cast(offset as string) like '1%' and cast(partition as double) = 1.0",
    "offset > 3.5 and offset <= 7",
    "timestamp >= '{early}' and timestamp < '{late}'",
    "timestamp between timestamp_ntz'{early}' and timestamp_ntz'{late}'",
    "unix_millis(timestamp) % 2 = 0 and timestamp > timestamp_millis(1700000000000)",
    "date(timestamp) = '2023-11-14' and msgId is not null",
    "broker = 'broker-1' and tags in ('AaAa', null)",
    "partition in (0, null) and key is null",
)


@pytest.mark.parametrize("naive", [False, True], ids=["timestamp", "timestamp_ntz"])
def test_spark_agrees(
    spark: SparkSession,
    make_store: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    naive: bool,
) -> None:
    roots = [tmp_path / "0", tmp_path / "1"]
    steps = [1, 50, 2_000, -100_000, 400_000, 0, 60_000]
    keys = ["k1", "k2", "", "k3 k1", " k2"]
    for number, root in enumerate(roots):
        sent = [
            Sent(
                topic="AB"[at % 2], queue=at // 2 % 2, step_ms=steps[(at + number) % 7],
                keys=keys[at % 5], unique=at % 3 != 1, tags=["", "AaAa", "BBBB", "red"][at % 4],
                body="x" * (at % 3), indexed=at % 4 != 0, begins_anew=False,
            )
            for at in range(60)
        ]  # fmt: skip
        drawn = {
            "sent": sent, "huge": 0, "index_turns": 0, "index_slots": 5, "index_capacity": 30,
            "index_tags": bool(number), "index_deleted": number, "segment_size": 4096,
            "segments_deleted": number, "tail": 3 * number,
        }  # fmt: skip
        _build(root, drawn, make_store)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    schema = struct_type(_fields({"timestamp": "timestamp_ntz"} if naive else {}))
    reader = spark.read.format("rocketmq").schema(schema).option("pushdown", "true")
    reader = reader.option("brokerName", "broker-0,broker-1")
    path = ",".join(map(str, roots))
    confs = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "America/New_York",
    }
    before = {name: spark.conf.get(name) for name in confs}
    everything = reader.load(path).cache()
    everything.count()
    words = {"early": "2023-11-14 17:15:00", "late": "2023-11-14 22:30:00"}
    try:
        for name, value in confs.items():
            spark.conf.set(name, value)
        for condition in _IN_SQL:
            condition = condition.format(**words)
            expected = [row.physicalOffset for row in everything.where(condition).collect()]
            found = reader.load(path).where(condition)
            assert sorted(row.physicalOffset for row in found.collect()) == sorted(expected)
    finally:
        for name, old in before.items():
            spark.conf.set(name, old or "")
        everything.unpersist()


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_tail_whose_beginning_was_deleted_with_all_before_it(
    make_store: Callable[..., Any], tmp_path: Path, order: str
) -> None:
    """Records that had no units yet went with those that had: the queue begins behind them."""
    root = tmp_path / "s"
    store = make_store(root, segment_size=4096, queue_size=200)
    for number in range(12):
        store.append("A", 0, b"x" * 380, time=NOW + number, dispatch=number < 3)
    (root / "abort").touch()
    first, *rest = sorted((root / "commitlog").iterdir())
    assert rest
    before = _read([root], [], {"readOrder": order})
    assert len(before) == 12
    first.unlink()
    after = _read([root], [], {"readOrder": order})
    assert 0 < len(after) < 9
    assert after == before[-len(after) :]
    asked = json.dumps({"A": {"0": 3}})
    with pytest.raises(DataLossError, match=r"offsets 3 to \d+ are gone, it begins at"):
        _read([root], [], {"readOrder": order, "startingOffsets": asked})
