"""AccessControl: the gate in front of a broker's servers.

Off unless ``aclEnable`` (accounts of a ``plain_acl.yml``, as 4.x) or ``authenticationEnabled``
(users, as 5.x) is set. A request passes in this order, and what does not pass is answered with 16:

    accounts (4.x)                                users (5.x)
    1. from globalWhiteRemoteAddresses: passes    -
    2. AccessKey names an account                 AccessKey names an enabled user
    3. from its whiteRemoteAddress, or signed     signed
    4. all it needs is granted                    all it needs is granted, if authorizationEnabled;
                                                  else administration needs a Super user

Only what comes in over the servers passes the gate: calls that name servers or a master make on
connections that we opened do not. Of the 4.x file the gate keeps what was read last, should a
change of it not parse. RocketMQ: PlainAccessValidator, AuthenticationPipeline,
AuthorizationPipeline.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import logging
import os
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oberth.broker.acl.needs import Action, RealTopic, TooManyResourcesError, needs_of
from oberth.broker.acl.plain_acl import Account, PlainAcl, parse_plain_acl
from oberth.broker.acl.signature import ACCESS_KEY, SecretKey, is_signed
from oberth.broker.acl.users import SUPER, User, UserStore, user_of_json
from oberth.errors import ConfigFormatError, OptionError
from oberth.formats.properties import INNER_MULTI_DISPATCH
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import TURN_S, Asked, Left, ProcessorTable, PutOff
from oberth.remoting.bodies.admin import UserInfo
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

RELOAD_MS: Final = 1000
"""How often the file of accounts is looked at for changes."""

UNSETTLED_MAX: Final = 5
"""Looks in a row that find the file changed anew; at the last of them it is read all the same."""

REFUSAL_LOG_MS: Final = 1000
"""Of all refusals within this time one is logged, with the number of the others."""

GRANTED_MAX: Final = 20_000
"""Decisions about sends that are remembered."""

LOOKED_AT_BETWEEN: Final = 8
"""Requests that are looked at between two looks at the time."""

GRANTED_NAME_MAX: Final = 255
"""Characters of a topic in them."""

_SENDS: Final = frozenset({int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)})
"""Codes of nearly every send; both need the same. ``b`` is the topic, ``i`` the properties."""

PLAIN_ACL_NAME: Final = "plain_acl.yml"

_FileState = tuple[int, int, int]
_Grants = dict[tuple[str | None, str | None], SecretKey]
"""Access key and topic of sends → what they are signed with."""

_NOBODY: Final[_Grants] = {}


class AccessControl:
    """Decides about requests.

    All methods belong to the loop's thread. It does not protect the HA port, over which slaves read
    the log.

    Args:
        config: of the broker.
        directory: ``config/`` of the store.
        real_topic: see `needs.RealTopic`.
        files: where the directory is; None: the operating system's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        real_topic: RealTopic,
        files: FileSystem | None = None,
    ) -> None:
        if config.acl_enable and (config.authentication_enabled or config.authorization_enabled):
            raise OptionError(
                "aclEnable and authenticationEnabled: choose one, accounts of 4.x or users of 5.x"
            )
        if config.authorization_enabled and not config.authentication_enabled:
            raise OptionError("authorizationEnabled needs authenticationEnabled")
        self._config = config
        self._real_topic = real_topic
        self.users = UserStore(directory, files)
        self.path = Path(config.acl_file) if config.acl_file else directory / PLAIN_ACL_NAME
        self.plain = PlainAcl()
        self._plain_version = 0
        self._seen: _FileState | None = None
        self._changing: _FileState | None = None
        """The file at the last look, if it was not read then."""
        self._unsettled = 0
        self._look_at_ms = 0
        self._log_at_ms = 0
        self._unlogged = 0
        self._now_ms = 0
        self._granted: dict[str, _Grants] = {}
        """By host the sends that were granted, until anything changes: of these only the signature
        is looked at."""
        self._granted_count = 0
        self._granted_version = 0

    @property
    def is_enabled(self) -> bool:
        """Whether there is a gate at all."""
        return self._config.acl_enable or self._config.authentication_enabled

    @property
    def checks_users(self) -> bool:
        """Whether who passes the gate is a user and has signed; an account need not have."""
        return self._config.authentication_enabled

    @property
    def version(self) -> tuple[int, int]:
        """Another one when accounts, users or policies have changed."""
        return self._plain_version, self.users.version

    def load(self) -> None:
        """Read accounts and users; a broker that cannot must not serve.

        Raises:
            ConfigFormatError: a file cannot be read.
            OptionError: access control is on and nobody could ever get in.
        """
        self.users.load()
        if self._config.acl_enable:
            try:
                self._seen = self._state()
                self.plain = parse_plain_acl(self.path.read_bytes(), str(self.path))
            except OSError as error:
                raise OptionError(f"aclEnable: {self.path}: {error.strerror}") from None
        if self._config.init_authentication_user:
            name, password = user_of_json(
                self._config.init_authentication_user,
                "initAuthenticationUser",
                "username",
                "password",
            )
            if name not in self.users.users:
                self.users.create_user(UserInfo(username=name, password=password, user_type=SUPER))
        if self._config.authentication_enabled and not any(
            user.is_super and user.is_enabled for user in self.users.users.values()
        ):
            raise OptionError(
                "authenticationEnabled: there is no Super user; initAuthenticationUser="
                '{"username":"...","password":"..."} makes the first one'
            )

    def close(self) -> None:
        """Nothing is left to write: every change was written when it was made."""

    def on_time(self, now_ms: int) -> None:
        """Read the file of accounts again if it has changed, and then stayed until the next look.

        While somebody writes it in place it is empty, or ends early: few accounts, or none.
        """
        self._now_ms = now_ms
        if not self._config.acl_enable or now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + RELOAD_MS
        try:
            state = self._state()
            if state != self._seen and state != self._changing:
                self._changing = state
                self._unsettled += 1
                if self._unsettled < UNSETTLED_MAX:
                    return
            self._unsettled = 0
            if state == self._seen:
                return
            self._seen = state
            data = self.path.read_bytes()
            if self._state() != state:
                return  # the next look finds it changed, too
            self.plain = parse_plain_acl(data, str(self.path))
            self._plain_version += 1
            self._forget()
        except (OSError, ConfigFormatError) as error:
            _LOG.error(
                "the accounts that were read before stay in force, the file cannot be read: %s",
                error,
            )
        else:
            _LOG.warning(
                "%s has changed and was read again, it has %d accounts",
                self.path,
                len(self.plain.accounts),
            )

    def accounts_changed(self, plain: PlainAcl) -> None:
        """The file of accounts was written anew, and this is what it says."""
        self.plain = plain
        self._plain_version += 1
        self._seen = self._state()
        self._forget()

    def _state(self) -> _FileState:
        found = os.stat(self.path)
        return found.st_mtime_ns, found.st_size, found.st_ino

    # Decisions

    def refusal_of(self, host: str, request: RemotingCommand) -> str | None:
        """Why a request from an address is not served, or None."""
        if self._config.acl_enable:
            return self._plain_refusal(host, request)
        return self._user_refusal(host, request)

    def _plain_refusal(self, host: str, request: RemotingCommand) -> str | None:
        plain = self.plain
        if plain.is_white(host):
            return None
        access_key = request.fields.get(ACCESS_KEY)
        if not access_key:
            return f"No accessKey is configured, request from {host}"
        account = plain.accounts.get(access_key)
        if account is None:
            return _not_signed(access_key)
        white = account.white is not None and account.white(host)
        if not white and not is_signed(request, account.key):
            return _not_signed(access_key)
        refusal = self._account_refusal(account, request)
        if refusal is not None:
            return refusal
        if not white:
            self._remember(host, request, account.key)
        return None

    def _user_refusal(self, host: str, request: RemotingCommand) -> str | None:
        username = request.fields.get(ACCESS_KEY)
        if not username:
            return f"No accessKey is configured, request from {host}"
        user = self.users.users.get(username)
        if user is None or not user.is_enabled or not is_signed(request, user.key):
            return _not_signed(username)
        refusal = self._needs_of_user(user, host, request)
        if refusal is not None:
            return refusal
        self._remember(host, request, user.key)
        return None

    def unknown_signer(
        self, host: str, access_key: str, content: bytes, signature: bytes
    ) -> str | None:
        """Why nobody known has signed a content, or None.

        For protocols that sign another content than a command's; `needs_refusal` tells what the
        signer may do.

        Args:
            host: where it comes from.
            access_key: name of the user or account; may be empty.
            content: what was signed.
            signature: the HMAC-SHA1 of it under the secret key.
        """
        if not self.is_enabled:
            return None
        if self._config.acl_enable and self.plain.is_white(host):
            return None
        if not access_key:
            return f"No accessKey is configured, request from {host}"
        key: SecretKey | None = None
        if self._config.acl_enable:
            account = self.plain.accounts.get(access_key)
            if account is not None:
                if account.white is not None and account.white(host):
                    return None
                key = account.key
        else:
            user = self.users.users.get(access_key)
            if user is not None and user.is_enabled:
                key = user.key
        given = binascii.b2a_base64(signature, newline=False)
        if key is None or not hmac.compare_digest(given, key.sign(content)):
            return _not_signed(access_key)
        return None

    def needs_refusal(self, host: str, access_key: str, request: RemotingCommand) -> str | None:
        """Why a known signer may not ask for something, or None."""
        if not self.is_enabled:
            return None
        if self._config.acl_enable:
            if self.plain.is_white(host):
                return None
            account = self.plain.accounts.get(access_key)
            if account is None:
                return _not_signed(access_key)
            return self._account_refusal(account, request)
        user = self.users.users.get(access_key)
        if user is None or not user.is_enabled:
            return _not_signed(access_key)
        return self._needs_of_user(user, host, request)

    def may_publish(self, host: str, access_key: str, topic: str) -> bool:
        """Whether who has signed with an access key may send to a topic; yes where nobody must."""
        request = RemotingCommand(code=int(RequestCode.SEND_MESSAGE_V2), ext_fields={"b": topic})
        return self.needs_refusal(host, access_key, request) is None

    def _account_refusal(self, account: Account, request: RemotingCommand) -> str | None:
        if account.may_do_everything:
            return None
        try:
            needs = needs_of(request, self._real_topic)
        except TooManyResourcesError as error:
            return str(error)
        for need in needs:
            refusal = account.refusal_of(need)
            if refusal is not None:
                return refusal
        return None

    def _needs_of_user(self, user: User, host: str, request: RemotingCommand) -> str | None:
        if user.is_super:
            return None
        try:
            needs = needs_of(request, self._real_topic)
        except TooManyResourcesError as error:
            return str(error)
        if not self._config.authorization_enabled:
            needs = [need for need in needs if not need.actions & _CLIENT_ACTIONS]
        return self.users.refusal_of(user, needs, host)

    def _remember(self, host: str, request: RemotingCommand, key: SecretKey) -> None:
        """Have the next send like this one pass by its signature alone."""
        fields = request.ext_fields
        if fields is None or request.code not in _SENDS:
            return
        if len(fields.get("b") or "") > GRANTED_NAME_MAX:
            return  # no topic, which is for the send to say
        if self._granted_count >= GRANTED_MAX:
            self._forget()
        self._granted_count += 1
        self._granted.setdefault(host, {})[fields.get(ACCESS_KEY), fields.get("b")] = key

    def _forget(self) -> None:
        self._granted.clear()
        self._granted_count = 0

    # Gate

    def guard(self, table: ProcessorTable) -> ProcessorTable:
        """A table that serves what passes; the table itself when there is no gate."""
        return _GuardedTable(table, self) if self.is_enabled else table

    def admitted(
        self, channel: Channel, requests: list[RemotingCommand], until: float = inf
    ) -> tuple[list[RemotingCommand], int]:
        """The requests that pass; the others are answered.

        Args:
            channel: where they come from.
            requests: in their order.
            until: loop time from which no further ones are looked at.

        Returns:
            Those of the first that pass, and how many were looked at.
        """
        host = channel.remote.host
        admitted = None
        if self._granted_version != self.users.version:
            self._granted_version = self.users.version
            self._forget()
        granted = self._granted.get(host, _NOBODY)
        for number, request in enumerate(requests):
            if number and not number % LOOKED_AT_BETWEEN and _loop_time() >= until:
                return (requests[:number] if admitted is None else admitted), number
            fields = request.ext_fields
            if (
                fields is not None
                and request.code in _SENDS
                and (key := granted.get((fields.get(ACCESS_KEY), fields.get("b")))) is not None
                and INNER_MULTI_DISPATCH not in (fields.get("i") or "")
                and key.has_signed(fields, request.body_bytes())
            ):
                refusal = None
            else:
                refusal = self.refusal_of(host, request)
            if refusal is None:
                if admitted is not None:
                    admitted.append(request)
                continue
            if admitted is None:
                admitted = requests[:number]
            self._log(channel, request, refusal)
            channel.reply(
                request,
                create_response(
                    request,
                    ResponseCode.NO_PERMISSION,
                    f"org.apache.rocketmq.acl.common.AclException: {refusal}",
                ),
            )
        return (requests if admitted is None else admitted), len(requests)

    def _log(self, channel: Channel, request: RemotingCommand, refusal: str) -> None:
        if self._now_ms < self._log_at_ms:
            self._unlogged += 1
            return
        self._log_at_ms = self._now_ms + REFUSAL_LOG_MS
        _LOG.warning(
            "%s: code %d refused, %s; %d more since the last such line",
            channel.remote, request.code, refusal, self._unlogged,
        )  # fmt: skip
        self._unlogged = 0


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


_CLIENT_ACTIONS: Final = frozenset({Action.PUB, Action.SUB})
"""What anybody may do who is known, while nothing is authorized."""


class _GuardedTable(ProcessorTable):
    """A table whose requests pass the gate first."""

    def __init__(self, inner: ProcessorTable, access: AccessControl) -> None:
        super().__init__()
        self._inner = inner
        self._access = access
        self._put_off = PutOff(self._admit_late, inner.lasts)

    def dispatch(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Serve those that are admitted, in order."""
        self.dispatch_turn([(channel, requests)])

    def dispatch_turn(self, turn: Iterable[tuple[Channel, list[RemotingCommand]]]) -> None:
        """Serve those of one turn of the loop that are admitted.

        To look at what does not fit into `TURN_S` is put off to further turns.
        """
        if self.going_away:
            self._inner.going_away = True
        put_off = self._put_off
        until = asyncio.get_running_loop().time() + TURN_S
        passed = []
        for channel, requests in turn:
            # First what costs least: what is signed, and what it asks for, is read from the body.
            within = self._inner.within_limits(channel, requests)
            if channel in put_off:
                put_off.add(channel, within)
            elif within:
                admitted, looked_at = self._access.admitted(channel, within, until)
                if looked_at < len(within):
                    put_off.add(channel, within[looked_at:])
                if admitted:
                    passed.append((channel, admitted))
        if passed:
            self._inner.dispatch_turn(passed)

    def _admit_late(self, asked: list[Asked], until: float) -> list[Left]:
        """Serve those of the first that are admitted; those that were not looked at."""
        passed: list[Left] = []
        left: list[Left] = []
        for number, (channel, requests, _) in enumerate(asked):
            looked_at = 0
            if not number or _loop_time() < until:
                admitted, looked_at = self._access.admitted(channel, requests, until)
                if admitted:
                    passed.append((channel, admitted))
            if looked_at < len(requests):
                left.append((channel, requests[looked_at:]))
        if passed:
            self._inner.dispatch_turn(passed)
        return left

    async def aclose(self, grace_s: float = 5.0) -> None:
        """End the stages of the table behind."""
        self._put_off.close()
        await self._inner.aclose(grace_s)


def _not_signed(access_key: str) -> str:
    # One text for an unknown name and a wrong secret, so that guessing does not tell them apart.
    return f"Check signature failed for accessKey={access_key[:80]!r}"
