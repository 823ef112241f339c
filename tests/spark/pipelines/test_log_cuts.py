"""What is said of a damaged log, and built from it, does not depend on where it is cut.

A log is cut twice: Spark's tasks have ranges of it, and a single reader goes through it in pieces.
Both are drawn here, with records whose queue offsets, bodies or first bytes are wrong.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oberth.formats.message import MAGIC_POSITION, QUEUE_OFFSET_POSITION
from oberth.spark.load import StoreLoader
from oberth.spark.load_plan import work_directory
from oberth.spark.pipelines.dispatch import dispatch
from oberth.spark.pipelines.salvage import salvage
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.verify import verify
from oberth.spark.sink import stage
from oberth.spark.write_options import parse_write_options
from oberth.store.offline import log_columns
from oberth.store.offline.filler import fillers
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage as salvage_here
from oberth.store.offline.verify import verify as verify_here

RECORDS: Final = 60
WHOLE: Final = 1 << 30
SEGMENT: Final = 4096
SHAPE: Final = {"maxHashSlotNum": "50", "maxIndexNum": "100"}


class Store(NamedTuple):
    """A store, where its records begin, and what a salvage would write over each."""

    root: Path
    places: list[int]
    fillers: list[bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Sixty messages for three queues by turns, in segments of some thirty records."""
    root = tmp_path_factory.mktemp("sound") / "store"
    sizes = {"mappedFileSizeCommitLog": f"{SEGMENT}", "mappedFileSizeConsumeQueue": "400"}
    options = parse_write_options({"path": str(root), "topic": "T", **SHAPE, **sizes})
    work = work_directory(str(root), "made")
    numbers = range(RECORDS)
    rows = pa.record_batch(
        {
            "value": [b"x" * (n % 7 + 30) for n in numbers],
            "partition": [n % 3 for n in numbers],
            "key": [f"k{n}" for n in numbers],
        }
    )
    StoreLoader(options).commit([stage(iter([rows]), options, work)], work)
    with StoreReader(root, SHAPE) as reader:
        messages = sorted(reader.messages(), key=lambda each: each.commit_log_offset)
    assert len(messages) == RECORDS
    made = [
        b"".join(raw for _, raw in fillers(m.commit_log_offset, m.record_size, m.store_timestamp))
        for m in messages
    ]
    return Store(root, [each.commit_log_offset for each in messages], made)


class Wrong(NamedTuple):
    """What is wrong with a record: its queue offset, its body or its magic, or it is a filler."""

    record: int
    what: int | str


def damage(root: Path, store: Store, wrongs: list[Wrong], gone: int) -> None:
    """Writes wrong bytes, and removes so many segments from the front."""
    for record, what in wrongs:
        place = store.places[record]
        path = root / "commitlog" / f"{place - place % SEGMENT:020d}"
        with path.open("r+b") as file:
            if what == "body":
                file.seek(place % SEGMENT + 100)
                file.write(b"#")
            elif what == "filler":
                file.seek(place % SEGMENT)
                file.write(store.fillers[record])
            elif what == "magic":
                file.seek(place % SEGMENT + MAGIC_POSITION)
                file.write(b"#")
            else:
                file.seek(place % SEGMENT + QUEUE_OFFSET_POSITION)
                file.write(int(what).to_bytes(8, "big", signed=True))
    for number in range(gone):
        (root / "commitlog" / f"{number * SEGMENT:020d}").unlink()


@contextmanager
def damaged(
    sound: Store, factory: pytest.TempPathFactory, wrongs: list[Wrong], gone: int
) -> Iterator[tuple[Path, Path]]:
    """A directory of its own, and in it a copy of the store with damage; removed at the end."""
    base = factory.mktemp("cut")
    try:
        shutil.copytree(sound.root, base / "store")
        damage(base / "store", sound, wrongs, gone)
        yield base, base / "store"
    finally:
        shutil.rmtree(base)


@contextmanager
def cut_into(piece_size: int) -> Iterator[None]:
    with patch.object(log_columns, "PIECE_SIZE", piece_size):
        yield


def files(root: Path) -> dict[str, str]:
    """Every file with its digest."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def said(report: Any) -> dict[str, Any]:
    """A report without what may differ."""
    values: dict[str, Any] = report.to_json()
    values.pop("seconds", None)
    for name in ("standIns", "rebuild"):
        if isinstance(values.get(name), list):
            values[name] = sorted(values[name], key=str)
    return values


NUMBERS: Final = st.one_of(
    st.integers(-2, 30), st.integers(0, 200), st.sampled_from([1 << 20, 1 << 40, (1 << 63) - 1])
)
WRONGS: Final = st.lists(
    st.builds(
        Wrong,
        st.integers(0, RECORDS - 1),
        st.one_of(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["body", "magic", "filler"])),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.record,
)
CUTS: Final = st.integers(150, SEGMENT)


@settings(max_examples=10)
@example(
    wrongs=[Wrong(31, 1), Wrong(46, "body"), Wrong(10, "magic")],
    gone=1,
    range_size=1929,
    piece_size=3990,
)
@example(
    wrongs=[Wrong(8, "filler"), Wrong(31, 3), Wrong(56, "body")],
    gone=1,
    range_size=3490,
    piece_size=2585,
)
@given(wrongs=WRONGS, gone=st.integers(0, 1), range_size=CUTS, piece_size=CUTS)
def test_findings(
    sound: Store,
    tmp_path_factory: pytest.TempPathFactory,
    wrongs: list[Wrong],
    gone: int,
    range_size: int,
    piece_size: int,
) -> None:
    with damaged(sound, tmp_path_factory, wrongs, gone) as (_, root):
        expected = said(verify(InProcess(), str(root), entries=SHAPE, range_size=WHOLE))
        with cut_into(piece_size):
            with StoreReader(root, SHAPE) as reader:
                assert said(verify_here(reader)) == expected
            assert (
                said(verify(InProcess(), str(root), entries=SHAPE, range_size=range_size))
                == expected
            )


@settings(max_examples=10)
@example(wrongs=[Wrong(2, 23), Wrong(45, 13)], gone=0, range_size=3373, piece_size=324)
@given(wrongs=WRONGS, gone=st.integers(0, 1), range_size=CUTS, piece_size=CUTS)
def test_queues(
    sound: Store,
    tmp_path_factory: pytest.TempPathFactory,
    wrongs: list[Wrong],
    gone: int,
    range_size: int,
    piece_size: int,
) -> None:
    with damaged(sound, tmp_path_factory, wrongs, gone) as (base, root):
        with StoreReader(root, SHAPE) as reader:
            expected = said(rebuild(reader, str(base / "whole")))
        with cut_into(piece_size):
            with StoreReader(root, SHAPE) as reader:
                assert said(rebuild(reader, str(base / "pieces"))) == expected
            wanted = files(base / "whole")
            assert files(base / "pieces") == wanted
            found = dispatch(
                InProcess(), str(root), str(base / "ranges"), entries=SHAPE, range_size=range_size
            )
            assert said(found) == expected
            assert {**files(base / "ranges"), "checkpoint": ""} == {**wanted, "checkpoint": ""}


@settings(max_examples=10)
@given(wrongs=WRONGS, gone=st.integers(0, 1), range_size=CUTS, piece_size=CUTS)
def test_salvaged(
    sound: Store,
    tmp_path_factory: pytest.TempPathFactory,
    wrongs: list[Wrong],
    gone: int,
    range_size: int,
    piece_size: int,
) -> None:
    with damaged(sound, tmp_path_factory, wrongs, gone) as (base, root):
        with StoreReader(root, SHAPE) as reader:
            expected = salvage_here(reader, str(base / "whole"))
        with cut_into(piece_size):
            with StoreReader(root, SHAPE) as reader:
                pieces = salvage_here(reader, str(base / "pieces"))
            ranges = salvage(
                InProcess(), str(root), str(base / "ranges"), entries=SHAPE, range_size=range_size
            )
        assert pieces.lost == ranges.lost == expected.lost
        assert files(base / "pieces") == files(base / "whole")
        assert files(base / "ranges") == files(base / "whole")
