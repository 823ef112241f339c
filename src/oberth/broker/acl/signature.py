"""Signatures of requests: what is signed, and whether a signature is right.

Content: the values of all ext fields but ``Signature``, in the order of their names, then the body.
``Signature`` is the Base64 of its HMAC-SHA1 under the secret key. It covers neither code and flags
nor names of fields, nor a time or number: a reader of the connection can repeat a request, and
send a captured 351 as 215. TLS is what keeps others from reading.
RocketMQ: AclUtils, AclSigner.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final

from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class SecretKey:
    """A key, ready to sign: what HMAC makes of the key itself is computed once.

    Copying the two digests takes 0.7 us where ``hmac.digest`` takes 1.7 (OpenSSL 3, CPython 3.11).
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        block = hashlib.sha1(secret).digest() if len(secret) > _BLOCK_SIZE else secret
        block = block.ljust(_BLOCK_SIZE, b"\0")
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in block))

    def sign(self, signed: bytes) -> bytes:
        """The signature of a content, in Base64."""
        inner = self._inner.copy()
        inner.update(signed)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return _base64(outer.digest(), newline=False)

    def has_signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether ``Signature`` is right; takes the same time wherever it differs.

        `sign` and `content` in one, since every request of a client comes through here: 1.4 us.
        """
        found = tuple(fields)
        pick = _PICKS.get(found) or _pick(found)
        try:
            text, given = "".join(pick(fields)).encode(), fields[SIGNATURE].encode()
        except UnicodeEncodeError:  # halves of surrogate pairs: with "replace" all take 0.2 us more
            text = "".join(pick(fields)).encode("utf-8", "replace")
            given = fields[SIGNATURE].encode("utf-8", "replace")
        except KeyError:
            return False
        inner = self._inner.copy()
        inner.update(text)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return _equal(given, _base64(outer.digest(), newline=False))


_equal: Final = hmac.compare_digest
_base64: Final = binascii.b2a_base64
_BLOCK_SIZE: Final = 64
_PICKS_MAX: Final = 1024
_NAMES_MAX: Final = 40
_NAMES_SIZE_MAX: Final = 800
"""Characters of the names of one kind of header. RocketMQ's longest one has 24 names with 250."""
Pick = Callable[[Mapping[str, str]], Iterable[str]]
_PICKS: Final[dict[tuple[str, ...], Pick]] = {}
"""Names of fields as they come → what takes the values that are signed, in order. Clients send few
kinds of headers, and sorting one takes longer than signing it. What is kept here came before
anybody knew whether its signature is right; so long headers are not kept: at most 10 MB in all."""


def content(fields: Mapping[str, str], body: bytes, without: str = "") -> bytes:
    """What is signed; ``without`` names one more field that is left out."""
    found = tuple(name for name in fields if name != without) if without else tuple(fields)
    text = "".join((_PICKS.get(found) or _pick(found))(fields)).encode("utf-8", "replace")
    return text + body if body else text


def _pick(found: tuple[str, ...]) -> Pick:
    # Of a single name it gives no tuple but the text, whose joined characters are the text.
    order = sorted(name for name in found if name != SIGNATURE)
    pick: Pick = itemgetter(*order) if order else _nothing
    if len(found) <= _NAMES_MAX and sum(map(len, found)) <= _NAMES_SIZE_MAX:
        if len(_PICKS) >= _PICKS_MAX:
            _PICKS.clear()
        _PICKS[found] = pick
    return pick


def _nothing(fields: Mapping[str, str]) -> tuple[str, ...]:
    del fields
    return ()


def is_signed(request: RemotingCommand, key: SecretKey) -> bool:
    """Whether a request carries the right signature.

    Some releases leave ``_UNIQUE_KEY_QUERY`` out of what they sign for QUERY_MESSAGE, and others do
    not: either is right.
    """
    fields = request.fields
    body = request.body_bytes()
    if key.has_signed(fields, body):
        return True
    if request.code != RequestCode.QUERY_MESSAGE or UNIQUE_KEY_QUERY not in fields:
        return False
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(given, key.sign(content(fields, body, UNIQUE_KEY_QUERY)))
