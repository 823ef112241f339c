"""Who calls: the header ``authorization`` of gRPC clients.

    MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>

The signature covers the text of the header ``x-mq-date-time``, as ``yyyyMMdd'T'HHmmss'Z'``, of the
client for Rust as RFC 3339 with the distance to UTC, and neither the call nor its content. Somebody
who reads one call can therefore make others, until the date is too old where its age is checked.
Only TLS keeps others from reading calls.
RocketMQ: DefaultAuthenticationContextBuilder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from oberth.proxy.codes import Code, StatusError

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
DATE_FORMAT: Final = "%Y%m%dT%H%M%SZ"
DATE_MAX: Final = 64
"""Characters of a date that are looked at."""

FIELDS_MAX: Final = 8
SIGNERS_KEPT: Final = 1024
KEPT_SIZE_MAX: Final = 512
"""Characters of the headers of a signer that is kept."""

ACCESS_KEY_MAX: Final = 512
"""Characters of a user's name: one that is known keeps its client's name."""


class Signer(NamedTuple):
    """The identity that a call claims; nothing of it is checked.

    Attributes:
        access_key: name of the user; "" if the call is not signed.
        content: the bytes that were signed.
        signature: HMAC-SHA1 of it.
    """

    access_key: str
    content: bytes
    signature: bytes


NOBODY: Final = Signer("", b"", b"")


def signer_of(metadata: Mapping[str, str]) -> Signer:
    """The identity that a call's headers claim; NOBODY where they hold none that can be read.

    Clients without a user send the header, too, with an empty Credential.
    """
    text = metadata.get(AUTHORIZATION, "")
    if not text:
        return NOBODY
    date = metadata.get(DATE_TIME, "")
    return (_signer if len(text) + len(date) <= KEPT_SIZE_MAX else _read_signer)(text, date)


def _read_signer(text: str, date: str) -> Signer:
    _, _, rest = text.partition(" ")
    fields = dict(_pair(each) for each in rest.split(",", FIELDS_MAX)[:FIELDS_MAX])
    access_key = fields.get("Credential", "").partition("/")[0]
    try:
        signature = bytes.fromhex(fields.get("Signature", ""))
    except ValueError:
        return NOBODY
    if not access_key or len(access_key) > ACCESS_KEY_MAX:
        return NOBODY
    return Signer(access_key, date.encode("utf-8", "replace"), signature)


_signer: Final = lru_cache(SIGNERS_KEPT)(_read_signer)
"""Clients sign each second anew, or less often."""


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.strip().partition("=")
    return name, value.strip()


def check_age(signer: Signer, now_ms: int, age_max_s: int) -> None:
    """Whether a signed date is near enough to now, in UTC.

    Raises:
        StatusError: UNAUTHORIZED: it is not, or is no date.
    """
    text = signer.content.decode("utf-8", "replace")
    try:
        if text[4:5] == "-":
            date = datetime.fromisoformat(text[:DATE_MAX])
            if date.tzinfo is None:
                raise ValueError("a date without its distance to UTC")
        else:
            date = datetime.strptime(text, DATE_FORMAT).replace(tzinfo=UTC)
        signed = date.timestamp()
    except (ValueError, OverflowError):
        raise StatusError(
            Code.UNAUTHORIZED,
            f"{DATE_TIME} {text[:40]!r} is no date, allowed yyyyMMdd'T'HHmmss'Z' and RFC 3339",
        ) from None
    if abs(now_ms / 1000 - signed) > age_max_s:
        raise StatusError(
            Code.UNAUTHORIZED,
            f"{DATE_TIME} {text} is {now_ms / 1000 - signed:.0f} s old, allowed {age_max_s} s",
        )
