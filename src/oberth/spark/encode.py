"""Rows as CommitLog records: Arrow columns in, the bytes of a staged log out.

The columns of a batch are made ready once, most of them as they came; a kernel then puts records
together, a block at a time, in memory that every block uses again (`oberth.kernels.encode`). Only
compression, maps and unusual columns look at single rows.

Columns (names and synonyms as the source has them; others are ignored):

    topic              needed unless the option topic is set
    value              the body, string or binary; null is an empty body
    key, tags, uniqueKey, shardingKey, properties (a map)
    partition          the queue; null: by shardingKey, else in turn
    timestamp, bornTimestamp    kept where given, else the time of the load
    flag, reconsumeTimes, bornHost, storeHost
    delayLevel         1 and more: the message goes to the schedule topic and is delivered by the broker
    storedBody, storedProperties, sysFlag, preparedTransactionOffset
                       as the source gives them: what was stored, byte for byte

A record's queue offset and place are not known yet: it gets 0 and its place in the staged log.
"""  # noqa: E501 - the table

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oberth.errors import OptionError, RecordError
from oberth.formats import message as m
from oberth.formats import properties as p
from oberth.formats import sys_flag as flags
from oberth.formats.compression import Compression, compress, with_compression
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.formats.java_string import java_hash
from oberth.formats.names import SCHEDULE_TOPIC, check_stored_topic
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.kernels.arguments import EncodeEnd
from oberth.kernels.encode import Encoded, RecordColumns, RecordWriter, Values
from oberth.kernels.memory import uninitialised
from oberth.spark.schemas import column_named
from oberth.spark.write_options import QUEUES_MAX, WriteOptions
from oberth.wall_clock import now_ms

BLOCK_BYTES: Final = 1 << 20
"""Bytes of records that are put together at once: they are written to the staged file from a core's
own cache. A larger record has room made for it."""
RECORD_EXTRA_MAX: Final = 64 << 10

# Columns of the source that say where a row was: a row that is written gets its own.
_IGNORED: Final = frozenset(
    {
        "broker", "offset", "timestampType", "physicalOffset", "size", "msgId", "offsetMsgId",
        "bodyCRC", "magic", "innerIndex", "storedQueueOffset",
        "bodyError",
    }
)  # fmt: skip
_IGNORED_LIVE: Final = (_IGNORED - {"broker"}) | {
    "timestamp", "bornTimestamp", "bornHost", "storeHost", "reconsumeTimes",
}  # fmt: skip
_WRITE_ONLY: Final = {"delaylevel": "delayLevel", "delivertime": "deliverTime"}

Ints = np.ndarray[Any, np.dtype[Any]]


class Hex(Protocol):
    """Makes unique keys."""

    def __call__(self, count: int) -> list[bytes]:
        """So many new ones."""


@dataclass(frozen=True, slots=True)
class Block:
    """Records put together.

    Attributes:
        data: their bytes, back to back; only until the next block is asked for.
        sizes: of each record.
        counts: how many go to each queue.
        last_store_timestamp: of the last record, ms.
    """

    data: memoryview
    sizes: Ints
    counts: Mapping[tuple[str, int], int]
    last_store_timestamp: int


def write_columns(names: Sequence[str], *, live: bool = False) -> dict[str, int]:
    """Which column of a frame is what, by the name in the source's table.

    Args:
        names: of the frame's columns.
        live: whether the rows are sent to brokers: then the broker counts and times do not.

    Raises:
        OptionError: an unknown column, or one that is there twice.
    """
    ignored = _IGNORED_LIVE if live else _IGNORED
    found: dict[str, int] = {}
    for number, name in enumerate(names):
        column = _WRITE_ONLY.get(name.lower()) or column_named(name).name
        if column in found:
            raise OptionError(f"columns {names[found[column]]!r} and {name!r} are the same")
        if column not in ignored:
            found[column] = number
    return found


class RecordEncoder:
    """Encodes the rows of one task, in order."""

    def __init__(
        self, names: Sequence[str], options: WriteOptions, unique_keys: Hex | None = None
    ) -> None:
        self._columns = write_columns(names)
        self._options = options
        if "topic" not in self._columns and not options.topic:
            raise OptionError("a sink needs the column topic or the option topic")
        if not {"value", "storedBody"} & self._columns.keys():
            raise OptionError("a sink needs the column value (or body)")
        if "deliverTime" in self._columns:
            raise OptionError("column deliverTime needs live brokers; a store takes delayLevel")
        self._delay_level_max = (
            len(parse_delay_levels(options.delay_levels or DEFAULT_DELAY_LEVELS)) - 1
        )
        self._unique_keys = unique_keys
        self._out = uninitialised(BLOCK_BYTES)
        self._next_queue: dict[str, int] = {}
        self._compression = {
            "none": None,
            "zlib": Compression.ZLIB,
            "lz4": Compression.LZ4,
            "zstd": Compression.ZSTD,
        }[options.compression or "none"]
        self._hosts = {
            "storeHost": _host(options.store_host),
            "bornHost": _host(options.born_host),
        }

    def encode(self, batch: pa.RecordBatch, log_offset: int) -> Iterator[Block]:
        """The records of a batch, in blocks of bounded size.

        Args:
            batch: rows with the columns this was made for.
            log_offset: what the first record says of its place.

        Raises:
            RecordError: a row that cannot be a message; it is named by its number in the batch.
        """
        if not batch.num_rows:
            return
        columns, counts_of, store_times = self._record_columns(batch)
        writer = RecordWriter(
            columns,
            body_max=self._options.max_message_size,
            record_max=self._options.max_message_size + RECORD_EXTRA_MAX,
        )
        row = 0
        while row < columns.rows:
            done = writer.encode(row, log_offset, self._out)
            if done.row > row:
                log_offset += done.size
                sizes = np.frombuffer(writer.sizes, np.int64)[row : done.row]
                counts = counts_of(row, done.row)
                last = int(store_times[min(done.row, len(store_times)) - 1])
                yield Block(memoryview(self._out)[: done.size], sizes, counts, last)
            elif done.end is EncodeEnd.FULL:
                self._out = uninitialised(done.needed)
            row = done.row
            if done.end not in (EncodeEnd.FULL, EncodeEnd.DONE):
                raise RecordError(f"row {row}: {self._complaint(columns, done)}")

    def _complaint(self, columns: RecordColumns, done: Encoded) -> str:
        """What is wrong with a row that is no message."""
        if done.end is EncodeEnd.SEPARATOR:
            name = columns.properties[done.bad_property][0].decode()
            return f"property {name!r} contains a separator (U+0001 or U+0002)"
        what, most = {
            EncodeEnd.BODY: ("a body", f"{self._options.max_message_size} (maxMessageSize)"),
            EncodeEnd.PROPERTIES: ("properties", PROPERTIES_SIZE_MAX),
            EncodeEnd.RECORD: ("a record", self._options.max_message_size + RECORD_EXTRA_MAX),
        }[done.end]
        return f"{what} of {done.needed} bytes, allowed are {most}"

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        number = self._columns.get(name)
        return None if number is None else batch.column(number)

    def _record_columns(
        self, batch: pa.RecordBatch
    ) -> tuple[RecordColumns, Callable[[int, int], dict[tuple[str, int], int]], Ints]:
        """What records are made of, how many of a stretch go to each queue, and store times.

        A column of numbers that holds one stands for every row.
        """
        count = batch.num_rows
        now = np.array([now_ms()], np.int64)
        topics, topic_index = self._topics(batch, count)
        queue_ids = self._queue_ids(batch, topics, topic_index)
        topics, topic_index, queue_ids, delay = self._delayed(batch, topics, topic_index, queue_ids)
        sys_flags = self._sys_flags(batch)
        bodies, sys_flags = self._bodies(batch, sys_flags)
        named, stored = self._properties(batch, count, delay)
        hosts: list[bytes] = []
        born_hosts, born_v6 = self._host_index(batch, "bornHost", hosts)
        store_hosts, store_v6 = self._host_index(batch, "storeHost", hosts)
        sys_flags = np.where(born_v6, sys_flags | flags.BORN_HOST_V6, sys_flags)
        sys_flags = np.where(store_v6, sys_flags | flags.STORE_HOST_V6, sys_flags)
        store_times = self._times(batch, "timestamp", now)
        pieces, magics = _topic_pieces(topics)
        numbers: dict[str, Any] = {
            "queue_id": queue_ids,
            "flag": self._integers(batch, "flag"),
            "sys_flag": sys_flags,
            "born_timestamp": self._times(batch, "bornTimestamp", store_times),
            "store_timestamp": store_times,
            "reconsume_times": self._integers(batch, "reconsumeTimes"),
            "prepared_transaction_offset": self._integers(batch, "preparedTransactionOffset"),
            "topic": topic_index,
            "born_host": born_hosts,
            "store_host": store_hosts,
        }
        columns = RecordColumns(
            count,
            numbers,
            pieces,
            magics,
            hosts,
            _values(bodies),
            [(name.encode(), _values(values)) for name, values in named.items()],
            None if stored is None else _values(stored),
        )

        def counts_of(first: int, last: int) -> dict[tuple[str, int], int]:
            part = slice(first, last)
            return _queue_counts(
                topics,
                topic_index if len(topic_index) == 1 else topic_index[part],
                queue_ids[part],
                sys_flags if len(sys_flags) == 1 else sys_flags[part],
            )

        return columns, counts_of, store_times

    # Where a row goes.

    def _topics(self, batch: pa.RecordBatch, count: int) -> tuple[list[str], Ints]:
        """The topics of a batch and which one each row has."""
        if self._options.topic:
            check_stored_topic(self._options.topic)
            return [self._options.topic], np.zeros(1, np.int64)
        column = self._column(batch, "topic")
        assert column is not None
        if column.null_count:
            raise RecordError(f"row {_first_null(column)}: topic is null")
        coded = column.cast(pa.string()).dictionary_encode()
        topics: list[str] = coded.dictionary.to_pylist()
        for topic in topics:
            check_stored_topic(topic)
        return topics, coded.indices.to_numpy().astype(np.int64)

    def _queue_ids(self, batch: pa.RecordBatch, topics: list[str], topic_index: Ints) -> Ints:
        count = batch.num_rows
        column = self._column(batch, "partition")
        given = np.full(count, -1, np.int64)
        if column is not None:
            given = np.array(column.cast(pa.int64()).fill_null(-1))
            wrong = (given < -1) | (given >= QUEUES_MAX)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise RecordError(
                    f"row {row}: partition {given[row]}, allowed are 0 to {QUEUES_MAX - 1}"
                )
        sharding = self._column(batch, "shardingKey")
        if sharding is not None and (given < 0).any():
            coded = sharding.cast(pa.string()).dictionary_encode()
            hashes = np.array(
                [abs(java_hash(key)) for key in coded.dictionary.to_pylist()], np.int64
            )
            known = coded.is_valid().to_numpy(zero_copy_only=False)
            index = coded.indices.fill_null(0).to_numpy()
            chosen = (hashes[index] if len(hashes) else index) % self._options.queues
            given = np.where((given < 0) & known, chosen, given)
        open_rows = given < 0
        if open_rows.any():
            for number, topic in enumerate(topics):
                rows = np.flatnonzero(open_rows & (topic_index == number))
                first = self._next_queue.get(topic, 0)
                given[rows] = (first + np.arange(len(rows))) % self._options.queues
                self._next_queue[topic] = (first + len(rows)) % self._options.queues
        return given

    def _delayed(
        self, batch: pa.RecordBatch, topics: list[str], topic_index: Ints, queue_ids: Ints
    ) -> tuple[list[str], Ints, Ints, dict[str, pa.Array]]:
        """Where delayed rows wait, and the properties that say where they go afterwards."""
        column = self._column(batch, "delayLevel")
        if column is None:
            return topics, topic_index, queue_ids, {}
        levels = column.cast(pa.int64()).fill_null(0).to_numpy()
        if not (levels > 0).any():
            return topics, topic_index, queue_ids, {}
        levels = np.minimum(levels, self._delay_level_max)
        topic_index = np.broadcast_to(topic_index, (batch.num_rows,))
        waits = levels > 0
        none = ~waits
        properties = {
            "DELAY": pa.array(levels, mask=none).cast(pa.string()),
            "REAL_TOPIC": pa.array(topics).take(pa.array(topic_index, mask=none)),
            "REAL_QID": pa.array(queue_ids, mask=none).cast(pa.string()),
        }
        every = [*topics, SCHEDULE_TOPIC]
        return (
            every,
            np.where(waits, len(topics), topic_index),
            np.where(waits, levels - 1, queue_ids),
            properties,
        )

    # What a row holds.

    def _sys_flags(self, batch: pa.RecordBatch) -> Ints:
        """Flags as stored belong to bodies as stored; else a body is plain."""
        if "storedBody" not in self._columns:
            return np.zeros(1, np.int64)
        found = self._integers(batch, "sysFlag")
        if (found & flags.INNER_BATCH).any():
            row = int(np.flatnonzero(found & flags.INNER_BATCH)[0])
            raise RecordError(f"row {row}: sysFlag {found[row]} is an inner batch's")
        return found & ~(flags.BORN_HOST_V6 | flags.STORE_HOST_V6)

    def _bodies(self, batch: pa.RecordBatch, sys_flags: Ints) -> tuple[pa.Array, Ints]:
        """Bodies, packed where that is asked for, and the flags that say so."""
        stored = self._column(batch, "storedBody")
        column = stored if stored is not None else self._column(batch, "value")
        assert column is not None
        bodies = column.cast(pa.binary())
        if stored is None and self._compression is not None:
            lengths = pc.binary_length(bodies).fill_null(0).to_numpy()
            packs = (lengths > self._options.compress_over) & (
                lengths <= self._options.max_message_size
            )
            if packs.any():
                values = bodies.to_pylist()
                sys_flags = np.repeat(sys_flags, len(values))
                for row in np.flatnonzero(packs).tolist():
                    values[row] = compress(values[row], self._compression)
                    sys_flags[row] = with_compression(int(sys_flags[row]), self._compression)
                bodies = pa.array(values, pa.binary())
        return bodies, sys_flags

    def _properties(
        self, batch: pa.RecordBatch, count: int, delay: dict[str, pa.Array]
    ) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """Properties by name, and those that are joined already."""
        stored = self._column(batch, "storedProperties")
        if stored is not None:
            return {}, _without_places(stored.cast(pa.binary()))
        named: dict[str, pa.Array] = dict(delay)
        for name, column in (
            ("KEYS", "key"),
            ("TAGS", "tags"),
            ("UNIQ_KEY", "uniqueKey"),
            ("__SHARDINGKEY", "shardingKey"),
        ):
            found = self._column(batch, column)
            if found is not None:
                named[name] = found
        given = self._column(batch, "properties")
        if self._unique_keys is not None:
            named["UNIQ_KEY"] = self._fill_unique_keys(named.get("UNIQ_KEY"), given, count)
        named = {name: values.cast(pa.binary()) for name, values in named.items()}
        return named, None if given is None else _map_pieces(given, named)

    def _fill_unique_keys(
        self, given: pa.Array | None, properties: pa.Array | None, count: int
    ) -> pa.Array:
        assert self._unique_keys is not None
        given = None if given is None else given.cast(pa.binary())
        missing = np.ones(count, bool)
        if given is not None:
            missing &= ~given.is_valid().to_numpy(zero_copy_only=False)
        if properties is not None:
            missing &= ~_has_name(properties, "UNIQ_KEY")
        made: list[bytes | None] = [None] * count
        rows = np.flatnonzero(missing).tolist()
        for row, key in zip(rows, self._unique_keys(len(rows)), strict=True):
            made[row] = key
        fresh = pa.array(made, pa.binary())
        return fresh if given is None else pc.coalesce(given, fresh)

    def _integers(self, batch: pa.RecordBatch, name: str) -> Ints:
        column = self._column(batch, name)
        if column is None:
            return np.zeros(1, np.int64)
        numbers: Ints = column.cast(pa.int64()).fill_null(0).to_numpy()
        return numbers

    def _times(self, batch: pa.RecordBatch, name: str, default: Ints) -> Ints:
        column = self._column(batch, name)
        if column is None:
            return default
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            millis = micros.fill_null(0).to_numpy() // 1000
        else:
            millis = column.cast(pa.int64()).fill_null(0).to_numpy()
        return np.where(known, millis, default)

    def _host_index(
        self, batch: pa.RecordBatch, name: str, hosts: list[bytes]
    ) -> tuple[Ints, Ints]:
        """Each row's number among the hosts, which grow, and whether it is IPv6."""
        column = self._column(batch, name)
        first = len(hosts)
        if column is None:
            index = np.zeros(1, np.int64)
        else:
            coded = column.cast(pa.string()).dictionary_encode()
            known = coded.dictionary.to_pylist()
            hosts += [_host(text) for text in known]
            index = coded.indices.fill_null(len(known)).to_numpy().astype(np.int64)
        hosts.append(self._hosts[name])
        is_v6 = np.array([len(value) == m.HOST_V6_SIZE for value in hosts[first:]])
        return index + first, is_v6[index]


def _host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    try:
        return m.encode_host(address.strip("[]"), int(port))
    except ValueError as error:
        raise OptionError(f"host {text!r}: allowed is address:port ({error})") from None


def _values(column: pa.Array) -> Values:
    """A binary column as the kernel takes it; shares its memory."""
    validity, offsets, data = column.buffers()
    return Values(
        b"" if data is None else data,
        memoryview(offsets)[4 * column.offset :],
        validity if column.null_count else None,
        column.offset,
    )


def _topic_pieces(topics: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """Length and name of each topic as a record has them, and its magic."""
    pieces, magics = [], []
    for topic in topics:
        raw = topic.encode()
        short = len(raw) <= m.TOPIC_LENGTH_V1_MAX
        magics.append(m.MAGIC_V1 if short else m.MAGIC_V2)
        pieces.append(len(raw).to_bytes(1 if short else 2, "big") + raw)
    return pieces, magics


def _refuse_separators(values: pa.Array, name: str) -> None:
    for separator in (b"\x01", b"\x02"):
        hits = pc.match_substring(values, separator.decode())
        if pc.any(hits).as_py():
            row = pc.index(hits, True).as_py()
            raise RecordError(
                f"row {row}: property {name!r} contains a separator (U+0001 or U+0002)"
            )


def _first_null(column: pa.Array) -> int:
    row: int = pc.index(column.is_null(), True).as_py()
    return row


def _entries(column: pa.Array) -> tuple[pa.Array, pa.Array, Ints, Ints]:
    """Names, values and owning rows of a map column (or Kafka's headers), and starts by row."""
    if pa.types.is_map(column.type):
        names, values = column.keys, column.items
        offsets = column.offsets
    else:
        flat = column.values
        names, values = flat.field(0), flat.field(1)
        offsets = column.offsets
    bounds = offsets.to_numpy().astype(np.int64)
    names = names.slice(bounds[0], bounds[-1] - bounds[0]).cast(pa.binary())
    values = values.slice(bounds[0], bounds[-1] - bounds[0]).cast(pa.binary())
    bounds = bounds - bounds[0]
    owners = np.repeat(np.arange(len(column)), np.diff(bounds))
    return names, values, owners, bounds


def _has_name(column: pa.Array, name: str) -> Ints:
    names, _, owners, _ = _entries(column)
    found = np.zeros(len(column), bool)
    hits = pc.equal(names, name.encode()).fill_null(False).to_numpy(zero_copy_only=False)
    found[owners[hits]] = True
    return found


def _without_places(stored: pa.Array) -> pa.Array:
    """Properties strings without the places of the records that they were read from."""
    if isinstance(stored, pa.ChunkedArray):
        stored = stored.combine_chunks()
    found = pc.or_(
        pc.match_substring(stored, b"INNER_"), pc.match_substring(stored, p.CRC32.encode())
    ).fill_null(False)
    if not pc.any(found).as_py():
        return stored
    cleaned = [p.without_places(raw) for raw in stored.filter(found).to_pylist()]
    return pc.replace_with_mask(stored, found, pa.array(cleaned, pa.binary()))


def _map_pieces(column: pa.Array, named: Mapping[str, pa.Array]) -> pa.Array:
    """A map column as properties, without entries that a column of their own wins over.

    And without the places of records that the rows were read from: the new ones have their own.
    """
    names, values, owners, _ = _entries(column)
    _refuse_separators(names, "of the map")
    _refuse_separators(values, "of the map")
    keep = pc.and_(
        pc.greater(pc.binary_length(names).fill_null(0), 0),
        pc.greater(pc.binary_length(values).fill_null(0), 0),
    ).to_numpy(zero_copy_only=False)
    for name in (*p.PLACES, p.INNER_MULTI_DISPATCH):
        keep &= ~pc.equal(names, name.encode()).fill_null(False).to_numpy(zero_copy_only=False)
    for name, own in named.items():
        hits = pc.equal(names, name.encode()).fill_null(False).to_numpy(zero_copy_only=False)
        # An empty value is none: the map's stays.
        wins = pc.greater(pc.binary_length(own), 0).fill_null(False)
        keep = keep & ~(hits & wins.to_numpy(zero_copy_only=False)[owners])
    rows = pa.array(np.flatnonzero(keep))
    pieces = pc.binary_join_element_wise(names.take(rows), b"\x01", values.take(rows), b"\x02", b"")
    counts = np.bincount(owners[keep], minlength=len(column))
    bounds = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds), pieces), b"")


def _queue_counts(
    topics: Sequence[str], topic_index: Ints, queue_ids: Ints, sys_flags: Ints
) -> dict[tuple[str, int], int]:
    """How many records each queue gets; prepared and rolled back ones are in none."""
    kind = sys_flags & flags.TRANSACTION_MASK
    queued = (kind == flags.TRANSACTION_NOT) | (kind == flags.TRANSACTION_COMMIT)
    codes = topic_index * QUEUES_MAX + queue_ids
    if not queued.all():
        codes = codes[np.broadcast_to(queued, codes.shape)]
    found, counts = np.unique(codes, return_counts=True)
    return {
        (topics[code // QUEUES_MAX], code % QUEUES_MAX): count
        for code, count in zip(found.tolist(), counts.tolist(), strict=True)
    }
