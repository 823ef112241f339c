"""Rebuild: compiled and plain kernels agree, gaps get stand-ins, the exchange is all or nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import StoreError
from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.kernels import runtime
from oberth.kernels.arguments import QueueAnomaly
from oberth.store.offline import rebuild as module
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.queue_files import QueueFileWriter
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import DERIVED_DIRECTORIES, rebuild
from oberth.store.offline.rejoin import cut_log
from oberth.store.offline.verify import verify

Pristine = Callable[[str], Any]


def hashes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["basic-5.5.0", "lmq-4.9.7", "innerbatch-5.5.0", "cqext-5.5.0"])
def test_with_and_without_compiled_kernels(
    name: str, golden_pristine: Pristine, tmp_path: Path
) -> None:
    root = golden_pristine(name).root
    with StoreReader(root) as reader:
        compiled = rebuild(reader, str(tmp_path / "compiled"))
        verified = verify(reader)
        runtime.use_reference_only(True)
        try:
            plain = rebuild(reader, str(tmp_path / "plain"), threads=1)
            assert verify(reader) == verified
        finally:
            runtime.use_reference_only(False)
    assert hashes(tmp_path / "compiled") == hashes(tmp_path / "plain")
    assert (compiled.records, compiled.units) == (plain.records, plain.units)


def test_a_directory_with_queues_is_not_overwritten(golden_store: Pristine, tmp_path: Path) -> None:
    store = golden_store("basic-5.5.0")
    before = hashes(store.root)
    with StoreReader(store.root) as reader:
        with pytest.raises(StoreError, match="not empty"):
            rebuild(reader, str(store.root))
        rebuild(reader, str(tmp_path / "new"))
    assert hashes(store.root) == before


def test_stopped_before_the_exchange_nothing_has_changed(
    golden_store: Pristine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_store("basic-5.5.0")
    before = hashes(store.root)
    with StoreReader(store.root) as reader, monkeypatch.context() as patched:
        patched.setattr(module, "exchange", lambda root: (_ for _ in ()).throw(OSError("stop")))
        with pytest.raises(OSError, match="stop"):
            rebuild(reader)
    now = hashes(store.root)
    assert {name: now[name] for name in before} == before
    left = [name for name in now if module.BESIDE_SUFFIX in name]
    assert left
    with StoreReader(store.root) as reader:
        rebuild(reader)
    after = hashes(store.root)
    assert not [name for name in after if ".oberth-" in name]
    queues = {name for name in before if name.startswith("consumequeue")}
    assert {name: after[name] for name in queues} == {name: before[name] for name in queues}


def test_lost_messages_get_the_unit_of_the_next(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    queue = next(each for each in store.facts["queues"] if len(each["units"]) > 20)
    lost = [unit for unit in queue["units"][5:7] if unit[1] < 131_072]
    path = store.root / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    for _, offset, size, _ in lost:
        data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    with StoreReader(store.root) as reader:
        report = rebuild(reader)
    assert sum(report.stand_ins.values()) == len(lost)
    assert [each.what for each in report.anomalies] == [QueueAnomaly.GAP] * len(report.anomalies)
    with StoreReader(store.root) as reader:
        view = reader.queue(queue["topic"], queue["queueId"])
        for number, *unit in queue["units"]:
            if number in {each[0] for each in lost}:
                assert view.unit(number) == view.unit(number + 1)
            else:
                assert view.unit(number) == tuple(unit)


def test_zeros_in_a_batch_queue_are_named_and_built_again(golden_store: Pristine) -> None:
    store = golden_store("innerbatch-5.5.0")
    before = hashes(store.root / "batchconsumequeue")
    path = store.root / "batchconsumequeue" / "InnerBatch" / "0" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(3 * BATCH_UNIT.size)
        file.write(bytes(2 * BATCH_UNIT.size))
    with StoreReader(store.root) as reader:
        found = list(verify(reader).damage)
        rebuild(reader)
    assert [(each.kind, each.position, each.found) for each in found] == [
        (FindingKind.UNIT_MISSING, number * BATCH_UNIT.size, "zeros") for number in (3, 4)
    ]
    assert hashes(store.root / "batchconsumequeue") == before


def test_no_keys_no_index_files(golden_pristine: Pristine, tmp_path: Path) -> None:
    with StoreReader(
        golden_pristine("basic-5.5.0").root, {"messageIndexEnable": "false"}
    ) as reader:
        report = rebuild(reader, str(tmp_path / "made"))
    assert report.index_entries == 0
    assert not os.path.exists(tmp_path / "made" / "index")


def test_a_queue_that_starts_again_keeps_what_is_before(tmp_path: Path) -> None:
    def unit(number: int) -> bytes:
        return number.to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)

    writer = QueueFileWriter(str(tmp_path), 20, 100)
    writer.add(0, b"".join(map(unit, range(1, 13))))
    writer.add(7, unit(50) + unit(51))
    writer.flush()
    data = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert data == b"".join(map(unit, [*range(1, 8), 50, 51])) + bytes(20)
    # From the first number on it is another queue.
    writer.add(0, unit(60))
    writer.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000000"]
    assert next(tmp_path.iterdir()).read_bytes() == unit(60) + bytes(80)


@pytest.mark.parametrize("name", DERIVED_DIRECTORIES[::3])
def test_a_linked_directory_is_refused_before_anything_is_done(
    golden_store: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    """What is built would take the link's place, and no later rebuild could remove the old one."""
    root = golden_store("basic-5.5.0").root
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(root.rglob("*"))
    with StoreReader(root) as reader, pytest.raises(StoreError, match=f"{name}: is a symbolic"):
        rebuild(reader)
    with pytest.raises(StoreError, match=f"{name}: is a symbolic link"):
        cut_log(str(root), 0, str(tmp_path / "kept"))
    assert sorted(root.rglob("*")) == before
    assert not (tmp_path / "kept").exists()
    with StoreReader(root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
