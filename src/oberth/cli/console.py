"""``oberth console``: pages in a browser about a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from oberth.cli import output
from oberth.cli.connection import client_config, read_text
from oberth.cli.output import printable, say
from oberth.cli.remote import namesrv_option
from oberth.cli.serve import end_with_stdin, serve, start_logging, verbose_option
from oberth.errors import OptionError

TOKEN_ENVIRONMENT: Final = "OBERTH_CONSOLE_TOKEN"
PROMETHEUS_TOKEN_ENVIRONMENT: Final = "OBERTH_PROMETHEUS_TOKEN"
TOKEN_SIZE_MAX: Final = 4096
PORT: Final = 8082
PACKAGES: Final = ("starlette", "uvicorn", "jinja2")
HINT: Final = "pip install 'oberth[console]' brings it"
END_TIMEOUT_S: Final = 10.0
NICENESS: Final = 10
"""Of the console's process: a page can wait, sends on the same machine should not. It still gets a
tenth of a core that is fully busy."""

AUTOGROUP: Final = Path("/proc/self/autogroup")
"""Says and takes the niceness of this process's session, where Linux shares cores by session."""


@click.command()
@namesrv_option
@click.option(
    "--listen",
    metavar="HOST",
    default="127.0.0.1",
    help="Address to listen on; any but this machine's own needs --login.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, help="Port to listen on; 0: any free."
)
@click.option(
    "--login",
    type=click.Choice(["none", "token", "users"]),
    default="none",
    help="Who may see it: everybody, who has the token, or users of the brokers.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help=f"The first line is the token of --login token; or {TOKEN_ENVIRONMENT}; else one is made.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that browsers may call it by, beside addresses and localhost. Repeatable.",
)
@click.option("--certificate", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Serve https with this PEM certificate.")  # fmt: skip
@click.option("--key", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Its key, where the certificate's file has none.")  # fmt: skip
@click.option("--allow-writes", is_flag=True, help="Let pages change topics, groups and more.")
@click.option(
    "--audit-log",
    metavar="FILE",
    help="Where each write is noted; ~/.local/state/oberth/console-audit.jsonl if not given.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    help="Seconds between two rounds of questions to the cluster.",
)
@click.option(
    "--store",
    "stores",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A store of this machine that the page for SQL may ask; needs oberth[spark]. Repeatable.",
)
@click.option(
    "--schemas",
    metavar="DIR",
    default=None,
    type=click.Path(exists=True, file_okay=False),
    help="Schemas that bodies are decoded by: NAME.avsc of Avro, NAME.desc of Protobuf; one named "
    "as a topic is that topic's.",
)
@click.option(
    "--prometheus",
    metavar="URL",
    default=None,
    help="A Prometheus server that scrapes the brokers: plots of 6 hours, a day and a week. "
    f"{PROMETHEUS_TOKEN_ENVIRONMENT} holds the bearer token, if it wants one.",
)
@click.option("--socket-fd", type=int, hidden=True, help="A socket that listens already.")
@verbose_option
def console(
    namesrv: str,
    listen: str,
    port: int,
    login: str,
    token_file: str | None,
    hosts: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    allow_writes: bool,
    audit_log: str | None,
    interval: float,
    stores: tuple[str, ...],
    schemas: str | None,
    prometheus: str | None,
    socket_fd: int | None,
    verbose: int,
) -> None:
    """Show a cluster in a browser: brokers, topics, messages, groups, dead letters.

    Works with Oberth's clusters and with Apache's. It only reads unless --allow-writes is given; it
    shows every change before it makes it, and notes it in the audit log. It gives way to brokers on
    its machine.

    Example: oberth console -n 127.0.0.1:9876
    """
    from oberth.console.config import ConsoleConfig, Login
    from oberth.console.listening import address_of
    from oberth.console.listening import listen as listen_on
    from oberth.console.server import serving

    chosen = Login(login)
    config = ConsoleConfig(
        client=client_config(namesrv),
        listen_host=listen,
        login=chosen,
        token=_token(token_file) if chosen is Login.TOKEN else "",
        host_names=tuple(name.lower() for name in hosts),
        allow_writes=allow_writes,
        audit_path=audit_log or default_audit_path() if allow_writes else "",
        sample_interval_s=interval,
        is_tls=certificate is not None,
        stores=stores,
        schemas=schemas or "",
        prometheus=prometheus or "",
        prometheus_token=os.environ.get(PROMETHEUS_TOKEN_ENVIRONMENT, ""),
    )
    config.check()
    start_logging(verbose)
    give_way()

    @asynccontextmanager
    async def open_console() -> AsyncIterator[str]:
        given = socket_fd is not None
        listener = socket.socket(fileno=socket_fd) if given else listen_on(listen, port)
        with listener:
            async with serving(config, listener, certificate=certificate, key=key):
                yield f"ready: console {address_of(listener, is_tls=config.is_tls)} of {namesrv}"

    if socket_fd is not None:
        output.talk_to = _errors_only(output.talk_to)  # the process that started this one talks
        end_with_stdin()
    serve(open_console, {port: "--port"})


def _errors_only(talk_to: Callable[[int, str], None] | None) -> Callable[[int, str], None]:
    """Takes talk and errors, and passes errors on: to who took both, else to stderr."""

    def take(level: int, text: str) -> None:
        if level < logging.ERROR:
            return
        if talk_to is not None:
            talk_to(level, f"console: {text}")
        else:
            click.echo(f"error: console: {printable(text)}", err=True)

    return take


def give_way() -> None:
    """Let brokers on this machine go before this process.

    A broker that wakes up takes the core from a process of SCHED_BATCH at once, from one that is
    only nice sometimes after some ms. And where Linux shares cores by session, a process's niceness
    counts within its session alone, and `oberth up` gives the console a session of its own: so the
    session gets that niceness too. One that is not this process's own is left as it is.
    """
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    if not hasattr(os, "SCHED_BATCH"):
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        if os.getsid(0) == os.getpid():
            session = int(AUTOGROUP.read_text().split()[-1])
            AUTOGROUP.write_text(str(min(session + NICENESS, 19)))
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@asynccontextmanager
async def console_served(
    namesrv: str,
    port: int,
    *,
    is_wanted: bool,
    allow_writes: bool,
    stores: Sequence[str] = (),
    tls: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Serve a console on loopback in a process of its own; gives its words in the ready line.

    What it does takes no time from the broker's loop. It listens when this is entered and answers
    some tenths of a second later. Only that process has the socket: when it ends, browsers are
    refused at once, and a line says so.

    Args:
        namesrv: of the cluster that it shows.
        port: to listen on; -1: there is no console.
        is_wanted: whether the port was asked for; else it may be missing, and a line says why.
        allow_writes: whether its pages may change something.
        stores: what its page for SQL may ask.
        tls: options of `oberth console` by which it asks the cluster, see `tls_words`.

    Raises:
        OptionError: it was asked for, and packages are missing.
        OSError: it was asked for, and the port is taken.
    """
    missing = next((name for name in PACKAGES if find_spec(name) is None), None)
    if port < 0 or missing is not None:
        if port >= 0:
            text = f"console: not served, the package {missing} is missing; {HINT}"
            if is_wanted:
                raise OptionError(text)
            say(text)
        yield ""
        return
    from oberth.console.listening import address_of, listen

    try:
        listener = listen("127.0.0.1", port)
    except OSError as error:
        if is_wanted:
            raise
        say(f"console: not served, {error}; --console-port N chooses another port")
        yield ""
        return
    with listener:
        words = [sys.executable, "-m", "oberth", "console", "-n", namesrv]
        words += ["--socket-fd", str(listener.fileno()), *(["--allow-writes"] * allow_writes)]
        words += tls
        words += [word for store in stores for word in ("--store", store)]
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )
        address = address_of(listener)
    watcher = asyncio.create_task(_watch(process, address, namesrv))
    try:
        yield f" console {address},"
    finally:
        watcher.cancel()
        await _end(process)


async def _watch(process: asyncio.subprocess.Process, address: str, namesrv: str) -> None:
    """Says that a console has ended by itself; by a signal it ends in order, with 0."""
    code = await process.wait()
    if code:
        say(
            f"console: it ended with {code}, {address} is not served any more; "
            f"`oberth console -n {namesrv}` starts another one"
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks a console to end, and kills one that does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def default_audit_path() -> str:
    """The directory in which a user's programs keep their state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return str(Path(state).expanduser() / "oberth" / "console-audit.jsonl")


def _token(path: str | None) -> str:
    if path is not None:
        token = read_text(path).partition("\n")[0].strip()
    else:
        token = os.environ.get(TOKEN_ENVIRONMENT, "")
        if not token:
            token = secrets.token_urlsafe(24)
            say(f"token of the console: {token}")
    if len(token) > TOKEN_SIZE_MAX:
        raise OptionError(f"the token has more than {TOKEN_SIZE_MAX} characters")
    return token
