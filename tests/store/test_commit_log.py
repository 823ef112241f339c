"""CommitLog.append: what is written decodes to what was put, statuses, rolls, full disks.

Against the decoder of `formats.message`, with small segments on a real file system.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rigs.failing_appends import copies_fail_behind_their_end

from oberth.errors import StoreFullError
from oberth.formats import properties as p
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    MAGIC_V2,
    STORE_TIMESTAMP_END_MAX,
    MessageExt,
    decode_record,
    encode_host,
)
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.property_crc import TAIL_SIZE, record_crc_ok
from oberth.formats.sys_flag import (
    BORN_HOST_V6,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from oberth.store import commit_log as commit_log_module
from oberth.store.commit_log import CommitLog
from oberth.store.files import OsFileSystem
from oberth.store.mapped_file import MappedFile
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import (
    MessageExtBatch,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from oberth.store.running_flags import RunningFlag, RunningFlags

Make = Callable[..., CommitLog]
SEGMENT = 4096


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[CommitLog] = []

    def make_log(
        attributes: Mapping[str, Mapping[str, str]] | None = None, **options: object
    ) -> CommitLog:
        config = MessageStoreConfig(mapped_file_size_commit_log=SEGMENT)
        for name, value in options.items():
            setattr(config, name, value)
        files = OsFileSystem()
        directory = str(tmp_path / f"commitlog{len(made)}")
        queue = MappedFileQueue(files, [directory], config.mapped_file_size_commit_log)
        clock = itertools.count(1_700_000_000_000)
        table = attributes or {}
        log = CommitLog(
            files,
            config,
            queue,
            RunningFlags(),
            lambda: next(clock),
            lambda topic: table.get(topic, {}),
        )
        made.append(log)
        return log

    yield make_log
    for log in made:
        log.queue.close()


def read(log: CommitLog, offset: int) -> MessageExt:
    record = log.select_record(offset)
    assert record is not None
    return decode_record(record, check_crc=True, at=offset)


def test_a_burst_decodes_to_what_was_put(make: Make) -> None:
    log = make()
    messages = [
        MessageExtBrokerInner(
            f"topic-{number % 3}",
            bytes([number]) * number,
            p.encode_properties({"KEYS": f"k{number}", "TAGS": "t"}),
            number % 2,
            flag=number,
            born_timestamp=1000 + number,
            born_host=encode_host("10.0.0.1", number),
            reconsume_times=number,
        )
        for number in range(20)
    ]
    results = log.append(messages)
    expected: dict[tuple[str, int], int] = {}
    for message, result in zip(messages, results, strict=True):
        assert result.status is PutMessageStatus.PUT_OK
        stored = read(log, result.commit_log_offset)
        key = (message.topic, message.queue_id)
        assert stored.queue_offset == result.queue_offset == expected.setdefault(key, 0)
        expected[key] += 1
        assert (stored.topic, stored.queue_id, stored.body) == (*key, message.body)
        assert stored.properties_raw == message.properties_raw
        assert (stored.flag, stored.born_timestamp) == (message.flag, message.born_timestamp)
        assert (stored.born_host, stored.store_host) == (message.born_host, message.store_host)
        assert stored.reconsume_times == message.reconsume_times
        assert stored.store_timestamp == result.store_timestamp
        assert result.end_offset == result.commit_log_offset + stored.record_size
    for (topic, queue_id), offset in expected.items():
        assert log.queue_offset(topic, queue_id) == offset


@pytest.mark.parametrize("append_crc", [False, True])
def test_no_record_ends_in_a_zero(make: Make, append_crc: bool) -> None:
    log = make(enabled_append_prop_crc=append_crc)
    raw = b"A\x01a\0"
    batch = encode_batch([BatchItem(0, b"b", raw)])
    results = log.append(
        [
            MessageExtBrokerInner("t", b"one", properties_raw=raw),
            MessageExtBrokerInner("t", b"half", properties_raw=raw, sys_flag=TRANSACTION_PREPARED),
            MessageExtBatch("t", batch),
        ]
    )
    for result in results:
        message = read(log, result.commit_log_offset)
        assert not message.ends_in_zeros
        assert message.properties["A"] == "a\0"


@pytest.mark.parametrize("left", [8, 9, 15, 100])
def test_a_segment_ends_in_a_blank_when_the_next_record_does_not_fit(make: Make, left: int) -> None:
    log = make()
    filler = SEGMENT - left - 91 - 1
    first = log.append([MessageExtBrokerInner("t", bytes(filler))])[0]
    assert first.status is PutMessageStatus.PUT_OK
    second = log.append([MessageExtBrokerInner("t", b"x" * 50)])[0]
    assert second.commit_log_offset == SEGMENT
    blank_at = SEGMENT - left
    assert BLANK.unpack_from(log.queue.segments[0].buffer, blank_at) == (left, BLANK_MAGIC)
    assert read(log, SEGMENT).queue_offset == 1


def test_one_burst_may_cross_segments(make: Make) -> None:
    log = make()
    results = log.append([MessageExtBrokerInner("t", bytes(700)) for _ in range(20)])
    assert [r.queue_offset for r in results] == list(range(20))
    assert len(log.queue.segments) == 4
    assert [read(log, r.commit_log_offset).queue_offset for r in results] == list(range(20))


def test_what_is_too_large_is_refused_and_costs_no_offset(make: Make) -> None:
    log = make(max_message_size=1000)
    results = log.append(
        [
            MessageExtBrokerInner("t", bytes(1000)),
            MessageExtBrokerInner("t", bytes(1001)),
            MessageExtBrokerInner("t" * 128, b""),
            MessageExtBrokerInner("t" * 256, b""),
            MessageExtBrokerInner("", b""),
            MessageExtBrokerInner("t", b"", b"a\x01" + b"x" * 32767),
            MessageExtBrokerInner("t", b"", b"a\x01" + b"x" * 4000),
            MessageExtBrokerInner("t", b"end"),
        ]
    )
    illegal = PutMessageStatus.MESSAGE_ILLEGAL
    assert [r.status for r in results] == [
        PutMessageStatus.PUT_OK,
        illegal,
        illegal,
        illegal,
        illegal,
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        illegal,  # legal by its options, but it fits no segment of this size
        PutMessageStatus.PUT_OK,
    ]
    assert results[-1].queue_offset == 1


def test_long_retry_topics_need_a_version_2_record(make: Make) -> None:
    log = make()
    topic = "%RETRY%" + "g" * 200
    result = log.append([MessageExtBrokerInner(topic, b"x")])[0]
    stored = read(log, result.commit_log_offset)
    assert (stored.magic, stored.topic) == (MAGIC_V2, topic)
    old = make(line=Line.V4_9)
    assert old.append([MessageExtBrokerInner(topic, b"x")])[0].status is (
        PutMessageStatus.MESSAGE_ILLEGAL
    )


def test_ipv6_hosts_set_their_bits_and_others_are_not_trusted(make: Make) -> None:
    log = make()
    v6 = encode_host("2001:db8::1", 1234)
    v4 = encode_host("10.1.2.3", 99)
    results = log.append(
        [
            MessageExtBrokerInner("t", b"1", born_host=v6, store_host=v4),
            MessageExtBrokerInner("t", b"2", born_host=v4, store_host=v6),
            MessageExtBrokerInner("t", b"3", born_host=v6, store_host=v6),
            MessageExtBrokerInner("t", b"4", sys_flag=BORN_HOST_V6 | STORE_HOST_V6),
        ]
    )
    stored = [read(log, r.commit_log_offset) for r in results]
    assert [s.sys_flag for s in stored] == [
        BORN_HOST_V6,
        STORE_HOST_V6,
        BORN_HOST_V6 | STORE_HOST_V6,
        0,
    ]
    assert (stored[0].born_host, stored[1].store_host) == (v6, v6)
    assert len(results[1].message_id) == 56


def test_prepared_and_rollback_take_no_queue_offset(make: Make) -> None:
    log = make()
    kinds = [0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0]
    results = log.append([MessageExtBrokerInner("t", b"x", sys_flag=kind) for kind in kinds])
    assert [r.queue_offset for r in results] == [0, 0, 1, 0, 2]


def test_a_delay_level_goes_to_the_schedule_topic(make: Make) -> None:
    log = make(message_delay_level="1s 5s")
    raw = p.encode_properties({"DELAY": "9", "TAGS": "t"})
    first, second = log.append(
        [
            MessageExtBrokerInner("t", b"x", raw, 3),
            MessageExtBrokerInner("t", b"x", raw, 3, convert=False),
        ]
    )
    stored = read(log, first.commit_log_offset)
    assert (stored.topic, stored.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert stored.properties == {"DELAY": "2", "TAGS": "t", "REAL_TOPIC": "t", "REAL_QID": "3"}
    delivered = read(log, second.commit_log_offset)
    assert (delivered.topic, delivered.queue_id, delivered.properties_raw) == ("t", 3, raw)


def test_a_timer_message_goes_to_the_wheel_and_limits_are_kept(make: Make) -> None:
    log = make()
    now = 1_700_000_000_000
    cases = {
        "later": {"TIMER_DELAY_SEC": "10"},
        "absolute": {"TIMER_DELIVER_MS": str(now + 5000)},
        "past": {"TIMER_DELIVER_MS": str(now - 5000)},
        "too far": {"TIMER_DELAY_SEC": str(259_200 + 60)},
        "level wins": {"TIMER_DELAY_SEC": "10", "DELAY": "1"},
        "recall of what is past": {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "k"},
    }
    results = [
        log.append([MessageExtBrokerInner("t", b"x", p.encode_properties(properties))])[0]
        for properties in cases.values()
    ]
    illegal = PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
    ok = PutMessageStatus.PUT_OK
    assert [r.status for r in results] == [ok, ok, ok, illegal, ok, illegal]
    stored = [read(log, r.commit_log_offset) for r in results if r.ok]
    assert [s.topic for s in stored] == [
        "rmq_sys_wheel_timer",
        "rmq_sys_wheel_timer",
        "t",
        "SCHEDULE_TOPIC_XXXX",
    ]
    assert stored[1].properties["TIMER_OUT_MS"] == str(now + 5000 - 1000)
    assert "TIMER_DELAY_SEC" not in stored[3].properties
    off = make(timer_wheel_enable=False)
    refused = off.append([MessageExtBrokerInner("t", b"x", b"TIMER_DELAY_SEC\x0110\x02")])[0]
    assert refused.status is PutMessageStatus.WHEEL_TIMER_NOT_ENABLE


@pytest.mark.parametrize(("line", "outer"), [(Line.V5, {}), (Line.V4_9, {"CLUSTER": "c"})])
def test_a_batch_becomes_records_of_one_queue(
    make: Make, line: Line, outer: dict[str, str]
) -> None:
    log = make(line=line)
    items = [BatchItem(n, b"b%d" % n, b"i\x01%d" % n) for n in range(3)]
    raw = p.encode_properties({"CLUSTER": "c"})
    result = log.append([MessageExtBatch("t", encode_batch(items), raw, 1)])[0]
    assert (result.status, result.message_count) == (PutMessageStatus.PUT_OK, 3)
    assert result.offsets is not None
    stored = [read(log, offset) for offset in result.offsets]
    assert [(s.body, s.queue_offset, s.flag) for s in stored] == [
        (b"b0", 0, 0),
        (b"b1", 1, 1),
        (b"b2", 2, 2),
    ]
    assert [s.properties for s in stored] == [{"i": str(n), **outer} for n in range(3)]
    assert len(result.message_id.split(",")) == 3


@pytest.mark.parametrize(
    ("body", "raw", "sys_flag"),
    [
        (b"", b"", 0),
        (b"garbage", b"", 0),
        (encode_batch([BatchItem(0, b"x", b"")]), b"DELAY\x013\x02", 0),
        (encode_batch([BatchItem(0, b"x", b"")]), b"", TRANSACTION_PREPARED),
        (encode_batch([BatchItem(0, bytes(3000), b""), BatchItem(0, bytes(3000), b"")]), b"", 0),
    ],
)
def test_an_illegal_batch_stores_nothing(
    make: Make, body: bytes, raw: bytes, sys_flag: int
) -> None:
    log = make()
    result = log.append([MessageExtBatch("t", body, raw, sys_flag=sys_flag)])[0]
    assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert log.queue_offset("t", 0) == 0


def test_a_batch_that_does_not_fit_moves_whole_to_the_next_segment(make: Make) -> None:
    log = make()
    log.append([MessageExtBrokerInner("t", bytes(3000))])
    body = encode_batch([BatchItem(0, bytes(400), b"") for _ in range(3)])
    result = log.append([MessageExtBatch("t", body)])[0]
    assert result.commit_log_offset == SEGMENT


def test_a_batch_has_room_for_its_number_before_a_segment_ends(make: Make) -> None:
    flag = INNER_BATCH | NEED_UNWRAP
    raw = p.encode_properties({"INNER_NUM": "5"})
    batch = MessageExtBrokerInner("b", b"x", raw, sys_flag=flag)
    topics = {"b": {"queue.type": "BatchCQ"}}
    size = make(topics).append([batch])[0].end_offset
    for left in range(size - 1, size - 4, -1):
        log = make(topics)
        filler = SEGMENT - BLANK_SIZE_MIN - left - 91 - len("t")
        (first,) = log.append([MessageExtBrokerInner("t", bytes(filler))])
        assert first.end_offset == SEGMENT - BLANK_SIZE_MIN - left
        (result,) = log.append([batch])
        assert result.commit_log_offset == SEGMENT


def test_places_that_a_sender_gives_are_not_stored(make: Make) -> None:
    log = make()
    for name in ("INNER_MULTI_QUEUE_OFFSET", "INNER_BASE"):
        raw = p.encode_properties({"a": "b", name: "7"})
        (result,) = log.append([MessageExtBrokerInner("t", b"x", raw)])
        assert read(log, result.commit_log_offset).properties == {"a": "b"}


def test_inner_batches_need_a_batch_topic_and_advance_by_their_number(make: Make) -> None:
    log = make({"b": {"queue.type": "BatchCQ"}})
    flag = INNER_BATCH | NEED_UNWRAP
    raw = p.encode_properties({"INNER_NUM": "5", "UNIQ_KEY": "k"})
    results = log.append(
        [
            MessageExtBrokerInner("b", b"x", raw, sys_flag=flag),
            MessageExtBrokerInner("b", b"x", raw, sys_flag=flag),
            MessageExtBrokerInner("b", b"plain"),
            MessageExtBrokerInner("t", b"x", raw, sys_flag=flag),
            MessageExtBrokerInner("t", b"x", raw),
            MessageExtBrokerInner("b", b"x", b"", sys_flag=flag),
            # More digits than Python makes a number of: no reason to fail the others' append.
            MessageExtBrokerInner("b", b"x", b"INNER_NUM\x01" + b"9" * 5000, sys_flag=flag),
        ]
    )
    illegal = PutMessageStatus.MESSAGE_ILLEGAL
    assert [r.status for r in results[3:]] == [illegal] * 4
    assert [r.queue_offset for r in results[:3]] == [0, 5, 10]
    assert read(log, results[1].commit_log_offset).properties["INNER_BASE"] == "5"


@pytest.mark.parametrize("name", ["note", "XINNER_NUM"])
def test_a_value_may_hold_the_name_of_a_property(make: Make, name: str) -> None:
    log = make()
    message = MessageExtBrokerInner.of("t", b"x", properties={name: "INNER_NUM says 5"})
    (result,) = log.append([message])
    assert result.status is PutMessageStatus.PUT_OK
    record = log.select_record(result.commit_log_offset)
    assert record is not None
    assert decode_record(record).properties[name] == "INNER_NUM says 5"


def test_light_queues_count_on_their_own_and_are_limited(make: Make) -> None:
    log = make(enable_lmq=True, enable_multi_dispatch=True, max_lmq_consume_queue_num=2)
    names = p.encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
    results = log.append([MessageExtBrokerInner("t", b"x", names) for _ in range(3)])
    stored = [read(log, r.commit_log_offset).properties for r in results]
    assert [s["INNER_MULTI_QUEUE_OFFSET"] for s in stored] == ["0,0", "1,1", "2,2"]
    one_more = p.encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%c"})
    refused = log.append([MessageExtBrokerInner("t", b"x", one_more)])[0]
    assert refused.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    retry = log.append([MessageExtBrokerInner("%RETRY%g", b"x", one_more)])[0]
    assert retry.status is PutMessageStatus.PUT_OK


def test_the_whole_record_crc_covers_the_record(make: Make) -> None:
    log = make(enabled_append_prop_crc=True)
    old = p.encode_properties({"a": "b", "__CRC32#": "0000000000"}, trailing_separator=False)
    results = log.append(
        [
            MessageExtBrokerInner("t", b"x", b""),
            MessageExtBrokerInner("t", b"x", b"a\x01b"),
            MessageExtBrokerInner("t", b"x", old),
            MessageExtBatch("t", encode_batch([BatchItem(0, b"i", b"k\x01v\x02")])),
        ]
    )
    for result in results:
        record = log.select_record(result.commit_log_offset)
        assert record is not None
        assert record_crc_ok(record) is True
    assert read(log, results[1].commit_log_offset).properties["a"] == "b"


def test_a_full_disk_takes_back_what_it_could_not_store(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    assert log.append([MessageExtBrokerInner("t", b"kept")])[0].ok
    append = MappedFile.append

    def full(self: MappedFile, data: bytes) -> None:
        raise StoreFullError(f"{self.path}: no room for {len(data)} bytes")

    monkeypatch.setattr(MappedFile, "append", full)
    results = log.append(
        [MessageExtBrokerInner("t", b"lost", queue_id=number % 2) for number in range(10)]
    )
    assert {r.status for r in results} == {PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
    monkeypatch.setattr(MappedFile, "append", append)
    again = log.append([MessageExtBrokerInner("t", b"again", queue_id=n) for n in range(2)])
    assert [(r.ok, r.queue_offset) for r in again] == [(True, 1), (True, 0)]
    assert read(log, again[0].commit_log_offset).body == b"again"


def test_a_burst_goes_on_where_a_failed_write_left_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    append = MappedFile.append

    def fails_once(self: MappedFile, data: bytes) -> None:
        monkeypatch.setattr(MappedFile, "append", append)
        raise OSError(5, "Input/output error", self.path)

    monkeypatch.setattr(MappedFile, "append", fails_once)
    # The fourth has no room, and what waits is written.
    results = log.append([MessageExtBrokerInner("t", bytes(1000)) for _ in range(5)])
    failed = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    assert [r.status for r in results] == [failed] * 4 + [PutMessageStatus.PUT_OK]
    assert (results[4].queue_offset, results[4].commit_log_offset) == (0, 0)


def test_a_small_message_behind_one_for_which_no_segment_can_be_made(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment had room for it until it was ended for the one before."""
    log = make()
    assert log.append([MessageExtBrokerInner("t", bytes(3000))])[0].ok

    def full(self: MappedFileQueue) -> None:
        raise StoreFullError("no room for a segment")

    bodies = [b"fits", bytes(2000), b"small"]
    with monkeypatch.context() as disk:
        disk.setattr(MappedFileQueue, "last_or_create", full)
        results = log.append([MessageExtBrokerInner("t", body) for body in bodies])
    failed = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    assert [each.status for each in results] == [PutMessageStatus.PUT_OK, failed, failed]
    (again,) = log.append([MessageExtBrokerInner("t", b"again")])
    assert (again.queue_offset, again.commit_log_offset) == (2, SEGMENT)


def test_a_message_with_a_transaction_for_which_no_segment_can_be_made_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: MappedFileQueue) -> None:
        raise StoreFullError("no room for a segment")

    monkeypatch.setattr(MappedFileQueue, "last_or_create", full)
    message = MessageExtBrokerInner("t", b"x", sys_flag=TRANSACTION_PREPARED)
    (refused,) = make().append([message])
    assert refused.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED


@pytest.mark.parametrize("line", list(Line))
def test_a_full_disk_takes_back_numbers_of_light_queues(
    make: Make, monkeypatch: pytest.MonkeyPatch, line: Line
) -> None:
    """4.9 numbers a plain topic among them too, in the queue of the message."""
    log = make(line=line, enable_lmq=True, enable_multi_dispatch=True)
    names = p.encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,plain"})

    def put(count: int) -> list[PutMessageResult]:
        return log.append([MessageExtBrokerInner("t", b"x", names, 3) for _ in range(count)])

    assert put(1)[0].ok

    def full(self: MappedFile, data: bytes) -> None:
        raise StoreFullError(f"{self.path}: no room for {len(data)} bytes")

    with monkeypatch.context() as disk:
        disk.setattr(MappedFile, "append", full)
        assert not any(result.ok for result in put(2))
    assert log.light_queue_offsets(["%LMQ%a", "plain"], 3) == [1, 1 if line is Line.V4_9 else None]
    (again,) = put(1)
    said = read(log, again.commit_log_offset).properties["INNER_MULTI_QUEUE_OFFSET"]
    assert said == ("1,1" if line is Line.V4_9 else "1,")


def test_what_a_failing_disk_left_of_a_long_burst_is_erased(make: Make) -> None:
    log = make(mapped_file_size_commit_log=64 << 10)
    assert log.append([MessageExtBrokerInner("t", b"kept")])[0].ok
    segment = log.queue.segments[0]
    end = segment.wrote_position
    bodies = [b"a" * 3000, b"b" * 3000]
    with copies_fail_behind_their_end():
        lost = log.append([MessageExtBrokerInner("t", body) for body in bodies])
    assert {r.status for r in lost} == {PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
    assert (segment.wrote_position, any(segment.buffer[end:])) == (end, True)
    again = log.append([MessageExtBrokerInner("t", bodies[0])])[0]
    assert (again.ok, again.queue_offset) == (True, 1)
    # Else the second record would join on to this one, and a recovery would take it.
    assert not any(segment.buffer[segment.wrote_position :])


def test_flags_are_those_of_rocketmq() -> None:
    assert [flag.value for flag in RunningFlag] == [1, 2, 4, 8, 16, 32, 64]
    flags = RunningFlags()
    flags.set(RunningFlag.NOT_READABLE)
    assert (flags.is_readable, flags.is_writeable) == (False, True)


def test_an_unwriteable_store_says_so(make: Make) -> None:
    log = make()
    log.flags.set(RunningFlag.DISK_FULL)
    refused = log.append([MessageExtBrokerInner("t", b"x")])[0]
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    log.flags.clear(RunningFlag.DISK_FULL)
    assert log.append([MessageExtBrokerInner("t", b"x")])[0].ok


def test_stale_bytes_behind_the_end_are_erased_before_the_next_append(make: Make) -> None:
    log = make()
    results = log.append([MessageExtBrokerInner("t", b"old" * 30) for _ in range(5)])
    end = results[1].end_offset
    log.set_end(end, erase_to=results[-1].end_offset)
    log.append([MessageExtBrokerInner("t", b"n")])
    segment = log.queue.segments[0]
    assert not any(segment.buffer[segment.wrote_position :])


def test_a_replica_erases_stale_bytes_too(make: Make) -> None:
    log = make(mapped_file_size_commit_log=64 << 10)
    results = log.append([MessageExtBrokerInner("t", b"old" * 30) for _ in range(5)])
    segment = log.queue.segments[0]
    piece = bytes(segment.buffer[results[1].end_offset : results[2].end_offset])
    log.set_end(results[1].end_offset, erase_to=results[-1].end_offset)
    assert log.append_raw(results[1].end_offset, piece)
    # Else the fourth record would join on to the third, which may be another master's.
    assert not any(segment.buffer[segment.wrote_position :])
    end = segment.wrote_position
    with copies_fail_behind_their_end(), pytest.raises(OSError, match="Input/output error"):
        log.append_raw(end, b"x" * 6000)
    assert segment.wrote_position == end
    assert log.append_raw(end, b"y" * 10)
    assert not any(segment.buffer[segment.wrote_position :])


def test_store_times_never_go_back(make: Make) -> None:
    log = make()
    log.last_store_timestamp = 1_900_000_000_000
    result = log.append([MessageExtBrokerInner("t", b"x")])[0]
    assert result.store_timestamp == 1_900_000_000_000


def queue_offsets(log: CommitLog) -> list[int]:
    """The queue offsets of all records, in the order of the log."""
    found, at = [], log.min_offset
    while (record := log.select_record(at)) is not None:
        found.append(decode_record(record).queue_offset)
        at += len(record)
        record.release()
    return found


@pytest.mark.parametrize("why", ["hook", "field"])
def test_a_message_that_raises_takes_no_queue_offset_and_leaves_no_gap(
    make: Make, why: str
) -> None:
    log = make()

    def hook(message: MessageExtBrokerInner) -> MessageExtBrokerInner:
        if message.body == b"bad":
            raise ValueError("no")
        return message

    bad = MessageExtBrokerInner("t", b"bad")
    if why == "hook":
        log.put_hooks.append(hook)
    else:
        bad.flag = 1 << 40
    good = MessageExtBrokerInner("t", b"good")
    with pytest.raises((ValueError, struct.error)):
        log.append([good, bad, good])
    assert log.append([good])[0].queue_offset == 1
    assert queue_offsets(log) == [0, 1]


def test_what_one_caller_raises_is_no_business_of_the_others(make: Make) -> None:
    log = make()
    good = MessageExtBrokerInner("t", b"good")
    bad = MessageExtBrokerInner("t", b"bad", flag=1 << 40)
    large = MessageExtBrokerInner("t", bytes(2000))
    outcomes: list[PutMessageResult | Exception] = []
    log.append_each([good, bad, large, bad, good, large, good, bad], outcomes)
    offsets = [
        type(outcome) if isinstance(outcome, Exception) else outcome.queue_offset
        for outcome in outcomes
    ]
    # The large ones make the burst go over a segment's end.
    assert offsets == [0, struct.error, 1, struct.error, 2, 3, 4, struct.error]
    assert len(log.queue.segments) == 2
    for outcome in outcomes:
        if isinstance(outcome, PutMessageResult):
            record = log.select_record(outcome.commit_log_offset)
            assert record is not None
            assert decode_record(record).queue_offset == outcome.queue_offset
            record.release()


def test_an_interrupted_burst_keeps_what_it_has_results_for(make: Make) -> None:
    log = make()
    outcomes: list[PutMessageResult | Exception] = []

    def hook(message: MessageExtBrokerInner) -> MessageExtBrokerInner:
        if message.body == b"third":
            raise KeyboardInterrupt
        return message

    log.put_hooks.append(hook)
    bodies = [b"first", b"second", b"third", b"fourth"]
    with pytest.raises(KeyboardInterrupt):
        log.append_each([MessageExtBrokerInner("t", body) for body in bodies], outcomes)
    assert len(outcomes) == 2
    assert queue_offsets(log) == [0, 1]


def test_an_unwriteable_store_says_so_to_each(make: Make) -> None:
    log = make()
    log.flags.set(RunningFlag.NOT_WRITEABLE)
    outcomes: list[PutMessageResult | Exception] = []
    log.append_each([MessageExtBrokerInner("t", b"x")] * 2, outcomes)
    statuses = [outcome.status for outcome in outcomes if isinstance(outcome, PutMessageResult)]
    assert statuses == [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 2
    assert outcomes[0] is not outcomes[1]


def test_a_store_time_needs_all_of_its_bytes(make: Make) -> None:
    log = make()
    (result,) = log.append([MessageExtBrokerInner.of("t", b"body")])
    assert result.ok
    record = log.select(0, log.max_offset)
    assert record is not None
    stored = decode_record(record).store_timestamp
    assert log.store_timestamp(0, log.max_offset) == stored
    assert log.store_timestamp(0, STORE_TIMESTAMP_END_MAX) == stored
    assert log.store_timestamp(0, STORE_TIMESTAMP_END_MAX - 1) == -1
    assert log.store_timestamp(0, log.max_offset + 1) == -1
    assert log.store_timestamp(SEGMENT, 100) == -1


@pytest.mark.parametrize(
    ("line", "topic", "is_taken"),
    [
        (Line.V4_9, "t" * 127, True),
        (Line.V4_9, "t" * 128, False),
        (Line.V4_9, "\u00e9" * 64, False),
        (Line.V4_9, "%RETRY%" + "t" * 121, False),
        (Line.V5, "t" * 127, True),
        (Line.V5, "t" * 128, False),
        (Line.V5, "%RETRY%" + "t" * 248, True),
        (Line.V5, "%RETRY%" + "t" * 249, False),
    ],
)
def test_how_long_a_topic_may_be(make: Make, line: Line, topic: str, is_taken: bool) -> None:
    (result,) = make(line=line).append([MessageExtBrokerInner(topic, b"x")])
    refused = PutMessageStatus.MESSAGE_ILLEGAL
    assert result.status is (PutMessageStatus.PUT_OK if is_taken else refused)


@pytest.mark.parametrize("crc", [False, True])
def test_properties_of_a_half_message_may_be_as_long(make: Make, crc: bool) -> None:
    """Without the bytes of the CRC and what parts it from them, where the log has one."""
    log = make(mapped_file_size_commit_log=1 << 17, enabled_append_prop_crc=crc)
    most = p.PROPERTIES_SIZE_MAX - (TAIL_SIZE + 1 if crc else 0)
    for size, is_taken in ((most, True), (most + 1, False)):
        raw = b"k\x01" + b"v" * (size - 3) + b"\x02"
        half = MessageExtBrokerInner("t", b"x", raw, sys_flag=TRANSACTION_PREPARED)
        (result,) = log.append([half])
        refused = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert result.status is (PutMessageStatus.PUT_OK if is_taken else refused)


def test_a_half_message_fills_a_segment_to_the_last_byte(make: Make) -> None:
    """But for what a blank needs."""
    log = make()
    first = SEGMENT - BLANK_SIZE_MIN - 100
    for size, offset in ((first, 0), (100, first)):
        body = bytes(size - 91 - len("t"))
        (result,) = log.append([MessageExtBrokerInner("t", body, sys_flag=TRANSACTION_PREPARED)])
        assert result.commit_log_offset == offset


def test_properties_may_be_as_long_as_their_field_can_say(make: Make) -> None:
    log = make(mapped_file_size_commit_log=1 << 17)
    for more, status in (
        (0, PutMessageStatus.PUT_OK),
        (1, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED),
    ):
        raw = b"k\x01" + bytes(p.PROPERTIES_SIZE_MAX - 3 + more).replace(b"\0", b"v") + b"\x02"
        (result,) = log.append([MessageExtBrokerInner("t", b"x", raw)])
        assert result.status is status


def test_properties_have_room_for_the_numbers_in_light_queues(make: Make) -> None:
    log = make(mapped_file_size_commit_log=1 << 17, enable_lmq=True, enable_multi_dispatch=True)
    names = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    numbers = b"INNER_MULTI_QUEUE_OFFSET\x010\x02"
    left = p.PROPERTIES_SIZE_MAX - len(names) - len(numbers)
    long, longest = (names + b"k\x01" + b"v" * (size - 3) + b"\x02" for size in (left + 1, left))
    (refused,) = log.append([MessageExtBrokerInner("t", b"x", long)])
    assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    (taken,) = log.append([MessageExtBrokerInner("t", b"x", longest)])
    assert taken.ok
    stored = read(log, taken.commit_log_offset)
    assert len(stored.properties_raw) == p.PROPERTIES_SIZE_MAX
    assert stored.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"


def test_a_queue_begins_at_0_beside_others(make: Make) -> None:
    log = make()
    assert log.queue_offset("t", 0) == 0
    assert log.append([MessageExtBrokerInner.of("t", b"x")])[0].ok
    assert (log.queue_offset("t", 0), log.queue_offset("t", 1)) == (1, 0)


def test_only_4_9_numbers_plain_topics_among_light_queues(make: Make) -> None:
    names = ["%LMQ%a", "plain"]
    assert make().light_queue_offsets(names, 3) == [0, None]
    assert make(line=Line.V4_9).light_queue_offsets(names, 3) == [0, 0]


def test_what_a_record_needs_is_brought_in(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make()
    assert log.append([MessageExtBrokerInner.of("t", b"x")])[0].ok
    end = log.max_offset
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(log, "bring_in", lambda start, stop: asked.append((start, stop)))
    log.bring_in_record(0)
    log.bring_in_record(end)
    log.bring_in_record(100 * SEGMENT)
    assert asked == [(0, end)]


def test_the_put_locks_age(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    ages: list[float] = []

    class Attributes(dict[str, Mapping[str, str]]):
        """Asked for once, while the lock is held."""

        def get(self, topic: object, default: object = None) -> Any:
            now[0] += 0.25
            ages.append(log.lock_time_ms())
            return {}

    attributes = Attributes(t={})
    log = make(attributes)
    monkeypatch.setattr(commit_log_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert log.lock_time_ms() == 0
    assert log.append([MessageExtBrokerInner.of("t", b"x")])[0].ok
    assert ages == [250]
    assert log.lock_time_ms() == 0
    assert list(log.append_times.recent_s) == [0.25]

    def append_plain(sends: object, slots: object) -> bool:
        now[0] += 0.5
        ages.append(log.lock_time_ms())
        return True

    monkeypatch.setattr(log, "_append_plain", append_plain)
    nothing: Any = None  # which is handed on
    assert log.append_plain(nothing, [])
    assert ages == [250, 500]
    assert log.lock_time_ms() == 0
    assert list(log.append_times.recent_s) == [0.25, 0.5]
