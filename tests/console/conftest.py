"""A console over a broker in the same process, asked as a browser would, without a socket."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oberth.client.config import ClientConfig
from oberth.console.app import App
from oberth.console.config import ConsoleConfig
from oberth.console.console import Console
from oberth.testing import blocking
from oberth.testing.embedded_broker import EmbeddedBroker

PATIENCE_MS = 100_000
"""Of requests: a busy machine is no finding."""


class Browser:
    """Loads pages and sends their forms."""

    def __init__(self, console: Console, base: str = "http://127.0.0.1:8082") -> None:
        self.console = console
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(App(console)), base_url=base, timeout=PATIENCE_MS / 1000
        )

    async def get(self, path: str, status: int = 200, **parameters: Any) -> str:
        self.console.cluster.forget()  # what a test did a moment ago is to be seen
        answer = await self.http.get(path, params=parameters or None)
        assert answer.status_code == status, answer.text
        return answer.text

    async def post(
        self, path: str, fields: dict[str, Any], status: int = 200, **headers: str
    ) -> str:
        """Sends a form as a page of the console would."""
        if "csrf" not in fields:
            page = await self.http.get("/login")  # gives a cookie, even where there is no login
            fields = {**fields, "csrf": hidden(page.text, "csrf") or self.csrf()}
        answer = await self.http.post(path, data=fields, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.text

    def csrf(self) -> str:
        """The token of forms where there is no login."""
        cookie = self.http.cookies.get("oberth_console")
        return self.console.sessions.anonymous(cookie).csrf

    async def write(self, name: str, fields: dict[str, Any], status: int = 200) -> str:
        """Sends a form, looks at what it would do, and confirms it; the page that tells."""
        preview = await self.post(f"/write/{name}", fields)
        assert "Nothing has been done yet" in preview
        return await self.post(f"/write/{name}", confirmed(preview), status)


def hidden(page: str, name: str) -> str:
    """The value of a hidden field; "" if there is none."""
    found = re.search(f'name="{name}" value="([^"]*)"', page)
    return html.unescape(found[1]) if found else ""


def confirmed(preview: str) -> dict[str, Any]:
    """The fields of the form that confirms."""
    form = preview[preview.index('class="confirm"') :]
    made: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form):
        made.setdefault(html.unescape(name), []).append(html.unescape(value))
    return made


@asynccontextmanager
async def a_console(
    broker: EmbeddedBroker | blocking.EmbeddedBroker, *, has_looked: bool = True, **settings: Any
) -> AsyncIterator[Browser]:
    """A console of a broker, without its own looks at the cluster behind the first one."""
    config = ConsoleConfig(
        client=ClientConfig(namesrv_addr=broker.namesrv_addr, connect_timeout_ms=PATIENCE_MS),
        sample_interval_s=3600,
        **settings,
    )
    async with Console(config) as console:
        console.admin._timeout_s = PATIENCE_MS / 1000
        browser = Browser(console)
        await console.prepare()  # a first request would leave its turn to looks at the cluster
        if has_looked:
            await console.cluster.look()
        async with browser.http:
            yield browser


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as made:
        yield made


@pytest.fixture
async def bare() -> AsyncIterator[Browser]:
    """Of a console without a cluster: what is refused before anybody is asked."""
    made = Browser(Console(ConsoleConfig(client=ClientConfig(namesrv_addr="127.0.0.1:1"))))
    async with made.http:
        yield made


@pytest.fixture
async def reader(broker: EmbeddedBroker) -> AsyncIterator[Browser]:
    """Of a console that only reads."""
    async with a_console(broker) as browser:
        yield browser


@pytest.fixture
async def writer(broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[Browser]:
    """Of a console that writes."""
    audit = str(tmp_path / "audit.jsonl")
    async with a_console(broker, allow_writes=True, audit_path=audit) as browser:
        yield browser
