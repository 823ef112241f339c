"""An exact export back into a store: the same records at the same offsets, byte for byte.

Tasks encode ranges of the log and write them at their places; segments end in the blanks that were
there; then queues, index and checkpoint are built (`dispatch`). The store appears under its name
when all is done.

Files of config/ come back as they were at the last export; where it had no topics.json one is made
from the queues. Bytes behind the log's end are in no export. A record that holds an inner batch
gets the flag 0, which is what brokers write there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oberth.errors import OptionError, StoreCorruptError, StoreError
from oberth.formats import message as m
from oberth.formats import paths
from oberth.formats.names import is_system_topic
from oberth.formats.sys_flag import INNER_BATCH
from oberth.formats.topic_config import TopicConfig, TopicConfigs
from oberth.spark.pipelines.dispatch import dispatch, sync_file
from oberth.spark.pipelines.export.compaction import list_files
from oberth.spark.pipelines.export.ledger import DIRECTORY, Ledger
from oberth.spark.pipelines.export.places import LocalPlace
from oberth.spark.pipelines.export.settings import ODD_TIMES, QUARANTINE, RECORD_COLUMNS
from oberth.spark.pipelines.tasks import TaskRunner
from oberth.spark.publish import publish
from oberth.store.offline.layout import StoreLayout, discover, local_directory
from oberth.store.offline.rebuild import RebuildReport, locked, sync_tree
from oberth.wall_clock import now_ms

BESIDE_SUFFIX: Final = ".oberth-import"
PART_SIZE: Final = 64 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class ImportReport:
    """What an import made.

    Attributes:
        records: how many.
        log_start: CommitLog offset of the first byte.
        log_end: after the last record.
        built: queues and index.
        seconds: how long it took.
    """

    records: int
    log_start: int
    log_end: int
    built: RebuildReport
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "records": self.records,
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "built": self.built.to_json(),
            "seconds": round(self.seconds, 3),
        }


class ExportFile(NamedTuple):
    """A file of an export, and the range of the log that it says it holds."""

    path: str
    start: int
    end: int


class ImportPart(NamedTuple):
    """One task: records that start in [start, end), and the files that may have some."""

    start: int
    end: int
    files: tuple[ExportFile, ...]


class PartWritten(NamedTuple):
    """What a task wrote: the records' number, their range, and stretches without one in it."""

    records: int
    start: int
    end: int
    gaps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """The CommitLog that is written."""

    directory: str
    segment_size: int


def import_store(
    tasks: TaskRunner,
    source: str,
    into: str,
    *,
    entries: Mapping[str, str] | None = None,
    part_size: int = PART_SIZE,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Makes a store of an exact export.

    Args:
        tasks: where the work is done; every task has to reach both directories.
        source: the export's directory.
        into: the store's, which does not exist yet or is empty.
        entries: options of the store by their Java names, such as enableMultiDispatch.
        part_size: bytes of log for one task.
        progress: called with the bytes of the log that are done.

    Raises:
        OptionError: no export, or one that is not exact.
        StoreError: ``into`` is not empty.
        StoreCorruptError: the export lacks records, or holds some twice or changed.
    """
    started = time.perf_counter()
    target = local_directory(into, "into")
    if os.path.isdir(target) and os.listdir(target):
        raise StoreError(f"{target}: exists and is not empty; choose another directory")
    files, segment_size = export_files(source)
    parts = cut_parts(files, segment_size, part_size)
    work = target + BESIDE_SUFFIX
    os.makedirs(work, exist_ok=True)
    with locked(work):  # until it is the store
        return _import(
            tasks, source, work, target, parts, segment_size, dict(entries or {}), progress, started
        )  # fmt: skip


def _import(
    tasks: TaskRunner,
    source: str,
    work: str,
    target: str,
    parts: list[ImportPart],
    segment_size: int,
    entries: dict[str, str],
    progress: Callable[[int], None] | None,
    started: float,
) -> ImportReport:
    for entry in os.scandir(work):  # of one that was killed
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != paths.LOCK:
            os.remove(entry.path)
    log = os.path.join(work, paths.COMMIT_LOG)
    os.makedirs(log)
    for start in sorted({part.start - part.start % segment_size for part in parts}):
        with open(os.path.join(log, paths.segment_name(start)), "wb") as file:
            file.truncate(segment_size)
    job = _Target(log, segment_size)
    sizes = [part.end - part.start for part in parts]

    def done(count: int, _total: int) -> None:
        if progress is not None:
            progress(sum(sizes[:count]))

    written = [
        each
        for each in tasks.run(partial(_write_part, job), parts, what="import", done=done)
        if each.records
    ]
    _write_blanks(job, written)
    config = os.path.join(os.path.abspath(source), DIRECTORY, paths.CONFIG)
    if os.path.isdir(config):
        shutil.copytree(config, os.path.join(work, paths.CONFIG))
    given = {"mappedFileSizeCommitLog": str(segment_size), **entries}
    built = dispatch(tasks, work, os.path.join(work, "built"), entries=given)
    _take_in(work)
    _write_topics(work)
    sync_tree(work)
    publish(work, target, replaces=False)
    return ImportReport(
        sum(each.records for each in written), written[0].start, written[-1].end, built,
        time.perf_counter() - started,
    )  # fmt: skip


def export_files(source: str) -> tuple[list[ExportFile], int]:
    """The files of an exact export, and the segment size of the store that it was made of.

    Raises:
        OptionError: no export, or one that is not exact.
        StoreCorruptError: files are missing.
    """
    ledger = Ledger(LocalPlace(os.path.abspath(source)))
    settings = ledger.settings(None)
    if settings is None:
        raise OptionError(f"{source}: holds no export")
    missing = [name for name in RECORD_COLUMNS if name not in settings.wanted_columns().split(",")]
    if missing or not settings.exact:
        raise OptionError(
            f"{source}: is no exact export (--exact)"
            + (f"; it lacks the columns {', '.join(missing)}" if missing else "")
        )
    files: list[ExportFile] = []
    segment_size = 0
    for name, found in list_files(settings, ledger).items():
        if name.endswith(QUARANTINE):
            continue
        for path in found:
            said = pq.read_schema(path).metadata or {}
            try:
                files.append(
                    ExportFile(path, int(said[b"oberth.log.start"]), int(said[b"oberth.log.end"]))
                )
                segment_size = int(said[b"oberth.segment.size"])
            except (KeyError, ValueError):
                raise StoreCorruptError(
                    f"{path}: does not say which part of a log it holds (oberth.log.start)"
                ) from None
    if not files:
        raise OptionError(f"{source}: the export has no rows")
    present = sum(pq.read_metadata(file.path).num_rows for file in files)
    if present != ledger.rows():
        raise StoreCorruptError(
            f"{source}: its files have {present} rows, the export wrote {ledger.rows()}"
        )
    return files, segment_size


def cut_parts(files: Sequence[ExportFile], segment_size: int, part_size: int) -> list[ImportPart]:
    """Ranges that do not reach over a segment's end, each with the files that overlap it."""
    start = min(file.start for file in files)
    end = max(file.end for file in files)
    parts = []
    while start < end:
        segment_end = start - start % segment_size + segment_size
        stop = min(start + part_size, segment_end, end)
        own = tuple(file for file in files if file.start < stop and file.end > start)
        if own:
            parts.append(ImportPart(start, stop, own))
        start = stop
    return parts


def _write_part(target: _Target, part: ImportPart) -> PartWritten:
    """In a task: writes the records of a range.

    Raises:
        StoreCorruptError: a record that is not what its columns say, or two in one place.
    """
    tables = [read_rows(file.path, part.start, part.end) for file in part.files]
    table = pa.concat_tables([each for each in tables if each.num_rows] or tables[:1])
    if not table.num_rows:
        return PartWritten(0, part.start, part.start, ())
    rows = table.sort_by([("physicalOffset", "ascending")])
    gaps: list[tuple[int, int]] = []
    records = 0
    first = end = rows.column("physicalOffset")[0].as_py()
    base = first - first % target.segment_size
    path = os.path.join(target.directory, paths.segment_name(base))
    with open(path, "r+b", buffering=0) as file:
        pending = bytearray()
        begin = first
        for batch in rows.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                if row["innerIndex"]:
                    continue
                record = encode_row(row)
                at = row["physicalOffset"]
                if at < end:
                    raise StoreCorruptError(f"the export has two records at CommitLog {at}")
                if at > end or len(pending) >= 1 << 22:
                    os.pwrite(file.fileno(), pending, begin - base)
                    if at > end:
                        gaps.append((end, at))
                    pending.clear()
                    begin = at
                pending += record
                end = at + len(record)
                records += 1
        if end > base + target.segment_size:
            raise StoreCorruptError(f"the record before CommitLog {end} does not fit its segment")
        os.pwrite(file.fileno(), pending, begin - base)
    sync_file(path)
    return PartWritten(records, first, end, tuple(gaps))


def read_rows(path: str, start: int, end: int) -> pa.Table:
    """The rows of one file of an export that start in a range of the log."""
    # As a file of its own: a directory name=value above it must not become a column.
    with pq.ParquetFile(path) as file:
        groups = [
            number for number in range(file.num_row_groups) if _may_have(file, number, start, end)
        ]
        every = (*RECORD_COLUMNS, *ODD_TIMES.values())
        names = [name for name in every if name in file.schema_arrow.names]
        table = file.read_row_groups(groups, names)
    for name in RECORD_COLUMNS:
        if name not in names:
            raise StoreCorruptError(f"{path}: lacks the column {name}")
    for name in ODD_TIMES.values():
        if name not in names:  # the export was begun before it had such columns
            table = table.append_column(name, pa.nulls(len(table), pa.int64()))
    offsets = table.column("physicalOffset")
    inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    return table.filter(inside).replace_schema_metadata(None)


def _may_have(file: pq.ParquetFile, number: int, start: int, end: int) -> bool:
    """Whether a row group has records of a range, as far as its statistics tell."""
    group = file.metadata.row_group(number)
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "physicalOffset":
            known = column.statistics
            return (
                known is None or not known.has_min_max or (known.min < end and known.max >= start)
            )
    return True


def encode_row(row: dict[str, Any]) -> bytes:
    """The record that a row of an exact export stands for.

    Raises:
        StoreCorruptError: its columns do not make a record of its size, or lack a time.
    """
    stored = row["storedBody"]
    body = row["value"] if stored is None else stored
    inner = bool(row["sysFlag"] & INNER_BATCH)
    record = m.MessageExt(
        topic=row["topic"],
        queue_id=row["partition"],
        queue_offset=row["storedQueueOffset"],
        commit_log_offset=row["physicalOffset"],
        record_size=row["size"],
        magic=row["magic"],
        body_crc=row["bodyCRC"],
        flag=0 if inner else row["flag"],
        sys_flag=row["sysFlag"],
        born_timestamp=_millis(row, "bornTimestamp"),
        born_host=_host(row["bornHost"]),
        store_timestamp=_millis(row, "timestamp"),
        store_host=_host(row["storeHost"]),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
        body=body or b"",
        properties_raw=row["storedProperties"] or b"",
    ).encode()
    if len(record) != row["size"]:
        raise StoreCorruptError(
            f"the record at CommitLog {row['physicalOffset']} has {row['size']} bytes, its columns "
            f"make {len(record)}"
        )
    return record


def _millis(row: dict[str, Any], name: str) -> int:
    odd: int | None = row[ODD_TIMES[name]]
    if odd is not None:
        return odd
    value = row[name]
    if value is None:
        raise StoreCorruptError(
            f"the record at CommitLog {row['physicalOffset']} has no {name}: the export did not "
            "keep times that no calendar has"
        )
    # Not timestamp(): floats lose the last digit of far times.
    seconds = value - _EPOCH
    millis: int = (seconds.days * 86_400 + seconds.seconds) * 1000 + seconds.microseconds // 1000
    return millis


def _host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return m.encode_host(address, int(port))


def _write_blanks(target: _Target, written: Sequence[PartWritten]) -> None:
    """Ends each segment behind which the log goes on.

    Raises:
        StoreCorruptError: records are missing.
    """
    if not written:
        raise StoreCorruptError("the export has no record")
    gaps = [gap for each in written for gap in each.gaps]
    gaps += [
        (before.end, after.start)
        for before, after in pairwise(written)
        if after.start != before.end
    ]
    for start, end in gaps:
        size = target.segment_size
        segment_end = -(-start // size) * size
        if start > end or end != segment_end:
            raise StoreCorruptError(
                f"the export lacks what lies between CommitLog {start} and {end}"
            )
        if end - start >= m.BLANK_SIZE_MIN:
            base = end - size
            path = os.path.join(target.directory, paths.segment_name(base))
            with open(path, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), m.encode_blank(end - start), start - base)


def _take_in(work: str) -> None:
    """Moves what was built to its place."""
    built = os.path.join(work, "built")
    for name in os.listdir(built):
        os.rename(os.path.join(built, name), os.path.join(work, name))
    os.rmdir(built)


def _write_topics(work: str) -> None:
    """Without a topics.json: one with every topic that has queues, so that a broker serves them."""
    directory = os.path.join(work, paths.CONFIG)
    if os.path.exists(os.path.join(directory, "topics.json")):
        return
    layout: StoreLayout = discover(work)
    queues: dict[str, int] = {}
    for key in layout.queues:
        if not is_system_topic(key.topic):
            queues[key.topic] = max(queues.get(key.topic, 0), key.queue_id + 1)
    configs = TopicConfigs()
    for topic, count in sorted(queues.items()):
        configs.topic_config_table[topic] = TopicConfig(
            topic_name=topic, read_queue_nums=count, write_queue_nums=count
        )
    configs.data_version = configs.data_version.next(now_ms())
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "topics.json"), "wb") as file:
        file.write(configs.encode())
