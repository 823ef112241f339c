"""Signatures of requests, for brokers that ask for an access key.

Content: the values of all ext fields but ``Signature``, in the order of their names, then the body.
``Signature`` is the Base64 of its HMAC-SHA1. RocketMQ: AclClientRPCHook, AclSigner.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from oberth.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """Who signs. RocketMQ: SessionCredentials."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def sign(self, request: RemotingCommand) -> None:
        """Put key and signature into the request's ext fields.

        A request that is sent again is signed again: the old signature is not part of the content.
        """
        fields = request.ext_fields
        if fields is None:
            fields = request.ext_fields = {}
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature(fields, request.body_bytes(), self.secret_key)


def signature(ext_fields: dict[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a request without one."""
    content = "".join([ext_fields[name] for name in sorted(ext_fields)]).encode() + body
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()
