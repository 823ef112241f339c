"""``oberth namesrv``: a name server alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from oberth.cli.serve import (
    config_option,
    listen_option,
    overrides_of,
    port_option,
    serve,
    set_option,
    start_logging,
    verbose_option,
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
    from oberth.formats.java_properties import parse_properties
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import NamesrvConfig

    entries = {} if config is None else parse_properties(Path(config).read_bytes(), name=config)
    entries |= overrides_of(settings, bindAddress=listen, listenPort=port)
    name_server = NameServer(NamesrvConfig.of_properties(entries))

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with name_server:
            yield f"ready: name server {name_server.address},"

    serve(serving)
