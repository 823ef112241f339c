"""The properties string of a message.

``name 0x01 value 0x02`` repeated, UTF-8. Neither separator may occur in a name or value; they are
not escaped. The last 0x02 is written by RocketMQ up to 4.9.0 and from 5.2.0 on, and left out in
between; both forms are read. A piece without 0x01, with nothing before it or nothing behind it is
ignored; of equal names the last one wins. RocketMQ: MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
_NAME_VALUE = b"\x01"
_PROPERTY = b"\x02"
PROPERTIES_SIZE_MAX = 32767

# RocketMQ: MessageConst.PROPERTY_…
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
UNIQ_KEY = "UNIQ_KEY"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
CLUSTER = "CLUSTER"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
DUP_INFO = "DUP_INFO"
CRC32 = "__CRC32#"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
MESSAGE_TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MESSAGE_TYPE = "MSG_TYPE"
MESSAGE_REGION = "MSG_REGION"
TRACE_SWITCH = "TRACE_ON"
TRACE_CONTEXT = "TRACE_CONTEXT"
CONSUME_START_TIME = "CONSUME_START_TIME"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
KEY_SEPARATOR = " "


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
    whoever takes them from a user calls ``check_properties`` first.
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
    needle = name + _NAME_VALUE
    end = len(raw)
    while True:
        start = raw.rfind(needle, 0, end)
        if start < 0:
            return None
        if start == 0 or raw[start - 1] == 2:
            begin = start + len(needle)
            stop = raw.find(_PROPERTY, begin)
            if stop < 0:
                stop = len(raw)
            if stop > begin:
                return raw[begin:stop]
        end = start + len(needle) - 1


def without_properties(raw: bytes, names: Iterable[bytes]) -> bytes:
    """The properties string without entries of these names, the others as they are stored."""
    heads = tuple(name + _NAME_VALUE for name in names)
    pieces = raw.split(_PROPERTY)
    return _PROPERTY.join([piece for piece in pieces if not piece.startswith(heads)])


def append_property(raw: bytes, name: str, value: str) -> bytes:
    """The properties string with one more entry at its end, which wins over earlier ones."""
    entry = f"{name}\x01{value}\x02".encode("utf-8", "replace")
    if raw and raw[-1] != 2:
        return raw + _PROPERTY + entry
    return raw + entry
