"""`oberth spark redrive`."""

from __future__ import annotations

import sys
from typing import Final

import click

from oberth.cli.output import say, write_json_line, write_table
from oberth.cli.spark_options import (
    absolute,
    check_name_servers,
    check_source,
    directory_of,
    live_options,
    one_store,
    parse_options,
    session,
    spark_options,
)

EXIT_NOT_ALL: Final = 1


@click.command(name="redrive")
@one_store
@live_options
@click.option(
    "--into", metavar="DIR2", type=click.Path(file_okay=False),
    help="The store that gets them; the same one if not given. No process may have it open.",
)  # fmt: skip
@click.option("--group", default="", help="Only of this consumer group.")
@click.option("--where", default="true", help="Which, in SQL over the columns of `dlq`.")
@spark_options
def redrive_command(
    directory: str | None,
    store_option: str | None,
    namesrv: str | None,
    options: tuple[str, ...],
    into: str | None,
    group: str,
    where: str,
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write dead letters to their origin topics again, with a receipt for each.

    A letter that its origin topic has already is not written again. Keys, tags, unique key and the
    application's properties stay; REDRIVEN_FROM names the dead letter.

    With --namesrv letters are sent to live topics, from the store DIR if one is named, else from
    the same brokers.

    Exit code 1 if the origin topic of some is not known, or if another redrive is at work.

    Example: oberth spark redrive ~/store --group billing --where "tags = 'invoice'"
    """
    from oberth.client.dead_letters import Receipt
    from oberth.client.redrive_claim import RedriveHeldError
    from oberth.spark.pipelines.dead_letters import redrive, redrive_live
    from oberth.spark.write_options import parse_live_write_options

    given = parse_options(options)
    root = ""
    if namesrv is None or directory is not None or store_option is not None:
        root = absolute(directory_of(directory, store_option)) or ""
    if namesrv is not None and into is not None:
        raise click.UsageError("--into names a store, --namesrv live brokers: one of them")
    connection = {**given, "rocketmq.namesrv.addr": namesrv or ""}
    if root:
        check_source(master, {"path": root})
    if namesrv is not None:
        check_name_servers(master, parse_live_write_options(connection).connection)
    with session(master, confs, app_name="oberth redrive") as started:
        if namesrv is not None:
            try:
                receipts = redrive_live(started, root, connection, where=where, group=group)
            except RedriveHeldError as error:
                say(str(error))
                sys.exit(EXIT_NOT_ALL)
        else:
            receipts = redrive(
                started, root, absolute(into) or root, where=where, group=group, options=given
            )
    if as_json:
        for receipt in receipts:
            write_json_line(receipt.to_json())
    else:
        write_table(Receipt._fields, receipts)
        say(f"{len(receipts)} dead letters")
    done = ("redriven", "already")
    sys.exit(0 if all(each.status in done for each in receipts) else EXIT_NOT_ALL)
