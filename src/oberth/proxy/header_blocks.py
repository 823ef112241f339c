"""HeaderDecoder: header blocks of one HTTP/2 connection to names and values (HPACK, RFC 7541).

    1 index (7)                      a field of the tables
    01 index (6), [name], value      a field that enters the table
    001 size (5)                     the table's new size, before any field
    000x index (4), [name], value    a field that does not enter it

A number fills its bits, or they are all ones and it goes on in bytes of seven bits. A text is its
size (7 bits), behind a bit that says whether it is in Huffman's code, and its bytes. A field is
looked at once, when it comes as a text: what the tables hold is right.

The server's own blocks name no table: see `literal`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

TABLE_SIZE_MAX: Final = 4096
"""Bytes of the table that a peer fills; what a server announces by saying nothing."""

FIELD_SIZE: Final = 32
"""Bytes that a field counts for beside its texts."""

_NUMBER_BYTES_MAX: Final = 4
_CONNECTION_ONLY: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_NAME: Final = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE: Final = re.compile("[\0\r\n]")


class HeaderBlockError(ValueError):
    """A block that is none, or has a field that no request may have."""

    def __init__(self, message: str, *, is_compression: bool = True) -> None:
        super().__init__(message)
        self.is_compression = is_compression


class Field(NamedTuple):
    """One header and the bytes that it counts for."""

    name: str
    value: str
    size: int


_STATIC: Final = tuple(
    Field(name.decode(), value.decode(), len(name) + len(value) + FIELD_SIZE)
    for name, value in HeaderTable.STATIC_TABLE
)
_STATIC_COUNT: Final = len(_STATIC)
_STATIC_LAST: Final = 0x80 + _STATIC_COUNT


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise HeaderBlockError(f"a header name {name[:40]!r}", is_compression=False)


def _checked(name: str, value: str) -> Field:
    """A field whose value came as text.

    Raises:
        HeaderBlockError: HTTP/2 has no such field.
    """
    if name in _CONNECTION_ONLY or (name == "te" and value != "trailers"):
        raise HeaderBlockError(
            f"a header {name}: {value[:40]!r}, allowed in HTTP/1 only", is_compression=False
        )
    if _NO_VALUE.search(value) is not None:
        raise HeaderBlockError(f"a line's end in header {name}", is_compression=False)
    size = len(value) if value.isascii() else len(value.encode())
    return Field(name, value, len(name) + size + FIELD_SIZE)


class HeaderDecoder:
    """Reads the blocks of one connection, in their order.

    Args:
        list_size_max: bytes of a block's fields, each with FIELD_SIZE.

    Attributes:
        list_size: the same of the last block.
    """

    __slots__ = ("_list_size_max", "_size", "_size_max", "_table", "list_size")

    def __init__(self, list_size_max: int) -> None:
        self._list_size_max = list_size_max
        self._table: list[Field] = []  # the newest last
        self._size = 0
        self._size_max = TABLE_SIZE_MAX
        self.list_size = 0

    def decode(self, block: bytes) -> list[Field]:
        """The fields of one whole block.

        Raises:
            HeaderBlockError: it is none, or its fields are more than they may be.
        """
        fields: list[Field] = []
        table = self._table
        position, left, end = 0, self._list_size_max, len(block)
        while position < end:
            byte = block[position]
            if 0x80 < byte <= _STATIC_LAST:  # this and the next are nearly all fields
                field = _STATIC[byte - 0x81]
                position += 1
            elif _STATIC_LAST < byte < 0xFF and byte - _STATIC_LAST <= len(table):
                field = table[_STATIC_LAST - byte]
                position += 1
            elif byte >= 0x80:
                index, position = (
                    (byte & 0x7F, position + 1) if byte != 0xFF else _number(block, position, 7)
                )
                field = self._at(index)
            elif byte >= 0x40:
                field, position = self._literal(block, position, 6)
                self._add(field)
            elif byte >= 0x20:
                size, position = _number(block, position, 5)
                if fields:
                    raise HeaderBlockError("the table's size behind a field")
                if size > TABLE_SIZE_MAX:
                    raise HeaderBlockError(f"a table of {size} bytes, allowed {TABLE_SIZE_MAX}")
                self._size_max = size
                self._shrink(size)
                continue
            else:
                field, position = self._literal(block, position, 4)
            left -= field[2]
            if left < 0:
                raise HeaderBlockError(
                    f"more than {self._list_size_max} bytes of headers", is_compression=False
                )
            fields.append(field)
        self.list_size = self._list_size_max - left
        return fields

    def _at(self, index: int) -> Field:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        if not 0 < index <= _STATIC_COUNT + len(self._table):
            raise HeaderBlockError(
                f"index {index}, allowed 1 to {_STATIC_COUNT + len(self._table)}"
            )
        return self._table[_STATIC_COUNT - index]

    def _literal(self, block: bytes, position: int, bits: int) -> tuple[Field, int]:
        index, position = _number(block, position, bits)
        if index:
            name = self._at(index).name
        else:
            name, position = _text(block, position)
            _check_name(name)
        value, position = _text(block, position)
        return _checked(name, value), position

    def _add(self, field: Field) -> None:
        self._shrink(self._size_max - field.size)
        if field.size <= self._size_max:
            self._table.append(field)
            self._size += field.size

    def _shrink(self, size: int) -> None:
        """Forget the oldest fields until the others have room."""
        while self._table and self._size > size:
            self._size -= self._table.pop(0).size


def _number(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """A number that begins in the last bits of a byte, and where it ends."""
    most = (1 << bits) - 1
    try:
        value = block[position] & most
        position += 1
        if value < most:
            return value, position
        for shift in range(0, 7 * _NUMBER_BYTES_MAX, 7):
            byte = block[position]
            position += 1
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
    except IndexError:
        raise HeaderBlockError("a block ends in a number") from None
    raise HeaderBlockError(f"a number of more than {_NUMBER_BYTES_MAX} bytes")


def _text(block: bytes, position: int) -> tuple[str, int]:
    """A text, and where it ends."""
    first = block[position] if position < len(block) else 0xFF
    if first < 0x7F:  # nearly all of them
        size, position = first, position + 1
    else:
        size, position = _number(block, position, 7)
    end = position + size
    raw = block[position:end]
    if len(raw) < size:
        raise HeaderBlockError(f"a text of {size} bytes, {len(raw)} are there")
    try:
        if first >= 0x80:
            raw = bytes(decode_huffman(raw))
        return raw.decode(), end
    except (HPACKError, UnicodeDecodeError) as error:
        raise HeaderBlockError(f"a text that is none: {type(error).__name__}") from None


def literal(*headers: tuple[str, str]) -> bytes:
    """A block that neither reads nor changes the peer's table."""
    block = bytearray()
    for name, value in headers:
        if (name, value) == (":status", "200"):
            block.append(0x88)
            continue
        block.append(0)
        for text in (name.encode(), value.encode()):
            _append_number(block, len(text), 7)
            block += text
    return bytes(block)


def _append_number(block: bytearray, value: int, bits: int) -> None:
    most = (1 << bits) - 1
    if value < most:
        block.append(value)
        return
    block.append(most)
    value -= most
    while value >= 0x80:
        block.append(value & 0x7F | 0x80)
        value >>= 7
    block.append(value)
