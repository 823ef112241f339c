"""Copies a damaged store into a new one that opens clean, with everything that is not damaged.

Records keep their CommitLog offset, their queue offset and hence their ids; consumers' offsets stay
right. Each damaged range is filled with records that nobody consumes (see `filler`), or, up to a
segment's end, with the blank that ends a segment. Queues and index are built anew; a lost message's
place in its queue leads to the message that follows (see `queue_files`), and a queue that has lost
its newest messages keeps its end. docs/decisions/0021-salvage.md says why.

The source is only read.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from oberth.errors import FormatError, NotFoundError, StoreError
from oberth.formats import checkpoint as checkpoint_format
from oberth.formats import consume_queue as cq
from oberth.formats import paths
from oberth.formats.bean import Bean
from oberth.formats.broker_conf import Line
from oberth.formats.checkpoint import Checkpoint
from oberth.formats.config_files import CONFIG_FILES
from oberth.formats.message import BLANK_SIZE_MIN, MessageExt, encode_blank
from oberth.formats.names import is_lmq, is_stored_topic
from oberth.formats.properties import INNER_MULTI_DISPATCH, INNER_NUM
from oberth.formats.property_crc import record_crc_ok
from oberth.kernels.arguments import QueueAnomaly
from oberth.store.file_kinds import odd_ones
from oberth.store.files import OsFileSystem
from oberth.store.offline.filler import FILLER_SIZE_MIN, MARKER_SIZE, fillers, is_filler
from oberth.store.offline.layout import QueueKey, local_directory
from oberth.store.offline.log_columns import (
    CRC_COLUMNS,
    BlankMet,
    ColumnReader,
    Rows,
    rows_failing_crc,
)
from oberth.store.offline.log_walk import BODY_FAILS, Damage, LogEnd, missing_at_end
from oberth.store.offline.lost_records import (
    LostRecord,
    describe_range,
    light_places_of,
    ordinal_of,
    owner_of,
    topic_size,
)
from oberth.store.offline.mended_records import (
    LOST_NAMES,
    in_no_light_queue,
    numbered_batch,
    placed_in_light_queues,
)
from oberth.store.offline.queue_files import QueueFileWriter
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import RebuildReport, locked, rebuild, sync_tree
from oberth.store.offline.segments import SegmentStream

_COPY_SIZE: Final = 8 << 20
# What is copied beside log, queues and index, where it exists: it names CommitLog offsets, and
# those stay.
_ALSO_COPIED: Final = (
    paths.CONFIG,
    paths.TIMER_WHEEL,
    paths.TIMER_LOG,
    "compaction",
    "epochFileCheckpoint",
)
_MADE: Final = (
    paths.CONSUME_QUEUE,
    paths.CONSUME_QUEUE_EXT,
    paths.BATCH_CONSUME_QUEUE,
    paths.INDEX,
)
_SUSPECTS_PER_QUEUE: Final = 8
RECORD_FAILS: Final = "it fails its whole-record CRC"
NO_BATCH: Final = "a batch: neither its properties nor its body say how many messages it has"
NO_QUEUE: Final = "no queue can be named as this record's topic and queue id say"
TOO_SMALL: Final = "between two damaged ranges that no record fits into"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes that could not be saved, and whose they were.

    Attributes:
        start: CommitLog offset of the first byte.
        end: CommitLog offset after the last.
        file: the segment, relative to the source's root.
        position: where in that file it begins.
        reason: what is wrong with the bytes.
        records: the records that lay there, as far as they are known.
    """

    start: int
    end: int
    file: str
    position: int
    reason: str
    records: tuple[LostRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """The range under JSON names."""
        return {
            "start": self.start,
            "end": self.end,
            "file": self.file,
            "position": self.position,
            "reason": self.reason,
            "records": [
                {
                    "commitLogOffset": each.start,
                    "storeSize": each.size,
                    "topic": each.topic,
                    "queueId": each.queue_id,
                    "queueOffset": each.queue_offset,
                    "storeTimestamp": each.store_timestamp,
                    "keys": each.keys,
                    "tagsCode": each.tags_code,
                }
                for each in self.records
            ],
        }


class MendedTable(NamedTuple):
    """A file of ``config/`` that could not be read, and what the new store has in its place.

    Attributes:
        file: relative to the store's root.
        reason: why it cannot be read.
        from_back_up: whether its back-up, the state before the last write, took its place; else the
            new store is without it, and a broker begins with an empty one.
    """

    file: str
    reason: str
    from_back_up: bool


class MendedRecord(NamedTuple):
    """A record whose place in a queue was wrong, and is right in the new store.

    Wrong were its topic, queue or queue offset, or, in a batch, how many messages it has.
    """

    commit_log_offset: int
    found: str
    corrected: str


@dataclass(slots=True)
class SalvageReport:
    """What a salvage saved and lost.

    Attributes:
        records: saved records.
        lost: ranges of the CommitLog that were lost.
        tail_bytes: bytes behind the log's end that were no record and were left out.
        rebuilt: what the new queues and index hold.
        mended: records whose place in a queue was corrected.
        tables: files of ``config/`` that could not be read.
        kept_ends: queues that lost their newest messages, and how many places keep their number.
        seconds: how long it took.
    """

    records: int = 0
    lost: list[LostRange] = field(default_factory=list)
    tail_bytes: int = 0
    rebuilt: RebuildReport = field(default_factory=RebuildReport)
    mended: list[MendedRecord] = field(default_factory=list)
    tables: list[MendedTable] = field(default_factory=list)
    kept_ends: dict[QueueKey, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def lost_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(each.end - each.start for each in self.lost)

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "records": self.records,
            "lostBytes": self.lost_bytes,
            "lostRecords": sum(len(each.records) for each in self.lost),
            "tailBytes": self.tail_bytes,
            "lost": [each.to_json() for each in self.lost],
            "mended": [
                {
                    "commitLogOffset": each.commit_log_offset,
                    "found": each.found,
                    "corrected": each.corrected,
                }
                for each in self.mended
            ],
            "tables": [
                {"file": each.file, "reason": each.reason, "fromBackUp": each.from_back_up}
                for each in self.tables
            ],
            "keptEnds": [
                {"topic": key.topic, "queueId": key.queue_id, "count": count}
                for key, count in self.kept_ends.items()
            ],
            "rebuilt": self.rebuilt.to_json(),
            "seconds": round(self.seconds, 3),
        }


def salvage(
    reader: StoreReader,
    into: str,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SalvageReport:
    """Copies what is undamaged into a new store.

    Args:
        reader: the damaged store.
        into: a directory that does not exist or is empty.
        threads: how many scan; None for one per core.
        progress: called with the bytes of the log that are done.

    Raises:
        StoreError: ``into`` is not empty or lies inside the source, or the log has no segment.
        OSError: something cannot be read or written.
    """
    return SalvageRun(reader, check_target(reader, into), threads, progress).run()


def check_target(reader: StoreReader, into: str) -> str:
    """The absolute path of the new store.

    Raises:
        StoreError: it is not empty or lies inside the source, or the log has no segment, or one
            whose name does not fit the size of segments.
    """
    root = reader.layout.root
    target = local_directory(into, "into")
    if not reader.log.segments:
        raise StoreError(f"{root}: the CommitLog has no segment, there is nothing to salvage")
    size = reader.layout.config.mapped_file_size_commit_log
    for segment in reader.log.segments:
        if segment.start % size:
            raise StoreError(
                f"{segment.path}: its name is no multiple of the {size} bytes that segments have; "
                "give the right mappedFileSizeCommitLog, or move the file away"
            )
    if os.path.commonpath((root, target)) == root:
        raise StoreError(f"{target}: lies inside the store that is salvaged")
    if os.path.isdir(target) and os.listdir(target):
        raise StoreError(f"{target}: exists and is not empty; choose another directory")
    return target


class SegmentCopy(NamedTuple):
    """A segment that is to be copied.

    Attributes:
        start: CommitLog offset of its first byte.
        path: of the copy.
        size: bytes of the copy.
        used: bytes up to the log's end; may be more than the size.
        blank_at: position of the blank that ends it, None where there is none.
    """

    start: int
    path: str
    size: int
    used: int
    blank_at: int | None


def copy_segment(log: SegmentStream, copy: SegmentCopy) -> None:
    """Copies one segment; holes stay holes."""
    with open(copy.path, "wb", buffering=0) as file:
        file.truncate(copy.size)
        index = log.index_of(copy.start)
        if index is None or log.segments[index].start != copy.start:
            return
        opened = log.map(index)
        stop = min(len(opened), copy.size, copy.used)
        if copy.blank_at is not None:
            stop = min(stop, copy.blank_at)
        for begin, end in opened.data_extents(0, max(stop, 0)):
            file.seek(begin)
            for at in range(begin, end, _COPY_SIZE):
                file.write(opened.view[at : min(at + _COPY_SIZE, end)])
        if copy.blank_at is not None and copy.blank_at + BLANK_SIZE_MIN <= copy.size:
            file.seek(copy.blank_at)
            file.write(encode_blank(copy.size - copy.blank_at))


class SalvageRun:
    """One salvage."""

    def __init__(
        self,
        reader: StoreReader,
        target: str,
        threads: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.reader = reader
        self.target = target
        self.threads = threads
        self.progress = progress
        self.size = reader.layout.config.mapped_file_size_commit_log
        self.report = SalvageReport()
        self.damages: list[Damage] = []
        self.times: dict[int, int] = {}
        self.blanks: dict[int, BlankMet] = {}
        self.end = LogEnd(0, "", None)
        self.newest = 0
        # Records that fail their whole-record CRC: lost, if nothing mends them.
        self.failing: list[int] = []
        self._filled = False

    def run(self) -> SalvageReport:
        os.makedirs(self.target, exist_ok=True)
        with locked(self.target):
            if set(os.listdir(self.target)) - {paths.LOCK}:
                raise StoreError(f"{self.target}: is not empty any more; choose another directory")
            return self._run()

    def _run(self) -> SalvageReport:
        started = time.perf_counter()
        self._look()
        missing = missing_at_end(self.reader.log, self.end)
        if missing is not None:
            self._damage(missing, self.newest)
        self._bridge()
        for damage in self.damages:
            self.report.lost.append(self._lost(damage))
        if (tail := self._tail()) is not None:
            self.report.lost.append(self._lost(tail))
        os.makedirs(os.path.join(self.target, paths.COMMIT_LOG), exist_ok=True)
        self._copy_log()
        for damage in self.damages:
            self._fill(damage)
        self._copy_others()
        self.report.tables = mend_tables(self.target)
        for odd in list(odd_ones(OsFileSystem(), self.target)):
            _remove(odd.path)
        self._checkpoint()
        self._queues()
        sync_tree(self.target)
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _look(self) -> None:
        """Reads the whole log: what is damaged, and when the record before was stored."""
        log = ColumnReader(
            self.reader.log, CRC_COLUMNS, threads=self.threads, progress=self.progress
        )
        newest = 0
        for part in log:
            if isinstance(part, Rows):
                columns = part.columns
                self.report.records += columns.count
                for row in range(columns.count) if not part.all_ok else ():
                    if not columns.crc_ok[row]:
                        start = columns.commit_log_offset[row]
                        self._damage(
                            Damage(start, start + columns.record_size[row], BODY_FAILS),
                            columns.store_timestamp[row],
                        )
                        self.report.records -= 1
                self.failing += [columns.commit_log_offset[row] for row in rows_failing_crc(part)]
                newest = max(newest, columns.store_timestamp[columns.count - 1])
            elif isinstance(part, Damage):
                self._damage(part, newest)
            elif isinstance(part, BlankMet):
                self.blanks[part.segment.segment.start] = part
            else:
                self.end = part
        self.newest = newest
        if self.end.garbage_end is not None:
            self.report.tail_bytes = self.end.garbage_end - self.end.offset

    def _damage(self, damage: Damage, store_timestamp: int) -> None:
        before = self.damages[-1] if self.damages else None
        if before is not None and before.end == damage.start and before.end % self.size:
            # Two damaged records in a row are one range.
            self.damages[-1] = Damage(before.start, damage.end, before.reason)
            return
        self.damages.append(damage)
        self.times[damage.start] = store_timestamp

    def _bridge(self) -> None:
        """Makes room for a record in ranges that are too small for one, at their neighbour's cost.

        Damage to what a broker wrote is never that small; it takes bytes that nobody wrote.
        """
        for number, damage in enumerate(self.damages):
            end = damage.end
            limit = damage.start - damage.start % self.size + self.size
            while end < limit and end - damage.start < FILLER_SIZE_MIN:
                end = (
                    self.reader.record_at(end).commit_log_offset
                    + self.reader.record_at(end).record_size
                )
                self.report.records -= 1
            if end != damage.end:
                self.damages[number] = Damage(damage.start, end, f"{damage.reason}; {TOO_SMALL}")

    def _lost(self, damage: Damage) -> LostRange:
        index = self.reader.log.index_of(damage.start)
        if index is None:
            file, position = paths.COMMIT_LOG, damage.start % self.size
        else:
            segment = self.reader.log.segments[index]
            file = self.reader.layout.relative(segment.path)
            position = damage.start - segment.start
        return LostRange(
            damage.start, damage.end, file, position, damage.reason,
            tuple(describe_range(self.reader, damage.start, damage.end)),
        )  # fmt: skip

    def _tail(self) -> Damage | None:
        """What lies past the log's end, or lay there as the queues say."""
        end = self.end.garbage_end or self.end.offset
        reader = self.reader
        for key in reader.queue_keys():
            view = reader.queue(key.topic, key.queue_id)
            last = view.end_offset()
            unit = view.unit(last - 1) if last > view.first_offset else None
            if unit is not None and unit.is_message:
                # A damaged unit may name any place.
                most = reader.log.end + self.size
                end = max(end, min(unit.commit_log_offset + unit.record_size, most))
        if end == self.end.offset:
            return None
        return Damage(self.end.offset, end, f"behind the log's end: {self.end.reason}")

    def _path(self, start: int) -> str:
        return os.path.join(self.target, paths.COMMIT_LOG, paths.segment_name(start))

    def _copy_log(self) -> None:
        """Copies the segments up to the log's end."""
        for copy in self._copies():
            copy_segment(self.reader.log, copy)

    def _copies(self) -> list[SegmentCopy]:
        first = self.reader.log.start
        last = max(self.end.offset - 1, first)
        return [
            SegmentCopy(
                start,
                self._path(start),
                self.size,
                self.end.offset - start,
                blank.position if (blank := self.blanks.get(start)) is not None else None,
            )
            for start in range(first, last + 1, self.size)
        ]

    def _fill(self, damage: Damage) -> None:
        """Makes a damaged range readable."""
        self._filled = True
        stored = self.times.get(damage.start, self.newest)
        start = damage.start
        while start < damage.end:
            segment = start - start % self.size
            limit = segment + self.size
            end = min(damage.end, limit)
            with open(self._path(segment), "r+b", buffering=0) as file:
                if end == limit:
                    self._zero(file, start - segment, self.size)
                    file.seek(start - segment)
                    left = limit - start
                    if left >= MARKER_SIZE + BLANK_SIZE_MIN:
                        # The record says that something is missing here, and it lets RocketMQ
                        # take a segment of which nothing is left for one of its own.
                        for _, record in fillers(start, MARKER_SIZE, stored):
                            file.write(record)
                        left -= MARKER_SIZE
                    if left >= BLANK_SIZE_MIN:
                        file.write(encode_blank(left))
                else:
                    for offset, record in fillers(start, end - start, stored):
                        file.seek(offset - segment)
                        file.write(record)
            start = end

    def _zero(self, file: Any, start: int, end: int) -> None:
        file.truncate(start)
        file.truncate(end)

    def _copy_others(self) -> None:
        for name in _ALSO_COPIED:
            source = os.path.join(self.reader.layout.root, name)
            target = os.path.join(self.target, name)
            if os.path.isdir(source):
                shutil.copytree(source, target, ignore_dangling_symlinks=True)
            elif os.path.isfile(source):
                shutil.copy2(source, target)

    def _checkpoint(self) -> None:
        """Everything up to the newest record is on the disk."""
        end = self.end.offset if self.reader.line is not Line.V4_9 else 0
        point = Checkpoint(
            physic_msg_timestamp=self.newest,
            logics_msg_timestamp=self.newest,
            index_msg_timestamp=0,
            master_flushed_offset=0,
            confirm_offset=end,
            logics_physical_offset=end,
        )
        raw = point.encode()
        with open(os.path.join(self.target, paths.CHECKPOINT), "wb") as file:
            file.write(raw + bytes(checkpoint_format.FILE_SIZE - len(raw)))

    def _queues(self) -> None:
        entries = {
            key: value
            for key, value in self.reader.layout.config.to_properties().items()
            if key in _CARRIED_OPTIONS
        }
        entries["rocketmqLine"] = str(self.reader.line)
        if "messageDelayLevel" in self.reader.layout.given:
            entries["messageDelayLevel"] = self.reader.layout.config.message_delay_level
        with StoreReader(self.target, entries) as fresh:
            fresh.use_delays(self.reader.delays_ms)
            self.report.rebuilt = self._rebuild(fresh)
        with StoreReader(self.target, entries) as fresh:
            again = self._mend(fresh)
            while self._is_changed(fresh) or again:
                # A report names a thousand records at most, so there may be more.
                again = False
                for name in _MADE:
                    shutil.rmtree(os.path.join(self.target, name), ignore_errors=True)
                fresh.refresh()
                self.report.rebuilt = self._rebuild(fresh)
                fresh.refresh()
            self._keep_ends(fresh)

    def _rebuild(self, fresh: StoreReader) -> RebuildReport:
        """Builds queues and index of the new store."""
        return rebuild(fresh, self.target, threads=self.threads, former=self.reader)

    def _mend(self, fresh: StoreReader) -> bool:
        """Corrects records whose place in a queue is known better from elsewhere.

        The second witness is the unit that points to the record, in the old queues, or in the new
        ones where the queue's other records showed the number.
        """
        numbered = {
            each.commit_log_offset
            for each in self.report.rebuilt.anomalies
            if each.what is QueueAnomaly.MISNUMBERED
        }
        self._mend_names_of_light_queues(fresh)
        for offset in self._suspects(fresh):
            message = fresh.record_at(offset)
            if ordinal_of(self.reader, message) == message.queue_offset:
                self._mend_places_in_light_queues(fresh, message)
                continue
            ordinal = ordinal_of(fresh, message)
            owner = None
            if ordinal is not None:
                owner = QueueKey(message.topic, message.queue_id), ordinal
            if offset not in numbered:
                owner = owner_of(self.reader, message) or owner
            if owner is None or len(owner[0].topic.encode()) != topic_size(message):
                continue
            key, ordinal = owner
            mended = replace(message, topic=key.topic, queue_id=key.queue_id, queue_offset=ordinal)
            if mended == message:
                continue
            self._write_mended(
                mended,
                f"{message.topic}/{message.queue_id}/{message.queue_offset}",
                f"{key}/{ordinal}",
            )
        for anomaly in self.report.rebuilt.anomalies:
            # A light queue seems to begin anew behind a number that is too high.
            if anomaly.what is QueueAnomaly.RESTART:
                message = fresh.record_at(anomaly.commit_log_offset)
                if message.properties.get(INNER_MULTI_DISPATCH):
                    self._mend_places_in_light_queues(fresh, message)
        return bool(self.report.mended)

    def _mend_names_of_light_queues(self, fresh: StoreReader) -> None:
        """Corrects records that are not in light queues where the old ones lead to them.

        The name of the property that names these queues is damaged, or that of the numbers there:
        such a record says nothing of any. What shows are the places that it has left.
        """
        if not fresh.layout.config.enable_multi_dispatch:
            return
        offsets: set[int] = set()
        for key in self.reader.queue_keys():
            former = self.reader.queue(*key)
            end = former.end_offset(self.end.offset)
            view = fresh.queue(*key) if key in fresh.layout.queues else None
            if (
                view is not None
                and key not in self.report.rebuilt.stand_ins
                and key not in self.report.rebuilt.kept_queues
                and view.end_offset() >= end
            ):
                continue
            kept = view is not None and key in self.report.rebuilt.kept_queues
            for at, unit in former.units(former.min_offset(fresh.min_offset, end), end):
                if unit.is_message and (kept or view is None or view.unit(at) != unit):
                    with suppress(NotFoundError):  # it is lost, or the unit is damaged
                        message = fresh.record_at(unit.commit_log_offset)
                        if key != (message.topic, message.queue_id):
                            offsets.add(unit.commit_log_offset)
        for offset in sorted(offsets):
            message = fresh.record_at(offset)
            if not is_filler(message) and record_crc_ok(message.encode()) is None:
                places = light_places_of(self.reader, message)
                mended = placed_in_light_queues(message, places)
                self._mend_light_queues(message, mended or message)

    def _write_mended(self, mended: MessageExt, found: str, corrected: str) -> None:
        offset = mended.commit_log_offset
        at = offset % self.size
        with open(self._path(offset - at), "r+b", buffering=0) as file:
            file.seek(at)
            file.write(mended.encode())
        self.report.mended.append(MendedRecord(offset, found, corrected))

    def _give_up(self, fresh: StoreReader) -> bool:
        """Loses records that are damaged and were not mended.

        They fail their whole-record CRC, or no queue can have them and nothing says whose they are.
        """
        mended = {each.commit_log_offset for each in self.report.mended}
        found = False
        for offset in self.failing:
            with suppress(NotFoundError):  # a damaged range has grown over it
                message = fresh.record_at(offset)
                if record_crc_ok(message.encode()) is False:
                    self._lose(message, RECORD_FAILS)
                    found = True
        self.failing.clear()
        for offset in self.report.rebuilt.illegal_records:
            message = fresh.record_at(offset)
            own = is_stored_topic(message.topic) and message.queue_id >= 0
            if own or offset in mended:
                continue  # it is a light queue that cannot be, or all is right by now
            self._lose(message, NO_QUEUE)
            found = True
        return found

    def _is_changed(self, fresh: StoreReader) -> bool:
        """Whether records were lost or corrected, so that queues have to be built anew."""
        return (
            self._give_up(fresh)
            or self._number_batches(fresh)
            or self._place_in_light_queues(fresh)
        )

    def _place_in_light_queues(self, fresh: StoreReader) -> bool:
        """Deals with records whose light queues cannot be, or do not match the numbers in them.

        The old queues say what was there; else the record stays in its own queue alone.
        """
        rebuilt, found = self.report.rebuilt, False
        done = {each.commit_log_offset for each in self.report.mended}
        offsets = rebuilt.illegal_records + [
            each.commit_log_offset
            for each in rebuilt.anomalies
            if each.what is QueueAnomaly.MULTI_DISPATCH
        ]
        for offset in dict.fromkeys(offsets):
            message = fresh.record_at(offset)
            own = is_stored_topic(message.topic) and message.queue_id >= 0
            if own and offset not in done and record_crc_ok(message.encode()) is None:
                places = light_places_of(self.reader, message)
                mended = placed_in_light_queues(message, places) or in_no_light_queue(message)
                found |= self._mend_light_queues(message, mended)
        return found

    def _mend_places_in_light_queues(self, fresh: StoreReader, message: MessageExt) -> None:
        """Corrects a record that is odd in a light queue, or those where its place is there."""
        places = light_places_of(self.reader, message)
        if self._mend_light_queues(message, placed_in_light_queues(message, places) or message):
            return
        for name, ordinal in places.items():
            key = QueueKey(name, 0 if is_lmq(name) else message.queue_id)
            for at in (ordinal - 1, ordinal) if key in fresh.layout.queues else ():
                unit = fresh.queue(*key).unit(at) if at >= 0 else None
                if unit is not None and unit.is_message:
                    other = fresh.record_at(unit.commit_log_offset)
                    others = light_places_of(self.reader, other)
                    self._mend_light_queues(other, placed_in_light_queues(other, others) or other)

    def _mend_light_queues(self, message: MessageExt, mended: MessageExt) -> bool:
        if mended == message:
            return False
        place = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
        names = mended.properties.get(INNER_MULTI_DISPATCH)
        self._write_mended(
            mended,
            f"{place} with other light queues than it had",
            f"also in {names}" if names else f"in no light queue, see its {LOST_NAMES}",
        )
        return True

    def _number_batches(self, fresh: StoreReader) -> bool:
        """Deals with batches whose properties do not say how many messages they have.

        Their bodies pass the checksum, and they say it as well; a record whose body is no batch
        either is lost.
        """
        found = False
        for anomaly in self.report.rebuilt.anomalies:
            if anomaly.what is not QueueAnomaly.NO_BATCH:
                continue
            found = True
            message = fresh.record_at(anomaly.commit_log_offset)
            mended = numbered_batch(message)
            if mended is not None:
                self._write_mended(
                    mended,
                    f"{message.topic}/{message.queue_id}/{message.queue_offset} of no messages",
                    f"{mended.properties[INNER_NUM]} messages",
                )
            else:
                self._lose(message, NO_BATCH)
        return found

    def _lose(self, message: MessageExt, reason: str) -> None:
        """Makes a damaged range of a record that was kept so far."""
        start = message.commit_log_offset
        damage = Damage(start, start + message.record_size, reason)
        self.times[start] = message.store_timestamp
        self.report.records -= 1
        self.report.lost.append(self._lost(damage))
        self.report.lost.sort(key=lambda lost: lost.start)
        self._fill(damage)

    def _suspects(self, fresh: StoreReader) -> list[int]:
        """Records with an odd place: by their number, or in a queue that there was not before."""
        rebuilt = self.report.rebuilt
        offsets: list[int] = []
        for each in rebuilt.anomalies:
            offsets += self._misnumbered_beside(fresh, each.commit_log_offset)
            if each.what not in (QueueAnomaly.GAP, QueueAnomaly.RESTART):
                offsets.append(each.commit_log_offset)
        offsets += rebuilt.illegal_records
        if self.reader.layout.queues:
            for key in fresh.queue_keys():
                if key in self.reader.layout.queues:
                    continue
                view = fresh.queue(key.topic, key.queue_id)
                units = view.units(view.first_offset, view.end_offset())
                found = {unit.commit_log_offset for _, unit in units if unit.is_message}
                # One bit makes one such record, not a queue full of them.
                if len(found) <= _SUSPECTS_PER_QUEUE:
                    offsets += sorted(found)
        return list(dict.fromkeys(offsets))

    def _misnumbered_beside(self, fresh: StoreReader, offset: int) -> list[int]:
        """The record with a wrong number at an odd place of a queue, as the old queue has it.

        It is the one at that place or the one before: neighbours do not say which where a scanned
        range ends between them, or the queue begins.
        """
        message = fresh.record_at(offset)
        key = QueueKey(message.topic, message.queue_id)
        number = message.queue_offset
        former = ordinal_of(self.reader, message)
        if former is None:
            is_known = key in self.reader.layout.queues
            return [offset] if is_known or ordinal_of(fresh, message) != number else []
        if former != number:
            return [offset]
        before = self.reader.queue(*key).unit(number - 1) if number else None
        if before is not None and before.is_message:
            with suppress(NotFoundError):  # it is lost, or the unit is damaged
                found = fresh.record_at(before.commit_log_offset)
                if found.queue_offset != number - 1:
                    return [before.commit_log_offset]
        return []

    def _keep_ends(self, fresh: StoreReader) -> None:
        """Lets queues whose newest messages are lost end where they did.

        Not where the log's end alone is lost: then queues end as after any crash.
        """
        layout = self.reader.layout
        if not self._filled:
            return
        for key in fresh.queue_keys():
            if key not in layout.queues:
                continue
            former = self.reader.queue(key.topic, key.queue_id)
            before = former.end_offset(self.end.offset)
            if before == former.first_offset:
                continue  # files are missing, and those that are left lead past the log's end
            view = fresh.queue(key.topic, key.queue_id)
            now = view.end_offset()
            last = view.unit(now - 1) if now > view.first_offset else None
            missing = before - now
            # A queue that claims more lost messages than bytes were lost is damaged itself.
            if last is None or not 0 < missing <= self.report.lost_bytes // FILLER_SIZE_MIN:
                continue
            writer = QueueFileWriter(
                os.path.join(self.target, view.directory),
                cq.UNIT_SIZE,
                layout.config.consume_queue_file_size,
            )
            writer.begin_with(now, [memoryview(cq.UNIT.pack(*last) * missing)])
            writer.flush()
            self.report.kept_ends[key] = missing


_CARRIED_OPTIONS: Final = frozenset(
    (
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mappedFileSizeConsumeQueueExt",
        "mapperFileSizeBatchConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
        "enableConsumeQueueExt",
        "enableMultiDispatch",
        "enableLmq",
        "messageIndexEnable",
    )
)


def mend_tables(root: str) -> list[MendedTable]:
    """Puts a readable back-up, or nothing, where a file of ``config/`` cannot be read.

    A broker refuses to start with a table that it cannot read. Back-ups that nobody can read go
    too; only tables are reported.
    """
    mended = []
    for name, bean in CONFIG_FILES.items():
        relative = f"{paths.CONFIG}/{name}"
        path = os.path.join(root, paths.CONFIG, name)
        back_up = path + ".bak"
        if os.path.exists(back_up) and _why_unreadable(back_up, relative + ".bak", bean):
            _remove(back_up)
        if not os.path.exists(path) or not (reason := _why_unreadable(path, relative, bean)):
            continue
        _remove(path)
        if has_back_up := os.path.exists(back_up):
            shutil.copy2(back_up, path)
        mended.append(MendedTable(relative, reason, has_back_up))
    return mended


def _remove(path: str) -> None:
    """Removes a file, or a directory that took its place."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def _why_unreadable(path: str, name: str, bean: type[Bean]) -> str:
    """Why a table cannot be read; empty: it can. An empty file is a table without entries."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data.strip():
            bean.decode(data, name=name)
    except IsADirectoryError:
        return f"{name}: found a directory, allowed is a file"
    except FormatError as error:
        return str(error)
    return ""
