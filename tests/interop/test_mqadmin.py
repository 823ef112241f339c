"""Every mqadmin command does on our cluster what it does on Apache's: all are run and compared.

The official tool of 5.5.0 runs its commands in one JVM over prepared contents. What Apache's
cluster printed is kept in ``observed/mqadmin-5.5.0.json``, without times, addresses, ids and rates.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oberth.errors import PeerUnavailableError
from oberth.testing.clusters import cluster_for
from oberth.testing.mqadmin import (
    ADMIN_CONF,
    MEANT,
    NOT_OFFERED,
    REFUSED,
    CommandRun,
    normalise,
    read_record,
    run_admin_suite,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]

THEIRS = {
    run.label: run for run in read_record(Path(__file__).parent / "observed" / "mqadmin-5.5.0.json")
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandRun]:
    """All commands over one cluster of ours."""
    directory = tmp_path_factory.mktemp("mqadmin")
    try:
        with cluster_for("oberth", directory / "cluster", ADMIN_CONF) as cluster:
            runs = run_admin_suite(cluster.namesrv_addr, "5.5.0", directory / "tool")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    return {run.label: run for run in runs}


@pytest.mark.parametrize("label", sorted(THEIRS))
def test_command(ours: dict[str, CommandRun], label: str) -> None:
    theirs, own = THEIRS[label], ours[label]
    if not theirs.ok:
        return  # Apache's cluster refuses it too
    if label in REFUSED:
        assert not own.ok, f"works now: {label}"
        return
    if label in NOT_OFFERED and not own.ok:
        pytest.xfail(NOT_OFFERED[label])
    assert own.ok, own.detail
    if label not in MEANT:
        assert normalise(own.output) == normalise(theirs.output)
