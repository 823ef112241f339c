"""CompactionStore: the compaction logs of all queues of compaction topics.

A topic with the attribute ``cleanup.policy=COMPACTION`` is read from here; its ConsumeQueues and
records in the CommitLog are as those of any topic, and expire. What is always true: before a
checkpoint says that the log was read up to somewhere, the logs here have it on the disk, so the
CommitLog may lose it. RocketMQ: CompactionStore, CompactionService, CompactionPositionMgr.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from oberth.errors import ConfigFormatError, StoreError, StoreFullError
from oberth.formats.config_files import CompactionPositions
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import is_stored_topic
from oberth.formats.paths import queue_number
from oberth.store.commit_log import CommitLog
from oberth.store.compaction_log import (
    COMPACTION,
    COMPACTION_LOG,
    COMPACTION_QUEUE,
    CompactionLog,
)
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.files import FileSystem, is_full, sync_nearest_directories
from oberth.store.messages import GetMessageResult, MessageFilter
from oberth.store.retention import CLEANUP_POLICY
from oberth.store.sync_guard import SyncGuard
from oberth.store.unsynced_log import UnsyncedNote

_LOG: Final = logging.getLogger(__name__)

POSITIONS: Final = "position-checkpoint"
POLICY: Final = "COMPACTION"
_STUCK_RETRY_S: Final = 10.0
"""How long a reader waits at a segment's end where the disk failed: each try writes much anew."""


class CompactionStore:
    """Reads come from any thread; `follow`, `flush` and `run` from the store's own."""

    def __init__(
        self,
        files: FileSystem,
        config: MessageStoreConfig,
        root: str,
        log: CommitLog,
        queues: ConsumeQueueStore,
        topic_attributes: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._files = files
        self._config = config
        self._root = root
        self._commit_log = log
        self._queues = queues
        self._topic_attributes = topic_attributes
        self._lock = threading.Lock()  # guards the table
        self._table: dict[tuple[str, int], CompactionLog] = {}
        self._positions = CompactionPositions()
        self._positions_lock = threading.Lock()  # guards them, and what the file has of them
        self._are_positions_saved = True
        self._is_file_late = False  # whether the log says already that there was no room
        # Directories that lost names which no sync has taken from the disk yet.
        self._bereft: set[str] = set()
        self._next_run_s = 0.0
        self._is_stuck = False
        self._retry_s = 0.0
        self._unsynced = UnsyncedNote(files, f"{root}/{COMPACTION}")
        self.syncs = SyncGuard(f"{root}/{COMPACTION}", self._note_unsynced)

    # Life

    def load(self) -> None:
        """Open what is there. Blocks.

        Raises:
            StoreCorruptError: files that do not belong together.
            OSError: the disk fails.
        """
        self._positions = _read_positions(self._files, self._root)
        anew = self._unsynced.read() is not None
        try:
            for topic, queue_id in _find_logs(self._files, self._root):
                self._open(topic, queue_id, anew=anew)
        except OSError:
            self._note_unsynced()
            raise
        if anew:
            self._unsynced.remove()
        self._next_run_s = time.monotonic() + self._config.compaction_schedule_interval_ms / 1000

    def recovered(self) -> None:
        """The queues are what they will be: nothing here may go beyond them. Blocks."""
        for (topic, queue_id), log in self._table.items():
            queue = self._queues.find(topic, queue_id)
            if queue is None or not 0 < queue.max_offset < log.next_offset:
                continue
            end = queue.max_offset
            if self._position(topic, queue_id) >= end:
                # What is lost has superseded others, which may be the newest of their keys again.
                # min_offset may be of a message that the log has lost, see correct_min_offset.
                end = max(queue.readable_from(self._commit_log.min_offset), 0)
                self._set_position(topic, queue_id, end - 1)
            log.truncate(end)
        self.save_positions()

    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """Where queues go on at least, whose ConsumeQueue may be gone."""
        return {key: log.next_offset for key, log in self._table.items()}

    def _note_unsynced(self) -> None:
        self._unsynced.make(0, "messages of compaction topics")

    def _open(self, topic: str, queue_id: int, *, anew: bool = False) -> CompactionLog:
        log = CompactionLog(self._files, self._config, self._root, topic, queue_id)
        log.load(self._position(topic, queue_id), anew=anew)
        if log.is_empty and self._position(topic, queue_id) >= 0:
            _LOG.warning(
                "%s queue %d: what was compacted is gone, all that the log has is copied anew",
                topic, queue_id,
            )  # fmt: skip
            self._set_position(topic, queue_id, -1)
            self.save_positions()
        self._table[topic, queue_id] = log
        return log

    def close(self) -> None:
        """Unmap everything."""
        with self._lock:
            for log in self._table.values():
                log.close()
            self._table.clear()

    def delete_topic(self, topic: str) -> None:
        """Delete what is kept of a topic; a crash may undo it until the next `flush`."""
        with self._lock:
            gone = [key for key in self._table if key[0] == topic]
            logs = [self._table.pop(key) for key in gone]
        for _, queue_id in gone:
            self._set_position(topic, queue_id, -1)
        for log in logs:
            log.destroy()
        if logs:
            with self._lock:
                self._bereft |= {
                    f"{self._root}/{COMPACTION}/{kind}/{topic}"
                    for kind in (COMPACTION_LOG, COMPACTION_QUEUE)
                }
            self.save_positions()

    # Reading

    def covers(self, topic: str) -> bool:
        """Whether a topic is read from here."""
        return self._topic_attributes(topic).get(CLEANUP_POLICY) == POLICY

    def queue_ids(self, topic: str) -> list[int]:
        """Queues of which something is kept."""
        return [queue_id for kept, queue_id in list(self._table) if kept == topic]

    def find(self, topic: str, queue_id: int) -> CompactionLog | None:
        """The log of a queue; made when the queue has its first message."""
        found = self._table.get((topic, queue_id))
        if found is None:
            queue = self._queues.find(topic, queue_id)
            if not isinstance(queue, ConsumeQueue) or queue.max_offset == 0:
                return None
            with self._lock:
                found = self._table.get((topic, queue_id)) or self._open(topic, queue_id)
        return found

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_total_size: int,
    ) -> GetMessageResult | None:
        """See MessageStore.get_message; None: nothing is kept of the queue."""
        log = self.find(topic, queue_id)
        if log is None:
            return None
        queue = self._queues.find(topic, queue_id)
        end = 0
        if isinstance(queue, ConsumeQueue):
            if not log.follow_nowait(queue, self._commit_log):
                self._is_stuck = True
            end = queue.max_offset
        return log.get_message(offset, max_msg_nums, message_filter, max_total_size, end)

    # Background

    def _queues_of_topics(self) -> Iterator[tuple[CompactionLog, ConsumeQueue]]:
        for topic in list(self._queues.table):
            if not self.covers(topic):
                continue
            for queue_id, queue in list(self._queues.table.get(topic, {}).items()):
                log = self.find(topic, queue_id)
                if log is not None and isinstance(queue, ConsumeQueue):
                    yield log, queue

    def follow(self) -> None:
        """Copy what the queues have and this has not. Blocks.

        Raises:
            OSError, StoreError: of the first log that could not be copied on; all others are.
        """
        failure: OSError | StoreError | None = None
        for log, queue in self._queues_of_topics():
            try:
                log.follow(queue, self._commit_log, self.syncs)
            except (OSError, StoreError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def follow_stuck(self) -> None:
        """Copy, if a reader could not because a segment was at its end. Blocks.

        It may fail, for messages are taken all the same; some seconds later it is tried again.
        """
        if self._is_stuck and time.monotonic() >= self._retry_s:
            self._is_stuck = False
            if not self._has_followed():
                self._is_stuck = True
                self._retry_s = time.monotonic() + _STUCK_RETRY_S

    def _has_followed(self) -> bool:
        try:
            self.follow()
        except (OSError, StoreError) as error:
            _LOG.error("messages of compaction topics could not be copied: %s", error)
            return False
        return True

    def copied_offset(self, limit: int) -> int:
        """Up to where in the CommitLog all that the queues have is here, and on the disk. Blocks.

        Args:
            limit: what lies behind it is not asked for.

        Returns:
            Where the first message lies that is not here, or the limit; -1 after a failed sync.
        """
        if self.syncs.has_failed:
            return -1
        log_begin = self._commit_log.min_offset
        for log, queue in self._queues_of_topics():
            if log.next_offset < queue.max_offset:
                unit = queue.next_unit(max(log.next_offset, queue.readable_from(log_begin)))
                if unit is not None:
                    limit = min(limit, unit.commit_log_offset)
        with self.syncs.watch():
            self.flush()
        return limit

    def flush(self) -> None:
        """Bring everything to the disk. Blocks; within `syncs`, if it is to be believed."""
        for log in list(self._table.values()):
            log.flush()
        with self._lock:
            directories, self._bereft = self._bereft, set()
        sync_nearest_directories(self._files, directories)

    def run_due(self) -> None:
        """Compact, every compactionScheduleInternal. Blocks."""
        now_s = time.monotonic()
        if now_s >= self._next_run_s:
            self._next_run_s = now_s + self._config.compaction_schedule_interval_ms / 1000
            self.run()

    def run(self) -> None:
        """Compact every log that has something new. Blocks."""
        self._has_followed()
        for (topic, queue_id), log in list(self._table.items()):
            try:
                position = log.compact(self._position(topic, queue_id))
            except (OSError, StoreError) as error:
                _LOG.error("the compaction of %s queue %d failed: %s", topic, queue_id, error)
                continue
            if position is not None and (topic, queue_id) in self._table:
                self._set_position(topic, queue_id, position)
                self.save_positions()

    # Positions

    def _position(self, topic: str, queue_id: int) -> int:
        return self._positions.queue_offset_map.get(f"{topic}_{queue_id}", -1)

    def _set_position(self, topic: str, queue_id: int, position: int) -> None:
        """Says up to where a queue was compacted; -1: not at all."""
        name = f"{topic}_{queue_id}"
        with self._positions_lock:
            known = self._positions.queue_offset_map
            self._are_positions_saved &= known.get(name, -1) == position
            if position >= 0:
                known[name] = position
            else:
                known.pop(name, None)

    def save_positions(self) -> None:
        """Writes what has changed; on a full disk not yet. Blocks.

        Raises:
            OSError: the disk fails.
        """
        with self._positions_lock:
            if self._are_positions_saved:
                return
            try:
                _write_positions(self._files, self._root, self._positions)
            except (OSError, StoreFullError) as error:
                if not is_full(error):
                    raise
                if not self._is_file_late:
                    _LOG.error("what was compacted is noted when the disk has room: %s", error)
                self._is_file_late = True
            else:
                self._are_positions_saved, self._is_file_late = True, False


class QueueUnits(NamedTuple):
    """What the files of a ConsumeQueue say of a place in the CommitLog.

    Attributes:
        low: the first queue offset of which they have a unit.
        first: the first one whose message lies at or behind the place; the end if there is none.
    """

    low: int
    first: int


def forget_copies(
    files: FileSystem,
    root: str,
    start: int,
    log_begin: int,
    units_at: Callable[[str, int], QueueUnits | None],
) -> None:
    """Forgets what lies at or behind a place in the CommitLog: the next start copies it. Blocks.

    For a log that is going to be cut. Nobody has the store open. Which messages these are says the
    ConsumeQueue: a record that Apache's broker copied does not name its place.

    Args:
        files: where the store is.
        root: the store's directory.
        start: the place, where the CommitLog begins or before that; 0 is before all of it.
        log_begin: where the CommitLog begins.
        units_at: asked for topic and number of a queue; None: it has no units.

    Raises:
        StoreCorruptError: files that do not belong together.
        OSError: a file cannot be changed; what was forgotten is copied anew all the same.
    """
    positions = _read_positions(files, root)
    config = MessageStoreConfig(store_path_root_dir=root)
    with ExitStack() as opened:
        ends: list[tuple[CompactionLog, int]] = []
        for topic, queue_id in _find_logs(files, root):
            log = CompactionLog(files, config, root, topic, queue_id)
            opened.callback(log.close)
            log.load(-1)
            end = 0
            if start:
                units = units_at(topic, queue_id)
                end = log.next_offset if units is None else units.first
                # What has no unit has left the log, and may lie behind a place before that.
                if units is None or (units.first == units.low and start < log_begin):
                    end = min(end, log.first_from(start))
            ends.append((log, end))
            name = f"{topic}_{queue_id}"
            if positions.queue_offset_map.get(name, -1) >= end:
                positions.queue_offset_map[name] = end - 1
        if ends:
            _write_positions(files, root, positions)
        for log, end in ends:
            log.truncate(end)


def _find_logs(files: FileSystem, root: str) -> Iterator[tuple[str, int]]:
    """Topic and number of every queue that has a log."""
    base = f"{root}/{COMPACTION}/{COMPACTION_LOG}"
    for topic in files.list(base) if files.is_dir(base) else ():
        directory = f"{base}/{topic}"
        if not is_stored_topic(topic) or not files.is_dir(directory):
            continue
        for name in files.list(directory):
            queue_id = queue_number(name)
            if queue_id is not None and files.is_dir(f"{directory}/{name}"):
                yield topic, queue_id


def _read_positions(files: FileSystem, root: str) -> CompactionPositions:
    path = f"{root}/{COMPACTION}/{POSITIONS}"
    data = files.read_file(path)
    if data is not None and data.strip():
        try:
            return CompactionPositions.decode(data, name=path)
        except ConfigFormatError as error:
            # Only says what need not be looked at again.
            _LOG.warning("what was compacted is looked for anew: %s", error)
    return CompactionPositions()


def _write_positions(files: FileSystem, root: str, positions: CompactionPositions) -> None:
    files.write_file(f"{root}/{COMPACTION}/{POSITIONS}", positions.encode())
