"""Apache's own integration tests, as they compiled them, against three brokers of ours.

    python -m tests.rigs.apache_suite BatchSendIT PopPriorityIT
    python -m tests.rigs.apache_suite            # all that can be asked of another process
    python -m tests.rigs.apache_suite --broker apache StaticTopicIT

The tests come from Maven (``rocketmq-test``, classifier ``tests``). They start name server and
brokers through one class, IntegrationTestBase; ours of that name (tests/interop/java/integration)
stands before theirs in the class path and starts ``oberth namesrv`` and ``oberth broker`` instead.
With ``--broker apache`` it does not, and the tests run as Apache runs them, for comparison.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from tests.rigs import peers
from tests.rigs.interop import stream_json

from oberth.errors import PeerUnavailableError

__all__ = ["TestOutcome", "all_tests", "run_tests"]

VERSION: Final = "5.5.0"
TIMEOUT_S: Final = 3600.0

IN_PROCESS: Final = ("autoswitchrole", "container", "dledger", "grpc")
"""Packages whose tests build what they test inside the Java process: brokers in a container with
their replicas, controllers, DLedger, a proxy."""

GRPC: Final = ("BrokerGrpcIT", "OberthProxyGrpcIT")
"""ClusterGrpcIT of theirs, which builds a proxy inside the Java process, with our servers in its
place: the first broker itself, and our proxy before all three."""

_PACKAGE: Final = "org/apache/rocketmq/test/"


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One test method: ``passed``, ``failed``, ``skipped`` (by us) or ``ignored`` (by Apache)."""

    test: str
    outcome: str
    ms: int
    detail: str

    __test__ = False  # not for pytest to collect


def _lib() -> Path:
    return peers.jars(VERSION, "integration")


def all_tests(lib: Path | None = None) -> dict[str, str]:
    """The classes that can be run, full names by short ones."""
    jar = (lib or _lib()) / f"rocketmq-test-{VERSION}-tests.jar"
    with zipfile.ZipFile(jar) as packed:
        names = sorted(name for name in packed.namelist() if name.endswith("IT.class"))
    found = {
        name.rpartition("/")[2].removesuffix(".class"): name.removesuffix(".class").replace(
            "/", "."
        )
        for name in names
        if name.startswith(_PACKAGE) and name.split("/")[4] not in IN_PROCESS
    }
    return found | {name: f"org.apache.rocketmq.test.grpc.v2.{name}" for name in GRPC}


def run_tests(
    classes: Sequence[str], directory: Path, *, broker: str = "oberth"
) -> Iterator[TestOutcome]:
    """Run classes by their short names in one Java process, which keeps its brokers throughout.

    Args:
        classes: short names; none: all.
        directory: for stores and logs.
        broker: ``oberth`` or ``apache``.

    Raises:
        PeerUnavailableError: no Java, no Maven, or an unknown class.
    """
    lib = _lib()
    known = all_tests(lib)
    unknown = [name for name in classes if name not in known]
    if unknown:
        raise PeerUnavailableError(f"{', '.join(unknown)}: none of {', '.join(known)}")
    root = peers.checkout() / "tests" / "interop" / "java"
    ours = peers.compile_java(
        "integration", lib, [*(root / "integration").glob("*.java"), root / "common" / "Json.java"]
    )
    path = directory / "classes"
    path.mkdir(parents=True, exist_ok=True)
    for each in ours.rglob("*.class"):
        if broker == "oberth" or each.parent == ours:
            target = path / each.relative_to(ours)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(each.read_bytes())
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    command = peers.java_command(
        lib,
        "IntegrationRun",
        *(known[name] for name in classes or known),
        classes=path,
        options=(
            "-Xmx512m" if broker == "oberth" else "-Xmx2g",
            f"-Duser.home={directory}",
            f"-Djava.io.tmpdir={temporary}",
            f"-Doberth.command={sys.executable} -m oberth",
            f"-Doberth.directory={directory / 'cluster'}",
        ),
    )
    for line in stream_json(command, directory, timeout_s=TIMEOUT_S):
        yield TestOutcome(**line)


@click.command()
@click.argument("classes", nargs=-1)
@click.option("--broker", type=click.Choice(["oberth", "apache"]), default="oberth")
@click.option("--directory", type=click.Path(path_type=Path), help="For stores and logs.")
def main(classes: tuple[str, ...], broker: str, directory: Path | None) -> None:
    """Run Apache's integration tests CLASSES (all, when none is named).

    Example: python -m tests.rigs.apache_suite BatchSendIT
    """
    where = directory or Path(tempfile.mkdtemp(prefix="oberth-integration-"))
    counts: Counter[str] = Counter()
    try:
        for each in run_tests(classes, where, broker=broker):
            counts[each.outcome] += 1
            reason = each.detail.partition("\n")[0]
            click.echo(f"{each.outcome:8} {each.test} {each.ms} ms {reason}".rstrip())
    except PeerUnavailableError as why:
        raise click.ClickException(str(why)) from None
    total = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    click.echo(f"{total or 'nothing ran'}; stores and logs: {where}", err=True)
    if counts["failed"] or not counts:
        sys.exit(1)


if __name__ == "__main__":
    main()
