"""LocalPeer: a gRPC client as the broker in this process sees it: a connection without a socket.

The broker's processors serve the commands that calls are translated to, as they serve those of any
connection, so that a group's gRPC and remoting members are one group. Commands of one read,
or, while several connections take turns, of one turn of the loop are handed over together, and so
are one burst. Answers are commands again; a frame that the
broker has rendered already is read back.

The broker's own requests (what became of a transaction, stack traces) come to `on_request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, Protocol, cast

from oberth.errors import RemotingSendRequestError, RemotingTimeoutError
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.code import RequestCode
from oberth.remoting.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Buffer,
    RemotingCommand,
)
from oberth.remoting.connection import RemotingConnection

SWITCHES_MIN: Final = 8
"""Reads in a row, each of another connection than the one before, from which on turns are
gathered."""

ALONE_MAX: Final = 64
"""Turns in a row with one client's commands after which they are not."""

RequestHandler = Callable[[str, RemotingCommand], Awaitable[RemotingCommand | None]]
"""Serves a request of the broker of a name."""


class Waiter(Protocol):
    """Waits for an answer without a future."""

    def answered(self, answer: RemotingCommand, /) -> None:
        """The answer."""

    def stored(self, queue_offset: int, log_offset: int, key: str, /) -> None:
        """The answer to a send: its message is in the log, and has this UNIQ_KEY."""

    def lost(self, error: RemotingSendRequestError, /) -> None:
        """There will be none: the client is gone."""


class LocalBroker:
    """Hands commands to the processors of a broker in this process.

    Args:
        name: the broker's.
        processors: the broker's, without the gate of access control.
        closed: called with a channel that is gone.
    """

    def __init__(
        self, name: str, processors: ProcessorTable, closed: Callable[[Channel], None]
    ) -> None:
        self.name = name
        self._processors = processors
        self._closed = closed
        self._turn: dict[LocalPeer, list[RemotingCommand]] = {}
        self._is_scheduled = False
        self._last: object = None
        self._switches = self._alone = 0
        self._gathers = False

    def submit(self, peer: LocalPeer, request: RemotingCommand, *, in_read: bool = False) -> None:
        """Serve a request with what else comes in this turn of the loop.

        Args:
            peer: whose.
            request: the command.
            in_read: whether `read_done` is called behind it, in this turn.
        """
        self._turn.setdefault(peer, []).append(request)
        if not in_read:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        self._serve()

    def read_done(self, connection: object) -> None:
        """What a connection sent in one read was submitted.

        It is served at once if no other connection sends beside it: so its answers leave with the
        read, and it waits for nobody.
        """
        if not self._turn:
            return
        if connection is self._last:
            self._switches = 0
        else:
            self._last = connection
            self._switches += 1
            if self._switches >= SWITCHES_MIN:
                self._gathers = True
                self._alone = 0
        if self._gathers:
            self._schedule()
        else:
            self._serve()

    def _serve(self) -> None:
        if not self._turn:
            return  # served with a read
        turn, self._turn = self._turn, {}
        if self._gathers:
            self._alone = self._alone + 1 if len(turn) == 1 else 0
            if self._alone >= ALONE_MAX:
                self._gathers = False
                self._switches = 0
        if len(turn) == 1:
            ((peer, requests),) = turn.items()
            self._processors.dispatch(cast(Channel, peer), requests)
        else:
            self._processors.dispatch_turn(cast(Any, turn.items()))

    def peer_closed(self, peer: LocalPeer) -> None:
        """A client is gone: it leaves its groups."""
        self._closed(cast(Channel, peer))


class LocalPeer:
    """One client of the broker; stands where a `Channel` stands.

    Attributes:
        remote: the client's address.
        local: the address that it dialled.
        context: the broker's, see `Channel.context`.
        on_request: serves what the broker asks; None: the client cannot be asked now.
        on_rest: is told for how many seconds nothing of the client is to be read.
    """

    def __init__(self, broker: LocalBroker, remote: Address, local: Address) -> None:
        self._broker = broker
        self.remote = remote
        self.local = local
        self.context: Any = None
        self.on_request: RequestHandler | None = None
        self.on_rest: Callable[[float], None] | None = None
        self.in_work = 0
        self.is_tls = False
        self._opaques = count(1)
        self._open: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._waiters: dict[int, Waiter] = {}
        self._late: dict[int, Callable[[RemotingCommand], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._reader = RemotingConnection()
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<LocalPeer {self.remote}>"

    # The client's requests

    async def call(
        self,
        broker: str,
        request: RemotingCommand,
        on_late: Callable[[RemotingCommand], None] | None = None,
    ) -> RemotingCommand:
        """The broker's answer, also one with an error code; the caller bounds the time.

        Args:
            broker: its name; there is but one.
            request: the command.
            on_late: gets the answer if nobody waits for it any more when it comes.

        Raises:
            RemotingSendRequestError: the client is gone.
        """
        if self._is_closed:
            raise RemotingSendRequestError(f"{self.remote} is gone, code {request.code} not sent")
        request.opaque = opaque = next(self._opaques)
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._open[opaque] = answer
        try:
            self._broker.submit(self, request)
            return await answer
        except asyncio.CancelledError:
            if on_late is not None:
                if answer.cancelled():
                    self._late[opaque] = on_late
                elif answer.exception() is None:  # it came in the turn in which the call ended
                    on_late(answer.result())
            raise
        finally:
            self._open.pop(opaque, None)

    def begin(self, request: RemotingCommand, waiter: Waiter) -> int:
        """Submit a request whose answer goes to ``waiter``; its number, for `forget`.

        It is served when the read in which it came is done, see `LocalBroker.read_done`.

        Raises:
            RemotingSendRequestError: the client is gone.
        """
        if self._is_closed:
            raise RemotingSendRequestError(f"{self.remote} is gone, code {request.code} not sent")
        request.opaque = opaque = next(self._opaques)
        self._waiters[opaque] = waiter
        self._broker.submit(self, request, in_read=True)
        return opaque

    def forget(self, opaque: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiters.pop(opaque, None)

    # What processors call on it

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._is_closed

    @property
    def hears(self) -> bool:
        """Whether requests of the broker reach the client."""
        return self.on_request is not None and not self._is_closed

    def awaits(self, opaque: int) -> bool:
        """Whether a call still waits for the answer to a request: it may have been cancelled."""
        return opaque in self._open or opaque in self._waiters

    def unanswered(self, opaque: int) -> None:
        """A request whose answer no call awaits was dropped: the answer will not come."""
        self._late.pop(opaque, None)

    def work_started(self, size: int) -> None:
        """A request of so many bytes was queued."""
        del size
        self.in_work += 1

    def work_finished(self, size: int) -> None:
        """A queued request is done."""
        del size
        self.in_work -= 1

    def takes_more(self) -> bool:
        """Always: a call bounds its answers itself."""
        return True

    def when_writable(self, call: Callable[[], None]) -> None:
        """Not called: it always `takes_more`."""

    def hold_reading(self) -> None:
        """Nothing to do: a call waits for its answer."""

    def resume_reading(self) -> None:
        """Nothing to do."""

    def rest(self, seconds: float) -> None:
        """The consumers of what the client sends cannot follow it."""
        if self.on_rest is not None:
            self.on_rest(seconds)

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """An answer to one of the client's requests."""
        if request.flag & ONEWAY_FLAG:
            return
        response.opaque = request.opaque
        self._answered(response)

    def _answered(self, response: RemotingCommand) -> None:
        waiter = self._waiters.pop(response.opaque, None)
        if waiter is not None:
            waiter.answered(response)
            return
        answer = self._open.get(response.opaque)
        if answer is not None and not answer.done():
            answer.set_result(response)
            return
        on_late = self._late.pop(response.opaque, None)
        if on_late is not None:
            on_late(response)

    def send(self, command: RemotingCommand) -> None:
        """A command of the broker's."""
        if command.flag & RESPONSE_FLAG:
            self._answered(command)

    def take_stored(self, opaque: int, queue_offset: int, log_offset: int, key: str) -> bool:
        """See `Channel.take_stored`: for calls that wait without a future."""
        waiter = self._waiters.pop(opaque, None)
        if waiter is None:
            return False
        waiter.stored(queue_offset, log_offset, key)
        return True

    def send_frame(self, frame: Buffer) -> None:
        """An answer that is rendered already."""
        for command in self._reader.receive_data(frame):
            self._answered(command)

    def send_frames(self, frames: Sequence[Buffer]) -> None:
        """The pieces of an answer that is rendered already."""
        self.send_frame(b"".join(frames))

    def invoke_oneway(self, request: RemotingCommand) -> None:
        """A request of the broker's that wants no answer."""
        if self.on_request is None or self._is_closed:
            return
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return  # gRPC clients are not told: they ask for their assignment
        task = self._loop.create_task(self._serve_oneway(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_oneway(self, request: RemotingCommand) -> None:
        assert self.on_request is not None
        await self.on_request(self._broker.name, request)

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """A request of the broker's, as `Channel.invoke`.

        Raises:
            RemotingSendRequestError: the client cannot be asked.
            RemotingTimeoutError: it does not answer.
        """
        if self.on_request is None or self._is_closed:
            raise RemotingSendRequestError(f"{self.remote} cannot be asked")
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.on_request(self._broker.name, request)
        except TimeoutError:
            raise RemotingTimeoutError(
                f"{self.remote} did not answer code {request.code} in {timeout_s:g} s"
            ) from None
        if response is None:
            raise RemotingSendRequestError(f"{self.remote} does not serve code {request.code}")
        return response

    def cork(self) -> None:
        """Nothing to do: answers are no bytes."""

    def uncork(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """The client is gone: its groups hear of it, its open requests end."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_rest = None
        gone = RemotingSendRequestError(f"{self.remote} is gone")
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(gone)
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.lost(gone)
        for task in self._tasks:
            task.cancel()
        self._late.clear()
        self._broker.peer_closed(self)

    abort = close
