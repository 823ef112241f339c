"""CommitLog bytes for the kernels' tests, and the certainty that the compiled kernels are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from oberth.formats.message import (
    FIXED,
    HOST_BITS,
    MAGIC_V1,
    MAGIC_V2,
    MessageExt,
    body_crc,
    record_size,
)
from oberth.kernels import runtime

Encode = Callable[..., bytes]


def encode_record(
    offset: int,
    *,
    topic: bytes = b"TopicTest",
    queue_id: int = 0,
    queue_offset: int = 0,
    body: bytes = b"body",
    properties: bytes = b"",
    sys_flag: int = 0,
    magic: int | None = None,
    store_timestamp: int = 1_700_000_000_000,
    crc: int | None = None,
) -> bytes:
    """One record at a CommitLog offset; v2 where the topic needs it."""
    if magic is None:
        magic = MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    born = b"\x0a\x00\x00\x01" + (8080).to_bytes(4, "big")
    store = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
    if sys_flag & 0x10:
        born = bytes(range(16)) + (8080).to_bytes(4, "big")
    if sys_flag & 0x20:
        store = bytes(range(16, 32)) + (10911).to_bytes(4, "big")
    assert FIXED[sys_flag & HOST_BITS].size == 72 + len(born) + len(store)
    return MessageExt(
        topic=topic.decode("utf-8", "surrogateescape"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=offset,
        record_size=record_size(len(body), len(topic), len(properties), sys_flag, magic),
        magic=magic,
        body_crc=body_crc(body) if crc is None else crc,
        flag=7,
        sys_flag=sys_flag,
        born_timestamp=store_timestamp - 3,
        born_host=born,
        store_timestamp=store_timestamp,
        store_host=store,
        reconsume_times=1,
        prepared_transaction_offset=11,
        body=body,
        properties_raw=properties,
    ).encode()


def encode_log(records: Sequence[dict[str, object]], base: int = 0) -> bytes:
    """Records back to back from a CommitLog offset on; each a dict of `encode_record`'s options."""
    log = b""
    for options in records:
        log += encode_record(base + len(log), **options)  # type: ignore[arg-type]
    return log


@pytest.fixture(scope="session")
def record() -> Encode:
    """``record(offset, topic=b"…", …)``: one record's bytes."""
    return encode_record


@pytest.fixture(scope="session")
def log() -> Encode:
    """``log([{"body": b"…"}, …], base)``: records back to back."""
    return encode_log


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_ready() -> None:
    """A run that compared the references with themselves would prove nothing."""
    assert runtime.available()
