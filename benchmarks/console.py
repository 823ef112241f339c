"""Pages of the console over many topics and groups, and what they cost sends meanwhile.

    python -m benchmarks.console [--small] [--topics 10000] [--groups 1000] [--runs 5] [--seed 1]

A broker process gets so many topics, each with a message and a committed offset of one of the
groups. A console of its own is started for each run: its first page counts from the moment it is
asked for, nothing being known yet; the same of lists of topics and groups, beside sends. Then every
page is loaded, and a client sends 128-byte messages,
8 at a time, with and without somebody who loads pages in a row; both take turns. Baseline is the
same broker without a console. Bars: 1 s for the first page, 2 s for any, 1.2 for a send's p99.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from benchmarks.metrics import QUEUE_FILE_SIZE, READY, WINDOW_S, fill, prepare, send, topic_names
from benchmarks.report import Row, emit

OURS: Final = "with a console"
BASELINE: Final = "without"
FIRST_S_MAX: Final = 1.0
PAGE_S_MAX: Final = 2.0
P99_RATIO_MAX: Final = 1.2
PAGE_TIMEOUT_S: Final = 60
NEW_LISTS: Final = ("/topics", "/groups")


def pages(topics: int, seed: int) -> dict[str, str]:
    """Addresses by what they are."""
    name = quote(topic_names(topics, seed)[topics // 2])
    return {
        "overview": "/",
        "topics": "/topics",
        "topics, the last page": f"/topics?page={topics}",
        "topics, searched": "/topics?q=77",
        "topics by messages kept": "/topics?sort=kept",
        "a topic": f"/topic?name={name}",
        "its messages": f"/messages?topic={name}",
        "groups": "/groups",
        "groups by lag": "/groups?sort=lag",
        "a group": "/group?name=group-0007",
        "dead letters": "/letters",
        "what waits": "/waiting",
        "settings": "/settings?all=1",
    }


def load(base: str, path: str) -> float:
    """Seconds until a page is there."""
    start = time.perf_counter()
    with urllib.request.urlopen(base + path, timeout=PAGE_TIMEOUT_S) as answer:
        answer.read()
    return time.perf_counter() - start


@contextmanager
def a_console(namesrv: str) -> Iterator[str]:
    """A console in a process of its own; its address."""
    words = (sys.executable, "-m", "oberth", "console", "-n", namesrv, "--port", "0")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


async def run(namesrv: str, topics: int, seconds: float, runs: int, seed: int) -> dict[str, Row]:
    """All rows."""
    table = {"first": Row("the first page of a new console", "s", None, True, FIRST_S_MAX)}
    for path in NEW_LISTS:
        table[path] = Row(f"{path} of a new console, beside sends", "s", None, True, PAGE_S_MAX)
    wanted = pages(topics, seed)
    for what in wanted:
        table[what] = Row(f"page: {what}", "s", None, True, PAGE_S_MAX)
    table["p99"] = Row("send, 8 in flight, p99", "ms", P99_RATIO_MAX, True)
    table["rate"] = Row("sends in a second, 8 in flight", "1/s")
    rng = random.Random(seed)
    for _ in range(runs):
        latencies = sorted(await send(namesrv, seconds, rng))
        table["p99"].add(BASELINE, latencies[len(latencies) * 99 // 100])
        table["rate"].add(BASELINE, len(latencies) / seconds)
        for path in NEW_LISTS:
            with a_console(namesrv) as base:
                sends = asyncio.create_task(send(namesrv, seconds, rng))
                table[path].add(OURS, await asyncio.to_thread(load, base, path))
                await sends
        with a_console(namesrv) as base:
            table["first"].add(OURS, await asyncio.to_thread(load, base, "/"))
            for what, path in wanted.items():
                table[what].add(OURS, await asyncio.to_thread(load, base, path))
            stop = asyncio.Event()

            async def look(base: str = base, stop: asyncio.Event = stop) -> None:
                while not stop.is_set():
                    for path in wanted.values():
                        await asyncio.to_thread(load, base, path)
                        if stop.is_set():
                            break

            task = asyncio.create_task(look())
            latencies = sorted(await send(namesrv, seconds, rng))
            stop.set()
            await task
            table["p99"].add(OURS, latencies[len(latencies) * 99 // 100])
            table["rate"].add(OURS, len(latencies) / seconds)
    return table


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="a moment, to see that it runs")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    topics, groups, runs, seconds = options.topics, options.groups, options.runs, WINDOW_S
    if options.small:
        topics, groups, runs, seconds = min(topics, 200), min(groups, 20), 1, 0.3
    with tempfile.TemporaryDirectory(prefix="oberth-console-") as folder:
        store = Path(folder) / "store"
        prepare(store, topics, options.seed)
        table = {
            f"{name}@group-{number % groups:04}": {"0": 0}
            for number, name in enumerate(topic_names(topics, options.seed))
        }
        (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oberth", "up", "--store", str(store)),
                *("--port", "0", "--namesrv-port", "0", "--console-port", "-1"),
                *("--set", "brokerName=broker-m"),
                *("--set", f"mappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = READY.match(line := process.stdout.readline())
            if found is None:
                raise RuntimeError(f"the broker did not start: {line}")
            asyncio.run(fill(found[1], found[2], topics, options.seed))
            rows = asyncio.run(run(found[1], topics, seconds, runs, options.seed))
        finally:
            process.terminate()
            process.communicate(timeout=60)
    emit("console", rows.values(), OURS, BASELINE, topics=topics, groups=groups)


if __name__ == "__main__":
    main()
