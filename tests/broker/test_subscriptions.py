"""Subscriptions as every client writes them; codes are always those of the tags."""

from __future__ import annotations

import pytest

from oberth.broker.subscriptions import (
    SQL92,
    SubscriptionError,
    build_subscription,
    parse_tags,
    read_subscription,
)
from oberth.formats.java_string import java_hash


def test_tags_are_split_and_trimmed() -> None:
    subscription = build_subscription("T", " A || B||A ")
    assert subscription.tags == ("A", "B")
    assert subscription.codes == {java_hash("A"), java_hash("B")}


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything(expression: str | None) -> None:
    subscription = build_subscription("T", expression)
    assert not subscription.codes
    assert subscription.sub_string == "*"


def test_an_expression_without_tags_is_refused() -> None:
    with pytest.raises(SubscriptionError, match="names no tag"):
        parse_tags(" || ")
    with pytest.raises(SubscriptionError, match="null"):
        build_subscription("T", "", SQL92)


def test_a_heartbeat_of_a_go_client() -> None:
    subscription = read_subscription(
        {
            "topic": "T",
            "subString": "A",
            "codeSet": ["65"],
            "tagsSet": ["A"],
            "subVersion": "17",
            "expressionType": "TAG",
        }
    )
    assert subscription.codes == {65}
    assert subscription.sub_version == 17


def test_a_heartbeat_of_a_cpp_client() -> None:
    subscription = read_subscription({"topic": "T", "subString": "A || B", "subVersion": 1})
    assert subscription.is_tag
    assert subscription.tags == ("A", "B")


def test_the_body_is_javas() -> None:
    body = read_subscription({"topic": "T", "subString": "A", "subVersion": 3}).to_body()
    assert body == {
        "classFilterMode": False,
        "codeSet": [65],
        "expressionType": "TAG",
        "subString": "A",
        "subVersion": 3,
        "tagsSet": ["A"],
        "topic": "T",
    }


def test_a_subscription_without_a_topic_is_refused() -> None:
    with pytest.raises(SubscriptionError, match="without a topic"):
        read_subscription({"subString": "*"})


def test_a_sub_version_that_is_no_number_counts_as_0() -> None:
    assert read_subscription({"topic": "T", "subVersion": "soon"}).sub_version == 0
