"""Apache's store code opens what our store wrote and reads the same: by running it.

The reading program itself is held against the golden stores first, so that a difference later is
one of the stores and not of the program.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.apache_store import ApacheDump, StoredMessage, put_messages, read_store

from oberth.errors import PeerUnavailableError
from oberth.formats.broker_conf import read_store_config
from oberth.formats.properties import encode_properties
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader

pytestmark = pytest.mark.interop

#: Fields that only some readers give.
_NOT_COMPARED = {"crcOk", "dispatch", "inner"}
_GOLDEN = (
    "client-5.5.0",
    "client-4.9.7",
    "compressed-5.5.0",
    "cqext-4.9.7",
    "crash-noqueue-4.9.7",
    "innerbatch-5.5.0",
)


def _read(root: Path, version: str, config: dict[str, str], **more: Any) -> ApacheDump:
    try:
        return read_store(root, version, config, **more)
    except PeerUnavailableError as why:
        pytest.skip(str(why))


@pytest.mark.slow
@pytest.mark.parametrize("name", _GOLDEN)
def test_reader_agrees_with_golden(golden_store: Callable[[str], Any], name: str) -> None:
    golden = golden_store(name)
    dump = _read(golden.root, golden.rocketmq_version, golden.config, start="noqueue" in name)
    assert len(dump.messages) == len(golden.facts["messages"])
    for found, expected in zip(dump.messages, golden.facts["messages"], strict=True):
        compared = {k: v for k, v in expected.items() if k not in _NOT_COMPARED}
        assert {key: found.get(key) for key in compared} == compared
    queues = {(q["topic"], q["queueId"]): q for q in dump.queues}
    assert set(queues) == {(q["topic"], q["queueId"]) for q in golden.facts["queues"]}
    for expected in golden.facts["queues"]:
        found = queues[expected["topic"], expected["queueId"]]
        for key in ("minOffset", "maxOffset", "units"):
            assert found[key] == expected[key], (expected["topic"], expected["queueId"], key)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("kill", [False, True])
def test_put_is_read_back(tmp_path: Path, version: str, kill: bool) -> None:
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    messages = [
        StoredMessage(
            topic=f"T{i % 3}",
            queue_id=i % 2,
            body=bytes([i % 256]) * (i * 37 % 3000),
            tags="t" if i % 4 else "",
            keys=f"k{i} common",
            properties={"n": str(i)},
        )
        for i in range(200)
    ]
    try:
        results = put_messages(tmp_path / "store", version, messages, sizes, kill=kill)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert [r["status"] for r in results] == ["PUT_OK"] * len(messages)
    questions = [("key", "T1", "common", 10, 0, 2**62), ("get", "T0", 0, 0, 8)]
    dump = _read(tmp_path / "store", version, sizes, start=True, questions=questions)
    assert [m["commitLogOffset"] for m in dump.messages] == [r["commitLogOffset"] for r in results]
    for found, sent in zip(dump.messages, messages, strict=True):
        assert found["topic"] == sent.topic
        assert found["properties"]["n"] == sent.properties["n"]
        assert (found["bodyLength"] or 0) == len(sent.body)
        if sent.body:
            assert found["bodySha256"] == hashlib.sha256(sent.body).hexdigest()
    assert len(dump.answers[0]["commitLogOffsets"]) == 10
    assert dump.answers[1]["status"] == "FOUND"


SIZES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


def _our_store(root: Path) -> MessageStore:
    return MessageStore(read_store_config(overrides={**SIZES, "storePathRootDir": str(root)}))


def _our_messages(count: int) -> list[MessageExtBrokerInner]:
    messages = []
    for i in range(count):
        properties = {
            "KEYS": f"k{i} common",
            "UNIQ_KEY": f"{i:032X}",
            "n": str(i),
            "имя": "значение",
        }
        if i % 4:
            properties["TAGS"] = ("red", "polygenelubricants", "зелёный")[i % 3]
        messages.append(
            MessageExtBrokerInner(
                f"T{i % 3}",
                bytes([i % 256]) * (i * 37 % 3000),
                encode_properties(properties),
                queue_id=i % 2,
                flag=i,
                born_timestamp=1_700_000_000_000 + i,
                reconsume_times=i % 5,
            )
        )
    return messages


def _check_same(dump: ApacheDump, store: MessageStore) -> None:
    """What Apache read is what our store holds: records by offset, units by queue."""
    assert dump.load["load"] is True
    assert dump.load["maxOffset"] == store.max_phy_offset
    for found in dump.messages:
        own = store.look_message_by_offset(found["commitLogOffset"])
        assert own is not None
        assert (own.topic, own.queue_id, own.queue_offset) == (
            found["topic"],
            found["queueId"],
            found["queueOffset"],
        )
        assert own.properties == found["properties"]
        assert own.born_timestamp == found["bornTimestamp"]
        assert own.store_timestamp == found["storeTimestamp"]
        assert own.reconsume_times == found["reconsumeTimes"]
        if found["bodyLength"]:
            assert hashlib.sha256(own.body).hexdigest() == found["bodySha256"]
    queues = {(q["topic"], q["queueId"]): q["units"] for q in dump.queues if q["units"]}
    assert set(queues) == {(t, q) for t in store.topics() for q in store.queue_ids(t)}
    for (topic, queue_id), units in queues.items():
        own_units = [
            [offset, unit.commit_log_offset, unit.record_size, unit.tags_code]
            for offset, unit in enumerate(
                store.iterate_consume_queue(topic, queue_id, 0, 1_000_000)
            )
        ]
        assert units == own_units, (topic, queue_id)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("queues", ["kept", "deleted"])
def test_apache_reads_ours_and_we_read_theirs(
    tmp_path: Path, version: str, killed: bool, queues: str
) -> None:
    root = tmp_path / "store"
    store = _our_store(root)
    store.load()
    store.start()
    results = [store.put_message(message) for message in _our_messages(300)]
    assert all(result.ok for result in results)
    store.flush()
    if killed:
        store.kill()
    else:
        store.shutdown()
    if queues == "deleted":
        shutil.rmtree(root / "consumequeue", ignore_errors=True)  # a killed one may have none
        shutil.rmtree(root / "index", ignore_errors=True)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    # Apache opens it, with recovery, and reads the same.
    questions = [("key", "T1", "common", 10, 0, 2**62), ("key", "T0", "k3", 10, 0, 2**62)]
    dump = _read(copy, version, SIZES, start=True, questions=questions)
    assert [m["commitLogOffset"] for m in dump.messages] == [r.commit_log_offset for r in results]
    assert len(dump.answers[0]["commitLogOffsets"]) == 10
    assert dump.answers[1]["commitLogOffsets"] == [results[3].commit_log_offset]
    with _our_store(root) as reopened:
        _check_same(dump, reopened)
    # It writes on where we stopped, and we read all of it.
    more = [StoredMessage("T1", b"theirs" * i, keys="theirs", tags="red") for i in range(30)]
    assert {r["status"] for r in put_messages(copy, version, more, SIZES)} == {"PUT_OK"}
    with _our_store(copy) as after:
        assert after.max_offset_in_queue("T1", 0) == 50 + 30
        found = after.query_message("T1", "theirs", 64, 0, 2**62)
        assert len(found.records) == 30
        _check_same(_read(shutil.copytree(copy, tmp_path / "again"), version, SIZES), after)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_lost_message_hides_no_other_from_apache(tmp_path: Path, version: str) -> None:
    """Queues that were built over damage: Apache skips no more than the message that is gone."""
    root = tmp_path / "store"
    with _our_store(root) as store:
        results = [store.put_message(message) for message in _our_messages(300)]
    lost = 6  # the second message of T0's first queue, in the first of several segments
    with (root / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(results[lost].commit_log_offset + 4)
        segment.write(bytes(4))  # its magic
    shutil.rmtree(root / "consumequeue")
    with _our_store(root) as store:
        assert store.max_offset_in_queue("T0", 0) == 50
    questions = [("get", "T0", 0, offset, 1) for offset in range(50)]
    dump = _read(root, version, SIZES, start=True, questions=questions)
    kept = [results[i].commit_log_offset for i in range(0, 300, 6) if i != lost]
    found = [offset for answer in dump.answers for offset in answer["commitLogOffsets"]]
    assert sorted(set(found)) == kept
    assert dump.answers[1]["commitLogOffsets"] == [kept[1]], "the next one, instead of the lost one"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_apache_ends_no_log_where_a_power_cut_tore_it(tmp_path: Path, version: str) -> None:
    """Sectors of two records were lost; we recovered the store, then Apache opens it."""
    root = tmp_path / "store"
    with _our_store(root) as store:
        results = [store.put_message(message) for message in _our_messages(30)]
    store = _our_store(root)
    store.load()
    store.start()
    results += [store.put_message(message) for message in _our_messages(300)[30:]]
    store.flush()
    store.kill()
    lost = {results[80].commit_log_offset: 300, results[110].commit_log_offset + 120: 512}
    for at, size in lost.items():
        start = at - at % int(SIZES["mappedFileSizeCommitLog"])
        with (root / "commitlog" / f"{start:020d}").open("r+b") as segment:
            segment.seek(at - start)
            segment.write(bytes(size))
    with _our_store(root) as store:
        assert store.report is not None
        assert len(store.report.damages) == 2
    dump = _read(root, version, SIZES, start=True)
    found = [each["commitLogOffset"] for each in dump.messages if each["topic"].startswith("T")]
    assert found == [r.commit_log_offset for n, r in enumerate(results) if n not in (80, 110)]
    with _our_store(root) as after:
        assert after.max_phy_offset == dump.load["maxOffset"] == results[-1].end_offset


@pytest.mark.slow
def test_offsets_by_time_of_batch_queues(golden_store: Callable[[str], Any]) -> None:
    """Every time around every batch, both boundaries: the store, offline and Apache agree."""
    golden = golden_store("innerbatch-5.5.0")
    topic = "InnerBatch"
    queues = [q for q in golden.facts["queues"] if q["topic"] == topic]
    stored = {m["commitLogOffset"]: m["storeTimestamp"] for m in golden.facts["messages"]}
    questions: list[tuple[object, ...]] = []
    for queue in queues:
        times = {stored[unit[1]] + step for unit in queue["units"] for step in (-1, 0, 1)}
        for boundary in ("LOWER", "UPPER"):
            questions += [("time", topic, queue["queueId"], t, boundary) for t in sorted(times)]
    copy = golden.root.parent / "theirs"
    shutil.copytree(golden.root, copy)
    dump = _read(copy, golden.rocketmq_version, golden.config, questions=questions)
    expected = [answer["offset"] for answer in dump.answers]
    with StoreReader(golden.root) as reader:
        offline = [reader.offset_by_time(*question[1:]) for question in questions]  # type: ignore[arg-type]
    assert offline == expected
    attributes = {"queue.type": "BatchCQ"}
    options = read_store_config(
        overrides={**golden.config, "storePathRootDir": str(golden.root)}, strict=False
    )
    with MessageStore(
        options, topic_attributes=lambda name: attributes if name == topic else {}
    ) as store:
        ours = [store.offset_in_queue_by_time(*question[1:]) for question in questions]  # type: ignore[arg-type]
    assert ours == expected


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_queues_that_do_not_exist(tmp_path: Path, version: str) -> None:
    questions = [("bounds", "nobody", 0), ("time", "nobody", 0, 1000, "LOWER")]
    dump = _read(tmp_path / "theirs", version, {}, questions=questions)
    with _our_store(tmp_path / "ours") as store:
        bounds = {
            "min": store.min_offset_in_queue("nobody", 0),
            "max": store.max_offset_in_queue("nobody", 0),
        }
        offset = store.offset_in_queue_by_time("nobody", 0, 1000)
    assert [{**dump.answers[0], **bounds}, {**dump.answers[1], "offset": offset}] == dump.answers
