"""`oberth spark dispatch`."""

from __future__ import annotations

import os

import click

from oberth.cli.output import say, write_json_line
from oberth.cli.progress import Progress
from oberth.cli.spark_options import (
    absolute,
    apache_options,
    directory_of,
    log_size,
    one_store,
    scratch_option,
    session,
    spark_options,
    spark_tasks,
    stop_query,
)
from oberth.cli.store_options import read_entries
from oberth.cli.store_reports import show_rebuilt


@click.command(name="dispatch")
@one_store
@apache_options
@spark_options
@scratch_option
@click.option(
    "--into",
    metavar="DIR2",
    type=click.Path(file_okay=False),
    help="Write into this directory; without it, into the store itself, which must not be in use.",
)
@click.option(
    "--follow", is_flag=True,
    help="Follow a log that a broker is writing whose own dispatch is off, until interrupted.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="DIR3", type=click.Path(file_okay=False),
    help="With --follow, the query's directory; below the store if not given.",
)  # fmt: skip
def dispatch_command(
    directory: str | None,
    store_option: str | None,
    config: str | None,
    settings: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
    scratch: str | None,
    into: str | None,
    follow: bool,
    checkpoint: str | None,
) -> None:
    """Build ConsumeQueues (with ext, batch and light queues), Index and checkpoint.

    The files are those of `oberth store rebuild`, byte for byte; here many tasks make them, so a
    log of terabytes takes as long as the machines need to read it. Into the store itself it is
    built beside what is there and then exchanged.

    With --follow a streaming query keeps queues and index of a growing log up to date, each message
    once across restarts and kills.

    Example: oberth spark dispatch ~/store --into /tmp/dispatched --master 'local[2]'
    """
    from oberth.spark.pipelines.dispatch import dispatch

    root = directory_of(directory, store_option)
    entries = read_entries(config, settings)
    if follow:
        if into is not None:
            raise click.UsageError("--follow dispatches into the store itself, without --into")
        _follow(root, entries, master, confs, checkpoint, as_json)
        return
    size = log_size(root, entries)
    with (
        spark_tasks(master, confs, app_name="oberth dispatch") as tasks,
        Progress("dispatch", size) as progress,
    ):
        report = dispatch(
            tasks, root, absolute(into), entries=entries, scratch=absolute(scratch),
            progress=progress,
        )  # fmt: skip
    show_rebuilt(report, as_json=as_json)


def _follow(
    root: str,
    entries: dict[str, str],
    master: str,
    confs: tuple[str, ...],
    checkpoint: str | None,
    as_json: bool,
) -> None:
    from oberth.spark.pipelines.dispatch_stream import start_dispatch

    place = os.path.abspath(root)
    with session(master, confs, app_name="oberth dispatch") as started:
        query = start_dispatch(
            started, place, absolute(checkpoint) or f"{place}/oberth/dispatch-query",
            entries=entries,
        )  # fmt: skip
        try:
            say("following; interrupt to stop")
            while not query.awaitTermination(10):
                progress = query.lastProgress
                if progress is not None and as_json:
                    write_json_line({"batch": progress.batchId, "records": progress.numInputRows})
        except KeyboardInterrupt:
            stop_query(query)
            say("stopped; the next --follow goes on from here")
