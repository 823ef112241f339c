"""SigningClient: what the broker itself asks of masters and name servers, signed.

RocketMQ: ``innerClientAuthenticationCredentials``.
"""

from __future__ import annotations

from oberth.broker.acl.signature import ACCESS_KEY, SIGNATURE, SecretKey, content
from oberth.remoting.aio.client import ClientOptions, RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import RemotingCommand


class SigningClient(RemotingClient):
    """A client whose requests are signed."""

    def __init__(
        self, processors: ProcessorTable, options: ClientOptions, access_key: str, secret_key: str
    ) -> None:
        super().__init__(processors, options)
        self._access_key = access_key
        self._key = SecretKey(secret_key.encode())

    async def invoke(
        self, addr: str, request: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """See RemotingClient."""
        fields = dict(request.fields)
        fields[ACCESS_KEY] = self._access_key
        fields[SIGNATURE] = self._key.sign(content(fields, request.body_bytes())).decode("ascii")
        request.ext_fields = fields
        return await super().invoke(addr, request, timeout_s)
