"""What the callers of the compiled kernels and the kernels themselves agree on.

A kernel gets the address of an array of int64. These are the places of the numbers and addresses in
it, one list per kernel, and the codes that come back. The C kernels see the same numbers:
setup.py writes their layout.h from this module.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32


class Column(NamedTuple):
    """One field of every record: its name and its array type code (`q` int64, `i` int32)."""

    name: str
    typecode: str


# `…_at` is a position in the scanned bytes, `…_size` a number of bytes; a property that a record
# does not have is at 0 with size -1.
COLUMNS: Final = (
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
COLUMN_NAMES: Final = tuple(column.name for column in COLUMNS)
COLUMN_INDEX: Final = {name: index for index, name in enumerate(COLUMN_NAMES)}
# Columns for which the properties have to be read.
PROPERTY_COLUMNS: Final = frozenset(
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
DISPATCH_COLUMNS: Final = (
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
    MAGIC = 6  # no record has this magic
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
) = range(25)
SCAN_ARGUMENTS: Final = SCAN_COLUMNS + len(COLUMNS)

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
    FIND_SUMMED,  # out: bytes that were summed up for checksums
) = range(9)
FIND_ARGUMENTS: Final = 9

# Places in the arguments of `crc`.
(CRC_DATA, CRC_START, CRC_SIZE, CRC_BEFORE) = range(4)
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
    INTRUDER = 5  # its neighbours show that it belongs to another queue: no unit is written
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
    ASKS = 4  # the records behind the rows have to tell what is wrong with a row's number
    NEW = 5  # the rows name queues that the table lacked: it is to be told where these end


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
QUEUE_FIELDS: Final = 8
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
RUN_FIELDS: Final = 9

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
    QUEUES_LOG_START,  # of the log's first byte: more than had room is no gap; -1: see GAP_MAX
    QUEUES_MAY_ASK,  # whether it stops with `ASKS`
    QUEUES_ASKED_ROW,  # out: what it asks about; in: what the answer is about, -1 for none
    QUEUES_ANSWER,  # the queue offset of the next record of that row's queue, -1 when none is near
    QUEUES_STOPS_AT_NEW,  # whether it stops with `NEW`
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
) = range(54)
QUEUES_ARGUMENTS: Final = 54

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
KEYS_ARGUMENTS: Final = 20

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
PUT_ARGUMENTS: Final = 8
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
GATHER_ARGUMENTS: Final = 11

# Places in the arguments of `total_size`.
(TOTAL_SIZES, TOTAL_ROWS) = range(2)
# Places in the arguments of `renumber`.
(RENUMBER_COLUMN, RENUMBER_ROWS, RENUMBER_NUMBERS) = range(3)

# Places in the arguments of `place_topics`.
(
    PLACE_COUNT,
    PLACE_STARTS,  # address of int64
    PLACE_SIZES,  # address of int32
    PLACE_TEXT,
    PLACE_SLOTS,  # out: address of int32
    PLACE_SLOT_MASK,
) = range(6)
PLACE_ARGUMENTS: Final = 6

# Places in the arguments of `copy_records`.
(
    COPY_UNITS,  # address of ConsumeQueue units
    COPY_COUNT,  # how many
    COPY_DATA,  # address of a segment's bytes
    COPY_START,  # CommitLog offset of byte 0
    COPY_LIMIT,  # how many bytes can be read
    COPY_OUT,
    COPY_OUT_MAX,
) = range(7)
COPY_ARGUMENTS: Final = 7

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
MAP_ARGUMENTS: Final = 16
# The length of properties is 16 bits, and every byte of them may be broken and become three.
MAP_PROPERTIES_SIZE_MAX: Final = 65535
MAP_SCRATCH_SIZE: Final = 3 * MAP_PROPERTIES_SIZE_MAX
# The shortest property has four bytes: a name, a value and two separators.
MAP_PLACES_MAX: Final = (MAP_PROPERTIES_SIZE_MAX + 1) // 4
MAP_PLACE_FIELDS: Final = 5
MAP_SLOT_COUNT: Final = 2 * MAP_PLACES_MAX
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
HOSTS_ARGUMENTS: Final = 8
# "ffff:" eight times and a port with its sign; a message id is 56 characters.
HOST_TEXT_SIZE_MAX: Final = 56


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
    ENCODE_BODY_MAX,
    ENCODE_RECORD_MAX,
    ENCODE_TOPICS,  # address of a column of values: length and name as stored, by topic number
    ENCODE_MAGICS,  # address of int64 by topic number
    ENCODE_HOSTS,  # address of a column of values: hosts as stored
    ENCODE_BODIES,  # address of a column of values
    ENCODE_STORED,  # address of a column of values: properties as stored; after the others
    ENCODE_PROPERTIES,  # address of two columns of values for each property: its name up to the
    # separator (one value), and its values
    ENCODE_PROPERTY_COUNT,
    ENCODE_NUMBERS,  # the first of the columns of numbers, an address and a step each
) = range(19)
ENCODE_COLUMNS: Final = (
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
"""The columns of numbers, in this order. The three last are numbers of topics and hosts."""
ENCODE_ARGUMENTS: Final = ENCODE_NUMBERS + 2 * len(ENCODE_COLUMNS)
# A column of values, each int64: its bytes, int32 offsets, validity bits (0: every row has a value)
# and the bit of the first row.
(VALUES_DATA, VALUES_OFFSETS, VALUES_VALIDITY, VALUES_BIT) = range(4)
VALUES_FIELDS: Final = 4


class UnitKind(IntEnum):
    """What a unit of a ConsumeQueue is, judged by itself."""

    RECORD = 0  # it points into the log
    PRE_BLANK = 1  # it fills the front of a queue, or a hole
    EMPTY = 2  # never written: zeros
    EXPIRED = 3  # it points before the log's start
    BEYOND = 4  # it points past the log's end
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
CHECK_ARGUMENTS: Final = 13


class BatchEnd(IntEnum):
    """What came of a client's batch."""

    DONE = 0
    ITEM = 1  # the sizes of an item do not add up
    COUNT = 2  # it has more items than allowed
    PROPERTIES = 3  # the properties of a record would be longer than allowed
    RECORD = 4  # a record would be larger than allowed
    CRC_TAIL = 5  # properties end in what reads as the record's CRC


# Places in the arguments of `clean_batch`.
(
    CLEAN_DATA,
    CLEAN_SIZE,
    CLEAN_COUNT_MAX,
    CLEAN_COUNT,  # out: items that are written; where one is at fault, those before it
    CLEAN_POSITION,  # out: of the item at fault
    CLEAN_WITHOUT_KEY,  # out: how many have no value of the wanted name
    CLEAN_CHANGED,  # out: whether something is left out or set to 0
    CLEAN_OUT,  # as long as the data; or 0
    CLEAN_OUT_USED,  # out
    CLEAN_SIZE_MIN,  # no property of interest is so short
    CLEAN_NAMES,  # address of the names that are left out, shorter ones first
    CLEAN_NAME_ENDS,  # address of int32: where each begins, and where the last ends
    CLEAN_NAME_LENGTHS,  # address of int32: the first name of a length or of a longer one
    CLEAN_NAME_LONGEST,
    CLEAN_PREFIX,  # address of what other names begin with that are left out
    CLEAN_PREFIX_SIZE,
    CLEAN_KEY,  # address of the wanted name
    CLEAN_KEY_SIZE,
) = range(18)
CLEAN_ARGUMENTS: Final = 18
# Places in the arguments of `batch_records`.
(
    RECORDS_DATA,  # as `clean_batch` leaves it
    RECORDS_SIZE,
    RECORDS_HEAD,  # address of a record up to its body; what differs is filled in
    RECORDS_HEAD_SIZE,
    RECORDS_TOPIC,  # address of the topic's length and name as stored
    RECORDS_TOPIC_SIZE,
    RECORDS_OUTER,  # address of what every record's properties end in
    RECORDS_OUTER_SIZE,
    RECORDS_LOG_OFFSET,  # of the first record
    RECORDS_QUEUE_OFFSET,  # of the first record
    RECORDS_CRC,  # whether each ends in its CRC
    RECORDS_RECORD_MAX,
    RECORDS_OUT,
    RECORDS_OUT_USED,  # out
    RECORDS_OFFSETS,  # out: address of int64 by record, where it begins in the log
) = range(15)
RECORDS_ARGUMENTS: Final = 15
# Plain requests, see `oberth.kernels.sends` and `oberth.kernels.pulls`. Bytes that a connection
# brought: a chunk.
(
    CHUNK_DATA,  # address
    CHUNK_SIZE,
    CHUNK_HOSTS,  # address of the client's host and the broker's, IPv4, as a record has them; of
    # pulls nothing
    CHUNK_USED,  # out: up to where there are whole plain requests
    CHUNK_ROWS,  # out: the row after its last one
    CHUNK_ANSWERS,  # out: where its answers end
) = range(6)
CHUNK_FIELDS: Final = 6
# One plain send. `…_AT` is an address.
(
    SEND_CHUNK,  # number of its chunk
    SEND_OPAQUE,
    SEND_ONEWAY,
    SEND_TOPIC_AT,
    SEND_TOPIC_SIZE,
    SEND_QUEUE_ID,
    SEND_SLOT,  # of its topic and queue
    SEND_SYS_FLAG,
    SEND_FLAG,
    SEND_BORN_TIMESTAMP,
    SEND_TEXT_AT,  # properties without those that the broker adds
    SEND_TEXT_SIZE,
    SEND_KEY_AT,  # the value of UNIQ_KEY
    SEND_KEY_SIZE,
    SEND_BODY_AT,
    SEND_BODY_SIZE,
) = range(16)
SEND_FIELDS: Final = 16
# What sends to one queue of a topic need and leave.
(
    TALLY_COUNT,  # messages of this burst
    TALLY_BYTES,  # their records
    TALLY_OFFSET,  # in and out: the next queue offset
) = range(3)
TALLY_FIELDS: Final = 3
# Places in the arguments of `send_rows`.
(
    SENDS_CHUNKS,  # address of chunks
    SENDS_CHUNK_COUNT,
    SENDS_ROWS,  # out: address of rows
    SENDS_ROW_MAX,
    SENDS_ROW_COUNT,  # out
    SENDS_TEXT,  # out: address of bytes, the properties
    SENDS_TEXT_MAX,
    SENDS_TEXT_USED,  # out
    SENDS_FRAME_MAX,  # bytes of a frame
    SENDS_BODY_MAX,
    SENDS_RECORD_MAX,
    SENDS_ADDED_SIZE,  # bytes of properties that the broker adds
    SENDS_FLAGS_REFUSED,  # bits of the system flag that are not plain
    SENDS_WAITS,  # whether a message that does not wait for the disk is not plain
    SENDS_NAMES,  # address of property names that are not plain, by length
    SENDS_NAMES_STARTS,  # address of int64: where the names of a length begin, SEND_NAME_MAX + 2
    SENDS_QUEUES,  # address of int64 by topic number: how many queues take messages
    SENDS_SLOTS_FROM,  # address of int64 by topic number: the slot of queue 0
    SENDS_SLOTS,  # address of slots; TALLY_COUNT of each is 0
    SENDS_TOUCHED,  # out: address of int64: slots that got messages, room for SENDS_ROW_MAX
    SENDS_TOUCHED_COUNT,  # out
    SENDS_BYTES,  # out: of all records
    SENDS_TOPICS,  # the topic table: as SCAN_TOPIC_COUNT and after it
) = range(23)
SENDS_ARGUMENTS: Final = SENDS_TOPICS + 9
SEND_CODE: Final = 310
"""The code and the one flag of a plain send."""
SEND_ONEWAY_FLAG: Final = 2
SEND_NAME_MAX: Final = 40
"""Bytes of the longest property name that is looked for."""
PLAIN_HEADER_MAX: Final = 16384
"""Bytes of a header that is looked into; others go the general way."""
SEND_ANSWER_SPARE: Final = 128
"""Bytes of an answer besides its fixed texts and its key: numbers and the message id."""
# Places in the arguments of `send_records`.
(
    STORE_CHUNKS,
    STORE_CHUNK_COUNT,
    STORE_ROWS,
    STORE_SLOTS,
    STORE_OUT,  # address of the log's end; there is room for SENDS_BYTES
    STORE_LOG_OFFSET,  # of that place
    STORE_MAGIC,
    STORE_TIMESTAMP,
    STORE_ADDED,  # address of the properties that the broker adds
    STORE_ADDED_SIZE,
    STORE_ANSWERS,  # out: address of bytes
    STORE_PIECES,  # address of SEND_PIECES addresses and sizes: the fixed texts of an answer
) = range(12)
STORE_ARGUMENTS: Final = 12
SEND_PIECES: Final = 6
"""An answer: a text, queue id, text, message id, text, queue offset, text, key, text, opaque, text.
"""
# One plain pull.
(
    PULL_OPAQUE,
    PULL_PLACE,  # number of the stretch that it reads
    PULL_OFFSET,  # of the first message
    PULL_COUNT,  # messages at most
    PULL_BYTES_MAX,  # bytes at most; 0 or less for no limit
    PULL_SYS_FLAG,
    PULL_COMMIT,  # the offset that it commits
    PULL_END,  # where its frame ends in the chunk
    PULL_NEXT,  # out: where the next pull goes on; -1 where it is not answered here
) = range(9)
PULL_FIELDS: Final = 9
# What all pulls with the same right have in common.
(
    RIGHT_KEY,  # where it lies among the keys
    RIGHT_KEY_SIZE,
) = range(2)
RIGHT_FIELDS: Final = 2
# A stretch of a queue that pulls with the same right ask for; what follows PLACE_HIGH is for
# `pull_answers`, all of it 0 at first.
(
    PLACE_RIGHT,  # number of the right
    PLACE_QUEUE_ID,
    PLACE_LOW,  # the first queue offset that is asked for
    PLACE_HIGH,  # behind the last one
    PLACE_UNITS,  # address of ConsumeQueue units; 0: none is answered
    PLACE_UNITS_FROM,  # queue offset of the first
    PLACE_UNITS_COUNT,
    PLACE_FILE_UNITS,  # how many a file of the queue has
    PLACE_DATA,  # address of a segment's bytes
    PLACE_DATA_START,  # CommitLog offset of byte 0
    PLACE_DATA_SIZE,  # how many bytes can be read
    PLACE_START,  # address of an answer's header up to the next offset
    PLACE_START_SIZE,
    PLACE_MIDDLE,  # address of what follows up to the opaque number
    PLACE_MIDDLE_SIZE,
    PLACE_SERVED,  # out: pulls that were answered
    PLACE_MESSAGES,  # out: what they got
    PLACE_BYTES,
) = range(18)
PLACE_FIELDS: Final = 18
# Places in the arguments of `pull_rows`.
(
    PULLS_CHUNKS,  # address of chunks
    PULLS_CHUNK_COUNT,
    PULLS_FRAME_MAX,  # bytes of a frame
    PULLS_COUNT_MAX,  # messages of an answer
    PULLS_ROWS,  # out: address of PULLS_ROW_MAX rows
    PULLS_RIGHTS,  # out: address of as many rights
    PULLS_RIGHT_COUNT,  # out
    PULLS_RIGHT_SLOTS,  # work: address of PULLS_SLOTS int32
    PULLS_TEXT,  # out: address of the keys of rights
    PULLS_TEXT_MAX,
    PULLS_TEXT_USED,  # out
    PULLS_PLACES,  # out: address of PULLS_ROW_MAX places
    PULLS_PLACE_COUNT,  # out
    PULLS_PLACE_SLOTS,  # work: address of PULLS_SLOTS int32
) = range(14)
PULLS_ARGUMENTS: Final = 14
PULLS_ROW_MAX: Final = 256
PULLS_SLOTS: Final = 2 * PULLS_ROW_MAX
assert PULLS_SLOTS & (PULLS_SLOTS - 1) == 0
PULL_CODE: Final = 11
PULL_LITE_CODE: Final = 361
PULL_COMMITS: Final = 1
PULL_BRINGS_SUBSCRIPTION: Final = 4
"""Bits of a pull's system flag."""
PULL_COUNT_LIMIT: Final = 255
"""Messages of a pull that is plain."""
PULL_STRETCH: Final = 1024
"""Units of a queue that are looked up together."""
PULL_KEY_MAX: Final = 1024
"""Bytes of a key."""
PULL_KEY_SPARE: Final = 24
"""Bytes of it besides names, version and expression."""
PULL_BYTES_MIN: Final = 100
"""The least that a pull may ask for."""
PULL_HEAD_SPARE: Final = 48
"""Bytes of an answer's head besides its fixed texts."""
# Places in the arguments of `pull_answers`.
(
    ANSWERS_CHUNKS,
    ANSWERS_CHUNK_COUNT,
    ANSWERS_ROWS,
    ANSWERS_PLACES,
    ANSWERS_OUT,  # out: address of bytes
    ANSWERS_OUT_MAX,
    ANSWERS_BYTES_MAX,  # of the messages of one answer
    ANSWERS_YOUNG_FROM,  # CommitLog offset; what is older makes an answer say more
    ANSWERS_END,  # address of what a header ends with, behind the opaque number
    ANSWERS_END_SIZE,
) = range(10)
ANSWERS_ARGUMENTS: Final = 10


def _layout() -> int:
    """A digest of every number above, of 31 bits."""
    numbers: list[object] = []
    for name, value in globals().items():
        if isinstance(value, type) and issubclass(value, IntEnum) and value is not IntEnum:
            numbers.append((name, [int(member) for member in value]))
        elif name.isupper() and isinstance(value, int | tuple | dict):
            numbers.append((name, value))
    return crc32(repr(numbers).encode()) & 0x7FFFFFFF


LAYOUT: Final = _layout()
"""An extension that was built from other numbers would take addresses for something else."""
