"""ProcessorTable: which handler serves a code, on what it runs, and what it may leave waiting.

A handler is one of five kinds:

    kind    called with                 gives                         runs
    sync    channel, request            a response or None            on the loop, or in a thread
    async   channel, request            awaitable of the same         in a task on the loop
    burst   channels, [request, ...]    [response or None, ...]       on the loop
    timed   channels, [request, ...],   the same, of the first few:   on the loop, until then; the
            loop time                   one at least                  others in further turns
    sliced  channel, request            a generator of Nones whose    on the loop, which turns at
                                        value is a response or None   each yield

A burst or timed handler gets the requests of one read, or of all reads of one turn of the loop,
with the channel of each beside it. None means: no answer now. Code that has kept the request
answers it later with ``channel.reply``, or never. Without a stage a handler runs at once, on the
loop; with one it may wait in the queue.

What a requester hears when it is not served (RocketMQ: ``NettyRemotingAbstract``,
``BrokerFastFailure``):

    code not known                       3     request type N not supported
    the processor refuses                2     [REJECTREQUEST]... and why, or its `Refusal`
    the stage's queue is full            2     [OVERLOAD]... stage, how long its head has waited
    it waited too long in the queue      2     [TIMEOUT_CLEAN_QUEUE]... stage, how long, allowed
    the handler raised                   1     the exception
    its body is longer than its code's   1     how long, allowed
    too much waits for slices            2     [OVERLOAD]... how much, allowed
    too much is put off                  2     [OVERLOAD]... how much, allowed
    we are going away                    1500  to requesters above V5_3_1; others are still served

One-way requests hear nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum
from itertools import islice, repeat
from typing import Final, TypeAlias, cast

from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.stage import (
    OVERLOAD,
    AsyncHandler,
    Stage,
    SyncHandler,
    call_sync,
    error_response,
    waiting_size,
)
from oberth.remoting.code import MQVersion, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_response
from oberth.remoting.refusal import Refusal

_LOG: Final = logging.getLogger(__name__)

BurstHandler: TypeAlias = Callable[
    [Sequence[Channel], list[RemotingCommand]], Sequence[RemotingCommand | None]
]
TimedHandler: TypeAlias = Callable[
    [Sequence[Channel], list[RemotingCommand], float], Sequence[RemotingCommand | None]
]
SlicedHandler: TypeAlias = Callable[
    [Channel, RemotingCommand], Generator[None, None, RemotingCommand | None]
]
AtOnce: TypeAlias = Callable[[Channel, RemotingCommand], bool]
"""Answers a request, where that is quickly done; False: it has done nothing."""
Reject: TypeAlias = Callable[[], str | Refusal | None]
"""Gives the reason why a processor takes no requests now, or None. Called on the loop."""


SERVER_BODY_SIZE_MAX: Final = 16 * 1024
"""Bytes of a request's body where a server registers a code with no other limit. Most have none."""

SERVER_HEADER_SIZE_MAX: Final = 256 * 1024
"""Bytes of a request's header that a server takes: properties are 32 KiB at most."""

SLICED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of requests that wait for their next slice; more requests are answered with code 2."""

TURN_S: Final = 0.005
"""How long a turn of the loop serves requests of reads before it puts off what is left of them."""

PUT_OFF_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of requests that are put off, of all channels; more are answered with code 2."""

ROUND_MAX: Final = 64
"""Channels with requests that are put off, and requests of each, that one round takes up."""


class _Kind(Enum):
    SYNC = "sync"
    ASYNC = "async"
    BURST = "burst"
    TIMED = "timed"
    SLICED = "sliced"


class Processor:
    """What serves a code; made by ``ProcessorTable``."""

    __slots__ = ("at_once", "handler", "joins", "kind", "reject", "stage")

    def __init__(
        self,
        kind: _Kind,
        handler: SyncHandler | AsyncHandler | BurstHandler | TimedHandler | SlicedHandler,
        stage: Stage | None,
        reject: Reject | None,
        at_once: AtOnce | None = None,
    ) -> None:
        self.kind = kind
        self.at_once = at_once
        self.joins = kind is _Kind.BURST or kind is _Kind.TIMED  # requests of several channels
        self.handler = handler
        self.stage = stage
        self.reject = reject


_Work: TypeAlias = Generator[None, None, RemotingCommand | None]

BURST_MAX: Final = 256
"""Requests that a burst handler gets in one call; a turn of the loop may have time for more."""


class _Sliced:
    """A request that is worked on in slices, or will be."""

    __slots__ = ("has_begun", "lasts", "request", "size", "work")

    def __init__(
        self, request: RemotingCommand, work: _Work, size: int, *, has_begun: bool, lasts: bool
    ) -> None:
        self.request = request
        self.work = work
        self.size = size
        self.has_begun = has_begun
        self.lasts = lasts  # whether it is done although the connection has closed


class Slices:
    """Sliced requests that are not done: each channel in turn gets one slice, and the loop turns.

    One slice a turn, however many requests wait: so the loop is held by one slice, not by their
    number. A channel's requests are worked on one after the other: so what is gathered for answers
    is bounded by the channels. While its peer takes no answers none is begun; what is begun goes on
    to its end, since it may hold what others wait for. When the connection closes they are given
    up but for those that last. All methods belong to the loop's thread.

    Attributes:
        waiting_bytes: of all requests that wait but for those of peers that take no answers, see
            `waiting_size`. Those count as work of their connections alone.
    """

    __slots__ = ("_deaf", "_work", "waiting_bytes")

    def __init__(self) -> None:
        self._work: dict[Channel, deque[_Sliced]] = {}
        self._deaf: dict[Channel, deque[_Sliced]] = {}
        self.waiting_bytes = 0

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._work or channel in self._deaf

    def start(
        self,
        channel: Channel,
        request: RemotingCommand,
        handler: SlicedHandler,
        *,
        lasts: bool = False,
    ) -> None:
        """Do the first slice at once, and all of it if that is all."""
        if self.waiting_bytes > SLICED_BYTES_MAX:
            remark = (
                f"{OVERLOAD}{self.waiting_bytes} bytes of requests are worked on in slices, "
                f"allowed {SLICED_BYTES_MAX}"
            )
            channel.reply(request, create_response(request, ResponseCode.SYSTEM_BUSY, remark))
            return
        work = handler(channel, request)
        begins = channel not in self and channel.takes_more()
        if begins and not self._step(channel, request, work):
            return
        size = waiting_size(request)
        each = _Sliced(request, work, size, has_begun=begins, lasts=lasts)
        channel.work_started(size)
        if channel in self._deaf:
            self._deaf[channel].append(each)
            return
        self.waiting_bytes += size
        if channel in self._work:
            self._work[channel].append(each)
        else:
            self._add(channel, deque([each]))

    def _add(self, channel: Channel, own: deque[_Sliced]) -> None:
        self._work[channel] = own
        if len(self._work) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._work:
            return  # closed meanwhile
        channel = next(iter(self._work))
        own = self._work.pop(channel)
        each = own[0]
        if each.has_begun or channel.takes_more():
            each.has_begun = True
            is_given_up = channel.is_closed and not each.lasts
            if is_given_up or not self._step(channel, each.request, each.work):
                own.popleft()
                channel.work_finished(each.size)
                self.waiting_bytes -= each.size
            if own:
                self._work[channel] = own  # after the others
        else:
            self._deaf[channel] = own
            self.waiting_bytes -= sum([each.size for each in own])
            channel.when_writable(lambda: self._take_up(channel))
        if self._work:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _take_up(self, channel: Channel) -> None:
        own = self._deaf.pop(channel, None)
        if own is not None:
            self.waiting_bytes += sum([each.size for each in own])
            self._add(channel, own)

    def _step(self, channel: Channel, request: RemotingCommand, work: _Work) -> bool:
        """Whether there is more to do."""
        try:
            next(work)
        except StopIteration as end:
            response = end.value
        except Exception as error:  # noqa: BLE001 - whatever it is, the requester hears of it
            response = error_response(request, error)
        else:
            return True
        if response is not None:
            channel.reply(request, response)
        return False

    def close(self) -> None:
        """Give up what is not done."""
        self._work.clear()
        self._deaf.clear()
        self.waiting_bytes = 0


Asked: TypeAlias = tuple[Channel, list[RemotingCommand], int]
"""What a channel asked, and the number of the first request that is not served."""
Left: TypeAlias = tuple[Channel, list[RemotingCommand]]
"""Of what a channel asked, all that is not served."""


class PutOff:
    """What was read and did not fit into its turn of the loop: channels take turns with it.

    A read of 256 KiB may hold two thousand requests, each of which asks for all that a broker
    knows. A channel that has put off requests is not read from; what else it has sent is served
    after them, and none of it while the peer takes no answers. When the connection closes, what
    lasts is still served. All methods belong to the loop's thread.

    Attributes:
        waiting_bytes: of all requests that wait but for those of peers that take no answers, see
            `waiting_size`. Those count as work of their connections.
    """

    __slots__ = ("_deaf", "_lasts", "_serve", "_waiting", "waiting_bytes")

    def __init__(
        self,
        serve: Callable[[list[Asked], float], list[Left]],
        lasts: Callable[[RemotingCommand], bool],
    ) -> None:
        self._serve = serve
        self._lasts = lasts
        self._waiting: dict[Channel, deque[tuple[RemotingCommand, int]]] = {}
        self._deaf: dict[Channel, deque[tuple[RemotingCommand, int]]] = {}
        self.waiting_bytes = 0

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._waiting or channel in self._deaf

    def __bool__(self) -> bool:
        return bool(self._waiting or self._deaf)

    def add(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Serve these later, after what waits of their channel."""
        deaf = self._deaf.get(channel)
        waiting = self._waiting.get(channel)
        for request in requests:
            if self.waiting_bytes > PUT_OFF_BYTES_MAX:
                remark = (
                    f"{OVERLOAD}{self.waiting_bytes} bytes of requests are put off, "
                    f"allowed {PUT_OFF_BYTES_MAX}"
                )
                channel.reply(request, create_response(request, ResponseCode.SYSTEM_BUSY, remark))
                continue
            size = waiting_size(request)
            if deaf is not None:
                channel.work_started(size)
                deaf.append((request, size))
                continue
            if waiting is None:
                channel.hold_reading()
                waiting = deque()
                self._add(channel, waiting)
            self.waiting_bytes += size
            waiting.append((request, size))

    def _add(self, channel: Channel, waiting: deque[tuple[RemotingCommand, int]]) -> None:
        self._waiting[channel] = waiting
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        while self._waiting:
            asked = []
            for channel, waiting in list(islice(self._waiting.items(), ROUND_MAX)):
                if channel.is_closed and not self._keep_lasting(channel, waiting):
                    continue
                if channel.takes_more():
                    channel.cork()
                    some = [request for request, _ in islice(waiting, ROUND_MAX)]
                    asked.append((channel, some, 0))
                else:
                    self._set_aside(channel)
            try:
                left = dict(self._serve(asked, until))
            finally:
                for channel, _, _ in asked:
                    channel.uncork()
            for channel, requests, _ in asked:
                served = len(requests) - len(left.get(channel, ()))
                if served and channel in self._waiting:
                    self._served(channel, self._waiting[channel], served)
            if self._waiting and loop.time() >= until:
                loop.call_soon(self._go_on)
                return

    def _keep_lasting(self, channel: Channel, waiting: deque[tuple[RemotingCommand, int]]) -> bool:
        """Give up what waits of a closed channel but for what lasts; whether that is anything."""
        lasting = [each for each in waiting if self._lasts(each[0])]
        given_up = [each for each in waiting if not self._lasts(each[0])]
        if given_up:
            waiting.clear()
            waiting.extend(given_up + lasting)
            self._served(channel, waiting, len(given_up))
        return bool(lasting)

    def _served(
        self, channel: Channel, waiting: deque[tuple[RemotingCommand, int]], count: int
    ) -> None:
        """The first of what waits of a channel wait no more."""
        for _ in range(count):
            self.waiting_bytes -= waiting.popleft()[1]
        del self._waiting[channel]
        if waiting:
            self._waiting[channel] = waiting  # after the others
        else:
            channel.resume_reading()

    def _set_aside(self, channel: Channel) -> None:
        """Have what waits of a channel wait for its peer: it must not keep out others."""
        self._deaf[channel] = waiting = self._waiting.pop(channel)
        for _, size in waiting:
            self.waiting_bytes -= size
            channel.work_started(size)
        channel.when_writable(lambda: self._take_up(channel))

    def _take_up(self, channel: Channel) -> None:
        waiting = self._deaf.pop(channel, None)
        if waiting is None:
            return
        for _, size in waiting:
            self.waiting_bytes += size
            channel.work_finished(size)
        self._add(channel, waiting)

    def close(self) -> None:
        """Give up what waits."""
        self._waiting.clear()
        self._deaf.clear()
        self.waiting_bytes = 0


class ProcessorTable:
    """Code → Processor. Codes are registered before the first request comes.

    Args:
        body_size_max: bytes of a request's body where its code is registered with no other limit.
    """

    def __init__(self, body_size_max: int = FRAME_SIZE_MAX) -> None:
        self._processors: dict[int, Processor] = {}
        self._stages: dict[str, Stage] = {}
        self._body_size_max = body_size_max
        self._body_sizes_max: dict[int, int] = {}
        self._slices = Slices()
        self._put_off = PutOff(self._serve_late, self.lasts)
        self._lasting: frozenset[int] = frozenset()
        self.going_away = False

    def sync(
        self,
        codes: Iterable[int],
        handler: SyncHandler,
        *,
        stage: Stage | None = None,
        reject: Reject | None = None,
        body_size_max: int | None = None,
    ) -> None:
        """Serve ``codes`` with a function; without a stage it is on the loop and must not block."""
        self._register(codes, Processor(_Kind.SYNC, handler, stage, reject), body_size_max)

    def sliced(
        self,
        codes: Iterable[int],
        handler: SlicedHandler,
        *,
        at_once: AtOnce | None = None,
        reject: Reject | None = None,
        body_size_max: int | None = None,
    ) -> None:
        """Serve ``codes`` with a generator function, on the loop, some milliseconds a slice.

        What comes after it on its connection may be served before it is done. Where nothing of
        the connection is worked on in slices, ``at_once`` is asked first.
        """
        processor = Processor(_Kind.SLICED, handler, None, reject, at_once)
        self._register(codes, processor, body_size_max)

    def async_(
        self,
        codes: Iterable[int],
        handler: AsyncHandler,
        *,
        stage: Stage,
        reject: Reject | None = None,
        body_size_max: int | None = None,
    ) -> None:
        """Serve ``codes`` with a coroutine function, in tasks of ``stage``."""
        self._register(codes, Processor(_Kind.ASYNC, handler, stage, reject), body_size_max)

    def burst(
        self,
        codes: Iterable[int],
        handler: BurstHandler,
        *,
        reject: Reject | None = None,
        body_size_max: int | None = None,
    ) -> None:
        """Serve ``codes`` on the loop, neighbours of one read or of one turn together.

        The handler gives as many entries as it got requests. If it raises, all of them are answered
        with code 1: so it must not have answered any itself by then.
        """
        self._register(codes, Processor(_Kind.BURST, handler, None, reject), body_size_max)

    def timed(
        self,
        codes: Iterable[int],
        handler: TimedHandler,
        *,
        body_size_max: int | None = None,
    ) -> None:
        """Serve ``codes`` on the loop, neighbours together as far as the time goes.

        The handler looks at the clock between requests, and whether their channels take more. It
        gives an entry for each that it served. If it raises, all that it got are answered with
        code 1.
        """
        self._register(codes, Processor(_Kind.TIMED, handler, None, None), body_size_max)

    def let_last(self, codes: Iterable[int]) -> None:
        """Serve one-way requests of ``codes`` also when their connection closes before their turn.

        Clients send them last of all. Their handlers must keep nothing by the channel, whose
        owner has been told already that it is gone.
        """
        self._lasting |= frozenset(codes)

    def lasts(self, request: RemotingCommand) -> bool:
        """Whether a request is served although its connection has closed."""
        return request.is_oneway and request.code in self._lasting

    def _register(
        self, codes: Iterable[int], processor: Processor, body_size_max: int | None
    ) -> None:
        stage = processor.stage
        if stage is not None:
            assert self._stages.setdefault(stage.name, stage) is stage, f"two stages {stage.name}"
        for code in codes:
            self._processors[int(code)] = processor
            if body_size_max is not None:
                self._body_sizes_max[int(code)] = body_size_max

    @property
    def codes(self) -> frozenset[int]:
        """All codes that are served."""
        return frozenset(self._processors)

    def body_size_max(self, code: int) -> int:
        """Bytes of a body that a request of this code may have."""
        return self._body_sizes_max.get(code, self._body_size_max)

    @property
    def stages(self) -> Sequence[Stage]:
        """All stages that processors run on."""
        return tuple(self._stages.values())

    def has_put_off(self, channel: Channel) -> bool:
        """Whether requests of a channel wait for a further turn; what follows waits after them."""
        return channel in self._put_off

    def put_off_of(self, channels: Iterable[Channel]) -> list[Channel]:
        """Those of the channels that have requests that wait for a further turn."""
        put_off = self._put_off
        return [channel for channel in channels if channel in put_off] if put_off else []

    def without(self, codes: Iterable[int]) -> ProcessorTable:
        """A table with the same processors and stages but for ``codes`` (RocketMQ's fast port)."""
        other = ProcessorTable()
        other._stages = self._stages
        other._slices = self._slices
        other._put_off = self._put_off
        other._lasting = self._lasting
        other._body_size_max = self._body_size_max
        other._body_sizes_max = self._body_sizes_max
        left_out = set(codes)
        other._processors = {
            code: processor for code, processor in self._processors.items() if code not in left_out
        }
        return other

    def dispatch(self, channel: Channel, requests: list[RemotingCommand]) -> None:
        """Serve the requests of one read in order; neighbours in one burst go together.

        What takes longer than TURN_S is put off to further turns of the loop.
        """
        self._dispatch(channel, requests, None)

    def _dispatch(
        self, channel: Channel, requests: list[RemotingCommand], until: float | None
    ) -> None:
        if self.going_away:
            requests = self._turn_away(channel, requests)
        requests = self.within_limits(channel, requests)
        if channel in self._put_off:
            self._put_off.add(channel, requests)
            return
        if until is None and len(requests) > 1:
            until = asyncio.get_running_loop().time() + TURN_S
        served = self._serve_some(channel, requests, until or 0.0)
        if served < len(requests):
            self._put_off.add(channel, requests[served:])

    def dispatch_turn(self, turn: Iterable[tuple[Channel, list[RemotingCommand]]]) -> None:
        """Serve what one turn of the loop read, in rounds.

        The requests of one channel are served in order. A round goes through the channels: each
        has its requests served up to one of a burst processor, and that and its neighbours of the
        same processor join those of the other channels, which are served together behind the
        round. So the acknowledgements of many channels are one burst, whatever stands before them.
        """
        put_off = self._put_off
        until = asyncio.get_running_loop().time() + TURN_S
        entries = []
        for channel, requests in turn:
            if self.going_away:
                requests = self._turn_away(channel, requests)
            requests = self.within_limits(channel, requests)
            if channel in put_off:
                put_off.add(channel, requests)
            elif requests:
                entries.append((channel, requests, 0))
        for channel, requests in self._serve_rounds(entries, until):
            put_off.add(channel, requests)

    def _serve_late(self, entries: list[Asked], until: float) -> list[Left]:
        """Serve rounds of what was put off: something, however late it is."""
        return self._serve_rounds(entries, until, something=True)

    def _serve_rounds(
        self, entries: list[Asked], until: float, *, something: bool = False
    ) -> list[Left]:
        """Serve requests in rounds, see `dispatch_turn`; what was not served by then."""
        processors = self._processors
        loop = asyncio.get_running_loop()
        left: list[Left] = []
        while entries:
            bursts: dict[Processor, tuple[list[Channel], list[RemotingCommand]]] = {}
            following = []
            for channel, requests, start in entries:
                count = len(requests)
                if start and not channel.takes_more():
                    left.append((channel, requests[start:]))
                    continue
                processor = processors.get(requests[start].code)
                if processor is None or not processor.joins:
                    if not something and loop.time() >= until:
                        left.append((channel, requests[start:] if start else requests))
                        continue
                    something = False
                    start = self._serve_some(channel, requests, until, start, to_burst=True)
                    if start == count:
                        continue
                    processor = processors.get(requests[start].code)
                    if processor is None or not processor.joins or not channel.takes_more():
                        left.append((channel, requests[start:]))
                        continue
                end = start + 1
                while end < count and processors.get(requests[end].code) is processor:
                    end += 1
                channels, run = bursts.setdefault(processor, ([], []))
                channels += [channel] * (end - start)
                run += requests if end - start == count else requests[start:end]
                if end < count:
                    following.append((channel, requests, end))
            something = something and not bursts
            late: dict[Channel, list[RemotingCommand]] = {}
            for processor, (channels, run) in bursts.items():
                if self._rejected(channels, processor, run):
                    continue
                served = self._serve_burst(channels, processor, run, until)
                for channel, request in zip(channels[served:], run[served:], strict=True):
                    late.setdefault(channel, []).append(request)
            if late:
                for channel, requests, start in following:
                    if channel in late:
                        late[channel] += requests[start:]
                following = [each for each in following if each[0] not in late]
                left += late.items()
            entries = following
        return left

    def _serve_some(
        self,
        channel: Channel,
        requests: list[RemotingCommand],
        until: float,
        start: int = 0,
        *,
        to_burst: bool = False,
    ) -> int:
        """Serve at least one request from ``start`` on, and more while there is time and room.

        There is room while the peer takes answers. With ``to_burst`` up to one of a burst
        processor, too.

        Returns:
            The number of the first request that was not served.
        """
        processors = self._processors
        count = len(requests)
        now = asyncio.get_running_loop().time if count > 1 else None
        while start < count:
            processor = processors.get(requests[start].code)
            if to_burst and processor is not None and processor.joins:
                break
            end = start + 1
            if processor is None or processor.joins or processor.stage is not None:
                while end < count and processors.get(requests[end].code) is processor:
                    end += 1
            run = requests if end - start == count else requests[start:end]
            if processor is None:
                self._answer_unknown(channel, run)
            elif processor.joins:
                if self._rejected(repeat(channel), processor, run):
                    served = len(run)
                else:
                    served = self._serve_burst([channel] * len(run), processor, run, until)
                if served < len(run):
                    return start + served
            else:
                self._serve(channel, processor, run)
            start = end
            if now is not None and start < count and (now() >= until or not channel.takes_more()):
                break
        return start

    def _rejected(
        self, channels: Iterable[Channel], processor: Processor, run: list[RemotingCommand]
    ) -> bool:
        """Whether the processor takes nothing now; the requesters have heard why."""
        why = None if processor.reject is None else processor.reject()
        if why is None:
            return False
        if not isinstance(why, Refusal):
            remark = f"[REJECTREQUEST]system busy, start flow control for a while: {why}"
            why = Refusal(ResponseCode.SYSTEM_BUSY, remark)
        for channel, request in zip(channels, run, strict=False):
            channel.reply(request, why.answer(request))
        return True

    def within_limits(
        self, channel: Channel, requests: list[RemotingCommand]
    ) -> list[RemotingCommand]:
        """The requests whose bodies are no longer than their codes allow; others are answered."""
        for request in requests:
            if len(request.body) > self._body_size_max:
                break
        else:
            return requests
        kept = []
        for request in requests:
            allowed = self.body_size_max(request.code)
            size = len(request.body)
            if size <= allowed:
                kept.append(request)
                continue
            remark = f"body of {size} bytes, code {request.code} allows {allowed}"
            _LOG.warning("%s sent a request that is too large: %s", channel, remark)
            channel.reply(request, create_response(request, ResponseCode.SYSTEM_ERROR, remark))
        return kept

    def _serve(self, channel: Channel, processor: Processor, run: list[RemotingCommand]) -> None:
        if processor.reject is not None and self._rejected(repeat(channel), processor, run):
            return
        if processor.kind is _Kind.SLICED:
            at_once = processor.at_once
            for request in run:
                if at_once is not None and channel not in self._slices and channel.takes_more():
                    try:
                        if at_once(channel, request):
                            continue
                    except Exception as error:  # noqa: BLE001 - the requester hears of it
                        channel.reply(request, error_response(request, error))
                        continue
                self._slices.start(
                    channel,
                    request,
                    cast(SlicedHandler, processor.handler),
                    lasts=self.lasts(request),
                )
        elif processor.stage is not None:
            processor.stage.submit(
                channel, run, cast("SyncHandler | AsyncHandler", processor.handler)
            )
        else:
            handler = cast(SyncHandler, processor.handler)
            for request in run:
                response = call_sync(handler, channel, request)
                if response is not None:
                    channel.reply(request, response)

    def _serve_burst(
        self,
        channels: list[Channel],
        processor: Processor,
        run: list[RemotingCommand],
        until: float,
    ) -> int:
        """How many of the requests were served: all, or those for which there was time."""
        if processor.kind is _Kind.BURST and len(run) > BURST_MAX:
            now = asyncio.get_running_loop().time
            served = 0
            while served < len(run) and (not served or now() < until):
                end = served + BURST_MAX
                self._serve_burst(channels[served:end], processor, run[served:end], until)
                served = min(end, len(run))
            return served
        responses: Sequence[RemotingCommand | None]
        try:
            if processor.kind is _Kind.TIMED:
                responses = cast(TimedHandler, processor.handler)(channels, run, until)
                assert 0 < len(responses) <= len(run), (
                    f"{len(responses)} responses to {len(run)} requests"
                )
            else:
                responses = cast(BurstHandler, processor.handler)(channels, run)
                assert len(responses) == len(run), (
                    f"{len(responses)} responses to {len(run)} requests"
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the requesters hear of it
            responses = [error_response(request, error) for request in run]
        for channel, request, response in zip(channels, run, responses, strict=False):
            if response is not None:
                channel.reply(request, response)
        return len(responses)

    def _answer_unknown(self, channel: Channel, run: list[RemotingCommand]) -> None:
        for request in run:
            if not request.is_oneway:
                _LOG.info(
                    "%s asks for code %d, which this server does not serve", channel, request.code
                )
            channel.reply(
                request,
                create_response(
                    request,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {request.code} not supported",
                ),
            )

    def _turn_away(
        self, channel: Channel, requests: list[RemotingCommand]
    ) -> list[RemotingCommand]:
        kept = []
        for request in requests:
            if request.version > MQVersion.V5_3_1:
                channel.reply(
                    request,
                    create_response(request, ResponseCode.GO_AWAY, "the server is going away"),
                )
            else:
                kept.append(request)
        return kept

    async def aclose(self, grace_s: float = 5.0) -> None:
        """End all stages; see ``Stage.aclose``."""
        self._slices.close()
        self._put_off.close()
        await asyncio.gather(*(stage.aclose(grace_s) for stage in self._stages.values()))
