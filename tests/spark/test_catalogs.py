"""Exports into an Iceberg REST catalog: Iceberg's own server, from Maven, on loopback.

Rows are compared with the log, and with what PyIceberg and DuckDB find through the catalog.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import duckdb
import pyspark
from pyiceberg.catalog import load_catalog
from tests.rigs import peers
from tests.rigs.killed_exports import killed_everywhere

from oberth.errors import OptionError, PeerUnavailableError
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export.compaction import expire
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader

ICEBERG_VERSION = "1.10.0"
SOURCE = peers.checkout() / "benchmarks" / "peers" / "iceberg" / "RestCatalog.java"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a REST catalog."""
    try:
        java = peers.tool("java", "runs Iceberg's REST catalog")
        jars = peers.jars(ICEBERG_VERSION, "iceberg")
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    hadoop = Path(pyspark.__file__).parent / "jars"
    path = [f"{jars}/*", *map(str, sorted(hadoop.glob("hadoop-client-*.jar")))]
    directory = tmp_path_factory.mktemp("catalog")
    server = subprocess.Popen(
        [java, "-cp", ":".join(path), str(SOURCE), str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        if not port.isdecimal():
            pytest.skip("Iceberg's REST catalog did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stdin.close()
        server.wait(timeout=60)
        server.stdout.close()


def read(root: Path, lake: Path) -> list[bytes]:
    given = {"path": str(root), "lake": str(lake)}
    reader = RocketMQReader(
        parse_read_options(given, streaming=False),
        struct_type(parse_columns("physicalOffset,value")),
    )
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += batch.to_pylist()
    return [row["value"] for row in sorted(rows, key=lambda row: int(row["physicalOffset"]))]


@pytest.mark.interop
@pytest.mark.slow
def test_a_rest_catalog_has_every_row_once_whatever_is_killed(
    catalog: str, growing_store: Any, tmp_path: Path
) -> None:
    settings = ExportSettings("iceberg", partition_by=("tags",), catalog=catalog, namespace="shop")
    root, into = growing_store.root, tmp_path / "lake"
    expected = killed_everywhere(
        growing_store, partial(export, InProcess(), str(root), str(into), settings)
    )
    assert read(root, into) == expected
    assert not (into / "catalog.db").exists()
    # By strangers, who know the catalog alone.
    known = load_catalog("stranger", uri=catalog)
    assert known.list_tables("shop") == [("shop", "odd+20name+25")]
    table = known.load_table("shop.odd+20name+25")
    assert sorted(table.scan().to_arrow().column("value").to_pylist()) == sorted(expected)
    red = table.scan(row_filter="tags = 'red'").to_arrow()
    assert len(red) == sum(value.endswith((b"-0", b"-2")) for value in expected)
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    found = duckdb.execute("select value from read_parquet($files)", {"files": files}).fetchall()
    assert sorted(row[0] for row in found) == sorted(expected)
    assert expire(str(into), 0.0) > 0
    assert read(root, into) == expected
    assert export(InProcess(), str(root), str(into), settings).batches == 0
    # Someone else's table of the same name.
    with pytest.raises(OptionError, match="export into another namespace"):
        export(InProcess(), str(root), str(tmp_path / "other"), settings)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://user:a-secret@127.0.0.1:1/db", "a password or a token"),
        ("postgresql://user@127.0.0.1:1/db?password=a-secret", "a password or a token"),
        ("http://[127.0.0.1", "a password or a token"),
        ("http://127.0.0.1:1", "catalog 'http://127.0.0.1:1'"),
        ("no-such-type", "catalog 'no-such-type'"),
    ],
)
def test_a_refused_catalog_leaves_nothing_behind(
    growing_store: Any, tmp_path: Path, address: str, said: str
) -> None:
    growing_store.append("t", 0, b"1")
    into = tmp_path / "lake"
    with pytest.raises(OptionError, match=said):
        export(
            InProcess(), str(growing_store.root), str(into),
            ExportSettings("iceberg", catalog=address),
        )  # fmt: skip
    for path in into.rglob("*"):
        assert path.is_dir() or b"a-secret" not in path.read_bytes()
    export(InProcess(), str(growing_store.root), str(into), ExportSettings("iceberg"))
    assert read(growing_store.root, into) == [b"1"]
