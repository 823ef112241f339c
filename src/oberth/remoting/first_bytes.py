r"""What a new connection speaks, told from its first bytes.

    first bytes                          what follows
    "PROXY " ... CR LF                   PROXY protocol version 1, one line of at most 107 bytes
    0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A  PROXY protocol version 2, a head of 16 bytes
    0x16                                 a TLS handshake
    anything else                        remoting frames

A frame begins with its length, which is below 2**24, so its first byte is 0 (or 1 at the limit):
the four cases cannot be mistaken. A PROXY header comes first and once; TLS or frames follow it.
It is an unsigned claim about an address, so only peers that `TrustedProxies` names may send one.

Version 2 after its signature (big-endian):

    offset  size  field           type    note
        12     1  version_command uint8   0x20 local, 0x21 proxied
        13     1  family          uint8   0x11 TCP over IPv4, 0x21 TCP over IPv6; others: no address
        14     2  size            uint16  bytes that follow
        16     -  addresses       bytes   source, destination, source port, destination port

RocketMQ: ``NettyRemotingServer.HandshakeHandler``, ``ProtocolDetectionResult`` of Netty.
"""

from __future__ import annotations

import ipaddress
import struct
from enum import Enum
from typing import Final, NamedTuple

from oberth.errors import OptionError, RemoteProtocolError

TLS_HANDSHAKE: Final = 0x16
PROXY_V1_PREFIX: Final = b"PROXY "
PROXY_V1_SIZE_MAX: Final = 107
"""Bytes of a version 1 header with its line end, by the PROXY protocol's own specification."""

PROXY_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
PROXY_V2_HEAD_SIZE: Final = 16
PROXY_V2_SIZE_MAX: Final = 4096
"""Bytes of addresses and extensions that we read."""

PROXY_OPTION: Final = "proxyProtocolTrusted"
"""The key under which broker and name server have `TrustedProxies`."""

_V2_HEAD: Final = struct.Struct(">BBH")


class AddressSet:
    """Addresses and networks that an option names.

    Args:
        text: addresses and networks in CIDR notation, separated by ``;`` or ``,``.
        option: the option's key, for the error.

    Raises:
        OptionError: a piece is neither.
    """

    __slots__ = ("_networks",)

    def __init__(self, text: str, option: str) -> None:
        pieces = [piece.strip() for piece in text.replace(",", ";").split(";")]
        try:
            self._networks = [
                ipaddress.ip_network(piece, strict=False) for piece in pieces if piece
            ]
        except ValueError as error:
            raise OptionError(
                f"{option}: {error}; allowed are addresses and networks as in "
                "10.0.0.7;192.168.0.0/16"
            ) from None

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def __bool__(self) -> bool:
        return bool(self._networks)


class TrustedProxies(AddressSet):
    """The peers whose PROXY headers are believed."""

    __slots__ = ()

    def __init__(self, text: str = "") -> None:
        super().__init__(text, PROXY_OPTION)


class Protocol(Enum):
    """What the first bytes of a connection announce."""

    UNDECIDED = "undecided"
    PROXY = "proxy"
    TLS = "tls"
    FRAMES = "frames"


def detect(data: bytes) -> Protocol:
    """The protocol that ``data``, the first bytes of a connection, begins; UNDECIDED: need more."""
    if not data:
        return Protocol.UNDECIDED
    first = data[0]
    if first == TLS_HANDSHAKE:
        return Protocol.TLS
    for mark in (PROXY_V1_PREFIX, PROXY_V2_SIGNATURE):
        if first == mark[0]:
            if data.startswith(mark):
                return Protocol.PROXY
            return Protocol.UNDECIDED if mark.startswith(data) else Protocol.FRAMES
    return Protocol.FRAMES


class ProxyHeader(NamedTuple):
    """A PROXY header.

    Attributes:
        size: its bytes; what follows belongs to the connection.
        source: address and port of the client, None if the proxy does not tell.
    """

    size: int
    source: tuple[str, int] | None


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The PROXY header at the start of ``data``, or None if more bytes are needed.

    Raises:
        RemoteProtocolError: it is longer than allowed or not well-formed.
    """
    if data.startswith(PROXY_V1_PREFIX):
        return _parse_v1(data)
    return _parse_v2(data)


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, PROXY_V1_SIZE_MAX)
    if end < 0:
        if len(data) >= PROXY_V1_SIZE_MAX:
            raise RemoteProtocolError(
                f"PROXY header of more than {PROXY_V1_SIZE_MAX} bytes without a line end"
            )
        return None
    words = data[:end].decode("ascii", "replace").split(" ")
    size = end + 2
    if words[1:2] == ["UNKNOWN"]:
        return ProxyHeader(size, None)
    try:
        _, family, source, _, source_port, _ = words
        # After a "%" an address takes any text, line ends too, and a number takes "_" and blanks.
        if "%" in source or not source_port.isdecimal():
            raise ValueError(source)
        address = _plain(ipaddress.ip_address(source))
        port = int(source_port)
        if family not in ("TCP4", "TCP6") or not 0 <= port <= 65535:
            raise ValueError(family)
    except ValueError:
        raise RemoteProtocolError(
            f"PROXY header {data[:end]!r}, allowed PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT"
        ) from None
    return ProxyHeader(size, (str(address), port))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < PROXY_V2_HEAD_SIZE:
        return None
    version_command, family, size = _V2_HEAD.unpack_from(data, len(PROXY_V2_SIGNATURE))
    if version_command not in (0x20, 0x21):
        raise RemoteProtocolError(
            f"PROXY header with version and command {version_command:#x}, allowed 0x20 and 0x21"
        )
    if size > PROXY_V2_SIZE_MAX:
        raise RemoteProtocolError(f"PROXY header of {size} bytes, allowed {PROXY_V2_SIZE_MAX}")
    total = PROXY_V2_HEAD_SIZE + size
    if len(data) < total:
        return None
    addresses = data[PROXY_V2_HEAD_SIZE:total]
    if version_command == 0x20 or family not in (0x11, 0x21):
        return ProxyHeader(total, None)
    width = 4 if family == 0x11 else 16
    if size < 2 * width + 4:
        raise RemoteProtocolError(
            f"PROXY header with {size} bytes of addresses, allowed at least {2 * width + 4}"
        )
    port = int.from_bytes(addresses[2 * width : 2 * width + 2], "big")
    return ProxyHeader(total, (str(_plain(ipaddress.ip_address(addresses[:width]))), port))


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """IPv4 inside IPv6 becomes IPv4, as policies and white lists write it."""
    return getattr(address, "ipv4_mapped", None) or address
