"""Pages of topics: the list, one topic, and what is changed through them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.console.conftest import Browser, confirmed, hidden

from oberth.client.admin import Admin
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console.audit import AuditLog
from oberth.testing.embedded_broker import EmbeddedBroker


async def test_a_topic_is_made_shown_changed_purged_and_deleted(
    writer: Browser, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    page = await writer.write("topic.create", {"name": "Orders", "queues": "3", "type": "NORMAL"})
    assert "Topic Orders is there" in page
    listed = await writer.get("/topics")
    assert "Orders" in listed
    assert "NORMAL" in listed
    async with Producer("makers", config=broker.client_config) as producer:
        for number in range(6):
            await producer.send(Message("Orders", b"%d" % number))
        page = await writer.get("/topic", name="Orders")
        assert "6 messages kept" in page
        assert "makers" in page
    changed = {"name": "Orders", "read_queues": "4", "write_queues": "4", "perm": "r"}
    preview = await writer.post("/write/topic.change", changed)
    assert "queues to read" in preview
    async with Admin(config=broker.client_config) as admin:
        assert (await admin.topic_config(broker.address, "Orders")).read_queue_nums == 3
        await writer.post("/write/topic.change", confirmed(preview))
        config = await admin.topic_config(broker.address, "Orders")
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 4)
        assert config.attributes == {"message.type": "NORMAL"}
        assert "so already" in await writer.post("/write/topic.change", confirmed(preview), 400)
    await writer.write("topic.purge", {"name": "Orders", "before": "2100-01-01T00:00"})
    assert broker.messages("Orders") == []
    await writer.write("topic.delete", {"name": "Orders"})
    assert ">Orders<" not in await writer.get("/topics")
    lines = [
        json.loads(line) for line in (tmp_path / "audit.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(each["phase"], each.get("write")) for each in lines[:2]] == [
        ("begin", "topic.create"),
        ("end", None),
    ]
    assert lines[0]["id"] == lines[1]["id"]
    assert [each["write"] for each in lines if each["phase"] == "begin"] == [
        "topic.create", "topic.change", "topic.purge", "topic.delete",
    ]  # fmt: skip
    assert "topic.delete" in await writer.get("/audit")


async def test_nothing_is_written_where_it_is_not_allowed(
    reader: Browser, broker: EmbeddedBroker
) -> None:
    page = await reader.post("/write/topic.create", {"name": "Orders"}, 400)
    assert "--allow-writes" in page
    assert "Create a topic" not in await reader.get("/topics")
    await reader.get("/audit", 404)


async def test_a_confirmation_is_of_one_form_one_session_and_one_time(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    preview = await writer.post("/write/topic.create", {"name": "Orders"})
    fields = confirmed(preview)
    for altered in (
        {**fields, "name": ["Other"]},
        {**fields, "_confirm": ["a.1.b"]},
        {**fields, "_confirm": [""]},
    ):
        page = await writer.post("/write/topic.create", altered)
        assert "Nothing has been done yet" in page
    other = Browser(writer.console)
    async with other.http:
        await other.http.get("/login")
        page = await other.post("/write/topic.create", {**fields, "csrf": other.csrf()})
        assert "Nothing has been done yet" in page
    assert ">Orders<" not in await writer.get("/topics")
    await writer.post("/write/topic.create", fields)
    assert ">Orders<" in await writer.get("/topics", q="orders")
    async with Admin(config=broker.client_config) as admin:
        await admin.delete_topic("Orders")
    writer.console.cluster.forget()
    page = await writer.post("/write/topic.create", fields, 400)
    assert "not done twice" in page


async def test_what_cannot_be_is_said_before_anything_is_asked(writer: Browser) -> None:
    for name, fields, said in (
        ("topic.create", {"name": ""}, "the topic&#39;s name is missing"),
        ("topic.create", {"name": "a/b"}, "allowed are"),
        ("topic.create", {"name": "T", "queues": "0"}, "outside 1 to 1024"),
        ("topic.create", {"name": "T", "queues": "many"}, "no whole number"),
        ("topic.create", {"name": "T", "type": "odd"}, "message type"),
        ("topic.create", {"name": "T", "cluster": "none"}, "cluster"),
        ("topic.delete", {"name": "TBW102"}, "brokers&#39; own"),
        ("topic.purge", {"name": "T", "before": "soon"}, "is no time"),
    ):
        page = await writer.http.post(
            f"/write/{name}", data={**fields, "csrf": await token(writer)}
        )
        assert page.status_code in (400, 404, 502), (name, fields)
        assert said in page.text, (name, fields)
    await writer.post("/write/topic.delete", {"name": "Nothing"}, 404)
    await writer.post("/write/nothing", {}, 404)
    await writer.get("/topic", 404, name="Nothing")
    await writer.get("/topic", 400, name="../etc/passwd")


async def token(browser: Browser) -> str:
    return hidden((await browser.http.get("/topics")).text, "csrf")


async def test_ten_pages_of_topics(writer: Browser, broker: EmbeddedBroker) -> None:
    async with Admin(config=broker.client_config) as admin:
        for number in range(120):
            await admin.create_topic(f"topic-{number:03}", queue_nums=1)
    page = await writer.get("/topics")
    assert "Page 1 of 3" in page
    assert "topic-049" in page
    assert "topic-050" not in page
    last = await writer.get("/topics", page="3")
    assert "topic-119" in last
    assert "Page 3 of 3" in await writer.get("/topics", page="99999999999")
    found = await writer.get("/topics", q="-11")
    assert "topic-110" in found
    assert "topic-049" not in found
    assert "SCHEDULE_TOPIC" in await writer.get("/topics", system="1", q="schedule")
    for sort in ("rate", "kept"):
        await writer.get("/topics", sort=sort)


CHANGED = "has changed since it was shown"


async def test_a_topic_that_got_messages_or_readers_is_shown_again_before_it_is_deleted(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    async with Admin(config=broker.client_config) as admin:
        await admin.create_topic("Orders", queue_nums=1)
        await admin.create_group("billing")
        page = await writer.post("/write/topic.delete", {"name": "Orders"})
        async with Producer("makers", config=broker.client_config) as producer:
            await producer.send(Message("Orders", b"1"))
            page = await writer.post("/write/topic.delete", confirmed(page))
            assert CHANGED in page
            await admin.reset_offsets("billing", "Orders", 0)
            page = await writer.post("/write/topic.delete", confirmed(page))
            assert CHANGED in page
            await producer.send(Message("Orders", b"2"))  # it has messages, as it had
        assert "is deleted" in await writer.post("/write/topic.delete", confirmed(page))


async def test_a_purge_of_what_another_group_has_not_read_is_shown_again(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    async with (
        Admin(config=broker.client_config) as admin,
        Producer("makers", config=broker.client_config) as producer,
    ):
        await producer.send(Message("Orders", b"1"))
        await admin.create_group("billing")
        form = {"name": "Orders", "before": "2100-01-01T00:00", "force": "1"}
        page = await writer.post("/write/topic.purge", form)
        await admin.reset_offsets("billing", "Orders", 0)
        page = await writer.post("/write/topic.purge", confirmed(page))
        assert CHANGED in page
        assert "Not all consumed by: billing" in page
        assert broker.bodies("Orders") == [b"1"]
        assert "begins later" in await writer.post("/write/topic.purge", confirmed(page))


# The audit log


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


async def test_a_line_that_a_full_disk_cut_off_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(str(path))
    with monkeypatch.context() as full:
        full.setattr(os, "write", _Full(os.write, 10))
        with pytest.raises(OSError, match="No space"):
            log.begin(0, user="u", peer="", write="w", fields={}, changes=[])
        # A console that starts meanwhile writes nothing yet.
        size = path.stat().st_size
        log = AuditLog(str(path))
        assert path.stat().st_size == size
    made = log.begin(0, user="u", peer="", write="w", fields={}, changes=[])
    log.end(0, made, outcome="done", text="")
    assert [each["phase"] for each in log.tail()] == ["end", "begin"]
    assert len(_lines(path)) == 3


class _Full:
    """Writes a few bytes, and then there is no room."""

    def __init__(self, write: Callable[[int, bytes], int], room: int) -> None:
        self._write = write
        self._room = room

    def __call__(self, handle: int, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room, self._room = self._room, 0
        return self._write(handle, data[:room])


async def test_nothing_is_changed_that_the_audit_log_does_not_take(
    writer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = writer.console.audit
    assert audit is not None
    page = await writer.post("/write/topic.create", {"name": "Orders"})
    with monkeypatch.context() as full:
        full.setattr(os, "write", _Full(os.write, 0))
        refused = await writer.post("/write/topic.create", confirmed(page), 400)
    assert "nothing was done" in refused
    assert audit.path in refused
    # The disk has room again, and the same page confirms it.
    assert "is there" in await writer.post("/write/topic.create", confirmed(page))


async def test_what_was_done_is_shown_so_though_its_end_is_not_noted(
    writer: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit = writer.console.audit
    assert audit is not None

    def full(now_ms: int, identifier: str, *, outcome: str, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(audit, "end", full)
    assert "is there" in await writer.write("topic.create", {"name": "Orders"})
    assert "lacks the end of" in caplog.text
