"""Every golden store, read without the engine, gives what RocketMQ's own code read from it.

Sizes come from the files alone (only stores without queue files are told theirs).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from oberth.store.offline.dump import dump
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.index_view import query_offsets
from oberth.store.offline.inspect import inspect
from oberth.store.offline.log_columns import ColumnReader, Rows
from oberth.store.offline.log_walk import Damage, DamagedRecord, LogEnd
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.verify import verify

Open = Callable[..., StoreReader]
Pristine = Callable[[str], Any]

QUEUE_DIRECTORIES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
# What is wrong with each store by its name's beginning; all others are clean.
DAMAGE = {
    "badcrc-tail": {FindingKind.LOG_TAIL},
    "stale-tail": {FindingKind.LOG_TAIL},
    "torn-tail": {FindingKind.LOG_TAIL},
    "flipped-bit": {FindingKind.RECORD_CRC},
    "clean-noqueue": {FindingKind.QUEUE_MISSING, FindingKind.INDEX_MISSING},
    "cleaned-noqueue": {FindingKind.QUEUE_MISSING, FindingKind.INDEX_MISSING},
    "crash-noqueue": {FindingKind.QUEUE_MISSING, FindingKind.INDEX_MISSING},
}


def live_messages(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The listed messages; RocketMQ takes two stale records for messages, Oberth does not."""
    messages: list[dict[str, Any]] = facts["messages"]
    return messages[:-2] if facts["store"].startswith("stale-tail") else messages


def comparable(ours: dict[str, Any], listed: dict[str, Any]) -> dict[str, Any]:
    """Our message in the form of the listing, which leaves out long bodies."""
    ours = dict(ours)
    if listed.get("body", "") is None:
        assert len(ours["body"]) > 0
        ours["body"] = None
    if "inner" in listed:
        ours["inner"] = [
            comparable(mine, theirs)
            for mine, theirs in zip(ours["inner"], listed["inner"], strict=True)
        ]
    return ours


def test_dump_equals_the_listing_field_by_field(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    store = golden_pristine(golden_name)
    listed = live_messages(store.facts)
    ours = list(dump(open_reader(store.root)))
    assert len(ours) == len(listed)
    for mine, theirs in zip(ours, listed, strict=True):
        assert comparable(mine, theirs) == theirs


def test_bodies_are_whole(golden_pristine: Pristine, open_reader: Open) -> None:
    import base64

    store = golden_pristine("basic-5.5.0")
    longest = 0
    for message in dump(open_reader(store.root)):
        if message["bodyLength"] is None:
            assert message["storedBodyLength"] == 0
            continue
        body = base64.b64decode(message["body"])
        assert len(body) == message["bodyLength"]
        assert hashlib.sha256(body).hexdigest() == message["bodySha256"]
        longest = max(longest, len(body))
    assert longest > 40_000


def test_verify_finds_the_listed_damage_and_nothing_else(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    store = golden_pristine(golden_name)
    report = verify(open_reader(store.root))
    name = golden_name.rsplit("-", 1)[0]
    expected = next((DAMAGE[key] for key in DAMAGE if name.startswith(key)), set())
    assert {finding.kind for finding in report.damage} == expected
    assert report.clean == (not expected)
    assert report.records == len(live_messages(store.facts))
    if FindingKind.LOG_TAIL in expected:
        (finding,) = report.damage
        end = live_messages(store.facts)[-1]
        assert finding.commit_log_offset == end["commitLogOffset"] + end["storeSize"]
    if FindingKind.RECORD_CRC in expected:
        (finding,) = report.damage
        (bad,) = [each for each in store.facts["messages"] if not each["crcOk"]]
        assert finding.commit_log_offset == bad["commitLogOffset"]
        assert (finding.topic, finding.queue_id, finding.queue_offset) == (
            bad["topic"], bad["queueId"], bad["queueOffset"],
        )  # fmt: skip


def test_columns_and_walk_agree(
    golden_name: str, golden_pristine: Pristine, open_reader: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_pristine(golden_name)
    reader = open_reader(store.root)
    walked: list[tuple[Any, ...]] = []
    for item in reader.walk():
        if isinstance(item, Damage):
            walked.append((item.start, item.end))
        else:
            bad = isinstance(item, DamagedRecord)
            message = item.message if isinstance(item, DamagedRecord) else item
            walked.append((message.commit_log_offset, message.topic, int(not bad)))
    # Pieces smaller than a record, of some records, and larger than the store.
    for size in (500, 9000, 4 << 20):
        if size == 500 and golden_name.startswith("defaults"):
            continue
        monkeypatch.setattr("oberth.store.offline.log_columns.PIECE_SIZE", size)
        columns = ColumnReader(reader.log, ("topic_id",), threads=2)
        read: list[tuple[Any, ...]] = []
        end: LogEnd | None = None
        for part in columns:
            if isinstance(part, Rows):
                rows = part.columns
                read += [
                    (
                        rows.commit_log_offset[row],
                        columns.topics.names[rows.topic_id[row]].decode(),
                        rows.crc_ok[row],
                    )
                    for row in range(rows.count)
                ]
            elif isinstance(part, Damage):
                read.append((part.start, part.end))
            elif isinstance(part, LogEnd):
                end = part
        assert read == walked
        assert end == reader.log_end


def test_queues_have_the_listed_range(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    if "noqueue" in golden_name:
        pytest.skip("the queues were deleted")
    store = golden_pristine(golden_name)
    reader = open_reader(store.root)
    listed = {
        (queue["topic"], queue["queueId"]): (queue["storeMinOffset"], queue["storeMaxOffset"])
        for queue in store.facts["queues"]
        if queue["units"]
    }
    for (topic, queue_id), (low, high) in listed.items():
        mine = reader.queue_range(topic, queue_id)
        if golden_name.startswith("cleaned-logonly"):
            # The units are there, their records are not: we say where reading begins.
            assert low <= mine[0] <= high
            assert mine[1] == high
        else:
            assert mine == (low, high)
    shown = {
        (queue["topic"], queue["queueId"]): queue["maxOffset"]
        for queue in inspect(reader)["queues"]
    }
    assert {key: high for key, (_, high) in listed.items()}.items() <= shown.items()


def test_index_queries_give_the_listed_results(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    store = golden_pristine(golden_name)
    if store.facts["abortFile"] or "noqueue" in golden_name:
        pytest.skip("RocketMQ listed the queries after it had changed the index")
    reader = open_reader(store.root)
    listed = {each["commitLogOffset"]: each for each in store.facts["messages"]}
    for query in store.facts["indexQueries"]:
        kind = query.get("indexType")
        where = (query["begin"], query["end"], kind)
        offsets = query_offsets(
            reader.index_files(), query["topic"], query["key"], query["maxNum"], *where
        )
        if "queryOffset" in query:
            assert offsets == query["queryOffset"]
        asked: dict[str, Any] = {
            "max_num": query["maxNum"], "begin_ms": query["begin"], "end_ms": query["end"],
            "index_type": kind,
        }  # fmt: skip
        loose = reader.by_key(query["topic"], query["key"], any_key=True, **asked)
        assert [each.commit_log_offset for each in loose] == query["queryMessage"]
        exact = reader.by_key(query["topic"], query["key"], **asked)
        for message in exact:
            facts = listed[message.commit_log_offset]
            words = (facts["properties"].get("KEYS") or "").split(" ")
            assert facts["topic"] == query["topic"]
            assert query["key"] in (
                *words, facts["properties"].get("UNIQ_KEY"), facts["properties"].get("TAGS"),
            )  # fmt: skip


def test_offsets_by_time_are_those_of_5_x(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    store = golden_pristine(golden_name)
    if "noqueue" in golden_name or store.rocketmq_version.startswith("4."):
        pytest.skip("no queues, or the rule of 4.9, which goes by modification times")
    if golden_name.startswith("cleaned-logonly"):
        pytest.skip("RocketMQ answers with units whose records are gone")
    reader = open_reader(store.root)
    for query in store.facts["getOffsetInQueueByTime"]:
        offset = reader.offset_by_time(
            query["topic"], query["queueId"], query["timestamp"], query["boundary"]
        )
        assert offset == query["offset"], query


def test_every_id_finds_its_message(
    golden_name: str, golden_pristine: Pristine, open_reader: Open
) -> None:
    store = golden_pristine(golden_name)
    reader = open_reader(store.root)
    messages = [each for each in live_messages(store.facts) if each["crcOk"]]
    for listed in messages[:: max(1, len(messages) // 25)]:
        offset = listed["commitLogOffset"]
        assert reader.by_id(listed["msgId"]).commit_log_offset == offset
        unique = listed["properties"].get("UNIQ_KEY")
        rolled_back = listed["storedSysFlag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        if unique and reader.index_files() and not rolled_back:
            found = reader.by_id(unique, listed["topic"])
            assert found.uniq_key == unique


def tree(root: Path, directories: tuple[str, ...]) -> dict[str, str]:
    """SHA-256 of each file below some directories, by relative path."""
    found = {}
    for name in directories:
        for directory, _, files in os.walk(root / name):
            for file in files:
                path = Path(directory, file)
                found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def index_bytes(root: Path) -> list[bytes]:
    """The index files in the order of their names."""
    folder = root / "index"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def test_rebuild_makes_the_same_bytes(
    golden_name: str,
    golden_pristine: Pristine,
    open_reader: Open,
    sizes: Callable[[dict[str, str]], dict[str, str]],
    tmp_path: Path,
) -> None:
    store = golden_pristine(golden_name)
    without_queues = "noqueue" in golden_name
    reader = open_reader(store.root, sizes(store.config) if without_queues else None)
    report = rebuild(reader, str(tmp_path / "made"))
    made = tree(tmp_path / "made", QUEUE_DIRECTORIES)
    if without_queues:
        listed = {
            file["path"]: file["sha256"]
            for file in store.facts["filesAfterLoad"]
            if file["path"].startswith(QUEUE_DIRECTORIES)
        }
        if golden_name == "crash-noqueue-5.5.0":
            # RocketMQ begins where its checkpoint says and leaves out what is older.
            assert made.keys() == listed.keys()
            assert made != listed
        else:
            assert made == listed
        (ours,) = index_bytes(tmp_path / "made")
        assert len(ours) == 40 + 4 * int(store.config["maxHashSlotNum"]) + 20 * int(
            store.config["maxIndexNum"]
        )
        return
    theirs = tree(store.root, QUEUE_DIRECTORIES)
    if golden_name.startswith("torn-tail"):
        # The queue has a unit of the torn record, which is no record any more.
        changed = [path for path in theirs if made.get(path) != theirs[path]]
        assert len(changed) == 1
        assert made.keys() == theirs.keys()
        return
    assert made == theirs
    if not golden_name.startswith("defaults"):
        assert index_bytes(tmp_path / "made") == index_bytes(store.root)
    assert report.stand_ins == {}
    assert report.anomalies == []


def test_rebuilt_store_is_clean(
    golden_name: str, golden_store: Pristine, open_reader: Open
) -> None:
    if golden_name.startswith(("badcrc", "stale", "torn", "flipped", "defaults")):
        pytest.skip("its log is damaged, or it is large")
    store = golden_store(golden_name)
    rebuild(open_reader(store.root))
    assert not list(Path(store.root).glob("*.oberth-*"))
    report = verify(open_reader(store.root))
    assert report.clean, [str(finding) for finding in report.damage]
