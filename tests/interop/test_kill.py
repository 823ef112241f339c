"""No acknowledged message is lost when the broker dies: SIGKILL in the official client's traffic.

It sends sync, async, in batches, in order, delayed and in transactions, and consumes all of it.
Afterwards everything acknowledged has arrived, nothing has that was not sent, and queues have kept
their order. A failure names its seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from oberth.errors import PeerUnavailableError
from oberth.testing import peers
from oberth.testing.clusters import cluster_for
from oberth.testing.interop import client_classes

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

ROUNDS = int(os.environ.get("OBERTH_KILL_ROUNDS", "4"))
SETTLE_TIMEOUT_S = 500


@pytest.mark.parametrize(
    ("flush", "brokers"), [("ASYNC_FLUSH", 1), ("SYNC_FLUSH", 1), ("ASYNC_FLUSH", 3)]
)
def test_acknowledged_survives_kills(tmp_path: Path, broker: str, flush: str, brokers: int) -> None:
    """With three brokers, producers and consumers go on with those that are left."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    try:
        # Checks are a second apart here, a producer's heartbeats thirty: the usual fifteen checks
        # can be over before a broker that was away knows a producer to ask, and what was checked
        # that often is set aside by design.
        conf = {"flushDiskType": flush, "transactionCheckMax": "1000"}
        cluster = cluster_for(broker, tmp_path, conf, brokers=brokers)
        lib, classes = client_classes("5.5.0")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    with cluster:
        if not cluster.brokers:
            pytest.skip("a cluster that is not ours to kill")
        command = peers.java_command(
            lib,
            "LedgerRun",
            f"namesrv={cluster.namesrv_addr}",
            classes=classes,
            options=("-Xmx384m", f"-Duser.home={tmp_path}", "-Drocketmq.client.logLevel=ERROR"),
        )
        with (tmp_path / "ledger.log").open("w") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert any(line.startswith('{"ready"') for line in process.stdout), "it did not start"
            for _ in range(ROUNDS):
                time.sleep(rng.uniform(2, 6))  # the point in the traffic is what is random
                node = rng.choice(cluster.brokers)
                node.kill()
                if brokers > 1:
                    time.sleep(rng.uniform(1, 3))  # for a while the others carry on alone
                node.start()
            time.sleep(3)
            process.stdin.write("stop\n")
            process.stdin.flush()
            output, _ = process.communicate(timeout=SETTLE_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(results) == 6, output
    wanted = os.environ.get("OBERTH_INTEROP_RESULTS")
    if wanted:
        lines = "".join(json.dumps(result) + "\n" for result in results)
        Path(wanted, f"kill_{broker}_{flush} x {brokers}.jsonl").write_text(lines)
    for result in results:
        assert result["counts"]["acknowledged"] > 0, result
    bad = [result for result in results if not result["ok"]]
    assert not bad, f"seed {seed}: " + json.dumps(bad, indent=1)
