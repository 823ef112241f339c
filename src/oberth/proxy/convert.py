"""Messages of gRPC to what a broker stores, and back.

To a broker: a property string, a sysFlag and a type. Back: user and system properties, where the
names that RocketMQ keeps for itself become fields. RocketMQ: SendMessageActivity, GrpcConverter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from oberth.client.messages import RESERVED_PROPERTIES, MessageExt
from oberth.formats import properties as p
from oberth.formats.java_string import java_hash
from oberth.formats.sys_flag import COMPRESSED, TRANSACTION_PREPARED
from oberth.proxy import messages as m
from oberth.proxy.backend import BrokerQueues
from oberth.proxy.clients import CONSUMERS, LITE_CONSUMERS
from oberth.proxy.codes import Code, StatusError

T = TypeVar("T")

PROPERTY_COUNT_MAX: Final = 128
PROPERTIES_SIZE_MAX: Final = 16 * 1024
MESSAGE_GROUP_SIZE_MAX: Final = 64
RECOVERY_MS_MAX: Final = 3_600_000
LITE_TOPIC_SIZE_MAX: Final = 64

OWN_PROPERTIES: Final = (
    RESERVED_PROPERTIES - {p.SHARDING_KEY, p.TRANSACTION_ID, p.TRANSACTION_CHECK_TIMES}
) | {
    "BUYER_ID", p.BORN_HOST, p.BORN_TIMESTAMP, p.DUP_INFO, p.INNER_MULTI_QUEUE_OFFSET,
    p.LITE_TOPIC, p.ORIGIN_GROUP, p.PRIORITY, p.TRACE_CONTEXT,
}  # fmt: skip
"""Names that are not the user's: what they tell is in fields. RocketMQ: MessageConst."""

_TYPES: Final = m.enum_values("MessageType")
_ENCODINGS: Final = m.enum_values("Encoding")
_DIGESTS: Final = m.enum_values("DigestType")
NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY = (
    _TYPES[name] for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
)
_TYPE_NAMES: Final = {number: name for name, number in _TYPES.items()}


_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19
_CHARACTER_SIZE_MAX: Final = 4
"""Bytes of a character in UTF-8."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC: Final = re.compile("[a-zA-Z0-9_-]+")


def set_timestamp(field: Any, ms: int) -> None:
    """Puts ms since the epoch into a Timestamp."""
    field.seconds, rest = divmod(ms, 1000)
    field.nanos = rest * 1_000_000


def set_duration(field: Any, ms: int) -> None:
    """Puts ms into a Duration."""
    field.seconds, rest = divmod(ms, 1000)
    field.nanos = rest * 1_000_000


def ms_of(field: Any) -> int:
    """Ms of a Timestamp or Duration."""
    return int(field.seconds) * 1000 + int(field.nanos) // 1_000_000


def has_control(text: str) -> bool:
    """Whether a text holds a control character."""
    return _CONTROL.search(text) is not None


def check_name(text: str, what: str, code: Code) -> str:
    """A text that is neither blank nor holds control characters.

    Raises:
        StatusError: it is or does.
    """
    if not text.strip():
        raise StatusError(code, f"{what} cannot be blank")
    if has_control(text):
        raise StatusError(code, f"{what} cannot contain control characters")
    return text


def check_lite_topic(name: str) -> str:
    """A name that a lite topic may have.

    Raises:
        StatusError: ILLEGAL_LITE_TOPIC: another one.
    """
    if len(name) > LITE_TOPIC_SIZE_MAX or not _LITE_TOPIC.fullmatch(name):
        raise StatusError(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {name[: LITE_TOPIC_SIZE_MAX + 1]!r}, allowed 1 to {LITE_TOPIC_SIZE_MAX} "
            "letters, digits, hyphens and underscores",
        )
    return name


def type_of(message: Any) -> int:
    """The type that a message's fields make it, as the client says."""
    return int(message.system_properties.message_type)


def properties_of(message: Any, topic: str, now_ms: int, *, delay_ms_max: int) -> dict[str, str]:
    """The properties under which a broker stores a message.

    Raises:
        StatusError: a field that no broker takes.
    """
    system = message.system_properties
    # Counted before anything is looked at: peers choose how many there are, and how long.
    count, key_count = len(message.user_properties), len(system.keys)
    if count > PROPERTY_COUNT_MAX or key_count > PROPERTIES_SIZE_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{count} user properties, allowed {PROPERTY_COUNT_MAX}, and {key_count} keys, "
            f"allowed {PROPERTIES_SIZE_MAX}",
        )
    user = dict(message.user_properties) if count else {}
    tag, message_id = system.tag, system.message_id
    trace_context, born_host = system.trace_context, system.born_host
    keys = [key for key in system.keys if key] if key_count else []
    texts = [tag, *keys, message_id, trace_context, born_host, *user, *user.values()]
    length = sum(map(len, texts))
    if length > p.PROPERTIES_SIZE_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{length} characters of properties, allowed {p.PROPERTIES_SIZE_MAX} bytes",
        )
    if (
        has_control("".join(texts))
        or not message_id
        or message_id.isspace()
        or tag.isspace()
        or any(map(str.isspace, keys))
        or not OWN_PROPERTIES.isdisjoint(user)
    ):
        _refuse_text(user, tag, keys, message_id)
        raise StatusError(
            Code.BAD_REQUEST, "trace context and born host cannot contain control characters"
        )
    made = user
    if length > PROPERTIES_SIZE_MAX // _CHARACTER_SIZE_MAX:
        size = sum(len(text.encode()) for text in (tag, *keys, *user, *user.values()))
        if size > PROPERTIES_SIZE_MAX:
            raise StatusError(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"{size} bytes of properties, allowed {PROPERTIES_SIZE_MAX}",
            )
    if tag:
        if "|" in tag:
            raise StatusError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
        made[p.TAGS] = tag
    if keys:
        made[p.KEYS] = " ".join(keys)
    made[p.UNIQ_KEY] = message_id
    made[p.WAIT] = "true"
    kind = type_of(message)
    if kind == TRANSACTION:
        made[p.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery_ms = ms_of(system.orphaned_transaction_recovery_duration)
            if not 0 <= recovery_ms <= RECOVERY_MS_MAX:
                raise StatusError(
                    Code.BAD_REQUEST,
                    f"transaction recovery after {recovery_ms} ms, allowed 0 to {RECOVERY_MS_MAX}",
                )
            made[p.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery_ms // 1000)
    made[p.PRODUCER_GROUP] = topic
    if system.HasField("delivery_timestamp"):
        deliver_ms = ms_of(system.delivery_timestamp)
        if deliver_ms - now_ms > delay_ms_max or deliver_ms < -_LONG_MAX:
            raise StatusError(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {deliver_ms - now_ms} ms ahead, allowed {delay_ms_max}",
            )
        made[p.TIMER_DELIVER_MS] = str(deliver_ms)
    if system.HasField("priority"):
        if system.priority < 0:
            raise StatusError(Code.BAD_REQUEST, f"priority {system.priority}, allowed from 0 on")
        made[p.PRIORITY] = str(system.priority)
    if system.HasField("delivery_attempt"):
        made[p.RECONSUME_TIME] = str(system.delivery_attempt)
    if system.message_group:
        group = system.message_group
        size = len(group.encode())
        if size >= MESSAGE_GROUP_SIZE_MAX:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"message group of {size} bytes, allowed {MESSAGE_GROUP_SIZE_MAX - 1}",
            )
        check_name(group, "message group", Code.ILLEGAL_MESSAGE_GROUP)
        made[p.SHARDING_KEY] = group
    if system.lite_topic:
        made[p.LITE_TOPIC] = check_lite_topic(system.lite_topic)
    if trace_context:
        made[p.TRACE_CONTEXT] = trace_context
    if born_host:
        made[p.BORN_HOST] = born_host
    if system.HasField("born_timestamp"):
        born_ms = ms_of(system.born_timestamp)
        if abs(born_ms) > _LONG_MAX:
            raise StatusError(
                Code.BAD_REQUEST, f"the born timestamp is {born_ms} ms, allowed up to {_LONG_MAX}"
            )
        made[p.BORN_TIMESTAMP] = str(born_ms)
    return made


def _refuse_text(user: dict[str, str], tag: str, keys: list[str], message_id: str) -> None:
    """Say which of these texts cannot be stored, if it is one of them.

    Raises:
        StatusError: one is a name of the system's, is blank, or holds control characters.
    """
    for name, value in user.items():
        if name in OWN_PROPERTIES:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is used by system"
            )
        if has_control(name) or has_control(value):
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r} cannot contain control characters",
            )
    if tag:
        check_name(tag, "tag", Code.ILLEGAL_MESSAGE_TAG)
    for key in keys:
        check_name(key, "key", Code.ILLEGAL_MESSAGE_KEY)
    check_name(message_id, "message id", Code.ILLEGAL_MESSAGE_ID)


def encoded_properties(properties: dict[str, str]) -> bytes:
    """Properties as a record has them.

    Raises:
        StatusError: MESSAGE_PROPERTIES_TOO_LARGE: no record has room for them.
    """
    encoded = p.encode_properties(properties)
    if len(encoded) > p.PROPERTIES_SIZE_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(encoded)} bytes of properties with those of the system, "
            f"allowed {p.PROPERTIES_SIZE_MAX}",
        )
    return encoded


def sys_flag_of(message: Any) -> int:
    """The sysFlag of a message."""
    flag = 0
    if message.system_properties.body_encoding == _ENCODINGS["GZIP"]:
        flag |= COMPRESSED
    if type_of(message) == TRANSACTION:
        flag |= TRANSACTION_PREPARED
    return flag


def queue_of(key: str, queues: Sequence[T]) -> T:
    """The queue of a message group: Guava's consistentHash of its Java hash."""
    return queues[consistent_hash(java_hash(key), len(queues))]


def consistent_hash(value: int, buckets: int) -> int:
    """Guava's ``Hashing.consistentHash``: which of the buckets a 64-bit value goes to."""
    state = value & (2**64 - 1)
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & (2**64 - 1)
        following = int((candidate + 1) / (((state >> 33) + 1) / float(1 << 31)))
        if not 0 <= following < buckets:
            return candidate
        candidate = following


def fill_message(
    target: Any, message: MessageExt, topic: str, *, handle: str | None, now_ms: int
) -> None:
    """Fills a ``Message`` from a record.

    Args:
        target: an empty ``Message``.
        message: the record.
        topic: the name that the client asked for.
        handle: the receipt handle; None for messages that were not handed out for a time.
        now_ms: when it is delivered.
    """
    properties = message.properties
    target.topic.name = topic
    user = target.user_properties
    for name, value in properties.items():
        if name not in OWN_PROPERTIES:
            user[name] = value
    body = message.stored_body
    target.body = body
    system = target.system_properties
    if message.sys_flag & COMPRESSED:
        system.body_encoding = _ENCODINGS["GZIP"]
    else:
        system.body_encoding = _ENCODINGS["IDENTITY"]
    system.body_digest.type = _DIGESTS["MD5"]
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    tag = properties.get(p.TAGS)
    if tag:
        system.tag = tag
    keys = properties.get(p.KEYS)
    if keys:
        system.keys.extend(keys.split())
    system.message_id = properties.get(p.UNIQ_KEY) or message.offset_msg_id
    system.message_type = stored_type(properties)
    set_timestamp(system.born_timestamp, message.born_timestamp)
    system.born_host = properties.get(p.BORN_HOST) or message.born_host
    set_timestamp(system.store_timestamp, message.store_timestamp)
    system.store_host = message.store_host
    deliver_ms = _number(properties.get(p.TIMER_DELIVER_MS) or properties.get(p.TIMER_OUT_MS))
    if deliver_ms is not None:
        set_timestamp(system.delivery_timestamp, deliver_ms)
    if handle is not None:
        system.receipt_handle = handle
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = min(message.reconsume_times + 1, _INT_MAX)
    group = properties.get(p.SHARDING_KEY)
    if group:
        system.message_group = group
    lite = properties.get(p.LITE_TOPIC)
    if lite:
        system.lite_topic = lite
    priority = _number(properties.get(p.PRIORITY))
    if priority is not None and priority <= _INT_MAX:
        system.priority = priority
    trace = properties.get(p.TRACE_CONTEXT)
    if trace:
        system.trace_context = trace
    origin = properties.get(p.DLQ_ORIGIN_TOPIC)
    if origin:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(p.DLQ_ORIGIN_MESSAGE_ID, "")


def _number(text: str | None) -> int | None:
    """A property that is a number of 64 bits from 0 on; None if it is none: senders write them."""
    if not text or not text.isdecimal() or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    return number if number <= _LONG_MAX else None


def stored_type(properties: dict[str, str]) -> int:
    """The type of a message by the properties under which it is stored, whatever its sender says.

    RocketMQ: TopicMessageType.parseFromMessageProperty, GrpcConverter.buildMessageType.
    """
    if properties.get(p.TRANSACTION_PREPARED, "").lower() == "true":
        return TRANSACTION
    if (
        p.DELAY in properties
        or p.TIMER_DELIVER_MS in properties
        or p.TIMER_DELAY_SEC in properties
        or p.TIMER_DELAY_MS in properties
    ):
        return DELAY
    if p.SHARDING_KEY in properties:
        return FIFO
    if p.PRIORITY in properties:
        return PRIORITY
    if p.LITE_TOPIC in properties:
        return LITE
    return NORMAL


def type_name(number: int) -> str:
    """The name of a message type."""
    return _TYPE_NAMES.get(number, "UNSPECIFIED")


PERMISSIONS: Final = m.enum_values("Permission")
FILTERS: Final = m.enum_values("FilterType")
ACCEPTED: Final = {
    "NORMAL": (NORMAL,),
    "FIFO": (FIFO,),
    "DELAY": (DELAY,),
    "TRANSACTION": (TRANSACTION,),
    "MIXED": (NORMAL, FIFO, DELAY, TRANSACTION),
    "LITE": (LITE,),
    "PRIORITY": (PRIORITY,),
}


def permissions_of(queues: BrokerQueues) -> list[int]:
    """The permission of each queue in the order in which clients see them: by broker, from 0 on."""
    both = min(queues.read_count, queues.write_count)
    read = write = none = 0
    if queues.may_read and queues.may_write:
        read, write = queues.read_count - both, queues.write_count - both
    elif queues.may_read:
        read, both = queues.read_count, 0
    elif queues.may_write:
        write, both = queues.write_count, 0
    else:
        none, both = max(1, queues.read_count, queues.write_count), 0
    return (
        [PERMISSIONS["READ"]] * read
        + [PERMISSIONS["WRITE"]] * write
        + [PERMISSIONS["READ_WRITE"]] * both
        + [PERMISSIONS["NONE"]] * none
    )


def consumer_data(settings: Any) -> dict[str, Any]:
    """The heartbeat data of a consumer with these settings."""
    subscription = settings.subscription
    entries = []
    for entry in subscription.subscriptions:
        is_sql = entry.expression.type == FILTERS["SQL"]
        text = entry.expression.expression or "*"
        entries.append(
            {
                "topic": entry.topic.name,
                "subString": text,
                "expressionType": "SQL92" if is_sql else "TAG",
                "tagsSet": [] if is_sql or text == "*" else [t.strip() for t in text.split("||")],
                "codeSet": [],
                "classFilterMode": False,
                "subVersion": 0,
            }
        )
    kind = CONSUMERS.get(settings.client_type, "")
    lite = settings.client_type in LITE_CONSUMERS
    return {
        "groupName": subscription.group.name,
        "consumeType": "CONSUME_ACTIVELY"
        if "SIMPLE" in kind or "PULL" in kind
        else "CONSUME_PASSIVELY",
        "messageModel": "LITE_SELECTIVE" if lite else "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": entries,
        "unitMode": False,
    }


DEFAULT_RETRY_MS: Final = tuple(
    1000 * s
    for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Times between attempts of a group without its own policy. RocketMQ: CustomizedRetryPolicy."""


def fill_backoff(policy: Any, config: Any) -> None:
    """A group's attempts and the times between them, in place of what is there."""
    policy.Clear()
    policy.max_attempts = (config.retry_max_times if config is not None else 16) + 1
    retry = config.group_retry_policy if config is not None else None
    if retry is not None and retry.type == "EXPONENTIAL":
        chosen = retry.exponential_retry_policy
        set_duration(policy.exponential_backoff.initial, chosen.initial if chosen else 5_000)
        set_duration(policy.exponential_backoff.max, chosen.max if chosen else 7_200_000)
        policy.exponential_backoff.multiplier = chosen.multiplier if chosen else 2
        return
    custom = retry.customized_retry_policy if retry is not None else None
    for delay_ms in custom.next if custom else DEFAULT_RETRY_MS:
        set_duration(policy.customized_backoff.next.add(), delay_ms)


def tags_of(expression: Any) -> frozenset[str] | None:
    """The tags that are wanted; None for all, or for a filter that is not by tags."""
    text = expression.expression.strip()
    if expression.type == FILTERS["SQL"] or text in ("", "*"):
        return None
    return frozenset(tag.strip() for tag in text.split("||") if tag.strip())
