"""Renewals of messages in work, beside what ends them and beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.proxy.client import GrpcClient, framed
from tests.proxy.conftest import (
    acking,
    add_group,
    add_topic,
    client_of,
    message,
    received,
    receiving,
    sending,
    subscribe,
)

from oberth.errors import MQClientError, RemotingConnectError, RemotingTimeoutError
from oberth.proxy import messages as m
from oberth.proxy.backend import LocalBackend, Peer
from oberth.proxy.codes import Code
from oberth.proxy.handles import visible_at
from oberth.proxy.local import LocalBroker, LocalPeer
from oberth.proxy.receiving import Receives
from oberth.proxy.renewals import AHEAD_MS, Renewal
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.testing.embedded_broker import EmbeddedBroker

CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


def receives_of(mq: EmbeddedBroker) -> Receives:
    front = mq._front
    assert front is not None
    return front.service._receives


async def in_work(mq: EmbeddedBroker, client: GrpcClient, *bodies: bytes) -> list[Any]:
    """Messages that a push consumer has received and that are renewed."""
    add_topic(mq, "T")
    add_group(mq, "G")
    await subscribe(client, "T", "G")
    for body in bodies:
        sent = await client.call("SendMessage", sending(message("T", body)))
        assert sent.status.code == Code.OK
    pieces = await client.call_stream("ReceiveMessage", receiving("T", "G", auto_renew=True))
    status, found = received(pieces)
    assert (status, [each.body for each in found]) == (Code.OK, list(bodies))
    return found


def peer_of(mq: EmbeddedBroker) -> Peer:
    """The client, as the broker knows it."""
    known = receives_of(mq)._core.clients.get("client")
    assert known is not None
    return known.peer


def renewal_of(mq: EmbeddedBroker, got: Any) -> Renewal:
    found = receives_of(mq).renewals.get("client", got.system_properties.receipt_handle)
    assert found is not None
    return found


def when_due(mq: EmbeddedBroker, renewal: Renewal) -> None:
    mq.clock.advance(renewal.due_s * 1000 + 1000 - mq.clock())


class HeldAnswers:
    """Answers of the broker that have not reached who waits for them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, wanted: Callable[[LocalPeer], bool]
    ) -> None:
        self._answered = LocalPeer._answered
        self._held: list[tuple[LocalPeer, RemotingCommand]] = []
        self._wanted = wanted
        self._is_over = False
        monkeypatch.setattr(LocalPeer, "_answered", lambda *each: self._hold(*each))

    def __len__(self) -> int:
        return len(self._held)

    def _hold(self, peer: LocalPeer, answer: RemotingCommand) -> None:
        if not self._is_over and self._wanted(peer):
            self._held.append((peer, answer))
        else:
            self._answered(peer, answer)

    def release(self) -> None:
        self._is_over = True
        for peer, answer in self._held:
            self._answered(peer, answer)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """What the broker was asked."""
    found: list[RemotingCommand] = []
    submit = LocalBroker.submit

    def note(broker: LocalBroker, peer: LocalPeer, request: RemotingCommand, **more: Any) -> None:
        found.append(request)
        submit(broker, peer, request, **more)

    monkeypatch.setattr(LocalBroker, "submit", note)
    return found


def codes_of(asked: list[RemotingCommand]) -> list[int]:
    """Of what was asked about handles."""
    wanted = (CHANGE, RequestCode.ACK_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK)
    return [each.code for each in asked if each.code in wanted]


def changing(got: Any) -> Any:
    request = m.ChangeInvisibleDurationRequest(receipt_handle=got.system_properties.receipt_handle)
    request.topic.name, request.group.name = "T", "G"
    request.invisible_duration.seconds = 300
    return request


def forwarding(got: Any) -> Any:
    request = m.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=got.system_properties.receipt_handle
    )
    request.topic.name, request.group.name = "T", "G"
    return request


@pytest.mark.parametrize(
    ("method", "request_of", "codes"),
    [
        ("AckMessage", partial(acking, "T", "G"), [RequestCode.ACK_MESSAGE]),
        ("ChangeInvisibleDuration", changing, [CHANGE]),
        (
            "ForwardMessageToDeadLetterQueue",
            forwarding,
            [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE],
        ),
        ("NotifyClientTermination", lambda _: m.NotifyClientTerminationRequest(), [CHANGE]),
    ],
)
async def test_what_ends_a_renewal_waits_for_the_one_that_is_under_way(
    mq: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[RemotingCommand],
    method: str,
    request_of: Callable[[Any], Any],
    codes: list[int],
) -> None:
    """Else the handle that it ends is not the one that the broker has just made."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        renewal = renewal_of(mq, got)
        receives = receives_of(mq)
        own = receives._core._own()
        held = HeldAnswers(monkeypatch, lambda peer: peer is own)
        when_due(mq, renewal)
        receives.renew_due()
        await mq.wait_until(lambda: len(held) == 1, what="a renewal that the broker has done")
        asked.clear()
        stream = await client.open(method, framed(request_of(got).SerializeToString()))
        route = m.QueryRouteRequest()
        route.topic.name = "T"
        await client.call("QueryRoute", route)  # behind it on the same connection
        assert codes_of(asked) == []
        held.release()
        (raw,) = await stream.all()
        answer = m.message_class(m.METHODS[method].response).FromString(raw)
        assert answer.status.code == Code.OK
        await mq.wait_until(lambda: len(codes_of(asked)) == len(codes))
        assert codes_of(asked) == codes
        made = renewal.handle
        assert made != renewal.given
        handles = [each.fields["extraInfo"] for each in asked if "extraInfo" in each.fields]
        assert [made.startswith(each) for each in handles] == [True]
        assert len(receives.renewals) == 0


async def test_an_acknowledged_message_that_was_just_renewed_does_not_come_again(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        own = receives._core._own()
        held = HeldAnswers(monkeypatch, lambda peer: peer is own)
        when_due(mq, renewal_of(mq, got))
        receives.renew_due()
        await mq.wait_until(lambda: len(held) == 1, what="a renewal that the broker has done")
        ack = asyncio.create_task(client.call("AckMessage", acking("T", "G", got)))
        front = mq._front
        assert front is not None
        assert front.server is not None
        channels = front.server.channels
        await mq.wait_until(lambda: sum(len(each.calls) for each in channels) == 2)
        held.release()
        assert (await ack).status.code == Code.OK
        # One that nobody acknowledges comes again behind the time of both.
        await client.call("SendMessage", sending(message("T", b"other")))
        assert (await received_once(client)) == [b"other"]
        mq.advance(minutes=3)
        again: list[bytes] = []
        while b"other" not in again:
            again += await received_once(client)
            mq.advance(ms=100)
        again += await received_once(client)
        assert again == [b"other"]


async def received_once(client: GrpcClient) -> list[bytes]:
    pieces = await client.call_stream("ReceiveMessage", receiving("T", "G"))
    return [each.body for each in received(pieces)[1]]


async def test_a_handle_that_is_none_is_not_renewed(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(mq) as client:
        one, two = await in_work(mq, client, b"1", b"2")
        assert len(receives_of(mq).renewals) == 2
        monkeypatch.setattr(LocalBackend, "has_broker", lambda *_: False)
        for request in (acking("T", "G", one), acking("T", "G", one, two)):  # begun, and not
            ack = await client.call("AckMessage", request)
            assert ack.status.code == Code.INVALID_RECEIPT_HANDLE
        assert len(receives_of(mq).renewals) == 0


def _busy(broker: LocalBroker) -> None:
    turn, broker._turn = broker._turn, {}
    for peer, requests in turn.items():
        for request in requests:
            peer.reply(request, create_response(request, ResponseCode.SYSTEM_BUSY))


async def test_an_acknowledgement_that_is_refused_for_now_leaves_the_renewal(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(mq) as client:
        found = await in_work(mq, client, b"1", b"2")
        serve = LocalBroker._serve
        monkeypatch.setattr(LocalBroker, "_serve", _busy)
        for request in (acking("T", "G", found[0]), acking("T", "G", *found)):
            ack = await client.call("AckMessage", request)
            assert ack.status.code == Code.TOO_MANY_REQUESTS
        monkeypatch.setattr(LocalBroker, "_serve", serve)
        for each in found:
            renewal = renewal_of(mq, each)
            assert not renewal.is_ending
            when_due(mq, renewal)
            receives_of(mq).renew_due()
            await mq.wait_until(partial(_is_renewed, renewal))
        ack = await client.call("AckMessage", acking("T", "G", *found))
        assert ack.status.code == Code.OK
        assert len(receives_of(mq).renewals) == 0


def _is_renewed(renewal: Renewal) -> bool:
    return renewal.steps > 0


async def test_an_acknowledgement_whose_call_ends_early_ends_the_renewal(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, asked: list[RemotingCommand]
) -> None:
    """The broker has it; and a client that ends gives back no message that it acknowledged."""
    async with client_of(mq) as client, client_of(mq, "other") as other:
        found = await in_work(mq, client, b"1", b"2")
        peer = peer_of(mq)
        held = HeldAnswers(monkeypatch, lambda each: each is peer)
        streams = [
            await client.open("AckMessage", framed(acking("T", "G", each).SerializeToString()))
            for each in found
        ]
        await streams[0].cancel()
        await mq.wait_until(lambda: len(held) == 2, what="acknowledgements that were done")
        asked.clear()
        answer = held._held.pop(0)
        held._answered(*answer)
        receives = receives_of(mq)
        assert len(receives.renewals) == 1
        bye = m.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK
        held.release()
        assert len(receives.renewals) == 0
        # Whatever was begun for the client before that is done by now.
        route = m.QueryRouteRequest()
        route.topic.name = "T"
        for _ in range(3):
            assert (await other.call("QueryRoute", route)).status.code == Code.OK
        assert CHANGE not in codes_of(asked)


async def say_bye(client: GrpcClient) -> None:
    bye = m.NotifyClientTerminationRequest()
    assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK


async def test_what_a_client_that_has_ended_did_not_acknowledge_is_given_back(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, asked: list[RemotingCommand]
) -> None:
    """Its acknowledgements were refused behind its end: nobody has the message in work."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        renewal = renewal_of(mq, got)
        ends: list[asyncio.Future[None]] = []

        async def ack(*_: Any) -> None:
            ends.append(asyncio.get_running_loop().create_future())
            await ends[-1]

        monkeypatch.setattr(receives, "_ack_one", ack)
        call = asyncio.create_task(client.call("AckMessage", acking("T", "G", got, got)))
        await mq.wait_until(lambda: len(ends) == 2)
        await say_bye(client)
        asked.clear()
        ends[0].set_exception(MQClientError("no connection"))
        await mq.wait_until(lambda: renewal.endings == 1)  # the other one may be done
        ends[1].set_exception(MQClientError("no connection"))
        assert (await call).status.code == Code.INTERNAL_SERVER_ERROR
        await mq.wait_until(lambda: not receives._core._tasks)
        assert codes_of(asked) == [CHANGE]
        assert len(receives.renewals) == 0
        mq.advance(seconds=2)
        async with client_of(mq, "other") as other:
            assert (await received_once(other)) == [b"x"]


@pytest.mark.parametrize("is_over", [False, True])
async def test_an_acknowledgement_that_was_not_begun_leaves_what_is_given_back(
    mq: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[RemotingCommand],
    is_over: bool,
) -> None:
    """It waited for a renewal; but what others may have already is left alone."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        renewal = renewal_of(mq, got)
        own = receives._core._own()
        held = HeldAnswers(monkeypatch, lambda peer: peer is own)
        when_due(mq, renewal)
        receives.renew_due()
        await mq.wait_until(lambda: len(held) == 1, what="a renewal that the broker has done")
        body = framed(acking("T", "G", got).SerializeToString())
        stream = await client.open("AckMessage", body)
        await mq.wait_until(lambda: renewal.endings == 1)
        await say_bye(client)
        asked.clear()
        await stream.cancel()
        await mq.wait_until(lambda: renewal.endings == 0)
        if is_over:
            mq.clock.advance(120_000)
        held.release()
        await mq.wait_until(lambda: not receives._core._tasks)
        assert codes_of(asked) == ([] if is_over else [CHANGE])
        if not is_over:
            assert renewal.handle != renewal.given
            assert renewal.handle.startswith(asked[0].fields["extraInfo"])


async def test_of_two_acknowledgements_one_may_be_done(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, asked: list[RemotingCommand]
) -> None:
    """The other one was refused: the message is not renewed beside the one that is under way."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        renewal = renewal_of(mq, got)
        peer = peer_of(mq)
        held = HeldAnswers(monkeypatch, lambda each: each is peer)
        body = framed(acking("T", "G", got).SerializeToString())
        await client.open("AckMessage", body)
        await mq.wait_until(lambda: len(held) == 1, what="an acknowledgement that was done")

        async def refuse(*_: Any) -> None:
            raise MQClientError("no connection")

        monkeypatch.setattr(receives, "_ack_one", refuse)
        answer = await client.call("AckMessage", acking("T", "G", got, got))
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        asked.clear()
        when_due(mq, renewal)
        await receives._renew_all()
        await mq.wait_until(lambda: not receives._to_renew)
        assert codes_of(asked) == []
        held.release()
        assert len(receives.renewals) == 0


async def test_what_may_have_been_acknowledged_is_not_renewed(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, asked: list[RemotingCommand]
) -> None:
    """The broker does not answer: its handle is known until its time is over, for one more try."""
    async with client_of(mq) as client:
        one, two = await in_work(mq, client, b"1", b"2")
        receives = receives_of(mq)
        invoke = receives._core.invoke

        async def fail(*_: Any, **__: Any) -> RemotingCommand:
            raise RemotingTimeoutError("no answer")

        monkeypatch.setattr(receives._core, "invoke", fail)
        ack = await client.call("AckMessage", acking("T", "G", one, two))
        assert ack.status.code == Code.INTERNAL_SERVER_ERROR
        monkeypatch.setattr(receives._core, "invoke", invoke)
        asked.clear()
        renewal = renewal_of(mq, one)
        when_due(mq, renewal)
        await receives._renew_all()
        await mq.wait_until(lambda: not receives._to_renew)
        assert renewal_of(mq, one) is renewal
        assert codes_of(asked) == []
        ack = await client.call("AckMessage", acking("T", "G", two))
        assert ack.status.code == Code.OK
        mq.clock.advance(AHEAD_MS + 2_000)
        await receives._renew_all()
        await mq.wait_until(lambda: len(receives.renewals) == 0)
        assert codes_of(asked) == [RequestCode.ACK_MESSAGE]


async def test_a_refused_acknowledgement_leaves_the_pause_between_renewals(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those that are tried three times were over in three seconds of a broker's restart."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        renewal = renewal_of(mq, got)

        async def fail(*_: Any, **__: Any) -> RemotingCommand:
            raise MQClientError("no connection")

        monkeypatch.setattr(receives._core, "invoke_alone", fail)
        monkeypatch.setattr(receives, "_ack_one", fail)
        when_due(mq, renewal)
        receives.renew_due()
        await mq.wait_until(lambda: renewal.failures == 1)
        due_s = renewal.due_s
        assert mq.clock() + 3_000 < due_s * 1_000
        for entries in ((got,), (got, got)):
            request = acking("T", "G", *entries)
            if len(entries) == 1:
                monkeypatch.setattr(LocalBroker, "_serve", _busy)
            answer = await client.call("AckMessage", request)
            assert answer.status.code != Code.OK
            assert renewal_of(mq, got) is renewal
            assert not renewal.is_ending
            assert renewal.due_s == due_s


async def test_a_renewal_that_waits_is_not_queued_again(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once would be two check points: its message came twice."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        renewal = renewal_of(mq, got)
        released = asyncio.Event()
        asked: list[str] = []

        async def invoke(broker: str, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
            asked.append(fields["extraInfo"])
            await released.wait()
            return _renewed(fields, mq.clock())

        async def refuse(*_: Any) -> None:
            raise MQClientError("no connection")

        monkeypatch.setattr(receives._core, "invoke_alone", invoke)
        monkeypatch.setattr(receives, "_ack_one", refuse)
        when_due(mq, renewal)
        broker = renewal.given.split(" ")[5]
        other = of_broker(broker, 99, mq.clock())
        receives.renewals._unschedule(renewal)
        receives.renewals.add(other, visible_at(other.handle))
        receives.renew_due()
        await mq.wait_until(lambda: len(asked) == 1, what="a renewal that hangs")
        receives.renewals.schedule(renewal, visible_at(renewal.handle))
        receives.renew_due()
        await mq.wait_until(lambda: len(receives._to_renew[broker]) == 1)
        answer = await client.call("AckMessage", acking("T", "G", got, got))
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        receives.renew_due()
        await mq.wait_until(lambda: not receives._is_renewing)
        assert len(receives._to_renew[broker]) == 1
        released.set()
        await mq.wait_until(lambda: not receives._to_renew, what="the end of all renewals")
        assert len(asked) == 2
        assert renewal.steps == 1


async def test_a_part_of_an_acknowledgement_that_reaches_no_broker(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' entries say that they are acknowledged."""
    async with client_of(mq) as client:
        one, two = await in_work(mq, client, b"1", b"2")
        receives = receives_of(mq)
        ack_one = receives._ack_one
        away = one.system_properties.receipt_handle

        async def ack(context: Any, topic: str, group: str, handle: str, lite: str) -> None:
            if handle == away:
                raise RemotingConnectError("no connection")
            await ack_one(context, topic, group, handle, lite)

        monkeypatch.setattr(receives, "_ack_one", ack)
        answer = await client.call("AckMessage", acking("T", "G", one, two))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [each.status.code for each in answer.entries]
        assert codes == [Code.INTERNAL_SERVER_ERROR, Code.OK]
        assert not renewal_of(mq, one).is_ending


async def test_a_forward_goes_on_without_its_call(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, asked: list[RemotingCommand]
) -> None:
    """Else its message would come again, for one dead letter more each time."""
    async with client_of(mq) as client:
        (got,) = await in_work(mq, client, b"x")
        receives = receives_of(mq)
        peer = peer_of(mq)
        held = HeldAnswers(monkeypatch, lambda each: each is peer)
        body = framed(forwarding(got).SerializeToString())
        stream = await client.open("ForwardMessageToDeadLetterQueue", body)
        await mq.wait_until(lambda: len(held) == 1, what="a dead letter")
        await stream.cancel()
        front = mq._front
        assert front is not None
        assert front.server is not None
        channels = front.server.channels
        # The Telemetry stream is left.
        await mq.wait_until(lambda: sum(len(each.calls) for each in channels) == 1)
        held.release()
        await mq.wait_until(lambda: len(receives.renewals) == 0)
        wanted = [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE]
        assert codes_of(asked) == wanted
        assert [each.body for each in mq.dead_letters("G")] == [b"x"]


# Brokers that hang, and that come back


def of_broker(broker: str, number: int, now_ms: int) -> Renewal:
    """One that is due."""
    handle = f"0 {now_ms - 55_000} 60000 0 0 {broker} 0 {number} 1"
    return Renewal("client", handle, "T", "G", "", now_ms)


def _renewed(header_fields: dict[str, str], now_ms: int) -> RemotingCommand:
    request = RemotingCommand(code=int(CHANGE), ext_fields=header_fields)
    answer = create_response(request, ResponseCode.SUCCESS)
    answer.ext_fields = {"popTime": str(now_ms), "invisibleTime": "60000", "reviveQid": "0"}
    return answer


async def test_a_broker_that_hangs_delays_no_renewals_of_another(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receives = receives_of(mq)
    asked: dict[str, int] = {"a": 0, "b": 0}
    released = asyncio.Event()

    async def invoke(broker: str, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
        asked[broker] += 1
        if broker == "a":
            await released.wait()
        return _renewed(fields, mq.clock())

    monkeypatch.setattr(receives._core, "invoke_alone", invoke)
    for number in range(300):
        renewal = of_broker("ab"[number % 2], number, mq.clock())
        receives.renewals.add(renewal, visible_at(renewal.handle))
    receives.renew_due()
    await mq.wait_until(lambda: asked["b"] == 150, what="renewals of the other broker")
    assert 0 < asked["a"] < 150
    released.set()
    await mq.wait_until(lambda: not receives._to_renew, what="the end of all renewals")
    assert asked["a"] == 150


async def test_a_broker_that_hangs_keeps_no_messages_of_another(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client leaves goes back to each broker by itself."""
    receives = receives_of(mq)
    asked: dict[str, int] = {"a": 0, "b": 0}
    released = asyncio.Event()

    async def invoke(broker: str, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
        asked[broker] += 1
        if broker == "a":
            await released.wait()
        return _renewed(fields, mq.clock())

    monkeypatch.setattr(receives._core, "invoke_alone", invoke)
    async with client_of(mq) as client:
        add_topic(mq, "T")
        await subscribe(client, "T", "G")
        for number in range(600):
            renewal = of_broker("ab"[number % 2], number, mq.clock())
            receives.renewals.add(renewal, visible_at(renewal.handle))
        await say_bye(client)
        await mq.wait_until(lambda: asked["b"] == 300, what="the messages of the other broker")
        assert 0 < asked["a"] < 300
        released.set()
        await mq.wait_until(lambda: not receives._to_give_back, what="all other messages")
        assert asked["a"] == 300


@pytest.mark.parametrize(
    "fields", [{}, {"popTime": "x"}, {"popTime": "1", "invisibleTime": str(1 << 70)}]
)
async def test_an_answer_to_a_renewal_that_says_nothing(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    """It has failed, and is tried again."""
    receives = receives_of(mq)

    async def invoke(*_: Any) -> RemotingCommand:
        return RemotingCommand(code=0, ext_fields={"reviveQid": "0"} | fields)

    monkeypatch.setattr(receives._core, "invoke_alone", invoke)
    renewal = of_broker("a", 1, mq.clock())
    receives.renewals.add(renewal, visible_at(renewal.handle))
    receives.renew_due()
    await mq.wait_until(lambda: renewal.failures == 1)
    assert renewal.handle == renewal.given
    assert renewal.due_s == renewal.again_ms // 1000 > 0


async def test_a_renewal_that_fails_as_nobody_foresaw_ends_no_others(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receives = receives_of(mq)

    async def invoke(broker: str, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
        if fields["offset"] == "0":
            raise LookupError("nobody foresaw it")
        return _renewed(fields, mq.clock())

    monkeypatch.setattr(receives._core, "invoke_alone", invoke)
    found = [of_broker("a", number, mq.clock()) for number in range(250)]
    for renewal in found:
        receives.renewals.add(renewal, visible_at(renewal.handle))
    tasks: list[asyncio.Task[None]] = []
    start = receives._core.start
    monkeypatch.setattr(receives._core, "start", lambda work: tasks.append(start(work)))
    receives._is_renewing = True  # not by the server's own clock
    await receives._renew_all()
    (task,) = tasks
    with pytest.raises(LookupError):
        await task
    await receives._renew_all()
    await mq.wait_until(lambda: not receives._to_renew)
    assert all(renewal.steps for renewal in found[1:])


@pytest.mark.parametrize(("fails_after_s", "tries", "left_s"), [(0, 3, 3), (3, 2, 4)])
@pytest.mark.parametrize("part_ms", [0, 499, 500, 999])
async def test_renewals_are_tried_until_others_would_see_the_message(
    mq: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    fails_after_s: int,
    tries: int,
    left_s: int,
    part_ms: int,
) -> None:
    """A broker takes some seconds to start again. Behind that time a change makes it come twice."""
    receives = receives_of(mq)
    tried: list[int] = []

    async def invoke(*_: Any) -> RemotingCommand:
        tried.append(mq.clock())
        mq.clock.advance(fails_after_s * 1_000)
        raise MQClientError("no connection")

    monkeypatch.setattr(receives._core, "invoke_alone", invoke)
    mq.clock.advance(1_000 - mq.clock() % 1_000 + part_ms)
    now_ms = mq.clock()
    handle = f"0 {now_ms} 60000 0 0 broker-a 0 1 1"
    renewal = Renewal("client", handle, "T", "G", "", now_ms)
    receives.renewals.add(renewal, visible_at(handle))
    for _ in range(75):
        mq.clock.advance(1_000)
        receives.renew_due()
        await mq.wait_until(lambda: not receives._is_renewing and not receives._to_renew)
    assert len(tried) == tries
    left_ms = visible_at(handle) - tried[-1]
    assert 0 < left_ms <= left_s * 1_000
    assert len(receives.renewals) == 0


async def test_a_message_that_others_may_have_is_not_renewed(
    mq: EmbeddedBroker, asked: list[RemotingCommand]
) -> None:
    """It waited behind others of a broker that hangs."""
    receives = receives_of(mq)
    renewal = of_broker("broker-a", 1, mq.clock() - 5_000)
    receives.renewals.add(renewal, visible_at(renewal.handle))
    receives.renew_due()
    await mq.wait_until(lambda: len(receives.renewals) == 0, what="the end of the renewal")
    await mq.wait_until(lambda: not receives._to_renew)
    assert codes_of(asked) == []
