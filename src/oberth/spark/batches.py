"""Scanned records as Arrow batches, exactly of the schema that Spark expects.

Input is what `oberth.kernels.scan` gives: the bytes and, for every record, the positions and sizes
of its parts. Text and bodies are never touched one by one: positions and sizes become the offsets
of one Arrow array over the scanned bytes, of which every second element is wanted, and Arrow's own
``take`` copies those. Only compressed bodies and inner batches are taken apart in Python.

A batch owns its memory, so the scanned bytes may be overwritten as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oberth.errors import FormatError
from oberth.formats import properties as p
from oberth.formats import sys_flag as flags
from oberth.formats.batch_body import BatchItem, decode_batch
from oberth.formats.compression import decompress_body
from oberth.kernels.columns import Columns
from oberth.kernels.gather import Gathered, gather_spans, host_texts, message_ids, property_maps
from oberth.kernels.memory import SpareMemory
from oberth.spark.calendar import TIME_MAX_MS, TIME_MIN_MS
from oberth.spark.schemas import TIMESTAMP_TYPE_LOG_APPEND, Field, place_text, refuse_nulls

Ints = np.ndarray[Any, np.dtype[Any]]

UNPACKED_BYTES_MAX: Final = 64 << 20
"""What unpacking may add to a batch before it is cut in two."""

# Scanned columns that each column of the schema is made from.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("keys_at", "keys_size"),
    "value": ("body_at", "body_size", "sys_flag"),
    "topic": ("topic_id",),
    "broker": (),
    "partition": ("queue_id",),
    "offset": ("queue_offset", "sys_flag", "inner_base"),
    "timestamp": ("store_timestamp",),
    "timestampType": (),
    "tags": ("tags_at", "tags_size"),
    "bornTimestamp": ("born_timestamp",),
    "properties": ("properties_at", "properties_size"),
    "physicalOffset": ("stored_offset",),
    "size": ("record_size",),
    "msgId": ("uniq_key_at", "uniq_key_size", "store_host_at", "sys_flag", "commit_log_offset"),
    "uniqueKey": ("uniq_key_at", "uniq_key_size"),
    "offsetMsgId": ("store_host_at", "sys_flag", "commit_log_offset"),
    "shardingKey": ("properties_at", "properties_size"),
    "flag": ("flag",),
    "sysFlag": ("sys_flag",),
    "bodyCRC": ("body_crc",),
    "bornHost": ("born_host_at", "sys_flag"),
    "storeHost": ("store_host_at", "sys_flag"),
    "reconsumeTimes": ("reconsume_times",),
    "preparedTransactionOffset": ("prepared_transaction_offset",),
    "magic": ("magic",),
    "innerIndex": ("sys_flag",),
    "storedQueueOffset": ("queue_offset",),
    "storedBody": ("body_at", "body_size"),
    "storedProperties": ("properties_at", "properties_size"),
    "bodyError": ("body_at", "body_size", "sys_flag"),
}


_STORED_PARTS: Final = {"storedBody": "body", "storedProperties": "properties"}


def scan_columns(fields: Sequence[Field]) -> tuple[str, ...]:
    """The columns that a scan has to fill so that these fields can be made."""
    names = {"sys_flag", "body_at", "body_size", "properties_at", "properties_size", "inner_base"}
    for field in fields:
        names.update(_NEEDS[field.column])
    return tuple(sorted(names))


@dataclass(slots=True)
class Records:
    """Scanned records to make rows of.

    Attributes:
        data: the scanned bytes.
        columns: scanned columns by name, one element per record, in order of position.
        count: how many records.
        topics: names by topic_id, as stored.
        broker: what the column broker says.
        topic: for a light queue: what the column topic says instead.
        offsets: for a light queue: what the column offset says instead.
        queue: for a light queue: what the column partition says instead.
    """

    data: Any
    columns: Mapping[str, Ints]
    count: int
    topics: Sequence[bytes]
    broker: str
    topic: str | None = None
    offsets: Ints | None = None
    queue: int | None = None

    def take(self, rows: Ints) -> Records:
        """Some of the records, in the order of the rows' numbers."""
        return Records(
            self.data,
            {name: column[rows] for name, column in self.columns.items()},
            len(rows),
            self.topics,
            self.broker,
            self.topic,
            None if self.offsets is None else self.offsets[rows],
            self.queue,
        )

    def base_offset(self, row: int) -> int:
        """The queue offset of a record, or of the first message in it."""
        base = int(self.columns["inner_base"][row])
        return base if base >= 0 else int(self.columns["queue_offset"][row])

    def as_item(self, row: int) -> BatchItem:
        """A record as if it were the one message of its own body."""
        flag = int(self.columns["flag"][row]) if "flag" in self.columns else 0
        return BatchItem(flag, b"", self.bytes_of(row, "properties"))

    def bytes_of(self, row: int, part: str) -> bytes:
        """One part of one record: ``body`` or ``properties``."""
        at = int(self.columns[f"{part}_at"][row])
        return bytes(self.data[at : at + int(self.columns[f"{part}_size"][row])])


class BatchMaker:
    """Makes batches of one schema, out of memory that may be lent again when they are gone."""

    def __init__(self, fields: Sequence[Field], schema: pa.Schema, memory: SpareMemory) -> None:
        self.fields = tuple(fields)
        self.schema = schema
        wanted = {field.column for field in fields}
        self._wants_body = not wanted.isdisjoint(("value", "bodyError"))
        # What each message inside an inner batch has of the whole record.
        self._repeated = [part for name, part in _STORED_PARTS.items() if name in wanted]
        self.memory = memory
        self._topics: tuple[list[bytes], pa.Array] = ([], None)

    def batches(
        self,
        records: Records,
        on_bad_body: Callable[[int, str], bool],
        keep_item: Callable[[int, int, BatchItem], bool] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the records, as one batch unless unpacking makes them large.

        Args:
            records: what to make rows of.
            on_bad_body: called with the number of a record whose body cannot be unpacked, and why;
                says whether it gives a row, with the body as stored.
            keep_item: whether a message inside an inner batch is wanted, by the record's number
                and the message's place; None for all.
        """
        if records.count == 0:
            return
        sys_flags = records.columns["sys_flag"]
        # Inner batches always have to be opened: one record is several rows.
        packed = (sys_flags & flags.INNER_BATCH) != 0
        if self._wants_body:
            packed = packed | ((sys_flags & flags.COMPRESSED) != 0)
        if not packed.any():
            yield self._batch(records, None)
            return
        yield from self._unpack(records, packed, on_bad_body, keep_item)

    def topic_names(self, topics: Sequence[bytes], kind: pa.DataType) -> pa.Array:
        """Topics as text; made once for all batches of the same topics."""
        known, names = self._topics
        wanted = list(topics)
        if names is None or names.type != kind or known != wanted:
            names = _text_array(wanted, kind)
            self._topics = (wanted, names)
        return names

    def _unpack(
        self,
        records: Records,
        packed: Ints,
        on_bad_body: Callable[[int, str], bool],
        keep_item: Callable[[int, int, BatchItem], bool] | None,
    ) -> Iterator[pa.RecordBatch]:
        rows = _Unpacked()
        sys_flags = records.columns["sys_flag"]
        for number in range(records.count):
            if not packed[number]:
                rows.add_plain(number)
                continue
            sys_flag = int(sys_flags[number])
            try:
                body = decompress_body(records.bytes_of(number, "body"), sys_flag)
                items = decode_batch(body) if sys_flag & flags.INNER_BATCH else None
            except FormatError as error:
                whole = records.as_item(number)
                wanted = keep_item is None or keep_item(number, 0, whole)
                if wanted and on_bad_body(number, str(error)):
                    rows.add_bad(number, str(error))
                continue
            if items is None:
                rows.add_body(number, body)
            else:
                sizes = [records.columns[f"{part}_size"][number] for part in self._repeated]
                again = int(sum(sizes))
                for index, item in enumerate(items):
                    if keep_item is None or keep_item(number, index, item):
                        rows.add_item(number, index, item, again)
                        if rows.size > UNPACKED_BYTES_MAX:
                            yield self._batch(records, rows)
                            rows = _Unpacked()
            if rows.size > UNPACKED_BYTES_MAX:
                yield self._batch(records, rows)
                rows = _Unpacked()
        if rows.numbers:
            yield self._batch(records, rows)

    def _batch(self, records: Records, rows: _Unpacked | None) -> pa.RecordBatch:
        maker = _Arrays(records, rows, self)
        arrays = [
            maker.array(field, self.schema.field(number))
            for number, field in enumerate(self.fields)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Unpacked:
    """Rows of records of which some are compressed or hold several messages."""

    def __init__(self) -> None:
        self.numbers: list[int] = []  # of each row's record
        self.bodies: dict[int, bytes] = {}  # by row
        self.items: dict[int, BatchItem] = {}  # by row
        self.errors: dict[int, str] = {}  # by row
        self.inner: list[int] = []  # place in the inner batch, or -1
        self.size = 0

    def add_plain(self, number: int) -> None:
        self.numbers.append(number)
        self.inner.append(-1)

    def add_body(self, number: int, body: bytes) -> None:
        self.bodies[len(self.numbers)] = body
        self.size += len(body)
        self.add_plain(number)

    def add_bad(self, number: int, reason: str) -> None:
        self.errors[len(self.numbers)] = reason
        self.add_plain(number)

    def add_item(self, number: int, index: int, item: BatchItem, more: int) -> None:
        self.items[len(self.numbers)] = item
        self.size += len(item.body) + len(item.properties) + more
        self.numbers.append(number)
        self.inner.append(index)


class _Arrays:
    """The columns of one batch."""

    def __init__(self, records: Records, rows: _Unpacked | None, maker: BatchMaker) -> None:
        self._records = records
        self._maker = maker
        self._rows = rows
        self._index = None if rows is None else np.array(rows.numbers, np.int64)
        self._cache: dict[str, Any] = {}

    def array(self, field: Field, arrow: pa.Field) -> pa.Array:
        made: pa.Array = getattr(self, f"_make_{_snake(field.column)}")(arrow.type)
        refuse_nulls(made, arrow, self._place)
        return made

    def _place(self, row: int) -> str:
        topics, brokers = self._make_topic(pa.string()), self._make_broker(pa.string())
        queues, offsets = self._make_partition(pa.int32()), self._make_offset(pa.int64())
        return place_text(*(each[row].as_py() for each in (topics, brokers, queues, offsets)))

    # What a column is made of.

    def _numbers(self, name: str) -> Ints:
        column = self._records.columns[name]
        return column.copy() if self._index is None else column[self._index]

    def _integers(self, name: str, kind: pa.DataType) -> pa.Array:
        made = pa.array(self._numbers(name))
        return made if made.type == kind else made.cast(kind, safe=False)

    def _times(self, name: str, kind: pa.DataType) -> pa.Array:
        millis = self._numbers(name)
        if pa.types.is_timestamp(kind):
            wrong = (millis > TIME_MAX_MS) | (millis < TIME_MIN_MS)  # such a time is damage
            micros = pa.array(millis * 1000, mask=wrong if wrong.any() else None)
            return micros.view(kind)
        return pa.array(millis)

    def _spans(self, part: str, kind: pa.DataType, replaced: Collection[int] = ()) -> pa.Array:
        """Bytes of the records as stored; a size of -1 is null.

        Rows that are replaced are left empty: a thousand messages of one inner batch would each
        get all of its body first.
        """
        columns = self._records.columns
        at, size = columns[f"{part}_at"], columns[f"{part}_size"]
        if self._index is not None:
            at, size = at[self._index], size[self._index]
            size[list(replaced)] = 0
        return gather(self._records.data, at, size, kind, self._maker.memory)

    def _text_property(self, name: str, part: str, kind: pa.DataType) -> pa.Array:
        items = {} if self._rows is None else self._rows.items
        raw = name.encode()
        replaced = {row: p.find_property(item.properties, raw) for row, item in items.items()}
        return _replace(self._spans(part, kind, replaced), replaced, kind)

    def _inner_rows(self) -> bool:
        return self._rows is not None and bool(self._rows.items)

    # One method for each column.

    def _make_key(self, kind: pa.DataType) -> pa.Array:
        return self._text_property("KEYS", "keys", kind)

    def _make_tags(self, kind: pa.DataType) -> pa.Array:
        return self._text_property("TAGS", "tags", kind)

    def _make_unique_key(self, kind: pa.DataType) -> pa.Array:
        return self._text_property("UNIQ_KEY", "uniq_key", kind)

    def _make_sharding_key(self, kind: pa.DataType) -> pa.Array:
        maps = self._maps()
        entries = np.flatnonzero(pc.equal(maps.keys, p.SHARDING_KEY).to_numpy(zero_copy_only=False))
        rows = np.searchsorted(maps.offsets.to_numpy(), entries, side="right") - 1
        index = np.zeros(self._count(), np.int64)
        missing = np.ones(self._count(), bool)
        index[rows], missing[rows] = entries, False
        return maps.items.take(pa.array(index, mask=missing)).cast(kind)

    def _make_value(self, kind: pa.DataType) -> pa.Array:
        replaced: dict[int, bytes | None] = {}
        if self._rows is not None:
            replaced.update(self._rows.bodies)
            replaced.update((row, item.body) for row, item in self._rows.items.items())
        return _replace(self._spans("body", kind, replaced), replaced, kind)

    def _make_topic(self, kind: pa.DataType) -> pa.Array:
        records = self._records
        if records.topic is not None:
            return pa.array([records.topic.encode()], pa.binary()).cast(kind).take(self._zeros())
        names = self._maker.topic_names(records.topics, kind)
        return names.take(pa.array(self._numbers("topic_id")))

    def _make_broker(self, kind: pa.DataType) -> pa.Array:
        return pa.array([self._records.broker], kind).take(self._zeros())

    def _zeros(self) -> pa.Array:
        return pa.array(np.zeros(self._count(), np.int8))

    def _count(self) -> int:
        return self._records.count if self._rows is None else len(self._rows.numbers)

    def _make_partition(self, kind: pa.DataType) -> pa.Array:
        if self._records.queue is not None:
            return pa.array(np.full(self._count(), self._records.queue)).cast(kind)
        return self._integers("queue_id", kind)

    def _make_offset(self, kind: pa.DataType) -> pa.Array:
        records = self._records
        if records.offsets is not None:
            offsets = records.offsets
            return pa.array(offsets.copy() if self._index is None else offsets[self._index])
        offsets = self._numbers("queue_offset")
        if self._inner_rows():
            assert self._rows is not None
            inner = np.array(self._rows.inner, np.int64)
            base = self._numbers("inner_base")
            offsets = np.where(inner < 0, offsets, np.where(base < 0, offsets, base) + inner)
        return pa.array(offsets)

    def _make_timestamp(self, kind: pa.DataType) -> pa.Array:
        return self._times("store_timestamp", kind)

    def _make_timestamp_type(self, kind: pa.DataType) -> pa.Array:
        return pa.array(np.full(self._count(), TIMESTAMP_TYPE_LOG_APPEND, np.int32))

    def _make_born_timestamp(self, kind: pa.DataType) -> pa.Array:
        return self._times("born_timestamp", kind)

    def _make_properties(self, kind: pa.DataType) -> pa.Array:
        if pa.types.is_string(kind):
            if self._inner_rows():
                return _text_array(list(self._properties_list()), kind)
            return self._spans("properties", kind)
        return _as_map_type(self._maps(), kind)

    def _maps(self) -> pa.Array:
        """The properties of every row as a map."""
        made = self._cache.get("maps")
        if made is None:
            if self._inner_rows():
                made = _maps_one_by_one(self._properties_list())
            else:
                made = self._stored_maps()
                if self._index is not None:
                    made = made.take(pa.array(self._index))
            self._cache["maps"] = made
        return made

    def _stored_maps(self) -> pa.Array:
        records = self._records
        found = property_maps(
            records.data, _as_columns(records, "properties_at", "properties_size")
        )
        offsets = pa.Array.from_buffers(
            pa.int32(), found.rows + 1, [None, pa.py_buffer(found.offsets)]
        )
        return pa.MapArray.from_arrays(offsets, _text(found.keys), _text(found.values))

    def _properties_list(self) -> Iterator[bytes]:
        items = {} if self._rows is None else self._rows.items
        numbers = range(self._records.count) if self._rows is None else self._rows.numbers
        for row, number in enumerate(numbers):
            item = items.get(row)
            yield self._records.bytes_of(number, "properties") if item is None else item.properties

    def _make_physical_offset(self, kind: pa.DataType) -> pa.Array:
        return self._integers("stored_offset", kind)

    def _make_size(self, kind: pa.DataType) -> pa.Array:
        return self._integers("record_size", kind)

    def _make_msg_id(self, kind: pa.DataType) -> pa.Array:
        unique = self._make_unique_key(kind)
        if not unique.null_count:
            return unique
        return pc.coalesce(unique, self._make_offset_msg_id(kind))

    def _make_offset_msg_id(self, kind: pa.DataType) -> pa.Array:
        made = self._cache.get("offset_msg_id")
        if made is None:
            made = self._offset_ids(kind)
            if self._index is not None:
                made = made.take(pa.array(self._index))
            self._cache["offset_msg_id"] = made
        return made

    def _offset_ids(self, kind: pa.DataType) -> pa.Array:
        names = ("sys_flag", "store_host_at", "commit_log_offset")
        return _text(message_ids(self._records.data, _as_columns(self._records, *names)))

    def _host_names(self, name: str, kind: pa.DataType) -> pa.Array:
        columns = _as_columns(self._records, "sys_flag", f"{name}_at")
        made = _text(host_texts(self._records.data, columns, name))
        return made if self._index is None else made.take(pa.array(self._index))

    def _make_born_host(self, kind: pa.DataType) -> pa.Array:
        return self._host_names("born_host", kind)

    def _make_store_host(self, kind: pa.DataType) -> pa.Array:
        return self._host_names("store_host", kind)

    def _make_flag(self, kind: pa.DataType) -> pa.Array:
        numbers = self._numbers("flag")
        if self._rows is not None:
            for row, item in self._rows.items.items():
                numbers[row] = item.flag
        return pa.array(numbers)

    def _make_sys_flag(self, kind: pa.DataType) -> pa.Array:
        return self._integers("sys_flag", kind)

    def _make_body_crc(self, kind: pa.DataType) -> pa.Array:
        return self._integers("body_crc", kind)

    def _make_reconsume_times(self, kind: pa.DataType) -> pa.Array:
        return self._integers("reconsume_times", kind)

    def _make_prepared_transaction_offset(self, kind: pa.DataType) -> pa.Array:
        return self._integers("prepared_transaction_offset", kind)

    def _make_magic(self, kind: pa.DataType) -> pa.Array:
        return self._integers("magic", kind)

    def _make_inner_index(self, kind: pa.DataType) -> pa.Array:
        if self._rows is None:
            return pa.nulls(self._count(), kind)
        inner = np.array(self._rows.inner, np.int32)
        return pa.array(inner, kind, mask=inner < 0)

    def _make_stored_queue_offset(self, kind: pa.DataType) -> pa.Array:
        return self._integers("queue_offset", kind)

    def _make_stored_body(self, kind: pa.DataType) -> pa.Array:
        return self._spans("body", kind)

    def _make_body_error(self, kind: pa.DataType) -> pa.Array:
        errors = {} if self._rows is None else self._rows.errors
        if not errors:
            return pa.nulls(self._count(), kind)
        return pa.array([errors.get(row) for row in range(self._count())], kind)

    def _make_stored_properties(self, kind: pa.DataType) -> pa.Array:
        return self._spans("properties", kind)


@cache
def _snake(name: str) -> str:
    out = []
    for at, char in enumerate(name):
        upper = char.isupper()
        if upper and at and not name[at - 1].isupper():
            out.append("_")
        out.append(char.lower())
    return "".join(out)


def gather(
    data: Any, at: Ints, size: Ints, kind: pa.DataType, memory: SpareMemory | None = None
) -> pa.Array:
    """Stretches of data as an Arrow array of binary or string; a size of -1 gives null.

    Text that is no UTF-8 gets U+FFFD where it is none, as in Java.

    Args:
        data: the bytes.
        at: where each stretch begins.
        size: how long each is.
        kind: binary or string.
        memory: where the values may lie; None: in memory of their own.
    """
    found = gather_spans(
        data,
        np.ascontiguousarray(at, np.int32).data,
        np.ascontiguousarray(size, np.int32).data,
        len(at),
        "a column",
        text=pa.types.is_string(kind),
        memory=None if memory is None else memory.lend,
    )
    return _array(found, kind)


def _as_text(made: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return made
    try:
        return made.cast(kind)
    except pa.ArrowInvalid:
        return pa.array(
            [None if raw is None else str(raw, "utf-8", "replace") for raw in made.to_pylist()],
            kind,
        )


def _text_array(values: list[bytes | None] | list[bytes], kind: pa.DataType) -> pa.Array:
    return _as_text(pa.array(values, pa.binary()), kind)


def _replace(made: pa.Array, rows: Mapping[int, bytes | None], kind: pa.DataType) -> pa.Array:
    """The array with other values in some rows."""
    if not rows:
        return made
    numbers = sorted(rows)
    other = _text_array([rows[n] for n in numbers], kind)
    index = np.arange(len(made))
    index[numbers] = len(made) + np.arange(len(numbers))
    return pa.concat_arrays([made, other]).take(pa.array(index))


def _as_columns(records: Records, *names: str) -> Columns:
    """Columns of records as a kernel wants them."""
    made = Columns(records.count, names)
    made.count = records.count
    for name in names:
        made.array(name)[:] = records.columns[name]
    return made


def _array(found: Gathered, kind: pa.DataType) -> pa.Array:
    """What a kernel has gathered, where it lies."""
    validity = None if found.validity is None else pa.py_buffer(found.validity)
    buffers = [validity, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(kind, found.rows, buffers, found.null_count)


def _text(found: Gathered) -> pa.Array:
    return _array(found, pa.string())


def _maps_one_by_one(strings: Iterator[bytes] | Any) -> pa.Array:
    maps = [list(p.decode_properties(raw).items()) for raw in strings]
    return pa.array(maps, pa.map_(pa.string(), pa.string()))


def _as_map_type(made: pa.Array, kind: pa.DataType) -> pa.Array:
    """A map<string, string> as a map with the schema's nullability, or as Kafka's headers."""
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(made.offsets, made.keys, made.items, type=kind)
    entry = kind.value_type
    items = made.items.cast(entry.field(1).type)
    entries = pa.StructArray.from_arrays(
        [made.keys, items], fields=[entry.field(0), entry.field(1)]
    )
    return pa.ListArray.from_arrays(made.offsets, entries, type=kind)
