"""Who may ask the console, from where, and what browsers may do with its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import cookies
from pathlib import Path
from urllib.parse import parse_qsl

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from tests.console.conftest import Browser, a_console, hidden

from oberth.broker.acl.users import UserStore
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.console import connections, security
from oberth.console.app import App
from oberth.console.config import ConsoleConfig, Login
from oberth.console.connections import CONNECTIONS_MAX, HEAD_LINES_MAX, HEAD_SIZE_MAX
from oberth.console.console import Console
from oberth.console.listening import listen
from oberth.console.security import (
    FORM_SLICE,
    FORM_WITHOUT_LOGIN_MAX,
    HEADERS,
    QUERY_FIELDS_MAX,
    Form,
    Sessions,
)
from oberth.console.server import serving
from oberth.errors import MQBrokerError, OptionError, RemotingTimeoutError
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.code import ResponseCode
from oberth.testing.embedded_broker import EmbeddedBroker

TOKEN = "a-token-of-some-length"
WITH_TOKEN = ConsoleConfig(
    client=ClientConfig(namesrv_addr="127.0.0.1:1"), login=Login.TOKEN, token=TOKEN
)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8082", 200),
        ("localhost", 200),
        ("[::1]:8082", 200),
        ("192.168.1.7", 200),
        ("console.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8082", 421),
        ("evil.example@127.0.0.1", 200),
        ("[", 421),
        ("", 421),
    ],
)
async def test_a_name_that_was_made_to_point_here_is_refused(
    bare: Browser, host: str, status: int
) -> None:
    answer = await bare.http.get("/static/console.css", headers={"host": host})
    assert answer.status_code == status


async def test_a_name_that_was_configured_is_served() -> None:
    client = ClientConfig(namesrv_addr="127.0.0.1:1")
    console = Console(ConsoleConfig(client=client, host_names=("console.example",)))
    async with Browser(console).http as http:
        for host, status in (("console.example", 200), ("other.example", 421)):
            answer = await http.get("/static/console.css", headers={"host": host})
            assert answer.status_code == status


async def test_every_answer_has_the_headers(reader: Browser) -> None:
    for path in ("/", "/nowhere", "/static/console.css", "/login", "/broker?address=x"):
        answer = await reader.http.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


async def test_pages_have_nothing_inline_and_nothing_from_elsewhere() -> None:
    folder = Path(__file__).parents[2] / "src" / "oberth" / "console"
    for path in (*folder.glob("templates/*"), *folder.glob("static/*")):
        text = path.read_text("utf-8")
        assert " style=" not in text, path
        assert " onclick" not in text, path
        assert "<style" not in text, path
        assert "<script>" not in text, path
        assert "|safe" not in text, path
        for part in ("https://", "http://", 'src="//', "@import"):
            assert part not in text.replace('xmlns="http://www.w3.org/2000/svg"', ""), path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"origin": "http://127.0.0.1:8082"}, 404),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "same-origin"}, 404),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
    ],
)
async def test_a_form_of_another_site_is_refused(
    bare: Browser, headers: dict[str, str], status: int
) -> None:
    await bare.post("/write/nothing", {}, status, **headers)


async def test_a_form_without_the_token_of_its_session_is_refused(bare: Browser) -> None:
    await bare.post("/write/nothing", {"csrf": ""}, 403)
    await bare.post("/write/nothing", {"csrf": "a" * 64}, 403)
    await bare.post("/write/nothing", {}, 404)
    other = Browser(bare.console)
    async with other.http:
        await other.post("/write/nothing", {"csrf": bare.csrf()}, 403)
        await other.post("/write/nothing", {}, 404)


async def test_what_is_no_form_is_refused(bare: Browser) -> None:
    await bare.http.get("/login")
    token = bare.csrf()
    for content, kind in (
        (json.dumps({"csrf": token}).encode(), "application/json"),
        (b"csrf=" + token.encode(), "text/plain"),
        (b"csrf=\xff", "application/x-www-form-urlencoded"),
        (b"a&" * 5000, "application/x-www-form-urlencoded"),
    ):
        answer = await bare.http.post(
            "/write/nothing", content=content, headers={"content-type": kind}
        )
        assert answer.status_code == 400
    assert (await bare.http.put("/")).status_code == 405


async def test_the_cookie_is_of_this_site_and_no_script_reads_it(bare: Browser) -> None:
    answer = await bare.http.get("/login")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    again = await bare.http.get("/login")
    assert "set-cookie" not in again.headers


def test_beyond_loopback_a_login_is_needed() -> None:
    client = ClientConfig(namesrv_addr="127.0.0.1:1")
    for host in ("0.0.0.0", "10.0.0.7", "::", "example.org"):
        with pytest.raises(OptionError, match="a login is needed"):
            ConsoleConfig(client=client, listen_host=host).check()
        ConsoleConfig(client=client, listen_host=host, login=Login.TOKEN, token=TOKEN).check()
    for host in ("127.0.0.1", "::1", "localhost", "127.8.0.1"):
        ConsoleConfig(client=client, listen_host=host).check()
    with pytest.raises(OptionError, match="a token of 3 characters"):
        ConsoleConfig(client=client, login=Login.TOKEN, token="abc").check()
    with pytest.raises(OptionError, match="audit"):
        ConsoleConfig(client=client, allow_writes=True).check()


async def test_nothing_is_shown_before_the_token(broker: EmbeddedBroker) -> None:
    async with a_console(broker, login=Login.TOKEN, token=TOKEN) as browser:
        answer = await browser.http.get("/broker?address=x")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fbroker%3Faddress%3Dx"
        inner = await browser.http.get("/", headers={"x-requested-with": "console"})
        assert inner.status_code == 401
        assert (await browser.http.post("/write/x", data={"csrf": "x"})).status_code == 401
        await browser.get("/static/console.css")
        await browser.post("/login", {"token": "wrong"}, 403)
        await browser.post("/login", {"token": "x" * FORM_WITHOUT_LOGIN_MAX}, 400)
        before = browser.http.cookies["oberth_console"]
        await browser.post("/login", {"token": TOKEN, "next": "//evil.example"}, 303)
        assert browser.http.cookies["oberth_console"] != before
        page = await browser.get("/")
        assert "Log out" in page
        csrf = hidden(page, "csrf")
        await browser.post("/logout", {"csrf": csrf}, 303)
        assert (await browser.http.get("/")).status_code == 303


async def test_a_link_on_another_site_ends_no_session() -> None:
    """A browser leaves out the cookie then; an answer that sets another one would replace it."""
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with Browser(Console(WITH_TOKEN)).http as http:
        answer = await http.get('/topics?q="><b>&page=2', headers=linked)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert 'content="0; url=/topics?q=%22%3E%3Cb%3E&amp;page=2"' in answer.text
        inner = await http.get("/topics", headers={**linked, "sec-fetch-site": "same-origin"})
        assert inner.status_code == 303
        evil = await http.get("http://127.0.0.1:8082//evil.example/", headers=linked)
        assert "evil" not in evil.text


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {}])
async def test_a_form_of_another_site_ends_no_session(headers: dict[str, str]) -> None:
    """It comes without the cookie, and over http beyond loopback without Sec-Fetch headers."""
    for config in (WITH_TOKEN, replace(WITH_TOKEN, login=Login.NONE)):
        async with Browser(Console(config)).http as http:
            answer = await http.post("/login", data={"csrf": "x"}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers


async def test_who_logs_in_in_one_tab_is_logged_in_in_all() -> None:
    async with Browser(Console(WITH_TOKEN)).http as http:
        csrf = hidden((await http.get("/login?next=/topics")).text, "csrf")
        fields = {"csrf": csrf, "token": TOKEN, "next": "/topics"}
        wrong = await http.post("/login", data={**fields, "token": "wrong"})
        assert (wrong.status_code, hidden(wrong.text, "next")) == (403, "/topics")
        assert (await http.post("/login", data=fields)).status_code == 303
        cookie = http.cookies["oberth_console"]
        for answer in (
            await http.post("/login", data=fields),
            await http.post("/login", data={**fields, "token": "wrong"}),
            await http.get("/login?next=/topics"),
        ):
            assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
        assert http.cookies["oberth_console"] == cookie
        stale = await http.post("/write/x", data={"csrf": csrf})
        assert stale.status_code == 403
        assert "<h1>The page is too old</h1>" in stale.text
        http.cookies.clear()
        late = await http.post("/write/x", data={"csrf": csrf})
        assert '<a href="/login">Log in</a>' in late.text


@pytest.mark.parametrize(
    ("target", "went"),
    [
        ("/topics?page=2", "/topics?page=2"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
    ],
)
async def test_a_login_leads_to_a_page_of_the_console(target: str, went: str) -> None:
    async with Browser(Console(WITH_TOKEN)).http as http:
        page = await http.get("/login")
        answer = await http.post(
            "/login", data={"csrf": hidden(page.text, "csrf"), "token": TOKEN, "next": target}
        )
        assert answer.headers["location"] == went


async def test_a_token_is_not_tried_out() -> None:
    browser = Browser(Console(WITH_TOKEN))
    async with browser.http:
        for _ in range(10):
            await browser.post("/login", {"token": "wrong"}, 403)
        page = await browser.post("/login", {"token": TOKEN}, 429)
        assert "Too many attempts" in page


@pytest.mark.parametrize(
    ("addresses", "other"),
    [
        ([f"2001:db8:7:1:{n:x}::1" for n in range(11)], "2001:db8:7:2::1"),
        ([f"fe80::{n:x}%eth0" for n in range(11)], "fe80:0:0:1::1%eth0"),
        (["::ffff:10.0.0.1", "10.0.0.1"] * 6, "::ffff:10.0.0.2"),
    ],
)
async def test_addresses_of_one_network_try_together(addresses: list[str], other: str) -> None:
    """Of IPv6 a /64, all of which one machine may have, so that it is not tried from each."""
    app = App(Console(WITH_TOKEN))

    async def status(address: str, token: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            page = await http.get("/login")
            fields = {"csrf": hidden(page.text, "csrf"), "token": token}
            return (await http.post("/login", data=fields)).status_code

    assert [await status(each, "wrong") for each in addresses[:10]] == [403] * 10
    assert await status(addresses[10], TOKEN) == 429
    assert await status(other, TOKEN) == 303


async def test_users_of_brokers_that_check_nobody_get_no_login(broker: EmbeddedBroker) -> None:
    async with a_console(broker, login=Login.USERS) as browser:
        page = await browser.post("/login", {"user": "anna", "password": "whatever"}, 403)
        assert "checks no users" in page


async def test_users_of_the_brokers_log_in_and_sign() -> None:
    root = {"username": "root", "password": "root-password"}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(root),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "root", "secretKey": "root-password"}
        ),
    }
    async with (
        EmbeddedBroker(settings) as broker,
        a_console(broker, login=Login.USERS) as browser,
    ):
        await browser.post("/login", {"user": "root", "password": "wrong"}, 403)
        await browser.post("/login", {"user": "nobody", "password": "root-password"}, 403)
        await browser.post("/login", {"user": "", "password": ""}, 403)
        await browser.post("/login", {"user": "root", "password": "root-password"}, 303)
        assert "root" in await browser.get("/")
        (admin,) = browser.console.sessions.admins()
        assert admin.config.access_key == "root"


@asynccontextmanager
async def a_console_of_users(tmp_path: Path) -> AsyncIterator[tuple[UserStore, Browser]]:
    """The users of its broker, and a browser of ann's, who may see the cluster."""
    root = {"username": "root", "password": "root-password"}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(root),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "root", "secretKey": "root-password"}
        ),
    }
    audit = str(tmp_path / "audit.jsonl")
    async with (
        EmbeddedBroker(settings) as broker,
        a_console(broker, login=Login.USERS, allow_writes=True, audit_path=audit) as browser,
    ):
        users = broker.broker.services.access.users
        users.create_user(UserInfo(username="ann", password="ann-password", user_type="Normal"))
        entry = PolicyEntryInfo(resource="Cluster:*", actions=["Get"], decision="Allow")
        policy = PolicyInfo(policy_type="Custom", entries=[entry])
        users.create_acl(AclInfo(subject="User:ann", policies=[policy]))
        await browser.post("/login", {"user": "ann", "password": "ann-password"}, 303)
        yield users, browser


@pytest.mark.parametrize("loses", ["user", "rights"])
async def test_who_may_not_see_the_cluster_any_more_is_shown_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    monkeypatch.setattr(security, "ASKED_AGAIN_S", 0.0)
    async with a_console_of_users(tmp_path) as (users, browser):
        assert "broker-a" in await browser.get("/")
        if loses == "user":
            users.delete_user("ann")
        else:
            users.delete_acl("User:ann", None, None)
        assert "broker-a" not in await browser.get("/", 303)
        assert browser.console.sessions.admins() == []


ACCOUNT = """
accounts:
- accessKey: operations
  secretKey: another-long-secret
  admin: true
"""
"""An account of RocketMQ 4's."""

FROM_HERE = f"{ACCOUNT}  whiteRemoteAddress: 127.0.0.1\n"
"""The same, which needs no signature where the console is."""


@asynccontextmanager
async def a_console_of_accounts(
    tmp_path: Path, text: str
) -> AsyncIterator[tuple[EmbeddedBroker, Browser]]:
    """A broker with accounts and a browser of nobody's yet."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(text)
    settings = {"aclEnable": "true", "aclFile": str(accounts)}
    async with (
        EmbeddedBroker(settings) as broker,
        a_console(broker, login=Login.USERS) as browser,
    ):
        yield broker, browser


async def test_an_account_that_needs_no_signature_here_gets_no_login(tmp_path: Path) -> None:
    """The broker lets whoever names it in, from where the console is."""
    async with a_console_of_accounts(tmp_path, FROM_HERE) as (_, browser):
        for password in ("wrong", "another-long-secret"):
            page = await browser.post("/login", {"user": "operations", "password": password}, 403)
            assert "checks no signature" in page
        assert browser.console.sessions.admins() == []


async def test_an_account_that_signs_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it needs no signature any more, when whoever names it would be let in."""
    monkeypatch.setattr(security, "ASKED_AGAIN_S", 0.0)
    async with a_console_of_accounts(tmp_path, ACCOUNT) as (broker, browser):
        await browser.post("/login", {"user": "operations", "password": "wrong"}, 403)
        right = {"user": "operations", "password": "another-long-secret"}
        await browser.post("/login", right, 303)
        assert "broker-a" in await browser.get("/")
        (tmp_path / "plain_acl.yml").write_text(FROM_HERE)
        for _ in range(2):  # it is read when it has not changed since the look before
            broker.advance(seconds=2)
        assert "broker-a" not in await browser.get("/", 303)
        assert browser.console.sessions.admins() == []


UNDECIDED = [ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY, ResponseCode.SYSTEM_ERROR]
"""Answers of a broker that is busy, goes away or starts: it has not looked at who asks."""


@pytest.mark.parametrize("busy", [*UNDECIDED, None])
async def test_who_may_have_been_let_in_without_a_signature_gets_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: int | None
) -> None:
    """The broker was too busy, or too slow, to refuse another secret, or went away."""
    ask = Admin.broker_runtime_info

    async def not_now(self: Admin, addr: str) -> dict[str, str]:
        if self.config.secret_key == "wrong":
            return await ask(self, addr)
        if busy is None:
            raise RemotingTimeoutError("no answer")
        raise MQBrokerError(busy, "busy", addr)

    async with a_console_of_accounts(tmp_path, FROM_HERE) as (_, browser):
        monkeypatch.setattr(Admin, "broker_runtime_info", not_now)
        page = await browser.post("/login", {"user": "operations", "password": "wrong"}, 403)
        assert "No broker answers" in page


@pytest.mark.parametrize("code", UNDECIDED)
async def test_a_busy_broker_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(security, "ASKED_AGAIN_S", 0.0)

    async def busy(self: Admin, addr: str) -> dict[str, str]:
        raise MQBrokerError(code, "busy", addr)

    async with a_console_of_users(tmp_path) as (_, browser):
        monkeypatch.setattr(Admin, "broker_runtime_info", busy)
        await browser.get("/")
        assert len(browser.console.sessions.admins()) == 1


async def test_brokers_of_4_refuse_with_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no code for it: SYSTEM_ERROR and its name."""
    monkeypatch.setattr(security, "ASKED_AGAIN_S", 0.0)
    ask = Admin.broker_runtime_info

    async def as_4(self: Admin, addr: str) -> dict[str, str]:
        try:
            return await ask(self, addr)
        except MQBrokerError as error:
            if error.response_code != ResponseCode.NO_PERMISSION:
                raise
            text = "org.apache.rocketmq.acl.common.AclException: Check signature failed"
            raise MQBrokerError(ResponseCode.SYSTEM_ERROR, text, addr) from None

    monkeypatch.setattr(Admin, "broker_runtime_info", as_4)
    async with a_console_of_users(tmp_path) as (users, browser):  # one was let in by that
        assert "broker-a" in await browser.get("/")
        users.delete_user("ann")
        assert "broker-a" not in await browser.get("/", 303)
        assert browser.console.sessions.admins() == []


async def test_what_others_changed_is_shown_to_administrators(tmp_path: Path) -> None:
    async with a_console_of_users(tmp_path) as (users, browser):
        audit = browser.console.audit
        assert audit is not None
        for user in ("root", "ann"):
            changes = [[f"changed-by-{user}", "a", "b"]]
            made = audit.begin(0, user=user, peer="", write="w", fields={}, changes=changes)
            audit.end(0, made, outcome="done", text=f"done-by-{user}")
        page = await browser.get("/audit")
        assert "changed-by-ann" in page
        assert "done-by-ann" in page
        assert "by-root" not in page
        users.update_user(UserInfo(username="ann", user_type="Super"))
        assert "changed-by-root" in await browser.get("/audit")


def test_sessions_end_and_are_bounded() -> None:
    now = [0.0]
    config = ConsoleConfig(
        client=ClientConfig(namesrv_addr="127.0.0.1:1"), login=Login.TOKEN, token=TOKEN
    )
    sessions = Sessions(config, lambda: now[0])
    admin = Admin(config=config.client)
    first, _ = sessions.begin("anna", admin)
    assert sessions.find(first.identifier) is first
    asked = []
    for seconds in (0, 59, 2, 1):
        now[0] += seconds
        asked.append(sessions.must_ask_again(first))
    assert asked == [False, False, True, False]
    now[0] += 13 * 3600
    assert sessions.find(first.identifier) is None
    assert sessions.begin("token", None)[1] == [admin]  # whoever begins one closes it
    kept = [sessions.begin("token", None)[0] for _ in range(1001)]
    assert sessions.find(kept[0].identifier) is None
    assert sessions.find(kept[-1].identifier) is kept[-1]


async def test_passwords_are_not_tried_out_at_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for the brokers' answer count, too."""
    begun = 0
    go_on = asyncio.Event()

    async def user(self: App, name: str, password: str) -> tuple[None, str]:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return None, "No."

    monkeypatch.setattr(App, "_user", user)
    async with a_console(broker, login=Login.USERS) as browser:
        csrf = hidden((await browser.http.get("/login")).text, "csrf")
        fields = {"csrf": csrf, "user": "root", "password": "guess"}
        tries = [asyncio.ensure_future(browser.http.post("/login", data=fields)) for _ in range(50)]
        refused, _ = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 40:
            refused, _ = await asyncio.wait(set(tries) - refused, timeout=0.01)
            refused = {each for each in tries if each.done()}
        go_on.set()
        codes = [(await each).status_code for each in tries]
        assert (begun, codes.count(429), codes.count(403)) == (10, 40, 10)


async def test_who_logs_in_has_not_failed() -> None:
    browser = Browser(Console(WITH_TOKEN))
    async with browser.http:
        for _ in range(9):
            await browser.post("/login", {"token": "wrong"}, 403)
        for _ in range(5):
            await browser.post("/login", {"token": TOKEN}, 303)
            browser.http.cookies.clear()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\na",
    ],
)
async def test_who_dawdles_does_not_keep_others_out(begun: bytes) -> None:
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    async with serving(WITH_TOKEN, listener), contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        slow = []
        for _ in range(CONNECTIONS_MAX + 20):
            slow.append(stack.enter_context(socket.socket()))
            slow[-1].setblocking(False)
            await loop.sock_connect(slow[-1], address)
            await loop.sock_sendall(slow[-1], begun)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as http:
            answer = await http.get("/login")
        assert answer.status_code == 200
        with contextlib.suppress(ConnectionError):
            assert await loop.sock_recv(slow[0], 1) == b""


async def test_a_request_that_does_not_end_and_an_answer_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    monkeypatch.setattr(connections, "UNREAD_S", 0.1)
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    async with serving(WITH_TOKEN, listener):
        loop = asyncio.get_running_loop()
        with socket.socket() as slow, socket.socket() as deaf:
            slow.setblocking(False)
            await loop.sock_connect(slow, address)
            await loop.sock_sendall(slow, b"GET / HTTP/1.1\r\nX-Slow: ")
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(slow, 1) == b""
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, address)
            asked = b"GET /static/console.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
            with contextlib.suppress(ConnectionError):
                while True:  # until it is closed
                    await loop.sock_sendall(deaf, asked)


async def answer_to(address: tuple[str, int], *writes: bytes) -> bytes:
    """What a server answers to bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        with contextlib.suppress(ConnectionError):
            for each in writes:
                writer.write(each)
            return await reader.read()
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /login HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * HEAD_LINES_MAX + b"\r\n",
        b"GET /login HTTP/1.1\nHost: localhost\n" + b"a: b\n" * HEAD_LINES_MAX + b"\n",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * HEAD_SIZE_MAX + b"\r\n\r\n",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"
        b"GET /login HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * HEAD_LINES_MAX + b"\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + b"1\r\na\r\n" * 1000,
    ],
)
async def test_requests_that_take_long_to_read_are_refused_before(sent: bytes) -> None:
    """16 000 lines of a head, or 40 000 chunks of a form, of one read held the loop."""
    listener = listen("127.0.0.1", 0)
    async with serving(WITH_TOKEN, listener):
        answer = await answer_to(listener.getsockname(), sent)
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert last.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 200 ") == sent.count(b"GET") - (b"chunked" not in sent)


async def test_requests_in_any_pieces_are_answered() -> None:
    listener = listen("127.0.0.1", 0)
    head = b"GET /login HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * (HEAD_LINES_MAX - 4)
    async with serving(WITH_TOKEN, listener):
        address = listener.getsockname()
        one = head + b"\r\n"
        last = head + b"Connection: close\r\n\r\n"
        for writes in ([one * 3 + last], [one[:50], one[50:-1], one[-1:] + last]):
            answer = await answer_to(address, *writes)
            assert answer.count(b"HTTP/1.1 200 ") == b"".join(writes).count(b"GET")


async def test_requests_behind_others_wait_in_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that was answered let 256 KiB more be read, and kept."""
    receive = connections._Requests.receive_data
    kept = []

    def noted(self: connections._Requests, data: bytes) -> None:
        receive(self, data)
        kept.append(len(self.trailing_data[0]))

    monkeypatch.setattr(connections._Requests, "receive_data", noted)
    listener = listen("127.0.0.1", 0)
    ask = b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 8000
    count = 300
    async with serving(WITH_TOKEN, listener):
        sent = (ask + b"\r\n\r\n") * count + ask + b"\r\nConnection: close\r\n\r\n"
        answer = await answer_to(listener.getsockname(), sent)
    assert answer.count(b"HTTP/1.1 200 ") == count + 1
    assert max(kept) <= 2 * 256 * 1024


async def test_bytes_behind_the_last_request_leave_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was answered 400 in the middle of the answer that was being made."""
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(self: App, scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await go_on.wait()
        try:
            await PlainTextResponse("late")(scope, receive, send)
        finally:
            done.set()

    monkeypatch.setattr(App, "__call__", slow)
    listener = listen("127.0.0.1", 0)
    async with serving(WITH_TOKEN, listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await begun.wait()
        writer.write(b"more")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        go_on.set()
        await done.wait()
        writer.close()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_cookie_full_of_quotes_is_read_once(
    bare: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own reader looks for each of them to the end: seconds for one of 64 KiB."""

    def unquoted(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr(cookies, "_unquote", unquoted)
    quotes = '"' + '\\"' * 30_000 + '"'
    for name in ("a", "oberth_console"):
        answer = await bare.http.get("/login", headers={"cookie": f"{name}={quotes}"})
        assert "set-cookie" in answer.headers
    token = "t" * 43
    for text in (f"oberth_console={token}", f'a="b"; oberth_console={token} ;c=d'):
        answer = await bare.http.get("/login", headers={"cookie": text})
        assert "set-cookie" not in answer.headers


async def test_an_address_of_very_many_fields_is_refused(bare: Browser) -> None:
    path = "/login?" + "a&" * QUERY_FIELDS_MAX
    assert (await bare.http.get(path)).status_code == 400
    assert (await bare.http.get(path[:-2])).status_code == 303


@given(
    st.lists(
        st.sampled_from(
            [b"&", b"=", b"+", b"%", b"%41", b"%zz", b"%c3%a9", b"%C3", b"a", b"%0", b"%2"]
        ),
        max_size=60,
    ),
    st.integers(1, 9),
)
def test_forms_are_what_python_reads_whatever_the_slices(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "FORM_SLICE", size + 2)
        form = Form()
        for _ in security._parse_form(bytearray(data), form):
            pass
    found = [(name, value) for name, values in form.lists.items() for value in values]
    expected = parse_qsl(data.decode(), keep_blank_values=True)
    assert sorted(found) == sorted(expected)
    assert form.fields == dict(expected)


def test_a_long_form_is_read_in_slices() -> None:
    """16 MiB of %41 took a second and a half in one turn of the loop."""
    fields = [b"a=" + b"%41" * 100_000, *[b"b=" + b"c" * 8000] * 100, b"d" * 50_000]
    data = bytearray(b"&".join(fields))
    form = Form()
    turns = sum(1 for _ in security._parse_form(data, form))
    assert turns >= len(data) // (2 * FORM_SLICE)
    assert form.fields["a"] == "A" * 100_000
    assert len(form.lists["b"]) == 100


async def test_forms_on_their_way_have_a_bound_together(
    bare: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 connections could bring 16 MiB each and not end."""
    await bare.http.get("/login")
    fields = b"csrf=" + bare.csrf().encode() + b"&x="
    monkeypatch.setattr(security, "FORMS_SIZE_MAX", 3 * len(fields))
    has_begun, go_on = asyncio.Event(), asyncio.Event()

    async def long() -> AsyncIterator[bytes]:
        yield fields + b"y" * len(fields)
        has_begun.set()
        await go_on.wait()
        yield b"z"

    kind = {"content-type": "application/x-www-form-urlencoded"}
    post = bare.http.post("/write/nothing", content=long(), headers=kind)
    task = asyncio.ensure_future(post)
    await has_begun.wait()
    # It goes to its end, and what has begun and is longer is given up for it.
    answer = await bare.http.post(
        "/write/nothing", content=fields + b"y" * (len(fields) // 2), headers=kind
    )
    assert answer.status_code == 404
    go_on.set()
    refused = await task
    assert (refused.status_code, "forms of all" in refused.text) == (400, True)
