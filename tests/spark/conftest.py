"""One Spark session for all tests that need a JVM, and reading a store without one.

``spark``      the session.
``read_live``  the same over live brokers: ``read_live(namesrv_addr, [filters], **options)``.
``read_store`` ``read_store(root, [filters], **options)``: rows as a batch query gives them, read by
               the same objects that Spark would call, with the bytes that were read. A dot in an
               option's name is written ``__``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
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
    from oberth.spark.runtime import build_session

    scratch = tmp_path_factory.mktemp("spark")
    # Python workers have the JVM's working directory first on their path.
    with contextlib.chdir(scratch):
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
    return _read({"path": str(root)}, filters, columns, options)


def _read(
    where: dict[str, str], filters: Sequence[Any], columns: str, options: dict[str, str]
) -> Read:
    from oberth.spark.options import parse_read_options
    from oberth.spark.partitions import RocketMQPartition
    from oberth.spark.schemas import parse_columns, struct_type
    from oberth.spark.source import RocketMQReader

    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = parse_read_options({**where, **given}, streaming=False)
    reader = RocketMQReader(parsed, struct_type(parse_columns(columns)))
    if filters:
        reader.accept_filters(list(filters))
    rows: list[dict[str, Any]] = []
    lost: list[str] = []
    read = 0
    partitions = reader.partitions()
    for planned in partitions:
        partition = pickle.loads(pickle.dumps(planned))  # as Spark sends it to a task
        assert isinstance(partition, RocketMQPartition)
        pieces = reader.piece_reader(partition)
        for batch in pieces.read(partition.pieces):
            batch.validate(full=True)
            rows += batch.to_pylist()
        lost += pieces.report.lost
        if "path" in where:
            read += sum(store.storage.bytes_read for store in partition.stores.values())
    return Read(rows, read, lost, len(partitions))


@pytest.fixture(scope="session")
def read_store() -> Callable[..., Read]:
    """Reads a store as a batch query would, without a JVM."""
    pytest.importorskip("pyspark")
    return _read_store


def _read_live(
    namesrv: str, filters: Sequence[Any] = (), *, columns: str = "*", **options: str
) -> Read:
    return _read({"rocketmq.namesrv.addr": namesrv}, filters, columns, options)


@pytest.fixture(scope="session")
def read_live() -> Callable[..., Read]:
    """Reads live topics as a batch query would, without a JVM; ``bytes_read`` is 0."""
    pytest.importorskip("pyspark")
    return _read_live


@pytest.fixture
def failed_attempts(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released once for each question or send that failed and is tried again; pauses are short."""
    from oberth.spark.connection import Patience

    failed = threading.Semaphore(0)
    wait = Patience.wait

    async def told(patience: Patience) -> bool:
        patience._pause_s = min(patience._pause_s, 0.05)
        failed.release()
        return await wait(patience)

    monkeypatch.setattr(Patience, "wait", told)
    return failed


class GrowingStore:
    """A store that a test writes to while it is read: records and ConsumeQueue units, no Index."""

    def __init__(
        self, root: Path, *, segment_size: int = 1 << 20, queue_size: int = 20_000
    ) -> None:
        self.root = root
        self._segment_size = segment_size
        self._queue_size = queue_size
        self._log_end = 0
        self._ends: dict[tuple[str, int], int] = {}
        (root / "commitlog").mkdir(parents=True, exist_ok=True)

    def append(
        self,
        topic: str,
        queue: int,
        body: bytes | Callable[[int], bytes],
        *,
        tags: str = "",
        keys: str = "",
        time: int = 1_700_000_000_000,
        dispatch: bool = True,
        flags: int = 0,
        upto: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> int:
        """Adds one message; gives its queue offset.

        Args:
            topic: of the message.
            queue: its number.
            body: the body, or a function that makes it for the CommitLog offset where it begins;
                its size does not depend on that.
            tags: the property TAGS.
            keys: the property KEYS.
            time: when it was stored, ms.
            dispatch: whether it gets a unit.
            flags: the record's sysFlag.
            upto: so many bytes of the record are written; None for all.
            properties: further properties.
        """
        from oberth.formats import message as m
        from oberth.formats.consume_queue import UNIT
        from oberth.formats.java_string import java_hash
        from oberth.formats.properties import encode_properties

        offset = self._ends.get((topic, queue), 0)
        named = {"TAGS": tags or None, "KEYS": keys or None}
        raw = encode_properties({**named, **(properties or {})})
        make = body if callable(body) else None
        body = make(0) if make is not None else body
        assert isinstance(body, bytes)
        size = m.record_size(len(body), len(topic.encode()), len(raw), 0, m.MAGIC_V1)
        rest = self._segment_size - self._log_end % self._segment_size
        if size + m.BLANK_SIZE_MIN > rest:
            self._write("commitlog", self._log_end, m.encode_blank(rest), self._segment_size)
            self._log_end += rest
        if make is not None:
            body = make(self._log_end + m.FIXED_V4.size)
        host = m.encode_host("127.0.0.1", 10911)
        record = m.MessageExt(
            topic, queue, offset, self._log_end, size, m.MAGIC_V1, m.body_crc(body), 0, flags,
            time, host, time, host, 0, 0, body, raw,
        ).encode()  # fmt: skip
        self._write("commitlog", self._log_end, record[:upto], self._segment_size)
        unit = UNIT.pack(self._log_end, size, java_hash(tags) if tags else 0)
        self._log_end += size
        self._ends[topic, queue] = offset + 1
        if dispatch:
            self._write(f"consumequeue/{topic}/{queue}", offset * 20, unit, self._queue_size)
        return offset

    def forget(self, topic: str, queue: int) -> None:
        """The next message of a queue begins it anew, as when its topic was deleted."""
        self._ends.pop((topic, queue), None)

    def skip(self, topic: str, queue: int, count: int) -> None:
        """So many messages of a queue never come."""
        self._ends[topic, queue] = self._ends.get((topic, queue), 0) + count

    def _write(self, directory: str, at: int, data: bytes, file_size: int) -> None:
        start = at // file_size * file_size
        path = self.root / directory / f"{start:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            os.truncate(path, file_size)
        with path.open("r+b") as file:
            file.seek(at - start)
            file.write(data)


@pytest.fixture(scope="session")
def make_store() -> Callable[..., GrowingStore]:
    """Makes an empty store to write to in a directory."""
    return GrowingStore


@pytest.fixture
def growing_store(tmp_path: Path) -> GrowingStore:
    """An empty store to write to."""
    return GrowingStore(tmp_path / "broker-g")


@pytest.fixture
def listed_directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that stores of this machine list, as they do."""
    from oberth.spark.storage import LocalStorage

    listed: list[str] = []
    entries = LocalStorage.entries

    def counted(storage: LocalStorage, directory: str) -> Any:
        listed.append(directory)
        return entries(storage, directory)

    monkeypatch.setattr(LocalStorage, "entries", counted)
    return listed
