"""No kernel reads a byte outside of what it is given: the bytes lie between forbidden pages.

A stray read would kill the interpreter, so each run is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forbids pages with mprotect")

PROGRAM = """
import contextlib, ctypes, mmap, random, sys
from oberth.errors import FormatError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.consume_queue import UNIT
from oberth.kernels import runtime
from oberth.kernels.batch import clean_batch
from oberth.kernels.arguments import CrcMode
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.gather import copy_records, gather, host_texts, message_ids, property_maps
from oberth.kernels.hashing import crc32, java_hash
from oberth.kernels.index import IndexEntries, index_keys
from oberth.kernels.pulls import PlainPulls
from oberth.kernels.queues import QueueTable, build_units
from oberth.kernels.scan import find_record, scan
from oberth.kernels.memory import address
from oberth.kernels.sends import PlainSends
from tests_log import encode_log

assert runtime.available()
PAGE = mmap.PAGESIZE
ROOM = 64 * PAGE
area = mmap.mmap(-1, ROOM + 2 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
protect = ctypes.CDLL(None).mprotect
protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
for page in (start, start + PAGE + ROOM):
    assert protect(page, PAGE, 0) == 0
whole = memoryview(area)[PAGE : PAGE + ROOM]
chance = random.Random(int(sys.argv[1]))


def go_through(data):
    columns, topics = Columns(200), TopicTable()
    scan(data, columns, topics, crc=CrcMode.MARK, own_position=False)
    scan(data, columns, topics, record_crc=True, own_position=False)
    for own in (True, False):
        find_record(data, own_position=own)
    build_units(columns, QueueTable(topics), data, multi_dispatch=True)
    index_keys(columns, topics, data, IndexEntries(), index_tags=True)
    for name in ("body", "topic", "properties", "tags", "keys", "uniq_key"):
        for text in (True, False):
            gather(data, columns, name, text=text)
    property_maps(data, columns)
    host_texts(data, columns, "born_host")
    message_ids(data, columns)
    crc32(data)
    java_hash(data)
    for offset, size in zip(columns.commit_log_offset[: columns.count], columns.record_size):
        size += chance.choice([0, 0, 1 << 20])
        for unit in (UNIT.pack(offset, size, 0), UNIT.pack(len(data) - 2, 4, 0)):
            copy_records(unit, data, 0, min(size, 1 << 16))


def go_through_batch(data):
    with contextlib.suppress(FormatError):
        clean_batch(data)


def some_batch():
    texts = [b"CLUSTER\\x01a\\x02", b"KEYS\\x01k", b"__RMQ.TRANSIENT.", b"\\x02", b"\\x01", b"x"]
    data = bytearray(
        encode_batch(
            BatchItem(0, chance.randbytes(3), b"".join(chance.choices(texts, k=6)))
            for _ in range(chance.randrange(1, 5))
        )
    )
    if chance.random() < 0.5:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def some_bytes():
    kinds = [b"TAGS\\x01t", b"KEYS\\x01a b", b"UNIQ_KEY\\x01" + b"u" * 32]
    kinds += [b"x\\x01\\xc3", b"\\xf0\\x9f"]
    kinds.append(b"INNER_MULTI_DISPATCH\\x01%LMQ%a,%LMQ%b\\x02INNER_MULTI_QUEUE_OFFSET\\x011,2")
    log = encode_log(
        [
            {
                "topic": chance.choice([b"T", b"SCHEDULE_TOPIC_XXXX", b"x" * 200, b"%R"]),
                "body": chance.randbytes(chance.choice([0, 3, 40, 500])),
                "properties": b"\\x02".join(chance.sample(kinds, chance.randrange(4))),
                "sys_flag": chance.choice([0, 0x10, 0x30]),
            }
            for _ in range(chance.randrange(1, 8))
        ]
    )
    log = bytearray(log[: chance.randrange(len(log) + 1)] if chance.random() < 0.5 else log)
    for _ in range(chance.randrange(4)):
        if log:
            log[chance.randrange(len(log))] = chance.randrange(256)
    return bytes(log)


sends = PlainSends(
    frame_max=1 << 20, body_max=1 << 18, record_max=1 << 19, refused_flags=0xFC,
    names=["CLUSTER", "N" * 40], added=b"A\\x01b\\x02", pieces=[b"p"] * 6, magic=1,
)
sends.add("T", 4, "T")
OUT = bytearray(1 << 20)
HOSTS = bytes(16)


def take_sends(data):
    if sends.read([data, data], [address(HOSTS), address(HOSTS)]):
        assert sends.size <= len(OUT)
        sends.touched()
        sends.write(OUT, 0, 0, 1)
        sends.answers()
        sends.drop()
        return 1
    return 0


def spoil(frames):
    frames = bytearray(frames)
    for _ in range(chance.choice([0, 0, 1, 3])):
        frames[chance.randrange(len(frames))] = chance.randrange(256)
    return bytes(frames[: chance.randrange(len(frames) + 1)] if chance.random() < 0.5 else frames)


def some_frames():
    frames = b""
    for _ in range(chance.randrange(1, 4)):
        properties = "\\\\u0002".join(
            name + "\\\\u0001" + "v" * chance.choice([0, 3, 200])
            for name in ("UNIQ_KEY", "K" * chance.randrange(1, 60))
        )
        header = (
            '{"code":310,"extFields":{"b":"T","e":"1","f":"0","g":"5","h":"0","i":"%s"},"flag":0,'
            '"opaque":%d}' % (properties, chance.randrange(1 << 31))
        ).encode()
        body = chance.randbytes(chance.choice([0, 1, 300]))
        size = len(header)
        frames += (4 + size + len(body)).to_bytes(4, "big") + size.to_bytes(4, "big")
        frames += header + body
    return spoil(frames)


pulls = PlainPulls(frame_max=1 << 20, count_max=32, bytes_max=1 << 16, end=b"end")
answered = 0


def take_pulls(data, log, units):
    global answered
    if not pulls.read([data, data]):
        return 0
    pulls.asked()
    for stretch in pulls.stretches():
        pulls.give(stretch.number, units, chance.randrange(4), 6, log, 0, b"start", b"middle")
    answered += pulls.answer(1)
    pulls.used()
    pulls.answers()
    return 1


def some_pulls():
    frames = b""
    for _ in range(chance.randrange(1, 4)):
        fields = {
            "consumerGroup": "G" * chance.choice([1, 1, 300, 1100]),
            "topic": chance.choice("TU"),
            "queueId": chance.randrange(3),
            "queueOffset": chance.randrange(12),
            "maxMsgNums": chance.choice([1, 2, 32, 300]),
            "sysFlag": chance.randrange(8),
            "commitOffset": 0,
            "suspendTimeoutMillis": 1,
            "subVersion": 1,
        }
        text = ",".join('"%s":"%s"' % each for each in fields.items())
        header = '{"code":11,"extFields":{%s},"flag":0,"opaque":%d}' % (text, chance.randrange(9))
        size = len(header)
        frames += (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + header.encode()
    return spoil(frames)


taken = 0
for _ in range(2000):
    data = some_frames()
    whole[len(whole) - len(data) :] = data
    taken += take_sends(whole[len(whole) - len(data) :])
    whole[: len(data)] = data
    taken += take_sends(whole[: len(data)])
assert taken > 500, taken

taken = 0
for _ in range(2000):
    data = some_pulls()
    log = some_bytes()
    columns = Columns(200)
    scan(log, columns, TopicTable(), own_position=False)
    offsets = columns.commit_log_offset[: columns.count]
    units = b"".join(UNIT.pack(*each, 0) for each in zip(offsets, columns.record_size))
    units += UNIT.pack(len(log) - chance.randrange(1, 9), 4, 0) + UNIT.pack(1 << 40, 9, 0)
    first, last = (data, log) if chance.random() < 0.5 else (log, data)
    whole[: len(first)] = first
    whole[len(whole) - len(last) :] = last
    views = (whole[: len(first)], whole[len(whole) - len(last) :])
    taken += take_pulls(*(views if first is data else views[::-1]), units)
assert taken > 500, taken
assert answered > 100, answered

for _ in range(150):
    data = some_bytes()
    whole[len(whole) - len(data) :] = data
    go_through(whole[len(whole) - len(data) :])
    whole[: len(data)] = data
    go_through(whole[: len(data)])
    data = some_batch()
    whole[len(whole) - len(data) :] = data
    go_through_batch(whole[len(whole) - len(data) :])
    whole[: len(data)] = data
    go_through_batch(whole[: len(data)])
print("sound")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_stray_reads(seed: int) -> None:
    # The records' encoder of this folder's conftest, under a name that can be imported.
    here = __file__.rpartition("/")[0]
    lead = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tests_log', {here + '/conftest.py'!r})\n"
        "sys.modules['tests_log'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", lead + PROGRAM, str(seed)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr
