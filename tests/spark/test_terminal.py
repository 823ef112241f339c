"""What commands of Spark's say on stderr: their own lines and nothing of Spark's or the JVM's.

They run in processes of their own, as from a shell; the JVM's stderr is that process's. Those that
need nothing else share one session, as the start of a JVM takes longer than all they do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

Golden = Callable[[str], Any]
pytestmark = [pytest.mark.spark, pytest.mark.slow]
OBERTH: Final = (sys.executable, "-m", "oberth", "spark")
TIMEOUT_S: Final = 300

Case = tuple[list[str], int, list[str]]
ALONE: Final[dict[str, Case]] = {
    "options of the JVM": (
        ["sql", "--store", "STORE", "select count(*) from RetryTopic",
         "--conf", "spark.driver.extraJavaOptions=-Dx=y"],
        0,
        ["1 rows"],
    ),
    "no store": (["verify", "nowhere"], 2, ["error: ", "hint: "]),
}  # fmt: skip
"""By name: words, exit code, how the lines of stderr begin."""

IN_ONE_SESSION: Final[dict[str, Case]] = {
    "a query": (["sql", "--store", "STORE", "select 1"], 0, ["1 rows"]),
    "a wrong column": (
        ["sql", "--store", "STORE", "select nonsense from RetryTopic"],
        2,
        ["error: [UNRESOLVED_COLUMN"],
    ),
    "an error in a task": (
        ["sql", "--store", "STORE", "select raise_error(tags) from RetryTopic"],
        2,
        ["error: [USER_RAISED_EXCEPTION]"],
    ),
    "statistics": (["stats", "STORE"], 0, []),
}

PROGRAM: Final = """
import json, sys
from oberth.cli.main import oberth
from oberth.cli.spark_options import session

with session("local[*]", (), app_name="several commands"):
    for words in json.loads(sys.argv[1]):
        code = 0
        try:
            oberth(["spark", *words])
        except SystemExit as end:
            code = end.code
        print(f"exit code {code}", file=sys.stderr, flush=True)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def begin(said: list[str], beginnings: list[str]) -> bool:
    """Whether each line begins as it should, and there are no others."""
    return len(said) == len(beginnings) and all(map(str.startswith, said, beginnings))


def test_a_query_that_has_enough_says_so_and_no_more(growing_store: Any) -> None:
    """Its worker still writes rows when Spark closes the connection."""
    for number in range(60):
        growing_store.append("T", 0, bytes([number]) * 300_000)
    words = ("sql", "--store", str(growing_store.root), "select length(value) from T limit 1")
    done = run(*OBERTH, *words)
    assert (done.stderr, done.returncode) == ("1 rows\n", 0)


@pytest.mark.parametrize("name", ALONE)
def test_lines_of_stderr(golden_pristine: Golden, name: str) -> None:
    words, code, expected = ALONE[name]
    root = str(golden_pristine("retry-5.5.0").root)
    done = run(*OBERTH, *(root if each == "STORE" else each for each in words))
    assert done.returncode == code, done.stderr
    assert begin(done.stderr.splitlines(), expected), done.stderr


def test_lines_of_stderr_in_one_session(golden_pristine: Golden) -> None:
    root = str(golden_pristine("retry-5.5.0").root)
    commands = [
        [root if each == "STORE" else each for each in words]
        for words, _, _ in IN_ONE_SESSION.values()
    ]
    done = run(sys.executable, "-c", PROGRAM, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    expected = [
        line
        for _, code, beginnings in IN_ONE_SESSION.values()
        for line in (*beginnings, f"exit code {code}")
    ]
    assert begin(done.stderr.splitlines(), expected), done.stderr


def test_ctrl_c_ends_a_query_that_follows_without_a_word_of_py4j(golden_store: Golden) -> None:
    root = str(golden_store("retry-5.5.0").root)
    with subprocess.Popen(
        [*OBERTH, "dispatch", root, "--follow"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "following; interrupt to stop\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        code = process.wait(TIMEOUT_S)
    assert (said, code) == ("stopped; the next --follow goes on from here\n", 0)
