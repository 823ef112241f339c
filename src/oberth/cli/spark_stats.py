"""`oberth spark stats`."""

from __future__ import annotations

import click

from oberth.cli.output import (
    OutputFile,
    say,
    tell,
    write_json,
    write_result_file,
    write_table,
)
from oberth.cli.spark_options import (
    live_options,
    one_store,
    session,
    spark_options,
    store_or_brokers,
)


@click.command(name="stats")
@one_store
@live_options
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write a report.")
@spark_options
def stats_command(
    directory: str | None,
    store_option: str | None,
    namesrv: str | None,
    options: tuple[str, ...],
    html: str | None,
    master: str,
    confs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count messages, bytes, rates, sizes and delays; find gaps and duplicate unique keys.

    By topic, queue, tag, producer host and hour; of a store, or with --namesrv of live topics.
    --html writes a page with plots that needs nothing but itself.

    Example: oberth spark stats ~/store --html /tmp/store.html
    """
    from oberth.spark.pipelines.stats import TABLES, collect, report_html, stats

    root, given = store_or_brokers(directory, store_option, namesrv, options, master)
    with session(master, confs, app_name="oberth stats") as started:
        tables = collect(stats(started, root, given))
    if html is not None:
        title = f"Store {root}" if root else f"Topics of {namesrv}"
        write_result_file(html, report_html(title, tables))
        say(f"written: {html}")
    if as_json:
        write_json(tables)
        return
    for name in TABLES:
        rows = tables[name]
        tell(f"{name}:")
        if rows:
            write_table(list(rows[0]), [list(row.values()) for row in rows])
        else:
            tell("none")
        click.echo()
