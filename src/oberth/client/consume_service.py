"""ConsumeService: hands messages of our queues to listeners and takes their verdicts.

Queues with messages stand in line and are served in turns. A *job* is one call of a listener: in
order, a queue has at most one at a time. A server (a worker task, a thread, an ``async for``) takes
jobs with ``next_job`` and gives each back with ``finish`` exactly once. RocketMQ:
ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, Protocol

from oberth.client.consume import (
    BatchMessageListener,
    ConsumeContext,
    ConsumeStatus,
    MessageListener,
)
from oberth.client.group_consumer import AssignedQueue
from oberth.client.messages import MessageExt
from oberth.errors import MQClientError

_LOG: Final = logging.getLogger(__name__)

TURN_S: Final = 0.005
"""For how long listeners that never wait may keep the loop."""

THREAD_RUN_S: Final = 0.001
"""What a thread is given at once should take about so long: a hand-over costs some 50 us."""

THREAD_RUN_MAX: Final = 32

THREAD_CALL_SLOW_S: Final = 0.01
"""After a call that took longer a thread gives back the rest of what it was given."""


class ConsumeJob:
    """One call of a listener.

    Attributes:
        assigned: the queue.
        messages: what the listener gets.
        context: what it may say.
        started_ms: when it was called.
        abandoned: whether somebody else has taken the messages over: it took too long.
    """

    __slots__ = ("abandoned", "assigned", "context", "messages", "started_ms")

    def __init__(
        self, assigned: AssignedQueue, messages: list[MessageExt], started_ms: int
    ) -> None:
        self.assigned = assigned
        self.messages = messages
        self.context = ConsumeContext(assigned.queue)
        self.started_ms = started_ms
        self.abandoned = False


class JobOwner(Protocol):
    """The consumer, as the service knows it."""

    def may_consume(self, assigned: AssignedQueue) -> bool:
        """Whether messages of a queue may be handed out now."""

    def on_job_done(
        self, job: ConsumeJob, status: ConsumeStatus, error: BaseException | None
    ) -> None:
        """A listener's verdict."""

    def on_job_start(self, job: ConsumeJob) -> None:
        """A listener is about to be called, maybe in a thread."""


class ConsumeService:
    """The line of queues, and those who serve it.

    Args:
        owner: hears of verdicts.
        orderly: one job per queue at a time.
        batch_size: messages of a job at most.
        now_ms: the wall clock.
    """

    def __init__(
        self, owner: JobOwner, *, orderly: bool, batch_size: int, now_ms: Callable[[], int]
    ) -> None:
        self._owner = owner
        self._orderly = orderly
        self._batch_size = batch_size
        self._now_ms = now_ms
        self._ready: deque[AssignedQueue] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self.running: set[ConsumeJob] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._listener: Any = None
        self._is_batch = False
        self._thread_count = 0
        self._thread_busy = 0
        self._thread_cost_s = THREAD_RUN_S
        self._thread_done: deque[tuple[ConsumeJob, ConsumeStatus, BaseException | None]] = deque()

    # Serving

    def start(
        self,
        listener: MessageListener | None,
        batch_listener: BatchMessageListener | None,
        concurrency: int,
    ) -> None:
        """Begin to serve with a listener; without one, ``async for`` loops serve."""
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._listener = listener if listener is not None else batch_listener
        self._is_batch = listener is None
        if self._listener is None:
            return
        if is_coroutine_listener(self._listener):
            self._workers = [self._loop.create_task(self._work()) for _ in range(concurrency)]
        else:
            self._thread_count = concurrency
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="oberth-consume")

    async def aclose(self) -> None:
        """Nobody is served any more; jobs that are still running are cut off, and waited for."""
        await asyncio.gather(*self.close(), return_exceptions=True)

    def close(self) -> list[asyncio.Task[None]]:
        """As ``aclose``, without waiting; the tasks that end now."""
        self._closed = True
        # A listener may shut its own consumer down.
        workers = [task for task in self._workers if task is not asyncio.current_task()]
        for task in workers:
            task.cancel()
        self._workers.clear()
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        return workers

    @property
    def is_closed(self) -> bool:
        """Whether nobody is served any more."""
        return self._closed

    def ready(self, assigned: AssignedQueue) -> None:
        """A queue has messages that may be handed out."""
        if assigned.in_ready or self._closed or not assigned.process_queue.pending:
            return
        if self._orderly and assigned.busy:
            return
        assigned.in_ready = True
        self._ready.append(assigned)
        if self._threads is not None:
            self._feed_threads()
            return
        idle = self._idle
        wanted = 1 if self._orderly else len(assigned.process_queue.pending)
        while idle and wanted > 0:
            future = idle.popleft()
            if not future.done():
                future.set_result(None)
                wanted -= self._batch_size

    def next_job_nowait(self) -> ConsumeJob | None:
        """The next job in line, or None."""
        ready = self._ready
        while ready:
            assigned = ready.popleft()
            assigned.in_ready = False
            process_queue = assigned.process_queue
            if process_queue.dropped or not process_queue.pending:
                continue
            if self._orderly and (assigned.busy or not self._owner.may_consume(assigned)):
                continue
            messages = process_queue.take(self._batch_size)
            if self._orderly:
                assigned.busy = True
            elif process_queue.pending:
                assigned.in_ready = True
                ready.append(assigned)
            now_ms = self._now_ms()
            process_queue.last_consume_ms = now_ms
            job = ConsumeJob(assigned, messages, now_ms)
            self.running.add(job)
            return job
        return None

    async def next_job(self) -> ConsumeJob | None:
        """Wait for a job; None: the service is closed."""
        while True:
            if self._closed:
                return None
            job = self.next_job_nowait()
            if job is not None:
                return job
            future = self._loop.create_future()
            self._idle.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled() and self._ready:
                    self._wake_one()  # what woke us is another's now
                raise

    def _wake_one(self) -> None:
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return

    def on_job_start(self, job: ConsumeJob) -> None:
        """A server begins with a job; one that it only takes and puts back was never begun."""
        self._owner.on_job_start(job)

    def finish(
        self, job: ConsumeJob, status: ConsumeStatus | None, error: BaseException | None = None
    ) -> None:
        """A listener's verdict; None means success."""
        self.running.discard(job)
        if job.abandoned:
            return
        assigned = job.assigned
        if self._orderly:
            assigned.busy = False
        self._owner.on_job_done(job, ConsumeStatus.SUCCESS if status is None else status, error)
        assigned.changed()
        if self._orderly and not assigned.process_queue.suspended:
            self.ready(assigned)

    def put_back(self, jobs: Sequence[ConsumeJob]) -> None:
        """Jobs that are not done: their messages are the next of their queues again."""
        for job in reversed(jobs):
            self.running.discard(job)
            if job.abandoned:
                continue
            if self._orderly:
                job.assigned.busy = False
            job.assigned.process_queue.put_back(job.messages)
            job.assigned.changed()
        for job in jobs:
            self.ready(job.assigned)

    # Workers

    async def _work(self) -> None:
        loop = self._loop
        listener = self._listener
        is_batch = self._is_batch
        turn_end = loop.time() + TURN_S
        while True:
            job = self.next_job_nowait()
            if job is None:
                job = await self.next_job()
                if job is None:
                    return
                turn_end = loop.time() + TURN_S
            self.on_job_start(job)
            status: ConsumeStatus | None
            error: BaseException | None = None
            try:
                if is_batch:
                    status = await listener(job.messages, job.context)
                else:
                    status = await listener(job.messages[0])
            except asyncio.CancelledError as cancelled:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    self.running.discard(job)
                    raise
                status, error = ConsumeStatus.RECONSUME_LATER, RuntimeError(repr(cancelled))
            except GeneratorExit:
                raise
            except (KeyboardInterrupt, SystemExit) as raised:
                self.finish(job, ConsumeStatus.RECONSUME_LATER, raised)
                raise  # asyncio ends the loop
            except BaseException as raised:  # noqa: BLE001 - the message is tried again
                status, error = ConsumeStatus.RECONSUME_LATER, raised
            self.finish(job, status, error)
            if loop.time() > turn_end:
                await asyncio.sleep(0)
                turn_end = loop.time() + TURN_S

    # Threads

    def _feed_threads(self) -> None:
        assert self._threads is not None
        while self._thread_busy < self._thread_count:
            run: list[ConsumeJob] = []
            wanted = 1
            if not self._orderly:
                # Fast listeners get several messages at once, slow ones share them evenly.
                waiting = sum(len(each.process_queue.pending) for each in self._ready)
                wanted = max(1, min(THREAD_RUN_MAX, int(THREAD_RUN_S / self._thread_cost_s)))
                wanted = min(wanted, -(-waiting // self._thread_count) or 1)
            while len(run) < wanted and (job := self.next_job_nowait()) is not None:
                run.append(job)
            if not run:
                return
            self._thread_busy += 1
            self._threads.submit(self._run_in_thread, run)

    def _run_in_thread(self, run: list[ConsumeJob]) -> None:
        begin = now = time.perf_counter()
        left: list[ConsumeJob] = []
        is_slow = False
        for job in run:
            # Much may have happened while the calls before it ran.
            if is_slow or self._closed or job.abandoned or job.assigned.is_gone:
                left.append(job)
                continue
            self.on_job_start(job)
            status, error = self.call(job)
            self._thread_done.append((job, status, error))
            called, now = now, time.perf_counter()
            is_slow = now - called > THREAD_CALL_SLOW_S
        count = len(run) - len(left)
        cost_s = (now - begin) / count if count else self._thread_cost_s
        self._loop.call_soon_threadsafe(self._thread_returned, cost_s, left)

    def call(self, job: ConsumeJob) -> tuple[ConsumeStatus, BaseException | None]:
        """Call a plain listener in a thread; blocks.

        There `sys.exit()` ends no process, so that it fails as any other exception does.
        """
        try:
            if self._is_batch:
                status = self._listener(job.messages, job.context)
            else:
                status = self._listener(job.messages[0])
            if status is not None:
                refuse_coroutine(status)
        except BaseException as raised:  # noqa: BLE001 - the message is tried again
            return ConsumeStatus.RECONSUME_LATER, raised
        return (ConsumeStatus.SUCCESS if status is None else status), None

    def _thread_returned(self, cost_s: float, left: list[ConsumeJob]) -> None:
        self._thread_busy -= 1
        self._thread_cost_s += 0.2 * (max(cost_s, 1e-6) - self._thread_cost_s)
        done = self._thread_done
        while done:
            self.finish(*done.popleft())
        self.put_back(left)
        if self._threads is not None:
            self._feed_threads()

    async def call_once(self, message: MessageExt, context: ConsumeContext) -> ConsumeStatus | None:
        """Call the listener outside the line, for CONSUME_MESSAGE_DIRECTLY."""
        arguments = ([message], context) if self._is_batch else (message,)
        if is_coroutine_listener(self._listener):
            status: ConsumeStatus | None = await self._listener(*arguments)
        else:
            status = await asyncio.to_thread(self._listener, *arguments)
            refuse_coroutine(status)
        return status

    @property
    def has_listener(self) -> bool:
        """Whether there is a listener, or loops serve."""
        return self._listener is not None


def is_coroutine_listener(listener: object) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )


def refuse_coroutine(status: object) -> None:
    """Look at what a plain listener gave: nobody would run a coroutine.

    Raises:
        MQClientError: it is one; the message was not worked on.
    """
    if inspect.iscoroutine(status):
        status.close()
        raise MQClientError(
            "the listener is a plain function and gave a coroutine, which nothing runs: make the "
            "listener itself `async def`, also where it is wrapped"
        )


CALLER: Final[ContextVar[threading.Thread | None]] = ContextVar("CALLER", default=None)
"""The thread that a call of a blocking object comes from; each has a task of its own."""


def current_caller() -> threading.Thread | asyncio.Task[Any] | None:
    """Who calls: a thread with a blocking object, else the task."""
    return CALLER.get() or asyncio.current_task()


def has_ended(caller: threading.Thread | asyncio.Task[Any] | None) -> bool:
    """Whether a caller is no more: ``asyncio.wait_for`` makes a task for what it waits for."""
    if isinstance(caller, threading.Thread):
        return not caller.is_alive()
    return caller is None or caller.done()


LOOPS: Final[ContextVar[tuple[weakref.ref[MessageIterator], ...]]] = ContextVar("LOOPS", default=())
"""The loops whose bodies run here. The tasks that such a body starts inherit them."""


class MessageIterator(AsyncIterator[MessageExt]):
    """One ``async for`` over a consumer; several may run, each message goes to one of them.

    Attributes:
        job: the message in hand.
        caller: who asked for it.
        has_left: whether a thread has left its ``for``, though the thread itself may go on.
    """

    def __init__(self, service: ConsumeService) -> None:
        self._service = service
        self.job: ConsumeJob | None = None
        self.caller: threading.Thread | asyncio.Task[Any] | None = None
        self.has_left = False
        self._verdict: ConsumeStatus | None = None
        self._when_left: Callable[[], None] | None = None

    async def __anext__(self) -> MessageExt:
        self.settle(None)
        self.caller = current_caller()
        loops = LOOPS.get()
        if not any(each() is self for each in loops):
            # Outer loops have a message in hand.
            others = [each for each in loops if (loop := each()) is not None and loop.job]
            LOOPS.set((*others, weakref.ref(self)))
        job = await self._service.next_job()
        if job is None:
            raise StopAsyncIteration
        self.job = job
        self._service.on_job_start(job)
        return job.messages[0]

    def refuse(self, delay_level: int) -> None:
        """The message in hand is to come again."""
        assert self.job is not None
        self.job.context.delay_level_when_next_consume = delay_level
        self._verdict = ConsumeStatus.RECONSUME_LATER

    def settle(self, verdict: ConsumeStatus | None) -> None:
        """The message in hand is done, unless it was refused."""
        job, self.job = self.job, None
        if job is not None:
            self._service.finish(job, self._verdict or verdict)
        self._verdict = None

    def put_back(self) -> None:
        """The message in hand is not done, and nobody says that it failed."""
        job, self.job = self.job, None
        if job is not None:
            self._service.put_back([job])
        self._verdict = None

    def call_when_ended(self, callback: Callable[[], None]) -> None:
        """Call back when the task that is at the message in hand ends, or its thread leaves."""
        if isinstance(self.caller, asyncio.Task):
            self.caller.add_done_callback(lambda _: callback())
        else:
            self._when_left = callback

    def leave(self) -> None:
        """A thread has left its ``for``: it asks for no more messages."""
        self.has_left = True
        if self._when_left is not None:
            self._when_left()

    @property
    def is_cut_off(self) -> bool:
        """Whether the service is closed, so that nobody hears what became of the message."""
        return self._service.is_closed

    @property
    def is_refused(self) -> bool:
        """Whether the message in hand was refused."""
        return self._verdict is not None

    @property
    def is_callers(self) -> bool:
        """Whether who calls now is the task or thread that asked for the message in hand."""
        return self.caller is current_caller()

    @property
    def is_own(self) -> bool:
        """Whether the loop itself calls: its task, one that its body started, or its thread."""
        return self.is_callers or any(each() is self for each in LOOPS.get())

    @property
    def is_worked_on(self) -> bool:
        """Whether somebody else than who calls now is still at the message in hand."""
        caller = self.caller
        if self.job is None or caller is None or self.has_left or self.is_own:
            return False
        return caller.is_alive() if isinstance(caller, threading.Thread) else not caller.done()

    @property
    def failure(self) -> BaseException | None:
        """What ended the task that asked for the message in hand, unless it ended well."""
        caller = self.caller
        if self.job is None or not isinstance(caller, asyncio.Task) or not caller.done():
            return None
        return asyncio.CancelledError() if caller.cancelled() else caller.exception()

    @property
    def has_ended_well(self) -> bool:
        """Whether the task that asked for the message in hand has ended without an exception."""
        caller = self.caller
        return isinstance(caller, asyncio.Task) and caller.done() and self.failure is None
