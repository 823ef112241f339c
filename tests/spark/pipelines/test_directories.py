"""Directories of partitions: no reader takes one value for another, and files say the rest."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oberth.spark.pipelines.export.directories import (
    NULL_VALUE,
    QUOTED_MAX,
    cut_between_characters,
    directory_of,
    partition_metadata,
    values_of,
    whole_values,
)

VALUES = st.one_of(
    st.none(), st.just(""), st.just(NULL_VALUE), st.text(max_size=8),
    st.text(min_size=20, max_size=300),
)  # fmt: skip


@example("a" * QUOTED_MAX, "a" * (QUOTED_MAX + 1))
@example("", NULL_VALUE)
@given(VALUES, VALUES)
def test_a_file_says_what_its_directories_do_not(first: str | None, second: str | None) -> None:
    partition = [("tags", first), ("key", second)]
    names = [directory_of(*each) for each in partition]
    for name in names:
        assert len(name) <= 5 + QUOTED_MAX
        assert cut_between_characters(name) == name
        unquote(name, errors="strict")
    said = values_of(f"{'/'.join(names)}/part.parquet")
    metadata = partition_metadata(partition)
    assert whole_values(said, metadata) == dict(partition)
    if not metadata:
        assert said == dict(partition)
        assert whole_values(said, None) == said
    assert (names[0][5:] == names[1][4:]) == (first == second)


@pytest.mark.parametrize("value", ["", NULL_VALUE, "订" * 30, "x" * 300, "NULL", "null", " ", "."])
def test_no_engine_takes_a_value_for_null(tmp_path: Path, value: str) -> None:
    for each in (value, "a"):
        (tmp_path / directory_of("tags", each)).mkdir()
        path = tmp_path / directory_of("tags", each) / "part.parquet"
        pq.write_table(pa.table({"n": [1]}), path)
    expected = {"a", unquote(directory_of("", value)[1:])}
    assert set(pq.read_table(tmp_path).column("tags").to_pylist()) == expected
    query = f"select tags from read_parquet('{tmp_path}/*/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(query)
    assert found is not None
    assert {row[0] for row in found.fetchall()} == expected


@given(st.text(min_size=1, max_size=300), st.integers(0, 2))
def test_what_older_exports_cut_anywhere_is_called_as_now(text: str, more: int) -> None:
    value = "a" * more + text * 201
    former = f"tags={quote(value, safe='')[:150]}{directory_of('', value)[-17:]}"
    assert cut_between_characters(former) == directory_of("tags", value)


@pytest.mark.parametrize("name", ["A", "day=2024-05-17", f"tags={NULL_VALUE}", f"k={'%' * 40}"])
def test_other_names_stay(name: str) -> None:
    assert cut_between_characters(name) == name
