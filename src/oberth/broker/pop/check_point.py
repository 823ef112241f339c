"""Check points and acknowledgements of POP, and the texts that clients carry between them.

A pop of one queue is one check point: which offsets were handed out, to which group, until when.
Both kinds are JSON bodies of messages in the revive topic, with tags ``ck``, ``ack`` and ``bAck``:

    bm  bit map of acknowledged ones   n   number of messages   q   queue id
    bn  broker name                    c   consumer group       t   topic
    d   offsets less ``so``            so  start offset         pt  pop time, ms
    it  invisible time, ms             ro  revive offset        rp  number of repairs
    ao  acknowledged offset            aol offsets of a batch

A receipt (property POP_CK) is eight parts joined by blanks: start offset, pop time, invisible
time, revive queue id, retry flag, broker name, queue id, offset of the message. RocketMQ:
PopCheckPoint, AckMsg, BatchAckMsg, ExtraInfoUtil.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import lt
from typing import Any, Final, NamedTuple

import msgspec

from oberth.errors import IllegalNameError
from oberth.formats.java_numbers import LONG_END, java_long
from oberth.formats.names import (
    RETRY_PREFIX,
    check_kept_group,
    check_stored_topic,
    pop_retry_topic,
)

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

ORDER_REVIVE_QUEUE: Final = 999
"""Revive queue id of ordered consumption, which has no check points."""

ACK_TIME_INTERVAL_MS: Final = 1000
"""A check point reaches the revive queue this much before its messages are visible again."""

MESSAGES_PER_POP_MAX: Final = 32
"""Bits of ``bm``."""

BODY_SIZE_MAX: Final = 16 << 10
"""Bytes of a body. What a broker writes has some hundreds: names, and numbers of one pop."""

DIFFERENCE_END: Final = 1 << 31
"""Distances to the start offset are below it: in Java they are an int."""

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"

CheckPointKey = tuple[str, str, int, int, int, str]
"""Topic, group, queue id, start offset, pop time, broker name: what acks name a check point by."""

_NO_BROKER_NAME: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""What would end a property, or cannot be stored as UTF-8."""


class CheckPointError(ValueError):
    """A body or receipt that does not parse."""


def check_names(topic: str, group: str, broker_name: str) -> None:
    """Lets names pass that a check point or an acknowledgement may hold.

    They become a part of the properties of its message, in which nothing is escaped.

    Raises:
        CheckPointError: one of them can be no name.
    """
    try:
        check_stored_topic(topic)
        check_kept_group(group)
    except IllegalNameError as error:
        raise CheckPointError(str(error)) from None
    if _NO_BROKER_NAME.search(broker_name):
        raise CheckPointError(f"broker name {broker_name[:100]!r} can be none")


@dataclass(slots=True)
class PopCheckPoint:
    """What one pop of one queue handed out."""

    start_offset: int
    pop_time: int
    invisible_time: int
    queue_id: int
    topic: str
    group: str
    broker_name: str
    differences: tuple[int, ...]
    bit_map: int = 0
    repairs: int = 0
    revive_offset: int = 0

    @property
    def key(self) -> CheckPointKey:
        """What acks name it by."""
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name,
        )

    @property
    def revive_time(self) -> int:
        """When messages that are not acknowledged become visible again, ms."""
        return self.pop_time + self.invisible_time

    @property
    def is_all_acked(self) -> bool:
        """Whether nothing is left to be delivered again."""
        return self.bit_map == (1 << len(self.differences)) - 1

    def ack(self, offset: int) -> bool:
        """Note an acknowledgement; False if the offset was not handed out."""
        try:
            self.bit_map |= 1 << self.differences.index(offset - self.start_offset)
        except ValueError:
            return False
        return True

    def unacked(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [
            self.start_offset + difference
            for number, difference in enumerate(self.differences)
            if not self.bit_map >> number & 1
        ]

    def acked(self) -> list[int]:
        """Offsets that are acknowledged."""
        return [
            self.start_offset + difference
            for number, difference in enumerate(self.differences)
            if self.bit_map >> number & 1
        ]

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{CK_TAG}"
        )

    def encode(self) -> bytes:
        """The message's body."""
        body: dict[str, Any] = {
            "bm": _signed_32(self.bit_map),
            "bn": self.broker_name,
            "c": self.group,
            "d": self.differences,
            "it": self.invisible_time,
            "n": len(self.differences),
            "pt": self.pop_time,
            "q": self.queue_id,
            "reviveTime": self.revive_time,
            "ro": self.revive_offset,
            "so": self.start_offset,
            "sp": False,
            "t": self.topic,
        }
        if self.repairs:
            body["rp"] = str(self.repairs)
        return _compact(body)


def decode_check_point(body: bytes) -> PopCheckPoint:
    """The check point in a message's body.

    Raises:
        CheckPointError: it does not parse.
    """
    fields = _object(body)
    number = min(_integer(fields, "n"), MESSAGES_PER_POP_MAX + 1)  # it may say any number
    differences = fields.get("d") or list(range(number))
    start_offset = _integer(fields, "so")
    if not _are_differences(differences) or not 0 <= start_offset < LONG_END - DIFFERENCE_END:
        raise CheckPointError(f"check point: so is {start_offset}, d is {str(differences)[:100]}")
    pop_time, invisible_time = _integer(fields, "pt"), _integer(fields, "it")
    if pop_time + invisible_time >= LONG_END:
        raise CheckPointError(f"check point: pt is {pop_time}, it is {invisible_time}")
    return PopCheckPoint(
        start_offset,
        pop_time,
        invisible_time,
        _integer(fields, "q"),
        *_names(fields),
        tuple(differences),
        _integer(fields, "bm") & 0xFFFFFFFF,
        java_long(str(fields.get("rp")), 0),
    )


def _are_differences(differences: object) -> bool:
    """Whether they are what a pop can have handed out: some numbers, ascending."""
    return (
        isinstance(differences, list)
        and len(differences) <= MESSAGES_PER_POP_MAX
        and all(isinstance(each, int) for each in differences)
        and all(map(lt, [-1, *differences], [*differences, DIFFERENCE_END]))
    )


@dataclass(slots=True)
class PopAck:
    """Acknowledgements of messages of one check point."""

    offsets: tuple[int, ...]
    start_offset: int
    pop_time: int
    queue_id: int
    topic: str
    group: str
    broker_name: str
    is_batch: bool = False

    @property
    def key(self) -> CheckPointKey:
        """The check point's."""
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name,
        )

    @property
    def tag(self) -> str:
        """TAGS of the message."""
        return BATCH_ACK_TAG if self.is_batch else ACK_TAG

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message."""
        offsets = list(self.offsets) if self.is_batch else self.offsets[0]
        return (
            f"{self.topic}@{self.queue_id}@{offsets}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{self.tag}"
        )

    def encode(self) -> bytes:
        """The message's body."""
        body: dict[str, Any] = {"ao": -1 if self.is_batch else self.offsets[0]}
        if self.is_batch:
            body["aol"] = self.offsets
        body |= {
            "bn": self.broker_name,
            "c": self.group,
            "pt": self.pop_time,
            "q": self.queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }
        return _compact(body)


def merged_ack(acks: Sequence[PopAck]) -> PopAck:
    """Acknowledgements of one check point as one."""
    offsets = dict.fromkeys(offset for ack in acks for offset in ack.offsets)
    return replace(acks[0], offsets=tuple(offsets), is_batch=True)


def decode_ack(body: bytes, tag: str) -> PopAck:
    """The acknowledgements in a message's body.

    Raises:
        CheckPointError: it holds none.
    """
    fields = _object(body)
    if tag == BATCH_ACK_TAG:
        offsets = fields.get("aol")
        if not isinstance(offsets, list) or not all(isinstance(each, int) for each in offsets):
            raise CheckPointError(f"batch ack: aol is {str(offsets)[:100]}")
    else:
        offsets = [_integer(fields, "ao")]
    return PopAck(
        tuple(offsets),
        _integer(fields, "so"),
        _integer(fields, "pt"),
        _integer(fields, "q"),
        *_names(fields),
        tag == BATCH_ACK_TAG,
    )


class Receipt(NamedTuple):
    """A parsed POP_CK."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry_flag: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def text(self) -> str:
        """The receipt as clients carry it."""
        return " ".join(map(str, self))


def parse_receipt(text: str) -> Receipt:
    """The receipt that a client shows; a ninth part, which proxies add, is ignored.

    Raises:
        CheckPointError: it does not parse.
    """
    parts = text.split(" ")
    try:
        receipt = Receipt(
            int(parts[0]), int(parts[1]), int(parts[2]), int(parts[3]),
            parts[4], parts[5], int(parts[6]), int(parts[7]),
        )  # fmt: skip
    except (IndexError, ValueError):
        raise CheckPointError(f"receipt {text[:200]!r} is not eight parts") from None
    numbers = (*receipt[:4], *receipt[6:])
    if min(numbers) < -LONG_END or max(numbers) >= LONG_END:
        raise CheckPointError(f"receipt {text[:200]!r} has a number beyond 64 bits")
    return receipt


def retried_topic(retry_topic: str, group: str) -> str | None:
    """The topic whose POP retry topic this is; None if the group has no such retry topic."""
    prefix = pop_retry_topic("", group)
    for each in (prefix, pop_retry_topic("", group, v2=True)):
        if retry_topic.startswith(each):
            return retry_topic[len(each) :]
    return None


def retry_flag(topic: str, group: str) -> str:
    """Which kind of topic it is for a group: normal, or its POP retry topic, v1 or v2."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    if topic.startswith(f"{RETRY_PREFIX}{group}+"):
        return RETRY_V2
    return RETRY_V1 if topic.startswith(f"{RETRY_PREFIX}{group}_") else NORMAL


def real_topic(topic: str, group: str, flag: str) -> str:
    """The topic that messages with a retry flag came from."""
    if flag == RETRY_V1:
        return pop_retry_topic(topic, group)
    if flag == RETRY_V2:
        return pop_retry_topic(topic, group, v2=True)
    return topic


def offset_info(flag: str, queue_id: int, offsets: Iterable[int]) -> str:
    """One queue of ``msgOffsetInfo``, or of ``startOffsetInfo`` with one offset."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def encode_offset_list(offsets: Sequence[int]) -> tuple[int, ...]:
    """The first offset, then distances to it, as consumerOrderInfo.json has them."""
    first = offsets[0]
    return (first, *(offset - first for offset in offsets[1:]))


def _object(body: bytes) -> dict[str, Any]:
    if len(body) > BODY_SIZE_MAX:
        raise CheckPointError(f"{len(body)} bytes, allowed are {BODY_SIZE_MAX}")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckPointError(f"{body[:100]!r}: {error}") from None
    if not isinstance(fields, dict):
        raise CheckPointError(f"{body[:100]!r} is no object")
    return fields


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or not -LONG_END <= value < LONG_END:
        raise CheckPointError(f"{name} is {str(value)[:100]}")
    return value


def _names(fields: dict[str, Any]) -> tuple[str, str, str]:
    """Topic, group and broker name."""
    topic, group, broker_name = fields.get("t"), fields.get("c"), str(fields.get("bn") or "")
    if not isinstance(topic, str) or not isinstance(group, str):
        raise CheckPointError(f"t is {str(topic)[:100]}, c is {str(group)[:100]}")
    check_names(topic, group, broker_name)
    return topic, group, broker_name


def _signed_32(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


_compact: Final = msgspec.json.Encoder().encode
"""What ``json.dumps`` makes without spaces and with text as it is, in a tenth of its time."""
