"""An index file that was damaged while the store was closed is right again after the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.properties import encode_properties
from oberth.store.index_repair import requests_between
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner


def open_store(root: Path) -> MessageStore:
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "mappedFileSizeCommitLog": "16384",
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "50",
            "maxIndexNum": "60",
        }
    )
    store = MessageStore(config)
    store.load()
    store.start(background=False)
    return store


def index_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "index").iterdir()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path)
    host = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    for number in range(100):
        properties = encode_properties({"UNIQ_KEY": f"{number:032X}", "KEYS": f"a{number} b c"})
        store.put_message(
            MessageExtBrokerInner(
                "topic", b"x" * 200, properties, number % 3, born_host=host, store_host=host
            )
        )
        store.dispatch_nowait()
    store.shutdown()
    return tmp_path


@pytest.mark.parametrize("which", [0, 3, 5])
@pytest.mark.parametrize(("position", "value"), [(24, 0x7F), (36, 0x10), (39, 0x01)])
def test_damaged_files_are_built_again(which: int, position: int, value: int, root: Path) -> None:
    expected = index_files(root)
    name = sorted(expected)[which]
    content = bytearray(expected[name])
    assert content[position] != value
    content[position] = value
    (root / "index" / name).write_bytes(content)
    open_store(root).shutdown()
    assert index_files(root) == expected


def test_requests_between(root: Path) -> None:
    store = open_store(root)
    queue = store.commit_log.queue
    everything = [r.commit_log_offset for r in requests_between(queue, 0, 1 << 40)]
    assert len(everything) == 100
    start, stop = everything[20], everything[70]
    found = [r.commit_log_offset for r in requests_between(queue, start, stop)]
    assert found == everything[20:71]
    assert [r.commit_log_offset for r in requests_between(queue, -5, 0)] == [0]
    store.shutdown()
