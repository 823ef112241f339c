"""Which brokers and clients the suites run with, and one run of each per session.

OBERTH_INTEROP          small (default): our broker, the newest Java client, the short scenarios
full: our broker and Apache's, every client, every scenario
OBERTH_INTEROP_BROKERS  commas between: apache-5.5.0, apache-4.9.7, oberth, or host:port
OBERTH_INTEROP_SUITES   commas between: 5.5.0, 4.9.8, go, with +binary or +tls behind
OBERTH_INTEROP_RESULTS  a directory: outcomes as JSON and the table as Markdown land there
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.rigs.clusters import Cluster, cluster_for
from tests.rigs.interop import SMALL, Outcome, markdown_table, run_suite, scenarios_of

from oberth.errors import PeerUnavailableError

FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
BROKERS = os.environ.get(
    "OBERTH_INTEROP_BROKERS", "oberth,apache-5.5.0" if FULL else "oberth"
).split(",")
SUITES = os.environ.get("OBERTH_INTEROP_SUITES", "5.5.0,4.9.8,go" if FULL else "5.5.0").split(",")


class Runs:
    """Clusters and suites of this session: each starts when the first test asks for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outcomes: dict[tuple[str, str], dict[str, Outcome]] = {}
        self._clusters: dict[str, Cluster | PeerUnavailableError] = {}
        self._missing: dict[tuple[str, str], PeerUnavailableError] = {}
        self._stack = ExitStack()

    def cluster(self, kind: str) -> Cluster:
        """The running cluster of a kind; skips the test when it cannot be had."""
        if kind not in self._clusters:
            try:
                cluster = cluster_for(kind, self.directory / kind.replace(":", "-"))
            except PeerUnavailableError as why:
                self._clusters[kind] = why
            else:  # it can be had, so not starting is a failure and no reason to skip
                self._clusters[kind] = self._stack.enter_context(cluster)
        found = self._clusters[kind]
        if isinstance(found, PeerUnavailableError):
            pytest.skip(f"no {kind}: {found}")
        return found

    def outcome(self, kind: str, suite: str, scenario: str) -> Outcome:
        """How a scenario ended in this session's one run of the suite."""
        key = (kind, suite)
        if key in self._missing:
            pytest.skip(str(self._missing[key]))
        if key not in self.outcomes:
            cluster = self.cluster(kind)
            only = [] if FULL else [name for name in scenarios_of(suite) if name in SMALL]
            try:
                run = run_suite(cluster, suite, self.directory / f"{kind}-{suite}", only)
                self.outcomes[key] = {outcome.scenario: outcome for outcome in run}
            except PeerUnavailableError as why:
                self._missing[key] = why
                pytest.skip(str(why))
        if scenario not in self.outcomes[key]:
            pytest.fail(f"{suite} ended before it came to {scenario}")
        return self.outcomes[key][scenario]

    def close(self) -> None:
        """Write what was asked for and stop what was started."""
        wanted = os.environ.get("OBERTH_INTEROP_RESULTS")
        if wanted and self.outcomes:
            results = Path(wanted)
            results.mkdir(parents=True, exist_ok=True)
            for (kind, suite), outcomes in self.outcomes.items():
                lines = [json.dumps(asdict(o), sort_keys=True) for o in outcomes.values()]
                (results / f"{kind}_{suite}.jsonl").write_text("\n".join(lines) + "\n")
            columns = {
                f"{kind}, client {suite}": outcomes.values()
                for (kind, suite), outcomes in self.outcomes.items()
            }
            (results / "table.md").write_text(markdown_table(columns))
        self._stack.close()


@pytest.fixture(scope="session")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Everything that this session has started."""
    session = Runs(tmp_path_factory.mktemp("interop"))
    yield session
    session.close()


@pytest.fixture(scope="session")
def cluster_of(_runs: Runs) -> Callable[[str], Cluster]:
    """The running cluster of a kind, one per session."""
    return _runs.cluster


@pytest.fixture(scope="session")
def outcome_of(_runs: Runs) -> Callable[[str, str, str], Outcome]:
    """How (broker, suite, scenario) ended."""
    return _runs.outcome


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without being asked, none of this runs: it takes minutes and other people's programs."""
    asked = "OBERTH_INTEROP" in os.environ or "interop" in config.option.markexpr
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if not asked:
            item.add_marker(pytest.mark.skip(reason="make interop runs this"))
        elif not FULL and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="OBERTH_INTEROP=full runs this"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``broker`` or ``suite`` runs for each that was asked for."""
    if "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", BROKERS, scope="session")
    if "scenario" in metafunc.fixturenames:
        pairs = [(s, name) for s in SUITES for name in scenarios_of(s) if FULL or name in SMALL]
        metafunc.parametrize(("suite", "scenario"), pairs, scope="session")
