"""ConsoleConfig: how one console is served, and to whom."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field
from typing import Final

from oberth.client.config import ClientConfig
from oberth.errors import OptionError

DEFAULT_PORT: Final = 8082
TOKEN_LENGTH_MIN: Final = 16
"""Characters; a shorter token could be guessed."""


class Login(enum.StrEnum):
    """Who may see the console."""

    NONE = "none"
    TOKEN = "token"
    USERS = "users"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """How a console is served.

    Attributes:
        client: how the cluster is reached, and as whom where nobody has logged in as a user.
        listen_host: an address of this machine.
        login: NONE is for loopback only; TOKEN wants ``token``; USERS wants a user of the brokers,
            who then signs the requests of that session.
        token: of Login.TOKEN.
        host_names: names that a browser may call the console by, beside addresses and localhost.
        allow_writes: whether anything can be changed.
        audit_path: where writes are noted; "" if none are allowed.
        sample_interval_s: between two looks at the cluster.
        is_tls: whether browsers come by https.
        schemas: a directory with schemas of bodies, or "".
        prometheus: URL of a server that scrapes the brokers, for plots of more than an hour, or "".
        prometheus_token: the bearer token that it wants, or "".
        stores: roots of stores on this machine that may be asked in SQL.
    """

    client: ClientConfig
    listen_host: str = "127.0.0.1"
    login: Login = Login.NONE
    token: str = field(default="", repr=False)
    host_names: tuple[str, ...] = ()
    allow_writes: bool = False
    audit_path: str = ""
    sample_interval_s: float = 5.0
    is_tls: bool = False
    stores: tuple[str, ...] = ()
    schemas: str = ""
    prometheus: str = ""
    prometheus_token: str = field(default="", repr=False)

    def check(self) -> None:
        """Refuse what would be open to everybody.

        Raises:
            OptionError: no login beyond loopback, a short token, writes that nothing notes, or
                stores for users of the brokers, whose policies the files do not know.
        """
        if self.login is Login.NONE and not is_loopback(self.listen_host):
            raise OptionError(
                f"{self.listen_host} can be reached from other machines: "
                "a login is needed, --login token or --login users"
            )
        if self.login is Login.TOKEN and len(self.token) < TOKEN_LENGTH_MIN:
            raise OptionError(
                f"a token of {len(self.token)} characters, at least {TOKEN_LENGTH_MIN} are needed"
            )
        if self.allow_writes and not self.audit_path:
            raise OptionError("writes are allowed only where an audit log notes them")
        if self.stores and self.login is Login.USERS:
            raise OptionError(
                "--store shows everything in a store to everybody who logs in, "
                "whatever a user of the brokers may see: not with --login users"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
