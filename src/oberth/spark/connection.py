"""How drivers and tasks reach live brokers: the options ``rocketmq.*`` as a value.

It travels inside pickled readers and writers; its text never has the secrets. TLS contexts do not
pickle, so they are made of files wherever they are needed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oberth.errors import MQClientError, OptionError, RemotingError

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.client.config import ClientConfig

DEFAULT_TIMEOUT_MS: Final = 5_000
DEFAULT_READ_TIMEOUT_MS: Final = 120_000
DEFAULT_DELIVERY_TIMEOUT_MS: Final = DEFAULT_READ_TIMEOUT_MS
"""How long a read or a send is tried again: as long as Kafka's clients do, and longer than a
broker takes to start."""


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
        brokers: names of those that must be there when a read or a send begins.
        read_timeout_ms: how long a broker that reads need may be away.
        delivery_timeout_ms: how long a batch of messages is sent again until it is acknowledged.
    """

    name_servers: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: TlsFiles | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    brokers: tuple[str, ...] = ()
    read_timeout_ms: int = DEFAULT_READ_TIMEOUT_MS
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS

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


class Patience:
    """Waits between attempts, longer each time, until a time is over that begins when it is made.

    Args:
        limit_ms: the time.
        pause_s: the first pause.
        pause_max_s: the longest.
    """

    def __init__(self, limit_ms: int, pause_s: float, pause_max_s: float) -> None:
        self._limit_s = limit_ms / 1000
        self._pause_s = pause_s
        self._pause_max_s = pause_max_s
        self._begin = time.monotonic()
        self._paused_s = 0.0

    async def wait(self) -> bool:
        """Whether to try again: after a pause; False without one when the time is over."""
        over = max(time.monotonic() - self._begin, self._paused_s)
        if over >= self._limit_s:
            return False
        pause = min(self._pause_s, self._limit_s - over)
        await asyncio.sleep(pause)
        self._paused_s += pause
        self._pause_s = min(self._pause_s * 2, self._pause_max_s)
        return True


async def check_brokers(admin: Admin, connection: Connection) -> None:
    """Make sure that the name servers know the brokers that a connection names.

    Raises:
        MQClientError: one is not there; it may come back.
        RemotingError: no name server answers.
    """
    if not connection.brokers:
        return
    from oberth.client.instance import BROKER_NOT_EXIST

    known = (await admin.cluster_info()).broker_addr_table
    away = [name for name in connection.brokers if name not in known]
    if away:
        raise MQClientError(
            f"rocketmq.brokers names {', '.join(away)}, the brokers of {connection.name_servers} "
            f"are {', '.join(sorted(known)) or 'none'}",
            BROKER_NOT_EXIST,
        )


async def wait_for_brokers(admin: Admin, connection: Connection, patience: Patience) -> None:
    """`check_brokers`, as often as the patience allows.

    Raises:
        MQClientError, RemotingError: see there.
    """
    while True:
        try:
            await check_brokers(admin, connection)
        except (RemotingError, MQClientError) as error:
            if not may_come_back(error) or not await patience.wait():
                raise
        else:
            return


def may_come_back(error: Exception) -> bool:
    """Whether an error is that of a broker or name server which is away.

    A broker that starts again is gone from the name servers for a while, and with it the routes
    of topics that only it has.
    """
    if isinstance(error, MQClientError):
        from oberth.client.instance import BROKER_NOT_EXIST, NOT_FOUND_TOPIC

        return error.response_code in (BROKER_NOT_EXIST, NOT_FOUND_TOPIC)
    if not isinstance(error, RemotingError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True
