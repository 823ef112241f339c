"""Users and their policies, as 3001 to 3010 change them and ``config/`` keeps them.

    config/authUsers.json   {"users": [{username, password, userType, userStatus}, ...]}
    config/authAcls.json    {"acls": [{subject, policies: [{policyType, entries}]}, ...]}

Passwords are the keys of signatures, so they are kept as they are; both files are readable by their
owner alone. Which entry of a policy decides, of those that fit resource, action and address:

    1. entries of a Custom policy, before those of a Default one
    2. a whole name before a prefix (NAME*), a longer prefix before a shorter one, before "*"
    3. Deny before Allow

None fits: refused. A Super user may do everything. RocketMQ: AuthenticationMetadataManagerImpl,
AuthorizationMetadataManagerImpl, AclAuthorizationHandler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from oberth.broker.acl.address_pattern import AddressMatcher, address_matcher, matches_any
from oberth.broker.acl.needs import ANY_NAME, Action, Kind, Need
from oberth.broker.acl.signature import SecretKey
from oberth.broker.config_file import ConfigFile
from oberth.errors import ConfigFormatError, OberthError, OptionError
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.store.files import FileSystem

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
SUBJECT_PREFIX: Final = "User:"

USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1000
"""Of one subject."""
USERNAME_LENGTH_MAX: Final = 255

ACTIONS: Final = {action.lower(): action for action in Action}
ALL_ACTIONS: Final = ("all", "any")


class AccessDataError(OberthError):
    """A user or policy does not exist, or is not what one can be. Answered with code 16."""


@dataclass(frozen=True, slots=True)
class User:
    """One user."""

    username: str
    password: bytes = field(repr=False)
    key: SecretKey = field(repr=False, compare=False)
    is_super: bool = False
    is_enabled: bool = True

    def to_info(self, *, with_password: bool) -> UserInfo:
        """The user as the wire has it."""
        return UserInfo(
            password=self.password.decode() if with_password else None,
            user_status=ENABLED if self.is_enabled else DISABLED,
            user_type=SUPER if self.is_super else NORMAL,
            username=self.username,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """What a policy says about one resource."""

    kind: Kind | None
    """None: of every kind."""
    name: str
    is_prefix: bool
    actions: frozenset[Action]
    sources: tuple[AddressMatcher, ...]
    is_allowed: bool
    is_custom: bool
    info: PolicyEntryInfo

    @property
    def rank(self) -> tuple[bool, bool, int, bool, bool]:
        """Sorts what decides first to the front."""
        return (
            not self.is_custom,
            self.is_prefix,
            -len(self.name),
            self.kind is None,
            self.is_allowed,
        )

    def fits(self, need: Need) -> bool:
        """Whether the entry says something about a need whose name it means."""
        return (self.kind is None or self.kind is need.kind) and not self.actions.isdisjoint(
            need.actions
        )


class Policies:
    """The entries of one subject, found by the name of what a request needs.

    A request may have thousands of needs, and a subject a thousand entries: to try each entry for
    each need would take seconds.

    Args:
        entries: in the order in which they decide.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._named: tuple[_Named, _Named] = (_Named(), _Named())
        for entry in entries:
            self._named[not entry.is_custom].add(entry)

    def allow(self, need: Need, host: str, meant: dict[int, bool]) -> bool:
        """Whether the entry that decides about a need from an address allows it.

        Args:
            need: what is needed.
            host: from where.
            meant: whether an entry (its id) means the address, of those that were asked before.
        """
        if need.name == ANY_NAME and self._denies_some(need, host, meant):
            return False
        for named in self._named:
            for entry in named.of(need.name):
                if entry.fits(need):
                    is_meant = meant.get(id(entry))
                    if is_meant is None:
                        is_meant = not entry.sources or matches_any(entry.sources, host)
                        meant[id(entry)] = is_meant
                    if is_meant:
                        return entry.is_allowed
        return False

    def _denies_some(self, need: Need, host: str, meant: dict[int, bool]) -> bool:
        """Whether of all topics or groups some are denied: a grant for all is none then.

        What a request touches could be one of these. Lists show names, whatever is denied.
        """
        if need.kind is Kind.CLUSTER or Action.LIST in need.actions:
            return False
        return any(
            not self.allow(need._replace(name=name), host, meant) for name in self._denied(need)
        )

    def _denied(self, need: Need) -> Iterator[str]:
        """A name for each entry that denies something of what is needed."""
        for named in self._named:
            for entry in named.denials:
                if entry.fits(need):
                    # Not the prefix itself, which an entry for a whole name may mean.
                    yield f"{entry.name}\0" if entry.is_prefix else entry.name


class _Named:
    """Entries of policies of one type, by the names in them."""

    def __init__(self) -> None:
        self._whole: dict[str, list[Entry]] = {}
        self._prefixes: dict[str, list[Entry]] = {}
        self.denials: list[Entry] = []
        self._lengths: list[int] = []
        """Of the prefixes, the longest first."""

    def add(self, entry: Entry) -> None:
        if not entry.is_allowed:
            self.denials.append(entry)
        if not entry.is_prefix:
            self._whole.setdefault(entry.name, []).append(entry)
            return
        self._prefixes.setdefault(entry.name, []).append(entry)
        if len(entry.name) not in self._lengths:
            self._lengths = sorted([*self._lengths, len(entry.name)], reverse=True)

    def of(self, name: str) -> Iterator[Entry]:
        """Those that mean a name, in the order in which they decide.

        No name of a resource holds a ``*``, so a need for everything has only a ``*`` alone.
        """
        yield from self._whole.get(name, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._prefixes.get(name[:length], ())


def parse_entry(info: PolicyEntryInfo, policy_type: str) -> Entry:
    """An entry in its checked form.

    Raises:
        AccessDataError: a resource, action, address or decision that does not exist.
    """
    resource = info.resource or ""
    kind: Kind | None = None
    name = resource
    if resource != ANY_NAME:
        kind_text, colon, name = resource.partition(":")
        kinds = {each.lower(): each for each in Kind}
        if not colon or kind_text.lower() not in kinds or not name:
            raise AccessDataError(
                f"The resource {resource[:80]!r} is none of Topic:NAME, Group:NAME, Cluster:NAME, *"
            )
        kind = kinds[kind_text.lower()]
    if "*" in name[:-1]:
        raise AccessDataError(f"The resource {resource[:80]!r} has a * before its end")
    actions: set[Action] = set()
    for text in info.actions:
        if text.lower() in ALL_ACTIONS:
            actions.update(Action)
        elif text.lower() in ACTIONS:
            actions.add(ACTIONS[text.lower()])
        else:
            raise AccessDataError(
                f"The action {text[:40]!r} is none of {', '.join(Action)} and All"
            )
    if not actions:
        raise AccessDataError("The actions are blank.")
    decision = (info.decision or "").lower()
    if decision not in (ALLOW.lower(), DENY.lower()):
        raise AccessDataError(f"The decision {decision[:40]!r} is none of {ALLOW}, {DENY}")
    try:
        sources = tuple(address_matcher(each) for each in info.source_ips or [])
    except OptionError as error:
        raise AccessDataError(str(error)) from None
    return Entry(
        kind=kind,
        name=name.removesuffix("*"),
        is_prefix=name.endswith("*"),
        actions=frozenset(actions),
        sources=sources,
        is_allowed=decision == ALLOW.lower(),
        is_custom=policy_type == CUSTOM,
        info=info,
    )


class UserStore:
    """All users and policies of a broker; every change is on the disk when the call returns.

    Used on the loop's thread; changes are rare and write two small files.

    Args:
        directory: ``config/`` of the store.
        files: where it is; None: the operating system's.
    """

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        self._users_file = ConfigFile(directory / "authUsers.json", files, private=True)
        self._acls_file = ConfigFile(directory / "authAcls.json", files, private=True)
        self.users: dict[str, User] = {}
        self.entries: dict[str, list[Entry]] = {}
        self.version = 0
        """Grows with every change."""
        self._policies: dict[str, Policies] = {}
        """By subject, of those who have asked for something since the last change."""

    def load(self) -> None:
        """Read both files.

        Raises:
            ConfigFormatError: one of them, and its back-up, cannot be read.
        """
        self._users_file.load(self._read_users)
        self._acls_file.load(self._read_acls)

    def _read_users(self, document: Any) -> None:
        users = {}
        try:
            for each in _list(document, "users"):
                user = _user(msgspec.convert(each, UserInfo, strict=False), None)
                users[user.username] = user
        except (AccessDataError, msgspec.ValidationError) as error:
            raise ConfigFormatError(f"{self._users_file.path}: {error}") from None
        self.users = users

    def _read_acls(self, document: Any) -> None:
        entries = {}
        try:
            for each in _list(document, "acls"):
                info = msgspec.convert(each, AclInfo, strict=False)
                entries[info.subject or ""] = _entries(info.policies)
        except (AccessDataError, msgspec.ValidationError) as error:
            raise ConfigFormatError(f"{self._acls_file.path}: {error}") from None
        self.entries = entries
        self._policies.clear()

    # Users

    def create_user(self, info: UserInfo) -> None:
        """3001.

        Raises:
            AccessDataError: the user exists, or cannot be.
        """
        if (info.username or "") in self.users:
            raise AccessDataError("The user is existed")
        if len(self.users) >= USERS_MAX:
            raise AccessDataError(f"There are {USERS_MAX} users, allowed are no more.")
        self._put_user(_user(info, None))

    def update_user(self, info: UserInfo) -> None:
        """3002: what is not given stays.

        Raises:
            AccessDataError: there is no such user.
        """
        old = self.user(info.username or "")
        new = _user(info, old)
        if old.is_super and old.is_enabled and not (new.is_super and new.is_enabled):
            self._check_not_last(old)
        self._put_user(new)

    def delete_user(self, username: str) -> None:
        """3003: the user and all policies of it; nothing if there is none, as with Apache.

        Raises:
            AccessDataError: nobody would be left to administer.
        """
        user = self.users.get(username)
        if user is None:
            return
        if user.is_super:
            self._check_not_last(user)
        del self.users[username]
        self._write_users()
        if self.entries.pop(SUBJECT_PREFIX + username, None) is not None:
            self._write_acls()

    def _check_not_last(self, user: User) -> None:
        if not any(
            each.is_super and each.is_enabled and each is not user for each in self.users.values()
        ):
            raise AccessDataError(f"{user.username} is the last Super user.")

    def user(self, username: str) -> User:
        """A user by name.

        Raises:
            AccessDataError: there is no such user.
        """
        found = self.users.get(username)
        if found is None:
            raise AccessDataError("The user is not exist")
        return found

    def list_users(self, text: str | None) -> list[User]:
        """3005: users whose name holds a text."""
        return [user for name, user in sorted(self.users.items()) if not text or text in name]

    def _put_user(self, user: User) -> None:
        self.users[user.username] = user
        self._write_users()

    # Policies

    def create_acl(self, info: AclInfo) -> None:
        """3006 and 3007: entries are added; one for the same resource is replaced.

        Raises:
            AccessDataError: there is no such user, or an entry cannot be.
        """
        subject = self._subject(info.subject, names_it=True)
        new = _entries(info.policies)
        if not new:
            raise AccessDataError("The policies are blank.")
        replaced = {(each.is_custom, each.kind, each.name, each.is_prefix) for each in new}
        kept = [
            each
            for each in self.entries.get(subject, [])
            if (each.is_custom, each.kind, each.name, each.is_prefix) not in replaced
        ]
        if len(kept) + len(new) > ENTRIES_MAX:
            raise AccessDataError(
                f"{subject} would have {len(kept) + len(new)} entries, allowed {ENTRIES_MAX}"
            )
        self.entries[subject] = sorted(kept + new, key=lambda each: each.rank)
        self._write_acls()

    def update_acl(self, info: AclInfo) -> None:
        """3007.

        Raises:
            AccessDataError: there is no such user or acl, or an entry cannot be.
        """
        self._subject(info.subject, names_it=True)
        self.acl(info.subject)
        self.create_acl(info)

    def delete_acl(
        self, subject: str | None, policy_type: str | None, resource: str | None
    ) -> None:
        """3008: all of a subject, or what it says of one resource, or what one policy says.

        Raises:
            AccessDataError: there is no such policy.
        """
        name = self._subject(subject)
        entries = self.acl(subject)
        kept = [
            each
            for each in entries
            if (resource and each.info.resource != resource)
            or (policy_type and each.is_custom != (policy_type.lower() == CUSTOM.lower()))
        ]
        if kept:
            self.entries[name] = kept
        else:
            del self.entries[name]
        self._write_acls()

    def acl(self, subject: str | None) -> list[Entry]:
        """Entries of a subject, in the order in which they decide.

        Raises:
            AccessDataError: there is no such user, or nothing is said of it.
        """
        found = self.entries.get(self._subject(subject))
        if found is None:
            raise AccessDataError("The acl is not exist.")
        return found

    def find_acl(self, subject: str | None) -> AclInfo:
        """3009: policies of a subject.

        Raises:
            AccessDataError: there is no such user, or nothing is said of it.
        """
        entries = self.acl(subject)
        return _acl_info(self._subject(subject), entries)

    def list_acls(self, subject_text: str | None, resource_text: str | None) -> list[AclInfo]:
        """3010: by texts that subject and resource hold."""
        found = []
        for subject, entries in sorted(self.entries.items()):
            if subject_text and subject_text not in subject:
                continue
            fitting = [
                each
                for each in entries
                if not resource_text or resource_text in (each.info.resource or "")
            ]
            if fitting:
                found.append(_acl_info(subject, fitting))
        return found

    def _subject(self, subject: str | None, *, names_it: bool = False) -> str:
        kind, _, username = (subject or "").partition(":")
        if kind.lower() != "user" or username not in self.users:
            named = f" of {(subject or '')[:100]}" if names_it else ""
            raise AccessDataError(f"The subject{named} is not exist.")
        return SUBJECT_PREFIX + username

    def refusal_of(self, user: User, needs: Iterable[Need], host: str) -> str | None:
        """Why one of the needs of a user is not met, or None."""
        if user.is_super:
            return None
        subject = SUBJECT_PREFIX + user.username
        policies = self._policies.get(subject)
        if policies is None:
            policies = self._policies[subject] = Policies(self.entries.get(subject, ()))
        meant: dict[int, bool] = {}
        for need in needs:
            if not policies.allow(need, host, meant):
                actions = "|".join(sorted(need.actions)) or "administration"
                return (
                    f"{user.username} has no permission {actions} for {need.kind}:{need.name} "
                    f"from {host}"
                )
        return None

    # Files

    def _write_users(self) -> None:
        self.version += 1
        users = [
            _builtins(user.to_info(with_password=True)) for _, user in sorted(self.users.items())
        ]
        self._users_file.write_document({"users": users}, sync=True)

    def _write_acls(self) -> None:
        self.version += 1
        self._policies.clear()
        acls = [
            _builtins(_acl_info(subject, entries))
            for subject, entries in sorted(self.entries.items())
        ]
        self._acls_file.write_document({"acls": acls}, sync=True)


def _builtins(body: UserInfo | AclInfo) -> Any:
    return msgspec.json.decode(body.encode())


def _list(document: Any, name: str) -> list[Any]:
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise AccessDataError(f"no list {name!r}")
    return found


def _user(info: UserInfo, old: User | None) -> User:
    username = info.username or ""
    if not username or len(username) > USERNAME_LENGTH_MAX or not username.isprintable():
        raise AccessDataError(
            f"The username can not be blank, longer than {USERNAME_LENGTH_MAX} or unprintable."
        )
    password = info.password.encode() if info.password else (old.password if old else b"")
    if not password:
        raise AccessDataError("The password can not be blank.")
    user_type = (info.user_type or (SUPER if old and old.is_super else NORMAL)).lower()
    if user_type not in (SUPER.lower(), NORMAL.lower()):
        raise AccessDataError(f"The user type {user_type[:40]!r} is none of {SUPER}, {NORMAL}")
    status = (info.user_status or (DISABLED if old and not old.is_enabled else ENABLED)).lower()
    if status not in (ENABLED, DISABLED):
        raise AccessDataError(f"The user status {status[:40]!r} is none of {ENABLED}, {DISABLED}")
    return User(
        username, password, SecretKey(password), user_type == SUPER.lower(), status == ENABLED
    )


def _entries(policies: Iterable[PolicyInfo]) -> list[Entry]:
    found: list[Entry] = []
    for policy in policies:
        policy_type = (policy.policy_type or CUSTOM).capitalize()
        if policy_type not in (CUSTOM, DEFAULT):
            raise AccessDataError(
                f"The policy type {policy_type[:40]!r} is none of {CUSTOM}, {DEFAULT}"
            )
        found += [parse_entry(each, policy_type) for each in policy.entries]
    if len(found) > ENTRIES_MAX:
        raise AccessDataError(f"{len(found)} entries, allowed {ENTRIES_MAX}")
    return sorted(found, key=lambda each: each.rank)


def _acl_info(subject: str, entries: Iterable[Entry]) -> AclInfo:
    policies = []
    for policy_type in (CUSTOM, DEFAULT):
        infos = [each.info for each in entries if each.is_custom == (policy_type == CUSTOM)]
        if infos:
            policies.append(PolicyInfo(entries=infos, policy_type=policy_type))
    return AclInfo(policies=policies, subject=subject)


def user_of_json(text: str, key: str, *names: str) -> tuple[str, str]:
    """Name and password in the JSON object of an option.

    Raises:
        OptionError: it is no such object; the message does not hold it.
    """
    try:
        found = msgspec.json.decode(text)
        name, password = (found[each] for each in names)
    except (ValueError, KeyError, TypeError):
        raise OptionError(f"{key}: allowed is a JSON object with {' and '.join(names)}") from None
    if not (isinstance(name, str) and name and isinstance(password, str) and password):
        raise OptionError(f"{key}: {' or '.join(names)} is empty")
    return name, password
