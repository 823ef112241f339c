"""PlainAcl: the accounts of a ``plain_acl.yml``, and what they may do.

    field of an account    meaning                                                    default
    accessKey, secretKey   name and secret, each longer than 6 characters             required
    whiteRemoteAddress     from here the account needs no signature                   nowhere
    admin                  may do what changes the broker                             false
    defaultTopicPerm       for topics not listed: DENY, PUB, SUB, PUB|SUB             DENY
    defaultGroupPerm       for groups not listed                                      DENY
    topicPerms             list of TOPIC=PERM
    groupPerms             list of GROUP=PERM

``globalWhiteRemoteAddresses`` may do everything without a signature. A value is immutable: a
changed file becomes another PlainAcl. RocketMQ: PlainPermissionManager, PlainAccessValidator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from oberth.broker.acl.address_pattern import AddressMatcher, address_matcher, matches_any
from oberth.broker.acl.needs import ANY_NAME, Action, Kind, Need
from oberth.broker.acl.signature import SecretKey
from oberth.broker.acl.yaml_reader import Node, parse_yaml
from oberth.errors import ConfigFormatError, OptionError
from oberth.formats import names

KEY_LENGTH_MIN: Final = 7


class Perm(IntFlag):
    """What an account may do with a topic or group."""

    DENY = 0
    PUB = 4
    SUB = 8


_PERMS: Final = {
    "DENY": Perm.DENY,
    "PUB": Perm.PUB,
    "SUB": Perm.SUB,
    "PUB|SUB": Perm.PUB | Perm.SUB,
    "SUB|PUB": Perm.PUB | Perm.SUB,
}


@dataclass(frozen=True, slots=True)
class Account:
    """One account."""

    access_key: str
    key: SecretKey = field(repr=False)
    is_admin: bool
    white: AddressMatcher | None
    default_topic_perm: Perm
    default_group_perm: Perm
    topic_perms: Mapping[str, Perm]
    group_perms: Mapping[str, Perm]

    @property
    def may_do_everything(self) -> bool:
        """Whether nothing is refused, whatever it is."""
        return self.is_admin and not self.topic_perms and not self.group_perms

    def refusal_of(self, need: Need) -> str | None:
        """Why a need is not met, or None."""
        wanted = Perm.DENY
        if Action.PUB in need.actions:
            wanted |= Perm.PUB
        if Action.SUB in need.actions:
            wanted |= Perm.SUB
        if not wanted or need.kind is Kind.CLUSTER:
            return None if self.is_admin else f"{self.access_key} is no administrator"
        if need.kind is Kind.TOPIC:
            if need.name == names.TRACE_TOPIC and Action.PUB in need.actions:
                return None
            listed, default = self.topic_perms, self.default_topic_perm
        else:
            listed, default = self.group_perms, self.default_group_perm
        if self.may_do_everything:
            return None
        if listed.get(need.name, default) & wanted and not (
            # What a request touches could be any, also one that is denied.
            need.name == ANY_NAME and any(not perm & wanted for perm in listed.values())
        ):
            return None
        actions = "|".join(sorted(action.upper() for action in need.actions))
        return f"{self.access_key} has no permission {actions} for {need.kind} {need.name}"


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """All accounts of a file."""

    global_white: tuple[AddressMatcher, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)

    def is_white(self, host: str) -> bool:
        """Whether an address may do everything."""
        return bool(self.global_white) and matches_any(self.global_white, host)


def parse_plain_acl(data: bytes, name: str) -> PlainAcl:
    """The accounts in a file.

    Raises:
        ConfigFormatError: the file cannot be read, or something in it cannot be meant; the message
            names the account by its number and never holds a secret.
    """
    document = parse_yaml(data, name)
    if document is None:
        return PlainAcl()
    top = _map(document, name)
    _check_keys(top, ("globalWhiteRemoteAddresses", "accounts", "dataVersion"), name)
    white = tuple(
        _matcher(each, name) for each in _texts(top.get("globalWhiteRemoteAddresses"), name)
    )
    accounts: dict[str, Account] = {}
    found = top.get("accounts") or []
    if not isinstance(found, list):
        raise ConfigFormatError(f"{name}: accounts is no list")
    for number, each in enumerate(found, 1):
        account = _account(_map(each, f"{name}: account {number}"), f"{name}: account {number}")
        if account.access_key in accounts:
            raise ConfigFormatError(f"{name}: account {number}: its accessKey is given twice")
        accounts[account.access_key] = account
    return PlainAcl(white, accounts)


_ACCOUNT_KEYS: Final = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


def _account(entry: dict[str, Node], where: str) -> Account:
    _check_keys(entry, _ACCOUNT_KEYS, where)
    keys = []
    for key in ("accessKey", "secretKey"):
        text = _text(entry.get(key), where, key) or ""
        if len(text) < KEY_LENGTH_MIN:
            raise ConfigFormatError(
                f"{where}: {key} has {len(text)} characters, allowed at least {KEY_LENGTH_MIN}"
            )
        keys.append(text)
    admin = (_text(entry.get("admin"), where, "admin") or "false").lower()
    if admin not in ("true", "false"):
        raise ConfigFormatError(f"{where}: admin is {admin[:20]!r}, allowed true and false")
    white = _text(entry.get("whiteRemoteAddress"), where, "whiteRemoteAddress")
    return Account(
        access_key=keys[0],
        key=SecretKey(keys[1].encode()),
        is_admin=admin == "true",
        white=_matcher(white, where) if white else None,
        default_topic_perm=_perm(
            _text(entry.get("defaultTopicPerm"), where, "defaultTopicPerm") or "DENY", where
        ),
        default_group_perm=_perm(
            _text(entry.get("defaultGroupPerm"), where, "defaultGroupPerm") or "DENY", where
        ),
        topic_perms=_perms(entry.get("topicPerms"), where),
        group_perms={
            group.removeprefix(names.RETRY_PREFIX): perm
            for group, perm in _perms(entry.get("groupPerms"), where).items()
        },
    )


def _perms(node: Node, where: str) -> dict[str, Perm]:
    found = {}
    for text in _texts(node, where):
        name, equals, perm = text.rpartition("=")
        if not equals or not name.strip():
            raise ConfigFormatError(f"{where}: {text[:80]!r}, allowed is NAME=PERM")
        found[name.strip()] = _perm(perm, where)
    return found


def _perm(text: str, where: str) -> Perm:
    perm = _PERMS.get(text.strip().replace(" ", ""))
    if perm is None:
        raise ConfigFormatError(f"{where}: {text[:20]!r}, allowed are {', '.join(_PERMS)}")
    return perm


def _matcher(text: str, where: str) -> AddressMatcher:
    try:
        return address_matcher(text)
    except OptionError as error:
        raise ConfigFormatError(f"{where}: {error}") from None


def _map(node: Node, where: str) -> dict[str, Node]:
    if not isinstance(node, dict):
        raise ConfigFormatError(f"{where}: no mapping of keys to values")
    return node


def _text(node: Node, where: str, key: str) -> str | None:
    if node is not None and not isinstance(node, str):
        raise ConfigFormatError(f"{where}: {key} is no single value")
    return node


def _texts(node: Node, where: str) -> list[str]:
    if node is None:
        return []
    if not isinstance(node, list):
        raise ConfigFormatError(f"{where}: a single value where a list belongs")
    texts = []
    for each in node:
        if not isinstance(each, str):
            raise ConfigFormatError(f"{where}: a list item that is no text")
        texts.append(each)
    return texts


def _check_keys(entry: Mapping[str, Node], allowed: tuple[str, ...], where: str) -> None:
    unknown = [key for key in entry if key not in allowed]
    if unknown:
        raise ConfigFormatError(
            f"{where}: {', '.join(unknown)[:80]} is unknown, allowed are {', '.join(allowed)}"
        )
