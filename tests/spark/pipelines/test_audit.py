"""Copies of a store are compared: equal, or every message that is missing, damaged or another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.client.blocking import Producer
from oberth.client.messages import Message
from oberth.errors import OptionError
from oberth.formats.message import FIXED_V4, MessageExt
from oberth.spark.pipelines import audit
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.offline.log_walk import walk
from oberth.store.offline.reader import StoreReader
from oberth.testing.blocking import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]
NAME = "basic-5.5.0"


@pytest.fixture
def pair(golden_pristine: Golden, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of one store."""
    found = []
    for name in "ab":
        shutil.copytree(golden_pristine(NAME).root, tmp_path / name)
        found.append(tmp_path / name)
    return found[0], found[1]


def messages(root: Path) -> list[MessageExt]:
    with StoreReader(root) as reader:
        return [each for each in walk(reader.log) if isinstance(each, MessageExt)]


def change(root: Path, offset: int, data: bytes) -> None:
    """Writes over bytes of the log."""
    for path in (root / "commitlog").iterdir():
        if 0 <= offset - int(path.name) < path.stat().st_size:
            with path.open("r+b") as file:
                file.seek(offset - int(path.name))
                file.write(data)
            return
    raise AssertionError(offset)


def compared(one: Path, other: Path, **options: Any) -> audit.AuditReport:
    return audit.audit_stores(InProcess(), str(one), str(other), range_size=10_000, **options)


def named(report: audit.AuditReport) -> list[tuple[str, str, str, int, int]]:
    return [
        (each.kind, Path(each.where).name, each.topic, each.queue_id, each.queue_offset)
        for each in report.findings
    ]


def of(message: MessageExt) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset


def test_equal_stores_are_equal(pair: tuple[Path, Path]) -> None:
    report = compared(*pair)
    assert report.equal
    assert report.end == messages(pair[0])[-1].commit_log_offset + messages(pair[0])[-1].record_size
    assert [each.start for each in report.ranges[1:]] == [each.end for each in report.ranges[:-1]]


@pytest.mark.parametrize("swap", [False, True])
def test_every_kind_of_difference_is_named(pair: tuple[Path, Path], swap: bool) -> None:
    one, other = pair
    found = messages(one)
    gone, torn, forged = found[3], found[len(found) // 2], found[-2]
    assert len({of(gone), of(torn), of(forged)}) == 3
    change(other, gone.commit_log_offset, bytes(gone.record_size))
    change(other, torn.commit_log_offset + 8, b"\7\6\5\4")  # the body's CRC
    # Another whole message in its place: a time of the client differs, which no CRC covers.
    change(other, forged.commit_log_offset + 40, b"\0\0\1\2\3\4\5\6")
    where = "b"
    report = compared(other, one) if swap else compared(one, other)
    assert not report.equal
    # The highest bytes of a size are zeros in both.
    assert report.first_difference is not None
    assert 0 <= report.first_difference - gone.commit_log_offset < 4
    assert named(report) == [
        ("missing", where, *of(gone)),
        ("damaged", where, *of(torn)),
        ("differs", "", *of(forged)),
    ]
    assert report.findings[0].keys == gone.properties.get("KEYS", "")
    assert [each.commit_log_offset for each in report.findings] == [
        each.commit_log_offset for each in (gone, torn, forged)
    ]
    assert gone.topic in str(report.findings[0])


@pytest.mark.parametrize("range_size", [500, 3000, 1 << 20])
def test_any_cut_names_a_message_once(pair: tuple[Path, Path], range_size: int) -> None:
    one, other = pair
    found = messages(one)
    for message in found[5:25]:  # up to the last byte of each
        change(other, message.commit_log_offset + message.record_size - 1, b"\x07")
    report = audit.audit_stores(InProcess(), str(one), str(other), range_size=range_size)
    assert [each.commit_log_offset for each in report.findings] == [
        each.commit_log_offset for each in found[5:25]
    ]


def test_a_tail_that_is_lost_is_missing_unless_only_what_is_common_counts(
    pair: tuple[Path, Path],
) -> None:
    one, other = pair
    found = messages(one)
    lost = found[-4:]
    end = lost[-1].commit_log_offset + lost[-1].record_size
    change(other, lost[0].commit_log_offset, bytes(end - lost[0].commit_log_offset))
    report = compared(one, other)
    assert named(report) == [("missing", "b", *of(each)) for each in lost]
    assert report.first_difference == lost[0].commit_log_offset
    assert compared(one, other, common=True).equal
    assert named(compared(other, one)) == named(report)


def test_a_segment_that_is_gone(golden_pristine: Golden, tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(golden_pristine("cleaned-5.5.0").root, tmp_path / name)
    segments = sorted((tmp_path / "b" / "commitlog").iterdir())
    assert len(segments) > 2
    start, end = int(segments[1].name), int(segments[2].name)
    segments[1].unlink()
    report = compared(tmp_path / "a", tmp_path / "b")
    lost = [each for each in messages(tmp_path / "a") if start <= each.commit_log_offset < end]
    assert lost
    assert named(report) == [("missing", "b", *of(each)) for each in lost]


def test_a_receipt_tells_what_has_changed_since(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(compared(one, other).receipt()))
    receipt = audit.read_receipt(str(path))
    assert compared(one, other, receipt=receipt).equal
    message = messages(one)[7]
    for root in pair:  # the same in both: only the receipt knows
        change(root, message.commit_log_offset + 40, b"\0\0\1\2\3\4\5\6")
    assert compared(one, other).equal
    report = compared(one, other, receipt=receipt)
    assert not report.equal
    (changed,) = report.since_receipt
    assert changed.start <= message.commit_log_offset < changed.end


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":"oberth-audit","version":2}',
                                  '{"format":"oberth-audit","version":1,"ranges":[[1]]}',
                                  '{"format":"oberth-audit","version":1,"ranges":[]}'])  # fmt: skip
def test_what_is_no_receipt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="receipt"):
        audit.read_receipt(str(path))


@pytest.mark.parametrize("name", [NAME, "innerbatch-5.5.0", "trans-5.5.0", "cleaned-5.5.0"])
def test_an_exact_export_is_compared_record_by_record(
    golden_store: Golden, tmp_path: Path, name: str
) -> None:
    root = golden_store(name).root
    target = tmp_path / "out"
    export(InProcess(), str(root), str(target), ExportSettings(exact=True), range_size=50_000)

    def compared(**options: Any) -> audit.AuditReport:
        return audit.audit_export(InProcess(), str(root), str(target), range_size=30_000, **options)

    found = messages(root)
    report = compared()
    assert report.equal, report.findings
    assert report.messages == len(found)
    gone, other = found[1], found[len(found) // 2]
    change(root, gone.commit_log_offset, bytes(gone.record_size))
    change(root, other.commit_log_offset + 40, b"\0\0\1\2\3\4\5\6")
    assert named(compared()) == [
        ("missing", root.name, *of(gone)),
        ("differs", "", *of(other)),
    ]


def test_messages_that_an_export_does_not_have(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store(NAME).root
    target = tmp_path / "out"
    found = messages(root)
    tail = found[-3:]
    end = tail[-1].commit_log_offset + tail[-1].record_size
    store = sorted((root / "commitlog").iterdir())[-1]
    whole = store.read_bytes()
    change(root, tail[0].commit_log_offset, bytes(end - tail[0].commit_log_offset))
    export(InProcess(), str(root), str(target), ExportSettings(exact=True))
    store.write_bytes(whole)
    report = audit.audit_export(InProcess(), str(root), str(target))
    assert named(report) == [("missing", "out", *of(each)) for each in tail]
    assert audit.audit_export(InProcess(), str(root), str(target), common=True).equal


def _put_row_in_place_of(target: Path, gone: int, kept: int) -> tuple[int, int]:
    """Gives where the records of both rows are; the export has as many rows as before.

    Rows are counted in the order of the log, from the first inner batch on if there is one.
    """
    path = max(target.rglob("*.parquet"), key=lambda each: pq.read_metadata(each).num_rows)
    # As a file of its own: a directory name=value above it must not become a column.
    with pq.ParquetFile(path) as file:
        table = file.read()
    order = pc.sort_indices(
        table, [("physicalOffset", "ascending"), ("innerIndex", "ascending")]
    ).to_pylist()
    places = table.column("physicalOffset").take(pa.array(order)).to_pylist()
    first = next((at for at, pair in enumerate(pairwise(places)) if pair[0] == pair[1]), 0)
    gone, kept = (at + first if at >= 0 else at for at in (gone, kept))
    order[gone] = order[kept]
    pq.write_table(table.take(pa.array(order)), path)
    return places[gone], places[kept]


def test_a_row_that_is_there_twice_in_the_place_of_another(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store(NAME).root
    target = tmp_path / "out"
    export(InProcess(), str(root), str(target), ExportSettings(exact=True))
    gone, twice = _put_row_in_place_of(target, 4, 9)
    report = audit.audit_export(InProcess(), str(root), str(target), range_size=30_000)
    assert [(each.kind, each.where, each.commit_log_offset) for each in report.findings] == [
        ("missing", str(target), gone),
        ("twice", str(target), twice),
    ]
    assert report.messages == len(messages(root)) - 1


@pytest.mark.parametrize(
    ("gone", "kept", "kinds"),
    [(1, 0, ["twice"]), (0, 1, ["missing"]), (1, -1, ["missing", "twice"])],
)
def test_each_message_of_an_inner_batch_has_one_row(
    gone: int, kept: int, kinds: list[str], golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("innerbatch-5.5.0").root
    target = tmp_path / "out"
    export(InProcess(), str(root), str(target), ExportSettings(exact=True))
    places = _put_row_in_place_of(target, gone, kept)
    report = audit.audit_export(InProcess(), str(root), str(target))
    assert [(each.kind, each.commit_log_offset) for each in report.findings] == [
        (kind, place) for kind, place in zip(kinds, places, strict=False)
    ]


@pytest.mark.spark
def test_on_spark_with_receipt_and_exit_codes(
    spark: SparkSession, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = map(str, pair)
    receipt = str(tmp_path / "receipt.json")
    words = ["spark", "audit", one, other]
    done = CliRunner().invoke(oberth, [*words, "--receipt", receipt])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(oberth, [*words, "--check", receipt]).exit_code == 0
    message = messages(pair[0])[9]
    change(pair[1], message.commit_log_offset + message.record_size - 1, b"\x07")
    done = CliRunner().invoke(oberth, [*words, "--check", receipt, "--json"])
    assert done.exit_code == 1, done.output
    shown = json.loads(done.stdout)
    assert shown["firstDifference"] == message.commit_log_offset + message.record_size - 1
    assert shown["findings"][0]["queueOffset"] == message.queue_offset
    assert len(shown["changedSinceReceipt"]) == 1
    assert CliRunner().invoke(oberth, words[:3]).exit_code == 2
    assert CliRunner().invoke(oberth, [*words[:3], str(tmp_path)]).exit_code == 2


@pytest.mark.spark
def test_a_store_and_its_live_broker(spark: SparkSession, tmp_path: Path) -> None:
    with (
        EmbeddedBroker() as broker,
        Producer("audit", namesrv_addr=broker.namesrv_addr) as producer,
    ):
        for number in range(30):
            producer.send(Message("Audited", f"message {number}".encode(), keys=f"k{number}"))
        root = broker.broker.parts.store.root
        options = {"rocketmq.namesrv.addr": broker.namesrv_addr}
        broker.broker.parts.store.flush()
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        producer.send(Message("Audited", b"after the copy"))
        report = audit.audit_live(spark, str(copy), options)
        assert report.equal, report.findings
        assert report.messages == 30
        wanted = [each for each in messages(copy) if each.topic == "Audited"]
        change(copy, wanted[4].commit_log_offset + 40, b"\0\0\1\2\3\4\5\6")
        report = audit.audit_live(spark, str(copy), options)
        assert [(each.kind, each.keys) for each in report.findings] == [
            ("differs", wanted[4].properties["KEYS"])
        ]
        # Neither damage nor a hole ends the audit: both are told.
        change(copy, wanted[7].commit_log_offset + FIXED_V4.size, b"\7")
        change(copy, wanted[9].commit_log_offset, bytes(wanted[9].record_size))
        report = audit.audit_live(spark, str(copy), options)
        told = [(each.kind, each.where, each.keys) for each in report.findings]
        assert told == [
            ("differs", "", "k4"), ("damaged", str(copy), "k7"), ("missing", str(copy), "k9"),
        ]  # fmt: skip


@pytest.mark.spark
def test_a_store_that_its_broker_writes_to_is_equal(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come while it is read lie behind the end that was fixed before."""
    plan = audit._messages
    with (
        EmbeddedBroker() as broker,
        Producer("audit", namesrv_addr=broker.namesrv_addr) as producer,
    ):
        producer.send(Message("Audited", b"before"))
        sent = 0

        def messages_while_sending(*arguments: Any) -> Any:
            nonlocal sent
            producer.send(Message("Audited", b"while it is planned"))
            sent += 1
            return plan(*arguments)

        monkeypatch.setattr(audit, "_messages", messages_while_sending)
        store = broker.broker.parts.store
        report = audit.audit_live(
            spark, str(store.root), {"rocketmq.namesrv.addr": broker.namesrv_addr}
        )
        assert report.equal, report.findings
        assert (sent, report.messages) == (2, 1)
