"""`oberth store verify`, spread over tasks: the same findings in the same order.

    1  the log is read in ranges (`log_ranges`), which gives what is wrong with records
    2  each queue is compared with the units that the log asks for, some queues a task; an index file
       is a task, too: which entries it should begin with follows from the counts of those before it.
       From the first file on that is not as it should be, one task compares all, one after the other
    3  the driver puts the findings in the order in which one reader would have met them, and looks
       at checkpoint and config

The checks themselves are those of `store.offline.verify`.
"""  # noqa: E501 - the list

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oberth.formats.names import is_stored_topic
from oberth.spark.pipelines.dispatch import QueueParts, bundle_queues, unit_runs
from oberth.spark.pipelines.log_ranges import (
    BadChecksum,
    BadRecordChecksum,
    EntryPart,
    EntryStream,
    Event,
    FoundAnomaly,
    FoundBlank,
    FoundDamage,
    FoundFillers,
    RangeResult,
    make_job,
    read_ranges,
)
from oberth.spark.pipelines.tasks import TaskRunner
from oberth.store.offline.findings import Finding, FindingKind, VerifyReport
from oberth.store.offline.index_view import real_count
from oberth.store.offline.layout import QueueKey, StoreLayout, local_directory
from oberth.store.offline.log_columns import BlankMet
from oberth.store.offline.log_walk import Damage, LogEnd
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import VerifyRun
from oberth.store.offline.verify_index import IndexCheck
from oberth.store.offline.verify_queues import QueueCheck

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_CORE: Final = 3
# What a task reads of the entries at once.
_ENTRIES_AT_ONCE: Final = 1 << 20

FINDINGS_DDL: Final = (
    "kind string, severity string, file string, position bigint, found string, expected string, "
    "commitLogOffset bigint, topic string, queueId int, queueOffset bigint, keys string, "
    "length bigint"
)


def verify(
    tasks: TaskRunner,
    root: str,
    *,
    entries: Mapping[str, str] | None = None,
    scratch: str | None = None,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Checks everything in a store.

    Args:
        tasks: where the work is done.
        root: the store; every task has to reach it under this path.
        entries: options by their Java names; what they leave out is taken from the files.
        scratch: a directory that every task reaches; None for one of this machine.
        range_size: bytes of log for one task; None chooses.
        progress: called with the bytes of the log that are done.

    Raises:
        StoreError: the CommitLog has no segment although there are queues, or cannot be read.
    """
    if scratch is not None:
        scratch = local_directory(scratch, "scratch")
    work = tempfile.mkdtemp(prefix="oberth-verify-", dir=scratch)
    try:
        with StoreReader(root, entries) as reader:
            return _DistributedVerify(tasks, reader, work, range_size, progress).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def findings_frame(session: SparkSession, report: VerifyReport) -> DataFrame:
    """The findings of a report as a frame, damage first."""
    rows = [
        tuple(
            each.to_json().get(name.strip().partition(" ")[0]) for name in FINDINGS_DDL.split(",")
        )
        for each in (*report.damage, *report.notes)
    ]
    return session.createDataFrame(rows, FINDINGS_DDL)


class _DistributedVerify(VerifyRun):
    """One check whose log and queues are read by tasks."""

    def __init__(
        self,
        tasks: TaskRunner,
        reader: StoreReader,
        scratch: str,
        range_size: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        super().__init__(reader, None, progress)
        self._tasks = tasks
        self._scratch = scratch
        self._range_size = range_size

    def _log(self, index: IndexCheck, beside: Any) -> None:
        """Reads the log, and has queues and index compared."""
        job = make_job(self.reader, self.reader, self._scratch, checks=True)
        results = read_ranges(self._tasks, job, range_size=self._range_size, progress=self.progress)
        queues: set[tuple[bytes, int]] = set()
        for result in results:
            self.report.records += result.records
            if result.last_time is not None:
                self.newest_store_time = result.last_time
            if result.log_end is not None:
                self.end = result.log_end
            for event in result.events:
                self._take(event)
            queues.update(part.key for part in result.queues)
        if self._has_queues:
            for result in results:
                for part in result.queues:
                    self.report.units += sum(run.unit_count for run in part.runs)
        self._log_read(len(queues))
        self._compare(results, index)

    @property
    def _has_queues(self) -> bool:
        return bool(self.layout.queues or self.layout.batch_queues)

    def _take(self, event: Event) -> None:
        if isinstance(event, BadChecksum):
            self._bad_crc(event.offset)
        elif isinstance(event, BadRecordChecksum):
            self._bad_record_crc(event)
        elif isinstance(event, FoundDamage):
            self._damage(event.damage)
        elif isinstance(event, FoundBlank):
            number = self.reader.log.index_of(event.segment_start)
            assert number is not None
            self._blank(BlankMet(self.reader.log.map(number), event.position, event.remaining))
        elif isinstance(event, FoundAnomaly):
            self._anomaly(event.offset, event.what)
        elif isinstance(event, FoundFillers):
            self.first_filler = min(self.first_filler, event.offset)
        elif self._has_queues:
            key = QueueKey(event.topic.decode("utf-8", "replace"), event.queue_id)
            if key not in self.queues:
                self.queues[key] = self._open(key, event.is_batch)

    def _bad_record_crc(self, event: BadRecordChecksum) -> None:
        file, position = self._place(event.offset)
        self.found(
            Finding(
                FindingKind.RECORD_PROPERTY_CRC,
                file,
                position,
                "a record that fails its whole-record CRC",
                "bytes as they were stored",
                commit_log_offset=event.offset,
                topic=event.topic.decode("utf-8", "replace"),
                queue_id=event.queue_id,
                queue_offset=event.queue_offset,
                length=event.size,
            )
        )

    def _compare(self, results: Sequence[RangeResult], index: IndexCheck) -> None:
        known = _Known(
            self.layout, self.reader.delays_ms, tuple(self.damages), self.end, self.first_filler
        )
        bundles: list[_CheckWork] = []
        if self._has_queues:
            bundles_max = self._tasks.parallelism * _TASKS_PER_CORE
            bundles += [_CheckWork(tuple(each)) for each in bundle_queues(results, bundles_max)]
        stream = EntryStream(results)
        files = _index_works(stream, index) if index.enabled and stream.count else []
        checked: dict[QueueKey, _QueueChecked] = {}
        compared: dict[int, _IndexChecked] = {}
        works = [*(_CheckWork(index_file=each) for each in files), *bundles]
        for outcome in self._tasks.run(partial(_check, known), works, what="compare"):
            checked.update(outcome.queues)
            if outcome.index is not None:
                compared[outcome.index.number] = outcome.index
        for key, queue in checked.items():
            self.queues[key] = _Replayed(self, key, queue)
        if not files:
            return
        wrong = next((each for each in files[:-1] if not compared[each.number].goes_on), None)
        if wrong is not None:
            rest = wrong._replace(pieces=tuple(stream.pieces(wrong.start, stream.count)), last=True)
            work = [_CheckWork(index_file=rest)]
            [outcome] = self._tasks.run(partial(_check, known), work, what="compare the rest")
            assert outcome.index is not None
            compared[wrong.number] = outcome.index
        for each in files:
            index.compared += compared[each.number].compared
            for finding in compared[each.number].findings:
                index.found(finding)
            if each is wrong:
                break
        # The tasks have finished the check as well.
        index.enabled = False


@dataclass(frozen=True, slots=True)
class _Known:
    """What a task that compares has to know."""

    layout: StoreLayout
    delays_ms: tuple[int, ...]
    damages: tuple[Damage, ...]
    end: LogEnd
    first_filler: int


class _IndexWork(NamedTuple):
    """An index file and the entries that it should have, or the last one and all that are left.

    Attributes:
        number: of the file.
        start: the first entry's number in the stream.
        pieces: the entries.
        last: whether all files from this one on are compared, and what is missing is told.
    """

    number: int
    start: int
    pieces: tuple[tuple[EntryPart, int, int], ...]
    last: bool


class _CheckWork(NamedTuple):
    """One task: some queues, or one index file."""

    queues: tuple[QueueParts, ...] = ()
    index_file: _IndexWork | None = None


class _IndexChecked(NamedTuple):
    """What the comparison of an index file found.

    Attributes:
        number: of the file.
        compared: entries.
        findings: what is wrong.
        goes_on: whether it is all that it should be, so the next file begins where it ends.
    """

    number: int
    compared: int
    findings: list[Finding]
    goes_on: bool


def _index_works(stream: EntryStream, index: IndexCheck) -> list[_IndexWork]:
    """Which entries each index file should have if all of them are as they should be."""
    works: list[_IndexWork] = []
    start = 0
    log_start = index.reader.min_offset
    for number, view in enumerate(index.files):
        count = real_count(view)
        # Those of expired records come first, and are not in the log.
        own = count - bisect_left(
            range(1, count + 1), log_start, key=lambda n: view.entry(n).commit_log_offset
        )
        stop = min(start + own, stream.count)
        if number + 1 == len(index.files) or stop == stream.count:
            break
        works.append(_IndexWork(number, start, tuple(stream.pieces(start, stop)), last=False))
        start = stop
    number = len(works)
    works.append(_IndexWork(number, start, tuple(stream.pieces(start, stream.count)), last=True))
    return works


@dataclass(slots=True)
class _QueueChecked:
    """What the comparison of a queue found."""

    end: int | None
    findings: list[Finding]
    dropped: Counter[FindingKind]


@dataclass(slots=True)
class _Checked:
    """What a task found."""

    queues: dict[QueueKey, _QueueChecked] = field(default_factory=dict)
    index: _IndexChecked | None = None


class _Replayed(QueueCheck):
    """A queue that a task has compared."""

    def __init__(self, owner: VerifyRun, key: QueueKey, outcome: _QueueChecked) -> None:
        super().__init__(owner, key)
        self._outcome = outcome

    def finish(self) -> None:
        """Passes the task's findings on."""
        self.end = self._outcome.end
        for finding in self._outcome.findings:
            self.owner.found(finding)
        self.owner.report.dropped.update(self._outcome.dropped)


class _TaskVerify(VerifyRun):
    """What the checks of queues ask, inside a task: all damage of the log is known already."""

    def __init__(self, reader: StoreReader, known: _Known) -> None:
        super().__init__(reader, 1, None)
        self.damages = list(known.damages)
        self.end = known.end
        self.first_filler = known.first_filler
        # The driver decides what it means that a store is in use.
        self.in_use = False


def _check(known: _Known, work: _CheckWork) -> _Checked:
    """In a task: compares some queues, or the index."""
    outcome = _Checked()
    with StoreReader(known.layout.root, layout=known.layout) as reader:
        reader.use_delays(known.delays_ms)
        for parts in work.queues:
            owner = _TaskVerify(reader, known)
            key = QueueKey(parts[0].topic.decode("utf-8", "replace"), parts[0].queue_id)
            if not is_stored_topic(key.topic):
                continue  # the driver has said so
            check = owner._open(key, parts[0].is_batch)
            for part in parts:
                for run in unit_runs(part):
                    check.run(run)
            check.finish()
            outcome.queues[key] = _QueueChecked(
                check.end, owner.report.findings, owner.report.dropped
            )
        if work.index_file is not None:
            outcome.index = _check_index(reader, known, work.index_file)
    return outcome


def _check_index(reader: StoreReader, known: _Known, work: _IndexWork) -> _IndexChecked:
    findings: list[Finding] = []
    check = IndexCheck(reader, findings.append)
    check.in_damage = _TaskVerify(reader, known).in_damage
    check.begin_at(work.number)
    for part, first, stop in work.pieces:
        for start in range(first, stop, _ENTRIES_AT_ONCE):
            check.add(part.read(start, min(start + _ENTRIES_AT_ONCE, stop)))
    if work.last:
        check.finish()
    goes_on = not findings and check.is_behind(work.number + 1)
    return _IndexChecked(work.number, check.compared, findings, goes_on)
