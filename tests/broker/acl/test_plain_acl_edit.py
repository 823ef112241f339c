"""Changes of plain_acl.yml: what comes out is read by the gate, whatever went in."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.broker.acl.plain_acl import parse_plain_acl
from oberth.broker.acl.plain_acl_edit import AclChangeError, PlainAclDocument

FILE = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678   # a comment
  whiteRemoteAddress:
  admin: false
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
"""


def test_an_account_is_made_changed_and_deleted() -> None:
    document = PlainAclDocument(FILE, "file")
    document.set_account("newcomer", {"secretKey": "newcomer-secret", "topicPerms": ["T=PUB"]})
    document.set_account("RocketMQ", {"secretKey": "", "defaultTopicPerm": "PUB|SUB"})
    data, plain = document.encode(77)
    assert set(plain.accounts) == {"RocketMQ", "newcomer"}
    again = PlainAclDocument(data, "file")
    assert (again.version.counter, again.version.timestamp) == (1, 77)
    changed = again.accounts[0]
    assert changed["secretKey"] == "12345678"
    assert changed["topicPerms"] == ["topicA=DENY"]
    assert changed["defaultTopicPerm"] == "PUB|SUB"
    assert again.delete_account("newcomer")
    assert not again.delete_account("nobody")
    again.set_global_white([])
    data, plain = again.encode(78)
    assert (list(plain.accounts), plain.global_white) == (["RocketMQ"], ())
    assert PlainAclDocument(data, "file").version.counter == 2


@pytest.mark.parametrize(
    ("access_key", "fields", "why"),
    [
        ("short", {"secretKey": "long enough"}, "longer than 6"),
        ("newcomer", {"secretKey": "short"}, "longer than 6"),
        ("newcomer", {}, "longer than 6"),
        ("newcomer", {"secretKey": "long enough", "topicPerms": ["T=ALL"]}, "T=ALL"),
        ("newcomer", {"secretKey": "long enough", "groupPerms": ["G"]}, "permission error"),
    ],
)
def test_what_is_refused(access_key: str, fields: dict[str, str | list[str]], why: str) -> None:
    document = PlainAclDocument(FILE, "file")
    with pytest.raises(AclChangeError, match=why) as caught:
        document.set_account(access_key, fields)
    assert str(fields.get("secretKey") or "?") not in str(caught.value)


def test_what_the_gate_could_not_read_is_not_made() -> None:
    document = PlainAclDocument(FILE, "file")
    document.set_global_white(["300.1.1.1"])
    with pytest.raises(AclChangeError):
        document.encode(1)
    document = PlainAclDocument(FILE, "file")
    document.set_account("newcomer", {"secretKey": "with\na line: break"})
    with pytest.raises(AclChangeError, match="control"):
        document.encode(1)


@given(st.text(min_size=7, max_size=20), st.text(min_size=7, max_size=20), st.text(max_size=10))
def test_any_text_comes_back_or_is_refused(access_key: str, secret: str, topic: str) -> None:
    document = PlainAclDocument(FILE, "file")
    with contextlib.suppress(AclChangeError):
        document.set_account(
            access_key, {"secretKey": secret, "topicPerms": [f"{topic}=PUB"] if topic else []}
        )
        data, plain = document.encode(1)
        account = PlainAclDocument(data, "file").accounts[-1]
        assert (account["accessKey"], account["secretKey"]) == (access_key, secret)
        assert access_key in plain.accounts
        assert list(parse_plain_acl(data, "file").accounts) == list(plain.accounts)
