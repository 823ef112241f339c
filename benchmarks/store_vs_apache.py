"""Our store against Apache's DefaultMessageStore, both in process, no network, in turns.

    python -m benchmarks.store_vs_apache [--small] [--runs 3] [--only put,sync,rebuild,open,get]

Apache's figures are StoreBench's own (without the start of its JVM); ours of opening include the
start of the interpreter. Every measurement is a process of its own on a directory of its own.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.load import store_bench
from benchmarks.report import Row, emit, take_turns

RIVAL, OURS = "apache-5.5.0", "oberth"
GROUPS = ("put", "sync", "rebuild", "open", "verify", "get", "import")
BURST = 64
_TIMEOUT_S = 900


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "put-128": Row("put, one caller, async flush, 128 B", "1/s", 0.25),
        "put-1024": Row("put, one caller, async flush, 1 KiB", "1/s", 0.4),
        "burst-128": Row(f"the same in bursts of {BURST}, 128 B", "1/s", 0.7),
        "burst-1024": Row(f"the same in bursts of {BURST}, 1 KiB", "1/s", 1.0),
        "sync-64": Row("SYNC_FLUSH, 64 callers waiting (threads), 1 KiB", "1/s", 1.0),
        "sync-core": Row("SYNC_FLUSH, 64 callers waiting (threads, one core), 1 KiB", "1/s", 1.0),
        "sync-loop": Row("SYNC_FLUSH, 64 callers waiting (tasks of a loop), 1 KiB", "1/s", 1.0),
        "sync-1": Row("SYNC_FLUSH, one caller, 1 KiB", "1/s", 1.0),
        "rebuild-128": Row("rebuild queues and index, 128 B", "1/s", 2.0),
        "rebuild-1024": Row("rebuild queues and index, 1 KiB", "1/s", 2.0),
        "open-killed": Row("open after SIGKILL", "s", 0.5, True),
        "open-clean": Row("open after a clean stop", "s", 0.3, True),
        "verify": Row("verify everything with CRC, 1 KiB", "GB/s", limit=1.0),
        "get": Row("get of 32 messages, slices, no copy", "1/s", limit=500_000),
        "import": Row("import and open of an empty store", "s", None, True, 0.2),
        "memory": Row("resident memory then", "MB", None, True, 40),
    }


def compile_ours() -> None:
    """Write the bytecode that an installation has.

    Every measurement starts an interpreter. Where PYTHONDONTWRITEBYTECODE is set a checkout has no
    bytecode, and each start would compile some 160 modules, 0.15 s, as if that were the store's.
    """
    import oberth

    for folder in (*oberth.__path__, str(Path(__file__).parent)):
        compileall.compile_dir(folder, quiet=2)


def ours(*args: object) -> dict[str, Any]:
    """A measurement of ours in a fresh interpreter; ``wall_s`` is added."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.our_store", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    wall = time.perf_counter() - began
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.stderr.write(done.stderr[-2000:])
        raise RuntimeError(f"our_store {args[0]} ended with {done.returncode}")
    return {**lines[-1], "wall_s": wall}


def tool(*args: object) -> float:
    """Wall seconds of an ``oberth store`` command."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "oberth", "store", *map(str, args)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return time.perf_counter() - began


def drop_derived(store: Path) -> None:
    """Take away what can be rebuilt, as after a loss of these files."""
    for name in ("consumequeue", "index", "rocksdbstore"):
        shutil.rmtree(store / name, ignore_errors=True)


class Turn:
    """One round of one side."""

    def __init__(self, side: str, directory: Path, options: argparse.Namespace) -> None:
        self.side = side
        self.directory = directory
        self.small = options.small
        self.wanted = options.only

    def scaled(self, count: int) -> int:
        """A count of messages, a twentieth of it when small."""
        return count // 20 if self.small else count

    def fresh(self, name: str) -> Path:
        """A directory that does not exist yet."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def measure(self, add: Any) -> None:
        """All wanted rows."""
        if "put" in self.wanted:
            for size, n in ((128, self.scaled(1_000_000)), (1024, self.scaled(400_000))):
                self._put(add, size, n)
        if "sync" in self.wanted:
            for callers, n in ((64, self.scaled(200_000)), (1, self.scaled(20_000))):
                path = self.fresh("sync")
                if self.side == OURS:
                    figure = ours("put", path, n, 1024, "sync", callers, 1)["per_s"]
                else:
                    figure = store_bench("put", path, n, 1024, "sync", callers)[-1]["per_s"]
                add(f"sync-{callers}", figure)
                shutil.rmtree(path)
                if callers > 1:
                    for name in ("put_on_one_core", "put_loop"):
                        if self.side == OURS:
                            figure = ours(name, path, n, 1024, callers)["per_s"]
                            shutil.rmtree(path)
                        add("sync-core" if name == "put_on_one_core" else "sync-loop", figure)
        if {"rebuild", "verify"} & set(self.wanted):
            self._rebuild(add)
        if "open" in self.wanted:
            self._open(add)
        if self.side == OURS and "get" in self.wanted:
            path = self.fresh("get")
            ours("fill", path, self.scaled(400_000), 1024, "stop")
            add("get", ours("get", path, 2)["per_s"])
            shutil.rmtree(path)
        if self.side == OURS and "import" in self.wanted:
            path = self.fresh("empty")
            ours("open", path)  # the directories are there, the bytecode too
            result = ours("open", path)
            add("import", result["wall_s"])
            add("memory", result["rss_mb"])
            shutil.rmtree(path)

    def _put(self, add: Any, size: int, n: int) -> None:
        path = self.fresh("put")
        if self.side == OURS:
            add(f"put-{size}", ours("put", path, n // 2, size, "async", 1, 1)["per_s"])
            shutil.rmtree(path)
            add(f"burst-{size}", ours("put", path, n, size, "async", 1, BURST)["per_s"])
        else:
            figure = store_bench("put", path, n, size, "async", 1)[-1]["per_s"]
            add(f"put-{size}", figure)
            add(f"burst-{size}", figure)
        shutil.rmtree(path)

    def _rebuild(self, add: Any) -> None:
        for size, n in ((128, self.scaled(2_000_000)), (1024, self.scaled(3_000_000))):
            path = self.fresh("rebuild")
            written = ours("fill", path, n, size, "stop")["bytes"]  # the same log for both
            if self.side == OURS:
                found = ours("rebuild", path, self.fresh("into"))
                assert found["records"] == n
                seconds = found["rebuild_s"]
                if size == 1024 and "verify" in self.wanted:
                    add("verify", written / tool("verify", path) / 1e9)
            else:
                drop_derived(path)
                seconds = store_bench("open", path, 0, size, "async", 1)[0]["dispatched_s"]
            if "rebuild" in self.wanted:
                add(f"rebuild-{size}", n / seconds)
            shutil.rmtree(path)

    def _open(self, add: Any) -> None:
        n = self.scaled(2_500_000)  # some 3 GB
        for how in ("kill", "stop"):
            path = self.fresh("open")
            key = "open-killed" if how == "kill" else "open-clean"
            if self.side == OURS:
                ours("fill", path, n, 1024, how)
                add(key, ours("open", path)["wall_s"])
            else:
                store_bench("put", path, n, 1024, "async", 1, kill=how == "kill")
                add(key, store_bench("open", path, 0, 1024, "async", 1)[0]["dispatched_s"])
            shutil.rmtree(path)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--sides", default=f"{RIVAL},{OURS}", help="rival, then ours")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows")
    parser.add_argument("--dir", type=Path, help="where the stores are made (some 10 GB)")
    options = parser.parse_args(argv)
    options.runs = options.runs or (1 if options.small else 3)
    options.only = options.only.split(",")
    compile_ours()
    table = rows()

    def measure(side: str, directory: Path, add: Callable[[str, float], None]) -> None:
        Turn(side, directory, options).measure(add)
        shutil.rmtree(directory, ignore_errors=True)

    sides = options.sides.split(",")
    skipped = take_turns(sides, options.runs, table, measure, parent=options.dir)
    emit("store_vs_apache", table.values(), ours=OURS, rival=RIVAL, skipped=skipped)


if __name__ == "__main__":
    main()
