"""Queue files that are missing, too short or of another place cost what they held, no more.

Whatever a queue's files lack, what they do hold comes out once, under its own offset, and what is
missing is named by its offsets, each once. Of a plain queue, of a light one and of one of batches.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_side_by_side import _Far

pytest.importorskip("pyspark")

from oberth.errors import DataLossError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.batch_consume_queue import UNIT
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.spark import plan as p
from oberth.spark.options import parse_read_options
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.reading import PieceReader
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles

KINDS = {"plain": "plain", "light": "%LMQ%light", "batch": "batch"}
DIRECTORIES = {
    "plain": "consumequeue/plain/0",
    "light": "consumequeue/%LMQ%light/0",
    "batch": "batchconsumequeue/batch/0",
}
UNITS, COUNT, BEFORE_LIGHT = 10, 45, 5  # units of a file and of a queue; only of the plain queue
ALL = {"subscribe": ",".join(KINDS.values())}
WAYS: dict[str, dict[str, str]] = {
    "whole": {},
    "small steps": {},
    "cut": {"maxRecordsPerPartition": "4"},
    "together": {"targetPartitionBytes": "100k", "batchBytes": "64k"},
    "far": {"maxRecordsPerPartition": "13"},
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, make_store: Callable[..., Any]) -> Path:
    """A store of one queue of each kind and a neighbour, each in files of ten units."""
    root = tmp_path_factory.mktemp("queues") / "broker-q"
    store = make_store(root, queue_size=UNITS * 20)
    for number in range(COUNT + BEFORE_LIGHT):
        light = number - BEFORE_LIGHT
        named = {"INNER_MULTI_DISPATCH": "%LMQ%other,%LMQ%light,", "INNER_MULTI_QUEUE_OFFSET": ""}
        named["INNER_MULTI_QUEUE_OFFSET"] = f"{light + 1000},{light}"
        body = bytes(2000 + number)
        store.append("plain", 0, body, properties=named if light >= 0 else None)
        store.append("plain", 1, body)
    bases = []
    for number in range(COUNT):
        if number % 3:
            bases.append((store.append("batch", 0, b"one"), 1))
            continue
        items = encode_batch([BatchItem(0, b"%d" % n, b"") for n in range(3)])
        first = bases[-1][0] + 1 if bases else 0
        num = {"INNER_NUM": "3", "INNER_BASE": str(first)}
        kind = INNER_BATCH | NEED_UNWRAP
        bases.append((store.append("batch", 0, items, flags=kind, properties=num), 3))
        store.skip("batch", 0, 2)

    def units(directory: str) -> bytes:
        return b"".join(each.read_bytes() for each in sorted((root / directory).iterdir()))

    plain, batch = units("consumequeue/plain/0"), units("consumequeue/batch/0")
    shutil.rmtree(root / "consumequeue" / "batch")
    light_units = plain[BEFORE_LIGHT * 20 : (COUNT + BEFORE_LIGHT) * 20]
    batch_units = b"".join(
        UNIT.pack(
            int.from_bytes(batch[base * 20 : base * 20 + 8], "big"),
            int.from_bytes(batch[base * 20 + 8 : base * 20 + 12], "big"),
            0, 1_700_000_000_000, base, count, -1, 0,
        )
        for base, count in bases
    )  # fmt: skip
    for directory, data, size in (
        (DIRECTORIES["light"], light_units, UNITS * 20),
        (DIRECTORIES["batch"], batch_units, UNITS * UNIT.size),
    ):
        (root / directory).mkdir(parents=True)
        for at in range(0, len(data), size):
            (root / directory / f"{at:020d}").write_bytes(data[at : at + size].ljust(size, b"\0"))
    return root


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(pristine, tmp_path / "broker-q"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """How the store is read."""
    if request.param not in ("whole", "cut"):
        monkeypatch.setattr(PieceReader, "_step", lambda *_: 7)
    if request.param == "far":
        monkeypatch.setattr(p, "storage_for", lambda path, _: (_Far("mock", {}), path))
        monkeypatch.setattr(_Far, "meets", None)
    options: dict[str, str] = WAYS[request.param]
    return options


def files_of(root: Path, kind: str) -> list[Path]:
    return sorted((root / DIRECTORIES[kind]).iterdir())


def unit_size(kind: str) -> int:
    return UNIT.size if kind == "batch" else 20


def offsets_of(kind: str, first: int, last: int) -> list[int]:
    """The queue offsets of units number first to last (exclusive)."""
    if kind != "batch":
        return list(range(first, last))
    return list(range(*(number + (number + 2) // 3 * 2 for number in (first, last))))


def rows_of(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    """By topic and queue the offsets and places of the rows, in their order."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        found[f"{row['topic']}/{row['partition']}"].append((row["offset"], row["physicalOffset"]))
    return found


def named_in(lost: list[str]) -> list[int]:
    """The offsets that messages name, sorted; each as often as it is named."""
    found: list[int] = []
    for text in lost:
        stretch = re.search(r"offsets (\d+) to (\d+) are gone", text)
        one = re.search(r"has it as offset (\d+)|queue \d+, offset (\d+):", text)
        assert stretch or one, text
        if stretch:
            found += range(int(stretch[1]), int(stretch[2]))
        elif one:
            found.append(int(one[1] or one[2]))
    return sorted(found)


def check(root: Path, kind: str, missing: list[int], truth: Any, read: Any, way: Any) -> None:
    """All but what is missing comes out, and that is named once; else the read fails."""
    queue = f"{KINDS[kind]}/0"
    left = {**truth, queue: [row for row in truth[queue] if row[0] not in missing]}
    found = read(root, failOnDataLoss="false", **ALL, **way)
    assert rows_of(found.rows) == left
    assert named_in(found.lost) == missing
    with pytest.raises(DataLossError):
        read(root, **ALL, **way)


def lose(root: Path, kind: str, what: str) -> list[int]:
    """Damages a queue's files; gives the offsets that are lost."""
    files, size = files_of(root, kind), unit_size(kind)
    if what == "short":
        os.truncate(files[1], 4 * size + 3)
        return offsets_of(kind, 14, 20)
    if what == "both short":
        os.truncate(files[1], 4 * size)
        os.truncate(files[2], 7 * size)
        return offsets_of(kind, 14, 20) + offsets_of(kind, 27, 30)
    last = 3 if what == "two gone" else 2
    for path in files[1:last]:
        path.unlink()
    return offsets_of(kind, 10, last * 10)


@pytest.mark.parametrize("what", ["short", "both short", "two gone"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_costs_what_its_files_held(
    kind: str, what: str, store: Path, pristine: Path, read_store: Any, way: dict[str, str]
) -> None:
    truth = rows_of(read_store(pristine, **ALL).rows)
    missing = lose(store, kind, what)
    check(store, kind, missing, truth, read_store, way)


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("kind", ["plain", "light"])
def test_files_that_go_while_a_task_reads_do_not_hide_the_next_one(
    kind: str, is_far: bool, store: Path, monkeypatch: pytest.MonkeyPatch, read_store: Any
) -> None:
    options = {"subscribe": KINDS[kind], "failOnDataLoss": "false"}
    truth = rows_of(read_store(store, **ALL).rows)
    monkeypatch.setattr(PieceReader, "_step", lambda *_: 7)
    if is_far:
        monkeypatch.setattr(p, "storage_for", lambda path, _: (_Far("mock", {}), path))
        monkeypatch.setattr(_Far, "meets", None)
    columns = "topic,partition,offset,physicalOffset"
    reader = RocketMQReader(
        parse_read_options({"path": str(store), "columns": columns, **options}, streaming=False),
        struct_type(parse_columns(columns)),
    )
    [part] = pickle.loads(pickle.dumps(reader.partitions()))  # a task opens files itself
    pieces = reader.piece_reader(part)
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(pieces.read(part.pieces)):
        if number == 0:
            for path in files_of(store, kind)[:2]:
                path.unlink()
        rows += batch.to_pylist()
    queue = f"{KINDS[kind]}/0"
    missing = named_in(pieces.report.lost)  # of the first file what was not read ahead
    assert missing in (offsets_of(kind, 7, 20), offsets_of(kind, 10, 20))
    assert rows_of(rows)[queue] == [row for row in truth[queue] if row[0] not in missing]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_ends_no_batch_of_a_stream(kind: str, store: Path) -> None:
    """How many messages have so many bytes: what no file holds has none, and is passed."""
    missing = lose(store, kind, "gone")
    queue = StoreFiles(LocalStorage(), str(store), "b").queue(KINDS[kind], 0)
    first, end = queue.bounds()
    assert queue.count_within(first, end - first, 1 << 30) == end - first
    assert queue.count_within(missing[0], end - missing[0], 1 << 30) == end - missing[0]
    size = queue.record_bytes(first, missing[0])
    fit = queue.count_within(first, end - first, size + 10)
    assert fit == (missing[0] if kind == "batch" else missing[-1] + 1)


def overwrite(root: Path, kind: str, what: str) -> list[int]:
    """Has units of a queue name records of other units; gives the offsets that are lost."""
    files, size = files_of(root, kind), unit_size(kind)
    if what in ("by the next", "by the one before"):
        files[1].write_bytes(files[2 if what == "by the next" else 0].read_bytes())
        return offsets_of(kind, 10, 20)
    # One unit of the second file, or of a batch only where that says its record is.
    at, other = 4 * size, files[2].read_bytes()[3 * size : 4 * size]
    data = bytearray(files[1].read_bytes())
    named = other if what == "a unit" else other[:12]
    data[at : at + len(named)] = named
    files[1].write_bytes(data)
    return offsets_of(kind, 14, 15)


@pytest.mark.parametrize("what", ["by the next", "by the one before", "a unit", "a place"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_of_another_place_gives_no_row_here(
    kind: str, what: str, store: Path, pristine: Path, read_store: Any, way: dict[str, str]
) -> None:
    truth = rows_of(read_store(pristine, **ALL).rows)
    missing = overwrite(store, kind, what)
    if kind == "batch" and what == "a unit":
        # Its record comes where it is named first; a search for a part's units may meet it.
        found = read_store(store, failOnDataLoss="false", **ALL, **way)
        lost = named_in(found.lost)
        assert lost == missing or (way and set(missing) < set(lost) < set(range(20, 50)))
        rows = rows_of(found.rows)
        rows["batch/0"].sort()
        assert rows == {**truth, "batch/0": [row for row in truth["batch/0"] if row[0] not in lost]}
    else:
        check(store, kind, missing, truth, read_store, way)


def test_a_light_queue_shows_no_record_that_says_no_number(
    growing_store: Any, read_store: Any
) -> None:
    queue = growing_store.root / "consumequeue" / "%LMQ%a" / "0"
    for numbers in ("0", "1", "", "3,3", "5"):
        named = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": numbers}
        growing_store.append("A", 0, b"body", properties=named)
    shutil.copytree(growing_store.root / "consumequeue" / "A" / "0", queue)
    found = read_store(growing_store.root, subscribe="%LMQ%a", failOnDataLoss="false")
    assert [row["offset"] for row in found.rows] == [0, 1, 4]
    assert named_in(found.lost) == [2, 3]


def test_numbers_of_a_light_queue_may_be_ahead_of_their_places(
    growing_store: Any, read_store: Any
) -> None:
    """Apache's brokers count prepared messages and names that stand twice, and write no unit."""
    queue = growing_store.root / "consumequeue" / "%LMQ%a" / "0"
    for names, numbers in (
        ("%LMQ%a", "0"),
        ("%LMQ%a", "2"),
        ("%LMQ%a,%LMQ%a", "3,3"),
        ("%LMQ%a", "500"),
        ("%LMQ%b,%LMQ%a", "0,501"),
    ):
        named = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": numbers}
        growing_store.append("A", 0, b"body", properties=named)
    shutil.copytree(growing_store.root / "consumequeue" / "A" / "0", queue)
    found = read_store(growing_store.root, subscribe="%LMQ%a", columns="offset,physicalOffset")
    assert [row["offset"] for row in found.rows] == [0, 1, 2, 3, 4]
    assert len({row["physicalOffset"] for row in found.rows}) == 5


def batch_queue(store: Any, units: list[tuple[int, int, int, int]]) -> None:
    """Writes the units of a batch queue: place, size, first offset and how many messages."""
    shutil.rmtree(store.root / "consumequeue" / "B", ignore_errors=True)
    for number, (place, size, base, count) in enumerate(units):
        unit = UNIT.pack(place, size, 0, 1_700_000_000_000, base, count, -1, 0)
        store._write("batchconsumequeue/B/0", number * UNIT.size, unit, 100 * UNIT.size)


def test_single_messages_without_a_unit_are_no_loss_of_a_batch_queue(
    growing_store: Any, read_store: Any
) -> None:
    """Brokers before 5.5 count them, and write none."""
    units = []
    for base in (0, 3, 7):
        items = encode_batch([BatchItem(0, b"%d" % n, b"") for n in range(3)])
        num = {"INNER_NUM": "3", "INNER_BASE": str(base)}
        place = growing_store._log_end
        growing_store.append("B", 0, items, flags=INNER_BATCH | NEED_UNWRAP, properties=num)
        units.append((place, growing_store._log_end - place, base, 3))
        if base == 3:
            growing_store.append("B", 0, b"single")
    batch_queue(growing_store, units)
    rows = read_store(growing_store.root, subscribe="B", columns="offset").rows
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    # Where a unit lies between them, and cannot be used, it is one.
    batch_queue(growing_store, [*units[:2], (0, 0, 0, 0), units[2]])
    found = read_store(growing_store.root, subscribe="B", columns="offset", failOnDataLoss="false")
    assert [row["offset"] for row in found.rows] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert any("offsets 6 to 7 are gone" in each for each in found.lost)


def test_a_plain_message_may_say_that_it_is_of_a_batch(growing_store: Any, read_store: Any) -> None:
    growing_store.append("B", 0, b"x", properties={"INNER_BASE": "999"})
    batch_queue(growing_store, [(0, growing_store._log_end, 0, 1)])
    rows = read_store(growing_store.root, subscribe="B", columns="offset,value").rows
    assert [(row["offset"], row["value"]) for row in rows] == [(0, b"x")]


@pytest.mark.parametrize("order", ["in order", "not in order"])
def test_a_start_in_time_is_found_beside_a_hole(
    make_store: Callable[..., Any], tmp_path: Path, read_store: Any, order: str
) -> None:
    store = make_store(tmp_path / "broker-t", queue_size=200)
    for number in range(90):
        time = 1_700_000_000_000 + 1000 * number
        if order == "not in order" and number == 85:
            time -= 10_000_000
        store.append("T", 0, b"x", time=time)
    for file in sorted((store.root / "consumequeue" / "T" / "0").iterdir())[1:8]:
        file.unlink()
    found = read_store(
        store.root,
        subscribe="T",
        columns="offset",
        startingTimestamp=str(1_700_000_005_000),
        failOnDataLoss="false",
    )
    assert [row["offset"] for row in found.rows] == [*range(5, 10), *range(80, 90)]
    assert any("offsets 10 to 80 are gone" in each for each in found.lost)


def test_queues_of_a_damaged_store_are_read_side_by_side(store: Path) -> None:
    """As the way of that name takes it for granted."""
    columns = "topic,partition,offset"
    given = {"path": str(store), "columns": columns, **ALL, **WAYS["together"]}
    reader = RocketMQReader(
        parse_read_options(given, streaming=False), struct_type(parse_columns(columns))
    )
    parts = [part for part in reader.partitions() if isinstance(part, RocketMQPartition)]
    assert any(isinstance(piece, p.SideBySide) for part in parts for piece in part.pieces)
