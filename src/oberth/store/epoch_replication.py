"""What master and slave say on the HA port under a controller, without a socket.

Slave to master, first the handshake, then reports:

    offset  size  field           type   note
         0     4  state           int32  1, handshake
         4     2  from_last_file  int16  1: an empty slave wants the newest segment only
         6     2  is_learner      int16  1: it never counts as in sync
         8     8  broker_id       int64  of the slave

         0     4  state           int32  2, transfer
         4     8  max_offset      int64  the slave's CommitLog reaches up to here

Master to slave, first the answer, then frames:

    offset  size  field           type   note
         0     4  state           int32  1, handshake
         4     4  body_size       int32  12 for each epoch
         8     8  max_offset      int64  end of the master's CommitLog
        16     4  last_epoch      int32  of the master
        20     …  epochs                 epoch int32, start offset int64

         0     4  state           int32  2, transfer
         4     4  body_size       int32  bytes of the log that follow; 0 is a heartbeat
         8     8  offset          int64  of the first byte that follows
        16     4  epoch           int32  of the master that wrote these bytes
        20     8  epoch_start     int64  CommitLog offset at which it began
        28     8  confirm_offset  int64  every replica in sync has the log up to here
        36     …  body

A frame never crosses a segment or an epoch's end. RocketMQ: AutoSwitchHAConnection,
AutoSwitchHAClient.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from oberth.errors import ConfigFormatError, RemoteProtocolError
from oberth.formats.epochs import EPOCHS_MAX, Epoch, EpochTable
from oberth.store.commit_log import CommitLog
from oberth.store.replication import FRAME_SIZE_MAX, OFFSET_MAX, FrameReceiver, LogPiece, LogSender

HANDSHAKE: Final = 1
TRANSFER: Final = 2

SLAVE_HANDSHAKE: Final = struct.Struct(
    ">"
    "i"  # state
    "h"  # from_last_file
    "h"  # is_learner
    "q"  # broker_id
)
SLAVE_REPORT: Final = struct.Struct(
    ">"
    "i"  # state
    "q"  # max_offset
)
MASTER_HANDSHAKE: Final = struct.Struct(
    ">"
    "i"  # state
    "i"  # body_size
    "q"  # max_offset
    "i"  # last_epoch
)
EPOCH: Final = struct.Struct(
    ">"
    "i"  # epoch
    "q"  # start offset
)
MASTER_FRAME: Final = struct.Struct(
    ">"
    "i"  # state
    "i"  # body_size
    "q"  # offset
    "i"  # epoch
    "q"  # epoch_start
    "q"  # confirm_offset
)
_HEAD: Final = struct.Struct(">ii")
assert SLAVE_HANDSHAKE.size == 16
assert SLAVE_REPORT.size == 12
assert MASTER_HANDSHAKE.size == 20
assert EPOCH.size == 12
assert MASTER_FRAME.size == 36


class SlaveHello(NamedTuple):
    """A slave's handshake."""

    broker_id: int
    from_last_file: bool
    is_learner: bool

    def encode(self) -> bytes:
        """Its bytes."""
        return SLAVE_HANDSHAKE.pack(HANDSHAKE, self.from_last_file, self.is_learner, self.broker_id)


class MasterHello(NamedTuple):
    """A master's answer to a handshake."""

    max_offset: int
    epochs: EpochTable

    def encode(self) -> bytes:
        """Its bytes."""
        entries = self.epochs.entries[-EPOCHS_MAX:]
        last = entries[-1].number if entries else -1
        head = MASTER_HANDSHAKE.pack(HANDSHAKE, EPOCH.size * len(entries), self.max_offset, last)
        return head + b"".join(EPOCH.pack(*each) for each in entries)


class EpochPiece(NamedTuple):
    """Bytes of a master's log, none for a heartbeat; and which master wrote them.

    Valid as long as those of a LogPiece.
    """

    commit_log_offset: int
    data: bytes | memoryview
    epoch: Epoch
    confirm_offset: int


class SlaveReceiver:
    """Takes a slave's handshakes and reports out of its byte stream.

    Args:
        on_hello: called with the last handshake of what came, before its reports are looked at. One
            of 16 bytes is answered with up to 12 KB.
    """

    __slots__ = ("_buffer", "_greeted", "_on_hello")

    def __init__(self, on_hello: Callable[[SlaveHello], None]) -> None:
        self._buffer = bytearray()
        self._greeted = False
        self._on_hello = on_hello

    def receive_data(self, data: bytes | memoryview) -> int | None:
        """The newest complete report, or None.

        Raises:
            RemoteProtocolError: a report before the handshake, a state, an id or an offset out of
                range.
        """
        buffer = self._buffer
        buffer += data
        position, newest = 0, None
        hello: SlaveHello | None = None
        while len(buffer) - position >= SLAVE_REPORT.size:
            state = int.from_bytes(buffer[position : position + 4], "big", signed=True)
            if state == HANDSHAKE:
                if len(buffer) - position < SLAVE_HANDSHAKE.size:
                    break
                _, last_file, learner, broker_id = SLAVE_HANDSHAKE.unpack_from(buffer, position)
                if broker_id < 1:
                    raise RemoteProtocolError(
                        f"replica: it says that it is broker {broker_id}, allowed is 1 or more"
                    )
                position += SLAVE_HANDSHAKE.size
                self._greeted = True
                newest = None
                hello = SlaveHello(broker_id, bool(last_file), bool(learner))
            elif state == TRANSFER and self._greeted:
                newest = SLAVE_REPORT.unpack_from(buffer, position)[1]
                position += SLAVE_REPORT.size
                if newest < 0:
                    raise RemoteProtocolError(
                        f"replica: reported offset {newest}, allowed is 0 or more"
                    )
            else:
                wanted = "1 or 2" if self._greeted else "1, a handshake"
                raise RemoteProtocolError(
                    f"replica: it sends state {state}, allowed is {wanted}; a slave without a "
                    "controller cannot follow a master under one"
                )
        del buffer[:position]
        if hello is not None:
            self._on_hello(hello)
        return newest


class MasterReceiver(FrameReceiver):
    """Takes the answer to the handshake and frames out of a master's byte stream."""

    __slots__ = ("_greeted",)

    head_size = _HEAD.size

    def __init__(self) -> None:
        super().__init__()
        self._greeted = False

    def size_at(self, buffer: bytearray | memoryview, position: int) -> int:
        """See FrameReceiver."""
        state, size = _HEAD.unpack_from(buffer, position)
        is_hello = state == HANDSHAKE
        size_max = EPOCH.size * EPOCHS_MAX if is_hello else FRAME_SIZE_MAX
        if state not in (HANDSHAKE, TRANSFER) or not 0 <= size <= size_max:
            raise RemoteProtocolError(
                f"replication: the master sends state {state} with {size} bytes, allowed are "
                f"state 1 or 2 and 0 to {size_max}; is it under a controller?"
            )
        return (MASTER_HANDSHAKE if is_hello else MASTER_FRAME).size + int(size)

    def receive_data(self, data: bytes | memoryview) -> list[MasterHello | EpochPiece]:
        """What is complete so far, in order; see `unread`.

        Raises:
            RemoteProtocolError: a state, a size or an offset out of range, epochs that do not grow,
                another answer, or the log before the answer.
        """
        found: list[MasterHello | EpochPiece] = []
        for frame in self.frames(data):
            if _HEAD.unpack_from(frame)[0] == HANDSHAKE:
                if self._greeted:
                    raise RemoteProtocolError("replication: the master answers a handshake twice")
                self._greeted = True
                max_offset = MASTER_HANDSHAKE.unpack_from(frame)[2]
                if not 0 <= max_offset <= OFFSET_MAX:
                    raise RemoteProtocolError(
                        f"replication: the master's log ends at {max_offset}, "
                        f"allowed are 0 to {OFFSET_MAX}"
                    )
                found.append(MasterHello(max_offset, _epochs(frame[MASTER_HANDSHAKE.size :])))
                continue
            if not self._greeted:
                raise RemoteProtocolError("the master sends its log before its epochs")
            _, size, offset, number, epoch_start, confirm = MASTER_FRAME.unpack_from(frame)
            if not 0 <= offset <= OFFSET_MAX:
                raise RemoteProtocolError(
                    f"replication: {size} bytes at offset {offset}, allowed are 0 to {OFFSET_MAX}"
                )
            body = frame[MASTER_FRAME.size :]
            found.append(EpochPiece(offset, body, Epoch(number, epoch_start), confirm))
        return found


class EpochStream:
    """Takes pieces of the log out of a master's byte stream, see LogStream.

    Args:
        take: what makes them out of what came at once.
    """

    def __init__(
        self, take: Callable[[Iterable[MasterHello | EpochPiece]], Iterable[LogPiece]]
    ) -> None:
        self._receiver = MasterReceiver()
        self._take = take

    @property
    def unread(self) -> memoryview:
        """See FrameReceiver."""
        return self._receiver.unread

    def receive_data(self, data: bytes | memoryview) -> Iterable[LogPiece]:
        """See LogStream."""
        return self._take(self._receiver.receive_data(data))


def _epochs(data: memoryview) -> EpochTable:
    table = EpochTable()
    if len(data) % EPOCH.size:
        raise RemoteProtocolError(
            f"replication: {len(data)} bytes of epochs, allowed are multiples of {EPOCH.size}"
        )
    try:
        for number, start in EPOCH.iter_unpack(data):
            table.append(Epoch(number, start))
    except ConfigFormatError as error:
        raise RemoteProtocolError(f"replication: the master's {error}") from None
    return table


class EpochLogSender(LogSender):
    """What one slave is sent under a controller.

    Args:
        log: the master's.
        batch_size: bytes of one frame at most.
        from_last_file: see LogSender; the slave's handshake may ask for it, too.
        epochs: of the log.
        confirm_offset: up to where every replica in sync has it.
    """

    __slots__ = ("_confirm_offset", "_epochs", "_told")

    def __init__(
        self,
        log: CommitLog,
        batch_size: int,
        *,
        from_last_file: bool,
        epochs: EpochTable,
        confirm_offset: Callable[[], int],
    ) -> None:
        super().__init__(log, batch_size, from_last_file=from_last_file)
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._told = -1

    @property
    def has_news(self) -> bool:
        """Whether more is confirmed than the slave was told: it shows its readers no more."""
        return self._confirm_offset() != self._told

    def greeted(self, *, from_last_file: bool) -> None:
        """A handshake has come: the next report says where to start."""
        self._from_last_file = self._from_last_file or from_last_file
        self._reported = 0
        self.next_offset = -1

    def next_frame(self) -> tuple[bytes, memoryview] | None:
        """Header and bytes of the next frame, or None while the slave has everything."""
        start = self.next_offset
        found = super().next_frame()
        if found is None:
            return None
        data = found[1]
        epoch, end = self._epoch_at(start)
        if end is not None and start + len(data) > end:
            data = data[: end - start]
            self.next_offset = end
        return self._head(start, len(data), epoch), data

    def heartbeat(self) -> bytes:
        """A frame without data."""
        at = max(self.next_offset, 0)
        return self._head(at, 0, self._epoch_at(at)[0])

    def _epoch_at(self, offset: int) -> tuple[Epoch, int | None]:
        found = self._epochs.at(offset)
        if found is None:
            raise RemoteProtocolError(f"replica: nobody knows which epoch wrote offset {offset}")
        return found

    def _head(self, offset: int, size: int, epoch: Epoch) -> bytes:
        self._told = self._confirm_offset()
        return MASTER_FRAME.pack(TRANSFER, size, offset, *epoch, self._told)
