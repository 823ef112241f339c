"""Whether two copies of a log are equal, and the first offset at which they are not.

Each copy is a `LogSide`: it says from where to where it goes, what its segments' checksums are if
it keeps any, and the CRCs of ranges of its bytes. Equal checksums of a segment settle it; all else
is compared by ranges, from 64 MiB down to the byte. A slave compares itself with its master in the
background (`LogComparison`), each byte once; `oberth cluster compare` compares any two sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from zlib import crc32

from oberth.errors import ConfigFormatError, NotFoundError, OberthError, RemotingError
from oberth.formats.log_checksums import LogChecksum
from oberth.remoting.aio.address import parse_address
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.replication import LogChecksumsRequestHeader
from oberth.store.epoch_replication import (
    SLAVE_REPORT,
    TRANSFER,
    EpochPiece,
    EpochStream,
    MasterHello,
    SlaveHello,
)
from oberth.store.log_checksums import RANGE_BYTES_MAX, RANGE_COUNT_MAX
from oberth.store.log_scan import Damage
from oberth.store.replication import REPORT, LogPiece, LogReceiver, LogStream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from oberth.broker.exporter_metrics import Sample
    from oberth.broker.ha_service import HAService
    from oberth.remoting.aio.client import RemotingClient
    from oberth.store.log_checksums import LogChecksums
    from oberth.store.message_store import MessageStore
    from oberth.store.offline.reader import StoreReader

_LOG: Final = logging.getLogger(__name__)

PERIOD_S: Final = 10.0
"""How often a slave compares what has come."""

STEPS: Final = (1 << 20, 4 << 10, 16, 1)
"""Sizes of ranges: each finds the one that the next looks into."""

REQUEST_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 10.0
REPORT_PERIOD_S: Final = 4.0
"""Masters close connections that say nothing for 20 s."""
READER_ID: Final = 2**31 - 1
"""The broker id of who only reads a log under a controller."""

assert all(high // low <= RANGE_COUNT_MAX for high, low in pairwise(STEPS))
assert RANGE_BYTES_MAX // STEPS[0] <= RANGE_COUNT_MAX


class NoChecksumsError(OberthError):
    """The broker knows no request for checksums: Apache's, or an older one of ours."""


class Extent(NamedTuple):
    """From where to where a log goes, and the checksums of its segments, by their start."""

    low: int
    high: int
    rows: dict[int, LogChecksum]


class LogSide(Protocol):
    """One copy of a log.

    Attributes:
        name: what to call it.
    """

    name: str

    async def extent(self) -> Extent:
        """What there is of it now."""

    async def crcs(self, start: int, end: int, step: int) -> list[int]:
        """See LogChecksums.ranges.

        Raises:
            OberthError, OSError: it cannot be read there.
        """


class OwnLog:
    """The log of a store that this process has open."""

    def __init__(self, checksums: LogChecksums, name: str = "here") -> None:
        self.name = name
        self._checksums = checksums

    @property
    def position(self) -> int:
        """Up to where it is summed up."""
        return self._checksums.position

    async def extent(self) -> Extent:
        """See LogSide."""
        return _extent(self._checksums.to_json())

    async def crcs(self, start: int, end: int, step: int) -> list[int]:
        """See LogSide."""
        try:
            return await asyncio.to_thread(self._checksums.ranges, start, end, step)
        except ValueError as error:
            raise NotFoundError(f"{self.name}: {error}") from error


class BrokerLog:
    """The log of a broker of ours.

    Args:
        name: what to call it.
        ask: sends request 29003 and gives the answer's body. NoChecksumsError if the broker does
            not know the request.
    """

    def __init__(
        self, name: str, ask: Callable[[LogChecksumsRequestHeader], Awaitable[bytes]]
    ) -> None:
        self.name = name
        self._ask = ask

    async def extent(self) -> Extent:
        """See LogSide."""
        body = await self._ask(LogChecksumsRequestHeader())
        try:
            return _extent(json.loads(body))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFormatError(f"{self.name}: no checksums: {error!r}") from error

    async def crcs(self, start: int, end: int, step: int) -> list[int]:
        """See LogSide."""
        body = await self._ask(LogChecksumsRequestHeader(start=start, end=end, step=step))
        try:
            found: list[int] = json.loads(body)["crcs"]
            if len(found) == -(-(end - start) // step):
                return found
        except (ValueError, TypeError, KeyError):
            pass
        raise ConfigFormatError(f"{self.name}: no checksums from {start} to {end}")


class StoreLog:
    """The log of a store directory, whether or not a broker has it open."""

    def __init__(self, reader: StoreReader) -> None:
        self.name = reader.layout.root
        self._log = reader.log

    async def extent(self) -> Extent:
        """See LogSide."""
        from oberth.store.offline.log_walk import find_end  # noqa: PLC0415 - few brokers are asked to compare

        log = self._log
        end = (await asyncio.to_thread(find_end, log)).offset if log.segments else 0
        return Extent(log.start, end, {})

    async def crcs(self, start: int, end: int, step: int) -> list[int]:
        """See LogSide."""
        return await asyncio.to_thread(self._crcs, start, end, step)

    def _crcs(self, start: int, end: int, step: int) -> list[int]:
        found = []
        for at in range(start, end, step):
            crc, stop = 0, min(at + step, end)
            while at < stop:
                index = self._log.index_of(at)
                if index is None:
                    raise NotFoundError(f"{self.name}: offset {at} is not there")
                count = min(stop, self._log.segments[index].end) - at
                piece = self._log.read(at, count)
                if piece is None:
                    raise NotFoundError(f"{self.name}: offset {at} was deleted meanwhile")
                crc = crc32(piece, crc)
                at += count
            found.append(crc)
        return found


class SentLog:
    """The log that any broker sends on its HA port, Apache's too: for reading, not as a slave.

    It reports the offset that it starts from and nothing else, so no message counts as replicated
    because of it. Apache sends an empty slave the newest segment only, and so 1 is reported for 0:
    byte 0, the highest of the first record's size, is not sent then, and 0 in every log.

    Args:
        host: of the HA port.
        port: the HA port.
        low: where the log begins.
        high: how far to read.
        tls: what the port speaks, None for plain text.
    """

    def __init__(
        self, host: str, port: int, low: int, high: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.name = f"{host}:{port}"
        self._tls = tls
        self._host, self._port = host, port
        self._extent = Extent(low, high, {})
        self._position = -1
        self._pieces: bytearray = bytearray()
        self._receiver: LogStream = LogReceiver()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._report = b""
        self._expected = 0
        self._reported_at = 0.0

    async def extent(self) -> Extent:
        """See LogSide."""
        return self._extent

    async def crcs(self, start: int, end: int, step: int) -> list[int]:
        """See LogSide."""
        if self._position != start or self._streams is None:
            await self._connect(start)
        found = []
        for at in range(start, end, step):
            crc, left = 0, min(step, end - at)
            while left:
                if not self._pieces:
                    await self._fill()
                piece = self._pieces[:left]
                del self._pieces[:left]
                crc = crc32(piece, crc)
                left -= len(piece)
            found.append(crc)
        self._position = end
        return found

    async def _connect(self, start: int) -> None:
        self.close()
        async with asyncio.timeout(READ_TIMEOUT_S):
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        self._pieces = bytearray(b"" if start else b"\0")
        self._position = start
        self._expected = start or 1
        self._greet(self._streams[1], self._expected)
        self._reported_at = asyncio.get_running_loop().time()

    def _greet(self, writer: asyncio.StreamWriter, start: int) -> None:
        """Says from where on the log is to come."""
        self._receiver = LogReceiver()
        self._report = REPORT.pack(start)
        writer.write(self._report)

    async def _fill(self) -> None:
        """Waits for bytes of the log."""
        assert self._streams is not None
        reader, writer = self._streams
        loop = asyncio.get_running_loop()
        give_up = loop.time() + READ_TIMEOUT_S
        while not self._pieces:
            if loop.time() - self._reported_at >= REPORT_PERIOD_S:
                writer.write(self._report)
                self._reported_at = loop.time()
            data = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    data = await reader.read(1 << 20)
                if not data:
                    raise RemotingError(f"{self.name}: closed the connection at {self._expected}")
            unread = memoryview(data)
            while unread:
                for piece in self._receiver.receive_data(unread):
                    if piece.size and piece.commit_log_offset != self._expected:
                        raise RemotingError(
                            f"{self.name}: sends from {piece.commit_log_offset}, "
                            f"asked for was {self._expected}"
                        )
                    self._expected += piece.size
                    self._pieces += b"".join(piece.parts)
                unread = self._receiver.unread
                if unread:
                    await asyncio.sleep(0)
            if loop.time() >= give_up and not self._pieces:
                raise RemotingError(f"{self.name}: sends nothing from {self._expected} on")

    def close(self) -> None:
        """Ends the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class EpochSentLog(SentLog):
    """The same of a master under a controller, which is greeted in another way.

    It says that it is a learner, and an id that no replica has: nobody waits for it, and no replica
    is taken for gone when it leaves.
    """

    def _greet(self, writer: asyncio.StreamWriter, start: int) -> None:
        def take(frames: Iterable[MasterHello | EpochPiece]) -> Iterator[LogPiece]:
            for each in frames:
                if isinstance(each, MasterHello):
                    writer.write(self._report)
                else:
                    yield LogPiece(each.commit_log_offset, [each.data], len(each.data))

        self._receiver = EpochStream(take)
        self._report = SLAVE_REPORT.pack(TRANSFER, start)
        writer.write(SlaveHello(READER_ID, from_last_file=False, is_learner=True).encode())


def _extent(found: Any) -> Extent:
    rows = [LogChecksum(row["start"], row["end"], row["crc"]) for row in found["segments"]]
    low, high = found["minOffset"], found["maxOffset"]
    if not all(isinstance(each, int) for row in (*rows, (low, high)) for each in row):
        raise TypeError("offsets that are no integers")
    return Extent(low, high, {row.start: row for row in rows})


class Comparison(NamedTuple):
    """What a comparison has found.

    Attributes:
        start: from where both logs were compared.
        equal_to: up to where they are equal.
        differs_at: the first offset that differs, None if none was found.
    """

    start: int
    equal_to: int
    differs_at: int | None


async def compare(
    one: LogSide, other: LogSide, start: int = 0, *, read_all: bool = False
) -> Comparison:
    """Compares what both have, from ``start`` on.

    Args:
        one: a copy.
        other: another.
        start: where to begin; both begin later if one of them has to.
        read_all: read the bytes also where checksums say that they are equal: those tell what the
            bytes were when they were written.

    Raises:
        OberthError, OSError: one of them cannot be read.
    """
    left, right = await asyncio.gather(one.extent(), other.extent())
    if read_all:
        left = left._replace(rows={})
    low = max(left.low, right.low, start)
    high = max(min(left.high, right.high), low)
    position = low
    for begin, end in _windows(low, high, left, right):
        if left.rows.get(begin) != right.rows.get(begin) or begin not in left.rows:
            differs_at = await first_difference(one, other, begin, end)
            if differs_at is not None:
                return Comparison(low, differs_at, differs_at)
        position = end
    return Comparison(low, position, None)


def _windows(low: int, high: int, left: Extent, right: Extent) -> Iterator[tuple[int, int]]:
    """What is compared at once: a segment that both have summed up, else 64 MiB at most."""
    # The rows that both know to the same end are the full segments, and a live one at rest.
    ends = {
        start: row.end
        for start, row in left.rows.items()
        if row == right.rows.get(start) and row.end <= high
    }
    starts = sorted(ends)
    while low < high:
        end = ends.get(low)
        if end is None:
            following = next((each for each in starts if each > low), high)
            end = min(low + RANGE_BYTES_MAX, following, high)
        yield low, end
        low = end


async def first_difference(one: LogSide, other: LogSide, start: int, end: int) -> int | None:
    """The first offset of at most 64 MiB at which two logs differ, or None."""
    for step in STEPS:
        left, right = await asyncio.gather(one.crcs(start, end, step), other.crcs(start, end, step))
        pairs = enumerate(zip(left, right, strict=True))
        place = next((number for number, (crc, theirs) in pairs if crc != theirs), None)
        if place is None:
            # Equal; or, in a part of what differed just now, a disk that does not say the same
            # twice.
            return None if step == STEPS[0] else start
        start += place * step
        end = min(start + step, end)
    return start


class LogComparison:
    """A slave's comparison with its master: each byte once, in the background.

    Args:
        ha: of the broker.
        store: of the broker.
        client: to ask the master with.
        on_compared: called after each comparison, with the first offset that differs or None.
    """

    def __init__(
        self,
        *,
        ha: HAService,
        store: MessageStore,
        client: RemotingClient,
        on_compared: Callable[[int | None], None],
    ) -> None:
        self._ha = ha
        self._store = store
        self._own = OwnLog(store.checksums)
        self._client = client
        self._on_compared = on_compared
        self.compared_with: str | None = None
        self.equal_to = 0
        self.differs_at: int | None = None
        self.ahead_bytes = 0
        """How far this log goes on behind the master's end."""
        self.said = "not compared yet"
        self._said_aloud = ""
        self._said_mending = ""

    async def run(self) -> None:
        """Compares again and again; for a slave."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.once()

    async def once(self) -> None:
        """Compares what has come since the last time."""
        address = self._ha.master_address
        if address is None or self._store.damaged_from is not None:
            return
        self._begin_with(address)
        found = await self._compare(address, self.equal_to)
        if found is not None:
            self.equal_to = found.equal_to

    def _begin_with(self, address: str) -> None:
        """Forgets what was found at another master."""
        if address != self.compared_with:
            self.compared_with, self.equal_to, self.differs_at = address, 0, None
            self.ahead_bytes = 0

    async def before_following(self) -> bool:
        """Compares the last 64 MiB of this log, and mends its end where a crash damaged that.

        Returns:
            Whether the master's log was seen to go as far as this one, or could not be asked. What
            a master without its end takes next would lie where this log has other messages.
        """
        address, end = self._ha.master_address, self._end()
        if address is not None and end:
            self._begin_with(address)
            await self._compare(address, max(end - RANGE_BYTES_MAX, 0))
        if self._store.damaged_from is not None and self._ha.parted_at is None:
            await self._mend(self._store.damaged_from)
        return not self.ahead_bytes

    async def _mend(self, at: int) -> None:
        """Ends this log before the damage of a crash, if its master sends the rest of it again.

        Nothing is lost that way: the master has as much, and where this log holds records they are
        the master's. What is cut off is kept beside the store all the same.
        """
        from oberth.store.offline.rejoin import free_name  # noqa: PLC0415 - few slaves crash so

        store, end = self._store, self._store.max_phy_offset
        what = f"damaged by a crash from offset {at} on"
        sent: SentLog | None = None
        try:
            there = await self._masters_end()
            if there is not None and there < end:
                self.ahead_bytes = end - there
                self._say_mending(
                    f"{what}, and the master's log ends at {there}, before this one, at {end}; "
                    "nothing is cut or taken"
                )
                return
            host, port = parse_address(self._ha.master_ha_address or "")
            sent = SentLog(host, port, at, end, self._ha.tls)
            differs_at = await self._differs_outside(sent, at, end)
            if differs_at is not None:
                self._say_mending(
                    f"{what}, and another than the master's within a MiB from {differs_at} on; "
                    "nothing is cut or taken, 'oberth store rejoin' cuts it"
                )
                return
            kept_in = free_name(store.root, at)
            await asyncio.to_thread(self._cut, at, kept_in)
        except (OberthError, OSError, ValueError) as error:  # time-outs, too
            self._say_mending(f"{what}, not mended yet: {str(error) or type(error).__name__}")
            return
        finally:
            if sent is not None:
                sent.close()
        self.ahead_bytes = 0
        self._say_mending(
            f"{what}; it ended at {end} and was cut, the master sends the rest again. "
            f"What was cut off is in {kept_in}"
        )

    def _say_mending(self, text: str) -> None:
        self.said = text
        if text != self._said_mending:
            self._said_mending = text
            _LOG.error("this slave's log is %s", text)

    def _cut(self, at: int, kept_in: str) -> None:
        from oberth.store.offline.rejoin import keep_end  # noqa: PLC0415 - few slaves crash so

        segments = self._store.commit_log.queue.segments
        keep_end([(s.path, s.start_offset) for s in segments if s.end_offset > at], at, kept_in)
        self._store.end_before_damage()

    async def _masters_end(self) -> int | None:
        """Where the master's log ends; None if nobody knows where to ask."""
        address = self._ha.master_address
        if address is None:
            return None
        response = await self._client.invoke(
            address, create_request(RequestCode.GET_BROKER_RUNTIME_INFO), REQUEST_TIMEOUT_S
        )
        try:
            return int(json.loads(response.body_bytes())["table"]["commitLogMaxOffset"])
        except (ValueError, TypeError, KeyError) as error:
            raise RemotingError(
                f"{address}: does not say where its log ends: {response.code} {response.remark}"
            ) from error

    async def _differs_outside(self, sent: SentLog, at: int, end: int) -> int | None:
        """Where, within a MiB, this log has other records than the master; None: nowhere.

        Raises:
            OberthError, OSError: the master does not send as much as this log has.
        """
        report = self._store.report
        assert report is not None
        spans: list[tuple[int, int, bool]] = []
        for start, stop, _ in (*report.damages, Damage(end, end, "")):
            spans += [(at, start, True), (start, stop, False)]
            at = stop
        step = STEPS[0]
        for begin, stop, is_sound in spans:
            for low in range(begin, stop, RANGE_BYTES_MAX):
                high = min(low + RANGE_BYTES_MAX, stop)
                theirs = await sent.crcs(low, high, step)
                own = await self._own.crcs(low, high, step) if is_sound else theirs
                pairs = enumerate(zip(own, theirs, strict=True))
                place = next((number for number, (crc, their) in pairs if crc != their), None)
                if place is not None:
                    return low + place * step
        return None

    async def _compare(self, address: str, start: int) -> Comparison | None:
        """Compares from an offset on, and says what was found; None: it was not compared."""
        master = BrokerLog(address, partial(self._ask, address))
        end = self._end()
        try:
            found = await compare(self._own, master, start)
        except NoChecksumsError:
            self.ahead_bytes = 0
            self._say("the master answers no checksums: oberth cluster compare reads instead")
            return None
        except (OberthError, OSError) as error:
            self._say(f"not compared: {error}")
            return None
        self.differs_at = found.differs_at
        # The master was asked after this log's end was looked at: it has at least that.
        self.ahead_bytes = max(end - found.equal_to, 0) if found.differs_at is None else 0
        if found.differs_at is not None:
            self._say(f"differs from {address} at offset {found.differs_at}", logging.ERROR)
        elif found.start > end:
            self._say(
                f"not compared: this log ends at {end}, that of {address} begins behind it, at "
                f"{found.start}", logging.ERROR,
            )  # fmt: skip
        elif self.ahead_bytes:
            self._say(
                f"equal up to offset {found.equal_to}, where the log of {address} ends; this one "
                f"goes on to {end}", logging.ERROR,
            )  # fmt: skip
        else:
            self._say("equal")
        self._on_compared(found.differs_at)
        return found

    def _end(self) -> int:
        return self._store.sound_offset

    async def _ask(self, address: str, header: LogChecksumsRequestHeader) -> bytes:
        request = create_request(RequestCode.OBERTH_GET_LOG_CHECKSUMS, header)
        response = await self._client.invoke(address, request, REQUEST_TIMEOUT_S)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NoChecksumsError(f"{address}: it answers no request for checksums")
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(f"{address}: {response.code} {response.remark}")
        return response.body_bytes()

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self.said = text
        if text != self._said_aloud:
            self._said_aloud = text
            _LOG.log(level, "log compared with the master's: %s", text)

    def metrics(self) -> list[tuple[str, str, str, list[Sample]]]:
        """Name, kind, text and samples for ``/metrics``."""
        position = self._own.position
        found: list[tuple[str, str, str, list[Sample]]] = [
            ("oberth_log_summed_to", "gauge", "up to where the log is summed up", [((), position)])
        ]
        if self._ha.is_slave:
            differs_at = -1 if self.differs_at is None else self.differs_at
            found += [
                (
                    "oberth_log_equal_to",
                    "gauge",
                    "up to where the log is equal to the master's",
                    [((), self.equal_to)],
                ),
                (
                    "oberth_log_differs_at",
                    "gauge",
                    "first offset that differs from the master's, -1 if none is known",
                    [((), differs_at)],
                ),
                (
                    "oberth_log_ahead_bytes",
                    "gauge",
                    "bytes of the log behind the end of the master's",
                    [((), self.ahead_bytes)],
                ),
            ]
        return found

    def runtime_info(self) -> dict[str, str]:
        """Keys of 28 for a slave."""
        if not self._ha.is_slave:
            return {}
        return {
            "logComparedWith": self.compared_with or "",
            "logComparison": self.said,
            "logEqualTo": str(self.equal_to),
            "logDiffersAt": "" if self.differs_at is None else str(self.differs_at),
        }
