"""Retention reports, as JSON or text: messages that go, groups that have not consumed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from oberth.cli.output import say, size_text, write_table


def show_report(report: Mapping[str, Any]) -> None:
    """A report, see RetentionReport.to_json, for people: tables on stdout, then a verdict."""
    segments = report["segments"]
    if segments:
        write_table(
            ["segment", "bytes", "age in hours"],
            [[each["file"], each["end"] - each["start"], each["ageHours"]] for each in segments],
        )
        click.echo()
    if report["queues"]:
        keys = ("topic", "queueId", "minOffset", "minOffsetAfter", "messages", "because")
        write_table(
            ["topic", "queue", "min offset", "then", "messages", "because of"],
            [[each[key] for key in keys] for each in report["queues"]],
        )
        click.echo()
    if report["unread"]:
        write_table(
            ["not consumed by", "topic", "queue", "offset", "messages"],
            [
                [each["group"], each["topic"], each["queueId"], each["offset"], each["messages"]]
                for each in report["unread"]
            ],
        )
        click.echo()
    say(verdict(report))


def verdict(report: Mapping[str, Any]) -> str:
    """The report in a few lines."""
    freed = sum(each["end"] - each["start"] for each in report["segments"])
    messages = sum(each["messages"] for each in report["queues"])
    lines = [
        f"{len(report['segments'])} segments, {size_text(freed)}, and {messages} messages would go"
    ]
    if report["due"] is not None:
        lines.append(f"cleaning may delete segments now, because of {report['due']}")
    elif report["segments"]:
        lines.append(f"segments wait for the hour (deleteWhen {report['deleteWhen']})")
    held = report["heldBy"]
    if held is not None:
        lines.append(
            f"reserve.time of topic {held['topic']} keeps what is behind {held['commitLogOffset']}"
        )
    lake = report.get("waitsForLake")
    if lake is not None:
        position = lake.get("position")
        lines.append(
            f"the lake {lake['lake']} has nothing of the log yet: every segment waits for it"
            if position is None
            else f"the lake {lake['lake']} has the log up to {position}: the rest waits for it"
        )
    if report["unread"]:
        groups = sorted({each["group"] for each in report["unread"]})
        lines.append(f"not all consumed: {', '.join(groups)}")
    elif messages:
        lines.append("every group has consumed them")
    if report["topicsWithoutGroup"]:
        lines.append(f"no group has ever consumed {', '.join(report['topicsWithoutGroup'])}")
    return "\n".join(lines)
