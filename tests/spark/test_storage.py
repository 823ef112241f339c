"""Local files and object stores are read by ranges alone, and counted; bad places are refused.

Exports into S3 are whole, and read by strangers, whatever step they are killed at.

S3 is a server process of its own. The protocols of Google's storage and of HDFS are answered by a
few lines here, so that what the real client libraries ask for can be counted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyarrow import dataset
from tests.rigs.killed_exports import killed_everywhere
from tests.rigs.killed_upkeep import kept_up_until_killed

from oberth.errors import NotFoundError, OptionError
from oberth.spark.options import parse_read_options
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.segments import Segment
from oberth.spark.source import RocketMQReader
from oberth.spark.storage import AHEAD_MAX, ArrowStorage, Entry, LocalStorage, storage_for
from oberth.spark.store_files import StoreFiles


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


def test_queues_in_s3_are_read_side_by_side(
    s3_server: str, store_in_s3: int, growing_store: Any, read_store: Any
) -> None:
    """Each alone would fetch what lies between its messages, or each of them by a request."""
    from pyarrow import fs

    for number in range(1500):
        growing_store.append("t", number % 5, bytes(900))
    system = fs.S3FileSystem(
        access_key="a",
        secret_key="b",
        region="us-east-1",
        scheme="http",
        endpoint_override=s3_server.removeprefix("http://"),
    )
    fs.copy_files(str(growing_store.root), "stores/many", destination_filesystem=system)
    options = {
        "storage__endpoint": s3_server,
        "storage__accessKey": "a",
        "storage__secretKey": "b",
        "storage__region": "us-east-1",
        "brokerName": "b",
        "targetPartitionBytes": "500k",
        "batchBytes": "64k",
    }
    local = read_store(growing_store.root, brokerName="b").rows
    remote = read_store("s3://stores/many", **options)
    assert sorted(remote.rows, key=lambda row: (row["partition"], row["offset"])) == local
    assert remote.bytes_read < 1500 * 1000 * 1.5


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


def _in_s3(server: str) -> dict[str, str]:
    return {
        "storage.endpoint": server, "storage.accessKey": "a", "storage.secretKey": "b",
        "storage.region": "us-east-1",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_an_export_into_s3_is_killed_at_every_step(
    s3_server: str, store_in_s3: int, growing_store: Any, form: str
) -> None:
    from pyarrow import fs

    from oberth.spark.pipelines.export.exporter import export
    from oberth.spark.pipelines.export.places import ObjectPlace
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.tasks import InProcess

    assert store_in_s3  # which made the bucket
    options = _in_s3(s3_server)
    into = f"s3://stores/lake-{form}"
    root = str(growing_store.root)
    settings = ExportSettings(form, partition_by=("tags",))
    expected = killed_everywhere(
        growing_store, partial(export, InProcess(), root, into, settings, options=options)
    )

    def read(lake: str) -> list[bytes]:
        given = {"path": root, "lake": lake, **options}
        reader = RocketMQReader(
            parse_read_options(given, streaming=False), struct_type(parse_columns("offset,value"))
        )
        rows: list[dict[str, Any]] = []
        for partition in reader.partitions():
            for batch in reader.read(pickle.loads(pickle.dumps(partition))):
                rows += batch.to_pylist()
        return [row["value"] for row in sorted(rows, key=lambda row: int(row["offset"]))]

    assert read(into) == expected
    place = ObjectPlace(into, "s3", {n.removeprefix("storage."): v for n, v in options.items()})
    system, bare = place.arrow(f"{into}/odd+20name+25")
    if form == "delta":
        from deltalake import DeltaTable

        uri = f"{into}/odd+20name+25"
        table = DeltaTable(uri, storage_options=place.delta_options()).to_pyarrow_table()
        from oberth.spark.pipelines.export.compaction import compact

        storage = {n.removeprefix("storage."): v for n, v in options.items()}
        assert compact(into, 1 << 20, storage) > 0
        assert read(into) == expected
    elif form == "iceberg":
        table = _read_iceberg(s3_server, into, "odd+20name+25", expected)
        storage = {n.removeprefix("storage."): v for n, v in options.items()}
        kills = 0
        while not kept_up_until_killed(into, kills, storage):
            kills += 3  # every step is tried in a local directory
            assert read(into) == expected
        assert kills > 6
        assert read(into) == expected
        table = _read_iceberg(s3_server, into, "odd+20name+25", expected)
        found = system.get_file_info(fs.FileSelector(bare))
        assert len([each for each in found if each.path.endswith(".parquet")]) == 2
        # Publishing takes the version that counts, and any that is named.
        from oberth.spark.pipelines.backfill import open_table

        one = f"{into}/odd+20name+25"
        version, files = open_table(one, "", storage)[1:]
        assert sum(place.size(file.path) > 0 for file in files) == 2
        assert open_table(one, version, storage)[1:] == (version, files)
    else:
        table = dataset.dataset(bare, filesystem=system, partitioning="hive").to_table()
    assert sorted(table.column("value").to_pylist()) == sorted(expected)
    # What was staged, and what lost attempts left, is gone.
    every = system.get_file_info(fs.FileSelector(f"stores/lake-{form}", recursive=True))
    names = [each.path for each in every if each.is_file]
    assert not [name for name in names if "stag" in name]
    assert not os.path.exists("s3:")


def test_partitions_of_a_delta_table_in_s3_are_joined_as_far_as_keys_reach(
    s3_server: str, store_in_s3: int, growing_store: Any
) -> None:
    """No name in a key is too long, the whole key can be; this server does not mind."""
    from deltalake import DeltaTable

    from oberth.spark.pipelines.export.compaction import compact
    from oberth.spark.pipelines.export.exporter import export
    from oberth.spark.pipelines.export.places import ObjectPlace
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.tasks import InProcess

    assert store_in_s3  # which made the bucket
    options, into = _in_s3(s3_server), "s3://stores/long"
    storage = {n.removeprefix("storage."): v for n, v in options.items()}
    settings = ExportSettings("delta", partition_by=("tags", "key"))
    for _ in range(2):
        for tag in ("订" * 30, "x" * 500):
            growing_store.append("A", 0, b"x", tags=tag, keys="k")
        export(InProcess(), str(growing_store.root), into, settings, options=options)
    assert compact(into, 1 << 20, storage) == 2
    place = ObjectPlace(into, "s3", storage)
    table = DeltaTable(f"{into}/A", storage_options=place.delta_options())
    sizes = [len(each.partition("s3://stores/")[2]) for each in table.file_uris()]
    assert len(sizes) == 3
    assert 255 < max(sizes) < 1024
    assert table.to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize(
    ("root", "columns", "room"),
    [("/" + "a" * 900, 3, 255), ("s3://b/lake/A", 1, 936), ("s3://b/lake/A", 2, 467)],
)
def test_how_long_a_name_delta_may_make(root: str, columns: int, room: int) -> None:
    from oberth.spark.pipelines.export.compaction import _room
    from oberth.spark.pipelines.export.places import place_of

    assert _room(place_of(root, {}, "into"), root, columns) == room
    if "://" in root:
        directories = ("t" * room + "/") * columns
        key = "lake/A/" + directories + "f" * 80
        assert 1024 - columns < len(key) <= 1024


def _read_iceberg(server: str, into: str, name: str, expected: list[bytes]) -> Any:
    """A table that has no catalog, as PyIceberg and DuckDB find it by its place."""
    import duckdb
    from pyiceberg.table import StaticTable

    place = f"{into}/{name}"
    properties = {
        "s3.endpoint": server, "s3.access-key-id": "a", "s3.secret-access-key": "b",
        "s3.region": "us-east-1", "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }  # fmt: skip
    table = StaticTable.from_metadata(place, properties)  # by version-hint.text
    assert [each.name for each in table.spec().fields] == ["tags"]
    with duckdb.connect() as duck:
        try:
            duck.execute("install httpfs; load httpfs; install iceberg; load iceberg")
        except duckdb.Error:
            pass  # extensions are fetched, and may not be reachable
        else:
            duck.execute(
                f"create secret (type s3, key_id 'a', secret 'b', region 'us-east-1', endpoint "
                f"'{server.removeprefix('http://')}', url_style 'path', use_ssl false)"
            )
            found = duck.execute(f"select value from iceberg_scan('{place}')").fetchall()
            assert sorted(row[0] for row in found) == sorted(expected)
    return table.scan().to_arrow()


class _Server(ThreadingHTTPServer):
    """A store's files as Google Cloud Storage and as HDFS's name node offer them over HTTP.

    ``/counts`` tells the bytes of file contents that were asked for by ranges, and the names of
    files that were asked for without a range. Runs in a process of its own: Google's library holds
    the interpreter's lock while it waits.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.sent = 0
        self.whole: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    def below(self, prefix: str) -> tuple[list[str], list[str]]:
        """Names of files and of directories right below a prefix that ends with a slash."""
        rests = [name.removeprefix(prefix) for name in self.files if name.startswith(prefix)]
        return (
            sorted(rest for rest in rests if "/" not in rest),
            sorted({rest.partition("/")[0] for rest in rests if "/" in rest}),
        )


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, code: int, value: Any) -> None:
        self._answer(code, json.dumps(value).encode(), content_type="application/json")

    def do_GET(self) -> None:
        """Either protocol."""
        url = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        if url.path == "/counts":
            self._json(200, [self.server.sent, self.server.whole])
        elif url.path.startswith("/webhdfs/v1/"):
            self._webhdfs(urllib.parse.unquote(url.path.removeprefix("/webhdfs/v1/")), query)
        elif url.path == "/storage/v1/b/stores/o":
            # A listing with a delimiter would also have "prefixes"; pyarrow does not ask for them.
            prefix = query.get("prefix", "")
            items = [self._object(name) for name in self.server.files if name.startswith(prefix)]
            if "delimiter" in query:
                items = [each for each in items if "/" not in each["name"][len(prefix) :]]
            self._json(200, {"kind": "storage#objects", "items": items})
        else:
            self._google_object(url.path, query)

    def _object(self, name: str) -> dict[str, Any]:
        size = str(len(self.server.files[name]))
        return {"kind": "storage#object", "name": name, "bucket": "stores", "size": size,
                "generation": "1", "metageneration": "1"}  # fmt: skip

    def _google_object(self, path: str, query: dict[str, str]) -> None:
        name = urllib.parse.unquote(path.removeprefix("/storage/v1/b/stores/o/"))
        name = name.removeprefix("/stores/")
        data = self.server.files.get(name)
        if data is None:
            self._json(404, {"error": {"code": 404, "message": "no such object"}})
        elif "storage/v1" in path and query.get("alt") != "media":
            self._json(200, self._object(name))
        else:
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
            if asked is None:
                self.server.whole.append(name)
                self._answer(200, data, x_goog_generation="1")
                return
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            self.server.sent += last + 1 - first
            where = f"bytes {first}-{last}/{len(data)}"
            self._answer(206, data[first : last + 1], content_range=where, x_goog_generation="1")

    def _webhdfs(self, path: str, query: dict[str, str]) -> None:
        path = path.strip("/")
        names, directories = self.server.below(f"{path}/")
        data = self.server.files.get(path)
        if data is None and not names and not directories:
            self._json(404, {"RemoteException": {
                "exception": "FileNotFoundException", "message": path,
                "javaClassName": "java.io.FileNotFoundException"}})  # fmt: skip
        elif query["op"].upper() == "LISTSTATUS":
            found = [(name, "FILE", len(self.server.files[f"{path}/{name}"])) for name in names]
            found += [(name, "DIRECTORY", 0) for name in directories]
            listed = [{"pathSuffix": n, "type": kind, "length": size} for n, kind, size in found]
            self._json(200, {"FileStatuses": {"FileStatus": listed}})
        elif query["op"].upper() == "GETFILESTATUS":
            kind = "FILE" if data is not None else "DIRECTORY"
            status = {"pathSuffix": "", "type": kind, "length": len(data or b"")}
            self._json(200, {"FileStatus": status})
        else:
            assert data is not None
            if "length" not in query:
                self.server.whole.append(path)
            first = int(query.get("offset", 0))
            piece = data[first : first + int(query.get("length", len(data)))]
            self.server.sent += len(piece)
            self._answer(200, piece)


@pytest.fixture(scope="module")
def served_store(golden_pristine: Callable[[str], Any]) -> Iterator[str]:
    """The store client-5.5.0 as one/ of a bucket, or of a file system; the server's address."""
    root = golden_pristine("client-5.5.0").root
    files = {
        f"one/{path.relative_to(root)}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }
    with _Server(files) as server:
        process = multiprocessing.get_context("fork").Process(target=server.serve_forever)
        process.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            process.kill()
            process.join()


def _counts(address: str) -> tuple[int, list[str]]:
    with urllib.request.urlopen(f"http://{address}/counts", timeout=60) as answer:
        sent, whole = json.load(answer)
    return sent, whole


@pytest.mark.parametrize("scheme", ["gs", "webhdfs"])
@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_store_behind_http_is_read_by_ranges(
    served_store: str, scheme: str, order: str, golden_pristine: Callable[[str], Any],
    read_store: Any,
) -> None:  # fmt: skip
    where, options = {
        "gs": (
            "gs://stores/one",
            {"storage__endpoint": f"http://{served_store}", "storage__anonymous": "true"},
        ),
        "webhdfs": (f"webhdfs://{served_store}/one", {}),
    }[scheme]
    root = golden_pristine("client-5.5.0").root
    local = read_store(root, readOrder=order, brokerName="b")
    sent, whole = _counts(served_store)
    remote = read_store(where, readOrder=order, brokerName="b", **options)
    assert remote.rows == local.rows
    assert len(local.rows) > 0
    sent_now, whole_now = _counts(served_store)
    asked = whole_now[len(whole) :]
    # Google's library also begins, and drops, one download of each file that is opened.
    assert scheme == "gs" or not asked
    total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert remote.bytes_read <= sent_now - sent < total / 2


def test_a_store_of_another_package_of_fsspec(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    fsspec = pytest.importorskip("fsspec")
    root = golden_pristine("client-5.5.0").root
    memory = fsspec.filesystem("memory")
    memory.put(str(root), "/stores/one", recursive=True)
    try:
        local = read_store(root, brokerName="b")
        remote = read_store("memory://stores/one", brokerName="b")
        assert remote.rows == local.rows
        assert remote.bytes_read < sum(p.stat().st_size for p in root.rglob("*") if p.is_file()) / 2
        storage, where = storage_for("memory://stores/one", {})
        assert isinstance(storage, ArrowStorage)
        with pytest.raises(NotFoundError, match="does not exist"):
            storage.read(f"{where}/none", 0, 1)
        assert storage.entries(f"{where}/none") == []
    finally:
        memory.rm("/stores", recursive=True)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(path: str, needed: str) -> None:
        storage, where = storage_for(path, {})
        with pytest.raises(OptionError, match=needed) as caught:
            storage.entries(where)
        assert len(str(caught.value)) < 500

    from pyarrow import fs

    def no_library(*_: object) -> None:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm) failed\n" * 40)

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=no_library))
    names("hdfs://namenode:8020/store", "Hadoop's libhdfs .* webhdfs://NAMENODE:9870/… needs only")
    fsspec = pytest.importorskip("fsspec")
    fsspec.register_implementation(
        "odd", "not_there.Files", errtxt="Install oddfs to access Odd", clobber=True
    )
    names("odd://bucket/store", "odd:// needs a package that is not installed: Install oddfs")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    names("webhdfs://namenode:9870/store", "needs the Python package fsspec: `pip install fsspec`")


class _Held(ArrowStorage):
    """An object store whose one file is here, and which notes what it is asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__("mock", {})
        self._data = data
        self.asked: list[tuple[int, int]] = []
        self.came = threading.Condition()

    def _file(self, path: str) -> None:
        if path != "there":
            raise NotFoundError(f"file {path} does not exist")

    def _read_at(self, path: str, position: int, size: int) -> memoryview:
        self._file(path)
        with self.came:
            self.asked.append((position, size))
            self.came.notify_all()
        return memoryview(self._data)[position : position + size]

    def wait_for(self, count: int) -> bool:
        with self.came:
            return self.came.wait_for(lambda: len(self.asked) >= count, 60)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_read_ahead_is_what_the_file_has(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("oberth.spark.storage.AHEAD_SIZE", chance.choice((1, 7, 64)))
    data = chance.randbytes(chance.randint(1, 600))
    storage = _Held(data)
    start = chance.randint(0, len(data))
    end = chance.randint(start, len(data) + chance.choice((0, 20)))
    storage.will_read("there", start, end)
    at = start
    while at < end:
        size = chance.randint(1, 150)
        if chance.random() < 0.1:  # somewhere else in between
            place = chance.randint(0, len(data))
            assert storage.read("there", place, size) == data[place : place + size]
        assert storage.read("there", at, size) == data[at : at + size]
        # The next record may begin before the end of what was read.
        at += max(size - chance.randint(0, 20), 1)
    with pytest.raises(NotFoundError):
        storage.read("none", 0, 1)
    storage.close()


def test_requests_for_what_comes_next_are_on_their_way_and_none_goes_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oberth.spark.storage.AHEAD_SIZE", 10)
    storage = _Held(bytes(1000))
    storage.will_read("there", 100, 235)
    assert storage.read("there", 100, 10) == bytes(10)
    assert storage.asked == [(100, 10)]  # it may be all that is wanted
    for number in range(1, AHEAD_MAX):
        assert storage.read("there", 100 + 10 * number, 10) == bytes(10)
    assert storage.wait_for(AHEAD_MAX - 1 + AHEAD_MAX)
    assert storage.read("there", 140, 500) == bytes(500)
    ahead = [each for each in sorted(storage.asked) if each[0] < 235]
    assert ahead == [(at, min(10, 235 - at)) for at in range(100, 235, 10)]
    assert sum(size for _, size in storage.asked) == 540
    storage.will_read("none", 0, 30)
    with pytest.raises(NotFoundError):
        storage.read("none", 0, 10)
    storage.close()


def test_what_lies_on_both_sides_of_a_request_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oberth.spark.storage.AHEAD_SIZE", 10)
    storage = _Held(bytes(range(100)))
    storage.will_read("there", 0, 60)
    for at in (0, 7, 14, 21, 28, 35, 42):  # each begins before the end of the last
        assert storage.read("there", at, 9) == bytes(range(at, at + 9))
    storage.close()
    assert sorted(storage.asked) == [(at, 10) for at in range(0, 60, 10)]


def test_questions_to_an_object_store_wait_at_the_same_time() -> None:
    storage = _Held(b"")
    together = threading.Barrier(3)

    def asked(number: int) -> int:
        together.wait(60)
        if number < 0:
            raise NotFoundError("not there")
        return number

    assert storage.at_once([partial(asked, number) for number in (3, 1, 2)]) == [3, 1, 2]
    with pytest.raises(NotFoundError, match="not there"):
        storage.at_once([partial(asked, number) for number in (1, -1, 2)])
    assert storage.at_once([]) == []
    assert LocalStorage().at_once([lambda: 1, lambda: 2]) == [1, 2]


def test_the_end_of_a_far_log_is_looked_for_in_blocks_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oberth.spark.store_files._TAIL_BLOCK", 1)
    monkeypatch.setattr("oberth.spark.store_files._TAIL_BLOCK_MAX", 4)
    for used in (0, 1, 37, 99, 100):
        storage = _Held(b"x" * used + bytes(100 - used))
        log = StoreFiles(storage, "store", "")
        assert log.written_end(Segment(500, 100, "there")) == 500 + used
        if not used:
            assert sum(size for _, size in storage.asked) == 100
    storage = _Held(bytes(100))
    together = threading.Barrier(8)
    read_at = storage._read_at

    def meet(path: str, position: int, size: int) -> memoryview:
        if 67 <= position < 99:  # eight that are asked for together
            together.wait(60)
        return read_at(path, position, size)

    monkeypatch.setattr(storage, "_read_at", meet)
    assert StoreFiles(storage, "store", "").written_end(Segment(0, 100, "there")) == 0


def test_scattered_places_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = _Held(bytes(range(100)))
    together = threading.Barrier(3)
    read_at = storage._read_at

    def meet(path: str, position: int, size: int) -> memoryview:
        together.wait(60)
        return read_at(path, position, size)

    monkeypatch.setattr(storage, "_read_at", meet)
    places = [(90, bytearray(20)), (0, bytearray(2)), (50, bytearray(1))]
    parts = [(at, memoryview(target)) for at, target in places]
    assert storage.read_each("there", parts) == [10, 2, 1]
    assert [bytes(target) for _, target in places] == [
        bytes(range(90, 100)) + bytes(10), b"\0\1", bytes([50])
    ]  # fmt: skip
    assert storage.read_each("none", parts) == [-1, -1, -1]
    near = LocalStorage()
    assert near.read_each("/none", parts) == [-1, -1, -1]
    storage.close()
