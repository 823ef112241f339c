"""Stages: order, limits, time-outs and ends, of threads and of tasks, over a fake channel."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from oberth.errors import StoreFullError
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable, Stage, error_response
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


class FakeChannel:
    """Keeps what is replied, and counts what is at work."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, RemotingCommand]] = []
        self.in_work = 0
        self.changed = asyncio.Event()

    def work_started(self, count: int) -> None:
        self.in_work += count

    def work_finished(self) -> None:
        self.in_work -= 1
        self.changed.set()

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        self.replies.append((request.opaque, response))
        self.changed.set()

    async def wait_replies(self, count: int) -> dict[int, RemotingCommand]:
        async with asyncio.timeout(BOUND_S):
            while len(self.replies) < count:
                self.changed.clear()
                await self.changed.wait()
        return dict(self.replies)


def requests(count: int, start: int = 0) -> list[RemotingCommand]:
    return [RemotingCommand(code=7, opaque=start + n) for n in range(count)]


@pytest.fixture
async def channel() -> Any:
    """Stands for a connection."""
    return FakeChannel()


async def test_one_worker_keeps_the_order(channel: Any) -> None:
    stage = Stage("one", threads=1)
    stage.submit(channel, requests(200), lambda channel, request: create_response(request, 0))
    await channel.wait_replies(200)
    assert [opaque for opaque, _ in channel.replies] == list(range(200))
    assert channel.in_work == 0
    await stage.aclose()


async def test_tasks_run_at_once_up_to_the_limit(channel: Any) -> None:
    release = asyncio.Event()
    running = 0
    most = 0

    async def wait(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return create_response(request, 0)

    stage = Stage("tasks", tasks=3, queue_max=4)
    stage.submit(channel, requests(10), wait)
    # Three at work, four waiting, three refused.
    replies = await channel.wait_replies(3)
    assert sorted(replies) == [7, 8, 9]
    assert {reply.code for reply in replies.values()} == {ResponseCode.SYSTEM_BUSY}
    assert (stage.working, stage.queue_size, channel.in_work) == (3, 4, 7)
    await asyncio.sleep(0)  # one turn of the loop, in which the three begin
    release.set()
    await channel.wait_replies(10)
    assert most == 3
    assert (stage.working, stage.queue_size, channel.in_work) == (0, 0, 0)
    await stage.aclose()


async def test_a_waiting_request_expires_while_the_worker_hangs(channel: Any) -> None:
    release = threading.Event()

    def hang(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        assert release.wait(BOUND_S)
        return create_response(request, 0)

    stage = Stage("hung", threads=1, wait_ms_max=20)
    stage.submit(channel, requests(2), hang)
    replies = await channel.wait_replies(1)
    assert replies[1].code == ResponseCode.SYSTEM_BUSY
    assert "slow stage: hung" in (replies[1].remark or "")
    release.set()
    await channel.wait_replies(2)
    await stage.aclose()


async def test_no_answer_is_an_answer(channel: Any) -> None:
    stage = Stage("silent", threads=1)
    stage.submit(channel, requests(1), lambda channel, request: None)
    async with asyncio.timeout(BOUND_S):
        while channel.in_work:
            channel.changed.clear()
            await channel.changed.wait()
    assert channel.replies == []
    await stage.aclose()


async def test_closing_cancels_tasks_that_do_not_end(
    channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = asyncio.Event()

    async def never(channel: Channel, request: RemotingCommand) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    stage = Stage("stuck", tasks=1)
    stage.submit(channel, requests(2), never)
    await asyncio.sleep(0)
    async with asyncio.timeout(BOUND_S):
        await stage.aclose(grace_s=0.01)
    assert cancelled.is_set()
    assert "stage stuck: 1 requests at work and 1 waiting given up" in caplog.text
    stage.submit(channel, requests(1, 10), never)
    (_, reply) = channel.replies[-1]
    assert "stage stuck is closed" in (reply.remark or "")


async def test_exceptions_of_tasks_are_answered(channel: Any) -> None:
    async def fail(channel: Channel, request: RemotingCommand) -> None:
        raise StoreFullError("/store: 0 bytes free, 4096 wanted")

    stage = Stage("fails", tasks=1)
    stage.submit(channel, requests(1), fail)
    replies = await channel.wait_replies(1)
    assert replies[0].code == ResponseCode.SYSTEM_ERROR
    # Our own errors say enough; the place in the code is for those that nobody foresaw.
    assert replies[0].remark == "StoreFullError: /store: 0 bytes free, 4096 wanted"
    await stage.aclose()


def test_error_response_names_the_place_of_what_nobody_foresaw() -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        response = error_response(RemotingCommand(), error)
    assert "test_processors.py:" in (response.remark or "")


def test_a_stage_has_threads_or_tasks() -> None:
    with pytest.raises(AssertionError):
        Stage("neither")
    with pytest.raises(AssertionError):
        Stage("both", threads=1, tasks=1)


def test_two_stages_of_one_name_are_refused() -> None:
    table = ProcessorTable()
    table.sync([1], lambda channel, request: None, stage=Stage("same", threads=1))
    with pytest.raises(AssertionError, match="two stages same"):
        table.sync([2], lambda channel, request: None, stage=Stage("same", threads=1))


def test_a_burst_with_too_few_answers_is_our_bug() -> None:
    table = ProcessorTable()
    table.burst([7], lambda channel, requests: [])
    fake = FakeChannel.__new__(FakeChannel)
    fake.replies = []
    fake.changed = cast(asyncio.Event, threading.Event())
    table.dispatch(cast(Channel, fake), requests(2))
    assert [reply.code for _, reply in fake.replies] == [1, 1]
    assert "0 responses to 2 requests" in (fake.replies[0][1].remark or "")
