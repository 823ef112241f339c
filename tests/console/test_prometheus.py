"""Plots of more than an hour: expressions, what a server answers, and what pages show of it.

A small server stands in for Prometheus; it answers as the HTTP interface of Prometheus 2 and 3 is
documented.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.console.conftest import a_console

from oberth.console.prometheus import (
    ANSWER_SIZE_MAX,
    KEPT_MAX,
    Prometheus,
    PrometheusError,
    expression,
    matrix_points,
)
from oberth.errors import OptionError
from oberth.testing.embedded_broker import EmbeddedBroker

NOW_S = 1_790_380_800.0
"""A multiple of each span's step."""


class StandIn:
    """Answers every question with a line through its whole span, or as it is told.

    Attributes:
        asked: the parameters and the headers of each question.
        answer: sent instead: a status and a body.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, str]]] = []
        self.answer: tuple[int, bytes] | None = None
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                words = {name: values[0] for name, values in parse_qs(parts.query).items()}
                stand_in.asked.append((words | {"path": parts.path}, dict(self.headers)))
                status, body = stand_in.answer or (200, line(words))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/prom"


def line(words: dict[str, str]) -> bytes:
    """A matrix with one series, 7 at each step."""
    start, end, step = (float(words[name]) for name in ("start", "end", "step"))
    count = int((end - start) / step) + 1
    values = [[start + number * step, "7"] for number in range(count)]
    return document([{"metric": {}, "values": values}])


def document(result: Any) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": result}}
    ).encode()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_expressions() -> None:
    assert expression(("topic", "orders"), [], 300) == (
        'sum(rate(rocketmq_messages_in_total{topic="orders"}[300s]))'
    )
    assert expression(("lag", "%RETRY%g"), ["a.b", "c"], 300) == (
        'sum(rocketmq_consumer_lag_messages{consumer_group="%RETRY%g",cluster=~"a\\\\.b|c"})'
    )
    assert 'node_id="broker-a"' in expression(("out", "broker-a"), ["c"], 5040)
    with pytest.raises(KeyError):
        expression(("disk", "broker-a"), [], 300)


@given(st.text())
def test_no_name_leaves_its_quotes(name: str) -> None:
    text = expression(("topic", name), [], 300)
    inside = text.removeprefix("sum(rate(rocketmq_messages_in_total{topic=").removesuffix(
        "}[300s]))"
    )
    assert json.loads(inside) == name
    assert "\n" not in text


async def test_a_series_is_asked_for_once_a_step(stand_in: StandIn) -> None:
    prometheus = Prometheus(stand_in.url + "/", token="a-token")
    for later_s in (0.0, 5.0, 30.0):
        points = await prometheus.points(("topic", "t"), [], NOW_S + later_s, 6 * 3600)
        assert len(points) == 241
        assert points[0][1] == 7
        assert points[-1][0] - points[0][0] == 6 * 3600
        assert 0 <= NOW_S + later_s - points[-1][0] < 90
    assert len(stand_in.asked) == 1
    words, headers = stand_in.asked[0]
    assert words["path"] == "/prom/api/v1/query_range"
    assert words["step"] == "90.000"
    assert headers["Authorization"] == "Bearer a-token"
    await prometheus.points(("topic", "t"), [], NOW_S + 90, 6 * 3600)
    assert len(stand_in.asked) == 2
    for number in range(KEPT_MAX + 10):
        await prometheus.points(("topic", f"t{number}"), [], NOW_S, 6 * 3600)
    assert len(prometheus._kept) == KEPT_MAX


def test_points_that_are_no_numbers_are_left_out() -> None:
    values = [[1, "1"], [2, "NaN"], [3, "+Inf"], [4, "2.5"]]
    assert matrix_points([{"values": values}]) == [(1.0, 1.0), (4.0, 2.5)]
    assert matrix_points([]) == []


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "status 200 and no answer of Prometheus"),
        (404, b"", "status 404 and no answer"),
        (302, b"", "status 302 and no answer"),
        (400, b'{"status":"error","error":"parse error"}', "parse error"),
        (200, b'{"status":"success","data":{"result":[{"values":[["x","y"]]}]}}', "no answer of"),
        (200, b'{"status":"success","data":[]}', "no answer of"),
        (200, b"[" * 100_000, "no answer of"),
        (200, b" " * (ANSWER_SIZE_MAX + 1), "more than 4194304 bytes"),
    ],
    ids=["html", "404", "302", "error", "no-numbers", "no-matrix", "deep", "long"],
)
async def test_what_is_no_answer(stand_in: StandIn, status: int, body: bytes, said: str) -> None:
    stand_in.answer = (status, body)
    with pytest.raises(PrometheusError, match=said):
        await Prometheus(stand_in.url).points(("topic", "t"), [], NOW_S, 86400)
    assert len(stand_in.asked) == 1  # no redirection is followed


async def test_nothing_listens() -> None:
    with pytest.raises(PrometheusError, match=r"http://127\.0\.0\.1:1: .*refused"):
        await Prometheus("http://127.0.0.1:1").points(("topic", "t"), [], NOW_S, 86400)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "localhost:9090", "http://", "http://h:x", "http://u:p@h", "http://h?q"],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="Prometheus"):
        Prometheus(url)


def test_a_token_with_a_line_break_is_refused() -> None:
    with pytest.raises(OptionError, match="token"):
        Prometheus("http://h", "a\r\nX: y")


async def test_pages_reach_back(broker: EmbeddedBroker, stand_in: StandIn) -> None:
    async with a_console(broker, prometheus=stand_in.url) as browser:
        await browser.console.admin.create_topic("orders", queue_nums=1)
        pages: dict[str, dict[str, Any]] = {
            "/": {},
            "/broker": {"address": broker.address},
            "/topic": {"name": "orders"},
        }
        for path, parameters in pages.items():
            own = await browser.get(path, **parameters)
            assert 'aria-current="page">1h</a>' in own
            assert "−6 d" not in own
            longer = await browser.get(path, **parameters, span="7d")
            assert 'aria-current="page">7d</a>' in longer
            assert "−6 d" in longer
            assert '<polyline class="line l0"' in longer
        asked = [words["query"] for words, _ in stand_in.asked]
        assert any('topic="orders"' in each for each in asked)
        assert all('cluster=~"' in each for each in asked)
        assert "−6 d" not in await browser.get("/", span="9d")

        stand_in.answer = (503, b"")
        before = len(stand_in.asked)
        failed = await browser.get("/", span="1d")
        assert "The last hour is shown; Prometheus did not answer" in failed
        assert "−6 d" not in failed
        assert len(stand_in.asked) == before + 1  # once a page


async def test_without_a_server_there_is_no_choice(broker: EmbeddedBroker) -> None:
    async with a_console(broker) as browser:
        page = await browser.get("/", span="7d")
    assert "Time span of the plots" not in page
    assert "−6 d" not in page
