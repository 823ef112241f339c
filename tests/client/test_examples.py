"""Proves that the examples run and say what they promise, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from oberth.testing.embedded_broker import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_orders() -> None:
    output = output_of("orders.py")
    assert "order-3 30: UNKNOW" in output
    assert "order-1 99: ROLLBACK_MESSAGE" in output
    assert "paid order-2, attempt 2" in output
    assert "dead letter: order-4 -1" in output
    assert "paid ['order-1', 'order-2', 'order-3']" in output


def test_request_reply() -> None:
    assert output_of("request_reply.py").splitlines() == [
        "squares: 0 1 4 9 16",
        "no answer: True",
    ]


async def test_web_service(mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", mq.namesrv_addr)
    spec = importlib.util.spec_from_file_location("web_service", EXAMPLES / "web_service.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    async with (
        example.lifespan(example.app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=example.app), base_url="http://web"
        ) as client,
    ):
        answer = await client.post("/orders", content=b"pear")
        assert answer.status_code == 202
        await mq.wait_until(lambda: list(example.app.state.seen) == ["pear"])
        assert (await client.get("/orders")).json() == ["pear"]
