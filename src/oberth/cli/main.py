"""The `oberth` command. Sub-commands are imported when they are called, so that help is quick.

A further command is one line in COMMANDS: its name, where its click command is, and its help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from oberth.cli.hints import missing_extra
from oberth.cli.lazy import LazyGroup
from oberth.cli.output import (
    escape_what_cannot_be_shown,
    fail,
    leave_stream,
    open_closed_streams,
    reader_is_gone,
)
from oberth.errors import OberthError

COMMANDS: Final = {
    "up": ("oberth.cli.up:up", "Start a name server and a broker in one process."),
    "broker": ("oberth.cli.broker:broker", "Start a broker for name servers elsewhere."),
    "namesrv": ("oberth.cli.namesrv:namesrv", "Start a name server alone."),
    "controller": (
        "oberth.cli.controller:controller",
        "Start a controller: it elects the masters of replicated brokers.",
    ),
    "proxy": ("oberth.cli.proxy:proxy", "Serve gRPC clients before the brokers of a cluster."),
    "topic": ("oberth.cli.topic:topic", "Make, list, show and delete topics."),
    "group": ("oberth.cli.group:group", "Make, list, watch, reset and delete consumer groups."),
    "message": ("oberth.cli.message:message", "Send, read and find messages."),
    "cluster": ("oberth.cli.cluster:cluster", "Show brokers and how they are doing."),
    "acl": ("oberth.cli.acl:acl", "Users and policies: who may do what."),
    "dlq": ("oberth.cli.dlq:dlq", "Dead letters of a live cluster: show them, send them again."),
    "top": ("oberth.cli.top:top", "Watch rates, lags, waiting requests and disks of a cluster."),
    "console": ("oberth.cli.console:console", "Show a cluster in a browser."),
    "completion": ("oberth.cli.completion:completion", "Completion of commands for a shell."),
    "store": ("oberth.cli.store:store", "Read, check and repair the files of a store."),
    "spark": ("oberth.cli.spark:spark", "Pipelines over stores: dispatch, verify, export, SQL."),
}

EXIT_UNUSABLE: Final = 2


class _ReaderIsGoneError(Exception):
    """A pipe that we write to is closed."""


class _Commands(LazyGroup):
    """All commands; what click does about a closed pipe, exit code 1, here means findings."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError as error:
            raise _ReaderIsGoneError from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderIsGoneError from error


@click.group(
    cls=_Commands,
    commands_by_name=COMMANDS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(None, "-V", "--version", package_name="oberth", message="oberth %(version)s")
def oberth() -> None:
    """Apache RocketMQ in Python: its store, its broker, its client, and its log as a Spark table.

    Data goes to stdout, messages for people to stderr. Exit codes: 0 done; 1 findings, or nothing
    found; 2 the command could not do its work.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and ends the process."""
    running = " ".join((sys.argv[1:] if arguments is None else arguments)[:2])
    open_closed_streams()
    escape_what_cannot_be_shown()
    try:
        code = oberth.main(arguments, prog_name="oberth", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("aborted", err=True)
        sys.exit(130)
    except OberthError as error:
        fail(error, running)
        sys.exit(EXIT_UNUSABLE)
    except UnicodeEncodeError as error:
        fail(OberthError(f"{error.object[error.start : error.end]!r} is no text in UTF-8"))
        sys.exit(EXIT_UNUSABLE)
    except _ReaderIsGoneError:
        # The reader of our output has seen enough; that is how `| head` ends.
        for stream in (sys.stdout, sys.stderr):
            if reader_is_gone(stream):
                leave_stream(stream)
        sys.exit(0)
    except OSError as error:
        fail(error, running)
        sys.exit(EXIT_UNUSABLE)
    except ImportError as error:
        text = missing_extra(error)
        if text is None:
            raise
        fail(OberthError(text))
        sys.exit(EXIT_UNUSABLE)
    sys.exit(code if isinstance(code, int) else 0)
