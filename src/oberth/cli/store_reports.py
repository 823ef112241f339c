"""Reports of commands that rebuild or verify a store, in one process or on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oberth.cli.output import say, tell, until_the_reader_leaves, use_colour, write_json

if TYPE_CHECKING:
    from oberth.store.offline.findings import VerifyReport
    from oberth.store.offline.rebuild import RebuildReport


def show_rebuilt(report: RebuildReport, *, as_json: bool) -> None:
    """Prints the numbers of what was built, and on stderr the records that could not be used."""
    if as_json:
        write_json(report.to_json())
        return
    for damage in report.damages:
        say(f"CommitLog {damage.start} to {damage.end}: no record ({damage.reason})")
    for key, count in report.stand_ins.items():
        say(f"{key}: {count} messages are lost; their places lead to the message that follows")
    for topic in report.illegal_topics:
        say(f"topic {topic!r}: no directory can have this name, its records are in no queue")
    for name in report.timer_files:
        say(f"{name}: removed; the next start of a broker makes it anew")
    tell(
        f"{report.records} records: {report.units} units in {report.queues} queues, "
        f"{report.index_entries} entries in {report.index_files} index files, "
        f"{report.seconds:.1f} s"
    )


def show_verified(report: VerifyReport, *, as_json: bool) -> None:
    """Prints the findings, and on stderr the notes and the verdict."""
    if as_json:
        write_json(report.to_json())
        return
    with until_the_reader_leaves():
        for finding in report.damage:
            tell(str(finding))
        for kind, count in report.dropped.items():
            tell(f"{kind}: {count} more")
    for note in report.notes:
        say(f"note: {note}")
    colour = use_colour()
    verdict = "clean" if report.clean else f"{len(report.damage)} findings"
    if colour:
        verdict = click.style(verdict, fg="green" if report.clean else "red", bold=True)
    click.echo(
        f"{verdict}: {report.records} records, {report.units} units, {report.index_entries} index "
        f"entries, CommitLog {report.log_start} to {report.log_end}",
        err=True,
        color=colour,
    )
