"""The console over Apache's brokers: every page with data, and what is done through its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.console.conftest import Browser, confirmed
from tests.rigs.clusters import cluster_for

from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console.config import ConsoleConfig
from oberth.console.console import Console
from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COUNT = 20


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
async def test_pages_and_writes(tmp_path: Path, version: str) -> None:
    try:
        cluster = cluster_for(f"apache-{version}", tmp_path / "cluster")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    with cluster as apache:
        client = ClientConfig(namesrv_addr=apache.namesrv_addr)
        config = ConsoleConfig(
            client=client, allow_writes=True, audit_path=str(tmp_path / "audit"),
            sample_interval_s=3600,
        )  # fmt: skip
        async with (
            Console(config) as console,
            Admin(config=client) as admin,
            Producer("makers", config=client) as producer,
        ):
            browser = Browser(console)
            async with browser.http:
                await browser.write("topic.create", {"name": "Orders", "queues": "1"})
                for number in range(COUNT):
                    await producer.send(Message("Orders", b"%d" % number, keys=f"k{number}"))
                await browser.write("group.save", {"name": "billing", "enabled": "1"})
                (queue,) = await admin.topic_queues("Orders")
                await admin.update_consume_offset("billing", queue, 5)
                assert "Orders" in await browser.get("/topics")
                page = await browser.get("/")
                assert 'class="level good">serving<' in page
                assert f"{COUNT} messages kept" in await browser.get("/topic", name="Orders")
                assert "k19" in await browser.get("/messages", topic="Orders")
                assert "k7" in await browser.get("/messages", topic="Orders", key="k7")
                place: dict[str, Any] = {"queue": f"{queue.broker_name}:0", "offset": "7"}
                assert "k7" in await browser.get("/message", topic="Orders", **place)
                for path in ("/groups", "/letters", "/waiting", "/access", "/settings"):
                    await browser.get(path)
                assert "flushDiskType" in await browser.get("/settings", all="1")
                await browser.get("/group", name="billing")
                reset = {"group": "billing", "topic": "Orders", "to": "latest"}
                preview = await browser.post("/write/group.reset", reset)
                assert "15 messages are skipped" in preview
                await browser.post("/write/group.reset", confirmed(preview))
                assert await admin.consumer_offset("billing", queue) == COUNT
                await browser.write("message.send", {"topic": "Orders", "body": "by hand"})
                result = await admin.pull(queue, COUNT, max_num=1)
                assert [each.body for each in result.messages] == [b"by hand"]
                await browser.write("topic.delete", {"name": "Orders"})
                assert ">Orders<" not in await browser.get("/topics")
