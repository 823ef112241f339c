"""``oberth up``: a name server and a broker in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from oberth.cli.brokers import (
    BROKERS_MAX,
    JointMetrics,
    Member,
    look_beside,
    members,
    replicated,
    running,
    spread,
    watch_drains,
)
from oberth.cli.connection import client_config, tls_words
from oberth.cli.console import PORT as CONSOLE_PORT
from oberth.cli.console import console_served
from oberth.cli.lake import lake_kept
from oberth.cli.output import say
from oberth.cli.serve import (
    PORTS,
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
from oberth.errors import OberthError

GRPC_PORT: Final = 8081
"""Where gRPC clients connect if nothing is said."""

REPLICAS_MAX: Final = 9
CONTROLLER_SUFFIX: Final = "-controller"
"""Behind the store's folder, of the controller's."""

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.http_endpoint import HttpEndpoint
    from oberth.cli.brokers import BrokerProcess
    from oberth.client.admin import Admin
    from oberth.controller.controller_config import ControllerConfig
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.namesrv.name_server import NameServer
    from oberth.store.message_store import MessageStore

WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Every address of the machine, and where to reach it from here."""


@click.command()
@store_option
@listen_option
@port_option("--port", "broker")
@port_option("--namesrv-port", "name server")
@config_option
@click.option(
    "--console-port",
    type=click.IntRange(-1, 65535),
    metavar="N",
    help=f"Port of the console on 127.0.0.1, {CONSOLE_PORT} if not given; 0: any free, -1: none.",
)
@click.option(
    "--console-writes", is_flag=True, help="Let the console change topics, groups and more."
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, BROKERS_MAX),
    metavar="N",
    help="Run N brokers, each a process with a store of its own; take one for each core.",
)
@click.option(
    "--replicas",
    type=click.IntRange(2, REPLICAS_MAX),
    metavar="N",
    help="Run each broker as N copies, each a process, and a controller that elects masters.",
)
@click.option(
    "--lake", metavar="DIR", default=None, type=click.Path(file_okay=False),
    help="Keep tables of all topics there, by a Spark process beside the broker.",
)  # fmt: skip
@click.option(
    "--lake-format", type=click.Choice(["parquet", "delta", "iceberg"]), default="delta",
    show_default=True, help="Format of the tables.",
)  # fmt: skip
@set_option
@verbose_option
def up(
    store: str | None,
    listen: str | None,
    port: int | None,
    namesrv_port: int | None,
    config: str | None,
    console_port: int | None,
    console_writes: bool,
    count: int | None,
    replicas: int | None,
    lake: str | None,
    lake_format: str,
    settings: tuple[str, ...],
    verbose: int,
) -> None:
    """Start a name server and a broker for RocketMQ's clients; they connect to 127.0.0.1:9876.

    Clients of RocketMQ 5 that speak gRPC connect to 127.0.0.1:8081; a browser shows the cluster at
    http://127.0.0.1:8082.

    When both are ready, a line on stdout says where they listen and where the store is. SIGTERM or
    Ctrl-C stops them in order.

    With --brokers N clients find all N brokers through the name server. The first has the store and
    ports of a single broker; the second has -2 behind its store's folder and name, and ports 10
    higher. A store of a higher number is drained: its broker takes no messages until consumers have
    read what is there. Without --brokers such a store is named and left alone.

    With --replicas N each broker is a group of N processes that have the same messages, and a
    controller in this process makes another one the master when the master dies. An acknowledged
    message is at every copy that is in sync: `oberth cluster status` shows which these are, and
    `oberth cluster failover` moves the master. None of the copies is served without --replicas,
    since it may lack messages.

    With --lake DIR every topic becomes a table in DIR. The tables are some seconds behind the
    broker, which does not delete messages that they do not have yet.

    Example: oberth up --store /tmp/flights --set flushDiskType=SYNC_FLUSH
    """
    start_logging(verbose)
    into = "" if lake is None else lake if "://" in lake else os.path.abspath(lake)
    overrides = overrides_of(settings, storePathRootDir=store, bindAddress=listen, listenPort=port)
    wanted = _wanted(config, overrides, namesrv_port, console_port, console_writes, into)
    if count is None and replicas is None:
        _serve_one(wanted, into, lake_format)
        return
    if lake is not None:
        raise click.UsageError("--lake goes with one broker, not with --brokers or --replicas")
    words = ["-c", config] if config else []
    for each in settings:
        words += ["--set", each]
    _serve_groups(wanted, count or 1, replicas, words)


@dataclass(frozen=True)
class _Wanted:
    """What is to be served, and where.

    Attributes:
        entries: the settings by their names in a file, without those that are the defaults.
        broker: the settings of the broker, or what all have in common.
        store: those of its store.
        name_server_port: 0 for any.
        console_port: 0 for any, -1 for no console.
        wants_console: whether it was asked for, so that it is an error if it cannot be served.
        console_writes: whether the console may change anything.
        takes_any: whether the broker takes any port; who does wants no fixed one beside it.
        wants_grpc: whether gRPC was asked for, so that it is an error if it cannot be served.
    """

    entries: dict[str, str]
    broker: BrokerConfig
    store: MessageStoreConfig
    name_server_port: int
    console_port: int
    wants_console: bool
    console_writes: bool
    takes_any: bool
    wants_grpc: bool


def _wanted(
    file: str | None,
    overrides: dict[str, str],
    namesrv_port: int | None,
    console_port: int | None,
    console_writes: bool,
    into: str,
) -> _Wanted:
    """Reads the settings, says what is odd about them and fills in what was not said."""
    from oberth.broker.broker_config import read_configs, read_entries
    from oberth.namesrv.namesrv_config import DEFAULT_PORT

    entries = read_entries(file, overrides=overrides)
    takes_any = entries.get("listenPort", "").strip() == "0"
    wants_grpc = "grpcServerPort" in entries
    if not wants_grpc:
        entries["grpcServerPort"] = "-1" if takes_any else str(GRPC_PORT)
    wants_console = console_port is not None or console_writes
    if console_port is None:
        console_port = -1 if takes_any and not wants_console else CONSOLE_PORT
    if into and "," not in into:  # the setting names several with commas
        entries.setdefault("retentionWaitsForLake", into)
    broker_config, store_config, warnings = read_configs(entries)
    warn_about(warnings)
    warn_about_tls(broker_config.tls_mode, broker_config.tls_cert_path)
    if "storePathRootDir" not in entries:
        say_where(store_config)
    return _Wanted(
        entries,
        broker_config,
        store_config,
        DEFAULT_PORT if namesrv_port is None else namesrv_port,
        console_port,
        wants_console,
        console_writes,
        takes_any,
        wants_grpc,
    )


def _name_server(wanted: _Wanted) -> NameServer:
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import NamesrvConfig

    broker = wanted.broker
    return NameServer(
        NamesrvConfig(
            listen_host=broker.listen_host,
            listen_port=wanted.name_server_port,
            proxy_protocol_trusted=broker.proxy_protocol_trusted,
            tls_mode=broker.tls_mode,
            tls_cert_path=broker.tls_cert_path,
            tls_key_path=broker.tls_key_path,
            tls_client_trust_cert_path=broker.tls_client_trust_cert_path,
        )
    )


def _serve_one(wanted: _Wanted, into: str, lake_format: str) -> None:
    """Serves a name server, a broker and what goes with it, all but the lake in this process."""
    from oberth.broker.broker import Broker
    from oberth.formats.options import naming_places

    if not wanted.broker.enable_controller_mode:  # a controller elsewhere knows of the replicas
        root = os.path.abspath(os.path.expanduser(wanted.store.store_path_root_dir))
        look_beside(root, [root], _who(wanted.broker), as_replicas=False)
    name_server = _name_server(wanted)
    config = wanted.broker

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with name_server:
            host = config.broker_ip1 or _dial_host(config.listen_host)
            own = f"{_dial_host(config.listen_host)}:{name_server.address.port}"
            others = [
                each
                for each in config.namesrv_addresses
                if each not in (own, f"{host}:{name_server.address.port}")
            ]
            config.namesrv_addr = ";".join([own, *others])
            async with Broker(config, wanted.store) as broker:
                stores.append(broker.parts.store)
                say_recovered(broker.parts.store)
                if not config.broker_ip1 and config.listen_host in WILDCARDS:
                    name_server.own_broker = broker.address
                async with (
                    grpc_served(broker, is_wanted=wanted.wants_grpc) as grpc,
                    _console(wanted, own, [broker.parts.store.root]) as console,
                    lake_kept(
                        str(broker.parts.store.root),
                        into,
                        lake_format,
                        is_begun=lambda: broker.parts.store.max_phy_offset > 0,
                    ) as kept,
                ):
                    yield (
                        f"ready: name server {name_server.address}, broker {broker.address}, "
                        f"store {broker.parts.store.root},{grpc}{console}{kept}"
                    )

    stores: list[MessageStore] = []
    with naming_places(wanted.entries), telling(stores):
        serve(
            serving,
            {
                **broker_ports(config, wanted.store),
                wanted.name_server_port: "--namesrv-port",
                wanted.console_port: "--console-port",
            },
        )


def _console(
    wanted: _Wanted, name_server: str, stores: list[str]
) -> AbstractAsyncContextManager[str]:
    return console_served(
        name_server,
        wanted.console_port,
        is_wanted=wanted.wants_console,
        allow_writes=wanted.console_writes,
        stores=stores,
        tls=tls_words(wanted.broker.tls_mode, wanted.broker.tls_client_trust_cert_path, os.environ),
    )


def _serve_groups(wanted: _Wanted, count: int, replicas: int | None, words: list[str]) -> None:
    """Serves several brokers, or groups of them that have the same messages.

    Args:
        wanted: what is to be served.
        count: how many brokers, or groups.
        replicas: how many are in a group; None for brokers alone.
        words: of the command line, for each of their processes.
    """
    entries = wanted.entries
    if not wanted.wants_grpc:
        del entries["grpcServerPort"]
        say("gRPC: not served; --set grpcServerPort=N has each broker serve its own messages")
    name_server = _name_server(wanted)
    name = wanted.broker.broker_name

    def members_of(controller: str) -> list[Member]:
        if replicas is None:
            return members(count, entries, wanted.store, name)
        return replicated(count, replicas, entries, wanted.store, name, controller)

    made = members_of("")  # says what cannot be before anything listens
    first = made[0]
    stores = [each.store for each in made]
    look_beside(first.store, stores, _who(wanted.broker), as_replicas=replicas is not None)
    controller = None if replicas is None else _controller_config(wanted, first.store)
    _serve_several(wanted, name_server, controller, members_of, words)


def _who(config: BrokerConfig) -> str:
    return f"{config.broker_cluster_name}#{config.broker_name}"


def _controller_config(wanted: _Wanted, store: str) -> ControllerConfig:
    from oberth.controller.controller_config import ControllerConfig

    broker = wanted.broker
    return ControllerConfig(
        listen_host=broker.listen_host,
        listen_port=0 if wanted.takes_any else PORTS["controller"],
        store_path=store + CONTROLLER_SUFFIX,
        tls_mode=broker.tls_mode,
        tls_cert_path=broker.tls_cert_path,
        tls_key_path=broker.tls_key_path,
        tls_client_trust_cert_path=broker.tls_client_trust_cert_path,
    )


async def _spread(admin: Admin, processes: list[BrokerProcess]) -> asyncio.Task[None] | None:
    """Makes topics and groups that a broker lacks; the task that looks after those that drain."""
    try:
        made = await spread(admin, processes)
    except OberthError as error:
        say(f"topics and groups are as each broker has them: {error}")
        return None
    if made:
        say(f"{made} topics and groups made where they were missing")
    return asyncio.create_task(watch_drains(admin, processes))


@asynccontextmanager
async def _metrics_of(
    members: Sequence[Member], processes: Sequence[BrokerProcess], config: BrokerConfig
) -> AsyncIterator[HttpEndpoint]:
    """The endpoint at httpPort with what all brokers tell, which is ready when they are up."""
    from oberth.broker.http_endpoint import HttpEndpoint

    def why_not_ready() -> str | None:
        starting = (each.member.label for each in processes if not each.is_up)
        return next((f"{label} is starting" for label in starting), None)

    ports = {each.label: int(each.settings["httpPort"]) for each in members}
    endpoint = HttpEndpoint(JointMetrics(ports), why_not_ready)
    await endpoint.start(config.http_address, config.http_port)
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def _serve_several(
    wanted: _Wanted,
    name_server: NameServer,
    controller_config: ControllerConfig | None,
    members_of: Callable[[str], list[Member]],
    words: list[str],
) -> None:
    """Serve a name server here, a controller if need be, and brokers in processes of their own."""
    config = wanted.broker

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(name_server)
            own = f"{_dial_host(config.listen_host)}:{name_server.address.port}"
            controller = ""
            if controller_config is not None:
                from oberth.controller.controller import Controller

                leader = await stack.enter_async_context(Controller(controller_config))
                controller = f"{_dial_host(config.listen_host)}:{leader.address.port}"
            all_of_them = members_of(controller)
            addresses = [own, *(each for each in config.namesrv_addresses if each != own)]
            given = [*words, "--listen", config.listen_host, "-n", ";".join(addresses)]
            processes = await stack.enter_async_context(running(all_of_them, given))
            await _spread_beside(stack, config, own, processes)
            http = ""
            if config.http_port >= 0:
                metrics = _metrics_of(all_of_them, processes, config)
                http = f" metrics {(await stack.enter_async_context(metrics)).address},"
            roots = [each.store for each in all_of_them]
            console = await stack.enter_async_context(_console(wanted, own, roots))
            brokers = " ".join(
                f"{each.address}{' (drains)' if each.member.drains else ''}" for each in processes
            )
            led = f" controller {controller}," if controller else ""
            yield (
                f"ready: name server {name_server.address},{led} brokers {brokers}, "
                f"stores {' '.join(roots)},{http}{console}"
            )

    serve(
        serving,
        {
            wanted.name_server_port: "--namesrv-port",
            wanted.console_port: "--console-port",
            config.http_port: "--set httpPort=N",
            # The controller's own port is where its clients look for it.
            0 if controller_config is None else controller_config.listen_port: "--port 0",
        },
    )


async def _spread_beside(
    stack: AsyncExitStack, config: BrokerConfig, name_server: str, processes: list[BrokerProcess]
) -> None:
    """Topics and groups are at all brokers, and those that drain are looked after until the end."""
    from oberth.client.admin import Admin
    from oberth.remoting.aio.client import own_requests

    options = own_requests(config.tls_mode, config.tls_client_trust_cert_path)
    asking = replace(client_config(name_server), tls_context=options.tls_context)
    admin = await stack.enter_async_context(Admin(config=asking))
    watcher = await _spread(admin, processes)
    if watcher is not None:
        stack.callback(watcher.cancel)


def _dial_host(listen_host: str) -> str:
    """The address at which this process reaches its own listening socket."""
    return WILDCARDS.get(listen_host, listen_host)
