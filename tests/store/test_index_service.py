"""Golden index queries are answered as by RocketMQ; crashes of every kind are repaired."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.noted_lock import NotedLock

from oberth.errors import StoreCorruptError, StoreFullError
from oberth.formats.index_file import ENTRY, TAG_INDEX_TYPE, entry_position, file_size, key_hash
from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.kernels.index import IndexEntries
from oberth.store.files import MADV_RANDOM, OsFileSystem
from oberth.store.index_file import IndexFile
from oberth.store.index_service import IndexService, _Hashes

Golden = Callable[[str], Any]


def config_of(store: Any) -> MessageStoreConfig:
    line = "4.9" if store.rocketmq_version.startswith("4") else "5.x"
    return MessageStoreConfig.from_properties(
        {"storePathRootDir": str(store.root), "rocketmqLine": line, **store.config}
    )


def test_hashes_of_long_tags_are_not_kept() -> None:
    hashes = _Hashes(with_tags=True)
    for length in (1, 255, 256, 30_000):
        tag = "x" * length
        expected = key_hash(f"T#{TAG_INDEX_TYPE}", tag)
        assert hashes.of("T", f"TAGS\x01{tag}\x02".encode()) == [expected]
    assert [len(tag) for _, tag in hashes._tags] == [1, 255]


def test_golden_queries(golden_name: str, golden_store: Golden) -> None:
    store = golden_store(golden_name)
    # RocketMQ deletes unfinished files after a crash; there the facts are of the index it then
    # built anew, which the tests of recovery compare.
    if store.facts["abortFile"] or "noqueue" in golden_name:
        pytest.skip("these facts are of an index that was built during recovery")
    index = IndexService(OsFileSystem(), config_of(store))
    index.load()
    assert [
        {
            "file": file.name,
            "beginTimestamp": file.begin_timestamp,
            "endTimestamp": file.end_timestamp,
            "beginPhyOffset": file.begin_offset,
            "endPhyOffset": file.end_offset,
            "hashSlotCount": file.hash_slot_count,
            "indexCount": file.index_count,
        }
        for file in index.index_files
    ] == store.facts["indexFiles"]
    log_min = store.facts["commitLog"]["minOffset"]
    for query in store.facts["indexQueries"]:
        found = index.query_offsets(
            query["topic"],
            query["key"],
            query["maxNum"],
            query["begin"],
            query["end"],
            query.get("indexType"),
        )
        if "queryOffset" in query:
            assert found.offsets == query["queryOffset"], query
            if query["queryMessage"]:  # else the facts are 0: they are of queryMessage's result
                assert found.last_update_timestamp == query["indexLastUpdateTimestamp"]
                assert found.last_update_offset == query["indexLastUpdatePhyoffset"]
        else:  # typed: only queryMessage was asked, which sorts
            there = sorted(offset for offset in found.offsets if offset >= log_min)
            assert there == query["queryMessage"], query
    index.close()


def make(root: Path, *, slots: int = 20, entries: int = 30, **options: Any) -> IndexService:
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "maxHashSlotNum": str(slots),
            "maxIndexNum": str(entries),
        }
    )
    return IndexService(options.pop("files", None) or OsFileSystem(), config, **options)


def request(number: int, keys: int = 2) -> DispatchRequest:
    words = " ".join(f"k{number % 5}-{n}" for n in range(keys))
    properties = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01{words}\x02TAGS\x01T{number % 3}\x02"
    return DispatchRequest(
        "topic", 0, number * 300, 300, 1, 1_700_000_000_000 + number * 700, number, 0, 0,
        properties.encode() if keys else b"",
    )  # fmt: skip


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def built(root: Path, count: int, keys: Callable[[int], int] = lambda _n: 2) -> list[bytes]:
    """The files of an index of so many records, made without interruption."""
    index = make(root)
    for number in range(count):
        index.put(request(number, keys(number)))
    index.close()
    return contents(root)


def test_nothing_there(tmp_path: Path) -> None:
    index = make(tmp_path)
    assert index.load() == 0
    assert index.query_offsets("t", "k", 10, 0, 1 << 62).offsets == []
    index.publish()
    index.flush()
    index.close()
    assert list(tmp_path.iterdir()) == []


@given(topic=st.text(max_size=10), keys=st.lists(st.text(max_size=60), max_size=6), tags=st.text())
def test_hashes_are_those_of_the_format(topic: str, keys: list[str], tags: str) -> None:
    index = make(Path("/nowhere"))
    clean = [re.sub("[\x01\x02\ud800-\udfff ]", "", key) for key in keys]
    tags = re.sub("[\x01\x02\ud800-\udfff]", "", tags)
    uniq = clean.pop() if clean else ""
    text = f"xKEYS\x01no\x02UNIQ_KEY\x01{uniq}\x02KEYS\x01{' '.join(clean)}\x02TAGS\x01{tags}"
    dispatched = DispatchRequest(topic, 0, 0, 1, 0, 1, 0, 0, 0, text.encode())
    wanted = [key_hash(topic, key) for key in (uniq, *clean) if key]
    if tags:
        wanted.append(key_hash(topic, f"T#{tags}"))
    for _ in range(2):
        assert index.hashes_of(dispatched) == wanted
    dispatched.sys_flag = 12
    assert index.hashes_of(dispatched) == []


def test_files_follow_each_other_by_name_whatever_the_clock(tmp_path: Path) -> None:
    index = make(tmp_path, clock_ms=iter([10**12, 10**12, 10**12 - 5_000_000, 2 * 10**12]).__next__)
    for number in range(25):
        index.put(request(number))
    assert len(index.index_files) == 4
    names = [file.name for file in index.index_files]
    assert names == sorted(set(names))
    assert all(len(name) == 17 for name in names)
    for number in range(25):
        found = index.query_offsets("topic", f"{number:032X}", 10, 0, 1 << 62)
        assert found.offsets == [number * 300]
    index.close()


def test_full_files_are_flushed_and_said(tmp_path: Path) -> None:
    said: list[int] = []
    index = make(tmp_path, on_full=said.append)
    for number in range(20):
        index.put(request(number))
    ends = [file.end_timestamp for file in index.index_files[:-1]]
    index.close()
    assert sorted(said) == sorted(ends)
    assert ends


def test_a_record_is_indexed_once(tmp_path: Path) -> None:
    expected = built(tmp_path / "a", 20)
    index = make(tmp_path / "b")
    for number in range(20):
        for again in range(max(0, number - 3), number + 1):
            index.put(request(again))
    index.close()
    assert contents(tmp_path / "b") == expected


@pytest.mark.parametrize("count", [1, 6, 7, 8, 13, 20])
def test_a_clean_stop_goes_on_where_it_was(count: int, tmp_path: Path) -> None:
    expected = built(tmp_path / "a", 25)
    index = make(tmp_path / "b")
    for number in range(count):
        index.put(request(number))
    index.flush()
    counts = index.safe_counts()
    index.close()
    index = make(tmp_path / "b")
    assert index.load() == (count - 1) * 300 + 1
    index.close()
    # What a state file adds: records without keys behind the last indexed one.
    assert index.load(safe_counts=counts, safe_offset=9_999_999) == 9_999_999
    for number in range(25):
        index.put(request(number))
    index.close()
    assert contents(tmp_path / "b") == expected


def crashed(root: Path, count: int, keys: Callable[[int], int]) -> dict[str, int]:
    """An index whose process died: the header is as old as its last burst; what was flushed."""
    index = make(root)
    counts: dict[str, int] = {}
    for number in range(count):
        index.put(request(number, keys(number)))
        if number % 5 == 4:
            index.publish()
        if number == count // 2:
            index.flush()
            counts = index.safe_counts()
    for file in index.index_files:
        file.writable = False  # nothing is published while it is closed
    index.close()
    return counts


def go_on(root: Path, count: int, keys: Callable[[int], int], **how: Any) -> list[bytes]:
    index = make(root)
    start = index.load(clean=False, **how)
    for number in range(count):
        if number * 300 >= start:
            index.put(request(number, keys(number)))
    index.close()
    return contents(root)


@given(count=st.integers(1, 40), more=st.integers(0, 8), few=st.integers(0, 3), data=st.data())
@settings(max_examples=60)
def test_a_killed_process_loses_nothing(count: int, more: int, few: int, data: Any) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        keys = [data.draw(st.integers(0, few + 2)) for _ in range(count + more)]
        expected = built(root / "a", count + more, keys.__getitem__) if sum(keys) else []
        counts = crashed(root / "b", count, keys.__getitem__)
        how = {"safe_counts": counts} if data.draw(st.booleans()) else {}
        if sum(keys):
            assert go_on(root / "b", count + more, keys.__getitem__, **how) == expected
    finally:
        shutil.rmtree(root)


@given(data=st.data())
@settings(max_examples=60)
def test_a_power_cut_loses_nothing(data: Any) -> None:
    """Any pieces of what was not flushed are zero again: entries, slots, header."""
    root = Path(tempfile.mkdtemp())
    try:
        count = data.draw(st.integers(2, 40))
        expected = built(root / "a", count)
        counts = crashed(root / "b", count, lambda _n: 2)
        size = file_size(20, 30)
        names = sorted(path.name for path in (root / "b" / "index").iterdir())
        for name in names:
            path = root / "b" / "index" / name
            content = bytearray(path.read_bytes())
            safe = counts.get(name, 1)
            first = entry_position(safe, 20)
            if name in counts:
                # What was durable stays: the header with its slots, and these entries.
                cut = sorted(data.draw(st.lists(st.integers(first, size), max_size=4)))
            else:
                cut = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
            for start, stop in zip(cut[::2], cut[1::2], strict=False):
                content[start:stop] = bytes(stop - start)
            path.write_bytes(content)
        assert_same_answers(
            root, count, expected, go_on(root / "b", count, lambda _n: 2, safe_counts=counts)
        )
    finally:
        shutil.rmtree(root)


def assert_same_answers(root: Path, count: int, expected: list[bytes], found: list[bytes]) -> None:
    if found == expected:
        return
    # The begin of a file whose header was lost may differ; what it answers may not.
    index = make(root / "b")
    index.load()
    for number in range(count):
        answer = index.query_offsets("topic", f"{number:032X}", 10, 0, 1 << 62)
        assert answer.offsets == [number * 300]
    assert index.total_entries == count * 4
    index.close()


def test_entries_behind_the_end_of_the_log_are_cut(tmp_path: Path) -> None:
    for end in range(0, 25 * 300, 700):
        for clean in (True, False):
            root = tmp_path / f"{end}-{clean}"
            built(root, 25)
            index = make(root)
            index.load()
            counts = {file.name: file.index_count for file in index.index_files}
            index.load(clean=clean, log_end_offset=end, safe_counts=counts)
            for number in range(25):
                answer = index.query_offsets("topic", f"{number:032X}", 10, 0, 1 << 62)
                assert answer.offsets == ([number * 300] if number * 300 < end else [])
            for number in range(25):
                index.put(request(number))
            assert index.total_entries == 100
            index.close()


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(("position", "value"), [(16, 0xFF), (24, 0x7F), (32, 0x11), (36, 0x10)])
def test_a_damaged_header_is_found_and_the_file_built_again(
    which: int, position: int, value: int, tmp_path: Path
) -> None:
    expected = built(tmp_path, 20)
    path = sorted((tmp_path / "index").iterdir())[which]
    content = bytearray(path.read_bytes())
    content[position] = value
    path.write_bytes(content)
    index = make(tmp_path)
    start = index.load()
    requests = [request(number) for number in range(20)]
    if which < 2:
        (damage,) = index.damaged
        assert damage.name == path.name
        index.rebuild(
            damage, [r for r in requests if damage.start <= r.commit_log_offset <= damage.stop]
        )
    else:
        assert index.damaged == []
        assert start <= index.index_files[-1].end_offset + 1
    for each in requests:
        if each.commit_log_offset >= start:
            index.put(each)
    index.close()
    assert contents(tmp_path) == expected


def test_foreign_names_stay_and_wrong_sizes_are_refused(tmp_path: Path) -> None:
    built(tmp_path, 5)
    (tmp_path / "index" / "notes.txt").write_text("mine")
    (tmp_path / "index" / "20200101000000000").write_bytes(b"")
    index = make(tmp_path)
    index.load()
    assert len(index.index_files) == 1
    index.close()
    assert (tmp_path / "index" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "index" / "20200101000000000").exists()
    (tmp_path / "index" / "20990101000000000").write_bytes(bytes(700))
    with pytest.raises(StoreCorruptError, match="found 700 bytes, 720 are what"):
        make(tmp_path).load()


def test_expired_files_go_but_never_the_last(tmp_path: Path) -> None:
    built(tmp_path, 25)
    index = make(tmp_path)
    index.load()
    ends = [file.end_offset for file in index.index_files]
    assert len(ends) == 4
    assert index.delete_expired(ends[0]) == 0
    assert index.delete_expired(ends[0] + 1) == 1
    assert index.delete_expired(1 << 60) == 2
    assert len(contents(tmp_path)) == 1
    index.destroy()
    assert contents(tmp_path) == []
    index.put(request(0))
    assert index.total_entries == 4
    index.close()


def test_a_growing_index_can_be_read_by_another(tmp_path: Path) -> None:
    writer = make(tmp_path)
    reader = make(tmp_path, writable=False)
    reader.load()
    for number in range(20):
        writer.put(request(number))
        writer.publish()
        reader.refresh()
        answer = reader.query_offsets("topic", f"{number:032X}", 10, 0, 1 << 62)
        assert answer.offsets == [number * 300]
        assert answer.last_update_offset == number * 300
    reader.close()
    writer.close()


def test_expired_files_of_an_index_that_another_keeps(tmp_path: Path) -> None:
    writer = make(tmp_path)
    other = make(tmp_path)
    other.load()
    other.is_kept_elsewhere = True
    for number in range(25):
        writer.put(request(number))
        writer.publish()
    assert [file.name for file in other.index_files] == []
    assert other.delete_expired(writer.index_files[1].end_offset + 1) == 2
    assert [file.name for file in other.index_files] == [
        path.name for path in sorted((tmp_path / "index").iterdir())
    ]
    assert len(other.index_files) == 2
    other.close()
    writer.close()


def test_a_file_that_is_deleted_meanwhile_is_not_taken_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, 25)
    files = OsFileSystem()
    index = make(tmp_path, files=files)
    index.load()
    last = index.index_files[-1]
    noted = NotedLock(index._files_lock, "cleaning")
    monkeypatch.setattr(index, "_files_lock", noted)
    cleaning = threading.Thread(target=index.delete_expired, args=(1 << 60,), name="cleaning")
    remove = files.remove

    def list_files(path: str) -> list[str]:
        names = OsFileSystem().list(path)
        if not cleaning.ident:
            cleaning.start()
            assert noted.asked.wait(60)
        return names

    def look_and_remove(path: str) -> None:
        index.refresh()  # the file is off the list, and still there
        remove(path)

    monkeypatch.setattr(files, "list", list_files)
    monkeypatch.setattr(files, "remove", look_and_remove)
    index.refresh()
    cleaning.join(60)
    index.refresh()
    assert index.index_files == [last]
    index.close()


def test_times_limit_what_is_found(tmp_path: Path) -> None:
    built(tmp_path, 25)
    index = make(tmp_path)
    index.load()
    first = 1_700_000_000_000
    everything = index.query_offsets("topic", "k0-0", 64, 0, 1 << 62).offsets
    assert everything == [n * 300 for n in (20, 15, 10, 5, 0)]
    assert index.query_offsets("topic", "k0-0", 2, 0, 1 << 62).offsets == everything[:2]
    assert index.query_offsets("topic", "k0-0", 64, first + 8000, 1 << 62).offsets == [6000, 4500]
    assert index.query_offsets("topic", "k0-0", 64, 0, first + 2999).offsets == [0]
    assert index.query_offsets("topic", "T0", 64, 0, 1 << 62, "T").offsets != []
    assert index.query_offsets("topic", "T0", 64, 0, 1 << 62).offsets == []
    index.close()


@given(content=st.binary(min_size=0, max_size=720))
@settings(max_examples=100)
def test_any_bytes_are_read_without_harm(content: bytes) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        (root / "index").mkdir()
        for clean in (True, False):
            path = root / "index" / "20200101000000000"
            path.write_bytes(content.ljust(720, b"\0"))
            index = make(root)
            start = index.load(clean=clean, log_end_offset=1 << 40)
            assert start >= 0
            for key in ("a", "k0-0", f"{0:032X}"):
                index.query_offsets("topic", key, 64, -5, 1 << 62)
            for number in range(12):
                index.put(request(number))
            index.close()
    finally:
        shutil.rmtree(root)


@pytest.mark.skipif(MADV_RANDOM is None, reason="there are no hints here")
def test_nothing_is_made_around_the_keys_of_a_new_file(tmp_path: Path) -> None:
    """The first write of a page costs that page, not the stretch that the kernel would bring."""
    advised: list[tuple[int, int]] = []

    class Noting(OsFileSystem):
        def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Any:
            mapping = super().map(path, size, create=create, writable=writable)

            class Mapping:
                def __getattr__(self, name: str) -> Any:
                    return getattr(mapping, name)

                def advise(self, advice: int, start: int = 0) -> None:
                    advised.append((advice, start))
                    mapping.advise(advice, start)

            return Mapping()

    IndexFile(Noting(), str(tmp_path), "20260101000000000", 1000, 5000, create=True).close()
    assert advised == [(MADV_RANDOM, 0)]


def entries_of(records: int, keys: int, first: int = 0) -> IndexEntries:
    """Entries as the kernels give them, so many of each record."""
    made = IndexEntries()
    for number in range(first, first + records):
        for key in range(keys):
            made.hashes += (number * 7 + key).to_bytes(4, "little")
            made.offsets += (number * 300).to_bytes(8, "little")
            made.timestamps += (1_700_000_000_000 + number * 700).to_bytes(8, "little")
            made.count += 1
    return made


@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_file_that_was_cut_to_nothing_takes_records_that_lie_before_it(
    tmp_path: Path, in_bulk: bool
) -> None:
    file = IndexFile(OsFileSystem(), str(tmp_path), "20260101000000000", 16, 64, create=True)
    file.put_stream(entries_of(10, 1, 20), 0)
    file.cut(1)
    assert (file.begin_offset, file.end_offset, file.begin_timestamp) == (0, 0, 0)
    entries = entries_of(20, 1, 15)
    if in_bulk:
        assert file.put_stream(entries, 0) == 20
    else:
        for number in range(15, 35):
            file.put([number * 7], number * 300, 1_700_000_000_000 + number * 700)
    assert [file.entry(n).commit_log_offset for n in range(1, file.index_count)] == [
        number * 300 for number in range(15, 35)
    ]
    assert file.begin_offset == 15 * 300
    for number in range(15, 35):
        assert file.select(number * 7, 9, 0, 1 << 62) == [number * 300]
    assert file.trouble() is None
    file.close()


@pytest.mark.parametrize("room", range(7))
def test_a_stretch_that_the_disk_took_in_part_is_entered_once(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for fails in (False, True):
        index = make(tmp_path / str(fails))
        before = 29 - room  # of what fits into one file
        index.put_entries(entries_of(before, 1), (before - 1) * 300)
        stretch, last = entries_of(3, 3, before), (before + 2) * 300
        if fails:

            def full() -> None:
                raise StoreFullError("no room")

            with monkeypatch.context() as patched:
                patched.setattr(index, "_roll", full)
                with pytest.raises(StoreFullError):
                    index.put_entries(stretch, last)
        index.put_entries(stretch, last)
        assert index.indexed_offset == last
        index.close()
        found.append([each[40:] for each in contents(tmp_path / str(fails))])
    assert found[0] == found[1]


def test_nothing_is_kept_of_a_file_that_nobody_says_was_flushed(tmp_path: Path) -> None:
    """Its header reached the disk in a loss of power, the first entry did not."""
    expected = built(tmp_path / "a", 3)
    index = make(tmp_path / "b")
    index.put(request(0))
    index.close()
    (path,) = (tmp_path / "b" / "index").iterdir()
    data = bytearray(path.read_bytes())
    at = entry_position(1, 20)
    data[at : at + ENTRY.size] = bytes(ENTRY.size)
    path.write_bytes(data)
    assert go_on(tmp_path / "b", 3, lambda _: 2) == expected


def test_a_chain_that_leads_to_itself_is_left(tmp_path: Path) -> None:
    built(tmp_path, 6)
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    hash_ = key_hash("topic", "k0-0")
    entries = {number: entry_position(number, 20) for number in range(1, 30)}
    newest = max(n for n, at in entries.items() if ENTRY.unpack_from(data, at)[0] == hash_)
    ENTRY.pack_into(data, entries[newest], *ENTRY.unpack_from(data, entries[newest])[:3], newest)
    path.write_bytes(data)
    index = make(tmp_path)
    index.load()
    assert index.query_offsets("topic", "k0-0", 64, 0, 1 << 62).offsets == [5 * 300]
    index.close()
