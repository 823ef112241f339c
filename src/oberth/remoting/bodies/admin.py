"""Bodies of administration: 18, 225, 353, 907, and users and policies (3001 to 3010).

The lists of 18 (``topicConfigList``) and 225 (``groupConfigList``) carry the same objects as the
files of a broker. RocketMQ: CreateTopicListRequestBody, SubscriptionGroupList.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

import msgspec

from oberth.errors import ConfigFormatError
from oberth.formats.bean import Bean
from oberth.formats.json_reader import parse_request
from oberth.remoting.bodies.base import Body

_B = TypeVar("_B", bound=Bean)

LIST_SIZE_MAX: Final = 1024 * 1024
"""Bytes of a request that is a list of topics or of groups."""
TOPICS_PER_LIST_MAX: Final = 5000
GROUPS_PER_LIST_MAX: Final = 2500
ENTRIES_A_TURN: Final = 50
"""Topics or groups that one turn of the loop reads, or changes."""
ACKS_SIZE_MAX: Final = 256 * 1024
"""Bytes of a list of acknowledgements; a thousand have 120 KiB."""
LITE_SIZE_MAX: Final = 128 * 1024
"""Bytes of a list of lite topics."""
MAPPING_SIZE_MAX: Final = 32 * 1024
"""Bytes of a broker's part of a static topic; one of 200 queues has 25 KiB."""


def beans_in_slices(
    bean: type[_B], data: bytes, where: str, name: str, count_max: int
) -> Generator[None, None, list[_B]]:
    """The entries of a list in the body of 18 or 225, read ENTRIES_A_TURN a turn.

    Raises:
        ConfigFormatError: the body cannot be read, or the list under ``name`` is too long.
    """
    tree = parse_request(data, name=where)
    if not isinstance(tree, dict):
        raise ConfigFormatError(f"{where}: a JSON {type(tree).__name__}, allowed an object")
    entries = tree.get(name) or []
    if not isinstance(entries, list):
        raise ConfigFormatError(f"{where}.{name}: no list")
    if len(entries) > count_max:
        raise ConfigFormatError(
            f"{where}: {len(entries)} entries, at most {count_max} are allowed; send several lists"
        )
    beans = []
    for number, entry in enumerate(entries):
        if number % ENTRIES_A_TURN == 0:
            yield
        beans.append(bean.from_json(entry, f"{where}.{name}[{number}]"))
    return beans


class GroupForbidden(Body):
    """Answer of 353."""

    group: str = ""
    readable: bool | None = None
    topic: str = ""


class UserInfo(Body):
    """A user: body of 3001 and 3002, answer of 3004; 3005 answers a list of them."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class PolicyEntryInfo(Body):
    """What a policy says about one resource."""

    actions: list[str] = msgspec.field(default_factory=list)
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body):
    """A policy."""

    entries: list[PolicyEntryInfo] = msgspec.field(default_factory=list)
    policy_type: str | None = None


class AclInfo(Body):
    """A subject's policies: body of 3006 and 3007, answer of 3009; 3010 answers a list of them."""

    policies: list[PolicyInfo] = msgspec.field(default_factory=list)
    subject: str | None = None
