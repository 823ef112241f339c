"""The results of a release as one page: every figure of every turn, and how calm the machine was.

    make bench-page [ARGS="--small connections broker"]

Runs the benchmarks that are named (those against Apache's broker unless told otherwise), each in a
process of its own, and writes build/bench-page.md and, beside it, the JSON that it was made from.
A turn during which the machine was not calm, or did not stay as it was, is on the page, and counts
for nothing; with ``--small`` nobody looks at that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("connections", "beside", "broker", "features")
OUT: Final = Path("build") / "bench-page.md"


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(str, line)) + " |" for line in lines),
        "",
    ]


def _figures(figures: dict[str, list[float]]) -> str:
    return "; ".join(f"{side}: {', '.join(map(str, runs))}" for side, runs in figures.items())


def section(report: dict[str, Any]) -> list[str]:
    """The lines of one benchmark's report."""
    machine = report["machine"]
    lines = [
        f"## {report['benchmark']}",
        "",
        f"{machine['cpu'] or 'unknown processor'}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, {machine['date']}, load {machine['load']}. "
        f"`{machine['command']}`",
        "",
    ]
    for kind, why in report.get("skipped", {}).items():
        lines += [f"Skipped: {kind}: {why}", ""]
    words = {True: "met", False: "**not met**", None: ""}
    lines += _table(
        ("what", "unit", "medians", "ratio", "wanted", "", "every run"),
        (
            (
                row["what"],
                row["unit"],
                "; ".join(f"{side}: {value:,}" for side, value in row["medians"].items()),
                "" if row["ratio"] is None else row["ratio"],
                ""
                if row["limit"] is None and row["bar"] is None
                else ("≤ " if row["lower_is_better"] else "≥ ")
                + str(row["limit"] if row["limit"] is not None else row["bar"]),
                words[row["met"]],
                _figures(row["figures"]),
            )
            for row in report["rows"]
        ),
    )
    turns = report.get("turns") or []
    if turns:
        lines += ["Turns, in their order, with the machine before and after each:", ""]
        lines += _table(
            ("turn", "side", "share of the cores", "speed of a core", "counts", "figures"),
            (
                (
                    number,
                    turn["kind"],
                    f"{turn['before']['share']:.2f} → {turn['after']['share']:.2f}",
                    f"{turn['before']['speed']:,} → {turn['after']['speed']:,}",
                    f"no: {turn['thrown_away']}" if turn["thrown_away"] else "yes",
                    ", ".join(f"{key} {figure:.4g}" for key, figure in turn["figures"]),
                )
                for number, turn in enumerate(turns, 1)
            ),
        )
    return lines


def page(reports: Sequence[dict[str, Any]], failed: Sequence[str] = ()) -> str:
    """The whole page, in Markdown."""
    lines = ["# Benchmarks", ""]
    if failed:
        lines += [f"Did not end well, and is not here: {', '.join(failed)}.", ""]
    for report in reports:
        lines += section(report)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run benchmarks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="short runs, on any machine")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the page ({OUT})")
    parser.add_argument("names", nargs="*", default=NAMES, help="benchmarks")
    options = parser.parse_args(argv)
    reports, failed = [], []
    for name in options.names:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        command += ["--small"] if options.small else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        try:
            reports.append(json.loads(done.stdout))
        except ValueError:
            failed.append(name)
        if done.returncode and name not in failed:
            failed.append(name)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(reports, failed), "utf-8")
    options.out.with_suffix(".json").write_text(json.dumps(reports, indent=1), "utf-8")
    print(options.out)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
