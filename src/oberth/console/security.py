"""Guard: who may ask the console, from where, and what a browser may do with its answers.

    Host                an address, localhost, or a name that was configured: a page elsewhere whose
                        name is made to point here (DNS rebinding) has another one
    session             a random cookie, HttpOnly and SameSite=Strict; with a login it exists only
                        behind one, and ends after SESSION_IDLE_S without a request, or where a
                        broker does not admit its user any more; a link on another site leads to a
                        page that asks again from here, with the cookie
    POST                a form from a page of this console: same origin by what the browser says,
                        and a token that only such a page holds
    Content-Security-…  scripts, styles, pictures and requests of this origin only, nothing inline,
                        not shown inside another page's frame

Forms are read here, at most FORM_SIZE_MAX bytes of one and FORMS_SIZE_MAX of all, before anything
else is done with them.
"""

from __future__ import annotations

import asyncio
import codecs
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from operator import attrgetter
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oberth.client.admin import Admin
from oberth.console.config import ConsoleConfig, Login

COOKIE: Final = "oberth_console"
SESSION_IDLE_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
ASKED_AGAIN_S: Final = 60.0
"""How often brokers are asked whether a session's user may still see the cluster."""

FORM_SIZE_MAX: Final = 16 * 1024 * 1024
"""A form with a message of 4 MiB, every byte of it escaped as three, and some room."""
FORMS_SIZE_MAX: Final = 64 * 1024 * 1024
"""Of all requests that have not been answered."""
FORM_WITHOUT_LOGIN_MAX: Final = 16 * 1024
FORM_FIELDS_MAX: Final = 2000
FORM_SLICE: Final = 16 * 1024
"""Bytes that are decoded in a turn of the loop, in about a millisecond."""
QUERY_FIELDS_MAX: Final = 100
LOGIN_FAILURES_MAX: Final = 10
LOGIN_FAILURES_SPAN_S: Final = 60.0

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
OPEN_PATHS: Final = ("/static/", "/login")

# Not http.cookies, which takes the square of the time for many quotes before Python 3.11.10.
_COOKIE: Final = re.compile(rf"(?:^|;)[ \t]*{COOKIE}=([\w-]{{20,100}})[ \t]*(?:;|$)", re.ASCII)
_Refuse = Callable[[int, str], Awaitable[None]]


@dataclass(slots=True)
class Session:
    """One browser.

    Attributes:
        identifier: the cookie's value.
        user: who it is; "" without a login.
        admin: asks brokers as that user; None: as the console does.
        used_s: when it asked last.
        admitted_s: when brokers were asked last whether it may be one.
    """

    identifier: str
    csrf: str
    user: str = ""
    admin: Admin | None = None
    used_s: float = 0.0
    admitted_s: float = 0.0


@dataclass(slots=True)
class Form:
    """The fields of a form: ``fields`` has the last value of each name, ``lists`` all of them."""

    fields: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)


class _Incoming:
    """A form on its way.

    Attributes:
        size: bytes that have come, and count until it is answered.
        is_given_up: whether others needed its room.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.data = bytearray()
        self.size = 0
        self.is_whole = False
        self.is_given_up = False

    def take(self, data: bytes) -> None:
        """More of it."""
        if not self.is_given_up:
            self.data += data
            self.size = len(self.data)

    def give_up(self) -> None:
        """Keep nothing of it."""
        self.data = bytearray()
        self.size = 0
        self.is_given_up = True


class Sessions:
    """The browsers that have logged in, or with no login a key that makes their tokens."""

    def __init__(self, config: ConsoleConfig, now_s: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._now_s = now_s
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    @property
    def wants_login(self) -> bool:
        """Whether nothing is shown before a login."""
        return self.config.login is not Login.NONE

    def sign(self, *texts: str) -> str:
        """A signature over the texts that only this process can make."""
        message = b"".join(len(each.encode()).to_bytes(4) + each.encode() for each in texts)
        return hmac.new(self._key, message, "sha256").hexdigest()

    def anonymous(self, identifier: str | None) -> Session:
        """The session of a browser where there is no login; the server keeps nothing about it."""
        if identifier is None:
            identifier = secrets.token_urlsafe(32)
        return Session(identifier, self.sign("csrf", identifier))

    def find(self, identifier: str | None) -> Session | None:
        """The session of a browser that has logged in; None if it is unknown or has expired."""
        session = self._known.get(identifier or "")
        if session is None or self._has_ended(session):
            return None
        session.used_s = self._now_s()
        self._known.move_to_end(session.identifier)
        return session

    def _has_ended(self, session: Session) -> bool:
        return self._now_s() - session.used_s > SESSION_IDLE_S

    def _ended(self) -> list[Session]:
        """Sessions that nobody has used for long; the table begins with them."""
        return list(takewhile(self._has_ended, self._known.values()))

    def begin(self, user: str, admin: Admin | None) -> tuple[Session, list[Admin]]:
        """A new session after a login, and the connections of sessions that were dropped for it."""
        identifier = secrets.token_urlsafe(32)
        session = Session(
            identifier,
            self.sign("csrf", identifier),
            user,
            admin,
            used_s=self._now_s(),
            admitted_s=self._now_s(),
        )
        self._known[identifier] = session
        over = [self._known.pop(each.identifier).admin for each in self._ended()]
        while len(self._known) > SESSIONS_MAX:
            over.append(self._known.popitem(last=False)[1].admin)
        return session, [admin for admin in over if admin is not None]

    def must_ask_again(self, session: Session) -> bool:
        """Whether brokers are to be asked again about a session's user; one caller is told so."""
        now_s = self._now_s()
        if session.admin is None or now_s - session.admitted_s < ASKED_AGAIN_S:
            return False
        session.admitted_s = now_s
        return True

    def end(self, session: Session) -> None:
        """Forget a session that logs out."""
        self._known.pop(session.identifier, None)

    def admins(self) -> list[Admin]:
        """The connections of all users."""
        return [each.admin for each in self._known.values() if each.admin is not None]

    def may_try(self, peer: str) -> bool:
        """Whether a peer, as `who_tries` names it, has failed to log in too often just now."""
        now_s = self._now_s()
        recent = [at for at in self._failures.get(peer, []) if now_s - at < LOGIN_FAILURES_SPAN_S]
        self._failures[peer] = recent
        self._failures.move_to_end(peer)
        while len(self._failures) > SESSIONS_MAX:
            self._failures.popitem(last=False)
        return len(recent) < LOGIN_FAILURES_MAX

    def note_try(self, peer: str) -> float:
        """Count a login of a peer as one that fails, before it is known: others may come at once.

        Returns:
            What `forgive` takes.
        """
        now_s = self._now_s()
        self._failures.setdefault(peer, []).append(now_s)
        return now_s

    def forgive(self, peer: str, tried_s: float) -> None:
        """A login has not failed."""
        if tried_s in (tries := self._failures.get(peer, [])):
            tries.remove(tried_s)


def who_tries(host: str) -> str:
    """Whose login attempts are counted together: an address of IPv4, a network /64 of IPv6.

    Who has one address of IPv6 most often has all of its /64.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


class Guard:
    """ASGI: refuses requests that may not pass, and adds the security headers to answers.

    Args:
        app: serves what passes.
        sessions: of browsers.
        admits: whether the user of a session may still have one; ends it otherwise.
    """

    def __init__(
        self, app: ASGIApp, sessions: Sessions, admits: Callable[[Session], Awaitable[bool]]
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._admits = admits
        self._config = sessions.config
        self._forms: list[_Incoming] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        identifier = _cookie(headers)
        fresh: list[Session] = []

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    out[name] = value
                out.setdefault("cache-control", "no-store")
                # Not in the answer to a form: another site's comes without the cookie that the
                # browser has, and this one would take its place and end the session.
                for session in fresh if scope["method"] in ("GET", "HEAD") else ():
                    out.append("set-cookie", self.cookie(session.identifier))
            await send(message)

        async def refuse(status: int, text: str) -> None:
            await PlainTextResponse(text + "\n", status)(scope, receive, guarded)

        if not self._is_host_allowed(headers):
            await refuse(
                421, "this console has another name: --host NAME adds one that browsers may use"
            )
            return
        if scope["query_string"].count(b"&") >= QUERY_FIELDS_MAX:
            await refuse(400, f"an address has at most {QUERY_FIELDS_MAX} fields")
            return
        if identifier is None and _is_link_of_another_site(scope, headers):
            await _go_on(scope)(scope, receive, guarded)
            return
        session = self._session(identifier)
        if session is not None and self._sessions.must_ask_again(session):
            session = session if await self._admits(session) else None
        if session is None:
            if not scope["path"].startswith(OPEN_PATHS):
                await _log_in_first(scope, headers)(scope, receive, guarded)
                return
            session = self._sessions.anonymous(identifier)
        if session.identifier != identifier:
            fresh.append(session)
        scope.setdefault("state", {})["session"] = session
        if scope["method"] == "POST":
            await self._post(scope, receive, guarded, refuse)
        elif scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, guarded)
        else:
            await refuse(405, "only GET, HEAD and POST are served")

    async def _post(self, scope: Scope, receive: Receive, send: Send, refuse: _Refuse) -> None:
        """A form of a page of this console."""
        headers = Headers(scope=scope)
        session: Session = scope["state"]["session"]
        if not _is_same_origin(headers):
            await refuse(403, "the form was not sent by a page of this console")
            return
        is_known = not self._sessions.wants_login or bool(session.used_s)
        incoming = _Incoming(FORM_SIZE_MAX if is_known else FORM_WITHOUT_LOGIN_MAX)
        self._forms.append(incoming)
        try:
            form = await self._read_form(headers, receive, incoming)
            if isinstance(form, str):
                await refuse(400, form)
                return
            csrf = form.fields.pop("csrf", "")
            # Who is logged in already, in another tab, is led on and nothing is done.
            is_led_on = scope["path"] == "/login" and bool(session.used_s)
            if not is_led_on and not hmac.compare_digest(csrf.encode(), session.csrf.encode()):
                text = "Nothing was done. Go back, load the page again and send the form from it."
                await _page("The page is too old", text, 403)(scope, receive, send)
                return
            scope["state"]["form"] = form
            await self._app(scope, receive, send)
        finally:
            self._forms.remove(incoming)

    async def _read_form(
        self, headers: Headers, receive: Receive, incoming: _Incoming
    ) -> Form | str:
        """A form; or why it is not taken."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return "a form is application/x-www-form-urlencoded"
        while not incoming.is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return "the connection was closed"
            incoming.take(message.get("body", b""))
            if incoming.size > incoming.size_max:
                return f"the form has more than {incoming.size_max} bytes"
            self._make_room()
            if incoming.is_given_up:
                return f"the forms of all browsers have more than {FORMS_SIZE_MAX} bytes"
            incoming.is_whole = not message.get("more_body", False)
        form = Form()
        if not incoming.data.isascii() or incoming.data.count(b"&") >= FORM_FIELDS_MAX:
            return f"no form, or one of more than {FORM_FIELDS_MAX} fields"
        for _ in _parse_form(incoming.data, form):
            await asyncio.sleep(0)
        incoming.data.clear()
        return form

    def _make_room(self) -> None:
        """Give up the longest forms that are not whole yet, where all together are too long."""
        size = sum(each.size for each in self._forms)
        while size > FORMS_SIZE_MAX:
            longest = max(
                (each for each in self._forms if not each.is_whole), key=attrgetter("size")
            )
            size -= longest.size
            longest.give_up()

    def cookie(self, identifier: str) -> str:
        """The Set-Cookie of a session."""
        secure = "; Secure" if self._config.is_tls else ""
        return f"{COOKIE}={identifier}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _session(self, identifier: str | None) -> Session | None:
        if self._sessions.wants_login:
            return self._sessions.find(identifier)
        return self._sessions.anonymous(identifier)

    def _is_host_allowed(self, headers: Headers) -> bool:
        values = headers.getlist("host")
        if len(values) != 1:
            return False
        try:
            name = urlsplit(f"//{values[0]}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self._config.host_names:
            return True
        try:
            # No name server can make an address mean another machine.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _page(title: str, text: str, status: int, head: str = "") -> Response:
    """A page of its own, with markup in ``text`` and ``head``."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f'<title>{title} · Oberth</title><link rel="stylesheet" href="/static/console.css"></head>'
        f'<body><main id="main"><h1>{title}</h1><p>{text}</p></main></body></html>',
        status,
    )


def _go_on(scope: Scope) -> Response:
    """A page that leads to the same address: from it the browser sends the cookie that it has."""
    target = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    address = escape(f"{target}?{query}" if query else target)
    again = f'<meta http-equiv="refresh" content="0; url={address}">'
    return _page("Oberth", f'<a href="{address}">Go on</a>', 200, again)


def _log_in_first(scope: Scope, headers: Headers) -> Response:
    """What one who is not logged in is shown instead of a page."""
    if scope["method"] == "GET" and headers.get("x-requested-with") is None:
        query = scope["query_string"].decode("latin-1")
        target = scope["path"] + f"?{query}".rstrip("?")
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
    text = 'Nothing was done. <a href="/login">Log in</a>, and do it again.'
    return _page("You are not logged in any more", text, 401)


def _is_link_of_another_site(scope: Scope, headers: Headers) -> bool:
    """Whether a browser left out the cookie that it may have, since another site links here.

    A new cookie in the answer would take the place of that one, and end what other tabs show.
    """
    return (
        scope["method"] == "GET"
        and headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") == "navigate"
        and not scope["raw_path"].startswith((b"//", b"/\\"))
    )


def _cookie(headers: Headers) -> str | None:
    for text in headers.getlist("cookie"):
        found = _COOKIE.search(text)
        if found is not None:
            return found[1]
    return None


def _is_same_origin(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return True  # no browser of today; the token decides
    try:
        return urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False


def _parse_form(data: bytearray, form: Form) -> Generator[None, None, None]:
    """Put the fields of a form into it, in slices."""
    done = 0
    for piece in data.split(b"&"):
        if not piece:
            continue
        texts = []
        for part in piece.partition(b"=")[::2]:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text, at = [], 0
            while at < len(part):
                end = at + FORM_SLICE
                cut = part.rfind(b"%", end - 2, end)
                if cut > at and end < len(part):
                    end = cut  # not inside of %41
                slice_ = bytes(part[at:end]).replace(b"+", b" ")
                text.append(decoder.decode(unquote_to_bytes(slice_)))
                done += end - at
                at = end
                if done >= FORM_SLICE:
                    done = 0
                    yield
            text.append(decoder.decode(b"", True))
            texts.append("".join(text))
        name, value = texts
        form.fields[name] = value
        form.lists.setdefault(name, []).append(value)
