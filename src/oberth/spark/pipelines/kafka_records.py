"""A record of Kafka as a message, and the other way round; nothing is lost on either way."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from oberth.client.dead_letters import DROPPED
from oberth.client.messages import RESERVED_PROPERTIES, Message
from oberth.formats import properties as p
from oberth.spark.pipelines.exact_send import PUBLISHED_AS

KAFKA_KEY: Final = "KAFKA_KEY"
KAFKA_VALUE: Final = "KAFKA_VALUE"
KAFKA_TIMESTAMP: Final = "KAFKA_TIMESTAMP"
KAFKA_HEADERS: Final = "KAFKA_HEADERS"
ROCKETMQ_TIMESTAMP: Final = "ROCKETMQ_TIMESTAMP"
FROM_KAFKA: Final = "kafka/"
"""What the names of messages begin with that came from Kafka."""
_EMPTY: Final = "="
"""Base64 of nothing, since no property is empty."""
_NO_BODY: Final = b"\0"
"""The body of a record without a value, since no body is empty."""
_NO_VALUE: Final[Mapping[str | None, bytes | None]] = {"null": None, "empty": b""}
_OF_KAFKA: Final = (KAFKA_KEY, KAFKA_VALUE, KAFKA_TIMESTAMP, KAFKA_HEADERS)


def message_of(record: Mapping[str, Any], topic: str, name: str) -> Message:
    """A Kafka record as a message.

    Args:
        record: key, value, headers (a list of key and value, or None) and timestamp (ms).
        topic: of the message.
        name: what it is called.
    """
    value = record["value"]
    message = Message(topic, bytes(value) if value else _NO_BODY)
    made = message.properties
    rest: list[tuple[str, str | None]] = []
    later = set()  # those that come again: of one name the last one counts, so order is kept
    for header, raw in record["headers"] or ():
        if header in _OF_THIS_MODULE:
            continue
        text = _plain(bytes(raw)) if raw is not None else None
        if text and header not in made and header not in later and _may_name(header):
            made[header] = text
        else:
            later.add(header)
            rest.append((header, None if raw is None else base64.b64encode(raw).decode()))
    if rest:
        made[KAFKA_HEADERS] = json.dumps(rest)
    if not value:
        made[KAFKA_VALUE] = "null" if value is None else "empty"
    if record["key"] is not None:
        key = bytes(record["key"])
        text = _plain(key)
        if text and " " not in text:
            made[p.KEYS] = made[p.SHARDING_KEY] = text
        else:
            made[KAFKA_KEY] = base64.b64encode(key).decode() or _EMPTY
    if record["timestamp"] is not None:
        made[KAFKA_TIMESTAMP] = str(record["timestamp"])
    made[PUBLISHED_AS] = made[p.UNIQ_KEY] = name
    return message


_OF_THIS_MODULE: Final = frozenset({PUBLISHED_AS, ROCKETMQ_TIMESTAMP})
_OWN: Final = frozenset(
    {*RESERVED_PROPERTIES, *DROPPED, *_OF_THIS_MODULE, *_OF_KAFKA, p.SHARDING_KEY}
)  # fmt: skip


def _may_name(header: str) -> bool:
    """Whether a header's name may be that of an application's property."""
    if header in _OWN or header.startswith(p.TRANSIENT_PREFIX):
        return False
    return bool(header) and _plain(header.encode("utf-8", "replace")) == header


def _plain(raw: bytes) -> str | None:
    """Text that properties can hold as it is, None for other bytes."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if any(ord(char) < 0x20 or char == "\x7f" for char in text) else text


def record_of(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A message as a Kafka record: key, value and headers; what came from Kafka as it was there.

    What the properties KAFKA_… say counts in messages whose name says that they came from Kafka.
    Any producer can write both: a property that is not what `message_of` makes, and those of other
    messages, become headers of their names and change neither key nor value.

    Args:
        row: value, key, properties (a map) and timestamp (ms).
        name: what it is called.
    """
    properties = dict(row["properties"] or {})
    value: bytes | None = bytes(row["value"])
    key = bytes(row["key"]) if row["key"] is not None else None
    # The name comes first: what is behind it may have been anybody's.
    headers: list[dict[str, Any]] = [{"key": PUBLISHED_AS, "value": name.encode()}]
    headers += [
        {"key": own, "value": text.encode()} for own, text in properties.items() if _may_name(own)
    ]
    if properties.get(PUBLISHED_AS, "").startswith(FROM_KAFKA):
        plain = []
        marked = properties.get(KAFKA_VALUE)
        if marked in _NO_VALUE and value == _NO_BODY:
            value = _NO_VALUE[marked]
        else:
            plain.append(KAFKA_VALUE)
        theirs = _bytes_of(properties.get(KAFKA_KEY, "").removeprefix(_EMPTY))
        if KAFKA_KEY in properties and theirs is not None:
            key = theirs
        else:
            plain.append(KAFKA_KEY)
        rest = _headers_of(properties.get(KAFKA_HEADERS, ""))
        if rest is not None:
            headers += rest
        else:
            plain.append(KAFKA_HEADERS)
    else:
        # What RocketMQ alone has stays to be seen; what this module had set does not.
        plain = [p.TAGS, p.SHARDING_KEY, p.UNIQ_KEY, *_OF_KAFKA]
    headers += [{"key": n, "value": properties[n].encode()} for n in plain if n in properties]
    headers.append({"key": ROCKETMQ_TIMESTAMP, "value": str(row["timestamp"]).encode()})
    return {"key": key, "value": value, "headers": headers}


def _bytes_of(text: Any) -> bytes | None:
    """What base64 stands for; None for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        return None


def _headers_of(text: str) -> list[dict[str, Any]] | None:
    """The headers that KAFKA_HEADERS keeps; None for what `message_of` does not write."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list):
        return None
    found: list[dict[str, Any]] = []
    for each in parsed:
        if not (isinstance(each, list) and len(each) == 2 and _is_text(each[0])):
            return None
        raw = None if each[1] is None else _bytes_of(each[1])
        if raw is None and each[1] is not None:
            return None
        found.append({"key": each[0], "value": raw})
    return found


def _is_text(found: Any) -> bool:
    """Whether something is text that has an encoding."""
    if not isinstance(found, str):
        return False
    return not any("\ud800" <= char <= "\udfff" for char in found)
