"""Columns of a frame are checked before anything runs: numbers in the place of text are named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    NullType,
    StringType,
    StructType,
    VarcharType,
)

from oberth.errors import OptionError
from oberth.spark.sink import (
    RocketMQLiveStreamWriter,
    RocketMQLiveWriter,
    RocketMQStreamWriter,
    RocketMQWriter,
)
from oberth.spark.write_options import parse_live_write_options, parse_write_options


def _schema(key: DataType) -> StructType:
    return StructType().add("topic", "string").add("value", "binary").add("key", key)


@pytest.mark.parametrize("key", [StringType(), BinaryType(), VarcharType(9), NullType()])
def test_texts_and_bytes_are_taken(key: DataType, tmp_path: Path) -> None:
    RocketMQWriter(parse_write_options({"path": str(tmp_path / "s")}), _schema(key), False)


def test_a_number_is_named_with_its_cast(tmp_path: Path) -> None:
    files = parse_write_options({"path": str(tmp_path / "s")})
    live = parse_live_write_options({"rocketmq.namesrv.addr": "127.0.0.1:1"})
    schema = _schema(IntegerType())
    said = r"column key is int; wanted is text or bytes: cast\(key as string\)"
    with pytest.raises(OptionError, match=said):
        RocketMQWriter(files, schema, False)
    with pytest.raises(OptionError, match=said):
        RocketMQStreamWriter(files, schema)
    with pytest.raises(OptionError, match=said):
        RocketMQLiveWriter(live, schema, False)
    with pytest.raises(OptionError, match=said):
        RocketMQLiveStreamWriter(live, schema)
