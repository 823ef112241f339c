"""Send, pull and pop with the parts that they take: no broker, no socket, no loop that turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker_config import BrokerConfig
from oberth.broker.old_messages import OldMessages
from oberth.broker.parts import Parts
from oberth.broker.pop.pop_service import PopService
from oberth.broker.processors.pop import PopMessageProcessor
from oberth.broker.processors.pull import PullMessageProcessor
from oberth.broker.processors.send import SendMessageProcessor
from oberth.broker.subscription_groups import SubscriptionGroups
from oberth.broker.table_files import WrittenOnce
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.remoting.aio.address import Address
from oberth.remoting.command import RemotingCommand
from oberth.remoting.connection import RemotingConnection
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

NOW_MS = 1_800_000_000_000


class FakeChannel:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.context: Any = None
        self.local = Address("127.0.0.1", 10911)
        self.remote = Address("127.0.0.1", 50_000)
        self.is_closed = False
        self.is_deaf = False
        self.take_stored = None
        self._connection = RemotingConnection()
        self.answers: list[RemotingCommand] = []

    def awaits(self, _opaque: int) -> bool:
        return True

    def takes_more(self) -> bool:
        return not self.is_deaf

    def unanswered(self, _opaque: int) -> None:
        """Nothing to do."""

    def reply(self, _request: RemotingCommand, response: RemotingCommand) -> None:
        self.answers.append(response)

    def send_frame(self, frame: bytes) -> None:
        self.answers += self._connection.receive_data(frame)

    def send_frames(self, pieces: tuple[Any, ...]) -> None:
        self.send_frame(b"".join(bytes(piece) for piece in pieces))


class FakeDispatching:
    """Dispatches when it is told to; the disk is as slow as a test wants."""

    def __init__(self) -> None:
        self.asked = 0
        self.waits_for_disk = False
        self.waiting: list[tuple[int, Callable[[PutMessageStatus], None]]] = []

    def soon(self) -> None:
        self.asked += 1

    def when_durable(self, end_offset: int, finish: Callable[[PutMessageStatus], None]) -> None:
        self.waiting.append((end_offset, finish))


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parts(tmp_path: Path, clock: Clock) -> Iterator[Parts]:
    made = Parts(
        BrokerConfig(broker_ip1="127.0.0.1", enable_pop_buffer_merge=True),
        MessageStoreConfig(
            store_path_root_dir=str(tmp_path),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_index_num=100,
            max_hash_slot_num=100,
        ),
        clock_ms=clock,
    )
    made.store.load()
    made.store.start(reput_thread=False, background=False)
    made.topics.create_internal("T", 1)
    yield made
    made.store.shutdown()


@pytest.fixture
def channel() -> Any:
    return FakeChannel()


def put(parts: Parts, count: int) -> None:
    parts.store.append_messages(
        [MessageExtBrokerInner.of("T", b"%d" % number) for number in range(count)]
    )
    parts.store.dispatch_nowait()


def bodies(answer: RemotingCommand) -> list[bytes]:
    data, at, found = answer.body_bytes(), 0, []
    while at < len(data):
        record = decode_record(data, at, check_crc=True)
        found.append(record.body)
        at += record.record_size
    return found


def never() -> None:
    """Nothing waits to be dispatched."""


def refuse_task(_work: object) -> None:
    raise AssertionError("nothing here is worked on in a task")


# ------------------------------------------------------------------------------------------- send


@pytest.fixture
def dispatching() -> Any:
    return FakeDispatching()


@pytest.fixture
def send(parts: Parts, dispatching: Any) -> SendMessageProcessor:
    transactions: Any = None  # no half message is sent here
    return SendMessageProcessor(
        config=parts.config,
        store_config=parts.store_config,
        own=parts.own,
        store=parts.store,
        topics=parts.topics,
        static_topics=parts.static_topics,
        groups=parts.groups,
        locks=parts.locks,
        transactions=transactions,
        stats=parts.stats,
        unique_ids=parts.unique_ids,
        now_ms=parts.now_ms,
        dispatching=dispatching,
        topics_written_once=WrittenOnce(never),
        when_on_disk=lambda done: done(True),
        rests_s={},
    )


def send_request(topic: str = "T", body: bytes = b"hello") -> RemotingCommand:
    fields = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
    }
    return RemotingCommand(code=310, ext_fields={**fields, "i": "", "j": "0"}, body=body)


def test_the_sends_of_a_burst_are_one_append(
    parts: Parts, send: SendMessageProcessor, dispatching: Any, channel: Any
) -> None:
    other: Any = FakeChannel()
    requests = [send_request(body=b"%d" % number) for number in range(3)]
    assert send.send([channel, other, channel], requests) == [None, None, None]
    assert [answer.code for answer in channel.answers] == [0, 0]
    assert [answer.fields["queueOffset"] for answer in channel.answers] == ["0", "2"]
    assert [answer.fields["queueOffset"] for answer in other.answers] == ["1"]
    assert dispatching.asked == 1
    assert parts.stats.broker_put.value == 3


def test_a_refused_send_is_answered_and_stores_nothing(
    parts: Parts, send: SendMessageProcessor, channel: Any
) -> None:
    parts.config.auto_create_topic_enable = False
    (refused, taken) = send.send([channel] * 2, [send_request("Nowhere"), send_request()])
    assert refused is not None
    assert (refused.code, taken) == (17, None)
    assert parts.stats.broker_put.value == 1


def test_a_send_is_answered_when_the_disk_has_it(
    parts: Parts,
    send: SendMessageProcessor,
    dispatching: Any,
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts.store, "needs_wait", lambda _message, _result: True)
    dispatching.waits_for_disk = True
    assert send.send([channel], [send_request()]) == [None]
    ((_end, finish),) = dispatching.waiting
    assert channel.answers == []
    finish(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    assert [answer.code for answer in channel.answers] == [10]


def test_what_was_worked_out_of_options_changes_with_them(
    parts: Parts, send: SendMessageProcessor, channel: Any
) -> None:
    send.send([channel], [send_request()])
    parts.config.start_accept_send_request_timestamp = NOW_MS + 1
    send.config_changed({"startAcceptSendRequestTimeStamp": str(NOW_MS + 1)})
    (refused,) = send.send([channel], [send_request()])
    assert refused is not None
    assert "unable to service" in str(refused.remark)


# ------------------------------------------------------------------------------------------- pull


@pytest.fixture
def pull(parts: Parts) -> PullMessageProcessor:
    peers: Any = None  # no queue lies elsewhere
    return PullMessageProcessor(
        config=parts.config,
        store_config=parts.store_config,
        own=parts.own,
        store=parts.store,
        topics=parts.topics,
        static_topics=parts.static_topics,
        groups=parts.groups,
        offsets=parts.offsets,
        consumers=parts.consumers,
        hold=parts.hold,
        cold_reads=parts.cold_reads,
        expressions=None,
        old_messages=OldMessages(parts.store, refuse_task),
        peers=peers,
        stats=parts.stats,
        now_ms=parts.now_ms,
        dispatch_now=never,
        start_task=refuse_task,
    )


def pull_request(offset: int, **more: str) -> RemotingCommand:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1000",
        "subscription": "*",
        "subVersion": "0",
    }
    return RemotingCommand(code=11, ext_fields={**fields, **more})


def pulled(
    pull: PullMessageProcessor, channel: Any, request: RemotingCommand
) -> RemotingCommand | None:
    (answer,) = pull.pull([channel], [request], float("inf"))
    return answer


async def test_a_pull_reads_what_is_there(
    parts: Parts, pull: PullMessageProcessor, channel: Any
) -> None:
    put(parts, 3)
    response = pulled(pull, channel, pull_request(1))
    (answer,) = channel.answers or [response]
    assert answer.code == 0
    assert bodies(answer) == [b"1", b"2"]
    assert answer.fields["nextBeginOffset"] == "3"


async def test_pulls_of_one_turn_are_checked_together(
    parts: Parts, pull: PullMessageProcessor, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each group and topic; each has its own offset, answer and connection."""
    put(parts, 4)
    checks: list[str] = []
    find = SubscriptionGroups.find

    def noted(self: SubscriptionGroups, group: str) -> Any:
        checks.append(group)
        return find(self, group)

    monkeypatch.setattr(SubscriptionGroups, "find", noted)
    other: Any = FakeChannel()
    asked = [
        (channel, pull_request(0)),
        (other, pull_request(3)),
        (channel, pull_request(2, consumerGroup="H")),
        (other, pull_request(1, queueId="7")),
        (channel, pull_request(1, topic="Nowhere")),
        (other, pull_request(1, consumerGroup="H")),
    ]
    answers = pull.pull([each for each, _ in asked], [each for _, each in asked], float("inf"))
    assert checks == ["G", "H", "G"]  # one that is refused is not kept
    assert [None if each is None else each.code for each in answers] == [
        None, None, None, 29, 17, None,
    ]  # fmt: skip
    assert [bodies(each) for each in channel.answers] == [[b"0", b"1", b"2", b"3"], [b"2", b"3"]]
    assert [bodies(each) for each in other.answers] == [[b"3"], [b"1", b"2", b"3"]]
    counts = {key: item.value for key, item in parts.stats.items("GROUP_GET_NUMS")}
    assert counts == {"T@G": 5, "T@H": 5}


async def test_pulls_stop_at_the_end_of_their_time(
    parts: Parts, pull: PullMessageProcessor, channel: Any
) -> None:
    put(parts, 4)
    assert pull.pull([channel] * 3, [pull_request(each) for each in range(3)], 0.0) == [None]
    assert len(channel.answers) == 1


async def test_pulls_stop_where_their_peer_takes_no_more(
    parts: Parts, pull: PullMessageProcessor, channel: Any
) -> None:
    put(parts, 4)
    other: Any = FakeChannel()
    channel.is_deaf = True
    asked = [pull_request(each) for each in range(4)]
    assert pull.pull([channel, other, other, channel], asked, float("inf")) == [None] * 3
    assert (len(channel.answers), len(other.answers)) == (1, 2)


async def test_a_pull_is_held_until_it_is_woken(
    parts: Parts, pull: PullMessageProcessor, channel: Any
) -> None:
    put(parts, 1)
    assert pulled(pull, channel, pull_request(1, sysFlag="6")) is None
    assert (len(parts.hold), channel.answers) == (1, [])
    put(parts, 1)
    (held,) = parts.hold.on_message_arriving("T", 0, 2, None)
    pull.pull_again(held)
    assert [answer.code for answer in channel.answers] == [0]
    assert bodies(channel.answers[0]) == [b"0"]


async def test_a_pull_that_waited_in_vain_is_told_so(
    parts: Parts, pull: PullMessageProcessor, channel: Any
) -> None:
    put(parts, 1)
    assert pulled(pull, channel, pull_request(1, sysFlag="6")) is None
    (held,) = parts.hold.on_time(NOW_MS + 1_000)
    pull.pull_again(held)
    assert [answer.code for answer in channel.answers] == [19]


# -------------------------------------------------------------------------------------------- pop


@pytest.fixture
def service(parts: Parts) -> PopService:
    return PopService(
        config=parts.config,
        store_config=parts.store_config,
        config_dir=parts.config_dir,
        files=parts.files,
        own=parts.own,
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        offsets=parts.offsets,
        timers=None,
        in_memory_bytes=parts.in_memory_bytes,
        hold_limits=parts.hold_limits,
        now_ms=parts.now_ms,
        dispatch_now=never,
        dispatch_soon=never,
        start_task=refuse_task,
        old_messages=OldMessages(parts.store, refuse_task),
        delivers=lambda: True,
    )


@pytest.fixture
def pop(parts: Parts, service: PopService) -> PopMessageProcessor:
    timers: Any = object()  # a broker without them takes no pops
    return PopMessageProcessor(
        config=parts.config,
        own=parts.own,
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        offsets=parts.offsets,
        consumers=parts.consumers,
        expressions=None,
        timers=timers,
        stats=parts.stats,
        now_ms=parts.now_ms,
        dispatch_now=never,
        old_messages=OldMessages(parts.store, refuse_task),
        service=service,
    )


def pop_request(**more: str) -> RemotingCommand:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "maxMsgNums": "2",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": str(NOW_MS),
        "initMode": "0",
    }
    return RemotingCommand(code=200050, ext_fields={**fields, **more})


def asked(
    pop: PopMessageProcessor, channel: Any, request: RemotingCommand
) -> RemotingCommand | None:
    (answer,) = pop.pop([channel], [request], float("inf"))
    return answer


def popped(pop: PopMessageProcessor, channel: Any, request: RemotingCommand) -> RemotingCommand:
    response = asked(pop, channel, request)
    return response if response is not None else channel.answers.pop()


async def test_pops_of_one_turn_are_checked_together(
    parts: Parts, pop: PopMessageProcessor, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each group and topic; each gets its own messages."""
    put(parts, 5)
    checks: list[str] = []
    find = SubscriptionGroups.find

    def noted(self: SubscriptionGroups, group: str) -> Any:
        checks.append(group)
        return find(self, group)

    monkeypatch.setattr(SubscriptionGroups, "find", noted)
    requests = [
        pop_request(),
        pop_request(),
        pop_request(consumerGroup="H", maxMsgNums="5"),
        pop_request(queueId="7"),
        pop_request(maxMsgNums="99"),
        pop_request(),
    ]
    answers = pop.pop([channel] * 6, requests, float("inf"))
    assert checks == ["G", "H"]
    found = [[] if each is None or each.code else bodies(each) for each in answers]
    assert found == [[b"0", b"1"], [b"2", b"3"], [b"0", b"1", b"2", b"3", b"4"], [], [], [b"4"]]
    refused = [str(each.remark) for each in answers[3:5] if each is not None]
    assert "queueId[7] is illegal" in refused[0]
    assert "num is greater than" in refused[1]
    assert len(pop.pop([channel] * 3, [pop_request()] * 3, 0.0)) == 1


async def test_a_pop_hands_each_message_out_once(
    parts: Parts, pop: PopMessageProcessor, channel: Any
) -> None:
    put(parts, 3)
    taken = [bodies(popped(pop, channel, pop_request())) for _ in range(2)]
    assert taken == [[b"0", b"1"], [b"2"]]
    assert popped(pop, channel, pop_request()).code == 210


async def test_a_pop_waits_and_is_told_when_its_time_is_over(
    clock: Clock, pop: PopMessageProcessor, service: PopService, channel: Any
) -> None:
    assert asked(pop, channel, pop_request(pollTime="5000")) is None
    assert service.has_waiting()
    clock.ms += 5_000
    pop.on_time(clock.ms)
    await asyncio.sleep(0)  # the next turn of the loop
    assert [answer.code for answer in channel.answers] == [210]
    assert not service.has_waiting()


async def test_a_broker_without_timers_takes_no_pops(
    pop: PopMessageProcessor, channel: Any
) -> None:
    pop._timers = None
    response = asked(pop, channel, pop_request())
    assert response is not None
    assert "timerWheelEnable" in str(response.remark)
