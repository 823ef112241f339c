"""/metrics, /healthz and /readyz of a live broker, asked by sockets that also ask nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oberth.broker import exporter_metrics, http_endpoint
from oberth.broker import metrics as broker_metrics
from oberth.broker.broker import Broker
from oberth.broker.http_endpoint import CONNECTIONS_MAX, HttpEndpoint
from oberth.broker.metrics import EXPORTER as EXPORTER_STYLE
from oberth.broker.metrics import NATIVE, STEP_LINES, STYLES, Metrics, escape
from oberth.store.messages import MessageExtBrokerInner

MakeLive = Callable[..., Awaitable[Any]]


async def ask(live: Any, head: bytes) -> bytes:
    address = live.broker.http.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(head)
    try:
        async with asyncio.timeout(100):
            return await reader.read()
    finally:
        writer.close()


async def get(live: Any, path: str) -> tuple[int, str]:
    head, _, body = (await ask(live, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    return int(head.split()[1]), body.decode()


@pytest.fixture
async def observed(make_live: MakeLive) -> Any:
    """A broker with the endpoint."""
    return await make_live(httpPort="0")


def metrics(broker: Broker, **options: int) -> Metrics:
    services = broker.services
    return Metrics(
        broker.parts, services.runtime_info, lambda: services.processors.stages, (), **options
    )


def value(text: str, name: str, **labels: str) -> float:
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} {labels}")


async def test_figures_are_those_of_what_happened(observed: Any) -> None:
    for _ in range(3):
        assert (await observed.peer.send("T", b"hello")).code == 0
    assert (await observed.peer.pull("T", 0, group="G")).code == 0
    await observed.peer.call(
        15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    )
    status, text = await get(observed, "/metrics")
    assert status == 200
    assert value(text, "rocketmq_messages_in_total", topic="T", node_id="broker-a") == 3
    assert value(text, "rocketmq_throughput_in_total", topic="T") > 0
    assert value(text, "rocketmq_messages_out_total", topic="T", consumer_group="G") == 3
    assert value(text, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == 2
    assert value(text, "rocketmq_storage_size") == observed.broker.parts.store.max_phy_offset
    assert value(text, "oberth_storage_writable") == 1
    assert value(text, "oberth_storage_check_points") == 1
    assert "oberth_storage_lake_behind_bytes" not in text
    observed.broker.parts.store.config.retention_waits_for_lake = "/lake/shop"
    _, text = await get(observed, "/metrics")
    behind = value(text, "oberth_storage_lake_behind_bytes", lake="/lake/shop")
    assert behind == observed.broker.parts.store.max_phy_offset


async def test_a_failed_sync_is_shown(observed: Any) -> None:
    parts = observed.broker.parts
    table = observed.broker.services.runtime_info.table
    assert table()["hasFailedSyncs"] == "false"
    parts.store.queues.syncs.has_failed = True  # as a sync leaves it that fails
    _, text = await get(observed, "/metrics")
    assert value(text, "oberth_storage_check_points") == 0
    assert value(text, "oberth_storage_writable") == 1
    assert table()["hasFailedSyncs"] == "true"
    parts.store.queues.syncs.has_failed = False


EXPORTER = {
    # Names and labels as rocketmq-exporter has them (RMQMetricsCollector).
    "rocketmq_broker_tps": "cluster brokerIP broker",
    "rocketmq_broker_qps": "cluster brokerIP broker",
    "rocketmq_producer_tps": "cluster broker topic",
    "rocketmq_producer_message_size": "cluster broker topic",
    "rocketmq_producer_offset": "cluster broker topic",
    "rocketmq_producer_count": "cluster broker group",
    "rocketmq_topic_retry_offset": "cluster broker topic",
    "rocketmq_topic_dlq_offset": "cluster broker group",
    "rocketmq_consumer_tps": "cluster broker topic group",
    "rocketmq_consumer_message_size": "cluster broker topic group",
    "rocketmq_consumer_offset": "cluster broker topic group",
    "rocketmq_group_get_latency_by_storetime": "cluster broker topic group",
    "rocketmq_group_diff": "group topic countOfOnlineConsumers msgModel",
    "rocketmq_group_retrydiff": "group topic countOfOnlineConsumers msgModel",
    "rocketmq_group_dlqdiff": "group topic countOfOnlineConsumers msgModel",
    "rocketmq_group_count": "caddr localaddr group",
    "rocketmq_brokeruntime_put_tps10": "cluster brokerIP brokerHost des boottime broker_version",
    "rocketmq_brokeruntime_commitlog_maxoffset": (
        "cluster brokerIP brokerHost des boottime broker_version"
    ),
    "rocketmq_brokeruntime_commitlogdir_capacity_free": (
        "cluster brokerIP brokerHost des boottime broker_version"
    ),
}


async def test_the_exporters_names_labels_and_figures(observed: Any) -> None:
    for topic in ("T", "%RETRY%G", "%DLQ%G"):
        for _ in range(3):
            sent = observed.broker.parts.store.put_message(
                MessageExtBrokerInner.of(topic, b"hello")
            )
            assert sent.ok
        observed.broker.parts.topics.create_internal(topic, 1)
    observed.broker.parts.store.dispatch_nowait()
    await observed.peer.heartbeat("G", {"T": "*"}, producers=("P",))
    for topic, offset in (("T", 1), ("%RETRY%G", 3), ("%DLQ%G", 0)):
        observed.broker.parts.offsets.commit("G", topic, 0, offset, 0)
    for _ in range(4):
        assert (await observed.peer.send("T", b"hello")).code == 0
    assert (await observed.peer.pull("T", 0, group="G")).code == 0
    await observed.later(30_000)
    await observed.later(30_000)
    status, text = await get(observed, "/metrics?format=exporter")
    assert status == 200
    assert value(text, "rocketmq_producer_offset", topic="T", broker="broker-a") == 7
    assert value(text, "rocketmq_topic_retry_offset", topic="%RETRY%G") == 3
    assert value(text, "rocketmq_topic_dlq_offset", group="G") == 3
    assert value(text, "rocketmq_group_diff", topic="T", group="G", msgModel="1") == 6
    assert value(text, "rocketmq_group_retrydiff", topic="%RETRY%G", group="G") == 0
    assert value(text, "rocketmq_group_dlqdiff", topic="%DLQ%G", group="G") == 3
    assert value(text, "rocketmq_consumer_offset", topic="T", group="G") == 1
    assert value(text, "rocketmq_group_get_latency_by_storetime", topic="T") >= 59_000
    assert value(text, "rocketmq_group_get_latency_by_storetime", topic="%RETRY%G") == 0
    assert value(text, "rocketmq_group_diff", topic="T", countOfOnlineConsumers="1") == 6
    assert value(text, "rocketmq_group_count", group="G") == 1
    end = observed.broker.parts.store.max_phy_offset
    assert value(text, "rocketmq_brokeruntime_commitlog_maxoffset") == end
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = line.split("{", 1)
            found[name] = " ".join(re.findall(r'(\w+)="', labels))
    for name, labels in EXPORTER.items():
        assert found[name] == labels, name
    declared = {each.split()[2] for each in text.splitlines() if each.startswith("# TYPE ")}
    assert EXPORTER.keys() <= declared
    assert (await get(observed, "/metrics?format=xml"))[0] == 400


async def test_rates_of_the_exporter_are_per_second(observed: Any) -> None:
    await observed.later(10_000)
    for _ in range(20):
        assert (await observed.peer.send("T", b"hello")).code == 0
    await observed.later(10_000)
    _, text = await get(observed, "/metrics?format=exporter")
    assert value(text, "rocketmq_broker_tps") == pytest.approx(1, abs=0.01), "20 in the last 20 s"
    assert value(text, "rocketmq_producer_tps", topic="T") >= 0


async def test_the_exporters_series_are_bounded(observed: Any) -> None:
    for number in range(7):
        observed.broker.parts.offsets.commit("G", f"T{number}", 0, 1, 0)
    text = (await metrics(observed.broker, series_max=3).render(EXPORTER_STYLE)).decode()
    lines = [x for x in text.splitlines() if x.startswith("rocketmq_consumer_offset{")]
    assert sum(float(each.rpartition(" ")[2]) for each in lines) == 7
    assert len(lines) == 4
    assert 'broker="broker-a",topic="(other)",group="(other)"' in lines[-1]


async def test_what_the_exporter_keeps_of_pairs_is_bounded(
    observed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of 200 000 pairs, let go of in the end, held the loop for 45 ms."""
    monkeypatch.setattr(exporter_metrics, "PAIRS_SHOWN_MAX", 3)
    for _ in range(8):
        assert (await observed.peer.send("T", b"hello")).code == 0
    observed.broker.parts.store.dispatch_nowait()
    queues = list(observed.broker.parts.store.queues.table["T"])
    behind = sum(observed.broker.parts.store.max_offset_in_queue("T", each) for each in queues)
    for number in range(7):
        for queue_id in queues:
            observed.broker.parts.offsets.commit(f"G{number}", "T", queue_id, 0, 0)
    made: list[exporter_metrics.Progresses] = []
    original = exporter_metrics.Progresses

    def make() -> exporter_metrics.Progresses:
        made.append(original())
        return made[-1]

    monkeypatch.setattr(exporter_metrics, "Progresses", make)
    text = (await metrics(observed.broker).render(EXPORTER_STYLE)).decode()
    assert [len(kept) for each in made for kept in each.shown.values()] == [3, 0, 0]
    lines = [x for x in text.splitlines() if x.startswith("rocketmq_group_diff{")]
    assert [float(each.rpartition(" ")[2]) for each in lines] == [
        behind, behind, behind, 4 * behind
    ]  # fmt: skip
    assert 'group="(other)",topic="(other)"' in lines[-1]


async def test_lines_become_bytes_step_by_step(
    observed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining the lines of all names in the end held the loop for 25 ms."""
    for number in range(10 * STEP_LINES):
        observed.broker.parts.offsets.commit("G", f"T{number}", 0, 1, 0)
    most = [0]
    original = broker_metrics._move

    def move(lines: list[str], done: bytearray) -> None:
        most[0] = max(most[0], len(lines))
        original(lines, done)

    monkeypatch.setattr(broker_metrics, "_move", move)
    for style in STYLES:
        text = (await metrics(observed.broker).render(style)).decode()
        assert text.count('topic="T') >= 10 * STEP_LINES
    assert 0 < most[0] <= STEP_LINES + 10


async def test_a_group_that_is_deleted_while_lines_are_made(observed: Any) -> None:
    for number in range(1000):
        observed.broker.parts.offsets.commit(f"G{number}", "T", 0, 0, 0)
    task = asyncio.create_task(metrics(observed.broker).render(EXPORTER_STYLE))
    for number in range(1000):
        await asyncio.sleep(0)
        observed.broker.parts.offsets.delete_group(f"G{number}")
        observed.broker.parts.offsets.commit("New", f"T{number}", 0, 0, 0)
    assert b"rocketmq_group_diff" in await task


@pytest.mark.parametrize("path", ["/metrics", "/metrics?format=exporter", "/metrics?format=native"])
async def test_every_line_is_of_the_text_form(observed: Any, path: str) -> None:
    await observed.peer.send("T", b"hello")
    _, text = await get(observed, path)
    line = re.compile(r'[a-z_0-9]+\{([a-zA-Z_]+="[^"\n]*",?)+\} -?[0-9.e+]+')
    declared = set()
    for each in text.splitlines():
        if each.startswith("# TYPE "):
            name = each.split()[2]
            assert name not in declared
            declared.add(name)
        elif not each.startswith("# HELP "):
            assert line.fullmatch(each), each
            assert each.partition("{")[0] in declared


async def test_series_are_bounded_and_sums_stay_whole(observed: Any) -> None:
    for number in range(7):
        assert (await observed.peer.send(f"T{number}")).code == 0
    text = (await metrics(observed.broker, series_max=3).render()).decode()
    lines = [x for x in text.splitlines() if x.startswith("rocketmq_messages_in_total{")]
    assert len(lines) == 4
    assert sum(float(each.rpartition(" ")[2]) for each in lines) == 7
    assert 'topic="(other)"' in lines[-1]


async def test_health_and_readiness(observed: Any) -> None:
    assert await get(observed, "/healthz") == (200, "ok\n")
    assert await get(observed, "/readyz") == (200, "ready\n")
    server, observed.broker.server = observed.broker.server, None
    assert (await get(observed, "/readyz"))[0] == 503
    observed.broker.server = server
    assert (await get(observed, "/etc/passwd"))[0] == 404


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"400"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200"),
        (b"\xff" * 20 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b""),
    ],
)
async def test_nonsense(observed: Any, head: bytes, status: bytes) -> None:
    assert (await ask(observed, head))[9:12] == status
    assert await get(observed, "/healthz") == (200, "ok\n")


async def test_off_unless_asked_for(make_live: MakeLive) -> None:
    assert (await make_live()).broker.http is None


def test_labels_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


async def test_those_who_dawdle_do_not_keep_others_out(observed: Any) -> None:
    address = observed.broker.http.address
    dawdlers = []
    for _ in range(CONNECTIONS_MAX + 3):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /heal")
        dawdlers.append((reader, writer))
    await observed.until(lambda: len(observed.broker.http._tasks) == CONNECTIONS_MAX)
    assert (await get(observed, "/healthz"))[0] == 200
    for _, writer in dawdlers:
        writer.close()


async def test_who_is_given_up_leaves_no_traceback(observed: Any) -> None:
    """One for each of those that dawdle, of any peer's making."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    address = observed.broker.http.address
    dawdling = [
        await asyncio.open_connection(address.host, address.port)
        for _ in range(2 * CONNECTIONS_MAX)
    ]
    async with asyncio.timeout(100):
        for reader, _ in dawdling[:CONNECTIONS_MAX]:
            assert await reader.read() == b""
    assert (await get(observed, "/healthz"))[0] == 200
    for _, writer in dawdling:
        writer.close()
    assert complaints == []


async def test_who_takes_nothing_of_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection, and the answer, were kept until it went: any number of them."""
    monkeypatch.setattr(http_endpoint, "REQUEST_TIMEOUT_S", 0.2)
    size = 32 << 20

    class LargePage:
        async def render(self, style: str = NATIVE) -> bytes:
            return bytes(size)

    endpoint = HttpEndpoint(LargePage(), lambda: None)
    await endpoint.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*endpoint.address, limit=1)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    try:
        async with asyncio.timeout(100):
            while not endpoint._tasks:  # noqa: ASYNC110
                await asyncio.sleep(0)
            while endpoint._tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            taken = 0
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    taken += len(piece)
        assert taken < size
    finally:
        writer.close()
        await endpoint.aclose()


async def test_who_comes_while_a_page_is_made_gets_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of several brokers may take seconds, and one was made behind the other."""
    begun: list[str] = []
    asked: list[str] = []
    may_end, is_ended = asyncio.Event(), asyncio.Event()

    class SlowPage:
        async def render(self, style: str = NATIVE) -> bytes:
            begun.append(style)
            try:
                await may_end.wait()
            finally:
                is_ended.set()
            return f"{style} {len(begun)}\n".encode()

    page = HttpEndpoint._page

    async def counted(self: HttpEndpoint, style: str) -> bytes | bytearray:
        asked.append(style)
        return await page(self, style)

    monkeypatch.setattr(HttpEndpoint, "_page", counted)
    endpoint = HttpEndpoint(SlowPage(), lambda: None)
    await endpoint.start("127.0.0.1", 0)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(100):

        async def ask_for_it(query: str = "") -> asyncio.StreamReader:
            count = len(asked)
            reader, writer = await asyncio.open_connection(*endpoint.address)
            stack.callback(writer.close)
            writer.write(f"GET /metrics{query} HTTP/1.1\r\n\r\n".encode())
            while len(asked) == count:  # noqa: ASYNC110
                await asyncio.sleep(0)
            return reader

        readers = [await ask_for_it() for _ in range(4)]
        other = await ask_for_it("?format=exporter")
        next(iter(endpoint._tasks)).cancel()  # the one for whom it is made
        may_end.set()
        answers = [await reader.read() for reader in readers]
        assert answers.pop(0) == b""
        assert all(answer.endswith(b"\r\n\r\nnative 1\n") for answer in answers)
        assert (await other.read()).endswith(b"\r\n\r\nexporter 2\n")
        assert (await (await ask_for_it()).read()).endswith(b"\r\n\r\nnative 3\n")
        assert begun == ["native", "exporter", "native"]
        # Nothing goes on behind the end.
        may_end.clear()
        is_ended.clear()
        await ask_for_it()
        while len(begun) == 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await endpoint.aclose()
        assert is_ended.is_set()
        assert not endpoint._pages


async def test_who_is_accepted_while_the_endpoint_closes_is_closed() -> None:
    """Its request is served by nobody: the broker is gone."""

    class NoPage:
        async def render(self, style: str = NATIVE) -> bytes:
            raise AssertionError(style)

    endpoint = HttpEndpoint(NoPage(), lambda: None)
    await endpoint.start("127.0.0.1", 0)
    with socket.create_connection((endpoint.address.host, endpoint.address.port)) as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)  # the loop sees it
        await asyncio.sleep(0)  # and has accepted it
        await endpoint.aclose()
        gc.collect()  # what was given up warns now
        peer.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(peer.recv, 1) == b""
