"""Pages of what waits, of access and of settings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.console.conftest import Browser, a_console, confirmed

from oberth.client.messages import Message, MessageExt
from oberth.client.producer import Producer
from oberth.client.transactions import LocalTransactionState, TransactionProducer
from oberth.console.cluster import BrokerKey
from oberth.console.pages import waiting as pages_waiting
from oberth.console.pages.settings import first_choice
from oberth.console.pages.waiting import still_timed
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker


class Undecided:
    """Leaves its transactions open, and commits those that the first one did not mean."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE if arg else LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


async def test_what_waits_is_shown(reader: Browser, broker: EmbeddedBroker) -> None:
    page = await reader.get("/waiting")
    assert "No message was ever delayed" in page
    async with TransactionProducer("makers", Undecided(), config=broker.client_config) as producer:
        await producer.send(Message("Later", b"timed", keys="timed-key", delay_ms=3_600_000))
        await producer.send(Message("Later", b"levelled", delay_time_level=18))
        await producer.send_message_in_transaction(Message("Money", b"x", keys="open-key"))
        await producer.send_message_in_transaction(Message("Money", b"x", keys="done-key"), True)
        await broker.wait_until(lambda: len(broker.messages("Money")) == 1, what="a commit")
        broker.advance(seconds=4)  # ends of transactions are noted together
        page = await reader.get("/waiting")
    assert "timed-key" in page
    assert "open-key" in page
    assert "done-key" not in page
    assert "makers" in page
    levels = page[page.index("Delay levels") :]
    assert '<td class="n">18</td><td class="n">1</td><td class="n">1</td>' in levels


def timed(offset: int, due_ms: int, **properties: str) -> Any:
    return SimpleNamespace(
        queue_offset=offset,
        broker_name="broker-a",
        properties={"REAL_TOPIC": "Later", "TIMER_OUT_MS": str(due_ms), **properties},
    )


def test_what_was_recalled_or_stored_again_does_not_wait() -> None:
    found = [
        timed(8, 5000, UNIQ_KEY="rolls", TIMER_ROLL_TIMES="2"),
        timed(7, 3000, UNIQ_KEY="later"),
        timed(6, 2000, UNIQ_KEY="a", TIMER_DEL_UNIQKEY="Later+recalled"),
        timed(5, 2000, UNIQ_KEY="b", TIMER_DEL_UNIQKEY="other"),
        timed(4, 5000, UNIQ_KEY="rolls", TIMER_ROLL_TIMES="1"),
        timed(3, 2000, UNIQ_KEY="other", REAL_TOPIC="Else"),
        timed(2, 2000, UNIQ_KEY="recalled"),
        timed(1, 2000, UNIQ_KEY="other"),
        timed(0, 2000),
    ]
    kept = [(each.queue_offset, due_ms) for each, due_ms in still_timed(found)]
    assert kept == [(8, 5000), (7, 3000), (3, 2000), (0, 2000)]


async def test_a_recalled_message_waits_no_more_and_a_cut_look_says_so(
    reader: Browser, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.broker.parts.config.recall_message_enable = True
    async with Producer("makers", config=broker.client_config) as producer:
        await producer.send(Message("Later", b"timed", keys="stays", delay_ms=3_600_000))
        sent = await producer.send(
            Message("Later", b"timed", keys="recalled-key", delay_ms=3_600_000)
        )
        assert "recalled-key" in await reader.get("/waiting")
        await producer.recall_message("Later", sent.recall_handle or "")
    page = await reader.get("/waiting")
    assert "stays" in page
    assert "recalled-key" not in page
    assert "looked at" not in page
    assert page.count('class="snip code"') == 1
    monkeypatch.setattr(pages_waiting, "LOOKED_MAX", 2)
    page = await reader.get("/waiting")
    assert "only the 2 that were stored last were looked at" in page


async def test_settings_of_a_silent_broker_leave_the_choice_of_another(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    broker.faults.disconnect([RequestCode.GET_BROKER_CONFIG])
    page = await writer.get("/settings", 502)
    assert "broker-a does not answer: connection to " in page
    assert f'<option value="{broker.address}" selected>' in page
    hanging, master, slave = (
        BrokerKey(name, number, f"10.0.0.{number}:10911")
        for name, number in (("a", 0), ("b", 0), ("b", 1))
    )
    keys = [hanging, master, slave]
    answers = {hanging: {}, master: {"putTps": "0"}, slave: {"putTps": "0"}}
    assert first_choice(keys, answers) == master
    assert first_choice(keys, {key: {} for key in keys}) == hanging


async def test_a_setting_is_changed_and_shown(writer: Browser, broker: EmbeddedBroker) -> None:
    page = await writer.get("/settings")
    assert "mappedFileSizeCommitLog" in page
    assert "deleteWhen" not in page
    found = await writer.get("/settings", q="fileReservedTime", address=broker.address)
    assert "hours" in found
    form = {"address": broker.address, "key": "fileReservedTime", "value": "48"}
    preview = await writer.post("/write/setting.set", form)
    assert broker.broker.parts.store_config.file_reserved_time_hours == 72
    assert "48 now" in await writer.post("/write/setting.set", confirmed(preview))
    assert broker.broker.parts.store_config.file_reserved_time_hours == 48
    for fields, said in (
        ({"key": "fileReservedTim"}, "did you mean fileReservedTime"),
        ({"value": "soon"}, "is not an integer"),
        ({"value": "48"}, "already"),
        ({"address": "127.0.0.1:1"}, "no broker at"),
        ({"key": "innerClientAuthenticationCredentials", "value": "x"}, "secret"),
    ):
        assert said in await writer.post("/write/setting.set", {**form, **fields}, 400)


async def test_secrets_are_not_shown() -> None:
    secret = json.dumps({"accessKey": "inner", "secretKey": "do-not-show-this"})
    settings = {"innerClientAuthenticationCredentials": secret}
    async with EmbeddedBroker(settings) as broker, a_console(broker) as browser:
        page = await browser.get("/settings", all="1")
        assert "innerClientAuthenticationCredentials" in page
        assert "do-not-show-this" not in page


async def test_users_and_policies(writer: Browser, broker: EmbeddedBroker, tmp_path: Path) -> None:
    made = {"user": "anna", "password": "a-long-secret", "type": "Normal", "status": "enable"}
    await writer.write("user.save", made)
    await writer.write("user.save", {**made, "password": "", "status": "disable"})
    page = await writer.get("/access")
    assert "anna" in page
    assert "disabled" in page
    kept = json.loads((broker.store_dir / "config" / "authUsers.json").read_text())
    assert kept["users"][0]["password"] == "a-long-secret"
    assert "a-long-secret" not in (tmp_path / "audit.jsonl").read_text("utf-8")
    policy = {"user": "anna", "resource": "Topic:Orders", "action": ["Pub", "Sub"]}
    await writer.write("policy.save", policy)
    page = await writer.get("/access", q="anna")
    assert "Topic:Orders" in page
    assert "Pub, Sub" in page
    preview = await writer.post("/write/policy.save", {**policy, "action": ["Sub"]})
    assert "Custom: Allow Pub, Sub on Topic:Orders" in preview
    gone = await writer.post("/write/policy.delete", {"user": "anna", "resource": "Topic:Orders"})
    await writer.write("policy.save", {**policy, "action": ["Pub"]})
    for name, page in (("save", preview), ("delete", gone)):
        page = await writer.post(f"/write/policy.{name}", confirmed(page))
        assert "has changed since it was shown" in page
        assert "Custom: Allow Pub on Topic:Orders" in page
    await writer.write("policy.delete", {"user": "anna", "resource": "Topic:Orders"})
    assert "Topic:Orders" not in (await writer.get("/access")).partition("<details")[0]
    await writer.write("user.delete", {"user": "anna"})
    assert "anna" not in await writer.get("/access")
    for name, fields, said in (
        ("user.save", {**made, "password": ""}, "a password is needed"),
        ("user.save", {**made, "type": "odd"}, "Normal or Super"),
        ("user.delete", {"user": "nobody"}, "no broker knows"),
        ("policy.save", {**policy, "action": ["Odd"]}, "actions are of"),
        ("policy.save", {**policy, "resource": "Odd:x"}, "is no resource"),
    ):
        assert said in await writer.post(f"/write/{name}", fields, 400)
