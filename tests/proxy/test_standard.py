"""Health, reflection and metrics of the gRPC port, and what is kept beside the store."""

from __future__ import annotations

import asyncio
import ssl
import stat
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hyperframe.frame import SettingsFrame
from tests.proxy.client import GrpcClient, framed
from tests.proxy.conftest import add_topic, client_of, message, sending

from oberth.proxy import messages as m
from oberth.proxy.frames import PREFACE
from oberth.proxy.standard import HEALTH
from oberth.remoting.aio.tls import kept_context
from oberth.store.running_flags import RunningFlag
from oberth.testing.embedded_broker import EmbeddedBroker


async def check(client: GrpcClient, service: str) -> tuple[int, int]:
    """GRPC's status, and that of the service."""
    request = m.message_class("HealthCheckRequest", HEALTH)(service=service)
    stream = await client.open(f"/{HEALTH}.Health/Check", framed(request.SerializeToString()))
    found = await stream.all()
    kind = m.message_class("HealthCheckResponse", HEALTH)
    return stream.status, kind.FromString(found[0]).status if found else -1


async def test_health(mq: EmbeddedBroker) -> None:
    async with client_of(mq, "") as client:
        assert await check(client, "") == (0, 1)
        assert await check(client, f"{m.PACKAGE}.MessagingService") == (0, 1)
        assert await check(client, "nobody") == (5, -1)
        mq.broker.parts.store.flags.set(RunningFlag.DISK_FULL)
        assert await check(client, "") == (0, 2)


@pytest.mark.parametrize("package", m.REFLECTION_PACKAGES)
async def test_reflection(mq: EmbeddedBroker, package: str) -> None:
    kind = m.message_class("ServerReflectionRequest", package)
    answers = m.message_class("ServerReflectionResponse", package)
    async with client_of(mq, "") as client:
        stream = await client.open(f"/{package}.ServerReflection/ServerReflectionInfo")

        async def ask(**question: str) -> Any:
            await stream.send(kind(**question))
            raw = await stream.next()
            assert raw is not None
            return answers.FromString(raw)

        listed = (await ask(list_services="*")).list_services_response.service
        assert f"{m.PACKAGE}.MessagingService" in [each.name for each in listed]
        found = await ask(file_containing_symbol=f"{m.PACKAGE}.MessagingService")
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(raw)
            for raw in found.file_descriptor_response.file_descriptor_proto
        ]
        assert files[-1].package == m.PACKAGE
        assert {each.name for each in files} >= set(files[-1].dependency)
        again = await ask(file_by_filename=files[-1].name)
        assert again.file_descriptor_response == found.file_descriptor_response
        assert (await ask(file_by_filename="no")).error_response.error_code == 5
        assert (await ask(all_extension_numbers_of_type="no")).error_response.error_code == 12


async def test_metrics() -> None:
    async with EmbeddedBroker({"httpPort": "0"}, grpc=True) as mq:
        add_topic(mq, "T")
        async with client_of(mq) as client:
            await client.call("SendMessage", sending(message("T")))
            await client.call("SendMessage", sending(message("T", b"")))
            assert mq.broker.http is not None
            text = (await mq.broker.http._metrics.render()).decode()
        lines = [line for line in text.split("\n") if line.startswith("rocketmq_grpc_")]
        for name, labels, value in (
            ("calls_total", 'method="SendMessage",status="OK"', "2"),
            ("results_total", 'method="SendMessage",code="20000"', "1"),
            ("results_total", 'method="SendMessage",code="41302"', "1"),
            ("connections", "", "1"),
        ):
            (line,) = [
                each
                for each in lines
                if each.startswith(f"rocketmq_grpc_{name}{{") and labels in each
            ]
            assert line.endswith(f" {value}")
        await mq._stop_grpc()
        assert "rocketmq_grpc" not in (await mq.broker.http._metrics.render()).decode()


async def certificate(mq: EmbeddedBroker) -> bytes:
    """What the port shows, as clients see it that take any."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with client_of(mq, ssl=context) as client:
        shown: bytes = client.writer.get_extra_info("ssl_object").getpeercert(True)
        return shown


async def test_the_certificate_is_kept(mq: EmbeddedBroker) -> None:
    """Made at the first start, and the same at the next ones."""
    path = mq.broker.parts.config_dir / "grpc_tls.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    shown = await certificate(mq)
    assert ssl.DER_cert_to_PEM_cert(shown).encode() in before
    await mq.restart()
    assert path.read_bytes() == before
    assert await certificate(mq) == shown
    assert kept_context(path) is not None


@pytest.mark.parametrize("trusted", ["127.0.0.1", ""])
async def test_proxy_headers_are_believed_from_those_that_the_broker_trusts(trusted: str) -> None:
    async with EmbeddedBroker({"proxyProtocolTrusted": trusted}, grpc=True) as mq:
        host, _, port = mq.grpc_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PROXY TCP4 192.0.2.7 127.0.0.1 4000 8081\r\n" + PREFACE)
        writer.write(SettingsFrame(0).serialize())
        async with asyncio.timeout(60):
            assert bool(await reader.read(100)) is bool(trusted)
        assert mq._front is not None
        assert mq._front.server is not None
        assert [channel.remote.host for channel in mq._front.server.channels] == (
            ["192.0.2.7"] if trusted else []
        )
        writer.close()
