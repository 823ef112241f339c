"""Runs an export: a batch is a range of the log, from where the last one ended to the log's end.

Of several stores it has a range of each log; a store that comes later begins at its beginning.

    step      what comes
    intend    the batch's range is noted
    write     tasks write files
    commit    the tables take them
    finish    the batch is noted as done

A batch that was stopped at any step is run again first, with the same range. Together with the
tables' own rules (`tables`) every message is in its table once.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from oberth.errors import DataLossError, OptionError, StoreFullError
from oberth.formats import paths
from oberth.spark import plan as p
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export.compaction import settle as settle_compaction
from oberth.spark.pipelines.export.ledger import (
    CLUSTERS,
    Batch,
    Ledger,
    LogRange,
    is_other_log,
    tail_of,
)
from oberth.spark.pipelines.export.live import (
    LiveOrigin,
    LivePart,
    LiveTopicsSource,
    is_live,
)
from oberth.spark.pipelines.export.places import STORAGE, place_of, storage_options
from oberth.spark.pipelines.export.rows import LogPart, RangeWritten, RowsJob, write_rows
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.export.tables import IcebergTables, ParquetTables, Tables, open_tables
from oberth.spark.pipelines.export.taken_options import taken_options
from oberth.spark.pipelines.json_types import infer_struct
from oberth.spark.pipelines.tasks import TaskRunner
from oberth.spark.pipelines.views import read_rows
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles
from oberth.store.files import OsFileSystem
from oberth.store.lakes import lake_name, note_of, note_path

_LOG: Final = logging.getLogger(__name__)

STEPS: Final = ("intend", "write", "commit", "finish")
RANGE_SIZE_MIN: Final = 32 << 20
RANGE_SIZE_MAX: Final = 256 << 20
_TASKS_PER_CORE: Final = 4
_SAMPLE_ROWS: Final = 5000
Step = Callable[[str], None]


@dataclass(slots=True)
class ExportReport:
    """What a run exported.

    Attributes:
        batches: how many were completed.
        log_start: CommitLog offset where the first began.
        log_end: behind the last.
        rows: rows written, without those in quarantine.
        quarantined: rows whose bodies did not decode.
        files: files written.
        bytes: of those files.
        tables: rows by table.
        skipped: ranges of the log that are damaged, where that was allowed.
        seconds: how long it took.
    """

    batches: int = 0
    log_start: int = 0
    log_end: int = 0
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    bytes: int = 0
    tables: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "batches": self.batches,
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "rows": self.rows,
            "quarantined": self.quarantined,
            "files": self.files,
            "bytes": self.bytes,
            "tables": dict(sorted(self.tables.items())),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }

    def _take(self, written: Sequence[RangeWritten]) -> None:
        for each in written:
            self.rows += each.rows
            self.quarantined += each.quarantined
            self.skipped += each.skipped
            for file in each.files:
                self.files += 1
                self.bytes += file.size
                self.tables[file.table] += file.rows


def no_step(name: str) -> None:
    """Says nothing about which step comes next."""


def export(
    tasks: TaskRunner,
    path: str,
    into: str,
    settings: ExportSettings,
    *,
    options: Mapping[str, str] | None = None,
    skip_damage: bool = False,
    range_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    step: Step = no_step,
) -> ExportReport:
    """Brings tables up to the log's end as it is now.

    Args:
        tasks: where the work is done.
        path: the store, or several with commas: directories, or URLs that pyarrow's file systems
            read; "" where options name live brokers.
        into: the export's directory; every task has to reach it under this path.
        settings: how the tables are made; those of the first run, if there was one.
        options: further options of ``format("rocketmq")``, such as storage.endpoint; see
            `taken_options`.
        skip_damage: leave damaged records out and report them.
        range_size: bytes of log for one task; None is ``targetPartitionBytes``, or chooses.
        progress: called with the bytes of the log that are done.
        step: called with the name of each step before it.

    Raises:
        OptionError: settings that contradict each other, or those of the first run; an option that
            an export does not heed.
        DataLossError: something is damaged or gone, unless that is to be skipped.
        StoreLockedError: another export writes into the directory.
    """
    started = time.perf_counter()
    settings.check()
    given = taken_options(options or {}, settings.topics)
    if is_live(given):
        # Of the tables' place; live topics know no such options.
        named = {n: v for n, v in given.items() if not n.startswith(STORAGE)}
        return _export_live(
            tasks, named, into, settings, skip_damage, range_size, progress, step, started,
            storage_options(given),
        )  # fmt: skip
    read = parse_read_options({**given, "path": path}, streaming=False)
    stores = p.open_stores(read).files
    if range_size is None and "targetPartitionBytes" in given:
        range_size = read.target_partition_bytes
    if settings.exact and len(stores) > 1:
        raise OptionError("an exact export is of one store: export the others elsewhere")
    ledger = Ledger(place_of(into, storage_options(given), "into"))
    report = ExportReport()
    with ledger.locked():
        brokers = [store.broker for store in stores]
        source = ledger.source() or {"broker": brokers[0], "path": path}
        first = source["broker"]
        ledger.check_brokers(brokers)
        present = ledger.settings(settings)
        if present is None:
            present = _complete(settings, path, given)
            _begin(ledger, present, source)
        if present.exact:
            _copy_config(stores[0], ledger)
        settle_compaction(ledger)
        tables = open_tables(present, ledger)
        try:
            run = _Run(tasks, stores, first, present, ledger, tables, skip_damage, range_size, step)
            last, done = ledger.last_batch()
            if last is not None and not done:
                run.batch(last, report, progress, again=True)
            batch = run.next_batch(last, report)
            if batch is not None:
                step("intend")
                ledger.intend(batch)
                run.batch(batch, report, progress)
            _note_positions(stores, first, ledger)
        finally:
            if isinstance(tables, IcebergTables):
                tables.close()
    report.seconds = time.perf_counter() - started
    return report


def _begin(ledger: Ledger, settings: ExportSettings, source: dict[str, Any]) -> None:
    """Notes the settings of a first run; if they or their catalog are refused, nothing is noted."""
    settings.check()
    settings.check_new()
    tables = open_tables(settings, ledger)
    if isinstance(tables, IcebergTables):
        tables.close()
    ledger.begin(settings, source)


def _note_positions(stores: Sequence[StoreFiles], first: str, ledger: Ledger) -> None:
    """Tells brokers that wait for it how far the tables have their logs: `oberth.store.lakes`.

    Args:
        stores: of those brokers, on this machine or elsewhere.
        first: the broker of the first run.
        ledger: which batches are done.
    """
    last, done = ledger.last_batch()
    if last is None or not done:
        return
    ranges = last.ranges(first)
    files = OsFileSystem()
    lake = lake_name(ledger.into)
    for store in stores:
        noted = ranges.get(store.broker)
        if noted is None or not isinstance(store.storage, LocalStorage):
            continue
        path, note = note_path(store.root, lake), note_of(lake, noted.end)
        if not files.is_dir(os.path.dirname(path)) or files.read_file(path) == note:
            continue
        try:
            files.write_file(path, note)
        except (OSError, StoreFullError) as error:
            _LOG.warning("%s: %s; the broker does not learn how far the export is", path, error)


def _withdraw_position(store: StoreFiles, ledger: Ledger) -> None:
    """Tells a broker that the tables do not have its log, whatever it was told before."""
    if not isinstance(store.storage, LocalStorage):
        return
    files, path = OsFileSystem(), note_path(store.root, lake_name(ledger.into))
    if files.read_file(path) is None:
        return
    try:
        files.remove(path)
        files.sync_directory(os.path.dirname(path))
    except OSError as error:
        _LOG.warning("%s: %s; the broker is not told that the export lacks its log", path, error)


def _export_live(
    tasks: TaskRunner,
    options: dict[str, str],
    into: str,
    settings: ExportSettings,
    skip_damage: bool,
    range_size: int | None,
    progress: Callable[[int], None] | None,
    step: Step,
    started: float,
    storage: Mapping[str, str],
) -> ExportReport:
    """Brings tables up to the queues' ends as they are now."""
    if range_size is not None:
        options = {**options, "targetPartitionBytes": str(range_size)}
    ledger = Ledger(place_of(into, storage, "into"))
    report = ExportReport()
    with ledger.locked():
        source = LiveTopicsSource(options, settings, skip_damage=skip_damage)
        try:
            clusters = source.clusters(ledger.clusters())
            ledger.check_clusters(clusters)
            known = {"broker": CLUSTERS + ", ".join(clusters), "path": ""}
            present = ledger.settings(settings)
            if present is None:
                present = _complete(settings, "", options)
                _begin(ledger, present, known)
            settle_compaction(ledger)
            tables = open_tables(present, ledger)
            try:
                run = _LiveRun(tasks, source, present, ledger, tables, skip_damage, step)
                last, done = ledger.last_batch()
                if last is not None and not done:
                    run.batch(last, report, progress, again=True)
                batch = source.next_batch(last, report.skipped)
                if batch is not None:
                    step("intend")
                    ledger.intend(batch)
                    run.batch(batch, report, progress)
            finally:
                if isinstance(tables, IcebergTables):
                    tables.close()
        finally:
            source.close()
    report.seconds = time.perf_counter() - started
    return report


def open_stores(path: str, options: Mapping[str, str]) -> list[StoreFiles]:
    """The stores that a path names.

    Raises:
        OptionError: none, or two of one broker name.
    """
    return p.open_stores(parse_read_options({**options, "path": path}, streaming=False)).files


def _copy_config(store: StoreFiles, ledger: Ledger) -> None:
    """Keeps the store's configuration beside an exact export; a broker may be changing it."""
    source = f"{store.root}/{paths.CONFIG}"
    for entry in store.storage.entries(source):
        if entry.is_directory or not entry.name.endswith(".json"):
            continue
        data = store.storage.read(f"{source}/{entry.name}", 0, entry.size)
        private = entry.name.startswith("auth")  # users with their passwords
        ledger.write_bytes(f"{paths.CONFIG}/{entry.name}", data, private=private)


def _complete(settings: ExportSettings, path: str, options: Mapping[str, str]) -> ExportSettings:
    """Adds what a first run settles: columns for odd times, a type of JSON bodies if not given."""
    settings = replace(settings, odd_times=settings.exact)
    if settings.body != "json" or settings.body_schema:
        return settings
    selection = {"subscribe": ",".join(settings.topics)} if settings.topics else {}
    samples = (
        body
        for batch in read_rows(
            {
                **options,
                **selection,
                **({"path": path} if path else {}),
                "failOnDataLoss": "false",
            },
            "value",
            rows_max=_SAMPLE_ROWS,
        )
        for body in batch.column(0).to_pylist()
    )
    return settings.with_json_type(infer_struct(samples))


class _Run:
    """One call of `export`."""

    def __init__(
        self,
        tasks: TaskRunner,
        stores: Sequence[StoreFiles],
        first: str,
        settings: ExportSettings,
        ledger: Ledger,
        tables: Tables,
        skip_damage: bool,
        range_size: int | None,
        step: Step,
    ) -> None:
        self._tasks = tasks
        self._stores = stores
        self._first = first  # the broker of the first run
        self._settings = settings
        self._ledger = ledger
        self._tables = tables
        self._skip_damage = skip_damage
        self._range_size = range_size
        self._step = step

    def next_batch(self, last: Batch | None, report: ExportReport) -> Batch | None:
        """What is new in the logs, None for nothing."""
        before = {} if last is None else last.ranges(self._first)
        ranges = {
            store.broker: self._next_range(store, before.get(store.broker), report)
            for store in self._stores
        }
        count = sum(each.end - each.start for each in ranges.values())
        if not count:
            return None
        number = 0 if last is None else last.number + 1
        if len(ranges) == 1 and (last is None or last.logs is None):
            [only] = ranges.values()
            return Batch(number, only.start, only.end, tail=only.tail)
        start = 0 if last is None else last.end
        return Batch(number, start, start + count, logs=ranges)

    def _next_range(
        self, store: StoreFiles, before: LogRange | None, report: ExportReport
    ) -> LogRange:
        """What is new in a log, from where the last batch ended."""
        end = store.log_end()
        first = store.log_start()
        start = first if before is None else before.end
        if before is None:
            _withdraw_position(store, self._ledger)  # of tables that were removed
        if first > start:
            gone = f"{store.root}: CommitLog {start} to {first} was deleted unexported"
            if not self._skip_damage:
                raise DataLossError(gone)
            report.skipped.append(gone)
            start = first
        if end < start:
            _withdraw_position(store, self._ledger)
            raise DataLossError(
                f"{store.root}: its CommitLog ends at {end} and was exported to {start}"
            )
        if before is not None and is_other_log(store, before.end, before.tail):
            _withdraw_position(store, self._ledger)
            raise DataLossError(
                f"{store.root}: what lies before {before.end} of its CommitLog is not what was "
                "exported: the log was cut after a crash and written on, or is another one; export "
                "into another directory"
            )
        return LogRange(start, end, tail_of(store, end))

    def batch(
        self,
        batch: Batch,
        report: ExportReport,
        progress: Callable[[int], None] | None,
        *,
        again: bool = False,
    ) -> None:
        """Brings a batch to its end, from wherever it is.

        Only one that is run ``again`` can have left anything: every table is asked for it.
        """
        tables = self._tables
        if again:
            tables.recover(batch.number)
        if isinstance(tables, ParquetTables) and tables.is_committed(batch.number):
            # Its files count already; only their moving was cut short.
            rows = tables.settle(batch.number)
            self._step("finish")
            own = ExportReport(1, batch.start, batch.end, rows)
            self._ledger.finish(batch, own.to_json())
        else:
            self._step("write")
            stores, parts = self._work(batch)
            job = RowsJob(
                self._settings, stores, tables.directory(batch.number), tables.suffix,
                batch.number, self._skip_damage, tables.in_file, tables.hive, self._ledger.place,
            )  # fmt: skip
            written = self._tasks.run(
                partial(write_rows, job), parts, what="export", done=_bytes_done(parts, progress)
            )
            self._step("commit")
            tables.commit(batch.number, [file for each in written for file in each.files])
            report._take(written)
            self._step("finish")
            own = ExportReport(1, batch.start, batch.end)
            own._take(written)
            self._ledger.finish(batch, own.to_json())
        report.log_start = batch.start if not report.batches else report.log_start
        report.log_end = batch.end
        report.batches += 1

    def _work(self, batch: Batch) -> tuple[tuple[StoreFiles, ...] | LiveOrigin, list[Any]]:
        """Where a batch is read, and its tasks."""
        return tuple(store.bare() for store in self._stores), self._parts(batch)

    def _parts(self, batch: Batch) -> list[LogPart]:
        size = self._range_size
        if size is None:
            wanted = (batch.end - batch.start) // (self._tasks.parallelism * _TASKS_PER_CORE)
            size = min(max(wanted, RANGE_SIZE_MIN), RANGE_SIZE_MAX)
        ranges = batch.ranges(self._first)
        parts = []
        for number, store in enumerate(self._stores):
            if store.broker not in ranges:  # it came after this batch was noted
                continue
            own = ranges[store.broker]
            segment_size = max((segment.size for segment in store.segments()), default=0)
            parts += [
                LogPart(start, min(start + size, own.end), number, segment_size)
                for start in range(own.start, own.end, size)
            ]
        return parts


class _LiveRun(_Run):
    """One call of `export` over live topics."""

    def __init__(
        self,
        tasks: TaskRunner,
        source: LiveTopicsSource,
        settings: ExportSettings,
        ledger: Ledger,
        tables: Tables,
        skip_damage: bool,
        step: Step,
    ) -> None:
        self._tasks = tasks
        self._source = source
        self._settings = settings
        self._ledger = ledger
        self._tables = tables
        self._skip_damage = skip_damage
        self._step = step

    def batch(
        self,
        batch: Batch,
        report: ExportReport,
        progress: Callable[[int], None] | None,
        *,
        again: bool = False,
    ) -> None:
        """See `_Run`."""
        already = len(self._source.stores.lost)
        super().batch(batch, report, progress, again=again)
        report.skipped += self._source.stores.lost[already:]

    def _work(self, batch: Batch) -> tuple[tuple[StoreFiles, ...] | LiveOrigin, list[Any]]:
        return self._source.parts(batch)


def _bytes_done(
    parts: Sequence[LogPart | LivePart], progress: Callable[[int], None] | None
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    sizes = [0, *accumulate(part.end - part.start for part in parts)]
    return lambda count, _total: progress(sizes[min(count, len(parts))])
