"""Index files: golden headers, slots and entries agree with the records, and hashes with Java's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.index_file import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY,
    HEADER,
    SLOT,
    TAG_INDEX_TYPE,
    IndexEntry,
    IndexHeader,
    entry_position,
    file_size,
    key_hash,
    key_hash_from,
    key_hash_prefix,
    slot_position,
    time_diff_seconds,
)
from oberth.formats.java_string import java_hash


def index_keys(message: dict[str, Any], *, with_tags: bool) -> list[str]:
    """What RocketMQ indexes of a message, in its order."""
    properties = message["properties"]
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    keys += [key for key in properties.get("KEYS", "").split(" ") if key]
    if with_tags and "TAGS" in properties:
        keys.append(f"{TAG_INDEX_TYPE}#{properties['TAGS']}")
    return keys


def test_golden_files(golden_closed_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_closed_name)
    slots, entries = int(store.config["maxHashSlotNum"]), int(store.config["maxIndexNum"])
    log = {message["commitLogOffset"]: message for message in store.facts["messages"]}
    with_tags = store.rocketmq_version.startswith("5")
    for expected in store.facts["indexFiles"]:
        path = store.root / "index" / expected["file"]
        assert path.stat().st_size == file_size(slots, entries)
        with open(path, "rb") as file:  # 400 MiB of holes in the defaults-* stores
            header = IndexHeader(*HEADER.unpack(file.read(HEADER.size)))
            slot_bytes = file.read(slots * SLOT.size)
            file.seek(entry_position(1, slots))
            entry_bytes = file.read((header.next_entry - 1) * ENTRY.size)
        assert HEADER.pack(*header)
        assert {
            "beginTimestamp": header.begin_timestamp,
            "endTimestamp": header.end_timestamp,
            "beginPhyOffset": header.begin_offset,
            "endPhyOffset": header.end_offset,
            "hashSlotCount": header.hash_slot_count,
            "indexCount": header.index_count,
        }.items() <= expected.items()
        heads: dict[int, int] = {}
        for number in range(1, header.next_entry):
            at = (number - 1) * ENTRY.size
            entry = IndexEntry(*ENTRY.unpack_from(entry_bytes, at))
            assert ENTRY.pack(*entry) == entry_bytes[at : at + ENTRY.size]
            slot = entry.key_hash % slots
            assert entry.previous == heads.get(slot, 0)
            heads[slot] = number
            if (message := log.get(entry.commit_log_offset)) is not None:
                hashes = {
                    key_hash(message["topic"], key)
                    for key in index_keys(message, with_tags=with_tags)
                }
                assert entry.key_hash in hashes
                if number > 1:
                    assert entry.time_diff == time_diff_seconds(
                        message["storeTimestamp"], header.begin_timestamp
                    )
        assert header.hash_slot_count == len(heads)
        for slot, number in heads.items():
            at = slot_position(slot) - slot_position(0)
            assert SLOT.unpack_from(slot_bytes, at) == (number,)


def test_golden_hash_of_the_smallest_number(golden_facts: Callable[[str], Any]) -> None:
    queries = [
        query
        for query in golden_facts("basic-5.5.0")["indexQueries"]
        if java_hash(f"{query['topic']}#{query['key']}") == -(2**31)
    ]
    assert queries
    assert all(key_hash(query["topic"], query["key"]) == 0 for query in queries)


@given(st.text(max_size=20), st.text(max_size=40))
def test_hashes(topic: str, key: str) -> None:
    whole = java_hash(f"{topic}#{key}")
    expected = 0 if whole == -(2**31) else abs(whole)
    assert key_hash(topic, key) == expected
    assert key_hash_from(key_hash_prefix(topic), key) == expected


def test_positions() -> None:
    assert file_size() == 420_000_040 == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES)
    assert (slot_position(0), slot_position(1)) == (40, 44)
    assert (entry_position(0, 500), entry_position(1, 500)) == (2040, 2060)
    assert IndexHeader(0, 0, 0, 0, 0, 0).next_entry == 1
    assert IndexHeader(0, 0, 0, 0, 0, 7).next_entry == 7


@pytest.mark.parametrize(
    ("stored", "begin", "seconds"),
    [(1999, 1000, 0), (2000, 1000, 1), (500, 1000, 0), (9000, 0, 0), (2**52, 1, 2**31 - 1)],
)
def test_time_diff(stored: int, begin: int, seconds: int) -> None:
    assert time_diff_seconds(stored, begin) == seconds
