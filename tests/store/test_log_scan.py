"""find_log_end: where a log ends, what in it is damage, what is stale.

Logs written by CommitLog.append, then cut, zeroed, overwritten and bit-flipped at every place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oberth.formats.message import MAGIC_V1, encode_blank
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store import log_scan
from oberth.store.commit_log import CommitLog
from oberth.store.files import OsFileSystem
from oberth.store.log_scan import NOT_WHOLE, LogEnd, find_log_end, find_record
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult
from oberth.store.running_flags import RunningFlags

SEGMENT = 4096
Written = tuple[MappedFileQueue, list[PutMessageResult]]
Write = Callable[..., Written]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_log(
        count: int = 12, size: int = 300, start_ms: int = 1000, properties: bytes = b""
    ) -> Written:
        queue = MappedFileQueue(OsFileSystem(), [str(tmp_path)], SEGMENT)
        config = MessageStoreConfig(mapped_file_size_commit_log=SEGMENT)
        times = iter(range(start_ms, start_ms + count))
        log = CommitLog(
            OsFileSystem(), config, queue, RunningFlags(), lambda: next(times), lambda _: {}
        )
        results = [
            log.append(
                [MessageExtBrokerInner("t", bytes([n + 1]) * size, properties_raw=properties)]
            )[0]
            for n in range(count)
        ]
        for segment in queue.segments:
            segment.set_positions(SEGMENT)
        return queue, results

    return write_log


def scan(queue: MappedFileQueue, start: int = 0) -> LogEnd:
    return find_log_end(queue, start, check_crc=True)


def poke(queue: MappedFileQueue, offset: int, data: bytes) -> None:
    segment = queue.find(offset)
    assert segment is not None
    position = offset - segment.start_offset
    segment.buffer[position : position + len(data)] = data


def test_a_whole_log_ends_behind_its_last_record(write: Write) -> None:
    queue, results = write()
    end = scan(queue)
    assert end.end_offset == results[-1].end_offset
    assert (end.last_record, end.record_count) == (results[-1].commit_log_offset, 12)
    assert (end.damages, end.stale_end) == ((), 0)
    assert end.last_store_timestamp == results[-1].store_timestamp


@pytest.mark.parametrize("at", range(0, 392, 7))
def test_a_torn_last_record_ends_the_log_before_it(write: Write, at: int) -> None:
    queue, results = write()
    last = results[-1]
    poke(queue, last.commit_log_offset + at, bytes(last.record_size - at))
    end = scan(queue)
    assert end.end_offset == last.commit_log_offset
    assert end.stale_end <= last.commit_log_offset + at
    assert end.damages == ()


PROPERTIES = b"KEYS\x01" + b"k" * 1200 + b"\x02TAGS\x01a"


@pytest.mark.parametrize("lost", [1, 6, 700, len(PROPERTIES)])
def test_a_last_record_whose_properties_are_torn_is_none(write: Write, lost: int) -> None:
    queue, results = write(4, properties=PROPERTIES)
    last = results[-1]
    poke(queue, last.end_offset - lost, bytes(lost))
    end = find_log_end(queue, 0, check_crc=True, check_ends=True)
    assert (end.end_offset, end.record_count) == (last.commit_log_offset, 3)
    assert end.last_record == results[-2].commit_log_offset
    assert end.last_store_timestamp == results[-2].store_timestamp
    assert end.stale_end == last.end_offset - lost
    # RocketMQ's own records may end so, and nobody can tell.
    assert scan(queue).end_offset == last.end_offset


def test_a_last_record_that_lacks_a_sector_of_its_properties_is_none(write: Write) -> None:
    queue, results = write(1, properties=PROPERTIES)
    poke(queue, 1024, bytes(512))
    end = find_log_end(queue, 0, check_crc=True, check_ends=True)
    assert (end.end_offset, end.last_record, end.record_count) == (0, -1, 0)
    assert scan(queue).end_offset == results[0].end_offset


@pytest.mark.parametrize("since_ms", [0, 1])
def test_only_records_that_may_be_unsynced_have_lost_a_sector(write: Write, since_ms: int) -> None:
    queue, results = write(1, properties=PROPERTIES)
    poke(queue, 1024, bytes(512))
    [torn] = results
    after = torn.store_timestamp - since_ms
    end = find_log_end(queue, 0, check_crc=True, unsynced_after_ms=after)
    assert end.end_offset == (0 if since_ms else torn.end_offset)


def test_a_record_with_torn_properties_before_a_lost_page_is_damage(write: Write) -> None:
    queue, results = write(6, size=200, properties=PROPERTIES[-20:])
    hit, gone = results[2], results[3]
    poke(queue, hit.end_offset - 5, bytes(5 + gone.record_size))
    end = find_log_end(queue, 0, check_crc=True, check_ends=True)
    assert end.end_offset == results[-1].end_offset
    ((start, stop, reason),) = end.damages
    assert (start, stop, reason) == (hit.commit_log_offset, gone.end_offset, NOT_WHOLE)


def test_damage_in_the_middle_keeps_what_follows(write: Write) -> None:
    queue, results = write()
    hit = results[4]
    for at in (0, 4, 30, 100, hit.record_size - 1):
        segment = queue.find(hit.commit_log_offset)
        assert segment is not None
        position = hit.commit_log_offset - segment.start_offset + at
        segment.buffer[position] ^= 0x10
        end = scan(queue)
        segment.buffer[position] ^= 0x10
        assert end.end_offset == results[-1].end_offset
        if end.damages:
            (damage,) = end.damages
            assert (damage.start, damage.end) == (hit.commit_log_offset, hit.end_offset)
        else:
            # The tail of the properties is covered by nothing; here there are none.
            assert at == hit.record_size - 1


def test_a_segment_lost_to_its_end_is_damage_when_the_next_one_goes_on(write: Write) -> None:
    queue, results = write(24)
    hit = next(r for r in results if r.commit_log_offset > 2000)
    poke(queue, hit.commit_log_offset, bytes(SEGMENT - hit.commit_log_offset))
    end = scan(queue)
    assert end.end_offset == results[-1].end_offset
    assert [(d.start, d.end) for d in end.damages] == [(hit.commit_log_offset, SEGMENT)]


def test_well_formed_records_of_other_places_end_the_log(write: Write) -> None:
    queue, results = write(5)
    first = queue.segments[0]
    stolen = bytes(first.buffer[: results[0].record_size])
    poke(queue, results[-1].end_offset, stolen + b"garbage")
    end = scan(queue)
    assert end.end_offset == results[-1].end_offset
    assert end.stale_end == results[-1].end_offset + len(stolen) + 7


def test_older_records_behind_the_end_are_stale(write: Write) -> None:
    """A broker truncated here, wrote less, and stopped: what is left must stay dead."""
    queue, results = write(8, start_ms=1000)
    segment = queue.segments[0]
    third = results[2]
    times = iter([5000])
    log = CommitLog(
        OsFileSystem(),
        MessageStoreConfig(mapped_file_size_commit_log=SEGMENT),
        queue,
        RunningFlags(),
        lambda: next(times),
        lambda _: {},
    )
    segment.set_positions(third.commit_log_offset)
    again = log.append([MessageExtBrokerInner("t", b"short")])[0]
    segment.set_positions(SEGMENT)
    end = scan(queue)
    assert end.end_offset == again.end_offset
    # The last record ends in its empty properties: two zero bytes.
    assert end.stale_end == results[-1].end_offset - 2


def test_one_wrong_store_time_makes_nothing_stale(write: Write) -> None:
    queue, results = write(12)
    wrong = results[4].commit_log_offset + 56
    segment = queue.segments[0]
    segment.buffer[wrong] ^= 0x40
    poke(queue, results[6].commit_log_offset, bytes(8))
    end = scan(queue)
    assert end.end_offset == results[-1].end_offset
    assert end.last_store_timestamp <= results[-1].store_timestamp


def test_a_log_may_end_in_a_blank_or_be_empty(write: Write) -> None:
    queue, results = write(3)
    end_offset = results[-1].end_offset
    poke(queue, end_offset, encode_blank(SEGMENT - end_offset))
    assert scan(queue).end_offset == end_offset
    poke(queue, 0, bytes(SEGMENT))
    empty = scan(queue)
    assert (empty.end_offset, empty.last_record, empty.record_count) == (0, -1, 0)


def test_find_record_sees_through_false_magics(write: Write) -> None:
    queue, results = write(6)
    segment = queue.segments[0]
    second = results[1]
    magic = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")
    segment.buffer[200:216] = magic * 4
    assert find_record(segment, 1, check_crc=True) == second.commit_log_offset
    assert find_record(segment, results[-1].commit_log_offset + 1, check_crc=True) is None


@pytest.mark.parametrize("chunk_size", range(40, 60))
def test_find_record_looks_across_the_pieces_that_it_reads(
    chunk_size: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a piece ends, the magic that lies across its end is found."""
    queue, results = write(2)
    monkeypatch.setattr(log_scan, "_CHUNK_SIZE", chunk_size)
    assert find_record(queue.segments[0], 1, check_crc=True) == results[1].commit_log_offset


@pytest.mark.parametrize("zeros", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_body_of_zeros_may_be_a_hole_in_the_file(zeros: int, tmp_path: Path) -> None:
    """A copy of a store leaves such pages out."""
    size = 1 << 17
    config = MessageStoreConfig(mapped_file_size_commit_log=size)
    queue = MappedFileQueue(OsFileSystem(), [str(tmp_path / "whole")], size)
    log = CommitLog(OsFileSystem(), config, queue, RunningFlags(), lambda: 1000, lambda _: {})
    results = [
        log.append([MessageExtBrokerInner("t", bytes([n != zeros]) * 40_000)])[0] for n in range(3)
    ]
    (path,) = (tmp_path / "whole").iterdir()
    data = bytes(queue.segments[0].buffer)
    (tmp_path / "sparse").mkdir()
    with (tmp_path / "sparse" / path.name).open("wb") as file:
        file.truncate(size)
        for at in range(0, size, 4096):
            if any(data[at : at + 4096]):
                file.seek(at)
                file.write(data[at : at + 4096])
    copied = MappedFileQueue(OsFileSystem(), [str(tmp_path / "sparse")], size)
    copied.load()
    end = scan(copied)
    assert (end.end_offset, end.record_count, end.damages) == (results[-1].end_offset, 3, ())
    copied.close()
    queue.close()
