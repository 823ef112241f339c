"""Writes ConsumeQueue, ConsumeQueueExt and BatchConsumeQueue files from runs of units.

A unit's place is its queue offset. Where the log lacks messages in the middle of a queue, each
missing place gets the unit of the message that follows (a *stand-in*): a consumer there gets
that message, twice if it reads on, and nothing else is hidden from it. RocketMQ's own filler
(0, 2**31-1, 0) is only for the front of a queue whose first messages have expired. Elsewhere its
readers take it for a message at offset 0 that is not there, and leave out every message of the
log's first segment that comes after it; its search by time ends there.

Units are gathered and written in large pieces, so that ten thousand queues need no more open files
than one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from oberth.formats import batch_consume_queue as batch
from oberth.formats import consume_queue as cq
from oberth.formats.consume_queue_ext import (
    END_BLANK,
    ConsumeQueueExtUnit,
    encode_ext_unit,
    ext_address,
    fits,
)
from oberth.formats.message import FIXED_SIZE_V1
from oberth.formats.names import is_stored_topic
from oberth.formats.paths import segment_name
from oberth.kernels.queues import UnitRun
from oberth.store.offline.layout import QueueKey

BUFFER_SIZE: Final = 1 << 20
# All queues together hold back at most this much.
BUFFERED_MAX: Final = 256 << 20
_STAND_IN_PIECE: Final = 4096
ILLEGAL_RECORDS_MAX: Final = 1000


class QueueFileWriter:
    """One queue's files, written from the first unit to the last."""

    def __init__(self, directory: str, unit_size: int, file_size: int) -> None:
        self.directory = directory
        self.unit_size = unit_size
        self.file_size = file_size
        self.first: int | None = None
        self.next = -1
        # Whether a queue that does not begin at 0 has lost messages rather than outlived them.
        self.nothing_expired = False
        self._buffer = bytearray()
        self._position = 0

    @property
    def buffered(self) -> int:
        """Bytes that are not written yet."""
        return len(self._buffer)

    def begin_with(self, first: int, pieces: Iterable[memoryview]) -> None:
        """Begins the queue with units that are taken as they are, from ordinal ``first`` on."""
        self.first = self.next = first
        self._position = first * self.unit_size
        for piece in pieces:
            self._buffer += piece
            self.next += len(piece) // self.unit_size
            if len(self._buffer) >= BUFFER_SIZE:
                self.flush()

    def add(self, first: int, units: bytes | bytearray | memoryview) -> int:
        """Puts units at an ordinal; returns how many stand-ins were needed before them.

        An ordinal before the queue's end takes the place of what is there and behind.
        """
        size = self.unit_size
        missing = 0
        if self.first is None or first < self.first:
            has_lost_front = self._has_lost_front(first, units)
            self._begin(first, has_lost_front)
            if has_lost_front:
                missing = self._stand_in(bytes(units[:size]), first)
        elif first < self.next:
            self._cut(first)
        elif first > self.next:
            missing = self._stand_in(bytes(units[:size]), first - self.next)
        self._buffer += units
        self.next = first + len(units) // size
        return missing

    def _stand_in(self, unit: bytes, count: int) -> int:
        left = count
        while left:
            piece = min(left, _STAND_IN_PIECE)
            self._buffer += unit * piece
            left -= piece
            if len(self._buffer) >= BUFFER_SIZE:
                self.flush()
        return count

    def _has_lost_front(self, first: int, units: bytes | bytearray | memoryview) -> bool:
        """Whether all messages before a queue's first unit had room in the log before its record.

        A higher number is a wrong one.
        """
        offset = int.from_bytes(units[:8], "big")
        return self.nothing_expired and first <= offset // FIXED_SIZE_V1 + 1

    def _begin(self, first: int, has_lost_front: bool) -> None:
        self.discard()
        self.first = first
        if has_lost_front:
            self._position = 0
            return
        at = first * self.unit_size
        start = at - at % self.file_size
        self._position = start
        if self.unit_size == cq.UNIT_SIZE:
            self._buffer += cq.PRE_BLANK * ((at - start) // self.unit_size)
        else:
            self._position = at

    def _cut(self, first: int) -> None:
        """Forgets the units from an ordinal on."""
        self.flush()
        position = first * self.unit_size
        for start, path in self._files():
            if start >= position:
                os.remove(path)
            elif start + self.file_size > position:
                os.truncate(path, position - start)
                os.truncate(path, self.file_size)
        self._position = position
        self.next = first

    def _files(self) -> Iterator[tuple[int, str]]:
        if os.path.isdir(self.directory):
            for name in sorted(os.listdir(self.directory)):
                yield int(name), os.path.join(self.directory, name)

    def discard(self) -> None:
        """Removes what was written so far."""
        self._buffer.clear()
        for _, path in list(self._files()):
            os.remove(path)

    def flush(self) -> None:
        """Writes what was gathered, into as many files as it takes."""
        if not self._buffer:
            return
        os.makedirs(self.directory, exist_ok=True)
        data = memoryview(self._buffer)
        done = 0
        while done < len(data):
            start = self._position - self._position % self.file_size
            at = self._position - start
            count = min(len(data) - done, self.file_size - at)
            path = os.path.join(self.directory, segment_name(start))
            with open(path, "r+b" if os.path.exists(path) else "w+b", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self.file_size:
                    file.truncate(self.file_size)
                file.seek(at)
                written = 0
                while written < count:
                    written += file.write(data[done + written : done + count]) or 0
            done += count
            self._position += count
        data.release()
        self._buffer.clear()


class ExtFileWriter:
    """One queue's ConsumeQueueExt files."""

    def __init__(self, directory: str, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self._start = 0
        self._file = bytearray()

    def add(self, unit: ConsumeQueueExtUnit) -> int:
        """Appends a unit; returns its address."""
        raw = encode_ext_unit(unit)
        if not fits(self.file_size, len(self._file), len(raw)):
            self._file += END_BLANK
            self._write()
            self._start += self.file_size
            self._file.clear()
        offset = self._start + len(self._file)
        self._file += raw
        return ext_address(offset)

    def flush(self) -> None:
        """Writes the last file."""
        if self._file:
            self._write()

    def _write(self) -> None:
        os.makedirs(self.directory, exist_ok=True)
        path = os.path.join(self.directory, segment_name(self._start))
        with open(path, "wb") as file:
            file.write(self._file)
            file.truncate(self.file_size)


ExtSource = Callable[[QueueKey, int, int], tuple[ConsumeQueueExtUnit | None, bool]]
"""(queue, queue offset, CommitLog offset) -> the ext unit of that record, and whether it has one
at all (the extra units of light message queues have none)."""

Head = Callable[[QueueKey, int], tuple[int, list[memoryview]] | None]
"""(queue, its first ordinal in the log) -> the units before it that are to be kept, if any: their
first ordinal and their bytes."""


class QueueTreeWriter:
    """All queues below one directory, by kind."""

    def __init__(
        self,
        root: str,
        *,
        file_size: int,
        batch_file_size: int,
        ext_file_size: int,
        names: tuple[str, str, str],
        ext_of: ExtSource | None = None,
        head_of: Head | None = None,
        nothing_expired: bool = False,
    ) -> None:
        """Prepares to write.

        Args:
            root: where the three directories are made.
            file_size: of a ConsumeQueue file.
            batch_file_size: of a BatchConsumeQueue file.
            ext_file_size: of a ConsumeQueueExt file.
            names: the directories of ConsumeQueues, ConsumeQueueExts and BatchConsumeQueues.
            ext_of: asks for each unit's ext unit, None where the store keeps none.
            head_of: asks for the units of records that have expired.
            nothing_expired: the log begins at 0: a queue that does not has lost its front.
        """
        self.root = root
        self.file_size = file_size
        self.batch_file_size = batch_file_size
        self.ext_file_size = ext_file_size
        self.names = names
        self.ext_of = ext_of
        self.head_of = head_of
        self.queues: dict[tuple[bytes, int], QueueFileWriter] = {}
        self.ext_queues: dict[tuple[bytes, int], ExtFileWriter] = {}
        self.nothing_expired = nothing_expired
        self.stand_ins: dict[QueueKey, int] = {}
        self.illegal_topics: set[bytes] = set()
        self.illegal_records: list[int] = []
        self.units = 0
        self._buffered = 0
        self._held: dict[tuple[bytes, int], UnitRun] = {}

    def add(self, run: UnitRun) -> None:
        """Puts the units of a run.

        A single unit away from its queue's end waits for the queue's next one: if just one place
        is between that and the end, only the single one's number is wrong, and the place is its
        own. The kernels see the same where no scanned range ends between the two.
        """
        key = (run.topic, run.queue_id)
        writer = self.queues.get(key)
        if writer is None:
            if run.queue_id < 0 or not is_stored_topic(run.topic.decode("utf-8", "replace")):
                self.illegal_topics.add(run.topic)
                if len(self.illegal_records) < ILLEGAL_RECORDS_MAX:
                    size = batch.UNIT_SIZE if run.is_batch else cq.UNIT_SIZE
                    self.illegal_records += [
                        int.from_bytes(run.units[at : at + 8], "big")
                        for at in range(0, len(run.units), size)
                    ]
                return
            writer = self.queues[key] = self._open(run)
        held = self._held.pop(key, None)
        if held is not None:
            if run.first == writer.next + 1:
                held = held._replace(first=writer.next)
            self._put(writer, held)
        if run.unit_count == 1 and not run.is_batch and (run.skipped or run.restarts):
            self._held[key] = run._replace(units=memoryview(bytes(run.units)))
        else:
            self._put(writer, run)

    def _put(self, writer: QueueFileWriter, run: UnitRun) -> None:
        units: bytes | bytearray | memoryview = run.units
        if self.ext_of is not None and not run.is_batch:
            units = self._with_ext(run)
        before = writer.buffered
        missing = writer.add(run.first, units)
        if missing:
            name = QueueKey(run.topic.decode("utf-8", "replace"), run.queue_id)
            self.stand_ins[name] = self.stand_ins.get(name, 0) + missing
        self.units += run.unit_count
        if writer.buffered >= BUFFER_SIZE:
            writer.flush()
        self._buffered += writer.buffered - before
        if self._buffered >= BUFFERED_MAX:
            for each in self.queues.values():
                each.flush()
            self._buffered = 0

    def _open(self, run: UnitRun) -> QueueFileWriter:
        topic = run.topic.decode("utf-8", "replace")
        name = self.names[2] if run.is_batch else self.names[0]
        directory = os.path.join(self.root, name, topic, str(run.queue_id))
        if run.is_batch:
            return QueueFileWriter(directory, batch.UNIT_SIZE, self.batch_file_size)
        writer = QueueFileWriter(directory, cq.UNIT_SIZE, self.file_size)
        writer.nothing_expired = self.nothing_expired
        if self.head_of is not None and run.first:
            head = self.head_of(QueueKey(topic, run.queue_id), run.first)
            if head is not None:
                writer.begin_with(*head)
        return writer

    def _with_ext(self, run: UnitRun) -> bytearray:
        assert self.ext_of is not None
        topic = run.topic.decode("utf-8", "replace")
        key = QueueKey(topic, run.queue_id)
        writer = self.ext_queues.get((run.topic, run.queue_id))
        result = bytearray()
        for number, fields in enumerate(cq.UNIT.iter_unpack(run.units)):
            unit = cq.ConsumeQueueUnit(*fields)
            ext, wanted = self.ext_of(key, run.first + number, unit.commit_log_offset)
            if not wanted or ext is None:
                result += cq.UNIT.pack(*unit)
                continue
            if writer is None:
                directory = os.path.join(self.root, self.names[1], topic, str(run.queue_id))
                writer = ExtFileWriter(directory, self.ext_file_size)
                self.ext_queues[run.topic, run.queue_id] = writer
            address = writer.add(ext._replace(tags_code=unit.tags_code))
            result += cq.UNIT.pack(unit.commit_log_offset, unit.record_size, address)
        return result

    def finish(self) -> None:
        """Writes everything out."""
        for key, run in self._held.items():
            self._put(self.queues[key], run)
        self._held.clear()
        for writer in self.queues.values():
            writer.flush()
        for ext in self.ext_queues.values():
            ext.flush()
