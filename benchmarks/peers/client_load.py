"""Our client under load, as a process of its own: what Load.java is for the official client.

    python -m benchmarks.peers.client_load send|async|consume|idle namesrv=ADDR [key=value ...]
    python -m benchmarks.peers.client_load embedded [n=10]

Keys: topic, size, threads (coroutines that send), inflight, n (messages to consume), sec, warm.
Messages have a tag and a key, as Load.java's have.
Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

from oberth.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from oberth.remoting.aio.loop import run


async def send(options: dict[str, str]) -> dict[str, Any]:
    """``threads`` coroutines that send one message after the other."""
    topic, body = options["topic"], b"x" * int(options.get("size", "128"))
    counts = [0]
    async with Producer("load", namesrv_addr=options["namesrv"]) as producer:

        async def one() -> None:
            while True:
                await producer.send(Message(topic, body, tags="t", keys=f"k{counts[0]}"))
                counts[0] += 1

        tasks = [asyncio.create_task(one()) for _ in range(int(options.get("threads", "64")))]
        line = await _measure(options, counts)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return line


async def send_async(options: dict[str, str]) -> dict[str, Any]:
    """One coroutine with ``inflight`` messages on their way."""
    topic, body = options["topic"], b"x" * int(options.get("size", "128"))
    counts = [0]
    async with Producer(
        "load",
        namesrv_addr=options["namesrv"],
        back_pressure_for_async_send_num=int(options.get("inflight", "1000")),
    ) as producer:

        def done(future: asyncio.Future[Any]) -> None:
            if future.exception() is None:
                counts[0] += 1

        async def feed() -> None:
            for number in itertools.count():
                message = Message(topic, body, tags="t", keys=f"k{number}")
                future = await producer.send_async(message)
                future.add_done_callback(done)

        task = asyncio.create_task(feed())
        line = await _measure(options, counts)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return line


async def _measure(options: dict[str, str], counts: list[int]) -> dict[str, Any]:
    await asyncio.sleep(float(options.get("warm", "1")))
    begin, start = time.perf_counter(), counts[0]
    await asyncio.sleep(float(options.get("sec", "5")))
    took = time.perf_counter() - begin
    return {"per_s": (counts[0] - start) / took, "ok": counts[0]}


async def consume(options: dict[str, str]) -> dict[str, Any]:
    """Drain a backlog of ``n`` messages with a listener that counts."""
    wanted = int(options["n"])
    count = 0
    first = 0.0
    finished = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal count, first
        if not count:
            first = time.perf_counter()
        count += 1
        if count == wanted:
            finished.set()

    async with PushConsumer(
        f"load-{time.time_ns()}",
        {options["topic"]: "*"},
        listener=handle,
        namesrv_addr=options["namesrv"],
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ):
        async with asyncio.timeout(float(options.get("sec", "120"))):
            await finished.wait()
        took = time.perf_counter() - first
    return {"per_s": count / took, "ok": count}


async def idle(options: dict[str, str]) -> dict[str, Any]:
    """Memory of a producer and a consumer that have nothing to do, anonymous pages in MB."""

    async def handle(message: MessageExt) -> None:
        del message

    async with (
        Producer("idle", namesrv_addr=options["namesrv"]) as producer,
        PushConsumer(
            "idle", {options["topic"]: "*"}, listener=handle, namesrv_addr=options["namesrv"]
        ),
    ):
        await producer.send(Message(options["topic"], b"x"))
        await asyncio.sleep(float(options.get("sec", "2")))
    return {"anonymous_mb": _anonymous_mb()}


async def embedded(options: dict[str, str]) -> dict[str, Any]:
    """Seconds until the first broker of this process is ready, and until the next test has its own.

    The latter is the best of ``n``: the old one stopped and its files deleted, a new one ready.
    """
    from oberth.testing.embedded_broker import EmbeddedBroker

    begin = time.perf_counter()
    broker = EmbeddedBroker()
    await broker.start()
    ready_s = time.perf_counter() - begin
    next_s = []
    for _ in range(int(options.get("n", "10"))):
        begin = time.perf_counter()
        await broker.stop()
        broker = EmbeddedBroker()
        await broker.start()
        next_s.append(time.perf_counter() - begin)
    await broker.stop()
    return {"ready_s": ready_s, "next_s": min(next_s)}


def _anonymous_mb() -> float:
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024 / 1e6


MODES = {
    "send": send,
    "async": send_async,
    "consume": consume,
    "idle": idle,
    "embedded": embedded,
}


def main() -> None:
    """Run one mode."""
    options = dict(item.split("=", 1) for item in sys.argv[2:])
    print(json.dumps(run(MODES[sys.argv[1]](options))))


if __name__ == "__main__":
    main()
