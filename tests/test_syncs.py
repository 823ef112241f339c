"""Every sync of store and broker is missed: a test fails when it is left out.

`syncs_noticed.txt` names that test for each. What is said there is tried out by

    python -m benchmarks.mutants --syncs

which leaves out one sync after the other, runs its test, and prints those for which that test
passes all the same.
"""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.mutants import NOTICED, SYNCED, changes_in, noticed

HERE = Path(__file__).parent


def test_every_sync_has_a_test_or_a_reason() -> None:
    found = {each.place for each in changes_in(SYNCED) if each.kind == "sync"}
    table = noticed()
    assert found == table.keys(), f"what {NOTICED.name} lacks or has too many"


def test_the_tests_are_there() -> None:
    known: dict[str, set[str]] = {}
    for place, row in noticed().items():
        if row.test is None:
            assert len(row.why.split()) > 3, f"{place}: why nothing can notice it"
            continue
        path, _, name = row.test.partition("::")
        if path not in known:
            tree = ast.parse((HERE.parent / path).read_text(encoding="utf-8"))
            known[path] = {
                each.name
                for each in ast.walk(tree)
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        assert name.partition("[")[0] in known[path], f"{place}: there is no {row.test}"
