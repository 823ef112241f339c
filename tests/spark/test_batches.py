"""Arrow arrays made of positions and sizes equal those made one by one, for any bytes.

And bodies that are not what their flags say: a row each, never the end of a query.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import RecordError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.sys_flag import COMPRESSED, COMPRESSION_ZSTD, INNER_BATCH, NEED_UNWRAP
from oberth.spark import batches
from oberth.spark.calendar import TIME_MAX_MS, TIME_MIN_MS, moment
from oberth.spark.schemas import COLUMNS


def _laid_out(values: list[bytes | None], gaps: list[int]) -> tuple[bytes, Any, Any]:
    data, at, size = b"", [], []
    for value, gap in zip(values, gaps, strict=False):
        data += b"#" * gap
        at.append(0 if value is None else len(data))
        size.append(-1 if value is None else len(value))
        data += value or b""
    return data + b"##", np.array(at, np.int32), np.array(size, np.int32)


VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=30)


@given(VALUES, st.lists(st.integers(0, 5), min_size=30, max_size=30))
def test_gather(values: list[bytes | None], gaps: list[int]) -> None:
    made = batches.gather(*_laid_out(values, gaps), pa.binary())
    made.validate(full=True)
    assert made.to_pylist() == values
    text = batches.gather(*_laid_out(values, gaps), pa.string())
    text.validate(full=True)
    assert text.to_pylist() == [None if v is None else str(v, "utf-8", "replace") for v in values]


def test_every_column_can_be_made() -> None:
    assert batches._NEEDS.keys() == {column.name for column in COLUMNS}
    for column in COLUMNS:
        assert hasattr(batches._Arrays, f"_make_{batches._snake(column.name)}"), column.name


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_batches_that_are_kept_stay_as_they_are(
    growing_store: Any, read_store: Any, order: str
) -> None:
    """Memory of earlier batches is used again, but only when these are gone."""
    bodies = [bytes([number]) * 200_000 for number in range(20)]
    for body in bodies:
        growing_store.append("T", 0, body)
    rows = read_store(growing_store.root, readOrder=order, batchBytes="512k").rows
    assert [row["value"] for row in rows] == bodies


BATCH = encode_batch([BatchItem(0, b"one", b"TAGS\x01t\x02"), BatchItem(0, b"two", b"")])


@pytest.fixture
def poisoned(growing_store: Any) -> Any:
    """Good and poisonous messages in turns, and an inner batch that is whole."""
    for number, (body, flags) in enumerate(
        (
            (b"no zlib", COMPRESSED),
            (zlib.compress(b"cut off" * 99)[:-5], COMPRESSED),
            (b"no zstd", COMPRESSED | COMPRESSION_ZSTD),
            (b"unknown", COMPRESSED | 0x400),
            (BATCH[:-1], INNER_BATCH | NEED_UNWRAP),
            (b"no zlib", INNER_BATCH | NEED_UNWRAP | COMPRESSED),
        )
    ):
        growing_store.append("T", 0, b"good %d" % number, tags="t")
        growing_store.append("T", 0, body, flags=flags, tags="t")
    growing_store.append("T", 0, zlib.compress(b"packed"), flags=COMPRESSED)
    return growing_store


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_body_that_cannot_be_unpacked_is_a_row_with_a_reason(
    poisoned: Any, read_store: Any, order: str
) -> None:
    rows = read_store(poisoned.root, readOrder=order).rows
    assert [row["offset"] for row in rows] == list(range(13))
    good = [row for row in rows if row["bodyError"] is None]
    bad = [row for row in rows if row["bodyError"] is not None]
    assert [row["value"] for row in good] == [*(b"good %d" % n for n in range(6)), b"packed"]
    assert [row["offset"] for row in bad] == [1, 3, 5, 7, 9, 11]
    assert all(row["value"] == row["storedBody"] for row in bad)
    assert "cut off" in bad[1]["bodyError"]
    assert "0x400" in bad[3]["bodyError"]
    # The reason is found whatever else is wanted, and needs the body of no other column.
    only = read_store(poisoned.root, readOrder=order, columns="offset,bodyError").rows
    assert [r["bodyError"] for r in only] == [r["bodyError"] for r in rows]
    tagged = read_store(poisoned.root, readOrder=order, filter__tag="t").rows
    assert len(tagged) == 12


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_bad_bodies_are_left_out_or_an_error_on_request(
    poisoned: Any, read_store: Any, order: str
) -> None:
    skipped = read_store(poisoned.root, readOrder=order, badBodies="skip")
    assert [row["offset"] for row in skipped.rows] == [0, 2, 4, 6, 8, 10, 12]
    assert skipped.lost == []
    with pytest.raises(RecordError, match=r"offset 1\): .*badBodies=row"):
        read_store(poisoned.root, readOrder=order, badBodies="fail")


@pytest.fixture
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow allocates."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


@pytest.mark.parametrize("columns", ["value,key,offset", "*"])
def test_a_long_inner_batch_costs_each_of_its_messages_once(
    growing_store: Any,
    read_store: Any,
    monkeypatch: pytest.MonkeyPatch,
    arrow_memory: pa.MemoryPool,
    columns: str,
) -> None:
    """All of its body for each is 25 MB here; of 1,500 it would be more than an array may have."""
    items = [BatchItem(0, b"%04d" % n * 256, b"KEYS\x01k%d\x02" % n) for n in range(150)]
    growing_store.append("T", 0, encode_batch(items), flags=INNER_BATCH | NEED_UNWRAP)
    growing_store.append("T", 0, b"behind", keys="k")
    sizes = []
    plain = batches.BatchMaker._batch

    def noted(maker: Any, *args: Any) -> pa.RecordBatch:
        made = plain(maker, *args)
        sizes.append((made.nbytes, arrow_memory.max_memory()))
        return made

    monkeypatch.setattr(batches.BatchMaker, "_batch", noted)
    monkeypatch.setattr(batches, "UNPACKED_BYTES_MAX", 2 << 20)
    rows = read_store(growing_store.root, columns=columns).rows
    assert [row["value"] for row in rows] == [*(item.body for item in items), b"behind"]
    assert [row["key"] for row in rows] == [*(b"k%d" % n for n in range(150)), b"k"]
    assert max(size for size, _ in sizes) < 4 << 20
    if columns != "*":  # which asks for the stored body with each message
        assert max(memory for _, memory in sizes) < 4 << 20


def test_an_inner_batch_that_does_not_parse_belongs_to_one_range(
    growing_store: Any, read_store: Any
) -> None:
    growing_store.append("T", 0, BATCH[:-1], flags=INNER_BATCH | NEED_UNWRAP)
    growing_store.append("T", 0, b"behind")
    for order in ("queue", "commitlog"):
        for start, count in ((0, 2), (1, 1)):
            read = read_store(
                growing_store.root,
                readOrder=order,
                subscribe="T",
                startingOffsets=f'{{"T":{{"broker-g":{{"0":{start}}}}}}}',
            )
            assert len(read.rows) == count


def test_an_export_puts_what_cannot_be_unpacked_into_quarantine(
    poisoned: Any, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    import pyarrow.parquet as pq

    from oberth.spark.pipelines.export.exporter import export
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.tasks import InProcess

    for number, settings in enumerate(
        (ExportSettings("parquet"), ExportSettings("parquet", columns="key,offset"))
    ):
        into = tmp_path / f"lake-{number}"
        report = export(InProcess(), str(poisoned.root), str(into), settings)
        # Without the value only inner batches are opened, but the quarantine asks for the reason.
        assert (report.rows, report.quarantined) == (7, 6)
        wrong = [
            row
            for path in into.rglob("*.parquet")
            if "quarantine" in str(path)
            for row in pq.read_table(path).to_pylist()
        ]
        assert sorted(row["offset"] for row in wrong) == [1, 3, 5, 7, 9, 11]
        assert all(row["reason"] for row in wrong)
    exact = tmp_path / "exact"
    report = export(
        InProcess(), str(poisoned.root), str(exact), ExportSettings("parquet", exact=True)
    )
    assert (report.rows, report.quarantined) == (13, 0)
    from oberth.spark.pipelines.import_store import import_store

    import_store(InProcess(), str(exact), str(tmp_path / "store"))
    before, after = (
        next((root / "commitlog").iterdir()).read_bytes().rstrip(b"\0")
        for root in (poisoned.root, tmp_path / "store")
    )
    assert before == after


@pytest.mark.parametrize(
    "impossible", [2**62, 2**52, -(2**62), TIME_MAX_MS + 1, TIME_MIN_MS - 1], ids=str
)
def test_a_time_that_no_calendar_has_is_null(
    growing_store: Any, read_store: Any, impossible: int
) -> None:
    """Damage, or what a client made up: neither Spark nor Python could show it."""
    growing_store.append("T", 0, b"a", time=impossible)
    growing_store.append("T", 0, b"b", time=-5)
    rows = read_store(growing_store.root, columns="timestamp").rows
    assert rows == [
        {"timestamp": None},
        {"timestamp": datetime(1969, 12, 31, 23, 59, 59, 995_000, UTC)},
    ]


def test_the_first_and_the_last_time_are_datetimes_in_every_zone() -> None:
    for edge in (TIME_MIN_MS, TIME_MAX_MS):
        for hours in (-23, 23):
            here = moment(edge)
            assert here is not None
            here.astimezone(timezone(timedelta(hours=hours)))
    assert moment(TIME_MAX_MS + 1) is moment(TIME_MIN_MS - 1) is None
