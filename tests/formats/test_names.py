"""Names: what RocketMQ allows passes, and nothing that passes can leave its directory.

Proved by tables, by random text against the character set, and by every golden store's topics.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import IllegalNameError
from oberth.formats import names

ALLOWED = set("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
CHECKS = (names.check_topic, names.check_group, names.check_stored_topic)
HOSTILE = [
    "", " ", "\t\n", ".", "..", "../x", "a/b", "a\\b", "/", "a.b", "a b", "a\0b", "a\n", "\na", "é",
    "ａ", "a:b", "a*b", "a\u202eb", "C:", "~root/..", "%2e%2e%2f/", "a,b", "a@b/..", "…",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str) -> None:
    for check in CHECKS:
        with pytest.raises(IllegalNameError):
            check(name)
    assert not names.is_stored_topic(name)


@given(st.text(max_size=140) | st.text("%|-_aZ09./\\+$", max_size=300))
def test_exactly_the_allowed(name: str) -> None:
    legal = bool(name) and set(name) <= ALLOWED
    longest = 255 if name.startswith(("%RETRY%", "%DLQ%")) else 127
    for check, length_max in ((names.check_topic, longest), (names.check_group, 120)):
        if legal and len(name) <= length_max:
            assert check(name) == name
        else:
            with pytest.raises(IllegalNameError):
                check(name)
    stored = bool(name) and set(name) <= ALLOWED | set("+$@#=~") and len(name) <= 255
    assert names.is_stored_topic(name) == stored
    if stored:
        assert names.check_stored_topic(name) == name
        for path in (PurePosixPath("root") / name, PureWindowsPath("root") / name):
            assert len(path.parts) == 2
            assert path.name == name


def test_limits() -> None:
    assert names.check_topic("a" * 127)
    with pytest.raises(IllegalNameError, match="128 characters, at most 127"):
        names.check_topic("a" * 128)
    assert names.check_topic("%RETRY%" + "a" * 248)
    assert names.check_topic("%DLQ%" + "a" * 250)
    with pytest.raises(IllegalNameError, match="at most 255"):
        names.check_topic("%RETRY%" + "a" * 249)
    assert names.check_stored_topic("a" * 255)
    with pytest.raises(IllegalNameError, match="at most 255"):
        names.check_stored_topic("a" * 256)
    assert names.check_group("g" * 120)
    with pytest.raises(IllegalNameError):
        names.check_group("g" * 121)
    assert names.check_group("g" * 255, length_max=names.GROUP_LENGTH_MAX_4_9)


def test_the_error_names_the_character() -> None:
    with pytest.raises(IllegalNameError, match=r"topic 'a/b' has '/' at 1; allowed are"):
        names.check_topic("a/b")


def test_golden_topics(golden_name: str, golden_facts: Callable[[str], Any]) -> None:
    facts = golden_facts(golden_name)
    for topic in {message["topic"] for message in facts["messages"]} | {
        queue["topic"] for queue in facts["queues"]
    }:
        assert names.check_stored_topic(topic) == topic


def test_what_rocketmq_makes_itself() -> None:
    for name in (
        names.pop_retry_topic("T", "G"), names.pop_retry_topic("T", "G", v2=True),
        "%LMQ%$parent$lite", names.revive_topic("DefaultCluster"), names.retry_topic("G"),
        names.dlq_topic("G"), names.reply_topic("DefaultCluster"),
    ):  # fmt: skip
        assert names.is_stored_topic(name)
    assert names.pop_retry_topic("T", "G", v2=True) == "%RETRY%G+T"
    assert names.reply_topic("C") == "C_REPLY_TOPIC"


def test_system_names() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic(names.TIMER_TOPIC)
    assert names.is_system_topic(names.SCHEDULE_TOPIC)
    assert not names.is_system_topic("TopicTest")
    assert names.NO_SEND_TOPICS < names.SYSTEM_TOPICS
    assert "TBW102" not in names.NO_SEND_TOPICS
    assert names.is_system_group(names.TRANS_GROUP)
    assert not names.is_system_group("CG")
    assert names.TRANS_GROUP in names.PREDEFINED_GROUPS


def test_light_queues() -> None:
    assert names.is_lmq("%LMQ%a")
    assert not names.is_lmq("LMQ")
    assert names.allows_lmq("T")
    for topic in (names.SCHEDULE_TOPIC, "%RETRY%G", "rmq_sys_wheel_timer"):
        assert not names.allows_lmq(topic)


def test_names_of_lite_topics() -> None:
    queue = names.lite_queue("Parent", "one")
    assert queue == "%LMQ%$Parent$one"
    assert names.is_lmq(queue)
    assert names.is_stored_topic(queue)
    assert names.split_lite_queue(queue) == ("Parent", "one")
    for other in ("%LMQ%one", "%LMQ%$one", "%LMQ%$$one", "%LMQ%$Parent$", "%LMQ%$a$b$c", "T"):
        assert names.split_lite_queue(other) is None
