"""What became of each change, kept in a file, so that a draw may be tried in parts.

One line of JSON for each verdict, appended as it comes; the last one of a change counts:

    change     what the report calls it
    module     the first 16 hex digits of the SHA-256 of its module, which must still be the same
    start      the first byte that it replaces: a line may have two that read the same
    killer, how, tests, seconds     as in `runs.Verdict`

Tests that passed on the unchanged tree stand there too, {"steady": name}: their kills count, and
nobody needs to look again. {"refused": name} is one that failed there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.mutation.changes import Change
from benchmarks.mutation.runs import ROOT, Verdict


class Kept:
    """The verdicts of earlier parts, and a place for those that come.

    Attributes:
        steady: tests that passed where nothing was changed.
        refused: tests that failed there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._modules: dict[str, str] = {}
        self._found: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.steady: set[str] = set()
        self.refused: set[str] = set()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for record in map(json.loads, lines):
            if "steady" in record:
                self.steady.add(record["steady"])
            elif "refused" in record:
                self.refused.add(record["refused"])
            else:
                self._found[record["change"], record["module"], record["start"]] = record

    def verdict(self, change: Change) -> Verdict | None:
        """What became of a change; None if it is to be tried."""
        record = self._found.get(self._key(change))
        if record is None or record["killer"] in self.refused:
            return None
        return Verdict(change, record["killer"], record["how"], record["tests"], record["seconds"])

    def add(self, verdict: Verdict) -> None:
        """Keep one."""
        text, module, start = self._key(verdict.change)
        self._append({
            "change": text, "module": module, "start": start, "killer": verdict.killer,
            "how": verdict.how, "tests": verdict.tests, "seconds": round(verdict.seconds, 1),
        })  # fmt: skip

    def looked(self, tests: Iterable[str], unsteady: set[str]) -> None:
        """Tests ran on the unchanged tree, and some failed."""
        for name in sorted(tests):
            is_unsteady = name in unsteady
            (self.refused if is_unsteady else self.steady).add(name)
            self._append({"refused" if is_unsteady else "steady": name})

    def _append(self, record: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _key(self, change: Change) -> tuple[str, str, int]:
        module = self._modules.get(change.path)
        if module is None:
            source = (ROOT / "src" / "oberth" / change.path).read_bytes()
            module = self._modules[change.path] = hashlib.sha256(source).hexdigest()[:16]
        return str(change), module, change.start
