"""Every command of `oberth spark` in both forms, for people and as JSON."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet
import pytest
from tests.rigs.described_json import check_described

from oberth.cli.main import main
from oberth.cli.spark import COMMANDS
from oberth.spark.pipelines.backfill import PublishReport
from oberth.spark.pipelines.migrate import MigrateReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]

CASES: Final[dict[str, list[str]]] = {
    "sql": ["--store", "STORE", "select count(*) as n from all_messages"],
    "dispatch": ["STORE", "--into", "NEW"],
    "verify": ["STORE"],
    "audit": ["STORE", "STORE"],
    "export": ["STORE", "--into", "NEW"],
    "import": ["EXACT", "--into", "NEW"],
    "stats": ["STORE"],
    "dlq": ["STORE"],
    "redrive": ["STORE", "--into", "NEW"],
    "salvage": ["STORE", "--into", "NEW"],
}
"""By command: arguments. EXACT is an export, NEW a directory that is not there."""

ELSEWHERE: Final = {"migrate", "publish"}
"""They take a live broker, and `migrate` a node of Kafka: tests of their own run them."""


def test_every_command_is_here() -> None:
    assert set(CASES) | ELSEWHERE == set(COMMANDS)


@pytest.mark.spark
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", CASES)
def test_in_both_forms(
    spark: SparkSession,
    golden_pristine: Golden,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    form: str,
) -> None:
    known = {
        "STORE": str(golden_pristine("retry-5.5.0").root),
        "NEW": str(tmp_path / "new"),
        "EXACT": str(tmp_path / "exact"),
    }

    def run(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["spark", *(known.get(each, each) for each in words)])
        return (ended.value.code or 0, *capsys.readouterr())

    if "EXACT" in CASES[name]:
        assert run("export", "STORE", "--into", "EXACT", "--exact")[0] == 0
    code, out, err = run(name, *CASES[name], *(["--json"] if form == "json" else []))
    assert code == 0, err
    assert "Traceback" not in err
    if form == "text":
        assert out or err
    elif name == "sql":
        assert [json.loads(line) for line in out.splitlines()] == [{"n": 40}]
    else:
        check_described(f"spark {name}", out)


@pytest.mark.parametrize(
    ("name", "report"), [("migrate", MigrateReport), ("publish", PublishReport)]
)
def test_reports_of_commands_that_run_elsewhere(
    name: str, report: type[MigrateReport | PublishReport]
) -> None:
    check_described(f"spark {name}", json.dumps(report().to_json()))


@pytest.mark.spark
def test_times_of_rows_have_a_zone(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], golden_pristine: Golden
) -> None:
    root = str(golden_pristine("retry-5.5.0").root)
    statement = """select timestamp_millis(1) as t, array(timestamp_millis(2)) as a,
        timestamp_ntz'2026-01-01 00:00:00' as n, map('k', struct(date'2026-01-01' as d)) as m"""
    with pytest.raises(SystemExit) as ended:
        main(["spark", "sql", "--store", root, "--json", statement])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out) == {
        "t": "1970-01-01T00:00:00.001000Z",
        "a": ["1970-01-01T00:00:00.002000Z"],
        "n": "2026-01-01T00:00:00",
        "m": {"k": {"d": "2026-01-01"}},
    }


STATEMENTS: Final = """
set oberth.test=1;
create temporary view one_row as select 1 as n;
show tables;
describe one_row;
-- set is no query, this is one:
select n from one_row;
set oberth.test;
select 2 as n;
"""


@pytest.mark.spark
def test_a_parquet_file_has_the_rows_of_one_query(
    spark: SparkSession,
    golden_pristine: Golden,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the last one took the place of all others without a word."""
    root, path = str(golden_pristine("retry-5.5.0").root), tmp_path / "rows.parquet"
    monkeypatch.setattr(sys, "stdin", io.StringIO(STATEMENTS))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["spark", "sql", "--store", root, "--parquet", str(path)])
    finally:
        spark.catalog.dropTempView("one_row")
        spark.conf.unset("oberth.test")
    assert ended.value.code == 2
    assert "takes the rows of one query" in capsys.readouterr().err
    assert pyarrow.parquet.read_table(path).to_pylist() == [{"n": 1}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.spark
def test_a_parquet_file_of_no_query_is_missed(
    spark: SparkSession,
    golden_pristine: Golden,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What has rows and is no query does not end as if its rows were there."""
    root, path = str(golden_pristine("retry-5.5.0").root), tmp_path / "rows.parquet"
    with pytest.raises(SystemExit) as ended:
        main(["spark", "sql", "--store", root, "--parquet", str(path), "show tables"])
    assert ended.value.code == 2
    assert "no statement was a query" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
def test_half_a_parquet_file_is_none(
    spark: SparkSession,
    golden_pristine: Golden,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_half(table: Any, where: Any) -> None:
        where.write(b"PAR1")
        where.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pyarrow.parquet, "write_table", write_half)
    root, path = str(golden_pristine("retry-5.5.0").root), tmp_path / "rows.parquet"
    with pytest.raises(SystemExit) as ended:
        main(["spark", "sql", "--store", root, "--parquet", str(path), "select 1"])
    assert ended.value.code == 2
    assert f"{path}: no room" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
