"""Exports hold every message once, whatever was killed; other tools read them.

Tasks run in this process; DuckDB, deltalake and pyiceberg read what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from oberth.cli.main import oberth
from oberth.errors import DataLossError, OptionError, StoreLockedError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.spark.pipelines.export import rows as rows_module
from oberth.spark.pipelines.export.compaction import compact, expire, list_files
from oberth.spark.pipelines.export.directories import directory_of, values_of, whole_values
from oberth.spark.pipelines.export.exporter import STEPS, export
from oberth.spark.pipelines.export.ledger import Ledger
from oberth.spark.pipelines.export.places import place_of
from oberth.spark.pipelines.export.settings import FORMATS, ExportSettings, table_name
from oberth.spark.pipelines.export.tables import DeltaTables
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.files import OsFileSystem
from oberth.store.lakes import NOTHING, awaited_lake, lake_name, lake_names, make_directory
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.rebuild import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]
EMPTY = hashlib.sha256(b"").hexdigest()


def read_all(into: Path, form: str) -> list[dict[str, Any]]:
    """All rows of all tables, by the tool of the format."""
    rows: list[dict[str, Any]] = []
    if form == "parquet":
        query = f"select * from read_parquet('{into}/[!_]*/**/*.parquet', union_by_name=true)"
        found = duckdb.sql(query)
        assert found is not None
        rows += found.to_arrow_table().to_pylist()
    elif form == "delta":
        for path in sorted(into.iterdir()):
            if path.name != "_oberth":
                rows += DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    else:
        catalog = SqlCatalog("oberth", uri=f"sqlite:///{into}/catalog.db")
        for name in catalog.list_tables("oberth"):
            rows += catalog.load_table(name).scan().to_arrow().to_pylist()
        catalog.close()
    return rows


def places(rows: list[dict[str, Any]]) -> Counter[tuple[str, int, int, str]]:
    return Counter(
        (row["topic"], row["partition"], row["offset"], hashlib.sha256(row["value"]).hexdigest())
        for row in rows
    )


def expected_places(store: Any) -> Counter[tuple[str, int, int, str]]:
    return Counter(
        (m["topic"], m["queueId"], m["queueOffset"], m.get("bodySha256", EMPTY))
        for m in store.facts["messages"]
        if m["sysFlag"] & 0xC in (0, 8)
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("one_table", [False, True])
def test_other_tools_read_every_message(
    golden_pristine: Golden, tmp_path: Path, form: str, one_table: bool
) -> None:
    store = golden_pristine("basic-5.5.0")
    settings = ExportSettings(form, one_table, partition_by=("day=date(timestamp)", "tags"))
    report = export(InProcess(), str(store.root), str(tmp_path), settings, range_size=90_000)
    rows = read_all(tmp_path, form)
    assert places(rows) == expected_places(store)
    assert {str(row["day"]) for row in rows} == {
        row["timestamp"].strftime("%Y-%m-%d") for row in rows
    }
    assert report.rows == len(rows)
    assert sum(report.tables.values()) == len(rows)
    assert len(report.tables) == (1 if one_table else 3)
    # Nothing new: nothing done.
    assert export(InProcess(), str(store.root), str(tmp_path), settings).batches == 0


def test_one_writer_at_a_time_in_one_process_too(golden_pristine: Golden, tmp_path: Path) -> None:
    """Two threads of a scheduler, say: the lock of a file belongs to the process."""
    store = golden_pristine("basic-5.5.0")
    export(InProcess(), str(store.root), str(tmp_path), ExportSettings("delta"))
    ledger = Ledger(place_of(str(tmp_path), {}, "into"))
    with ledger.locked():
        with pytest.raises(StoreLockedError, match=f"exports into {tmp_path} already"):
            export(InProcess(), str(store.root), str(tmp_path), ExportSettings("delta"))
        with pytest.raises(StoreLockedError):
            compact(str(tmp_path), 1 << 20)
        with pytest.raises(StoreLockedError):
            expire(str(tmp_path), 1)
        # Who was refused has not given the lock back.
        take = f"ProcessLock({str(tmp_path / '_oberth' / 'lock')!r}, '').acquire()"
        done = subprocess.run(
            [sys.executable, "-c", f"from oberth.store.store_lock import ProcessLock; {take}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "StoreLockedError" in done.stderr
    assert compact(str(tmp_path), 1 << 20) >= 0


def test_files_say_which_part_of_the_log_they_hold(golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("basic-5.5.0")
    export(InProcess(), str(store.root), str(tmp_path), ExportSettings(), range_size=90_000)
    for path in tmp_path.glob("[!_]*/*.parquet"):
        file = pq.ParquetFile(path)
        said = file.schema_arrow.metadata
        start, end = int(said[b"oberth.log.start"]), int(said[b"oberth.log.end"])
        offsets = file.read(["physicalOffset"]).column(0).to_pylist()
        assert start <= min(offsets) <= max(offsets) < end
        file.close()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("killed_before", [*STEPS, "between", "after"])
def test_killed_at_a_step(
    growing_store: Any, tmp_path: Path, form: str, killed_before: str
) -> None:
    """The driver ends without a word in the second batch; the next run leaves every row once."""
    into = tmp_path / "tables"
    settings = ExportSettings(form)
    bodies: list[bytes] = []

    def add(count: int) -> None:
        for _ in range(count):
            body = f"message {len(bodies)}".encode()
            growing_store.append(f"topic{len(bodies) % 3}", len(bodies) % 2, body)
            bodies.append(body)

    def run(step: Callable[[str], None]) -> None:
        export(
            InProcess(), str(growing_store.root), str(into), settings, range_size=2000, step=step
        )

    add(40)
    run(lambda name: None)
    add(40)
    run_and_die(form, killed_before, run)
    add(5)
    run(lambda name: None)
    rows = read_all(into, form)
    assert Counter(row["value"] for row in rows) == Counter(bodies)
    left = [p for p in into.rglob("*") if p.is_file() and p.name.startswith("part-")]
    assert len(left) == len({p.name for p in left})
    assert not [p for p in left if p.name.endswith(".staged")]


class Killed(BaseException):
    """Stands for the end of the process, where it must not end: Delta's threads outlive no fork."""


def run_and_die(form: str, killed_before: str, run: Callable[[Any], None]) -> None:
    """Runs up to a step, and is killed there."""

    def die() -> None:
        if form == "delta":
            raise Killed
        os._exit(9)

    def step(name: str) -> None:
        if name == killed_before:
            die()

    def attempt() -> None:
        with pytest.MonkeyPatch.context() as patch:
            if killed_before == "between":
                _die_at_the_second_table(form, die, patch)
            run(step)
        die()

    if form == "delta":
        with pytest.raises(Killed):
            attempt()
        return
    child = os.fork()
    if child == 0:
        try:
            attempt()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def _die_at_the_second_table(form: str, die: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Lets the process end when the second table takes the batch, or the second file moves."""
    from oberth.spark.pipelines.export import tables

    calls: list[int] = []

    def dying(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                die()
            return original(*arguments, **named)

        return call

    if form == "parquet":
        real = os.replace
        counted = dying(real)

        def replace(source: Any, target: Any) -> None:
            (counted if str(source).endswith(".staged") else real)(source, target)

        patch.setattr(os, "replace", replace)
    else:
        kind: Any = tables.DeltaTables if form == "delta" else tables.IcebergTables
        patch.setattr(kind, "_commit_table", dying(kind._commit_table))


def test_bodies_that_do_not_decode_go_to_quarantine(growing_store: Any, tmp_path: Path) -> None:
    good = [{"id": n, "name": f"n{n}", "legs": [{"km": n / 2}]} for n in range(30)]
    for number, value in enumerate(good):
        growing_store.append("flights", number % 2, json.dumps(value).encode())
    for body in (b"no json", b"[1]", b"\xff", b""):
        growing_store.append("flights", 0, body)
    settings = ExportSettings("delta", body="json", partition_by=("third=bucket(3, body.name)",))
    report = export(InProcess(), str(growing_store.root), str(tmp_path), settings)
    assert (report.rows, report.quarantined) == (30, 4)
    rows = DeltaTable(str(tmp_path / "flights")).to_pyarrow_table().to_pylist()
    assert sorted((row["body"] for row in rows), key=lambda body: body["id"]) == good
    assert {row["third"] for row in rows} == {"0", "1", "2"}
    wrong = DeltaTable(str(tmp_path / "flights+quarantine")).to_pyarrow_table().to_pylist()
    assert {row["value"]: row["reason"] for row in wrong} == {
        b"no json": "not JSON at character 0: Expecting value",
        b"[1]": "the body: JSON, but no object",
        b"\xff": "no UTF-8 at byte 0",
        b"": "not JSON at character 0: Expecting value",
    }
    # The type that was inferred stays, whatever comes later.
    growing_store.append("flights", 0, b'{"id": 1.5}')
    growing_store.append("flights", 0, b'{"id": 30, "more": 1}')
    later = export(InProcess(), str(growing_store.root), str(tmp_path), settings)
    assert (later.rows, later.quarantined) == (1, 1)


@pytest.mark.parametrize("form", FORMATS)
def test_times_that_no_calendar_has_stop_no_export(form: str, tmp_path: Path) -> None:
    """The time at which a message was made is the producer's word."""
    root, into = tmp_path / "store", tmp_path / "tables"
    config = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(root), "mappedFileSizeCommitLog": "65536", "maxIndexNum": "100"}
    )
    for born in (1_700_000_000_000, 2**53, 1_700_000_000_000, -(2**53)):
        with MessageStore(config) as store:
            message = MessageExtBrokerInner.of("t", b"x", queue_id=0)
            message.born_timestamp = born
            assert store.put_message(message).ok
        export(InProcess(), str(root), str(into), ExportSettings(form))
    if form != "delta":
        assert compact(str(into), 1 << 20) == 4
    offsets: set[int] = set()
    for path in into.rglob("*.parquet"):
        offsets.update(pq.read_table(path).column("offset").to_pylist())
    assert offsets == {0, 1, 2, 3}


@pytest.mark.parametrize("form", FORMATS)
def test_compaction_keeps_every_row(golden_pristine: Golden, tmp_path: Path, form: str) -> None:
    store = golden_pristine("basic-5.5.0")
    settings = ExportSettings(form, partition_by=("day=date(timestamp)",))
    export(InProcess(), str(store.root), str(tmp_path), settings, range_size=30_000)
    before = len(list(tmp_path.glob("[!_]*/**/*.parquet")))
    assert compact(str(tmp_path), 1 << 30) == before > 6
    assert places(read_all(tmp_path, form)) == expected_places(store)
    assert compact(str(tmp_path), 1 << 30) == 0
    if form == "parquet":
        joined = list(tmp_path.glob("[!_]*/**/*.parquet"))
        assert len(joined) == 3
        said = pq.read_schema(joined[0]).metadata
        assert int(said[b"oberth.log.start"]) < 30_000 < int(said[b"oberth.log.end"])


def test_compaction_that_was_killed_is_finished(golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("basic-5.5.0")
    export(InProcess(), str(store.root), str(tmp_path), ExportSettings(), range_size=30_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            compact(str(tmp_path), 1 << 30)
    export(InProcess(), str(store.root), str(tmp_path), ExportSettings())
    assert places(read_all(tmp_path, "parquet")) == expected_places(store)


def test_a_compaction_that_is_done_does_not_come_back(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the file that the next one stages, so its end is on the disk before that begins."""
    commit, synced = tmp_path / "_oberth" / "commits" / "compaction.json", []

    def noting(path: str) -> None:
        sync_directory(path)
        synced.append((Path(path), commit.exists()))

    for topic in ("A", "A", "B", "B"):
        growing_store.append(topic, 0, b"x")
        export(InProcess(), str(growing_store.root), str(tmp_path), ExportSettings())
    monkeypatch.setattr("oberth.spark.pipelines.export.compaction.sync_directory", noting)
    assert compact(str(tmp_path), 1 << 20) == 4
    assert synced == [
        (tmp_path / "A", True), (commit.parent, False),
        (tmp_path / "B", True), (commit.parent, False),
    ]  # fmt: skip


def test_damage_is_an_error_or_a_report(golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("flipped-bit-5.5.0")
    settings = ExportSettings()
    with pytest.raises(DataLossError, match="46535"):
        export(InProcess(), str(store.root), str(tmp_path), settings)
    report = export(InProcess(), str(store.root), str(tmp_path), settings, skip_damage=True)
    assert len(report.skipped) == 1
    assert "46535" in report.skipped[0]
    assert sum(places(read_all(tmp_path, "parquet")).values()) == report.rows
    assert sum(expected_places(store).values()) == report.rows + 1


def test_refusals(golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("basic-5.5.0")
    wrong = [
        (ExportSettings("orc"), "allowed are parquet, delta, iceberg"),
        (ExportSettings(body="xml"), "allowed are raw, json, avro, protobuf"),
        (ExportSettings(exact=True, columns="value"), "an exact export has all columns"),
        (ExportSettings(partition_by=("date(tags)",)), "tags is no time"),
        (ExportSettings(partition_by=("x=day(timestamp)",)), "no function 'day'"),
        (ExportSettings(partition_by=("bucket(tags)",)), "take a number"),
        (ExportSettings(partition_by=("body.x",)), "no column 'body.x'"),
        (ExportSettings(partition_by=("properties",)), "is a map"),
        (ExportSettings(partition_by=("topic=tags",)), "'topic' is taken"),
        (ExportSettings(partition_by=("date timestamp",)), "allowed are COLUMN"),
        (ExportSettings(body="json"), "no body looked at is a JSON object"),
    ]
    for settings, message in wrong:
        with pytest.raises(OptionError, match=message):
            export(InProcess(), str(store.root), str(tmp_path / "no"), settings)
    export(InProcess(), str(store.root), str(tmp_path / "yes"), ExportSettings())
    with pytest.raises(OptionError, match="was begun with format='parquet'"):
        export(InProcess(), str(store.root), str(tmp_path / "yes"), ExportSettings("delta"))
    other = golden_pristine("batch-5.5.0")
    with pytest.raises(OptionError, match="holds the export of broker"):
        export(InProcess(), str(other.root), str(tmp_path / "yes"), ExportSettings())


UNHEEDED = [
    ("filter.tag", "red"), ("filter.sql", "a = 1"), ("subscribe", "A"), ("topic", "A"),
    ("subscribePattern", "A.*"), ("assign", '{"A": [0]}'), ("startingTimestamp", "1"),
    ("startingOffsets", "earliest"), ("endingOffsets", '{"A": {"0": 1}}'), ("endingTimestamp", "1"),
    ("sinceOffset", "1"), ("asOfOffset", "1"), ("asOfTimestamp", "1"), ("lake", "/lake"),
    ("includeUndelivered", "true"), ("columns", "value"), ("includeProperties", "true"),
    ("body", "json"), ("badBodies", "skip"), ("verifyCrc", "false"), ("failOnDataLoss", "false"),
    ("minPartitions", "8"), ("maxRecordsPerPartition", "10"), ("batchBytes", "1m"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNHEEDED)
def test_options_that_would_choose_rows_are_refused(
    growing_store: Any, tmp_path: Path, name: str, value: str
) -> None:
    growing_store.append("A", 0, b"x")
    into = tmp_path / "tables"
    proper = "subscribe" if name == "topic" else name
    said = f"{proper} does not go with an export of a store"
    for spelled in (name, name.upper()):
        with pytest.raises(OptionError, match=said):
            export(
                InProcess(), str(growing_store.root), str(into), ExportSettings(),
                options={spelled: value},
            )  # fmt: skip
    done = CliRunner().invoke(
        oberth,
        [
            "spark", "export", str(growing_store.root), "--into", str(into), "--master", "none://",
            "--option", f"{name}={value}",
        ],
    )  # fmt: skip
    assert isinstance(done.exception, OptionError)
    assert said in str(done.exception)
    assert not into.exists()


def test_options_that_an_export_of_a_store_heeds(growing_store: Any, tmp_path: Path) -> None:
    into = tmp_path / "tables"
    for number in range(4):
        growing_store.append("A", 0, b"%d" % number + bytes(800))
        growing_store.append("B", 0, b"other")
    options = {
        "brokerName": "other", "targetPartitionBytes": "1k", "storage.region": "here",
        "topic": "A",
    }  # fmt: skip
    settings = ExportSettings(topics=("A",))
    report = export(InProcess(), str(growing_store.root), str(into), settings, options=options)
    assert report.tables == Counter({"A": 4})
    files = sorted(into.glob("A/*.parquet"), key=lambda path: path.name)
    said = [pq.read_schema(path).metadata for path in files]
    assert {each[b"oberth.broker"] for each in said} == {b"other"}
    assert len(files) > 1
    assert all(
        int(each[b"oberth.log.end"]) - int(each[b"oberth.log.start"]) <= 1024 for each in said
    )
    for topics in ("B", "A,B", ""):
        with pytest.raises(OptionError, match="subscribe does not go with an export of a store"):
            export(
                InProcess(), str(growing_store.root), str(into), settings,
                options={"subscribe": topics},
            )  # fmt: skip
    with pytest.raises(OptionError, match=r"unknown option 'filter\.tags'; the nearest"):
        export(
            InProcess(), str(growing_store.root), str(tmp_path / "no"), ExportSettings(),
            options={"filter.tags": "a"},
        )  # fmt: skip


NONE = "__HIVE_DEFAULT_PARTITION__"
LONG = "订" * 30


def test_a_value_that_its_directory_does_not_say_is_in_the_files_metadata(
    growing_store: Any, tmp_path: Path
) -> None:
    """Also of joined files; a tag that is called like the directory of another one is another."""
    into = tmp_path / "lake"
    named = unquote(directory_of("", LONG)[1:])
    settings = ExportSettings(partition_by=("tags", "key"))
    tags, keys = [LONG, named, NONE, "a_b", ""], ["", "k", "", "", "k"]
    for number in range(3):
        for tag, key in zip(tags, keys, strict=True):
            growing_store.append("A", 0, b"%d" % number, tags=tag, keys=key)
        export(InProcess(), str(growing_store.root), str(into), settings)
    assert len({path.parent.parent for path in into.glob("A/*/*/*.parquet")}) == 4
    assert compact(str(into), 1 << 20) == 15
    rows = read_all(into, "parquet")
    assert Counter(row["value"] for row in rows) == Counter([b"0", b"1", b"2"] * 5)
    # As pandas reads it: types of directories and of all files have to agree.
    table = pq.read_table(into / "A")
    assert table.num_rows == 15
    shown = Counter(table.column("tags").to_pylist())
    assert shown == Counter({named: 6, unquote(directory_of("", NONE)[1:]): 3, "a_b": 3, None: 3})
    found = []
    for path in into.glob("A/*/*/*.parquet"):
        below = str(path.relative_to(into / "A"))
        values = whole_values(values_of(below), pq.read_schema(path).metadata)
        assert {"tags", "key"}.isdisjoint(pq.read_schema(path).names)
        found.append((values["tags"], pq.read_metadata(path).num_rows))
    assert Counter(found) == Counter([(tag or None, 3) for tag in tags])


@pytest.mark.parametrize(
    "text", [LONG, "a" * 148 + "订" * 20, "a" * 149 + "订" * 20, "a" + "é" * 40]
)
def test_directories_of_older_exports_get_names_that_can_be_read(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Their names could end within a character, for which DuckDB and pyarrow refuse all of it."""
    into = tmp_path / "lake"
    settings = ExportSettings(partition_by=("tags", "key"))

    def older(name: str, value: str | None) -> str:
        quoted = NONE if value is None else quote(value, safe="")
        digest = hashlib.sha256(quoted.encode()).hexdigest()[:16]
        return f"{name}={quoted if len(quoted) <= 200 else f'{quoted[:150]}-{digest}'}"

    for number in range(2):
        with monkeypatch.context() as patch:
            if not number:
                patch.setattr(rows_module, "directory_of", older)
                patch.setattr(rows_module, "partition_metadata", lambda _: {})
            for tag in (text, "a"):
                growing_store.append("A", 0, b"%d" % number, tags=tag, keys="k%2F")
            export(InProcess(), str(growing_store.root), str(into), settings)
    former = into / "A" / older("tags", text)
    assert former.exists()
    real = {name: getattr(os, name) for name in ("replace", "unlink", "removedirs")}
    left = [0]

    def step(name: str, *args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        real[name](*args)

    joined = None
    for kill in count():
        left[0] = kill
        with monkeypatch.context() as patch, suppress(Killed):
            for name in real:
                patch.setattr(os, name, partial(step, name))
            joined = compact(str(into), 1)
        present = list_files(settings, Ledger(place_of(str(into), {}, "into")))["A"]
        assert len({Path(path).name for path in present}) == len(present) == 4, kill
        if joined is not None:
            break
    assert joined == 0
    assert not list(former.rglob("*.parquet"))
    rows = read_all(into, "parquet")
    assert Counter(row["value"] for row in rows) == Counter([b"0", b"0", b"1", b"1"])
    assert pq.read_table(into / "A").num_rows == 4
    assert len({row["tags"] for row in rows}) == 2
    # What the older one does not say is not said of it by being joined.
    assert compact(str(into), 1 << 20) == 2


@pytest.mark.parametrize(("form", "joined"), [("parquet", 12), ("delta", 9), ("iceberg", 12)])
def test_a_value_too_long_for_a_directory_keeps_no_files_apart(
    growing_store: Any, tmp_path: Path, form: str, joined: int
) -> None:
    """Delta's own compaction makes directories of values; those of such a one stay as they are."""
    into = tmp_path / "lake"
    tags, settings = ["订" * 30, "a", None, "b"], ExportSettings(form, partition_by=("tags",))
    for number in range(3):
        for tag in tags:
            growing_store.append("A", 0, b"%d" % number, tags=tag or "")
        export(InProcess(), str(growing_store.root), str(into), settings)
    assert compact(str(into), 1 << 20) == joined
    assert compact(str(into), 1 << 20) == 0
    rows = read_all(into, form)
    assert Counter(row["value"] for row in rows) == Counter([b"0", b"1", b"2"] * 4)
    if form != "parquet":
        assert Counter(row["tags"] for row in rows) == Counter(tags * 3)


def test_table_names() -> None:
    assert table_name("orders-eu") == "orders-eu"
    assert table_name("%RETRY%g") == "+25RETRY+25g"
    assert table_name("_hidden") == "+5Fhidden"
    assert table_name("a/b") == "a+2Fb"


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("batch-5.5.0")
    done = CliRunner().invoke(
        oberth,
        [
            "spark", "export", str(store.root), "--into", str(tmp_path / "tables"), "--format",
            "delta", "--partition-by", "month=month(timestamp)", "--json",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    expected = expected_places(store)
    assert json.loads(done.stdout)["rows"] == sum(expected.values())
    assert places(read_all(tmp_path / "tables", "delta")) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_notes_its_position_where_a_broker_waits_for_it(
    growing_store: Any, tmp_path: Path, form: str
) -> None:
    root, into = str(growing_store.root), str(tmp_path / "lake")
    files, lake, more = OsFileSystem(), lake_name(into), f"/elsewhere,{into}/"

    def position() -> int:
        waited = awaited_lake(files, root, into, 1 << 40)
        assert waited is not None
        return waited.position

    growing_store.append("A", 0, b"x")
    export(InProcess(), root, into, ExportSettings(form))
    assert not (growing_store.root / "oberth").exists(), "nobody waits, nothing is written"
    make_directory(files, root)
    assert position() == NOTHING
    export(InProcess(), root, into, ExportSettings(form))  # with nothing new
    first = position()
    assert first > 0
    growing_store.append("A", 0, b"y")

    def killed(step: str) -> None:
        if step == "finish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(InProcess(), root, into, ExportSettings(form), step=killed)
    assert position() == first, "the tables' ledger does not say yet that they have it"
    export(InProcess(), root, into, ExportSettings(form))
    assert position() == 2 * first
    assert lake in lake_names(more)
    assert awaited_lake(files, root, more, 1 << 40) == ("/elsewhere", NOTHING)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_batch_asks_for_the_tables_that_it_touches(
    make_store: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A batch of one topic opens as many tables with four topics in the export as with twelve."""
    asked: Counter[str] = Counter()
    opened, loaded, is_table = DeltaTable.__init__, SqlCatalog.load_table, DeltaTable.is_deltatable

    def counting_open(self: DeltaTable, *args: Any, **options: Any) -> None:
        asked["opened"] += 1
        opened(self, *args, **options)

    def counting_load(self: SqlCatalog, *args: Any, **options: Any) -> Any:
        asked["opened"] += 1
        return loaded(self, *args, **options)

    def counting_look(*args: Any, **options: Any) -> bool:
        asked["looked"] += 1
        return is_table(*args, **options)

    found = []
    for topics in (4, 12):
        store = make_store(tmp_path / f"store-{topics}")
        into = str(tmp_path / f"lake-{topics}")
        for number in range(topics):
            store.append(f"T{number}", 0, b"x")
        export(InProcess(), str(store.root), into, ExportSettings(form))
        store.append("T0", 0, b"more")
        asked.clear()
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "__init__", counting_open)
            patched.setattr(DeltaTable, "is_deltatable", counting_look)
            patched.setattr(SqlCatalog, "load_table", counting_load)
            report = export(InProcess(), str(store.root), into, ExportSettings(form))
        assert report.rows == 1
        assert asked["opened"] > 0
        found.append(dict(asked))
    assert found[0] == found[1]


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_is_on_the_disk_before_it_is_done(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """At the step "finish" each file of the tables was synced as it is now, and so was its name."""
    into = tmp_path / "above" / "lake"
    synced: dict[tuple[int, int], tuple[int, int, set[str]]] = {}
    real = os.fsync

    def key(path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def noting(fd: int) -> None:
        real(fd)
        found, path = os.fstat(fd), f"/proc/self/fd/{fd}"
        names = {*os.listdir(path)} if os.path.isdir(path) else set()
        synced[found.st_dev, found.st_ino] = (found.st_mtime_ns, found.st_size, names)

    looks = []

    def step(name: str) -> None:
        if name != "finish":
            return
        looks.append(name)
        assert "above" in synced[key(str(tmp_path))][2]
        assert "lake" in synced[key(str(into.parent))][2]
        for below, directories, names in os.walk(into):
            inside = [*directories, *names]
            if below == str(into):
                directories[:] = [each for each in directories if each != "_oberth"]
                inside, names = directories, []  # SQLite syncs its database itself
            assert synced[key(below)][2].issuperset(inside), below
            for each in names:
                path = os.path.join(below, each)
                found = os.stat(path)
                assert synced[key(path)][:2] == (found.st_mtime_ns, found.st_size), path

    monkeypatch.setattr(os, "fsync", noting)
    settings = ExportSettings(form, partition_by=("tags",))
    for round_ in range(3):
        for topic in ("A", "B") if round_ else ("A",):
            growing_store.append(topic, 0, b"x", tags="red")
        export(InProcess(), str(growing_store.root), str(into), settings, step=step)
        if round_:
            assert compact(str(into), 1 << 20)
    assert len(looks) == 3

    def killed(*_: Any) -> None:
        raise Killed

    if form == "delta":  # the table has the batch, and its library's files are not synced
        growing_store.append("A", 0, b"y", tags="red")
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTables, "_sync", killed)
            with pytest.raises(Killed):
                export(InProcess(), str(growing_store.root), str(into), settings, step=step)
        export(InProcess(), str(growing_store.root), str(into), settings, step=step)
        assert len(looks) == 4


def test_a_log_that_was_cut_and_written_on_is_not_exported_on(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    """What a crash took from the log is in the tables; what came in its place would be missing."""
    first, second = make_store(tmp_path / "a" / "broker"), make_store(tmp_path / "b" / "broker")
    into = str(tmp_path / "lake")
    for store, last in ((first, b"taken"), (second, b"later")):
        for number in range(4):
            store.append("A", 0, b"%d" % number)
        store.append("A", 0, last)
    export(InProcess(), str(first.root), into, ExportSettings())
    with pytest.raises(DataLossError, match="is not what was exported"):
        export(InProcess(), str(second.root), into, ExportSettings())
    second.append("A", 0, b"more")
    with pytest.raises(DataLossError, match="cut after a crash and written on"):
        export(InProcess(), str(second.root), into, ExportSettings())
    first.append("A", 0, b"more")
    assert export(InProcess(), str(first.root), into, ExportSettings()).rows == 1


def test_a_broker_does_not_rely_on_tables_that_lack_its_log(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    """They were removed and begun again, or the log was cut after a crash and written on."""
    first, second = make_store(tmp_path / "a" / "broker"), make_store(tmp_path / "b" / "broker")
    into, files = tmp_path / "lake", OsFileSystem()
    make_directory(files, str(first.root))
    for store, last in ((first, b"taken"), (second, b"later")):
        store.append("A", 0, last)

    def position(store: Any) -> int:
        waited = awaited_lake(files, str(store.root), str(into), 1 << 40)
        assert waited is not None
        return waited.position

    def killed(step: str) -> None:
        if step == "write":
            raise Killed

    export(InProcess(), str(first.root), str(into), ExportSettings())
    end = position(first)
    assert end > 0
    shutil.rmtree(into)
    with pytest.raises(Killed):
        export(InProcess(), str(first.root), str(into), ExportSettings(), step=killed)
    assert position(first) == NOTHING
    export(InProcess(), str(first.root), str(into), ExportSettings())
    assert position(first) == end
    shutil.copytree(first.root / "oberth", second.root / "oberth")
    assert position(second) == end
    with pytest.raises(DataLossError, match="is not what was exported"):
        export(InProcess(), str(second.root), str(into), ExportSettings())
    assert position(second) == NOTHING
