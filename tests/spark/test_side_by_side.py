"""Queues that lie between each other in the log are read side by side: each message once, in order.

Whatever a plan cuts and however units are mixed, each message of each queue comes out once and a
queue's come in its order; what is damaged is named as when its queue is read alone; and the log is
read once.
"""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyarrow import fs

from oberth.spark import plan as p
from oberth.spark.options import parse_read_options
from oberth.spark.packing import QUEUES_SIDE_BY_SIDE_MAX, Cut, pack, side_by_side
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader
from oberth.spark.storage import ArrowStorage, Entry
from oberth.spark.unit_merge import Units, merged

QUEUES = st.lists(
    st.tuples(
        st.integers(0, 300),  # messages
        st.integers(0, 5000),  # where in the log they begin
        st.integers(1, 9000),  # and over how much of it they are spread
        st.integers(1, 200),  # bytes of each
    ),
    min_size=1,
    max_size=6,
)


def _cuts(queues: list[tuple[int, int, int, int]]) -> list[Cut]:
    return [
        Cut(p.QueueRange(0, "t", number, 7, 7 + count), count, count * size, (at, at + width))
        for number, (count, at, width, size) in enumerate(queues)
        if count
    ]


def _ranges(plan: p.PartitionPlan) -> list[p.QueueRange]:
    found: list[p.QueueRange] = []
    for piece in plan.pieces:
        if isinstance(piece, p.SideBySide):
            found += piece.queues
        else:
            assert isinstance(piece, p.QueueRange)
            found.append(piece)
    return found


def _messages(ranges: Iterable[p.QueueRange]) -> list[tuple[int, int]]:
    return [(each.queue, n) for each in ranges for n in range(each.start, each.end)]


@given(QUEUES, st.integers(2, 30), st.sampled_from([None, 3, 50]))
def test_each_message_is_in_one_partition(
    queues: list[tuple[int, int, int, int]], partitions: int, rows: int | None
) -> None:
    cuts = _cuts(queues)
    asked = {"path": "x", "minPartitions": str(partitions)}
    if rows is not None:
        asked["maxRecordsPerPartition"] = str(rows)
    options = replace(parse_read_options(asked, streaming=False), batch_bytes=1)
    plans = pack(cuts, options, together=True)
    found = _messages(each for plan in plans for each in _ranges(plan))
    assert sorted(found) == _messages(_ranges(p.PartitionPlan(tuple(c.piece for c in cuts))))
    for number in range(len(queues)):
        of_queue = [n for queue, n in found if queue == number]
        assert of_queue == sorted(of_queue)
    if rows is not None:
        assert all(len(_messages(_ranges(plan))) <= rows for plan in plans)
    for plan in plans:  # what goes on in a window is one range
        for piece in plan.pieces:
            if isinstance(piece, p.SideBySide):
                assert len({each.queue for each in piece.queues}) == len(piece.queues)


def test_a_partition_has_what_lies_together() -> None:
    # Eight queues that grew together, and a ninth that came in the second half of the log.
    places = [(0, 80_000_000)] * 8 + [(40_000_000, 80_000_000)]
    cuts = [
        Cut(p.QueueRange(0, "t", number, 0, 1000), 1000, 8_888_888, place)
        for number, place in enumerate(places)
    ]
    asked = {"path": "x", "targetPartitionBytes": "10000000"}
    options = parse_read_options(asked, streaming=False)
    plans = pack(cuts, options, together=True)
    assert len(plans) <= 9
    for plan in plans:
        spans = []
        for piece in _ranges(plan):
            low, high = places[piece.queue]
            spans += [low + (high - low) * n // 1000 for n in (piece.start, piece.end)]
        # A partition's share of the log, and a window at either side.
        assert max(spans) - min(spans) <= 80_000_000 // 8 * 1.6
    assert pack(cuts, options)[0].pieces[0] == cuts[0].piece
    small = replace(options, batch_bytes=20_000_000)
    assert pack(cuts, small, together=True) == pack(cuts, small)


def test_queues_that_are_too_many_or_too_small_are_read_alone() -> None:
    def cut(number: int) -> Cut:
        return Cut(p.QueueRange(0, "t", number, 0, 1000), 1000, 100_000, (0, 1 << 30))

    many = [cut(number) for number in range(QUEUES_SIDE_BY_SIDE_MAX + 1)]
    assert side_by_side(many, 100_000) == many
    assert side_by_side(many[:1], 100_000) == many[:1]
    assert side_by_side(many[:4], 1_000_000) == many[:4]
    assert len(side_by_side(many[:4], 100_000)) > 4
    alone = [each._replace(place=None) for each in many[:4]]
    assert side_by_side(alone, 100_000) == alone


def test_a_plan_of_many_stores_stays_small() -> None:
    cuts = [
        Cut(p.QueueRange(store, "t", number, 0, 1 << 30), 1 << 30, 1 << 40, (0, 1 << 43))
        for store in range(200)
        for number in range(8)
    ]
    assert len(side_by_side(cuts, 1 << 36)) < 80_000


UNITS = st.lists(
    st.lists(st.lists(st.integers(0, 1000), max_size=12), max_size=5), min_size=2, max_size=5
)


@given(UNITS, st.booleans())
def test_units_come_once_each_in_their_queues_order(
    queues: list[list[list[int]]], is_sound: bool
) -> None:
    if is_sound:  # positions of a queue grow
        for parts in queues:
            every = sorted({at for part in parts for at in part})
            for part in parts:
                part[:] = [every.pop(0) for _ in part if every]

    def units(number: int) -> Iterator[Units]:
        done = 0
        for part in queues[number]:
            at = np.array(part, np.int64)
            yield Units(at, at + 1, np.arange(done, done + len(part)))
            done += len(part)

    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    places: list[int] = []
    for some in merged([units(number) for number in range(len(queues))]):
        assert (some.sizes == some.positions + 1).all()
        places += some.positions.tolist()
        for at, offset, owner in zip(some.positions, some.offsets, some.owners, strict=True):
            found[int(owner)].append((int(offset), int(at)))
    for number, parts in enumerate(queues):
        assert found[number] == list(enumerate(at for part in parts for at in part))
    if is_sound:
        assert places == sorted(places)


def test_what_queues_have_last_comes_together() -> None:
    def units(number: int) -> Iterator[Units]:
        at = np.arange(number, 800, 8)
        yield Units(at, at + 1, at)

    parts = [some.positions for some in merged([units(number) for number in range(8)])]
    assert np.concatenate(parts).tolist() == list(range(800))
    assert len(parts) == 2  # up to where the first ends, and what lies behind


def _fill(store: Any, count: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    for number in range(count):
        store.append("a" if number % 3 else "b", chance.randrange(3), chance.randbytes(900))


TOGETHER = {"targetPartitionBytes": "100k", "batchBytes": "64k"}


def test_the_log_is_read_once(growing_store: Any, read_store: Any) -> None:
    _fill(growing_store, 3000)
    columns = "topic,partition,offset,value"
    truth = read_store(growing_store.root, columns=columns).rows
    read = read_store(growing_store.root, columns=columns, **TOGETHER)
    places = [(row["topic"], row["partition"], row["offset"]) for row in read.rows]
    assert len(places) == 3000
    assert places != sorted(places)  # side by side, but each queue in its order:
    by_queue = sorted(range(3000), key=lambda number: places[number][:2])
    assert [read.rows[number] for number in by_queue] == truth
    assert read.bytes_read < 3000 * 1000 * 1.1


class _Far(ArrowStorage):
    """Files of this machine as an object store shows them."""

    meets: ClassVar[threading.Barrier | None] = None
    asked: ClassVar[list[str]] = []

    def _files(self, path: str) -> tuple[Any, str]:
        return fs.LocalFileSystem(), path

    def entries(self, directory: str) -> list[Entry]:
        if self.meets is not None and re.search(r"consumequeue/./\d", directory):
            self.meets.wait(60)
        return super().entries(directory)

    def will_read(self, path: str, position: int, end: int) -> None:
        self.asked.append("ahead")
        super().will_read(path, position, end)

    def read(self, path: str, position: int, size: int) -> bytes:
        self.asked.append("window")
        return super().read(path, position, size)


@pytest.fixture
def far_store(growing_store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of six queues in a storage that is far."""
    _fill(growing_store, 1000)
    monkeypatch.setattr(p, "storage_for", lambda path, _: (_Far("mock", {}), path))
    monkeypatch.setattr(_Far, "meets", None)
    monkeypatch.setattr(_Far, "asked", [])
    return growing_store


def _reader(store: Any, **options: str) -> RocketMQReader:
    columns = "topic,partition,offset"
    asked = {"path": str(store.root), "columns": columns, **options}
    schema = struct_type(parse_columns(columns))
    return RocketMQReader(parse_read_options(asked, streaming=False), schema)


@pytest.mark.parametrize("size", ["300k", "8m"])
def test_queues_that_are_far_are_opened_at_the_same_time(
    size: str, far_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are read side by side, and those that are read one after the other."""
    reader = _reader(far_store, batchBytes="64k", targetPartitionBytes=size)
    part = reader.partitions()[0]
    assert isinstance(part, RocketMQPartition)
    assert isinstance(part.pieces[0], p.SideBySide) == (size == "300k")
    monkeypatch.setattr(_Far, "meets", threading.Barrier(6))
    assert sum(some.num_rows for some in reader.read(part)) > 200


def test_a_far_log_is_on_its_way_while_its_first_record_is_looked_for(far_store: Any) -> None:
    reader = _reader(far_store, readOrder="commitlog", targetPartitionBytes="100k")
    second = reader.partitions()[1]
    _Far.asked.clear()
    rows = sum(some.num_rows for some in reader.read(second))
    assert rows > 50
    assert _Far.asked[0] == "ahead"
    assert "window" in _Far.asked
    assert _Far.asked.count("ahead") == 1


def test_a_far_log_is_asked_for_again_behind_much_damage(
    far_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oberth.spark.reading.AHEAD_SIZE", 20_000)
    reader = _reader(
        far_store, readOrder="commitlog", targetPartitionBytes="100k", failOnDataLoss="false"
    )
    second = reader.partitions()[1]
    assert isinstance(second, RocketMQPartition)
    (piece,) = second.pieces
    assert isinstance(piece, p.LogRange)
    with (far_store.root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(piece.start - 2000)
        log.write(b"\xff" * 60_000)
    _Far.asked.clear()
    rows = sum(some.num_rows for some in reader.read(second))
    assert 10 < rows < 50
    assert _Far.asked.count("ahead") == 2


def test_what_is_damaged_is_named_by_its_own_queue(growing_store: Any, read_store: Any) -> None:
    _fill(growing_store, 300)
    before = {
        (row["topic"], row["partition"], row["offset"]): row["physicalOffset"]
        for row in read_store(growing_store.root, **TOGETHER).rows
    }
    assert len(before) == 300
    broken = ("a", 1, 20)
    log = growing_store.root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[before[broken] + 200] ^= 1
    log.write_bytes(data)
    # A unit that names the record of another queue, and one that names none.
    units = growing_store.root / "consumequeue" / "b" / "2" / f"{0:020d}"
    named = bytearray(units.read_bytes())
    elsewhere = (growing_store.root / "consumequeue" / "a" / "0" / f"{0:020d}").read_bytes()
    named[3 * 20 : 4 * 20] = elsewhere[5 * 20 : 6 * 20]
    named[7 * 20 : 7 * 20 + 8] = (before["b", 2, 7] + 10).to_bytes(8, "big")
    units.write_bytes(named)

    read = read_store(growing_store.root, failOnDataLoss="false", **TOGETHER)
    assert read.partitions > 1
    rows = [(row["topic"], row["partition"], row["offset"]) for row in read.rows]
    assert sorted(rows) == sorted(before.keys() - {broken, ("b", 2, 3), ("b", 2, 7)})
    assert sorted(read.lost) == sorted(read_store(growing_store.root, failOnDataLoss="false").lost)
    assert len(read.lost) == 3
    lost = "\n".join(read.lost)
    assert "queue 1, offset 20): it fails its CRC" in lost
    assert "queue b/2 has it as offset 3" in lost
    assert "topic b, broker broker-g, queue 2, offset 7: no whole record" in lost


def test_a_topic_that_is_gone_does_not_hide_its_neighbours(growing_store: Any) -> None:
    from oberth.spark.partitions import RocketMQPartition
    from oberth.spark.schemas import parse_columns, struct_type
    from oberth.spark.source import RocketMQReader

    _fill(growing_store, 300)
    columns = "topic,partition,offset"
    asked = {"path": str(growing_store.root), "columns": columns, "failOnDataLoss": "false"}
    options = parse_read_options({**asked, **TOGETHER}, streaming=False)
    reader = RocketMQReader(options, struct_type(parse_columns(columns)))
    parts = reader.partitions()
    shutil.rmtree(growing_store.root / "consumequeue" / "b")
    found = []
    for part in parts:
        assert isinstance(part, RocketMQPartition)
        assert isinstance(part.pieces[0], p.SideBySide)
        for batch in reader.read(part):
            found += batch.column("topic").to_pylist()
    assert set(found) == {"a"}
    assert len(found) == 200


@pytest.mark.parametrize(
    "place", [2**63 - 1, 2**63 - 5, 2**62, 2**40, 2**32 + 500, 2**32 - 5, 2**31 + 7]
)
@pytest.mark.parametrize("together", [False, True])
def test_a_unit_that_names_a_place_far_away_costs_its_own_row(
    growing_store: Any, read_store: Any, place: int, together: bool
) -> None:
    _fill(growing_store, 300)
    units = growing_store.root / "consumequeue" / "b" / "2" / f"{0:020d}"
    named = bytearray(units.read_bytes())
    named[7 * 20 : 7 * 20 + 8] = place.to_bytes(8, "big")
    units.write_bytes(named)
    read = read_store(growing_store.root, failOnDataLoss="false", **(TOGETHER if together else {}))
    rows = {(row["topic"], row["partition"], row["offset"]) for row in read.rows}
    assert len(rows) == len(read.rows) == 299
    assert ("b", 2, 7) not in rows
    [lost] = read.lost
    assert "offset 7" in lost
    assert str(place) in lost


def test_a_queue_is_looked_for_once_however_many_batches_it_has(
    growing_store: Any, listed_directories: list[str], read_store: Any
) -> None:
    _fill(growing_store, 1000)
    listed = listed_directories
    counts = []
    for size in ("64k", "8m"):
        listed.clear()
        read = read_store(growing_store.root, subscribe="a", batchBytes=size)
        assert len(read.rows) == 666
        counts.append(len(listed))
    assert counts[0] == counts[1]
