"""`oberth store salvage`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oberth.cli.output import size_text, tell, write_json
from oberth.cli.progress import Progress
from oberth.cli.store_options import read_entries, store_options

if TYPE_CHECKING:
    from oberth.store.offline.salvage import LostRange, SalvageReport


@click.command(name="salvage")
@store_options
@click.option(
    "--into",
    metavar="DIR2",
    type=click.Path(file_okay=False),
    required=True,
    help="The new store; a directory that does not exist or is empty.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads that read; default one per core.")
def salvage_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    into: str,
    threads: int | None,
) -> None:
    """Copy what is undamaged into a new store, and say what is lost.

    Messages keep their offsets and ids. Each damaged range becomes records that nobody consumes, so
    the new store opens clean in Oberth and RocketMQ. Each lost range is listed with the topics,
    queue offsets and keys that are still known. DIR is only read.

    Example: oberth store salvage ~/store --into ~/store-salvaged
    """
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.salvage import salvage

    with (
        StoreReader(directory, read_entries(config, settings)) as reader,
        Progress("salvage", sum(each.size for each in reader.layout.commit_log)) as progress,
    ):
        report = salvage(reader, into, threads=threads, progress=progress)
    if as_json:
        write_json(report.to_json())
    else:
        show_report(report)


def show_report(report: SalvageReport) -> None:
    """Writes the saved and lost ranges as text on stdout."""
    for lost in report.lost:
        _print(lost)
    for mended in report.mended:
        tell(
            f"mended: the record at {mended.commit_log_offset} says {mended.found}, corrected to "
            f"{mended.corrected}"
        )
    for table in report.tables:
        instead = "its back-up takes its place" if table.from_back_up else "left out"
        tell(f"{table.reason}: {instead}")
    for key, count in report.kept_ends.items():
        tell(f"{key}: the newest {count} messages are lost, the queue keeps its end")
    tell(
        f"{report.records} messages saved, {len(report.lost)} ranges lost "
        f"({size_text(report.lost_bytes)}, {sum(len(each.records) for each in report.lost)} "
        f"messages known), {report.seconds:.1f} s"
    )


def _print(lost: LostRange) -> None:
    tell(
        f"lost: CommitLog {lost.start} to {lost.end}, {lost.file} at {lost.position}: {lost.reason}"
    )
    for record in lost.records:
        place = "?" if record.queue_id is None else f"{record.queue_id}/{record.queue_offset}"
        keys = f", keys {record.keys}" if record.keys else ""
        tell(f"  {record.topic or 'unknown topic'}/{place} at {record.start}{keys}")
