"""Bodies of mqadmin's commands as messages of ``Admin``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from oberth.proxy import messages as m
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.convert import FILTERS, set_duration
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import SQL92, Connection, ConsumerConnection, SubscriptionData
from oberth.remoting.bodies.running_info import ConsumerRunningInfo
from oberth.remoting.bodies.stats import OffsetWrapper
from oberth.remoting.code import MQVersion

MODELS: Final = m.enum_values("MessageModel")

_OTHERWISE: Final = {"dropped": "droped", "cached_msg_size_in_mib": "cached_msg_size_in_mi_b"}
"""Fields of a ProcessQueueInfo whose names are others on the remoting wire."""


def fill_client(info: Any, member: Connection, members: ConsumerConnection) -> None:
    """A member of a group."""
    info.client_id = member.client_id
    info.version = MQVersion(member.version).name if member.version in list(MQVersion) else ""
    info.language = member.language
    info.egress_ip = member.client_addr.rpartition(":")[0].strip("[]")
    info.message_model = MODELS.get(members.message_model, 0)


def fill_expression(expression: Any, data: SubscriptionData | None) -> None:
    """A filter; every message without one."""
    is_sql = data is not None and data.expression_type == SQL92
    expression.type = FILTERS["SQL" if is_sql else "TAG"]
    expression.expression = "*" if data is None else data.sub_string


def fill_queue(target: Any, queue: MessageQueue) -> None:
    """A queue by its names."""
    target.topic.name = queue.topic
    target.id = queue.queue_id
    target.broker.name = queue.broker_name


def fill_lag(target: Any, offsets: Iterable[OffsetWrapper], now_ms: int) -> None:
    """Messages that are stored and not consumed, and how many of them are handed out."""
    last_ms = 0
    for each in offsets:
        behind = max(each.broker_offset - each.consumer_offset, 0)
        inflight = min(max(each.pull_offset - each.consumer_offset, 0), behind)
        target.accumulation += behind
        target.inflight_messages += inflight
        target.ready_messages += behind - inflight
        last_ms = max(last_ms, each.last_timestamp)
    target.last_consume_timestamp = last_ms
    waits = target.ready_messages and last_ms
    set_duration(target.deliver_delay_time, max(now_ms - last_ms, 0) if waits else 0)


def fill_running_info(shown: Any, info: ConsumerRunningInfo) -> None:
    """The running information that a consumer reports."""
    shown.properties.update(info.properties)
    for data in info.subscription_set:
        fill_expression(shown.subscriptions[data.topic], data)
    for queue, state in info.mq_table.items():
        entry = shown.message_queue_table.add()
        fill_queue(entry.message_queue, queue)
        process = entry.process_queue_info
        for field in process.DESCRIPTOR.fields:
            value = getattr(state, _OTHERWISE.get(field.name, field.name))
            setattr(process, field.name, value)
    for topic, status in info.status_table.items():
        entry = shown.consume_status_table[topic]
        entry.receive_rt, entry.receive_tps = status.pull_rt, status.pull_tps
        entry.consume_rt = status.consume_rt
        entry.consume_ok_tps = status.consume_ok_tps
        entry.consume_failed_tps = status.consume_failed_tps
        entry.consume_failed_msgs = status.consume_failed_msgs


def scroll_id(broker: str, queue_id: int, offset: int) -> str:
    """Where a scan goes on."""
    return f"{broker} {queue_id} {offset}"


def parse_scroll_id(text: str, queues: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """Which of the queues a scan goes on with, and at which offset.

    Raises:
        StatusError: another text, or a queue that is none of these.
    """
    broker, _, rest = text.partition(" ")
    queue_id, _, offset = rest.partition(" ")
    if all(each.isascii() and each.isdigit() and len(each) < 19 for each in (queue_id, offset)):
        place = (broker, int(queue_id))
        if place in queues:
            return queues.index(place), int(offset)
    raise StatusError(Code.BAD_REQUEST, f"scroll_id {text[:80]!r} is of no queue that is asked for")
