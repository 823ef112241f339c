"""Gathered values: kernels equal references and the decoders of `formats`, and Arrow takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.consume_queue import UNIT
from oberth.formats.message import decode_record
from oberth.formats.message_id import offset_message_id
from oberth.kernels import gather as kernels
from oberth.kernels import runtime
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.gather import (
    Gathered,
    GatheredMaps,
    copy_records,
    gather,
    host_texts,
    message_ids,
    property_maps,
    reference_copy_records,
    reference_gather,
    reference_host_texts,
    reference_message_ids,
    reference_property_maps,
)
from oberth.kernels.scan import scan


def scanned(data: bytes, base: int = 0) -> Columns:
    columns = Columns(64)
    scan(data, columns, TopicTable(), base=base)
    return columns


def plain(gathered: Gathered | GatheredMaps) -> list[object]:
    return [
        bytes(part)
        if isinstance(part, (bytearray, memoryview))
        else plain(part)
        if isinstance(part, Gathered)
        else part
        for part in gathered
    ]


texts = st.one_of(
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=20),
    st.lists(
        st.sampled_from(
            [b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xed\xa0\x80", b"\xe0\x80", b"abcdefgh", b"\xc3"]
        )
    ).map(b"".join),
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "body": st.binary(max_size=50),
            "topic": st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
            "sys_flag": st.sampled_from([0, 0x10, 0x20, 0x30]),
            "properties": st.one_of(
                st.lists(
                    st.tuples(texts, st.sampled_from([b"\x01", b""]), texts).map(b"".join),
                    max_size=8,
                ).map(b"\x02".join),
                st.lists(
                    st.sampled_from([b"a\x01b", b"a\x01c", b"b\x01a\x01", b"\x01x", b"a\x01", b""])
                ).map(b"\x02".join),
            ),
        },
    ),
    max_size=20,
)


@given(messages)
def test_gather_equals_reference(log: Callable[..., bytes], records: list[dict[str, Any]]) -> None:
    data = log(records)
    columns = scanned(data)
    for name in ("body", "topic", "properties", "tags", "keys", "uniq_key"):
        for text in (True, False):
            assert runtime.native("gather") is not None
            found = gather(data, columns, name, text=text)
            assert plain(found) == plain(reference_gather(data, columns, name, text=text))
            if text:
                bytes(found.data).decode()
    position = 0
    for row, size in enumerate(columns.record_size[: columns.count]):
        record = decode_record(data, position)
        assert gather(data, columns, "body").value(row) == record.body
        position += size


@given(messages)
def test_maps_equal_reference(log: Callable[..., bytes], records: list[dict[str, Any]]) -> None:
    data = log(records)
    columns = scanned(data)
    found = property_maps(data, columns)
    assert plain(found) == plain(reference_property_maps(data, columns))
    position = 0
    for row, size in enumerate(columns.record_size[: columns.count]):
        assert found.value(row) == decode_record(data, position).properties
        position += size


@pytest.mark.parametrize("distinct", [1, 31, 32, 33, 40, 5000])
def test_many_and_repeated_properties(log: Callable[..., bytes], distinct: int) -> None:
    pieces = [b"%d\x01%d" % (n % distinct, n) for n in range(min(2 * distinct, 6000))]
    data = log([{"properties": b"\x02".join(pieces)}, {"properties": b"a\x01b"}] * 2)
    columns = scanned(data)
    found = property_maps(data, columns)
    assert plain(found) == plain(reference_property_maps(data, columns))
    assert len(found.value(0)) == distinct


@given(
    st.lists(
        st.sampled_from(
            [
                b"a\x01one\x02longer name\x01two\x02",
                b"a\x01another value\x02longer name\x01" + b"v" * 70 + b"\x02",
                b"a\x01one\x02longer name\x01two",
                b"a\x01\x02longer name\x01two\x02",
                b"a\x01one\x02longer names\x01two\x02",
                b"a\x01one\x02longer name",
                b"a\x01one\x02longer name\x01two\x02b\x011\x02",
                b"a\x01one\x02longer name\x01two\x02a\x01last\x02",
                b"longer name\x01two\x02a\x01one\x02",
                b"a\x01\xc3\x02longer name\x01\xff\x02",
                b"a\x01one\x02",
                b"",
            ]
        ),
        max_size=12,
    )
)
def test_maps_of_rows_with_the_names_of_the_one_before(properties: list[bytes]) -> None:
    data = b"".join(properties)
    columns = Columns(len(properties), ("properties_at", "properties_size"))
    at = 0
    for row, each in enumerate(properties):
        columns.properties_at[row] = at
        columns.properties_size[row] = len(each)
        at += len(each)
    columns.count = len(properties)
    assert runtime.native("property_maps") is not None
    assert plain(property_maps(data, columns)) == plain(reference_property_maps(data, columns))


def test_longest_broken_properties(log: Callable[..., bytes]) -> None:
    data = log([{"properties": b"\x80\x01" + b"\xff" * 65533}])
    columns = scanned(data)
    assert columns.count == 1
    found = property_maps(data, columns)
    assert found.value(0) == {"\ufffd": "\ufffd" * 65533}
    assert plain(found) == plain(reference_property_maps(data, columns))


@given(messages, st.integers(-(2**63), 2**62), st.integers(-(2**31), 2**31 - 1), st.data())
def test_hosts_and_ids_equal_reference(
    log: Callable[..., bytes],
    records: list[dict[str, Any]],
    base: int,
    port: int,
    draw: st.DataObject,
) -> None:
    data = bytearray(log(records, base))
    columns = scanned(bytes(data), base)
    for row in range(columns.count):
        if draw.draw(st.booleans()):
            start = columns.born_host_at[row]
            size = 20 if columns.sys_flag[row] & 0x10 else 8
            data[start : start + size - 4] = draw.draw(
                st.binary(min_size=size - 4, max_size=size - 4)
            )
            data[start + size - 4 : start + size] = port.to_bytes(4, "big", signed=True)
    for name in ("born_host", "store_host"):
        assert plain(host_texts(data, columns, name)) == plain(
            reference_host_texts(data, columns, name)
        )
    ids = message_ids(data, columns)
    assert plain(ids) == plain(reference_message_ids(data, columns))
    for row in range(columns.count):
        start = columns.store_host_at[row]
        host = bytes(data[start : start + (20 if columns.sys_flag[row] & 0x20 else 8)])
        wanted = offset_message_id(host, columns.commit_log_offset[row])
        assert ids.value(row) == wanted.encode()


def test_arrow_takes_the_memory_as_it_is(log: Callable[..., bytes]) -> None:
    pa = pytest.importorskip("pyarrow")
    data = log([{"properties": b"TAGS\x01a\x02KEYS\x01\xff"}, {}, {"properties": b"TAGS\x01b"}])
    columns = scanned(data)

    def strings(gathered: Gathered) -> Any:
        validity = None if gathered.validity is None else pa.py_buffer(gathered.validity)
        array = pa.StringArray.from_buffers(
            gathered.rows,
            pa.py_buffer(gathered.offsets),
            pa.py_buffer(gathered.data),
            validity,
            gathered.null_count,
        )
        array.validate(full=True)
        return array

    assert strings(gather(data, columns, "tags", text=True)).to_pylist() == ["a", None, "b"]
    maps = property_maps(data, columns)
    array = pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), maps.rows + 1, [None, pa.py_buffer(maps.offsets)]),
        strings(maps.keys),
        strings(maps.values),
    )
    array.validate(full=True)
    assert array.to_pylist() == [[("TAGS", "a"), ("KEYS", "\ufffd")], [], [("TAGS", "b")]]
    sizes = columns.array("record_size")
    assert pa.array(sizes).to_pylist() == columns.record_size[:3].tolist()


def test_two_gigabytes_are_refused(
    log: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GATHERED_SIZE_MAX", 7)
    data = log([{}, {}])
    for function in (gather, reference_gather):
        with pytest.raises(ValueError, match="values of body come to 8 bytes: allowed are 7"):
            function(data, scanned(data), "body")


@given(
    sizes=st.lists(st.integers(4, 40), min_size=1, max_size=12),
    chosen=st.lists(st.integers(0, 11), min_size=1, max_size=12),
    in_order=st.booleans(),
    start=st.sampled_from([0, 1 << 30]),
    cut=st.integers(0, 30),
    unit_change=st.tuples(st.integers(0, 11), st.sampled_from([0, 0, 0, -1, 1, -40, 1 << 40])),
    total_change=st.sampled_from([0, 0, 0, -1, 1]),
)
def test_records_of_units(
    sizes: list[int],
    chosen: list[int],
    in_order: bool,
    start: int,
    cut: int,
    unit_change: tuple[int, int],
    total_change: int,
) -> None:
    """Only where each unit says what lies there, and they are in the order of the log."""
    data = b"".join(size.to_bytes(4, "big") + bytes([size] * (size - 4)) for size in sizes)
    places = [sum(sizes[:number]) for number in range(len(sizes))]
    numbers = [number % len(sizes) for number in chosen]
    if in_order:
        numbers = sorted(set(numbers))
    rows = [(start + places[number], sizes[number], 7) for number in numbers]
    row, change = unit_change
    row %= len(rows)
    rows[row] = (rows[row][0] + change, rows[row][1], 7)
    units = b"".join(UNIT.pack(*each) for each in rows)
    readable = data[: len(data) - min(cut if cut > 20 else 0, len(data))]
    total = max(sum(size for _, size, _ in rows) + total_change, 0)
    assert runtime.available()
    copied = copy_records(units, readable, start, total)
    assert copied == reference_copy_records(units, readable, start, total)
    if in_order and not change and not total_change and readable == data:
        wanted = [data[places[number] :][: sizes[number]] for number in numbers]
        assert copied is not None
        assert bytes(copied) == b"".join(wanted)
    assert copied is None or len(copied) == total
