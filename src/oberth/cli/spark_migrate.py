"""`oberth spark migrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oberth.cli.output import tell, write_json
from oberth.cli.progress import Progress
from oberth.cli.spark_options import (
    absolute,
    check_name_servers,
    parse_options,
    session,
    spark_options,
)

if TYPE_CHECKING:
    from oberth.spark.pipelines.migrate import Side


@click.command(name="migrate")
@click.option(
    "--from", "source", metavar="URL", required=True,
    help="kafka://HOST:PORT/TOPIC or rocketmq://NAMESRV:PORT/TOPIC; several servers with commas.",
)  # fmt: skip
@click.option(
    "--to", "target", metavar="URL", required=True,
    help="The other one. A topic that is missing is made, with as many queues or partitions.",
)  # fmt: skip
@click.option(
    "--ledger", metavar="DIR", required=True, type=click.Path(file_okay=False),
    help="The state and the receipts of this migration. Another run with it goes on.",
)  # fmt: skip
@click.option(
    "--group", "groups", metavar="GROUP", multiple=True,
    help="A consumer group whose offsets are mapped and set; nobody may be in it. Repeatable.",
)  # fmt: skip
@click.option(
    "--option", "options", metavar="NAME=VALUE", multiple=True,
    help="rocketmq.tls.enable=true and others of RocketMQ's connection, kafka.security.protocol=… "
    "and others of Kafka's. Repeatable.",
)  # fmt: skip
@spark_options
def migrate_command(
    source: str,
    target: str,
    ledger: str,
    groups: tuple[str, ...],
    options: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Move a topic from Kafka to RocketMQ or back: messages, keys, headers, times, groups' offsets.

    Each message is moved once, also when a run is killed and run again; a later run moves what has
    come since. Spark needs the jars of its Kafka source.

    Example: oberth spark migrate --from kafka://127.0.0.1:9092/orders
    --to rocketmq://127.0.0.1:9876/orders --ledger /tmp/orders --group billing
    --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    """
    from oberth.spark.pipelines.migrate import migrate
    from oberth.spark.write_options import parse_live_write_options

    there, here = _side(source), _side(target)
    given = parse_options(options)
    kafka = {n: v for n, v in given.items() if n.startswith("kafka.")}
    live = {n: v for n, v in given.items() if n not in kafka}
    live["rocketmq.namesrv.addr"] = (here if there.kafka else there).address
    connection = parse_live_write_options(live).connection
    check_name_servers(master, connection)
    # Kafka's sink would send a task's messages again if Spark ran it twice.
    more = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
    with (
        session(master, confs, app_name="oberth migrate", more=more) as started,
        Progress("migrate") as progress,
    ):
        report = migrate(
            started, there, here, absolute(ledger) or "", connection=connection,
            live_options=live, kafka_options=kafka, groups=groups, progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(report.to_json())
        return
    tell(
        f"{report.moved} messages moved, {report.already} had arrived before, {report.total} in "
        f"all; {report.seconds:.1f} s"
    )
    for group, places in report.groups.items():
        for number, (old, new) in places.items():
            tell(f"group {group}, partition {number}: {old} became {new}")


def _side(url: str) -> Side:
    """The cluster and topic that a URL names.

    Raises:
        click.UsageError: it is of another form.
    """
    from oberth.spark.pipelines.migrate import Side

    scheme, _, rest = url.partition("://")
    address, _, topic = rest.partition("/")
    if scheme not in ("kafka", "rocketmq") or not address or not topic or "/" in topic:
        raise click.UsageError(
            f"{url!r}: allowed are kafka://HOST:PORT/TOPIC and rocketmq://HOST:PORT/TOPIC"
        )
    is_kafka = scheme == "kafka"
    return Side(is_kafka, address if is_kafka else address.replace(",", ";"), topic)
