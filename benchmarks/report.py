"""Rows of a benchmark: figures of two sides in turns, the median of each, the ratio and the bar."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.calm import Watch
from oberth.errors import PeerUnavailableError


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


def add_turn_options(parser: argparse.ArgumentParser, groups: Sequence[str]) -> None:
    """The options of a benchmark whose sides take turns.

    Args:
        parser: gets them.
        groups: of rows, of which some may be asked for.
    """
    parser.add_argument("--small", action="store_true", help="one short run of ours, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--sec", type=int, help="seconds of each measurement (10; 2 when small)")
    parser.add_argument("--warm", type=int, help="seconds before sends (10; 1 when small)")
    parser.add_argument("--brokers", default="", help="rival, then ours")
    parser.add_argument("--only", default="", help=f"groups of rows, of {','.join(groups)}")


def fill_turn_options(
    options: argparse.Namespace, rival: str, groups: Sequence[str], small: str
) -> list[str]:
    """Puts defaults where nothing was asked for; gives the sides, the rival first.

    Args:
        options: of `add_turn_options`.
        rival: unless others are asked for.
        groups: of rows, all of which are measured unless some are asked for.
        small: those of a small run, with commas.
    """
    is_small = options.small
    options.runs = options.runs or (1 if is_small else 3)
    options.sec = options.sec or (2 if is_small else 10)
    options.warm = options.warm or (1 if is_small else 10)
    options.only = (options.only or (small if is_small else ",".join(groups))).split(",")
    sides: str = options.brokers or ("oberth" if is_small else f"{rival},oberth")
    return sides.split(",")


def take_turns(
    kinds: Sequence[str],
    runs: int,
    table: Mapping[str, Row],
    measure: Callable[[str, Path, Callable[[str, float], None]], None],
    *,
    parent: Path | None = None,
    watch: Watch | None = None,
) -> dict[str, str]:
    """Measures each side in turns that change places from run to run.

    Args:
        kinds: the sides.
        runs: of each kind.
        table: gets the figures.
        measure: called with kind, directory of the run, and what takes a row's key and figure.
        parent: where the directories are made; that of temporary files when None.
        watch: looks how calm the machine is around each turn; None: every turn counts.

    Returns:
        Kinds that cannot be had here, and why.
    """
    skipped: dict[str, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters are stopped
    base = Path(tempfile.mkdtemp(prefix="oberth-bench-", dir=parent))
    try:
        for number in range(runs):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                if kind in skipped:
                    continue

                def add(key: str, figure: float, kind: str = kind) -> None:
                    table[key].add(kind, figure)
                    sys.stderr.write(f"{kind:14} {table[key].what:52} {figure:,.4g}\n")

                place = base / f"{kind}-{number}"

                def turn(
                    into: Callable[[str, float], None], kind: str = kind, place: Path = place
                ) -> None:
                    shutil.rmtree(place, ignore_errors=True)  # of a turn that did not count
                    measure(kind, place, into)

                try:
                    if watch is None:
                        turn(add)
                    elif not watch.take(kind, turn, add):
                        why = watch.turns[-1]["thrown_away"]
                        sys.stderr.write(f"no turn of {kind} counted: {why}\n")
                except PeerUnavailableError as why:
                    skipped[kind] = str(why)
                    sys.stderr.write(f"skipped: {kind}: {why}\n")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return skipped


def emit_turns(
    name: str,
    kinds: Sequence[str],
    options: argparse.Namespace,
    table: Mapping[str, Row],
    measure: Callable[[str, Path, Callable[[str, float], None]], None],
) -> None:
    """Takes turns, of which those on a restless machine do not count, and prints the report.

    Args:
        name: of the benchmark.
        kinds: the sides, the rival first and ours last.
        options: with ``small``, where nobody looks at the machine, and ``runs`` of each side.
        table: gets the figures.
        measure: see `take_turns`.
    """
    watch = None if options.small else Watch()
    skipped = take_turns(kinds, options.runs, table, measure, watch=watch)
    emit(
        name,
        table.values(),
        ours=kinds[-1],
        rival=kinds[0],
        skipped=skipped,
        turns=watch.turns if watch is not None else [],
    )
