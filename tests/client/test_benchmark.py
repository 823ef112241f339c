"""Proves that the benchmark of the client runs: every mode for a moment, against our broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from oberth.testing.blocking import EmbeddedBroker

ROOT = Path(__file__).parents[2]


def test_every_mode_of_the_load() -> None:
    with EmbeddedBroker() as mq:

        def run(mode: str, **options: str) -> dict[str, float]:
            arguments = [f"{key}={value}" for key, value in options.items()]
            done = subprocess.run(
                [
                    sys.executable, "-m", "benchmarks.peers.client_load", mode,
                    f"namesrv={mq.namesrv_addr}", "topic=T", *arguments,
                ],
                capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            found: dict[str, float] = json.loads(done.stdout)
            return found

        sent = run("send", threads="4", warm="0", sec="0.2")
        assert sent["per_s"] > 0
        assert run("async", inflight="50", warm="0", sec="0.2")["ok"] > 0
        assert run("consume", n=str(round(sent["ok"])))["per_s"] > 0
        assert run("idle", sec="0.1")["anonymous_mb"] > 0
        fresh = run("embedded", n="1")
        assert fresh["ready_s"] > 0
        assert fresh["next_s"] > 0
