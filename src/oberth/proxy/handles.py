"""Receipt handles and transaction ids: clients bring them back, so that no memory keeps them."""

from __future__ import annotations

from typing import Final

from oberth.client.messages import MessageExt, decode_messages
from oberth.client.pop_consumer import NO_RETRY, ReceiptHandle, attach_handles, real_topic
from oberth.client.recall import broker_of_recall_handle
from oberth.errors import MQClientError
from oberth.formats import properties as p
from oberth.proxy.codes import Code, StatusError, code_of
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pop import (
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopLiteMessageResponseHeader,
    PopMessageResponseHeader,
)

OFFSET_DIGITS_MAX: Final = 19
"""Digits of an offset that a client brings back: a signed number of 64 bits."""


def popped(
    answer: RemotingCommand, topic: str, broker_name: str, *, is_lite: bool
) -> list[MessageExt]:
    """The messages that a broker handed out, each with its receipt handle as its POP_CK.

    Whether they are of lite topics is known by what was asked, not by their properties: those are
    their senders'. A message that was popped from its topic is acknowledged there, so it comes
    without its lite topic.
    """
    found = decode_messages(answer.body_bytes(), broker_name)
    if not is_lite:
        attach_handles(found, answer.header(PopMessageResponseHeader), topic, broker_name)
        for message in found:
            message.properties.pop(p.LITE_TOPIC, None)
        return found
    header = answer.header(PopLiteMessageResponseHeader)
    counts = (header.order_count_info or "").split(";")
    for message, count in zip(found, counts, strict=False):
        # Where a message stands in its lite topic, it says itself; how often it was handed out
        # before is the last word of its count.
        offset = int(message.properties.get(p.INNER_MULTI_QUEUE_OFFSET, "0").partition(",")[0])
        message.queue_id = 0
        message.queue_offset = offset
        message.reconsume_times = int(count.rpartition(" ")[2] or "0")
        message.properties[p.POP_CK] = ReceiptHandle(
            offset,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            NO_RETRY,
            broker_name,
            0,
            offset,
        ).text()
    return found


def visible_at(handle: str) -> int:
    """When others see the message of a handle, in ms."""
    parsed = ReceiptHandle.parse(handle)
    return parsed.pop_time_ms + parsed.invisible_ms


def invisible_header(
    topic: str,
    group: str,
    handle: ReceiptHandle,
    invisible_ms: int,
    lite_topic: str,
    *,
    suspend: bool = False,
) -> ChangeInvisibleTimeRequestHeader:
    return ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=real_topic(topic, group, handle.retry_flag),
        queue_id=handle.queue_id,
        extra_info=handle.text(),
        offset=handle.offset,
        invisible_time=invisible_ms,
        lite_topic=lite_topic or None,
        suspend=suspend,
    )


def renewed(text: str, handle: ReceiptHandle, answer: RemotingCommand) -> str:
    """The handle that takes the place of another, by the answer to a change of its time."""
    header = answer.header(ChangeInvisibleTimeResponseHeader)
    fresh = ReceiptHandle(
        handle.offset,
        header.pop_time,
        header.invisible_time,
        header.revive_qid,
        handle.retry_flag,
        handle.broker_name,
        handle.queue_id,
        handle.offset,
    )
    return " ".join([fresh.text(), *text.split(" ")[8:]])


def handle_code(answer: RemotingCommand) -> Code:
    """The status of an answer to a command with a receipt handle."""
    if answer.code in (
        ResponseCode.NO_MESSAGE,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.MESSAGE_ILLEGAL,  # a queue, or an offset of an ordered group, that is none
    ):
        return Code.INVALID_RECEIPT_HANDLE
    return code_of(answer.code)


def transaction_id(key: str, state_offset: int, log_offset: int, broker_name: str) -> str:
    """The id of a transaction with what its end needs: no memory has to keep it."""
    return f"{key} {state_offset} {log_offset} {broker_name}"


def parse_transaction_id(text: str) -> tuple[str, int, int, str]:
    """What `transaction_id` joined.

    Raises:
        StatusError: another text.
    """
    rest, _, broker_name = text.rpartition(" ")
    rest, _, log_offset = rest.rpartition(" ")
    key, _, state_offset = rest.rpartition(" ")
    offsets = (state_offset, log_offset)
    if (
        not key
        or not broker_name
        or not all(o.isdecimal() and len(o) <= OFFSET_DIGITS_MAX for o in offsets)
    ):
        raise StatusError(Code.INVALID_TRANSACTION_ID, f"transaction id {text[:80]!r} is unknown")
    return key, int(state_offset), int(log_offset), broker_name


def recalled_broker(text: str) -> str:
    """The broker that a recall handle is of, "" if the handle names none."""
    try:
        return broker_of_recall_handle(text)
    except MQClientError:
        return ""
