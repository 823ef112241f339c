"""Derives a blocking class from an asynchronous one: same names, same arguments, no second code.

All blocking objects of a process share one event loop in a daemon thread. A call hands its work to
that loop and waits; any thread may call. Plain methods and properties run on the loop too, so the
asynchronous class needs no locks. What gives an ``asyncio.Future`` gives a
``concurrent.futures.Future`` here, ``async with`` becomes ``with``, ``async for`` becomes ``for``.

Not allowed: a call that waits, from a coroutine on that loop (an ``async def`` listener, say): it
would wait for itself, and is refused. Plain methods and properties are served there too.

Type checkers see ``blocking.pyi``, which ``oberth.client.blocking_stub`` writes from the source of
the same classes.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from oberth.client.consume_service import CALLER
from oberth.errors import MQClientError
from oberth.remoting.aio.loop import loop_factory

_T = TypeVar("_T")

RENAMED: Final = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
"""Special methods and what they become."""

ENDS: Final = frozenset({"shutdown", "__aexit__"})
"""What a forked child may leave undone."""

INNER_METHODS: Final = frozenset(
    {
        "aclose", "consume_directly", "consumer_data", "consumer_status", "do_rebalance",
        "give_up_expired", "leave", "lock_queues", "may_consume", "on_check_transaction",
        "on_job_done", "on_job_start", "on_route", "persist_offsets", "publish_topics",
        "renew_locks", "running_info", "subscribed_topics", "unlock_queues",
    }
)  # fmt: skip
"""Public only for the parts of the client; applications do not call them."""


END_S: Final = 2.0
"""How long the end of a program waits for the loop's turn to end."""


class LoopThread:
    """An event loop in a thread of its own, started by the first call.

    The end of the program ends the thread: one that comes out of C code when the interpreter is
    gone crashes the process. What is called later still, by functions that were given to ``atexit``
    before the first call, runs in the caller's thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the start
        self._late = threading.Lock()  # held by who runs the loop after its thread's end
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; a forked child gets its own."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                factory = loop_factory() or asyncio.new_event_loop
                self._loop = factory()
                self._pid = os.getpid()
                self._has_ended = False
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="oberth-loop", daemon=True
                )
                self._thread.start()
                atexit.register(self._end, self._loop, self._thread, self._pid)
            return self._loop

    def _end(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
        from oberth.client.instance import ClientInstance  # noqa: PLC0415 - nobody has one before the first call

        if pid == os.getpid():
            ClientInstance.tell_forgotten(loop)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)
            self._has_ended = not thread.is_alive()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    @property
    def is_here(self) -> bool:
        """Whether the caller is on the loop."""
        return threading.current_thread() is self._thread

    def call(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            MQClientError: called on the loop itself.
        """
        loop = self.loop()
        if self.is_here:
            raise MQClientError(
                "a blocking call from a coroutine; use oberth.client there, or a plain function"
            )
        caller = CALLER.set(threading.current_thread())
        try:
            if self._has_ended:
                with self._late:
                    return loop.run_until_complete(make())
            future = asyncio.run_coroutine_threadsafe(make(), loop)
        finally:
            CALLER.reset(caller)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: the work is not wanted any more.
            future.cancel()
            raise

    def post(self, callback: Callable[[], object]) -> None:
        """Have the loop call a function, before what this thread calls next; does not wait.

        It takes no lock: a generator may be closed anywhere, also on the loop.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(callback)


LOOP: Final = LoopThread()
"""The loop of all blocking objects."""


def _to_concurrent(future: asyncio.Future[Any]) -> concurrent.futures.Future[Any]:
    made: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def copy(done: asyncio.Future[Any]) -> None:
        if made.cancelled():
            return
        if done.cancelled():
            made.cancel()
        elif (error := done.exception()) is not None:
            made.set_exception(error)
        else:
            made.set_result(done.result())

    future.add_done_callback(copy)
    return made


async def _run(function: Callable[..., Any], arguments: Any, named: Any) -> Any:
    result = function(*arguments, **named)
    if inspect.iscoroutine(result):
        result = await result
    return _to_concurrent(result) if isinstance(result, asyncio.Future) else result


def _method(name: str, waits: bool) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self._pid != os.getpid():
            if name in ENDS:
                return None  # its connections are the parent's
            raise MQClientError(
                f"this {type(self).__name__} was made before the process was forked: "
                "make one in the child"
            )
        inner = self._inner
        if not waits and LOOP.is_here:
            return getattr(inner, name)(*arguments, **named)
        result = LOOP.call(lambda: _run(getattr(inner, name), arguments, named))
        return self if result is inner else result

    return call


def _property(name: str) -> property:
    async def read(inner: Any) -> Any:
        return getattr(inner, name)

    def get(self: Any) -> Any:
        inner = self._inner
        return getattr(inner, name) if LOOP.is_here else LOOP.call(lambda: read(inner))

    return property(get)


def _iterate(self: Any) -> Iterator[Any]:
    async def begin() -> Any:
        return self._inner.__aiter__()

    async def step(iterator: Any) -> Any:
        return await iterator.__anext__()

    iterator = LOOP.call(begin)
    try:
        while True:
            try:
                item = LOOP.call(lambda: step(iterator))
            except StopAsyncIteration:
                return
            yield item
    finally:
        # What a push consumer's loop has in hand is waited for no longer, and what that of a
        # consumer that is asked has comes again.
        if hasattr(iterator, "leave") and self._pid == os.getpid():
            LOOP.post(iterator.leave)


def public_names(async_class: type) -> list[str]:
    """What a blocking class takes over: public names, and the special methods of RENAMED."""
    return [
        name
        for name in sorted({name for base in async_class.__mro__[:-1] for name in vars(base)})
        if name in RENAMED or (not name.startswith("_") and name not in INNER_METHODS)
    ]


def derive(async_class: type, module: str) -> type:
    """The blocking class of an asynchronous one."""

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        async def make() -> Any:
            return async_class(*arguments, **named)

        self._inner = LOOP.call(make)
        self._pid = os.getpid()

    def getattr_(self: Any, name: str) -> Any:
        if name in ("_inner", "_pid"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    namespace: dict[str, Any] = {
        "__init__": init,
        "__getattr__": getattr_,
        "__doc__": f"``{async_class.__module__}.{async_class.__name__}``, blocking.",
        "__module__": module,
        "__slots__": ("_inner", "_pid"),
    }
    for name in public_names(async_class):
        value = inspect.getattr_static(async_class, name)
        if name == "__aiter__":
            namespace["__iter__"] = _iterate
        elif isinstance(value, property):
            namespace[name] = _property(name)
        elif inspect.isfunction(value):
            made = _method(name, inspect.iscoroutinefunction(value))
            made.__name__ = RENAMED.get(name, name)
            made.__doc__ = value.__doc__
            namespace[RENAMED.get(name, name)] = made
        else:
            namespace[name] = value
    return type(async_class.__name__, (), namespace)
