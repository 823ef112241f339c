"""Tests against a changed module: in a copy of the tree, each change in a process of its own.

A process for each copy has all of ours loaded and the tests collected (`warm.py`), and forks for
a change within a function, so that it costs nothing beside its tests. What runs at import is tried
by a child of a fork server that has pytest and the libraries, and nothing of ours: there each
change costs some seconds. Tests of the module's mirror come first, then the fastest, and the first
failure ends them. A test that hangs ends its process and counts as a failure.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from benchmarks.mutation.changes import Change

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".venv", ".git", "build", "*_cache", ".cache", ".hypothesis", "*.egg-info", "*.so.*"
)
HANGS_S = 30
HANGS_TIMES = 20
"""A test hangs after so long, or after so many times what it took: the machine may be busy."""
STALE = 97
"""Exit code of a child of `warm.py` that cannot give loaded functions the changed code."""

_PRELOADED = [
    "pytest", "pytest_asyncio.plugin", "hypothesis", "hypothesis.stateful", "uvloop", "msgspec",
    "lz4.frame", "lz4.block", "zstandard", "click.testing", "yaml", "concurrent.futures",
    "urllib.request", "http.client", "sqlite3", "tarfile",
]  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """A test that passed: its name, how long it took, and the lines of each file it reached."""

    test: str
    seconds: float
    lines: dict[str, frozenset[int]]


@dataclass(frozen=True)
class Verdict:
    """What became of a change.

    Attributes:
        change: the change.
        killer: the test that failed; None if all passed.
        how: what it was killed by: failed, hangs, or ended (the process, by a signal or exit).
        tests: how many had been chosen.
        seconds: it took.
    """

    change: Change
    killer: str | None
    how: str
    tests: int
    seconds: float


class Copy:
    """A copy of the tree in which modules are changed, never the checkout itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(ROOT, path, ignore=LEFT_OUT, symlinks=True)

    def environment(self) -> dict[str, str]:
        """Of what runs in the copy."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self.path / "src"), str(self.path))),
            "HYPOTHESIS_PROFILE": "repeatable",
        }

    def module(self, path: str) -> Path:
        """A module of the package."""
        return self.path / "src" / "oberth" / path


def look(copy: Copy, tests: Sequence[str], into: Path, processes: int) -> None:
    """Runs tests on the unchanged copy, and notes what each reaches."""
    into.mkdir(parents=True, exist_ok=True)
    options = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.mutation.reach"),
            *("-m", "not spark and not interop", *options, *tests),
        ],
        cwd=copy.path,
        env={**copy.environment(), "OBERTH_REACH": str(into)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")


def read_reached(directory: Path) -> list[Reached]:
    """What `look` noted."""
    found: dict[str, Reached] = {}
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            lines = {name: frozenset(numbers) for name, numbers in record["lines"].items()}
            found[record["test"]] = Reached(record["test"], record["seconds"], lines)
    return sorted(found.values(), key=lambda each: each.seconds)


@dataclass
class Choice:
    """Chooses the tests that may notice a change."""

    reached: Sequence[Reached]
    budget_s: float
    _by_file: dict[str, list[Reached]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for each in self.reached:
            for path in each.lines:
                self._by_file[path].append(each)

    def tests(self, change: Change, without: Collection[str] = ()) -> list[Reached]:
        """The tests that reach its lines; for what runs at import all that reach the file.

        As many as fit into the budget, at the least one.
        """
        mirror = mirror_of(change.path)
        lines = frozenset(change.lines) or None
        refused = set(without)
        found = [
            each
            for each in self._by_file.get(change.path, ())
            if each.test not in refused
            and (lines is None or not lines.isdisjoint(each.lines[change.path]))
        ]
        found.sort(key=lambda each: (not each.test.startswith(mirror), each.seconds))
        chosen: list[Reached] = []
        left = self.budget_s
        for each in found:
            if each.seconds <= left or not chosen:
                chosen.append(each)
                left -= each.seconds
        return chosen


class Chooses(Protocol):
    """What says which tests may notice a change."""

    def tests(self, change: Change, without: Collection[str] = ()) -> list[Reached]:
        """These tests, without some."""


def mirror_of(path: str) -> str:
    """The test file of a module: store/flush.py is tested in tests/store/test_flush.py."""
    folder, _, name = path.rpartition("/")
    return f"tests/{folder}/test_{name}" if folder else f"tests/test_{name}"


class Warm:
    """The process of a copy that has tests collected, see `warm.py`; ended by `close`."""

    def __init__(self, copy: Copy, files: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self._log = copy.path / "warm.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.mutation.warm", str(theirs.fileno()), *files],
                cwd=copy.path,
                env=copy.environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self.connection = ours
        self._lines = ours.makefile("r", encoding="utf-8")
        self.receive("ready")

    def send(self, job: dict[str, Any]) -> None:
        """Has it fork a child."""
        self.connection.sendall(json.dumps(job).encode() + b"\n")

    def receive(self, key: str) -> int:
        """Waits for what it says next."""
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"collecting ended:\n{self._log.read_text()[-2000:]}")
        return int(json.loads(line)[key])

    def close(self) -> None:
        """Ends it."""
        self._lines.close()
        self.connection.close()
        self._process.wait()


class _Process(Protocol):
    """What a run needs of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> Any: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...

    def join(self) -> None: ...


class _Forked:
    """A child of a warm process, with the surface of `multiprocessing.Process`."""

    def __init__(self, warm: Warm, job: dict[str, Any]) -> None:
        self._warm = warm
        self.sentinel = warm.connection
        self.exitcode: int | None = None
        warm.send(job)
        self.pid = warm.receive("pid")

    def is_alive(self) -> bool:
        if self.exitcode is None and multiprocessing.connection.wait([self.sentinel], 0):
            self.join()
        return self.exitcode is None

    def kill(self) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)

    def join(self) -> None:
        if self.exitcode is None:
            self.exitcode = self._warm.receive("code")


class Runs:
    """Tries changes, as many at a time as there are processes; each has its own copy."""

    def __init__(self, copies: Sequence[Copy], choice: Chooses) -> None:
        self._choice = choice
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._idle = list(copies)
        self._warm: dict[Copy, Warm] = {}

    def warm(self, changes: Iterable[Change], without: Collection[str] = ()) -> None:
        """Collects the tests of changes to come."""
        chosen = {each.test for change in changes for each in self._choice.tests(change, without)}
        files = sorted({name.partition("::")[0] for name in chosen})
        if files:
            self._warm = {copy: Warm(copy, files) for copy in self._idle}

    def close(self) -> None:
        """Ends the processes that `warm` began."""
        for each in self._warm.values():
            each.close()
        self._warm.clear()

    def _begin(self, copy: Copy, change: Change, tests: list[Reached]) -> _Run:
        return _Run(
            self._context, self._warm.get(copy) if change.lines else None, copy, change, tests
        )

    def try_all(
        self, changes: Iterable[Change], without: Collection[str] = ()
    ) -> Iterator[Verdict]:
        """Yields what becomes of each, as they come; asks for the next when a copy is idle."""
        refused = frozenset(without)
        waiting = iter(changes)
        running: list[_Run] = []
        try:
            while True:
                while self._idle:
                    change = next(waiting, None)
                    if change is None:
                        break
                    tests = self._choice.tests(change, refused)
                    if not tests:
                        yield Verdict(change, None, "no test reaches it", 0, 0.0)
                        continue
                    running.append(self._begin(self._idle.pop(), change, tests))
                if not running:
                    return
                multiprocessing.connection.wait(
                    [each.process.sentinel for each in running],
                    timeout=max(0.1, min(each.ends for each in running) - time.monotonic()),
                )
                for each in list(running):
                    verdict = each.verdict()
                    if verdict is None:
                        continue
                    running.remove(each)
                    if each.process.exitcode == STALE:
                        running.append(
                            _Run(self._context, None, each.copy, each.change, each.tests)
                        )
                        continue
                    self._idle.append(each.copy)
                    yield verdict
        finally:
            for each in running:
                each.end()
                self._idle.append(each.copy)


class _Run:
    """One change in one copy, and the process that tests it."""

    def __init__(
        self,
        context: multiprocessing.context.ForkServerContext,
        warm: Warm | None,
        copy: Copy,
        change: Change,
        tests: list[Reached],
    ) -> None:
        self.copy = copy
        self.change = change
        self.tests = tests
        self._module = copy.module(change.path)
        self._source = self._module.read_bytes()
        self._times = self._module.stat()
        self._module.write_bytes(change.apply(self._source))
        self._began = time.monotonic()
        self._log = copy.path / "run.log"
        self._log.write_bytes(b"")
        limits = {each.test: int(HANGS_S + HANGS_TIMES * each.seconds) for each in tests}
        self.ends = self._began + 2 * HANGS_S + HANGS_TIMES * sum(e.seconds for e in tests)
        self.process: _Process
        if warm is None:
            cold = context.Process(
                target=_run_tests, args=(str(copy.path), copy.environment(), limits), daemon=False
            )
            cold.start()
            self.process = cold
        else:
            job = {"module": change.path, "source": self._source.decode(), "limits": limits}
            self.process = _Forked(warm, job)

    def verdict(self) -> Verdict | None:
        """What became of it; None: it still runs."""
        is_late = time.monotonic() >= self.ends
        if self.process.is_alive() and not is_late:
            return None
        is_late = self.process.is_alive()
        self.end()
        lines = self._log.read_text(encoding="utf-8").splitlines()
        failed = [line.partition(" ")[2] for line in lines if line.startswith("failed ")]
        begun = [line.partition(" ")[2] for line in lines if line.startswith("begins ")]
        code = self.process.exitcode
        killer, how = None, "passed"
        if failed:
            killer, how = failed[0], "failed"
        elif is_late or code == -signal.SIGALRM:
            killer, how = begun[-1] if begun else "import", "hangs"
        elif code != 0:
            killer, how = begun[-1] if begun else "import", f"ended ({code})"
        seconds = time.monotonic() - self._began
        return Verdict(self.change, killer, how, len(self.tests), seconds)

    def end(self) -> None:
        """Ends the process and what it started; the module is again what it was."""
        assert self.process.pid is not None
        self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self._module.write_bytes(self._source)
        os.utime(self._module, ns=(self._times.st_atime_ns, self._times.st_mtime_ns))


class Noted:
    """Says which test begins and which failed, and ends the process when one hangs."""

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = limits
        self._log = open("run.log", "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._log.write(f"begins {nodeid}\n")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self._limits.get(nodeid, HANGS_S))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._log.write(f"failed {report.nodeid}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._log.write(f"failed {report.nodeid}\n")


def quiet() -> None:
    """What a process with a changed module says goes to a file, and it leaves no compiled one."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    output = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _run_tests(root: str, environment: dict[str, str], limits: dict[str, int]) -> None:
    os.setsid()
    signal.alarm(2 * HANGS_S)  # until the first test begins
    os.chdir(root)
    os.environ.update(environment)
    source = str(ROOT / "src")
    sys.path[:] = [
        os.path.join(root, "src"), root,
        *(each for each in sys.path if each not in ("", str(ROOT), source)),
    ]  # fmt: skip
    for name in [name for name in sys.modules if name.split(".")[0] in ("benchmarks", "oberth")]:
        del sys.modules[name]
    quiet()
    arguments = [
        *("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp=tmp"),
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # they are loaded, that is the idea
        *limits,
    ]
    code = pytest.main(arguments, plugins=[Noted(limits)])
    sys.stdout.flush()
    os._exit(int(code))
