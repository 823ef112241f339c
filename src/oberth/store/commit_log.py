"""The CommitLog: every message of every topic, appended to one stream.

Puts go through one lock. A burst of messages is encoded record by record and copied into the
segment in one piece, so what a put costs beyond its bytes is shared by the burst. Queue offsets are
handed out under the same lock; they advance only for what was really written.

What this does not promise: an appended message is in the page cache (or in a write buffer), not on
the disk. `oberth.store.flush` knows when it is.

RocketMQ: CommitLog, MessageExtEncoder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from zlib import crc32

from oberth.errors import StoreFullError
from oberth.formats import properties as p
from oberth.formats.delay_level import parse_delay_levels
from oberth.formats.message import (
    BLANK_SIZE_MIN,
    CRC_MASK,
    FIXED,
    HOST_BITS,
    MAGIC_V1,
    STORE_TIMESTAMP_END_MAX,
    stated_size,
    store_timestamp_at,
)
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import LMQ_PREFIX, LMQ_QUEUE_ID
from oberth.formats.options import Line
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.formats.sys_flag import INNER_BATCH, TRANSACTION_MASK
from oberth.formats.torn_record import LIKE_A_LOST_SECTOR
from oberth.kernels.arguments import TALLY_OFFSET
from oberth.kernels.sends import PlainSends, Slot
from oberth.store.burst import (
    ILLEGAL,
    SEPARATOR,
    Burst,
    Topic,
    append_after_stale,
    erase_stale,
)
from oberth.store.durations import Durations
from oberth.store.files import Clock, FileSystem
from oberth.store.mapped_file import LONG_SIZE
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from oberth.store.put_hooks import convert_delay
from oberth.store.running_flags import RunningFlags

# A record may exceed maxMessageSize by this much (topic, properties, header).
RECORD_OVERHEAD_MAX: Final = 64 * 1024
# Lock times beyond this are taken for a clock that jumped, not for a busy page cache.
_LOCK_TIME_ABSURD_MS: Final = 10_000_000

_PUT_OK: Final = PutMessageStatus.PUT_OK
_FIXED_V4_PACK: Final = FIXED[0].pack
# The two length bytes of a properties string: a look-up costs a third of int.to_bytes.
_LENGTHS: Final = [number.to_bytes(2, "big") for number in range(2048)]

_T = TypeVar("_T")
TopicAttributes = Callable[[str], Mapping[str, str]]
PutHook = Callable[[MessageExtBrokerInner], MessageExtBrokerInner | PutMessageStatus]


class CommitLog:
    """The log. `append` is called from any thread; everything else follows its own docstring."""

    def __init__(
        self,
        files: FileSystem,
        config: MessageStoreConfig,
        queue: MappedFileQueue,
        flags: RunningFlags,
        clock_ms: Clock,
        topic_attributes: TopicAttributes,
    ) -> None:
        self.files = files
        self.config = config
        self.queue = queue
        self.flags = flags
        self.put_hooks: list[PutHook] = []
        self.delays_ms = parse_delay_levels(config.message_delay_level)
        self._clock_ms = clock_ms
        self._topic_attributes = topic_attributes
        self.topics: dict[str, Topic] = {}
        self._light_queue_count = 0
        self._put_lock = threading.Lock()  # guards everything that an append changes
        self._locked_since = 0.0
        self.append_times = Durations()
        # Store times never go back, whatever the clock does: recovery tells stale records by them.
        self.last_store_timestamp = 0
        self.erase_to = 0
        self.append_crc = config.enabled_append_prop_crc
        self.lmq = config.enable_lmq or (config.line is Line.V4_9 and config.enable_multi_dispatch)
        # Whether a message needs more than the plain path.
        self._special = self.append_crc or self.lmq

    # Offsets and reading

    @property
    def record_max(self) -> int:
        """The largest record that is stored, bytes.

        RocketMQ answers PUT_OK for one that fits no segment and loses it; here it is illegal.
        """
        limit = self.config.max_message_size + RECORD_OVERHEAD_MAX
        return min(limit, self.queue.file_size - BLANK_SIZE_MIN)

    @property
    def min_offset(self) -> int:
        """The oldest offset that can be read."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Up to where records can be read."""
        return self.queue.max_offset

    def select(self, offset: int, size: int) -> memoryview | None:
        """The bytes [offset, offset + size) of one segment; None if they cannot be read."""
        segment = self.queue.find(offset)
        return None if segment is None else segment.select(offset - segment.start_offset, size)

    def is_resident(self, start: int, end: int) -> bool:
        """Whether reading [start, end), which lies in one segment, waits for no disk."""
        segment = self.queue.find(start)
        return segment is None or segment.is_resident(
            start - segment.start_offset, end - segment.start_offset
        )

    def bring_in(self, start: int, end: int) -> None:
        """Reads [start, end), which lies in one segment, into the page cache, and waits."""
        segment = self.queue.find(start)
        if segment is not None:
            segment.bring_in(start - segment.start_offset, end - segment.start_offset)

    def bring_in_record(self, offset: int) -> None:
        """The same for the record at an offset, if there is one."""
        segment = self.queue.find(offset)
        if segment is None or not segment.hold():
            return
        try:
            head = segment.read(offset - segment.start_offset, 4)
        finally:
            segment.release()
        size = stated_size(head) if len(head) == 4 else 0
        if 0 < size <= self.record_max:
            self.bring_in(offset, offset + size)

    def select_record(self, offset: int) -> memoryview | None:
        """The record at an offset, as long as it says; None if there is nothing to read."""
        segment = self.queue.find(offset)
        if segment is None:
            return None
        position = offset - segment.start_offset
        head = segment.select(position, 4)
        if head is None:
            return None
        size = stated_size(head)
        return segment.select(position, size) if size > 0 else None

    def store_timestamp(self, offset: int, size: int) -> int:
        """Store time of the record at an offset; -1 where the log does not reach."""
        segment = self.queue.find(offset)
        if segment is None or not segment.is_available:
            return -1
        record = segment.select(offset - segment.start_offset, size)
        if record is None or len(record) < STORE_TIMESTAMP_END_MAX:
            return -1
        return store_timestamp_at(record, 0)

    def next_segment_offset(self, offset: int) -> int:
        """Where the segment after the one of ``offset`` starts."""
        size = self.queue.file_size
        return offset + size - offset % size

    # Queue offsets

    def set_queue_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Replaces the table (topic, queue) → next offset. RocketMQ: setTopicQueueTable."""
        with self._put_lock:
            for topic in self.topics.values():
                topic.offsets.clear()
            for (name, queue_id), offset in offsets.items():
                self._topic(name).offsets[queue_id] = offset
            self._light_queue_count = sum(
                1
                for name, topic in self.topics.items()
                if topic.offsets and name.startswith(LMQ_PREFIX)
            )

    def queue_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of a queue gets."""
        entry = self.topics.get(topic)
        return 0 if entry is None else entry.offsets.get(queue_id, 0)

    def queue_ends(self) -> list[tuple[str, int, int]]:
        """Topic, queue and next offset of every queue that was put to."""
        return [
            (name, queue_id, offset)
            for name, topic in list(self.topics.items())
            for queue_id, offset in list(topic.offsets.items())
        ]

    def retire_queue(
        self, topic: str, queue_id: int, end: int, delete: Callable[[], object]
    ) -> bool:
        """Has a queue's files deleted, unless something was put to it meanwhile.

        Its numbers go on, but for a light queue's: that one is forgotten with its name, which
        makes room for others, and begins at 0.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            end: where the files of the queue end. A record that is put and not yet dispatched has
                this number or a later one; to hand it out again would lose one of the two.
            delete: deletes the files; nothing is put before it returns.
        """
        with self._put_lock:
            entry = self.topics.get(topic)
            if entry is None or entry.offsets.get(queue_id) != end:
                return False
            if topic.startswith(LMQ_PREFIX):
                del entry.offsets[queue_id]
                if not entry.offsets:
                    del self.topics[topic]
                    self._light_queue_count -= 1
            delete()
            return True

    def retire_topic(
        self, topic: str, keep: Callable[[str], bool], delete: Callable[[], object]
    ) -> bool:
        """Has a topic's queues deleted and forgets it, unless it is to be kept by now."""
        with self._put_lock:
            if keep(topic):
                return False
            self.topics.pop(topic, None)
            delete()
            return True

    def refresh_topic(self, topic: str) -> None:
        """Reads a topic's attributes again, keeping its offsets."""
        with self._put_lock:
            old = self.topics.pop(topic, None)
            if old is not None:
                self._topic(topic).offsets = old.offsets

    def _topic(self, name: str) -> Topic:
        entry = self.topics.get(name)
        if entry is None:
            entry = self.topics[name] = Topic(name, self.config, self._topic_attributes(name))
        return entry

    # The put lock's age

    def lock_time_ms(self) -> float:
        """How long the put lock has been held, ms; 0 if it is free."""
        since = self._locked_since
        held = (time.monotonic() - since) * 1000 if since else 0.0
        return held if held < _LOCK_TIME_ABSURD_MS else 0.0

    def is_os_page_cache_busy(self) -> bool:
        """Whether a put has held the lock for suspiciously long."""
        return self.lock_time_ms() > self.config.os_page_cache_busy_timeout_ms

    # Appending

    def set_end(self, offset: int, erase_to: int = 0) -> None:
        """Says where the log ends, after recovery.

        Args:
            offset: the new end.
            erase_to: up to where an earlier life left bytes behind the end. They are overwritten
                with zeros before the next append: a record among them could otherwise be taken for
                a message when the log has grown up to it.
        """
        self.queue.set_where(offset)
        self.queue.truncate_dirty_files(offset)
        self.erase_to = erase_to

    def cut(self, offset: int) -> None:
        """Ends the log at an offset while it is open; what lay behind is gone. May block.

        The caller sees to it that nobody syncs the log meanwhile.

        Raises:
            StoreFullError: the disk is full. The log has been cut all the same.
        """
        with self._put_lock:
            self.set_end(offset, max(self.erase_to, self.queue.max_offset))
            segment = self.queue.last()
            if segment is not None:
                erase_stale(self, segment, segment.wrote_position)

    def append(self, messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        """Appends messages, each on its own, in order; returns a result for each.

        Nothing is flushed. A message that is refused does not keep the others from being stored;
        when the disk is full, those from that point on get CREATE_MAPPED_FILE_FAILED. Where a
        message raises (a hook's exception, a field out of range), those before it are stored.
        """
        refused = self._refusal()
        if refused is not None:
            return [PutMessageResult(refused)] * len(messages)
        results: list[PutMessageResult] = []
        with self._put_lock:
            since = self._locked_since = time.monotonic()
            try:
                self._append(messages, results)
            finally:
                self._locked_since = 0.0
                self.append_times.add(time.monotonic() - since)
        return results

    def append_plain(self, sends: PlainSends[_T], slots: Sequence[Slot[_T]]) -> bool:
        """Appends what was read of plain sends, in one call of a kernel.

        Args:
            sends: as `PlainSends.read` left it.
            slots: its touched queues.

        Returns:
            False: nothing has changed, and `append` is to say what becomes of each message.
        """
        if self._refusal() is not None or self._special or self.put_hooks:
            return False
        with self._put_lock:
            since = self._locked_since = time.monotonic()
            try:
                return self._append_plain(sends, slots)
            finally:
                self._locked_since = 0.0
                self.append_times.add(time.monotonic() - since)

    def _append_plain(self, sends: PlainSends[_T], slots: Sequence[Slot[_T]]) -> bool:
        segment = self.queue.last()
        if segment is None or segment.write_buffer is not None or self.erase_to:
            return False
        position = segment.wrote_position
        end = position + sends.size
        if end > min(segment.file_size - BLANK_SIZE_MIN, len(segment.buffer)):
            return False
        numbers = sends.slots
        touched = []
        for slot in slots:
            topic = self.topics.get(slot.topic)
            if topic is None or topic.refused or topic.is_batch or topic.magic != MAGIC_V1:
                return False
            touched.append(topic.offsets)
            numbers[slot.place + TALLY_OFFSET] = topic.offsets.get(slot.queue_id, 0)
        try:
            segment.reserve(end)
        except (OSError, StoreFullError):
            return False
        now = self._now()
        if sends.size < LONG_SIZE:
            sends.write(segment.buffer, position, segment.start_offset + position, now)
            segment.wrote_position = end
        else:
            append = partial(append_after_stale, self, segment)
            try:
                sends.write_long(append, segment.start_offset + position, now)
            except (OSError, StoreFullError):
                return False
        for slot, offsets in zip(slots, touched, strict=True):
            offsets[slot.queue_id] = numbers[slot.place + TALLY_OFFSET]
        segment.store_timestamp = now
        return True

    def append_each(
        self,
        messages: Sequence[MessageExtBrokerInner],
        outcomes: list[PutMessageResult | Exception],
    ) -> None:
        """Appends messages of several callers in one burst: what one of them raises is its outcome.

        Args:
            messages: one of each caller.
            outcomes: empty; gets a result, or the exception, for each, in order. Where the whole
                call is interrupted (KeyboardInterrupt), it holds those of the messages up to there.
        """
        refused = self._refusal()
        if refused is not None:
            outcomes += [PutMessageResult(refused) for _ in messages]
            return
        with self._put_lock:
            since = self._locked_since = time.monotonic()
            try:
                while len(outcomes) < len(messages):
                    try:
                        self._append(messages[len(outcomes) :] if outcomes else messages, outcomes)
                    except Exception as error:  # noqa: BLE001 - raised again where it belongs
                        outcomes.append(error)
            finally:
                self._locked_since = 0.0
                self.append_times.add(time.monotonic() - since)

    def _refusal(self) -> PutMessageStatus | None:
        """Why nothing is taken now, if so."""
        if not self.flags.is_writeable:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self._locked_since and self.is_os_page_cache_busy():
            return PutMessageStatus.OS_PAGE_CACHE_BUSY
        return None

    def _append(
        self,
        messages: Sequence[MessageExtBrokerInner],
        results: list[PutMessageResult] | list[PutMessageResult | Exception],
    ) -> None:
        """Adds a result for each message to ``results``; where one raises, for those before it."""
        writer = Burst(self, results, self._now())
        try:
            self._encode_all(messages, writer)
        finally:
            writer.write()

    def _now(self) -> int:
        now = self._clock_ms()
        if now < self.last_store_timestamp:
            now = self.last_store_timestamp
        self.last_store_timestamp = now
        return now

    def _encode_all(self, messages: Sequence[MessageExtBrokerInner], writer: Burst) -> None:
        """The hot path: about 2 us a message in a burst, half of it packing the header."""
        now = writer.now
        results = writer.results
        put_hooks = self.put_hooks
        body_max = self.config.max_message_size
        record_max = self.record_max
        topics = self.topics
        special = self._special
        segment_room = writer.room
        parts = writer.parts
        for message in messages:
            topic_name = message.topic
            raw = message.properties_raw
            if put_hooks or (message.convert and (b"DELAY" in raw or b"TIMER_D" in raw)):
                changed = self._changed(message, now)
                if isinstance(changed, PutMessageStatus):
                    results.append(PutMessageResult(changed))
                    continue
                message = changed
                topic_name = message.topic
                raw = message.properties_raw
            topic = topics.get(topic_name)
            if topic is None:
                topic = self._topic(topic_name)
            body = message.body
            # An untyped caller may well pass None; RocketMQ has a status for that.
            if topic.refused or body is None or len(body) > body_max:  # type: ignore[redundant-expr]
                results.append(PutMessageResult(ILLEGAL))
                continue
            sys_flag = message.sys_flag
            born_host = message.born_host
            store_host = message.store_host
            if (
                special
                or len(born_host) != 8
                or len(store_host) != 8
                or sys_flag & (HOST_BITS | TRANSACTION_MASK | INNER_BATCH)
                or topic.is_batch
                or b"INNER_" in raw
                or LIKE_A_LOST_SECTOR in raw
                or type(message) is not MessageExtBrokerInner
            ):
                writer.append_special(message, topic)
                segment_room = writer.room
                continue
            if raw[-1:] == b"\0":
                raw += SEPARATOR  # a record that ends in a zero looks like a torn one
            properties_length = len(raw)
            if properties_length > PROPERTIES_SIZE_MAX:
                results.append(PutMessageResult(self.properties_status()))
                continue
            body_length = len(body)
            size = topic.overhead + body_length + properties_length
            if size > record_max:
                results.append(PutMessageResult(ILLEGAL))
                continue
            if size > segment_room and not writer.make_room(size):
                writer.refuse()
                segment_room = writer.room  # none: the segment may have been ended
                continue
            offset = writer.offset
            queue_id = message.queue_id
            offsets = topic.offsets
            queue_offset = offsets.get(queue_id, 0)
            # Before the number is taken: a field out of range raises here.
            head = _FIXED_V4_PACK(
                size,
                topic.magic,
                crc32(body) & CRC_MASK,
                queue_id,
                message.flag,
                queue_offset,
                offset,
                sys_flag,
                message.born_timestamp,
                born_host,
                now,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            )
            offsets[queue_id] = queue_offset + 1
            parts += (
                head,
                body,
                topic.encoded,
                _LENGTHS[properties_length]
                if properties_length < 2048
                else properties_length.to_bytes(2, "big"),
                raw,
            )
            writer.offset = offset + size
            writer.room = segment_room = writer.room - size
            results.append(PutMessageResult(_PUT_OK, offset, size, queue_offset, now, store_host))

    def _changed(
        self, message: MessageExtBrokerInner, now: int
    ) -> MessageExtBrokerInner | PutMessageStatus:
        """The message for its delay's topic, then as the hooks make it; or why it is refused."""
        if message.convert and type(message) is MessageExtBrokerInner:
            converted = convert_delay(message, self.config, len(self.delays_ms) - 1, now)
            if isinstance(converted, PutMessageStatus):
                return converted
            message = converted
        for hook in self.put_hooks:
            outcome = hook(message)
            if isinstance(outcome, PutMessageStatus):
                return outcome
            message = outcome
        return message

    def properties_status(self) -> PutMessageStatus:
        """What a properties string beyond the limit is answered with."""
        if self.config.line is Line.V4_9:
            return ILLEGAL
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED

    # Light message queues: further queues that one record belongs to

    def light_queues(self, raw: bytes) -> list[str]:
        """The queues that INNER_MULTI_DISPATCH names."""
        names = p.find_property(raw, b"INNER_MULTI_DISPATCH")
        if not names or names.isspace():
            return []
        return str(names, "utf-8", "replace").split(",")

    def has_room_for_light_queues(self, names: Sequence[str]) -> bool:
        """Whether the new ones among these stay below maxLmqConsumeQueueNum."""
        new = sum(
            1
            for name in set(names)
            if name.startswith(LMQ_PREFIX)
            and (name not in self.topics or not self.topics[name].offsets)
        )
        return not new or self._light_queue_count + new <= self.config.max_lmq_consume_queue_num

    def light_queue_offsets(self, names: Sequence[str], queue_id: int) -> list[int | None]:
        """The offset a record gets in each queue; None for what 5.x gives no number."""
        numbers: list[int | None] = []
        for name in names:
            if name.startswith(LMQ_PREFIX):
                numbers.append(self._topic(name).offsets.get(LMQ_QUEUE_ID, 0))
            elif self.config.line is Line.V4_9:
                numbers.append(self._topic(name).offsets.get(queue_id, 0))
            else:
                numbers.append(None)
        return numbers

    def advance_light_queues(
        self, names: Sequence[str], numbers: Sequence[int | None], queue_id: int
    ) -> None:
        """Counts a record in the queues it belongs to besides its own."""
        for name, number in zip(names, numbers, strict=True):
            if number is None:
                continue
            light = name.startswith(LMQ_PREFIX)
            offsets = self._topic(name).offsets
            if light and not offsets:
                self._light_queue_count += 1
            own = LMQ_QUEUE_ID if light else queue_id
            offsets[own] = max(offsets.get(own, 0), number + 1)

    # HA

    def append_raw(self, offset: int, *parts: bytes | memoryview) -> bool:
        """Appends bytes of a master's log at their own offset; False if they do not join on.

        Raises:
            OSError: the disk failed.
            StoreFullError: the disk is full.
        """
        size = sum(map(len, parts))
        with self._put_lock:
            segment = self.queue.last_or_create(offset)
            if segment is None:
                return False
            if segment.wrote_position == 0 and segment is self.queue.segments[0]:
                position = offset - segment.start_offset
                segment.set_positions(position)
                if position:
                    self.queue.set_where(offset)
            if segment.start_offset + segment.wrote_position != offset:
                return False
            if size > segment.file_size - segment.wrote_position:
                return False
            if size < len(parts) * LONG_SIZE:
                parts = (b"".join(parts),)
            append_after_stale(self, segment, *parts)
            return True
