"""Brokers with small files, alone or in pairs under one name server, inside the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oberth.broker.broker import Broker
from oberth.broker.broker_config import BrokerConfig, read_configs
from oberth.formats.message_store_config import MessageStoreConfig

SEGMENT = 64 * 1024
"""Bytes of a segment of their logs."""
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "1000",
}


def options_of(
    root: Path, name_server: str, **entries: str
) -> tuple[BrokerConfig, MessageStoreConfig]:
    """The settings of broker-a with a store at ``root``; ``entries`` come last."""
    values = {
        "storePathRootDir": str(root),
        "namesrvAddr": name_server,
        "brokerName": "broker-a",
        "listenPort": "0",
        **SMALL_FILES,
        "timerWheelEnable": "false",
        "haSendHeartbeatInterval": "100",
        **entries,
    }
    config, store_config, _ = read_configs(values)
    return config, store_config


def make(root: Path, name_server: str, **entries: str) -> Broker:
    """That broker, not started."""
    return Broker(*options_of(root, name_server, **entries))


async def until(condition: Callable[[], Any]) -> None:
    """Waits for what another task brings about; looked at once a turn of the loop."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - the store has no event for its growth
            await asyncio.sleep(0.01)
