"""Replication of the CommitLog, without a socket: what master and slave say and when a put is safe.

Slave to master, whenever the slave has grown and at least every few seconds:

    offset  size  field       type   note
         0     8  max_offset  int64  the slave's CommitLog reaches up to here

Master to slave, again and again:

    offset  size  field              type   note
         0     8  commit_log_offset  int64  of the first byte that follows
         8     4  size               int32  bytes that follow; 0 is a heartbeat

A frame never crosses a segment; blanks and what lies after them travel along, so the files become
equal byte by byte. A slave that holds something takes only what joins on; an empty one takes any
start. RocketMQ: DefaultHAConnection, DefaultHAClient, GroupTransferService.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from oberth.errors import RemoteProtocolError
from oberth.store.commit_log import CommitLog
from oberth.store.messages import PutMessageStatus

FRAME_SIZE_MAX: Final = 4 << 20
"""Bytes of one piece that a slave takes: RocketMQ's read buffer."""

OFFSET_MAX: Final = 1 << 62
"""CommitLog offset up to which a slave takes anything: its end must be an int64, too."""

FRAMES_MAX: Final = 1024
"""Frames that a slave takes in one turn of its loop: some ms where each is one byte."""

REPORT: Final = struct.Struct(
    ">q"  # max_offset
)
FRAME: Final = struct.Struct(
    ">"
    "q"  # commit_log_offset
    "i"  # size
)
assert REPORT.size == 8
assert FRAME.size == 12

Done = Callable[[PutMessageStatus], None]


class LogPiece(NamedTuple):
    """Bytes of one segment of a master's log; none for a heartbeat.

    Valid as long as the bytes they came in, and until more are taken.
    """

    commit_log_offset: int
    parts: Sequence[bytes | memoryview]
    """The bytes, one behind the other."""
    size: int
    """Of all parts."""


class ReportReceiver:
    """Takes a slave's reports out of its byte stream."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes | memoryview) -> int | None:
        """The newest complete report, or None.

        Raises:
            RemoteProtocolError: a negative offset, or one below the report before it: what is no
                report at all, such as a handshake of TLS, is not read as one by chance.
        """
        data = self._rest + data
        whole = len(data) // REPORT.size * REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        offsets: tuple[int, ...] = struct.unpack(f">{whole // REPORT.size}q", data[:whole])
        if min(offsets) < 0:
            raise RemoteProtocolError(
                f"replica: reported offset {min(offsets)}, allowed is 0 or more"
            )
        if list(offsets) != sorted(offsets):
            raise RemoteProtocolError(
                f"replica: it reports {offsets[-1]}, before that {max(offsets)}; "
                "a slave's log does not become shorter"
            )
        return offsets[-1]


class LogStream(Protocol):
    """What a slave takes its master's bytes with."""

    @property
    def unread(self) -> memoryview:
        """See FrameReceiver."""

    def receive_data(self, data: bytes | memoryview) -> Iterable[LogPiece]:
        """The complete pieces so far, in order.

        Raises:
            RemoteProtocolError: what no master sends.
        """


class FrameReceiver(ABC):
    """Cuts a master's byte stream into frames; those that came whole are not copied.

    Subclasses say how long a frame is. Frames without bytes cost as much as others, and Apache's
    master with ``haFlowControlEnable`` sends them in a loop: after FRAMES_MAX of them the loop of
    who reads is to turn, see `unread`.
    """

    __slots__ = ("_rest", "unread")

    head_size = FRAME.size
    """Bytes of a frame from which its size is known."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.unread = memoryview(b"")
        """What of the bytes that came last is still to be given; empty unless they held more than
        FRAMES_MAX frames."""

    @abstractmethod
    def size_at(self, buffer: bytearray | memoryview, position: int) -> int:
        """Bytes of the frame whose head lies at a position, the head included.

        Raises:
            RemoteProtocolError: a value is out of range.
        """

    def frames(self, data: bytes | memoryview) -> list[memoryview]:
        """The complete frames so far, in order. Valid as long as the data, and until the next call.

        Raises:
            RemoteProtocolError: see `size_at`.
        """
        found: list[memoryview] = []
        view = memoryview(data)
        position = self._end_begun(view, found)
        head_size, size_at, length = self.head_size, self.size_at, len(view)
        while length - position >= head_size and len(found) < FRAMES_MAX:
            end = position + size_at(view, position)
            if end > length:
                break
            found.append(view[position:end])
            position = end
        if len(found) == FRAMES_MAX:
            self.unread = view[position:]
        else:
            self.unread = view[:0]
            self._rest += view[position:]
        return found

    def _end_begun(self, view: memoryview, found: list[memoryview]) -> int:
        """Goes on with a frame that has begun; how many of these bytes belong to it."""
        rest = self._rest
        if not rest:
            return 0
        position = max(self.head_size - len(rest), 0)
        rest += view[:position]
        if len(rest) < self.head_size:
            return len(view)
        more = self.size_at(rest, 0) - len(rest)
        rest += view[position : position + more]
        if position + more > len(view):
            return len(view)
        # Handed out as it is, without a copy: the next one begins in another array.
        self._rest = bytearray()
        found.append(memoryview(rest))
        return position + more


class LogReceiver(FrameReceiver):
    """Takes pieces of the log out of a master's byte stream.

    Args:
        segment_size: bytes of a segment of the log that they are appended to. Frames that follow
            each other in one segment become one piece; 0: each frame is one.
    """

    __slots__ = ("_segment_size",)

    def __init__(self, segment_size: int = 0) -> None:
        super().__init__()
        self._segment_size = segment_size

    def size_at(self, buffer: bytearray | memoryview, position: int) -> int:
        """See FrameReceiver."""
        offset, size = FRAME.unpack_from(buffer, position)
        if not 0 <= size <= FRAME_SIZE_MAX or not 0 <= offset <= OFFSET_MAX:
            raise RemoteProtocolError(
                f"replication: {size} bytes at offset {offset}, "
                f"allowed are 0 to {FRAME_SIZE_MAX} at 0 to {OFFSET_MAX}"
            )
        return FRAME.size + int(size)

    def receive_data(self, data: bytes | memoryview) -> list[LogPiece]:
        """The complete pieces so far, in order; see `unread`.

        Raises:
            RemoteProtocolError: a size or an offset out of range.
        """
        frames = [(FRAME.unpack_from(each)[0], each[FRAME.size :]) for each in self.frames(data)]
        return join_pieces(frames, self._segment_size)


def join_pieces(
    frames: Iterable[tuple[int, bytes | memoryview]], segment_size: int
) -> list[LogPiece]:
    """Makes one piece of frames that follow each other in one segment, without a copy.

    Args:
        frames: offset and bytes of each, in the order in which they came.
        segment_size: bytes of a segment; 0: each is a piece of its own.
    """
    pieces: list[LogPiece] = []
    parts: list[bytes | memoryview] = []
    begin = end = 0  # of the parts, in the log
    for offset, data in frames:
        is_next = segment_size and offset == end and (end == begin or offset % segment_size)
        if parts and not is_next:
            pieces.append(LogPiece(begin, parts, end - begin))
            parts = []
        if not parts:
            begin = end = offset
        parts.append(data)
        end += len(data)
    if parts:
        pieces.append(LogPiece(begin, parts, end - begin))
    return pieces


class LogSender:
    """What one slave is sent. Begins with the slave's first report.

    RocketMQ sends an empty slave the newest segment only; here it gets everything, unless
    ``syncFromLastFile`` asks for that.

    What is always true: reports never go back and never beyond what was sent here. RocketMQ 5.5
    believes any report, 4.9 refuses one beyond the log's end.
    """

    __slots__ = ("_batch_size", "_from_last_file", "_log", "_reported", "next_offset")

    def __init__(self, log: CommitLog, batch_size: int, *, from_last_file: bool) -> None:
        self._log = log
        self._batch_size = min(batch_size, FRAME_SIZE_MAX)
        self._from_last_file = from_last_file
        self._reported = 0
        self.next_offset = -1

    def on_report(self, reported: int) -> None:
        """Takes a report; the first says where to start.

        Raises:
            RemoteProtocolError: the slave is ahead of this log, before its beginning or its own
                last report, or says that it has what was not sent.
        """
        if self.next_offset < 0:
            self._begin(reported)
        elif reported < self._reported:
            raise RemoteProtocolError(
                f"replica: it reports {reported}, before that {self._reported}; "
                "a slave's log does not become shorter"
            )
        elif reported > self.next_offset:
            raise RemoteProtocolError(
                f"replica: it reports {reported}, sent to it were bytes up to {self.next_offset}; "
                "it cannot have more"
            )
        self._reported = reported

    def _begin(self, reported: int) -> None:
        log = self._log
        if reported == 0:
            size = log.queue.file_size
            self.next_offset = (
                log.max_offset - log.max_offset % size if self._from_last_file else log.min_offset
            )
            return
        if not log.min_offset <= reported <= log.max_offset:
            raise RemoteProtocolError(
                f"replica: it is at {reported}, this log goes from {log.min_offset} "
                f"to {log.max_offset}; the logs have parted or what is missing was deleted"
            )
        self.next_offset = reported

    def next_frame(self) -> tuple[bytes, memoryview] | None:
        """Header and bytes of the next frame, or None while the slave has everything.

        Raises:
            RemoteProtocolError: what the slave needs was deleted.
        """
        log = self._log
        if not 0 <= self.next_offset < log.max_offset:
            return None
        if self.next_offset < log.min_offset:
            raise RemoteProtocolError(
                f"replica: it needs {self.next_offset}, this log begins at {log.min_offset}; "
                "what is missing was deleted"
            )
        segment = log.queue.find(self.next_offset)
        if segment is None:
            return None
        position = self.next_offset - segment.start_offset
        data = segment.select(position)
        if data is None:
            return None
        data = data[: self._batch_size]
        header = FRAME.pack(self.next_offset, len(data))
        self.next_offset += len(data)
        return header, data

    @property
    def has_news(self) -> bool:
        """Whether a slave that has everything is to be told something sooner than usual."""
        return False

    def heartbeat(self) -> bytes:
        """A frame without data."""
        return FRAME.pack(max(self.next_offset, 0), 0)


class ReplicaTable:
    """How far each slave is, and who waits for how many of them.

    Owned by one thread (the broker's loop); time is an argument.
    """

    def __init__(self, gap_max: int) -> None:
        self._gap_max = gap_max
        self._acked: dict[Hashable, int] = {}
        self._numbers = itertools.count()
        # (end offset, number, replicas besides the master, deadline, what to call)
        self._waiting: list[tuple[int, int, int, float, Done]] = []

    def __len__(self) -> int:
        return len(self._acked)

    @property
    def acked(self) -> dict[Hashable, int]:
        """The offset of each connected slave."""
        return dict(self._acked)

    def in_sync_count(self, max_offset: int) -> int:
        """Replicas close enough to the end, the master included."""
        gap = self._gap_max
        return 1 + sum(1 for offset in self._acked.values() if max_offset - offset < gap)

    def on_report(self, replica: Hashable, offset: int) -> list[tuple[Done, PutMessageStatus]]:
        """A slave has reported; returns whom that satisfies."""
        self._acked[replica] = max(offset, self._acked.get(replica, 0))
        return self._satisfied(max(self._acked.values()))

    def on_close(self, replica: Hashable) -> None:
        """A slave is gone."""
        self._acked.pop(replica, None)

    def has(self, end_offset: int, replicas: int) -> bool:
        """Whether so many slaves reach an offset."""
        return sum(1 for offset in self._acked.values() if offset >= end_offset) >= replicas

    def wait(self, end_offset: int, replicas: int, deadline: float, done: Done) -> None:
        """Has ``done`` called once so many slaves reach an offset, or when time is up."""
        entry = (end_offset, next(self._numbers), replicas, deadline, done)
        heapq.heappush(self._waiting, entry)

    def _satisfied(self, highest: int | None) -> list[tuple[Done, PutMessageStatus]]:
        """Those whose offset enough slaves have; None: there is no slave to wait for."""
        ready: list[tuple[Done, PutMessageStatus]] = []
        later: list[tuple[int, int, int, float, Done]] = []
        while self._waiting and (highest is None or self._waiting[0][0] <= highest):
            entry = heapq.heappop(self._waiting)
            if self.has(entry[0], entry[2]):
                ready.append((entry[4], PutMessageStatus.PUT_OK))
            else:
                later.append(entry)
        for entry in later:
            heapq.heappush(self._waiting, entry)
        return ready

    def expire(self, now: float) -> list[tuple[Done, PutMessageStatus]]:
        """Those whose time is up: stored, but perhaps on this machine only."""
        if not any(entry[3] <= now for entry in self._waiting):
            return []
        late = [entry for entry in self._waiting if entry[3] <= now]
        self._waiting = [entry for entry in self._waiting if entry[3] > now]
        heapq.heapify(self._waiting)
        return [(entry[4], PutMessageStatus.FLUSH_SLAVE_TIMEOUT) for entry in late]
