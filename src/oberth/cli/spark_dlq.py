"""`oberth spark dlq`."""

from __future__ import annotations

from typing import Final

import click

from oberth.cli.output import say, write_json_line, write_table
from oberth.cli.spark_options import (
    live_options,
    one_store,
    session,
    spark_options,
    store_or_brokers,
)
from oberth.cli.spark_sql import frame_rows

_SHOWN: Final = (
    "consumerGroup", "originTopic", "timesRetried", "reason", "partition", "offset", "timestamp",
    "key", "tags", "offsetMsgId",
)  # fmt: skip


@click.command(name="dlq")
@one_store
@live_options
@click.option("--group", default="", help="Only of this consumer group.")
@click.option("--where", default="true", help="Which, in SQL over their columns.")
@spark_options
def dlq_command(
    directory: str | None,
    store_option: str | None,
    namesrv: str | None,
    options: tuple[str, ...],
    group: str,
    where: str,
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show dead letters: origin topic, consumer group, how often they were tried again.

    --json gives all columns, one object a line.

    Example: oberth spark dlq ~/store --where "timestamp > '2026-01-01'"
    """
    from oberth.spark.pipelines.dead_letters import dead_letters

    root, given = store_or_brokers(directory, store_option, namesrv, options, master)
    with session(master, confs, app_name="oberth dlq") as started:
        frame = dead_letters(started, root, group=group, options=given).where(where)
        frame = frame.orderBy("topic", "partition", "offset")
        if as_json:
            for row in frame_rows(frame):
                write_json_line(dict(zip(frame.columns, row, strict=True)))
            return
        rows = list(frame_rows(frame.select(*_SHOWN)))
    write_table(_SHOWN, rows)
    say(f"{len(rows)} dead letters")
