"""The kernels' benchmark runs small and reports every row, so that it cannot rot."""

from __future__ import annotations

from tests.rigs.benchmarks import rows_of


def test_it_runs_small() -> None:
    rows = rows_of("kernels", "--bytes", "200000")
    assert len(rows) == 10
    assert all(set(row["medians"]) <= {"compiled", "reference"} for row in rows)
