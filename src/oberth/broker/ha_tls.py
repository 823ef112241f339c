"""TLS on the HA port, between brokers of ours: each end shows a certificate and checks the other's.

Three options name PEM files: ``haTlsCertPath`` and ``haTlsKeyPath`` this broker's certificate,
``haTlsTrustCertPath`` those by which the peer's is judged. Where they are set nothing is sent or
believed in plain text. Apache's brokers know no TLS there, so a pair with one of them does without.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from oberth.errors import OptionError, RemoteProtocolError
from oberth.remoting.aio.tls import ServerTls, load_server_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.ha_connection import HAConnection

HANDSHAKE: Final = 0x16
"""The first byte of TLS. A report begins with 0, as no log reaches 2**56."""


def master_context(config: BrokerConfig) -> ssl.SSLContext:
    """For the end that listens: only peers with a certificate that is trusted.

    Raises:
        OptionError: a file cannot be read or is not what it should be.
    """
    return load_server_context(
        config.ha_tls_cert_path, config.ha_tls_key_path, config.ha_tls_trust_cert_path
    )


def slave_context(config: BrokerConfig) -> ssl.SSLContext:
    """For the end that dials: the master's certificate must be trusted and name its address.

    Raises:
        OptionError: a file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(config.ha_tls_trust_cert_path)
        context.load_cert_chain(config.ha_tls_cert_path, config.ha_tls_key_path or None)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"TLS of the HA port, {config.ha_tls_cert_path}, "
            f"{config.ha_tls_key_path or config.ha_tls_cert_path}, "
            f"{config.ha_tls_trust_cert_path}: {error}"
        ) from None
    return context


class TlsWriter:
    """A master's end of one connection: takes what came, and encrypts what goes.

    asyncio's own TLS would shake hands before the peer is judged by its address and counted.

    Args:
        connection: the socket's.
        context: see `master_context`.
    """

    def __init__(self, connection: HAConnection, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._tls = ServerTls(context)
        self._begun = False

    def receive(self, data: bytes | memoryview) -> bytes:
        """The plain bytes that came to be readable with these.

        Raises:
            RemoteProtocolError: the peer speaks no TLS, has no trusted certificate, or has ended.
        """
        if not self._begun and data[0] != HANDSHAKE:
            raise RemoteProtocolError(
                "the peer speaks plain text, but this broker takes TLS only (haTlsCertPath)"
            )
        self._begun = True
        try:
            plain, ended = self._tls.receive(data)
        except ssl.SSLError as error:
            self._flush()
            raise RemoteProtocolError(f"TLS: {error}") from None
        self._flush()
        if ended and not plain:
            raise RemoteProtocolError("the peer ended the TLS connection")
        return plain

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._tls.send(data)
        self._flush()

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send pieces, one behind the other."""
        self.write(b"".join(parts))

    def _flush(self) -> None:
        outgoing = self._tls.take_outgoing()
        if outgoing:
            self._connection.write(outgoing)
