"""Rows of golden stores equal what RocketMQ read from them, by every order and cut, without a JVM.

And hostile stores: whatever bytes are changed, a row that comes out is one of the true ones, and
what does not come out is reported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import datasource as f

from oberth.errors import DataLossError, OptionError
from oberth.spark.options import parse_read_options
from oberth.spark.transforms import TagCountsReader

DELIVERED = (0x0, 0x8)


def _all_topics(facts: dict[str, Any]) -> str:
    return ",".join(sorted({m["topic"] for m in facts["messages"]}))


def _expected(facts: dict[str, Any], *, delivered_only: bool = True) -> dict[Any, Any]:
    """Row by (CommitLog offset, place in an inner batch)."""
    rows = {}
    for outer in facts["messages"]:
        if delivered_only and outer["storedSysFlag"] & 0xC not in DELIVERED:
            continue
        inner = outer.get("inner")
        for index, message in enumerate(inner or [outer]):
            rows[outer["commitLogOffset"], index if inner else None] = (outer, message)
    return rows


def _key(row: dict[str, Any]) -> Any:
    return row["physicalOffset"], row["innerIndex"]


def _check_row(row: dict[str, Any], outer: dict[str, Any], message: dict[str, Any]) -> None:
    found = {
        "topic": row["topic"],
        "queueId": row["partition"],
        "queueOffset": row["offset"] - (row["innerIndex"] or 0),
        "storeSize": row["size"],
        "bornHost": row["bornHost"],
        "storeHost": row["storeHost"],
        "reconsumeTimes": row["reconsumeTimes"],
        "preparedTransactionOffset": row["preparedTransactionOffset"],
        "storedSysFlag": row["sysFlag"],
        "bodyCRC": row["bodyCRC"],
        "msgId": row["offsetMsgId"],
        "magic": f"{row['magic'] & 0xFFFFFFFF:08x}",
        "storedBodyLength": len(row["storedBody"]),
        "propertiesText": row["storedProperties"].decode(),
        "storeTimestamp": round(row["timestamp"].timestamp() * 1000),
        "bornTimestamp": round(row["bornTimestamp"].timestamp() * 1000),
    }
    assert found == {name: outer[name] for name in found}
    assert row["flag"] == message["flag"]
    assert len(row["value"]) == (message["bodyLength"] or 0)
    if message["bodyLength"]:
        assert hashlib.sha256(row["value"]).hexdigest() == message["bodySha256"]
    properties = message["properties"]
    assert dict(row["properties"]) == properties
    assert row["tags"] == properties.get("TAGS")
    assert row["key"] == (properties["KEYS"].encode() if "KEYS" in properties else None)
    assert row["uniqueKey"] == properties.get("UNIQ_KEY")
    assert row["shardingKey"] == properties.get("__SHARDINGKEY")
    assert row["timestampType"] == 1


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_every_golden_store(
    golden_name: str, golden_pristine: Callable[[str], Any], read_store: Any, order: str
) -> None:
    store = golden_pristine(golden_name)
    facts = store.facts
    options = {
        "readOrder": order,
        "subscribe": _all_topics(facts),
        "failOnDataLoss": "false" if "flipped" in golden_name else "true",
    }
    if order == "queue" and not any(
        (store.root / kind).is_dir() for kind in ("consumequeue", "batchconsumequeue")
    ):
        with pytest.raises(OptionError, match="no ConsumeQueue"):
            read_store(store.root, **options)
        return
    read = read_store(store.root, **options)
    expected = _expected(facts)
    if "stale" in golden_name:
        # Well-formed records of other positions behind the end are no messages of ours.
        expected = {k: v for k, v in expected.items() if k[0] <= _log_end(store)}
    flipped = {k for k, (outer, _) in expected.items() if outer.get("crcOk") is False}
    if "flipped" in golden_name:
        assert len(read.lost) == 1
        position = int(facts["note"].split("record at ")[1].split(",")[0])
        flipped = {k for k in expected if k[0] == position}
    rows = {_key(row): row for row in read.rows}
    assert len(rows) == len(read.rows)
    assert rows.keys() == expected.keys() - flipped
    for key, row in rows.items():
        _check_row(row, *expected[key])


def _log_end(store: Any) -> int:
    from oberth.spark.storage import LocalStorage
    from oberth.spark.store_files import StoreFiles

    return StoreFiles(LocalStorage(), str(store.root), "b").log_end() - 1


@pytest.mark.parametrize("name", ["basic-5.5.0", "innerbatch-5.5.0", "cleaned-5.5.0"])
@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_any_cut_gives_the_same_rows(
    name: str, golden_pristine: Callable[[str], Any], read_store: Any, order: str
) -> None:
    root = golden_pristine(name).root
    whole = [_key(r) for r in read_store(root, readOrder=order, columns="*").rows]
    for options in (
        {"targetPartitionBytes": "1k"},
        {"targetPartitionBytes": "37777"},
        {"minPartitions": "7"},
        {"batchBytes": "64k", "minPartitions": "3"},
    ):
        read = read_store(root, readOrder=order, **options)
        rows = read.rows
        if order == "queue" and "batchBytes" in options:  # queues come side by side
            rows = sorted(rows, key=lambda row: (row["topic"], row["partition"]))
        assert [_key(r) for r in rows] == whole, options
        assert read.partitions > 1
    if order == "queue":
        read = read_store(root, readOrder=order, maxRecordsPerPartition="5")
        assert [_key(r) for r in read.rows] == whole
        assert read.partitions >= len(whole) / 5


def test_a_queue_comes_in_order(golden_pristine: Callable[[str], Any], read_store: Any) -> None:
    read = read_store(golden_pristine("basic-5.5.0").root, readOrder="queue")
    places = [(r["topic"], r["partition"], r["offset"]) for r in read.rows]
    assert places == sorted(places)


def test_light_queues_are_read_under_their_own_name(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    store = golden_pristine("lmq-5.5.0")
    queues = [q for q in store.facts["queues"] if q["topic"].startswith("%LMQ%")]
    read = read_store(store.root, subscribe=",".join({q["topic"] for q in queues}))
    found = {(r["topic"], r["partition"], r["offset"], r["physicalOffset"]) for r in read.rows}
    assert found == {
        (q["topic"], q["queueId"], unit[0], unit[1]) for q in queues for unit in q["units"]
    }
    # Not named, they are not read: they show messages of other topics once more.
    assert not any(r["topic"].startswith("%") for r in read_store(store.root).rows)


def test_prepared_and_rolled_back_messages_only_on_request(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    store = golden_pristine("basic-5.5.0")
    for order in ("commitlog", "auto"):
        read = read_store(store.root, readOrder=order, includeUndelivered="true")
        assert {_key(r) for r in read.rows} == _expected(store.facts, delivered_only=False).keys()


def _true_rows(read_store: Any, root: Path, order: str) -> dict[Any, Any]:
    rows = read_store(root, readOrder=order, columns="*").rows
    return {(r["topic"], r["partition"], r["offset"]): r for r in rows}


@pytest.mark.parametrize("order", ["queue", "commitlog"])
@pytest.mark.parametrize("name", ["basic-5.5.0", "innerbatch-5.5.0", "compressed-5.5.0"])
def test_a_flipped_bit_never_gives_a_wrong_body(
    golden_store: Callable[[str], Any], read_store: Any, order: str, name: str
) -> None:
    store = golden_store(name)
    path = min((store.root / "commitlog").iterdir())
    original = path.read_bytes()
    truth = {r["value"] for r in read_store(store.root, readOrder=order).rows}
    used = len(original.rstrip(b"\0"))
    rng = random.Random(f"{name} {order}")
    for _ in range(40):
        at = rng.randrange(used)
        changed = bytearray(original)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        read = read_store(store.root, readOrder=order, failOnDataLoss="false", batchBytes="64k")
        assert {r["value"] for r in read.rows} <= truth, at
        if len(read.rows) < len(truth):
            assert read.lost or name == "innerbatch-5.5.0", at


@pytest.mark.parametrize("order", ["queue", "commitlog"])
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\xda\xa3\x20\xa7"])
def test_a_hole_costs_only_what_it_covers_and_is_reported_once(
    golden_store: Callable[[str], Any], read_store: Any, order: str, fill: bytes
) -> None:
    store = golden_store("basic-5.5.0")
    truth = _true_rows(read_store, store.root, order)
    path = min((store.root / "commitlog").iterdir())
    original = path.read_bytes()
    rng = random.Random(f"{order} {fill!r}")
    for cut in ("1k", "30k", "128m"):
        low = rng.randrange(len(original) // 2)
        high = low + rng.randrange(200, 20_000)
        hole = (fill * high)[: high - low]
        path.write_bytes(original[:low] + hole + original[high:])
        damaged = {
            key
            for key, row in truth.items()
            if row["physicalOffset"] < high and row["physicalOffset"] + row["size"] > low
        }
        read = read_store(
            store.root, readOrder=order, failOnDataLoss="false", targetPartitionBytes=cut
        )
        found = {(r["topic"], r["partition"], r["offset"]): r for r in read.rows}
        assert truth.keys() - damaged <= found.keys() <= truth.keys()
        # Nothing covers topic and properties: damage there alone leaves the body right.
        assert all(row["value"] == truth[key]["value"] for key, row in found.items())
        if found.keys() != truth.keys():
            assert read.lost
            with pytest.raises(DataLossError):
                read_store(store.root, readOrder=order, targetPartitionBytes=cut)
        if order == "commitlog":
            assert len(read.lost) <= 2, read.lost


def test_files_deleted_from_the_front_give_the_exact_lost_range(
    golden_store: Callable[[str], Any], read_store: Any
) -> None:
    store = golden_store("basic-5.5.0")
    truth = read_store(store.root, readOrder="queue").rows
    topic = truth[0]["topic"]
    min((store.root / "commitlog").iterdir()).unlink()
    size = int(store.config["mappedFileSizeCommitLog"])
    gone = [r for r in truth if r["topic"] == topic and r["physicalOffset"] < size]
    queues = sorted({r["partition"] for r in truth if r["topic"] == topic})
    broker = str(truth[0]["broker"])
    starts = "{" + ",".join(f'"{queue}":0' for queue in queues) + "}"
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"{broker}":{starts}}}}}'}
    with pytest.raises(DataLossError) as caught:
        read_store(store.root, **options)
    for queue in queues:
        first = sum(r["partition"] == queue for r in gone)
        assert f"topic {topic}, broker {broker}, queue {queue}: offsets 0 to {first} are gone" in (
            str(caught.value)
        )
    read = read_store(store.root, failOnDataLoss="false", **options)
    assert len(read.rows) == sum(r["topic"] == topic for r in truth) - len(gone)
    # From the earliest nothing is lost: it begins where the log does.
    assert len(read_store(store.root, subscribe=topic).rows) == len(read.rows)


def test_several_stores_and_their_brokers(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    first, second = golden_pristine("client-5.5.0").root, golden_pristine("client-4.9.7").root
    with pytest.raises(OptionError, match="none of"):
        read_store(f"{first},{second}", assign='{"ClientTopic":{"c":[0]}}', brokerName="a,b")
    read = read_store(f"{first},{second}", brokerName="a,b", subscribe="ClientTopic")
    one = read_store(first, subscribe="ClientTopic").rows
    assert sum(r["broker"] == "a" for r in read.rows) == len(one)
    assert {r["broker"] for r in read.rows} == {"a", "b"}
    assert {r["broker"] for r in one} == {"client-5.5.0"}
    glob = read_store(str(first.parent / "client-*"), subscribe="ClientTopic")
    assert len(glob.rows) == len(read.rows)


def test_starting_at_a_groups_offsets(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    store = golden_pristine("client-5.5.0")
    options = {"subscribe": "ClientTopic", "startingOffsets": "group"}
    everything = read_store(store.root, subscribe="ClientTopic").rows
    read = read_store(store.root, rocketmq__consumer__group="CG_all", **options)
    consumed = {0: 12, 1: 12, 2: 42, 3: 14}  # config/consumerOffset.json
    assert len(read.rows) == sum(r["offset"] >= consumed[r["partition"]] for r in everything)
    unknown = read_store(store.root, rocketmq__consumer__group="nobody", **options)
    assert len(unknown.rows) == len(everything)


def test_starting_and_ending_by_time(
    golden_pristine: Callable[[str], Any], read_store: Any
) -> None:
    store = golden_pristine("basic-5.5.0")
    everything = read_store(store.root).rows
    times = sorted({round(r["timestamp"].timestamp() * 1000) for r in everything})
    low, high = times[len(times) // 4], times[len(times) * 3 // 4]
    read = read_store(
        store.root,
        startingTimestamp=str(low),
        endingTimestamp=str(high),
        startingOffsetsByTimestampStrategy="latest",
    )
    expected = [
        _key(r) for r in everything if low <= round(r["timestamp"].timestamp() * 1000) < high
    ]
    assert [_key(r) for r in read.rows] == expected
    with pytest.raises(OptionError, match="no message at or after"):
        read_store(store.root, startingTimestamp=str(times[-1] + 1))


def test_points_in_queues_need_queues(growing_store: Any, read_store: Any, tmp_path: Path) -> None:
    for number in range(3):
        growing_store.append("A", 0, b"x", time=1000 + number)
    bare = tmp_path / "bare"
    shutil.copytree(growing_store.root / "commitlog", bare / "commitlog")
    both = f"{growing_store.root},{bare}"
    points = (
        {"startingTimestamp": "1001"},
        {"endingTimestamp": "1001"},
        {"startingOffsets": "group", "rocketmq.consumer.group": "g"},
    )
    for given, root in itertools.product(points, (bare, both)):
        options = {name.replace(".", "__"): value for name, value in given.items()}
        with pytest.raises(OptionError, match=f"{bare} has no ConsumeQueue"):
            read_store(root, **options)
    # Queues of another store are named: of this one nothing is asked for.
    name = growing_store.root.name
    named = {"assign": json.dumps({"A": {name: [0]}})}
    start = json.dumps({"A": {name: {"0": 1}}})
    for point in ({"startingTimestamp": "1001"}, {"startingOffsets": start}):
        assert [row["offset"] for row in read_store(both, **named, **point).rows] == [1, 2]
    with pytest.raises(OptionError, match="queues there"):
        read_store(both, assign='{"A":{"bare":[0]}}')
    assert len(read_store(both, readOrder="queue", **named).rows) == 3
    # So does a filter that is pushed down.
    here, there = (f.EqualTo(("broker",), broker) for broker in (name, "bare"))
    for more in ({"startingTimestamp": "1001"}, {"readOrder": "queue"}):
        assert [row["broker"] for row in read_store(both, [here], **more).rows][-2:] == [name] * 2
        with pytest.raises(OptionError, match=f"{bare} has no ConsumeQueue"):
            read_store(both, [there], **more)


def test_a_log_without_records_lacks_no_queues(
    growing_store: Any, read_store: Any, tmp_path: Path
) -> None:
    growing_store.append("A", 0, b"x", time=1000)
    (log := tmp_path / "bare" / "commitlog").mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(bytes(1 << 16))
    both = f"{growing_store.root},{log.parent}"
    for more in ({"startingTimestamp": "1000"}, {"readOrder": "queue"}):
        assert [row["offset"] for row in read_store(both, **more).rows] == [0]
    assert read_store(log.parent, readOrder="queue").rows == []
    options = parse_read_options({"path": both}, streaming=False)
    assert len(TagCountsReader(options).partitions()) == 1


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_beside_a_writer_a_read_sees_whole_records_up_to_a_stable_end(
    growing_store: Any, read_store: Any, order: str
) -> None:
    count = 1500

    def write() -> None:
        for number in range(count):
            growing_store.append("A", number % 3, b"%d" % number * (number % 300))

    def read() -> dict[int, int]:
        rows = read_store(growing_store.root, readOrder=order, columns="partition,offset").rows
        ends: dict[int, int] = {}
        for row in rows:
            assert row["offset"] == ends.get(row["partition"], 0)
            ends[row["partition"]] = row["offset"] + 1
        return ends

    growing_store.append("A", 3, b"first" * 100)
    writer = threading.Thread(target=write)
    writer.start()
    before: dict[int, int] = {}
    while writer.is_alive():
        after = read()
        assert all(after[queue] >= end for queue, end in before.items())
        before = after
    writer.join()
    assert read() == {0: count // 3, 1: count // 3, 2: count // 3, 3: 1}
