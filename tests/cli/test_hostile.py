"""What peers write into names, keys and bodies: a terminal shows it and obeys none of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.cli.output import CELL_SIZE_MAX, fail, write_table
from oberth.client.admin import Admin
from oberth.client.admin.base import AdminBase
from oberth.client.blocking import Producer, PushConsumer
from oberth.client.config import ClientConfig
from oberth.client.messages import Message
from oberth.errors import RemotingTimeoutError
from oberth.formats import properties as p
from oberth.remoting.bodies.route import MASTER_ID, BrokerData, ClusterInfo
from oberth.testing.blocking import EmbeddedBroker

HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202etxt.exe\u2066\u200b</td><script>"
OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
BODY: Final = (HOSTILE * (4 << 20))[: 1 << 20]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Its messages, dead letters and clients are as hostile as they can be."""
    with EmbeddedBroker() as made:
        config = ClientConfig(
            namesrv_addr=made.namesrv_addr, instance_name=HOSTILE, client_ip="10.0.0.1"
        )
        with (
            Producer("makers", config=config) as producer,
            PushConsumer("readers", {"Orders": "*"}, listener=lambda _: None, config=config),
        ):
            producer.send(
                Message(
                    "Orders",
                    BODY.encode(),
                    keys=HOSTILE,
                    tags=HOSTILE,
                    properties={HOSTILE: HOSTILE},
                )
            )
            letter = Message("%DLQ%readers", HOSTILE.encode(), keys=f"k{HOSTILE}{'x' * 5000}")
            letter.properties[p.DLQ_ORIGIN_TOPIC] = HOSTILE
            letter.properties["DLQ_REASON"] = f"{HOSTILE}\nforged line\t"
            producer.send(letter)
            yield made


def run(broker: EmbeddedBroker, words: str, *more: str) -> Result:
    result = CliRunner().invoke(oberth, [*words.split(), *more, "-n", broker.namesrv_addr])
    assert result.exit_code in (0, 1), (result.output, result.exception)
    found = OBEYED.search(result.output)
    assert found is None, (words, ascii(result.output[max(found.start() - 40, 0) :][:120]))
    return result


def test_messages(broker: EmbeddedBroker) -> None:
    (line,) = run(broker, "message tail Orders --from-start --no-follow").stdout.splitlines()
    found = json.loads(line)
    assert (found["body"], found["keys"], found["tags"]) == (BODY, HOSTILE, HOSTILE)
    assert found["properties"][HOSTILE] == HOSTILE
    query = run(broker, "message query Orders", "--key", "no" + HOSTILE)
    assert "has no message" in query.stderr


def test_dead_letters(broker: EmbeddedBroker) -> None:
    shown = run(broker, "dlq list").stdout.splitlines()
    assert len(shown) == 2  # a row is a line, whatever it holds
    assert r"\x1b[2J" in shown[1]
    assert len(shown[1]) < 4 * CELL_SIZE_MAX
    (line,) = run(broker, "dlq list --json").stdout.splitlines()
    assert json.loads(line)["reason"].startswith(HOSTILE)
    run(broker, "dlq redrive readers --dry-run")


@pytest.mark.parametrize(
    "words",
    ["group members readers", "group running readers --stack", "topic producers Orders"],
)
def test_clients(broker: EmbeddedBroker, words: str) -> None:
    assert r"\x1b[2J" in run(broker, words).stdout
    assert "owned" in json.dumps(json.loads(run(broker, words, "--json").stdout))


@pytest.mark.parametrize("rate", [HOSTILE, "nan", "-inf 1 2", "1e999"])
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_brokers(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, flag: list[str], rate: str
) -> None:
    address = broker.address

    async def cluster_info(_: AdminBase) -> ClusterInfo:
        data = BrokerData(cluster=HOSTILE, broker_name=HOSTILE, broker_addrs={MASTER_ID: address})
        other = BrokerData(
            cluster=HOSTILE, broker_name="mute", broker_addrs={MASTER_ID: f"127.0.0.1{HOSTILE}:1"}
        )
        return ClusterInfo(
            broker_addr_table={HOSTILE: data, "mute": other},
            cluster_addr_table={HOSTILE: [HOSTILE, "mute"]},
        )

    async def figures(_: Admin, addr: str) -> dict[str, str]:
        if addr != address:
            raise RemotingTimeoutError(f"no response from {addr}")
        return {"brokerVersionDesc": HOSTILE, "putTps": rate, HOSTILE: HOSTILE}

    monkeypatch.setattr(AdminBase, "cluster_info", cluster_info)
    monkeypatch.setattr(Admin, "broker_runtime_info", figures)
    listed = run(broker, "cluster list", *flag)
    assert "owned" in listed.stdout
    assert "owned" in listed.stderr
    assert "owned" in run(broker, "cluster status", address, *flag).stdout
    top = run(broker, "top --once --interval 0.2", *flag)
    if flag:
        rows = [*parsed(listed.stdout), *parsed(top.stdout)["brokers"]]
        assert {each.get("inTps", each.get("inPerS")) for each in rows} == {None}


def parsed(text: str) -> Any:
    """JSON as programs read it, that is without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_tables_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(["a", "b"], [[HOSTILE, "one\ntwo\tthree"], ["x" * 100_000, None]])
    fail(RemotingTimeoutError(HOSTILE))
    shown = capsys.readouterr()
    assert OBEYED.search(shown.out + shown.err) is None
    assert r"one\ntwo\tthree" in shown.out
    assert all(len(line) < 2 * CELL_SIZE_MAX for line in shown.out.splitlines())
