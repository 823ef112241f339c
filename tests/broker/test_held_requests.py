"""What waits takes what it needs, for a bounded time, and within bounds of count and bytes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from oberth.broker.held_requests import (
    HOLD_MS_MAX,
    REQUEST_SIZE,
    HoldLimits,
    InTurns,
    kept_request,
)
from oberth.broker.pop import polling as polling_module
from oberth.broker.pop.polling import DEADLINES_SPARE, PopPolling, Waiting
from oberth.remoting.aio.processors import SERVER_BODY_SIZE_MAX
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pull import PullMessageRequestHeader

FOR_EVER = str(10**15)


def waiting_request(live: Any, code: int, **more: str) -> RemotingCommand:
    """A request that finds nothing and asks to wait."""
    if code == 11:
        fields = live.peer.pull_fields("T", 0, sysFlag="6", suspendTimeoutMillis=FOR_EVER)
    else:
        fields = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "maxMsgNums": "1",
            "invisibleTime": "1000",
            "pollTime": FOR_EVER,
            "bornTime": str(live.broker.parts.now_ms()),
            "initMode": "1",
        }
    return RemotingCommand(code=code, ext_fields={**fields, **more})


def held_in(live: Any, code: int) -> list[Any]:
    pops = live.broker.services.pop
    return {
        11: lambda: list(live.broker.parts.hold),
        200050: lambda: list(pops.polling._numbered.values()),
        200054: lambda: list(pops.notifying._numbered.values()),
    }[code]()


CODES = pytest.mark.parametrize("code", [11, 200050, 200054])


@CODES
async def test_of_a_request_that_waits_only_its_header_is_kept(live: Any, code: int) -> None:
    live.broker.parts.topics.create_internal("T", 1)
    channel = await live.peer.channel()
    request = waiting_request(live, code, **{f"more-{n}": "x" * 10_000 for n in range(20)})
    request.remark = "r" * 10_000
    request.body = b"b" * SERVER_BODY_SIZE_MAX
    answer = channel.invoke_nowait(request, 10.0)
    await live.until(lambda: held_in(live, code))
    (held,) = held_in(live, code)
    kept: RemotingCommand = held.request
    assert (kept.body, kept.remark) == (b"", None)
    assert not [name for name in kept.fields if name.startswith("more-")]
    assert kept.opaque == request.opaque
    assert live.broker.parts.hold_limits.total == held.size < 2 * REQUEST_SIZE
    assert held.deadline_ms - live.broker.parts.now_ms() <= HOLD_MS_MAX
    await live.later(HOLD_MS_MAX + 200)
    assert (await answer).code in (0, 19, 210)
    assert (live.broker.parts.hold_limits.total, len(live.broker.parts.hold_limits)) == (0, 0)


def test_texts_of_what_waits_count_as_they_are_in_memory() -> None:
    """One character above U+FFFF makes all of its text four bytes long."""
    for begin, size_min in (("t", 10_000), ("\U0001f600", 40_000)):
        fields = {"topic": begin + "t" * 10_000, "more": "x" * 10_000}
        kept, size = kept_request(RemotingCommand(ext_fields=fields), PullMessageRequestHeader)
        assert kept.fields.keys() == {"topic"}
        assert size_min < size - REQUEST_SIZE < size_min + 200


@CODES
async def test_a_connection_holds_so_many_and_the_rest_is_answered(live: Any, code: int) -> None:
    live.broker.parts.hold_limits.connection_count_max = 3
    live.broker.parts.topics.create_internal("T", 1)
    channel = await live.peer.channel()
    answers = [channel.invoke_nowait(waiting_request(live, code), 10.0) for _ in range(5)]
    done, waits = await asyncio.wait(answers[3:])
    assert (len(done), waits) == (2, set())
    assert {each.result().code for each in done} <= {0, 19, 209}
    assert len(held_in(live, code)) == 3
    other = live.another()
    more = asyncio.create_task(
        other.call(code, waiting_request(live, code).ext_fields, timeout_s=10.0)
    )
    await live.until(lambda: len(held_in(live, code)) == 4)
    await other.client.aclose()
    await live.until(lambda: len(held_in(live, code)) == 3)
    assert len(live.broker.parts.hold_limits) == 1
    more.cancel()


def test_those_that_hold_much_do_not_keep_out_those_that_hold_little() -> None:
    limits = HoldLimits(connection_bytes_max=800, total_max=1000)
    while limits.take("greedy", 100):
        pass
    while limits.take("also greedy", 100):
        pass
    assert limits.total == 800 + 500  # the second came when there were two to share
    assert limits.take("honest", 100)
    assert limits.take("honest", 200)
    assert not limits.take("honest", 100)  # 400 of a share of 333
    assert not limits.take("greedy", 1)
    assert not limits.take("also greedy", 1)
    for _ in range(8):
        limits.give("greedy", 100)
    assert limits.take("honest", 100)
    assert limits.total <= 2 * limits.total_max


def test_pops_of_a_closed_connection_are_forgotten_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling_module, "GONE_AT_ONCE", 4)
    polling = PopPolling()
    for number in range(10):
        assert polling.wait(Waiting("gone", number, "T", "G", number % 2, 1000))
    assert polling.wait(Waiting("other", "other", "T", "G", 0, 1000))
    assert polling.connection_closed("gone") == 10
    assert len(polling) == 7
    # Who is gone is not woken in place of others, and has no time that is over.
    assert [each.request for each in polling.on_message_arriving("T", 0)] == ["other"]
    assert polling.on_message_arriving("T", 1) == []
    assert polling.on_time(2000) == []
    assert len(polling) == 0
    assert polling.connection_closed("gone") == 0
    assert len(polling._limits) == 0


def test_pops_whose_time_is_over_come_out_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling_module, "DUE_AT_ONCE", 4)
    polling = PopPolling()
    for number in range(10):
        assert polling.wait(Waiting("channel", number, "T", "G", 0, 1000 + number))
    due = [[each.request for each in polling.on_time(2000)] for _ in range(4)]
    assert due == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_groups_that_wait_at_a_topic_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling_module, "GROUPS_PER_TOPIC_MAX", 3)
    polling = PopPolling()

    def wait(topic: str, group: str) -> bool:
        return polling.wait(Waiting("channel", "request", topic, group, 0, 1000))

    assert [wait("T", f"g{number}") for number in range(5)] == [True] * 3 + [False] * 2
    assert wait("T", "g0")
    assert wait("U", "g4")
    assert polling.take("T", "g1", 0) is not None
    assert wait("T", "g4")


async def test_who_is_woken_is_served_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond of the loop's time."""
    loop = asyncio.get_running_loop()
    real, passed, turns = loop.time, [0.0], [0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    served: list[tuple[int, int]] = []
    done = asyncio.Event()

    def serve(number: int) -> None:
        passed[0] += 0.001
        served.append((turns[0], number))
        if len(served) == 40:
            done.set()

    in_turns = InTurns(serve)
    in_turns.soon(range(40))

    def turn() -> None:
        turns[0] += 1
        if not done.is_set():
            loop.call_soon(turn)

    turn()
    async with asyncio.timeout(60):
        await done.wait()
    assert [number for _, number in served] == list(range(40))
    assert max(Counter(turn for turn, _ in served).values()) <= 10
    in_turns.soon([40, 41])
    in_turns.serve_all()
    assert len(served) == 42


async def test_one_that_cannot_be_served_holds_up_nobody() -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    served: list[int] = []
    done = asyncio.Event()
    failure = RuntimeError("not this one")

    def serve(number: int) -> None:
        if number == 1:
            raise failure
        served.append(number)
        if number == 3:
            done.set()

    InTurns(serve).soon(range(4))
    async with asyncio.timeout(60):
        await done.wait()
    assert served == [0, 2, 3]
    assert errors == [failure]


def test_deadlines_of_what_was_woken_are_not_kept() -> None:
    polling = PopPolling()
    for number in range(20_000):
        assert polling.wait(Waiting("channel", "request", "T", "G", 0, number + 10**12))
        assert polling.take("T", "G", 0) is not None
    assert len(polling) == 0
    assert len(polling._deadlines) <= DEADLINES_SPARE + 1
    assert polling.on_time(10**15) == []
