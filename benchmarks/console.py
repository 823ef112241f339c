"""Pages of the console over many topics and groups, and what they cost sends meanwhile.

    python -m benchmarks.console [--small] [--topics 10000] [--groups 1000] [--runs 5] [--seed 1]

A broker process gets so many topics, each with a message and a committed offset of one of the
groups. A console of its own is started for each run: its first page counts from the moment it is
asked for, nothing being known yet; the same of lists of topics and groups, beside sends. Then every
page is loaded, and a client sends 128-byte messages,
8 at a time, with and without somebody who loads pages in a row; both take turns and change places.
Baseline is the same broker without a console. A console whose pages nobody loads is charged the
processor time that the broker spends meanwhile, beyond that of as long without a console. Bars: 1 s
for the first page, 2 s for any, 1.2 for a send's p99.
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

from benchmarks.grpc_idle import cpu_s
from benchmarks.metrics import QUEUE_FILE_SIZE, READY, WINDOW_S, fill, prepare, send, topic_names
from benchmarks.report import Row, emit

OURS: Final = "with a console"
BASELINE: Final = "without"
FIRST_S_MAX: Final = 1.0
PAGE_S_MAX: Final = 2.0
P99_RATIO_MAX: Final = 1.2
PAGE_TIMEOUT_S: Final = 60
IDLE_S: Final = 60.0
"""How long the broker's processor time is counted for one figure."""
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


async def charged(namesrv: str, pid: int, seconds: float) -> tuple[float, float]:
    """The broker's processor time for a minute, with a console that nobody looks at and without."""
    before = cpu_s(pid)
    await asyncio.sleep(seconds)
    alone = cpu_s(pid) - before
    with a_console(namesrv) as base:
        await asyncio.to_thread(load, base, "/groups")  # its first look is no part of it
        before = cpu_s(pid)
        await asyncio.sleep(seconds)
        beside = cpu_s(pid) - before
    return beside * 60 / seconds, alone * 60 / seconds


async def sends(
    table: dict[str, Row], side: str, namesrv: str, seconds: float, rng: random.Random
) -> None:
    """One turn of sends, as figures of a side."""
    latencies = sorted(await send(namesrv, seconds, rng))
    table["p99"].add(side, latencies[len(latencies) * 99 // 100])
    table["rate"].add(side, len(latencies) / seconds)


async def run(
    namesrv: str, pid: int, topics: int, seconds: float, idle_s: float, runs: int, seed: int
) -> dict[str, Row]:
    """All rows."""
    table = {"first": Row("the first page of a new console", "s", None, True, FIRST_S_MAX)}
    for path in NEW_LISTS:
        table[path] = Row(f"{path} of a new console, beside sends", "s", None, True, PAGE_S_MAX)
    wanted = pages(topics, seed)
    for what in wanted:
        table[what] = Row(f"page: {what}", "s", None, True, PAGE_S_MAX)
    table["p99"] = Row("send, 8 in flight, p99", "ms", P99_RATIO_MAX, True)
    table["rate"] = Row("sends in a second, 8 in flight", "1/s")
    table["cpu"] = Row("broker's processor time a minute, nobody sends", "s", None, True)
    rng = random.Random(seed)
    for number in range(runs):
        beside, alone = await charged(namesrv, pid, idle_s)
        table["cpu"].add(OURS, beside)
        table["cpu"].add(BASELINE, alone)
        if number % 2 == 0:
            await sends(table, BASELINE, namesrv, seconds, rng)
        for path in NEW_LISTS:
            with a_console(namesrv) as base:
                load_of_sends = asyncio.create_task(send(namesrv, seconds, rng))
                table[path].add(OURS, await asyncio.to_thread(load, base, path))
                await load_of_sends
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
            await sends(table, OURS, namesrv, seconds, rng)
            stop.set()
            await task
        if number % 2:
            await sends(table, BASELINE, namesrv, seconds, rng)
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
    idle_s = IDLE_S
    if options.small:
        topics, groups, runs, seconds, idle_s = min(topics, 200), min(groups, 20), 1, 0.3, 0.3
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
            rows = asyncio.run(
                run(found[1], process.pid, topics, seconds, idle_s, runs, options.seed)
            )
        finally:
            process.terminate()
            process.communicate(timeout=60)
    emit("console", rows.values(), OURS, BASELINE, topics=topics, groups=groups)


if __name__ == "__main__":
    main()
