"""Check points, acknowledgements and receipts of POP: their texts, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oberth.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    BODY_SIZE_MAX,
    DIFFERENCE_END,
    MESSAGES_PER_POP_MAX,
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    CheckPointError,
    PopAck,
    PopCheckPoint,
    decode_ack,
    decode_check_point,
    encode_offset_list,
    merged_ack,
    offset_info,
    parse_receipt,
    real_topic,
    retried_topic,
    retry_flag,
)

BODY: dict[str, Any] = {"so": 10, "pt": 5, "it": 7, "q": 3, "t": "T", "c": "G", "bn": "b", "n": 3}


def check_point(count: int = 3) -> PopCheckPoint:
    return PopCheckPoint(10, 5, 7, 3, "T", "G", "b", tuple(range(count)))


def test_bits_are_those_of_the_offsets_that_were_handed_out() -> None:
    point = PopCheckPoint(10, 5, 7, 3, "T", "G", "b", (0, 2, 5))
    assert (point.revive_time, point.unacked(), point.acked()) == (12, [10, 12, 15], [])
    assert not point.ack(11)
    assert not point.ack(9)
    assert point.ack(15)
    assert point.ack(15)
    assert (point.bit_map, point.unacked(), point.acked()) == (4, [10, 12], [15])
    assert not point.is_all_acked
    assert point.ack(10)
    assert point.ack(12)
    assert point.is_all_acked


def test_the_last_of_32_messages_is_the_sign_of_a_java_number() -> None:
    point = check_point(MESSAGES_PER_POP_MAX)
    for offset in range(10, 10 + MESSAGES_PER_POP_MAX):
        assert point.ack(offset)
    body = json.loads(point.encode())
    assert (body["bm"], body["n"]) == (-1, 32)
    assert decode_check_point(point.encode()) == point
    assert decode_check_point(point.encode()).is_all_acked
    point.bit_map = 0x7FFFFFFF
    assert json.loads(point.encode())["bm"] == 0x7FFFFFFF
    point.bit_map = 0x80000000
    assert json.loads(point.encode())["bm"] == -0x80000000


def test_a_check_point_without_differences_counts_from_its_start() -> None:
    assert decode_check_point(json.dumps(BODY).encode()) == check_point()
    full = decode_check_point(json.dumps({**BODY, "n": MESSAGES_PER_POP_MAX}).encode())
    assert full == check_point(MESSAGES_PER_POP_MAX)
    repaired = decode_check_point(json.dumps({**BODY, "rp": "2"}).encode())
    assert repaired.repairs == 2
    assert json.loads(repaired.encode())["rp"] == "2"
    assert "rp" not in json.loads(check_point().encode())


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"\xff", b"[" * 10_000, json.dumps({**BODY, "x": "x" * BODY_SIZE_MAX}).encode(), *(
        json.dumps({**BODY, **more}).encode()
        for more in (
            {"n": MESSAGES_PER_POP_MAX + 1}, {"n": 1 << 62}, {"n": "3"}, {"so": "x"}, {"t": ""},
            {"t": 5}, {"c": None}, {"d": 5}, {"d": ["0"]},
            {"d": list(range(MESSAGES_PER_POP_MAX + 1))}, {"d": [-1, 0]}, {"d": [1, 0]},
            {"d": [0, 0]}, {"d": [0, DIFFERENCE_END]}, {"so": -1}, {"so": (1 << 63) - 1},
            {"pt": 1 << 63}, {"it": -(1 << 63) - 1}, {"pt": 1 << 62, "it": 1 << 62},
            {"bm": 1 << 63},
        )
    )],
)  # fmt: skip
def test_what_is_no_check_point(body: bytes) -> None:
    with pytest.raises(CheckPointError):
        decode_check_point(body)


def test_messages_may_lie_far_apart_and_wait_for_long() -> None:
    far = {"so": 1 << 62, "d": [0, 7, DIFFERENCE_END - 1], "it": 9 * 10**18}
    point = decode_check_point(json.dumps({**BODY, **far}).encode())
    assert point.unacked() == [1 << 62, (1 << 62) + 7, (1 << 62) + DIFFERENCE_END - 1]
    assert decode_check_point(point.encode()) == point


def test_acknowledgements() -> None:
    one = PopAck((12,), 10, 5, 3, "T", "G", "b")
    many = PopAck((12, 11), 10, 5, 3, "T", "G", "b", is_batch=True)
    for ack, tag in ((one, ACK_TAG), (many, BATCH_ACK_TAG)):
        assert ack.tag == tag
        assert ack.key == check_point().key
        assert decode_ack(ack.encode(), tag) == ack
    assert json.loads(one.encode())["ao"] == 12
    assert json.loads(many.encode())["ao"] == -1
    assert one.unique_key == "T@3@12@G@5@b@ack"
    assert many.unique_key == "T@3@[12, 11]@G@5@b@bAck"
    assert merged_ack([many, one]) == many
    assert merged_ack([one, many]) == PopAck((12, 11), 10, 5, 3, "T", "G", "b", is_batch=True)
    for body, tag in ((b'{"aol":5,"t":"T","c":"G"}', BATCH_ACK_TAG), (b'{"ao":"x"}', ACK_TAG),
                      (b'{"aol":["1"],"t":"T","c":"G"}', BATCH_ACK_TAG), (b"[" * 10_000, ACK_TAG),
                      (b"[" * 10_000, BATCH_ACK_TAG),
                      (b" " * BODY_SIZE_MAX + one.encode(), ACK_TAG)):  # fmt: skip
        with pytest.raises(CheckPointError):
            decode_ack(body, tag)


def test_receipts() -> None:
    receipt = parse_receipt("10 5 7 1 0 b 3 12")
    assert receipt == (10, 5, 7, 1, "0", "b", 3, 12)
    assert receipt.text == "10 5 7 1 0 b 3 12"
    assert parse_receipt("10 5 7 1 0 b 3 12 proxy") == receipt
    beyond = f"10 5 7 1 0 b 3 {1 << 63}", f"{-(1 << 63) - 1} 5 7 1 0 b 3 12"
    for text in ("", "10 5 7 1 0 b 3", "10 5 7 1 0 b 3 x", *beyond):
        with pytest.raises(CheckPointError):
            parse_receipt(text)


def test_retry_topics() -> None:
    v1, v2 = "%RETRY%G_T", "%RETRY%G+T"
    assert [retry_flag(topic, "G") for topic in ("T", v1, v2, "%RETRY%G")] == [
        NORMAL, RETRY_V1, RETRY_V2, NORMAL,
    ]  # fmt: skip
    assert [real_topic("T", "G", flag) for flag in (NORMAL, RETRY_V1, RETRY_V2)] == ["T", v1, v2]
    assert [retried_topic(topic, "G") for topic in ("T", v1, v2)] == [None, "T", "T"]


def test_texts_of_offsets() -> None:
    assert offset_info(NORMAL, 3, [10, 12]) == "0 3 10,12"
    assert offset_info(RETRY_V1, 0, [10]) == "1 0 10"
    assert encode_offset_list([10]) == (10,)
    assert encode_offset_list([10, 12, 15]) == (10, 2, 5)
