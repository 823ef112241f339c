"""Bodies that hold records naming their own places: no reader takes them for messages.

The producer of such a body knows where it will lie. Every cut of every reader is tried, with the
queues and without them, beside a writer and behind damage.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from oberth.errors import DataLossError
from oberth.formats import message as m
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.record_starts import RecordStarts
from oberth.spark.storage import LocalStorage, Storage
from oberth.spark.store_files import StoreFiles

HOST = m.encode_host("10.0.0.1", 1)
TIME = 1_700_000_000_000


def forged(at: int, offset: int, size: int, *, topic: str = "payments", crc: bool = True) -> bytes:
    """A record for a place in the log; ``size`` bytes."""
    body = b"x" * (size - m.record_size(0, len(topic), 0, 0, m.MAGIC_V1))
    return m.MessageExt(
        topic, 0, offset, at, size, m.MAGIC_V1, m.body_crc(body) if crc else 1, 0, 0, TIME + 10**9,
        HOST, TIME + 10**9, HOST, 0, 0, body, b"",
    ).encode()  # fmt: skip


def full_of_records(count: int, size: int) -> Callable[[int], bytes]:
    """Bodies that are nothing but records, end to start."""
    return lambda at: b"".join(forged(at + n * size, n, size) for n in range(count))


def sloppy(rng: random.Random, size: int) -> Callable[[int], bytes]:
    """Bodies with all that looks a little like a record: wrong sums, cut off, blanks, huge ones."""
    seed = rng.random()

    def make(at: int) -> bytes:
        own = random.Random(seed)
        made = bytearray()
        while len(made) < size - 400:
            place = at + len(made)
            kind = own.randrange(6)
            record = bytearray(forged(place, own.randrange(400), own.randrange(110, 300)))
            if kind == 0:
                record[8] ^= 1  # the sum
            elif kind == 1:
                record[:4] = (own.randrange(1 << 20, 1 << 25)).to_bytes(4, "big")
            elif kind == 2:
                record = record[: len(record) // 2]
            elif kind == 3:
                record = bytearray(m.encode_blank(own.randrange(1 << 20)))
            elif kind == 4:
                record[4:8] = own.randbytes(4)
            made += record
        return bytes(made).ljust(size, b"\0")

    return make


@pytest.fixture
def attacked(growing_store: Any) -> Any:
    """A store of 60 messages of ``chat``, some hostile, and 40 of ``payments``."""
    rng = random.Random(7)
    for number in range(60):
        if number % 3 == 1:
            size = rng.choice((120, 200, 900))
            body: Any = full_of_records(rng.randrange(1, 40_000 // size), size)
        elif number % 3 == 2:
            body = sloppy(rng, rng.randrange(1000, 60_000))
        else:
            body = b"hello" * number
        growing_store.append("chat", number % 2, body)
        if number % 3:
            growing_store.append("payments", 0, b"paid %d" % number)
    return growing_store


def _keys(rows: list[dict[str, Any]]) -> set[tuple[str, int, int, int]]:
    found = {(r["topic"], r["partition"], r["offset"], r["physicalOffset"]) for r in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("queues", [True, False])
@pytest.mark.parametrize("cut", ["1025", "1777", "9k", "100k", "128m"])
def test_no_cut_of_the_log_begins_inside_a_body(
    attacked: Any, read_store: Any, queues: bool, cut: str
) -> None:
    truth = _keys(read_store(attacked.root, readOrder="queue").rows)
    assert len(truth) == 100
    if not queues:
        shutil.rmtree(attacked.root / "consumequeue")
    read = read_store(attacked.root, readOrder="commitlog", targetPartitionBytes=cut)
    assert _keys(read.rows) == truth
    assert read.lost == []


def test_without_maps_the_walk_is_the_same(
    attacked: Any, read_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = _keys(read_store(attacked.root, readOrder="queue").rows)
    shutil.rmtree(attacked.root / "consumequeue")
    monkeypatch.setattr(LocalStorage, "view", Storage.view)
    monkeypatch.setattr("oberth.spark.record_starts._WALK_SIZE", 2000)
    read = read_store(attacked.root, readOrder="commitlog", targetPartitionBytes="9k")
    assert _keys(read.rows) == truth


def test_a_place_inside_a_body_is_not_looked_up(attacked: Any, read_store: Any) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    rows = read_store(attacked.root, readOrder="queue").rows
    hostile = next(r for r in rows if b"payments" in r["value"])
    inside = hostile["physicalOffset"] + m.FIXED_V4.size
    for order in ("queue", "commitlog"):
        honest = str(hostile["offsetMsgId"])
        assert (
            len(
                read_store(attacked.root, [EqualTo(("offsetMsgId",), honest)], pushdown="true").rows
            )
            == 1
        )
        false_id = honest[:16] + f"{inside:016X}"
        wanted = EqualTo(("offsetMsgId",), false_id)
        # A reader may read too much, Spark filters it; a record of that id is never among it.
        read = read_store(attacked.root, [wanted], readOrder=order, pushdown="true").rows
        assert not [r for r in read if r["offsetMsgId"] == false_id]
        behind = read_store(
            attacked.root,
            [GreaterThanOrEqual(("physicalOffset",), inside)],
            readOrder=order,
            pushdown="true",
        )
        found = [r for r in behind.rows if r["physicalOffset"] >= inside]
        assert _keys(found) == _keys([r for r in rows if r["physicalOffset"] >= inside])


def test_an_export_writes_what_was_sent(attacked: Any, read_store: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    truth = read_store(attacked.root, readOrder="queue").rows
    into = tmp_path / "lake"
    report = export(
        InProcess(), str(attacked.root), str(into), ExportSettings("parquet"), range_size=7000
    )
    assert report.rows == len(truth)
    names = [row for path in into.rglob("[!_]*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(names) == len(truth)


@pytest.mark.parametrize("queues", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
def test_what_is_half_written_ends_the_log_whatever_is_in_it(
    attacked: Any, read_store: Any, queues: bool, is_open: bool
) -> None:
    truth = _keys(read_store(attacked.root, readOrder="queue").rows)
    end = StoreFiles(LocalStorage(), str(attacked.root), "b").log_end()
    attacked.append("chat", 0, full_of_records(200, 150), dispatch=False, upto=20_000)
    if not queues:
        shutil.rmtree(attacked.root / "consumequeue")
    if is_open:
        (attacked.root / "abort").touch()
    assert StoreFiles(LocalStorage(), str(attacked.root), "b").log_end() == end
    read = read_store(attacked.root, readOrder="commitlog", targetPartitionBytes="9k")
    assert _keys(read.rows) == truth
    assert read.lost == []


@pytest.mark.parametrize("cut", ["3k", "128m"])
def test_behind_damage_a_queue_says_what_a_record_is(
    attacked: Any, read_store: Any, cut: str
) -> None:
    rows = read_store(attacked.root, readOrder="queue").rows
    truth = _keys(rows)
    for victim in [r for r in rows if r["value"].count(b"payments") > 2][::5]:
        path = attacked.root / "commitlog" / f"{victim['physicalOffset'] >> 20 << 20:020d}"
        good = path.read_bytes()
        at = victim["physicalOffset"] % (1 << 20)
        # Its head is gone, so what is inside is all that can be seen of it.
        path.write_bytes(good[:at] + bytes(60) + good[at + 60 :])
        options = {"readOrder": "commitlog", "targetPartitionBytes": cut}
        with pytest.raises(DataLossError):
            read_store(attacked.root, **options)
        read = read_store(attacked.root, failOnDataLoss="false", **options)
        gone = _keys([victim])
        assert truth - gone <= _keys(read.rows) <= truth, cut
        assert len(read.lost) == 1
        path.write_bytes(good)


def test_where_bodies_are_full_of_false_records_little_is_asked(
    growing_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing_store.append("payments", 0, b"first")
    for _ in range(3):
        growing_store.append("chat", 0, full_of_records(3000, 100))
    growing_store.append("payments", 0, b"last")
    store = StoreFiles(LocalStorage(), str(growing_store.root), "b")
    segment = store.segments()[0]
    asked = 0
    starts = RecordStarts(store)
    verdict = starts.verdict

    def counted(*given: Any) -> bool | None:
        nonlocal asked
        asked += 1
        return verdict(*given)

    monkeypatch.setattr(starts, "verdict", counted)
    end = store.log_end()
    assert starts.first(segment, 500_000).offset in range(500_000, end)
    assert asked <= 48


@pytest.mark.parametrize("queues", [True, False])
def test_the_offline_reader_takes_no_place_inside_a_body(
    attacked: Any, read_store: Any, queues: bool
) -> None:
    from oberth.errors import NotFoundError
    from oberth.store.offline.dump import dump
    from oberth.store.offline.reader import StoreReader

    rows = sorted(
        read_store(attacked.root, readOrder="queue").rows, key=lambda r: int(r["physicalOffset"])
    )
    number = next(n for n, r in enumerate(rows) if r["value"].count(b"payments") > 2)
    hostile, following = rows[number], rows[number + 1]
    inside = hostile["physicalOffset"] + m.FIXED_V4.size
    if not queues:
        shutil.rmtree(attacked.root / "consumequeue")
    with StoreReader(attacked.root) as reader:
        assert reader.record_at(inside).topic == "payments"  # as it looks
        with pytest.raises(NotFoundError, match="inside another record"):
            reader.record_named(inside)
        with pytest.raises(NotFoundError):
            reader.by_id(str(hostile["offsetMsgId"])[:16] + f"{inside:016X}")
        assert reader.by_id(str(hostile["offsetMsgId"])).body == hostile["value"]
        first = next(iter(dump(reader, start=inside)))
        assert first["commitLogOffset"] == following["physicalOffset"]
        assert next(iter(dump(reader, start=following["physicalOffset"]))) == first
        assert list(dump(reader, start=rows[-1]["physicalOffset"] + 1)) == []


@pytest.mark.parametrize("range_size", [5000, 33_000])
def test_ranges_of_the_pipelines_are_joined(
    attacked: Any, read_store: Any, tmp_path: Path, range_size: int
) -> None:
    from oberth.spark.pipelines.dispatch import dispatch
    from oberth.spark.pipelines.salvage import salvage
    from oberth.spark.pipelines.verify import verify

    truth = _keys(read_store(attacked.root, readOrder="queue").rows)
    root, tasks = str(attacked.root), InProcess()
    entries = {"messageIndexEnable": "false"}
    report = verify(tasks, root, entries=entries, range_size=range_size)
    assert [finding for finding in report.findings if "log" in str(finding.file)] == []
    saved = tmp_path / "saved"
    found = salvage(tasks, root, str(saved), entries=entries, range_size=range_size)
    assert (found.records, found.lost) == (100, [])
    assert _keys(read_store(saved, readOrder="queue").rows) == truth
    shutil.rmtree(attacked.root / "consumequeue")
    dispatch(tasks, root, entries=entries, range_size=range_size)
    assert _keys(read_store(attacked.root, readOrder="queue").rows) == truth
