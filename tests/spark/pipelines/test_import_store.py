"""Store → tables → store gives the same CommitLog, byte for byte, and the queues that follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.errors import (
    DataLossError,
    OptionError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
)
from oberth.formats.message import MessageExt
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.spark.calendar import TIME_MAX_MS, TIME_MIN_MS
from oberth.spark.lake import open_lake
from oberth.spark.pipelines.audit import audit_export
from oberth.spark.pipelines.export.compaction import compact
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.ledger import BATCHES_KEPT, Ledger
from oberth.spark.pipelines.export.places import LocalPlace
from oberth.spark.pipelines.export.settings import FORMATS, ExportSettings
from oberth.spark.pipelines.import_store import export_files, import_store
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.log_walk import walk
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]
# One of each: every record, blank, host form, batch, transaction and topic length.
STORES = [
    "basic-5.5.0", "batch-4.9.7", "cleaned-5.5.0", "compressed-5.5.0", "innerbatch-5.5.0",
    "ipv6-4.9.7", "lmq-5.5.0", "longtopic-5.5.0", "propcrc-5.5.0", "trans-5.5.0", "client-4.9.7",
]  # fmt: skip


def log_bytes(root: Path) -> tuple[int, bytes]:
    """Where the log starts, and its bytes up to its end."""
    with StoreReader(root) as reader:
        start, end = reader.min_offset, reader.max_offset
    files = sorted((root / "commitlog").iterdir())
    whole = b"".join(path.read_bytes() for path in files)
    return start, whole[: end - start]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_round_trip(golden_pristine: Golden, tmp_path: Path, name: str, form: str) -> None:
    store = golden_pristine(name)
    settings = ExportSettings(form, exact=True, one_table=form == "delta")
    export(InProcess(), str(store.root), str(tmp_path / "out"), settings, range_size=50_000)
    compact(str(tmp_path / "out"), 200_000) if form == "parquet" else None
    report = import_store(
        InProcess(), str(tmp_path / "out"), str(tmp_path / "again"), part_size=30_000,
        entries=entries_of(store),
    )  # fmt: skip
    assert log_bytes(tmp_path / "again") == log_bytes(store.root)
    assert report.records == len(store.facts["messages"])
    with StoreReader(tmp_path / "again", entries_of(store)) as reader:
        assert verify(reader).clean


def entries_of(store: Any) -> dict[str, str]:
    wanted = ("enableLmq", "enableMultiDispatch", "messageDelayLevel")
    return {name: value for name, value in store.config.items() if name in wanted}


class Meanwhile(InProcess):
    """Something happens while its first step runs."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def run(self, *args: Any, **options: Any) -> Any:
        done = super().run(*args, **options)
        action, self.action = self.action, lambda: None
        action()
        return done


def test_of_two_imports_into_one_store_the_second_is_refused(
    golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine("basic-5.5.0")
    source, target = str(tmp_path / "out"), str(tmp_path / "again")
    export(InProcess(), str(store.root), source, ExportSettings(exact=True))
    refused = []

    def second() -> None:
        with pytest.raises(StoreLockedError) as caught:
            import_store(InProcess(), source, target)
        refused.append(caught)

    report = import_store(Meanwhile(second), source, target)
    assert report.records == len(store.facts["messages"])
    assert log_bytes(Path(target)) == log_bytes(store.root)
    assert len(refused) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


def test_a_store_that_is_made_during_an_import_is_left(
    golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine("basic-5.5.0")
    source, target = str(tmp_path / "out"), tmp_path / "again"
    export(InProcess(), str(store.root), source, ExportSettings(exact=True))

    def broker() -> None:
        target.mkdir()
        (target / "lock").touch()

    with pytest.raises(StoreLockedError, match="another writer or a broker has made it"):
        import_store(Meanwhile(broker), source, str(target))
    assert [path.name for path in target.iterdir()] == ["lock"]


def test_refusals(golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("batch-5.5.0")
    export(InProcess(), str(store.root), str(tmp_path / "readable"), ExportSettings())
    with pytest.raises(OptionError, match="is no exact export"):
        import_store(InProcess(), str(tmp_path / "readable"), str(tmp_path / "again"))
    with pytest.raises(OptionError, match="holds no export"):
        import_store(InProcess(), str(store.root), str(tmp_path / "again"))
    exact = ExportSettings(exact=True)
    export(InProcess(), str(store.root), str(tmp_path / "out"), exact, range_size=10_000)
    with pytest.raises(StoreError, match="not empty"):
        import_store(InProcess(), str(tmp_path / "out"), str(store.root))
    files = sorted((tmp_path / "out").glob("[!_]*/*.parquet"))
    files[len(files) // 2].unlink()
    with pytest.raises(StoreCorruptError, match="the export wrote"):
        import_store(InProcess(), str(tmp_path / "out"), str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_who_may_not_delete_keeps_older_batches(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A role of an object store often may write and not delete: the batch is done all the same."""
    monkeypatch.setattr("oberth.spark.pipelines.export.ledger.BATCHES_KEPT", 1)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr(LocalPlace, "remove", refused)
    for count in (1, 2, 3):
        growing_store.append("A", 0, b"x")
        report = export(InProcess(), str(growing_store.root), str(tmp_path), ExportSettings())
        assert report.batches == 1
        ledger = Ledger(LocalPlace(str(tmp_path)))
        assert ledger.rows() == count
        assert len(ledger.names("batches")) == 2 * count
    assert caplog.text.count("older batches stay in the ledger: [Errno 13] Access Denied") == 1


@pytest.mark.parametrize("exact", [False, True])
def test_the_ledger_of_many_batches_stays_small(
    growing_store: Any, tmp_path: Path, exact: bool
) -> None:
    """Also one that was begun when all batches stayed; the export is whole for all who read it."""
    root, into = str(growing_store.root), tmp_path / "out"
    ledger, settings = Ledger(LocalPlace(str(into))), ExportSettings(exact=exact)

    def grow(count: int) -> None:
        for _ in range(count):
            growing_store.append("A", 0, b"x")
            assert export(InProcess(), root, str(into), settings).batches == 1

    def names() -> list[str]:
        return [*ledger.names("batches"), *ledger.names("commits")]

    grow(3)
    for name in ledger.names("batches"):
        if name.endswith(".done"):  # as it was written when all batches stayed
            report = ledger.read(f"batches/{name}")
            assert report is not None
            assert report.pop("total") == int(name[:8]) + 1
            ledger.write(f"batches/{name}", report)
            ledger.write(f"commits/{name[:8]}.json", {"files": [], "rows": 1})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("oberth.spark.pipelines.export.ledger.BATCHES_KEPT", 4)
        grow(17)
        assert names() == [f"{n:08d}.{x}" for n in range(16, 20) for x in ("done", "json")]
    grow(180)
    assert len(names()) == 2 * BATCHES_KEPT
    kept = {name: ledger.read(f"batches/{name}") for name in ledger.names("batches")}
    assert ledger.rows() == 200
    assert export(InProcess(), root, str(into), settings).batches == 0
    assert {name: ledger.read(f"batches/{name}") for name in ledger.names("batches")} == kept
    last, _ = ledger.last_batch()
    assert last is not None
    assert open_lake(str(into)).end == last.end
    if exact:
        assert import_store(InProcess(), str(into), str(tmp_path / "again")).records == 200
        assert log_bytes(tmp_path / "again") == log_bytes(growing_store.root)


ODD_TIMES = [1_700_000_000_000_000_000, -1, TIME_MAX_MS + 1, TIME_MIN_MS - 1, 2**63 - 1, -(2**63)]


def with_odd_times(root: Path) -> list[int]:
    """Adds messages whose producers name odd times, among ordinary ones; gives where all begin."""
    config = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(root), "mappedFileSizeCommitLog": "65536", "maxIndexNum": "100"}
    )
    with MessageStore(config) as store:
        for born in (1_700_000_000_123, *ODD_TIMES):
            message = MessageExtBrokerInner.of("t", b"x", queue_id=0)
            message.born_timestamp = born
            assert store.put_message(message).ok
    with StoreReader(root) as reader:
        found = [each for each in walk(reader.log) if isinstance(each, MessageExt)]
    assert [each.born_timestamp for each in found[1:7]] == ODD_TIMES
    return [each.commit_log_offset for each in found]


@pytest.mark.parametrize("form", FORMATS)
def test_times_that_no_calendar_has(tmp_path: Path, form: str) -> None:
    """They come back as they were, the tables' timestamps are null, and both are one row's."""
    root, out = tmp_path / "store", tmp_path / "out"
    settings = ExportSettings(form, exact=True, partition_by=("day=date(bornTimestamp)",))
    places: list[int] = []
    for _ in range(2):
        places = with_odd_times(root)
        export(InProcess(), str(root), str(out), settings)
    if form == "parquet":  # joined files of the others do not say their range
        assert compact(str(out), 1 << 20)
    files = [file.path for file in export_files(str(out))[0]]
    tables = [pq.ParquetFile(path).read() for path in files]
    rows = sorted(
        (row["physicalOffset"], row["bornTimestamp"], row["bornTimestampMillis"])
        for table in tables
        for row in table.select(["physicalOffset", "bornTimestamp", "bornTimestampMillis"])
        .to_pylist()
    )  # fmt: skip
    assert [row[0] for row in rows] == places
    assert [odd for _, _, odd in rows[:7]] == [None, ODD_TIMES[0], None, *ODD_TIMES[2:]]
    assert all((time is None) == (odd is not None) for _, time, odd in rows)
    assert audit_export(InProcess(), str(root), str(out)).equal
    import_store(InProcess(), str(out), str(tmp_path / "again"))
    assert log_bytes(tmp_path / "again") == log_bytes(root)


def test_a_store_time_that_no_calendar_has(growing_store: Any, tmp_path: Path) -> None:
    for number, time in enumerate((1_700_000_000_123, *ODD_TIMES)):
        growing_store.append("T", 0, b"%d" % number, time=time)
    out = str(tmp_path / "out")
    export(InProcess(), str(growing_store.root), out, ExportSettings(exact=True))
    assert audit_export(InProcess(), str(growing_store.root), out).equal
    import_store(InProcess(), out, str(tmp_path / "again"))
    assert log_bytes(tmp_path / "again") == log_bytes(growing_store.root)


def begin_as_before(into: Path, broker: str) -> ExportSettings:
    """Begins an exact export as it was before it had columns for odd times."""
    settings = ExportSettings(exact=True)
    ledger = Ledger(LocalPlace(str(into)))
    (into / "_oberth" / "batches").mkdir(parents=True)
    ledger.begin(settings, {"broker": broker, "path": ""})
    values = ledger.read("settings.json")
    assert values is not None
    del values["settings"]["odd_times"]
    ledger.write("settings.json", values)
    return settings


def test_an_export_without_columns_for_odd_times_goes_on(
    growing_store: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = begin_as_before(out, "broker-g")
    for _ in range(2):
        growing_store.append("T", 0, b"a", time=1_700_000_000_123)
        assert export(InProcess(), str(growing_store.root), str(out), settings).rows == 1
    assert audit_export(InProcess(), str(growing_store.root), str(out)).equal
    import_store(InProcess(), str(out), str(tmp_path / "again"))
    assert log_bytes(tmp_path / "again") == log_bytes(growing_store.root)
    place = len(log_bytes(growing_store.root)[1])
    growing_store.append("T", 0, b"b", time=ODD_TIMES[0])
    for skip_damage in (False, True):  # it is no damage
        with pytest.raises(DataLossError, match=f"CommitLog {place} .topic T.*another directory"):
            export(
                InProcess(), str(growing_store.root), str(out), settings, skip_damage=skip_damage
            )


@pytest.mark.parametrize("form", FORMATS)
def test_a_partition_column_takes_no_column_from_the_records(
    growing_store: Any, tmp_path: Path, form: str
) -> None:
    for number in range(4):
        growing_store.append("AB"[number % 2], 0, b"%d" % number, tags="t")
    root = str(growing_store.root)
    for expression, instead in (
        ("partition", "by_partition=partition"), ("topic = lower(topic)", "by_topic=lower(topic)"),
        ("value", "by_value=value"), *(() if form == "iceberg" else [("topic", "by_topic=topic")]),
    ):  # fmt: skip
        settings = ExportSettings(form, exact=True, partition_by=("tags", expression))
        with pytest.raises(OptionError, match=f"another name: {re.escape(instead)}$"):
            export(InProcess(), root, str(tmp_path / "no"), settings)
        assert not list((tmp_path / "no").rglob("*.*"))
    text = "topic" if form == "iceberg" else "offsetMsgId"  # Iceberg's files keep it
    for number, expression in enumerate(("t=topic", "by_partition=partition", "tags", text)):
        settings = ExportSettings(form, exact=True, partition_by=(expression,))
        out, again = tmp_path / f"out-{number}", tmp_path / f"again-{number}"
        assert export(InProcess(), root, str(out), settings).rows == 4
        import_store(InProcess(), str(out), str(again))
        assert log_bytes(again) == log_bytes(growing_store.root)


def test_an_exact_export_that_was_begun_without_a_column_goes_on(
    growing_store: Any, tmp_path: Path
) -> None:
    """Its tables may be read by others; what it was not begun for is said by `import`."""
    settings = ExportSettings(exact=True, partition_by=("topic",))
    ledger = Ledger(LocalPlace(str(tmp_path / "out")))
    (tmp_path / "out" / "_oberth" / "batches").mkdir(parents=True)
    ledger.begin(replace(settings, odd_times=True), {"broker": "broker-g", "path": ""})
    growing_store.append("A", 0, b"a")
    out = str(tmp_path / "out")
    assert export(InProcess(), str(growing_store.root), out, settings).rows == 1
    with pytest.raises(StoreCorruptError, match="lacks the column topic"):
        import_store(InProcess(), out, str(tmp_path / "again"))


def test_a_row_without_its_time_is_no_record(growing_store: Any, tmp_path: Path) -> None:
    """Exports wrote such rows before they had columns for odd times."""
    out = tmp_path / "out"
    settings = begin_as_before(out, "broker-g")
    growing_store.append("T", 0, b"a")
    growing_store.append("T", 0, b"b")
    export(InProcess(), str(growing_store.root), str(out), settings)
    [path] = out.glob("T/*.parquet")
    table = pq.ParquetFile(path).read()
    second = table.column("physicalOffset")[1].as_py()
    index = table.schema.get_field_index("bornTimestamp")
    times = pc.if_else(pa.array([True, False]), table.column(index), None)
    pq.write_table(table.set_column(index, table.schema.field(index), times), path)
    said = f"the record at CommitLog {second} has no bornTimestamp"
    with pytest.raises(StoreCorruptError, match=said):
        import_store(InProcess(), str(out), str(tmp_path / "again"))
    with pytest.raises(StoreCorruptError, match=said):
        audit_export(InProcess(), str(growing_store.root), str(out))


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("trans-4.9.7")
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    done = CliRunner().invoke(
        oberth, ["spark", "export", str(store.root), "--into", out, "--exact"]
    )
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(oberth, ["spark", "import", out, "--into", again])
    assert done.exit_code == 0, done.output
    assert log_bytes(tmp_path / "again") == log_bytes(store.root)
