"""Stores that brokers of several lines wrote one after another: tags are in the Index in stretches.

They were made by the brokers themselves, see tests/golden/make_mixed.py.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import pytest

from oberth.formats.index_file import key_hash
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.index_view import index_key
from oberth.store.offline.indexed_tags import indexes_tags
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage
from oberth.store.offline.verify import verify

MIXED = Path(__file__).parents[2] / "golden" / "mixed"
NAMES = ("4-5-4", "4-ours-5-4-5", "5-4-ours")
BROKERS_WITH_TAGS = ("apache-5.5.0", "oberth")


@pytest.fixture(params=NAMES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(MIXED / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / str(request.param)


def entries(root: Path) -> list[tuple[int, int]]:
    with StoreReader(root) as reader:
        return [
            (entry.commit_log_offset, entry.key_hash)
            for view in reader.index_files()
            for entry in view.entries()
        ]


def tagged(root: Path) -> dict[int, bool]:
    """The records with tags: whether they came from a broker that indexes them."""
    with StoreReader(root) as reader:
        return {
            message.commit_log_offset: message.body.decode().split(" ")[0] in BROKERS_WITH_TAGS
            for message in reader.messages()
            if message.topic == "Mixed" and message.tags
        }


def tag_entries(root: Path) -> set[int]:
    present = set(entries(root))
    found = set()
    with StoreReader(root) as reader:
        for message in reader.messages():
            if message.tags:
                value = key_hash(message.topic, index_key(message.tags, "T"))
                if (message.commit_log_offset, value) in present:
                    found.add(message.commit_log_offset)
    return found


def test_there_are_such_stores(root: Path) -> None:
    assert {path.name.removesuffix(".tar.gz") for path in MIXED.glob("*.tar.gz")} == set(NAMES)
    by_line = Counter(tagged(root).values())
    assert by_line[True] > 10
    assert by_line[False] > 10
    assert tag_entries(root) == {offset for offset, indexed in tagged(root).items() if indexed}


def test_they_are_healthy(root: Path) -> None:
    with StoreReader(root) as reader:
        assert verify(reader).findings == []


def test_a_rebuild_keeps_what_was_indexed(root: Path, tmp_path: Path) -> None:
    with StoreReader(root) as reader:
        rebuild(reader, str(tmp_path / "beside"))
    before = entries(root)
    with StoreReader(root) as reader:
        rebuild(reader)
    assert entries(root) == before
    with StoreReader(root) as reader:
        assert verify(reader).findings == []


@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_salvage_keeps_what_was_indexed(root: Path, tmp_path: Path, at: float) -> None:
    path = root / "commitlog" / ("0" * 20)
    wanted = tagged(root)
    lost = sorted(wanted)[int(len(wanted) * at)]
    with path.open("r+b") as file:
        file.seek(lost)
        file.write(bytes(40))
    kept = {offset: indexed for offset, indexed in wanted.items() if offset != lost}
    into = tmp_path / "salvaged"
    with StoreReader(root) as reader:
        salvage(reader, str(into))
    with StoreReader(into) as reader:
        assert verify(reader).findings == []
    assert tag_entries(into) == {offset for offset, indexed in kept.items() if indexed}


def test_a_wrong_tag_entry_is_still_found(root: Path) -> None:
    """Of each tag's entry one bit is flipped in turn: the check is as sharp as before."""
    wanted = sorted(tag_entries(root))
    for offset in (wanted[3], wanted[len(wanted) // 2], wanted[-3]):
        with StoreReader(root) as reader:
            place = next(
                (view.path, view.map.view.obj, number)
                for view in reader.index_files()
                for number, entry in enumerate(view.entries(), 1)
                if entry.commit_log_offset == offset
                and (following := view.entry(number + 1)).commit_log_offset != offset
                and following.key_hash
            )
            shape = reader.index_shape
        at = 40 + shape.slots * 4 + place[2] * 20
        raw = bytearray(Path(place[0]).read_bytes())
        raw[at + 3] ^= 1
        clean = Path(place[0]).read_bytes()
        Path(place[0]).write_bytes(raw)
        with StoreReader(root) as reader:
            assert verify(reader).findings, offset
        Path(place[0]).write_bytes(clean)


def test_what_is_appended_goes_on_as_the_last_broker(root: Path) -> None:
    with StoreReader(root) as reader:
        last = max(reader.messages(), key=lambda m: m.commit_log_offset if m.tags else -1)
        expected = last.body.decode().split(" ")[0] in BROKERS_WITH_TAGS
        assert indexes_tags(reader, at_end=True) is expected


def test_a_store_of_4_9_stays_one_when_it_is_recovered(tmp_path: Path) -> None:
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path / "old"),
        mapped_file_size_commit_log=32768,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50,
        max_index_num=100,
        line=Line.V4_9,
    )
    for _ in range(2):
        with MessageStore(config) as store:
            store.put_message(MessageExtBrokerInner.of("t", b"b", keys="k", tags="a"))
    with StoreReader(tmp_path / "old") as reader:
        assert reader.line is Line.V4_9
        assert not indexes_tags(reader, at_end=True)
