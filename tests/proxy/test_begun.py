"""Calls without a task answer as those with one; what the broker owes them has its time.

Each request is served in both ways and the answers are compared; then brokers that do not answer,
clients that leave, and a server that closes meet calls that wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hyperframe.frame import DataFrame, GoAwayFrame
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.client import SERVICE, GrpcClient, framed
from tests.proxy.conftest import (
    acking,
    add_group,
    add_topic,
    client_of,
    message,
    received,
    receiving,
    sending,
)
from tests.proxy.test_http2 import Raw

import oberth.broker
from oberth.proxy import begun, encoding, http2
from oberth.proxy import messages as m
from oberth.proxy.call import Call, GrpcStatus
from oberth.proxy.codes import Code
from oberth.proxy.http2 import GrpcChannel
from oberth.proxy.local import ALONE_MAX, SWITCHES_MIN, LocalBroker, LocalPeer
from oberth.proxy.server import GrpcServer
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.testing.embedded_broker import EmbeddedBroker

TEXTS = st.text(st.characters(codec="utf-8"), max_size=300)
CODES = st.sampled_from(list(Code))
WAIT_S = 30.0


def server_of(mq: EmbeddedBroker) -> GrpcServer:
    front = mq._front
    assert front is not None
    assert front.server is not None
    return front.server


@given(CODES, TEXTS, TEXTS, TEXTS, st.integers(0, 2**63 - 1), TEXTS)
def test_send_response_is_protobufs(
    code: Code, text: str, message_id: str, transaction_id: str, offset: int, handle: str
) -> None:
    status = m.Status(code=int(code), message=text or code.name)
    wanted = m.SendMessageResponse(status=status)
    wanted.entries.add(
        status=status,
        message_id=message_id,
        transaction_id=transaction_id,
        offset=offset,
        recall_handle=handle,
    )
    made = encoding.send_response(code, text, message_id, transaction_id, offset, handle)
    assert made == wanted.SerializeToString(deterministic=True) or code == 0
    assert m.SendMessageResponse.FromString(made) == wanted


@given(CODES, TEXTS, TEXTS, TEXTS)
def test_ack_response_is_protobufs(code: Code, text: str, message_id: str, handle: str) -> None:
    status = m.Status(code=int(code), message=text or code.name)
    wanted = m.AckMessageResponse(status=status)
    wanted.entries.add(message_id=message_id, receipt_handle=handle, status=status)
    made = encoding.ack_response(code, text, message_id, handle)
    assert made == wanted.SerializeToString(deterministic=True) or code == 0
    assert m.AckMessageResponse.FromString(made) == wanted
    alone = m.AckMessageResponse.FromString(encoding.only_status(code, text))
    assert alone == m.AckMessageResponse(status=status)


def test_a_text_that_is_no_text() -> None:
    """A broker's remark may hold what no peer can be sent."""
    made = m.AckMessageResponse.FromString(encoding.only_status(Code.OK, "a\ud800b"))
    assert made.status.message == "a?b"


SENDS: dict[str, Callable[[], Any]] = {
    "normal": lambda: message("T"),
    "everything": lambda: _full(),
    "no body": lambda: message("T", b""),
    "another type": lambda: message("T", kind="FIFO", message_group="g"),
    "of a group": lambda: message("F", kind="FIFO", message_group="g"),
    "a bad tag": lambda: message("T", tag="a|b"),
    "a control character": lambda: message("T", tag="a\x01b"),
    "a blank key": lambda: message("T", keys=[" "]),
    "no topic": lambda: message(""),
    "an unknown topic": lambda: message("none"),
    "a system topic": lambda: message("RMQ_SYS_TRACE_TOPIC"),
    "a long group": lambda: message("F", kind="FIFO", message_group="g" * 64),
    "a transaction": lambda: message("X", kind="TRANSACTION"),
}


def _full() -> Any:
    made = message("T", tag="t", keys=["a", "b"], trace_context="x", delivery_attempt=2)
    made.user_properties["name"] = "ü"
    return made


async def both_ways(mq: EmbeddedBroker, client: GrpcClient, method: str, request: Any) -> list[Any]:
    """The answers of a call without a task, and of one with it."""
    server = server_of(mq)
    answers = [await client.call(method, request)]
    begins, server._begins = server._begins, {}
    answers.append(await client.call(method, request))
    server._begins = begins
    return answers


@pytest.mark.parametrize("case", SENDS)
async def test_sends_are_answered_alike(mq: EmbeddedBroker, case: str) -> None:
    add_topic(mq, "T")
    add_topic(mq, "F", "FIFO", queues=8)
    add_topic(mq, "X", "TRANSACTION")
    async with client_of(mq) as client:
        answers = await both_ways(mq, client, "SendMessage", sending(SENDS[case]()))
    for answer in answers:
        for entry in answer.entries:
            entry.offset = 0
            entry.transaction_id = "an id" if entry.transaction_id else ""
    assert answers[0] == answers[1]
    succeeds = case in ("normal", "everything", "of a group", "a transaction")
    assert (answers[0].status.code == Code.OK) == succeeds


@pytest.mark.parametrize("handle", ["", "no handle", "1 2 3 4 0 broker-a 0 1", "1 2 3 4 0 x 0 1"])
async def test_acks_are_refused_alike(mq: EmbeddedBroker, handle: str) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    request = m.AckMessageRequest()
    request.group.name, request.topic.name = "G", "T"
    request.entries.add(message_id="id", receipt_handle=handle)
    async with client_of(mq) as client:
        answers = await both_ways(mq, client, "AckMessage", request)
    assert answers[0] == answers[1]
    assert answers[0].status.code == Code.INVALID_RECEIPT_HANDLE


async def test_no_task_for_a_call_that_came_whole(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent, received and acknowledged; in pieces, or with several messages, as ever."""
    tasks: list[str] = []
    start = GrpcChannel._start

    def note(channel: GrpcChannel, call: Call) -> None:
        tasks.append(call.path.rpartition("/")[2])
        start(channel, call)

    monkeypatch.setattr(GrpcChannel, "_start", note)
    add_topic(mq, "T")
    add_group(mq, "G")
    async with client_of(mq) as client:
        for _ in range(3):
            await client.call("SendMessage", sending(message("T")))
        assert tasks == []
        pieces = await client.call_stream("ReceiveMessage", receiving("T", "G"))
        assert tasks == ["ReceiveMessage"]
        status, found = received(pieces)
        assert (status, len(found)) == (Code.OK, 3)
        answer = await client.call("AckMessage", acking("T", "G", found[0]))
        assert answer.entries[0].status.code == Code.OK
        assert tasks == ["ReceiveMessage"]
        answer = await client.call("AckMessage", acking("T", "G", *found[1:]))
        assert [entry.status.code for entry in answer.entries] == [Code.OK] * 2
        assert tasks == ["ReceiveMessage", "AckMessage"]
        body = framed(sending(message("T")).SerializeToString())
        stream = await client.open("SendMessage")
        await client.send_data(stream.stream_id, body[:9])
        await client.send_data(stream.stream_id, body[9:], end=True)
        (raw,) = await stream.all()
        assert m.SendMessageResponse.FromString(raw).status.code == Code.OK
        assert tasks == ["ReceiveMessage", "AckMessage", "SendMessage"]
        batch = await client.call("SendMessage", sending(message("T"), message("T")))
        assert batch.status.code == Code.OK
        assert tasks[3:] == ["SendMessage"]
    assert not any(channel.held for channel in server_of(mq).channels)


async def test_a_message_may_follow_its_headers(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next read, without a task; one that does not come has a deadline."""
    tasks: list[str] = []
    start = GrpcChannel._start

    def note(channel: GrpcChannel, call: Call) -> None:
        tasks.append(call.path.rpartition("/")[2])
        start(channel, call)

    monkeypatch.setattr(GrpcChannel, "_start", note)
    came = asyncio.Event()
    start_unstarted = GrpcChannel._start_unstarted

    def note_headers(channel: GrpcChannel) -> None:
        start_unstarted(channel)
        came.set()

    monkeypatch.setattr(GrpcChannel, "_start_unstarted", note_headers)
    monkeypatch.setattr(http2, "LATE_S", WAIT_S)
    add_topic(mq, "T")
    async with client_of(mq) as client:
        stream = await client.open("SendMessage")
        await came.wait()
        body = framed(sending(message("T")).SerializeToString())
        await client.send_data(stream.stream_id, body, end=True)
        (raw,) = await stream.all()
        assert m.SendMessageResponse.FromString(raw).status.code == Code.OK
        assert tasks == []
    monkeypatch.setattr(http2, "LATE_S", 0.0)
    async with client_of(mq) as client:
        stream = await client.open("SendMessage", deadline="50m")
        assert await stream.all() == []
        assert stream.status == GrpcStatus.DEADLINE_EXCEEDED
        assert tasks == ["SendMessage"]
    assert not any(channel.held for channel in server_of(mq).channels)


async def test_a_lone_client_is_waited_for_longer_than_over_remoting() -> None:
    async with EmbeddedBroker({"busyPollMicros": "400"}, grpc=True) as mq:
        assert server_of(mq).options.busy_poll_s == pytest.approx(0.001)
    async with EmbeddedBroker({"busyPollMicros": "0"}, grpc=True) as mq:
        assert server_of(mq).options.busy_poll_s == 0


async def test_senders_rest_where_consumers_cannot_follow(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those over remoting do: what they have sent is acknowledged, and read on later."""
    rests: list[float] = []
    rest = GrpcChannel.rest

    def note(channel: GrpcChannel, seconds: float) -> None:
        rests.append(seconds)
        rest(channel, seconds)
        assert channel._transport is not None
        channel._update_reading()
        assert not channel._transport.is_reading()

    monkeypatch.setattr(GrpcChannel, "rest", note)
    add_topic(mq, "T")
    mq.broker.services.brake.rests_s["T"] = 0.001
    async with client_of(mq) as client:
        answers = await both_ways(mq, client, "SendMessage", sending(message("T")))
        assert [answer.status.code for answer in answers] == [Code.OK] * 2
        assert rests == [0.001] * 2
        assert len(mq.messages("T")) == 2


def test_what_stands_for_a_channel_has_what_a_broker_calls_on_one() -> None:
    """Its type cannot tell: commands of gRPC clients come to the same processors."""
    used = re.compile(r"\bchannel\.([a-z_]+)(?=[ (.,)\]:]|$)")
    broker = Path(oberth.broker.__path__[0])
    found = {name for file in broker.rglob("*.py") for name in used.findall(file.read_text())}
    of_channels = {name for name in found if hasattr(Channel, name)}
    assert {"reply", "rest", "send_frame"} <= of_channels
    only_on_sockets = {"write_frames"}  # of sends that were read as bytes
    assert {name for name in of_channels if not hasattr(LocalPeer, name)} == only_on_sockets


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers nothing."""
    monkeypatch.setattr(LocalBroker, "_serve", lambda _: None)


def waiting(mq: EmbeddedBroker) -> int:
    """Answers that clients still wait for."""
    front = mq._front
    assert front is not None
    return sum(len(client.peer._waiters) for client in front.service.clients)


@pytest.mark.usefixtures("silent")
async def test_a_deadline_passes(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        body = framed(sending(message("T")).SerializeToString())
        stream = await client.open("SendMessage", body, deadline="50m")
        assert await stream.all() == []
        assert stream.status == GrpcStatus.DEADLINE_EXCEEDED
        assert waiting(mq) == 0


@pytest.mark.usefixtures("silent")
async def test_a_broker_does_not_answer(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "BROKER_TIMEOUT_S", 0.05)
    add_topic(mq, "T")
    async with client_of(mq) as client:
        answer = await client.call("SendMessage", sending(message("T")))
        assert answer.status.code == Code.PROXY_TIMEOUT
        assert waiting(mq) == 0


@pytest.mark.usefixtures("silent")
async def test_a_client_ends_while_its_call_waits(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        body = framed(sending(message("T")).SerializeToString())
        stream = await client.open("SendMessage", body)
        bye = await client.open(
            "NotifyClientTermination",
            framed(m.NotifyClientTerminationRequest().SerializeToString()),
        )
        assert len(await bye.all()) == 1
        (raw,) = await stream.all()
        assert m.SendMessageResponse.FromString(raw).status.code == Code.INTERNAL_SERVER_ERROR


async def test_a_reset_call_is_stored_and_not_answered(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was handed over: its answer comes, and nobody waits for it."""
    held: list[LocalBroker] = []
    serve = LocalBroker._serve
    monkeypatch.setattr(LocalBroker, "_serve", lambda broker: held.append(broker))
    add_topic(mq, "T")
    async with client_of(mq) as client:
        stream = await client.open("SendMessage", framed(sending(message("T")).SerializeToString()))
        await stream.cancel()
        await client.call("QueryRoute", _route("T"))  # behind the reset
        assert waiting(mq) == 1
        monkeypatch.setattr(LocalBroker, "_serve", serve)
        serve(held[0])
        assert waiting(mq) == 0
        assert all(not channel.calls for channel in server_of(mq).channels)


def _route(topic: str) -> Any:
    request = m.QueryRouteRequest()
    request.topic.name = topic
    return request


async def test_closing_waits_for_begun_calls(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[LocalBroker] = []
    came = asyncio.Event()
    serve = LocalBroker._serve

    def hold(broker: LocalBroker) -> None:
        held.append(broker)
        came.set()

    monkeypatch.setattr(LocalBroker, "_serve", hold)
    add_topic(mq, "T")
    server = server_of(mq)
    async with client_of(mq) as client:
        body = framed(sending(message("T")).SerializeToString())
        stream = await client.open("SendMessage", body)
        async with asyncio.timeout(WAIT_S):
            await came.wait()
        closing = asyncio.create_task(server.aclose())
        async with asyncio.timeout(WAIT_S):
            while not all(channel._draining for channel in server.channels):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not closing.done()
        serve(held[0])
        await closing
        async with asyncio.timeout(WAIT_S):
            await client.closed.wait()
        assert stream.stream_id in client.streams
        # The answer came behind the GOAWAY, where h2 reads no more.
        assert client.frames[-3:] == [1, 0, 1]


class Turns:
    """Processors that note how many clients a turn had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def dispatch(self, channel: Any, requests: Any) -> None:
        self.sizes.append(1)

    def dispatch_turn(self, turn: Any) -> None:
        self.sizes.append(len(list(turn)))


async def test_turns_are_gathered_while_several_connections_send() -> None:
    turns = Turns()
    broker = LocalBroker("b", turns, lambda _: None)  # type: ignore[arg-type]

    def read(connection: str) -> None:
        broker.submit(connection, None)  # type: ignore[arg-type]
        broker.read_done(connection)

    read("a")
    read("a")
    assert turns.sizes == [1, 1], "a lone connection is served with its read"
    for number in range(SWITCHES_MIN):
        read("ab"[number % 2])
    turns.sizes.clear()
    await asyncio.sleep(0)
    for each in "abc":
        read(each)
    assert turns.sizes in ([], [1]), "the others' reads are waited for"
    turns.sizes.clear()
    await asyncio.sleep(0)
    assert turns.sizes == [3]
    for _ in range(ALONE_MAX):
        read("a")
        await asyncio.sleep(0)
    turns.sizes.clear()
    read("a")
    assert turns.sizes == [1], "alone again"


@pytest.mark.parametrize("comes_first", [False, True])
async def test_an_answer_in_the_turn_in_which_its_call_is_cancelled(comes_first: bool) -> None:
    """Messages in it go to others; else they would be seen when their time is over."""
    asked: list[RemotingCommand] = []

    class Broker:
        name = "broker-a"

        def submit(self, peer: LocalPeer, request: RemotingCommand) -> None:
            asked.append(request)

    nowhere = Address("127.0.0.1", 1)
    peer = LocalPeer(cast(LocalBroker, Broker()), nowhere, nowhere)
    late: list[RemotingCommand] = []
    request = RemotingCommand(code=int(RequestCode.POP_MESSAGE))
    call = asyncio.create_task(peer.call("broker-a", request, late.append))
    await asyncio.sleep(0)
    answer = create_response(asked[0], ResponseCode.SUCCESS)
    if comes_first:
        peer.reply(asked[0], answer)
        call.cancel()
    else:
        call.cancel()
        await asyncio.wait([call])
        peer.reply(asked[0], answer)
    await asyncio.wait([call])
    assert call.cancelled()
    assert late == [answer]


async def test_a_send_in_the_same_read_as_a_goaway_is_answered(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    assert mq._front is not None
    assert mq._front.server is not None
    async with Raw(mq._front.server) as raw:
        body = framed(sending(message("T")).SerializeToString())
        raw.writer.write(
            raw.headers(1, SERVICE + "SendMessage", ("x-mq-client-id", "client"))
            + DataFrame(1, body, flags=["END_STREAM"]).serialize()
            + GoAwayFrame(0).serialize()
        )
        assert await raw.is_closed()
        assert b"grpc-status" in raw.received
    assert mq._front.service.results["SendMessage", int(Code.OK)] == 1
