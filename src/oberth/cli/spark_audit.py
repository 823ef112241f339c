"""`oberth spark audit`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from oberth.cli.output import (
    OutputFile,
    fail,
    say,
    tell,
    until_the_reader_leaves,
    write_json,
    write_result_file,
)
from oberth.cli.progress import Progress
from oberth.cli.spark_options import (
    absolute,
    apache_options,
    check_source,
    live_options,
    log_size,
    parse_options,
    session,
    spark_options,
    spark_tasks,
)
from oberth.cli.store_options import read_entries
from oberth.errors import OberthError

if TYPE_CHECKING:
    from oberth.spark.pipelines.audit import AuditReport

EXIT_DIFFERENT: Final = 1
EXIT_UNUSABLE: Final = 2


@click.command(name="audit")
@click.argument("one", metavar="A", type=click.Path(exists=True, file_okay=False))
@click.argument(
    "other", metavar="[B]", type=click.Path(exists=True, file_okay=False), required=False
)
@click.option(
    "--common", is_flag=True,
    help="Leave out what only one has: before the other's begin or behind its end.",
)  # fmt: skip
@click.option(
    "--receipt", metavar="FILE", type=OutputFile(),
    help="Write a receipt, as JSON: the compared ranges with their checksums.",
)  # fmt: skip
@click.option(
    "--check", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="A receipt: also find ranges of either store that have changed since then.",
)  # fmt: skip
@live_options
@apache_options
@spark_options
def audit_command(
    one: str,
    other: str | None,
    common: bool,
    receipt: str | None,
    check: str | None,
    namesrv: str | None,
    options: tuple[str, ...],
    config: str | None,
    settings: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the store A with the store B, with its exact export B, or with a live cluster.

    Two stores are compared byte by byte, an export (`oberth spark export --exact`) record by
    record, a cluster (--namesrv) message by message. Every message that one of them lacks, or that
    is damaged or another one there, is named with topic, queue, offset and keys.

    Exit code 0 when they are equal, 1 when not, 2 when they cannot be compared.

    Example: oberth spark audit /data/a /data/b --receipt audit.json
    """
    from oberth.spark.pipelines import audit
    from oberth.spark.pipelines.export.ledger import DIRECTORY

    if (other is None) == (namesrv is None):
        raise click.UsageError("name B or --namesrv, one of them")
    root, target = absolute(one) or "", absolute(other) or ""
    is_export = os.path.isdir(os.path.join(target, DIRECTORY, "batches"))
    if check is not None and (namesrv is not None or is_export):
        raise click.UsageError("--check goes with two stores")
    try:
        entries = read_entries(config, settings)
        known = audit.read_receipt(check) if check is not None else None
        if namesrv is not None:
            given = {**parse_options(options), "rocketmq.namesrv.addr": namesrv}
            check_source(master, given)
            with session(master, confs, app_name="oberth audit") as started:
                report = audit.audit_live(started, root, given, common=common)
        else:
            with (
                spark_tasks(master, confs, app_name="oberth audit") as tasks,
                Progress("audit", log_size(root, entries)) as progress,
            ):
                if is_export:
                    report = audit.audit_export(
                        tasks, root, target, common=common, entries=entries, progress=progress
                    )
                else:
                    report = audit.audit_stores(
                        tasks, root, target, common=common, receipt=known, entries=entries,
                        progress=progress,
                    )  # fmt: skip
        if receipt is not None:
            write_result_file(receipt, json.dumps(report.receipt(), indent=1) + "\n")
    except (OberthError, OSError) as error:
        if as_json:
            write_json({"equal": False, "unusable": str(error)})
        fail(error)
        sys.exit(EXIT_UNUSABLE)
    if as_json:
        write_json(report.to_json())
    else:
        _tell(report)
    sys.exit(0 if report.equal else EXIT_DIFFERENT)


def _tell(report: AuditReport) -> None:
    with until_the_reader_leaves():
        for finding in report.findings:
            tell(str(finding))
        if report.finding_count > len(report.findings):
            tell(f"{report.finding_count - len(report.findings)} more")
        for changed in report.since_receipt:
            tell(f"changed since the receipt: CommitLog {changed.start} to {changed.end}")
    difference = ""
    if report.first_difference is not None:
        difference = (
            f", the first difference at {report.first_difference}, {report.finding_count} messages"
        )
    say(
        f"{'equal' if report.equal else 'not equal'}: {report.one} and {report.other}, "
        f"CommitLog {report.start} to {report.end}{difference}"
    )
