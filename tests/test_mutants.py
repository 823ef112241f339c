"""A draw of changes that is tried in parts: what is kept between them.

Whether tests notice the changes is for `python -m benchmarks.mutants`, docs/mutants.md.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.mutants import AREAS, draw
from benchmarks.mutation.kept import Kept
from benchmarks.mutation.runs import Verdict


def test_verdicts_are_there_for_the_next_part(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    first, second, third = draw(5, 3, ["filter"])
    kept = Kept(path)
    kept.add(Verdict(first, "tests/test_a.py::test_one", "failed", 3, 0.25))
    kept.add(Verdict(second, None, "passed", 7, 1.5))

    kept = Kept(path)

    assert kept.verdict(first) == Verdict(first, "tests/test_a.py::test_one", "failed", 3, 0.2)
    assert kept.verdict(second) == Verdict(second, None, "passed", 7, 1.5)
    assert kept.verdict(third) is None


def test_what_a_test_killed_that_fails_unchanged_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    first, second = draw(5, 2, ["filter"])
    kept = Kept(path)
    kept.add(Verdict(first, "steady", "failed", 1, 0.0))
    kept.add(Verdict(second, "unsteady", "failed", 1, 0.0))
    kept.looked({"steady", "unsteady"}, {"unsteady"})

    kept = Kept(path)

    assert (kept.steady, kept.refused) == ({"steady"}, {"unsteady"})
    assert kept.verdict(first) is not None
    assert kept.verdict(second) is None


def test_a_verdict_on_a_module_that_changed_since_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    (change,) = draw(5, 1, ["filter"])
    Kept(path).add(Verdict(change, None, "passed", 1, 0.0))
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"module": "0" * 16}) + "\n")

    assert Kept(path).verdict(change) is None


def test_a_draw_has_as_many_from_each_area() -> None:
    areas = [area for area in AREAS if area != "wire"]

    drawn = draw(5, 30, areas)

    assert drawn == draw(5, 30, areas)
    assert len(set(drawn)) == 30
    assert set(drawn[:5]) == set(draw(5, 5, areas[:1]))
