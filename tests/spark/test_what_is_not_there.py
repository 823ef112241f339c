"""Commands of Spark's before what only a session finds missing: an error in words, exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.rigs.read_only import read_only

from oberth.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]

pytestmark = pytest.mark.spark

CASES: Final[dict[str, tuple[list[str], str]]] = {
    "dispatch into": (["dispatch", "STORE", "--into", "BELOW"], "CLOSED"),
    "dispatch scratch": (["dispatch", "STORE", "--into", "NEW", "--scratch", "BELOW"], "CLOSED"),
    "verify scratch": (["verify", "STORE", "--scratch", "BELOW"], "CLOSED"),
    "salvage into": (["salvage", "STORE", "--into", "BELOW"], "CLOSED"),
    "export into": (["export", "STORE", "--into", "BELOW"], "CLOSED"),
    "sql parquet": (["sql", "--store", "STORE", "--parquet", "BELOW", "select 1"], "CLOSED"),
    "dlq where": (["dlq", "STORE", "--where", "nonsense("], "PARSE_SYNTAX_ERROR"),
    "redrive where": (["redrive", "STORE", "--into", "NEW", "--where", "a = 1"], "`a`"),
}
"""By name a command and what its error names. STORE is a store, NEW a directory that is not there,
CLOSED one that cannot be written, BELOW a path in it."""


@pytest.mark.parametrize("name", CASES)
def test_an_error_in_words(
    spark: SparkSession,
    golden_pristine: Golden,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    (closed := tmp_path / "closed").mkdir()
    known = {
        "STORE": str(golden_pristine("basic-5.5.0").root),
        "NEW": str(tmp_path / "new"),
        "CLOSED": str(closed),
        "BELOW": str(closed / "new"),
    }
    words, named = CASES[name]
    with read_only(closed), pytest.raises(SystemExit) as ended:
        main(["spark", *(known.get(each, each) for each in words)])
    err = capsys.readouterr().err
    assert ended.value.code == 2, err
    assert "Traceback" not in err
    assert "JVM" not in err
    assert known.get(named, named) in err
