"""The gate, over sockets: who passes with accounts of 4.x and with users of 5.x, and who does not.

The causes of RocketMQ's security advisories each have a test at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oberth.broker.acl.access_control import (
    LOOKED_AT_BETWEEN,
    RELOAD_MS,
    UNSETTLED_MAX,
    AccessControl,
)
from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client.acl import SessionCredentials
from oberth.client.messages import decode_messages
from oberth.errors import OptionError
from oberth.formats.json_values import DEPTH_MAX
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.processors import TURN_S, ProcessorTable
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand, encode_frame_bytes
from oberth.remoting.connection import RemotingConnection

if TYPE_CHECKING:
    MakeLive = Callable[..., Awaitable[Any]]

ACCOUNTS = """
globalWhiteRemoteAddresses:
accounts:
- accessKey: producer
  secretKey: producer-secret
  defaultTopicPerm: PUB
- accessKey: consumer
  secretKey: consumer-secret
  topicPerms:
  - T=SUB
  groupPerms:
  - G=SUB
- accessKey: administrator
  secretKey: administrator-secret
  admin: true
"""

PRODUCER = SessionCredentials("producer", "producer-secret")
CONSUMER = SessionCredentials("consumer", "consumer-secret")
ADMIN = SessionCredentials("administrator", "administrator-secret")
WRONG = SessionCredentials("administrator", "wrong-secret")


async def call(
    live: Any,
    who: SessionCredentials | None,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    request = RemotingCommand(code=code, ext_fields=dict(fields or {}), body=body)
    if who is not None:
        who.sign(request)
    response: RemotingCommand = await live.peer.client.invoke(live.peer.address, request, 10.0)
    return response


async def send(live: Any, who: SessionCredentials | None, topic: str = "T") -> int:
    return (await call(live, who, 310, live.peer.send_fields(topic), b"hello")).code


def write(path: Path, text: str) -> None:
    path.write_text(text)


def owned(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if "owned" in path.name)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    write(path, ACCOUNTS)
    return path


@pytest.fixture
async def plain(make_live: MakeLive, accounts: Path) -> Any:
    """A broker with the accounts above."""
    return await make_live(aclEnable="true", aclFile=str(accounts))


ROOT = SessionCredentials("root", "root-secret")
READER = SessionCredentials("reader", "reader-secret")


@pytest.fixture
async def users(make_live: MakeLive) -> Any:
    """A broker with users, of which there is only root."""
    return await make_live(
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"root-secret"}',
    )


async def create_user(live: Any, name: str = "reader", kind: str = "Normal") -> None:
    body = json.dumps({"password": f"{name}-secret", "userType": kind}).encode()
    assert (await call(live, ROOT, 3001, {"username": name}, body)).code == 0


async def grant(live: Any, resource: str, *actions: str, decision: str = "Allow") -> None:
    entry = {"resource": resource, "actions": actions, "decision": decision}
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
    assert (await call(live, ROOT, 3006, {"subject": "User:reader"}, body)).code == 0


async def test_a_reference_does_not_name_a_group_that_is_denied(users: Any) -> None:
    await create_user(users)
    for kind in ("Topic", "Group"):
        await grant(users, f"{kind}:*", "All")
    await grant(users, "Group:HERS", "All", decision="Deny")
    for name in ('"HERS"', '{"$ref":"$.other"}', '{"\\u0024ref":"$.other"}'):
        for deep in ("1", "[" * (DEPTH_MAX - 1) + "1" + "]" * (DEPTH_MAX - 1)):
            group = f'{{"groupName":{name}}}'
            body = f'{{"clientID":"c","other":"HERS","x":{deep},"consumerDataSet":[{group}]}}'
            await call(users, READER, 34, {}, body.encode())
            assert users.broker.parts.consumers.get("HERS") is None
    body = '{"clientID":"c","consumerDataSet":[{"groupName":"MINE"}]}'
    assert (await call(users, READER, 34, {}, body.encode())).code == 0
    assert users.broker.parts.consumers.get("MINE") is not None


async def test_a_stranger_is_not_asked_about_the_transactions_of_others(
    users: Any, make_live: MakeLive
) -> None:
    """A producer's group is any text, and what is asked (39) shows the message."""
    await create_user(users)
    users.broker.parts.topics.create_internal("T", 4)
    asked: list[str] = []

    def listener(name: str) -> Any:
        table = ProcessorTable()
        table.sync([39], lambda channel, request: asked.append(name))
        return users.another(table)

    async def ask(peer: Any, who: SessionCredentials, code: int, body: bytes, **fields: str) -> int:
        request = RemotingCommand(code=code, ext_fields=fields, body=body)
        who.sign(request)
        return int((await peer.client.invoke(peer.address, request, 10.0)).code)

    mine, strangers = listener("root"), listener("reader")
    for name, peer, who in (("a", strangers, READER), ("b", mine, ROOT)):
        body = json.dumps({"clientID": name, "producerDataSet": [{"groupName": "PG"}]})
        assert await ask(peer, who, 34, body.encode()) == 0
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U1"}
    half = users.peer.send_fields("T", 0, properties, f="4")
    assert await ask(mine, ROOT, 310, b"secret", **half) == 0
    transactions = users.broker.services.transactions
    found = transactions.find_half(0)
    assert found is not None
    for _ in range(4):
        transactions._notify(found, "PG")
    await users.until(lambda: len(asked) == 4)
    assert asked == ["root"] * 4
    await mine.client.aclose()
    await users.until(lambda: len(users.broker.parts.producers.clients("PG")) == 1)
    transactions._notify(found, "PG")
    await grant(users, "Topic:T", "Pub")
    transactions._notify(found, "PG")
    await users.until(lambda: len(asked) == 5)
    assert asked[-1] == "reader"


# ----------------------------------------------------------------------------------- accounts (4.x)


async def test_only_the_right_signature_passes(plain: Any) -> None:
    assert await send(plain, PRODUCER) == 0
    assert await send(plain, None) == 16
    assert await send(plain, SessionCredentials("producer", "wrong-secret")) == 16
    assert await send(plain, SessionCredentials("nobody-here", "wrong-secret")) == 16


async def test_a_changed_body_or_field_breaks_the_signature(plain: Any) -> None:
    request = RemotingCommand(code=310, ext_fields=plain.peer.send_fields("T"), body=b"hello")
    PRODUCER.sign(request)
    request.body = b"jello"
    assert (await plain.peer.client.invoke(plain.peer.address, request, 10.0)).code == 16
    PRODUCER.sign(request)
    assert request.ext_fields is not None
    request.ext_fields["b"] = "U"
    assert (await plain.peer.client.invoke(plain.peer.address, request, 10.0)).code == 16


async def test_a_heartbeat_that_is_known_still_needs_its_own_signature(plain: Any) -> None:
    """The same bytes on the same connection; only the header differs."""
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "P"}]}).encode()
    for who, code in ((PRODUCER, 0), (PRODUCER, 0), (None, 16), (PRODUCER, 0)):
        assert (await call(plain, who, 34, {}, body)).code == code
    assert len(plain.broker.processors.clients._kept) == 1


async def test_unique_key_query_may_be_signed_or_not(plain: Any) -> None:
    fields = {
        "topic": "T",
        "key": "k",
        "maxNum": "1",
        "beginTimestamp": "0",
        "endTimestamp": "9999999999999",
    }
    both = {**fields, "_UNIQUE_KEY_QUERY": "true"}
    assert (await call(plain, CONSUMER, 12, both)).code == 22
    request = RemotingCommand(code=12, ext_fields=fields)
    CONSUMER.sign(request)
    assert request.ext_fields is not None
    request.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
    assert (await plain.peer.client.invoke(plain.peer.address, request, 10.0)).code == 22


async def test_permissions_per_topic_and_group(plain: Any) -> None:
    assert await send(plain, PRODUCER) == 0
    assert await send(plain, CONSUMER) == 16
    pull = plain.peer.pull_fields
    assert (await call(plain, CONSUMER, 11, pull("T", 0))).code != 16
    assert (await call(plain, CONSUMER, 11, pull("T", 0, group="H"))).code == 16
    assert (await call(plain, CONSUMER, 11, pull("U", 0))).code == 16
    assert (await call(plain, PRODUCER, 11, pull("T", 0))).code == 16


async def test_order_of_a_burst_is_kept_around_a_refusal(plain: Any) -> None:
    channel = await plain.peer.channel()
    futures = []
    for number, who in enumerate([PRODUCER, CONSUMER, PRODUCER, None, PRODUCER]):
        request = RemotingCommand(
            code=310, ext_fields=plain.peer.send_fields("T"), body=b"%d" % number
        )
        if who is not None:
            who.sign(request)
        futures.append(channel.invoke_nowait(request, 10.0))
    codes = [(await future).code for future in futures]
    assert codes == [0, 16, 0, 16, 0]
    fields = plain.peer.pull_fields("T", 0)
    pulled = await call(plain, CONSUMER, 11, fields)
    assert [message.body for message in decode_messages(pulled.body_bytes())] == [b"0", b"2", b"4"]


async def test_a_changed_file_counts_and_a_broken_one_does_not(plain: Any, accounts: Path) -> None:
    async def two_looks() -> None:
        await plain.later(1500)
        await plain.later(1500)

    write(accounts, ACCOUNTS.replace("producer-secret", "another-secret"))
    await two_looks()
    assert await send(plain, PRODUCER) == 16
    assert await send(plain, SessionCredentials("producer", "another-secret")) == 0
    write(accounts, "accounts: [")
    await two_looks()
    assert await send(plain, SessionCredentials("producer", "another-secret")) == 0
    os.unlink(accounts)
    await two_looks()
    assert await send(plain, SessionCredentials("producer", "another-secret")) == 0


def a_gate(accounts: Path) -> AccessControl:
    config, _, _ = read_configs({"aclEnable": "true", "aclFile": str(accounts)})
    access = AccessControl(config, accounts.parent, lambda _: None)
    access.load()
    return access


def test_a_file_that_is_being_written_does_not_count(accounts: Path) -> None:
    """Without accounts, or with the first ones alone, it would refuse everybody, or the others."""
    access = a_gate(accounts)
    text = ACCOUNTS.replace("accessKey: producer", "accessKey: the-producer")
    version = access.version
    for second, size in enumerate((0, text.index("- accessKey: consumer"), len(text))):
        write(accounts, text[:size])
        access.on_time(second * RELOAD_MS)
        assert list(access.plain.accounts) == ["producer", "consumer", "administrator"]
        assert access.version == version
    access.on_time(3 * RELOAD_MS)
    assert list(access.plain.accounts) == ["the-producer", "consumer", "administrator"]
    assert access.version != version


def test_a_file_that_is_written_while_it_is_read_does_not_count(
    accounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = a_gate(accounts)
    write(accounts, ACCOUNTS + "# more")
    access.on_time(0)
    read = Path.read_bytes

    def read_half(path: Path) -> bytes:
        monkeypatch.undo()
        write(path, "")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_half)
    access.on_time(RELOAD_MS)
    assert len(access.plain.accounts) == 3
    write(accounts, ACCOUNTS.replace("accessKey: producer", "accessKey: the-producer"))
    access.on_time(2 * RELOAD_MS)
    assert "producer" in access.plain.accounts
    access.on_time(3 * RELOAD_MS)
    assert "the-producer" in access.plain.accounts


def test_a_file_that_changes_all_the_time_counts(accounts: Path) -> None:
    access = a_gate(accounts)
    for second in range(UNSETTLED_MAX):
        assert "producer" in access.plain.accounts
        write(accounts, ACCOUNTS.replace("accessKey: producer", f"accessKey: producer-{second}"))
        os.utime(accounts, (second, second))
        access.on_time(second * RELOAD_MS)
    assert "producer-4" in access.plain.accounts


async def test_white_lists_need_no_signature(make_live: MakeLive, accounts: Path) -> None:
    write(accounts, ACCOUNTS.replace("Addresses:", "Addresses:\n- 127.0.0.*"))
    assert await send(await make_live(aclEnable="true", aclFile=str(accounts)), None) == 0
    write(
        accounts,
        ACCOUNTS.replace(
            "- accessKey: consumer", "- accessKey: consumer\n  whiteRemoteAddress: 127.0.0.1"
        ),
    )
    live = await make_live(aclEnable="true", aclFile=str(accounts))
    fields = {**live.peer.pull_fields("T", 0), "AccessKey": "consumer"}
    assert (await call(live, None, 11, fields)).code != 16
    fields = {**live.peer.send_fields("T"), "AccessKey": "consumer"}
    assert (await call(live, None, 310, fields)).code == 16


async def test_the_fast_port_has_the_gate_too(make_live: MakeLive, accounts: Path) -> None:
    live = await make_live(aclEnable="true", aclFile=str(accounts), fastListenPort="-1")
    address = str(live.broker.fast_server.address)
    request = RemotingCommand(code=310, ext_fields=live.peer.send_fields("T"), body=b"x")
    assert (await live.peer.client.invoke(address, request, 10.0)).code == 16


async def test_a_refusal_before_the_first_tick_of_the_clock(accounts: Path) -> None:
    access = a_gate(accounts)
    replies: list[RemotingCommand] = []
    channel: Any = SimpleNamespace(
        remote=Address("127.0.0.1", 1), reply=lambda _, response: replies.append(response)
    )
    assert access.admitted(channel, [RemotingCommand(code=310, ext_fields={"b": "T"})]) == ([], 1)
    assert [each.code for each in replies] == [16]


async def test_a_send_like_one_before_still_needs_its_own_signature(plain: Any) -> None:
    assert await send(plain, PRODUCER) == 0
    assert await send(plain, SessionCredentials("producer", "wrong-secret")) == 16
    assert await send(plain, None) == 16
    fields = plain.peer.send_fields("T")
    assert (await call(plain, PRODUCER, 310, fields, b"other")).code == 0


# -------------------------------------------------------------------------------------- users (5.x)


async def test_policies_decide(users: Any) -> None:
    await create_user(users)
    assert await send(users, READER) == 16
    await grant(users, "Topic:T*", "Pub", "Sub")
    assert await send(users, READER, "T1") == 0
    assert await send(users, READER, "U1") == 16
    assert await send(users, READER, "T2") == 0
    await grant(users, "Topic:T2", "Pub", decision="Deny")
    assert await send(users, READER, "T2") == 16
    assert await send(users, READER, "T3") == 0
    assert (await call(users, READER, 11, users.peer.pull_fields("T1", 0))).code == 16
    await grant(users, "Group:G", "Sub")
    assert (await call(users, READER, 11, users.peer.pull_fields("T1", 0))).code == 0


async def test_light_queues_that_a_message_names_need_their_own_right(users: Any) -> None:
    async def send_to(queues: str) -> int:
        fields = users.peer.send_fields("T", properties={"INNER_MULTI_DISPATCH": queues})
        return (await call(users, READER, 310, fields)).code

    await create_user(users)
    await grant(users, "Topic:T", "Pub")
    assert await send(users, READER) == 0
    assert await send_to("%LMQ%mine") == 16
    await grant(users, "Topic:%LMQ%mine", "Pub")
    # That one send passed is remembered by its topic: the next one may name other queues.
    assert await send_to("%LMQ%mine") == 0
    assert await send_to("%LMQ%yours") == 16
    assert await send_to("%LMQ%mine,%LMQ%yours") == 16
    assert await send_to("%LMQ%mine") == 0


async def test_policies_are_listed_by_subject_and_resource(users: Any) -> None:
    async def listed(**texts: str) -> list[dict[str, Any]]:
        body = (await call(users, ROOT, 3010, texts)).body_bytes()
        return list(json.loads(body)) if body else []

    await create_user(users)
    await grant(users, "Topic:Orders", "Pub")
    assert [each["subject"] for each in await listed()] == ["User:reader"]
    assert len(await listed(subjectFilter="reader", resourceFilter="Orders")) == 1
    assert await listed(subjectFilter="writer") == []
    assert await listed(resourceFilter="Bills") == []


async def test_users_and_policies_survive_a_restart(users: Any) -> None:
    await create_user(users)
    await grant(users, "Topic:*", "Pub")
    for name in ("authUsers.json", "authAcls.json"):
        mode = os.stat(users.broker.parts.config_dir / name).st_mode
        assert stat.S_IMODE(mode) == 0o600
    await users.restart()
    assert await send(users, READER) == 0
    assert (await call(users, ROOT, 3008, {"subject": "User:reader"})).code == 0
    assert await send(users, READER) == 16
    assert (await call(users, ROOT, 3009, {"subject": "User:reader"})).code == 16


async def test_a_disabled_or_deleted_user_is_nobody(users: Any) -> None:
    await create_user(users)
    await grant(users, "*", "All")
    assert await send(users, READER) == 0
    assert (
        await call(users, ROOT, 3002, {"username": "reader"}, b'{"userStatus":"disable"}')
    ).code == 0
    assert await send(users, READER) == 16
    assert (await call(users, ROOT, 3003, {"username": "reader"})).code == 0
    assert (await call(users, ROOT, 3010)).body_bytes() == b""
    assert (await call(users, ROOT, 3003, {"username": "reader"})).code == 0
    assert (await call(users, ROOT, 3003, {"username": "root"})).code == 16


async def test_a_policy_for_everything_does_not_make_an_administrator_of_users(users: Any) -> None:
    await create_user(users)
    await grant(users, "*", "All")
    assert (await call(users, READER, 26)).code == 0
    for code in range(3001, 3011):
        assert (await call(users, READER, code, {"username": "root"})).code == 16


@pytest.mark.parametrize(
    "entry",
    [
        {"resource": "Topic", "actions": ["Pub"], "decision": "Allow"},
        {"resource": "Door:T", "actions": ["Pub"], "decision": "Allow"},
        {"resource": "Topic:T", "actions": ["Fly"], "decision": "Allow"},
        {"resource": "Topic:T", "actions": [], "decision": "Allow"},
        {"resource": "Topic:T", "actions": ["Pub"], "decision": "Perhaps"},
        {"resource": "Topic:a*b", "actions": ["Pub"], "decision": "Allow"},
        {"resource": "*", "actions": ["Pub"], "decision": "Allow", "sourceIps": ["everywhere"]},
    ],
)
async def test_a_policy_that_means_nothing_is_refused(users: Any, entry: dict[str, Any]) -> None:
    await create_user(users)
    body = json.dumps({"policies": [{"entries": [entry]}]}).encode()
    assert (await call(users, ROOT, 3006, {"subject": "User:reader"}, body)).code == 16
    assert (await call(users, ROOT, 3010)).body_bytes() == b""


async def test_an_address_of_a_policy(users: Any) -> None:
    await create_user(users)
    for source, code in (("10.0.0.0/8", 16), ("127.0.0.1", 0)):
        entry = {
            "resource": "Topic:T",
            "actions": ["Pub"],
            "decision": "Allow",
            "sourceIps": [source],
        }
        body = json.dumps({"policies": [{"entries": [entry]}]}).encode()
        assert (await call(users, ROOT, 3006, {"subject": "User:reader"}, body)).code == 0
        assert await send(users, READER) == code


async def test_without_authorization_users_are_equal_but_not_administrators(
    make_live: MakeLive,
) -> None:
    live = await make_live(
        authenticationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"root-secret"}',
    )
    await create_user(live)
    assert await send(live, READER) == 0
    assert (await call(live, READER, 26)).code == 16
    assert (await call(live, READER, 3001, {"username": "me"}, b'{"password":"x"}')).code == 16


# ------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "broker.example"])
def test_beyond_loopback_only_with_access_control(host: str, tmp_path: Path) -> None:
    entries = {"bindAddress": host, "storePathRootDir": str(tmp_path)}
    with pytest.raises(OptionError, match="listenWithoutAccessControl"):
        read_configs(entries)
    for key in ("aclEnable", "authenticationEnabled", "listenWithoutAccessControl"):
        config, _, warnings = read_configs({**entries, key: "true"})
        assert config.listen_host == host
        assert not warnings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_open(host: str, tmp_path: Path) -> None:
    read_configs({"bindAddress": host, "storePathRootDir": str(tmp_path)})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"aclEnable": "true"}, "plain_acl.yml"),
        ({"authenticationEnabled": "true"}, "no Super user"),
        ({"authorizationEnabled": "true"}, "needs authenticationEnabled"),
        ({"aclEnable": "true", "authenticationEnabled": "true"}, "choose one"),
        ({"initAuthenticationUser": "root:secret"}, "initAuthenticationUser"),
    ],
)
async def test_a_gate_that_nobody_could_pass_is_refused(
    settings: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    config, store_config, _ = read_configs(
        {"listenPort": "0", "storePathRootDir": str(tmp_path), **settings}
    )
    with pytest.raises(OptionError, match=complaint):
        async with Broker(config, store_config):
            pass


# --------------------------------------------------------------- what RocketMQ was attacked through


async def test_no_code_is_served_to_strangers(plain: Any) -> None:
    """Administration without authentication is what most advisories had in common."""
    for code in RequestCode:
        for who in (None, WRONG):
            assert (await call(plain, who, code, {"topic": "T"}, b"{}")).code == 16, code


async def test_administration_is_closed_to_ordinary_accounts(plain: Any) -> None:
    """CVE-2023-33246 and CVE-2023-37582 needed no rights at all."""
    for code in (17, 18, 25, 26, 200, 207, 215, 222, 225, 306, 316, 329, 353, 3001, 3006):
        for who in (PRODUCER, CONSUMER):
            response = await call(plain, who, code, {"topic": "T"}, b"{}")
            assert response.code == 16, code
    assert (await call(plain, ADMIN, 26)).code == 0
    assert (await call(plain, ADMIN, 25, {}, b"fileReservedTime=48")).code == 0


@pytest.mark.parametrize(
    "entry",
    [
        "rocketmqHome=-c $@|sh . echo id",
        "filterServerNums=1",
        "brokerConfigPath=/tmp/owned",
        "configStorePath=/tmp/owned",
        "kvConfigPath=/tmp/owned",
        "storePathRootDir=/tmp/owned",
        "storePathCommitLog=/tmp/owned",
        "aclFile=/tmp/owned",
        "aclEnable=false",
        "authenticationEnabled=false",
        "listenWithoutAccessControl=true",
        "tlsServerKeyPath=/etc/passwd",
        "fileReservedTime=48\nrocketmqHome=/tmp/owned",
    ],
)
async def test_configuration_starts_nothing_and_moves_nothing(entry: str, plain: Any) -> None:
    """CVE-2023-33246, CVE-2023-37582: not even for an administrator."""
    before = (await call(plain, ADMIN, 26)).body_bytes()
    response = await call(plain, ADMIN, 25, {}, entry.encode())
    assert response.code == 16
    assert (await call(plain, ADMIN, 26)).body_bytes() == before


@pytest.mark.parametrize("topic", ["../../owned", "a/b", "..", "a\x00b", "a\nb", "/tmp/owned"])
async def test_a_path_in_a_name_goes_nowhere(topic: str, plain: Any, tmp_path: Path) -> None:
    """CVE-2019-17572: directories outside the store, made by a topic's name."""
    before = owned(tmp_path)
    assert await send(plain, PRODUCER, topic) != 0
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    assert (await call(plain, ADMIN, 17, fields)).code != 0
    assert (await call(plain, ADMIN, 215, {"topic": topic})).code != 0
    assert owned(tmp_path) == before


async def test_secrets_are_not_shown(users: Any) -> None:
    """CVE-2024-23321: passwords read by people with ordinary rights."""
    await create_user(users)
    await grant(users, "*", "All")
    for code, fields in ((26, {}), (28, {}), (3004, {"username": "root"}), (3005, {})):
        body = (await call(users, READER, code, fields)).body_bytes()
        assert b"root-secret" not in body
    shown = json.loads((await call(users, ROOT, 3004, {"username": "reader"})).body_bytes())
    assert shown["password"] == "reader-secret"


async def test_an_open_broker_shows_no_passwords(make_live: MakeLive) -> None:
    live = await make_live()
    body = b'{"password":"hidden-secret"}'
    assert (await call(live, None, 3001, {"username": "reader"}, body)).code == 0
    for code in (3004, 3005, 26):
        answer = await call(live, None, code, {"username": "reader"})
        assert answer.code == 0
        assert b"hidden-secret" not in answer.body_bytes()


@pytest.mark.parametrize(
    ("text", "who"),
    [
        (ACCOUNTS.replace("Addresses:", "Addresses:\n- 127.0.0.1"), None),
        (f"{ACCOUNTS}  whiteRemoteAddress: 127.0.0.1\n", WRONG),
        (ACCOUNTS, ADMIN),
    ],
    ids=["white", "white account", "signed"],
)
async def test_accounts_are_shown_no_passwords_of_users(
    make_live: MakeLive, accounts: Path, text: str, who: SessionCredentials | None
) -> None:
    """An account of 4.x need not have signed, and is no Super user."""
    write(accounts, text)
    live = await make_live(aclEnable="true", aclFile=str(accounts))
    body = b'{"password":"hidden-secret"}'
    assert (await call(live, who, 3001, {"username": "reader"}, body)).code == 0
    for code in (3004, 3005):
        answer = await call(live, who, code, {"username": "reader"})
        assert answer.code == 0
        assert b"reader" in answer.body_bytes()
        assert b"hidden-secret" not in answer.body_bytes()


async def test_messages_of_others_are_not_read_by_offset(plain: Any) -> None:
    """A message id is an offset, and offsets can be guessed."""
    assert await send(plain, PRODUCER, "OTHERS") == 0
    fields = {"topic": "T", "offset": "0"}
    assert (await call(plain, CONSUMER, 33, fields)).code == 16
    back = {"group": "G", "offset": "0", "delayLevel": "0", "originTopic": "T"}
    assert (await call(plain, CONSUMER, 36, back)).code == 16
    assert (await call(plain, ADMIN, 33, fields)).code == 0


@pytest.mark.parametrize(("trusted", "answer"), [("", None), ("192.0.2.1", None), ("127.0.0.1", 0)])
async def test_a_proxy_header_does_not_forge_a_white_address(
    make_live: MakeLive, accounts: Path, trusted: str, answer: int | None
) -> None:
    """White lists go by the address, which an untrusted peer cannot choose."""
    write(accounts, ACCOUNTS.replace("Addresses:", "Addresses:\n- 10.1.2.3"))
    live = await make_live(aclEnable="true", aclFile=str(accounts), proxyProtocolTrusted=trusted)
    reader, writer = await asyncio.open_connection(*live.broker.address)
    request = RemotingCommand(code=310, ext_fields=live.peer.send_fields("T"), body=b"hello")
    writer.write(b"PROXY TCP4 10.1.2.3 127.0.0.1 50123 10911\r\n" + encode_frame_bytes(request))
    connection = RemotingConnection()
    answers: list[RemotingCommand] = []
    with contextlib.suppress(ConnectionError):
        while not answers and (data := await reader.read(65536)):
            answers += connection.receive_data(data)
    writer.close()
    assert [each.code for each in answers] == ([] if answer is None else [answer])


async def test_signatures_of_one_read_are_looked_at_in_turns(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a millisecond of the loop's time; a read may hold two thousand requests."""
    loop = asyncio.get_running_loop()
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    access = plain.broker.services.access
    refusal_of = access.refusal_of
    at_once, most = [0], [0]

    def slow(host: str, request: RemotingCommand) -> str | None:
        passed[0] += 0.001
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        refusal: str | None = refusal_of(host, request)
        return refusal

    def turn() -> None:
        at_once[0] = 0
        if len(answers) < len(frames):
            loop.call_soon(turn)

    monkeypatch.setattr(access, "refusal_of", slow)
    frames = []
    for number in range(200):
        fields = plain.peer.send_fields("T")
        request = RemotingCommand(code=310, ext_fields=fields, body=b"hello", opaque=number)
        (CONSUMER if number % 50 == 49 else PRODUCER).sign(request)
        frames.append(encode_frame_bytes(request))
    answers: list[RemotingCommand] = []
    host, _, port = plain.peer.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    monkeypatch.setattr(access, "_remember", lambda *_: None)  # each is looked at as a whole
    turn()
    writer.write(b"".join(frames))
    connection = RemotingConnection()
    while len(answers) < len(frames):
        async with asyncio.timeout(60):
            data = await reader.read(1 << 16)
        assert data
        answers += connection.receive_data(data)
    writer.close()
    assert 0 < most[0] <= 2 * (TURN_S / 0.001 + LOOKED_AT_BETWEEN)
    assert sorted(answer.opaque for answer in answers) == list(range(200))
    refused = [answer.opaque for answer in answers if answer.code == 16]
    assert refused == [49, 99, 149, 199]
    assert [a.opaque for a in answers if a.code == 0] == [n for n in range(200) if n % 50 != 49]
