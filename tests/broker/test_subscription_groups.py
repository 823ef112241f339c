"""Groups that their first use makes: known at once, written together and soon."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.broker.conftest import Live, MakeLive

from oberth.broker import subscription_groups
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.config_file import ConfigFile
from oberth.broker.subscription_groups import SubscriptionGroups
from oberth.errors import IllegalNameError
from oberth.formats.config_json import parse_config
from oberth.formats.subscription_group import SubscriptionGroupConfig

UPDATE_OFFSET = 15


def test_what_a_first_use_makes_can_wait_and_what_an_administrator_makes_cannot() -> None:
    written: list[list[str]] = []
    groups = SubscriptionGroups(BrokerConfig(), written.append, lambda: 7)
    version = groups.data_version.counter
    assert groups.find("used") is not None
    assert (written, groups.is_dirty) == ([], True)
    assert groups.data_version.counter == version + 1
    groups.update(SubscriptionGroupConfig(group_name="made"))
    assert written == [["made"]]
    assert not groups.prepare(1), "what a first use makes is text at once"
    again = SubscriptionGroups(BrokerConfig(), written.append, lambda: 7)
    again.read(parse_config(groups.encode()))
    assert sorted(again.encode().splitlines()) == sorted(groups.encode().splitlines())
    assert set(parse_config(groups.encode())["subscriptionGroupTable"]) == {"used", "made"}
    assert not groups.is_dirty


async def test_many_new_groups_are_one_write(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    assert (await live.peer.send("T")).code == 0
    written: list[str] = []
    write = ConfigFile.write

    def counted(file: ConfigFile, data: bytes, **more: Any) -> None:
        write(file, data, **more)
        written.append(file.path.name)

    monkeypatch.setattr(ConfigFile, "write", counted)
    names = [f"G{number}" for number in range(60)]
    commits = [
        {"consumerGroup": name, "topic": "T", "queueId": "0", "commitOffset": "1"} for name in names
    ]
    answers = await asyncio.gather(*(live.peer.call(UPDATE_OFFSET, each) for each in commits))
    assert {answer.code for answer in answers} == {0}
    for name in names:
        assert (await live.peer.heartbeat(name, {"T": "*"}, client_id=name)).code == 0
    await live.later(1000)
    for file in ("subscriptionGroup.json", "topics.json", "consumerOffset.json"):
        await live.until(partial(written.count, file))
        assert written.count(file) < 20, "each group had a write of its own"
    config = live.broker.parts.config_dir
    await live.restart()
    found = parse_config((config / "subscriptionGroup.json").read_bytes())
    assert set(names) <= set(found["subscriptionGroupTable"])
    found = parse_config((config / "topics.json").read_bytes())
    assert {f"%RETRY%{name}" for name in names} <= set(found["topicConfigTable"])


def test_what_is_forbidden_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_groups, "FORBIDDEN_MAX", 3)
    written: list[list[str]] = []
    groups = SubscriptionGroups(BrokerConfig(), written.append, lambda: 7)
    for group, topic in (("a", "T"), ("a", "U"), ("b", "T")):
        groups.set_readable(group, topic, False)
    for group in ("c", "a/b", "x" * 300):
        with pytest.raises(IllegalNameError):
            groups.set_readable(group, "T", False)
        assert groups.is_readable(group, "T")
    groups.set_readable("a", "T", False)  # as it is
    assert written == [["a"], ["a"], ["b"]]
    groups.forget_topic("T")
    assert written[3:] == [["a", "b"]], "one change, one file"
    again = SubscriptionGroups(BrokerConfig(), written.append, lambda: 7)
    again.read(parse_config(groups.encode()))
    for each in (groups, again):
        assert not each.is_readable("a", "U")
        each.set_readable("c", "T", False)
        each.set_readable("d", "T", False)
        with pytest.raises(IllegalNameError):
            each.set_readable("e", "T", False)
        assert each.delete("a")
        each.set_readable("e", "T", False)


async def test_what_may_not_be_forbidden_is_said(live: Live) -> None:
    assert (await live.peer.send("T")).code == 0
    for group in ("", "a/b", "x" * 300):
        fields = {"group": group, "topic": "T", "readable": "false"}
        assert (await live.peer.call(353, fields)).code == 29  # INVALID_PARAMETER


@pytest.mark.parametrize(
    "unknown",
    [
        '{"\\u0024ref":".."}',
        '{"$ref":"$.a","b":null}',
        "[" * 62 + "]" * 62,
        '{"a":[{"\\u0024ref":"$.b"}]}',
        '{{"$ref":"$.a","b":null}:1}',
        "1e400",
        "1" + "0" * 399,
    ],
)
async def test_fields_nobody_knows_do_not_keep_a_broker_from_starting(
    make_live: MakeLive, unknown: str
) -> None:
    """A reference that is none before it is written, and more levels than a document may have."""
    live = await make_live()
    body = (
        f'{{"groupName":"G","retryMaxTimes":3,"x":{unknown},"new":{{"a":[1]}},'
        f'"groupRetryPolicy":{{"type":"CUSTOMIZED","y":{unknown}}}}}'
    )
    answer = await live.peer.call(200, {}, body.encode())
    if answer.code == 0:
        assert (await live.peer.call(201)).code == 0
    await live.restart()
    found = live.broker.parts.groups.get("G")
    assert (found is not None) is (answer.code == 0)
    if found is not None:
        assert found.retry_max_times == 3
        assert found.unknown["new"] == {"a": [1]}


@pytest.mark.parametrize("number", ["1" + "0" * 399, "1e300", "-1" + "0" * 30])
async def test_numbers_of_a_group_come_back(make_live: MakeLive, number: str) -> None:
    live = await make_live()
    body = f'{{"groupName":"G","retryMaxTimes":{number},"brokerId":{number}}}'
    code = (await live.peer.call(200, {}, body.encode())).code
    await live.restart()
    assert ("G" in live.broker.parts.groups) is (code == 0)
