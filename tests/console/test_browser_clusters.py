"""The console in a real Chromium: of a hostile cluster, of Apache's, and by https with users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from tests.console.test_hostile import CASES, ROUTES_OF_FILES, known
from tests.rigs.browser import TIMEOUT_S, Window, needs_browser, opened
from tests.rigs.clusters import cluster_for
from tests.rigs.hostile_answers import HostileAnswers, filled

from oberth.client.blocking import Admin, Producer, PushConsumer
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, MessageExt
from oberth.console.config import ConsoleConfig
from oberth.console.listening import address_of, listen
from oberth.console.server import serving
from oberth.errors import MQBrokerError, MQClientError, PeerUnavailableError
from oberth.remoting.aio.tls import make_certificate
from oberth.remoting.bodies.base import MessageQueue
from oberth.testing.blocking import EmbeddedBroker

pytestmark = needs_browser

VIEWS = [("light", 1280), ("dark", 1280), ("light", 380), ("dark", 380)]
"""The reader's wish, and the width of the window."""
APACHES_VIEWS = VIEWS if os.environ.get("OBERTH_INTEROP") == "full" else [VIEWS[0], VIEWS[-1]]
"""Of pages that our own cluster shows in every view: axe-core takes minutes for each."""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with opened(lambda: tmp_path_factory.mktemp("profile")) as made:
        yield made


@contextmanager
def served(config: ConsoleConfig) -> Iterator[str]:
    """The address of a console in a thread of this process, where tests change what it is told."""
    listener = listen("127.0.0.1", 0)
    is_over = threading.Event()

    async def serve() -> None:
        async with serving(config, listener):
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="console")
    thread.start()
    try:
        yield address_of(listener, is_tls=False)
    finally:
        is_over.set()
        thread.join()


def problems(window: Window, paths: Sequence[str], scheme: str, width: int) -> dict[str, list[str]]:
    """By page what is wrong with it."""
    found = {}
    window.leave()
    window.media(scheme, width, 900)
    try:
        for path in paths:
            window.complaints()
            window.open(path)
            wrong = [each for each in window.complaints() if "status of" not in each]
            wrong += window.violations()
            if window.run("return window.owned"):
                wrong.append("a script of a page's data ran")
            if (count := window.run("return document.querySelectorAll('h1').length")) != 1:
                wrong.append(f"{count} titles")
            if (wide := window.run("return document.documentElement.scrollWidth")) > width:
                wrong.append(f"{wide} pixels wide")
            if wrong:
                found[path] = wrong
    finally:
        window.media("light", 1280, 900)
    return found


@pytest.mark.parametrize("part", range(len(VIEWS)))
def test_pages_of_a_hostile_cluster(
    window: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    with EmbeddedBroker({"diskMaxUsedSpaceRatio": "95"}) as broker, filled(broker):
        HostileAnswers(monkeypatch)
        config = ConsoleConfig(
            client=ClientConfig(namesrv_addr=broker.namesrv_addr),
            allow_writes=True,
            audit_path=str(tmp_path / "audit"),
        )
        paths = [
            f"{quote(path)}?{urlencode(known(broker, values))}"
            for path, cases in CASES.items()
            if path not in ROUTES_OF_FILES
            for values in cases
        ]
        with served(config) as window.base:
            # Every page in one of the views, and the first of each kind in the narrowest.
            found = problems(window, paths[part :: len(VIEWS)], *VIEWS[part])
            if part == 0:
                first = {path.partition("?")[0]: path for path in reversed(paths)}
                found |= problems(window, list(first.values()), *VIEWS[-1])
            assert found == {}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of Apache's cluster with orders, members, a dead letter and a timer."""
    directory = tmp_path_factory.mktemp("apache")
    try:
        cluster = cluster_for("apache-5.5.0", directory / "cluster")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    seen = threading.Event()

    def fail(message: MessageExt) -> None:
        raise ValueError(message.body)

    with cluster:
        config = ClientConfig(namesrv_addr=cluster.namesrv_addr, enable_trace=True)
        with Admin(config=config) as admin, Producer("shop", config=config) as producer:
            for topic in ("Orders", "Mails"):
                admin.create_topic(topic, queue_nums=1)
            with (
                PushConsumer(
                    "fulfilment", {"Orders": "*"}, listener=lambda _: seen.set(), config=config
                ),
                PushConsumer(
                    "mailer", {"Mails": "*"}, listener=fail, max_reconsume_times=0, config=config
                ),
            ):
                for number in range(20):
                    body = json.dumps({"order": number}).encode()
                    producer.send(Message("Orders", body, tags="paid", keys=f"order-{number}"))
                producer.send(Message("Mails", b"{}", keys="mail"))
                producer.send(Message("Orders", b"later", keys="later", delay_ms=3_600_000))
                assert seen.wait(TIMEOUT_S)
                until(lambda: admin.max_offset(queue_of(admin, "%DLQ%mailer")) == 1)
                yield cluster.namesrv_addr


def queue_of(admin: Admin, topic: str) -> MessageQueue:
    """The only queue of a topic."""
    (queue,) = admin.topic_queues(topic)
    return queue


def until(is_so: Callable[[], bool]) -> None:
    """Waits for what a cluster does in its own time."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(MQBrokerError, MQClientError):
            if is_so():
                return
        assert time.monotonic() < end_s
        time.sleep(0.1)


@pytest.fixture(scope="module")
def before_apache(apache: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console of Apache's cluster that may write."""
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with command("-n", apache, "--allow-writes", "--audit-log", str(audit)) as base:
        yield base


@contextmanager
def command(*words: str, **environment: str) -> Iterator[str]:
    """The address of an `oberth console` with these options."""
    with subprocess.Popen(
        [sys.executable, "-m", "oberth", "console", "--port", "0", "--interval", "0.5", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(("scheme", "width"), APACHES_VIEWS)
def test_pages_of_apaches_cluster(
    window: Window, apache: str, before_apache: str, scheme: str, width: int
) -> None:
    window.base = before_apache
    with Admin(namesrv_addr=apache) as admin:
        (master,) = admin.masters().values()
        queue = queue_of(admin, "Orders")
        client = admin.consumer_connection("fulfilment").connection_set[0].client_id
    place = f"queue={quote(f'{queue.broker_name}:{queue.queue_id}')}&offset=3"
    shown = {
        "/": "serving",
        f"/broker?address={master}": "brokerVersionDesc",
        "/topics": "Mails",
        "/topic?name=Orders": "20 messages kept",
        "/messages?topic=Orders": "order-19",
        "/messages?topic=Orders&key=order-7": "order-7",
        "/messages?topic=Orders&tag=paid&body=order": "order-3",
        f"/message?topic=Orders&{place}": "consumed",
        "/groups": "fulfilment",
        "/group?name=fulfilment": client,
        f"/stack?name=fulfilment&client={quote(client, safe='')}": "Where its threads are",
        "/letters": "mailer",
        "/letters?group=mailer": "mail",
        "/waiting": "later",
        "/access": "Users",
        "/settings": "brokerIP1",
        "/settings?all=1": "flushDiskType",
        "/audit": "Audit log",
        "/sql": "No store was named",
    }
    assert problems(window, list(shown), scheme, width) == {}
    for path, text in shown.items():
        window.open(path)
        window.until(lambda text=text: text in window.text())  # type: ignore[misc]


def test_apaches_topic_is_changed_by_clicking(window: Window, before_apache: str) -> None:
    window.base = before_apache
    window.open("/topic?name=Mails")
    window.unfold("Change it")
    window.fill('form[action="/write/topic.change"] input[name=write_queues]', "3")
    window.click('form[action="/write/topic.change"] button')
    assert "queues to write" in window.text()
    window.click(".confirm button")
    assert "Topic Mails is changed." in window.text()
    window.open("/audit")
    assert "topic.change" in window.text()


def test_users_log_in_by_https(window: Window, tmp_path: Path) -> None:
    certificate = tmp_path / "own.pem"
    made = make_certificate(2)
    assert made is not None
    certificate.write_bytes(made)
    root = {"username": "root", "password": "root-password"}
    inner = {"accessKey": "root", "secretKey": "root-password"}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(root),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }
    keys = {"OBERTH_ACCESS_KEY": "root", "OBERTH_SECRET_KEY": "root-password"}
    with EmbeddedBroker(settings) as broker:
        words = ["-n", broker.namesrv_addr, "--login", "users", "--certificate", str(certificate)]
        audit = tmp_path / "audit.jsonl"
        words += ["--allow-writes", "--audit-log", str(audit)]
        with command(*words, **keys) as window.base:
            assert window.base.startswith("https://")
            window.open("/topics")
            window.complaints()  # nothing is said of the certificate of a test
            assert window.violations() == []
            for password, said in (("wrong", "do not know this user"), ("root-password", "Topics")):
                window.fill("input[name=user]", "root")
                window.fill("input[name=password]", password)
                window.click("form[action='/login'] button")
                assert said in window.text()
            (cookie,) = window.driver.get_cookies()
            assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
                True, True, "Strict",
            )  # fmt: skip
            window.complaints()  # of the wrong password
            assert problems(window, ["/", "/topics", "/access", "/settings"], *VIEWS[0]) == {}
            window.open("/topics")
            window.unfold("Create a topic")
            window.fill('form[action="/write/topic.create"] input[name=name]', "Signed")
            window.click('form[action="/write/topic.create"] button')
            window.click(".confirm button")
            assert "Topic Signed is there." in window.text()
            window.open("/topic?name=Signed")
            assert "0 messages kept" in window.text()
            assert json.loads(audit.read_text().splitlines()[0])["user"] == "root"
            window.click("form[action='/logout'] button")
            window.open("/topics")
            window.find("input[name=password]")
