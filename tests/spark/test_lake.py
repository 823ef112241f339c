"""One table over log and lake: the union is the log read whole, row for row.

Stores are exported in steps, written on, and lose the beginning of their log; what the option
``lake`` gives is compared with the log as it was when it had everything. Tasks run in this process.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.rigs.campaigns import examples

pytest.importorskip("pyspark")

from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as f

from oberth.cli.main import oberth
from oberth.errors import DataLossError, OptionError
from oberth.formats import sys_flag
from oberth.spark.lake import open_lake, union_frame
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.dead_letters import redrive
from oberth.spark.pipelines.dispatch import dispatch
from oberth.spark.pipelines.export.compaction import compact, expire
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.ledger import Ledger
from oberth.spark.pipelines.export.places import LocalPlace
from oberth.spark.pipelines.export.settings import (
    FORMATS,
    ExportSettings,
    table_name,
    topic_of_table,
)
from oberth.spark.pipelines.import_store import import_store
from oberth.spark.pipelines.salvage import salvage
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.verify import verify
from oberth.spark.predicates import predicate_of
from oberth.spark.schemas import Field, parse_columns, struct_type
from oberth.spark.source import RocketMQReader
from oberth.store.offline.layout import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_TIME = 1_700_000_000_000
TOPICS = ("A", "B", "odd name%")
COLUMNS = "key,value,topic,broker,partition,offset,timestamp,tags,bornTimestamp,properties,physicalOffset,size,msgId,bodyError"  # noqa: E501
Rows = list[dict[str, Any]]


def read(
    root: Path | str, filters: Sequence[Any] = (), columns: str = COLUMNS, **options: str
) -> Rows:
    """What a batch query gives, its tasks run here; in the order of the log."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = parse_read_options({"path": str(root), **given}, streaming=False)
    reader = RocketMQReader(parsed, struct_type(parse_columns(columns)))
    if filters:
        reader.accept_filters(list(filters))
    rows: Rows = []
    for planned in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(planned))):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return sorted(rows, key=lambda row: (row.get("physicalOffset", 0), row.get("offset", 0)))


class Written:
    """A store in which everything happens: what it had, and its lakes by format."""

    def __init__(
        self, make_store: Callable[..., Any], directory: Path, forms: Sequence[str] = ("parquet",)
    ) -> None:
        rng = random.Random("lake")
        self.root = directory / "broker-l"
        store = make_store(self.root, segment_size=1 << 16)
        self.lakes = {form: directory / form for form in forms}
        time = FIRST_TIME
        for step in range(4):
            for number in range(250):
                time += rng.choice([0, 1, 50, 900])
                topic = rng.choice([*TOPICS, "%RETRY%g"])
                compressed = rng.random() < 0.02  # and no such body
                store.append(
                    topic, rng.randrange(3), b"%d" % number * rng.randrange(40),
                    tags=rng.choice(["", "red", "blue"]), keys=f"k{step * 250 + number}", time=time,
                    flags=sys_flag.COMPRESSED if compressed
                    else rng.choice([0, 0, 0, sys_flag.TRANSACTION_PREPARED]),
                    properties={"n": str(number), "UNIQ_KEY": f"u{step}-{number}"},
                )  # fmt: skip
            if step < 3:  # the last step is in the log alone
                for form, into in self.lakes.items():
                    export(
                        InProcess(), str(self.root), str(into), ExportSettings(form),
                        range_size=9_000,
                    )  # fmt: skip
        self.last_time = time
        self.rows = read(self.root, readOrder="commitlog")
        self.end = open_lake(str(self.lakes["parquet"])).end

    def lose_the_beginning(self) -> None:
        """Cleaning deletes what all lakes have."""
        files = sorted((self.root / "commitlog").iterdir())
        for path, following in pairwise(files):
            if int(following.name) <= self.end:
                path.unlink()


@pytest.fixture(scope="module")
def written(make_store: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Written:
    made = Written(make_store, tmp_path_factory.mktemp("lake"), FORMATS)
    made.lose_the_beginning()
    return made


@pytest.mark.parametrize("form", FORMATS)
def test_the_union_is_the_log_read_whole(written: Written, form: str) -> None:
    lake = str(written.lakes[form])
    assert read(written.root, lake=lake) == written.rows
    # It is not the log that gives the old rows: that has lost them.
    lost = len(written.rows) - len(read(written.root, readOrder="commitlog"))
    assert lost > 200
    assert {row["topic"] for row in written.rows} == set(TOPICS)
    assert any(row["bodyError"] for row in written.rows)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from([*TOPICS, "none"]),
    "partition": st.integers(-1, 4),
    "offset": st.integers(-1, 90),
    "timestamp": st.integers(-5_000, 600_000).map(
        lambda ms: datetime.fromtimestamp((FIRST_TIME + ms) / 1000, UTC)
    ),
    "physicalOffset": st.integers(-1, 250_000),
    "key": st.integers(0, 1_000).map(lambda n: f"k{n}".encode()),
    "tags": st.sampled_from(["red", "blue", "green"]),
    "msgId": st.tuples(st.integers(0, 3), st.integers(0, 249)).map(lambda n: f"u{n[0]}-{n[1]}"),
}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda found, value: bool(found == value),
    "In": lambda found, value: found in value,
    "GreaterThan": lambda found, value: bool(found > value),
    "GreaterThanOrEqual": lambda found, value: bool(found >= value),
    "LessThan": lambda found, value: bool(found < value),
    "LessThanOrEqual": lambda found, value: bool(found <= value),
}


@st.composite
def _filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(_VALUES)))
    kinds: list[Any] = [f.EqualTo, f.In]
    if column in ("partition", "offset", "timestamp", "physicalOffset"):
        kinds += [f.GreaterThan, f.GreaterThanOrEqual, f.LessThan, f.LessThanOrEqual]
    kind = draw(st.sampled_from(kinds))
    if kind is f.In:
        return f.In((column,), tuple(draw(st.lists(_VALUES[column], min_size=1, max_size=3))))
    return kind((column,), draw(_VALUES[column]))


def _satisfy(rows: Rows, filters: list[Any]) -> Rows:
    return [
        row
        for row in rows
        if all(
            row[one.attribute[0]] is not None
            and _HOLDS[type(one).__name__](row[one.attribute[0]], one.value)
            for one in filters
        )
    ]


@settings(
    max_examples=examples("tests/spark/test_lake.py::test_any_filter_and_any_cut"),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    filters=st.lists(_filters(), max_size=3),
    form=st.sampled_from(FORMATS),
    cut=st.none() | st.integers(0, 250_000),
)
def test_any_filter_and_any_cut(
    written: Written, filters: list[Any], form: str, cut: int | None
) -> None:
    more = {} if cut is None else {"asOfOffset": str(cut)}
    rows = read(written.root, filters, lake=str(written.lakes[form]), **more)
    below = [row for row in written.rows if cut is None or row["physicalOffset"] < cut]
    assert _satisfy(rows, filters) == _satisfy(below, filters)
    assert cut is None or all(row["physicalOffset"] < cut for row in rows)
    if predicate_of(filters, parse_columns(COLUMNS)).log.low is not None:
        assert len(rows) <= len(below)


@pytest.mark.parametrize("form", FORMATS)
def test_bounds_at_the_ends_of_a_long(written: Written, form: str) -> None:
    fields = [
        Field(name, name, kind)
        for name, kind in (
            ("timestamp", "bigint"), ("offset", "bigint"), ("partition", "int"),
            ("physicalOffset", "bigint"),
        )
    ]  # fmt: skip
    parsed = parse_read_options(
        {"path": str(written.root), "lake": str(written.lakes[form])}, streaming=False
    )
    for name, bound in product(("timestamp", "offset", "physicalOffset"), (2**63 - 1, -(2**63))):
        for kind in (
            f.EqualTo, f.LessThan, f.LessThanOrEqual, f.GreaterThan, f.GreaterThanOrEqual
        ):  # fmt: skip
            reader = RocketMQReader(parsed, struct_type(fields))
            reader.accept_filters([kind((name,), bound)])
            count = 0
            for planned in reader.partitions():
                for batch in reader.read(planned):
                    numbers = batch.column(name).to_pylist()
                    count += sum(_HOLDS[kind.__name__](each, bound) for each in numbers)
            is_above = kind in (f.LessThan, f.LessThanOrEqual)
            wanted = kind is not f.EqualTo and is_above == (bound > 0)
            assert count == (len(written.rows) if wanted else 0), (name, bound, kind)


def test_a_cut_in_time_goes_through_all_topics(written: Written) -> None:
    times = sorted({int(row["timestamp"].timestamp() * 1000) for row in written.rows})
    around = (times[0] - 1, times[0], times[100], times[-100], times[-1], times[-1] + 1)
    for time in (*around, 2**62, 2**63 - 1):  # and times that no calendar has
        expected = [r for r in written.rows if r["timestamp"].timestamp() * 1000 <= time]
        for form in FORMATS:
            cut = read(written.root, lake=str(written.lakes[form]), asOfTimestamp=str(time))
            assert cut == expected, (time, form)


def _random_filters(rng: random.Random, times: list[int], end: int) -> list[Any]:
    """What a query might ask for, of a store made by `_grown`."""

    def at(time: int) -> datetime:
        return datetime.fromtimestamp(time / 1000, UTC)

    values: dict[str, Callable[[], Any]] = {
        "topic": lambda: rng.choice([*TOPICS, "none"]),
        "partition": lambda: rng.randrange(-1, 4),
        "offset": lambda: rng.randrange(-1, 60),
        "timestamp": lambda: at(rng.choice(times) + rng.choice([-1, 0, 0, 1])),
        "physicalOffset": lambda: rng.randrange(end + 200),
        "key": lambda: b"k%d" % rng.randrange(len(times)),
        "tags": lambda: rng.choice(["red", "blue", "green"]),
    }
    kinds: list[Any] = [f.EqualTo, f.In]
    ordered = [f.GreaterThan, f.GreaterThanOrEqual, f.LessThan, f.LessThanOrEqual]
    filters: list[Any] = []
    for column in rng.sample(sorted(values), rng.randrange(4)):
        kind = rng.choice(kinds + (ordered if column in ("offset", "timestamp") else []))
        value = values[column]() if kind is not f.In else tuple(values[column]() for _ in range(3))
        filters.append(kind((column,), value))
    return filters


def _grown(
    rng: random.Random, make_store: Callable[..., Any], root: Path, into: str, form: str
) -> list[int]:
    """A store that is exported as it grows, written on behind the last export; its times."""
    store = make_store(root, segment_size=rng.choice([1 << 12, 1 << 13, 1 << 15]))
    times = [FIRST_TIME]
    for step in range(rng.randrange(2, 5)):
        if step:
            settings = ExportSettings(form)
            export(InProcess(), str(root), into, settings, range_size=rng.randrange(900, 9_000))
            if form != "iceberg" and rng.random() < 0.3:
                compact(into, 1 << 20)
        for _ in range(rng.randrange(20, 70)):
            times.append(times[-1] + rng.choice([0, 0, 1, 50, 900]))
            store.append(
                rng.choice([*TOPICS, "%RETRY%g"]), rng.randrange(3), b"x" * rng.randrange(200),
                tags=rng.choice(["", "red", "blue"]), keys=f"k{len(times)}", time=times[-1],
                flags=rng.choice([0, 0, 0, sys_flag.TRANSACTION_PREPARED]),
            )  # fmt: skip
    return times


@pytest.mark.parametrize("seed", range(int(os.environ.get("OBERTH_LAKE_SEEDS", "6"))))
def test_a_cut_of_log_and_lake_is_that_of_the_log(
    make_store: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    """OBERTH_LAKE_SEEDS=300 draws so many stores, each with eight cuts and predicates."""
    rng = random.Random(f"cuts {seed}")
    root, into = tmp_path / "broker-c", str(tmp_path / "lake")
    times = _grown(rng, make_store, root, into, rng.choice(FORMATS))
    whole = tmp_path / "whole" / "broker-c"
    shutil.copytree(root, whole)
    files = sorted((root / "commitlog").iterdir())
    lost = [path for path, after in pairwise(files) if int(after.name) <= open_lake(into).end]
    for path in lost[: rng.randrange(len(lost) + 1)]:
        path.unlink()
    end = int(files[-1].name) + (1 << 12)
    for _ in range(8):
        cut = rng.choice([
            {"asOfTimestamp": str(rng.choice(times) + rng.choice([-1, 0, 0, 1, 500]))},
            {"asOfOffset": str(rng.randrange(end))},
        ])  # fmt: skip
        filters = _random_filters(rng, times, end)
        expected = _satisfy(read(whole, readOrder="commitlog", **cut), filters)
        for lake in ({"lake": into}, {"lake": into, "targetPartitionBytes": "2k"}):
            rows = read(root, filters, **lake, **cut)
            assert _satisfy(rows, filters) == expected, (cut, filters)


def test_a_cut_needs_no_lake(growing_store: Any) -> None:
    for number in range(60):
        growing_store.append("A", number % 3, b"x" * 50, time=FIRST_TIME + number // 2)
    whole = read(growing_store.root)
    for order in ("queue", "commitlog"):
        for number in (0, 1, 30, 59):
            at = whole[number]["physicalOffset"]
            assert read(growing_store.root, readOrder=order, asOfOffset=str(at)) == whole[:number]
            since = read(growing_store.root, readOrder=order, sinceOffset=str(at))
            assert since == whole[number:]
        time = str(FIRST_TIME + 10)
        assert read(growing_store.root, readOrder=order, asOfTimestamp=time) == whole[:22]


def test_files_that_were_joined_and_a_batch_in_progress(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    made = Written(make_store, tmp_path, FORMATS)
    into = made.lakes["parquet"]
    before = len(open_lake(str(into)).files)
    assert compact(str(into), 64 << 20) > 0
    assert len(open_lake(str(into)).files) < before
    assert read(made.root, lake=str(into)) == made.rows
    for form in FORMATS:

        def killed(step: str) -> None:
            if step == "finish":  # the tables have the batch, and nobody noted it
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export(
                InProcess(), str(made.root), str(made.lakes[form]), ExportSettings(form),
                step=killed,
            )  # fmt: skip
        assert open_lake(str(made.lakes[form])).end == made.end
        assert read(made.root, lake=str(made.lakes[form])) == made.rows


def test_a_join_that_was_killed_shows_no_row_twice(
    make_store: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Written(make_store, tmp_path)
    into = made.lakes["parquet"]
    real, left = os.unlink, [2]

    def unlink(path: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            compact(str(into), 64 << 20)
    assert read(made.root, lake=str(into)) == made.rows


@pytest.mark.parametrize("settings", [ExportSettings(one_table=True), ExportSettings(exact=True)])
def test_one_table_and_exact_exports(
    make_store: Callable[..., Any], tmp_path: Path, settings: ExportSettings
) -> None:
    made = Written(make_store, tmp_path)
    into = str(tmp_path / "other")
    export(InProcess(), str(made.root), into, settings)
    assert read(made.root, lake=into) == made.rows
    topic = [row for row in made.rows if row["topic"] == "B"]
    assert read(made.root, lake=into, subscribe="B") == topic
    assert read(made.root, lake=into, subscribePattern="[AB]") == [
        row for row in made.rows if row["topic"] in "AB"
    ]
    if settings.exact:
        every = read(made.root, readOrder="commitlog", columns="*", includeUndelivered="true")
        assert read(made.root, columns="*", includeUndelivered="true", lake=into) == every
        retries = read(made.root, readOrder="commitlog", subscribe="%RETRY%g")
        assert read(made.root, lake=into, subscribe="%RETRY%g") == retries


def test_options_on_both_sides(written: Written) -> None:
    lake = str(written.lakes["parquet"])
    red = [row for row in written.rows if row["tags"] == "red"]
    assert read(written.root, lake=lake, filter__tag="red") == red
    seven = read(written.root, lake=lake, filter__sql="n = '7'")
    assert seven == [row for row in written.rows if dict(row["properties"])["n"] == "7"]
    whole = [row for row in written.rows if row["bodyError"] is None]
    assert read(written.root, lake=lake, badBodies="skip") == whole
    with pytest.raises(Exception, match="badBodies=row makes a row"):
        read(written.root, lake=lake, badBodies="fail")
    small = read(written.root, lake=lake, columns="value,physicalOffset", targetPartitionBytes="1k")
    assert [row["value"] for row in small] == [row["value"] for row in written.rows]


def test_what_does_not_fit_is_an_error(
    written: Written, make_store: Callable[..., Any], tmp_path: Path
) -> None:
    lake = str(written.lakes["parquet"])

    def refused(match: str, root: Path = written.root, **options: str) -> None:
        with pytest.raises((OptionError, DataLossError), match=match):
            read(root, **{"lake": lake, **options})

    refused("holds no export", lake=str(tmp_path))
    refused("is a URL", lake="hdfs://host/tables")
    refused("is not in the lake", subscribe="%RETRY%g")
    refused("nearest is 'A'", subscribe="Aa")
    refused("do not go with lake", startingTimestamp="5")
    refused("does not go with lake", assign='{"A": [0]}')
    refused("does not go with lake", readOrder="queue")
    refused("no column storedBody", columns="storedBody,physicalOffset")
    refused("exclude each other", asOfOffset="1", asOfTimestamp="2")
    refused("only an exact export", includeUndelivered="true")
    other = make_store(tmp_path / "broker-l")
    other.append("A", 0, b"x")
    refused("the lake is another store's", tmp_path / "broker-l")
    with pytest.raises(OptionError, match="not allowed in a streaming query"):
        parse_read_options({"path": lake, "lake": lake}, streaming=True)


def test_what_neither_side_has_is_data_loss(make_store: Callable[..., Any], tmp_path: Path) -> None:
    store = make_store(tmp_path / "broker-n", segment_size=4096)
    lake = str(tmp_path / "tables")
    for number in range(40):
        store.append("A", 0, b"x" * 100, time=FIRST_TIME + number)
        if number == 5:
            export(InProcess(), str(store.root), lake, ExportSettings())
    whole = read(store.root)
    first, *_, last = sorted((store.root / "commitlog").iterdir())
    first.unlink()
    end = open_lake(lake).end
    with pytest.raises(DataLossError, match=f"CommitLog {end} to 4096 is neither in the log nor"):
        read(store.root, lake=lake)
    kept = read(store.root, lake=lake, failOnDataLoss="false")
    assert kept == [r for r in whole if not end <= r["physicalOffset"] < 4096]
    behind = [f.GreaterThanOrEqual(("physicalOffset",), int(last.name))]
    assert len(read(store.root, behind, lake=lake)) < len(kept)  # nothing of it is asked for
    with pytest.raises(DataLossError, match="CommitLog 100 to 4096 is gone"):
        read(store.root, sinceOffset="100")


def test_a_log_that_was_cut_and_written_on_is_not_the_lakes(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    """What came in the place of the lost end, before the lake's end, is in neither."""
    first, second = make_store(tmp_path / "a" / "broker"), make_store(tmp_path / "b" / "broker")
    into = str(tmp_path / "lake")
    for store, last in ((first, b"taken"), (second, b"later")):
        store.append("A", 0, b"x")
        store.append("A", 0, last)
    export(InProcess(), str(first.root), into, ExportSettings())
    for store in (first, second):
        store.append("A", 0, b"more")
    assert len(read(first.root, lake=into)) == 3
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(DataLossError, match="is not what the lake"):
            read(second.root, lake=into, **options)
    given = {"path": str(second.root), "lake": into}
    with pytest.raises(DataLossError, match="cut after a crash and written on"):
        union_frame(None, given)  # type: ignore[arg-type]  # refused before Spark is asked


def test_batches_that_are_forgotten_during_a_look(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listed the ledger before the export went on far lists it again."""
    monkeypatch.setattr("oberth.spark.pipelines.export.ledger.BATCHES_KEPT", 1)
    listed = Ledger.names
    once: list[list[str]] = []

    def overtaken(ledger: Ledger, directory: str) -> list[str]:
        found = listed(ledger, directory)
        if not once:
            once.append(found)
            growing_store.append("A", 0, b"x")
            export(InProcess(), str(growing_store.root), str(tmp_path), ExportSettings())
        return found

    growing_store.append("A", 0, b"x")
    export(InProcess(), str(growing_store.root), str(tmp_path), ExportSettings())
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "names", overtaken)
        assert open_lake(str(tmp_path)).batch == 1
    assert once == [["00000000.done", "00000000.json"]]


def test_a_copy_of_a_ledger_that_was_being_written_is_no_endless_look(
    growing_store: Any, tmp_path: Path
) -> None:
    growing_store.append("A", 0, b"x")
    export(InProcess(), str(growing_store.root), str(tmp_path), ExportSettings())
    (tmp_path / "_oberth" / "batches" / "00000000.json").unlink()
    with pytest.raises(OptionError, match="copy of an export that was being written"):
        open_lake(str(tmp_path))
    offsets: dict[str, dict[str, int]] = {"start": {}, "end": {}}
    ledger = Ledger(LocalPlace(str(tmp_path)))
    for number in (0, 2):
        ledger.write(f"batches/{number:08d}.json", {"start": 0, "end": 1, "offsets": offsets})
    ledger.write("batches/00000000.done", {"rows": 1, "quarantined": 0, "total": 1})
    with pytest.raises(OptionError, match=r"lacks batches/00000001\.json"):
        open_lake(str(tmp_path))


def test_names_of_tables_and_topics() -> None:
    for topic in ("A", "odd name%", "%RETRY%g", ".hidden", "_x", "ümläut", "a+b"):
        assert topic_of_table(table_name(topic)) == topic


@pytest.mark.spark
def test_sparks_own_reader_gives_the_same(spark: SparkSession, written: Written) -> None:
    # One statement, as each takes a second to plan and to start.
    statement = " union all ".join(
        f"select '{number}' as n, topic, count(*), sum(size), max(offset) from {{t}} "
        f"where {where} group by topic"
        for number, where in enumerate(
            ("true", "tags = 'red' and offset < 20", "physicalOffset >= 100000")
        )
    )
    options = {"path": str(written.root), "lake": str(written.lakes["delta"])}
    assert open_lake(options["lake"]).end == written.end
    for more in (
        {},
        {"asOfOffset": str(written.end)},
        {"asOfOffset": str(written.end - 5_000)},
        {"asOfOffset": str(written.end + 5_000)},
        {"sinceOffset": str(written.end - 5_000)},
        {"sinceOffset": str(written.end + 5_000)},
        {"sinceOffset": str(written.end - 9_000), "asOfOffset": str(written.end - 5_000)},
    ):
        own = union_frame(spark, {**options, **more})
        source = spark.read.format("rocketmq").options(**options, **more)
        own.createOrReplaceTempView("own")
        source.option("columns", ",".join(own.columns)).load().createOrReplaceTempView("source")
        [left, right] = [
            sorted(tuple(row) for row in spark.sql(statement.format(t=table)).collect())
            for table in ("own", "source")
        ]
        assert left == right
        assert {row[0] for row in left} >= ({"0"} if "sinceOffset" in more else {"0", "1", "2"})
        # What lies in the lake as a whole does not wait for a look at the log, nor the other way.
        plan = own._jdf.queryExecution().optimizedPlan().toString()
        assert ("rocketmq" in plan) == (int(more.get("asOfOffset", 1 << 62)) > written.end), plan
        assert ("parquet" in plan) == (int(more.get("sinceOffset", 0)) < written.end), plan
    ours = (
        union_frame(spark, options, "physicalOffset,key,value").orderBy("physicalOffset").collect()
    )
    assert [tuple(row) for row in ours] == [
        (row["physicalOffset"], row["key"], row["value"]) for row in written.rows
    ]
    place = ["spark", "sql", "--store", options["path"], "--lake", options["lake"], "--json"]
    red = [r for r in written.rows if r["topic"] == "odd name%" and r["tags"] == "red"]
    for question, answer in (
        ("select count(*) as n from all_messages", len(written.rows)),
        (
            "select max(offset) as n from odd_name_ where tags = 'red'",
            max(r["offset"] for r in red),
        ),
    ):
        done = CliRunner().invoke(oberth, [*place, question])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"n": answer}


def test_a_url_is_never_a_directory_named_so(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, url, tasks, none = str(written.root), "s3://bucket/x", InProcess(), cast(Any, None)
    refused: list[Callable[[], Any]] = [
        lambda: export(tasks, root, "hdfs://host/x", ExportSettings()),
        lambda: compact("http://host/x", 1 << 20),
        lambda: dispatch(tasks, root, url),
        lambda: dispatch(tasks, root, "made", scratch=url),
        lambda: verify(tasks, root, scratch=url),
        lambda: salvage(tasks, root, url),
        lambda: import_store(tasks, root, url),
        lambda: redrive(none, root, url),
    ]
    for write in refused:
        with pytest.raises(OptionError, match="is a URL; this writes to a file system"):
            write()
    for command in ("rebuild", "salvage"):
        done = CliRunner().invoke(oberth, ["store", command, root, "--into", url])
        assert isinstance(done.exception, OptionError), done.output
    assert list(tmp_path.iterdir()) == []
    assert local_directory("file:///a/b", "into") == local_directory("/a/./b", "into") == "/a/b"


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_versions_that_are_forgotten_leave_the_rows(
    make_store: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    store = make_store(tmp_path / "broker")
    into = str(tmp_path / "lake")

    def write(count: int) -> None:
        for number in range(count):
            store.append("A", 0, b"%d" % number)
        export(InProcess(), str(store.root), into, ExportSettings(form))

    for _ in range(3):
        write(4)
    if form == "delta":
        assert compact(into, 1 << 20) == 3
    assert expire(into, 1000.0) == 0
    assert expire(into, 0.0) > 0
    whole = read(store.root)
    assert read(store.root, lake=into) == whole
    # What says which batches a table has is still there: nothing comes a second time.
    write(2)
    assert read(store.root, lake=into) == read(store.root)
    assert len(open_lake(into).files) == (2 if form == "delta" else 4)


def test_tables_without_versions_have_none_to_forget(written: Written, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="have no versions"):
        expire(str(written.lakes["parquet"]), 1.0)
    with pytest.raises(OptionError, match="holds no export"):
        expire(str(tmp_path), 1.0)


ODD_TIMES = [-5, -1, 0, 1, FIRST_TIME, FIRST_TIME + 1, 4_102_444_800_000, 253_402_300_799_999]


@pytest.mark.parametrize("form", FORMATS)
def test_odd_messages_are_the_same_on_both_sides(
    make_store: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    """A topic made again, queues that begin late, times before 1970 and far ahead, odd texts."""
    store = make_store(tmp_path / "broker-o", segment_size=1 << 14)
    into = str(tmp_path / "lake")
    rng = random.Random("odd")
    store.skip("late", 0, 1_000)
    for number in range(120):
        topic = rng.choice(["late", "again", "plain"])
        if number == 60:  # deleted and made: its offsets begin at 0 again
            for queue in range(2):
                store.forget("again", queue)
        name = rng.choice(["n", "ö", "a b", "=;,", "q\"'"])
        store.append(
            topic, 0 if topic == "late" else rng.randrange(2),
            rng.choice([b"", b"\0", b"x" * 300, "ä".encode(), b"\xff\xfe"]),
            keys=rng.choice(["", "a b", "nul\0in", "ümläut", "x" * 200]),
            tags=rng.choice(["", "red", "nul\0"]), time=rng.choice(ODD_TIMES),
            properties={name: rng.choice(["", "1", "\0", "é"])},
        )  # fmt: skip
        if number in (40, 90):
            export(InProcess(), str(store.root), into, ExportSettings(form))
    whole = read(store.root, readOrder="commitlog")
    assert len(whole) == 120
    assert read(store.root, lake=into) == whole
    again = [row for row in whole if row["topic"] == "again" and row["partition"] == 0]
    assert len({row["offset"] for row in again}) < len(again), "two lives of one queue"
    conditions: list[Any] = [
        f.EqualTo(("key",), b"nul\0in"), f.EqualTo(("key",), b"a b"),
        f.In(("tags",), ("nul\0", "red")), f.EqualTo(("offset",), 1_003),
        f.LessThan(("offset",), 3),
    ]  # fmt: skip
    for ms in ODD_TIMES:
        time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        kinds = [f.EqualTo, f.LessThan, f.LessThanOrEqual, f.GreaterThan, f.GreaterThanOrEqual]
        conditions += [kind(("timestamp",), time) for kind in kinds]
        conditions.append(f.LessThan(("timestamp",), time + timedelta(microseconds=300)))
        conditions.append(f.GreaterThan(("timestamp",), time - timedelta(microseconds=300)))
    for condition in conditions:
        rows = read(store.root, [condition], lake=into)
        assert _satisfy(rows, [condition]) == _satisfy(whole, [condition]), condition
