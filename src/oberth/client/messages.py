"""Messages as applications see them: ``Message`` goes out, ``MessageExt`` comes in.

A ``MessageExt`` is a view of a record in the answer of a pull: its text, properties and body are
decoded when they are asked for, and as long as one message lives, so do the bytes of its answer
(256 KiB as a rule). RocketMQ: Message, MessageExt, SendResult.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from oberth.errors import FormatError, MQClientError, RecordError
from oberth.formats import properties as p
from oberth.formats import sys_flag as flags
from oberth.formats.batch_body import ITEM_COUNT_MAX, decode_batch
from oberth.formats.compression import BODY_SIZE_MAX, decompress_body
from oberth.formats.java_numbers import java_long
from oberth.formats.message import (
    BLANK,
    BODY_CRC,
    BODY_LENGTH,
    BODY_POSITION_V4,
    BORN_HOST,
    BORN_TIMESTAMP,
    COMMIT_LOG_OFFSET,
    FIXED,
    FIXED_SIZE_V1,
    FIXED_V4,
    FLAG,
    HOST_BITS,
    MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED_TRANSACTION_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    RECORD_SIZE,
    STORE_HOST,
    STORE_TIMESTAMP,
    SYS_FLAG,
    decode_host,
)
from oberth.formats.message_id import offset_message_id
from oberth.remoting.bodies.base import MessageQueue

MESSAGE_ILLEGAL: Final = 13
"""MQClientError.response_code of a message that cannot be sent."""

REPLY_MESSAGE: Final = "reply"
"""MSG_TYPE of the answer to a request."""

RESERVED_PROPERTIES: Final = frozenset(
    {
        p.KEYS, p.TAGS, p.WAIT, p.DELAY, p.RETRY_TOPIC, p.REAL_TOPIC, p.REAL_QUEUE_ID,
        p.TRANSACTION_PREPARED, p.PRODUCER_GROUP, p.MIN_OFFSET, p.MAX_OFFSET,
        p.ORIGIN_MESSAGE_ID, p.MESSAGE_REGION, p.TRACE_SWITCH, p.UNIQ_KEY, p.MAX_RECONSUME_TIMES,
        p.CONSUME_START_TIME, p.POP_CK, p.POP_CK_OFFSET, p.FIRST_POP_TIME, p.TRANSACTION_ID,
        p.TRANSACTION_PREPARED_QUEUE_OFFSET, p.TRANSACTION_CHECK_TIMES,
        p.CHECK_IMMUNITY_TIME_IN_SECONDS, p.EXTEND_UNIQ_INFO, p.INSTANCE_ID, p.RECONSUME_TIME,
        p.CORRELATION_ID, p.REPLY_TO_CLIENT, p.MESSAGE_TTL, p.ARRIVE_TIME, p.PUSH_REPLY_TIME,
        p.CLUSTER, p.MESSAGE_TYPE, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS,
        p.TIMER_ENQUEUE_MS, p.TIMER_DEQUEUE_MS, p.TIMER_ROLL_TIMES, p.TIMER_OUT_MS,
        p.TIMER_DEL_UNIQKEY, p.TIMER_DELAY_LEVEL, p.DLQ_ORIGIN_TOPIC, p.DLQ_ORIGIN_MESSAGE_ID,
        p.INNER_NUM, p.INNER_BASE, p.CRC32, p.SHARDING_KEY,
    }
)  # fmt: skip
"""Names that an application may not give to its own properties."""


class Message:
    """A message to be sent.

    Args:
        topic: where to.
        body: what; at least one byte.
        tags: one word that subscriptions choose by.
        keys: words that the message can be found by; one, or several.
        properties: the application's own, none of RESERVED_PROPERTIES.
        flag: a 32-bit number that nobody interprets.
        delay_time_level: 1 to 18, see the broker's messageDelayLevel; 0: at once.
        delay_ms: deliver so many ms after it was stored (brokers from 5.0 on).
        deliver_time_ms: deliver at this time (brokers from 5.0 on).
        sharding_key: messages with the same one should go to the same queue.
        wait_store_msg_ok: whether the broker's answer waits for the disk and the slaves, as far as
            the broker is told to.

    Attributes:
        properties: all of them, the reserved ones too; changed by the producer when it sends.
        transaction_id: of a message that was sent in a transaction, else "".

    Raises:
        MQClientError: a reserved property, or a body that is not made of bytes.
    """

    __slots__ = ("body", "flag", "properties", "topic", "transaction_id")

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        *,
        tags: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_time_level: int = 0,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
        sharding_key: str = "",
        wait_store_msg_ok: bool = True,
    ) -> None:
        self.topic = topic
        self.body: bytes = body if body.__class__ is bytes else as_bytes(body)
        self.flag = flag
        self.transaction_id = ""
        made = {p.WAIT: "true" if wait_store_msg_ok else "false"}
        self.properties: dict[str, str] = made
        if tags:
            made[p.TAGS] = tags if tags.__class__ is str else _one_tag(tags)
        if keys:
            made[p.KEYS] = keys if isinstance(keys, str) else _joined_keys(keys)
        if delay_time_level:
            made[p.DELAY] = str(delay_time_level)
        if delay_ms is not None:
            made[p.TIMER_DELAY_MS] = str(delay_ms)
        if deliver_time_ms is not None:
            made[p.TIMER_DELIVER_MS] = str(deliver_time_ms)
        if sharding_key:
            made[p.SHARDING_KEY] = sharding_key
        if properties:
            if not RESERVED_PROPERTIES.isdisjoint(properties):
                names = sorted(RESERVED_PROPERTIES.intersection(properties))
                raise MQClientError(f"properties {names} are RocketMQ's own", MESSAGE_ILLEGAL)
            made.update(properties)

    @classmethod
    def of(cls, message: Message | MessageExt) -> Message:
        """A message with the topic, body, flag and the application's properties of another."""
        made = cls(message.topic, message.body, flag=message.flag)
        made.properties.update(
            (name, value)
            for name, value in message.properties.items()
            if name in (p.TAGS, p.KEYS, p.SHARDING_KEY) or name not in RESERVED_PROPERTIES
        )
        return made

    def __repr__(self) -> str:
        return (
            f"Message({self.topic!r}, {len(self.body)} bytes, properties={self.properties!r}, "
            f"flag={self.flag})"
        )

    @property
    def tags(self) -> str:
        """The TAGS property, or ""."""
        return self.properties.get(p.TAGS, "")

    @property
    def keys(self) -> str:
        """The KEYS property: words separated by blanks, or ""."""
        return self.properties.get(p.KEYS, "")

    @property
    def delay_time_level(self) -> int:
        """The DELAY property; 0: none, or one that is no number."""
        return java_long(self.properties.get(p.DELAY), 0)

    @property
    def msg_id(self) -> str:
        """The id that the producer gave when it sent the message, or ""."""
        return self.properties.get(p.UNIQ_KEY, "")

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the broker's answer waits for the disk and the slaves."""
        return self.properties.get(p.WAIT, "true") != "false"

    def put_user_property(self, name: str, value: str) -> None:
        """Set one of the application's properties.

        Raises:
            MQClientError: the name is reserved, or name or value is empty.
        """
        if name in RESERVED_PROPERTIES:
            raise MQClientError(f"property {name} is RocketMQ's own", MESSAGE_ILLEGAL)
        if not name or not value:
            raise MQClientError(f"property {name!r} = {value!r}: empty", MESSAGE_ILLEGAL)
        self.properties[name] = value

    def get_property(self, name: str, default: str = "") -> str:
        """One property."""
        return self.properties.get(name, default)


def _one_tag(tags: object) -> str:
    """A tag as the property has it.

    Raises:
        MQClientError: it is no text.
    """
    if isinstance(tags, str):
        return tags
    raise MQClientError(
        f"tags is {type(tags).__name__}; it must be one text: a message has one tag",
        MESSAGE_ILLEGAL,
    )


def _joined_keys(keys: object) -> str:
    """Several keys as the property has them.

    Raises:
        MQClientError: they are not texts.
    """
    if isinstance(keys, Iterable) and not isinstance(keys, bytes):
        words = list(keys)
        if all(isinstance(each, str) for each in words):
            return p.KEY_SEPARATOR.join(words)
    raise MQClientError(
        f"keys is {keys!r:.80}; it must be a text, or several texts in a list", MESSAGE_ILLEGAL
    )


def as_bytes(body: object) -> bytes:
    """A body as bytes.

    Raises:
        MQClientError: it is not bytes; the message says what to do.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    how = (
        "text needs an encoding: body.encode()"
        if isinstance(body, str)
        else "encode it first, for example json.dumps(body).encode()"
    )
    raise MQClientError(f"body is {type(body).__name__}; it must be bytes: {how}", MESSAGE_ILLEGAL)


class SendStatus(enum.Enum):
    """What the broker did with a message; the message is stored in all cases."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The broker's answer to a send.

    Attributes:
        status: what was done.
        msg_id: the id that the client gave; of a batch, ids joined by commas.
        message_queue: where it went.
        queue_offset: its place there; of a batch, the first.
        offset_msg_id: the broker's id, which says where the message lies; of a batch, joined.
        transaction_id: of a message in a transaction.
        region_id: where the broker is.
        trace_on: whether the broker wants traces.
        recall_handle: takes a delayed message back, see ``Producer.recall_message``.
    """

    status: SendStatus
    msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    offset_msg_id: str = ""
    transaction_id: str = ""
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str = ""


KEPT_BODY_SIZE: Final = 256 * 1024
KEPT_BODY_RATIO: Final = 16
"""A body that is larger than the one and grew by more than the other is not kept in its message:
an answer of 2 MB could come to hold gigabytes."""

UNPACKED_MAX: Final = 256 << 20
"""Bytes that the inner batches of an answer become. Brokers store at most 4 MiB of one unpacked."""
UNPACKED_ITEM_SIZE: Final = 1024
"""Bytes that each of their messages counts beside its own."""


class MessageExt:
    """A message that was stored.

    Attributes:
        topic: of a message that is tried again, its first topic.
        queue_id: of the queue that it was read from.
        queue_offset: its place in that queue.
        broker_name: where it was read.
        reconsume_times: how often it was tried before.
    """

    __slots__ = (
        "_body",
        "_body_error",
        "_body_start",
        "_data",
        "_fixed",
        "_properties",
        "_properties_end",
        "_properties_start",
        "_topic_at",
        "broker_name",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "topic",
    )

    def __init__(
        self,
        data: bytes,
        fixed: tuple[Any, ...],
        topic: str,
        body_start: int,
        topic_at: int,
        properties_start: int,
        properties_end: int,
        broker_name: str,
    ) -> None:
        self._data = data
        self._fixed = fixed
        self.topic = topic
        self._body_start = body_start
        self._topic_at = topic_at
        self._properties_start = properties_start
        self._properties_end = properties_end
        self.broker_name = broker_name
        self.queue_id: int = fixed[QUEUE_ID]
        self.queue_offset: int = fixed[QUEUE_OFFSET]
        self.reconsume_times: int = fixed[RECONSUME_TIMES]
        self._body: bytes | None = None
        self._body_error: str | None = None
        self._properties: dict[str, str] | None = None

    def __repr__(self) -> str:
        return (
            f"MessageExt({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"{self._topic_at - self._body_start} bytes, {self.msg_id})"
        )

    # Attributes are read from the record's fixed part, whose layout formats.message documents.

    @property
    def store_size(self) -> int:
        """Bytes of the whole record."""
        value: int = self._fixed[RECORD_SIZE]
        return value

    @property
    def body_crc(self) -> int:
        """The record's checksum of the stored body."""
        value: int = self._fixed[BODY_CRC]
        return value

    @property
    def flag(self) -> int:
        """The application's number."""
        value: int = self._fixed[FLAG]
        return value

    @property
    def sys_flag(self) -> int:
        """See formats.sys_flag."""
        value: int = self._fixed[SYS_FLAG]
        return value

    @property
    def commit_log_offset(self) -> int:
        """Where the record lies in the broker's CommitLog."""
        value: int = self._fixed[COMMIT_LOG_OFFSET]
        return value

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, ms."""
        value: int = self._fixed[BORN_TIMESTAMP]
        return value

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, ms."""
        value: int = self._fixed[STORE_TIMESTAMP]
        return value

    @property
    def born_host(self) -> str:
        """``address:port`` of the producer."""
        return decode_host(self._host(BORN_HOST))

    @property
    def store_host(self) -> str:
        """``address:port`` of the broker."""
        return decode_host(self._host(STORE_HOST))

    def _host(self, index: int) -> bytes:
        host: bytes = self._fixed[index]
        return host

    @property
    def prepared_transaction_offset(self) -> int:
        """Of a message of a transaction: where its half message starts."""
        value: int = self._fixed[PREPARED_TRANSACTION_OFFSET]
        return value

    @property
    def body(self) -> bytes:
        """The body, decompressed; as it is stored where that cannot be, see `body_error`.

        Any producer can set the flag of compressed bodies over bytes that are none. Apache's client
        leaves out such a message and those after it in the same answer. A body that is very much
        larger than what is stored is decompressed anew each time.
        """
        body = self._body
        if body is None:
            body = self._data[self._body_start : self._topic_at]
            if self._fixed[SYS_FLAG] & flags.COMPRESSED:
                stored_size = len(body)
                try:
                    body = decompress_body(body, self._fixed[SYS_FLAG])
                except FormatError as error:
                    self._body_error = str(error)
                if len(body) > KEPT_BODY_SIZE and len(body) > KEPT_BODY_RATIO * stored_size:
                    return body
            self._body = body
        return body

    @property
    def body_error(self) -> str | None:
        """Why `body` is only what is stored: it does not decompress, or is no batch. Else None."""
        _ = self.body
        return self._body_error

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        return self._data[self._body_start : self._topic_at]

    @property
    def properties_raw(self) -> bytes:
        """The properties as they are stored."""
        return self._data[self._properties_start : self._properties_end]

    @property
    def properties(self) -> dict[str, str]:
        """All properties; the message's own map, which may be changed."""
        properties = self._properties
        if properties is None:
            properties = self._properties = p.decode_properties(self.properties_raw)
        return properties

    def get_property(self, name: str, default: str = "") -> str:
        """One property."""
        if self._properties is not None:
            return self._properties.get(name, default)
        raw = p.find_property(self.properties_raw, name.encode())
        return default if raw is None else str(raw, "utf-8", "replace")

    @property
    def tags(self) -> str:
        """The TAGS property, or ""."""
        return self.get_property(p.TAGS)

    @property
    def keys(self) -> str:
        """The KEYS property: words separated by blanks, or ""."""
        return self.get_property(p.KEYS)

    @property
    def offset_msg_id(self) -> str:
        """The broker's id, which says where the message lies."""
        return offset_message_id(self._host(STORE_HOST), self._fixed[COMMIT_LOG_OFFSET])

    @property
    def msg_id(self) -> str:
        """The id that the producer gave; without one, the broker's."""
        return self.get_property(p.UNIQ_KEY) or self.offset_msg_id

    @property
    def transaction_id(self) -> str:
        """Of a message that was sent in a transaction, else ""."""
        return self.get_property(p.TRANSACTION_ID)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that it was read from, under the topic that it is seen under."""
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def decode_messages(data: bytes, broker_name: str = "") -> list[MessageExt]:
    """The messages in the answer of a pull, in order.

    A record that is cut off at the end is left out: the broker filled its answer to the brim.
    What its inner batches become has a bound, UNPACKED_MAX.

    Raises:
        RecordError: bytes that are no record.
    """
    messages: list[MessageExt] = []
    append = messages.append
    unpack = FIXED_V4.unpack_from
    size_of_data = len(data)
    position = 0
    unpacked = 0
    topics: dict[bytes, str] = {}
    while size_of_data - position >= FIXED_SIZE_V1:
        fixed = unpack(data, position)
        size, magic = fixed[RECORD_SIZE], fixed[MAGIC]
        end = position + size
        body_start = position + BODY_POSITION_V4
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < FIXED_SIZE_V1:
            raise _no_record(data, position)
        if end > size_of_data:
            break
        if fixed[SYS_FLAG] & HOST_BITS:
            layout = FIXED[fixed[SYS_FLAG] & HOST_BITS]
            if layout.size > size:
                raise _no_record(data, position)
            fixed = layout.unpack_from(data, position)
            body_start = position + layout.size
        topic_at = body_start + fixed[BODY_LENGTH]
        if fixed[BODY_LENGTH] < 0 or topic_at + 3 > end:
            raise _no_record(data, position)
        if magic == MAGIC_V1:
            topic_start = topic_at + 1
            properties_at = topic_start + data[topic_at]
        else:
            topic_start = topic_at + 2
            properties_at = topic_start + (data[topic_at] << 8 | data[topic_at + 1])
        if properties_at + 2 > end:
            raise _no_record(data, position)
        raw_topic = data[topic_start:properties_at]
        topic = topics.get(raw_topic)
        if topic is None:
            topic = topics[raw_topic] = str(raw_topic, "utf-8", "replace")
        properties_start = properties_at + 2
        properties_end = properties_start + (data[properties_at] << 8 | data[properties_at + 1])
        if properties_end > end:
            raise _no_record(data, position)
        message = MessageExt(
            data,
            fixed,
            topic,
            body_start,
            topic_at,
            properties_start,
            properties_end,
            broker_name,
        )
        if fixed[SYS_FLAG] & flags.NEED_UNWRAP and fixed[SYS_FLAG] & flags.INNER_BATCH:
            inner, size = _unwrap(message, UNPACKED_MAX - unpacked)
            messages += inner
            unpacked += size
        else:
            append(message)
        position = end
    return messages


def _no_record(data: bytes, position: int) -> RecordError:
    size, magic = BLANK.unpack_from(data, position)
    return RecordError(
        f"answer of {len(data)} bytes: at {position} a size of {size} and the magic "
        f"0x{magic & 0xFFFFFFFF:08X} are no record"
    )


def _unwrap(message: MessageExt, size_max: int) -> tuple[list[MessageExt], int]:
    """The messages of an inner batch, which the broker stored as one record, and their size.

    A body that holds none, or becomes too large, is one message, with a `body_error`: the queue has
    to go on.
    """
    try:
        body = decompress_body(message.stored_body, message.sys_flag, min(size_max, BODY_SIZE_MAX))
        room = max(size_max - len(body), 0) // UNPACKED_ITEM_SIZE
        items = decode_batch(body, count_max=min(room, ITEM_COUNT_MAX))
        base = int(message.get_property(p.INNER_BASE, "0"))
    except (FormatError, ValueError) as error:
        message._body_error = f"inner batch: {error}"
        return [message], 0
    made = []
    for number, item in enumerate(items):
        fixed = list(message._fixed)
        fixed[FLAG] = item.flag
        fixed[QUEUE_OFFSET] = base + number
        fixed[SYS_FLAG] &= ~(flags.NEED_UNWRAP | flags.INNER_BATCH | flags.COMPRESSED)
        fixed[BODY_LENGTH] = len(item.body)
        data = item.body + item.properties
        made.append(
            MessageExt(
                data,
                tuple(fixed),
                message.topic,
                0,
                len(item.body),
                len(item.body),
                len(data),
                message.broker_name,
            )
        )
    return made, len(body) + len(made) * UNPACKED_ITEM_SIZE


def encode_message_properties(properties: Mapping[str, str]) -> str:
    """The properties string of a message, checked.

    Raises:
        MQClientError: a name or value holds one of the separators, a name is empty, or the string
            is longer than brokers store.
    """
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]) + "\x02"
    count = len(properties)
    if text.count("\x01") != count or text.count("\x02") != max(count, 1) or "" in properties:
        raise MQClientError(f"properties: {p.check_properties(properties)}", MESSAGE_ILLEGAL)
    if len(text) * 4 > p.PROPERTIES_SIZE_MAX and len(text.encode()) > p.PROPERTIES_SIZE_MAX:
        raise MQClientError(
            f"properties have {len(text.encode())} bytes; at most {p.PROPERTIES_SIZE_MAX} may be",
            MESSAGE_ILLEGAL,
        )
    return text if count else ""
