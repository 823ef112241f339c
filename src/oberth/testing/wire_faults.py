"""WireFaults: a broker's requests that go wrong on purpose.

A fault applies to the next requests of some codes, so many times, and then to no more. RocketMQ's
clients must get over all of them. Sends are the codes of ``SEND_CODES``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from oberth.remoting.aio.channel import Channel
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand, create_response

SEND_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)

Dispatch = Callable[[Channel, list[RemotingCommand]], None]


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        codes: of the requests.
        times: requests that it still applies to.
        refuse_with: answer this code and do nothing.
        delay_s: do it so much later.
        drop_request: do nothing and say nothing.
        drop_response: do it and say nothing.
        disconnect: close the connection at once.
        hits: requests that it was applied to.
    """

    codes: frozenset[int]
    times: int
    refuse_with: int | None = None
    remark: str = ""
    delay_s: float = 0.0
    drop_request: bool = False
    drop_response: bool = False
    disconnect: bool = False
    hits: int = 0


class WireFaults:
    """The faults of one broker, the oldest is used up first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def refuse(
        self,
        codes: Iterable[int] = SEND_CODES,
        *,
        times: int = 1,
        response_code: int = ResponseCode.SYSTEM_BUSY,
        remark: str = "refused on purpose",
    ) -> Fault:
        """Answer an error; nothing is stored."""
        return self._add(Fault(_codes(codes), times, refuse_with=response_code, remark=remark))

    def slow(self, codes: Iterable[int] = SEND_CODES, *, delay_s: float, times: int = 1) -> Fault:
        """Serve requests only after a while."""
        return self._add(Fault(_codes(codes), times, delay_s=delay_s))

    def drop_after_store(self, codes: Iterable[int] = SEND_CODES, *, times: int = 1) -> Fault:
        """Serve requests and lose the answers: the client does not know that it worked."""
        return self._add(Fault(_codes(codes), times, drop_response=True))

    def drop(self, codes: Iterable[int] = SEND_CODES, *, times: int = 1) -> Fault:
        """Lose requests."""
        return self._add(Fault(_codes(codes), times, drop_request=True))

    def disconnect(self, codes: Iterable[int] = SEND_CODES, *, times: int = 1) -> Fault:
        """Close the connection when such a request comes."""
        return self._add(Fault(_codes(codes), times, disconnect=True))

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self._faults.clear()

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def wrap(self, dispatch: Dispatch) -> Dispatch:
        """A dispatch that applies the faults before another."""

        def faulty(channel: Channel, requests: list[RemotingCommand]) -> None:
            if not self._faults:
                dispatch(channel, requests)
                return
            passed = [request for request in requests if self._passes(channel, request, dispatch)]
            if passed:
                dispatch(channel, passed)

        return faulty

    def _passes(self, channel: Channel, request: RemotingCommand, dispatch: Dispatch) -> bool:
        fault = next((each for each in self._faults if request.code in each.codes), None)
        if fault is None:
            return True
        fault.hits += 1
        fault.times -= 1
        if fault.times <= 0:
            self._faults.remove(fault)
        if fault.disconnect:
            channel.abort()
            return False
        if fault.refuse_with is not None:
            channel.reply(request, create_response(request, fault.refuse_with, fault.remark))
            return False
        if fault.drop_request:
            return False
        if fault.drop_response:
            request.flag |= ONEWAY_FLAG
            return True
        asyncio.get_running_loop().call_later(fault.delay_s, self._late, channel, request, dispatch)
        return False

    def _late(self, channel: Channel, request: RemotingCommand, dispatch: Dispatch) -> None:
        if not channel.is_closed:
            dispatch(channel, [request])


def _codes(codes: Iterable[int]) -> frozenset[int]:
    return frozenset(int(code) for code in codes)
