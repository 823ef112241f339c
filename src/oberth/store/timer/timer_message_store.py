"""TimerMessageStore: takes timed messages in, keeps them in the wheel, delivers them when due.

A timed message is stored in rmq_sys_wheel_timer first (``store.put_hooks``). From there:

    the timer topic's queue 0 -- enqueue --> timer log, slot of the wheel -- due --> real topic
                  ^----------------- roll, if due after the window ---------|

What is always true: a message is delivered when the slot of its time is over, never before; the
queue offset passes a message only when it is in the timer log or delivered; the read time passes a
slot only when everything in it is delivered. The checkpoint is written when log, wheel and
deliveries are on the disk, in this order. So a crash at any point loses nothing; it may deliver
again what was delivered since the last checkpoint.

A state machine: `on_time` is called with the time, from one thread, and never blocks on a sync.
`begin_flush` gives a piece of work to be done by `flush`, which blocks and may run in another
thread. RocketMQ: TimerMessageStore, whose files are read and written.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from oberth.errors import (
    ConfigFormatError,
    RecordError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.config_files import Metric, TimerMetrics
from oberth.formats.config_json import encode_config, parse_config
from oberth.formats.java_string import tags_hash
from oberth.formats.message import MessageExt, decode_record, properties_at
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.paths import CONFIG, TIMER_LOG, TIMER_WHEEL
from oberth.formats.timer_checkpoint import FILE_SIZE as CHECKPOINT_FILE_SIZE
from oberth.formats.timer_checkpoint import TimerCheckpoint, decode_timer_checkpoint
from oberth.formats.timer_log import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_PREVIOUS,
    UNIT_SIZE,
    TimerLogUnit,
)
from oberth.formats.timer_wheel import SLOTS_A_TURN
from oberth.store.messages import Append, MessageExtBrokerInner, PutMessageStatus
from oberth.store.offers import Offers
from oberth.store.timer.timer_log import TimerLog
from oberth.store.timer.timer_steps import Delivery, Due, TimerFlush, TimerStep
from oberth.store.timer.timer_wheel import Slot, TimerWheel

if TYPE_CHECKING:
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

_DELETE: Final = b"TIMER_DEL_UNIQKEY"

BATCH_SIZE: Final = 1000
"""Messages that one call of `on_time` takes in, and delivers, so that sends go on."""

REBUILD_HINT: Final = (
    "if the setting of its size is right, `oberth store rebuild` removes what does not fit, and "
    "the next start makes it anew"
)

NEIGHBOURS: Final = 1000
"""Units on either side of a slot's that are looked at for what is whole beside a damaged one."""

CLEAN_INTERVAL_MS: Final = 60_000
"""Between two looks for segments of the timer log that nothing needs any more."""

SLOT_COUNT_UNLIMITED: Final = 0x7FFFFFFF
DELAY_MS_MAX: Final = 0x7FFFFFFF
"""The largest delay that a unit can hold."""
ROLL_WINDOW_SLOTS_MAX: Final = SLOTS_A_TURN - 60
DIRECT_ENQUEUE_TIME: Final = 0x7FFFFFFFFFFFFFFF
"""TIMER_ENQUEUE_MS of a message that was due before it could be taken in."""

TIMER_CHECK: Final = "timercheck"
TIMER_METRICS: Final = "timermetrics"


class TimerMessageStore:
    """See the module.

    Args:
        store: where the messages lie; opened before `load` is called.
        store_host: of delivered messages.
    """

    def __init__(self, store: MessageStore, store_host: Callable[[], bytes]) -> None:
        self._store = store
        self._files = store.files
        self._store_host = store_host
        self._config = config = store.config
        self._precision_ms = config.timer_precision_ms
        self._config_dir = f"{store.root}/{CONFIG}"
        self.log = TimerLog(
            store.files, f"{store.root}/{TIMER_LOG}", config.mapped_file_size_timer_log
        )
        self.wheel = TimerWheel(store.files, f"{store.root}/{TIMER_WHEEL}")
        self._metrics = TimerMetrics()
        self._counts: dict[str, int] = {}  # changes of the metrics since they were last merged
        self._count_changes = 0
        window = config.timer_roll_window_slot
        if not 2 <= window <= ROLL_WINDOW_SLOTS_MAX:
            window = ROLL_WINDOW_SLOTS_MAX
        self._window_ms = min(window * self._precision_ms, self._floor(DELAY_MS_MAX))
        self.queue_offset = 0
        """The next message of the timer topic's queue to be taken in."""
        self.write_time_ms = 0
        """Slots before this time are due."""
        self._tick_end: int | None = None
        """Where the timer topic's queue ended when a tick came; None: the tick is dealt with."""
        self._due: Due | None = None
        self._offers = Offers("timer", names.TIMER_TOPIC)
        # Messages that the timer log had when it was opened although the checkpoint says that they
        # are still to be taken in, by their CommitLog offsets, which are below `_known_end`.
        self._known, self._known_end = set[int](), 0
        # Where messages are taken in again: up to which one, and which slots were delivered then.
        self._again_until, self._delivered_until = 0, 0
        self._last_checkpoint = TimerCheckpoint()
        self._next_clean_ms = 0
        self._version = 0
        # Of a slave: up to where its master has taken messages in; the time while it does so too.
        self.append: Append = lambda messages: store.append_messages(messages)
        """Takes what is due; a slave that acts for its master gives it to other brokers."""
        self.readable: Callable[[int, int], int] = lambda offset, count: count
        """Of the timer topic's messages from an offset, how many can be read without the disk.
        0: `on_time` is called again when some can."""
        self.are_readable: Callable[[Callable[[], list[tuple[int, int]]]], bool] = lambda _: True
        """The same of records, given by CommitLog offset and size."""
        self._master_queue_offset = 0
        self._follows_at_ms = 0
        if config.timer_congest_num_each_slot < SLOT_COUNT_UNLIMITED:
            store.commit_log.put_hooks.append(self._refuse_congestion)

    # Opening

    def load(self, now_ms: int) -> None:
        """Opens wheel and log and finds out how far they came.

        Raises:
            StoreCorruptError: a file of a size that is not configured.
            OSError: a file cannot be read.
        """
        checkpoint = self._read_checkpoint()
        self._read_metrics()
        self._last_checkpoint = checkpoint
        self._version = checkpoint.counter
        from_time = checkpoint.last_read_time // self._precision_ms
        log, wheel = self.log, self.wheel
        try:
            trouble = log.load()
            has_wheel = wheel.load(from_time)
        except StoreCorruptError as error:
            raise StoreCorruptError(f"{error}; {REBUILD_HINT}") from error
        if trouble is not None:
            _LOG.error("the timer log is damaged: %s", trouble)
        flushed = checkpoint.last_timer_log_flush_pos
        walk_from = log.first_position
        if has_wheel:
            walk_from = max(walk_from, log.segment_of(max(flushed - log.file_size, 0)))
        last = self._walk(walk_from, from_time, flushed)
        lowest = wheel.lowest_position()
        if lowest is not None and lowest < log.first_position:
            # The log's first files are gone. What they said, the timer topic's queue says as well.
            _LOG.error(
                "the timer log begins at %d, but the timer wheel points to entries from %d on",
                log.first_position,
                lowest,
            )
            wheel.clear()
            self._known.clear()
            log.truncate(log.first_position)
            last = None
        elif lowest is not None and wheel.highest_position() >= log.end:
            # The wheel names units that are not there. What the log holds is the truth.
            _LOG.warning(
                "the timer wheel points to entries that are not in the timer log, it is built anew"
            )
            wheel.clear()
            last = self._walk(log.first_position, from_time, flushed)
        self.queue_offset = self._find_queue_offset(checkpoint, last)
        # The first tick takes in what came before the end of the last run as of that time.
        # A slave's time is its master's.
        away_ms = now_ms - checkpoint.last_read_time
        was_short = 0 <= away_ms < SLOTS_A_TURN * self._precision_ms // 2
        is_slave = self._config.broker_role is BrokerRole.SLAVE
        goes_on = was_short or is_slave
        self.write_time_ms = self._floor(checkpoint.last_read_time if goes_on else now_ms)

    def _read_checkpoint(self) -> TimerCheckpoint:
        data = self._files.read_file(f"{self._config_dir}/{TIMER_CHECK}")
        if not data or len(data) < CHECKPOINT_FILE_SIZE:
            return TimerCheckpoint()
        return decode_timer_checkpoint(data)

    def _read_metrics(self) -> None:
        for path in (TIMER_METRICS, f"{TIMER_METRICS}.bak"):
            data = self._files.read_file(f"{self._config_dir}/{path}")
            if data and data.strip():
                try:
                    self._metrics = TimerMetrics.from_json(parse_config(data, name=path), path)
                except ConfigFormatError as error:
                    _LOG.error(
                        "%s cannot be read, timed messages are counted from 0: %s", path, error
                    )
                    continue
                return

    def _walk(self, start: int, from_time: int, flushed: int) -> TimerLogUnit | None:
        """Enters the log's units into the wheel and ends the log where they end; the last one."""
        end = start
        last: TimerLogUnit | None = None
        self._known, self._known_end = set(), self._store.sound_offset
        for position, unit in self.log.walk(start):
            if position >= flushed and unit.commit_log_offset + unit.record_size > self._known_end:
                break  # the disk had the unit and not yet its message; another one will lie there
            last, end = unit, position + UNIT_SIZE
            time = unit.slot_time // self._precision_ms
            # A unit younger than the checkpoint is never delivered, whatever the clock did.
            if time >= from_time or position >= flushed:
                self.wheel.put(time, position, is_delete=unit.is_delete and not unit.is_roll)
            if position >= flushed:
                self._known.add(unit.commit_log_offset)
        self.log.truncate(end)
        return last

    def _find_queue_offset(self, checkpoint: TimerCheckpoint, last: TimerLogUnit | None) -> int:
        """Where enqueuing goes on. What the log has beyond the checkpoint is in `_known`."""
        offset = checkpoint.last_timer_queue_offset
        if checkpoint.master_timer_queue_offset:
            offset = min(offset, checkpoint.master_timer_queue_offset)
        if self.log.end < checkpoint.last_timer_log_flush_pos:
            # A part of the log is lost: whatever came after its last unit is taken in again.
            record = None
            if last is not None:
                record = self._store.look_message_by_offset(
                    last.commit_log_offset, last.record_size
                )
            found = 0 if record is None else record.queue_offset + 1
            _LOG.error(
                "timer log: it ends at %d, but %d bytes were on the disk; queue offset %d → %d",
                self.log.end, checkpoint.last_timer_log_flush_pos, offset, min(offset, found),
            )  # fmt: skip
            self._again_until = offset
            self._delivered_until = checkpoint.last_read_time // self._precision_ms
            offset = min(offset, found)
        low = max(self._store.min_offset_in_queue(names.TIMER_TOPIC, 0), 0)
        high = self._store.max_offset_in_queue(names.TIMER_TOPIC, 0)
        return min(max(offset, low), max(high, low))

    # Time

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self._precision_ms

    @property
    def read_time_ms(self) -> int:
        """Everything in slots before this time is delivered."""
        earliest = self.wheel.earliest()
        if earliest is None:
            return self.write_time_ms
        return min(earliest.time * self._precision_ms, self.write_time_ms)

    def on_time(self, now_ms: int, batch_size: int = BATCH_SIZE) -> TimerStep:
        """Delivers what is due and takes in what is new, up to ``batch_size`` messages of each."""
        appended = 0
        more = False
        time_ms = self._floor(now_ms)
        if time_ms > self.write_time_ms and self._may_enqueue(time_ms):
            # What came before this tick is taken in as of then: a message and its recall meet in
            # one slot, however late they are looked at.
            if self._tick_end is None:
                self._tick_end = self._store.max_offset_in_queue(names.TIMER_TOPIC, 0)
            readable = self._readable_count(batch_size)
            if not readable:
                return TimerStep(appended, False)
            count, ok = self._enqueue(now_ms, readable)
            appended += count
            if ok and self.queue_offset < self._tick_end:
                return TimerStep(appended, True)
        self._tick_end = None
        self.write_time_ms = time_ms
        readable = self._readable_count(batch_size)
        if readable and self._may_enqueue(time_ms):
            count, ok = self._enqueue(now_ms, readable)
            appended += count
            more |= ok and self.enqueue_behind > 0
        if not self._config.timer_stop_dequeue:
            count, ok = self._dequeue(now_ms, batch_size)
            appended += count
            more |= ok and self.is_due
        return TimerStep(appended, more)

    def _readable_count(self, count_max: int) -> int:
        """How many messages may be taken in now; 0: they are not in memory."""
        low = self._store.min_offset_in_queue(names.TIMER_TOPIC, 0)
        offset = max(self.queue_offset, low)
        behind = self._store.max_offset_in_queue(names.TIMER_TOPIC, 0) - offset
        return self.readable(offset, min(count_max, behind)) if behind > 0 else count_max

    def _may_enqueue(self, time_ms: int) -> bool:
        earliest = self.wheel.earliest()
        return not self._config.timer_stop_enqueue and not (
            # A slot that was missed for a whole turn could be in the place of a new one.
            earliest is not None and earliest.time + SLOTS_A_TURN < time_ms // self._precision_ms
        )

    def follow(self, master: TimerCheckpoint) -> None:
        """A slave's master has come so far: what is taken in here, and what is not due any more."""
        self._master_queue_offset = master.master_timer_queue_offset
        self.write_time_ms = max(self.write_time_ms, self._floor(master.last_read_time))

    def pass_by(self, other: TimerCheckpoint) -> None:
        """A slave that acted for this master has delivered so far: it is not due here any more."""
        self.write_time_ms = max(self.write_time_ms, self._floor(other.last_read_time))
        while self.is_due:
            self.wheel.remove_earliest()

    def take_metrics(self, metrics: TimerMetrics) -> None:
        """A slave's master counts its timed messages."""
        if metrics.data_version != self._metrics.data_version:
            self._metrics = metrics

    def on_time_of_slave(self, now_ms: int, batch_size: int = BATCH_SIZE) -> TimerStep:
        """Takes in what the master's timer has taken in, and drops what that has delivered.

        Nothing is put into the store. What goes into a slot here the master has in one that is not
        later, so that no message is dropped before the master has delivered it.
        """
        while self.is_due:
            self.wheel.remove_earliest()
        end = min(self._master_queue_offset, self._store.max_offset_in_queue(names.TIMER_TOPIC, 0))
        if self.write_time_ms <= 0 or self.queue_offset >= end:
            return TimerStep(0, more=False)
        if not self._may_enqueue(now_ms):
            return TimerStep(0, more=False)
        self._follows_at_ms = self._floor(now_ms)
        try:
            readable = self._readable_count(min(batch_size, end - self.queue_offset))
            if not readable:
                return TimerStep(0, more=False)
            _, ok = self._enqueue(now_ms, readable)
        finally:
            self._follows_at_ms = 0
        return TimerStep(0, more=ok and self.queue_offset < end)

    @property
    def is_due(self) -> bool:
        """Whether a slot that is over is not delivered completely."""
        earliest = self.wheel.earliest()
        return earliest is not None and earliest.time * self._precision_ms < self.write_time_ms

    @property
    def enqueue_behind(self) -> int:
        """Messages of the timer topic that are not taken in yet."""
        return self._store.max_offset_in_queue(names.TIMER_TOPIC, 0) - self.queue_offset

    # Taking in

    def _enqueue(self, now_ms: int, count_max: int) -> tuple[int, bool]:
        """Takes messages in; how many went to their topics at once, and whether all went well."""
        store = self._store
        end = store.max_offset_in_queue(names.TIMER_TOPIC, 0)
        if self.queue_offset >= end:
            return 0, True
        try:
            self.log.make_room()
        except StoreFullError as error:  # before anything is done: all of it is tried again
            _LOG.error("the timer log cannot be written: %s", error)
            return 0, False
        low = store.min_offset_in_queue(names.TIMER_TOPIC, 0)
        offset = self.queue_offset = max(self.queue_offset, low)
        units = store.iterate_consume_queue(
            names.TIMER_TOPIC, 0, offset, min(count_max, end - offset)
        )
        direct: list[Delivery] = []
        # Queue offset, log offset, size, properties, slot time.
        timed: list[tuple[int, int, int, bytes, int]] = []
        known: list[tuple[int, int]] = []  # queue offset, log offset
        is_past_known = False
        for unit in units:
            offset += 1
            if not unit.is_message:
                continue
            if self._known:
                is_past_known = unit.commit_log_offset >= self._known_end
                if unit.commit_log_offset in self._known:
                    known.append((offset, unit.commit_log_offset))
                    continue
            record = store.commit_log.select(unit.commit_log_offset, unit.record_size)
            try:
                raw = b"" if record is None else properties_at(record)
            except RecordError as error:
                _LOG.error("the timed message at %d is damaged: %s", unit.commit_log_offset, error)
                continue
            if record is None:
                _LOG.error("the timed message at %d cannot be read", unit.commit_log_offset)
                continue
            if offset <= self._again_until and self._was_delivered(raw):
                continue
            slot_time = self._slot_time(raw)
            if slot_time >= self.write_time_ms:
                timed.append((offset, unit.commit_log_offset, unit.record_size, raw, slot_time))
            elif self._follows_at_ms:
                continue  # the master has delivered it
            elif p.find_property(raw, _DELETE) is None:
                delivery = self._restore(record, unit.commit_log_offset, offset, None, now_ms)
                if delivery is not None:
                    direct.append(delivery)
        failed_at = self._append(direct)
        reached = offset if failed_at is None else direct[failed_at].end - 1
        for end_offset, commit_log_offset, size, raw, slot_time in timed:
            if end_offset > reached:
                break
            self._put_unit(commit_log_offset, size, raw, slot_time)
        # What is behind a message that has to wait is looked at again.
        self._known.difference_update([at for end_offset, at in known if end_offset <= reached])
        if is_past_known and failed_at is None:
            self._known.clear()
        self.queue_offset = reached
        return len(direct) if failed_at is None else failed_at, failed_at is None

    @staticmethod
    def _slot_time(raw: bytes) -> int:
        return _number(p.find_property(raw, b"TIMER_OUT_MS"))

    def _was_delivered(self, raw: bytes) -> bool:
        """Whether a message that was in the wheel before has left it, or has rolled on."""
        return self._slot_time(raw) // self._precision_ms < self._delivered_until

    def _put_unit(
        self, commit_log_offset: int, size: int, raw: bytes, slot_time: int, *, again: bool = False
    ) -> None:
        """Enters a message. After `TimerLog.make_room` it cannot fail."""
        # A slave's master may have rolled the message into a slot as late as its time then.
        write_time = max(self.write_time_ms, self._follows_at_ms)
        magic = MAGIC_DEFAULT
        window_ms = self._window_ms
        delay = slot_time - write_time
        if delay >= window_ms:
            magic |= MAGIC_ROLL
            # Not a short last stretch: where little would remain, two of half a window.
            near = delay - window_ms < window_ms // 3 and not self._follows_at_ms
            slot_time = self._floor(write_time + (window_ms // 2 if near else window_ms))
        # Nearly no message has the name, and `in` takes a tenth of the time.
        is_delete = _DELETE in raw and p.find_property(raw, _DELETE) is not None
        if is_delete:
            magic |= MAGIC_DELETE
        is_rolling = bool(magic & MAGIC_ROLL)
        time = slot_time // self._precision_ms
        slot = self.wheel.get(time)
        real_topic = p.find_property(raw, b"REAL_TOPIC") or b""
        position = self.log.append(
            TimerLogUnit(
                NO_PREVIOUS if slot is None else slot.last_pos,
                magic,
                write_time,
                slot_time - write_time,
                commit_log_offset,
                size,
                tags_hash(real_topic),
            )
        )
        self.wheel.put(time, position, is_delete=is_delete and not is_rolling)
        if not (again or self._follows_at_ms):  # it is counted, or its master counts
            self._count(str(real_topic, "utf-8", "replace"), -1 if is_delete else 1)

    def _refuse_congestion(
        self, message: MessageExtBrokerInner
    ) -> MessageExtBrokerInner | PutMessageStatus:
        """A put hook: no more messages into a slot that is full."""
        if message.topic != names.TIMER_TOPIC or not message.convert:
            return message
        slot = self.wheel.get(self._slot_time(message.properties_raw) // self._precision_ms)
        if slot is not None and slot.num >= self._config.timer_congest_num_each_slot:
            return PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
        return message

    # Delivering

    def _dequeue(self, now_ms: int, count_max: int) -> tuple[int, bool]:
        """Delivers; how many messages, and whether all went well."""
        appended = 0
        while count_max > 0 and self.is_due:
            due = self._due
            earliest = self.wheel.earliest()
            assert earliest is not None
            if due is None or (due.time, due.last_pos) != (earliest.time, earliest.last_pos):
                # A clock that was set back can bring more into a slot that is at work, or an
                # earlier one before it.
                try:
                    due = self._due = self._open_slot(earliest.time)
                except StoreFullError as error:
                    _LOG.error("the timer log cannot be written: %s", error)
                    return appended, False
            stop = min(due.done + count_max, len(due.positions))
            if not self.are_readable(partial(self._records, due.positions[due.done : stop])):
                return appended, False
            deliveries = []
            for number in range(due.done, stop):
                delivery = self._due_message(due, number, now_ms)
                if delivery is not None:
                    deliveries.append(delivery)
            count_max -= stop - due.done
            failed_at = self._append(deliveries)
            for delivery in deliveries[:failed_at]:
                self._count(delivery.real_topic, -1)
            if failed_at is not None:
                due.done = deliveries[failed_at].end - 1
                return appended + failed_at, False
            appended += len(deliveries)
            due.done = stop
            if due.done == len(due.positions):
                self._due = None
                self.wheel.remove_earliest()
        return appended, True

    def _records(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """Where the messages of units of the timer log lie, and their sizes."""
        units = map(self.log.read, positions)
        return [(unit.commit_log_offset, unit.record_size) for unit in units if unit is not None]

    def _open_slot(self, time: int) -> Due:
        """Reads the chain of a slot's units."""
        slot = self.wheel.get(time)
        assert slot is not None
        start_ms = time * self._precision_ms
        stop_ms = start_ms + self._precision_ms
        chain, magics, records, is_whole = self.log.chain(
            slot.last_pos, slot.first_pos, lambda time_ms: start_ms <= time_ms < stop_ms
        )
        deletes: set[bytes] = set()
        if is_whole:
            positions = array("q", reversed(chain))
            if any(magic & MAGIC_DELETE for magic in magics):
                del positions[:]
                for number in range(len(chain) - 1, -1, -1):
                    offset, size = records[2 * number], records[2 * number + 1]
                    self._enter(magics[number], chain[number], offset, size, positions, deletes)
        else:
            _LOG.error(
                "timer slot %d: its chain is broken; everything from %d to %d is looked through",
                time, slot.first_pos, slot.last_pos,
            )  # fmt: skip
            self._take_damaged_again(slot)
            positions = array("q")
            start = max(slot.first_pos, self.log.first_position)
            for position, unit in self.log.walk_over(start, slot.last_pos + UNIT_SIZE):
                if unit is not None and unit.slot_time // self._precision_ms == time:
                    self._enter(
                        unit.magic,
                        position,
                        unit.commit_log_offset,
                        unit.record_size,
                        positions,
                        deletes,
                    )
        return Due(time, slot.last_pos, positions, deletes)

    def _take_damaged_again(self, slot: Slot) -> None:
        """Enters messages again whose units are damaged; the timer topic's queue has them still.

        Units are in the order of that queue: what a damaged one said lies there between what its
        neighbours say.
        """
        log = self.log
        begin = max(log.segment_of(slot.first_pos), slot.first_pos - NEIGHBOURS * UNIT_SIZE)
        stop = min(log.end, slot.last_pos + NEIGHBOURS * UNIT_SIZE)
        known: set[int] = set()
        gaps: list[tuple[TimerLogUnit | None, TimerLogUnit | None]] = []
        before: TimerLogUnit | None = None
        in_gap = False
        for _, unit in log.walk_over(begin, stop):
            if unit is None:
                in_gap = True
                continue
            if in_gap:
                gaps.append((before, unit))
            in_gap = False
            known.add(unit.commit_log_offset)
            before = unit
        if in_gap:
            gaps.append((before, None))
        for left, right in gaps:
            low, high = self._number_of(left), self._number_of(right)
            low = self._store.min_offset_in_queue(names.TIMER_TOPIC, 0) if low is None else low + 1
            high = self.queue_offset if high is None else high
            self._take_again(slot.time, low, high, known)

    def _number_of(self, unit: TimerLogUnit | None) -> int | None:
        """The number in the timer topic's queue of a unit's message."""
        if unit is None:
            return None
        record = self._store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
        return None if record is None else record.queue_offset

    def _take_again(self, time: int, low: int, high: int, known: set[int]) -> None:
        """Enters messages of the timer topic that are due in a slot or later, but those known."""
        if low >= high:
            return
        for each in self._store.iterate_consume_queue(names.TIMER_TOPIC, 0, low, high - low):
            if not each.is_message or each.commit_log_offset in known:
                continue
            record = self._store.commit_log.select(each.commit_log_offset, each.record_size)
            try:
                raw = b"" if record is None else properties_at(record)
            except RecordError:
                continue
            slot_time = self._slot_time(raw)
            if slot_time // self._precision_ms >= time:
                known.add(each.commit_log_offset)
                self.log.make_room()
                self._put_unit(each.commit_log_offset, each.record_size, raw, slot_time, again=True)

    def _enter(
        self,
        magic: int,
        position: int,
        commit_log_offset: int,
        size: int,
        positions: array[int],
        deletes: set[bytes],
    ) -> None:
        """A unit of a slot: a message to deliver, or a deletion."""
        if not magic & MAGIC_DELETE or magic & MAGIC_ROLL:
            positions.append(position)
            return
        record = self._store.commit_log.select(commit_log_offset, size)
        if record is None:
            return
        try:
            raw = properties_at(record)
        except RecordError:
            return
        key = p.find_property(raw, _DELETE)
        if key is not None:
            deletes.add(_delete_key(raw, key))

    def _due_message(self, due: Due, number: int, now_ms: int) -> Delivery | None:
        unit = self.log.read(due.positions[number])
        if unit is None:
            _LOG.error("the timer log has no entry at %d any more", due.positions[number])
            return None
        record = self._store.commit_log.select(unit.commit_log_offset, unit.record_size)
        if record is None:
            _LOG.error("the timed message at %d cannot be read", unit.commit_log_offset)
            return None
        if due.deletes and self._is_deleted(record, due.deletes):
            return None
        return self._restore(record, unit.commit_log_offset, number + 1, unit, now_ms)

    @staticmethod
    def _is_deleted(record: memoryview, deletes: set[bytes]) -> bool:
        try:
            raw = properties_at(record)
        except RecordError:
            return False
        key = p.find_property(raw, b"UNIQ_KEY")
        if key is None:
            return False
        return _delete_key(raw, key) in deletes

    def _restore(
        self,
        record: memoryview,
        commit_log_offset: int,
        end: int,
        unit: TimerLogUnit | None,
        now_ms: int,
    ) -> Delivery | None:
        """What is put into the store for a timed message; None if it never can be.

        Like RocketMQ it leaves the stored properties as they are and adds two times.
        """
        try:
            timed = decode_record(record, at=commit_log_offset)
        except RecordError as error:
            _LOG.error("a timed message is damaged: %s", error)
            return None
        raw = timed.properties_raw
        real_topic = str(p.find_property(raw, b"REAL_TOPIC") or b"", "utf-8", "replace")
        topic = real_topic
        queue_id = _number(p.find_property(raw, b"REAL_QID"))
        is_rolling = unit is not None and unit.is_roll
        if is_rolling:
            topic, queue_id = names.TIMER_TOPIC, 0
        elif not names.is_stored_topic(topic) or topic in (
            names.TRANS_HALF_TOPIC,
            names.TIMER_TOPIC,  # it would come from there, again and again
        ):
            _LOG.error(
                "the timed message at %d names topic %r, which no message can be delivered to",
                commit_log_offset,
                topic,
            )
            return None
        enqueue_time = DIRECT_ENQUEUE_TIME if unit is None else unit.enqueue_time
        more = f"TIMER_ENQUEUE_MS\x01{enqueue_time}\x02TIMER_DEQUEUE_MS\x01{now_ms}\x02"
        if is_rolling:
            rolls = _number(p.find_property(raw, b"TIMER_ROLL_TIMES")) + 1
            more += f"TIMER_ROLL_TIMES\x01{rolls}\x02"
        properties = raw if not raw or raw[-1] == 2 else raw + b"\x02"
        added = more.encode()
        if len(properties) + len(added) <= p.PROPERTIES_SIZE_MAX:
            properties += added
        key = (commit_log_offset, timed.store_timestamp)
        return Delivery(self._message(timed, topic, queue_id, properties), real_topic, end, key)

    def _message(
        self, timed: MessageExt, topic: str, queue_id: int, properties: bytes
    ) -> MessageExtBrokerInner:
        return MessageExtBrokerInner(
            topic,
            timed.body,
            properties,
            queue_id,
            timed.flag,
            timed.sys_flag,
            timed.born_timestamp,
            timed.born_host,
            self._store_host(),
            timed.reconsume_times,
            0,
            wait_store_ok=False,
            convert=False,
        )

    def _append(self, deliveries: list[Delivery]) -> int | None:
        """Puts messages into the store; the number of the first that has to wait, or None."""
        return self._offers.offer(self.append, [(each.key, each.message) for each in deliveries])

    # Metrics

    def _count(self, topic: str, difference: int) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + difference
        self._count_changes += 1

    def metrics(self, now_ms: int) -> TimerMetrics:
        """Timed messages under way, by topic. ``now_ms``: the time of what has changed."""
        if self._count_changes:
            counts, self._counts = self._counts, {}
            for topic, difference in counts.items():
                metric = self._metrics.timing_count.setdefault(topic, Metric())
                metric.count += difference
                metric.time_stamp = now_ms
            version = self._metrics.data_version
            self._metrics.data_version = replace(
                version, counter=version.counter + self._count_changes, timestamp=now_ms
            )
            self._count_changes = 0
        return self._metrics

    def runtime_info(self) -> dict[str, str]:
        """Keys of GET_BROKER_RUNTIME_INFO; ``timerSlots`` is Oberth's own."""
        earliest = self.wheel.earliest()
        congestion = 0 if earliest is None else max(earliest.num, 0)
        return {
            "timerReadBehind": str((self.write_time_ms - self.read_time_ms) // 1000),
            "timerOffsetBehind": str(self.enqueue_behind),
            "timerCongestNum": str(congestion),
            "timerSlots": str(len(self.wheel)),
        }

    # Writing down

    def checkpoint(self, now_ms: int) -> TimerCheckpoint:
        """How far the timer has come by now, whether or not that is on the disk."""
        return TimerCheckpoint(
            self.read_time_ms,
            self.log.end,
            self.queue_offset,
            self.queue_offset,
            self._last_checkpoint.state_version,
            now_ms,
            self._version,
        )

    def begin_flush(self, now_ms: int) -> TimerFlush | None:
        """What `flush` is to bring to the disk; None if nothing has changed since the last one."""
        last = self._last_checkpoint
        changes = self.wheel.take_changes()
        reached = (self.log.end, self.queue_offset)
        if (
            reached == (last.last_timer_log_flush_pos, last.last_timer_queue_offset)
            and not changes
            and not self._count_changes
            and self.read_time_ms - last.last_read_time < CLEAN_INTERVAL_MS
        ):
            return None
        self._version += 1
        delete_before = 0
        if now_ms >= self._next_clean_ms:
            self._next_clean_ms = now_ms + CLEAN_INTERVAL_MS
            lowest = self.wheel.lowest_position()
            # Recovery begins a segment before the flushed position.
            delete_before = self.log.end - self.log.file_size
            if lowest is not None:
                delete_before = min(delete_before, lowest)
        checkpoint = self.checkpoint(now_ms)
        metrics = None
        if self._count_changes:
            metrics = encode_config(self.metrics(now_ms).to_json(), pretty=False)
        return TimerFlush(checkpoint, changes, metrics, delete_before)

    def flush(self, work: TimerFlush) -> None:
        """Brings everything up to the time of `begin_flush` to the disk. Blocks.

        Raises:
            StoreError, OSError: it could not; `give_back` takes the work back.
        """
        self.log.write_out()  # what comes meanwhile has no message on the disk yet
        self._store.flush()
        self.log.sync()
        self.wheel.write(work.changes)
        self._write_checkpoint(work.checkpoint)
        if work.metrics is not None:
            self._write_metrics(work.metrics)
        if work.delete_before > 0:
            self.log.delete_before(work.delete_before)
        self._last_checkpoint = replace(work.checkpoint)

    def give_back(self, work: TimerFlush) -> None:
        """`flush` failed: its work is part of the next one."""
        self.wheel.give_back(work.changes)

    def flush_now(self, now_ms: int) -> None:
        """Both steps of a flush. Blocks. Raises as `flush` does."""
        work = self.begin_flush(now_ms)
        if work is None:
            return
        try:
            self.flush(work)
        except BaseException:
            self.give_back(work)
            raise

    def _write_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """In place, as RocketMQ does: the used bytes lie within one sector."""
        path = f"{self._config_dir}/{TIMER_CHECK}"
        created = not self._files.exists(path)
        if created:
            self._files.make_dirs(self._config_dir)
        file = self._files.open(path, create=True)
        try:
            if file.size() != CHECKPOINT_FILE_SIZE:
                file.truncate(CHECKPOINT_FILE_SIZE)
            file.write(checkpoint.encode(), 0)
            file.sync()
        finally:
            file.close()
        if created:
            self._files.sync_directory(os.path.dirname(path))

    def _write_metrics(self, data: bytes) -> None:
        path = f"{self._config_dir}/{TIMER_METRICS}"
        if old := self._files.read_file(path):
            self._files.write_file(f"{path}.bak", old)
        self._files.write_file(path, data)

    def shutdown(self, now_ms: int) -> None:
        """Writes everything down and closes the files. The store must still be open."""
        try:
            self.flush_now(now_ms)
        except (OSError, StoreError) as error:
            _LOG.error("the timer was not closed in order, it will be recovered: %s", error)
        self.log.close()


def _delete_key(raw: bytes, key: bytes) -> bytes:
    """Topic and unique key that a deletion names, or that a message has: none deletes another's.

    With appendTopicForTimerDeleteKey the key of a deletion names its topic already.
    """
    start = (p.find_property(raw, b"REAL_TOPIC") or b"") + b"+"
    return key if key.startswith(start) else start + key


def _number(raw: bytes | None) -> int:
    try:
        return int(raw) if raw else 0
    except ValueError:
        return 0
