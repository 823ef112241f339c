"""The kernels on one core, against their plain-Python references and the bars they were made for.

    python -m benchmarks.kernels [--small] [--runs 5] [--bytes 268435456] [--seed 1]

The log is made in memory: four topics of four queues, a key, a unique key, tags and two more
properties per message. "rebuild" is scanning, ConsumeQueue units and one Index file of the default
size, without the writing of files. The reference gets a fiftieth of the bytes.
"""

from __future__ import annotations

import argparse
import mmap
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.report import Row, emit
from oberth.formats import index_file
from oberth.formats.message import FIXED_V4, MAGIC_V1, body_crc
from oberth.kernels import runtime
from oberth.kernels.arguments import DISPATCH_COLUMNS, CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.gather import gather, host_texts, property_maps
from oberth.kernels.index import IndexEntries, index_keys, put_entries
from oberth.kernels.queues import QueueTable, build_units
from oberth.kernels.scan import find_record, scan

OURS, RIVAL = "compiled", "reference"
# A chunk's records and columns, and what is gathered from them, stay in a processor's caches.
ROWS = 8_192
BODY_SIZES = (128, 1024)
# The reference is 50 to 500 times slower: it gets this part of the bytes.
RIVAL_PART = 50
SMALL_BYTES = 2 << 20
_HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


def make_log(body_size: int, size: int, seed: int) -> bytes:
    """At least ``size`` bytes of records with bodies of one size."""
    noise = random.Random(seed)
    bodies = [noise.randbytes(body_size) for _ in range(64)]
    sums = [body_crc(body) for body in bodies]
    log = bytearray()
    number = 0
    while len(log) < size:
        topic = b"BenchTopic%02d" % (number % 4)
        properties = (
            b"KEYS\x01order-%d\x02UNIQ_KEY\x017F00000100010000%016X\x02TAGS\x01Tag%d\x02"
            b"WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02"
        ) % (number, number, number % 5)
        log += FIXED_V4.pack(
            FIXED_V4.size + 3 + body_size + len(topic) + len(properties),
            MAGIC_V1,
            sums[number % 64],
            number // 4 % 4,
            0,
            number // 16,
            len(log),
            0,
            1_700_000_000_000 + number,
            _HOST,
            1_700_000_000_000 + number,
            _HOST,
            0,
            0,
            body_size,
        )
        log += bodies[number % 64] + bytes([len(topic)]) + topic
        log += len(properties).to_bytes(2, "big") + properties
        number += 1
    return bytes(log)


def scan_all(
    log: bytes,
    names: Sequence[str] | None,
    crc: CrcMode,
    then: Callable[[Columns, TopicTable], None] = lambda columns, topics: None,
) -> int:
    """Scans a log in chunks; how many records it has."""
    columns, topics = Columns(ROWS, names), TopicTable()
    position = records = 0
    while True:
        columns.clear()
        result = scan(log, columns, topics, start=position, crc=crc)
        then(columns, topics)
        records += result.added
        position = result.position
        if result.end is not ScanEnd.FULL:
            return records


def rebuild(log: bytes) -> int:
    """Units and an index of the log; how many records it has."""
    slots, places = index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES
    with mmap.mmap(-1, index_file.file_size()) as memory, memoryview(memory) as file:
        entries = IndexEntries()
        tables: list[QueueTable] = []

        def dispatch(columns: Columns, topics: TopicTable) -> None:
            if not tables:
                tables.append(QueueTable(topics))
            build_units(columns, tables[0], log)
            entries.clear()
            index_keys(columns, topics, log, entries)
            put_entries(file, slots, places, entries)

        return scan_all(log, DISPATCH_COLUMNS, CrcMode.NONE, dispatch)


def to_arrow(log: bytes) -> int:
    """Everything that becomes an Arrow column; how many records there are."""

    def take(columns: Columns, topics: TopicTable) -> None:
        gather(log, columns, "body")
        for name in ("topic", "keys", "tags"):
            gather(log, columns, name, text=True)
        property_maps(log, columns)
        host_texts(log, columns, "born_host")

    return scan_all(log, None, CrcMode.NONE, take)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cold_load() -> float:
    """Seconds from nothing to a scanned record, interpreter included."""
    code = "from oberth.kernels.scan import find_record; find_record(bytes(100))"
    return _seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (5; 1 when small)")
    parser.add_argument("--bytes", type=int, help="of log for each body size (256 MiB; 2 small)")
    parser.add_argument("--seed", type=int, default=1, help="of the bodies")
    options = parser.parse_args(argv)
    runs = options.runs or (1 if options.small else 5)
    size = options.bytes or (SMALL_BYTES if options.small else 256 << 20)
    if not runtime.available():
        sys.exit("the kernels are not compiled here")

    rows: dict[str, Row] = {"load": Row("interpreter to first result, warm disk", "s", None, True)}
    for body_size in BODY_SIZES:
        wanted = 1.5e6 if body_size == BODY_SIZES[0] else 1.3e6
        arrow = 2.3e6 if body_size == BODY_SIZES[0] else None
        rows |= {
            f"scan-{body_size}": Row(f"scan, all columns, {body_size} B", "1/s"),
            f"crc-{body_size}": Row(f"scan with CRC, {body_size} B", "B/s", limit=1e9),
            f"rebuild-{body_size}": Row(f"rebuild, {body_size} B", "1/s", limit=wanted),
            f"arrow-{body_size}": Row(f"Arrow columns, {body_size} B", "1/s", limit=arrow),
        }
    rows["zeros"] = Row("find the next record behind zeros", "B/s")

    logs = {body_size: make_log(body_size, size, options.seed) for body_size in BODY_SIZES}
    parts = {body_size: log[: len(log) // RIVAL_PART] for body_size, log in logs.items()}
    for _ in range(runs):
        for side, given in ((OURS, logs), (RIVAL, parts)):
            runtime.use_reference_only(side == RIVAL)
            for body_size, log in given.items():
                records = scan_all(log, ["record_size"], CrcMode.NONE)

                def add(
                    key: str, amount: int, work: Callable[[], object], side: str = side
                ) -> None:
                    rows[key].add(side, amount / _seconds(work))

                add(f"scan-{body_size}", records, lambda: scan_all(log, None, CrcMode.NONE))  # noqa: B023
                add(
                    f"crc-{body_size}",
                    len(log),
                    lambda: scan_all(log, DISPATCH_COLUMNS, CrcMode.STOP),  # noqa: B023
                )
                add(f"rebuild-{body_size}", records, lambda: rebuild(log))  # noqa: B023
                add(f"arrow-{body_size}", records, lambda: to_arrow(log))  # noqa: B023
            zeros = bytes(size)
            find_record(zeros)  # so that its pages are there
            rows["zeros"].add(side, size / _seconds(lambda: find_record(zeros)))  # noqa: B023
        runtime.use_reference_only(False)
        rows["load"].add(OURS, cold_load())
    emit("kernels", rows.values(), ours=OURS, rival=RIVAL, seed=options.seed, bytes=size)


if __name__ == "__main__":
    main()
