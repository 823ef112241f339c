"""`oberth store salvage`, spread over tasks: the same new store, the same losses.

The log is read in ranges, segments are copied by tasks, and the new store's queues and index are
built as `dispatch` builds them. What is done with the damaged places themselves is little work and
done by the driver, by `store.offline.salvage`.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oberth.spark.pipelines.dispatch import build, sync_file
from oberth.spark.pipelines.log_ranges import (
    BadChecksum,
    BadRecordChecksum,
    FoundBlank,
    FoundDamage,
    bare_layout,
    make_job,
    read_ranges,
)
from oberth.spark.pipelines.tasks import TaskRunner
from oberth.store.offline.layout import StoreLayout, local_directory
from oberth.store.offline.log_columns import BlankMet
from oberth.store.offline.log_walk import BODY_FAILS, Damage
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import RebuildReport, require_empty
from oberth.store.offline.salvage import (
    SalvageReport,
    SalvageRun,
    SegmentCopy,
    check_target,
    copy_segment,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOSSES_DDL: Final = (
    "start bigint, end bigint, file string, position bigint, reason string, "
    "commitLogOffset bigint, storeSize bigint, topic string, queueId int, queueOffset bigint, "
    "storeTimestamp bigint, keys string, tagsCode bigint"
)


def salvage(
    tasks: TaskRunner,
    root: str,
    into: str,
    *,
    entries: Mapping[str, str] | None = None,
    scratch: str | None = None,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SalvageReport:
    """Copies what is undamaged into a new store.

    Args:
        tasks: where the work is done.
        root: the damaged store; every task has to reach it, and ``into``, under the same path.
        into: a directory that does not exist or is empty.
        entries: options by their Java names; what they leave out is taken from the files.
        scratch: a directory that every task reaches; None for one of this machine.
        range_size: bytes of log for one task; None chooses.
        progress: called with the bytes of the log that are done.

    Raises:
        StoreError: ``into`` is not empty or lies inside the source, or the log has no segment.
        OSError: something cannot be read or written.
    """
    if scratch is not None:
        scratch = local_directory(scratch, "scratch")
    work = tempfile.mkdtemp(prefix="oberth-salvage-", dir=scratch)
    try:
        with StoreReader(root, entries) as reader:
            target = check_target(reader, into)
            return _DistributedSalvage(tasks, reader, target, work, range_size, progress).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def losses_frame(session: SparkSession, report: SalvageReport) -> DataFrame:
    """What was lost, a row a record; a range of which no record is known is one row."""
    rows: list[tuple[Any, ...]] = []
    for lost in report.lost:
        place = (lost.start, lost.end, lost.file, lost.position, lost.reason)
        rows += [(*place, *each) for each in lost.records] or [(*place, *[None] * 8)]
    return session.createDataFrame(rows, LOSSES_DDL)


class _DistributedSalvage(SalvageRun):
    """One salvage whose log is read and copied by tasks."""

    def __init__(
        self,
        tasks: TaskRunner,
        reader: StoreReader,
        target: str,
        scratch: str,
        range_size: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        super().__init__(reader, target, None, progress)
        self._tasks = tasks
        self._scratch = scratch
        self._range_size = range_size

    def _look(self) -> None:
        """Reads the whole log: what is damaged, and when the record before was stored."""
        job = make_job(
            self.reader, self.reader, self._scratch, units=False, entries=False, checks=True
        )
        results = read_ranges(self._tasks, job, range_size=self._range_size, progress=self.progress)
        for result in results:
            self.report.records += result.records
            for event in result.events:
                if isinstance(event, BadChecksum):
                    damage = Damage(event.offset, event.offset + event.size, BODY_FAILS)
                    self._damage(damage, event.store_timestamp)
                    self.report.records -= 1
                elif isinstance(event, BadRecordChecksum):
                    self.failing.append(event.offset)
                elif isinstance(event, FoundDamage):
                    self._damage(event.damage, max(self.newest, event.newest))
                elif isinstance(event, FoundBlank):
                    number = self.reader.log.index_of(event.segment_start)
                    assert number is not None
                    opened = self.reader.log.map(number)
                    self.blanks[event.segment_start] = BlankMet(
                        opened, event.position, event.remaining
                    )
            self.newest = max(self.newest, result.newest)
            if result.log_end is not None:
                self.end = result.log_end
        if self.end.garbage_end is not None:
            self.report.tail_bytes = self.end.garbage_end - self.end.offset

    def _copy_log(self) -> None:
        function = partial(_copy, bare_layout(self.reader.layout))
        copies = self._copies()
        self._tasks.run(function, copies, what="copy segments")
        for each in copies:  # what attempts of tasks left that were lost
            for path in glob.glob(f"{glob.escape(each.path)}.*"):
                with suppress(FileNotFoundError):
                    os.remove(path)

    def _rebuild(self, fresh: StoreReader) -> RebuildReport:
        require_empty(self.target)
        return build(
            self._tasks, fresh, self.reader, self.target, "",
            scratch=self._scratch, range_size=self._range_size,
        )  # fmt: skip


def _copy(layout: StoreLayout, copy: SegmentCopy) -> None:
    """In a task: copies one segment, unless another attempt has done it.

    One that is late must not undo what has been done to the copy since.
    """
    if not os.path.exists(copy.path):
        unfinished = f"{copy.path}.{uuid.uuid4().hex}"
        with StoreReader(layout.root, layout=layout) as reader:
            copy_segment(reader.log, copy._replace(path=unfinished))
        sync_file(unfinished)
        if os.path.exists(copy.path):
            os.remove(unfinished)
        else:
            os.replace(unfinished, copy.path)
