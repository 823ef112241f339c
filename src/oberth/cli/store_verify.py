"""`oberth store verify`."""

from __future__ import annotations

import sys
from typing import Final

import click

from oberth.cli.output import fail, write_json
from oberth.cli.progress import Progress
from oberth.cli.store_options import read_entries, store_options
from oberth.cli.store_reports import show_verified
from oberth.errors import OberthError

EXIT_FINDINGS: Final = 1
EXIT_UNUSABLE: Final = 2


@click.command(name="verify")
@store_options
@click.option(
    "--threads", type=click.IntRange(1), help="Threads that read; one per core if not given."
)
def verify_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    threads: int | None,
) -> None:
    """Check CommitLog, ConsumeQueues, Index, checkpoint and config against each other.

    Reads the whole CommitLog with all checksums and compares queues and index with it. Each finding
    names file, position, what is found and what is expected. Notes are no damage: what the next
    start of the store puts right by itself. Also while a broker is writing.

    Exit code 0 when clean, 1 with findings, 2 when the store cannot be used at all.

    Example: oberth store verify ~/store && echo clean
    """
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.verify import verify

    try:
        with (
            StoreReader(directory, read_entries(config, settings)) as reader,
            Progress("verify", sum(each.size for each in reader.layout.commit_log)) as progress,
        ):
            report = verify(reader, threads=threads, progress=progress)
    except (OberthError, OSError) as error:
        if as_json:
            write_json({"clean": False, "unusable": str(error)})
        fail(error)
        sys.exit(EXIT_UNUSABLE)
    show_verified(report, as_json=as_json)
    sys.exit(0 if report.clean else EXIT_FINDINGS)
