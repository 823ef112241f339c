"""How cost grows as the store grows: put rate by length of the log and number of queues, open time.

    python -m benchmarks.growth [--small] [--runs 3] [--gib 1,10,40] [--real] [--dir DIR]

Every row is compared with the same at the smallest size, in turns. The log is made long by segments
of 1 GiB that hold one record and the blank that ends a segment; they are sparse, so 40 GiB cost a
few blocks on the disk, but each is a file that is mapped, listed and recovered like any other.
``--real`` writes every byte instead. Open times are those of a fresh interpreter, after a clean
stop and after SIGKILL.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row, emit
from benchmarks.store_vs_apache import compile_ours

OURS, SMALLEST = "this size", "smallest"
BURST = 64
BODY = 1024
_TIMEOUT_S = 1800
_GIB = 1 << 30


def _store(directory: str, segment: int, units: int):  # type: ignore[no-untyped-def]  # imported late
    from oberth.formats.broker_conf import read_store_config
    from oberth.store.message_store import MessageStore

    store = MessageStore(
        read_store_config(
            overrides={
                "storePathRootDir": directory,
                "mappedFileSizeCommitLog": str(segment),
                "mappedFileSizeConsumeQueue": str(units * 20),
                "diskMaxUsedSpaceRatio": "95",
            }
        )
    )
    store.load()
    store.start()
    return store


def _messages(count: int, queues: int, first: int = 0):  # type: ignore[no-untyped-def]
    from oberth.store.messages import MessageExtBrokerInner

    body = bytes(range(256)) * (BODY // 256)
    now = int(time.time() * 1000)
    return [
        MessageExtBrokerInner(
            f"t{k % queues // 8}",
            body,
            f"KEYS\x01k{k}\x02TAGS\x01t\x02".encode(),
            queue_id=k % 8,
            born_timestamp=now,
        )
        for k in range(first, first + count)
    ]


def _wait_dispatched(store: Any) -> None:
    while store.dispatch_behind_bytes:
        time.sleep(0.002)


def _end_segment(store: Any) -> None:
    """Ends the current segment as an append does that no longer fits."""
    from oberth.formats.message import encode_blank

    segment = store.commit_log.queue.last()
    segment.append(encode_blank(segment.file_size - segment.wrote_position))
    segment.fill()


def child_put(directory: str, gib: str, real: str, queues: str, count: str) -> dict[str, float]:
    """Bring the log to a length, then put; the rate, with what dispatch was behind at the end."""
    store = _store(directory, _GIB, 300_000)
    if real == "real":
        while store.max_phy_offset < (int(gib) - 1) * _GIB:
            store.append_messages(_messages(4096, 32))
            while store.dispatch_behind_bytes > 256 << 20:
                time.sleep(0.01)
    else:
        for _ in range(int(gib) - 1):
            store.append_messages(_messages(1, 8))
            _end_segment(store)
    # Every queue is there, every code path is warm.
    for first in range(0, max(int(queues), 8192), BURST):
        store.append_messages(_messages(BURST, int(queues), first))
    _wait_dispatched(store)
    seconds = 0.0
    for start in range(0, int(count), 8192):
        part = _messages(8192, int(queues), start)
        began = time.perf_counter()
        for at in range(0, len(part), BURST):
            store.append_messages(part[at : at + BURST])
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    _wait_dispatched(store)
    tail = time.perf_counter() - began
    total = -(-int(count) // 8192) * 8192
    store.shutdown()
    return {"per_s": total / (seconds + tail)}


def child_make(directory: str, segments: str, queues: str, how: str) -> dict[str, float]:
    """A store of so many segments and queues, ended cleanly or killed."""
    store = _store(directory, 1 << 20, 1000)
    for _ in range(int(segments) - 1):
        store.append_messages(_messages(1, 8))
        _end_segment(store)
    for first in range(0, int(queues), 512):
        store.append_messages(_messages(min(512, int(queues) - first), int(queues), first))
    _wait_dispatched(store)
    if how == "killed":
        store.checkpoint_now()
        store.append_messages(_messages(64, 8))
        _wait_dispatched(store)
        print(json.dumps({"bytes": store.max_phy_offset}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    end = store.max_phy_offset
    store.shutdown()
    return {"bytes": end}


def child_open(directory: str) -> dict[str, float]:
    """Open and catch up."""
    store = _store(directory, 1 << 20, 1000)
    _wait_dispatched(store)
    result = {"bytes": float(store.max_phy_offset)}
    print(json.dumps(result), flush=True)
    # What closing costs is not measured: the figure is taken when this line arrives.
    os.kill(os.getpid(), signal.SIGKILL)
    return result


def _run(name: str, *args: object) -> tuple[dict[str, Any], float]:
    command = [sys.executable, "-m", "benchmarks.growth", "--child", name, *map(str, args)]
    began = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=False
    )
    seconds = time.perf_counter() - began
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name} {args} ended with {done.returncode}")
    return lines[-1], seconds


def measure(base: Path, options: argparse.Namespace) -> list[Row]:
    """All rows: each size against the smallest, one after the other in each run."""
    gib = [int(part) for part in options.gib.split(",")]
    count = 16_384 if options.small else 200_000
    puts = [("put", f"put in bursts, {size} GiB of log", size, 32) for size in gib]
    puts += [
        ("queues", f"put in bursts, {queues:,} queues", 1, queues)
        for queues in ((10, 1000) if options.small else (10, 1000, 10_000))
    ]
    many = (10, 100) if options.small else (10, 100, 1000)
    opens = [
        (how, f"open {how}, {segments:,} segments", segments, 32)
        for how in ("cleanly stopped", "killed")
        for segments in many
    ]
    opens += [
        (f"queues {how}", f"open {how}, {queues:,} queues", 10, queues)
        for how in ("cleanly stopped", "killed")
        for queues in ((10, 1000) if options.small else (10, 1000, 10_000))
    ]
    rows: dict[str, Row] = {what: Row(what, "1/s", 0.7) for _, what, *_ in puts}
    rows |= {what: Row(what, "s", None, True) for _, what, *_ in opens}
    for _ in range(options.runs):
        first: dict[str, float] = {}
        for group, what, size, queues in puts:
            path = base / "store"
            real = "real" if options.real else "sparse"
            figure = _run("put", path, size, real, queues, count)[0]["per_s"]
            shutil.rmtree(path)
            _add(rows[what], first.setdefault(group, figure), figure)
        for group, what, segments, queues in opens:
            path = base / "store"
            how = "killed" if "killed" in group else "stopped"
            _run("make", path, segments, queues, how)
            figure = _run("open", path)[1]
            shutil.rmtree(path)
            _add(rows[what], first.setdefault(group, figure), figure)
    return list(rows.values())


def _add(row: Row, smallest: float, figure: float) -> None:
    row.add(SMALLEST, smallest)
    row.add(OURS, figure)
    sys.stderr.write(f"{row.what:44} {figure:,.4g} {row.unit}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs (3; 1 when small)")
    parser.add_argument("--gib", help="lengths of the log (1,10,40; 1,3 when small)")
    parser.add_argument("--real", action="store_true", help="write every byte of the log")
    parser.add_argument("--dir", type=Path, help="where the stores are made")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        name, *args = options.child
        calls: dict[str, Any] = {"put": child_put, "make": child_make, "open": child_open}
        print(json.dumps(calls[name](*args)), flush=True)
        return
    options.runs = options.runs or (1 if options.small else 3)
    options.gib = options.gib or ("1,3" if options.small else "1,10,40")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    compile_ours()
    base = Path(tempfile.mkdtemp(prefix="oberth-bench-", dir=options.dir))
    try:
        rows = measure(base, options)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    emit("growth", rows, ours=OURS, rival=SMALLEST, real=options.real, skipped={})


if __name__ == "__main__":
    main()
