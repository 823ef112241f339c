"""A channel rests between reads only when many answers are expected and few come at a time.

A transport that only takes notes stands in for the socket; the loop's clock ends the rest.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oberth.remoting.aio.channel import REST_BURST_MAX, REST_OPEN_MIN, Channel
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.code import RequestCode
from oberth.remoting.command import (
    RESPONSE_FLAG,
    RemotingCommand,
    create_request,
    encode_frame_bytes,
)


class Notes(asyncio.Transport):
    """Takes notes."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.pauses = 0
        self.resumed = asyncio.Event()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True
        self.resumed.set()


class Owner:
    def on_open(self, channel: Channel) -> None:
        pass

    def on_requests(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        pass

    def on_close(self, channel: Channel, error: Exception | None) -> None:
        pass


def answers(first: int, count: int) -> bytes:
    return b"".join(
        encode_frame_bytes(RemotingCommand(opaque=number, flag=RESPONSE_FLAG))
        for number in range(first, first + count)
    )


def channel_with(open_requests: int, rest_s: float) -> tuple[Channel, Notes, list[int]]:
    channel = Channel(Owner(), ChannelOptions(read_rest_s=rest_s), server_side=False)
    transport = Notes()
    channel.connection_made(transport)
    answered: list[int] = []
    for number in range(open_requests):
        channel.invoke_callback(
            create_request(RequestCode.HEART_BEAT), 60, lambda *_, n=number: answered.append(n)
        )
    return channel, transport, answered


async def test_answers_that_come_one_by_one_are_left_to_gather() -> None:
    channel, transport, answered = channel_with(REST_OPEN_MIN + 2, 0.001)
    channel.data_received(answers(0, 1))
    assert answered == [0]
    assert (transport.reading, transport.pauses) == (False, 1)
    # What was read before the transport stopped is taken, without a second rest.
    channel.data_received(answers(1, 1))
    assert answered == [0, 1]
    assert transport.pauses == 1
    await transport.resumed.wait()
    assert transport.reading


@pytest.mark.parametrize(
    ("open_requests", "burst", "rest_s"),
    [
        (REST_OPEN_MIN - 1, 1, 0.001),
        (REST_OPEN_MIN + REST_BURST_MAX, REST_BURST_MAX, 0.001),
        (REST_OPEN_MIN + 2, 1, 0.0),
    ],
    ids=["few are expected", "they come in bursts", "it is switched off"],
)
async def test_otherwise_it_reads_on(open_requests: int, burst: int, rest_s: float) -> None:
    channel, transport, answered = channel_with(open_requests, rest_s)
    channel.data_received(answers(0, burst))
    assert len(answered) == burst
    assert (transport.reading, transport.pauses) == (True, 0)


async def test_a_peer_that_does_not_read_outlasts_the_rest() -> None:
    channel, transport, _ = channel_with(REST_OPEN_MIN + 2, 0.001)
    channel.data_received(answers(0, 1))
    channel.pause_writing()
    channel._end_rest()
    assert (transport.reading, transport.pauses) == (False, 1)
    channel.resume_writing()
    assert transport.resumed.is_set()
    timer_is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.002, timer_is_over.set)
    await timer_is_over.wait()  # and the rest's own timer found nothing left to do
