"""Front: a gRPC port; GrpcFront: that of a broker in this process.

    async with Broker(...) as broker, GrpcFront(broker) as front: front.address

Lifecycle: made for a broker that serves, and closed before it. Closing takes no more calls, ends
what waits for messages, lets calls end, and takes the clients out of their groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oberth.proxy.backend import Backend, LocalBackend, MetricFamily, ServedBroker
from oberth.proxy.core import INVISIBLE_MS_MIN, POLL_MS_MIN
from oberth.proxy.messaging import MessagingService
from oberth.proxy.server import GrpcOptions, GrpcServer
from oberth.proxy.standard import health_handlers, reflection_handlers
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.service import Service
from oberth.remoting.first_bytes import TrustedProxies

if TYPE_CHECKING:
    import ssl

_LOG: Final = logging.getLogger(__name__)

CERTIFICATE_NAME: Final = "grpc_tls.pem"
"""The self-signed certificate and its key, in the broker's ``config/``."""

SECOND_S: Final = 1.0
BUSY_POLL_TIMES: Final = 2.5
"""How much longer than over remoting a lone client is waited for: that for Java hands a call to a
second thread and its answer to a third, and asks again 340 to 450 us behind an answer."""


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """How a gRPC port is served.

    Attributes:
        host: address to listen on.
        port: 0 takes a free one.
        date_age_max_s: how old a signed date may be; 0: any age.
        tls_mode: a `TlsMode`.
        tls_cert_path, tls_key_path: one's own certificate and its key.
        kept_certificate: where one is kept that was made here; None: it is made at each start.
        proxies: peers whose PROXY headers are believed, as an option gives them.
        invisible_ms_min: the shortest time for which a message is handed out.
        poll_ms_min: the shortest time for which a receive waits.
        busy_poll_s: seconds for which the loop stays awake for a lone caller.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    date_age_max_s: int = 0
    tls_mode: str = "permissive"
    tls_cert_path: str = ""
    tls_key_path: str = ""
    kept_certificate: Path | None = None
    proxies: str = ""
    invisible_ms_min: int = INVISIBLE_MS_MIN
    poll_ms_min: int = POLL_MS_MIN
    busy_poll_s: float = 0.0

    def tls(self) -> ssl.SSLContext | None:
        """Certificate and key; None: TLS is not offered. Makes a key where there is none: slow.

        Raises:
            OptionError: a certificate cannot be read.
        """
        from oberth.remoting.aio.tls import kept_context, load_server_context, self_signed_context  # noqa: PLC0415 - OpenSSL: 30 ms of a start

        if self.tls_mode == "disabled":
            return None
        if self.tls_cert_path:
            context = load_server_context(self.tls_cert_path, self.tls_key_path)
        else:
            path = self.kept_certificate
            found = self_signed_context() if path is None else kept_context(path)
            if found is None:
                return None
            context = found
        context.set_alpn_protocols(["h2"])
        return context


class Front(Service):
    """Serves `MessagingService` for a backend.

    Args:
        backend: where topics, groups and messages are.
        config: how it is served.
        not_ready: why no messages are taken, or None.

    Attributes:
        service: the calls.
        server: the port, its connections and counters.
    """

    def __init__(
        self, backend: Backend, config: FrontConfig, not_ready: Callable[[], str | None]
    ) -> None:
        self._config = config
        self._not_ready = not_ready
        self._backend = backend
        self.service = MessagingService(
            backend,
            date_age_max_s=config.date_age_max_s,
            invisible_ms_min=config.invisible_ms_min,
            poll_ms_min=config.poll_ms_min,
            connections=lambda: 0 if self.server is None else len(self.server.channels),
        )
        self.server: GrpcServer | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> Address:
        """Where gRPC clients connect."""
        assert self.server is not None, "the front is not started"
        return self.server.address

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken, or the certificate cannot be written.
            OptionError: a certificate cannot be read.
        """
        config = self._config
        options = GrpcOptions(
            host=config.host,
            port=max(config.port, 0),
            # Made now, because making a key takes long and the first handshake would wait for it.
            tls_context=await asyncio.to_thread(config.tls),
            tls_only=config.tls_mode == "enforcing",
            proxies=TrustedProxies(config.proxies),
            busy_poll_s=config.busy_poll_s,
        )
        handlers = {
            **self.service.handlers(),
            **health_handlers(self._not_ready),
            **reflection_handlers(),
        }
        self.server = GrpcServer(
            handlers, options, begins=self.service.begins(), read_done=self.service.read_done
        )
        try:
            await self.server.start()
        except BaseException:
            self.server = None
            raise
        _LOG.info("serving gRPC on %s", self.address)
        self._on_second()

    def _on_second(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SECOND_S, self._on_second)
        try:
            self.service.on_time()
        except Exception:  # noqa: BLE001 - one failure must not stop the clock
            _LOG.exception("a periodic task failed, it runs again at its next turn")

    def answer_held(self) -> None:
        """Requests that wait for messages are answered with what is there."""

    def metrics(self) -> list[MetricFamily]:
        """What ``/metrics`` shows of the port."""
        server = self.server
        if server is None:
            return []
        return [
            (
                "rocketmq_grpc_calls_total",
                "counter",
                "gRPC calls that ended, by gRPC's status",
                [
                    ((("method", _method(path)), ("status", status.name)), count)
                    for (path, status), count in sorted(server.calls.items())
                ],
            ),
            (
                "rocketmq_grpc_results_total",
                "counter",
                "answers of gRPC calls, by RocketMQ's code",
                [
                    ((("method", method), ("code", str(code))), count)
                    for (method, code), count in sorted(self.service.results.items())
                ],
            ),
            (
                "rocketmq_grpc_call_seconds_total",
                "counter",
                "seconds that gRPC calls took, waiting for messages among them",
                [
                    ((("method", _method(path)),), round(seconds, 6))
                    for path, seconds in sorted(server.seconds.items())
                ],
            ),
            (
                "rocketmq_grpc_connections",
                "gauge",
                "connections of gRPC clients",
                [((), len(server.channels))],
            ),
            ("rocketmq_grpc_clients", "gauge", "gRPC clients", [((), len(self.service.clients))]),
        ]

    async def aclose(self) -> None:
        """Take no more calls, let those that run end, and forget the clients."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        server = self.server
        if server is None:
            return
        await server.stop_accepting()
        server.drain()
        self.service.end_waiting()
        self.answer_held()
        await server.aclose()
        self.server = None
        self.service.close()


class GrpcFront(Front):
    """Serves `MessagingService` for one broker of this process.

    Args:
        broker: that serves.
    """

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        config = broker.parts.config
        super().__init__(
            LocalBackend(broker),
            FrontConfig(
                host=config.listen_host,
                port=config.grpc_server_port,
                date_age_max_s=config.grpc_date_age_max_s,
                tls_mode=config.tls_mode,
                tls_cert_path=config.tls_cert_path,
                tls_key_path=config.tls_key_path,
                kept_certificate=broker.parts.config_dir / CERTIFICATE_NAME,
                proxies=config.proxy_protocol_trusted,
                invisible_ms_min=config.min_invisible_ms_for_receive,
                poll_ms_min=config.grpc_poll_ms_min,
                busy_poll_s=config.busy_poll_us * BUSY_POLL_TIMES / 1_000_000,
            ),
            broker.not_ready,
        )

    async def start(self) -> None:
        """Listen, and show figures in the broker's ``/metrics``."""
        await super().start()
        self._broker.more_metrics.append(self.metrics)

    def answer_held(self) -> None:
        """Requests that wait for messages are answered with what is there."""
        self._broker.processors.answer_held()

    async def aclose(self) -> None:
        """Take no more calls, let those that run end, and forget the clients."""
        if self.server is not None:
            self._broker.more_metrics.remove(self.metrics)
        await super().aclose()


def _method(path: str) -> str:
    """The last word of a path."""
    return path.rpartition("/")[2]
