"""Retention by topic: ``reserve.time``, and purging a topic's past.

A queue has a *floor*, a CommitLog offset: messages whose records start before it are not there for
readers, as if the log began at the floor. Whole ConsumeQueue files below it are deleted; records
stay where they are and leave with their segment, so the log is a log that RocketMQ reads, and a
queue whose numbers start again is not touched by a floor of its former life. Floors are kept in
``oberth.retention`` beside the log; without the file the past is readable again, nothing is lost.

``reserve.time`` is RocketMQ's topic attribute, in hours as its tiered store counts them:

    up to 0, or none    messages live as long as their segment: fileReservedTime
    less than that      they are not there for readers once they are older
    more than that      segments that hold younger ones are kept, unless the disk is too full

The broker's own topics, light queues and compaction topics have none.
With ``retentionWaitsForLake`` segments that an export does not have stay as well: `lakes`.
See docs/decisions/0030-retention.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from oberth.errors import IllegalNameError, StoreError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import is_lmq, is_system_topic
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue_store import ConsumeQueueStore, Queue, QueueKey
from oberth.store.files import FileSystem
from oberth.store.lakes import AwaitedLake, awaited_lake, make_directory

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "oberth.retention"
VERSION: Final = 1
RESERVE_TIME: Final = "reserve.time"
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
HOUR_MS: Final = 3_600_000


class RetentionState(msgspec.Struct):
    """The file's content: topic → queue id → CommitLog offset. Others than VERSION are ignored."""

    version: int = VERSION
    floors: dict[str, dict[int, int]] = {}


class Held(NamedTuple):
    """What keeps segments beyond their time: the oldest message that a topic reserves."""

    topic: str
    queue_id: int
    commit_log_offset: int


class Purged(NamedTuple):
    """One queue of a purge: its first readable offset before and after."""

    queue_id: int
    min_offset: int
    min_offset_after: int


def reserve_hours(topic: str, attributes: Mapping[str, str]) -> int | None:
    """The reserve.time of a topic; None where it has none."""
    text = attributes.get(RESERVE_TIME)
    if text is None or attributes.get(CLEANUP_POLICY) == COMPACTION:
        return None
    if is_system_topic(topic) or is_lmq(topic):
        return None
    try:
        hours = int(text)
    except ValueError:
        return None
    return hours if hours > 0 else None


def load_floors(files: FileSystem, root: str) -> dict[QueueKey, int]:
    """The floors that the file holds; none where it cannot be read."""
    try:
        data = files.read_file(f"{root}/{FILE_NAME}")
    except IsADirectoryError:
        return {}  # see `oberth.store.file_kinds`
    if data is None:
        return {}
    try:
        state = msgspec.json.decode(data, type=RetentionState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOG.error("%s/%s: %s; what was purged is readable again", root, FILE_NAME, error)
        return {}
    if state.version != VERSION:
        _LOG.error("%s/%s: version %d is not known", root, FILE_NAME, state.version)
        return {}
    return {
        (topic, queue_id): floor
        for topic, queues in state.floors.items()
        for queue_id, floor in queues.items()
    }


class Retention:
    """The floors of one store. Any thread; one change at a time."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: FileSystem,
        root: str,
        log: CommitLog,
        queues: ConsumeQueueStore,
        clock_ms: Callable[[], int],
        topic_attributes: Callable[[str], Mapping[str, str]],
        flush: Callable[[], int],
    ) -> None:
        self._config = config
        self._files = files
        self._root = root
        self._commit_log = log
        self._queues = queues
        self._clock_ms = clock_ms
        self._attributes = topic_attributes
        self._flush = flush
        self._lock = threading.Lock()  # one change of floors and of what follows them at a time

    def load(self) -> None:
        """Reads the floors; queues are found and not recovered yet."""
        self._queues.floors = load_floors(self._files, self._root)

    def apply(self) -> None:
        """Brings queues to their floors: after a start, which may come after a kill.

        A floor past the log's end is taken back to it, so that nothing new can be below it.
        """
        with self._lock:
            end = self._commit_log.max_offset
            floors = {key: min(floor, end) for key, floor in self._queues.floors.items()}
            if floors != self._queues.floors:
                self._save(floors)
            self._follow(floors)

    def follow_log(self, log_min_offset: int) -> None:
        """Queues lose what the log has lost, and floors that are behind it are forgotten."""
        with self._lock:
            self._queues.delete_expired(log_min_offset)
            floors = self._queues.floors
            kept = {key: floor for key, floor in floors.items() if floor > log_min_offset}
            if len(kept) < len(floors):
                self._save(kept)

    def reserved_hours(self, topic: str) -> int | None:
        """The topic's reserve.time; None where it has none."""
        return reserve_hours(topic, self._attributes(topic))

    def expire(self) -> int:
        """Hides messages that are older than their topic's reserve.time; how many queues moved."""
        with self._lock:
            changes = dict(self._expired_floors())
            if changes:
                self._save({**self._queues.floors, **changes})
                self._follow(changes)
        return len(changes)

    def expired_floors(self) -> dict[QueueKey, int]:
        """The floors that the next `expire` would set."""
        return dict(self._expired_floors())

    def held(self) -> Held | None:
        """The oldest message that a reserve.time longer than fileReservedTime keeps."""
        now_ms = self._clock_ms()
        found: Held | None = None
        for topic in self._queues.topics():
            hours = self.reserved_hours(topic)
            if hours is None or hours <= self._config.file_reserved_time_hours:
                continue
            for queue in self._queues.queues(topic):
                first = self._first_within(queue, now_ms - hours * HOUR_MS)
                offset = queue.log_offset_behind(first)
                if first < queue.max_offset and (found is None or offset < found.commit_log_offset):
                    found = Held(topic, queue.queue_id, offset)
        return found

    def awaited_lake(self) -> AwaitedLake | None:
        """The export that cleaning waits for: of several the one that is furthest behind."""
        setting = self._config.retention_waits_for_lake
        if not setting:
            return None
        make_directory(self._files, self._root)
        return awaited_lake(self._files, self._root, setting, self._commit_log.max_offset)

    def keep_from(self) -> int | None:
        """The position from which on segments stay whatever their age; None: none has to."""
        held, lake = self.held(), self.awaited_lake()
        kept = [] if held is None else [held.commit_log_offset]
        return min([*kept, *([] if lake is None else [lake.position])], default=None)

    def purge(self, topic: str, before: Mapping[int, int]) -> list[Purged]:
        """Hides the messages of queues below a queue offset, durably. Blocks.

        Args:
            topic: of the queues.
            before: queue id → the queue offset that becomes the first readable one; within the
                queue's bounds it is taken as it is, but a batch stays whole.

        Raises:
            IllegalNameError: the topic is the broker's own, or a compaction topic.
            StoreError: the disk did not take the log; nothing has changed.
        """
        if is_system_topic(topic):
            raise IllegalNameError(f"topic {topic!r} is the broker's own and cannot be purged")
        if self._attributes(topic).get(CLEANUP_POLICY) == COMPACTION:
            raise IllegalNameError(
                f"topic {topic!r} is a compaction topic: it keeps the newest message of every key"
            )
        with self._lock:
            changes: dict[QueueKey, int] = {}
            lows: dict[int, int] = {}
            for queue_id, offset in sorted(before.items()):
                queue = self._queues.find(topic, queue_id)
                if queue is None:
                    continue
                lows[queue_id] = queue.min_offset
                floor = queue.log_offset_behind(min(offset, queue.max_offset))
                if floor > self._floor(topic, queue_id):
                    changes[topic, queue_id] = floor
            if changes:
                self._save({**self._queues.floors, **changes})
                self._follow(changes)
            result = []
            for queue_id, low in lows.items():
                queue = self._queues.find(topic, queue_id)
                result.append(Purged(queue_id, low, low if queue is None else queue.min_offset))
        for each in result:
            if each.min_offset_after > each.min_offset:
                _LOG.warning(
                    "%s queue %d: purged from %d to %d",
                    topic, each.queue_id, each.min_offset, each.min_offset_after,
                )  # fmt: skip
        return result

    def offsets_before(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """For each queue of a topic the first offset stored at or after a time."""
        return {
            queue.queue_id: self._first_within(queue, timestamp_ms)
            for queue in self._queues.queues(topic)
        }

    def is_hidden(self, topic: str, queue_id: int, commit_log_offset: int) -> bool:
        """Whether a record lies below its queue's floor."""
        return commit_log_offset < self._queues.floors.get((topic, queue_id), 0)

    @property
    def has_floors(self) -> bool:
        """Whether anything is hidden at all."""
        return bool(self._queues.floors)

    def _floor(self, topic: str, queue_id: int) -> int:
        floor = self._queues.floors.get((topic, queue_id), 0)
        return max(floor, self._commit_log.min_offset)

    def _first_within(self, queue: Queue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the queue's end if there is none.

        What the search does not know (a filler, a record that is gone) counts as young.
        """
        low, high = queue.min_offset, queue.max_offset
        if low < 0 or low >= high:
            return max(low, 0)
        last = queue.latest_unit()
        if last is None:
            return low
        stored = self._commit_log.store_timestamp(last.commit_log_offset, last.record_size)
        if 0 <= stored < timestamp_ms:
            return high  # as it was before: what came meanwhile has not been looked at
        floor = self._floor(queue.topic, queue.queue_id)
        if isinstance(queue, BatchConsumeQueue):
            found = queue.first_stored_from(timestamp_ms, floor)
        else:
            found = queue.offset_by_time(timestamp_ms, self._commit_log.store_timestamp, floor)
        return min(max(found, low), high)

    def _expired_floors(self) -> Iterator[tuple[QueueKey, int]]:
        now_ms = self._clock_ms()
        for topic in self._queues.topics():
            hours = self.reserved_hours(topic)
            if hours is None:
                continue
            for queue in self._queues.queues(topic):
                first = self._first_within(queue, now_ms - hours * HOUR_MS)
                if first <= queue.min_offset:
                    continue
                floor = queue.log_offset_behind(first)
                if floor > self._floor(topic, queue.queue_id):
                    yield (topic, queue.queue_id), floor

    def _save(self, floors: dict[QueueKey, int]) -> None:
        """Writes the floors durably and has readers follow them from the next correction on.

        The log is made durable up to them first: after a power cut it must not end below a floor,
        or what comes then would be hidden.

        Raises:
            StoreError: the disk did not take the log; nothing has changed.
        """
        highest = max(floors.values(), default=0)
        if highest > self._commit_log.queue.flushed_where and highest > self._flush():
            raise StoreError(f"{self._root}: the disk does not have the CommitLog up to {highest}")
        state = RetentionState()
        for (topic, queue_id), floor in sorted(floors.items()):
            state.floors.setdefault(topic, {})[queue_id] = floor
        self._files.write_file(f"{self._root}/{FILE_NAME}", msgspec.json.encode(state))
        self._queues.floors = floors

    def _follow(self, keys: Mapping[QueueKey, int]) -> None:
        low = self._commit_log.min_offset
        for topic, queue_id in keys:
            self._queues.follow_floor(topic, queue_id, low)
