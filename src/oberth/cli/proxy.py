"""``oberth proxy``: the gRPC port alone, before the brokers of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import click

from oberth.cli.connection import client_config, namesrv_option
from oberth.cli.serve import (
    listen_option,
    serve,
    start_logging,
    verbose_option,
    warn_about_tls,
)

GRPC_PORT: Final = 8081


@click.command()
@namesrv_option
@listen_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=GRPC_PORT,
    metavar="N",
    show_default=True,
    help="Where gRPC clients connect; 0: any free port.",
)
@click.option(
    "--tls-mode",
    type=click.Choice(["disabled", "permissive", "enforcing"]),
    default="permissive",
    show_default=True,
    help="Whether gRPC clients may, or must, use TLS.",
)
@click.option(
    "--certificate",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificate shown to gRPC clients, PEM; one is made at each start if not given.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Its key, PEM; in the certificate's file if not given.",
)
@click.option(
    "--date-age-max",
    type=click.IntRange(0),
    default=0,
    metavar="SECONDS",
    show_default=True,
    help="How old a client's signed date may be; 0: any age.",
)
@click.option(
    "--invisible-min",
    type=click.IntRange(0, 43_200_000),
    default=10_000,
    metavar="MS",
    show_default=True,
    help="The shortest time for which a message is handed out.",
)
@click.option(
    "--poll-min",
    type=click.IntRange(0, 20_000),
    default=5_000,
    metavar="MS",
    show_default=True,
    help="The shortest time for which a receive waits for messages.",
)
@click.option(
    "--trusted-proxies",
    default="",
    metavar="ADDRESSES",
    help="Whose PROXY headers are believed: addresses or networks, joined by commas.",
)
@verbose_option
def proxy(
    namesrv: str,
    listen: str | None,
    port: int,
    tls_mode: str,
    certificate: str | None,
    key: str | None,
    date_age_max: int,
    invisible_min: int,
    poll_min: int,
    trusted_proxies: str,
    verbose: int,
) -> None:
    """Serve gRPC clients of RocketMQ 5 before brokers that may be Apache's or ours.

    If the brokers ask for signatures, --credentials signs what the proxy asks of them, and gRPC
    clients must sign as the same user.

    Example: oberth proxy -n 10.0.0.1:9876 --listen 0.0.0.0
    """
    import hpack  # noqa: F401 - of the extra `grpc`, before what `protobuf` alone has: it is named

    start_logging(verbose)
    warn_about_tls(tls_mode, certificate or "")
    config = client_config(namesrv)
    from oberth.proxy.cluster import ClusterBackend
    from oberth.proxy.front import Front, FrontConfig

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with ClusterBackend(config) as backend:
            front = Front(
                backend,
                FrontConfig(
                    host=listen or "127.0.0.1",
                    port=port,
                    date_age_max_s=date_age_max,
                    tls_mode=tls_mode,
                    tls_cert_path=certificate or "",
                    tls_key_path=key or certificate or "",
                    proxies=trusted_proxies,
                    invisible_ms_min=invisible_min,
                    poll_ms_min=poll_min,
                ),
                backend.not_ready,
            )
            async with front:
                yield f"ready: gRPC {front.address}, brokers of {namesrv},"

    serve(serving, {port: "--port"})
