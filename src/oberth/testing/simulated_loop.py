"""SimulatedLoop: an event loop whose time and network are made up, from one seed.

Everything of a cluster runs on it in one thread: name servers, brokers, clients. Time passes only
when nobody has anything to do, and then at once; a minute of a cluster takes a second or so. The
network has delays, partitions, torn connections and machines that vanish without a word.

Who runs is a `Machine`. A callback belongs to the machine in whose context it was scheduled, and is
dropped once that machine is dead: what `kill -9` does to a process, at any point between two
callbacks. Two runs with one seed do the same in the same order (with the same PYTHONHASHSEED: sets
of strings have no order of their own).

Always true:
    bytes of one connection arrive in order, or the connection breaks; those of two in any order;
    work that code hands to an executor runs on the loop, a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import itertools
import os
import random
import selectors
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self
from unittest import mock

from oberth.errors import OberthError

STEP_S: Final = 1e-5
"""What one turn of the loop takes."""

EPOCH_S: Final = 1_700_000_000.0
"""The wall clock when a simulation begins."""

SIMULATED_PID: Final = 4711

HIGH_WATER: Final = 256 * 1024
"""Bytes on their way above which a transport asks its protocol to pause."""

_MACHINE: Final[contextvars.ContextVar[Machine | None]] = contextvars.ContextVar(
    "machine", default=None
)


class SimulationStuckError(OberthError):
    """Nobody has anything to do, and nothing is going to happen."""


class Machine:
    """One life of one process.

    Attributes:
        name: of the process, the same in all its lives.
        is_alive: whether its callbacks still run.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.transports: dict[SimulatedTransport, None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_MACHINE.set, self)

    def __repr__(self) -> str:
        return f"Machine({self.name})"


def _guarded(machine: Machine, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if machine.is_alive:
        callback(*arguments)


class _Task(asyncio.Task[Any]):
    """Tasks in a set have an order that their numbers give, not their addresses."""

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class _Selector(selectors.BaseSelector):
    """Nothing to select from: waiting is how time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise SimulationStuckError(f"nothing is going to happen after {self.now:.3f} s")
        self.now += max(timeout, STEP_S)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class SimulatedServer(asyncio.AbstractServer):
    """A listening port of a machine."""

    def __init__(
        self, loop: SimulatedLoop, machine: Machine, factory: Callable[[], Any], port: int
    ) -> None:
        self._loop = loop
        self.machine = machine
        self.factory = factory
        self.port = port
        self.sockets = (_Socket("127.0.0.1", port),)

    def close(self) -> None:
        """No new connections."""
        if self._loop.servers.get(self.port) is self:
            del self._loop.servers[self.port]

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop

    def is_serving(self) -> bool:
        """Whether it takes connections."""
        return self._loop.servers.get(self.port) is self

    async def start_serving(self) -> None:
        """It does from the beginning."""

    async def serve_forever(self) -> None:
        """Wait for ever."""
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Nothing to wait for."""


class _Socket:
    """As much of a socket as servers are asked for."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def fileno(self) -> int:
        return -1


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, loop: SimulatedLoop, machine: Machine, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self._loop = loop
        self.machine = machine
        self.protocol: Any = None
        self.peer: SimulatedTransport | None = None
        self.is_lost = False
        self._is_closing = False
        self._arrives_at = 0.0
        self._way: deque[Callable[[], None]] = deque()  # what is to arrive at the other end
        self._on_way = 0
        self._is_write_paused = False
        self._is_read_paused = False
        self._unread: list[bytes] = []
        machine.transports[self] = None

    # What protocols call

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio; one limit for all here."""

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._on_way

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_read_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_read_paused = False
        if self._unread:
            self._schedule(0.0, self._read_on)

    def is_reading(self) -> bool:
        """See asyncio."""
        return not self._is_read_paused

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        peer = self.peer
        if self._is_closing or peer is None or not self.machine.is_alive or not data:
            return
        piece = bytes(data)
        self._on_way += len(piece)
        if self._on_way > HIGH_WATER and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()
        self._send(lambda: peer.arrive(piece))

    def writelines(self, list_of_data: Any) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """See asyncio."""
        if self._is_closing:
            return
        self._is_closing = True
        peer = self.peer
        if peer is not None:
            self._send(lambda: peer.lose(None))
        self._schedule(0.0, self.lose, None)

    def abort(self) -> None:
        """See asyncio."""
        self._is_closing = True
        self.tear(None)

    # What the network does

    def _schedule(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_later(delay_s, callback, *arguments, context=self.machine.context)

    def _send(self, deliver: Callable[[], None]) -> None:
        """Have something happen at the other end, after everything that was sent before."""
        loop, peer = self._loop, self.peer
        assert peer is not None
        at = loop.time() + loop.latency(self.machine, peer.machine)
        self._arrives_at = at = max(at, self._arrives_at + 1e-7)
        self._way.append(deliver)
        loop.call_at(at, self._deliver, context=peer.machine.context)

    def _deliver(self) -> None:
        """The next of what is on its way arrives: in the order in which it was sent.

        What a parted network held comes at one moment, and a loop calls what is due at one moment
        in any order.
        """
        peer = self.peer
        if peer is None:
            return
        held_until = self._loop.held_until(self.machine, peer.machine)
        if held_until > self._loop.time():
            self._loop.call_at(held_until, self._deliver, context=peer.machine.context)
            return
        self._way.popleft()()

    def arrive(self, data: bytes) -> None:
        """Bytes from the other end."""
        if self.is_lost:
            return
        self._loop.trace(f"{self.machine.name} reads {len(data)}")
        sender = self.peer
        if sender is not None:
            sender.arrived(len(data))
        self._unread.append(data)
        self._read_on()

    def arrived(self, size: int) -> None:
        """The other end has got bytes of ours."""
        self._on_way -= size
        if self._is_write_paused and self._on_way <= HIGH_WATER // 4 and not self.is_lost:
            self._is_write_paused = False
            self._schedule(0.0, self.protocol.resume_writing)

    def _read_on(self) -> None:
        rng = self._loop.rng
        while self._unread and not self._is_read_paused and not self.is_lost:
            data = b"".join(self._unread)
            self._unread.clear()
            if len(data) > 1 and rng.random() < self._loop.split_chance:
                cut = rng.randrange(1, len(data))
                self._unread.append(data[cut:])
                data = data[:cut]
            self.protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        """The connection is gone at this end."""
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        self.machine.transports.pop(self, None)
        self._unread.clear()
        if self.machine.is_alive:
            self.protocol.connection_lost(error)

    def tear(self, delay_s: float | None) -> None:
        """Break the connection; the other end hears of it after a while."""
        self._schedule(0.0, self.lose, ConnectionResetError(errno.ECONNRESET, "torn"))
        self.tear_far(delay_s)

    def tear_far(self, delay_s: float | None = None) -> None:
        """The other end hears that the connection is broken; None: as fast as the network is."""
        peer = self.peer
        if peer is None or peer.is_lost:
            return
        if delay_s is None:
            delay_s = self._loop.latency(self.machine, peer.machine)
        error = ConnectionResetError(errno.ECONNRESET, "torn")
        self._loop.call_later(delay_s, peer.lose, error, context=peer.machine.context)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        seed: of everything that is left to chance.

    Attributes:
        rng: where chance comes from; `random`'s functions are fed from it too.
        latency_s: shortest and longest way between two machines.
        split_chance: how likely what arrives together is read in two pieces.
        servers: listening ports.
    """

    def __init__(self, seed: int) -> None:
        self._chooser = _Selector()
        super().__init__(self._chooser)
        self._clock_resolution = 1e-7
        self.seed = seed
        self.rng = random.Random(seed)
        self.latency_s = (0.0002, 0.003)
        self.split_chance = 0.1
        self.servers: dict[int, SimulatedServer] = {}
        self._held: dict[frozenset[str], float] = {}
        self._next_port = 40_000
        self._lines: list[str] = []
        self._pinned: list[object] = []
        self.errors: list[str] = []
        self.set_exception_handler(self._note_error)
        numbers = itertools.count()
        self.set_task_factory(
            lambda loop, work, **options: _Task(next(numbers), work, loop=loop, **options)
        )

    def _note_error(self, loop: object, context: Mapping[str, Any]) -> None:
        del loop
        error = context.get("exception")
        if error is None or isinstance(error, Exception):
            # What is no Exception ended its machine.
            self.errors.append(f"{self.time():.4f} {context.get('message')}: {error!r}")

    # Time

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._chooser.now

    def wall_ms(self) -> int:
        """The wall clock, in ms since the epoch."""
        return int((EPOCH_S + self.time()) * 1000)

    def trace(self, what: str) -> None:
        """Note that something happened."""
        self._lines.append(f"{self.time():.6f} {what}")

    @property
    def history(self) -> Sequence[str]:
        """What happened, in order."""
        return self._lines

    # Whose callback it is

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        machine = _MACHINE.get() if context is None else context.get(_MACHINE)
        if machine is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(_guarded, machine, callback, args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See asyncio; there is but one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        machine = _MACHINE.get() if context is None else context.get(_MACHINE)
        if machine is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, _guarded, machine, callback, args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """See asyncio; runs on the loop, a little later."""
        del executor
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - belongs to who waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.rng.uniform(0.0, 0.002), run)
        return future

    # Machines

    def spawn(self, machine: Machine, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine on a machine."""
        task = self.create_task(work, context=machine.context)
        self._pinned.append(task)
        task.add_done_callback(lambda done: self._note_end(machine, done))
        return task

    def _note_end(self, machine: Machine, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or not machine.is_alive:
            return
        error = task.exception()
        if error is not None:
            where = "".join(traceback.format_exception(error)[-2:])
            self.errors.append(f"{self.time():.4f} {machine}: {where}")

    def kill(self, machine: Machine, *, silent_s: float | None = None) -> None:
        """End a machine's life now; what it has written to connections may still arrive.

        Args:
            machine: which.
            silent_s: None: the others hear at once that their connections are broken, as when a
                process is killed; seconds: they hear nothing for so long, as when the power fails.
        """
        machine.is_alive = False
        for port, server in list(self.servers.items()):
            if server.machine is machine:
                del self.servers[port]
        for transport in sorted(
            machine.transports, key=lambda each: each.get_extra_info("sockname")
        ):
            transport.is_lost = True
            self._pinned.append(transport)
            transport.tear_far(silent_s)
        machine.transports.clear()

    def forget_tasks(self) -> None:
        """Ends what dead machines left behind, once nothing runs any more."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    # The network

    def latency(self, one: Machine, other: Machine) -> float:
        """How long the next bytes take."""
        if one.name == other.name:
            return 1e-5
        low, high = self.latency_s
        # Mostly short, now and then long.
        return low + (high - low) * self.rng.random() ** 4

    def hold(self, one: str, other: str, seconds: float) -> None:
        """Nothing passes between two machines for a while; what is sent meanwhile comes after."""
        self._held[frozenset((one, other))] = self.time() + seconds

    def heal(self) -> None:
        """Everything passes again."""
        self._held.clear()

    def held_until(self, one: Machine, other: Machine) -> float:
        """When bytes between two machines pass again."""
        return self._held.get(frozenset((one.name, other.name)), 0.0)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> SimulatedServer:
        """See asyncio."""
        del host, options
        machine = _MACHINE.get()
        assert machine is not None, "servers belong to machines"
        if not port:
            self._next_port += 1
            port = self._next_port
        if port in self.servers:
            raise OSError(errno.EADDRINUSE, f"port {port} is taken")
        server = SimulatedServer(self, machine, protocol_factory, port)
        self.servers[port] = server
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, Any]:
        """See asyncio."""
        del options
        machine = _MACHINE.get()
        assert machine is not None, "connections belong to machines"
        await asyncio.sleep(self.latency(machine, Machine("network")))
        server = self.servers.get(port)
        if server is None or not server.machine.is_alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        held_s = self.held_until(machine, server.machine) - self.time()
        if held_s > 0:
            await asyncio.sleep(held_s)
        if not server.is_serving():
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        self._next_port += 1
        near, far = ("127.0.0.1", self._next_port), ("127.0.0.1", port)
        client = SimulatedTransport(self, machine, near, far)
        accepted = SimulatedTransport(self, server.machine, far, near)
        client.peer, accepted.peer = accepted, client
        accepted.protocol = server.machine.context.run(server.factory)
        client.protocol = protocol_factory()
        accepted._schedule(0.0, accepted.protocol.connection_made, accepted)
        client.protocol.connection_made(client)
        self.trace(f"{machine.name} connects to {server.machine.name}")
        return client, client.protocol

    def connections(self) -> list[SimulatedTransport]:
        """Ends of open connections, in the order in which they were opened."""
        machines = dict.fromkeys(server.machine for server in self.servers.values())
        return [transport for machine in machines for transport in machine.transports]


class _InlineExecutor:
    """Runs what it is given at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., object], *arguments: Any) -> None:
        work(*arguments)

    def shutdown(self, *_: object, **__: object) -> None:
        pass


class _InlineThread:
    """Runs its target when it is started."""

    def __init__(self, *, target: Callable[..., object], args: Any = (), **_: object) -> None:
        self._target = target
        self._arguments = args

    def start(self) -> None:
        self._target(*self._arguments)

    def join(self, timeout: float | None = None) -> None:
        del timeout

    def is_alive(self) -> bool:
        return False


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[SimulatedLoop]:
    """A loop, while time, chance and threads of this process are the simulation's."""
    import time  # noqa: PLC0415 - only the simulation patches them

    from oberth.remoting.aio import (  # noqa: PLC0415 - only the simulation patches them
        busy_poll,
        stage,
    )
    from oberth.store import index_service  # noqa: PLC0415 - only the simulation patches them

    loop = SimulatedLoop(seed)
    state = random.getstate()
    random.seed(seed)

    class Chance(random.Random):
        def __init__(self, *_: object) -> None:
            super().__init__(loop.rng.getrandbits(64))

        def __new__(cls, *_: object) -> Self:
            return super().__new__(cls)

    fakes: list[tuple[Any, str, Any]] = [
        (
            index_service,
            "threading",
            mock.Mock(wraps=threading, Thread=_InlineThread),
        ),
        (stage, "ThreadPoolExecutor", _InlineExecutor),
        # A loop that stays awake counts the turns that the machine's own clock leaves it.
        (busy_poll, "usable_cpus", lambda: 1.0),
        (random, "SystemRandom", Chance),
        # Ids of clients and messages have them, and how long a checksum's number is follows.
        (os, "getpid", lambda: SIMULATED_PID),
        (os, "urandom", random.Random(seed).randbytes),
    ]
    for name, clock in (
        ("time_ns", lambda: int((EPOCH_S + loop.time()) * 1e9)),
        ("time", lambda: EPOCH_S + loop.time()),
        ("monotonic", loop.time),
        ("monotonic_ns", lambda: int(loop.time() * 1e9)),
        ("perf_counter", loop.time),
        ("perf_counter_ns", lambda: int(loop.time() * 1e9)),
    ):
        fakes.append((time, name, clock))
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, fake in fakes:
                stack.enter_context(mock.patch.object(owner, name, fake))
            yield loop
    finally:
        random.setstate(state)
        loop.forget_tasks()
        loop.close()
