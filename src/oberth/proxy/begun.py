"""BegunCalls: calls that wait for a broker's answer without a task.

A call whose command can be made at once is begun when its message comes, and ended when the broker
answers, mostly in the same turn of the loop. Only one that is still open behind that turn gets a
timer, for its own deadline or the broker's, whichever comes first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from oberth.errors import OberthError
from oberth.proxy.call import Call, GrpcStatus
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.encoding import only_status
from oberth.proxy.local import LocalPeer
from oberth.remoting.command import RemotingCommand

Finish = Callable[[RemotingCommand], tuple[Code, bytes]]
"""Makes a response of a broker's answer: its code and its bytes; raises StatusError."""

Stored = Callable[[int, int, str], bytes]
"""Makes the response to a send of its offsets in queue and log and its UNIQ_KEY; its code is OK."""

BROKER_TIMEOUT_S: Final = 3.0
_OK: Final = Code.OK


class BegunCall:
    """One call that waits."""

    __slots__ = (
        "_finish", "_method", "_opaque", "_peer", "_results", "_stored", "call", "is_done", "timer",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        method: str,
        results: Counter[tuple[str, int]],
        finish: Finish,
        stored: Stored | None = None,
    ) -> None:
        self.call = call
        self.is_done = False
        self.timer: asyncio.TimerHandle | None = None
        self._method = method
        self._results = results
        self._finish = finish
        self._stored = stored
        self._peer: LocalPeer | None = None
        self._opaque = 0

    def submit(self, peer: LocalPeer, command: RemotingCommand) -> None:
        """Hand the command to the broker.

        Raises:
            RemotingSendRequestError: the client is gone.
        """
        self._peer = peer
        self._opaque = peer.begin(command, self)

    def answered(self, answer: RemotingCommand) -> None:
        """The broker's answer."""
        self._end()
        try:
            code, message = self._finish(answer)  # also if nobody waits for it any more
        except StatusError as error:
            self.refuse(error.code, error.message)
            return
        except OberthError as error:
            self.refuse(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            return
        if self.call.is_open:
            self._results[self._method, code] += 1
            self.call.finish(message)

    def stored(self, queue_offset: int, log_offset: int, key: str) -> None:
        """The broker's answer to a send that succeeded."""
        self._end()
        assert self._stored is not None, "only sends are stored"
        message = self._stored(queue_offset, log_offset, key)
        if self.call.is_open:
            self._results[self._method, _OK] += 1
            self.call.finish(message)

    def lost(self, error: OberthError) -> None:
        """The client is gone, as another of its calls said."""
        self._end()
        self.refuse(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def refuse(self, code: Code, text: str) -> None:
        """End the call with a status alone, if it is open."""
        if not self.call.is_open:
            return
        self._results[self._method, code] += 1
        self.call.finish(only_status(code, text))

    def expire(self) -> None:
        """Called by the timer."""
        self._end()
        if self._peer is not None:
            self._peer.forget(self._opaque)
        remaining_s = self.call.remaining_s()
        if remaining_s is not None and remaining_s <= 0:
            self.call.end(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")
        else:
            self.refuse(Code.PROXY_TIMEOUT, f"the broker did not answer in {BROKER_TIMEOUT_S} s")

    def _end(self) -> None:
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class BegunCalls:
    """Gives timers to calls that are not answered in their turn of the loop."""

    def __init__(self) -> None:
        self._turn: list[BegunCall] = []
        self._is_scheduled = False

    def add(self, begun: BegunCall) -> None:
        """A call was begun in this read; `read_done` follows."""
        self._turn.append(begun)

    def read_done(self) -> None:
        """The broker has had its chance to answer the calls of a read at once."""
        if self._is_scheduled:
            return
        if all(begun.is_done for begun in self._turn):
            self._turn.clear()
        else:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        turn, self._turn = self._turn, []
        if any(not begun.is_done for begun in turn):
            asyncio.get_running_loop().call_soon(self._set_timers, turn)

    @staticmethod
    def _set_timers(turn: list[BegunCall]) -> None:
        loop = asyncio.get_running_loop()
        for begun in turn:
            if not begun.is_done:
                remaining_s = begun.call.remaining_s()
                wait_s = BROKER_TIMEOUT_S
                if remaining_s is not None:
                    wait_s = max(min(wait_s, remaining_s), 0.0)
                begun.timer = loop.call_later(wait_s, begun.expire)
