"""``oberth dlq``: letters that a listener left by failing; and ``group progress``."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.cli.output import reader_is_gone
from oberth.client.blocking import Producer, PushConsumer
from oberth.client.dead_letters import new_message
from oberth.client.messages import Message, MessageExt
from oberth.errors import MQBrokerError, MQClientError, RemotingConnectError
from oberth.testing.blocking import EmbeddedBroker

COUNT = 3
UNKNOWN = "no broker knows group 'Nobody'; `oberth group list` shows what is there\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Its group Failing has COUNT dead letters of topic Orders."""

    def fail(message: MessageExt) -> None:
        raise ValueError(message.body)

    with EmbeddedBroker() as made:
        run(made, "topic create Orders --queues 1")
        with (
            Producer("Makers", config=made.client_config) as producer,
            PushConsumer(
                "Failing",
                {"Orders": "*"},
                listener=fail,
                max_reconsume_times=0,
                config=made.client_config,
            ),
        ):
            for number in range(COUNT):
                producer.send(
                    Message(
                        "Orders",
                        b"%d" % number,
                        keys=f"k{number}",
                        tags="A",
                        properties={"mine": "kept"},
                    )
                )
            made.wait_until(lambda: len(made.dead_letters("Failing")) == COUNT, what="letters")
        yield made


def run(broker: EmbeddedBroker, words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(oberth, [*words.split(), "-n", broker.namesrv_addr])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def lines(broker: EmbeddedBroker, words: str, code: int = 0) -> list[Any]:
    return [json.loads(each) for each in run(broker, f"{words} --json", code).stdout.splitlines()]


def test_letters_are_listed(broker: EmbeddedBroker) -> None:
    found = lines(broker, "dlq list Failing")
    assert sorted(each["body"] for each in found) == ["0", "1", "2"]
    assert {(each["group"], each["originTopic"]) for each in found} == {("Failing", "Orders")}
    assert lines(broker, "dlq list") == found
    unknown = run(broker, "dlq list Nobody", 1)
    assert unknown.stdout == ""
    assert unknown.stderr == UNKNOWN
    run(broker, "group create Idle")
    assert lines(broker, "dlq list Idle") == []
    assert lines(broker, "dlq list --until 2001-01-01") == []
    limited = run(broker, "dlq list --limit 2")
    assert "2 dead letters, and more" in limited.stderr
    assert "Orders" in limited.stdout


def test_a_message_that_is_not_there(broker: EmbeddedBroker) -> None:
    by_id = run(broker, "message query Orders --id 7F0000010A2C000000000001E240", 1)
    assert by_id.stderr == "Orders has no message with id 7F0000010A2C000000000001E240\n"
    by_key = run(broker, "message query Orders --key nothing", 1)
    assert by_key.stderr == "Orders has no message with key 'nothing' stored in that time\n"
    resend = "message resend Orders 7F0000010A2C000000000001E240 --group Failing"
    again = run(broker, resend, 1)
    assert again.stderr == by_id.stderr.replace("\n", ", nothing was sent again\n")
    assert run(broker, f"{resend} --json", 1).stderr == again.stderr
    assert by_id.stdout == by_key.stdout == again.stdout == ""


def test_what_nobody_could_be_asked_is_not_said() -> None:
    """Where no server answers, nothing is known about dead letters."""
    result = CliRunner().invoke(oberth, ["dlq", "redrive", "Failing", "-n", "127.0.0.1:1"])
    assert isinstance(result.exception, RemotingConnectError)
    assert result.output == ""


def test_letters_are_sent_again_once(broker: EmbeddedBroker) -> None:
    letters = {each["offsetMsgId"]: each for each in lines(broker, "dlq list Failing")}
    planned = lines(broker, "dlq redrive Failing --dry-run")
    assert {each["deadLetterId"] for each in planned} == letters.keys()
    assert {each["status"] for each in planned} == {"would be redriven"}
    assert len(broker.messages("Orders")) == COUNT

    chosen = next(iter(letters))
    (receipt,) = lines(broker, f"dlq redrive Failing --id {chosen}")
    assert (receipt["status"], receipt["originTopic"]) == ("redriven", "Orders")
    made = broker.messages("Orders")[-1]
    assert (made.offset_msg_id, made.queue_offset) == (receipt["messageId"], COUNT)
    assert made.body.decode() == letters[chosen]["body"]
    assert (made.keys, made.tags) == (letters[chosen]["keys"], "A")
    assert made.msg_id == letters[chosen]["msgId"]
    assert (made.properties["mine"], made.properties["REDRIVEN_FROM"]) == ("kept", chosen)
    assert made.reconsume_times == 0
    assert "RETRY_TOPIC" not in made.properties

    shown = run(broker, "dlq redrive Failing")
    assert "2 redriven" in shown.stderr
    assert "1 already" in shown.stderr
    again = lines(broker, "dlq redrive Failing")
    assert {each["status"] for each in again} == {"already"}
    assert len(broker.messages("Orders")) == 2 * COUNT
    assert len(broker.dead_letters("Failing")) == COUNT
    none = run(broker, "dlq redrive Nobody", code=1)
    assert (none.stdout, none.stderr) == ("", UNKNOWN)
    none = run(broker, "dlq redrive Failing --id zz --dry-run", code=1)
    assert none.stderr == "group Failing has no dead letters with id zz\n"


def test_a_delay_or_transaction_that_is_over_does_not_begin_again(broker: EmbeddedBroker) -> None:
    letter = broker.dead_letters("Failing")[0]
    letter.properties.update(
        {"TIMER_DELAY_MS": "60000", "TRAN_MSG": "true", "PGROUP": "P", "__RMQ.TRANSIENT.x": "1"}
    )
    kept = new_message(letter).properties
    assert kept.keys() == {"WAIT", "KEYS", "TAGS", "UNIQ_KEY", "mine", "REDRIVEN_FROM"}


def test_progress_of_all_groups(broker: EmbeddedBroker) -> None:
    run(broker, "group create Behind")
    run(broker, "group reset Behind Orders --earliest")
    rows = {each["group"]: each for each in json.loads(run(broker, "group progress --json").stdout)}
    assert rows["Behind"]["lag"] >= COUNT
    only = json.loads(run(broker, "group progress --topic Orders --json").stdout)
    assert "Behind" in [each["group"] for each in only]
    run(broker, "group progress --check", code=1)
    run(broker, "group delete Behind")


@pytest.mark.parametrize("time", ["-3600000", "-1", "1969-12-31"])
def test_a_time_before_1970_moves_no_group(broker: EmbeddedBroker, time: str) -> None:
    """Brokers take it for the end: the group would never get what it has not consumed."""
    run(broker, "group create Behind")
    run(broker, "group reset Behind Orders --earliest")
    refused = run(broker, f"group reset Behind Orders --to {time}", code=2)
    assert "is before 1970" in refused.stderr
    assert broker.offsets("Behind", "Orders") == {0: 0}
    run(broker, "group reset Behind Orders --to 0")
    assert broker.offsets("Behind", "Orders") == {0: 0}
    run(broker, "group delete Behind")


def test_what_is_the_brokers_own_is_listed_when_asked_for(broker: EmbeddedBroker) -> None:
    def names(words: str) -> set[str]:
        return {next(iter(each.values())) for each in json.loads(run(broker, words).stdout)}

    shown, every = names("topic list --json"), names("topic list --system --json")
    assert "Orders" in shown
    assert "TBW102" in every - shown
    assert not {each for each in shown if each.startswith(("rmq_sys_", "RMQ_SYS_"))}
    shown, every = names("group list --json"), names("group list --system --json")
    assert "Failing" in shown
    assert shown <= every
    assert not {each for each in shown if each.startswith("CID_RMQ_SYS_")}


def test_progress_of_a_topic_that_is_not_there(broker: EmbeddedBroker) -> None:
    words = ["group", "progress", "--topic", "Nowhere", "-n", broker.namesrv_addr]
    result = CliRunner().invoke(oberth, words)
    assert isinstance(result.exception, MQBrokerError | MQClientError)
    assert "no topic 'Nowhere'" in str(result.exception)
    run(broker, "topic create Unread")
    assert "0 groups, lag 0" in run(broker, "group progress --topic Unread").stderr


def test_failover_of_a_broker_that_is_not_there_names_those_that_are(
    broker: EmbeddedBroker,
) -> None:
    words = ["cluster", "failover", "nowhere", "-n", broker.namesrv_addr]
    result = CliRunner().invoke(oberth, words)
    (known,) = {each["broker"] for each in json.loads(run(broker, "cluster list --json").stdout)}
    assert str(result.exception) == f"no broker 'nowhere' is known; there are: {known}"


ASCII: Final = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF8: Final = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def _oberth(
    broker: EmbeddedBroker, *words: bytes, body: bytes = b"", locale: Mapping[str, str] = ASCII
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "oberth", *words, "-n", broker.namesrv_addr],
        input=body,
        capture_output=True,
        env={**os.environ, **locale},
        timeout=120,
        check=False,
    )


def test_bytes_that_the_locale_cannot_read_are_sent_as_they_are(broker: EmbeddedBroker) -> None:
    run(broker, "topic create Snow --queues 1")
    word = "gr\u00fc\u00dfe \u2603".encode()
    done = _oberth(broker, b"message", b"send", b"Snow", word)
    assert (done.returncode, done.stderr) == (0, b"")
    done = _oberth(broker, b"message", b"send", b"Snow", body=b"\xff\xfe\n" + word, locale=UTF8)
    assert (done.returncode, done.stderr) == (0, b"")
    assert broker.bodies("Snow") == [word, b"\xff\xfe", word]

    # What the locale cannot show is escaped, and is JSON.
    tail = [b"message", b"tail", b"Snow", b"--from-start", b"--no-follow"]
    shown = _oberth(broker, *tail)
    assert (shown.returncode, shown.stderr) == (0, b"")
    bodies = [json.loads(line).get("body") for line in shown.stdout.decode("ascii").splitlines()]
    assert bodies == [word.decode(), None, word.decode()]
    refused = _oberth(broker, b"message", b"send", b"Snow", b"x", b"--tag", b"\xff", locale=UTF8)
    assert refused.returncode == 2
    assert refused.stderr == b"error: '\\udcff' is no text in UTF-8\n"


def test_a_pipe_whose_reader_has_gone_is_noticed() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        assert not reader_is_gone(stream)
        os.close(reading)
        assert reader_is_gone(stream)
    assert not reader_is_gone(io.StringIO())
