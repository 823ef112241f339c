"""Arrow arrays made of positions and sizes equal those made one by one, for any bytes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oberth.spark import batches
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
