"""`oberth spark verify`."""

from __future__ import annotations

import sys
from typing import Final

import click

from oberth.cli.output import fail, write_json
from oberth.cli.progress import Progress
from oberth.cli.spark_options import (
    absolute,
    apache_options,
    directory_of,
    log_size,
    one_store,
    scratch_option,
    spark_options,
    spark_tasks,
)
from oberth.cli.store_options import read_entries
from oberth.cli.store_reports import show_verified
from oberth.errors import OberthError

EXIT_FINDINGS: Final = 1
EXIT_UNUSABLE: Final = 2


@click.command(name="verify")
@one_store
@apache_options
@spark_options
@scratch_option
def verify_command(
    directory: str | None,
    store_option: str | None,
    config: str | None,
    settings: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
    scratch: str | None,
) -> None:
    """Check CommitLog, ConsumeQueues, Index, checkpoint and config against each other.

    The findings are those of `oberth store verify`; here many tasks look for them.

    Exit code 0 when clean, 1 with findings, 2 when the store cannot be used at all.

    Example: oberth spark verify ~/store --master 'local[4]' && echo clean
    """
    from oberth.spark.pipelines.verify import verify

    root = directory_of(directory, store_option)
    try:
        entries = read_entries(config, settings)
        size = log_size(root, entries)
        with (
            spark_tasks(master, confs, app_name="oberth verify") as tasks,
            Progress("verify", size) as progress,
        ):
            report = verify(
                tasks, root, entries=entries, scratch=absolute(scratch), progress=progress
            )
    except (OberthError, OSError) as error:
        if as_json:
            write_json({"clean": False, "unusable": str(error)})
        fail(error)
        sys.exit(EXIT_UNUSABLE)
    show_verified(report, as_json=as_json)
    sys.exit(0 if report.clean else EXIT_FINDINGS)
