"""`oberth store retention`."""

from __future__ import annotations

import sys
from typing import Final

import click

from oberth.cli.output import write_json
from oberth.cli.retention_output import show_report
from oberth.cli.store_options import read_entries, store_options
from oberth.cli.store_query import TIME

EXIT_UNREAD: Final = 1


@click.command(name="retention")
@store_options
@click.option("--at", "at", type=TIME, help="As if it were then: ms since 1970 or ISO 8601.")
def retention_command(
    directory: str, config: str | None, settings: tuple[str, ...], as_json: bool, at: int | None
) -> None:
    """Show what the next cleaning would delete, and which groups have not consumed it.

    Two things go: segments older than fileReservedTime (give it by -c or --set if it is not 72
    hours), and messages older than their topic's reserve.time. Segments that a lake of
    retentionWaitsForLake does not have stay. Nothing is deleted here; a broker
    may have the store open. Exit code 1 if a group has not consumed all of it.

    Example: oberth store retention ~/store --set fileReservedTime=48
    """
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.retention import retention_report

    with StoreReader(directory, read_entries(config, settings)) as reader:
        report = retention_report(reader, at)
    if as_json:
        write_json(report.to_json())
    else:
        show_report(report.to_json())
    if report.unread:
        sys.exit(EXIT_UNREAD)
