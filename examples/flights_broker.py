"""The flights through a broker: our client over TCP, two groups, lag going to zero, SQL meanwhile.

Starts ``oberth up`` as a process of its own on free ports of loopback and stops it with SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from flights_data import QUEUES, TOPICS, Flight

from oberth.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from oberth.client.admin import Admin

CARRIER = "UA"
EVERYTHING, FILTERED = "all-flights", "united-only"
_READY = re.compile(r"ready: name server (\S+), broker (\S+),")
_PROGRESS_S = 2.0
_PATIENCE_S = 120.0


class Counted:
    """Counts what a group is given."""

    def __init__(self) -> None:
        self.messages = 0
        self.tags: Counter[str] = Counter()

    async def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeContext
    ) -> ConsumeStatus:
        """The batch listener of a consumer."""
        del context
        self.messages += len(messages)
        self.tags.update(message.tags or "" for message in messages)
        return ConsumeStatus.SUCCESS


async def _send(name_server: str, rows: Iterable[Flight]) -> int:
    """Every flight to the queue of its plane; returns how many were acknowledged."""
    handed_over = sent = failed = 0

    def count(answer: asyncio.Future[object]) -> None:
        nonlocal sent, failed
        if answer.exception() is None:
            sent += 1
        else:
            failed += 1

    async with Producer("flights", namesrv_addr=name_server) as producer:
        queues = {
            (topic, queue.queue_id): queue
            for topic in TOPICS
            for queue in await producer.fetch_publish_message_queues(topic)
        }
        for flight in rows:
            queue: MessageQueue = queues[flight.topic, flight.queue_id]
            message = Message(flight.topic, flight.body, tags=flight.tag, keys=flight.keys)
            answer = await producer.send_async(message, mq=queue, timeout_ms=30_000)
            answer.add_done_callback(count)
            handed_over += 1
            if handed_over % 256 == 0:
                await asyncio.sleep(0)  # lets answers in
        # Leaving the block waits for answers that are still on their way.
    if failed or sent < handed_over:
        raise SystemExit(f"{handed_over - sent} flights were not acknowledged")
    return sent


async def _watch_lag(
    admin: Admin, listeners: dict[str, Counted], expected: dict[str, int], sent: asyncio.Event
) -> None:
    """Prints each group's lag until everything was sent and all of it was consumed.

    A group that has not committed anything yet shows no lag either, so what its listener was given
    counts too.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        lags = {group: (await admin.consume_stats(group)).lag for group in listeners}
        print("lag: " + ", ".join(f"{group} {lag:,}" for group, lag in lags.items()), flush=True)
        missing = any(listeners[group].messages < expected[group] for group in listeners)
        if sent.is_set() and not missing and not any(lags.values()):
            return
        if time.monotonic() > deadline:
            raise SystemExit("the groups did not catch up")
        await asyncio.sleep(_PROGRESS_S)


async def _through_the_broker(name_server: str, rows: list[Flight]) -> None:
    listeners = {EVERYTHING: Counted(), FILTERED: Counted()}
    by_carrier = sum(flight.tag == CARRIER for flight in rows)
    expected = {EVERYTHING: len(rows), FILTERED: by_carrier}
    async with Admin(namesrv_addr=name_server) as admin, contextlib.AsyncExitStack() as stack:
        for topic in TOPICS:
            await admin.create_topic(topic, queue_nums=QUEUES)
        for group, listener in listeners.items():
            expression = "*" if group == EVERYTHING else CARRIER
            consumer = PushConsumer(
                group,
                dict.fromkeys(TOPICS, expression),
                batch_listener=listener,
                namesrv_addr=name_server,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                consume_message_batch_max_size=32,
            )
            await stack.enter_async_context(consumer)
        done = asyncio.Event()
        watching = asyncio.create_task(_watch_lag(admin, listeners, expected, done))
        start = time.perf_counter()
        sent = await _send(name_server, rows)
        seconds = time.perf_counter() - start
        print(f"sent {sent:,} messages over TCP in {seconds:.1f} s, {sent / seconds:,.0f} a second")
        done.set()
        await watching
    for group, listener in listeners.items():
        print(f"group {group} consumed {listener.messages:,} of {expected[group]:,}")
        if listener.messages != expected[group]:
            raise SystemExit(f"{group}: {expected[group]} messages were expected")
    if set(listeners[FILTERED].tags) != {CARRIER}:
        raise SystemExit("the filtered group was given other carriers")


def broker_part(root: str, rows: list[Flight], *, with_spark: bool) -> None:
    """Starts a broker on ``root``, sends and consumes, asks Spark meanwhile, stops the broker."""
    command = [sys.executable, "-m", "oberth", "up", "--store", root]
    options = ["--port", "0", "--namesrv-port", "0"]
    for setting in ("mappedFileSizeCommitLog=67108864", "maxHashSlotNum=500000"):
        options += ["--set", setting]
    options += ["--set", "maxIndexNum=2000000"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline().strip()
            print(line)
            ready = _READY.match(line)
            if ready is None:
                raise SystemExit("the broker did not start")
            asyncio.run(_through_the_broker(ready[1], rows))
            if with_spark:
                _ask_spark(root)
            broker.send_signal(signal.SIGTERM)
            if broker.wait(60) != 0:
                raise SystemExit(f"the broker ended with {broker.returncode}")
            print("the broker stopped in order")
        finally:
            if broker.poll() is None:
                broker.kill()


def _ask_spark(root: str) -> None:
    """One question to the store of the running broker."""
    statement = (
        "select topic, count(*) as flights, count(distinct tags) as carriers "
        "from all_messages where topic like 'flights-%' group by topic order by topic"
    )
    print(f"SQL over the store of the running broker: {statement}", flush=True)
    command = [sys.executable, "-m", "oberth", "spark", "sql", "--store", root, statement]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("Spark could not answer")
