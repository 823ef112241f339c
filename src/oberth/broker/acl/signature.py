"""Signatures of requests: what is signed, and whether a signature is right.

Content: the values of all ext fields but ``Signature``, in the order of their names, then the body.
``Signature`` is the Base64 of its HMAC-SHA1 under the secret key. It covers no time and no number,
so whoever can read the connection can repeat a request: TLS is what keeps others from reading.
RocketMQ: AclUtils, AclSigner.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def content(fields: Mapping[str, str], body: bytes, without: str = "") -> bytes:
    """What is signed; ``without`` names one more field that is left out."""
    text = "".join(
        [fields[name] for name in sorted(fields) if name not in (SIGNATURE, without)]
    ).encode("utf-8", "replace")
    return text + body if body else text


def sign(signed: bytes, secret_key: bytes) -> str:
    """The signature of a content."""
    return base64.b64encode(hmac.digest(secret_key, signed, "sha1")).decode("ascii")


def is_signed(request: RemotingCommand, secret_key: bytes) -> bool:
    """Whether a request carries the right signature; takes the same time wherever it differs.

    Some releases leave ``_UNIQUE_KEY_QUERY`` out of what they sign for QUERY_MESSAGE, and others do
    not: either is right.
    """
    fields = request.fields
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    body = request.body_bytes()
    right = sign(content(fields, body), secret_key).encode("ascii")
    if hmac.compare_digest(given, right):
        return True
    if request.code != RequestCode.QUERY_MESSAGE or UNIQUE_KEY_QUERY not in fields:
        return False
    right = sign(content(fields, body, UNIQUE_KEY_QUERY), secret_key).encode("ascii")
    return hmac.compare_digest(given, right)
