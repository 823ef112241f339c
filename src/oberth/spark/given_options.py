"""Options as a user gives them: known names, values as text, numbers, sizes and times.

What a source and a sink have in common is here too: how live brokers are reached, and which
directories ``path`` names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from oberth.errors import OptionError
from oberth.spark.connection import (
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_READ_TIMEOUT_MS,
    DEFAULT_TIMEOUT_MS,
    Connection,
    TlsFiles,
)

CONNECTION: Final[Mapping[str, tuple[str, ...]]] = {
    "rocketmq.namesrv.addr": ("nameServer", "namesrvAddr"),
    "rocketmq.acl.accessKey": (),
    "rocketmq.acl.secretKey": (),
    "rocketmq.acl.securityToken": (),
    "rocketmq.tls.enable": (),
    "rocketmq.tls.verify": (),
    "rocketmq.tls.ca": (),
    "rocketmq.tls.cert": (),
    "rocketmq.tls.key": (),
    "rocketmq.tls.keyPassword": (),
    "rocketmq.timeout": (),
    "rocketmq.brokers": (),
}
"""How live brokers are reached; the same for source and sink."""
READ_TIMEOUT: Final = "rocketmq.read.timeout"
DELIVERY_TIMEOUT: Final = "rocketmq.delivery.timeout"


class Given:
    """The options a user gave, by their proper names; every one has to be known.

    Raises:
        OptionError: an unknown name, or one option under two names with two values.
    """

    def __init__(self, given: Mapping[str, str], known: Mapping[str, tuple[str, ...]]) -> None:
        names = {n.lower(): name for name, more in known.items() for n in (name, *more)}
        spelled = {n.lower(): n for name, more in known.items() for n in (name, *more)}
        self._values: dict[str, str] = {}
        for raw_name, raw_value in given.items():
            name = names.get(raw_name.lower())
            value = str(raw_value).strip()
            if name is None:
                raise OptionError(_unknown(raw_name, spelled))
            if self._values.get(name, value) != value:
                raise OptionError(f"option {name} is given twice, with different values")
            self._values[name] = value

    def text(self, name: str, default: str = "") -> str:
        """The value of an option, or its default."""
        return self._values.get(name, default)

    def has(self, *names: str) -> list[str]:
        """Those of the names that are given."""
        return [name for name in names if name in self._values]

    def flag(self, name: str, default: bool) -> bool:
        """A value that is true or false."""
        text = self._values.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name}: found {text!r}, allowed: true, false")
        return text.lower() == "true"

    def number(self, name: str, low: int = 1, high: int = 2**63 - 1) -> int | None:
        """A whole number within limits, or None where it is not given."""
        text = self._values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,19}", text) or not low <= int(text) <= high:
            raise OptionError(f"{name}: found {text!r}, allowed: {low} to {high}")
        return int(text)

    def size(
        self, name: str, default: int | None, low: int = 1, high: int = 2**63 - 1
    ) -> int | None:
        """A number of bytes such as 134217728, 128m or 1g."""
        text = self._values.get(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", text.lower())
        value = (
            int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]] if match else 0
        )
        if not low <= value <= high:
            raise OptionError(
                f"{name}: found {text!r}, allowed: {low} to {high} bytes (k, m, g, t)"
            )
        return value

    def duration_ms(self, name: str, default: int) -> int:
        """A time such as 500ms, 30s, 15m or 1h; a bare number is milliseconds."""
        text = self._values.get(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,15})\s*(ms|s|m|min|h|d)?", text.lower())
        if match is None:
            raise OptionError(f"{name}: found {text!r}, allowed: a number and ms, s, m, h or d")
        units = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
        return int(match[1]) * units[match[2] or "ms"]

    def words(self, name: str) -> list[str]:
        """Words with commas between them; none where it is not given."""
        return [word.strip() for word in self.text(name).split(",") if word.strip()]

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of several words."""
        text = self._values.get(name, default).lower()
        if text not in allowed:
            raise OptionError(f"{name}: found {text!r}, allowed: {', '.join(allowed)}")
        return text


def _unknown(name: str, spelled: Mapping[str, str]) -> str:
    lower = name.lower()
    if lower.startswith("kafka.") or lower == "bootstrap.servers":
        return (
            f"option {name!r} is Kafka's; a store is named by `path`, "
            "brokers by `rocketmq.namesrv.addr`"
        )
    near = get_close_matches(lower, spelled, 1, 0.0)
    return f"unknown option {name!r}; the nearest known one is {spelled[near[0]]}"


def parse_connection(options: Given) -> Connection:
    """How live brokers are reached.

    Raises:
        OptionError: no address, a key without its secret, or TLS files without TLS.
    """
    addresses = [
        piece.strip()
        for piece in re.split("[;,]", options.text("rocketmq.namesrv.addr"))
        if piece.strip()
    ]
    for address in addresses:
        if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):\d{1,5}", address):
            raise OptionError(
                f"rocketmq.namesrv.addr: found {address!r}, allowed is host:port;host:port"
            )
    if not addresses:
        raise OptionError("rocketmq.namesrv.addr: no address is given")
    if bool(options.text("rocketmq.acl.accessKey")) != bool(options.text("rocketmq.acl.secretKey")):
        raise OptionError("rocketmq.acl.accessKey and rocketmq.acl.secretKey go together")
    tls = None
    if options.flag("rocketmq.tls.enable", False):
        tls = TlsFiles(
            verify=options.flag("rocketmq.tls.verify", True),
            ca=options.text("rocketmq.tls.ca"),
            cert=options.text("rocketmq.tls.cert"),
            key=options.text("rocketmq.tls.key"),
            key_password=options.text("rocketmq.tls.keyPassword"),
        )
        if tls.key and not tls.cert:
            raise OptionError("rocketmq.tls.key needs rocketmq.tls.cert")
    else:
        names = (name for name in CONNECTION if name.startswith("rocketmq.tls."))
        given = [name for name in options.has(*names) if name != "rocketmq.tls.enable"]
        if given:
            raise OptionError(f"{given[0]} needs rocketmq.tls.enable=true")
    return Connection(
        name_servers=";".join(addresses),
        access_key=options.text("rocketmq.acl.accessKey"),
        secret_key=options.text("rocketmq.acl.secretKey"),
        security_token=options.text("rocketmq.acl.securityToken"),
        tls=tls,
        timeout_ms=max(options.duration_ms("rocketmq.timeout", DEFAULT_TIMEOUT_MS), 1),
        brokers=tuple(options.words("rocketmq.brokers")),
        # A source knows only the first, a sink the second.
        read_timeout_ms=options.duration_ms(READ_TIMEOUT, DEFAULT_READ_TIMEOUT_MS),
        delivery_timeout_ms=options.duration_ms(DELIVERY_TIMEOUT, DEFAULT_DELIVERY_TIMEOUT_MS),
    )


def parse_paths(text: str) -> tuple[str, ...]:
    """The store directories of the option ``path``: one, several with commas, or a JSON list.

    Raises:
        OptionError: the text begins like a JSON list and is not one.
    """
    if not text:
        return ()
    if text.startswith("["):
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None  # a glob may begin with a bracket
        if isinstance(parsed, list):
            if not all(isinstance(path, str) and path for path in parsed):
                raise OptionError(f"path: {text!r} is no list of directories")
            return tuple(parsed)
    return tuple(path.strip() for path in text.split(",") if path.strip())
