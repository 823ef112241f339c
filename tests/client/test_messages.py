"""Proves that messages say what golden records say, and refuse what brokers would misread."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.client.messages import (
    Message,
    decode_messages,
    encode_message_properties,
)
from oberth.errors import MQClientError, RecordError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import MAGIC_V1, MAGIC_V2, MessageExt, decode_record, encode_host
from oberth.formats.properties import decode_properties
from oberth.formats.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    NEED_UNWRAP,
)


def record(
    body: bytes = b"body",
    topic: str = "T",
    properties: bytes = b"TAGS\x01a\x02",
    sys_flag: int = 0,
    born_host: bytes = encode_host("10.0.0.1", 1234),
    magic: int = MAGIC_V1,
) -> bytes:
    raw_topic = topic.encode()
    size = (
        88 + len(born_host) - 8 + len(body) + (1 if magic == MAGIC_V1 else 2) + len(raw_topic)
        + 2 + len(properties)
    )  # fmt: skip
    return MessageExt(
        topic, 3, 42, 1000, size, magic, 0, 9, sys_flag, 111, born_host, 222,
        encode_host("10.0.0.2", 10911), 2, 0, body, properties,
    ).encode()  # fmt: skip


def test_all_that_a_record_says() -> None:
    (message,) = decode_messages(record(), "broker-a")
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 42)
    assert (message.body, message.tags, message.keys) == (b"body", "a", "")
    assert (message.flag, message.sys_flag, message.reconsume_times) == (9, 0, 2)
    assert (message.born_timestamp, message.store_timestamp) == (111, 222)
    assert (message.born_host, message.store_host) == ("10.0.0.1:1234", "10.0.0.2:10911")
    assert message.offset_msg_id == message.msg_id == "0A00000200002A9F00000000000003E8"
    assert message.store_size == len(record())
    assert message.message_queue.broker_name == "broker-a"
    assert message.properties == {"TAGS": "a"}


def test_v6_hosts_and_long_topics() -> None:
    raw = record(
        topic="t" * 200, magic=MAGIC_V2, sys_flag=0x10, born_host=encode_host("fe80::1", 5)
    )
    (message,) = decode_messages(raw)
    assert message.topic == "t" * 200
    assert message.born_host.endswith(":5")
    assert message.body == b"body"


@given(st.lists(st.tuples(st.binary(max_size=50), st.text(min_size=1, max_size=20)), max_size=8))
def test_several_records_as_the_general_decoder_reads_them(
    parts: list[tuple[bytes, str]],
) -> None:
    raws = [record(body, topic[:20]) for body, topic in parts]
    for ours, raw in zip(decode_messages(b"".join(raws)), raws, strict=True):
        theirs = decode_record(raw)
        assert (ours.topic, ours.body, ours.properties) == (
            theirs.topic,
            theirs.body,
            theirs.properties,
        )


@pytest.mark.parametrize("algorithm", [0, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x400])
def test_a_body_that_does_not_decompress_comes_as_it_is_stored(algorithm: int) -> None:
    raw = record(b"no such thing", sys_flag=COMPRESSED | algorithm) + record(b"behind it")
    bad, good = decode_messages(raw)
    assert bad.body == bad.stored_body == b"no such thing"
    assert bad.body_error
    assert (good.body, good.body_error) == (b"behind it", None)


def test_an_inner_batch_that_does_not_parse_comes_as_one_message() -> None:
    wrapped = INNER_BATCH | NEED_UNWRAP
    whole = encode_batch([BatchItem(1, b"one", b""), BatchItem(2, b"two", b"")])
    named = b"INNER_BASE\x0142\x02INNER_NUM\x012\x02"
    raw = record(whole[:-1], properties=named, sys_flag=wrapped)
    raw += record(zlib.compress(whole), properties=named, sys_flag=wrapped | COMPRESSED)
    raw += record(b"\x01", properties=named, sys_flag=wrapped | COMPRESSED) + record(b"behind")
    torn, one, two, packed, behind = decode_messages(raw)
    assert (torn.body, torn.queue_offset) == (whole[:-1], 42)
    assert torn.body_error is not None
    assert [(m.body, m.queue_offset, m.body_error) for m in (one, two)] == [
        (b"one", 42, None), (b"two", 43, None),
    ]  # fmt: skip
    assert packed.body_error is not None
    assert behind.body == b"behind"


def test_a_record_cut_off_at_the_end_is_left_out() -> None:
    whole = record() + record(b"other")
    for cut in range(len(record()), len(whole)):
        assert len(decode_messages(whole[:cut])) == 1


@given(st.data())
def test_damaged_records_are_an_error_or_messages(data: st.DataObject) -> None:
    raw = bytearray(record() * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = decode_messages(bytes(raw))
    except RecordError:
        return
    for message in messages:
        repr(message)
        _ = message.properties, message.tags, message.born_host


@pytest.mark.parametrize("name", ["a\x01", "a\x02", ""])
def test_properties_with_separators_are_refused(name: str) -> None:
    with pytest.raises(MQClientError):
        encode_message_properties({name: "v"})
    with pytest.raises(MQClientError):
        encode_message_properties({"n": f"v{name}"} if name else {"": ""})


def test_properties_too_long_are_refused() -> None:
    with pytest.raises(MQClientError, match="32767"):
        encode_message_properties({"n": "x" * 33_000})
    assert decode_properties(encode_message_properties({"n": "ü", "m": "2"})) == {
        "n": "ü",
        "m": "2",
    }
    assert encode_message_properties({}) == ""


def test_reserved_names_are_refused() -> None:
    with pytest.raises(MQClientError, match="TAGS"):
        Message("T", b"x", properties={"TAGS": "a"})
    message = Message("T", b"x", tags="a", keys=["k", "l"], properties={"mine": "1"})
    with pytest.raises(MQClientError):
        message.put_user_property("UNIQ_KEY", "1")
    message.put_user_property("other", "2")
    assert message.keys == "k l"
    copy = Message.of(message)
    assert copy.properties == message.properties


def test_message_arguments_become_properties() -> None:
    message = Message(
        "T", b"x", delay_time_level=3, delay_ms=1500, deliver_time_ms=99, sharding_key="s",
        wait_store_msg_ok=False,
    )  # fmt: skip
    assert message.properties == {
        "WAIT": "false",
        "DELAY": "3",
        "TIMER_DELAY_MS": "1500",
        "TIMER_DELIVER_MS": "99",
        "__SHARDINGKEY": "s",
    }
    assert message.delay_time_level == 3
    assert not message.wait_store_msg_ok
