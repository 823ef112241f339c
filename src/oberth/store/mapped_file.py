"""One segment of a byte stream: a file of fixed size, mapped, named by the offset it starts at.

Three positions, none above the one before: `wrote_position` (appended), `committed_position` (moved
from a write buffer into the file; equal to wrote where there is no buffer), `flushed_position`
(known to be on the disk). Readers see up to `read_position`, and nothing after it.

RocketMQ: DefaultMappedFile, ReferenceResource.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Final

from oberth.errors import StoreFullError
from oberth.formats.paths import segment_name
from oberth.store.files import (
    ALLOCATE_CHUNK_SIZE,
    MADV_RANDOM,
    FileSystem,
    Mapping,
    allocate_ahead,
)

OS_PAGE_SIZE: Final = 4096
_TOUCH_CHUNK_SIZE: Final = 1 << 20
"""How much is written ahead with zeros: 0.3 ms of the processor, and 1 ms of one sync."""
BRING_IN_STEP: Final = 256 << 10
_REWRITE_STEP: Final = 64 << 10
READ_AHEAD_SIZE: Final = 2 << 20
"""Bytes that the system is asked to read ahead: a reader of old messages usually goes on."""
_IN_PAGE: Final = OS_PAGE_SIZE - 1
"""The bits of a position that say where in its page it is."""
LONG_SIZE: Final = OS_PAGE_SIZE
"""Bytes of one append from which on it is written to the file, see `Mapping.write`: of the
processor's time that saves a quarter with 8 KiB and two thirds with 64 KiB."""


class MappedFile:
    """One segment. Appends come from one thread at a time; reads and flushes from any.

    Lives until `destroy`; a reader that keeps a slice beyond one call holds it (`hold`,
    `release`), though a slice that outlives the file is safe too: it keeps the memory.
    """

    __slots__ = (
        "_allocated_position",
        "_available",
        "_blocks_position",
        "_first_shutdown",
        "_flush_lock",
        "_mapping",
        "_reference_count",
        "_reference_lock",
        "_renew_position",
        "_sync_failed",
        "_touches",
        "_transient_pool",
        "buffer",
        "committed_position",
        "file_size",
        "files",
        "flushed_position",
        "path",
        "start_offset",
        "store_timestamp",
        "warm_ahead",
        "write_buffer",
        "wrote_position",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        start_offset: int,
        file_size: int,
        *,
        create: bool = False,
        writable: bool = True,
        transient_pool: TransientStorePool | None = None,
    ) -> None:
        self.files = files
        self.path = f"{directory}/{segment_name(start_offset)}"
        self.start_offset = start_offset
        self.file_size = file_size
        self._mapping: Mapping = files.map(self.path, file_size, create=create, writable=writable)
        if create:
            files.sync_directory(directory)
        self.buffer = self._mapping.view
        self.wrote_position = 0
        self.committed_position = 0
        self.flushed_position = 0
        self.store_timestamp = 0
        self._allocated_position = 0  # appends may go so far
        self._renew_position = file_size  # an append behind it has more room made ahead
        self._blocks_position = 0  # the disk has room so far; the same unless pages are touched
        self._touches = False
        # Called where room was made, with both ends of it: its pages are going to be written.
        self.warm_ahead: Callable[[MappedFile, int, int], None] | None = None
        self._transient_pool = transient_pool
        self.write_buffer: bytearray | None = transient_pool.borrow() if transient_pool else None
        self._reference_count = 1
        self._available = True
        self._first_shutdown = 0.0
        self._reference_lock = threading.Lock()  # guards _reference_count, _available
        self._flush_lock = threading.Lock()  # one commit or sync at a time
        self._sync_failed = False

    def __repr__(self) -> str:
        return (
            f"MappedFile({self.path}, wrote {self.wrote_position}, "
            f"committed {self.committed_position}, flushed {self.flushed_position})"
        )

    # Positions

    @property
    def end_offset(self) -> int:
        """The stream offset after the last byte of the file."""
        return self.start_offset + self.file_size

    @property
    def is_full(self) -> bool:
        """Whether every byte was handed out."""
        return self.wrote_position == self.file_size

    @property
    def read_position(self) -> int:
        """Up to where readers may look."""
        return self.wrote_position if self.write_buffer is None else self.committed_position

    def set_positions(self, position: int) -> None:
        """Sets all three, after a load or a truncation."""
        self.wrote_position = position
        self.committed_position = position
        self.flushed_position = position
        self._allocated_position = min(self._allocated_position, position)
        self._blocks_position = min(self._blocks_position, position)

    # Writing

    def reserve(self, end: int) -> None:
        """Makes sure that bytes up to ``end`` can be written.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        if self.write_buffer is not None:
            return
        is_long = end - self.wrote_position >= LONG_SIZE
        if end > self._allocated_position:
            start = max(self._allocated_position, self.wrote_position)
            if self._touches and not is_long:
                self._touch(start, end)
            elif self._touches:
                if end > self._blocks_position:
                    first = max(self._blocks_position, start)
                    self._blocks_position = allocate_ahead(self._mapping, first, end)
                self._allocated_position = end
            else:
                self._take_room(end, allocate_ahead(self._mapping, start, end))
        elif end > self._renew_position:
            self._renew()

    def _take_room(self, start: int, end: int) -> None:
        """Appends may go up to ``end``; the pages behind ``start`` are new."""
        self._allocated_position = end
        self._renew_position = self.file_size
        # On a full disk there is less than a page.
        if self.warm_ahead is not None and end - start >= OS_PAGE_SIZE:
            self._renew_position = end - ALLOCATE_CHUNK_SIZE // 2
            self.warm_ahead(self, start, end)

    def _renew(self) -> None:
        """Makes room behind what there is, so that its pages are warm when they are written.

        A page that is not costs more than itself: the kernel reads ahead, 8 MiB on some machines,
        and zeroing those takes 4 ms; and a machine that lends its memory to others gets each page
        from its host first, ten times as slowly as it is written. Where no room can be made, the
        append that needs it says so.
        """
        self._renew_position = self.file_size
        start = self._allocated_position
        end = min(self.file_size, start + ALLOCATE_CHUNK_SIZE)
        try:
            self._mapping.allocate(start, end)
        except (OSError, StoreFullError):
            return
        self._take_room(start, end)

    def is_reserved(self, end: int) -> bool:
        """Whether bytes up to ``end`` could be written: an append that failed left some there."""
        return end <= self._allocated_position

    def prepare_for_syncs(self) -> None:
        """Makes syncs of single appends fast, where one comes after the other.

        Two things slow them down, measured on ext4 of Linux 6.18 with records of 1 KiB: pages that
        the kernel reads ahead come in large folios, and one byte makes all of a folio dirty (0.11
        ms a sync until there are some, 0.41 ms from then on); and the first write of a block that
        was only reserved makes the journal commit (0.20 ms instead of 0.13). So nothing is read
        ahead past the end, and some pages are written with zeros before they are needed.
        """
        self._touches = self.write_buffer is None
        self._renew_position = self.file_size
        if MADV_RANDOM is not None:
            self.advise(MADV_RANDOM, self.wrote_position)

    def _touch(self, start: int, end: int) -> None:
        ahead = min(self.file_size, end + _TOUCH_CHUNK_SIZE)
        blocks = self._blocks_position
        if ahead > blocks:
            try:
                blocks = max(blocks, allocate_ahead(self._mapping, max(blocks, start), end))
            except StoreFullError:
                if end > blocks:
                    raise
            self._blocks_position = blocks
        ahead = min(ahead, blocks)
        first = -(-start // OS_PAGE_SIZE) * OS_PAGE_SIZE
        buffer = self.buffer
        for position in range(first, ahead, OS_PAGE_SIZE):
            buffer[position] = 0
        self._allocated_position = ahead

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Appends bytes that fit, one part behind the other.

        Raises:
            OSError: the disk failed; long data may be there in part.
            StoreFullError: the disk is full.
        """
        position = self.wrote_position
        end = position + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        assert end <= self.file_size, f"{self.path}: up to {end} from {position} on does not fit"
        target = self.write_buffer
        if target is None and end > min(self._allocated_position, self._renew_position):
            self.reserve(end)
        for data in parts:
            if target is None:
                self._copy(position, data)
            else:
                target[position : position + len(data)] = data
            position += len(data)
        self.wrote_position = end

    def _copy(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Copies bytes into the file, from their beginning to their end.

        The C library may store the first bytes of a copy last, so a kill in between, most likely
        where a page has to be fetched, would leave a hole before whole records. So bytes of one
        page are all there before those of the next. Long data is written to the file, which has
        that order too, but releases the GIL: several microseconds where another thread waits.
        """
        end = start + len(data)
        if len(data) >= LONG_SIZE:
            self._mapping.write(data, start)
            return
        border = (start | _IN_PAGE) + 1
        if end > border:  # once at most: the data is shorter than a page
            self.buffer[start:border] = data[: border - start]
            data = data[border - start :]
            start = border
        self.buffer[start:end] = data

    def erase(self, start: int, end: int) -> None:
        """Writes zeros over what an earlier life of the file left behind its end.

        Holes stay holes: they are zeros already, and the disk may have no block for them.
        """
        step = 1 << 20
        zeros = bytes(step)
        while start < end:
            data = self.next_data(start)
            if data is None or data >= end:
                return
            start = max(start, data)
            stop = min(end, max(self.data_end(start), start + 1))
            while start < stop:
                count = min(step, stop - start)
                self.buffer[start : start + count] = zeros[:count]
                start += count

    def overwrite(self, position: int, data: bytes) -> None:
        """Writes over what the file holds, also where it has a hole.

        Raises:
            OSError: the disk is full or failed.
        """
        self._mapping.write(data, position)

    def rewrite(self, start: int, end: int) -> None:
        """Writes [start, end) over with what it holds, so that a sync writes it, or fails.

        For pages that a failed sync left behind, see `oberth.store.sync_guard`. Holes stay holes.

        Raises:
            OSError: the disk is full or failed.
        """
        for at in range(start, end, _REWRITE_STEP):
            data = self.read(at, min(_REWRITE_STEP, end - at))
            if data.count(0) < len(data):
                self.overwrite(at, data)

    def fill(self) -> None:
        """Marks the rest of the file as used; its bytes stay as they are."""
        self.wrote_position = self.file_size

    # Reading

    def select(self, position: int, size: int | None = None) -> memoryview | None:
        """A slice: ``size`` bytes, or all that can be read. None where that is out of range."""
        limit = self.read_position
        if size is None:
            return self.buffer[position:limit] if 0 <= position < limit else None
        if position < 0 or position + size > limit:
            return None
        return self.buffer[position : position + size]

    def next_data(self, position: int) -> int | None:
        """See Mapping.next_data."""
        return self._mapping.next_data(position)

    def data_end(self, position: int) -> int:
        """See Mapping.data_end."""
        return self._mapping.data_end(position)

    def read_ahead(self, position: int, end: int) -> None:
        """See Mapping.read_ahead."""
        self._mapping.read_ahead(position, end)

    def read(self, position: int, size: int) -> bytes:
        """See Mapping.read."""
        return self._mapping.read(position, size)

    def is_resident(self, position: int, end: int) -> bool:
        """See Mapping.is_resident."""
        return self._mapping.is_resident(position, end)

    def bring_in(self, position: int, end: int) -> None:
        """Reads [position, end) into the page cache, and has what follows read.

        Does not hold the GIL while it waits: so other threads find there what they would wait for.
        """
        if not self.hold():
            return
        try:
            end = min(end, self.file_size)
            self.read_ahead(end, min(end + READ_AHEAD_SIZE, self.file_size))
            for start in range(position, end, BRING_IN_STEP):
                self._mapping.read(start, min(BRING_IN_STEP, end - start))
        finally:
            self.release()

    def find(self, needle: bytes, start: int, end: int) -> int:
        """See Mapping.find."""
        return self._mapping.find(needle, start, end)

    def advise(self, advice: int, start: int = 0) -> None:
        """See Mapping.advise."""
        self._mapping.advise(advice, start)

    # Commit and flush

    def is_able_to_commit(self, least_pages: int) -> bool:
        """Whether enough waits in the write buffer. RocketMQ: isAbleToCommit."""
        return self._is_able(least_pages, self.wrote_position, self.committed_position)

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether enough waits to be synced. RocketMQ: isAbleToFlush."""
        return self._is_able(least_pages, self.read_position, self.flushed_position)

    def _is_able(self, least_pages: int, ahead: int, behind: int) -> bool:
        if ahead == self.file_size:
            return ahead > behind
        if least_pages > 0:
            return ahead // OS_PAGE_SIZE - behind // OS_PAGE_SIZE >= least_pages
        return ahead > behind

    def commit(self, least_pages: int) -> int:
        """Moves appended bytes from the write buffer into the file; returns committed_position.

        Raises:
            StoreFullError: the disk has no room; what was not moved stays in the buffer.
        """
        source = self.write_buffer
        if source is None:
            self.committed_position = self.wrote_position
            return self.committed_position
        if self.is_able_to_commit(least_pages):
            with self._flush_lock:
                start, end = self.committed_position, self.wrote_position
                if end > self._allocated_position:
                    self._allocated_position = allocate_ahead(
                        self._mapping, max(self._allocated_position, start), end
                    )
                self._copy(start, memoryview(source)[start:end])
                self.committed_position = end
                if end == self.file_size and self._transient_pool is not None:
                    self.write_buffer = None
                    self._transient_pool.give_back(source)
        return self.committed_position

    def flush(self, least_pages: int) -> int:
        """Syncs what can be read; returns flushed_position.

        Raises:
            OSError: the disk failed, or did so in an earlier flush: then only `renew` helps.
        """
        if self.is_able_to_flush(least_pages):
            if self.hold():
                try:
                    with self._flush_lock:
                        position = self.read_position
                        if position > self.flushed_position:
                            if self._sync_failed:
                                raise OSError(errno.EIO, "an earlier sync failed", self.path)
                            try:
                                self._mapping.sync()
                            except OSError:
                                self._sync_failed = True  # see oberth.store.sync_guard
                                raise
                            self.flushed_position = position
                finally:
                    self.release()
            else:
                self.flushed_position = self.read_position
        return self.flushed_position

    def renew(self) -> None:
        """Makes durable what flushes could not that have failed; nothing if none has.

        Raises:
            OSError: the disk is full or fails. It may be tried again.
        """
        if not self._sync_failed or not self.hold():
            return
        try:
            with self._flush_lock:
                position = self.read_position
                self.rewrite(self.flushed_position, position)
                self._mapping.sync()
                self._sync_failed = False
                self.flushed_position = position
        finally:
            self.release()

    def sync(self) -> None:
        """Syncs all of it, also what a process wrote that was killed before it synced."""
        self._mapping.sync()

    def warm(self, sync_each_pages: int = 0) -> None:
        """Touches every page that holds no data yet, so that puts find them mapped.

        Runs before the file is used. ``sync_each_pages`` > 0 syncs as it goes (SYNC_FLUSH).
        """
        self._allocated_position = allocate_ahead(self._mapping, 0, self.file_size)
        for number, position in enumerate(range(0, self.file_size, OS_PAGE_SIZE), 1):
            self.buffer[position] = 0
            if sync_each_pages and number % sync_each_pages == 0:
                self._mapping.sync()
        if sync_each_pages:
            self._mapping.sync()

    # Life and death

    def hold(self) -> bool:
        """Takes a reference; False if the file is being destroyed."""
        with self._reference_lock:
            if self._available and self._reference_count > 0:
                self._reference_count += 1
                return True
            return False

    def release(self) -> None:
        """Gives a reference back; the last one unmaps the file."""
        with self._reference_lock:
            self._reference_count -= 1
            last = self._reference_count == 0
        if last:
            self._clean_up()

    @property
    def is_available(self) -> bool:
        """Whether it may still be read; False once its destruction has begun."""
        return self._available

    @property
    def is_cleaned_up(self) -> bool:
        """Whether nobody holds it any more and it is unmapped."""
        return self._reference_count <= 0

    def shutdown(self, interval_forcibly_ms: int) -> None:
        """Ends availability; held files are taken away after the interval of repeated calls."""
        with self._reference_lock:
            first = self._available
            self._available = False
        if first:
            self._first_shutdown = time.monotonic()
            self.release()
        elif self._reference_count > 0:
            waited_ms = (time.monotonic() - self._first_shutdown) * 1000
            if waited_ms >= interval_forcibly_ms:
                with self._reference_lock:
                    self._reference_count = -1000 - self._reference_count
                self._clean_up()

    def destroy(self, interval_forcibly_ms: int) -> bool:
        """Unmaps and deletes the file; False if somebody still holds it (call again later)."""
        self.shutdown(interval_forcibly_ms)
        if not self.is_cleaned_up:
            return False
        self.files.remove(self.path)
        return True

    def close(self) -> None:
        """Unmaps without deleting."""
        with self._reference_lock:
            self._available = False
            self._reference_count = 0
        self._clean_up()

    def _clean_up(self) -> None:
        if self.write_buffer is not None and self._transient_pool is not None:
            self._transient_pool.give_back(self.write_buffer)
            self.write_buffer = None
        self.buffer = memoryview(b"")
        self._mapping.close()

    def modified_time_ms(self) -> int:
        """When the file was last changed, ms since the epoch."""
        return int(self.files.modified_time(self.path) * 1000)


class TransientStorePool:
    """Write buffers of one segment's size that puts go into before the file sees them.

    What lies in a buffer is lost when the process dies, and no reader sees it before it is
    committed. RocketMQ: TransientStorePool (which also locks the buffers into memory).
    """

    def __init__(self, pool_size: int, file_size: int) -> None:
        self.file_size = file_size
        self._lock = threading.Lock()  # guards _free
        self._free: list[bytearray | None] = [None] * pool_size

    def borrow(self) -> bytearray | None:
        """A buffer, or None when all are in use (the segment is then written directly)."""
        with self._lock:
            if not self._free:
                return None
            buffer = self._free.pop()
        return bytearray(self.file_size) if buffer is None else buffer

    def give_back(self, buffer: bytearray) -> None:
        """Returns a buffer to the pool."""
        with self._lock:
            self._free.append(buffer)
