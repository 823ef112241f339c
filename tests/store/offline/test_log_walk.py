"""Reading a log whose writer is in the middle of a record: only whole ones are handed out."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.broker_conf import MessageStoreConfig
from oberth.formats.message import BLANK, encode_host
from oberth.kernels.scan import scan
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline import log_columns, log_walk
from oberth.store.offline.log_columns import ColumnReader, Rows
from oberth.store.offline.log_walk import LogEnd
from oberth.store.offline.reader import StoreReader

COUNT = 5
BODY_POSITION = 88
PROPERTIES = b"KEYS\x01a-key\x02TAGS\x01a-tag\x02"


def build(root: Path) -> Path:
    """A store of five messages; returns its CommitLog."""
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
    )
    host = encode_host("127.0.0.1", 10911)
    with MessageStore(config) as store:
        for number in range(COUNT):
            message = MessageExtBrokerInner(
                topic="Growing", body=b"%d" % number, properties_raw=PROPERTIES,
                born_timestamp=1, born_host=host, store_host=host,
            )  # fmt: skip
            assert store.put_message(message).ok
    (segment,) = (root / "commitlog").iterdir()
    return segment


def bodies(root: Path) -> list[bytes]:
    """What a reader sees."""
    with StoreReader(root) as reader:
        return [message.body for message in reader.messages()]


def scanned(root: Path) -> tuple[int, int]:
    """Records and end of the log, as verify and rebuild see it."""
    records = end = 0
    with StoreReader(root) as reader:
        for part in ColumnReader(reader.log, ("store_timestamp",)):
            if isinstance(part, Rows):
                records += part.columns.count
            else:
                assert isinstance(part, LogEnd), part
                end = part.offset
    return records, end


def bad_bodies(root: Path) -> int:
    """Records with a wrong checksum, as verify sees them."""
    with StoreReader(root) as reader:
        parts = [part for part in ColumnReader(reader.log, ()) if isinstance(part, Rows)]
        return sum(not part.all_ok for part in parts)


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, Path, int, int]:
    """Root, segment, and where the last record begins and ends."""
    segment = build(tmp_path)
    with StoreReader(tmp_path) as reader:
        last = list(reader.messages())[-1]
    return tmp_path, segment, last.commit_log_offset, last.commit_log_offset + last.record_size


def cut(segment: Path, position: int, end: int) -> None:
    """Zeroes what a writer has not copied yet."""
    with open(segment, "r+b") as file:
        file.seek(position)
        file.write(bytes(end - position))


@pytest.mark.parametrize("missing", [1, 2, 10, len(PROPERTIES)])
def test_a_record_without_its_end_is_not_seen_while_somebody_writes(
    log: tuple[Path, Path, int, int], missing: int
) -> None:
    root, segment, start, end = log
    cut(segment, end - missing, end)
    (root / "abort").touch()
    assert bodies(root) == [b"%d" % number for number in range(COUNT - 1)]
    with StoreReader(root) as reader:
        assert reader.log_end.offset == start
        assert reader.log_end.reason == log_walk.NOT_WHOLE
    assert StoreFiles(LocalStorage(), str(root), "b").log_end() == start
    assert scanned(root) == (COUNT - 1, start)


def test_a_closed_log_ends_as_it_is(log: tuple[Path, Path, int, int]) -> None:
    root, segment, _, end = log
    cut(segment, end - 1, end)
    assert len(bodies(root)) == COUNT
    assert StoreFiles(LocalStorage(), str(root), "b").log_end() == end
    assert scanned(root) == (COUNT, end)


def test_zeros_at_the_end_of_an_older_record_are_its_own(
    log: tuple[Path, Path, int, int],
) -> None:
    root, segment, start, end = log
    cut(segment, start - 1, start)
    (root / "abort").touch()
    assert len(bodies(root)) == COUNT
    assert StoreFiles(LocalStorage(), str(root), "b").log_end() == end
    assert scanned(root) == (COUNT, end)


def test_what_was_held_back_is_read_again_when_something_follows(
    log: tuple[Path, Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, segment, start, _ = log
    whole = segment.read_bytes()
    cut(segment, start - 10, len(whole))
    (root / "abort").touch()
    is_newest = log_walk._is_newest

    def finish_first(*arguments: Any) -> bool:
        segment.write_bytes(whole)
        return is_newest(*arguments)

    monkeypatch.setattr(log_walk, "_is_newest", finish_first)
    with StoreReader(root) as reader:
        found = [(message.body, message.properties_raw) for message in reader.messages()]
    assert found == [(b"%d" % number, found[0][1]) for number in range(COUNT)]


def test_a_size_that_comes_late_does_not_show_a_record_twice(
    log: tuple[Path, Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _, start, _ = log

    class Late:
        """The writer stores the last record's size after it was looked at."""

        size = BLANK.size

        @staticmethod
        def unpack_from(buffer: Any, position: int) -> tuple[int, int]:
            size, magic = struct.unpack_from(">ii", buffer, position)
            return (0 if position == start else size), magic

    monkeypatch.setattr(log_walk, "BLANK", Late)
    assert bodies(root) == [b"%d" % number for number in range(COUNT)]


def torn(log: tuple[Path, Path, int, int], *, followed: bool) -> tuple[Path, Path, bytes]:
    """The last record but one lacks its body; ``followed``: the last one is there."""
    root, segment, start, end = log
    (root / "abort").touch()
    whole = segment.read_bytes()
    before = start - (end - start)
    cut(segment, before + BODY_POSITION, before + BODY_POSITION + 1)
    if not followed:
        cut(segment, start, end)
    return root, segment, whole


def put_right(segment: Path, whole: bytes) -> None:
    with open(segment, "r+b") as file:
        file.write(whole)


def test_what_ended_the_log_is_read_again_when_something_follows(
    log: tuple[Path, Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, segment, whole = torn(log, followed=False)
    search = log_walk.next_valid
    searches = []

    def finish_second(*args: Any, **options: Any) -> tuple[int, int] | None:
        searches.append(args)
        if len(searches) == 2:
            put_right(segment, whole)
        return search(*args, **options)

    monkeypatch.setattr(log_columns, "next_valid", finish_second)
    assert scanned(root) == (COUNT, log[3])
    assert len(searches) >= 2


def test_a_body_that_comes_while_it_is_read_is_read_again(
    log: tuple[Path, Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, segment, whole = torn(log, followed=True)

    def finish(*args: Any, **options: Any) -> Any:
        result = scan(*args, **options)
        put_right(segment, whole)
        return result

    monkeypatch.setattr(log_columns, "scan", finish)
    assert scanned(root) == (COUNT, log[3])
    assert bad_bodies(root) == 0


def test_a_body_that_stays_wrong_is_handed_out_as_such(log: tuple[Path, Path, int, int]) -> None:
    root, _, _ = torn(log, followed=True)
    with StoreReader(root) as reader:
        kinds = [type(item) for item in log_walk.walk(reader.log)]
    assert kinds.count(log_walk.DamagedRecord) == 1
    assert scanned(root) == (COUNT, log[3])
    assert bad_bodies(root) == 1


def test_a_body_that_comes_while_it_is_walked_over_is_looked_at_again(
    log: tuple[Path, Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, segment, whole = torn(log, followed=True)
    look = log_walk.item_at

    def finish(opened: Any, position: int) -> Any:
        item, behind = look(opened, position)
        if isinstance(item, log_walk.DamagedRecord):
            put_right(segment, whole)
        return item, behind

    monkeypatch.setattr(log_walk, "item_at", finish)
    assert bodies(root) == [b"%d" % number for number in range(COUNT)]
