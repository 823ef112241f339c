"""After a power cut at any event, dispatch from the last flush on makes queues and index whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.campaigns import rounds

from oberth.formats.consume_queue import UNIT
from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.store_checkpoint import StoreCheckpoint
from oberth.testing.fault_disk import FaultDisk, PowerCut

pytestmark = pytest.mark.crash
COUNT = 120
SIZE = 100


def request(number: int) -> DispatchRequest:
    queue_id = number % 3 if number > 20 else 0
    queue_offset = sum((n % 3 if n > 20 else 0) == queue_id for n in range(number))
    properties = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number % 7}\x02TAGS\x01T".encode()
    return DispatchRequest(
        "t", queue_id, number * SIZE, SIZE, number, 1000 + number * 300, queue_offset, 0, 0,
        properties,
    )  # fmt: skip


REQUESTS = [request(number) for number in range(COUNT)]


class Inline:
    """A thread that runs where it is started, so that events have the same order every time."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        self.target(*self.args)

    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oberth.store.index_service.threading.Thread", Inline)


class Half:
    """The derived half of a store: what is built from the log."""

    def __init__(self, root: Path, files: OsFileSystem) -> None:
        config = MessageStoreConfig.from_properties(
            {
                "storePathRootDir": str(root),
                "mappedFileSizeConsumeQueue": "200",
                "maxHashSlotNum": "30",
                "maxIndexNum": "50",
            }
        )
        self.queues = ConsumeQueueStore(files, config)
        self.index = IndexService(files, config)
        checkpoint = StoreCheckpoint(files, str(root / "checkpoint"))
        self.dispatcher = CommitLogDispatcher(config, self.queues, self.index, checkpoint)

    def work(self, done: list[tuple[int, dict[str, int]]], seed: int) -> None:
        """Dispatches everything; appends to ``done`` what is known to be on the disk."""
        rng = random.Random(seed)
        for number, each in enumerate(REQUESTS):
            self.dispatcher.dispatch(each)
            chance = rng.random()
            if chance < 0.1:
                self.queues.write_behind()
                self.dispatcher.end_burst()
            elif chance < 0.15:
                self.queues.flush()
                self.index.flush()
                done.append(((number + 1) * SIZE, self.index.safe_counts()))

    def close(self) -> None:
        self.queues.close()
        self.index.close()


def events_of(root: Path, seed: int) -> int:
    disk = FaultDisk()
    half = Half(root, disk)
    half.work([], seed)
    half.close()
    return disk.events


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_power_cut(seed: int, keep: float, tmp_path: Path) -> None:
    events = events_of(tmp_path / "whole", seed)
    rng = random.Random(seed)
    count = rounds("tests/store/test_dispatch_crash.py::test_power_cut")
    for cut in sorted(rng.sample(range(1, events), min(count, events - 1))):
        root, image = tmp_path / f"at-{cut}", tmp_path / f"image-{cut}"
        root.mkdir()
        image.mkdir()
        disk = FaultDisk(cut_power_at=cut)
        done: list[tuple[int, dict[str, int]]] = [(0, {})]
        half = Half(root, disk)
        with pytest.raises(PowerCut):
            half.work(done, seed)
        disk.crash_image(str(image), str(root), rng, keep)
        safe_offset, counts = done[-1]
        # The log may end anywhere behind the last flush.
        log_end = rng.randrange(safe_offset // SIZE, COUNT + 1) * SIZE
        assert_whole(image, safe_offset, counts, log_end)


def assert_whole(root: Path, safe_offset: int, counts: dict[str, int], log_end: int) -> None:
    half = Half(root, OsFileSystem())
    half.queues.load()
    half.queues.recover(redispatch_from=safe_offset)
    start = half.index.load(
        clean=False, log_end_offset=log_end, safe_counts=counts, safe_offset=safe_offset
    )
    assert half.index.damaged == []
    for each in REQUESTS[min(start, safe_offset) // SIZE : log_end // SIZE]:
        half.dispatcher.dispatch(each)
    half.queues.flush()
    expected: dict[int, list[int]] = {}
    for each in REQUESTS[: log_end // SIZE]:
        expected.setdefault(each.queue_id, []).append(each.commit_log_offset)
    found = {
        queue.queue_id: [unit[0] for unit in UNIT.iter_unpack(queue.units(0, 1000))]
        for queue in half.queues.all_queues()
        if queue.max_offset
    }
    assert found == expected
    for number in range(COUNT):
        answer = half.index.query_offsets("t", f"{number:032X}", 10, 0, 1 << 62)
        assert answer.offsets == ([number * SIZE] if number * SIZE < log_end else [])
    assert half.index.total_entries == 3 * (log_end // SIZE)
    half.close()
