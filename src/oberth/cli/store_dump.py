"""`oberth store dump`."""

from __future__ import annotations

import sys

import click

from oberth.cli.output import say, write_json_line
from oberth.cli.store_options import read_entries, store_options


@click.command(name="dump")
@store_options
@click.option("--topic", help="Only this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue id.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    help="Where to begin: a queue offset with --topic and --queue, else a CommitLog offset.",
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N messages.")
@click.option("--fillers", is_flag=True, help="Also the records that salvage put into holes.")
def dump_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    topic: str | None,
    queue_id: int | None,
    start: int | None,
    limit: int | None,
    fillers: bool,
) -> None:
    """Print messages as JSON, one a line, with every field.

    In the order of the CommitLog, or of the queue when --topic and --queue are given. Bodies are
    base64, decompressed. Damaged ranges are passed over and named on stderr.

    Example: oberth store dump ~/store --topic TopicTest --queue 0 --from 100 --limit 10
    """
    from oberth.store.offline.dump import dump
    from oberth.store.offline.reader import StoreReader

    del as_json  # lines of JSON are all that this command prints
    with StoreReader(directory, read_entries(config, settings)) as reader:
        for message in dump(
            reader,
            topic=topic,
            queue_id=queue_id,
            start=start,
            limit=limit,
            fillers=fillers,
            report=say,
        ):
            write_json_line(message)
    sys.stdout.flush()
