"""A store whose queues and index another process keeps: the one of a broker with dispatch=spark.

It appends, syncs, cleans and answers like any store; only what follows an append is left to the
dispatcher, whose progress it looks at. While it starts or stops it has queues and index to itself
(`oberth.store.dispatch_handover`): recovery then dispatches what is left, and notes for the
dispatcher where to go on.

It never shows more than the dispatcher has said, nor, with synchronous flushing, more than the disk
has; and never less than before, also while a restarted dispatcher enters messages once more.

A slave whose log a crash has damaged keeps queues and index to itself until its master has sent
that part again (`end_before_damage`): a dispatcher would go on behind the damage, and queues take
nothing in front of what they have. So does one whose disk is full to its last block when it opens,
until the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OptionError, StoreError, StoreLockedError
from oberth.formats.message_store_config import BrokerRole, MessageStoreConfig
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch_handover import LOCK, WANTED, FileLock, Progress, ProgressFile
from oberth.store.dispatch_state import DispatchState
from oberth.store.files import is_full
from oberth.store.message_store import MessageStore
from oberth.store.messages import QueryMessageResult
from oberth.store.recovery import RecoveryReport
from oberth.store.reput import ReputPosition, ReputService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oberth.store.commit_log import CommitLog
    from oberth.store.dispatch import CommitLogDispatcher
    from oberth.store.running_flags import RunningFlags

_LOG: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long a start waits for the dispatcher to step aside, and a stop for it to catch up."""
_STOP_PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.005


class FollowedDispatch(ReputService):
    """Stands where a store's own dispatch stands: takes in what the dispatcher has done."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: CommitLogDispatcher,
        flags: RunningFlags,
        end_offset: Callable[[], int],
        progress: ProgressFile,
        begun: ReputPosition,
    ) -> None:
        super().__init__(log, dispatcher, flags, end_offset)
        self.offset = begun.offset
        self.last_record = begun.last_record
        self.last_store_timestamp = begun.store_timestamp
        self._progress = progress
        self._epoch = 0
        self.has_all_puts = True

    def start(self) -> None:
        """No thread: somebody else dispatches."""

    def wake(self) -> None:
        """Nobody to wake: the dispatcher looks for itself."""

    def shutdown(self, timeout_s: float = _STOP_PATIENCE_S) -> None:
        """Waits until the dispatcher has come to the log's end, for at most so long."""
        deadline = time.monotonic() + timeout_s
        while self.behind_bytes and time.monotonic() < deadline:
            if not self.dispatch_nowait():
                time.sleep(_LOOK_S)

    def dispatch_nowait(self, *, notify: bool = True) -> int:
        """Takes in what the dispatcher has shown; returns the bytes it went forward."""
        told = self._progress.read()
        if told is None:
            return 0
        limit = min(told.position, self._end_offset())
        if limit <= self.offset:
            return 0
        queues = self._dispatcher.queues
        if told.epoch != self._epoch:
            # A new dispatcher may have made files anew: what is open may be the old ones.
            self._epoch = told.epoch
            queues.pool.close()
        grown = self._take_in(limit)
        forward, self.offset = limit - self.offset, limit
        self.last_store_timestamp = told.store_timestamp
        listener = self._dispatcher.bulk_arrival_listener
        if notify and listener is not None:
            for topic, queue_id, end in grown:
                listener(topic, queue_id, end)
        return forward

    def _take_in(self, limit: int) -> list[tuple[str, int, int]]:
        """Brings queues up to date; gives topic, number and new end of those that grew."""
        queues = self._dispatcher.queues
        before: dict[tuple[str, int], int] = {}
        known = self.has_all_puts
        if known:
            for topic, queue_id, end in self._log.queue_ends():
                queue = queues.find(topic, queue_id)
                known = known and queue is not None
                if queue is None or queue.max_offset < end:
                    before[topic, queue_id] = 0 if queue is None else queue.max_offset
        if known:
            for topic, queue_id in before:
                queue = queues.find(topic, queue_id)
                assert queue is not None
                queue.refresh(limit)
        else:
            # New queues have to be looked for, and so have light ones and a slave's.
            before = {(q.topic, q.queue_id): q.max_offset for q in queues.all_queues()}
            queues.refresh(limit)
        return [
            (queue.topic, queue.queue_id, queue.max_offset)
            for queue in queues.all_queues()
            if queue.max_offset > before.get((queue.topic, queue.queue_id), 2**63 if known else 0)
        ]


class FollowingStore(MessageStore):
    """A MessageStore that is dispatched by another process.

    Raises:
        OptionError: a setting that needs a dispatch of its own.
    """

    def __init__(self, config: MessageStoreConfig, **given: Any) -> None:
        if config.enable_consume_queue_ext:
            raise OptionError("dispatch=spark does not go with enableConsumeQueueExt=true")
        super().__init__(config, **given)
        self._own_dispatch = self.reput
        self._progress: ProgressFile | None = None
        self._alone: ExitStack | None = None  # as long as the dispatcher stays aside

    @contextmanager
    def _to_itself(self, patience_s: float) -> Iterator[None]:
        """Has queues and index to itself: asks the dispatcher to step aside, and waits for it."""
        wanted, lock = FileLock(self.root, WANTED), FileLock(self.root, LOCK)
        try:
            wanted.acquire(patience_s)
            lock.acquire(patience_s)
            yield
        finally:
            lock.close()
            wanted.close()

    def load(self) -> RecoveryReport:
        """Opens the files and recovers, alone; then leaves queues and index to the dispatcher.

        Raises:
            StoreLockedError: another process has the store, or its dispatcher does not step aside.
        """
        with ExitStack() as alone:
            alone.enter_context(self._to_itself(PATIENCE_S))
            self.reput = self._own_dispatch
            self.queues.pool.writable = True
            if self.index is not None:
                self.index.is_kept_elsewhere = False
            report = super().load()
            try:
                is_left = self.damaged_from is None and self._leave_if_there_is_room()
            except BaseException:
                self._loaded = False
                self._lock.release()
                raise
            if not is_left:
                self._alone = alone.pop_all()
        return report

    def _leave_if_there_is_room(self) -> bool:
        """Leaves queues and index to the dispatcher; False where a full disk cannot note that.

        Then they are this store's until the next start: it may have units that no file has.
        """
        try:
            self._with_reserve(self._leave_to_dispatcher)
        except (OSError, StoreError) as error:
            # With the reserve, too, a sync may be refused that failed for want of room before.
            if not is_full(error) and (isinstance(error, OSError) or not self.has_failed_syncs):
                raise
            _LOG.error(
                "%s: the disk is full, the broker itself dispatches until its next start: %s",
                self.root, error,
            )  # fmt: skip
            return False
        return True

    def end_before_damage(self) -> None:
        """See MessageStore; from here on the dispatcher has queues and index."""
        super().end_before_damage()
        if self._alone is not None:
            self._own_dispatch.shutdown()
            with self._checkpoint_lock:
                if self._leave_if_there_is_room():
                    self._let_go()

    def _let_go(self) -> None:
        """Lets the dispatcher come back, where it was kept aside."""
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def _leave_to_dispatcher(self) -> None:
        begun = self.reput.position()
        super()._write_state(clean=False)
        self._hand_over(begun)

    def _hand_over(self, begun: ReputPosition) -> None:
        counts: Mapping[str, int] = self.index.safe_counts() if self.index is not None else {}
        DispatchState(
            begun.offset, begun.last_record, begun.store_timestamp, begun.queue_end,
            begun.queue_count, dict(counts), self._settings(), is_whole=True,
        ).save(self.root)  # fmt: skip
        if self._progress is None:
            self._progress = ProgressFile(self.root)
        self._progress.write(Progress(0, begun.offset, begun.store_timestamp))
        # From here on nothing fails for want of room.
        for queue in self.queues.all_queues():
            queue.stream.drop_window()
        self.queues.pool.writable = False
        self.queues.pool.close()
        if self.index is not None:
            self.index.is_kept_elsewhere = True
        self.reput = FollowedDispatch(
            self.commit_log, self.dispatcher, self.flags, self._dispatch_limit, self._progress,
            begun,
        )  # fmt: skip
        light = self.config.enable_lmq or self.config.enable_multi_dispatch
        self.reput.has_all_puts = not (light or self.config.broker_role is BrokerRole.SLAVE)

    def _settings(self) -> dict[str, str]:
        usual = MessageStoreConfig().to_properties()
        own = self.config.to_properties()
        chosen = {name: value for name, value in own.items() if value != usual.get(name)}
        chosen.pop("storePathRootDir", None)
        return {**chosen, "rocketmqLine": str(self.config.line)}

    @property
    def _dispatches_itself(self) -> bool:
        """Whether queues and index are this store's.

        While it opens, as long as damage stays, and where a full disk could not note otherwise.
        """
        return self.reput is self._own_dispatch

    def _write_state(self, *, clean: bool) -> None:
        """Nothing more than was written when the dispatcher got queues and index."""
        if self._dispatches_itself:
            super()._write_state(clean=clean)

    def _checkpoint(self, *, clean: bool) -> None:
        """Syncs the log and notes what the dispatcher has on the disk."""
        with self._checkpoint_lock:
            if self._dispatches_itself:
                # Until the next start a dispatcher may go behind this.
                super()._checkpoint(clean=False)
            elif clean:
                try:
                    with self._to_itself(_STOP_PATIENCE_S):
                        self._note(clean=True)
                except StoreLockedError as error:
                    _LOG.warning(
                        "the store is not closed in order, the dispatcher still works on it (%s)",
                        error,
                    )
                    self._note(clean=False)
            else:
                self._note(clean=False)

    def settle_removal(self) -> None:
        """See MessageStore; has the dispatcher step aside, which then opens the queues anew.

        Else a start after a crash would miss what it noted, and dispatch the log from its
        beginning, deleted topics too.
        """
        self._save_queue_ends()
        self._with_reserve(self._settle)

    def _settle(self) -> None:
        with self._checkpoint_lock:
            if not self._dispatches_itself:
                try:
                    with self._to_itself(_STOP_PATIENCE_S):
                        self._count_again()
                except StoreError as error:
                    _LOG.warning("after a crash a deleted topic may come back: %s", error)
            self._checkpoint(clean=False)

    def _count_again(self) -> None:
        """Notes how many queues are left, and up to where they reach; nobody writes to them."""
        state = DispatchState.load(self.root)
        if state is None:
            return
        left = ConsumeQueueStore(self.files, self.config, writable=False)
        try:
            left.load()
            left.recover()
            count = sum(len(table) for table in left.table.values())
            end = left.max_physic_offset
        finally:
            left.close()
        replace(state, queue_count=count, queue_end=end).save(self.root)

    def _note(self, *, clean: bool) -> None:
        state = DispatchState.load(self.root)
        if state is None:
            return
        deleted = self._deletions_below(state.position)
        seen = self.reput.offset
        self.flush_service.flush_now()
        if self.flushed_offset < state.position:
            return
        done = clean and state.is_whole and state.position == self.max_phy_offset
        if done:
            self.queues.refresh(state.position)
        self._copy_compacted()
        # From the queues as they are known here, which may be less than the dispatcher has noted.
        self._durable_offset = max(self._durable_offset, min(state.position, seen))
        self.checksums.save(self.flushed_offset, all_of_it=clean)
        values = self.checkpoint.values
        values.logics_physical_offset = state.position
        values.logics_msg_timestamp = max(values.logics_msg_timestamp, state.store_timestamp)
        self.checkpoint.flush()
        position = ReputPosition(
            state.position,
            state.last_record,
            state.store_timestamp,
            state.queue_end,
            state.queue_count,
        )
        self._save_recovery_state(position, state.index_counts, deleted, clean=done)
        self._state_offset = self.reput.offset
        self._vouched_offset = state.position

    def shutdown(self) -> None:
        """Waits for the dispatcher, syncs, marks a clean stop if nothing is left to dispatch."""
        super().shutdown()
        self._let_go()
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def kill(self) -> None:
        """See MessageStore."""
        super().kill()
        self._let_go()

    def query_message(self, *arguments: Any, **named: Any) -> QueryMessageResult:
        """See MessageStore; with what the dispatcher has entered meanwhile."""
        if self.index is not None and self.index.is_kept_elsewhere:
            self.index.refresh()
        return super().query_message(*arguments, **named)
