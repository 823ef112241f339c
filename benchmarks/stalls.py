"""What holds the broker's loop up, by cause: the longest stretch of each, and all of it.

    python -m benchmarks.stalls [--small] [--sec 60] [--shape 8x1x128] [--gc default]

A broker runs with probes around what its loop does besides serving requests, and around the
collector; the wire load sends to it without ever being in a hurry. Each cause has its longest
stretch in processor time of the loop's thread, which other work on the machine does not touch,
and on the clock, which shows waiting for disks and locks as well. A probe costs 1 us.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import build, wire
from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.dispatching import Dispatching
from oberth.cli.serve import GC_THRESHOLDS, SWITCH_INTERVAL_S
from oberth.remoting.aio.loop import run
from oberth.store.commit_log import CommitLog
from oberth.store.mapped_file import MappedFile

COLLECTORS: Final = ("ours", "default")


class Probe:
    """Stretches of one cause, on one thread."""

    def __init__(self) -> None:
        self.count = 0
        self.cpu_s = self.cpu_max_s = self.wall_max_s = 0.0

    def add(self, cpu_s: float, wall_s: float) -> None:
        """Note a stretch."""
        self.count += 1
        self.cpu_s += cpu_s
        self.cpu_max_s = max(self.cpu_max_s, cpu_s)
        self.wall_max_s = max(self.wall_max_s, wall_s)

    def row(self) -> dict[str, float]:
        """As the report has it."""
        return {
            "count": self.count,
            "cpu_ms": round(self.cpu_s * 1000, 2),
            "longest_cpu_ms": round(self.cpu_max_s * 1000, 3),
            "longest_ms": round(self.wall_max_s * 1000, 3),
        }


class Probes:
    """All causes of one process."""

    def __init__(self) -> None:
        self.of: dict[str, Probe] = {}
        self._began = (0.0, 0.0)

    def wrap(self, owner: type, name: str, cause: str) -> None:
        """Have each call of a method noted."""
        method: Callable[..., Any] = getattr(owner, name)
        probe = self.of.setdefault(cause, Probe())
        thread_time, clock = time.thread_time, time.perf_counter

        def noted(*arguments: Any, **named: Any) -> Any:
            cpu_s, wall_s = thread_time(), clock()
            try:
                return method(*arguments, **named)
            finally:
                probe.add(thread_time() - cpu_s, clock() - wall_s)

        setattr(owner, name, noted)

    def watch_collector(self) -> None:
        """Have each collection noted."""
        probes = [self.of.setdefault(f"collection {n}", Probe()) for n in range(3)]

        def on_collection(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                self._began = time.thread_time(), time.perf_counter()
            else:
                cpu_s, wall_s = self._began
                probes[info["generation"]].add(
                    time.thread_time() - cpu_s, time.perf_counter() - wall_s
                )

        gc.callbacks.append(on_collection)


async def serve(store: str, collector: str) -> None:
    """A broker with probes, until stdin ends; prints its address, then what was noted."""
    probes = Probes()
    probes.wrap(Broker, "on_time", "clock of the broker")
    probes.wrap(Dispatching, "now", "dispatch")
    probes.wrap(CommitLog, "append", "append, general way")
    probes.wrap(CommitLog, "append_plain", "append, kernels")
    probes.wrap(MappedFile, "reserve", "blocks for the log")
    settings = {"storePathRootDir": store, "listenPort": "0", "autoCreateTopicEnable": "true"}
    config, store_config, _ = read_configs({**settings, "brokerName": "broker-a"})
    async with Broker(config, store_config) as broker:
        if collector == "ours":
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        probes.watch_collector()
        print(broker.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({cause: probe.row() for cause, probe in probes.of.items()}), flush=True)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="two seconds, for CI")
    parser.add_argument("--sec", type=float, help="seconds (60; 2 when small)")
    parser.add_argument("--shape", default="8x1x128", help="connections x outstanding x bytes")
    parser.add_argument("--gc", default="ours", choices=COLLECTORS, help="thresholds and freezing")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        run(serve(options.serve, options.gc))
        return
    seconds = options.sec or (2 if options.small else 60)
    with tempfile.TemporaryDirectory(prefix="oberth-stalls-") as scratch:
        program = build(Path(scratch))
        words = [sys.executable, "-m", "benchmarks.stalls", "--serve", f"{scratch}/store"]
        with subprocess.Popen(
            [*words, "--gc", options.gc], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            wire.create_topics(address, ["stalls"], 4)
            host, _, port = address.rpartition(":")
            load = subprocess.run(
                [str(program), host, port, "stalls", *options.shape.split("x"), "1", str(seconds)],
                capture_output=True,
                text=True,
                check=True,
            )
            report = server.communicate("")[0]
    causes = json.loads(report)
    sent = json.loads(load.stdout)
    print(
        json.dumps(
            {"shape": options.shape, "gc": options.gc, "load": sent, "causes": causes}, indent=1
        )
    )


if __name__ == "__main__":
    main()
