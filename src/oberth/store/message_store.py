"""The message store: one object that puts, gets, queries, recovers and cleans.

Lifecycle: ``load`` (opens and recovers), ``start`` (threads, the abort file), ``shutdown`` (the
reverse). As a context manager it does all three. Puts, gets and queries may come from any thread.
There is no event loop here: what may block says so, and `append_messages`, `dispatch_nowait` and
`get_message` never wait for a disk sync.

RocketMQ: DefaultMessageStore.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Final, Self, TypeVar

from oberth.errors import (
    OberthError,
    RecordError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)
from oberth.formats.consume_queue import PRE_BLANK, UNIT, ConsumeQueueUnit
from oberth.formats.marker_files import encode_abort
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    MessageExt,
    decode_record,
)
from oberth.formats.message_store_config import BrokerRole, FlushDiskType, MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.paths import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    DLEDGER_PREFIX,
)
from oberth.kernels.sends import PlainSends, Slot
from oberth.store.allocate import AllocateService
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.cleaning import CleanService
from oberth.store.commit_log import CommitLog
from oberth.store.compaction_store import CompactionStore
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.disk_reserve import DiskReserve
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.dispatch_state import DispatchState
from oberth.store.files import MADV_NORMAL, MADV_RANDOM, FileSystem, OsFileSystem, is_full
from oberth.store.flush import FlushService
from oberth.store.group_commit import Done
from oberth.store.index_repair import rebuild_damaged_files
from oberth.store.index_service import IndexService
from oberth.store.log_checksums import LogChecksums
from oberth.store.mapped_file import MappedFile, TransientStorePool
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.message_reader import MessageReader
from oberth.store.messages import (
    GetMessageResult,
    MessageExtBrokerInner,
    MessageFilter,
    PutMessageResult,
    PutMessageStatus,
    QueryMessageResult,
)
from oberth.store.query import query_records
from oberth.store.queue_statistics import QueueStatistics, queue_statistics
from oberth.store.recovery import RecoveryReport, load_index_at, recover
from oberth.store.recovery_state import FILE_NAME as STATE
from oberth.store.recovery_state import RecoveryState, load_state, save_state
from oberth.store.reput import ReputPosition, ReputService
from oberth.store.retention import HOUR_MS, Retention
from oberth.store.retention_report import (
    GroupOffsets,
    LeavingMessages,
    LeavingSegment,
    RetentionReport,
)
from oberth.store.running_flags import RunningFlag, RunningFlags
from oberth.store.store_checkpoint import StoreCheckpoint
from oberth.store.store_lock import StoreLock
from oberth.wall_clock import now_ms

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

GET_TOTAL_SIZE_MAX: Final = 128 << 20
# Queues are written behind this often, so that other processes see them grow; less often where
# that would take more than a tenth of the time, as with ten thousand queues.
WRITE_BEHIND_INTERVAL_S: Final = 0.1
WRITE_BEHIND_INTERVAL_MAX_S: Final = 2.0
# After so many seconds, or so many dispatched bytes, everything is synced and oberth.state written:
# what a restart after a kill has to read again is at most this much.
CHECKPOINT_INTERVAL_S: Final = 10.0
CHECKPOINT_BYTES: Final = 256 << 20
_PRE_BLANK: Final = ConsumeQueueUnit(*UNIT.unpack(PRE_BLANK))
# Records without a unit that are stepped over to find one: some milliseconds.
_WALK_MAX: Final = 8192


def _no_attributes(_topic: str) -> Mapping[str, str]:
    return {}


class MessageStore:
    """See the module. Every public method says what it may raise beyond StoreClosedError."""

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
        self._checkpoint_lock = threading.Lock()  # one checkpoint at a time
        self.report: RecoveryReport | None = None
        self._state_offset = -1
        # Up to where all units of queues are on the disk, whether or not oberth.state says so yet.
        self._durable_offset = -1
        # Where the log ended when it was opened, and whether all up to there is dispatched: only
        # then the next number of every queue is known, and messages are taken.
        self._found_end = 0
        self._numbered = False
        self._number_lock = threading.Lock()  # guards the change of _numbered
        self._left_by_dispatcher: DispatchState | None = None
        self.started_at_ms = 0

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
            self.files, config, queue, self.flags, clock_ms, topic_attributes
        )
        self.checksums = LogChecksums(self.files, self.root, self.commit_log)
        self._sums_failed = False
        if not config.data_read_ahead_enable:
            self.set_read_ahead(False)
        self.checkpoint = StoreCheckpoint(self.files, f"{self.root}/{CHECKPOINT}")
        self.queues = ConsumeQueueStore(self.files, config, topic_attributes=topic_attributes)
        self.index: IndexService | None = None
        if config.message_index_enable:
            self.index = IndexService(
                self.files, config, clock_ms=clock_ms, on_full=self._on_index_full
            )
        self.dispatcher = CommitLogDispatcher(config, self.queues, self.index, self.checkpoint)
        self.flush_service = FlushService(
            config, queue, self.flags, self._append_each, self._on_flushed
        )
        self.reput = ReputService(
            self.commit_log, self.dispatcher, self.flags, self._dispatch_limit
        )
        self.reader = MessageReader(config, self.commit_log, self.queues)
        self.compaction: CompactionStore | None = None
        if config.enable_compaction and config.line is not Line.V4_9:
            self.compaction = CompactionStore(
                self.files, config, self.root, self.commit_log, self.queues, topic_attributes
            )
        self.retention = Retention(
            config,
            self.files,
            self.root,
            self.commit_log,
            self.queues,
            clock_ms,
            topic_attributes,
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
            clock_ms,
            self.checkpoint_now,
            lambda: self._durable_offset,
            self._reserve,
            self.retention,
        )
        self._waits = self.flush_service.is_sync
        # Since 5.3: what is not synced yet is not shown to consumers.
        self._shows_only_flushed = (
            self._waits and config.line is not Line.V4_9 and not config.read_uncommitted
        )
        # Set by who replicates the log: acknowledgements then wait for slaves too, and what waits
        # for them is refused while too few are there.
        self.waits_for_replicas = False
        self.lacks_replicas: Callable[[], bool] | None = None
        # Under a controller: what not every replica in sync has is not shown to consumers.
        self.confirmed_by_replicas: Callable[[], int] | None = None

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

    # Lifecycle

    def __enter__(self) -> Self:
        self.load()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def load(self) -> RecoveryReport:
        """Opens the files and recovers; returns what was found.

        A full disk may have no blocks for units that the queues lack. Then cleaning deletes by its
        rules; where that does not help the store opens for reading, and takes messages when the
        rest is dispatched.

        Raises:
            StoreLockedError: another process has the store.
            StoreCorruptError: segments of another size than configured, or a gap between them; or
                the store of a DLedger broker.
            OSError: the directory cannot be read or written.
        """
        self.files.make_dirs(self.root)
        self._lock.acquire()
        try:
            abnormal = self.files.exists(f"{self.root}/{ABORT}")
            state = load_state(self.files, self.root)
            # A dispatcher that was killed may have left the index in the middle of something.
            dispatched = DispatchState.load(self.root)
            is_whole = dispatched is None or dispatched.is_whole
            self._left_by_dispatcher = None if is_whole else dispatched
            self.commit_log.queue.load()
            self._refuse_dledger()
            self.queues.load()
            self.retention.load()
            if self.compaction is not None:
                self.compaction.load()
            self.checkpoint.load()
            report = recover(
                self.commit_log,
                self.queues,
                load_index_at(
                    self.index,
                    clean=not abnormal and is_whole,
                    state=state,
                    flushed_timestamp=self.checkpoint.values.index_msg_timestamp,
                ),
                state,
                abnormal=abnormal or (state is not None and not state.clean),
                check_crc=self.config.check_crc_on_recover,
                now_ms=self.clock_ms(),
            )
            # It counts as synced from here on, also what a killed process only wrote.
            self.commit_log.queue.sync_from(report.scanned_from)
            self.checksums.load()
            self.reput.offset = report.dispatch_from
            self.reput.damages = {damage.start: damage.end for damage in report.damages}
            self.reput.found_end = report.log_end
            self.reput.last_record = report.last_record
            self.reput.last_store_timestamp = report.last_store_timestamp
            self._durable_offset = report.dispatch_from
            self._found_end = report.log_end
            self._catch_up(report.log_end)
            if self.index is not None:
                rebuild_damaged_files(self.index, self.commit_log.queue)
            try:
                self._with_reserve(self._write_queues)
            except (OSError, StoreFullError) as error:
                if not is_full(error):
                    raise
                _LOG.error("%s: units of queues stay in memory for now: %s", self.root, error)
            self.queues.correct_min_offsets(self.commit_log.min_offset)
            self.retention.apply()
            if self.compaction is not None:
                self.compaction.recovered()
            self._numbered = False
            self._number()
        except BaseException:
            self._lock.release()
            raise
        self.report = report
        self._loaded = True
        return report

    def _queue_offsets(self) -> dict[tuple[str, int], int]:
        """Where every queue goes on, those that are only kept in a compacted form among them."""
        offsets = self.queues.queue_offsets()
        if self.compaction is not None:
            for key, offset in self.compaction.queue_offsets().items():
                offsets[key] = max(offsets.get(key, 0), offset)
        return offsets

    def _write_queues(self) -> None:
        self.queues.write_behind()

    def _number(self) -> bool:
        """Notes where every queue goes on, if all of the log that was found is dispatched."""
        with self._number_lock:
            if not self._numbered and self.reput.offset >= self._found_end:
                self.commit_log.set_queue_offsets(self._queue_offsets())
                self._numbered = True
            return self._numbered

    def _refuse_dledger(self) -> None:
        # Without a CommitLog recovery takes the queues for left-overs and deletes them; here the
        # messages are there, in a log that is not read.
        if self.commit_log.queue.segments:
            return
        for name in self.files.list(self.root):
            if name.startswith(DLEDGER_PREFIX) and self.files.is_dir(f"{self.root}/{name}"):
                raise StoreCorruptError(
                    f"{self.root}: no CommitLog, but {name}: the log of a DLedger broker "
                    "(enableDLegerCommitLog), which is not supported"
                )

    def _catch_up(self, log_end: int) -> None:
        """Dispatches what queues and index lack, before anybody can put or get."""
        while self.reput.offset < log_end:
            before = self.reput.offset
            self.reput.dispatch_nowait(notify=False)
            if self.reput.offset > before:
                continue
            if not self.reput.is_failing:
                raise StoreError(
                    f"recovery of {self.root} stopped at {before} of {log_end}: "
                    f"{self.flags.describe()}"
                )
            if not self.cleaning.force() and not self._reserve.give_back():
                _LOG.error(
                    "%s: the disk is full, the messages from %d to %d of the log wait until there "
                    "is room; no messages are taken",
                    self.root, before, log_end,
                )  # fmt: skip
                return

    def start(self, *, reput_thread: bool = True, background: bool = True) -> None:
        """Starts the services and creates the abort file.

        Args:
            reput_thread: False if the caller dispatches itself (`dispatch_nowait`).
            background: False for no thread at all: the caller also flushes (`flush`,
                `checkpoint_now`) and cleans (`cleaning.run`) when it wants.
        """
        if not self._loaded:
            raise StoreClosedError(f"{self.root}: start before load")
        self._mark_in_use()
        self._reserve.take()
        self._stopping.clear()
        if self.flush_service.is_sync:
            self.commit_log.queue.prepare_for_syncs()
        if background:
            self._start_threads(reput_thread)
        self.started_at_ms = self.clock_ms()
        self._started = True

    def _mark_in_use(self) -> None:
        """From here on a kill must be seen as one: both marks come before the first put."""
        try:
            self._with_reserve(lambda: self._write_state(clean=False))
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            # One that tells of a clean stop must not be found after a kill. None at all costs the
            # next start a look at everything.
            _LOG.error("%s: no block for %s: %s", self.root, STATE, error)
            self.files.remove(f"{self.root}/{STATE}")  # the sync of the other mark is also its own
        path = f"{self.root}/{ABORT}"
        process_id = None if self.config.line is Line.V4_9 else os.getpid()
        try:
            self.files.write_file(path, encode_abort(process_id))
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            # That it is there says all; an empty file needs no block.
            self.files.open(path, create=True).close()
            self.files.sync_directory(self.root)

    def _start_threads(self, reput_thread: bool) -> None:
        self._allocate.start()
        segment = self.commit_log.queue.last()
        if segment is not None:
            segment.warm_ahead = self._allocate.warm
        self.flush_service.start()
        if reput_thread:
            self.reput.start()
        for name, target in (("queue-flush", self._run_queue_flush), ("clean", self._run_clean)):
            thread = threading.Thread(target=target, name=f"oberth-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def shutdown(self) -> None:
        """Dispatches and syncs what is left, marks a clean stop, unmaps everything."""
        if not self._loaded:
            return
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._started:
            self.reput.shutdown()
            self.flush_service.shutdown()
            # What a sync made visible just now still wants to be dispatched.
            self.reput.shutdown()
            self._allocate.shutdown()
            try:
                self._sum_up()
                self.checkpoint_now(
                    clean=self.flags.is_writeable and not self.dispatch_behind_bytes
                )
                if self.flags.is_writeable and not self.dispatch_behind_bytes:
                    self.files.remove(f"{self.root}/{ABORT}")
            except (OSError, StoreError) as error:
                _LOG.error("the store was not closed in order, it will be recovered: %s", error)
        self._started = False
        self._loaded = False
        self.queues.close()
        if self.index is not None:
            self.index.close()
        if self.compaction is not None:
            self.compaction.close()
        self.commit_log.queue.close()
        self._lock.release()

    def kill(self) -> None:
        """Stops without any of a shutdown's work, as far as one process can: for crash tests."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._loaded = self._started = False
        self._lock.release()

    # Putting

    def append_messages(self, messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        """Appends a burst of independent messages; a result for each, in order. Never waits.

        With SYNC_FLUSH the caller still has to wait (`when_durable`, or use `put_messages`) before
        it acknowledges what `needs_wait`.
        """
        if not self._takes_messages:
            refused = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
            return [refused] * len(messages)
        if self.lacks_replicas is not None and self.lacks_replicas():
            return self._append_what_needs_none(messages)
        results = self.commit_log.append(messages)
        self._wake_after_append()
        return results

    def append_plain(self, sends: PlainSends[_T], slots: Sequence[Slot[_T]]) -> bool:
        """See CommitLog.append_plain; False also while nothing is taken."""
        if not self._takes_messages or self.lacks_replicas is not None:
            return False
        if not self.commit_log.append_plain(sends, slots):
            return False
        self._wake_after_append()
        return True

    def _append_what_needs_none(
        self, messages: Sequence[MessageExtBrokerInner]
    ) -> list[PutMessageResult]:
        """Refuses what would wait for replicas, before any of it is in the log."""
        taken = iter(self.commit_log.append([each for each in messages if not each.wait_store_ok]))
        self._wake_after_append()
        return [
            PutMessageResult(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
            if each.wait_store_ok
            else next(taken)
            for each in messages
        ]

    @property
    def _takes_messages(self) -> bool:
        return (
            self._started
            and self.config.broker_role is not BrokerRole.SLAVE
            and (self._numbered or self._number())
        )

    def _wake_after_append(self) -> None:
        self.flush_service.wake()
        if not self._shows_only_flushed:
            self.reput.wake()

    def needs_wait(self, message: MessageExtBrokerInner, result: PutMessageResult) -> bool:
        """Whether an acknowledgement has to wait, for a sync or for replicas."""
        waits = self._waits or self.waits_for_replicas
        return waits and message.wait_store_ok and result.ok

    def when_durable(self, end_offset: int, done: Done) -> None:
        """See FlushService.when_durable."""
        self.flush_service.when_durable(end_offset, done)

    def put_messages(self, messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        """Appends a burst and waits as flushDiskType says. Blocks."""
        results = self.append_messages(messages)
        if self._waits:
            waiting = [
                result
                for message, result in zip(messages, results, strict=True)
                if message.wait_store_ok and result.ok
            ]
            if waiting:
                status = self.flush_service.wait_durable(waiting[-1].end_offset)
                if status is not PutMessageStatus.PUT_OK:
                    flushed = self.flushed_offset
                    for result in waiting:
                        if result.end_offset > flushed:
                            result.status = status
        return results

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Stores one message (or one MessageExtBatch) and waits as flushDiskType says. Blocks."""
        if (
            self._waits
            and message.wait_store_ok
            and self._takes_messages
            and not (self.lacks_replicas is not None and self.lacks_replicas())
        ):
            return self.flush_service.put(message)
        return self.put_messages((message,))[0]

    def _append_each(
        self,
        messages: Sequence[MessageExtBrokerInner],
        outcomes: list[PutMessageResult | Exception],
    ) -> None:
        """Appends what callers of `put_message` brought, for the one who syncs for them all."""
        self.commit_log.append_each(messages, outcomes)
        self._wake_after_append()

    # Getting

    def _check_open(self) -> None:
        if not self._loaded:
            raise StoreClosedError(f"{self.root}: not open")

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

    def is_resident(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> bool:
        """Whether `get_message` waits for no disk, as far as the system tells. Never waits."""
        return self.reader.is_resident(topic, queue_id, offset, max_msg_nums)

    def bring_in(self, topic: str, queue_id: int, offset: int, max_msg_nums: int) -> None:
        """Waits, without the GIL, until the system has read what `get_message` will read.

        Raises:
            OSError: the disk does not give it.
        """
        self.reader.bring_in(topic, queue_id, offset, max_msg_nums)

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

    # The store as a whole

    @property
    def min_phy_offset(self) -> int:
        """The oldest CommitLog offset. RocketMQ: getMinPhyOffset."""
        return self.commit_log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """The CommitLog's end. RocketMQ: getMaxPhyOffset."""
        return self.commit_log.max_offset

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
        limit = log.max_offset
        if self._shows_only_flushed:
            limit = min(log.queue.flushed_where, limit)
        if self.confirmed_by_replicas is not None:
            limit = min(self.confirmed_by_replicas(), limit)
        return limit

    def dispatch_nowait(self) -> int:
        """Dispatches on the caller's thread; returns the bytes it went forward."""
        return self.reput.dispatch_nowait()

    def append_replica(self, offset: int, data: bytes) -> bool:
        """Appends bytes of the master's log; False if they do not join on to this one.

        Raises:
            StoreFullError: the disk is full.
        """
        self._check_open()
        if not self.commit_log.append_raw(offset, data):
            return False
        self.flush_service.wake()
        self.reput.wake()
        return True

    def set_arrival_listener(
        self, listener: Callable[[str, int, int, int, int, bytes | None, bytes], None] | None
    ) -> None:
        """Sets who is told of each message that became readable.

        Called with topic, queue id, the queue's new end, tags code, store time, bit map and
        properties.
        """
        self.dispatcher.arrival_listener = listener

    def is_os_page_cache_busy(self) -> bool:
        """Whether a put has held the log for suspiciously long."""
        return self.commit_log.is_os_page_cache_busy()

    def set_read_ahead(self, enabled: bool) -> None:
        """Has the kernel read the log ahead or not, in segments that are there and that come."""
        self.config.data_read_ahead_enable = enabled
        advice = MADV_NORMAL if enabled else MADV_RANDOM
        if advice is not None:
            self.commit_log.queue.advise(advice)

    # Deleting

    def delete_topics(self, topics: Collection[str]) -> int:
        """Deletes the queues of topics; records stay in the log until they expire.

        What was put before is dispatched before: a record that came into a queue afterwards would
        have the number of one that is put to the topic when it is made again.
        """
        self._check_open()
        deleted = 0
        for topic in topics:
            deleted += bool(self._delete_queues(topic))
            if self.compaction is not None:
                self.compaction.delete_topic(topic)
        if deleted:
            self.checkpoint_now()
        return deleted

    def _delete_queues(self, topic: str) -> list[int]:
        """The ids of the queues that a topic had."""
        ids: list[int] = []
        can_wait = True
        while not self.commit_log.retire_topic(
            topic,
            lambda _: can_wait and self._is_behind(),  # noqa: B023 - asked at once
            lambda: ids.extend(self.queues.destroy_topic(topic)),
        ):
            can_wait = self._dispatch_more()
        return ids

    def _is_behind(self) -> bool:
        """Whether anything that was put is not dispatched, be it on the disk or not."""
        return self.reput.offset < self.commit_log.max_offset

    def _dispatch_more(self) -> bool:
        """Dispatches some of what waits; False if nothing of it can be."""
        if self._shows_only_flushed:
            self.flush()
        return self.dispatch_nowait() > 0

    def clean_unused_topics(self, keep: Callable[[str], bool]) -> list[str]:
        """Deletes the queues of all topics but the system's and those that are to be kept.

        ``keep`` is asked while nothing is put: a topic is known before its first message.
        """
        self._check_open()
        while self._is_behind() and self._dispatch_more():
            pass
        removed = [
            topic
            for topic in self.queues.unused(keep)
            if self.commit_log.retire_topic(
                topic,
                # As with `delete_topics`; what came meanwhile keeps them until the next run.
                lambda name: keep(name) or self._is_behind(),
                partial(self.queues.destroy_topic, topic),
            )
        ]
        if removed:
            self.checkpoint_now()
        return removed

    def clean_expired_consume_queues(self) -> int:
        """Deletes queues whose last message has left the log."""
        self._check_open()
        removed = sum(
            self.commit_log.retire_queue(
                queue.topic,
                queue.queue_id,
                queue.max_offset,
                partial(self.queues.destroy_queue, queue.topic, queue.queue_id),
            )
            for queue in self.queues.expired(self.commit_log.min_offset)
        )
        if removed:
            self.checkpoint_now()
        return removed

    def retention_report(self, offsets: Iterable[GroupOffsets] = ()) -> RetentionReport:
        """What the next cleaning would take and which groups have not consumed it. Blocks.

        Args:
            offsets: how far groups are: topic, group, next offset by queue.
        """
        self._check_open()
        segments = self.cleaning.leaving()
        low = self.commit_log.min_offset
        low_after = segments[-1].end_offset if segments else low
        now = self.clock_ms()
        report = RetentionReport(
            now_ms=now,
            reserved_hours=self.config.file_reserved_time_hours,
            delete_when=self.config.delete_when,
            due=self.cleaning.due(),
            log_min_offset=low,
            log_min_offset_after=low_after,
            segments=[
                LeavingSegment(
                    segment.path,
                    segment.start_offset,
                    segment.end_offset,
                    (now - segment.modified_time_ms()) / HOUR_MS,
                )
                for segment in segments
            ],
            held=self.retention.held(),
        )
        floors = self.retention.expired_floors()
        for queue in self.queues.all_queues():
            floor = floors.get((queue.topic, queue.queue_id), 0)
            before, after = queue.min_offset, queue.readable_from(max(floor, low_after))
            if after > before >= 0:
                by_time = floor > low and queue.readable_from(floor) == after
                because = "reserve.time" if by_time else "segment"
                report.leaving.append(
                    LeavingMessages(queue.topic, queue.queue_id, before, after, because)
                )
        report.leaving.sort()
        report.add_groups(offsets)
        return report

    def delete_expired_files_manually(self) -> None:
        """Asks for a cleaning run whatever the hour. RocketMQ: executeDeleteFilesManually."""
        self.cleaning.request()

    # Durability in the background

    def flush(self) -> int:
        """Syncs the log now; returns up to where it is on the disk. Blocks."""
        return self.flush_service.flush_now()

    def checkpoint_now(self, *, clean: bool = False) -> None:
        """Syncs log, queues and index, in that order, and then says so in two files. Blocks.

        Raises:
            StoreFullError, OSError: the disk has no room, not even with its reserve given back.
        """
        self._with_reserve(lambda: self._checkpoint(clean=clean))

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Runs what writes; if the disk is full once more, with the blocks of the reserve."""
        try:
            write()
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            with self.reput.paused():
                if not self._reserve.give_back():
                    raise
                write()

    def _checkpoint(self, *, clean: bool) -> None:
        with self._checkpoint_lock:
            position = self.reput.position()
            self.flush_service.flush_now()
            if self.flushed_offset < position.offset:
                return
            self.checksums.save(self.flushed_offset, all_of_it=clean)
            if self.compaction is not None:
                self.compaction.follow()
                self.compaction.flush()
            try:
                self.queues.flush()
            except (OSError, StoreFullError) as error:
                if is_full(error):
                    written = self.queues.sync_written(position.offset)
                    self._durable_offset = max(self._durable_offset, written)
                raise
            self._durable_offset = max(self._durable_offset, position.offset)
            if self.index is not None:
                self.index.flush()
            if self.config.line is not Line.V4_9:  # it knows no such field, and tools go by that
                self.checkpoint.values.logics_physical_offset = position.offset
            self.checkpoint.flush()
            self._save_state(position, clean=clean)

    def _write_state(self, *, clean: bool) -> None:
        position = self.reput.position()
        self.queues.flush()
        if self.index is not None:
            self.index.flush()
        self.flush_service.flush_now()
        self._save_state(position, clean=clean)
        if self._left_by_dispatcher is not None:
            # What it left was repaired, and is on the disk.
            dataclasses.replace(self._left_by_dispatcher, is_whole=True).save(self.root)
            self._left_by_dispatcher = None

    def _save_state(self, position: ReputPosition, *, clean: bool) -> None:
        queues: dict[str, dict[int, tuple[int, int, int]]] = {}
        if clean:
            for (topic, queue_id), extent in self.queues.snapshot().items():
                low, high, record_end = extent
                queues.setdefault(topic, {})[queue_id] = (low, high, record_end)
        save_state(
            self.files,
            self.root,
            RecoveryState(
                safe_offset=position.offset,
                last_record=position.last_record,
                store_timestamp=position.store_timestamp,
                queue_end=position.queue_end,
                queue_count=position.queue_count,
                clean=clean,
                index_counts=dict(self.index.safe_counts()) if self.index is not None else {},
                queues=queues,
            ),
        )
        self._state_offset = position.offset
        self._durable_offset = max(self._durable_offset, position.offset)

    def _on_flushed(self, store_timestamp: int) -> None:
        self.checkpoint.values.physic_msg_timestamp = store_timestamp
        if self._waits:
            self.reput.wake()

    def _on_index_full(self, end_timestamp: int) -> None:
        self.checkpoint.values.index_msg_timestamp = end_timestamp
        self.checkpoint.flush()

    def _run_queue_flush(self) -> None:
        last = time.monotonic()
        pause = WRITE_BEHIND_INTERVAL_S
        while not self._stopping.wait(pause):
            try:
                began = time.monotonic()
                self.queues.write_behind(self._stopping.wait)
                pause = max(WRITE_BEHIND_INTERVAL_S, (time.monotonic() - began) * 9)
                pause = min(pause, WRITE_BEHIND_INTERVAL_MAX_S)
                if self.compaction is not None:
                    self.compaction.follow_stuck()
                self._sum_up()
                now = time.monotonic()
                progress = self.reput.offset - self._state_offset
                if progress >= CHECKPOINT_BYTES or (
                    progress and now - last >= CHECKPOINT_INTERVAL_S
                ):
                    last = now
                    # What came meanwhile: a checkpoint makes the files of new queues without rest.
                    self.queues.write_behind(self._stopping.wait)
                    self.checkpoint_now()
            except (OSError, OberthError) as error:
                if self.flags.set(RunningFlag.LOGIC_DISK_FULL):
                    _LOG.error("queues could not be written: %s", error)
            else:
                if self.flags.bits & RunningFlag.LOGIC_DISK_FULL and not self.reput.is_failing:
                    self.flags.clear(RunningFlag.LOGIC_DISK_FULL)

    def _sum_up(self) -> None:
        try:
            self.checksums.extend()
        except OSError as error:  # the log cannot be read there: its readers will see that too
            if not self._sums_failed:
                _LOG.error("the log cannot be summed up: %s", error)
            self._sums_failed = True

    def _run_clean(self) -> None:
        while not self._stopping.wait(self.config.clean_resource_interval_ms / 1000):
            try:
                self.cleaning.run()
                if self.compaction is not None:
                    self.compaction.run_due()
            except (OSError, OberthError) as error:
                _LOG.error("cleaning failed: %s", error)
