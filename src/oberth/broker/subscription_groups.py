"""SubscriptionGroups: the consumer groups a broker knows, in subscriptionGroup.json.

What is always true: every name has passed ``formats.names``; every change has a new data version,
and one that an administrator makes is written before it is answered. A group that its first use
makes is written within a second: a kill before that forgets what the next use makes again.
RocketMQ: SubscriptionGroupManager, SubscriptionGroupConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from oberth.broker.attributes import GROUP_ATTRIBUTES, alter_attributes
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.config_file import (
    ENTRIES_AT_ONCE,
    TEXTS_AT_ONCE,
    EntryTemplate,
    Replaced,
    document_bytes,
    entry_text,
    replaced_names,
)
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats import names
from oberth.formats.config_json import Shown
from oberth.formats.data_version import DataVersion
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.subscription_group import SubscriptionGroups as GroupsFile

GROUP_COUNT_MAX: Final = 1_000_000
LOADED: Final = -1
"""Stands for a time in ``found_ms``: the file brought the group."""
UNUSED_MAX: Final = 50_000
"""Groups that exist because a client named them, and that have not consumed anything yet."""
RETRY_QUEUE_NUMS_MAX: Final = 1024

_TABLE: Final = "subscriptionGroupTable"
_FORBIDDEN: Final = "forbiddenTable"

FORBIDDEN_MAX: Final = 10_000
"""Pairs of a group and a topic that it may not read."""
READ_FORBIDDEN: Final = 1
"""The bit of ``forbiddenTable`` that stops a group from reading a topic."""


def check_group_config(group: SubscriptionGroupConfig) -> None:
    """Compare numbers with their limits.

    Raises:
        OptionError: one is outside.
    """
    if not 0 <= group.retry_queue_nums <= RETRY_QUEUE_NUMS_MAX:
        raise OptionError(
            f"group {group.group_name}: retryQueueNums is {group.retry_queue_nums}, "
            f"allowed 0…{RETRY_QUEUE_NUMS_MAX}"
        )


_NEW_GROUP: Final = EntryTemplate(
    _TABLE, lambda group: SubscriptionGroupConfig(group_name=group).to_json()
)


class SubscriptionGroups:
    """All groups of a broker.

    Args:
        config: whether groups are made at their first use.
        on_change: called after every change that has to be written at once, with the names that
            were made, changed or deleted.
        clock_ms: the time of data versions.

    Attributes:
        is_dirty: whether anything changed since `encode`.
        found_ms: groups that exist because a client named them, or may do so for all that their
            file tells, and when they were last seen in use; see ``unused_groups``.
    """

    __slots__ = (
        "_clock_ms",
        "_config",
        "_dirty",
        "_entries",
        "_forbidden",
        "_forbidden_count",
        "_on_change",
        "_table",
        "data_version",
        "found_ms",
        "has_light_groups",
        "is_dirty",
    )

    def __init__(
        self,
        config: BrokerConfig,
        on_change: Callable[[list[str]], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._on_change = on_change
        self._clock_ms = clock_ms
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._forbidden_count = 0
        self._entries: dict[str, str] = {}
        self._dirty: set[str] = set()
        self.data_version = DataVersion()
        self.found_ms: dict[str, int] = {}
        self.has_light_groups = False
        self.is_dirty = False

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(list(self._table.values()))

    def __contains__(self, group: object) -> bool:
        return group in self._table

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, or None."""
        found = self._table.get(group)
        return self._light(group) if found is None else found

    def _light(self, group: str) -> SubscriptionGroupConfig | None:
        """A light group is as it is by default, and is not kept: there can be very many."""
        if self.has_light_groups and names.is_lmq(group) and names.is_stored_topic(group):
            return SubscriptionGroupConfig(group_name=group)
        return None

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, made if it is missing and may be; None if it may not.

        RocketMQ: findSubscriptionGroupConfig.
        """
        found = self._table.get(group) or self._light(group)
        if found is not None:
            return found
        if not (self._config.auto_create_subscription_group or names.is_system_group(group)):
            return None
        try:
            names.check_group(group)
            self._check_room()
        except IllegalNameError:
            return None
        if not names.is_system_group(group):
            if len(self.found_ms) >= UNUSED_MAX:
                return None
            self.found_ms[group] = self._clock_ms()
        made = SubscriptionGroupConfig(group_name=group)
        self._table[group] = made
        self._entries[group] = _NEW_GROUP.text(group)
        # Not on_change: thousands of groups come at once when consumers are first pointed here,
        # and a file that is written for each of them stops the broker for seconds.
        self._renew_version()
        return made

    def add_system_groups(self) -> None:
        """Make the groups that every broker has, where they are missing."""
        made = []
        for name in (
            names.TOOLS_CONSUMER_GROUP,
            names.FILTERSRV_CONSUMER_GROUP,
            names.SELF_TEST_CONSUMER_GROUP,
            names.ONS_HTTP_PROXY_GROUP,
            names.ONSAPI_PULL_GROUP,
            names.ONSAPI_PERMISSION_GROUP,
            names.ONSAPI_OWNER_GROUP,
            names.TRANS_GROUP,
        ):
            if name not in self._table:
                self._put(SubscriptionGroupConfig(group_name=name))
                made.append(name)
        if made:
            self._changed(made)

    def update(self, wanted: SubscriptionGroupConfig) -> bool:
        """Make or replace a group; False if it is there and the same.

        Its attributes are signed changes, as 200 brings them.

        Raises:
            IllegalNameError: a name that no group may have.
            OptionError: a number outside its limits.
            AttributeChangeError: a change of the attributes that is not allowed.
        """
        name = names.check_group(wanted.group_name or "")
        check_group_config(wanted)
        old = self._table.get(name)
        wanted.attributes = alter_attributes(
            GROUP_ATTRIBUTES,
            {} if old is None else old.attributes,
            wanted.attributes,
            create=old is None,
        )
        if old == wanted:
            return False
        if old is None:
            self._check_room()
        self._put(wanted)
        self._changed([name])
        return True

    def delete(self, group: str) -> bool:
        """Forget a group; False if there is none."""
        known = self._remove(group)
        forbidden = self._forbidden.pop(group, None)
        if forbidden is not None:
            self._forbidden_count -= len(forbidden)
        elif not known:
            return False
        self._changed([group])
        return True

    def forget_unused(self, group: str) -> None:
        """Forget a group that nobody has used; the file is written within a second."""
        if self._remove(group):
            self._renew_version()

    def _remove(self, group: str) -> bool:
        self.found_ms.pop(group, None)
        self._entries.pop(group, None)
        self._dirty.discard(group)
        return self._table.pop(group, None) is not None

    # Forbidden

    def is_readable(self, group: str, topic: str) -> bool:
        """Whether the group may read the topic."""
        return not self._forbidden or not (
            self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN
        )

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic.

        Raises:
            IllegalNameError: a name that no group may have, or too much is forbidden already.
        """
        bits = self._forbidden.get(group, {}).get(topic, 0)
        wanted = bits & ~READ_FORBIDDEN if readable else bits | READ_FORBIDDEN
        if wanted and not bits:
            names.check_group(group, length_max=names.GROUP_LENGTH_MAX_4_9)
            if self._forbidden_count >= FORBIDDEN_MAX:
                raise IllegalNameError(
                    f"{self._forbidden_count} pairs of a group and a topic that it may not read, "
                    f"at most {FORBIDDEN_MAX} are allowed"
                )
        self.found_ms.pop(group, None)
        if wanted != bits:
            self._forbid(group, topic, wanted)
            self._changed([group])

    def _forbid(self, group: str, topic: str, bits: int) -> None:
        topics = self._forbidden.setdefault(group, {})
        self._forbidden_count -= len(topics)
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        self._forbidden_count += len(topics)
        if not topics:
            del self._forbidden[group]

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: what was forbidden about it is gone with it."""
        gone = [group for group, topics in self._forbidden.items() if topic in topics]
        for group in gone:
            self._forbid(group, topic, 0)
        if gone:
            self._changed(gone)

    # SubscriptionGroup.json

    def _check_room(self) -> None:
        if len(self._table) >= GROUP_COUNT_MAX:
            raise IllegalNameError(
                f"{len(self._table)} groups, at most {GROUP_COUNT_MAX} are allowed"
            )

    def _put(self, group: SubscriptionGroupConfig) -> None:
        name = str(group.group_name)
        self.found_ms.pop(name, None)
        self._table[name] = group
        self._dirty.add(name)

    def _renew_version(self) -> None:
        self.data_version = self.data_version.next(self._clock_ms())
        self.is_dirty = True

    def _changed(self, groups: list[str]) -> None:
        self._renew_version()
        self._on_change(groups)

    def to_body(self) -> dict[str, Any]:
        """All groups as 201 shows them, for ``config_in_slices``.

        RocketMQ: SubscriptionGroupWrapper.
        """
        return {
            "dataVersion": self.data_version.to_json(),
            _FORBIDDEN: self._forbidden,
            _TABLE: Shown(self._table, SubscriptionGroupConfig.to_json, self._written),
        }

    def _written(self, group: str) -> str | None:
        """The entry of a group as the file has it, if that is made text."""
        return None if group in self._dirty else self._entries.get(group)

    def prepare(self, count: int) -> bool:
        """Make up to ``count`` changed entries text, 40 us each; False if none is left."""
        while self._dirty and count > 0:
            count -= 1
            group = self._dirty.pop()
            self._entries[group] = entry_text(_TABLE, group, self._table[group].to_json())
        return bool(self._dirty)

    @property
    def is_quickly_encoded(self) -> bool:
        """Whether `encode` takes a millisecond or two, not more."""
        return (
            len(self._table) <= ENTRIES_AT_ONCE
            and len(self._dirty) + self._forbidden_count <= TEXTS_AT_ONCE
        )

    def encode(self) -> bytes:
        """The file's bytes. What changed since the last call is made text anew."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """What makes the file's bytes of the table as it is now, in any thread."""
        self.prepare(len(self._dirty))
        self.is_dirty = False
        fields = {
            "dataVersion": self.data_version.to_json(),
            _FORBIDDEN: {group: dict(topics) for group, topics in self._forbidden.items()},
        }
        return partial(document_bytes, fields, ((_TABLE, list(self._entries.values())),))

    def read(self, document: Any) -> None:
        """Take over a file of either line.

        Raises:
            ConfigFormatError: see `decoded`.
        """
        self.replace_all(*self.decoded(document))

    def decoded(self, document: Any) -> tuple[GroupsFile, dict[str, int]]:
        """What `replace_all` takes, in any thread, 10 us each. One that is as it was is the same.

        Raises:
            ConfigFormatError: something that is no group, or a name that no group may have.
        """
        file = GroupsFile.from_json(document, "subscriptionGroup.json")
        table: dict[str, SubscriptionGroupConfig] = {}
        for key, group in file.subscription_group_table.items():
            try:
                name = names.check_group(
                    group.group_name or "", length_max=names.GROUP_LENGTH_MAX_4_9
                )
                check_group_config(group)
            except (IllegalNameError, OptionError) as error:
                raise ConfigFormatError(f"subscriptionGroup.json: {key[:100]!r}: {error}") from None
            known = self._table.get(name)
            table[name] = known if known is not None and known == group else group
        found_ms = {
            name: LOADED
            for name, group in table.items()
            if group == SubscriptionGroupConfig(group_name=name)
            and name not in file.forbidden_table
            and not names.is_system_group(name)
        }
        file.subscription_group_table = table
        return file, found_ms

    def replace_all(self, file: GroupsFile, found_ms: dict[str, int]) -> Replaced:
        """Have the groups of this file and no others."""
        table = file.subscription_group_table
        replaced = replaced_names(self._table, table)
        self.found_ms = found_ms
        self._table = table
        self._forbidden = file.forbidden_table
        self._forbidden_count = sum(map(len, self._forbidden.values()))
        for group in replaced.gone:
            self._entries.pop(group, None)
            self._dirty.discard(group)
        self._dirty.update(replaced.changed)
        self.data_version = file.data_version
        return replaced
