"""Answers are decoded in a thread, one at a time, and only so many wait for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oberth.remoting.aio import long_answers
from oberth.remoting.aio.long_answers import LongAnswers
from oberth.remoting.bodies.base import BodyError


async def test_one_at_a_time_and_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "WAITING_BYTES_MAX", 250)
    answers = LongAnswers()
    may_end, threads, at_work, most = threading.Event(), set(), [], 0

    def decode(data: bytes) -> int:
        nonlocal most
        at_work.append(data)
        most = max(most, len(at_work))
        threads.add(threading.current_thread())
        assert may_end.wait(20)
        at_work.pop()
        return len(data)

    first, second = (asyncio.ensure_future(answers.read(decode, bytes(100))) for _ in range(2))
    await asyncio.sleep(0)
    assert answers.waiting_bytes == 200
    with pytest.raises(BodyError, match="200 bytes of answers wait to be decoded, allowed 250"):
        await answers.read(decode, bytes(51))
    with pytest.raises(BodyError, match="an answer of 51 bytes, allowed 50"):
        await answers.read(decode, bytes(51), 50)
    may_end.set()
    assert [*await asyncio.gather(first, second)] == [100, 100]
    assert (answers.waiting_bytes, most) == (0, 1)
    assert threading.current_thread() not in threads
    assert await answers.read(decode, bytes(300)) == 300  # nothing else waits


async def test_who_goes_away_does_not_let_the_next_one_begin() -> None:
    answers = LongAnswers()
    begun: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    may_end = threading.Event()

    def decode(data: bytes) -> int:
        loop.call_soon_threadsafe(begun.put_nowait, len(data))
        assert may_end.wait(20)
        return len(data)

    first = asyncio.ensure_future(answers.read(decode, bytes(1)))
    assert await begun.get() == 1
    second = asyncio.ensure_future(answers.read(decode, bytes(2)))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun.empty()
    assert answers.waiting_bytes == 3
    may_end.set()
    assert await second == 2
    assert answers.waiting_bytes == 0


async def test_of_a_broker_what_is_short_is_decoded_at_once() -> None:
    answers = LongAnswers()
    threads = []

    def decode(data: bytes) -> int:
        threads.append(threading.current_thread())
        return len(data)

    for size in (100, 1 << 20):
        assert await answers.of_broker(decode, bytes(size)) == size
    assert [each is threading.current_thread() for each in threads] == [True, False]
