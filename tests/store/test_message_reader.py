"""Most reads: the short way gives what the long one gives, and is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.store import residency
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.message_reader import MessageReader
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageResult, MessageExtBrokerInner, TagsFilter

RECORDS = 60
Known = tuple[MessageStore, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """Records of many sizes in segments of 8 KiB, none of them in a queue, and where they lie."""
    made = MessageStore(
        MessageStoreConfig(
            store_path_root_dir=str(tmp_path_factory.mktemp("store")),
            mapped_file_size_commit_log=1 << 13,
            mapped_file_size_consume_queue=400,
        )
    )
    made.load()
    made.start(reput_thread=False, background=False)
    results = made.append_messages(
        [MessageExtBrokerInner.of("T", bytes(7 * number)) for number in range(RECORDS)]
    )
    yield made, [(each.commit_log_offset, each.record_size) for each in results]
    made.shutdown()


def shown(result: GetMessageResult) -> dict[str, Any]:
    values = {name: getattr(result, name) for name in GetMessageResult.__slots__}
    values["records"] = b"".join(result.records)  # how many pieces they are in does not matter
    return values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, RECORDS), st.sampled_from([0, 0, 0, 0, 1, 3])), min_size=1
    ),
    offset=st.integers(0, 30),
    wanted=st.integers(1, 40),
    size_max=st.sampled_from([100, 2000, 1 << 22]),
    young_bytes=st.sampled_from([0, 3000, 1 << 30]),
    in_a_row=st.booleans(),
    codes=st.sampled_from([None, {0}, {0, 1}, {0, 1, 2}]),
)
def test_the_short_way_is_the_long_one(
    known: Known,
    steps: list[tuple[int, int]],
    offset: int,
    wanted: int,
    size_max: int,
    young_bytes: int,
    in_a_row: bool,
    codes: set[int] | None,
) -> None:
    """Over queues with fillers, with messages that stand in for others, and of any order."""
    store, places = known
    queue = store.queues.find_or_create("T", 0)
    assert isinstance(queue, ConsumeQueue)
    queue.reset()
    number = 0
    for index, (which, gap) in enumerate(steps):
        where = places[(steps[0][0] + index if in_a_row else which) % RECORDS]
        number += gap
        queue.put(*where, number % 3 if codes else 0, number)
        number += 1
    reader = store.reader
    reader._young_bytes = young_bytes
    wants = TagsFilter(codes) if codes else None
    long_way = reader._get(queue, offset, wanted, wants, size_max)
    known_codes = wants.codes if wants else None
    short_way = reader._get_plain(queue, offset, wanted, known_codes, size_max)
    if short_way is not None:
        assert shown(short_way) == shown(long_way)


def test_the_short_way_is_the_one_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    long_way = MessageReader._get

    def noted(self: MessageReader, *arguments: Any) -> GetMessageResult:
        ways.append("long")
        return long_way(self, *arguments)

    monkeypatch.setattr(MessageReader, "_get", noted)
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    config.mapped_file_size_commit_log = 1 << 16
    store = MessageStore(config)
    store.load()
    store.start(reput_thread=False, background=False)
    try:
        store.append_messages([MessageExtBrokerInner.of(t, b"x") for t in ("first", *"tu" * 50)])
        store.dispatch_nowait()
        for offset, count in ((0, 32), (40, 10), (49, 1)):
            got = store.get_message("g", "t", 0, offset, 32)
            assert (got.message_count, got.next_begin_offset) == (count, offset + count)
        store.get_message("g", "t", 0, 0, 32, TagsFilter({0, 1}))
        assert ways == []
        store.get_message("g", "t", 0, 0, 32, TagsFilter({1}))
        assert ways == ["long"]
        config.line = Line.V4_9
        store.get_message("g", "t", 0, 0, 32)
        assert ways == ["long", "long"]
    finally:
        store.shutdown()


def test_the_system_is_asked_once_about_what_many_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of old messages in memory; a block that is not there as a whole is looked at anew."""
    now_s = 100.0
    looked: list[tuple[int, int]] = []
    absent_from = 1 << 40
    monkeypatch.setattr(residency, "WARM_BYTES", 0)
    monkeypatch.setattr("oberth.store.residency.time.monotonic", lambda: now_s)

    def is_resident(self: CommitLog, start: int, end: int) -> bool:
        looked.append((start, end))
        return end <= absent_from

    monkeypatch.setattr(CommitLog, "is_resident", is_resident)
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))) as store:
        count = 2 * residency.BLOCK_UNITS
        results = store.put_messages([MessageExtBrokerInner.of("t", b"x") for _ in range(count)])
        store.dispatch_nowait()
        starts = [each.commit_log_offset for each in results]
        for first in range(0, count, 32):
            assert store.is_resident("t", 0, first, 32)
        assert len(looked) == 2
        now_s += 2
        looked.clear()
        absent_from = starts[40]
        assert [store.is_resident("t", 0, first, 32) for first in (0, 32, 0)] == [True, False, True]
        assert looked[0][0] == starts[0]
        assert looked[0][1] > absent_from  # the block
        assert [end <= absent_from for _, end in looked[1:]] == [True, False, True]


def test_what_a_reader_comes_to_is_brought_in_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two halves of a stretch ahead, until it is forgotten; not what is young, not past an end."""
    now_s = 100.0
    brought_in: list[int] = []
    monkeypatch.setattr(residency, "WARM_BYTES", 0)
    monkeypatch.setattr(residency, "BLOCK_UNITS", 4)
    monkeypatch.setattr(residency, "AHEAD_BLOCKS", 4)
    monkeypatch.setattr("oberth.store.residency.time.monotonic", lambda: now_s)
    monkeypatch.setattr(
        CommitLog, "is_resident", lambda self, start, end: any(start <= b < end for b in brought_in)
    )
    monkeypatch.setattr(CommitLog, "bring_in", lambda self, start, end: brought_in.append(start))
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))) as store:
        results = store.put_messages([MessageExtBrokerInner.of("t", b"x") for _ in range(50)])
        store.dispatch_nowait()
        number_of = {each.commit_log_offset: number for number, each in enumerate(results)}

        def read(first: int) -> list[int]:
            brought_in.clear()
            if store.wants_ahead("t", 0, first):
                store.bring_in_ahead("t", 0, first)
            return [number_of[each] for each in brought_in]

        assert read(0) == []  # nobody knows yet whether it is old
        store.bring_in("t", 0, 0, 2)
        assert [number_of[each] for each in brought_in] == [0]  # its block
        assert read(0) == [4, 8, 12]
        assert read(4) == []
        store.bring_in("t", 0, 8, 2)
        assert read(8) == [16, 20, 24, 28]
        assert read(8) == []
        now_s += 2
        store.bring_in("t", 0, 40, 2)
        assert read(40) == [48]  # and its end
        assert read(40) == []
        assert not store.wants_ahead("none", 0, 0)
        store.bring_in_ahead("none", 0, 0)
        monkeypatch.setattr(residency, "AHEAD_BYTES_MAX", 1)
        now_s += 2
        store.bring_in("t", 0, 0, 2)
        assert read(0) == [4]
        now_s += 2
        young = store.max_phy_offset - results[20].commit_log_offset
        monkeypatch.setattr(residency, "WARM_BYTES", young)
        assert store.is_resident("t", 0, 24, 2)
        assert not store.wants_ahead("t", 0, 24)


def test_records_far_apart_are_brought_in_by_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by blocks, whose records are few of many that lie there."""
    brought_in: list[int] = []
    monkeypatch.setattr(residency, "WARM_BYTES", 0)
    monkeypatch.setattr(CommitLog, "is_resident", lambda *_: False)
    monkeypatch.setattr(CommitLog, "bring_in", lambda self, start, end: brought_in.append(start))
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))) as store:
        topics = [*"tu"] * 50
        bodies = {"t": b"x", "u": bytes(70_000)}
        messages = [MessageExtBrokerInner.of(topic, bodies[topic]) for topic in topics]
        starts = [
            result.commit_log_offset
            for topic, result in zip(topics, store.put_messages(messages), strict=True)
            if topic == "t"
        ]
        store.dispatch_nowait()
        store.bring_in("t", 0, 3, 2)
        assert brought_in == starts[3:5]
        assert not store.wants_ahead("t", 0, 3)
        brought_in.clear()
        monkeypatch.setattr(residency, "BLOCK_RANGES_MAX", 50)
        store.bring_in("t", 0, 3, 2)
        assert brought_in == starts
        brought_in.clear()
        monkeypatch.setattr(residency, "BLOCK_SPAN_MAX", 1000)
        store.bring_in("t", 0, 3, 2)
        assert brought_in == starts[3:5]
