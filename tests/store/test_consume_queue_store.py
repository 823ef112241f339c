"""Golden queues read as RocketMQ read them after its recovery, and the files stay as its own."""

from __future__ import annotations

import base64
import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import IllegalNameError, StoreCorruptError
from oberth.formats import batch_consume_queue as batch
from oberth.formats.consume_queue import UNIT, UNIT_SIZE, is_ext_address
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore, Queue
from oberth.store.files import OsFileSystem

Golden = Callable[[str], Any]


def config_of(store: Any) -> MessageStoreConfig:
    line = "4.9" if store.rocketmq_version.startswith("4") else "5.x"
    return MessageStoreConfig.from_properties(
        {"storePathRootDir": str(store.root), "rocketmqLine": line, **store.config}
    )


def recovered(store: Any) -> ConsumeQueueStore:
    """The queues as they are after RocketMQ's recovery of the CommitLog, whose ends it tells."""
    queues = ConsumeQueueStore(OsFileSystem(), config_of(store))
    assert queues.load() == []
    facts = store.facts["commitLog"]
    if queues.recover() >= facts["maxOffset"]:
        queues.truncate(facts["maxOffset"])
    queues.correct_min_offsets(facts["minOffset"])
    return queues


def units_of(queue: Queue, *, ext_address_kept: bool) -> list[list[Any]]:
    data = queue.units(queue.min_offset, 1 << 20)
    if isinstance(queue, BatchConsumeQueue):
        return [[u[4], u[0], u[1], u[2], u[5], u[6]] for u in batch.UNIT.iter_unpack(data)]
    units = []
    for number, (offset, size, tags_code) in enumerate(UNIT.iter_unpack(data), queue.min_offset):
        unit: list[Any] = [number, offset, size, tags_code]
        ext = queue.ext_unit(tags_code)
        if ext is not None:
            if not ext_address_kept:
                unit[3] = ext.tags_code
            unit.append(
                {
                    "tagsCode": ext.tags_code,
                    "msgStoreTime": ext.store_timestamp,
                    "size": ext.size,
                    "filterBitMap": base64.b64encode(ext.bit_map).decode() or None,
                }
            )
        units.append(unit)
    return units


def test_golden_queues(golden_name: str, golden_store: Golden) -> None:
    if "noqueue" in golden_name:
        pytest.skip("the queues were deleted: nothing to read before they are built again")
    store = golden_store(golden_name)
    queues = recovered(store)
    for facts in store.facts["queues"]:
        queue = queues.find(facts["topic"], facts["queueId"])
        if queue is None:  # 4.9.7 makes empty queues of the delay levels in memory
            assert facts["units"] == []
            continue
        where = f"{facts['topic']}/{facts['queueId']}"
        assert queue.min_offset == facts["minOffset"], where
        assert queue.max_offset == facts["maxOffset"], where
        # RocketMQ keeps a batch queue's last start here, not its end.
        if not queue.is_batch and facts["maxPhysicOffset"] >= 0:
            assert queue.max_physic_offset == facts["maxPhysicOffset"], where
        kept = store.rocketmq_version.startswith("4")
        assert units_of(queue, ext_address_kept=kept) == facts["units"], where
    queues.flush()
    assert_files_after_load(store)


def assert_files_after_load(store: Any) -> None:
    expected = {
        file["path"]: file["sha256"]
        for file in store.facts["filesAfterLoad"]
        if "consumequeue/" in file["path"] and file.get("sha256")
    }
    found = {
        path.relative_to(store.root).as_posix(): path
        for folder in ("consumequeue", "batchconsumequeue")
        for path in (store.root / folder).rglob("*")
        if path.is_file() and path.stat().st_size <= 4 << 20
    }
    assert set(found) == set(expected)
    for name, path in found.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == expected[name], name


def test_golden_offsets_by_time(golden_name: str, golden_store: Golden) -> None:
    if "noqueue" in golden_name:
        pytest.skip("the queues were deleted: nothing to search before they are built again")
    store = golden_store(golden_name)
    queues = recovered(store)
    times = {m["commitLogOffset"]: m["storeTimestamp"] for m in store.facts["messages"]}
    log_min = store.facts["commitLog"]["minOffset"]
    for query in store.facts["getOffsetInQueueByTime"]:
        queue = queues.find(query["topic"], query["queueId"])
        if queue is None:
            continue
        old = query["boundary"] == "none"
        upper = query["boundary"] == "UPPER"
        found = queue.offset_by_time(
            query["timestamp"],
            lambda offset, _size: times.get(offset, -1),
            log_min,
            upper=upper,
            by_file_time=old,
        )
        if not old:
            found = min(max(found, queue.min_offset, 0), queue.max_offset)
        assert found == query["offset"], query


@pytest.mark.parametrize("golden_name", ["basic-5.5.0", "crash-4.9.7", "cleaned-5.5.0"])
def test_extents_of_a_clean_stop_replace_reading(golden_name: str, golden_store: Golden) -> None:
    store = golden_store(golden_name)
    first = recovered(store)
    first.flush()
    extents = first.snapshot()
    offsets = first.queue_offsets()
    first.close()

    class NoReads(OsFileSystem):
        def open(
            self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
        ) -> Any:
            raise AssertionError(f"{path} was opened")

    second = ConsumeQueueStore(NoReads(), config_of(store))
    second.load()
    log_min = store.facts["commitLog"]["minOffset"]
    second.recover(extents, extents_log_min=log_min)
    second.correct_min_offsets(log_min)
    assert second.snapshot() == extents
    assert second.queue_offsets() == offsets


def make(root: Path, files: OsFileSystem | None = None, **options: Any) -> ConsumeQueueStore:
    config = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(root), "mappedFileSizeConsumeQueue": "400"}
    )
    return ConsumeQueueStore(files or OsFileSystem(), config, **options)


def test_ten_thousand_queues_need_few_files(tmp_path: Path) -> None:
    queues = make(tmp_path, open_files_max=64)
    names = [(f"topic-{n // 4}", n % 4) for n in range(10_000)]
    for ordinal in range(2):
        for n, (topic, queue_id) in enumerate(names):
            queue = queues.find_or_create(topic, queue_id)
            queue.put_request(request_at(topic, queue_id, (ordinal * 10_000 + n) * 100, ordinal))
        queues.write_behind()
        assert queues.pool.open_files <= 64
    assert queues.write_behind() == 0, "nothing is dirty, so nothing is looked at"
    snapshot = queues.snapshot()
    queues.close()
    again = make(tmp_path, open_files_max=64)
    assert again.load() == []
    assert again.recover() == 2_000_000 - 1
    assert again.snapshot() == snapshot
    assert again.pool.open_files <= 64


def request_at(topic: str, queue_id: int, offset: int, queue_offset: int) -> Any:
    from oberth.formats.message import DispatchRequest

    return DispatchRequest(topic, queue_id, offset, 99, 7, 1, queue_offset, 0, 0, b"")


def test_what_is_only_in_memory_is_not_counted_as_synced(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for topic in ("a", "b"):
        queues.find_or_create(topic, 0).put_request(
            request_at(topic, 0, 0 if topic == "a" else 100, 0)
        )
    queues.write_behind()
    queues.find_or_create("a", 0).put_request(request_at("a", 0, 200, 1))
    queues.find_or_create("b", 0).put_request(request_at("b", 0, 300, 1))
    assert queues.sync_written(400) == 200
    queues.write_behind()
    assert queues.sync_written(400) == 400


def test_a_batch_topic_gets_batch_queues_and_other_directories_are_refused(tmp_path: Path) -> None:
    attributes = {"inner": {"queue.type": "BatchCQ"}}
    queues = make(tmp_path, topic_attributes=lambda topic: attributes.get(topic, {}))
    assert queues.find_or_create("inner", 0).is_batch
    assert not queues.find_or_create("plain", 0).is_batch
    queues.find_or_create("inner", 0).put_request(request_at("inner", 0, 0, 0))
    queues.flush()
    queues.close()
    assert (tmp_path / "batchconsumequeue" / "inner" / "0").is_dir()
    with pytest.raises(StoreCorruptError, match="inner"):
        make(tmp_path, topic_attributes=lambda _topic: {}).load()


def test_a_name_that_is_no_topic_makes_no_directory(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for topic in ("../evil", "a/b", "", ".", "x" * 300):
        with pytest.raises(IllegalNameError):
            queues.find_or_create(topic, 0)
    assert list(tmp_path.iterdir()) == []


def test_foreign_names_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "consumequeue" / "t" / "abc").mkdir()
    (tmp_path / "consumequeue" / "t" / "007").mkdir()
    (tmp_path / "consumequeue" / "a b").mkdir()
    queues = make(tmp_path)
    assert queues.load() == []
    assert [(q.topic, q.queue_id) for q in queues.all_queues()] == [("t", 0)]
    assert queues.find_or_create("t", 0).put_request(request_at("t", 0, 0, 0))
    queues.flush()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_of_another_size_is_refused_with_the_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(380))
    with pytest.raises(StoreCorruptError, match=r"found 380 bytes, configured are 400"):
        make(tmp_path).load()


def test_a_missing_file_in_the_row_is_a_finding_and_the_front_stays(tmp_path: Path) -> None:
    queues = make(tmp_path)
    queue = queues.find_or_create("t", 3)
    for n in range(70):
        queue.put_request(request_at("t", 3, n * 100, n))
    queues.flush()
    queues.close()
    (tmp_path / "consumequeue" / "t" / "3" / f"{400:020d}").unlink()
    again = make(tmp_path)
    (finding,) = again.load()
    assert (finding.topic, finding.queue_id, finding.rebuild_from) == ("t", 3, 19 * 100 + 99)
    again.recover()
    found = again.find_or_create("t", 3)
    assert (found.min_offset, found.max_offset) == (0, 20)
    for n in range(70):
        assert found.put_request(request_at("t", 3, n * 100, n)) == (n >= 20)
    assert found.max_offset == 70


def test_stale_units_are_erased_when_that_is_asked_for_and_not_before(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for n in range(10):
        queues.find_or_create("t", n % 2).put_request(request_at("t", n % 2, n * 100, n // 2))
    queues.flush()
    before = (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").read_bytes()
    queues.truncate(500)
    queues.flush()
    file = tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}"
    assert file.read_bytes() == before, "RocketMQ leaves them, and so does a mere recovery"
    queues.erase_stale()
    assert file.read_bytes() == before[: 3 * UNIT_SIZE] + bytes(400 - 3 * UNIT_SIZE)


def test_queues_whose_end_was_looked_for_may_have_stale_units_behind_holes(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for n in range(3):
        queues.find_or_create("t", n).put_request(request_at("t", n, n * 100, 0))
    queues.flush()
    extents = queues.snapshot()
    del extents["t", 1]
    queues.close()
    files = [tmp_path / "consumequeue" / "t" / str(n) / f"{0:020d}" for n in range(3)]
    for file in files:
        data = bytearray(file.read_bytes())
        data[300] = 1
        file.write_bytes(data)
    again = make(tmp_path)
    again.load()
    again.recover(extents)
    again.erase_stale()
    assert [file.read_bytes()[300] for file in files] == [1, 0, 1], "a clean stop knew two ends"
    again.recover()
    again.erase_stale()
    assert [file.read_bytes()[300] for file in files] == [0, 0, 0]
    assert [queue.max_offset for queue in again.all_queues()] == [1, 1, 1]


def test_what_a_failing_disk_did_not_erase_is_erased_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make(tmp_path)
    for n in range(8):
        queues.find_or_create("t", n % 2).put_request(request_at("t", n % 2, n * 100, n // 2))
    queues.flush()
    queues.truncate(200)

    def fail(_queue: Queue) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "erase_stale", fail)
        with pytest.raises(OSError, match="Input"):
            queues.erase_stale()
    queues.erase_stale()
    for queue in queues.all_queues():
        (file,) = Path(queue.stream.directory).iterdir()
        assert not any(file.read_bytes()[UNIT_SIZE:])


def test_topics_and_expired_queues_go_with_their_directories(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for n, topic in enumerate(("old", "new", "SCHEDULE_TOPIC_XXXX", "%LMQ%x")):
        queues.find_or_create(topic, 0).put_request(request_at(topic, 0, n * 100, 0))
    queues.find_or_create("empty", 0)
    queues.flush()
    assert [(each.topic, each.queue_id) for each in queues.expired(100)] == [("old", 0)]
    queues.destroy_queue("old", 0)
    assert not (tmp_path / "consumequeue" / "old").exists()
    assert queues.find("old", 0) is None
    assert queues.unused({"other"}.__contains__) == ["new", "empty"]
    queues.destroy_topic("new")
    queues.destroy_topic("empty")
    assert queues.topics() == ["SCHEDULE_TOPIC_XXXX", "%LMQ%x"]
    queues.destroy_all()
    assert list((tmp_path / "consumequeue").iterdir()) == []


def test_a_growing_store_can_be_read_by_another(tmp_path: Path) -> None:
    writer = make(tmp_path)
    for n in range(25):
        writer.find_or_create("t", 0).put_request(request_at("t", 0, n * 100, n))
    writer.write_behind()
    reader = make(tmp_path, writable=False)
    reader.load()
    reader.refresh(25 * 100)
    queue = reader.find("t", 0)
    assert queue is not None
    assert queue.max_offset == 25
    for n in range(25, 60):
        writer.find_or_create("t", 0).put_request(request_at("t", 0, n * 100, n))
    writer.find_or_create("t", 1).put_request(request_at("t", 1, 6000, 0))
    writer.write_behind()
    reader.refresh(50 * 100)
    assert queue.max_offset == 50
    reader.refresh(7000)
    assert queue.max_offset == 60
    assert [u[0] for u in UNIT.iter_unpack(queue.units(58, 10))] == [5800, 5900]
    assert reader.find("t", 1) is not None


def test_a_queue_of_the_wrong_kind_keeps_no_other_from_a_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process made it, which did not know what the topic is."""
    batch = {"queue.type": "BatchCQ"}
    writer = make(tmp_path)
    reader = make(
        tmp_path, writable=False, topic_attributes=lambda topic: batch if topic == "b" else {}
    )
    for n, topic in enumerate(("a", "b", "c", "a", "b", "c")):
        writer.find_or_create(topic, 0).put_request(request_at(topic, 0, n * 100, n // 3))
    writer.write_behind()
    for _ in range(2):
        reader.refresh(600)
    assert [(each.topic, each.max_offset) for each in reader.all_queues()] == [("a", 2), ("c", 2)]
    [said] = [record.getMessage() for record in caplog.records]
    assert "topic b has queues of the batch kind; `oberth store rebuild` makes" in said


def test_ext_addresses_are_told_from_tags_codes() -> None:
    assert is_ext_address(-(2**63))
    assert not is_ext_address(-(2**31))
