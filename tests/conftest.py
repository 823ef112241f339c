"""Fixtures for every test: golden stores and frames, and Hypothesis' settings.

``golden_name``     parametrised over all golden stores; narrow it with
                    ``@pytest.mark.parametrize("golden_name", [...])``.
``golden_closed_name``  the same, only stores that were closed cleanly and still have their queues.
``golden_store``    ``golden_store(name)``: a private copy that the test may change.
``golden_pristine`` ``golden_pristine(name)``: the session's unpacked original; only for reading.
``golden_facts``    ``golden_facts(name)``: what RocketMQ read from the store, without unpacking it.
``golden_frames``   ``golden_frames(recording)``: recorded remoting frames, one dict each.
``name_server``     the address of a name server that runs in the test's loop.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gzip
import json
import mmap
import os
import re
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.rigs.campaigns import check_collected, is_long

GOLDEN_DIR = Path(__file__).parent / "golden"
_STORES = tuple(sorted(p.name.removesuffix(".tar.gz") for p in GOLDEN_DIR.glob("*.tar.gz")))
_FRAMES = tuple(
    sorted(p.name.removesuffix(".jsonl.gz") for p in (GOLDEN_DIR / "frames").glob("*.jsonl.gz"))
)

# Killed, or robbed of their queues: their derived files say less than their logs.
_NOT_CLOSED = re.compile(r"(badcrc-tail|torn-tail|stale-tail|crash|propcrc-force)-\d|.*noqueue")
_CLOSED = tuple(name for name in _STORES if not _NOT_CLOSED.match(name))

# A kernel's first call compiles and a shared machine stalls: time is no evidence here.
settings.register_profile("oberth", deadline=None, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("oberth"), max_examples=5000)
# The same examples every time: what lands is not held up by a find in something else.
settings.register_profile(
    "repeatable", parent=settings.get_profile("oberth"), derandomize=True, database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "oberth"))


_niceness = os.getpriority(os.PRIO_PROCESS, 0)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that leaves its process behind others would slow all that come after it."""
    global _niceness
    before, _niceness = _niceness, os.getpriority(os.PRIO_PROCESS, 0)
    assert _niceness == before, f"{item.nodeid} left the process at niceness {_niceness}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what `make test` leaves to `make test-long`, and what shares Spark's session."""
    if is_long(item.nodeid):
        item.add_marker(pytest.mark.long)
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)


@pytest.hookimpl(tryfirst=True)  # before -m leaves any out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Holds the list of long tests against a run of all; --last-failed leaves whole files out."""
    is_whole = config.args_source is config.ArgsSource.TESTPATHS
    if is_whole and not config.getoption("lf", default=False):
        check_collected([item.nodeid for item in items])


@dataclass(frozen=True, slots=True)
class GoldenStore:
    """One golden store on disk, and what RocketMQ's own code read from it.

    Attributes:
        name: the archive's name, for example ``basic-5.5.0``.
        root: the store root (storePathRootDir).
        facts: the parsed NAME.json; its keys are explained in tests/golden/README.md.
        config: messageStoreConfig with ``{root}`` resolved; sizes that the store was made with.
    """

    name: str
    root: Path
    facts: dict[str, Any]
    config: dict[str, str]

    @property
    def rocketmq_version(self) -> str:
        """``4.9.7`` or ``5.5.0``."""
        return str(self.facts["rocketmqVersion"])

    @property
    def was_closed_cleanly(self) -> bool:
        """Whether derived files say what the log says: a clean stop, and nothing removed since."""
        return not self.facts["abortFile"] and "noqueue" not in self.name

    def segments(self, *parts: str) -> dict[int, Path]:
        """The files of a segment directory below the root, by the start offset in their names."""
        return {int(p.name): p for p in sorted(self.root.joinpath(*parts).glob("[0-9]" * 20))}

    def commit_log(self) -> GoldenLog:
        """The CommitLog, mapped for reading."""
        directories = self.config.get("storePathCommitLog", str(self.root / "commitlog"))
        return GoldenLog([Path(part) for part in directories.split(",")])


class GoldenLog:
    """A CommitLog's segments in memory; reads bytes by CommitLog offset."""

    def __init__(self, directories: list[Path]) -> None:
        paths = sorted(
            (p for directory in directories for p in directory.glob("[0-9]" * 20)),
            key=lambda path: path.name,
        )
        self.starts = [int(path.name) for path in paths]
        self.segments: list[mmap.mmap] = []
        for path in paths:
            with open(path, "rb") as file:
                self.segments.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def locate(self, offset: int) -> tuple[mmap.mmap, int]:
        """The segment that holds a CommitLog offset, and the position in it."""
        index = bisect.bisect_right(self.starts, offset) - 1
        assert index >= 0, offset
        return self.segments[index], offset - self.starts[index]

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one segment."""
        segment, position = self.locate(offset)
        return segment[position : position + size]


@functools.cache
def _read_facts(name: str) -> dict[str, Any]:
    facts = json.loads(gzip.decompress((GOLDEN_DIR / f"{name}.json.gz").read_bytes()))
    assert isinstance(facts, dict)
    return facts


@functools.cache
def _read_frames(recording: str) -> tuple[dict[str, Any], ...]:
    text = gzip.decompress((GOLDEN_DIR / "frames" / f"{recording}.jsonl.gz").read_bytes())
    return tuple(json.loads(line) for line in text.splitlines())


def _copy_sparse(source: str, target: str) -> str:
    """Copy one file with its times; holes stay holes (the 1 GiB segments hold 4 KiB of data)."""
    with open(source, "rb", buffering=0) as src, open(target, "wb", buffering=0) as dst:
        size = os.fstat(src.fileno()).st_size
        dst.truncate(size)
        start = 0
        # ENXIO: no data behind start. Without SEEK_DATA (Windows) the whole file is one extent.
        with contextlib.suppress(OSError):
            while start < size:
                start = os.lseek(src.fileno(), start, os.SEEK_DATA) if _HAS_SEEK_DATA else start
                end = os.lseek(src.fileno(), start, os.SEEK_HOLE) if _HAS_SEEK_DATA else size
                src.seek(start)
                dst.seek(start)
                while start < end:
                    start += dst.write(src.read(min(1 << 20, end - start)))
    shutil.copystat(source, target)
    return target


_HAS_SEEK_DATA = hasattr(os, "SEEK_DATA")


@pytest.fixture(params=_STORES)
def golden_name(request: pytest.FixtureRequest) -> str:
    """Each golden store's name in turn."""
    return str(request.param)


@pytest.fixture(params=_CLOSED)
def golden_closed_name(request: pytest.FixtureRequest) -> str:
    """Each golden store whose derived files agree with its log, in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def golden_closed_names() -> tuple[str, ...]:
    """The names of the golden stores whose derived files agree with their logs."""
    return _CLOSED


@pytest.fixture(scope="session")
def golden_names() -> tuple[str, ...]:
    """The names of all golden stores."""
    return _STORES


@pytest.fixture(scope="session")
def golden_recordings() -> tuple[str, ...]:
    """The names of all recordings of remoting frames."""
    return _FRAMES


@pytest.fixture(scope="session")
def golden_facts() -> Callable[[str], dict[str, Any]]:
    """What RocketMQ read from a store; shared between tests, so not to be changed."""
    return _read_facts


@pytest.fixture(scope="session")
def golden_frames() -> Callable[[str], tuple[dict[str, Any], ...]]:
    """The frames of one recording, in the order of the wire."""
    return _read_frames


@pytest.fixture(scope="session")
def golden_pristine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], GoldenStore]]:
    """Unpacks each store at most once a session; for tests that only read."""
    base = tmp_path_factory.mktemp("golden")

    @functools.cache
    def unpack(name: str) -> GoldenStore:
        with tarfile.open(GOLDEN_DIR / f"{name}.tar.gz") as archive:
            archive.extractall(base, filter="data")
        return _at(name, base / name)

    yield unpack
    shutil.rmtree(base, ignore_errors=True)


def _at(name: str, root: Path) -> GoldenStore:
    facts = _read_facts(name)
    config = {
        key: str(value).replace("{root}", str(root))
        for key, value in facts["messageStoreConfig"].items()
    }
    return GoldenStore(name, root, facts, config)


@pytest.fixture
def golden_store(
    golden_pristine: Callable[[str], GoldenStore], tmp_path: Path
) -> Iterator[Callable[[str], GoldenStore]]:
    """Makes private copies of golden stores, removed when the test ends."""
    made: list[Path] = []

    def copy(name: str) -> GoldenStore:
        root = tmp_path / f"store-{len(made)}" / name
        shutil.copytree(golden_pristine(name).root, root, copy_function=_copy_sparse)
        made.append(root)
        return _at(name, root)

    yield copy
    for root in made:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
async def name_server() -> AsyncIterator[str]:
    """Its address; brokers of the same test register there."""
    from oberth.namesrv.name_server import NameServer
    from oberth.namesrv.namesrv_config import NamesrvConfig

    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        yield f"127.0.0.1:{server.address.port}"
