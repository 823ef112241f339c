"""What planning asks of a file system is bounded for each queue, and counted.

However long the queues are, however many stores there are, and from whatever time on: on a disk and
on made-up stores.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.rigs.made_up import FIRST_TIME_MS, MadeUpStorage

from oberth.formats.consume_queue import UNIT
from oberth.spark import plan as p
from oberth.spark import storage
from oberth.spark.options import parse_read_options
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.queue_files import PAGE_UNITS
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader, plan_batch
from oberth.spark.store_files import StoreFiles

QUEUES = 64
PER_QUEUE = {"entries": 1, "read": 1}


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
            alone = threading.current_thread() is threading.main_thread()
            waits = "consumequeue" in path and self._left > 0 and not alone
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


def _made_up(queues: int, segments: int = 4, stores: int = 1) -> p.Stores:
    return p.Stores(
        [
            StoreFiles(
                MadeUpStorage(segments, queues, segment_size=64 << 20), "/made-up", f"b{number}"
            )
            for number in range(stores)
        ]
    )


def _requests(stores: p.Stores) -> Counter[str]:
    found: Counter[str] = Counter()
    for store in stores.files:
        assert isinstance(store.storage, MadeUpStorage)
        found += store.storage.requests
    return found


def _plan_made_up(stores: p.Stores, **options: str) -> int:
    plans = plan_batch(stores, parse_read_options({"path": "/x", **options}, streaming=False))
    pieces = [piece for plan in plans for piece in plan.pieces]
    return sum(piece.end - piece.start for piece in pieces if isinstance(piece, p.QueueRange))


@pytest.mark.parametrize("queues", [100, 1000])
def test_requests_for_each_queue_of_a_remote_store(queues: int) -> None:
    stores = _made_up(queues)
    records = MadeUpStorage(4, queues, segment_size=64 << 20).records
    assert _plan_made_up(stores) == records
    found = _requests(stores)
    # All queues by one listing for a thousand names; units, and where there are many the sizes.
    assert found["tree"] + found["entries"] <= 12 + 3 * queues // 1000
    # Queues that are asked at once cannot be told where their neighbour ends: some 6 to 10 each.
    assert found["read"] <= 14 * queues + 20


@pytest.mark.parametrize("queues", [100, 1000])
def test_requests_for_each_queue_of_a_starting_time(queues: int) -> None:
    stores = _made_up(queues)
    storage = MadeUpStorage(4, queues, segment_size=64 << 20)
    first = storage.records // 3
    time = FIRST_TIME_MS + first
    rows = _plan_made_up(stores, startingTimestamp=str(time))
    assert rows == storage.records - first
    found = _requests(stores)
    assert found["read"] <= 20 * queues + 100, found


def test_the_place_of_a_time_is_found_whatever_it_is() -> None:
    stores = _made_up(7, segments=3)
    [store] = stores.files
    records = MadeUpStorage(3, 7, segment_size=64 << 20).records
    rng = random.Random(5)
    for record in [0, 1, records - 1, *(rng.randrange(records) for _ in range(40))]:
        time = FIRST_TIME_MS + record
        key = p.QueueKey("T000000", "b0", record % 7)
        assert stores.first_at_or_after({key: time}) == {key: record // 7}
        assert store.place_of_time(time) is not None
    key = p.QueueKey("T000000", "b0", 3)
    assert stores.first_at_or_after({key: FIRST_TIME_MS + records}) == {key: None}
    assert stores.first_at_or_after({key: 0}) == {key: 0}


@pytest.mark.parametrize("seed", range(8))
def test_a_starting_time_where_the_times_of_the_log_are_in_no_order(
    make_store: Any, tmp_path: Path, seed: int
) -> None:
    """Every queue has its times in order, the log has not: a load may leave it so."""
    rng = random.Random(seed)
    store = make_store(tmp_path / "store")
    clocks = [rng.randrange(1000) for _ in range(6)]
    times: dict[int, list[int]] = {queue: [] for queue in range(6)}
    for _ in range(120):
        queue = rng.randrange(6)
        clocks[queue] += rng.randrange(40)
        times[queue].append(clocks[queue])
        store.append("A", queue, b"x", time=clocks[queue])
    stores = p.Stores([StoreFiles(storage.LocalStorage(), str(store.root), "b")])
    for time in (0, 500, 900, 1500, 10_000):
        wanted = {p.QueueKey("A", "b", queue): time for queue, own in times.items() if own}
        expected = {
            key: next((n for n, each in enumerate(times[key.queue]) if each >= time), None)
            for key in wanted
        }
        assert stores.first_at_or_after(wanted) == expected


def test_a_partition_carries_the_stores_that_it_reads(make_store: Any, tmp_path: Path) -> None:
    for number in range(12):
        store = make_store(tmp_path / f"store-{number}")
        store.append("A", 0, b"x" * 3000)
    options = parse_read_options(
        {"path": str(tmp_path / "store-*"), "minPartitions": "12"}, streaming=False
    )
    partitions = RocketMQReader(options, struct_type(parse_columns("value"))).partitions()
    assert len(partitions) == 12
    carried = []
    for partition in partitions:
        assert isinstance(partition, RocketMQPartition)
        assert partition.stores.keys() == {piece.store for piece in partition.pieces}
        carried += [store.root for store in partition.stores.values()]
    assert sorted(carried) == sorted(str(each) for each in tmp_path.glob("store-*"))


def test_a_query_has_a_bounded_number_of_partitions() -> None:
    options = parse_read_options({"path": "/x", "targetPartitionBytes": "1048576"}, streaming=False)
    cuts = [Cut(p.LogRange(n, 0, 1 << 40), 0, 1 << 40) for n in range(4)]
    plans = pack(cuts, options)
    assert p.PARTITIONS_MAX // 2 < len(plans) <= p.PARTITIONS_MAX + len(cuts)
    whole = [piece for plan in plans for piece in plan.pieces]
    for number in range(4):
        own = [piece for piece in whole if piece.store == number]
        assert own[0].start == 0  # type: ignore[union-attr]
        assert own[-1].end == 1 << 40  # type: ignore[union-attr]
        assert all(a.end == b.start for a, b in pairwise(own))  # type: ignore[union-attr]
