"""Message ids: both kinds there and back, the golden ones, and texts that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.message_id import (
    decode_offset_message_id,
    offset_message_id,
    unique_id,
    unique_id_prefix,
)

HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@given(HOSTS, st.integers(-(2**63), 2**63 - 1))
def test_round_trip(host: bytes, offset: int) -> None:
    text = offset_message_id(host, offset)
    assert text == text.upper()
    assert len(text) in (32, 56)
    assert decode_offset_message_id(text) == (host, offset)
    assert decode_offset_message_id(text.lower()) == (host, offset)


@pytest.mark.parametrize("golden_name", ["basic-4.9.7", "ipv6-5.5.0", "ipv6-4.9.7"])
def test_golden_ids(golden_name: str, golden_facts: Callable[[str], Any]) -> None:
    for message in golden_facts(golden_name)["messages"]:
        found = decode_offset_message_id(message["msgId"])
        assert found.commit_log_offset == message["commitLogOffset"]
        assert found.broker_address == message["storeHost"]


@given(st.text(max_size=60) | st.text("0123456789abcdefg \n", min_size=32, max_size=32))
def test_id_or_error(text: str) -> None:
    try:
        found = decode_offset_message_id(text)
    except FormatError:
        return
    assert offset_message_id(*found) == text.upper()


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "g" * 32, "00 " * 10 + "00", "é" * 32])
def test_no_ids(text: str) -> None:
    with pytest.raises(FormatError):
        decode_offset_message_id(text)


def test_unique_ids() -> None:
    prefix = unique_id_prefix(bytes((10, 0, 0, 7)), 70_000, -1)
    assert prefix == "0A0000071170FFFFFFFF"
    assert unique_id(prefix, 86_400_000, 65_537) == prefix + "05265C000001"
    assert len(unique_id(unique_id_prefix(bytes(16), 1, 2), 0, 0)) == 56
