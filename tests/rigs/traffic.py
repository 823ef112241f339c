"""The official Java client under load while brokers come and go, with a ledger of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.rigs import peers
from tests.rigs.interop import client_classes

SETTLE_S: Final = 120.0
"""How long anything may take until it is so."""


class Traffic:
    """The Java program's end of a conversation.

    Args:
        namesrv_addr: of the cluster.
        directory: gets the program's log.
        topic: what is sent to.
        group: of two members who take messages as they come.
        orderly: of two members who take them in order.
        senders: threads that send.
        pause_ms: between two sends of a thread.
    """

    def __init__(
        self,
        namesrv_addr: str,
        directory: Path,
        topic: str,
        group: str,
        orderly: str,
        *,
        senders: int = 1,
        pause_ms: int = 20,
    ) -> None:
        lib, classes = client_classes("5.5.0")
        self._log = (directory / "failover.log").open("w")
        self._process = subprocess.Popen(
            peers.java_command(
                lib,
                "FailoverRun",
                *(namesrv_addr, topic, group, orderly, str(senders), str(pause_ms)),
                classes=classes,
                options=(
                    "-Xmx512m",  # it keeps what it has consumed
                    f"-Duser.home={directory}",
                    "-Drocketmq.client.logLevel=ERROR",
                ),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()  # closes the pipes
        self._log.close()

    def ask(self, line: str = "status") -> dict[str, Any]:
        """What the program says to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("{"):
                found: dict[str, Any] = json.loads(answer)
                return found
        raise AssertionError("the program has ended")

    def until(self, done: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Ask until the answer is as wanted."""
        deadline = time.monotonic() + SETTLE_S
        while not done(status := self.ask()):
            assert time.monotonic() < deadline, f"{what}: {status}"
            time.sleep(0.2)
        return status
