"""Options: how a dataclass field and a key of broker.conf belong together.

A class of options is a dataclass whose fields are made with `option`. The field has the Python
name with its unit last, the option has Java's name with its historic spelling; the pair stands at
one place and nowhere else. `read_options` makes such an object from name=value pairs and
`format_options` gives them back.

RocketMQ: MixAll.properties2Object, which ignores what it cannot parse. Here that is an OptionError.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

from oberth.errors import OptionError, UnknownOptionError
from oberth.formats.java_properties import place_of

T = TypeVar("T")

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

_METADATA_KEY: Final = "oberth.option"


class Options(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


D = TypeVar("D", bound=Options)


class Line(enum.StrEnum):
    """The line of RocketMQ whose ways a store follows, or that knows an option."""

    V4_9 = "4.9"
    V5 = "5.x"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Option:
    """One key of broker.conf.

    Attributes:
        java_name: the key, spelled as in Java.
        field_name: the dataclass field.
        kind: bool, int, float, str or a StrEnum; what the value must parse as.
        default: the value when the key is absent; None stands for Java's null.
        low: the smallest value allowed, or None.
        high: the largest value allowed, or None.
        aliases: further keys that mean the same, for example the name in the other line.
        line: which line of RocketMQ knows the key.
        doc: what it does and in which unit, in one sentence.
    """

    java_name: str
    field_name: str
    kind: type
    default: Any
    low: float | None
    high: float | None
    aliases: tuple[str, ...]
    line: Line
    doc: str

    def parse(self, text: str) -> Any:
        """The value that `text` stands for.

        Raises:
            OptionError: not of this option's kind, or out of range.
        """
        text = text.strip()
        if self.kind is str:
            return text
        if self.kind is bool:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise OptionError(f"{self.java_name}: {text!r} is neither true nor false")
            return lowered == "true"
        if issubclass(self.kind, enum.StrEnum):
            if text not in self.kind.__members__ and text not in list(self.kind):
                allowed = ", ".join(member.value for member in self.kind)
                raise OptionError(f"{self.java_name}: {text!r} is not one of {allowed}")
            return self.kind(text)
        try:
            if not text.isascii() or "_" in text:
                raise ValueError(text)
            value: Any = int(text) if self.kind is int else float(text)
        except ValueError:
            what = "an integer" if self.kind is int else "a number"
            raise OptionError(f"{self.java_name}: {text!r} is not {what}") from None
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Compare a value with the option's range.

        Raises:
            OptionError: it is outside.
        """
        if value is None or self.low is None or self.high is None:
            return
        if not self.low <= value <= self.high:
            raise OptionError(
                f"{self.java_name}: {value} is outside {self.low:g}…{self.high:g}"
                if self.kind is float
                else f"{self.java_name}: {value} is outside {self.low}…{self.high}"
            )

    def format(self, value: Any) -> str:
        """The text of a value; parse() reads it back."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)


def option(
    java_name: str,
    default: T,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    aliases: tuple[str, ...] = (),
    line: Line = Line.BOTH,
    kind: type | None = None,
) -> T:
    """A dataclass field that is a key of broker.conf.

    Integers without a range of their own must lie in 0…2^31-1 (low and high replace one end each).
    """
    if kind is None:
        kind = str if default is None else type(default)
    if kind is int:
        low, high = (0 if low is None else low), (INT32_MAX if high is None else high)
    made = Option(java_name, "", kind, default, low, high, aliases, line, doc)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: made})


@functools.cache
def options_of(config_class: type) -> tuple[Option, ...]:
    """Every option of a class of options, in the order of its fields."""
    return tuple(
        dataclasses.replace(field.metadata[_METADATA_KEY], field_name=field.name)
        for field in dataclasses.fields(config_class)
        if _METADATA_KEY in field.metadata
    )


@functools.cache
def _by_key(config_class: type) -> dict[str, Option]:
    return {
        key: each for each in options_of(config_class) for key in (*each.aliases, each.java_name)
    }


def read_options(
    config_class: type[D],
    entries: Mapping[str, str],
    *,
    also_known: Collection[str] = (),
    strict: bool = False,
) -> D:
    """Make a class of options from name=value pairs.

    Args:
        config_class: a dataclass whose fields were made with `option`.
        entries: Java names and their values as text.
        also_known: keys of other classes, which are no error here.
        strict: whether an unknown key is an error; otherwise it has no effect.

    Raises:
        OptionError: a value that does not parse or is out of range; when strict, an unknown key,
            with the nearest known one.
    """
    known = _by_key(config_class)
    values: dict[str, Any] = {}
    for key, text in entries.items():
        if (found := known.get(key)) is not None:
            with naming_places({found.java_name: text}):
                values[found.field_name] = found.parse(text)
        elif strict and key not in also_known:
            with naming_places(entries):
                raise UnknownOptionError(unknown_key_message(key, {*known, *also_known}))
    with naming_places(entries):
        return config_class(**values)


@contextmanager
def naming_places(entries: Mapping[str, str]) -> Iterator[None]:
    """Errors about a setting begin with the file and line it was given in.

    A setting's error begins with its key; a key that came from elsewhere changes nothing.
    """
    try:
        yield
    except OptionError as error:
        text = str(error)
        place = place_of(entries.get(text.partition(" ")[0].rstrip(":")))
        if place is None:
            raise
        raise type(error)(f"{place}: {text}") from None


def update_option(config: Options, key: str, text: str) -> bool:
    """Set one option of an object while it is in use.

    Returns:
        Whether the object has such an option.

    Raises:
        OptionError: the value does not parse or is out of range.
    """
    found = _by_key(type(config)).get(key)
    if found is None:
        return False
    setattr(config, found.field_name, found.parse(text))
    return True


def change_options(
    config: Options, entries: Mapping[str, str], changeable: Collection[str]
) -> list[str]:
    """Changes what a peer may change of a server that runs: all of the entries, or none.

    Returns:
        Keys that only a restart changes and that have another value, in order: then nothing was
        changed. Entries of unknown keys are passed over.

    Raises:
        OptionError: a value that does not parse or is out of range; nothing was changed.
    """
    held = format_options(config)
    fixed = [key for key in held if key not in changeable]
    refused = sorted(key for key in fixed if entries.get(key, held[key]).strip() != held[key])
    if refused:
        return refused
    wanted = [key for key in changeable if key in entries]
    for each in (copy.copy(config), config):
        for key in wanted:
            update_option(each, key, entries[key])
    return []


def format_options(config: Options) -> dict[str, str]:
    """Every option with its value as text, under Java's name; None is left out as in Java."""
    return {
        each.java_name: each.format(value)
        for each in options_of(type(config))
        if (value := getattr(config, each.field_name)) is not None
    }


def check_options(config: Options) -> None:
    """Compare every value with its range, for objects made in Python.

    Raises:
        OptionError: the first that is outside.
    """
    for each in options_of(type(config)):
        each.check(getattr(config, each.field_name))


def unknown_key_message(key: str, known: Collection[str]) -> str:
    """Says that a key is unknown, and which known one is nearest to it."""
    import difflib  # noqa: PLC0415 - 3 ms, and only when something is wrong

    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.7)
    hint = f"; did you mean {lowered[near[0]]}?" if near else ""
    return f"{key}: no such option{hint}"
