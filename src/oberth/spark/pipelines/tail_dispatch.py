"""Follows a CommitLog that another process writes, and keeps its queues and index up to date.

What is dispatched counts once, whatever is killed: queues and index know what they hold, and a
record that comes again is not entered again. ``oberth/dispatch.json`` in the store says up to where
everything was on the disk; a restart cuts what the queues have behind it and goes on from there.

The writer must not dispatch itself. Only records that are whole, name their own position and pass
their checksum are taken; the newest one waits until a second look finds it unchanged, because the
writer may be in the middle of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from oberth.errors import FormatError, StoreError, StoreLockedError
from oberth.formats import paths
from oberth.formats.message import BLANK_MAGIC, DispatchRequest, read_dispatch_request
from oberth.formats.topic_config import TopicConfigs
from oberth.kernels.arguments import CrcMode
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import scan
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.offline.log_walk import next_valid
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.segments import Segment, SegmentMap, SegmentStream
from oberth.store.store_checkpoint import StoreCheckpoint

STATE = "oberth/dispatch.json"
LOCK = "oberth/dispatch.lock"
#: Bytes of log that one step takes at most.
STEP_BYTES = 16 << 20
#: From this backlog on the kernels dispatch; fewer bytes go record by record.
BULK_BYTES = 8 << 10
FLUSH_INTERVAL_S = 1.0
_DAMAGE_INTERVAL_S = 1.0
_ROWS = 16_384


class Advanced(NamedTuple):
    """What a step did: CommitLog offset behind it, records, newest store time (ms, 0: none)."""

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
            entries: the broker's options by their Java names; what they leave out is taken from
                the files.
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
        os.makedirs(os.path.join(self._root, "oberth"), exist_ok=True)
        self._lock = os.open(os.path.join(self._root, LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreLockedError(
                    f"{self._root}: another process dispatches this store"
                ) from None
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.flush()
        finally:
            self._queues.close()
            if self._index is not None:
                self._index.close()
            self._log.close()
            os.close(self._lock)

    def _open(self) -> None:
        files = OsFileSystem()
        with StoreReader(self._root, self._given) as reader:
            config = reader.engine_config()
            self._log_paths = reader.layout.commit_log_paths
            log_start = reader.min_offset
            self._delays_ms = reader.delays_ms
            segments = reader.layout.commit_log
        self._log = SegmentStream(segments, config.mapped_file_size_commit_log)
        self._topics = self._batch_topics()
        state = self._load_state()
        self._queues = ConsumeQueueStore(files, config, topic_attributes=self._attributes)
        self._queues.load()
        start = max(int(state.get("position", log_start)), log_start)
        self._index = None
        if config.message_index_enable:
            self._index = IndexService(files, config)
            start = min(
                start,
                max(
                    self._index.load(
                        clean=False,
                        safe_counts=state.get("indexCounts") or None,
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
        self._seen_end = -1
        self._newest = 0
        self._columns = Columns(_ROWS, ("record_size", "commit_log_offset", "crc_ok"))
        self._flushed_at = self._clock()
        self._looked_at = 0.0
        self._dirty = False

    def _batch_topics(self) -> dict[str, Mapping[str, str]]:
        try:
            with open(os.path.join(self._root, paths.CONFIG, "topics.json"), "rb") as file:
                table = TopicConfigs.decode(file.read()).topic_config_table
        except (OSError, FormatError):
            return {}
        return {
            name: {"queue.type": "BatchCQ"} for name, each in table.items() if each.is_batch_queue
        }

    def _attributes(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})

    def _load_state(self) -> dict[str, Any]:
        with suppress(FileNotFoundError, ValueError):
            with open(os.path.join(self._root, STATE), "rb") as file:
                state = json.loads(file.read())
            if isinstance(state, dict):
                return state
        return {}

    # Going forward

    def advance(self) -> Advanced:
        """Dispatches what is there, about `STEP_BYTES` at most.

        Raises:
            StoreFullError: the disk has no room; the same records come again.
        """
        before = self.records
        end = self._step()
        if self.records > before:
            self._dirty = True
            self._dispatcher.end_burst()
            self._queues.write_behind()
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
        limit = min(len(opened), start + STEP_BYTES)
        found = scan(
            opened.view, columns, TopicTable(), base=opened.segment.start, start=start, stop=limit,
            crc=CrcMode.STOP,
        )  # fmt: skip
        if not columns.count:
            return start
        end = found.position
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
            start += request.record_size
            self.position = base + start

    def _count(self, start: int, end: int) -> int:
        offsets = self._columns.commit_log_offset
        return sum(1 for row in range(self._columns.count) if start <= offsets[row] < end)

    def _pass_damage(self, index: int, position: int) -> None:
        """Steps over bytes that are no record, if one follows that can follow."""
        now = self._clock()
        if now - self._looked_at < _DAMAGE_INTERVAL_S:
            return
        self._looked_at = now
        self._list_segments()
        after = next_valid(self._log, index, position + 1, self._newest)
        if after is not None:
            self.position = self._log.segments[after[0]].start + after[1]

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

    def flush(self) -> None:
        """Waits until all that was dispatched is on the disk, and notes it."""
        self._queues.flush()
        counts: Mapping[str, int] = {}
        if self._index is not None:
            self._index.flush()
            counts = self._index.safe_counts()
        path = os.path.join(self._root, STATE)
        unfinished = path + ".unfinished"
        with open(unfinished, "wb") as file:
            state = {"position": self.position, "indexCounts": dict(counts)}
            file.write(json.dumps(state, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        self._flushed_at = self._clock()
        self._dirty = False


_BLANK = BLANK_MAGIC.to_bytes(4, "big", signed=True)
