"""Every command of `oberth spark` in both forms, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from oberth.cli.main import main
from oberth.cli.spark import COMMANDS

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

JSON_LINES: Final = {"sql", "dlq", "redrive"}


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
    elif name in JSON_LINES:
        assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    else:
        json.loads(out)
