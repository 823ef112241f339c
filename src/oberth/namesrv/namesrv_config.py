"""NamesrvConfig: the options of a name server.

Keys, spelling and defaults are Apache's 5.5.0 unless a line says otherwise. RocketMQ:
``NamesrvConfig``, ``NettyServerConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oberth.errors import OptionError
from oberth.formats.options import check_options, format_options, option, read_options
from oberth.remoting.aio.tls import TlsMode
from oberth.remoting.first_bytes import TrustedProxies

DEFAULT_PORT: Final = 9876
PORT_MAX: Final = 65535

BLACK_LIST: Final = frozenset(
    ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
)
"""Keys that a peer may never change: they say which files are written."""

CHANGEABLE: Final = frozenset(
    (
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "needWaitForService",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "supportActingMaster",
        "waitSecondsForService",
    )
)
"""Keys that a peer may change while the name server runs (318)."""

# Java keeps these beside its own; a namesrv.conf that has them is not wrong.
KEYS_WITHOUT_EFFECT: Final = frozenset(
    (
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "clusterTest",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableControllerInNamesrv",
        "enableShutdownGracefully",
        "productEnvName",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    )
)


@dataclass(slots=True, kw_only=True)
class NamesrvConfig:
    """What a name server is and does. Mutable: the keys of CHANGEABLE may change while it runs."""

    listen_host: str = option(
        "bindAddress", "127.0.0.1", "address to listen on; Apache's default is every address"
    )
    listen_port: int = option("listenPort", DEFAULT_PORT, "0: any free one", high=PORT_MAX)
    kv_config_path: str = option(
        "kvConfigPath", "", "file of the KV configuration; empty: memory only"
    )
    config_store_path: str = option(
        "configStorePath", "", "file that changed options are written to; empty: none"
    )
    config_black_list: str = option(
        "configBlackList",
        "configBlackList;configStorePath;kvConfigPath",
        "keys that peers may not change, separated by ;",
    )
    tls_mode: str = option(
        "tlsServerMode", "permissive", "disabled, permissive or enforcing (tls.server.mode)"
    )
    tls_cert_path: str = option("tlsServerCertPath", "", "PEM certificate chain of the server")
    tls_key_path: str = option("tlsServerKeyPath", "", "PEM key of the certificate")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath", "",
        "PEM certificates by which those of brokers are judged; they are asked over TLS "
        "with this, and with tlsServerMode=enforcing (tls.client.trustCertPath)",
    )  # fmt: skip
    proxy_protocol_trusted: str = option(
        "proxyProtocolTrusted",
        "",
        "addresses and networks (10.0.0.7;192.168.0.0/16) whose PROXY headers are believed; every "
        "other peer that sends one is closed; Apache 5.5 believes all",
    )
    server_channel_max_idle_time_s: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "seconds of silence after which a peer is dropped"
    )
    order_message_enable: bool = option(
        "orderMessageEnable", False, "routes carry ORDER_TOPIC_CONFIG"
    )
    return_order_topic_config_to_broker: bool = option(
        "returnOrderTopicConfigToBroker", True, "registrations are answered with ORDER_TOPIC_CONFIG"
    )
    scan_not_active_broker_interval_ms: int = option(
        "scanNotActiveBrokerInterval", 5000, "ms between looks for silent brokers", low=10
    )
    support_acting_master: bool = option(
        "supportActingMaster", False, "routes show the smallest slave as master where there is none"
    )
    enable_all_topic_list: bool = option(
        "enableAllTopicList", True, "answer request 206, the list of all topics"
    )
    enable_topic_list: bool = option("enableTopicList", True, "224 and 311 to 313 are answered")
    notify_min_broker_id_changed: bool = option(
        "notifyMinBrokerIdChanged", False, "brokers hear of a new smallest id (905)"
    )
    delete_topic_with_broker_registration: bool = option(
        "deleteTopicWithBrokerRegistration",
        False,
        "a registration removes the broker's other topics",
    )
    need_wait_for_service: bool = option(
        "needWaitForService", False, "routes are refused right after the start"
    )
    wait_seconds_for_service: int = option(
        "waitSecondsForService", 45, "for so many seconds, so that brokers can register first"
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.tls_mode not in {mode.value for mode in TlsMode}:
            allowed = ", ".join(mode.value for mode in TlsMode)
            raise OptionError(f"tlsServerMode: {self.tls_mode!r} is not one of {allowed}")
        TrustedProxies(self.proxy_protocol_trusted)

    @classmethod
    def of_properties(cls, entries: dict[str, str]) -> NamesrvConfig:
        """The options of a namesrv.conf; keys without a meaning here have none.

        Raises:
            OptionError: a value does not parse or is out of range.
        """
        return read_options(cls, entries)

    def properties(self) -> dict[str, str]:
        """Every option as text, under its key."""
        return dict(sorted(format_options(self).items()))

    @property
    def black_list(self) -> frozenset[str]:
        """Keys that a peer may never change."""
        own = {key.strip() for key in self.config_black_list.split(";") if key.strip()}
        return BLACK_LIST | own

    @property
    def kv_path(self) -> Path | None:
        """``kv_config_path`` as a path, or None."""
        return Path(self.kv_config_path) if self.kv_config_path else None
