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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Final

from oberth.errors import FormatError, OberthError, StoreError
from oberth.formats import batch_consume_queue as batch
from oberth.formats import checkpoint as checkpoint_format
from oberth.formats import consume_queue as cq
from oberth.formats import paths
from oberth.formats.config_files import (
    CONFIG_FILES,
    ConsumerOffsets,
    DelayOffsets,
    split_offset_key,
)
from oberth.formats.message import SCHEDULE_TOPIC, MessageExt
from oberth.formats.names import LMQ_PREFIX, is_lmq, is_stored_topic, is_system_topic
from oberth.formats.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from oberth.formats.topic_config import TopicConfigs
from oberth.kernels.arguments import QueueAnomaly
from oberth.kernels.columns import DISPATCH_COLUMNS, TopicTable
from oberth.kernels.queues import QueueTable, UnitRun
from oberth.store import recovery_state
from oberth.store.files import OsFileSystem
from oberth.store.offline.filler import NO_FILLER, first_filler
from oberth.store.offline.findings import Finding, FindingKind, Severity, VerifyReport
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.lock_state import is_locked
from oberth.store.offline.log_columns import BlankMet, ColumnReader, Rows, rows_failing_crc
from oberth.store.offline.log_walk import Damage, LogEnd, missing_at_end
from oberth.store.offline.lost_records import describe_range
from oberth.store.offline.part_units import part_units
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import batch_topics
from oberth.store.offline.verify_index import IndexCheck
from oberth.store.offline.verify_queues import (
    BatchQueueCheck,
    MissingQueueCheck,
    QueueCheck,
    SimpleQueueCheck,
)

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


def _place(finding: Finding) -> tuple[bool, str, int]:
    """The log first, by place."""
    return not finding.file.startswith(paths.COMMIT_LOG), finding.file, finding.position


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
        self.topics_with_queues = {
            key.topic for key in (*self.layout.queues, *self.layout.batch_queues)
        }
        self.newest_store_time: int | None = None
        self.first_filler = NO_FILLER
        # Another process may have opened or closed the store while we listed its files.
        self.in_use = self.layout.in_use or is_locked(self.layout.root)

    @property
    def has_fillers(self) -> bool:
        """Whether the log so far has records that a salvage put in the place of damaged ones."""
        return self.first_filler != NO_FILLER

    def found(self, finding: Finding) -> None:
        if self.in_use and finding.kind in _WRITTEN_BEHIND:
            finding = replace(
                finding,
                severity=Severity.NOTE,
                expected=f"{finding.expected} (the store is in use: it may be written any moment)",
            )
        self.report.add(finding)

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
        reader = self.reader
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
                if not self.has_fillers:
                    self.first_filler = first_filler(part, topics)
                built = part_units(reader, part, table)
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
        missing = missing_at_end(self.reader.log, self.end)
        if missing is not None:
            self._damage(missing)
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
        reason, should = "its body fails the checksum", f"CRC {message.body_crc}"
        found = "a body that fails its checksum"
        if message.crc_ok:
            reason = found = (
                "zeros at its end" if message.ends_in_zeros else "zeros in its properties"
            )
            should = "topic and properties as they were stored"
        self.damages.append(Damage(offset, offset + message.record_size, reason))
        self.found(
            Finding(
                FindingKind.RECORD_CRC,
                *self._place(offset),
                found,
                should,
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
        if what is QueueAnomaly.GAP and self._is_damaged_before(offset):
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

    def _is_damaged_before(self, offset: int) -> bool:
        """Whether records before a CommitLog offset are damaged, or were and have fillers now."""
        return self.first_filler < offset or bool(self.damages and self.damages[0].start < offset)

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
        table = self.layout.batch_queues if is_batch else self.layout.queues
        if key in table and table[key].segments:
            if is_batch:
                return BatchQueueCheck(self, key)
            return SimpleQueueCheck(self, key)
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
        return MissingQueueCheck(self, key, is_batch=is_batch)

    def why_deleted(self, topic: str, last: int) -> str:
        """What tells that a topic's queue was deleted; "" where nothing does.

        Args:
            topic: of the queue.
            last: CommitLog offset of its last record.
        """
        if last < self._deleted_below.get(topic, 0):
            return ", and the topic was deleted after its last record"
        if (
            self.topics is not None
            and topic not in self.topics.topic_config_table
            # Of a topic that was deleted no queue is left, see `oberth.store.deleted_topics`.
            and topic not in self.topics_with_queues
        ):
            return ", and no such topic in topics.json"
        return ""

    @cached_property
    def _deleted_below(self) -> dict[str, int]:
        state = recovery_state.load_state(OsFileSystem(), self.layout.root)
        return {} if state is None else state.deleted

    def _queue_ends(self) -> None:
        for key in self.reader.queue_keys():
            if self.layout.queues[key].segments:
                check = self.queues.get(key)
                if check is None:
                    check = self.queues[key] = SimpleQueueCheck(self, key)
        for key in sorted(self.layout.batch_queues):
            if key not in self.queues and self.layout.batch_queues[key].segments:
                self.queues[key] = BatchQueueCheck(self, key)
        for _, check in sorted(self.queues.items()):
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
                continue  # a directory in its place is among the layout's findings
            relative = f"{paths.CONFIG}/{name}"
            try:
                with open(path, "rb") as file:
                    data = file.read()
                if not data.strip():
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
            topic, _ = split_offset_key(key) or (key, "")
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
