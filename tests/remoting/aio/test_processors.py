"""Stages: order, limits, time-outs and ends, of threads and of tasks, over a fake channel."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from oberth.errors import StoreFullError
from oberth.remoting.aio import processors
from oberth.remoting.aio import processors as processors_module
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.stage import (
    EXPIRED_A_TURN,
    FIELD_SIZE,
    WAITING_SIZE,
    Stage,
    error_response,
    waiting_size,
)
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand, create_response

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


Slicing = Generator[None, None, RemotingCommand | None]


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop has all the time it needs, also where the machine stands still."""
    monkeypatch.setattr(processors_module, "TURN_S", BOUND_S)


class FakeChannel:
    """Keeps what is replied, and counts what is at work."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, RemotingCommand]] = []
        self.in_work = 0
        self.is_closed = False
        self.is_held = False
        self.is_deaf = False
        self.in_work_bytes = 0
        self.waiting: list[Callable[[], None]] = []
        self.changed = asyncio.Event()

    def takes_more(self) -> bool:
        return not self.is_deaf

    def when_writable(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def hear(self) -> None:
        self.is_deaf = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()

    def work_started(self, size: int) -> None:
        self.in_work += 1
        self.in_work_bytes += size

    def hold_reading(self) -> None:
        self.is_held = True

    def resume_reading(self) -> None:
        self.is_held = False

    def cork(self) -> None:
        pass

    def uncork(self) -> None:
        pass

    def work_finished(self, size: int) -> None:
        self.in_work -= 1
        self.in_work_bytes -= size
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


@pytest.mark.parametrize("swept", [True, False])
async def test_very_many_that_waited_too_long_are_answered_in_turns(
    channel: Any, swept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 000 in one go, when their time was over, held the loop for 80 ms."""
    release = threading.Event()

    def hang(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        assert release.wait(BOUND_S)
        return create_response(request, 0)

    stage = Stage("hung", threads=1, wait_ms_max=0)
    if not swept:  # the one at work ends first
        monkeypatch.setattr(stage, "_sweep", lambda: None)
        release.set()
    count = 3 * EXPIRED_A_TURN
    stage.submit(channel, requests(count + 1), hang)
    by_turn = [0]
    loop = asyncio.get_running_loop()

    def turn() -> None:
        by_turn.append(len(channel.replies))
        if len(channel.replies) < count:
            loop.call_soon(turn)

    loop.call_soon(turn)
    await channel.wait_replies(count)
    by_turn.append(len(channel.replies))
    steps = [after - before for before, after in itertools.pairwise(by_turn)]
    assert 0 < max(steps) <= EXPIRED_A_TURN + 1
    release.set()
    await channel.wait_replies(count + 1)
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
    assert "stage stuck: 1 requests at work and 1 that waited were given up" in caplog.text
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


def test_a_full_disk_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    error = StoreFullError("/store/config/topics.json.tmp: no room for 26476 bytes")
    response = error_response(RemotingCommand(code=17), error)
    assert response.remark == f"StoreFullError: {error}"
    [record] = caplog.records
    assert record.getMessage() == f"a request of code 17 failed: {error}"
    assert record.exc_info is None


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


async def test_a_burst_with_too_few_answers_is_our_bug() -> None:
    table = ProcessorTable()
    table.burst([7], lambda channel, requests: [])
    fake = FakeChannel.__new__(FakeChannel)
    fake.replies = []
    fake.is_deaf = False
    fake.changed = cast(asyncio.Event, threading.Event())
    table.dispatch(cast(Channel, fake), requests(2))
    assert [reply.code for _, reply in fake.replies] == [1, 1]
    assert "0 responses to 2 requests" in (fake.replies[0][1].remark or "")


def fake_channel() -> Any:
    fake = FakeChannel.__new__(FakeChannel)
    fake.replies = []
    fake.is_deaf = False
    fake.changed = cast(asyncio.Event, threading.Event())
    return fake


@pytest.mark.usefixtures("long_turns")
async def test_a_turn_joins_bursts_and_keeps_the_order_of_each_channel() -> None:
    served: list[list[int]] = []

    def burst(channels: Any, run: list[RemotingCommand]) -> list[RemotingCommand | None]:
        assert len(channels) == len(run)
        served.append([request.opaque for request in run])
        return [create_response(request, 0) for request in run]

    def one(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        served.append([request.opaque])
        return create_response(request, 0)

    table = ProcessorTable()
    table.burst([7], burst)
    table.sync([8], one)
    first, second, third, fourth = (fake_channel() for _ in range(4))
    mixed = [*requests(1, 30), RemotingCommand(code=8, opaque=31), *requests(1, 32)]
    unknown = [RemotingCommand(code=9, opaque=40)]
    table.dispatch_turn(
        [(first, requests(2, 10)), (second, mixed), (third, requests(1, 20)), (fourth, unknown)]
    )
    assert served == [[10, 11, 30, 20], [31], [32]]
    assert [opaque for opaque, _ in first.replies] == [10, 11]
    assert [opaque for opaque, _ in second.replies] == [30, 31, 32]
    assert [opaque for opaque, _ in third.replies] == [20]
    assert fourth.replies[0][1].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.usefixtures("long_turns")
async def test_bursts_behind_other_requests_are_joined_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of consumers that pop and acknowledge on the same connection."""
    served: list[list[int]] = []

    def burst(channels: Any, run: list[RemotingCommand]) -> list[RemotingCommand | None]:
        served.append([request.opaque for request in run])
        return [create_response(request, 0) for request in run]

    def one(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return create_response(request, 0)

    table = ProcessorTable()
    table.burst([7], burst)
    table.burst([6], lambda channels, run: burst(channels, run))
    table.sync([8], one)
    codes = [8, 7, 7, 8, 8, 7, 6, 8]
    fakes = [fake_channel() for _ in range(5)]

    def asked(number: int) -> list[RemotingCommand]:
        return [
            RemotingCommand(code=code, opaque=10 * number + each) for each, code in enumerate(codes)
        ]

    table.dispatch_turn([(fake, asked(number)) for number, fake in enumerate(fakes)])
    assert served == [
        [10 * number + each for number in range(5) for each in run] for run in ([1, 2], [5], [6])
    ]
    for number, fake in enumerate(fakes):
        assert [opaque for opaque, _ in fake.replies] == [10 * number + n for n in range(8)]
    # Where the turn has no more time, what is left of a channel waits for another one, in order.
    monkeypatch.setattr(processors_module, "TURN_S", -1.0)
    fakes = [FakeChannel() for _ in range(3)]
    joined = [7, 8, 7]
    table.dispatch_turn(
        [
            (fake, [RemotingCommand(code=code, opaque=n) for n, code in enumerate(joined)])
            for fake in fakes
        ]
    )
    assert all([opaque for opaque, _ in fake.replies] == [0] for fake in fakes)
    assert all(table.has_put_off(fake) for fake in fakes)
    async with asyncio.timeout(100):
        while any(table.has_put_off(fake) for fake in fakes):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    assert all([opaque for opaque, _ in fake.replies] == [0, 1, 2] for fake in fakes)


@pytest.mark.usefixtures("long_turns")
async def test_timed_requests_of_many_channels_are_served_together_as_far_as_time_goes() -> None:
    served: list[list[int]] = []

    def timed(
        channels: Any, run: list[RemotingCommand], until: float
    ) -> list[RemotingCommand | None]:
        assert until > 0
        served.append([request.opaque for request in run])
        return [create_response(request, 0) for request in run[:2]]

    table = ProcessorTable()
    table.timed([7], timed)
    table.sync([8], lambda channel, request: create_response(request, 0))
    fakes = [FakeChannel() for _ in range(3)]
    table.dispatch_turn(
        [
            (
                cast(Channel, fake),
                [*requests(1, 10 * n), RemotingCommand(code=8, opaque=10 * n + 1)],
            )
            for n, fake in enumerate(fakes)
        ]
    )
    # What was not served waits with what its channel asked after it, and is served together, too.
    assert [len(fake.replies) for fake in fakes] == [2, 2, 0]
    assert served == [[0, 10, 20]]
    assert [fake.is_held for fake in fakes] == [False, False, True]
    await fakes[2].wait_replies(2)
    assert [[opaque for opaque, _ in fake.replies] for fake in fakes] == [
        [0, 1],
        [10, 11],
        [20, 21],
    ]
    # A read alone, of which only a part is served.
    served.clear()
    table.dispatch(cast(Channel, fakes[0]), requests(5, 40))
    assert served == [[40, 41, 42, 43, 44]]
    await fakes[0].wait_replies(7)
    assert served == [[40, 41, 42, 43, 44], [42, 43, 44], [44]]
    assert not any(fake.is_held for fake in fakes)


@pytest.mark.usefixtures("long_turns")
async def test_what_was_put_off_is_joined_too() -> None:
    served: list[list[int]] = []
    count = [1]

    def timed(
        channels: Any, run: list[RemotingCommand], until: float
    ) -> list[RemotingCommand | None]:
        served.append([request.opaque for request in run])
        taken, count[0] = count[0], len(run)
        return [create_response(request, 0) for request in run[:taken]]

    table = ProcessorTable()
    table.timed([7], timed)
    count[0] = 1
    fakes = [FakeChannel() for _ in range(4)]
    table.dispatch_turn([(cast(Channel, fake), requests(1, n)) for n, fake in enumerate(fakes)])
    await fakes[3].wait_replies(1)
    assert served == [[0, 1, 2, 3], [1, 2, 3]]
    assert table._put_off.waiting_bytes == 0


@pytest.mark.usefixtures("long_turns")
async def test_timed_requests_that_fail_or_get_too_many_answers_hear_of_it() -> None:
    def fails(
        channels: Any, run: list[RemotingCommand], until: float
    ) -> list[RemotingCommand | None]:
        if run[0].opaque:
            raise StoreFullError("no room")
        return []

    table = ProcessorTable()
    table.timed([7], fails)
    fakes = [FakeChannel() for _ in range(2)]
    table.dispatch_turn([(cast(Channel, fake), requests(1, 9)) for fake in fakes])
    assert [fake.replies[0][1].code for fake in fakes] == [1, 1]
    table.dispatch(cast(Channel, fakes[0]), requests(1))
    assert "0 responses to 1 requests" in str(fakes[0].replies[1][1].remark)


@pytest.mark.usefixtures("long_turns")
async def test_a_turn_that_fails_or_is_refused_answers_everybody() -> None:
    def fails(channels: Any, run: list[RemotingCommand]) -> list[RemotingCommand | None]:
        raise StoreFullError("no room")

    why: list[str | None] = [None]
    table = ProcessorTable()
    table.burst([7], fails, reject=lambda: why[0])
    first, second = fake_channel(), fake_channel()
    table.dispatch_turn([(first, requests(2)), (second, requests(1))])
    why[0] = "full"
    table.dispatch_turn([(first, requests(2)), (second, requests(1))])
    table.going_away = True
    table.dispatch_turn([(second, requests(1))])
    for fake, count in ((first, 2), (second, 1)):
        codes = [reply.code for _, reply in fake.replies]
        assert codes[: 2 * count] == [1] * count + [2] * count


async def test_slices_take_turns_and_the_loop_turns_between(channel: Any) -> None:
    table = ProcessorTable()
    done: list[int] = []

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        for _ in range(request.opaque):
            done.append(request.opaque)
            yield
        return create_response(request, 0)

    table.sliced([7], sliced)
    other = FakeChannel()
    table.dispatch(channel, requests(1) + requests(2, 2))
    table.dispatch(cast(Channel, other), requests(1, 4))
    assert [opaque for opaque, _ in channel.replies] == [0]  # nothing to yield for: done at once
    assert channel.in_work == 2
    turns = 0
    while len(channel.replies) < 3 or not other.replies:
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) - before <= 1
        turns += 1
    assert turns >= 7
    # Channels take turns; what a channel sent is worked on one after the other.
    assert [each for each in done if each != 4] == [2, 2, 3, 3, 3]
    assert done[:5] == [2, 4, 2, 4, 4]
    assert channel.in_work == other.in_work == 0


async def test_what_waits_for_slices_is_bounded(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "SLICED_BYTES_MAX", 10)
    table = ProcessorTable()

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        yield
        return create_response(request, 0)

    table.sliced([7], sliced)
    asked = [RemotingCommand(code=7, opaque=n, body=bytes(11)) for n in range(2)]
    table.dispatch(channel, asked)
    assert table._slices.waiting_bytes == waiting_size(asked[0]) >= WAITING_SIZE + 11
    answers = await channel.wait_replies(2)
    assert answers[1].code == ResponseCode.SYSTEM_BUSY
    assert "allowed 10" in str(answers[1].remark)
    assert answers[0].code == 0
    table.dispatch(channel, [RemotingCommand(code=7, opaque=3)])
    assert (await channel.wait_replies(3))[3].code == 0


async def test_headers_of_what_waits_for_slices_count(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counted 1 KiB, and might have 256 KiB: 8 GiB of one connection."""
    monkeypatch.setattr(processors, "SLICED_BYTES_MAX", 50_000)
    table = ProcessorTable()

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        yield
        request.ext_fields = None  # what a request has counted is given back all the same
        return create_response(request, 0)

    table.sliced([7], sliced)
    long = {"x": "y" * 30_000}
    table.dispatch(channel, [RemotingCommand(code=7, opaque=n, ext_fields=long) for n in range(4)])
    answers = await channel.wait_replies(4)
    busy = ResponseCode.SYSTEM_BUSY
    assert [answers[number].code for number in range(4)] == [0, 0, busy, busy]
    assert table._slices.waiting_bytes == 0


def test_what_a_request_that_waits_counts() -> None:
    def more(**fields: Any) -> int:
        return waiting_size(RemotingCommand(**fields)) - waiting_size(RemotingCommand())

    text = "x" * 1000
    assert more(body=bytes(1000)) == more(remark=text) == 1000
    assert more(language=text) > 900
    assert more(ext_fields={"k": text}) > 1000
    assert more(ext_fields={text: "v"}) > 1000
    # One such character, and all others of its text take four bytes.
    assert more(ext_fields={"k": text + "\U0001f600"}) > 4000
    assert more(ext_fields={f"{number}": "" for number in range(1000)}) > 1000 * FIELD_SIZE


async def test_a_failing_slice_is_answered(channel: Any) -> None:
    table = ProcessorTable()

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        yield
        raise StoreFullError("full")

    table.sliced([7], sliced)
    table.dispatch(channel, requests(1))
    assert "full" in str((await channel.wait_replies(1))[0].remark)
    assert channel.in_work == 0


async def test_bodies_are_no_longer_than_their_codes_allow(channel: Any) -> None:
    served = []
    table = ProcessorTable(body_size_max=10)
    table.sync([7], lambda channel, request: served.append(request.opaque))
    table.sync([8], lambda channel, request: served.append(request.opaque), body_size_max=20)
    table.dispatch(
        channel,
        [
            RemotingCommand(code=code, opaque=n, body=bytes(size))
            for n, (code, size) in enumerate([(7, 10), (7, 11), (8, 20), (8, 21), (9, 11)])
        ],
    )
    assert served == [0, 2]
    answers = dict(channel.replies)
    assert answers[1].remark == "body of 11 bytes, code 7 allows 10"
    assert answers[3].remark == "body of 21 bytes, code 8 allows 20"
    assert sorted(answers) == [1, 3, 4]


class Work:
    """Handlers that take a millisecond of the loop's time each, and say what they served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.passed = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() * 1e-9 + self.passed)
        self.served: list[int] = []
        self.table = ProcessorTable()
        self.table.sync([7], self.one)
        self.table.burst([8], lambda _, run: [self.one(None, each) for each in run])

    def one(self, channel: object, request: RemotingCommand) -> RemotingCommand:
        self.passed += 0.001
        self.served.append(request.opaque)
        return create_response(request, 0)

    async def turn(self) -> int:
        """How many the next turn serves."""
        before = len(self.served)
        await asyncio.sleep(0)
        return len(self.served) - before


async def test_what_does_not_fit_into_a_turn_is_put_off(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    most = round(processors.TURN_S / 0.001) + 1
    work.table.dispatch(channel, requests(20))
    assert 0 < len(work.served) <= most
    assert channel.is_held
    # What is read meanwhile comes behind it; another channel is served at once, and takes turns.
    work.table.dispatch(channel, requests(2, 20))
    other = cast(Any, FakeChannel())
    before = len(work.served)
    work.table.dispatch(other, requests(1, 100))
    assert len(work.served) == before + 1
    while len(work.served) < 23:
        assert 0 < await work.turn() <= most
    assert [each for each in work.served if each < 100] == list(range(22))
    assert [opaque for opaque, _ in channel.replies] == list(range(22))
    assert not channel.is_held
    assert work.table._put_off.waiting_bytes == 0


async def test_turns_of_many_channels_are_put_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    channels = [cast(Any, FakeChannel()) for _ in range(20)]
    work.table.dispatch_turn([(each, requests(2, 2 * n)) for n, each in enumerate(channels)])
    most = round(processors.TURN_S / 0.001) + 1
    assert 0 < len(work.served) <= most
    while len(work.served) < 40:
        assert 0 < await work.turn() <= most
    for number, each in enumerate(channels):
        assert [opaque for opaque, _ in each.replies] == [2 * number, 2 * number + 1]


async def test_sends_of_one_read_stay_one_burst(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    work.table.dispatch(channel, [RemotingCommand(code=8, opaque=n) for n in range(50)])
    assert len(work.served) == 50


async def test_what_is_put_off_is_bounded_and_goes_with_its_channel(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    monkeypatch.setattr(processors, "PUT_OFF_BYTES_MAX", 4 * WAITING_SIZE)
    work.table.dispatch(channel, requests(30))
    refused = {number: each for number, each in channel.replies if each.code}
    assert refused
    assert all(each.code == ResponseCode.SYSTEM_BUSY for each in refused.values())
    assert "are put off, allowed" in str(refused[29].remark)
    put_off = 30 - len(channel.replies)
    assert 0 < put_off <= 5
    channel.is_closed = True
    await work.turn()
    assert work.table._put_off.waiting_bytes == 0
    assert not work.table._put_off._waiting


async def test_what_is_quickly_done_comes_after_what_is_in_slices(channel: Any) -> None:
    """Requests of one connection: the second would say what the first is about to change."""
    asked: list[int] = []

    def at_once(channel: Channel, request: RemotingCommand) -> bool:
        asked.append(request.opaque)
        if request.opaque == 9:
            raise StoreFullError("no room")
        if request.opaque != 3:
            return False
        channel.reply(request, create_response(request, 0))
        return True

    def slowly(channel: Channel, request: RemotingCommand) -> Slicing:
        yield
        return create_response(request, 0)

    table = ProcessorTable()
    table.sliced([7], slowly, at_once=at_once)
    table.dispatch(channel, requests(2, 2))
    assert asked == [2]
    await channel.wait_replies(2)
    table.dispatch(channel, requests(1, 3))
    assert asked == [2, 3]
    assert [opaque for opaque, _ in channel.replies] == [2, 3, 3]
    table.dispatch(channel, requests(1, 9))
    assert channel.replies[-1][1].code == 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("long_turns")
async def test_slices_wait_for_who_takes_no_answers(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        begun.append(request.opaque)
        yield
        return create_response(request, 0)

    def at_once(channel: Channel, request: RemotingCommand) -> bool:
        begun.append(-1)
        return False

    table = ProcessorTable()
    table.sliced([7], sliced, at_once=at_once)
    table.dispatch(channel, requests(3))
    assert begun == [-1, 0]
    # What is begun goes on: it may hold what others wait for. The rest waits, and keeps out nobody.
    channel.is_deaf = True
    await turns(9)
    assert (begun, [opaque for opaque, _ in channel.replies]) == ([-1, 0], [0])
    assert (table._slices.waiting_bytes, channel.in_work) == (0, 2)
    assert channel.in_work_bytes > 2 * WAITING_SIZE
    monkeypatch.setattr(processors, "SLICED_BYTES_MAX", 0)
    other = cast(Any, FakeChannel())
    table.dispatch(other, requests(1, 10))
    assert (await other.wait_replies(1))[10].code == 0
    table.dispatch(channel, requests(1, 3))  # comes behind them
    monkeypatch.setattr(processors, "SLICED_BYTES_MAX", 1 << 20)
    channel.hear()
    await channel.wait_replies(4)
    assert [opaque for opaque, _ in channel.replies] == [0, 1, 2, 3]
    assert (channel.in_work, channel.in_work_bytes, table._slices.waiting_bytes) == (0, 0, 0)
    # Neither begins what comes while it takes nothing.
    before = len(begun)
    channel.is_deaf = True
    table.dispatch(channel, requests(1, 4))
    await turns(9)
    assert len(begun) == before
    # It goes: nothing is done for it.
    channel.is_closed = True
    channel.hear()
    await turns(9)
    assert len(begun) == before
    assert (channel.in_work_bytes, table._slices.waiting_bytes) == (0, 0)
    assert channel not in table._slices


async def test_what_is_put_off_waits_for_who_takes_no_answers(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)

    def deaf_after(channel: Any, request: RemotingCommand) -> RemotingCommand:
        channel.is_deaf = request.opaque == 2
        return work.one(channel, request)

    work.table.sync([9], deaf_after)
    work.table.dispatch(channel, [RemotingCommand(code=9, opaque=n) for n in range(6)])
    assert work.served == [0, 1, 2]
    await turns(9)
    assert work.served == [0, 1, 2]
    assert channel.is_held
    assert work.table.has_put_off(channel)
    assert work.table.put_off_of([channel]) == [channel]
    # It keeps out nobody, and what it has sent meanwhile comes behind.
    assert (work.table._put_off.waiting_bytes, channel.in_work) == (0, 3)
    work.table.dispatch(channel, requests(1, 6))
    assert channel.in_work_bytes > 4 * WAITING_SIZE
    channel.hear()
    await channel.wait_replies(7)
    assert work.served == [0, 1, 2, 3, 4, 5, 6]
    assert (channel.in_work, channel.in_work_bytes, channel.is_held) == (0, 0, False)
    channel.is_deaf = True
    work.table.dispatch(channel, requests(3))
    await turns(9)
    assert work.served == [0, 1, 2, 3, 4, 5, 6, 0]
    channel.is_closed = True
    channel.hear()
    await turns(9)
    assert (channel.in_work_bytes, work.table._put_off.waiting_bytes) == (0, 0)
    assert not work.table.has_put_off(channel)


async def test_stages_set_aside_what_nobody_would_take(channel: Any) -> None:
    release = asyncio.Event()
    other = cast(Any, FakeChannel())

    async def wait(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await release.wait()
        return create_response(request, 0)

    stage = Stage("tasks", tasks=1, queue_max=4, wait_ms_max=1000 * BOUND_S)
    stage.submit(channel, requests(4), wait)
    stage.submit(other, requests(1, 10), wait)
    channel.is_deaf = True
    release.set()
    await other.wait_replies(1)
    assert [opaque for opaque, _ in channel.replies] == [0]
    # They keep out nobody.
    assert (stage.working, stage.queue_size, channel.in_work) == (0, 0, 3)
    stage.submit(channel, requests(1, 4), wait)
    stage.submit(other, requests(4, 11), wait)
    await other.wait_replies(5)
    assert len(channel.replies) == 1
    channel.hear()
    await channel.wait_replies(5)
    assert [opaque for opaque, _ in channel.replies] == [0, 1, 2, 3, 4]
    assert (channel.in_work, channel.in_work_bytes, stage.working) == (0, 0, 0)
    channel.is_deaf = True
    release.clear()
    stage.submit(other, requests(1), wait)
    stage.submit(channel, requests(1), wait)
    release.set()
    await other.wait_replies(6)
    await stage.aclose()
    channel.hear()
    assert len(channel.replies) == 5


@pytest.mark.usefixtures("long_turns")
async def test_rounds_ask_whether_a_peer_takes_more(channel: Any) -> None:
    """Of what follows in the read nothing is served for it, be it in a burst or not."""
    served: list[int] = []

    def deafens(channel: Any, request: RemotingCommand) -> RemotingCommand:
        channel.is_deaf = True
        served.append(request.opaque)
        return create_response(request, 0)

    def burst(channels: Any, run: list[RemotingCommand]) -> list[RemotingCommand | None]:
        for each, request in zip(channels, run, strict=True):
            each.is_deaf = request.opaque % 10 == 1
            served.append(request.opaque)
        return [create_response(request, 0) for request in run]

    table = ProcessorTable()
    table.sync([9], deafens)
    table.burst([7], burst)
    table.burst([6], lambda channels, run: burst(channels, run))
    table.sync([8], lambda channel, request: served.append(request.opaque))

    def asked(start: int, *codes: int) -> list[RemotingCommand]:
        return [RemotingCommand(code=code, opaque=start + n) for n, code in enumerate(codes)]

    second, third = (cast(Any, FakeChannel()) for _ in range(2))
    table.dispatch_turn(
        [
            (channel, asked(0, 9, 7, 8)),
            (second, asked(10, 7, 7, 6)),
            (third, asked(20, 7, 6, 8)),
        ]
    )
    assert served == [0, 10, 11, 20, 21]
    await turns(9)
    assert served == [0, 10, 11, 20, 21]
    for number, each in enumerate((channel, second, third)):
        each.hear()
        while table.has_put_off(each):
            if each.is_deaf:
                each.hear()
            await asyncio.sleep(0)
        assert [n for n in served if n // 10 == number] == [10 * number + n for n in range(3)]


def oneway(code: int, opaque: int) -> RemotingCommand:
    return RemotingCommand(code=code, opaque=opaque, flag=ONEWAY_FLAG)


async def test_what_lasts_is_served_although_its_connection_has_closed(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that shuts down commits one-way, and closes: some had not been begun by then."""
    work = Work(monkeypatch)
    work.table.sync([9], work.one)
    work.table.let_last([9])
    channel.is_deaf = True
    mixed = [
        *requests(2),
        oneway(9, 2),
        oneway(7, 3),
        RemotingCommand(code=9, opaque=4),
        *[oneway(9, 5 + n) for n in range(processors.ROUND_MAX)],
    ]
    work.table.dispatch(channel, mixed)
    await turns(9)
    assert work.served == [0]
    channel.is_closed = True
    channel.hear()
    while work.table.has_put_off(channel):
        assert await work.turn() <= round(processors.TURN_S / 0.001) + 1
    assert work.served == [0, 2, *range(5, 5 + processors.ROUND_MAX)]
    assert (channel.in_work, channel.in_work_bytes, channel.is_held) == (0, 0, False)
    assert work.table._put_off.waiting_bytes == 0


@pytest.mark.usefixtures("long_turns")
async def test_what_lasts_is_done_in_slices_although_its_connection_has_closed(
    channel: Any,
) -> None:
    done: list[int] = []

    def sliced(channel: Channel, request: RemotingCommand) -> Slicing:
        yield
        done.append(request.opaque)
        return create_response(request, 0)

    table = ProcessorTable()
    table.sliced([7, 9], sliced)
    table.let_last([9])
    mixed = [oneway(9, 0), oneway(7, 1), RemotingCommand(code=9, opaque=2), oneway(9, 3)]
    for fast in (table, table.without([1])):
        done.clear()
        fast.dispatch(channel, mixed)
        channel.is_closed = True
        await turns(20)
        assert done == [0, 3]
        assert (channel.in_work_bytes, table._slices.waiting_bytes) == (0, 0)
        channel.is_closed = False


async def test_stages_do_nothing_for_who_has_gone(channel: Any) -> None:
    """What was set aside was done when its connection had closed, however late that was."""
    done: list[int] = []

    async def work(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        done.append(request.opaque)
        return create_response(request, 0)

    stage = Stage("tasks", tasks=1)
    other = cast(Any, FakeChannel())
    stage.submit(other, requests(1, 10), work)
    stage.submit(channel, [*requests(2), oneway(7, 2), *requests(1, 3)], work)
    channel.is_deaf = True
    await other.wait_replies(1)
    await turns(9)
    assert (done, channel.in_work) == ([10], 4)
    channel.is_closed = True
    channel.hear()
    await turns(9)
    assert done == [10, 2]
    assert (channel.in_work, channel.in_work_bytes, stage.working) == (0, 0, 0)
    channel.is_closed = False
    channel.is_deaf = True
    stage.submit(other, requests(1, 11), work)
    stage.submit(channel, requests(1), work)
    await other.wait_replies(2)
    channel.is_closed = True
    channel.hear()
    await turns(9)
    assert (done, channel.in_work, stage._deaf) == ([10, 2, 11], 0, {})
    await stage.aclose()


async def test_what_a_stage_set_aside_takes_turns_with_others(channel: Any) -> None:
    """It was put before all others, also beyond what the queue has room for."""
    done: list[int] = []
    release = asyncio.Event()

    async def work(channel: Any, request: RemotingCommand) -> RemotingCommand:
        await release.wait()
        done.append(request.opaque)
        channel.is_deaf = request.opaque == 1
        return create_response(request, 0)

    stage = Stage("tasks", tasks=1, queue_max=4)
    other = cast(Any, FakeChannel())
    stage.submit(other, requests(1, 10), work)
    stage.submit(channel, requests(4), work)
    channel.is_deaf = True
    release.set()
    await turns(9)
    assert (done, stage.queue_size, channel.in_work) == ([10], 0, 4)
    release.clear()
    stage.submit(other, requests(4, 11), work)
    channel.hear()
    stage.submit(channel, requests(1, 4), work)  # behind what else there is of it
    assert (stage.queue_size, channel.in_work) == (3, 5)
    stage.submit(other, requests(2, 15), work)
    assert [opaque for opaque, reply in other.replies if reply.code] == [16]
    release.set()
    # Its first two answers are so long that it does not take the others.
    await turns(40)
    assert done == [10, 11, 0, 12, 1, 13, 14, 15]
    channel.hear()
    await channel.wait_replies(5)
    assert [opaque for opaque, _ in channel.replies] == [0, 1, 2, 3, 4]
    assert (channel.in_work, stage._deaf, stage._heard) == (0, {}, {})
    await stage.aclose()


async def test_what_a_stage_set_aside_keeps_its_order(channel: Any) -> None:
    """Also where its peer takes answers again before all of it has left the queue."""
    release = asyncio.Event()

    async def work(channel: Any, request: RemotingCommand) -> RemotingCommand:
        await release.wait()
        return create_response(request, 0)

    stage = Stage("tasks", tasks=1)
    other = cast(Any, FakeChannel())
    stage.submit(other, requests(1, 10), work)
    stage.submit(channel, requests(2), work)
    stage.submit(other, requests(1, 11), work)
    stage.submit(channel, requests(2, 2), work)
    channel.is_deaf = True
    release.set()
    await other.wait_replies(1)
    assert stage.queue_size == 2
    channel.is_deaf = False  # `_take_up` is called in a turn of its own
    await other.wait_replies(2)
    await turns(9)
    assert channel.replies == []
    channel.hear()
    await channel.wait_replies(4)
    assert [opaque for opaque, _ in channel.replies] == [0, 1, 2, 3]
    await stage.aclose()
