"""No kernel reads a byte outside of what it is given: the bytes lie between forbidden pages.

A stray read would kill the interpreter, so each run is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forbids pages with mprotect")

PROGRAM = """
import ctypes, mmap, random, sys
from oberth.kernels import runtime
from oberth.kernels.arguments import CrcMode
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.gather import gather, host_texts, message_ids, property_maps
from oberth.kernels.hashing import crc32, java_hash
from oberth.kernels.index import IndexEntries, index_keys
from oberth.kernels.queues import QueueTable, build_units
from oberth.kernels.scan import find_record, scan
from tests_log import encode_log

assert runtime.prepare()
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


for _ in range(150):
    data = some_bytes()
    whole[len(whole) - len(data) :] = data
    go_through(whole[len(whole) - len(data) :])
    whole[: len(data)] = data
    go_through(whole[: len(data)])
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
