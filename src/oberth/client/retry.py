"""Decisions about trying again, without a clock or a connection.

RocketMQ: DefaultMQProducer.retryResponseCodes, ConsumeMessageConcurrentlyService,
DefaultMQPushConsumerImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oberth.client.instance import BROKER_NOT_EXIST
from oberth.errors import (
    LocalProtocolError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTooMuchRequestError,
)
from oberth.remoting.code import ResponseCode as R

RETRY_RESPONSE_CODES: Final = frozenset(
    {
        R.TOPIC_NOT_EXIST,
        R.SERVICE_NOT_AVAILABLE,
        R.SYSTEM_ERROR,
        R.SYSTEM_BUSY,
        R.NO_PERMISSION,
        R.NO_BUYER_ID,
        R.NOT_IN_CURRENT_UNIT,
        R.GO_AWAY,
    }
)
"""Answers to a send after which another broker may do better."""

ROUTE_DOUBT_CODES: Final = frozenset(
    {R.TOPIC_NOT_EXIST, R.SERVICE_NOT_AVAILABLE, R.NO_PERMISSION, R.GO_AWAY}
)
"""Answers of a broker that may not be what the route says, such as a master that became a slave."""

RETRY_TIMES_DEFAULT: Final = 16
"""Attempts of a consumer group before a message goes to the dead letters."""

FIRST_RETRY_DELAY_LEVEL: Final = 3
"""Delay level of the first retry; each further one is a level higher."""

POP_RETRY_DELAYS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""For how long a POP consumer hides a message that failed, by attempt."""

PULL_ERROR_DELAY_S: Final = 3.0
PULL_FLOW_CONTROL_BY_BROKER_DELAY_S: Final = 0.02
PULL_FLOW_CONTROL_DELAY_S: Final = 0.05
PULL_SUSPENDED_DELAY_S: Final = 1.0

IDLE_REST_FIRST_S: Final = 0.01
IDLE_REST_MAX_S: Final = 1.0
HELD_PULL_S: Final = 0.5
"""A broker that has held a pull for so long has waited for messages, as it should."""


class IdlePulls:
    """How long to rest after pulls of a queue that brought nothing.

    A broker that is asked to wait for messages answers late. One that answers at once and brings
    nothing is asked again a little later each time, not as fast as the network allows.
    """

    __slots__ = ("_in_a_row",)

    def __init__(self) -> None:
        self._in_a_row = 0

    def rest_after(self, took_s: float, *, got_on: bool) -> float:
        """Seconds to rest now.

        Args:
            took_s: for how long the broker had the request.
            got_on: whether it brought messages, or went on to a later offset.
        """
        if got_on or took_s >= HELD_PULL_S:
            self._in_a_row = 0
            return 0.0
        self._in_a_row += 1
        if self._in_a_row == 1:
            return 0.0
        return min(IDLE_REST_FIRST_S * 2.0 ** min(self._in_a_row - 2, 20), IDLE_REST_MAX_S)


def rest_after_try(number: int) -> float:
    """Seconds before a send is tried again that every broker of its topic has failed.

    Three tries in a row would be over in some ms. Another master is elected in half a second.

    Args:
        number: of tries so far.
    """
    return 0.25 if number == 1 else 1.0


def is_send_retryable(error: Exception, response_codes: frozenset[int]) -> bool:
    """Whether a send that failed so may be tried on another broker.

    A time-out is: whether the message was stored is not known, so it may be stored twice. So is a
    broker that no route knows: an order configuration names it also while it is away.
    """
    if isinstance(error, MQBrokerError):
        return error.response_code in response_codes
    if isinstance(error, MQClientError):
        return error.response_code == BROKER_NOT_EXIST
    if isinstance(error, RemotingTooMuchRequestError | LocalProtocolError):
        return False
    return isinstance(error, RemotingError)


def is_async_send_retryable(error: Exception) -> bool:
    """As ``is_send_retryable`` for sends that Java calls asynchronous: no answer is retried."""
    return not isinstance(error, MQBrokerError) and is_send_retryable(error, frozenset())


def is_unreachable(error: Exception) -> bool:
    """Whether there was no connection at all."""
    return isinstance(error, RemotingConnectError)


def is_route_doubtful(error: Exception) -> bool:
    """Whether the route may be old that led to the broker where a request failed so."""
    if isinstance(error, MQBrokerError):
        return error.response_code in ROUTE_DOUBT_CODES
    return isinstance(error, RemotingError) and not isinstance(
        error, RemotingTooMuchRequestError | LocalProtocolError
    )


def retry_delay_level(reconsume_times: int) -> int:
    """The delay level of a message that is sent to the retry topic by the consumer itself."""
    return FIRST_RETRY_DELAY_LEVEL + reconsume_times


def pop_retry_delay_ms(reconsume_times: int, delays_s: Sequence[int] = POP_RETRY_DELAYS_S) -> int:
    """For how long a POP consumer hides a message that failed for the n-th time, counted from 0."""
    return delays_s[min(max(reconsume_times, 0), len(delays_s) - 1)] * 1000
