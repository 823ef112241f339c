"""ConsumeQueue units from scanned columns.

`build_units` turns the next rows of a CommitLog into runs of units, one or more per queue, in the
order of the log. It keeps in a `QueueTable` where each queue ends, so it is called again and again
over a log of any size, and a queue that exists already is gone on with.

The rules are RocketMQ's (ConsumeQueue.putMessagePositionInfoWrapper): prepared and rolled-back
records get no unit; what is in the queue already is passed over; otherwise a unit lies at its
record's queue offset. They differ where the log has holes or wrong numbers, because RocketMQ then
writes units at places that their numbers do not name:

    the record's queue offset     RocketMQ                   here
    is the queue's end            appended                   the same
    before the end                no unit                    the same; with `restart` (a topic that was
                                                             deleted and made again) the queue begins anew
    past the end                appended at the end        a new run at its own ordinal; the caller fills
                                                             what is between with pre-blank units
    off, but the queue's next     as above, and all that     put where it belongs: only this number is
    record shows that it is wrong follow are shifted         wrong, or left out when it is not this queue's

Each such case is reported as an anomaly. What the next record of a queue shows may lie behind the
rows: then the caller is asked for it, so that nothing depends on where a log was cut. RocketMQ: DefaultMessageStore (dispatch), ConsumeQueue,
BatchConsumeQueue, MultiDispatch (light message queues).
"""  # noqa: E501 - the table

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from oberth.formats import batch_consume_queue, consume_queue
from oberth.formats.message import FIXED_SIZE_V1, SCHEDULE_TOPIC
from oberth.formats.sys_flag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.arguments import QueueAnomaly, QueueStop
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.layout import LMQ_PREFIX, LOOK_AHEAD_ROWS, RETRY_PREFIX, SYSTEM_PREFIX
from oberth.kernels.memory import Buffer, address, uninitialised

# A queue offset further ahead of the queue's end than this is taken for damage.
GAP_UNITS_MAX: Final = 16_000_000
# More anomalies than this are counted but not listed.
ANOMALIES_KEPT: Final = 1024
# One record's properties can name this many queues at most.
_MULTI_NAMES_MAX: Final = 32_768
_SPARE_QUEUES: Final = 64
_INT64_MAX: Final = 2**63 - 1
_UNIT_SIZES: Final = (consume_queue.UNIT_SIZE, batch_consume_queue.UNIT_SIZE)  # by kind
assert (at.KIND_SIMPLE, at.KIND_BATCH) == (0, 1)


Behind = Callable[[bytes, int, int], int]
"""Gives the queue offset of the first record that has a unit in a queue (topic and id), among so
many records behind the rows; -1 if none has one."""


class UnitRun(NamedTuple):
    """Units of one queue without a hole between them.

    Attributes:
        topic: of the queue, as in the log.
        queue_id: of the queue.
        is_batch: whether they are BatchConsumeQueue units (46 bytes) or ConsumeQueue's (20).
        first: ordinal of the first unit; for a batch queue the number of the unit.
        unit_count: how many there are.
        units: their bytes.
        skipped: units between the queue's end before and ``first`` whose records the log lacks.
        restarts: the queue begins anew, its units so far are to be dropped.
    """

    topic: bytes
    queue_id: int
    is_batch: bool
    first: int
    unit_count: int
    units: memoryview
    skipped: int
    restarts: bool


class Anomaly(NamedTuple):
    """A record with an odd place in its queue: where it starts and what is odd."""

    commit_log_offset: int
    what: QueueAnomaly


class BuiltUnits(NamedTuple):
    """The units of some rows.

    Attributes:
        runs: in the order in which their queues occur; a queue's runs in order of the log.
        anomalies: the first `ANOMALIES_KEPT` of them.
        anomaly_count: how many there were.
    """

    runs: list[UnitRun]
    anomalies: list[Anomaly]
    anomaly_count: int


class QueueState(NamedTuple):
    """Where a queue ends.

    Attributes:
        topic_id: of the queue, in the topic table.
        queue_id: of the queue.
        is_batch: whether it is a BatchConsumeQueue.
        next_ordinal: of the next unit, -1 for a queue without units.
        max_offset: CommitLog offset of the end (batch: the start) of the last record in it, or -1.
    """

    topic_id: int
    queue_id: int
    is_batch: bool
    next_ordinal: int
    max_offset: int


class QueueEnd(NamedTuple):
    """Where a queue goes on.

    Attributes:
        next_ordinal: of the next unit (batch: number of units), -1 for a queue without units.
        max_offset: CommitLog offset of the end (batch: start) of the last record in it, or -1.
        is_batch: whether it is a BatchConsumeQueue.
    """

    next_ordinal: int
    max_offset: int
    is_batch: bool


class QueueTable:
    """Where each queue ends; grows. One thread at a time.

    Topics are numbered by the `TopicTable` that the scans use as well.
    """

    def __init__(
        self,
        topics: TopicTable,
        batch_topics: Collection[bytes] = (),
        ends: Callable[[bytes, int], QueueEnd | None] | None = None,
    ) -> None:
        """Makes an empty table.

        Args:
            topics: numbers the topics of the columns that will be built from.
            batch_topics: topics whose queues are BatchConsumeQueues.
            ends: where a queue (topic and id) ends when the table meets it first; None if there is
                no such queue. Without it all queues begin empty, but for `set_end`.
        """
        self.topics = topics
        self.batch_topics = batch_topics
        self.ends = ends
        self.count = 0
        self.capacity = 0
        self.states = bytearray()
        self.slots = bytearray()
        self.slot_count = 0
        self.kinds = bytearray()
        self.grow()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[QueueState]:
        for number in range(self.count):
            yield self.state(number)

    def _fields(self) -> memoryview[int]:
        return memoryview(self.states).cast("q")

    def state(self, number: int) -> QueueState:
        """One queue's state by its number."""
        fields = self._fields()[number * at.QUEUE_FIELDS : (number + 1) * at.QUEUE_FIELDS]
        return QueueState(
            fields[at.QUEUE_TOPIC],
            fields[at.QUEUE_ID],
            fields[at.QUEUE_KIND] == at.KIND_BATCH,
            fields[at.QUEUE_NEXT],
            fields[at.QUEUE_MAX],
        )

    def set_end(self, topic: bytes, queue_id: int, next_ordinal: int, max_offset: int) -> None:
        """Makes a queue go on at an ordinal, as when its files exist already.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            next_ordinal: of the next unit (batch: number of units), -1 for a queue without units.
            max_offset: end (batch: start) of the last record in the queue, or -1.
        """
        number = self.number(self.topics.intern(topic), queue_id)
        fields = self._fields()
        fields[number * at.QUEUE_FIELDS + at.QUEUE_NEXT] = next_ordinal
        fields[number * at.QUEUE_FIELDS + at.QUEUE_MAX] = max_offset

    def refresh(self, topic: bytes, queue_id: int) -> None:
        """Asks again where a queue ends, if the table has met it."""
        topic_id = self.topics.find(topic)
        if topic_id is not None and (number := self._find(topic_id, queue_id)[0]) is not None:
            self.fill(number, number + 1)

    def fill(self, first: int, stop: int) -> None:
        """Asks where queues that were met end, by their numbers."""
        if self.ends is None:
            return
        fields = self._fields()
        for number in range(first, stop):
            start = number * at.QUEUE_FIELDS
            topic_id, queue_id = fields[start + at.QUEUE_TOPIC], fields[start + at.QUEUE_ID]
            end = self.ends(self.topics.names[topic_id], queue_id)
            if end is None:  # a topic that the kernel met was of no kind yet
                end = QueueEnd(-1, -1, self.topic_kinds()[topic_id] == at.KIND_BATCH)
            fields[start + at.QUEUE_NEXT] = end.next_ordinal
            fields[start + at.QUEUE_MAX] = end.max_offset
            fields[start + at.QUEUE_KIND] = at.KIND_BATCH if end.is_batch else at.KIND_SIMPLE

    def number(self, topic_id: int, queue_id: int) -> int:
        """The number of a queue, which is added if it is new."""
        known, slot = self._find(topic_id, queue_id)
        if known is not None:
            return known
        if self.count == self.capacity:
            self.grow()
            return self.number(topic_id, queue_id)
        kind = self.topic_kinds()[topic_id]
        fresh = array("q", (topic_id, queue_id, kind, -1, -1, 0, 0, -1))
        start = self.count * at.QUEUE_FIELDS
        self._fields()[start : start + at.QUEUE_FIELDS] = memoryview(fresh)
        self.count += 1
        memoryview(self.slots).cast("i")[slot] = self.count
        self.fill(self.count - 1, self.count)
        return self.count - 1

    def _find(self, topic_id: int, queue_id: int) -> tuple[int | None, int]:
        """A queue's number, None if it is not known, and its slot."""
        slots, fields = memoryview(self.slots).cast("i"), self._fields()
        slot = _queue_hash(topic_id, queue_id) & self.slot_count - 1
        while slots[slot]:
            start = (slots[slot] - 1) * at.QUEUE_FIELDS
            known = fields[start + at.QUEUE_TOPIC], fields[start + at.QUEUE_ID]
            if known == (topic_id, queue_id):
                return slots[slot] - 1, slot
            slot = slot + 1 & self.slot_count - 1
        return None, slot

    def topic_kinds(self) -> bytearray:
        """The kind of each topic's queues, for the kernel."""
        for name in self.topics.names[len(self.kinds) :]:
            self.kinds.append(int(name in self.batch_topics))
        return self.kinds

    def grow(self) -> None:
        """Doubles the room."""
        self.capacity = max(2 * self.capacity, _SPARE_QUEUES)
        self.states = self.states + bytes(self.capacity * 8 * at.QUEUE_FIELDS - len(self.states))
        self.slot_count = 2 * self.capacity
        self.slots = bytearray(4 * self.slot_count)
        slots = memoryview(self.slots).cast("i")
        for number in range(self.count):
            state = self.state(number)
            slot = _queue_hash(state.topic_id, state.queue_id) & self.slot_count - 1
            while slots[slot]:
                slot = slot + 1 & self.slot_count - 1
            slots[slot] = number + 1


def _queue_hash(topic_id: int, queue_id: int) -> int:
    h = (topic_id * 1000003 + queue_id) * 0x9E3779B97F4A7C15 & 2**64 - 1
    # The kernel's shift is an arithmetic one.
    signed = h - 2**64 if h >> 63 else h
    return h ^ signed >> 31


def build_units(
    columns: Columns,
    table: QueueTable,
    data: Buffer = b"",
    *,
    first_row: int = 0,
    multi_dispatch: bool = False,
    restart: bool = False,
    gap_units_max: int = GAP_UNITS_MAX,
    log_start: int = -1,
    behind: Behind | None = None,
) -> BuiltUnits:
    """The units of the rows from ``first_row`` on, and the table moved after them.

    Args:
        columns: `DISPATCH_COLUMNS` at least, in the order of the log.
        table: where the queues end; changed.
        data: the bytes that the columns were scanned from; needed with ``multi_dispatch``.
        first_row: rows before it are left out.
        multi_dispatch: write units for the queues named by INNER_MULTI_DISPATCH too.
        restart: a queue offset before the queue's end begins the queue anew.
        gap_units_max: a queue offset further ahead of the queue's end is taken for damage.
        log_start: CommitLog offset of the log's first byte: instead of ``gap_units_max``, as many
            messages can be missing as had room before a record; -1 where that does not count.
        behind: tells of the records behind the rows; without it there are none.
    """
    _know_batch_topics(table, multi_dispatch)
    rows = columns.count - first_row
    # 20 bytes of each row are read and 20 written.
    kernel = runtime.native("queues")
    if kernel is None or not rows:
        return reference_build_units(
            columns, table, data, first_row=first_row, multi_dispatch=multi_dispatch,
            restart=restart, gap_units_max=gap_units_max, log_start=log_start, behind=behind,
        )  # fmt: skip
    topics = table.topics
    units_max = rows + (_MULTI_NAMES_MAX if multi_dispatch else 0)
    work = uninitialised(12 * units_max)
    arguments = array("q", bytes(8 * at.QUEUES_ARGUMENTS))
    memory = address(columns.memory)
    for place, name in _COLUMN_PLACES:
        where = columns.places[at.COLUMN_INDEX[name]]
        if where < 0:
            raise ValueError(f"units need the column {name}, which was not scanned")
        arguments[place] = memory + where
    view = memoryview(data)
    anomalies = array("q", bytes(16 * ANOMALIES_KEPT))
    arguments[at.QUEUES_DATA] = address(view)
    arguments[at.QUEUES_ROW] = first_row
    arguments[at.QUEUES_ROWS] = columns.count
    arguments[at.QUEUES_MULTI_DISPATCH] = multi_dispatch
    arguments[at.QUEUES_RESTART] = restart
    arguments[at.QUEUES_GAP_MAX] = gap_units_max
    arguments[at.QUEUES_LOG_START] = log_start
    arguments[at.QUEUES_MAY_ASK] = behind is not None
    arguments[at.QUEUES_ASKED_ROW] = -1
    arguments[at.QUEUES_STOPS_AT_NEW] = table.ends is not None
    arguments[at.QUEUES_UNIT_QUEUE] = address(work)
    arguments[at.QUEUES_UNIT_ROW] = address(work) + 4 * units_max
    arguments[at.QUEUES_UNIT_INDEX] = address(work) + 8 * units_max
    arguments[at.QUEUES_UNIT_MAX] = units_max
    arguments[at.QUEUES_ANOMALIES] = address(anomalies)
    arguments[at.QUEUES_ANOMALY_MAX] = ANOMALIES_KEPT
    runs: list[UnitRun] = []
    while True:
        out = uninitialised(batch_consume_queue.UNIT_SIZE * units_max)
        run_memory = uninitialised(8 * at.RUN_FIELDS * units_max)
        touched = uninitialised(4 * table.capacity)
        topics.lend(arguments, at.QUEUES_TOPIC_COUNT)
        arguments[at.QUEUES_TOPIC_KINDS] = address(table.topic_kinds())
        arguments[at.QUEUES_KIND_COUNT] = len(table.kinds)
        arguments[at.QUEUES_STATES] = address(table.states)
        arguments[at.QUEUES_COUNT] = table.count
        arguments[at.QUEUES_MAX] = table.capacity
        arguments[at.QUEUES_SLOTS] = address(table.slots)
        arguments[at.QUEUES_SLOT_MASK] = table.slot_count - 1
        arguments[at.QUEUES_OUT] = address(out)
        arguments[at.QUEUES_RUNS] = address(run_memory)
        arguments[at.QUEUES_TOUCHED] = address(touched)
        stopped = kernel(arguments)
        met, table.count = table.count, arguments[at.QUEUES_COUNT]
        topics.take_back(arguments, at.QUEUES_TOPIC_COUNT)
        table.fill(met, table.count)
        fields = memoryview(run_memory).cast("q")
        flat = iter(fields[: arguments[at.QUEUES_RUN_COUNT] * at.RUN_FIELDS].tolist())
        units = memoryview(out)
        names = topics.names
        for _, first, count, skipped, restarts, start, topic_id, queue_id, kind in zip(
            *[flat] * at.RUN_FIELDS, strict=True
        ):
            end = start + count * _UNIT_SIZES[kind]
            runs.append(
                UnitRun(
                    names[topic_id],
                    queue_id,
                    kind == at.KIND_BATCH,
                    first,
                    count,
                    units[start:end],
                    skipped,
                    bool(restarts),
                )
            )
        if stopped == QueueStop.DONE:
            break
        if stopped == QueueStop.QUEUES_FULL:
            table.grow()
        elif stopped == QueueStop.ASKS:
            assert behind is not None
            row = arguments[at.QUEUES_ASKED_ROW]
            arguments[at.QUEUES_ANSWER] = _ask(behind, columns, topics, row)
    odd = arguments[at.QUEUES_ANOMALY_COUNT]
    return BuiltUnits(
        runs,
        [
            Anomaly(anomalies[2 * n], QueueAnomaly(anomalies[2 * n + 1]))
            for n in range(min(odd, ANOMALIES_KEPT))
        ],
        odd,
    )


def _ask(behind: Behind, columns: Columns, topics: TopicTable, row: int) -> int:
    """The queue offset of the next record of a row's queue behind the rows, -1 if none is near."""
    near = row + 1 + LOOK_AHEAD_ROWS - columns.count
    return behind(topics.names[columns.topic_id[row]], columns.queue_id[row], near)


def _know_batch_topics(table: QueueTable, multi_dispatch: bool) -> None:
    """Makes sure that a batch queue is known as one when only a multi-dispatch names it."""
    if multi_dispatch and table.ends is None:  # which says it of each queue
        for name in table.batch_topics:
            table.topics.intern(name)


_COLUMN_PLACES: Final = (
    (at.QUEUES_COMMIT_LOG_OFFSET, "commit_log_offset"),
    (at.QUEUES_RECORD_SIZE, "record_size"),
    (at.QUEUES_QUEUE_ID, "queue_id"),
    (at.QUEUES_QUEUE_OFFSET, "queue_offset"),
    (at.QUEUES_SYS_FLAG, "sys_flag"),
    (at.QUEUES_STORE_TIMESTAMP, "store_timestamp"),
    (at.QUEUES_TOPIC_ID, "topic_id"),
    (at.QUEUES_TAGS_CODE, "tags_code"),
    (at.QUEUES_INNER_NUM, "inner_num"),
    (at.QUEUES_INNER_BASE, "inner_base"),
    (at.QUEUES_DISPATCH_AT, "multi_dispatch_at"),
    (at.QUEUES_DISPATCH_SIZE, "multi_dispatch_size"),
    (at.QUEUES_OFFSETS_AT, "multi_queue_offset_at"),
    (at.QUEUES_OFFSETS_SIZE, "multi_queue_offset_size"),
)


class _Run:
    """A run while it is being built."""

    def __init__(self, queue: int, first: int, skipped: int, restarts: bool) -> None:
        self.queue = queue
        self.first = first
        self.skipped = skipped
        self.restarts = restarts
        self.units: list[bytes] = []


class _ReferenceBuild:
    """One call of `reference_build_units`."""

    def __init__(
        self,
        columns: Columns,
        table: QueueTable,
        data: Buffer,
        restart: bool,
        gap_max: int,
        log_start: int,
        behind: Behind | None,
    ) -> None:
        self.columns = columns
        self.table = table
        self.data = memoryview(data)
        self.restart = restart
        self.gap_max = gap_max
        self.log_start = log_start
        self.behind = behind
        self.runs: list[_Run] = []
        self.open: dict[int, _Run] = {}
        self.anomalies: list[Anomaly] = []
        self.anomaly_count = 0

    def note(self, row: int, what: QueueAnomaly) -> None:
        self.anomaly_count += 1
        if len(self.anomalies) < ANOMALIES_KEPT:
            self.anomalies.append(Anomaly(self.columns.commit_log_offset[row], what))

    def add(
        self, queue: int, ordinal: int, unit: bytes, maximum: int, skipped: int, restarts: bool
    ) -> None:
        run = self.open.get(queue)
        if run is None or skipped or restarts:
            run = self.open[queue] = _Run(queue, ordinal, skipped, restarts)
            self.runs.append(run)
        run.units.append(unit)
        fields = memoryview(self.table.states).cast("q")
        fields[queue * at.QUEUE_FIELDS + at.QUEUE_NEXT] = ordinal + 1
        fields[queue * at.QUEUE_FIELDS + at.QUEUE_MAX] = maximum

    def dispatched(self, row: int) -> bool:
        return self.columns.sys_flag[row] & TRANSACTION_MASK not in (
            TRANSACTION_PREPARED,
            TRANSACTION_ROLLBACK,
        )

    def next_in_queue(self, row: int) -> int:
        columns = self.columns
        for other in range(row + 1, min(columns.count, row + 1 + LOOK_AHEAD_ROWS)):
            if (
                columns.topic_id[other] == columns.topic_id[row]
                and columns.queue_id[other] == columns.queue_id[row]
                and self.dispatched(other)
            ):
                return columns.queue_offset[other]
        if self.behind is None or row + 1 + LOOK_AHEAD_ROWS <= columns.count:
            return -1
        return _ask(self.behind, columns, self.table.topics, row)

    def most_missing(self, row: int) -> int:
        if self.log_start < 0:
            return self.gap_max
        return (self.columns.commit_log_offset[row] - self.log_start) // FIXED_SIZE_V1 + 1

    def put(self, queue: int, row: int, ordinal: int, look_ahead: bool) -> None:
        columns = self.columns
        offset = columns.commit_log_offset[row]
        size = columns.record_size[row]
        state = self.table.state(queue)
        if offset + size <= state.max_offset:
            return
        if ordinal < 0 or ordinal == _INT64_MAX:
            self.note(row, QueueAnomaly.NEGATIVE)
            return
        skipped, restarts = 0, False
        following = state.next_ordinal
        if following >= 0 and ordinal != following:
            after = self.next_in_queue(row) if look_ahead else -1
            if after == following + 1:
                self.note(row, QueueAnomaly.MISNUMBERED)
                ordinal = following
            elif after == following and not (self.restart and ordinal == 0 and after == 1):
                # Behind a queue of one message 0, 1 is a queue that begins anew.
                self.note(row, QueueAnomaly.INTRUDER)
                return
            elif ordinal < following:
                if not self.restart:
                    self.note(row, QueueAnomaly.STEP_BACK)
                    return
                self.note(row, QueueAnomaly.RESTART)
                restarts = True
            elif ordinal - following > self.most_missing(row):
                self.note(row, QueueAnomaly.GAP_TOO_LARGE)
                return
            else:
                self.note(row, QueueAnomaly.GAP)
                skipped = ordinal - following
        unit = consume_queue.UNIT.pack(offset, size, columns.tags_code[row])
        self.add(queue, ordinal, unit, offset + size, skipped, restarts)

    def put_batch(self, queue: int, row: int) -> None:
        columns = self.columns
        offset = columns.commit_log_offset[row]
        state = self.table.state(queue)
        if offset <= state.max_offset:
            return
        base, number = columns.inner_base[row], columns.inner_num[row]
        if base < 0 or number < 0:
            if columns.sys_flag[row] & INNER_BATCH:
                self.note(row, QueueAnomaly.NO_BATCH)
                return
            base, number = columns.queue_offset[row], 1
            if base < 0:
                self.note(row, QueueAnomaly.NEGATIVE)
                return
        batch_size = (number + 2**15) % 2**16 - 2**15
        unit = batch_consume_queue.UNIT.pack(
            offset, columns.record_size[row], columns.tags_code[row],
            columns.store_timestamp[row], base, batch_size,
            batch_consume_queue.NOT_COMPACTED, 0,
        )  # fmt: skip
        self.add(queue, max(state.next_ordinal, 0), unit, offset, 0, False)

    def put_multi(self, row: int) -> None:
        columns, topics = self.columns, self.table.topics
        names = self.text(columns.multi_dispatch_at[row], columns.multi_dispatch_size[row])
        offsets = self.text(
            columns.multi_queue_offset_at[row], columns.multi_queue_offset_size[row]
        )
        topic = topics.names[columns.topic_id[row]]
        if (
            not names
            or not offsets
            or topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX))
            or topic == SCHEDULE_TOPIC.encode()
        ):
            return
        name_list = _split(names)
        offset_list = [_ordinal(item) for item in _split(offsets)]
        if len(name_list) != len(offset_list) or -1 in offset_list:
            self.note(row, QueueAnomaly.MULTI_DISPATCH)
            return
        wanted = [
            (topics.intern(name), 0 if name.startswith(LMQ_PREFIX) else columns.queue_id[row], n)
            for name, n in zip(name_list, offset_list, strict=True)
            if name and b"/" not in name
        ]
        for topic_id, queue_id, _ in wanted:
            self.table.number(topic_id, queue_id)
        for topic_id, queue_id, ordinal in wanted:
            queue = self.table.number(topic_id, queue_id)
            if not self.table.state(queue).is_batch:
                self.put(queue, row, ordinal, look_ahead=False)

    def text(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size]) if size > 0 else b""


def _split(text: bytes) -> list[bytes]:
    """Java's split(","): empty items at the end do not count."""
    text = text.rstrip(b",")
    return text.split(b",") if text else []


def _ordinal(text: bytes) -> int:
    digits = text.lstrip(b"0")
    if not text.isdigit() or len(digits) > len(str(_INT64_MAX)):
        return -1  # Python refuses to read numbers of thousands of digits
    value = int(digits or b"0")
    return value if value <= _INT64_MAX else -1


def reference_build_units(
    columns: Columns,
    table: QueueTable,
    data: Buffer = b"",
    *,
    first_row: int = 0,
    multi_dispatch: bool = False,
    restart: bool = False,
    gap_units_max: int = GAP_UNITS_MAX,
    log_start: int = -1,
    behind: Behind | None = None,
) -> BuiltUnits:
    """`build_units` in plain Python."""
    _know_batch_topics(table, multi_dispatch)
    build = _ReferenceBuild(columns, table, data, restart, gap_units_max, log_start, behind)
    for row in range(first_row, columns.count):
        if not build.dispatched(row):
            continue
        queue = table.number(columns.topic_id[row], columns.queue_id[row])
        if multi_dispatch:
            build.put_multi(row)
        if table.state(queue).is_batch:
            build.put_batch(queue, row)
        else:
            build.put(queue, row, columns.queue_offset[row], look_ahead=True)
    runs = []
    for run in build.runs:
        topic_id, queue_id, is_batch, _, _ = table.state(run.queue)
        runs.append(
            UnitRun(
                table.topics.names[topic_id],
                queue_id,
                is_batch,
                run.first,
                len(run.units),
                memoryview(b"".join(run.units)),
                run.skipped,
                run.restarts,
            )
        )
    return BuiltUnits(runs, build.anomalies, build.anomaly_count)
