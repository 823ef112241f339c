"""PopService: hands messages out for a time, takes acknowledgements, brings back the rest.

    pop -- check point --> (buffer) --> timer --> revive queue --+--> retry topic, if not acked
    ack -- ack message --> (buffer) --> timer --> revive queue --+

What is always true: an offset is committed only when the check point of what was handed out is in
the log (or the buffer, which commits later); so whatever is in a consumer's hands when the broker
dies is handed out again, by its check point or because the offset was not committed.

Everything runs on the broker's loop, so that no queue needs a lock. RocketMQ: PopMessageProcessor,
AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker.config_file import BackgroundFile, ConfigFile
from oberth.broker.pop.buffer import PopBuffer
from oberth.broker.pop.check_point import (
    ACK_TIME_INTERVAL_MS,
    CK_TAG,
    NORMAL,
    CheckPointKey,
    PopAck,
    PopCheckPoint,
    merged_ack,
    retried_topic,
)
from oberth.broker.pop.order_infos import NO_EFFECT, UNKNOWN_OFFSET, OrderInfos
from oberth.broker.pop.own_retries import is_own_retry, is_shared
from oberth.broker.pop.polling import PopPolling
from oberth.broker.pop.revive import PopRevive
from oberth.broker.topic_configs import REVIVE_QUEUE_NUMS
from oberth.errors import IllegalNameError, StoreError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import LONG_END
from oberth.formats.message import MessageExt
from oberth.store.messages import (
    Append,
    GetMessageResult,
    GetMessageStatus,
    MessageExtBrokerInner,
    MessageFilter,
    PutMessageResult,
    PutMessageStatus,
    next_reconsume_times,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.held_requests import HoldLimits
    from oberth.broker.old_messages import OldMessages
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.timers import TimerService
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.consume_queue import ConsumeQueueUnit
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.store.files import FileSystem
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
RETRY_QUEUE_NUMS: Final = 1
STEP_SIZE: Final = 200
"""Records of revive queues that one turn of the loop reads, and messages that it brings back."""
BYTES_AS_ONE: Final = 4096
"""A record counts once more for each so many bytes."""
COMES_EARLY_MS: Final = 5000
"""A check point that comes longer before its time than this was not meant to come yet."""

PERSIST_INTERVAL_MS: Final = 10_000
INIT_FROM_MIN: Final = 0

_MOVED: Final = frozenset(
    {
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.MESSAGE_WAS_REMOVING,
        GetMessageStatus.NO_MATCHED_MESSAGE,
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
        GetMessageStatus.OFFSET_RESET,
    }
)


_NEVER_TAKEN: Final = frozenset(
    {
        PutMessageStatus.MESSAGE_ILLEGAL,
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL,
    }
)
"""What a store says of a message however often it is asked."""


class StoredAck(NamedTuple):
    """An acknowledgement on its way into the log."""

    ack: PopAck
    revive_queue_id: int
    invisible_time: int


class OrderedAck(enum.Enum):
    """What became of an acknowledgement of ordered consumption."""

    TAKEN = "it is kept, or has no effect"
    UNKNOWN = "its offset was never handed out"
    NO_ROOM = "the broker keeps as many offsets as it may, and none of this group in the queue"


class PoppedQueue:
    """What a pop got from one queue."""

    __slots__ = ("offsets", "queue_id", "records", "start_offset", "topic")

    def __init__(
        self, topic: str, queue_id: int, start_offset: int, result: GetMessageResult
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.start_offset = start_offset
        self.offsets = list(result.queue_offsets)
        self.records: Sequence[memoryview] = result.records


class PopService:
    """POP of a broker. A FileKeeper."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        config_dir: Path,
        files: FileSystem,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        timers: TimerService | None,
        in_memory_bytes: int,
        hold_limits: HoldLimits,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        dispatch_soon: Callable[[], None],
        start_task: StartTask,
        old_messages: OldMessages,
        delivers: Callable[[], bool],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._own = own
        self._store = store
        self._old_messages = old_messages
        self._delivers = delivers
        self.append: Append = lambda messages: store.append_messages(messages)
        """Takes what is stored; a slave that acts for its master gives it to other brokers."""
        self.keeps_in_memory: Callable[[], bool] = lambda: config.enable_pop_buffer_merge
        """Whether check points wait in memory first; an acting slave can do nothing else."""
        self.may_put_off = True
        """Whether a check point may go through the timer again; an acting slave has no timer that
        other brokers' revive queues would get it from."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._timers = timers
        self._in_memory_bytes = in_memory_bytes
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._dispatch_soon = dispatch_soon
        self.revive_topic = names.revive_topic(config.broker_cluster_name)
        self.orders = OrderInfos()
        self.polling = PopPolling(config.pop_polling_size, config.max_pop_polling_size, hold_limits)
        # Apart from pops: a client that only asks whether there is a message must not be woken in
        # place of one that would take it.
        self.notifying = PopPolling(
            config.pop_polling_size, config.max_pop_polling_size, hold_limits
        )
        self.buffer = PopBuffer(
            config.pop_ck_stay_buffer_time_ms,
            config.pop_ck_stay_buffer_timeout_ms,
            config.pop_ck_max_buffer_size,
            self._store_buffered,
            self._commit,
        )
        self._orders_file = ConfigFile(config_dir / "consumerOrderInfo.json", files)
        self._background = BackgroundFile(self._orders_file, start_task)
        self._revives: list[PopRevive] = []
        self._check_point_number = 0
        self._complete_until_ms = 0
        # What must be dispatched before acknowledgements are complete up to a time: see _advance.
        self._advancing: tuple[int, int, bool] | None = None
        self._step_handle: asyncio.Handle | None = None
        self._next_revive = 0
        # Queues that can go on at the next tick only. Behind a check point nothing is dealt with.
        self._stuck: set[int] = set()
        self._next_persist_ms = 0
        # Another broker may have gone on in the revive queues since this one did.
        self._has_rested = False

    def has_waiting(self) -> bool:
        """Whether anybody waits for messages."""
        return bool(len(self.polling) or len(self.notifying))

    # Files

    def load(self) -> None:
        """See FileKeeper."""
        self._orders_file.load(self.orders.read)
        self._begin()

    def _begin(self) -> None:
        """Reads the revive queues from behind what is dealt with, by this broker or another."""
        self._revives = [
            PopRevive(
                queue_id,
                self._offsets.query(REVIVE_GROUP, self.revive_topic, queue_id),
                self._store.max_offset_in_queue(self.revive_topic, queue_id),
            )
            for queue_id in range(REVIVE_QUEUE_NUMS)
        ]
        # What is read now has acknowledgements behind it that were read before.
        self._complete_until_ms = 0
        self._advancing = None
        self._has_rested = False

    def close(self) -> None:
        """See FileKeeper."""
        self._orders_file.write(self.orders.encode(), sync=True)

    def stop(self) -> None:
        """The broker stops: what is in memory goes into the log. On the loop."""
        self._cancel_step()
        self.buffer.flush()

    # Handing out

    def invisible_ms(self, wanted_ms: int, now_ms: int, *, is_order: bool) -> int:
        """How long messages stay invisible: as long as is wanted, or as the timer can wait.

        What is consumed in order waits for no timer, but its end is a 64-bit number, too.
        """
        latest_ms = LONG_END - 1 - now_ms
        if not is_order:
            latest_ms = self._store_config.timer_max_delay_sec * 1000
        return min(wanted_ms, latest_ms)

    def next_revive_queue(self) -> int:
        """The revive queue of a pop; they are used in turn."""
        number = self._check_point_number
        self._check_point_number = number + 1
        return number % REVIVE_QUEUE_NUMS

    def pop_offset(
        self, topic: str, group: str, queue_id: int, init_mode: int, *, notes_first: bool = True
    ) -> int:
        """Where a pop of a queue begins. A pending reset is taken, a new group is set up.

        Unless ``notes_first``, who begins at the first message leaves no offset.
        """
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self.orders.clear(topic, group, queue_id)
            self.buffer.forget_queue(topic, group, queue_id)
            self._commit(topic, group, queue_id, reset)
            return reset
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            offset = self.initial_offset(topic, queue_id, init_mode)
            if notes_first or offset > max(self._store.min_offset_in_queue(topic, queue_id), 0):
                self._commit(topic, group, queue_id, offset)
        return max(offset, self.buffer.latest_offset(topic, group, queue_id))

    def initial_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Where a group that was never in a queue begins."""
        store = self._store
        low = max(store.min_offset_in_queue(topic, queue_id), 0)
        if init_mode == INIT_FROM_MIN or topic.startswith(names.RETRY_PREFIX):
            return low
        if low == 0:
            unit = store.consume_queue_unit(topic, queue_id, 0)
            young = self._in_memory_bytes
            if unit is not None and store.max_phy_offset - unit.commit_log_offset <= young:
                return 0
        return max(store.max_offset_in_queue(topic, queue_id) - 1, low)

    def _commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        return self._offsets.commit(group, topic, queue_id, offset, self._now_ms())

    def pop_queue(
        self,
        topic: str,
        group: str,
        queue_id: int,
        count_max: int,
        *,
        init_mode: int,
        notes_first: bool,
        message_filter: MessageFilter | None,
        pop_time: int,
        invisible_time: int,
        revive_queue_id: int,
        is_order: bool,
        attempt_id: str | None,
    ) -> tuple[PoppedQueue | None, int]:
        """Hands messages of one queue out; what, and how many are left in the queue."""
        store = self._store
        offset = self.pop_offset(topic, group, queue_id, init_mode, notes_first=notes_first)
        end = store.max_offset_in_queue(topic, queue_id)
        if count_max <= 0 or offset == end:
            return None, max(end - offset, 0)
        if is_order and self.orders.is_blocked(topic, group, queue_id, attempt_id, pop_time):
            return None, max(end - offset, 0)
        result = store.get_message(group, topic, queue_id, offset, count_max, message_filter)
        if result.status in _MOVED and result.next_begin_offset != offset:
            if result.next_begin_offset >= 0:
                self._move(topic, group, queue_id, result.next_begin_offset)
            offset = max(result.next_begin_offset, 0)
            result = store.get_message(group, topic, queue_id, offset, count_max, message_filter)
            if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
                self._move(topic, group, queue_id, result.next_begin_offset)
        rest = max(end - result.next_begin_offset, 0)
        if result.status is not GetMessageStatus.FOUND:
            return None, rest if result.status is GetMessageStatus.NO_MATCHED_MESSAGE else 0
        popped = PoppedQueue(topic, queue_id, offset, result)
        if is_order:
            self._commit(topic, group, queue_id, offset)
            return popped, rest
        check_point = PopCheckPoint(
            offset,
            pop_time,
            invisible_time,
            queue_id,
            topic,
            group,
            self._config.broker_name,
            tuple(each - offset for each in popped.offsets),
        )
        if self.keeps_in_memory() and self.buffer.add(
            check_point, revive_queue_id, result.next_begin_offset, pop_time
        ):
            return popped, rest
        if not self.put_check_point(check_point, revive_queue_id):
            result.release()
            return None, max(end - offset, 0)
        self._move(topic, group, queue_id, result.next_begin_offset)
        return popped, rest

    def _move(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        self.buffer.add_finished(topic, group, queue_id, offset)

    # Check points and acknowledgements

    def put_check_point(self, check_point: PopCheckPoint, revive_queue_id: int) -> bool:
        """Stores a check point; False if the store refuses it."""
        return self._put_check_point(check_point, revive_queue_id).ok

    def _put_check_point(
        self, check_point: PopCheckPoint, revive_queue_id: int
    ) -> PutMessageResult:
        due_ms = check_point.revive_time - ACK_TIME_INTERVAL_MS
        message = self._revive_message(
            check_point.encode(), revive_queue_id, CK_TAG, check_point.unique_key, due_ms
        )
        return self._append([message])[0]

    def put_acks(self, acks: Sequence[StoredAck]) -> list[bool]:
        """Stores acknowledgements; of each, whether the store took it.

        Those of one check point become one message: consumers acknowledge one by one, and every
        message of the revive topic goes through the timer and is read again.
        """
        groups: dict[tuple[CheckPointKey, int, int], list[int]] = {}
        for number, (ack, revive_queue_id, invisible_time) in enumerate(acks):
            groups.setdefault((ack.key, revive_queue_id, invisible_time), []).append(number)
        messages = []
        for (_, revive_queue_id, invisible_time), numbers in groups.items():
            ack = acks[numbers[0]].ack
            if len(numbers) > 1:
                ack = merged_ack([acks[number].ack for number in numbers])
            messages.append(
                self._revive_message(
                    ack.encode(),
                    revive_queue_id,
                    ack.tag,
                    ack.unique_key,
                    ack.pop_time + invisible_time,
                )
            )
        stored = [False] * len(acks)
        for numbers, result in zip(groups.values(), self._append(messages), strict=True):
            for number in numbers:
                stored[number] = result.ok
        return stored

    def _store_buffered(
        self, check_point: PopCheckPoint, revive_queue_id: int, ack: PopAck | None
    ) -> bool:
        if not self.put_check_point(check_point, revive_queue_id):
            return False
        if ack is not None:
            self.put_acks([StoredAck(ack, revive_queue_id, check_point.invisible_time)])
        return True

    def _revive_message(
        self, body: bytes, queue_id: int, tag: str, unique_key: str, due_ms: int
    ) -> MessageExtBrokerInner:
        now_ms = self._now_ms()
        latest_ms = now_ms + self._store_config.timer_max_delay_sec * 1000
        # In whole seconds: an acting slave is asked again for what is on its way, by its bytes.
        due_ms = min(due_ms, latest_ms // 1000 * 1000)
        properties = (
            f"TAGS\x01{tag}\x02TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{unique_key}\x02"
        )
        return MessageExtBrokerInner(
            self.revive_topic,
            body,
            properties.encode("utf-8", "replace"),
            queue_id,
            born_timestamp=now_ms,
            born_host=self._own.store_host,
            store_host=self._own.store_host,
            wait_store_ok=False,
        )

    def _append(self, messages: list[MessageExtBrokerInner]) -> list[PutMessageResult]:
        results = self.append(messages)
        self._dispatch_soon()
        for message, result in zip(messages, results, strict=True):
            if not result.ok:
                _LOG.error(
                    "the POP record %s could not be stored: %s",
                    message.body[:200],
                    result.status.name,
                )
        return results

    # Ordered consumption

    def ack_in_order(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int
    ) -> OrderedAck:
        """An ack of ordered consumption."""
        committed = self._offsets.query(group, topic, queue_id)
        if offset < committed:
            return OrderedAck.TAKEN
        following = self.orders.commit_and_next(topic, group, queue_id, offset, pop_time, committed)
        if following == UNKNOWN_OFFSET:
            return OrderedAck.UNKNOWN
        if (
            following == NO_EFFECT
            or self._offsets.has_reset(group, topic, queue_id)
            or self._commit(topic, group, queue_id, following)
        ):
            return OrderedAck.TAKEN
        return OrderedAck.NO_ROOM

    def on_topic_deleted(self, topic: str) -> None:
        """What was handed out of a topic must not move offsets in another of its name."""
        self.orders.forget_topic(topic, self._now_ms())
        self.buffer.forget_topic(topic)

    def on_reset(self, group: str, topic: str, queue_id: int) -> None:
        self.orders.clear(topic, group, queue_id)
        self.buffer.forget_queue(topic, group, queue_id)

    # Time

    def on_time(self, now_ms: int) -> None:
        """Called about every 100 ms."""
        if self._timers is None:
            return
        if not self._delivers():
            self._has_rested = True
            return
        if self._has_rested:
            self._begin()
        if len(self.buffer):
            self.buffer.on_time(now_ms)
        self._dispatch_now()
        self._stuck.clear()
        self._step()
        if now_ms >= self._next_persist_ms:
            self._next_persist_ms = now_ms + PERSIST_INTERVAL_MS
            self.orders.keep(
                lambda topic, group: topic in self._topics and self._groups.get(group) is not None,
                now_ms,
            )
            if self.orders.is_dirty and not self._background.is_writing:
                self._background.write_soon(self.orders.snapshot(), self._orders_not_written)

    def _orders_not_written(self) -> None:
        self.orders.is_dirty = True

    def _step(self) -> None:
        """Reads and brings back as much as one turn of the loop may; what is left follows."""
        self._cancel_step()
        if not self._delivers():
            return
        has_read = self._read_some()
        self._advance()
        if self._revive_some() or has_read:
            self._step_handle = asyncio.get_running_loop().call_soon(self._step)

    def _cancel_step(self) -> None:
        if self._step_handle is not None:
            self._step_handle.cancel()
            self._step_handle = None

    def _read_some(self) -> bool:
        """Reads on in the revive queues; whether there was anything."""
        left = STEP_SIZE
        for revive in self._revives:
            if left > 0:
                left -= self._read(revive, left)
        return left < STEP_SIZE

    def _revive_some(self) -> bool:
        """Deals with check points of the queues in turn; whether there may be more for now."""
        left = STEP_SIZE
        count = len(self._revives)
        for queue_id in range(self._next_revive, self._next_revive + count):
            revive = self._revives[queue_id % count]
            if revive.queue_id not in self._stuck:
                left = self._revive(revive, left)
            if left <= 0:
                self._next_revive = (queue_id + 1) % count
                return True
        return False

    def _advance(self) -> None:
        """Moves the time up to which every acknowledgement is in the revive queues.

        Three steps for a time that the timer has read up to: all that was appended until then is
        dispatched; the timer has taken all of it in; what it put into topics is dispatched, too.
        """
        timers = self._timers
        assert timers is not None
        store = self._store
        if self._advancing is None:
            self._advancing = (timers.store.read_time_ms, store.max_phy_offset, False)
        time_ms, mark, is_taken_in = self._advancing
        if store.dispatched_offset < mark:
            return
        if not is_taken_in:
            if timers.store.enqueue_behind == 0:
                self._advancing = (time_ms, store.max_phy_offset, True)
            return
        if all(
            store.max_offset_in_queue(self.revive_topic, revive.queue_id) <= revive.read_offset
            for revive in self._revives
        ):
            self._complete_until_ms = time_ms
            self._advancing = None

    def _read(self, revive: PopRevive, left: int) -> int:
        """Reads on in one revive queue; what that took."""
        store = self._store
        topic = self.revive_topic
        end = store.max_offset_in_queue(topic, revive.queue_id)
        if revive.read_offset >= end:
            return 0
        low = store.min_offset_in_queue(topic, revive.queue_id)
        offset = revive.read_offset = max(revive.read_offset, low)
        count = self._old_messages.readable(
            ("revive queue", revive.queue_id),
            (topic, revive.queue_id, offset, min(left, end - offset)),
            self._go_on,
        )
        if not count:
            return 0
        work = 0
        for unit in store.iterate_consume_queue(topic, revive.queue_id, offset, count):
            message = None
            if unit.is_message:
                message = store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
            if message is None:
                revive.read_offset = offset + 1
            else:
                revive.receive(offset, message.tags, message.body)
            offset += 1
            work += 1 + unit.record_size // BYTES_AS_ONE
            if work >= left:
                break
        return work

    def _revive(self, revive: PopRevive, left: int) -> int:
        """Deals with check points that are due; what is left of the work that may be done."""
        committed = revive.committed
        far_ms = self._now_ms() + COMES_EARLY_MS + 2 * self._store_config.timer_precision_ms
        while left > 0 and revive.queue_id not in self._stuck:
            check_point = revive.next_due(self._complete_until_ms, far_ms)
            if check_point is None:
                break
            try:
                if check_point.revive_time > far_ms:
                    is_done, work = self._put_off(check_point, revive.queue_id), 1
                else:
                    is_done, work = self._bring_back(check_point, revive.queue_id, left)
            except (OSError, StoreError, MemoryError) as error:  # not the check point's failure
                _LOG.error(
                    "revive queue %d: the check point at offset %d has to wait: %s",
                    revive.queue_id,
                    check_point.revive_offset,
                    error,
                )
                self._stuck.add(revive.queue_id)
                break
            except Exception:  # noqa: BLE001 - no record may keep back what is behind it
                _LOG.exception(
                    "revive queue %d: the check point at offset %d is passed",
                    revive.queue_id,
                    check_point.revive_offset,
                )
                is_done, work = True, 1
            left -= work
            if is_done:
                revive.done(check_point)
        if revive.committed != committed:
            self._commit(self.revive_topic, REVIVE_GROUP, revive.queue_id, revive.committed)
        return left

    def _put_off(self, check_point: PopCheckPoint, queue_id: int) -> bool:
        """Gives a check point to the timer once more, which takes no delay so long.

        Everything behind it would have to wait for it here. What is acknowledged goes with it.
        Acknowledgements that come later wait for it in memory, like all that come too early.

        Returns:
            Whether nothing remains to be done here.
        """
        if self._is_over(check_point):
            return True
        if self.may_put_off:
            result = self._put_check_point(check_point, queue_id)
            if result.ok or result.status in _NEVER_TAKEN:  # then it has been logged
                return True
        self._stuck.add(queue_id)
        return False

    def _is_over(self, check_point: PopCheckPoint) -> bool:
        """Whether nothing of a check point is to be delivered again, whenever it is due."""
        return not check_point.unacked() or check_point.topic not in self._topics

    def _is_readable(self, check_point: PopCheckPoint, offsets: Sequence[int], reader: int) -> bool:
        """Whether messages of a check point are in memory; else they are brought in.

        Looks at no more places than there are messages, however far they are from each other.
        """
        at = 0
        while at < len(offsets):
            count = self._old_messages.readable(
                ("messages of revive queue", reader),
                (
                    check_point.topic,
                    check_point.queue_id,
                    offsets[at],
                    offsets[-1] + 1 - offsets[at],
                ),
                self._go_on,
            )
            if not count:
                return False
            at = bisect_left(offsets, offsets[at] + count, at + 1)
        return True

    def _go_on(self) -> None:
        """What was not in memory is."""
        self.on_time(self._now_ms())

    def _bring_back(self, check_point: PopCheckPoint, queue_id: int, left: int) -> tuple[bool, int]:
        """Puts what is not acknowledged into the retry topic, as much as is `left` of the work.

        What is dealt with counts as acknowledged, so that none comes back twice where another has
        to wait.

        Returns:
            Whether nothing remains to be done, and the work that it was.
        """
        if self._is_over(check_point):
            return True, 1
        offsets = check_point.unacked()
        if not self._is_readable(check_point, offsets, queue_id):
            self._stuck.add(queue_id)
            return False, 1
        retry_topic, queue_nums = self._retry_topic(check_point)
        retry_queue_id = check_point.queue_id if check_point.queue_id < queue_nums else 0
        taken, messages, work = [], [], 0
        for offset in offsets:
            unit = self._store.consume_queue_unit(check_point.topic, check_point.queue_id, offset)
            work += 1 + (0 if unit is None else unit.record_size // BYTES_AS_ONE)
            message = self._unacked_message(check_point, unit)
            if message is None:
                check_point.ack(offset)
            else:
                taken.append(offset)
                messages.append(self._again(message, retry_topic, retry_queue_id, check_point))
            if work >= left:
                break
        if messages:
            if not self._make_retry_topic(check_point, retry_topic, queue_nums):
                return True, work
            if not self._put_again(check_point, taken, messages):
                self._stuck.add(queue_id)
        return not check_point.unacked(), work

    def _retry_topic(self, check_point: PopCheckPoint) -> tuple[str, int]:
        """Where messages of a check point come back, and how many queues that is to have."""
        topic = check_point.topic
        if not topic.startswith(names.RETRY_PREFIX):
            topic = names.pop_retry_topic(
                topic, check_point.group, v2=self._config.enable_retry_topic_v2
            )
        if self._config.use_separate_retry_queue:
            origin = self._topics.get(retried_topic(topic, check_point.group) or "")
            if origin is not None:
                return topic, max(origin.write_queue_nums, RETRY_QUEUE_NUMS)
        return topic, RETRY_QUEUE_NUMS

    def _unacked_message(
        self, check_point: PopCheckPoint, unit: ConsumeQueueUnit | None
    ) -> MessageExt | None:
        """A message of a check point, if it is there and is one of its group's."""
        if unit is None or not unit.is_message:
            return None
        message = self._store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
        # The time of any message can be changed, also of what waits there for another group.
        if message is None or (
            is_shared(check_point.topic, check_point.group)
            and not is_own_retry(message.properties_raw, check_point.group)
        ):
            return None
        return message

    def _make_retry_topic(
        self, check_point: PopCheckPoint, retry_topic: str, queue_nums: int
    ) -> bool:
        """Makes a retry topic that is missing; False if there can be none of that name."""
        try:
            self._topics.create_internal(retry_topic, queue_nums)
        except IllegalNameError as error:
            _LOG.error(
                "messages of %s that nobody acknowledged are not delivered again: %s",
                check_point.topic,
                error,
            )
            return False
        self._topics.widen_internal(retry_topic, queue_nums)
        for queue_id in range(queue_nums):
            if self._offsets.query(check_point.group, retry_topic, queue_id) < 0:
                self._commit(retry_topic, check_point.group, queue_id, 0)
        return True

    def _put_again(
        self,
        check_point: PopCheckPoint,
        offsets: Sequence[int],
        messages: list[MessageExtBrokerInner],
    ) -> bool:
        """Puts messages of a check point into its retry topic; whether none has to wait."""
        waiting = None
        for offset, message, result in zip(offsets, messages, self.append(messages), strict=True):
            if result.status in _NEVER_TAKEN:
                # It stays in its topic. Waiting would keep back everything after it.
                _LOG.error(
                    "%s: a message can never be delivered again: %s",
                    message.topic,
                    result.status.name,
                )
            elif not result.ok:
                waiting = waiting or result.status
                continue
            check_point.ack(offset)
        if waiting is not None:
            _LOG.error(
                "%s: a message could not be delivered again yet: %s",
                messages[0].topic,
                waiting.name,
            )
        self._dispatch_soon()
        return waiting is None

    def _again(
        self, message: MessageExt, retry_topic: str, queue_id: int, check_point: PopCheckPoint
    ) -> MessageExtBrokerInner:
        properties = message.properties
        properties.setdefault(p.FIRST_POP_TIME, str(check_point.pop_time))
        properties.setdefault(p.ORIGIN_GROUP, check_point.group)
        raw = p.encode_properties(properties)
        if len(raw) > p.PROPERTIES_SIZE_MAX:
            raw = message.properties_raw  # no room for what is only good to know
        return MessageExtBrokerInner(
            retry_topic,
            message.body,
            raw,
            queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            self._own.store_host,
            next_reconsume_times(message.reconsume_times),
            wait_store_ok=False,
            convert=False,
        )

    def runtime_info(self) -> dict[str, str]:
        """Keys of GET_BROKER_RUNTIME_INFO."""
        return {
            "popPollingNum": str(len(self.polling)),
            "popBufferNum": str(len(self.buffer)),
        }


def with_topic_and_receipt(message: MessageExt, topic: str, receipt: str) -> bytes:
    """A record of a retry topic as clients get it: under the original topic, with its receipt."""
    raw = message.properties_raw
    if p.find_property(raw, b"POP_CK") is None:
        raw = p.append_property(raw, p.POP_CK, receipt)
    return message.under_topic(topic, properties_raw=raw)


assert NORMAL == "0"
