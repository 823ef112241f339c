"""What a requester hears of a put: the status as a response code and remark.

RocketMQ: SendMessageProcessor.handlePutMessageResult, EndTransactionProcessor.sendFinalMessage.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oberth.remoting.code import ResponseCode
from oberth.store.messages import PutMessageStatus


class PutOutcome(NamedTuple):
    """A code, its remark, and whether the message is stored (so that a header is sent)."""

    code: int
    remark: str | None
    stored: bool


_ILLEGAL_REMARK: Final = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit {body_max}B, msg properties length limit 32KB."
)
_UNAVAILABLE_REMARK: Final = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full, messages are put to the slave, message store has been shut down, "
    "etc."
)

_OUTCOMES: Final = {
    PutMessageStatus.PUT_OK: PutOutcome(ResponseCode.SUCCESS, None, True),
    PutMessageStatus.FLUSH_DISK_TIMEOUT: PutOutcome(ResponseCode.FLUSH_DISK_TIMEOUT, None, True),
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: PutOutcome(ResponseCode.FLUSH_SLAVE_TIMEOUT, None, True),
    PutMessageStatus.SLAVE_NOT_AVAILABLE: PutOutcome(ResponseCode.SLAVE_NOT_AVAILABLE, None, True),
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: PutOutcome(
        ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", False
    ),
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: PutOutcome(
        ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.", False
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: PutOutcome(
        ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL_REMARK, False
    ),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: PutOutcome(
        ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL_REMARK, False
    ),
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: PutOutcome(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        "{delay_max_ms}ms; or if set del msg, the delay time should be bigger than the current "
        "time",
        False,
    ),
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: PutOutcome(
        ResponseCode.SYSTEM_ERROR,
        "timer message is under flow control, max num limit is {congest_max} or the current value "
        "is greater than {congest_max} and less than {congest_max}, trigger random flow control",
        False,
    ),
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: PutOutcome(
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, timerWheelEnable is false",
        False,
    ),
    PutMessageStatus.SERVICE_NOT_AVAILABLE: PutOutcome(
        ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE_REMARK, False
    ),
    PutMessageStatus.OS_PAGE_CACHE_BUSY: PutOutcome(
        ResponseCode.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
        False,
    ),
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: PutOutcome(
        ResponseCode.SYSTEM_ERROR,
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
        "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w.",
        False,
    ),
    PutMessageStatus.UNKNOWN_ERROR: PutOutcome(ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR", False),
}


def put_outcome(
    status: PutMessageStatus, *, body_max: int, delay_max_ms: int = 0, congest_max: int = 0
) -> PutOutcome:
    """Code, remark and whether the message is stored.

    Args:
        status: of the put.
        body_max: maxMessageSize in bytes, for the remark.
        delay_max_ms: the longest timer, for the remark.
        congest_max: the limit of a timer slot, for the remark.
    """
    found = _OUTCOMES.get(status)
    if found is None:
        return PutOutcome(ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR DEFAULT: {status.name}", False)
    if found.remark is None or "{" not in found.remark:
        return found
    return found._replace(
        remark=found.remark.format(
            body_max=body_max, delay_max_ms=delay_max_ms, congest_max=congest_max
        )
    )
