"""Every code, by a user with few rights: of another's topic and group nothing is shown or changed.

Wherever a field or a body can name a topic, a group, a client, a message or a place, the request is
sent once with the other's; with the right to use his own topic and group, and with every right to
them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from oberth.broker.recall_handle import RecallHandle
from oberth.client.acl import SessionCredentials
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.base import field_types
from oberth.remoting.headers.table import HEADERS

MakeLive = Callable[..., Awaitable[Any]]

ROOT = SessionCredentials("root", "root-secret")
ALICE = SessionCredentials("alice", "alice-secret")
BOB = SessionCredentials("bob", "bob-secret")

MINE = {"topic": "A", "group": "GA", "client": "alice-client"}
BOBS = {"topic": "B", "group": "GB", "client": "bob-client"}
COUNT, COMMITTED = 7919, 6007
"""Messages of bob's, and where his group stands: numbers that stand in no answer by chance."""
SECRETS = (b"bobs-body", b"bobs-key", b"bobs-tag", b"bobs-member", b"bobs-expression")
LANDING = ("B", "%RETRY%GB", "%DLQ%GB", "%LMQ%$B$x", "%LMQ%B")
"""Queues where something of bob's could land."""
USES = {"topic": ["Pub", "Sub"], "group": ["Sub"]}
OWNS = {
    "topic": ["Pub", "Sub", "Create", "Update", "Delete", "Get"],
    "group": ["Sub", "Create", "Update", "Delete", "Get"],
}
TIMED_LATER_MS = 60_000


class World:
    """A broker with what alice and bob have there."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.foreign: list[str] = []
        self.place = 0
        self.id = ""

    async def call(
        self, who: SessionCredentials, code: int, fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        request = RemotingCommand(code=int(code), ext_fields=dict(fields), body=body)
        who.sign(request)
        response: RemotingCommand = await self.live.peer.client.invoke(
            self.live.peer.address, request, 20.0
        )
        return response

    async def must(self, *args: Any) -> RemotingCommand:
        response = await self.call(*args)
        assert response.code == 0, response.remark
        return response

    async def make_user(self, name: str, names: dict[str, str], actions: dict[str, Any]) -> None:
        body = json.dumps({"password": f"{name}-secret", "userType": "Normal"}).encode()
        await self.must(ROOT, Code.AUTH_CREATE_USER, {"username": name}, body)
        entries = [
            {"resource": f"{kind.title()}:{names[kind]}", "actions": actions[kind],
             "decision": "Allow"}
            for kind in ("topic", "group")
        ]  # fmt: skip
        body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
        await self.must(ROOT, Code.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)

    async def make_bobs(self) -> None:
        live, parts = self.live, self.live.broker.parts
        for topic in ("A", "B", "LAST"):
            parts.topics.create_internal(topic, 1)
        bob = live.another()
        consumer = {
            "groupName": "GB", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {"topic": each, "subString": "bobs-expression"} for each in ("A", "B")
            ],
        }  # fmt: skip
        body = json.dumps({"clientID": "bob-client", "consumerDataSet": [consumer]}).encode()
        request = RemotingCommand(code=int(Code.HEART_BEAT), ext_fields={}, body=body)
        ROOT.sign(request)
        assert (await bob.client.invoke(bob.address, request, 20.0)).code == 0
        fields = live.peer.send_fields("B")
        fields["i"] = "KEYS\x01bobs-key\x02TAGS\x01bobs-tag\x02UNIQ_KEY\x01bobs-unique\x02"
        sent = await self.must(BOB, Code.SEND_MESSAGE_V2, fields, b"bobs-body")
        self.id = sent.fields["msgId"]
        self.place = int(self.id[16:], 16)
        fields.update(m="true", i="")
        items = [BatchItem(0, b"bobs-body", b"KEYS\x01bobs-key\x02")] * (COUNT - 1)
        await self.must(BOB, Code.SEND_BATCH_MESSAGE, fields, encode_batch(items))
        parts.offsets.commit("GB", "B", 0, COMMITTED, 1)
        due = parts.now_ms() + TIMED_LATER_MS
        fields.update(m="false", i="UNIQ_KEY\x01bobs-unique\x02")
        fields["i"] += f"TIMER_DELIVER_MS\x01{due}\x02"
        await self.must(BOB, Code.SEND_MESSAGE_V2, fields, b"bobs-body")
        handle = RecallHandle("B", "broker-a", due, "bobs-unique").encode()
        self.foreign = [
            "B", "GB", "%RETRY%GB", "%DLQ%GB", "bob-client", handle, self.id, "bobs-unique",
            "B;A", "GB,GA",
        ]  # fmt: skip


def kind_of(field: str) -> str | None:
    low = field.lower()
    if low == "b" or "topic" in low:
        return "topic"
    if low == "a" or "group" in low:
        return "group"
    return "client" if "client" in low else None


def requests_of(world: World, code: int) -> Iterator[tuple[dict[str, str], bytes]]:
    header = HEADERS.get(Code(code), (None, None))[0]
    types = field_types(header) if header is not None else {}
    base, named = {}, {}
    for field, (kind, _) in types.items():
        what = kind_of(field) if kind is str else None
        base[field] = {int: "0", bool: "false"}.get(kind, MINE[what] if what else "")
        if what:
            named[field] = what
    if "commitOrRollback" in base:
        base["commitOrRollback"] = "8"  # others are not answered
    for count in range(1, len(named) + 1):
        for fields in itertools.combinations(named, count):
            yield {**base, **{field: BOBS[named[field]] for field in fields}}, b""
    given = {name: each for name, each in base.items() if each}
    for field, (kind, _) in types.items():
        for value in world.foreign if kind is str else (str(world.place), "1", "31"):
            if field != "commitOrRollback":
                yield {**base, field: value}, b""
                yield {**given, field: value}, b""
    if not types:
        yield from (({}, body) for body in body_requests())


def forged_properties(due_ms: int) -> Iterator[str]:
    """What could lead a message, or a deletion of one, to the other's topic."""
    light = "INNER_MULTI_DISPATCH\x01%LMQ%$A$x\x02"
    goals = [
        {name: each}
        for name in ("REAL_TOPIC", "RETRY_TOPIC", "TIMER_DEL_UNIQKEY", "DLQ_ORIGIN_TOPIC", "PGROUP")
        for each in ("B", "GB", "%RETRY%GB", "bobs-unique", "B+bobs-unique")
    ]
    for goal in goals:
        text = "".join(f"{name}\x01{each}\x02" for name, each in goal.items())
        for how in ("", "DELAY\x011\x02", f"TIMER_DELIVER_MS\x01{due_ms}\x02"):
            yield text + "REAL_QID\x010\x02" + how
            yield how + "UNIQ_KEY\x01bobs-unique\x02" + text
    for queues in ("B", "%RETRY%GB", "%LMQ%$B$x", "%LMQ%B"):
        yield light + f"INNER_MULTI_DISPATCH\x01{queues}\x02"
        yield f"INNER_MULTI_DISPATCH\x01{queues}\x02" + light


def bodies(topic: str, group: str, client: str) -> Iterator[dict[str, Any]]:
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    yield {
        "clientID": client,
        "consumerDataSet": [{
            "groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}],
        }],
        "producerDataSet": [],
    }  # fmt: skip
    yield {"consumerGroup": group, "clientId": client, "mqSet": [queue]}
    for action in ("PARTIAL_ADD", "COMPLETE_ADD", "COMPLETE_REMOVE"):
        entry = {
            "action": action, "clientId": client, "group": group, "topic": topic,
            "liteTopicSet": ["x"],
        }  # fmt: skip
        yield {"subscriptionSet": [entry]}
    ack = {
        "c": group,
        "t": topic,
        "r": "0",
        "so": 0,
        "rq": 0,
        "pt": 1,
        "it": 1,
        "q": 0,
        "b": "AQ==",
    }
    yield {"brokerName": "broker-a", "acks": [ack]}
    yield {
        "topic": topic, "consumerGroup": group, "clientId": client, "strategyName": "AVG",
        "messageModel": "CLUSTERING", "mode": "POP", "popShareQueueNum": 1,
    }  # fmt: skip
    yield {"topicConfigList": [{"topicName": topic, "readQueueNums": 9, "writeQueueNums": 9}]}
    yield {"groupConfigList": [{"groupName": group, "consumeEnable": False}]}
    yield {"groupName": group, "consumeEnable": False}
    yield {
        "clientId": client, "group": group,
        "subscriptionData": {"topic": topic, "subString": "*", "expressionType": "TAG"},
    }  # fmt: skip


def body_requests() -> Iterator[bytes]:
    for topic, group, client in itertools.product(
        *((MINE[kind], BOBS[kind]) for kind in ("topic", "group", "client"))
    ):
        if (topic, group, client) != tuple(MINE.values()):
            yield from (json.dumps(each).encode() for each in bodies(topic, group, client))


def state(world: World) -> dict[str, Any]:
    """All that is bob's."""
    parts = world.live.broker.parts
    group = parts.consumers.get("GB")
    return {
        "topic": parts.topics.get("B") and parts.topics.get("B").to_json(),
        "group": parts.groups.get("GB") and parts.groups.get("GB").to_json(),
        "offsets": [each for each in parts.offsets if "GB" in each[1] or each[0] == "B"],
        "end": [parts.store.max_offset_in_queue(each, 0) for each in LANDING],
        "topics": [each.topic_name for each in parts.topics if "GB" in each.topic_name],
        "members": group and sorted(each.client_id for each in group.clients.values()),
        "subscriptions": group and {
            topic: each.sub_string for topic, each in group.subscriptions.items()
        },
        "forbidden": parts.groups.is_readable("GB", "B"),
    }  # fmt: skip


def shown(response: RemotingCommand) -> list[bytes]:
    """What of bob's stands in an answer. The names that were asked for may be in its remark."""
    fields = json.dumps(response.ext_fields or {}).encode()
    text = fields + response.body_bytes()
    found = [secret for secret in SECRETS if secret in text]
    # Within the hexadecimal id of a message any digits may stand.
    number = rb"(?<![0-9A-Fa-f])(?:%d|%d)(?![0-9A-Fa-f])" % (COUNT, COMMITTED)
    return found + re.findall(number, text)


@pytest.mark.parametrize("rights", [USES, OWNS], ids=["uses", "owns"])
async def test_of_anothers_topic_and_group_nothing_is_shown_or_changed(
    make_live: MakeLive, rights: dict[str, Any]
) -> None:
    live = await make_live(
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"root-secret"}',
        recallMessageEnable="true",
        enableLmq="true",
        enableMultiDispatch="true",
        autoCreateSubscriptionGroup="true",
    )
    world = World(live)
    await world.make_user("bob", BOBS, OWNS)
    await world.make_user("alice", MINE, rights)
    await world.make_bobs()
    before = state(world)
    assert before["members"] == ["bob-client"]
    served = set()
    for code in sorted(live.broker.services.processors.codes):
        for fields, body in requests_of(world, code):
            live.broker.parts.topics.create_internal("A", 1)  # alice may have deleted it
            response = await world.call(ALICE, code, fields, body)
            if response.code == 0:
                served.add(Code(code).name)
            assert shown(response) == [], (Code(code).name, fields, body)
            assert state(world) == before, (Code(code).name, fields, body)
    assert len(served) > 20
    due_ms = live.broker.parts.now_ms() + TIMED_LATER_MS
    for properties in forged_properties(due_ms):
        fields = live.peer.send_fields("A", i=properties)
        await world.call(ALICE, Code.SEND_MESSAGE_V2, fields, b"x")
    for last in ("DELAY\x011\x02", f"TIMER_DELIVER_MS\x01{due_ms + 5000}\x02"):
        await world.must(ROOT, Code.SEND_MESSAGE_V2, live.peer.send_fields("LAST", i=last), b"x")
    await live.later(2 * TIMED_LATER_MS)
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue("LAST", 0) == 2)
    # What bob has timed has come, and nothing else.
    after = state(world)
    assert after == {**before, "end": [COUNT + 1, *before["end"][1:]]}
