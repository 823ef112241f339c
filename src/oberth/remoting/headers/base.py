"""CommandHeader: typed header fields from and to the text map of a command.

Each header is a Struct whose declaration is the table: Python name, wire name, type, and whether
the field is required (no default). Required is what RocketMQ marks ``@CFNotNull``; a default of
False or 0 is that of a Java primitive. Unknown fields are ignored; a field that is None is absent
on the wire. RocketMQ: ``CommandCustomHeader``, ``RemotingCommand.decodeCommandCustomHeader``.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, ClassVar, TypeVar, Union, get_args, get_origin

import msgspec

from oberth.errors import RemoteProtocolError
from oberth.formats.java_numbers import java_long

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A Java ``int``."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A Java ``long``."""

_H = TypeVar("_H", bound="CommandHeader")


class HeaderError(RemoteProtocolError):
    """A header field is missing or is not what it should be. Answered with code 1."""


class CommandHeader(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all headers. Fields are given by name; instances are values, though not frozen.

    Attributes:
        FIELD_TYPES: wire name → Python type (``int``, ``str`` or ``bool``) and whether it is
            required, in declaration order.
    """

    FIELD_TYPES: ClassVar[dict[str, tuple[type, bool]]] = {}

    @classmethod
    def from_ext_fields(cls: type[_H], ext_fields: dict[str, str] | None) -> _H:
        """The header that ``ext_fields`` spells.

        Raises:
            HeaderError: a required field is missing, or a value is not of its type.
        """
        try:
            return msgspec.convert(ext_fields or {}, cls, strict=False)
        except msgspec.ValidationError:
            return _convert_leniently(cls, ext_fields or {})

    def to_ext_fields(self) -> dict[str, str]:
        """Wire names and text values, in declaration order, without the fields that are None."""
        fields: dict[str, str] = {}
        for name, wire_name in zip(
            self.__struct_fields__, self.__struct_encode_fields__, strict=True
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if value is True:
                fields[wire_name] = "true"
            elif value is False:
                fields[wire_name] = "false"
            else:
                fields[wire_name] = str(value)
        return fields


def field_types(header_type: type[CommandHeader]) -> dict[str, tuple[type, bool]]:
    """The table of ``header_type``; see ``CommandHeader.FIELD_TYPES``."""
    cached = header_type.__dict__.get("FIELD_TYPES")
    if cached:
        return cached  # type: ignore[no-any-return]
    table: dict[str, tuple[type, bool]] = {}
    for info in msgspec.structs.fields(header_type):
        annotation = info.type
        if get_origin(annotation) in (Union, UnionType):
            (annotation,) = (arg for arg in get_args(annotation) if arg is not NoneType)
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        table[info.encode_name] = (annotation, info.required)
    header_type.FIELD_TYPES = table
    return table


def _convert_leniently(cls: type[_H], ext_fields: dict[str, str]) -> _H:
    """As Java parses: signs and leading zeros in numbers; anything but ``true`` is false.

    An optional field that is present but empty counts as absent: C++ clients send such.
    """
    values: dict[str, object] = {}
    for wire_name, (kind, required) in field_types(cls).items():
        text = ext_fields.get(wire_name)
        if text is None or (text == "" and kind is not str and not required):
            if required:
                found = sorted(ext_fields)[:20]
                raise HeaderError(f"{cls.__name__}: {wire_name} is missing, found {found}")
            continue
        if kind is bool:
            values[wire_name] = text.lower() == "true"
        elif kind is int:
            values[wire_name] = number = java_long(text.strip(), None)
            if number is None:
                raise HeaderError(
                    f"{cls.__name__}: {wire_name} is {text[:40]!r}, allowed an integer of 64 bits"
                )
        else:
            values[wire_name] = text
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        raise HeaderError(f"{cls.__name__}: {error}") from None
