"""What commands of Spark's say on stderr: their own lines and nothing of Spark's or the JVM's.

Each runs in a process of its own, as from a shell; the JVM's stderr is that process's.
"""

from __future__ import annotations

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

CASES: Final[dict[str, tuple[list[str], int, list[str]]]] = {
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
    "options of the JVM": (
        ["stats", "STORE", "--conf", "spark.driver.extraJavaOptions=-Dx=y"],
        0,
        [],
    ),
    "no store": (["verify", "nowhere"], 2, ["error: ", "hint: "]),
}
"""By name: words, exit code, how the lines of stderr begin."""


@pytest.mark.parametrize("name", CASES)
def test_lines_of_stderr(golden_pristine: Golden, name: str) -> None:
    words, code, expected = CASES[name]
    root = str(golden_pristine("retry-5.5.0").root)
    done = subprocess.run(
        [*OBERTH, *(root if each == "STORE" else each for each in words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(expected), done.stderr
    for line, beginning in zip(said, expected, strict=True):
        assert line.startswith(beginning)


def test_ctrl_c_ends_a_query_that_follows_without_a_word_of_py4j(golden_store: Golden) -> None:
    root = str(golden_store("retry-5.5.0").root)
    with subprocess.Popen(
        [*OBERTH, "dispatch", root, "--follow"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "following; interrupt to stop\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 0
    assert said == "stopped; the next --follow goes on from here\n"
