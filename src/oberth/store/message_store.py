"""The message store: one object that puts, gets, queries, recovers and cleans.

Lifecycle: ``load`` (opens and recovers), ``start`` (threads, the abort file), ``shutdown`` (the
reverse). As a context manager it does all three. Puts, gets and queries may come from any thread.
There is no event loop here: what may block says so, and `append_messages`, `dispatch_nowait` and
`get_message` never wait for a disk sync.

RocketMQ: DefaultMessageStore.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from oberth.errors import (
    OberthError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)
from oberth.formats.marker_files import encode_abort
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.names import is_lmq
from oberth.formats.options import Line
from oberth.formats.paths import ABORT, DELAY_PROGRESS, DLEDGER_PREFIX
from oberth.kernels.sends import PlainSends, Slot
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.deleted_topics import find_deleted_topics
from oberth.store.dispatch_state import DispatchState
from oberth.store.file_kinds import refuse_odd_ones
from oberth.store.files import is_full
from oberth.store.group_commit import Done
from oberth.store.index_repair import rebuild_damaged_files
from oberth.store.mapped_file import LONG_SIZE
from oberth.store.messages import (
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from oberth.store.queue_ends import restore_ends, save_ends
from oberth.store.recovery import RecoveryReport, load_index_at, recover
from oberth.store.recovery_state import FILE_NAME as STATE
from oberth.store.recovery_state import RecoveryState, load_state
from oberth.store.retention import HOUR_MS
from oberth.store.retention_report import (
    GroupOffsets,
    LeavingMessages,
    LeavingSegment,
    RetentionReport,
)
from oberth.store.running_flags import RunningFlag
from oberth.store.store_reading import StoreReading

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

# Queues are written behind this often, so that other processes see them grow; less often where
# that would take more than a tenth of the time, as with ten thousand queues.
WRITE_BEHIND_INTERVAL_S: Final = 0.1
WRITE_BEHIND_INTERVAL_MAX_S: Final = 2.0
# After so many seconds, or so many dispatched bytes, everything is synced and oberth.state written:
# what a restart after a kill has to read again is at most this much.
CHECKPOINT_INTERVAL_S: Final = 10.0
CHECKPOINT_BYTES: Final = 256 << 20


class MessageStore(StoreReading):
    """See the module. Every public method says what it may raise beyond StoreClosedError."""

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
            StoreError: there is a file in a directory's place, or a directory in a file's.
            OSError: the directory cannot be read or written.
        """
        self.files.make_dirs(self.root)
        log = self.commit_log.queue
        refuse_odd_ones(self.files, self.root, (*log.directories, *log.read_only_directories))
        self._lock.acquire()
        try:
            abnormal = self.files.exists(f"{self.root}/{ABORT}")
            state = load_state(self.files, self.root)
            # A dispatcher that was killed may have left the index in the middle of something.
            dispatched = DispatchState.load(self.root)
            is_whole = dispatched is None or dispatched.is_whole
            self._left_by_dispatcher = None if is_whole else dispatched
            safe_offset = state.safe_offset if state is not None else 0
            is_clean = not abnormal and (state is None or state.clean)
            self.commit_log.queue.load(None if is_clean else safe_offset)
            self._refuse_dledger()
            self.queues.load()
            restore_ends(self.files, self.root, self.queues)
            self.retention.load()
            if self.compaction is not None:
                self.compaction.load()
            self.checkpoint.load()
            report = self._recover(state, is_clean=not abnormal, is_index_whole=is_whole)
            is_held = self.config.broker_role is BrokerRole.SLAVE and report.damaged_from >= 0
            self.damaged_from = report.damaged_from if is_held else None
            # It counts as synced from here on, also what a killed process only wrote.
            self._unsynced.sync(self.commit_log.queue, report.scanned_from, report.log_end)
            self.checksums.load()
            self._dispatch_from(report)
            if state is not None and report.vouched:
                self._vouched_offset = state.safe_offset
                self._deleted_below = dict(state.deleted)
                self.dispatcher.deleted_below = dict(state.deleted)
            self._dispatch_rest(report)
            # Recovery may have taken from a queue all that it got since it had no files.
            restore_ends(self.files, self.root, self.queues)
            if self.index is not None:
                rebuild_damaged_files(self.index, self.commit_log.queue)
            self._write_queues()
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

    def _recover(
        self, state: RecoveryState | None, *, is_clean: bool, is_index_whole: bool
    ) -> RecoveryReport:
        return recover(
            self.commit_log,
            self.queues,
            load_index_at(
                self.index,
                clean=is_clean and is_index_whole,
                state=state,
                flushed_timestamp=self.checkpoint.values.index_msg_timestamp,
                log_min_offset=self.commit_log.queue.min_offset,
            ),
            state,
            abnormal=not is_clean or (state is not None and not state.clean),
            check_crc=self.config.check_crc_on_recover,
            mends=self.config.broker_role is not BrokerRole.SLAVE,
            flushed_ms=self.checkpoint.values.physic_msg_timestamp,
            now_ms=self.clock_ms(),
            before_mending=self._forget_delay_progress,
        )

    def _forget_delay_progress(self) -> None:
        """Removes what passes deliveries, of which a damaged log may have lost any."""
        path = f"{self.root}/{DELAY_PROGRESS}"
        if self.files.exists(path):
            _LOG.warning("%s is not used, since messages that it passes may be lost", path)
            self.files.remove(path)
            self.files.sync_directory(self.root)

    def _dispatch_from(self, report: RecoveryReport) -> None:
        self.reput.offset = report.dispatch_from
        self.dispatcher.queues_from = report.queues_from
        self.reput.damages = {damage.start: damage.end for damage in report.damages}
        self.reput.found_end = min(report.log_end, self.sound_offset)
        self.reput.last_record = report.last_record
        self.reput.last_store_timestamp = report.last_store_timestamp
        self._durable_offset = report.dispatch_from
        self._found_end = self.reput.found_end

    def _write_behind(self) -> None:
        self.queues.write_behind()

    def _write_queues(self) -> None:
        """Writes the units that recovery made; on a full disk they stay in memory."""
        try:
            self._with_reserve(self._write_behind)
        except (OSError, StoreFullError) as error:
            if not is_full(error):
                raise
            _LOG.error(
                "%s: entries of queues could not be written and stay in memory for now: %s",
                self.root,
                error,
            )

    def _number(self) -> bool:
        """Notes where every queue goes on, if all of the log that was found is dispatched."""
        with self._number_lock:
            if not self._numbered and self.reput.offset >= self._found_end:
                self.commit_log.set_queue_offsets(self._queue_offsets())
                self.dispatcher.queues_from = 0  # all of that is behind us
                self.dispatcher.deleted_below = {}
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

    def _dispatch_rest(self, report: RecoveryReport) -> None:
        """Dispatches what queues and index lack, for topics that were not deleted."""
        log_end = min(report.log_end, self._dispatch_limit())
        # The log has to be seen to its end to know that a topic was deleted.
        deleted = None
        if report.queues_from < log_end == report.log_end:
            deleted = find_deleted_topics(self.files, self.root, self.queues)
        self.dispatcher.deleted = deleted
        self._catch_up(log_end)
        if deleted is None:
            return
        if self.reput.offset < log_end:  # a full disk: the rest comes when others read already
            self.dispatcher.deleted = None
            self._dispatch_anew(report, log_end)
            return
        if deleted.keep_lost():
            self._dispatch_anew(report, log_end)
        self.dispatcher.deleted = None
        self._deleted_below |= dict.fromkeys(deleted.report(), log_end)

    def _dispatch_anew(self, report: RecoveryReport, log_end: int) -> None:
        self.queues.generation += 1  # what the kernels hid is not in the queues
        self._dispatch_from(report)
        self._catch_up(log_end)

    def _catch_up(self, log_end: int) -> None:
        """Dispatches what queues and index lack, before anybody can put or get.

        Not what may not be shown yet: see `confirmed_by_replicas`.
        """
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
        except (OSError, StoreError) as error:
            # With the reserve, too, a sync may be refused that failed for want of room before.
            if isinstance(error, OSError) and not is_full(error):
                raise
            # One that tells of a clean stop must not be found after a kill. None at all costs the
            # next start a look at everything.
            _LOG.error("%s: the file %s cannot be written: %s", self.root, STATE, error)
            self.files.remove(f"{self.root}/{STATE}")  # the sync of the other mark is also its own
            self._vouched_offset = None
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
        """See CommitLog.append_plain; False also while nothing is taken, or replicas lack."""
        if not self._takes_messages:
            return False
        if self.lacks_replicas is not None and self.lacks_replicas():
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

    def dispatch_nowait(self) -> int:
        """Dispatches on the caller's thread; returns the bytes it went forward."""
        return self.reput.dispatch_nowait()

    def append_replica(self, offset: int, *parts: bytes | memoryview) -> bool:
        """Appends bytes of the master's log; False if they do not join on to this one.

        Args:
            offset: of the first of them.
            parts: bytes of one segment, one behind the other.

        Raises:
            OSError: the disk failed.
            StoreFullError: the disk is full.
        """
        self._check_open()
        if not self.commit_log.append_raw(offset, *parts):
            return False
        if len(parts) > 1 or len(parts[0]) >= LONG_SIZE:
            for part in parts:
                self.checksums.append(offset, part)
                offset += len(part)
        self.flush_service.wake()
        self.reput.wake()
        return True

    def end_before_damage(self) -> None:
        """Ends a slave's log where recovery found it damaged. Blocks.

        Its master sends the rest again. Queues, index and checksums have nothing from behind it.
        Nothing may be appended meanwhile.

        Raises:
            StoreFullError, OSError: the disk fails; the damage stays known.
        """
        self._check_open()
        at = self.damaged_from
        if at is None:
            return
        with self._checkpoint_lock, self.flush_service.paused(), self.reput.paused():
            self.commit_log.cut(at)
            for topic, end in self._deleted_below.items():
                self._deleted_below[topic] = min(end, at)
            self.reput.damages = {}
            self.damaged_from = None

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

    # Deleting

    def delete_topics(self, topics: Collection[str]) -> int:
        """Deletes the queues of topics; records stay in the log until they expire.

        What was put before is dispatched before: a record that came into a queue afterwards would
        have the number of one that is put to the topic when it is made again.
        """
        deleted = self.remove_topics(topics)
        if deleted:
            self.settle_removal()
        return deleted

    def remove_topics(self, topics: Collection[str]) -> int:
        """The same, but that a crash may undo it until `settle_removal`, which waits for syncs."""
        self._check_open()
        deleted = 0
        for topic in topics:
            deleted += bool(self._delete_queues(topic))
            if self.compaction is not None:
                self.compaction.delete_topic(topic)
        return deleted

    def settle_removal(self) -> None:
        """Sees to it that what was removed stays so. Blocks; any thread may call it."""
        self._save_queue_ends()
        self.checkpoint_now()

    def _delete_queues(self, topic: str) -> list[int]:
        """The ids of the queues that a topic had."""
        ids: list[int] = []
        can_wait = True
        while not self.commit_log.retire_topic(
            topic,
            lambda _: can_wait and self._is_behind(),  # noqa: B023 - asked at once
            lambda: ids.extend(self._destroy_topic(topic)),
        ):
            can_wait = self._dispatch_more()
        return ids

    def _destroy_topic(self, topic: str) -> list[int]:
        ids = self.queues.destroy_topic(topic)
        if ids:
            self._note_deletion(topic)
        return ids

    def _is_behind(self) -> bool:
        """Whether anything that was put is not dispatched, be it on the disk or not."""
        return self.reput.offset < self.commit_log.max_offset

    def _dispatch_more(self) -> bool:
        """Dispatches some of what waits; False if nothing of it can be."""
        if self._shows_only_flushed:
            self.flush_service.flush_now()
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
                partial(self._destroy_topic, topic),
            )
        ]
        if removed:
            if self.compaction is not None:
                for topic in removed:
                    self.compaction.delete_topic(topic)
            self.settle_removal()
        return removed

    def _save_queue_ends(self, leaving: Sequence[ConsumeQueue] = ()) -> None:
        with self._ends_lock:
            self._with_reserve(lambda: save_ends(self.files, self.root, self.queues, leaving))

    def clean_expired_consume_queues(self) -> int:
        """Deletes the files of queues whose last message has left the log; how many queues.

        Light queues are forgotten; the others go on with their numbers.
        """
        self._check_open()
        removed = 0
        with self._ends_lock:  # until all are empty: else another's save would leave them out
            expired = self.queues.expired(self.commit_log.min_offset)
            self._save_queue_ends([queue for queue in expired if not is_lmq(queue.topic)])
            for queue in expired:
                delete = partial(self.queues.empty_queue, queue)
                if is_lmq(queue.topic):
                    delete = partial(self.queues.destroy_queue, queue.topic, queue.queue_id)
                removed += self.commit_log.retire_queue(
                    queue.topic, queue.queue_id, queue.max_offset, delete
                )
        if removed:
            self.settle_removal()
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
            lake=self.retention.awaited_lake(),
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

    # In the background

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
                is_due = now - last >= CHECKPOINT_INTERVAL_S
                if is_due:
                    last = now
                is_wanted = is_due and (progress or self._begins_differ())
                if (is_wanted or progress >= CHECKPOINT_BYTES) and not self.has_failed_syncs:
                    last = now
                    # What came meanwhile: a checkpoint makes the files of new queues without rest.
                    self.queues.write_behind(self._stopping.wait)
                    self._try_checkpoint()
            except (OSError, OberthError) as error:
                if self.flags.set(RunningFlag.LOGIC_DISK_FULL):
                    _LOG.error("queues could not be written: %s", error)
            else:
                if self.flags.bits & RunningFlag.LOGIC_DISK_FULL and not self.reput.is_failing:
                    self.flags.clear(RunningFlag.LOGIC_DISK_FULL)

    def _try_checkpoint(self) -> None:
        try:
            self.checkpoint_now()
        except (OSError, StoreError):
            # What a failed sync costs are check points: the log has all that is taken.
            if not self.has_failed_syncs:
                raise

    def _sum_up(self) -> None:
        try:
            self.checksums.extend()
        except OSError as error:  # the log cannot be read there: its readers will see that too
            if not self._sums_failed:
                _LOG.error("checksums of the log could not be computed: %s", error)
            self._sums_failed = True

    def _run_clean(self) -> None:
        while not self._stopping.wait(self.config.clean_resource_interval_ms / 1000):
            try:
                self.cleaning.run()
                if self.compaction is not None:
                    self.compaction.run_due()
            except (OSError, OberthError) as error:
                _LOG.error("the cleaning of old files failed, it is tried again: %s", error)
