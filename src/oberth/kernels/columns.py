"""Records as columns: structure-of-arrays memory that kernels fill and callers read.

`Columns` holds any choice of `arguments.COLUMNS` for a fixed number of rows; `TopicTable` numbers
the topics that were met. Memory is plain Python (bytearray under memoryviews), so numpy is not
needed to have it; ``columns.array(name)`` is a numpy view of the same memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from oberth.formats.java_string import hash_units, utf16_units
from oberth.kernels import runtime
from oberth.kernels.arguments import (
    COLUMN_INDEX,
    COLUMN_NAMES,
    COLUMNS,
    DISPATCH_COLUMNS,
    PLACE_ARGUMENTS,
    PLACE_COUNT,
    PLACE_SIZES,
    PLACE_SLOT_MASK,
    PLACE_SLOTS,
    PLACE_STARTS,
    PLACE_TEXT,
    PROPERTY_COLUMNS,
)
from oberth.kernels.memory import address

if TYPE_CHECKING:
    import numpy

__all__ = [
    "COLUMN_NAMES",
    "DISPATCH_COLUMNS",
    "PROPERTY_COLUMNS",
    "Columns",
    "TopicTable",
    "reference_renumber",
    "renumber",
]

_ITEM_SIZE: Final = {"q": 8, "i": 4}
# Columns that start at the same place of a page would fight for the same few lines of the L1 cache
# (8 ways, and a scan writes up to 36 columns at once), so each starts three lines after that.
_STAGGER: Final = 192
# What a kernel may add to a topic table in one call; it is called again when that was not enough.
_SPARE_TOPICS: Final = 64
_SPARE_TOPIC_TEXT: Final = 1 << 17  # any single topic fits: its length is 16 bits


class Columns:
    """Room for ``capacity`` records; ``count`` of them are filled.

    A column is an attribute: ``columns.record_size[row]`` is an int. Rows at ``count`` and later
    hold anything. Columns that were not asked for do not exist (AttributeError).

    Lifecycle: made once, filled by `scan` again and again after ``clear()``. One thread at a time.
    """

    def __init__(self, capacity: int, names: Iterable[str] | None = None) -> None:
        chosen = tuple(COLUMN_NAMES if names is None else names)
        unknown = [name for name in chosen if name not in COLUMN_INDEX]
        if unknown or capacity < 0:
            raise ValueError(
                f"columns {unknown}, capacity {capacity}: allowed are {', '.join(COLUMN_NAMES)} "
                "and a capacity of 0 or more"
            )
        self.capacity = capacity
        self.count = 0
        self.names = chosen
        # Position of each column in the memory, -1 for those not asked for; as COLUMNS.
        self.places = [-1] * len(COLUMNS)
        at = 0
        for name in dict.fromkeys(chosen):
            index = COLUMN_INDEX[name]
            self.places[index] = at
            size = _ITEM_SIZE[COLUMNS[index].typecode] * capacity
            at += (size + 63 & ~63) + _STAGGER
        self.memory = bytearray(at)
        view = memoryview(self.memory)
        self._views: dict[str, memoryview[int]] = {}
        self._arrays: dict[str, numpy.ndarray[Any, Any]] = {}
        for name in chosen:
            index = COLUMN_INDEX[name]
            place = self.places[index]
            typecode = COLUMNS[index].typecode
            part = view[place : place + _ITEM_SIZE[typecode] * capacity]
            self._views[name] = part.cast("q") if typecode == "q" else part.cast("i")

    @property
    def wants_properties(self) -> bool:
        """Whether one of the columns is made from properties."""
        return not PROPERTY_COLUMNS.isdisjoint(self.names)

    def clear(self) -> None:
        """Empties the columns; their memory stays."""
        self.count = 0

    def __getattr__(self, name: str) -> memoryview[int]:
        try:
            return self.__dict__["_views"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no column {name!r} was asked for") from None

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def array(self, name: str) -> numpy.ndarray[Any, Any]:
        """The filled rows of a column as a numpy array over the same memory."""
        whole = self._arrays.get(name)
        if whole is None:
            import numpy  # noqa: PLC0415 - kernels need no numpy

            typecode = COLUMNS[COLUMN_INDEX[name]].typecode
            dtype = numpy.int64 if typecode == "q" else numpy.int32
            whole = self._arrays[name] = numpy.frombuffer(self._views[name], dtype)
        return whole[: self.count]

    def row(self, row: int) -> dict[str, int]:
        """One record's values by column name; for tests and messages."""
        return {name: view[row] for name, view in self._views.items()}


class TopicTable:
    """Numbers topics in the order they are met; grows.

    A topic is kept as the bytes of the log. Lifecycle: shared by all scans whose columns shall have
    the same ``topic_id``; one thread at a time. Tables of several threads are brought together by
    ``merge``.
    """

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        self.names: list[bytes] = []
        self._ids: dict[bytes, int] = {}
        self._hash_prefixes = array("q")
        self._text_size = 0
        # Memory of the compiled kernels; made by `reserve`.
        self.starts = bytearray()
        self.sizes = bytearray()
        self.text = bytearray()
        self.slots = bytearray()
        self.slot_count = 0
        self._reserved_names = 0
        self.text_used = 0
        for name in names:
            self.intern(name)

    def __len__(self) -> int:
        return len(self.names)

    def intern(self, name: bytes) -> int:
        """The number of a topic, which is added if it is new."""
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self.names)
            self.names.append(name)
            self._text_size += len(name)
        return number

    def find(self, name: bytes) -> int | None:
        """The number of a topic, or None."""
        return self._ids.get(name)

    def merge(self, other: TopicTable) -> list[int]:
        """Adds another table's topics; the numbers here by the numbers there."""
        return [self.intern(name) for name in other.names]

    def hash_prefixes(self) -> array[int]:
        """Unsigned Java hash of ``topic#`` for each topic: where the hash of a key goes on."""
        for name in self.names[len(self._hash_prefixes) :]:
            text = name.decode("utf-8", "replace") + "#"
            self._hash_prefixes.append(hash_units(utf16_units(text)))
        return self._hash_prefixes

    def reserve(self, spare: int, spare_text: int) -> None:
        """Makes or enlarges the kernels' memory so that so many topics and bytes fit in."""
        names, text = len(self.names), self._text_size
        if len(self.starts) < (names + spare) * 8:
            self._make_room(names + spare)
        if len(self.text) < text + spare_text:
            self.text = self.text[: self.text_used].ljust(2 * (text + spare_text), b"\0")
        if self._reserved_names < names:
            self._enter()

    def _make_room(self, names: int) -> None:
        """Makes room for at least so many names.

        It costs 50 ns for each name that there is, and comes again after as many new ones.
        """
        room = 64
        while room < names * 2:
            room *= 2
        self.slot_count = room * 2
        self.starts = self.starts.ljust(room * 8, b"\0")
        self.sizes = self.sizes.ljust(room * 4, b"\0")
        self.slots = bytearray(self.slot_count * 4)
        kernel = runtime.native("place_topics")
        if kernel is None:
            reference_place_topics(self.names[: self._reserved_names], self.slots)
            return
        arguments = array("q", bytes(8 * PLACE_ARGUMENTS))
        arguments[PLACE_COUNT] = self._reserved_names
        arguments[PLACE_STARTS] = address(self.starts)
        arguments[PLACE_SIZES] = address(self.sizes)
        arguments[PLACE_TEXT] = address(self.text)
        arguments[PLACE_SLOTS] = address(self.slots)
        arguments[PLACE_SLOT_MASK] = self.slot_count - 1
        kernel(arguments)

    def _enter(self) -> None:
        """Brings names that Python added into the kernels' memory, in which there is room."""
        starts = memoryview(self.starts).cast("q")
        sizes = memoryview(self.sizes).cast("i")
        slots = memoryview(self.slots).cast("i")
        position = self.text_used
        for number in range(self._reserved_names, len(self.names)):
            name = self.names[number]
            starts[number], sizes[number] = position, len(name)
            self.text[position : position + len(name)] = name
            position += len(name)
            _place(name, number, slots)
        self.text_used = position
        self._reserved_names = len(self.names)

    def lend(self, arguments: array[int], first: int) -> None:
        """Puts the kernels' memory into a kernel's arguments, with room for some more topics."""
        self.reserve(_SPARE_TOPICS, _SPARE_TOPIC_TEXT)
        arguments[first : first + 9] = array(
            "q",
            (
                len(self.names),
                len(self.starts) // 8,
                address(self.starts),
                address(self.sizes),
                address(self.text),
                self.text_used,
                len(self.text),
                address(self.slots),
                self.slot_count - 1,
            ),
        )

    def take_back(self, arguments: array[int], first: int) -> None:
        """Brings the names that a kernel added to its memory into the table."""
        count, text_used = arguments[first], arguments[first + 5]
        starts = memoryview(self.starts).cast("q")
        sizes = memoryview(self.sizes).cast("i")
        for number in range(len(self.names), count):
            start = starts[number]
            self.intern(bytes(self.text[start : start + sizes[number]]))
        self._reserved_names = count
        self.text_used = text_used


def renumber(columns: Columns, numbers: Sequence[int]) -> None:
    """Replaces each ``topic_id`` by ``numbers[topic_id]``, as after `TopicTable.merge`."""
    if numbers == list(range(len(numbers))):
        return
    ids = columns.topic_id
    kernel = runtime.native("renumber")
    if kernel is not None:
        table = array("q", numbers)
        kernel(array("q", (address(ids), columns.count, address(table))))
    else:
        reference_renumber(columns, numbers)


def reference_renumber(columns: Columns, numbers: Sequence[int]) -> None:
    """`renumber` in plain Python."""
    ids = columns.topic_id
    for row in range(columns.count):
        ids[row] = numbers[ids[row]]


def reference_place_topics(names: Sequence[bytes], slots: bytearray) -> None:
    """What the kernel ``place_topics`` does, in plain Python."""
    view = memoryview(slots).cast("i")
    for number, name in enumerate(names):
        _place(name, number, view)


def _place(name: bytes, number: int, slots: memoryview[int]) -> None:
    mask = len(slots) - 1
    slot = spread_hash(name) & mask
    while slots[slot]:
        slot = slot + 1 & mask
    slots[slot] = number + 1


_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_LAST: Final = 0xD6E8FEB86659FD92
_MASK_64: Final = 2**64 - 1


def spread_hash(name: bytes) -> int:
    """The hash of the kernels' topic slots (compiled: ``spread_hash`` in checks.h)."""
    h = runtime.HASH_SEED ^ len(name)
    factor = (runtime.HASH_SEED ^ _MULTIPLIER) | 1
    whole = len(name) & ~7
    for at in range(0, whole, 8):
        h = _fold((h ^ int.from_bytes(name[at : at + 8], "little")) * factor)
    return _fold((h ^ int.from_bytes(name[whole:], "little")) * (factor ^ _LAST)) & 2**63 - 1


def _fold(product: int) -> int:
    return product >> 64 ^ product & _MASK_64
