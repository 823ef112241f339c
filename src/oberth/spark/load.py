"""Makes staged records part of a store: all of them, or none.

Tasks stage their records in files beside the store, each a log of its own. When all are there their
places follow from sizes alone: a commit gives every stretch of records its byte range of the
CommitLog (with a blank where a segment ends) and its ordinals in every ConsumeQueue, and tasks or
threads write these ranges at once (`oberth.spark.load_place`). How many Index entries each of them
has is known then, so index files are written at once, too.

All of this goes into a new directory tree that shares, by hard links, every file which does not
change; files that grow are copied. Of a store of many queues that tree is made of the one which the
commit before replaced (`oberth.spark.spare_tree`). Then the two trees change places in one step
(renameat2, RENAME_EXCHANGE), so that at every moment the store's name leads to the old store or to
the complete new one. What was committed is remembered in a ledger inside the store, hence in the
same step:

    oberth/ledger.json    {"loads": {id: when}, "overwrites": {…}, "queries": {queryId: number}}

A commit whose batch or load the ledger knows changes nothing. The store has to be closed: neither
locked by a process nor left with ``abort`` by a crash, and its queues must not be behind its log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oberth.errors import StoreError
from oberth.formats import index_file, paths
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.spark.index_lookup import IndexFiles
from oberth.spark.load_files import (
    ChangedFiles,
    link_tree,
    make_log_files,
    make_queue_files,
    write_checkpoint,
    write_topics,
)
from oberth.spark.load_place import Placed, PlaceJob, place
from oberth.spark.load_plan import ExistingStore, StagedPart, plan_load
from oberth.spark.pipelines.index_build import (
    IndexJob,
    NewestIndexFile,
    plan_index_files,
    write_index_file,
)
from oberth.spark.pipelines.log_ranges import EntryStream
from oberth.spark.pipelines.tasks import InThreads, TaskRunner
from oberth.spark.publish import (
    LEDGER,
    aside_of,
    begin_anew,
    is_known,
    note,
    publish,
    read_ledger,
)
from oberth.spark.spare_tree import SpareTree
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles
from oberth.spark.write_options import WriteOptions
from oberth.store.file_kinds import refuse_linked
from oberth.store.offline.indexed_tags import indexes_tags
from oberth.store.offline.layout import IndexShape, discover
from oberth.store.offline.reader import StoreReader
from oberth.store.store_lock import StoreLock


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
    """Commits staged parts to one store. One commit at a time.

    ``steps`` is called with the name of each step just before it; tests stop a commit there.
    """

    STEPS = ("plan", "build", "records", "index", "settle", "sync", "exchange", "clean")

    def __init__(
        self,
        options: WriteOptions,
        *,
        threads: int | None = None,
        tasks: TaskRunner | None = None,
    ) -> None:
        """Prepares.

        Args:
            options: of the sink; its path is the store.
            threads: how many place records at the same time; None for one per core.
            tasks: what places records instead; its tasks reach the store under the same path.
        """
        self._options = options
        self._root = os.path.realpath(options.path)
        self._tasks = tasks or InThreads(threads or os.cpu_count() or 1)

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
            StoreLockedError: a process has the store open, or has made it while this commit was
                making it: nothing was changed, the rows have to be written again.
            StoreError: it was not closed cleanly, is behind with dispatching, has directories
                elsewhere, or is no store.
            RecordError: a record is larger than a segment.
        """
        self.finish_exchange()
        spare = SpareTree(self._root)
        lock = StoreLock(self._root) if os.path.isdir(self._root) else None
        if lock is not None:
            self._check_directory(overwrite)
            lock.acquire()
        try:
            ledger = read_ledger(self._root)
            if is_known(ledger, batch, self._options.load_id):
                return LoadReport(0, 0, 0, repeated=True)
            if overwrite:
                ledger = begin_anew(ledger)
            return self._commit(parts, work, ledger, overwrite, batch, spare, lock is not None)
        finally:
            if lock is not None:
                lock.release()
            shutil.rmtree(work, ignore_errors=True)

    def _check_directory(self, overwrite: bool) -> None:
        present = set(os.listdir(self._root))
        refuse_linked(self._root, sorted(present))
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
        is_locked: bool,
    ) -> LoadReport:
        self.steps("plan")
        fresh = f"{work}/store"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(f"{work}/place", ignore_errors=True)
        keep = is_locked and not overwrite
        old = self._root if keep else None
        os.makedirs(f"{work}/none", exist_ok=True)
        existing = ExistingStore(self._root if keep else f"{work}/none", self._options)
        plan = plan_load(parts, existing, f"{work}/place", self._tasks.parallelism)
        self.steps("build")
        changed = ChangedFiles()
        kept = spare.take(fresh) if keep else None
        if not keep:
            spare.drop()
        count = link_tree(self._root, fresh, changed, existing, kept) if keep else 0
        os.makedirs(f"{fresh}/{paths.COMMIT_LOG}", exist_ok=True)
        os.makedirs(f"{fresh}/{paths.CONSUME_QUEUE}", exist_ok=True)
        log, copies = make_log_files(old, fresh, existing, plan, changed)
        queue_files, new_queues = make_queue_files(fresh, existing, plan, changed)
        self.steps("records")
        job = self._place_job(fresh, log, existing, keep)
        placed = self._tasks.run(
            partial(place, job), [*copies, *plan.stretches], what="place records"
        )
        self.steps("index")
        full = self._write_index(work, fresh, existing if keep else None, placed, changed)
        self.steps("settle")
        last = [part.last_store_timestamp for part in parts if part.size]
        write_checkpoint(fresh, last[-1] if last else None, plan.log_end, full, changed)
        write_topics(fresh, plan, changed)
        note(ledger, batch, self._options.load_id, overwrites=overwrite)
        changed.write(f"{fresh}/{LEDGER}", json.dumps(ledger, sort_keys=True).encode())
        self.steps("sync")
        changed.sync()
        self.steps("exchange")
        publish(fresh, self._root, replaces=is_locked)
        self.steps("clean")
        spare.keep(fresh, queue_files, count + new_queues)
        return LoadReport(plan.rows, plan.log_start, plan.log_end)

    def _place_job(self, fresh: str, log: str, existing: ExistingStore, keep: bool) -> PlaceJob:
        tags = self._options.index_tags
        if tags is None:
            tags = not keep or not existing.segments or self._indexes_tags()
        return PlaceJob(
            fresh,
            log,
            existing.segment_size,
            existing.queue_file_size,
            self._options.index_enabled,
            tags,
            parse_delay_levels(self._options.delay_levels or DEFAULT_DELAY_LEVELS),
        )

    def _write_index(
        self,
        work: str,
        fresh: str,
        existing: ExistingStore | None,
        placed: Sequence[Placed],
        changed: ChangedFiles,
    ) -> int:
        """Goes on with the newest index file and makes new ones.

        Returns:
            Store time of the last entry in front of the last file, ms; 0 where it has no entry.
        """
        stream = EntryStream(placed)
        shape = IndexShape(
            self._options.index_slots or index_file.DEFAULT_SLOTS,
            self._options.index_entries or index_file.DEFAULT_ENTRIES,
        )
        directory = f"{fresh}/{paths.INDEX}"
        newest = None
        found = IndexFiles(existing.files).newest() if existing is not None else None
        if found is not None:
            path, size, header, slots = found
            newest = NewestIndexFile(path, header, writable=slots is not None)
            if slots is not None:
                used = index_file.file_size(slots, 0)
                shape = IndexShape(slots, (size - used) // index_file.ENTRY_SIZE)
        plan = plan_index_files(stream, shape, directory, newest=newest)
        if plan.works:
            os.makedirs(directory, exist_ok=True)
            unfinished = f"{work}/index"
            os.makedirs(unfinished, exist_ok=True)
            job = IndexJob(shape, unfinished)
            self._tasks.run(partial(write_index_file, job), plan.works, what="write index files")
            for each in plan.works:
                changed.add(each.path)
        return plan.full_timestamp

    def _indexes_tags(self) -> bool:
        """Whether the store's last broker put tags into its Index, as RocketMQ from 5.5.0 does."""
        layout = discover(self._root, with_queues=False)
        with StoreReader(self._root, layout=layout) as reader:
            return indexes_tags(reader, at_end=True)

    def finish_exchange(self) -> None:
        """After a kill between the two renames that stand for an exchange: undoes the first."""
        aside = aside_of(self._root)
        if os.path.isdir(aside):
            if not os.path.exists(self._root):
                os.rename(aside, self._root)
            else:
                shutil.rmtree(aside, ignore_errors=True)
