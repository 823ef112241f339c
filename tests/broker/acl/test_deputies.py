"""What a user with few rights gets from others through what the broker does for him."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from oberth.client.acl import SessionCredentials
from oberth.client.messages import decode_messages
from oberth.formats.index_file import key_hash
from oberth.formats.java_string import java_hash
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    MakeLive = Callable[..., Awaitable[Any]]

ROOT = SessionCredentials("root", "root-secret")
READER = SessionCredentials("reader", "reader-secret")

REFUSED = int(ResponseCode.NO_PERMISSION)


async def call(
    peer: Any,
    who: SessionCredentials | None,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    request = RemotingCommand(code=int(code), ext_fields=dict(fields or {}), body=body)
    if who is not None:
        who.sign(request)
    response: RemotingCommand = await peer.client.invoke(peer.address, request, 10.0)
    return response


@pytest.fixture
async def users(make_live: MakeLive) -> Any:
    """A broker with root, and reader who may subscribe to MINE as G and manage G."""
    live = await make_live(
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"root-secret"}',
    )
    body = json.dumps({"password": "reader-secret", "userType": "Normal"}).encode()
    assert (await call(live.peer, ROOT, 3001, {"username": "reader"}, body)).code == 0
    entries = [
        {"resource": "Topic:MINE", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": "Group:G", "actions": ["Sub", "Update"], "decision": "Allow"},
    ]
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
    assert (await call(live.peer, ROOT, 3006, {"subject": "User:reader"}, body)).code == 0
    return live


async def send(live: Any, topic: str, body: bytes, **properties: str) -> int:
    """The offset of a message that root sends."""
    fields = live.peer.send_fields(topic)
    fields["i"] = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    answer = await call(live.peer, ROOT, RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == 0, answer.remark
    return int(answer.fields["msgId"][16:], 16)


async def member(live: Any, client_id: str, seen: list[RemotingCommand]) -> Any:
    """The reader's connection as a member of G, which notes what it is asked."""
    table = ProcessorTable()

    def note(channel: object, request: RemotingCommand) -> RemotingCommand:
        seen.append(request)
        return create_response(request, 0)

    table.sync([40], lambda channel, request: None)
    table.sync([307, 309], note)
    peer = live.another(table)
    consumer = {"groupName": "G", "subscriptionDataSet": [{"topic": "MINE", "subString": "*"}]}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
    assert (await call(peer, READER, RequestCode.HEART_BEAT, {}, body)).code == 0
    return peer


async def test_what_an_administrator_asks_a_client_is_not_signed_when_it_arrives(
    users: Any,
) -> None:
    """The client chose the id that was signed: it would be the name of a topic to delete."""
    await send(users, "THEIRS", b"secret")
    seen: list[RemotingCommand] = []
    await member(users, "THEIRS", seen)
    for code in (307, 309):
        fields = {"consumerGroup": "G", "clientId": "THEIRS"}
        fields["msgId"] = ""
        assert (await call(users.peer, ROOT, code, fields)).code == 0
    for request in seen:
        assert request.fields["clientId"] == "THEIRS"
        assert not {"AccessKey", "Signature", "SecurityToken"} & request.fields.keys()
        stolen = {
            "AccessKey": "root",
            "topic": "THEIRS",
            "y": "G",
            "Signature": request.fields.get("Signature", ""),
        }
        answer = await call(users.peer, None, RequestCode.DELETE_TOPIC_IN_BROKER, stolen)
        assert answer.code == REFUSED
    assert len(seen) == 2
    assert "THEIRS" in users.broker.parts.topics


async def test_who_manages_a_group_is_not_shown_the_messages_of_others(users: Any) -> None:
    """309 gives a client of the group the message at any offset."""
    theirs = await send(users, "THEIRS", b"secret")
    mine = await send(users, "MINE", b"mine")
    seen: list[RemotingCommand] = []
    await member(users, "c", seen)
    fields = {"consumerGroup": "G", "clientId": "c"}
    for offset, code in ((theirs, REFUSED), (mine, 0)):
        asked = {**fields, "msgId": f"7F00000100002A9F{offset:016X}"}
        assert (await call(users.peer, READER, 309, asked)).code == code
    assert [request.body_bytes().count(b"secret") for request in seen] == [0]


async def test_a_place_that_is_spelled_otherwise_shows_nothing_else(users: Any) -> None:
    """A blank before the offset: the gate read no number and saw no topic, the broker read it."""
    theirs = await send(users, "THEIRS", b"secret")
    mine = await send(users, "MINE", b"mine")
    fields = {"group": "G", "delayLevel": "0", "producerGroup": "P", "topic": "MINE"}
    fields |= {"tranStateTableOffset": "0", "commitOrRollback": "12", "msgId": "x"}
    for spelled in ("{}", " {}", "{} ", "\t{}", "+{}", "0{}", "{}.0", "{}e0", "\u2003{}"):
        for code, field in ((33, "offset"), (36, "offset"), (37, "commitLogOffset")):
            asked = {**fields, field: spelled.format(theirs)}
            answer = await call(users.peer, READER, code, asked)
            assert answer.code == REFUSED, (spelled, code)
            assert not answer.body_bytes()
    assert (await call(users.peer, READER, 33, {"offset": f" {mine}"})).code == 0


def with_hash_of(topic: str, key: str, other: str) -> str:
    """A key under which another topic's index finds the messages of a topic's key."""
    # The hash is a number of base 31, so seven characters reach every one there is.
    rest = (key_hash(topic, key) - java_hash(f"{other}#AAAAAAA")) % (1 << 32)
    return "".join(chr(ord("A") + rest // 31**place % 31) for place in range(6, -1, -1))


async def test_a_key_with_the_hash_of_anothers_does_not_find_it(users: Any) -> None:
    """The index compares hashes, and a key can be chosen for its hash."""
    await send(users, "THEIRS", b"secret", KEYS="order-1")
    key = with_hash_of("THEIRS", "order-1", "MINE")
    base = {"maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    known = await call(users.peer, ROOT, 12, {**base, "topic": "THEIRS", "key": "order-1"})
    (message,) = decode_messages(known.body_bytes(), "broker-a")
    assert message.body == b"secret"
    answer = await call(users.peer, READER, 12, {**base, "topic": "MINE", "key": key})
    assert (answer.code, answer.body_bytes()) == (ResponseCode.QUERY_NOT_FOUND, b"")


async def test_a_message_that_is_yet_to_come_is_not_granted_to_whoever_asks_first(
    users: Any,
) -> None:
    """A request that waits for a thread could find there what its sender may not see."""
    offset = await send(users, "MINE", b"mine")
    store = users.broker.parts.store
    await users.until(lambda: store.reput.offset == store.max_phy_offset)
    for code, field in ((33, "offset"), (36, "offset"), (37, "commitLogOffset")):
        fields = {"group": "G", "delayLevel": "0", "producerGroup": "P", "topic": "MINE"}
        fields |= {"tranStateTableOffset": "0", "commitOrRollback": "8", "msgId": "x"}
        answer = await call(users.peer, READER, code, {**fields, field: str(store.max_phy_offset)})
        assert answer.code == REFUSED, code
        answer = await call(users.peer, READER, code, {**fields, field: str(offset + 1)})
        assert answer.code == ResponseCode.SYSTEM_ERROR, code
    assert (await call(users.peer, READER, 33, {"offset": str(offset)})).code == 0


async def test_who_copies_a_groups_offsets_reads_them(users: Any) -> None:
    body = json.dumps({"groupName": "THEIRS"}).encode()
    assert (await call(users.peer, ROOT, 200, {}, body)).code == 0
    fields = {"srcGroup": "THEIRS", "destGroup": "G", "topic": "MINE"}
    assert (await call(users.peer, READER, 314, fields)).code == REFUSED


async def test_a_lite_topic_is_read_as_its_parent_is(make_live: MakeLive) -> None:
    """Its light queue has a name that no policy about the parent names."""
    live = await make_live(
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"root-secret"}',
        enableLmq="true",
        enableMultiDispatch="true",
    )
    topic = TopicConfig(topic_name="P", read_queue_nums=1, write_queue_nums=1)
    live.broker.parts.topics.update(topic, {"+message.type": "LITE"})
    may = {"actions": ["Sub"], "decision": "Allow"}
    group, mine = {"resource": "Group:G", **may}, {"resource": "Topic:P", **may}
    all_but_it = [{"resource": "Topic:*", **may}, {**mine, "decision": "Deny"}]
    for user, entries in (("reader", [group, mine]), ("other", [group, *all_but_it])):
        body = json.dumps({"password": f"{user}-secret", "userType": "Normal"}).encode()
        assert (await call(live.peer, ROOT, 3001, {"username": user}, body)).code == 0
        body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
        assert (await call(live.peer, ROOT, 3006, {"subject": f"User:{user}"}, body)).code == 0
    await send(live, "P", b"lite", __LITE_TOPIC="x")
    store = live.broker.parts.store
    await live.until(lambda: store.reput.offset == store.max_phy_offset)
    pull = {
        "consumerGroup": "G", "topic": "%LMQ%$P$x", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    for code in (RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET):
        other = SessionCredentials("other", "other-secret")
        assert (await call(live.peer, other, code, pull)).code == REFUSED
        assert (await call(live.peer, READER, code, pull)).code == 0
