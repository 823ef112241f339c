"""`oberth spark publish`."""

from __future__ import annotations

import click

from oberth.cli.output import tell, write_json
from oberth.cli.progress import Progress
from oberth.cli.spark_options import absolute, parse_options
from oberth.cli.store_options import json_option


@click.command(name="publish")
@click.option(
    "--from", "table", metavar="TABLE", required=True,
    help="A directory of Parquet files, a Delta table, or a table of an Iceberg export; a path or "
    "s3://…",
)  # fmt: skip
@click.option("--as-of", default="", help="The table's version, or for Delta a time (ISO 8601).")
@click.option("--topic", required=True, help="Where its rows go; it has to exist.")
@click.option(
    "--namesrv", metavar="ADDRESSES", required=True,
    help="The brokers' name servers, as host:port;host:port.",
)  # fmt: skip
@click.option(
    "--ledger", metavar="DIR", required=True, type=click.Path(file_okay=False),
    help="The state of this publication. Another run with it goes on where the last one ended.",
)  # fmt: skip
@click.option(
    "--value", default="", help="The column of bodies; value, or the row as JSON, if not given."
)
@click.option("--key", default="", help="The column of keys; key, if there is one.")
@click.option("--rate", type=click.FloatRange(0.001), help="Messages a second at most.")
@click.option("--group", default="", help="A consumer group of the topic that is to keep up.")
@click.option(
    "--max-lag", type=click.IntRange(0), default=10_000, show_default=True,
    help="With --group, how many messages it may be behind before the next ones wait.",
)  # fmt: skip
@click.option("--marker", default="", help="The body of a message that ends every queue's part.")
@click.option(
    "--option", "options", metavar="NAME=VALUE", multiple=True,
    help="rocketmq.tls.enable=true and others of the connection, storage.endpoint and others of "
    "an object store. Repeatable.",
)  # fmt: skip
@json_option
def publish_command(
    table: str,
    as_of: str,
    topic: str,
    namesrv: str,
    ledger: str,
    value: str,
    key: str,
    rate: float | None,
    group: str,
    max_lag: int,
    marker: str,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Send a table's rows to a topic, each exactly once.

    A run that was killed is run again with the same ledger and sends what is missing: every
    message says in its property PUBLISHED_AS which row it is. Keys, tags, sharding keys and
    properties come from the columns of these names. No JVM is started.

    Example: oberth spark publish --from /tmp/tables/orders --topic orders-again
    --namesrv 127.0.0.1:9876 --ledger /tmp/publish --rate 5000 --marker end
    """
    from oberth.spark.pipelines.backfill import PublishSettings, publish
    from oberth.spark.pipelines.export.places import STORAGE, storage_options
    from oberth.spark.write_options import parse_live_write_options

    given = parse_options(options)
    live = {n: v for n, v in given.items() if not n.lower().startswith(STORAGE)}
    connection = parse_live_write_options({**live, "rocketmq.namesrv.addr": namesrv}).connection
    settings = PublishSettings(
        absolute(table) or "", topic, as_of, value, key, rate, group, max_lag, marker,
        storage_options(given),
    )  # fmt: skip
    with Progress("publish") as progress:
        report = publish(settings, connection, absolute(ledger) or "", progress=progress)
    if as_json:
        write_json(report.to_json())
        return
    tell(
        f"{report.rows} rows: {report.sent} sent, {report.already} had arrived before, "
        f"{report.rows - report.sent - report.already} by earlier runs; {report.seconds:.1f} s"
    )
    for name, (low, high) in sorted(report.queues.items()):
        tell(f"{name}: offsets {low} to {high}")
