"""Torn records whose bodies hold records: what was sent is kept, and nothing else is ever read.

The producer of such a body knows where it will lie. Records are torn at every place, as a crash, a
power cut and rot tear them; then the broker recovers the store, and the offline tools read it,
verify it, build its queues anew and salvage it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oberth.formats import message as m
from oberth.formats import sys_flag as flags
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.log_scan import find_log_end
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.dump import dump
from oberth.store.offline.filler import MARKER_SIZE, is_filler
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage
from oberth.store.offline.verify import verify

SEGMENT = 1 << 18
HOST = m.encode_host("10.0.0.1", 10911)
SOON = 4_000_000_000_000
SIZES = {"mappedFileSizeCommitLog": str(SEGMENT), "mappedFileSizeConsumeQueue": "20000"}
Sent = list[m.MessageExt]


def forged(rng: random.Random, at: int, size: int) -> bytes:
    """A record that names a place in the log."""
    topic = rng.choice(("payments", "chat", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"))
    kind = rng.choice((0, 0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT))
    body = b"x" * (size - m.record_size(0, len(topic), 0, 0, m.MAGIC_V1))
    return m.MessageExt(
        topic, 0, rng.randrange(40), at, size, m.MAGIC_V1, m.body_crc(body), 0, kind, SOON,
        HOST, SOON, HOST, 0, 0, body, b"",
    ).encode()  # fmt: skip


def hostile(rng: random.Random, at: int, size: int) -> bytes:
    """Bytes for a place in the log: records, heads of huge ones, blanks."""
    made = bytearray()
    while len(made) < size - 300:
        place = at + len(made)
        record = forged(rng, place, rng.randrange(130, 300))
        kind = rng.randrange(8)
        if kind == 0:
            record = rng.randrange(1000, SEGMENT).to_bytes(4, "big") + record[4:]
        elif kind == 1:
            record = m.encode_blank(SEGMENT - place % SEGMENT)
        elif kind == 2:
            record = record[: rng.randrange(90, 130)]
        made += record
    return bytes(made).ljust(size, b"y")


def open_store(root: Path) -> MessageStore:
    config = MessageStoreConfig.from_properties({"storePathRootDir": str(root), **SIZES})
    config.disk_max_used_space_ratio = 98
    return MessageStore(config)


def write(root: Path, rng: random.Random, count: int) -> Sent:
    """A store of messages, many of them hostile; returns what was sent."""
    with open_store(root) as store:
        for number in range(count):
            size = rng.choice((0, 10, 500, 3000, 20_000))
            raw = b"KEYS\x01k%d\x02" % number
            end = m.FIXED_SIZE_V1 + 4 + size + 32_768
            at = store.max_phy_offset
            if at % SEGMENT + end + 1000 > SEGMENT:
                at = at - at % SEGMENT + SEGMENT
                size = 40_000  # no place is left in this segment
            body = (
                hostile(rng, at + m.BODY_POSITION_V4, size) if rng.random() < 0.7 else b"b" * size
            )
            if rng.random() < 0.2:
                place = at + m.FIXED_SIZE_V1 + 4 + size + len(raw) + 2
                raw += b"p\x01" + hostile(rng, place, rng.randrange(400, 9000)) + b"\x02"
            message = MessageExtBrokerInner(
                topic="chat", queue_id=number % 2, body=body, properties_raw=raw,
                born_timestamp=1, born_host=HOST, store_host=HOST,
            )  # fmt: skip
            assert store.put_message(message).ok
    with StoreReader(root, SIZES) as reader:
        sent = list(reader.messages())
    assert [each.topic for each in sent] == ["chat"] * count
    return sent


class Log:
    """The CommitLog's bytes, to be damaged."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "commitlog"
        self.data = {int(each.name): bytearray(each.read_bytes())
                     for each in self.directory.iterdir()}  # fmt: skip

    def put(self, at: int, data: bytes) -> None:
        base = at - at % SEGMENT
        self.data[base][at - base : at - base + len(data)] = data

    def flip(self, rng: random.Random, at: int) -> None:
        self.data[at - at % SEGMENT][at % SEGMENT] ^= 1 << rng.randrange(8)

    def cut(self, at: int) -> None:
        """Nothing from a place on was ever written."""
        for base in list(self.data):
            if base >= at:
                del self.data[base]
                (self.directory / f"{base:020}").unlink()
        self.put(at, bytes(SEGMENT - at % SEGMENT))

    def write(self) -> None:
        for base, data in self.data.items():
            (self.directory / f"{base:020}").write_bytes(data)


Tear = Callable[[random.Random, Log, m.MessageExt], int]
"""Tears a record; returns how many bytes before the record's end the log was cut off, or 0."""


def end_of(record: m.MessageExt) -> int:
    return record.commit_log_offset + record.record_size


def body_at(record: m.MessageExt) -> int:
    return record.commit_log_offset + m.BODY_POSITION_V4


def cut_off(rng: random.Random, log: Log, record: m.MessageExt) -> int:
    """The crash of a writer: the record's front is there."""
    at = rng.randrange(body_at(record), end_of(record))
    log.cut(at)
    return end_of(record) - at


def lose_pages(rng: random.Random, log: Log, record: m.MessageExt) -> int:
    """A power cut: pages never reached the disk, later ones did."""
    unit = rng.choice((512, 4096))
    first, last = -(-body_at(record) // unit), end_of(record) // unit
    for page in range(first, last):
        if rng.random() < 0.5 or page == last - 1:
            log.put(page * unit, bytes(unit))
    return 0


def rot_body(rng: random.Random, log: Log, record: m.MessageExt) -> int:
    for _ in range(rng.randrange(1, 4)):
        if record.body:
            log.flip(rng, body_at(record) + rng.randrange(len(record.body)))
    return 0


def rot_head(rng: random.Random, log: Log, record: m.MessageExt) -> int:
    """One field that tells where the record ends or begins, or the sum."""
    field, size = rng.choice(((0, 4), (4, 4), (8, 4), (28, 8), (36, 4), (84, 4)))
    log.flip(rng, record.commit_log_offset + field + rng.randrange(size))
    return 0


def rot_lengths(rng: random.Random, log: Log, record: m.MessageExt) -> int:
    """The length of the topic or of the properties, and some of the body."""
    topic_at = body_at(record) + len(record.body)
    at = rng.choice((topic_at, topic_at + 1 + len(record.topic)))
    log.flip(rng, at)
    return rot_body(rng, log, record)


TEARS: tuple[Tear, ...] = (cut_off, lose_pages, rot_body, rot_head, rot_lengths)


def damage(root: Path, rng: random.Random, sent: Sent, tears: tuple[Tear, ...]) -> set[int]:
    """Tears some records; returns where those begin that must still be read."""
    log = Log(root)
    torn = rng.sample(range(len(sent)), rng.randrange(1, 5))
    kept = {each.commit_log_offset for each in sent}
    end = None
    for number in torn:
        record = sent[number]
        tear = rng.choice(tears)
        kept.discard(record.commit_log_offset)
        if tear is cut_off and end is not None:
            tear = lose_pages
        lost = tear(rng, log, record)
        end = end_of(record) - lost if lost else end
    log.write()
    return {at for at in kept if end is None or at < end}


def each_reading(root: Path, copies: Path) -> Iterator[tuple[str, set[int], set[str]]]:
    """By every way to read a store: where records begin, and topics that it has."""
    with StoreReader(root, SIZES) as reader:
        found = list(reader.messages())
        yield "walk", {each.commit_log_offset for each in found}, {each.topic for each in found}
        report = verify(reader)
        assert report.records >= len(found)
        rebuild(reader, str(copies / "rebuilt"))
        names = {each.name for each in (copies / "rebuilt" / "consumequeue").iterdir()}
        yield "rebuild", {each.commit_log_offset for each in found}, names
        salvage(reader, str(copies / "salvaged"))
    with StoreReader(copies / "salvaged", SIZES) as reader:
        found = [each for each in reader.messages() if not is_filler(each)]
        names = {key.topic for key in reader.queue_keys()}
        yield "salvage", {each.commit_log_offset for each in found}, names
    yield "broker", *recovered(root)
    # Nothing that recovery stepped over may be met by who starts after it.
    yield "broker, once more", *recovered(root)


def recovered(root: Path) -> tuple[set[int], set[str]]:
    store = open_store(root)
    store.load()
    try:
        units = [
            unit
            for queue in store.queues.all_queues()
            for number in range(queue.min_offset, queue.max_offset)
            if (unit := queue.unit(number)) is not None
        ]
        return {unit.commit_log_offset for unit in units}, set(store.queues.table)
    finally:
        store.shutdown()


@pytest.mark.parametrize("queues", ["lost", "state lost", "all"])
@pytest.mark.parametrize("seed", range(4))
def test_no_record_is_taken_out_of_a_torn_one(tmp_path: Path, seed: int, queues: str) -> None:
    rng = random.Random(seed)
    root = tmp_path / "store"
    sent = write(root, rng, 24)
    starts = {each.commit_log_offset for each in sent}
    kept = damage(root, rng, sent, TEARS)
    (root / "abort").touch()
    if queues == "lost":
        shutil.rmtree(root / "consumequeue")
    if queues != "all":
        shutil.rmtree(root / "oberth", ignore_errors=True)
        (root / "oberth.state").unlink(missing_ok=True)
    for way, found, topics in each_reading(root, tmp_path):
        assert kept <= found, (way, sorted(kept - found))
        assert found <= starts, (way, sorted(found - starts))
        assert topics <= {"chat"}, way


def full_of_records(at: int, count: int = 100) -> bytes:
    rng = random.Random(at)
    return b"".join(forged(rng, at + 200 * number, 200) for number in range(count))


def put(store: MessageStore, body: bytes, raw: bytes = b"") -> tuple[int, int]:
    """Puts a message; returns where its record begins and ends."""
    result = store.put_message(
        MessageExtBrokerInner(
            topic="chat", body=body, properties_raw=raw, born_timestamp=1, born_host=HOST,
            store_host=HOST,
        )
    )  # fmt: skip
    assert result.ok
    return result.commit_log_offset, result.end_offset


def topics_of(root: Path) -> set[str]:
    with StoreReader(root, SIZES) as reader:
        return {each.topic for each in reader.messages() if not is_filler(each)}


def test_a_record_that_lost_its_end_and_its_neighbour_is_stepped_over(tmp_path: Path) -> None:
    """Recovery strikes its magic out; what is left still says where it ends."""
    with open_store(tmp_path / "live") as store:
        put(store, b"before")
    with open_store(tmp_path / "live") as store:
        at = store.max_phy_offset
        _, end = put(store, full_of_records(at + m.BODY_POSITION_V4), b"KEYS\x01abcdef\x02")
        put(store, b"lost")
        last, _ = put(store, b"kept")
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    log.put(end - 5, bytes(last - end + 5))
    log.write()
    for _ in range(2):
        (root / "abort").touch()
        found, topics = recovered(root)
        assert topics == {"chat"}
        assert found == {0, last}
        assert topics_of(root) == {"chat"}


Lacking = tuple[int, int]
"""Where in a record zeros begin that nobody wrote, and how many."""


def body_lacks_a_page(at: int) -> Lacking:
    return at + 200, 4096


def properties_lack_a_sector(at: int) -> Lacking:
    """Body, lengths and the record's last bytes are there."""
    return -(-(at + 3000) // 512) * 512, 512


@pytest.mark.parametrize(
    ("lacking", "lost"),
    [
        (body_lacks_a_page, "nothing"),
        (body_lacks_a_page, "consumequeue"),
        (body_lacks_a_page, "oberth.state"),
        (body_lacks_a_page, "rebuilt"),
        (properties_lack_a_sector, "nothing"),
        (properties_lack_a_sector, "consumequeue"),
        (properties_lack_a_sector, "oberth.state"),
        (properties_lack_a_sector, "rebuilt"),
    ],
)
def test_a_record_that_lacks_its_middle_is_read_by_nobody(
    tmp_path: Path, lacking: Callable[[int], Lacking], lost: str
) -> None:
    """What follows is kept, under the numbers that were told; nobody takes the rest for sent."""
    keys = b"KEYS\x01k\x02"
    with open_store(tmp_path / "live") as store:
        put(store, b"before", keys)
    with open_store(tmp_path / "live") as store:
        if lacking is body_lacks_a_page:
            at, _ = put(store, b"b" * 5000, keys)
        else:
            at, _ = put(store, b"body", keys + b"p\x01" + b"v" * 5000 + b"\x02")
        last, _ = put(store, b"kept", keys)
        store.dispatch_nowait()
        store.queues.write_behind()
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    start, size = lacking(at)
    log.put(start, bytes(size))
    log.write()
    with StoreReader(root, SIZES) as reader:
        assert [each.commit_log_offset for each in reader.messages()] == [0, last]
        assert [each.commit_log_offset for each in verify(reader).damage] == [at]
        for shown in (dump(reader), dump(reader, topic="chat", queue_id=0)):
            assert [each["crcOk"] for each in shown] == [True, False, True]
        salvage(reader, str(tmp_path / "salvaged"))
        if lost == "rebuilt":
            rebuild(reader)
    with StoreReader(tmp_path / "salvaged", SIZES) as reader:
        kept = [each.commit_log_offset for each in reader.messages() if not is_filler(each)]
        assert kept == [0, last]
    if lost == "oberth.state":
        (root / lost).unlink()
    for _ in range(2):
        (root / "abort").touch()
        with open_store(root) as store:
            assert store.report is not None
            units = store.iterate_consume_queue("chat", 0, 0, 9)
            assert [unit.commit_log_offset for unit in units if unit.is_message] == [0, last]
            assert [unit.is_message for unit in units] == [True, False, True]
            got = store.get_message("G", "chat", 0, 1, 32)
            assert [bytes(record) for record in got.records] == [
                bytes(store.select_record(last) or b"")
            ]
            assert store.query_message("chat", "k", 9, 0, SOON).commit_log_offsets == [0, last]
            assert store.find_message(at) is None
        if lost == "consumequeue":
            shutil.rmtree(root / lost)
    assert topics_of(root) == {"chat"}


def test_a_last_record_that_lacks_its_end_stays_away(tmp_path: Path) -> None:
    """Nothing is put after the crash, and the store is closed in order."""
    with open_store(tmp_path / "live") as store:
        put(store, b"before")
    with open_store(tmp_path / "live") as store:
        at, end = put(store, b"body", b"p\x01" + b"v" * 5000 + b"\x02")
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    log.put(at + 3000, bytes(end - at - 3000))
    log.write()
    for _ in range(2):
        with open_store(root) as store:
            assert store.max_phy_offset == at
            assert store.max_offset_in_queue("chat", 0) == 1
            assert find_log_end(store.commit_log.queue, 0, check_crc=True).end_offset == at


def test_what_a_power_cut_tore_is_no_hole_in_the_log(tmp_path: Path) -> None:
    """RocketMQ would end the log there: records that nobody consumes lie in its place."""
    rng = random.Random(5)
    with open_store(tmp_path / "live") as store:
        put(store, b"before")
    with open_store(tmp_path / "live") as store:
        places = [put(store, rng.randbytes(5000))[0] for _ in range(110)]
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    first = next(number for number, at in enumerate(places) if at >= SEGMENT)
    heads = [3, 20, 21, first - 1, first]  # among them one before a segment's end and one behind
    for number in heads:
        log.put(places[number], bytes(300))
    log.put(places[first + 20] + 3000, bytes(512))
    log.write()
    with open_store(root) as store:
        assert store.report is not None
        assert len(store.report.damages) == 4
    lost = {*heads, first + 20}
    with open_store(root) as store:
        queue = store.commit_log.queue
        assert find_log_end(queue, 0, check_crc=True).damages == ()
        numbers = range(1, store.max_offset_in_queue("chat", 0))
        units = store.iterate_consume_queue("chat", 0, 1, len(numbers))
        shown = [None if unit.is_pre_blank else unit.commit_log_offset for unit in units]
        assert shown == [None if n in lost else at for n, at in enumerate(places)]
        assert store.topics() == ["chat"]
    with StoreReader(root, SIZES) as reader:
        assert not [each for each in verify(reader).damage if each.kind.startswith("record")]


def test_a_marker_stands_before_a_blank_where_both_have_just_room(tmp_path: Path) -> None:
    """It tells whoever reads the files that a message was lost there."""
    start = SEGMENT - MARKER_SIZE - m.BLANK_SIZE_MIN
    with open_store(tmp_path / "live") as store:
        put(store, b"before")
    with open_store(tmp_path / "live") as store:
        at = store.max_phy_offset
        _, end = put(store, b"")
        put(store, bytes(start - end - (end - at)))
        assert put(store, b"lost")[0] == start
        assert put(store, b"kept")[0] == SEGMENT
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    log.put(start, bytes(SEGMENT - start))
    log.write()
    with open_store(root):
        pass
    with StoreReader(root, SIZES) as reader:
        found = list(reader.messages())
    assert [each.commit_log_offset for each in found[-2:]] == [start, SEGMENT]
    assert [is_filler(each) for each in found[-2:]] == [True, False]


@pytest.mark.parametrize("lost", ["end", "page"])
def test_a_newest_record_that_is_not_whole_is_read_by_nobody(tmp_path: Path, lost: str) -> None:
    """Recovery ends the log before it; after a stop nothing tells readers of files where."""
    with open_store(tmp_path / "live") as store:
        put(store, b"before")
    with open_store(tmp_path / "live") as store:
        at, end = put(store, b"b" * 5000, b"KEYS\x01abcdef\x02")
        store.flush()
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "live", root)
    log = Log(root)
    log.put(*((end - 5, bytes(5)) if lost == "end" else (at + 200, bytes(4096))))
    log.write()
    with open_store(root) as store:
        assert store.max_phy_offset == at
    assert not (root / "abort").exists()
    with StoreReader(root, SIZES) as reader:
        assert [each.commit_log_offset for each in reader.messages()] == [0]
    with open_store(root) as store:
        assert put(store, b"next")[0] == at


@pytest.mark.parametrize("piece", [61, 1000, 32 << 10])
def test_a_slave_waits_for_the_rest_of_a_record(tmp_path: Path, piece: int) -> None:
    with open_store(tmp_path / "master") as master:
        for _ in range(3):
            put(master, b"before")
            put(master, full_of_records(master.max_phy_offset + m.BODY_POSITION_V4, 200))
        put(master, b"behind")
        data = bytes(master.commit_log.queue.segments[0].buffer[: master.max_phy_offset])
    slave = open_store(tmp_path / "slave")
    slave.load()
    try:
        for at in range(0, len(data), piece):
            assert slave.append_replica(at, data[at : at + piece])
            slave.dispatch_nowait()
        assert slave.reput.offset == len(data)
        assert list(slave.queues.table) == ["chat"]
        assert slave.queues.table["chat"][0].max_offset == 7
    finally:
        slave.shutdown()


@pytest.mark.parametrize("state", [True, False])
def test_a_record_without_a_head_ends_where_its_queue_says(tmp_path: Path, state: bool) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, b"before")
        at = store.max_phy_offset
        put(store, full_of_records(at + m.BODY_POSITION_V4))
        last, _ = put(store, b"behind")
    log = Log(root)
    log.put(at, bytes(500))
    log.write()
    (root / "abort").touch()
    if not state:
        (root / "oberth.state").unlink()
    for way, found, topics in each_reading(root, tmp_path):
        # A queue keeps the unit of a record that is lost.
        assert {0, last} <= found <= {0, at, last}, way
        assert topics == {"chat"}, way
