"""EmbeddedBroker for tests without an event loop, and for the pytest fixture.

The broker runs on the loop of ``oberth.client.blocking``, in a thread of its own, so it serves
plain tests, and asynchronous ones under whatever plugin runs them. Types: ``blocking.pyi``, written
by ``python -m oberth.testing.blocking_stub``.
"""

from __future__ import annotations

from oberth.client.blocking_face import derive
from oberth.testing.embedded_broker import EmbeddedBroker as _EmbeddedBroker

EmbeddedBroker = derive(_EmbeddedBroker, __name__)

__all__ = ["EmbeddedBroker"]
