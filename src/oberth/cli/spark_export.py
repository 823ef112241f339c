"""`oberth spark export`."""

from __future__ import annotations

import time
from typing import Final

import click

from oberth.cli.connection import read_text
from oberth.cli.output import say, size_text, tell, write_json, write_json_line
from oberth.cli.progress import Progress
from oberth.cli.serve import end_with_stdin
from oberth.cli.spark_options import (
    absolute,
    live_options,
    one_store,
    parse_options,
    spark_options,
    spark_tasks,
    store_or_brokers,
)

_INTERVAL_S: Final = 10.0
JOIN_EVERY: Final = 20
"""With --continuous files are joined after this number of batches, not after each."""
SCHEMA_SIZE_MAX: Final = 1 << 20
"""Bytes of a file of --schema."""


@click.command(name="export")
@one_store
@click.option(
    "--into", metavar="OUT", required=True, type=click.Path(file_okay=False),
    help="The directory of the tables, or s3://BUCKET/PREFIX. A later run goes on where the last "
    "one ended.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet",
    show_default=True, help="Format of the tables.",
)  # fmt: skip
@click.option(
    "--catalog", metavar="CATALOG", default="",
    help="Of Iceberg tables: http://HOST of a REST catalog, thrift://…, postgresql://…, glue.",
)  # fmt: skip
@click.option("--namespace", default="", help="In that catalog; oberth if not given.")
@click.option(
    "--warehouse", default="", help="The warehouse of that catalog, by its name or address."
)
@click.option("--one-table", is_flag=True, help="All topics in one table, not a table each.")
@click.option(
    "--exact", is_flag=True,
    help="Every record with all its bytes, the broker's own topics too: what `import` reads.",
)  # fmt: skip
@click.option("--columns", default="", help="Columns, by comma; all readable ones if not given.")
@click.option("--topic", "topics", multiple=True, help="Only this topic. Repeatable.")
@click.option(
    "--partition-by", "partition_by", metavar="EXPRESSION", multiple=True,
    help="A partition column, as day=date(timestamp), tags, b=bucket(16, key). Repeatable.",
)  # fmt: skip
@click.option(
    "--body", type=click.Choice(["raw", "json", "avro", "protobuf"]), default="raw",
    show_default=True, help="Decode bodies into the column body.",
)  # fmt: skip
@click.option(
    "--schema", type=click.Path(dir_okay=False),
    help="Of the bodies: JSON types (inferred if not given), an Avro schema, or a Protobuf "
    "descriptor set.",
)  # fmt: skip
@click.option(
    "--reader-schema", type=click.Path(dir_okay=False),
    help="With Avro, the schema that the column is to have, where it is not that of the bodies.",
)  # fmt: skip
@click.option("--message", default="", help="The Protobuf message's full name.")
@click.option("--skip-damage", is_flag=True, help="Leave damaged records out, and report them.")
@click.option(
    "--compact", metavar="SIZE", type=click.IntRange(1), default=None,
    help="Afterwards join files that are smaller than SIZE MiB.",
)  # fmt: skip
@click.option(
    "--expire", metavar="HOURS", type=click.FloatRange(0.0), default=None,
    help="Afterwards forget versions of Delta and Iceberg tables that are older, and delete files "
    "as old that none has.",
)  # fmt: skip
@click.option(
    "--continuous",
    is_flag=True,
    help="Go on with messages that are stored later, until interrupted.",
)
@click.option(
    "--interval", type=click.FloatRange(0.1), default=_INTERVAL_S, show_default=True,
    help="With --continuous, seconds between two looks at the log.",
)  # fmt: skip
@click.option(
    "--until-stdin-ends", is_flag=True, hidden=True, help="End when who started it is gone."
)
@live_options
@spark_options
def export_command(
    directory: str | None,
    store_option: str | None,
    into: str,
    form: str,
    catalog: str,
    namespace: str,
    warehouse: str,
    one_table: bool,
    exact: bool,
    columns: str,
    topics: tuple[str, ...],
    partition_by: tuple[str, ...],
    body: str,
    schema: str | None,
    reader_schema: str | None,
    message: str,
    skip_damage: bool,
    compact: int | None,
    expire: float | None,
    continuous: bool,
    interval: float,
    until_stdin_ends: bool,
    namesrv: str | None,
    options: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Export messages to tables that other tools read.

    Every message is in its table once, also when this command is killed at any moment and run
    again. Bodies that do not decode are kept in the table TOPIC+quarantine with the reason. Without
    --continuous it ends when it has reached the log's end; a scheduler may run it again. With
    --namesrv the messages are pulled from live brokers. DIR may be several stores with commas
    between: the tables have the messages of all, and a later run may bring further ones.

    Example: oberth spark export ~/store --into /tmp/tables --format delta --body json
    """
    from oberth.spark.pipelines.export.compaction import compact as compact_files
    from oberth.spark.pipelines.export.compaction import expire as expire_versions
    from oberth.spark.pipelines.export.exporter import (
        ExportReport,
        export,
        open_stores,
    )
    from oberth.spark.pipelines.export.places import storage_options
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.export.tables import require_library
    from oberth.spark.pipelines.export.taken_options import taken_options
    from oberth.spark.pipelines.json_types import parse_schema

    if until_stdin_ends:
        end_with_stdin()
    target = absolute(into) or ""
    settings = ExportSettings(
        form, one_table, exact, columns, partition_by, body, "", message, topics,
        catalog=catalog, namespace=namespace, warehouse=warehouse,
    )  # fmt: skip
    if reader_schema is not None and (schema is None or body != "avro"):
        raise click.UsageError("--reader-schema needs --body avro and --schema")
    if schema is not None:
        if body == "json":
            text = read_text(schema, SCHEMA_SIZE_MAX)
            settings = settings.with_json_type(parse_schema(text))
        elif body == "raw":
            raise click.UsageError("--schema needs --body")
        else:
            settings = settings.with_schema_file(schema, reader_schema)
    settings.check()
    live = {} if namesrv is None else {"rocketmq.namesrv.addr": namesrv}
    taken_options({**parse_options(options), **live}, topics)
    root, given = store_or_brokers(directory, store_option, namesrv, options, master)
    require_library(form)  # before Spark is started for nothing
    stores = open_stores(root, given) if root else []
    batches = 0
    with spark_tasks(master, confs, app_name="oberth export") as tasks:
        while True:
            size = sum(store.log_end() - store.log_start() for store in stores)
            with Progress("export", size) as progress:
                report: ExportReport = export(
                    tasks, root, target, settings, options=given, skip_damage=skip_damage,
                    progress=progress,
                )  # fmt: skip
            joined = 0
            batches += report.batches
            if batches and (not continuous or batches >= JOIN_EVERY):
                batches = 0
                if compact:
                    joined = compact_files(target, compact << 20, storage_options(given))
                if expire is not None:
                    expire_versions(target, expire, storage_options(given))
            if report.batches or not continuous:
                _show(report, joined, as_json, continuous, live=not stores)
            if not continuous:
                return
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return
            for store in stores:
                store.refresh()


def _show(report: object, joined: int, as_json: bool, one_line: bool, *, live: bool) -> None:
    from oberth.spark.pipelines.export.exporter import ExportReport

    assert isinstance(report, ExportReport)
    values = {**report.to_json(), "joined": joined}
    if as_json:
        (write_json_line if one_line else write_json)(values)
        return
    for text in report.skipped:
        say(f"skipped: {text}")
    for table, rows in sorted(report.tables.items()):
        tell(f"{table}: {rows} rows")
    unit = "messages" if live else "CommitLog"
    tell(
        f"{unit} {report.log_start} to {report.log_end}: {report.rows} rows, "
        f"{report.quarantined} in quarantine, {len(report.skipped)} ranges skipped; "
        f"{report.files} files of {size_text(report.bytes)}, {joined} joined, "
        f"{report.seconds:.1f} s"
    )
