"""Offsets of a stream and what each trigger takes, without a JVM; then whole queries with one."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from oberth.errors import DataLossError, OptionError
from oberth.formats.consume_queue import PRE_BLANK
from oberth.spark import plan as p
from oberth.spark import stream
from oberth.spark.options import parse_read_options
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.progress import LagListener, lag_metrics, quantity, scan_metrics
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.stream import (
    RocketMQDriverStreamReader,
    RocketMQStreamReader,
    TriggerPlanner,
    rate_limit,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()
A0, A1, B0 = (
    p.QueueKey("A", "broker-g", 0),
    p.QueueKey("A", "broker-g", 1),
    p.QueueKey("B", "broker-g", 0),
)


def _planner(
    root: Path, clock: Callable[[], float] | None = None, **options: str
) -> TriggerPlanner:
    given = {"path": str(root), "startingOffsets": "earliest", **options}
    parsed = parse_read_options(given, streaming=True)
    return TriggerPlanner(parsed) if clock is None else TriggerPlanner(parsed, clock)


def _reader(root: Path, **options: str) -> RocketMQStreamReader:
    given = {"path": str(root), "startingOffsets": "earliest", **options}
    schema = struct_type(parse_columns("topic,partition,offset,value"))
    return RocketMQStreamReader(parse_read_options(given, streaming=True), schema)


def _rows(reader: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    rows = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RocketMQPartition)
        for batch in reader.read(partition):
            rows += [(r["topic"], r["partition"], r["offset"]) for r in batch.to_pylist()]
    return rows


QUEUES = st.builds(
    p.QueueKey, st.sampled_from(["A", "B", "Ä"]), st.sampled_from(["x", "y"]), st.integers(0, 12)
)


@given(st.dictionaries(QUEUES, st.integers(0, 2**60)))
def test_offsets_are_canonical_text(offsets: dict[p.QueueKey, int]) -> None:
    text = json.dumps(p.offsets_to_json(offsets))
    assert p.offsets_from_json(json.loads(text)) == offsets
    backwards = dict(sorted(offsets.items(), reverse=True))
    assert json.dumps(p.offsets_to_json(backwards)) == text


@given(st.dictionaries(QUEUES, st.integers(0, 10**6)), st.integers(1, 10**6))
def test_a_limit_is_split_in_proportion_and_kept(
    available: dict[p.QueueKey, int], most: int
) -> None:
    taken = rate_limit(available, most)
    assert taken.keys() == available.keys()
    assert sum(taken.values()) == min(most, sum(available.values()))
    assert all(0 <= taken[key] <= available[key] for key in taken)


def test_triggers_take_what_is_new(growing_store: Any) -> None:
    planner = _planner(growing_store.root)
    assert planner.initial() == {}
    for _ in range(3):
        growing_store.append("A", 0, b"x")
    first = planner.next_end({}, ALL)
    assert first == {A0: 3}
    growing_store.append("A", 1, b"y")
    growing_store.append("B", 0, b"z")
    second = planner.next_end(first, ALL)
    assert second == {A0: 3, A1: 1, B0: 1}
    assert planner.next_end(second, ALL) == second
    reader = _reader(growing_store.root)
    as_json = [p.offsets_to_json(o) for o in (first, second)]
    assert _rows(reader, {}, as_json[0]) == [("A", 0, 0), ("A", 0, 1), ("A", 0, 2)]
    assert _rows(reader, as_json[0], as_json[1]) == [("A", 1, 0), ("B", 0, 0)]
    assert _rows(reader, as_json[1], as_json[1]) == []


def test_limits_of_a_trigger(growing_store: Any) -> None:
    for number in range(30):
        growing_store.append("A", number % 2, b"x" * 100)
    for _ in range(10):
        growing_store.append("B", 0, b"x" * 1000)
    planner = _planner(growing_store.root)
    at: p.Offsets = {}
    seen = []
    while True:
        end = planner.next_end(at, ReadMaxRows(7))
        if end == at:
            break
        seen.append(sum(end.values()) - sum(at.values()))
        at = end
    assert seen == [7, 7, 7, 7, 7, 5]
    assert at == {A0: 15, A1: 15, B0: 10}
    at, steps = {}, 0
    while (end := planner.next_end(at, ReadMaxBytes(3000))) != at:
        assert sum(end.values()) > sum(at.values())
        at, steps = end, steps + 1
    assert at == {A0: 15, A1: 15, B0: 10}
    assert steps > 4


@pytest.mark.parametrize("size", [5000, 1600])
@pytest.mark.parametrize(("large", "small"), [(A0, A1), (A1, A0)], ids=["first", "second"])
def test_a_large_message_waits_for_its_turn_only(
    growing_store: Any, large: p.QueueKey, small: p.QueueKey, size: int
) -> None:
    """It has more bytes than a trigger may take, or more than the others leave of them."""
    growing_store.append("A", large.queue, b"x" * size)
    planner = _planner(growing_store.root)
    at: p.Offsets = {}
    for _ in range(3):
        for _ in range(20):
            growing_store.append("A", small.queue, b"x" * 100)
        end = planner.next_end(at, ReadMaxBytes(2000))
        if size > 2000 and end.get(large) == 1 and not at.get(large):
            assert end.get(small, 0) == at.get(small, 0)
        at = end
    assert at[large] == 1
    assert at[small] > 0


def test_queues_with_less_than_a_message_for_their_share_take_turns(growing_store: Any) -> None:
    keys = [p.QueueKey("A", "broker-g", number) for number in range(32)]
    for key in keys:
        for _ in range(3):
            growing_store.append("A", key.queue, b"x" * 4000)
    planner = _planner(growing_store.root)
    at: p.Offsets = dict.fromkeys(keys, 0)
    steps = 0
    while (end := planner.next_end(at, ReadMaxBytes(16 * 4200))) != at:
        assert 12 <= sum(end.values()) - sum(at.values()) <= 16 or end == dict.fromkeys(keys, 3)
        assert max(end.values()) - min(end.values()) <= 1
        at, steps = end, steps + 1
    assert at == dict.fromkeys(keys, 3)
    assert steps <= 8


def test_fewer_than_the_least_wait_for_the_delay(growing_store: Any) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.2
        return now[0]

    planner = _planner(growing_store.root, clock, minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    growing_store.append("A", 0, b"1")
    first = planner.next_end({}, ALL)
    assert first == {A0: 1}  # the first trigger does not wait
    growing_store.append("A", 0, b"2")
    assert planner.next_end(first, ALL) == first
    now[0] += 60
    assert planner.next_end(first, ALL) == {A0: 2}


def test_available_now_sees_nothing_newer(growing_store: Any) -> None:
    for _ in range(5):
        growing_store.append("A", 0, b"x")
    planner = _planner(growing_store.root)
    planner.freeze()
    growing_store.append("A", 0, b"late")
    growing_store.append("B", 0, b"late")
    first = planner.next_end({}, ReadMaxRows(3))
    second = planner.next_end(first, ReadMaxRows(3))
    assert (first, second) == ({A0: 3}, {A0: 5})
    assert planner.next_end(second, ReadMaxRows(3)) == second


def test_latest_is_the_same_when_asked_twice(growing_store: Any) -> None:
    growing_store.append("A", 0, b"x")
    planner = _planner(growing_store.root, startingOffsets="latest")
    first = planner.initial()
    growing_store.append("A", 0, b"y")
    assert planner.initial() == first == {A0: 1}


def test_a_stream_tells_of_messages_that_no_queue_shows(
    growing_store: Any, make_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make_store(tmp_path / "other")
    other.append("A", 0, b"x")
    both: dict[str, Any] = {"path": f"{growing_store.root},{other.root}"}
    assert _planner(growing_store.root, **both).initial().keys() == {A0._replace(broker="other")}
    assert not caplog.text
    growing_store.append("A", 0, b"x", time=1000, dispatch=False)
    named = json.dumps({"A": {"other": [0]}})
    _planner(growing_store.root, assign=named, **both).initial()
    assert not caplog.text
    planner = _planner(growing_store.root, startingTimestamp="1001")
    assert planner.initial() == planner.initial() == {}
    assert caplog.text.count(f"{growing_store.root} has no ConsumeQueue: a stream has none") == 1
    assert planner.next_end({}, ALL) == {}
    # The dispatcher's first round.
    growing_store.forget("A", 0)
    growing_store.append("A", 0, b"x", time=1000)
    assert planner.next_end({}, ALL) == {A0: 1}


def test_a_torn_tail_is_not_offered(growing_store: Any) -> None:
    growing_store.append("A", 0, b"whole")
    growing_store.append("A", 0, b"z" * 500)
    log = growing_store.root / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    used = len(bytes(raw).rstrip(b"\0"))
    raw[used - 300 : used] = bytes(300)
    log.write_bytes(raw)
    assert _planner(growing_store.root).next_end({}, ALL) == {A0: 1}


def test_a_queue_that_ends_before_its_offset_is_a_loss(growing_store: Any) -> None:
    growing_store.append("A", 0, b"x")
    with pytest.raises(DataLossError, match="read to 5 and ends at 1"):
        _planner(growing_store.root).next_end({A0: 5}, ALL)
    kind = _planner(growing_store.root, failOnDataLoss="false")
    assert kind.next_end({A0: 5}, ALL) == {A0: 1}


def test_a_queue_whose_files_went_with_its_messages_is_no_loss(growing_store: Any) -> None:
    for number in range(3):
        growing_store.append("A", 0, b"%d" % number)
    growing_store.append("B", 0, b"x")
    planner = _planner(growing_store.root)
    start = planner.next_end(planner.initial(), ALL)
    queue = growing_store.root / "consumequeue" / "A"
    shutil.rmtree(queue)
    ends = {"version": 1, "queues": {"A": {"0": 3}}}
    (growing_store.root / "oberth.queue-ends").write_text(json.dumps(ends))
    assert planner.next_end(start, ALL) == start
    assert _planner(growing_store.root).next_end(start, ALL) == start
    # A batch that had them in its plan has lost them.
    before = {**start, A0: 1}
    with pytest.raises(DataLossError, match="offsets 1 to 3 are gone"):
        _planner(growing_store.root).plans(before, start)
    growing_store.append("A", 0, b"goes on")
    with (queue / "0" / f"{0:020d}").open("r+b") as file:
        file.write(PRE_BLANK * 3)
    end = planner.next_end(start, ALL)
    assert end == {**start, A0: 4}
    rows = _rows(_reader(growing_store.root), *map(p.offsets_to_json, (start, end)))
    assert rows == [("A", 0, 3)]


def test_a_file_that_was_replaced_is_read_anew(growing_store: Any) -> None:
    growing_store.append("B", 0, b"x")
    for number in range(2):
        growing_store.append("A", 0, b"%d" % number)
    planner, reader = _planner(growing_store.root), _reader(growing_store.root)
    start = planner.next_end(planner.initial(), ALL)
    # As a load leaves it: segment and queue are copies under the old names.
    for path in growing_store.root.rglob("0*"):
        if path.is_file():
            shutil.copyfile(path, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
    growing_store.append("A", 0, b"after a load")
    end = planner.next_end(start, ALL)
    assert end == {**start, A0: 3}
    assert _rows(reader, *map(p.offsets_to_json, (start, end))) == [("A", 0, 2)]


def test_a_driver_reads_a_topic_that_was_made_again(growing_store: Any) -> None:
    for number in range(4):
        growing_store.append("A", 0, b"old %d" % number)
    given = {"path": str(growing_store.root), "startingOffsets": "earliest"}
    schema = struct_type(parse_columns("offset,value"))
    reader = RocketMQDriverStreamReader(parse_read_options(given, streaming=True), schema)

    def values(start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        return [v for b in reader.readBetweenOffsets(start, end) for v in b["value"].to_pylist()]

    offsets = [{"A": {"broker-g": {"0": n}}} for n in range(5)]
    assert values(offsets[0], offsets[4]) == [b"old %d" % n for n in range(4)]
    shutil.rmtree(growing_store.root / "consumequeue" / "A")
    growing_store.forget("A", 0)
    for number in range(3):
        growing_store.append("A", 0, b"new %d" % number)
    assert values(offsets[1], offsets[3]) == [b"new 1", b"new 2"]


def test_available_now_goes_on_where_a_queue_ends_that_was_made_again(growing_store: Any) -> None:
    for number in range(3):
        growing_store.append("A", 0, b"anew %d" % number)
    planner = _planner(growing_store.root, failOnDataLoss="false")
    planner.freeze()
    growing_store.append("A", 0, b"next")
    assert planner.next_end({A0: 9}, ALL) == {A0: 3}
    assert planner.next_end({A0: 3}, ALL) == {A0: 3}
    planner = _planner(growing_store.root, failOnDataLoss="false")
    planner.freeze()
    assert planner.next_end({A0: 3}, ALL) == {A0: 4}
    planner = _planner(growing_store.root)
    planner.freeze()
    with pytest.raises(DataLossError, match="read to 9 and ends at 4"):
        planner.next_end({A0: 9}, ALL)


@pytest.mark.parametrize("ends_are_known", [True, False], ids=["local", "behind a network"])
@pytest.mark.parametrize("kind", [RocketMQStreamReader, RocketMQDriverStreamReader])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_topic_that_was_made_again_is_told_however_long_it_is(
    growing_store: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Any],
    count: int,
    ends_are_known: bool,
) -> None:
    """It is shorter, as long or longer than what was read; its records lie elsewhere.

    Where the ends of logs are not asked for, one that is as long is told with its next message.
    """
    if not ends_are_known:
        monkeypatch.setattr(p.Stores, "log_ends", lambda stores: None)
    for number in range(3):
        growing_store.append("A", 0, b"old %d" % number)
    growing_store.append("B", 0, b"x")
    given = {"path": str(growing_store.root), "startingOffsets": "earliest"}
    schema = struct_type(parse_columns("topic,partition,offset,value"))

    def reader(**more: str) -> Any:
        return kind(parse_read_options({**given, **more}, streaming=True), schema)

    def next_offset(of: Any, at: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (
            of.latestOffset(at, ALL) if kind is RocketMQStreamReader else of.read(at)[1]
        )
        return found

    first = reader()
    at = next_offset(first, first.initialOffset())
    assert p.offsets_from_json(at) == {A0: 3, B0: 1}
    assert next_offset(first, at) == next_offset(reader(), at) == at
    shutil.rmtree(growing_store.root / "consumequeue" / "A")
    growing_store.forget("A", 0)
    for number in range(count):
        growing_store.append("A", 0, b"new %d" % number)
    if count == 3 and not ends_are_known:
        assert next_offset(reader(), at) == at
        growing_store.append("A", 0, b"new 3")
        count = 4
    why = "read to 3 and ends at 2" if count < 3 else "read to 3, then its topic was made again"
    for each in (first, reader()):
        with pytest.raises(DataLossError, match=why):
            next_offset(each, at)
    goes_on = reader(failOnDataLoss="false")
    begun = next_offset(goes_on, at)
    assert p.offsets_from_json(begun) == {A0: 0, B0: 1}
    end = next_offset(goes_on, begun)
    assert p.offsets_from_json(end) == {A0: count, B0: 1}
    goes_on.prepareForTriggerAvailableNow()
    assert next_offset(goes_on, end) == end
    assert goes_on.planner.plans(p.offsets_from_json(at), p.offsets_from_json(begun))[1] == []
    # What an earlier release, or a user, wrote says nothing of logs.
    plain = {name: value for name, value in at.items() if name}
    if count > 3:
        assert p.offsets_from_json(next_offset(reader(), plain)) == {A0: count, B0: 1}
    assert reader(startingOffsets=json.dumps(at)).initialOffset()["B"] == {A0.broker: {"0": 1}}


def test_a_queue_that_begins_late_is_entered_before_it_is_read(
    golden_pristine: Callable[[str], Any],
) -> None:
    root = golden_pristine("cleaned-5.5.0").root
    planner = _planner(root)
    entered = planner.next_end({}, ALL)
    bounds = planner.latest()
    assert {k: v for k, v in entered.items() if bounds[k][0] > 0} == {
        k: low for k, (low, _) in bounds.items() if low > 0
    }
    reader = _reader(root)
    none = _rows(reader, {}, p.offsets_to_json(entered))
    assert len(none) == sum(high for low, high in bounds.values() if low == 0)
    following = planner.next_end(entered, ALL)
    assert following == {k: high for k, (_, high) in bounds.items()}
    rows = _rows(reader, p.offsets_to_json(entered), p.offsets_to_json(following))
    assert len(rows) == sum(high - low for low, high in bounds.values() if low > 0)


def test_what_expired_between_planning_and_a_restart_is_a_loss(growing_store: Any) -> None:
    # The batch that was planned had messages of a queue that the one before did not know.
    growing_store.append("A", 0, b"x")
    planner = _planner(growing_store.root)
    start = planner.next_end(planner.initial(), ALL)
    for _ in range(1500):
        growing_store.append("B", 0, b"born later")
    end = planner.next_end(start, ALL)
    assert end == {A0: 1, p.QueueKey("B", A0.broker, 0): 1500}
    (growing_store.root / "consumequeue/B/0" / f"{0:020d}").unlink()  # 1000 units
    growing_store.append("B", 0, b"newest")
    for first in range(1000, 1500, 100):  # whatever is left behind what was planned
        again = p.offsets_from_json(p.offsets_to_json(end | {p.QueueKey("B", A0.broker, 0): first}))
        with pytest.raises(DataLossError, match=r"offsets 0 to 1000 are gone"):
            _planner(growing_store.root).plans(start, again)
    # Where a queue was seen to begin late, nothing of it was planned.
    late = _planner(growing_store.root).next_end(start, ALL)
    text = p.offsets_to_json(late)
    assert text["B"] == {A0.broker: {"0": "1000"}}
    assert _planner(growing_store.root).plans(start, p.offsets_from_json(text))[1] == []
    following = _planner(growing_store.root).next_end(p.offsets_from_json(text), ALL)
    assert p.offsets_to_json(following)["B"] == {A0.broker: {"0": 1501}}


def test_the_driver_reader_gives_the_same_rows(growing_store: Any) -> None:
    for number in range(10):
        growing_store.append("A", number % 2, b"x")
    given = {"path": str(growing_store.root), "startingOffsets": "earliest"}
    schema = struct_type(parse_columns("topic,partition,offset"))
    options = parse_read_options({**given, "maxOffsetsPerTrigger": "4"}, streaming=True)
    reader = RocketMQDriverStreamReader(options, schema)
    at: dict[str, Any] = reader.initialOffset()
    assert at == {"A": {"broker-g": {"0": 0, "1": 0}}}
    found = []
    while True:
        rows, end = reader.read(at)
        batches = list(rows)
        if end == at:
            break
        found += [r for batch in batches for r in batch.to_pylist()]
        again = [r for batch in reader.readBetweenOffsets(at, end) for r in batch.to_pylist()]
        assert again == [r for batch in batches for r in batch.to_pylist()]
        at = end
    assert len(found) == 10


def test_lag() -> None:
    end = '{"A": {"b": {"0": 5, "1": 7}}}'
    latest = {"A": {"b": {"0": 9, "1": 7, "2": 2}}}
    assert lag_metrics(end, latest) == {
        "minOffsetsBehindLatest": 0.0,
        "maxOffsetsBehindLatest": 4.0,
        "avgOffsetsBehindLatest": 2.0,
    }
    assert lag_metrics("{}", None) == {}


@pytest.mark.parametrize(
    "foreign",
    ['{"topic": {"0": 5}}', "7", '{"step": 3}', '{"topic": {"b": {"first": 1}}}', "not JSON"],
)
def test_offsets_of_other_sources_have_no_lag(foreign: str) -> None:
    assert lag_metrics(foreign, foreign) == {}


def test_options_that_streams_refuse(growing_store: Any) -> None:
    with pytest.raises(OptionError, match="endingOffsets"):
        _planner(growing_store.root, endingOffsets="latest")


# With a JVM.


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_available_now_drains_and_a_restart_goes_on(
    spark: SparkSession, growing_store: Any, tmp_path: Path, mode: str
) -> None:
    def run() -> None:
        frame = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "20")
            .option("readMode", mode)
            .load(str(growing_store.root))
        )
        query = (
            frame.select("topic", "partition", "offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    for number in range(50):
        growing_store.append("A", number % 3, b"x")
    run()
    for number in range(10):
        growing_store.append("A", number % 3, b"y")
        growing_store.append("New", 0, b"z")
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(rows) == len(set(rows)) == 70
    offsets = sorted((tmp_path / "checkpoint" / "offsets").iterdir(), key=lambda f: len(f.name))
    last = max((int(f.name), f) for f in offsets if f.name.isdigit())[1].read_text().splitlines()
    assert json.loads(last[-1])["New"] == {"broker-g": {"0": 10}}


def test_an_idle_stream_looks_at_the_logs_end_alone(
    growing_store: Any, monkeypatch: pytest.MonkeyPatch, listed_directories: list[str]
) -> None:
    for number in range(60):
        growing_store.append("A", number % 20, b"x")
    options = parse_read_options(
        {"path": str(growing_store.root), "startingOffsets": "earliest"}, streaming=True
    )
    times = iter(range(1_000_000))
    planner = TriggerPlanner(options, lambda: next(times) * 0.01)
    monkeypatch.setattr(stream, "IDLE_LOOK_S", 0.0)
    at = planner.next_end({}, ALL)
    for _ in range(10):  # until the log has been as it is for a while
        assert planner.next_end(at, ALL) == at
    listed = listed_directories
    listed.clear()
    looks = 0
    for _ in range(40):
        before = len(listed)
        assert planner.next_end(at, ALL) == at
        looks += len(listed) > before
    # Some 160 looks at the end in four seconds, and one a second at every queue.
    assert 1 <= looks <= 6
    # What comes is seen by the next look, also in a queue that is new, or a new segment.
    growing_store.append("B", 0, b"y")
    following = planner.next_end(at, ALL)
    assert following[B0] == 1
    for _ in range(10):
        assert planner.next_end(following, ALL) == following
    growing_store.append("A", 0, b"z" * ((1 << 20) - 300))
    assert planner.next_end(following, ALL)[A0] == 4


@pytest.mark.parametrize("pattern", ["*", "[ab]", "?"])
def test_stores_of_a_pattern_come_and_go_while_a_stream_is_idle(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    first = make_store(tmp_path / "all" / "a")
    first.append("A", 0, b"x")
    options = parse_read_options(
        {
            "path": str(tmp_path / "all" / pattern),
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        },
        streaming=True,
    )
    times = iter(range(1_000_000))
    planner = TriggerPlanner(options, lambda: next(times) * 0.01)
    monkeypatch.setattr(stream, "IDLE_LOOK_S", 0.0)
    at = planner.next_end({}, ALL)
    for _ in range(10):
        assert planner.next_end(at, ALL) == at
    second = make_store(tmp_path / "all" / "b")
    second.append("A", 0, b"y")
    planner.latest()  # as Spark asks for its report
    following = planner.next_end(at, ALL)
    assert sorted((key.broker, end) for key, end in following.items()) == [("a", 1), ("b", 1)]
    for _ in range(10):
        assert planner.next_end(following, ALL) == following
    shutil.rmtree(first.root)
    planner.latest()
    left = planner.next_end(following, ALL)
    assert {key.broker: end for key, end in left.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize("pattern", ["*", "a"])
@pytest.mark.parametrize("leaves", ["nothing", "a mount point"])
def test_a_store_that_is_away_and_back_is_not_read_again(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, leaves: str
) -> None:
    first = make_store(tmp_path / "all" / "a")
    for _ in range(3):
        first.append("A", 0, b"x")
    if pattern == "*" and leaves == "nothing":
        make_store(tmp_path / "all" / "b").append("A", 0, b"y")
    given = {"path": str(tmp_path / "all" / pattern), "startingOffsets": "earliest"}
    monkeypatch.setattr(stream, "IDLE_LOOK_S", 0.0)
    monkeypatch.setattr(stream, "IDLE_WAIT_S", 0.0)

    def make_planner(fails: str) -> TriggerPlanner:
        options = parse_read_options({**given, "failOnDataLoss": fails}, streaming=True)
        return TriggerPlanner(options)

    planner, strict = make_planner("false"), make_planner("true")
    at = planner.advance({}, ALL)
    key = p.QueueKey("A", "a", 0)
    assert p.offsets_from_json(at)[key] == 3
    assert strict.advance(at, ALL) == at
    reported: list[str] = []
    report = p.report_loss

    def noted(stores: Any, options: Any, lost: list[str]) -> None:
        reported.extend(lost)
        report(stores, options, lost)

    monkeypatch.setattr(p, "report_loss", noted)
    first.root.rename(tmp_path / "away")
    if leaves == "a mount point":
        first.root.mkdir()
    if pattern == "*" and leaves == "a mount point":
        with pytest.raises(OptionError, match="is no store"):
            planner.advance(at, ALL)
    else:
        for _ in range(3):
            assert planner.advance(at, ALL) == at
        assert len(reported) == 1
        for _ in range(2):
            with pytest.raises(DataLossError, match="read to 3, and its store is not there"):
                strict.advance(at, ALL)
    if leaves == "a mount point":
        first.root.rmdir()
    (tmp_path / "away").rename(first.root)
    assert planner.advance(at, ALL) == strict.advance(at, ALL) == at
    first.append("A", 0, b"next")
    end = planner.advance(at, ALL)
    assert p.offsets_from_json(end)[key] == 4


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_quantities_as_sparks_page_shows_them() -> None:
    assert quantity("3.0 s") == 3000
    assert (
        quantity("total (min, med, max (stageId: taskId))\n1,024.0 ms (1 ms, 2 ms (stage 1))")
        == 1024
    )
    assert quantity("?") == 0


@pytest.mark.spark
def test_a_running_query_follows_the_store_and_reports_its_lag(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    listener = LagListener(session=spark)
    spark.streams.addListener(listener)
    growing_store.append("A", 0, b"x")
    query = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .load(str(growing_store.root))
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        for _ in range(5):
            growing_store.append("A", 1, b"y")
        query.processAllAvailable()
        assert spark.table("followed").count() == 6
        progress = query.lastProgress
        assert progress is not None
        found = lag_metrics(progress.sources[0].endOffset, progress.sources[0].latestOffset)
        assert found["maxOffsetsBehindLatest"] == 0
        # Spark hears of batches, and counts, on threads of its own.
        wait_until(lambda: bool(listener.metrics(str(query.id))))
        run, batch = (
            str(query.runId),
            next(each.batchId for each in query.recentProgress if each.numInputRows == 5),
        )
        wait_until(lambda: "scanMs" in scan_metrics(spark, run, batch))
        assert set(scan_metrics(spark, run, batch)) == {"scanMs"}
        assert scan_metrics(spark, "another", batch) == {}
    finally:
        query.stop()
        spark.streams.removeListener(listener)
