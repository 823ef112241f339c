"""Suites of official clients against any cluster, and their results as a table.

Every suite is a program in another language (tests/interop/java, tests/interop/go) that prints one
line of JSON per scenario; run_* starts it and gives the lines as Outcomes. ``observed`` holds what
must be equal on every broker (answer codes, statuses, property names), ``counts`` what may differ
from run to run.

From a shell, against a cluster started for the occasion or any address:

    python -m tests.rigs.interop --broker apache-5.5.0 --suite 5.5.0 send-sync pop
    python -m tests.rigs.interop --broker 127.0.0.1:9876 --suite go
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from tests.rigs import peers
from tests.rigs.clusters import Cluster, cluster_for

from oberth.errors import PeerUnavailableError

__all__ = [
    "GO_SCENARIOS",
    "SCENARIOS",
    "SMALL",
    "Outcome",
    "client_classes",
    "client_scenarios",
    "java_sources",
    "markdown_table",
    "outcomes_of",
    "run_client_suite",
    "run_go_suite",
    "run_suite",
    "scenarios_of",
    "stream_json",
]

SCENARIOS: Final = (
    "send-sync",
    "send-async",
    "send-oneway",
    "send-batch",
    "send-selector",
    "send-auto-create",
    "send-compressed",
    "send-large",
    "send-namespace",
    "send-refused",
    "delay-level",
    "transaction",
    "request-reply",
    "trace",
    "push-concurrent",
    "push-orderly",
    "push-broadcast",
    "push-tags",
    "push-sql92",
    "push-fresh-group",
    "push-latency",
    "retry-dlq",
    "retry-order-dlq",
    "offsets-resume",
    "consume-from",
    "consume-from-timestamp",
    "rebalance",
    "reset-offset",
    "pull",
    "pull-answers",
    "lite-pull-assign",
    "lite-pull-subscribe",
    "query",
    "relay",
    # 5.x only
    "timer",
    "timer-recall",
    "compression-types",
    "auto-batch",
    "batch-queue",
    "message-types",
    "server-rebalance",
    "pop",
    "pop-order",
    "pop-push",
    "pop-push-retry",
    "pop-push-orderly",
)
"""Scenarios of the Java client, those of 4.x first; a test compares with the program's own list."""

GO_SCENARIOS: Final = (
    "go-send-sync",
    "go-send-async",
    "go-send-oneway",
    "go-send-batch",
    "go-send-selector",
    "go-send-compressed",
    "go-delay-level",
    "go-transaction",
    "go-request-reply",
    "go-push-concurrent",
    "go-push-orderly",
    "go-push-broadcast",
    "go-push-tags",
    "go-push-sql92",
    "go-retry",
    "go-offsets-resume",
    "go-pull",
)
"""Scenarios of the Go client."""

SMALL: Final = (
    "send-sync",
    "send-async",
    "send-oneway",
    "send-batch",
    "send-selector",
    "send-compressed",
    "delay-level",
    "transaction",
    "request-reply",
    "push-concurrent",
    "push-orderly",
    "push-broadcast",
    "push-tags",
    "push-sql92",
    "retry-dlq",
    "pull",
    "lite-pull-assign",
    "query",
)
"""Scenarios of the client suite that end quickly and still touch most of the request path."""

_CLIENT_HEAP: Final = "512m"
_SCENARIO_TIMEOUT_S: Final = 90
_SUITE_TIMEOUT_S: Final = 900


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one scenario ended; ``ok`` is None when it was skipped."""

    scenario: str
    ok: bool | None
    ms: int
    detail: str = ""
    counts: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, str] = field(default_factory=dict)


def java_sources(version: str) -> list[Path]:
    """The Java files that belong to a client or store of this release."""
    root = peers.checkout() / "tests" / "interop" / "java"
    return [*(root / "common").glob("*.java"), *(root / f"v{version[0]}").glob("*.java")]


def client_classes(version: str) -> tuple[Path, Path]:
    """Jars and compiled classes of the client suite for one release of the client."""
    lib = peers.jars(version, "client")
    return lib, peers.compile_java(f"suite-{version}", lib, java_sources(version))


def stream_json(
    command: Sequence[str],
    directory: Path,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run a program and give its lines of JSON; other lines and stderr go to ``directory/log``.

    Raises:
        TimeoutError: it did not end in time and was killed.
        RuntimeError: it ended with an exit code.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    with log.open("a") as other:
        process = subprocess.Popen(
            list(command),
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=other,
            text=True,
        )
        assert process.stdout is not None
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            process.kill()

        timer = threading.Timer(timeout_s, expire)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                else:
                    other.write(line)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
    if expired:
        raise TimeoutError(f"{command[0]} did not end in {timeout_s:.0f} s, see {log}")
    if process.returncode:
        tail = log.read_text(errors="replace")[-1500:]
        raise RuntimeError(f"{command[0]} ended with {process.returncode}, see {log}\n{tail}")


def outcomes_of(lines: Iterable[Mapping[str, Any]]) -> Iterator[Outcome]:
    """Lines of JSON that a suite printed, as outcomes."""
    for line in lines:
        yield Outcome(
            scenario=line["scenario"],
            ok=line["ok"],
            ms=line["ms"],
            detail=line.get("detail") or "",
            counts=dict(line.get("counts") or {}),
            observed=dict(line.get("observed") or {}),
        )


def run_client_suite(
    namesrv_addr: str,
    client_version: str,
    directory: Path,
    *,
    only: Sequence[str] = (),
    parallel: int = 3,
    options: Sequence[str] = (),
    timeout_s: float = _SUITE_TIMEOUT_S,
    front: str | None = None,
) -> Iterator[Outcome]:
    """Run scenarios of the Java client; gives each outcome as it is known.

    Args:
        namesrv_addr: the cluster.
        client_version: one of peers.CLIENT_VERSIONS, or any release that Maven has.
        directory: where the client keeps logs and its broadcast offsets.
        only: scenarios; all that the release knows when empty.
        parallel: scenarios at a time.
        options: further JVM options, such as ``-Drocketmq.serialize.type=ROCKETMQ``.
        timeout_s: of the whole run.
        front: a proxy that producers and consumers ask instead of the name server.
    """
    lib, classes = client_classes(client_version)
    command = peers.java_command(
        lib,
        "ClientSuite",
        f"namesrv={namesrv_addr}",
        f"front={front or namesrv_addr}",
        f"timeout={_SCENARIO_TIMEOUT_S}",
        f"parallel={parallel}",
        *([f"only={','.join(only)}"] if only else []),
        classes=classes,
        options=(
            f"-Xmx{_CLIENT_HEAP}",
            f"-Duser.home={directory}",
            f"-Drocketmq.client.localOffsetStoreDir={directory / 'offsets'}",
            "-Drocketmq.client.logLevel=WARN",
            *options,
        ),
    )
    yield from outcomes_of(stream_json(command, directory, timeout_s=timeout_s))


def client_scenarios(client_version: str) -> list[str]:
    """Names of the scenarios that one release of the Java client can run."""
    lib, classes = client_classes(client_version)
    command = peers.java_command(lib, "ClientSuite", "list", classes=classes)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in done.stdout.split() if line]


def scenarios_of(suite: str) -> list[str]:
    """What a suite can run, by its name."""
    if suite.startswith("go"):
        return list(GO_SCENARIOS)
    first_of_5 = SCENARIOS.index("timer")
    found = SCENARIOS if suite.startswith("5") else SCENARIOS[:first_of_5]
    # A binary header has 16 bits for the code: POP does not fit.
    return [s for s in found if not ("+binary" in suite and s.startswith("pop"))]


def run_go_suite(
    namesrv_addr: str,
    directory: Path,
    *,
    only: Sequence[str] = (),
    timeout_s: float = _SUITE_TIMEOUT_S,
) -> Iterator[Outcome]:
    """Run scenarios of the Go client."""
    program = peers.compile_go("gosuite", peers.checkout() / "tests" / "interop" / "go")
    command = [str(program), "-namesrv", namesrv_addr, *only]
    environment = {"HOME": str(directory)}  # ROCKETMQ_GO_LOG_LEVEL passes through
    yield from outcomes_of(
        stream_json(command, directory, timeout_s=timeout_s, environment=environment)
    )


def markdown_table(
    columns: Mapping[str, Iterable[Outcome]],
    order: Sequence[str] = (*SCENARIOS, *GO_SCENARIOS),
) -> str:
    """One row per scenario, one column per run: ``yes``, ``no``, ``skipped`` or nothing.

    Args:
        columns: the outcomes of each run, by what it is called.
        order: every scenario there is.
    """
    by_column = {name: {o.scenario: o for o in outcomes} for name, outcomes in columns.items()}
    ran = {s for column in by_column.values() for s in column}
    scenarios = [s for s in order if s in ran]
    lines = [
        "| scenario | " + " | ".join(by_column) + " |",
        "|---|" + "---|" * len(by_column),
    ]
    words = {True: "yes", False: "**no**", None: "skipped"}
    for scenario in scenarios:
        cells = [
            words[column[scenario].ok] if scenario in column else ""
            for column in by_column.values()
        ]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def run_suite(
    cluster: Cluster, suite: str, directory: Path, only: Sequence[str]
) -> Iterator[Outcome]:
    """A suite by name: ``go``, or a release of the Java client, with ``+binary`` or ``+tls``."""
    if suite == "go":
        yield from run_go_suite(cluster.namesrv_addr, directory, only=only)
        return
    version, *flavours = suite.split("+")
    only = only or scenarios_of(suite)
    known = {
        "binary": ("-Drocketmq.serialize.type=ROCKETMQ",),
        "tls": ("-Dtls.enable=true", "-Dtls.client.authServer=false"),
    }
    options = [option for flavour in flavours for option in known[flavour]]
    yield from run_client_suite(
        cluster.namesrv_addr, version, directory, only=only, options=options
    )


def show_outcome(outcome: Outcome, name: str, *, observed: bool) -> None:
    """Prints how a scenario ended, and on request everything that it saw."""
    word = {True: "ok", False: "FAILED", None: "skipped"}[outcome.ok]
    counts = outcome.counts or ""
    click.echo(f"{name} {word:8} {outcome.ms:6} ms  {outcome.detail} {counts}")
    if observed:
        for what, value in outcome.observed.items():
            click.echo(f"    {what}: {value}")


@click.command()
@click.option("--broker", default="oberth", show_default=True, help="KIND or host:port.")
@click.option("--suite", default="5.5.0", show_default=True, help="Java client, or go.")
@click.option("--json", "as_json", is_flag=True, help="Whole outcomes instead of a line each.")
@click.option("--observed", is_flag=True, help="Also show what was observed.")
@click.argument("scenarios", nargs=-1)
def main(
    broker: str, suite: str, as_json: bool, observed: bool, scenarios: tuple[str, ...]
) -> None:
    """Run scenarios of an official client against a broker."""
    bad = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is stopped
    directory = Path(tempfile.mkdtemp(prefix="oberth-interop-"))
    try:
        with cluster_for(broker, directory) as cluster:
            for o in run_suite(cluster, suite, directory / "client", scenarios):
                bad += o.ok is False
                if as_json:
                    click.echo(json.dumps(asdict(o)))
                    continue
                show_outcome(o, f"{o.scenario:24}", observed=observed)
    except PeerUnavailableError as why:
        raise click.ClickException(str(why)) from why
    click.echo(f"logs and store: {directory}", err=True)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
