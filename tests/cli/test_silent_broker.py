"""Commands while one broker hangs: what the others answer, its name, and exit code 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from tests.rigs.silent_broker import ADDRESS, NAME, SilentBroker

from oberth.cli.main import oberth
from oberth.client.blocking import Admin, Producer
from oberth.client.messages import Message
from oberth.errors import RemotingTimeoutError
from oberth.testing.blocking import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        config = made.client_config
        with Producer("makers", config=config) as producer, Admin(config=config) as admin:
            producer.send(Message("Orders", b"body", keys="key-1"))
            admin.create_group("reports")
            for queue in admin.topic_queues("Orders"):
                admin.update_consume_offset("reports", queue, 0)
        yield made


def run(broker: EmbeddedBroker, words: str) -> Result:
    return CliRunner().invoke(oberth, [*words.split(), "-n", broker.namesrv_addr])


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("topic show Orders", "broker-a"),
        ("topic producers Orders", "broker"),
        ("group list", "reports"),
        ("group progress", "reports"),
        ("group progress reports", "Orders"),
        ("group progress reports --topic Orders", "Orders"),
        ("message query Orders --key key-1", "key-1"),
        ("cluster list", "broker-a"),
        ("cluster retention", "broker-a"),
    ],
)
def test_lists_show_what_the_other_brokers_answer(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, words: str, shown: str
) -> None:
    assert run(broker, words).exit_code in (0, 1)
    mute = SilentBroker(monkeypatch)
    result = run(broker, words)
    assert result.exit_code == 1, result.output
    assert shown in result.output
    assert NAME in result.stderr
    assert ADDRESS in result.stderr
    assert len(mute.asked) == 1


@pytest.mark.parametrize(
    "words", ["group delete reports", "group reset reports Orders --earliest", "cluster dump"]
)
def test_nothing_is_decided_by_half_an_answer(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    SilentBroker(monkeypatch)
    result = run(broker, words)
    assert isinstance(result.exception, RemotingTimeoutError)
    assert result.stdout == ""


def test_top_waits_once_in_a_round(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = SilentBroker(monkeypatch)
    result = run(broker, "top --once --interval 0.2")
    assert NAME in result.output
    assert "no response from" in result.output
    assert len(mute.asked) == 2  # rounds, for the rates between them
