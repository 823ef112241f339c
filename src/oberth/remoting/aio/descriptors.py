"""File descriptors: those that connections leave to the store, and what lies unread in one.

Idle connections cost a peer next to nothing, and each takes a descriptor. Without a reserve they
would take the one that the next segment of the log needs, and sends would fail for everybody. The
kernel hands out the lowest free number: where a connection's is above the limit, all below are in
use. RocketMQ: none; its segments fail.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, Final

try:
    from fcntl import ioctl
    from termios import FIONREAD
except ImportError:  # not on Windows
    ioctl = None  # type: ignore[assignment]

RESERVE_MAX: Final = 1024
RESERVE_SHARE: Final = 4
"""A fourth of the process's limit, and at most RESERVE_MAX, is never a connection's."""


def connection_limit() -> int | None:
    """The first number that no connection may have; None where there is no limit."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - min(limit // RESERVE_SHARE, RESERVE_MAX)


def refusal(transport: asyncio.BaseTransport) -> str | None:
    """Why a new connection must be closed at once, or None."""
    limit = connection_limit()
    opened: Any = transport.get_extra_info("socket")
    if limit is None or opened is None or opened.fileno() < limit:
        return None
    return f"{limit} file descriptors are in use, the rest is kept for the store (ulimit -n)"


def unread_bytes(transport: asyncio.BaseTransport | None) -> int:
    """What has come to a connection's socket and was not read; 0 where that cannot be known."""
    opened: Any = None if transport is None else transport.get_extra_info("socket")
    if opened is None or ioctl is None:
        return 0
    count = array("i", [0])
    try:
        ioctl(opened.fileno(), FIONREAD, count)
    except OSError:
        return 0
    return count[0]
