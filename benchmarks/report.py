"""Rows of a benchmark: figures of two sides in turns, the median of each, the ratio and the bar."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One line of a table.

    Attributes:
        what: what is measured.
        unit: of the figures.
        bar: what ours divided by the rival's must reach (or not exceed, when lower is better).
        lower_is_better: times and sizes.
        limit: an absolute figure to keep to instead of a ratio.
        figures: side -> one figure per run.
    """

    what: str
    unit: str
    bar: float | None = None
    lower_is_better: bool = False
    limit: float | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, figure: float) -> None:
        """A figure of one more run."""
        self.figures.setdefault(side, []).append(figure)

    def as_json(self, ours: str, rival: str) -> dict[str, Any]:
        """Medians, ratio and whether the bar is met; None where a side is missing."""
        medians = {side: statistics.median(runs) for side, runs in self.figures.items() if runs}
        mine, theirs = medians.get(ours), medians.get(rival)
        ratio = mine / theirs if mine is not None and theirs else None
        met: bool | None = None
        if self.limit is not None and mine is not None:
            met = mine <= self.limit if self.lower_is_better else mine >= self.limit
        elif self.bar is not None and ratio is not None:
            met = ratio <= self.bar if self.lower_is_better else ratio >= self.bar
        return {
            "what": self.what,
            "unit": self.unit,
            "figures": {side: [_short(x) for x in runs] for side, runs in self.figures.items()},
            "medians": {side: _short(x) for side, x in medians.items()},
            "ratio": ratio and round(ratio, 3),
            "bar": self.bar,
            "limit": self.limit,
            "lower_is_better": self.lower_is_better,
            "met": met,
        }


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }


def emit(name: str, rows: Iterable[Row], ours: str, rival: str, **more: Any) -> None:
    """Print the whole report as JSON on stdout and a table for people on stderr."""
    lines = [row.as_json(ours, rival) for row in rows if row.figures]
    print(json.dumps({"benchmark": name, "machine": machine(), **more, "rows": lines}, indent=1))
    talk = sys.stderr.write
    talk(f"\n{name}: {ours} against {rival}\n")
    for line in lines:
        figures = "  ".join(f"{side} {value:,}" for side, value in line["medians"].items())
        bar = line["limit"] if line["limit"] is not None else line["bar"]
        sign = "<=" if line["lower_is_better"] else ">="
        word = {True: "met", False: "NOT MET", None: "-"}[line["met"]]
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}x"
        talk(f"  {line['what']:58} {figures} {line['unit']:6} {ratio:>7} {sign} {bar} {word}\n")
