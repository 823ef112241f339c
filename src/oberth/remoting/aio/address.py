"""Network addresses as RocketMQ writes them: ``host:port``, IPv6 with or without brackets."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Final, NamedTuple

from oberth.errors import OptionError

HOST_LENGTH_MAX: Final = 255
LABEL_LENGTH_MAX: Final = 63
PORT_MAX: Final = 65_535


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address that ``text`` spells.

    Addresses come from peers, too. The resolver takes what no name can be for a mistake of the
    caller, with errors that nobody expects of a connection, so it is refused here.

    Raises:
        OptionError: there is no port, or none between 0 and PORT_MAX; or what stands before it
            can be no host's name.
    """
    host, _, port_text = text.strip().rpartition(":")
    host = host.strip("[]")
    is_port = port_text.isascii() and port_text.isdigit() and len(port_text) <= len(str(PORT_MAX))
    if not host or not is_port or int(port_text) > PORT_MAX:
        raise OptionError(
            f"address {text[:80]!r} is not host:port, where the port is a number up to {PORT_MAX}"
        )
    if not _may_be_name(host):
        raise OptionError(
            f"address {text[:80]!r}: its host can be none; allowed are {HOST_LENGTH_MAX} "
            f"characters, between two dots 1 to {LABEL_LENGTH_MAX}"
        )
    return Address(host, int(port_text))


def _may_be_name(host: str) -> bool:
    """Whether a resolver looks for a host at all; what IDNA and C make of a name."""
    if len(host) > HOST_LENGTH_MAX or "\0" in host:
        return False
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return False
    labels = host.removesuffix(".").split(".")
    return all(0 < len(label) <= LABEL_LENGTH_MAX for label in labels)


def peer_address(name: object) -> Address:
    """The address of a socket's end as asyncio gives it, or as a peer wrote it.

    Two of the same host and port are equal: IPv4 inside IPv6 becomes IPv4, IPv6 has its shortest
    spelling and no zone.
    """
    if isinstance(name, tuple) and len(name) >= 2:
        host = str(name[0]).partition("%")[0]
        if ":" in host:
            with contextlib.suppress(ValueError):
                number = ipaddress.IPv6Address(host)
                host = str(number.ipv4_mapped or number)
        return Address(host, int(name[1]))
    return Address("", 0)
