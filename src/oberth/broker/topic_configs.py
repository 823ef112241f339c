"""TopicConfigs: the topics of a broker, in memory and in topics.json. RocketMQ: TopicConfigManager.

What is always true: every name in the table has passed ``formats.names``; every change has a new
data version, is written before it is answered, and is announced to the name servers by the owner
through ``on_change``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from oberth.broker.attributes import TOPIC_ATTRIBUTES, alter_attributes
from oberth.broker.broker_config import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    BrokerConfig,
)
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
from oberth.formats.topic_config import BATCH_CQ, QUEUE_TYPE_ATTRIBUTE, TopicConfig
from oberth.formats.topic_config import TopicConfigs as TopicsFile
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.message_store import MessageStore

QUEUE_NUMS_MAX: Final = 65_536
"""Queues of one topic."""

TOPIC_COUNT_MAX: Final = 1_000_000
PERM_MAX: Final = 15

FLAG_UNIT: Final = 1
FLAG_UNIT_SUB: Final = 2

RMQ_PERM_ALL: Final = PERM_READ | PERM_WRITE | PERM_INHERIT
SCHEDULE_QUEUE_NUMS: Final = 18
BENCHMARK_QUEUE_NUMS: Final = 1024
CLUSTER_QUEUE_NUMS: Final = 16
REVIVE_QUEUE_NUMS: Final = 8

_TABLE: Final = "topicConfigTable"
_BATCH: Final = {QUEUE_TYPE_ATTRIBUTE: BATCH_CQ}


def perm_text(perm: int) -> str:
    """A permission as Java prints it: ``RW-``, ``RWX``."""
    return (
        ("R" if perm & PERM_READ else "-")
        + ("W" if perm & PERM_WRITE else "-")
        + ("X" if perm & PERM_INHERIT else "-")
    )


def java_text(topic_config: TopicConfig) -> str:
    """A topic as Java prints it; remarks quote it."""
    attributes = ", ".join(f"{name}={value}" for name, value in topic_config.attributes.items())
    return (
        f"TopicConfig [topicName={topic_config.topic_name}, "
        f"readQueueNums={topic_config.read_queue_nums}, "
        f"writeQueueNums={topic_config.write_queue_nums}, perm={perm_text(topic_config.perm)}, "
        f"topicFilterType={topic_config.topic_filter_type}, "
        f"topicSysFlag={topic_config.topic_sys_flag}, "
        f"order={'true' if topic_config.order else 'false'}, attributes={{{attributes}}}]"
    )


def queue_nums_max(topic_config: TopicConfig) -> int:
    """Queues that exist: the larger of both numbers."""
    return max(topic_config.read_queue_nums, topic_config.write_queue_nums)


def could_have_queue(store: MessageStore, topics: TopicConfigs, topic: str, queue_id: int) -> bool:
    """Whether a topic has a queue, or had it when it had more: of no other is anything kept."""
    topic_config = topics.get(topic)
    return (
        topic_config is not None and 0 <= queue_id < queue_nums_max(topic_config)
    ) or store.queue(topic, queue_id) is not None


def lost_topics(
    store: MessageStore, topics: TopicConfigs, table_ms: int
) -> list[tuple[str, int, bool]]:
    """Topics that have messages, and that the table should have and has not.

    Args:
        store: loaded.
        topics: the table.
        table_ms: when the table was changed last, as it was read. What has no message since then
            was deleted from it, unless it has batch queues: another topic could not have its name.

    Returns:
        Name, number of queues as far as they are known, and whether they are batch queues.
    """
    found = []
    for topic in store.topics():
        if topic in topics or names.is_lmq(topic) or names.is_system_topic(topic):
            continue
        queues = store.queues.queues(topic)
        units = [unit for unit in (queue.latest_unit() for queue in queues) if unit is not None]
        newest_ms = max(
            (
                store.commit_log.store_timestamp(unit.commit_log_offset, unit.record_size)
                for unit in units
            ),
            default=-1,
        )
        is_batch = any(isinstance(queue, BatchConsumeQueue) for queue in queues)
        if is_batch or (newest_ms >= table_ms and units):
            queue_nums = min(1 + max(queue.queue_id for queue in queues), QUEUE_NUMS_MAX)
            found.append((topic, queue_nums, is_batch))
    return found


def check_topic_config(topic_config: TopicConfig) -> None:
    """Compare numbers with their limits.

    Raises:
        OptionError: one is outside.
    """
    for name, value, high in (
        ("readQueueNums", topic_config.read_queue_nums, QUEUE_NUMS_MAX),
        ("writeQueueNums", topic_config.write_queue_nums, QUEUE_NUMS_MAX),
        ("perm", topic_config.perm, PERM_MAX),
        ("topicSysFlag", topic_config.topic_sys_flag, 2**31 - 1),
    ):
        if not 0 <= value <= high:
            raise OptionError(
                f"topic {topic_config.topic_name}: {name} is {value}, allowed 0…{high}"
            )


def _topic(
    name: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE, topic_sys_flag: int = 0
) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queue_nums,
        write_queue_nums=queue_nums,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
    )


class TopicConfigs:
    """All topics of a broker.

    Args:
        config: for the topics that a broker makes at start, and for automatic creation.
        on_change: called after every change with the names that were made, changed or deleted.
        clock_ms: the time of data versions.

    Attributes:
        is_dirty: whether anything changed since `encode`.
        found_batch_topics: topics that have batch queues on the disk; what they are is known of
            them though the table was lost.
    """

    __slots__ = (
        "_clock_ms",
        "_config",
        "_dirty",
        "_entries",
        "_on_change",
        "_table",
        "_template",
        "data_version",
        "found_batch_topics",
        "is_dirty",
        "light_topic",
        "system_topics",
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
        self._table: dict[str, TopicConfig] = {}
        self._entries: dict[str, str] = {}
        self._dirty: set[str] = set()
        self._template: tuple[TopicConfig, EntryTemplate] | None = None
        self.data_version = DataVersion()
        self.is_dirty = False
        self.found_batch_topics: frozenset[str] = frozenset()
        self.system_topics: set[str] = set()
        self.light_topic: TopicConfig | None = None
        """With light message queues: the configuration of each of them, none of which is kept."""

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._table.values()))

    def __contains__(self, topic: object) -> bool:
        return topic in self._table or (isinstance(topic, str) and self._is_light(topic))

    def _is_light(self, topic: str) -> bool:
        return self.light_topic is not None and names.is_lmq(topic) and names.is_stored_topic(topic)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic, or None."""
        found = self._table.get(topic)
        return self.light_topic if found is None and self._is_light(topic) else found

    def as_registered(self, topic_config: TopicConfig) -> TopicConfig:
        """What name servers are told of a topic: its perm is cut down to the broker's own."""
        if self._config.readable and self._config.writable:
            return topic_config
        return replace(topic_config, perm=topic_config.perm & self._config.broker_permission)

    def attributes(self, topic: str) -> Mapping[str, str]:
        """A topic's attributes; of an unknown one those that its queues show."""
        found = self._table.get(topic)
        if found is not None:
            return found.attributes
        return _BATCH if topic in self.found_batch_topics else {}

    def is_order_topic(self, topic: str) -> bool:
        """Whether the topic is known and ordered."""
        found = self._table.get(topic)
        return found is not None and found.order

    def is_system_topic(self, topic: str) -> bool:
        """Whether the topic is the broker's own: by its name, or made at start."""
        return names.is_system_topic(topic) or topic in self.system_topics

    # Changes

    def add_system_topics(self, schedule_queue_nums: int = SCHEDULE_QUEUE_NUMS) -> None:
        """Make the topics that every broker has, where they are missing."""
        config = self._config
        cluster, name = config.broker_cluster_name, config.broker_name
        wanted = [
            _topic(names.SELF_TEST_TOPIC, 1),
            _topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUE_NUMS),
            _topic(
                cluster,
                CLUSTER_QUEUE_NUMS,
                RMQ_PERM_ALL if config.cluster_topic_enable else PERM_INHERIT,
            ),
            _topic(name, 1, RMQ_PERM_ALL if config.broker_topic_enable else PERM_INHERIT),
            _topic(names.OFFSET_MOVED_EVENT, 1),
            _topic(names.SCHEDULE_TOPIC, schedule_queue_nums),
            _topic(names.reply_topic(cluster), 1),
            _topic(names.TRANS_HALF_TOPIC, 1),
            _topic(names.TRANS_OP_HALF_TOPIC, 1),
            # Nothing is ever stored in these two, as with Apache's brokers unless they are told to
            # keep transactions in RocksDB; a comparison of topic lists shows them.
            _topic(names.ROCKSDB_TRANS_HALF_TOPIC, 1),
            _topic(names.ROCKSDB_TRANS_OP_HALF_TOPIC, 1),
            _topic(names.TIMER_TOPIC, 1),
            _topic(names.revive_topic(cluster), REVIVE_QUEUE_NUMS),
            _topic(names.SYNC_BROKER_MEMBER_GROUP_PREFIX + name, 1, PERM_INHERIT),
        ]
        if config.auto_create_topic_enable:
            nums = config.default_topic_queue_nums
            wanted.append(_topic(names.AUTO_CREATE_TOPIC_KEY, nums, RMQ_PERM_ALL))
        if config.trace_topic_enable:
            wanted.append(_topic(config.msg_trace_topic_name, 1))
        self.system_topics |= {str(each.topic_name) for each in wanted}
        if not config.auto_create_topic_enable and names.AUTO_CREATE_TOPIC_KEY in self._table:
            # A template left by an earlier start would go on making topics.
            self._remove(names.AUTO_CREATE_TOPIC_KEY)
        made = [each for each in wanted if each.topic_name not in self._table]
        for each in made:
            self._put(each)
        if made:
            self._changed([str(each.topic_name) for each in made])

    def update(self, topic_config: TopicConfig, changes: Mapping[str, str] | None = None) -> bool:
        """Make or replace a topic; False if it is there and the same.

        Args:
            topic_config: as it is to be, its attributes aside.
            changes: signed changes of the attributes, see ``attributes``.

        Raises:
            IllegalNameError: a name that no topic may have.
            OptionError: a number outside its limits.
            AttributeChangeError: a change of the attributes that is not allowed.
        """
        name = names.check_topic(topic_config.topic_name or "")
        check_topic_config(topic_config)
        old = self._table.get(name)
        wanted = replace(
            topic_config,
            attributes=alter_attributes(
                TOPIC_ATTRIBUTES,
                {} if old is None else old.attributes,
                changes or {},
                create=old is None,
            ),
        )
        if old == wanted:
            return False
        self._check_room(old is None)
        self._put(wanted)
        self._changed([name])
        return True

    def create_by_send(
        self, topic: str, default_topic: str, queue_nums: int, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Make a topic because somebody sends to it; None if no template allows it.

        RocketMQ: createTopicInSendMessageMethod.

        Raises:
            IllegalNameError: a name that no topic may have.
        """
        found = self._table.get(topic)
        if found is not None:
            return found
        names.check_topic(topic)
        template = self._table.get(default_topic)
        if template is None or not template.is_inherited:
            return None
        if (
            default_topic == names.AUTO_CREATE_TOPIC_KEY
            and not self._config.auto_create_topic_enable
        ):
            return None
        nums = max(0, min(queue_nums, template.write_queue_nums))
        self._check_room(True)
        made = TopicConfig(
            topic_name=topic,
            read_queue_nums=nums,
            write_queue_nums=nums,
            perm=template.perm & ~PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=FLAG_UNIT if unit_mode else 0,
        )
        self._put_plain(made)
        self._changed([topic])
        return made

    def create_internal(
        self,
        topic: str,
        queue_nums: int,
        perm: int = PERM_READ | PERM_WRITE,
        *,
        topic_sys_flag: int = 0,
    ) -> TopicConfig:
        """A retry, dead-letter or other topic that the broker needs, made if it is missing.

        RocketMQ: createTopicInSendMessageBackMethod.

        Raises:
            IllegalNameError: a name that no topic may have.
        """
        found = self._table.get(topic)
        if found is not None:
            return found
        names.check_stored_topic(topic)
        self._check_room(True)
        made = _topic(topic, queue_nums, perm, topic_sys_flag)
        self._put_plain(made)
        self._changed([topic])
        return made

    def restore(self, topic: str, queue_nums: int, *, is_batch: bool) -> None:
        """A topic that messages are stored in, made again because the file does not have it."""
        names.check_stored_topic(topic)
        made = _topic(topic, queue_nums)
        if is_batch:
            made.attributes[QUEUE_TYPE_ATTRIBUTE] = BATCH_CQ
        self._put(made)
        self._changed([topic])

    def widen_internal(self, topic: str, queue_nums: int) -> None:
        """Give a topic that the broker needs at least so many queues; it never has fewer."""
        found = self._table[topic]
        if found.read_queue_nums < queue_nums or found.write_queue_nums < queue_nums:
            self._put(
                replace(
                    found,
                    read_queue_nums=max(found.read_queue_nums, queue_nums),
                    write_queue_nums=max(found.write_queue_nums, queue_nums),
                )
            )
            self._changed([topic])

    def set_order_topics(self, topics: set[str]) -> None:
        """Mark the topics that a name server's ORDER_TOPIC_CONFIG names."""
        changed = []
        for name, topic_config in self._table.items():
            if name in topics and not topic_config.order:
                topic_config.order = True
                self._dirty.add(name)
                changed.append(name)
        if changed:
            self._changed(changed)

    def announce(self, topic: str) -> None:
        """What the name servers are told of a topic has changed, though its configuration has not.

        They only listen to a table of a new version.
        """
        self._changed([topic])

    def delete(self, topic: str) -> bool:
        """Forget a topic; False if there is none."""
        if topic not in self._table:
            return False
        self._remove(topic)
        self._changed([topic])
        return True

    def _check_room(self, creates: bool) -> None:
        if creates and len(self._table) >= TOPIC_COUNT_MAX:
            raise IllegalNameError(
                f"{len(self._table)} topics, at most {TOPIC_COUNT_MAX} are allowed"
            )

    def _put(self, topic_config: TopicConfig) -> None:
        name = str(topic_config.topic_name)
        self._table[name] = topic_config
        self._dirty.add(name)

    def _put_plain(self, topic_config: TopicConfig) -> None:
        """`_put` for a topic without attributes, most of which are alike but for their names."""
        name = str(topic_config.topic_name)
        nameless = replace(topic_config, topic_name="")
        if self._template is None or self._template[0] != nameless:
            self._template = (
                nameless,
                EntryTemplate(_TABLE, lambda each: replace(nameless, topic_name=each).to_json()),
            )
        self._table[name] = topic_config
        self._entries[name] = self._template[1].text(name)
        self._dirty.discard(name)

    def _remove(self, topic: str) -> None:
        del self._table[topic]
        self._entries.pop(topic, None)
        self._dirty.discard(topic)

    def _changed(self, topics: list[str]) -> None:
        self.data_version = self.data_version.next(self._clock_ms())
        self.is_dirty = True
        self._on_change(topics)

    # Topics.json

    def to_body(self) -> dict[str, Any]:
        """All topics as 21 shows them, for ``config_in_slices``.

        RocketMQ: TopicConfigSerializeWrapper.
        """
        return {
            "dataVersion": self.data_version.to_json(),
            _TABLE: Shown(self._table, TopicConfig.to_json, self._written),
        }

    def _written(self, topic: str) -> str | None:
        """The entry of a topic as the file has it, if that is made text."""
        return None if topic in self._dirty else self._entries.get(topic)

    def prepare(self, count: int) -> bool:
        """Make up to ``count`` changed entries text, 40 us each; False if none is left."""
        while self._dirty and count > 0:
            count -= 1
            topic = self._dirty.pop()
            self._entries[topic] = entry_text(_TABLE, topic, self._table[topic].to_json())
        return bool(self._dirty)

    @property
    def is_quickly_encoded(self) -> bool:
        """Whether `encode` takes a millisecond or two, not more."""
        return len(self._table) <= ENTRIES_AT_ONCE and len(self._dirty) <= TEXTS_AT_ONCE

    def encode(self) -> bytes:
        """The file's bytes. What changed since the last call is made text anew."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """What makes the file's bytes of the table as it is now, in any thread."""
        self.prepare(len(self._dirty))
        self.is_dirty = False
        fields = {"dataVersion": self.data_version.to_json()}
        return partial(document_bytes, fields, ((_TABLE, list(self._entries.values())),))

    def read(self, document: Any) -> None:
        """Take over a file of either line.

        Raises:
            ConfigFormatError: see `decoded`.
        """
        self.replace_all(*self.decoded(document))

    def decoded(self, document: Any) -> tuple[dict[str, TopicConfig], DataVersion]:
        """What `replace_all` takes, in any thread, 10 us each. One that is as it was is the same.

        Raises:
            ConfigFormatError: something that is no topic, or a name that no directory may have.
        """
        file = TopicsFile.from_json(document, "topics.json")
        table: dict[str, TopicConfig] = {}
        for key, topic_config in file.topic_config_table.items():
            try:
                name = names.check_stored_topic(topic_config.topic_name or "")
                check_topic_config(topic_config)
            except (IllegalNameError, OptionError) as error:
                raise ConfigFormatError(f"topics.json: {key[:100]!r}: {error}") from None
            known = self._table.get(name)
            table[name] = known if known is not None and known == topic_config else topic_config
        return table, file.data_version

    def replace_all(self, table: dict[str, TopicConfig], version: DataVersion) -> Replaced:
        """Have these topics and no others."""
        replaced = replaced_names(self._table, table)
        self._table = table
        for topic in replaced.gone:
            self._entries.pop(topic, None)
            self._dirty.discard(topic)
        self._dirty.update(replaced.changed)
        self.data_version = version
        return replaced
