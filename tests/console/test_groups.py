"""Pages of groups and dead letters: lag in messages and time, members, resets, re-drives."""

from __future__ import annotations

import pytest
from tests.console.conftest import Browser, confirmed

from oberth.client.admin import Admin, QueueProgress
from oberth.client.config import ClientConfig
from oberth.client.dead_letters import Shown
from oberth.client.messages import Message, MessageExt
from oberth.client.producer import Producer
from oberth.client.push_consumer import PushConsumer
from oberth.client.redrive_claim import RedriveClaim
from oberth.console.pages.groups import behind_ms
from oberth.errors import MQClientError
from oberth.remoting.bodies.base import MessageQueue
from oberth.testing.embedded_broker import EmbeddedBroker


async def fill(broker: EmbeddedBroker, count: int = 10) -> None:
    """Topic Orders with one queue, of which group billing has committed 4."""
    async with Admin(config=broker.client_config) as admin:
        await admin.create_topic("Orders", queue_nums=1)
        async with Producer("makers", config=broker.client_config) as producer:
            for number in range(count):
                await producer.send(Message("Orders", b"%d" % number, keys=f"k{number}"))
        await admin.create_group("billing")
        (queue,) = await admin.topic_queues("Orders")
        await admin.update_consume_offset("billing", queue, 4)


async def test_a_group_shows_its_lag(reader: Browser, broker: EmbeddedBroker) -> None:
    await fill(broker)
    listed = await reader.get("/groups")
    assert "billing" in listed
    assert '<td class="n">6</td>' in listed
    page = await reader.get("/group", name="billing")
    assert "<dd>6<small>messages</small></dd>" in page
    assert "Orders" in page
    assert "None is connected" in page
    assert "billing" in await reader.get("/topic", name="Orders")
    await reader.get("/group", 404, name="nobody")
    await reader.get("/group", 400, name="<b>")
    for sort in ("lag", "name"):
        await reader.get("/groups", sort=sort, q="ill", system="1")


def test_how_long_a_group_is_behind() -> None:
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    assert behind_ms([QueueProgress(queue, 9, 9, 9, 5000)], 7000) == 0
    assert behind_ms([QueueProgress(queue, 9, 8, 8, 5000)], 7000) == 2000
    assert behind_ms([QueueProgress(queue, 9, 0, 0, 0)], 7000) is None


@pytest.mark.parametrize(
    ("fields", "target", "said"),
    [
        ({"to": "earliest"}, 0, "4 messages are repeated"),
        ({"to": "latest"}, 10, "6 messages are skipped"),
        ({"to": "offset", "queue": "broker-a:0", "offset": "7"}, 7, "3 messages are skipped"),
        ({"to": "time", "at": "2100-01-01T00:00"}, 10, "6 messages are skipped"),
    ],
)
async def test_a_reset_is_shown_before_it_is_done(
    writer: Browser, broker: EmbeddedBroker, fields: dict[str, str], target: int, said: str
) -> None:
    await fill(broker)
    form = {"group": "billing", "topic": "Orders", **fields}
    preview = await writer.post("/write/group.reset", form)
    assert said in preview
    assert broker.offsets("billing", "Orders") == {0: 4}
    page = await writer.post("/write/group.reset", confirmed(preview))
    assert "goes on from here" in page
    assert broker.offsets("billing", "Orders") == {0: target}


async def test_a_reset_that_would_do_something_else_now_is_shown_again(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    await fill(broker)
    form = {"group": "billing", "topic": "Orders", "to": "time", "at": "2100-01-01T00:00"}
    preview = await writer.post("/write/group.reset", form)
    async with Producer("makers", config=broker.client_config) as producer:
        await producer.send(Message("Orders", b"one more"))
    page = await writer.post("/write/group.reset", confirmed(preview))
    assert "has changed since it was shown" in page
    assert broker.offsets("billing", "Orders") == {0: 4}
    await writer.post("/write/group.reset", confirmed(page))
    assert broker.offsets("billing", "Orders") == {0: 11}


async def test_resets_that_cannot_be(writer: Browser, broker: EmbeddedBroker) -> None:
    await fill(broker)
    base = {"group": "billing", "topic": "Orders"}
    for fields, said in (
        ({"to": "offset", "queue": "broker-a:0", "offset": "11"}, "outside 0 to 10"),
        ({"to": "offset", "queue": "broker-a:9", "offset": "1"}, "no such queue"),
        ({"to": "time"}, "the time is missing"),
        ({"to": "time", "at": "1969-12-31"}, "is before 1970"),
        ({"to": "nowhere"}, "allowed earliest"),
    ):
        assert said in await writer.post("/write/group.reset", {**base, **fields}, 400)


async def test_a_group_is_made_changed_and_deleted(writer: Browser, broker: EmbeddedBroker) -> None:
    await writer.write("group.save", {"name": "made", "retries": "3", "enabled": "1"})
    async with Admin(config=broker.client_config) as admin:
        assert (await admin.group_config(broker.address, "made")).retry_max_times == 3
        await writer.write("group.save", {"name": "made", "retries": "5"})
        config = await admin.group_config(broker.address, "made")
        assert (config.retry_max_times, config.consume_enable) == (5, False)
        await writer.post("/write/group.save", {"name": "made", "retries": "5"}, 400)
        await writer.write("group.delete", {"name": "made"})
        assert "made" not in await admin.group_list()
    await writer.post("/write/group.delete", {"name": "made"}, 404)
    await writer.post("/write/group.delete", {"name": "TOOLS_CONSUMER"}, 400)


async def test_a_group_that_reads_more_is_shown_again_before_it_is_deleted(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    await fill(broker)
    page = await writer.post("/write/group.delete", {"name": "billing"})
    async with Admin(config=broker.client_config) as admin:
        await admin.create_topic("Returns")
        await admin.reset_offsets("billing", "Returns", 0)
        page = await writer.post("/write/group.delete", confirmed(page))
        assert "has changed since it was shown" in page
        assert broker.offsets("billing", "Orders") == {0: 4}
        await writer.post("/write/group.delete", confirmed(page))
        assert broker.offsets("billing", "Orders") == {}


async def test_members_that_disagree_are_named(reader: Browser, broker: EmbeddedBroker) -> None:
    await fill(broker)

    def consumer(name: str, expression: str) -> PushConsumer:
        return PushConsumer(
            "eaters",
            {"Orders": expression},
            listener=lambda message: None,
            config=ClientConfig(namesrv_addr=broker.namesrv_addr, instance_name=name),
        )

    async with consumer("one", "A || B"), consumer("two", "A"):
        page = await reader.get("/group", name="eaters")
        assert "Members disagree" in page
        assert "A || B" in page
        assert page.count('<span class="level warning">differs</span>') == 2
        async with Admin(config=broker.client_config) as admin:
            members = (await admin.consumer_connection("eaters")).connection_set
        stack = await reader.get("/stack", name="eaters", client=members[0].client_id)
        assert "Where its threads are" in stack
        groups = await reader.get("/groups")
        assert "eaters" in groups


async def test_dead_letters_are_picked_and_sent_again(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    await fill(broker, 3)

    def fail(message: MessageExt) -> None:
        raise ValueError("no")

    async with PushConsumer(
        "failing", {"Orders": "*"}, listener=fail, max_reconsume_times=0,
        config=broker.client_config,
    ):  # fmt: skip
        await broker.wait_until(lambda: len(broker.dead_letters("failing")) == 3, what="letters")
    assert "failing" in await writer.get("/letters")
    assert "3 dead letters" in await writer.get("/")
    page = await writer.get("/letters", group="failing")
    assert page.count('name="letter"') == 3
    letter = broker.dead_letters("failing")[0]
    place = f"broker-a:{letter.queue_id}:{letter.queue_offset}"
    form = {"group": "failing", "letter": [place]}
    preview = await writer.post("/write/letters.redrive", form)
    assert "would be redriven: Orders" in preview
    assert len(broker.messages("Orders")) == 3
    async with (
        Admin(config=broker.client_config) as admin,
        RedriveClaim(admin, ["%DLQ%failing"]),
    ):
        refused = await writer.post("/write/letters.redrive", confirmed(preview), 502)
    assert "another redrive of the dead letters of failing is at work" in refused
    assert len(broker.messages("Orders")) == 3
    done = await writer.write("letters.redrive", form)
    assert "1 redriven" in done
    again = [each for each in broker.messages("Orders") if "REDRIVEN_FROM" in each.properties]
    assert [each.body for each in again] == [letter.body]
    assert again[0].properties["REDRIVEN_FROM"] == letter.offset_msg_id
    assert "1 already" in await writer.write("letters.redrive", form)
    assert len(broker.messages("Orders")) == 4
    await writer.post("/write/letters.redrive", {"group": "failing"}, 400)
    await writer.post("/write/letters.redrive", {"group": "failing", "letter": ["x"]}, 400)
    await writer.post("/write/letters.redrive", {**form, "letter": ["broker-a:0:99"]}, 404)
    assert "There are none" in await writer.get("/letters", group="nobody")


async def test_a_topic_that_shows_nothing_keeps_no_others_letters(
    writer: Browser, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(config=broker.client_config) as admin:
        for topic in ("Orders", "%DLQ%failing"):
            await admin.create_topic(topic, queue_nums=1)
    async with Producer("p", config=broker.client_config) as producer:
        for topic in ("Hidden", "Orders"):
            letter = Message("%DLQ%failing", b"x")
            letter.properties["DLQ_ORIGIN_TOPIC"] = topic
            await producer.send(letter)
    await broker.wait_until(lambda: len(broker.dead_letters("failing")) == 2, what="letters")

    async def look(self: Shown, topic: str) -> None:
        if topic == "Hidden":
            raise MQClientError("Hidden shows nothing")

    monkeypatch.setattr(Shown, "_look", look)
    places = [f"broker-a:{each.queue_id}:{each.queue_offset}"
              for each in broker.dead_letters("failing")]  # fmt: skip
    form = {"group": "failing", "letter": places}
    preview = await writer.post("/write/letters.redrive", form)
    assert "not sent now: Hidden shows nothing" in preview
    assert "would be redriven: Orders" in preview
    done = await writer.post("/write/letters.redrive", confirmed(preview), 502)
    assert "1 failed" in done
    assert "1 redriven" in done
    assert len(broker.messages("Orders")) == 1
