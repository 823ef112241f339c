"""Index entries and files: kernels equal references, and both RocketMQ's golden index files."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats import index_file
from oberth.formats.index_file import ENTRY, HEADER, key_hash
from oberth.kernels import runtime
from oberth.kernels.arguments import DISPATCH_COLUMNS, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.index import (
    IndexEntries,
    index_header,
    index_keys,
    put_entries,
    reference_index_keys,
    reference_put_entries,
    reference_relink,
    relink,
    start_file,
)
from oberth.kernels.scan import scan


def listed(entries: IndexEntries) -> list[tuple[int, int, int]]:
    return [entries.entry(n) for n in range(entries.count)]


def keys_of(data: bytes, *, base: int = 0, index_tags: bool = False) -> IndexEntries:
    """Entries by both, compared; the kernel's answer."""
    columns, topics = Columns(4096, DISPATCH_COLUMNS), TopicTable()
    scan(data, columns, topics, base=base)
    fast, slow = IndexEntries(), IndexEntries()
    assert runtime.native("index_keys") is not None
    index_keys(columns, topics, data, fast, index_tags=index_tags)
    reference_index_keys(columns, topics, data, slow, index_tags=index_tags)
    assert listed(fast) == listed(slow)
    return fast


values = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"a", b" ", b"  ", "ключ".encode(), b"\xf0\x9f", b"AaAa"])).map(
        b"".join
    ),
).map(lambda raw: raw.replace(b"\x01", b"").replace(b"\x02", b""))
records = st.lists(
    st.builds(
        lambda topic, flag, parts: {
            "topic": topic,
            "sys_flag": flag,
            "properties": b"\x02".join(name + b"\x01" + value for name, value in parts),
        },
        st.sampled_from([b"T", "тема".encode(), b"", b"\xff\xfe"]),
        st.sampled_from([0, 4, 8, 12]),
        st.lists(st.tuples(st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"X"]), values)),
    ),
    max_size=12,
)


@given(records, st.booleans())
def test_keys_equal_reference(
    log: Callable[..., bytes], messages: list[dict[str, Any]], tags: bool
) -> None:
    keys_of(log(messages), index_tags=tags)


def test_keys_in_their_order(log: Callable[..., bytes]) -> None:
    data = log(
        [
            {"properties": b"TAGS\x01t\x02KEYS\x01 a  b \x02UNIQ_KEY\x01u"},
            {"properties": b"KEYS\x01a", "sys_flag": 12},
            {"properties": b"KEYS\x01polygenelubricants"},
        ]
    )
    hashes = [entry[0] for entry in listed(keys_of(data, index_tags=True))]
    names = ["u", "a", "b", "T#t", "polygenelubricants"]
    assert hashes == [key_hash("TopicTest", name) for name in names]


def test_more_keys_than_expected_make_room(log: Callable[..., bytes]) -> None:
    data = log([{"properties": b"KEYS\x01" + b"k " * 16000}])
    assert keys_of(data).count == 16000


def stream(entries: list[tuple[int, int, int]]) -> IndexEntries:
    made = IndexEntries()
    for entry in entries:
        made.append(*entry)
    return made


entry_lists = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),
        st.integers(0, 60),
        st.one_of(st.integers(0, 20_000), st.integers(-(2**63), 2**63 - 1)),
    ),
    max_size=40,
)


@given(entry_lists, st.integers(1, 7), st.integers(1, 12), st.binary(max_size=200), st.data())
def test_put_equals_reference(
    entries: list[tuple[int, int, int]],
    slots: int,
    places: int,
    noise: bytes,
    draw: st.DataObject,
) -> None:
    """On fresh, rolled and damaged files alike."""
    made = stream(entries)
    size = index_file.file_size(slots, places)
    if draw.draw(st.booleans()):
        noise = b""
    fast = bytearray(noise[:size].ljust(size, b"\0"))
    slow = bytearray(fast)
    start = draw.draw(st.integers(0, len(entries)))
    assert put_entries(fast, slots, places, made, start) == reference_put_entries(
        slow, slots, places, made, start
    )
    assert fast == slow
    assert relink(fast, slots, places) == reference_relink(slow, slots, places)
    assert fast == slow


def test_rolled_file_keeps_the_quirk_of_its_first_entry() -> None:
    entries = stream([(n, n * 100, 1_000_000 + n * 2000) for n in range(5)])
    size = index_file.file_size(3, 4)
    first, second = bytearray(size), bytearray(size)
    assert put_entries(first, 3, 4, entries) == 3
    start_file(second, index_header(first))
    assert put_entries(second, 3, 4, entries, 3) == 5
    assert index_header(second) == (1_006_000, 1_008_000, 300, 400, 2, 3)
    difference = ENTRY.unpack_from(second, index_file.entry_position(1, 3))[2]
    assert difference == 2  # against the end of the file before


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="index file of 10 bytes: 3 slots"):
        put_entries(bytearray(10), 3, 4, IndexEntries())
    with pytest.raises(ValueError, match="entries 2 to 1 of 0"):
        put_entries(bytearray(index_file.file_size(3, 4)), 3, 4, IndexEntries(), 2, 1)
    with pytest.raises(ValueError, match="index file of 40 bytes"):
        relink(bytearray(40), 3, 4)


def test_default_size_touches_only_what_is_used() -> None:
    """420 MB of address space, of which some pages are used."""
    slots, places = index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES
    file = memoryview(mmap.mmap(-1, index_file.file_size()))
    entries = stream([(n * 7919, n, 1000 + n) for n in range(1000)])
    assert put_entries(file, slots, places, entries) == 1000
    assert index_header(file).next_entry == 1001
    (entry,) = index_file.SLOT.unpack_from(file, index_file.slot_position(7919 * 5 % slots))
    assert ENTRY.unpack_from(file, index_file.entry_position(entry, slots))[:2] == (7919 * 5, 5)


def segments(store: Any) -> list[tuple[int, bytes]]:
    places = store.config.get("storePathCommitLog", str(store.root / "commitlog")).split(",")
    paths = [path for place in places for path in Path(place).iterdir() if path.name.isdigit()]
    found = []
    for path in sorted(paths, key=lambda path: path.name):
        with path.open("rb") as file:
            found.append((int(path.name), file.read(4 << 20)))
    return found


def rebuilt(store: Any) -> IndexEntries:
    entries, topics = IndexEntries(), TopicTable()
    for base, data in segments(store):
        columns = Columns(4096, DISPATCH_COLUMNS)
        result = scan(data, columns, topics, base=base)
        index_keys(
            columns, topics, data, entries, index_tags=store.rocketmq_version.startswith("5")
        )
        if result.end is not ScanEnd.BLANK:
            break
    return entries


def test_golden_index(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    """Index files built from the log alone are byte for byte those that RocketMQ wrote."""
    store = golden_pristine(golden_name)
    folder = store.root / "index"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    if not paths:
        pytest.skip("no index files")
    if golden_name.startswith(("cleaned", "torn-tail")):
        pytest.skip("its index has entries of records that the log has no more")
    slots = int(store.config.get("maxHashSlotNum", index_file.DEFAULT_SLOTS))
    places = int(store.config.get("maxIndexNum", index_file.DEFAULT_ENTRIES))
    entries = rebuilt(store)
    with paths[0].open("rb") as file:
        header = HEADER.unpack(file.read(40))
    # Where the front of the log was deleted, the first file tells of records that are gone.
    first = next(n for n in range(entries.count) if entries.entry(n)[1] >= header[2])
    previous = None
    for number, path in enumerate(paths):
        fast = memoryview(mmap.mmap(-1, index_file.file_size(slots, places)))
        start_file(fast, previous)
        end = put_entries(fast, slots, places, entries, first)
        if places < 10_000:
            slow = bytearray(len(fast))
            start_file(slow, previous)
            assert reference_put_entries(slow, slots, places, entries, first) == end
            assert fast == slow
        first, previous = end, index_header(fast)
        with path.open("rb") as file:
            used = index_file.entry_position(min(previous.next_entry, places), slots)
            assert file.read(used) == fast[:used], (number, path)
