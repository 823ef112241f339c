"""Messages that a killed broker gave no unit are read in the order of their queues too."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from oberth.broker.broker_config import read_configs
from oberth.errors import DataLossError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.checkpoint import Checkpoint
from oberth.formats.consume_queue import UNIT_SIZE
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_PREPARED
from oberth.spark import plan as p
from oberth.spark.options import parse_read_options
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import RocketMQPartition
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.storage import LocalStorage
from oberth.spark.store_files import StoreFiles
from oberth.spark.stream import RocketMQStreamReader
from oberth.spark.transforms import TagCountsReader
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.store.recovery_state import FILE_NAME


@pytest.fixture
def crashed(growing_store: Any) -> Any:
    """300 messages in three queues, of which the last third has no units, and a new topic."""
    for number in range(300):
        growing_store.append(
            "A", number % 3, b"%d" % number * 40, tags=f"t{number % 2}", keys=f"k{number}",
            time=1_700_000_000_000 + number * 1000, dispatch=number < 200,
        )  # fmt: skip
    growing_store.append("B", 5, b"new", dispatch=False)
    growing_store.append("A", 0, b"half", flags=TRANSACTION_PREPARED, dispatch=False)
    growing_store.skip("A", 0, -1)  # such a record has no place in its queue
    (growing_store.root / "abort").touch()
    return growing_store


def _places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(r["topic"], r["partition"], r["offset"]) for r in rows]


@pytest.mark.parametrize("cut", ["1k", "5k", "128m"])
def test_queue_order_has_what_the_log_has(crashed: Any, read_store: Any, cut: str) -> None:
    by_log = read_store(crashed.root, readOrder="commitlog")
    by_queue = read_store(crashed.root, readOrder="queue", targetPartitionBytes=cut)
    assert _places(by_queue.rows) == sorted(_places(by_log.rows))
    assert len(by_queue.rows) == 301
    assert by_queue.lost == []
    few = read_store(crashed.root, readOrder="queue", maxRecordsPerPartition="7")
    assert _places(few.rows) == _places(by_queue.rows)
    assert few.partitions >= 301 // 7


def test_offsets_times_and_filters_reach_into_the_tail(crashed: Any, read_store: Any) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan

    rows = read_store(crashed.root, subscribe="A").rows
    starts = '{"A":{"broker-g":{"0":50,"1":80,"2":100}}}'
    read = read_store(crashed.root, subscribe="A", startingOffsets=starts)
    wanted = [r for r in rows if r["offset"] >= (50, 80, 100)[r["partition"]]]
    assert _places(read.rows) == _places(wanted)
    ends = '{"A":{"broker-g":{"0":50,"1":80,"2":-1}}}'
    read = read_store(crashed.root, subscribe="A", endingOffsets=ends)
    assert len(read.rows) == 230
    late = 1_700_000_000_000 + 250 * 1000
    read = read_store(crashed.root, subscribe="A", startingTimestamp=str(late))
    assert len(read.rows) == 50
    assert len(read_store(crashed.root, filter__tag="t1").rows) == 150
    time = next(r["timestamp"] for r in rows if r["key"] == b"k249")
    found = read_store(crashed.root, [GreaterThan(("timestamp",), time)], subscribe="A").rows
    assert {r["key"] for r in rows if r["timestamp"] > time} <= {r["key"] for r in found}
    found = read_store(crashed.root, [EqualTo(("key",), b"k299")]).rows
    assert b"k299" in {r["key"] for r in found}


def test_a_closed_store_has_no_tail(crashed: Any, read_store: Any) -> None:
    (crashed.root / "abort").unlink()
    assert len(read_store(crashed.root, readOrder="queue").rows) == 200


def test_what_has_no_place_is_left_out_and_said(
    crashed: Any, read_store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a queue without units nobody knows whether its topic was deleted and made again."""
    crashed.skip("C", 1, 4)
    crashed.append("C", 1, b"behind a gap", dispatch=False)
    with caplog.at_level(logging.WARNING):
        read = read_store(crashed.root, readOrder="queue")
    assert len(read.rows) == 301
    assert "topic C, queue 1: the log has offset 4" in caplog.text
    assert "oberth store recover" in caplog.text
    assert len(read_store(crashed.root, readOrder="commitlog").rows) == 302


@pytest.mark.parametrize("at", [200, 260])
def test_what_the_crash_took_is_told_and_what_follows_is_read(
    crashed: Any, read_store: Any, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The head of a record is lost: the first without a unit, and one behind it."""
    offset, queue = divmod(at, 3)
    rows = read_store(crashed.root, readOrder="commitlog").rows
    place = next(r["physicalOffset"] for r in rows if r["key"] == b"k%d" % at)
    crashed._write("commitlog", place, bytes(60), 1 << 20)
    gone = rf"topic A, broker broker-g, queue {queue}: offsets {offset} to {offset + 1} are gone"
    with pytest.raises(DataLossError, match=gone):
        read_store(crashed.root, readOrder="queue")
    one_by_one = {"maxRecordsPerPartition": "1"}
    for options in ({}, one_by_one):
        caplog.clear()
        read = read_store(crashed.root, readOrder="queue", failOnDataLoss="false", **options)
        kept = [r for r in rows if r["key"] != b"k%d" % at]
        assert _places(read.rows) == sorted(_places(kept))
        assert read.lost == []  # tasks have nothing to add
        assert len(re.findall(gone, caplog.text)) == 1
    lost = {"failOnDataLoss": "false"}
    found = read_store(crashed.root, [EqualTo(("key",), b"k299")], **lost).rows
    assert b"k299" in {r["key"] for r in found}
    late = [GreaterThanOrEqual(("offset",), offset + 1)]
    found = read_store(crashed.root, late, subscribe="A", **lost).rows
    assert b"k299" in {r["key"] for r in found}
    reader = _stream(crashed.root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match=gone):
        reader.partitions(start, end)
    reader = _stream(crashed.root, **lost)
    seen: list[tuple[str, int, int]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(37))) != start:
        seen += _places(_batch(reader, start, end))
        start = end
    assert len(seen) == len(set(seen)) == 299


def test_counts_by_tag_have_what_the_log_has(crashed: Any, read_store: Any) -> None:
    reader = TagCountsReader(parse_read_options({"path": str(crashed.root)}, streaming=False))
    found: Counter[Any] = Counter()
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                found[row["topic"], row["tags"]] += row["count"]
    assert found == Counter((r["topic"], r["tags"]) for r in read_store(crashed.root).rows)


def test_a_topic_that_was_deleted_does_not_come_back(crashed: Any, read_store: Any) -> None:
    (crashed.root / "config").mkdir()
    topics = {"topicConfigTable": {"A": {"topicName": "A"}}}
    (crashed.root / "config" / "topics.json").write_text(json.dumps(topics))
    assert {r["topic"] for r in read_store(crashed.root, readOrder="queue").rows} == {"A"}


def test_inner_batches_of_the_tail(growing_store: Any, read_store: Any) -> None:
    growing_store.append("A", 0, b"first")
    body = encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", b"")])
    growing_store.append(
        "A", 0, body, flags=INNER_BATCH | NEED_UNWRAP, dispatch=False,
        properties={"INNER_NUM": "2", "INNER_BASE": "1"},
    )  # fmt: skip
    growing_store.skip("A", 0, 1)
    growing_store.append("A", 0, b"last", dispatch=False)
    (growing_store.root / "abort").touch()
    rows = read_store(growing_store.root, readOrder="queue").rows
    assert [(r["offset"], r["value"]) for r in rows] == [
        (0, b"first"), (1, b"one"), (2, b"two"), (3, b"last"),
    ]  # fmt: skip


def _stream(root: Path, **options: str) -> RocketMQStreamReader:
    given = {"path": str(root), "startingOffsets": "earliest", "subscribe": "A", **options}
    schema = struct_type(parse_columns("topic,partition,offset,value"))
    return RocketMQStreamReader(parse_read_options(given, streaming=True), schema)


def _batch(reader: RocketMQStreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RocketMQPartition)
        for batch in reader.read(partition):
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("limit", [ReadMaxRows(37), ReadMaxBytes(9_000)])
def test_a_stream_goes_through_the_tail_once(crashed: Any, limit: Any) -> None:
    reader = _stream(crashed.root)
    at = reader.initialOffset()
    seen: list[tuple[str, int, int]] = []
    while (end := reader.latestOffset(at, limit)) != at:
        rows = _batch(reader, at, end)
        assert _places(rows) == _places(_batch(_stream(crashed.root), at, end))
        seen += _places(rows)
        at = end
    assert len(seen) == len(set(seen)) == 300


def test_a_stream_waits_for_the_broker_that_starts_again(
    crashed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _stream(crashed.root)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1000))
    assert sum(end["A"]["broker-g"].values()) == 300
    # It holds the lock and has not come to the last records yet.
    monkeypatch.setattr("oberth.store.offline.lock_state.is_locked", lambda root: True)
    again = _stream(crashed.root)
    assert again.latestOffset(end, ReadMaxRows(1000)) == end
    middle = {"A": {"broker-g": {"0": 60, "1": 60, "2": 60}}}
    assert len(_batch(again, middle, end)) == 120


@pytest.mark.parametrize("name", ["crash-5.5.0", "crash-4.9.7", "torn-tail-5.5.0", "basic-4.9.7"])
@pytest.mark.parametrize("back", [40_000, 250_000])
def test_stores_of_apache_without_their_last_units(
    golden_store: Callable[[str], Any], read_store: Any, name: str, back: int
) -> None:
    """As a killed broker leaves them: all units behind a place of the log are missing."""
    store = golden_store(name)
    (store.root / "abort").touch()
    every = {"subscribePattern": ".*"}
    truth = read_store(store.root, readOrder="queue", **every).rows
    by_log = read_store(store.root, readOrder="commitlog", **every).rows
    assert sorted(_places(truth)) == sorted(_places(by_log))
    place = max(r["physicalOffset"] for r in truth) - back
    removed = 0
    for path in (store.root / "consumequeue").rglob("0*"):
        if path.is_file():
            raw = bytearray(path.read_bytes())
            for at in range(0, len(raw) - UNIT_SIZE + 1, UNIT_SIZE):
                if int.from_bytes(raw[at : at + 8], "big", signed=True) > place:
                    removed += any(raw[at : at + UNIT_SIZE])
                    raw[at : at + UNIT_SIZE] = bytes(UNIT_SIZE)
            path.write_bytes(raw)
    assert removed > 3
    (store.root / "checkpoint").unlink(missing_ok=True)
    found = read_store(store.root, readOrder="queue", **every).rows
    assert [(_places([r]), r["value"]) for r in found] == [
        (_places([r]), r["value"]) for r in truth
    ]


def test_lookups_are_cut_like_ranges() -> None:
    cut = Cut(p.Lookup(0, tuple(range(10)), None, joined=True), 10, 1000)
    options = parse_read_options(
        {"path": "/x", "targetPartitionBytes": "1k", "maxRecordsPerPartition": "4"},
        streaming=False,
    )
    plans = pack([cut], options)
    pieces = [piece for plan in plans for piece in plan.pieces]
    assert [len(piece.positions) for piece in pieces if isinstance(piece, p.Lookup)] == [4, 4, 2]


# Stores of a broker that was killed.


class Killed:
    """A store that is written to by this process, which then stops as if it was killed."""

    def __init__(self, root: Path, **entries: str) -> None:
        values = {
            "storePathRootDir": str(root), "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "1000",
            "namesrvAddr": "127.0.0.1:1", "timerWheelEnable": "false", **entries,
        }  # fmt: skip
        self.root = root
        self.store = MessageStore(read_configs(values)[1])
        self.store.load()
        self.store.start(reput_thread=False, background=False)

    def put(
        self, topic: str, body: str, *, queue: int = 0, dispatch: bool = True, **properties: str
    ) -> None:
        message = MessageExtBrokerInner.of(
            topic, body.encode(), queue_id=queue, properties=properties
        )
        assert self.store.append_messages([message])[0].ok
        if dispatch:
            self.store.dispatch_nowait()

    def write_units(self) -> None:
        self.store._write_queues()

    def kill(self) -> None:
        self.store.kill()
        self.store.commit_log.queue.close()


def _bodies(rows: list[dict[str, Any]]) -> list[tuple[str, int, bytes]]:
    return [(r["topic"], r["offset"], r["value"]) for r in rows]


def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path, read_store: Any) -> None:
    killed = Killed(tmp_path / "s")
    for number in range(5):
        killed.put("A", f"old {number}")
        killed.put("B", f"b {number}")
    killed.store.delete_topics(["A"])
    for number in range(2):
        killed.put("A", f"new {number}")
    killed.put("B", "b 5")
    killed.kill()
    rows = read_store(tmp_path / "s", readOrder="queue").rows
    assert _bodies(rows) == [
        *(("A", n, b"new %d" % n) for n in range(2)),
        *(("B", n, b"b %d" % n) for n in range(6)),
    ]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_noted_deletion_holds_where_the_power_went_in_the_next(
    tmp_path: Path, read_store: Any, again: bool
) -> None:
    """Fewer queues than the state counts: the log is read anew, without what was deleted."""
    killed = Killed(tmp_path / "s", enableLmq="true", enableMultiDispatch="true")
    for number in range(4):
        killed.put("A", f"old {number}", INNER_MULTI_DISPATCH="%LMQ%a")
        for queue in (0, 1):
            killed.put("B", f"b {number}", queue=queue)
    killed.store.delete_topics(["A", "%LMQ%a"])
    killed.put("B", "b 4")
    killed.store.checkpoint_now()
    if again:
        killed.put("A", "new")
    killed.kill()
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "B" / "1")
    rows = read_store(tmp_path / "s", readOrder="queue").rows
    found = [(r["topic"], r["partition"], r["value"]) for r in rows]
    with MessageStore(killed.store.config) as store:
        assert set(store.topics()) == ({"A", "B"} if again else {"B"})
    assert found == [
        *([("A", 0, b"new")] if again else []),
        *(("B", 0, b"b %d" % number) for number in range(5)),
        *(("B", 1, b"b %d" % number) for number in range(4)),
    ]
    options = {"subscribe": "%LMQ%a", "readOrder": "queue"}
    assert read_store(tmp_path / "s", **options).rows == []


def test_a_state_that_a_lost_queue_belies_is_not_believed(tmp_path: Path, read_store: Any) -> None:
    killed = Killed(tmp_path / "s")
    for topic in ("A", "B"):
        killed.put(topic, "one")
    killed.store.checkpoint_now()
    killed.kill()
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "A")
    rows = read_store(tmp_path / "s", readOrder="queue").rows
    assert _bodies(rows) == [("A", 0, b"one"), ("B", 0, b"one")]


def test_a_queue_without_files_goes_on_with_its_numbers(tmp_path: Path, read_store: Any) -> None:
    killed = Killed(tmp_path / "s")
    for number in range(3):
        killed.put("A", f"{number}")
        killed.put("B", f"{number}")
    killed.store.checkpoint_now()
    killed.kill()
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "A")
    ends = {"version": 1, "queues": {"A": {"0": 3}}}
    (tmp_path / "s" / "oberth.queue-ends").write_text(json.dumps(ends))
    state = json.loads((tmp_path / "s" / FILE_NAME).read_text())
    state["queue_begins"] = 3 * UNIT_SIZE  # as the checkpoint says that follows
    (tmp_path / "s" / FILE_NAME).write_text(json.dumps(state))
    again = Killed(tmp_path / "s")
    again.put("A", "goes on", dispatch=False)
    again.kill()
    rows = read_store(tmp_path / "s", subscribe="A", readOrder="queue").rows
    assert _bodies(rows) == [("A", 3, b"goes on")]


def test_a_topic_that_the_power_took_from_the_configuration(crashed: Any, read_store: Any) -> None:
    (crashed.root / "config").mkdir()
    table = {"A": {"topicName": "A"}}
    changed = {"timestamp": 1_700_000_000_000}
    tables = {"topicConfigTable": table, "dataVersion": changed}
    (crashed.root / "config" / "topics.json").write_text(json.dumps(tables))
    assert {r["topic"] for r in read_store(crashed.root, readOrder="queue").rows} == {"A", "B"}
    changed["timestamp"] += 1
    (crashed.root / "config" / "topics.json").write_text(json.dumps(tables))
    assert {r["topic"] for r in read_store(crashed.root, readOrder="queue").rows} == {"A"}


@pytest.mark.parametrize("cut", ["1k", "128m"])
def test_light_queues_go_on_in_the_log(tmp_path: Path, read_store: Any, cut: str) -> None:
    killed = Killed(tmp_path / "s", enableLmq="true", enableMultiDispatch="true")
    for number in range(30):
        named = "%LMQ%a,%LMQ%b" if number % 3 else "%LMQ%b"
        killed.put("A", f"{number}", INNER_MULTI_DISPATCH=named, TAGS=f"t{number % 2}")
        if number == 10:
            killed.write_units()
    killed.kill()
    light = {"subscribe": "%LMQ%a", "targetPartitionBytes": cut}
    wanted = [("%LMQ%a", at, b"%d" % n) for at, n in enumerate(n for n in range(30) if n % 3)]
    rows = read_store(tmp_path / "s", **light).rows
    assert _bodies(rows) == wanted
    assert {(r["partition"], r["bodyError"]) for r in rows} == {(0, None)}
    starts = '{"%LMQ%a":{"s":{"0":12}}}'
    assert _bodies(read_store(tmp_path / "s", startingOffsets=starts, **light).rows) == wanted[12:]
    tagged = read_store(tmp_path / "s", filter__tag="t1", **light).rows
    assert _bodies(tagged) == [each for each in wanted if int(each[2]) % 2]
    place = rows[15]["physicalOffset"]
    filters = [LessThan(("physicalOffset",), place)]
    assert _bodies(read_store(tmp_path / "s", filters, **light).rows) == wanted[:15]


def test_a_key_is_found_before_and_behind_the_last_unit(tmp_path: Path, read_store: Any) -> None:
    killed = Killed(tmp_path / "s")
    for number in range(60):
        killed.put("A", f"{number}", KEYS=f"k{number}", UNIQ_KEY=f"U{number}")
        if number == 50:
            killed.write_units()
    killed.kill()
    rows = read_store(tmp_path / "s").rows
    assert len(rows) == 60
    for column in ("key", "uniqueKey", "msgId", "offsetMsgId"):
        for wanted in (rows[3], rows[50], rows[51], rows[59]):
            read = read_store(tmp_path / "s", [EqualTo((column,), wanted[column])])
            assert wanted in read.rows
            assert len(read.rows) < 30
            assert read.lost == []


def test_a_tail_from_before_the_clock_was_set_back(growing_store: Any, read_store: Any) -> None:
    growing_store.append("A", 0, b"first", time=1_700_000_000_000)
    hour = 3_600_000
    for number in range(3_000):
        growing_store.append(
            "A", 0, b"%d" % number * 200, time=1_700_000_000_000 - hour + number, dispatch=False
        )
    checkpoint = Checkpoint(1_700_000_000_000, 1_700_000_000_000, 1_700_000_000_000)
    (growing_store.root / "checkpoint").write_bytes(checkpoint.encode().ljust(4096, b"\0"))
    (growing_store.root / "abort").touch()
    rows = read_store(growing_store.root, columns="offset", readOrder="queue").rows
    assert [r["offset"] for r in rows] == list(range(3_001))


@pytest.mark.parametrize("changed_ms", [1, 4_102_444_800_000], ids=["lost", "deleted"])
@pytest.mark.parametrize("others", [True, False], ids=["one of three", "all"])
def test_a_topic_without_queues_is_read_as_a_start_will_show_it(
    others: bool, changed_ms: int, golden_store: Any, read_store: Any
) -> None:
    golden = golden_store("client-5.5.0")
    root = golden.root
    path = root / "config" / "topics.json"
    tables = json.loads(path.read_bytes())
    for topic in ["RequestTopic"] if others else ["RequestTopic", "ClientTopic"]:
        del tables["topicConfigTable"][topic]
    tables["dataVersion"]["timestamp"] = changed_ms
    path.write_text(json.dumps(tables))
    shutil.rmtree(root / "consumequeue" / "RequestTopic")
    (root / "abort").touch()
    rows = read_store(root, readOrder="queue").rows
    options = MessageStoreConfig.from_properties({"storePathRootDir": str(root), **golden.config})
    with MessageStore(options) as store:
        assert {r["topic"] for r in rows} == set(store.topics())
        assert len(rows) == store.queues.units
        assert ("RequestTopic" in store.topics()) == (changed_ms == 1 or not others)


@pytest.mark.parametrize("order", ["queue", "commitlog"])
@pytest.mark.parametrize("at", [100, 250])
def test_properties_that_never_reached_the_disk_are_no_row(
    crashed: Any, read_store: Any, at: int, order: str
) -> None:
    """A lost page took the end of one record and the next one's head; with units, and without."""
    rows = read_store(crashed.root, readOrder="commitlog").rows
    torn = next(r for r in rows if r["key"] == b"k%d" % at)
    end = torn["physicalOffset"] + torn["size"]
    crashed._write("commitlog", end - 2, bytes(60), 1 << 20)
    with pytest.raises(DataLossError):
        read_store(crashed.root, readOrder=order)
    read = read_store(crashed.root, readOrder=order, failOnDataLoss="false")
    kept = [r for r in rows if r["key"] not in (torn["key"], b"k%d" % (at + 1))]
    assert sorted(_places(read.rows)) == sorted(_places(kept))
    assert any("its properties end in zeros" in text for text in read.lost)
    shown = read_store(crashed.root, readOrder=order, failOnDataLoss="false", verifyCrc="false")
    assert torn["physicalOffset"] in {r["physicalOffset"] for r in shown.rows}


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_sector_that_properties_lack_is_no_row(
    growing_store: Any, read_store: Any, order: str
) -> None:
    """Nothing else tells: size, lengths and the body's checksum are as they were."""
    root = growing_store.root
    for number in range(9):
        growing_store.append("A", 0, b"%d" % number, properties={"long": "x" * 1500})
    growing_store.append("A", 0, b"short of a sector", properties={"zeros": "\0" * 511})
    whole = read_store(root, columns="offset,physicalOffset,size").rows
    end = whole[4]["physicalOffset"] + whole[4]["size"]
    growing_store._write("commitlog", (end - 600) // 512 * 512, bytes(512), 1 << 20)
    with pytest.raises(DataLossError, match="a sector of zeros is in its properties"):
        read_store(root, readOrder=order)
    for cut in ("1k", "128m"):
        options = {"readOrder": order, "failOnDataLoss": "false", "targetPartitionBytes": cut}
        read = read_store(root, columns="offset", **options)
        assert [row["offset"] for row in read.rows] == [n for n in range(10) if n != 4]
        assert len(read.lost) == 1
        shown = read_store(root, columns="offset", verifyCrc="false", **options)
        assert len(shown.rows) == 10


@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize("order", ["queue", "commitlog"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_log_whose_last_record_lacks_a_sector_ends_before_it(
    growing_store: Any, read_store: Any, count: int, order: str, dispatched: bool
) -> None:
    """The broker's start ends it there, too; one that lacks a sector before it is lost."""
    root = growing_store.root
    for number in range(9):
        growing_store.append(
            "A", 0, b"%d" % number, properties={"long": "x" * 1500},
            dispatch=dispatched or number < 3,
        )  # fmt: skip
    whole = read_store(root, columns="offset,physicalOffset,size", readOrder="commitlog").rows
    for row in whole[-count:]:
        end = row["physicalOffset"] + row["size"]
        growing_store._write("commitlog", (end - 600) // 512 * 512, bytes(512), 1 << 20)
    with pytest.raises(DataLossError, match="a sector of zeros is in its properties"):
        read_store(root, readOrder="commitlog")  # an orderly stop leaves no such record
    (root / "abort").touch()
    read = read_store(root, columns="offset", readOrder=order, failOnDataLoss="false")
    assert [row["offset"] for row in read.rows] == list(range(9 - count))
    assert len(read.lost) == count - 1
    log_end = whole[-1]["physicalOffset"]
    assert StoreFiles(LocalStorage(), str(root), "b").log_end() == log_end
    with StoreReader(root) as reader:
        assert reader.max_offset == log_end
        assert verify(reader).log_end == log_end


def test_properties_may_end_in_a_zero(growing_store: Any, read_store: Any) -> None:
    for number in range(3):
        growing_store.append("A", 0, b"%d" % number, keys="k")
    for row in read_store(growing_store.root).rows:
        growing_store._write("commitlog", row["physicalOffset"] + row["size"] - 1, b"\0", 1 << 20)
    for order in ("queue", "commitlog"):
        assert len(read_store(growing_store.root, readOrder=order).rows) == 3
