"""Plain sends, many at once: frames of SEND_MESSAGE_V2 in, records and answers out.

Two steps, so that a log can take its lock and make room between them: `PlainSends.read` finds the
plain sends that chunks begin with, `PlainSends.write` puts their records at the end of a log and
renders the answers.

What is plain is a part of what the general way serves (``broker.processors.send``,
``store.commit_log``, ``remoting.rendered``). That way is the reference of these kernels: both store
and answer the same bytes. What is not plain goes the general way, and everything does where the
extension is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.columns import TopicTable
from oberth.kernels.memory import Buffer, address, pieces, uninitialised

ROW_MAX: Final = 2048
"""Sends of one step; what more there are goes the general way."""

TEXT_MAX: Final = 512 * 1024
"""Bytes of their properties."""

QUEUES_MAX: Final = 4096
"""Queues of a topic that is served here."""

SLOTS_MAX: Final = 1 << 20
"""Queues of all of them; beyond it the table begins anew."""

HOSTS_SIZE: Final = 16
"""Bytes of a client's host and the broker's, as a record has them."""

RECORDS_KEPT_MAX: Final = 4 << 20
"""Bytes of records for which memory is kept from one step to the next."""

_T = TypeVar("_T")


class Slot(NamedTuple, Generic[_T]):
    """A queue that got messages.

    Attributes:
        owner: what the topic was added with.
        topic: of the queue.
        queue_id: of the queue.
        messages: how many.
        place: where `PlainSends.slots` has its numbers.
    """

    owner: _T
    topic: str
    queue_id: int
    messages: int
    place: int


class PlainSends(Generic[_T]):
    """Keeps the kernels' memory and the topics that are known. One thread at a time.

    Args:
        frame_max: bytes of a frame.
        body_max: bytes of a body.
        record_max: bytes of a record.
        refused_flags: bits of the system flag that are not plain.
        names: properties that are not plain.
        added: properties that the broker adds, as stored.
        pieces: the fixed texts of an answer, see ``SendResponses.pieces``.
        magic: of a record.
    """

    def __init__(
        self,
        *,
        frame_max: int,
        body_max: int,
        record_max: int,
        refused_flags: int,
        names: Iterable[str],
        added: bytes,
        pieces: Sequence[bytes],
        magic: int,
    ) -> None:
        assert len(pieces) == at.SEND_PIECES, f"{len(pieces)} pieces of an answer"
        self._pieces_size = sum(map(len, pieces))
        self._rows = bytearray(ROW_MAX * at.SEND_FIELDS * 8)
        self._text = bytearray(TEXT_MAX)
        self._touched = array("q", bytes(ROW_MAX * 8))
        self._answers = bytearray()
        self._records = bytearray()
        self._kept: list[Any] = []
        by_length: list[list[bytes]] = [[] for _ in range(at.SEND_NAME_MAX + 1)]
        for name in sorted(names):
            by_length[len(name)].append(name.encode())
        starts = array("q", [0])
        for each in by_length:
            starts.append(starts[-1] + sum(map(len, each)))
        blob = b"".join(b"".join(each) for each in by_length)
        self._read = read = array("q", bytes(at.SENDS_ARGUMENTS * 8))
        read[at.SENDS_ROWS] = self._keep(self._rows)
        read[at.SENDS_ROW_MAX] = ROW_MAX
        read[at.SENDS_TEXT] = self._keep(self._text)
        read[at.SENDS_TEXT_MAX] = TEXT_MAX
        read[at.SENDS_FRAME_MAX] = frame_max
        read[at.SENDS_BODY_MAX] = body_max
        read[at.SENDS_RECORD_MAX] = record_max
        read[at.SENDS_ADDED_SIZE] = len(added)
        read[at.SENDS_FLAGS_REFUSED] = refused_flags
        read[at.SENDS_NAMES] = self._keep(blob)
        read[at.SENDS_NAMES_STARTS] = self._keep(starts)
        read[at.SENDS_TOUCHED] = self._keep(self._touched)
        self._write = write = array("q", bytes(at.STORE_ARGUMENTS * 8))
        write[at.STORE_ROWS] = read[at.SENDS_ROWS]
        write[at.STORE_MAGIC] = magic
        write[at.STORE_ADDED] = self._keep(added)
        write[at.STORE_ADDED_SIZE] = len(added)
        fields = array("q")
        for piece in pieces:
            fields += array("q", (self._keep(piece), len(piece)))
        write[at.STORE_PIECES] = self._keep(fields)
        self._chunks = array("q")
        self.forget()

    def _keep(self, buffer: Buffer) -> int:
        self._kept.append(buffer)
        return address(buffer)

    # Topics

    def forget(self) -> None:
        """No topic is known any more."""
        self._topics = TopicTable()
        self._queues = array("q")
        self._slots_from = array("q")
        self.slots = array("q")
        """Numbers of each queue, see ``TALLY_…`` in `arguments`; for `write`."""
        self._owners: list[tuple[_T, str, int]] = []
        self._is_changed = True

    def add(self, topic: str, queue_nums: int, owner: _T) -> bool:
        """Serve a topic from here on; whether that can be.

        Args:
            topic: its name, not known yet.
            queue_nums: queue ids 0 to below this take messages.
            owner: what `Slot.owner` is for it.
        """
        if not topic.isascii() or len(topic) > 127 or not 0 < queue_nums <= QUEUES_MAX:
            return False
        if len(self._owners) + queue_nums > SLOTS_MAX:
            self.forget()
        if self._topics.find(topic.encode()) is not None:
            return False
        self._topics.intern(topic.encode())
        self._queues.append(queue_nums)
        self._slots_from.append(len(self._owners))
        self._owners += [(owner, topic, queue_id) for queue_id in range(queue_nums)]
        self.slots.extend([0] * (queue_nums * at.TALLY_FIELDS))
        self._is_changed = True
        return True

    def _ready(self) -> None:
        read = self._read
        self._topics.lend(read, at.SENDS_TOPICS)
        read[at.SENDS_QUEUES] = address(self._queues)
        read[at.SENDS_SLOTS_FROM] = address(self._slots_from)
        read[at.SENDS_SLOTS] = self._write[at.STORE_SLOTS] = address(self.slots)
        self._is_changed = False

    # Sends

    def read(
        self,
        chunks: Iterable[bytes | bytearray],
        hosts: Iterable[int],
        *,
        waits: bool = False,
    ) -> bool:
        """Finds the plain sends that chunks begin with; whether there is any.

        `size`, `touched` and `used` tell of them; then `write` stores them, or `drop` gives up.

        Args:
            chunks: what each connection brought, from the beginning of a frame on.
            hosts: of each the address of HOSTS_SIZE bytes, which the caller keeps; 0 where none of
                its sends is plain.
            waits: a message whose sender does not wait for the disk is not plain.
        """
        kernel = runtime.native("send_rows")
        if kernel is None or not self._owners:
            return False
        if self._is_changed:
            self._ready()
        numbers: list[int] = []
        where = runtime.extension().address
        for data, host in zip(chunks, hosts, strict=True):
            numbers += (where(data), len(data) if host else 0, host, 0, 0, 0)
        self._chunks = array("q", numbers)
        read = self._read
        read[at.SENDS_CHUNKS] = address(self._chunks)
        read[at.SENDS_CHUNK_COUNT] = len(numbers) // at.CHUNK_FIELDS
        read[at.SENDS_WAITS] = waits
        return kernel(read) > 0

    @property
    def count(self) -> int:
        """Sends that were read."""
        return self._read[at.SENDS_ROW_COUNT]

    @property
    def size(self) -> int:
        """Bytes of their records."""
        return self._read[at.SENDS_BYTES]

    def touched(self) -> list[Slot[_T]]:
        """The queues that they go to."""
        owners, slots = self._owners, self.slots
        found = []
        for slot in self._touched[: self._read[at.SENDS_TOUCHED_COUNT]]:
            place = slot * at.TALLY_FIELDS
            found.append(Slot(*owners[slot], slots[place], place))
        return found

    def used(self) -> list[int]:
        """By chunk: up to where it is plain sends."""
        return self._chunks[at.CHUNK_USED :: at.CHUNK_FIELDS].tolist()

    def drop(self) -> None:
        """Forgets what was read; each `read` that found something ends with this."""
        slots = self.slots
        for slot in self._touched[: self._read[at.SENDS_TOUCHED_COUNT]]:
            slots[slot * at.TALLY_FIELDS] = 0

    def write(self, log: Buffer, position: int, log_offset: int, store_timestamp: int) -> None:
        """Writes the records that were read, and their answers.

        The next queue offset of each touched slot must stand in `slots`; it goes forward.

        Args:
            log: where they go; there is room for ``size`` bytes.
            position: in it.
            log_offset: what the first record says of its place.
            store_timestamp: ms.
        """
        kernel = runtime.native("send_records")
        assert kernel is not None, "read() found something, so the kernels are there"
        needed = (
            self.count * (self._pieces_size + at.SEND_ANSWER_SPARE) + self._read[at.SENDS_TEXT_USED]
        )
        if len(self._answers) < needed:
            self._answers = bytearray(2 * needed)
        write, read = self._write, self._read
        write[at.STORE_CHUNKS] = read[at.SENDS_CHUNKS]
        write[at.STORE_CHUNK_COUNT] = read[at.SENDS_CHUNK_COUNT]
        write[at.STORE_OUT] = address(log) + position
        write[at.STORE_LOG_OFFSET] = log_offset
        write[at.STORE_TIMESTAMP] = store_timestamp
        write[at.STORE_ANSWERS] = address(self._answers)
        kernel(write)

    def write_long(
        self, append: Callable[[memoryview], None], log_offset: int, store_timestamp: int
    ) -> None:
        """As `write`, for a log that is not written through its mapping.

        Args:
            append: gets the records, valid until it returns.
            log_offset: what the first record says of its place.
            store_timestamp: ms.
        """
        size = self.size
        memory = self._records
        if len(memory) < size:
            memory = uninitialised(size)
            if size <= RECORDS_KEPT_MAX:
                self._records = memory
        self.write(memory, 0, log_offset, store_timestamp)
        append(memoryview(memory)[:size])

    def answers(self) -> list[bytes]:
        """By chunk: the frames that answer its sends; empty where nobody wants one."""
        return pieces(self._answers, self._chunks[at.CHUNK_ANSWERS :: at.CHUNK_FIELDS])
