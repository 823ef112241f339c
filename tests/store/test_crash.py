"""What survives a power cut at every write and sync, and a SIGKILL under load.

A scripted workload runs on a `FaultDisk` that is cut off before each event in turn; the store is
then opened from images of what could be left: only what was synced, everything, and random pages
torn at sectors in between. Checked each time: with SYNC_FLUSH no acknowledged message is missing,
with ASYNC_FLUSH nothing older than the last flush; nothing appears that was not put; queues and
index agree with the log. `-k sigkill` kills real processes.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.rigs.campaigns import rounds, some

from oberth import kernels
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import (
    BLANK_MAGIC,
    Invalid,
    MessageExt,
    decode_record,
    read_dispatch_request,
)
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.sys_flag import TRANSACTION_PREPARED
from oberth.store.files import OsFileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBatch, MessageExtBrokerInner
from oberth.store.retention import HOUR_MS
from oberth.testing.fault_disk import FaultDisk, PowerCut
from oberth.wall_clock import now_ms

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
SEGMENT = 8192
BLANK_START = (BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big")


def config(root: Path, flush: FlushDiskType) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=20 * 16,
        max_hash_slot_num=16,
        max_index_num=32,
        flush_disk_type=flush,
        disk_max_used_space_ratio=95,
    )


class Ledger:
    """What was put, what was acknowledged, and what was known to be flushed."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        self.acknowledged: list[bytes] = []
        self.flushed: list[bytes] = []


def workload(disk: FaultDisk, root: Path, flush: FlushDiskType, ledger: Ledger) -> None:
    """Puts of all kinds over several segments, dispatch, checkpoints, a reopening, deletion."""
    rng = random.Random(7)
    for life in range(2):
        store = MessageStore(config(root, flush), files=disk)
        store.load()
        store.start(background=False)
        for step in range(12):
            messages = []
            for number in range(rng.randrange(1, 5)):
                body = b"%d-%d-%d " % (life, step, number) + rng.randbytes(rng.randrange(900))
                messages.append(
                    MessageExtBrokerInner.of(
                        f"t{number % 2}", body, keys=f"k{step} shared", tags="a", queue_id=step % 2
                    )
                )
            if step % 5 == 4:
                bodies = [b"batch %d-%d-%d" % (life, step, n) for n in range(3)]
                batch = encode_batch([BatchItem(0, body, b"KEYS\x01b\x02") for body in bodies])
                messages.append(MessageExtBatch("t0", batch))
                ledger.put.update(bodies)
            ledger.put.update(m.body for m in messages if not isinstance(m, MessageExtBatch))
            results = store.put_messages(messages)
            assert all(result.ok for result in results)
            for message in messages:
                if not isinstance(message, MessageExtBatch):
                    ledger.acknowledged.append(message.body)
            store.dispatch_nowait()
            if step % 3 == 2:
                flushed = list(ledger.acknowledged)
                store.flush()
                ledger.flushed = flushed
            if step % 4 == 3:
                store.queues.write_behind()
            if step == 7:
                store.checkpoint_now()
        store.shutdown()
        ledger.flushed = list(ledger.acknowledged)


def read_everything(
    root: Path, flush: FlushDiskType, *, holes: dict[int, int] | None = None
) -> list[MessageExt]:
    """Opens the store, checks that its parts agree, and returns every message of every queue.

    ``holes``: a page of the log may be gone while a later one, unsynced like it, is there. That is
    damage in the middle, and what follows it is kept. The first start finds it and fills it: here
    is noted where.
    """
    store = MessageStore(config(root, flush))
    store.load()
    store.start(background=False)
    try:
        assert not store.dispatch_behind_bytes
        found: list[MessageExt] = []
        in_queues: set[int] = set()
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                low = store.min_offset_in_queue(topic, queue_id)
                high = store.max_offset_in_queue(topic, queue_id)
                units = store.iterate_consume_queue(topic, queue_id, low, high - low)
                assert len(units) == high - low
                for number, unit in enumerate(units, low):
                    if holes is not None and unit.is_pre_blank:
                        continue
                    assert unit.is_message, (topic, queue_id, number, unit)
                    record = store.select_record(unit.commit_log_offset)
                    assert record is not None
                    message = decode_record(record, check_crc=True, at=unit.commit_log_offset)
                    assert len(record) == unit.record_size
                    assert (message.topic, message.queue_id) == (topic, queue_id)
                    assert message.queue_offset == number
                    in_queues.add(unit.commit_log_offset)
                    found.append(message)
        offset = store.min_phy_offset
        assert store.report is not None
        damages = {} if holes is None else holes
        damages |= {damage.start: damage.end for damage in store.report.damages}
        assert holes is not None or not damages
        while offset < store.max_phy_offset:
            if offset in damages:
                offset = damages[offset]
                continue
            record = store.select_record(offset)
            if record is None or record[4:8] == BLANK_START:
                offset = store.commit_log.next_segment_offset(offset)
                continue
            # A kill in the middle of a burst's copy tears one record of it, not all. A start
            # reports it once; nobody was told that it is stored.
            torn = isinstance(read_dispatch_request(record, 0, len(record), offset), Invalid)
            assert torn or offset in in_queues
            offset += len(record)
        for message in found:
            for key in (message.keys or "").split():
                hits = store.query_message(message.topic, key, 64, 0, 2**62)
                if len(hits.commit_log_offsets) < 32:
                    assert message.commit_log_offset in hits.commit_log_offsets, key
        # And it goes on working.
        again = store.put_message(MessageExtBrokerInner("t0", b"after"))
        assert again.ok
        return found
    finally:
        store.shutdown()


def go_on(root: Path, flush: FlushDiskType) -> list[bytes]:
    """A further life with messages in all queues, which a kill ends; their bodies."""
    store = MessageStore(config(root, flush))
    store.load()
    store.start(background=False)
    bodies = []
    for step in range(24):
        bodies.append(b"later %d " % step + bytes(300))
        message = MessageExtBrokerInner.of(f"t{step % 2}", bodies[-1], queue_id=step // 2 % 2)
        assert store.put_message(message).ok
        store.dispatch_nowait()
        if step == 11:
            store.checkpoint_now()
    store.queues.write_behind()
    store.kill()
    return bodies


Content = tuple[str, bytes]


def undisturbed(tmp_path: Path, flush: FlushDiskType) -> tuple[int, dict[bytes, Content]]:
    """Events of a run that nothing stops, and topic and properties by body."""
    disk = FaultDisk()
    ledger = Ledger()
    workload(disk, tmp_path / "whole", flush, ledger)
    found = read_everything(tmp_path / "whole", flush)
    assert {m.body for m in found} == ledger.put
    return disk.events, {m.body: (m.topic, m.properties_raw) for m in found}


# A thread that flushes a full index file dies with its machine, as it should.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_power_cut_at_every_event(tmp_path: Path, flush: FlushDiskType) -> None:
    events, expected = undisturbed(tmp_path, flush)
    # Every event would take minutes; each run takes another set of them, and says which.
    seed = 0 if settings().derandomize else random.randrange(1 << 30)
    rng = random.Random(seed)
    count = rounds("tests/store/test_crash.py::test_a_power_cut_at_every_event")
    cuts = rng.sample(range(1, events), min(count, events - 1))
    for cut in cuts:
        root = tmp_path / f"cut{cut}"
        disk = FaultDisk(cut_power_at=cut)
        ledger = Ledger()
        with contextlib.suppress(PowerCut):
            workload(disk, root, flush, ledger)
        # Threads that flush have a few events more or fewer in each run: one of the last cuts may
        # come behind all of them, or in such a thread alone. The image must be as good.
        assert disk.events >= min(cut, events * 19 // 20)
        for keep in (0.0, rng.random(), 1.0):
            image = tmp_path / f"image{cut}"
            image.mkdir()
            disk.crash_image(str(image), str(root), rng, keep)
            where = f"seed {seed}, cut at {cut} of {events} ({disk.log[-1]}), keep {keep}"
            holes: dict[int, int] | None = {} if 0 < keep < 1 else None
            try:
                found = read_everything(image, flush, holes=holes)
                later = go_on(image, flush)
                again = read_everything(image, flush, holes=holes)
            except Exception as error:
                raise AssertionError(where) from error
            promised = ledger.acknowledged if flush is FlushDiskType.SYNC_FLUSH else ledger.flushed
            bodies = [m.body for m in found]
            missing = set(promised) - set(bodies)
            assert not missing, (where, len(missing))
            assert set(bodies) - {b"after"} <= ledger.put, where
            for m in found:
                if m.body != b"after":
                    assert (m.topic, m.properties_raw) == expected[m.body], (where, m)
            assert len(bodies) == len(set(bodies)), where
            # Nothing that this cut left comes up when the store has gone on and is killed.
            assert sorted(m.body for m in again) == sorted([*bodies, b"after", *later]), where
            shutil.rmtree(image)
        shutil.rmtree(root, ignore_errors=True)  # of a machine that ended before it was made


def deletions(disk: FaultDisk, root: Path, acknowledged: list[str]) -> None:
    """Four topics, of which three are deleted one after the other, and a cleaning after that.

    One of them is made again, and has one message then. No table of topics says what is known.
    """
    hours = [0]
    options = config(root, FlushDiskType.SYNC_FLUSH)
    store = MessageStore(options, files=disk, clock_ms=lambda: now_ms() + hours[0] * HOUR_MS)
    store.load()
    store.start(background=False)

    def put(topic: str, body: bytes) -> None:
        assert store.put_message(MessageExtBrokerInner.of(topic, body)).ok
        store.dispatch_nowait()

    for number in range(30):
        for topic in ("gone", "first", "second", "kept"):
            put(topic, b"%s %d " % (topic.encode(), number) + bytes(200))
    store.checkpoint_now()
    for topic in ("gone", "first", "again", "second"):
        if topic == "again":
            put("first", b"made again")
        else:
            assert store.delete_topics([topic])
        acknowledged.append(topic)
        put("kept", b"since " + topic.encode())
    hours[0] = 100
    store.delete_expired_files_manually()
    store.cleaning.run()
    cleaned = store.min_phy_offset
    store.kill()
    assert cleaned


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("bulk", [False, True], ids=["one by one", "in bulk"])
def test_a_power_cut_among_deletions_brings_none_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bulk: bool
) -> None:
    """What was deleted stays so, and no other topic loses a message that the log has."""
    if not bulk:
        monkeypatch.setattr(kernels, "available", lambda: False)
    whole = FaultDisk()
    deletions(whole, tmp_path / "whole", [])
    began = next(n for n, what in enumerate(whole.log) if what.startswith("remove"))
    rng = random.Random(5)
    test = "tests/store/test_crash.py::test_a_power_cut_among_deletions_brings_none_back"
    for cut in some(test, range(began, whole.events)):
        root, image = tmp_path / f"cut{cut}", tmp_path / f"image{cut}"
        disk, acknowledged = FaultDisk(cut_power_at=cut), list[str]()
        with pytest.raises(PowerCut):
            deletions(disk, root, acknowledged)
        for keep in (0.0, rng.random(), 1.0):
            image.mkdir()
            disk.crash_image(str(image), str(root), rng, keep)
            where = f"cut at {cut} of {whole.events} ({disk.log[-1]}), keep {keep}"
            with MessageStore(config(image, FlushDiskType.SYNC_FLUSH)) as store:
                check_deletions(store, acknowledged, where)
            shutil.rmtree(image)
        shutil.rmtree(root)


def check_deletions(store: MessageStore, acknowledged: list[str], where: str) -> None:
    found: dict[str, list[bytes]] = {t: [] for t in ("gone", "first", "second", "kept")}
    for topic in store.topics():
        low, high = store.min_offset_in_queue(topic, 0), store.max_offset_in_queue(topic, 0)
        for unit in store.iterate_consume_queue(topic, 0, low, high - low):
            record = store.select_record(unit.commit_log_offset)
            if record is None:  # a queue may lag behind the log's cleaning
                assert unit.commit_log_offset < store.min_phy_offset, where
                continue
            found[topic].append(decode_record(record, check_crc=True).body)
    for topic in {"gone", "second"} & set(acknowledged):
        assert not found[topic], where
    if "first" in acknowledged:
        assert set(found["first"]) <= {b"made again"}, where
    expected = {b"since " + topic.encode() for topic in acknowledged[:-1]}
    if "again" in acknowledged:
        assert b"made again" in found["first"], where
    if not store.min_phy_offset:
        expected |= {b"kept %d " % number + bytes(200) for number in range(30)}
    assert expected <= set(found["kept"]), where


@pytest.mark.parametrize("line", list(Line))
def test_zeros_that_were_sent_are_none_that_a_disk_lost(tmp_path: Path, line: Line) -> None:
    """Properties may hold a sector of zeros: such a message is not taken for a torn one."""
    options = config(tmp_path, FlushDiskType.SYNC_FLUSH)
    options.line = line
    zeros = b"a\x01" + bytes(1500) + b"\x02"
    bodies = [b"plain", b"half", b"one", b"two", b"last"]
    batch = encode_batch([BatchItem(0, body, zeros) for body in bodies[2:4]])
    messages = [
        MessageExtBrokerInner("t", b"plain", properties_raw=zeros),
        MessageExtBrokerInner("t", b"half", properties_raw=zeros, sys_flag=TRANSACTION_PREPARED),
        MessageExtBatch("t", batch, properties_raw=b"b\x012"),
        MessageExtBrokerInner("t", b"last", properties_raw=b"c\x01" + bytes(1500)),
    ]
    store = MessageStore(options)
    store.load()
    store.start(background=False)
    results = store.put_messages(messages)
    assert all(result.ok for result in results)
    store.kill()
    with MessageStore(options) as store:
        assert store.report is not None
        assert not store.report.damages
        offset, found = 0, []
        while offset < store.max_phy_offset:
            message = store.look_message_by_offset(offset)
            assert message is not None
            found.append(message.body)
            if message.body != b"last":
                assert message.properties["a"] == "\0" * 1500
            offset += message.record_size
        assert found == bodies


@pytest.mark.parametrize("vouched", [True, False], ids=["with a state", "without"])
def test_a_segment_that_was_never_synced_costs_only_its_own_messages(
    tmp_path: Path, vouched: bool
) -> None:
    """Two segments were never synced; the disk has the later one, and of the other its name."""
    flush = FlushDiskType.ASYNC_FLUSH
    store = MessageStore(config(tmp_path, flush))
    store.load()
    store.start(background=False)
    bodies = [b"%d " % number + bytes(400) for number in range(40)]
    results = store.put_messages([MessageExtBrokerInner.of("t", body) for body in bodies])
    store.dispatch_nowait()
    store.kill()
    (tmp_path / "commitlog" / f"{SEGMENT:020d}").write_bytes(b"")
    if not vouched:
        (tmp_path / "oberth.state").unlink()
    there = [
        body
        for body, result in zip(bodies, results, strict=True)
        if result.commit_log_offset // SEGMENT != 1
    ]
    assert len(there) < len(bodies)
    found = read_everything(tmp_path, flush, holes={})
    assert sorted(m.body for m in found) == sorted(there)
    with MessageStore(config(tmp_path, flush)) as store:
        assert store.report is not None
        assert not store.report.abnormal
        for body, result in zip(bodies, results, strict=True):
            message = store.look_message_by_offset(result.commit_log_offset)
            assert (message is not None and message.body == body) is (body in there)


WRITER = """
import sys
from pathlib import Path
from typing import Any
from oberth.formats.message_store_config import FlushDiskType
from oberth.store.files import OsFileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
sys.path[:0] = [{here!r}, {root!r}]
from test_crash import config
root, seed, flush = Path(sys.argv[1]), sys.argv[2], FlushDiskType(sys.argv[3])
with MessageStore(config(root, flush)) as store:
    number = 0
    while True:
        messages = [
            MessageExtBrokerInner.of(
                f"t{{n % 2}}", f"{{seed}}-{{number + n}}".encode() * 9, keys="k", queue_id=n % 3
            )
            for n in range(7)
        ]
        results = store.put_messages(messages)
        number += 7
        print("\\n".join(str(m.body[: m.body.index(b"-")], "ascii") + " " + str(r.commit_log_offset)
              for m, r in zip(messages, results) if r.ok), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_sigkill_under_load(tmp_path: Path, flush: FlushDiskType) -> None:
    """Some rounds each: a killed process keeps its page cache, so nothing acknowledged may go."""
    program = tmp_path / "writer.py"
    program.write_text(WRITER.format(here=str(HERE), root=str(HERE.parents[1])))
    rng = random.Random(3)
    root = tmp_path / "store"
    acknowledged: list[int] = []
    for life in range(rounds("tests/store/test_crash.py::test_sigkill_under_load")):
        command = [sys.executable, str(program), str(root), str(life), flush.value]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            stop_after = rng.randrange(1, 400)
            for lines, line in enumerate(writer.stdout, 1):
                if not line.endswith("\n"):
                    break
                acknowledged.append(int(line.split()[1]))
                if lines == stop_after:
                    writer.send_signal(signal.SIGKILL)
        assert writer.returncode == -signal.SIGKILL
        store = MessageStore(config(root, flush))
        store.load()
        for offset in acknowledged[-500:]:
            assert store.look_message_by_offset(offset) is not None
        store.shutdown()
    found = {m.commit_log_offset for m in read_everything(root, flush)}
    assert set(acknowledged) <= found


def test_a_checkpoint_is_true_while_one_queue_is_busy(tmp_path: Path) -> None:
    """What it says is on the disk must be: a start after a crash dispatches only what came later.

    A queue that takes messages all the time, while those of others are being written out, must not
    keep these in memory.
    """

    class Busy(OsFileSystem):
        def open(
            self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
        ) -> Any:
            if checkpointing and "/busy/" not in path:
                put("busy")
            return super().open(path, create=create, writable=writable)

    def put(topic: str) -> None:
        assert store.put_message(MessageExtBrokerInner.of(topic, topic.encode())).ok
        store.dispatch_nowait()

    topics = [f"t{number}" for number in range(20)]
    checkpointing = False
    store = MessageStore(config(tmp_path / "store", FlushDiskType.ASYNC_FLUSH), files=Busy())
    store.load()
    store.start(background=False)
    store.queues.pool.open_files_max = 0  # each write opens its file
    for topic in (*topics, "busy"):
        put(topic)
        put(topic)
    store.queues.write_behind()
    for topic in (*topics, "busy"):
        put(topic)
    checkpointing = True
    store.checkpoint_now()
    checkpointing = False
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.shutdown()
    after = MessageStore(config(tmp_path / "killed", FlushDiskType.ASYNC_FLUSH))
    after.load()
    after.start(background=False)
    try:
        for topic in topics:
            assert after.max_offset_in_queue(topic, 0) == 3, topic
            units = after.iterate_consume_queue(topic, 0, 0, 3)
            assert [unit.is_message for unit in units] == [True] * 3, topic
    finally:
        after.shutdown()
