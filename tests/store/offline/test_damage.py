"""One flipped bit anywhere costs at most the message or entry that it hits.

Bits of a small store's files are flipped one at a time, all kinds of places chosen by Hypothesis;
reading, verify and salvage are compared with the undamaged store. Larger damage (ranges, cut off
and missing files) must leave salvage with all that reading still finds.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples

from oberth.formats.message import FIXED, HOST_BITS, MessageExt, decode_record
from oberth.formats.sys_flag import (
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from oberth.spark.pipelines.salvage import salvage as salvage_in_tasks
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.offline.filler import is_filler
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.mended_records import numbered_batch
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.salvage import salvage
from oberth.store.offline.verify import verify

Pristine = Callable[[str], Any]
STORE = "crash-4.9.7"
SIZE = {"mappedFileSizeCommitLog": "131072"}
relaxed = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def damaged_root(
    golden_pristine: Pristine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """One copy for the module; each example puts right what it flipped."""
    root = tmp_path_factory.mktemp("damage") / STORE
    shutil.copytree(golden_pristine(STORE).root, root)
    yield root
    shutil.rmtree(root)


def messages(root: Path) -> dict[int, bytes]:
    """Each valid record that is no filler, by its CommitLog offset."""
    with StoreReader(root, SIZE) as reader:
        return {each.commit_log_offset: each.encode() for each in reader.messages()
                if not is_filler(each)}  # fmt: skip


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    """One bit of a file is different for a while."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(data)


def files_below(root: Path, *directories: str) -> list[Path]:
    return sorted(
        path for name in directories for path in (root / name).rglob("*") if path.is_file()
    )


def covered(record: bytes, position: int) -> bool:
    """Whether something vouches for a byte of a record: CRC, lengths, unit or index entry.

    sysFlag, flag, born time and host, store host, reconsume times, the prepared offset and the
    properties are the application's and the client's word alone; of the store time the index keeps
    seconds. What is not dispatched has no unit to compare with, and an empty body no checksum.
    """
    message = decode_record(record)
    fixed = FIXED[message.sys_flag & HOST_BITS].size
    topic = fixed + len(message.body)
    in_queue = message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT)
    return (
        position < 8
        or 28 <= position < 36
        or fixed - 4 <= position < topic + 1
        or (8 <= position < 12 and message.body != b"")
        or (in_queue and (12 <= position < 16 or 20 <= position < 28))
        or (in_queue and topic < position < topic + 1 + len(message.topic.encode()))
    )


@given(data=st.data())
@relaxed
def test_a_bit_of_the_log(data: st.DataObject, damaged_root: Path) -> None:
    whole = messages(damaged_root)
    path = data.draw(st.sampled_from(files_below(damaged_root, "commitlog")))
    used = len(path.read_bytes().rstrip(b"\0"))
    position = data.draw(st.integers(0, max(used - 1, 0)))
    bit = data.draw(st.integers(0, 7))
    start = int(path.name)
    with flipped(path, position, bit):
        read = messages(damaged_root)
        changed = [offset for offset in whole if read.get(offset) != whole[offset]]
        assert len(changed) <= 1
        assert not read.keys() - whole.keys()
        hit = max((offset for offset in whole if offset <= start + position), default=0)
        if hit in whole and start + position < hit + len(whole[hit]):
            assert changed in ([], [hit])
            if covered(whole[hit], start + position - hit):
                with StoreReader(damaged_root) as reader:
                    report = verify(reader)
                assert report.findings
                places = {
                    each.commit_log_offset for each in report.findings
                }  # the record, or what leads to it
                assert hit in places or any(path.name in each.file for each in report.findings)


@given(data=st.data())
@relaxed
def test_a_bit_of_a_queue(data: st.DataObject, damaged_root: Path) -> None:
    path = data.draw(st.sampled_from(files_below(damaged_root, "consumequeue")))
    position = data.draw(st.integers(0, len(path.read_bytes()) - 1))
    with flipped(path, position, data.draw(st.integers(0, 7))):
        whole = messages(damaged_root)
        with StoreReader(damaged_root) as reader:
            report = verify(reader)
            assert len(report.findings) == 1
            (finding,) = report.findings
            assert finding.file == str(path.relative_to(damaged_root))
            assert finding.position == position // 20 * 20
            assert finding.topic is not None
            assert finding.queue_id is not None
            reached = {
                message.commit_log_offset
                for key in reader.queue_keys()
                for _, _, message in reader.queue_messages(key.topic, key.queue_id)
                if message is not None
            }
        # Rolled back and prepared records are in no queue.
        assert len(whole) - len(reached & whole.keys()) <= 3


@pytest.mark.parametrize("bit", range(8))
def test_the_first_entry_of_an_index_file_points_a_little_off(bit: int, damaged_root: Path) -> None:
    """A file begins with the record that its first entry names: which is then none."""
    offset_position = 40 + 50 * 4 + 20 + 4  # header, slots, the entry that is never used, the hash
    for path in files_below(damaged_root, "index"):
        with flipped(path, offset_position + 7, bit), StoreReader(damaged_root) as reader:
            (finding,) = verify(reader).findings
            assert finding.file == str(path.relative_to(damaged_root))
            assert finding.found.startswith("entry 1: ")


def test_an_entry_that_points_at_what_looks_like_a_longer_address(damaged_root: Path) -> None:
    path = files_below(damaged_root, "index")[0]
    with flipped(path, 6229, 2), StoreReader(damaged_root) as reader:
        found = {each.file for each in verify(reader).findings}
    assert found == {str(path.relative_to(damaged_root))}


@given(data=st.data())
@relaxed
def test_a_bit_of_the_index(data: st.DataObject, damaged_root: Path) -> None:
    path = data.draw(st.sampled_from(files_below(damaged_root, "index")))
    position = data.draw(st.integers(0, len(path.read_bytes()) - 1))
    with flipped(path, position, data.draw(st.integers(0, 7))), StoreReader(damaged_root) as reader:
        report = verify(reader)
        assert report.findings
        assert {each.file for each in report.findings} == {str(path.relative_to(damaged_root))}


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["bits", "zeros", "noise", "cut"]))
@example(seed=7, kind="noise")
@example(seed=10, kind="zeros")  # takes the end of a record's properties along
@example(seed=259200, kind="noise")  # hits the store time that an index file is named by
@settings(
    relaxed,
    max_examples=examples(
        "tests/store/offline/test_damage.py::test_salvage_keeps_what_can_be_read"
    ),
)
def test_salvage_keeps_what_can_be_read(
    seed: int, kind: str, damaged_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    base = tmp_path_factory.mktemp("salvage")
    root, into = base / "damaged", base / "saved"
    shutil.copytree(damaged_root, root)
    logs = files_below(root, "commitlog")
    for _ in range(chance.choice((1, 2, 6))):
        path = chance.choice(logs)
        data = bytearray(path.read_bytes())
        used = max(len(data.rstrip(b"\0")), 1)
        at, length = chance.randrange(used), chance.choice((1, 8, 90, 5000, 70_000))
        if kind == "bits":
            data[at] ^= 1 << chance.randrange(8)
        elif kind == "zeros":
            data[at : at + length] = bytes(len(data[at : at + length]))
        elif kind == "noise":
            data[at : at + length] = chance.randbytes(len(data[at : at + length]))
        else:
            del data[at:]
        path.write_bytes(data)
    readable = messages(root)
    with StoreReader(root, SIZE) as reader:
        report = salvage(reader, str(into))
    saved = messages(into)
    mended = {each.commit_log_offset for each in report.mended}
    assert saved.keys() <= readable.keys()
    whole = messages(damaged_root)
    for at in readable.keys() - saved.keys():  # their properties are lost, which no checksum covers
        assert readable[at] != whole[at]
        assert readable[at].endswith(b"\0")
    assert all(saved[at] == readable[at] for at in saved if at not in mended)
    assert report.records == len(saved)
    with StoreReader(into, SIZE) as reader:
        check = verify(reader)
        assert check.clean, [str(each) for each in check.damage]
        assert not reader.layout.abort
    shutil.rmtree(base)


def test_salvage_says_what_is_lost(golden_store: Pristine, tmp_path: Path) -> None:
    store = golden_store("flipped-bit-5.5.0")
    (bad,) = [each for each in store.facts["messages"] if not each["crcOk"]]
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
    (lost,) = report.lost
    assert (lost.start, lost.end) == (
        bad["commitLogOffset"], bad["commitLogOffset"] + bad["storeSize"],
    )  # fmt: skip
    (record,) = lost.records
    assert (record.topic, record.queue_id, record.queue_offset) == (
        bad["topic"], bad["queueId"], bad["queueOffset"],
    )  # fmt: skip
    others = {each["commitLogOffset"] for each in store.facts["messages"] if each["crcOk"]}
    assert messages(tmp_path / "saved").keys() == others
    with StoreReader(tmp_path / "saved") as reader:
        key = (bad["topic"], bad["queueId"])
        # The place of the lost message leads to the one that follows.
        units = [reader.queue(*key).unit(bad["queueOffset"] + n) for n in (0, 1)]
        assert units[0] == units[1]
        assert reader.queue_range(*key) == next(
            (queue["storeMinOffset"], queue["storeMaxOffset"])
            for queue in store.facts["queues"]
            if (queue["topic"], queue["queueId"]) == key
        )


def test_salvage_of_a_whole_store_changes_no_record(
    golden_name: str, golden_store: Pristine, tmp_path: Path
) -> None:
    if golden_name.startswith(("defaults", "flipped")):
        pytest.skip("large, or damaged")
    store = golden_store(golden_name)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    size = {"mappedFileSizeCommitLog": store.config["mappedFileSizeCommitLog"]}
    with StoreReader(store.root, size) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
        saved = messages_of(tmp_path / "saved", size)
        assert saved == {each.commit_log_offset: each.encode() for each in reader.messages()}
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before
    assert all(each.reason.startswith("behind") for each in report.lost)
    with StoreReader(tmp_path / "saved", size) as reader:
        assert verify(reader).clean


def messages_of(root: Path, options: dict[str, str]) -> dict[int, bytes]:
    with StoreReader(root, options) as reader:
        return {each.commit_log_offset: each.encode() for each in reader.messages()}


def inner_batch_without_properties(store: Any, offset: int) -> None:
    """Zeros take the place of a record's properties."""
    with StoreReader(store.root) as reader:
        message = reader.record_at(offset)
    [path] = files_below(store.root, "commitlog")
    with path.open("r+b") as file:
        file.seek(offset + message.record_size - len(message.properties_raw))
        file.write(bytes(len(message.properties_raw)))


BATCH = 6143  # a batch of six messages in a golden store


def test_a_batch_whose_properties_are_lost_keeps_its_messages(
    golden_store: Pristine, tmp_path: Path
) -> None:
    """Its body is whole, and says how many messages it has."""
    store = golden_store("innerbatch-5.5.0")
    inner_batch_without_properties(store, BATCH)
    with StoreReader(store.root) as reader:
        damaged = reader.record_at(BATCH)
        report = salvage(reader, str(tmp_path / "saved"))
    assert [each.commit_log_offset for each in report.mended] == [BATCH]
    assert report.lost == []
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).findings == []
        saved = reader.record_at(BATCH)
        assert saved.properties == {"INNER_BASE": "4", "INNER_NUM": "6"}
        assert (saved.body, saved.record_size) == (damaged.body, damaged.record_size)
        for queue_offset in range(4, 10):
            found = reader.batch_at("InnerBatch", 1, queue_offset)
            assert found is not None
            assert found.commit_log_offset == BATCH


def test_whole_properties_of_a_batch_that_lost_its_number_stay(golden_store: Pristine) -> None:
    store = golden_store("innerbatch-5.5.0")
    with StoreReader(store.root) as reader:
        message = reader.record_at(BATCH)
    raw = message.properties_raw
    damaged = replace(message, properties_raw=raw.replace(b"INNER_NUM", b"INNER_NUN"))
    mended = numbered_batch(damaged)
    assert mended is not None
    assert mended.record_size == len(mended.encode()) == message.record_size
    kept = {"INNER_BASE", "INNER_NUM", "MSG_REGION", "UNIQ_KEY", "CLUSTER", "WAIT", "TRACE_ON"}
    assert {name: mended.properties[name] for name in kept} == message.properties


def test_a_record_that_only_claims_to_be_a_batch_is_lost(
    golden_store: Pristine, tmp_path: Path
) -> None:
    """Nobody could number its messages, and nobody sent what its body would be read as."""
    store = golden_store("innerbatch-5.5.0")
    plain = 33_653
    with StoreReader(store.root) as reader:
        message = reader.record_at(plain)
        before = messages(store.root)
    claiming = replace(message, sys_flag=message.sys_flag | INNER_BATCH | NEED_UNWRAP)
    [path] = files_below(store.root, "commitlog")
    with path.open("r+b") as file:
        file.seek(plain)
        file.write(claiming.encode())
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
    [lost] = report.lost
    assert (lost.start, lost.end) == (plain, plain + message.record_size)
    assert "how many messages" in lost.reason
    assert [(each.topic, each.queue_offset) for each in lost.records] == [("InnerBatch", 36)]
    del before[plain]
    assert messages(tmp_path / "saved") == before
    assert report.records == len(before)
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).clean


def test_batch_queues_without_a_topic_in_the_configuration(
    golden_store: Pristine, tmp_path: Path
) -> None:
    """Their files say what they are."""
    store = golden_store("innerbatch-5.5.0")
    for name in ("topics.json", "topics.json.bak"):
        (store.root / "config" / name).unlink(missing_ok=True)
    with StoreReader(store.root) as reader:
        queues = set(reader.layout.batch_queues)
        salvage(reader, str(tmp_path / "saved"))
    with StoreReader(tmp_path / "saved") as reader:
        assert set(reader.layout.batch_queues) == queues
        assert verify(reader).clean


def test_a_topic_that_cannot_be_and_no_queue_that_knows_better(
    golden_store: Pristine, tmp_path: Path
) -> None:
    store = golden_store("transientpool-5.5.0")
    with StoreReader(store.root) as reader:
        [hit] = [
            each for each in reader.messages() if (each.topic, each.queue_id) == ("pool-A", 2)
        ][2:3]
    path = files_below(store.root, "commitlog")[0]
    with path.open("r+b") as file:
        file.seek(hit.commit_log_offset)
        file.write(replace(hit, topic="pool/A").encode())
    shutil.rmtree(store.root / "consumequeue")
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
    [lost] = report.lost
    assert lost.start == hit.commit_log_offset
    assert lost.reason.startswith("no queue can be named")
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).clean


def test_a_record_that_fails_its_own_crc_is_mended_or_lost(
    golden_store: Pristine, tmp_path: Path
) -> None:
    """The body is right; a bit of the properties is not, and of another record's number."""
    store = golden_store("propcrc-force-5.5.0")
    before = messages(store.root)
    with StoreReader(store.root) as reader:
        in_queues = [each for each in reader.messages() if each.queue_offset > 3]
        properties, number = in_queues[10], in_queues[20]
    for message, position in (
        (properties, properties.record_size - len(properties.properties_raw) + 4),
        (number, 27),  # the lowest byte of the queue offset
    ):
        at = message.commit_log_offset + position
        [path] = [
            each for each in files_below(store.root, "commitlog")
            if 0 <= at - int(each.name) < each.stat().st_size
        ]  # fmt: skip
        data = bytearray(path.read_bytes())
        data[at - int(path.name)] ^= 1
        path.write_bytes(data)
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
    [lost] = report.lost
    assert (lost.start, lost.reason) == (
        properties.commit_log_offset, "it fails its whole-record CRC",
    )  # fmt: skip
    assert [each.commit_log_offset for each in report.mended] == [number.commit_log_offset]
    del before[properties.commit_log_offset]
    assert messages(tmp_path / "saved") == before
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).clean


@pytest.mark.parametrize("by_tasks", [False, True], ids=["threads", "tasks"])
@pytest.mark.parametrize("queues", ["there", "lost"])
@pytest.mark.parametrize("bit", [1, 4, 0x40])
@pytest.mark.parametrize("number", [0, 11, 12])
def test_a_wrong_number_whose_neighbour_is_in_another_segment(
    number: int, bit: int, queues: str, by_tasks: bool, golden_store: Pristine, tmp_path: Path
) -> None:
    """CRASH/0 has 0 to 11 in the first segment, and a bit makes them smaller or larger."""
    if (number, queues) == (0, "lost"):
        pytest.skip("a queue may begin at any number")
    store = golden_store(STORE)
    before = messages(store.root)
    with StoreReader(store.root, SIZE) as reader:
        offset, following = (
            unit.commit_log_offset for _, unit in reader.queue("CRASH", 0).units(11, 13)
        )
        assert offset // 131072 != following // 131072
        unit = reader.queue("CRASH", 0).unit(number)
        assert unit is not None
        offset = unit.commit_log_offset
    path = store.root / "commitlog" / f"{offset - offset % 131072:020}"
    data = bytearray(path.read_bytes())
    data[offset % 131072 + 27] ^= bit
    path.write_bytes(data)
    if queues == "lost":
        shutil.rmtree(store.root / "consumequeue")
    into = tmp_path / "saved"
    if by_tasks:
        report = salvage_in_tasks(InProcess(), str(store.root), str(into), entries=SIZE)
    else:
        with StoreReader(store.root, SIZE) as reader:
            report = salvage(reader, str(into))
    assert [each.commit_log_offset for each in report.mended] == [offset]
    assert messages(into) == before
    with StoreReader(into, SIZE) as reader:
        assert not verify(reader).findings


LIGHT_QUEUES = {
    "a name that can be no topic's": (b"INNER_MULTI_DISPATCH\1%LMQ%", 21, 0x04),
    "a name of no queue": (b"INNER_MULTI_DISPATCH\1%LMQ%device-", 32, 0x01),
    "a comma between names": (b",%LMQ%all-", 0, 0x80),
    "a number": (b"INNER_MULTI_QUEUE_OFFSET\1", 25, 0x01),
    "no number": (b"INNER_MULTI_QUEUE_OFFSET\1", 25, 0x40),
    "the end of the names": (b"\2TAGS\1", 0, 0x02),
    "the names' name": (b"INNER_MULTI_DISPATCH\1", 7, 0x10),
    "the names' name ends": (b"INNER_MULTI_DISPATCH\1", 20, 0x04),
    "the entry before the names": (b"\2INNER_MULTI_DISPATCH\1", 0, 0x01),
    "the numbers' name": (b"INNER_MULTI_QUEUE_OFFSET\1", 0, 0x01),
    "the numbers' name ends": (b"INNER_MULTI_QUEUE_OFFSET\1", 24, 0x20),
    "the entry before the numbers": (b"\2INNER_MULTI_QUEUE_OFFSET\1", 0, 0x40),
}


@pytest.mark.parametrize("queues", ["there", "lost"])
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("what", LIGHT_QUEUES)
def test_a_record_whose_light_queues_are_damaged_keeps_its_own(
    what: str, version: str, queues: str, golden_store: Pristine, tmp_path: Path
) -> None:
    """It gets its light queues again, too, where the old queues say which these were."""
    if (what, queues) == ("a number", "lost"):
        pytest.skip("nothing says which of two records has the wrong number")
    store = golden_store(f"lmq-{version}")
    before = messages(store.root)
    [path] = files_below(store.root, "commitlog")
    needle, position, bits = LIGHT_QUEUES[what]
    offset, record = next(
        (offset, record)
        for offset, record in before.items()
        if needle in record and b"%LMQ%device-" in record and b",%LMQ%all-" in record
    )
    data = bytearray(path.read_bytes())
    data[offset + record.index(needle) + position] ^= bits
    path.write_bytes(data)
    if queues == "lost":
        shutil.rmtree(store.root / "consumequeue")
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(tmp_path / "saved"))
    assert not report.lost
    after = messages(tmp_path / "saved")
    assert after.keys() == before.keys()
    changed = {each for each in before if after[each] != before[each]}
    if queues == "there":
        assert not changed
        assert [each.commit_log_offset for each in report.mended] == [offset]
    else:
        assert changed == {offset}
        assert decode_record(after[offset]).body == decode_record(record).body
    with StoreReader(tmp_path / "saved") as reader:
        assert not verify(reader).damage


def test_a_gap_that_a_salvage_has_met_is_a_note(golden_store: Pristine, tmp_path: Path) -> None:
    """A record that no longer names its light queue leaves a number there, and nothing else."""
    store = golden_store("lmq-broker-4.9.7")
    [path] = files_below(store.root, "commitlog")
    data = path.read_bytes()
    hit = data.index(b"INNER_MULTI_DISPATCH\x01%LMQ%", 15_442)
    with path.open("r+b") as file:
        file.seek(hit)
        file.write(b"J")
    with StoreReader(store.root) as reader:
        [key] = [
            each for each in reader.queue_keys() if data[hit + 21 :].startswith(each.topic.encode())
        ]
    shutil.rmtree(store.root / "consumequeue" / key.topic)  # it would say where the record belongs
    with StoreReader(store.root) as reader:
        assert FindingKind.RECORD_QUEUE_OFFSET in {each.kind for each in verify(reader).damage}
        salvage(reader, str(tmp_path / "saved"))
    with StoreReader(tmp_path / "saved") as reader:
        report = verify(reader)
    assert report.clean
    assert {each.kind for each in report.findings} == {FindingKind.RECORD_QUEUE_OFFSET}


@pytest.mark.parametrize("back_up", ["whole", "damaged", "missing"])
def test_tables_that_cannot_be_read_are_not_in_the_new_store(
    back_up: str, golden_store: Pristine, tmp_path: Path
) -> None:
    store = golden_store("retry-5.5.0")
    config = store.root / "config"
    whole = (config / "topics.json").read_bytes()
    (config / "topics.json").write_bytes(whole[:-9])
    (config / "timermetrics").unlink()
    (config / "timermetrics.bak").write_bytes(b"{t")
    kept = config / "topics.json.bak"
    if back_up == "missing":
        kept.unlink()
    else:
        kept.write_bytes(whole if back_up == "whole" else b"\0" * 9)
    into = tmp_path / "saved"
    with StoreReader(store.root) as reader:
        report = salvage(reader, str(into))
    [table] = report.tables
    assert (table.file, table.from_back_up) == ("config/topics.json", back_up == "whole")
    assert "config/topics.json" in table.reason
    with StoreReader(into) as saved:
        assert list(verify(saved).damage) == []
    assert (into / "config" / "topics.json").exists() == (back_up == "whole")
    assert (into / "config" / "topics.json.bak").exists() == (back_up == "whole")
    assert not (into / "config" / "timermetrics.bak").exists()
    untouched = (config / "subscriptionGroup.json").read_bytes()
    assert (into / "config" / "subscriptionGroup.json").read_bytes() == untouched


@pytest.mark.parametrize("by_tasks", [False, True], ids=["threads", "tasks"])
def test_the_last_segment_with_records_is_missing_and_an_empty_one_follows(
    by_tasks: bool, golden_store: Pristine, tmp_path: Path
) -> None:
    store = golden_store("basic-5.5.0")
    log = store.root / "commitlog"
    *_, before, last = sorted(int(path.name) for path in log.iterdir())
    size = last - before
    (log / f"{last + size:020}").write_bytes(bytes(size))
    (log / f"{last:020}").unlink()
    into = tmp_path / "saved"
    sizes = {"mappedFileSizeCommitLog": str(size)}
    with StoreReader(store.root, sizes) as reader:
        if by_tasks:
            report = salvage_in_tasks(InProcess(), str(store.root), str(into), entries=sizes)
        else:
            report = salvage(reader, str(into))
    assert (report.lost[-1].start, report.lost[-1].end) == (last, last + size)
    assert report.lost[-1].records  # the queues know them
    with StoreReader(into, sizes) as saved:
        assert list(verify(saved).damage) == []
        ends = {key: saved.queue(*key).end_offset() for key in saved.queue_keys()}
    with StoreReader(store.root, sizes) as reader:
        assert ends == {key: reader.queue(*key).end_offset() for key in reader.queue_keys()}


def test_a_missing_segment_is_damage_and_survives(golden_store: Pristine, tmp_path: Path) -> None:
    store = golden_store(STORE)
    logs = files_below(store.root, "commitlog")
    whole = messages(store.root)
    os.remove(logs[2])
    left = {at: raw for at, raw in whole.items() if not 262_144 <= at < 393_216}
    assert messages(store.root) == left
    with StoreReader(store.root) as reader:
        report = verify(reader)
        assert FindingKind.FILE_GAP in {each.kind for each in report.damage}
        saved = salvage(reader, str(tmp_path / "saved"))
    assert any((each.start, each.end) == (262_144, 393_216) for each in saved.lost)
    lost = {record.start for each in saved.lost for record in each.records}
    in_queues = {
        each["commitLogOffset"] for each in store.facts["messages"]
        if each["storedSysFlag"] & 12 in (0, 8)
    }  # fmt: skip
    assert lost == (whole.keys() - left.keys()) & in_queues
    assert messages(tmp_path / "saved") == left
    with StoreReader(tmp_path / "saved") as reader:
        assert verify(reader).clean


@pytest.mark.parametrize("lost", [[0], [1], [2], [3], [4], [1, 3], [5]])
def test_index_entries_of_a_lost_segment_are_not_called_wrong(
    lost: list[int], golden_store: Pristine
) -> None:
    """Those behind it are compared with their records, file by file."""
    store = golden_store(STORE)
    logs = files_below(store.root, "commitlog")
    assert len(logs) == 7  # of which the last is empty
    for number in lost:
        os.remove(logs[number])
    os.remove(store.root / "checkpoint")  # it would be told to know of later records
    with StoreReader(store.root, SIZE) as reader:
        report = verify(reader)
    kinds = {each.kind for each in report.damage}
    assert kinds == ({FindingKind.FILE_GAP, FindingKind.RECORD_DAMAGED} if lost != [0] else set())


def test_entries_past_the_end_of_a_log_that_lost_its_last_segments_are_notes(
    golden_store: Pristine,
) -> None:
    """No tags are missed that a broker of this line would index, but RocketMQ 4.9 did not."""
    store = golden_store(STORE)
    for path in files_below(store.root, "commitlog")[-2:]:
        path.unlink()
    for name in ("abort", "checkpoint"):
        os.remove(store.root / name)
    with StoreReader(store.root, SIZE | {"rocketmqLine": "5.x"}) as reader:
        report = verify(reader)
    assert not list(report.damage)
    assert FindingKind.INDEX_TAIL in {each.kind for each in report.findings}


@pytest.mark.interop
@pytest.mark.parametrize("name", ["basic-5.5.0", "crash-4.9.7"])
def test_rocketmq_opens_a_salvaged_store(name: str, golden_store: Pristine, tmp_path: Path) -> None:
    from tests.rigs.apache_store import read_store

    from oberth.errors import PeerUnavailableError

    store = golden_store(name)
    chance = random.Random(5)
    logs = files_below(store.root, "commitlog")
    for path in logs[:-2]:
        data = bytearray(path.read_bytes())
        for length in (1, 300, 4000):
            at = chance.randrange(len(data) - 70_000)
            data[at : at + length] = chance.randbytes(length)
        path.write_bytes(data)
    os.remove(logs[2])
    into = tmp_path / "saved"
    with StoreReader(store.root) as reader:
        salvage(reader, str(into))
    with StoreReader(into) as reader:
        ours: dict[int, MessageExt] = {each.commit_log_offset: each for each in reader.messages()}
        ranges = {key: reader.queue_range(*key) for key in reader.queue_keys()}
    sizes = {key: value for key, value in store.config.items() if key.startswith(("mapp", "max"))}
    try:
        theirs = read_store(
            into, store.rocketmq_version, sizes, start=True,
            questions=[("get", key.topic, key.queue_id, 0, 32) for key in ranges],
        )  # fmt: skip
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    assert not theirs.unreadable
    assert {each["commitLogOffset"] for each in theirs.messages} == ours.keys()
    for queue in theirs.queues:
        key = (queue["topic"], queue["queueId"])
        if key in ranges:
            assert (queue["minOffset"], queue["maxOffset"]) == ranges[key]
    for answer in theirs.answers:
        # Nobody ever gets a filler, and the front of a queue is not hidden.
        assert answer["status"] == "FOUND"
        assert not any(is_filler(ours[at]) for at in answer["commitLogOffsets"])


def test_a_bit_of_an_ext_unit_is_named(golden_store: Pristine) -> None:
    store = golden_store("cqext-5.5.0")
    path = files_below(store.root, "consumequeue_ext")[0]
    data = bytearray(path.read_bytes())
    data[9] ^= 1  # the tags code of the first unit
    path.write_bytes(data)
    with StoreReader(store.root) as reader:
        (finding,) = verify(reader).findings
    assert finding.kind is FindingKind.EXT_UNIT
    assert finding.queue_offset == 0
    assert (finding.topic, str(finding.queue_id)) == path.parts[-3:-1]


def test_a_lost_page_takes_the_record_along_whose_properties_reach_into_it(
    golden_store: Pristine, tmp_path: Path
) -> None:
    """Its body passes the checksum; without its properties it would be another message."""
    store = golden_store(STORE)
    root = tmp_path / "damaged"
    shutil.copytree(store.root, root)
    with StoreReader(store.root, SIZE) as reader:
        stored = {each.commit_log_offset: each for each in reader.messages()}
    hit, following = next(
        (each, stored[end])
        for each in stored.values()
        if (end := each.commit_log_offset + each.record_size) in stored
        and each.commit_log_offset % 131072 < 100_000
        and len(each.properties_raw) > 40
    )
    end = following.commit_log_offset
    path = root / "commitlog" / f"{end - end % 131072:020}"
    with path.open("r+b") as file:
        file.seek(end % 131072 - 20)
        file.write(bytes(20 + following.record_size))
    with StoreReader(root, SIZE) as reader:
        [finding] = [
            each
            for each in verify(reader).damage
            if each.kind is FindingKind.RECORD_CRC and (each.commit_log_offset or 0) < end
        ]
        assert finding.commit_log_offset == hit.commit_log_offset
        assert finding.found == "zeros at its end"
        salvage(reader, str(tmp_path / "saved"))
        salvage_in_tasks(InProcess(), str(root), str(tmp_path / "by-tasks"), entries=SIZE)
    for name in ("saved", "by-tasks"):
        with StoreReader(tmp_path / name, SIZE) as saved:
            kept = {each.commit_log_offset for each in saved.messages() if not is_filler(each)}
            assert not list(verify(saved).damage)
        assert kept == stored.keys() - {hit.commit_log_offset, end}
