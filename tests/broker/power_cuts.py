"""A broker on a disk that loses power, and what its machine would come back with."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.broker.conftest import SMALL, Peer

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.testing.fault_disk import FaultDisk

KEEPS = (0.0, 0.5)
T = TypeVar("T")


def wall_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


class Photographed(FaultDisk):
    """Tells of each event before it happens, while nothing else does."""

    def __init__(self) -> None:
        FaultDisk.__init__(self)
        self.before: Callable[[], object] | None = None

    def event(self, what: str) -> None:
        """See FaultDisk."""
        with self._lock:
            if self.before is not None:
                self.before()
            FaultDisk.event(self, what)


class Images:
    """A broker on a disk that remembers, and what its machine would come back with."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        always = {"flushDiskType": "SYNC_FLUSH", "timerWheelEnable": "false"}
        self.settings = {**SMALL, **always, **settings}
        self.root = directory / "store"
        self.disk = Photographed()
        self.broker = self.make(self.root, self.disk)
        self.peer = Peer(self.broker)
        self.taken: list[Path] = []

    def make(
        self,
        root: Path,
        disk: FaultDisk | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> Broker:
        config, store_config, _ = read_configs({**self.settings, "storePathRootDir": str(root)})
        return Broker(config, store_config, clock_ms=clock_ms, files=disk)

    async def __aenter__(self) -> Images:
        await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.client.aclose()
        await self.broker.aclose()

    def take(self) -> list[Path]:
        """Images of the disk as it is now."""
        taken = []
        for keep in KEEPS:
            target = self.directory / f"image-{len(self.taken)}"
            target.mkdir()
            rng = random.Random(len(self.taken))
            self.disk.crash_image(str(target), str(self.root), rng, keep)
            self.taken.append(target)
            taken.append(target)
        return taken

    @contextlib.contextmanager
    def at_every_event(
        self, known: Callable[[], T], times: int = 1
    ) -> Iterator[list[tuple[Path, T]]]:
        """Images as of before every event within, and of the end; and what was known then."""
        images: list[tuple[Path, T]] = []
        rng = random.Random(7)

        def photograph() -> None:
            for _ in range(times):
                image = self.directory / f"event-{len(images)}"
                image.mkdir()
                self.disk.crash_image(str(image), str(self.root), rng, rng.choice(KEEPS))
                images.append((image, known()))

        self.disk.before = photograph
        yield images
        self.disk.event("the end")
        self.disk.before = None

    async def on(self, image: Path, look: Callable[[Broker, Peer], Awaitable[None]]) -> None:
        """A broker that starts on an image."""
        async with self.make(image) as broker:
            peer = Peer(broker)
            try:
                await look(broker, peer)
            finally:
                await peer.client.aclose()
