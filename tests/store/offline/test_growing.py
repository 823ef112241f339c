"""A store that another process writes is read without locks, and nothing half-written is seen.

A writer process appends through the store engine while this one reads, verifies and dumps; every
message that is seen must be one that was put, in order, and in the end all are there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oberth.errors import StoreLockedError
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.verify import verify

COUNT = 3000
WRITER = """
import sys
from oberth.formats.broker_conf import MessageStoreConfig
from oberth.formats.message import encode_host
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner

root, count = sys.argv[1], int(sys.argv[2])
config = MessageStoreConfig(
    store_path_root_dir=root, mapped_file_size_commit_log=65536,
    mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=5000,
)
host = encode_host("127.0.0.1", 10911)
with MessageStore(config) as store:
    for number in range(count):
        result = store.put_message(MessageExtBrokerInner(
            topic="Growing", body=b"%d " % number * 20, queue_id=number % 3,
            properties_raw=b"KEYS\\x01key%d\\x02" % number,
            born_timestamp=1, born_host=host, store_host=host,
        ))
        assert result.ok, result
        if number == 10:
            print("begun", flush=True)
        if number == count // 2:
            sys.stdin.readline()
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(COUNT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "begun\n"
        rounds = 0
        seen = 0
        with StoreReader(root) as reader:
            while seen < COUNT:
                numbers = [int(message.body.split(b" ", 1)[0]) for message in reader.messages()]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= seen
                seen = len(numbers)
                report = verify(reader)
                assert report.clean, [str(each) for each in report.damage]
                reader.refresh()
                if not rounds:
                    # However slow this process is, it has seen a part and the rest grows beside it.
                    assert seen <= COUNT // 2 + 1
                    writer.stdin.write("\n")
                    writer.stdin.flush()
                rounds += 1
            assert rounds > 1
            with pytest.raises(StoreLockedError):
                rebuild(reader)
            rebuild(reader, str(tmp_path / "beside"))
        assert writer.stdout.readline() == "done\n"
        writer.stdin.write("\n")
        writer.stdin.close()
        assert writer.wait(120) == 0
    finally:
        writer.kill()
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
    with StoreReader(root) as reader:
        report = verify(reader)
        assert report.clean, [str(each) for each in report.damage]
        assert (report.records, report.notes) == (COUNT, [])
        (found,) = reader.by_key("Growing", "key1234")
        assert found.body.startswith(b"1234 ")
