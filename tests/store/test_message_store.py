"""MessageStore against golden stores: what RocketMQ read, statuses and all, comes out of ours.

Each store is opened on a copy (which recovers it) and asked the questions that RocketMQ's own code
was asked; then its CommitLog and ConsumeQueue files are compared with those RocketMQ left.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.damage import copy_killed
from tests.store.test_flush import GatedFiles

from oberth.errors import StoreClosedError, StoreCorruptError, StoreError, StoreLockedError
from oberth.formats.consume_queue import is_ext_address
from oberth.formats.java_string import java_hash
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.formats.options import Line
from oberth.store import file_kinds, reput
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    GetMessageStatus,
    MessageExtBrokerInner,
    PutMessageStatus,
    TagsFilter,
)
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage
from oberth.store.offline.verify import verify

GoldenStores = Callable[[str], Any]


def config_of(golden: Any) -> MessageStoreConfig:
    """A configuration for opening a golden store as its own line would."""
    entries = {"storePathRootDir": str(golden.root), **golden.config}
    line = Line.V4_9 if golden.rocketmq_version.startswith("4.") else Line.V5
    config = MessageStoreConfig.from_properties(entries)
    config.line = line
    config.disk_max_used_space_ratio = 95
    return config


def batch_topics(golden: Any) -> Callable[[str], dict[str, str]]:
    batch = {q["topic"] for q in golden.facts["queues"] if q.get("cqType") == "BatchCQ"}
    return lambda topic: {"queue.type": "BatchCQ"} if topic in batch else {}


def open_store(golden: Any) -> MessageStore:
    store = MessageStore(config_of(golden), topic_attributes=batch_topics(golden))
    store.load()
    return store


# Stores in which ours deliberately reaches further than the Java that read them: 5.5.0 rebuilt
# deleted queues only from the segment that the checkpoint selects.
KINDER = re.compile(r"(crash|cleaned)-noqueue-5")


def test_every_message_is_where_it_was(golden_name: str, golden_store: GoldenStores) -> None:
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        facts = golden.facts
        assert store.min_phy_offset == facts["commitLog"]["minOffset"]
        for expected in facts["messages"]:
            if expected.get("crcOk") is False:
                continue
            message = store.look_message_by_offset(expected["commitLogOffset"])
            assert message is not None, expected["commitLogOffset"]
            assert (message.topic, message.queue_id, message.queue_offset) == (
                expected["topic"],
                expected["queueId"],
                expected["queueOffset"],
            )
            if expected["storedSysFlag"] & 0xC in (0, 8):  # the others have no unit
                found = store.find_message(expected["commitLogOffset"])
                assert found == message, expected["commitLogOffset"]
    finally:
        store.shutdown()


def test_the_log_ends_where_rocketmq_ended_it(golden_name: str, golden_store: GoldenStores) -> None:
    if golden_name.startswith(("stale-tail", "flipped-bit")):
        pytest.skip("RocketMQ takes stale records for messages, and ends a log at a flipped bit")
    store = open_store(golden_store(golden_name))
    try:
        assert store.max_phy_offset == golden_store(golden_name).facts["commitLog"]["maxOffset"]
    finally:
        store.shutdown()


def test_queues_hold_the_units_that_rocketmq_read(
    golden_name: str, golden_store: GoldenStores
) -> None:
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        for expected in golden.facts["queues"]:
            queue = store.queue(expected["topic"], expected["queueId"])
            units = expected["units"]
            if queue is None:
                assert not units, expected["topic"]
                continue
            if KINDER.match(golden_name):
                assert queue.min_offset <= expected["minOffset"]
            elif units or expected["minOffset"] > 0:
                assert queue.min_offset == expected["minOffset"], (
                    expected["topic"],
                    expected["queueId"],
                )
            if expected.get("cqType") == "BatchCQ":
                continue
            if not golden_name.startswith(("stale-tail", "flipped-bit")):
                assert queue.max_offset == expected["maxOffset"]
            for number, offset, size, tags_code, *_ in units:
                if offset >= store.max_phy_offset:
                    continue
                unit = store.consume_queue_unit(expected["topic"], expected["queueId"], number)
                assert unit is not None
                found_code = unit.tags_code
                if is_ext_address(found_code) and not is_ext_address(tags_code):
                    # 5.5.0 lists the code that the ext unit holds, 4.9.7 the unit's address.
                    assert not isinstance(queue, BatchConsumeQueue)
                    ext = queue.ext_unit(found_code)
                    assert ext is not None
                    found_code = ext.tags_code
                assert (*unit[:2], found_code) == (offset, size, tags_code)
    finally:
        store.shutdown()


def _ask(store: MessageStore, question: dict[str, Any]) -> dict[str, Any]:
    tags = question.get("tags")
    chosen = None
    if tags and tags != "*":
        chosen = TagsFilter({java_hash(tag.strip()) for tag in tags.split("||")})
    result = store.get_message(
        "g",
        question["topic"],
        question["queueId"],
        question["offset"],
        question["maxMsgNums"],
        chosen,
    )
    assert sum(map(len, result.records)) == result.buffer_total_size
    return {
        "status": result.status.name,
        "nextBeginOffset": result.next_begin_offset,
        "bufferTotalSize": result.buffer_total_size,
        "commitLogOffsets": result.commit_log_offsets,
    }


def test_get_message_answers_as_rocketmq_did(golden_name: str, golden_store: GoldenStores) -> None:
    if KINDER.match(golden_name) or golden_name.startswith(("stale-tail", "flipped-bit")):
        pytest.skip("ours holds more, or less that is no message; see the tests of recovery")
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        for question in golden.facts["getMessage"]:
            answer = _ask(store, question)
            assert answer == {name: question[name] for name in answer}, question
    finally:
        store.shutdown()


def test_searches_by_time_answer_as_rocketmq_did(
    golden_name: str, golden_store: GoldenStores
) -> None:
    if KINDER.match(golden_name) or golden_name.startswith(("stale-tail", "flipped-bit")):
        pytest.skip("ours holds more, or less that is no message; see the tests of recovery")
    if golden_name.endswith("noqueue-4.9.7"):
        pytest.skip("4.9 searches by the times of the queues' files, which were made anew")
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        batch = batch_topics(golden)
        for question in golden.facts["getOffsetInQueueByTime"]:
            if batch(question["topic"]) and question["boundary"] == "UPPER":
                # RocketMQ answers 0, the unit before or the one behind, as its search happens
                # to end; ours is the last unit at or before the time.
                continue
            offset = store.offset_in_queue_by_time(
                question["topic"],
                question["queueId"],
                question["timestamp"],
                question["boundary"] if question["boundary"] != "none" else "LOWER",
            )
            assert offset == question["offset"], question
    finally:
        store.shutdown()


def test_index_queries_answer_as_rocketmq_did(golden_name: str, golden_store: GoldenStores) -> None:
    if golden_name.startswith(("stale-tail", "flipped-bit")):
        pytest.skip("RocketMQ holds records there which are none of that store, or lost some")
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        for question in golden.facts["indexQueries"]:
            result = store.query_message(
                question["topic"],
                question["key"],
                question["maxNum"],
                question["begin"],
                question["end"],
                question.get("indexType"),
            )
            expected = question["queryMessage"]
            if golden.was_closed_cleanly:
                assert result.commit_log_offsets == expected, question
            else:
                # What the crash took from RocketMQ's index is rebuilt here.
                assert set(expected) <= set(result.commit_log_offsets), question
    finally:
        store.shutdown()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_recovery_leaves_the_files_that_rocketmq_left(
    golden_name: str, golden_store: GoldenStores
) -> None:
    if KINDER.match(golden_name) or golden_name.startswith(("stale-tail", "flipped-bit")):
        pytest.skip("ours is kinder here; see the tests of recovery")
    golden = golden_store(golden_name)
    open_store(golden).shutdown()
    different = []
    for expected in golden.facts["filesAfterLoad"]:
        path = golden.root / expected["path"]
        if not path.exists():
            different.append((expected["path"], "missing"))
        elif "sha256" in expected and _hash(path) != expected["sha256"]:
            different.append((expected["path"], "other bytes"))
    assert not different


@pytest.mark.parametrize("golden_name", ["crash-noqueue-5.5.0", "cleaned-noqueue-5.5.0"])
def test_deleted_queues_are_rebuilt_whole(golden_name: str, golden_store: GoldenStores) -> None:
    """RocketMQ 5.5.0 rebuilds from the checkpoint's segment on; here every message comes back."""
    golden = golden_store(golden_name)
    store = open_store(golden)
    try:
        for expected in golden.facts["messages"]:
            if expected["storedSysFlag"] & 0xC in (0x4, 0xC):
                continue
            unit = store.consume_queue_unit(
                expected["topic"], expected["queueId"], expected["queueOffset"]
            )
            assert unit is not None
            assert unit.commit_log_offset == expected["commitLogOffset"]
    finally:
        store.shutdown()


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_stale_records_behind_the_end_are_no_messages(
    version: str, golden_store: GoldenStores
) -> None:
    golden = golden_store(f"stale-tail-{version}")
    end = int(re.findall(r"at (\d+) copies", golden.facts["note"])[0])
    store = open_store(golden)
    try:
        assert store.max_phy_offset == end
    finally:
        store.shutdown()


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_flipped_bit_costs_nothing_but_its_message(
    version: str, golden_store: GoldenStores
) -> None:
    golden = golden_store(f"flipped-bit-{version}")
    hit = int(re.findall(r"record at (\d+)", golden.facts["note"])[0])
    store = open_store(golden)
    try:
        last = golden.facts["messages"][-1]
        assert store.max_phy_offset >= last["commitLogOffset"] + last["storeSize"]
        for expected in golden.facts["messages"]:
            message = store.look_message_by_offset(expected["commitLogOffset"])
            assert message is not None
            assert message.crc_ok == (expected["commitLogOffset"] != hit)
    finally:
        store.shutdown()


# Our own stores


def small(root: Path, **options: Any) -> MessageStoreConfig:
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
        disk_max_used_space_ratio=95,
        disk_space_warning_level_ratio=90,
    )
    for name, value in options.items():
        setattr(config, name, value)
    return config


def put(store: MessageStore, count: int, topic: str = "t", size: int = 100) -> list[int]:
    results = store.put_messages(
        [
            MessageExtBrokerInner.of(
                topic, bytes([n % 251]) * size, tags=f"tag{n % 3}", keys=f"k{n}", queue_id=n % 2
            )
            for n in range(count)
        ]
    )
    assert {r.status for r in results} == {PutMessageStatus.PUT_OK}
    return [r.commit_log_offset for r in results]


def drain(store: MessageStore) -> None:
    while store.dispatch_behind_bytes:
        store.dispatch_nowait()


def test_put_get_query_and_reopen(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)) as store:
        offsets = put(store, 1000)
        drain(store)
    with MessageStore(small(tmp_path)) as store:
        report = store.report
        assert report is not None
        assert not report.abnormal
        assert report.records_scanned == 0, "a clean stop needs no reading"
        assert report.dispatch_from == report.log_end
        for queue_id in range(2):
            assert store.max_offset_in_queue("t", queue_id) == 500
            got: list[int] = []
            offset = 0
            while True:
                result = store.get_message("g", "t", queue_id, offset, 32)
                if result.status is not GetMessageStatus.FOUND:
                    break
                got += result.commit_log_offsets
                offset = result.next_begin_offset
            assert got == offsets[queue_id::2]
        found = store.query_message("t", "k77", 10, 0, 2**62)
        assert found.commit_log_offsets == [offsets[77]]
        more = put(store, 2)
        assert store.look_message_by_offset(more[0]) is not None
        assert store.commit_log.queue_offset("t", 0) == 501


def test_a_kill_costs_no_more_than_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    store.load()
    store.start(background=False)
    put(store, 500)
    drain(store)
    put(store, 100, topic="not yet dispatched at the checkpoint")
    safe = store.dispatched_offset
    store.checkpoint_now()
    drain(store)
    put(store, 300, topic="later")
    drain(store)
    end = store.max_phy_offset
    store.kill()
    with MessageStore(small(tmp_path)) as again:
        report = again.report
        assert report is not None
        assert report.abnormal
        assert (report.scanned_from, report.dispatch_from) == (safe, safe)
        assert (report.log_end, report.damages) == (end, ())
        assert again.max_offset_in_queue("later", 1) == 150


def test_records_side_by_side_share_a_slice(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)) as store:
        results = store.put_messages([MessageExtBrokerInner("t", b"x" * 50) for _ in range(20)])
        drain(store)
        got = store.get_message("g", "t", 0, 0, 20)
        assert (got.message_count, len(got.records)) == (20, 1)
        assert len(got.records[0]) == sum(r.record_size for r in results)
        got.release()


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)), pytest.raises(StoreLockedError, match="lock"):
        MessageStore(small(tmp_path)).load()


def test_wrong_segment_sizes_are_refused_and_named(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)) as store:
        put(store, 10)
    with pytest.raises(StoreCorruptError, match=r"found 65536 bytes, configured are 131072"):
        MessageStore(small(tmp_path, mapped_file_size_commit_log=131072)).load()
    with MessageStore(small(tmp_path)) as store:
        assert store.max_offset_in_queue("t", 0) == 5


def test_foreign_files_do_no_harm(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)) as store:
        put(store, 10)
    for directory in ("commitlog", "consumequeue/t/0", "index", "consumequeue/t", "consumequeue"):
        (tmp_path / directory / "notes.txt").write_text("not a segment")
    with MessageStore(small(tmp_path)) as store:
        assert store.max_offset_in_queue("t", 0) == 5


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    assert store.put_message(MessageExtBrokerInner("t", b"x")).status is (
        PutMessageStatus.SERVICE_NOT_AVAILABLE
    )
    for asks in (
        lambda: store.get_message("g", "t", 0, 0, 1),
        lambda: store.append_replica(0, b"x"),
        store.end_before_damage,
        lambda: store.remove_topics(["t"]),
        lambda: store.clean_unused_topics(lambda _: True),
        store.clean_expired_consume_queues,
        store.retention_report,
    ):
        with pytest.raises(StoreClosedError):
            asks()
    with pytest.raises(StoreClosedError):
        store.start()


def test_missing_queues_and_index_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    import shutil

    with MessageStore(small(tmp_path)) as store:
        offsets = put(store, 300)
        put(store, 30, topic="other")
    shutil.rmtree(tmp_path / "consumequeue" / "other")
    shutil.rmtree(tmp_path / "index")
    with MessageStore(small(tmp_path)) as store:
        assert store.max_offset_in_queue("other", 1) == 15
        assert store.query_message("t", "k5", 9, 0, 2**62).commit_log_offsets == [offsets[5]]


@pytest.mark.parametrize("count", [3, 1000], ids=["one by one", "in bulk"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_missing_index_brings_no_deleted_topic_back(
    tmp_path: Path, count: int, killed: bool
) -> None:
    store = MessageStore(small(tmp_path))
    store.load()
    store.start(reput_thread=False, background=False)
    put(store, count, "gone")
    kept = put(store, count)
    drain(store)
    assert store.delete_topics(["gone"]) == 1
    put(store, 1, "t")
    if killed:
        store.kill()
        store.commit_log.queue.close()
    else:
        store.shutdown()
    shutil.rmtree(tmp_path / "index")
    with MessageStore(small(tmp_path)) as store:
        drain(store)
        assert store.topics() == ["t"]
        assert store.query_message("t", "k0", 32, 0, 2**62).records
        assert sum(store.max_offset_in_queue("t", queue_id) for queue_id in range(2)) == count + 1
        put(store, 2, "gone")
        drain(store)
        assert [store.max_offset_in_queue("gone", queue_id) for queue_id in range(2)] == [1, 1]
        put(store, 2)
        drain(store)
        assert sum(store.max_offset_in_queue("t", queue_id) for queue_id in range(2)) == count + 3
    assert len(kept) == count


def test_cleaning_deletes_whole_segments_and_queues_follow(tmp_path: Path) -> None:
    config = small(tmp_path, file_reserved_time_hours=0, delete_commit_log_files_interval_ms=0)
    with MessageStore(config) as store:
        put(store, 2000)
        drain(store)
        first = store.min_phy_offset
        store.delete_expired_files_manually()
        deleted = store.cleaning.run()
        assert 1 <= deleted == len(range(first, store.min_phy_offset, 64 * 1024))
        assert store.min_phy_offset == first + deleted * 64 * 1024
        low = store.min_offset_in_queue("t", 0)
        assert low > 0
        got = store.get_message("g", "t", 0, low, 1)
        assert got.status is GetMessageStatus.FOUND
        assert got.commit_log_offsets[0] >= store.min_phy_offset
        too_small = store.get_message("g", "t", 0, 0, 1)
        assert too_small.status is GetMessageStatus.OFFSET_TOO_SMALL
        assert too_small.next_begin_offset == low
    with MessageStore(config) as store:
        assert store.min_offset_in_queue("t", 0) == low


def test_listeners_hear_of_every_record_in_order(tmp_path: Path) -> None:
    arrivals: list[tuple[str, int, int]] = []
    store = MessageStore(small(tmp_path))
    store.load()
    store.set_arrival_listener(
        lambda topic, queue_id, end, *_: arrivals.append((topic, queue_id, end))
    )
    store.start(reput_thread=False)
    put(store, 500)
    drain(store)
    assert len(arrivals) == 500
    assert arrivals[:3] == [("t", 0, 1), ("t", 1, 1), ("t", 0, 2)]
    store.shutdown()


def test_a_record_waits_a_moment_for_others_to_be_dispatched_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput, "_GATHER_S", 0.5)
    rounds: list[int] = []
    with MessageStore(small(tmp_path)) as store:
        dispatch = store.reput.dispatch_nowait

        def counted() -> int:
            went = dispatch()
            rounds.extend([went] if went else [])
            return went

        monkeypatch.setattr(store.reput, "dispatch_nowait", counted)
        deadline = time.monotonic() + 30
        while not store.reput.is_idle and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(20):
            put(store, 1)
        while store.dispatch_behind_bytes and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(rounds) == 1
        assert store.max_offset_in_queue("t", 0) == 20


@pytest.mark.parametrize("into_it", [3, 60, 100])
def test_what_may_be_shown_ends_in_the_middle_of_a_record_and_the_record_comes_whole(
    tmp_path: Path, into_it: int
) -> None:
    shown = 0

    def opened() -> MessageStore:
        store = MessageStore(small(tmp_path))
        store.confirmed_by_replicas = lambda: shown
        store.load()
        store.start(reput_thread=False, background=False)
        return store

    store = opened()
    offsets = put(store, 3)
    store.shutdown()
    store = opened()  # a slave that was restarted has a tail that is not confirmed
    try:
        shown = offsets[1] + into_it
        store.dispatch_nowait()
        assert store.dispatched_offset == offsets[1]
        assert store.find_message(offsets[1]) is not None
        assert store.find_shown_message(offsets[0]) is not None
        assert store.find_shown_message(offsets[1]) is None
        shown = store.max_phy_offset
        drain(store)
        units = [store.consume_queue_unit("t", *each) for each in ((0, 0), (1, 0), (0, 1))]
        assert [unit and unit.commit_log_offset for unit in units] == offsets
        assert store.find_shown_message(offsets[1]) is not None
    finally:
        store.shutdown()


def test_what_stands_in_for_a_lost_message_is_handed_out_once(tmp_path: Path) -> None:
    """The queue is built over a damaged record; RocketMQ reads such a queue too (see interop)."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 20
    )
    with MessageStore(config) as store:
        messages = [MessageExtBrokerInner("t", b"%d" % n, b"TAGS\x01a\x02") for n in range(10)]
        results = store.put_messages(messages)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as segment:
        for lost in (4, 5):
            segment.seek(results[lost].commit_log_offset + 4)
            segment.write(bytes(4))
    shutil.rmtree(tmp_path / "consumequeue")
    kept = [n for n in range(10) if n not in (4, 5)]
    with MessageStore(config) as store:
        for message_filter in (None, TagsFilter(frozenset([java_hash("a")]))):
            found = store.get_message("g", "t", 0, 0, 32, message_filter)
            assert (found.message_count, found.next_begin_offset) == (8, 10)
            assert found.commit_log_offsets == [results[n].commit_log_offset for n in kept]
            assert list(found.queue_offsets) == kept
        units = store.iterate_consume_queue("t", 0, 0, 10)
        assert [unit.is_pre_blank for unit in units] == [n in (4, 5) for n in range(10)]
        assert store.iterate_consume_queue("t", 0, 4, 1)[0].is_pre_blank
        statistics = store.queue_statistics("t", 0)
        assert statistics is not None
        assert (statistics.message_count, statistics.missing_count) == (8, 2)
        # Whoever asks for the lost one alone gets the next one, and it once more if he reads on.
        alone = store.get_message("g", "t", 0, 5, 1)
        assert alone.commit_log_offsets == [results[6].commit_log_offset]


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config"])
def test_a_file_in_a_directorys_place_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match=f"{name}: found a file, allowed is a directory"):
        MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))).load()
    assert (tmp_path / name).read_text() == "mine"
    (tmp_path / name).unlink()
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))) as store:
        assert store.put_message(MessageExtBrokerInner("T", b"x")).ok


@pytest.mark.parametrize("name", file_kinds.FILES)
def test_a_directory_in_a_files_place_is_refused_and_named(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 16)
    with MessageStore(config) as store:
        assert store.put_message(MessageExtBrokerInner("T", b"x")).ok
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir(parents=True)
    refusal = re.escape(f"{root / name}: found a directory, allowed is a file")
    with pytest.raises(StoreError, match=refusal):
        MessageStore(config).load()
    with StoreReader(root) as reader:
        [finding] = verify(reader).damage
        assert (finding.file, finding.found, finding.expected) == (name, "a directory", "a file")
        assert [message.body for message in reader.messages()] == [b"x"]
        with pytest.raises(StoreError, match=refusal):
            rebuild(reader)
        salvage(reader, str(tmp_path / "saved"))
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).clean
    (root / name).rmdir()
    with MessageStore(config) as store:
        assert store.max_offset_in_queue("T", 0) == 1


@pytest.mark.parametrize("name", ["lock", "checkpoint", "oberth.state"])
def test_a_link_to_itself_in_a_files_place_is_refused_and_named(tmp_path: Path, name: str) -> None:
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 16
    )
    with MessageStore(config) as store:
        assert store.put_message(MessageExtBrokerInner("T", b"x")).ok
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(name)
    with StoreReader(tmp_path) as reader:
        [finding] = verify(reader).damage
    assert (finding.file, finding.found) == (name, "a link that leads to itself")
    with pytest.raises(StoreError, match=f"{name}: found a link that leads to itself, allowed is"):
        MessageStore(config).load()


def test_the_store_of_a_dledger_broker_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Its messages are in dledger-n0; without a CommitLog its queues would look like left-overs."""
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    with MessageStore(config) as store:
        assert store.put_message(MessageExtBrokerInner("t", b"x")).ok
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    shutil.rmtree(tmp_path / "commitlog")
    with pytest.raises(StoreCorruptError, match="dledger-n0: the log of a DLedger broker"):
        MessageStore(config).load()
    assert (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").stat().st_size


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("how", ["delete", "clean"])
def test_what_is_not_dispatched_yet_does_not_come_into_the_queue_of_a_topic_made_again(
    tmp_path: Path, flush: str, how: str
) -> None:
    """Its number would be that of a message that is put later, which nobody would find then."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=400,
        flush_disk_type=FlushDiskType[flush],
    )
    store = MessageStore(config)
    store.load()
    store.start(background=False)
    try:
        store.append_messages([MessageExtBrokerInner.of("t", b"old %d" % n) for n in range(3)])
        if how == "delete":
            store.delete_topics(["t"])
        else:
            assert store.clean_unused_topics(lambda _: False) == ["t"]
        store.dispatch_nowait()
        assert store.max_offset_in_queue("t", 0) <= 0
        for n in range(5):
            store.append_messages([MessageExtBrokerInner.of("t", b"new %d" % n)])
        store.flush()
        store.dispatch_nowait()
        found = store.get_message("g", "t", 0, 0, 32)
        messages = [store.look_message_by_offset(at) for at in found.commit_log_offsets]
        assert [m.body for m in messages if m is not None] == [b"new %d" % n for n in range(5)]
    finally:
        store.shutdown()


def test_no_message_has_no_store_time(tmp_path: Path) -> None:
    with MessageStore(small(tmp_path)) as store:
        put(store, 4)
        drain(store)
        assert store.message_store_timestamp("t", 0, 1) > 0
        for topic, queue_id, offset in (("t", 0, 2), ("t", 0, -1), ("t", 7, 0), ("none", 0, 0)):
            assert store.message_store_timestamp(topic, queue_id, offset) == -1


def test_a_start_after_a_kill_trusts_a_state_that_ends_with_a_segment(tmp_path: Path) -> None:
    """Dispatch had stepped over the blank at the end of a segment that is not the first."""
    config = small(tmp_path / "live")
    end = 2 * config.mapped_file_size_commit_log
    store = MessageStore(config)
    store.confirmed_by_replicas = lambda: end
    store.load()
    store.start(reput_thread=False, background=False)
    try:
        put(store, 700)
        assert store.max_phy_offset > end
        store.dispatch_nowait()
        assert store.dispatched_offset == end
        store.checkpoint_now()
        copy_killed(tmp_path / "live", tmp_path / "killed")
    finally:
        store.shutdown()
    with MessageStore(small(tmp_path / "killed")) as store:
        assert store.report is not None
        assert store.report.vouched
        assert store.report.scanned_from == end


def test_a_burst_is_told_when_its_sync_failed(tmp_path: Path) -> None:
    """All of it that is not on the disk but what waits for nothing."""
    config = small(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    files = GatedFiles()
    store = MessageStore(config, files=files)
    store.load()
    store.start(background=False)
    burst = [MessageExtBrokerInner("t", b"x", wait_store_ok=waits) for waits in (True, False, True)]
    try:
        assert all(each.ok for each in store.put_messages(burst))
        files.error = OSError(5, "Input/output error")
        assert [each.status.name for each in store.put_messages(burst)] == [
            "FLUSH_DISK_TIMEOUT", "PUT_OK", "FLUSH_DISK_TIMEOUT",
        ]  # fmt: skip
    finally:
        store.kill()
