"""Stages: threads, or tasks of the loop, that work on requests which take their time."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias, cast

from oberth.errors import OberthError, ProtocolError, StoreFullError
from oberth.remoting.aio.channel import Channel
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response, text_size
from oberth.remoting.refusal import Refusal

_LOG: Final = logging.getLogger(__name__)

SyncHandler: TypeAlias = Callable[[Channel, RemotingCommand], RemotingCommand | None]
AsyncHandler: TypeAlias = Callable[[Channel, RemotingCommand], Awaitable[RemotingCommand | None]]

STAGE_QUEUE_MAX: Final = 10_000
"""Requests that may wait for a stage. RocketMQ: ``sendThreadPoolQueueCapacity``."""

OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while: "

SWEEP_INTERVAL_S: Final = 0.01
"""How often a stage whose queue is not empty looks at how long its head has waited."""

EXPIRED_A_TURN: Final = 500
"""Requests that waited too long and that one turn of the loop answers: some 3 ms."""

WAITING_SIZE: Final = 1024
"""What a request that waits counts beside its body and its header's texts."""

FIELD_SIZE: Final = 128
"""What a header field counts beside its texts: two objects, and its place in the table."""


def waiting_size(request: RemotingCommand) -> int:
    """Bytes that a request takes while it waits: a header may have more of them than a body."""
    fields = request.fields
    texts = (request.remark or "", request.language or "", *fields, *fields.values())
    return WAITING_SIZE + len(request.body) + FIELD_SIZE * len(fields) + text_size(texts)


class _Job:
    """A request that waits in a stage or is worked on."""

    __slots__ = ("channel", "handler", "request", "since", "size")

    def __init__(
        self,
        channel: Channel,
        request: RemotingCommand,
        handler: SyncHandler | AsyncHandler,
        since: float,
    ) -> None:
        self.channel = channel
        self.request = request
        self.handler = handler
        self.since = since
        self.size = waiting_size(request)


class Stage:
    """A bounded queue of requests and what works on them: threads, or tasks on the loop.

    Lifecycle: made before or after the loop runs, used from the first ``submit``, ended by
    ``aclose``. All methods belong to the loop's thread.

    Args:
        name: of the stage, as remarks name it.
        threads: worker threads for sync handlers; 0 for async handlers.
        tasks: async handlers that run at once; 0 for sync handlers.
        queue_max: requests that may wait; more are answered with code 2.
        wait_ms_max: how long one may wait before it is answered with code 2; None for ever.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int = 0,
        tasks: int = 0,
        queue_max: int = STAGE_QUEUE_MAX,
        wait_ms_max: float | None = None,
    ) -> None:
        assert (threads > 0) != (tasks > 0), "a stage has either threads or tasks"
        self.name = name
        self.queue_max = queue_max
        self.wait_ms_max = wait_ms_max
        self._worker_max = threads or tasks
        self._executor = (
            ThreadPoolExecutor(threads, thread_name_prefix=f"oberth-{name}") if threads else None
        )
        self._queue: deque[_Job] = deque()
        self._deaf: dict[Channel, deque[_Job]] = {}  # what waits until its peer takes answers
        self._heard: dict[Channel, None] = {}  # those of them whose peers take answers again
        self._queue_is_next = False
        self._done: deque[tuple[_Job, RemotingCommand | None]] = deque()
        self._done_lock = threading.Lock()  # guards _wakeup_pending
        self._wakeup_pending = False
        self._working = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._closed = False

    @property
    def queue_size(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def working(self) -> int:
        """Requests that are worked on."""
        return self._working

    def head_wait_ms(self) -> float:
        """How long the request at the head of the queue has waited; 0 for an empty queue."""
        if not self._queue or self._loop is None:
            return 0.0
        return (self._loop.time() - self._queue[0].since) * 1000

    def submit(
        self,
        channel: Channel,
        requests: Iterable[RemotingCommand],
        handler: SyncHandler | AsyncHandler,
    ) -> None:
        """Queue requests, or answer them that there is no room."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        for request in requests:
            if self._closed or len(self._queue) >= self.queue_max:
                channel.reply(
                    request, create_response(request, ResponseCode.SYSTEM_BUSY, self._full())
                )
                continue
            job = _Job(channel, request, handler, now)
            channel.work_started(job.size)
            if channel in self._deaf:
                self._deaf[channel].append(job)
            elif self._working < self._worker_max:
                self._start(job)
            else:
                self._queue.append(job)
        self._sweep_soon()

    def _full(self) -> str:
        if self._closed:
            return f"{OVERLOAD}stage {self.name} is closed"
        return (
            f"{OVERLOAD}stage {self.name} has {len(self._queue)} requests waiting, "
            f"allowed {self.queue_max}; its head has waited {self.head_wait_ms():.0f} ms"
        )

    def _start(self, job: _Job) -> None:
        self._working += 1
        if self._executor is not None:
            self._executor.submit(self._run_in_thread, job)
        else:
            assert self._loop is not None
            task = self._loop.create_task(self._run_in_task(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _run_in_thread(self, job: _Job) -> None:
        response = call_sync(cast(SyncHandler, job.handler), job.channel, job.request)
        self._done.append((job, response))
        with self._done_lock:
            if self._wakeup_pending:
                return
            self._wakeup_pending = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with self._done_lock:
            self._wakeup_pending = False
        while self._done:
            job, response = self._done.popleft()
            self._finish(job, response)

    async def _run_in_task(self, job: _Job) -> None:
        response = None
        try:
            response = await cast(AsyncHandler, job.handler)(job.channel, job.request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the requester hears of it
            response = error_response(job.request, error)
        finally:
            self._finish(job, response)

    def _finish(self, job: _Job, response: RemotingCommand | None) -> None:
        self._working -= 1
        job.channel.work_finished(job.size)
        if response is not None:
            job.channel.reply(job.request, response)
        self._start_next()

    def _start_next(self) -> None:
        """Start what waits.

        Who is too late is answered, and what its peer would not take the answer of is set aside,
        some in a turn.
        """
        passed = 0
        while self._working < self._worker_max and (self._queue or self._heard):
            next_job = self._next()
            if next_job is not None and not self._expired(next_job):
                self._start(next_job)
                continue
            if next_job is not None:
                self._answer_expired(next_job)
            passed += 1
            if passed == EXPIRED_A_TURN:
                assert self._loop is not None
                self._loop.call_soon(self._start_next)
                break
        if self._idle is not None and not (self._working or self._queue or self._heard):
            self._idle.set()

    def _next(self) -> _Job | None:
        """The next job; None: it is set aside.

        What was set aside and may go on takes turns with what waits in the queue: it was there
        before, but others have not waited for it, and there may be more of it than the queue has
        room for. Of one channel all come in their order.
        """
        if self._heard and not (self._queue and self._queue_is_next):
            self._queue_is_next = True
            channel = next(iter(self._heard))
            del self._heard[channel]
            if not channel.takes_more():
                channel.when_writable(lambda: self._take_up(channel))
                return None
            jobs = self._deaf[channel]
            job = jobs.popleft()
            if jobs:
                self._heard[channel] = None  # after the others
            else:
                del self._deaf[channel]
            return job
        self._queue_is_next = False
        job = self._queue.popleft()
        if not self._expired(job) and (job.channel in self._deaf or not job.channel.takes_more()):
            self._set_aside(job)
            return None
        return job

    def _set_aside(self, job: _Job) -> None:
        """Have it wait for its peer. So long it counts as work of its connection alone."""
        channel = job.channel
        if channel in self._deaf:
            self._deaf[channel].append(job)
        else:
            self._deaf[channel] = deque([job])
            channel.when_writable(lambda: self._take_up(channel))

    def _take_up(self, channel: Channel) -> None:
        jobs = self._deaf.get(channel)
        if jobs is None:
            return  # the stage was closed meanwhile
        if channel.is_closed:
            # What wants an answer is done for nobody.
            self._deaf[channel] = deque(job for job in jobs if job.request.is_oneway)
            for job in jobs:
                if not job.request.is_oneway:
                    channel.work_finished(job.size)
            if not self._deaf[channel]:
                del self._deaf[channel]
                return
        self._heard[channel] = None
        self._start_next()

    def _expired(self, job: _Job) -> bool:
        if self.wait_ms_max is None:
            return False
        assert self._loop is not None
        return (self._loop.time() - job.since) * 1000 > self.wait_ms_max

    def _answer_expired(self, job: _Job) -> None:
        assert self._loop is not None
        waited_ms = (self._loop.time() - job.since) * 1000
        remark = (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms:.0f}ms, size of queue: {len(self._queue)}, "
            f"slow stage: {self.name}, allowed {self.wait_ms_max:.0f}ms"
        )
        job.channel.work_finished(job.size)
        job.channel.reply(
            job.request, create_response(job.request, ResponseCode.SYSTEM_BUSY, remark)
        )

    def _sweep_soon(self) -> None:
        if self._queue and self._sweeper is None and self.wait_ms_max is not None:
            assert self._loop is not None
            self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        interval_s = SWEEP_INTERVAL_S
        for _ in range(EXPIRED_A_TURN):
            if not self._queue or not self._expired(self._queue[0]):
                break
            self._answer_expired(self._queue.popleft())
        else:
            interval_s = 0.0
        if self._queue:
            assert self._loop is not None
            self._sweeper = self._loop.call_later(interval_s, self._sweep)

    async def aclose(self, grace_s: float = 5.0) -> None:
        """Refuse new requests, give those at work ``grace_s`` seconds, cancel what is left."""
        self._closed = True
        if self._working or self._queue or self._heard:
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                _LOG.warning(
                    "stage %s: %d requests at work and %d that waited were given up after %.1f s",
                    self.name,
                    self._working,
                    len(self._queue),
                    grace_s,
                )
        self._queue.clear()
        self._deaf.clear()
        self._heard.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._executor is not None:
            # Not wait=True: a thread that hangs in a disk must not keep the loop from ending.
            self._executor.shutdown(wait=False, cancel_futures=True)


def call_sync(
    handler: SyncHandler, channel: Channel, request: RemotingCommand
) -> RemotingCommand | None:
    """The handler's response, or one with code 1 that says what it raised."""
    try:
        return handler(channel, request)
    except Exception as error:  # noqa: BLE001 - whatever it is, the requester hears of it
        return error_response(request, error)


def error_response(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """What a refusal says; else code 1 with the exception, logged if not the requester's fault."""
    if isinstance(error, Refusal):
        return error.answer(request)
    if isinstance(error, StoreFullError):  # it names the file, and a full disk brings very many
        _LOG.error("a request of code %d failed: %s", request.code, error)
    elif not isinstance(error, ProtocolError):
        _LOG.error("a request of code %d failed", request.code, exc_info=error)
    remark = f"{type(error).__name__}: {error}"
    if not isinstance(error, OberthError):
        for frame in traceback.extract_tb(error.__traceback__, limit=-1):
            remark += f", {frame.name} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return create_response(request, ResponseCode.SYSTEM_ERROR, remark)
