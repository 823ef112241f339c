"""Records decode to what RocketMQ reads and encode to the bytes that it wrote.

Proved on every record of every golden store, field by field and byte by byte; by round trips of
random messages, IPv4 and IPv6, v1 and v2; and by cutting and changing records at every byte, where
a value or a RecordError is allowed and nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import RecordError
from oberth.formats.batch_body import decode_batch
from oberth.formats.compression import decompress_body
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.formats.message import (
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    CRC_MASK,
    FIXED_SIZE_V1,
    FIXED_SIZE_V2,
    MAGIC_V1,
    MAGIC_V2,
    Blank,
    DispatchRequest,
    Invalid,
    MessageExt,
    body_crc,
    decode_host,
    decode_record,
    encode_blank,
    encode_host,
    host_address,
    read_dispatch_request,
    record_size,
    store_timestamp_at,
)
from oberth.formats.message_id import offset_message_id
from oberth.formats.properties import decode_properties, encode_properties
from oberth.formats.sys_flag import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6


def test_every_golden_record(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    log = store.commit_log()
    delays = parse_delay_levels(store.config.get("messageDelayLevel", DEFAULT_DELAY_LEVELS))
    for expected in store.facts["messages"]:
        offset = expected["commitLogOffset"]
        segment, position = log.locate(offset)
        raw = log.read(offset, expected["storeSize"])
        found = decode_record(segment, position, check_crc=expected["crcOk"], at=offset)
        assert found.encode() == raw
        assert found.crc_ok is expected["crcOk"]
        if "propertiesText" in expected:
            assert str(found.properties_raw, "utf-8") == expected["propertiesText"]
        assert {
            "commitLogOffset": found.commit_log_offset,
            "storeSize": found.record_size,
            "topic": found.topic,
            "queueId": found.queue_id,
            "queueOffset": found.queue_offset,
            "storedSysFlag": found.sys_flag,
            "flag": found.flag,
            "bornTimestamp": found.born_timestamp,
            "bornHost": decode_host(found.born_host),
            "storeTimestamp": found.store_timestamp,
            "storeHost": decode_host(found.store_host),
            "reconsumeTimes": found.reconsume_times,
            "preparedTransactionOffset": found.prepared_transaction_offset,
            "bodyCRC": found.body_crc,
            "msgId": offset_message_id(found.store_host, found.commit_log_offset),
            "magic": f"{found.magic & 0xFFFFFFFF:08x}",
            "storedBodyLength": len(found.body),
            "properties": found.properties,
        }.items() <= expected.items()
        assert store_timestamp_at(segment, position) == expected["storeTimestamp"]
        assert found.record_size == record_size(
            len(found.body),
            len(found.topic.encode()),
            len(found.properties_raw),
            found.sys_flag,
            found.magic,
        )
        check_body(found, expected)
        request = read_dispatch_request(
            segment, position, len(segment), offset - position, delays_ms=delays
        )
        assert isinstance(request, DispatchRequest)
        if expected["crcOk"]:  # Java's was made with the CRC check on and is empty otherwise
            assert {
                "tagsCode": request.tags_code,
                "keys": request.keys,
                "uniqKey": request.uniq_key,
                "storeTimestamp": request.store_timestamp,
                "consumeQueueOffset": request.queue_offset,
            }.items() >= expected["dispatch"].items()
        assert (request.topic, request.queue_id) == (found.topic, found.queue_id)
        assert (request.sys_flag, request.record_size) == (found.sys_flag, found.record_size)


def check_body(found: MessageExt, expected: dict[str, Any]) -> None:
    if expected["bodyLength"] is None:
        assert not found.body
        return
    if not expected["crcOk"]:
        return
    body = decompress_body(found.body, found.sys_flag)
    assert len(body) == expected["bodyLength"]
    assert hashlib.sha256(body).hexdigest() == expected["bodySha256"]
    assert expected["body"] is None or body == base64.b64decode(expected["body"])
    if found.sys_flag & INNER_BATCH:
        items = decode_batch(body)
        assert len(items) == len(expected["inner"]) == int(found.properties["INNER_NUM"])
        for item, inner in zip(items, expected["inner"], strict=True):
            assert hashlib.sha256(item.body).hexdigest() == inner["bodySha256"]
            assert decode_properties(item.properties).items() <= inner["properties"].items()
            assert item.flag == inner["flag"]


def test_golden_blanks(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    log = store.commit_log()
    for expected in store.facts["blanks"]:
        segment, position = log.locate(expected["offset"])
        found = read_dispatch_request(
            segment, position, len(segment), expected["offset"] - position
        )
        assert found == Blank(position, expected["sizeField"])
        assert len(segment) - position == expected["remaining"]
        assert encode_blank(expected["sizeField"]) == segment[position : position + BLANK_SIZE_MIN]
        with pytest.raises(RecordError):
            decode_record(segment, position)


@pytest.mark.parametrize("golden_name", ["flipped-bit-4.9.7", "flipped-bit-5.5.0"])
def test_golden_flipped_bit(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    offset = store.facts["unreadable"][0]["offset"]
    segment, position = store.commit_log().locate(offset)
    found = read_dispatch_request(
        segment, position, len(segment), offset - position, check_crc=True
    )
    assert isinstance(found, Invalid)
    assert found.record_size == store.facts["unreadable"][0]["sizeField"]
    with pytest.raises(RecordError, match="CRC"):
        decode_record(segment, position, check_crc=True)


def make_message(**changes: Any) -> MessageExt:
    values: dict[str, Any] = {
        "topic": "TopicTest",
        "queue_id": 3,
        "queue_offset": 7,
        "commit_log_offset": 0,
        "magic": MAGIC_V1,
        "flag": -1,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": encode_host("10.0.0.1", 30000),
        "store_timestamp": 1_700_000_000_001,
        "store_host": encode_host("127.0.0.1", 10911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"hello",
        "properties_raw": encode_properties({"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "U"}),
        **changes,
    }
    values["record_size"] = record_size(
        len(values["body"]),
        len(values["topic"].encode()),
        len(values["properties_raw"]),
        values["sys_flag"],
        values["magic"],
    )
    values["body_crc"] = body_crc(values["body"])
    return MessageExt(**values)


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_the_checksum_counts(bit: int) -> None:
    record = bytearray(make_message().encode())
    assert decode_record(record, check_crc=True).crc_ok
    record[8 + bit // 8] ^= 1 << bit % 8
    assert not decode_record(record).crc_ok
    with pytest.raises(RecordError, match="body CRC"):
        decode_record(record, check_crc=True)
    assert isinstance(read_dispatch_request(record, 0, len(record), 0, check_crc=True), Invalid)


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
V4 = st.binary(min_size=8, max_size=8)
V6 = st.binary(min_size=20, max_size=20)


@st.composite
def messages(draw: st.DrawFn) -> MessageExt:
    sys_flag = draw(INT32)
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    topic = draw(st.text(max_size=40 if magic == MAGIC_V1 else 300))
    return make_message(
        topic=topic.encode("utf-8", "replace").decode()[: 31 if magic == MAGIC_V1 else 300],
        queue_id=draw(INT32),
        queue_offset=draw(INT64),
        commit_log_offset=draw(INT64),
        magic=magic,
        flag=draw(INT32),
        sys_flag=sys_flag,
        born_timestamp=draw(INT64),
        born_host=draw(V6 if sys_flag & BORN_HOST_V6 else V4),
        store_timestamp=draw(INT64),
        store_host=draw(V6 if sys_flag & STORE_HOST_V6 else V4),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=draw(st.binary(max_size=200)),
        properties_raw=draw(st.binary(max_size=200)),
    )


@given(messages(), st.integers(0, 9))
def test_round_trip(message: MessageExt, position: int) -> None:
    raw = message.encode()
    assert len(raw) == message.record_size
    padded = b"x" * position + raw + b"y" * 3
    assert decode_record(padded, position, check_crc=True) == message
    assert decode_record(memoryview(padded), position, at=message.commit_log_offset) == message
    assert store_timestamp_at(padded, position) == message.store_timestamp


@given(messages())
def test_dispatch_equals_decode(message: MessageExt) -> None:
    raw = message.encode()
    start = message.commit_log_offset
    request = read_dispatch_request(raw, 0, len(raw), start, check_crc=True)
    assert isinstance(request, DispatchRequest)
    for name in (
        "topic", "queue_id", "commit_log_offset", "record_size", "store_timestamp", "queue_offset",
        "sys_flag", "prepared_transaction_offset", "properties_raw", "born_timestamp", "keys",
        "uniq_key",
    ):  # fmt: skip
        assert getattr(request, name) == getattr(message, name)
    assert isinstance(read_dispatch_request(raw, 0, len(raw), start + 1), Invalid)


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("sys_flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_fixed_sizes(magic: int, sys_flag: int) -> None:
    fixed = FIXED_SIZE_V1 if magic == MAGIC_V1 else FIXED_SIZE_V2
    fixed += 12 * sys_flag.bit_count()
    message = make_message(
        topic="",
        body=b"",
        properties_raw=b"",
        magic=magic,
        sys_flag=sys_flag,
        born_host=bytes(20 if sys_flag & BORN_HOST_V6 else 8),
        store_host=bytes(20 if sys_flag & STORE_HOST_V6 else 8),
    )
    assert message.record_size == len(message.encode()) == fixed
    assert decode_record(message.encode()) == message


def test_a_cut_record_is_never_a_message() -> None:
    raw = make_message().encode()
    for end in range(len(raw)):
        with pytest.raises(RecordError):
            decode_record(raw[:end])
        assert isinstance(read_dispatch_request(raw, 0, end, 0), Invalid)
        torn = raw[:end] + bytes(len(raw) - end)
        found = read_dispatch_request(torn, 0, len(torn), 0, check_crc=True)
        # The last byte of this record is a separator, whose loss no length or CRC notices.
        assert isinstance(found, Invalid) or end >= len(raw) - len(make_message().properties_raw)


def test_any_changed_byte_gives_a_value_or_a_record_error() -> None:
    raw = make_message().encode()
    body_at = raw.index(b"hello")
    for position in range(len(raw)):
        for change in (1, 0x40, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[position] ^= change
            found = read_dispatch_request(damaged, 0, len(damaged), 0, check_crc=True)
            assert isinstance(found, (DispatchRequest, Invalid, Blank))
            if body_at <= position < body_at + 5 or position < 8 or 28 <= position < 36:
                assert not isinstance(found, DispatchRequest), position
            try:
                decoded: MessageExt | None = decode_record(damaged, check_crc=True)
            except RecordError:
                decoded = None
            if decoded is None:
                assert isinstance(found, (Invalid, Blank))
            else:
                assert isinstance(found, DispatchRequest) or decoded.commit_log_offset != 0


@given(st.binary(max_size=300), st.integers(0, 20))
def test_random_bytes(data: bytes, position: int) -> None:
    assert isinstance(read_dispatch_request(data, position, len(data), 0), (Invalid, Blank))
    with pytest.raises(RecordError):
        decode_record(data, position)


@given(
    st.integers(-200, 400),
    st.sampled_from([MAGIC_V1, MAGIC_V2, BLANK_MAGIC]),
    st.binary(min_size=60, max_size=300),
)
def test_hostile_lengths(size: int, magic: int, rest: bytes) -> None:
    data = size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big", signed=True) + rest
    found = read_dispatch_request(data, 0, len(data), 0, check_crc=True)
    assert isinstance(found, (Invalid, Blank, DispatchRequest))
    with contextlib.suppress(RecordError):
        assert decode_record(data).record_size == size


def test_messages_say_where_and_what() -> None:
    raw = make_message().encode()
    for damaged, text in [
        (raw[:50], "record size 1.., allowed are 91 to 50"),
        (bytes(120), "magic 0x00000000"),
        (raw[:3] + b"\x01" + raw[4:], "size 1, allowed are 91 to"),
        (raw[:84] + b"\x7f" + raw[85:], "body length"),
    ]:
        with pytest.raises(RecordError, match=text):
            decode_record(damaged)
    with pytest.raises(RecordError, match="record at 5: the record names offset 0"):
        decode_record(raw, at=5)


def test_hosts() -> None:
    assert encode_host("10.63.209.9", 10911).hex() == "0a3fd10900002a9f"
    v6 = encode_host("fe80::1%eth0", 1)
    assert (len(v6), decode_host(v6)) == (20, "fe80:0:0:0:0:0:0:1:1")
    assert host_address(v6) == "fe80:0:0:0:0:0:0:1"
    assert host_address(encode_host("1.2.3.4", 5)) == "1.2.3.4"


def test_delayed_messages_have_their_due_time() -> None:
    delays = parse_delay_levels("1s 5s")
    for level, due in [("1", 1000), ("2", 5000), ("9", 5000), ("0", None), ("x", None)]:
        raw = make_message(
            topic="SCHEDULE_TOPIC_XXXX",
            properties_raw=encode_properties({"DELAY": level, "TAGS": "TagA"}),
        ).encode()
        found = read_dispatch_request(raw, 0, len(raw), 0, delays_ms=delays)
        assert isinstance(found, DispatchRequest)
        assert found.tags_code == (2598919 if due is None else 1_700_000_000_001 + due)


@given(st.binary(max_size=100))
def test_body_crc(body: bytes) -> None:
    assert body_crc(body) == crc32(body) & CRC_MASK
    assert body_crc(b"") == 0
