"""Dispatch in bulk gives the files of dispatch record by record, for golden and for odd logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples

from oberth.errors import StoreFullError
from oberth.formats.message import MAGIC_V1, DispatchRequest, MessageExt, read_dispatch_request
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.properties import encode_properties
from oberth.kernels.queues import QueueEnd
from oberth.store import bulk_dispatch
from oberth.store.bulk_dispatch import BulkDispatch
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.store_checkpoint import StoreCheckpoint

Golden = Callable[[str], Any]
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class Store:
    """Queues and index under a root of their own."""

    def __init__(self, root: Path, files: OsFileSystem | None = None, **options: str) -> None:
        self.root = root
        self.config = MessageStoreConfig.from_properties(
            {
                "mappedFileSizeConsumeQueue": "400",
                "mapperFileSizeBatchConsumeQueue": "460",
                "maxHashSlotNum": "50",
                "maxIndexNum": "70",
                **options,
                "storePathRootDir": str(root),
            }
        )
        files = files or OsFileSystem()
        self.attributes = {"InnerBatch": {"queue.type": "BatchCQ"}}
        self.queues = ConsumeQueueStore(
            files, self.config, topic_attributes=lambda t: self.attributes.get(t, {})
        )
        self.index = IndexService(files, self.config)
        self.checkpoint = StoreCheckpoint(files, str(root / "checkpoint"))
        self.dispatcher = CommitLogDispatcher(self.config, self.queues, self.index, self.checkpoint)

    def one_by_one(self, data: bytes, base: int, start: int, stop: int) -> int:
        while start < stop:
            request = read_dispatch_request(
                data, start, stop, base, delays_ms=self.dispatcher._delays_ms
            )
            if not isinstance(request, DispatchRequest):
                break
            self.dispatcher.dispatch(request)
            start += request.record_size
        return start

    def in_bulk(self, data: bytes, base: int, start: int, stop: int) -> int:
        reached = self.dispatcher.dispatch_segment(memoryview(data), base, start, stop)
        return start if reached is None else reached.position

    def files(self) -> dict[str, bytes]:
        self.dispatcher.end_burst()
        self.queues.flush()
        found = {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for folder in ("consumequeue", "batchconsumequeue")
            for path in (self.root / folder).rglob("*")
            if path.is_file()
        }
        index = self.root / "index"
        for number, path in enumerate(sorted(index.iterdir()) if index.is_dir() else []):
            found[f"index-{number}"] = path.read_bytes()
        return found

    def state(self) -> Any:
        return (
            self.files(),
            self.queues.snapshot(),
            self.checkpoint.values,
            self.index.indexed_offset,
            self.index.total_entries,
        )

    def close(self) -> None:
        self.queues.close()
        self.index.close()


@pytest.mark.parametrize(
    "golden_name",
    ["basic-5.5.0", "basic-4.9.7", "lmq-5.5.0", "innerbatch-5.5.0", "delay-after-5.5.0",
     "batch-4.9.7", "longtopic-5.5.0", "cleaned-5.5.0"],
)  # fmt: skip
def test_golden_logs(golden_name: str, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine(golden_name)
    line = "4.9" if golden_name.endswith("4.9.7") else "5.x"
    options = {**store.config, "rocketmqLine": line, "maxIndexNum": "150"}
    single, bulk = Store(tmp_path / "a", None, **options), Store(tmp_path / "b", None, **options)
    end = store.facts["commitLog"]["maxOffset"]
    for path in sorted((store.root / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        stop = min(len(data), end - base)
        reached = single.one_by_one(data, base, 0, stop)
        assert bulk.in_bulk(data, base, 0, stop) == reached, "nothing had to be done singly"
    assert bulk.state() == single.state()
    for at in (single, bulk):
        at.close()


def record(offset: int, topic: str, queue_id: int, queue_offset: int, **more: Any) -> bytes:
    properties = encode_properties(more.get("properties", {}))
    message = MessageExt(
        topic, queue_id, queue_offset, offset, 0, MAGIC_V1, 0, 0, more.get("sys_flag", 0),
        1000, HOST, 1_700_000_000_000 + offset, HOST, 0, 0, b"", properties,
    )  # fmt: skip
    message.record_size = 91 + len(topic.encode()) + len(properties)
    return message.encode()


keys = st.sampled_from([None, "k1", "k1 k2", "  a  b ", "Ключ", "x" * 40, "AaAa BBBB"])
numbers = st.sampled_from([0] * 12 + [1, 2, -1, -2, 7, -30, 1 << 40, -(1 << 33)])
steps = st.lists(
    st.tuples(
        st.sampled_from(["T", "other", "InnerBatch", "bad/name"]),
        st.integers(0, 2),
        numbers,
        st.sampled_from([0, 0, 0, 4, 8, 12]),
        keys,
        st.sampled_from([None, "TagA", "polygenelubricants"]),
        st.sampled_from([None, "%LMQ%a,%LMQ%b", "%LMQ%a"]),
    ),
    max_size=60,
)


def log_of(rows: list[tuple[Any, ...]]) -> tuple[bytes, list[int]]:
    """A log in which a record's number is off by what a row says; and where records start."""
    ends: dict[tuple[str, int], int] = {}
    out = bytearray()
    starts = []
    for topic, queue_id, off, transaction, key, tags, light in rows:
        properties: dict[str, str | None] = {"UNIQ_KEY": f"{len(out):032X}"}
        properties |= {"KEYS": key, "TAGS": tags}
        queued = transaction in (0, 8)
        if light and queued:
            names = light.split(",")
            offsets = [ends.get((name, 0), 0) for name in names]
            for name, number in zip(names, offsets, strict=True):
                ends[name, 0] = number + 1
            properties["INNER_MULTI_DISPATCH"] = light
            properties["INNER_MULTI_QUEUE_OFFSET"] = ",".join(map(str, offsets))
        number = ends.get((topic, queue_id), 0) if queued else 0
        if queued:
            ends[topic, queue_id] = number + 1
        starts.append(len(out))
        out += record(
            len(out), topic, queue_id, number + off, sys_flag=transaction, properties=properties
        )
    return bytes(out), starts


@settings(
    max_examples=examples(
        "tests/store/test_bulk_dispatch.py::test_any_mixture_of_both_equals_one_by_one"
    )
)
@given(rows=steps, splits=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=8))
def test_any_mixture_of_both_equals_one_by_one(
    rows: list[tuple[Any, ...]], splits: list[tuple[int, bool]]
) -> None:
    data, starts = log_of(rows)
    root = Path(tempfile.mkdtemp())
    options = {"enableLmq": "true", "enableMultiDispatch": "true"}
    try:
        single, mixed = Store(root / "a", None, **options), Store(root / "b", None, **options)
        single.one_by_one(data, 0, 0, len(data))
        position = 0
        for row, bulk in (*sorted(splits), (len(starts), True)):
            stop = starts[row] if row < len(starts) else len(data)
            while position < stop:
                before = position
                if bulk:
                    position = mixed.in_bulk(data, 0, position, stop)
                if position == before:
                    # What the kernels leave, as the reput does: by itself, then in bulk again.
                    following = next((s for s in starts if s > position), len(data))
                    position = mixed.one_by_one(data, 0, position, following)
        assert mixed.state() == single.state()
        for at in (single, mixed):
            at.close()
    finally:
        shutil.rmtree(root)


@given(rows=steps, again=st.integers(0, 60))
@settings(max_examples=50)
def test_bulk_again_changes_nothing(rows: list[tuple[Any, ...]], again: int) -> None:
    data, starts = log_of([(*row[:2], 0, *row[3:]) for row in rows])
    root = Path(tempfile.mkdtemp())
    try:
        store = Store(root)
        store.in_bulk(data, 0, 0, len(data))
        before = store.state()
        start = starts[again] if again < len(starts) else 0
        store.in_bulk(data, 0, start, len(data))
        assert store.state() == before
        store.close()
    finally:
        shutil.rmtree(root)


class FullAt(OsFileSystem):
    """Refuses the nth write or reservation, once."""

    def __init__(self, number: int) -> None:
        self.left = number

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoreFullError("full")

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> Any:
        file = super().open(path, create=create, writable=writable)
        outer = self

        class File:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, data: Any, position: int) -> None:
                outer.count()
                file.write(data, position)

        return File()

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Any:
        mapping = super().map(path, size, create=create, writable=writable)
        outer = self

        class Mapping:
            def __getattr__(self, name: str) -> Any:
                return getattr(mapping, name)

            def allocate(self, position: int, end: int) -> None:
                outer.count()
                mapping.allocate(position, end)

        return Mapping()


@pytest.mark.parametrize("number", range(1, 24))
@pytest.mark.parametrize("bulk", [True, False])
def test_a_full_disk_costs_nothing(number: int, bulk: bool, tmp_path: Path) -> None:
    rows = [
        (("T", "other")[n % 2], n % 3, 0, 0, f"key{n} k{n % 7}", "TagA", None) for n in range(200)
    ]
    data, _ = log_of(rows)
    expected = Store(tmp_path / "a")
    expected.one_by_one(data, 0, 0, len(data))
    store = Store(tmp_path / "b", FullAt(number))
    position = failures = 0
    while position < len(data):
        try:
            if bulk:
                position = store.in_bulk(data, 0, position, len(data))
            else:
                size = int.from_bytes(data[position : position + 4], "big")
                position = store.one_by_one(data, 0, position, position + size)
            store.queues.write_behind()
        except StoreFullError:
            failures += 1
    assert failures <= 1
    store.queues.write_behind()
    assert store.state() == expected.state()
    for at in (store, expected):
        at.close()


def test_listeners_and_who_prevents_bulk(tmp_path: Path) -> None:
    data, _ = log_of([("T", n % 2, 0, 0, None, None, None) for n in range(10)])
    store = Store(tmp_path)
    dispatcher = store.dispatcher
    dispatcher.arrival_listener = lambda *_: None
    view = memoryview(data)
    assert dispatcher.dispatch_segment(view, 0, 0, len(data)) is None
    arrived: list[tuple[str, int, int]] = []
    dispatcher.bulk_arrival_listener = lambda *arrival: arrived.append(arrival)
    reached = dispatcher.dispatch_segment(view, 0, 0, len(data) - 1)
    assert reached is not None
    size = len(data) // 10
    assert reached == (size * 9, size * 8, 1_700_000_000_000 + size * 8)
    assert sorted(arrived) == [("T", 0, 5), ("T", 1, 4)]
    dispatcher.add_before(lambda _request: None)
    assert dispatcher.dispatch_segment(view, 0, reached.position, len(data)) is None
    store.close()


def test_queues_that_no_record_names_are_not_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make topics, and with very many queues the kernels' table begins anew."""
    monkeypatch.setattr(bulk_dispatch, "KNOWN_QUEUES_MAX", 10)
    asked: list[tuple[bytes, int]] = []
    end_of = BulkDispatch._end_of

    def counted(self: BulkDispatch, topic: bytes, queue_id: int) -> QueueEnd | None:
        asked.append((topic, queue_id))
        return end_of(self, topic, queue_id)

    monkeypatch.setattr(BulkDispatch, "_end_of", counted)
    made = [(f"T{n}", 0, 0, 0, None, None, None) for n in range(60)]
    data, starts = log_of([*made, *made[:3], *made[3:5], *made[5:8]])
    single, bulk = Store(tmp_path / "a"), Store(tmp_path / "b")
    single.one_by_one(data, 0, 0, len(data))
    position = 0
    for stop, allowed in ((starts[60], 60), (starts[63], 3), (starts[65], 2)):
        asked.clear()
        position = bulk.in_bulk(data, 0, position, stop)
        assert position == stop
        assert len(asked) <= allowed
    for each in (single, bulk):
        each.queues.destroy_queue("T40", 0)
    asked.clear()
    assert bulk.in_bulk(data, 0, position, len(data)) == len(data)
    assert len(asked) <= 3
    assert bulk.files() == single.files()
    for at in (single, bulk):
        at.close()


def test_a_topic_that_becomes_one_of_batch_queues(tmp_path: Path) -> None:
    """A slave hears of a topic's kind after the first messages: the queue there is stays simple."""
    rows = [("B", queue_id, 0, 0, None, None, None) for queue_id in (0,) * 5 + (1,) * 2000]
    rows += [("B", 0, 0, 0, None, None, None)] * 50
    data, starts = log_of(rows)
    single, bulk = Store(tmp_path / "a"), Store(tmp_path / "b")
    single.one_by_one(data, 0, 0, starts[5])
    assert bulk.in_bulk(data, 0, 0, starts[5]) == starts[5]
    for store in (single, bulk):
        store.attributes["B"] = {"queue.type": "BatchCQ"}
        store.one_by_one(data, 0, starts[5], starts[6])
    single.one_by_one(data, 0, starts[6], len(data))
    position = starts[6]
    while position < len(data):
        before = position
        position = bulk.in_bulk(data, 0, position, len(data))
        if position == before:
            following = next((s for s in starts if s > position), len(data))
            position = bulk.one_by_one(data, 0, position, following)
    assert bulk.state() == single.state()
    for at in (single, bulk):
        at.close()
