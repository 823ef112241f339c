"""Network addresses as RocketMQ writes them: ``host:port``, IPv6 with or without brackets."""

from __future__ import annotations

from typing import Final, NamedTuple

from oberth.errors import OptionError

_MAPPED_PREFIX: Final = "::ffff:"


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address that ``text`` spells.

    Raises:
        OptionError: there is no port, or none between 0 and 65535.
    """
    host, _, port_text = text.strip().rpartition(":")
    host = host.strip("[]")
    if not host or not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise OptionError(
            f"address {text[:80]!r} is not host:port, where the port is a number up to 65535"
        )
    return Address(host, int(port_text))


def peer_address(name: object) -> Address:
    """The address of a socket's end as asyncio gives it; IPv4 inside IPv6 becomes IPv4."""
    if isinstance(name, tuple) and len(name) >= 2:
        host = str(name[0])
        if host.startswith(_MAPPED_PREFIX) and "." in host:
            host = host.removeprefix(_MAPPED_PREFIX)
        return Address(host.partition("%")[0], int(name[1]))
    return Address("", 0)
