"""What the properties and the batch of a send may say; without a broker, without a topic.

Whatever is refused raises `Refusal` with MESSAGE_ILLEGAL.
"""

from __future__ import annotations

from typing import Final

from oberth.errors import FormatError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.kernels.batch import clean_batch
from oberth.remoting.code import ResponseCode
from oberth.remoting.refusal import Refusal

NO_KEY: Final = "Required message key is missing"

_TIMES: Final = (p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)

_OTHER_TYPES: Final = frozenset(
    {p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.SHARDING_KEY}
)
"""Properties that make a message delayed or ordered; only what is neither has a priority."""


def client_properties(text: str) -> dict[str, str]:
    """The properties of a request, without what only the broker sets."""
    return p.decode_properties(p.without_broker_only(text.encode("utf-8", "replace")))


def is_of_priority(properties: dict[str, str]) -> bool:
    """Whether a priority counts. RocketMQ: TopicMessageType.parseFromMessageProperty."""
    is_half = properties.get(p.TRANSACTION_PREPARED, "").lower() == "true"
    return not is_half and _OTHER_TYPES.isdisjoint(properties)


def names_time(text: str) -> bool:
    """Whether properties may say when a message is due."""
    return "DELAY" in text or p.TIMER_DELIVER_MS in text


def check_times(text: str) -> None:
    """A level or time that is no number is none: the message would come at once.

    RocketMQ: HookUtils.handleScheduleMessage, which fails for such a level with another code.
    """
    properties = client_properties(text)
    level = java_long(properties.get(p.DELAY, "0"), None)
    if level is not None and level > 0:
        return
    for name in (p.DELAY, *_TIMES):
        found = properties.get(name)
        if found is not None and java_long(found, None) is None:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{name} {found[:40]!r} is no number")


def lite_queue(topic: str, lite_topic: str) -> str:
    """The light queue of a lite topic; its name must not stand for others' queues."""
    queue = names.lite_queue(topic, lite_topic)
    if names.split_lite_queue(queue) is None or not names.is_stored_topic(queue):
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"lite topic {lite_topic[:127]!r} is illegal")
    return queue


def check_light_queues(queue_names: str) -> None:
    """A client names no queue that it could not send to; names are joined by commas."""
    for name in queue_names.split(","):
        if (
            not names.is_stored_topic(name)
            or name in names.NO_SEND_TOPICS
            or name.startswith((names.SYSTEM_TOPIC_PREFIX, names.RETRY_PREFIX, names.DLQ_PREFIX))
        ):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"light queue {name[:127]!r} is illegal")


def check_keys(body: bytes) -> None:
    """Every message of a batch has a key; RocketMQ takes it without, and never shows it."""
    try:
        batch = clean_batch(body)
    except FormatError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    if batch.without_key:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, NO_KEY)
