"""Where torn records end: a damaged one is followed by another, so that only lengths can tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oberth.formats import message as m
from oberth.formats.torn_record import step_over

HOST = m.encode_host("10.0.0.1", 10911)
BODY_LENGTH_AT = m.BODY_POSITION_V4 - 4


def record(at: int, body: bytes) -> bytearray:
    """One whose checksum is right."""
    size = m.record_size(0, len("chat"), len(body), 0, m.MAGIC_V1)
    return bytearray(
        m.MessageExt(
            "chat", 0, 0, at, size, m.MAGIC_V1, m.body_crc(body), 0, 0, 1, HOST, 1, HOST, 0, 0,
            body, b"",
        ).encode()
    )  # fmt: skip


def size_is_too_large(damaged: bytearray) -> None:
    """Body and lengths are whole, and say better where the record ends."""
    size = int.from_bytes(damaged[:4], "big")
    damaged[:4] = (size + 37).to_bytes(4, "big")


def body_is_too_short(damaged: bytearray) -> None:
    """The length leads to what the producer put into the body: a topic and no properties."""
    end = damaged.index(b"\x04fake")
    damaged[BODY_LENGTH_AT : m.BODY_POSITION_V4] = (end - m.BODY_POSITION_V4).to_bytes(4, "big")


@pytest.mark.parametrize("damage", [size_is_too_large, body_is_too_short])
def test_a_damaged_record_before_a_torn_one_ends_where_what_is_right_says(
    damage: Callable[[bytearray], None],
) -> None:
    damaged = record(0, b"some words\x04fake\0\0 and more of them")
    torn = record(len(damaged), b"torn")
    whole = len(damaged) + len(torn)
    damage(damaged)
    torn[m.BODY_POSITION_V4] ^= 1
    log = bytes(damaged + torn + record(whole, b"whole"))
    found = step_over(
        lambda position, count: log[position : position + count],
        lambda position: position == whole,
        0, len(log), len(log), 0,
    )  # fmt: skip
    assert found == (whole, True)


@pytest.mark.parametrize(("size", "found"), [(200, (200, False)), (150, (0, False))])
def test_a_blank_ends_a_segment_that_it_fills(size: int, found: tuple[int, bool]) -> None:
    log = m.encode_blank(size).ljust(200, b"\0")
    whole = step_over(
        lambda position, count: log[position : position + count],
        lambda _: False,
        0, len(log), len(log), 0,
    )  # fmt: skip
    assert whole == found
