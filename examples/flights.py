"""The flights of New York City 2013: in a store, through a broker, and as a table in Spark.

`make run` runs this. It ends by itself; what it made stays in a temporary directory whose name it
prints. With ``--count`` it takes fewer flights.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from flights_broker import broker_part
from flights_data import FLIGHT_COUNT, QUEUES, TOPICS, Flight, flights
from flights_spark import spark_part

from oberth.formats.message import decode_record
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner

BURST = 512
# The second writer is killed when it has had so many acknowledged.
KILL_AFTER = 20_000
# Flights that are stored after the export, and so are in the log alone.
MORE = 5_000


def config(root: str, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> MessageStoreConfig:
    """A store of small files, so that a few hundred MB show several of each kind."""
    return MessageStoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=64 << 20,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        flush_disk_type=flush,
    )


def bursts(rows: Iterable[Flight]) -> Iterator[list[MessageExtBrokerInner]]:
    """Messages for the store, some hundred at a time."""
    iterator = iter(rows)
    while piece := list(itertools.islice(iterator, BURST)):
        yield [
            MessageExtBrokerInner(
                flight.topic,
                flight.body,
                flight.properties_raw,
                flight.queue_id,
                born_timestamp=flight.departure_ms,
            )
            for flight in piece
        ]


def title(text: str) -> None:
    """Prints a step's headline."""
    print(f"\n== {text}", flush=True)


def load(root: str, count: int) -> None:
    """Step 1: everything in."""
    title(f"load {count:,} flights")
    start = time.perf_counter()
    stored = 0
    with MessageStore(config(root)) as store:
        for burst in bursts(flights(count)):
            results = store.put_messages(burst)
            stored += sum(result.ok for result in results)
        store.flush()
    seconds = time.perf_counter() - start
    print(f"{stored:,} messages stored in {seconds:.1f} s")
    if stored != count:
        raise SystemExit(f"{count - stored} flights were refused")


def show(root: str) -> None:
    """Step 2: what the store looks like."""
    title("the store")
    for directory in ("commitlog", "consumequeue", "index"):
        paths = [p for p in Path(root, directory).rglob("*") if p.is_file()]
        blocks = sum(p.stat().st_blocks * 512 for p in paths)
        print(f"{directory:<14}{len(paths):>4} files  {blocks / 1e6:>8.1f} MB on disk")
    with MessageStore(config(root)) as store:
        assert store.report is not None
        print(f"opened: log ends at {store.report.log_end:,}, {store.report.reason}")
        for topic in store.topics():
            counts = [
                store.max_offset_in_queue(topic, queue_id)
                - store.min_offset_in_queue(topic, queue_id)
                for queue_id in store.queue_ids(topic)
            ]
            shares = ", ".join(f"{n:,}" for n in counts)
            print(f"{topic:<14}{sum(counts):>9,} messages in queues of {shares}")


def read_back(root: str, count: int) -> None:
    """Step 3: by queue, by key, by time."""
    title("read back")
    with MessageStore(config(root)) as store:
        start = time.perf_counter()
        messages = 0
        for topic, queue_id in itertools.product(TOPICS, range(QUEUES)):
            offset = 0
            while True:
                found = store.get_message("demo", topic, queue_id, offset, 32)
                if found.status is not GetMessageStatus.FOUND:
                    break
                messages += found.message_count
                offset = found.next_begin_offset
        seconds = time.perf_counter() - start
        print(f"by queue: {messages:,} messages, {messages / seconds:,.0f} a second")
        if messages != count:
            raise SystemExit(f"read {messages} messages, {count} were stored")
        first = next(flights(1))
        tail = first.keys.split()[0]
        result = store.query_message(first.topic, tail, 64, 0, 2**62)
        print(f"by key:   {tail} left {first.topic[-3:]} {len(result.records)} times (64 at most)")
        message = decode_record(result.records[0], check_crc=True)
        print(f"          first: {message.body[:100].decode()}…")
        queue = (TOPICS[0], 0)
        middle = store.max_offset_in_queue(*queue) // 2
        stored_ms = store.message_store_timestamp(*queue, middle)
        offset = store.offset_in_queue_by_time(*queue, stored_ms)
        print(f"by time:  {stored_ms} ms is offset {offset:,} of {TOPICS[0]} queue 0")
        if not offset <= middle:
            raise SystemExit("the search by time went past the message")


def write_more(root: str) -> int:
    """Stores a few flights behind those that are there."""
    with MessageStore(config(root)) as store:
        results = [r for burst in bursts(flights(MORE)) for r in store.put_messages(burst)]
        store.flush()
    return sum(result.ok for result in results)


def write_until_killed(root: str) -> None:
    """The second writer: acknowledges each burst on stdout after it is on the disk."""
    with MessageStore(config(root, FlushDiskType.SYNC_FLUSH)) as store:
        for burst in bursts(flights()):
            for result in store.put_messages(burst):
                if result.ok:
                    print(result.commit_log_offset)
            sys.stdout.flush()


def kill_and_recover(root: str) -> None:
    """Step 4: SIGKILL in the middle of a second load, then recovery and a look at everything."""
    title("kill the writer with SIGKILL in the middle of a second load")
    writer = subprocess.Popen(
        [sys.executable, __file__, "--write", root], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged: list[int] = []
    for line in writer.stdout:
        acknowledged.append(int(line))
        if len(acknowledged) == KILL_AFTER:
            writer.send_signal(signal.SIGKILL)
        if not line.endswith("\n"):
            acknowledged.pop()
    code = writer.wait()
    print(f"killed ({code}) after {len(acknowledged):,} acknowledged messages")
    start = time.perf_counter()
    with MessageStore(config(root)) as store:
        report = store.report
        assert report is not None
        print(
            f"recovered in {time.perf_counter() - start:.2f} s: log ends at {report.log_end:,}, "
            f"validated from {report.scanned_from:,}, dispatched from {report.dispatch_from:,} "
            f"({report.reason})"
        )
        lost = [offset for offset in acknowledged if store.look_message_by_offset(offset) is None]
        print(f"acknowledged and lost: {len(lost)}")
        if lost:
            raise SystemExit(f"lost messages at {lost[:10]}")


def verify(root: str) -> None:
    """Step 5: CommitLog against ConsumeQueue, Index and configuration, with every checksum."""
    title("verify")
    command = [sys.executable, "-m", "oberth", "store", "verify", root]
    options = ["--set", "maxHashSlotNum=500000", "--set", "maxIndexNum=2000000"]
    if subprocess.run([*command, *options], check=False).returncode != 0:
        raise SystemExit("verify found something")


def main() -> None:
    """Runs all steps, or only the second writer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=FLIGHT_COUNT, help="how many flights")
    parser.add_argument("--no-spark", action="store_true", help="leave out what needs Java")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_until_killed(arguments.write)
        return
    start = time.perf_counter()
    after = "" if arguments.no_spark else ", then Spark over it, which takes longest"
    print(f"{arguments.count:,} flights into a store and through a broker{after}.", flush=True)
    root = os.path.join(tempfile.mkdtemp(prefix="oberth-flights-"), "store")
    load(root, arguments.count)
    show(root)
    read_back(root, arguments.count)
    kill_and_recover(root)
    verify(root)
    title("the same flights through a broker, over TCP")
    served = os.path.join(os.path.dirname(root), "served")
    broker_part(served, list(flights(arguments.count)), with_spark=not arguments.no_spark)
    verify(served)
    if not arguments.no_spark:
        title("the store as a table in Spark")
        spark_part(served, arguments.count, lambda: write_more(served))
    print(f"\nEverything holds. {time.perf_counter() - start:.0f} s in all.")
    folder = Path(root).parent
    size = sum(each.stat().st_blocks * 512 for each in folder.rglob("*") if each.is_file())
    print(f"What was made is {size / 1e9:.1f} GB in {folder}; remove it with: rm -r {folder}")


if __name__ == "__main__":
    main()
