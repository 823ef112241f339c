"""The store against a dict: Hypothesis puts, flushes, kills, reopens, cleans and asks both.

The model is a list of bodies per queue and a list of offsets per key. Files are small, so that
every run rolls segments, queues and index files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.java_string import java_hash
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    GetMessageStatus,
    MessageExtBatch,
    MessageExtBrokerInner,
    PutMessageStatus,
    TagsFilter,
)

SEGMENT = 4096
TOPICS = st.sampled_from(["a", "b", "%RETRY%g"])
QUEUES = st.integers(0, 2)
TAGS = st.sampled_from(["x", "y"])
KEYS = st.sampled_from(["k1", "k2", "AaAa", "BBBB"])
BODIES = st.integers(0, 900)


class StoreModel(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="oberth-model-"))
        self.queues: dict[tuple[str, int], list[tuple[bytes, str]]] = defaultdict(list)
        self.keys: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.count = 0
        self.store = self.open()

    def open(self) -> MessageStore:
        config = MessageStoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=20 * 8,
            max_hash_slot_num=8,
            max_index_num=16,
            file_reserved_time_hours=0,
            delete_commit_log_files_interval_ms=0,
            delete_consume_queue_files_interval_ms=0,
            disk_max_used_space_ratio=95,
        )
        store = MessageStore(config)
        store.load()
        store.start(background=False)
        return store

    def teardown(self) -> None:
        self.store.shutdown()
        shutil.rmtree(self.root)

    def dispatch(self) -> None:
        while self.store.dispatch_behind_bytes:
            self.store.dispatch_nowait()

    @initialize()
    def nothing_is_there(self) -> None:
        assert self.store.topics() == []
        result = self.store.get_message("g", "a", 0, 0, 1)
        assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE

    @rule(
        messages=st.lists(st.tuples(TOPICS, QUEUES, TAGS, KEYS, BODIES), min_size=1, max_size=6),
        dispatch=st.booleans(),
    )
    def put(self, messages: list[tuple[str, int, str, str, int]], dispatch: bool) -> None:
        burst = []
        for topic, queue_id, tag, key, size in messages:
            self.count += 1
            body = b"%d:" % self.count + bytes(size)
            burst.append(
                MessageExtBrokerInner.of(topic, body, tags=tag, keys=key, queue_id=queue_id)
            )
            self.queues[topic, queue_id].append((body, tag))
        for (topic, _, _, key, _), result in zip(
            messages, self.store.put_messages(burst), strict=True
        ):
            assert result.status is PutMessageStatus.PUT_OK
            self.keys[topic, key].append(result.commit_log_offset)
        if dispatch:
            self.dispatch()

    @rule(
        topic=TOPICS, queue_id=QUEUES, sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5)
    )
    def put_batch(self, topic: str, queue_id: int, sizes: list[int]) -> None:
        items = []
        for size in sizes:
            self.count += 1
            items.append(BatchItem(0, b"%d:" % self.count + bytes(size), b"TAGS\x01x\x02"))
        result = self.store.put_message(
            MessageExtBatch(topic, encode_batch(items), queue_id=queue_id)
        )
        assert result.status is PutMessageStatus.PUT_OK
        self.queues[topic, queue_id] += [(item.body, "x") for item in items]

    @rule()
    def refuse(self) -> None:
        result = self.store.put_message(MessageExtBrokerInner("a", bytes(SEGMENT)))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.max_phy_offset

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint_now()

    @rule()
    def write_behind(self) -> None:
        self.store.queues.write_behind()

    @rule()
    def reopen(self) -> None:
        self.dispatch()
        self.store.shutdown()
        self.store = self.open()
        report = self.store.report
        assert report is not None
        assert (report.abnormal, report.records_scanned, report.damages) == (False, 0, ())

    @rule()
    def kill(self) -> None:
        end = self.store.max_phy_offset
        self.store.kill()
        self.store = self.open()
        assert self.store.max_phy_offset == end

    @precondition(lambda self: len(self.store.commit_log.queue.segments) > 2)
    @rule()
    def clean(self) -> None:
        self.dispatch()
        self.store.delete_expired_files_manually()
        self.store.cleaning.run()
        low = self.store.min_phy_offset
        for offsets in self.keys.values():
            offsets[:] = [offset for offset in offsets if offset >= low]

    @rule(topic=TOPICS, queue_id=QUEUES, tag=st.none() | TAGS, maximum=st.integers(1, 40))
    def get(self, topic: str, queue_id: int, tag: str | None, maximum: int) -> None:
        self.dispatch()
        expected = self.queues[topic, queue_id]
        chosen = None if tag is None else TagsFilter([java_hash(tag)])
        low = max(self.store.min_offset_in_queue(topic, queue_id), 0)
        offset = low
        found: list[bytes] = []
        while True:
            result = self.store.get_message("g", topic, queue_id, offset, maximum, chosen)
            if result.status in (
                GetMessageStatus.OFFSET_OVERFLOW_ONE,
                GetMessageStatus.NO_MESSAGE_IN_QUEUE,
            ):
                break
            assert result.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
            assert result.next_begin_offset > offset
            assert result.message_count <= maximum
            offset = result.next_begin_offset
            for piece in result.records:
                position = 0
                while position < len(piece):
                    message = decode_record(piece, position, check_crc=True)
                    found.append(message.body)
                    position += message.record_size
            result.release()
        assert offset == len(expected)
        assert found == [body for body, tags in expected[low:] if tag in (None, tags)]

    @rule(topic=TOPICS, key=KEYS)
    def query(self, topic: str, key: str) -> None:
        self.dispatch()
        expected = self.keys[topic, key]
        result = self.store.query_message(topic, key, 64, 0, 2**62)
        # AaAa and BBBB have one hash: the index finds both, as RocketMQ's does.
        same = [k for k in ("k1", "k2", "AaAa", "BBBB") if java_hash(k) == java_hash(key)]
        wanted = sorted(offset for k in same for offset in self.keys[topic, k])
        assert set(expected) <= set(wanted)
        if len(wanted) <= 60:
            assert result.commit_log_offsets == wanted

    @invariant()
    def ends_agree(self) -> None:
        for (topic, queue_id), bodies in self.queues.items():
            assert self.store.commit_log.queue_offset(topic, queue_id) == len(bodies)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
