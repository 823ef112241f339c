"""The list of name servers as a web server gives it. RocketMQ: DefaultTopAddressing."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Final

from oberth.client.config import split_addresses
from oberth.errors import MQClientError, OptionError
from oberth.remoting.aio.address import parse_address

ANSWER_SIZE_MAX: Final = 64 * 1024
TIMEOUT_S: Final = 3.0


def fetch_name_servers(url: str) -> list[str]:
    """The addresses that the first line of an HTTP answer has; blocks.

    Raises:
        MQClientError: no answer, or it is no list of ``host:port;host:port``.
    """
    if not url.startswith(("http://", "https://")):
        raise MQClientError(f"name server list {url!r}: allowed are http and https")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            text = answer.read(ANSWER_SIZE_MAX).decode("utf-8", "replace").strip()
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise MQClientError(f"name server list {url}: {error}") from error
    addresses = split_addresses(text.splitlines()[0]) if text else []
    try:
        for addr in addresses:
            parse_address(addr)
    except OptionError as error:
        raise MQClientError(f"name server list {url}: {error}") from None
    return addresses
