"""Commands while one broker hangs: what the others answer, its name, and exit code 1."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.rigs.silent_broker import ADDRESS, NAME, SilentBroker

from oberth.cli import message
from oberth.cli.main import oberth
from oberth.client.admin import Admin as LoopAdmin
from oberth.client.blocking import Admin, Producer
from oberth.client.messages import Message
from oberth.errors import RemotingTimeoutError
from oberth.formats import properties as p
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
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
            letter = Message("%DLQ%reports", b"letter", keys="dead-key")
            letter.properties[p.DLQ_ORIGIN_TOPIC] = "Orders"
            producer.send(letter)
        policy = "acl policy create anna --resource Topic:Orders --action Pub"
        for words in ("acl user create root --super", "acl user create anna", policy):
            environment = {"OBERTH_NEW_PASSWORD": "long-enough"}
            made_it = CliRunner().invoke(
                oberth, [*words.split(), "-n", made.namesrv_addr], env=environment
            )
            assert made_it.exit_code == 0, made_it.output
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
        ("topic create Fresh", "every broker that answers"),
        ("topic purge Orders --before 2001-01-01 --dry-run", "min offset"),
        ("group create fresh", "16 attempts"),
        ("group reset reports Orders --earliest", "broker-a"),
        ("acl user list", "root"),
        ("acl policy list", "anna"),
        ("acl user update anna --status enable", "updated"),
        ("acl policy create anna --resource Topic:More --action Sub", "created"),
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


@pytest.mark.parametrize(("kind", "name"), [("topic", "Gone"), ("group", "gone")])
def test_the_others_delete(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    assert run(broker, f"{kind} create {name}").exit_code == 0
    with monkeypatch.context() as hanging:
        mute = SilentBroker(hanging)
        result = run(broker, f"{kind} delete {name}")
        assert result.exit_code == 1
        assert f"{kind} {name}: deleted\n" in result.stderr
        assert f"{NAME} does not answer, nothing is known to have changed there" in result.stderr
        assert len(mute.asked) == 1
        again = run(broker, f"{kind} delete {name}")
        assert again.exit_code == 1
        assert "there is none" in again.stderr
        assert NAME in again.stderr  # it may still have it
    assert name not in run(broker, f"{kind} list").stdout


def test_nothing_is_written_of_half_a_cluster(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    SilentBroker(monkeypatch)
    result = run(broker, "cluster dump")
    assert isinstance(result.exception, RemotingTimeoutError)
    assert result.stdout == ""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A file for `cluster apply` with two topics that no broker has."""
    path = tmp_path / "cluster.json"
    topics = [{"topicName": name, "brokers": None} for name in ("First", "Second")]
    path.write_text(json.dumps({"format": "oberth-cluster", "version": 1, "topics": topics}))
    return path


def test_nothing_is_applied_to_half_a_cluster(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, dump: Path
) -> None:
    SilentBroker(monkeypatch)
    result = run(broker, f"cluster apply {dump} --json")
    assert isinstance(result.exception, RemotingTimeoutError)
    assert ADDRESS in str(result.exception)
    assert result.stdout == ""
    assert not {"First", "Second"} & set(broker.topics())


@pytest.mark.parametrize("error", [RemotingTimeoutError("no response"), KeyboardInterrupt()])
def test_how_far_an_apply_came_is_said(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, dump: Path, error: BaseException
) -> None:
    with monkeypatch.context() as hanging:
        put = LoopAdmin.put_topic_config

        async def fail_once(self: LoopAdmin, address: str, wanted: TopicConfig, *more: Any) -> None:
            if wanted.topic_name == "Second":
                raise error
            await put(self, address, wanted, *more)

        hanging.setattr(LoopAdmin, "put_topic_config", fail_once)
        result = run(broker, f"cluster apply {dump}")
        assert result.exit_code != 0
        assert "1 of 2 were made or changed; the same command does the rest" in result.stderr
    rest = run(broker, f"cluster apply {dump} --json")
    assert [each["name"] for each in json.loads(rest.stdout)["changes"]] == ["Second"]
    for name in ("First", "Second"):
        assert run(broker, f"topic delete {name}").exit_code == 0


@pytest.mark.parametrize("words", ["dlq list", "dlq list reports"])
def test_letters_of_the_others_are_listed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    mute = SilentBroker(monkeypatch, has_queues=True)
    result = run(broker, words)
    assert result.exit_code == 1
    assert "1 dead letters" in result.stderr
    assert NAME in result.stderr
    assert len(mute.asked) == 1
    unknown = run(broker, "dlq list nobody")
    assert unknown.exit_code == 1
    assert NAME in unknown.stderr  # it may know the group
    assert "no broker knows" not in unknown.stderr


def test_a_letter_that_a_silent_broker_may_have_is_left(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = SilentBroker(monkeypatch, has_queues=True)
    result = run(broker, "dlq redrive reports --json")
    assert result.exit_code == 1
    receipts = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["status"] for each in receipts] == ["broker silent"]
    assert NAME in result.stderr
    assert len(broker.messages("Orders")) == 1
    assert mute.asked == [RequestCode.LOCK_BATCH_MQ]  # and nothing after that


def test_the_others_are_read(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    SilentBroker(monkeypatch, has_queues=True)
    for words in ("tail Orders --from-start --no-follow", "tail Orders --from-start --count 1"):
        result = run(broker, f"message {words}")
        assert [json.loads(line)["keys"] for line in result.stdout.splitlines()] == ["key-1"]
    result = run(broker, "message tail Orders --from-start --no-follow")
    assert result.exit_code == 1
    assert f"{NAME} does not answer, what it has is missing here" in result.stderr


def test_a_message_goes_to_another(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the producer waits for it, and then leaves it alone."""
    monkeypatch.setattr(message, "SEND_TIMEOUT_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        SilentBroker(monkeypatch, address, has_queues=True)
        result = CliRunner().invoke(
            oberth,
            ["message", "send", "Sent", "-n", broker.namesrv_addr],
            input="".join(f"{number}\n" for number in range(64)),
        )
    assert result.exit_code == 0, result.output
    sent = [json.loads(line) for line in result.stdout.splitlines()]
    assert {each["brokerName"] for each in sent} == {"broker-a"}
    assert len(sent) == 64
    assert 0 < result.stderr.count("is sent to another broker and may be stored twice") < 16
    assert address in result.stderr


@pytest.mark.parametrize("hangs", [True, False])
async def test_only_who_answers_something_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """A question with a long time-out, to a broker that hangs and to one that is slow."""
    answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
    asked: list[int] = []

    class Instance:
        async def invoke(self, addr: str, request: RemotingCommand, _: float) -> RemotingCommand:
            asked.append(request.code)
            if request.code == RequestCode.OBERTH_GET_RETENTION:
                return await answer
            if hangs:
                raise RemotingTimeoutError(f"no response from {addr}")
            answer.set_result(create_response(request, ResponseCode.SUCCESS, body=b"{}"))
            return create_response(request, ResponseCode.SUCCESS)

    admin = LoopAdmin(timeout_ms=50)
    monkeypatch.setattr(admin, "_client", Instance)
    if hangs:
        with pytest.raises(RemotingTimeoutError):
            await admin.retention(ADDRESS)
    else:
        assert (await admin.retention(ADDRESS))["due"] is None
    assert asked == [RequestCode.OBERTH_GET_RETENTION, RequestCode.GET_BROKER_RUNTIME_INFO]
    assert answer.done()


def test_top_waits_once_in_a_round(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = SilentBroker(monkeypatch)
    result = run(broker, "top --once --interval 0.2")
    assert NAME in result.output
    assert "no response from" in result.output
    assert len(mute.asked) == 2  # rounds, for the rates between them
