"""Checks a store's files against each other: CommitLog ⇔ ConsumeQueue ⇔ Index ⇔ config.

The CommitLog is read once, with all checksums. What its records should have in queues and index is
made anew, piece by piece, and compared with what is there; so a finding can say what is found and
what is expected. Every message's body is covered by its CRC; of the rest of a record, queue, tags,
keys and store time are covered by what the queues and the index say of it. What only the record
holds and no checksum covers (flag, hosts, born time, properties other than keys and tags) cannot be
checked unless the broker appended a whole-record CRC.

Nothing is written and no lock is taken. While a broker is writing, what it added since the check
began is left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oberth.errors import FormatError, OberthError, StoreError
from oberth.formats import batch_consume_queue as batch
from oberth.formats import checkpoint as checkpoint_format
from oberth.formats import consume_queue as cq
from oberth.formats import paths
from oberth.formats.config_files import CONFIG_FILES, ConsumerOffsets, DelayOffsets
from oberth.formats.message import SCHEDULE_TOPIC, MessageExt
from oberth.formats.names import LMQ_PREFIX, is_lmq, is_stored_topic, is_system_topic
from oberth.formats.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from oberth.formats.topic_config import TopicConfigs
from oberth.kernels.arguments import QueueAnomaly
from oberth.kernels.columns import DISPATCH_COLUMNS, TopicTable
from oberth.kernels.queues import QueueTable, UnitRun, build_units
from oberth.store import recovery_state
from oberth.store.files import OsFileSystem
from oberth.store.offline.filler import is_filler_topic
from oberth.store.offline.findings import Finding, FindingKind, Severity
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.lock_state import is_locked
from oberth.store.offline.log_columns import BlankMet, ColumnReader, Rows, rows_failing_crc
from oberth.store.offline.log_walk import Damage, LogEnd
from oberth.store.offline.lost_records import describe_range
from oberth.store.offline.queue_view import QueueView
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import batch_topics, gap_max
from oberth.store.offline.segments import same_bytes
from oberth.store.offline.verify_index import IndexCheck

_WRITTEN_BEHIND: Final = frozenset(
    (
        FindingKind.LOG_TAIL,
        FindingKind.QUEUE_MISSING,
        FindingKind.UNIT_MISSING,
        FindingKind.QUEUE_TAIL,
        FindingKind.EXT_UNIT,
        FindingKind.INDEX_MISSING,
        FindingKind.INDEX_ENTRY_MISSING,
        FindingKind.INDEX_HEADER,
        FindingKind.INDEX_SLOT,
        FindingKind.INDEX_TAIL,
        FindingKind.CHECKPOINT,
        FindingKind.LIMIT,
    )
)
"""What looks like damage while somebody is writing, because log, queues and index follow one
another."""
FINDINGS_MAX: Final = 10_000
"""More findings than this are counted by kind, not listed."""
_UNIT_FINDINGS_PER_QUEUE: Final = 1000


def _place(finding: Finding) -> tuple[bool, str, int]:
    """The log first, by place; then missing queues by name."""
    return not finding.file.startswith(paths.COMMIT_LOG), finding.file, finding.position


@dataclass(slots=True)
class VerifyReport:
    """What a check found.

    Attributes:
        findings: damage and notes, in the order in which they were met.
        records: valid records read.
        units: units compared.
        index_entries: index entries compared.
        bytes_read: of the CommitLog.
        log_start: CommitLog offset of the first byte.
        log_end: CommitLog offset after the last record.
        dropped: findings by kind that were not listed, because there were too many.
    """

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    units: int = 0
    index_entries: int = 0
    bytes_read: int = 0
    log_start: int = 0
    log_end: int = 0
    dropped: Counter[FindingKind] = field(default_factory=Counter)

    @property
    def damage(self) -> list[Finding]:
        """Findings that cost something."""
        return [each for each in self.findings if each.severity is Severity.DAMAGE]

    @property
    def notes(self) -> list[Finding]:
        """Findings that do not."""
        return [each for each in self.findings if each.severity is Severity.NOTE]

    @property
    def clean(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage and not self.dropped

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "clean": self.clean,
            "records": self.records,
            "units": self.units,
            "indexEntries": self.index_entries,
            "minOffset": self.log_start,
            "maxOffset": self.log_end,
            "findings": [each.to_json() for each in self.damage],
            "notes": [each.to_json() for each in self.notes],
            "notListed": {str(kind): count for kind, count in self.dropped.items()},
        }


def verify(
    reader: StoreReader,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Checks everything.

    Args:
        reader: the store.
        threads: how many scan; None for one per core.
        progress: called with the bytes of the log that are done.

    Raises:
        StoreError: the CommitLog has no segment although there are queues, or cannot be read.
    """
    return VerifyRun(reader, threads, progress).run()


class VerifyRun:
    """One check."""

    def __init__(
        self,
        reader: StoreReader,
        threads: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.reader = reader
        self.layout = reader.layout
        self.threads = threads
        self.progress = progress
        self.report = VerifyReport(log_start=reader.min_offset)
        self.damages: list[Damage] = []
        self.queues: dict[QueueKey, QueueCheck] = {}
        self.end = LogEnd(0, "", None)
        self.topics = _topic_table(self.layout.root)
        self.newest_store_time: int | None = None
        self.has_fillers = False
        # Another process may have opened or closed the store while we listed its files.
        self.in_use = self.layout.in_use or is_locked(self.layout.root)

    def found(self, finding: Finding) -> None:
        if self.in_use and finding.kind in _WRITTEN_BEHIND:
            finding = replace(
                finding,
                severity=Severity.NOTE,
                expected=f"{finding.expected} (the store is in use: it may be written any moment)",
            )
        if len(self.report.findings) < FINDINGS_MAX:
            self.report.findings.append(finding)
        else:
            self.report.dropped[finding.kind] += 1

    def run(self) -> VerifyReport:
        for finding in self.layout.findings:
            self.found(finding)
        if not self.reader.log.segments:
            if self.layout.queues or self.layout.index_files:
                raise StoreError(
                    f"{self.layout.root}: queues and index, but no segment of the CommitLog"
                )
            self._config()
            return self.report
        index_findings: list[Finding] = []
        index = IndexCheck(self.reader, index_findings.append)
        index.in_damage = self.in_damage
        with ThreadPoolExecutor(1, "oberth-index") as beside:
            self._log(index, beside)
        # Parts of the log may have been looked at in any order, and each thing in it at any time.
        self.report.findings.sort(key=_place)
        self._queue_ends()
        index.finish()
        for finding in index_findings:
            self.found(finding)
        self.report.index_entries = index.compared
        self._checkpoint()
        self._config()
        self._unknown_topics()
        return self.report

    # The log

    def _log(self, index: IndexCheck, beside: Executor) -> None:
        reader, config = self.reader, self.layout.config
        topics = TopicTable()
        table = QueueTable(topics, batch_topics(self.layout))
        log = ColumnReader(
            reader.log,
            (*DISPATCH_COLUMNS, "properties_at", "properties_size"),
            topics=topics,
            delays_ms=reader.delays_ms,
            threads=self.threads,
            progress=self.progress,
        )
        has_queues = bool(self.layout.queues or self.layout.batch_queues)
        for part in log:
            if isinstance(part, Rows):
                self.report.records += part.columns.count
                indexed = beside.submit(index.rows, part, topics)
                self._rows(part, topics)
                if not self.has_fillers and any(map(is_filler_topic, topics.names)):
                    self.has_fillers = True
                built = build_units(
                    part.columns,
                    table,
                    part.segment.view,
                    multi_dispatch=config.enable_multi_dispatch,
                    restart=True,
                    gap_units_max=gap_max(part, reader.min_offset),
                )
                for anomaly in built.anomalies:
                    self._anomaly(anomaly.commit_log_offset, anomaly.what)
                if has_queues:
                    for run in built.runs:
                        self._run(run)
                indexed.result()
            elif isinstance(part, Damage):
                self._damage(part)
            elif isinstance(part, BlankMet):
                self._blank(part)
            else:
                self.end = part
        self.newest_store_time = log.last_store_time
        self._log_read(len(table))

    def _log_read(self, queue_count: int) -> None:
        """What can be said once the log's end is known."""
        self.report.log_end = self.end.offset
        self.report.bytes_read = self.end.offset - self.reader.min_offset
        has_queues = bool(self.layout.queues or self.layout.batch_queues)
        if not has_queues and self.report.units == 0 and queue_count:
            self.found(
                Finding(
                    FindingKind.QUEUE_MISSING,
                    paths.CONSUME_QUEUE,
                    0,
                    "no queue",
                    f"{queue_count} queues, as the CommitLog has; "
                    "`oberth store rebuild` makes them",
                )
            )
        if self.end.garbage_end is not None:
            where = self._place(self.end.offset)
            state = recovery_state.load_state(OsFileSystem(), self.layout.root)
            given_up = state is not None and state.clean and state.safe_offset == self.end.offset
            self.found(
                Finding(
                    FindingKind.LOG_TAIL,
                    *where,
                    f"{self.end.garbage_end - self.end.offset} bytes that are no record: "
                    f"{self.end.reason}",
                    "zeros behind the end of the log; the next message is written over them",
                    # Once recovery has seen them and given them up they mean nothing any more.
                    Severity.NOTE if given_up else Severity.DAMAGE,
                    commit_log_offset=self.end.offset,
                    length=self.end.garbage_end - self.end.offset,
                )
            )

    def _place(self, offset: int) -> tuple[str, int]:
        """File and position of a CommitLog offset."""
        index = self.reader.log.index_of(offset)
        if index is None:
            return paths.COMMIT_LOG, offset
        segment = self.reader.log.segments[index]
        return self.layout.relative(segment.path), offset - segment.start

    def _rows(self, part: Rows, topics: TopicTable) -> None:
        columns = part.columns
        if not part.all_ok:
            for row in range(columns.count):
                if not columns.crc_ok[row]:
                    self._bad_crc(columns.commit_log_offset[row])
        for row in rows_failing_crc(part):
            offset = columns.commit_log_offset[row]
            self.found(
                Finding(
                    FindingKind.RECORD_PROPERTY_CRC,
                    *self._place(offset),
                    "a record that fails its whole-record CRC",
                    "bytes as they were stored",
                    commit_log_offset=offset,
                    topic=topics.names[columns.topic_id[row]].decode("utf-8", "replace"),
                    queue_id=columns.queue_id[row],
                    queue_offset=columns.queue_offset[row],
                    length=columns.record_size[row],
                )
            )

    def _bad_crc(self, offset: int) -> None:
        message = self.reader.record_at(offset)
        self.damages.append(
            Damage(offset, offset + message.record_size, "its body fails the checksum")
        )
        self.found(
            Finding(
                FindingKind.RECORD_CRC,
                *self._place(offset),
                "a body that fails its checksum",
                f"CRC {message.body_crc}",
                commit_log_offset=offset,
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                keys=" ".join(filter(None, (message.uniq_key, message.keys))) or None,
                length=message.record_size,
            )
        )

    def _damage(self, damage: Damage) -> None:
        self.damages.append(damage)
        lost = describe_range(self.reader, damage.start, damage.end)
        only = lost[0] if len(lost) == 1 else None
        self.found(
            Finding(
                FindingKind.RECORD_DAMAGED,
                *self._place(damage.start),
                f"{damage.size} bytes that are no record: {damage.reason}",
                "records that name their own position, or a blank",
                commit_log_offset=damage.start,
                topic=only.topic if only else None,
                queue_id=only.queue_id if only else None,
                queue_offset=only.queue_offset if only else None,
                keys=only.keys if only else None,
                length=damage.size,
            )
        )

    def _blank(self, blank: BlankMet) -> None:
        left = len(blank.segment) - blank.position
        if blank.remaining != left:
            self.found(
                Finding(
                    FindingKind.BLANK_SIZE,
                    self.layout.relative(blank.segment.segment.path),
                    blank.position,
                    f"a blank of {blank.remaining} bytes",
                    f"{left} bytes, the rest of the segment",
                )
            )

    def _anomaly(self, offset: int, what: QueueAnomaly) -> None:
        if what is QueueAnomaly.GAP and (self.damages or self.has_fillers):
            return  # the damage is reported, or was once; the gap is its consequence
        message = self.reader.record_at(offset)
        settled = what is QueueAnomaly.GAP and self._is_settled(message)
        severity = Severity.NOTE if settled or what is QueueAnomaly.RESTART else Severity.DAMAGE
        self.found(
            Finding(
                FindingKind.RECORD_QUEUE_OFFSET,
                *self._place(offset),
                f"queue offset {message.queue_offset} ({what.name.lower().replace('_', ' ')})",
                "the number that follows the record before it in its queue",
                severity,
                commit_log_offset=offset,
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                keys=message.keys,
            )
        )

    def _is_settled(self, message: MessageExt) -> bool:
        """Whether the place before a message leads to it: a salvage or rebuild met the gap."""
        for key, ordinal in _places(message):
            if ordinal < 1 or not self.layout.queues.get(key):
                continue
            view = self.reader.queue(key.topic, key.queue_id)
            unit = view.unit(ordinal)
            leads_here = unit is not None and unit.commit_log_offset == message.commit_log_offset
            if leads_here and view.unit(ordinal - 1) == unit:
                return True
        return False

    # The queues

    def _run(self, run: UnitRun) -> None:
        self.report.units += run.unit_count
        topic = run.topic.decode("utf-8", "replace")
        key = QueueKey(topic, run.queue_id)
        check = self.queues.get(key)
        if check is None:
            check = self.queues[key] = self._open(key, run.is_batch)
        check.run(run)

    def _open(self, key: QueueKey, is_batch: bool) -> QueueCheck:
        directory = paths.BATCH_CONSUME_QUEUE if is_batch else paths.CONSUME_QUEUE
        table = self.layout.batch_queues if is_batch else self.layout.queues
        if key in table and table[key].segments:
            if is_batch:
                return _BatchQueueCheck(self, key)
            return _SimpleQueueCheck(self, key)
        if not is_stored_topic(key.topic):
            self.found(
                Finding(
                    FindingKind.RECORD_TOPIC,
                    paths.COMMIT_LOG,
                    0,
                    f"records of topic {key.topic!r}",
                    "a topic that a directory can be named after",
                    topic=key.topic,
                    queue_id=key.queue_id,
                )
            )
            return QueueCheck(self, key)
        deleted = self.topics is not None and key.topic not in self.topics.topic_config_table
        self.found(
            Finding(
                FindingKind.QUEUE_MISSING,
                f"{directory}/{key.topic}/{key.queue_id}",
                0,
                "no file" + (", and no such topic in topics.json" if deleted else ""),
                "the queue of records that are in the CommitLog",
                Severity.NOTE if deleted else Severity.DAMAGE,
                topic=key.topic,
                queue_id=key.queue_id,
            )
        )
        return QueueCheck(self, key)

    def _queue_ends(self) -> None:
        for key in self.reader.queue_keys():
            if self.layout.queues[key].segments:
                check = self.queues.get(key)
                if check is None:
                    check = self.queues[key] = _SimpleQueueCheck(self, key)
        for key in sorted(self.layout.batch_queues):
            if key not in self.queues and self.layout.batch_queues[key].segments:
                self.queues[key] = _BatchQueueCheck(self, key)
        for check in self.queues.values():
            check.finish()

    def in_damage(self, offset: int) -> bool:
        """Whether a CommitLog offset lies in a damaged range."""
        return any(each.start <= offset < each.end for each in self.damages)

    # Checkpoint and config

    def _checkpoint(self) -> None:
        path = os.path.join(self.layout.root, paths.CHECKPOINT)
        point = self.layout.checkpoint
        if point is None:
            if not os.path.exists(path):
                self.found(
                    Finding(
                        FindingKind.CHECKPOINT, paths.CHECKPOINT, 0, "no file",
                        "4096 bytes; without it all is recovered from the beginning",
                        Severity.NOTE,
                    )
                )  # fmt: skip
            return
        size = os.stat(path).st_size
        if size != checkpoint_format.FILE_SIZE:
            self.found(
                Finding(FindingKind.CHECKPOINT, paths.CHECKPOINT, 0, f"{size} bytes", "4096 bytes")
            )
        newest = self.newest_store_time
        for position, name, value in (
            (0, "physicMsgTimestamp", point.physic_msg_timestamp),
            (8, "logicsMsgTimestamp", point.logics_msg_timestamp),
            (16, "indexMsgTimestamp", point.index_msg_timestamp),
        ):
            if value < 0 or (newest is not None and value > newest):
                self.found(
                    Finding(
                        FindingKind.CHECKPOINT,
                        paths.CHECKPOINT,
                        position,
                        f"{name} {value}",
                        f"at most {newest}, the store time of the newest record",
                    )
                )
        for position, name, value in (
            (24, "masterFlushedOffset", point.master_flushed_offset),
            (32, "confirmPhyOffset", point.confirm_offset),
            (40, "logicsPhysicalOffset", point.logics_physical_offset),
        ):
            if value < -1 or value > max(self.end.offset, self.end.garbage_end or 0):
                self.found(
                    Finding(
                        FindingKind.CHECKPOINT,
                        paths.CHECKPOINT,
                        position,
                        f"{name} {value}",
                        f"at most {self.end.offset}, the end of the CommitLog",
                    )
                )

    def _config(self) -> None:
        directory = os.path.join(self.layout.root, paths.CONFIG)
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            return
        for name in names:
            bean = CONFIG_FILES.get(name.removesuffix(".bak"))
            path = os.path.join(directory, name)
            if bean is None or not os.path.isfile(path):
                continue
            relative = f"{paths.CONFIG}/{name}"
            try:
                with open(path, "rb") as file:
                    data = file.read()
                if not data:
                    continue
                value = bean.decode(data, name=relative)
            except (OSError, FormatError) as error:
                self.found(
                    Finding(
                        FindingKind.CONFIG_FILE, relative, 0, str(error), "JSON of this file",
                        Severity.NOTE if name.endswith(".bak") else Severity.DAMAGE,
                    )
                )  # fmt: skip
                continue
            if name.endswith(".bak"):
                continue
            if isinstance(value, ConsumerOffsets):
                self._consumer_offsets(relative, value)
            elif isinstance(value, DelayOffsets):
                for level, offset in value.offset_table.items():
                    self._offset_within(
                        relative, f"level {level}", QueueKey(SCHEDULE_TOPIC, level - 1), offset
                    )

    def _unknown_topics(self) -> None:
        """Topics that have queues, and that the table does not have: nobody reads their messages.

        A note: a topic that was deleted looks so, one whose timed messages came later, and one of
        a slave that has not fetched its master's table yet.
        """
        if self.topics is None:
            return
        lost: dict[str, int] = {}
        for key in sorted({*self.layout.queues, *self.layout.batch_queues}):
            topic = key.topic
            if topic in self.topics.topic_config_table or is_lmq(topic) or is_system_topic(topic):
                continue
            stored_ms = self._newest_in(key)
            if stored_ms >= 0:
                lost[topic] = max(stored_ms, lost.get(topic, 0))
        for topic, stored_ms in lost.items():
            deleted = stored_ms < self.topics.data_version.timestamp
            self.found(
                Finding(
                    FindingKind.TOPIC_UNKNOWN,
                    f"{paths.CONFIG}/topics.json",
                    0,
                    f"no topic {topic}"
                    + (", deleted after its last message" if deleted else ", but younger messages"),
                    "the topics that have messages; a broker's start makes them known again",
                    Severity.NOTE,
                    topic=topic,
                )
            )

    def _newest_in(self, key: QueueKey) -> int:
        """Store time of a queue's last message, ms; -1 if there is none."""
        unit: cq.ConsumeQueueUnit | batch.BatchConsumeQueueUnit | None = None
        if key in self.layout.batch_queues:
            view = self.reader.batch_queue(*key)
            try:
                for unit in view.units(self.end.offset):  # noqa: B007 - the last one counts
                    pass
            finally:
                view.close()
        else:
            queue = self.reader.queue(*key)
            unit = queue.unit(queue.end_offset(self.end.offset) - 1)
        if unit is None:
            return -1
        return self.reader.store_timestamp(unit.commit_log_offset, unit.record_size)

    def _consumer_offsets(self, file: str, offsets: ConsumerOffsets) -> None:
        for key, table in offsets.offset_table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in table.items():
                self._offset_within(file, key, QueueKey(topic, queue_id), offset)

    def _offset_within(self, file: str, what: str, key: QueueKey, offset: int) -> None:
        check = self.queues.get(key)
        end = check.end if check is not None else None
        if end is None or offset <= max(end, 0):
            return
        self.found(
            Finding(
                FindingKind.CONSUMER_OFFSET,
                file,
                0,
                f"{what}, queue {key.queue_id}: {offset}",
                f"at most {end}, the queue's end",
                Severity.NOTE,
                topic=key.topic,
                queue_id=key.queue_id,
                queue_offset=offset,
            )
        )


def _topic_table(root: str) -> TopicConfigs | None:
    try:
        with open(os.path.join(root, paths.CONFIG, "topics.json"), "rb") as file:
            return TopicConfigs.decode(file.read())
    except (OSError, OberthError):
        return None


class QueueCheck:
    """A queue without files: nothing to compare with."""

    def __init__(self, owner: VerifyRun, key: QueueKey) -> None:
        self.owner = owner
        self.key = key
        self.end: int | None = None

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""

    def finish(self) -> None:
        """Looks at what lies before and after the units that the log speaks of."""


class _SimpleQueueCheck(QueueCheck):
    """Compares a ConsumeQueue with the units that the log asks for."""

    def __init__(self, owner: VerifyRun, key: QueueKey) -> None:
        super().__init__(owner, key)
        reader = owner.reader
        self.view: QueueView = reader.queue(key.topic, key.queue_id)
        self.first: int | None = None
        self.next = 0
        self.findings: list[tuple[int, Finding]] = []
        self._written: int | None = None
        self._no_file: tuple[int, int, int, int] | None = None

    def _found(
        self,
        kind: FindingKind,
        ordinal: int,
        found: str,
        expected: str,
        severity: Severity = Severity.DAMAGE,
        commit_log_offset: int | None = None,
        length: int | None = None,
    ) -> None:
        if len(self.findings) >= _UNIT_FINDINGS_PER_QUEUE:
            self.owner.report.dropped[kind] += 1
            return
        position = ordinal * cq.UNIT_SIZE
        index = self.view.stream.index_of(position)
        if index is None:
            file = self.view.directory
        else:
            segment = self.view.stream.segments[index]
            file, position = self.owner.layout.relative(segment.path), position - segment.start
        finding = Finding(
            kind, file, position, found, expected, severity,
            commit_log_offset=commit_log_offset, topic=self.key.topic,
            queue_id=self.key.queue_id, queue_offset=ordinal, length=length,
        )  # fmt: skip
        self.findings.append((ordinal, finding))

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""
        if run.restarts:
            # What was found in the numbers that are used again was about their former life.
            self.findings = [each for each in self.findings if each[0] < run.first]
        if self.first is None or run.first < self.first:
            self.first = run.first
        elif run.skipped:
            self._stand_ins(self.next, run.first)
        self.next = run.first + run.unit_count
        stream = self.view.stream
        done = 0
        size = cq.UNIT_SIZE
        while done < run.unit_count:
            ordinal = run.first + done
            index = stream.index_of(ordinal * size)
            if index is None:
                purged = self._purged(run.units[done * size :])
                if purged:
                    done += purged
                    continue
                self._missing(ordinal, run.unit_count - done, run.units[done * size :])
                return
            opened = stream.map(index)
            at = ordinal * size - opened.segment.start
            limit = len(opened)
            if index + 1 < len(stream.segments):
                # A file that is too long does not hide the one after it.
                limit = min(limit, stream.segments[index + 1].start - opened.segment.start)
            count = min(run.unit_count - done, (limit - at) // size)
            if count <= 0:
                self._missing(ordinal, run.unit_count - done, run.units[done * size :])
                return
            expected = run.units[done * size : (done + count) * size]
            actual = opened.view[at : at + count * size]
            if not same_bytes(actual, expected):
                self._compare(ordinal, actual, expected)
            done += count

    def _purged(self, units: memoryview) -> int:
        """How many units at the front are below the queue's floor: their files may be gone."""
        floor = self.owner.reader.floors.get(self.key, 0)
        count = 0
        for offset, _, _ in cq.UNIT.iter_unpack(units) if floor else ():
            if offset >= floor:
                break
            count += 1
        return count

    def _missing(self, ordinal: int, count: int, units: memoryview) -> None:
        lag = self.owner.layout.abort
        offset, record_size, _ = cq.UNIT.unpack_from(units, 0)
        before = self._no_file
        if before is not None and before[0] + before[1] == ordinal:
            if self.findings and self.findings[-1][0] == before[0]:
                # They go on where the last ones ended: one finding, however the log was read.
                self.findings.pop()
            ordinal, count = before[0], before[1] + count
            offset, record_size = before[2:]
        self._no_file = (ordinal, count, offset, record_size)
        self._found(
            FindingKind.UNIT_MISSING,
            ordinal,
            "no file" if count == 1 else f"no file for {count} units",
            f"a unit ({offset}, {record_size}, …)",
            Severity.NOTE if lag else Severity.DAMAGE,
            commit_log_offset=offset,
            length=count * cq.UNIT_SIZE,
        )

    def _compare(self, first: int, actual: memoryview, expected: memoryview) -> None:
        pairs = zip(cq.UNIT.iter_unpack(actual), cq.UNIT.iter_unpack(expected), strict=True)
        for number, (is_, should) in enumerate(pairs):
            ordinal = first + number
            if is_ == should:
                continue
            if self._ext_matches(is_, should):
                continue
            unit = cq.ConsumeQueueUnit(*is_)
            if is_ == (0, 0, 0):
                behind = ordinal >= self._written_end()
                if behind and self.owner.layout.abort:
                    # Dispatch had not come so far when the process ended; a start catches up.
                    self._found(
                        FindingKind.UNIT_MISSING, ordinal, "nothing yet", _text(should),
                        Severity.NOTE, should[0],
                    )  # fmt: skip
                    continue
                self._found(
                    FindingKind.UNIT_MISSING, ordinal, "zeros", _text(should),
                    commit_log_offset=should[0],
                )  # fmt: skip
            elif is_[:2] == should[:2] and cq.is_ext_address(is_[2]):
                self._found(
                    FindingKind.EXT_UNIT, ordinal,
                    f"address {is_[2]}, which leads to {self.view.ext_unit(unit)}",
                    f"an ext unit with tags code {should[2]} and the record's store time",
                    commit_log_offset=should[0],
                )  # fmt: skip
            else:
                self._found(
                    FindingKind.UNIT_WRONG, ordinal, _text(unit), _text(should),
                    commit_log_offset=should[0],
                )  # fmt: skip

    def _written_end(self) -> int:
        """The ordinal after the last unit that is not all zeros."""
        if self._written is None:
            self._written = 0
            for index in reversed(range(len(self.view.stream.segments))):
                opened = self.view.stream.map(index)
                last = opened.last_nonzero(0, len(opened))
                if last is not None:
                    self._written = (opened.segment.start + last) // cq.UNIT_SIZE + 1
                    break
        return self._written

    def _ext_matches(self, is_: tuple[Any, ...], should: tuple[Any, ...]) -> bool:
        if is_[:2] != should[:2] or not cq.is_ext_address(is_[2]):
            return False
        ext = self.view.ext_unit(cq.ConsumeQueueUnit(*is_))
        if ext is None:
            return False
        return bool(
            ext.tags_code == should[2]
            and ext.store_timestamp == self.owner.reader.store_timestamp(should[0], should[1])
        )

    def _stand_ins(self, start: int, stop: int) -> None:
        """The places of messages that the log lacks."""
        for ordinal, unit in self.view.units(start, stop):
            if unit.is_pre_blank or self.owner.in_damage(unit.commit_log_offset):
                continue
            if not unit.is_message:
                self._found(
                    FindingKind.UNIT_MISSING, ordinal, _text(unit),
                    "a unit in the place of a lost message",
                )  # fmt: skip
                continue
            following = self.view.unit(stop)
            if following is not None and unit == following:
                continue
            self._found(
                FindingKind.UNIT_DANGLING, ordinal, _text(unit), "a record of this queue offset",
                commit_log_offset=unit.commit_log_offset,
            )  # fmt: skip

    def finish(self) -> None:
        """Looks at what lies before and after the units that the log speaks of."""
        owner = self.owner
        stream = self.view.stream
        first = self.first
        if first is None:
            # No record of this queue is left: all its units must be older than the log.
            first = self.next = self._end_of_expired()
        for ordinal, unit in self.view.units(self.view.first_offset, first):
            if unit.is_pre_blank or 0 <= unit.commit_log_offset < owner.reader.min_offset:
                continue
            if owner.in_damage(unit.commit_log_offset) or unit == self.view.unit(first):
                continue
            self._found(
                FindingKind.UNIT_DANGLING, ordinal, _text(unit),
                "a pre-blank unit, or one of a record that has expired",
                commit_log_offset=unit.commit_log_offset,
            )  # fmt: skip
        self.end = self.next
        self._tail(stream)
        for _, finding in self.findings:
            owner.found(finding)
        self.view.close()

    def _repeats_last(self, unit: cq.ConsumeQueueUnit) -> bool:
        """Whether a unit holds the place of a message that was lost at the queue's end."""
        return self.owner.has_fillers and unit.is_message and unit == self.view.unit(self.next - 1)

    def _end_of_expired(self) -> int:
        end = self.view.end_offset()
        low = self.view.min_offset(self.owner.reader.min_offset, end)
        return min(low, end)

    def _tail(self, stream: Any) -> None:
        """What lies after the last unit: zeros, or what a start of the store cuts off."""
        reported = False
        for index, segment in enumerate(stream.segments):
            begin = max(0, self.next * cq.UNIT_SIZE - segment.start)
            opened = stream.map(index)
            if begin >= len(opened):
                continue
            last = opened.last_nonzero(begin, len(opened))
            if last is None:
                continue
            for at in range(begin, last + 1, cq.UNIT_SIZE):
                raw = bytes(opened.view[at : at + cq.UNIT_SIZE])
                if not raw.strip(b"\0"):
                    continue
                ordinal = (segment.start + at) // cq.UNIT_SIZE
                if len(raw) < cq.UNIT_SIZE:
                    self._found(FindingKind.QUEUE_TAIL, ordinal, f"{len(raw)} odd bytes", "zeros")
                    continue
                unit = cq.ConsumeQueueUnit(*cq.UNIT.unpack(raw))
                offset = unit.commit_log_offset
                if self.owner.in_damage(offset) or self._repeats_last(unit):
                    self.end = ordinal + 1
                    continue
                if not reported:
                    beyond = unit.is_message and offset >= self.owner.end.offset
                    reported = beyond
                    self._found(
                        FindingKind.QUEUE_TAIL,
                        ordinal,
                        _text(unit),
                        "zeros behind the queue's end"
                        + ("; the next start of the store cuts this off" if beyond else ""),
                        Severity.NOTE if beyond else Severity.DAMAGE,
                        commit_log_offset=offset,
                    )


class _BatchQueueCheck(QueueCheck):
    """Compares a BatchConsumeQueue with the units that the log asks for."""

    def __init__(self, owner: VerifyRun, key: QueueKey) -> None:
        super().__init__(owner, key)
        self.view = owner.reader.batch_queue(key.topic, key.queue_id)
        self.log_start = max(owner.reader.min_offset, owner.reader.floors.get(key, 0))
        self.units = self._live_units()
        self.number = 0

    def _live_units(self) -> Iterator[tuple[int, int, batch.BatchConsumeQueueUnit]]:
        for index, segment in enumerate(self.view.stream.segments):
            opened = self.view.stream.map(index)
            last = opened.last_nonzero(0, len(opened))
            if last is None:
                continue
            for at in range(0, last + 1, batch.UNIT_SIZE):
                if at + batch.UNIT_SIZE > len(opened):
                    break
                unit = batch.decode_batch_unit(opened.view, at)
                if unit.is_valid and unit.commit_log_offset < self.log_start:
                    continue
                yield index, at, unit
            del segment

    def _found(
        self, kind: FindingKind, place: tuple[int, int] | None, found: str, expected: str,
        severity: Severity = Severity.DAMAGE, offset: int | None = None,
        queue_offset: int | None = None,
    ) -> None:  # fmt: skip
        file, position = self.view.directory, 0
        if place is not None:
            segment = self.view.stream.segments[place[0]]
            file, position = self.owner.layout.relative(segment.path), place[1]
        self.owner.found(
            Finding(
                kind, file, position, found, expected, severity, commit_log_offset=offset,
                topic=self.key.topic, queue_id=self.key.queue_id, queue_offset=queue_offset,
            )
        )  # fmt: skip

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""
        for number in range(run.unit_count):
            should = batch.decode_batch_unit(run.units, number * batch.UNIT_SIZE)
            self.end = should.next_offset
            if should.commit_log_offset < self.log_start:
                continue  # below the floor: its file may be gone
            while True:
                here = next(self.units, None)
                if here is None or not self.owner.in_damage(here[2].commit_log_offset):
                    break
            if here is None:
                self._found(
                    FindingKind.UNIT_MISSING, None, "no unit", _text(should[:3]),
                    Severity.NOTE if self.owner.layout.abort else Severity.DAMAGE,
                    should.commit_log_offset, should.message_base_offset,
                )  # fmt: skip
                continue
            index, at, unit = here
            if unit != should:
                self._found(
                    FindingKind.UNIT_WRONG, (index, at), _text(unit), _text(should),
                    offset=should.commit_log_offset, queue_offset=should.message_base_offset,
                )  # fmt: skip

    def finish(self) -> None:
        """Looks at what lies after the units that the log speaks of."""
        for index, at, unit in self.units:
            if self.owner.in_damage(unit.commit_log_offset):
                continue
            beyond = unit.is_valid and unit.commit_log_offset >= self.owner.end.offset
            self._found(
                FindingKind.QUEUE_TAIL, (index, at), _text(unit), "zeros behind the queue's end",
                Severity.NOTE if beyond else Severity.DAMAGE, unit.commit_log_offset,
            )  # fmt: skip
            break
        self.view.close()


def _text(unit: tuple[Any, ...]) -> str:
    return "unit (" + ", ".join(str(value) for value in unit) + ")"


def _places(message: MessageExt) -> Iterator[tuple[QueueKey, int]]:
    """The queue of a message and the light queues that it names, with its number in each."""
    yield QueueKey(message.topic, message.queue_id), message.queue_offset
    properties = message.properties
    names = properties.get(INNER_MULTI_DISPATCH, "").split(",")
    numbers = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    for name, number in zip(names, numbers, strict=False):
        if name and number.isascii() and number.isdigit() and len(number) < 20:
            yield (
                QueueKey(name, 0 if name.startswith(LMQ_PREFIX) else message.queue_id),
                int(number),
            )
