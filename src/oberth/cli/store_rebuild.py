"""`oberth store rebuild`."""

from __future__ import annotations

import click

from oberth.cli.progress import Progress
from oberth.cli.store_options import read_entries, store_options
from oberth.cli.store_reports import show_rebuilt


@click.command(name="rebuild")
@store_options
@click.option(
    "--into",
    metavar="DIR2",
    type=click.Path(file_okay=False),
    help="Write into this directory; without it, into the store itself, which must not be in use.",
)
@click.option(
    "--threads", type=click.IntRange(1), help="Threads that read; one per core if not given."
)
def rebuild_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    into: str | None,
    threads: int | None,
) -> None:
    """Build ConsumeQueues (with ext, batch and light queues) and Index from the CommitLog.

    The files are those that RocketMQ's own dispatch makes, byte for byte; only index files are
    named after the first message in them. Into the store itself it is built beside what is there
    and then exchanged, so that stopping it at any moment harms nothing.

    Example: oberth store rebuild ~/store --into /tmp/rebuilt
    """
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.rebuild import rebuild

    with (
        StoreReader(directory, read_entries(config, settings)) as reader,
        Progress("rebuild", sum(each.size for each in reader.layout.commit_log)) as progress,
    ):
        report = rebuild(reader, into, threads=threads, progress=progress)
    show_rebuilt(report, as_json=as_json)
