"""App: routes, errors, logins and writes of a console, as an ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from oberth.client.admin import Admin
from oberth.client.messages import MESSAGE_ILLEGAL
from oberth.console.audit import lines_of
from oberth.console.config import Login
from oberth.console.console import HERE, Asker, Console, Page, Write
from oberth.console.pages import (
    access,
    groups,
    letters,
    messages,
    overview,
    settings,
    sql,
    topics,
    waiting,
)
from oberth.console.security import Form, Guard, Session, who_tries
from oberth.console.silence import PatientAdmin
from oberth.console.writes import CONFIRM, Outcome, Plan, audit_fields, shown_fields
from oberth.errors import (
    FormatError,
    IllegalNameError,
    MQBrokerError,
    MQClientError,
    OberthError,
    OptionError,
)
from oberth.remoting.code import ResponseCode

_LOG: Final = logging.getLogger(__name__)

PAGES: Final = (overview, topics, messages, groups, letters, waiting, access, settings, sql)
BOGUS_USER: Final = "oberth-console-probe"
"""Whom brokers must refuse before a login by their users is worth anything."""

ACL_EXCEPTION: Final = "AclException"
"""What 4.x names beside SYSTEM_ERROR when it refuses who asks; others answer NO_PERMISSION."""

NO_SUCH: Final = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_MESSAGE,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.CONSUMER_NOT_ONLINE,
)


class App:
    """The pages of a console, behind its guard: an ASGI application.

    Args:
        console: it must be entered before the first request.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.config = console.config
        self.sessions = console.sessions
        self._writes: dict[str, Write] = {}
        self._guard = self._made()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await self.console.prepare(scope["path"])
        await self._guard(scope, receive, send)

    def _made(self) -> Guard:
        routes: list[Any] = [
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/audit", self._audit_page),
            Route("/write/{name}", self._write, methods=["POST"]),
        ]
        for module in PAGES:
            for path, page in module.ROUTES.items():
                routes.append(Route(path, partial(self._page, page)))
            self._writes |= getattr(module, "WRITES", {})
            for path, page in getattr(module, "POSTS", {}).items():
                routes.append(Route(path, partial(self._page, page), methods=["POST"]))
        app = Starlette(
            routes=routes,
            exception_handlers={
                OberthError: self._failed,
                HTTPException: self._failed,
                Exception: self._broken,
            },
        )
        return Guard(app, self.sessions, self._admits)

    async def _page(self, page: Page, request: Request) -> Response:
        return await page(self.console, request)

    # Errors

    async def _failed(self, request: Request, error: Exception) -> Response:
        status, title, text = 502, "The cluster did not answer as it should", str(error)
        if isinstance(error, HTTPException):
            status, title, text = error.status_code, "There is no such page", ""
        elif isinstance(error, OptionError | FormatError | IllegalNameError) or (
            isinstance(error, MQClientError) and error.response_code == MESSAGE_ILLEGAL
        ):
            status, title = 400, "That cannot be done"
        elif isinstance(error, MQBrokerError) and error.response_code in NO_SUCH:
            status, title = 404, "There is no such thing"
        elif isinstance(error, MQBrokerError) and _is_refusal(error):
            status, title = 403, "The broker does not allow that"
        return self.console.render(request, "error.html", status, title=title, text=text)

    async def _broken(self, request: Request, error: Exception) -> Response:
        _LOG.error("the page %s could not be made", request.url.path, exc_info=error)
        return self.console.render(
            request, "error.html", 500, title="The console failed", text=type(error).__name__
        )

    # Login

    async def _login_page(self, request: Request) -> Response:
        session: Session = request.state.session
        if not self.sessions.wants_login or session.used_s:
            return RedirectResponse(_own_path(request.query_params.get("next", "/")), 303)
        return self._show_login(request, 200, "")

    def _show_login(self, request: Request, status: int, problem: str) -> Response:
        form: Form | None = getattr(request.state, "form", None)
        query = request.query_params if form is None else form.fields
        return self.console.render(
            request,
            "login.html",
            status,
            by_users=self.config.login is Login.USERS,
            target=_own_path(query.get("next", "/")),
            problem=problem,
        )

    async def _login(self, request: Request) -> Response:
        host = request.client.host if request.client else ""
        peer = who_tries(host)
        form: Form = request.state.form
        session: Session = request.state.session
        if not self.sessions.wants_login or session.used_s:
            return RedirectResponse(_own_path(form.fields.get("next", "/")), 303)
        if not self.sessions.may_try(peer):
            return self._show_login(request, 429, "Too many attempts; wait a minute.")
        tried_s = self.sessions.note_try(peer)
        user, admin, problem = "", None, ""
        if self.config.login is Login.TOKEN:
            given = form.fields.get("token", "")
            if not _equal(given, self.config.token):
                problem = "That is not the token."
            user = "token"
        else:
            user = form.fields.get("user", "").strip()
            admin, problem = await self._user(user, form.fields.get("password", ""))
        if problem:
            _LOG.warning("login from %s failed", host)
            return self._show_login(request, 403, problem)
        self.sessions.forgive(peer, tried_s)
        begun, over = self.sessions.begin(user, admin)
        for each in over:
            await each.shutdown()
        response = RedirectResponse(_own_path(form.fields.get("next", "/")), 303)
        response.headers.append("set-cookie", self._guard.cookie(begun.identifier))
        return response

    async def _user(self, user: str, password: str) -> tuple[Admin | None, str]:
        """The connection of a user of the brokers, or what to say.

        Every master that answers must know the user, and refuse one that cannot exist: brokers
        that check nobody would let everybody in. So would one that checks no signature of this
        user, as where the console has the white address of an account: it must refuse the user
        with another secret. One that hangs keeps nobody out, and lets nobody in.
        """
        if not user or not password:
            return None, "Both name and password are needed."
        masters = list((await self.console.admin.masters()).values())
        if not masters:
            return None, "No broker is there to check the user."
        bogus, unsigned = await asyncio.gather(
            self._ask_with_any_secret(BOGUS_USER, masters),
            self._ask_with_any_secret(user, masters),
        )
        if any(bogus):
            return None, "A broker checks no users: a login by users would let everybody in."
        if any(unsigned):
            return None, (
                "A broker checks no signature of this user from here: any password would do."
            )
        config = replace(self.config.client, access_key=user, secret_key=password)
        admin = PatientAdmin(config, self.console.silence)
        await admin.start()
        answers = await _ask_each(admin, masters)
        # That a broker lets the user in says nothing if it did not answer about another secret.
        told = [
            answer
            for answer, other in zip(answers, unsigned, strict=True)
            if answer is not None and not (answer and other is None)
        ]
        if not told:
            await admin.shutdown()
            return None, "No broker answers that could check the user."
        if not all(told):
            await admin.shutdown()
            return None, "The brokers do not know this user, or do not let it see the cluster."
        return admin, ""

    async def _ask_with_any_secret(self, user: str, masters: list[str]) -> list[bool | None]:
        """Which masters let somebody see them who has a user's name alone; None: no answer."""
        config = replace(self.config.client, access_key=user, secret_key=secrets.token_urlsafe())
        async with PatientAdmin(config, self.console.silence) as stranger:
            return await _ask_each(stranger, masters)

    async def _admits(self, session: Session) -> bool:
        """Whether the brokers still know the user of a session, and check it; else it ends.

        Overview and lists are what the console was told, so no broker refuses them to a user.
        """
        assert session.admin is not None
        try:
            masters = list((await self.console.admin.masters()).values())
        except OberthError:
            return True  # nobody can be asked
        answers, unsigned = await asyncio.gather(
            _ask_each(session.admin, masters), self._ask_with_any_secret(session.user, masters)
        )
        if False in answers:
            why = "refuses the user"
        elif True in unsigned:
            why = "checks no signature of the user"
        else:
            return True
        _LOG.warning("the session of user %s ends: a broker %s", session.user, why)
        await self._end(session)
        return False

    async def _end(self, session: Session) -> None:
        self.sessions.end(session)
        self.console.pasted.forget(session.identifier)
        if session.admin is not None:
            await session.admin.shutdown()

    async def _logout(self, request: Request) -> Response:
        await self._end(request.state.session)
        return RedirectResponse("/login", 303)

    # Writes

    async def _write(self, request: Request) -> Response:
        name = request.path_params["name"]
        write = self._writes.get(name)
        if write is None:
            raise HTTPException(404)
        if self.console.audit is None:
            raise OptionError(
                "this console only reads; start it with --allow-writes to change something"
            )
        form: Form = request.state.form
        session: Session = request.state.session
        asker = Asker(self.console, session, self.console.admin_of(request))
        plan = await write.plan(asker, form)
        word = form.fields.get(CONFIRM)
        if word is None or not self.console.confirmations.check(word, session, name, form, plan):
            return self._preview(request, name, form, plan, again=word is not None)
        try:
            identifier = self.console.audit.begin(
                self.console.now_ms(),
                user=session.user,
                peer=request.client.host if request.client else "",
                write=name,
                fields=audit_fields(form),
                changes=plan.changes,
            )
        except OSError as error:
            self.console.confirmations.take_back(word)
            path = self.console.audit.path
            raise OptionError(
                f"nothing was done: the audit log {path} cannot be written: {error.strerror}"
            ) from error
        try:
            outcome = await write.apply(asker, form, plan)
        except Exception as error:
            self._note_end(identifier, "failed", f"{type(error).__name__}: {error}")
            if not isinstance(error, OberthError):
                raise
            outcome = Outcome(f"It failed: {error}", is_done=False)
        else:
            self._note_end(identifier, "done" if outcome.is_done else "failed", outcome.text)
        self.console.cluster.forget()
        return self.console.render(
            request, "outcome.html", 200 if outcome.is_done else 502, plan=plan, outcome=outcome
        )

    def _note_end(self, identifier: str, outcome: str, text: str) -> None:
        """Notes how a write went; it went so, even if that cannot be noted."""
        audit = self.console.audit
        assert audit is not None
        try:
            audit.end(self.console.now_ms(), identifier, outcome=outcome, text=text)
        except OSError as error:
            _LOG.error(
                "%s lacks the end of %s, %s: %s (%s)", audit.path, identifier, outcome, text, error
            )

    def _preview(
        self, request: Request, name: str, form: Form, plan: Plan, *, again: bool
    ) -> Response:
        session: Session = request.state.session
        return self.console.render(
            request,
            "preview.html",
            name=name,
            plan=plan,
            fields=shown_fields(form),
            confirm=self.console.confirmations.make(session, name, form, plan),
            again=again,
        )

    async def _audit_page(self, request: Request) -> Response:
        if self.console.audit is None:
            raise HTTPException(404)
        lines = await asyncio.to_thread(self.console.audit.tail)
        session: Session = request.state.session
        only_own = session.admin is not None and not await self._administers(session.admin)
        if only_own:
            lines = lines_of(lines, session.user)
        return self.console.render(
            request,
            "audit.html",
            lines=lines,
            path=self.console.audit.path,
            only_own=only_own,
        )

    async def _administers(self, admin: Admin) -> bool:
        """Whether the brokers show their users to a user: so an administrator."""
        try:
            masters = (await self.console.admin.masters()).values()
            for address in masters:
                await admin.users(address, "")
        except OberthError:
            return False
        return bool(masters)


async def _ask_each(admin: Admin, masters: list[str]) -> list[bool | None]:
    """What each master answers, see `_may_look`."""
    return await asyncio.gather(*(_may_look(admin, each) for each in masters))


async def _may_look(admin: Admin, address: str) -> bool | None:
    """Whether a broker lets this user see it; None: it gives no answer that says so.

    One that is busy, starts or goes away has decided nothing about who asks.
    """
    try:
        await admin.broker_runtime_info(address)
    except MQBrokerError as error:
        return False if _is_refusal(error) else None
    except OberthError:
        return None
    return True


def _is_refusal(error: MQBrokerError) -> bool:
    """Whether a broker's access control refuses who asks, whatever else it may be."""
    code = error.response_code
    return code == ResponseCode.NO_PERMISSION or (
        code == ResponseCode.SYSTEM_ERROR and ACL_EXCEPTION in str(error)
    )


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _own_path(target: str) -> str:
    """A path of this console, or the first page: never another site."""
    is_own = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isprintable() else "/"
