"""Shared by all `oberth spark` commands: the store, the session, Apache's options."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oberth.cli.output import say
from oberth.cli.store_options import config_option, json_option, set_option
from oberth.errors import OberthError, SparkUnavailableError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from oberth.spark.connection import Connection
    from oberth.spark.pipelines.tasks import OnSpark

F = TypeVar("F", bound=Callable[..., Any])

_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception))\b:? *(.*)$", re.MULTILINE)
"""The line of a traceback that says what was raised."""

master_option = click.option(
    "--master",
    metavar="URL",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: local[N], spark://host:port, yarn, k8s://…, or sc://host:port.",
)


def parse_confs(confs: tuple[str, ...]) -> dict[str, str]:
    """Spark's settings of --conf.

    Raises:
        click.UsageError: one is not NAME=VALUE.
    """
    settings = {}
    for text in confs:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            raise click.UsageError(f"--conf {text!r}: allowed is NAME=VALUE")
        settings[name.strip()] = value
    return settings


def _checked_confs(_: object, __: object, confs: tuple[str, ...]) -> tuple[str, ...]:
    parse_confs(confs)
    return confs


conf_option = click.option(
    "--conf",
    "confs",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_checked_confs,  # before a command looks for anything
    help="A setting of Spark. Repeatable.",
)
scratch_option = click.option(
    "--scratch",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Where tasks put files between the steps; every machine has to see it.",
)


def spark_options(command: F) -> F:
    """--master, --conf and --json."""
    for decorate in (json_option, conf_option, master_option):
        command = decorate(command)
    return command


def one_store(command: F) -> F:
    """DIR, or --store DIR; the command gets ``directory``."""
    option = click.option(
        "--store", "store_option", metavar="DIR", type=click.Path(), help="The store, as DIR."
    )
    argument = click.argument("directory", metavar="[DIR]", type=click.Path(), required=False)
    return argument(option(command))


def live_options(command: F) -> F:
    """--namesrv and --option; the command gets ``namesrv`` and ``options``."""
    namesrv = click.option(
        "--namesrv", metavar="ADDRESSES", default=None,
        help="Live topics instead of a store: name servers as host:port;host:port.",
    )  # fmt: skip
    option = click.option(
        "--option", "options", metavar="NAME=VALUE", multiple=True,
        help="An option of format('rocketmq'), such as rocketmq.tls.enable=true. Repeatable.",
    )  # fmt: skip
    return namesrv(option(command))


def parse_options(options: tuple[str, ...]) -> dict[str, str]:
    """The source's options of --option.

    Raises:
        click.UsageError: one is not NAME=VALUE.
    """
    given = {}
    for text in options:
        name, found, value = text.partition("=")
        if not found:
            raise click.UsageError(f"--option {text.split('=')[0]!r}: allowed is NAME=VALUE")
        given[name] = value
    return given


def store_or_brokers(
    directory: str | None,
    store_option: str | None,
    namesrv: str | None,
    options: tuple[str, ...],
    master: str,
) -> tuple[str, dict[str, str]]:
    """Where a command reads: the stores' paths ("" for live brokers), and the source's options.

    Raises:
        click.UsageError: neither a store nor name servers, or both.
        OptionError: there is no store, or an option is wrong.
        RemotingError: no name server answers.
    """
    given = parse_options(options)
    if namesrv is None:
        stores = directory_of(directory, store_option).split(",")
        root = ",".join(absolute(each.strip()) or "" for each in stores)
        check_source(master, {**given, "path": root})
        return root, given
    if directory is not None or store_option is not None:
        raise click.UsageError("name a store or --namesrv, not both")
    given["rocketmq.namesrv.addr"] = namesrv
    check_source(master, given)
    return "", given


def check_source(master: str, options: Mapping[str, str]) -> None:
    """Finds out whether the source is there, before Spark is started for nothing.

    Not with Spark Connect, whose server may have other directories and reach others.

    Args:
        master: where Spark runs.
        options: of ``format("rocketmq")``.

    Raises:
        OptionError: there is no store at the path, or an option is wrong.
        RemotingError: no name server answers.
    """
    from oberth.spark.options import parse_read_options
    from oberth.spark.plan import open_stores
    from oberth.spark.runtime import is_connect

    if is_connect(master):
        return
    read = parse_read_options(options, streaming=False)
    if read.connection is not None:
        check_name_servers(master, read.connection)
    else:
        open_stores(read)


def check_name_servers(master: str, connection: Connection) -> None:
    """Asks the name servers once; see `check_source`.

    Raises:
        RemotingError: none answers.
    """
    import pyspark  # noqa: F401 - that it is missing is said before what it would ask

    from oberth.client.admin import Admin
    from oberth.spark.runtime import is_connect

    async def ask() -> None:
        config = connection.client_config()
        async with Admin(config=config, timeout_ms=connection.timeout_ms) as admin:
            await admin.cluster_info()

    if not is_connect(master):
        asyncio.run(ask())


def apache_options(command: F) -> F:
    """-c and --set."""
    return config_option(set_option(command))


def directory_of(directory: str | None, store_option: str | None) -> str:
    """The store that a command was given in one of two ways.

    Raises:
        click.UsageError: none, or two.
    """
    if (directory is None) == (store_option is None):
        raise click.UsageError("name one store: DIR or --store DIR")
    return directory or store_option or ""


@contextmanager
def session(
    master: str, confs: tuple[str, ...], *, app_name: str, more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for the length of a command; one that is there already is used and left alone.

    Raises:
        SparkUnavailableError: no Java, or no pyspark, or not what a Connect client needs.
        OberthError: Spark could not do what it was asked for, `spark_message`.
    """
    from oberth.spark.runtime import build_session, is_connect, is_local, prepare_environment

    settings = {**(more or {}), **parse_confs(confs)}
    if not is_connect(master):
        prepare_environment(quiet=True)
    from pyspark.sql import SparkSession

    present = SparkSession.getActiveSession()
    if present is not None:
        with _errors_in_words():
            yield present
        return
    _leave_out_py4j()
    if sys.stderr.isatty():  # for people: tasks done of each stage that takes its time
        settings.setdefault("spark.ui.showConsoleProgress", "true")
    # A command lives for seconds: the JVM's second compiler hardly pays, its start does cost.
    started = build_session(
        master, app_name=app_name, config=settings, quick=is_local(master), quiet=True
    )
    if settings.get("spark.ui.enabled", "").lower() == "true" and not is_connect(master):
        say(f"Spark UI: {started.sparkContext.uiWebUrl}")
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler asks the JVM while the interrupted call still waits for its answer,
        # and fails. Here Ctrl-C ends the command, and with it the session and its jobs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _errors_in_words():
            yield started
    finally:
        started.stop()


def stop_query(query: StreamingQuery) -> None:
    """Stop a query after Ctrl-C.

    That may have broken off a call while py4j was sending it, and the next one may find its new
    connection closed. Then it is asked once more.
    """
    from py4j.protocol import Py4JError

    with suppress(Py4JError):
        query.stop()
        return
    query.stop()


@contextmanager
def _errors_in_words() -> Iterator[None]:
    """Raises what Spark raises as an `OberthError`, without stacks of Python and the JVM."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise OberthError(spark_message(error)) from error


def spark_message(error: PySparkException) -> str:
    """What an error of Spark's says to people: the words of our source if that raised it."""
    text = str(error.getMessage() or error).split("\n\nJVM stacktrace")[0].strip()
    _, found, traceback = text.rpartition("Traceback (most recent call last)")
    raised = _RAISED.findall(traceback) if found else []
    if not raised:
        return text
    kind, said = map(str, raised[-1])
    return said or kind


def _leave_out_py4j() -> None:
    """Keeps what py4j logs about an interrupted call from stderr; warnings of others stay."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    root.addHandler(handler)


@contextmanager
def spark_tasks(master: str, confs: tuple[str, ...], *, app_name: str) -> Iterator[OnSpark]:
    """The session that pipelines run on, for the length of a command.

    Raises:
        SparkUnavailableError: no Java, or no pyspark, or the master is a Spark Connect server.
    """
    from oberth.spark.pipelines.tasks import NOT_WITH_CONNECT, OnSpark
    from oberth.spark.runtime import is_connect

    if is_connect(master):
        raise SparkUnavailableError(f"{master}: {NOT_WITH_CONNECT}")
    with session(master, confs, app_name=app_name) as started:
        yield OnSpark(started)


def absolute(path: str | None) -> str | None:
    """A local path that means the same in every process; URLs stay as they are."""
    if path is None or "://" in path:
        return path
    return os.path.abspath(path)


def log_size(root: str, entries: Mapping[str, str]) -> int:
    """Bytes of a store's CommitLog files.

    Raises:
        NotFoundError: no store there.
        OptionError: an unknown option or a wrong value.
    """
    from oberth.store.offline.layout import discover

    return sum(each.size for each in discover(root, entries).commit_log)
