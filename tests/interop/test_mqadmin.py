"""Every mqadmin command does on our cluster what it does on Apache's: all are run and compared.

The official tools of 5.5.0 and 4.9.8 run their commands in one JVM over prepared contents: each
with all of its options, and with names that do not exist. What Apache's cluster printed, and how it
refused, is kept in ``observed/mqadmin-*.json``, without times, addresses, ids and rates.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.clusters import cluster_for
from tests.rigs.mqadmin import (
    ADMIN_CONF,
    MEANT,
    REFUSED,
    CommandRun,
    compare,
    read_record,
    reason_of,
    run_admin_suite,
)

from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OBSERVED = Path(__file__).parent / "observed"
THEIRS = {run.label: run for run in read_record(OBSERVED / "mqadmin-5.5.0.json")}
REFUSED_4_9 = {**REFUSED, "updateBrokerConfig black": "no path of ours can be changed"}
THEIRS_4_9 = {run.label: run for run in read_record(OBSERVED / "mqadmin-4.9.8.json")}


def runs_of(tool: str, directory: Path) -> dict[str, CommandRun]:
    """All commands of a release of the tool, over one cluster of ours."""
    try:
        with cluster_for("oberth", directory / "cluster", ADMIN_CONF) as cluster:
            runs = run_admin_suite(cluster.namesrv_addr, tool, directory / "tool")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    return {run.label: run for run in runs}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandRun]:
    """What the tool of 5.5.0 gets from us."""
    return runs_of("5.5.0", tmp_path_factory.mktemp("mqadmin"))


@pytest.fixture(scope="module")
def ours_4_9(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandRun]:
    """What the tool of 4.9.8 gets from us."""
    return runs_of("4.9.8", tmp_path_factory.mktemp("mqadmin"))


@pytest.mark.parametrize("label", [label for label, run in THEIRS_4_9.items() if run.ok])
def test_command_of_4_9(ours_4_9: dict[str, CommandRun], label: str) -> None:
    """What works at a broker of 4.9.7 works at ours; it prints what 5.x prints."""
    own = ours_4_9[label]
    if reason_of(REFUSED_4_9, label) is not None:
        assert not own.ok, f"works now: {label}"
    else:
        assert own.ok, own.detail


@pytest.mark.parametrize("label", sorted(THEIRS))
def test_command(ours: dict[str, CommandRun], label: str) -> None:
    theirs, own = THEIRS[label], ours[label]
    verdict = compare([theirs], [own])[label]
    if reason_of(REFUSED, label) is not None:
        assert verdict == "fails", f"works now: {label}"
    elif reason_of(MEANT, label) is not None:
        assert verdict != "fails", own.detail
    else:
        assert verdict in ("equal", "both fail", "no such command"), own.detail
