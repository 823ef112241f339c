"""Bloom filters: known murmur3 values, and positions and bitmaps that Apache's brokers wrote."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError
from oberth.formats.bloom import BloomFilter, is_hit, make_bloom_filter, murmur3_x64_128
from oberth.formats.config_files import ConsumerFilters


# From Austin Appleby's reference implementation, as published in other libraries' tests.
@pytest.mark.parametrize(
    ("data", "first", "second"),
    [
        (b"", 0, 0),
        (b"hello", 0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19),
        (b"hello, world", 0x342FAC623A5EBC8E, 0x4CDCBC079642414D),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9, 0x695DA1A38987B6E7),
    ],
)
def test_murmur3(data: bytes, first: int, second: int) -> None:
    assert murmur3_x64_128(data) == (first, second)


def test_parameters() -> None:
    assert make_bloom_filter() == BloomFilter(3, 112)
    assert make_bloom_filter().byte_count == 14
    assert make_bloom_filter(1, 1000).bit_count % 8 == 0
    for error_percent, consumers in [(0, 32), (100, 32), (20, 0)]:
        with pytest.raises(OptionError):
            make_bloom_filter(error_percent, consumers)


@pytest.mark.parametrize("golden_name", ["filter-4.9.7", "filter-5.5.0"])
def test_golden_positions_and_bitmaps(
    golden_name: str, golden_pristine: Callable[[str], Any]
) -> None:
    store = golden_pristine(golden_name)
    filters = ConsumerFilters.decode((store.root / "config/consumerFilter.json").read_bytes())
    groups = filters.filter_data_by_topic["FilterTopic"].group_filter_data
    bloom = make_bloom_filter()
    positions = {}
    for group, data in groups.items():
        assert data.bloom_filter_data is not None
        assert data.bloom_filter_data.bit_num == bloom.bit_count
        positions[group] = bloom.positions(group, "FilterTopic")
        assert data.bloom_filter_data.bit_pos == positions[group]
    assert len(positions) == 2
    messages = {message["commitLogOffset"]: message for message in store.facts["messages"]}
    hits = 0
    for queue in store.facts["queues"]:
        if queue["topic"] != "FilterTopic":
            continue
        for _, commit_log_offset, _, _, ext in queue["units"]:
            properties = messages[commit_log_offset]["properties"]
            matching = [
                group
                for group, matches in (
                    ("CG_sql1", int(properties.get("a", 0)) > 5 and "colour" in properties),
                    (
                        "CG_sql2",
                        properties.get("TAGS") == "Tag1"
                        or properties.get("name") in ("x", "yy")
                        or 2 <= int(properties.get("a", -1)) <= 3,
                    ),
                )
                if matches
            ]
            bitmap = base64.b64decode(ext["filterBitMap"])
            assert bitmap == bloom.bitmap(positions[group] for group in matching)
            for group in groups:
                assert is_hit(bitmap, positions[group]) == (group in matching)
            hits += len(matching)
    assert hits > 10


@given(st.binary(max_size=80), st.integers(0, 2**64 - 1))
def test_hash_stays_in_64_bits(data: bytes, seed: int) -> None:
    assert all(0 <= part < 1 << 64 for part in murmur3_x64_128(data, seed))


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 99), st.integers(1, 500))
def test_own_positions_are_hit(group: str, topic: str, error_percent: int, consumers: int) -> None:
    bloom = make_bloom_filter(error_percent, consumers)
    positions = bloom.positions(group, topic)
    assert len(positions) == bloom.hash_count
    assert is_hit(bloom.bitmap([positions]), positions)
    assert is_hit(b"", positions)


def test_a_hash_of_zero_is_bit_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first sum of this hash is 0: only sums below it are turned over.
    monkeypatch.setattr(
        "oberth.formats.bloom.murmur3_x64_128", lambda _: ((5 << 32) | (2**32 - 5), 0)
    )
    assert make_bloom_filter(20, 64).positions("g", "t")[0] == 0
