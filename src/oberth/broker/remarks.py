"""Texts that several processors put into remarks, in the words of Apache's broker if it has any."""

from __future__ import annotations

from typing import Final

from oberth.errors import IllegalNameError
from oberth.formats import names

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

OFFSETS_FULL: Final = "The broker keeps as many offsets as it may; delete groups that nobody uses"
"""1: an offset of a queue that had none is not stored. Apache's broker has no limit."""


def no_queue(topic: str, queue_id: int) -> str:
    """1: an offset of a queue that the topic does not have is not stored. Apache's stores it."""
    return f"Topic {topic} has no queue {queue_id}"


def topic_not_exist(topic: str) -> str:
    """17: the topic is not known."""
    return f"topic[{topic}] not exist, apply first please! {FAQ}"


def group_not_exist(group: str) -> str:
    """26: the group is not known and may not be made."""
    return f"subscription group [{group}] does not exist, {FAQ}"


def illegal_topic(topic: str, error: IllegalNameError) -> str:
    """29: Java's words for the three ways in which a topic's name can be wrong."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    longer = topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
    limit = names.RETRY_OR_DLQ_TOPIC_LENGTH_MAX if longer else names.TOPIC_LENGTH_MAX
    if len(topic) > limit:
        return f"The specified topic: {topic}, is longer than topic max length: {limit}"
    del error
    return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"


def illegal_group(group: str, error: IllegalNameError) -> str:
    """29: Java's words for the ways in which a group's name can be wrong."""
    if not group or group.isspace():
        return "The specified group is blank."
    if len(group) > names.GROUP_LENGTH_MAX:
        return (
            f"The specified group: {group}, is longer than group max length: "
            f"{names.GROUP_LENGTH_MAX}."
        )
    del error
    return (
        f"The specified group contains illegal characters, group: {group}, "
        "allowing only ^[%|a-zA-Z0-9_-]+$"
    )
