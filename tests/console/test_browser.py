"""The console in a real Chromium: every page with data, clicked, and checked by axe-core's rules.

The browser and its driver are programs of others, so `make interop` runs this. Skipped where there
is no Chromium with its ChromeDriver (Debian: chromium, chromium-driver). With
``OBERTH_SCREENSHOTS=1`` the pictures of the documents are made anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.rigs.browser import TIMEOUT_S, Window, needs_browser, opened

from oberth.client.blocking import Producer, PushConsumer
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, MessageExt
from oberth.remoting.code import RequestCode
from oberth.testing.blocking import EmbeddedBroker

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images"
TOKEN = "a-token-of-some-length"
EVIL = "<script>alert(1)</script>"

pytestmark = needs_browser


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """With orders, a group that is behind, dead letters, timers and a hostile message."""

    def fail(message: MessageExt) -> None:
        raise ValueError(message.body)

    with EmbeddedBroker() as made:
        config = ClientConfig(namesrv_addr=made.namesrv_addr, enable_trace=True)
        with (
            Producer("shop", config=config) as producer,
            PushConsumer(
                "mailer", {"Mails": "*"}, listener=fail, max_reconsume_times=0,
                config=made.client_config,
            ),
            PushConsumer("fulfilment", {"Orders": "*"}, listener=print_nothing, config=config),
        ):  # fmt: skip
            for number in range(60):
                topic = ("Orders", "Payments", "Invoices")[number % 3]
                body = {"order": number, "customer": f"c-{number % 7}", "total": number * 9.9}
                producer.send(
                    Message(
                        topic, json.dumps(body).encode(), tags="paid", keys=f"order-{number}",
                        properties={"region": "eu"},
                    )
                )  # fmt: skip
            for number in range(3):
                producer.send(Message("Mails", b'{"to": "someone"}', keys=f"mail-{number}"))
            producer.send(Message("Mails", b"later", keys="later", delay_ms=3_600_000))
            producer.send(
                Message("Evil", f"{EVIL}\u202e\x1b".encode(), keys=EVIL, tags=EVIL,
                        properties={EVIL: EVIL})
            )  # fmt: skip
            producer.send(Message("Long", b"{}", tags="T" * 200, keys="k" * 300))
            made.wait_until(lambda: len(made.dead_letters("mailer")) == 3, what="dead letters")
            made.wait_until(lambda: made.offsets("fulfilment", "Orders") != {}, what="offsets")
            yield made


def print_nothing(message: MessageExt) -> None:
    """A listener that is content."""


@pytest.fixture(scope="module")
def base(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a console of the broker that may write is."""
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    words = (
        "-n",
        broker.namesrv_addr,
        "--port",
        "0",
        "--allow-writes",
        "--interval",
        "0.5",
        "--store",
        str(broker.store_dir),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "oberth", "console", *words, "--audit-log", str(audit)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def window(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with opened(lambda: tmp_path_factory.mktemp("profile")) as made:
        made.base = base
        yield made


def pages(broker: EmbeddedBroker) -> list[str]:
    """Every page, with data."""
    evil = broker.messages("Evil")[0]
    order = broker.messages("Orders")[0]
    client = f"/stack?name=fulfilment&client={quote(member(broker), safe='')}"
    return [
        "/", f"/broker?address={broker.address}", "/topics", "/topics?system=1&q=o",
        "/topic?name=Orders", "/messages?topic=Orders", "/messages?topic=Orders&body=c-3",
        "/messages?topic=Orders&follow=1", "/messages?topic=Evil",
        f"/message?topic=Orders&queue=broker-a%3A{order.queue_id}&offset={order.queue_offset}",
        f"/message?topic=Evil&queue=broker-a%3A{evil.queue_id}&offset={evil.queue_offset}",
        "/groups", "/group?name=fulfilment", "/group?name=mailer", client, "/letters",
        "/letters?group=mailer", "/waiting", "/sql", "/access", "/settings", "/audit",
        "/nowhere",
        "/messages?topic=Orders&sql=%3E",
    ]  # fmt: skip


def member(broker: EmbeddedBroker) -> str:
    from oberth.client.blocking import Admin

    with Admin(config=broker.client_config) as admin:
        return admin.consumer_connection("fulfilment").connection_set[0].client_id


def test_every_page_is_accessible_and_asks_nobody_else(
    window: Window, broker: EmbeddedBroker
) -> None:
    window.requests()
    problems: dict[str, list[str]] = {}
    for path in pages(broker):
        window.open(path)
        complaints = window.complaints()
        if path == "/nowhere" or "sql=%3E" in path:
            complaints = [each for each in complaints if "status of 404" not in each]
        problems[path] = complaints + window.violations()
        assert window.run("return document.querySelectorAll('h1').length") == 1
    assert {path: found for path, found in problems.items() if found} == {}
    asked = window.requests()
    assert len(asked) > len(pages(broker))
    # data: is a picture of the browser's own, in its field for a date.
    own = (f"{window.base}/", "data:")
    assert [each for each in asked if not each.startswith(own)] == []


@pytest.mark.parametrize(
    ("scheme", "width", "part"), [("dark", 1280, 0), ("light", 380, 1), ("dark", 380, 2)]
)
def test_pages_hold_in_the_dark_and_where_it_is_narrow(
    window: Window, broker: EmbeddedBroker, scheme: str, width: int, part: int
) -> None:
    window.media(scheme, width, 900)
    try:
        problems: dict[str, Any] = {}
        for path in pages(broker)[part::3]:
            window.open(path)
            problems[path] = window.violations()
            wide = window.run("return document.documentElement.scrollWidth")
            if wide > width:
                problems[path].append(f"{wide} pixels wide")
        assert {path: found for path, found in problems.items() if found} == {}
    finally:
        window.media("light", 1280, 900)


def test_nothing_lies_over_something_else(window: Window, broker: EmbeddedBroker) -> None:
    script = """
        const box = (each) => each.getBoundingClientRect();
        const fields = [...document.querySelectorAll(".fields > *")];
        return {
            wide: fields.filter((each) => [...each.querySelectorAll("input, select")].some(
                (inner) => box(inner).right > box(each).right + 1)).map((each) => each.innerText),
            high: [...document.querySelectorAll("tbody tr")].map((each) => box(each).height),
        };
    """
    for path in ("/messages?topic=Long", "/topic?name=Orders", "/group?name=fulfilment"):
        window.open(path)
        window.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        found = window.run(script)
        assert found["wide"] == [], path
        if "Long" in path:
            assert [each for each in found["high"] if each > 60] == []


def test_the_keyboard_reaches_everything(window: Window) -> None:
    from selenium.webdriver.common.keys import Keys

    def has_focus(words: str) -> bool:
        return words in str(window.run("return document.activeElement.outerHTML"))

    window.open("/topics")
    window.keys(Keys.TAB)
    window.until(lambda: has_focus("Skip to the page"))
    window.keys(Keys.ENTER)
    window.until(lambda: window.run("return location.hash") != "")
    window.keys("/")
    window.until(lambda: has_focus('type="search"'))
    window.keys("Pay", Keys.ENTER)
    window.find('input[value="Pay"]')
    window.find('main a[href="/topic?name=Payments"]')


def test_a_page_renews_itself(window: Window, broker: EmbeddedBroker) -> None:
    window.complaints()  # the end of what another test looked at
    window.open("/messages?topic=Orders&follow=1")
    with Producer("shop", config=broker.client_config) as producer:
        producer.send(Message("Orders", b"while somebody looks", keys="fresh"))
    window.until(lambda: "while somebody looks" in window.text())
    assert window.complaints() == []


def test_a_page_that_is_not_renewed_says_so(window: Window, broker: EmbeddedBroker) -> None:
    window.open("/messages?topic=Orders&follow=1")
    broker.faults.refuse([RequestCode.GET_TOPIC_STATS_INFO], times=sys.maxsize)
    window.find("#live-age[role=status]")
    assert "Not renewed since " in window.text()
    assert ": The cluster did not answer as it should." in window.text()
    assert window.violations() == []
    broker.faults.clear()
    window.until(lambda: "Not renewed since " not in window.text())
    window.complaints()  # of the answers that were errors


def test_a_message_is_sent_by_clicking(window: Window, broker: EmbeddedBroker) -> None:
    window.open("/topic?name=Payments")
    window.unfold("Send a message")
    window.fill("textarea[name=body]", "sent by hand")
    window.fill("input[name=keys]", "by-hand")
    window.click('form[action="/write/message.send"] button')
    assert "Nothing has been done yet" in window.text()
    assert b"sent by hand" not in broker.bodies("Payments")
    assert window.violations() == []
    window.click(".confirm button")
    assert "SEND_OK" in window.text()
    assert b"sent by hand" in broker.bodies("Payments")
    assert window.violations() == []
    window.renew()
    assert broker.bodies("Payments").count(b"sent by hand") == 1


def test_a_group_is_reset_by_clicking(window: Window, broker: EmbeddedBroker) -> None:
    from oberth.client.blocking import Admin

    with Admin(config=broker.client_config) as admin:
        for queue in admin.topic_queues("Invoices"):
            admin.update_consume_offset("reports", queue, 0)
    ends = {each.queue_id: each.queue_offset + 1 for each in broker.messages("Invoices")}
    window.open("/group?name=reports")
    window.unfold("Reset it")
    window.run("document.querySelector('select[name=to]').value = 'latest'")
    window.click('form[action="/write/group.reset"] button')
    assert "messages are skipped" in window.text()
    window.click(".confirm button")
    assert "goes on from here" in window.text()
    assert {k: v for k, v in broker.offsets("reports", "Invoices").items() if v} == ends


def test_dead_letters_are_sent_again_by_clicking(window: Window, broker: EmbeddedBroker) -> None:
    before = len(broker.messages("Mails"))
    window.open("/letters?group=mailer")
    window.pick("input[data-all=letter]")
    window.click('form[action="/write/letters.redrive"] button')
    assert "would be redriven: Mails" in window.text()
    window.click(".confirm button")
    assert "3 redriven" in window.text()
    again = [each for each in broker.messages("Mails") if "REDRIVEN_FROM" in each.properties]
    assert len(again) == 3
    assert len(broker.messages("Mails")) == before + 3


def test_a_body_is_decoded_by_a_pasted_schema(window: Window, broker: EmbeddedBroker) -> None:
    schema = {"type": "record", "name": "Sum", "fields": [{"name": "cents", "type": "long"}]}
    with Producer("shop", config=broker.client_config) as producer:
        sent = producer.send(Message("Sums", b"\x0e"))
    place = f"{sent.message_queue.broker_name}:{sent.message_queue.queue_id}"
    window.open(f"/message?topic=Sums&queue={quote(place)}&offset={sent.queue_offset}")
    window.unfold("Paste a schema")
    window.fill("textarea[name=schema]", json.dumps(schema))
    assert window.violations() == []
    window.click("form[action='/message/schema'] button")
    window.find("pre.avro")
    assert '"cents": 7' in window.text()
    assert window.attribute("select[name=schema] option[selected]", "value") == "pasted: Sum"


def guarded(broker: EmbeddedBroker, port: int) -> subprocess.Popen[str]:
    """A console that wants a token."""
    words = ("-n", broker.namesrv_addr, "--port", str(port), "--login", "token")
    return subprocess.Popen(
        [sys.executable, "-m", "oberth", "console", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OBERTH_CONSOLE_TOKEN": TOKEN},
    )


def test_logins_by_clicking(window: Window, broker: EmbeddedBroker) -> None:
    at = ""

    def address() -> str:
        return str(window.driver.current_url).removeprefix(at)

    def log_in(token: str) -> None:
        window.fill("input[name=token]", token)
        window.click("form[action='/login'] button")

    page = "/topic?name=Orders"
    with guarded(broker, 0) as process:
        assert process.stdout is not None
        at = process.stdout.readline().split()[2]
        there = Window(window.driver, at, window.axe)
        there.open(page)
        assert address() == f"/login?next={quote(page, safe='')}"
        log_in("wrong")
        assert "That is not the token." in window.text()
        assert window.violations() == []
        log_in(TOKEN)
        window.until(lambda: address() == page)
        assert "Orders" in window.text()
        # A link on another site, to which the browser sends no cookie, neither asks for a login
        # nor ends the session.
        link = f"<main><a href='{at}{page}'>there</a></main>"
        window.driver.get("data:text/html;charset=utf-8," + quote(link))
        window.driver.find_element("css selector", "a").click()
        window.until(lambda: address() == page and "Groups that consume it" in window.text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    with guarded(broker, int(at.rpartition(":")[2])) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[2] == at
        # The page that renews itself asks for the new login, and comes back.
        window.until(lambda: address().startswith("/login?next="))
        log_in(TOKEN)
        window.until(lambda: address() == page)
        window.click("form[action='/logout'] button")
        window.until(lambda: address() == "/login")
        there.open("/")
        assert address() == "/login?next=%2F"
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    window.complaints()  # of the wrong token, and while there was no console


makes_pictures = pytest.mark.skipif(
    not os.environ.get("OBERTH_SCREENSHOTS"), reason="OBERTH_SCREENSHOTS=1 makes the pictures"
)


@makes_pictures
def test_pictures_of_the_documents(window: Window, broker: EmbeddedBroker) -> None:
    PICTURES.mkdir(exist_ok=True)
    window.open("/")
    with Producer("shop", config=broker.client_config) as producer:

        def is_drawn() -> bool:
            for _ in range(20):
                producer.send(Message("Orders", b"{}", tags="paid", keys="live"))
            return len(window.attribute("polyline", "points").split()) > 40

        window.until(is_drawn)
    order = broker.messages("Orders")[0]
    place = f"queue=broker-a%3A{order.queue_id}&offset={order.queue_offset}"
    for scheme in ("light", "dark"):
        window.media(scheme, 1280, 900)
        for name, path in (
            ("overview", "/"),
            ("messages", "/messages?topic=Payments"),
            ("message", f"/message?topic=Orders&{place}"),
            ("group", "/group?name=fulfilment"),
            ("letters", "/letters?group=mailer"),
        ):
            if scheme == "dark" and name != "overview":
                continue
            window.open(path)
            suffix = "-dark" if scheme == "dark" else ""
            window.picture(PICTURES / f"console-{name}{suffix}.png")


TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body{{margin:0;background:#16191d;color:#d7dce2}} pre{{margin:0;padding:20px 24px;
font:15px/1.45 "DejaVu Sans Mono",monospace}}</style><pre>{}</pre>"""


@makes_pictures
def test_picture_of_top(window: Window, broker: EmbeddedBroker, tmp_path: Path) -> None:
    shown = tmp_path / "top"
    words = ("top", "--once", "--interval", "2", "-n", broker.namesrv_addr)
    with (
        shown.open("w") as out,
        Producer("shop", config=broker.client_config) as producer,
        subprocess.Popen([sys.executable, "-m", "oberth", *words], stdout=out) as process,
    ):
        number = 0
        while process.poll() is None:
            topic = ("Orders", "Orders", "Payments")[number % 3]
            producer.send(Message(topic, b"{}", tags="paid", keys=f"live-{number}"))
            number += 1
    assert process.returncode == 0
    text = shown.read_text("utf-8").rstrip()
    assert "SLOWEST STAGES" in text
    lines = text.splitlines()
    window.media("light", 48 + 9 * max(map(len, lines)), 40 + 22 * len(lines))
    window.driver.get("data:text/html;charset=utf-8," + quote(TERMINAL.format(escape(text))))
    window.picture(PICTURES / "top.png")
