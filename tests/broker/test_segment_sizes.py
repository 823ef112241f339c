"""A slave whose segments are not as large as its master's takes nothing, and says once why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.rigs.small_brokers import SEGMENT, make, until

from oberth.broker import ha_service
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.replication import FRAME, REPORT

ATTEMPTS = 5


def counted(slave: ha_service.HAService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The attempts to follow from now on."""
    seen: list[str] = []
    follow: Callable[[str], Awaitable[None]] = slave._follow_once

    async def follow_once(address: str) -> None:
        seen.append(address)
        await follow(address)

    monkeypatch.setattr(slave, "_follow_once", follow_once)
    return seen


@pytest.mark.parametrize("size", [SEGMENT // 2, SEGMENT * 2])
async def test_the_sizes_are_named_once(
    tmp_path: Path,
    name_server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    monkeypatch.setattr(ha_service, "RECONNECT_S", 0.01)
    other = {"brokerId": "1", "brokerRole": "SLAVE", "mappedFileSizeCommitLog": str(size)}
    async with make(tmp_path / "a", name_server) as master:
        master.parts.store.append_messages(
            [MessageExtBrokerInner.of("t", b"x" * 900) for _ in range(200)]
        )
        assert master.parts.store.max_phy_offset > 2 * SEGMENT
        async with make(tmp_path / "b", name_server, **other) as slave:
            attempts = counted(slave.services.ha, monkeypatch)
            await until(lambda: len(attempts) >= ATTEMPTS)
            assert slave.parts.store.max_phy_offset == 0
    said = [each.getMessage() for each in caplog.records if "segments of" in each.getMessage()]
    (line,) = said
    assert f"its log has segments of {SEGMENT} bytes, this one of {size}" in line
    assert f"mappedFileSizeCommitLog={SEGMENT} on an empty store" in line
    assert "do not join on" not in caplog.text


async def test_a_master_that_does_not_say_is_left_once_its_log_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ha_service, "RECONNECT_S", 0.01)
    came: list[int] = []

    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(1)
        await reader.readexactly(REPORT.size)
        writer.write(FRAME.pack(0, SEGMENT + 8) + b"x" * (SEGMENT + 8))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(master, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        at = {"haMasterAddress": f"127.0.0.1:{port}", "brokerId": "1", "brokerRole": "SLAVE"}
        async with make(tmp_path / "b", "127.0.0.1:1", **at) as slave:
            attempts = counted(slave.services.ha, monkeypatch)
            await until(lambda: len(attempts) >= ATTEMPTS)
    assert came == [1]
    assert caplog.text.count("do not join on") == 1
    assert f"over the end of a segment of {SEGMENT} bytes, the master's segments are" in caplog.text
