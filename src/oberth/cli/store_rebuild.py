"""`oberth store rebuild`."""

from __future__ import annotations

import click

from oberth.cli.output import say, write_json
from oberth.cli.progress import Progress
from oberth.cli.store_options import read_entries, store_options


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
    if as_json:
        write_json(report.to_json())
        return
    for damage in report.damages:
        say(f"CommitLog {damage.start} to {damage.end}: no record ({damage.reason})")
    for key, count in report.stand_ins.items():
        say(f"{key}: {count} messages are lost; their places lead to the message that follows")
    for topic in report.illegal_topics:
        say(f"topic {topic!r}: no directory can have this name, its records are in no queue")
    click.echo(
        f"{report.records} records: {report.units} units in {report.queues} queues, "
        f"{report.index_entries} entries in {report.index_files} index files, "
        f"{report.seconds:.1f} s"
    )
