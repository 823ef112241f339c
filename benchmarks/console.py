"""Pages of the console over many topics and groups, and what they cost sends meanwhile.

    python -m benchmarks.console [--small] [--topics 10000] [--groups 1000] [--runs 5] [--idle 60]

A broker process gets so many topics, each with a message and a committed offset of one of the
groups. A console of its own is started for each run: its first page counts from the moment it is
asked for, nothing being known yet; the same of lists of topics and groups, beside sends. Then every
page is loaded, and 64 connections send 10 000 messages of 128 bytes a second: without a console,
with somebody who looks at a page each second, and with one who loads them in a row; three turns of
each in a run, long enough for every page. Baseline is the same broker without a console; its turn
is the first or the last, by turns. The load is a program in C: a client in this process would wait
for the pages that this process reads. A console whose pages nobody loads is charged the processor
time that the broker spends meanwhile, beyond that of as long without a console. Bars: 1 s for the
first page, 2 s for any, 1.2 for a send's p99.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from benchmarks.grpc_idle import cpu_s
from benchmarks.metrics import QUEUE_FILE_SIZE, READY, fill, prepare, topic_names
from benchmarks.peers import build
from benchmarks.report import Row, emit

OURS: Final = "with a console"
BASELINE: Final = "without"
FIRST_S_MAX: Final = 1.0
PAGE_S_MAX: Final = 2.0
P99_RATIO_MAX: Final = 1.2
PAGE_TIMEOUT_S: Final = 60
IDLE_S: Final = 60.0
"""How long the broker's processor time is counted for one figure."""
WINDOW_S: Final = 14.0
"""How long sends are looked at: one page a second shows each page once."""
TURNS: Final = 3
"""Turns of sends without a console, and beside each kind of looking at one, in a run: from one
window to the next the p99 of the same broker alone differs by a factor of two."""
NEW_LISTS: Final = ("/topics", "/groups")
CONNECTIONS: Final = 64
SENDS_A_SECOND: Final = 10_000
LOOKS: Final = {"a page each second": 1.0, "pages in a row": 0.0}
"""How people look at the console, and the seconds between two pages."""
TOPIC: Final = "Load"


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


class Sends:
    """A steady load of one broker."""

    def __init__(self, program: Path, address: str) -> None:
        self._program = program
        self._address = address

    async def run(self, seconds: float) -> dict[str, float]:
        """What the generator says: ``p99_us`` and ``per_s`` among it."""
        host, _, port = self._address.rpartition(":")
        process = await asyncio.create_subprocess_exec(
            *(str(self._program), host, port, TOPIC, str(CONNECTIONS), "1", "128", "0.5"),
            *(str(seconds), "4", "0", "0", "send", "", str(SENDS_A_SECOND)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the load of sends ended with {process.returncode}")
        said: dict[str, float] = json.loads(output)
        return said


async def looked_at(base: str, paths: list[str], pause_s: float, stop: asyncio.Event) -> None:
    """Pages, one after the other."""
    while not stop.is_set():
        for path in paths:
            await asyncio.to_thread(load, base, path)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)
            if stop.is_set():
                break


async def run(
    namesrv: str,
    pid: int,
    sends: Sends,
    *,
    topics: int,
    seconds: float,
    idle_s: float,
    runs: int,
    seed: int,
) -> dict[str, Row]:
    """All rows."""
    table = {"first": Row("the first page of a new console", "s", None, True, FIRST_S_MAX)}
    for path in NEW_LISTS:
        table[path] = Row(f"{path} of a new console, beside sends", "s", None, True, PAGE_S_MAX)
    wanted = pages(topics, seed)
    for what in wanted:
        table[what] = Row(f"page: {what}", "s", None, True, PAGE_S_MAX)
    for how in LOOKS:
        table[how] = Row(f"p99 of sends beside {how}", "us", P99_RATIO_MAX, True)
        table[f"{how}, rate"] = Row("  sends a second", "1/s")
    table["cpu"] = Row("broker's processor time a minute, nobody sends", "s", None, True)

    async def baseline() -> None:
        said = await sends.run(seconds)
        for how in LOOKS:
            table[how].add(BASELINE, said["p99_us"])
            table[f"{how}, rate"].add(BASELINE, said["per_s"])

    async def beside_looks(base: str, how: str, pause_s: float) -> None:
        stop = asyncio.Event()
        look = asyncio.create_task(looked_at(base, list(wanted.values()), pause_s, stop))
        said = await sends.run(seconds)
        stop.set()
        await look
        table[how].add(OURS, said["p99_us"])
        table[f"{how}, rate"].add(OURS, said["per_s"])

    for number in range(runs):
        beside, alone = await charged(namesrv, pid, idle_s)
        table["cpu"].add(OURS, beside)
        table["cpu"].add(BASELINE, alone)
        for path in NEW_LISTS:
            with a_console(namesrv) as base:
                load_of_sends = asyncio.create_task(sends.run(seconds))
                table[path].add(OURS, await asyncio.to_thread(load, base, path))
                await load_of_sends
        with a_console(namesrv) as base:
            table["first"].add(OURS, await asyncio.to_thread(load, base, "/"))
            for what, path in wanted.items():
                table[what].add(OURS, await asyncio.to_thread(load, base, path))
        for turn in range(TURNS):
            if (number + turn) % 2 == 0:
                await baseline()
            with a_console(namesrv) as base:
                await asyncio.to_thread(load, base, "/groups")  # its first look is no part of it
                for how, pause_s in LOOKS.items():
                    await beside_looks(base, how, pause_s)
            if (number + turn) % 2:
                await baseline()
    return table


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="a moment, to see that it runs")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, help="seconds of each measurement without sends"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    topics, groups, runs, seconds = options.topics, options.groups, options.runs, WINDOW_S
    idle_s = options.idle
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
                run(
                    found[1],
                    process.pid,
                    Sends(build(Path(folder)), found[2]),
                    topics=topics,
                    seconds=seconds,
                    idle_s=idle_s,
                    runs=runs,
                    seed=options.seed,
                )
            )
        finally:
            process.terminate()
            process.communicate(timeout=60)
    emit("console", rows.values(), OURS, BASELINE, topics=topics, groups=groups)


if __name__ == "__main__":
    main()
