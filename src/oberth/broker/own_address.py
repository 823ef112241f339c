"""OwnAddress: where others reach this broker, and which of its addresses a record carries."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

from oberth.errors import OptionError
from oberth.formats.message import encode_host
from oberth.remoting.aio.address import Address

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel


class OwnAddress:
    """The addresses of one broker. Ports are the configured ones until it listens.

    Attributes:
        ip: what name servers are told, and what remarks name.
        address: where clients connect.
        ha_address: where slaves connect.
        store_host: the address as records carry it: 4 or 16 bytes, and the port in 4.
    """

    __slots__ = ("_config", "address", "ha_address", "ip", "store_host")

    def __init__(self, config: BrokerConfig, store_config: MessageStoreConfig) -> None:
        self._config = config
        self.ip = config.broker_ip1 or reachable_ip(config.listen_host)
        self.listens_on(config.listen_port)
        self.ha_listens_on(store_config.ha_listen_port)

    def listens_on(self, port: int) -> None:
        """The broker's port is known.

        Raises:
            OptionError: brokerIP1 is a name without an address.
        """
        self.address = Address(self.ip, port)
        self.store_host = encode_host(resolve(self.ip), port)

    def ha_listens_on(self, port: int) -> None:
        """The port for slaves is known."""
        self.ha_address = f"{self._config.broker_ip2 or self.ip}:{port}"

    def store_host_for(self, channel: Channel) -> bytes:
        """The store host as a client knows it: what it dialled, unless brokerIP1 is set."""
        if self._config.broker_ip1 or not channel.local.host:
            return self.store_host
        return encode_host(channel.local.host, self.address.port)


def reachable_ip(listen_host: str) -> str:
    """An address under which the broker can be reached, if it is not told one."""
    try:
        address = ip_address(listen_host)
    except ValueError:
        return listen_host
    if not address.is_unspecified:
        return listen_host
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    probe_to = "192.0.2.1" if address.version == 4 else "2001:db8::1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: this only asks which of our addresses would be used.
            probe.connect((probe_to, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1" if address.version == 4 else "::1"


def resolve(host: str) -> str:
    """A host as a number, for records.

    Raises:
        OptionError: it has no address.
    """
    try:
        ip_address(host)
    except ValueError:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            raise OptionError(f"brokerIP1: {host!r}: {error}") from None
    return host
