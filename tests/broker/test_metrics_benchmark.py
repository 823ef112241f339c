"""The benchmark of /metrics runs small and reports every row, so that it cannot rot."""

from __future__ import annotations

from tests.rigs.benchmarks import rows_of


def test_it_runs_small() -> None:
    rows = rows_of("metrics", "--topics", "50")
    assert len(rows) == 5
    assert all(row["medians"]["with scrapes"] > 0 for row in rows)
