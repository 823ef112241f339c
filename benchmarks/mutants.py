"""Small changes of the code that promises something, and whether a test notices each.

    python -m benchmarks.mutants [--seed N] [--count 300] [--area NAME ...] [--small]
    python -m benchmarks.mutants --dir DIR --for 300    some minutes of it; the next call goes on
    python -m benchmarks.mutants --syncs        every sync of store and broker, left out in turn
    python -m benchmarks.mutants --only TEXT    changes whose line in the report has this in it

Changes (`mutation/changes.py` has the table) are drawn by seed from the files of `AREAS`, as many
from each area. Tests that reach the changed lines run against it in a copy of the tree, the fastest
first; it is killed when one fails. What passes all the same stands in the report, unless
docs/mutants.md says why nothing can notice it. A test that killed something must pass on the
unchanged copy at the end, or its kills do not count.

Which test reaches what is found out once (`mutation/reach.py`: all tests below run for some
minutes) and kept in --dir; `--fresh` does it again. What became of each change is kept there too,
as long as its module stays what it was: a draw may be tried in parts (`--for SECONDS`), and
`--again` tries once more what passed, say after a test was written. Fails if less than 95 % are
killed of those that are not explained. The small form draws a few from files whose own tests take
seconds, and fails if half of them live.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutation.changes import Change, changes_of
from benchmarks.mutation.kept import Kept
from benchmarks.mutation.runs import (
    ROOT,
    Choice,
    Copy,
    Reached,
    Runs,
    Verdict,
    look,
    mirror_of,
    read_reached,
)
from benchmarks.report import Row, emit

AREAS: dict[str, tuple[str, ...]] = {
    "durability": (
        "store/flush.py", "store/group_commit.py", "store/mapped_file.py", "store/files.py",
        "store/mapped_file_queue.py", "store/store_checkpoint.py", "store/store_lock.py",
        "store/running_flags.py", "store/burst.py", "store/commit_log.py",
        "store/disk_reserve.py", "store/log_checksums.py", "store/replication.py",
        "store/epoch_replication.py", "broker/half_messages.py",
        "store/timer/*.py", "broker/table_files.py", "broker/config_file.py",
        "broker/delay_progress.py",
    ),
    "offsets": (
        "broker/consumer_offsets.py", "broker/lmq_consumer_offsets.py", "broker/dispatching.py",
        "broker/pull_request_hold.py", "store/consume_queue.py", "store/consume_queue_store.py",
        "store/batch_consume_queue.py", "store/offset_by_time.py", "store/dispatch.py",
        "broker/pop/*.py",
    ),
    "permission": ("broker/acl/*.py", "broker/topic_configs.py", "formats/names.py"),
    "filter": (
        "broker/consumer_filters.py", "broker/expressions.py", "broker/subscriptions.py",
        "formats/bloom.py", "formats/sql92.py", "formats/sql92_nodes.py",
        "store/consume_queue_ext.py",
    ),
    "retention": (
        "store/retention.py", "store/cleaning.py", "store/compaction_log.py",
        "store/compaction_store.py", "store/deleted_topics.py", "broker/deletions.py",
        "broker/cold_reads.py",
    ),
    "recovery": (
        "store/recovery.py", "store/recovery_state.py", "store/log_scan.py",
        "store/index_repair.py", "store/dispatch_state.py", "store/dispatch_handover.py",
        "store/index_service.py", "store/index_file.py", "store/message_store.py",
        "store/store_parts.py", "store/store_reading.py",
        "formats/torn_record.py", "formats/marker_files.py",
    ),
    "wire": (
        "remoting/command.py", "remoting/connection.py", "remoting/open_requests.py",
        "remoting/first_bytes.py", "formats/message.py", "formats/properties.py",
        "formats/batch_body.py", "formats/message_id.py", "formats/checkpoint.py",
    ),
}  # fmt: skip
SYNCED = ("store/**/*.py", "broker/**/*.py")
TESTS = tuple(
    f"tests/{name}"
    for name in ("store", "broker", "remoting", "formats", "namesrv", "testing", "client")
)
SMALL = ("formats/checkpoint.py", "formats/bloom.py", "store/store_checkpoint.py")
"""Files whose mirrors alone notice nearly everything, within seconds."""
BAR = 0.95
BUDGET_S = 60.0
"""Of tests for each change, as long as they took while they were looked at."""
NOTICED = ROOT / "tests" / "syncs_noticed.txt"
EXPLAINED = ROOT / "docs" / "mutants.md"


def changes_in(patterns: Sequence[str]) -> list[Change]:
    """All changes of the files of the package that patterns name."""
    package = ROOT / "src" / "oberth"
    paths = sorted({path for pattern in patterns for path in package.glob(pattern)})
    return [
        change
        for path in paths
        for change in changes_of(str(path.relative_to(package)), path.read_bytes())
    ]


def draw(seed: int, count: int, areas: Sequence[str]) -> list[Change]:
    """``count`` changes, as many from each area; of the same tree the same for a seed."""
    drawn: list[Change] = []
    for number, area in enumerate(areas):
        rng = random.Random(f"{seed} {area}")
        found = changes_in(AREAS[area])
        share = count * (number + 1) // len(areas) - count * number // len(areas)
        drawn += rng.sample(found, min(share, len(found)))
    return drawn


def explained(page: Path = EXPLAINED) -> dict[tuple[str, str, str, str], str]:
    """What the page explains: file, function, before and after, and why nothing notices."""
    found: dict[tuple[str, str, str, str], str] = {}
    if not page.exists():
        return found
    row = re.compile(r"\| `([^`]+)` `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| (.+) \|")
    for line in page.read_text(encoding="utf-8").splitlines():
        match = row.fullmatch(line)
        if match is not None:
            path, function, before, after, why = match.groups()
            found[path, function, before, after] = why
    return found


class BarMissedError(Exception):
    """Too many changes were not noticed."""


class Noticed(NamedTuple):
    """A row of syncs_noticed.txt: the test that fails without a sync, or why nothing notices."""

    test: str | None
    why: str


def noticed() -> dict[str, Noticed]:
    """The table, by `Change.place`."""
    found: dict[str, Noticed] = {}
    for line in NOTICED.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            place, _, rest = line.partition(" :: ")
            is_test = rest.startswith("tests/")
            assert place not in found, f"{place} stands there twice"
            found[place] = Noticed(rest if is_test else None, "" if is_test else rest)
    return found


def key_of(change: Change) -> tuple[str, str, str, str]:
    """How the page names a change: without its line, which moves; ¦ stands for |."""
    texts = (change.before, change.after)
    before, after = (" ".join(text.split()).replace("|", "¦").replace("`", "'") for text in texts)
    return change.path, change.function or "module", before, after


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--area", action="append", choices=sorted(AREAS), help="only this one")
    parser.add_argument("--syncs", action="store_true", help="all syncs of store and broker")
    parser.add_argument("--only", action="append", help="changes whose line has this in it")
    parser.add_argument("--small", action="store_true", help="a few, within a minute, for CI")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="keeps what tests reach")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="to choose from")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="of tests a change, s")
    parser.add_argument("--fresh", action="store_true", help="look again what tests reach")
    parser.add_argument("--for", type=float, dest="seconds", help="begins no change later, s")
    parser.add_argument("--again", action="store_true", help="tries what passed before, too")
    options = parser.parse_args(argv)
    base = options.dir or Path(tempfile.mkdtemp(prefix="oberth-mutants-"))
    try:
        share = _run(options, base)
    finally:
        if options.dir is None:
            shutil.rmtree(base, ignore_errors=True)
    if share is not None and share < (0.5 if options.small else BAR):
        raise BarMissedError(f"{share:.1%} killed of those not explained")


def _changes(options: argparse.Namespace) -> list[Change]:
    if options.small:
        return random.Random(options.seed).sample(changes_in(SMALL), 6)
    if options.syncs:
        found = [each for each in changes_in(SYNCED) if each.kind == "sync"]
    elif options.only:
        found = changes_in([pattern for area in AREAS.values() for pattern in area])
    else:
        found = draw(options.seed, options.count, options.area or list(AREAS))
    if options.only:
        found = [each for each in found if any(text in str(each) for text in options.only)]
    return found


def _run(options: argparse.Namespace, base: Path) -> float | None:
    changes = _changes(options)
    copies = []
    for number in range(options.processes):
        place = base / f"copy-{number}"
        shutil.rmtree(place, ignore_errors=True)
        copies.append(Copy(place))
    choice: Choice | Named = Named(noticed()) if options.syncs else _choice(options, base, copies)
    began = time.monotonic()
    runs = Runs(copies, choice)
    try:
        return _try(options, base, changes, copies, runs, began)
    finally:
        runs.close()


def _try(
    options: argparse.Namespace,
    base: Path,
    changes: Sequence[Change],
    copies: Sequence[Copy],
    runs: Runs,
    began: float,
) -> float | None:
    why_not = explained()
    if options.syncs:
        table = noticed()
        why_not |= {key_of(c): table[c.place].why for c in changes if table[c.place].test is None}
    kept = Kept(base / f"verdicts{'-syncs' if options.syncs else ''}.jsonl")
    known = [kept.verdict(change) for change in changes]
    verdicts = {each.change: each for each in known if each is not None}
    if options.again:
        verdicts = {each.change: each for each in verdicts.values() if each.killer is not None}
    runs.warm([change for change in changes if change not in verdicts], kept.refused)
    for verdict in runs.try_all([] if verdicts else [each.nothing() for each in changes[:1]]):
        if verdict.killer is not None:
            raise RuntimeError(f"tests fail where nothing is changed: {verdict}")
    ends = math.inf if options.seconds is None else began + options.seconds
    todo = [change for change in changes if change not in verdicts]
    while todo:
        for verdict in runs.try_all(_until(ends, todo), kept.refused):
            kept.add(verdict)
            verdicts[verdict.change] = verdict
            word = "survived" if verdict.killer is None else "killed"
            if verdict.killer is None and key_of(verdict.change) in why_not:
                word = "explained"
            _say(
                f"{len(verdicts):4}/{len(changes)} {word:9} {verdict.seconds:5.1f} s "
                f"{verdict.change} [{verdict.killer or verdict.how}, {verdict.tests} tests]"
            )
        killers = {each.killer for each in verdicts.values() if each.killer}
        killers -= {"import"} | kept.steady | kept.refused
        unsteady = _unsteady(copies[0], base, killers, options.processes)
        kept.looked(killers, unsteady)
        todo = [change for change, each in verdicts.items() if each.killer in unsteady]
        for change in todo:
            del verdicts[change]
        for name in sorted(unsteady):
            _say(f"fails unchanged, its kills do not count: {name}")
    return _report(options, changes, verdicts, why_not, time.monotonic() - began)


def _until(ends: float, changes: Iterable[Change]) -> Iterator[Change]:
    return itertools.takewhile(lambda _: time.monotonic() < ends, changes)


class Named:
    """Chooses the one test that the table of syncs names."""

    def __init__(self, table: dict[str, Noticed]) -> None:
        self._table = table

    def tests(self, change: Change, without: Collection[str] = ()) -> list[Reached]:
        """That test; none for what the table explains."""
        test = self._table[change.place].test
        return [] if test is None or test in without else [Reached(test, 1.0, {})]


def _choice(options: argparse.Namespace, base: Path, copies: Sequence[Copy]) -> Choice:
    return Choice(_reached(options, base, copies[0]), options.budget)


def _reached(options: argparse.Namespace, base: Path, copy: Copy) -> list[Reached]:
    into = base / ("reach-small" if options.small else "reach")
    if options.fresh or options.small:
        shutil.rmtree(into, ignore_errors=True)
    if not into.exists():
        tests = [mirror_of(path) for path in SMALL] if options.small else options.tests
        _say(f"looking what {' '.join(tests)} reach")
        look(copy, tests, into, options.processes)
    return read_reached(into)


def _unsteady(copy: Copy, base: Path, killers: set[str], processes: int) -> set[str]:
    """Tests that do not pass on the unchanged copy."""
    if not killers:
        return set()
    into = base / "again"
    shutil.rmtree(into, ignore_errors=True)
    look(copy, sorted(killers), into, processes)
    files = {name for name in killers if "::" not in name}  # they could not be collected
    return killers - files - {each.test for each in read_reached(into)}


def _report(
    options: argparse.Namespace,
    changes: Sequence[Change],
    verdicts: dict[Change, Verdict],
    why_not: dict[tuple[str, str, str, str], str],
    seconds: float,
) -> float | None:
    # The share, once all were tried.
    killed = [each for each in verdicts.values() if each.killer is not None]
    passed = [each for each in verdicts.values() if each.killer is None]
    known = [each for each in passed if key_of(each.change) in why_not]
    survivors = [each for each in passed if key_of(each.change) not in why_not]
    counted = len(killed) + len(survivors)
    share = len(killed) / counted if counted else 1.0
    is_whole = len(verdicts) == len(changes)
    row = Row("killed, of those not explained", "share", limit=BAR)
    row.add("tests", share)
    emit(
        "mutants", [row], "tests", "",
        seed=options.seed, changes=len(changes), tried=len(verdicts), killed=len(killed),
        explained=len(known), survived=len(survivors), seconds=round(seconds),
        survivors=[f"{each.change} [{each.how}, {each.tests} tests]" for each in survivors],
        killers={str(each.change): f"{each.killer} {each.how}" for each in killed},
    )  # fmt: skip
    return share if is_whole else None


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
