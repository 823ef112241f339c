"""``oberth cluster``: settings, write permission and cleaning of a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.errors import MQClientError
from oberth.remoting.code import RequestCode
from oberth.testing.blocking import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


def run(broker: EmbeddedBroker, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(oberth, [*words, "-n", broker.namesrv_addr])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def read(broker: EmbeddedBroker, *words: str, code: int = 0) -> Any:
    return json.loads(run(broker, *words, "--json", code=code).stdout)


def test_settings_have_their_types(broker: EmbeddedBroker) -> None:
    found = read(broker, "cluster", "config", "get", broker.address)
    assert found["fileReservedTime"] == 72
    assert found["autoCreateTopicEnable"] in (True, False)
    assert isinstance(found["deleteWhen"], str)
    named = read(broker, "cluster", "config", "get", found["brokerName"], "deleteWhen")
    assert named == {"deleteWhen": "04"}


def test_a_setting_is_shown_changed_and_compared(broker: EmbeddedBroker) -> None:
    words = ("cluster", "config", "set", broker.address, "fileReservedTime=48")
    planned = run(broker, *words, "--dry-run")
    assert "fileReservedTime: 72 -> 48" in planned.stderr
    assert read(broker, *words[:-1], "fileReservedTime=48", "--dry-run")["dryRun"] is True
    assert broker.broker.parts.store_config.file_reserved_time_hours == 72
    changed = read(broker, *words)
    assert changed["changes"] == [{"key": "fileReservedTime", "before": 72, "after": 48}]
    differing = {
        each["key"]: each for each in read(broker, "cluster", "config", "diff", broker.address)
    }
    assert differing["fileReservedTime"] == {"key": "fileReservedTime", "value": 48, "default": 72}
    assert "deleteWhen" not in differing
    assert "48 already" in run(broker, *words).stderr
    run(broker, *words[:-1], "fileReservedTime=72")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("fileReservedTim=48", "did you mean fileReservedTime?"),
        ("fileReservedTime=soon", "'soon' is not an integer"),
        ("fileReservedTime", "is not NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused_before_the_broker_is_asked(
    broker: EmbeddedBroker, setting: str, said: str
) -> None:
    words = ["cluster", "config", "set", broker.address, "deleteWhen=05", setting]
    result = CliRunner().invoke(oberth, [*words, "-n", broker.namesrv_addr])
    assert result.exit_code != 0
    assert said in f"{result.output}{result.exception}"
    assert read(broker, "cluster", "config", "get", broker.address, "deleteWhen") == {
        "deleteWhen": "04"
    }


def test_what_a_broker_does_not_take_is_said(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's broker answers a value that it cannot use with success."""
    from oberth.client.admin import Admin

    async def ignore(self: Admin, addr: str, settings: Any) -> None:
        del self, addr, settings

    monkeypatch.setattr(Admin, "update_broker_config", ignore)
    words = ("cluster", "config", "set", broker.address, "fileReservedTime=1")
    assert "did not take fileReservedTime" in run(broker, *words, code=1).stderr


def test_an_unknown_broker_is_named(broker: EmbeddedBroker) -> None:
    result = CliRunner().invoke(
        oberth, ["cluster", "config", "get", "nowhere", "-n", broker.namesrv_addr]
    )
    assert result.exit_code != 0
    assert "no broker 'nowhere' is known; there are: " in str(result.exception)


def test_write_permission_goes_and_comes_back(broker: EmbeddedBroker) -> None:
    name = read(broker, "cluster", "list")[0]["broker"]
    run(broker, "topic", "create", "Written")
    planned = read(broker, "cluster", "writes", name, "off", "--dry-run")
    assert planned["dryRun"] is True
    off = read(broker, "cluster", "writes", name, "off")
    assert off["writable"] is False
    assert off["topics"] > 0
    on = read(broker, "cluster", "writes", name, "on")
    assert (on["writable"], on["topics"]) == (True, off["topics"])


def test_cleaning_is_asked_for(broker: EmbeddedBroker) -> None:
    planned = read(broker, "cluster", "clean", broker.address, "--dry-run")
    assert planned["requested"] is False
    assert planned["report"]["segments"] == []
    cleaning = broker.broker.parts.store.cleaning
    with patch.object(cleaning, "request", wraps=cleaning.request) as asked:
        assert read(broker, "cluster", "clean", broker.address)["requested"] is True
    asked.assert_called_once_with()


def test_figures_are_numbers(broker: EmbeddedBroker) -> None:
    (row,) = read(broker, "cluster", "list")
    assert (type(row["inTps"]), type(row["outTps"])) == (float, float)
    status = read(broker, "cluster", "status", row["broker"])
    assert isinstance(status["commitLogMaxOffset"], int)


def test_a_broker_that_does_not_answer_hides_no_other(broker: EmbeddedBroker) -> None:
    """While a broker hangs is when people look."""
    (row,) = read(broker, "cluster", "list")
    for words, asked in (
        (("cluster", "list"), RequestCode.GET_BROKER_RUNTIME_INFO),
        (("cluster", "retention"), RequestCode.OBERTH_GET_RETENTION),
    ):
        broker.faults.disconnect([asked])
        result = run(broker, *words, "--json", code=1)
        assert f"{row['broker']} {broker.address}: connection to " in result.stderr
        shown = json.loads(result.stdout)
        if words[1] == "list":
            assert shown == [{**row, "version": None, "inTps": None, "outTps": None}]
        else:
            assert shown == {}


@pytest.mark.parametrize(
    "words", [("topic", "list"), ("group", "list"), ("top", "--once"), ("cluster", "dump")]
)
def test_an_unknown_cluster_is_named(broker: EmbeddedBroker, words: tuple[str, ...]) -> None:
    """Not shown as an empty one."""
    result = CliRunner().invoke(oberth, [*words, "--cluster", "nope", "-n", broker.namesrv_addr])
    assert isinstance(result.exception, MQClientError)
    assert str(result.exception) == "there is no cluster 'nope'; known: DefaultCluster"
    assert result.stdout == ""


def test_no_message_has_the_key(broker: EmbeddedBroker) -> None:
    run(broker, "topic", "create", "Empty")
    result = run(broker, "message", "query", "Empty", "--key", "nope", code=1)
    assert result.stdout == ""
    assert "Empty has no message with key 'nope'" in result.stderr
