"""A configuration file is whole at any instant; its back-up is read when it is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from oberth.broker import config_file
from oberth.broker.config_file import (
    ROCKSDB_TABLES,
    ConfigFile,
    document_bytes,
    entry_text,
    refuse_rocksdb,
)
from oberth.errors import ConfigFormatError
from oberth.formats.config_json import encode_config, parse_config


def load(file: ConfigFile) -> Any:
    seen: list[Any] = []
    return seen[0] if file.load(seen.append) else None


def test_the_predecessor_is_kept(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "config" / "x.json")
    assert load(file) is None
    file.write_document({"a": 1})
    file.write_document({"a": 2}, sync=True)
    assert load(file) == {"a": 2}
    assert parse_config(file.back_up.read_bytes()) == {"a": 1}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_full_disk_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = ConfigFile(tmp_path / "x.json")
    file.write_document({"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match=r"No space left.*x\.json"):
            file.write(b'{"a":2}', sync=True)
        assert not file.try_write(b'{"a":2}', sync=True)
    assert "x.json could not be written: No space left" in caplog.text
    assert load(file) == {"a": 1}
    assert not list(tmp_path.rglob("*.tmp")), "it would hold the disk's last blocks"
    assert file.try_write(b'{"a":3}')
    assert load(file) == {"a": 3}


def test_what_no_start_could_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file, "CONFIG_SIZE_MAX", 20)
    file = ConfigFile(tmp_path / "x.json")
    file.write(b'{"a":1}'.ljust(20))
    with pytest.raises(OSError, match=r"too large.*x\.json"):
        file.write(b'{"a":2}'.ljust(21))
    assert load(file) == {"a": 1}


def test_bytes_made_earlier_do_not_replace_later_ones(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "x.json")
    earlier = file.turn()
    file.write_document({"a": 2})
    file.write(b'{"a":1}', turn=earlier)
    assert load(file) == {"a": 2}


@pytest.mark.parametrize("damage", [b"", b"   ", bytes(9), b'{"a":', None])
def test_the_back_up_is_read_when_the_file_is_not(tmp_path: Path, damage: bytes | None) -> None:
    file = ConfigFile(tmp_path / "x.json")
    file.write_document({"a": 1})
    file.write_document({"a": 2})
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_bytes(damage)
    assert load(file) == {"a": 1}


def test_both_unreadable_is_an_error_and_both_missing_is_not(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "x.json")
    file.sync()
    file.path.write_bytes(b"{")
    file.back_up.write_bytes(b"[")
    with pytest.raises(ConfigFormatError, match=r"x\.json"):
        load(file)


@pytest.mark.parametrize("left", [b"", bytes(4096)])
def test_a_file_that_a_power_cut_kept_from_the_disk_is_none_yet(
    tmp_path: Path, left: bytes
) -> None:
    """A broker that lost power just after its first start starts again."""
    file = ConfigFile(tmp_path / "x.json")
    file.path.write_bytes(left)
    file.back_up.write_bytes(left)
    assert not file.load(lambda _: None)


def test_a_document_of_ready_entries_is_the_document() -> None:
    table = {"T@G": {0: 1, 12: 2}, 'qu"ote@G': {}, "z@G": {3: 4}}
    whole = encode_config({"dataVersion": {"counter": 1}, "offsetTable": table, "other": {}})
    entries = [entry_text("offsetTable", key, value) for key, value in table.items()]
    made = document_bytes(
        {"dataVersion": {"counter": 1}}, (("offsetTable", entries), ("other", []))
    )
    assert made == whole


@pytest.mark.parametrize("name", ROCKSDB_TABLES)
def test_a_table_in_rocksdb_must_be_exported_first(tmp_path: Path, name: str) -> None:
    refuse_rocksdb(tmp_path)
    (tmp_path / name).mkdir()
    refuse_rocksdb(tmp_path)
    (tmp_path / name / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(ConfigFormatError, match=f"rocksDBConfigToJson .* -t {name} "):
        refuse_rocksdb(tmp_path)
    (tmp_path / ROCKSDB_TABLES[name]).write_text("{}")
    refuse_rocksdb(tmp_path)


def test_a_write_that_failed_leaves_its_place_to_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thread that comes late believes the disk has what it was to write."""
    file = ConfigFile(tmp_path / "x.json")
    earlier, later = file.turn(), file.turn()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _full)
        patch.setattr(os, "fsync", _full)
        with pytest.raises(OSError, match="No space left"):
            file.write(b'{"a":2}', sync=True, turn=later)
    file.write(b'{"a":1}', sync=True, turn=earlier)
    assert file.path.read_bytes() == b'{"a":1}'


def _full(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
