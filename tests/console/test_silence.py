"""A broker that hangs: pages show what the others answer, say which one does not, and wait once."""

from __future__ import annotations

import json

import pytest
from tests.console.conftest import a_console
from tests.rigs.silent_broker import ADDRESS, NAME, SilentBroker

from oberth.client.admin import Admin
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console.config import Login
from oberth.console.silence import SILENT_S, Silence
from oberth.errors import RemotingTimeoutError
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker

SAID = f"<b>{NAME} does not answer.</b>"
ERROR = RemotingTimeoutError("no response")


def test_nobody_waits_for_the_same_silence() -> None:
    now = [0.0]
    silence = Silence(lambda: now[0])
    silence.note("a:1", ERROR, waited_s=0.0)
    silence.check("a:1")  # an error that comes at once costs nothing
    silence.note("a:1", ERROR, waited_s=5.0)
    with pytest.raises(RemotingTimeoutError):
        silence.check("a:1")
    silence.check("b:1")
    now[0] += SILENT_S
    with pytest.raises(RemotingTimeoutError):
        silence.check("a:1", is_slow=True)  # it does not find out who answers again
    silence.check("a:1")  # this one asks,
    with pytest.raises(RemotingTimeoutError):
        silence.check("a:1")  # and this one does not wait with it
    silence.forget("a:1")
    silence.check("a:1")


async def filled(broker: EmbeddedBroker) -> None:
    async with (
        Producer("makers", config=broker.client_config) as producer,
        Admin(config=broker.client_config) as admin,
    ):
        for number in range(4):
            await producer.send(Message("Orders", b"body-%d" % number, keys=f"key-{number}"))
        await producer.send(Message("%DLQ%reports", b"letter", keys="dead-key"))
        for queue in await admin.topic_queues("Orders"):
            await admin.update_consume_offset("reports", queue, 0)


async def test_pages_show_what_the_other_brokers_answer(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker)
    async with a_console(broker) as browser:
        mute = SilentBroker(monkeypatch)
        browser.console.silence.now_s = lambda: mute.waited_s
        message = broker.messages("Orders")[0]
        place = f"{message.broker_name}:{message.queue_id}"
        at = f"/message?topic=Orders&queue={place}&offset={message.queue_offset}"
        for path, shown in {
            "/topic?name=Orders": "4 messages kept",
            "/": "broker-a",
            "/topics": "Orders",
            "/messages?topic=Orders": "body-3",
            "/messages?topic=Orders&key=key-2": "body-2",
            at: message.msg_id,
            "/groups": "reports",
            "/group?name=reports": "Lag",
            "/letters": "reports",
            "/letters?group=reports": "dead-key",
            "/waiting": "Timers",
            "/access": "Access",
            "/settings": "broker-a",
        }.items():
            page = await browser.get(path)
            assert shown in page, path
            assert SAID in page, path
        # All of these pages waited for it once.
        assert mute.waited_s == browser.console.admin._timeout_s
        assert mute.asked == [RequestCode.GET_TOPIC_STATS_INFO]
        page = await browser.get("/group", 502, name="nobody")  # it may know that group
        assert "no broker knows group" not in page


async def test_a_broker_that_hangs_keeps_its_place_in_the_lists(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it told last stays, as long as name servers name it, and the others are asked on."""
    await filled(broker)
    async with a_console(broker) as browser:
        assert SAID not in await browser.get("/")
        before = browser.console.cluster.state
        assert before.lag("reports") == 4
        broker.faults.disconnect(
            [
                RequestCode.GET_ALL_TOPIC_CONFIG,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                RequestCode.GET_TOPIC_STATS_INFO,
            ],
            times=1000,
        )
        page = await browser.get("/")
        after = browser.console.cluster.state
        assert "<b>broker-a does not answer.</b>" in page
        assert after.at_s > before.at_s
        assert (after.topics, after.groups, after.offsets) == (
            before.topics, before.groups, before.offsets,
        )  # fmt: skip
        assert after.lag("reports") == 4
        broker.faults.clear()
        assert "does not answer" not in await browser.get("/")


async def test_a_look_at_a_hanging_broker_is_no_reason_to_look_less(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_console(broker) as browser:
        cluster = browser.console.cluster
        broker.faults.slow([RequestCode.GET_BROKER_RUNTIME_INFO], delay_s=0.5)
        await cluster.look()
        assert cluster._cost_s < 0.5 <= cluster._now_s() - cluster.state.at_s


async def test_users_log_in_while_a_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    root = {"username": "root", "password": "root-password"}
    inner = {"accessKey": "root", "secretKey": "root-password"}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(root),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }
    async with (
        EmbeddedBroker(settings) as broker,
        a_console(broker, login=Login.USERS) as browser,
    ):
        mute = SilentBroker(monkeypatch)
        browser.console.silence.now_s = lambda: mute.waited_s
        await browser.post("/login", {"user": "root", "password": "wrong"}, 403)
        await browser.post("/login", {"user": "root", "password": "root-password"}, 303)
        browser.http.cookies.clear()
        monkeypatch.setattr(Admin, "masters", only_a_silent_one)
        page = await browser.post("/login", {"user": "root", "password": "root-password"}, 403)
        assert "No broker answers" in page


async def only_a_silent_one(self: Admin, cluster: str | None = None) -> dict[str, str]:
    return {NAME: ADDRESS}
