"""Dispatch that follows a growing log: queues and index like a rebuild's, each message once.

The writer is a test's own; dispatchers are killed between any two steps.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.store.test_cleaning import SizedDisk

from oberth.errors import StoreLockedError
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import Dispatch, MessageStoreConfig
from oberth.formats.sys_flag import INNER_BATCH
from oberth.formats.topic_config import TopicConfig, TopicConfigs
from oberth.spark.calendar import moment
from oberth.spark.pipelines.tail_dispatch import TailDispatcher
from oberth.store.following_store import FollowingStore
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.log_walk import next_valid
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = {
    "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "100", "maxIndexNum": "400",
}  # fmt: skip


def drain(tail: TailDispatcher) -> None:
    """Takes all there is; the newest record is taken at the second look."""
    idle = 0
    while idle < 3:
        idle = 0 if tail.advance().records else idle + 1


def check(root: Path, count: int) -> None:
    with StoreReader(root, OPTIONS) as reader:
        report = verify(reader)
    assert report.clean, report.findings[:3]
    assert report.units == count


def test_a_growing_log(growing_store: Any) -> None:
    count = 0
    with TailDispatcher(str(growing_store.root), OPTIONS) as tail:
        for step in (1, 3, 500, 1, 900):
            for _ in range(step):
                key = f"k{count}"
                growing_store.append("Topic", count % 3, b"x" * 700, keys=key, dispatch=False)
                count += 1
            drain(tail)
            tail.flush()
            check(growing_store.root, count)
        assert tail.records == count


@pytest.mark.parametrize("impossible", [2**62, 2**52, -(2**62), -(2**63)], ids=str)
def test_a_time_that_no_calendar_has_ends_no_query(growing_store: Any, impossible: int) -> None:
    pytest.importorskip("pyspark")
    from oberth.spark.pipelines.dispatch_stream import DispatchReader

    growing_store.append("Topic", 0, b"a", time=impossible, dispatch=False)
    growing_store.append("Topic", 0, b"b", time=impossible, dispatch=False)
    reader = DispatchReader(str(growing_store.root), OPTIONS)
    offset, rows = reader.initialOffset(), list[Any]()
    while sum(row[1] for row in rows) < 2:
        made, offset = reader.read(offset)
        rows += list(made)
    assert {row[2] for row in rows} <= {None, moment(0)}


def test_a_backlog_is_taken_in_one_step(
    growing_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few records the kernels take at once: Spark comes back only after a trigger."""
    from oberth.spark.pipelines import tail_dispatch

    monkeypatch.setattr(tail_dispatch, "_ROWS", 16)
    for number in range(100):
        growing_store.append("Topic", 0, b"x" * 700, keys=f"k{number}", dispatch=False)
    with TailDispatcher(str(growing_store.root), OPTIONS) as tail:
        assert tail.advance().records in (99, 100)  # the newest waits for a second look
        drain(tail)
        assert tail.records == 100
    check(growing_store.root, 100)


def test_nothing_is_taken_out_of_a_record_that_is_torn(growing_store: Any) -> None:
    """A body of records that name their own places; its writer was killed."""
    from oberth.formats import message as m

    host = m.encode_host("10.0.0.1", 1)

    def false_records(at: int) -> bytes:
        return b"".join(
            m.MessageExt(
                "payments", 0, number, at + 100 * number, 100, m.MAGIC_V1, 0, 0, 0, 1 << 42, host,
                1 << 42, host, 0, 0, b"", b"x",
            ).encode()
            for number in range(200)
        )  # fmt: skip

    growing_store.append("Topic", 0, b"first", dispatch=False)
    growing_store.append("Topic", 0, false_records, dispatch=False, upto=10_000)
    with TailDispatcher(str(growing_store.root), OPTIONS) as tail:
        drain(tail)
        assert tail.records == 1
    assert [each.name for each in (growing_store.root / "consumequeue").iterdir()] == ["Topic"]


def test_nothing_of_a_record_before_all_of_it(growing_store: Any) -> None:
    root = growing_store.root
    growing_store.append("Topic", 0, b"first", dispatch=False)
    growing_store.append("Topic", 0, b"y" * 900, keys="k", dispatch=False)
    log = root / "commitlog" / f"{0:020d}"
    whole = log.read_bytes()
    with StoreReader(root, OPTIONS) as reader:
        first, second = reader.messages()
    end = second.commit_log_offset + second.record_size
    with TailDispatcher(str(root), OPTIONS) as tail:
        for cut in (second.commit_log_offset, second.commit_log_offset + 4, end - 300, end - 1):
            log.write_bytes(whole[:cut] + bytes(len(whole) - cut))
            drain(tail)
            assert tail.position == first.record_size
        log.write_bytes(whole)
        drain(tail)
        assert tail.position == end
    check(root, 2)


def test_a_record_that_was_half_there_is_not_stepped_over(
    growing_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer finishes a record, and the next, between a look and the search behind it."""
    from oberth.spark.pipelines import tail_dispatch

    root = growing_store.root
    growing_store.append("Topic", 0, b"first", dispatch=False)
    real = next_valid
    with TailDispatcher(str(root), OPTIONS) as tail:
        drain(tail)
        tail._looked_at = 0.0
        growing_store.append("Topic", 0, b"second", dispatch=False)

        def write_on(*arguments: Any, **options: Any) -> Any:
            growing_store.append("Topic", 0, b"third", dispatch=False)
            return real(*arguments, **options)

        monkeypatch.setattr(tail_dispatch, "next_valid", write_on)
        tail.advance()
        monkeypatch.undo()
        drain(tail)
    check(root, 3)


@pytest.mark.crash
def test_killed_and_restarted(growing_store: Any) -> None:
    root = str(growing_store.root)
    count = 0
    for steps in (1, 2, 5, 9):
        for _ in range(300):
            growing_store.append("Topic", count % 2, b"z" * 500, keys=f"k{count}", dispatch=False)
            count += 1
        child = os.fork()
        if child == 0:
            try:
                tail = TailDispatcher(root, OPTIONS).__enter__()
                for number in range(steps):
                    tail.advance()
                    if number == 2:
                        tail.flush()
            finally:
                os._exit(9)
        os.waitpid(child, 0)
    with TailDispatcher(root, OPTIONS) as tail:
        drain(tail)
    check(growing_store.root, count)


def test_one_at_a_time(growing_store: Any) -> None:
    growing_store.append("Topic", 0, b"x", dispatch=False)
    child = os.fork()
    ready = growing_store.root / "ready"
    if child == 0:
        TailDispatcher(str(growing_store.root), OPTIONS).__enter__()
        ready.touch()
        time.sleep(60)
        os._exit(0)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with (
            pytest.raises(StoreLockedError, match="another process dispatches"),
            TailDispatcher(str(growing_store.root), OPTIONS),
        ):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def write_topics(root: Path, *batch_topics: str) -> None:
    """As a broker does it: the new table takes the old one's place."""
    table = {
        name: TopicConfig(topic_name=name, attributes={"queue.type": "BatchCQ"})
        for name in batch_topics
    }
    table["Topic"] = TopicConfig(topic_name="Topic")
    (root / "config").mkdir(exist_ok=True)
    fresh = root / "config" / "topics.json.tmp"
    fresh.write_bytes(TopicConfigs(topic_config_table=table).encode())
    fresh.replace(root / "config" / "topics.json")


@pytest.mark.parametrize("count", [1, 400], ids=["one-by-one", "in-bulk"])
def test_a_batch_topic_that_is_made_meanwhile_gets_batch_queues(
    growing_store: Any, count: int
) -> None:
    root = growing_store.root
    growing_store.append("Topic", 0, b"first", dispatch=False)
    with TailDispatcher(str(root), OPTIONS) as tail:
        drain(tail)
        made: list[str] = []
        for name in ("B", "C"):
            made.append(name)
            write_topics(root, *made)
            for number in range(count):
                growing_store.append(
                    name, 0, b"batch", dispatch=False, flags=INNER_BATCH,
                    properties={"INNER_NUM": "1", "INNER_BASE": str(number)},
                )  # fmt: skip
            drain(tail)
        (root / "config" / "topics.json").unlink()
        growing_store.append("C", 1, b"what was known stays so", dispatch=False)
        growing_store.append("Topic", 1, b"last", dispatch=False)
        drain(tail)
        assert tail.records == 2 * count + 3
    names = {kind: sorted(p.name for p in (root / kind).iterdir()) for kind in
             ("consumequeue", "batchconsumequeue")}  # fmt: skip
    assert names == {"consumequeue": ["Topic"], "batchconsumequeue": ["B", "C"]}
    write_topics(root, "B", "C")
    check(root, 2 * count + 3)


@pytest.mark.spark
def test_as_a_query(spark: SparkSession, growing_store: Any, tmp_path: Path) -> None:
    from oberth.spark.pipelines.dispatch_stream import start_dispatch

    growing_store.append("Topic", 0, b"x", keys="k", dispatch=False)

    def wait_for(count: int) -> float:
        path = growing_store.root / "consumequeue" / "Topic" / "0" / f"{0:020d}"
        started = time.monotonic()
        while time.monotonic() < started + 60:
            if path.exists() and any(path.read_bytes()[20 * (count - 1) : 20 * count]):
                return time.monotonic() - started
            time.sleep(0.005)
        raise AssertionError(f"message {count} was not dispatched in time")

    for run in range(2):
        query = start_dispatch(
            spark, str(growing_store.root), str(tmp_path / "checkpoint"), entries=OPTIONS
        )
        try:
            wait_for(1 + 10 * run)
            for number in range(10):
                growing_store.append("Topic", 0, b"y", keys="k", dispatch=False)
                wait_for(10 * run + number + 2)
        finally:
            query.stop()
    check(growing_store.root, 21)


class Killed(BaseException):
    """Ends a process in the middle of something."""


def slots_gone(view: memoryview, slots: int, entries_max: int) -> int:
    """As far as `relink` comes when it is killed early: no key leads anywhere."""
    del entries_max
    view[40 : 40 + 4 * slots] = bytes(4 * slots)
    raise Killed


@pytest.mark.crash
@pytest.mark.parametrize("dispatch", ["broker", "spark"])
def test_a_store_repairs_what_a_killed_dispatcher_left(
    growing_store: Any, monkeypatch: pytest.MonkeyPatch, dispatch: str
) -> None:
    """Also where the store was stopped in order, before or after the kill."""
    root = growing_store.root
    for number in range(300):
        growing_store.append("Topic", 0, b"body", keys=f"k{number}", dispatch=False)
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=100,
        max_index_num=400,
        dispatch=Dispatch(dispatch),
    )

    def killed_dispatcher() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("oberth.kernels.index.relink", slots_gone)
            with pytest.raises(Killed):
                TailDispatcher(str(root), OPTIONS).__enter__()

    def opened_and_closed() -> None:
        with (FollowingStore if dispatch == "spark" else MessageStore)(config) as store:
            for number in range(300):
                found = store.query_message("Topic", f"k{number}", 10, 0, 2**62)
                assert len(found.records) == 1, number

    with TailDispatcher(str(root), OPTIONS) as tail:
        drain(tail)
    killed_dispatcher()
    opened_and_closed()
    check(root, 300)
    killed_dispatcher()
    opened_and_closed()
    if dispatch == "spark":
        with FollowingStore(config):
            killed_dispatcher()
        opened_and_closed()
    check(root, 300)


@pytest.mark.parametrize("follows", [True, False], ids=["dispatcher", "no-dispatcher"])
def test_a_deleted_topic_stays_deleted_after_a_crash(tmp_path: Path, *, follows: bool) -> None:
    """It was the only one: no other topic tells that the queues of this one were not lost."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=100,
        max_index_num=400,
        dispatch=Dispatch.SPARK,
    )
    store = FollowingStore(config)
    store.load()
    store.start()
    for number in range(30):
        store.put_message(MessageExtBrokerInner.of("gone", b"body", keys=f"k{number}"))
    store.flush()
    tail = TailDispatcher(str(tmp_path), OPTIONS)
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            tail.advance()

    with tail:
        drain(tail)
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        assert store.topics() == ["gone"]
        if follows:
            following = threading.Thread(target=follow)
            following.start()
            try:
                store.delete_topics(["gone"])
            finally:
                is_over.set()
                following.join()
    if not follows:
        store.delete_topics(["gone"])
    store.kill()
    with FollowingStore(config) as again:
        assert again.report is not None
        assert again.report.reason == "the last checkpoint"
        assert again.topics() == []


def small_segments(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=100,
        max_index_num=400,
        compaction_mapped_file_size=1 << 20,
        compaction_cq_mapped_file_size=46 * 1000,
        delete_commit_log_files_interval_ms=0,
        delete_consume_queue_files_interval_ms=0,
        dispatch=Dispatch.SPARK,
    )


def read_from(store: MessageStore, offset: int) -> list[str]:
    """The keys of what is readable from an offset on."""
    found = []
    while (result := store.get_message("g", "Topic", 0, offset, 32)).message_count:
        for piece in result.records:  # records that lie side by side are one
            at = 0
            while at < len(piece):
                message = decode_record(piece, at)
                found.append(message.properties["KEYS"])
                at += message.record_size
        offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("compacts", [False, True])
def test_what_is_put_since_the_start_is_cleaned(tmp_path: Path, *, compacts: bool) -> None:
    """A compaction topic keeps all of it. The dispatcher goes on meanwhile, and after it."""
    disk, config = SizedDisk(), small_segments(tmp_path)
    policy = {"cleanup.policy": "COMPACTION"} if compacts else {}

    def opened() -> FollowingStore:
        store = FollowingStore(config, files=disk, topic_attributes=lambda _: policy)
        store.load()
        store.start(background=False)
        return store

    def put(store: FollowingStore, tail: TailDispatcher, start: int, stop: int) -> None:
        for number in range(start, stop):
            body = bytes(20_000)
            message = MessageExtBrokerInner.of("Topic", body, keys=f"k{number}", queue_id=0)
            assert store.put_message(message).ok
        store.flush()
        drain(tail)
        tail.flush()

    def take_in(store: FollowingStore) -> None:
        while store.dispatch_behind_bytes:
            assert store.dispatch_nowait()

    config.max_index_num = 40
    options = {**OPTIONS, "maxIndexNum": "40"}
    store = opened()
    with TailDispatcher(str(tmp_path), options) as tail:
        put(store, tail, 0, 300)
        assert len(list((tmp_path / "index").iterdir())) == 8
        disk.percent = 88
        assert store.cleaning.run() == 0, "this store has not seen yet what the dispatcher has done"
        take_in(store)
        count = len(store.commit_log.queue.segments)
        assert store.cleaning.run() == count - 1 > 3
        disk.percent = 10
        assert store.cleaning.run() == 0
        low = store.queues.queues("Topic")[0].min_offset
        assert low > 200
        assert len(list((tmp_path / "index").iterdir())) == 8 - low // 39
        put(store, tail, 300, 330)
        take_in(store)
    low = 0 if compacts else low
    assert store.compaction is not None
    store.compaction.follow()  # no thread does it here
    kept = [f"k{number}" for number in range(low, 330)]
    assert read_from(store, low) == kept
    store.shutdown()
    store = opened()
    assert read_from(store, low) == kept
    store.shutdown()
    with StoreReader(tmp_path, options) as reader:
        report = verify(reader)
    assert report.clean, report.findings[:3]


def test_a_check_point_during_a_start_is_of_what_the_start_has_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk; the dispatcher's own note is of queues that are not there any more."""
    config = small_segments(tmp_path)
    with FollowingStore(config) as store:
        for number in range(30):
            store.put_message(MessageExtBrokerInner.of("Topic", b"body", keys=f"k{number}"))
        store.flush()
        with TailDispatcher(str(tmp_path), OPTIONS) as tail:
            drain(tail)
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
    shutil.rmtree(tmp_path / "consumequeue")
    written: list[bytes] = []

    def write_queues(self: FollowingStore) -> None:
        self.checkpoint_now()
        path = tmp_path / "consumequeue" / "Topic" / "0" / f"{0:020d}"
        written.append(path.read_bytes()[: 30 * 20] if path.exists() else b"")

    monkeypatch.setattr(FollowingStore, "_write_queues", write_queues)
    again = FollowingStore(config)
    again.load()
    assert len(written[0]) == 600
    assert all(any(written[0][at : at + 20]) for at in range(0, 600, 20))
    again.shutdown()
