"""The distributed check finds what `oberth store verify` finds, in the same order."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rigs.damage import foreign_bytes

from oberth.cli.main import oberth
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.verify import findings_frame, verify
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify as verify_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]


def check(root: Path, entries: dict[str, str] | None, range_size: int) -> None:
    with StoreReader(root, entries) as reader:
        expected = verify_here(reader).to_json()
    found = verify(InProcess(), str(root), entries=entries, range_size=range_size).to_json()
    assert found == expected


def entries_of(store: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in store.config.items()
        if "Path" not in name or "CommitLog" in name
    }


def test_golden_stores(golden_name: str, golden_pristine: Golden) -> None:
    store = golden_pristine(golden_name)
    range_size = 1 << 28 if golden_name.startswith("defaults") else 20_000
    check(store.root, entries_of(store), range_size)


@settings(max_examples=20)
@example(damage=[(447, b"\x01")], range_size=5000)
@given(
    damage=foreign_bytes(10_000_000, 2000),
    range_size=st.integers(5000, 200_000),
)
def test_damage_anywhere(
    golden_pristine: Golden,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, bytes]],
    range_size: int,
) -> None:
    """Foreign bytes in any file of log, queues and index."""
    base = tmp_path_factory.mktemp("damaged")
    root = base / "store"
    shutil.copytree(golden_pristine("crash-5.5.0").root, root)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size > 9]
    for number, data in damage:
        path = files[number % len(files)]
        with path.open("r+b") as file:
            file.seek(number // len(files) % max(1, path.stat().st_size - len(data)))
            file.write(data)
    check(root, None, range_size)
    shutil.rmtree(base)


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden) -> None:
    store = golden_pristine("flipped-bit-5.5.0")
    arguments = ["spark", "verify", str(store.root), "--json"]
    done = CliRunner().invoke(oberth, arguments)
    assert done.exit_code == 1
    with StoreReader(store.root) as reader:
        report = verify_here(reader)
    assert json.loads(done.stdout) == report.to_json()
    rows = findings_frame(spark, report).where("severity = 'damage'").collect()
    assert [(row.kind, row.commitLogOffset) for row in rows] == [("record-crc", 46535)]


@pytest.mark.parametrize("name", ["4-5-4", "4-ours-5-4-5", "5-4-ours"])
@pytest.mark.parametrize("range_size", [3000, 1 << 20])
def test_stores_of_mixed_lines(name: str, range_size: int, tmp_path: Path) -> None:
    """Tags are in the Index in stretches; each task finds out for its own range."""
    mixed = Path(__file__).parents[2] / "golden" / "mixed"
    with tarfile.open(mixed / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = verify(InProcess(), str(tmp_path / name), range_size=range_size)
    assert found.clean, [str(each) for each in found.damage]
    check(tmp_path / name, None, range_size)
