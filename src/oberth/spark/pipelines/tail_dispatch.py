"""Follows a CommitLog that another process writes, and keeps its queues and index up to date.

What is dispatched counts once, whatever is killed: queues and index know what they hold, and a
record that comes again is not entered again. ``oberth/dispatch.json`` in the store says up to where
everything was on the disk; a restart cuts what the queues have after it and goes on from there.

The writer must not dispatch itself. A broker with ``dispatch=spark`` does not, and while it starts
or stops, the dispatcher steps aside (`oberth.store.dispatch_handover`). Only records that are
whole, name their own position and pass their checksum are taken; the newest one waits until a
second look finds it unchanged, because the writer may be in the middle of it.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, NamedTuple, Self

from oberth.errors import FormatError, NotFoundError, StoreError, StoreLockedError
from oberth.formats import paths
from oberth.formats.message import (
    BLANK_MAGIC,
    DispatchRequest,
    read_dispatch_request,
    store_timestamp_at,
)
from oberth.formats.topic_config import (
    BATCH_CQ,
    QUEUE_TYPE_ATTRIBUTE,
    TopicConfig,
    TopicConfigs,
)
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import scan
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.dispatch_handover import (
    LOCK,
    WANTED,
    FileLock,
    Progress,
    ProgressFile,
)
from oberth.store.dispatch_state import DispatchState
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.offline.log_walk import next_valid
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.segments import Segment, SegmentMap, SegmentStream
from oberth.store.store_checkpoint import StoreCheckpoint

STEP_BYTES: Final = 64 << 20
"""Bytes of log that one step takes at most."""
BULK_BYTES: Final = 8 << 10
"""From this backlog on the kernels dispatch; fewer bytes go record by record."""
FLUSH_INTERVAL_S: Final = 1.0
_DAMAGE_INTERVAL_S: Final = 1.0
_ROWS: Final = 16_384
_BATCH: Final = {QUEUE_TYPE_ATTRIBUTE: BATCH_CQ}


class Advanced(NamedTuple):
    """What a step did: CommitLog offset after it, records, newest store time (ms, 0: none)."""

    position: int
    records: int
    store_timestamp: int


class TailDispatcher:
    """Dispatches what is written to a store by another process.

    Lifecycle: ``with TailDispatcher(root) as tail``, then ``tail.advance()`` again and again from
    one thread; leaving flushes. Queues show a message when the step that took it returns; it is
    safe from a power cut after the next ``flush``.
    """

    def __init__(
        self,
        root: str,
        entries: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares; nothing is touched before the ``with``.

        Args:
            root: the store.
            entries: the broker's options by their Java names; what they leave out is what the
                broker itself noted (``dispatch=spark``), or taken from the files.
            clock: says when it is time to flush.
        """
        self._given = dict(entries or {})
        self._root = os.path.abspath(root)
        self._clock = clock
        self.position = 0
        self.records = 0

    def __enter__(self) -> Self:
        """Opens the store.

        Raises:
            StoreLockedError: another dispatcher follows it.
            StoreError: its index is damaged, or it has no log.
        """
        self._lock = FileLock(self._root, LOCK)
        self._wanted = FileLock(self._root, WANTED)
        self._progress = ProgressFile(self._root)
        self._aside = True
        try:
            if not self._come_back() and self._lock.is_taken and not self._wanted.is_taken:
                raise StoreLockedError(f"{self._root}: another process dispatches this store")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not self._aside:
                self._step_aside()
        finally:
            self._close()

    def _close(self) -> None:
        self._lock.close()
        self._wanted.close()
        self._progress.close()

    def _step_aside(self) -> None:
        """Makes all that was dispatched durable and lets somebody else write queues and index."""
        self._aside = True
        try:
            self.flush(is_whole=True)
        finally:
            self._queues.close()
            if self._index is not None:
                self._index.close()
            self._log.close()
            self._lock.release()

    def _come_back(self) -> bool:
        """Goes on from where queues and index are now; False while somebody else has them."""
        if self._wanted.is_taken or not self._lock.acquire_nowait():
            return False
        try:
            self._open()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, NotFoundError) and self._has_broker():
                return False  # which has not written anything yet
            raise
        self._aside = False
        self._tell()
        return True

    def _has_broker(self) -> bool:
        return os.path.exists(os.path.join(self._root, paths.LOCK))

    def _tell(self) -> None:
        self._progress.write(Progress(self._epoch, self.position, self._newest))

    def _open(self) -> None:
        files = OsFileSystem()
        state = DispatchState.load(self._root)
        self._settings = {} if state is None else dict(state.settings)
        with StoreReader(self._root, {**self._settings, **self._given}) as reader:
            config = reader.engine_config()
            self._log_paths = reader.layout.commit_log_paths
            log_start = reader.min_offset
            self._delays_ms = reader.delays_ms
            segments = reader.layout.commit_log
        self._log = SegmentStream(segments, config.mapped_file_size_commit_log)
        self._batch_topics: frozenset[str] = frozenset()
        self._topics_seen: tuple[int, ...] = ()
        if state is None or state.is_whole:
            # Before anything is touched: a kill from here on is to be seen.
            replace(state or DispatchState(log_start), is_whole=False).save(self._root)
        self._queues = ConsumeQueueStore(files, config, topic_attributes=self._attributes)
        self._queues.load()
        start = log_start if state is None else max(state.position, log_start)
        self._index = None
        if config.message_index_enable:
            self._index = IndexService(files, config)
            start = min(
                start,
                max(
                    self._index.load(
                        clean=False,
                        safe_counts=(state and dict(state.index_counts)) or None,
                        safe_offset=start,
                    ),
                    log_start,
                ),
            )
            if self._index.damaged:
                raise StoreError(
                    f"{self._root}: index file {self._index.damaged[0]} is damaged; build it anew "
                    "with `oberth spark dispatch` while no broker runs"
                )
        self._queues.recover(redispatch_from=start)
        checkpoint = StoreCheckpoint(files, os.path.join(self._root, paths.CHECKPOINT))
        checkpoint.load()
        # The broker owns the file: it is read, never written here.
        self._dispatcher = CommitLogDispatcher(config, self._queues, self._index, checkpoint)
        self.position = start
        self._epoch = int.from_bytes(os.urandom(8), "big", signed=True)
        self._last_record = -1
        if state is not None and state.position == start:
            self._last_record = state.last_record
        self._seen_end = -1
        self._is_behind = False  # whether whole records were left for want of rows
        self._newest = 0 if state is None else state.store_timestamp
        self._columns = Columns(_ROWS, ("record_size", "commit_log_offset", "crc_ok"))
        self._flushed_at = self._clock()
        self._looked_at = 0.0
        self._dirty = False

    def _attributes(self, topic: str) -> Mapping[str, str]:
        """What the kind of a topic's queues follows from; asked when one is opened or made."""
        self._look_at_topics()
        return _BATCH if topic in self._batch_topics else {}

    def _look_at_topics(self) -> None:
        """Reads which topics have batch queues, unless the broker's table is as it was."""
        path = os.path.join(self._root, paths.CONFIG, "topics.json")
        try:
            found = os.stat(path)
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._topics_seen:
                return
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        table: Mapping[str, TopicConfig] = {}
        # With each topic that it makes a broker writes the whole table.
        if BATCH_CQ.encode() in data:
            try:
                table = TopicConfigs.decode(data).topic_config_table
            except FormatError:
                return
        self._batch_topics = frozenset(n for n, each in table.items() if each.is_batch_queue)
        self._topics_seen = seen

    # Going forward

    def advance(self) -> Advanced:
        """Dispatches what is there, about `STEP_BYTES` at most.

        Raises:
            StoreFullError: the disk has no room; the same records come again.
        """
        if self._aside:
            if not self._come_back():
                return Advanced(self.position, 0, 0)
        elif self._wanted.is_taken:
            self._step_aside()
            return Advanced(self.position, 0, 0)
        before, start = self.records, self.position
        while True:
            at = self.records
            end = self._step()
            if self.records == at:
                break
            self._dirty = True
            self._dispatcher.end_burst()
            self._queues.write_behind()
            self._tell()
            # A caller comes back after a trigger of Spark's, some 100 ms: what a step leaves for
            # the next one bounds the rate. The newest record waits for that second look, though.
            if not self._is_behind or end - start >= STEP_BYTES:
                break
        if self._dirty and self._clock() - self._flushed_at >= FLUSH_INTERVAL_S:
            self.flush()
        return Advanced(end, self.records - before, self._newest if self.records > before else 0)

    def _step(self) -> int:
        index = self._log.index_of(self.position)
        if index is None:
            self._list_segments()
            index = self._log.index_of(self.position)
            if index is None:
                return self.position
        opened = self._log.map(index)
        base = opened.segment.start
        start = self.position - base
        stop = self._whole_end(opened, start)
        if stop > start:
            self._dispatch(opened, start, stop)
            return self.position
        head = bytes(opened.view[start : start + 8])
        if len(head) < 8 or head[4:] == _BLANK:
            self.position = opened.segment.end
            self._log_next()
        elif any(head):
            self._pass_damage(index, start)
        return self.position

    def _log_next(self) -> None:
        if self._log.index_of(self.position) is None:
            self._list_segments()

    def _whole_end(self, opened: SegmentMap, start: int) -> int:
        """Up to where there are whole records; the newest only if it was there before."""
        columns = self._columns
        columns.clear()
        self._is_behind = False
        limit = min(len(opened), start + STEP_BYTES)
        found = scan(
            opened.view, columns, TopicTable(), base=opened.segment.start, start=start, stop=limit,
            crc=CrcMode.STOP,
        )  # fmt: skip
        if not columns.count:
            return start
        end = found.position
        self._is_behind = found.end is ScanEnd.FULL
        last = columns.commit_log_offset[columns.count - 1] - opened.segment.start
        follows = any(opened.view[end : end + 8])
        known = self._seen_end >= opened.segment.start + end
        self._seen_end = opened.segment.start + end
        if follows:
            return end
        return end if known and self._ends_written(opened, last, end) else last

    def _ends_written(self, opened: SegmentMap, start: int, end: int) -> bool:
        """Whether a record's last bytes are there: what is not written yet is zeros."""
        request = read_dispatch_request(opened.view, start, end, opened.segment.start)
        if type(request) is not DispatchRequest:
            return False
        return not request.properties_raw or request.properties_raw[-1] != 0

    def _dispatch(self, opened: SegmentMap, start: int, stop: int) -> None:
        base = opened.segment.start
        while start < stop:
            if stop - start >= BULK_BYTES:
                reached = self._dispatcher.dispatch_segment(
                    opened.view, base, start, stop, notify=False
                )
                if reached is not None and reached.position > start:
                    self.records += self._count(start + base, reached.position + base)
                    self._newest = max(self._newest, reached.store_timestamp)
                    start = reached.position
                    self._last_record = self._record_ending_at(base + start)
                    self.position = base + start
                    continue
            request = read_dispatch_request(
                opened.view, start, stop, base, delays_ms=self._delays_ms
            )
            if type(request) is not DispatchRequest:
                return
            self._dispatcher.dispatch(request, notify=False)
            self.records += 1
            self._newest = max(self._newest, request.store_timestamp)
            self._last_record = base + start
            start += request.record_size
            self.position = base + start

    def _count(self, start: int, end: int) -> int:
        offsets, count = self._columns.commit_log_offset, self._columns.count
        return bisect_left(offsets, end, 0, count) - bisect_left(offsets, start, 0, count)

    def _time_of(self, record: int) -> int:
        """The store time of a record, 0 where it is not there any more."""
        index = self._log.index_of(record) if record >= 0 else None
        if index is None:
            return 0
        opened = self._log.map(index)
        return store_timestamp_at(opened.view, record - opened.segment.start)

    def _record_ending_at(self, end: int) -> int:
        columns = self._columns
        for row in range(columns.count - 1, -1, -1):
            if columns.commit_log_offset[row] + columns.record_size[row] == end:
                return columns.commit_log_offset[row]
        return -1

    def _pass_damage(self, index: int, position: int) -> None:
        """Steps over bytes that are no record, if one follows that can follow."""
        now = self._clock()
        if now - self._looked_at < _DAMAGE_INTERVAL_S:
            return
        self._looked_at = now
        self._list_segments()
        after = next_valid(self._log, index, position, self._newest, is_bad=True)
        # The writer goes on meanwhile: what was half a record may be a whole one now, and then it
        # was whole before any that follows.
        if after is not None and not self._is_record(self._log.map(index), position):
            self.position = self._log.segments[after[0]].start + after[1]

    def _is_record(self, opened: SegmentMap, position: int) -> bool:
        columns = self._columns
        columns.clear()
        scan(
            opened.view, columns, TopicTable(), base=opened.segment.start, start=position,
            stop=min(position + 1, len(opened)), crc=CrcMode.STOP,
        )  # fmt: skip
        return columns.count > 0

    def _list_segments(self) -> None:
        found = []
        for directory in self._log_paths:
            with suppress(FileNotFoundError):
                for entry in os.scandir(directory):
                    start = paths.segment_start(entry.name)
                    if start is not None:
                        with suppress(FileNotFoundError):
                            found.append(Segment(entry.path, start, entry.stat().st_size))
        found.sort(key=lambda segment: segment.start)
        self._log.update([segment for segment in found if segment.size])
        if self._log.segments and self.position < self._log.start:
            self.position = self._log.start  # what came before was deleted

    # Safety

    def flush(self, *, is_whole: bool = False) -> None:
        """Waits until all that was dispatched is on the disk, and notes it.

        Args:
            is_whole: queues and index are not touched any more.
        """
        self._queues.erase_stale()
        self._queues.flush()
        counts: Mapping[str, int] = {}
        if self._index is not None:
            self._index.flush()
            counts = self._index.safe_counts()
        queues = self._queues
        DispatchState(
            self.position,
            self._last_record,
            self._time_of(self._last_record),
            queues.max_physic_offset,
            sum(len(table) for table in queues.table.values()),
            counts,
            self._settings,
            is_whole,
        ).save(self._root)
        self._flushed_at = self._clock()
        self._dirty = False


_BLANK: Final = BLANK_MAGIC.to_bytes(4, "big", signed=True)
