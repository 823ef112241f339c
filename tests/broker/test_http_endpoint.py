"""/metrics, /healthz and /readyz of a live broker, asked by sockets that also ask nonsense."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oberth.broker.metrics import Metrics, escape

MakeLive = Callable[..., Awaitable[Any]]


async def ask(live: Any, head: bytes) -> bytes:
    address = live.broker.http.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(head)
    try:
        async with asyncio.timeout(10):
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
    assert value(text, "rocketmq_storage_size") == observed.broker.store.max_phy_offset
    assert value(text, "oberth_storage_writable") == 1


async def test_every_line_is_of_the_text_form(observed: Any) -> None:
    await observed.peer.send("T", b"hello")
    _, text = await get(observed, "/metrics")
    line = re.compile(r'[a-z_]+\{([a-z_]+="[^"\n]*",?)+\} -?[0-9.e+]+')
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
    text = (await Metrics(observed.broker, series_max=3).render()).decode()
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
