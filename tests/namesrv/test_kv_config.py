"""KV configuration: what is kept of it is limited, and how its file is made."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import OptionError
from oberth.formats.json_writer import config_in_slices
from oberth.namesrv import kv_config
from oberth.namesrv.kv_config import KvConfigTable


def test_the_whole_table_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "TABLE_SIZE_MAX", 150)
    table = KvConfigTable()
    for number in range(9):
        table.put(f"n{number % 2}", f"k{number}", "x" * 9)
    with pytest.raises(OptionError, match="161 bytes, allowed 150"):
        table.put("n", "k9", "x" * 9)
    assert table.namespace("n") is None
    table.put("n0", "k0", "x" * 10)  # in place of another
    table.delete("n0", "k2")
    table.put("n", "k", "x" * 9)
    assert table.get("n", "k") == "x" * 9


def test_texts_count_as_they_stand_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of control characters 32 MiB became 192 MiB of JSON; names of namespaces did not count."""
    monkeypatch.setattr(kv_config, "TABLE_SIZE_MAX", 1000)
    path = tmp_path / "kvConfig.json"
    table = KvConfigTable(path)
    for namespace, value, size in (("n", "\x01" * 200, 1208), ("n" * 2000, "", 2007)):
        with pytest.raises(OptionError, match=f"{size} bytes, allowed 1000"):
            table.put(namespace, "k", value)
    table.put("n", "k", "\x01" * 100)
    table.put("n", "k", "ä" * 100)
    table.put("n", "l", "ä" * 100)
    table.put("m", "k", "ä\\" * 10)
    texts = ("n", "k", "ä" * 100, "l", "ä" * 100, "m", "k", "ä\\" * 10)
    size = sum(len(json.dumps(text, ensure_ascii=False).encode()) for text in texts)
    assert table._size == size
    table.delete("m", "k")
    table.delete("m", "k")
    again = KvConfigTable(path)
    again.load()
    assert again._size == table._size == size - 3 - 3 - 42
    # What is there already may stay, and become less.
    monkeypatch.setattr(kv_config, "TABLE_SIZE_MAX", 10)
    again.put("n", "k", "ä" * 99)
    with pytest.raises(OptionError, match="allowed 10"):
        again.put("n", "k", "ä" * 100)


def test_a_failed_write_changes_no_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    table = KvConfigTable(tmp_path / "file" / "kvConfig.json")
    with pytest.raises(OSError, match="file"):
        table.put("N", "k", "1")
    assert table._size == 0


def test_the_file_is_made_entry_by_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one piece, 32 MiB of it kept the loop waiting for the thread that made them."""
    slices = 0

    def counted(value: Any) -> Generator[None, None, bytearray]:
        nonlocal slices
        work = config_in_slices(value)
        while True:
            try:
                next(work)
            except StopIteration as end:
                done: bytearray = end.value
                return done
            slices += 1
            yield

    path = tmp_path / "kvConfig.json"
    table = KvConfigTable(path)
    table._table = {"N": {f"k{number}": "\x01" * 65_536 for number in range(20)}}
    monkeypatch.setattr(kv_config, "config_in_slices", counted)
    table.put("N", "k", "v")
    assert slices >= 6
    assert json.loads(path.read_bytes()) == {"configTable": table._table}
