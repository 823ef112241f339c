"""Signed calls: the users and policies of the broker, and the age of a date."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.proxy.client import GrpcClient, framed
from tests.proxy.conftest import (
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

from oberth.broker.acl.users import NORMAL, UserStore
from oberth.client.acl import SessionCredentials
from oberth.formats import names
from oberth.formats.topic_config import TopicConfig
from oberth.proxy import messages as m
from oberth.proxy import messaging, telemetry
from oberth.proxy.authentication import NOBODY, signer_of
from oberth.proxy.codes import Code
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "root", "password": "secret"}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "root", "secretKey": "secret"}
    ),
}


def signed(user: str, secret: str, date: datetime | None = None) -> dict[str, str]:
    """The headers of an official client."""
    text = (date or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).hexdigest().upper()
    return {
        "x-mq-date-time": text,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}/region/service, "
        f"SignedHeaders=x-mq-date-time, Signature={digest}",
    }


def _create(users: UserStore, name: str, *resources: str) -> None:
    users.create_user(UserInfo(username=name, password="pw", user_type=NORMAL))
    _give_rights(users, name, *resources)


def _give_rights(users: UserStore, name: str, *resources: str) -> None:
    """To send to and read from some topics and groups."""
    entries = [
        PolicyEntryInfo(resource=each, actions=["Pub", "Sub"], decision="Allow")
        for each in resources
    ]
    policy = PolicyInfo(policy_type="Custom", entries=entries)
    users.create_acl(AclInfo(subject=f"User:{name}", policies=[policy]))


@pytest.fixture(autouse=True)
def in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slow machine would do in several turns of the loop."""
    monkeypatch.setattr(telemetry, "ASK_S", 60.0)
    monkeypatch.setattr(messaging, "FORGET_S", 60.0)


@pytest.fixture
async def mq() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(SETTINGS, grpc=True) as broker:
        add_topic(broker, "T")
        add_topic(broker, "Other")
        users = broker.broker.services.access.users
        _create(users, "ann", "Topic:T", "Group:G")
        yield broker


async def test_who_may_do_what(mq: EmbeddedBroker) -> None:
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as client:
        assert (await client.call("SendMessage", sending(message("T")))).status.code == Code.OK
        refused = await client.call("SendMessage", sending(message("Other")))
        assert refused.status.code == Code.UNAUTHORIZED
        for topic, code in (("T", Code.OK), ("Other", Code.UNAUTHORIZED)):
            route = m.QueryRouteRequest()
            route.topic.name = topic
            assert (await client.call("QueryRoute", route)).status.code == code
        for group, code in (("G", Code.OK), ("H", Code.UNAUTHORIZED)):
            assignment = m.QueryAssignmentRequest()
            assignment.topic.name, assignment.group.name = "T", group
            assert (await client.call("QueryAssignment", assignment)).status.code == code
        await subscribe(client, "T", "G")
        status, found = received(await client.call_stream("ReceiveMessage", receiving("T", "G")))
        assert (status, len(found)) == (Code.OK, 1)
        status, _ = received(await client.call_stream("ReceiveMessage", receiving("T", "H")))
        assert status == Code.UNAUTHORIZED
        assert (await client.call("AckMessage", acking("T", "H", *found))).status.code == (
            Code.UNAUTHORIZED
        )
        assert (await client.call("AckMessage", acking("T", "G", *found))).status.code == Code.OK
        stream = await client.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = 1
        command.settings.publishing.topics.add().name = "Other"
        await stream.send(command)
        assert await stream.all() == []
        assert stream.status == 3  # INVALID_ARGUMENT


def naming(topic: str, group: str) -> dict[str, Any]:
    """Requests that name a topic and a group, by call."""
    found: dict[str, Any] = {}
    for name, method in {**m.METHODS, **m.ADMIN_METHODS}.items():
        request = m.message_class(method.request)()
        fields = {field.name for field in request.DESCRIPTOR.fields}
        if "topic" in fields:
            request.topic.name = topic
        if "topics" in fields:
            request.topics.add().name = topic
        if "group" in fields:
            request.group.name = group
        if "message_queue" in fields:
            request.message_queue.topic.name = topic
        found[name] = request
    found["SendMessage"] = sending(message(topic))
    found["ReceiveMessage"] = receiving(topic, group)
    found["ReceiveMessage"].message_queue.broker.ClearField("name")
    found["ResetGroupOffset"].reset_timestamp.seconds = 1
    found["QueryMessage"].message_key = "k"
    found["AdminSendMessage"].system_properties.message_type = 1
    command = found["Telemetry"]
    command.settings.client_type = 3  # SIMPLE_CONSUMER
    command.settings.subscription.group.name = group
    command.settings.subscription.subscriptions.add().topic.name = topic
    return found


@pytest.mark.parametrize("consumer", [3, 6], ids=["simple", "lite"])
async def test_who_may_not_use_a_topic_is_not_told_of_it(mq: EmbeddedBroker, consumer: int) -> None:
    """Not that it is there, nor what kind of messages it takes; nor that a group is there."""
    mq.broker.parts.config.auto_create_subscription_group = False
    add_topic(mq, "Bobs", "FIFO", queues=3)
    add_topic(mq, "Read")
    mq.broker.parts.topics.update(TopicConfig(topic_name="Read", perm=4))
    add_group(mq, "BobsG", consume_message_orderly=True, retry_max_times=3)
    for topic, group in (("Bobs", "G"), ("Read", "G"), ("Bobs", "BobsG"), ("T", "BobsG")):
        answers: list[list[str]] = []
        for there in (True, False):
            names_ = {"Bobs": "None", "Read": "None", "BobsG": "NoneG"}
            one = topic if there else names_.get(topic, topic)
            other = group if there else names_.get(group, group)
            requests, found = naming(one, other), []
            requests["Telemetry"].settings.client_type = consumer
            for number, name in enumerate(requests):
                service = "Admin" if name in m.ADMIN_METHODS else "MessagingService"
                method = {**m.METHODS, **m.ADMIN_METHODS}[name]
                async with client_of(mq, f"c{number}", **signed("ann", "pw")) as client:
                    body = framed(requests[name].SerializeToString())
                    stream = await client.open(f"/{m.PACKAGE}.{service}/{name}", body)
                    kind = m.message_class(method.response)
                    answered = "".join(str(kind.FromString(each)) for each in await stream.all())
                    how = {**stream.headers, **stream.trailers}
                    text = f"{name} {how.get('grpc-status')} {how.get('grpc-message')} {answered}"
                for new, old in ((one, topic), (other, group)):
                    text = re.sub(rf'(?<=[:"]){new}(?=[ "])', old, text)
                found.append(re.sub(r"\s*(seconds|nanos|offset): \d+|[0-9A-F]{32}", "", text))
            answers.append(found)
        assert answers[0] == answers[1], (topic, group)
        assert sum("UNAUTHORIZED" in each for each in answers[0]) > 10


async def test_what_comes_again_is_its_groups_whatever_the_names(mq: EmbeddedBroker) -> None:
    """Messages of T come again to G from %RETRY%G_T, which a group G_T has for its own."""
    retry = names.retry_topic("G_T")
    mq.broker.parts.topics.create_internal(retry, 1)
    fields = {"a": "P", "b": retry, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0",
              "h": "0", "i": "UNIQ_KEY\x01u\x02RETRY_TOPIC\x01Other\x02", "m": "false"}  # fmt: skip
    request = RemotingCommand(
        code=int(RequestCode.SEND_MESSAGE_V2), ext_fields=fields, body=b"of others"
    )
    SessionCredentials("root", "secret").sign(request)
    remoting = RemotingClient()
    assert (await remoting.invoke(str(mq.broker.address), request, 60.0)).code == 0
    await remoting.aclose()
    handle = ""

    async def again(client: GrpcClient) -> Any:
        while True:
            _, found = received(await client.call_stream("ReceiveMessage", receiving("T", "G")))
            if found:
                (one,) = found
                assert one.body == b"hello"
                return one
            mq.advance(seconds=2)

    async with client_of(mq, "ann-1", **signed("ann", "pw")) as client:
        await subscribe(client, "T", "G")
        for is_forwarded in (False, True):
            assert (await client.call("SendMessage", sending(message("T")))).status.code == Code.OK
            await again(client)
            mq.advance(seconds=31)
            got = await again(client)
            words = got.system_properties.receipt_handle.split(" ")
            assert (words[4], got.system_properties.delivery_attempt) == ("1", 2)
            if is_forwarded:
                forward = m.ForwardMessageToDeadLetterQueueRequest()
                forward.group.name, forward.topic.name = "G", "T"
                forward.receipt_handle = got.system_properties.receipt_handle
                answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
                assert answer.status.code == Code.OK
                (letter,) = mq.messages(names.dlq_topic("G"))
                assert letter.body == b"hello"
            else:
                acked = await client.call("AckMessage", acking("T", "G", got))
                assert acked.status.code == Code.OK
                # The time of the other group's message is changed, and is over.
                handle = " ".join([*words[:7], "0"])
                change = m.ChangeInvisibleDurationRequest(receipt_handle=handle)
                change.group.name, change.topic.name = "G", "T"
                change.invisible_duration.seconds = 10
                answer = await client.call("ChangeInvisibleDuration", change)
                assert answer.status.code == Code.OK
                mq.advance(seconds=12)


async def test_a_handle_with_a_number_that_none_is(mq: EmbeddedBroker) -> None:
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as client:
        handle = "0 1 30000 0 0 broker-a 0 0 "
        for number in ("9" * 20, "9" * 5000, "-1", "", "x"):
            request = m.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle + number)
            request.group.name, request.topic.name = "G", "T"
            answer = await client.call("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE, number


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed("ann", "wrong"),
        signed("nobody", "pw"),
        {**signed("ann", "pw"), "x-mq-date-time": "20260101T000000Z"},
        {**signed("ann", "pw"), "authorization": "MQv2-HMAC-SHA1 Credential=ann, Signature=xyz"},
        {**signed("ann", "pw"), "authorization": "x"},
    ],
)
async def test_who_is_not_known(mq: EmbeddedBroker, headers: dict[str, str]) -> None:
    async with client_of(mq, "x", **headers) as client:
        response = await client.call("SendMessage", sending(message("T")))
        assert response.status.code == Code.UNAUTHORIZED
        assert mq._front is not None
        assert len(mq._front.service.clients) == 0


async def test_a_client_id_belongs_to_its_user(mq: EmbeddedBroker) -> None:
    async with (
        client_of(mq, "same", **signed("ann", "pw")) as client,
        client_of(mq, "same", **signed("root", "secret")) as other,
    ):
        await subscribe(client, "T", "G")
        bye = m.NotifyClientTerminationRequest()
        response = await other.call("NotifyClientTermination", bye)
        assert response.status.code == Code.UNAUTHORIZED
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK


async def test_a_stream_does_not_become_another_users(mq: EmbeddedBroker) -> None:
    """A client may end while its stream is open: what comes over that is still its own."""
    async with (
        client_of(mq, "same", **signed("ann", "pw")) as ann,
        client_of(mq, "same", **signed("root", "secret")) as root,
    ):
        stream, _ = await subscribe(ann, "T", "G")
        bye = m.NotifyClientTerminationRequest()
        assert (await ann.call("NotifyClientTermination", bye)).status.code == Code.OK
        await subscribe(root, "T", "G")
        await stream.send(m.TelemetryCommand())
        assert await stream.all() == []
        assert stream.status == 3  # INVALID_ARGUMENT
        assert mq._front is not None
        (known,) = mq._front.service.clients
        assert (known.access_key, len(known.streams)) == ("root", 1)


def _delete(users: UserStore) -> None:
    users.delete_user("ann")


def _disable(users: UserStore) -> None:
    users.update_user(UserInfo(username="ann", user_status="disable"))


def _rekey(users: UserStore) -> None:
    users.update_user(UserInfo(username="ann", password="another"))


def _take_rights(users: UserStore) -> None:
    users.delete_acl("User:ann", None, None)


@pytest.mark.parametrize("change", [_delete, _disable, _rekey, _take_rights])
async def test_what_a_user_who_is_no_longer_admitted_has_in_work_goes_to_others(
    mq: EmbeddedBroker, change: Callable[[UserStore], None]
) -> None:
    """The stream that was admitted before does not keep it, nor is it told of anything."""
    front = mq._front
    assert front is not None
    service = front.service
    async with (
        client_of(mq, "ann-1", **signed("ann", "pw")) as ann,
        client_of(mq, "root-1", **signed("root", "secret")) as root,
    ):
        streams = [(await subscribe(ann, "T", "G"))[0] for _ in range(2)]
        await subscribe(root, "T", "G")
        assert (await ann.call("SendMessage", sending(message("T")))).status.code == Code.OK
        pieces = await ann.call_stream("ReceiveMessage", receiving("T", "G", auto_renew=True))
        assert len(received(pieces)[1]) == len(service.renewals) == 1
        service.on_time()
        assert [len(each.streams) for each in service.clients] == [2, 1]
        change(mq.broker.services.access.users)
        service.on_time()
        for stream in streams:
            assert await stream.all() == []
            assert stream.status == 3  # INVALID_ARGUMENT
        assert [(each.client_id, len(each.streams)) for each in service.clients] == [("root-1", 1)]
        assert len(service.renewals) == 0
        await mq.wait_until(lambda: not service.core._tasks, what="the message to be given back")
        mq.advance(seconds=2)
        pieces = await root.call_stream("ReceiveMessage", receiving("T", "G"))
        assert [each.body for each in received(pieces)[1]] == [b"hello"]


async def test_of_many_clients_some_are_looked_at_in_a_turn(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "QUESTIONS_A_SECOND", 1)
    front = mq._front
    assert front is not None
    service = front.service
    async with AsyncExitStack() as stack:
        streams = []
        for number in range(3):
            client = client_of(mq, f"ann-{number}", **signed("ann", "pw"))
            await stack.enter_async_context(client)
            streams.append(await publish(client, "T"))
        left = []
        mq.broker.services.access.users.delete_user("ann")
        for _ in range(8):  # a round that has begun ends first
            service.on_time()
            left.append(len(service.clients))
        assert sorted(set(left), reverse=True)[-3:] == [2, 1, 0]
        assert left[-1] == 0
        for stream in streams:
            assert await stream.all() == []


async def test_nothing_is_asked_while_nothing_changes(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = mq._front
    assert front is not None
    service = front.service
    access = mq.broker.services.access
    asked: list[str] = []
    for name in ("unknown_signer", "needs_refusal"):
        real = getattr(access, name)

        def ask(*given: Any, name: str = name, real: Any = real) -> Any:
            asked.append(name)
            return real(*given)

        monkeypatch.setattr(access, name, ask)
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as client:
        await publish(client, "T")
        service.on_time()
        for change, wanted in ((False, 0), (True, 2), (False, 0)):
            if change:
                _create(access.users, "bob", "Topic:T")
            asked.clear()
            service.on_time()
            assert len(asked) == wanted


async def test_clients_of_one_user_end_in_turns(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "ASK_S", 0.0)
    monkeypatch.setattr(messaging, "FORGET_S", 0.0)
    front = mq._front
    assert front is not None
    service = front.service
    async with AsyncExitStack() as stack:
        for number in range(10):
            client = client_of(mq, f"ann-{number}", **signed("ann", "pw"))
            await publish(await stack.enter_async_context(client), "T")
        service.on_time()
        await mq.wait_until(lambda: not service._telemetry._is_asking, what="the first look")
        mq.broker.services.access.users.delete_user("ann")
        service.on_time()
        assert sum(len(each.streams) for each in service.clients) == 9
        await mq.wait_until(lambda: not service._telemetry._is_asking, what="the end of streams")
        assert sum(len(each.streams) for each in service.clients) == 0
        await mq.wait_until(lambda: not service._to_look_at, what="the end of a look")
        service.on_time()
        await mq.wait_until(lambda: not len(service.clients), what="that all are forgotten")


async def test_who_is_deleted_waits_for_no_rights_of_others(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings may name hundreds of topics, and there may be very many such clients."""
    monkeypatch.setattr(telemetry, "QUESTIONS_A_SECOND", 20)
    front = mq._front
    assert front is not None
    users = mq.broker.services.access.users
    _create(users, "bob", "Topic:*")
    async with AsyncExitStack() as stack:
        ann = await stack.enter_async_context(client_of(mq, "ann-1", **signed("ann", "pw")))
        stream = await publish(ann, "T")
        for number in range(5):
            bob = client_of(mq, f"bob-{number}", **signed("bob", "pw"))
            await publish(await stack.enter_async_context(bob), *(f"T{n}" for n in range(100)))
        front.service.on_time()
        users.delete_user("ann")
        front.service.on_time()
        assert len(front.service.clients) == 5
        assert await stream.all() == []


async def test_changes_again_and_again_keep_no_rights(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins to look at all clients, and who waits already comes first."""
    monkeypatch.setattr(telemetry, "QUESTIONS_A_SECOND", 10)
    front = mq._front
    assert front is not None
    users = mq.broker.services.access.users
    async with AsyncExitStack() as stack:
        streams = []
        for user, secret, count in (("ann", "pw", 1), ("root", "secret", 10)):
            for number in range(count):
                client = client_of(mq, f"{user}-{number}", **signed(user, secret))
                streams.append(await publish(await stack.enter_async_context(client), "T"))
        _take_rights(users)
        for number in range(15):
            _create(users, f"user-{number}", "Topic:T")
            front.service.on_time()
        assert len(front.service.clients) == 10
        assert await streams[0].all() == []


async def test_a_stream_of_a_forgotten_client_is_admitted_anew(mq: EmbeddedBroker) -> None:
    """It was forgotten when its user was deleted, and nobody has looked at it since."""
    front = mq._front
    assert front is not None
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as ann:
        stream = await publish(ann, "T")
        bye = m.NotifyClientTerminationRequest()
        assert (await ann.call("NotifyClientTermination", bye)).status.code == Code.OK
        mq.broker.services.access.users.delete_user("ann")
        front.service.on_time()
        await stream.send(m.TelemetryCommand())
        assert await stream.all() == []
        assert stream.status == 3  # INVALID_ARGUMENT


async def test_a_new_stream_takes_the_rights_that_the_settings_take(mq: EmbeddedBroker) -> None:
    """They are looked at when they change, and when a stream begins; then the client is anew."""
    front = mq._front
    assert front is not None
    service = front.service
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as ann:
        stream = await publish(ann, "T")
        (known,) = service.clients
        await stream.cancel()
        await mq.wait_until(lambda: not known.streams, what="the end of the stream")
        _take_rights(mq.broker.services.access.users)
        service.on_time()
        assert len(service.clients) == 1
        stream = await ann.open("Telemetry")
        assert await stream.all() == []
        assert stream.status == 3  # INVALID_ARGUMENT
        service.on_time()
        assert len(service.clients) == 0
        _give_rights(mq.broker.services.access.users, "ann", "Topic:T")
        await publish(ann, "T")
        assert len(service.clients) == 1


async def test_settings_that_are_refused_are_not_kept(mq: EmbeddedBroker) -> None:
    front = mq._front
    assert front is not None
    async with client_of(mq, "ann-1", **signed("ann", "pw")) as ann:
        first = await publish(ann, "T")
        second = await ann.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = 1
        command.settings.publishing.topics.add().name = "Other"
        await second.send(command)
        assert await second.all() == []
        (known,) = front.service.clients
        assert [each.name for each in known.settings.publishing.topics] == ["T"]
        await first.send(m.TelemetryCommand())
        front.service.on_time()
        assert len(known.streams) == 1


async def test_a_stream_may_last_longer_than_the_date_of_its_signature() -> None:
    settings = {**SETTINGS, "grpcDateAgeMaxSeconds": "300"}
    async with EmbeddedBroker(settings, grpc=True) as mq:
        add_topic(mq, "T")
        front = mq._front
        assert front is not None
        async with client_of(mq, "root-1", **signed("root", "secret")) as client:
            await subscribe(client, "T", "G")
            mq.advance(minutes=10)
            refused = await client.call("SendMessage", sending(message("T")))
            assert refused.status.code == Code.UNAUTHORIZED
            front.service.on_time()
            (known,) = front.service.clients
            assert len(known.streams) == 1


async def test_old_signatures() -> None:
    settings = {**SETTINGS, "grpcDateAgeMaxSeconds": "300"}
    async with EmbeddedBroker(settings, grpc=True) as mq:
        add_topic(mq, "T")
        now = datetime.now(UTC)
        for minutes, code in ((0, Code.OK), (-10, Code.UNAUTHORIZED), (10, Code.UNAUTHORIZED)):
            headers = signed("root", "secret", now + timedelta(minutes=minutes))
            async with client_of(mq, f"c{minutes}", **headers) as client:
                response = await client.call("SendMessage", sending(message("T")))
                assert response.status.code == code


def test_headers_that_cannot_be_read() -> None:
    date = {"x-mq-date-time": "d"}
    assert signer_of({}) == NOBODY
    for text in ("x", "a b", "a Credential=", "a Credential=u, Signature=0", "," * 10_000):
        assert signer_of({"authorization": text, **date}) == NOBODY
    found = signer_of({"authorization": "a Credential=u/x,Signature=00ff", **date})
    assert found == ("u", b"d", b"\x00\xff")


async def test_headers_of_clients_without_a_user() -> None:
    """The client for Python signs with nothing, which matters with access control only."""
    async with EmbeddedBroker(grpc=True) as mq:
        add_topic(mq, "T")
        for text in ("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00", "x"):
            async with client_of(mq, "c", authorization=text) as client:
                response = await client.call("SendMessage", sending(message("T")))
                assert response.status.code == Code.OK
