"""Builds ConsumeQueues (with ext, batch and light queues) and Index from the CommitLog.

What comes out has the bytes that RocketMQ's own dispatch makes of the same log. It differs where
the log does not tell:

* the names of index files, see `index_files`;
* units and entries of records that are not in the log any more are taken over from the files that
  are there. Where there are none the front of a queue is filled with pre-blank units, as RocketMQ
  does when it rebuilds. A queue none of whose records are left is copied as it was, because its
  numbers must go on;
* bitmaps in ConsumeQueueExt units come from the consumers' filters at the time; those of the units
  that are there are kept, others stay empty, which means that the filter is evaluated when reading;
* whether tags are indexed: as the index that is there has it, record by record, see
  `indexed_tags`;
* lost messages in the middle of a queue, see `queue_files`.

The timer's wheel is removed, and its log if no broker starts on it: the next start of one makes the
wheel from the log, and the log from the timer topic's queue.

Into the store itself it is built beside what is there and then exchanged by renaming, directory by
directory; stopped at any moment, each is whole, old or new, or missing, which a start of the store
repairs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from oberth.errors import FormatError, StoreError
from oberth.formats import paths
from oberth.formats.consume_queue_ext import ConsumeQueueExtUnit
from oberth.formats.index_file import HEADER, HEADER_SIZE, IndexHeader
from oberth.formats.paths import segment_start
from oberth.formats.topic_config import TopicConfigs
from oberth.kernels.columns import DISPATCH_COLUMNS, TopicTable
from oberth.kernels.index import IndexEntries
from oberth.kernels.queues import Anomaly, QueueTable
from oberth.store import recovery_state
from oberth.store.file_kinds import refuse_linked, refuse_odd_ones
from oberth.store.files import OsFileSystem
from oberth.store.offline.index_files import IndexTreeWriter
from oberth.store.offline.indexed_tags import IndexedTags, tags_known
from oberth.store.offline.layout import QueueKey, StoreLayout, local_directory
from oberth.store.offline.log_columns import ColumnReader, Rows
from oberth.store.offline.log_walk import Damage, LogEnd
from oberth.store.offline.part_units import part_units
from oberth.store.offline.queue_files import QueueTreeWriter
from oberth.store.offline.queue_view import QueueView
from oberth.store.offline.reader import StoreReader
from oberth.store.store_lock import StoreLock, is_held_here

BESIDE_SUFFIX: Final = ".oberth-rebuild"
OLD_SUFFIX: Final = ".oberth-old"
DERIVED_DIRECTORIES: Final = (
    paths.CONSUME_QUEUE,
    paths.CONSUME_QUEUE_EXT,
    paths.BATCH_CONSUME_QUEUE,
    paths.INDEX,
)


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild did.

    Attributes:
        records: valid records in the log.
        units: units written, without fillers.
        queues: queues written.
        index_entries: entries written.
        index_files: index files written.
        log_start: CommitLog offset of the first byte.
        log_end: CommitLog offset after the last record.
        damages: ranges of the log that hold no record.
        stand_ins: by queue, places whose message the log lacks.
        anomalies: records with an odd queue offset, the first thousand.
        kept_queues: queues that were copied because none of their records are left.
        illegal_topics: topics of queues that no directory can be named after (or with a negative
            queue id); their records are in no queue.
        illegal_records: where those records start, the first thousand.
        timer_files: what was removed of the timer; the next start makes it anew.
        seconds: how long it took.
    """

    records: int = 0
    units: int = 0
    queues: int = 0
    index_entries: int = 0
    index_files: int = 0
    log_start: int = 0
    log_end: int = 0
    damages: list[Damage] = field(default_factory=list)
    stand_ins: dict[QueueKey, int] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    kept_queues: list[QueueKey] = field(default_factory=list)
    illegal_topics: list[str] = field(default_factory=list)
    illegal_records: list[int] = field(default_factory=list)
    timer_files: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "records": self.records,
            "units": self.units,
            "queues": self.queues,
            "indexEntries": self.index_entries,
            "indexFiles": self.index_files,
            "minOffset": self.log_start,
            "maxOffset": self.log_end,
            "damages": [
                {"start": each.start, "end": each.end, "reason": each.reason}
                for each in self.damages
            ],
            "standIns": [
                {"topic": key.topic, "queueId": key.queue_id, "count": count}
                for key, count in self.stand_ins.items()
            ],
            "anomalies": [
                {"commitLogOffset": each.commit_log_offset, "what": each.what.name}
                for each in self.anomalies
            ],
            "keptQueues": [str(key) for key in self.kept_queues],
            "illegalTopics": self.illegal_topics,
            "timerFiles": self.timer_files,
            "seconds": round(self.seconds, 3),
        }

    def note(self, tree: QueueTreeWriter, index: IndexTreeWriter) -> None:
        """Takes over what was written; ``kept_queues`` count too."""
        self.units, self.queues = tree.units, len(tree.queues) + len(self.kept_queues)
        self.stand_ins = tree.stand_ins
        self.illegal_topics = sorted(repr(topic)[2:-1] for topic in tree.illegal_topics)
        self.illegal_records = tree.illegal_records
        self.index_entries, self.index_files = index.entries, len(index.paths)


def rebuild(
    reader: StoreReader,
    into: str | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    former: StoreReader | None = None,
) -> RebuildReport:
    """Builds the queues and the index.

    Args:
        reader: the store whose CommitLog is read.
        into: a directory that gets them; None for the store itself, which must not be in use.
        threads: how many scan; None for one per core.
        progress: called with the bytes of the log that are done.
        former: where queues and index are that know of expired records and bitmaps; None for the
            store itself.

    Raises:
        StoreLockedError: another process has the store open (only without ``into``).
        StoreError: ``into`` has queues or an index already, the log has no segment, or a directory
            that is to be replaced is a symbolic link.
        OSError: something cannot be read or written.
    """
    if not reader.log.segments:
        raise StoreError(f"{reader.layout.root}: the CommitLog has no segment")
    if into is not None:
        into = local_directory(into, "into")
        require_empty(into)
        os.makedirs(into, exist_ok=True)
        return _build(reader, former or reader, into, "", threads, progress)
    root = reader.layout.root
    with locked(root):
        refuse_linked(root, DERIVED_DIRECTORIES)
        remove_leftovers(root)
        report = _build(reader, former or reader, root, BESIDE_SUFFIX, threads, progress)
        exchange(root)
        report.timer_files = remove_timer(root, reader.layout.config.mapped_file_size_timer_log)
    return report


def require_empty(into: str) -> None:
    """Checks that a directory has no queues and no index.

    Raises:
        StoreError: it has some.
    """
    for name in DERIVED_DIRECTORIES:
        path = os.path.join(into, name)
        if os.path.isdir(path) and os.listdir(path):
            raise StoreError(f"{path}: exists and is not empty; choose another directory")


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Holds the store's lock.

    Raises:
        StoreLockedError: another process has the store open.
        StoreError: there is a file in a directory's place, or a directory in a file's.
    """
    refuse_odd_ones(OsFileSystem(), root)
    lock = StoreLock(root)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(
    reader: StoreReader,
    former: StoreReader,
    target: str,
    suffix: str,
    threads: int | None,
    progress: Callable[[int], None] | None,
) -> RebuildReport:
    started = time.perf_counter()
    layout = reader.layout
    config = layout.config
    topics = TopicTable()
    table = QueueTable(topics, batch_topics(layout) | batch_topics(former.layout))
    ext = ExtUnits(former) if config.enable_consume_queue_ext else None
    tree = _queue_tree(reader, former, target, suffix, ext)
    index = IndexTreeWriter(os.path.join(target, paths.INDEX + suffix), layout.index_shape)
    entries = IndexEntries()
    if config.message_index_enable:
        index.keep_expired(former.index_files(), reader.min_offset)
    tags = IndexedTags(former.index_files(), former.log.end, tags_known(former))
    report = RebuildReport(log_start=reader.min_offset)
    log = ColumnReader(
        reader.log,
        DISPATCH_COLUMNS,
        topics=topics,
        delays_ms=reader.delays_ms,
        threads=threads,
        progress=progress,
    )

    def index_rows(part: Rows) -> None:
        entries.clear()
        tags.put(part, topics, entries)
        index.add(entries)

    with ThreadPoolExecutor(1, "oberth-index") as beside:
        for part in log:
            if isinstance(part, Damage):
                report.damages.append(part)
            elif isinstance(part, LogEnd):
                report.log_end = part.offset
            elif isinstance(part, Rows):
                columns = part.columns
                report.records += columns.count
                indexed = None
                if config.message_index_enable:
                    indexed = beside.submit(index_rows, part)
                if ext is not None:
                    ext.note(part, topics)
                built = part_units(reader, part, table)
                for run in built.runs:
                    tree.add(run)
                report.anomalies += built.anomalies[: 1000 - len(report.anomalies)]
                if indexed is not None:
                    indexed.result()
    tree.finish()
    index.finish()
    os.makedirs(os.path.join(target, tree.names[0]), exist_ok=True)
    report.kept_queues = keep_expired_queues(former, tree.queues, target, tree.names)
    report.note(tree, index)
    report.seconds = time.perf_counter() - started
    return report


def _queue_tree(
    reader: StoreReader,
    former: StoreReader,
    target: str,
    suffix: str,
    ext: ExtUnits | None,
) -> QueueTreeWriter:
    """What writes the queues, in directories with a suffix to their names."""
    config = reader.layout.config
    return QueueTreeWriter(
        target,
        file_size=config.consume_queue_file_size,
        batch_file_size=config.batch_consume_queue_file_size,
        ext_file_size=config.mapped_file_size_consume_queue_ext,
        names=(
            paths.CONSUME_QUEUE + suffix,
            paths.CONSUME_QUEUE_EXT + suffix,
            paths.BATCH_CONSUME_QUEUE + suffix,
        ),
        ext_of=None if ext is None else ext.unit,
        head_of=partial(expired_head, former),
        nothing_expired=reader.min_offset == 0,
    )


def batch_topics(layout: StoreLayout) -> frozenset[bytes]:
    """Topics whose queues are BatchConsumeQueues: by their files, and by topics.json."""
    found = {key.topic for key in layout.batch_queues}
    try:
        with open(os.path.join(layout.root, paths.CONFIG, "topics.json"), "rb") as file:
            raw = file.read()
        table = TopicConfigs.decode(raw, name="topics.json").topic_config_table
        found |= {name for name, topic in table.items() if topic.is_batch_queue}
    except (OSError, FormatError):
        pass
    return frozenset(name.encode() for name in found)


class ExtUnits:
    """Gives each record's ext unit, with the bitmap of the one that is there now."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._rows: dict[int, tuple[bytes, int]] = {}

    def note(self, part: Rows, topics: TopicTable) -> None:
        """Remembers topic and store time of the records that come next."""
        columns = part.columns
        self._rows = {
            columns.commit_log_offset[row]: (
                topics.names[columns.topic_id[row]],
                columns.store_timestamp[row],
            )
            for row in range(columns.count)
        }

    def record(self, offset: int) -> tuple[bytes, int]:
        """Topic and store time of the record at a CommitLog offset, one of those noted."""
        return self._rows[offset]

    def unit(
        self, key: QueueKey, queue_offset: int, offset: int
    ) -> tuple[ConsumeQueueExtUnit | None, bool]:
        """See `queue_files.ExtSource`."""
        topic, stored = self.record(offset)
        if topic != key.topic.encode():
            return None, False
        bit_map = b""
        if key in self._reader.layout.queues:
            view: QueueView = self._reader.queue(key.topic, key.queue_id)
            old = view.unit(queue_offset)
            if old is not None and old.commit_log_offset == offset:
                ext = view.ext_unit(old)
                if ext is None:
                    # It has its tags code itself: its ext unit could not be written then.
                    return None, False
                bit_map = ext.bit_map
        return ConsumeQueueExtUnit(0, stored, bit_map), True


def expired_head(
    former: StoreReader, key: QueueKey, first: int
) -> tuple[int, list[memoryview]] | None:
    """The units before a queue's first live one, if they are all of records that have expired."""
    if key not in former.layout.queues:
        return None
    view = former.queue(key.topic, key.queue_id)
    begin = view.first_offset
    before, count = -1, 0
    for _, unit in view.units(begin, first):
        count += 1
        if unit.is_pre_blank and before < 0:
            continue
        if not unit.is_message or not before < unit.commit_log_offset < former.min_offset:
            return None
        before = unit.commit_log_offset
    if before < 0 or count != first - begin:
        return None
    pieces = []
    for index, segment in enumerate(view.stream.segments):
        end = first * view.unit_size - segment.start
        if end > 0:
            opened = view.stream.map(index).view
            pieces.append(opened[: min(end, len(opened))])
    return begin, pieces


def keep_expired_queues(
    reader: StoreReader,
    written: Collection[tuple[bytes, int]],
    target: str,
    names: tuple[str, str, str],
) -> list[QueueKey]:
    """Copies queues that have numbers but no record any more.

    Args:
        reader: the store that has them.
        written: topics and queue ids that the log has records of.
        target: where the queues are built.
        names: the directories of ConsumeQueues, ConsumeQueueExts and BatchConsumeQueues there.
    """
    kept = []
    by_kind: tuple[tuple[Mapping[QueueKey, Any], str], ...] = (
        (reader.layout.queues, names[0]),
        (reader.layout.batch_queues, names[2]),
    )
    for queues, name in by_kind:
        for key, files in sorted(queues.items()):
            if (key.topic.encode(), key.queue_id) in written or not files.segments:
                continue
            if not _all_expired(reader, key, queues is reader.layout.batch_queues):
                continue
            directory = os.path.join(target, name, key.topic, str(key.queue_id))
            os.makedirs(directory, exist_ok=True)
            for segment in files.segments:
                shutil.copy2(segment.path, os.path.join(directory, os.path.basename(segment.path)))
            kept.append(key)
    return kept


def _all_expired(reader: StoreReader, key: QueueKey, is_batch: bool) -> bool:
    if is_batch:
        view = reader.batch_queue(key.topic, key.queue_id)
        last = None
        for last in view.units():  # noqa: B007 - the last one is wanted
            pass
        view.close()
        return last is not None and last.commit_log_offset < reader.min_offset
    queue = reader.queue(key.topic, key.queue_id)
    end = queue.end_offset()
    unit = queue.unit(end - 1) if end > queue.first_offset else None
    return unit is not None and unit.is_message and unit.commit_log_offset < reader.min_offset


def remove_timer(root: str, log_file_size: int) -> list[str]:
    """Removes the timer's wheel, and its log if a file has another size; the names.

    A start makes the wheel from the log, and the log from the timer topic's queue; of what was
    delivered ``config/timercheck`` tells.
    """
    wheel, log = os.path.join(root, paths.TIMER_WHEEL), os.path.join(root, paths.TIMER_LOG)
    sizes = {}
    if os.path.isdir(log):
        sizes = {
            name: os.path.getsize(os.path.join(log, name))
            for name in os.listdir(log)
            if segment_start(name) is not None
        }
    log_fits = all(
        size in (0, log_file_size) and int(name) % log_file_size == 0
        for name, size in sizes.items()
    )
    removed = []
    if not log_fits:
        shutil.rmtree(log)
        removed.append(paths.TIMER_LOG)
    if os.path.isfile(wheel):
        os.remove(wheel)
        removed.append(paths.TIMER_WHEEL)
    if removed:
        sync_directory(root)
    return removed


def remove_leftovers(root: str) -> None:
    """Removes what a rebuild that was stopped left beside the store's own directories."""
    for name in DERIVED_DIRECTORIES:
        for suffix in (BESIDE_SUFFIX, OLD_SUFFIX):
            path = os.path.join(root, name + suffix)
            if os.path.isdir(path):
                shutil.rmtree(path)


def exchange(root: str) -> None:
    """Makes what was built beside a store its own."""
    for name in DERIVED_DIRECTORIES:
        fresh = os.path.join(root, name + BESIDE_SUFFIX)
        current = os.path.join(root, name)
        if os.path.isdir(fresh):
            sync_tree(fresh)
    # It speaks of the queues and the index that go now; without it they are checked at the start.
    state = recovery_state.load_state(OsFileSystem(), root)
    with suppress(FileNotFoundError):
        os.remove(os.path.join(root, recovery_state.FILE_NAME))
    sync_directory(root)
    for name in DERIVED_DIRECTORIES:
        fresh = os.path.join(root, name + BESIDE_SUFFIX)
        current = os.path.join(root, name)
        old = os.path.join(root, name + OLD_SUFFIX)
        if os.path.isdir(current):
            os.rename(current, old)
        if os.path.isdir(fresh):
            os.rename(fresh, current)
        sync_directory(root)
    remove_leftovers(root)
    if state is not None and os.path.exists(os.path.join(root, paths.ABORT)):
        _keep_log_state(root, state)


def _keep_log_state(root: str, state: recovery_state.RecoveryState) -> None:
    """Has a start after a crash still know from where on the log may be torn."""
    directory = os.path.join(root, paths.INDEX)
    counts = {}
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        with open(os.path.join(directory, name), "rb") as file:
            header = IndexHeader._make(HEADER.unpack(file.read(HEADER_SIZE)))
        counts[name] = header.next_entry
    recovery_state.save_state(
        OsFileSystem(),
        root,
        recovery_state.RecoveryState(
            safe_offset=state.safe_offset,
            last_record=state.last_record,
            store_timestamp=state.store_timestamp,
            index_counts=counts,
        ),
    )


def sync_tree(root: str) -> None:
    """Waits until all files below a directory, and their names, are on the disk."""
    held = os.path.join(root, paths.LOCK) if is_held_here(root) else None
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            if path == held:
                continue  # to close it would give the lock back
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_directory(directory)


def sync_directory(path: str) -> None:
    """Waits until a directory's names are on the disk, where the system can do that.

    Args:
        path: of the directory; "", as os.path.dirname gives it, is the one the process is in.
    """
    try:
        fd = os.open(path or ".", os.O_RDONLY)
    except OSError:
        return  # Windows cannot open a directory; there a rename is durable by itself
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
