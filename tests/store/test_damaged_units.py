"""A unit of a queue that is damaged costs at most its own message, and hands out no other's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.consume_queue import UNIT
from oberth.formats.java_string import java_hash
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner, TagsFilter

COUNT = 40
HIT = 7


def open_store(root: Path, *, ext: bool = False) -> MessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        mapped_file_size_batch_consume_queue=46 * 100,
        mapped_file_size_consume_queue_ext=4096,
        enable_consume_queue_ext=ext,
        disk_max_used_space_ratio=95,
        disk_space_warning_level_ratio=90,
    )
    return MessageStore(
        config,
        topic_attributes=lambda name: {"queue.type": "BatchCQ"} if name == "batch" else {},
    )


def fill(root: Path, topic: str, *, ext: bool = False) -> None:
    """Messages of the topic, and of another between them."""
    with open_store(root, ext=ext) as store:
        for n in range(COUNT):
            for name in (topic, "other"):
                store.put_message(
                    MessageExtBrokerInner.of(name, b"%d" % n * 9, tags="AB"[n % 2], queue_id=0)
                )


def taken(store: MessageStore, topic: str, tags: TagsFilter | None = None) -> list[int]:
    """The numbers of the messages that a consumer gets, which are all of its queue."""
    found = []
    offset = 0
    while True:
        got = store.get_message("g", topic, 0, offset, 10, tags)
        data = b"".join(bytes(each) for each in got.records)
        at = 0
        while at < len(data):
            message = decode_record(data, at)
            assert message.topic == topic
            found.append(message.queue_offset)
            at += message.record_size
        if got.status in (
            GetMessageStatus.OFFSET_OVERFLOW_ONE,
            GetMessageStatus.NO_MESSAGE_IN_QUEUE,
        ):
            return found
        assert got.next_begin_offset > offset
        offset = got.next_begin_offset


def larger(offset: int, size: int) -> tuple[int, int]:
    return offset, size ^ 1 << 7


def smaller(offset: int, size: int) -> tuple[int, int]:
    return offset, 3 - size % 3


def huge(offset: int, size: int) -> tuple[int, int]:
    return offset, size | 1 << 30


def behind_the_log(offset: int, size: int) -> tuple[int, int]:
    return offset | 1 << 40, size


def inside_a_record(offset: int, size: int) -> tuple[int, int]:
    return offset + 5, size


@pytest.mark.parametrize("topic", ["t", "batch"])
@pytest.mark.parametrize("hit", [HIT, 0])
@pytest.mark.parametrize("damage", [larger, smaller, huge, behind_the_log, inside_a_record])
def test_the_other_messages_are_taken(
    damage: Callable[[int, int], tuple[int, int]], hit: int, topic: str, tmp_path: Path
) -> None:
    fill(tmp_path, topic)
    unit = BATCH_UNIT if topic == "batch" else UNIT
    folder = "batchconsumequeue" if topic == "batch" else "consumequeue"
    [path] = (tmp_path / folder / topic / "0").iterdir()
    data = bytearray(path.read_bytes())
    offset, size, *rest = unit.unpack_from(data, hit * unit.size)
    unit.pack_into(data, hit * unit.size, *damage(offset, size), *rest)
    path.write_bytes(data)
    expected = list(range(COUNT))
    if damage in (behind_the_log, inside_a_record):
        expected.remove(hit)
    with open_store(tmp_path) as store:
        assert taken(store, topic) == expected


@pytest.mark.parametrize("how", ["lost", "off"])
def test_tags_are_those_of_the_record_where_ext_units_are_gone(how: str, tmp_path: Path) -> None:
    """Their files are lost, or the setting was switched off."""
    fill(tmp_path, "t", ext=True)
    if how == "lost":
        shutil.rmtree(tmp_path / "consumequeue_ext")
    with open_store(tmp_path, ext=how == "lost") as store:
        assert taken(store, "t", TagsFilter({java_hash("A")})) == list(range(0, COUNT, 2))
        assert taken(store, "t", TagsFilter({java_hash("B")})) == list(range(1, COUNT, 2))
        assert taken(store, "t") == list(range(COUNT))


@pytest.mark.parametrize("first", [0, 3], ids=["front", "middle"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_units_of_zeros_in_a_queue_of_apache_are_built_again(
    first: int, killed: bool, golden_store: Callable[[str], Any]
) -> None:
    golden = golden_store("basic-5.5.0")
    hurt = [
        (each["topic"], each["queueId"], [unit[1] for unit in each["units"]])
        for each in golden.facts["queues"]
        if len(each["units"]) > first + 2
    ]
    assert hurt
    for topic, queue_id, _ in hurt:
        path = golden.root / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(first * UNIT.size)
            file.write(bytes(2 * UNIT.size))
    if killed:
        (golden.root / "abort").touch()
    options = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(golden.root), **golden.config}
    )
    options.disk_max_used_space_ratio, options.disk_space_warning_level_ratio = 95, 90
    with MessageStore(options) as store:
        for topic, queue_id, offsets in hurt:
            found = store.iterate_consume_queue(topic, queue_id, 0, len(offsets))
            assert [unit.commit_log_offset for unit in found] == offsets, (topic, queue_id)


@pytest.mark.parametrize("first", [0, 3, 13], ids=["front", "middle", "last file"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_units_of_zeros_in_a_batch_queue_of_apache_are_built_again(
    first: int, killed: bool, golden_store: Callable[[str], Any]
) -> None:
    golden = golden_store("innerbatch-5.5.0")
    before = {}
    for queue_id in (0, 1):
        directory = golden.root / "batchconsumequeue" / "InnerBatch" / str(queue_id)
        files = sorted(directory.iterdir())
        before[queue_id] = b"".join(path.read_bytes() for path in files).rstrip(b"\0")
        in_file = files[0].stat().st_size // BATCH_UNIT.size
        with files[first // in_file].open("r+b") as file:
            file.seek(first % in_file * BATCH_UNIT.size)
            file.write(bytes(2 * BATCH_UNIT.size - 20))
    if killed:
        (golden.root / "abort").touch()
    options = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(golden.root), **golden.config}
    )
    options.disk_max_used_space_ratio, options.disk_space_warning_level_ratio = 95, 90
    with MessageStore(
        options,
        topic_attributes=lambda name: {"queue.type": "BatchCQ"} if name == "InnerBatch" else {},
    ) as store:
        for queue_id, units in before.items():
            queue = store.queues.find("InnerBatch", queue_id)
            assert queue is not None
            found = queue.units(queue.min_offset, 1000)
            assert found.rstrip(b"\0") == units, queue_id
