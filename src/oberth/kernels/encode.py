"""Rows as CommitLog records: columns of numbers and values in, records back to back out.

Values lie as Arrow keeps them: one run of bytes and int32 offsets, and a bit for each row where
some have none. A record's queue offset is 0; it names the place that it is given. Properties are
joined from columns; a value that is missing or empty makes none: a reader would not find it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from oberth.formats.message import CRC_MASK, FIXED_SIZE_V1, HOST_V4_SIZE
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.arguments import ENCODE_COLUMNS, EncodeEnd
from oberth.kernels.memory import Buffer, address

_SEPARATORS: Final = (b"\x01", b"\x02")
_SIZELESS: Final = (EncodeEnd.DONE, EncodeEnd.SEPARATOR)


class Values(NamedTuple):
    """A value a row.

    Attributes:
        data: the values, one after the other.
        offsets: int32, one more than rows.
        validity: a bit for each row, the lowest first, or None when every row has a value.
        first_bit: the bit of the first row.
    """

    data: Buffer
    offsets: Buffer
    validity: Buffer | None = None
    first_bit: int = 0

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Values:
        """A column of these values."""
        offsets = array("i", [0])
        for value in values:
            offsets.append(offsets[-1] + len(value))
        return cls(b"".join(values), offsets)

    def value(self, row: int) -> bytes:
        """One value; what is missing is empty."""
        bit = self.first_bit + row
        if self.validity is not None:
            validity = memoryview(self.validity).cast("B")
            if not validity[bit >> 3] >> (bit & 7) & 1:
                return b""
        offsets = memoryview(self.offsets).cast("B").cast("i")
        return bytes(memoryview(self.data)[offsets[row] : offsets[row + 1]])


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """What records are made of.

    Attributes:
        rows: how many there are.
        numbers: a buffer of int64 for each of `arguments.ENCODE_COLUMNS`; one that holds a single
            number holds it for every row. ``topic`` counts in topics, the hosts' in hosts.
        topics: each topic's length and name as a record has them.
        magics: each topic's magic.
        hosts: addresses and ports as stored.
        bodies: of the rows.
        properties: names, each with its values by row.
        stored: properties as stored by row, after the others; the last separator included.
    """

    rows: int
    numbers: Mapping[str, Buffer]
    topics: Sequence[bytes]
    magics: Sequence[int]
    hosts: Sequence[bytes]
    bodies: Values
    properties: Sequence[tuple[bytes, Values]] = ()
    stored: Values | None = None


class Encoded(NamedTuple):
    """How far a `RecordWriter.encode` came.

    Attributes:
        end: why it stopped.
        row: the first row that was not encoded; where ``end`` is an error, the one at fault.
        size: bytes that were written.
        needed: bytes of the record that does not fit (FULL), or of what is too long.
        bad_property: SEPARATOR: number of the property.
    """

    end: EncodeEnd
    row: int
    size: int
    needed: int = 0
    bad_property: int = -1


class RecordWriter:
    """Encodes the rows of some columns, a stretch at a time. One thread at a time.

    ``sizes`` holds the size of each record that was encoded, by row (int64).
    """

    def __init__(self, columns: RecordColumns, *, body_max: int, record_max: int) -> None:
        """Takes the columns; they are kept alive.

        Args:
            columns: what to encode.
            body_max: no body is longer.
            record_max: no record is larger.
        """
        self._columns = columns
        self._body_max = body_max
        self._record_max = record_max
        self.sizes = array("q", bytes(8 * columns.rows))
        self._kept: list[Any] = []
        self._arguments: array[int] | None = None

    def encode(self, row: int, log_offset: int, out: bytearray) -> Encoded:
        """Writes records from a row on until all are written, the output is full, or one is wrong.

        Args:
            row: the first.
            log_offset: what its record says of its place.
            out: is filled from its beginning.
        """
        kernel = runtime.native("encode")
        if kernel is None:
            return reference_encode(
                self._columns, self.sizes, row, log_offset, out, self._body_max, self._record_max
            )
        if self._arguments is None:
            self._arguments = self._prepare()
        arguments = self._arguments
        arguments[at.ENCODE_ROW] = row
        arguments[at.ENCODE_LOG_OFFSET] = log_offset
        arguments[at.ENCODE_OUT] = address(out)
        arguments[at.ENCODE_OUT_MAX] = len(out)
        ended = EncodeEnd(kernel(arguments))
        return Encoded(
            ended,
            arguments[at.ENCODE_ROW],
            arguments[at.ENCODE_OUT_USED],
            0 if ended in _SIZELESS else arguments[at.ENCODE_NEEDED],
            arguments[at.ENCODE_BAD_PROPERTY] if ended is EncodeEnd.SEPARATOR else -1,
        )

    def _prepare(self) -> array[int]:
        columns = self._columns
        arguments = array("q", bytes(8 * at.ENCODE_ARGUMENTS))
        arguments[at.ENCODE_ROWS] = columns.rows
        arguments[at.ENCODE_SIZES] = address(self.sizes)
        arguments[at.ENCODE_BODY_MAX] = self._body_max
        arguments[at.ENCODE_RECORD_MAX] = self._record_max
        arguments[at.ENCODE_MAGICS] = self._address(array("q", columns.magics))
        none = Values(b"", array("i", bytes(4 * (columns.rows + 1))))
        for place, values in (
            (at.ENCODE_TOPICS, Values.of(columns.topics)),
            (at.ENCODE_HOSTS, Values.of(columns.hosts)),
            (at.ENCODE_BODIES, columns.bodies),
            (at.ENCODE_STORED, columns.stored or none),
        ):
            arguments[place] = self._address(self._fields(values))
        named = array("q")
        for name, values in columns.properties:
            named += self._fields(Values.of([name + _SEPARATORS[0]]))
            named += self._fields(values)
        arguments[at.ENCODE_PROPERTIES] = self._address(named)
        arguments[at.ENCODE_PROPERTY_COUNT] = len(columns.properties)
        for number, column in enumerate(ENCODE_COLUMNS):
            place = at.ENCODE_NUMBERS + 2 * number
            arguments[place] = self._address(columns.numbers[column])
            arguments[place + 1] = len(_numbers(columns.numbers[column])) != 1
        return arguments

    def _fields(self, values: Values) -> array[int]:
        validity = 0 if values.validity is None else self._address(values.validity)
        return array(
            "q",
            (self._address(values.data), self._address(values.offsets), validity, values.first_bit),
        )

    def _address(self, buffer: Buffer) -> int:
        self._kept.append(buffer)
        return address(buffer)


def _numbers(column: Buffer) -> memoryview[int]:
    return memoryview(column).cast("B").cast("q")


def reference_encode(
    columns: RecordColumns,
    sizes: array[int],
    row: int,
    log_offset: int,
    out: bytearray,
    body_max: int,
    record_max: int,
) -> Encoded:
    """`RecordWriter.encode` in plain Python."""
    numbers = {name: _numbers(columns.numbers[name]) for name in ENCODE_COLUMNS}
    used = 0
    while row < columns.rows:
        of = {name: column[row % len(column)] for name, column in numbers.items()}
        body = columns.bodies.value(row)
        if len(body) > body_max:
            return Encoded(EncodeEnd.BODY, row, used, len(body))
        properties = b""
        for number, (name, values) in enumerate(columns.properties):
            value = values.value(row)
            if any(separator in value for separator in _SEPARATORS):
                return Encoded(EncodeEnd.SEPARATOR, row, used, bad_property=number)
            if value:
                properties += name + _SEPARATORS[0] + value + _SEPARATORS[1]
        if columns.stored is not None:
            properties += columns.stored.value(row)
        if len(properties) > PROPERTIES_SIZE_MAX:
            return Encoded(EncodeEnd.PROPERTIES, row, used, len(properties))
        topic = columns.topics[of["topic"]]
        born_host, store_host = columns.hosts[of["born_host"]], columns.hosts[of["store_host"]]
        size = FIXED_SIZE_V1 - 1 + len(body) + len(topic) + len(properties)
        size += len(born_host) + len(store_host) - 2 * HOST_V4_SIZE
        if size > record_max:
            return Encoded(EncodeEnd.RECORD, row, used, size)
        if used + size > len(out):
            return Encoded(EncodeEnd.FULL, row, used, size)
        out[used : used + size] = b"".join(
            (
                _int(size, 4), _int(columns.magics[of["topic"]], 4),
                _int(crc32(body) & CRC_MASK, 4),
                _int(of["queue_id"], 4), _int(of["flag"], 4), bytes(8),
                _int(log_offset + used, 8), _int(of["sys_flag"], 4),
                _int(of["born_timestamp"], 8), born_host,
                _int(of["store_timestamp"], 8), store_host,
                _int(of["reconsume_times"], 4), _int(of["prepared_transaction_offset"], 8),
                _int(len(body), 4), body, topic, len(properties).to_bytes(2, "big"), properties,
            )
        )  # fmt: skip
        sizes[row] = size
        used += size
        row += 1
    return Encoded(EncodeEnd.DONE, row, used)


def _int(value: int, size: int) -> bytes:
    """The low bytes of a number, as the kernel stores them."""
    return (value & (1 << 8 * size) - 1).to_bytes(size, "big")
