"""ClientConfig: how a client finds the cluster and who it is there.

A value: producers and consumers with equal configurations share one ``ClientInstance``, that is,
one connection to each address and one heartbeat. RocketMQ: ClientConfig.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from oberth.errors import OptionError
from oberth.formats.names import TRACE_TOPIC
from oberth.remoting.aio.address import Address, parse_address

NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
"""The variable that Java's client reads too."""

DEFAULT_NAMESRV_ADDR: Final = "127.0.0.1:9876"
_NAMESRV_FORM: Final = "host:port, or several of them with ';' between"
_NO_HOST: Final = frozenset(", /")
"""In none: people write commas between addresses, and http:// before them."""

VIP_PORT_DISTANCE: Final = 2
"""A broker's fast port lies this much below its port."""


def default_namesrv_addr() -> str:
    """The environment's name servers, or the one of this machine."""
    return os.environ.get(NAMESRV_ENVIRONMENT) or DEFAULT_NAMESRV_ADDR


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to reach a cluster.

    Attributes:
        namesrv_addr: ``host:port;host:port``; else the environment's NAMESRV_ADDR, else
            127.0.0.1:9876.
        namesrv_url: where the list is fetched from by HTTP, every two minutes; overrides
            ``namesrv_addr`` as soon as it answered. RocketMQ: ``rocketmq.namesrv.domain``.
        instance_name: part of the client id; ``DEFAULT`` becomes the process id and a number, so
            that two processes never have the same.
        client_ip: part of the client id; empty: the address of this machine.
        unit_name: part of the client id, and sends are marked as of a unit.
        namespace: put before the names of topics and groups (``namespace%topic``), and taken off
            what comes back; brokers know nothing of it.
        namespace_v2: told to brokers with every request, as fields ``nsd`` and ``ns``.
        poll_name_server_interval_ms: between two looks at the routes of known topics.
        heartbeat_broker_interval_ms: between two heartbeats.
        persist_consumer_offset_interval_ms: between two commits of consumers.
        rebalance_interval_ms: between two rebalances when nothing happens.
        mq_client_api_timeout_ms: of requests that have no time-out of their own.
        connect_timeout_ms: for a connection to stand.
        vip_channel_enabled: sends go to the brokers' fast port.
        tls_context: connect with TLS; ``ssl.create_default_context()`` checks certificates, which
            RocketMQ's test certificates do not pass.
        access_key: of the ACL; with ``secret_key`` every request is signed.
        secret_key: of the ACL.
        security_token: of temporary credentials.
        use_heartbeat_v2: leave subscriptions out of heartbeats while a broker that can do without
            them knows them and nothing changed.
        enable_trace: whether producers and consumers write trace messages.
        trace_topic: where trace messages go.
        traceparent: gives the W3C trace context that goes with each message, as its property
            ``traceparent``, unless the message has one; None, or what gives None: nothing.
    """

    namesrv_addr: str = field(default_factory=default_namesrv_addr)
    namesrv_url: str = ""
    instance_name: str = "DEFAULT"
    client_ip: str = ""
    unit_name: str = ""
    namespace: str = ""
    namespace_v2: str = ""
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    persist_consumer_offset_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    mq_client_api_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    vip_channel_enabled: bool = False
    tls_context: ssl.SSLContext | None = None
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    use_heartbeat_v2: bool = False
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC
    traceparent: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        _check_name_servers(self.namesrv_addr)
        if bool(self.access_key) != bool(self.secret_key):
            given, missing = "access_key", "secret_key"
            if not self.access_key:
                given, missing = missing, given
            raise OptionError(f"{given} is given without {missing}; a signature needs both")


def _check_name_servers(text: object) -> None:
    """Refuse what names no servers.

    Raises:
        OptionError: it is no text, or not of addresses; the message says how they are written.
    """
    if not isinstance(text, str):
        raise OptionError(f"namesrv_addr is {type(text).__name__}; it must be {_NAMESRV_FORM}")
    for addr in split_addresses(text):
        parse_address(addr)
        if not _NO_HOST.isdisjoint(addr):
            raise OptionError(f"namesrv_addr is {text[:80]!r}; it must be {_NAMESRV_FORM}")


def split_addresses(text: str) -> list[str]:
    """The addresses of ``a:1;b:2``."""
    return [piece.strip() for piece in text.split(";") if piece.strip()]


def local_ip() -> str:
    """An address of this machine that others may know it by; 127.0.0.1 when it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: connecting a datagram socket only picks a route.
            probe.connect(("10.255.255.255", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def fast_address(addr: str) -> str:
    """The address of a broker's fast port. RocketMQ: MixAll.brokerVIPChannel.

    Raises:
        OptionError: it is no address.
    """
    host, port = parse_address(addr)
    return str(Address(host, port - VIP_PORT_DISTANCE))


def client_config(config: ClientConfig | None, namesrv_addr: str | None) -> ClientConfig:
    """The configuration that a constructor's two arguments mean."""
    made = config or ClientConfig()
    return made if namesrv_addr is None else replace(made, namesrv_addr=namesrv_addr)
