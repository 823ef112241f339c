"""TableFiles: when the tables of a broker go to ``config/``, and in what order.

    file                      written
    topics.json               when a topic changes, before the change is answered; a burst of
                              changes once; what clients make again within a second
    subscriptionGroup.json    when a group changes, before the change is answered
    consumerOffset.json       every flushConsumerOffsetInterval; what must not wait, each second.
                              lmqConsumerOffset.json with light queues
    delayOffset.json          every flushDelayOffsetInterval

Two files are never ahead of the log: before offsets of groups and of delay levels are written, the
messages that they count are on the disk. While it does not take those, the two stay as they are,
and topics and groups are written all the same. A change that is answered is in its file, whose
bytes follow to the disk with the next round.

With SYNC_FLUSH a thread brings a changed table of topics or groups to the disk, once for all
changes meanwhile, and what is acknowledged behind a change waits for it: `behind_tables` for
messages, `answer_when_on_disk` for changes. Without SYNC_FLUSH a thread writes such a table where
it is large, or was not taken at once, and who changed it waits until it is written. While nothing
changes nobody waits.
Topics that clients make again by their heartbeats are not waited for: what consumers send back to
them is acknowledged without the disk, and `TableFiles.know_lost_topics` finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.config_file import ConfigFile, refuse_rocksdb
from oberth.broker.delay_progress import DelayProgress
from oberth.broker.topic_configs import lost_topics
from oberth.errors import StoreError
from oberth.formats import names, paths
from oberth.formats.message_store_config import BrokerRole, FlushDiskType
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.store.messages import PutMessageStatus

if TYPE_CHECKING:
    from pathlib import Path

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.schedule_service import ScheduleService
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.files import FileSystem
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

OFFSETS_AT_A_TIME: Final = 250
CONFIGS_AT_A_TIME: Final = 20
"""Entries of a table that are made text in one turn of the loop: a millisecond."""

NOT_ON_DISK: Final = "done, but the disk did not take it"


class WrittenOnce:
    """However many topics (or groups) change within, their file is written once, at the end.

    ``with topics_written_once:`` for bursts, before any of them is answered. Not to be nested.

    Attributes:
        changed: whether anything has changed within, the last time.
    """

    __slots__ = ("_write", "changed", "is_held")

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self.is_held = False
        self.changed = False

    def __enter__(self) -> None:
        self.is_held = True
        self.changed = False

    def __exit__(self, *_: object) -> None:
        self.is_held = False
        if self.changed:
            self._write()


class TopicsWrittenSoon:
    """What becomes of topics within is written within a second, and answered before.

    ``with topics_written_soon:`` for topics that clients make again when they need them: a kill may
    forget them.
    """

    __slots__ = ("is_held",)

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class TableFiles:
    """The files of one broker's tables.

    Lifecycle: `load` before the store is loaded, `match_store` after it, `know_lost_topics` after
    the broker's own topics, `write_first` when the tables are complete; then `on_time` and
    `on_second`; `last_writes` at the end. The first four and the last may block, and run in a
    thread.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        config_dir: Path,
        files: FileSystem,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        schedule: ScheduleService,
        now_ms: Callable[[], int],
        start_task: StartTask,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._config_dir = config_dir
        self._files = files
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._now_ms = now_ms
        self._start_task = start_task
        self._has_light_queues = store_config.enable_lmq
        self._topics_file = ConfigFile(config_dir / "topics.json", files)
        self._groups_file = ConfigFile(config_dir / "subscriptionGroup.json", files)
        self._offsets_file = ConfigFile(
            config_dir
            / ("lmqConsumerOffset.json" if self._has_light_queues else "consumerOffset.json"),
            files,
        )
        self._delay_file = ConfigFile(config_dir / "delayOffset.json", files)
        self.delay_progress = DelayProgress(store, schedule)
        self._unsynced: set[ConfigFile] = set()
        self._promises_disk = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        # If so: changes of topics and groups, counted; how many of them the disk has; what it lacks
        # them in; and who waits for which.
        self._changes = 0
        self._changes_on_disk = 0
        self._to_sync: set[ConfigFile] = set()
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._is_syncing = False
        self._loaded_ms = 0
        self.topics_written_once = WrittenOnce(self.write_topics)
        self.groups_written_once = WrittenOnce(self.write_groups)
        self.topics_written_soon = TopicsWrittenSoon()
        self.is_writing = False
        self._next_ms = 0
        self._next_delays_ms = 0
        self._are_delays_due = False

    # Load

    def load(self) -> None:
        """Read the tables.

        Raises:
            ConfigFormatError: a file and its back-up cannot be read.
        """
        refuse_rocksdb(self._config_dir)
        self._topics_file.load(self._topics.read)
        self._loaded_ms = self._topics.data_version.timestamp
        batch_queues = f"{self._store_config.store_path_root_dir}/{paths.BATCH_CONSUME_QUEUE}"
        self._topics.found_batch_topics = frozenset(self._files.list(batch_queues))
        self._static_topics.load()
        self._groups_file.load(self._groups.read)
        if not self._offsets_file.load(self._offsets.read) and self._has_light_queues:
            # Light queues were switched on after groups had come some way.
            ConfigFile(self._config_dir / "consumerOffset.json", self._files).load(
                self._offsets.read
            )
        self._delay_file.load(self._schedule.read)

    def match_store(self) -> None:
        """The store is loaded: take forward, and back, what counts its messages."""
        self.delay_progress.load()
        self._clamp_offsets()

    def _clamp_offsets(self) -> None:
        """Take offsets back that lie past the end of their queue.

        After a loss of power the log may end before what groups had already consumed. New messages
        would fill the queue up to such an offset, and the group would never see them. A replica
        under a controller leaves them until it is the master: its queues end before its log, where
        it does not know yet what is confirmed, and are empty when the log has been cut.
        """
        if self._store.confirmed_by_replicas is not None:
            return
        for topic, group, queues in self._offsets:
            if topic.startswith(names.LMQ_PREFIX):
                continue
            for queue_id, offset in queues.items():
                end = self._store.max_offset_in_queue(topic, queue_id)
                if offset > end:
                    _LOG.warning(
                        "%s@%s queue %d: offset %d taken back to the queue's end, %d",
                        topic, group, queue_id, offset, end,
                    )  # fmt: skip
                    self._offsets.commit(group, topic, queue_id, end, self._now_ms())

    def know_lost_topics(self) -> None:
        """Make topics known again that have messages, and that a loss of power took from the table.

        Their queues are as many as have messages; what else they were is not known any more.
        """
        if self._store_config.broker_role is BrokerRole.SLAVE:
            return  # its master tells it
        for topic, queue_nums, is_batch in lost_topics(self._store, self._topics, self._loaded_ms):
            _LOG.error(
                "topic %s has messages and was not in topics.json: made again with %d queues",
                topic, queue_nums,
            )  # fmt: skip
            self._topics.restore(topic, queue_nums, is_batch=is_batch)
            self._store.commit_log.refresh_topic(topic)
        self._topics.found_batch_topics = frozenset()

    def write_first(self) -> None:
        """Write topics and groups as they are at the start.

        On a full disk later: messages are served and segments deleted without these files. With
        SYNC_FLUSH none is acknowledged before the disk has them.
        """
        for table, file in ((self._topics, self._topics_file), (self._groups, self._groups_file)):
            data = table.encode()  # not dirty now
            table.is_dirty = not file.try_write(data, sync=self._promises_disk)
            if not self._promises_disk:
                self._unsynced.add(file)
            elif table.is_dirty:
                self._changes += 1
                self._to_sync.add(file)

    # Changes

    def topics_changed(self, topics: list[str]) -> None:
        """Topics were made, changed or deleted."""
        del topics
        if self.topics_written_once.is_held:
            self.topics_written_once.changed = True
        elif not self.topics_written_soon.is_held:
            self.write_topics()

    def groups_changed(self, groups: list[str]) -> None:
        """Groups were made, changed or deleted."""
        del groups
        if self.groups_written_once.is_held:
            self.groups_written_once.changed = True
        else:
            self.write_groups()

    def write_topics(self) -> None:
        """Write the topics now, or in a thread if they are many or the disk is waited for."""
        self._changed(self._topics_file)

    def write_groups(self) -> None:
        """Write the groups now, or in a thread if they are many or the disk is waited for."""
        self._changed(self._groups_file)

    def _changed(self, file: ConfigFile) -> None:
        table = self._table_of(file)
        if not self._promises_disk and table.is_quickly_encoded:
            if file.try_write(table.encode()):
                self._unsynced.add(file)
                return
            # Who changed it is told, and who says the same again; and it is tried every second.
            table.is_dirty = True
        self._changes += 1
        self._to_sync.add(file)
        self._sync_soon()

    def _table_of(self, file: ConfigFile) -> TopicConfigs | SubscriptionGroups:
        return self._topics if file is self._topics_file else self._groups

    def _write_in_thread(self, file: ConfigFile, *, sync: bool) -> Callable[[], None]:
        """What a thread does to write a table as it is now, and to bring it to the disk."""
        encode, turn = self._table_of(file).snapshot(), file.turn()
        return lambda: file.write(encode(), sync=sync, turn=turn)

    # Durable

    def behind_tables(
        self, finish: Callable[[PutMessageStatus], None]
    ) -> Callable[[PutMessageStatus], None]:
        """``finish``, but called when the disk has topics and groups as they are now, too.

        The status is FLUSH_DISK_TIMEOUT if the disk does not take them.
        """
        if self._changes_on_disk >= self._changes:
            return finish
        written: list[bool] = []
        put: list[PutMessageStatus] = []

        def when_both() -> None:
            if written and put:
                is_lost = put[0] is PutMessageStatus.PUT_OK and not written[0]
                finish(PutMessageStatus.FLUSH_DISK_TIMEOUT if is_lost else put[0])

        def when_put(status: PutMessageStatus) -> None:
            put.append(status)
            when_both()

        def when_written(is_written: bool) -> None:
            written.append(is_written)
            when_both()

        self.when_on_disk(when_written)
        return when_put

    def when_on_disk(self, finish: Callable[[bool], None]) -> None:
        """Call ``finish`` when the disk has topics and groups as they are now; False if it fails.

        Where the disk is not promised: when their files have them.
        """
        if self._changes_on_disk >= self._changes:
            finish(True)
            return
        self._waiting.append((self._changes, finish))
        self._sync_soon()

    def answer_when_on_disk(
        self, channel: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> RemotingCommand | None:
        """The response, or None and it is sent when the disk has topics and groups."""
        if response.code != ResponseCode.SUCCESS or self._changes_on_disk >= self._changes:
            return response

        def answer(is_written: bool) -> None:
            failed = create_response(request, ResponseCode.SYSTEM_ERROR, NOT_ON_DISK)
            channel.reply(request, response if is_written else failed)

        self.when_on_disk(answer)
        return None

    def _sync_soon(self) -> None:
        if not self._is_syncing and self._changes_on_disk < self._changes:
            self._is_syncing = True
            self._start_task(self._sync_changes())

    async def _sync_changes(self) -> None:
        try:
            is_written = True
            while is_written and self._changes_on_disk < self._changes:
                await self._prepare()
                changes = self._changes
                is_written = await self._sync_to_sync()
                if is_written:
                    self._changes_on_disk = changes
                waiting = self._waiting
                while waiting and (waiting[0][0] <= changes or not is_written):
                    waiting.popleft()[1](is_written)
        finally:
            self._is_syncing = False

    async def _sync_to_sync(self) -> bool:
        """Bring the tables that the disk lacks to it; False if it does not take them."""
        files, self._to_sync = self._to_sync, set()
        promised = self._promises_disk
        writes = [self._write_in_thread(file, sync=promised) for file in files]
        try:
            for write in writes:
                await asyncio.to_thread(write)
            if not promised:
                self._unsynced |= files
        except (OSError, StoreError) as error:
            _LOG.error("topics and groups could not be written to the disk: %s", error)
            self._to_sync |= files
            # The next round tries it again, if nobody asks before.
            self._topics.is_dirty = self._groups.is_dirty = True
            return False
        return True

    # Time

    def start_clock(self, now_ms: int) -> None:
        """The first rounds come after one interval."""
        self._next_ms = now_ms + self._config.flush_consumer_offset_interval_ms
        self._next_delays_ms = now_ms + self._store_config.flush_delay_offset_interval_ms

    def on_time(self, now_ms: int) -> None:
        """To be called often."""
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._config.flush_consumer_offset_interval_ms
            self.write_soon()
        if now_ms >= self._next_delays_ms:
            self._next_delays_ms = now_ms + self._store_config.flush_delay_offset_interval_ms
            self._are_delays_due = True
            self.write_soon()

    def on_second(self) -> None:
        """To be called every second."""
        if self._offsets.is_urgent or self._groups.is_dirty or self._topics.is_dirty:
            self.write_soon()

    def write_soon(self) -> None:
        """Write tables that changed, in a thread."""
        if self.is_writing or not (
            self._offsets.is_dirty
            or self._groups.is_dirty
            or self._topics.is_dirty
            or (self._schedule.is_dirty and self._are_delays_due)
            or self._unsynced
        ):
            return
        self.is_writing = True
        self._start_task(self._write_or_complain())

    async def _write_or_complain(self) -> None:
        try:
            await self._write_changed()
        except (OSError, StoreError) as error:
            _LOG.error("the files of config/ could not be written: %s", error)
            self._offsets.is_dirty = True
            self._groups.is_dirty = True
            self._topics.is_dirty = True
            self._schedule.is_dirty = self._are_delays_due = True
        finally:
            self.is_writing = False

    async def _prepare(self) -> None:
        """Make text of topics and groups that changed, a few at a time: requests go first.

        Neither has anything left at the end, whatever has changed meanwhile.
        """
        tables = (self._groups, self._topics)
        while any(table.prepare(CONFIGS_AT_A_TIME) for table in tables):  # noqa: ASYNC110 - a turn for requests, nothing to wait for
            await asyncio.sleep(0)

    async def _write_changed(self) -> None:
        while self._offsets.prepare(OFFSETS_AT_A_TIME):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0)
        await self._prepare()
        writes: list[Callable[[], None]] = []
        if self._groups.is_dirty:
            writes.append(self._write_in_thread(self._groups_file, sync=True))
        if self._topics.is_dirty:
            writes.append(self._write_in_thread(self._topics_file, sync=True))
        counts: list[Callable[[], None]] = []
        if self._offsets.is_dirty:
            counts.append(partial(self._write_offsets, *self._encoded_offsets()))
        if self._schedule.is_dirty and self._are_delays_due:
            self._schedule.is_dirty = self._are_delays_due = False
            counts.append(partial(self._write_delays, self._schedule.to_body()))

        def write() -> None:
            for each in writes:
                each()
            self._sync()

        await asyncio.to_thread(write)
        try:
            for each in counts:
                await asyncio.to_thread(each)
        except (OSError, StoreError) as error:
            _LOG.error("offsets could not be written: %s", error)
            self._offsets.is_dirty = True
            self._schedule.is_dirty = self._are_delays_due = True

    def _encoded_offsets(self) -> tuple[Callable[[], bytes], int]:
        return self._offsets.snapshot(), self._offsets_file.turn()

    def _write_offsets(self, encode: Callable[[], bytes], turn: int) -> None:
        # Offsets must not be newer than the messages they count: see _clamp_offsets.
        self._store.flush()
        self._offsets_file.write(encode(), sync=True, turn=turn)

    def _write_delays(self, delays: dict[str, Any]) -> None:
        # What was delivered must be on the disk before the file passes it.
        self._store.flush()
        self._delay_file.write_document(delays, sync=True)

    def _sync(self) -> None:
        """Bring files to the disk that were written without waiting for it."""
        files, self._unsynced = self._unsynced, set()
        try:
            for file in files:
                file.sync()
        except OSError:
            self._unsynced |= files
            raise

    # End

    def last_writes(self) -> list[Callable[[], None]]:
        """Steps that write every table and wait for the disk; nothing changes any more."""
        return [
            lambda: self._write_offsets(*self._encoded_offsets()),
            self._write_in_thread(self._topics_file, sync=True),
            self._write_in_thread(self._groups_file, sync=True),
            self._write_progress,
            self._sync,
        ]

    def _write_progress(self) -> None:
        self._write_delays(self._schedule.to_body())
        self.delay_progress.remove()
