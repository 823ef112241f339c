"""The list of long tests: what a line means, and that no line is without a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs import campaigns as rig
from tests.rigs.campaigns import Campaign, check_collected, is_long, read_campaigns, rounds, some

LIST = {
    "a.py::one": Campaign(),
    "a.py::cases": Campaign(("x-*", "7")),
    "a.py::many": Campaign(small=2, large=30),
}
NAMES = ["a.py::one", "a.py::cases[x-1]", "a.py::cases[y-1]", "a.py::cases[7]", "a.py::many"]


@pytest.fixture(autouse=True)
def _a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "campaigns", lambda: LIST)
    monkeypatch.setattr(rig, "IS_LONG", False)


def test_lines() -> None:
    text = "# about\n\na.py::one none\na.py::cases [x-*] [7]\na.py::many 2 of 30\n"
    assert read_campaigns(text) == LIST
    (brackets,) = read_campaigns("a.py::b [[]-0]").values()
    assert brackets.keeps("a.py::b[[]-0]")
    assert not brackets.keeps("a.py::b[]-0]")


@pytest.mark.parametrize("text", ["a.py::b", "a.py::b some", "a.py::b 0 of 3", "c none\nc none"])
def test_a_line_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"campaigns\.txt: (a|c)"):
        read_campaigns(text)


def test_every_test_runs_in_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that count rounds in both, with another number."""
    names = [*NAMES, "b.py::other"]
    assert [*filter(is_long, names)] == ["a.py::one", "a.py::cases[y-1]"]
    assert rounds("a.py::many") == 2
    assert some("a.py::many", "abcdefg") == ["c", "g"]
    assert some("a.py::many", "a") == ["a"]
    monkeypatch.setattr(rig, "IS_LONG", True)
    assert [*filter(is_long, names)] == ["a.py::one", "a.py::cases[y-1]", "a.py::many"]
    assert rounds("a.py::many") == 30
    assert some("a.py::many", "abcdefg") == [*"abcdefg"]


def test_a_line_without_a_test_is_refused() -> None:
    check_collected(NAMES)
    for gone in ("a.py::one", "a.py::many"):
        with pytest.raises(ValueError, match=f"no test is meant by {gone}"):
            check_collected([name for name in NAMES if name != gone])
    with pytest.raises(ValueError, match=r"no test is meant by a\.py::cases"):
        check_collected(["a.py::one", "a.py::many", "a.py::cases[y-1]"])
    with pytest.raises(ValueError, match=r"all cases of a\.py::cases are kept"):
        check_collected(["a.py::one", "a.py::many", "a.py::cases[7]"])


def test_a_second_try_looks_at_what_failed_alone(tmp_path: Path) -> None:
    """As `.ci/run` does for interop; tests of the list are not among what it collects."""
    failed = "tests/rigs/test_campaigns.py::test_a_second_try_looks_at_what_failed_alone"
    cache = tmp_path / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({failed: True}))
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--last-failed"]
    done = subprocess.run(
        [*command, "-o", f"cache_dir={tmp_path}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert failed in done.stdout
