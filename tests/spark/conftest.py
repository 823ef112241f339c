"""One Spark session for all tests that need a JVM, and reading a store without one.

``spark``      the session.
``read_store`` ``read_store(root, [filters], **options)``: rows as a batch query gives them, read by
               the same objects that Spark would call, with the bytes that were read. A dot in an
               option's name is written ``__``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session ``local[2,3]``: two tasks at a time, each tried three times."""
    pytest.importorskip("pyspark")
    from oberth.spark.runtime import build_session, warm_up_kernels

    warm_up_kernels()
    scratch = tmp_path_factory.mktemp("spark")
    # Python workers have the driver's working directory first on their path.
    before = Path.cwd()
    os.chdir(scratch)
    session = build_session(
        "local[2,3]",
        app_name="tests",
        quick=True,
        config={
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch),
            "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        },
    )
    yield session
    session.stop()
    os.chdir(before)


@dataclass(frozen=True)
class Read:
    """Rows of a query without Spark, and what it cost.

    Attributes:
        rows: one dict per row, in order.
        bytes_read: bytes of files that tasks read.
        lost: what was skipped and reported.
        partitions: how many there were.
    """

    rows: list[dict[str, Any]]
    bytes_read: int
    lost: list[str]
    partitions: int


def _read_store(
    root: Path | str, filters: Sequence[Any] = (), *, columns: str = "*", **options: str
) -> Read:
    from oberth.spark.options import parse_read_options
    from oberth.spark.schemas import parse_columns, struct_type
    from oberth.spark.source import RocketMQPartition, RocketMQReader

    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = parse_read_options({"path": str(root), **given}, streaming=False)
    reader = RocketMQReader(parsed, struct_type(parse_columns(columns)))
    if filters:
        reader.accept_filters(list(filters))
    rows: list[dict[str, Any]] = []
    lost: list[str] = []
    read = 0
    partitions = reader.partitions()
    for partition in partitions:
        assert isinstance(partition, RocketMQPartition)
        pieces = reader.piece_reader(partition)
        for batch in pieces.read(partition.pieces):
            batch.validate(full=True)
            rows += batch.to_pylist()
        lost += pieces.report.lost
        read += sum(store.storage.bytes_read for store in partition.stores)
    return Read(rows, read, lost, len(partitions))


@pytest.fixture(scope="session")
def read_store() -> Callable[..., Read]:
    """Reads a store as a batch query would, without a JVM."""
    pytest.importorskip("pyspark")
    return _read_store
