"""ScheduleService: delivers messages of delay levels when they are due.

RocketMQ: ScheduleMessageService.

A level is a queue of SCHEDULE_TOPIC_XXXX (level - 1) whose units hold due times instead of tags
codes; they are due in the order in which they lie. State is one offset a level, kept in
delayOffset.json. What is always true: an offset passes a message only when its delivery is in the
log, or when the message cannot be delivered at all; so a crash delivers some again and loses none.

The service has no clock of its own: `deliver` is called with the time, about every `TICK_MS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.config_files import DelayOffsets
from oberth.formats.consume_queue import ConsumeQueueUnit, is_ext_address
from oberth.formats.data_version import DataVersion
from oberth.formats.delay_level import deliver_time, parse_delay_levels
from oberth.formats.java_numbers import java_long
from oberth.formats.message import MessageExt
from oberth.store.messages import Append, MessageExtBrokerInner
from oberth.store.offers import Key, Offers

if TYPE_CHECKING:
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

TICK_MS: Final = 100
"""How often `deliver` is to be called."""

DELIVERIES_PER_TICK_MAX: Final = 2000
"""Messages of one level that one call delivers, so that sends go on."""


class ScheduleService:
    """Delay levels of a broker.

    Args:
        store: where the levels' queues lie.
        store_host: of delivered messages.
        update_version_step: deliveries that make a new data version.
    """

    def __init__(
        self,
        store: MessageStore,
        store_host: Callable[[], bytes],
        update_version_step: int = 200,
    ) -> None:
        self._store = store
        self.append: Append = lambda messages: store.append_messages(messages)
        """Takes what is due; a slave that acts for its master gives it to other brokers."""
        self.readable: Callable[[int, int, int], int] = lambda level, offset, count: count
        """Of a level's messages from an offset, how many can be read without the disk; see
        OldMessages. 0: it is called again."""
        self._store_host = store_host
        self._update_version_step = update_version_step
        self._deliveries = 0
        self.delays_ms = parse_delay_levels(store.config.message_delay_level)
        self.offsets: dict[int, int] = {}
        self.data_version = DataVersion()
        self.is_dirty = False
        self._next_due_ms = [0] * len(self.delays_ms)
        self._offers = [
            Offers(f"delay level {level}", names.SCHEDULE_TOPIC)
            for level in range(len(self.delays_ms))
        ]

    @property
    def level_max(self) -> int:
        """The highest level."""
        return len(self.delays_ms) - 1

    def start(self) -> None:
        """Correct the offsets into what the queues hold."""
        for level in range(1, len(self.delays_ms)):
            low = max(self._store.min_offset_in_queue(names.SCHEDULE_TOPIC, level - 1), 0)
            high = self._store.max_offset_in_queue(names.SCHEDULE_TOPIC, level - 1)
            offset = self.offsets.get(level, low)
            corrected = min(max(offset, low), max(high, low))
            if corrected != offset:
                _LOG.warning(
                    "the queue of delay level %d has no offset %d, it goes on at %d",
                    level,
                    offset,
                    corrected,
                )
            if corrected or level in self.offsets:
                self.offsets[level] = corrected
            self._next_due_ms[level] = 0

    def deliver(self, now_ms: int) -> int:
        """Deliver what is due; how many messages."""
        delivered = 0
        for level in range(1, len(self.delays_ms)):
            if self._next_due_ms[level] <= now_ms:
                delivered += self._deliver_level(level, now_ms)
        return delivered

    def behind(self, level: int) -> tuple[int, int]:
        """The level's offset and the end of its queue."""
        return (
            self.offsets.get(level, 0),
            self._store.max_offset_in_queue(names.SCHEDULE_TOPIC, level - 1),
        )

    def _deliver_level(self, level: int, now_ms: int) -> int:
        store = self._store
        queue_id = level - 1
        end = store.max_offset_in_queue(names.SCHEDULE_TOPIC, queue_id)
        offset = self.offsets.get(level, 0)
        if offset >= end:
            return 0
        low = store.min_offset_in_queue(names.SCHEDULE_TOPIC, queue_id)
        if offset < low:
            offset = low
        count = self.readable(level, offset, min(DELIVERIES_PER_TICK_MAX, end - offset))
        if not count:
            return 0
        units = store.iterate_consume_queue(names.SCHEDULE_TOPIC, queue_id, offset, count)
        offers = self._offers[level]
        offered: list[tuple[Key, MessageExtBrokerInner | None]] = []
        ends: list[int] = []  # the offset that is reached when offered[n] is settled
        passed = offset
        for unit in units:
            due_ms = self._due_ms(unit, level, now_ms)
            if due_ms > now_ms:
                self._next_due_ms[level] = due_ms
                break
            passed += 1
            key = (unit.commit_log_offset, unit.tags_code)
            is_settled = offers.is_settled(key)
            message = None if is_settled else self._message(unit)
            if message is not None or is_settled:
                offered.append((key, message))
                ends.append(passed)
        waiting = offers.offer(self.append, offered)
        if waiting is not None:
            passed = ends[waiting] - 1
            self._next_due_ms[level] = now_ms
        self._advance(level, passed, now_ms)
        return sum(message is not None for _, message in offered)

    def _advance(self, level: int, offset: int, now_ms: int) -> None:
        if self.offsets.get(level) == offset:
            return
        self.offsets[level] = offset
        self.is_dirty = True
        self._deliveries += 1
        if self._deliveries % self._update_version_step == 0:
            self.data_version = self.data_version.next(now_ms)

    def _due_ms(self, unit: ConsumeQueueUnit, level: int, now_ms: int) -> int:
        if not unit.is_message:
            return 0
        due_ms = unit.tags_code
        if is_ext_address(due_ms):
            stored_ms = self._store.commit_log.store_timestamp(
                unit.commit_log_offset, unit.record_size
            )
            due_ms = deliver_time(level, stored_ms, self.delays_ms)
        # A clock that was set back must not hold a message up for longer than its delay.
        return now_ms if due_ms > now_ms + self.delays_ms[level] else due_ms

    def _message(self, unit: ConsumeQueueUnit) -> MessageExtBrokerInner | None:
        """What is delivered; None if it never can be."""
        if not unit.is_message:
            return None
        delayed = self._store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
        if delayed is None:
            _LOG.warning("delayed message at %d cannot be read", unit.commit_log_offset)
            return None
        return restore(delayed, self._store_host())

    # DelayOffset.json

    def to_body(self) -> dict[str, Any]:
        """The offsets as the file and 45 show them. RocketMQ: DelayOffsetSerializeWrapper."""
        return {"dataVersion": self.data_version.to_json(), "offsetTable": dict(self.offsets)}

    def read(self, document: Any) -> None:
        """Take over a file of either line.

        Raises:
            ConfigFormatError: an offset that is no number.
        """
        file = DelayOffsets.from_json(document, "delayOffset.json")
        self.offsets = file.offset_table
        self.data_version = file.data_version or DataVersion()

    def catch_up(self, document: Any) -> None:
        """Take over how far another broker has delivered in this one's place; never back.

        Raises:
            ConfigFormatError: an offset that is no number.
        """
        file = DelayOffsets.from_json(document, "delayOffset.json")
        for level, offset in file.offset_table.items():
            if offset > self.offsets.get(level, 0):
                self.offsets[level] = offset
                self.is_dirty = True
        if file.data_version is not None:
            self.data_version = max(self.data_version, file.data_version)


def restore(delayed: MessageExt, store_host: bytes) -> MessageExtBrokerInner | None:
    """What a delayed message was before it was delayed; None if it may not be delivered.

    Its properties stay as they were stored, with DELAY and REAL_*, as RocketMQ leaves them.
    """
    properties = delayed.properties
    topic = properties.get(p.REAL_TOPIC)
    queue_text = properties.get(p.REAL_QUEUE_ID, "")
    if topic is None or not names.is_stored_topic(topic) or topic == names.TRANS_HALF_TOPIC:
        _LOG.error(
            "the delayed message at %d names topic %r, which no message can be delivered to",
            delayed.commit_log_offset,
            topic,
        )
        return None
    return MessageExtBrokerInner(
        topic,
        delayed.body,
        delayed.properties_raw,
        java_long(queue_text, 0),
        delayed.flag,
        delayed.sys_flag,
        delayed.born_timestamp,
        delayed.born_host,
        store_host,
        delayed.reconsume_times,
        0,
        wait_store_ok=False,
        convert=False,
    )
