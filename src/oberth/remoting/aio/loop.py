"""The event loop: uvloop where it can be imported, else asyncio's own; and imports beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

REQUESTS_NEED: Final = ("json", "oberth.formats.json_lenient")
"""What the first odd header or body would import."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """``uvloop.new_event_loop``, or None for asyncio's default."""
    try:
        import uvloop  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``main`` to its end on the fastest loop there is."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def import_soon(*modules: str) -> None:
    """Have a thread import what a start need not wait for and a first request would.

    Such an import takes 10 to 25 ms, during which a loop serves nobody. Called by a server that
    listens, from its loop.
    """
    asyncio.get_running_loop().run_in_executor(None, _import_all, modules)


def _import_all(modules: tuple[str, ...]) -> None:
    for module in modules:
        import_module(module)
