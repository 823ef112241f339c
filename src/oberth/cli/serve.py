"""What `up`, `broker` and `namesrv` have in common: options, a loop, signals, the ready line."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import click

from oberth.cli.logs import log_options, start_logging
from oberth.cli.output import say
from oberth.errors import OptionError
from oberth.formats.broker_conf import parse_assignments

__all__ = (
    "config_option", "listen_option", "overrides_of", "port_option", "serve", "set_option",
    "start_logging", "store_option", "verbose_option", "warn_about",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
Serving = Callable[[], AbstractAsyncContextManager[str]]

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""A burst makes thousands of objects and no cycles; Python's 700 would look for some each time,
which is a twentieth of a send."""

SWITCH_INTERVAL_S: Final = 0.001
"""How long a background thread may run Python before the loop gets its turn; Python's 5 ms would
show in the slowest of a hundred answers."""

_STARTED: Final = time.time()

listen_option = click.option(
    "--listen", metavar="HOST", help="Address to listen on; 127.0.0.1 unless told otherwise."
)
config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Options by Apache's names, as in its broker.conf.",
)
set_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="One option by Apache's name, over those of -c. Repeatable.",
)
verbose_option = log_options
store_option = click.option(
    "--store", metavar="DIR", type=click.Path(file_okay=False), help="Where the store lies."
)


def port_option(name: str, what: str) -> Callable[[F], F]:
    """--port, for what listens there; 0 takes a free one."""
    return click.option(
        name,
        type=click.IntRange(0, 65535),
        metavar="N",
        help=f"Port of the {what}; 0: any free one.",
    )


def overrides_of(settings: tuple[str, ...], **flags: object) -> dict[str, str]:
    """Options from --set and, over them, from flags that were given.

    Raises:
        click.UsageError: a --set that is not key=value.
    """
    try:
        overrides = parse_assignments(settings)
    except OptionError as error:
        raise click.UsageError(f"--set {error}") from None
    overrides |= {key: str(value) for key, value in flags.items() if value is not None}
    return overrides


def warn_about(warnings: list[str]) -> None:
    """Say which keys of a file have no effect, by name."""
    for warning in warnings:
        say(f"warning: {warning}")


def seconds_since_start() -> float:
    """Seconds since the process began, as far as the system tells."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time() - _STARTED


def serve(serving: Serving) -> None:
    """Run what `serving` opens until a signal; it gives the ready line.

    SIGTERM and SIGINT close in order; a second one ends the process at once.
    """
    from oberth.remoting.aio.loop import run

    run(_serve(serving))


async def _serve(serving: Serving) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    async with serving() as ready:
        # What a start leaves behind lives for ever: later collections need not look at it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        click.echo(f"{ready} in {seconds_since_start():.2f} s")
        sys.stdout.flush()
        await stopped.wait()
        say("stopping")
