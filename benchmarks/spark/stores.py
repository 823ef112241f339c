"""Stores to read in benchmarks: made by the bulk load, the same for the same seed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOPIC = "load"
TAGS = ("red", "green", "blue", "none of these")
ROWS_PER_BATCH = 10_000


def batches(rows: int, size: int, seed: int) -> Iterator[Any]:
    """Rows as Arrow batches: bodies of random bytes, one key each, four tags."""
    import numpy as np
    import pyarrow as pa

    block = random.Random(seed).randbytes(size + ROWS_PER_BATCH)
    data = np.frombuffer(block, np.uint8)
    for first in range(0, rows, ROWS_PER_BATCH):
        count = min(ROWS_PER_BATCH, rows - first)
        # Each body is the same block from another place on.
        places = np.arange(count)[:, None] + np.arange(size)[None, :]
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        bodies = pa.Array.from_buffers(
            pa.binary(),
            count,
            [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data[places]))],
        )
        numbers = range(first, first + count)
        yield pa.record_batch(
            {
                "value": bodies,
                "key": pa.array([f"k{n}" for n in numbers]),
                "tags": pa.array([TAGS[n % len(TAGS)] for n in numbers]),
                "partition": pa.array([n % 8 for n in numbers], pa.int32()),
            }
        )


def build(root: Path, rows: int, size: int, seed: int) -> int:
    """Builds a store; gives the bytes of its log."""
    from oberth.spark.load import StoreLoader
    from oberth.spark.load_plan import work_directory
    from oberth.spark.sink import stage
    from oberth.spark.write_options import parse_write_options

    shutil.rmtree(root, ignore_errors=True)
    options = parse_write_options({"path": str(root), "topic": TOPIC})
    work = work_directory(str(root), "bench")
    part = stage(batches(rows, size, seed), options, work)
    return StoreLoader(options).commit([part], work).log_end


def touch(root: Path) -> None:
    """Reads a store once, so that its pages are in memory."""
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_blocks:
            with path.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass
