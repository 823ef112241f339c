"""``oberth up``: a name server and a broker in one process."""

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

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Every address of the machine, and where to reach it from here."""


@click.command()
@store_option
@listen_option
@port_option("--port", "broker")
@port_option("--namesrv-port", "name server")
@config_option
@set_option
@verbose_option
def up(
    store: str | None,
    listen: str | None,
    port: int | None,
    namesrv_port: int | None,
    config: str | None,
    settings: tuple[str, ...],
    verbose: int,
) -> None:
    """Start a name server and a broker: a RocketMQ for clients at 127.0.0.1:9876.

    One line on stdout says when both are ready, where they listen and where the store lies.
    SIGTERM or Ctrl-C stops them in order.

    Example: oberth up --store /tmp/flights --set flushDiskType=SYNC_FLUSH
    """
    start_logging(verbose)
    from oberth.broker.broker_config import read_configs, read_entries
    from oberth.broker.broker_controller import Broker
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import DEFAULT_PORT, NamesrvConfig

    overrides = overrides_of(settings, storePathRootDir=store, bindAddress=listen, listenPort=port)
    broker_config, store_config, warnings = read_configs(read_entries(config, overrides=overrides))
    warn_about(warnings)
    name_server = NameServer(
        NamesrvConfig(
            listen_host=broker_config.listen_host,
            listen_port=DEFAULT_PORT if namesrv_port is None else namesrv_port,
        )
    )

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with name_server:
            host = broker_config.broker_ip1 or _dial_host(broker_config.listen_host)
            own = f"{_dial_host(broker_config.listen_host)}:{name_server.address.port}"
            others = [
                each
                for each in broker_config.namesrv_addresses
                if each not in (own, f"{host}:{name_server.address.port}")
            ]
            broker_config.namesrv_addr = ";".join([own, *others])
            async with Broker(broker_config, store_config) as broker:
                if not broker_config.broker_ip1 and broker_config.listen_host in WILDCARDS:
                    name_server.own_broker = broker.address
                yield (
                    f"ready: name server {name_server.address}, broker {broker.address}, "
                    f"store {broker.store.root},"
                )

    serve(serving)


def _dial_host(listen_host: str) -> str:
    """Where this process reaches what it listens on itself."""
    return WILDCARDS.get(listen_host, listen_host)
