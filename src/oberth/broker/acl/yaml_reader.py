"""``plain_acl.yml`` as lists, mappings and text, read with PyYAML's parser and none of its objects.

The parser's events are put together here, as PyYAML's base loader does: all scalars stay text, an
empty plain one is None. Anchors and aliases (a few hundred bytes of them stand for gigabytes),
tags, several documents and double keys are refused, by line: none of them belongs into this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from oberth.errors import ConfigFormatError

Node = str | None | list["Node"] | dict[str, "Node"]

SIZE_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16

_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""libyaml's parser where the package brings it: it takes a hundredth of the time."""

_NULLS: Final = frozenset(("", "null", "~", "Null", "NULL"))


class _Reader:
    """Takes the events of one document; each method begins with the event in its hands."""

    def __init__(self, events: Iterator[Any], name: str) -> None:
        self._events = events
        self._name = name

    def error(self, event: Any, what: str) -> ConfigFormatError:
        return ConfigFormatError(f"{self._name}: line {event.start_mark.line + 1}: {what}")

    def document(self) -> Node:
        found: Node = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.error(event, "a second document, allowed is one")
            elif isinstance(event, yaml.NodeEvent):
                found = self.node(event, 0)
        return found

    def node(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.error(event, "an anchor or an alias, allowed are values; quote what is text")
        if event.tag is not None:
            raise self.error(event, "a tag, allowed are values; quote what is text")
        if isinstance(event, yaml.ScalarEvent):
            is_plain, _ = event.implicit
            return None if is_plain and event.value in _NULLS else str(event.value)
        if depth > DEPTH_MAX:
            raise self.error(event, f"nested deeper than {DEPTH_MAX}")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                items.append(self.node(inner, depth + 1))
            return items
        return self.mapping(depth)

    def mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self.node(event, depth + 1)
            if not isinstance(key, str):
                raise self.error(event, "a key that is no text")
            if key in found:
                what = key if key.isidentifier() else "a key"
                raise self.error(event, f"{what} is given twice")
            found[key] = self.node(next(self._events), depth + 1)
        return found


def parse_yaml(data: bytes, name: str) -> Node:
    """The document in a file; None for an empty one.

    Raises:
        ConfigFormatError: naming the line, never its values.
    """
    if len(data) > SIZE_MAX:
        raise ConfigFormatError(f"{name}: {len(data)} bytes, allowed {SIZE_MAX}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFormatError(f"{name}: no UTF-8 at byte {error.start}") from None
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER), name).document()
    except yaml.MarkedYAMLError as error:
        # The parser's own words for what is wrong; its excerpt of the file may hold a secret.
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        context = f" {error.context}" if error.context else ""
        if error.context_mark is not None:
            context += f" that begins in line {error.context_mark.line + 1}"
        raise ConfigFormatError(f"{name}: {line}{error.problem}{context}") from None
    except yaml.reader.ReaderError as error:
        what = f"the character {error.character!r} at {error.position}, not allowed in YAML"
        raise ConfigFormatError(f"{name}: {what}") from None
