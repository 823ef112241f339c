"""`oberth proxy`: gRPC clients before several brokers, as before one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import hmac
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.client import WAIT_S, GrpcClient, framed
from tests.proxy.conftest import (
    acking,
    message,
    publish,
    received,
    receiving,
    sending,
    subscribe,
)
from tests.proxy.test_access import SETTINGS, signed
from tests.proxy.test_cli import running

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.errors import MQClientError, RemotingTimeoutError
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.proxy import cluster as cluster_module
from oberth.proxy import messages as m
from oberth.proxy.begun import BROKER_TIMEOUT_S
from oberth.proxy.cluster import ClusterBackend, ClusterPeer, Facts
from oberth.proxy.codes import Code, code_of
from oberth.proxy.front import Front, FrontConfig
from oberth.proxy.handles import parse_transaction_id
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.tls import load_client_context, make_certificate
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import DEFAULT_SETTINGS

NAMES = ("broker-a", "broker-b")
SYN_AGAIN_S = 1.0
"""Behind which TCP sends a first packet again that was not answered."""


@dataclass
class Cluster:
    """Brokers, their name server, and the proxy before them."""

    namesrv: str
    brokers: dict[str, Broker]
    front: Front

    async def add_topic(self, topic: str, kind: str = "NORMAL", queues: int = 1) -> None:
        async with Admin(namesrv_addr=self.namesrv) as admin:
            await admin.create_topic(topic, queue_nums=queues, attributes={"message.type": kind})

    async def add_group(self, group: str, *, ordered: bool = False) -> None:
        async with Admin(namesrv_addr=self.namesrv) as admin:
            await admin.create_group(
                SubscriptionGroupConfig(group_name=group, consume_message_orderly=ordered)
            )

    def members(self, group: str) -> list[list[str]]:
        """Client ids of a group, as each broker knows them."""
        found = [each.parts.consumers.get(group) for each in self.brokers.values()]
        return [[] if each is None else each.client_ids() for each in found]

    def client(self, client_id: str = "client", **metadata: str) -> GrpcClient:
        return GrpcClient(str(self.front.address), client_id, metadata)


@asynccontextmanager
async def clustered(
    path: Path, settings: dict[str, str] | None = None, user: str = "", password: str = ""
) -> AsyncIterator[Cluster]:
    async with NameServer(NamesrvConfig(listen_host="127.0.0.1", listen_port=0)) as server:
        brokers: dict[str, Broker] = {}
        try:
            for name in NAMES:
                broker_config, store_config, _ = read_configs(
                    {
                        **DEFAULT_SETTINGS,
                        "brokerName": name,
                        "listenPort": "0",
                        "namesrvAddr": str(server.address),
                        "storePathRootDir": str(path / name),
                        **(settings or {}),
                    }
                )
                brokers[name] = Broker(broker_config, store_config)
                await brokers[name].start()
            config = ClientConfig(
                namesrv_addr=str(server.address), access_key=user, secret_key=password
            )
            backend = ClusterBackend(config)
            async with backend:
                options = FrontConfig(port=0, tls_mode="disabled")
                async with Front(backend, options, backend.not_ready) as front:
                    yield Cluster(str(server.address), brokers, front)
        finally:
            for broker in brokers.values():
                await broker.aclose()


def _route(topic: str) -> Any:
    request = m.QueryRouteRequest()
    request.topic.name = topic
    return request


def naming(broker: str, topic: str, group: str) -> Any:
    request = receiving(topic, group)
    request.message_queue.broker.name = broker
    return request


async def test_messages_go_to_all_brokers_and_come_from_each(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        query = m.QueryRouteRequest()
        query.topic.name = "T"
        query.endpoints.addresses.add(host="proxy.example", port=80)
        route = await client.call("QueryRoute", query)
        assert {each.broker.name for each in route.message_queues} == set(NAMES)
        for each in route.message_queues:
            (address,) = each.broker.endpoints.addresses
            assert (address.host, address.port) == ("proxy.example", 80)
        for n in range(4):
            response = await client.call("SendMessage", sending(message("T", b"%d" % n)))
            assert response.status.code == Code.OK, response
        bodies = []
        for broker in NAMES:
            status, found = received(
                await client.call_stream("ReceiveMessage", naming(broker, "T", "G"))
            )
            assert status == Code.OK
            assert len(found) == 2
            bodies += [each.body for each in found]
            ack = await client.call("AckMessage", acking("T", "G", *found))
            assert ack.status.code == Code.OK, ack
        assert sorted(bodies) == [b"0", b"1", b"2", b"3"]


async def test_groups_are_members_of_the_brokers(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster, cluster.client("one") as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        stream, _ = await subscribe(client, "T", "G")
        assert cluster.members("G") == [["one"], ["one"]]
        await stream.cancel()
        response = await client.call("NotifyClientTermination", m.NotifyClientTerminationRequest())
        assert response.status.code == Code.OK
        await until(lambda: not any(cluster.members("G")))


async def test_a_message_group_and_its_order(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("F", "FIFO", 2)
        await cluster.add_group("G", ordered=True)
        for n in range(3):
            sent = message("F", b"%d" % n, "FIFO", message_group="one")
            assert (await client.call("SendMessage", sending(sent))).status.code == Code.OK
        (broker,) = (  # all in one queue of one broker
            name
            for name, each in cluster.brokers.items()
            if any(each.parts.store.max_offset_in_queue("F", n) for n in range(2))
        )
        _, found = received(await client.call_stream("ReceiveMessage", naming(broker, "F", "G")))
        assert [each.body for each in found] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("resolution", ["COMMIT", "ROLLBACK", "TRANSACTION_RESOLUTION_UNSPECIFIED"])
async def test_transactions_end_at_their_broker(tmp_path: Path, resolution: str) -> None:
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("X", "TRANSACTION")
        await cluster.add_group("G")
        await publish(client, "X")
        for _ in range(2):
            sent = message("X", b"half", "TRANSACTION")
            (entry,) = (await client.call("SendMessage", sending(sent))).entries
            end = m.EndTransactionRequest(
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=m.enum_values("TransactionResolution")[resolution],
            )
            end.topic.name = "X"
            assert (await client.call("EndTransaction", end)).status.code == Code.OK
        for each in cluster.brokers.values():
            each.services.dispatching.now()
        stored = [each.parts.store.max_offset_in_queue("X", 0) for each in cluster.brokers.values()]
        assert stored == ([1, 1] if resolution == "COMMIT" else [0, 0])


async def test_a_transaction_is_ended_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's brokers store its message each time that they are told to, after a rollback, too."""
    told: list[str] = []
    call = ClusterPeer.call

    async def note(self: ClusterPeer, broker: str, request: Any, on_late: Any = None) -> Any:
        if request.code == RequestCode.END_TRANSACTION:
            told.append(request.fields["commitOrRollback"])
            if len(told) == 1:
                raise RemotingTimeoutError("not now")
        return await call(self, broker, request, on_late)

    monkeypatch.setattr(ClusterPeer, "call", note)
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("X", "TRANSACTION")
        sent = message("X", b"half", "TRANSACTION")
        (entry,) = (await client.call("SendMessage", sending(sent))).entries
        codes = []
        end = m.EndTransactionRequest(
            message_id=entry.message_id, transaction_id=entry.transaction_id
        )
        end.topic.name = "X"
        for resolution in ("ROLLBACK", "ROLLBACK", "ROLLBACK", "COMMIT"):
            end.resolution = m.enum_values("TransactionResolution")[resolution]
            codes.append((await client.call("EndTransaction", end)).status.code)
        end.transaction_id = entry.transaction_id.rpartition(" ")[0] + " nobody"
        codes.append((await client.call("EndTransaction", end)).status.code)
        assert codes == [
            *(Code.PROXY_TIMEOUT, Code.OK, Code.OK),
            *(Code.INVALID_TRANSACTION_ID, Code.INVALID_TRANSACTION_ID),
        ]
        assert told == ["12", "12"]


async def test_orphans_are_asked_of_their_producer(tmp_path: Path) -> None:
    settings = {"transactionTimeOut": "1", "transactionCheckInterval": "1000"}
    async with clustered(tmp_path, settings) as cluster, cluster.client() as client:
        await cluster.add_topic("X", "TRANSACTION")
        stream = await publish(client, "X")
        sent = message("X", b"half", "TRANSACTION")
        (entry,) = (await client.call("SendMessage", sending(sent))).entries
        raw = await stream.next()
        assert raw is not None
        orphan = m.TelemetryCommand.FromString(raw).recover_orphaned_transaction_command
        assert orphan.message.body == b"half"
        key, _, _, broker = parse_transaction_id(orphan.transaction_id)
        assert (key, broker) == (entry.message_id, parse_transaction_id(entry.transaction_id)[3])


async def test_a_broker_that_is_gone(tmp_path: Path) -> None:
    """What was not sent to one goes to the other; handles of unknown brokers are refused."""
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        assert (await client.call("SendMessage", sending(message("T")))).status.code == Code.OK
        # The route of the proxy still has it, and there are no connections yet.
        backend = cluster.front.service.core.backend
        assert isinstance(backend, ClusterBackend)
        await cluster.brokers.pop("broker-b").aclose()
        backend._addresses["broker-b"] = "127.0.0.1:1"
        async with cluster.client("another") as other:
            for _ in range(4):
                response = await other.call("SendMessage", sending(message("T")))
                assert response.status.code == Code.OK, response
        stray = m.AckMessageRequest()
        stray.topic.name, stray.group.name = "T", "G"
        stray.entries.add(receipt_handle="0 1 60000 0 0 broker-z 0 5 1000")
        refused = await client.call("AckMessage", stray)
        assert refused.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_broker_that_cannot_be_reached_keeps_nobody_out(tmp_path: Path) -> None:
    """Clients begin, join their groups and send by what the other brokers know."""
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        backend = cluster.front.service.core.backend
        assert isinstance(backend, ClusterBackend)
        assert len(await backend.queues("T")) == 2
        await cluster.brokers.pop("broker-a").aclose()
        backend._addresses["broker-a"] = "127.0.0.1:1"
        await subscribe(client, "T", "G")
        assert cluster.members("G") == [["client"]]
        response = await client.call("SendMessage", sending(message("T")))
        assert response.status.code == Code.OK, response
        response = await client.call("Heartbeat", m.HeartbeatRequest())
        assert response.status.code == Code.OK, response
        # Where none is left the client hears of it.
        backend._addresses["broker-b"] = "127.0.0.1:1"
        async with cluster.client("another") as other:
            refused = await other.open("Telemetry")
            command = m.TelemetryCommand()
            command.settings.client_type = 1  # PRODUCER
            command.settings.publishing.topics.add().name = "T"
            await refused.send(command)
            assert await refused.all() == []
            assert refused.status == 13  # INTERNAL


async def test_what_came_too_late_is_given_back(tmp_path: Path) -> None:
    """A poll is cancelled, another one keeps the connection: what it gets is not lost to it."""
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_topic("U")
        await cluster.add_group("G")
        given_back = asyncio.Event()
        receives = cluster.front.service._receives
        give_back = receives._give_back

        async def noted(*words: str) -> None:
            await give_back(*words)
            given_back.set()

        setattr(receives, "_give_back", noted)  # noqa: B010 - a method
        request = framed(naming("broker-a", "T", "G").SerializeToString())
        other = framed(naming("broker-a", "U", "G").SerializeToString())
        waiting = await client.open("ReceiveMessage", request, deadline="60S")
        await client.open("ReceiveMessage", other, deadline="60S")
        await until(lambda: len(cluster.brokers["broker-a"].services.pop.polling) == 2)
        await waiting.cancel()
        for _ in NAMES:
            assert (await client.call("SendMessage", sending(message("T")))).status.code == Code.OK
        async with asyncio.timeout(WAIT_S):
            await given_back.wait()


async def test_receives_that_were_given_up_take_nothing(tmp_path: Path) -> None:
    """The connection that they waited on ends when nothing else is open there."""
    async with clustered(tmp_path) as cluster, cluster.client("gone") as gone:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        await subscribe(gone, "T", "G")  # as long as its stream is open the proxy keeps the client
        polling = cluster.brokers["broker-a"].services.pop.polling
        request = framed(naming("broker-a", "T", "G").SerializeToString())
        given_up = [await gone.open("ReceiveMessage", request) for _ in range(3)]
        await until(lambda: len(polling) == 3)
        (channel,) = polling._channels
        assert isinstance(channel, Channel)
        for each in given_up:
            await each.cancel()
        await until(lambda: channel.is_closed)
        async with cluster.client("stays") as client:
            receive = asyncio.create_task(
                client.call_stream("ReceiveMessage", naming("broker-a", "T", "G"))
            )
            await until(lambda: polling._channels)
            for _ in NAMES:
                sent = await client.call("SendMessage", sending(message("T")))
                assert sent.status.code == Code.OK
            found = received(await receive)[1]
            assert [each.system_properties.delivery_attempt for each in found] == [1]
        # Who gave up goes on with a connection of its own.
        assert (await gone.call("SendMessage", sending(message("T")))).status.code == Code.OK


async def test_credentials(tmp_path: Path) -> None:
    """Brokers with access control are asked as one user, and clients must be that user."""
    config = ClientConfig(namesrv_addr="127.0.0.1:1", access_key="proxy", secret_key="secret word")
    async with ClusterBackend(config) as backend:
        good = hmac.new(b"secret word", b"now", hashlib.sha1).digest()
        assert backend.unknown_signer("1.1.1.1", "proxy", b"now", good) is None
        assert backend.unknown_signer("1.1.1.1", "proxy", b"then", good) is not None
        assert backend.unknown_signer("1.1.1.1", "other", b"now", good) is not None
        assert backend.unknown_signer("1.1.1.1", "", b"", b"") is not None
        assert backend.not_ready() == "no broker is known"


@pytest.mark.parametrize("user", ["root", "svc"])
async def test_who_signs_may_do_what_its_user_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, user: str
) -> None:
    """Of the brokers; and of the proxy what a broker would let it do."""
    caplog.set_level("WARNING", "oberth")  # it is the old one again at the end
    settings = {**SETTINGS, "haAllowedAddresses": "127.0.0.1"}
    async with clustered(tmp_path, settings, user, "secret") as cluster:
        entry = PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Allow")
        policies = [PolicyInfo(policy_type="Custom", entries=[entry])]
        for broker in cluster.brokers.values():
            broker.parts.topics.create_internal("T", 1)
            broker.parts.topics.create_internal("Other", 1)
            await broker.services.registration.register_all()
            users = broker.services.access.users
            users.create_user(UserInfo(username="svc", password="secret", user_type="Normal"))
            users.create_acl(AclInfo(subject="User:svc", policies=policies))
        async with cluster.client(**signed(user, "secret")) as client:
            sent = await client.call("SendMessage", sending(message("T")))
            assert sent.status.code == Code.OK
            code = Code.OK if user == "root" else Code.FORBIDDEN
            sent = await client.call("SendMessage", sending(message("Other")))
            assert sent.status.code == code
            for name in ("ChangeLogLevel", "GetProxyRuntimeStats"):
                request = m.message_class(m.ADMIN_METHODS[name].request)()
                path = f"/{m.PACKAGE}.Admin/{name}"
                stream = await client.open(path, framed(request.SerializeToString()))
                (raw,) = await stream.all()
                text = str(m.message_class(m.ADMIN_METHODS[name].response).FromString(raw))
                assert ("FORBIDDEN" in text) is (user == "svc"), name


def test_a_code_that_is_not_known() -> None:
    assert code_of(987_654) is Code.INTERNAL_SERVER_ERROR
    assert code_of(ResponseCode.LMQ_QUOTA_EXCEEDED) is Code.LITE_TOPIC_QUOTA_EXCEEDED


async def test_handles_outlive_a_name_server_that_was_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of no broker until each registers again."""
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        await client.call("SendMessage", sending(message("T")))
        await client.call("SendMessage", sending(message("T")))
        _, found = received(
            await client.call_stream("ReceiveMessage", naming("broker-a", "T", "G"))
        )
        backend = cluster.front.service.core.backend
        assert isinstance(backend, ClusterBackend)
        monkeypatch.setattr(cluster_module, "FRESH_S", 0.0)
        ask = backend.instance.ask_name_server

        async def know_nothing(code: RequestCode, *args: Any, **options: Any) -> RemotingCommand:
            if code != RequestCode.GET_BROKER_CLUSTER_INFO:
                return await ask(code, *args, **options)
            body = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
            return RemotingCommand(code=0, body=body)

        monkeypatch.setattr(backend.instance, "ask_name_server", know_nothing)
        assert await backend.brokers() == []
        ack = await client.call("AckMessage", acking("T", "G", *found))
        assert ack.status.code == Code.OK, ack
        # Whom nobody knew is unknown; who was known and cannot be reached may be there again.
        stray = acking("T", "G", *found)
        handle = stray.entries[0].receipt_handle
        stray.entries[0].receipt_handle = handle.replace("broker-a", "broker-z")
        refused = await client.call("AckMessage", stray)
        assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
        await cluster.brokers.pop("broker-b").aclose()
        stray.entries[0].receipt_handle = handle.replace("broker-a", "broker-b")
        refused = await client.call("AckMessage", stray)
        assert refused.status.code == Code.INTERNAL_SERVER_ERROR
        backend._missed = {name: (to, 0.0) for name, (to, _) in backend._missed.items()}
        refused = await client.call("AckMessage", stray)
        assert refused.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_brokers_are_asked_for_before_a_handle_of_one_is_refused(tmp_path: Path) -> None:
    """A proxy that was just started may have seen no name server yet."""
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        for _ in NAMES:
            await client.call("SendMessage", sending(message("T")))
        pieces = await client.call_stream("ReceiveMessage", naming("broker-a", "T", "G"))
        _, found = received(pieces)
        backend = cluster.front.service.core.backend
        assert isinstance(backend, ClusterBackend)
        backend._addresses = {}
        backend._cluster = Facts(backend._ask_cluster)
        ack = await client.call("AckMessage", acking("T", "G", *found))
        assert ack.status.code == Code.OK, ack


def test_brokers_that_are_missed_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MISSED_MAX", 10)

    async def flood() -> None:
        backend = ClusterBackend(ClientConfig(namesrv_addr="127.0.0.1:1"))
        for turn in range(10):
            backend._note_missed({})
            backend._addresses = {f"{turn} {number}": "127.0.0.1:1" for number in range(5)}
        assert len(backend._missed) == 10
        assert backend.has_broker("9 0")

    asyncio.run(flood())


def test_a_broker_that_is_missed_gives_its_address_to_another() -> None:
    """Acknowledgements of the one would hit messages of the other."""

    async def rename() -> None:
        backend = ClusterBackend(ClientConfig(namesrv_addr="127.0.0.1:1"))
        backend._addresses = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
        answers: list[dict[str, str]] = [{}, {"c": "127.0.0.1:1"}, {}]
        for known in answers:
            backend._note_missed(known)
            backend._addresses = known
        assert set(backend._missed) == {"b", "c"}
        assert not backend.has_broker("a")

    asyncio.run(rename())


def test_a_connection_may_take_a_second_syn() -> None:
    """The first one may be lost; and another broker has as much time."""
    assert SYN_AGAIN_S < cluster_module.CONNECT_TIMEOUT_S <= BROKER_TIMEOUT_S / 2


async def test_what_a_silent_host_did_not_get_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that vanished refuses no connection; none comes about."""
    monkeypatch.setattr(cluster_module, "CONNECT_TIMEOUT_S", 0.05)
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await client.call("QueryRoute", _route("T"))
        backend = cluster.front.service.core.backend
        assert isinstance(backend, ClusterBackend)
        await backend.message_type("T")
        backend._addresses["broker-b"] = "127.0.0.1:1"
        loop = asyncio.get_running_loop()
        create = loop.create_connection

        async def connect(factory: Any, host: str, port: int, **options: Any) -> Any:
            if port == 1:
                await asyncio.Event().wait()
            return await create(factory, host, port, **options)

        monkeypatch.setattr(loop, "create_connection", connect)
        for _ in range(4):
            response = await client.call("SendMessage", sending(message("T")))
            assert response.status.code == Code.OK, response


async def test_a_receive_ends_with_its_client(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        polling = cluster.brokers["broker-a"].services.pop.polling
        request = framed(naming("broker-a", "T", "G").SerializeToString())
        waiting = await client.open("ReceiveMessage", request, deadline="60S")
        await until(lambda: len(polling) == 1)
        bye = m.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK
        pieces = [m.ReceiveMessageResponse.FromString(each) for each in await waiting.all()]
        assert received(pieces) == (Code.INTERNAL_SERVER_ERROR, [])
        assert waiting.status == 0


async def test_what_a_client_acknowledged_when_it_ended_is_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has it, only its answer is on its way: given back, the message came again."""
    done, release = asyncio.Event(), asyncio.Event()
    invoke = RemotingClient.invoke
    asked: list[int] = []

    async def hold(self: RemotingClient, addr: str, request: Any, *more: Any) -> Any:
        asked.append(request.code)
        answer = await invoke(self, addr, request, *more)
        if request.code == RequestCode.ACK_MESSAGE:
            done.set()
            await release.wait()
        return answer

    async with clustered(tmp_path) as cluster, cluster.client() as client:
        await cluster.add_topic("T")
        await cluster.add_group("G")
        await subscribe(client, "T", "G")
        for _ in NAMES:
            await client.call("SendMessage", sending(message("T")))
        request = naming("broker-a", "T", "G")
        request.auto_renew = True
        _, found = received(await client.call_stream("ReceiveMessage", request))
        service = cluster.front.service
        assert len(service.renewals) == len(found) == 1
        monkeypatch.setattr(RemotingClient, "invoke", hold)
        ack = asyncio.create_task(client.call("AckMessage", acking("T", "G", *found)))
        await done.wait()
        bye = m.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", bye)).status.code == Code.OK
        release.set()
        assert (await ack).status.code == Code.INTERNAL_SERVER_ERROR
        assert len(service.renewals) == 0
        await until(lambda: not service.core._tasks)  # what was begun at its end is done
        assert RequestCode.CHANGE_MESSAGE_INVISIBLETIME not in asked


async def test_facts_are_asked_once_and_outlive_those_who_gave_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    gone = False

    async def ask(name: str) -> int:
        asked.append(name)
        number = len(asked)
        await asyncio.sleep(0)
        if gone:
            raise MQClientError("nobody answers")
        return number

    facts = Facts(ask)
    assert list(await asyncio.gather(*map(facts.get, "aab"))) == [1, 1, 2]
    assert asked == ["a", "b"]
    monkeypatch.setattr(cluster_module, "FRESH_S", 0.0)
    assert await facts.get("a") == 3
    gone = True
    assert await facts.get("a") == 3
    with pytest.raises(MQClientError):
        await facts.get("c")
    gone = False
    assert await facts.get("c") == 6


async def test_facts_that_are_long_in_coming_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there are older ones; nor is what is being asked asked again."""
    answers: list[asyncio.Future[int]] = []

    async def ask(name: str) -> int:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    facts = Facts(ask)
    monkeypatch.setattr(cluster_module, "FRESH_S", 0.0)
    first = asyncio.create_task(facts.get("a"))
    await until(lambda: answers)
    answers[0].set_result(1)
    assert await first == 1
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 0.01)
    assert [await facts.get("a") for _ in range(3)] == [1, 1, 1]
    assert len(answers) == 2
    answers[1].set_result(2)
    await until(lambda: facts._last["a"] == 2)
    monkeypatch.setattr(cluster_module, "PATIENCE_S", WAIT_S)
    waits = asyncio.create_task(facts.get("a"))
    await until(lambda: len(answers) == 3)
    answers[2].set_result(3)
    assert await waits == 3


async def test_the_command(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster:
        await cluster.add_topic("T")
        words = ("proxy", "-n", cluster.namesrv, "--port", "0")
        async with running(*words) as (line, process):
            found = re.fullmatch(r"ready: gRPC (\S+), brokers of \S+, in [0-9.]+ s", line)
            assert found is not None, line
            async with GrpcClient(found[1]) as client:
                response = await client.call("SendMessage", sending(message("T")))
                assert response.status.code == Code.OK
                process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_the_command_before_a_cluster_that_takes_tls_only(tmp_path: Path) -> None:
    pem = tmp_path / "own.pem"
    made = make_certificate(2)
    assert made is not None
    pem.write_bytes(made)
    words = ["up", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "s")]
    for each in ("tlsServerMode=enforcing", f"tlsServerCertPath={pem}", "brokerName=broker-a"):
        words += ["--set", each]
    async with running(*words) as (line, _):
        namesrv = line.split()[3].rstrip(",")
        proxy = ("proxy", "-n", namesrv, "--port", "0", "--tls-ca", str(pem))
        config = ClientConfig(namesrv_addr=namesrv, tls_context=load_client_context(str(pem)))
        async with Admin(config=config) as admin:
            await admin.create_topic("T", queue_nums=1)
            await admin.create_group(SubscriptionGroupConfig(group_name="G"))
        async with (
            running(*proxy) as (ready, _),
            GrpcClient(ready.split()[2].rstrip(",")) as client,
        ):
            assert (await client.call("SendMessage", sending(message("T")))).status.code == Code.OK
            status, (got,) = received(
                await client.call_stream("ReceiveMessage", receiving("T", "G"))
            )
            assert status == Code.OK
            acked = await client.call("AckMessage", acking("T", "G", got))
            assert acked.status.code == Code.OK


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what another task brings about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def test_who_is_accepted_while_the_front_closes_is_closed() -> None:
    backend = ClusterBackend(ClientConfig(namesrv_addr="127.0.0.1:1"))
    async with backend:
        front = Front(backend, FrontConfig(port=0, tls_mode="disabled"), lambda: None)
        await front.start()
        assert front.server is not None
        address = front.server.address
        with socket.create_connection((address.host, address.port)) as peer:
            await asyncio.sleep(0)  # the loop sees it
            await asyncio.sleep(0)  # and has accepted it
            await front.aclose()
            gc.collect()  # what was given up warns now
            peer.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.to_thread(peer.recv, 1000):
                    pass
