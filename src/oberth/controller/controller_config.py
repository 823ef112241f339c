"""ControllerConfig: the options of a controller.

Keys, spelling and defaults are those of Apache's 5.5.0 unless a line says otherwise. RocketMQ:
``ControllerConfig``, ``NettyServerConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oberth.errors import OptionError
from oberth.formats.options import check_options, format_options, option, read_options
from oberth.remoting.aio.tls import TlsMode
from oberth.remoting.first_bytes import AddressSet, TrustedProxies

DEFAULT_PORT: Final = 9878
ALLOWED_OPTION: Final = "controllerAllowedAddresses"

CHANGEABLE: Final = frozenset(
    (
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "scanInactiveMasterInterval",
        "scanNotActiveBrokerInterval",
    )
)
"""Keys that a peer may change while the controller runs (1009)."""


@dataclass(slots=True, kw_only=True)
class ControllerConfig:
    """A controller's settings. Mutable: the keys of CHANGEABLE may change while it runs."""

    listen_host: str = option(
        "bindAddress", "127.0.0.1", "address to listen on; Apache's default is every address"
    )
    listen_port: int = option("listenPort", DEFAULT_PORT, "0: any free one", high=65535)
    store_path: str = option(
        "controllerStorePath", "~/controller", "directory in which the replica sets are kept"
    )
    allowed_addresses: str = option(
        ALLOWED_OPTION,
        "",
        "addresses and networks that may connect (10.0.0.7;192.168.0.0/16); empty: every one that "
        "reaches the port",
    )
    elects_unclean: bool = option(
        "enableElectUncleanMaster",
        False,
        "a replica that is not in sync may become master when no other lives; messages are lost",
    )
    notifies: bool = option(
        "notifyBrokerRoleChanged", True, "brokers hear of a new master at once (1008)"
    )
    scan_not_active_broker_interval_ms: int = option(
        "scanNotActiveBrokerInterval", 5000, "ms between looks for silent brokers", low=10
    )
    scan_inactive_master_interval_ms: int = option(
        "scanInactiveMasterInterval", 5000, "ms between looks for broker names without a master",
        low=10,
    )  # fmt: skip
    server_channel_max_idle_time_s: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "seconds of silence after which a peer is dropped"
    )
    tls_mode: str = option("tlsServerMode", "permissive", "disabled, permissive or enforcing")
    tls_cert_path: str = option("tlsServerCertPath", "", "PEM certificate chain of the server")
    tls_key_path: str = option("tlsServerKeyPath", "", "PEM key of the certificate")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath", "",
        "PEM certificates by which those of brokers are judged; they are asked over TLS "
        "with this, and with tlsServerMode=enforcing (tls.client.trustCertPath)",
    )  # fmt: skip
    proxy_protocol_trusted: str = option(
        "proxyProtocolTrusted", "", "addresses and networks whose PROXY headers are believed"
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.tls_mode not in {mode.value for mode in TlsMode}:
            allowed = ", ".join(mode.value for mode in TlsMode)
            raise OptionError(f"tlsServerMode: {self.tls_mode!r} is not one of {allowed}")
        AddressSet(self.allowed_addresses, ALLOWED_OPTION)
        TrustedProxies(self.proxy_protocol_trusted)

    @classmethod
    def of_properties(cls, entries: dict[str, str]) -> ControllerConfig:
        """The options of a controller.conf; keys without a meaning here have none.

        Raises:
            OptionError: a value does not parse or is out of range.
        """
        return read_options(cls, entries)

    def properties(self) -> dict[str, str]:
        """Every option as text, under its key."""
        return dict(sorted(format_options(self).items()))
