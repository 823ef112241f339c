"""busyPollMicros reaches the port: a lone sender is waited for awake, and not when it says 0."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from oberth.remoting.aio import busy_poll

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_yield"), reason="no sched_yield here, so nothing polls"
)

SENDS = busy_poll.SCORE_MIN + 1


@pytest.mark.parametrize(("micros", "polls"), [("100000", True), ("0", False)])
async def test_setting(
    make_live: Any, monkeypatch: pytest.MonkeyPatch, micros: str, polls: bool
) -> None:
    looked = asyncio.Event()
    monkeypatch.setattr(busy_poll, "CPUS_MIN", 0)
    monkeypatch.setattr(busy_poll, "CROWDED_S", 60.0)
    monkeypatch.setattr(os, "sched_yield", looked.set)
    live = await make_live(busyPollMicros=micros)
    while True:
        for _ in range(SENDS):
            assert (await live.peer.send("T", b"hello")).code == 0
        if not polls:
            assert not looked.is_set()
            return
        if looked.is_set():  # a machine that pauses between sends needs more of them
            return
