"""/metrics of a broker with many topics, and what it costs sends meanwhile.

    python -m benchmarks.metrics [--small] [--topics 10000] [--runs 5] [--seed 1]

A broker process gets so many topics, with a message, a group and a committed offset in each. Then a
client sends 128-byte messages, 8 at a time, with and without somebody who scrapes in a row; both
take turns. Baseline is the same broker without scrapes. Bar: 0.3 s for a scrape of 10 000 topics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks.report import Row, emit
from oberth.client.messages import Message, MessageQueue
from oberth.client.producer import Producer
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner

OURS: Final = "with scrapes"
BASELINE: Final = "without"
SCRAPE_S_MAX: Final = 0.3
IN_FLIGHT: Final = 8
WINDOW_S: Final = 3.0
READY: Final = re.compile(r"ready: name server (\S+), broker (\S+), store")
FILL_TIMEOUT_S: Final = 60.0
QUEUE_FILE_SIZE: Final = 6000


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "native": Row("a scrape, RocketMQ 5's names", "s", None, True, SCRAPE_S_MAX),
        "exporter": Row("a scrape, the exporter's names", "s", None, True, SCRAPE_S_MAX),
        "p99": Row("send, 8 in flight, p99", "ms", None, True),
        "max": Row("send, 8 in flight, longest", "ms", None, True),
        "rate": Row("sends in a second, 8 in flight", "1/s", None),
    }


def topic_names(topics: int, seed: int) -> list[str]:
    """The topics of a run."""
    return [f"topic-{seed}-{number:05}" for number in range(topics)]


def prepare(store: Path, topics: int, seed: int) -> None:
    """A queue with a message and a group with an offset for each topic, before the broker starts.

    10 000 new queues and groups at once are another benchmark.
    """
    config = MessageStoreConfig(
        store_path_root_dir=str(store), mapped_file_size_consume_queue=QUEUE_FILE_SIZE
    )
    with MessageStore(config) as opened:
        for name in topic_names(topics, seed):
            opened.put_message(MessageExtBrokerInner.of(name, b"x"))
    table = {f"{name}@group-{name}": {"0": 0} for name in topic_names(topics, seed)}
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


async def fill(namesrv: str, broker: str, topics: int, seed: int) -> None:
    """Topics with one queue and a message each."""
    client = RemotingClient()
    names = topic_names(topics, seed)
    step = 500
    for at in range(0, topics, step):
        listed = ",".join(
            f'{{"topicName":"{name}","readQueueNums":1,"writeQueueNums":1,"perm":6,"attributes":{{}}}}'
            for name in names[at : at + step]
        )
        command = RemotingCommand(
            code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            body=f'{{"topicConfigList":[{listed}]}}'.encode(),
        )
        answer = await client.invoke(broker, command, FILL_TIMEOUT_S)
        if answer.code:
            raise RuntimeError(f"topics were not made: {answer.remark}")
    await client.aclose()
    async with Producer("FILL", namesrv_addr=namesrv) as producer:
        for at in range(0, topics, 64):
            await asyncio.gather(
                *(
                    producer.send(Message(name, b"x"), mq=_queue(name), timeout_ms=20_000)
                    for name in names[at : at + 64]
                )
            )


def _queue(topic: str) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-m", queue_id=0)


async def send(namesrv: str, seconds: float, rng: random.Random) -> list[float]:
    """Latencies in ms."""
    found: list[float] = []
    async with Producer("LOAD", namesrv_addr=namesrv) as producer:
        body = rng.randbytes(128)
        await producer.send(Message("Load", body), timeout_ms=20_000)
        end = time.perf_counter() + seconds

        async def one() -> None:
            while (start := time.perf_counter()) < end:
                await producer.send(Message("Load", body))
                found.append((time.perf_counter() - start) * 1000)

        await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    return found


def scrape(port: int, style: str) -> tuple[float, int]:
    """Seconds and lines of one scrape."""
    start = time.perf_counter()
    url = f"http://127.0.0.1:{port}/metrics?format={style}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        body = answer.read()
    return time.perf_counter() - start, body.count(b"\n")


async def run(namesrv: str, port: int, seconds: float, runs: int, seed: int) -> dict[str, Row]:
    """All rows."""
    table = rows()
    rng = random.Random(seed)
    lines = {}
    for _ in range(runs):
        for style in ("native", "exporter"):
            taken, lines[style] = await asyncio.to_thread(scrape, port, style)
            table[style].add(OURS, taken)
        for side in (BASELINE, OURS):
            stop = asyncio.Event()

            async def scrapes(stop: asyncio.Event = stop) -> None:
                while not stop.is_set():
                    await asyncio.to_thread(scrape, port, "exporter")
                    await asyncio.to_thread(scrape, port, "native")

            task = asyncio.create_task(scrapes()) if side == OURS else None
            latencies = sorted(await send(namesrv, seconds, rng))
            stop.set()
            if task is not None:
                await task
            table["p99"].add(side, latencies[len(latencies) * 99 // 100])
            table["max"].add(side, latencies[-1])
            table["rate"].add(side, len(latencies) / seconds)
    sys.stderr.write(f"lines: {lines}\n")
    return table


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="a moment, to see that it runs")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    topics, runs, seconds = options.topics, options.runs, WINDOW_S
    if options.small:
        topics, runs, seconds = min(topics, 200), 1, 0.3
    with tempfile.TemporaryDirectory(prefix="oberth-metrics-") as folder:
        prepare(Path(folder) / "store", topics, options.seed)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oberth", "up", "--store", str(Path(folder) / "store")),
                *("--port", "0", "--namesrv-port", "0", "--set", "brokerName=broker-m"),
                *("--set", "httpPort=0", "--set", f"mappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}"),
                *("--log-level", "info", "--log-format", "json"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            found = READY.match(line)
            if found is None:
                raise RuntimeError(f"the broker did not start: {line}{process.stderr.read()}")
            port = _http_port(process)
            asyncio.run(fill(found[1], found[2], topics, options.seed))
            table = asyncio.run(run(found[1], port, seconds, runs, options.seed))
        finally:
            process.terminate()
            process.communicate(timeout=60)
    emit("metrics", table.values(), OURS, BASELINE, topics=topics)


def _http_port(process: subprocess.Popen[str]) -> int:
    """The port that the broker's log names."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"serving HTTP on \S+:(\d+)", line)
        if found is not None:
            return int(found[1])
    raise RuntimeError("the broker has no HTTP endpoint")


if __name__ == "__main__":
    main()
