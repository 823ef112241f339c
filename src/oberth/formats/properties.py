"""The properties string of a message.

``name 0x01 value 0x02`` repeated, UTF-8. Neither separator may occur in a name or value; they are
not escaped. The last 0x02 is written by RocketMQ up to 4.9.0 and from 5.2.0 on, and left out in
between; both forms are read. A piece without 0x01, with nothing before it or nothing after it is
ignored; of equal names the last one wins. RocketMQ: MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
_NAME_VALUE: Final = b"\x01"
_PROPERTY: Final = b"\x02"
PROPERTIES_SIZE_MAX: Final = 32767

# RocketMQ: MessageConst.PROPERTY_…
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
UNIQ_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
CLUSTER: Final = "CLUSTER"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
DUP_INFO: Final = "DUP_INFO"
CRC32: Final = "__CRC32#"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
MESSAGE_TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
MESSAGE_TYPE: Final = "MSG_TYPE"
MESSAGE_REGION: Final = "MSG_REGION"
TRACE_SWITCH: Final = "TRACE_ON"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
KEY_SEPARATOR: Final = " "

PLACES: Final = frozenset({INNER_NUM, INNER_BASE, INNER_MULTI_QUEUE_OFFSET, CRC32})
"""Properties that say where a record lies and what it looks like; the log itself sets them."""

BROKER_ONLY: Final = frozenset(
    {
        *PLACES,
        # What a broker says of itself.
        CLUSTER,
        MESSAGE_REGION,
        TRACE_SWITCH,
        # Where a message goes that waits for its time or for the end of its transaction.
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_CHECK_TIMES,
        TRANSACTION_PREPARED_QUEUE_OFFSET,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        TIMER_OUT_MS,
        TIMER_DEL_UNIQKEY,
        TIMER_DELAY_LEVEL,
        # What POP and request-reply note.
        POP_CK,
        FIRST_POP_TIME,
        ORIGIN_GROUP,
        PUSH_REPLY_TIME,
    }
)
"""Properties that only a broker sets, besides those that begin with TRANSIENT_PREFIX: no send of a
client brings one in, whatever its kind. INNER_MULTI_DISPATCH is not among them, since a client
names light queues with it: in the properties of a request, never in an item of a batch."""


def decode_properties(raw: bytes | memoryview | str) -> dict[str, str]:
    """The map of a properties string. Bytes that are no UTF-8 become U+FFFD, as in Java."""
    text = raw if isinstance(raw, str) else str(raw, "utf-8", "replace")
    properties: dict[str, str] = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, found, value = piece.partition(NAME_VALUE_SEPARATOR)
        if found and name and value:
            properties[name] = value
    return properties


def encode_properties(
    properties: Mapping[str, str | None], *, trailing_separator: bool = True
) -> bytes:
    """The properties string; entries whose value is None are left out.

    Nothing is checked here: names and values with a separator in them would be read as others, so
    a caller that takes them from a user calls ``check_properties`` first.
    """
    text = PROPERTY_SEPARATOR.join(
        [f"{name}\x01{value}" for name, value in properties.items() if value is not None]
    )
    if text and trailing_separator:
        text += PROPERTY_SEPARATOR
    return text.encode("utf-8", "replace")


def check_properties(properties: Mapping[str, str | None]) -> str | None:
    """Why the map cannot be encoded and read back, or None."""
    for name, value in properties.items():
        if not name:
            return "a property has an empty name"
        for text in (name, value or ""):
            if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
                return f"property {name!r} contains a separator (U+0001 or U+0002)"
    return None


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """One value of a properties string as stored, without decoding the others.

    0.2 us where decoding everything takes 2 us, so dispatch and filters use this. The last of
    equal names wins and an empty value does not count, as in ``decode_properties``.
    """
    key = _PROPERTY + name + _NAME_VALUE
    begin = raw.rfind(key) + len(key)
    if begin < len(key):
        if not raw.startswith(key[1:]):
            return None
        begin = len(key) - 1
    stop = raw.find(_PROPERTY, begin)
    value = raw[begin:] if stop < 0 else raw[begin:stop]
    if value:
        return value
    # Empty entries are taken out, half of those side by side at a time: there may be thousands.
    text, empty = _PROPERTY + raw + _PROPERTY, key + _PROPERTY
    while empty in text:
        text = text.replace(empty, _PROPERTY)
    begin = text.rfind(key) + len(key)
    return text[begin : text.index(_PROPERTY, begin)] if begin >= len(key) else None


def without_properties(raw: bytes, names: Iterable[bytes]) -> bytes:
    """The properties string without entries of these names, the others as they are stored."""
    heads = tuple(name + _NAME_VALUE for name in names)
    pieces = raw.split(_PROPERTY)
    return _PROPERTY.join([piece for piece in pieces if not piece.startswith(heads)])


def names_pattern(names: Iterable[str]) -> str:
    """A regular expression that finds entries of these names, or transient ones.

    For a properties string with a PROPERTY_SEPARATOR put before it.
    """
    joined = "|".join(
        [*map(re.escape, sorted(names)), re.escape(TRANSIENT_PREFIX) + "[^\x01\x02]*"]
    )
    return f"\x02(?:{joined})\x01"


def _finder(names: Iterable[str]) -> re.Pattern[bytes]:
    return re.compile(names_pattern(names).encode() + b"[^\x02]*")


_PLACE_ENTRY: Final = _finder({*PLACES, INNER_MULTI_DISPATCH})
_BROKER_ONLY_ENTRY: Final = _finder(BROKER_ONLY)
NOT_OF_BATCH_ITEMS: Final = BROKER_ONLY | {INNER_MULTI_DISPATCH}
"""Properties that an item of a client's batch cannot choose, besides transient ones."""
_BATCH_ITEM_ENTRY: Final = _finder(NOT_OF_BATCH_ITEMS)


def without_broker_only(raw: bytes) -> bytes:
    """The properties string that a client sent without what only a broker sets."""
    return _without_entries(raw, _BROKER_ONLY_ENTRY)


def without_places(raw: bytes) -> bytes:
    """A stored properties string without what it says of the record's place; for a copy of it."""
    return _without_entries(raw, _PLACE_ENTRY)


def of_batch_item(raw: bytes) -> bytes:
    """The properties string of an item of a client's batch, without what an item cannot choose.

    0.3 us where there is nothing of the kind.
    """
    return _without_entries(raw, _BATCH_ITEM_ENTRY)


def _without_entries(raw: bytes, entry: re.Pattern[bytes]) -> bytes:
    separated = _PROPERTY + raw
    if entry.search(separated) is None:
        return raw
    return entry.sub(b"", separated)[1:]


def append_property(raw: bytes, name: str, value: str) -> bytes:
    """The properties string with one more entry at its end, which wins over earlier ones."""
    entry = f"{name}\x01{value}\x02".encode("utf-8", "replace")
    if raw and raw[-1] != 2:
        return raw + _PROPERTY + entry
    return raw + entry
