"""AddressPattern: which addresses a white list or a policy means, without their ports.

    written                meant
    *                      every address
    192.168.0.7, ::1       this one
    192.168.0.0/16         this network
    192.168.*              what begins so; a * stands for the rest
    192.168.{1,2}.*        one of these numbers
    192.168.1.1-50         these numbers, both ends included

RocketMQ: RemoteAddressStrategyFactory, IPAddressUtils.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network
from typing import TypeAlias

from oberth.errors import OptionError

AddressMatcher: TypeAlias = Callable[[str], bool]


def address_matcher(pattern: str) -> AddressMatcher:
    """A function that tells whether an address is meant.

    Raises:
        OptionError: the pattern is none of those above.
    """
    pattern = pattern.strip()
    if pattern == "*":
        return lambda address: True
    try:
        if "/" in pattern:
            network = ip_network(pattern, strict=False)
            return lambda address: _is_in(address, network)
        wanted = ip_address(pattern)
    except ValueError:
        pass
    else:
        return lambda address: _number(address) == wanted
    parts = [_part(text, pattern) for text in _split(pattern)]
    if len(parts) < 4 and parts[-1] is not None:
        raise OptionError(f"address pattern {pattern[:80]!r}: {len(parts)} parts, allowed 4")
    if len(parts) > 4:
        raise OptionError(f"address pattern {pattern[:80]!r}: {len(parts)} parts, allowed 4")
    return lambda address: _fits(address, parts)


def matches_any(matchers: Iterable[AddressMatcher], address: str) -> bool:
    """Whether any of them means the address."""
    return any(matcher(address) for matcher in matchers)


def _number(address: str) -> object:
    try:
        return ip_address(address)
    except ValueError:
        return None


def _is_in(address: str, network: object) -> bool:
    number = _number(address)
    return number is not None and number in network  # type: ignore[operator]


def _split(pattern: str) -> list[str]:
    return pattern.split(".")


def _part(text: str, pattern: str) -> frozenset[int] | None:
    """The numbers that one part allows; None for all."""
    if text == "*":
        return None
    choices = text[1:-1].split(",") if text.startswith("{") and text.endswith("}") else [text]
    numbers: set[int] = set()
    for choice in choices:
        first, dash, last = choice.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and int(end) <= 255 for end in ends):
            raise OptionError(
                f"address pattern {pattern[:80]!r}: {text[:40]!r}, allowed are *, 0 to 255, "
                "ranges a-b and lists {a,b}"
            )
        numbers.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(numbers)


def _fits(address: str, parts: list[frozenset[int] | None]) -> bool:
    numbers = address.split(".")
    if len(numbers) != 4 or not all(n.isascii() and n.isdigit() for n in numbers):
        return False
    return all(
        allowed is None or int(number) in allowed
        for number, allowed in zip(numbers, parts, strict=False)
    )
