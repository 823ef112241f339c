"""Dispatch of a whole CommitLog at once: ConsumeQueues, ext, batch queues, Index, checkpoint.

Files come out byte for byte as `oberth store rebuild` makes them, index files under the same names:

    1  the log is read in ranges (`log_ranges`), a task each: units and index entries go to scratch
    2  queues are written by tasks, each task some queues from their first unit to their last
    3  index files are written by tasks, one each: where a file begins in the stream of entries
       follows from counting
    4  what was built beside the store's directories takes their place by renaming

Until step 4 nothing of the store has changed; a dispatch that was killed leaves directories beside
them, which the next one removes. Its tasks may go on for a while. What is unfinished has the run in
its name, so they meet no other, and tasks that find their run over remove what they made.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from oberth.errors import StoreError
from oberth.formats import checkpoint as checkpoint_format
from oberth.formats import paths
from oberth.formats.broker_conf import Line
from oberth.formats.checkpoint import Checkpoint
from oberth.kernels.queues import Anomaly, UnitRun
from oberth.spark.pipelines.index_build import (
    IndexJob,
    NewestIndexFile,
    plan_index_files,
    write_index_file,
)
from oberth.spark.pipelines.log_ranges import (
    EntryStream,
    FoundAnomaly,
    FoundDamage,
    QueuePart,
    RangeResult,
    ScanJob,
    make_job,
    read_ranges,
    read_units,
)
from oberth.spark.pipelines.tasks import TaskRunner
from oberth.store.file_kinds import refuse_linked
from oberth.store.offline.index_files import IndexTreeWriter
from oberth.store.offline.layout import QueueKey, StoreLayout, local_directory
from oberth.store.offline.queue_files import ILLEGAL_RECORDS_MAX, QueueTreeWriter
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import (
    BESIDE_SUFFIX,
    DERIVED_DIRECTORIES,
    ExtUnits,
    RebuildReport,
    exchange,
    expired_head,
    keep_expired_queues,
    locked,
    remove_leftovers,
    require_empty,
    sync_directory,
)

SCRATCH: Final = ".oberth-dispatch"
STEPS: Final = ("read", "queues", "index", "settle", "exchange", "clean")
_UNFINISHED: Final = ".unfinished"
_MARK: Final = "run"
_ANOMALIES_MAX: Final = 1000
_TASKS_PER_CORE: Final = 3
Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Says nothing about which step comes next."""


def dispatch(
    tasks: TaskRunner,
    root: str,
    into: str | None = None,
    *,
    entries: Mapping[str, str] | None = None,
    scratch: str | None = None,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    step: Step = no_step,
) -> DispatchReport:
    """Builds queues and index of a store from its CommitLog.

    Args:
        tasks: where the work is done.
        root: the store. Every task has to reach it, and what is written, under the same path.
        into: a directory that gets queues, index and checkpoint; None for the store itself, which
            must not be in use.
        entries: options by their Java names; what they leave out is taken from the files.
        scratch: a directory for what lies between the steps (about 20 bytes for each message and
            each key), which other dispatches may use, too; what one that is killed leaves there
            stays. None for one beside the result.
        range_size: bytes of log for one task; None chooses.
        progress: called with the bytes of the log that are done.
        step: called with the name of each step before it.

    Raises:
        StoreLockedError: another process has the store open (only without ``into``).
        StoreError: ``into`` has queues or an index already, the log has no segment, or a directory
            that is to be replaced is a symbolic link.
        OSError: something cannot be read or written.
    """
    if into is not None:
        into = local_directory(into, "into")
    if scratch is not None:
        scratch = local_directory(scratch, "scratch")
    with ExitStack() as stack:
        reader = stack.enter_context(StoreReader(root, entries))
        if not reader.log.segments:
            raise StoreError(f"{reader.layout.root}: the CommitLog has no segment")
        root = reader.layout.root
        if into is None:
            stack.enter_context(locked(root))
            refuse_linked(root, DERIVED_DIRECTORIES)
            remove_leftovers(root)
            target, suffix = root, BESIDE_SUFFIX
        else:
            require_empty(into)
            os.makedirs(into, exist_ok=True)
            target, suffix = os.path.abspath(into), ""
        report = build(
            tasks, reader, reader, target, suffix,
            scratch=scratch, range_size=range_size, progress=progress, step=step,
        )  # fmt: skip
        step("settle")
        write_checkpoint(reader, target, report)
        if into is None:
            step("exchange")
            exchange(root)
            step("clean")
        return report


@dataclass(slots=True)
class DispatchReport(RebuildReport):
    """A rebuild's report, and the store time of the newest message, ms."""

    newest: int = 0


def build(
    tasks: TaskRunner,
    reader: StoreReader,
    former: StoreReader,
    target: str,
    suffix: str,
    *,
    scratch: str | None = None,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    step: Step = no_step,
) -> DispatchReport:
    """Builds the directories of queues and index below ``target``, each name with a suffix.

    Args:
        tasks: where the work is done.
        reader: the store whose log is read.
        former: where queues and index are that know of expired records and bitmaps.
        target: the directory that gets them.
        suffix: behind the directories' names.
        scratch: see `dispatch`.
        range_size: see `dispatch`.
        progress: see `dispatch`.
        step: see `dispatch`.
    """
    started = time.perf_counter()
    run = uuid.uuid4().hex
    # Dispatches of other stores may have the same scratch directory at the same time.
    work = os.path.join(target if scratch is None else scratch, f"{SCRATCH}-{run}")
    _remove_unfinished(target, suffix)
    os.makedirs(work)
    try:
        step("read")
        job = make_job(reader, former, work)
        results = read_ranges(tasks, job, range_size=range_size, progress=progress)
        report = _report_of(reader, results)
        step("queues")
        tree = _TreeJob.of(reader, former, target, suffix, run)
        _write_queues(tasks, tree, results, report)
        report.kept_queues = keep_expired_queues(
            former, {part.key for result in results for part in result.queues}, target, tree.names
        )
        report.queues += len(report.kept_queues)
        step("index")
        directory = os.path.join(target, paths.INDEX + suffix)
        _write_index(tasks, job, former, directory, run, EntryStream(results), report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report.seconds = time.perf_counter() - started
    return report


def _report_of(reader: StoreReader, results: Sequence[RangeResult]) -> DispatchReport:
    report = DispatchReport(log_start=reader.min_offset)
    for result in results:
        report.records += result.records
        report.newest = max(report.newest, result.newest)
        if result.log_end is not None:
            report.log_end = result.log_end.offset
        for event in result.events:
            if isinstance(event, FoundDamage):
                report.damages.append(event.damage)
            elif isinstance(event, FoundAnomaly) and len(report.anomalies) < _ANOMALIES_MAX:
                report.anomalies.append(Anomaly(event.offset, event.what))
    return report


# Queues.


@dataclass(frozen=True, slots=True)
class _TreeJob:
    """What all tasks that write queues have in common."""

    layout: StoreLayout
    former: StoreLayout
    delays_ms: tuple[int, ...]
    target: str
    names: tuple[str, str, str]
    run: str

    @property
    def unfinished(self) -> str:
        """Where queues are that are being written: in the same file system, beside the others."""
        return _unfinished(os.path.join(self.target, self.names[0]), self.run)

    @property
    def done(self) -> str:
        """Where queues are that are written, until all are."""
        return os.path.join(self.unfinished, "done")

    @property
    def mark(self) -> str:
        """A file that is there as long as the run is not over."""
        return os.path.join(self.unfinished, _MARK)

    @classmethod
    def of(
        cls, reader: StoreReader, former: StoreReader, target: str, suffix: str, run: str
    ) -> _TreeJob:
        names = (paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT, paths.BATCH_CONSUME_QUEUE)
        return cls(
            reader.layout,
            former.layout,
            reader.delays_ms,
            target,
            (names[0] + suffix, names[1] + suffix, names[2] + suffix),
            run,
        )


QueueParts = tuple[QueuePart, ...]


@dataclass(slots=True)
class _QueuesWritten:
    """What a task wrote."""

    units: int = 0
    queues: int = 0
    stand_ins: dict[QueueKey, int] = field(default_factory=dict)
    illegal_topics: set[bytes] = field(default_factory=set)
    illegal_records: list[int] = field(default_factory=list)


def _write_queues(
    tasks: TaskRunner, job: _TreeJob, results: Sequence[RangeResult], report: RebuildReport
) -> None:
    os.makedirs(os.path.join(job.target, job.names[0]), exist_ok=True)
    os.makedirs(job.unfinished)
    with open(job.mark, "wb"):
        pass
    bundles = bundle_queues(results, tasks.parallelism * _TASKS_PER_CORE)
    try:
        every = tasks.run(partial(_write_bundle, job), bundles, what="write queues")
        for name in job.names:
            done = os.path.join(job.done, name)
            if os.path.isdir(done):
                os.rename(done, os.path.join(job.target, name))
    finally:
        _remove_run(job.unfinished)
    illegal: set[bytes] = set()
    for written in every:
        report.units += written.units
        report.queues += written.queues
        report.stand_ins.update(written.stand_ins)
        illegal |= written.illegal_topics
        report.illegal_records += written.illegal_records
    report.illegal_topics = sorted(repr(topic)[2:-1] for topic in illegal)
    report.illegal_records = sorted(report.illegal_records)[:ILLEGAL_RECORDS_MAX]


def bundle_queues(results: Sequence[RangeResult], bundles_max: int) -> list[list[QueueParts]]:
    """All queues with their parts in order, in bundles of about the same number of bytes."""
    queues: dict[tuple[bytes, int], list[QueuePart]] = {}
    for result in results:
        for part in result.queues:
            queues.setdefault(part.key, []).append(part)
    if not queues:
        return []
    sizes = {key: sum(part.size for part in parts) for key, parts in queues.items()}
    bundles: list[list[QueueParts]] = [[] for _ in range(min(bundles_max, len(queues)))]
    filled = [0] * len(bundles)
    # The largest first, each to the bundle with the least.
    for key in sorted(queues, key=lambda key: -sizes[key]):
        number = filled.index(min(filled))
        bundles[number].append(tuple(queues[key]))
        filled[number] += sizes[key]
    return bundles


class _LoggedExtUnits(ExtUnits):
    """Ext units of records that are looked up in the log one by one."""

    def __init__(self, reader: StoreReader, former: StoreReader) -> None:
        super().__init__(former)
        self._log = reader

    def record(self, offset: int) -> tuple[bytes, int]:
        message = self._log.record_at(offset)
        return message.topic.encode(), message.store_timestamp


def _write_bundle(job: _TreeJob, bundle: Sequence[QueueParts]) -> _QueuesWritten:
    """In a task: writes some queues, each of which gets its place when all of it is written.

    A task may run twice at the same time: then one that is there already is not touched. It may
    also go on when the run is over, and make its directories again.
    """
    own = os.path.join(job.unfinished, uuid.uuid4().hex)
    os.mkdir(own)
    try:
        written = _write_bundle_to(own, job, bundle)
        _take_in(own, job, bundle)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if not os.path.exists(job.mark):
            shutil.rmtree(job.unfinished, ignore_errors=True)
    return written


def _write_bundle_to(root: str, job: _TreeJob, bundle: Sequence[QueueParts]) -> _QueuesWritten:
    config = job.layout.config
    with (
        StoreReader(job.layout.root, layout=job.layout) as reader,
        StoreReader(job.former.root, layout=job.former) as former,
    ):
        reader.use_delays(job.delays_ms)
        ext = _LoggedExtUnits(reader, former) if config.enable_consume_queue_ext else None
        tree = QueueTreeWriter(
            root,
            file_size=config.consume_queue_file_size,
            batch_file_size=config.batch_consume_queue_file_size,
            ext_file_size=config.mapped_file_size_consume_queue_ext,
            names=job.names,
            ext_of=None if ext is None else ext.unit,
            head_of=partial(expired_head, former),
            nothing_expired=reader.min_offset == 0,
        )
        for parts in bundle:
            for part in parts:
                for run in unit_runs(part):
                    tree.add(run)
        tree.finish()
    return _QueuesWritten(
        tree.units, len(tree.queues), tree.stand_ins, tree.illegal_topics, tree.illegal_records
    )


def unit_runs(part: QueuePart) -> list[UnitRun]:
    """The runs of a part as the kernels gave them.

    Raises:
        OSError: the scratch file cannot be read.
    """
    units = memoryview(read_units(part))
    size = part.size // sum(run.unit_count for run in part.runs)
    runs = []
    at = 0
    for run in part.runs:
        end = at + run.unit_count * size
        runs.append(
            UnitRun(
                part.topic, part.queue_id, part.is_batch,
                run.first, run.unit_count, units[at:end], run.skipped, run.restarts,
            )
        )  # fmt: skip
        at = end
    return runs


def _queue_directories(root: str, job: _TreeJob, bundle: Sequence[QueueParts]) -> list[str]:
    """Where the queues of a bundle that have files have them, below a root."""
    found = []
    for parts in bundle:
        topic = parts[0].topic.decode("utf-8", "replace")
        if "/" in topic or topic in ("", ".", ".."):
            continue  # such a topic has no queue
        for name in job.names:
            below = os.path.join(name, topic, str(parts[0].queue_id))
            if os.path.isdir(os.path.join(root, below)):
                found.append(below)
    return found


def _take_in(own: str, job: _TreeJob, bundle: Sequence[QueueParts]) -> None:
    """Brings a task's queues to the disk and puts them with those that are done, unless they are.

    Raises:
        StoreError: the run is over; what another has removed may be there in part.
    """
    for below in _queue_directories(own, job, bundle):
        directory, place = os.path.join(own, below), os.path.join(job.done, below)
        for name in os.listdir(directory):
            sync_file(os.path.join(directory, name))
        sync_directory(directory)
        if not os.path.exists(job.mark):
            raise StoreError(f"{job.unfinished}: this dispatch is over")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            os.rename(directory, place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another attempt has written the same


def sync_file(path: str) -> None:
    """Waits until a file's bytes are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Index.


def _unfinished(directory: str, run: str) -> str:
    """Where files are that a run is writing: beside the directory that gets them."""
    return f"{directory}{_UNFINISHED}-{run}"


def _remove_unfinished(target: str, suffix: str) -> None:
    """Removes what dispatches that were killed left in a directory."""
    if not os.path.isdir(target):
        return
    starts = [
        SCRATCH,
        *(f"{name}{suffix}{_UNFINISHED}" for name in (paths.CONSUME_QUEUE, paths.INDEX)),
    ]
    for name in os.listdir(target):
        if any(name == start or name.startswith(f"{start}-") for start in starts):
            _remove_run(os.path.join(target, name))


def _remove_run(directory: str) -> None:
    """Removes what a run has unfinished; first its mark, so that late tasks do the same."""
    with suppress(OSError):
        os.remove(os.path.join(directory, _MARK))
    shutil.rmtree(directory, ignore_errors=True)


def _write_index(
    tasks: TaskRunner,
    job: ScanJob,
    former: StoreReader,
    directory: str,
    run: str,
    stream: EntryStream,
    report: RebuildReport,
) -> None:
    if not job.entries:
        return
    shape = job.layout.index_shape
    tree = IndexTreeWriter(directory, shape)
    tree.keep_expired(former.index_files(), job.layout.commit_log[0].start)
    # The file in which expired entries end is gone on with here.
    start = min(tree.room, stream.count)
    for part, first, stop in stream.pieces(0, start):
        tree.add(part.read(first, stop))
    tree.finish()
    newest = None
    if tree.paths and tree.last_header is not None:
        newest = NewestIndexFile(tree.paths[-1], tree.last_header, writable=False)
    works = plan_index_files(stream, shape, directory, start=start, newest=newest).works
    if works:
        os.makedirs(directory, exist_ok=True)
        # Not in the Index: what a task leaves there that is killed would be one of its files.
        unfinished = _unfinished(directory, run)
        os.makedirs(unfinished)
        try:
            tasks.run(
                partial(write_index_file, IndexJob(shape, unfinished)),
                works,
                what="write index files",
            )
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    report.index_files = len(tree.paths) + len(works)
    report.index_entries = tree.entries + stream.count - start


# Checkpoint.


def write_checkpoint(reader: StoreReader, target: str, report: DispatchReport) -> None:
    """Notes that queues and index are as new as the log's newest message.

    What the store's own checkpoint says of the log itself stays.
    """
    point = reader.layout.checkpoint
    if point is None:
        end = report.log_end if reader.line is not Line.V4_9 else 0
        point = Checkpoint(
            physic_msg_timestamp=report.newest,
            logics_msg_timestamp=report.newest,
            index_msg_timestamp=0,
            master_flushed_offset=0,
            confirm_offset=end,
            logics_physical_offset=end,
        )
    else:
        point = replace(
            point,
            logics_msg_timestamp=report.newest,
            logics_physical_offset=report.log_end if point.logics_physical_offset else 0,
        )
    raw = point.encode()
    path = os.path.join(target, paths.CHECKPOINT)
    unfinished = path + ".oberth-dispatch"
    with open(unfinished, "wb") as file:
        file.write(raw + bytes(checkpoint_format.FILE_SIZE - len(raw)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    sync_directory(target)
