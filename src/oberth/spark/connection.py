"""How drivers and tasks reach live brokers: the options ``rocketmq.*`` as a value.

It travels inside pickled readers and writers; its text never has the secrets. TLS contexts do not
pickle, so they are made of files wherever they are needed.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oberth.errors import OptionError

if TYPE_CHECKING:
    from oberth.client.config import ClientConfig

DEFAULT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a TLS connection needs, by path; "" is none.

    Attributes:
        verify: whether the brokers' certificates have to be signed by a known authority.
        ca: certificates of authorities; "": the system's.
        cert, key: this client's own.
        key_password: of the key.
    """

    verify: bool = True
    ca: str = ""
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """A client's context.

        Raises:
            OptionError: a file cannot be read or is not what it should be.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # Brokers are found by address; their certificates name whatever they like.
            context.check_hostname = False
            if not self.verify:
                context.verify_mode = ssl.CERT_NONE
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None, self.key_password or None)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"rocketmq.tls: authority {self.ca or '(system)'}, certificate "
                f"{self.cert or '(none)'}: {error}"
            ) from None
        return context


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster.

    Attributes:
        name_servers: ``host:port;host:port``.
        access_key, secret_key, security_token: sign every request; "" for none.
        tls: None: no TLS.
        timeout_ms: of one request.
    """

    name_servers: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: TlsFiles | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    def client_config(self) -> ClientConfig:
        """The client's configuration.

        Raises:
            OptionError: a file for TLS cannot be used.
        """
        from oberth.client.config import ClientConfig

        return ClientConfig(
            namesrv_addr=self.name_servers,
            access_key=self.access_key,
            secret_key=self.secret_key,
            security_token=self.security_token,
            tls_context=self.tls.context() if self.tls is not None else None,
            mq_client_api_timeout_ms=self.timeout_ms,
            connect_timeout_ms=self.timeout_ms,
        )
