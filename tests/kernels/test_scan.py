"""Scan and find equal their references and the decoder, on good, broken and random bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.message import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    DispatchRequest,
    Fault,
    Invalid,
    encode_blank,
    read_dispatch_request,
)
from oberth.kernels import runtime
from oberth.kernels.arguments import COLUMN_NAMES, FIND_SUMMED, CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable, spread_hash
from oberth.kernels.scan import (
    find_record,
    reference_find_record,
    reference_scan,
    scan,
)

DELAYS = (0, 1000, 5000)

names = st.sampled_from(
    [
        b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_NUM", b"INNER_BASE", b"TAG", b"TAGS2",
        b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET", b"CLUSTER", b"", b"DELAX",
        b"UNIQ_KEZ", b"INNER_NUN", b"INNER_BASF", b"INNER_MULTI_DISPATCI", b"K\xc3\xa9",
        b"INNER_MULTI_QUEUE_OFFSEU",
    ]
)  # fmt: skip
values = st.one_of(
    st.sampled_from([b"", b"1", b"2", b"18", b"007", b"9223372036854775807", b"9223372036854775808",
                     b"2147483648", b"-1", b"+1", b" 1", b"polygenelubricants", b"a,b,%LMQ%c"]),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=20),
)  # fmt: skip
properties = st.one_of(
    st.lists(
        st.tuples(names, st.sampled_from([b"\x01", b"", b"\x01\x01"]), values).map(b"".join),
        max_size=6,
    ).map(b"\x02".join),
    st.lists(st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"x"])).map(b"".join),
)
record_options = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.one_of(
            st.sampled_from([b"T", b"TopicTest", b"SCHEDULE_TOPIC_XXXX", b"SCHEDULE_TOPIC_XXXY",
                             b"x" * 127, b"y" * 128, b"z" * 255]),
            st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace")[:127]),
        ),
        "magic": st.just(MAGIC_V2),
        "queue_id": st.integers(-(2**31), 2**31 - 1),
        "queue_offset": st.integers(-(2**63), 2**63 - 1),
        "body": st.binary(max_size=300),
        "properties": properties,
        "sys_flag": st.sampled_from([0, 0x10, 0x20, 0x30, 0xC4, 0x701]),
        "store_timestamp": st.integers(-(2**63) + 3, 2**63 - 1),
        "crc": st.integers(-(2**31), 2**31 - 1),
    },
)  # fmt: skip
logs = st.lists(record_options, max_size=8)


def same(data: bytes, **options: Any) -> tuple[Columns, TopicTable, Any]:
    """Scans with both, compares everything and gives back the kernel's answer."""
    capacity = options.pop("capacity", 16)
    chosen = options.pop("names", None)
    fast, slow = Columns(capacity, chosen), Columns(capacity, chosen)
    fast_topics, slow_topics = TopicTable(), TopicTable()
    assert runtime.native("scan") is not None
    result = scan(data, fast, fast_topics, **options)
    assert result == reference_scan(data, slow, slow_topics, **options)
    assert fast_topics.names == slow_topics.names
    assert fast.count == slow.count
    for row in range(fast.count):
        assert fast.row(row) == slow.row(row)
    return fast, fast_topics, result


@given(logs, st.integers(0, 2**62), st.sampled_from(list(CrcMode)), st.booleans(), st.data())
def test_scan_equals_reference_on_records(
    log: Callable[..., bytes],
    records: list[dict[str, Any]],
    base: int,
    crc: CrcMode,
    own: bool,
    draw: st.DataObject,
) -> None:
    data = log(records, base)
    tail = draw.draw(st.sampled_from([b"", bytes(100), encode_blank(50), b"\xda\xa3\x20\xa7" * 9]))
    data += tail
    stop = draw.draw(st.integers(0, len(data)))
    same(data, base=base, crc=crc, own_position=own, stop=stop, delays_ms=DELAYS)
    if crc is CrcMode.NONE:
        _, _, result = same(data, base=base, own_position=own, delays_ms=DELAYS)
        assert result.added == len(records)


@given(logs, st.data())
def test_scan_equals_reference_on_damage(
    log: Callable[..., bytes], records: list[dict[str, Any]], draw: st.DataObject
) -> None:
    data = bytearray(log(records))
    for _ in range(draw.draw(st.integers(1, 4))):
        if data:
            at = draw.draw(st.integers(0, len(data) - 1))
            data[at] = draw.draw(st.integers(0, 255))
    data = data[: draw.draw(st.integers(0, len(data)))]
    for crc in CrcMode:
        same(bytes(data), crc=crc, delays_ms=DELAYS)
        same(bytes(data), crc=crc, own_position=False, record_crc=True)
    start = draw.draw(st.integers(0, len(data)))
    for own in (True, False):
        for check in (True, False):
            options: dict[str, Any] = {"start": start, "own_position": own, "check_crc": check}
            assert find_record(bytes(data), **options) == reference_find_record(
                bytes(data), **options
            )


@given(st.binary(max_size=400), st.integers(-(2**63), 2**62))
def test_scan_equals_reference_on_noise(data: bytes, base: int) -> None:
    data = b"\x00\x00\x00\x5f\xda\xa3\x20\xa7" + data
    same(data, base=base, own_position=False)
    assert find_record(data, base=base) == reference_find_record(data, base=base)


@given(logs)
def test_scan_agrees_with_the_decoder(
    log: Callable[..., bytes], records: list[dict[str, Any]]
) -> None:
    data = log(records)
    columns, topics, result = same(data, crc=CrcMode.STOP, delays_ms=DELAYS)
    position = 0
    for row in range(columns.count):
        wanted = read_dispatch_request(
            data, position, len(data), 0, check_crc=True, delays_ms=DELAYS
        )
        assert isinstance(wanted, DispatchRequest)
        found = columns.row(row)
        for name in (
            "record_size", "tags_code", "queue_id", "queue_offset", "store_timestamp", "sys_flag",
            "prepared_transaction_offset", "commit_log_offset", "born_timestamp",
        ):  # fmt: skip
            assert found[name] == getattr(wanted, name), name
        assert topics.names[found["topic_id"]].decode("utf-8", "replace") == wanted.topic
        for key, column in ((b"KEYS", "keys"), (b"UNIQ_KEY", "uniq_key"), (b"TAGS", "tags")):
            start, size = found[f"{column}_at"], found[f"{column}_size"]
            assert wanted.find(key) == (data[start : start + size] if size >= 0 else None)
        position += found["record_size"]
    assert position == result.position
    if position < len(data):
        assert isinstance(
            read_dispatch_request(data, position, len(data), 0, check_crc=True), Invalid
        )


def test_full_columns_go_on_where_they_stopped(log: Callable[..., bytes]) -> None:
    data = log([{"body": bytes([n])} for n in range(10)])
    columns, topics = Columns(4), TopicTable()
    offsets: list[int] = []
    position = 0
    while True:
        columns.clear()
        result = scan(data, columns, topics, start=position)
        offsets += columns.commit_log_offset[: columns.count].tolist()
        position = result.position
        if result.end is not ScanEnd.FULL:
            break
    assert result.end is ScanEnd.STOP
    assert position == len(data)
    assert offsets == [n * 101 for n in range(10)]


def test_topic_table_grows_within_a_scan(log: Callable[..., bytes]) -> None:
    topics = [f"topic-{n}".encode() * (1 + n % 9) for n in range(2000)]
    data = log([{"topic": topic} for topic in topics] * 2)
    columns, table, _ = same(data, capacity=5000, names=["topic_id"])
    assert table.names == topics
    assert columns.topic_id[: columns.count].tolist() == list(range(2000)) * 2


def test_a_table_with_topics_is_used_by_the_kernel(log: Callable[..., bytes]) -> None:
    table = TopicTable([b"a", b"TopicTest"])
    columns = Columns(4, ["topic_id"])
    scan(log([{}, {"topic": b"new"}]), columns, table)
    assert columns.topic_id[:2].tolist() == [1, 2]
    assert table.merge(TopicTable([b"new", b"b"])) == [2, 3]


@pytest.mark.parametrize("names", [["body_at"], ["tags_code"], [], list(COLUMN_NAMES)])
def test_only_the_columns_asked_for(log: Callable[..., bytes], names: list[str]) -> None:
    columns, _, result = same(log([{"properties": b"TAGS\x01x\x02"}] * 3), names=names)
    assert result.added == 3
    assert [name for name in COLUMN_NAMES if name in columns] == [
        n for n in COLUMN_NAMES if n in names
    ]
    with pytest.raises(AttributeError, match="no column 'nonsense'"):
        columns.nonsense  # noqa: B018


def test_record_crc(log: Callable[..., bytes], record: Callable[..., bytes]) -> None:
    from zlib import crc32

    whole = record(0, properties=b"A\x01b\x02" + b"__CRC32#\x01" + b"0" * 10 + b"\x02")
    value = crc32(whole[:-20]) & 0x7FFFFFFF
    good = whole[:-20] + b"__CRC32#\x01" + f"{value:010d}"[::-1].encode() + b"\x02"
    _, _, result = same(good, record_crc=True, crc=CrcMode.STOP)
    assert result == (len(good), ScanEnd.STOP, 1)
    for at in (20, len(good) - 3):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        _, _, result = same(bad, record_crc=True, crc=CrcMode.STOP, own_position=False)
        assert result == (0, ScanEnd.RECORD_CRC, 0)
    _, _, result = same(record(0), record_crc=True, crc=CrcMode.STOP)
    assert result.end is ScanEnd.RECORD_CRC


def test_find_record_in_zeros_and_between_copies(log: Callable[..., bytes]) -> None:
    lead = 1 << 20
    data = bytes(lead) + log([{"body": b"x" * 500}] * 3, lead)
    size = (len(data) - lead) // 3
    assert find_record(data) == reference_find_record(data) == lead
    for start in (lead + 1, lead + 4, lead + size - 1, lead + size):
        assert find_record(data, start=start) == lead + size
    assert find_record(data, start=lead + 1, stop=lead + size) is None
    assert find_record(data, start=lead + 1, stop=lead + size + 1) == lead + size
    assert find_record(data, start=lead + 2 * size + 1) is None
    # Copies of other places are no records of this one.
    assert find_record(data, base=1) is None
    assert find_record(data, base=1, own_position=False) == lead


def test_find_record_skips_a_damaged_body(log: Callable[..., bytes]) -> None:
    data = bytearray(log([{"body": b"x" * 500}] * 3))
    size = len(data) // 3
    data[200] ^= 1
    assert find_record(bytes(data)) == size
    assert find_record(bytes(data), check_crc=False) == 0


def heads_within(size: int, at: int, crc: int) -> bytearray:
    """What looks like the beginnings of records, each with a body up to one common end."""
    stride, found = 44, bytearray(size)
    for place in range(0, size - 200, stride):
        body_at = place + 88
        struct.pack_into(">ii", found, place, size - place, MAGIC_V1)
        struct.pack_into(">i", found, place + 8, crc)
        struct.pack_into(">q", found, place + 28, at + place)
        struct.pack_into(">i", found, place + 84, size - 10 - body_at)
    found[size - 10 :] = b"\x07TopicTe" + b"\0\0"
    return found


def test_a_body_full_of_heads_costs_a_search_no_more_than_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that foresees where its message will lie can make one."""
    kernel = runtime.native("find")
    assert kernel is not None
    summed: list[int] = []

    def counted(arguments: array[int]) -> int:
        found = kernel(arguments)
        summed.append(arguments[FIND_SUMMED])
        return found

    monkeypatch.setattr(runtime, "native", lambda _: counted)
    # In a segment, too: what a head costs depends on no length but that of bodies.
    data = heads_within(1 << 18, 0, 1) + bytes(64 << 20)
    size = 1 << 18
    heads = (size - 200) // 44
    assert find_record(data) is None
    assert summed[0] < (8 << 20) + 2 * size + heads * 2 * 4096
    assert summed[0] < heads * size // 10


@pytest.mark.parametrize("place", [0, 44 * 700, 44 * 1400, 44 * 5000])
@pytest.mark.parametrize("start", [0, 1, 777])
def test_among_heads_the_one_that_is_a_record_is_found(place: int, start: int) -> None:
    """Its checksum is put together from those of stretches."""
    size = 1 << 18
    data = heads_within(size, 100, 1)
    crc = crc32(data[place + 88 : size - 10]) & CRC_MASK
    struct.pack_into(">i", data, place + 8, crc)
    found = find_record(data, base=100, start=start)
    assert found == (place if place >= start else None)


def test_read_only_and_writable_buffers(log: Callable[..., bytes]) -> None:
    data = log([{}])
    for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        columns = Columns(1)
        assert scan(buffer, columns, TopicTable()).added == 1


def test_ranges_are_checked() -> None:
    with pytest.raises(ValueError, match="scan from 3 to 9 of 4 bytes"):
        scan(b"1234", Columns(1), TopicTable(), start=3, stop=9)
    with pytest.raises(ValueError, match="search from 5 to 4 of 4 bytes"):
        find_record(b"1234", start=5)


@given(st.binary(max_size=40))
def test_topic_slots_hash_alike(name: bytes) -> None:
    """The table that Python lays out is the one that the kernel searches."""
    table = TopicTable([name])
    table.reserve(1, 1)
    slots = memoryview(table.slots).cast("i")
    assert slots[spread_hash(name) & table.slot_count - 1] == 1


def test_faults_of_records_are_ends_of_scans() -> None:
    assert {fault.name for fault in Fault} <= set(ScanEnd.__members__)
