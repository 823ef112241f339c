"""The golden files are there and are the ones that RocketMQ wrote: sums, sizes, times and holes."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN_DIR = Path(__file__).parent / "golden"
_SUM = re.compile(r"^([0-9a-f]{64})  (\S+)$", re.MULTILINE)
SUMS = {name: digest for digest, name in _SUM.findall((GOLDEN_DIR / "PROVENANCE.md").read_text())}


def test_folder_is_not_empty(golden_names: tuple[str, ...]) -> None:
    assert len(golden_names) == 62
    assert {name.rpartition("-")[2] for name in golden_names} == {"4.9.7", "5.5.0"}


def test_closed_stores(
    golden_names: tuple[str, ...],
    golden_closed_names: tuple[str, ...],
    golden_facts: Callable[[str], Any],
) -> None:
    assert golden_closed_names == tuple(
        name
        for name in golden_names
        if not golden_facts(name)["abortFile"] and "noqueue" not in name
    )


def test_every_file_has_a_sum_and_every_sum_a_file() -> None:
    on_disk = {
        p.relative_to(GOLDEN_DIR).as_posix().removesuffix(".gz" if ".json" in p.name else "")
        for p in GOLDEN_DIR.rglob("*.gz")
    }
    assert on_disk == set(SUMS)


@pytest.mark.parametrize("name", sorted(SUMS))
def test_sum(name: str) -> None:
    if name.endswith(".tar.gz"):
        data = (GOLDEN_DIR / name).read_bytes()
    else:
        data = gzip.decompress((GOLDEN_DIR / f"{name}.gz").read_bytes())
    assert hashlib.sha256(data).hexdigest() == SUMS[name]


def test_copy_equals_listing(golden_name: str, golden_store: Callable[[str], Any]) -> None:
    store = golden_store(golden_name)
    found = {p.relative_to(store.root).as_posix() for p in store.root.rglob("*") if p.is_file()}
    assert found == {entry["path"] for entry in store.facts["files"]}
    for entry in store.facts["files"]:
        path = store.root / entry["path"]
        assert path.stat().st_size == entry["size"]
        if entry.get("sha256"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], path


@pytest.mark.parametrize("golden_name", ["defaults-5.5.0"])
def test_copy_keeps_times_and_holes(
    golden_name: str,
    golden_store: Callable[[str], Any],
    golden_pristine: Callable[[str], Any],
) -> None:
    store, original = golden_store(golden_name), golden_pristine(golden_name)
    segment = store.root / "commitlog" / ("0" * 20)
    stat = segment.stat()
    assert stat.st_size == 1 << 30
    assert stat.st_blocks * 512 < 1 << 24
    assert stat.st_mtime_ns == (original.root / segment.relative_to(store.root)).stat().st_mtime_ns
    assert stat.st_mtime_ns % 10**9, "fractions of a second were lost"


def test_copies_are_independent(
    golden_store: Callable[[str], Any], golden_pristine: Callable[[str], Any]
) -> None:
    first, second = golden_store("batch-5.5.0"), golden_store("batch-5.5.0")
    with open(first.root / "checkpoint", "r+b") as file:
        file.write(b"changed")
        os.fsync(file.fileno())
    for other in (second, golden_pristine("batch-5.5.0")):
        assert not (other.root / "checkpoint").read_bytes().startswith(b"changed")


def test_config_names_this_root(golden_store: Callable[[str], Any]) -> None:
    store = golden_store("multidir-5.5.0")
    assert store.config["storePathCommitLog"] == f"{store.root}/clog-a,{store.root}/clog-b"


def test_frames_are_readable(
    golden_recordings: tuple[str, ...], golden_frames: Callable[[str], Any]
) -> None:
    assert golden_recordings == ("client-497", "full-binary", "full-json", "v1-json")
    for recording in golden_recordings:
        assert golden_frames(recording)[0]["n"] == 1
