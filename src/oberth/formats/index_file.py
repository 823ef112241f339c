"""Index files: a hash table from ``topic#key`` to CommitLog offsets, one file per 20 M entries.

A file is a header, `slots` hash slots and `entries` places; place 0 is never used. Big-endian.

Header:

    offset  size  field               type   note
         0     8  begin_timestamp     int64  store time of the first entry, ms
         8     8  end_timestamp       int64  store time of the newest entry, ms
        16     8  begin_offset        int64  CommitLog offset of the first entry
        24     8  end_offset          int64  CommitLog offset of the newest entry
        32     4  hash_slot_count     int32  slots that have become non-empty
        36     4  index_count         int32  number of the next entry; entries written = index_count - 1

Slot: int32, the number of its newest entry, 0 for none.

Entry:

    offset  size  field               type   note
         0     4  key_hash            int32  not negative
         4     8  commit_log_offset   int64  where the record starts
        12     4  time_diff           int32  seconds since the header's begin_timestamp
        16     4  previous            int32  the slot's entry before this one, 0 for none

In a new file index_count is 0 on disk until the first entry; anything <= 0 is read as 1. The first
entry's time_diff is taken against the begin_timestamp that the file inherited from the one before,
and only then is begin_timestamp replaced, so it can be off (it is kept for byte compatibility).

Derived data: rebuilt from the CommitLog. A query compares hashes only; the reader of the records
must compare the keys. RocketMQ: IndexFile, IndexHeader.
"""  # noqa: E501 - the table's notes

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oberth.formats.java_string import hash_units, signed_32, utf16_units

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000

HEADER: Final = struct.Struct(
    ">"
    "q"  # begin_timestamp
    "q"  # end_timestamp
    "q"  # begin_offset
    "q"  # end_offset
    "i"  # hash_slot_count
    "i"  # index_count
)
ENTRY: Final = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # commit_log_offset
    "i"  # time_diff
    "i"  # previous
)
SLOT: Final = struct.Struct(">i")
assert HEADER.size == HEADER_SIZE
assert ENTRY.size == ENTRY_SIZE
assert SLOT.size == SLOT_SIZE

TIME_DIFF_MAX: Final = 0x7FFFFFFF
# What RocketMQ 5.x puts between topic and tag in the key of a tag (`topic#T#tags`).
TAG_INDEX_TYPE: Final = "T"


class IndexHeader(NamedTuple):
    """The header, see the module's table."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def next_entry(self) -> int:
        """The number that the next entry gets, at least 1."""
        return max(self.index_count, 1)


class IndexEntry(NamedTuple):
    """One entry, see the module's table."""

    key_hash: int
    commit_log_offset: int
    time_diff: int
    previous: int


def file_size(slots: int = DEFAULT_SLOTS, entries: int = DEFAULT_ENTRIES) -> int:
    """Bytes of an index file with so many slots and entry places."""
    return HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE


def slot_position(slot: int) -> int:
    """Where a slot lies in the file."""
    return HEADER_SIZE + slot * SLOT_SIZE


def entry_position(number: int, slots: int) -> int:
    """Where entry ``number`` (from 1) lies in a file of so many slots."""
    return HEADER_SIZE + slots * SLOT_SIZE + number * ENTRY_SIZE


def key_hash_prefix(topic: str) -> int:
    """The unsigned hash of ``topic#``, from which the hash of each of its keys continues."""
    return hash_units(utf16_units(topic + "#"))


def key_hash_from(prefix: int, key: str) -> int:
    """The non-negative hash of ``topic#key``, given the topic's ``key_hash_prefix``."""
    value = signed_32(hash_units(utf16_units(key), prefix))
    if value >= 0:
        return value
    # abs(-2**31) stays negative in Java, and RocketMQ then takes 0.
    return -value if value != -(2**31) else 0


def key_hash(topic: str, key: str) -> int:
    """The non-negative hash of ``topic#key`` that entries hold. RocketMQ: indexKeyHashMethod."""
    return key_hash_from(key_hash_prefix(topic), key)


def time_diff_seconds(store_timestamp: int, begin_timestamp: int) -> int:
    """What an entry's time_diff becomes: whole seconds, within 0 and 2**31-1."""
    if begin_timestamp <= 0:
        return 0
    difference = store_timestamp - begin_timestamp
    return min(max(difference // 1000, 0), TIME_DIFF_MAX)
