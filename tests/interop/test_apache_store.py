"""Apache's store code opens what our store wrote and reads the same: by running it.

The reading program itself is held against the golden stores first, so that a difference later is
one of the stores and not of the program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import PeerUnavailableError
from oberth.testing.apache_store import ApacheDump, StoredMessage, put_messages, read_store

pytestmark = pytest.mark.interop

#: Fields that only some readers give.
_NOT_COMPARED = {"crcOk", "dispatch", "inner"}
_GOLDEN = (
    "client-5.5.0",
    "client-4.9.7",
    "compressed-5.5.0",
    "cqext-4.9.7",
    "crash-noqueue-4.9.7",
    "innerbatch-5.5.0",
)


def _read(root: Path, version: str, config: dict[str, str], **more: Any) -> ApacheDump:
    try:
        return read_store(root, version, config, **more)
    except PeerUnavailableError as why:
        pytest.skip(str(why))


@pytest.mark.slow
@pytest.mark.parametrize("name", _GOLDEN)
def test_reader_agrees_with_golden(golden_store: Callable[[str], Any], name: str) -> None:
    golden = golden_store(name)
    dump = _read(golden.root, golden.rocketmq_version, golden.config, start="noqueue" in name)
    assert len(dump.messages) == len(golden.facts["messages"])
    for found, expected in zip(dump.messages, golden.facts["messages"], strict=True):
        compared = {k: v for k, v in expected.items() if k not in _NOT_COMPARED}
        assert {key: found.get(key) for key in compared} == compared
    queues = {(q["topic"], q["queueId"]): q for q in dump.queues}
    assert set(queues) == {(q["topic"], q["queueId"]) for q in golden.facts["queues"]}
    for expected in golden.facts["queues"]:
        found = queues[expected["topic"], expected["queueId"]]
        for key in ("minOffset", "maxOffset", "units"):
            assert found[key] == expected[key], (expected["topic"], expected["queueId"], key)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("kill", [False, True])
def test_put_is_read_back(tmp_path: Path, version: str, kill: bool) -> None:
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    messages = [
        StoredMessage(
            topic=f"T{i % 3}",
            queue_id=i % 2,
            body=bytes([i % 256]) * (i * 37 % 3000),
            tags="t" if i % 4 else "",
            keys=f"k{i} common",
            properties={"n": str(i)},
        )
        for i in range(200)
    ]
    try:
        results = put_messages(tmp_path / "store", version, messages, sizes, kill=kill)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert [r["status"] for r in results] == ["PUT_OK"] * len(messages)
    questions = [("key", "T1", "common", 10, 0, 2**62), ("get", "T0", 0, 0, 8)]
    dump = _read(tmp_path / "store", version, sizes, start=True, questions=questions)
    assert [m["commitLogOffset"] for m in dump.messages] == [r["commitLogOffset"] for r in results]
    for found, sent in zip(dump.messages, messages, strict=True):
        assert found["topic"] == sent.topic
        assert found["properties"]["n"] == sent.properties["n"]
        assert (found["bodyLength"] or 0) == len(sent.body)
        if sent.body:
            assert found["bodySha256"] == hashlib.sha256(sent.body).hexdigest()
    assert len(dump.answers[0]["commitLogOffsets"]) == 10
    assert dump.answers[1]["status"] == "FOUND"
