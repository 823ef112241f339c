"""What a send needs to know of its topic and of its channel, worked out once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.broker.attributes import CLEANUP_POLICY
from oberth.broker.topic_configs import queue_nums_max
from oberth.errors import IllegalNameError
from oberth.formats import names
from oberth.formats.queue_mapping import led_queues
from oberth.kernels import runtime
from oberth.kernels.memory import address
from oberth.kernels.sends import HOSTS_SIZE
from oberth.remoting.code import ResponseCode
from oberth.remoting.refusal import Refusal
from oberth.store.compaction_store import POLICY as COMPACTION

if TYPE_CHECKING:
    from oberth.broker.stats import StatsItem
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.config_files import LogicQueueMappingItem, TopicQueueMappingDetail
    from oberth.formats.topic_config import TopicConfig

DLQ_QUEUE_NUMS: Final = 1
"""Queues of a dead-letter topic."""


class ClientAddresses:
    """What a message from a channel has as its hosts. Kept in ``channel.context``.

    Attributes:
        born_host: the client, as a record holds it.
        store_host: the broker as the client knows it, as a record holds it.
        hosts: both, one after the other.
        hosts_at: the address of ``hosts`` for compiled kernels; 0 where they take none of its size.
        id_prefix: ``store_host`` as offset message ids begin; ``id_prefix_raw`` in ASCII.
        sends: whether compiled kernels have served a send of the channel.
    """

    __slots__ = (
        "born_host", "hosts", "hosts_at", "id_prefix", "id_prefix_raw", "sends", "store_host",
    )  # fmt: skip

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        self.born_host = born_host
        self.store_host = store_host
        self.hosts = born_host + store_host
        is_plain = len(self.hosts) == HOSTS_SIZE and runtime.available()
        self.hosts_at = address(self.hosts) if is_plain else 0
        self.id_prefix = store_host.hex().upper()
        self.id_prefix_raw = self.id_prefix.encode()
        self.sends = False


class SendTopic:
    """The checks of a topic, worked out."""

    __slots__ = (
        "is_batch_queue", "is_retry", "is_special", "led", "logical", "puts", "queue_nums_max",
        "sizes", "wants_key", "write_queue_nums",
    )  # fmt: skip

    def __init__(
        self,
        topic_config: TopicConfig,
        puts: StatsItem,
        sizes: StatsItem,
        mapping: TopicQueueMappingDetail | None = None,
    ) -> None:
        self.queue_nums_max = queue_nums_max(topic_config)
        self.led: dict[int, int] | None = None
        """Of a static topic: logical to physical queue, of those that take messages here."""
        self.logical: dict[int, tuple[int, LogicQueueMappingItem]] = {}
        """Of a static topic: physical to logical queue, and the stretch."""
        if mapping is not None:
            self.queue_nums_max = 0  # every queue id is one to look at
            self.led = led_queues(mapping)
            self.logical = {
                physical: (logical, mapping.hosted_queues[logical][-1])
                for logical, physical in self.led.items()
            }
        self.write_queue_nums = topic_config.write_queue_nums
        self.is_batch_queue = topic_config.is_batch_queue
        self.is_retry = (topic_config.topic_name or "").startswith(names.RETRY_PREFIX)
        self.wants_key = topic_config.attributes.get(CLEANUP_POLICY) == COMPACTION
        self.is_special = self.is_retry or self.wants_key
        self.puts = puts
        self.sizes = sizes


def internal_topic(
    topics: TopicConfigs, topic: str, queue_nums: int, topic_sys_flag: int = 0
) -> TopicConfig:
    """A group's retry or dead-letter topic, made if it is not there yet.

    Raises:
        Refusal: the group's name makes no topic's name.
    """
    try:
        return topics.create_internal(topic, queue_nums, topic_sys_flag=topic_sys_flag)
    except IllegalNameError as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist, {error}") from None
