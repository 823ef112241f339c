"""ConsumeQueueExt: what does not fit into a queue's 20 bytes, one unit of any size per message.

A byte stream of units in files that end in -1; a unit never crosses files. The queue's unit holds
the address. Derived data, rebuilt with the queue. RocketMQ: ConsumeQueueExt.
"""

from __future__ import annotations

from oberth.errors import FormatError
from oberth.formats.consume_queue_ext import (
    END_BLANK,
    UNIT_SIZE_MAX,
    UNIT_SIZE_MIN,
    ConsumeQueueExtUnit,
    decode_ext_unit,
    encode_ext_unit,
    ext_address,
    ext_offset,
    fits,
)
from oberth.store.tail_stream import FilePool, TailStream


class ConsumeQueueExt:
    """The ext units of one queue. Puts come from the queue's thread; reads from any."""

    __slots__ = ("stream",)

    def __init__(self, pool: FilePool, directory: str, file_size: int) -> None:
        self.stream = TailStream(pool, directory, file_size)

    def put(self, unit: ConsumeQueueExtUnit) -> int | None:
        """Appends a unit; its address, or None where no file is large enough for it.

        Raises:
            StoreFullError: the disk has no room; nothing has changed.
        """
        stream = self.stream
        file_size = stream.file_size
        try:
            data = encode_ext_unit(unit)
        except FormatError:
            return None  # the queue then holds the plain tags code, as RocketMQ does
        if not fits(file_size, 0, len(data)):
            return None
        position = stream.end
        at = position % file_size
        if at and not fits(file_size, at, len(data)):
            # What is behind the end mark of a fresh file is zero; the tail holds those zeros.
            data = END_BLANK + bytes(file_size - at - len(END_BLANK)) + data
            position += file_size - at
        stream.make_room()
        with stream.lock:
            stream.append_locked(data)
        return ext_address(position)

    def get(self, address: int) -> ConsumeQueueExtUnit | None:
        """The unit at an address; None where there is none. RocketMQ: get."""
        position = ext_offset(address)
        head = self.stream.read(position, UNIT_SIZE_MIN)
        if len(head) < UNIT_SIZE_MIN:
            return None
        size = int.from_bytes(head[:2], "big", signed=True)
        try:
            return decode_ext_unit(self.stream.read(position, min(size, UNIT_SIZE_MAX)))
        except FormatError:
            return None

    def load(self) -> str | None:
        """Finds the files, see TailStream.load."""
        return self.stream.load()

    def recover(self, last_address: int | None) -> None:
        """Finds where the units end: after the one that the queue's last address names.

        RocketMQ walks all units from the first file on, then truncates by that address; the result
        is the same.
        """
        stream = self.stream
        if stream.is_empty:
            return
        if last_address is None:
            end = stream.first_start
        else:
            end = ext_offset(last_address)
            unit = self.get(last_address)
            end += unit.size if unit is not None else 0
        if stream.pool.writable:
            stream.remove_files(start for start in stream.segment_starts() if start > end)
        stream.set_end(min(end, stream.files_end))

    def truncate_by_min(self, address: int) -> None:
        """Deletes files that end before an address."""
        stream = self.stream
        keep = ext_offset(address)
        while len(stream.segment_starts()) > 1 and stream.first_start + stream.file_size < keep:
            stream.remove_first()

    def reset(self) -> None:
        """Deletes all files."""
        self.stream.reset()

    def destroy(self) -> None:
        """Deletes the files and the directory."""
        self.stream.destroy()
