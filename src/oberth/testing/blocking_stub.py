"""Writes ``blocking.pyi`` of this package; see ``oberth.client.blocking_stub``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oberth.client.blocking_stub import stub_text

STUB_PATH: Final = Path(__file__).with_name("blocking.pyi")


def testing_stub_text() -> str:
    """What ``blocking.pyi`` has to hold."""
    return stub_text(
        [("oberth.testing.embedded_broker", "EmbeddedBroker")],
        "Written by `python -m oberth.testing.blocking_stub`; do not edit.",
    )


if __name__ == "__main__":
    STUB_PATH.write_text(testing_stub_text())
