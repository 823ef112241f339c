"""OpenRequests: our requests on one connection that wait for their responses.

A pure state machine: time is an argument, in seconds of any clock that does not go back. What is
always true: a number that is open is not given out again, and each request leaves the table exactly
once: answered, expired, or with the connection. RocketMQ: ``NettyRemotingAbstract.responseTable``.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from oberth.errors import RemotingTooMuchRequestError

_T = TypeVar("_T")

OPAQUE_MAX: Final = 2**31 - 1
"""Numbers of requests begin again at 0 after this one; Java has 32 bits with a sign."""


class OpenRequest(Generic[_T]):
    """A request that waits.

    Attributes:
        code: what it asked for.
        started: when it was sent.
        deadline: when it expires.
        token: whatever the owner wants back.
        was_held: whether it was given its time again, see ``OpenRequests.extend``.
    """

    __slots__ = ("code", "deadline", "started", "token", "was_held")

    def __init__(self, code: int, started: float, deadline: float, token: _T) -> None:
        self.code = code
        self.started = started
        self.deadline = deadline
        self.token = token
        self.was_held = False


class OpenRequests(Generic[_T]):
    """The table of one connection."""

    __slots__ = ("_next_opaque", "_requests", "count_max")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._requests: dict[int, OpenRequest[_T]] = {}
        self._next_opaque = 0

    def __len__(self) -> int:
        return len(self._requests)

    def next_opaque(self) -> int:
        """A number that no open request has."""
        opaque = self._next_opaque
        while opaque in self._requests:
            opaque = 0 if opaque == OPAQUE_MAX else opaque + 1
        self._next_opaque = 0 if opaque == OPAQUE_MAX else opaque + 1
        return opaque

    def check_room(self, where: str) -> None:
        """Raise RemotingTooMuchRequestError when no more may be opened."""
        if len(self._requests) >= self.count_max:
            raise RemotingTooMuchRequestError(
                f"{len(self._requests)} requests open to {where}, allowed {self.count_max}"
            )

    def open(self, opaque: int, code: int, now: float, deadline: float, token: _T) -> None:
        """A request was sent under a number that ``next_opaque`` gave."""
        self._requests[opaque] = OpenRequest(code, now, deadline, token)

    def answered(self, opaque: int) -> OpenRequest[_T] | None:
        """The request that a response belongs to; None if nobody waits (any more)."""
        return self._requests.pop(opaque, None)

    def extend(self, now: float) -> None:
        """Nothing could be sent or received until now: what is due gets its time once more."""
        for request in self._requests.values():
            if request.deadline <= now and not request.was_held:
                request.deadline = now + (request.deadline - request.started)
                request.was_held = True

    def start_anew(self, since: float, now: float) -> None:
        """What was opened since a time could not be sent until now: its time begins now."""
        for request in self._requests.values():
            if request.started >= since:
                request.deadline += now - request.started
                request.started = now

    def expire(self, now: float) -> list[OpenRequest[_T]]:
        """Requests whose deadline has come, the oldest first."""
        expired = [opaque for opaque, request in self._requests.items() if request.deadline <= now]
        return [self._requests.pop(opaque) for opaque in expired]

    def next_deadline(self) -> float | None:
        """When the next request expires; None when there is none."""
        return min((request.deadline for request in self._requests.values()), default=None)

    def take_all(self) -> list[OpenRequest[_T]]:
        """All requests; the connection is gone."""
        requests = list(self._requests.values())
        self._requests.clear()
        return requests
