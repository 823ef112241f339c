"""Every mqadmin command over the same contents, against any cluster, and two runs compared.

    ours = run_admin_suite(cluster.namesrv_addr, "5.5.0", directory)
    compare(theirs, ours)  # label -> "equal", "differs", "fails", "both fail"

The commands are in tests/interop/mqadmin.txt; AdminSuite (Java) prepares topics, messages, groups
and a live consumer, then runs the official tool's commands one after the other in one JVM.
Comparison is of what a person reads: addresses, times, ids, rates and sizes of logs are replaced by
their kind first, and columns may have other widths.
"""

from __future__ import annotations

import difflib
import json
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from tests.rigs import peers
from tests.rigs.clusters import cluster_for
from tests.rigs.interop import client_classes, stream_json

__all__ = [
    "ADMIN_CONF",
    "MEANT",
    "REFUSED",
    "CommandRun",
    "compare",
    "normalise",
    "plan_file",
    "read_record",
    "reason_of",
    "run_admin_suite",
    "write_record",
]

ADMIN_CONF: Final[Mapping[str, str]] = {
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationMetadataProvider": (
        "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""broker.conf of a cluster whose commands are compared: users and policies kept, not enforced."""

_MOMENT: Final = "figures of the moment"
_SETTINGS: Final = "settings that we do not have are not listed"
_NAMED: Final = "the message names what was wrong and what is allowed"
_COUNTS: Final = "it counts what there is inside the broker"

MEANT: Final[Mapping[str, str]] = {
    "brokerStatus*": f"{_MOMENT}; thread pools that we do not have",
    "clusterList*": _MOMENT,
    "statsAll*": _MOMENT,
    "consumerProgress": _MOMENT,
    "consumerStatus*": "stacks and counts of the client's threads",
    "clusterRT*": _MOMENT,
    "topicList -c": "the group of POP's revive topic appears with its first offset",
    "getBrokerConfig*": _SETTINGS,
    "getNamesrvConfig": _SETTINGS,
    "getBrokerLiteInfo*": _COUNTS,
    "wipeWritePerm": _COUNTS,
    "addWritePerm": _COUNTS,
    "queryCq behind": "Apache's answer has no body, on which the tool fails",
    "queryCq queue": "Apache's answer has no body, on which the tool fails",
    "cloneGroupOffset -o": "a group that may be made is made by its first offset",
    "getUser*": "passwords are not shown to unsigned requests",
    "made: getUser": "passwords are not shown to unsigned requests",
    "made: listUser": "passwords are not shown to unsigned requests",
    "updateSubGroup unknown attribute": "no Java exception in the message",
    "createAcl resource": _NAMED,
    "createAcl action": _NAMED,
}
"""Commands whose output or message differs on purpose, or in what is no contract. A key that ends
with * stands for every label that begins so."""

REFUSED: Final[Mapping[str, str]] = {
    "updateBrokerConfig": "flushDiskType cannot change while the broker runs",
    "updateBrokerConfig unknown": "a setting that does not exist is an error",
    "updateBrokerConfig value": "a value that does not parse is an error",
    "createUser type": "a type of user that does not exist is an error",
    "deleteUser -c": "the last Super user is not deleted",
}
"""Commands that Apache's cluster answers and ours refuses, with the reason; keys as in MEANT."""


def reason_of(reasons: Mapping[str, str], label: str) -> str | None:
    """Why a label may differ, or None; a key that ends with * stands for all that begin so."""
    found = reasons.get(label)
    if found is not None:
        return found
    for key, why in reasons.items():
        if key.endswith("*") and label.startswith(key[:-1]):
            return why
    return None


_TIMEOUT_S: Final = 1800
_LINES_KEPT: Final = 1500

_VOLATILE: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([:,.]\d+)?"), "<date>"),
    (re.compile(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d([:,.]\d+)?"), "<date>"),
    (re.compile(r"/?\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(:\d+)?(@[\w#.-]+)?"), "<addr>"),
    (re.compile(r"\b[0-9A-F]{32,}\b"), "<id>"),
    (re.compile(r"spentTimeMills=\d+"), "<spent>"),
    (re.compile(r"\b1[5-9]\d{11}\b"), "<ms>"),
    (re.compile(r"\b\d+\.\d+(E-?\d+)?\b"), "<x>"),
    (re.compile(r"(?<![\w.])(PID_\w+?_)?<addr>[:\d]*"), "<addr>"),
    (re.compile(r"/(?:[\w.+-]+/){2,}[\w.+-]*|/tmp/\S+"), "<path>"),
    (re.compile(r"\b(\w*[lL]istenPort) = \d+"), r"\1 = <port>"),
    (re.compile(r"\b\d+ms\b"), "<ms>"),
    (re.compile(r"(?i)(commitLog ?(?:Max)?Offset\W+)\d+"), r"\1<n>"),
    (re.compile(r"\bV\d_\d+_\d+\w*\b"), "<version>"),
    (re.compile(r"(?<=#)\d{6,}|\b\d{9,}\b"), "<n>"),
    (re.compile(r"@[0-9a-f]{5,8}\b"), "@<hash>"),
    (re.compile(r"\brt=\d+ms"), "<rt>"),
    # Which queue a message is sent to, the client chooses by chance.
    (re.compile(r"\bqueueId=\d+\], queueOffset=\d+"), "queueId=<any>], queueOffset=<any>"),
    (re.compile(r"^(\S+)[ \t]+\d+[ \t]+SEND_OK", re.MULTILINE), r"\1 <any> SEND_OK"),
    (re.compile(r"^(\S+[ \t]+\d+[ \t]+true)[ \t]+\d+[ \t]*$", re.MULTILINE), r"\1 <ms>"),
    (re.compile(r"(?<=originalMsgId=)[0-9A-F]{32}"), "<id>"),
    (re.compile(r"\bTID: \d+"), "TID: <n>"),
    # A consumer that ends after its first messages may not have come to its retry queue by then.
    (re.compile(r"^%RETRY%AdminIdle\b.*$", re.MULTILINE), ""),
    (re.compile(r"[ \t]+"), " "),
)
"""What differs between any two runs, and what it is replaced by; in this order."""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """One command: what it printed, and whether it ended without an exception."""

    label: str
    command: str
    ok: bool | None
    ended: bool
    detail: str
    output: str
    errors: str


def plan_file() -> Path:
    """The commands: label, tab, command line."""
    return peers.checkout() / "tests" / "interop" / "mqadmin.txt"


def run_admin_suite(
    namesrv_addr: str, version: str, directory: Path, *, labels: Sequence[str] = ()
) -> list[CommandRun]:
    """Run the commands of one release of the tool against a fresh cluster.

    Args:
        namesrv_addr: the cluster; topics and groups named Admin… are made in it.
        version: of the tool, one of peers.CLIENT_VERSIONS.
        directory: where exports and logs land.
        labels: which commands; all when empty.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "conf").mkdir(exist_ok=True)
    (directory / "conf" / "logback_tools.xml").write_text("<configuration/>")
    topic = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    topics = [{"topicName": f"AdminList{n}", **topic} for n in range(2)]
    (directory / "topics.json").write_text(json.dumps(topics))
    groups = [{"groupName": f"AdminListGroup{n}"} for n in range(2)]
    (directory / "groups.json").write_text(json.dumps(groups))
    lines = [line for line in plan_file().read_text().splitlines() if "\t" in line]
    chosen = [line for line in lines if not labels or line.partition("\t")[0] in labels]
    plan = directory / "plan"
    plan.write_text("\n".join(chosen) + "\n")
    lib, classes = client_classes(version)
    command = peers.java_command(
        lib,
        "AdminSuite",
        *(f"namesrv={namesrv_addr}", f"plan={plan}", f"dir={directory}"),
        classes=classes,
        options=(
            *("-Djava.security.manager=allow", f"-Duser.home={directory}", "-Xmx512m"),
            f"-Djava.io.tmpdir={directory}",
        ),
    )
    environment = {"ROCKETMQ_HOME": str(directory)}
    return [
        CommandRun(
            label=line["scenario"],
            command=line["command"],
            ok=line["ok"],
            ended=line["counts"]["ended"],
            detail=line["detail"],
            output=line["output"],
            errors=line["errors"],
        )
        for line in stream_json(command, directory, timeout_s=_TIMEOUT_S, environment=environment)
    ]


def normalise(text: str) -> list[str]:
    """Lines without what differs between any two runs, sorted (tools print maps in any order)."""
    for pattern, kind in _VOLATILE:
        text = pattern.sub(kind, text)
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def compare(rival: Sequence[CommandRun], ours: Sequence[CommandRun]) -> Mapping[str, str]:
    """What came of each command.

    Returns:
        By label: ``equal``, ``differs``, ``fails`` (only ours), ``both fail`` (and say the same),
        ``fails otherwise`` (both, with another message), ``only ours works`` or ``no such
        command``.
    """
    mine = {run.label: run for run in ours}
    return {theirs.label: _verdict(theirs, mine.get(theirs.label)) for theirs in rival}


def _verdict(theirs: CommandRun, own: CommandRun | None) -> str:
    if theirs.ok is None:
        return "no such command"
    if own is None or (theirs.ok and not own.ok):
        return "fails"
    alike = normalise(theirs.output) == normalise(own.output)
    if theirs.ok:
        return "equal" if alike else "differs"
    if own.ok:
        return "only ours works"
    alike = alike and normalise(theirs.detail) == normalise(own.detail)
    return "both fail" if alike else "fails otherwise"


def main() -> None:
    """Compare a broker with Apache's and print the table: ``python -m tests.rigs.mqadmin``."""
    _command()


@click.command()
@click.option("--broker", default="oberth", show_default=True, help="KIND or host:port.")
@click.option("--rival", default="apache-5.5.0", show_default=True, help="KIND, or a record.")
@click.option("--tool", default="5.5.0", show_default=True, help="Release of mqadmin.")
@click.option("--record", type=click.Path(dir_okay=False), help="Write the rival's runs there.")
@click.option("--verdicts", type=click.Path(dir_okay=False), help="Write them there, as JSON.")
@click.option("--diff", is_flag=True, help="Show the lines that differ.")
@click.argument("labels", nargs=-1)
def _command(
    broker: str,
    rival: str,
    tool: str,
    record: str | None,
    verdicts: str | None,
    diff: bool,
    labels: tuple[str, ...],
) -> None:
    """Run every mqadmin command on two clusters and compare.

    --rival also takes a file that --record wrote, so that Apache's cluster need not run.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters are stopped
    base = Path(tempfile.mkdtemp(prefix="oberth-mqadmin-"))

    def run(kind: str) -> list[CommandRun]:
        with cluster_for(kind, base / kind.replace(":", "-"), ADMIN_CONF) as cluster:
            folder = base / f"tool-{kind.replace(':', '-')}"
            return run_admin_suite(cluster.namesrv_addr, tool, folder, labels=labels)

    theirs = read_record(Path(rival)) if Path(rival).is_file() else run(rival)
    if record is not None:
        write_record(Path(record), theirs)
    ours = run(broker)
    mine = {run.label: run for run in ours}
    found = compare([run for run in theirs if not labels or run.label in labels], ours)
    before = {run.label: run for run in theirs}
    for label, verdict in found.items():
        click.echo(f"{label:34} {verdict:16} {mine[label].detail if verdict == 'fails' else ''}")
        if diff and verdict in ("differs", "fails otherwise", "only ours works"):
            old, new = (normalise(f"{r.output}\n{r.detail}") for r in (before[label], mine[label]))
            for line in list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]:
                if not line.startswith("@@"):
                    click.echo("    " + line)
    if verdicts is not None:
        Path(verdicts).write_text(json.dumps(found, indent=1) + "\n")
    counts = Counter(found.values())
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


def write_record(path: Path, runs: Sequence[CommandRun], *, outputs: bool = True) -> None:
    """Keep what a cluster printed, without what differs between any two runs.

    Args:
        path: the file.
        runs: of one cluster.
        outputs: False to keep only which commands worked, and why others did not.
    """
    kept = [
        {
            "label": run.label,
            "command": run.command.split(" ", 1)[0],
            "ok": run.ok,
            "ended": run.ended,
            "detail": normalise(run.detail)[0] if run.detail else "",
            "output": normalise(run.output)[:_LINES_KEPT] if outputs else [],
        }
        for run in runs
    ]
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def read_record(path: Path) -> list[CommandRun]:
    """What write_record() kept."""
    return [
        CommandRun(
            label=kept["label"],
            command=kept["command"],
            ok=kept["ok"],
            ended=kept["ended"],
            detail=kept["detail"],
            output="\n".join(kept["output"]),
            errors="",
        )
        for kept in json.loads(path.read_text())
    ]


if __name__ == "__main__":
    main()
