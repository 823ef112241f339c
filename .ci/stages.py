"""What must be green before anything lands; `.ci/run` runs it.

    stage        what                                                   at least
    lint         ruff, mypy, import contracts
    test         README's `make test`                                   TESTS_MIN tests pass
    interop      small `make interop`: RocketMQ's programs, Chromium    INTEROP_MIN tests pass
    benchmarks   small `make bench`                                     BENCHMARKS_MIN run
    test-long    `make test-long`: what `make test` leaves out          LONG_MIN tests pass

Each stage ends with `N passed, N failed, N skipped` and why tests were skipped. The floors keep a
stage from being green because it did nothing. That of interop holds where the registry of the
other projects' jars answers; where it does not the stage says so and counts as skipped.

What failed in interop gets a second run: brokers, clients and browsers of other projects keep their
own time-outs, and a machine that stands still for a moment is no finding. Of the other tests up to
SECOND_TRIES_MAX do, if no more failed. What fails twice is a finding; what passed only at its
second try is named at the end, and is to be made steady.

Every stage has a limit, and all together ALL_LIMIT_S. test-long comes last: a slow machine may stop
it when that time is over, which the summary says; what failed until then counts, and its floor too.

Asks nothing, changes nothing in the checkout, ends with 0 if every stage is green, else with 1.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TESTS_MIN = 6000
LONG_MIN = 80
INTEROP_MIN = 130
BENCHMARKS_MIN = 12

TEST_LIMIT_S = 1600
INTEROP_LIMIT_S = 2000
SECOND_TRY_LIMIT_S = 500
FEW_LIMIT_S = 300
SECOND_TRIES_MAX = 3
SESSIONS = 2
"""Sessions of pytest in a target of tests: Spark's and the others."""
BENCHMARKS_LIMIT_S = 1300
ALL_LIMIT_S = 86 * 60

REASONS_SHOWN = 20
FAILURES_SHOWN = 20
PROBE = (
    "mvn", "-B", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:get",
    "-Dartifact=org.apache.rocketmq:rocketmq-common:5.5.0", "-Dtransitive=false",
)  # fmt: skip
"""Brings one small jar that interop needs, by Maven itself and not by our code."""


@dataclass
class Outcome:
    """How the tests of some sessions ended, by name."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    sessions: int = 0
    unfinished: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def read_outcome(path: Path) -> Outcome:
    """What the plugin oberth_ci_results wrote; no file means that no session began."""
    made = Outcome()
    if not path.exists():
        return made
    for line in path.read_text(encoding="utf-8").splitlines():
        match json.loads(line):
            case {"begun": name}:
                made.unfinished.add(name)
            case {"passed": name}:
                made.passed.add(name)
            case {"failed": name}:
                made.failed.add(name)
            case {"skipped": name, "reason": reason}:
                made.skipped[name] = reason
            case {"sessions": number}:
                made.sessions += number
    made.passed -= made.failed
    made.unfinished -= made.passed | made.failed | made.skipped.keys()
    return made


def after_second_try(first: Outcome, second: Outcome) -> tuple[Outcome, set[str]]:
    """Both runs as one, and what passed only at its second try.

    What failed first and has no second outcome has failed.
    """
    recovered = first.failed & second.passed
    return (
        Outcome(
            passed=first.passed | second.passed,
            failed=(first.failed - recovered) | second.failed,
            skipped={**first.skipped, **second.skipped},
            sessions=first.sessions + second.sessions,
            unfinished=second.unfinished,
        ),
        recovered,
    )


def skip_lines(skipped: Mapping[str, str]) -> list[str]:
    """Why tests were skipped, the most frequent reasons first."""
    counts = Counter(skipped.values())
    lines = [f"{count:5} × {reason[:200]}" for reason, count in counts.most_common(REASONS_SHOWN)]
    if len(counts) > REASONS_SHOWN:
        lines.append(f"      … and {len(counts) - REASONS_SHOWN} other reasons")
    return lines


@dataclass
class Verdict:
    """A stage's last word."""

    stage: str
    text: str
    problems: list[str]
    second_try: set[str] = field(default_factory=set)
    seconds: float = 0

    @property
    def is_green(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def judge(
    stage: str,
    outcome: Outcome,
    code: int | None,
    passed_min: int,
    second_try: set[str] | None = None,
    *,
    may_be_stopped: bool = False,
) -> Verdict:
    """What a stage of tests is worth.

    Args:
        stage: its name.
        outcome: of its tests.
        code: the exit code of the last run; None: it was stopped at its limit.
        passed_min: fewer that passed are a problem.
        second_try: what passed only then.
        may_be_stopped: whether the end of all stages' time may come in the middle of it.
    """
    problems = []
    text = str(outcome)
    is_cut = may_be_stopped and code is None
    if is_cut:
        text += ", stopped when the time of all stages was over"
    elif code is None:
        problems.append("stopped: it took longer than it may")
    elif code:
        problems.append(f"exit code {code}")
    if outcome.unfinished and not is_cut:
        problems.append(f"stopped in: {', '.join(sorted(outcome.unfinished)[:3])}")
    if outcome.failed:
        problems.append(f"{len(outcome.failed)} failed")
        problems += [f"  {name}" for name in sorted(outcome.failed)[:FAILURES_SHOWN]]
    if not outcome.sessions and not is_cut:
        problems.append("no session of pytest came to its end")
    elif len(outcome.passed) < passed_min:
        problems.append(f"{len(outcome.passed)} tests passed, at least {passed_min} must")
    return Verdict(stage, text, problems, second_try or set())


def judge_benchmarks(output: str, code: int | None, run_min: int) -> Verdict:
    """What the benchmarks' output is worth: `== NAME` begins each, `skipped: …` a missing part."""
    lines = output.splitlines()
    started = [line.removeprefix("== ") for line in lines if line.startswith("== ")]
    ends = [line.partition(" failed: ") for line in lines]
    failed = [name for name, said, _ in ends if said and name in started]
    skipped = [line for line in lines if "skipped: " in line]
    problems = []
    if code is None:
        problems.append("stopped: it took longer than it may")
    elif code:
        problems.append(f"exit code {code}")
    ran = len(started) - len(failed)
    if ran < run_min:
        problems.append(f"{ran} benchmarks ran, at least {run_min} must")
    text = f"{ran} ran, {len(failed)} failed, {len(skipped)} parts skipped"
    return Verdict("benchmarks", text, problems)


def report(verdicts: Sequence[Verdict], seconds: float) -> str:
    """The end of a run: a line for each stage, what needed a second try, what is wrong."""
    lines = ["", "== summary"]
    for each in verdicts:
        state = "green" if each.is_green else "RED"
        lines.append(f"{each.stage:10} {state:6} {each.text}, {each.seconds / 60:.0f} min")
        lines += [f"{'':17} {problem}" for problem in each.problems]
    second = sorted(set().union(*(each.second_try for each in verdicts)))
    if second:
        lines.append(f"passed only at their second try: {len(second)}")
        lines += [f"  {name}" for name in second]
    lines.append(f"{seconds / 60:.0f} minutes")
    return "\n".join(lines)


class Runner:
    """Starts `make` with a limit; what is left when that is over is killed with all it started."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        path = os.pathsep.join(filter(None, [str(ROOT / ".ci"), os.environ.get("PYTHONPATH", "")]))
        self.environment = {
            **os.environ,
            "CI": "true",
            "PYTHONPATH": path,
            # New examples are looked for where people develop; here the same ones run every time.
            "HYPOTHESIS_PROFILE": "repeatable",
        }
        self._begin = time.monotonic()
        self._numbers = 0

    @property
    def left_s(self) -> float:
        """Seconds that are left of ALL_LIMIT_S."""
        return max(ALL_LIMIT_S - (time.monotonic() - self._begin), 0.0)

    def run(
        self, words: Sequence[str], limit_s: float, **environment: str
    ) -> tuple[int | None, str]:
        """Exit code (None: stopped at the limit) and output, which is also shown as it comes.

        The limit is the given one or what is left for all stages, whichever is less.
        """
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        show = subprocess.Popen(
            ["tee", str(self.scratch / "output")], stdin=process.stdout, start_new_session=True
        )
        process.stdout.close()
        try:
            code: int | None = process.wait(min(limit_s, self.left_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        try:
            show.wait(30)
        except subprocess.TimeoutExpired:  # something that was started holds the pipe
            show.kill()
            show.wait()
        text = (self.scratch / "output").read_text(encoding="utf-8", errors="replace")
        return code, text

    def tests(
        self, target: str, limit_s: float, arguments: str = "", **environment: str
    ) -> tuple[Outcome, int | None]:
        """A target of the Makefile that runs pytest."""
        self._numbers += 1
        path = self.scratch / f"results-{self._numbers}"
        code, _ = self.run(
            ["make", target, f"ARGS=-p oberth_ci_results {arguments}".strip()],
            limit_s,
            OBERTH_CI_RESULTS=str(path),
            **environment,
        )
        return read_outcome(path), code


def registry_answers(runner: Runner) -> str | None:
    """None if the jars that interop needs can be had, else why not."""
    if shutil.which("mvn") is None:
        return "no mvn on this machine"
    code, output = runner.run(PROBE, 180)
    if code == 0:
        return None
    lines = [line for line in output.splitlines() if line.strip()]
    return f"Maven brings nothing: {' | '.join(lines[:2])[:300]}"


def interop(runner: Runner) -> Verdict:
    """Small `make interop`, a second time for what failed."""
    outcome, code = runner.tests("interop", INTEROP_LIMIT_S, OBERTH_INTEROP="small")
    recovered: set[str] = set()
    if code:  # a run that was stopped had its time
        again, code = runner.tests(
            "interop", SECOND_TRY_LIMIT_S, "--last-failed", OBERTH_INTEROP="small"
        )
        outcome, recovered = after_second_try(outcome, again)
    print("\n".join(skip_lines(outcome.skipped)), flush=True)
    why = None if len(outcome.passed) >= INTEROP_MIN else registry_answers(runner)
    if why is not None:
        print(f"interop: not judged by how many passed: {why}", flush=True)
    return judge("interop", outcome, code, 0 if why else INTEROP_MIN, recovered)


def lint(runner: Runner) -> Verdict:
    """Ruff, mypy and the import contracts."""
    code, _ = runner.run(["make", "lint"], TEST_LIMIT_S)
    problems = [] if code == 0 else [f"exit code {code}"]
    return Verdict("lint", "ruff, mypy, import contracts", problems)


def tests(runner: Runner) -> Verdict:
    """README's `make test`."""
    return _judge_target(runner, "test", TEST_LIMIT_S, TESTS_MIN)


def long_tests(runner: Runner) -> Verdict:
    """`make test-long`, in the time that all stages before it have left."""
    return _judge_target(
        runner, "test-long", runner.left_s, LONG_MIN, may_be_stopped=True, OBERTH_LONG="1"
    )


def _judge_target(
    runner: Runner,
    target: str,
    limit_s: float,
    passed_min: int,
    *,
    may_be_stopped: bool = False,
    **environment: str,
) -> Verdict:
    """A target of tests, and once more the few that failed."""
    outcome, code = runner.tests(target, limit_s)
    recovered: set[str] = set()
    is_whole = outcome.sessions == SESSIONS and not outcome.unfinished
    if code and is_whole and 0 < len(outcome.failed) <= SECOND_TRIES_MAX:
        names = shlex.join(sorted(outcome.failed)).replace("$", "$$")  # make reads them, too
        again, code = runner.tests("test-these", FEW_LIMIT_S, names, **environment)
        outcome, recovered = after_second_try(outcome, again)
    print("\n".join(skip_lines(outcome.skipped)), flush=True)
    return judge(target, outcome, code, passed_min, recovered, may_be_stopped=may_be_stopped)


def benchmarks(runner: Runner) -> Verdict:
    """Every benchmark in its small form."""
    code, output = runner.run(["make", "bench", "ARGS=--small"], BENCHMARKS_LIMIT_S)
    return judge_benchmarks(output, code, BENCHMARKS_MIN)


def main() -> int:
    """Every stage, also after one that is red: all findings of a run are wanted."""
    begin = time.monotonic()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="oberth-ci-") as folder:
        runner = Runner(Path(folder))
        for title, stage in (
            ("lint", lint),
            ("tests", tests),
            ("interop, small", interop),
            ("benchmarks, small", benchmarks),
            ("tests, long", long_tests),
        ):
            print(f"== {title}", flush=True)
            since = time.monotonic()
            verdicts.append(stage(runner))
            verdicts[-1].seconds = time.monotonic() - since
    print(report(verdicts, time.monotonic() - begin), flush=True)
    return 0 if all(each.is_green for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
