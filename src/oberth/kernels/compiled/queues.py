"""ConsumeQueue and BatchConsumeQueue units from scanned columns."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.batch_consume_queue import NOT_COMPACTED
from oberth.formats.batch_consume_queue import UNIT_SIZE as BATCH_UNIT_SIZE
from oberth.formats.consume_queue import UNIT_SIZE
from oberth.formats.sys_flag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from oberth.kernels import arguments as at
from oberth.kernels.arguments import QueueAnomaly, QueueStop
from oberth.kernels.compiled.abi import (
    bytes_at,
    helper,
    int32_at,
    int64_at,
    load_u8,
    store_be16,
    store_be32,
    store_be64,
)
from oberth.kernels.compiled.records import (
    decimal,
    intern_topic,
    is_schedule_topic,
    seek_byte,
)
from oberth.kernels.layout import (
    LMQ_PREFIX,
    LOOK_AHEAD_ROWS,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
)

_GAP = int(QueueAnomaly.GAP)
_STEP_BACK = int(QueueAnomaly.STEP_BACK)
_RESTART = int(QueueAnomaly.RESTART)
_MISNUMBERED = int(QueueAnomaly.MISNUMBERED)
_INTRUDER = int(QueueAnomaly.INTRUDER)
_GAP_TOO_LARGE = int(QueueAnomaly.GAP_TOO_LARGE)
_MULTI_DISPATCH = int(QueueAnomaly.MULTI_DISPATCH)
_NO_BATCH = int(QueueAnomaly.NO_BATCH)
_NEGATIVE = int(QueueAnomaly.NEGATIVE)
_DONE = int(QueueStop.DONE)
_QUEUES_FULL = int(QueueStop.QUEUES_FULL)
_UNITS_FULL = int(QueueStop.UNITS_FULL)
_TOPICS_FULL = int(QueueStop.TOPICS_FULL)

_F = at.QUEUE_FIELDS
_R = at.RUN_FIELDS
_LMQ = int.from_bytes(LMQ_PREFIX, "little")
_LMQ_SIZE = len(LMQ_PREFIX)
_RETRY = int.from_bytes(RETRY_PREFIX, "little")
_RETRY_SIZE = len(RETRY_PREFIX)
_SYSTEM = int.from_bytes(SYSTEM_PREFIX, "little")
_SYSTEM_SIZE = len(SYSTEM_PREFIX)
_COMMA = ord(",")
_SLASH = ord("/")
_INT64_MAX = (1 << 63) - 1


@helper
def note(args: Any, offset: int, code: int) -> None:
    """Keeps what is odd about a record, as far as there is room, and counts it."""
    count = args[at.QUEUES_ANOMALY_COUNT]
    if count < args[at.QUEUES_ANOMALY_MAX]:
        anomalies = int64_at(args[at.QUEUES_ANOMALIES])
        anomalies[2 * count] = offset
        anomalies[2 * count + 1] = code
    args[at.QUEUES_ANOMALY_COUNT] = count + 1


@helper
def find_queue(args: Any, states: Any, slots: Any, topic: int, queue_id: int, kind: int) -> int:
    """The number of a queue, which is added if it is new; -1 when there is no room."""
    mask = args[at.QUEUES_SLOT_MASK]
    h = (topic * 1000003 + queue_id) * -0x61C8864680B583EB
    slot = (h ^ (h >> 31)) & mask
    while slots[slot] != 0:
        known = int(slots[slot]) - 1
        if (
            states[known * _F + at.QUEUE_TOPIC] == topic
            and states[known * _F + at.QUEUE_ID] == queue_id
        ):
            return known
        slot = (slot + 1) & mask
    count = args[at.QUEUES_COUNT]
    if count >= args[at.QUEUES_MAX]:
        return -1
    state = count * _F
    states[state + at.QUEUE_TOPIC] = topic
    states[state + at.QUEUE_ID] = queue_id
    states[state + at.QUEUE_KIND] = kind
    states[state + at.QUEUE_NEXT] = -1
    states[state + at.QUEUE_MAX] = -1
    states[state + at.QUEUE_CHUNK_COUNT] = 0
    states[state + at.QUEUE_RUN] = -1
    slots[slot] = count + 1
    args[at.QUEUES_COUNT] = count + 1
    return count


@helper
def add_unit(
    args: Any, states: Any, queue: int, row: int, ordinal: int, skipped: int, restarts: int
) -> None:
    """Plans one unit; the caller made sure that there is room."""
    unit = args[at.QUEUES_UNIT_COUNT]
    state = queue * _F
    runs = int64_at(args[at.QUEUES_RUNS])
    count = states[state + at.QUEUE_CHUNK_COUNT]
    if count == 0:
        touched = args[at.QUEUES_OUT_USED]
        int32_at(args[at.QUEUES_TOUCHED])[touched] = queue
        args[at.QUEUES_OUT_USED] = touched + 1
    if count == 0 or skipped != 0 or restarts != 0:
        number = args[at.QUEUES_RUN_COUNT]
        args[at.QUEUES_RUN_COUNT] = number + 1
        states[state + at.QUEUE_RUN] = number
        run = number * _R
        runs[run + at.RUN_QUEUE] = queue
        runs[run + at.RUN_FIRST] = ordinal
        runs[run + at.RUN_COUNT] = 0
        runs[run + at.RUN_SKIPPED] = skipped
        runs[run + at.RUN_RESTARTS] = restarts
        runs[run + at.RUN_START] = count
        runs[run + at.RUN_TOPIC] = states[state + at.QUEUE_TOPIC]
        runs[run + at.RUN_QUEUE_ID] = states[state + at.QUEUE_ID]
        runs[run + at.RUN_KIND] = states[state + at.QUEUE_KIND]
    run = states[state + at.QUEUE_RUN] * _R
    runs[run + at.RUN_COUNT] += 1
    int32_at(args[at.QUEUES_UNIT_QUEUE])[unit] = queue
    int32_at(args[at.QUEUES_UNIT_ROW])[unit] = row
    int32_at(args[at.QUEUES_UNIT_INDEX])[unit] = count
    states[state + at.QUEUE_CHUNK_COUNT] = count + 1
    states[state + at.QUEUE_NEXT] = ordinal + 1
    args[at.QUEUES_UNIT_COUNT] = unit + 1


@helper
def next_in_queue(args: Any, row: int, topic: int, queue_id: int) -> int:
    """The ordinal of the next record of the queue behind a row, -1 when none is near."""
    topics = int32_at(args[at.QUEUES_TOPIC_ID])
    queue_ids = int32_at(args[at.QUEUES_QUEUE_ID])
    flags = int32_at(args[at.QUEUES_SYS_FLAG])
    last = min(args[at.QUEUES_ROWS], row + 1 + LOOK_AHEAD_ROWS)
    for other in range(row + 1, last):
        if topics[other] == topic and queue_ids[other] == queue_id and gets_unit(flags[other]):
            return int64_at(args[at.QUEUES_QUEUE_OFFSET])[other]
    return -1


@helper
def put_simple(args: Any, states: Any, queue: int, row: int, ordinal: int, look_ahead: int) -> None:
    """Plans the unit of one record by the rules of ConsumeQueue, if it gets one."""
    offset = int64_at(args[at.QUEUES_COMMIT_LOG_OFFSET])[row]
    size = int(int32_at(args[at.QUEUES_RECORD_SIZE])[row])
    state = queue * _F
    if offset + size <= states[state + at.QUEUE_MAX]:
        return
    following = states[state + at.QUEUE_NEXT]
    skipped = 0
    restarts = 0
    if ordinal < 0 or ordinal == _INT64_MAX:
        note(args, offset, _NEGATIVE)
        return
    if following >= 0 and ordinal != following:
        after = -1
        if look_ahead != 0:
            after = next_in_queue(
                args, row, states[state + at.QUEUE_TOPIC], states[state + at.QUEUE_ID]
            )
        if after == following + 1:
            note(args, offset, _MISNUMBERED)
            ordinal = following
        elif after == following:
            note(args, offset, _INTRUDER)
            return
        elif ordinal < following:
            if args[at.QUEUES_RESTART] == 0:
                note(args, offset, _STEP_BACK)
                return
            note(args, offset, _RESTART)
            restarts = 1
        elif ordinal - following > args[at.QUEUES_GAP_MAX]:
            note(args, offset, _GAP_TOO_LARGE)
            return
        else:
            note(args, offset, _GAP)
            skipped = ordinal - following
    add_unit(args, states, queue, row, ordinal, skipped, restarts)
    states[state + at.QUEUE_MAX] = offset + size


@helper
def put_batch(args: Any, states: Any, queue: int, row: int) -> None:
    """Plans the unit of one record by the rules of BatchConsumeQueue, if it gets one."""
    offset = int64_at(args[at.QUEUES_COMMIT_LOG_OFFSET])[row]
    state = queue * _F
    if offset <= states[state + at.QUEUE_MAX]:
        return
    if int64_at(args[at.QUEUES_INNER_BASE])[row] < 0 or (
        int32_at(args[at.QUEUES_INNER_NUM])[row] < 0
    ):
        if int32_at(args[at.QUEUES_SYS_FLAG])[row] & INNER_BATCH:
            note(args, offset, _NO_BATCH)
            return
        if int64_at(args[at.QUEUES_QUEUE_OFFSET])[row] < 0:
            note(args, offset, _NEGATIVE)
            return
    ordinal = max(states[state + at.QUEUE_NEXT], 0)
    add_unit(args, states, queue, row, ordinal, 0, 0)
    states[state + at.QUEUE_MAX] = offset


@helper
def count_items(data: Any, start: int, size: int) -> int:
    """How many items Java's split(",") makes of text: empty ones at its end do not count."""
    end = start + size
    while end > start and data[end - 1] == _COMMA:
        end -= 1
    if end == start:
        return 0
    items = 1
    for position in range(start, end):
        if data[position] == _COMMA:
            items += 1
    return items


@helper
def starts_with(data: Any, start: int, size: int, prefix: int, prefix_size: int) -> bool:
    """Whether text begins with up to 8 bytes, given as a little-endian number."""
    if size < prefix_size:
        return False
    for n in range(prefix_size):  # noqa: SIM110 - numba knows no generators
        if load_u8(data, start + n) != ((prefix >> (8 * n)) & 0xFF):
            return False
    return True


@helper
def gets_unit(sys_flag: int) -> bool:
    """Whether a record is for consumers: in no transaction, or in a committed one."""
    transaction = sys_flag & TRANSACTION_MASK
    return transaction not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


@helper
def may_multi_dispatch(data: Any, topic_at: int, topic_size: int) -> bool:
    """Whether a topic takes part in multi-dispatch: no retry, system or schedule topic."""
    return not (
        starts_with(data, topic_at, topic_size, _RETRY, _RETRY_SIZE)
        or starts_with(data, topic_at, topic_size, _SYSTEM, _SYSTEM_SIZE)
        or is_schedule_topic(data, topic_at, topic_size)
    )


@helper
def put_multi(args: Any, states: Any, slots: Any, row: int) -> int:
    """Plans the extra units of a multi-dispatch record; a QueueStop."""
    names_size = int(int32_at(args[at.QUEUES_DISPATCH_SIZE])[row])
    offsets_size = int(int32_at(args[at.QUEUES_OFFSETS_SIZE])[row])
    if names_size <= 0 or offsets_size <= 0:
        return _DONE
    topic_text = bytes_at(args[at.QUEUES_TOPIC_TEXT])
    topic = int32_at(args[at.QUEUES_TOPIC_ID])[row]
    if not may_multi_dispatch(
        topic_text,
        int64_at(args[at.QUEUES_TOPIC_STARTS])[topic],
        int32_at(args[at.QUEUES_TOPIC_SIZES])[topic],
    ):
        return _DONE
    data = bytes_at(args[at.QUEUES_DATA])
    offset = int64_at(args[at.QUEUES_COMMIT_LOG_OFFSET])[row]
    names_at = int(int32_at(args[at.QUEUES_DISPATCH_AT])[row])
    offsets_at = int(int32_at(args[at.QUEUES_OFFSETS_AT])[row])
    items = count_items(data, names_at, names_size)
    if items != count_items(data, offsets_at, offsets_size):
        note(args, offset, _MULTI_DISPATCH)
        return _DONE
    # All numbers are read before the first unit is planned, so that nothing is half done.
    position = offsets_at
    end = offsets_at + offsets_size
    for _ in range(items):
        stop = seek_byte(data, position, end, end, _COMMA)
        if decimal(data, position, stop - position) < 0:
            note(args, offset, _MULTI_DISPATCH)
            return _DONE
        position = stop + 1
    if args[at.QUEUES_UNIT_COUNT] + items >= args[at.QUEUES_UNIT_MAX]:
        return _UNITS_FULL
    # First every queue gets its number, then the units: what runs out of room can be done again.
    for planning in range(2):
        position = offsets_at
        name_at = names_at
        names_end = names_at + names_size
        for _ in range(items):
            name_end = seek_byte(data, name_at, names_end, names_end, _COMMA)
            name_size = name_end - name_at
            stop = seek_byte(data, position, end, end, _COMMA)
            slash = seek_byte(data, name_at, name_end, name_end, _SLASH)
            if name_size > 0 and slash == name_end:
                number = intern_topic(
                    args,
                    at.QUEUES_TOPIC_COUNT,
                    int64_at(args[at.QUEUES_TOPIC_STARTS]),
                    int32_at(args[at.QUEUES_TOPIC_SIZES]),
                    topic_text,
                    int32_at(args[at.QUEUES_TOPIC_SLOTS]),
                    data,
                    name_at,
                    name_size,
                )
                if number < 0:
                    return _TOPICS_FULL
                queue_id = int(int32_at(args[at.QUEUES_QUEUE_ID])[row])
                if starts_with(data, name_at, name_size, _LMQ, _LMQ_SIZE):
                    queue_id = 0
                kind = at.KIND_SIMPLE
                if number < args[at.QUEUES_KIND_COUNT]:
                    kind = int(bytes_at(args[at.QUEUES_TOPIC_KINDS])[number])
                queue = find_queue(args, states, slots, number, queue_id, kind)
                if queue < 0:
                    return _QUEUES_FULL
                if planning == 1 and states[queue * _F + at.QUEUE_KIND] == at.KIND_SIMPLE:
                    ordinal = decimal(data, position, stop - position)
                    put_simple(args, states, queue, row, ordinal, 0)
            name_at = name_end + 1
            position = stop + 1
    return _DONE


@helper
def write_units(args: Any, states: Any) -> None:
    """Writes all planned units, each queue's together."""
    touched = int32_at(args[at.QUEUES_TOUCHED])
    used = 0
    for n in range(args[at.QUEUES_OUT_USED]):
        state = int(touched[n]) * _F
        states[state + at.QUEUE_CHUNK_BASE] = used
        size = BATCH_UNIT_SIZE if states[state + at.QUEUE_KIND] == at.KIND_BATCH else UNIT_SIZE
        used += states[state + at.QUEUE_CHUNK_COUNT] * size
    out = bytes_at(args[at.QUEUES_OUT])
    offsets = int64_at(args[at.QUEUES_COMMIT_LOG_OFFSET])
    sizes = int32_at(args[at.QUEUES_RECORD_SIZE])
    codes = int64_at(args[at.QUEUES_TAGS_CODE])
    timestamps = int64_at(args[at.QUEUES_STORE_TIMESTAMP])
    ordinals = int64_at(args[at.QUEUES_QUEUE_OFFSET])
    bases = int64_at(args[at.QUEUES_INNER_BASE])
    numbers = int32_at(args[at.QUEUES_INNER_NUM])
    unit_queues = int32_at(args[at.QUEUES_UNIT_QUEUE])
    unit_rows = int32_at(args[at.QUEUES_UNIT_ROW])
    unit_indexes = int32_at(args[at.QUEUES_UNIT_INDEX])
    for unit in range(args[at.QUEUES_UNIT_COUNT]):
        row = int(unit_rows[unit])
        state = int(unit_queues[unit]) * _F
        place = states[state + at.QUEUE_CHUNK_BASE]
        if states[state + at.QUEUE_KIND] == at.KIND_BATCH:
            place += int(unit_indexes[unit]) * BATCH_UNIT_SIZE
            store_be64(out, place + 20, timestamps[row])
            if bases[row] >= 0 and numbers[row] >= 0:
                store_be64(out, place + 28, bases[row])
                store_be16(out, place + 36, int(numbers[row]))
            else:  # a single message in a batch queue
                store_be64(out, place + 28, ordinals[row])
                store_be16(out, place + 36, 1)
            store_be32(out, place + 38, NOT_COMPACTED)
            store_be32(out, place + 42, 0)
        else:
            place += int(unit_indexes[unit]) * UNIT_SIZE
        store_be64(out, place, offsets[row])
        store_be32(out, place + 8, int(sizes[row]))
        store_be64(out, place + 12, codes[row])
    runs = int64_at(args[at.QUEUES_RUNS])
    for n in range(args[at.QUEUES_RUN_COUNT]):
        state = runs[n * _R + at.RUN_QUEUE] * _F
        size = BATCH_UNIT_SIZE if states[state + at.QUEUE_KIND] == at.KIND_BATCH else UNIT_SIZE
        start = runs[n * _R + at.RUN_START] * size
        runs[n * _R + at.RUN_START] = states[state + at.QUEUE_CHUNK_BASE] + start
    for n in range(args[at.QUEUES_OUT_USED]):
        states[int(touched[n]) * _F + at.QUEUE_CHUNK_COUNT] = 0
    args[at.QUEUES_OUT_USED] = used


def queues(args: Any) -> int:
    """Kernel: units of the rows, as far as there is room; returns a QueueStop."""
    states = int64_at(args[at.QUEUES_STATES])
    slots = int32_at(args[at.QUEUES_SLOTS])
    flags = int32_at(args[at.QUEUES_SYS_FLAG])
    topics = int32_at(args[at.QUEUES_TOPIC_ID])
    queue_ids = int32_at(args[at.QUEUES_QUEUE_ID])
    ordinals = int64_at(args[at.QUEUES_QUEUE_OFFSET])
    kinds = bytes_at(args[at.QUEUES_TOPIC_KINDS])
    multi = args[at.QUEUES_MULTI_DISPATCH]
    args[at.QUEUES_UNIT_COUNT] = 0
    args[at.QUEUES_RUN_COUNT] = 0
    args[at.QUEUES_OUT_USED] = 0
    row = args[at.QUEUES_ROW]
    stopped = _DONE
    while row < args[at.QUEUES_ROWS]:
        if not gets_unit(flags[row]):
            row += 1
            continue
        if args[at.QUEUES_UNIT_COUNT] >= args[at.QUEUES_UNIT_MAX]:
            stopped = _UNITS_FULL
            break
        topic = int(topics[row])
        kind = int(kinds[topic])
        queue = find_queue(args, states, slots, topic, int(queue_ids[row]), kind)
        if queue < 0:
            stopped = _QUEUES_FULL
            break
        if multi != 0:
            # Before the record's own unit, so that a row that lacks room has left no trace.
            stopped = put_multi(args, states, slots, row)
            if stopped != _DONE:
                break
        if kind == at.KIND_BATCH:
            put_batch(args, states, queue, row)
        else:
            put_simple(args, states, queue, row, ordinals[row], 1)
        row += 1
    args[at.QUEUES_ROW] = row
    write_units(args, states)
    return stopped
