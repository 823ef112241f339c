"""What brokers show at /metrics when everything has happened that an alert tells of."""

from __future__ import annotations

from pathlib import Path

import httpx
from tests.broker.conftest import Peer
from tests.rigs.small_brokers import make

from oberth.broker.broker import Broker
from oberth.broker.metrics import NATIVE
from oberth.remoting.code import RequestCode


async def shown_metrics(root: Path, name_server: str, style: str = NATIVE) -> tuple[str, str]:
    """The text of a master, with a group that has a member and a dead letter, and of its slave.

    Args:
        root: where their stores are put.
        name_server: where they register.
        style: one of `oberth.broker.metrics.STYLES`.
    """
    own = {"httpPort": "0"}
    async with (
        make(root / "a", name_server, **own) as master,
        make(root / "b", name_server, brokerId="1", brokerRole="SLAVE", **own) as slave,
    ):
        peer = Peer(master)
        try:
            await peer.heartbeat("G", {"T": "*"}, producers=("P",))
            await peer.send("T", b"a message")
            (message,) = await peer.read("T")
            place = {"offset": str(message.commit_log_offset), "group": "G", "delayLevel": "-1"}
            await peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, place)
            master.parts.offsets.commit("G", "T", 0, 0, 0)
            return await _scraped(master, style), await _scraped(slave, style)
        finally:
            await peer.client.aclose()


async def _scraped(broker: Broker, style: str) -> str:
    assert broker.http is not None
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"http://{broker.http.address}/metrics", params={"format": style}, timeout=100
        )
    assert answer.status_code == 200, answer.text
    return answer.text
