"""What goes into a store and what comes out of it: messages, filters, statuses, results.

RocketMQ: MessageExtBrokerInner, PutMessageResult, GetMessageResult and their status enums.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from oberth.formats.message import encode_host
from oberth.formats.message_id import offset_message_id
from oberth.formats.properties import encode_properties

LOCAL_HOST: Final = encode_host("127.0.0.1", 10911)


RECONSUME_TIMES_MAX: Final = (1 << 31) - 1


def next_reconsume_times(times: int) -> int:
    """One more, as far as a record can count; a producer may begin anywhere."""
    return min(times + 1, RECONSUME_TIMES_MAX)


class PutMessageStatus(enum.IntEnum):
    """What became of a put. RocketMQ: PutMessageStatus."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    PUT_TO_REMOTE_BROKER_FAIL = 11
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    WHEEL_TIMER_FLOW_CONTROL = 13
    WHEEL_TIMER_MSG_ILLEGAL = 14
    WHEEL_TIMER_NOT_ENABLE = 15


class GetMessageStatus(enum.IntEnum):
    """What became of a get. RocketMQ: GetMessageStatus."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


# The message lies in the log and has an offset, whatever else went wrong.
STORED: Final = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)


@dataclass(slots=True)
class MessageExtBrokerInner:
    """A message on its way into the store. RocketMQ: MessageExtBrokerInner.

    Attributes:
        topic: where it goes; delay and timer conversion may replace it.
        body: as it will be stored; never looked into.
        properties_raw: the encoded properties (``formats.properties``).
        queue_id: the queue of the topic.
        flag: the application's flag.
        sys_flag: see ``formats.sys_flag``; the host bits are set by the store.
        born_timestamp: ms, the client's clock.
        born_host: the client's address as stored (8 or 20 bytes).
        store_host: the broker's address as stored.
        reconsume_times: how often consumers sent it back.
        prepared_transaction_offset: of a commit: CommitLog offset of its half message.
        wait_store_ok: whether the put waits for flush and replicas (property WAIT).
        convert: False for what comes out of delay, timer or transaction delivery: its stored
            properties still name a delay, and must not delay it again.
    """

    topic: str
    body: bytes
    properties_raw: bytes = b""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = LOCAL_HOST
    store_host: bytes = LOCAL_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_ok: bool = True
    convert: bool = True

    @classmethod
    def of(
        cls,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int = 0,
        born_timestamp: int = 0,
    ) -> MessageExtBrokerInner:
        """A message from plain values; ``keys`` are separated by blanks."""
        entries = dict(properties or {})
        if keys:
            entries["KEYS"] = keys
        if tags:
            entries["TAGS"] = tags
        return cls(topic, body, encode_properties(entries), queue_id, born_timestamp=born_timestamp)


Append = Callable[[Sequence["MessageExtBrokerInner"]], list["PutMessageResult"]]
"""Takes messages as `MessageStore.append_messages` does."""


class MessageExtBatch(MessageExtBrokerInner):
    """A client's batch: ``body`` holds items (``formats.batch_body``), each becomes a record.

    All of them go to one queue, into one segment, or none does.
    """

    __slots__ = ()


class PutMessageResult:
    """What became of one put, and where the message lies if it was stored.

    ``offsets`` holds the CommitLog offset of each message of a batch. ``end_offset`` is where the
    last record ends: the put is durable when the log is flushed up to there.
    """

    __slots__ = (
        "commit_log_offset",
        "message_count",
        "offsets",
        "queue_offset",
        "record_size",
        "status",
        "store_host",
        "store_timestamp",
    )

    def __init__(
        self,
        status: PutMessageStatus,
        commit_log_offset: int = -1,
        record_size: int = 0,
        queue_offset: int = -1,
        store_timestamp: int = 0,
        store_host: bytes = LOCAL_HOST,
        message_count: int = 1,
        offsets: tuple[int, ...] | None = None,
    ) -> None:
        self.status = status
        self.commit_log_offset = commit_log_offset
        self.record_size = record_size
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.message_count = message_count
        self.offsets = offsets

    @property
    def ok(self) -> bool:
        """Whether the message is in the log. RocketMQ: isOk counts the late ones as stored too."""
        return self.status in STORED

    @property
    def end_offset(self) -> int:
        """Where the last record of the put ends."""
        return self.commit_log_offset + self.record_size

    @property
    def message_id(self) -> str:
        """offsetMsgId; those of a batch joined by commas."""
        if self.offsets is None:
            return offset_message_id(self.store_host, self.commit_log_offset)
        return ",".join(offset_message_id(self.store_host, offset) for offset in self.offsets)

    def __repr__(self) -> str:
        return (
            f"PutMessageResult({self.status.name}, at {self.commit_log_offset}, "
            f"{self.record_size} bytes, queue offset {self.queue_offset})"
        )


JUDGED_BYTES_MAX: Final = 64 * 1024
"""Bytes of long properties that one read judges, at some 60 ns each."""


class MessageFilter(Protocol):
    """Decides which messages a get returns. RocketMQ: MessageFilter."""

    @property
    def judges_tags(self) -> bool:
        """Whether `matches_consume_queue` can be False where there is no ext unit."""

    @property
    def judged_max(self) -> int:
        """How many records one read may have judged; the next read goes on after them."""

    @property
    def judged_bytes(self) -> int:
        """Bytes of long properties that were judged; a read ends behind JUDGED_BYTES_MAX more."""

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None) -> bool:
        """Judges by the ConsumeQueue alone; True means look at the record too."""

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """Judges by the whole record, ``size`` bytes from a position of a buffer on."""


class TagsFilter:
    """Messages whose tags code is one of these. A hash: the consumer compares the tags again."""

    __slots__ = ("codes",)
    judges_tags = True
    judged_max = 2**31 - 1
    judged_bytes = 0

    def __init__(self, codes: Collection[int]) -> None:
        self.codes = frozenset(codes)

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None) -> bool:
        """See MessageFilter; ``tags_code`` is the real one where an ext unit holds it."""
        del ext_unit
        return tags_code in self.codes

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """See MessageFilter; the hash was already compared."""
        del buffer, position, size
        return True


class GetMessageResult:
    """Records of one queue, ready for a socket.

    ``records`` are slices of the CommitLog without a copy; records that lie side by side share
    one. They stay valid as long as they are held, even if the segment is deleted meanwhile.
    """

    __slots__ = (
        "buffer_total_size",
        "commit_log_offsets",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "queue_offsets",
        "records",
        "status",
        "suggest_pulling_from_slave",
    )

    def __init__(
        self,
        status: GetMessageStatus,
        next_begin_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.records: list[memoryview] = []
        self.commit_log_offsets: list[int] = []
        self.queue_offsets: list[int] = []
        self.message_count = 0
        self.buffer_total_size = 0
        self.suggest_pulling_from_slave = False

    def release(self) -> None:
        """Lets go of the slices."""
        for record in self.records:
            record.release()
        self.records.clear()


class QueryMessageResult:
    """Records that an index query found, oldest first, and how far the index reaches."""

    __slots__ = (
        "commit_log_offsets",
        "index_last_update_offset",
        "index_last_update_timestamp",
        "records",
    )

    def __init__(
        self, index_last_update_timestamp: int = 0, index_last_update_offset: int = 0
    ) -> None:
        self.records: list[memoryview] = []
        self.commit_log_offsets: list[int] = []
        self.index_last_update_timestamp = index_last_update_timestamp
        self.index_last_update_offset = index_last_update_offset

    @property
    def buffer_total_size(self) -> int:
        """Bytes of all records."""
        return sum(len(record) for record in self.records)
