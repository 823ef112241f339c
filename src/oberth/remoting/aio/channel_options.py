"""The limits of a connection."""

from __future__ import annotations

from dataclasses import dataclass, field

from oberth.remoting.command import FRAME_SIZE_MAX, HEADER_SIZE_MAX
from oberth.remoting.first_bytes import TrustedProxies


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Limits of every connection of a server or client.

    Attributes:
        frame_size_max: bytes of a frame, both directions.
        header_size_max: bytes of a received header.
        write_high_bytes: unsent bytes above which the channel stops reading.
        write_low_bytes: unsent bytes below which it reads again.
        in_work_max: requests handed to stages and not finished, above which it stops reading.
        in_work_bytes_max: bytes that they take, above which it stops reading.
        open_request_max: our requests that wait for a response; more are refused.
        handshake_timeout_s: seconds that a peer has for its TLS handshake.
        idle_timeout_s: seconds without a byte in either direction before the channel is closed;
            0 never closes.
        proxies: the peers whose PROXY headers give the address of who is behind them (servers
            only); any other peer that sends one is closed.
        read_rest_s: seconds without reading after a read that brought few answers while many are
            expected; 0: reads at once. For clients: a broker that answers one by one would wake us
            for each answer, which costs several times what the answer itself does.
    """

    frame_size_max: int = FRAME_SIZE_MAX
    header_size_max: int = HEADER_SIZE_MAX
    write_high_bytes: int = 4 * 1024 * 1024
    write_low_bytes: int = 1024 * 1024
    in_work_max: int = 32768
    in_work_bytes_max: int = 32 * 1024 * 1024
    open_request_max: int = 65535
    handshake_timeout_s: float = 15.0
    idle_timeout_s: float = 120.0
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    read_rest_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.write_low_bytes < self.write_high_bytes
        assert self.header_size_max <= self.frame_size_max
