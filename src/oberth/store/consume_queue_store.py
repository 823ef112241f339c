"""The table of all queues: topic and queue id to ConsumeQueue or BatchConsumeQueue.

Which kind a topic's queues are is told by its attribute ``queue.type``; the directories on disk
must agree. What is kept in memory for a queue that nobody uses is a few hundred bytes, and neither
a file nor a mapping. RocketMQ: ConsumeQueueStore.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from oberth.errors import StoreCorruptError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import (
    check_stored_topic,
    is_lmq,
    is_stored_topic,
    is_system_topic,
)
from oberth.formats.paths import (
    BATCH_CONSUME_QUEUE,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    queue_number,
)
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.consume_queue import ConsumeQueue, QueueExtent
from oberth.store.consume_queue_ext import ConsumeQueueExt
from oberth.store.files import FileSystem
from oberth.store.sync_guard import SyncGuard
from oberth.store.tail_stream import OPEN_FILES_MAX, FilePool

_LOG: Final = logging.getLogger(__name__)

Queue = ConsumeQueue | BatchConsumeQueue
QueueKey = tuple[str, int]

QUEUE_TYPE_ATTRIBUTE: Final = "queue.type"
BATCH_QUEUE_TYPE: Final = "BatchCQ"
REBUILD_HINT: Final = (
    "if the settings of sizes are right, `oberth store rebuild` makes queues and index anew"
)
# Of the CommitLog offset that units of both kinds begin with.
_OFFSET_SIZE: Final = 8


class QueueFinding(NamedTuple):
    """Something that is wrong with a queue's files and must be built again from the CommitLog."""

    topic: str
    queue_id: int
    reason: str
    rebuild_from: int
    """CommitLog offset behind which the queue's units are missing."""


class ConsumeQueueStore:
    """All queues of a store. One thread dispatches; any thread may read, flush or clean."""

    def __init__(
        self,
        files: FileSystem,
        config: MessageStoreConfig,
        *,
        writable: bool = True,
        topic_attributes: Callable[[str], Mapping[str, str]] | None = None,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self.files = files
        self.config = config
        self.syncs = SyncGuard(f"{config.store_path_root_dir}: queues")
        self.pool = FilePool(
            files, writable=writable, open_files_max=open_files_max, watch=self.syncs.watch
        )
        self.table: dict[str, dict[int, Queue]] = {}
        self._attributes = topic_attributes
        self._lock = threading.Lock()  # guards changes of table
        # Counts what makes queues shorter: a holder of their ends must look again.
        self.generation = 0
        # Queues in whose files an earlier life may have left units past their end: those that were
        # cut, and those whose end was looked for because no clean stop noted it down.
        self._stale: dict[Queue, None] = {}
        self._corrected_for = -1
        # Queues of a wrong kind that another process made, see `refresh`.
        self._left_out: set[QueueKey] = set()
        # Where queues begin later than the log; replaced as a whole, see `retention`.
        self.floors: dict[QueueKey, int] = {}

    # Opening and closing

    def load(self) -> list[QueueFinding]:
        """Finds the queues on disk. `recover` is to follow.

        Returns what must be rebuilt because files are missing in between.

        Raises:
            StoreCorruptError: a file of the wrong size, or a queue of the other kind than its
                topic's attribute says.
        """
        findings: list[QueueFinding] = []
        for kind in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE):
            root = f"{self.config.store_path_root_dir}/{kind}"
            for topic in self.files.list(root):
                if not is_stored_topic(topic):
                    continue
                for name in self.files.list(f"{root}/{topic}"):
                    queue_id = queue_number(name)
                    if queue_id is None:
                        continue
                    queue = self._load_queue(kind, topic, queue_id)
                    try:
                        trouble = queue.load()
                    except StoreCorruptError as error:
                        raise StoreCorruptError(f"{error}; {REBUILD_HINT}") from error
                    if trouble is not None:
                        queue.recover()
                        findings.append(
                            QueueFinding(topic, queue_id, trouble, queue.max_physic_offset)
                        )
        return findings

    def _load_queue(self, kind: str, topic: str, queue_id: int) -> Queue:
        queue = self._make(topic, queue_id, batch=kind == BATCH_CONSUME_QUEUE)
        if self.find(topic, queue_id) is not None or (
            self._attributes is not None and self.is_batch_topic(topic) != queue.is_batch
        ):
            raise StoreCorruptError(
                f"{queue.stream.directory}: topic {topic} has queues of the "
                f"{'simple' if queue.is_batch else 'batch'} kind; `oberth store rebuild` makes "
                "queues and index anew"
            )
        self.table.setdefault(topic, {})[queue_id] = queue
        return queue

    def is_batch_topic(self, topic: str) -> bool:
        """Whether the topic's queues hold batches."""
        attributes = self._attributes(topic) if self._attributes is not None else {}
        return attributes.get(QUEUE_TYPE_ATTRIBUTE) == BATCH_QUEUE_TYPE

    def _make(self, topic: str, queue_id: int, *, batch: bool) -> Queue:
        config = self.config
        root = config.store_path_root_dir
        if batch:
            return BatchConsumeQueue(
                self.pool,
                f"{root}/{BATCH_CONSUME_QUEUE}/{topic}/{queue_id}",
                topic,
                queue_id,
                config.batch_consume_queue_file_size,
            )
        ext = None
        if config.enable_consume_queue_ext:
            ext = ConsumeQueueExt(
                self.pool,
                f"{root}/{CONSUME_QUEUE_EXT}/{topic}/{queue_id}",
                config.mapped_file_size_consume_queue_ext,
            )
        return ConsumeQueue(
            self.pool,
            f"{root}/{CONSUME_QUEUE}/{topic}/{queue_id}",
            topic,
            queue_id,
            config.consume_queue_file_size,
            ext=ext,
        )

    def recover(
        self,
        extents: Mapping[QueueKey, QueueExtent] | None = None,
        *,
        extents_log_min: int = -1,
        redispatch_from: int | None = None,
    ) -> int:
        """Finds where every queue ends; returns max_physic_offset.

        Args:
            extents: the `snapshot` of a clean shutdown; a queue whose files fit is not read.
            extents_log_min: the CommitLog's min offset that those extents are corrected for.
            redispatch_from: after a crash, from where on records are dispatched again. What the
                queues hold of them is cut off, so that no hole of a power cut stays in between.
        """
        self.generation += 1
        known = extents or {}
        missing = False
        for topic, queues in self.table.items():
            for queue_id, queue in queues.items():
                extent = known.get((topic, queue_id))
                missing = missing or extent is None
                queue.recover(extent)
                if extent is None or queue.max_offset != extent.max_offset:
                    self._stale[queue] = None
                late = extent is not None and queue.min_offset > extent.min_offset
                if extent is not None and late and self.pool.writable:
                    # Its first files are gone, and nothing can be put before what is left.
                    _LOG.error(
                        "%s begins at %d and not at %d any more, it is built again from the log",
                        queue.stream.directory, queue.min_offset, extent.min_offset,
                    )  # fmt: skip
                    queue.destroy()
        self._corrected_for = -1 if missing else extents_log_min
        if redispatch_from is not None:
            self.truncate(redispatch_from)
        return self.max_physic_offset

    def drop_headless(self, log_min_offset: int) -> None:
        """Deletes queues whose first files may be gone, so that dispatch of the log makes them.

        A file goes when all its units have expired. One that is left and begins with a record that
        is not the log's first may follow one that had not; the log tells.
        """
        for queue in self.all_queues() if self.pool.writable else ():
            unit = queue.unit(queue.min_offset) if queue.stream.first_start else None
            if unit is not None and unit.commit_log_offset > log_min_offset:
                _LOG.info("%s has lost its first files, it is built again from the log", queue)
                queue.destroy()

    def cut_before_zeros(self) -> None:
        """Ends queues before units that a lost page took: dispatch of the log makes them anew."""
        self.generation += 1
        for queue in self.all_queues() if self.pool.writable else ():
            if count := queue.cut_before_zeros():
                _LOG.warning(
                    "%s: a unit of zeros is no message, %d units from there on are built again "
                    "from the log",
                    queue.stream.directory, count,
                )  # fmt: skip

    def close(self) -> None:
        """Closes the files. What is not flushed is not written."""
        self.pool.close()
        self.table = {}

    # Finding

    def find(self, topic: str, queue_id: int) -> Queue | None:
        """The queue, or None."""
        queues = self.table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def find_or_create(self, topic: str, queue_id: int) -> Queue:
        """The queue, made if it is not there yet. RocketMQ: findOrCreateConsumeQueue.

        Raises:
            IllegalNameError: no directory can be named after the topic.
        """
        queues = self.table.get(topic)
        queue = None if queues is None else queues.get(queue_id)
        return self._create(topic, queue_id) if queue is None else queue

    def _create(self, topic: str, queue_id: int) -> Queue:
        check_stored_topic(topic)
        with self._lock:
            queue = self.table.setdefault(topic, {}).get(queue_id)
            if queue is None:
                queue = self._make(topic, queue_id, batch=self.is_batch_topic(topic))
                # A fresh dictionary: readers go through the old one meanwhile.
                self.table[topic] = {**self.table[topic], queue_id: queue}
        return queue

    def record_size_at(self, commit_log_offset: int) -> int | None:
        """The size that some queue's unit names for the record at an offset; None if none does.

        Looks into every queue: for damage only.
        """
        for queue in self.all_queues():
            if isinstance(queue, ConsumeQueue) and queue.max_physic_offset > commit_log_offset:
                low, stop = queue.min_offset, queue.max_offset
                unit = queue.unit(queue.first_at_or_behind(commit_log_offset, low, stop))
                if unit is not None and unit.commit_log_offset == commit_log_offset:
                    return unit.record_size
        return None

    def topics(self) -> list[str]:
        """Every topic that has queues."""
        return list(self.table)

    def queues(self, topic: str) -> list[Queue]:
        """A topic's queues, in order of their ids."""
        return [queue for _, queue in sorted(self.table.get(topic, {}).items())]

    def all_queues(self) -> list[Queue]:
        """Every queue."""
        return [queue for queues in list(self.table.values()) for queue in queues.values()]

    @property
    def max_physic_offset(self) -> int:
        """Up to where in the CommitLog the furthest queue is built; -1 without queues."""
        return max((queue.max_physic_offset for queue in self.all_queues()), default=-1)

    @property
    def units(self) -> int:
        """The sum of the next queue offsets of all queues."""
        return sum(queue.max_offset for queue in self.all_queues())

    @property
    def begins(self) -> int:
        """The sum of the positions, bytes each, at which the files of all queues begin."""
        return sum(queue.stream.first_start for queue in self.all_queues())

    def queue_offsets(self) -> dict[QueueKey, int]:
        """The next queue offset of every queue: what the CommitLog's table starts with."""
        return {(queue.topic, queue.queue_id): queue.max_offset for queue in self.all_queues()}

    def snapshot(self) -> dict[QueueKey, QueueExtent]:
        """The bounds of every queue. After `flush` they are those of the files on the disk."""
        return {(queue.topic, queue.queue_id): queue.extent for queue in self.all_queues()}

    # Writing

    def write_behind(self, rest: Callable[[float], object] | None = None) -> int:
        """Writes what is only in memory into the files, of those queues that have such units.

        Another process sees the units then; a power cut may still take them. Meant to be called
        every 100 ms or so. Returns the bytes written. ``rest``: see `FilePool.write_behind`.

        Raises:
            StoreFullError: the disk has no room; the rest stays in memory.
        """
        return self.pool.write_behind(rest)

    def flush(self) -> int:
        """Makes every unit put so far durable; returns how many files were synced.

        Raises:
            OSError, StoreError: the disk failed, or did so in an earlier sync.
            StoreFullError: the disk has no room; the rest stays in memory.
        """
        self.write_behind()
        return self.pool.sync()

    def sync_written(self, log_offset: int) -> int:
        """Makes durable what is in the files; needs no room on the disk.

        Args:
            log_offset: up to where in the CommitLog units were put.

        Returns:
            Up to where in the CommitLog every unit is on the disk: the start of the first record
            whose unit is only in memory, or ``log_offset``.

        Raises:
            OSError, StoreError: the disk failed, or did so in an earlier sync.
        """
        dirty = set(self.pool.dirty())
        for queue in self.all_queues() if dirty else ():
            stream = queue.stream
            if queue.ext is not None and queue.ext.stream in dirty:
                log_offset = min(log_offset, 0)  # what record a unit is of is not known there
            if stream in dirty:
                start = stream.read(stream.written, _OFFSET_SIZE)
                if len(start) == _OFFSET_SIZE:
                    log_offset = min(log_offset, int.from_bytes(start, "big", signed=True))
        self.pool.sync()
        return log_offset

    def refresh(self, log_end_offset: int) -> None:
        """Takes in what the writing process has added, new queues too. For a read-only store.

        A queue of the other kind than its topic's is left out, and named once: the others go on.
        """
        for kind in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE):
            root = f"{self.config.store_path_root_dir}/{kind}"
            for topic in self.files.list(root):
                if not is_stored_topic(topic):
                    continue
                for name in self.files.list(f"{root}/{topic}"):
                    queue_id = queue_number(name)
                    if queue_id is not None and self.find(topic, queue_id) is None:
                        self._load_new(kind, topic, queue_id)
        for queue in self.all_queues():
            queue.refresh(log_end_offset)

    def _load_new(self, kind: str, topic: str, queue_id: int) -> None:
        try:
            self._load_queue(kind, topic, queue_id)
        except StoreCorruptError as error:
            if (topic, queue_id) not in self._left_out:
                self._left_out.add((topic, queue_id))
                _LOG.error("%s, nobody sees its messages", error)

    # Shrinking

    def truncate(self, limit: int) -> None:
        """Cuts off the units of records at or after an offset, in all queues.

        Records from there on are dispatched again, or are not in the log any more.

        RocketMQ: truncateDirtyLogicFiles.
        """
        self.generation += 1
        self._stale.update((queue, None) for queue in self.all_queues() if queue.truncate(limit))
        self._corrected_for = -1

    def erase_stale(self) -> None:
        """Zeroes what an earlier life left behind the ends of queues; durable with `flush`.

        To be called when dispatch has made what is to be made again, and before anything says that
        the queues are whole: once a queue has grown up to such a unit, or the log up to its record,
        nobody can tell it from a message. A recovery alone leaves them, as RocketMQ does.

        Raises:
            OSError: the disk failed; the queues that are left are looked at by the next call.
            StoreFullError: the same, of a file system that gives what is overwritten new blocks.
        """
        while self._stale:
            queue = next(iter(self._stale))
            queue.erase_stale()
            self._stale.pop(queue, None)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Moves every queue's min offset to the first message that the CommitLog still has."""
        if log_min_offset == self._corrected_for:
            return
        for queue in self.all_queues():
            queue.correct_min_offset(self._low(queue, log_min_offset))
        self._corrected_for = log_min_offset

    def delete_expired(self, log_min_offset: int, *, pause_ms: int | None = None) -> int:
        """Deletes the files of expired units and corrects the min offsets.

        Args:
            log_min_offset: the CommitLog's min offset.
            pause_ms: to rest after each queue that lost files; deleteConsumeQueueFilesInterval.

        Returns:
            How many files were deleted.
        """
        if pause_ms is None:
            pause_ms = self.config.delete_consume_queue_files_interval_ms
        total = 0
        for queue in self.all_queues():
            low = self._low(queue, log_min_offset)
            deleted = queue.delete_expired(low)
            queue.correct_min_offset(low)
            if deleted and pause_ms:
                time.sleep(pause_ms / 1000)
            total += deleted
        return total

    def follow_floor(self, topic: str, queue_id: int, log_min_offset: int) -> None:
        """Deletes one queue's files below its floor and corrects its min offset."""
        queue = self.find(topic, queue_id)
        if queue is not None:
            low = self._low(queue, log_min_offset)
            queue.delete_expired(low)
            queue.correct_min_offset(low)

    def _low(self, queue: Queue, log_min_offset: int) -> int:
        if not self.floors:
            return log_min_offset
        return max(log_min_offset, self.floors.get((queue.topic, queue.queue_id), 0))

    def go_on_at(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Has a queue that has no files begin at a number."""
        if queue_offset <= 0 or queue_id < 0 or not is_stored_topic(topic):
            return
        queue = self.find(topic, queue_id)
        if queue is None and self.is_batch_topic(topic):
            return
        queue = queue or self.find_or_create(topic, queue_id)
        if isinstance(queue, ConsumeQueue) and queue.stream.is_empty:
            queue.go_on_at(queue_offset)

    def empty_queue(self, queue: ConsumeQueue) -> None:
        """Deletes a queue's files; it goes on with the number that is next."""
        end = queue.max_offset
        self.generation += 1
        queue.destroy()
        queue.go_on_at(end)

    def destroy_queue(self, topic: str, queue_id: int) -> None:
        """Deletes a queue; if it is used again it starts at 0."""
        with self._lock:
            queues = dict(self.table.get(topic, {}))
            queue = queues.pop(queue_id, None)
            if queue is None:
                return
            if queues:
                self.table[topic] = queues
            else:
                del self.table[topic]
            self.generation += 1
        queue.destroy()
        if not queues:
            for kind in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT):
                self.files.remove_dir(f"{self.config.store_path_root_dir}/{kind}/{topic}")

    def destroy_topic(self, topic: str) -> list[int]:
        """Deletes all queues of a topic; their ids."""
        ids = list(self.table.get(topic, {}))
        for queue_id in ids:
            self.destroy_queue(topic, queue_id)
        return ids

    def destroy_all(self) -> None:
        """Deletes every queue: the CommitLog has no file left."""
        for topic in self.topics():
            self.destroy_topic(topic)

    def expired(self, log_min_offset: int) -> list[ConsumeQueue]:
        """Queues, the system's apart, whose last record is gone from the CommitLog.

        Of those that hold batches the last file stays: it tells with which number they go on.
        RocketMQ: cleanExpired.
        """
        return [
            queue
            for queue in self.all_queues()
            if isinstance(queue, ConsumeQueue)
            and not is_system_topic(queue.topic)
            and queue.last_offset() < log_min_offset
            and queue.last_offset() != -1
        ]

    def unused(self, keep: Callable[[str], bool]) -> list[str]:
        """Topics that are neither to be kept nor the system's nor light queues."""
        return [
            topic
            for topic in self.topics()
            if not keep(topic) and not is_system_topic(topic) and not is_lmq(topic)
        ]
