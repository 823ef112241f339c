"""Beans: how a dataclass and an object of RocketMQ's JSON belong together.

A bean is a dataclass whose fields are made with `json_field`; the Java name and the kind of value
stand beside the Python name and nowhere else. As fastjson does it:

    reading  a missing field, or null, keeps its default; numbers in quotes are taken for numbers
    writing  fields in alphabetical order of their Java names, without those that are None

and beyond it: a field that this version does not know is kept in `unknown` and written again. A
field that only the 5.x line knows is not written for 4.9. What is unknown may come from a peer, so
it is kept only where the file that it goes to can be read again, and is passed over else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar, overload

from oberth.errors import ConfigFormatError
from oberth.formats.json_reader import parse_config
from oberth.formats.json_values import ObjectKey
from oberth.formats.json_writer import Dialect, FieldList, InlineList, encode_config
from oberth.formats.options import Line

T = TypeVar("T")

_METADATA_KEY: Final = "oberth.json"
_MISSING: Final = object()

UNKNOWN_LEVELS_MAX: Final = 32
"""Objects and lists inside each other in a field that this version does not know. In a document
there are others around it."""

_CONTAINERS: Final[frozenset[type]] = frozenset({dict, list})


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read and written.

    Attributes:
        read: from what the JSON reader gives; ``where`` names the place in errors.
        write: to what the JSON writer takes.
        plain: values of just this type need no reading.
    """

    read: Callable[[Any, str], Any]
    write: Callable[[Any, Dialect], Any]
    plain: type[Any] | None = None


def _as_is(value: Any, _: Dialect) -> Any:
    return value


def _read_int(value: Any, where: str) -> int:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            pass
    raise ConfigFormatError(f"{where}: {_shown(value)} is no integer")


def _read_bool(value: Any, where: str) -> bool:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigFormatError(f"{where}: {_shown(value)} is neither true nor false")


def _read_str(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise ConfigFormatError(f"{where}: {_shown(value)} is no text")


def _read_any(value: Any, _: str) -> Any:
    return value


def _comes_back(value: Any) -> bool:
    """Whether what a field holds can be read again when it is written as part of a document.

    An object that is a reference cannot, whatever it was before it was written.
    """
    level: list[Any] = [value] if value.__class__ in _CONTAINERS else []
    for _ in range(UNKNOWN_LEVELS_MAX):
        inside: list[Any] = []
        for each in level:
            if each.__class__ is dict:
                if "$ref" in each or ObjectKey in map(type, each):
                    return False
                each = each.values()
            if not _CONTAINERS.isdisjoint(map(type, each)):
                inside += [inner for inner in each if inner.__class__ in _CONTAINERS]
        if not inside:
            return True
        level = inside
    return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


INT: Final = Kind(_read_int, _as_is, int)
BOOL: Final = Kind(_read_bool, _as_is, bool)
STR: Final = Kind(_read_str, _as_is, str)
ANY: Final = Kind(_read_any, _as_is)


def map_of(value: Kind, key: Kind = STR) -> Kind:
    """A map; keys of kind INT are written bare. Entries whose value is null are left out."""

    def read(found: Any, where: str) -> dict[Hashable, Any]:
        if not isinstance(found, dict):
            raise ConfigFormatError(f"{where}: {_shown(found)} is no object")
        return {
            name if type(name) is key.plain else key.read(name, where): (
                inner if type(inner) is value.plain else value.read(inner, f"{where}.{name}")
            )
            for name, inner in found.items()
            if inner is not None
        }

    def write(entries: Any, dialect: Dialect) -> dict[Hashable, Any]:
        if value.write is _as_is:
            return dict(entries)
        return {name: value.write(inner, dialect) for name, inner in entries.items()}

    return Kind(read, write)


def list_of(item: Kind, made: type[list[Any]] | type[tuple[Any, ...]] = list) -> Kind:
    """A list; what it is made of decides how it is written, see json_writer."""

    def read(found: Any, where: str) -> Any:
        if not isinstance(found, (list, tuple)):
            raise ConfigFormatError(f"{where}: {_shown(found)} is no list")
        items = [item.read(inner, f"{where}[{n}]") for n, inner in enumerate(found)]
        return tuple(items) if made is tuple else items

    def write(items: Any, dialect: Dialect) -> Any:
        written = (item.write(inner, dialect) for inner in items)
        if made is InlineList and dialect is not Dialect.V4_9:
            return FieldList(written)
        return made(written)

    return Kind(read, write)


def bean_of(bean: type[Bean]) -> Kind:
    """An object that is a bean itself."""

    def write(value: Any, dialect: Dialect) -> dict[str, Any]:
        written: dict[str, Any] = value.to_json(dialect)
        return written

    return Kind(bean.from_json, write)


@dataclass(frozen=True, slots=True)
class JsonField:
    """One field of a bean."""

    java_name: str
    kind: Kind
    line: Line
    name: str = ""


@overload
def json_field(
    java_name: str,
    kind: Kind,
    default: Callable[[], T],
    *,
    line: Line = ...,
    compare: bool = ...,
) -> T: ...
@overload
def json_field(
    java_name: str, kind: Kind, default: T, *, line: Line = ..., compare: bool = ...
) -> T: ...
def json_field(
    java_name: str,
    kind: Kind,
    default: Any,
    *,
    line: Line = Line.BOTH,
    compare: bool = True,
) -> Any:
    """A dataclass field that is a field of the JSON object.

    Args:
        java_name: its name there.
        kind: what it holds.
        default: the value when it is missing, or what makes one.
        line: whether 4.9 knows it too.
        compare: whether two beans that differ in it differ.
    """
    metadata = {_METADATA_KEY: JsonField(java_name, kind, line)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata, compare=compare)
    return dataclasses.field(default=default, metadata=metadata, compare=compare)


_FIELDS: Final[dict[type[Bean], tuple[JsonField, ...]]] = {}


def json_fields(bean: type[Bean]) -> tuple[JsonField, ...]:
    """The fields of a bean, in the order of their Java names."""
    if (known := _FIELDS.get(bean)) is not None:
        return known
    found = [
        dataclasses.replace(field.metadata[_METADATA_KEY], name=field.name)
        for field in dataclasses.fields(bean)
        if _METADATA_KEY in field.metadata
    ]
    _FIELDS[bean] = tuple(sorted(found, key=lambda field: field.java_name))
    return _FIELDS[bean]


@dataclass(slots=True, kw_only=True)
class Bean:
    """Base of all beans.

    Attributes:
        unknown: fields that were read and that this version has no name for.
    """

    PRETTY: ClassVar[bool] = True
    """Whether its file is written over many lines."""

    unknown: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, value: Any, where: str = "json") -> Self:
        """The bean that an object stands for.

        Raises:
            ConfigFormatError: it is no object, or a field is of another kind; naming the place.
        """
        if not isinstance(value, dict):
            raise ConfigFormatError(f"{where}: {_shown(value)} is no object")
        fields: dict[str, Any] = {}
        known = 0
        # Lists of ten thousand beans are read while somebody waits: about 4 us for a topic.
        for field in json_fields(cls):
            java_name = field.java_name
            found = value.get(java_name, _MISSING)
            if found is _MISSING:
                continue
            known += 1
            if found is not None:
                kind = field.kind
                fields[field.name] = (
                    found if type(found) is kind.plain else kind.read(found, f"{where}.{java_name}")
                )
        if known < len(value):
            names = {field.java_name for field in json_fields(cls)}.union(cls._derived_names())
            fields["unknown"] = {
                str(name): inner
                for name, inner in value.items()
                if name not in names and _comes_back(inner)
            }
        return cls(**fields)

    def to_json(self, dialect: Dialect = Dialect.V5) -> dict[str, Any]:
        """The object, its fields in Java's order."""
        out = {
            field.java_name: field.kind.write(value, dialect)
            for field in json_fields(type(self))
            if (dialect is not Dialect.V4_9 or field.line is not Line.V5)
            and (value := getattr(self, field.name)) is not None
        }
        derived = self._derived()
        if not derived and not self.unknown:
            return out
        merged = {**self.unknown, **derived, **out}
        return {name: merged[name] for name in sorted(merged)}

    @classmethod
    def decode(cls, data: bytes | str, *, name: str = "json", is_body: bool = False) -> Self:
        """The bean in a document, or in the body of a request, see `LenientParser`.

        Raises:
            ConfigFormatError: the document cannot be read, or is not such an object.
        """
        return cls.from_json(parse_config(data, name=name, is_body=is_body), name)

    def encode(self, dialect: Dialect = Dialect.V5, *, pretty: bool | None = None) -> bytes:
        """The document, as that line of RocketMQ writes it to a file."""
        return encode_config(
            self.to_json(dialect), dialect, pretty=self.PRETTY if pretty is None else pretty
        )

    @classmethod
    def _derived_names(cls) -> tuple[str, ...]:
        """Fields that are written because Java has a getter for them, and mean nothing."""
        return ()

    def _derived(self) -> dict[str, Any]:
        return {}
