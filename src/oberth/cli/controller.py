"""``oberth controller``: a controller alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from oberth.cli.serve import (
    config_option,
    entries_of,
    listen_option,
    port_option,
    serve,
    set_option,
    start_logging,
    verbose_option,
    warn_about_tls,
)


@click.command()
@click.option(
    "--store",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Where the replica sets are kept; ~/controller if not given.",
)
@listen_option
@port_option("--port", "controller")
@config_option
@set_option
@verbose_option
def controller(
    store: str | None,
    listen: str | None,
    port: int | None,
    config: str | None,
    settings: tuple[str, ...],
    verbose: int,
) -> None:
    """Start a controller. Brokers of RocketMQ 5 in controller mode find their master by it.

    It is one process with a file of its own: a kill loses nothing that it answered. While it is
    away, brokers go on as they are and nobody is elected.

    Example: oberth controller --port 9878 --store ./controller
    """
    start_logging(verbose)
    from oberth.controller.controller import Controller
    from oberth.controller.controller_config import ControllerConfig

    entries = entries_of(
        config, settings, bindAddress=listen, listenPort=port, controllerStorePath=store
    )
    options = ControllerConfig.of_properties(entries)
    warn_about_tls(options.tls_mode, options.tls_cert_path)
    server = Controller(options)

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with server:
            count = len(server.sets.sets)
            yield f"ready: controller {server.address}, {count} broker names known,"

    serve(serving, {options.listen_port: "--port"})
