"""What peers send to the gRPC port, to access control and to any connection is in known tables.

A table is an attribute that begins as an empty collection. One that is not in the list below fails
the first test: say there what bounds it, and with what it goes. The others flood those that peers
fill.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from h2.events import StreamReset
from tests.proxy.client import framed
from tests.proxy.conftest import add_topic, client_of, message, receiving, sending, subscribe
from tests.proxy.test_http2 import BOUND_S, HANDLERS
from tests.proxy.test_http2 import client_of as caller_of
from tests.proxy.test_http2_cases import until

import oberth
from oberth.broker.acl import access_control
from oberth.broker.acl.access_control import AccessControl
from oberth.broker.acl.signature import SecretKey
from oberth.proxy import call
from oberth.proxy import clients as clients_module
from oberth.proxy import cluster as cluster_module
from oberth.proxy import messages as m
from oberth.proxy import messaging as messaging_module
from oberth.proxy import receiving as receiving_module
from oberth.proxy import renewals as renewals_module
from oberth.proxy.authentication import ACCESS_KEY_MAX, NOBODY, signer_of
from oberth.proxy.call import Call, CallChannel
from oberth.proxy.clients import ClientTable, GrpcClient
from oberth.proxy.cluster import Facts
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.core import NOWHERE
from oberth.proxy.local import LocalBroker, LocalPeer
from oberth.proxy.renewals import KEPT_MS, Renewal, Renewals
from oberth.proxy.server import GrpcOptions, GrpcServer
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

ROOT = Path(oberth.__file__).parent
COLLECTIONS = {
    "dict", "set", "list", "deque", "Counter", "OrderedDict", "defaultdict", "bytearray", "Queue",
    "WeakKeyDictionary", "WeakValueDictionary", "WeakSet",
}  # fmt: skip

BOUNDED = {
    "broker/acl/access_control.py:AccessControl._granted": "20000 sends; flooded below",
    "broker/acl/plain_acl.py:PlainAcl.accounts": "of a file that the operator writes",
    "broker/acl/users.py:UserStore._policies": "one for each user",
    "broker/acl/users.py:UserStore.entries": "made by administrators",
    "broker/acl/users.py:UserStore.users": "made by administrators",
    "broker/acl/users.py:_Named._lengths": "of the entries",
    "broker/acl/users.py:_Named._prefixes": "the entries",
    "broker/acl/users.py:_Named._whole": "the entries",
    "broker/acl/users.py:_Named.denials": "the entries",
    "proxy/clients.py:ClientTable._clients": "50000, ids of 512 characters; settings flooded below",
    "proxy/clients.py:GrpcClient._waiting": "what a broker asks of a client, 3 s",
    "proxy/begun.py:BegunCalls._turn": "calls of one turn of the loop",
    "proxy/clients.py:GrpcClient.streams": "8, the oldest makes room",
    "proxy/cluster.py:ClusterBackend._addresses": "brokers that name servers know",
    "proxy/cluster.py:ClusterBackend._missed": "1000, 10 min",
    "proxy/cluster.py:ClusterPeer._brokers": "one for each open connection to a broker",
    "proxy/cluster.py:ClusterPeer._left": "those of `_work` whose call was cancelled",
    "proxy/cluster.py:ClusterPeer._work": "open calls, which the budget counts",
    "proxy/cluster.py:Facts._known": "10000 names",
    "proxy/cluster.py:Facts._last": "of those that are known; flooded below",
    "proxy/core.py:ServiceCore._tasks": "one for each late answer, receive, or broker of messages",
    "proxy/core.py:ServiceCore.results": "methods and codes, both ours",
    "proxy/frames.py:ServerConnection._block": "32 KiB and 64 frames; test_frames",
    "proxy/frames.py:ServerConnection._reset": "1024 numbers",
    "proxy/frames.py:ServerConnection._streams": "1024, as many as the calls",
    "proxy/header_blocks.py:HeaderDecoder._table": "4096 bytes; test_header_blocks",
    "proxy/call.py:Call._buffer": "counts in the budget",
    "proxy/call.py:Call._messages": "64, and counts in the budget; flooded below",
    "proxy/call.py:Call.out": "counts in the budget",
    "proxy/http2.py:GrpcChannel._blocked": "of the open calls",
    "proxy/http2.py:GrpcChannel._headers_sent": "of the open calls",
    "proxy/http2.py:GrpcChannel._ready": "of the open calls",
    "proxy/http2.py:GrpcChannel._unstarted": "of the open calls, those of one read",
    "proxy/http2.py:GrpcChannel.calls": "1024, and each counts in the budget; flooded below",
    "proxy/messaging.py:MessagingService._to_look_at": "clients, see `ClientTable._clients`",
    "proxy/local.py:LocalBroker._turn": "one turn of the loop",
    "proxy/local.py:LocalPeer._late": "of calls that were cancelled, until held_requests ends or "
    "drops them",
    "proxy/local.py:LocalPeer._open": "open calls, which the budget counts",
    "proxy/local.py:LocalPeer._waiters": "begun calls, and those that were reset, 3 s at most",
    "proxy/local.py:LocalPeer._tasks": "what the broker asks of a client, 3 s",
    "proxy/receiving.py:Receives._to_give_back": "brokers of messages that were left, which count "
    "in the 500000",
    "proxy/receiving.py:Receives._to_renew": "brokers of the messages that are renewed, of these "
    "those that are due",
    "proxy/renewals.py:Renewals._by_client": "10000 a client, 500000 in all; flooded below",
    "proxy/renewals.py:Renewals._due": "the same ones",
    "proxy/renewals.py:Renewals._left": "clients of the same ones",
    "proxy/sending.py:Sends._ended": "10000 names of brokers and offsets",
    "proxy/telemetry.py:_Round._ids": "ids of the clients, see `ClientTable._clients`",
    "proxy/turns.py:Turns._waiting": "open calls, which the budget counts",
    "proxy/server.py:GrpcServer._begins": "our methods",
    "proxy/server.py:GrpcServer._handlers": "our methods",
    "proxy/server.py:GrpcServer.calls": "our methods and statuses; others count as unknown",
    "proxy/server.py:GrpcServer.channels": "20000",
    "proxy/server.py:GrpcServer.seconds": "our methods; others count as unknown",
    "remoting/aio/channel.py:Channel._out": "4 MiB, 512 MiB in all: PeerBudget",
    "remoting/aio/client.py:RemotingClient._addresses": "of our own connections",
    "remoting/aio/client.py:RemotingClient._channels": "our own connections",
    "remoting/aio/client.py:RemotingClient._connecting": "our own connections",
    "remoting/aio/client.py:RemotingClient._posting": "one for each controller and name server",
    "remoting/aio/long_answers.py:LongAnswers._tasks": "16 MiB of answers, and one more",
    "remoting/aio/peer_budget.py:PeerBudget._held": "addresses of open connections",
    "remoting/aio/peer_budget.py:PeerBudget._next": "1000, some of the same ones",
    "remoting/aio/processors.py:ProcessorTable._body_sizes_max": "our codes",
    "remoting/aio/processors.py:ProcessorTable._processors": "our codes",
    "remoting/aio/processors.py:ProcessorTable._stages": "our stages",
    "remoting/aio/processors.py:PutOff._deaf": "work of their connections, 512 MiB: PeerBudget",
    "remoting/aio/processors.py:PutOff._waiting": "64 MiB",
    "remoting/aio/processors.py:Slices._deaf": "work of their connections, 512 MiB: PeerBudget",
    "remoting/aio/processors.py:Slices._work": "64 MiB",
    "remoting/aio/server.py:RemotingServer._turn": "one turn of the loop",
    "remoting/aio/server.py:RemotingServer._turn_data": "one turn of the loop",
    "remoting/aio/server.py:RemotingServer.channels": "as many as leave descriptors to the store",
    "remoting/aio/stage.py:Stage._deaf": "as `Stage._queue`",
    "remoting/aio/stage.py:Stage._heard": "the same ones",
    "remoting/aio/stage.py:Stage._done": "of what was in work",
    "remoting/aio/stage.py:Stage._queue": "32 MiB a connection, then it is not read from",
    "remoting/aio/stage.py:Stage._tasks": "as many as the stage has",
    "remoting/aio/tls.py:ServerTls._unsent": "counts with what the channel has to send",
}


def begins_empty(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=entries) | ast.List(elts=entries) | ast.Set(elts=entries):
            return not entries
        case ast.Call(func=function, keywords=keywords):
            maker = ast.unparse(function).partition("[")[0].rpartition(".")[2]
            given = [ast.unparse(each.value) for each in keywords if each.arg == "default_factory"]
            return maker in COLLECTIONS or (maker == "field" and set(given) & COLLECTIONS != set())
    return False


def tables(path: Path) -> Iterator[str]:
    """``Class.attribute`` for each that is assigned an empty collection."""
    for made in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(made, ast.ClassDef):
            continue
        for node in ast.walk(made):
            targets, value = [], None
            match node:
                case ast.Assign():
                    targets, value = node.targets, node.value
                case ast.AnnAssign():
                    targets, value = [node.target], node.value
            for target in targets:
                if value is None or not begins_empty(value):
                    continue
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield f"{made.name}.{target.attr}"
                elif isinstance(target, ast.Name) and node in made.body:
                    yield f"{made.name}.{target.id}"


def test_every_table_is_known() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for folder in ("proxy", "broker/acl", "remoting/aio")
        for path in (ROOT / folder).rglob("*.py")
        for name in tables(path)
        if path.name not in ("plain_acl_edit.py", "yaml_reader.py")  # of one edit of a file
    }
    assert found == set(BOUNDED)


# Calls


async def keep(call: Call) -> None:
    await call.only_message()
    await asyncio.sleep(BOUND_S)


def serving(**options: Any) -> GrpcServer:
    return GrpcServer({**HANDLERS, "/k": keep}, GrpcOptions(grace_s=0.1, **options))


async def test_what_is_worked_on_counts_in_the_budget() -> None:
    """Requests that wait for messages or for the disk were sent by somebody, too."""
    async with serving(held_bytes_max=1_000_000) as server:
        async with caller_of(server) as greedy, caller_of(server) as modest:
            mine = await modest.open("/k", framed(b"x" * 10_000))
            await until(lambda: any(each.held > 10_000 for each in server.channels))
            (channel,) = [each for each in server.channels if each.calls]
            for _ in range(12):
                await greedy.open("/k", framed(b"x" * 100_000))
            await until(lambda: server.channels == {channel})
            assert channel.held > 10_000
            assert server._budget.used == channel.held
            await mine.cancel()
            await until(lambda: not channel.calls)
        await until(lambda: server._budget.used == 0)


async def test_headers_count_in_the_budget() -> None:
    async with serving() as server, caller_of(server, metadata={"x": "y" * 12_000}) as client:
        await client.open("/a")
        await until(lambda: server.channels and next(iter(server.channels)).calls)
        assert server._budget.used > call.CALL_SIZE + 12_000


async def test_what_is_no_call_is_not_kept_open() -> None:
    """The stream of another content type is reset: nobody would count what is sent on it."""
    async with serving() as server, caller_of(server) as client:
        events: list[Any] = []
        real = client.h2.receive_data
        client.h2.receive_data = lambda data: [*_noted(events, real(data))]  # type: ignore[method-assign]
        client.h2.send_headers(
            1, [(":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "t")]
        )
        await client.flush()
        await until(lambda: any(isinstance(each, StreamReset) for each in events))
        (channel,) = server.channels
        assert not channel._connection.is_open(1)


def _noted(events: list[Any], found: list[Any]) -> list[Any]:
    events += found
    return found


# Clients


def settings_of(size: int) -> Any:
    settings = m.Settings()
    settings.subscription.group.name = "G"
    settings.subscription.subscriptions.add().expression.expression = "x" * size
    return settings


async def test_settings_of_all_clients_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "SETTINGS_TOTAL_MAX", 100_000)
    table = ClientTable()
    peer = LocalPeer(LocalBroker("b", ProcessorTable(), lambda channel: None), NOWHERE, NOWHERE)
    channel = cast(CallChannel, peer)  # nobody calls it
    clients = [GrpcClient(f"c{number}", "", peer, channel, 0.0) for number in range(20)]
    for client in clients:
        table.add(client)
    with pytest.raises(StatusError, match="allowed 262144"):
        table.keep_settings(clients[0], settings_of(300_000))
    kept = clients[:8]
    for client in kept:
        table.keep_settings(client, settings_of(12_000))
    for client in clients[8:]:
        with pytest.raises(StatusError, match="of all clients") as refused:
            table.keep_settings(client, settings_of(12_000))
        assert refused.value.code == Code.TOO_MANY_REQUESTS
    assert table.settings_bytes == sum(client.settings_size for client in kept) <= 100_000
    # Whoever holds much does not keep out who holds little: each has its share.
    table.keep_settings(clients[-1], settings_of(3_000))
    table.keep_settings(kept[0], settings_of(3_000))
    for client in clients:
        table.remove(client)
    assert table.settings_bytes == 0
    table.keep_settings(clients[0], settings_of(10))
    assert table.settings_bytes == 0
    assert clients[0].settings.ByteSize() > 1_000  # what it was: it has ended


async def test_unknown_fields_of_settings_are_not_kept(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        command = m.TelemetryCommand()
        command.settings.publishing.topics.add().name = "T"
        raw = command.settings.SerializeToString() + b"\xfa\x7f\x90\x4e" + b"x" * 10_000
        command.settings.MergeFromString(raw)
        stream = await client.open("Telemetry")
        await stream.send(command)
        assert await stream.next() is not None
        front = mq._front
        assert front is not None
        known = front.service.clients.get("client")
        assert known is not None
        assert known.settings_size < 1_000


def test_access_keys_have_an_end() -> None:
    for length, is_read in ((ACCESS_KEY_MAX, True), (ACCESS_KEY_MAX + 1, False)):
        text = f"a Credential={'u' * length}, Signature=00ff"
        assert (signer_of({"authorization": text}) != NOBODY) is is_read


# Messages in work


def renewal(client: str, number: int, began_ms: int = 0) -> Renewal:
    return Renewal(client, f"handle {number}", "T", "G", "", began_ms)


def test_messages_in_work_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "PER_CLIENT_MAX", 10)
    monkeypatch.setattr(renewals_module, "TOTAL_MAX", 25)
    table = Renewals()
    for client in "abcd":
        for number in range(15):
            table.add(renewal(client, number), 60_000)
    assert [len(table._by_client.get(client, ())) for client in "abcd"] == [10, 10, 5, 0]
    assert len(table) == sum(map(len, table._due.values())) == 25
    table.add(renewal("a", 0), 60_000)
    assert table.remove("a", "handle 0") is not None
    assert table.remove("a", "handle 0") is None
    table.remove_client("b")
    assert len(table) == 14
    table.add(renewal("d", 1), 60_000)
    assert len(table) == 15
    for number in range(2, 5):  # what was left counts until it is nobody's
        table.add(renewal("d", number), 60_000)
    assert len(table) == 15
    assert [len(table.take_left(4)) for _ in range(3)] == [4, 4, 2]
    assert not table.has_left
    assert len(table) == sum(map(len, table._due.values())) == 15
    table.settled(10)
    table.add(renewal("d", 2), 60_000)
    assert len(table) == 16


def test_messages_in_work_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "LOOKED_AT_ONCE", 10)
    monkeypatch.setattr(renewals_module, "AT_ONCE_MAX", 4)
    table = Renewals()
    for number in range(20):
        table.add(renewal("a", number), 60_000)  # kept for too long
    for number in range(20, 30):
        table.add(renewal("a", number, KEPT_MS), 61_000)
    left = []
    for _ in range(5):
        assert len(table.due(KEPT_MS)) <= 4
        left.append(len(table))
    assert left == [20, 10, 10, 10, 10]
    assert table.due(KEPT_MS) == []


def test_messages_that_a_client_leaves_stay_those_that_end() -> None:
    """Whenever it is seen that one does not end after all, nobody has it in work."""
    table = Renewals()
    ends = [renewal("a", number) for number in range(4)]
    for each in ends:
        table.add(each, 60_000)
    ends[1].endings = ends[2].endings = 1
    table.remove_client("a")
    ends[2].endings = 0
    ends[3].endings = 1
    assert table.take_left(10) == [ends[2], ends[0]]
    assert [each.is_left for each in ends] == [False, True, False, True]
    table.settled(2)
    assert (table._left_count, table._due) == (0, {})


async def test_what_clients_leave_goes_back_in_turns(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients end at once, and whatever each has in work."""
    monkeypatch.setattr(receiving_module, "GIVEN_BACK_AT_ONCE", 3)
    add_topic(mq, "T")
    front = mq._front
    assert front is not None
    receives = front.service._receives
    at_once, given = [0], []

    async def give_back(topic: str, group: str, handle: str, lite_topic: str) -> None:
        at_once[0] += 1
        assert at_once[0] <= 3
        await asyncio.sleep(0)
        at_once[0] -= 1
        given.append(handle)

    monkeypatch.setattr(receives, "_give_back", give_back)
    async with client_of(mq) as client, client_of(mq, "other") as other:
        for each, name in ((client, "client"), (other, "other")):
            await subscribe(each, "T", "G")
            for number in range(10):
                handle = f"0 0 60000 0 0 broker-a 0 {number} 1"
                receives.renewals.add(Renewal(name, handle, "T", "G", "", 0), 60_000)
        for known in front.service.clients:
            front.service._forget(known)
        assert len(receives.renewals) == 0
        assert sum(map(len, receives.renewals._due.values())) == 20
        await mq.wait_until(lambda: len(given) == 20, what="messages that are given back")
        assert receives.renewals._due == {}
        await mq.wait_until(lambda: not receives._to_give_back, what="the end of it")
        assert receives.renewals._left_count == 0


async def test_clients_that_are_gone_leave_in_turns(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messaging_module, "FORGET_S", 0.0)
    monkeypatch.setattr(messaging_module, "LOOKED_AT_ONCE", 3)
    front = mq._front
    assert front is not None
    service = front.service
    clients = service.clients
    now = asyncio.get_running_loop().time()
    peer = service.core._own()
    monkeypatch.setattr(peer, "close", lambda: None)
    channel = cast(CallChannel, peer)  # nobody calls it
    for number in range(20):
        clients.add(GrpcClient(f"c{number}", "", peer, channel, now - 200 * (number % 2)))
    left = [len(clients)]
    service.on_time()
    while left[-1] > 10:
        left.append(len(clients))
        assert left[-2] - left[-1] in (0, 1)
        await asyncio.sleep(0)
    await mq.wait_until(lambda: not service._to_look_at, what="the end of the look")
    assert [each.client_id for each in clients] == [f"c{number}" for number in range(0, 20, 2)]


async def test_who_has_ended_has_nothing_in_work(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that outlives its client's goodbye leaves no renewal that nobody would end."""
    add_topic(mq, "T")
    async with client_of(mq) as client, client_of(mq, "other") as other:
        await subscribe(client, "T", "G")
        front = mq._front
        assert front is not None
        clients = front.service.clients
        ended = clients.get("client")
        assert ended is not None
        monkeypatch.setattr(ended.peer, "close", lambda: None)  # the poll goes on
        request = receiving("T", "G", auto_renew=True)
        stream = await client.open("ReceiveMessage", framed(request.SerializeToString()))
        pops = mq.broker.services.pop.polling
        await mq.wait_until(lambda: len(pops) == 1, what="a waiting pop")
        clients.remove(ended)
        response = await other.call("SendMessage", sending(message("T")))
        assert response.status.code == Code.OK
        assert len(await stream.all()) == 3
        assert len(front.service.renewals) == 0


# The cluster, access


async def test_facts_of_ever_new_names_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the name was forgotten before its answer came."""
    monkeypatch.setattr(cluster_module, "FACTS_MAX", 10)
    answer = asyncio.Event()

    async def ask(name: str) -> str:
        await answer.wait()
        return name

    facts = Facts(ask)
    names = [f"name {number}" for number in range(100)]
    asking = [asyncio.create_task(facts.get(name)) for name in names]
    await asyncio.sleep(0)
    answer.set()
    async with asyncio.timeout(BOUND_S):
        assert await asyncio.gather(*asking) == names
    assert len(facts._known) == 10
    assert facts._last.keys() <= facts._known.keys()


def test_sends_that_were_granted_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "GRANTED_MAX", 10)
    access = AccessControl.__new__(AccessControl)
    access._granted, access._granted_count = {}, 0
    for number in range(100):
        fields = {"AccessKey": "u", "b": f"T{number}"}
        request = RemotingCommand(code=310, ext_fields=fields)
        access._remember(f"host {number % 3}", request, SecretKey(b"secret"))
        assert sum(map(len, access._granted.values())) <= 10
    access._forget()
    request = RemotingCommand(code=310, ext_fields={"AccessKey": "u", "b": "T" * 300})
    access._remember("host", request, SecretKey(b"secret"))
    assert not access._granted
