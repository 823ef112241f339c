"""``oberth broker``: a broker that registers at name servers elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from oberth.cli.serve import (
    broker_ports,
    config_option,
    grpc_served,
    listen_option,
    overrides_of,
    port_option,
    say_recovered,
    say_where,
    serve,
    set_option,
    start_logging,
    store_option,
    telling,
    verbose_option,
    warn_about,
    warn_about_tls,
)

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.store.message_store import MessageStore


@asynccontextmanager
async def _controlled(config: BrokerConfig, store_config: MessageStoreConfig) -> AsyncIterator[str]:
    """A broker whose role a controller decides; gives its words in the ready line."""
    from oberth.broker.controlled_broker import ControlledBroker

    controlled = ControlledBroker(
        config, store_config, beside=lambda life: grpc_served(life, is_wanted=True)
    )
    async with controlled:
        role = controlled.role
        assert role is not None
        what = "master" if role.is_master else "slave"
        yield (
            f"ready: broker {controlled.address}, {what} {role.broker_id} by controller "
            f"{config.controller_addr}, name servers {config.namesrv_addr or 'none'}, "
            f"store {controlled.root},"
        )


@click.command()
@store_option
@listen_option
@port_option("--port", "broker")
@click.option("-n", "--namesrv", metavar="HOST:PORT", help="Name servers, joined by ';'.")
@config_option
@set_option
@click.option(
    "--until-stdin-ends", is_flag=True, hidden=True, help="End when who started it is gone."
)
@verbose_option
def broker(
    store: str | None,
    listen: str | None,
    port: int | None,
    namesrv: str | None,
    config: str | None,
    settings: tuple[str, ...],
    until_stdin_ends: bool,
    verbose: int,
) -> None:
    """Start a broker and register it at name servers: ours or Apache's.

    With enableControllerMode=true and controllerAddr=HOST:PORT a controller says whether it is the
    master, and may change that while it runs.

    Name servers come from -n, namesrvAddr in the file, or the variable NAMESRV_ADDR.

    Example: oberth broker --store /tmp/broker-b --port 10921 --set brokerName=broker-b
    """
    start_logging(verbose)
    from oberth.broker.broker import Broker
    from oberth.broker.broker_config import read_configs, read_entries
    from oberth.formats.options import naming_places

    overrides = overrides_of(
        settings,
        storePathRootDir=store,
        bindAddress=listen,
        listenPort=port,
        namesrvAddr=namesrv,
    )
    entries = read_entries(config, overrides=overrides)
    broker_config, store_config, warnings = read_configs(entries)
    warn_about(warnings)
    warn_about_tls(broker_config.tls_mode, broker_config.tls_cert_path)
    if "storePathRootDir" not in entries:
        say_where(store_config)

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        if broker_config.enable_controller_mode:
            async with _controlled(broker_config, store_config) as words:
                yield words
            return
        async with Broker(broker_config, store_config) as running:
            stores.append(running.parts.store)
            say_recovered(running.parts.store)
            name_servers = ";".join(broker_config.namesrv_addresses) or "none"
            async with grpc_served(running, is_wanted=True) as grpc:
                yield (
                    f"ready: broker {running.address}, name servers {name_servers}, "
                    f"store {running.parts.store.root},{grpc}"
                )

    stores: list[MessageStore] = []
    with naming_places(entries), telling(stores):
        serve(
            serving,
            broker_ports(broker_config, store_config),
            until_stdin_ends=until_stdin_ends,
        )
