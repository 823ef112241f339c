"""Damage drawn by seed to every kind of store: a salvage keeps what is whole and is clean itself.

``OBERTH_DAMAGES`` says how many damages are drawn for each store (1 without it),
``OBERTH_DAMAGES_SEED`` where the seeds begin.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.message import MessageExt
from oberth.formats.property_crc import record_crc_ok
from oberth.formats.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from oberth.spark.pipelines.salvage import salvage as salvage_in_tasks
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.offline.filler import is_filler
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.salvage import SalvageReport, salvage
from oberth.store.offline.verify import verify

Sizes = Callable[[dict[str, str]], dict[str, str]]
COUNT = int(os.environ.get("OBERTH_DAMAGES", "1"))
FIRST = int(os.environ.get("OBERTH_DAMAGES_SEED", "0"))
PAGE = 4096


def records_of(reader: StoreReader) -> dict[int, MessageExt]:
    return {each.commit_log_offset: each for each in reader.messages() if not is_filler(each)}


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


class Damager:
    """Damages a store's files, each time another way."""

    def __init__(self, chance: random.Random, root: Path, reader: StoreReader) -> None:
        self.chance = chance
        self.root = root
        self.logs = {each.start: Path(each.path) for each in reader.layout.commit_log}
        self.log_end = reader.max_offset
        self.derived = sorted(
            path
            for name in ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
            for path in (root / name).rglob("*")
            if path.is_file()
        )
        self.done: list[str] = []

    def some(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            kind = self.chance.choice(
                (self.bit, self.bit, self.page, self.page, self.cut, self.gone)
            )
            kind()

    def _target(self) -> tuple[Path, int]:
        """A file and how much of it is used."""
        if self.derived and self.chance.random() < 0.2:
            path = self.chance.choice(self.derived)
            return path, path.stat().st_size if path.exists() else 0
        start = self.chance.choice(sorted(self.logs))
        path = self.logs[start]
        size = path.stat().st_size
        return path, min(size, max(self.log_end - start, 1))

    def _note(self, what: str, path: Path, at: int) -> None:
        self.done.append(f"{what} {path.relative_to(self.root)} {at}")

    def bit(self) -> None:
        path, used = self._target()
        if used:
            at = self.chance.randrange(used)
            with path.open("r+b") as file:
                file.seek(at)
                [value] = file.read(1)
                file.seek(at)
                file.write(bytes([value ^ 1 << self.chance.randrange(8)]))
            self._note("bit", path, at)

    def page(self) -> None:
        path, used = self._target()
        if used:
            at = self.chance.randrange(used) // PAGE * PAGE
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes(min(PAGE, path.stat().st_size - at)))
            self._note("page", path, at)

    def cut(self) -> None:
        path, used = self._target()
        if used:
            at = self.chance.randrange(used)
            os.truncate(path, at)
            self._note("cut", path, at)

    def gone(self) -> None:
        if self.derived:
            path = self.chance.choice(self.derived)
            path = self.chance.choice(
                (path, path.parent, self.root / path.relative_to(self.root).parts[0])
            )
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            self.derived = [each for each in self.derived if each.exists()]
            self._note("gone", path, 0)


def gets_unit(message: MessageExt) -> bool:
    return message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT)


def whole(reader: StoreReader, before: dict[int, MessageExt]) -> set[int]:
    """The records that no damage touched."""
    return {
        offset
        for offset, message in before.items()
        if (raw := reader.log.read(offset, message.record_size)) is not None
        and bytes(raw) == message.encode()
    }


def check(
    damaged: StoreReader, saved: StoreReader, report: SalvageReport, before: dict[int, MessageExt]
) -> Iterator[str]:
    """What is wrong with a salvaged store."""
    yield from (str(each) for each in verify(saved).damage)
    kept = records_of(saved)
    intact = whole(damaged, before)
    for offset in sorted(intact):
        if offset not in kept:
            yield f"the record at {offset} is lost"
        elif kept[offset].encode() != before[offset].encode():
            yield f"the record at {offset} was changed"
    for offset, message in kept.items():
        if offset not in before:
            yield f"a record at {offset} that there was not"
        elif message.body != before[offset].body:
            yield f"the body at {offset} is another"
        elif record_crc_ok(message.encode()) is False:
            yield f"the record at {offset} fails its own CRC"
    if report.records != len(kept):
        yield f"{report.records} records are reported, {len(kept)} are kept"
    for offset in sorted(intact):
        message = before[offset]
        if not gets_unit(message):
            continue
        key = QueueKey(message.topic, message.queue_id)
        if key in saved.layout.batch_queues:
            found = saved.batch_at(*key, message.queue_offset)
            if found is None or found.commit_log_offset != offset:
                yield f"{key}/{message.queue_offset} does not lead to the record at {offset}"
        elif key in saved.layout.queues:
            unit = saved.queue(*key).unit(message.queue_offset)
            if unit is None or unit.commit_log_offset != offset:
                yield f"{key}/{message.queue_offset} does not lead to the record at {offset}"
        else:
            yield f"{key} is missing"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_damage(
    seed: int, golden_name: str, golden_store: Callable[[str], Any], sizes: Sizes, tmp_path: Path
) -> None:
    store = golden_store(golden_name)
    chance = random.Random(f"{golden_name} {seed}")
    with StoreReader(store.root, sizes(store.config)) as reader:
        before = records_of(reader)
        damager = Damager(chance, store.root, reader)
    damager.some()
    into = tmp_path / "saved"
    with StoreReader(store.root, sizes(store.config)) as damaged:
        report = salvage(damaged, str(into))
        salvage_in_tasks(
            InProcess(), str(store.root), str(tmp_path / "by-tasks"),
            entries=sizes(store.config), range_size=chance.choice((20_000, 100_000)),
        )  # fmt: skip
        with StoreReader(into, sizes(store.config)) as saved:
            wrong = list(check(damaged, saved, report, before))
    assert not wrong, (damager.done, wrong)
    assert digests(tmp_path / "by-tasks") == digests(into), damager.done
