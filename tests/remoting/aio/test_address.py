"""Addresses as RocketMQ writes them, both ways."""

from __future__ import annotations

import pytest

from oberth.errors import OptionError
from oberth.remoting.aio.address import Address, parse_address, peer_address


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876), "127.0.0.1:9876"),
        (" broker:0 ", Address("broker", 0), "broker:0"),
        ("[::1]:9876", Address("::1", 9876), "[::1]:9876"),
        ("::1:9876", Address("::1", 9876), "[::1]:9876"),
    ],
)
def test_addresses(text: str, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown
    assert parse_address(shown) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "h:١", "h:" + "1" * 5000],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(OptionError, match="is not host:port"):
        parse_address(text)


@pytest.mark.parametrize(
    "host",
    [
        "a..b", ".", ".a", "a\0b", "127.0.0.1\0", "\ud800", "x" * 64, "ü" * 63, "xn--\x80",
        "a." * 128, "x" * 100_000,
    ],
)  # fmt: skip
def test_what_can_be_no_host(host: str) -> None:
    """A resolver raises errors of most of these that nobody expects of a connection."""
    with pytest.raises(OptionError, match="its host can be none"):
        parse_address(f"{host}:10911")


@pytest.mark.parametrize(
    "host", ["localhost.", "x" * 63, "bücher.example", "10.0.0.1", "fe80::1%eth0", "a_b-c"]
)
def test_what_a_resolver_looks_for(host: str) -> None:
    assert parse_address(f"{host}:1") == Address(host, 1)


def test_ends_of_sockets() -> None:
    assert peer_address(("127.0.0.1", 5)) == Address("127.0.0.1", 5)
    assert peer_address(("::ffff:10.0.0.1", 5, 0, 0)) == Address("10.0.0.1", 5)
    assert peer_address(("fe80::1%eth0", 5, 0, 2)) == Address("fe80::1", 5)
    assert peer_address(("FE80:0:0::0:1", 5)) == Address("fe80::1", 5)
    assert peer_address(("::FFFF:a00:1", 5)) == Address("10.0.0.1", 5)
    assert peer_address(("no:address", 5)) == Address("no:address", 5)
    assert peer_address(None) == Address("", 0)
