"""ConsumerOffsets: how far each group has come in each queue. RocketMQ: ConsumerOffsetManager.

The value is the next offset to consume. What is always true: a commit is taken as it comes, also a
lower one (resets and clones work by it); while a server-side reset of a queue is pending, commits
of that queue have no effect, and the next pull hands the reset out. Commits live in memory until
the next time they are written; a crash takes groups back to that, never forward. A group that is
not in the file at all might start at the end of a queue instead, so first offsets, and resets, are
urgent.

A group's name is looked at with its first offset in a queue, so that every key can be taken apart
again. A key of a file that cannot be is left out, and the rest of the file is read: what stands in
it may have come from a request.
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial
from typing import Any, Final

from oberth.broker.config_file import document_bytes
from oberth.errors import IllegalNameError
from oberth.formats import names
from oberth.formats.config_files import GROUP_SEPARATOR as SEPARATOR
from oberth.formats.config_files import ConsumerOffsets as OffsetsFile
from oberth.formats.config_files import split_offset_key
from oberth.formats.config_json import Shown, format_config
from oberth.formats.data_version import DataVersion

_LOG: Final = logging.getLogger(__name__)

PAIRS_MAX: Final = 1_000_000
"""Pairs of a topic and a group that have offsets; as many groups are allowed."""

OFFSETS_MAX: Final = 4_000_000
"""Offsets of queues in all of them."""

KEYS_A_TURN: Final = 1_000
"""Pairs that one turn of the loop looks at, in a quarter of a millisecond."""

PAIRS_SORTED_MAX: Final = 100_000
"""Pairs that are kept sorted by group; a million of them would take 200 MB."""

MERGED_A_TURN: Final = 4_000
"""Pairs that one turn of the loop takes over from a master."""

DELETED_A_TURN: Final = 2_000
"""Pairs that one turn of the loop looks at and may forget."""

_OFFSETS: Final = "offsetTable"
_PULL_OFFSETS: Final = "pullOffsetTable"


def keys_of_topic(keys: Iterable[str], topic: str) -> list[str]:
    """Those among ``topic@group`` that are the topic's. A light topic's name may hold an @ too."""
    start = topic + SEPARATOR
    return [key for key in keys if key.startswith(start) and _parts(key)[0] == topic]


def _parts(key: str) -> tuple[str, str]:
    """Topic and group of a key that is kept."""
    return split_offset_key(key) or (key, "")


def drop_odd_keys(table: dict[str, Any], name: str) -> None:
    """Leave entries of a file out whose key is not ``topic@group``; a line in the log says so."""
    odd = [key for key in table if split_offset_key(key) is None]
    for key in odd:
        del table[key]
    if odd:
        _LOG.error(
            "%s: offsets are left out whose key is not topic%sgroup: %d, the first of %.100r",
            name,
            SEPARATOR,
            len(odd),
            odd[0],
        )


class ConsumerOffsets:
    """Offsets of all groups.

    Args:
        update_version_step: commits that make a new data version.

    Attributes:
        is_dirty: whether anything changed since `encode`.
        is_urgent: whether a first offset or a reset is among it.
    """

    __slots__ = (
        "_commits",
        "_count",
        "_dirty",
        "_dirty_pulls",
        "_entries",
        "_keys_of_groups",
        "_offsets",
        "_pairs_version",
        "_pull_entries",
        "_pull_offsets",
        "_resets",
        "data_version",
        "is_dirty",
        "is_urgent",
        "update_version_step",
    )

    def __init__(self, update_version_step: int = 500) -> None:
        self.update_version_step = update_version_step
        self.data_version = DataVersion()
        self._offsets: dict[str, dict[int, int]] = {}
        self._pull_offsets: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._count = 0  # queues in _offsets
        self._pairs_version = 0  # counts pairs that came and went
        self._keys_of_groups: tuple[int, dict[str, list[str]]] = (-1, {})  # of which version
        # Entries as text, made again only for keys that changed: see document_bytes.
        self._entries: dict[str, str] = {}
        self._pull_entries: dict[str, str] = {}
        self._dirty: set[str] = set()
        self._dirty_pulls: set[str] = set()
        self.is_dirty = False
        self.is_urgent = False

    # Commits and queries

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        now_ms: int,
        *,
        is_own: bool = False,
    ) -> bool:
        """Note an offset; False if a pending reset made it void, or if it may not be kept.

        What the broker itself works off (``is_own``) has always room: there is little of it, and
        without its offset it would begin anew each time.
        """
        key = f"{topic}@{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return False
        queues = self._offsets.get(key)
        known = None if queues is None else queues.get(queue_id)
        if known is None:
            if not (is_own or self._may_keep(self._offsets, key, group)):
                return False
            self._count += 1
            self.is_urgent = True
        elif known == offset:
            return True
        if queues is None:
            queues = self._offsets[key] = {}
            self._pairs_version += 1
        queues[queue_id] = offset
        self._dirty.add(key)
        self.is_dirty = True
        self._commits += 1
        if self._commits % self.update_version_step == 0:
            self.data_version = self.data_version.next(now_ms)
        return True

    def _may_keep(self, table: Mapping[str, object], key: str, group: str) -> bool:
        """Whether a queue may have an offset that has none."""
        try:
            names.check_kept_group(group)
        except IllegalNameError as error:
            _LOG.warning("offset of %.260r not kept: %s", key, error)
            return False
        if self._count < OFFSETS_MAX and (len(table) < PAIRS_MAX or key in table):
            return True
        _LOG.warning(
            "offset of %s not kept: there are %d pairs of a topic and a group and %d offsets, "
            "allowed %d and %d; delete groups that nobody uses",
            key,
            len(table),
            self._count,
            PAIRS_MAX,
            OFFSETS_MAX,
        )
        return False

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has pulled, which is further than it has consumed."""
        key = f"{topic}@{group}"
        queues = self._pull_offsets.get(key)
        if queues is None:
            if not self._may_keep(self._pull_offsets, key, group):
                return
            queues = self._pull_offsets[key] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._dirty_pulls.add(key)
            self.is_dirty = True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to consume: a pending reset before a commit; -1 if neither is known."""
        key = f"{topic}@{group}"
        if self._resets:
            reset = self._resets.get(key, {}).get(queue_id)
            if reset is not None:
                return reset
        queues = self._offsets.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """How far a group has pulled; -1 if unknown."""
        return self._pull_offsets.get(f"{topic}@{group}", {}).get(queue_id, -1)

    def is_known(self, group: str, topic: str) -> bool:
        """Whether a group has an offset in some queue of a topic."""
        return f"{topic}@{group}" in self._offsets

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Committed offsets by queue; a copy."""
        return dict(self._offsets.get(f"{topic}@{group}", ()))

    # Resets

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Take a queue to an offset; the next pull of it is told so. False if it is not kept."""
        key = f"{topic}@{group}"
        self._resets.get(key, {}).pop(queue_id, None)  # or the commit would be void
        if not self.commit(group, topic, queue_id, offset, now_ms):
            return False
        self._resets.setdefault(key, {})[queue_id] = offset
        self.is_urgent = True
        return True

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the queue is pending."""
        return bool(self._resets) and queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which is pending no more; None without one."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    # Topics and groups

    @property
    def pair_count(self) -> int:
        """Pairs of topic and group that have offsets."""
        return len(self._offsets)

    def topics_of_group(self, group: str) -> list[str]:
        """Topics for which the group has offsets."""
        end = SEPARATOR + group
        return [key[: -len(end)] for key in self._table_of(group) if key.endswith(end)]

    def topics_of_group_in_slices(self, group: str) -> Generator[None, None, list[str]]:
        """The same, yielding about each quarter of a millisecond.

        Who shows many groups asks for each of them, so their pairs are sorted once.
        """
        end = SEPARATOR + group
        table = self._table_of(group)
        if self.pair_count <= PAIRS_SORTED_MAX:
            keys_of_groups = yield from self._keys_of_groups_in_slices()
            keys = dict.fromkeys(keys_of_groups.get(group, ()))
            return [key[: -len(end)] for key in keys if key in table]
        keys_of_all = list(table)
        found: list[str] = []
        for first in range(0, len(keys_of_all), KEYS_A_TURN):
            if first:
                yield
            piece = keys_of_all[first : first + KEYS_A_TURN]
            found += [key[: -len(end)] for key in piece if key.endswith(end)]
        return found

    def _keys_of_groups_in_slices(self) -> Generator[None, None, dict[str, list[str]]]:
        """Pairs by group, as they are or were when this began."""
        version, found = self._keys_of_groups
        if version == self._pairs_version:
            return found
        version, found = self._pairs_version, {}
        for number, key in enumerate(self._pairs()):
            if number and number % KEYS_A_TURN == 0:
                yield
            found.setdefault(_parts(key)[1], []).append(key)
        self._keys_of_groups = (version, found)
        return found

    def _table_of(self, group: str) -> Mapping[str, object]:
        """In which a group's pairs are."""
        return self._offsets

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that have offsets in the topic."""
        start = topic + SEPARATOR
        return [key[len(start) :] for key in keys_of_topic(self._offsets, topic)]

    def groups_of_topic_in_slices(self, topic: str) -> Generator[None, None, list[str]]:
        """The same, yielding about each quarter of a millisecond."""
        found: list[str] = []
        keys = self._pairs()
        for first in range(0, len(keys), KEYS_A_TURN):
            if first:
                yield
            piece = keys_of_topic(keys[first : first + KEYS_A_TURN], topic)
            found += [key[len(topic) + len(SEPARATOR) :] for key in piece]
        return found

    def keys_of_topics_in_slices(self, topics: Container[str]) -> Generator[None, None, list[str]]:
        """The pairs of some topics, for `among`, yielding about each quarter of a millisecond."""
        found: list[str] = []
        keys = self._pairs()
        for first in range(0, len(keys), KEYS_A_TURN):
            if first:
                yield
            piece = keys[first : first + KEYS_A_TURN]
            found += [key for key in piece if _parts(key)[0] in topics]
        return found

    def _pairs(self) -> list[str]:
        return list(self._offsets)

    def __iter__(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """(topic, group, offsets by queue) of everything known.

        What is forgotten before its turn is left out. Keys alone are taken down at the beginning:
        entries of a million pairs take 200 ms.
        """
        return self.among(self._pairs())

    def among(self, keys: Iterable[str]) -> Iterator[tuple[str, str, dict[int, int]]]:
        """(topic, group, offsets by queue) of those pairs that are known when their turn comes.

        A thread may go through them beside the loop: each pair is looked up and copied in one step.
        """
        for key in keys:
            queues = self._queues_of(key)
            if queues is not None:
                yield *_parts(key), queues

    def _queues_of(self, key: str) -> dict[int, int] | None:
        queues = self._offsets.get(key)
        return None if queues is None else dict(queues)

    def delete_topic(self, topic: str) -> None:
        """Forget what every group has in a topic."""
        for _ in self.delete_in_slices(topics=(topic,)):
            pass

    def delete_group(self, group: str) -> None:
        """Forget what a group has in every topic."""
        for _ in self.delete_in_slices(groups=(group,)):
            pass

    def delete_in_slices(
        self, *, topics: Collection[str] = (), groups: Collection[str] = ()
    ) -> Iterator[None]:
        """Forget what is of these topics and groups, yielding about each millisecond.

        They may be very many: what is kept is looked at once for all of them.
        """
        gone_topics, gone_groups = frozenset(topics), frozenset(groups)
        for table in self._tables():
            keys = list(table)
            for first in range(0, len(keys), DELETED_A_TURN):
                if first:
                    yield
                found = []
                for key in keys[first : first + DELETED_A_TURN]:
                    topic, group = _parts(key)
                    if group in gone_groups or topic in gone_topics:
                        found.append(key)
                self._delete(found)
            yield

    def delete(self, group: str, topic: str) -> None:
        """Forget what a group has in a topic."""
        self._delete([f"{topic}@{group}"])

    def _tables(self) -> tuple[Mapping[str, object], ...]:
        """All in which pairs of a topic and a group stand."""
        return self._offsets, self._pull_offsets, self._resets

    def _delete(self, keys: list[str]) -> None:
        self._pairs_version += 1
        for key in keys:
            self._count -= len(self._offsets.get(key, ()))
            for table in (self._offsets, self._pull_offsets, self._resets):
                table.pop(key, None)
            self._entries.pop(key, None)
            self._pull_entries.pop(key, None)
            self._dirty.discard(key)
            self._dirty_pulls.discard(key)
            self.is_dirty = True

    # ConsumerOffset.json

    def prepare(self, count: int) -> bool:
        """Make up to ``count`` changed entries text, 3 us each; False if none is left.

        For who must not be held up by the first offsets of thousands of groups.
        """
        for dirty, table, entries in self._texts():
            while dirty and count > 0:
                count -= 1
                key = dirty.pop()
                entries[key] = _entry_text(key, table[key])
        return bool(self._dirty or self._dirty_pulls)

    def _texts(self) -> tuple[tuple[set[str], dict[str, dict[int, int]], dict[str, str]], ...]:
        return (
            (self._dirty, self._offsets, self._entries),
            (self._dirty_pulls, self._pull_offsets, self._pull_entries),
        )

    def to_body(self) -> dict[str, Any]:
        """Everything, as 43 gives it to slaves, for ``config_in_slices``.

        RocketMQ: ConsumerOffsetSerializeWrapper. It has no pullOffsetTable, and a broker of 5.x
        passes over what it does not know only if all names in it are quoted.
        """
        return {
            "dataVersion": self.data_version.to_json(),
            _OFFSETS: Shown(self._offsets, dict, self._written),
            _PULL_OFFSETS: Shown(self._pull_offsets, _with_quoted_ids),
        }

    def _written(self, key: str) -> str | None:
        """The offsets of a pair as the file has them, if they are made text."""
        return None if key in self._dirty else self._entries.get(key)

    def encode(self) -> bytes:
        """The file's bytes. What changed since the last call is made text anew."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """What makes the file's bytes as they are now, in any thread: texts of a million pairs.

        Nothing is dirty afterwards. What changed is made text here, unless `prepare` has done it.
        """
        for dirty, table, entries in self._texts():
            for key in dirty:
                entries[key] = _entry_text(key, table[key])
            dirty.clear()
        self.is_dirty = self.is_urgent = False
        fields = {"dataVersion": self.data_version.to_json()}
        tables = (
            (_OFFSETS, [*self._entries.values()]),
            (_PULL_OFFSETS, [*self._pull_entries.values()]),
        )
        return partial(document_bytes, fields, tables)

    def merge_in_slices(self, file: OffsetsFile) -> Iterator[None]:
        """Take over a master's answer to 43: its offsets win, others stay as they are.

        What a group that reads here has committed stays until its master knows of it. RocketMQ:
        SlaveSynchronize's putAll.

        Args:
            file: the answer, as `decoded` gives it.
        """
        for found, (dirty, table, _) in zip(
            (file.offset_table, file.pull_offset_table), self._texts(), strict=True
        ):
            for number, (key, queues) in enumerate(found.items(), 1):
                known = table.get(key)
                if known != queues:
                    if table is self._offsets:
                        self._count += len(queues) - len(known or ())
                        self._pairs_version += known is None
                    table[key] = queues
                    dirty.add(key)
                    self.is_dirty = True
                if not number % MERGED_A_TURN:
                    yield
        if self.data_version != file.data_version:
            self.data_version = file.data_version
            self.is_dirty = True

    @staticmethod
    def decoded(document: Any) -> OffsetsFile:
        """A file of either line, in any thread: 4 us a pair.

        Raises:
            ConfigFormatError: an offset that is no number.
        """
        file = OffsetsFile.from_json(document, "consumerOffset.json")
        for table in (file.offset_table, file.pull_offset_table):
            drop_odd_keys(table, "consumerOffset.json")
        return file

    def read(self, document: Any) -> None:
        """Take over a file of either line.

        Raises:
            ConfigFormatError: see `decoded`.
        """
        self._take(self.decoded(document))

    def _take(self, file: OffsetsFile) -> None:
        self._pairs_version += 1
        self.data_version = file.data_version
        self._offsets = file.offset_table
        self._count = sum(map(len, self._offsets.values()))
        self._pull_offsets = file.pull_offset_table
        self._entries.clear()
        self._pull_entries.clear()
        self._dirty = set(self._offsets)
        self._dirty_pulls = set(self._pull_offsets)


def _with_quoted_ids(queues: dict[int, int]) -> dict[str, int]:
    """Offsets by queue id, the ids as strings."""
    return {str(queue_id): offset for queue_id, offset in queues.items()}


def _entry_text(key: str, queues: dict[int, int]) -> str:
    """`config_file.entry_text` for offsets, in half of its time."""
    if not queues:
        return f"\n\t\t{format_config(key)}:{{}}"
    offsets = ",".join([f"\n\t\t\t{queue_id}:{offset}" for queue_id, offset in queues.items()])
    return f"\n\t\t{format_config(key)}:{{{offsets}\n\t\t}}"
