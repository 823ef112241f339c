"""EmbeddedBroker: a name server and a broker inside a test.

    async with EmbeddedBroker() as mq:
        async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"hello"))
        assert mq.bodies("T") == [b"hello"]

The real protocol on ports of its own, real files in a temporary directory, everything on the
running loop; it is ready in some milliseconds. The broker's time is ``mq.clock``: set it forward
and what is due then happens now. ``mq.faults`` makes requests go wrong; ``kill`` and ``recover``
take the broker down as ``kill -9`` would and bring it up from the files that are left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client.config import ClientConfig
from oberth.client.messages import MessageExt, decode_messages
from oberth.formats import names
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.processors import ProcessorTable
from oberth.testing.virtual_clock import VirtualClock
from oberth.testing.wire_faults import WireFaults

if TYPE_CHECKING:
    from oberth.proxy.front import GrpcFront

_LOG: Final = logging.getLogger(__name__)

DEFAULT_SETTINGS: Final = {
    "brokerName": "broker-a",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "fastListenPort": "0",
    "busyPollMicros": "0",  # clients share its loop, or the interpreter's lock
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxIndexNum": "20000",
    "maxHashSlotNum": "5000",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "6000",
}
"""Small files, and features on that a test may want; ``settings`` go over them."""

WAIT_STEP_S: Final = 0.005


class EmbeddedBroker:
    """A broker under test.

    Args:
        settings: keys of broker.conf, over DEFAULT_SETTINGS.
        store: the store's directory; None: a temporary one, which is deleted at the end.
        clock: of the broker; None: one that shows the real time.
        grpc: whether gRPC clients are served, at ``grpc_address``; needs ``oberth[grpc]``.

    Attributes:
        clock: set it forward with ``advance``.
        faults: what goes wrong.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        store: Path | str | None = None,
        clock: VirtualClock | None = None,
        grpc: bool = False,
    ) -> None:
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.clock: VirtualClock = clock or VirtualClock()
        self.faults: WireFaults = WireFaults()
        self._store_given = Path(store) if store is not None else None
        self._root: Path | None = None
        self._lives = 0
        self._namesrv: NameServer | None = None
        self._broker: Broker | None = None
        self._port = 0
        self._serves_grpc = grpc
        self._front: GrpcFront | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Bring both servers up.

        Raises:
            OptionError: a setting that does not exist or is out of range.
        """
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._root = self._store_given or Path(tempfile.mkdtemp(prefix="oberth-test-"))
        namesrv = NameServer(
            NamesrvConfig(
                listen_host="127.0.0.1",
                listen_port=0,
                kv_config_path=str(self._root / "kvConfig.json"),
            )
        )
        await namesrv.start()
        self._namesrv = namesrv
        try:
            await self._start_broker()
        except BaseException:
            await self.stop()
            raise
        self.clock.add_listener(self._on_advance)

    async def stop(self) -> None:
        """Bring both down and delete the files."""
        with contextlib.suppress(ValueError):
            self.clock.remove_listener(self._on_advance)
        await self._stop_grpc()
        if self._broker is not None:
            await self._broker.aclose()
            self._broker = None
        if self._namesrv is not None:
            await self._namesrv.aclose()
            self._namesrv = None
        if self._root is not None and self._store_given is None:
            shutil.rmtree(self._root, ignore_errors=True)
        self._root = None

    async def _start_broker(self) -> None:
        broker_config, store_config, warnings = read_configs(
            {
                **self.settings,
                "storePathRootDir": str(self.store_dir),
                "namesrvAddr": self.namesrv_addr,
                **({"listenPort": str(self._port)} if self._port else {}),
            }
        )
        for warning in warnings:
            _LOG.warning("the broker's settings: %s", warning)
        broker = Broker(broker_config, store_config, clock_ms=self.clock)
        broker.extend.append(self._add_faults)
        await broker.start()
        # Clients that go close their connections; setting the clock forward must not end others.
        broker._next_scan_ms = sys.maxsize
        self._broker = broker
        self._port = broker.address.port
        if self._serves_grpc:
            from oberth.proxy.front import GrpcFront  # noqa: PLC0415 - an extra

            self._front = GrpcFront(broker)
            await self._front.start()
            # As the broker's own port, the same in every life.
            broker_config.grpc_server_port = self._front.address.port
            self.settings["grpcServerPort"] = str(self._front.address.port)

    async def _stop_grpc(self) -> None:
        front, self._front = self._front, None
        if front is not None:
            await front.aclose()

    def _add_faults(self, table: ProcessorTable) -> None:
        # One place through which every request comes; the table has no other hook.
        setattr(table, "dispatch", self.faults.wrap(table.dispatch))  # noqa: B010 - a method

    def _on_advance(self) -> None:
        if self._broker is None or self._loop is None:
            return
        if threading.get_ident() == self._thread_id:
            self._dispatch()  # what was acknowledged came before
            self._broker.on_time(self.clock())
        else:
            # A test may set the clock forward from its own thread.
            self._loop.call_soon_threadsafe(self._on_advance)

    def advance(self, ms: float = 0, *, seconds: float = 0, minutes: float = 0) -> int:
        """``clock.advance``: what is due then happens now."""
        return self.clock.advance(ms, seconds=seconds, minutes=minutes)

    # Addresses

    @property
    def store_dir(self) -> Path:
        """Where the store of this life of the broker lies."""
        assert self._root is not None, "the broker is not started"
        return self._root if not self._lives else self._root / f"life-{self._lives}"

    @property
    def namesrv_addr(self) -> str:
        """For clients."""
        assert self._namesrv is not None, "the broker is not started"
        return str(self._namesrv.address)

    @property
    def address(self) -> str:
        """The broker's ``host:port``; the same after ``recover``."""
        return str(self.broker.address)

    @property
    def grpc_address(self) -> str:
        """``host:port`` for gRPC clients; the same after ``recover``."""
        assert self._front is not None, "gRPC is not served, EmbeddedBroker(grpc=True) does"
        return str(self._front.address)

    @property
    def client_config(self) -> ClientConfig:
        """A configuration for clients of this broker."""
        return ClientConfig(namesrv_addr=self.namesrv_addr)

    @property
    def broker(self) -> Broker:
        """The broker itself, for what this class has no words for."""
        assert self._broker is not None, "the broker is not up"
        return self._broker

    # Kill and recover

    async def kill(self) -> None:
        """As ``kill -9`` does: connections break, and only what is in the files is left."""
        broker = self.broker
        image = self._image_dir(self._lives + 1)
        for server in (broker.server, broker.fast_server):
            if server is not None:
                for channel in list(server.channels):
                    channel.abort()
        if self._front is not None and self._front.server is not None:
            for each in list(self._front.server.channels):
                each.abort()
        await asyncio.to_thread(_copy_store, self.store_dir, image)
        await self._stop_grpc()
        self._broker = None
        await broker.aclose()
        self._lives += 1

    def _image_dir(self, life: int) -> Path:
        assert self._root is not None
        return self._root / f"life-{life}"

    async def recover(self) -> None:
        """Start again, on the same port, from what ``kill`` left."""
        await self._start_broker()

    async def restart(self) -> None:
        """Stop in order and start again on the same port and files."""
        await self._stop_grpc()
        await self.broker.aclose()
        self._broker = None
        await self._start_broker()

    # What is there

    def topics(self) -> list[str]:
        """Topics that messages were sent to, without the broker's own."""
        return sorted(
            topic for topic in self.broker.parts.store.topics() if not names.is_system_topic(topic)
        )

    def messages(self, topic: str, queue_id: int | None = None) -> list[MessageExt]:
        """What is stored in a topic, by queue and offset; of one queue when it is given."""
        broker = self.broker
        store = broker.parts.store
        self._dispatch()
        queue_ids = [queue_id] if queue_id is not None else self._queue_ids(topic)
        found: list[MessageExt] = []
        for each in queue_ids:
            low = max(store.min_offset_in_queue(topic, each), 0)
            for offset in range(low, store.max_offset_in_queue(topic, each)):
                unit = store.consume_queue_unit(topic, each, offset)
                record = store.select_record(unit.commit_log_offset) if unit is not None else None
                if record is not None:
                    found += decode_messages(bytes(record), broker.parts.config.broker_name)
        return found

    def _dispatch(self) -> None:
        """What was acknowledged in this turn of the loop is in the log and not yet in its queue."""
        self.broker.services.dispatching.now()

    def _queue_ids(self, topic: str) -> list[int]:
        return [queue.queue_id for queue in self.broker.parts.store.queues.queues(topic)]

    def bodies(self, topic: str) -> list[bytes]:
        """Bodies stored in a topic, in the order in which they were stored."""
        stored = sorted(self.messages(topic), key=lambda message: message.commit_log_offset)
        return [message.body for message in stored]

    def dead_letters(self, group: str) -> list[MessageExt]:
        """Messages that a group could not consume."""
        return self.messages(names.dlq_topic(group))

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed, by queue."""
        for each_topic, each_group, queues in self.broker.parts.offsets:
            if (each_topic, each_group) == (topic, group):
                return dict(queues)
        return {}

    def lag(self, group: str, topic: str) -> int:
        """Messages of a topic that a group has not committed."""
        store = self.broker.parts.store
        self._dispatch()
        committed = self.offsets(group, topic)
        return sum(
            store.max_offset_in_queue(topic, queue_id) - committed.get(queue_id, 0)
            for queue_id in self._queue_ids(topic)
        )

    def assert_stored(self, topic: str, bodies: Sequence[bytes]) -> None:
        """A topic holds just these bodies, in whatever order.

        Raises:
            AssertionError: naming what is missing and what is too much.
        """
        found = sorted(self.bodies(topic))
        wanted = sorted(bodies)
        if found != wanted:
            missing = list(wanted)
            extra = []
            for body in found:
                if body in missing:
                    missing.remove(body)
                else:
                    extra.append(body)
            raise AssertionError(
                f"{topic}: {len(missing)} missing {missing[:5]}, {len(extra)} too much {extra[:5]}"
            )

    async def wait_until(
        self, condition: Callable[[], bool], timeout_s: float = 30.0, what: str = "condition"
    ) -> None:
        """Wait until a condition holds.

        Raises:
            AssertionError: it does not in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{what} did not come within {timeout_s:g} s")
            await asyncio.sleep(WAIT_STEP_S)

    async def wait_consumed(self, group: str, topic: str, timeout_s: float = 30.0) -> None:
        """Wait until a group has committed everything of a topic.

        Raises:
            AssertionError: it has not in time.
        """
        await self.wait_until(
            lambda: self.lag(group, topic) == 0,
            timeout_s,
            f"{group} at the end of {topic}",
        )


def _copy_store(source: Path, target: Path) -> None:
    """The files as they are now; those of earlier lives stay behind.

    A file that is being replaced right now may be gone when its turn comes; its back-up is there.
    """

    def copy(file: str, to: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(file, to)
        return to

    def ignore(folder: str, children: list[str]) -> list[str]:
        del folder
        return [name for name in children if name.startswith("life-") or name == "lock"]

    shutil.copytree(source, target, ignore=ignore, copy_function=copy)
