"""Index entries from scanned columns, and index files from entries.

`index_keys` makes the stream of entries (key hash, CommitLog offset, store time) of scanned rows
in the order in which RocketMQ puts them: per message UNIQ_KEY, then each word of KEYS, then, from
5.5.0 on, the tags. `put_entries` puts a stretch of that stream into an index file's bytes, and a
file filled so equals one that was filled by single puts, header, first-entry quirk and all. Where
one file ends in the stream follows from counting alone, so several files can be filled at once.

A file's bytes are any writable buffer of its full size: a map of the file, or an anonymous map (a
bytearray would be zeroed, all 420,000,040 bytes of a default file). Only the pages that hold
something are touched: slots in use, and 20 bytes an entry.
RocketMQ: IndexService.buildIndex, IndexFile.putKey.
"""

from __future__ import annotations

from array import array
from typing import Final

from oberth.formats import index_file
from oberth.formats.index_file import ENTRY, HEADER, IndexHeader, entry_position, slot_position
from oberth.formats.java_string import hash_units, signed_32, utf16_units
from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.memory import Buffer, address

_INT32_MAX: Final = 2**31 - 1
_TAG_INDEX: Final = index_file.TAG_INDEX_TYPE + "#"


class IndexEntries:
    """A growing stream of entries in the order of the log. One thread at a time.

    ``hashes`` (int32), ``offsets`` and ``timestamps`` (int64) hold ``count`` entries.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.count = 0
        self.hashes = bytearray(4 * capacity)
        self.offsets = bytearray(8 * capacity)
        self.timestamps = bytearray(8 * capacity)

    @property
    def capacity(self) -> int:
        """How many entries fit before the memory has to grow."""
        return len(self.hashes) // 4

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Empties the stream; its memory stays."""
        self.count = 0

    def grow(self, capacity: int) -> None:
        """Makes room for at least so many entries."""
        more = max(capacity, 2 * self.capacity, 1024) - self.capacity
        self.hashes = self.hashes + bytes(4 * more)
        self.offsets = self.offsets + bytes(8 * more)
        self.timestamps = self.timestamps + bytes(8 * more)

    def append(self, key_hash: int, commit_log_offset: int, store_timestamp: int) -> None:
        """Adds one entry."""
        if self.count == self.capacity:
            self.grow(self.count + 1)
        memoryview(self.hashes).cast("i")[self.count] = key_hash
        memoryview(self.offsets).cast("q")[self.count] = commit_log_offset
        memoryview(self.timestamps).cast("q")[self.count] = store_timestamp
        self.count += 1

    def entry(self, number: int) -> tuple[int, int, int]:
        """Hash, CommitLog offset and store time of one entry."""
        return (
            memoryview(self.hashes).cast("i")[number],
            memoryview(self.offsets).cast("q")[number],
            memoryview(self.timestamps).cast("q")[number],
        )


_COLUMN_PLACES: Final = (
    (at.KEYS_COMMIT_LOG_OFFSET, "commit_log_offset"),
    (at.KEYS_STORE_TIMESTAMP, "store_timestamp"),
    (at.KEYS_SYS_FLAG, "sys_flag"),
    (at.KEYS_TOPIC_ID, "topic_id"),
    (at.KEYS_UNIQ_AT, "uniq_key_at"),
    (at.KEYS_UNIQ_SIZE, "uniq_key_size"),
    (at.KEYS_KEYS_AT, "keys_at"),
    (at.KEYS_KEYS_SIZE, "keys_size"),
    (at.KEYS_TAGS_AT, "tags_at"),
    (at.KEYS_TAGS_SIZE, "tags_size"),
)


def index_keys(
    columns: Columns,
    topics: TopicTable,
    data: Buffer,
    entries: IndexEntries,
    *,
    index_tags: bool = False,
    first_row: int = 0,
) -> None:
    """Appends the entries of the rows from ``first_row`` on.

    Args:
        columns: `DISPATCH_COLUMNS` at least, in the order of the log.
        topics: what ``topic_id`` means.
        data: the bytes that the columns were scanned from.
        entries: grows.
        index_tags: make an entry for the tags too (RocketMQ from 5.5.0 on).
        first_row: rows before it are left out.
    """
    rows = columns.count - first_row
    kernel = runtime.native("index_keys")
    if kernel is None:
        reference_index_keys(
            columns, topics, data, entries, index_tags=index_tags, first_row=first_row
        )
        return
    view = memoryview(data)
    prefixes = topics.hash_prefixes()
    arguments = array("q", bytes(8 * at.KEYS_ARGUMENTS))
    memory = address(columns.memory)
    for place, name in _COLUMN_PLACES:
        where = columns.places[at.COLUMN_INDEX[name]]
        if where < 0:
            raise ValueError(f"entries need the column {name}, which was not scanned")
        arguments[place] = memory + where
    arguments[at.KEYS_DATA] = address(view)
    arguments[at.KEYS_ROW] = first_row
    arguments[at.KEYS_ROWS] = columns.count
    arguments[at.KEYS_INDEX_TAGS] = index_tags
    arguments[at.KEYS_HASH_PREFIXES] = address(prefixes)
    wanted = entries.count + 3 * rows
    while True:
        if entries.capacity < wanted:
            entries.grow(wanted)
        arguments[at.KEYS_HASHES] = address(entries.hashes)
        arguments[at.KEYS_OFFSETS] = address(entries.offsets)
        arguments[at.KEYS_TIMESTAMPS] = address(entries.timestamps)
        arguments[at.KEYS_COUNT] = entries.count
        arguments[at.KEYS_MAX] = entries.capacity
        done = kernel(arguments)
        entries.count = arguments[at.KEYS_COUNT]
        if done:
            return
        wanted = 2 * entries.capacity


def reference_index_keys(
    columns: Columns,
    topics: TopicTable,
    data: Buffer,
    entries: IndexEntries,
    *,
    index_tags: bool = False,
    first_row: int = 0,
) -> None:
    """`index_keys` in plain Python."""
    view = memoryview(data)
    prefixes = topics.hash_prefixes()
    for row in range(first_row, columns.count):
        if columns.sys_flag[row] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        keys = []
        for name in ("uniq_key", "keys", "tags"):
            size = getattr(columns, f"{name}_size")[row]
            start = getattr(columns, f"{name}_at")[row]
            if size < 0:
                continue
            raw = bytes(view[start : start + size])
            if name == "keys":
                keys += [word for word in raw.split(b" ") if word]
            elif name == "uniq_key":
                keys.append(raw)
            elif index_tags:
                keys.append(_TAG_INDEX.encode() + raw)
        for key in keys:
            # Each key is text of its own: bytes that are cut between two are broken in both.
            value = signed_32(
                hash_units(
                    utf16_units(key.decode("utf-8", "replace")), prefixes[columns.topic_id[row]]
                )
            )
            entries.append(
                0 if value == -(2**31) else abs(value),
                columns.commit_log_offset[row],
                columns.store_timestamp[row],
            )


def index_header(file: Buffer) -> IndexHeader:
    """The header of an index file's bytes."""
    return IndexHeader._make(HEADER.unpack_from(memoryview(file)))


def start_file(file: bytearray | memoryview, previous: IndexHeader | None) -> None:
    """Writes the header of a new, zeroed index file: it begins where the one before ends."""
    if previous is not None:
        end, offset = previous.end_timestamp, previous.end_offset
        HEADER.pack_into(file, 0, end, end, offset, offset, 0, 0)


def put_entries(
    file: bytearray | memoryview,
    slots: int,
    entries_max: int,
    entries: IndexEntries,
    start: int = 0,
    stop: int | None = None,
) -> int:
    """Puts entries [start, stop) into an index file until it is full.

    Entries of records before the file's newest are passed over, as RocketMQ does when it dispatches
    a stretch of log again.

    Args:
        file: the file's bytes, ``index_file.file_size(slots, entries_max)`` of them; changed.
        slots: number of hash slots.
        entries_max: number of entry places; one less is ever used.
        entries: the stream.
        start: first entry to put.
        stop: where to end, None for all.

    Returns:
        The first entry that was not taken: ``stop``, unless the file is full.

    Raises:
        ValueError: the buffer is not as large as the file must be, or start and stop are not
            within the stream.
    """
    view = memoryview(file).cast("B")
    end = entries.count if stop is None else stop
    if len(view) != index_file.file_size(slots, entries_max) or slots < 1:
        raise ValueError(
            f"index file of {len(view)} bytes: {slots} slots and {entries_max} entries "
            f"take {index_file.file_size(slots, entries_max)}"
        )
    if not 0 <= start <= end <= entries.count:
        raise ValueError(f"entries {start} to {end} of {entries.count}")
    kernel = runtime.native("index_put")
    if kernel is None:
        return reference_put_entries(view, slots, entries_max, entries, start, end)
    arguments = array("q", bytes(8 * at.PUT_ARGUMENTS))
    arguments[at.PUT_FILE] = address(view)
    arguments[at.PUT_SLOTS] = slots
    arguments[at.PUT_ENTRIES] = entries_max
    arguments[at.PUT_HASHES] = address(entries.hashes)
    arguments[at.PUT_OFFSETS] = address(entries.offsets)
    arguments[at.PUT_TIMESTAMPS] = address(entries.timestamps)
    arguments[at.PUT_START] = start
    arguments[at.PUT_STOP] = end
    return start + kernel(arguments)


def reference_put_entries(
    file: bytearray | memoryview,
    slots: int,
    entries_max: int,
    entries: IndexEntries,
    start: int = 0,
    stop: int | None = None,
) -> int:
    """`put_entries` in plain Python: one RocketMQ ``putKey`` after the other."""
    end = entries.count if stop is None else stop
    for number in range(start, end):
        key_hash, offset, timestamp = entries.entry(number)
        header = index_header(file)
        if offset < header.end_offset:
            continue
        if header.next_entry >= entries_max:
            return number
        slot_at = slot_position(key_hash % slots)
        (previous,) = index_file.SLOT.unpack_from(file, slot_at)
        if previous <= 0 or previous > header.next_entry:
            previous = 0
        difference = index_file.time_diff_seconds(timestamp, header.begin_timestamp)
        ENTRY.pack_into(
            file, entry_position(header.next_entry, slots), key_hash, offset, difference, previous
        )
        index_file.SLOT.pack_into(file, slot_at, header.next_entry)
        first = header.next_entry <= 1
        HEADER.pack_into(
            file,
            0,
            timestamp if first else header.begin_timestamp,
            timestamp,
            offset if first else header.begin_offset,
            offset,
            min(header.hash_slot_count + (previous == 0), _INT32_MAX),
            header.next_entry + 1,
        )
    return end


def relink(file: bytearray | memoryview, slots: int, entries_max: int) -> int:
    """Makes an index file's slots and chains anew from the hashes in its entries.

    For a file whose slots are damaged and whose entries are not: the newest entry of a slot wins.

    Returns:
        How many slots are in use. The header is left as it is.
    """
    view = memoryview(file).cast("B")
    count = min(index_header(view).next_entry, entries_max)
    if len(view) != index_file.file_size(slots, entries_max) or slots < 1:
        raise ValueError(
            f"index file of {len(view)} bytes: {slots} slots and {entries_max} entries "
            f"take {index_file.file_size(slots, entries_max)}"
        )
    kernel = runtime.native("index_relink")
    if kernel is None:
        return reference_relink(view, slots, entries_max)
    return kernel(array("q", (address(view), slots, entries_max, count)))


def reference_relink(file: bytearray | memoryview, slots: int, entries_max: int) -> int:
    """`relink` in plain Python."""
    newest: dict[int, int] = {}
    for number in range(1, min(index_header(file).next_entry, entries_max)):
        place = entry_position(number, slots)
        key_hash, offset, difference, _ = ENTRY.unpack_from(file, place)
        if key_hash < 0:
            continue
        slot = key_hash % slots
        ENTRY.pack_into(file, place, key_hash, offset, difference, newest.get(slot, 0))
        newest[slot] = number
    start = slot_position(0)
    file[start : start + 4 * slots] = bytes(4 * slots)
    for slot, number in newest.items():
        index_file.SLOT.pack_into(file, slot_position(slot), number)
    return len(newest)
