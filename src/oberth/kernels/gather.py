"""Columns of values out of scanned records, in the memory layout of Arrow.

`scan` tells where in a log each body, topic or property lies; these functions copy what lies there
into one run of bytes with int32 offsets, so that ``pyarrow.StringArray.from_buffers(rows, offsets,
data, validity)`` makes an array of them without a Python object per row. Text is always valid
UTF-8: what is broken in the log becomes U+FFFD, as in ``bytes.decode("utf-8", "replace")``.

One call gathers less than 2 GiB (offsets are int32); callers work in batches anyway.

`copy_records` copies whole records, as a queue's units name them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from oberth.formats.consume_queue import UNIT, UNIT_SIZE
from oberth.formats.message import HOST_V4_SIZE, HOST_V6_SIZE, decode_host
from oberth.formats.message_id import offset_message_id
from oberth.formats.properties import decode_properties
from oberth.formats.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.columns import Columns
from oberth.kernels.memory import Buffer, address, uninitialised

GATHERED_SIZE_MAX: Final = 2**31 - 1
_HOST_BITS: Final = {"born_host": BORN_HOST_V6, "store_host": STORE_HOST_V6}


class Gathered(NamedTuple):
    """One value a row; Arrow's variable-size binary layout.

    Attributes:
        rows: how many values, those that are missing included.
        offsets: int32, one more than rows.
        data: the values, one after the other.
        validity: a bit for each row, the lowest first, or None when every row has a value.
        null_count: rows without a value.
    """

    rows: int
    offsets: bytearray
    data: memoryview
    validity: bytearray | None
    null_count: int

    def value(self, row: int) -> bytes | None:
        """One value; for tests and messages."""
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        offsets = memoryview(self.offsets).cast("i")
        return bytes(self.data[offsets[row] : offsets[row + 1]])


class GatheredMaps(NamedTuple):
    """A map a row; Arrow's layout of a list of keys and values.

    Attributes:
        rows: how many maps.
        offsets: int32, one more than rows: where a row's entries begin.
        keys: the keys of all entries.
        values: the values of all entries.
    """

    rows: int
    offsets: bytearray
    keys: Gathered
    values: Gathered

    def value(self, row: int) -> dict[str, str]:
        """One map; for tests and messages."""
        offsets = memoryview(self.offsets).cast("i")
        return {
            (self.keys.value(n) or b"").decode(): (self.values.value(n) or b"").decode()
            for n in range(offsets[row], offsets[row + 1])
        }


def gather(data: Buffer, columns: Columns, name: str, *, text: bool = False) -> Gathered:
    """The values of a pair of columns, ``name_at`` and ``name_size``.

    Args:
        data: the bytes that the columns were scanned from.
        columns: with the two columns.
        name: ``body``, ``topic``, ``properties``, ``tags``, ``keys``, ``uniq_key``,
            ``multi_dispatch`` or ``multi_queue_offset``.
        text: mend broken UTF-8.

    Raises:
        ValueError: the values come to 2 GiB or more.
    """
    spans = (getattr(columns, f"{name}_at"), getattr(columns, f"{name}_size"), columns.count)
    return gather_spans(data, *spans, name, text=text)


def gather_spans(
    data: Buffer,
    starts: Buffer,
    sizes: Buffer,
    rows: int,
    name: str,
    *,
    text: bool = False,
    memory: Callable[[int], bytearray] | None = None,
) -> Gathered:
    """The values of any two arrays of int32 that say where each lies and how long it is.

    Args:
        data: what the values lie in.
        starts: where a value begins.
        sizes: its bytes; -1: this row has none.
        rows: how many values.
        name: what they are, for messages.
        text: mend broken UTF-8.
        memory: gives so many bytes for the values to be put in, whatever they hold; None: new ones.

    Raises:
        ValueError: the values come to 2 GiB or more, or one does not lie in ``data``.
    """
    kernel = runtime.native("gather")
    if kernel is None:
        return _laid_out(_values(data, starts, sizes, rows, text, name), name)
    room = _total(sizes, rows)
    view = memoryview(data)
    offsets = uninitialised(4 * (rows + 1))
    validity = bytearray((rows + 7) // 8)
    arguments = array("q", bytes(8 * at.GATHER_ARGUMENTS))
    arguments[at.GATHER_DATA] = address(view)
    arguments[at.GATHER_LIMIT] = view.nbytes
    arguments[at.GATHER_ROWS] = rows
    arguments[at.GATHER_AT] = address(starts)
    arguments[at.GATHER_SIZE] = address(sizes)
    arguments[at.GATHER_TEXT] = text
    arguments[at.GATHER_OFFSETS] = address(offsets)
    arguments[at.GATHER_VALIDITY] = address(validity)
    while True:
        _check_total(room, name)
        out = (memory or uninitialised)(room)
        arguments[at.GATHER_OUT] = address(out)
        arguments[at.GATHER_OUT_MAX] = room
        done = kernel(arguments)
        if done < 0:
            raise ValueError(_outside(name, view.nbytes))
        if done:
            break
        room = _more_room(room, name)
    nulls = arguments[at.GATHER_NULLS]
    used = memoryview(offsets).cast("i")[rows]
    return Gathered(rows, offsets, memoryview(out)[:used], validity if nulls else None, nulls)


def _total(sizes: Buffer, rows: int) -> int:
    """The bytes of all values of a column of sizes."""
    kernel = runtime.native("total_size")
    if kernel is None:
        return sum(size for size in _int32(sizes, rows) if size > 0)
    return kernel(array("q", (address(sizes), rows)))


def _more_room(room: int, name: str) -> int:
    """Room for another try: a broken byte becomes three."""
    _check_total(room + 1, name)
    return min(3 * room, GATHERED_SIZE_MAX)


def _check_total(total: int, name: str) -> None:
    if total > GATHERED_SIZE_MAX:
        raise ValueError(
            f"values of {name} come to {total} bytes: allowed are {GATHERED_SIZE_MAX}, "
            "gather fewer rows at a time"
        )


def reference_gather(data: Buffer, columns: Columns, name: str, *, text: bool = False) -> Gathered:
    """`gather` in plain Python."""
    spans = (getattr(columns, f"{name}_at"), getattr(columns, f"{name}_size"), columns.count)
    return _laid_out(_values(data, *spans, text, name), name)


def _outside(name: str, size: int) -> str:
    return f"{name}: a value does not lie in the {size} bytes"


def _values(
    data: Buffer, starts: Buffer, sizes: Buffer, rows: int, text: bool, name: str
) -> list[bytes | None]:
    view = memoryview(data)
    values: list[bytes | None] = []
    for start, size in zip(_int32(starts, rows), _int32(sizes, rows), strict=True):
        if size < 0:
            values.append(None)
            continue
        if start < 0 or start + size > view.nbytes:
            raise ValueError(_outside(name, view.nbytes))
        raw = bytes(view[start : start + size])
        values.append(raw.decode("utf-8", "replace").encode() if text else raw)
    return values


def _int32(numbers: Buffer, count: int) -> list[int]:
    return memoryview(numbers).cast("B").cast("i")[:count].tolist()


def _laid_out(values: list[bytes | None], name: str) -> Gathered:
    offsets = array("i", [0])
    validity = bytearray((len(values) + 7) // 8)
    used = 0
    for row, value in enumerate(values):
        if value is not None:
            validity[row >> 3] |= 1 << (row & 7)
            used += len(value)
            _check_total(used, name)
        offsets.append(used)
    nulls = values.count(None)
    data = memoryview(b"".join([value for value in values if value]))
    return Gathered(
        len(values), bytearray(offsets.tobytes()), data, validity if nulls else None, nulls
    )


def property_maps(data: Buffer, columns: Columns) -> GatheredMaps:
    """The properties of each row as a map from name to value, as `decode_properties` reads them.

    Args:
        data: the bytes that the columns were scanned from.
        columns: with ``properties_at`` and ``properties_size``.

    Raises:
        ValueError: the properties come to 2 GiB or more.
    """
    rows = columns.count
    total = _total(columns.properties_size, rows)
    kernel = runtime.native("property_maps")
    if kernel is None:
        return reference_property_maps(data, columns)
    view = memoryview(data)
    entries_max = (total + rows) // 4
    offsets = uninitialised(4 * (rows + 1))
    key_offsets = uninitialised(4 * (entries_max + 1))
    value_offsets = uninitialised(4 * (entries_max + 1))
    scratch = uninitialised(at.MAP_SCRATCH_SIZE)
    places = uninitialised(8 * at.MAP_PLACE_FIELDS * at.MAP_PLACES_MAX)
    slots = bytearray(4 * at.MAP_SLOT_COUNT)
    arguments = array("q", bytes(8 * at.MAP_ARGUMENTS))
    arguments[at.MAP_DATA] = address(view)
    arguments[at.MAP_LIMIT] = view.nbytes
    arguments[at.MAP_ROWS] = rows
    arguments[at.MAP_AT] = address(columns.properties_at)
    arguments[at.MAP_SIZE] = address(columns.properties_size)
    arguments[at.MAP_OFFSETS] = address(offsets)
    arguments[at.MAP_KEY_OFFSETS] = address(key_offsets)
    arguments[at.MAP_VALUE_OFFSETS] = address(value_offsets)
    arguments[at.MAP_ENTRIES_MAX] = entries_max
    arguments[at.MAP_SCRATCH] = address(scratch)
    arguments[at.MAP_PLACES] = address(places)
    arguments[at.MAP_SLOTS] = address(slots)
    room = total
    while True:
        _check_total(room, "properties")
        keys, values = uninitialised(room), uninitialised(room)
        arguments[at.MAP_KEYS] = address(keys)
        arguments[at.MAP_VALUES] = address(values)
        arguments[at.MAP_KEYS_MAX] = arguments[at.MAP_VALUES_MAX] = room
        if kernel(arguments):
            break
        room = _more_room(room, "properties")
    entries = memoryview(offsets).cast("i")[rows]
    return GatheredMaps(
        rows,
        offsets,
        _entries(entries, key_offsets, keys),
        _entries(entries, value_offsets, values),
    )


def _entries(entries: int, offsets: bytearray, data: bytearray) -> Gathered:
    used = memoryview(offsets).cast("i")[entries]
    del offsets[4 * (entries + 1) :]
    return Gathered(entries, offsets, memoryview(data)[:used], None, 0)


def reference_property_maps(data: Buffer, columns: Columns) -> GatheredMaps:
    """`property_maps` in plain Python."""
    view = memoryview(data)
    offsets = array("i", [0])
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for row in range(columns.count):
        start = columns.properties_at[row]
        raw = bytes(view[start : start + columns.properties_size[row]])
        for name, value in decode_properties(raw).items():
            keys.append(name.encode())
            values.append(value.encode())
        offsets.append(len(keys))
    return GatheredMaps(
        columns.count,
        bytearray(offsets.tobytes()),
        _laid_out(keys, "properties"),
        _laid_out(values, "properties"),
    )


def host_texts(data: Buffer, columns: Columns, name: str) -> Gathered:
    """``address:port`` of each row; IPv6 as Java prints it.

    Args:
        data: the bytes that the columns were scanned from.
        columns: with ``sys_flag`` and ``born_host_at`` or ``store_host_at``.
        name: ``born_host`` or ``store_host``.
    """
    kernel = runtime.native("hosts")
    if kernel is None:
        return reference_host_texts(data, columns, name)
    arguments, out, offsets = _host_arguments(data, columns, name)
    used = kernel(arguments)
    return Gathered(columns.count, offsets, memoryview(out)[:used], None, 0)


def reference_host_texts(data: Buffer, columns: Columns, name: str) -> Gathered:
    """`host_texts` in plain Python."""
    return _laid_out([decode_host(raw).encode() for raw in _hosts(data, columns, name)], name)


def message_ids(data: Buffer, columns: Columns) -> Gathered:
    """The broker's message id (offsetMsgId) of each row, upper-case hexadecimal.

    Args:
        data: the bytes that the columns were scanned from.
        columns: with ``sys_flag``, ``store_host_at`` and ``commit_log_offset``.
    """
    kernel = runtime.native("message_ids")
    if kernel is None:
        return reference_message_ids(data, columns)
    arguments, out, offsets = _host_arguments(data, columns, "store_host")
    arguments[at.HOSTS_COMMIT_LOG_OFFSET] = address(columns.commit_log_offset)
    used = kernel(arguments)
    return Gathered(columns.count, offsets, memoryview(out)[:used], None, 0)


def reference_message_ids(data: Buffer, columns: Columns) -> Gathered:
    """`message_ids` in plain Python."""
    return _laid_out(
        [
            offset_message_id(host, columns.commit_log_offset[row]).encode()
            for row, host in enumerate(_hosts(data, columns, "store_host"))
        ],
        "store_host",
    )


def _host_arguments(
    data: Buffer, columns: Columns, name: str
) -> tuple[array[int], bytearray, bytearray]:
    rows = columns.count
    out = uninitialised(at.HOST_TEXT_SIZE_MAX * rows)
    offsets = uninitialised(4 * (rows + 1))
    _check_total(len(out), name)
    arguments = array("q", bytes(8 * at.HOSTS_ARGUMENTS))
    arguments[at.HOSTS_DATA] = address(memoryview(data))
    arguments[at.HOSTS_ROWS] = rows
    arguments[at.HOSTS_AT] = address(getattr(columns, f"{name}_at"))
    arguments[at.HOSTS_SYS_FLAG] = address(columns.sys_flag)
    arguments[at.HOSTS_V6_BIT] = _HOST_BITS[name]
    arguments[at.HOSTS_OUT] = address(out)
    arguments[at.HOSTS_OFFSETS] = address(offsets)
    return arguments, out, offsets


def _hosts(data: Buffer, columns: Columns, name: str) -> list[bytes]:
    view = memoryview(data)
    starts = getattr(columns, f"{name}_at")
    bit = _HOST_BITS[name]
    return [
        bytes(view[start : start + (HOST_V6_SIZE if flag & bit else HOST_V4_SIZE)])
        for start, flag in zip(
            starts[: columns.count], columns.sys_flag[: columns.count], strict=True
        )
    ]


def copy_records(units: bytes, data: Buffer, start: int, total: int) -> bytearray | None:
    """The records of some units of one queue, one behind the other.

    Args:
        units: ConsumeQueue units.
        data: what can be read of a segment.
        start: CommitLog offset of its first byte.
        total: how many bytes the units say.

    Returns:
        The records; None where a unit is not that of a record in ``data``, behind the record of the
        unit before, that states the unit's size.
    """
    kernel = runtime.native("copy_records")
    if kernel is None:
        return reference_copy_records(units, data, start, total)
    view = memoryview(data)
    out = uninitialised(total)
    arguments = array(
        "q",
        (
            *(address(units), len(units) // UNIT_SIZE),
            *(address(view), start, view.nbytes, address(out), total),
        ),
    )
    return out if kernel(arguments) == total else None


def reference_copy_records(units: bytes, data: Buffer, start: int, total: int) -> bytearray | None:
    """`copy_records` in plain Python."""
    view = memoryview(data)
    out = bytearray()
    end = 0
    for offset, size, _ in UNIT.iter_unpack(units):
        position = offset - start
        if not (end <= position <= view.nbytes - size and size >= 4):
            return None
        if int.from_bytes(view[position : position + 4], "big", signed=True) != size:
            return None
        out += view[position : position + size]
        end = position + size
    return out if len(out) == total else None
