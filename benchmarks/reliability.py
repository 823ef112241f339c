"""One command that tries to prove that something acknowledged is lost, and a report of what it did.

    python -m benchmarks.reliability [--minutes 60] [--seed 1] [--jobs 2] [--small] [--out FILE.md]
                                     [--only failover,pair,simulation,group,fuzz,soak]

failover    groups of three under seeds, simulated: kills, power cuts, full and failing disks,
            jumping clocks, partitions (`oberth.testing.failover`)
pair        a master and its slave without a controller under seeds, simulated: kills and power cuts
            of either, and an operator who makes the slave the master (`oberth.testing.pair`)
simulation  two brokers with every kind of message under seeds (`oberth.testing.simulation`)
group       three brokers and a controller as processes: SIGKILL and SIGSTOP under load
            (`benchmarks.group`)
fuzz        frames of any kind beside an honest client (`benchmarks.fuzz`)
soak        short lives, one after the other (`benchmarks.soak`)

Each part has its share of the time and goes on from seed to seed until that is over. The report
says what was run, what went wrong by kind, how many messages were acknowledged, how often it was
looked whether they are there, and how many were lost; a fault comes with the command that runs it
again. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.report import machine

ROOT: Final = Path(__file__).parents[1]
KILLS: Final = (
    "broker killed", "master killed", "controller killed", "client killed", "name server killed",
)  # fmt: skip
CUTS: Final = ("power cut", "master lost power", "slave lost power")
PARTINGS: Final = ("network parted", "connection torn", "process stopped")
FAULTS_SHOWN: Final = 5
RUN_S: Final = 1800.0
"""For one run of a part: only what hangs takes so long."""
SMALL_MINUTES: Final = 0.4


@dataclass
class Part:
    """What one part has done.

    Attributes:
        name: of the part.
        share: of the campaign's time.
        runs: that came to an end.
        seeds: of those runs; empty where there are none.
        figures: sums of ``sent``, ``acknowledged``, ``checked`` and ``lost``.
        luck: how often what went wrong, by kind.
        faults: what must not be, with the command that runs it again.
        seconds: that it took.
    """

    name: str
    share: float
    runs: int = 0
    seeds: list[int] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    luck: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, command: Sequence[str], found: dict[str, Any]) -> None:
        """One run more.

        Args:
            command: what was run.
            found: ``faults``, and what is known of ``seed``, ``sent``, ``acknowledged``,
                ``checked``, ``lost``, ``luck``.
        """
        self.runs += 1
        if "seed" in found:
            self.seeds.append(found["seed"])
        for name in ("sent", "acknowledged", "checked", "lost"):
            self.figures[name] += found.get(name) or 0
        self.luck.update(found.get("luck", {}))
        if found["faults"]:
            shown = "; ".join(map(str, found["faults"][:FAULTS_SHOWN]))
            self.faults.append(f"{' '.join(command)}: {shown}")

    def count(self, kinds: Sequence[str]) -> int:
        """How often something of these kinds went wrong."""
        return sum(self.luck[kind] for kind in kinds)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "part": self.name,
            "seconds": round(self.seconds, 1),
            "runs": self.runs,
            "seeds": [min(self.seeds), max(self.seeds)] if self.seeds else None,
            "kills": self.count(KILLS),
            "cuts": self.count(CUTS),
            "partitions": self.count(PARTINGS),
            **{name: self.figures[name] for name in ("sent", "acknowledged", "checked", "lost")},
            "luck": dict(sorted(self.luck.items())),
            "faults": self.faults,
        }


@dataclass(frozen=True)
class Plan:
    """How large the parts' runs are."""

    is_small: bool
    minutes: float
    first_seed: int
    jobs: int


def run(command: Sequence[str]) -> dict[str, Any]:
    """One run of a module that prints JSON; what cannot be read is a fault."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True,
            timeout=RUN_S, check=False, env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"faults": [f"no end after {RUN_S:.0f} s"]}
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return {"faults": [f"ended with {done.returncode}: {' '.join(last)}"]}
    faults = found.setdefault("faults", found.get("complaints", []))
    if done.returncode and not faults:
        faults.append(f"ended with {done.returncode}")
    return found


def again_until(
    part: Part,
    plan: Plan,
    commands: Iterator[Sequence[str]],
    read: Callable[[dict[str, Any]], dict[str, Any]],
    jobs: int,
) -> None:
    """Runs one command after the other until the part's time is over; each job one at least."""
    end = time.monotonic() + part.share * plan.minutes * 60

    def work(_: int) -> None:
        while True:
            command = next(commands)
            part.add(["python", "-m", *command], read(run(command)))
            if plan.is_small or time.monotonic() >= end:
                return

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))


def failover(part: Part, plan: Plan) -> None:
    """Seeds of a simulated group."""
    seeds_of("oberth.testing.failover", part, plan, "15", plan.jobs)


def pair(part: Part, plan: Plan) -> None:
    """Seeds of a simulated master and slave."""
    seeds_of("oberth.testing.pair", part, plan, "15", 1 if plan.is_small else plan.jobs)


def simulation(part: Part, plan: Plan) -> None:
    """Seeds of a simulated cluster."""
    seeds_of("oberth.testing.simulation", part, plan, "10", 1 if plan.is_small else plan.jobs)


def seeds_of(module: str, part: Part, plan: Plan, small_s: str, jobs: int) -> None:
    """Runs of a simulation, seed by seed."""
    more = ["--seconds", small_s if plan.is_small else "60", "--json"]
    commands = ([module, "--seed", str(seed), *more] for seed in itertools.count(plan.first_seed))
    again_until(part, plan, commands, lambda found: found, jobs)


def group(part: Part, plan: Plan) -> None:
    """Processes. What a run with a fault has left stays where its command says."""
    directory = Path(tempfile.mkdtemp(prefix="oberth-reliability-"))

    def read(found: dict[str, Any]) -> dict[str, Any]:
        if not found["faults"]:
            shutil.rmtree(directory / str(found["seed"]))
        return found

    seconds = "5" if plan.is_small else "60"
    commands = (
        ["benchmarks.group", str(directory / str(seed)), str(seed), seconds]
        for seed in itertools.count(plan.first_seed)
    )
    again_until(part, plan, commands, read, 1)
    if not part.faults:
        directory.rmdir()


def fuzz(part: Part, plan: Plan) -> None:
    """Frames; what is acknowledged and checked is the honest client's."""

    def read(found: dict[str, Any]) -> dict[str, Any]:
        honest = found.get("honest", {}).get("messages", 0)
        return {**found, "sent": honest, "acknowledged": honest, "checked": honest}

    frames = "600" if plan.is_small else "20000"
    odds = itertools.cycle(([], ["--acl"], ["--tls"], ["--acl", "--tls"]))
    commands = (
        ["benchmarks.fuzz", "--frames", frames, "--seed", str(seed), *more]
        for seed, more in zip(itertools.count(plan.first_seed), odds, strict=False)
    )
    again_until(part, plan, commands, read, 1)


def soak(part: Part, plan: Plan) -> None:
    """Lives; all its time is one run."""

    def read(found: dict[str, Any]) -> dict[str, Any]:
        counts = found.get("counts", {})
        sent = counts.get("messages", 0)
        faults = [*found["faults"], *found.get("verify", [])]
        return {"sent": sent, "acknowledged": sent, "checked": counts.get("read", 0),
                "faults": faults}  # fmt: skip

    minutes = "0.1" if plan.is_small else f"{part.share * plan.minutes:g}"
    part.add(
        ["python", "-m", "benchmarks.soak", "--minutes", minutes],
        read(run(["benchmarks.soak", "--minutes", minutes])),
    )


PARTS: Final[dict[str, tuple[float, Callable[[Part, Plan], None]]]] = {
    "failover": (0.3, failover),
    "pair": (0.1, pair),
    "simulation": (0.15, simulation),
    "group": (0.25, group),
    "fuzz": (0.1, fuzz),
    "soak": (0.1, soak),
}
"""Each with its share of the time."""


def page(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    about = report["machine"]
    head = (
        "part",
        "runs",
        "seeds",
        "kills",
        "cuts",
        "partitions",
        "acknowledged",
        "checked",
        "lost",
    )
    lines = [
        f"{about['date'][:10]}, `{about['command']}`: {report['seconds'] / 60:.1f} minutes on "
        f"{about['cores']} cores ({about['cpu'] or 'unknown processor'}), {about['system']}, "
        f"Python {about['python']}.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    total: Counter[str] = Counter()
    for part in report["parts"]:
        seeds = part["seeds"]
        cells = {**part, "seeds": "–" if seeds is None else f"{seeds[0]} to {seeds[1]}"}
        lines.append("| " + " | ".join(str(cells[name]) for name in head) + " |")
        total.update({name: part[name] for name in head if isinstance(part[name], int)})
    cells = {**total, "part": "all", "seeds": ""}
    lines.append("| " + " | ".join(str(cells[name]) for name in head) + " |")
    luck: Counter[str] = Counter()
    for part in report["parts"]:
        luck.update(part["luck"])
    if luck:
        lines += ["", ", ".join(f"{kind} {count}" for kind, count in sorted(luck.items())) + "."]
    faults = [fault for part in report["parts"] for fault in part["faults"]]
    lines += ["", *(f"* {fault}" for fault in faults)] if faults else ["", "Nothing was wrong."]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run and report; exit 1 if there is a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at once")
    parser.add_argument("--small", action="store_true", help="a run or two of each part, for CI")
    parser.add_argument("--only", default=",".join(PARTS), help="parts")
    parser.add_argument("--out", type=Path, help="Markdown; the JSON goes beside it")
    given = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(given)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    minutes = SMALL_MINUTES if options.small else options.minutes
    plan = Plan(options.small, minutes, options.seed, options.jobs)
    whole = sum(PARTS[name][0] for name in wanted)
    parts = []
    begun = time.monotonic()
    for name in wanted:
        share, work = PARTS[name]
        part = Part(name, share / whole)
        sys.stderr.write(f"{name}\n")
        since = time.monotonic()
        work(part, plan)
        part.seconds = time.monotonic() - since
        parts.append(part.as_json())
    report = {
        "benchmark": "reliability",
        "machine": {**machine(), "command": " ".join(["python -m benchmarks.reliability", *given])},
        "seconds": round(time.monotonic() - begun, 1),
        "parts": parts,
    }
    text = page(report)
    print(json.dumps(report, indent=1))
    sys.stderr.write(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, "utf-8")
        options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if any(part["faults"] for part in parts):
        sys.exit(1)


if __name__ == "__main__":
    main()
