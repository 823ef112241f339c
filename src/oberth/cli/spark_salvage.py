"""`oberth spark salvage`."""

from __future__ import annotations

import click

from oberth.cli.output import write_json
from oberth.cli.progress import Progress
from oberth.cli.spark_options import (
    absolute,
    apache_options,
    directory_of,
    log_size,
    one_store,
    scratch_option,
    spark_options,
    spark_tasks,
)
from oberth.cli.store_options import read_entries
from oberth.cli.store_salvage import show_report


@click.command(name="salvage")
@one_store
@apache_options
@spark_options
@scratch_option
@click.option(
    "--into",
    metavar="DIR2",
    type=click.Path(file_okay=False),
    required=True,
    help="The new store; a directory that does not exist or is empty.",
)
def salvage_command(
    directory: str | None,
    store_option: str | None,
    config: str | None,
    settings: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
    scratch: str | None,
    into: str,
) -> None:
    """Copy what is undamaged into a new store, and say what is lost.

    The new store and the losses are those of `oberth store salvage`; here many tasks read and copy.

    Example: oberth spark salvage ~/store --into ~/store-salvaged --master 'local[4]'
    """
    from oberth.spark.pipelines.salvage import salvage

    root = directory_of(directory, store_option)
    entries = read_entries(config, settings)
    size = log_size(root, entries)
    with (
        spark_tasks(master, confs, app_name="oberth salvage") as tasks,
        Progress("salvage", size) as progress,
    ):
        target = absolute(into)
        assert target is not None
        report = salvage(
            tasks, root, target, entries=entries, scratch=absolute(scratch), progress=progress
        )
    if as_json:
        write_json(report.to_json())
    else:
        show_report(report)
