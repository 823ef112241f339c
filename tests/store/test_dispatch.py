"""A golden log dispatched anew gives RocketMQ's own queue and index files, byte for byte."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.delay_level import parse_delay_levels
from oberth.formats.message import Blank, DispatchRequest, read_dispatch_request
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.store_checkpoint import StoreCheckpoint

Golden = Callable[[str], Any]
_LARGEST_COMPARED = 16 << 20


class Built:
    """Queues and index under a new root, with the golden store's options."""

    def __init__(self, store: Any, root: Path) -> None:
        line = "4.9" if store.rocketmq_version.startswith("4") else "5.x"
        options = {**store.config, "storePathRootDir": str(root), "rocketmqLine": line}
        self.config = MessageStoreConfig.from_properties(options)
        self.root = root
        files = OsFileSystem()
        inner = {"queue.type": "BatchCQ"}
        self.queues = ConsumeQueueStore(
            files,
            self.config,
            topic_attributes=lambda topic: inner if topic == "InnerBatch" else {},
        )
        self.index = IndexService(files, self.config)
        self.checkpoint = StoreCheckpoint(files, str(root / "checkpoint"))
        self.dispatcher = CommitLogDispatcher(self.config, self.queues, self.index, self.checkpoint)
        # The golden bit maps of ConsumeQueueExt were made up: the queues' facts tell them.
        bit_maps = {
            unit[1]: base64.b64decode(unit[4]["filterBitMap"] or "")
            for queue in store.facts["queues"]
            for unit in queue["units"]
            if len(unit) > 4 and isinstance(unit[4], dict)
        }
        if bit_maps:
            self.dispatcher.add_before(
                lambda request: setattr(request, "bit_map", bit_maps.get(request.commit_log_offset))
            )

    def close(self) -> None:
        self.dispatcher.end_burst()
        self.queues.flush()
        self.queues.close()
        self.index.close()


def segments_of(store: Any) -> list[tuple[int, bytes]]:
    folders = store.config.get("storePathCommitLog", str(store.root / "commitlog")).split(",")
    files = [path for folder in folders for path in Path(folder).iterdir()]
    return [(int(path.name), path.read_bytes()) for path in sorted(files, key=lambda p: p.name)]


def requests_of(store: Any, config: MessageStoreConfig) -> Iterator[DispatchRequest]:
    end = store.facts["commitLog"]["maxOffset"]
    delays_ms = parse_delay_levels(config.message_delay_level)
    for base, data in segments_of(store):
        position = 0
        limit = min(len(data), end - base)
        while position < limit:
            request = read_dispatch_request(data, position, limit, base, delays_ms=delays_ms)
            if not isinstance(request, DispatchRequest):
                # RocketMQ goes on over records that name another position; ours end the log.
                assert isinstance(request, Blank) or "stale-tail" in store.name, request
                break
            yield request
            position += request.record_size


def is_rebuildable(name: str, facts: dict[str, Any]) -> bool:
    """Whether the log still has all that RocketMQ's queues and index were built from."""
    if facts["commitLog"]["minOffset"] > 0 or "torn-tail" in name:
        return False
    # RocketMQ 5.5.0 built these from the checkpoint's segment only; ours begin at the log's start.
    return name != "crash-noqueue-5.5.0"


def assert_equal_files(store: Any, root: Path) -> None:
    expected = {
        file["path"]: file["sha256"]
        for file in store.facts["filesAfterLoad"]
        if "consumequeue" in file["path"] and file.get("sha256")
    }
    found = {
        path.relative_to(root).as_posix(): path
        for folder in ("consumequeue", "consumequeue_ext", "batchconsumequeue")
        for path in (root / folder).rglob("*")
        if path.is_file() and path.stat().st_size <= 4 << 20
    }
    assert set(found) == set(expected)
    for name, path in found.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == expected[name], name
    theirs = index_files(store.root)
    if theirs:  # some golden stores had theirs deleted
        ours = index_files(root)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            if other.stat().st_size <= _LARGEST_COMPARED:
                assert mine.read_bytes() == other.read_bytes(), other.name


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir()) if (root / "index").is_dir() else []


def test_rebuilt_files_are_identical(
    golden_name: str, golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine(golden_name)
    if not is_rebuildable(golden_name, store.facts):
        pytest.skip("the log no longer has what these files were built from")
    built = Built(store, tmp_path)
    for request in requests_of(store, built.config):
        built.dispatcher.dispatch(request)
    built.close()
    assert_equal_files(store, tmp_path)


@pytest.mark.parametrize("golden_name", ["basic-5.5.0", "lmq-4.9.7", "innerbatch-5.5.0"])
def test_dispatching_again_changes_nothing(
    golden_name: str, golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine(golden_name)
    built = Built(store, tmp_path)
    requests = list(requests_of(store, built.config))
    for number, request in enumerate(requests):
        built.dispatcher.dispatch(request)
        for again in requests[max(0, number - 20) : number + 1]:
            built.dispatcher.dispatch(again)
    for request in requests:
        built.dispatcher.dispatch(request)
    built.close()
    assert_equal_files(store, tmp_path)


@pytest.mark.parametrize("golden_name", ["lmq-5.5.0"])
def test_the_listener_is_told_of_every_message(
    golden_name: str, golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine(golden_name)
    built = Built(store, tmp_path)
    arrived: dict[tuple[str, int], int] = {}

    def listen(topic: str, queue_id: int, max_offset: int, *_rest: Any) -> None:
        assert max_offset == arrived.get((topic, queue_id), 0) + 1
        arrived[topic, queue_id] = max_offset

    built.dispatcher.arrival_listener = listen
    requests = list(requests_of(store, built.config))
    for request in requests:
        built.dispatcher.dispatch(request)
    assert arrived == {
        (queue["topic"], queue["queueId"]): queue["maxOffset"]
        for queue in store.facts["queues"]
        if queue["maxOffset"]
    }
    for request in requests:
        built.dispatcher.dispatch(request, notify=False)
    assert built.checkpoint.values.logics_msg_timestamp == requests[-1].store_timestamp


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("../../etc", 0), ("a/b", 1), ("t", -1), ("\udcff\ufffd", 0)]
)
def test_a_record_with_an_impossible_queue_is_in_none(
    topic: str, queue_id: int, tmp_path: Path, golden_pristine: Golden
) -> None:
    built = Built(golden_pristine("batch-5.5.0"), tmp_path)
    built.dispatcher.dispatch(
        DispatchRequest(topic, queue_id, 0, 100, 0, 1, 0, 0, 0, b"KEYS\x01k\x02")
    )
    built.close()
    assert not (tmp_path / "consumequeue").exists()


@pytest.mark.parametrize(
    ("names", "numbers"),
    [("%LMQ%a,%LMQ%b", "1"), ("%LMQ%a", "x"), ("%LMQ%a", ""), ("../a", "0"), (" ", "0")],
)
def test_unusable_light_queues_are_skipped(
    names: str, numbers: str, tmp_path: Path, golden_pristine: Golden
) -> None:
    built = Built(golden_pristine("lmq-5.5.0"), tmp_path)
    properties = (
        f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{numbers}\x02".encode()
    )
    built.dispatcher.dispatch(DispatchRequest("t", 0, 0, 100, 0, 1, 0, 0, 0, properties))
    assert built.queues.topics() == ["t"]
    built.close()
