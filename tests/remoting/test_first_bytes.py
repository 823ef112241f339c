"""What a connection speaks: every prefix of every opening is decided rightly or not yet."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError, RemoteProtocolError
from oberth.remoting.command import RemotingCommand, encode_frame_bytes
from oberth.remoting.first_bytes import (
    PROXY_V2_SIGNATURE,
    Protocol,
    ProxyHeader,
    TrustedProxies,
    detect,
    parse_proxy_header,
)

V1 = b"PROXY TCP4 10.1.2.3 127.0.0.1 50123 10911\r\n"
V2 = (
    PROXY_V2_SIGNATURE
    + b"\x21\x11"
    + struct.pack(">H", 12)
    + bytes([10, 1, 2, 3, 127, 0, 0, 1])
    + struct.pack(">HH", 50123, 10911)
)
V2_IPV6 = (
    PROXY_V2_SIGNATURE
    + b"\x21\x21"
    + struct.pack(">H", 38)
    + bytes(15)
    + b"\x01"
    + bytes(16)
    + struct.pack(">HH", 50123, 10911)
    + b"\x04\x00"
)


def test_first_byte_decides() -> None:
    assert detect(b"") is Protocol.UNDECIDED
    assert detect(b"\x16\x03\x01") is Protocol.TLS
    assert detect(encode_frame_bytes(RemotingCommand())[:1]) is Protocol.FRAMES
    assert detect(b"PRO") is Protocol.UNDECIDED
    assert detect(b"PROST") is Protocol.FRAMES
    assert detect(b"\r\n\r\nX") is Protocol.FRAMES
    assert detect(V1) is Protocol.PROXY


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (V1, ("10.1.2.3", 50123)),
        (b"PROXY TCP6 ::1 ::1 50123 10911\r\n", ("::1", 50123)),
        (b"PROXY UNKNOWN\r\n", None),
        (V2, ("10.1.2.3", 50123)),
        (V2_IPV6, ("::1", 50123)),
        (PROXY_V2_SIGNATURE + b"\x20\x00\x00\x00", None),
        (PROXY_V2_SIGNATURE + b"\x21\x31\x00\x03abc", None),
    ],
)
def test_proxy_headers(header: bytes, source: tuple[str, int] | None) -> None:
    for size in range(len(header)):
        assert detect(header[:size]) in (Protocol.UNDECIDED, Protocol.PROXY)
        if detect(header[:size]) is Protocol.PROXY:
            assert parse_proxy_header(header[:size]) is None
    assert detect(header) is Protocol.PROXY
    assert parse_proxy_header(header + b"rest") == ProxyHeader(len(header), source)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY " + b"x" * 110,
        b"PROXY TCP4 10.1.2.3\r\n",
        b"PROXY TCP4 10.1.2 127.0.0.1 1 2\r\n",
        b"PROXY TCP4 10.1.2.3 127.0.0.1 70000 2\r\n",
        b"PROXY UDP4 10.1.2.3 127.0.0.1 7 2\r\n",
        b"PROXY TCP4 10.1.2.3 127.0.0.1 7_0 2\r\n",
        b"PROXY TCP6 fe80::1%\na-line ::1 7 2\r\n",
        PROXY_V2_SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        PROXY_V2_SIGNATURE + b"\x21\x11\x00\x03" + bytes(12),
        PROXY_V2_SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_hostile_proxy_headers(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"allowed|without a line end"):
        parse_proxy_header(header)


@given(st.sampled_from([b"PROXY ", PROXY_V2_SIGNATURE]), st.binary(max_size=150))
def test_random_proxy_headers(mark: bytes, rest: bytes) -> None:
    try:
        header = parse_proxy_header(mark + rest)
    except RemoteProtocolError:
        return
    assert header is None or 0 < header.size <= len(mark) + len(rest)


def test_trusted_proxies() -> None:
    trusted = TrustedProxies("10.0.0.7; 192.168.0.0/16,2001:db8::/32;")
    assert "10.0.0.7" in trusted
    assert "192.168.3.4" in trusted
    assert "2001:db8::7" in trusted
    assert "10.0.0.8" not in trusted
    assert "::1" not in trusted
    assert "" not in trusted
    assert "10.0.0.7" not in TrustedProxies()
    with pytest.raises(OptionError, match=r"proxyProtocolTrusted: 'lb\.example' .* allowed are"):
        TrustedProxies("lb.example")
