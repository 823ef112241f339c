"""Makes staged records part of a store: all of them, or none.

Tasks stage their records in files beside the store, each a log of its own. When all are there their
places follow from sizes alone: a commit gives every stretch of records its byte range of the
CommitLog (with a blank where a segment ends), its ordinals in every ConsumeQueue and its entries in
the Index, and several threads write these ranges at once.

All of this goes into a new directory tree that shares, by hard links, every file which does not
change; files that grow are copied. Of a store of many queues that tree is made of the one which the
commit before replaced (`oberth.spark.spare_tree`). Then the two trees change places in one step
(renameat2, RENAME_EXCHANGE), so that at every moment the store's name leads to the old store or to
the complete new one. What was committed is remembered in a ledger inside the store, hence in the
same step:

    oberth/ledger.json    {"loads": {id: when}, "queries": {queryId: last batchId}}

A commit whose batch or load the ledger knows changes nothing. The store has to be closed: neither
locked by a process nor left with ``abort`` by a crash, and its queues must not be behind its log.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from oberth.errors import StoreError
from oberth.formats import message, paths
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.kernels.index import IndexEntries, index_keys
from oberth.spark.load_files import (
    ChangedFiles,
    IndexWriter,
    LogFiles,
    QueueFileWriter,
    link_tree,
    write_checkpoint,
    write_topics,
)
from oberth.spark.load_plan import (
    ExistingStore,
    LoadItem,
    StagedPart,
    StagedReader,
    give_back,
    plan_load,
    queue_codes,
    queue_of,
    queued,
)
from oberth.spark.publish import LEDGER, aside_of, is_known, note, publish, read_ledger
from oberth.spark.spare_tree import SpareTree
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles
from oberth.spark.write_options import WriteOptions
from oberth.store.offline.indexed_tags import indexes_tags
from oberth.store.offline.layout import discover
from oberth.store.offline.reader import StoreReader
from oberth.store.store_lock import StoreLock

_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a commit did.

    Attributes:
        rows: records added; 0 when the ledger knew the load.
        log_start, log_end: the range of the CommitLog that they take, blanks included.
        repeated: whether the ledger knew it.
    """

    rows: int
    log_start: int
    log_end: int
    repeated: bool = False


class StoreLoader:
    """Commits staged parts to one store. One commit at a time; threads are its own.

    ``steps`` is called with the name of each step just before it; tests stop a commit there.
    """

    STEPS = ("plan", "build", "records", "index", "settle", "sync", "exchange", "clean")

    def __init__(self, options: WriteOptions, *, threads: int | None = None) -> None:
        self._options = options
        self._root = os.path.realpath(options.path)
        self._threads = threads or os.cpu_count() or 1

    def steps(self, name: str) -> None:
        """Says which step comes next."""

    def commit(
        self,
        parts: Sequence[StagedPart],
        work: str,
        *,
        overwrite: bool = False,
        batch: tuple[str, int] | None = None,
    ) -> LoadReport:
        """Makes the parts' records the newest of the store, in the order of the parts.

        Args:
            parts: what tasks staged.
            work: the job's directory, `work_directory`; removed in the end.
            overwrite: whether the store begins anew with these records.
            batch: for a stream, its query's id and the batch's number.

        Raises:
            StoreLockedError: a process has the store open.
            StoreError: it was not closed cleanly, is behind with dispatching, or is no store.
            RecordError: a record is larger than a segment.
        """
        self._finish_two_step_exchange()
        spare = SpareTree(self._root)
        lock = StoreLock(self._root) if os.path.isdir(self._root) else None
        if lock is not None:
            self._check_directory(overwrite)
            lock.acquire()
        try:
            ledger = read_ledger(self._root)
            if is_known(ledger, batch, self._options.load_id):
                return LoadReport(0, 0, 0, repeated=True)
            return self._commit(parts, work, ledger, overwrite, batch, spare)
        finally:
            if lock is not None:
                lock.release()
            shutil.rmtree(work, ignore_errors=True)

    def _check_directory(self, overwrite: bool) -> None:
        present = set(os.listdir(self._root))
        known = StoreFiles(LocalStorage(), self._root, "")
        if present and paths.COMMIT_LOG not in present and not known.segments():
            raise StoreError(
                f"{self._root} is neither empty nor a store (no commitlog); not touched"
            )
        if paths.ABORT in present and not overwrite:
            raise StoreError(
                f"{self._root}: `abort` says that it is open or was not closed; "
                "run `oberth store recover` first"
            )

    def _commit(
        self,
        parts: Sequence[StagedPart],
        work: str,
        ledger: dict[str, Any],
        overwrite: bool,
        batch: tuple[str, int] | None,
        spare: SpareTree,
    ) -> LoadReport:
        self.steps("plan")
        fresh = f"{work}/store"
        shutil.rmtree(fresh, ignore_errors=True)
        keep = os.path.isdir(self._root) and not overwrite
        os.makedirs(f"{work}/none", exist_ok=True)
        existing = ExistingStore(self._root if keep else f"{work}/none", self._options)
        plan = plan_load(parts, existing)
        self.steps("build")
        changed = ChangedFiles()
        kept = spare.take(fresh) if keep else None
        if not keep:
            spare.drop()
        count = link_tree(self._root, fresh, changed, existing, kept) if keep else 0
        os.makedirs(f"{fresh}/{paths.COMMIT_LOG}", exist_ok=True)
        os.makedirs(f"{fresh}/{paths.CONSUME_QUEUE}", exist_ok=True)
        log = LogFiles(self._root if keep else None, fresh, existing, plan, changed)
        queues = QueueFileWriter(self._root if keep else None, fresh, existing, plan, changed)
        self.steps("records")
        index = IndexWriter(fresh, existing.files if keep else None, self._options, changed)
        delays = parse_delay_levels(self._options.delay_levels or DEFAULT_DELAY_LEVELS)
        tags = self._options.index_tags
        if tags is None:
            tags = not keep or not existing.segments or self._indexes_tags()
        work_on = _ItemWork(log, queues, self._options.index_enabled, tags, delays)
        try:
            with ThreadPoolExecutor(self._threads, "load") as pool:
                for entries in _in_order(pool, work_on, plan.items, self._threads * 2):
                    index.put(entries)
            self.steps("index")
            index.close()
        finally:
            log.close()
        self.steps("settle")
        last = [part.last_store_timestamp for part in parts if part.blocks]
        write_checkpoint(
            fresh, last[-1] if last else None, plan.log_end, index.full_timestamp, changed
        )
        write_topics(fresh, plan, changed)
        note(ledger, batch, self._options.load_id)
        changed.write(f"{fresh}/{LEDGER}", json.dumps(ledger, sort_keys=True).encode())
        self.steps("sync")
        changed.sync()
        self.steps("exchange")
        publish(fresh, self._root)
        self.steps("clean")
        spare.keep(fresh, queues.changed, count + queues.new)
        return LoadReport(plan.rows, plan.log_start, plan.log_end)

    def _indexes_tags(self) -> bool:
        """Whether the store's last broker put tags into its Index, as RocketMQ from 5.5.0 does."""
        layout = discover(self._root, with_queues=False)
        with StoreReader(self._root, layout=layout) as reader:
            return indexes_tags(reader, at_end=True)

    def _finish_two_step_exchange(self) -> None:
        """After a kill between the two renames that stand for an exchange: undoes the first."""
        aside = aside_of(self._root)
        if os.path.isdir(aside):
            if not os.path.exists(self._root):
                os.rename(aside, self._root)
            else:
                shutil.rmtree(aside, ignore_errors=True)


class _ItemWork:
    """Writes one item's records and units; gives its index entries. Called by several threads."""

    def __init__(
        self,
        log: LogFiles,
        queues: QueueFileWriter,
        index_enabled: bool,
        index_tags: bool,
        delays: tuple[int, ...],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index_enabled = index_enabled
        self._index_tags = index_tags
        self._delays = delays
        self._local = threading.local()

    def __call__(self, item: LoadItem) -> IndexEntries:
        staged = getattr(self._local, "staged", None)
        if staged is None:
            staged = self._local.staged = StagedReader(self._delays)
        data, columns, topics = staged.scan(
            item.path, item.start, item.size, item.rows, item.offset
        )
        offsets = columns.array("commit_log_offset")
        queue_offsets = np.zeros(item.rows, np.int64)
        codes = queue_codes(columns)
        in_queues = queued(columns)
        sizes = columns.array("record_size")
        tags = columns.array("tags_code")
        for code in np.unique(codes[in_queues]).tolist():
            rows = np.flatnonzero(in_queues & (codes == code))
            name = queue_of(code, topics)
            first = item.first[name]
            queue_offsets[rows] = first + np.arange(len(rows))
            units = np.empty(len(rows), _UNIT)
            units["offset"], units["size"], units["tags"] = offsets[rows], sizes[rows], tags[rows]
            self._queues.write(name, first, units.tobytes())
        raw = np.frombuffer(data, np.uint8)
        places = (offsets - item.offset)[:, None]
        for position, values in (
            (message.QUEUE_OFFSET_POSITION, queue_offsets),
            (message.COMMIT_LOG_OFFSET_POSITION, offsets),
        ):
            raw[places + np.arange(position, position + 8)] = (
                values.astype(">i8").view(np.uint8).reshape(-1, 8)
            )
        self._log.write(item.offset, data)
        give_back(item.path, item.start, item.size)
        entries = IndexEntries(0)
        if self._index_enabled:
            index_keys(columns, topics, data, entries, index_tags=self._index_tags)
        return entries


def _in_order(
    pool: ThreadPoolExecutor, work: _ItemWork, items: Sequence[LoadItem], ahead: int
) -> Iterator[IndexEntries]:
    """Results in the order of the items, with at most ``ahead`` items begun and not yet taken."""
    waiting = []
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()
