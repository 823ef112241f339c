"""``oberth broker``: a broker that registers at name servers elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from oberth.cli.serve import (
    config_option,
    listen_option,
    overrides_of,
    port_option,
    serve,
    set_option,
    start_logging,
    store_option,
    verbose_option,
    warn_about,
)


@click.command()
@store_option
@listen_option
@port_option("--port", "broker")
@click.option("-n", "--namesrv", metavar="HOST:PORT", help="Name servers, joined by ';'.")
@config_option
@set_option
@verbose_option
def broker(
    store: str | None,
    listen: str | None,
    port: int | None,
    namesrv: str | None,
    config: str | None,
    settings: tuple[str, ...],
    verbose: int,
) -> None:
    """Start a broker and register it at name servers: ours or Apache's.

    Name servers come from -n, namesrvAddr in the file, or the variable NAMESRV_ADDR.

    Example: oberth broker --store /tmp/broker-b --port 10921 --set brokerName=broker-b
    """
    start_logging(verbose)
    from oberth.broker.broker_config import read_configs, read_entries
    from oberth.broker.broker_controller import Broker

    overrides = overrides_of(
        settings,
        storePathRootDir=store,
        bindAddress=listen,
        listenPort=port,
        namesrvAddr=namesrv,
    )
    broker_config, store_config, warnings = read_configs(read_entries(config, overrides=overrides))
    warn_about(warnings)

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with Broker(broker_config, store_config) as running:
            name_servers = ";".join(broker_config.namesrv_addresses) or "none"
            yield (
                f"ready: broker {running.address}, name servers {name_servers}, "
                f"store {running.store.root},"
            )

    serve(serving)
