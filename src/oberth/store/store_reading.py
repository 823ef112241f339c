"""What a message store answers: messages of a queue, by key or place; the ends and times of queues.

Nothing here changes the store. Every method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from oberth.errors import (
    RecordError,
)
from oberth.formats.consume_queue import PRE_BLANK, UNIT, ConsumeQueueUnit
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    MessageExt,
    decode_record,
)
from oberth.formats.options import Line
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.message_reader import PlainStretch
from oberth.store.messages import (
    GetMessageResult,
    MessageFilter,
    QueryMessageResult,
)
from oberth.store.query import query_records
from oberth.store.queue_statistics import QueueStatistics, queue_statistics
from oberth.store.store_parts import StoreParts

GET_TOTAL_SIZE_MAX: Final = 128 << 20
_PRE_BLANK: Final = ConsumeQueueUnit(*UNIT.unpack(PRE_BLANK))
# Records without a unit that are stepped over to find one: some milliseconds.
_WALK_MAX: Final = 8192


class StoreReading(StoreParts):
    """The reading half of `oberth.store.message_store.MessageStore`."""

    # Messages

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None = None,
        *,
        max_total_size: int = GET_TOTAL_SIZE_MAX,
    ) -> GetMessageResult:
        """Messages of a queue from an offset on.

        Args:
            group: who asks; not used by the store itself.
            topic: of the queue.
            queue_id: of the queue.
            offset: the first queue offset wanted.
            max_msg_nums: at most so many messages.
            message_filter: what to leave out; None for nothing.
            max_total_size: at most so many bytes, but at least one message.
        """
        self._check_open()
        del group
        if self.compaction is not None and self.compaction.covers(topic):
            found = self.compaction.get_message(
                topic, queue_id, offset, max_msg_nums, message_filter, max_total_size
            )
            if found is not None:
                return found
        return self.reader.get_message(
            topic, queue_id, offset, max_msg_nums, message_filter, max_total_size
        )

    def plain_stretch(self, topic: str, queue_id: int, low: int, high: int) -> PlainStretch | None:
        """See MessageReader.plain_stretch."""
        self._check_open()
        if self.compaction is not None and self.compaction.covers(topic):
            return None
        return self.reader.plain_stretch(topic, queue_id, low, high)

    def is_resident(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> bool:
        """Whether `get_message` waits for no disk, as far as the system tells. Never waits."""
        return self.reader.residency.is_resident(topic, queue_id, offset, max_msg_nums)

    def resident_count(self, topic: str, queue_id: int, offset: int, count: int) -> int:
        """Of ``count`` messages of a queue, how many of the first can be read without the disk.

        All of them, or at least as many as `bring_in` brings in, if all that is looked at is in
        memory; 0 if the first is not. Never waits.
        """
        return self.reader.residency.resident_count(topic, queue_id, offset, count)

    @property
    def has_old_records(self) -> bool:
        """Whether any record may be no longer in memory."""
        return self.reader.residency.has_old

    def absent_records(self, records: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of some records, CommitLog offset and size each, that are not in memory."""
        return self.reader.residency.absent_records(records)

    def bring_in_records(self, records: Iterable[tuple[int, int]]) -> None:
        """Waits, without the GIL, until the system has read some records.

        Raises:
            OSError: the disk does not give them.
        """
        for offset, size in records:
            self.commit_log.bring_in(offset, offset + size)

    def bring_in(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> None:
        """Waits, without the GIL, until the system has read what `get_message` will read.

        Raises:
            OSError: the disk does not give it.
        """
        self.reader.residency.bring_in(topic, queue_id, offset, max_msg_nums)

    def wants_ahead(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether who reads here should have `bring_in_ahead` called. Never waits."""
        return self.reader.residency.wants_ahead(topic, queue_id, offset)

    def bring_in_ahead(self, topic: str, queue_id: int, offset: int) -> None:
        """Waits, without the GIL, until the system has read some thousand messages behind this one.

        Raises:
            OSError: the disk does not give them.
        """
        self.reader.residency.bring_in_ahead(topic, queue_id, offset)

    def bring_in_record(self, commit_log_offset: int) -> None:
        """The same for the record at an offset, if there is one."""
        self.commit_log.bring_in_record(commit_log_offset)

    def select_record(self, commit_log_offset: int) -> memoryview | None:
        """The raw record at an offset, or None."""
        self._check_open()
        return self.commit_log.select_record(commit_log_offset)

    def _select_brought_in(self, commit_log_offset: int) -> memoryview | None:
        # Else whoever sends the answer, the broker's loop, would wait for the disk.
        self.commit_log.bring_in_record(commit_log_offset)
        return self.commit_log.select_record(commit_log_offset)

    def look_message_by_offset(
        self, commit_log_offset: int, size: int | None = None
    ) -> MessageExt | None:
        """The message at a CommitLog offset; None if no record starts there."""
        self._check_open()
        record = (
            self.commit_log.select_record(commit_log_offset)
            if size is None
            else self.commit_log.select(commit_log_offset, size)
        )
        if record is None:
            return None
        try:
            return decode_record(record, at=commit_log_offset)
        except RecordError:
            return None

    def find_message(self, commit_log_offset: int) -> MessageExt | None:
        """The message at an offset that a peer names; None if no record starts there.

        A body can hold bytes that look like a record and name their own place. A place counts if
        the record's queue names it; before it has a unit, if the records lead there from the last
        one that has.
        """
        reached = self.reput.offset
        message = self.look_message_by_offset(commit_log_offset)
        if message is None:
            return None
        queue = self.queues.find(message.topic, message.queue_id)
        unit = queue.unit(message.queue_offset) if queue is not None else None
        if unit is not None and unit[:2] == (commit_log_offset, message.record_size):
            return message
        is_new = commit_log_offset >= reached and self._leads_to(reached, commit_log_offset)
        return message if is_new else None

    def find_shown_message(self, commit_log_offset: int) -> MessageExt | None:
        """The same for readers: nothing that consumers are not shown yet, see `confirm_offset`.

        What no replica and no disk has confirmed may be cut off, and nobody has read it then.
        """
        message = self.find_message(commit_log_offset)
        if message is None or commit_log_offset + message.record_size > self.confirm_offset:
            return None
        return message

    def _leads_to(self, start: int, offset: int) -> bool:
        """Whether going from record to record from one that starts at ``start`` comes by."""
        for _ in range(_WALK_MAX):
            if start >= offset:
                return start == offset
            head = self.commit_log.select(start, BLANK.size)
            if head is None:
                return False
            size, magic = BLANK.unpack(head)
            if magic == BLANK_MAGIC:
                start = self.commit_log.next_segment_offset(start)
            elif size > 0:
                start += size
            else:
                return False
        return False

    def query_message(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        index_type: str | None = None,
    ) -> QueryMessageResult:
        """Messages by key, unique key or (``index_type`` "T") tag, oldest first.

        The index compares hashes only: of two keys with the same hash both are found.
        """
        self._check_open()
        if self.index is None:
            return QueryMessageResult()
        found = query_records(
            self.index,
            self._select_brought_in,
            topic,
            key,
            max_num,
            begin_ms,
            end_ms,
            index_type,
        )
        result = QueryMessageResult(found.last_update_timestamp, found.last_update_offset)
        for record, offset in zip(found.records, found.offsets, strict=True):
            if not self._is_hidden(record, offset):
                result.records.append(record)
                result.commit_log_offsets.append(offset)
        return result

    def _is_hidden(self, record: memoryview, offset: int) -> bool:
        """Whether a record is below its queue's floor."""
        if not self.retention.has_floors:
            return False
        try:
            message = decode_record(record, at=offset)
        except RecordError:
            return False
        return self.retention.is_hidden(message.topic, message.queue_id, offset)

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        """One queue, or None."""
        self._check_open()
        return self.queues.find(topic, queue_id)

    def topics(self) -> list[str]:
        """Topics that have queues."""
        self._check_open()
        return self.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """The queues a topic has."""
        self._check_open()
        return sorted(self.queues.table.get(topic, {}))

    def readable_queue_ids(self, topic: str) -> list[int]:
        """Queues that may hold messages, also those of which only the compacted log is left."""
        ids = self.queue_ids(topic)
        if self.compaction is not None and self.compaction.covers(topic):
            ids = sorted({*ids, *self.compaction.queue_ids(topic)})
        return ids

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The first offset that can be read.

        As in RocketMQ a queue that does not exist is one without messages: 0, or -1 if the topic's
        queues hold batches.
        """
        queue = self.queue(topic, queue_id)
        low = -1 if queue is None else queue.min_offset
        if self.compaction is not None and self.compaction.covers(topic):
            kept = self.compaction.find(topic, queue_id)
            if kept is not None:
                return min(low, kept.min_offset) if low >= 0 else kept.min_offset
        return 0 if queue is None and not self.queues.is_batch_topic(topic) else low

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The offset after the last message; 0 if there is no such queue."""
        queue = self.queue(topic, queue_id)
        if queue is not None:
            return queue.max_offset
        if self.compaction is not None and self.compaction.covers(topic):
            kept = self.compaction.find(topic, queue_id)
            return 0 if kept is None else kept.next_offset
        return 0

    def queue_statistics(self, topic: str, queue_id: int) -> QueueStatistics | None:
        """Messages, bytes, offsets and times of a queue; None if there is no such queue.

        Reads all its units, some 0.1 us each: not for a thread that must not block.
        """
        queue = self.queue(topic, queue_id)
        return None if queue is None else queue_statistics(queue, self.commit_log.store_timestamp)

    def consume_queue_unit(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> ConsumeQueueUnit | None:
        """The unit at an offset of an ordinary queue."""
        queue = self.queue(topic, queue_id)
        if queue is None or isinstance(queue, BatchConsumeQueue):
            return None
        return queue.unit(queue_offset)

    def iterate_consume_queue(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> list[ConsumeQueueUnit]:
        """Up to ``count`` units of an ordinary queue from an offset on.

        The place of a message that the log has lost shows as a pre-blank.
        """
        queue = self.queue(topic, queue_id)
        if queue is None or isinstance(queue, BatchConsumeQueue) or count <= 0:
            return []
        raw = queue.units(queue_offset, count + 1)
        units = [ConsumeQueueUnit(*unit) for unit in UNIT.iter_unpack(raw)]
        for number, (unit, following) in enumerate(pairwise(units)):
            if unit.commit_log_offset == following.commit_log_offset:
                units[number] = _PRE_BLANK  # it stood in for a message that is gone
        return units[:count]

    def commit_log_offset_in_queue(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Where the message at a queue offset lies; 0 if there is none."""
        unit = self.consume_queue_unit(topic, queue_id, queue_offset)
        return 0 if unit is None else unit.commit_log_offset

    def message_store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message at a queue offset was stored, ms; -1 if there is none."""
        unit = self.consume_queue_unit(topic, queue_id, queue_offset)
        if unit is None or not unit.is_message:
            return -1
        return self.commit_log.store_timestamp(unit.commit_log_offset, unit.record_size)

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored, ms; -1 if there is none."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return -1
        unit = queue.earliest_unit()
        if unit is None:
            return -1
        return self.commit_log.store_timestamp(unit.commit_log_offset, unit.record_size)

    @property
    def earliest_message_time_in_store(self) -> int:
        """When the log's first message was stored, ms; -1 if it is empty."""
        record = self.commit_log.select_record(self.commit_log.min_offset)
        if record is None:
            return -1
        return self.commit_log.store_timestamp(self.commit_log.min_offset, len(record))

    def offset_in_queue_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER"
    ) -> int:
        """The queue offset at a store time, as RocketMQ answers it.

        ``boundary`` LOWER: the first message at or after the time. UPPER: the last at or before it.
        Of batches: see `offset_by_time.batch_offset_at_boundary`. A queue that does not exist is
        one without messages: 0, or -1 if the topic's queues hold batches.
        """
        if self.compaction is not None and boundary != "UPPER" and self.compaction.covers(topic):
            kept = self.compaction.find(topic, queue_id)
            if kept is not None:
                return kept.offset_by_time(timestamp_ms)
        queue = self.queue(topic, queue_id)
        if queue is None:
            return -1 if self.queues.is_batch_topic(topic) else 0
        offset = queue.offset_by_time(
            timestamp_ms,
            self.commit_log.store_timestamp,
            self.commit_log.min_offset,
            upper=boundary == "UPPER",
            by_file_time=self.config.line is Line.V4_9,
        )
        if self.config.line is Line.V4_9:
            return offset
        return min(max(offset, queue.min_offset), queue.max_offset)
