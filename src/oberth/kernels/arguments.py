"""What the callers of the compiled kernels and the kernels themselves agree on.

A kernel gets the address of an array of int64. These are the places of the numbers and addresses in
it, one list per kernel, and the codes that come back. No numba and no numpy here: both sides
import it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Column(NamedTuple):
    """One field of every record: its name and its array type code (`q` int64, `i` int32)."""

    name: str
    typecode: str


# `…_at` is a position in the scanned bytes, `…_size` a number of bytes; a property that a record
# does not have is at 0 with size -1.
COLUMNS = (
    Column("commit_log_offset", "q"),
    Column("queue_offset", "q"),
    Column("stored_offset", "q"),
    Column("born_timestamp", "q"),
    Column("store_timestamp", "q"),
    Column("prepared_transaction_offset", "q"),
    Column("tags_code", "q"),
    Column("inner_base", "q"),
    Column("record_size", "i"),
    Column("magic", "i"),
    Column("body_crc", "i"),
    Column("queue_id", "i"),
    Column("flag", "i"),
    Column("sys_flag", "i"),
    Column("born_host_at", "i"),
    Column("store_host_at", "i"),
    Column("reconsume_times", "i"),
    Column("body_at", "i"),
    Column("body_size", "i"),
    Column("topic_at", "i"),
    Column("topic_size", "i"),
    Column("topic_id", "i"),
    Column("properties_at", "i"),
    Column("properties_size", "i"),
    Column("tags_at", "i"),
    Column("tags_size", "i"),
    Column("keys_at", "i"),
    Column("keys_size", "i"),
    Column("uniq_key_at", "i"),
    Column("uniq_key_size", "i"),
    Column("multi_dispatch_at", "i"),
    Column("multi_dispatch_size", "i"),
    Column("multi_queue_offset_at", "i"),
    Column("multi_queue_offset_size", "i"),
    Column("inner_num", "i"),
    Column("crc_ok", "i"),
)
COLUMN_NAMES = tuple(column.name for column in COLUMNS)
COLUMN_INDEX = {name: index for index, name in enumerate(COLUMN_NAMES)}
# Columns for which the properties have to be read.
PROPERTY_COLUMNS = frozenset(
    {
        "tags_code",
        "inner_base",
        "inner_num",
        *(
            f"{name}_{part}"
            for name in ("tags", "keys", "uniq_key", "multi_dispatch", "multi_queue_offset")
            for part in ("at", "size")
        ),
    }
)
# What dispatch needs: enough for ConsumeQueue and Index.
DISPATCH_COLUMNS = (
    "commit_log_offset",
    "record_size",
    "queue_id",
    "queue_offset",
    "sys_flag",
    "store_timestamp",
    "topic_id",
    "tags_code",
    "tags_at",
    "tags_size",
    "keys_at",
    "keys_size",
    "uniq_key_at",
    "uniq_key_size",
    "inner_num",
    "inner_base",
    "multi_dispatch_at",
    "multi_dispatch_size",
    "multi_queue_offset_at",
    "multi_queue_offset_size",
)


class ScanEnd(IntEnum):
    """Why a scan stopped, and what is wrong with a record."""

    STOP = 0  # `stop` was reached
    BLANK = 1  # the blank that ends a segment
    FULL = 2  # no room for another record in the columns
    TOPICS_FULL = 3  # no room for another topic; never seen by callers of `scan`
    TRUNCATED = 4  # the bytes end inside the record, or its size is wrong
    ZERO = 5  # size and magic are 0: never written
    MAGIC = 6  # the magic is none of a record
    SIZE = 7  # the size is below a record's fixed part, or above the limit
    LENGTHS = 8  # body, topic and properties do not add up to the size
    FOREIGN = 9  # the record names another offset as its own
    BODY_CRC = 10  # the body fails its checksum
    RECORD_CRC = 11  # the whole-record CRC property fails or is not there


class CrcMode(IntEnum):
    """What a scan does with checksums."""

    NONE = 0  # not computed
    STOP = 1  # the scan ends at a record that fails
    MARK = 2  # computed, the column `crc_ok` tells


# Places in the arguments of `scan`.
(
    SCAN_DATA,  # address of the bytes
    SCAN_LIMIT,  # how many bytes there are
    SCAN_BASE,  # CommitLog offset of byte 0
    SCAN_START,  # position of the first record
    SCAN_STOP,  # no record that starts here or later is taken
    SCAN_CAPACITY,  # room in the columns
    SCAN_COUNT,  # in and out: rows that are filled
    SCAN_NEXT,  # out: position of the first record that was not taken
    SCAN_CRC_MODE,
    SCAN_RECORD_CRC,  # whether the whole-record CRC is demanded
    SCAN_OWN_POSITION,  # whether a record must name its own position
    SCAN_SIZE_MAX,  # no record is larger
    SCAN_READ_PROPERTIES,  # whether a column is wanted that needs them
    SCAN_CRC_TABLES,
    SCAN_DELAYS,  # address of int64: milliseconds by delay level
    SCAN_DELAY_COUNT,
    SCAN_TOPIC_COUNT,  # in and out
    SCAN_TOPIC_MAX,
    SCAN_TOPIC_STARTS,  # address of int64
    SCAN_TOPIC_SIZES,  # address of int32
    SCAN_TOPIC_TEXT,  # address of bytes
    SCAN_TOPIC_TEXT_USED,  # in and out
    SCAN_TOPIC_TEXT_MAX,
    SCAN_TOPIC_SLOTS,  # address of int32: 1 + topic id, 0 for none
    SCAN_TOPIC_SLOT_MASK,
    SCAN_COLUMNS,  # the first of the columns' addresses; 0 where a column is not wanted
) = range(26)
SCAN_ARGUMENTS = SCAN_COLUMNS + len(COLUMNS)

# Places in the arguments of `find`.
(
    FIND_DATA,
    FIND_LIMIT,
    FIND_BASE,
    FIND_START,
    FIND_STOP,
    FIND_OWN_POSITION,
    FIND_SIZE_MAX,
    FIND_CHECK_CRC,
    FIND_CRC_TABLES,
) = range(9)
FIND_ARGUMENTS = 9

# Places in the arguments of `crc`.
(CRC_DATA, CRC_START, CRC_SIZE, CRC_TABLES) = range(4)
# Places in the arguments of `text_hash`.
(HASH_DATA, HASH_START, HASH_SIZE, HASH_SEED) = range(4)


class QueueAnomaly(IntEnum):
    """What is odd about a record's place in its queue."""

    GAP = 1  # its ordinal lies ahead of the queue's end; what is between is not in the log
    STEP_BACK = 2  # its ordinal lies before the queue's end: no unit is written
    RESTART = 3  # its ordinal lies before the queue's end: the queue begins anew
    MISNUMBERED = (
        4  # its neighbours show that only its ordinal is wrong: it is put where it belongs
    )
    INTRUDER = 5  # its neighbours show that it is none of this queue: no unit is written
    GAP_TOO_LARGE = 6  # further ahead than allowed: no unit is written
    MULTI_DISPATCH = 7  # names and offsets of a multi-dispatch do not match: no extra units
    NO_BATCH = 8  # an inner batch without INNER_NUM and INNER_BASE: no unit
    NEGATIVE = 9  # its ordinal is negative: no unit is written


class QueueStop(IntEnum):
    """Why the queue kernel stopped before the last row; never seen by callers."""

    DONE = 0
    QUEUES_FULL = 1
    UNITS_FULL = 2
    TOPICS_FULL = 3


# Fields of a queue's state; each int64.
(
    QUEUE_TOPIC,
    QUEUE_ID,
    QUEUE_KIND,  # 0 ConsumeQueue, 1 BatchConsumeQueue
    QUEUE_NEXT,  # ordinal (batch: number) of the next unit, -1 for a queue without units
    QUEUE_MAX,  # CommitLog offset: end of the last record in it (batch: its start), -1
    QUEUE_CHUNK_COUNT,  # units of this call
    QUEUE_CHUNK_BASE,  # byte in the output where they begin
    QUEUE_RUN,  # its current run in this call
) = range(8)
QUEUE_FIELDS = 8
KIND_SIMPLE, KIND_BATCH = 0, 1

# Fields of a run of units; each int64.
(
    RUN_QUEUE,
    RUN_FIRST,
    RUN_COUNT,
    RUN_SKIPPED,
    RUN_RESTARTS,
    RUN_START,
    RUN_TOPIC,
    RUN_QUEUE_ID,
    RUN_KIND,
) = range(9)
RUN_FIELDS = 9

# Places in the arguments of `queues`.
(
    QUEUES_DATA,  # bytes that multi-dispatch positions refer to
    QUEUES_ROW,  # in and out: first row to do
    QUEUES_ROWS,
    QUEUES_COMMIT_LOG_OFFSET,  # columns
    QUEUES_RECORD_SIZE,
    QUEUES_QUEUE_ID,
    QUEUES_QUEUE_OFFSET,
    QUEUES_SYS_FLAG,
    QUEUES_STORE_TIMESTAMP,
    QUEUES_TOPIC_ID,
    QUEUES_TAGS_CODE,
    QUEUES_INNER_NUM,
    QUEUES_INNER_BASE,
    QUEUES_DISPATCH_AT,
    QUEUES_DISPATCH_SIZE,
    QUEUES_OFFSETS_AT,
    QUEUES_OFFSETS_SIZE,
    QUEUES_TOPIC_KINDS,  # address of bytes: kind by topic id
    QUEUES_KIND_COUNT,  # how many; topics that the kernel adds are none of a batch queue
    QUEUES_MULTI_DISPATCH,  # whether multi-dispatch makes extra units
    QUEUES_RESTART,  # whether a step back begins the queue anew
    QUEUES_GAP_MAX,
    QUEUES_STATES,  # address of int64
    QUEUES_COUNT,  # in and out
    QUEUES_MAX,
    QUEUES_SLOTS,  # address of int32: 1 + queue number
    QUEUES_SLOT_MASK,
    QUEUES_UNIT_QUEUE,  # work: int32 by unit
    QUEUES_UNIT_ROW,  # work: int32 by unit
    QUEUES_UNIT_INDEX,  # work: int32 by unit, its place among the queue's units of this call
    QUEUES_UNIT_MAX,
    QUEUES_UNIT_COUNT,  # out
    QUEUES_OUT,  # address of bytes, UNIT_MAX * 46 of them
    QUEUES_OUT_USED,  # out
    QUEUES_RUNS,  # address of int64
    QUEUES_RUN_COUNT,  # out
    QUEUES_ANOMALIES,  # address of int64: offset, code
    QUEUES_ANOMALY_COUNT,  # in and out: how many there were
    QUEUES_ANOMALY_MAX,  # how many can be kept
    QUEUES_TOUCHED,  # work: int32, queues with units in this call
    QUEUES_TOPIC_COUNT,  # the topic table as in `scan`, for the names in multi-dispatch
    QUEUES_TOPIC_MAX,
    QUEUES_TOPIC_STARTS,
    QUEUES_TOPIC_SIZES,
    QUEUES_TOPIC_TEXT,
    QUEUES_TOPIC_TEXT_USED,
    QUEUES_TOPIC_TEXT_MAX,
    QUEUES_TOPIC_SLOTS,
    QUEUES_TOPIC_SLOT_MASK,
) = range(49)
QUEUES_ARGUMENTS = 49

# Places in the arguments of `index_keys`.
(
    KEYS_DATA,
    KEYS_ROW,  # in and out
    KEYS_ROWS,
    KEYS_COMMIT_LOG_OFFSET,
    KEYS_STORE_TIMESTAMP,
    KEYS_SYS_FLAG,
    KEYS_TOPIC_ID,
    KEYS_UNIQ_AT,
    KEYS_UNIQ_SIZE,
    KEYS_KEYS_AT,
    KEYS_KEYS_SIZE,
    KEYS_TAGS_AT,
    KEYS_TAGS_SIZE,
    KEYS_INDEX_TAGS,
    KEYS_HASH_PREFIXES,  # address of int64
    KEYS_HASHES,  # out: address of int32
    KEYS_OFFSETS,  # out: address of int64
    KEYS_TIMESTAMPS,  # out: address of int64
    KEYS_COUNT,  # in and out
    KEYS_MAX,
) = range(20)
KEYS_ARGUMENTS = 20

# Places in the arguments of `index_put`.
(
    PUT_FILE,  # address of the index file's bytes
    PUT_SLOTS,
    PUT_ENTRIES,
    PUT_HASHES,
    PUT_OFFSETS,
    PUT_TIMESTAMPS,
    PUT_START,
    PUT_STOP,
) = range(8)
PUT_ARGUMENTS = 8
# Places in the arguments of `index_relink`.
(RELINK_FILE, RELINK_SLOTS, RELINK_ENTRIES, RELINK_COUNT) = range(4)

# Places in the arguments of `gather`.
(
    GATHER_DATA,
    GATHER_LIMIT,  # how many bytes there are
    GATHER_ROWS,
    GATHER_AT,  # address of int32
    GATHER_SIZE,  # address of int32; negative for no value
    GATHER_TEXT,  # whether broken UTF-8 is mended
    GATHER_OUT,
    GATHER_OUT_MAX,
    GATHER_OFFSETS,  # out: address of int32, one more than rows
    GATHER_VALIDITY,  # out: address of bytes (a bit for each row), or 0
    GATHER_NULLS,  # out: how many rows have no value
) = range(11)
GATHER_ARGUMENTS = 11

# Places in the arguments of `total_size`.
(TOTAL_SIZES, TOTAL_ROWS) = range(2)
# Places in the arguments of `renumber`.
(RENUMBER_COLUMN, RENUMBER_ROWS, RENUMBER_NUMBERS) = range(3)

# Places in the arguments of `property_maps`.
(
    MAP_DATA,
    MAP_LIMIT,  # how many bytes there are
    MAP_ROWS,
    MAP_AT,
    MAP_SIZE,
    MAP_OFFSETS,  # out: address of int32, one more than rows
    MAP_KEY_OFFSETS,  # out: address of int32
    MAP_VALUE_OFFSETS,
    MAP_ENTRIES_MAX,
    MAP_KEYS,  # out: address of bytes
    MAP_VALUES,
    MAP_KEYS_MAX,
    MAP_VALUES_MAX,
    MAP_SCRATCH,  # work: MAP_SCRATCH_SIZE bytes
    MAP_PLACES,  # work: address of int64, MAP_PLACE_FIELDS for each property of a row
    MAP_SLOTS,  # work: address of int32, MAP_SLOT_COUNT zeroed ones
) = range(16)
MAP_ARGUMENTS = 16
# The length of properties is 16 bits, and every byte of them may be broken and become three.
PROPERTIES_SIZE_MAX = 65535
MAP_SCRATCH_SIZE = 3 * PROPERTIES_SIZE_MAX
# The shortest property has four bytes: a name, a value and two separators.
MAP_PLACES_MAX = (PROPERTIES_SIZE_MAX + 1) // 4
MAP_PLACE_FIELDS = 5
MAP_SLOT_COUNT = 2 * MAP_PLACES_MAX
assert MAP_SLOT_COUNT & (MAP_SLOT_COUNT - 1) == 0

# Places in the arguments of `hosts` and `message_ids`.
(
    HOSTS_DATA,
    HOSTS_ROWS,
    HOSTS_AT,  # address of int32
    HOSTS_SYS_FLAG,  # address of int32
    HOSTS_V6_BIT,
    HOSTS_COMMIT_LOG_OFFSET,  # address of int64 (`message_ids` only)
    HOSTS_OUT,  # HOST_TEXT_SIZE_MAX for each row
    HOSTS_OFFSETS,  # out: address of int32, one more than rows
) = range(8)
HOSTS_ARGUMENTS = 8
# "ffff:" eight times and a port with its sign; a message id is 56 characters.
HOST_TEXT_SIZE_MAX = 56


class EncodeEnd(IntEnum):
    """Why encoding stopped."""

    DONE = 0  # all rows are encoded
    FULL = 1  # the next record does not fit the output
    BODY = 2  # a body is longer than allowed
    SEPARATOR = 3  # a value of a property holds one of the bytes that end names and values
    PROPERTIES = 4  # properties are longer than allowed
    RECORD = 5  # a record is larger than allowed


# Places in the arguments of `encode`. A column of numbers is an address of int64 and a step: 0
# where one number stands for every row. A column of values is as VALUES_… below say.
(
    ENCODE_ROW,  # in and out: the first row to encode, and the first that was not
    ENCODE_ROWS,
    ENCODE_LOG_OFFSET,  # what the first record says of its place
    ENCODE_OUT,
    ENCODE_OUT_MAX,
    ENCODE_OUT_USED,  # out
    ENCODE_SIZES,  # out: address of int64 by row, the size of each record
    ENCODE_NEEDED,  # out: bytes of the record that does not fit, or of what is too long
    ENCODE_BAD_PROPERTY,  # out: which of the properties holds a separator
    ENCODE_CRC_TABLES,
    ENCODE_BODY_MAX,
    ENCODE_RECORD_MAX,
    ENCODE_TOPICS,  # address of a column of values: length and name as stored, by topic number
    ENCODE_MAGICS,  # address of int64 by topic number
    ENCODE_HOSTS,  # address of a column of values: hosts as stored
    ENCODE_BODIES,  # address of a column of values
    ENCODE_STORED,  # address of a column of values: properties as stored; behind the others
    ENCODE_PROPERTIES,  # address of two columns of values for each property: its name up to the
    # separator (one value), and its values
    ENCODE_PROPERTY_COUNT,
    ENCODE_NUMBERS,  # the first of the columns of numbers, an address and a step each
) = range(20)
#: The columns of numbers, in this order. The three last are numbers of topics and hosts.
ENCODE_COLUMNS = (
    "queue_id",
    "flag",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
    "topic",
    "born_host",
    "store_host",
)
ENCODE_ARGUMENTS = ENCODE_NUMBERS + 2 * len(ENCODE_COLUMNS)
# A column of values, each int64: its bytes, int32 offsets, validity bits (0: every row has a value)
# and the bit of the first row.
(VALUES_DATA, VALUES_OFFSETS, VALUES_VALIDITY, VALUES_BIT) = range(4)
VALUES_FIELDS = 4


class UnitKind(IntEnum):
    """What a unit of a ConsumeQueue is, judged by itself."""

    RECORD = 0  # it points into the log
    PRE_BLANK = 1  # it fills the front of a queue, or a hole
    EMPTY = 2  # never written: zeros
    EXPIRED = 3  # it points before the log's start
    BEYOND = 4  # it points behind the log's end
    INVALID = 5  # a negative offset, or a size of 0 or less


class EntryFinding(IntEnum):
    """What is wrong with an index entry."""

    OK = 0
    REPEATED = 1  # the same key of the same record is there already: harmless
    EXPIRED = 2  # its record lies before the log's start: harmless
    NO_RECORD = 3  # no record starts where it points
    WRONG_KEY = 4  # the record has no key with this hash
    WRONG_TIME = 5  # its time is not the record's
    WRONG_CHAIN = 6  # its link is not to the slot's entry before it


# Places in the arguments of `unit_kinds`.
(KINDS_UNITS, KINDS_COUNT, KINDS_UNIT_SIZE, KINDS_LOG_START, KINDS_LOG_END, KINDS_OUT) = range(6)
# Places in the arguments of `compare_units`.
(
    COMPARE_ACTUAL,
    COMPARE_EXPECTED,
    COMPARE_COUNT,
    COMPARE_UNIT_SIZE,
    COMPARE_EXT,  # whether an address of a ConsumeQueueExt unit passes for any tags code
    COMPARE_OUT,  # address of int32
    COMPARE_OUT_MAX,
) = range(7)
# Places in the arguments of `check_index`.
(
    CHECK_FILE,
    CHECK_SLOTS,
    CHECK_COUNT,  # entries are 1 … count - 1
    CHECK_LOG_START,
    CHECK_HASHES,  # what the log says, in order of the offsets
    CHECK_OFFSETS,
    CHECK_TIMESTAMPS,
    CHECK_EXPECTED,
    CHECK_SEEN,  # out: a byte for each expected entry
    CHECK_NEWEST,  # work: int32 for each slot, zeroed
    CHECK_FINDINGS,  # out: a byte for each entry number
    CHECK_SLOT_FINDINGS,  # out: address of int32, slots that do not name their newest entry
    CHECK_SLOT_FINDINGS_MAX,
) = range(13)
CHECK_ARGUMENTS = 13
