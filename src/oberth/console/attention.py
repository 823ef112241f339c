"""What needs a person's attention first: a state and its history in, a sorted list out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oberth.console.cluster import State, broker_label, is_own_group, number_of
from oberth.console.history import History
from oberth.console.texts import number, percent, size
from oberth.formats import names

DISK_FULL: Final = 0.85
"""Part of a disk from which on brokers of both kinds delete messages before their time."""

DISK_FILLING: Final = 0.75
SLAVE_BEHIND_BYTES: Final = 16 * 1024 * 1024
GROWING_S: Final = 120.0
DEAD_LETTERS_SHOWN_MAX: Final = 20
ITEMS_MAX: Final = 50

URGENT: Final = "urgent"
WARNING: Final = "warning"
NOTE: Final = "note"
_ORDER: Final = {URGENT: 0, WARNING: 1, NOTE: 2}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing.

    Attributes:
        level: URGENT, WARNING or NOTE.
        subject: the broker, topic or group it concerns.
        text: the problem, in a few words.
        page: where more stands: ``broker``, ``group``, ``letters``.
        key: of that page.
    """

    level: str
    subject: str
    text: str
    page: str
    key: str


def attention(state: State, history: History) -> list[Item]:
    """Everything, the most urgent first, at most ITEMS_MAX."""
    found = [*_brokers(state), *_groups(state, history), *_dead_letters(state)]
    found.sort(key=lambda item: (_ORDER[item.level], item.subject))
    return found[:ITEMS_MAX]


def _brokers(state: State) -> list[Item]:
    found = []
    ends = {
        key.name: number_of(table, "commitLogMaxOffset")
        for key, table in state.brokers.items()
        if key.is_master and table
    }
    with_master = {key.name for key in state.brokers if key.is_master}
    found += [
        Item(URGENT, name, "has no master: nothing can be sent to it", "", "")
        for name in sorted(state.clusters.broker_addr_table)
        if name not in with_master
    ]
    for key, table in state.brokers.items():
        label = broker_label(key)
        if not table:
            said = state.failures.get(key.address, "no answer")
            found.append(Item(URGENT, label, f"does not answer: {said}", "broker", key.address))
            continue
        disk = number_of(table, "commitLogDiskRatio")
        if disk is not None and disk >= DISK_FILLING:
            level = URGENT if disk >= DISK_FULL else WARNING
            found.append(Item(level, label, f"disk is {percent(disk)} full", "broker", key.address))
        end, own = ends.get(key.name), number_of(table, "commitLogMaxOffset")
        if not key.is_master and end is not None and own is not None:
            behind = end - own
            if behind > SLAVE_BEHIND_BYTES:
                text = f"slave is {size(behind)} behind its master"
                found.append(Item(WARNING, label, text, "broker", key.address))
    return found


def _groups(state: State, history: History) -> list[Item]:
    found = []
    for group in state.offsets:
        if is_own_group(group):
            continue
        lag = state.lag(group)
        if not lag:
            continue
        grown = history.growth(("lag", group), GROWING_S)
        members = state.members.get(group)
        if members == 0:
            text = f"has no members and {number(lag)} messages to consume"
            found.append(Item(WARNING, group, text, "group", group))
        elif grown is not None:
            text = f"lag grows: {number(lag)} messages, {number(grown)} more in two minutes"
            found.append(Item(WARNING, group, text, "group", group))
    return found


def _dead_letters(state: State) -> list[Item]:
    found = []
    for topic, ends in state.ends.items():
        if not topic.startswith(names.DLQ_PREFIX):
            continue
        count = sum(each.max_offset - each.min_offset for each in ends.values())
        if count:
            group = topic.removeprefix(names.DLQ_PREFIX)
            text = f"{number(count)} dead letter{'s' if count != 1 else ''}"
            found.append(Item(NOTE, group, text, "letters", group))
    found.sort(key=lambda item: item.subject)
    return found[:DEAD_LETTERS_SHOWN_MAX]
