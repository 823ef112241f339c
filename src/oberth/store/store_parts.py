"""The parts of a message store, how far each has come, and how they become durable together."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from oberth.errors import StoreClosedError, StoreError, StoreFullError
from oberth.formats.message_store_config import BrokerRole, FlushDiskType, MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.paths import CHECKPOINT, COMMIT_LOG, CONSUME_QUEUE
from oberth.store.allocate import AllocateService
from oberth.store.cleaning import CleanService
from oberth.store.commit_log import CommitLog
from oberth.store.compaction_store import CompactionStore
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.disk_reserve import DiskReserve
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.dispatch_state import DispatchState
from oberth.store.files import MADV_NORMAL, MADV_RANDOM, FileSystem, OsFileSystem, is_full
from oberth.store.flush import FlushService
from oberth.store.index_service import IndexService
from oberth.store.log_checksums import LogChecksums
from oberth.store.mapped_file import MappedFile, TransientStorePool
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.message_reader import MessageReader
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult
from oberth.store.recovery import RecoveryReport
from oberth.store.recovery_state import DELETIONS_MAX, RecoveryState, save_state
from oberth.store.reput import ReputPosition, ReputService
from oberth.store.retention import Retention
from oberth.store.running_flags import RunningFlags
from oberth.store.store_checkpoint import StoreCheckpoint
from oberth.store.store_lock import StoreLock
from oberth.store.sync_guard import SyncGuard
from oberth.store.unsynced_log import UnsyncedLog
from oberth.wall_clock import now_ms


def _no_attributes(_topic: str) -> Mapping[str, str]:
    return {}


class StoreParts:
    """Makes the parts of a store and connects them; opens no file and starts no thread.

    `oberth.store.store_reading` adds what reads, `oberth.store.message_store` what opens, puts,
    deletes and closes.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        files: FileSystem | None = None,
        clock_ms: Callable[[], int] = now_ms,
        topic_attributes: Callable[[str], Mapping[str, str]] = _no_attributes,
    ) -> None:
        self.config = config
        self.files: FileSystem = files if files is not None else OsFileSystem()
        self.clock_ms = clock_ms
        self.root = os.path.abspath(os.path.expanduser(config.store_path_root_dir))
        self.flags = RunningFlags()
        self._topic_attributes = topic_attributes
        self._lock = StoreLock(self.root)
        self._loaded = False
        self._started = False
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        # One checkpoint at a time. Taken before the lock of a round of dispatch, behind _ends_lock.
        self._checkpoint_lock = threading.RLock()
        self._ends_lock = threading.RLock()  # guards oberth.queue-ends: threads of deletions meet
        self.report: RecoveryReport | None = None
        self._state_offset = -1
        # Up to where the oberth.state that is there vouches; None: there is none to vouch.
        self._vouched_offset: int | None = None
        # Where the log and the files of queues began by the last oberth.state.
        self._state_begins: tuple[int, int] | None = None
        # Topics that were deleted, and below which CommitLog offset their records are in no queue.
        self._deleted_below: dict[str, int] = {}
        # Up to where all units of queues are on the disk, whether or not oberth.state says so yet.
        self._durable_offset = -1
        # Whether the logs of compaction topics, too, have on the disk what lies below that.
        self._is_copied = False
        # Where the log ended when it was opened, and whether all up to there is dispatched: only
        # then the next number of every queue is known, and messages are taken.
        self._found_end = 0
        self._numbered = False
        self._number_lock = threading.Lock()  # guards the change of _numbered
        self.damaged_from: int | None = None
        """Where recovery found a slave's log damaged: what lies behind it is not shown, not
        confirmed, and gone with `end_before_damage`."""
        self._left_by_dispatcher: DispatchState | None = None
        self.started_at_ms = 0
        self._sums_failed = False
        self._make_log()
        self._make_derived()
        self._make_keeping()
        self._waits = self.flush_service.is_sync
        # Since 5.3: what is not synced yet is not shown to consumers.
        self._shows_only_flushed = (
            self._waits and config.line is not Line.V4_9 and not config.read_uncommitted
        )
        # Set by the code that replicates the log: acknowledgements then wait for slaves too, and
        # messages that have to wait for them are refused while too few slaves are there.
        self.waits_for_replicas = False
        self.lacks_replicas: Callable[[], bool] | None = None
        # Under a controller consumers are shown only messages that every replica in sync has.
        self.confirmed_by_replicas: Callable[[], int] | None = None

    def _make_log(self) -> None:
        """The CommitLog, its segments, checksums and syncs."""
        config = self.config
        directories = self._directories(config.store_path_commit_log) or [
            f"{self.root}/{COMMIT_LOG}"
        ]
        pool = None
        if config.transient_store_pool_enable and config.broker_role is not BrokerRole.SLAVE:
            pool = TransientStorePool(
                config.transient_store_pool_size, config.mapped_file_size_commit_log
            )
        self._pool = pool
        self._allocate = AllocateService(self._create_segment)
        queue = MappedFileQueue(
            self.files,
            directories,
            config.mapped_file_size_commit_log,
            read_only_directories=self._directories(config.read_only_commit_log_store_paths),
            allocate=self._allocate.next_segment,
            is_full=lambda directory: directory in self.cleaning.full_directories,
        )
        self.commit_log = CommitLog(
            self.files, config, queue, self.flags, self.clock_ms, self._topic_attributes
        )
        self.checksums = LogChecksums(
            self.files, self.root, self.commit_log, lambda: self.sound_offset
        )
        if not config.data_read_ahead_enable:
            self.set_read_ahead(False)
        self._unsynced = UnsyncedLog(self.files, self.root)
        self.flush_service = FlushService(
            config, queue, self.flags, self._append_each, self._on_flushed, self._unsynced.note
        )

    def _make_derived(self) -> None:
        """Queues and Index, what makes them from the log, and what reads by them."""
        config = self.config
        self.checkpoint = StoreCheckpoint(self.files, f"{self.root}/{CHECKPOINT}")
        self.queues = ConsumeQueueStore(self.files, config, topic_attributes=self._topic_attributes)
        self.index: IndexService | None = None
        if config.message_index_enable:
            self.index = IndexService(
                self.files, config, clock_ms=self.clock_ms, on_full=self._on_index_full
            )
        self.dispatcher = CommitLogDispatcher(config, self.queues, self.index, self.checkpoint)
        self.reput = ReputService(
            self.commit_log, self.dispatcher, self.flags, self._dispatch_limit
        )
        self.reader = MessageReader(config, self.commit_log, self.queues)
        self.compaction: CompactionStore | None = None
        if config.enable_compaction and config.line is not Line.V4_9:
            self.compaction = CompactionStore(
                self.files,
                config,
                self.root,
                self.commit_log,
                self.queues,
                self._topic_attributes,
            )

    def _make_keeping(self) -> None:
        """What decides how long messages stay, and deletes them."""
        config = self.config
        self.retention = Retention(
            config,
            self.files,
            self.root,
            self.commit_log,
            self.queues,
            self.clock_ms,
            self._topic_attributes,
            self.flush_service.flush_now,
        )
        self._reserve = DiskReserve(self.files, self.root)
        self.cleaning = CleanService(
            config,
            self.files,
            self.commit_log,
            self.queues,
            self.index,
            self.flags,
            f"{self.root}/{CONSUME_QUEUE}",
            self.clock_ms,
            self.checkpoint_now,
            self._deletable_offset,
            self._reserve,
            self.retention,
        )

    @staticmethod
    def _directories(text: str | None) -> list[str]:
        return [
            os.path.abspath(os.path.expanduser(part.strip()))
            for part in (text or "").split(",")
            if part.strip()
        ]

    def _create_segment(self, directory: str, start_offset: int) -> MappedFile:
        self.files.make_dirs(directory)
        segment = MappedFile(
            self.files,
            directory,
            start_offset,
            self.config.mapped_file_size_commit_log,
            create=True,
            transient_pool=self._pool,
        )
        if self.config.warm_mapped_file_enable:
            sync = self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            if sync:
                segment.prepare_for_syncs()  # before pages are touched, which decides their size
            pages = self.config.flush_least_pages_when_warm_mapped_file
            segment.warm(pages if sync else 0)
        else:
            segment.warm_ahead = self._allocate.warm
        return segment

    def _append_each(
        self,
        messages: Sequence[MessageExtBrokerInner],
        outcomes: list[PutMessageResult | Exception],
    ) -> None:
        """Appends what callers of `put_message` brought, for the one who syncs for them all."""
        self.commit_log.append_each(messages, outcomes)
        self._wake_after_append()

    def _wake_after_append(self) -> None:
        self.flush_service.wake()
        if not self._shows_only_flushed:
            self.reput.wake()

    def _check_open(self) -> None:
        if not self._loaded:
            raise StoreClosedError(f"{self.root}: not open")

    def set_read_ahead(self, enabled: bool) -> None:
        """Has the kernel read the log ahead or not, in segments that are there and that come."""
        self.config.data_read_ahead_enable = enabled
        advice = MADV_NORMAL if enabled else MADV_RANDOM
        if advice is not None:
            self.commit_log.queue.advise(advice)

    # How far the parts are

    @property
    def min_phy_offset(self) -> int:
        """The oldest CommitLog offset. RocketMQ: getMinPhyOffset."""
        return self.commit_log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """The CommitLog's end. RocketMQ: getMaxPhyOffset."""
        return self.commit_log.max_offset

    @property
    def appended_offset(self) -> int:
        """Where the next record goes. With the transient pool that may be past the end."""
        return self.commit_log.queue.appended_offset

    @property
    def sound_offset(self) -> int:
        """The CommitLog's end, or where recovery found a slave's log damaged before that."""
        return self.commit_log.max_offset if self.damaged_from is None else self.damaged_from

    @property
    def flushed_offset(self) -> int:
        """Up to where the CommitLog is known to be on the disk."""
        return self.commit_log.queue.flushed_where

    @property
    def confirm_offset(self) -> int:
        """Up to where messages are dispatched and may be read by consumers."""
        return self._dispatch_limit()

    @property
    def dispatched_offset(self) -> int:
        """Up to where queues and index reach."""
        return self.reput.offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that queues and index do not have yet."""
        return self.reput.behind_bytes

    def _dispatch_limit(self) -> int:
        log = self.commit_log
        limit = self.sound_offset
        if self._shows_only_flushed:
            limit = min(log.queue.flushed_where, limit)
        if self.confirmed_by_replicas is not None:
            limit = min(self.confirmed_by_replicas(), limit)
        return limit

    @property
    def has_failed_syncs(self) -> bool:
        """Whether queues or index could not be synced: no check point is written any more.

        See `oberth.store.sync_guard`.
        """
        return any(syncs.has_failed for syncs in self._syncs())

    def _syncs(self) -> Iterator[SyncGuard]:
        for part in (self.queues, self.index, self.compaction):
            if part is not None:
                yield part.syncs

    def _refuse_failed_syncs(self) -> None:
        """No part is to be thought on the disk by a check point that another part will not let be.

        Raises:
            StoreError: a sync has failed.
        """
        for syncs in self._syncs():
            syncs.check()

    # Durability

    def flush(self) -> int:
        """Syncs the log now; returns up to where it is on the disk. Blocks.

        Raises:
            StoreError: that is not all of what had been appended.
        """
        end = self.appended_offset
        flushed = self.flush_service.flush_now()
        if self.flush_service.is_broken or flushed < end:
            raise StoreError(f"{self.root}: the disk has the log up to {flushed}, not up to {end}")
        return flushed

    def checkpoint_now(self, *, clean: bool = False) -> None:
        """Syncs log, queues and index, in that order, and then says so in two files. Blocks.

        Raises:
            StoreFullError, OSError: the disk has no room, not even with its reserve given back.
            StoreError: an earlier sync failed, see `has_failed_syncs`.
        """
        self._with_reserve(lambda: self._checkpoint(clean=clean))

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Runs what writes; if the disk is full once more, with the blocks of the reserve."""
        try:
            write()
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            # The checkpoint's lock comes first, as wherever both are held.
            with self._checkpoint_lock, self.reput.paused():
                if not self._reserve.give_back():
                    raise
                write()

    def _checkpoint(self, *, clean: bool) -> None:
        with self._checkpoint_lock:
            position = self.reput.position()
            deleted = self._deletions_below(position.offset)
            self.flush_service.flush_now()
            if self.flushed_offset < position.offset:
                return
            self.checksums.save(self.flushed_offset, all_of_it=clean)
            self._refuse_failed_syncs()
            self._copy_compacted()
            try:
                self.queues.erase_stale()
                self.queues.flush()
            except (OSError, StoreFullError) as error:
                # A sync that failed for want of room says nothing of what it had to write.
                if is_full(error) and not self.queues.syncs.has_failed:
                    written = self.queues.sync_written(position.offset)
                    self._durable_offset = max(self._durable_offset, written)
                raise
            self._durable_offset = max(self._durable_offset, position.offset)
            if self.index is not None:
                self.index.flush()
            if self.config.line is not Line.V4_9:  # it knows no such field, and tools go by that
                self.checkpoint.values.logics_physical_offset = position.offset
            self.checkpoint.flush()
            self._save_state(position, deleted, clean=clean)

    def _copy_compacted(self) -> None:
        """Copies what compaction topics have in the log, and brings the copies to the disk."""
        if self.compaction is not None:
            self.compaction.syncs.check()
            self.compaction.follow()
            with self.compaction.syncs.watch():
                self.compaction.flush()
            self.compaction.save_positions()
        self._is_copied = True

    def _deletable_offset(self) -> int:
        """Up to where the log may be deleted without a checkpoint. Blocks.

        After a failed sync none comes. Then the log has to stay from where oberth.state says: a
        start trusts no state of a log that begins behind that, and reads all of it.
        """
        offset = self._durable_offset
        if self.has_failed_syncs and self._vouched_offset is not None:
            offset = min(offset, self._vouched_offset)
        if self.compaction is None or self._is_copied:
            return offset
        return self.compaction.copied_offset(offset)

    def _write_state(self, *, clean: bool) -> None:
        position = self.reput.position()
        deleted = self._deletions_below(position.offset)
        self.queues.erase_stale()
        self.queues.flush()
        if self.index is not None:
            self.index.flush()
        self.flush_service.flush_now()
        self._is_copied = False  # nothing is copied here: a start must not wait for that
        self._save_state(position, deleted, clean=clean)
        if self._left_by_dispatcher is not None:
            # What it left was repaired, and is on the disk.
            dataclasses.replace(self._left_by_dispatcher, is_whole=True).save(self.root)
            self._left_by_dispatcher = None

    def _note_deletion(self, topic: str) -> None:
        """Keeps what the log has of a topic by now from the queues that a start makes."""
        self._deleted_below.pop(topic, None)  # the newest is the last
        self._deleted_below[topic] = self.commit_log.max_offset

    def _deletions_below(self, log_offset: int) -> dict[str, int]:
        """Deletions that are to be noted once what is dispatched up to an offset is on the disk.

        To be asked before the queues are synced: then the files of these topics are gone for good.
        """
        low = self.commit_log.min_offset
        for topic, end in list(self._deleted_below.items()):
            if end <= low or len(self._deleted_below) > DELETIONS_MAX:
                self._deleted_below.pop(topic, None)
        return {topic: end for topic, end in list(self._deleted_below.items()) if end <= log_offset}

    def _save_state(self, position: ReputPosition, deleted: dict[str, int], *, clean: bool) -> None:
        counts = {} if self.index is None else self.index.safe_counts()
        self._save_recovery_state(position, counts, deleted, clean=clean)
        self._state_offset = self._vouched_offset = position.offset
        self._durable_offset = max(self._durable_offset, position.offset)

    def _save_recovery_state(
        self,
        position: ReputPosition,
        index_counts: Mapping[str, int],
        deleted: dict[str, int],
        *,
        clean: bool,
    ) -> None:
        """Writes what the next start may trust; if ``clean``, with what each queue has."""
        if position.queue_begins >= 0:
            self._state_begins = position.log_begin, position.queue_begins
        queues: dict[str, dict[int, tuple[int, int, int]]] = {}
        if clean:
            for (topic, queue_id), (low, high, end) in self.queues.snapshot().items():
                queues.setdefault(topic, {})[queue_id] = (low, high, end)
        save_state(
            self.files,
            self.root,
            RecoveryState(
                safe_offset=position.offset,
                last_record=position.last_record,
                store_timestamp=position.store_timestamp,
                queue_end=position.queue_end,
                queue_count=position.queue_count,
                queue_units=position.queue_units,
                queue_begins=position.queue_begins,
                log_begin=position.log_begin,
                clean=clean,
                index_counts=dict(index_counts),
                deleted=deleted,
                queues=queues,
            ),
        )

    def _begins_differ(self) -> bool:
        """Whether files have gone from the front of log or queues since the last oberth.state."""
        now = self.commit_log.min_offset, self.queues.begins
        return self._state_begins not in (None, now)

    def _on_flushed(self, store_timestamp: int) -> None:
        self.checkpoint.values.physic_msg_timestamp = store_timestamp
        if self._waits:
            self.reput.wake()

    def _on_index_full(self, end_timestamp: int) -> None:
        self.checkpoint.values.index_msg_timestamp = end_timestamp
        self.checkpoint.flush()
