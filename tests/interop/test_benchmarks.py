"""The benchmarks run: each once, as short as it goes, and prints the report it promises."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs import peers

pytestmark = pytest.mark.interop

TIMEOUT_S = 300


def _run(module: str, *args: str) -> dict[str, dict[str, list[float]]]:
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        cwd=peers.checkout(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["machine"]["python"]
    if report.get("skipped"):
        pytest.skip(str(report["skipped"]))
    return {row["what"]: row["figures"] for row in report["rows"]}


def test_broker() -> None:
    if shutil.which("mvn") is None and not list(peers.cache_dir().glob("lib-5.5.0")):
        pytest.skip("the official client cannot be had: no mvn")
    figures = _run(
        "benchmarks.broker",
        *("--small", "--sec", "1", "--brokers", "oberth", "--only", "send,memory"),
    )
    assert figures["sync send, 64 threads, 128 B"]["oberth"][0] > 0
    assert figures["from nothing to the first acknowledged message"]["oberth"][0] > 0
    assert figures["anonymous memory, after these runs"]["oberth"][0] > 0


def test_access_control() -> None:
    figures = _run("benchmarks.access_control", "--small")
    for kind in ("accounts of 4.x", "users of 5.x"):
        assert figures[f"official client, 64 threads, {kind}"]["with"][0] > 0
        assert figures[f"bare socket, 64 in flight, {kind}"]["with"][0] > 0


def test_features() -> None:
    if shutil.which("mvn") is None and not list(peers.cache_dir().glob("lib-5.5.0")):
        pytest.skip("the official client cannot be had: no mvn")
    figures = _run("benchmarks.features", "--small", "--n", "500", "--brokers", "oberth")
    assert figures["POP push consumer draining a backlog, acknowledged"]["oberth"][0] > 0
    assert figures["SQL-filtered backlog, one in five wanted, looked at"]["oberth"][0] > 0
    assert figures["put with a time, 1 000 in flight"]["oberth"][0] > 0
    assert figures["delivery after its time, p50"]["oberth"][0] > 0
    assert figures["transactions, 32 threads, committed at once"]["oberth"][0] > 0


def test_grpc() -> None:
    if shutil.which("mvn") is None and not list(peers.cache_dir().glob("lib-grpc-*")):
        pytest.skip("the official gRPC client cannot be had: no mvn")
    figures = _run("benchmarks.grpc", "--small", "--n", "200")
    for size in (128, 1024):
        assert figures[f"SendMessage, 64 in flight, {size} B"]["oberth"][0] > 0
    assert figures["SendMessage, one in flight, 128 B, p50"]["oberth"][0] > 0
    assert figures["push consumer draining a backlog"]["oberth"][0] > 0
    assert figures["remoting sends, processor time, gRPC on / off"]["oberth"][0] > 0


def test_idle_grpc_connections() -> None:
    figures = _run("benchmarks.grpc_idle", "--small", "--sec", "1")
    assert figures["memory of a connection, 300 of them"]["oberth"][0] > 0


def test_store() -> None:
    figures = _run(
        "benchmarks.store_vs_apache",
        *("--small", "--sides", "oberth", "--only", "sync,get,import"),
    )
    assert figures["SYNC_FLUSH, 64 callers waiting (threads), 1 KiB"]["oberth"][0] > 0
    assert figures["SYNC_FLUSH, 64 callers waiting (tasks of a loop), 1 KiB"]["oberth"][0] > 0
    assert figures["get of 32 messages, slices, no copy"]["oberth"][0] > 0


def test_failover() -> None:
    figures = _run("benchmarks.failover", "--small")
    assert figures["three brokers, from nothing to the first message"]["oberth"][0] > 0
    assert figures["master killed with -9, until sends succeed again"]["oberth"][0] > 0
    assert figures["planned failover, time without acknowledged sends"]["oberth"][0] > 0
    assert figures["anonymous memory of all five processes"]["oberth"][0] > 0


def test_growth() -> None:
    figures = _run("benchmarks.growth", "--small")
    assert figures["put in bursts, 3 GiB of log"]["this size"][0] > 0
    assert figures["open killed, 1,000 queues"]["this size"][0] > 0


def test_everything_is_listed() -> None:
    folder = Path(peers.checkout()) / "benchmarks"
    parts = {"page", "group"}  # the page runs the others, reliability runs the group
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"],
        cwd=peers.checkout(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for script in folder.glob("*.py"):
        if "def main(argv" in script.read_text() and script.stem not in parts:
            assert script.stem in done.stdout
