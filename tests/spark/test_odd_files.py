"""One odd thing among a store's files: no tool breaks, and none denies what another one says.

Drawn by seed: files that change their names, sizes or places, a checkpoint and a state of another
time, lengths inside records, foreign names, files for directories and directories for files. What
a tool refuses it refuses by path; what is whole is kept by a salvage, and what nobody sent is shown
by none; where `verify` finds nothing, every reader shows everything.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.rigs.campaigns import rounds

from oberth.errors import OberthError
from oberth.formats.message import FIXED, HOST_BITS, MessageExt
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.verify import verify as verify_in_tasks
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.dump import dump
from oberth.store.offline.filler import is_filler
from oberth.store.offline.inspect import inspect
from oberth.store.offline.query import by_key
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage
from oberth.store.offline.verify import verify

T = TypeVar("T")
Messages = dict[int, MessageExt]
SEGMENT, QUEUE_FILE = 16_384, 200
FOREIGN = (
    "lost+found", ".x.swp", "x~", "x.tmp", "9" * 20, "0" * 20 + ".bak", "0" * 19 + "7", "01", "²",
    "-1", "2147483648", "20261121084341844.tmp", "\udcff",
)  # fmt: skip
TEST = "tests/spark/test_odd_files.py::test_no_tool_denies_what_another_says"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, golden_pristine: Any) -> Path:
    """A store of several segments, of queues and an Index of several files, and with tables."""
    root = tmp_path_factory.mktemp("odd") / "store"
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=QUEUE_FILE,
        max_hash_slot_num=20,
        max_index_num=60,
    )
    with MessageStore(config) as store:
        for number in range(160):
            message = MessageExtBrokerInner.of(
                "AB"[number % 2], b"%d " % number + bytes(number * 37 % 500), tags="t",
                keys=f"k{number}", queue_id=number // 2 % 2,
            )  # fmt: skip
            assert store.put_message(message).ok
    shutil.copytree(golden_pristine("retry-5.5.0").root / "config", root / "config")
    tables = json.loads((root / "config" / "topics.json").read_bytes())
    [usual, *_] = tables["topicConfigTable"].values()
    for topic in "AB":
        tables["topicConfigTable"][topic] = {**usual, "topicName": topic}
    (root / "config" / "topics.json").write_text(json.dumps(tables))
    return root


class Oddity:
    """Does one odd thing to a store.

    Attributes:
        done: what, for the test's message.
    """

    def __init__(self, chance: random.Random, root: Path, sent: Messages) -> None:
        self.chance, self.root, self.sent = chance, root, sent
        self.done = ""
        kinds = (self.row, self.row, self.index, self.numbers, self.kind, self.length, self.name)
        while not self.done:
            chance.choice(kinds)()

    def _files(self, *directories: str) -> list[Path]:
        return sorted(p for d in directories for p in (self.root / d).rglob("*") if p.is_file())

    def row(self) -> None:
        """One of the files that make a stream together."""
        files = self._files(self.chance.choice(("commitlog", "consumequeue")))
        path = self.chance.choice(files)
        beside = [each for each in path.parent.iterdir() if each != path]
        self._change(path, self.chance.choice(beside) if beside else None, path.stat().st_size, 20)

    def index(self) -> None:
        """A file of the Index."""
        files = self._files("index")
        path, other = self.chance.sample(files, 2)
        self._change(path, other, 1, 17)

    def _change(self, path: Path, other: Path | None, step: int, digits: int) -> None:
        what = self.chance.choice(
            ("swap", "over", "behind", "gone", "cut", "empty", "longer", "far")
        )
        data = path.read_bytes()
        if what == "swap" and other is not None:
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        elif what == "over" and other is not None:
            other.write_bytes(data)
        elif what == "behind":
            last = max(int(each.name) for each in path.parent.iterdir())
            (path.parent / f"{last + step:0{digits}d}").write_bytes(data)
        elif what == "gone":
            path.unlink()
        elif what == "cut":
            os.truncate(path, self.chance.randrange(len(data)))
        elif what == "empty":
            path.write_bytes(b"")
        elif what == "longer":
            path.write_bytes(data + self.chance.randbytes(self.chance.choice((1, 20, 4096))))
        elif what == "far":
            ahead = self.chance.choice((1, 3 * step, 1 << 40))
            path.rename(path.parent / f"{int(path.name) + ahead:0{digits}d}")
        else:
            return
        self.done = f"{what} {path.relative_to(self.root)}"

    def numbers(self) -> None:
        """The checkpoint, or oberth.state, from another time."""
        if self.chance.random() < 0.5:
            number = self.chance.choice((0, 1, -1, 1 << 62, -(1 << 63)))
            place = 8 * self.chance.randrange(6)
            with (self.root / "checkpoint").open("r+b") as file:
                file.seek(place)
                file.write(number.to_bytes(8, "big", signed=True))
            self.done = f"checkpoint {place} {number}"
            return
        path = self.root / "oberth.state"
        state = json.loads(path.read_bytes())
        name = self.chance.choice([n for n, each in state.items() if type(each) is int])
        state[name] = self.chance.choice((0, -5, 1 << 62, 1 << 70, state[name] // 2))
        path.write_text(json.dumps(state))
        self.done = f"state {name} {state[name]}"

    def kind(self) -> None:
        """A file for a directory, or something else for a file."""
        paths = [each for each in self.root.rglob("*") if each.name != "commitlog"]
        path = self.chance.choice(sorted(paths))
        if path.is_dir():
            shutil.rmtree(path)
            path.write_bytes(b"mine")
        else:
            path.unlink()
            if self.chance.random() < 0.5:
                path.mkdir()
            else:
                path.symlink_to(path.name)
        self.done = f"kind {path.relative_to(self.root)}"

    def length(self) -> None:
        """A field of a record that says how long something is."""
        at = self.chance.choice(sorted(self.sent))
        message = self.sent[at]
        fixed = FIXED[message.sys_flag & HOST_BITS].size
        topic = fixed + len(message.body)
        places = ((0, 4), (fixed - 4, 4), (topic, 1), (topic + 1 + len(message.topic), 2))
        place, size = self.chance.choice(places)
        path = self.root / "commitlog" / f"{at - at % SEGMENT:020d}"
        data = bytearray(path.read_bytes())
        place += at % SEGMENT
        before = int.from_bytes(data[place : place + size], "big")
        limit = 1 << 8 * size
        after = self.chance.choice(
            (0, limit - 1, before + 1, before ^ 1 << self.chance.randrange(8))
        )
        data[place : place + size] = (after % limit).to_bytes(size, "big")
        path.write_bytes(data)
        self.done = f"length at {at}: {before}, now {after}" if after != before else ""

    def name(self) -> None:
        """Something that others left behind."""
        directory = self.chance.choice(sorted(p for p in self.root.rglob("*") if p.is_dir()))
        path = directory / self.chance.choice(FOREIGN)
        if self.chance.random() < 0.5:
            path.mkdir()
        else:
            path.write_bytes(b"left")
        self.done = f"name {os.fsencode(path.relative_to(self.root))!r}"


def messages_of(root: Path) -> Messages:
    with StoreReader(root) as reader:
        return {m.commit_log_offset: m for m in reader.messages() if not is_filler(m)}


def whole_in(root: Path, sent: Messages) -> set[int]:
    """Messages whose bytes are where they belong."""
    logs: dict[int, bytes] = {}
    for start in range(0, max(sent) + 1, SEGMENT):
        with suppress(OSError):
            logs[start] = (root / "commitlog" / f"{start:020d}").read_bytes()
    return {
        at
        for at, message in sent.items()
        if logs.get(at - at % SEGMENT, b"").startswith(message.encode(), at % SEGMENT)
    }


def served(root: Path) -> Iterator[int]:
    """Opens the store, and gives what consumers get."""
    with StoreReader(root) as reader:
        config = reader.engine_config()
    with MessageStore(config) as store:
        for topic in ("A", "B"):
            for queue_id in store.queue_ids(topic):
                at, end = -1, store.min_offset_in_queue(topic, queue_id)
                while end > at:
                    at = end
                    result = store.get_message("g", topic, queue_id, at, 32)
                    yield from result.commit_log_offsets
                    end = result.next_begin_offset
                    result.release()


@pytest.mark.parametrize("seed", range(rounds(TEST)))
def test_no_tool_denies_what_another_says(
    seed: int, healthy: Path, tmp_path: Path, read_store: Callable[..., Any]
) -> None:
    sent = messages_of(healthy)
    root, copy, saved = tmp_path / "store", tmp_path / "copy", tmp_path / "saved"
    shutil.copytree(healthy, root)
    odd = Oddity(random.Random(seed), root, sent).done
    shutil.copytree(root, copy, symlinks=True)
    whole = whole_in(root, sent)

    def tried(tool: Callable[[], T]) -> T | None:
        try:
            return tool()
        except (OberthError, OSError) as error:
            if str(tmp_path) not in str(error):
                raise AssertionError(f"{odd}: {error!r} names no file") from error
            return None

    with StoreReader(root) as reader:
        report = verify(reader)
        in_tasks = verify_in_tasks(InProcess(), str(root), range_size=5000)
        assert in_tasks.to_json() == report.to_json(), odd
        assert inspect(reader, count=True)["root"] == str(root)
        dumped = {each["commitLogOffset"] for each in dump(reader)}
        found = {
            each["commitLogOffset"]
            for at in list(sent)[::40]
            for each in by_key(reader, sent[at].topic, sent[at].keys or "")
        }
        assert dumped | found <= sent.keys(), odd
        tried(lambda: rebuild(reader, str(tmp_path / "rebuilt")))
        salvage(reader, str(saved))
    kept = messages_of(saved)
    assert whole <= kept.keys() <= sent.keys(), odd
    assert all(kept[at].body == sent[at].body for at in kept), odd
    with StoreReader(saved) as reader:
        again = verify(reader)
    assert again.clean, (odd, [str(each) for each in again.damage])
    assert whole <= set(served(saved)), odd
    for order in ("commitlog", "queue"):
        options = {"readOrder": order, "failOnDataLoss": "false"}
        read = tried(partial(read_store, root, **options))
        rows = set() if read is None else {row["physicalOffset"] for row in read.rows}
        assert rows <= sent.keys(), odd
        assert not report.clean or rows == whole, (odd, order)
    shown = tried(lambda: set(served(copy)))
    if report.clean:
        assert dumped == shown == whole, odd
        assert set(list(sent)[::40]) & whole <= found, odd
    elif shown is not None:
        with StoreReader(copy) as reader:
            assert not verify(reader).clean or whole <= shown, odd
