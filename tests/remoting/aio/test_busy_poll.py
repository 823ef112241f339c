"""The loop stays awake for a peer that asks again at once, and for nobody else, and not for long.

A clock that tests turn by hand decides what is soon; a list stands in for the loop where turns are
counted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.remoting.aio import busy_poll
from oberth.remoting.aio.busy_poll import (
    CROWDED_AGAIN_S,
    CROWDED_S,
    SCORE_CROWDED,
    SCORE_MAX,
    SCORE_MIN,
    SCORE_MISSED,
    BusyPoll,
    make_busy_poll,
    usable_cpus,
)
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.command import RemotingCommand, create_request, create_response

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_yield"), reason="no sched_yield here, so nothing polls"
)

StartServer = Callable[..., Awaitable[RemotingServer]]
StartClient = Callable[..., RemotingClient]

ECHO = 7001
WINDOW_S = 0.0004
LONG_S = 60.0
SOON_S = WINDOW_S / 2
LATE_S = WINDOW_S * 3


class Turns:
    """A loop that keeps what is to be called next."""

    def __init__(self) -> None:
        self.next: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.next.append(callback)

    def turn(self) -> None:
        now, self.next = self.next, []
        for callback in now:
            callback()


class Bench:
    """A BusyPoll, its loop and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.turns = Turns()
        self.poll = BusyPoll(cast(asyncio.AbstractEventLoop, cast(Any, self.turns)), WINDOW_S)
        monkeypatch.setattr(busy_poll, "perf_counter", lambda: self.now)

    def ask(self, channel: str = "a", *, after_s: float = SOON_S, count: int = 1) -> None:
        """A request comes ``after_s`` behind the last answer and is answered at once."""
        self.now += after_s
        self.poll.served(channel, count, self.now)

    def looks_again(self) -> bool:
        """Whether it looks once more after this turn of the loop."""
        self.turns.turn()
        assert self.poll.is_awake == bool(self.turns.next)
        assert len(self.turns.next) <= 1, "one look at a time"
        return self.poll.is_awake


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_stays_awake_for_who_asks_soon_again(bench: Bench) -> None:
    for _ in range(SCORE_MIN):
        bench.ask()  # the first only begins
        assert not bench.looks_again()
    bench.ask()
    assert bench.looks_again()
    for _ in range(100):
        assert bench.looks_again(), "the clock stands still"


def test_sleeps_when_nobody_asks_any_more(bench: Bench) -> None:
    for _ in range(SCORE_MIN + 1):
        bench.ask()
    bench.now += WINDOW_S * 0.9
    assert bench.looks_again()
    bench.now += WINDOW_S * 0.2
    assert not bench.looks_again()
    assert not bench.turns.next


def test_never_for_who_asks_late(bench: Bench) -> None:
    for _ in range(100):
        bench.ask(after_s=LATE_S)
        assert not bench.looks_again()


def test_an_answer_that_had_to_wait_counts_from_when_it_goes_out(bench: Bench) -> None:
    for _ in range(SCORE_MIN + 1):
        bench.ask()
        bench.now += LATE_S  # a replica confirms it
        bench.poll.answered()
    assert bench.looks_again()
    bench.now += WINDOW_S * 0.9
    assert bench.looks_again(), "since the answer"
    bench.now += WINDOW_S * 0.2
    assert not bench.looks_again()
    bench.poll.answered()
    assert bench.looks_again(), "a late replica is no pause of who asks"


def test_an_answer_that_had_to_wait_wakes_nobody_by_itself(bench: Bench) -> None:
    bench.ask()
    bench.poll.answered()
    assert not bench.looks_again()


def test_one_pause_does_not_end_it_but_several_do(bench: Bench) -> None:
    for _ in range(SCORE_MAX + 1):
        bench.ask()
    bench.now += LATE_S
    assert not bench.looks_again()
    bench.ask(after_s=0)
    assert bench.looks_again(), "one pause"
    for _ in range((SCORE_MAX - SCORE_MIN) // SCORE_MISSED):
        bench.ask(after_s=LATE_S)
    assert not bench.looks_again(), "several"


@pytest.mark.parametrize("other", [{"channel": "b"}, {"count": 2}])
def test_not_while_others_ask(bench: Bench, other: dict[str, Any]) -> None:
    for _ in range(SCORE_MAX + 1):
        bench.ask()
    assert bench.looks_again()
    bench.ask(**other)
    assert not bench.looks_again()
    bench.ask()
    assert not bench.looks_again()


@pytest.mark.parametrize("now_and_then", [False, True])
def test_sleeps_on_a_busy_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, now_and_then: bool
) -> None:
    away_s = CROWDED_S * 0.9

    def sched_yield() -> None:
        bench.now += away_s

    monkeypatch.setattr(os, "sched_yield", sched_yield)
    bench.poll = BusyPoll(cast(asyncio.AbstractEventLoop, cast(Any, bench.turns)), LONG_S)
    for _ in range(SCORE_MIN + 1):
        bench.ask()
    assert bench.looks_again(), "somebody used the processor for a moment"
    away_s = CROWDED_S * 1.1
    assert not bench.looks_again(), "somebody used it for long"
    for _ in range(SCORE_MIN):
        assert not bench.looks_again()
        bench.ask()
    bench.now += CROWDED_AGAIN_S if now_and_then else 0
    assert not bench.looks_again(), "and again"
    away_s = 0.0
    for _ in range(SCORE_MIN - 1 - (0 if now_and_then else SCORE_CROWDED)):
        bench.ask()
        assert not bench.looks_again()
    bench.ask()
    assert bench.looks_again(), "it is tried again"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2 * WINDOW_S), st.integers(1, 2))))
def test_awake_only_within_the_window(asked: list[tuple[str, float, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        bench = Bench(monkeypatch)
        for channel, after_s, count in asked:
            bench.ask(channel, after_s=after_s, count=count)
            bench.looks_again()
        bench.now += WINDOW_S * 1.01
        assert not bench.looks_again()


def echo_table() -> ProcessorTable:
    def echo(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return create_response(request, 0)

    table = ProcessorTable()
    table.sync([ECHO], echo)
    return table


async def test_a_server_keeps_awake_and_serves_others(
    start_server: StartServer, start_client: StartClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_poll, "CPUS_MIN", 0)
    monkeypatch.setattr(busy_poll, "CROWDED_S", LONG_S)
    looks = 0

    def count_looks() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(os, "sched_yield", count_looks)
    server = await start_server(echo_table(), ServerOptions(grace_s=1.0, busy_poll_s=LONG_S))
    lone, other = start_client(), start_client()
    address = str(server.address)
    for _ in range(SCORE_MIN + 1):
        await lone.invoke(address, create_request(ECHO))
    loop = asyncio.get_running_loop()
    timer = loop.create_future()
    loop.call_later(0.02, timer.set_result, None)
    before = looks
    await timer
    assert looks > before, "it looks while nothing comes, and timers go on"
    await other.invoke(address, create_request(ECHO))
    before = looks
    timer = loop.create_future()
    loop.call_later(0.02, timer.set_result, None)
    await timer
    assert looks <= before + 1, "a second one asked: it sleeps"


async def test_a_server_that_is_not_told_to_poll_does_not(
    start_server: StartServer, start_client: StartClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it looked"))
    server = await start_server(echo_table())
    client = start_client()
    for _ in range(SCORE_MAX):
        await client.invoke(str(server.address), create_request(ECHO))


def test_not_where_it_would_do_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = cast(asyncio.AbstractEventLoop, cast(Any, Turns()))
    monkeypatch.setattr(busy_poll, "usable_cpus", lambda: 2.0)
    assert make_busy_poll(loop, WINDOW_S) is not None
    assert make_busy_poll(loop, 0) is None
    monkeypatch.setattr(busy_poll, "usable_cpus", lambda: 1.5)
    assert make_busy_poll(loop, WINDOW_S) is None


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {}, 8.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8.0),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.0),
        ("0::/a\n", {"a/cpu.max": "1600000 100000\n"}, 8.0),
        ("0::/../..\n", {"cpu.max": "max 100000\n"}, 8.0),
        (
            "4:cpu,cpuacct:/d\n3:memory:/d\n0::/\n",
            {"cpu/d/cpu.cfs_quota_us": "50000\n", "cpu/d/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (
            "4:cpu,cpuacct:/d\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            8.0,
        ),
        ("0::/\n", {"cpu.max": "what\n"}, 8.0),
        (None, {"cpu.max": "1 1000\n"}, 8.0),
    ],
)
def test_usable_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    files: dict[str, str],
    cpus: float,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    groups = tmp_path / "own"
    if own is not None:
        groups.write_text(own)
    assert usable_cpus(root, groups) == cpus
