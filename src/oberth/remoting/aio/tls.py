"""TLS on a connection whose first bytes have already been read.

asyncio can only start TLS before it has read anything; here plain text and TLS share a port and the
first byte decides. So the handshake runs over memory buffers, on asyncio and uvloop alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from oberth.errors import OptionError
from oberth.remoting.command import Buffer
from oberth.wall_clock import now_ms

TEST_CERTIFICATE_DAYS: Final = 365
"""How long a certificate is valid that was made because none was given."""

KEPT_CERTIFICATE_DAYS: Final = 3650
"""The same for one that is kept in a file."""

ContextSource: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext | None]
"""A context, or what makes one when the first TLS handshake comes; a thread calls it."""

_MAKING: Final = threading.Lock()


class LateContext:
    """A context that a thread makes when the first handshake comes, so that the loop goes on.

    Args:
        make: the context, None if it cannot be had; may take long.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext | None]) -> None:
        self._make = make
        self._making: asyncio.Future[ssl.SSLContext | None] | None = None

    def on_made(self, call: Callable[[ssl.SSLContext | None, BaseException | None], None]) -> None:
        """Have ``call(context, error)`` called in a later turn of the loop; one of them is None."""
        making = self._making
        if making is None or (making.done() and making.exception() is not None):
            making = self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        making.add_done_callback(lambda done: _tell(done, call))


def _tell(
    done: asyncio.Future[ssl.SSLContext | None],
    call: Callable[[ssl.SSLContext | None, BaseException | None], None],
) -> None:
    if not done.cancelled():  # the loop ends
        error = done.exception()
        call(None if error is not None else done.result(), error)


class TlsMode(Enum):
    """What a server accepts. RocketMQ: ``TlsMode``, key ``tls.server.mode``."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


def load_server_context(
    cert_path: str, key_path: str = "", trust_cert_path: str = ""
) -> ssl.SSLContext:
    """A server's context from PEM files; with ``trust_cert_path`` clients must show a certificate.

    Raises:
        OptionError: a file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_path, key_path or None)
        if trust_cert_path:
            context.load_verify_locations(trust_cert_path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"TLS certificate {cert_path}, key {key_path or cert_path}: {error}"
        ) from None
    return context


def load_client_context(trust_cert_path: str = "") -> ssl.SSLContext:
    """What a server's own requests are encrypted with.

    Args:
        trust_cert_path: PEM certificates by which the peer's is judged, which must name its
            address; empty: nobody is authenticated, as with RocketMQ's ``tls.client.authServer``
            unset.

    Raises:
        OptionError: the file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not trust_cert_path:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(trust_cert_path)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"TLS certificates {trust_cert_path}: {error}") from None
    return context


def self_signed_context() -> ssl.SSLContext | None:
    """A context with a certificate made on the spot, one for the process.

    RocketMQ's test mode, its default: encrypted, but nobody is authenticated. None without the
    ``cryptography`` package. Takes some 50 ms, so it is for the first handshake, not for the start,
    and for a thread, not for the loop (see `LateContext`).
    """
    with _MAKING:
        return _self_signed_context()


@functools.cache
def _self_signed_context() -> ssl.SSLContext | None:
    # For the first handshake, not for everybody's import.
    import tempfile  # noqa: PLC0415 - for the first certificate

    pem = make_certificate(TEST_CERTIFICATE_DAYS)
    if pem is None:
        return None
    # load_cert_chain reads files only. The folder is for this user alone and gone right after.
    with tempfile.TemporaryDirectory(prefix="oberth-tls-") as folder:
        path = Path(folder) / "server.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
    return context


def make_certificate(days: int) -> bytes | None:
    """Key and self-signed certificate in PEM, for localhost; None without ``cryptography``."""
    try:
        from cryptography import x509  # noqa: PLC0415 - for the first certificate
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - for the first certificate
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - for the first certificate
    except ImportError:
        return None
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - for the first certificate
    from ipaddress import ip_address  # noqa: PLC0415 - for the first certificate

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "oberth")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName("localhost"),
                    *(x509.IPAddress(ip_address(host)) for host in ("127.0.0.1", "::1")),
                ]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def kept_context(path: Path) -> ssl.SSLContext | None:
    """A context with a self-signed certificate that is kept in a file, so that clients may pin it.

    The file is made when it is missing, or so old that its certificate has expired; only this user
    may read it.
    None without the ``cryptography`` package.

    Raises:
        OptionError: the file holds no certificate with its key.
        OSError: it cannot be written.
    """
    if (
        not path.exists()
        or now_ms() / 1000 - path.stat().st_mtime > (KEPT_CERTIFICATE_DAYS - 1) * 86400
    ):
        pem = make_certificate(KEPT_CERTIFICATE_DAYS)
        if pem is None:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(path.name + ".new")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    return load_server_context(str(path))


def server_context(
    mode: TlsMode, cert_path: str = "", key_path: str = "", trust_cert_path: str = ""
) -> ContextSource | None:
    """What ``ServerOptions.tls_context`` should be: files if they are given, else the test mode's.

    Raises:
        OptionError: see ``load_server_context``.
    """
    if mode is TlsMode.DISABLED:
        return None
    if cert_path:
        return load_server_context(cert_path, key_path, trust_cert_path)
    return self_signed_context


EMPTY_RECORDS_MAX: Final = 256
"""Records of a connection that carry no data: its handshakes, changes of keys, alerts."""

RECORD_HEAD_SIZE: Final = 5
"""Type, version, and in the last two bytes the length of what follows."""

RECORDS_AT_ONCE: Final = 64
"""Records between two looks at how many carried nothing."""

RECORDS_A_TURN: Final = 2048
"""Records that one call reads, some 2 us each: one read of a socket may bring 11 000."""

ENCRYPTED_A_TURN: Final = 1024 * 1024
"""Bytes of answers that one turn of the loop encrypts for a connection: some 3 ms."""


class ServerTls:
    """The server's side of one TLS connection, without a socket.

    Feed it what the socket brought; take what is to be written. Both ends of plain text are bytes.
    While there is `has_more` of what came, it wants another call in the next turn of the loop.
    Records are counted: to change the keys takes 27 bytes of a peer and up to 26 us here, which is
    255 ms for what one read of a socket may bring.
    """

    __slots__ = (
        "_empty", "_head", "_incoming", "_late", "_object", "_outgoing", "_rest", "_shaken",
        "_unsent",
    )  # fmt: skip

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False
        self._unsent: list[bytes] = []
        self._empty = 0  # records that came, less those that had data
        self._head = b""  # of a record, while it is not whole
        self._rest = 0  # bytes of the last record that are yet to come
        self._late = b""  # records that came and are for the next call

    @property
    def is_shaken(self) -> bool:
        """Whether the handshake is done."""
        return self._shaken

    @property
    def has_more(self) -> bool:
        """Whether records have come that no call has read yet."""
        return bool(self._late)

    def receive(self, data: bytes | memoryview) -> tuple[bytes, bool]:
        """Plain text that ``data`` completes, and whether the peer ended the connection.

        Of more than RECORDS_A_TURN records the others are for the next call, see `has_more`.

        Raises:
            ssl.SSLError: the handshake failed, a record is broken, or more than EMPTY_RECORDS_MAX
                carried nothing.
        """
        pieces: list[bytes] = []
        ended = False
        if self._late:
            data, self._late = self._late + data, b""
        for part, records in self._parts(data):
            self._incoming.write(part)
            self._empty += records
            if self._shaken or self._shake():
                had = len(pieces)
                ended = self._read_into(pieces)
                self._empty -= len(pieces) - had
            if ended:
                break
            if self._empty > EMPTY_RECORDS_MAX:
                raise ssl.SSLError(f"more than {EMPTY_RECORDS_MAX} TLS records that carry nothing")
        return b"".join(pieces), ended

    def _parts(self, data: bytes | memoryview) -> Iterator[tuple[bytes | memoryview, int]]:
        """``data``, cut behind every RECORDS_AT_ONCE records, and how many begin in each part.

        What follows RECORDS_A_TURN of them is kept.
        """
        start, count, at, size = 0, 0, self._rest, len(data)
        left = RECORDS_A_TURN
        if self._head:
            at = RECORD_HEAD_SIZE - len(self._head)
            head = self._head + data[:at]
            if len(head) < RECORD_HEAD_SIZE:
                self._head = head
                yield data, 0
                return
            at += int.from_bytes(head[-2:], "big")
            count = 1
        while at + RECORD_HEAD_SIZE <= size:
            at += RECORD_HEAD_SIZE + (data[at + 3] << 8 | data[at + 4])
            count += 1
            if count == RECORDS_AT_ONCE:
                yield data[start:at], count
                start, count = min(at, size), 0
                left -= RECORDS_AT_ONCE
                if left <= 0:
                    self._head, self._rest = b"", max(at - size, 0)
                    self._late = bytes(data[start:])
                    return
        # Bytes of its own: the buffer that was read into is used again.
        self._head, self._rest = bytes(data[at:]), max(at - size, 0)
        if start < size:
            yield data[start:], count

    def _shake(self) -> bool:
        """Whether the handshake has just ended; then what waits is sent."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._shaken = True
        for plain in self._unsent:
            self._object.write(plain)
        self._unsent.clear()
        return True

    def _read_into(self, pieces: list[bytes]) -> bool:
        """Append the plain text that is whole, a record each; whether the peer has ended."""
        while True:
            try:
                piece = self._object.read(65536)
            except ssl.SSLWantReadError:
                return False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return True
            if not piece:
                return True
            pieces.append(piece)

    def send(self, plain: bytes) -> None:
        """Encrypt ``plain``; the records are in ``take_outgoing``."""
        if self._shaken:
            self._object.write(plain)
        else:
            self._unsent.append(plain)

    def send_some(self, pieces: list[Buffer]) -> list[Buffer]:
        """`send` the first ENCRYPTED_A_TURN bytes of some pieces; what is left of them."""
        room = ENCRYPTED_A_TURN
        for number, piece in enumerate(pieces):
            if len(piece) > room:
                rest = memoryview(piece)
                if room:
                    self.send(bytes(rest[:room]))
                return [rest[room:], *pieces[number + 1 :]]
            self.send(bytes(piece))
            room -= len(piece)
        return []

    def close(self) -> None:
        """Tell the peer that no more comes."""
        # The peer's own farewell has not come yet, or never will: nobody waits for it here.
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()

    def take_outgoing(self) -> bytes:
        """Bytes for the socket: handshake messages and records."""
        return self._outgoing.read()
