"""What `up`, `broker` and `namesrv` have in common: options, a loop, signals, the ready line."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oberth.cli.hints import package_of, taken_port
from oberth.cli.logs import log_options, start_logging
from oberth.cli.output import say
from oberth.errors import OptionError
from oberth.formats.broker_conf import parse_assignments

__all__ = (
    "broker_ports", "config_option", "end_with_stdin", "entries_of", "grpc_served",
    "listen_option", "overrides_of", "port_option", "say_recovered", "say_where", "serve",
    "set_option", "start_logging", "store_option", "telling", "verbose_option", "warn_about",
    "warn_about_tls",
)  # fmt: skip

if TYPE_CHECKING:
    from oberth.broker.broker import Broker
    from oberth.broker.broker_config import BrokerConfig
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.store.message_store import MessageStore

F = TypeVar("F", bound=Callable[..., Any])
Serving = Callable[[], AbstractAsyncContextManager[str]]

GC_THRESHOLDS: Final = (50_000, 4, 100)
"""A burst makes thousands of objects and no cycles; Python's 700 would look for some each time,
which is a twentieth of a send. A middle collection looks at 200 000 objects, in some 10 ms."""

SWITCH_INTERVAL_S: Final = 0.001
"""How long a background thread may run Python before the loop gets its turn; Python's 5 ms would
show in the slowest of a hundred answers."""

_STARTED: Final = time.monotonic()

ABORT: Final = "abort"
"""The file that a store has while it is in use, and after a run that was cut off."""

PORTS: Final = {"broker": 10911, "name server": 9876, "controller": 9878}
"""Where each server listens if nothing is said."""

GRPC_HINT: Final = "pip install 'oberth[grpc]' brings it"


def _check_host(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse what names no address: the error of listening would not say what was given."""
    del context, parameter
    if value:
        try:
            socket.getaddrinfo(value, None)
        except (OSError, UnicodeError) as error:
            raise click.BadParameter(f"{value!r} names no address: {error}") from None
    return value


listen_option = click.option(
    "--listen",
    metavar="HOST",
    callback=_check_host,
    help="Address to listen on; 127.0.0.1 if not given.",
)
config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="File of settings by Apache's names, as its broker.conf.",
)
set_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting by Apache's name; it overrides that of -c. Repeatable.",
)
verbose_option = log_options
store_option = click.option(
    "--store",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory of the store; ~/store if not given.",
)


def port_option(name: str, what: str) -> Callable[[F], F]:
    """--port, for what listens there; 0 takes a free one."""
    return click.option(
        name,
        type=click.IntRange(0, 65535),
        metavar="N",
        help=f"Port of the {what}, {PORTS[what]} if not given; 0: any free one.",
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


def entries_of(config: str | None, settings: tuple[str, ...], **flags: object) -> dict[str, str]:
    """Options of a file, over them those of --set, and over these those of flags.

    Raises:
        ConfigFormatError: the file does not parse.
        click.UsageError: a --set that is not key=value.
    """
    from oberth.formats.java_properties import bare_lines, parse_properties

    entries: dict[str, str] = {}
    if config is not None:
        entries |= parse_properties(Path(config).read_bytes(), name=config, placed=True)
    entries |= overrides_of(settings, **flags)
    warn_about(bare_lines(entries))
    return entries


def broker_ports(broker: BrokerConfig, store: MessageStoreConfig) -> dict[int, str]:
    """What chooses each port that a broker listens on."""
    from oberth.broker.broker import HA_PORT_DEFAULT
    from oberth.broker.broker_config import FAST_PORT_DISTANCE

    fast = broker.fast_listen_port
    is_default = store.ha_listen_port == HA_PORT_DEFAULT
    return {
        broker.listen_port + 1 if is_default else store.ha_listen_port: "--set haListenPort=N",
        broker.http_port: "--set httpPort=N",
        broker.grpc_server_port: "--set grpcServerPort=N",
        broker.listen_port - FAST_PORT_DISTANCE if fast < 0 else fast: "--set fastListenPort=N",
        broker.listen_port: "--port",
    }


@asynccontextmanager
async def grpc_served(broker: Broker, *, is_wanted: bool) -> AsyncIterator[str]:
    """Serve gRPC clients of a broker, where that is configured; gives its words in the ready line.

    Args:
        broker: that serves.
        is_wanted: whether the port was asked for; else it may be missing, and a line says why.

    Raises:
        OptionError: it was asked for, and packages are missing.
        OSError: it was asked for, and the port is taken.
    """
    port = broker.parts.config.grpc_server_port
    front: GrpcFront | None = None
    if port >= 0:
        try:
            from oberth.proxy.front import GrpcFront

            front = GrpcFront(broker)
            await front.start()
        except ImportError as error:
            text = f"gRPC: not served, the package {package_of(error)} is missing; {GRPC_HINT}"
            if is_wanted:
                raise OptionError(f"grpcServerPort={port}: {text}") from None
            say(text)
            front = None
        except OSError as error:
            if is_wanted:
                raise
            say(f"gRPC: not served, {error}; --set grpcServerPort=N chooses another port")
            front = None
    try:
        yield "" if front is None else f" gRPC {front.address},"
    finally:
        if front is not None:
            await front.aclose()


def say_where(store: MessageStoreConfig) -> None:
    """Say where the store lies that nobody named."""
    root = os.path.abspath(os.path.expanduser(store.store_path_root_dir))
    say(f"no --store: messages are kept in {root}")


@contextmanager
def telling(stores: list[MessageStore]) -> Iterator[None]:
    """Say at the end up to where each store in the list is saved."""
    yield
    for store in stores:
        end = store.flushed_offset
        if os.path.exists(f"{store.root}/{ABORT}"):
            say(f"{store.root}: not closed in order; the next start recovers it")
        else:
            say(f"saved: CommitLog to {end} is on the disk, the store is closed in order")


def say_recovered(store: MessageStore) -> None:
    """Say what a start recovered of a store that was not closed in order."""
    report = store.report
    if report is None or not report.abnormal:
        return
    cut = " bytes behind it were no message and were cut off;" if report.truncated_to >= 0 else ""
    damages = f", {len(report.damages)} damaged places" if report.damages else ""
    say(
        f"recovered: the last run was not stopped in order; CommitLog to {report.log_end},{cut} "
        f"{report.records_scanned} messages checked from {report.scanned_from}{damages}"
    )


def warn_about(warnings: list[str]) -> None:
    """Say which keys of a file have no effect, by name."""
    for warning in warnings:
        say(f"warning: {warning}")


def warn_about_tls(mode: str, certificate: str) -> None:
    """Say that clients cannot use TLS, where nothing but a missing package is the reason.

    Raises:
        OptionError: TLS is all that clients may use.
    """
    if mode == "disabled" or certificate or find_spec("cryptography") is not None:
        return
    if mode == "enforcing":
        raise OptionError(
            "tlsServerMode enforcing needs a certificate: give tlsServerCertPath and "
            "tlsServerKeyPath, or pip install 'oberth[tls]' for one that is made at start"
        )
    say("TLS: not offered, no certificate is given; pip install 'oberth[tls]' makes one at start")


def seconds_since_start() -> float:
    """Seconds since the process began, as far as the system tells."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _STARTED


def serve(serving: Serving, ports: Mapping[int, str], *, until_stdin_ends: bool = False) -> None:
    """Run what `serving` opens until a signal; it gives the ready line.

    SIGTERM and SIGINT close in order; a second one ends the process at once.

    Args:
        serving: opens the servers.
        ports: what chooses each port, for an error about one that is taken.
        until_stdin_ends: whether the end of stdin closes it too: who started it is gone.

    Raises:
        OptionError: a port is taken.
    """
    from oberth.remoting.aio.loop import run

    try:
        run(_serve(serving, until_stdin_ends=until_stdin_ends))
    except OSError as error:
        taken = taken_port(error, ports)
        if taken is None:
            raise
        raise taken from None


async def _serve(serving: Serving, *, until_stdin_ends: bool) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if until_stdin_ends:

        def read_stdin() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                stopped.set()

        loop.add_reader(0, read_stdin)
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


def end_with_stdin() -> None:
    """End this process when the one that started it has gone, however it went."""

    def wait() -> None:
        # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
        while os.read(sys.stdin.fileno(), 1024):
            pass
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, name="waits for the end of its parent", daemon=True).start()
