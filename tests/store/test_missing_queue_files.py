"""Files of one queue, or of the index, are gone while others go on: a start builds them again.

What is left decides nothing by itself: the store noted how much its queues held. New messages get
numbers that nobody had.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oberth.errors import StoreCorruptError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store import message_store
from oberth.store.files import OsFileSystem
from oberth.store.index_file import IndexFile
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.verify import verify

FILE_SIZE = 20 * 40
COUNT = 150


def config(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=FILE_SIZE,
        mapped_file_size_batch_consume_queue=46 * 40,
        max_hash_slot_num=100,
        max_index_num=400,
        disk_max_used_space_ratio=95,
        disk_space_warning_level_ratio=90,
    )


def open_store(root: Path) -> MessageStore:
    return MessageStore(
        config(root),
        topic_attributes=lambda name: {"queue.type": "BatchCQ"} if name == "batch" else {},
    )


def put(store: MessageStore, topic: str, count: int = COUNT) -> list[int]:
    results = store.put_messages(
        [MessageExtBrokerInner.of(topic, b"%d" % n, keys="k", queue_id=0) for n in range(count)]
    )
    assert {each.status for each in results} == {PutMessageStatus.PUT_OK}
    return [each.commit_log_offset for each in results]


def places(store: MessageStore, topic: str) -> list[int]:
    """Where the messages of a queue are in the log, in the order of their numbers."""
    queue = store.queues.find(topic, 0)
    assert queue is not None
    found = []
    for number in range(queue.min_offset, queue.max_offset):
        unit = queue.unit(number)
        assert unit is not None
        found.append(unit.commit_log_offset)
    return found


def last(files: list[Path]) -> None:
    files[-1].unlink()


def middle(files: list[Path]) -> None:
    files[1].unlink()


def first(files: list[Path]) -> None:
    files[0].unlink()


def all_of_them(files: list[Path]) -> None:
    for each in files:
        each.unlink()


def the_directory(files: list[Path]) -> None:
    shutil.rmtree(files[0].parent)


def the_first_and_the_state(files: list[Path]) -> None:
    files[0].unlink()
    (files[0].parents[3] / "oberth.state").unlink()


def units_of_the_last(files: list[Path]) -> None:
    files[-1].write_bytes(bytes(files[-1].stat().st_size))


STOPPED = (last, middle, first, the_first_and_the_state, all_of_them, the_directory)
"""Not `units_of_the_last`: after a stop in order files of the right size are not read."""
KILLED = (*STOPPED, units_of_the_last)


@pytest.mark.parametrize("topic", ["t", "batch"])
@pytest.mark.parametrize(
    ("killed", "lose"),
    [*((False, each) for each in STOPPED), *((True, each) for each in KILLED)],
)
def test_what_a_queue_lost_comes_back(
    lose: Callable[[list[Path]], None], killed: bool, topic: str, tmp_path: Path
) -> None:
    with open_store(tmp_path) as store:
        expected = put(store, topic)
        put(store, "further")
    if killed:
        (tmp_path / "abort").write_text("1")
    folder = "batchconsumequeue" if topic == "batch" else "consumequeue"
    files = sorted((tmp_path / folder / topic / "0").iterdir())
    assert len(files) > 3
    lose(files)
    with open_store(tmp_path) as store:
        assert places(store, topic) == expected
        expected += put(store, topic, 3)
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        assert places(store, topic) == expected
    with open_store(tmp_path) as store:  # nothing is missing now
        assert store.report is not None
        assert store.report.dispatch_from == store.report.log_end
        assert places(store, topic) == expected


@pytest.mark.parametrize("topic", ["t", "batch"])
def test_queue_files_that_went_with_their_messages_are_not_missed(
    topic: str, tmp_path: Path
) -> None:
    with open_store(tmp_path) as store:
        expected = put(store, topic)
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        store.retention.purge(topic, {0: 100})
        folder = "batchconsumequeue" if topic == "batch" else "consumequeue"
        assert not (tmp_path / folder / topic / "0" / f"{0:020}").exists()
        store.checkpoint_now()
        expected += put(store, topic, 3)
        store.dispatch_nowait()
        store.kill()
    with open_store(tmp_path) as store:
        assert store.report is not None
        assert store.report.reason == "the last checkpoint"
        assert places(store, topic) == expected[100:]


def test_a_deletion_is_noted_though_nothing_is_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start after a crash would miss the files, and read all of the log."""
    monkeypatch.setattr(message_store, "CHECKPOINT_INTERVAL_S", 0)
    noted = threading.Event()
    with open_store(tmp_path) as store:
        put(store, "t")
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        store.checkpoint_now()
        checkpoint = store.checkpoint_now

        def note(**named: bool) -> None:
            checkpoint(**named)
            noted.set()

        monkeypatch.setattr(store, "checkpoint_now", note)
        store.retention.purge("t", {0: 100})
        assert noted.wait(60)


@pytest.mark.parametrize("folder", ["consumequeue/t/0", "index"])
def test_a_file_of_another_size_is_refused_with_what_mends_it(folder: str, tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        offsets = put(store, "t")
    path = max((tmp_path / folder).iterdir())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StoreCorruptError, match=f"{path.name}.*oberth store rebuild"):
        open_store(tmp_path).load()
    sizes = {
        "mappedFileSizeCommitLog": str(64 * 1024),
        "mappedFileSizeConsumeQueue": str(FILE_SIZE),
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }
    with StoreReader(tmp_path, sizes) as reader:
        rebuild(reader)
    with open_store(tmp_path) as store:
        assert places(store, "t") == offsets


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_file_that_is_gone_comes_back(which: int, killed: bool, tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for n in range(1200):
            store.put_message(MessageExtBrokerInner.of("t", b"x", keys=f"k{n}", queue_id=0))
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) > 3
    files[which].unlink()
    if killed:
        (tmp_path / "abort").write_text("1")
    with open_store(tmp_path) as store:
        for n in range(1200):
            assert len(store.query_message("t", f"k{n}", 9, 0, 2**62).commit_log_offsets) == 1, n
    sizes = {
        "mappedFileSizeCommitLog": str(64 * 1024),
        "mappedFileSizeConsumeQueue": str(FILE_SIZE),
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }
    with StoreReader(tmp_path, sizes) as reader:
        assert list(verify(reader).damage) == []


def test_index_files_that_expired_are_not_missed(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for n in range(2400):
            store.put_message(MessageExtBrokerInner.of("t", b"x", keys=f"k{n}", queue_id=0))
    first, *rest = sorted((tmp_path / "index").iterdir())
    kept = {path.name: path.stat().st_ino for path in rest}
    with StoreReader(tmp_path) as reader:
        begins = reader.layout.commit_log[1].start
    assert IndexFile(OsFileSystem(), str(first.parent), first.name, 100, 400).end_offset < begins
    first.unlink()  # a cleaning got so far, and was killed before it noted it
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    (tmp_path / "abort").write_text("1")
    with open_store(tmp_path):
        now = {path.name: path.stat().st_ino for path in (tmp_path / "index").iterdir()}
    assert kept.items() <= now.items()
