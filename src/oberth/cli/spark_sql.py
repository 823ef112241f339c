"""`oberth spark sql`."""

from __future__ import annotations

import base64
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from oberth.cli.output import OutputFile, fail, new_result_file, printable, say, write_table
from oberth.cli.spark_options import (
    absolute,
    check_source,
    conf_option,
    master_option,
    parse_options,
    session,
    spark_message,
)
from oberth.cli.store_options import json_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from oberth.spark.pipelines.views import TopicViews

ROWS_SHOWN: Final = 1000
_CELL_WIDTH_MAX: Final = 100
_HELP: Final = r"""Statements end with ;   \d  topics and their views   \q  quit"""


@click.command(name="sql")
@click.option(
    "--store",
    "stores",
    metavar="DIR",
    multiple=True,
    help="A store's root. Repeatable: topics of several brokers become one view.",
)
@click.option(
    "--namesrv",
    metavar="ADDRESSES",
    default=None,
    help="Live topics instead of stores: name servers as host:port;host:port.",
)
@click.option(
    "--lake",
    metavar="OUT",
    default=None,
    type=click.Path(file_okay=False),
    help="The directory of an export of the store: old ranges come from its tables, the rest from "
    "the log.",
)
@click.option(
    "--expand",
    metavar="TOPIC",
    multiple=True,
    help="JSON bodies of this topic become columns; * for all. Repeatable.",
)
@click.option("--columns", default="", help="Columns of the views; all but raw bytes if not given.")
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of format('rocketmq'), for example failOnDataLoss=false. Repeatable.",
)
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a header on stdout.")
@click.option(
    "--parquet",
    metavar="FILE",
    type=OutputFile(),
    help="The rows of one query into this new file; they must fit into memory.",
)
@click.option("--rows", metavar="N", type=click.IntRange(1), help="At most N rows.")
@click.option(
    "--only-reads",
    is_flag=True,
    help="Refuse all but queries over the views: no files, commands, programs, methods of Java.",
)
@json_option
@conf_option
@master_option
@click.argument("statement", required=False)
def sql_command(
    stores: tuple[str, ...],
    namesrv: str | None,
    lake: str | None,
    expand: tuple[str, ...],
    columns: str,
    options: tuple[str, ...],
    as_csv: bool,
    parquet: str | None,
    rows: int | None,
    only_reads: bool,
    as_json: bool,
    confs: tuple[str, ...],
    master: str,
    statement: str | None,
) -> None:
    r"""Ask a store in SQL: each topic is a view, all_messages holds all of them.

    Names are made safe: topic my-topic is the view my_topic (\d lists them). Without STATEMENT it
    is interactive, or reads statements that end with ; from standard input. JSON output is one
    object a row; bytes that are UTF-8 are text, others {"base64": …}.

    Example: oberth spark sql --store ~/store "select tags, count(*) from orders group by tags"
    """
    from oberth.errors import OptionError
    from oberth.spark.pipelines.views import TopicViews
    from oberth.spark.runtime import is_connect

    if as_json + as_csv + (parquet is not None) > 1:
        raise click.UsageError("one of --json, --csv and --parquet")
    if only_reads and is_connect(master):
        raise click.UsageError("--only-reads looks into a plan, which Spark Connect does not show")
    if parquet is not None and os.path.exists(parquet):
        raise click.UsageError(f"{parquet}: exists already")
    if bool(stores) == (namesrv is not None):
        raise click.UsageError("name stores with --store, or live brokers with --namesrv")
    given = parse_options(options)
    if namesrv is not None:
        given["rocketmq.namesrv.addr"] = namesrv
    if lake is not None:
        given["lake"] = absolute(lake) or ""
    check_source(master, {**given, "path": json.dumps(stores)} if stores else given)
    show = _show_csv if as_csv else _show_json if as_json else _show_table
    if parquet is not None:
        show = partial(_show_parquet, parquet)
    ask = partial(
        _answer, show=show, rows=rows, only_reads=only_reads, only_queries=parquet is not None
    )
    # A small answer in many pieces is slow.
    more = {"spark.sql.shuffle.partitions": "4", "spark.sql.artifact.isolation.enabled": "false"}
    with session(master, confs, app_name="oberth sql", more=more) as started:
        views = TopicViews(started, stores, given, columns, frozenset(expand))
        failed = _converse(views, ask) if statement is None else ask(views, statement)
    is_script = statement is not None or not sys.stdin.isatty()
    if parquet is not None and is_script and not failed and not os.path.exists(parquet):
        fail(OptionError(f"{parquet}: not written, no statement was a query"))
        failed = True
    sys.exit(2 if failed else 0)


def _converse(views: TopicViews, ask: Callable[[TopicViews, str], bool]) -> bool:
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401 - gives input() its history

        say(f"{len(views.readable())} topics. {_HELP}")
    failed = False
    for text in _statements(interactive):
        if text in (r"\q", "quit", "exit"):
            break
        if text == r"\d":
            write_table(("view", "topic"), sorted((n, t) for t, n in views.readable().items()))
        elif text in (r"\h", r"\?", "help"):
            say(_HELP)
        else:
            failed |= ask(views, text)
            if failed and not interactive:
                break
    return failed and not interactive


def _statements(interactive: bool) -> Iterator[str]:
    """Statements without their semicolons; commands of one line as they are."""
    pending = ""
    while True:
        try:
            prompt = ("oberth> " if not pending else "     -> ") if interactive else ""
            line = input(prompt)
        except EOFError:
            break
        except KeyboardInterrupt:
            say("")
            pending = ""
            continue
        if not pending and line.strip() in (r"\q", r"\d", r"\h", r"\?", "quit", "exit", "help"):
            yield line.strip()
            continue
        pending += ("\n" if pending else "") + line
        if pending.rstrip().endswith(";"):
            yield pending.rstrip().rstrip(";").strip()
            pending = ""
    if pending.strip():
        yield pending.strip()


def _answer(
    views: TopicViews,
    statement: str,
    *,
    show: Callable[[DataFrame], None],
    rows: int | None,
    only_reads: bool,
    only_queries: bool,
) -> bool:
    """Runs one statement, and shows its rows, or those of queries alone; whether it failed."""
    from pyspark.errors import PySparkException

    from oberth.errors import OberthError
    from oberth.spark.pipelines.only_reads import check_analysed, parse_reads
    from oberth.spark.pipelines.views import is_query

    statement = statement.strip().rstrip(";")
    if not statement:
        return False
    try:
        if only_reads:
            parse_reads(views.session, statement)
        frame = views.query(statement)
        if only_reads:
            check_analysed(frame)
        if only_queries and not is_query(statement):
            return False
        show(frame if rows is None else frame.limit(rows))
    except PySparkException as error:
        click.echo(f"error: {printable(spark_message(error))}", err=True)
        return True
    except OberthError as error:
        fail(error)
        return True
    return False


def frame_rows(frame: DataFrame, rows_max: int | None = None) -> Iterator[list[Any]]:
    """A frame's rows, the first ``rows_max`` of them or all, as JSON has them."""
    types = [field.dataType for field in frame.schema.fields]
    # Not limit(): with toLocalIterator it reads every partition.
    for row in frame.toLocalIterator() if rows_max is None else frame.take(rows_max):
        yield [plain_value(value, kind) for value, kind in zip(row, types, strict=True)]


def _show_json(frame: DataFrame) -> None:
    names = frame.columns
    for row in frame_rows(frame):
        line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        sys.stdout.write(line + "\n")


def _show_csv(frame: DataFrame) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in frame_rows(frame):
        writer.writerow([_csv_cell(value) for value in row])


def _show_parquet(path: str, frame: DataFrame) -> None:
    """A query's rows as a file that is not there before, or it is that of another statement.

    Raises:
        OptionError: it is there.
        StoreFullError: the disk has no room for it.
    """
    import pyarrow.parquet

    from oberth.errors import OptionError

    if not frame.columns:  # of WITH … INSERT
        return
    if os.path.exists(path):
        raise OptionError(f"{path}: exists already; --parquet takes the rows of one query")
    table = frame.toArrow()
    with new_result_file(path) as file:
        pyarrow.parquet.write_table(table, file)
    say(f"{table.num_rows} rows in {path}")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value


def _show_table(frame: DataFrame) -> None:
    if not frame.columns:
        return
    rows = list(frame_rows(frame, ROWS_SHOWN + 1))
    write_table(frame.columns, [[_cell(value) for value in row] for row in rows[:ROWS_SHOWN]])
    if len(rows) > ROWS_SHOWN:
        say(f"the first {ROWS_SHOWN} rows; --json and --csv give all")
    else:
        say(f"{len(rows)} rows")


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        value = "".join(char if char.isprintable() else "·" for char in value)
        return value if len(value) <= _CELL_WIDTH_MAX else value[: _CELL_WIDTH_MAX - 1] + "…"
    return value


def plain_value(value: Any, kind: DataType) -> Any:
    """A value of Spark's as JSON has it: of a TIMESTAMP the moment as ISO 8601 in UTC."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, datetime):
        if isinstance(kind, TimestampType):  # given in the zone of this process, without saying so
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if value is not None and isinstance(kind, MapType):
        return {
            str(plain_value(name, kind.keyType)): plain_value(each, kind.valueType)
            for name, each in value.items()
        }
    if value is not None and isinstance(kind, StructType):
        return {
            field.name: plain_value(each, field.dataType)
            for field, each in zip(kind.fields, value, strict=True)
        }
    if value is not None and isinstance(kind, ArrayType):
        return [plain_value(each, kind.elementType) for each in value]
    return value
