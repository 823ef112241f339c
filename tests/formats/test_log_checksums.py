"""``oberth.checksums``: what is written is read, and nothing else is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.log_checksums import (
    HEADER,
    LogChecksum,
    decode_log_checksums,
    encode_log_checksums,
)

OFFSETS = st.integers(0, 2**63 - 1)
ROWS = st.lists(st.builds(LogChecksum, OFFSETS, OFFSETS, st.integers(0, 2**32 - 1)), max_size=5)


@given(ROWS, st.integers(1, 2**40))
def test_rows_come_back(rows: list[LogChecksum], size: int) -> None:
    assert decode_log_checksums(encode_log_checksums(size, rows), size) == rows


def test_another_segment_size_counts_as_none() -> None:
    assert decode_log_checksums(encode_log_checksums(64, [LogChecksum(0, 64, 7)]), 65) == []


@given(st.data())
def test_a_changed_file_is_not_believed(data: st.DataObject) -> None:
    written = bytearray(encode_log_checksums(64, [LogChecksum(0, 64, 7), LogChecksum(64, 70, 9)]))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= data.draw(st.integers(1, 255))
    assert decode_log_checksums(bytes(written), 64) == []


@pytest.mark.parametrize("size", [0, 1, HEADER.size, HEADER.size + 3])
def test_a_short_file_is_not_believed(size: int) -> None:
    assert decode_log_checksums(encode_log_checksums(64, [LogChecksum(0, 64, 7)])[:size], 64) == []
