"""Columns and topic tables: what they hold, refuse, and how topics are renumbered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.index_file import key_hash_prefix
from oberth.kernels import columns as columns_module
from oberth.kernels import runtime
from oberth.kernels.arguments import COLUMN_NAMES, COLUMNS, DISPATCH_COLUMNS, PROPERTY_COLUMNS
from oberth.kernels.columns import (
    Columns,
    TopicTable,
    reference_place_topics,
    reference_renumber,
    renumber,
    spread_hash,
)
from oberth.kernels.scan import scan


def test_columns_are_memory_of_their_own() -> None:
    columns = Columns(3)
    for number, name in enumerate(COLUMN_NAMES):
        view = getattr(columns, name)
        assert len(view) == 3
        for row in range(3):
            view[row] = number * 10 + row
    for number, name in enumerate(COLUMN_NAMES):
        assert getattr(columns, name).tolist() == [number * 10 + row for row in range(3)]
        columns.count = 2
        assert columns.array(name).tolist() == [number * 10, number * 10 + 1]
    assert columns.row(1)["queue_offset"] == columns.queue_offset[1]


def test_numpy_views_have_the_columns_types() -> None:
    columns = Columns(1)
    kinds = {name: columns.array(name).dtype.str for name in COLUMN_NAMES}
    assert kinds == {name: "<i8" if code == "q" else "<i4" for name, code in COLUMNS}


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"columns \['body'\], capacity 1: allowed are"):
        Columns(1, ["body"])
    with pytest.raises(ValueError, match="capacity -1"):
        Columns(-1)
    assert set(DISPATCH_COLUMNS) | PROPERTY_COLUMNS <= set(COLUMN_NAMES)


def test_topics_are_numbered_once() -> None:
    table = TopicTable([b"a", b"b", b"a"])
    assert table.names == [b"a", b"b"]
    assert table.find(b"b") == 1
    assert table.find(b"c") is None
    assert table.hash_prefixes().tolist() == [key_hash_prefix("a"), key_hash_prefix("b")]
    table.intern("ц".encode())
    assert table.hash_prefixes()[2] == key_hash_prefix("ц")


def test_new_topics_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may make topics: those that are known are not gone through again for each."""
    hashed = 0

    def counted(name: bytes) -> int:
        nonlocal hashed
        hashed += 1
        return spread_hash(name)

    monkeypatch.setattr(columns_module, "spread_hash", counted)
    table = TopicTable()
    for n in range(20_000):
        table.intern(b"topic-%d" % n)
        table.reserve(64, 4096)
    assert hashed == 20_000
    text = bytes(table.text[: table.text_used])
    assert text == b"".join(table.names)
    alone = bytearray(len(table.slots))
    reference_place_topics(table.names, alone)
    numbers = memoryview(table.slots).cast("i"), memoryview(alone).cast("i")
    assert sorted(numbers[0]) == sorted(numbers[1])
    mask = table.slot_count - 1
    for number, name in enumerate(table.names):
        slot = spread_hash(name) & mask
        while numbers[0][slot] != number + 1:
            assert numbers[0][slot], "a search ends at an empty slot"
            slot = slot + 1 & mask


@given(st.lists(st.binary(max_size=30), unique=True, max_size=200))
def test_topics_are_placed_alike(names: list[bytes]) -> None:
    table = TopicTable(names)
    table.reserve(1, 1)
    table.reserve(4 * len(names) + 64, 1)  # the kernel places them anew
    slots = bytearray(len(table.slots))
    reference_place_topics(names, slots)
    assert table.slots == slots


def test_who_does_not_know_the_seed_cannot_have_names_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "HASH_SEED", 0)
    names = [b"topic-%016x" % n for n in range(200_000)]
    met = [name for name in names if spread_hash(name) & 1023 == 5]
    assert len(met) > 100
    # Words that differ in their topmost bits only, which a plain product keeps to itself.
    pairs = [(b"abcdefg0", b"abcdefgp"), (b"0bcd0fg0", b"0bcdpfgp")]
    ends = [b"".join(each) for each in itertools.product(*[pairs[n % 2] for n in range(8)])]
    for seed in (1, 2**63, 0x0123456789ABCDEF):
        monkeypatch.setattr(runtime, "HASH_SEED", seed)
        for names in (met, ends):
            assert len({spread_hash(name) & 1023 for name in names}) > len(names) // 2


@given(st.lists(st.sampled_from([b"a", b"b", b"c"])), st.lists(st.sampled_from([b"b", b"d"])))
def test_merged_tables_keep_their_meaning(
    log: Callable[..., bytes], topics: list[bytes], others: list[bytes]
) -> None:
    shared = TopicTable(others)
    table = TopicTable()
    fast, slow = Columns(16384, ["topic_id"]), Columns(16384, ["topic_id"])
    data = log([{"topic": topic} for topic in topics])
    for columns in (fast, slow):
        scan(data, columns, table)
    numbers = shared.merge(table)
    assert runtime.native("renumber") is not None
    renumber(fast, numbers)
    reference_renumber(slow, numbers)
    assert fast.topic_id.tolist() == slow.topic_id.tolist()
    assert [shared.names[n] for n in fast.topic_id[: fast.count]] == topics
