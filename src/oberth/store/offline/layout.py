"""What a store directory holds: which files, of which sizes, and what does not belong there.

File sizes are an option of the broker and are written down nowhere, yet nothing can be read without
them. Where no option says otherwise they are taken from the files: a segment's length, the distance
between two names, and for index files (whose numbers of slots and entries share one length) the
place where the first and the last entry lie.

A directory is listed once; `discover` again to see new files.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from oberth.errors import FormatError, NotFoundError, OptionError, StoreError
from oberth.formats import batch_consume_queue, checkpoint, index_file, paths
from oberth.formats.broker_conf import (
    BROKER_KEYS,
    Line,
    MessageStoreConfig,
    parse_properties,
)
from oberth.formats.consume_queue import round_file_size
from oberth.formats.marker_files import decode_abort
from oberth.formats.message import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from oberth.formats.names import LMQ_PREFIX
from oberth.store.file_kinds import DIRECTORIES, odd_ones
from oberth.store.files import OsFileSystem
from oberth.store.offline.findings import Finding, FindingKind, Severity
from oberth.store.offline.lock_state import is_locked
from oberth.store.offline.segments import Segment, SegmentMap

LOG_MAGICS: Final = frozenset((MAGIC_V1, MAGIC_V2, BLANK_MAGIC))
CONFIG_FILE_SIZE_MAX: Final = 64 << 20


class QueueKey(NamedTuple):
    """A queue's name. A topic from a directory's name, never made into a path again."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class IndexShape(NamedTuple):
    """How an index file is divided."""

    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        """Bytes of a file of this shape."""
        return index_file.file_size(self.slots, self.entries)


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files of one queue, in order. ``directory`` is relative to the root."""

    key: QueueKey
    directory: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """What `discover` found.

    Attributes:
        root: the store root.
        config: the options, with sizes as given or as the files tell.
        given: Java names of the options that somebody gave.
        commit_log_paths: the CommitLog's directories.
        commit_log: its segments in order.
        queues: files of each ConsumeQueue.
        ext_queues: files of each ConsumeQueueExt.
        batch_queues: files of each BatchConsumeQueue.
        index_files: paths in the order of their names.
        index_shape: how they are divided.
        index_readable: whether that is known; otherwise the index files tell nothing.
        checkpoint: what the checkpoint says, or None where there is none or it cannot be read.
        abort: whether the store is open or was not closed cleanly.
        abort_process_id: the process that says so, where 5.x wrote it.
        in_use: whether another process has the store open now.
        findings: foreign files, wrong sizes, gaps, what cannot be read.
        other_files: files that belong to a broker but not to the store proper, relative paths.
    """

    root: str
    config: MessageStoreConfig
    given: frozenset[str]
    commit_log_paths: tuple[str, ...]
    commit_log: tuple[Segment, ...]
    queues: Mapping[QueueKey, QueueFiles]
    ext_queues: Mapping[QueueKey, QueueFiles]
    batch_queues: Mapping[QueueKey, QueueFiles]
    index_files: tuple[Segment, ...]
    index_shape: IndexShape
    index_readable: bool
    checkpoint: checkpoint.Checkpoint | None
    abort: bool
    abort_process_id: int | None
    in_use: bool
    findings: tuple[Finding, ...]
    other_files: tuple[str, ...] = ()
    config_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def line(self) -> Line:
        """Which line of RocketMQ wrote the store, as far as its files tell."""
        return self.config.line

    def relative(self, path: str) -> str:
        """A path as findings show it."""
        return relative_path(self.root, path)


def relative_path(root: str, path: str) -> str:
    """A path relative to the store root; a path outside of it stays as it is."""
    prefix = root.rstrip(os.sep) + os.sep
    return path[len(prefix) :] if path.startswith(prefix) else path


def discover(
    root: str | os.PathLike[str],
    entries: Mapping[str, str] | None = None,
    *,
    with_queues: bool = True,
) -> StoreLayout:
    """Lists a store directory and works out the sizes of its files.

    Args:
        root: the store root.
        entries: options by their Java names, ``{root}`` standing for the root; what they leave out
            is taken from the files.
        with_queues: whether queues are looked at; there can be very many.

    Raises:
        NotFoundError: no such directory, or nothing in it that belongs to a store.
        OptionError: an option that is unknown or does not parse.
        StoreError: the directory cannot be listed.
    """
    base = os.path.abspath(os.fspath(root))
    entries = {**(entries or {})}
    given = frozenset(entries)
    config = MessageStoreConfig.from_properties(
        {**entries, "storePathRootDir": base}, also_known=BROKER_KEYS, strict=True
    )
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        raise NotFoundError(f"{base}: no such directory") from None
    except NotADirectoryError:
        raise NotFoundError(f"{base}: a file, not a store directory") from None
    except OSError as error:
        raise StoreError(f"{base}: cannot be listed: {error.strerror}") from error
    return _Discovery(base, config, given, names, entries).run(with_queues=with_queues)


def parse_broker_conf(path: str | None, overrides: Mapping[str, str]) -> dict[str, str]:
    """The entries of a broker.conf with single settings over them.

    Raises:
        StoreError: the file cannot be read.
        ConfigFormatError: it is no properties text.
    """
    if path is None:
        return dict(overrides)
    try:
        with open(path, "rb") as file:
            data = file.read(CONFIG_FILE_SIZE_MAX)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    entries = parse_properties(data, name=path, placed=True)
    # The command says which directory it means; the file's own root is that of its machine.
    entries.pop("storePathRootDir", None)
    return {**entries, **overrides}


class _Discovery:
    """One run of `discover`."""

    def __init__(
        self,
        root: str,
        config: MessageStoreConfig,
        given: frozenset[str],
        names: list[str],
        entries: Mapping[str, str],
    ) -> None:
        self.root = root
        self.config = config
        self.given = given
        self.names = names
        self.entries = entries
        self.findings: list[Finding] = []
        self.index_readable = True

    def run(self, *, with_queues: bool) -> StoreLayout:
        log_paths, read_only = self._commit_log_paths()
        self._odd_ones(log_paths)
        log = self._commit_log(log_paths, read_only)
        queues = self._queues(paths.CONSUME_QUEUE) if with_queues else {}
        ext = self._queues(paths.CONSUME_QUEUE_EXT) if with_queues else {}
        batch = self._queues(paths.BATCH_CONSUME_QUEUE) if with_queues else {}
        index = self._index()
        if not (log or queues or batch or index or paths.COMMIT_LOG in self.names):
            if any(paths.segment_start(name) is not None for name in self.names):
                raise NotFoundError(
                    f"{self.root}: holds segments, not a store; the store root is the directory "
                    "above it"
                )
            if self.names and paths.CHECKPOINT not in self.names:
                raise NotFoundError(f"{self.root}: no commitlog in it, not a store directory")
        self._sizes(log, queues, ext, batch)
        log = self._side_by_side(log)
        shape = self._index_shape(index)
        point = self._checkpoint()
        abort, process_id = self._abort()
        self.config.line = self._line(point)
        self.config.enable_consume_queue_ext |= bool(ext)
        if "enableMultiDispatch" not in self.given:
            self.config.enable_multi_dispatch = (
                any(key.topic.startswith(LMQ_PREFIX) for key in queues) or not queues
            )
        if "enableLmq" not in self.given:
            self.config.enable_lmq = self.config.enable_multi_dispatch
        self._check_sizes(log, queues, ext, batch)
        self._check_index_sizes(index, shape)
        return StoreLayout(
            root=self.root,
            config=self.config,
            given=self.given,
            commit_log_paths=tuple(log_paths),
            commit_log=tuple(segment for segment in log if segment.size),
            queues=queues,
            ext_queues=ext,
            batch_queues=batch,
            index_files=index,
            index_shape=shape,
            index_readable=self.index_readable,
            checkpoint=point,
            abort=abort,
            abort_process_id=process_id,
            in_use=is_locked(self.root),
            findings=tuple(self.findings),
            config_entries=self.entries,
        )

    def _check_sizes(
        self,
        log: Sequence[Segment],
        queues: Mapping[QueueKey, QueueFiles],
        ext: Mapping[QueueKey, QueueFiles],
        batch: Mapping[QueueKey, QueueFiles],
    ) -> None:
        self._check_segments("", log, self.config.mapped_file_size_commit_log)
        for files in queues.values():
            self._check_segments(
                files.directory, files.segments, self.config.consume_queue_file_size
            )
        for files in ext.values():
            self._check_segments(
                files.directory, files.segments, self.config.mapped_file_size_consume_queue_ext
            )
        for files in batch.values():
            self._check_segments(
                files.directory, files.segments, self.config.batch_consume_queue_file_size
            )

    def _check_index_sizes(self, index: Sequence[Segment], shape: IndexShape) -> None:
        for segment in index:
            if self.index_readable and segment.size != shape.file_size:
                self._found(
                    FindingKind.FILE_SIZE,
                    segment.path,
                    f"{segment.size} bytes",
                    f"{shape.file_size} bytes ({shape.slots} slots, {shape.entries} entries)",
                )

    def _found(
        self,
        kind: FindingKind,
        path: str,
        found: str,
        expected: str,
        severity: Severity = Severity.DAMAGE,
        position: int = 0,
    ) -> None:
        self.findings.append(
            Finding(kind, relative_path(self.root, path), position, found, expected, severity)
        )

    def _listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []  # what is no directory is named by `_odd_ones`
        except OSError as error:
            self._found(
                FindingKind.FILE_UNREADABLE, path, error.strerror or str(error), "a directory"
            )
            return []

    def _odd_ones(self, log_paths: Sequence[str]) -> None:
        for odd in odd_ones(OsFileSystem(), self.root, log_paths):
            self._found(FindingKind.FILE_UNREADABLE, odd.path, odd.found, odd.allowed)

    def _segments(self, directory: str, read_only: bool = False) -> list[Segment]:
        found: list[Segment] = []
        for name in self._listdir(directory):
            path = os.path.join(directory, name)
            start = paths.segment_start(name)
            if start is None:
                if not os.path.isdir(path):
                    self._found(
                        FindingKind.FOREIGN_FILE, path, repr(name), "a file name of 20 digits"
                    )
                continue
            size = self._size_of(path)
            if size is not None:
                found.append(Segment(path, start, size, read_only))
        return found

    def _size_of(self, path: str) -> int | None:
        """The size of a file; None where there is none, and a finding where something else is."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None  # a broker may have deleted it since the directory was listed
        except OSError as error:
            self._found(FindingKind.FILE_UNREADABLE, path, error.strerror or str(error), "a file")
            return None
        if not stat.S_ISREG(status.st_mode):  # the file that belongs there is lost
            found = "a directory" if stat.S_ISDIR(status.st_mode) else "no file"
            self._found(FindingKind.FOREIGN_FILE, path, found, "a file")
            return None
        return status.st_size

    def _commit_log_paths(self) -> tuple[list[str], set[str]]:
        read_only = [os.path.abspath(each) for each in self.config.read_only_commit_log_paths]
        if "storePathCommitLog" in self.given or paths.COMMIT_LOG in self.names:
            own = [os.path.abspath(each) for each in self.config.commit_log_paths]
        else:
            own = [
                path
                for name in self.names
                if name not in _OTHER_DIRECTORIES
                and os.path.isdir(path := os.path.join(self.root, name))
                and self._looks_like_log(path)
            ]
            if own:
                self.config.store_path_commit_log = ",".join(own)
        return list(dict.fromkeys([*own, *read_only])), set(read_only) - set(own)

    def _looks_like_log(self, directory: str) -> bool:
        for name in self._listdir(directory):
            if paths.segment_start(name) is None:
                continue
            with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                head = file.read(8)
                if len(head) == 8:
                    return int.from_bytes(head[4:], "big", signed=True) in LOG_MAGICS
        return False

    def _commit_log(self, directories: Sequence[str], read_only: set[str]) -> tuple[Segment, ...]:
        by_start: dict[int, Segment] = {}
        for directory in directories:
            if not os.path.isdir(directory) and directory in read_only:
                self._found(FindingKind.FILE_UNREADABLE, directory, "nothing", "a directory")
            for segment in self._segments(directory, directory in read_only):
                if (other := by_start.setdefault(segment.start, segment)) is not segment:
                    self._found(
                        FindingKind.FOREIGN_FILE,
                        segment.path,
                        "a second segment of this offset",
                        f"only {relative_path(self.root, other.path)}",
                    )
        log = [by_start[start] for start in sorted(by_start)]
        return self._without_empty_last(log)

    def _side_by_side(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Those that are whole segments apart, which most are: another was renamed or copied."""
        size = self.config.mapped_file_size_commit_log
        if common_size([segments]) != size:
            return tuple(segments)  # none, or another size is given than they have
        rests = Counter(segment.start % size for segment in segments)
        rest = max(rests, key=lambda each: (rests[each], -each), default=0)
        for segment in segments:
            if segment.start % size != rest:
                self._found(
                    FindingKind.FOREIGN_FILE,
                    segment.path,
                    f"offset {segment.start}",
                    f"one that is whole segments of {size} bytes from the others",
                )
        return tuple(segment for segment in segments if segment.start % size == rest)

    def _without_empty_last(self, segments: list[Segment]) -> tuple[Segment, ...]:
        while segments and segments[-1].size == 0:
            self._found(
                FindingKind.FILE_SIZE,
                segments[-1].path,
                "0 bytes",
                "a whole segment (5.x deletes an empty last file at start)",
                Severity.NOTE,
            )
            segments.pop()
        return tuple(segments)

    def _queues(self, name: str) -> dict[QueueKey, QueueFiles]:
        queues: dict[QueueKey, QueueFiles] = {}
        base = os.path.join(self.root, name)
        names = self._listdir(base)
        is_rocksdb = "CURRENT" in names and any(each.startswith("MANIFEST-") for each in names)
        if is_rocksdb:
            self._found(
                FindingKind.FOREIGN_FILE, base, "queues in RocksDB",
                "files; what is missing is made from the CommitLog", Severity.NOTE,
            )  # fmt: skip
        for topic in names:
            topic_path = os.path.join(base, topic)
            if not os.path.isdir(topic_path):
                if is_rocksdb:
                    continue
                self._found(
                    FindingKind.FOREIGN_FILE, topic_path, "a file", "a topic's directory",
                    Severity.NOTE,
                )  # fmt: skip
                continue
            for queue in self._listdir(topic_path):
                path = os.path.join(topic_path, queue)
                number = paths.queue_number(queue)
                if number is None or not os.path.isdir(path):
                    self._found(
                        FindingKind.FOREIGN_FILE, path, repr(queue), "a number, the queue id",
                        Severity.NOTE,
                    )  # fmt: skip
                    continue
                segments = self._segments(path)
                key = QueueKey(topic, number)
                queues[key] = QueueFiles(
                    key, f"{name}/{topic}/{queue}", self._without_empty_last(segments)
                )
        return queues

    def _index(self) -> tuple[Segment, ...]:
        base = os.path.join(self.root, paths.INDEX)
        found: list[Segment] = []
        for name in self._listdir(base):
            path = os.path.join(base, name)
            if not paths.is_index_name(name):
                self._found(
                    FindingKind.FOREIGN_FILE, path, repr(name), "a file name of digits",
                    Severity.NOTE,
                )  # fmt: skip
                continue
            size = self._size_of(path)
            if size is not None:
                found.append(Segment(path, int(name), size))
        return tuple(found)

    def _sizes(
        self,
        log: Sequence[Segment],
        queues: Mapping[QueueKey, QueueFiles],
        ext: Mapping[QueueKey, QueueFiles],
        batch: Mapping[QueueKey, QueueFiles],
    ) -> None:
        config = self.config
        if "mappedFileSizeCommitLog" not in self.given and (size := common_size([log])):
            config.mapped_file_size_commit_log = size
        if "mappedFileSizeConsumeQueue" not in self.given and (
            size := common_size(files.segments for files in queues.values())
        ):
            config.mapped_file_size_consume_queue = round_file_size(size)
        if "mappedFileSizeConsumeQueueExt" not in self.given and (
            size := common_size(files.segments for files in ext.values())
        ):
            config.mapped_file_size_consume_queue_ext = size
        if "mapperFileSizeBatchConsumeQueue" not in self.given and (
            size := common_size(files.segments for files in batch.values())
        ):
            config.mapped_file_size_batch_consume_queue = batch_consume_queue.round_file_size(size)

    def _check_segments(self, directory: str, segments: Sequence[Segment], size: int) -> None:
        before: Segment | None = None
        for segment in segments:
            if segment.size != size:
                self._found(
                    FindingKind.FILE_SIZE, segment.path, f"{segment.size} bytes", f"{size} bytes"
                )
            if before is not None and segment.start != before.start + size:
                self._found(
                    FindingKind.FILE_GAP,
                    segment.path,
                    f"it follows {before.start}",
                    f"a segment that starts at {before.start + size}",
                )
            before = segment

    def _index_shape(self, index: Sequence[Segment]) -> IndexShape:
        config = self.config
        slots, entries = config.max_hash_slot_num, config.max_index_num
        slots_given = "maxHashSlotNum" in self.given
        entries_given = "maxIndexNum" in self.given
        if not index or (slots_given and entries_given):
            return IndexShape(slots, entries)
        size = Counter(segment.size for segment in index).most_common(1)[0][0]
        if slots_given:
            entries = (size - index_file.HEADER_SIZE - slots * 4) // 20
        elif entries_given:
            slots = (size - index_file.HEADER_SIZE - entries * 20) // 4
        else:
            votes: Counter[IndexShape] = Counter()
            for segment in [each for each in index if each.size == size][:_INDEX_FILES_ASKED]:
                with suppress(OSError):
                    opened = SegmentMap(segment)
                    try:
                        if (shape := infer_index_shape(opened)) is not None:
                            votes[shape] += 1
                    finally:
                        opened.close()
            if not votes:
                self.index_readable = False
                self._found(
                    FindingKind.INDEX_HEADER,
                    index[0].path,
                    f"{size} bytes, and entries that fit no division into slots and entries",
                    "an index file; --set maxHashSlotNum=… and maxIndexNum=… tell its sizes",
                )
                return IndexShape(slots, entries)
            slots, entries = votes.most_common(1)[0][0]
        if slots < 1 or entries < 2:
            return IndexShape(config.max_hash_slot_num, config.max_index_num)
        config.max_hash_slot_num, config.max_index_num = slots, entries
        return IndexShape(slots, entries)

    def _checkpoint(self) -> checkpoint.Checkpoint | None:
        path = os.path.join(self.root, paths.CHECKPOINT)
        try:
            with open(path, "rb") as file:
                data = file.read(checkpoint.FILE_SIZE)
            return checkpoint.decode_checkpoint(data)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:  # else `_odd_ones` names it
                self._found(
                    FindingKind.FILE_UNREADABLE, path, error.strerror or str(error), "a file"
                )
        except FormatError as error:
            self._found(FindingKind.CHECKPOINT, path, str(error), "4096 bytes")
        return None

    def _abort(self) -> tuple[bool, int | None]:
        try:
            with open(os.path.join(self.root, paths.ABORT), "rb") as file:
                return True, decode_abort(file.read(64))
        except FileNotFoundError:
            return False, None
        except OSError:
            return True, None

    def _line(self, point: checkpoint.Checkpoint | None) -> Line:
        if "rocketmqLine" in self.given:
            return self.config.line
        # 5.x leaves these behind at its first start, 4.9 knows none of them.
        if _ONLY_IN_5.intersection(self.names) or (
            point is not None
            and any(
                (point.master_flushed_offset, point.confirm_offset, point.logics_physical_offset)
            )
        ):
            return Line.V5
        # A store that was never started says nothing either way.
        return Line.V4_9 if point is not None else self.config.line


_INDEX_FILES_ASKED: Final = 3
_ONLY_IN_5: Final = frozenset(
    ("abort.bak", "compaction", "rocksdbstore", "timerwheel", "timerlog", "batchconsumequeue")
)
_OTHER_DIRECTORIES: Final = frozenset((*DIRECTORIES, "rocksdbstore", "transaction"))


def common_size(groups: Iterable[Sequence[Segment]]) -> int:
    """The file size that most segments speak for, 0 if none does.

    The distance between the names of neighbours counts as well as a length, so that one cut off
    file among two does not decide.
    """
    votes: Counter[int] = Counter()
    for segments in groups:
        for segment in segments:
            if segment.size:
                votes[segment.size] += 1
        for before, after in pairwise(segments):
            votes[after.start - before.start] += 1
    if not votes:
        return 0
    return max(votes, key=lambda size: (votes[size], size))


def infer_index_shape(opened: SegmentMap) -> IndexShape | None:
    """How an index file is divided, from its own chains; None if it does not tell.

    Candidates come from the header, which names the CommitLog offsets of the first and of the last
    entry and how many there are: they must be found that many entries apart. Each is judged by a
    sample of entries, whose hashes must lead to slots and earlier entries of the same hash.
    """
    view = opened.view
    size = len(view)
    if size < index_file.HEADER_SIZE:
        return None
    header = index_file.IndexHeader(*index_file.HEADER.unpack_from(view, 0))
    default = IndexShape(index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES)
    if header.next_entry == 1:
        return default if size == default.file_size else _proportional_shape(size)
    if size == default.file_size and _fitness(view, header, default) > _FIT:
        return default
    best: tuple[float, IndexShape] | None = None
    for shape in _candidates(opened, header, size):
        fitness = _fitness(view, header, shape)
        if best is None or fitness > best[0]:
            best = (fitness, shape)
        if fitness == 1.0:
            break
    return best[1] if best is not None and best[0] > _FIT else None


_FIT: Final = 0.7
_SAMPLE: Final = 48
# Without help of the header every possible division of a file up to this size is tried.
_TRY_ALL_SIZE: Final = 1 << 20
_NEEDLES_MAX: Final = 4096


def _candidates(
    opened: SegmentMap, header: index_file.IndexHeader, size: int
) -> Iterator[IndexShape]:
    """Divisions of a file, the likelier first."""
    written = header.next_entry - 1
    distance = (written - 1) * index_file.ENTRY_SIZE
    first_place = index_file.HEADER_SIZE + index_file.ENTRY_SIZE
    for offset, before in ((header.begin_offset, 0), (header.end_offset, distance)):
        needle = offset.to_bytes(8, "big", signed=True)
        # An offset of 0 looks like what was never written.
        if needle == bytes(8):
            continue
        position, tried = 0, 0
        while (position := opened.find(needle, position, size)) >= 0 and tried < _NEEDLES_MAX:
            slots, odd = divmod(position - 4 - before - first_place, index_file.SLOT_SIZE)
            if not odd and slots >= 1 and (shape := _shape(size, slots)) is not None:
                tried += 1
                yield shape
            position += 1
    if size <= _TRY_ALL_SIZE:
        rest = (size - index_file.HEADER_SIZE) // index_file.SLOT_SIZE % 5
        for slots in range(rest or 5, size // index_file.SLOT_SIZE, 5):
            if (shape := _shape(size, slots)) is not None:
                yield shape


def _shape(size: int, slots: int) -> IndexShape | None:
    entries, odd = divmod(
        size - index_file.HEADER_SIZE - slots * index_file.SLOT_SIZE, index_file.ENTRY_SIZE
    )
    return IndexShape(slots, entries) if entries >= 2 and not odd else None


def _proportional_shape(size: int) -> IndexShape | None:
    # RocketMQ's defaults have four entries for each slot.
    slots = (size - index_file.HEADER_SIZE) // (4 * index_file.ENTRY_SIZE + index_file.SLOT_SIZE)
    for candidate in range(slots, slots + 5):
        if candidate >= 1 and (shape := _shape(size, candidate)) is not None:
            return shape
    return None


def _fitness(view: memoryview, header: index_file.IndexHeader, shape: IndexShape) -> float:
    """Which part of a sample of entries makes sense if the file is divided so, 0 to 1."""
    written = header.next_entry - 1
    slots = shape.slots
    if not 1 <= written < shape.entries:
        return 0.0
    numbers = {1, written, *range(1, written + 1, max(1, written // _SAMPLE))}
    good = 0
    for number in numbers:
        entry = index_file.IndexEntry(
            *index_file.ENTRY.unpack_from(view, index_file.entry_position(number, slots))
        )
        if entry.key_hash < 0 or entry.time_diff < 0 or not 0 <= entry.previous < number:
            continue
        if entry.commit_log_offset < 0 or (entry.commit_log_offset == 0 and number > _SAMPLE):
            continue
        slot = entry.key_hash % slots
        (head,) = index_file.SLOT.unpack_from(view, index_file.slot_position(slot))
        if not number <= head <= written:
            continue
        if entry.previous:
            (before,) = index_file.SLOT.unpack_from(
                view, index_file.entry_position(entry.previous, slots)
            )
            if before < 0 or before % slots != slot:
                continue
        good += 1
    return good / len(numbers)


def walk_files(root: str) -> Iterator[tuple[str, int]]:
    """Every file below the root with its size, as sorted relative paths."""
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            with suppress(OSError):
                yield relative_path(root, path), os.lstat(path).st_size


_URL: Final = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://")


def local_directory(path: str, what: str) -> str:
    """The absolute path of something that is written to a file system of this machine.

    A URL would quietly make directories of its name below the working directory.

    Args:
        path: a path, or a ``file://`` URL.
        what: the option that gave it, for errors.

    Raises:
        OptionError: a URL of another kind.
    """
    if _URL.match(path) is not None:
        raise OptionError(
            f"{what}: {path!r} is a URL; this writes to a file system of this machine. Write there "
            "and copy, or mount the bucket"
        )
    return os.path.abspath(re.sub(r"^file:(//)?(?=/)", "", path))
