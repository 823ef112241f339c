"""What happens to a message at the store's edge before it is stored: delay levels and timers.

A delayed message goes to SCHEDULE_TOPIC_XXXX or to the timer topic, its destination moves into the
properties REAL_TOPIC and REAL_QID. Only the transaction types none and commit are converted.
RocketMQ: HookUtils.handleScheduleMessage.
"""

from __future__ import annotations

from dataclasses import replace

from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import SCHEDULE_TOPIC, TIMER_TOPIC
from oberth.formats.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus


def convert_delay(
    message: MessageExtBrokerInner,
    config: MessageStoreConfig,
    level_max: int,
    now_ms: int,
) -> MessageExtBrokerInner | PutMessageStatus:
    """The message as it must be stored, or the status it is refused with.

    Args:
        message: as it came; not changed.
        config: for the timer's limits.
        level_max: the highest delay level.
        now_ms: the broker's clock.
    """
    if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
        return message
    raw = message.properties_raw
    # Every acknowledgement of POP comes by: `in` takes a tenth of the time of a search for a name.
    level = java_long(p.find_property(raw, b"DELAY"), 0) if b"DELAY" in raw else 0
    if level <= 0:
        if message.topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            return message
        due = _timer_due(raw, now_ms)
        if due is not None and (
            b"TIMER_OUT_MS" not in raw or p.find_property(raw, b"TIMER_OUT_MS") is None
        ):
            return _to_timer(message, due, config, now_ms)
        return message
    properties = p.decode_properties(raw)
    if message.topic != SCHEDULE_TOPIC:
        level = min(level, level_max)
        properties[p.DELAY] = str(level)
        for name in (p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS):
            properties.pop(name, None)
        return _redirect(message, properties, SCHEDULE_TOPIC, level - 1)
    return message


def _redirect(
    message: MessageExtBrokerInner, properties: dict[str, str], topic: str, queue_id: int
) -> MessageExtBrokerInner:
    properties[p.REAL_TOPIC] = message.topic
    properties[p.REAL_QUEUE_ID] = str(message.queue_id)
    return replace(
        message, topic=topic, queue_id=queue_id, properties_raw=p.encode_properties(properties)
    )


def _timer_due(raw: bytes, now_ms: int) -> int | None:
    """When a timer message is due, ms; None if the message has no timer properties."""
    if b"TIMER_DELAY_" in raw:
        for name, scale in ((b"TIMER_DELAY_SEC", 1000), (b"TIMER_DELAY_MS", 1)):
            text = p.find_property(raw, name)
            if text is not None:
                return now_ms + java_long(text, 0) * scale
    text = p.find_property(raw, b"TIMER_DELIVER_MS")
    return None if text is None else java_long(text, 0)


def _to_timer(
    message: MessageExtBrokerInner,
    due_ms: int,
    config: MessageStoreConfig,
    now_ms: int,
) -> MessageExtBrokerInner | PutMessageStatus:
    raw = message.properties_raw
    if due_ms <= now_ms:
        if p.find_property(raw, b"TIMER_DEL_UNIQKEY") is not None:
            return PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
        return message
    if not config.timer_wheel_enable:
        return PutMessageStatus.WHEEL_TIMER_NOT_ENABLE
    if due_ms - now_ms > config.timer_max_delay_sec * 1000:
        return PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
    precision = config.timer_precision_ms
    # A multiple of the precision goes one slot earlier: the slot it would name fires after it.
    due_ms = due_ms - precision if due_ms % precision == 0 else due_ms // precision * precision
    added = (
        f"TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01{message.topic}\x02"
        f"REAL_QID\x01{message.queue_id}\x02"
    ).encode("utf-8", "replace")
    separator = b"" if raw[-1:] in (b"", b"\x02") else b"\x02"
    # The last of equal names wins, so an entry that somebody sent has no effect. Not `replace`: it
    # takes four times as long.
    return MessageExtBrokerInner(
        TIMER_TOPIC,
        message.body,
        raw + separator + added,
        0,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.wait_store_ok,
        message.convert,
    )


def _integer(text: bytes | None) -> int:
    try:
        return int(text) if text else 0
    except ValueError:
        return 0
