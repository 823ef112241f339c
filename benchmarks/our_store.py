"""What store_vs_apache.py runs of ours: each call in a fresh process, one line of JSON.

    python -m benchmarks.our_store put DIR N SIZE async|sync CALLERS BURST

Everything that knows the store's API is here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

_STARTED = time.perf_counter()


def _rss_mb(field: str = "VmRSS") -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


def _open(directory: str, flush: str, *, reput_thread: bool = True):  # type: ignore[no-untyped-def]  # imported late
    from oberth.formats.broker_conf import read_store_config
    from oberth.store.message_store import MessageStore

    store = MessageStore(
        read_store_config(
            overrides={
                "storePathRootDir": directory,
                "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH",
                "diskMaxUsedSpaceRatio": "95",
            }
        )
    )
    store.load()
    store.start(reput_thread=reput_thread)
    return store


def _messages(count: int, size: int, caller: int = 0):  # type: ignore[no-untyped-def]
    import random

    from oberth.store.messages import MessageExtBrokerInner

    body = random.Random(1).randbytes(size)
    now = int(time.time() * 1000)
    return [
        MessageExtBrokerInner(
            "load",
            body,
            f"KEYS\x01k{caller}_{k}\x02TAGS\x01t\x02".encode(),
            queue_id=k & 3,
            born_timestamp=now,
        )
        for k in range(count)
    ]


def put(
    directory: str, n: int, size: int, flush: str, callers: int, burst: int
) -> dict[str, float]:
    """Put n messages: callers threads, each waiting for its put, or bursts of independent ones."""
    import threading

    store = _open(directory, flush)
    each = n // callers

    def run(caller: int, count: int) -> None:
        # Made in pieces, so that the collector's work on a million waiting objects is not measured.
        for start in range(0, count, 8192):
            part = _messages(min(8192, count - start), size, caller)
            if burst > 1:
                for at in range(0, len(part), burst):
                    results = store.put_messages(part[at : at + burst])
                    assert all(result.ok for result in results)
            else:
                for message in part:
                    assert store.put_message(message).ok

    run(0, min(each // 10 + 1, 20_000))
    threads = [threading.Thread(target=run, args=(c, each)) for c in range(callers)]
    began, start_offset = time.perf_counter(), store.max_phy_offset
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    stored = store.max_phy_offset - start_offset
    tail = time.perf_counter()
    while store.dispatch_behind_bytes > 0:
        time.sleep(0.002)
    tail = time.perf_counter() - tail
    store.shutdown()
    return {"per_s": each * callers / seconds, "mb_s": stored / seconds / 1e6, "tail_s": tail}


def put_loop(directory: str, n: int, size: int, callers: int) -> dict[str, float]:
    """Put n messages as a broker does: callers are tasks of one event loop, each awaits its put.

    What the tasks have for the store in one turn of the loop goes in as one burst, is answered when
    its sync is done, and is dispatched on the loop.
    """
    import asyncio

    from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

    store = _open(directory, "sync", reput_thread=False)
    Pending = tuple[MessageExtBrokerInner, "asyncio.Future[PutMessageResult]"]

    async def run(each: int) -> float:
        loop = asyncio.get_running_loop()
        pending: list[Pending] = []

        def burst() -> None:
            batch = pending.copy()
            pending.clear()
            results = store.append_messages([message for message, _ in batch])

            def durable(status: PutMessageStatus) -> None:
                loop.call_soon_threadsafe(answer, batch, results, status)

            store.when_durable(results[-1].end_offset, durable)

        def answer(
            batch: list[Pending], results: list[PutMessageResult], status: PutMessageStatus
        ) -> None:
            assert status is PutMessageStatus.PUT_OK
            for (_, future), result in zip(batch, results, strict=True):
                assert result.ok
                future.set_result(result)
            store.dispatch_nowait()

        async def caller(number: int) -> None:
            for start in range(0, each, 8192):
                for message in _messages(min(8192, each - start), size, number):
                    future = loop.create_future()
                    if not pending:
                        loop.call_soon(burst)
                    pending.append((message, future))
                    await future

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number))
        return time.perf_counter() - began

    each = n // callers
    asyncio.run(run(each // 10 + 1))
    seconds = asyncio.run(run(each))
    while store.dispatch_nowait():
        pass
    store.shutdown()
    return {"per_s": each * callers / seconds}


def fill(directory: str, n: int, size: int, how: str) -> dict[str, float]:
    """Write n messages in bursts and end cleanly, or like a killed process."""
    store = _open(directory, "async")
    for start in range(0, n, 4096):
        store.append_messages(_messages(min(4096, n - start), size))
    while store.dispatch_behind_bytes > 0:
        time.sleep(0.01)
    written = store.max_phy_offset
    if how == "kill":
        import os
        import signal

        print(json.dumps({"bytes": written}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    store.shutdown()
    return {"bytes": written}


def open_store(directory: str) -> dict[str, float]:
    """Open, recover, catch up; seconds since this process's own start of Python code."""
    store = _open(directory, "async")
    while store.dispatch_behind_bytes > 0:
        time.sleep(0.001)
    took = time.perf_counter() - _STARTED
    result = {"open_s": took, "bytes": float(store.max_phy_offset), "rss_mb": _rss_mb()}
    store.shutdown()
    return result


def rebuild(directory: str, into: str) -> dict[str, float]:
    """Queues and index anew; seconds since this process's own start of Python code."""
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.rebuild import rebuild as rebuild_store

    with StoreReader(directory) as reader:
        report = rebuild_store(reader, into)
    return {"rebuild_s": time.perf_counter() - _STARTED, "records": float(report.records)}


def get(directory: str, rounds: int) -> dict[str, float]:
    """Get 32 messages after the other from a queue, as slices ready for a socket."""
    store = _open(directory, "async")
    count = 0
    began = time.perf_counter()
    for _ in range(rounds):
        offset, end = 0, store.max_offset_in_queue("load", 0)
        while offset < end:
            found = store.get_message("g", "load", 0, offset, 32)
            count += found.message_count
            offset = found.next_begin_offset
    seconds = time.perf_counter() - began
    store.shutdown()
    return {"per_s": count / seconds}


def put_on_one_core(directory: str, n: int, size: int, callers: int) -> dict[str, float]:
    """As `put` with SYNC_FLUSH, all of this process on one core: see decision 6."""
    import os

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return put(directory, n, size, "sync", callers, 1)


def main() -> None:
    """One measurement by name."""
    name, *args = sys.argv[1:]
    calls: dict[str, Callable[..., dict[str, float]]] = {
        "put": lambda d, n, size, flush, callers, burst: put(
            d, int(n), int(size), flush, int(callers), int(burst)
        ),
        "put_loop": lambda d, n, size, callers: put_loop(d, int(n), int(size), int(callers)),
        "put_on_one_core": lambda d, n, size, callers: put_on_one_core(
            d, int(n), int(size), int(callers)
        ),
        "fill": lambda d, n, size, how: fill(d, int(n), int(size), how),
        "open": open_store,
        "rebuild": rebuild,
        "get": lambda d, rounds: get(d, int(rounds)),
    }
    print(json.dumps(calls[name](*args)), flush=True)


if __name__ == "__main__":
    main()
