"""Commands about connected clients: producers, what members tell, one message consumed now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.client.blocking import Producer, PushConsumer
from oberth.client.messages import Message, MessageExt
from oberth.testing.blocking import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


def run(broker: EmbeddedBroker, words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(oberth, [*words.split(), "-n", broker.namesrv_addr])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def read(broker: EmbeddedBroker, words: str, code: int = 0) -> Any:
    return json.loads(run(broker, f"{words} --json", code).stdout)


def test_members_producers_and_one_message(broker: EmbeddedBroker) -> None:
    run(broker, "topic create Flights --queues 1")
    seen: list[bytes] = []

    def listen(message: MessageExt) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            raise ValueError("not a third time")

    with (
        Producer("Makers", config=broker.client_config) as producer,
        PushConsumer(
            "Readers", {"Flights": "*"}, listener=listen, config=broker.client_config
        ) as consumer,
    ):
        sent = producer.send(Message("Flights", b"one"))
        broker.wait_until(lambda: seen == [b"one"], what="the message")
        again = f"message resend Flights {sent.msg_id} --group Readers"
        made = read(broker, again)
        assert (made["result"], made["clientId"]) == ("CR_SUCCESS", consumer.client_id)
        assert made["offsetMsgId"] == sent.offset_msg_id
        assert seen == [b"one"] * 2
        made = read(broker, f"{again} --client {consumer.client_id}", code=1)
        assert made["result"] == "CR_THROW_EXCEPTION"
        assert "not a third time" in made["remark"]
        assert "no member 'x'" in str(run(broker, f"{again} --client x", code=1).exception)

        (info,) = read(broker, "group running Readers --stack")
        assert info["clientId"] == consumer.client_id
        queue = next(each for each in info["queues"] if each["topic"] == "Flights")
        assert queue["queue"] == 0
        assert queue["lastPull"].endswith("Z")
        assert "thread MainThread" in info["stack"]
        assert "test_clients.py" in info["stack"]
        (info,) = read(broker, f"group running Readers {consumer.client_id}")
        assert info["stack"] is None
        for_people = run(broker, "group running Readers --stack").stdout
        assert "thread MainThread" in for_people

        (row,) = read(broker, "topic producers Flights --group Makers")
        assert row["client"] == producer.client_id
        assert row["lastSeen"].endswith("Z")


def test_nobody_is_said(broker: EmbeddedBroker) -> None:
    run(broker, "topic create Quiet --queues 1")
    assert "no producer" in run(broker, "topic producers Quiet --group Nobody", code=1).stderr
