"""The judge of a CI run: no stage is green by accident, and a second try is told."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

CI = Path(__file__).resolve().parents[1] / ".ci"


@pytest.fixture(scope="module")
def ci() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("oberth_ci_stages", CI / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_everything_skipped_is_red(ci: ModuleType) -> None:
    nothing = ci.Outcome(skipped={f"t{n}": "no mvn" for n in range(9)}, sessions=1)
    verdict = ci.judge("interop", nothing, 0, 5)
    assert not verdict.is_green
    assert verdict.text == "0 passed, 0 failed, 9 skipped"
    assert verdict.problems == ["0 tests passed, at least 5 must"]
    assert ci.judge("interop", ci.Outcome(passed=set("abcde"), sessions=1), 0, 5).is_green


@pytest.mark.parametrize("code", [1, 5, None])
def test_an_exit_code_is_never_overlooked(ci: ModuleType, code: int | None) -> None:
    assert not ci.judge("test", ci.Outcome(passed={"a"}, sessions=1), code, 1).is_green


def test_a_session_that_was_killed_is_red(ci: ModuleType, tmp_path: Path) -> None:
    outcome = ci.read_outcome(tmp_path / "nothing")
    assert not ci.judge("test", outcome, 0, 0).is_green


def test_the_second_try(ci: ModuleType) -> None:
    first = ci.Outcome(passed={"a"}, failed={"b", "c", "d"}, sessions=1)
    second = ci.Outcome(passed={"b"}, failed={"c"}, skipped={"e": "why"}, sessions=1)
    both, recovered = ci.after_second_try(first, second)
    assert (both.passed, both.failed, recovered) == ({"a", "b"}, {"c", "d"}, {"b"})
    text = ci.report([ci.judge("interop", both, 1, 1, recovered)], 60)
    assert "passed only at their second try: 1\n  b" in text
    assert "RED" in text
    assert "2 failed\n                    c\n                    d\n" in text


def test_reasons_are_counted(ci: ModuleType) -> None:
    lines = ci.skip_lines({"a": "no go", "b": "no npm", "c": "no npm"})
    assert lines == ["    2 × no npm", "    1 × no go"]


def test_benchmarks(ci: ModuleType) -> None:
    output = "== a\n{}\n== b\nskipped: apache: no mvn\nb failed: OSError: x\n== c\n"
    verdict = ci.judge_benchmarks(output, 1, 3)
    assert verdict.text == "2 ran, 1 failed, 1 parts skipped"
    assert verdict.problems == ["exit code 1", "2 benchmarks ran, at least 3 must"]
    assert ci.judge_benchmarks("== a\n", 0, 1).is_green
    # A benchmark may print a line that is another's name.
    assert ci.judge_benchmarks("== a\n== b\na\n", 0, 2).text == "2 ran, 0 failed, 0 parts skipped"


def test_a_benchmark_that_exits_leaves_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import __main__ as all_of_them

    ran: list[str] = []

    def make(name: str) -> SimpleNamespace:
        def run(_: list[str]) -> None:
            ran.append(name)
            sys.exit(name == "benchmarks.soak")

        return SimpleNamespace(main=run)

    monkeypatch.setattr(importlib, "import_module", make)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "soak", "stalls"])
    with pytest.raises(SystemExit, match=r"failed: soak$"):
        all_of_them.main()
    assert ran == ["benchmarks.soak", "benchmarks.stalls"]
    assert "soak failed: SystemExit" in capsys.readouterr().err


def test_what_takes_too_long_is_ended(ci: ModuleType, tmp_path: Path) -> None:
    """With what it has started, or the pipe would stay open."""
    code, _ = ci.Runner(tmp_path).run(["sh", "-c", "sleep 600 & wait"], 0.5)
    assert code is None


MAKEFILE = """
.PHONY: lint test test-long test-these interop bench
pytest = {python} -m pytest -q -p no:cacheprovider
each = $(pytest) $(ARGS) $(1) || status=1;
both = status=0; $(call each,$(1)) $(call each,more) exit $$status
lint:
	@true
test:
	@$(call both,tests)
test-long:
	@$(call both,long)
test-these:
	@$(pytest) $(ARGS)
interop:
	@{python} -m pytest -q $(ARGS) interop
bench:
	@echo == one
"""

INTEROP = """
import pytest, pathlib
def test_fails_once():
    flag = pathlib.Path("flag")
    if not flag.exists():
        flag.touch()
        raise AssertionError("the machine stood still")
def test_passes(): pass
@pytest.mark.skip(reason="no such client")
def test_is_skipped(): pass
"""


@pytest.fixture
def project(ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose targets are small, and floors that it just reaches."""
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    for folder, text in {
        "tests": "def test_a(): pass\ndef test_b(): pass\n",
        "more": "def test_one(): pass\n",
        "long": "def test_all(): pass\n",
        "interop": INTEROP,
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(text)
    (tmp_path / ".ci").mkdir()
    plugin = (CI / "oberth_ci_results.py").read_text()
    (tmp_path / ".ci" / "oberth_ci_results.py").write_text(plugin)
    # These tests need none of the installed plugins, and dozens of sessions would import them.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(ci, "ROOT", tmp_path)
    for name, floor in {
        "TESTS_MIN": 3,
        "LONG_MIN": 2,
        "INTEROP_MIN": 2,
        "BENCHMARKS_MIN": 1,
    }.items():
        monkeypatch.setattr(ci, name, floor)
    monkeypatch.setattr(ci, "PROBE", ("true",))
    monkeypatch.setattr(ci.shutil, "which", lambda name: name)
    return tmp_path


def test_a_whole_run(
    ci: ModuleType, project: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ci.main() == 0
    summary = capfd.readouterr().out.partition("== summary")[2]
    assert "test       green  3 passed, 0 failed, 0 skipped" in summary
    assert "test-long  green  2 passed, 0 failed, 0 skipped" in summary
    assert "interop    green  2 passed, 0 failed, 1 skipped" in summary
    assert "second try: 1\n  interop/test_interop.py::test_fails_once" in summary
    # Now it is as if nothing of interop could be had, but the registry answers.
    all_skipped = "import pytest\npytest.skip('no jars', allow_module_level=True)\n"
    (project / "interop" / "test_interop.py").write_text(all_skipped)
    assert ci.main() == 1
    summary = capfd.readouterr().out.partition("== summary")[2]
    assert "interop    RED" in summary


def test_where_no_registry_answers_interop_counts_as_skipped(
    ci: ModuleType,
    project: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ci, "PROBE", ("sh", "-c", "echo unknown host; exit 1"))
    text = "import pytest\n@pytest.mark.skip(reason='no jars')\ndef test_x(): pass\n"
    (project / "interop" / "test_interop.py").write_text(text)
    assert ci.main() == 0
    shown = capfd.readouterr().out
    assert "    1 × no jars" in shown
    assert "interop: not judged by how many passed: Maven brings nothing: unknown host" in shown


FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("name", ["a b", "$(x) 'y'"])
def test_fails_once(name):
    flag = pathlib.Path("once-" + name)
    if not flag.exists():
        flag.touch()
        raise AssertionError("the machine stood still")
"""


def test_a_few_other_tests_have_a_second_try(
    ci: ModuleType,
    project: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project / "long" / "test_long.py").write_text(FAILS_ONCE)
    assert ci.main() == 0
    summary = capfd.readouterr().out.partition("== summary")[2]
    assert "test-long  green  3 passed, 0 failed" in summary
    assert "second try: 3\n  interop" in summary
    assert "  long/test_long.py::test_fails_once[$(x) 'y']" in summary
    # More than a few are a finding, and so is a session that did not come to its end.
    monkeypatch.setattr(ci, "SECOND_TRIES_MAX", 1)
    for flag in project.glob("once-*"):
        flag.unlink()
    assert ci.main() == 1
    assert "test-long  RED    1 passed, 2 failed" in capfd.readouterr().out
    monkeypatch.setattr(ci, "SECOND_TRIES_MAX", 3)
    (project / "more" / "test_more.py").write_text("import os\nos._exit(1)\n")
    for flag in project.glob("once-*"):
        flag.unlink()
    assert ci.main() == 1
    assert "test-long  RED    0 passed, 2 failed" in capfd.readouterr().out


def test_the_end_of_all_time_may_come_in_the_last_stage_only(ci: ModuleType) -> None:
    """A slow machine does not make it red, a failure does, and so does too little."""
    cut = ci.Outcome(passed={"a", "b"}, unfinished={"c"})
    verdict = ci.judge("test-long", cut, None, 2, may_be_stopped=True)
    assert verdict.is_green
    assert verdict.text.endswith("0 skipped, stopped when the time of all stages was over")
    assert not ci.judge("test-long", cut, None, 3, may_be_stopped=True).is_green
    assert not ci.judge("test-long", cut, 2, 2, may_be_stopped=True).is_green
    failed = ci.Outcome(passed={"a", "b"}, failed={"c"})
    assert not ci.judge("test-long", failed, None, 2, may_be_stopped=True).is_green
    assert not ci.judge("interop", cut, None, 2).is_green


def test_a_stage_has_no_more_time_than_is_left(
    ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ci, "ALL_LIMIT_S", 0.5)
    code, _ = ci.Runner(tmp_path).run(["sleep", "600"], 600)
    assert code is None


def test_failures_are_red_at_every_stage(
    ci: ModuleType, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "more" / "test_more.py").write_text("def test_one(): raise OSError\n")
    (project / "long" / "test_long.py").write_text("def test_all(): raise OSError\n")
    (project / "interop" / "test_interop.py").write_text("def test_x(): raise OSError\n")
    makefile = project / "Makefile"
    makefile.write_text(makefile.read_text().replace("@true", "@false") + "\t@false\n")
    assert ci.main() == 1
    summary = capfd.readouterr().out.partition("== summary")[2]
    assert summary.count("RED") == 5
    assert "2 passed, 1 failed, 0 skipped" in summary


def test_the_floors_are_below_what_there_is(ci: ModuleType) -> None:
    from benchmarks.__main__ import names

    assert len(names()) >= ci.BENCHMARKS_MIN


def test_all_that_runs_as_a_benchmark_is_one() -> None:
    from benchmarks.__main__ import names

    for name in names():
        main = getattr(importlib.import_module(f"benchmarks.{name}"), "main", None)
        assert callable(main), name
        inspect.signature(main).bind(["--small"])  # as it is called


def test_a_session_that_was_stopped_has_told_what_it_found(
    ci: ModuleType, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And where it was stopped."""
    (project / "interop" / "test_interop.py").write_text(
        "import os, signal\n"
        "def test_a(): pass\n"
        "def test_b(): raise OSError\n"
        "def test_c(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    runner = ci.Runner(project)
    outcome, code = runner.tests("interop", 60)
    assert code != 0
    assert {name.rpartition("::")[2] for name in outcome.passed} == {"test_a"}
    assert {name.rpartition("::")[2] for name in outcome.failed} == {"test_b"}
    assert outcome.sessions == 0
    verdict = ci.judge("interop", outcome, None, 1)
    assert verdict.problems == [
        "stopped: it took longer than it may",
        "stopped in: interop/test_interop.py::test_c",
        "1 failed",
        "  interop/test_interop.py::test_b",
        "no session of pytest came to its end",
    ]
    capfd.readouterr()


def test_sessions_add_up(ci: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "results"
    lines = [{"begun": "a"}, {"passed": "a"}, {"begun": "b"}, {"passed": "b"}, {"failed": "b"}]
    lines += [{"skipped": "c", "reason": "why"}]
    with path.open("a") as file:
        for line in (*lines, {"sessions": 1}, *lines, {"sessions": 1}):
            file.write(json.dumps(line) + "\n")
    outcome = ci.read_outcome(path)
    assert (outcome.passed, outcome.failed, outcome.sessions) == ({"a"}, {"b"}, 2)
    assert not outcome.unfinished
    assert str(outcome) == "1 passed, 1 failed, 1 skipped"
