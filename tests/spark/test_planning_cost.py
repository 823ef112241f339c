"""What planning reads: a bounded number of times for each queue, however long the queues are."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from oberth.formats.consume_queue import UNIT
from oberth.spark import plan as p
from oberth.spark import storage
from oberth.spark.options import parse_read_options
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader
from oberth.spark.store_files import PAGE_UNITS, StoreFiles

QUEUES = 64
#: Listing a queue, its units, its newest record, and its units once more for their sizes.
PER_QUEUE = {"entries": 1, "read": 4}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a store's files were listed and read."""
    counts: Counter[str] = Counter()
    read, entries = storage.LocalStorage.read_into, storage.LocalStorage.entries

    def counting_read(self: Any, path: str, position: int, target: memoryview) -> int:
        counts["read"] += 1
        return read(self, path, position, target)

    def counting_entries(self: Any, directory: str) -> Any:
        counts["entries"] += 1
        return entries(self, directory)

    monkeypatch.setattr(storage.LocalStorage, "read_into", counting_read)
    monkeypatch.setattr(storage.LocalStorage, "entries", counting_entries)
    return counts


def _plan(root: Path) -> int:
    options = parse_read_options({"path": str(root), "readOrder": "queue"}, streaming=False)
    partitions = RocketMQReader(options, struct_type(parse_columns("value"))).partitions()
    return sum(piece.end - piece.start for partition in partitions for piece in partition.pieces)  # type: ignore[attr-defined]


@pytest.mark.parametrize("messages", [1, 40])
def test_reads_for_each_queue_are_bounded(
    make_store: Any, tmp_path: Path, counted: Counter[str], messages: int
) -> None:
    store = make_store(tmp_path / "store", queue_size=6_000_000)
    for number in range(QUEUES * messages):
        store.append("A", number % QUEUES, b"x")
    counted.clear()
    assert _plan(store.root) == QUEUES * messages
    for kind, most in PER_QUEUE.items():
        assert counted[kind] <= most * QUEUES + 20, (kind, counted)


def _queue(root: Path, file_size: int, units: dict[int, bytes]) -> Any:
    directory = root / "consumequeue" / "A" / "0"
    directory.mkdir(parents=True)
    for number, unit in units.items():
        at = number * UNIT.size
        path = directory / f"{at // file_size * file_size:020d}"
        if not path.exists():
            path.touch()
            with path.open("r+b") as file:
                file.truncate(file_size)
        with path.open("r+b") as file:
            file.seek(at % file_size)
            file.write(unit)
    (root / "commitlog").mkdir()
    return StoreFiles(storage.LocalStorage(), str(root), "b").queue("A", 0)


@pytest.mark.parametrize("seed", range(12))
def test_the_end_of_the_units_is_found_wherever_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    file_units = rng.choice([1_000, PAGE_UNITS * 3, 5_000])
    first = rng.choice([0, file_units, 2 * file_units])
    count = rng.choice([1, 255, PAGE_UNITS - 1, PAGE_UNITS, PAGE_UNITS + 1, file_units, 4_000])
    hole = rng.randrange(count)
    size = rng.choice([0, 1, 200])  # a page of zeros, as a crash leaves it
    gone = set(range(hole, hole + size)) if hole + size < count and hole > 0 else set()
    units = {first + n: UNIT.pack(n * 100, 100, 0) for n in range(count) if n not in gone}
    queue = _queue(tmp_path, file_units * UNIT.size, units)
    assert queue.unit_numbers() == (first, first + count)


def test_a_file_that_goes_while_a_queue_is_looked_at(tmp_path: Path) -> None:
    units = {n: UNIT.pack(n * 100, 100, 0) for n in range(900)}
    queue = _queue(tmp_path, 300 * UNIT.size, units)
    (tmp_path / "consumequeue/A/0" / f"{0:020d}").unlink()
    assert queue.unit_numbers()[1] == 900
    assert queue.record_bytes(0, 900) > 0


class _Remote(storage.Storage):
    """A storage behind a network; the first reads wait for one another."""

    def __init__(self, together: int) -> None:
        self.bytes_read = 0
        self._files = storage.LocalStorage()
        self._meet = threading.Barrier(together)
        self._left = together
        self._lock = threading.Lock()

    def entries(self, directory: str) -> list[storage.Entry]:
        return self._files.entries(directory)

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        with self._lock:
            waits = "consumequeue" in path and self._left > 0
            self._left -= waits
        if waits:
            self._meet.wait(60)
        with self._lock:
            return self._files.read_into(path, position, target)

    def expand(self, pattern: str) -> list[str]:
        return [pattern]


def test_queues_behind_a_network_are_asked_at_once(make_store: Any, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    for number in range(40):
        store.append(f"T{number % 5}", number % 4, b"x")
    options = parse_read_options({"path": str(store.root)}, streaming=False)
    stores = p.Stores([StoreFiles(_Remote(8), str(store.root), "store")])
    keys = p.select_queues(options, stores, must_exist=True)
    assert len(keys) == 20
    # One after the other they would wait for one another for ever.
    near = p.Stores([StoreFiles(storage.LocalStorage(), str(store.root), "store")])
    assert stores.bounds(keys) == near.bounds(keys)
    ranges = stores.bounds(keys)
    stores.prepare(ranges)
    assert all(
        stores.queue(key).record_bytes(*ranges[key]) == near.queue(key).record_bytes(*ranges[key])
        for key in keys
    )
