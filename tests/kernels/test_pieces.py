"""Scanning by several threads: piece by piece the same records, in the same order, as one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.kernels.arguments import DISPATCH_COLUMNS, CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.index import IndexEntries, index_keys
from oberth.kernels.pieces import scan_pieces
from oberth.kernels.scan import scan


def rows_of(columns: Columns, topics: TopicTable) -> list[dict[str, Any]]:
    return [
        columns.row(row) | {"topic_id": topics.names[columns.topic_id[row]]}
        for row in range(columns.count)
    ]


def same(data: bytes, base: int = 0, **options: Any) -> None:
    whole, topics = Columns(4096, DISPATCH_COLUMNS), TopicTable()
    scan_options = {name: options[name] for name in ("start", "crc") if name in options}
    result = scan(data, whole, topics, base=base, **scan_options)
    entries = IndexEntries()
    index_keys(whole, topics, data, entries)
    found: list[dict[str, Any]] = []
    keys: list[tuple[int, int, int]] = []
    shared = TopicTable()
    position = options.get("start", 0)
    end = None
    for piece in scan_pieces(data, shared, base=base, entries=True, **options):
        assert end in (None, ScanEnd.STOP)
        assert piece.start == position
        assert piece.entries is not None
        found += rows_of(piece.columns, shared)
        keys += [piece.entries.entry(n) for n in range(piece.entries.count)]
        position, end = piece.position, piece.end
    assert (position, end) == result[:2]
    assert found == rows_of(whole, topics)
    assert keys == [entries.entry(n) for n in range(entries.count)]


records = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from([b"A", b"B", b"C", b"D"]),
            "body": st.one_of(st.binary(max_size=60), st.just(bytes(900))),
            "properties": st.sampled_from([b"", b"KEYS\x01a b", b"TAGS\x01t\x02UNIQ_KEY\x01u"]),
        }
    ),
    max_size=60,
)


@given(records, st.integers(1, 2000), st.integers(1, 3), st.integers(0, 2**40))
def test_pieces_are_the_whole(
    log: Callable[..., bytes],
    messages: list[dict[str, Any]],
    size: int,
    threads: int,
    base: int,
) -> None:
    data = log(messages, base)
    same(data, base, piece_size=size, threads=threads)
    same(data + bytes(500), base, piece_size=size, threads=threads)


@given(records, st.integers(1, 2000), st.integers(0, 5000), st.integers(0, 7))
def test_damage_ends_the_pieces(
    log: Callable[..., bytes], messages: list[dict[str, Any]], size: int, at: int, bit: int
) -> None:
    data = bytearray(log(messages))
    if at < len(data):
        data[at] ^= 1 << bit
    same(bytes(data), piece_size=size, crc=CrcMode.STOP)


@pytest.mark.parametrize("size", [100, 150, 300, 450])
def test_a_record_inside_a_body_is_none(
    log: Callable[..., bytes], record: Callable[..., bytes], size: int
) -> None:
    """A body may hold a whole record that names the very place where it lies."""
    first = record(0)
    inner = record(len(first) + 88, body=b"x" * 20)
    data = first + record(len(first), body=inner)
    data += record(len(data))
    same(data, piece_size=size)


def test_empty_and_wrong_ranges() -> None:
    (piece,) = scan_pieces(b"", TopicTable())
    assert (piece.start, piece.position, piece.end) == (0, 0, ScanEnd.STOP)
    with pytest.raises(ValueError, match="0 threads"):
        next(scan_pieces(b"", TopicTable(), threads=0))


def test_leaving_early_stops_the_threads(log: Callable[..., bytes]) -> None:
    data = log([{"body": bytes(1000)}] * 50)
    pieces = scan_pieces(data, TopicTable(), piece_size=2000)
    next(pieces)
    pieces.close()
