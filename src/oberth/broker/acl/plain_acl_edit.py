"""Changes of a ``plain_acl.yml``: accounts and white addresses, as text in and text out.

A change is made in the document, the document is written anew and read again the way the gate reads
it; what would not be read does not come about. Each change raises ``dataVersion``. Comments are
lost. RocketMQ: PlainPermissionManager, which writes the same file through SnakeYAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from oberth.broker.acl.plain_acl import KEY_LENGTH_MIN, PlainAcl, parse_plain_acl
from oberth.broker.acl.yaml_reader import Node, parse_yaml
from oberth.errors import ConfigFormatError
from oberth.formats.data_version import DataVersion

ACCOUNTS_MAX: Final = 10_000
"""Accounts of one file that commands may make."""

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./|=%*+-]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_YAML_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_PERMISSIONS: Final = frozenset({"DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"})


class AclChangeError(ValueError):
    """A change that is not made. The message holds no secret."""


class PlainAclDocument:
    """One file of accounts, on its way from one state to the next.

    Args:
        data: the file.
        name: for messages.

    Raises:
        ConfigFormatError: the file cannot be read as it is.
    """

    def __init__(self, data: bytes, name: str) -> None:
        parse_plain_acl(data, name)
        self._name = name
        found = parse_yaml(data, name)
        self._top: dict[str, Node] = found if isinstance(found, dict) else {}

    @property
    def version(self) -> DataVersion:
        """The newest of ``dataVersion``; zeros for a file that no command has changed."""
        found = self._top.get("dataVersion")
        newest = found[-1] if isinstance(found, list) and found else None
        if not isinstance(newest, dict):
            return DataVersion()
        return DataVersion(
            state_version=_number(newest.get("stateVersion")),
            timestamp=_number(newest.get("timestamp")),
            counter=_number(newest.get("counter")),
        )

    @property
    def global_white(self) -> list[str]:
        """``globalWhiteRemoteAddresses``."""
        return _texts(self._top.get("globalWhiteRemoteAddresses"))

    @property
    def accounts(self) -> list[dict[str, Node]]:
        """The accounts, with their secrets."""
        found = self._top.get("accounts")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def set_account(self, access_key: str, fields: Mapping[str, str | Sequence[str]]) -> None:
        """Make an account, or replace what ``fields`` names of it.

        Raises:
            AclChangeError: a key is too short, a permission is none, or there are too many.
        """
        accounts = self.accounts
        found = next((each for each in accounts if each.get("accessKey") == access_key), None)
        secret = fields.get("secretKey") or (found or {}).get("secretKey") or ""
        if len(access_key) < KEY_LENGTH_MIN or len(str(secret)) < KEY_LENGTH_MIN:
            raise AclChangeError(
                f"The accessKey={access_key[:80]} and its secretKey cannot be null and length "
                f"should longer than {KEY_LENGTH_MIN - 1}"
            )
        for key in ("topicPerms", "groupPerms"):
            for text in fields.get(key) or ():
                name, equals, perm = text.rpartition("=")
                if not equals or not name.strip() or perm.strip() not in _PERMISSIONS:
                    raise AclChangeError(
                        f"Parse resource permission error for {text[:80]}.\n"
                        "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
                    )
        if found is None:
            if len(accounts) >= ACCOUNTS_MAX:
                raise AclChangeError(f"{len(accounts)} accounts, allowed are {ACCOUNTS_MAX}")
            found = {"accessKey": access_key}
            accounts.append(found)
        for key, value in fields.items():
            if value:
                found[key] = value if isinstance(value, str) else list(value)
        self._top["accounts"] = list(accounts)

    def delete_account(self, access_key: str) -> bool:
        """Take an account away; False if it is not there."""
        accounts = self.accounts
        kept: list[Node] = [each for each in accounts if each.get("accessKey") != access_key]
        self._top["accounts"] = kept
        return len(kept) < len(accounts)

    def set_global_white(self, addresses: Sequence[str]) -> None:
        """Replace ``globalWhiteRemoteAddresses``."""
        self._top["globalWhiteRemoteAddresses"] = list(addresses)

    def encode(self, now_ms: int) -> tuple[bytes, PlainAcl]:
        """The file with its version raised, and what the gate reads in it.

        Raises:
            AclChangeError: the gate could not read it.
        """
        version = self.version
        entry: dict[str, Node] = {
            "counter": str(version.counter + 1),
            "timestamp": str(now_ms),
        }
        if version.state_version:
            entry["stateVersion"] = str(version.state_version)
        self._top["dataVersion"] = [entry]
        try:
            data = _format(self._top)
            return data, parse_plain_acl(data, self._name)
        except ConfigFormatError as error:
            raise AclChangeError(str(error)) from None


def _number(node: Node) -> int:
    try:
        return int(node) if isinstance(node, str) else 0
    except ValueError:
        return 0


def _texts(node: Node) -> list[str]:
    return [each for each in node if isinstance(each, str)] if isinstance(node, list) else []


def _format(top: Mapping[str, Node]) -> bytes:
    lines: list[str] = []
    for key, value in top.items():
        if not isinstance(value, list):
            lines.append(f"{key}: {_scalar(key, value)}".rstrip())
            continue
        lines.append(f"{key}:" if value else f"{key}: []")
        for each in value:
            if isinstance(each, dict):
                lines += _mapping(each)
            else:
                lines.append(f"- {_scalar(key, each)}")
    return ("\n".join(lines) + "\n").encode()


def _mapping(entry: Mapping[str, Node]) -> list[str]:
    lines: list[str] = []
    for key, value in entry.items():
        if isinstance(value, list):
            lines.append(f"  {key}:" if value else f"  {key}: []")
            lines += [f"  - {_scalar(key, each)}" for each in value]
        else:
            lines.append(f"  {key}: {_scalar(key, value)}".rstrip())
    if lines:
        lines[0] = "- " + lines[0][2:]
    return lines


def _scalar(key: str, node: Node) -> str:
    if node is None:
        return ""
    if not isinstance(node, str):
        raise AclChangeError(f"{key}: nested deeper than accounts are")
    if key == "admin" and node in ("true", "false"):
        return node
    if key in ("counter", "timestamp", "stateVersion") and node.isdigit():
        return node
    if _CONTROL.search(node):
        raise AclChangeError(f"{key}: a control character")
    if _PLAIN.fullmatch(node) and node.lower() not in _YAML_WORDS:
        return node
    escaped = node.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
