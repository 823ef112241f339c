"""Store → tables → store gives the same CommitLog, byte for byte, and the queues that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.errors import OptionError, StoreCorruptError, StoreError
from oberth.spark.pipelines.export.compaction import compact
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.import_store import import_store
from oberth.spark.pipelines.tasks import InProcess
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
