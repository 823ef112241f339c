"""Console: the cluster, the sessions and the templates, which all pages of a console share.

Everything a page shows was asked through `Admin`; what an answer holds goes through the templates,
which escape it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.config import ClientConfig
from oberth.console import texts
from oberth.console.audit import AuditLog
from oberth.console.cluster import Cluster
from oberth.console.config import ConsoleConfig
from oberth.console.prometheus import Prometheus
from oberth.console.schemas import PastedSchemas, Schemas
from oberth.console.security import Form, Session, Sessions
from oberth.console.silence import PatientAdmin, Silence
from oberth.console.sql import SqlRunner
from oberth.console.writes import Confirmations, Outcome, Plan

HERE: Final = Path(__file__).parent
WHOLE_BODIES_MAX: Final = 2
"""Bodies that are unpacked at the same time; one may take 64 MiB."""

FIRST_PAGE: Final = ("base.html", "parts.html", "overview.html", "error.html")
"""The templates of "/" and of what may be wrong there."""

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/letters", "Dead letters"),
    ("/waiting", "Timers and transactions"),
    ("/sql", "SQL"),
    ("/access", "Access"),
    ("/settings", "Settings"),
)


class Console:
    """One console.

    Lifecycle: ``async with``, on the loop that serves.

    Args:
        config: how it is served.
        now_s: the time.

    Attributes:
        cluster: the last look at the cluster.
        admin: asks as the console itself.
        silence: brokers that did not answer lately, whoever asked.
        sessions: of browsers.
        audit: where writes are noted; None: there are none.
        sql: asks stores of this machine.
        schemas: of bodies.
        pasted: those that browsers have pasted.
        whole_bodies: bodies that are unpacked at the same time.
        prometheus: knows more than the last hour; None: no server was named.

    Raises:
        OptionError: the configuration would leave it open to everybody.
        OSError: the audit log cannot be written.
    """

    def __init__(self, config: ConsoleConfig, *, now_s: Callable[[], float] = time.time) -> None:
        config.check()
        self.config = config
        self.now_s = now_s
        self.silence = Silence()
        self.admin = PatientAdmin(config.client, self.silence)
        self.cluster = Cluster(self.admin, config.sample_interval_s, now_s=now_s)
        self.sessions = Sessions(config)
        self.audit = AuditLog(config.audit_path) if config.allow_writes else None
        self.confirmations = Confirmations(self.sessions.sign)
        self.sql = SqlRunner(config.stores)
        self.schemas = Schemas(config.schemas)
        self.pasted = PastedSchemas()
        self.whole_bodies = asyncio.Semaphore(WHOLE_BODIES_MAX)
        self.prometheus = (
            Prometheus(config.prometheus, config.prometheus_token) if config.prometheus else None
        )
        self._templates = _environment()
        self._preparing = asyncio.Lock()
        self._is_prepared = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.admin)
        await self._stack.enter_async_context(self.cluster)
        await self._stack.enter_async_context(self.sql)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for admin in self.sessions.admins():
            await admin.shutdown()
        await self._stack.aclose()

    async def prepare(self, path: str = "") -> None:
        """Compile the templates that a request may need, beside the loop: once for a process.

        All of them take 0.3 s of the processor, those of the first page less than 0.1 s. So the
        first page does not wait for the others.

        Args:
            path: of the request; "/" is the first page.
        """
        if self._is_prepared or path.startswith("/static/"):
            return
        async with self._preparing:
            if path == "/":
                await asyncio.to_thread(_compile, self._templates, FIRST_PAGE)
            elif not self._is_prepared:
                await asyncio.to_thread(_compile, self._templates, self._templates.list_templates())
                self._is_prepared = True

    def now_ms(self) -> int:
        """The time."""
        return round(self.now_s() * 1000)

    def admin_of(self, request: Request) -> Admin:
        """Asks as the user of the session, where there is one."""
        session: Session = request.state.session
        return session.admin or self.admin

    def client_config_of(self, session: Session) -> ClientConfig:
        """Connects as the user of a session, where there is one."""
        return session.admin.config if session.admin is not None else self.config.client

    def render(
        self,
        request: Request,
        template: str,
        status: int = 200,
        *,
        silent: Silent | None = None,
        **values: Any,
    ) -> Response:
        """A page.

        Args:
            request: that it answers.
            template: its file.
            status: of the answer.
            silent: brokers that did not answer this page, by name; it says so, and the same of
                those that did not answer the last look.
            **values: of the template.
        """
        session: Session = request.state.session
        text = self._templates.get_template(template).render(
            request_path=request.url.path,
            navigation=self._navigation(),
            csrf=session.csrf,
            user=session.user,
            can_log_out=bool(session.used_s),
            allow_writes=self.config.allow_writes,
            now_ms=self.now_ms(),
            cluster_error=self.cluster.error,
            silent_brokers=sorted({**self.cluster.silent(), **_texts_of(silent)}.items()),
            **values,
        )
        # Half a character of a text that somebody else chose is no reason to show nothing.
        return HTMLResponse(text.encode("utf-8", "replace"), status)

    def _navigation(self) -> list[tuple[str, str]]:
        found = list(NAVIGATION)
        if self.audit is not None:
            found.append(("/audit", "Audit log"))
        return found


def _texts_of(silent: Silent | None) -> dict[str, str]:
    return {name: str(error) for name, error in (silent or {}).items()}


Page = Callable[[Console, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Asker:
    """The session that wants something changed, and the connection that changes it.

    Attributes:
        admin: signs as the session's user.
    """

    console: Console
    session: Session
    admin: Admin


@dataclass(frozen=True, slots=True)
class Write:
    """A kind of write.

    Attributes:
        plan: says what it would do, and does nothing.
        apply: does it.
    """

    plan: Callable[[Asker, Form], Awaitable[Plan]]
    apply: Callable[[Asker, Form, Plan], Awaitable[Outcome]]


def _compile(templates: jinja2.Environment, names: Iterable[str]) -> None:
    for name in names:
        templates.get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "shown": texts.shown,
        "seen": texts.seen,
        "plain": texts.plain,
        "time": texts.time_tag,
        "number": texts.number,
        "rate": texts.rate,
        "size": texts.size,
        "percent": texts.percent,
        "duration": texts.duration,
        "permission": texts.permission,
    }
    made.filters.update(filters)
    made.globals["href"] = texts.href
    return made
