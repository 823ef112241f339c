"""Prometheus' own tool takes the alerts of `deploy/`, fires them, and takes brokers' /metrics."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.interop.conftest import FULL
from tests.rigs import peers
from tests.rigs.scraped import shown_metrics

from oberth.broker.metrics import EXPORTER, STYLES
from oberth.errors import PeerUnavailableError

pytestmark = pytest.mark.interop

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
LINT: Final = 3
"""The exit code for a text that can be read and has names of another taste."""
NAMES_OF_OTHERS: Final = ("'snake_case' not 'camelCase'", '_total" suffix', '_count" suffix')


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program; without it the tests are skipped."""
    try:
        return str(peers.promtool(may_build=FULL))
    except PeerUnavailableError as why:
        pytest.skip(str(why))


def run(promtool: str, *words: str, stdin: str = "") -> tuple[int, str]:
    """Exit code and all output of the program, in the folder with the alerts."""
    done = subprocess.run(
        [promtool, *words],
        cwd=DEPLOY, input=stdin, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("what", "name"), [("check", "prometheus-rules.yml"), ("test", "prometheus-rules.test.yml")]
)
def test_alerts(promtool: str, what: str, name: str) -> None:
    code, said = run(promtool, what, "rules", name)
    assert code == 0, said


@pytest.mark.parametrize("style", STYLES)
async def test_metrics(promtool: str, tmp_path: Path, name_server: str, style: str) -> None:
    for text in await shown_metrics(tmp_path, name_server, style):
        code, said = run(promtool, "check", "metrics", stdin=text)
        if style == EXPORTER:
            # Its names are rocketmq-exporter's, so that dashboards go on; nothing else is wrong.
            found = [each for each in said.splitlines() if not each.endswith(NAMES_OF_OTHERS)]
            assert (code, found) == (LINT, [])
        else:
            assert (code, said) == (0, "")
