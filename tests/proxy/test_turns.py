"""Turns: calls go on in the order of their coming, whoever gives up."""

from __future__ import annotations

import asyncio

import pytest

from oberth.proxy import turns as module
from oberth.proxy.turns import Turns


async def test_who_gives_up_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    monkeypatch.setattr(module, "WOKEN_A_TURN", 2)
    turns = Turns()
    went: list[int] = []

    async def go(number: int) -> None:
        await turns.take()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(8)]
    await asyncio.sleep(0)
    assert went == [0]
    for number in (1, 2, 5):  # among them all that are woken next
        tasks[number].cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert went == [0, 3, 4, 6, 7]
    assert not turns._waiting
    await turns.take()


async def test_a_turn_that_has_time_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 60.0)
    turns = Turns()
    for _ in range(100):
        await turns.take()
    assert not turns._waiting
