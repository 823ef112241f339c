"""Queues whose files request 306 has deleted keep their numbers, after a crash too."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store import message_store
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.store.queue_ends import FILE_NAME

BODY = bytes(200_000)


def opened(root: Path) -> MessageStore:
    """A store of segments of 1 MiB that dispatches and cleans when it is told to."""
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=100,
        max_index_num=1000,
        disk_max_used_space_ratio=95,
        file_reserved_time_hours=0,
        delete_commit_log_files_interval_ms=0,
        delete_consume_queue_files_interval_ms=0,
    )
    store = MessageStore(config)
    store.load()
    store.start(background=False)
    return store


def put(store: MessageStore, topic: str, body: bytes = b"x") -> int:
    (result,) = store.append_messages([MessageExtBrokerInner(topic, body)])
    assert result.ok
    return result.queue_offset


def read(store: MessageStore, offset: int) -> tuple[GetMessageStatus, int, list[int]]:
    """From ``old``: the status, where to go on, and the numbers of the messages."""
    store.dispatch_nowait()
    found = store.get_message("G", "old", 0, offset, 32)
    messages = [store.look_message_by_offset(each) for each in found.commit_log_offsets]
    return found.status, found.next_begin_offset, [m.queue_offset for m in messages if m]


def bounds(store: MessageStore) -> tuple[int, int]:
    return store.min_offset_in_queue("old", 0), store.max_offset_in_queue("old", 0)


def empty(store: MessageStore) -> None:
    """Has everything but the last messages of ``fill`` leave the log, and cleans the queues."""
    for _ in range(12):
        put(store, "fill", BODY)
    store.flush()
    store.dispatch_nowait()
    store.delete_expired_files_manually()
    assert store.cleaning.run() >= 2
    assert store.clean_expired_consume_queues() == 1
    assert store.clean_expired_consume_queues() == 0


@pytest.fixture(params=[3, 10, 23], ids=["within a file", "at its end", "in the third"])
def count(request: pytest.FixtureRequest) -> int:
    """Messages that the queue had; ten fit into a file."""
    given: int = request.param
    return given


@pytest.fixture
def store(tmp_path: Path, count: int) -> Iterator[MessageStore]:
    """Its queue ``old`` had ``count`` messages, and is emptied."""
    made = opened(tmp_path / "store")
    assert [put(made, "old") for _ in range(count)] == list(range(count))
    empty(made)
    yield made
    made.shutdown()


def goes_on(store: MessageStore, count: int) -> None:
    assert bounds(store) == (count, count)
    assert read(store, count)[0] is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert put(store, "old") == count
    assert put(store, "old") == count + 1
    # Who has read all of the old messages gets the new ones; who asks for an old one is told.
    assert read(store, count) == (GetMessageStatus.FOUND, count + 2, [count, count + 1])
    assert read(store, 0)[:2] == (GetMessageStatus.OFFSET_TOO_SMALL, count)
    assert bounds(store) == (count, count + 2)


def damage(root: Path) -> list[str]:
    with StoreReader(root) as reader:
        return [str(each) for each in verify(reader).findings if each.severity.name == "DAMAGE"]


def test_numbers_go_on(store: MessageStore, count: int) -> None:
    root = Path(store.root)
    assert not (root / "consumequeue/old/0").exists()
    goes_on(store, count)
    store.shutdown()
    assert damage(root) == []


def test_numbers_go_on_after_a_stop(tmp_path: Path, store: MessageStore, count: int) -> None:
    store.shutdown()
    assert damage(tmp_path / "store") == []
    for _ in range(2):
        again = opened(tmp_path / "store")
        assert bounds(again) == (count, count)
        again.shutdown()
    again = opened(tmp_path / "store")
    goes_on(again, count)
    empty(again)
    assert bounds(again) == (count + 2, count + 2)
    again.shutdown()
    again = opened(tmp_path / "store")
    goes_on(again, count + 2)
    again.shutdown()


def test_numbers_go_on_after_a_crash(tmp_path: Path, store: MessageStore, count: int) -> None:
    shutil.copytree(store.root, tmp_path / "empty")
    again = opened(tmp_path / "empty")
    goes_on(again, count)
    again.flush()
    shutil.copytree(again.root, tmp_path / "written")
    again.shutdown()
    shutil.rmtree(tmp_path / "written/consumequeue")
    last = opened(tmp_path / "written")
    assert bounds(last) == (count, count + 2)
    assert put(last, "old") == count + 2
    last.shutdown()
    assert damage(tmp_path / "written") == []


def test_numbers_go_on_where_the_log_lost_what_came_since(
    tmp_path: Path, store: MessageStore, count: int
) -> None:
    store.checkpoint_now()
    (result,) = store.append_messages([MessageExtBrokerInner("old", b"y")])
    store.dispatch_nowait()
    store.queues.write_behind()
    shutil.copytree(store.root, tmp_path / "cut")
    (segment,) = (tmp_path / "cut" / "commitlog").glob(
        f"{result.commit_log_offset - result.commit_log_offset % (1 << 20):020}"
    )
    with segment.open("r+b") as file:  # the loss of power left its units alone
        file.seek(result.commit_log_offset % (1 << 20))
        file.write(bytes(200))
    again = opened(tmp_path / "cut")
    goes_on(again, count)
    again.shutdown()


def test_a_topic_that_is_deleted_begins_at_0(
    tmp_path: Path, store: MessageStore, count: int
) -> None:
    ends = json.loads((tmp_path / "store" / FILE_NAME).read_text())
    assert ends["queues"] == {"old": {"0": count}}
    assert store.delete_topics(["old"]) == 1
    assert not (tmp_path / "store" / FILE_NAME).exists()
    assert put(store, "old") == 0
    assert read(store, 0) == (GetMessageStatus.FOUND, 1, [0])


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"[]", b'{"queues": {"old": 3}}',
        b'{"version": 2, "queues": {"old": {"0": 9}}}',
        b'{"queues": {"../old": {"0": 9}, "x": {"-1": 9}, "y": {"0": -9}, "fill": {"0": 1}}}',
    ],
)  # fmt: skip
def test_a_file_that_is_none(tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path / "store")
    assert put(store, "fill") == 0
    store.shutdown()
    (tmp_path / "store" / FILE_NAME).write_bytes(text)
    again = opened(tmp_path / "store")
    assert put(again, "fill") == 1
    assert put(again, "old") == 0
    again.shutdown()
    if b"../old" not in text:  # that one is read, and its queues are not taken
        assert f"store/{FILE_NAME}: " in caplog.text
    assert damage(tmp_path / "store") == []
    assert not (tmp_path / "old").exists()


def test_light_queues_are_forgotten_with_their_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    assert put(store, "%LMQ%a") == 0
    empty(store)
    assert "%LMQ%a" not in store.commit_log.topics, "names are clients': they would add up"
    assert put(store, "%LMQ%a") == 0
    store.shutdown()


def test_offsets_of_light_queues_with_an_at_sign_are_their_own(tmp_path: Path) -> None:
    """`verify` compared them with the end of the queue whose name is the part before the sign."""
    store = opened(tmp_path / "store")
    put(store, "%LMQ%$T$user")
    for _ in range(3):
        put(store, "%LMQ%$T$user@home")
    store.dispatch_nowait()
    store.shutdown()
    config = tmp_path / "store" / "config"
    config.mkdir(exist_ok=True)
    table = {"%LMQ%$T$user@home@G": {"0": 3}, "%LMQ%$T$user@G": {"0": 2}}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    with StoreReader(tmp_path / "store") as reader:
        findings = verify(reader).findings
    past = [each for each in findings if each.kind is FindingKind.CONSUMER_OFFSET]
    assert [(each.topic, each.queue_offset) for each in past] == [("%LMQ%$T$user", 2)]


def test_threads_take_turns_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deletions at once renamed one temporary file, and the older one might be the last."""
    store = opened(tmp_path / "store")
    put(store, "old")
    free: list[bool] = []

    def look() -> None:
        is_free = store._ends_lock.acquire(blocking=False)
        free.append(is_free)
        if is_free:
            store._ends_lock.release()

    def looked_at_elsewhere(*_: object) -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    monkeypatch.setattr(message_store, "save_ends", looked_at_elsewhere)
    store.settle_removal()
    assert free == [False]
    for _ in range(12):
        put(store, "fill", BODY)
    store.flush()
    store.dispatch_nowait()
    store.delete_expired_files_manually()
    assert store.cleaning.run() >= 2
    retire_queue = store.commit_log.retire_queue

    def retire(*args: Any) -> Any:
        looked_at_elsewhere()
        return retire_queue(*args)

    monkeypatch.setattr(store.commit_log, "retire_queue", retire)
    free.clear()
    assert store.clean_expired_consume_queues() == 1
    assert free == [False, False, False], "also until the queues are empty, and that stays so"
    store.shutdown()
