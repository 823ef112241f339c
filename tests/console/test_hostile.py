"""Every page and form, where everything that others choose is as hostile as it can be."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow
import pyarrow.parquet
import pytest
from tests.console.conftest import Browser, a_console, confirmed
from tests.rigs.hostile_answers import EVIL, TOLD, WORD, HostileAnswers, Page, filled

from oberth.console.app import PAGES
from oberth.console.config import Login
from oberth.remoting.code import RequestCode
from oberth.testing.blocking import EmbeddedBroker

UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
FIGURES: Final = ["nan", "inf", "-1e999", "9" * 5000, "\u00b2", "1,\u00b2", "-", "", EVIL]

PLACE: Final = {"topic": "Orders", "queue": "broker-a:0"}
ALL: Final = {"q": EVIL, "sort": EVIL, "system": "1", "page": EVIL, "span": EVIL}
CASES: Final[dict[str, list[dict[str, Any]]]] = {
    "/": [{}, {"span": EVIL}],
    "/broker": [{"address": "BROKER"}, {"address": EVIL}],
    "/topics": [{"system": "1"}, ALL],
    "/topic": [{"name": "Orders"}, {"name": EVIL}, {"name": f"%RETRY%{EVIL}"}],
    "/messages": [
        {"topic": "Orders"},
        {"topic": "Orders", "body": EVIL, "tag": EVIL, "follow": "1"},
        *(
            {"topic": "Orders", name: EVIL}
            for name in ("id", "key", "at", "queue", "offset", "sql", "cursor", "order")
        ),
        {"topic": EVIL},
    ],
    "/message": [
        *({**PLACE, "offset": "1", "view": view} for view in ("auto", "text", "json", "hex")),
        {**PLACE, "offset": "0"},
        {**PLACE, "offset": "1", "schema": EVIL},
        {**PLACE, "offset": "1", "schema": f"pasted: {EVIL}"},
        *({**PLACE, "offset": "1", name: EVIL} for name in ("topic", "queue", "offset", "view")),
    ],
    "/body": [{**PLACE, "offset": EVIL}],
    "/groups": [{"system": "1"}, ALL],
    "/group": [{"name": "readers"}, {"name": WORD}, {"name": EVIL}],
    "/stack": [{"name": "readers", "client": "CLIENT"}, {"name": "readers", "client": EVIL}],
    "/letters": [{}, {"group": "readers"}, {"group": "readers", "cursor": EVIL}, {"group": EVIL}],
    "/waiting": [{}],
    "/access": [{}, {"q": EVIL}],
    "/settings": [{"all": "1"}, {"q": EVIL}, {"address": EVIL}],
    "/sql": [{}, {"page": EVIL}],
    "/sql/result.csv": [{}],
    "/sql/result.parquet": [{}],
    "/audit": [{}],
    "/login": [{"next": EVIL}],
    "/nowhere" + EVIL: [{}],
}
"""By page what is asked of it. BROKER is the broker's address, CLIENT the member's id."""

ROUTES_OF_FILES: Final = ("/body", "/sql/result.csv", "/sql/result.parquet")
"""Those that are no pages."""

FORMS: Final[dict[str, dict[str, Any]]] = {
    "topic.create": {"name": "Fresh"},
    "topic.change": {"name": "Orders", "perm": "r"},
    "topic.delete": {"name": WORD},
    "topic.purge": {"name": WORD, "before": "2100-01-01", "force": "1"},
    "message.send": {
        "topic": "Orders", "body": EVIL, "tags": EVIL, "keys": EVIL,
        "properties": "name=" + EVIL.replace("\r", ""),
    },
    "message.again": {**PLACE, "offset": "1", "to": "Orders"},
    "message.consume": {**PLACE, "offset": "1", "group": "readers"},
    "group.save": {"name": WORD, "retries": "3"},
    "group.delete": {"name": "readers"},
    "group.reset": {"group": WORD, "topic": WORD, "to": "latest"},
    "letters.redrive": {"group": "readers", "letter": ["broker-a:0:0"]},
    "user.save": {"user": WORD, "password": "another"},
    "user.delete": {"user": "anna"},
    "policy.save": {"user": WORD, "resource": f"Topic:{EVIL}", "action": "Pub", "sources": EVIL},
    "policy.delete": {"user": WORD, "resource": f"Topic:{WORD}"},
    "setting.set": {"address": "BROKER", "key": "brokerIP2", "value": EVIL},
}  # fmt: skip
"""By write a form that is shown as a preview."""

POSTS: Final[dict[str, list[dict[str, Any]]]] = {
    "/message/schema": [
        {**PLACE, "offset": "1", "kind": kind, "schema": EVIL} for kind in ("avro", "proto", EVIL)
    ],
    "/sql/start": [{"statement": EVIL}, {"statement": EVIL * 10_000}],
    "/sql/cancel": [{"job": EVIL}],
}
"""By path the forms that show no preview."""

ASKED: Final = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.PULL_MESSAGE,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_LIST_ACL,
)
"""Codes of requests that pages make."""

SOURCES: Final = Path(__file__).parents[2] / "src" / "oberth" / "console"
ATTRIBUTES: Final = {
    "required", "selected", "checked", "autofocus", "download", "data-back",
    *(
        name.lower()
        for folder in ("templates", ".")
        for each in (SOURCES / folder).glob("*.*")
        for name in re.findall(r'([a-zA-Z0-9-]+)="', each.read_text("utf-8"))
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"diskMaxUsedSpaceRatio": "95"}) as made, filled(made):
        yield made


@pytest.fixture
def lies(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> HostileAnswers:
    return HostileAnswers(monkeypatch)


@pytest.fixture
async def browser(
    broker: EmbeddedBroker, lies: HostileAnswers, tmp_path: Path
) -> AsyncIterator[Browser]:
    audit = str(tmp_path / "audit.jsonl")
    stores = (str(broker.store_dir),)
    async with a_console(broker, allow_writes=True, audit_path=audit, stores=stores) as made:
        yield made


def check(text: str) -> Page:
    """A page whose markup is its own."""
    assert len(text) < 1 << 20
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("h1") == 1
    for tag, name, value in page.attributes:
        assert name in ATTRIBUTES, (tag, name, value)
        if name in ("href", "action", "src"):
            assert re.match("[/#](?![/\\\\])", value), (tag, name, value)
        if tag == "script":
            assert (name, value) in (("src", "/static/console.js"), ("type", "module"))
    found = UNSEEN.search(page.text)
    assert found is None, ascii(page.text[max(found.start() - 40, 0) :][:80])
    return page


def known(broker: EmbeddedBroker, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters with what only the broker knows."""
    words = {"BROKER": broker.address, "CLIENT": f"10.0.0.1@{EVIL}"}
    return {name: words.get(str(value), value) for name, value in values.items()}


def test_every_page_and_every_form_is_here() -> None:
    routes = {path for module in PAGES for path in module.ROUTES}
    assert routes | {"/audit", "/login"} == {path for path in CASES if "/nowhere" not in path}
    assert FORMS.keys() == {name for module in PAGES for name in getattr(module, "WRITES", {})}
    assert POSTS.keys() == {path for module in PAGES for path in getattr(module, "POSTS", {})}


@pytest.mark.parametrize("path", CASES)
async def test_pages(browser: Browser, broker: EmbeddedBroker, path: str) -> None:
    for values in CASES[path]:
        answer = await browser.http.get(quote(path), params=known(broker, values))
        assert answer.status_code in (200, 303, 400, 404, 502), (values, answer.text)
        if answer.headers.get("content-type", "").startswith("text/html"):
            check(answer.text)


@pytest.mark.parametrize("name", FORMS)
async def test_forms(browser: Browser, broker: EmbeddedBroker, name: str) -> None:
    fields = known(broker, FORMS[name])
    preview = await browser.post(f"/write/{name}", fields)
    page = check(preview)
    assert "Nothing has been done yet" in page.text
    if not name.endswith((".delete", ".purge")):
        form = {**confirmed(preview), "csrf": browser.csrf()}
        outcome = await browser.http.post(f"/write/{name}", data=form)
        assert outcome.status_code in (200, 502)
        assert "Nothing has been done yet" not in check(outcome.text).text
        check(await browser.get("/audit"))
    for field in fields:
        refused = await browser.http.post(
            f"/write/{name}", data={**fields, field: EVIL, "csrf": browser.csrf()}
        )
        assert refused.status_code in (200, 400, 404, 502)
        check(refused.text)


@pytest.mark.parametrize("path", POSTS)
async def test_forms_without_a_preview(browser: Browser, path: str) -> None:
    for fields in POSTS[path]:
        await browser.http.get("/")  # gives a cookie
        answer = await browser.http.post(path, data={**fields, "csrf": browser.csrf()})
        assert answer.status_code in (200, 303, 400, 404), answer.text
        if answer.status_code == 303:
            assert re.match(r"/(?![/\\])", answer.headers["location"])
            answer = await browser.http.get(answer.headers["location"])
        check(answer.text)


@pytest.mark.parametrize("way", [Login.USERS, Login.TOKEN])
async def test_logins(broker: EmbeddedBroker, lies: HostileAnswers, way: Login) -> None:
    async with a_console(broker, login=way, token="a-token-of-some-length") as made:
        check(await made.get("/login", next=EVIL))
        fields = {"user": EVIL, "password": EVIL, "token": EVIL, "next": EVIL}
        check(await made.post("/login", fields, 403))


@pytest.fixture(scope="module")
def named() -> Iterator[EmbeddedBroker]:
    """A broker whose name, and that of its cluster, become hostile."""
    named = {"brokerName": f"{WORD}-a", "brokerClusterName": f"{WORD}-c"}
    with EmbeddedBroker({"diskMaxUsedSpaceRatio": "95", **named}) as made, filled(made):
        yield made


@pytest.mark.parametrize("path", CASES)
async def test_names_of_brokers_and_clusters(
    named: EmbeddedBroker, lies: HostileAnswers, tmp_path: Path, path: str
) -> None:
    audit = str(tmp_path / "audit.jsonl")
    async with a_console(named, allow_writes=True, audit_path=audit) as made:
        for values in CASES[path]:
            words = {"broker-a:0": f"{TOLD}-a:0", "BROKER": named.address}
            asked = {name: words.get(str(value), value) for name, value in values.items()}
            answer = await made.http.get(quote(path), params=asked)
            assert answer.status_code in (200, 303, 400, 404, 502), (values, answer.text)
            if answer.headers.get("content-type", "").startswith("text/html"):
                page = check(answer.text)
                assert path != "/" or f"{WORD}\"'><img" in page.text


@pytest.mark.parametrize("figure", FIGURES, ids=range(len(FIGURES)))
async def test_figures(
    browser: Browser, broker: EmbeddedBroker, lies: HostileAnswers, figure: str
) -> None:
    lies.figure = figure
    for path in ("/", "/broker", "/topics", "/groups", "/waiting", "/settings"):
        page = check(await browser.get(path, **known(broker, CASES[path][0])))
        assert " nan" not in page.text.lower()


@pytest.mark.parametrize("code", ASKED)
async def test_errors(browser: Browser, broker: EmbeddedBroker, code: RequestCode) -> None:
    fault = broker.faults.refuse([code], times=sys.maxsize, response_code=1, remark=EVIL * 50)
    try:
        for path, cases in CASES.items():
            if path not in ("/body", "/audit", "/login") and not path.startswith("/sql"):
                browser.console.cluster.forget()
                answer = await browser.http.get(quote(path), params=known(broker, cases[0]))
                assert answer.status_code in (200, 404, 502)
                check(answer.text)
    finally:
        broker.faults.clear()
    assert fault.hits


async def test_rows_of_sql(browser: Browser) -> None:
    await browser.post("/sql/start", {"statement": f"select '{EVIL}'".replace("\0", "")}, 303)
    (job,) = browser.console.sql._jobs.values()
    await browser.console.sql.cancel(job)
    check(await browser.get("/sql"))
    table = pyarrow.table({EVIL: [EVIL] * 60, f"n{EVIL}": [float("nan"), float("inf"), *range(58)]})
    pyarrow.parquet.write_table(table, job.path)
    job.state = "done"
    page = check(await browser.get("/sql"))
    assert 'class="bar"' in await browser.get("/sql")
    assert "window.owned" in page.text
    job.state, job.text = "failed", EVIL
    check(await browser.get("/sql"))
