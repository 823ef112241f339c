"""Calls of `MessagingService` against a broker, by a small client of our own."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest
from tests.proxy.client import GOAWAY, GrpcClient, Stream, framed
from tests.proxy.conftest import (
    CLIENTS,
    TYPES,
    acking,
    add_group,
    add_topic,
    client_of,
    message,
    publish,
    received,
    receiving,
    sending,
    subscribe,
)

from oberth.client import Message, PopConsumer, Producer, PushConsumer
from oberth.client.admin import Admin
from oberth.client.pop_consumer import ReceiptHandle
from oberth.formats import names
from oberth.formats.topic_config import Permission, TopicConfig
from oberth.proxy import handles
from oberth.proxy import messages as m
from oberth.proxy import receiving as receiving_module
from oberth.proxy.backend import LocalBackend
from oberth.proxy.call import GrpcStatus
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.handles import visible_at
from oberth.proxy.local import LocalPeer
from oberth.proxy.renewals import AHEAD_MS, RENEW_MS, Renewal
from oberth.proxy.routes import Routes
from oberth.remoting.headers.pop import ATTEMPT_ID_MAX
from oberth.testing.embedded_broker import EmbeddedBroker


async def send(client: GrpcClient, *messages: Any) -> Any:
    response = await client.call("SendMessage", sending(*messages))
    assert response.status.code == Code.OK, response
    return response


async def receive(client: GrpcClient, request: Any) -> list[Any]:
    status, found = received(await client.call_stream("ReceiveMessage", request))
    assert status == (Code.OK if found else Code.MESSAGE_NOT_FOUND)
    return found


async def test_send_receive_acknowledge(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        sent = message("T", b"hello", tag="a", keys=["k1", "k2"])
        sent.user_properties["own"] = "ü"
        response = await send(client, sent)
        assert response.entries[0].message_id == sent.system_properties.message_id
        (got,) = await receive(client, receiving("T", "G"))
        assert got.body == b"hello"
        assert dict(got.user_properties) == {"own": "ü"}
        system = got.system_properties
        assert system.message_id == sent.system_properties.message_id
        assert (system.tag, list(system.keys)) == ("a", ["k1", "k2"])
        assert system.born_host == "host-of-the-client"
        assert system.delivery_attempt == 1
        ack = await client.call("AckMessage", acking("T", "G", got))
        assert ack.status.code == ack.entries[0].status.code == Code.OK


async def test_a_batch_is_one_answer(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        response = await send(client, *(message("T", b"%d" % n) for n in range(3)))
        assert len(response.entries) == 1
        found = await receive(client, receiving("T", "G"))
        assert [each.body for each in found] == [b"0", b"1", b"2"]


async def test_a_message_group_stays_in_its_queue(mq: EmbeddedBroker) -> None:
    add_topic(mq, "F", "FIFO", 4)
    add_group(mq, "G", consume_message_orderly=True)
    async with client_of(mq) as client:
        for n in range(4):
            await send(client, message("F", b"%d" % n, "FIFO", message_group="one"))
        queues = {each.queue_id for each in mq.messages("F")}
        assert len(queues) == 1
        request = receiving("F", "G")
        request.message_queue.id = queues.pop()
        found = await receive(client, request)
        assert [each.body for each in found] == [b"0", b"1", b"2", b"3"]
        assert found[0].system_properties.message_group == "one"


async def test_simple_consumers_get_messages_of_all_queues(mq: EmbeddedBroker) -> None:
    """Whatever queue they name: the client for Node.js always names the first one."""
    add_topic(mq, "T", queues=4)
    async with client_of(mq) as client:
        await subscribe(client, "T", "G", "SIMPLE_CONSUMER")
        for n in range(8):
            await send(client, message("T", b"%d" % n))
        request = receiving("T", "G")
        request.message_queue.id = 0
        found: set[bytes] = set()
        while len(found) < 8:
            found |= {each.body for each in await receive(client, request)}


async def test_assigned_queues_of_ordered_groups_are_read_one_by_one(mq: EmbeddedBroker) -> None:
    add_topic(mq, "F", "FIFO", 4)
    add_group(mq, "G", consume_message_orderly=True)
    async with client_of(mq) as client:
        await subscribe(client, "F", "G")
        await send(client, message("F", b"x", "FIFO", message_group="one"))
        (stored,) = mq.messages("F")
        request = receiving("F", "G")
        request.message_queue.id = (stored.queue_id + 1) % 4
        assert await receive(client, request) == []
        request.message_queue.id = stored.queue_id
        assert len(await receive(client, request)) == 1


async def test_delayed_messages_come_in_time_and_can_be_recalled(mq: EmbeddedBroker) -> None:
    add_topic(mq, "D", "DELAY")
    async with client_of(mq) as client:
        due = int(time.time()) + 60
        kept, gone = message("D", b"kept", "DELAY"), message("D", b"gone", "DELAY")
        for each in (kept, gone):
            each.system_properties.delivery_timestamp.seconds = due
        await send(client, kept)
        handle = (await send(client, gone)).entries[0].recall_handle
        recall = m.RecallMessageRequest(recall_handle=handle)
        recall.topic.name = "D"
        answer = await client.call("RecallMessage", recall)
        assert answer.status.code == Code.OK
        assert answer.message_id == gone.system_properties.message_id
        for _ in range(8):
            mq.advance(seconds=10)
        await mq.wait_until(lambda: bool(mq.bodies("D")), what="the delayed message")
        assert mq.bodies("D") == [b"kept"]


@pytest.mark.parametrize("commit", [True, False])
async def test_transactions_end(mq: EmbeddedBroker, commit: bool) -> None:
    add_topic(mq, "X", "TRANSACTION")
    async with client_of(mq) as client:
        sent = message("X", b"half", "TRANSACTION")
        entry = (await send(client, sent)).entries[0]
        assert mq.bodies("X") == []
        end = m.EndTransactionRequest(
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=m.enum_values("TransactionResolution")["COMMIT" if commit else "ROLLBACK"],
        )
        end.topic.name = "X"
        assert (await client.call("EndTransaction", end)).status.code == Code.OK
        await mq.wait_until(lambda: (mq.bodies("X") == [b"half"]) or not commit)
        assert mq.bodies("X") == ([b"half"] if commit else [])


async def test_a_producer_that_does_not_know(mq: EmbeddedBroker) -> None:
    """Nothing ends, and it is told so: it would wait for its deadline."""
    add_topic(mq, "X", "TRANSACTION")
    async with client_of(mq) as client:
        (entry,) = (await send(client, message("X", b"half", "TRANSACTION"))).entries
        ask = m.EndTransactionRequest(
            message_id=entry.message_id, transaction_id=entry.transaction_id
        )
        ask.topic.name = "X"
        assert (await client.call("EndTransaction", ask)).status.code == Code.OK
        assert mq.messages("X") == []
        ask.transaction_id = ask.transaction_id.replace("broker-a", "another")
        response = await client.call("EndTransaction", ask)
        assert response.status.code == Code.INVALID_TRANSACTION_ID


@pytest.mark.parametrize(("kind", "text"), [(2, ""), (2, "a >"), (1, " ")])
async def test_what_is_no_filter(mq: EmbeddedBroker, kind: int, text: str) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        request = receiving("T", "G")
        request.filter_expression.type = kind
        request.filter_expression.expression = text
        status, _ = received(await client.call_stream("ReceiveMessage", request))
        assert status == Code.ILLEGAL_FILTER_EXPRESSION


async def asked_about(mq: EmbeddedBroker, stream: Stream) -> Any:
    """The first transaction that a producer is asked about."""
    mq.advance(seconds=7)
    while True:  # the broker looks for orphans about every second of its clock
        mq.advance(seconds=2)
        try:
            async with asyncio.timeout(0.5):
                raw = await stream.messages.get()
            break
        except TimeoutError:
            continue
    assert raw is not None
    return m.TelemetryCommand.FromString(raw).recover_orphaned_transaction_command


async def test_a_producer_without_a_stream_is_not_asked(mq: EmbeddedBroker) -> None:
    """It counts as one of its group for two minutes more; the others hear of what it began."""
    add_topic(mq, "X", "TRANSACTION")
    async with client_of(mq, "deaf") as deaf, client_of(mq, "hears") as client:
        first = await publish(deaf, "X")
        await send(deaf, message("X", b"half", "TRANSACTION"))
        stream = await publish(client, "X")
        await first.cancel()
        await deaf.call("QueryRoute", m.QueryRouteRequest())  # behind it
        orphan = await asked_about(mq, stream)
        assert orphan.message.body == b"half"
        assert orphan.message.user_properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_an_orphaned_transaction_is_asked_for(mq: EmbeddedBroker) -> None:
    add_topic(mq, "X", "TRANSACTION")
    async with client_of(mq) as client:
        stream = await publish(client, "X")
        sent = message("X", b"half", "TRANSACTION")
        await send(client, sent)
        orphan = await asked_about(mq, stream)
        assert orphan.message.body == b"half"
        end = m.EndTransactionRequest(
            message_id=sent.system_properties.message_id,
            transaction_id=orphan.transaction_id,
            resolution=m.enum_values("TransactionResolution")["COMMIT"],
            source=m.enum_values("TransactionSource")["SOURCE_SERVER_CHECK"],
        )
        end.topic.name = "X"
        assert (await client.call("EndTransaction", end)).status.code == Code.OK
        await mq.wait_until(lambda: mq.bodies("X") == [b"half"])


async def test_routes_name_the_address_that_was_asked(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T", "MIXED", 3)
    async with client_of(mq) as client:
        request = m.QueryRouteRequest()
        request.topic.name = "T"
        request.endpoints.addresses.add(host="mapped.example", port=1234)
        response = await client.call("QueryRoute", request)
        assert response.status.code == Code.OK
        assert [queue.id for queue in response.message_queues] == [0, 1, 2]
        address = response.message_queues[0].broker.endpoints.addresses[0]
        assert (address.host, address.port) == ("mapped.example", 1234)
        request.topic.name = "unknown"
        response = await client.call("QueryRoute", request)
        assert response.status.code == Code.TOPIC_NOT_FOUND


async def test_settings_are_merged(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_group(mq, "G", consume_message_orderly=True, retry_max_times=4)
    async with client_of(mq) as client:
        _, answer = await subscribe(client, "T", "G")
        assert answer.status.code == Code.OK
        assert answer.settings.subscription.fifo
        assert answer.settings.backoff_policy.max_attempts == 5
        beat = m.HeartbeatRequest()
        assert (await client.call("Heartbeat", beat)).status.code == Code.OK
    async with client_of(mq, "another") as client:
        response = await client.call("Heartbeat", beat)
        assert response.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_the_times_between_attempts_are_the_servers(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        stream = await client.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = CLIENTS["PUSH_CONSUMER"]
        command.settings.subscription.group.name = "G"
        command.settings.subscription.subscriptions.add().topic.name = "T"
        command.settings.backoff_policy.customized_backoff.next.add(seconds=77)
        answers = []
        for _ in range(2):
            await stream.send(command)
            raw = await stream.next()
            assert raw is not None
            command = m.TelemetryCommand.FromString(raw)
            answers.append(command.settings.backoff_policy)
        assert [len(each.customized_backoff.next) for each in answers] == [18, 18]
        assert answers[0].customized_backoff.next[0].seconds == 1


async def test_a_client_that_ends_while_its_settings_are_looked_at(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topic(mq, "T")
    asked, go_on = asyncio.Event(), asyncio.Event()
    find = LocalBackend.group

    async def wait(backend: LocalBackend, name: str) -> Any:
        asked.set()
        await go_on.wait()
        return await find(backend, name)

    async with client_of(mq) as client:
        stream = await client.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = CLIENTS["PUSH_CONSUMER"]
        command.settings.subscription.group.name = "G"
        command.settings.subscription.subscriptions.add().topic.name = "T"

        monkeypatch.setattr(LocalBackend, "group", wait)
        await stream.send(command)
        await asked.wait()
        bye = m.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK
        go_on.set()
        assert await stream.all() == []
        assert stream.status == GrpcStatus.INTERNAL
        assert "has ended meanwhile" in unquote(stream.headers["grpc-message"])


async def test_settings_of_the_wrong_kind(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_topic(mq, "L", "LITE")
    add_group(mq, "G")
    add_group(mq, "LG", attributes={"+lite.bind.topic": "L"})
    cases = {
        ("PRODUCER", "T", "G"): False,
        ("LITE_PUSH_CONSUMER", "T", "LG"): False,
        ("LITE_PUSH_CONSUMER", "L", "G"): False,
        ("LITE_PUSH_CONSUMER", "L", "LG"): True,
        ("SIMPLE_CONSUMER", "T", "G"): True,
    }
    for (kind, topic, group), is_taken in cases.items():
        async with client_of(mq, kind) as client:
            stream = await client.open("Telemetry")
            command = m.TelemetryCommand()
            command.settings.client_type = CLIENTS[kind]
            command.settings.subscription.group.name = group
            command.settings.subscription.subscriptions.add().topic.name = topic
            command.settings.metric.on = True
            await stream.send(command)
            raw = await stream.next()
            assert (raw is not None) == is_taken, (kind, topic, group)
            if raw is None:
                assert stream.status == GrpcStatus.INVALID_ARGUMENT
            else:
                settings = m.TelemetryCommand.FromString(raw).settings
                assert settings.HasField("metric")
                assert not settings.metric.on  # nobody takes what the client would measure


async def test_settings_of_a_group_that_is_not_made() -> None:
    """A consumer hears of it at its start, not with each receive."""
    settings = {"autoCreateSubscriptionGroup": "false"}
    async with EmbeddedBroker(settings, grpc=True) as mq, client_of(mq) as client:
        add_topic(mq, "T")
        stream = await client.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = CLIENTS["SIMPLE_CONSUMER"]
        command.settings.subscription.group.name = "G"
        command.settings.subscription.subscriptions.add().topic.name = "T"
        await stream.send(command)
        assert await stream.next() is None
        assert stream.status == GrpcStatus.INVALID_ARGUMENT
        add_group(mq, "G")
        await subscribe(client, "T", "G", "SIMPLE_CONSUMER")


async def test_subscriptions_to_what_is_no_lite_topic(mq: EmbeddedBroker) -> None:
    add_topic(mq, "L", "LITE")
    add_topic(mq, "T")
    add_group(mq, "LG", attributes={"+lite.bind.topic": "L"})
    add_group(mq, "G")
    async with client_of(mq) as client:
        for topic, group, lite_topic, code in (
            ("L", "LG", "a_b-1", Code.OK),
            ("L", "LG", "a b", Code.ILLEGAL_LITE_TOPIC),
            ("L", "LG", "", Code.ILLEGAL_LITE_TOPIC),
            ("T", "LG", "a", Code.ILLEGAL_TOPIC),
            ("L", "G", "a", Code.ILLEGAL_CONSUMER_GROUP),
        ):
            request = m.SyncLiteSubscriptionRequest(lite_topic_set=[lite_topic])
            request.topic.name, request.group.name = topic, group
            response = await client.call("SyncLiteSubscription", request)
            assert response.status.code == code, (topic, group, lite_topic)


@pytest.mark.parametrize("permission", [0, 2])
async def test_a_topic_that_must_not_be_read(mq: EmbeddedBroker, permission: int) -> None:
    mq.broker.parts.topics.update(TopicConfig(topic_name="T", perm=Permission(permission)), {})
    async with client_of(mq) as client:
        status, _ = received(await client.call_stream("ReceiveMessage", receiving("T", "G")))
        assert status == Code.FORBIDDEN


@pytest.mark.parametrize("limit", [1000, 6 << 20])
async def test_bodies_are_as_long_as_the_broker_takes_them(mq: EmbeddedBroker, limit: int) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        mq.broker.parts.store_config.max_message_size = limit
        stream = await client.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.publishing.topics.add().name = "T"
        await stream.send(command)
        raw = await stream.next()
        assert raw is not None
        settings = m.TelemetryCommand.FromString(raw).settings
        assert settings.publishing.max_body_size == limit
        got = await client.call("SendMessage", sending(message("T", b"x" * limit)))
        assert got.status.code == Code.OK
        got = await client.call("SendMessage", sending(message("T", b"x" * (limit + 1))))
        assert got.status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_a_group_has_members_of_both_protocols(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq, "by-grpc") as client:
        await subscribe(client, "T", "G")
        group = mq.broker.parts.consumers.get("G")
        assert group is not None
        async with PushConsumer(
            "G", {"T": "*"}, listener=lambda message: None, namesrv_addr=mq.namesrv_addr
        ):
            await mq.wait_until(lambda: len(group.client_ids()) == 2)
        assert "by-grpc" in group.client_ids()


async def test_what_remoting_clients_send_is_received(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with Producer("P", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"hello", tags="a", keys="k", properties={"own": "1"}))
    async with client_of(mq) as client:
        (got,) = await receive(client, receiving("T", "G"))
        assert (got.body, dict(got.user_properties)) == (b"hello", {"own": "1"})


async def test_tried_too_often_goes_to_the_dead_letters(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    async with client_of(mq) as client:
        await send(client, message("T"))
        (got,) = await receive(client, receiving("T", "G"))
        forward = m.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=got.system_properties.receipt_handle,
            message_id=got.system_properties.message_id,
        )
        forward.group.name, forward.topic.name = "G", "T"
        answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
        assert answer.status.code == Code.OK
        await mq.wait_until(lambda: bool(mq.messages(names.dlq_topic("G"))))


async def test_a_message_whose_time_is_over_goes_to_the_dead_letters_once(
    mq: EmbeddedBroker,
) -> None:
    """Clients send this until it succeeds; each further call would make one more dead letter."""
    add_topic(mq, "T")
    add_group(mq, "G")
    async with client_of(mq) as client:
        await send(client, message("T"))
        (got,) = await receive(client, receiving("T", "G"))
        mq.advance(seconds=31)
        forward = m.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=got.system_properties.receipt_handle,
            message_id=got.system_properties.message_id,
        )
        forward.group.name, forward.topic.name = "G", "T"
        answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
        assert answer.status.code == Code.OK
        await mq.wait_until(lambda: bool(mq.messages(names.dlq_topic("G"))))
        assert len(mq.messages(names.dlq_topic("G"))) == 1


def bad_ones_are_tried_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with the body ``bad`` come first, as dead letters."""
    popped = handles.popped

    def tried_often(*args: Any, **options: Any) -> list[Any]:
        found = popped(*args, **options)
        for each in found:
            each.reconsume_times = 99 if each.stored_body == b"bad" else 0
        return sorted(found, key=lambda each: each.stored_body)

    monkeypatch.setattr(receiving_module, "popped", tried_often)


@pytest.mark.parametrize("gives_up", [False, True])
async def test_what_becomes_of_dead_letters_is_not_waited_for(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """The client has the others before, and whether it waits changes nothing for them."""
    add_topic(mq, "T")
    add_group(mq, "G")
    bad_ones_are_tried_often(monkeypatch)
    may_go_on = asyncio.Event()
    to_dead_letters = receiving_module.Receives._to_dead_letters

    async def wait_first(*args: Any) -> None:
        await may_go_on.wait()
        await to_dead_letters(*args)

    monkeypatch.setattr(receiving_module.Receives, "_to_dead_letters", wait_first)
    async with client_of(mq) as client:
        await send(client, message("T", b"bad"), message("T", b"good"))
        stream = await client.open("ReceiveMessage", _framed(receiving("T", "G")))
        pieces = [m.ReceiveMessageResponse.FromString(await stream.next() or b"") for _ in "12"]
        assert pieces[0].status.code == Code.OK
        assert pieces[1].message.body == b"good"
        if gives_up:
            await stream.cancel()
            await client.call("QueryRoute", m.QueryRouteRequest())  # behind it
        may_go_on.set()
        await mq.wait_until(lambda: bool(mq.messages(names.dlq_topic("G"))))
        if not gives_up:
            assert len(await stream.all()) == 1


async def test_a_message_that_no_dead_letter_topic_takes_holds_up_no_other(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    bad_ones_are_tried_often(monkeypatch)

    async def refuse(*_: Any) -> None:
        raise StatusError(Code.FORBIDDEN, "the topic is read only")

    monkeypatch.setattr(receiving_module.Receives, "_to_dead_letters", refuse)
    async with client_of(mq) as client:
        for body in (b"bad", b"good"):
            await send(client, message("T", body))
        (got,) = await receive(client, receiving("T", "G"))
        assert got.body == b"good"


async def test_invisible_times_are_changed(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await send(client, message("T"))
        (got,) = await receive(client, receiving("T", "G"))
        change = m.ChangeInvisibleDurationRequest(
            receipt_handle=got.system_properties.receipt_handle
        )
        change.group.name, change.topic.name = "G", "T"
        change.invisible_duration.seconds = 300
        answer = await client.call("ChangeInvisibleDuration", change)
        assert answer.status.code == Code.OK
        assert answer.receipt_handle != got.system_properties.receipt_handle
        got.system_properties.receipt_handle = answer.receipt_handle
        ack = await client.call("AckMessage", acking("T", "G", got))
        assert ack.status.code == Code.OK
        change.invisible_duration.seconds = 43_201
        answer = await client.call("ChangeInvisibleDuration", change)
        assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_what_a_client_leaves_is_others_at_once(mq: EmbeddedBroker) -> None:
    """The handles of an auto-renewing client that says goodbye; 60 s otherwise."""
    add_topic(mq, "T")
    async with client_of(mq, "leaves") as client, client_of(mq, "stays") as other:
        await subscribe(client, "T", "G")
        await send(client, message("T"))
        (first,) = await receive(client, receiving("T", "G", auto_renew=True))
        bye = m.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK
        mq.advance(seconds=5)
        again: list[Any] = []
        while not again:
            again = await receive(other, receiving("T", "G"))
        assert again[0].system_properties.message_id == first.system_properties.message_id


async def test_a_client_that_was_silent_is_taken_back(mq: EmbeddedBroker) -> None:
    """A broker drops who sends no heartbeats for two minutes; its stream may outlive that."""
    add_topic(mq, "T")

    def members() -> list[str]:
        found = mq.broker.parts.consumers.get("G")
        return [] if found is None else found.client_ids()

    async with client_of(mq) as client:
        stream, _ = await subscribe(client, "T", "G")
        mq.advance(seconds=150)
        mq.broker.processors.clients.scan_expired(mq.broker.parts.now_ms())
        assert members() == []
        await send(client, message("T"))
        answer = await client.call("Heartbeat", m.HeartbeatRequest())
        assert answer.status.code == Code.OK
        assert members() == ["client"]
        assert len(await receive(client, receiving("T", "G"))) == 1
        asked = m.PrintThreadStackTraceRequest(client_id="client")
        asked.group.name = "G"
        answered = asyncio.create_task(client.admin("PrintThreadStackTrace", asked))
        raw = await stream.next()
        assert raw is not None
        command = m.TelemetryCommand.FromString(raw)
        command.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        command.thread_stack_trace.thread_stack_trace = "stacks"
        await stream.send(command)
        assert (await answered).thread_stack_trace == "stacks"


async def test_messages_in_work_are_renewed(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await subscribe(client, "T", "G")
        await send(client, message("T"))
        (got,) = await receive(client, receiving("T", "G", auto_renew=True))
        front = mq._front
        assert front is not None
        given = got.system_properties.receipt_handle
        renewal = front.service.renewals.get("client", given)
        assert renewal is not None
        for number in range(1, 4):
            before = renewal.due_s
            mq.clock.advance(before * 1000 + 1000 - mq.clock())
            front.service.on_time()
            await mq.wait_until(partial(_is_at, renewal, number), what="a renewal")
            assert renewal.due_s > before
        ack = await client.call("AckMessage", acking("T", "G", got))
        assert ack.status.code == Code.OK
        assert len(front.service.renewals) == 0


async def test_a_client_without_settings_is_kept_while_it_waits(mq: EmbeddedBroker) -> None:
    """It is forgotten after ten seconds, and a poll may last twenty."""
    add_topic(mq, "T")
    front = mq._front
    assert front is not None
    async with client_of(mq) as client, client_of(mq, "other") as other:
        stream = await client.open("ReceiveMessage", _framed(receiving("T", "G")), deadline="20S")
        pops = mq.broker.services.pop.polling
        await mq.wait_until(lambda: len(pops) == 1, what="a waiting pop")
        known = front.service.clients.get("client")
        assert known is not None
        known.last_seen -= 11.0
        front.service.on_time()
        assert front.service.clients.get("client") is known
        await send(other, message("T"))
        pieces = [m.ReceiveMessageResponse.FromString(raw) for raw in await stream.all()]
        assert [each.body for each in received(pieces)[1]] == [b"hello"]
        front.service.on_time()  # it was heard of when its poll ended
        assert front.service.clients.get("client") is known
        known.last_seen -= 11.0
        front.service.on_time()
        assert front.service.clients.get("client") is None


async def test_a_call_that_is_cancelled_leaves_its_messages(mq: EmbeddedBroker) -> None:
    """They come to a poll that nobody waits for any more, and go to another a second later."""
    add_topic(mq, "T")
    async with client_of(mq) as client, client_of(mq, "other") as other:
        stream = await client.open("ReceiveMessage", _framed(receiving("T", "G")), deadline="20S")
        pops = mq.broker.services.pop.polling
        await mq.wait_until(lambda: len(pops) == 1, what="a waiting pop")
        await stream.cancel()
        front = mq._front
        assert front is not None
        assert front.server is not None
        channels = front.server.channels
        await mq.wait_until(lambda: not any(each.calls for each in channels))
        await send(other, message("T"))
        mq.advance(seconds=5)
        found: list[Any] = []
        while not found:
            found = await receive(other, receiving("T", "G"))
        assert found[0].body == b"hello"


def _is_at(renewal: Renewal, steps: int) -> bool:
    return renewal.steps == steps


def _framed(request: Any) -> bytes:
    return framed(request.SerializeToString())


async def test_pull_and_offsets(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    async with client_of(mq) as client:
        for n in range(3):
            await send(client, message("T", b"%d" % n))
        pull = m.PullMessageRequest(offset=1, batch_size=10)
        pull.group.name = "G"
        pull.message_queue.topic.name = "T"
        pull.message_queue.broker.name = "broker-a"
        pieces = await client.call_stream("PullMessage", pull)
        assert pieces[0].status.code == Code.OK
        assert [each.message.body for each in pieces[1:-1]] == [b"1", b"2"]
        assert pieces[-1].next_offset == 3
        get = m.GetOffsetRequest(group=pull.group, message_queue=pull.message_queue)
        assert (await client.call("GetOffset", get)).status.code == Code.OFFSET_NOT_FOUND
        update = m.UpdateOffsetRequest(group=pull.group, message_queue=pull.message_queue, offset=3)
        assert (await client.call("UpdateOffset", update)).status.code == Code.OK
        assert (await client.call("GetOffset", get)).offset == 3
        query = m.QueryOffsetRequest(message_queue=pull.message_queue)
        query.query_offset_policy = m.enum_values("QueryOffsetPolicy")["END"]
        assert (await client.call("QueryOffset", query)).offset == 3
        query.query_offset_policy = 0
        assert (await client.call("QueryOffset", query)).offset == 0
        query.query_offset_policy = m.enum_values("QueryOffsetPolicy")["TIMESTAMP"]
        assert (await client.call("QueryOffset", query)).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": b"x" * (4 * 1024 * 1024 + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
        ({"kind": "DELAY"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"topic": "rmq_sys_x"}, Code.ILLEGAL_TOPIC),
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC),
        ({"user": {"KEYS": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "\x01"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {f"k{n}": "v" for n in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"a": "v" * 17_000}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"a": "\u65e5" * 6_000}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"BUYER_ID": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"message_id": "x" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"system": {"trace_context": "x" * 40_000}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"system": {"priority": -1}}, Code.BAD_REQUEST),
        ({"system": {"lite_topic": "a b"}}, Code.ILLEGAL_LITE_TOPIC),
        ({"system": {"lite_topic": "x" * 65}}, Code.ILLEGAL_LITE_TOPIC),
        ({"system": {"born_timestamp": {"seconds": 2**62}}}, Code.BAD_REQUEST),
        (
            {"system": {"delivery_timestamp": {"seconds": -(2**62)}}},
            Code.ILLEGAL_DELIVERY_TIME,
        ),
        (
            {
                "kind": "TRANSACTION",
                "system": {"orphaned_transaction_recovery_duration": {"seconds": -(2**62)}},
            },
            Code.BAD_REQUEST,
        ),
    ],
)
async def test_what_cannot_be_sent(mq: EmbeddedBroker, change: dict[str, Any], code: Code) -> None:
    add_topic(mq, "T")
    made = message("T", change.get("body", b"x"), change.get("kind", "NORMAL"))
    made.topic.name = change.get("topic", "T")
    made.user_properties.update(change.get("user", {}))
    if "tag" in change:
        made.system_properties.tag = change["tag"]
    if "message_id" in change:
        made.system_properties.message_id = change["message_id"]
    made.system_properties.keys.extend(change.get("keys", []))
    made.system_properties.MergeFrom(m.SystemProperties(**change.get("system", {})))
    async with client_of(mq) as client:
        for several in (False, True):  # alone it needs no task
            response = await client.call("SendMessage", sending(*[made] * (1 + several)))
            assert response.status.code == code, response.status
    assert mq.topics() == []


async def test_fields_that_are_set_to_nothing(mq: EmbeddedBroker) -> None:
    """Some clients set each field; one that is empty counts as if it were not set."""
    add_topic(mq, "T")
    async with client_of(mq) as client:
        nothing = message("T", tag="", keys=["", "k"], message_group="", lite_topic="")
        await send(client, nothing)
        (got,) = await receive(client, receiving("T", "G"))
        system = got.system_properties
        assert (system.tag, list(system.keys), system.message_type) == ("", ["k"], TYPES["NORMAL"])


async def test_a_batch_that_no_record_holds(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        large = [message("T", b"x" * (3 * 1024 * 1024)) for _ in range(2)]
        response = await client.call("SendMessage", sending(*large))
        assert response.status.code == Code.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize("raw", [b"\x0a\x00" * 2_000_000, b"\x0a\x02\x2a\x00" * 100_000])
async def test_messages_of_nothing_but_fields(mq: EmbeddedBroker, raw: bytes) -> None:
    """Two bytes each that would take 70 in memory, and 50 ns of the loop."""
    async with client_of(mq) as client:
        stream = await client.open("SendMessage", framed(raw))
        assert await stream.all() == []
        assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("count", [500, 501])
async def test_how_many_messages_a_call_may_have(mq: EmbeddedBroker, count: int) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        request = sending(*(message("T", b"x") for _ in range(count)))
        response = await client.call("SendMessage", request)
        assert response.status.code == (Code.OK if count == 500 else Code.BAD_REQUEST)


async def test_handles_of_nobody(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await send(client, message("T"))
        (got,) = await receive(client, receiving("T", "G"))
        handle = got.system_properties.receipt_handle
        words = handle.split(" ")
        for wrong in (
            *("", "x", "1 2 3", handle.replace("broker-a", "broker-b"), handle[:20]),
            *(" ".join([*words[:6], queue, *words[7:]]) for queue in ("99", "-1", "9" * 30)),
        ):
            got.system_properties.receipt_handle = wrong
            ack = await client.call("AckMessage", acking("T", "G", got))
            assert ack.status.code == Code.INVALID_RECEIPT_HANDLE, wrong


async def test_who_does_not_say_who_it_is(mq: EmbeddedBroker) -> None:
    async with client_of(mq, "") as client:
        response = await client.call("QueryRoute", m.QueryRouteRequest())
        assert response.status.code == Code.CLIENT_ID_REQUIRED


async def test_receives_that_were_given_up_take_nothing(mq: EmbeddedBroker) -> None:
    """Else each would count as an attempt, until the message is a dead letter that nobody saw."""
    add_topic(mq, "T")
    add_group(mq, "G", retry_max_times=0)
    receive_one = framed(receiving("T", "G").SerializeToString())
    polling = mq.broker.services.pop.polling
    async with client_of(mq, "gone") as gone, client_of(mq) as client:
        given_up = [await gone.open("ReceiveMessage", receive_one) for _ in range(3)]
        await mq.wait_until(lambda: len(polling) == 3)
        for each in given_up:
            await each.cancel()
        await gone.call("QueryRoute", m.QueryRouteRequest())  # behind them on the same connection
        stream = await client.open("ReceiveMessage", receive_one)
        await mq.wait_until(lambda: len(polling) == 4)
        front = mq._front
        assert front is not None
        known = front.service.clients.get("gone")
        assert known is not None
        assert isinstance(known.peer, LocalPeer)
        assert len(known.peer._late) == 3
        await send(client, message("T", b"x"))
        pieces = [m.ReceiveMessageResponse.FromString(each) for each in await stream.all()]
        status, (got,) = received(pieces)
        assert (status, got.body, got.system_properties.delivery_attempt) == (Code.OK, b"x", 1)
        assert known.peer._late == {}


async def test_closing_ends_what_waits(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        stream, _ = await subscribe(client, "T", "G")
        poll = await client.open("ReceiveMessage", _framed(receiving("T", "G")), deadline="20S")
        await mq.wait_until(lambda: len(mq.broker.services.pop.polling) == 1)
        begin = time.monotonic()
        await mq._stop_grpc()
        assert time.monotonic() - begin < 4  # the poll would take 5 s
        await client.closed.wait()
        assert GOAWAY in client.frames
        assert stream.ended.is_set()
        assert poll.ended.is_set()
        assert mq.broker.parts.consumers.get("G") is None


async def test_attempts_of_a_message_group_are_counted(mq: EmbeddedBroker) -> None:
    """Each time that a message is not acknowledged in time; behind the last it is a dead letter."""
    add_topic(mq, "F", "FIFO")
    add_group(mq, "G", consume_message_orderly=True, retry_max_times=2)
    async with client_of(mq) as client:
        await send(client, message("F", b"x", "FIFO", message_group="one"))
        for attempt in (1, 2, 3):
            (got,) = await receive(client, receiving("F", "G"))
            assert got.system_properties.delivery_attempt == attempt
            mq.advance(seconds=31)
        status, found = received(await client.call_stream("ReceiveMessage", receiving("F", "G")))
        assert (status, found) == (Code.MESSAGE_NOT_FOUND, [])
        assert [each.body for each in mq.messages(names.dlq_topic("G"))] == [b"x"]


async def test_a_receive_that_names_no_broker(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await send(client, message("T", b"x"))
        request = receiving("T", "G")
        request.message_queue.broker.name = ""
        (got,) = await receive(client, request)
        ack = await client.call("AckMessage", acking("T", "G", got))
        assert ack.status.code == Code.OK


@pytest.mark.parametrize("name", ["x", "a b", "x" * 1_000_000], ids=["other", "blank", "long"])
async def test_a_receive_that_names_another_broker(mq: EmbeddedBroker, name: str) -> None:
    """The name would be a part of every receipt handle, and the acknowledgement be refused."""
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await subscribe(client, "T", "G")
        for body in (b"0", b"1"):
            await send(client, message("T", body))
        request = receiving("T", "G", auto_renew=True)
        request.message_queue.broker.name = name
        found = await receive(client, request)
        assert [each.body for each in found] == [b"0", b"1"]
        for each in found:
            handle = ReceiptHandle.parse(each.system_properties.receipt_handle)
            assert handle.broker_name == "broker-a"
        ack = await client.call("AckMessage", acking("T", "G", *found))
        assert ack.status.code == Code.OK


async def test_a_handle_that_says_nothing_keeps_no_messages_from_the_client(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a broker behind us whose name has a blank."""
    take = handles.popped

    def popped(*args: Any, **options: Any) -> list[Any]:
        found = take(*args, **options)
        found[0].properties["POP_CK"] = "1 2 3 4 5 a b 6 7"
        return found

    monkeypatch.setattr(receiving_module, "popped", popped)
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await subscribe(client, "T", "G")
        for body in (b"0", b"1"):
            await send(client, message("T", body))
        found = await receive(client, receiving("T", "G", auto_renew=True))
        assert [each.body for each in found] == [b"0", b"1"]
        front = mq._front
        assert front is not None
        assert len(front.service.renewals) == 1


@pytest.mark.parametrize("length", [ATTEMPT_ID_MAX, ATTEMPT_ID_MAX + 1])
async def test_an_attempt_id_has_an_end(mq: EmbeddedBroker, length: int) -> None:
    """A broker keeps it with each ordered queue, also on its disk."""
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await send(client, message("T", b"x"))
        request = receiving("T", "G")
        request.attempt_id = "a" * length
        status, _ = received(await client.call_stream("ReceiveMessage", request))
        assert status == (Code.OK if length == ATTEMPT_ID_MAX else Code.BAD_REQUEST)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_lite_consumer_whose_settings_are_not_known(ordered: bool) -> None:
    """Behind a start it may receive before it says what it is: nothing of the parent topic."""
    settings = {
        "enableLmq": "true",
        "enableMultiDispatch": "true",
        "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
    }
    async with EmbeddedBroker(settings, grpc=True) as mq, client_of(mq) as client:
        add_topic(mq, "L", "LITE", queues=2)
        attributes = {"+lite.bind.topic": "L"}
        add_group(mq, "LG", attributes=attributes, consume_message_orderly=ordered)
        await send(client, message("L", b"x", "LITE", lite_topic="a"))
        request = receiving("L", "LG")
        request.long_polling_timeout.Clear()
        request.long_polling_timeout.nanos = 1_000_000
        assert await receive(client, request) == []
        assert mq.offsets("LG", "L") == {}
        query = m.QueryAssignmentRequest()
        query.topic.name, query.group.name = "L", "LG"
        answer = await client.call("QueryAssignment", query)
        assert [each.message_queue.id for each in answer.assignments] == [-1]


@pytest.mark.parametrize("kind", ["SIMPLE_CONSUMER", "PUSH_CONSUMER"])
async def test_who_is_no_lite_consumer_gets_the_topic_of_a_bound_group(kind: str) -> None:
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    async with EmbeddedBroker(settings, grpc=True) as mq, client_of(mq, kind) as client:
        add_topic(mq, "L", "LITE")
        add_group(mq, "LG", attributes={"+lite.bind.topic": "L"})
        await subscribe(client, "L", "LG", kind)
        await send(client, message("L", b"x", "LITE", lite_topic="a"))
        found = await receive(client, receiving("L", "LG"))
        assert [each.body for each in found] == [b"x"]


async def test_the_shortest_times_may_be_shorter() -> None:
    settings = {
        "minInvisibleTimeMillsForRecv": "0",
        "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
    }
    for given, wanted in (({}, Code.ILLEGAL_INVISIBLE_TIME), (settings, Code.MESSAGE_NOT_FOUND)):
        async with EmbeddedBroker(given, grpc=True) as mq, client_of(mq) as client:
            add_topic(mq, "T")
            request = receiving("T", "G")
            request.invisible_duration.seconds = 3
            request.long_polling_timeout.Clear()
            request.long_polling_timeout.nanos = 1_000_000
            status, _ = received(await client.call_stream("ReceiveMessage", request, deadline="9S"))
            assert status == wanted
            request.invisible_duration.seconds = 30
            if given:
                pieces = await client.call_stream("ReceiveMessage", request, deadline="3S")
                assert received(pieces)[0] == Code.MESSAGE_NOT_FOUND
                request.long_polling_timeout.seconds = 20  # it ends before its call does
                pieces = await client.call_stream("ReceiveMessage", request, deadline="1S")
                assert received(pieces)[0] == Code.MESSAGE_NOT_FOUND


async def test_a_message_comes_to_one_member_of_those_that_pop(mq: EmbeddedBroker) -> None:
    """Members of both protocols share a topic; what failed is lag once, in its retry topic."""
    add_topic(mq, "T", queues=3)
    taken: list[bytes] = []
    async with (
        client_of(mq, "by-grpc") as client,
        PopConsumer("G", {"T": "*"}, namesrv_addr=mq.namesrv_addr) as consumer,
        Admin(namesrv_addr=mq.namesrv_addr) as admin,
    ):
        await subscribe(client, "T", "G", "SIMPLE_CONSUMER")
        bodies = [b"%d" % number for number in range(60)]
        for body in bodies:
            await send(client, message("T", body))
        while len(taken) < len(bodies):
            for got in await consumer.receive(max_message_num=5):
                taken.append(got.body)
                await consumer.ack(got)
            found = received(await client.call_stream("ReceiveMessage", receiving("T", "G", 5)))[1]
            taken += [each.body for each in found]
            if found:
                ack = await client.call("AckMessage", acking("T", "G", *found))
                assert ack.status.code == Code.OK
        assert sorted(taken) == sorted(bodies)

        await send(client, message("T", b"fails"))
        (failed,) = await receive(client, receiving("T", "G"))
        retry = names.pop_retry_topic("T", "G")
        mq.advance(seconds=40)
        await mq.wait_until(lambda: mq.broker.parts.store.max_offset_in_queue(retry, 0) == 1)
        progress = await admin.consume_stats("G")
        assert {each.queue.topic: each.lag for each in progress.queues if each.lag} == {retry: 1}
        (again,) = await receive(client, receiving("T", "G"))
        assert again.body == failed.body
        ack = await client.call("AckMessage", acking("T", "G", again))
        assert ack.status.code == Code.OK
        assert (await admin.consume_stats("G")).lag == 0


async def test_a_handle_in_the_hands_of_another_group(mq: EmbeddedBroker) -> None:
    """It says where a message lies, as Apache's do: the group that got it keeps its message."""
    add_topic(mq, "T")
    async with client_of(mq, "one") as one, client_of(mq, "two") as two:
        await send(one, message("T", b"x"))
        (got,) = await receive(one, receiving("T", "G1"))
        ack = await two.call("AckMessage", acking("T", "G2", got))
        assert ack.status.code == Code.OK
        change = m.ChangeInvisibleDurationRequest()
        change.topic.name, change.group.name = "T", "G2"
        change.receipt_handle = got.system_properties.receipt_handle
        change.invisible_duration.seconds = 3600
        assert (await two.call("ChangeInvisibleDuration", change)).status.code == Code.OK
        (other,) = await receive(two, receiving("T", "G2"))
        assert other.body == b"x"
        mq.advance(seconds=40)
        again: list[Any] = []
        while not again:
            again = await receive(one, receiving("T", "G1"))
        assert (again[0].body, again[0].system_properties.delivery_attempt) == (b"x", 2)


async def test_an_ordered_message_that_nobody_acknowledged_outlives_a_kill(
    mq: EmbeddedBroker,
) -> None:
    add_topic(mq, "T", "FIFO")
    add_group(mq, "G", consume_message_orderly=True)
    async with client_of(mq) as client:
        for body in (b"0", b"1"):
            await send(client, message("T", body, "FIFO", message_group="g"))
        held = await receive(client, receiving("T", "G"))
        assert [each.body for each in held] == [b"0", b"1"]
    await mq.kill()
    await mq.recover()
    async with client_of(mq) as client:
        ack = await client.call("AckMessage", acking("T", "G", held[1]))
        assert ack.status.code == Code.OK
        found = await receive(client, receiving("T", "G"))
        assert [each.body for each in found] == [b"0", b"1"]


async def test_a_changed_time_of_an_ordered_message_is_its_handles(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T", "FIFO")
    add_group(mq, "G", consume_message_orderly=True)
    async with client_of(mq) as client:
        await send(client, message("T", b"x", "FIFO", message_group="g"))
        (got,) = await receive(client, receiving("T", "G"))
        mq.advance(seconds=25)
        change = m.ChangeInvisibleDurationRequest()
        change.topic.name, change.group.name = "T", "G"
        change.receipt_handle = got.system_properties.receipt_handle
        change.invisible_duration.seconds = 30
        answer = await client.call("ChangeInvisibleDuration", change)
        got.system_properties.receipt_handle = answer.receipt_handle
        mq.advance(seconds=20)  # 45 after it was handed out, 10 before others see it
        ack = await client.call("AckMessage", acking("T", "G", got))
        assert ack.status.code == Code.OK


async def test_renewed_messages_keep_their_order_over_a_restart(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T", "FIFO")
    add_group(mq, "G", consume_message_orderly=True)
    async with client_of(mq) as client:
        await subscribe(client, "T", "G", "SIMPLE_CONSUMER")
        for body in (b"0", b"1", b"2"):
            await send(client, message("T", body, "FIFO", message_group="g"))
        held = await receive(client, receiving("T", "G", 2, auto_renew=True))
        assert [each.body for each in held] == [b"0", b"1"]
        front = mq._front
        assert front is not None
        renewals = [
            front.service.renewals.get("client", each.system_properties.receipt_handle)
            for each in held
        ]
        for number in (1, 2):  # for one minute, then for three
            mq.advance(seconds=55)
            front.service.on_time()
            for renewal in renewals:
                assert renewal is not None
                await mq.wait_until(partial(_is_at, renewal, number), what="a renewal")
                left_ms = visible_at(renewal.handle) - mq.clock()
                assert AHEAD_MS < left_ms <= RENEW_MS[number - 1]
    await mq.restart()
    async with client_of(mq) as client:
        orders = mq.broker.services.pop.orders
        mq.advance(seconds=170)
        assert orders.is_blocked("T", "G", 0, None, mq.clock())
        mq.advance(seconds=20)
        found = await receive(client, receiving("T", "G"))
        assert [each.body for each in found] == [b"0", b"1", b"2"]
        attempts = [each.system_properties.delivery_attempt for each in found]
        assert attempts == [2, 2, 1]


async def test_routes_of_very_many_queues_are_made_one_at_a_time_in_turns(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topic(mq, "T", queues=3000)
    add_group(mq, "G", consume_message_orderly=True)
    most = at_work = 0
    fill = Routes._fill

    def counted(routes: Routes, *args: Any) -> None:
        nonlocal most, at_work
        if not at_work:
            asyncio.get_running_loop().call_soon(over)
        at_work += 1
        most = max(most, at_work)
        fill(routes, *args)

    def over() -> None:
        nonlocal at_work
        at_work = 0

    monkeypatch.setattr(Routes, "_fill", counted)
    async with client_of(mq) as client:
        route, assignment = m.QueryRouteRequest(), m.QueryAssignmentRequest()
        route.topic.name = assignment.topic.name = "T"
        assignment.group.name = "G"
        answers = await asyncio.gather(
            *(client.call("QueryRoute", route) for _ in range(3)),
            client.call("QueryAssignment", assignment),
        )
    for answer in answers[:3]:
        assert [each.id for each in answer.message_queues] == list(range(3000))
    assert [each.message_queue.id for each in answers[3].assignments] == list(range(3000))
    assert 0 < most <= 201, "in one turn"


async def test_endpoints_that_an_answer_repeats_too_often_are_refused(mq: EmbeddedBroker) -> None:
    """Each queue has a copy: 100 KiB of them in a request for 3 000 queues were 300 MiB."""
    add_topic(mq, "T", queues=3000)
    async with client_of(mq) as client:
        for count, code in ((1, Code.OK), (3000, Code.BAD_REQUEST)):
            request = m.QueryRouteRequest()
            request.topic.name = "T"
            request.endpoints.scheme = 1
            for number in range(count):
                request.endpoints.addresses.add(host=f"10.0.0.{number % 256}", port=8081)
            assert (await client.call("QueryRoute", request)).status.code == code
