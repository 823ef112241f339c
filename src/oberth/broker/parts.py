"""Parts: what the services and processors of one broker work with.

Configuration, tables, store and clock, and who wants to hear of their changes. A part knows of no
service and of no processor: each of these takes the few parts that it names in its constructor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from oberth.broker.cold_reads import ColdReads
from oberth.broker.consumer_offsets import ConsumerOffsets
from oberth.broker.consumers import ConsumerTable
from oberth.broker.held_requests import HoldLimits
from oberth.broker.lmq_consumer_offsets import LmqConsumerOffsets
from oberth.broker.own_address import OwnAddress
from oberth.broker.producers import ProducerTable
from oberth.broker.pull_request_hold import PullRequestHold
from oberth.broker.rebalance_locks import RebalanceLocks
from oberth.broker.schedule_service import ScheduleService
from oberth.broker.static_topics import StaticTopics
from oberth.broker.stats import BrokerStats
from oberth.broker.subscription_groups import SubscriptionGroups
from oberth.broker.topic_configs import TopicConfigs
from oberth.broker.unique_ids import UniqueIds
from oberth.errors import OptionError
from oberth.formats import names
from oberth.formats.message_store_config import Dispatch
from oberth.formats.topic_config import TopicConfig
from oberth.store.files import FileSystem, OsFileSystem
from oberth.store.following_store import FollowingStore
from oberth.store.message_store import MessageStore
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.role import Role
    from oberth.formats.message_store_config import MessageStoreConfig

PROC_MEMORY: Final = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")


class FileKeeper(Protocol):
    """A service that keeps files beside the store."""

    def load(self) -> None:
        """Read them; the store is loaded and not started yet. In a thread, may block."""

    def close(self) -> None:
        """Write them; the store is still open, nobody is served any more. In a thread, may block.

        Only called after `load`.
        """


class Parts:
    """The parts of one broker; made once, and all there from the beginning.

    Args:
        config: what the broker is.
        store_config: where and how it stores.
        clock_ms: the wall clock.
        files: where the store keeps its files; None: the operating system's.
        role: what a controller has made of the broker; None without one.

    Attributes:
        now_ms: the wall clock.
        files: where the store and the tables keep their files.
        role: what a controller has made of the broker; None without one.
        config_dir: where the tables' files lie.
        follows: whether another process dispatches what is appended here.
        in_memory_bytes: the end of the log that is taken to be in memory.
        ticks: called with the time about every 100 ms.
        topic_listeners: called with the names of topics that were made, changed or deleted, once
            the tables are loaded.
        group_listeners: the same for groups.
        reset_listeners: called with group, topic and queue id when an offset was reset.

    Raises:
        OptionError: options that do not go together.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
        files: FileSystem | None = None,
        role: Role | None = None,
    ) -> None:
        self.config = config
        self.role = role
        self.store_config = store_config
        self.now_ms = clock_ms
        self.started_at_ms = clock_ms()
        self.config_dir = (
            Path(os.path.expanduser(store_config.store_path_root_dir)).absolute() / "config"
        )
        self.files: FileSystem = OsFileSystem() if files is None else files
        self.ticks: list[Callable[[int], None]] = []
        self.topic_listeners: list[Callable[[list[str]], None]] = []
        self.group_listeners: list[Callable[[list[str]], None]] = []
        self.reset_listeners: list[Callable[[str, str, int], None]] = []

        self.own = OwnAddress(config, store_config)
        self.unique_ids = UniqueIds(self.own.store_host[:-4])
        self.stats = BrokerStats(config.broker_cluster_name, self.started_at_ms)
        self.topics = TopicConfigs(config, self.topics_changed, clock_ms)
        self.static_topics = StaticTopics(self.config_dir, config.broker_name, clock_ms, self.files)
        self.groups = SubscriptionGroups(config, self.groups_changed, clock_ms)
        has_light_queues = store_config.enable_lmq
        offsets_kind = LmqConsumerOffsets if has_light_queues else ConsumerOffsets
        self.offsets = offsets_kind(config.consumer_offset_update_version_step)
        if has_light_queues:
            self.topics.light_topic = TopicConfig(
                topic_name=names.LMQ_PREFIX, read_queue_nums=1, write_queue_nums=1
            )
            self.groups.has_light_groups = True
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self.locks = RebalanceLocks(config.rebalance_lock_max_live_time_ms)
        self.hold_limits = HoldLimits()
        self.hold = PullRequestHold(limits=self.hold_limits)
        self.cold_reads = ColdReads()
        self.follows = store_config.dispatch is Dispatch.SPARK
        if self.follows and config.enable_calc_filter_bit_map:
            raise OptionError("dispatch=spark does not go with enableCalcFilterBitMap=true")
        self.store = (FollowingStore if self.follows else MessageStore)(
            store_config,
            files=self.files,
            clock_ms=clock_ms,
            topic_attributes=self.topics.attributes,
        )
        self.schedule = ScheduleService(
            self.store, lambda: self.own.store_host, config.delay_offset_update_version_step
        )
        self.in_memory_bytes = (
            _physical_memory() * store_config.access_message_in_memory_max_ratio // 100
        )

    def topics_changed(self, topics: list[str]) -> None:
        """Topics were made, changed or deleted: tells who wants to hear of it."""
        for listener in self.topic_listeners:
            listener(topics)

    def groups_changed(self, groups: list[str]) -> None:
        """Groups were made, changed or deleted: tells who wants to hear of it."""
        for listener in self.group_listeners:
            listener(groups)

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """A queue's offset was reset: tells who wants to hear of it."""
        for listener in self.reset_listeners:
            listener(group, topic, queue_id)


def _physical_memory() -> int:
    """Bytes of the machine's memory; 24 GiB, as Java assumes, where that cannot be known."""
    try:
        pages, size = (os.sysconf(name) for name in PROC_MEMORY)
    except (OSError, ValueError, AttributeError):
        return 24 << 30
    return pages * size
