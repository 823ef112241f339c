"""`oberth spark import`."""

from __future__ import annotations

import click

from oberth.cli.output import tell, write_json
from oberth.cli.progress import Progress
from oberth.cli.spark_options import absolute, apache_options, spark_options, spark_tasks
from oberth.cli.store_options import read_entries


@click.command(name="import")
@click.argument("source", metavar="EXPORT", type=click.Path(file_okay=False))
@click.option(
    "--into", metavar="DIR", required=True, type=click.Path(file_okay=False),
    help="The new store; a directory that does not exist or is empty.",
)  # fmt: skip
@apache_options
@spark_options
def import_command(
    source: str,
    into: str,
    config: str | None,
    settings: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a store of an exact export: the same records at the same offsets, byte for byte.

    EXPORT is what `oberth spark export --exact --into EXPORT` wrote. The store appears under its
    name when all of it is there.

    Example: oberth spark import /tmp/tables --into ~/store-again
    """
    from oberth.spark.pipelines.import_store import export_files, import_store

    entries = read_entries(config, settings)
    export_files(absolute(source) or "")  # before Spark is started for nothing
    with (
        spark_tasks(master, confs, app_name="oberth import") as tasks,
        Progress("import") as progress,
    ):
        report = import_store(
            tasks, absolute(source) or "", absolute(into) or "", entries=entries,
            progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(report.to_json())
        return
    tell(
        f"{report.records} records, CommitLog {report.log_start} to {report.log_end}; "
        f"{report.built.units} units in {report.built.queues} queues, "
        f"{report.built.index_entries} index entries; {report.seconds:.1f} s"
    )
