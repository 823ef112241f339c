"""A server with a few handlers, a client, and raw sockets, all on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oberth.remoting.aio.client import ClientOptions, RemotingClient
from oberth.remoting.aio.loop import loop_factory
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""

StartServer = Callable[..., Awaitable[RemotingServer]]
StartClient = Callable[..., RemotingClient]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each asynchronous test of this folder runs on both loops, where both can be had."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    fast = loop_factory()
    if fast is not None:
        factories["uvloop"] = fast
    return factories


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes in reverse what a test opened, within a bound."""
    async with AsyncExitStack() as exit_stack:
        yield exit_stack


@pytest.fixture
def start_server(stack: AsyncExitStack) -> StartServer:
    """Starts servers that end with the test."""

    async def start(
        processors: ProcessorTable, options: ServerOptions | None = None, **hooks: Any
    ) -> RemotingServer:
        options = options or ServerOptions(grace_s=1.0)
        return await stack.enter_async_context(RemotingServer(processors, options, **hooks))

    return start


@pytest.fixture
async def start_client(stack: AsyncExitStack) -> StartClient:
    """Makes clients that end with the test."""
    clients: list[RemotingClient] = []

    async def close_all() -> None:
        for client in clients:
            async with asyncio.timeout(BOUND_S):
                await client.aclose()

    stack.push_async_callback(close_all)

    def start(
        processors: ProcessorTable | None = None, options: ClientOptions | None = None
    ) -> RemotingClient:
        options = replace(options or ClientOptions(), connect_timeout_s=BOUND_S, timeout_s=BOUND_S)
        clients.append(RemotingClient(processors, options))
        return clients[-1]

    return start


@pytest.fixture(scope="session")
def tls_contexts(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's context over a certificate made for this session."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cafile=str(path))
    client.check_hostname = False
    return server, client
