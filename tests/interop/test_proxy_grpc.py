"""Official gRPC clients work through Apache's proxy before our brokers as before Apache's own.

The proxy is real, in cluster mode; the clients are those for Java, Python and Node.js. Each
(cluster, language) runs its suite once, all languages at a time, and each scenario is a test of its
own. What was observed (kinds of errors, attempts, added properties) must equal what the same client
saw before Apache's broker, kept in ``observed/proxy-5.5.0_LANGUAGE.json``. Then brokers are killed
in gRPC traffic, and a ledger tells what was lost; a failure names its seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clusters import Cluster, cluster_for
from tests.rigs.interop import Outcome
from tests.rigs.proxies import (
    GRPC_LANGUAGES,
    GRPC_SCENARIOS,
    GRPC_SMALL,
    PROXY_CONF,
    ApacheProxy,
    Endpoint,
    create_group,
    create_topic,
    ledger_command,
    run_grpc_suite,
)

from oberth.errors import PeerUnavailableError

pytestmark = pytest.mark.interop

FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
OBSERVED = Path(__file__).parent / "observed"

#: (kind of cluster, brokers) that the suites run before.
FRONTS = [("oberth", 1), ("oberth", 3), ("apache-5.5.0", 1)] if FULL else [("oberth", 1)]

#: (language, scenario) -> why it is no finding: the client fails before Apache's broker as well.
CLIENT_FAULTS = {
    ("node", "push-fifo-retry"): "the Node.js client 1.0.8 does not consume a failed message again",
    ("go", "push-fifo-retry"): "the Go client 5.1.3 goes on with others before it tries again",
}

#: What the ledger sends, and the type of each topic.
LEDGER_TYPES = {
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
}
ROUNDS = int(os.environ.get("OBERTH_KILL_ROUNDS", "4"))
READY_S = 120
SETTLE_S = 240

Suites = Callable[[tuple[str, int], str], dict[str, Outcome]]


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suites]:
    """Outcomes of one language's suite before one kind of cluster, run when first asked for."""
    done: dict[tuple[str, int], dict[str, dict[str, Outcome] | PeerUnavailableError]] = {}

    def outcomes(front: tuple[str, int], language: str) -> dict[str, Outcome]:
        if front not in done:
            directory = tmp_path_factory.mktemp(f"proxy-{front[0]}-{front[1]}")
            done[front] = _run_all(front, directory)
        found = done[front][language]
        if isinstance(found, PeerUnavailableError):
            pytest.skip(str(found))
        return found

    yield outcomes
    wanted = os.environ.get("OBERTH_INTEROP_RESULTS")
    if wanted:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        for (kind, brokers), languages in done.items():
            for language, found in languages.items():
                if isinstance(found, dict):
                    lines = "".join(json.dumps(asdict(o)) + "\n" for o in found.values())
                    name = f"proxy_{kind} x {brokers}_{language}.jsonl"
                    Path(wanted, name).write_text(lines)


def _run_all(
    front: tuple[str, int], directory: Path
) -> dict[str, dict[str, Outcome] | PeerUnavailableError]:
    """Start cluster and proxy, run every language's suite at a time, and stop all of it."""
    kind, brokers = front

    def run(cluster: Cluster, proxy: ApacheProxy, language: str) -> dict[str, Outcome]:
        only = [] if FULL else GRPC_SMALL
        lines = run_grpc_suite(cluster, proxy, language, directory / language, only=only)
        return {outcome.scenario: outcome for outcome in lines}

    try:
        cluster = cluster_for(kind, directory, PROXY_CONF, brokers=brokers)
        with cluster:
            proxy = ApacheProxy(cluster, directory / "proxy")
            with proxy, ThreadPoolExecutor(len(GRPC_LANGUAGES)) as pool:
                futures = {
                    language: pool.submit(run, cluster, proxy, language)
                    for language in GRPC_LANGUAGES
                }
                found: dict[str, dict[str, Outcome] | PeerUnavailableError] = {}
                for language, future in futures.items():
                    try:
                        found[language] = future.result()
                    except PeerUnavailableError as why:
                        found[language] = why
                return found
    except PeerUnavailableError as why:
        return dict.fromkeys(GRPC_LANGUAGES, why)


CASES = [name for name in GRPC_SCENARIOS if FULL or name in GRPC_SMALL]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("language", GRPC_LANGUAGES)
@pytest.mark.parametrize("front", FRONTS, ids=lambda front: f"{front[0]}-{front[1]}")
def test_through_the_proxy(
    suites: Suites, front: tuple[str, int], language: str, case: str
) -> None:
    """The scenario's own checks."""
    if (language, case) in CLIENT_FAULTS:
        pytest.skip(CLIENT_FAULTS[language, case])
    found = suites(front, language)
    assert case in found, f"the suite ended before it came to {case}"
    assert found[case].ok, found[case].detail


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("language", GRPC_LANGUAGES)
def test_observed_as_before_apache(suites: Suites, language: str, case: str) -> None:
    """Ours against the record, not against a run of today."""
    record = json.loads((OBSERVED / f"proxy-5.5.0_{language}.json").read_text())
    outcome = suites(("oberth", 1), language).get(case)
    if outcome is None or not outcome.ok:
        pytest.skip("it did not get that far")
    assert outcome.observed == record[case]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("kind", ["oberth", "apache-5.5.0"])
def test_acknowledged_survives_kills_behind_the_proxy(
    tmp_path: Path, kind: str, brokers: int
) -> None:
    """SIGKILL in gRPC traffic: what was acknowledged arrives, each message group in its order."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    try:
        cluster = cluster_for(kind, tmp_path, PROXY_CONF, brokers=brokers)
        with cluster, ApacheProxy(cluster, tmp_path / "proxy") as proxy:
            results = kill_under_traffic(cluster, proxy, tmp_path / "client", rng)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    wanted = os.environ.get("OBERTH_INTEROP_RESULTS")
    if wanted:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(result) + "\n" for result in results)
        Path(wanted, f"kill_proxy before {kind} x {brokers}.jsonl").write_text(lines)
    assert len(results) == len(LEDGER_TYPES), results
    for result in results:
        assert result["counts"]["acknowledged"] > 0, result
    bad = [result for result in results if not result["ok"]]
    assert not bad, f"seed {seed}: " + json.dumps(bad, indent=1)


def ledger_run(cluster: Cluster, rng: random.Random) -> str:
    """Topics and groups of a ledger; the name of its run."""
    run = f"ledger{rng.randrange(10**6)}"
    for name, message_type in LEDGER_TYPES.items():
        create_topic(cluster, f"{run}_{name}", message_type)
        ordered = message_type == "FIFO"
        create_group(cluster, f"{run}_{name}_G", consumeMessageOrderly=ordered)
    return run


def kill_under_traffic(
    cluster: Cluster, proxy: Endpoint, directory: Path, rng: random.Random
) -> list[dict[str, Any]]:
    """Run the ledger's traffic, kill and start brokers in it, and give its lines."""
    run = ledger_run(cluster, rng)
    directory.mkdir()
    alone = len(cluster.brokers) == 1
    command = ledger_command(proxy, run, directory, ordered=alone, settle_s=SETTLE_S)
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    watch = threading.Timer(READY_S, process.kill)
    watch.start()
    try:
        assert any(line.startswith('{"ready"') for line in process.stdout), "it did not start"
        watch.cancel()
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(2, 6))  # the point in the traffic is what is random
            node = rng.choice(cluster.brokers)
            node.kill()
            if not alone:
                time.sleep(rng.uniform(1, 3))  # for a while the others carry on alone
            node.start()
        time.sleep(3)
        process.stdin.write("stop\n")
        process.stdin.flush()
        output, _ = process.communicate(timeout=SETTLE_S + 60)
    finally:
        watch.cancel()
        process.kill()
        process.wait()
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def kill_the_client(
    cluster: Cluster, proxy: Endpoint, directory: Path, rng: random.Random
) -> list[dict[str, Any]]:
    """Run the ledger's traffic, kill it in the midst, start it again; the lines of the last one."""
    run = ledger_run(cluster, rng)
    journals = directory / "journals"
    journals.mkdir(parents=True)
    command = ledger_command(
        proxy, run, directory, ordered=True, settle_s=SETTLE_S, journals=journals
    )
    output = ""
    for life in range(ROUNDS + 1):
        with (
            (directory / f"log{life}").open("w") as log,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            assert process.stdout is not None
            # Late: what a dead one had in work comes again when its time is over.
            watch = threading.Timer(SETTLE_S, process.kill)
            watch.start()
            try:
                assert any(line.startswith('{"ready"') for line in process.stdout), f"life {life}"
                watch.cancel()
                time.sleep(rng.uniform(1, 5))  # the point in the traffic is what is random
                if life == ROUNDS:
                    output, _ = process.communicate("stop\n", timeout=SETTLE_S + 60)
            finally:
                watch.cancel()
                process.kill()
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
