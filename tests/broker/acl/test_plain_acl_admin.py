"""Accounts over the wire, 50 to 54: who may change them, what is shown, what is true at once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.client.acl import SessionCredentials
from oberth.remoting.command import RemotingCommand

MakeLive = Callable[..., Awaitable[Any]]

ACCOUNTS = """
accounts:
- accessKey: producer
  secretKey: producer-secret
- accessKey: administrator
  secretKey: administrator-secret
  admin: true
"""
PRODUCER = SessionCredentials("producer", "producer-secret")
NEWCOMER = SessionCredentials("newcomer", "newcomer-secret")
ADMIN = SessionCredentials("administrator", "administrator-secret")


@pytest.fixture
async def live(make_live: MakeLive, tmp_path: Path) -> Any:
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    return await make_live(aclEnable="true", aclFile=str(tmp_path / "accounts.yml"))


async def call(
    live: Any, who: SessionCredentials, code: int, fields: dict[str, str] | None = None
) -> RemotingCommand:
    request = RemotingCommand(code=code, ext_fields=dict(fields or {}))
    who.sign(request)
    answer: RemotingCommand = await live.peer.client.invoke(live.peer.address, request, 10.0)
    return answer


async def test_an_account_is_good_at_once_and_gone_at_once(live: Any, tmp_path: Path) -> None:
    topic = {"topic": "T", "queueId": "0"}
    assert (await call(live, NEWCOMER, 30, topic)).code == 16
    made = {
        "accessKey": "newcomer",
        "secretKey": "newcomer-secret",
        "admin": "true",
        "topicPerms": "A=PUB,B=SUB",
    }
    version = live.broker.services.access.version
    assert (await call(live, ADMIN, 50, made)).code == 0
    assert live.broker.services.access.version != version
    assert (await call(live, NEWCOMER, 54)).code == 0
    text = (tmp_path / "accounts.yml").read_text()
    assert "newcomer-secret" in text
    assert "  - A=PUB\n  - B=SUB\n" in text
    live.broker.services.access.on_time(live.broker.parts.now_ms() + 5000)
    assert "newcomer" in live.broker.services.access.plain.accounts
    assert (await call(live, ADMIN, 51, {"accessKey": "newcomer"})).code == 0
    assert (await call(live, NEWCOMER, 54)).code == 16
    again = await call(live, ADMIN, 51, {"accessKey": "newcomer"})
    assert again.code == 210
    assert again.remark == (
        "The accesskey[newcomer] corresponding to accessConfig has been deleted failed."
    )


async def test_accounts_are_shown_without_secrets(live: Any) -> None:
    shown = await call(live, ADMIN, 54)
    assert b"secret" not in shown.body_bytes()
    accounts = json.loads(shown.body_bytes())["plainAccessConfigs"]
    assert [each["accessKey"] for each in accounts] == ["producer", "administrator"]
    assert [each["admin"] for each in accounts] == [False, True]


async def test_the_version_counts_changes(live: Any, tmp_path: Path) -> None:
    async def version() -> dict[str, Any]:
        fields = (await call(live, ADMIN, 52)).ext_fields
        assert fields is not None
        assert (fields["brokerName"], fields["brokerAddr"]) == ("broker-a", live.peer.address)
        named = json.loads(fields["allAclFileVersion"])
        assert named == {str(tmp_path / "accounts.yml"): json.loads(fields["version"])}
        found: dict[str, Any] = json.loads(fields["version"])
        return found

    assert (await version())["counter"] == 0
    white = {"globalWhiteAddrs": "10.0.0.*, 192.168.1.1"}
    assert (await call(live, ADMIN, 53, white)).code == 0
    assert (await version())["counter"] == 1
    assert live.broker.services.access.plain.is_white("10.0.0.7")
    assert not live.broker.services.access.plain.is_white("127.0.0.1")


async def test_what_is_refused(live: Any, tmp_path: Path) -> None:
    before = (tmp_path / "accounts.yml").read_bytes()
    for code in range(50, 55):
        assert (await call(live, PRODUCER, code, {"accessKey": "producer"})).code == 16
    short = await call(live, ADMIN, 50, {"accessKey": "short", "secretKey": "a long secret"})
    assert short.code == 209
    assert "a long secret" not in (short.remark or "")
    other = {"globalWhiteAddrs": "*", "aclFileFullPath": str(tmp_path / "other.yml")}
    assert (await call(live, ADMIN, 53, other)).code == 211
    assert not (tmp_path / "other.yml").exists()
    assert (await call(live, ADMIN, 53, {"globalWhiteAddrs": "300.1.1.1"})).code == 211
    assert (tmp_path / "accounts.yml").read_bytes() == before


async def test_without_a_gate_there_is_no_file_to_change(make_live: MakeLive) -> None:
    live = await make_live()
    for code, refused in ((50, 209), (51, 210), (52, 1), (53, 211), (54, 1)):
        answer = await live.peer.call(code, {"accessKey": "newcomer", "secretKey": "long enough"})
        assert answer.code == refused
        assert "aclEnable" in answer.remark
