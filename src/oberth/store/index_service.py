"""The index of a store: which records have a key, by unique key, user key and (5.x) tags.

Files follow each other; only the newest is written. A record's keys are put in this order:
UNIQ_KEY, each of KEYS, and in the 5.x line its TAGS as ``topic#T#tags``. Half messages are indexed
under their own topic, rollbacks are not.

Kinder than RocketMQ: after a crash an unfinished file is repaired and only what was not on the
disk is indexed again (there: the file is deleted and older messages can not be found any more); a
record that is dispatched twice is indexed once (there: the last one twice).

RocketMQ: IndexService.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.errors import StoreCorruptError, StoreError, StoreFullError
from oberth.formats.index_file import TAG_INDEX_TYPE, key_hash, key_hash_from, key_hash_prefix
from oberth.formats.java_string import hash_units
from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.paths import INDEX, is_index_name
from oberth.formats.properties import find_property
from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from oberth.store.files import FileSystem
from oberth.store.index_file import IndexFile
from oberth.store.sync_guard import SyncGuard
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.kernels.index import IndexEntries

_LOG: Final = logging.getLogger(__name__)

INT64_MAX: Final = (1 << 63) - 1
# So many hashes of beginnings of keys, of tags, and of topics are kept.
_HEADS_MAX: Final = 4096
_TOPICS_MAX: Final = 65_536
# Longer keys take the general way; the hashes of longer tags are not kept.
_LENGTH_MAX: Final = 255
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_LENGTH_MAX))


class IndexQueryResult(NamedTuple):
    """CommitLog offsets of entries whose key hash matches, newest first; keys are not compared."""

    offsets: list[int]
    last_update_timestamp: int
    last_update_offset: int


class DamagedIndexFile(NamedTuple):
    """A file in the middle that must be built again from the records of a range of the log."""

    name: str
    reason: str
    start: int
    stop: int
    """Records that start at or before `stop` belong to it; the last of them maybe in part."""


_NO_RECORD: Final = (-1, 0)


class _Hashes:
    """Key hashes of a record's properties, with what is the same from record to record kept.

    Every message pays for this: 2 us for two keys instead of 7. Keys of one client or one counter
    differ in their last characters, so the hash of what is before them is looked up.
    """

    __slots__ = ("_heads", "_prefixes", "_tags", "with_tags")

    def __init__(self, *, with_tags: bool) -> None:
        self.with_tags = with_tags
        self._prefixes: dict[str, tuple[int, int]] = {}
        self._heads: dict[bytes, int] = {}
        self._tags: dict[tuple[str, bytes], int] = {}

    def of(self, topic: str, properties: bytes) -> list[int]:
        """The key hashes of a record in the order in which they are put."""
        prefix = self._prefixes.get(topic)
        if prefix is None:
            if len(self._prefixes) >= _TOPICS_MAX:
                self._prefixes.clear()
            prefix = (key_hash_prefix(topic), key_hash_prefix(f"{topic}#{TAG_INDEX_TYPE}"))
            self._prefixes[topic] = prefix
        hashes: list[int] = []
        uniq_key = _value(properties, b"UNIQ_KEY\x01", 9)
        if uniq_key is not None:
            hashes.append(self._hash(prefix[0], uniq_key))
        keys = _value(properties, b"KEYS\x01", 5)
        if keys is not None:
            if b" " in keys:
                hashes += [self._hash(prefix[0], key) for key in keys.split(b" ") if key]
            else:
                hashes.append(self._hash(prefix[0], keys))
        if self.with_tags:
            tags = _value(properties, b"TAGS\x01", 5)
            if tags is not None:
                found = self._tags.get((topic, tags))
                if found is None:
                    found = self._hash(prefix[1], tags)
                    if len(tags) <= _LENGTH_MAX:
                        if len(self._tags) >= _HEADS_MAX:
                            self._tags.clear()
                        self._tags[topic, tags] = found
                hashes.append(found)
        return hashes

    def _hash(self, prefix: int, key: bytes) -> int:
        length = len(key)
        if length < 5 or length > _LENGTH_MAX or not key.isascii():
            text = str(key, "utf-8", "replace")
            return key_hash_from(prefix, text)
        head = key[:-4]
        value = self._heads.get(head)
        if value is None:
            value = self._hash_head(head)
        # hash(a + b) = hash(a) * 31**len(b) + hash(b)
        a, b, c, d = key[-4:]
        value = (
            (prefix * _POWERS[length - 4] + value) * 923521 + a * 29791 + b * 961 + c * 31 + d
        ) & 0xFFFFFFFF
        if value < 0x80000000:
            return value
        # abs(-2**31) stays negative in Java, and RocketMQ then takes 0.
        return 0x100000000 - value if value != 0x80000000 else 0

    def _hash_head(self, head: bytes) -> int:
        heads = self._heads
        if len(heads) >= _HEADS_MAX:
            heads.clear()
        # Unique keys: what is before time and counter stays the same as long as the client lives.
        front = head[:-8]
        value = heads.get(front)
        if value is None:
            value = heads[front] = hash_units(front)
        back = head[-8:] if front else head
        value = heads[head] = hash_units(back, value)
        return value


def _value(raw: bytes, needle: bytes, length: int) -> bytes | None:
    """`find_property` of a name with its separator, for the ordinary case that there is one."""
    start = raw.rfind(needle)
    if start < 0:
        return None
    if start and raw[start - 1] != 2:
        return find_property(raw, needle[:-1])
    end = raw.find(b"\x02", start)
    value = raw[start + length :] if end < 0 else raw[start + length : end]
    return value or find_property(raw, needle[:-1])


class IndexService:
    """The index files of a store. One thread puts; any may query, flush or delete."""

    def __init__(
        self,
        files: FileSystem,
        config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
        writable: bool = True,
        on_full: Callable[[int], None] = lambda _end_timestamp: None,
    ) -> None:
        """Makes the service; `load` opens the files.

        Args:
            files: where they are.
            config: storePathRootDir, maxHashSlotNum, maxIndexNum, maxMsgsNumBatch, the line.
            clock_ms: names new files.
            writable: False for a store that another process writes.
            on_full: called from a thread of its own with the end timestamp of a full file when
                that file is on the disk: the checkpoint's index timestamp.
        """
        self.files = files
        self.directory = f"{config.store_path_root_dir}/{INDEX}"
        self.config = config
        self.index_files: list[IndexFile] = []
        self._files_lock = threading.Lock()  # guards changes of index_files, once it is loaded
        self.is_kept_elsewhere = False
        """Whether another process puts, and this one only queries and deletes."""
        self.damaged: list[DamagedIndexFile] = []
        self.indexed_offset = -1
        self._clock_ms = clock_ms
        self._writable = writable
        self._on_full = on_full
        self._hashes = _Hashes(with_tags=config.line is Line.V5)
        self._last: IndexFile | None = None
        # The record that may be indexed in part, and how many of its keys are.
        self._partial = _NO_RECORD
        self._safe_counts: dict[str, int] = {}
        self._flush_lock = threading.Lock()  # guards _safe_counts; one flush at a time
        self._flushers: list[threading.Thread] = []
        self.syncs = SyncGuard(self.directory)

    # Opening and closing

    def load(
        self,
        *,
        clean: bool = True,
        log_end_offset: int = INT64_MAX,
        log_min_offset: int = INT64_MAX,
        safe_counts: Mapping[str, int] | None = None,
        safe_offset: int = -1,
        flushed_timestamp: int = 0,
    ) -> int:
        """Opens the files and, after a crash, cuts what may not have reached the disk.

        Args:
            clean: the last user of the store stopped properly.
            log_end_offset: where the CommitLog ends after its recovery; entries behind are cut.
            log_min_offset: where the CommitLog begins; without it no file is missed.
            safe_counts: what `safe_counts` said after a flush.
            safe_offset: records before it were indexed then.
            flushed_timestamp: full files that end at or before it are on the disk; the
                checkpoint's index timestamp.

        Returns:
            The CommitLog offset from which on records are to be dispatched again to make the index
            complete: 0 without files. `damaged` lists files to be built again besides.

        Raises:
            StoreCorruptError: a file of a size other than configured.
        """
        self.close()
        self.damaged = []
        for name in self.files.list(self.directory):
            path = f"{self.directory}/{name}"
            if not is_index_name(name) or self.files.is_dir(path):
                continue
            if self.files.size(path) == 0:
                if self._writable:
                    self.files.remove(path)
                continue
            self.index_files.append(self._open(name))
        counts = dict(safe_counts or {})
        if self._writable:
            self._drop_behind_gap(counts, log_min_offset)
        here = {file.name: file for file in self.index_files}
        if self._writable and not clean:
            self._repair(counts, flushed_timestamp)
        complete = self._drop_damaged()
        self._find_end()
        if self._writable:
            self.truncate(log_end_offset)
        self._safe_counts = {
            name: count
            for name, count in counts.items()
            if name in here and here[name].index_count == count
        }
        if clean and complete and self._partial[0] >= 0:
            # All keys of the last record are there, whatever the order they were put in.
            self.indexed_offset, self._partial = self._partial[0], _NO_RECORD
        start = max(self.indexed_offset + 1, 0)
        if safe_counts is not None and all(
            name in here and here[name].index_count >= count for name, count in counts.items()
        ):
            start = max(start, min(safe_offset, log_end_offset))
        return start

    def _open(self, name: str) -> IndexFile:
        return IndexFile(
            self.files,
            self.directory,
            name,
            self.config.max_hash_slot_num,
            self.config.max_index_num,
            writable=self._writable,
        )

    def _drop_behind_gap(self, counts: Mapping[str, int], log_min_offset: int) -> None:
        """Deletes what follows a file that is gone: it is built again with what was in that one.

        Not where the next one begins with the log: then the one that is gone had expired.
        """
        here = {file.name for file in self.index_files}
        gone = min((name for name in counts if name not in here), default=None)
        behind = [file for file in self.index_files if gone is not None and file.name > gone]
        if behind and behind[0].begin_offset > log_min_offset:
            _LOG.warning(
                "%s/%s is gone, it is built again with the files behind it", self.directory, gone
            )
            for file in behind:
                file.destroy()
            del self.index_files[-len(behind) :]

    def _drop_damaged(self) -> bool:
        """Takes out files that contradict themselves; those in the middle go into `damaged`.

        Returns whether the newest file stayed.
        """
        complete = True
        for number in range(len(self.index_files) - 1, -1, -1):
            file = self.index_files[number]
            last = number == len(self.index_files) - 1
            reason = file.trouble()
            if reason is None:
                continue
            _LOG.warning("%s is damaged, it is built again: %s", file.path, reason)
            if last and self._writable:
                file.destroy()
                del self.index_files[number]
                complete = False
            elif not last:
                before = self.index_files[number - 1].end_offset if number else 0
                after = self.index_files[number + 1].begin_offset
                self.damaged.append(DamagedIndexFile(file.name, reason, before, after))
        return complete

    def _repair(self, counts: Mapping[str, int], flushed_timestamp: int) -> None:
        """Keeps the entries that are known to be on the disk, and makes their slots anew.

        Entries after those may be torn in ways that cannot be seen, and their records are
        dispatched again anyhow. Entries are in the order of the CommitLog, so from the first file
        that is not kept whole on nothing is kept.
        """
        for number, file in enumerate(self.index_files):
            if file.is_full and 0 < file.end_timestamp <= flushed_timestamp:
                continue
            safe_count = min(max(counts.get(file.name, 1), 1), file.entries_max)
            if safe_count >= file.index_count and file.is_full:
                continue
            later = self.index_files[number + 1 :]
            for each in later:
                each.destroy()
            del self.index_files[number + 1 :]
            # Even where the header tells of no more: slots are written before it.
            self._cut_last(min(safe_count, file.index_count))
            break

    def _cut_last(self, index_count: int) -> None:
        """Cuts the newest file; it is deleted and built again where the disk has no room for that.

        Only a file of RocketMQ's needs room: its slots may lie in holes.
        """
        file = self.index_files[-1]
        try:
            file.cut(index_count)
        except StoreFullError as error:
            _LOG.warning("%s could not be cut, it is built again: %s", file.path, error)
            file.destroy()
            del self.index_files[-1:]

    def _find_end(self) -> None:
        """Finds where indexing goes on: in the middle of the last record's keys, perhaps."""
        while self._writable and len(self.index_files) > 1 and not self.index_files[-1].entry_count:
            self.index_files.pop().destroy()
        self._last = self.index_files[-1] if self.index_files else None
        if self._last is None or not self._last.entry_count:
            self.indexed_offset, self._partial = -1, _NO_RECORD
            return
        offset = self._last.end_offset
        present = 0
        for file in reversed(self.index_files):
            count = file.count_at_end(offset)
            present += count
            if count < file.entry_count:
                break
        self.indexed_offset, self._partial = offset - 1, (offset, present)

    def close(self) -> None:
        """Publishes and unmaps; waits for flushes of full files."""
        self._join_flushers()
        for file in self.index_files:
            file.close()
        self.index_files = []
        self._last = None

    def destroy(self) -> None:
        """Deletes all files. RocketMQ: destroy."""
        self._join_flushers()
        for file in self.index_files:
            file.destroy()
        self.index_files = []
        self._last = None
        self.indexed_offset = -1
        self._partial = _NO_RECORD

    def refresh(self) -> None:
        """Takes in what another process has added; what this one has put must be published."""
        with self._files_lock:
            known = {file.name: file for file in self.index_files}
            for name in self.files.list(self.directory):
                if name in known or not is_index_name(name):
                    continue
                try:
                    file = self._open(name)
                except (FileNotFoundError, StoreCorruptError):
                    continue  # it is being made, or was just deleted
                known[name] = file
            for file in known.values():
                file.refresh()
            self.index_files = [known[name] for name in sorted(known)]

    # Putting

    def hashes_of(self, request: DispatchRequest) -> list[int]:
        """The key hashes of a record, in the order in which they are put."""
        if request.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return []
        return self._hashes.of(request.topic, request.properties_raw)

    def put(self, request: DispatchRequest) -> None:
        """Indexes a record's keys; does nothing for one that is indexed. RocketMQ: buildIndex.

        Raises:
            StoreFullError: the disk has no room. What was put is remembered; call again later.
        """
        offset = request.commit_log_offset
        if offset <= self.indexed_offset:
            return
        hashes = self.hashes_of(request)
        if hashes:
            self.put_hashes(hashes, offset, request.store_timestamp)
        self.indexed_offset = offset

    def put_hashes(self, hashes: list[int], commit_log_offset: int, store_timestamp: int) -> None:
        """Indexes one record under these hashes, which are all it has."""
        partial, done = self._partial
        file = self._last
        if partial != commit_log_offset:
            done = 0
        elif file is not None:
            file.confirm_end(commit_log_offset, store_timestamp)
        try:
            while done < len(hashes):
                if file is None or file.is_full:
                    file = self._roll()
                before = file.index_count
                try:
                    done = file.put(hashes, commit_log_offset, store_timestamp, done)
                except BaseException:
                    done += file.index_count - before
                    raise
        except BaseException:
            self._partial = (commit_log_offset, done)
            raise
        self.indexed_offset = commit_log_offset

    def put_entries(self, entries: IndexEntries, last_record: int) -> None:
        """Indexes a stretch of the log that the kernels have taken the keys of.

        Args:
            entries: of whole records, in the order of the log; those indexed already are left out.
            last_record: where the last record of the stretch starts, whether it has keys or not.

        Raises:
            StoreFullError: the disk has no room; the same stretch may be given again.
        """
        offsets = memoryview(entries.offsets).cast("q")[: entries.count]
        number = bisect.bisect_right(offsets, self.indexed_offset)
        partial, done = self._partial
        if number < len(offsets) and offsets[number] == partial:
            if self._last is not None:
                timestamps = memoryview(entries.timestamps).cast("q")
                self._last.confirm_end(partial, timestamps[number])
            number += done
        try:
            while number < len(offsets):
                if self._last is None or self._last.is_full:
                    self._roll()
                assert self._last is not None
                number = self._last.put_stream(entries, number)
        except BaseException:
            # Of the record that goes on here some keys may be in the file before.
            if 0 < number < len(offsets):
                first = bisect.bisect_left(offsets, offsets[number])
                self.indexed_offset = max(self.indexed_offset, offsets[number] - 1)
                self._partial = (offsets[number], number - first)
            raise
        self.indexed_offset = max(self.indexed_offset, last_record)

    def publish(self) -> None:
        """Lets other processes see the newest entries. To be called after each burst."""
        if self._last is not None:
            self._last.publish()

    def _roll(self) -> IndexFile:
        """Makes the next file; a full one is flushed behind the caller's back."""
        full = self._last
        if not self.files.exists(self.directory):
            self.files.make_dirs(self.directory)
        file = IndexFile(
            self.files,
            self.directory,
            self._new_name(),
            self.config.max_hash_slot_num,
            self.config.max_index_num,
            create=True,
            begin_offset=full.end_offset if full else 0,
            begin_timestamp=full.end_timestamp if full else 0,
        )
        self.files.sync_directory(self.directory)
        with self._files_lock:
            self.index_files = [*self.index_files, file]
        self._last = file
        if full is not None:
            full.publish()
            thread = threading.Thread(
                target=self._flush_full, args=(full,), name="index-flush", daemon=True
            )
            self._flushers = [t for t in self._flushers if t.is_alive()] + [thread]
            thread.start()
        return file

    def _flush_full(self, file: IndexFile) -> None:
        if self.syncs.has_failed:
            return
        try:
            with self._flush_lock, self.syncs.watch():
                self._safe_counts[file.name] = file.flush()
            if file.end_timestamp > 0:
                self._on_full(file.end_timestamp)
        except (OSError, ValueError, StoreError):
            # It does not count as safe.
            _LOG.exception("the full index file %s could not be written to the disk", file.path)

    def _join_flushers(self) -> None:
        for thread in self._flushers:
            thread.join()
        self._flushers = []

    def _new_name(self) -> str:
        """Local time, and later than every name that is there: names are the order of the files."""
        last = self.index_files[-1].name if self.index_files else ""
        now_ms = self._clock_ms()
        name = _time_name(now_ms)
        if name > last or len(last) != len(name):
            return name
        # Two within a millisecond, or the clock was set back.
        return f"{int(last) + 1:017d}"

    # Flush

    def flush(self) -> None:
        """Publishes and syncs what is not on the disk yet.

        Raises:
            OSError, StoreError: the disk failed, or did so in an earlier sync.
        """
        with self._flush_lock, self.syncs.watch():
            for file in self.index_files:
                if self._safe_counts.get(file.name) != file.index_count:
                    self._safe_counts[file.name] = file.flush()
            names = {file.name for file in self.index_files}
            self._safe_counts = {n: c for n, c in self._safe_counts.items() if n in names}

    def safe_counts(self) -> dict[str, int]:
        """By file name the index_count that is on the disk."""
        with self._flush_lock:
            return dict(self._safe_counts)

    # Query

    def query_offsets(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        index_type: str | None = None,
    ) -> IndexQueryResult:
        """CommitLog offsets of records that may have a key, newest first. RocketMQ: queryOffset.

        Args:
            topic: the records' topic.
            key: unique key, user key, or tags.
            max_num: at most so many, and at most maxMsgsNumBatch.
            begin_ms: earliest store time.
            end_ms: latest store time.
            index_type: "T" for tags; None, "U" and "K" are all the same table of keys.
        """
        max_num = min(max_num, self.config.max_msgs_num_batch)
        if index_type == TAG_INDEX_TYPE:
            key = f"{TAG_INDEX_TYPE}#{key}"
        wanted = key_hash(topic, key)
        offsets: list[int] = []
        timestamp = last_offset = 0
        index_files = self.index_files
        for number, file in enumerate(reversed(index_files)):
            if number == 0:
                timestamp, last_offset = file.end_timestamp, file.end_offset
            if file.is_time_matched(begin_ms, end_ms) and len(file.view):
                offsets += file.select(wanted, max_num - len(offsets), begin_ms, end_ms)
            if file.begin_timestamp < begin_ms or len(offsets) >= max_num:
                break
        return IndexQueryResult(offsets, timestamp, last_offset)

    @property
    def total_entries(self) -> int:
        """Entries of all files."""
        return sum(file.entry_count for file in self.index_files)

    # Shrinking

    def delete_expired(self, log_min_offset: int) -> int:
        """Deletes files, never the last, whose records are all gone; returns how many.

        One thread at a time. RocketMQ: deleteExpiredFile.
        """
        if self.is_kept_elsewhere:
            self.refresh()
        deleted = 0
        while True:
            with self._files_lock:
                files = self.index_files
                if len(files) < 2 or files[0].end_offset >= log_min_offset:
                    return deleted
                self.index_files = files[1:]
            self._join_flushers()
            files[0].destroy()
            deleted += 1

    def truncate(self, log_end_offset: int) -> None:
        """Cuts the entries of records at or after an offset."""
        changed = False
        while self.index_files and self.index_files[-1].end_offset >= log_end_offset:
            file = self.index_files[-1]
            count = file.first_at_or_behind(log_end_offset)
            if count > 1 or len(self.index_files) == 1:
                if count < file.index_count:
                    self._cut_last(count)
                    changed = True
                break
            self.index_files = self.index_files[:-1]
            file.destroy()
            changed = True
        if changed:
            self._find_end()

    def rebuild(self, damage: DamagedIndexFile, requests: Iterable[DispatchRequest]) -> None:
        """Builds a damaged file anew from the records of its range and puts it in its place.

        Args:
            damage: one of `damaged`.
            requests: the records that start within [damage.start, damage.stop], in order.
        """
        number = next(n for n, file in enumerate(self.index_files) if file.name == damage.name)
        old = self.index_files[number]
        before = self.index_files[number - 1] if number else None
        after = self.index_files[number + 1]
        scratch = f"{damage.name}.rebuilt"
        path = f"{self.directory}/{scratch}"
        self.files.remove(path)
        file = IndexFile(
            self.files,
            self.directory,
            scratch,
            old.slots,
            old.entries_max,
            create=True,
            begin_offset=before.end_offset if before else 0,
            begin_timestamp=before.end_timestamp if before else 0,
        )
        for request in requests:
            hashes = self.hashes_of(request)
            offset = request.commit_log_offset
            first = before.count_at_end(offset) if before and offset == before.end_offset else 0
            if offset == after.begin_offset:
                here = sum(
                    after.entry(n).commit_log_offset == offset
                    for n in range(1, min(after.index_count, len(hashes) + 1))
                )
                hashes = hashes[: len(hashes) - here]
            file.put(hashes, offset, request.store_timestamp, first)
        file.flush()
        file.close()
        old.unmap()  # in one step: a crash leaves the old file or the new one
        self.files.rename(path, f"{self.directory}/{damage.name}")
        fresh = self._open(damage.name)
        self.index_files = [*self.index_files[:number], fresh, *self.index_files[number + 1 :]]
        self.damaged.remove(damage)


def _time_name(now_ms: int) -> str:
    """The name of a file made now: local time yyyyMMddHHmmssSSS."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"
