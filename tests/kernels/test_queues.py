"""Units built from columns: kernel equals reference, and both equal RocketMQ's golden queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.consume_queue import UNIT
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.kernels import runtime
from oberth.kernels.arguments import DISPATCH_COLUMNS, QueueAnomaly, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.queues import (
    BuiltUnits,
    QueueEnd,
    QueueTable,
    build_units,
    reference_build_units,
)
from oberth.kernels.scan import scan

SYSTEM = ("RMQ_SYS", "SCHEDULE")
Build = Callable[..., BuiltUnits]


def scanned(
    data: bytes, topics: TopicTable | None = None, capacity: int = 4096, base: int = 0
) -> tuple[Columns, TopicTable]:
    topics = TopicTable() if topics is None else topics
    columns = Columns(capacity, DISPATCH_COLUMNS)
    scan(data, columns, topics, base=base)
    return columns, topics


def plain(built: BuiltUnits) -> Any:
    runs = [run._replace(units=memoryview(bytes(run.units))) for run in built.runs]
    return (
        sorted((*run[:5], bytes(run.units), *run[6:]) for run in runs),
        built.anomalies,
        built[2],
    )


def same(
    data: bytes,
    *,
    batch_topics: tuple[bytes, ...] = (),
    ends: Callable[[bytes, int], QueueEnd | None] | None = None,
    **options: Any,
) -> BuiltUnits:
    """Builds with both, in one piece and in two, compares and gives back the kernel's answer."""
    assert runtime.native("queues") is not None
    columns, topics = scanned(data)
    fast = QueueTable(topics, batch_topics, ends)
    built = build_units(columns, fast, data, **options)
    columns, topics = scanned(data)
    slow = QueueTable(topics, batch_topics, ends)
    wanted = reference_build_units(columns, slow, data, **options)
    assert plain(built) == plain(wanted)
    assert list(fast) == list(slow)
    assert fast.topics.names == slow.topics.names
    return built


queue_records = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([b"A", b"B", b"%RETRY%g", b"rmq_sys_x", b"%LMQ%a"]),
        "queue_id": st.integers(-1, 2),
        "queue_offset": st.one_of(
            st.integers(0, 6), st.sampled_from([-1, 2**63 - 1, 2**40, 2**31])
        ),
        "sys_flag": st.sampled_from([0, 0, 0, 4, 8, 12, 0x80]),
        "properties": st.sampled_from(
            [
                b"", b"", b"TAGS\x01t", b"INNER_NUM\x013\x02INNER_BASE\x014",
                b"INNER_NUM\x0170000\x02INNER_BASE\x014",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,1",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a,,C,\x02INNER_MULTI_QUEUE_OFFSET\x010,1,2,,",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a,x/y\x02INNER_MULTI_QUEUE_OFFSET\x013,1",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,x",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010",
                b"INNER_MULTI_DISPATCH\x01,,\x02INNER_MULTI_QUEUE_OFFSET\x01,",
            ]
        ),
    }
)  # fmt: skip


@given(
    st.lists(queue_records, max_size=40),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (b"A",), (b"A", b"%LMQ%a")]),
    st.none() | st.dictionaries(
        st.tuples(st.sampled_from([b"A", b"B", b"%LMQ%a", b"C"]), st.integers(0, 2)),
        st.builds(QueueEnd, st.sampled_from([-1, 0, 1, 5]), st.sampled_from([-1, 0, 300]),
                  st.booleans()),
    ),
)  # fmt: skip
def test_kernel_equals_reference(
    log: Callable[..., bytes],
    records: list[dict[str, Any]],
    multi: bool,
    restart: bool,
    batch: tuple[bytes, ...],
    there: dict[tuple[bytes, int], QueueEnd] | None,
) -> None:
    data = log(records)
    ends = None if there is None else lambda *queue: there.get(queue)
    same(
        data, multi_dispatch=multi, restart=restart, gap_units_max=100, batch_topics=batch,
        ends=ends,
    )  # fmt: skip


def test_the_queues_of_a_piece_are_asked_for_together(log: Callable[..., bytes]) -> None:
    """Each once, however many there are: the kernel stops a handful of times."""
    rows = [{"queue_id": n, "topic": b"T%d" % (n % 200), "queue_offset": 7} for n in range(1000)]
    asked: list[tuple[bytes, int]] = []

    def ends(*queue: Any) -> QueueEnd:
        asked.append(queue)
        return QueueEnd(7, 0, is_batch=False)

    columns, topics = scanned(log(rows))
    built = build_units(columns, QueueTable(topics, (), ends))
    assert built.anomaly_count == 0
    assert [run.first for run in built.runs] == [7] * 1000
    assert len(asked) == len(set(asked)) == 1000


@given(st.lists(queue_records, max_size=40), st.integers(0, 40))
def test_pieces_and_repetitions_give_the_same_queues(
    log: Callable[..., bytes], records: list[dict[str, Any]], cut: int
) -> None:
    """What was built already is passed over, so a log may be gone through again."""
    records = [options | {"queue_offset": 0} for options in records]
    ends: dict[tuple[bytes, int], int] = {}
    for options in records:
        key = (options["topic"], options["queue_id"])
        options["queue_offset"] = ends.get(key, 0)
        ends[key] = options["queue_offset"] + (not options["sys_flag"] & 4)
    data = log(records)
    whole, topics = scanned(data)
    wanted = build_units(whole, QueueTable(topics), data)
    assert wanted.anomaly_count == 0
    columns, topics = scanned(data, capacity=cut)
    table = QueueTable(topics)
    first = build_units(columns, table, data)
    again, _ = scanned(data, topics)
    second = build_units(again, table, data)
    queues: dict[tuple[bytes, int], bytes] = {}
    for run in [*first.runs, *second.runs]:
        key = (run.topic, run.queue_id)
        assert run.first * 20 == len(queues.get(key, b""))
        queues[key] = queues.get(key, b"") + bytes(run.units)
    assert queues == {(run.topic, run.queue_id): bytes(run.units) for run in wanted.runs}


def ends(table: QueueTable) -> dict[tuple[bytes, int], tuple[int, int]]:
    return {
        (table.topics.names[state.topic_id], state.queue_id): (state.next_ordinal, state.max_offset)
        for state in table
    }


def test_many_queues_grow_the_table(log: Callable[..., bytes]) -> None:
    built = same(log([{"queue_id": n, "topic": b"T%d" % (n % 200)} for n in range(1000)]))
    assert len(built.runs) == 1000


def ordinals(built: BuiltUnits) -> list[tuple[int, int, int]]:
    return [(run.first, run.unit_count, run.skipped) for run in built.runs]


def test_a_wrong_number_costs_nothing(log: Callable[..., bytes]) -> None:
    """One flipped bit in a queue offset: its neighbours say where the record belongs."""
    for wrong in (0, 6, 2**40):
        numbers = [0, 1, wrong, 3, 4]
        built = same(log([{"queue_offset": n} for n in numbers]))
        assert ordinals(built) == [(0, 5, 0)]
        assert [anomaly.what for anomaly in built.anomalies] == [QueueAnomaly.MISNUMBERED]


def test_a_record_of_another_queue_is_left_out(log: Callable[..., bytes]) -> None:
    built = same(log([{"queue_offset": n} for n in (0, 1, 9, 2, 3)]))
    assert ordinals(built) == [(0, 4, 0)]
    assert [anomaly.what for anomaly in built.anomalies] == [QueueAnomaly.INTRUDER]


def test_a_hole_in_the_log_is_a_hole_in_the_queue(log: Callable[..., bytes]) -> None:
    built = same(log([{"queue_offset": n} for n in (5, 6, 10, 11)]))
    assert ordinals(built) == [(5, 2, 0), (10, 2, 3)]
    built = same(log([{"queue_offset": n} for n in (0, 200, 201)]), gap_units_max=100)
    assert ordinals(built) == [(0, 1, 0)]
    assert built.anomaly_count == 2


@given(
    st.lists(queue_records, max_size=30),
    st.integers(0, 30),
    st.integers(0, 3000),
    st.booleans(),
    st.sampled_from([build_units, reference_build_units]),
)
def test_units_do_not_depend_on_where_a_log_was_cut(
    log: Callable[..., bytes],
    records: list[dict[str, Any]],
    cut: int,
    log_start: int,
    multi: bool,
    build: Build,
) -> None:
    """What the next record of a queue shows is asked for where it lies behind the cut."""
    data = log(records, base=3000)
    options = {"restart": True, "multi_dispatch": multi, "log_start": log_start}
    whole, topics = scanned(data, base=3000)
    once = QueueTable(topics)
    wanted = build(whole, once, data, **options)

    def behind(topic: bytes, queue_id: int, near: int) -> int:
        for options in records[cut:][:near]:
            is_one = (options["topic"], options["queue_id"]) == (topic, queue_id)
            if is_one and options["sys_flag"] & 12 in (0, 8):
                return int(options["queue_offset"])
        return -1

    columns, topics = scanned(data, capacity=cut, base=3000)
    table = QueueTable(topics)
    first = build(columns, table, data, behind=behind, **options)
    rest, _ = scanned(data, topics, base=3000)
    second = build(rest, table, data, first_row=columns.count, **options)
    assert [*first.anomalies, *second.anomalies] == wanted.anomalies
    assert first.anomaly_count + second.anomaly_count == wanted.anomaly_count
    assert ends(table) == ends(once)


def test_a_topic_made_again(log: Callable[..., bytes]) -> None:
    data = log([{"queue_offset": n} for n in (0, 1, 2, 0, 1)])
    assert ordinals(same(data)) == [(0, 3, 0)]
    built = same(data, restart=True)
    assert ordinals(built) == [(0, 3, 0), (0, 2, 0)]
    assert [run.restarts for run in built.runs] == [False, True]


def test_a_topic_of_one_message_made_again(log: Callable[..., bytes]) -> None:
    data = log([{"queue_offset": n} for n in (0, 0, 1)])
    assert ordinals(same(data, restart=True)) == [(0, 1, 0), (0, 2, 0)]
    built = same(data)
    assert ordinals(built) == [(0, 2, 0)]
    assert [anomaly.what for anomaly in built.anomalies] == [QueueAnomaly.INTRUDER]


def test_existing_queues_are_gone_on_with(log: Callable[..., bytes]) -> None:
    data = log([{"queue_offset": n} for n in range(4)])
    for build in (build_units, reference_build_units):
        columns, topics = scanned(data)
        table = QueueTable(topics)
        table.set_end(b"TopicTest", 0, 2, columns.commit_log_offset[2])
        assert ordinals(build(columns, table, data)) == [(2, 2, 0)]
        assert table.state(0).next_ordinal == 4
        assert table.state(0).max_offset == len(data)


def test_units_need_their_columns(log: Callable[..., bytes]) -> None:
    columns = Columns(1, ["topic_id"])
    scan(log([{}]), columns, topics := TopicTable())
    with pytest.raises(ValueError, match="need the column commit_log_offset"):
        build_units(columns, QueueTable(topics))


def segments_of(store: Any) -> list[Path]:
    places = store.config.get("storePathCommitLog", str(store.root / "commitlog")).split(",")
    found = [path for place in places for path in Path(place).iterdir() if path.name.isdigit()]
    return sorted(found, key=lambda path: path.name)


def columns_of_store(store: Any) -> tuple[list[tuple[Columns, bytes]], TopicTable]:
    """All records of a golden store, one Columns per segment."""
    topics = TopicTable()
    delays = parse_delay_levels(store.config.get("messageDelayLevel", DEFAULT_DELAY_LEVELS))
    found = []
    for path in segments_of(store):
        with path.open("rb") as file:
            data = file.read(4 << 20)
        columns = Columns(4096, DISPATCH_COLUMNS)
        result = scan(data, columns, topics, base=int(path.name), delays_ms=delays)
        found.append((columns, data))
        if result.end is not ScanEnd.BLANK:
            break
    return found, topics


@pytest.mark.parametrize("build", [build_units, reference_build_units])
def test_golden_queues(
    golden_name: str, golden_pristine: Callable[[str], Any], build: Build
) -> None:
    """Built from the log alone, every queue is what RocketMQ's own code read from its files."""
    store = golden_pristine(golden_name)
    if "crash-noqueue-5.5.0" in golden_name:
        pytest.skip("5.5.0 rebuilt only a part of these queues")
    found, topics = columns_of_store(store)
    batch = {q["topic"].encode() for q in store.facts["queues"] if q["cqType"] == "BatchCQ"}
    table = QueueTable(topics, batch)
    queues: dict[tuple[str, int], list[bytes]] = {}
    firsts: dict[tuple[str, int], int] = {}
    for columns, data in found:
        built = build(
            columns, table, data,
            multi_dispatch=store.config.get("enableMultiDispatch") == "true",
        )  # fmt: skip
        for run in built.runs:
            key = (run.topic.decode(), run.queue_id)
            size = len(run.units) // run.unit_count
            units = queues.setdefault(key, [])
            assert run.first == firsts.setdefault(key, run.first) + len(units)
            units += [bytes(run.units[n * size : (n + 1) * size]) for n in range(run.unit_count)]
    names = {(queue["topic"], queue["queueId"]) for queue in store.facts["queues"]}
    assert {key for key in queues if not key[0].startswith(SYSTEM)} <= names
    for queue in store.facts["queues"]:
        key = (queue["topic"], queue["queueId"])
        ours = queues.get(key, [])
        if queue["cqType"] == "BatchCQ":
            theirs = [(*unit[1:4], unit[0], *unit[4:]) for unit in queue["units"]]
            assert [unit[:3] + unit[4:7] for unit in map(BATCH_UNIT.unpack, ours)] == theirs
            continue
        # Where there is a ConsumeQueueExt unit, the tags code is in it.
        wanted = {
            unit[0]: UNIT.pack(*unit[1:3], unit[4]["tagsCode"] if len(unit) > 4 else unit[3])
            for unit in queue["units"]
        }
        found_units = {firsts[key] + n: unit for n, unit in enumerate(ours)}
        start = min(found_units, default=0)
        assert found_units == {n: unit for n, unit in wanted.items() if n >= start}
