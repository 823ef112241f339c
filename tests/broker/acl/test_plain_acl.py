"""plain_acl.yml: Apache's own shape read, everything else refused by line; what accounts may do."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.broker.acl import yaml_reader
from oberth.broker.acl.address_pattern import address_matcher
from oberth.broker.acl.needs import ADMINISTRATOR, Action, Kind, Need
from oberth.broker.acl.plain_acl import parse_plain_acl
from oberth.broker.acl.signature import SecretKey
from oberth.broker.acl.yaml_reader import SIZE_MAX, parse_yaml
from oberth.errors import ConfigFormatError, OptionError

FILE = b"""
# As Apache ships it.
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678   # a comment
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: 'it''s 12345678'
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
dataVersion:
- counter: 1
  timestamp: 1700000000000
"""


def need(kind: Kind, name: str, *actions: Action) -> Need:
    return Need(kind, name, frozenset(actions))


def test_shape_of_apache() -> None:
    acl = parse_plain_acl(FILE, "f")
    assert acl.is_white("10.10.103.7")
    assert not acl.is_white("10.10.104.7")
    user, admin = acl.accounts["RocketMQ"], acl.accounts["rocketmq2"]
    for account, secret in ((user, b"12345678"), (admin, b"it's 12345678")):
        assert account.key.sign(b"x") == SecretKey(secret).sign(b"x")
    assert admin.is_admin
    assert admin.white is not None
    assert admin.white("192.168.1.200")
    assert user.white is None
    assert "12345678" not in repr(user)


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (need(Kind.TOPIC, "topicA", Action.PUB), False),
        (need(Kind.TOPIC, "topicA", Action.SUB), False),
        (need(Kind.TOPIC, "topicB", Action.PUB), True),
        (need(Kind.TOPIC, "topicB", Action.SUB), True),
        (need(Kind.TOPIC, "topicC", Action.PUB), False),
        (need(Kind.TOPIC, "topicC", Action.SUB), True),
        (need(Kind.TOPIC, "unlisted", Action.PUB), False),
        (need(Kind.TOPIC, "topicC", Action.PUB, Action.SUB, Action.GET), True),
        (need(Kind.GROUP, "groupA", Action.SUB), False),
        (need(Kind.GROUP, "groupB", Action.SUB), True),
        (need(Kind.GROUP, "unlisted", Action.SUB), True),
        (need(Kind.GROUP, "*", Action.SUB), False),
        (need(Kind.TOPIC, "RMQ_SYS_TRACE_TOPIC", Action.PUB), True),
        (need(Kind.TOPIC, "RMQ_SYS_TRACE_TOPIC", Action.SUB), False),
        (need(Kind.TOPIC, "topicB", Action.CREATE), False),
        (need(Kind.CLUSTER, "*", Action.GET), False),
        (ADMINISTRATOR, False),
    ],
)
def test_permissions(wanted: Need, allowed: bool) -> None:
    accounts = parse_plain_acl(FILE, "f").accounts
    assert (accounts["RocketMQ"].refusal_of(wanted) is None) is allowed
    assert accounts["rocketmq2"].refusal_of(wanted) is None


def test_an_administrator_with_a_list_keeps_to_it() -> None:
    text = b"accounts:\n- accessKey: adminAA\n  secretKey: adminAA\n  admin: true\n"
    text += b"  topicPerms:\n  - a=DENY\n"
    admin = parse_plain_acl(text, "f").accounts["adminAA"]
    assert admin.refusal_of(need(Kind.TOPIC, "a", Action.PUB)) is not None
    assert admin.refusal_of(need(Kind.CLUSTER, "*", Action.UPDATE)) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "accounts:\n- accessKey: short\n  secretKey: 12345678\n",
            "account 1.*Key has 5 characters",
        ),
        ("accounts:\n- accessKey: long-enough\n", "secretKey has 0 characters"),
        ("accounts:\n- accesKey: long-enough\n", "accesKey is unknown"),
        ("accounts: !!javax.script.ScriptEngineManager []\n", "line 1"),
        ("accounts: &a\n", "line 1"),
        ("accounts:\n\t- a\n", "line 2: found character that cannot start any token"),
        ("accounts:\naccounts:\n", "line 2: accounts is given twice"),
        ("accounts: text\n", "accounts is no list"),
        ("nonsense\n", "no mapping"),
        ("globalWhiteRemoteAddresses:\n- 10.0.0.300\n", "address pattern"),
        ("accounts:\n  - a: b\n c: d\n", "line 3"),
        ('accounts: "open\n', "while scanning a quoted scalar that begins in line 1"),
    ],
)
def test_what_cannot_be_meant(text: str, complaint: str) -> None:
    with pytest.raises(ConfigFormatError, match=complaint):
        parse_plain_acl(text.encode(), "f")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"a: &x b\nc: *x\n", "line 1: an anchor or an alias"),
        (b"a: [*x]", "line 1: an anchor or an alias"),
        (b"a: !!python/object/apply:os.system [ls]", "line 1: a tag"),
        (b"a: !local b", "line 1: a tag"),
        (b"a: b\n---\nc: d\n", "line 2: a second document"),
        (b"? [a]\n: b\n", "line 1: a key that is no text"),
        (b"[" * 100_000, "line 1: nested deeper than 16"),
        (b"- " * 18 + b"x", "line 1: nested deeper than 16"),
        (b"a: \x07", "character 7 at 3"),
        (b"\xff", "no UTF-8 at byte 0"),
        (b"a" * (SIZE_MAX + 1), f"allowed {SIZE_MAX}"),
    ],
)
def test_what_yaml_could_do_and_this_file_may_not(text: bytes, complaint: str) -> None:
    with pytest.raises(ConfigFormatError, match=complaint):
        parse_yaml(text, "f")


def test_sixteen_levels_within_another_are_read() -> None:
    assert parse_yaml(b"- " * 17 + b"x", "f") is not None


@pytest.mark.parametrize("loader", [yaml_reader._LOADER, yaml.BaseLoader])
def test_scalars_stay_text(monkeypatch: pytest.MonkeyPatch, loader: type) -> None:
    monkeypatch.setattr(yaml_reader, "_LOADER", loader)
    text = b"a: true\nb: 007\nc:\nd: ~\ne: ''\nf: [1, 2-3]\ng: 'it''s'\nh: 2001-01-01\n<<: x\n"
    assert parse_yaml(text, "f") == {
        "a": "true", "b": "007", "c": None, "d": None, "e": "", "f": ["1", "2-3"], "g": "it's",
        "h": "2001-01-01", "<<": "x",
    }  # fmt: skip


def test_no_message_holds_a_secret() -> None:
    for text in (b"secretKey: >hush-hush", b"a: |hush-hush", b'a: "hush-hush', b"a: {hush-hush"):
        with pytest.raises(ConfigFormatError) as caught:
            parse_yaml(text, "f")
        assert "hush" not in str(caught.value)


@settings(deadline=None)
@given(st.text(alphabet="abc:-'\"[]{}#&!|> \n\t", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigFormatError):
        parse_plain_acl(text.encode(), "f")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", "10.0.0.1", None),
        ("10.0.0.1", "10.0.0.1", "10.0.0.10"),
        ("10.0.*", "10.0.7.7", "10.1.0.0"),
        ("10.0.{1,2}.*", "10.0.2.9", "10.0.3.9"),
        ("10.0.0.5-7", "10.0.0.7", "10.0.0.8"),
        ("10.0.0.0/8", "10.200.0.1", "11.0.0.1"),
        ("::1", "::1", "::2"),
        ("fd00::/8", "fd12::1", "fe80::1"),
        ("10.0.0.*", "10.0.0.1", "not-a-number"),
    ],
)
def test_address_patterns(pattern: str, inside: str, outside: str | None) -> None:
    matcher = address_matcher(pattern)
    assert matcher(inside)
    assert outside is None or not matcher(outside)


@pytest.mark.parametrize(
    "pattern", ["", "10.0", "1.2.3.4.5", "1.2.3.256", "a.b.c.d", "10.0.0.1/99"]
)
def test_patterns_that_mean_nothing(pattern: str) -> None:
    with pytest.raises(OptionError):
        address_matcher(pattern)
