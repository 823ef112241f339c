"""``oberth namesrv``: a name server alone."""

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
@listen_option
@port_option("--port", "name server")
@config_option
@set_option
@verbose_option
def namesrv(
    listen: str | None,
    port: int | None,
    config: str | None,
    settings: tuple[str, ...],
    verbose: int,
) -> None:
    """Start a name server. Brokers of ours and of Apache's can register at it.

    Example: oberth namesrv --port 9876
    """
    start_logging(verbose)
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import NamesrvConfig

    options = NamesrvConfig.of_properties(
        entries_of(config, settings, bindAddress=listen, listenPort=port)
    )
    warn_about_tls(options.tls_mode, options.tls_cert_path)
    name_server = NameServer(options)

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with name_server:
            yield f"ready: name server {name_server.address},"

    serve(serving, {options.listen_port: "--port"})
