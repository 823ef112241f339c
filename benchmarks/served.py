"""A name server and a broker in a process of their own, watched from outside and from inside.

From outside: memory, descriptors and threads, from /proc. From inside: the CPU time of the loop's
longest callbacks, and what they worked on. CPU time, not wall time: a busy machine does not count.

    python -m benchmarks.served DIRECTORY [key=value ...]

prints a JSON line with its ports when it is ready and one with its turns when SIGTERM ends it; its
log goes to DIRECTORY/broker.log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READY_S = 120.0
STOP_S = 120.0
LONGEST_COUNT = 20

SETTINGS = {
    "brokerName": "broker-a",
    "listenPort": "0",
    "httpPort": "0",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxIndexNum": "50000",
    "maxHashSlotNum": "10000",
    "diskMaxUsedSpaceRatio": "95",
}


# ------------------------------------------------------------------------------------- inside


class Turns:
    """The longest callbacks of the loop: CPU milliseconds, and the codes that they dispatched."""

    def __init__(self) -> None:
        self.count = 0
        self._longest: list[tuple[float, int, str]] = []
        self._codes: list[int] = []

    def install(self) -> None:
        """Watch every callback of asyncio's own loop, and what it hands to processors."""
        from oberth.remoting.aio.processors import ProcessorTable

        run = asyncio.Handle._run
        dispatch = ProcessorTable.dispatch
        clock = time.thread_time

        def watched_run(handle: asyncio.Handle) -> None:
            self._codes.clear()
            start = clock()
            run(handle)
            spent_ms = (clock() - start) * 1000
            self.count += 1
            if len(self._longest) < LONGEST_COUNT or spent_ms > self._longest[0][0]:
                callback = getattr(handle, "_callback", None)
                name = getattr(callback, "__qualname__", None) or repr(callback)
                what = f"{name[:80]} {','.join(map(str, self._codes[:40]))}"
                heapq.heappush(self._longest, (spent_ms, self.count, what))
                if len(self._longest) > LONGEST_COUNT:
                    heapq.heappop(self._longest)

        def watched_dispatch(table: Any, channel: Any, requests: list[Any]) -> None:
            self._codes += [request.code for request in requests]
            dispatch(table, channel, requests)

        asyncio.Handle._run = watched_run  # type: ignore[method-assign]
        ProcessorTable.dispatch = watched_dispatch  # type: ignore[method-assign]

    def as_json(self) -> dict[str, Any]:
        """How many, and the longest with their codes."""
        longest = sorted(self._longest, reverse=True)
        return {
            "callbacks": self.count,
            "longest": [{"ms": round(ms, 2), "what": what} for ms, _, what in longest],
        }


async def _serve(directory: Path, settings: dict[str, str], turns: Turns) -> None:
    from oberth.broker.broker import Broker
    from oberth.broker.broker_config import read_configs
    from oberth.cli.serve import GC_THRESHOLDS
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import NamesrvConfig

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    name_config = NamesrvConfig(
        listen_port=0, kv_config_path=str(directory / "namesrv" / "kvConfig.json")
    )
    async with NameServer(name_config) as name_server:
        config, store_config, warnings = read_configs(
            {
                **SETTINGS,
                "storePathRootDir": str(directory / "store"),
                "namesrvAddr": f"127.0.0.1:{name_server.address.port}",
                **settings,
            }
        )
        if warnings:
            sys.exit("; ".join(warnings))
        async with Broker(config, store_config) as broker:
            assert broker.server is not None
            assert broker.http is not None
            gc.collect()
            gc.freeze()  # as `oberth broker` does
            gc.set_threshold(*GC_THRESHOLDS)
            turns.install()
            ports = {
                "broker": broker.server.address.port,
                "namesrv": name_server.address.port,
                "ha": broker.services.ha.port,
                "http": broker.http.address.port,
            }
            print(json.dumps(ports), flush=True)
            await stop.wait()
    print(json.dumps(turns.as_json()), flush=True)


def serve(argv: list[str]) -> None:
    """Serve until SIGTERM."""
    directory = Path(argv[0])
    settings = dict(each.split("=", 1) for each in argv[1:])
    logging.basicConfig(
        filename=directory / "broker.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    asyncio.run(_serve(directory, settings, Turns()))


# ------------------------------------------------------------------------------------ outside


class Served:
    """The process, from outside.

    Attributes:
        ports: of ``broker``, ``namesrv``, ``ha`` and ``http``.
        turns: what it says of its loop, once it has ended.
    """

    def __init__(self, directory: Path, process: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.process = process
        self.turns: dict[str, Any] = {}
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker did not start:\n{self.log()[-4000:]}")
        self.ports: dict[str, int] = json.loads(line)

    def log(self) -> str:
        """Everything that it has logged."""
        path = self.directory / "broker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def figures(self) -> dict[str, int]:
        """Bytes of memory that is no file's, threads, descriptors of files here and of all else."""
        found: dict[str, int] = {}
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                found["anonymous_bytes"] = int(value.split()[0]) * 1024
            elif name == "Threads":
                found["threads"] = int(value)
        found["files"] = found["descriptors"] = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed by now
                is_file = os.readlink(each).startswith(str(self.directory))
                found["files" if is_file else "descriptors"] += 1
        return found

    def stop(self) -> None:
        """End it as an operator would, and take its last words.

        Raises:
            RuntimeError: it did not end well.
        """
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGTERM)
        line = self.process.stdout.readline()
        if self.process.wait(STOP_S) != 0 or not line:
            raise RuntimeError(f"the broker ended with {self.process.returncode}")
        self.turns = json.loads(line)


@contextlib.contextmanager
def served(directory: Path, **settings: str) -> Iterator[Served]:
    """A process that serves; killed if it still runs in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.served", str(directory)]
        + [f"{key}={value}" for key, value in settings.items()],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Served(directory, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def findings_of(directory: Path) -> list[str]:
    """The damage that ``verify`` finds in the store, one line each."""
    from oberth.store.offline.findings import Severity
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.verify import verify

    with StoreReader(directory / "store") as reader:
        findings = verify(reader).findings
    return [str(each) for each in findings if each.severity is Severity.DAMAGE]


if __name__ == "__main__":
    serve(sys.argv[1:])
