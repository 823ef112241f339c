"""A static topic moves between three brokers under the official client's traffic.

mqadmin makes and moves it. Every acknowledged message is consumed, in its queue's order and with
growing logical offsets, and a group that was away during a move goes on where it stopped.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster, cluster_for
from tests.rigs.interop import client_classes

from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TIMEOUT_S = 400
MOVES = 3


def test_moves_under_traffic(tmp_path: Path, broker: str) -> None:
    if broker == "apache-4.9.7":
        pytest.skip("4.9 has no static topics")
    try:
        cluster = cluster_for(broker, tmp_path, {}, brokers=3)
        with cluster:
            _moves(cluster.namesrv_addr, tmp_path)
    except PeerUnavailableError as why:
        pytest.skip(str(why))


def test_moves_between_oberth_and_apache(tmp_path: Path, broker: str) -> None:
    """Two brokers of ours and one of Apache's: each leads, and each reads what others have."""
    if broker != "oberth":
        pytest.skip("once is enough")
    try:
        ours = cluster_for("oberth", tmp_path / "ours", {}, brokers=2)
        theirs = ApacheCluster(
            "5.5.0",
            tmp_path / "theirs",
            {"brokerName": "broker-aa"},  # so that queues go from ours to theirs to ours
            namesrv_addr=ours.namesrv_addr,
        )
        with ours, theirs:
            _moves(ours.namesrv_addr, tmp_path)
    except PeerUnavailableError as why:
        pytest.skip(str(why))


def _moves(namesrv_addr: str, tmp_path: Path) -> None:
    lib, classes = client_classes("5.5.0")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = peers.java_command(
        lib,
        "StaticTopicRun",
        f"namesrv={namesrv_addr}",
        classes=classes,
        options=(
            "-Xmx384m",
            f"-Duser.home={tmp_path}",
            f"-Djava.io.tmpdir={temporary}",
            "-Drocketmq.client.logLevel=ERROR",
        ),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(lines[-1])
    assert result["ok"], json.dumps(result) + done.stderr[-3000:]
    assert result["moves"] == MOVES
    assert result["consumed"] >= result["acknowledged"] > 0
