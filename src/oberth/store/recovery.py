"""What a start does before the store is used: finds the log's end, makes queues and index agree.

The order is: where do the queues end (D), where does the log end, cut what points past the end,
dispatch what queues or index lack. How far back the last step goes:

    what is found                                        dispatch starts at
    oberth.state, clean, and the log ends where it says  nowhere: nothing is missing
    oberth.state, queues at least as it says             its safe_offset
    neither, or a queue is missing, short or headless    the log's beginning

The last row reads every header once (bodies only where the log's end is in doubt): a store of
RocketMQ's own is checked completely when it is first opened here, where RocketMQ would start with
the segment that the checkpoint selects and leave earlier holes as they are. Dispatch is idempotent,
so nothing that is right is written again; topics that were deleted get no queues, see
`deleted_topics`.

RocketMQ: DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from oberth.formats.message import (
    BLANK_SIZE_MIN,
    MAGIC_POSITION,
    Blank,
    DispatchRequest,
    encode_blank,
)
from oberth.kernels.arguments import ScanEnd
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue import QueueExtent
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.files import is_full
from oberth.store.index_service import IndexService
from oberth.store.log_scan import NOT_WHOLE, Damage, LogEnd, find_log_end, read_request
from oberth.store.mapped_file import MappedFile
from oberth.store.offline.filler import FILLER_SIZE_MIN, MARKER_SIZE, fillers
from oberth.store.recovery_state import RecoveryState

_LOG: Final = logging.getLogger(__name__)
# Damages that only a checksum or a second look shows: queues would lead readers to such a record.
_LOOKS_WHOLE: Final = (NOT_WHOLE, *(e.name.lower() for e in (ScanEnd.BODY_CRC, ScanEnd.RECORD_CRC)))
# How far the clock may have been set back and store times still go on from the log's last one.
CLOCK_AHEAD_MAX_MS: Final = 24 * 3_600_000


class RecoveryReport(NamedTuple):
    """What recovery found and did.

    Attributes:
        abnormal: whether the last run ended without a shutdown.
        log_end: where the log ends.
        scanned_from: from where records were validated to find that.
        records_scanned: how many that were.
        damages: places in the middle of what was scanned that hold no valid record.
        damaged_from: where the first of them begins, if neither queues nor index hold anything
            behind it yet; else -1.
        truncated_to: the log's end, if bytes behind it were given up; else -1.
        dispatch_from: where dispatch starts.
        queues_from: from where on records are given to queues. Below it they have their units, or
            their topic was deleted, and only the index lacks them.
        reason: why dispatch starts there.
        last_record: where the record before the dispatch starts, -1 if that is not known; of the
            log's end if dispatch starts anew.
        last_store_timestamp: of that record.
        vouched: whether oberth.state is of this log.
    """

    abnormal: bool
    log_end: int
    scanned_from: int
    records_scanned: int
    damages: tuple[Damage, ...]
    damaged_from: int
    truncated_to: int
    dispatch_from: int
    queues_from: int
    reason: str
    last_record: int
    last_store_timestamp: int
    vouched: bool = False


def recover(
    log: CommitLog,
    queues: ConsumeQueueStore,
    load_index: Callable[[int], int],
    state: RecoveryState | None,
    *,
    abnormal: bool,
    check_crc: bool,
    mends: bool,
    flushed_ms: int,
    now_ms: int,
    before_mending: Callable[[], None],
) -> RecoveryReport:
    """Brings log, queues and index to one state; the caller then dispatches from dispatch_from.

    Args:
        log: loaded, each segment counted as full.
        queues: loaded.
        load_index: loads the index against a log's end and says from where it must be dispatched.
        state: of oberth.state.
        abnormal: whether ``abort`` was there.
        check_crc: whether the scan of the log's tail checks bodies.
        mends: whether something else takes the place of what a crash tore behind a checkpoint. Not
            on a slave: its master sends that again, and until then every start must find it.
        flushed_ms: store time of a record up to which the log is on the disk; of the checkpoint.
        now_ms: the clock.
        before_mending: called if the log has damages, while every start would still find them.
    """
    if not log.queue.segments:
        return _recover_without_log(log, queues, load_index, abnormal=abnormal)
    log_min = log.queue.min_offset
    trusted = state is not None and _fits(log, state)
    redispatch_from = state.safe_offset if abnormal and trusted and state is not None else None
    is_clean = trusted and state is not None and state.clean and not abnormal
    queue_end = queues.recover(_extents(state) if is_clean and state is not None else None)
    lacks_firsts = state is not None and trusted and _lacks_firsts(queues, state, log_min)
    if not trusted or lacks_firsts:
        queues.drop_headless(log_min)
    if not trusted:
        queues.cut_before_zeros()
    scan_from, not_before = _scan_start(log, state if trusted else None, queue_end, abnormal)
    end = find_log_end(
        log.queue,
        scan_from,
        check_crc=check_crc,
        not_before_ms=not_before,
        # What we wrote since that state ends in no zero; of RocketMQ's records nobody knows.
        check_ends=abnormal and trusted,
        unsynced_after_ms=flushed_ms if abnormal else None,
        size_at=queues.record_size_at,
    )
    if end.damages:
        before_mending()
    if redispatch_from is not None:
        # No hole of a power cut may stay between units.
        queues.truncate(redispatch_from)
        queue_end = queues.max_physic_offset
    right_to = _settle_damages(log, end, abnormal=abnormal, trusted=trusted, mends=mends)
    before = log.queue.max_offset
    if queue_end >= right_to:
        queues.truncate(right_to)
    log.set_end(end.end_offset, end.stale_end)
    # A time far ahead of the clock is a damaged one; it must not become that of all that follows.
    latest = min(end.last_store_timestamp, now_ms + CLOCK_AHEAD_MAX_MS)
    log.last_store_timestamp = max(log.last_store_timestamp, latest)
    index_from = load_index(right_to)
    dispatch_from, reason = _dispatch_start(
        log_min, end, state if trusted else None, queues, queue_end, abnormal
    )
    if lacks_firsts:
        dispatch_from, reason = log_min, "queues lack their first files"
    queues_from = max(dispatch_from, log_min)
    if index_from < dispatch_from:
        dispatch_from, reason = index_from, "the index reaches only up to there"
    dispatch_from = max(dispatch_from, log_min)
    last_record, timestamp = end.last_record, end.last_store_timestamp
    if trusted and state is not None and dispatch_from == state.safe_offset:
        # Dispatch may not be let go to the log's end.
        last_record, timestamp = state.last_record, state.store_timestamp
    return RecoveryReport(
        abnormal,
        end.end_offset,
        scan_from,
        end.record_count,
        end.damages,
        # What was dispatched before the state was written lies before it: so do all units now.
        end.damages[0].start if end.damages and trusted else -1,
        end.end_offset if end.stale_end and before > end.end_offset else -1,
        dispatch_from,
        queues_from,
        reason,
        last_record,
        timestamp,
        trusted,
    )


def _recover_without_log(
    log: CommitLog,
    queues: ConsumeQueueStore,
    load_index: Callable[[int], int],
    *,
    abnormal: bool,
) -> RecoveryReport:
    """Queues of a log that is not there lead nowhere."""
    queues.recover()
    queues.destroy_all()
    load_index(0)
    log.set_end(0)
    return RecoveryReport(abnormal, 0, 0, 0, (), -1, -1, 0, 0, "no CommitLog", -1, 0)


def _extents(state: RecoveryState) -> dict[tuple[str, int], QueueExtent]:
    """What a clean shutdown noted down of each queue."""
    return {
        (topic, queue_id): QueueExtent(*extent)
        for topic, table in state.queues.items()
        for queue_id, extent in table.items()
    }


def _settle_damages(
    log: CommitLog, end: LogEnd, *, abnormal: bool, trusted: bool, mends: bool
) -> int:
    """Sees to it that nobody takes what is torn for messages; the arguments are those of `recover`.

    Returns:
        Up to where queues and index may lead: not to what looks like a message and is none.
    """
    right_to = end.end_offset
    for damage in end.damages:
        _LOG.error(
            "CommitLog: bytes %d to %d hold no valid record (%s); what follows is kept", *damage
        )
        # Behind a checkpoint of ours nobody was promised what was torn.
        filled = mends and abnormal and trusted and _fill(log, damage)
        if damage.reason in _LOOKS_WHOLE and abnormal and not filled:
            if mends or not trusted:
                _strike_out(log, damage.start)
        elif not filled:
            continue
        right_to = min(right_to, damage.start)
    if abnormal and trusted and end.stale_end > end.end_offset:
        # A start after an orderly stop, and RocketMQ, would take what only looks whole for the log.
        _strike_out(log, end.end_offset)
    return right_to


def _lacks_firsts(queues: ConsumeQueueStore, state: RecoveryState, log_min: int) -> bool:
    """Whether files have gone from the front of queues although the log's front is still there."""
    return state.log_begin == log_min and 0 <= state.queue_begins < queues.begins


def _fill(log: CommitLog, damage: Damage) -> bool:
    """Puts records that nobody consumes where there is none, for RocketMQ ends a log there.

    Returns:
        Whether that was possible.
    """
    following = _record_at(log, damage.end)
    start = damage.start
    while following is not None and start < damage.end:
        segment = log.queue.find(start)
        if segment is None or segment.buffer.readonly:
            return False
        base, end = segment.start_offset, min(damage.end, segment.end_offset)
        left, size = 0, end - start
        if end == segment.end_offset:
            size = MARKER_SIZE if size >= MARKER_SIZE + BLANK_SIZE_MIN else 0
            left = end - start - size
        if 0 < size < FILLER_SIZE_MIN or 0 < left < BLANK_SIZE_MIN:
            return False

        def read(offset: int, count: int, segment: MappedFile = segment) -> bytes:
            return segment.read(offset - segment.start_offset, count)

        records = fillers(start, size, following.store_timestamp, read) if size else ()
        try:
            for offset, record in records:
                segment.overwrite(offset - base, record)
            if left:
                segment.overwrite(end - left - base, encode_blank(left))
        except OSError as error:
            if not is_full(error):
                raise
            return False
        start = end
    return start == damage.end


def _strike_out(log: CommitLog, offset: int) -> None:
    """Zeroes the magic of what looks like a record: nobody takes it for one, its size stays."""
    segment = log.queue.find(offset)
    assert segment is not None
    position = offset - segment.start_offset + MAGIC_POSITION
    if not segment.buffer.readonly:
        segment.erase(position, position + BLANK_SIZE_MIN - MAGIC_POSITION)


def _fits(log: CommitLog, state: RecoveryState) -> bool:
    """Whether the log still has the record that the state says ends at its safe_offset."""
    if state.safe_offset < log.queue.min_offset or state.safe_offset > log.queue.max_offset:
        return False
    if state.last_record < 0:
        return state.safe_offset == log.queue.min_offset
    request = _record_at(log, state.last_record)
    if request is None or request.store_timestamp != state.store_timestamp:
        return False
    end = state.last_record + request.record_size
    if end == state.safe_offset:
        return True
    # Dispatch may have stepped over the blank at a segment's end.
    segment = log.queue.find(end)
    if segment is None or segment.end_offset != state.safe_offset:
        return False
    return isinstance(read_request(segment, end - segment.start_offset), Blank)


def _record_at(log: CommitLog, offset: int) -> DispatchRequest | None:
    segment = log.queue.find(offset)
    if segment is None:
        return None
    request = read_request(segment, offset - segment.start_offset)
    return request if isinstance(request, DispatchRequest) else None


def _scan_start(
    log: CommitLog, state: RecoveryState | None, queue_end: int, abnormal: bool
) -> tuple[int, int]:
    """Where to look for the log's end: a record's start, and the store time before it."""
    if state is not None:
        return state.safe_offset, state.store_timestamp
    log_min = log.queue.min_offset
    if not abnormal and log_min < queue_end <= log.queue.max_offset:
        # After a clean stop the last record of the queue that reaches furthest is a good place:
        # start with the segment it lies in.
        segment = log.queue.find(queue_end - 1)
        if segment is not None:
            return segment.start_offset, 0
    return log_min, 0


def _dispatch_start(
    log_min: int,
    end: LogEnd,
    state: RecoveryState | None,
    queues: ConsumeQueueStore,
    queue_end: int,
    abnormal: bool,
) -> tuple[int, str]:
    if state is None:
        return log_min, "nothing says what queues and index held"
    if queue_end < min(state.queue_end, end.end_offset):
        return log_min, f"queues end at {queue_end}, they were at {state.queue_end}"
    count = sum(len(table) for table in queues.table.values())
    if count < state.queue_count:
        return log_min, f"{count} queues are left of {state.queue_count}"
    if queues.units < state.queue_units:
        return log_min, f"queues have {queues.units} units of {state.queue_units}"
    if abnormal:
        return state.safe_offset, "the last checkpoint"
    return state.safe_offset, "the last shutdown"


def load_index_at(
    index: IndexService | None,
    *,
    clean: bool,
    state: RecoveryState | None,
    flushed_timestamp: int,
    log_min_offset: int,
) -> Callable[[int], int]:
    """The ``load_index`` that `recover` takes."""

    def load(log_end: int) -> int:
        if index is None:
            return log_end
        return index.load(
            clean=clean,
            log_end_offset=log_end,
            log_min_offset=log_min_offset,
            safe_counts=state.index_counts if state is not None else None,
            safe_offset=state.safe_offset if state is not None else -1,
            flushed_timestamp=flushed_timestamp,
        )

    return load
