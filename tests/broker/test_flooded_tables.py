"""What requests leave behind: the collections of a whole server are walked after two floods.

Each code is asked by ever new names, with topics and groups that exist and that do not. A
collection that is longer after the second flood than after the first grows by what peers send. It
stands in a list here with what bounds it; of who is not let through, nothing may stay.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import gc
import json
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from oberth.client.acl import SessionCredentials
from oberth.formats.topic_config import TopicConfig
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.admin import UserInfo
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.base import field_types
from oberth.remoting.headers.table import HEADERS

if TYPE_CHECKING:
    MakeLive = Callable[..., Awaitable[Any]]

ROUNDS = 4
"""Requests of each code and kind in a flood, each with names of its own."""
AT_ONCE = 40
ANSWER_S = 100.0
"""Every request here is answered at once: those that wait for messages have tests of their own."""
UNANSWERED = frozenset({Code.END_TRANSACTION})

ATOMS = (str, bytes, bytearray, memoryview, int, float, complex, bool, type(None), type)

OPERATORS = "what an operator makes: without access control anybody may, with it nobody else"
BROKER_GROWS = {
    "BulkDispatch.touched": "queues that were written, until the next step",
    "AssignmentProcessor._modes": "10 000; test_request_modes_are_limited",
    "AssignmentProcessor._routes": "10 000; test_routes_that_assignments_ask_for_are_limited",
    "CommitLog.topics": "topics of the store",
    "ConsumerGroup.clients": "10 000 groups of a connection, 100 000 clients of a group",
    "ConsumerGroup.subscriptions": "64 MiB; test_subscriptions_of_all_groups_are_limited",
    "ConsumerTable._channels": "open connections",
    "ConsumerTable._groups": "10 000 of a connection; test_groups_of_one_connection_are_limited",
    "LiteService._channels": "clients that have said something",
    "LiteService._clients_on": "the same ones",
    "ProducerTable._channels": "open connections",
    "ProducerTable._groups": "10 000 of a connection; test_groups_of_one_connection_are_limited",
    "ProducerTable._ids": "clients of the same groups",
    "ProducerTable._next": "the same groups",
    "ConsumeQueueStore.table": "queues of the store",
    "ConsumerTable._compensated": "10 000; test_what_requests_declare_is_limited",
    "Durations.recent_s": "2048",
    "FilePool._dirty": "queues that were written, until their bytes are in the files",
    "FilePool._new_names": "new queues, until their names are synced",
    "FilePool._open": "512",
    "FilePool._unsynced": "queues that were written, until they are synced",
    "FilePool._windows": "2048",
    "LiteSubscription.queues": "100 000; test_more_than_a_broker_may_have_is_refused",
    "LiteSubscriptions._clients": "likewise",
    "LiteSubscriptions._takers": "likewise",
    "LmqConsumerOffsets._dirty": "some of the same ones",
    "LmqConsumerOffsets._dirty_pulls": "some of the same ones",
    "LmqConsumerOffsets._entries": "the same ones",
    "LmqConsumerOffsets._keys_of_groups": "the same ones, while they are 100 000 at most",
    "LmqConsumerOffsets._offsets": "1 000 000; test_offsets_of_ever_new_groups_are_limited",
    "LmqConsumerOffsets._pull_entries": "the same ones",
    "LmqConsumerOffsets._pull_offsets": "likewise",
    "RebalanceLocks._groups": "200 000; test_locks_are_limited",
    "SubscriptionGroupConfig.attributes": OPERATORS,
    "SubscriptionGroupConfig.unknown": OPERATORS,
    "SubscriptionGroups._dirty": "some of the same ones",
    "SubscriptionGroups._entries": "the same ones",
    "SubscriptionGroups._forbidden": "10 000; test_what_is_forbidden_is_limited",
    "SubscriptionGroups._table": "1 000 000, 50 000 of which nobody has used",
    "SubscriptionGroups.found_ms": "50 000; test_unused_groups.py::test_the_unused_are_limited",
    "TableFiles._unsynced": "names of changed tables, until they are synced",
    "Topic.offsets": "queues of the store",
    "TopicConfig.attributes": OPERATORS,
    "TopicConfigs._dirty": "some of the same ones",
    "TopicConfigs._entries": "the same ones",
    "TopicConfigs._table": "1 000 000",
    "TopicTable._ids": "topics of the store",
    "TopicTable.names": "topics of the store",
    "UserStore.users": OPERATORS,
    "_Hashes._heads": "4096",
    "_Hashes._tags": "4096",
}

NAME_SERVER_GROWS = {
    "KvConfigTable._table": "32 MiB; test_the_whole_table_is_limited",
    "RouteTable._brokers": "5 000; test_what_brokers_name_is_limited",
    "RouteTable._clusters": "brokers' clusters",
    "RouteTable._live": "brokers",
    "RouteTable._mappings": "20 000; test_what_brokers_name_is_limited",
    "RouteTable._registered_on": "connections of brokers",
    "RouteTable._topics": "200 000, 2 000 000 of all brokers; likewise",
    "_BrokerGroup.addresses": "brokers",
    "_BrokerGroup.mapped": "20 000 of all brokers",
    "_BrokerGroup.topics": "2 000 000 of all brokers",
}

OTHERS_THINGS = (
    Code.DELETE_TOPIC_IN_BROKER,
    Code.DELETE_SUBSCRIPTIONGROUP,
    Code.UNLOCK_BATCH_MQ,
    Code.UPDATE_BROKER_CONFIG,
    Code.UPDATE_NAMESRV_CONFIG,
    Code.DELETE_TOPIC_IN_NAMESRV,
    Code.UNREGISTER_BROKER,
)
"""Codes that take away what the others of a flood have left."""

TOPIC_FIELDS = frozenset({"topic", "b", "originTopic", "lmqTopic", "topicName"})
GROUP_FIELDS = frozenset(
    {"a", "consumerGroup", "destGroup", "group", "groupName", "producerGroup", "srcGroup"}
)
PROPERTIES = (
    "KEYS\x01{0}\x02TAGS\x01{0}\x02UNIQ_KEY\x01{0}\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01{0}\x02UNIQ_KEY\x01{0}\x02",
    "DELAY\x013\x02KEYS\x01{0}\x02",
    "INNER_MULTI_DISPATCH\x01%LMQ%{0}\x02",
)


def attributes(thing: object) -> Iterator[tuple[str, object]]:
    """Name and value of all that an object keeps."""
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                yield name, getattr(thing, name)


def lengths(*roots: object) -> Counter[str]:
    """How long all collections are together that one attribute holds, by ``Class.attribute``.

    Follows objects of this project, functions with what they close over, and what collections
    hold; a collection in a collection counts for the attribute that holds both.
    """
    found: Counter[str] = Counter()
    seen = set(map(id, roots))
    todo: collections.deque[tuple[str, object]] = collections.deque(("", root) for root in roots)
    while todo:
        label, thing = todo.popleft()
        inner: list[tuple[str, object]] = []
        kind = type(thing)
        if isinstance(thing, dict | list | set | collections.deque):
            found[label] += len(thing)
            inner += [(label, each) for each in thing]
            if isinstance(thing, dict):
                inner += [(label, each) for each in thing.values()]
        elif isinstance(thing, tuple | frozenset):
            inner += [(label, each) for each in thing]
        elif isinstance(thing, types.FunctionType):
            for cell in thing.__closure__ or ():
                inner.append((label, cell.cell_contents))
        elif isinstance(thing, types.MethodType):
            inner.append((label, thing.__self__))
        elif isinstance(thing, functools.partial):
            inner += [(label, each) for each in (thing.func, *thing.args)]
        if kind.__module__.startswith("oberth"):
            inner += [(f"{kind.__name__}.{name}", each) for name, each in attributes(thing)]
        for name, value in inner:
            if not isinstance(value, ATOMS) and id(value) not in seen:
                seen.add(id(value))
                todo.append((name, value))
    return found


def body_of(name: str, topic: str, group: str) -> bytes:
    """What every code finds its own fields in."""
    subscription = {"topic": topic, "subString": name}
    config = {"topicName": f"{name}-l", "attributes": {"+message.type": "NORMAL"}}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
    }  # fmt: skip
    lite = {
        "clientId": name, "group": group, "topic": topic, "action": "COMPLETE_ADD",
        "liteTopicSet": [name],
    }  # fmt: skip
    wrapper = {
        "topicConfigTable": {
            each: {"topicName": each, "perm": 6} for each in (f"{name}-1", f"{name}-2")
        },
        "topicQueueMappingInfoMap": {name: {"topic": name, "bname": name, "totalQueues": 1}},
        "dataVersion": {"counter": 1, "timestamp": 1},
    }  # fmt: skip
    entry = {"resource": f"Topic:{name}", "actions": ["PUB"], "decision": "ALLOW"}
    body = {
        "topic": topic, "consumerGroup": group, "group": group, "groupName": group,
        "clientId": name, "clientID": name, "strategyName": "AVG", "mode": "POP",
        "mqSet": [{"topic": topic, "brokerName": "broker-a", "queueId": 0}],
        "producerDataSet": [{"groupName": name}], "consumerDataSet": [consumer],
        "subscriptionSet": [lite], "subscriptionData": subscription,
        "topicConfigList": [config], "groupConfigList": [{"groupName": f"{name}-l"}],
        "topicConfigSerializeWrapper": wrapper, "filterServerList": [name],
        "username": name, "password": name, "subject": f"User:{name}",
        "policies": [{"policyType": "CUSTOM", "entries": [entry]}], "brokerName": "broker-a",
        "acks": [{"c": group, "t": topic, "so": 0, "pt": 1, "it": 1, "b": "//"}],
    }  # fmt: skip
    return json.dumps(body).encode()


def fields_of(code: int, name: str, topic: str, group: str, number: int) -> dict[str, str]:
    """A header of the code, with names of its own wherever a name can stand."""
    header = HEADERS.get(code, (None, None))[0]  # type: ignore[call-overload]
    known = {
        "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "0", "queueId": "0",
        "e": "0", "f": "0", "sysFlag": "2", "initMode": "0", "m": "false", "batch": "false",
        "heartbeatTimeoutMillis": "100000", "brokerId": "0",
        "compressed": "false", "bodyCrc32": "0", "suspendTimeoutMillis": "0",
        "i": PROPERTIES[number % len(PROPERTIES)].format(name), "subscription": name,
    }  # fmt: skip
    known["properties"] = known["i"]
    found = {}
    for field, (kind, _) in (field_types(header) if header is not None else {}).items():
        if field in known:
            found[field] = known[field]
        elif field in TOPIC_FIELDS:
            found[field] = topic
        elif field in GROUP_FIELDS:
            found[field] = group
        elif kind is bool:
            found[field] = "true" if number % 2 else "false"
        else:
            found[field] = str(number) if kind is int else f"{name}-{field}"
    return found


def flood_of(codes: list[int], begin: int) -> Iterator[RemotingCommand]:
    """Each code with new and with known topics and groups, ``ROUNDS`` times."""
    for number in range(begin, begin + ROUNDS):
        for code in codes:
            for topic, group in (("", ""), ("T", ""), ("T", "G"), ("", "G"), ("L", "G")):
                name = f"n{number}-{code}-{topic}-{group}"
                fields = fields_of(code, name, topic or f"{name}-t", group or f"{name}-g", number)
                for body in (b"x", body_of(name, topic or f"{name}-t", group or f"{name}-g")):
                    yield RemotingCommand(code=code, ext_fields=dict(fields), body=body)


async def grown(
    root: object, address: str, codes: list[int], who: SessionCredentials | None = None
) -> tuple[dict[str, tuple[int, int]], Counter[int]]:
    """The collections that a second flood makes longer while the connections of both are open.

    Also how often which answer came.
    """
    answers: Counter[int] = Counter()
    looks = []
    clients = [RemotingClient() for _ in range(3)]
    free = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int, request: RemotingCommand) -> None:
        async with free:
            if who is not None:
                who.sign(request)
            client = clients[number % len(clients)]
            if request.code in UNANSWERED:
                await client.invoke_oneway(address, request)
            else:
                answers[(await client.invoke(address, request, ANSWER_S)).code] += 1

    for begin in (0, 1000):
        async with asyncio.TaskGroup() as group:
            for number, request in enumerate(flood_of(codes, begin)):
                group.create_task(ask(number, request))
        gc.collect()
        looks.append(lengths(root))
    for client in clients:
        await client.aclose()
    before, after = looks
    return {
        label: (before[label], size)
        for label, size in after.items()
        if size >= before[label] + ROUNDS // 2
    }, answers


async def broker_with_a_topic(make_live: MakeLive, **settings: str) -> tuple[Any, list[int]]:
    live = await make_live(
        autoCreateSubscriptionGroup="true",
        enableLmq="true",
        enableMultiDispatch="true",
        **settings,
    )
    for name, kind in (("T", "NORMAL"), ("L", "LITE")):
        live.broker.parts.topics.update(
            TopicConfig(topic_name=name, attributes={"message.type": kind})
        )
    live.broker.parts.groups.find("G")
    codes = set(live.broker.services.processors.codes).difference(OTHERS_THINGS)
    return live, sorted(codes)


async def test_all_that_grows_in_a_broker_is_known(make_live: MakeLive) -> None:
    live, codes = await broker_with_a_topic(make_live)
    found, answers = await grown(live.broker, live.peer.address, codes)
    unknown = {each: found[each] for each in sorted(found.keys() - BROKER_GROWS.keys())}
    assert unknown == {}
    assert answers[0] > ROUNDS * len(codes)
    for each in ("AssignmentProcessor._routes", "LiteSubscriptions._clients", "Topic.offsets"):
        assert each in found  # the floods arrive


@pytest.mark.parametrize("who", [None, SessionCredentials("stranger", "stranger-secret")])
async def test_nothing_grows_of_who_is_not_let_through(
    make_live: MakeLive, who: SessionCredentials | None
) -> None:
    live, codes = await broker_with_a_topic(
        make_live,
        authenticationEnabled="true",
        authorizationEnabled="true",
        listenWithoutAccessControl="true",
        initAuthenticationUser=json.dumps({"username": "first", "password": "first-secret"}),
    )
    live.broker.services.access.users.create_user(
        UserInfo(username="stranger", password="stranger-secret")
    )
    found, answers = await grown(live.broker, live.peer.address, codes, who)
    assert found == {}
    assert answers[int(ResponseCode.NO_PERMISSION)] > 0.9 * answers.total() > ROUNDS * len(codes)


async def test_all_that_grows_in_a_name_server_is_known() -> None:
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        assert server._server is not None
        codes = sorted(set(server._server.processors.codes).difference(OTHERS_THINGS))
        found, _ = await grown(server, str(server.address), codes)
    assert sorted(found.keys() - NAME_SERVER_GROWS.keys()) == []
    for each in ("RouteTable._topics", "KvConfigTable._table"):
        assert each in found
