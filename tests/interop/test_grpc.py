"""Official gRPC clients work with our broker itself, without a proxy, as before Apache's.

The clients are those for Java, Python, Node.js, Go, Rust and C++, and the suites are those that run
through Apache's proxy (`test_proxy_grpc`): what was observed must equal the record that was made
through Apache's proxy before Apache's broker; for Go, Rust and C++ there is no such record. Those
for Go and C++ use TLS, that for Java runs once more so, as all three do unless told otherwise. Then
the broker is killed in gRPC traffic, and a ledger tells what was lost.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.test_proxy_grpc import (
    CLIENT_FAULTS,
    LEDGER_TYPES,
    kill_the_client,
    kill_under_traffic,
)
from tests.rigs.clusters import Cluster, cluster_for, free_port
from tests.rigs.interop import Outcome
from tests.rigs.proxies import (
    DIRECT_LANGUAGES,
    GRPC_MISSING,
    GRPC_SCENARIOS,
    GRPC_SMALL,
    PROXY_CONF,
    OberthProxy,
    run_grpc_suite,
)

from oberth.errors import PeerUnavailableError

pytestmark = pytest.mark.interop

FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
OBSERVED = Path(__file__).parent / "observed"

TLS = "java over TLS"
CLIENTS = (*(each for each in DIRECT_LANGUAGES if FULL or each != "rust"), TLS)
"""In the small form without Rust: its client is compiled, with 200 crates, for two minutes."""
CASES = [name for name in GRPC_SCENARIOS if FULL or name in GRPC_SMALL]
PROXIED = CASES if FULL else ("push", "push-fifo", "simple", "delay", "transaction")
"""What is run through ``oberth proxy``; Apache's own tests of it are in the suite of theirs."""

TLS_CASES = ("push", "simple", "transaction")
"""What is seen of TLS in every scenario is the same."""


@dataclass(frozen=True)
class Direct:
    """The broker's own port."""

    endpoint: str


def broker_with_grpc(directory: Path) -> tuple[Cluster, Direct]:
    """One broker of ours, and what gRPC clients are given."""
    port = free_port()
    cluster = cluster_for("oberth", directory, {**PROXY_CONF, "grpcServerPort": str(port)})
    return cluster, Direct(f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], object]]:
    """Outcomes of one client's suite by scenario, run when first asked for."""
    directory = tmp_path_factory.mktemp("grpc")
    done: dict[str, dict[str, Outcome] | PeerUnavailableError] = {}
    try:
        cluster, direct = broker_with_grpc(directory / "broker")
    except PeerUnavailableError as why:
        pytest.skip(str(why))

    def outcomes(client: str) -> dict[str, Outcome]:
        if client not in done:
            tls = client == TLS
            folder = directory / client.replace(" ", "-")
            try:
                lines = run_grpc_suite(
                    cluster,
                    direct,
                    "java" if tls else client,
                    folder,
                    only=TLS_CASES if tls else CASES,
                    tls=tls,
                )
                done[client] = {outcome.scenario: outcome for outcome in lines}
            except PeerUnavailableError as why:
                done[client] = why
        found = done[client]
        if isinstance(found, PeerUnavailableError):
            pytest.skip(str(found))
        return found

    with cluster:
        yield outcomes


@pytest.mark.parametrize(
    ("client", "case"),
    [
        (client, case)
        for client in CLIENTS
        for case in (TLS_CASES if client == TLS else CASES)
        if case not in GRPC_MISSING.get(client, ())
    ],
)
def test_scenario(suites: Callable[[str], dict[str, Outcome]], client: str, case: str) -> None:
    """Its own checks, and what was observed against the record."""
    if (client, case) in CLIENT_FAULTS:
        pytest.skip(CLIENT_FAULTS[client, case])
    found = suites(client)
    assert case in found, f"the suite ended before it came to {case}"
    assert found[case].ok, found[case].detail
    language = "java" if client == TLS else client
    path = OBSERVED / f"proxy-5.5.0_{language}.json"
    if path.exists():
        assert found[case].observed == json.loads(path.read_text())[case]


def test_through_oberth_proxy(tmp_path: Path) -> None:
    """Two brokers of ours behind ``oberth proxy``, and every kind of message."""
    try:
        cluster = cluster_for("oberth", tmp_path / "brokers", PROXY_CONF, brokers=2)
        with cluster, OberthProxy(cluster, tmp_path / "proxy") as proxy:
            lines = run_grpc_suite(cluster, proxy, "java", tmp_path / "java", only=PROXIED)
            outcomes = {outcome.scenario: outcome for outcome in lines}
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert set(outcomes) == set(PROXIED)
    assert [each for each in outcomes.values() if not each.ok] == []


@pytest.mark.crash
@pytest.mark.slow
def test_acknowledged_survives_kills(tmp_path: Path) -> None:
    """SIGKILL in gRPC traffic: what was acknowledged arrives, each message group in its order."""
    seed = random.SystemRandom().randrange(2**32)
    try:
        cluster, direct = broker_with_grpc(tmp_path)
        with cluster:
            results = kill_under_traffic(cluster, direct, tmp_path / "client", random.Random(seed))
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    for result in results:
        assert result["counts"]["acknowledged"] > 0, result
    bad = [result for result in results if not result["ok"]]
    assert not bad, f"seed {seed}: " + json.dumps(bad, indent=1)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(1200)  # each life waits two minutes for what the one before had in work
@pytest.mark.skipif(not FULL, reason="minutes: what a dead client had in work comes again late")
def test_clients_that_are_killed(tmp_path: Path) -> None:
    """SIGKILL of producers and consumers: their successors get what is missing, in order.

    Transactions that a dead client began are ended by what its successor says.
    """
    seed = random.SystemRandom().randrange(2**32)
    try:
        cluster, direct = broker_with_grpc(tmp_path)
        with cluster:
            results = kill_the_client(cluster, direct, tmp_path / "client", random.Random(seed))
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert len(results) == len(LEDGER_TYPES), results
    for result in results:
        assert result["counts"]["acknowledged"] > 0, result
    bad = [result for result in results if not result["ok"]]
    assert not bad, f"seed {seed}: " + json.dumps(bad, indent=1)
