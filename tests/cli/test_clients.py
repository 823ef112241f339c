"""Commands about connected clients: producers, what members tell, one message consumed now."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
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


_WITH_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a script started us
from oberth.cli.main import main
main(sys.argv[1:])
"""


def test_ctrl_c_ends_a_send_that_waits_for_a_line(broker: EmbeddedBroker) -> None:
    words = [sys.executable, "-c", _WITH_CTRL_C, "message", "send", "Lines"]
    with subprocess.Popen(
        [*words, "-n", broker.namesrv_addr],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        process.send_signal(signal.SIGINT)
        # stdin stays open: only the signal can end it.
        assert (
            process.stderr.readline() == "stopped; 1 messages were sent, those that are printed\n"
        )
        assert process.wait(120) == 130
    assert broker.bodies("Lines") == [b"one"]
