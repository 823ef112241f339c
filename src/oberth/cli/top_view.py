"""What `oberth top` shows: two samples of a cluster in, rates and tables out. No clock, no socket.

A rate is what an offset has grown between two samples, over the time between them. A queue that a
sample does not have counts from when it is there; one that has become shorter (deleted and made
again) counts as 0 then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oberth.cli.output import size_text

STAGES: Final = ("send", "pull", "litePull", "query", "ack", "EndTransaction")
"""Stages that brokers tell about, by the front of their runtime keys."""

NAME_WIDTH_MIN: Final = 6
"""Characters of a name that stay on a screen that is too narrow for the whole."""

_GAP: Final = "  "

QueueKey = tuple[str, str, int]
"""Broker name, topic, queue id."""


@dataclass(slots=True)
class Sample:
    """The answers of one round of questions.

    Attributes:
        at_s: when, in seconds of any clock.
        brokers: (broker name, id, address) → runtime table; an empty one: it did not answer.
        failures: address → the error it answered with.
        ends: the end of each queue.
        offsets: (topic, group) → offset by (broker, queue id).
        members: group → consumers that are connected.
        producers: producer group → clients.
        topics_left_out: topics that were not asked for, because there are too many.
    """

    at_s: float
    brokers: dict[tuple[str, int, str], dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    ends: dict[QueueKey, int] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[tuple[str, int], int]] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    topics_left_out: int = 0


def view(before: Sample | None, now: Sample) -> dict[str, Any]:
    """Everything that is shown, as JSON has it; rates are None for a first sample."""
    span_s = now.at_s - before.at_s if before is not None else 0.0
    known = before if before is not None and span_s > 0 else None
    return {
        "brokers": [
            _broker(key, table) for key, table in sorted(now.brokers.items(), key=lambda x: x[0])
        ],
        "stages": stages(now),
        "topics": _topics(known, now, span_s),
        "groups": _groups(known, now, span_s),
        "producers": dict(sorted(now.producers.items())),
        "failures": dict(sorted(now.failures.items())),
        "topicsLeftOut": now.topics_left_out,
    }


def _broker(key: tuple[str, int, str], table: Mapping[str, str]) -> dict[str, Any]:
    name, broker_id, address = key
    return {
        "broker": name,
        "id": broker_id,
        "address": address,
        "version": table.get("brokerVersionDesc", ""),
        "inPerS": first_rate(table.get("putTps")),
        "outPerS": first_rate(table.get("getTransferredTps", table.get("getTransferedTps"))),
        "diskUsed": _number(table.get("commitLogDiskRatio")),
        "logBytes": _difference(table, "commitLogMaxOffset", "commitLogMinOffset"),
        "dispatchBehindBytes": _number(table.get("dispatchBehindBytes")),
        "toFlush": table.get("remainHowManyDataToFlush", ""),
    }


def stages(now: Sample) -> list[dict[str, Any]]:
    """Stages with requests that wait, the longest wait first, then all others by their size."""
    found: list[dict[str, Any]] = []
    for (name, broker_id, _), table in now.brokers.items():
        for stage in STAGES:
            size = _number(table.get(f"{stage}ThreadPoolQueueSize", table.get(f"{stage}QueueSize")))
            if size is None:
                continue
            waits_ms = _number(table.get(f"{stage}ThreadPoolQueueHeadWaitTimeMills")) or 0
            found.append(
                {
                    "broker": name,
                    "id": broker_id,
                    "stage": stage,
                    "waiting": int(size),
                    "longestWaitMs": int(waits_ms),
                }
            )
        lock_ms = _number(table.get("pageCacheLockTimeMills"))
        if lock_ms is not None:
            # While nobody puts some brokers tell their clock's distance from 1970.
            found.append(
                {
                    "broker": name,
                    "id": broker_id,
                    "stage": "put",
                    "waiting": 0,
                    "longestWaitMs": int(lock_ms) if lock_ms < 3_600_000 else 0,
                }
            )
    found.sort(key=lambda each: (-each["longestWaitMs"], -each["waiting"], each["broker"]))
    return found


def _topics(before: Sample | None, now: Sample, span_s: float) -> list[dict[str, Any]]:
    totals: dict[str, int] = {}
    grown: dict[str, int] = {}
    for (broker, topic, queue_id), end in now.ends.items():
        totals[topic] = totals.get(topic, 0) + end
        if before is not None:
            was = before.ends.get((broker, topic, queue_id), end)
            grown[topic] = grown.get(topic, 0) + max(end - was, 0)
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "inPerS": None if before is None else grown.get(topic, 0) / span_s,
            "messages": total,
        }
        for topic, total in totals.items()
    ]
    rows.sort(key=lambda row: (-(row["inPerS"] or 0), -row["messages"], row["topic"]))
    return rows


def _groups(before: Sample | None, now: Sample, span_s: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for (topic, group), offsets in now.offsets.items():
        lag = consumed = 0
        unknown = False
        were = {} if before is None else before.offsets.get((topic, group), {})
        for (broker, queue_id), offset in offsets.items():
            end = now.ends.get((broker, topic, queue_id))
            if end is None:
                unknown = True
            else:
                lag += max(end - offset, 0)
            consumed += max(offset - were.get((broker, queue_id), offset), 0)
        rows.append(
            {
                "group": group,
                "topic": topic,
                "lag": None if unknown else lag,
                "outPerS": None if before is None else consumed / span_s,
                "members": now.members.get(group, 0),
            }
        )
    rows.sort(key=lambda row: (-(row["lag"] or 0), -(row["outPerS"] or 0), row["group"]))
    return rows


def lines(shown: Mapping[str, Any], *, rows: int, width: int, title: str) -> list[str]:
    """The screen: at most ``rows`` lines of ``width`` columns."""
    text = [title, ""]
    text += _broker_lines(shown["brokers"], width)
    text += [f"{address}: {said}" for address, said in shown["failures"].items()]
    slow = [each for each in shown["stages"] if each["waiting"] or each["longestWaitMs"]][:3]
    slowest = ", ".join(
        f"{each['stage']} of {each['broker']} {each['waiting']} wait, {each['longestWaitMs']} ms"
        for each in slow
    )
    text += ["", f"SLOWEST STAGES  {slowest or 'nobody waits'}"]
    producers = sum(shown["producers"].values())
    consumers = {each["group"]: each["members"] for each in shown["groups"]}
    text += [
        f"CONNECTIONS     {producers} producers in {len(shown['producers'])} groups, "
        f"{sum(consumers.values())} consumers in {len(consumers)} groups",
        "",
    ]
    left = max(rows - len(text) - 3, 2)
    group_rows = min(len(shown["groups"]), max(left // 2, left - len(shown["topics"])))
    topic_rows = min(len(shown["topics"]), left - group_rows)
    text += _table(
        ["TOPIC", "IN/S", "MESSAGES"],
        [
            [each["topic"], _rate(each["inPerS"]), str(each["messages"])]
            for each in shown["topics"][:topic_rows]
        ],
        width,
    )
    if shown["topicsLeftOut"]:
        text.append(f"{shown['topicsLeftOut']} topics are not looked at (--topics)")
    text += ["", *_table(
        ["GROUP", "TOPIC", "LAG", "OUT/S", "MEMBERS"],
        [
            [
                each["group"],
                each["topic"],
                "-" if each["lag"] is None else str(each["lag"]),
                _rate(each["outPerS"]),
                str(each["members"]),
            ]
            for each in shown["groups"][:group_rows]
        ],
        width,
    )]  # fmt: skip
    return [_printable(line)[:width] for line in text[:rows]]


def _broker_lines(brokers: Iterable[Mapping[str, Any]], width: int) -> list[str]:
    return _table(
        ["BROKER", "ID", "ADDRESS", "IN/S", "OUT/S", "DISK", "LOG", "BEHIND", "TO FLUSH"],
        [
            [
                each["broker"],
                str(each["id"]),
                each["address"],
                _rate(each["inPerS"]),
                _rate(each["outPerS"]),
                "-" if each["diskUsed"] is None else f"{each['diskUsed']:.0%}",
                "-" if each["logBytes"] is None else size_text(int(each["logBytes"])),
                "-"
                if each["dispatchBehindBytes"] is None
                else size_text(int(each["dispatchBehindBytes"])),
                each["toFlush"] or "-",
            ]
            for each in brokers
        ],
        width,
    )


def _table(header: list[str], rows: Iterable[list[str]], width: int) -> list[str]:
    """Lines of a table; where it is wider than the screen, names give way to figures."""
    table = [header, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    names = [at for at, title in enumerate(header) if not _is_number(title)]
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - width):
        longest = max(names, key=lambda at: widths[at])
        widths[longest] = max(widths[longest] - 1, NAME_WIDTH_MIN)
    return [
        _GAP.join(
            cell.rjust(room) if at and _is_number(header[at]) else _cut(cell, room).ljust(room)
            for at, (cell, room) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


_NUMBERS: Final = frozenset(
    {"ID", "IN/S", "OUT/S", "DISK", "LOG", "BEHIND", "TO FLUSH", "MESSAGES", "LAG", "MEMBERS"}
)


def _is_number(title: str) -> bool:
    return title in _NUMBERS


def _printable(line: str) -> str:
    """The line without what would move the cursor: names come from others."""
    return "".join([c if c.isprintable() else "?" for c in line])


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def first_rate(rates: str | None) -> float | None:
    """The first of several rates: that of the last ten seconds."""
    parts = (rates or "").split()
    return _number(parts[0]) if parts else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _difference(table: Mapping[str, str], high: str, low: str) -> float | None:
    above, below = _number(table.get(high)), _number(table.get(low))
    return None if above is None or below is None else max(above - max(below, 0), 0)
