"""Fuzzed accounts and policies: read or refused by a documented error, and never a right too many.

Files are broken at random, policies are made of every part there is and compared with a model of
the rule, and requests for policies are nonsense; an account that is no administrator stays none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oberth.broker.acl.needs import ADMINISTRATOR, ANY_NAME, Action, Kind, Need, needs_of
from oberth.broker.acl.plain_acl import PlainAcl, parse_plain_acl
from oberth.broker.acl.users import AccessDataError, Entry, UserStore, parse_entry
from oberth.errors import ConfigFormatError, RecordError
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand

FILE = b"""globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: flights-in
    secretKey: at-least-seven-characters
    whiteRemoteAddress: 192.168.0.*
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - flights=PUB
      - hidden=DENY
    groupPerms:
      - watchers=SUB
  - accessKey: operations
    secretKey: 'another-long-secret'
    admin: true
"""
LINES = FILE.splitlines(keepends=True)


def check_accounts(acl: PlainAcl) -> None:
    """What holds whatever a file says."""
    for key, account in acl.accounts.items():
        assert len(key) >= 7, "a key that short is refused"
        if not account.is_admin:
            assert account.refusal_of(ADMINISTRATOR) is not None


def read(data: bytes) -> None:
    refusal = ""
    try:
        check_accounts(parse_plain_acl(data, "plain_acl.yml"))
    except ConfigFormatError as error:
        refusal = str(error)
    assert "long-secret" not in refusal
    assert "seven-characters" not in refusal


def test_the_file_itself_is_read() -> None:
    acl = parse_plain_acl(FILE, "f")
    assert set(acl.accounts) == {"flights-in", "operations"}
    check_accounts(acl)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_file_with_bytes_changed(data: st.DataObject) -> None:
    raw = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                raw[at] = data.draw(st.sampled_from(list(b" \n\t-:'\"#=|*\x00\xff\xc3aD")))
            case "cut":
                del raw[at : at + data.draw(st.integers(1, 8))]
            case _:
                raw[at:at] = data.draw(st.binary(max_size=6))
    read(bytes(raw))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(LINES), max_size=30), st.integers(-4, 4))
def test_a_file_of_shuffled_lines(lines: list[bytes], shift: int) -> None:
    text = b"".join(lines)
    read(text)
    read(b"".join(b" " * max(shift, 0) + line[max(-shift, 0) :] for line in lines))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_a_file_of_any_bytes(data: bytes) -> None:
    read(data)


# Policies

NAMES = ["T", "TT", "Topic", "other", "*", "T*", "To*", "G"]
KINDS = ["Topic", "Group", "Cluster"]
HOSTS = ["10.0.0.1", "10.0.0.2", "192.168.1.1"]

entry_infos = st.builds(
    PolicyEntryInfo,
    resource=st.one_of(
        st.just("*"), st.builds("{}:{}".format, st.sampled_from(KINDS), st.sampled_from(NAMES))
    ),
    actions=st.lists(st.sampled_from([*Action, "All"]), min_size=1, max_size=3),
    decision=st.sampled_from(["Allow", "Deny"]),
    source_ips=st.one_of(
        st.none(), st.lists(st.sampled_from(["10.0.0.1", "10.0.0.*"]), max_size=2)
    ),
)
needs = st.builds(
    Need,
    st.sampled_from(list(Kind)),
    st.sampled_from(["T", "TT", "Topic", "other", "G", ANY_NAME]),
    st.frozensets(st.sampled_from(list(Action)), min_size=1, max_size=2),
)


def store_of(directory: Path, infos: list[PolicyEntryInfo]) -> UserStore:
    store = UserStore(directory)
    store.create_user(UserInfo(username="u", password="secret-of-u"))
    for info in infos:
        policy = PolicyInfo(policy_type="Custom", entries=[info])
        store.create_acl(AclInfo(subject="User:u", policies=[policy]))
    return store


def model(infos: list[PolicyEntryInfo], need: Need, host: str) -> bool:
    """Whether the entries grant a need: of those that fit the most exact decides.

    Of two as exact Deny; a later entry replaces an earlier one of the same resource. All topics, or
    groups, are granted where none of them is denied.
    """
    latest = {info.resource: info for info in infos}
    if need.name == ANY_NAME and need.kind is not Kind.CLUSTER and Action.LIST not in need.actions:
        for info in latest.values():
            name = (info.resource or "").rpartition(":")[2]
            one = f"{name[:-1]}\0" if name.endswith("*") else name
            if info.decision == "Deny" and not model(infos, need._replace(name=one), host):
                return False
    fitting = []
    for info in latest.values():
        kind, _, name = (info.resource or "").rpartition(":")
        if kind not in ("", need.kind):
            continue
        pattern = name.removesuffix("*")
        if name.endswith("*"):
            # A part of all topics does not answer for all of them.
            if pattern and (need.name == ANY_NAME or not need.name.startswith(pattern)):
                continue
        elif need.name in (ANY_NAME,) or need.name != name:
            continue
        allowed = {each.lower() for each in info.actions}
        if "all" not in allowed and not allowed & {each.lower() for each in need.actions}:
            continue
        sources = info.source_ips or []
        if sources and not any(
            host == each or (each.endswith("*") and host.startswith(each[:-1])) for each in sources
        ):
            continue
        is_deny = info.decision == "Deny"
        fitting.append((name.endswith("*"), -len(pattern), kind == "", not is_deny))
    return bool(fitting) and min(fitting)[3]


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(entry_infos, max_size=5), needs, st.sampled_from(HOSTS))
def test_policies_grant_what_the_rule_says(
    tmp_path: Path, infos: list[PolicyEntryInfo], need: Need, host: str
) -> None:
    store = store_of(tmp_path, infos)
    try:
        user = store.user("u")
        granted = store.refusal_of(user, [need], host) is None
        assert granted is model(infos, need, host)
        assert store.refusal_of(user, [ADMINISTRATOR], host) is not None, (
            "no policy makes a Super user"
        )
        again = UserStore(tmp_path)
        again.load()
        assert (again.refusal_of(again.user("u"), [need], host) is None) is granted
    finally:
        for path in tmp_path.iterdir():
            path.unlink()


def test_of_very_many_policies_those_of_the_name_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name 5 000 topics: with a thousand entries, all were tried for each (3 s)."""
    infos = [
        PolicyEntryInfo(
            resource=f"Topic:{name}", actions=["Sub"], decision="Allow", source_ips=["10.0.0.*"]
        )
        for name in ["T*", *(f"T{number}" for number in range(0, 1000, 2)), *map(str, range(400))]
    ]
    store = UserStore(tmp_path)
    store.create_user(UserInfo(username="u", password="secret-of-u"))
    policy = PolicyInfo(policy_type="Custom", entries=infos)
    store.create_acl(AclInfo(subject="User:u", policies=[policy]))
    looked_at = []
    fits = Entry.fits

    def counted(entry: Entry, need: Need) -> bool:
        looked_at.append(entry)
        return fits(entry, need)

    monkeypatch.setattr(Entry, "fits", counted)
    wanted = [Need(Kind.TOPIC, f"T{number}", frozenset({Action.SUB})) for number in range(1000)]
    assert store.refusal_of(store.user("u"), wanted, "10.0.0.1") is None
    assert len(looked_at) == len(wanted)


@settings(deadline=None)
@given(
    st.builds(
        PolicyEntryInfo,
        resource=st.one_of(st.none(), st.text(max_size=20)),
        actions=st.lists(st.text(max_size=8), max_size=3),
        decision=st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["Allow", "Deny"])),
        source_ips=st.one_of(st.none(), st.lists(st.text(max_size=20), max_size=3)),
    ),
    st.one_of(st.text(max_size=8), st.just("Custom")),
)
def test_an_entry_of_any_text_is_checked(info: PolicyEntryInfo, policy_type: str) -> None:
    with contextlib.suppress(AccessDataError):
        assert isinstance(parse_entry(info, policy_type), Entry)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["subject", "policies", "entries", "resource", "actions", "decision", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(RequestCode)), _JSON | st.binary(max_size=40), st.booleans())
def test_what_a_request_needs_is_always_known(code: RequestCode, body: Any, named: bool) -> None:
    """Of a request that nobody can read everything is needed; nothing is raised."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    fields = {"topic": "T", "consumerGroup": "G", "b": "T", "group": "G"} if named else {}
    request = RemotingCommand(code=code, ext_fields=fields, body=raw)
    with contextlib.suppress(RecordError):
        for need in needs_of(request, lambda offset: "T"):
            assert isinstance(need, Need)


async def test_nonsense_for_policies_changes_nothing(
    make_live: Callable[..., Awaitable[Any]],
) -> None:
    """3006 of an administrator with broken bodies: each is answered, and the list stays empty."""
    live = await make_live(
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"root","password":"secret-of-root"}',
    )
    from oberth.client.acl import SessionCredentials

    root = SessionCredentials("root", "secret-of-root")

    async def call(code: int, fields: dict[str, str], body: bytes) -> Any:
        request = RemotingCommand(code=code, ext_fields=dict(fields), body=body)
        root.sign(request)
        return await live.peer.client.invoke(live.peer.address, request, 10.0)

    bodies = [
        b"", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b'{"subject":7}', b'{"policies":[]}',
        b'{"subject":"User:root","policies":[{}]}',
        b'{"subject":"User:../root","policies":[{"policyType":"Custom","entries":[{}]}]}',
        b'{"subject":"User:root","policies":[{"policyType":"Custom","entries":[{"resource":"Topic:a*b"'
        b',"actions":["All"],"decision":"Allow"}]}]}',
        b"[" * 10_000, b'{"a":' * 5_000, b"\xff" * 100,
    ]  # fmt: skip
    for code in (3006, 3007):
        for body in bodies:
            for fields in ({}, {"subject": "User:root"}, {"subject": "User:nobody"}):
                answer = await call(code, fields, body)
                assert answer.code != 0, (body[:60], fields)
    listed = await call(3010, {}, b"")
    assert listed.code == 0
    assert json.loads(listed.body_bytes() or b"[]") == []


@pytest.mark.parametrize("text", ["", "User:", "root", "user:root", "User:root "])
def test_subjects(tmp_path: Path, text: str) -> None:
    store = store_of(tmp_path, [])
    with pytest.raises(AccessDataError):
        store.create_acl(AclInfo(subject=text, policies=[]))
