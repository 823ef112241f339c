"""The first page, the history behind its plots, and what it says needs attention."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import jinja2
import pytest
from tests.console.conftest import Browser, a_console

from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console import cluster as cluster_module
from oberth.console.attention import attention
from oberth.console.cluster import BrokerKey, Part, State
from oberth.console.config import ConsoleConfig
from oberth.console.console import FIRST_PAGE, Console, _environment
from oberth.console.history import History
from oberth.console.pages.topics import PAGE_SIZE
from oberth.console.plots import Line, plot
from oberth.console.silence import PatientAdmin
from oberth.console.texts import number, rate, seen, shown
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.route import BrokerData, ClusterInfo
from oberth.remoting.bodies.stats import TopicOffset, TopicStatsTable
from oberth.testing.embedded_broker import EmbeddedBroker


async def test_the_first_page_shows_the_cluster(reader: Browser, broker: EmbeddedBroker) -> None:
    async with Admin(config=broker.client_config) as admin:
        await admin.create_topic("Orders", queue_nums=2)
        async with Producer("makers", config=broker.client_config) as producer:
            for _ in range(4):
                await producer.send(Message("Orders", b"x"))
        for queue in await admin.topic_queues("Orders"):
            await admin.update_consume_offset("billing", queue, 0)
        page = await reader.get("/")
    assert "broker-a" in page
    assert broker.address in page
    assert "Orders" in page
    assert "has no members and 4 messages to consume" in page
    assert await reader.get("/broker", address=broker.address)


async def test_a_page_asks_no_broker_that_no_name_server_knows(reader: Browser) -> None:
    assert "no broker at" in await reader.get("/broker", 400, address="127.0.0.1:1")


async def test_pages_and_looks_have_few_questions_on_their_way(
    reader: Browser, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 questions in one turn of a broker's loop held its senders up; a list of groups had 50."""
    async with Admin(config=broker.client_config) as admin:
        for number in range(12):
            await admin.create_topic(f"Orders-{number}", queue_nums=1)
            for queue in await admin.topic_queues(f"Orders-{number}"):
                await admin.update_consume_offset(f"billing-{number}", queue, 0)
                await admin.update_consume_offset("billing", queue, 0)
    asked: Counter[str] = Counter()
    most: Counter[str] = Counter()
    invoke = PatientAdmin._invoke

    async def counted(self: PatientAdmin, addr: str, *rest: Any) -> Any:
        asked[addr] += 1
        most[addr] = max(most[addr], asked[addr])
        try:
            return await invoke(self, addr, *rest)
        finally:
            asked[addr] -= 1

    monkeypatch.setattr(PatientAdmin, "_invoke", counted)
    await reader.console.cluster.look()
    assert most[broker.address] == 2
    now = [time.time()]
    reader.console.cluster._now_s = lambda: now[0]
    pages: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/topics", {}),
        ("/groups", {}),
        ("/group", {"name": "billing"}),
        ("/messages", {"topic": "Orders-1", "at": "2020-01-01 00:00"}),
    )
    for path, fields in pages:
        most.clear()
        now[0] += 1000
        await reader.get(path, **fields)
        assert 0 < most[broker.address] <= 4, path


async def test_rates_are_noted(reader: Browser, broker: EmbeddedBroker) -> None:
    cluster = reader.console.cluster
    now = [time.time() + 1000]
    cluster._now_s = lambda: now[0]
    async with Producer("makers", config=broker.client_config) as producer:
        await producer.send(Message("Orders", b"x"))
        await cluster.look()
        for _ in range(20):
            await producer.send(Message("Orders", b"x"))
        now[0] += 10
        await cluster.look()
    assert cluster.history.last(("in", "broker-a")) == 2.0
    assert cluster.history.last(("topic", "Orders")) == 2.0


async def test_without_a_name_server_the_page_says_so(
    reader: Browser, broker: EmbeddedBroker
) -> None:
    await reader.console.cluster.look()
    namesrv = broker._namesrv
    assert namesrv is not None
    await namesrv.aclose()
    reader.console.admin._timeout_s = 0.5
    reader.console.cluster.forget()
    page = await reader.get("/")
    assert "No name server answers" in page
    assert "broker-a" in page


def test_history_keeps_an_hour() -> None:
    history = History(span_s=100)
    for at in range(1000):
        history.add(("in", "a"), at, at / 2)
    points = history.points(("in", "a"))
    assert [points[0], points[-1]] == [(899, 449.5), (999, 499.5)]
    assert history.points(("in", "a"), since_s=990)[0][0] == 990
    assert history.points(("in", "b")) == []
    history.add(("in", "a"), 5, 1)
    assert history.last(("in", "a")) == 499.5


@pytest.mark.parametrize(
    ("values", "grown"),
    [([1, 2, 3, 4, 5], 4), ([1, 2, 1, 4, 5], None), ([5, 5, 5, 5, 5], None), ([1, 9], None)],
)
def test_growth_is_what_never_shrinks(values: list[float], grown: float | None) -> None:
    history = History()
    for at, value in enumerate(values):
        history.add(("lag", "g"), at * 30, value)
    assert history.growth(("lag", "g"), 120) == grown


def test_attention_is_sorted_by_urgency() -> None:
    master, slave = BrokerKey("a", 0, "a:1"), BrokerKey("a", 1, "a:2")
    state = State(
        at_s=1,
        clusters=ClusterInfo(
            broker_addr_table={
                "a": BrokerData({0: "a:1", 1: "a:2"}, "a", "c"),
                "b": BrokerData({1: "b:1"}, "b", "c"),
            }
        ),
        brokers={
            master: {"commitLogMaxOffset": str(1 << 30), "commitLogDiskRatio": "0.9"},
            slave: {"commitLogMaxOffset": "5", "commitLogDiskRatio": "0.8"},
            BrokerKey("b", 1, "b:1"): {},
        },
        failures={"b:1": "connection refused"},
        topics={"T": {"a": TopicConfig(topic_name="T")}},
        offsets={"lonely": {"T": {("a", 0): 3}}, "slow": {"T": {("a", 0): 3}}},
        ends={
            "T": {("a", 0): TopicOffset(0, 10, 0)},
            "%DLQ%slow": {("a", 0): TopicOffset(0, 2, 1)},
        },
        members={"lonely": 0, "slow": 1},
    )
    history = History()
    for at in range(5):
        history.add(("lag", "slow"), at * 30, at)
    found = [(item.level, item.subject, item.text) for item in attention(state, history)]
    assert found == [
        ("urgent", "a", "disk is 90% full"),
        ("urgent", "b", "has no master: nothing can be sent to it"),
        ("urgent", "b #1", "does not answer: connection refused"),
        ("warning", "a #1", "disk is 80% full"),
        ("warning", "a #1", "slave is 1024.0 MiB behind its master"),
        ("warning", "lonely", "has no members and 7 messages to consume"),
        ("warning", "slow", "lag grows: 7 messages, 4 more in two minutes"),
        ("note", "slow", "1 dead letter"),
    ]


def test_a_lag_of_unknown_ends_is_unknown() -> None:
    state = State(topics={"T": {}}, offsets={"g": {"T": {("a", 0): 1}}})
    assert state.lag("g") is None
    state.ends["T"] = {("a", 0): TopicOffset(0, 10, 4)}
    assert state.lag("g") == 6  # what is gone cannot be consumed


def test_a_plot_has_axes_units_and_the_newest_values() -> None:
    points = [(float(at), float(at)) for at in range(1000)]
    text = str(
        plot(
            "Rates <b>", [Line("a<script>", points)], now_s=999, span_s=900, value_text=rate,
            unit="a second",
        )
    )  # fmt: skip
    assert "<script>" not in text
    assert "<b>" not in text.replace("<b>999</b>", "")
    assert "−15 min" in text
    assert ">1000</text>" in text
    assert text.count(",") < 700  # thinned
    assert "nothing noted yet" in str(
        plot("Rates", [], now_s=1, span_s=300, value_text=rate, unit="a second")
    )


def test_texts_of_others_are_seen_as_they_are() -> None:
    assert seen("a<b>&\"'") == "a&lt;b&gt;&amp;&#34;&#39;"
    assert "\\u202e" in seen("evil\u202etxt.exe")
    assert "\u202e" not in seen("evil\u202etxt.exe")
    assert "\\x1b" in seen("\x1b[2J")
    assert seen("a\tb\nc") == "a\tb\nc"
    assert "\\ud800" in seen("\ud800")
    assert shown("x") == "<bdi>x</bdi>"
    assert number(1234567) == "1\u202f234\u202f567"


async def test_brokers_are_shown_before_their_lists_are_read(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = asyncio.Event()
    ask = Admin.all_topic_configs

    async def late(self: Admin, addr: str) -> dict[str, TopicConfig]:
        await until.wait()
        return await ask(self, addr)

    monkeypatch.setattr(Admin, "all_topic_configs", late)
    async with a_console(broker, has_looked=False) as browser:
        page = await browser.get("/")
        assert "still being read" in page
        assert broker.address in page
        until.set()
        await browser.console.cluster.look()
        assert "still being read" not in await browser.get("/")


async def test_topics_are_shown_before_offsets_are_read(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker_offsets = Admin.all_consumer_offsets
    until = asyncio.Event()

    async def late(self: Admin, addr: str) -> dict[tuple[str, str], dict[int, int]]:
        await until.wait()
        return await broker_offsets(self, addr)

    monkeypatch.setattr(Admin, "all_consumer_offsets", late)
    async with Producer("makers", config=broker.client_config) as producer:
        await producer.send(Message("Orders", b"x"))
    async with a_console(broker, has_looked=False) as browser:
        page = await browser.get("/topics")
        assert "Orders" in page
        assert not until.is_set()
        until.set()
        assert (await browser.console.cluster.look()).has is Part.WHOLE


async def test_a_page_does_not_wait_for_a_look(
    reader: Browser, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer("makers", config=broker.client_config) as producer:
        await producer.send(Message("Orders", b"x"))
    cluster = reader.console.cluster
    before = await cluster.look()
    now_s = time.time() + 1000
    cluster._now_s = lambda: now_s
    is_asked, never = asyncio.Event(), asyncio.Event()

    async def stuck(self: Admin, addr: str) -> dict[str, TopicConfig]:
        is_asked.set()
        await never.wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr(Admin, "all_topic_configs", stuck)
    for path in ("/topics", "/groups", "/", "/letters"):
        answer = await reader.http.get(path)
        assert answer.status_code == 200
    assert is_asked.is_set()
    assert cluster.state is before


async def test_a_page_asks_for_the_rows_that_it_shows(
    reader: Browser, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(config=broker.client_config) as admin:
        for number in range(2 * PAGE_SIZE):
            await admin.create_topic(f"many-{number:03}", queue_nums=1)
    cluster = reader.console.cluster
    await cluster.look()
    now_s = time.time() + 1000
    cluster._now_s = lambda: now_s
    cluster.state.at_s = now_s
    asked: list[str] = []
    ask = Admin.broker_topic_stats

    async def counted(self: Admin, addr: str, topic: str) -> TopicStatsTable:
        asked.append(topic)
        return await ask(self, addr, topic)

    monkeypatch.setattr(Admin, "broker_topic_stats", counted)
    page = (await reader.http.get("/topics", params={"q": "many", "page": "2"})).text
    assert sorted(asked) == [f"many-{number:03}" for number in range(PAGE_SIZE, 2 * PAGE_SIZE)]
    assert all(f'name={name}"' in page for name in asked)
    asked.clear()
    await reader.http.get("/topics", params={"q": "many-07"})
    assert sorted(asked) == []


async def test_a_large_clusters_lists_are_not_asked_for_in_every_look(
    reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LISTS_LARGE", 0)
    looks = reader.console.cluster
    now_s = [looks.state.at_s]
    monkeypatch.setattr(looks, "_now_s", lambda: now_s[0])
    asked: list[str] = []
    ask = reader.console.admin.all_topic_configs

    async def counted(address: str) -> dict[str, TopicConfig]:
        asked.append(address)
        return await ask(address)

    monkeypatch.setattr(reader.console.admin, "all_topic_configs", counted)

    async def look(after_s: float) -> int:
        now_s[0] += after_s
        before = len(asked)
        assert (await looks.look()).topics
        return len(asked) - before

    assert await look(5) == 0
    looks.forget()
    assert await look(5) == 1
    assert await look(5) == 0
    assert await look(cluster_module.LISTS_PAUSE_S) == 1


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The templates that are compiled from now on, and the threads that do it."""
    _environment.cache_clear()
    noted: list[tuple[str, int]] = []
    compile_one = jinja2.Environment.compile

    def note(self: jinja2.Environment, source: Any, name: str, *more: Any) -> Any:
        noted.append((name, threading.get_ident()))
        return compile_one(self, source, name, *more)

    monkeypatch.setattr(jinja2.Environment, "compile", note)
    return noted


async def test_templates_are_compiled_beside_the_loop(
    broker: EmbeddedBroker, compiled: list[tuple[str, int]]
) -> None:
    """One page with all that it includes is up to 0.1 s, which senders would wait for."""
    async with a_console(broker) as browser:
        await asyncio.gather(*(browser.get(path) for path in ("/", "/topics", "/groups")))
    assert {name for name, _ in compiled} == set(_environment().list_templates())
    assert len(compiled) == len(_environment().list_templates())
    assert threading.get_ident() not in {thread for _, thread in compiled}


async def test_the_first_page_waits_for_no_other_pages_template(
    compiled: list[tuple[str, int]],
) -> None:
    """All templates take longer than everything else that a new console does for it."""
    fresh = Console(ConsoleConfig(client=ClientConfig(namesrv_addr="127.0.0.1:1")))
    await fresh.prepare("/static/style.css")
    assert not compiled
    await fresh.prepare("/")
    assert {name for name, _ in compiled} == set(FIRST_PAGE)
    await fresh.prepare("/topics")
    assert {name for name, _ in compiled} == set(_environment().list_templates())
