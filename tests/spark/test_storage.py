"""Local files and an S3 server are read by ranges alone, and counted; bad places are refused."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from oberth.errors import NotFoundError, OptionError
from oberth.spark.storage import ArrowStorage, Entry, LocalStorage, storage_for


def test_local_files_are_read_by_position_and_counted(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(range(100)))
    (tmp_path / "a").mkdir()
    storage, root = storage_for(str(tmp_path), {})
    assert storage.entries(root) == [Entry("a", -1), Entry("b", 100)]
    assert storage.entries(f"{root}/none") == []
    assert storage.read(f"{root}/b", 10, 5) == bytes(range(10, 15))
    assert storage.read(f"{root}/b", 98, 5) == bytes([98, 99])
    assert storage.bytes_read == 7
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.bytes_read == 0
    assert copy.read(f"{root}/b", 0, 2) == b"\0\1"
    with pytest.raises(NotFoundError):
        storage.read(f"{root}/none", 0, 1)


def test_a_view_is_refused_where_the_file_is_shorter(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    storage = LocalStorage()
    assert storage.view(str(path), 101) is None
    view = storage.view(str(path), 100)
    assert view is not None
    assert bytes(view[:3]) == b"xxx"
    del view
    os.truncate(path, 50)
    assert storage.view(str(path), 100) is None
    assert storage.view(str(tmp_path / "none"), 1) is None


def test_a_hole_at_the_end_is_not_data(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 5000)
    os.truncate(path, 10 << 20)
    assert 5000 <= LocalStorage().data_end(str(path), 10 << 20) <= 10 << 20


def test_places_that_are_not_read() -> None:
    with pytest.raises(OptionError, match="allowed are local paths"):
        storage_for("ftp://host/x", {})
    with pytest.raises(OptionError, match="wildcards are for local paths"):
        ArrowStorage("s3", {}).expand("s3://bucket/*")
    assert storage_for("s3a://bucket/store/", {})[1] == "s3://bucket/store"
    assert storage_for("file:///tmp/x", {})[1] == "/tmp/x"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """A real S3 server process on loopback."""
    pytest.importorskip("moto")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/moto-api/", timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    pytest.skip("the S3 server did not start")
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture(scope="module")
def store_in_s3(s3_server: str, golden_pristine: Callable[[str], Any]) -> int:
    """The store client-5.5.0 at s3://stores/one; how many bytes its files have."""
    from pyarrow import fs

    root = golden_pristine("client-5.5.0").root
    system = fs.S3FileSystem(
        access_key="a",
        secret_key="b",
        region="us-east-1",
        scheme="http",
        endpoint_override=s3_server.removeprefix("http://"),
        allow_bucket_creation=True,
    )
    system.create_dir("stores")
    total = 0
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            total += len(data)
            with system.open_output_stream(f"stores/one/{path.relative_to(root)}") as out:
                out.write(data)
    return total


def test_a_store_in_s3_reads_like_one_on_disk(
    s3_server: str, store_in_s3: int, golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    root = golden_pristine("client-5.5.0").root
    options = {
        "storage__endpoint": s3_server,
        "storage__accessKey": "a",
        "storage__secretKey": "b",
        "storage__region": "us-east-1",
        "brokerName": "b",
    }
    for order in ("queue", "commitlog"):
        local = read_store(root, readOrder=order, brokerName="b")
        remote = read_store("s3://stores/one", readOrder=order, **options)
        assert remote.rows == local.rows
        assert remote.bytes_read < store_in_s3 / 2


def test_a_store_in_s3_is_exported(
    s3_server: str, store_in_s3: int, golden_pristine: Callable[[str], Any], tmp_path: Path
) -> None:
    from oberth.spark.pipelines.export.exporter import export
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.import_store import import_store
    from oberth.spark.pipelines.tasks import InProcess

    options = {
        "storage.endpoint": s3_server,
        "storage.accessKey": "a",
        "storage.secretKey": "b",
        "storage.region": "us-east-1",
    }
    out = str(tmp_path / "out")
    settings = ExportSettings(exact=True)
    report = export(InProcess(), "s3://stores/one", out, settings, options=options)
    assert report.rows > 0
    import_store(InProcess(), out, str(tmp_path / "again"))
    before = sorted((golden_pristine("client-5.5.0").root / "commitlog").iterdir())[0].read_bytes()
    after = sorted((tmp_path / "again" / "commitlog").iterdir())[0].read_bytes()
    assert after == before
